//! Which nodes are up: a judgement by pings. Pure.
//!
//! A node that has not answered for `down_after` is down. To be up again it has to answer several pings in a row, and more of them each time
//! that it went down again soon: a node that flaps is left down rather than believed every second. A node that was never heard of is
//! neither; it is down after the same time. A node that announces that it stops is down at once,
//! without any penalty when it is back. Time in which this node itself stood still (its machine was
//! paused, it got no CPU) counts
//! against nobody: who was not listening does not know who was silent.

use super::config::LivenessConfig;
use model::HostId;
use rt::time::{Duration, Instant};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use uuid::Uuid;

/// What is known of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NodeStatus {
    /// It has not answered yet, nor had the time to.
    Unknown,
    /// It answers.
    Up,
    /// It does not.
    Down,
}

/// A node went up or down.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LivenessEvent {
    /// The node.
    pub host: HostId,
    /// Whether it is up now.
    pub up: bool,
}

/// Which nodes are up, at one moment. The same on all shards of a node, but for the time that news take.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Liveness {
    /// What is known of each node.
    pub nodes: BTreeMap<HostId, PeerStatus>,
}

/// What a node says of itself when it answers a ping.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SelfReport {
    /// It serves clients.
    pub serving: bool,
    /// The version of its schema.
    pub schema: Uuid,
    /// Bytes that its sstables take on disk, as of some seconds ago.
    pub load_bytes: u64,
    /// The node is stopping: it finishes the requests that it has and takes no more.
    pub stopping: bool,
}

/// What is known of one node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PeerStatus {
    /// Whether it is there.
    pub status: NodeStatus,
    /// By how many microseconds its wall clock is ahead of ours, as well as pings can tell; none before it has answered.
    pub clock_ahead_micros: Option<i64>,
    /// How long its last ping took there and back.
    pub round_trip: Option<Duration>,
    /// What it said of itself last.
    pub report: Option<SelfReport>,
    /// Where it answered last.
    pub address: Option<SocketAddr>,
    /// It is up, and the last ping was answered.
    pub answering: bool,
    /// It is down because it has announced that it stops; the requests that it has are still
    /// answered.
    pub stopping: bool,
}

impl Liveness {
    /// What is known of a node.
    pub fn status(&self, host: HostId) -> NodeStatus {
        self.nodes.get(&host).map_or(NodeStatus::Unknown, |node| node.status)
    }

    /// Whether a node is up and serves clients.
    pub fn is_serving(&self, host: HostId) -> bool {
        let node = self.nodes.get(&host).filter(|node| node.status == NodeStatus::Up);
        node.and_then(|node| node.report).is_some_and(|report| report.serving)
    }

    /// Whether the same nodes are up and down in both, and say the same of themselves, but for their load, at the same addresses.
    pub fn same_statuses(&self, other: &Liveness) -> bool {
        let statuses = |liveness: &'_ Liveness| -> Vec<_> {
            let said = |node: &PeerStatus| node.report.map(|report| (report.serving, report.schema, node.address));
            let said = |node: &PeerStatus| (said(node), node.stopping, node.answering);
            liveness.nodes.iter().map(|(host, node)| (*host, node.status, said(node))).collect()
        };
        statuses(self) == statuses(other)
    }

    /// Whether a node announced that it stops, and has not come back since.
    pub fn is_stopping(&self, host: HostId) -> bool {
        self.nodes.get(&host).is_some_and(|node| node.stopping)
    }

    /// Where a node answers, if that is another address than this one. A node whose last ping
    /// failed may have moved just now.
    pub fn answers_elsewhere(&self, host: HostId, address: SocketAddr) -> Option<SocketAddr> {
        let seen = self.nodes.get(&host).filter(|node| node.answering);
        seen.and_then(|node| node.address).filter(|seen| *seen != address)
    }

    /// Whether a node is known to be down.
    pub fn is_down(&self, host: HostId) -> bool {
        self.status(host) == NodeStatus::Down
    }
}

#[derive(Debug)]
struct Judged {
    status: NodeStatus,
    /// When it last answered; when it was first looked for, before that.
    heard: Instant,
    /// Pings answered in a row.
    answers: u32,
    /// How many it needs to be up.
    needed: u32,
    /// When it last went up.
    up_since: Instant,
    clock_ahead_micros: Option<i64>,
    round_trip: Option<Duration>,
    report: Option<SelfReport>,
    address: Option<SocketAddr>,
    /// It announced that it stops.
    stopping: bool,
}

