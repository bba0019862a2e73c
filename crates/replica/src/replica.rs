//! The replica of a shard: its parts, its configuration, its counters and its fence.

use crate::counter::CounterClock;
use crate::error::ReplicaError;
use crate::hot::{HotPartitions, ProtectionMetrics};
use crate::large_data::LargeDataThresholds;
use crate::limiter;
use crate::lock::PartitionLocks;
use crate::permit::{PermitLimits, PermitUsage, Permits};
use crate::querier::cache::CacheCounters;
use crate::querier::keep::Queriers;
use crate::rate_limiter::{RateLimitMetrics, RateLimiter};
use crate::request::{Class, Context, ReplicaRequest};
use engine::Engine;
use model::CounterId;
use rt::time::Duration;
use std::cell::Cell;
use std::rc::Rc;

/// The limits of a shard's replica.
#[derive(Clone, Debug)]
pub struct ReplicaConfig {
    /// The shard's memory in bytes.
    pub memory: usize,
    /// The most concurrent reads of class `User` (`reader_concurrency_semaphore_count_limit`;
    /// ScyllaDB has 100).
    pub user_reads: usize,
    /// The most concurrent reads of class `System`.
    pub system_reads: usize,
    /// The most concurrent reads of class `Maintenance`
    /// (`maintenance_reader_concurrency_semaphore_count_limit`).
    pub maintenance_reads: usize,
    /// The share of the memory that the reads of one class may hold, 0 to 1.
    pub reads_memory_fraction: f64,
    /// The tombstones in a page from which a warning is logged.
    pub tombstone_warn_threshold: u64,
    /// Whether readers are kept for the next page.
    pub querier_cache: bool,
    /// How long a reader waits for its next page.
    pub querier_cache_ttl: Duration,
    /// The share of the memory that kept readers may hold, 0 to 1.
    pub querier_cache_memory_fraction: f64,
    /// Bytes of the rate limiter's counts.
    pub rate_limiter_bytes: usize,
}

impl ReplicaConfig {
    /// ScyllaDB's defaults for a shard with this much memory.
    pub fn with_memory(memory: usize) -> Self {
        ReplicaConfig {
            memory,
            user_reads: 100,
            system_reads: 10,
            maintenance_reads: 10,
            reads_memory_fraction: 0.02,
            tombstone_warn_threshold: 1000,
            querier_cache: true,
            querier_cache_ttl: Duration::from_secs(10),
            querier_cache_memory_fraction: 0.04,
            rate_limiter_bytes: limiter::DEFAULT_BYTES,
        }
    }
}

/// Counters of a replica.
#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) reads: Cell<u64>,
    pub(crate) writes: Cell<u64>,
    pub(crate) short_reads: Cell<u64>,
    pub(crate) tombstones: Cell<u64>,
    pub(crate) last_tombstone_warning: Cell<Option<rt::time::Instant>>,
}

/// Counters of a shard's replica.
#[derive(Clone, Debug, Default)]
pub struct ReplicaMetrics {
    /// Pages read.
    pub reads: u64,
    /// Mutations applied.
    pub writes: u64,
    /// Pages that ended on bytes or tombstones.
    pub short_reads: u64,
    /// Tombstones read.
    pub tombstones: u64,
    /// The usage of permits, by class.
    pub permits: [PermitUsage; 3],
    /// The counters of the querier cache.
    pub queriers: CacheCounters,
    /// The counters of the rate limiter.
    pub rate_limits: RateLimitMetrics,
    /// The counters of the hot partition protection.
    pub protection: ProtectionMetrics,
}

/// The replica of one shard.
pub struct Replica {
    pub(crate) engine: Rc<Engine>,
    pub(crate) permits: [Permits; 3],
    pub(crate) queriers: Rc<Queriers>,
    pub(crate) config: ReplicaConfig,
    pub(crate) metrics: Counters,
    pub(crate) locks: PartitionLocks,
    pub(crate) counter_clock: CounterClock,
    pub(crate) counter_id: Cell<CounterId>,
    pub(crate) large_data: Cell<LargeDataThresholds>,
    /// Requests that were routed by metadata with lower numbers are refused.
    fence: Cell<u64>,
    pub(crate) rate_limiter: RateLimiter,
    pub(crate) hot: HotPartitions,
}

