//! Decides by pings which nodes are up. Pure.
//!
//! - A node that has not answered for `down_after` is down. A node that has never answered is
//!   unknown, and down after the same time.
//! - To be up again, a node must answer several consecutive pings. The number doubles each time the
//!   node goes down again soon, so that a flapping node stays down.
//! - A node that announces its stop is down at once. It gets no penalty when it is back.
//! - Time during which this node itself was stalled (a paused machine, no CPU) does not count
//!   against other nodes, because this node could not receive their answers.

use super::config::LivenessConfig;
use model::HostId;
use rt::time::{Duration, Instant};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use uuid::Uuid;

/// The status of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NodeStatus {
    /// It has not answered yet, and its time for that is not over.
    Unknown,
    /// It answers pings.
    Up,
    /// It does not answer pings, or has announced its stop.
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

/// The status of all nodes at one moment. All shards of a node have the same, apart from delays of
/// publication.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Liveness {
    /// The status of each node.
    pub nodes: BTreeMap<HostId, PeerStatus>,
}

/// The report of a node about itself in its answer to a ping.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SelfReport {
    /// It serves clients.
    pub serving: bool,
    /// The version of its schema.
    pub schema: Uuid,
    /// Bytes of its sstables on disk, some seconds old.
    pub load_bytes: u64,
    /// It refuses writes because its commitlog has no disk space; some seconds old.
    pub no_space: bool,
    /// It has sstables that cannot be read; some seconds old.
    pub unreadable: bool,
    /// The node is stopping: it finishes its requests and accepts no more.
    pub stopping: bool,
}

/// The status of one node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PeerStatus {
    /// Whether it is up.
    pub status: NodeStatus,
    /// Microseconds by which its wall clock is ahead of this node's, as measured by pings. `None`
    /// before the first answer.
    pub clock_ahead_micros: Option<i64>,
    /// The round trip of its last ping.
    pub round_trip: Option<Duration>,
    /// Its last report about itself.
    pub report: Option<SelfReport>,
    /// The address at which it last answered.
    pub address: Option<SocketAddr>,
    /// When it last answered; before the first answer, when this node began to ping it.
    pub last_answer: Instant,
    /// It is up, and answered the last ping.
    pub answering: bool,
    /// It is down because it announced its stop. It still answers the requests that it has.
    pub stopping: bool,
}

impl Liveness {
    /// The status of a node.
    pub fn status(&self, host: HostId) -> NodeStatus {
        self.nodes.get(&host).map_or(NodeStatus::Unknown, |node| node.status)
    }

    /// Whether a node is up and serves clients.
    pub fn is_serving(&self, host: HostId) -> bool {
        let node = self.nodes.get(&host).filter(|node| node.status == NodeStatus::Up);
        node.and_then(|node| node.report).is_some_and(|report| report.serving)
    }

    /// Whether both have the same statuses, addresses and reports, apart from the load.
    pub fn same_statuses(&self, other: &Liveness) -> bool {
        let statuses = |liveness: &'_ Liveness| -> Vec<_> {
            let reported = |node: &PeerStatus| node.report.map(|report| (report.serving, report.schema, node.address));
            let state = |node: &PeerStatus| (reported(node), node.stopping, node.answering);
            liveness.nodes.iter().map(|(host, node)| (*host, node.status, state(node))).collect()
        };
        statuses(self) == statuses(other)
    }

    /// Whether a node announced its stop and has not come back since.
    pub fn is_stopping(&self, host: HostId) -> bool {
        self.nodes.get(&host).is_some_and(|node| node.stopping)
    }

    /// The address at which a node answers, if it is not `address`. `None` if its last ping failed,
    /// because it may just have moved.
    pub fn answers_elsewhere(&self, host: HostId, address: SocketAddr) -> Option<SocketAddr> {
        let seen = self.nodes.get(&host).filter(|node| node.answering);
        seen.and_then(|node| node.address).filter(|seen| *seen != address)
    }

    /// How long a node has been unresponsive, as seen by this node. Zero while the node is not
    /// marked down.
    pub fn silent_for(&self, host: HostId) -> Duration {
        let down = self.nodes.get(&host).filter(|node| node.status == NodeStatus::Down);
        down.map_or(Duration::ZERO, |node| node.last_answer.elapsed())
    }

    /// Like [`Liveness::answers_elsewhere`], but also if the node has answered there within the
    /// time `lately`: it may be restarting.
    pub fn answered_elsewhere(&self, host: HostId, address: SocketAddr, lately: Duration) -> Option<SocketAddr> {
        let seen = self.nodes.get(&host).filter(|_| self.silent_for(host) < lately);
        seen.and_then(|node| node.address).filter(|seen| *seen != address)
    }

    /// Whether a node is known to be down.
    pub fn is_down(&self, host: HostId) -> bool {
        self.status(host) == NodeStatus::Down
    }
}