/// The judge.
#[derive(Debug)]
pub struct Detector {
    config: LivenessConfig,
    nodes: BTreeMap<HostId, Judged>,
    /// When this node last looked at what has come.
    looked: Option<Instant>,
}

impl Detector {
    /// One that knows of no nodes.
    pub fn new(config: LivenessConfig) -> Detector {
        Detector { config, nodes: BTreeMap::new(), looked: None }
    }

    /// From now on judges exactly these nodes. Those that are new are judged from `now` on.
    pub fn watch(&mut self, hosts: &BTreeSet<HostId>, now: Instant) {
        self.nodes.retain(|host, _| hosts.contains(host));
        for host in hosts {
            self.nodes.entry(*host).or_insert_with(|| Judged {
                status: NodeStatus::Unknown,
                heard: now,
                answers: 0,
                needed: 1,
                up_since: now,
                clock_ahead_micros: None,
                round_trip: None,
                report: None,
                address: None,
                stopping: false,
            });
        }
    }

    /// The nodes that are judged.
    pub fn hosts(&self) -> impl Iterator<Item = HostId> {
        self.nodes.keys().copied()
    }

    /// A node has answered a ping from this address, and said something of itself if it can.
    pub fn answered(
        &mut self,
        host: HostId,
        now: Instant,
        round_trip: Duration,
        clock_ahead_micros: i64,
        report: Option<SelfReport>,
        address: SocketAddr,
    ) {
        if report.is_some_and(|report| report.stopping) {
            if let Some(node) = self.nodes.get_mut(&host) {
                node.heard = now;
            }
            return self.stops(host);
        }
        let Some(node) = self.nodes.get_mut(&host) else { return };
        node.heard = now;
        node.answers = node.answers.saturating_add(1);
        node.report = report;
        node.address = Some(address);
        node.round_trip = Some(round_trip);
        node.clock_ahead_micros = Some(clock_ahead_micros);
    }

    /// A node announces that it stops. Answers from now on count only if they do not say so.
    pub fn stops(&mut self, host: HostId) {
        if let Some(node) = self.nodes.get_mut(&host) {
            node.stopping = true;
            node.answers = 0;
        }
    }

    /// A node has not answered a ping in time, or could not be reached.
    pub fn missed(&mut self, host: HostId) {
        if let Some(node) = self.nodes.get_mut(&host) {
            node.answers = 0;
        }
    }

    /// How long this node itself stood still before `now`, if it did: it has not looked for longer than a ping may take. What is longer than
    /// that is taken out of the others' silence; not all of it, so that a node that is late each time finds the dead, too.
    pub fn looks(&mut self, now: Instant) -> Option<Duration> {
        let since = self.looked.replace(now).map_or(Duration::ZERO, |looked| now.saturating_duration_since(looked));
        let late = since.checked_sub(self.config.timeout).filter(|late| !late.is_zero())?;
        for node in self.nodes.values_mut() {
            node.heard = (node.heard + late).min(now);
        }
        Some(since)
    }

    /// What has changed by `now`.
    pub fn judge(&mut self, now: Instant) -> Vec<LivenessEvent> {
        let config = self.config;
        let mut events = Vec::new();
        for (host, node) in &mut self.nodes {
            let silent = now.saturating_duration_since(node.heard) >= config.down_after;
            match node.status {
                NodeStatus::Unknown | NodeStatus::Down if node.answers >= node.needed && !silent => {
                    node.status = NodeStatus::Up;
                    node.stopping = false;
                    node.up_since = now;
                    events.push(LivenessEvent { host: *host, up: true });
                }
                NodeStatus::Unknown | NodeStatus::Up if node.stopping => {
                    node.needed = config.answers_to_be_up;
                    node.status = NodeStatus::Down;
                    events.push(LivenessEvent { host: *host, up: false });
                }
                NodeStatus::Unknown | NodeStatus::Up if silent => {
                    let stayed = now.saturating_duration_since(node.up_since) >= config.flapping;
                    let was_up = node.status == NodeStatus::Up;
                    node.needed = match was_up && !stayed {
                        // The first time that it goes down is no flapping, and a restart should not take long.
                        true if node.needed > 1 => (node.needed * 2).min(config.most_answers_to_be_up),
                        _ => config.answers_to_be_up,
                    };
                    node.status = NodeStatus::Down;
                    node.answers = 0;
                    events.push(LivenessEvent { host: *host, up: false });
                }
                // It has stopped.
                NodeStatus::Down if silent => node.stopping = false,
                _ => {}
            }
        }
        events
    }

