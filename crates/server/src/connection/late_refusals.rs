//! Refusals by rate limits that are answered late, so that a client gains nothing by trying again
//! at once.
//!
//! A refusal says when to try again. A client may retry the same partition earlier than that. If it
//! does so too often in one window ([`super::last_refusals`]), its further refusals are answered
//! late. So are all refusals of a connection beyond a rate ([`LateLimits::at_once`]). The limit is
//! a rate instead of a number in each window, because a client that never pauses would use up the
//! number as the window begins. Then the rate limits also accept the most. Until the answer, the
//! client waits instead of costing the shard another refusal. Requests that were sent before the
//! client knew of a refusal are no retries.
//!
//! The delay is random, from a half to the whole of [`LateLimits::delay`]. If all were answered
//! together, all their clients would try again together, and others would wait behind them.
//!
//! Late refusals hold no worker and no memory for requests, and do not count as pending statements.
//! So they do not delay the answers of other requests, even on the same connection. Their number is
//! bounded for each connection and shard, and their memory by [`MEMORY_PART`]. Beyond that, a
//! refusal is answered at once. Their answers count as expected answers, so they keep within the
//! memory for answers also if clients do not read.

use super::client::Connection;
use super::last_refusals::{LastRefusals, Refusal};
use super::transport::{Limits, Transport};
use crate::protocol::Reply;
use cql::Error;
use cql::rate_limit_error::RateLimitError;
use rt::time::{Duration, Instant};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

/// Refusals are counted by windows of this length.
const WINDOW: Duration = Duration::from_secs(1);
/// The fraction of the shard's memory for answers that late refusals may take.
const MEMORY_PART: usize = 8;
/// The memory of a late refusal in the queue, with the unused part of the nodes of its tree.
const QUEUED: usize = size_of::<((Instant, u64), LateRefusal)>() * 3 / 2;
/// The longest answer, apart from the name of the table, which it has at most twice.
const ANSWER: usize = 512;
/// How often the shard looks for refusals that are due.
const TICK: Duration = Duration::from_millis(10);

/// Which refusals are answered late, and how many of them.
#[derive(Debug, Clone)]
pub struct LateLimits {
    /// The longest delay. 0: all refusals are answered at once.
    pub delay: Duration,
    /// Early retries of a partition, by one connection in one window, that are answered at once.
    pub retries_at_once: u32,
    /// Refusals of a connection that are answered at once in a second, evenly spread once the
    /// connection had this many refusals.
    pub at_once: u32,
    /// The most late refusals of a connection.
    pub per_connection: u32,
    /// The most late refusals of a shard.
    pub per_shard: usize,
}

impl Default for LateLimits {
    fn default() -> Self {
        LateLimits { delay: WINDOW, retries_at_once: 100, at_once: 250, per_connection: 512, per_shard: 8_192 }
    }
}

/// A refusal that is not answered yet.
struct LateRefusal {
    connection: Rc<Connection>,
    reply: Reply,
    refusal: RateLimitError,
}

/// The bytes that a late refusal takes: in the queue, and of its answer.
fn bytes_of(refusal: &RateLimitError) -> usize {
    QUEUED + ANSWER + 2 * refusal.target.len()
}

impl LateRefusal {
    fn answer(self) {
        let (late, bytes) = (&self.connection.late_refusals, bytes_of(&self.refusal));
        late.set(late.get() - 1);
        let held = &self.connection.transport.late_refusals.bytes;
        held.set(held.get() - bytes);
        self.connection.no_longer_expects(bytes);
        self.connection.error(&self.reply, &Error::RateLimit(self.refusal));
        self.connection.wake();
    }
}

/// The state of the queue.
enum Left {
    None,
    NotDue,
    Due,
}

/// The late refusals of a shard.
pub(super) struct LateRefusals {
    /// By when they are due, and by their numbers.
    queue: RefCell<BTreeMap<(Instant, u64), LateRefusal>>,
    /// The bytes of all of them.
    bytes: Cell<usize>,
    /// The number of the next one.
    next: Cell<u64>,
    /// The last refusals; none before the first.
    last: RefCell<Option<LastRefusals>>,
    start: Instant,
}

impl Default for LateRefusals {
    fn default() -> Self {
        let start = rt::time::coarse_now();
        LateRefusals {
            queue: RefCell::default(),
            bytes: Cell::default(),
            next: Cell::default(),
            last: RefCell::default(),
            start,
        }
    }
}