#[derive(Debug)]
struct WatchedNode {
    status: NodeStatus,
    /// When it last answered; before the first answer, when it was first watched.
    last_answer: Instant,
    /// The number of consecutive answers.
    answers: u32,
    /// The number of consecutive answers that it needs to be up.
    needed: u32,
    /// When it last went up.
    up_since: Instant,
    clock_ahead_micros: Option<i64>,
    round_trip: Option<Duration>,
    report: Option<SelfReport>,
    address: Option<SocketAddr>,
    /// It announced its stop.
    stopping: bool,
}

/// The failure detector's rules and state.
#[derive(Debug)]
pub struct Detector {
    config: LivenessConfig,
    nodes: BTreeMap<HostId, WatchedNode>,
    /// When this node last processed answers.
    looked: Option<Instant>,
}

impl Detector {
    /// A detector without nodes.
    pub fn new(config: LivenessConfig) -> Detector {
        Detector { config, nodes: BTreeMap::new(), looked: None }
    }

    /// Sets the watched nodes. New ones are evaluated from `now` on.
    pub fn watch(&mut self, hosts: &BTreeSet<HostId>, now: Instant) {
        self.nodes.retain(|host, _| hosts.contains(host));
        for host in hosts {
            self.nodes.entry(*host).or_insert_with(|| WatchedNode {
                status: NodeStatus::Unknown,
                last_answer: now,
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

    /// The watched nodes.
    pub fn hosts(&self) -> impl Iterator<Item = HostId> {
        self.nodes.keys().copied()
    }

    /// Records the answer to a ping, from `address`, with the node's report about itself, if any.
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
                node.last_answer = now;
            }
            return self.stops(host);
        }
        let Some(node) = self.nodes.get_mut(&host) else { return };
        node.last_answer = now;
        node.answers = node.answers.saturating_add(1);
        node.report = report;
        node.address = Some(address);
        node.round_trip = Some(round_trip);
        node.clock_ahead_micros = Some(clock_ahead_micros);
    }

    /// Records that a node announces its stop. Later answers count only if they do not repeat it.
    pub fn stops(&mut self, host: HostId) {
        if let Some(node) = self.nodes.get_mut(&host) {
            node.stopping = true;
            node.answers = 0;
        }
    }

    /// Records that a node did not answer a ping in time or was unreachable.
    pub fn missed(&mut self, host: HostId) {
        if let Some(node) = self.nodes.get_mut(&host) {
            node.answers = 0;
        }
    }

    /// Detects a stall of this node: more time than `timeout` has passed since the last call.
    /// Returns that time. The part beyond `timeout` is subtracted from the silence of the other
    /// nodes. Not all of it is, so that a node that is late every time still detects dead nodes.
    pub fn looks(&mut self, now: Instant) -> Option<Duration> {
        let since = self.looked.replace(now).map_or(Duration::ZERO, |looked| now.saturating_duration_since(looked));
        let late = since.checked_sub(self.config.timeout).filter(|late| !late.is_zero())?;
        for node in self.nodes.values_mut() {
            node.last_answer = (node.last_answer + late).min(now);
        }
        Some(since)
    }

    /// Updates the statuses at `now`. Returns the changes.
    pub fn evaluate(&mut self, now: Instant) -> Vec<LivenessEvent> {
        let config = self.config;
        let mut events = Vec::new();
        for (host, node) in &mut self.nodes {
            let silent = now.saturating_duration_since(node.last_answer) >= config.down_after;
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
                        // The first time that a node goes down is not flapping: a restart must not
                        // take long.
                        true if node.needed > 1 => (node.needed * 2).min(config.most_answers_to_be_up),
                        _ => config.answers_to_be_up,
                    };
                    node.status = NodeStatus::Down;
                    node.answers = 0;
                    events.push(LivenessEvent { host: *host, up: false });
                }
                // The node has stopped.
                NodeStatus::Down if silent => node.stopping = false,
                _ => {}
            }
        }
        events
    }

    /// The current statuses.
    pub fn snapshot(&self) -> Liveness {
        let status = |node: &WatchedNode| PeerStatus {
            status: node.status,
            clock_ahead_micros: node.clock_ahead_micros,
            round_trip: node.round_trip,
            report: node.report,
            address: node.address,
            last_answer: node.last_answer,
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

        /// Pings every 100 ms, `tenths` times, answered or not.
        fn pings(&mut self, tenths: u32, answered: bool) {
            for _ in 0..tenths {
                self.now += Duration::from_millis(100);
                match answered {
                    true => self.detector.answered(host(1), self.now, Duration::from_millis(1), 5, None, at()),
                    false => self.detector.missed(host(1)),
                }
                let millis = self.now.duration_since(self.start).as_millis() as u64;
                assert_eq!(self.detector.looks(self.now), None);
                let events = self.detector.evaluate(self.now);
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
        // The answer to an earlier ping, then answers of a node that reports that it is stopping.
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
    fn a_node_that_never_answers_is_marked_down_and_reported_once() {
        let mut node = Watched::new();
        node.pings(100, false);
        assert_eq!(node.events, [(2000, false)]);
        assert_eq!(node.status(), NodeStatus::Down);
    }

    #[test]
    fn a_stalled_node_does_not_mark_others_down() {
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
    fn a_node_that_is_repeatedly_late_still_detects_dead_peers() {
        let mut node = Watched::new();
        node.pings(1, true);
        node.now += Duration::from_millis(600);
        assert_eq!(node.detector.looks(node.now), None);
        node.pings(1, true);
        let mut late = 0;
        while node.detector.evaluate(node.now).is_empty() {
            node.now += Duration::from_secs(1);
            assert_eq!(node.detector.looks(node.now), Some(Duration::from_secs(1)));
            late += 1;
        }
        assert_eq!(late, 4, "0.6 seconds of silence each time");
        // No answer counts as later than now.
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
    fn a_flapping_node_is_marked_up_later_each_time_until_it_is_stable() {
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
        // Sporadic answers do not add up.
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
    fn only_watched_nodes_are_marked_up_or_down() {
        let now = rt::time::now();
        let mut detector = Detector::new(LivenessConfig::default());
        detector.watch(&[host(1), host(2)].into(), now);
        detector.answered(host(3), now, Duration::ZERO, 0, None, at());
        detector.answered(host(1), now, Duration::ZERO, 0, None, at());
        assert_eq!(detector.evaluate(now), [LivenessEvent { host: host(1), up: true }]);
        detector.watch(&[host(2)].into(), now);
        let later = now + Duration::from_secs(5);
        assert_eq!(detector.evaluate(later), [LivenessEvent { host: host(2), up: false }]);
        assert_eq!(detector.hosts().collect::<Vec<_>>(), [host(2)]);
        let before = detector.snapshot();
        detector.answered(host(2), later, Duration::ZERO, 7, None, at());
        assert!(before != detector.snapshot() && before.same_statuses(&detector.snapshot()));
        detector.answered(host(2), later, Duration::ZERO, 7, None, at());
        detector.evaluate(later);
        assert!(!before.same_statuses(&detector.snapshot()));
        let mut detector = Detector::new(LivenessConfig::default());
        detector.watch(&[host(2)].into(), now);
        detector.evaluate(later);
        assert!(!detector.snapshot().is_down(host(1)) && detector.snapshot().is_down(host(2)));
    }

    #[test]
    fn self_reports_change_the_snapshot_except_for_the_load() {
        let now = rt::time::now();
        let mut detector = Detector::new(LivenessConfig::default());
        detector.watch(&[host(1)].into(), now);
        let mut says = |report| {
            detector.answered(host(1), now, Duration::ZERO, 0, Some(report), at());
            detector.evaluate(now);
            detector.snapshot()
        };
        let quiet = says(SelfReport::default());
        let report = SelfReport { serving: true, ..SelfReport::default() };
        let serving = says(report);
        assert!(!quiet.is_serving(host(1)) && serving.is_serving(host(1)) && !quiet.same_statuses(&serving));
        assert!(serving.same_statuses(&says(SelfReport { load_bytes: 5, ..report })));
        assert!(!serving.same_statuses(&says(SelfReport { schema: Uuid::from_u128(1), ..report })));
        detector.evaluate(now + Duration::from_secs(5));
        assert!(!detector.snapshot().is_serving(host(1)), "a node that is down serves no clients");
    }
}
