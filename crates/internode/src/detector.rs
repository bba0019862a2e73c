//! The failure detector: shard 0 pings every node of the address book, and publishes the result to
//! all shards.
//!
//! A ping and its answer carry `u8 version, u32 length, i64 wall clock in microseconds`, so that
//! clocks can be compared. From version 2 on, answers also have `u8 flags (1: serves clients, 2: is
//! stopping), 16 bytes version of the schema, u64 bytes on disk`.

use super::Internode;
use super::config::{Peer, Verb};
use super::error::{CallError, Refusal};
use super::liveness::{Detector, Liveness, LivenessEvent, SelfReport};
use bytes::Bytes;
use model::HostId;
use rt::Pieces;
use rt::hash::HashSet;
use rt::shard::PerShard;
use rt::sync::{Deadline, Notify};
use rt::time::Duration;
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;
use uuid::Uuid;

/// The version of a ping's body.
const VERSION: u8 = 2;
/// The node serves clients.
const SERVING: u8 = 1;
/// The node is stopping.
const STOPPING: u8 = 2;
/// The bit of a node that refuses writes because of a full disk. Earlier releases ignore it.
const NO_SPACE: u8 = 4;
/// The bit of a node with sstables that cannot be read. Earlier releases ignore it.
const UNREADABLE: u8 = 8;
/// The length of a node's report about itself, in bytes.
const REPORT: usize = 25;
/// The interval at which clocks and round trips are published to all shards.
const REPORT_EVERY: Duration = Duration::from_secs(5);
/// A difference of clocks of this many microseconds is logged.
const SKEW: i64 = 500_000;

fn encode(wall_micros: i64, report: Option<SelfReport>) -> Bytes {
    let mut body = Vec::with_capacity(13 + REPORT);
    body.push(VERSION);
    let len = if report.is_some() { 8 + REPORT as u32 } else { 8 };
    body.extend_from_slice(&len.to_le_bytes());
    body.extend_from_slice(&wall_micros.to_le_bytes());
    if let Some(report) = report {
        let bits = [
            (report.serving, SERVING),
            (report.stopping, STOPPING),
            (report.no_space, NO_SPACE),
            (report.unreadable, UNREADABLE),
        ];
        body.push(bits.into_iter().filter(|(is_set, _)| *is_set).fold(0, |all, (_, bit)| all | bit));
        body.extend_from_slice(report.schema.as_bytes());
        body.extend_from_slice(&report.load_bytes.to_le_bytes());
    }
    body.into()
}

/// The sender's wall clock, and its report about itself.
fn decode(body: &[u8]) -> Option<(i64, Option<SelfReport>)> {
    let (front, rest) = body.split_first_chunk::<5>()?;
    let len = u32::from_le_bytes([front[1], front[2], front[3], front[4]]) as usize;
    // A later version may append fields.
    let (wall, tail) = rest.split_first_chunk::<8>().filter(|_| front[0] > 0 && len == rest.len())?;
    let report = tail.first_chunk::<REPORT>().filter(|_| front[0] > 1).and_then(|report| {
        let (flags, rest) = report.split_first()?;
        let (schema, load) = rest.split_first_chunk::<16>()?;
        Some(SelfReport {
            serving: flags & SERVING != 0,
            schema: Uuid::from_bytes(*schema),
            load_bytes: u64::from_le_bytes(*load.first_chunk()?),
            no_space: flags & NO_SPACE != 0,
            unreadable: flags & UNREADABLE != 0,
            stopping: flags & STOPPING != 0,
        })
    });
    Some((i64::from_le_bytes(*wall), report))
}

/// Answers a ping with this node's report about itself.
pub(super) fn pong(body: &[u8], report: Option<SelfReport>) -> Result<Bytes, Refusal> {
    match decode(body) {
        Some(_) => Ok(encode(rt::time::wall_micros(), report)),
        None => Err(Refusal::malformed("a malformed ping")),
    }
}

struct Watch {
    internode: Rc<Internode>,
    detector: RefCell<Detector>,
    /// Nodes with an unanswered ping.
    asked: RefCell<HashSet<HostId>>,
    /// Nodes whose clock difference was logged.
    skewed: RefCell<HashSet<HostId>>,
    /// A node announced its stop: the next round is due now.
    hurry: Notify,
    /// The number of rounds that began, and of rounds whose result all shards have.
    rounds: Cell<(u64, u64)>,
    round_ended: Notify,
}

impl Watch {
    /// Handles the announcement of another node that it stops. Returns once all shards know.
    async fn stops(&self, host: HostId) {
        tracing::info!(node = %host, "the node announces that it stops");
        self.detector.borrow_mut().stops(host);
        let due = self.rounds.get().0 + 1;
        self.hurry.notify_one();
        loop {
            let ended = self.round_ended.notified();
            if self.rounds.get().1 >= due {
                return;
            }
            ended.await;
        }
    }
}