impl LateRefusals {
    /// Whether no late refusal waits.
    pub fn is_empty(&self) -> bool {
        self.queue.borrow().is_empty()
    }

    /// Whether there is no room for another late refusal of a connection, of `bytes` bytes.
    fn is_full(&self, connection: &Connection, bytes: usize) -> bool {
        let Limits { late_refusals: limits, shard_unread, .. } = &connection.transport.limits;
        connection.late_refusals.get() >= limits.per_connection
            || self.queue.borrow().len() >= limits.per_shard
            || self.bytes.get() + bytes > shard_unread / MEMORY_PART
    }

    /// The number of the current window.
    fn window(&self, now: Instant) -> u32 {
        (now.saturating_duration_since(self.start).as_nanos() / WINDOW.as_nanos()) as u32
    }

    /// Whether a refusal is beyond what an obedient client causes.
    fn is_excess(&self, connection: &Connection, refusal: &RateLimitError, came: Instant, now: Instant) -> bool {
        let refusal = Refusal {
            peer: connection.peer,
            partition: refusal.refused.partition,
            came,
            now,
            retry_after: Duration::from_millis(refusal.refused.excess.retry_after_ms.into()),
            window: self.window(now),
        };
        let at_once = connection.transport.limits.late_refusals.retries_at_once;
        self.last.borrow_mut().get_or_insert_with(|| LastRefusals::new(now)).is_excess(&refusal, at_once)
    }

    /// Answers what is due now, until other tasks should run.
    fn answer_due(&self, now: Instant) -> Left {
        loop {
            let mut queue = self.queue.borrow_mut();
            let Some(first) = queue.first_entry() else { return Left::None };
            if first.key().0 > now {
                return Left::NotDue;
            }
            if rt::task::is_time_to_yield() {
                return Left::Due;
            }
            let late = first.remove();
            drop(queue);
            late.answer();
        }
    }

    /// Answers all of a connection now.
    fn answer_all_of(&self, connection: &Rc<Connection>) {
        let is_own = |late: &LateRefusal| Rc::ptr_eq(&late.connection, connection);
        let (own, others): (BTreeMap<_, _>, _) = self.queue.take().into_iter().partition(|(_, late)| is_own(late));
        self.queue.replace(others);
        own.into_values().for_each(LateRefusal::answer);
    }
}

/// Answers the late refusals of a shard until there are none.
async fn answer_late(transport: Rc<Transport>) {
    loop {
        match transport.late_refusals.answer_due(rt::time::now()) {
            Left::None => return,
            Left::NotDue => rt::time::sleep(TICK).await,
            Left::Due => rt::task::yield_now().await,
        }
    }
}

/// Until when an allowance of `most` in each [`WINDOW`] is used up by one more at `now`, if it was
/// used up until `until` before. `None` if it is exceeded.
fn used_until(until: Option<Instant>, now: Instant, most: u32) -> Option<Instant> {
    let until = until.map_or(now, |until| until.max(now)) + WINDOW.checked_div(most)?;
    (until <= now + WINDOW).then_some(until)
}

impl Connection {
    /// Answers a refusal by a rate limit, late if the client has tried too often. `came`: when its
    /// request was received.
    #[cold]
    pub(super) fn refuse(self: &Rc<Self>, reply: &Reply, came: Instant, mut refusal: RateLimitError) {
        let transport = &self.transport;
        let (now, late, limits) = (rt::time::coarse_now(), &transport.late_refusals, &transport.limits.late_refusals);
        let is_excess = self.refuses_much(now) | late.is_excess(self, &refusal, came, now);
        let bytes = bytes_of(&refusal);
        if !is_excess || limits.delay.is_zero() || transport.stop().is_cancelled() || late.is_full(self, bytes) {
            return self.error(reply, &Error::RateLimit(refusal));
        }
        let half = limits.delay / 2;
        let waits = half + Duration::from_nanos(rt::random::below(half.as_nanos() as u64 + 1));
        let retry_after = &mut refusal.refused.excess.retry_after_ms;
        *retry_after = retry_after.saturating_sub(waits.as_millis() as u32);
        transport.stats.late_refusals.add(1);
        self.late_refusals.set(self.late_refusals.get() + 1);
        late.bytes.set(late.bytes.get() + bytes);
        self.expects(bytes);
        let mut queue = late.queue.borrow_mut();
        let number = late.next.replace(late.next.get() + 1);
        queue.insert((now + waits, number), LateRefusal { connection: self.clone(), reply: *reply, refusal });
        let is_first = queue.len() == 1;
        drop(queue);
        if is_first {
            rt::task::spawn(answer_late(transport.clone())).detach();
        }
    }

