//! How a log is tuned.

use crate::files::DiskReserve;
use model::HostId;
use rt::ShardId;
use std::path::PathBuf;
use std::time::Duration;

/// So many segments of a log that is full are kept for records that let older segments go ([`super::Commitlog::append_relogged`]).
const SEGMENTS_FOR_RELOGGING: usize = 1;

/// Segments that writes may fill, however small the limit is.
const LEAST_SEGMENTS_FOR_WRITES: usize = 4;

/// When a record is acknowledged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SyncMode {
    /// Once the kernel has it; the device has it within the period.
    Periodic {
        /// Time between two fsyncs.
        period: Duration,
    },
    /// Once the device has it.
    Batch,
    /// Once the device has it, after gathering records for a while.
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
    /// The node, by which its files are told from those of other nodes; `None` if that is not
    /// needed.
    pub host: Option<HostId>,
    /// When records are acknowledged.
    pub mode: SyncMode,
    /// Bytes per segment (`commitlog_segment_size_in_mb`). The longest record is half of it.
    pub segment_size: u32,
    /// Bytes on disk that the log may take (`commitlog_total_space_in_mb` per shard). From three quarters of it on the log
    /// asks for flushes ([`super::Commitlog::pressure`]); one segment below the limit appends wait.
    pub total_size_limit: u64,
    /// Bytes that may wait in memory to be written before appends wait.
    pub buffer_limit: usize,
    /// Segments without live records that are kept to be used again instead of being removed.
    pub spare_segments: usize,
    /// Disk space of which no segment is made.
    pub reserve: Option<DiskReserve>,
}

impl CommitlogConfig {
    /// The defaults for a shard's log in `dir`: periodic with 10 s, segments of 32 MiB, 1 GiB in all.
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
    pub(super) fn max_body(&self) -> usize {
        self.segment_size as usize / 2
    }

    /// The number of segments that writes may fill. Two are always in use (the one written to and the next), and a third must be
    /// possible for the first to be flushed.
    pub(super) fn segments_for_writes(&self) -> usize {
        let segments = (self.total_size_limit / u64::from(self.segment_size)) as usize;
        segments.saturating_sub(SEGMENTS_FOR_RELOGGING).max(LEAST_SEGMENTS_FOR_WRITES)
    }

    /// The number of segments that may exist.
    pub(super) fn max_segments(&self) -> usize {
        self.segments_for_writes() + SEGMENTS_FOR_RELOGGING
    }
}
