//! The settings of a shard's engine, and the limits of its queues and loops.

use crate::commitlog::CommitlogConfig;
use model::{HostId, TableSchema};
use rt::ShardId;
use rt::time::Duration;
use std::fmt;
use std::path::PathBuf;
use std::rc::Rc;

/// The part of the memory for reads of large rows and their results: an eighth.
const LARGE_READS_SHARE: usize = 8;
/// The part of the memory for flushes and compactions of large rows: an eighth.
const LARGE_JOBS_SHARE: usize = 8;
/// The part of the memory for requests, which the server counts: a tenth.
const REQUESTS_SHARE: usize = 10;
/// Flushing begins when memtables fill this part of their budget (`unspooled_dirty_soft_limit` of
/// ScyllaDB).
pub(crate) const FLUSH_FROM: f64 = 0.6;
/// Writes are slowed down from this part of the memtables' budget on.
pub(crate) const SLOW_FROM: f64 = 0.8;
/// The longest delay of a write while the budget has room. Without room, writes wait.
pub(crate) const LONGEST_DELAY: Duration = Duration::from_millis(25);
/// How long a write waits for room in the memtables before it is refused.
pub(crate) const WAIT_FOR_ROOM: Duration = Duration::from_secs(30);
/// How long to wait before a failed flush, compaction or load is retried.
pub(crate) const RETRY_AFTER: Duration = Duration::from_secs(2);
/// How many compactions one shard runs at a time.
pub(crate) const COMPACTIONS_AT_ONCE: usize = 2;
/// The part of a shard's memory that one compaction may hold in read-ahead windows: a 64th.
const COMPACTION_WINDOWS_SHARE: usize = 64;
/// How many bytes of fragments a reader yields at a time, about.
pub(crate) const FILL_BYTES: usize = 32 << 10;

/// The part of the process's file descriptors for the sstables of all shards: a half. The rest is
/// for connections, logs and files that are being written.
const OPEN_FILES_SHARE: u64 = 2;
/// A shard does not use more open files.
const MOST_OPEN_FILES: u64 = 1 << 16;

/// Makes the `schema.cql` of a table's snapshot.
#[derive(Clone)]
pub struct DescribeSchema(pub Rc<dyn Fn(&TableSchema) -> String>);

impl fmt::Debug for DescribeSchema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DescribeSchema").finish_non_exhaustive()
    }
}

/// The settings of one shard's engine.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// The node's data directory. `datadir` writes its stamp.
    pub data_dir: PathBuf,
    /// This shard.
    pub shard: ShardId,
    /// The node, for the log intervals in sstables.
    pub host_id: HostId,
    /// This shard's memory budget, in bytes.
    pub memory: usize,
    /// The part of `memory` that memtables may fill; flushing begins well before.
    pub memtable_fraction: f64,
    /// The part of `memory` that the cache of sstable pages may fill.
    pub cache_fraction: f64,
    /// The most sstable files that this shard keeps open; 0 for its share of the process's limit.
    /// They are opened when they are read, two for each sstable.
    pub open_files: usize,
    /// Disk space in bytes that the node reserves for starts and metadata changes on a full disk;
    /// 0 for none.
    pub disk_reserve: u64,
    /// How the log behaves: sync mode, period, sizes.
    pub log: CommitlogConfig,
    /// Whether TRUNCATE and DROP take a snapshot first.
    pub auto_snapshot: bool,
    /// `accept_loss`: the node starts without sstables of which all files are missing.
    pub accept_loss: bool,
    /// `commitlog_ignore_corruption`, for logs that are read before they are replayed.
    pub ignore_log_corruption: bool,
    /// The CQL text that makes a table, for snapshots.
    pub describe: Option<DescribeSchema>,
    /// Whether compaction runs by itself.
    pub auto_compaction: bool,
    /// Compaction's limit on written bytes per second, for this shard; 0 for none.
    pub compaction_throughput: u64,
}

/// The default number of sstable files that all shards keep open, if the process may have `limit`
/// files open.
pub fn open_files_of_process(limit: u64) -> u64 {
    limit / OPEN_FILES_SHARE
}

impl EngineConfig {
    /// The defaults for a shard with this budget.
    pub fn new(data_dir: PathBuf, shard: ShardId, host_id: HostId, memory: usize) -> Self {
        let mut log = CommitlogConfig::new(data_dir.join("commitlog").join(shard.to_string()), shard);
        log.host = Some(host_id);
        EngineConfig {
            data_dir,
            shard,
            host_id,
            memory,
            memtable_fraction: 0.5,
            cache_fraction: 0.35,
            open_files: 0,
            disk_reserve: 0,
            log,
            auto_snapshot: true,
            accept_loss: false,
            ignore_log_corruption: false,
            describe: None,
            auto_compaction: true,
            compaction_throughput: 0,
        }
    }

    /// The most files of sstables that may be open.
    pub(crate) fn open_files(&self) -> usize {
        if self.open_files > 0 {
            return self.open_files;
        }
        let shards = rt::shard::count() as u64;
        (open_files_of_process(rt::host::open_files().unwrap_or(1024)) / shards).min(MOST_OPEN_FILES) as usize
    }

    /// How many bytes a compaction reads at once of each of its `inputs`. Two such windows are
    /// held for each.
    pub(crate) fn compaction_window(&self, inputs: usize) -> u32 {
        let window = self.memory / COMPACTION_WINDOWS_SHARE / (2 * inputs.max(1));
        u32::try_from(window).map_or(sstable::LARGEST_WINDOW, |window| window.min(sstable::LARGEST_WINDOW))
    }

    /// The most bytes that memtables may hold.
    pub(crate) fn memtable_budget(&self) -> usize {
        (self.memory as f64 * self.memtable_fraction) as usize
    }

    /// The memory budget in bytes of reads of large rows and their results. One read alone may
    /// exceed it.
    pub(crate) fn large_reads_budget(&self) -> usize {
        self.memory / LARGE_READS_SHARE
    }

    /// The memory budget in bytes of large rows in flushes and compactions. One of these jobs alone
    /// may exceed it.
    pub(crate) fn large_jobs_budget(&self) -> usize {
        self.memory / LARGE_JOBS_SHARE
    }

    /// The memory for memtables and all large data: the rest after caches and requests.
    pub(crate) fn memory_for_memtables_and_large(&self) -> usize {
        self.memory.saturating_sub(self.cache_budget() + self.memory / REQUESTS_SHARE)
    }

    /// The most bytes that cached sstable pages may hold.
    pub(crate) fn cache_budget(&self) -> usize {
        (self.memory as f64 * self.cache_fraction) as usize
    }
}
