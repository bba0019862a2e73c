//! The read path of a replica: a permit, the engine's merged fragments, a page.

use crate::error::ReplicaError;
use crate::page::{Flow, Page, PageBuilder};
use crate::permit::{PermitLimits, PermitUsage, Permits};
use crate::request::{Class, Context, ReadCommand};
use engine::{Engine, ReadOptions};
use model::fragment::Fragment;
use std::cell::Cell;
use std::collections::VecDeque;
use std::rc::Rc;

/// How a shard's replica is bounded.
#[derive(Clone, Debug)]
pub struct ReplicaConfig {
    /// The shard's memory in bytes.
    pub memory: usize,
    /// User reads at once (`reader_concurrency_semaphore` count of ScyllaDB: 100).
    pub user_reads: usize,
    /// System and maintenance reads at once.
    pub other_reads: usize,
    /// Share of the memory that the reads of one class may hold.
    pub reads_memory_fraction: f64,
    /// A warning is logged for a page that meets this many tombstones.
    pub tombstone_warn_threshold: u64,
}

impl ReplicaConfig {
    /// ScyllaDB's defaults for a shard with this much memory.
    pub fn with_memory(memory: usize) -> Self {
        ReplicaConfig {
            memory,
            user_reads: 100,
            other_reads: 10,
            reads_memory_fraction: 0.02,
            tombstone_warn_threshold: 1000,
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

/// What a replica has done.
#[derive(Clone, Debug, Default)]
pub struct ReplicaMetrics {
    /// Pages read.
    pub reads: u64,
    /// Mutations applied.
    pub writes: u64,
    /// Pages cut by bytes or tombstones.
    pub short_reads: u64,
    /// Tombstones met.
    pub tombstones: u64,
    /// The permits, by class.
    pub permits: [PermitUsage; 3],
}

/// One shard's replica.
pub struct Replica {
    pub(crate) engine: Rc<Engine>,
    permits: [Permits; 3],
    config: ReplicaConfig,
    pub(crate) metrics: Counters,
}

/// A warning about tombstones at most this often.
const TOMBSTONE_WARNING_INTERVAL: rt::time::Duration = rt::time::Duration::from_secs(10);

/// Bytes of queue for each read that may wait, as ScyllaDB counts them.
const QUEUE_BYTES_PER_READ: usize = 1000;

impl Replica {
    /// The replica of the shard whose data this engine holds.
    pub fn new(engine: Rc<Engine>, config: ReplicaConfig) -> Rc<Self> {
        let memory = (config.memory as f64 * config.reads_memory_fraction) as usize;
        let permits = Class::ALL.map(|class| {
            let user = class == Class::User;
            Permits::new(
                class,
                PermitLimits {
                    count: if user { config.user_reads } else { config.other_reads },
                    memory,
                    queue: if user { memory / QUEUE_BYTES_PER_READ } else { usize::MAX },
                },
            )
        });
        Rc::new(Replica { engine, permits, config, metrics: Counters::default() })
    }

    /// The engine below.
    pub fn engine(&self) -> &Rc<Engine> {
        &self.engine
    }

    /// What it has done so far.
    pub fn metrics(&self) -> ReplicaMetrics {
        ReplicaMetrics {
            reads: self.metrics.reads.get(),
            writes: self.metrics.writes.get(),
            short_reads: self.metrics.short_reads.get(),
            tombstones: self.metrics.tombstones.get(),
            permits: [self.permits[0].usage(), self.permits[1].usage(), self.permits[2].usage()],
        }
    }

    /// Reads one page.
    pub async fn read(&self, command: &ReadCommand, context: &Context) -> Result<Page, ReplicaError> {
        if context.deadline.is_past() {
            return Err(ReplicaError::Timeout);
        }
        let permits = &self.permits[context.class as usize];
        let mut permit = match permits.try_acquire() {
            Some(permit) => permit,
            None => {
                if let Some(trace) = &context.trace {
                    trace.event("Waiting for a read permit");
                }
                permits.acquire().await?
            }
        };
        let schema = self.engine.schema(command.table).ok_or(ReplicaError::NoSuchTable)?;
        let resumed = command.slice.resume.as_ref().map(|resume| (resume.key.key.clone(), command.resumed_rows));
        let mut builder = PageBuilder::new(&schema, &command.output, command.limits, command.now, resumed);
        let mut buffer: VecDeque<Fragment> = VecDeque::new();
        'ranges: for range in &command.ranges {
            let singular = range.singular_key().is_some();
            let options = ReadOptions {
                class: if context.class == Class::Maintenance {
                    rt::fs::IoClass::Background
                } else {
                    rt::fs::IoClass::Foreground
                },
                fill_cache: singular && !command.bypass_cache,
                bypass: command.bypass_cache,
            };
            let mut reader = self
                .engine
                .reader(command.table, range.clone(), command.slice.clone(), options)
                .map_err(|_| ReplicaError::NoSuchTable)?;
            let mut more = true;
            while more {
                more = reader.fill(&mut buffer).await.map_err(|error| ReplicaError::Corrupt(error.to_string()))?;
                while let Some(fragment) = buffer.pop_front() {
                    match builder.push(fragment)? {
                        Flow::Continue => {}
                        Flow::Stop => break 'ranges,
                        Flow::SkipPartition => skip_partition(&mut buffer, &mut reader),
                    }
                }
                if more {
                    permit.set_memory(builder.bytes());
                    rt::task::maybe_yield().await;
                    if context.cancel.is_cancelled() {
                        return Err(ReplicaError::Cancelled);
                    }
                    if context.deadline.is_past() {
                        return Err(ReplicaError::Timeout);
                    }
                }
            }
        }
        let page = builder.finish();
        self.account(&page, command, context);
        Ok(page)
    }

    fn account(&self, page: &Page, command: &ReadCommand, context: &Context) {
        let counters = &self.metrics;
        counters.reads.set(counters.reads.get() + 1);
        if page.end == crate::page::PageEnd::Short {
            counters.short_reads.set(counters.short_reads.get() + 1);
        }
        if page.tombstones > 0 {
            counters.tombstones.set(counters.tombstones.get() + page.tombstones);
            if page.tombstones >= self.config.tombstone_warn_threshold {
                let due =
                    counters.last_tombstone_warning.get().is_none_or(|at| at.elapsed() >= TOMBSTONE_WARNING_INTERVAL);
                if due {
                    counters.last_tombstone_warning.set(Some(rt::time::now()));
                    tracing::warn!(table = %command.table, tombstones = page.tombstones, rows = page.rows,
                        "a page read many tombstones (see tombstone_warn_threshold)");
                }
            }
        }
        if let Some(trace) = &context.trace {
            trace.event(format!(
                "Page of {} rows, {} bytes, {} tombstones",
                page.rows,
                page.body.len(),
                page.tombstones
            ));
        }
    }
}

/// Drops what is buffered of the current partition; if its end is not there yet, the reader skips to the next.
fn skip_partition(buffer: &mut VecDeque<Fragment>, reader: &mut engine::Reader) {
    match buffer.iter().position(|fragment| matches!(fragment, Fragment::PartitionEnd)) {
        Some(end) => drop(buffer.drain(..=end)),
        None => {
            buffer.clear();
            reader.skip_partition();
        }
    }
}
