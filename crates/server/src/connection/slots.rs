//! Limits the number of client connections, and tracks those without STARTUP.
//!
//! Each connection has a slot, and the number of slots is limited. When all are taken, the oldest
//! connection that has sent no STARTUP within [`STARTUP_GRACE`] is evicted to free a slot for a new
//! one. So connections without requests cannot lock out clients.
//!
//! A slot is taken on the shard that accepts, and dropped on the shard that serves. The state that
//! both share is the [`PendingConnection`].

use rt::shard::ShardId;
use rt::sync::Notify;
use rt::time::{Duration, Instant};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};

/// How long a connection may take to send STARTUP while others need its slot. Enough for the round
/// trips of TCP, TLS and the protocol to another continent.
pub const STARTUP_GRACE: Duration = Duration::from_secs(1);
/// The minimum length of the list of pending connections at which it is purged of connections that
/// have started or ended.
const LEAST_PURGE: usize = 128;

/// The stages of a connection, as seen by the accepting shard.
const SILENT: u8 = 0;
const STARTED: u8 = 1;
const EVICTED: u8 = 2;
const ENDED: u8 = 3;
/// The connection is not in its shard's list yet.
const NO_ID: u64 = u64::MAX;

/// The number of connections on each shard.
#[derive(Debug, Clone)]
pub struct ConnectionCounts {
    shards: Arc<[AtomicUsize]>,
    most: usize,
    freed: Arc<Notify>,
}

/// A connection that [`ConnectionCounts`] counts until the slot is dropped.
#[derive(Debug)]
pub(super) struct ConnectionSlot {
    counts: ConnectionCounts,
    pub pending: Arc<PendingConnection>,
}

impl ConnectionCounts {
    /// No connections on `shards` shards, with a limit of `most` for all shards together.
    pub fn new(shards: usize, most: usize) -> ConnectionCounts {
        assert!(shards > 0, "a shard serves the connections");
        ConnectionCounts { shards: (0..shards).map(|_| AtomicUsize::new(0)).collect(), most, freed: Arc::default() }
    }

    /// The limit.
    pub fn most(&self) -> usize {
        self.most
    }

    pub(super) fn is_full(&self) -> bool {
        self.shards.iter().map(|count| count.load(Ordering::Relaxed)).sum::<usize>() >= self.most
    }

    /// Waits until a slot is free. Each freed slot wakes one waiter.
    pub(super) async fn free(&self) {
        while self.is_full() {
            self.freed.notified().await;
        }
    }

    /// The shard with the fewest connections; the first one of several.
    pub(super) fn least(&self) -> ShardId {
        let least = self.shards.iter().enumerate().min_by_key(|(_, count)| count.load(Ordering::Relaxed));
        ShardId(least.map_or(0, |(shard, _)| shard as u16))
    }

    /// The shard that a client chose by its port number.
    pub(super) fn by_port(&self, port: u16) -> ShardId {
        ShardId(port % self.shards.len().clamp(1, usize::from(u16::MAX)) as u16)
    }

    pub(super) fn take(&self, shard: ShardId) -> ConnectionSlot {
        self.shards[usize::from(shard.0)].fetch_add(1, Ordering::Relaxed);
        ConnectionSlot { counts: self.clone(), pending: Arc::new(PendingConnection::on(shard)) }
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.pending.stage.store(ENDED, Ordering::SeqCst);
        let slots = self.counts.shards[usize::from(self.pending.shard.0)].fetch_sub(1, Ordering::Relaxed);
        debug_assert!(slots > 0, "a connection gives up its own slot");
        self.counts.freed.notify_one();
    }
}

/// The state of a connection until STARTUP, shared by the accepting and the serving shard.
#[derive(Debug)]
pub(super) struct PendingConnection {
    /// The shard that serves it.
    pub shard: ShardId,
    stage: AtomicU8,
    /// Its id in its shard's list.
    id: AtomicU64,
    evicted: Notify,
}

impl PendingConnection {
    fn on(shard: ShardId) -> PendingConnection {
        PendingConnection { shard, stage: AtomicU8::new(SILENT), id: AtomicU64::new(NO_ID), evicted: Notify::new() }
    }

