//! Settings of a shard's log.

use crate::files::DiskReserve;
use model::HostId;
use rt::ShardId;
use std::path::PathBuf;
use std::time::Duration;

/// The number of segments of a full log that are reserved for relogging
/// ([`super::Commitlog::append_relogged`]), which frees older segments.
const SEGMENTS_FOR_RELOGGING: usize = 1;

/// Segments that writes may fill, however small the size limit is.
const LEAST_SEGMENTS_FOR_WRITES: usize = 4;

/// When a record is acknowledged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SyncMode {
    /// After the kernel has it. The device has it within the period.
    Periodic {
        /// Time between two fsyncs.
        period: Duration,
    },
    /// After the device has it.
    Batch,
    /// After the device has it. Records are gathered for a while before.
    Group {
        /// How long records are gathered.
        window: Duration,
    },
}

/// Settings of one shard's log.
#[derive(Clone, Debug)]
pub struct CommitlogConfig {
    /// The shard's directory, `commitlog/<shard>`.
    pub dir: PathBuf,
    /// The shard.
    pub shard: ShardId,
    /// The node. Files of other nodes are refused by it; `None` accepts all.
    pub host: Option<HostId>,
    /// When records are acknowledged.
    pub mode: SyncMode,
    /// Bytes per segment (`commitlog_segment_size_in_mb`). The longest record is half of it.
    pub segment_size: u32,
    /// The size limit of the log in bytes (`commitlog_total_space_in_mb` per shard). From three
    /// quarters of it on the log asks for flushes ([`super::Commitlog::pressure`]). Appends wait
    /// when one segment is left.
    pub total_size_limit: u64,
    /// Bytes that may wait in memory to be written before appends wait.
    pub buffer_limit: usize,
    /// Segments without live records that are kept for reuse instead of being removed.
    pub spare_segments: usize,
    /// Disk space that segments must leave free.
    pub reserve: Option<DiskReserve>,
}

impl CommitlogConfig {
    /// The defaults for a shard's log in `dir`: periodic with 10 s, segments of 32 MiB, 1 GiB in
    /// all.
    pub fn new(dir: PathBuf, shard: ShardId) -> Self {
        CommitlogConfig {
            dir,
            shard,
            host: None,
            mode: SyncMode::Periodic { period: Duration::from_secs(10) },
            segment_size: 32 << 20,
            total_size_limit: 1 << 30,
            buffer_limit: 16 << 20,
            spare_segments: 2,
            reserve: None,
        }
    }

    /// The least `total_size_limit` that has an effect with segments of this size, in bytes.
    pub fn least_total_size(segment_size: u64) -> u64 {
        (LEAST_SEGMENTS_FOR_WRITES + SEGMENTS_FOR_RELOGGING) as u64 * segment_size
    }

    /// The longest body of a record.
    pub(crate) fn max_body(&self) -> usize {
        self.segment_size as usize / 2
    }

    /// The number of segments that writes may fill. Two are always in use: the active one and the
    /// next. A third is needed before the first can be flushed.
    pub(super) fn segments_for_writes(&self) -> usize {
        let segments = (self.total_size_limit / u64::from(self.segment_size)) as usize;
        segments.saturating_sub(SEGMENTS_FOR_RELOGGING).max(LEAST_SEGMENTS_FOR_WRITES)
    }

    /// The number of segments that may exist.
    pub(super) fn max_segments(&self) -> usize {
        self.segments_for_writes() + SEGMENTS_FOR_RELOGGING
    }
}