/// The bytes of the reads' memory for each read that may wait, as ScyllaDB counts them.
const QUEUE_BYTES_PER_READ: usize = 1000;

impl Replica {
    /// The replica of the shard whose data this engine holds.
    pub fn new(engine: Rc<Engine>, config: ReplicaConfig) -> Rc<Self> {
        let memory = (config.memory as f64 * config.reads_memory_fraction) as usize;
        let permits = Class::ALL.map(|class| {
            let user = class == Class::User;
            let count = match class {
                Class::User => config.user_reads,
                Class::System => config.system_reads,
                Class::Maintenance => config.maintenance_reads,
            };
            Permits::new(
                class,
                PermitLimits {
                    // Without a permit, nothing could be read.
                    count: count.max(1),
                    memory,
                    queue: if user { memory / QUEUE_BYTES_PER_READ } else { usize::MAX },
                },
            )
        });
        let queriers = Queriers::new(&config);
        let rate_limiter = RateLimiter::new(config.rate_limiter_bytes);
        let tables = engine.clone();
        let hot = HotPartitions::new(move |table| tables.schema(table));
        Rc::new(Replica {
            engine,
            permits,
            queriers,
            config,
            metrics: Counters::default(),
            locks: PartitionLocks::default(),
            counter_clock: CounterClock::default(),
            counter_id: Cell::new(CounterId(rt::random::uuid_v4())),
            large_data: Cell::default(),
            fence: Cell::new(0),
            rate_limiter,
            hot,
        })
    }

    /// From now on, requests that were routed by metadata below `number` are refused. The barrier
    /// has waited for such requests; a late one must not take effect.
    pub fn set_fence(&self, number: u64) {
        self.fence.set(self.fence.get().max(number));
    }

    /// Refuses a request that was routed by metadata below the fence, or before the last truncation
    /// of one of its tables.
    #[inline]
    pub(crate) fn check_fence(&self, request: &ReplicaRequest, context: &Context) -> Result<(), ReplicaError> {
        let number = context.metadata_number;
        match number < self.fence.get() || number < self.engine.newest_epoch() {
            true => self.check_closely(request, number),
            false => Ok(()),
        }
    }

    #[cold]
    fn check_closely(&self, request: &ReplicaRequest, number: u64) -> Result<(), ReplicaError> {
        let epochs = request.tables().map(|table| self.engine.epoch(table));
        let fence = epochs.fold(self.fence.get(), u64::max);
        if number < fence { Err(ReplicaError::stale(number, fence)) } else { Ok(()) }
    }

    /// Whether requests wait for this shard for longer than `hot_partition_wait_threshold_in_ms`,
    /// on average.
    pub fn is_overloaded(&self) -> bool {
        self.hot.is_overloaded()
    }

    /// The engine below.
    pub fn engine(&self) -> &Rc<Engine> {
        &self.engine
    }

    /// The bytes of the longest mutation that can be written.
    pub fn longest_mutation(&self) -> usize {
        self.engine.longest_mutation()
    }

    /// Whether readers are kept for the next page.
    pub fn keeps_readers(&self) -> bool {
        self.config.querier_cache
    }

    /// The counters so far.
    pub fn metrics(&self) -> ReplicaMetrics {
        ReplicaMetrics {
            reads: self.metrics.reads.get(),
            writes: self.metrics.writes.get(),
            short_reads: self.metrics.short_reads.get(),
            tombstones: self.metrics.tombstones.get(),
            permits: [self.permits[0].usage(), self.permits[1].usage(), self.permits[2].usage()],
            queriers: self.queriers.counters(),
            rate_limits: self.rate_limiter.metrics(),
            protection: self.hot.metrics(),
        }
    }
}