    /// Records that STARTUP succeeded. False if the connection was evicted before.
    pub fn start(&self) -> bool {
        self.stage.compare_exchange(SILENT, STARTED, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// Records that the connection is in its shard's list. False if it was evicted before.
    pub fn is_listed_as(&self, id: u64) -> bool {
        let earlier = self.id.swap(id, Ordering::SeqCst);
        debug_assert!(earlier == NO_ID && id != NO_ID, "a connection is listed once");
        self.stage.load(Ordering::SeqCst) != EVICTED
    }

    /// Its id in its shard's list, if it is there.
    pub fn id(&self) -> Option<u64> {
        Some(self.id.load(Ordering::SeqCst)).filter(|id| *id != NO_ID)
    }

    /// Waits until the connection is evicted. Needed until it is in its shard's list.
    pub async fn evicted(&self) {
        self.evicted.notified().await;
    }

    fn is_silent(&self) -> bool {
        self.stage.load(Ordering::SeqCst) == SILENT
    }

    /// Evicts the connection. False if it has started or ended.
    fn evict(&self) -> bool {
        let was_silent = self.stage.compare_exchange(SILENT, EVICTED, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        if was_silent {
            self.evicted.notify_one();
        }
        was_silent
    }
}

/// The connections without STARTUP, oldest first. On the accepting shard.
#[derive(Debug)]
pub(super) struct PendingConnections {
    queue: RefCell<VecDeque<(Instant, Arc<PendingConnection>)>>,
    /// The length at which the queue is purged of connections that have started or ended.
    purge_at: Cell<usize>,
}

impl PendingConnections {
    pub fn new() -> PendingConnections {
        PendingConnections { queue: RefCell::default(), purge_at: Cell::new(LEAST_PURGE) }
    }

    /// Adds a connection accepted at `now`. Calls must be in order of time.
    pub fn push(&self, now: Instant, pending: Arc<PendingConnection>) {
        let mut queue = self.queue.borrow_mut();
        debug_assert!(
            queue.back().is_none_or(|(before, _)| *before <= now),
            "pending connections are added in order of time"
        );
        if queue.len() >= self.purge_at.get() {
            queue.retain(|(_, pending)| pending.is_silent());
            // Doubled, so that the amortized cost for each connection is constant.
            self.purge_at.set(LEAST_PURGE.max(2 * queue.len()));
        }
        queue.push_back((now, pending));
    }

    /// Evicts the oldest connection without STARTUP. `None` if all of them are younger than
    /// [`STARTUP_GRACE`].
    pub fn evict_oldest(&self, now: Instant) -> Option<Arc<PendingConnection>> {
        let mut queue = self.queue.borrow_mut();
        while let Some((came, pending)) = queue.front() {
            if pending.is_silent() && now.saturating_duration_since(*came) < STARTUP_GRACE {
                return None;
            }
            let (_, pending) = queue.pop_front()?;
            if pending.evict() {
                return Some(pending);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_emptiest_shard_is_chosen() {
        let counts = ConnectionCounts::new(3, 7);
        let first: Vec<ConnectionSlot> = (0..6).map(|_| counts.take(counts.least())).collect();
        let shards: Vec<u16> = first.iter().map(|slot| slot.pending.shard.0).collect();
        assert_eq!(shards, [0, 1, 2, 0, 1, 2]);
        drop(first.into_iter().nth(4));
        assert_eq!(counts.least(), ShardId(0));
        let _one = counts.take(ShardId(0));
        assert_eq!(counts.least(), ShardId(1));
        assert_eq!(counts.by_port(19_043), ShardId(2));
    }

    #[test]
    fn seats_are_bounded_and_given_back() {
        let counts = ConnectionCounts::new(2, 3);
        let slots: Vec<ConnectionSlot> = (0..3).map(|_| counts.take(counts.least())).collect();
        assert!(counts.is_full());
        drop(slots);
        assert!(!counts.is_full());
    }

    #[test]
    fn the_oldest_silent_connection_is_evicted_after_its_grace() {
        let (counts, pending) = (ConnectionCounts::new(1, 4), PendingConnections::new());
        let begun = rt::time::now();
        let at = |millis| begun + Duration::from_millis(millis);
        let slots: Vec<ConnectionSlot> = (0..4).map(|_| counts.take(ShardId(0))).collect();
        for (n, slot) in slots.iter().enumerate() {
            pending.push(at(100 * n as u64), slot.pending.clone());
        }
        assert!(slots[0].pending.start(), "it sent STARTUP");
        let first = at(100) + STARTUP_GRACE;
        assert!(pending.evict_oldest(first - Duration::from_millis(1)).is_none(), "all are young");
        let evicted = pending.evict_oldest(first).expect("one is too old");
        assert!(Arc::ptr_eq(&evicted, &slots[1].pending));
        assert!(!evicted.start(), "its STARTUP came too late");
        assert!(!evicted.is_listed_as(7), "nor is it served");
        assert!(pending.evict_oldest(first).is_none());
        let mut slots = slots;
        drop(slots.remove(2));
        let evicted = pending.evict_oldest(at(5000)).expect("the last one");
        assert!(Arc::ptr_eq(&evicted, &slots[2].pending), "a connection that has ended is skipped");
        assert!(pending.evict_oldest(at(5000)).is_none());
    }

    #[test]
    fn connections_that_started_or_ended_are_not_kept() {
        let (counts, pending) = (ConnectionCounts::new(1, usize::MAX), PendingConnections::new());
        let silent: Vec<ConnectionSlot> = (0..100).map(|_| counts.take(ShardId(0))).collect();
        silent.iter().for_each(|slot| pending.push(rt::time::now(), slot.pending.clone()));
        for _ in 0..10_000 {
            let slot = counts.take(ShardId(0));
            slot.pending.start();
            pending.push(rt::time::now(), slot.pending.clone());
        }
        assert!(pending.queue.borrow().len() <= 2 * LEAST_PURGE, "{}", pending.queue.borrow().len());
    }
}