/// Watches all nodes until this node stops.
pub(super) async fn watch_peers(internode: Rc<Internode>) {
    let config = internode.setting.config.liveness;
    let watch = Rc::new(Watch {
        detector: RefCell::new(Detector::new(config)),
        asked: RefCell::default(),
        skewed: RefCell::default(),
        hurry: Notify::new(),
        rounds: Cell::new((0, 0)),
        round_ended: Notify::new(),
        internode,
    });
    let watching = Rc::downgrade(&watch);
    watch.internode.serve(Verb::Stopping, move |caller, _| {
        let watch = watching.upgrade();
        async move {
            // A node that runs on a copied data directory must not mark the original node as
            // stopping.
            if let Some(watch) = watch
                && watch.internode.liveness().answers_elsewhere(caller.host, caller.address).is_none()
            {
                watch.stops(caller.host).await;
            }
            Ok(Pieces::default())
        }
    });
    let own = watch.internode.setting.own.host;
    let stop = watch.internode.stop.clone();
    let (mut published, mut reported) = (Liveness::default(), rt::time::now());
    loop {
        let (begun, ended) = watch.rounds.get();
        debug_assert_eq!(begun, ended, "a round ends before the next begins");
        watch.rounds.set((begun + 1, ended));
        let hosts: BTreeSet<HostId> =
            watch.internode.book().peers.keys().copied().filter(|host| *host != own).collect();
        watch.detector.borrow_mut().watch(&hosts, rt::time::now());
        for host in hosts {
            if watch.asked.borrow_mut().insert(host) {
                rt::task::spawn(ping(watch.clone(), host)).detach();
            }
        }
        let now = rt::time::now();
        if let Some(pause) = watch.detector.borrow_mut().looks(now) {
            tracing::warn!(
                ?pause,
                "this node was stalled (the machine was paused, or the process got no CPU time): the time does not count against other nodes"
            );
        }
        let events = watch.detector.borrow_mut().evaluate(now);
        let snapshot = watch.detector.borrow().snapshot();
        for event in &events {
            say(&watch.internode, *event, snapshot.is_stopping(event.host));
        }
        // Clocks and round trips differ each time. They are published only every few seconds, so
        // that idle shards are not woken for them.
        let due = rt::time::now().saturating_duration_since(reported) >= REPORT_EVERY;
        if !snapshot.same_statuses(&published) || due {
            publish(watch.internode.shards, snapshot.clone(), events).await;
            (published, reported) = (snapshot, rt::time::now());
        }
        watch.rounds.set((begun + 1, begun + 1));
        watch.round_ended.notify_waiters();
        if stop.unless(rt::time::timeout(config.interval, watch.hurry.notified())).await.is_none() {
            return;
        }
    }
}

fn say(internode: &Internode, event: LivenessEvent, stopping: bool) {
    let address = internode.book().peers.get(&event.host).map(|peer| peer.address.to_string()).unwrap_or_default();
    if event.up {
        tracing::info!(node = %event.host, %address, "the node is up");
    } else if stopping {
        tracing::info!(node = %event.host, %address, "the node is down: it announced that it stops");
    } else {
        tracing::warn!(node = %event.host, %address, "the node is down: it does not answer pings");
    }
}

async fn publish(shards: PerShard<Internode>, snapshot: Liveness, events: Vec<LivenessEvent>) {
    let news = Arc::new((snapshot, events));
    rt::shard::call_all(move || {
        let news = news.clone();
        async move {
            if let Some(internode) = shards.try_get() {
                internode.set_liveness(Rc::new(news.0.clone()), &news.1);
            }
        }
    })
    .await;
}

async fn ping(watch: Rc<Watch>, host: HostId) {
    let timeout = watch.internode.setting.config.liveness.timeout;
    let began = rt::time::now();
    let to = Peer { host, shard: 0 };
    let address = watch.internode.book().peers.get(&host).map(|peer| peer.address);
    let body = encode(rt::time::wall_micros(), None);
    let answer = watch.internode.call(to, Verb::Ping, body, Deadline(began + timeout)).await;
    let was_asked = watch.asked.borrow_mut().remove(&host);
    debug_assert!(was_asked, "a node has one ping at a time");
    let said = answer.as_ref().ok().and_then(|body| decode(body));
    let (Some((wall, report)), Some(address)) = (said, address) else {
        watch.detector.borrow_mut().missed(host);
        if answer == Err(CallError::Timeout) {
            watch.internode.end_if_silent(to, Verb::Ping, timeout);
        }
        return;
    };
    let now = rt::time::now();
    let round_trip = now.saturating_duration_since(began);
    let ahead = wall - (rt::time::wall_micros() - round_trip.as_micros() as i64 / 2);
    watch.detector.borrow_mut().answered(host, now, round_trip, ahead, report, address);
    let skewed = ahead.abs() >= SKEW;
    let mut known = watch.skewed.borrow_mut();
    if skewed && known.insert(host) {
        tracing::warn!(node = %host, ahead_micros = ahead, "the node's clock differs from this node's clock: synchronise the clocks");
    } else if !skewed && known.remove(&host) {
        tracing::info!(node = %host, ahead_micros = ahead, "the node's clock agrees with this node's clock again");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pings_round_trip_and_fields_of_later_releases_are_ignored() {
        let schema = Uuid::from_u128(7);
        let report = SelfReport { serving: true, schema, load_bytes: 1 << 40, stopping: true, ..SelfReport::default() };
        let full = SelfReport { no_space: true, ..SelfReport::default() };
        let damaged = SelfReport { unreadable: true, ..report };
        for wall in [0, -5, i64::MAX] {
            for report in [None, Some(report), Some(full), Some(damaged), Some(SelfReport::default())] {
                assert_eq!(decode(&encode(wall, report)), Some((wall, report)));
            }
        }
        let mut later = encode(7, Some(report)).to_vec();
        later[0] = 3;
        later[1] += 1;
        later.push(1);
        assert_eq!(decode(&later), Some((7, Some(report))));
        for len in 0..13 {
            assert_eq!(decode(&encode(7, None)[..len]), None);
        }
        // The form of earlier releases.
        assert_eq!(decode(b"\x01\x08\0\0\0\x07\0\0\0\0\0\0\0"), Some((7, None)));
    }
}
