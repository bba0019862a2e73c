//! The counters of the store. The server exports them as metrics with ScyllaDB's names.

use crate::table::RowCacheStats;
use std::cell::Cell;
use std::ops::Deref;
use std::rc::Rc;

/// The live counters of a shard's store, shared with its readers.
#[derive(Clone, Default)]
pub(crate) struct Counters(Rc<Counts>);

#[derive(Default)]
pub(crate) struct Counts {
    pub writes: Cell<u64>,
    pub reads: Cell<u64>,
    pub bloom_rejects: Cell<u64>,
    pub flushes: Cell<u64>,
    pub flush_failures: Cell<u64>,
    pub flushed_bytes: Cell<u64>,
    pub flushes_running: Cell<u64>,
    pub relogged: Cell<u64>,
    pub flushed_for_memory: Cell<u64>,
    pub compactions: Cell<u64>,
    pub moves: Cell<u64>,
    pub compaction_failures: Cell<u64>,
    pub compactions_running: Cell<u64>,
    pub streams_running: Cell<u64>,
    pub compacted_bytes_in: Cell<u64>,
    pub compacted_bytes_out: Cell<u64>,
    pub replayed: Cell<u64>,
    pub replay_skipped: Cell<u64>,
    pub writers: Cell<u64>,
    pub writers_begun: Cell<u64>,
    pub sstables_deleted: Cell<u64>,
    pub tablets_taken_over: Cell<u64>,
}

impl Deref for Counters {
    type Target = Counts;

    fn deref(&self) -> &Counts {
        &self.0
    }
}

/// Adds to a counter.
pub(crate) fn add(counter: &Cell<u64>, n: u64) {
    counter.set(counter.get().wrapping_add(n));
}

/// Counts a running operation until it is dropped.
pub(crate) struct Running<'a>(&'a Cell<u64>);

impl<'a> Running<'a> {
    pub fn new(counter: &'a Cell<u64>) -> Self {
        add(counter, 1);
        Running(counter)
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// Counts an sstable that is being written until it is dropped.
pub(crate) struct Writing(Counters);

impl Writing {
    pub fn new(counters: &Counters) -> Self {
        add(&counters.writers, 1);
        add(&counters.writers_begun, 1);
        Writing(counters.clone())
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        self.0.writers.set(self.0.writers.get() - 1);
    }
}

/// The statistics of a shard's store.
#[derive(Clone, Debug, Default)]
pub struct EngineMetrics {
    /// Bytes of memory that memtables hold (`scylla_memtables_...`, `scylla_memory_dirty_bytes`).
    pub memtable_bytes: u64,
    /// The limit of memtable memory, in bytes.
    pub memtable_limit_bytes: u64,
    /// Writes that wait for memtable memory now.
    pub writes_waiting_for_memory: u64,
    /// Writes ever held up by back-pressure.
    pub writes_delayed: u64,
    /// Mutations applied.
    pub writes: u64,
    /// Readers opened.
    pub reads: u64,
    /// Sstables that point reads did not open thanks to their bloom filter.
    pub bloom_filter_rejects: u64,
    /// Memtables flushed.
    pub flushes: u64,
    /// Flushes that failed.
    pub flush_failures: u64,
    /// Flushes that run now (`scylla_memtables_pending_flushes`).
    pub flushes_running: u64,
    /// Memtables that were relogged instead of being flushed, because they were small and many.
    pub relogged: u64,
    /// Memtables flushed because much memory of the process was resident.
    pub flushed_for_memory: u64,
    /// Bytes written by flushes.
    pub flushed_bytes: u64,
    /// Compactions done (`scylla_compaction_manager_completed_compactions`).
    pub compactions: u64,
    /// Sstables that went to another level as they were.
    pub moves: u64,
    /// Compactions that failed (`scylla_compaction_manager_failed_compactions`).
    pub compaction_failures: u64,
    /// Compactions that run now (`scylla_compaction_manager_compactions`).
    pub compactions_running: u64,
    /// Compactions that wait (`scylla_compaction_manager_pending_compactions`).
    pub compactions_pending: u64,
    /// Bytes that compaction has still to write, about (`scylla_compaction_manager_backlog`).
    pub compaction_backlog: u64,
    /// The part of the shard's time that background work gets while requests wait, in 1/1000; 0
    /// until there was any.
    pub background_share: u64,
    /// Bytes read by compactions.
    pub compacted_bytes_in: u64,
    /// Bytes written by compactions.
    pub compacted_bytes_out: u64,
    /// Sstables attached.
    pub sstables: u64,
    /// Sstables that could not be opened or were found corrupt.
    pub sstables_unreadable: u64,
    /// Bytes that the sstables take on disk.
    pub disk_bytes: u64,
    /// Records of old logs that were applied.
    pub replayed: u64,
    /// Records of old logs that were in sstables, truncated or dropped.
    pub replay_skipped: u64,
    /// Sstables being written by flushes and compactions
    /// (`scylla_sstables_currently_open_for_writing`).
    pub sstables_writing: u64,
    /// Sstables ever begun by them.
    pub sstables_begun: u64,
    /// Sstables removed from the disk.
    pub sstables_deleted: u64,
    /// Tablets that other shards of the node handed over to this one.
    pub tablets_taken_over: u64,
    /// Partitions beyond their threshold in the sstables that were written.
    pub large_partitions: u64,
    /// Rows beyond their threshold.
    pub large_rows: u64,
    /// Cells beyond their threshold.
    pub large_cells: u64,
    /// Collections of more elements than their threshold.
    pub large_collections: u64,
    /// The most bytes that the caches may hold.
    pub cache_limit_bytes: u64,
    /// The cache of sstable pages.
    pub cache: sstable::CacheStats,
    /// The open files of sstables.
    pub open_files: sstable::OpenFilesStats,
    /// The cache of rows.
    pub rows: RowCacheStats,
    /// The log.
    pub log: crate::commitlog::Metrics,
}

impl EngineMetrics {
    /// Bytes in the row cache and the page cache, which share one budget.
    pub fn cache_bytes(&self) -> u64 {
        self.rows.bytes + self.cache.bytes as u64
    }
}

/// One table on this shard in numbers.
#[derive(Clone, Debug, Default)]
pub struct TableStats {
    /// Bytes that its sstables take on disk.
    pub disk_bytes: u64,
    /// Partitions, estimated: the sum over its sstables and memtables, without regard to overlap.
    pub partitions: u64,
    /// Mean size of a partition in bytes, estimated.
    pub mean_partition_bytes: u64,
    /// Sstables attached.
    pub sstables: u64,
    /// Bytes of memory that its memtables hold.
    pub memtable_bytes: u64,
    /// Sstables that could not be opened or were found corrupt.
    pub unreadable: u64,
}