    /// What is known now.
    pub fn snapshot(&self) -> Liveness {
        let status = |node: &Judged| PeerStatus {
            status: node.status,
            clock_ahead_micros: node.clock_ahead_micros,
            round_trip: node.round_trip,
            report: node.report,
            address: node.address,
            answering: node.status == NodeStatus::Up && node.answers > 0,
            stopping: node.stopping,
        };
        Liveness { nodes: self.nodes.iter().map(|(host, node)| (*host, status(node))).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(n: u128) -> HostId {
        HostId(Uuid::from_u128(n))
    }

    fn at() -> SocketAddr {
        ([127, 0, 0, 1], 7000).into()
    }

    struct Watched {
        detector: Detector,
        now: Instant,
        events: Vec<(u64, bool)>,
        start: Instant,
    }

    impl Watched {
        fn new() -> Watched {
            let now = rt::time::now();
            let mut detector = Detector::new(LivenessConfig::default());
            detector.watch(&[host(1)].into(), now);
            Watched { detector, now, events: Vec::new(), start: now }
        }

        /// Pings each 100 ms for `seconds`, answered or not.
        fn pings(&mut self, tenths: u32, answered: bool) {
            for _ in 0..tenths {
                self.now += Duration::from_millis(100);
                match answered {
                    true => self.detector.answered(host(1), self.now, Duration::from_millis(1), 5, None, at()),
                    false => self.detector.missed(host(1)),
                }
                let millis = self.now.duration_since(self.start).as_millis() as u64;
                assert_eq!(self.detector.looks(self.now), None);
                let events = self.detector.judge(self.now);
                self.events.extend(events.into_iter().map(|event| (millis, event.up)));
            }
        }

        fn status(&self) -> NodeStatus {
            self.detector.snapshot().status(host(1))
        }
    }

    #[test]
    fn a_node_is_up_once_it_answers_and_down_two_seconds_after_its_last_answer() {
        let mut node = Watched::new();
        assert_eq!(node.status(), NodeStatus::Unknown);
        node.pings(1, true);
        assert_eq!(node.status(), NodeStatus::Up);
        node.pings(19, false);
        assert_eq!(node.status(), NodeStatus::Up);
        node.pings(1, false);
        assert_eq!(node.events, [(100, true), (2100, false)]);
        node.pings(1, true);
        assert_eq!(node.status(), NodeStatus::Down, "one answer is not enough after it was down");
        node.pings(1, true);
        assert_eq!(node.status(), NodeStatus::Up);
        assert_eq!(node.detector.snapshot().nodes[&host(1)].clock_ahead_micros, Some(5));
    }

    #[test]
    fn a_node_that_announces_its_stop_is_down_at_once_and_back_after_two_answers() {
        let mut node = Watched::new();
        node.pings(3, true);
        node.detector.stops(host(1));
        // The answer to a ping of before; then those of a node that says that it is stopping.
        node.pings(1, true);
        assert_eq!(node.events, [(100, true), (400, false)]);
        let report = Some(SelfReport { stopping: true, ..SelfReport::default() });
        for _ in 0..5 {
            node.detector.answered(host(1), node.now, Duration::ZERO, 0, report, at());
            node.pings(1, true);
        }
        assert!(node.status() == NodeStatus::Down && node.detector.snapshot().is_stopping(host(1)));
        node.pings(1, true);
        assert!(node.status() == NodeStatus::Up && !node.detector.snapshot().is_stopping(host(1)));
        assert_eq!(node.events.len(), 3);
        node.detector.stops(host(1));
        node.pings(10, false);
        assert!(node.detector.snapshot().is_stopping(host(1)));
        node.pings(15, false);
        assert!(node.status() == NodeStatus::Down && !node.detector.snapshot().is_stopping(host(1)), "it has stopped");
    }

    #[test]
    fn a_node_that_never_answers_is_down_at_last_and_said_so_once() {
        let mut node = Watched::new();
        node.pings(100, false);
        assert_eq!(node.events, [(2000, false)]);
        assert_eq!(node.status(), NodeStatus::Down);
    }

    #[test]
    fn who_stood_still_itself_takes_nobody_for_dead() {
        let mut node = Watched::new();
        node.pings(5, true);
        node.pings(5, false);
        node.now += Duration::from_secs(30);
        assert_eq!(node.detector.looks(node.now), Some(Duration::from_secs(30)));
        node.pings(8, false);
        assert_eq!(
            node.status(),
            NodeStatus::Up,
            "silent for half a second, for as long as a ping may take, and for 0.8 seconds"
        );
        node.pings(1, false);
        assert_eq!(node.events, [(100, true), (31_900, false)]);
    }

    #[test]
    fn a_little_late_is_not_standing_still_and_who_is_late_each_time_finds_the_dead() {
        let mut node = Watched::new();
        node.pings(1, true);
        node.now += Duration::from_millis(600);
        assert_eq!(node.detector.looks(node.now), None);
        node.pings(1, true);
        let mut late = 0;
        while node.detector.judge(node.now).is_empty() {
            node.now += Duration::from_secs(1);
            assert_eq!(node.detector.looks(node.now), Some(Duration::from_secs(1)));
            late += 1;
        }
        assert_eq!(late, 4, "0.6 seconds of silence each time");
        // Nobody is heard of in the future.
        node.pings(2, true);
        node.now += Duration::from_secs(3);
        assert!(node.detector.looks(node.now).is_some());
        node.pings(14, false);
        assert_eq!(node.status(), NodeStatus::Down);
    }

    #[test]
    fn an_answer_now_and_then_keeps_a_node_up() {
        let mut node = Watched::new();
        for _ in 0..20 {
            node.pings(1, true);
            node.pings(15, false);
        }
        assert_eq!(node.events, [(100, true)]);
    }

    #[test]
    fn a_node_that_flaps_needs_longer_each_time_and_is_forgiven_later() {
        let mut node = Watched::new();
        node.pings(10, true);
        let mut needed = Vec::new();
        for _ in 0..8 {
            node.pings(25, false);
            assert_eq!(node.status(), NodeStatus::Down);
            let mut answers = 0;
            while node.status() == NodeStatus::Down {
                node.pings(1, true);
                answers += 1;
            }
            needed.push(answers);
        }
        assert_eq!(needed, [2, 4, 8, 16, 32, 64, 64, 64]);
        // And answers that come only now and then do not count together.
        node.pings(25, false);
        for _ in 0..20 {
            node.pings(10, true);
            node.pings(1, false);
        }
        assert_eq!(node.status(), NodeStatus::Down);
        node.pings(64, true);
        node.pings(610, true);
        node.pings(25, false);
        node.pings(2, true);
        assert_eq!(node.status(), NodeStatus::Up, "a minute without falling down is forgiven");
    }

    #[test]
    fn only_nodes_that_are_watched_are_judged() {
        let now = rt::time::now();
        let mut detector = Detector::new(LivenessConfig::default());
        detector.watch(&[host(1), host(2)].into(), now);
        detector.answered(host(3), now, Duration::ZERO, 0, None, at());
        detector.answered(host(1), now, Duration::ZERO, 0, None, at());
        assert_eq!(detector.judge(now), [LivenessEvent { host: host(1), up: true }]);
        detector.watch(&[host(2)].into(), now);
        let later = now + Duration::from_secs(5);
        assert_eq!(detector.judge(later), [LivenessEvent { host: host(2), up: false }]);
        assert_eq!(detector.hosts().collect::<Vec<_>>(), [host(2)]);
        let before = detector.snapshot();
        detector.answered(host(2), later, Duration::ZERO, 7, None, at());
        assert!(before != detector.snapshot() && before.same_statuses(&detector.snapshot()));
        detector.answered(host(2), later, Duration::ZERO, 7, None, at());
        detector.judge(later);
        assert!(!before.same_statuses(&detector.snapshot()));
        let mut detector = Detector::new(LivenessConfig::default());
        detector.watch(&[host(2)].into(), now);
        detector.judge(later);
        assert!(!detector.snapshot().is_down(host(1)) && detector.snapshot().is_down(host(2)));
    }

    #[test]
    fn what_a_node_says_of_itself_is_news_but_for_its_load() {
        let now = rt::time::now();
        let mut detector = Detector::new(LivenessConfig::default());
        detector.watch(&[host(1)].into(), now);
        let mut says = |report| {
            detector.answered(host(1), now, Duration::ZERO, 0, Some(report), at());
            detector.judge(now);
            detector.snapshot()
        };
        let quiet = says(SelfReport::default());
        let report = SelfReport { serving: true, ..SelfReport::default() };
        let serving = says(report);
        assert!(!quiet.is_serving(host(1)) && serving.is_serving(host(1)) && !quiet.same_statuses(&serving));
        assert!(serving.same_statuses(&says(SelfReport { load_bytes: 5, ..report })));
        assert!(!serving.same_statuses(&says(SelfReport { schema: Uuid::from_u128(1), ..report })));
        detector.judge(now + Duration::from_secs(5));
        assert!(!detector.snapshot().is_serving(host(1)), "a node that is down serves nobody");
    }
}
