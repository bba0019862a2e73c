//! The memtables' memory budget: when to flush, and how writes are delayed when flushes are too
//! slow.
//!
//! The delay of a write grows with the square of the fill level between `SLOW_FROM` and full, so
//! that clients slow down gradually. Only at the limit do writes wait for room. Replay and
//! flushes never wait here.

use crate::commitlog::Position;
use crate::config::{FLUSH_FROM, LONGEST_DELAY, SLOW_FROM, WAIT_FOR_ROOM};
use rt::sync::Notify;
use rt::time::Duration;
use std::cell::Cell;
use std::rc::Rc;

/// Why a full pool refuses a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoRoom {
    /// Memtables stayed full for too long.
    Slow,
    /// Flushes fail for lack of disk space or descriptors: waiting would not help.
    FlushesBlocked,
}

/// The memory that the memtables of a shard hold, and their limit.
pub(crate) struct Pool {
    used: Cell<usize>,
    limit: usize,
    waiting: Cell<usize>,
    delayed: Cell<u64>,
    /// The last flush failed for lack of disk space or descriptors.
    flushes_blocked: Cell<bool>,
    /// Memtables that began before this position of the log are to be flushed, the oldest first.
    flush_before: Cell<Option<Position>>,
    /// Notified when a flush is needed.
    pub flush: Notify,
    room: Notify,
}

impl Pool {
    pub fn new(limit: usize) -> Rc<Self> {
        Rc::new(Pool {
            used: Cell::new(0),
            limit: limit.max(1),
            waiting: Cell::new(0),
            delayed: Cell::new(0),
            flushes_blocked: Cell::new(false),
            flush_before: Cell::new(None),
            flush: Notify::new(),
            room: Notify::new(),
        })
    }

    /// A memtable that held `before` bytes holds `now`.
    #[inline]
    pub fn change(&self, before: usize, now: usize) {
        debug_assert!(self.used.get() >= before, "the pool is charged for each memtable");
        let used = self.used.get() + now - before;
        self.used.set(used);
        if now > before {
            if used > self.flush_from() {
                self.flush.notify_one();
            }
        } else if now < before && self.waiting.get() > 0 && used < self.limit {
            self.room.notify_waiters();
        }
    }

    fn flush_from(&self) -> usize {
        (self.limit as f64 * FLUSH_FROM) as usize
    }

    /// Whether memtables should be flushed for their memory.
    pub fn wants_flush(&self) -> bool {
        self.used.get() > self.flush_from()
    }

    /// Requests a flush of the memtables that began before this position, or ends the request.
    pub fn request_flush(&self, before: Option<Position>) {
        self.flush_before.set(before);
        if before.is_some() {
            self.flush.notify_one();
        }
    }

    /// The position before which memtables are to be flushed.
    pub fn flush_before(&self) -> Option<Position> {
        self.flush_before.get()
    }

    /// Bytes held.
    pub fn used(&self) -> usize {
        self.used.get()
    }

    /// Writes that wait for room now.
    pub fn waiting(&self) -> usize {
        self.waiting.get()
    }

    /// Writes ever delayed.
    pub fn delayed(&self) -> u64 {
        self.delayed.get()
    }

    /// Records whether flushes fail for lack of disk space or descriptors. Writes that wait for
    /// room are refused then.
    pub fn set_flushes_blocked(&self, blocked: bool) {
        self.flushes_blocked.set(blocked);
        if blocked {
            self.room.notify_waiters();
        }
    }

    /// Whether flushes fail for lack of disk space or descriptors.
    pub fn flushes_blocked(&self) -> bool {
        self.flushes_blocked.get()
    }

    /// Whether a write may proceed at once.
    #[inline]
    pub fn is_free(&self) -> bool {
        (self.used.get() as f64) < self.limit as f64 * SLOW_FROM
    }

    /// Delays a write according to the fill level.
    pub async fn admit(&self) -> Result<(), NoRoom> {
        if self.is_free() {
            return Ok(());
        }
        self.delayed.set(self.delayed.get() + 1);
        let delay = delay_at(self.used.get() as f64 / self.limit as f64);
        // Timers tick in milliseconds: a shorter delay becomes a probability of one.
        let micros = delay.as_micros() as u64;
        let millis = micros / 1000 + u64::from(rt::random::below(1000) < micros % 1000);
        if millis > 0 {
            rt::time::sleep(Duration::from_millis(millis)).await;
        }
        if self.used.get() < self.limit {
            return Ok(());
        }
        let _waiting = Waiting::new(&self.waiting);
        let room = async {
            loop {
                let notified = self.room.notified();
                if self.used.get() < self.limit {
                    return Ok(());
                }
                if self.flushes_blocked.get() {
                    return Err(NoRoom::FlushesBlocked);
                }
                self.flush.notify_one();
                notified.await;
            }
        };
        rt::time::timeout(WAIT_FOR_ROOM, room).await.unwrap_or(Err(NoRoom::Slow))
    }
}

/// The delay of a write at a fill level (1 is full).
fn delay_at(level: f64) -> Duration {
    let height = ((level - SLOW_FROM) / (1.0 - SLOW_FROM)).clamp(0.0, 1.0);
    LONGEST_DELAY.mul_f64(height * height)
}

/// Counts one waiter for as long as it waits.
struct Waiting<'a>(&'a Cell<usize>);

impl<'a> Waiting<'a> {
    fn new(count: &'a Cell<usize>) -> Self {
        count.set(count.get() + 1);
        Waiting(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_delay_is_a_slope() {
        assert_eq!(delay_at(0.0), Duration::ZERO);
        assert_eq!(delay_at(SLOW_FROM), Duration::ZERO);
        assert!(delay_at(0.8) < delay_at(0.9) && delay_at(0.9) < delay_at(1.0));
        assert_eq!(delay_at(1.0), LONGEST_DELAY);
        assert_eq!(delay_at(3.0), LONGEST_DELAY);
    }

    #[test]
    fn a_full_pool_makes_writes_wait_until_there_is_room() {
        rt::block_on(async {
            let pool = Pool::new(1000);
            pool.change(0, 1000);
            assert!(pool.wants_flush() && !pool.is_free());
            let write = rt::task::spawn({
                let pool = pool.clone();
                async move { pool.admit().await }
            });
            while pool.waiting() == 0 {
                rt::time::sleep(Duration::from_millis(1)).await;
            }
            pool.change(1000, 100);
            assert_eq!(write.await, Ok(Ok(())));
            assert_eq!((pool.waiting(), pool.used(), pool.delayed()), (0, 100, 1));
            assert!(pool.is_free());
        });
    }

    #[test]
    fn a_full_pool_refuses_writes_at_once_while_flushes_are_blocked() {
        rt::block_on(async {
            let pool = Pool::new(1000);
            pool.change(0, 1000);
            let write = rt::task::spawn({
                let pool = pool.clone();
                async move { pool.admit().await }
            });
            while pool.waiting() == 0 {
                rt::time::sleep(Duration::from_millis(1)).await;
            }
            pool.set_flushes_blocked(true);
            assert_eq!(write.await, Ok(Err(NoRoom::FlushesBlocked)));
            assert_eq!(pool.admit().await, Err(NoRoom::FlushesBlocked));
            pool.change(1000, 900);
            assert_eq!(pool.admit().await, Ok(()), "a pool with room takes writes");
        });
    }
}
