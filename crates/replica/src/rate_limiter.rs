//! The limiter of a shard: counts by the shard's clock.

use crate::limited_partitions::LimitedPartitions;
use crate::limiter::{LimitKey, LimitKind, Limiter, LimiterCounters, debt};
use model::id::TableId;
use model::token::Token;
use rt::time::{Duration, Instant};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// The length of a window.
const WINDOW: Duration = Duration::from_secs(1);

/// The limiter of a shard, with its clock.
pub(crate) struct RateLimiter {
    /// Made when it is first needed: most nodes have no table with limits.
    limiter: RefCell<Option<Limiter>>,
    bytes: usize,
    /// The start of window 0: a full second of the wall clock, so that the windows of all nodes
    /// begin at about the same time.
    began: Instant,
    /// The current window and its end, so that most operations need no division.
    window: Cell<(u64, Instant)>,
    /// Reads and writes that this shard refused as a replica.
    pub refused: [Cell<u64>; 2],
    /// Reads and writes that would have been refused, of tables in mode `observe`.
    pub observed: [Cell<u64>; 2],
    /// The partitions that exceed a limit, for log lines.
    pub partitions: Rc<LimitedPartitions>,
}

/// Counters of a shard's rate limiter.
#[derive(Clone, Copy, Debug, Default)]
pub struct RateLimitMetrics {
    /// The counters of the slots.
    pub slots: LimiterCounters,
    /// The share of the slots that are taken, at most.
    pub load_factor: f64,
    /// Reads that this shard refused as a replica.
    pub refused_reads: u64,
    /// Writes that this shard refused as a replica.
    pub refused_writes: u64,
    /// Reads that this shard would have refused, of tables in mode `observe`.
    pub observed_reads: u64,
    /// Writes that this shard would have refused, of tables in mode `observe`.
    pub observed_writes: u64,
    /// Bytes of the slots. 0 until a table has a limit.
    pub bytes: u64,
}

impl RateLimiter {
    pub fn new(bytes: usize) -> RateLimiter {
        let into_second = Duration::from_nanos(rt::time::wall_nanos().rem_euclid(1_000_000_000) as u64);
        let now = rt::time::coarse_now();
        let began = now.checked_sub(into_second).unwrap_or(now);
        RateLimiter {
            limiter: RefCell::new(None),
            bytes,
            began,
            window: Cell::new((0, began + WINDOW)),
            refused: Default::default(),
            observed: Default::default(),
            partitions: Rc::default(),
        }
    }

    /// The number of the current window.
    fn window(&self) -> u64 {
        let now = rt::time::coarse_now();
        let (window, ends) = self.window.get();
        if now < ends && now + WINDOW >= ends {
            return window;
        }
        let window = now.saturating_duration_since(self.began).as_secs();
        self.window.set((window, self.began + WINDOW * (window + 1) as u32));
        window
    }

    /// The time since the current window began, in ms.
    pub fn window_elapsed_ms(&self) -> u64 {
        let began = self.window.get().1.checked_sub(WINDOW).unwrap_or(self.began);
        rt::time::coarse_now().saturating_duration_since(began).as_millis() as u64
    }

    fn with<T>(&self, then: impl FnOnce(&mut Limiter, u64) -> T) -> T {
        let make = || {
            let mut salt = [[0; 8]; 4];
            salt.iter_mut().for_each(|part| rt::random::secret(part));
            Limiter::new(self.bytes, salt.map(u64::from_le_bytes))
        };
        then(self.limiter.borrow_mut().get_or_insert_with(make), self.window())
    }

    /// Counts an operation of a partition, and returns the partition's count.
    pub fn add(&self, token: Token, table: TableId, kind: LimitKind) -> u64 {
        self.with(|limiter, window| limiter.add(key(token, table, kind), 1, window))
    }

    /// Charges bytes to a partition with a limit in KiB per second.
    pub fn charge(&self, token: Token, table: TableId, kind: LimitKind, bytes: u64, limit: u32) {
        self.with(|limiter, window| limiter.charge(key(token, table, kind), bytes, debt::budget(limit), window));
    }

    /// The debt of a partition with a limit in KiB per second, in units.
    pub fn debt(&self, token: Token, table: TableId, kind: LimitKind, limit: u32) -> u64 {
        self.with(|limiter, window| limiter.debt(key(token, table, kind), debt::budget(limit), window))
    }

    pub fn metrics(&self) -> RateLimitMetrics {
        let limiter = self.limiter.borrow();
        RateLimitMetrics {
            slots: limiter.as_ref().map(Limiter::counters).unwrap_or_default(),
            load_factor: limiter.as_ref().map_or(0.0, Limiter::load_factor),
            refused_reads: self.refused[LimitKind::Read as usize].get(),
            refused_writes: self.refused[LimitKind::Write as usize].get(),
            observed_reads: self.observed[LimitKind::Read as usize].get(),
            observed_writes: self.observed[LimitKind::Write as usize].get(),
            bytes: limiter.as_ref().map_or(0, Limiter::bytes) as u64,
        }
    }
}

fn key(token: Token, table: TableId, kind: LimitKind) -> LimitKey {
    LimitKey { token: token.0, table: table.0.as_u128(), kind }
}
