//! The limiter of a shard: counts by the shard's clock.

use crate::limiter::{LimitKey, LimitKind, Limiter, LimiterCounters};
use model::id::TableId;
use model::token::Token;
use rt::time::{Duration, Instant};
use std::cell::{Cell, RefCell};

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
    pub refused: [Cell<u64>; 2],
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

    /// Counts an operation of a partition, and returns the partition's count.
    pub fn add(&self, token: Token, table: TableId, kind: LimitKind) -> u64 {
        let key = LimitKey { token: token.0, table: table.0.as_u128(), kind };
        let make = || {
            let mut salt = [[0; 8]; 4];
            salt.iter_mut().for_each(|part| rt::random::secret(part));
            Limiter::new(self.bytes, salt.map(u64::from_le_bytes))
        };
        self.limiter.borrow_mut().get_or_insert_with(make).add(key, 1, self.window())
    }

    pub fn metrics(&self) -> RateLimitMetrics {
        let limiter = self.limiter.borrow();
        RateLimitMetrics {
            slots: limiter.as_ref().map(Limiter::counters).unwrap_or_default(),
            load_factor: limiter.as_ref().map_or(0.0, Limiter::load_factor),
            refused_reads: self.refused[LimitKind::Read as usize].get(),
            refused_writes: self.refused[LimitKind::Write as usize].get(),
        }
    }
}