    /// Counts a refusal. Whether there were too many lately to answer this one at once.
    fn refuses_much(&self, now: Instant) -> bool {
        let at_once = self.transport.limits.late_refusals.at_once;
        let used = used_until(self.refused_until.get(), now, at_once);
        if used.is_some() {
            self.refused_until.set(used);
        }
        used.is_none()
    }

    /// Answers all late refusals now, because the connection is about to end.
    pub(super) fn answer_late_refusals(self: &Rc<Self>) {
        if self.late_refusals.get() > 0 {
            self.transport.late_refusals.answer_all_of(self);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{Client, World, limits, query, run};
    use super::*;
    use crate::protocol::Opcode;

    const EARLY_RETRIES: u32 = 100;
    const PER_CONNECTION: u32 = 512;

    fn late(most: Duration) -> Limits {
        let late_refusals = LateLimits { delay: most, at_once: u32::MAX, ..LateLimits::default() };
        Limits { late_refusals, connection_in_flight: 5_000, ..limits() }
    }

    /// Refusals of the partition of this number, one after the other. Returns the time that they
    /// took.
    async fn refused(client: &mut Client, partition: u32, count: u32) -> Duration {
        let began = rt::time::now();
        for stream in 0..count {
            let answer = client.ask(&query(stream as i16, &format!("limited {partition}"))).await;
            assert_eq!((answer.code(), answer.stream), (0x2300, stream as i16));
        }
        began.elapsed()
    }

    fn count(world: &World) -> u64 {
        world.server.transport.stats.late_refusals.get()
    }

    #[test]
    fn early_retries_are_answered_late_and_delay_nothing_else() {
        run(late(WINDOW), |world| async move {
            let mut client = world.connect();
            client.start(&[]).await;
            // One more for each window that begins meanwhile.
            let mut tried = 0;
            while count(&world) == 0 {
                refused(&mut client, 1, 1).await;
                tried += 1;
                assert!(tried < 100 * EARLY_RETRIES);
            }
            assert!(tried > EARLY_RETRIES);
            // All are read while they wait, and other requests are answered before them.
            let mut waiting = 0;
            while waiting < EARLY_RETRIES as usize {
                let sent = 2 * EARLY_RETRIES as usize;
                for stream in 0..sent as i16 {
                    client.send(&query(1_000 + stream, "limited 1")).await;
                }
                client.send(&query(1, "limited 2")).await;
                client.send(&query(2, "rows 5")).await;
                let mut streams = Vec::new();
                while streams.last() != Some(&2) {
                    streams.push(client.receive().await.stream);
                }
                assert!(streams.contains(&1), "another partition");
                // Fewer wait if a window has begun meanwhile.
                waiting = sent + 2 - streams.len();
                for _ in 0..waiting {
                    assert!(client.receive().await.stream >= 1_000);
                }
            }
        });
    }

    #[test]
    fn an_allowance_is_renewed_evenly() {
        let start = rt::time::now();
        let at = |millis| start + Duration::from_millis(millis);
        let mut until = None;
        let mut used = |now, tries: u32| {
            let taken = (0..tries).filter(|_| {
                let next = used_until(until, now, 20);
                until = next.or(until);
                next.is_some()
            });
            taken.count()
        };
        assert_eq!(used(at(0), 50), 20);
        assert_eq!([used(at(10), 50), used(at(50), 50), used(at(99), 50)], [0, 1, 0]);
        let one_second: usize = (100..1_100).map(|millis| used(at(millis), 50)).sum();
        assert_eq!(one_second, 20);
        assert_eq!(used(at(9_000), 50), 20);
        assert_eq!((used_until(None, at(0), 0), used_until(None, at(0), u32::MAX)), (None, Some(at(0))));
    }

    #[test]
    fn refusals_of_many_partitions_are_answered_late_as_well() {
        let mut limits = late(WINDOW);
        limits.late_refusals.at_once = 20;
        run(limits, |world| async move {
            let mut client = world.connect();
            client.start(&[]).await;
            let mut tried = 0;
            while count(&world) == 0 {
                refused(&mut client, tried, 1).await;
                tried += 1;
                assert!(tried < 10_000, "none is late");
            }
            assert!(tried > 20);
            let sent = 60;
            for stream in 0..sent {
                client.send(&query(1_000 + stream, &format!("limited {stream}"))).await;
            }
            client.send(&query(2, "rows 5")).await;
            let mut before = 0;
            while client.receive().await.stream != 2 {
                before += 1;
            }
            assert!(before <= 40, "{before} of {sent} are answered at once");
            for _ in before..sent {
                assert!(client.receive().await.stream >= 1_000);
            }
        });
    }

    #[test]
    fn a_setting_of_zero_answers_at_once() {
        run(late(Duration::ZERO), |world| async move {
            let mut client = world.connect();
            client.start(&[]).await;
            refused(&mut client, 1, 5 * EARLY_RETRIES).await;
            assert_eq!(count(&world), 0);
        });
    }

    #[test]
    fn late_refusals_are_bounded_and_answered_when_the_node_stops() {
        run(late(WINDOW), |world| async move {
            let mut client = world.connect();
            client.start(&[]).await;
            refused(&mut client, 1, EARLY_RETRIES).await;
            let (sent, read) = (3 * PER_CONNECTION as i16, Rc::new(Cell::new(0)));
            let (mut there, mut here) = tokio::io::split(client.stream);
            let counted = read.clone();
            let reader = rt::task::spawn(async move {
                let mut header = [0; 9];
                while tokio::io::AsyncReadExt::read_exact(&mut there, &mut header).await.is_ok() {
                    assert_eq!(header[4], Opcode::Error as u8);
                    let mut body = vec![0; u32::from_be_bytes(header[5..].try_into().expect("four")) as usize];
                    tokio::io::AsyncReadExt::read_exact(&mut there, &mut body).await.expect("whole");
                    counted.set(counted.get() + 1);
                }
            });
            for stream in 0..sent {
                tokio::io::AsyncWriteExt::write_all(&mut here, &query(stream, "limited 1")).await.expect("sent");
                let connections = world.server.transport.connections();
                assert!(connections[0].late_refusals.get() <= PER_CONNECTION);
            }
            while world.fake.texts.borrow().len() < EARLY_RETRIES as usize + sent as usize {
                rt::task::yield_now().await;
            }
            world.server.stop().await;
            reader.await.expect("it has read to the end");
            assert_eq!(read.get(), i32::from(sent), "each has its answer");
            assert!(world.server.transport.late_refusals.queue.borrow().is_empty());
        });
    }

    #[test]
    fn late_refusals_take_a_part_of_the_memory_for_answers_and_count_as_expected() {
        let mut limits = late(WINDOW);
        limits.late_refusals.at_once = 0;
        limits.shard_unread = 256 << 10;
        run(limits, |world| async move {
            let mut client = world.connect();
            client.start(&[]).await;
            let transport = &world.server.transport;
            let sent = 300;
            for stream in 0..sent {
                client.send(&query(stream, &format!("limited {stream}"))).await;
                client.send(&query(1_000, "rows 5")).await;
                while client.receive().await.stream != 1_000 {}
                let held = transport.late_refusals.bytes.get();
                assert!(held <= (256 << 10) / MEMORY_PART, "{held}");
                assert!(transport.late_refusals.queue.borrow().len() < 60, "not all {sent}");
                assert!(transport.expected.get() >= held, "{held}");
            }
            assert!(count(&world) > 10, "some are late");
            while !transport.late_refusals.is_empty() {
                rt::time::sleep(Duration::from_millis(20)).await;
            }
            assert_eq!((transport.late_refusals.bytes.get(), transport.expected.get()), (0, 0));
        });
    }

    #[test]
    fn late_refusals_of_a_disconnected_client_are_dropped() {
        run(late(WINDOW), |world| async move {
            let mut client = world.connect();
            client.start(&[]).await;
            while count(&world) == 0 {
                for stream in 0..EARLY_RETRIES as i16 {
                    client.send(&query(stream, "limited 1")).await;
                    rt::task::yield_now().await;
                }
            }
            drop(client);
            while !world.server.transport.late_refusals.queue.borrow().is_empty() {
                rt::time::sleep(Duration::from_millis(20)).await;
            }
            assert_eq!(world.server.transport.unread(), 0);
        });
    }
}
