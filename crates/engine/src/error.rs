//! Errors of a shard's store.

use crate::files::may_pass;
use model::TableId;
use model::token::Token;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

/// This shard has no such table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no table {0} on this shard")]
pub struct NoSuchTable(pub TableId);

/// Why an operation on the store failed.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The table is not on this shard (any more).
    #[error(transparent)]
    NoSuchTable(#[from] NoSuchTable),
    /// A table was added twice.
    #[error("table {0} already exists on this shard")]
    TableExists(TableId),
    /// An sstable belongs to several tablets: [`crate::Engine::reshard`] has to come first.
    #[error("{0} spans several tablets")]
    SpansTablets(PathBuf),
    /// An sstable could not be used.
    #[error(transparent)]
    Sstable(#[from] sstable::Error),
    /// The commitlog failed.
    #[error(transparent)]
    Log(#[from] crate::commitlog::LogError),
    /// A replacement of sstables failed.
    #[error(transparent)]
    Replacement(#[from] crate::deletion_log::DeletionLogError),
    /// A small file in a table's directory is damaged.
    #[error(
        "{path} {why} (it holds {holds}): restore it as it was when the node stopped; or move it away and start once with \
         --accept-loss"
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The defect, as a text after the path.
        why: String,
        /// The content of the file, which is lost without it.
        holds: &'static str,
    },
    /// The operating system refused.
    #[error("{path}: {source}{}", rt::fs::remedy(.path, .source))]
    Io {
        /// Where.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file in an `upload` directory cannot be loaded.
    #[error("{path}: {why}")]
    Upload {
        /// The file.
        path: PathBuf,
        /// Why.
        why: String,
    },
    /// A file of a tablet cannot be streamed as it is.
    #[error("{path} cannot be streamed: {why}")]
    NotStreamable {
        /// The file.
        path: PathBuf,
        /// Why.
        why: String,
    },
    /// A file of a tablet can only be streamed as mutations: another database wrote it.
    #[error("{path} can only be streamed as mutations: {why}")]
    OnlyAsMutations {
        /// The file.
        path: PathBuf,
        /// Why.
        why: String,
    },
    /// Another node sent mutations of a streamed tablet that no reader of the tablet returns.
    #[error("the mutations of a streamed tablet are wrong: {0}")]
    WrongMutations(&'static str),
    /// The other node describes the files of a streamed tablet incorrectly, with the reason.
    #[error("the files of a streamed tablet are not described correctly: {0}")]
    Layout(String),
    /// A streamed tablet cannot become part of its table.
    #[error("the streamed tablet {tablet} of table {table} cannot be used: {why}")]
    NotAttached {
        /// The table.
        table: TableId,
        /// The tablet.
        tablet: u32,
        /// Why.
        why: String,
    },
    /// The snapshot of a truncated table cannot get the rows that are only in the commitlog.
    #[error(
        "table {table} was truncated, and the snapshot of its rows that are only in the commitlog cannot be written: {source}. \
         Remove the cause (on a full disk, free as much as commitlog/ takes), or start once with auto_snapshot: false, which \
         discards these rows"
    )]
    SnapshotOfLog {
        /// Keyspace and table.
        table: Arc<str>,
        /// Why.
        source: Box<EngineError>,
    },
    /// The directory of a dropped table still has this file of an sstable.
    #[error("{0} is a file of an sstable of a dropped table, and was not removed")]
    NotDropped(PathBuf),
    /// The name is not valid for a snapshot: letters, digits, `-`, `_` and `.` only.
    #[error("bad snapshot name {0:?}")]
    SnapshotName(String),
    /// Replayed data is not durable yet, so nothing may be compacted.
    #[error("compaction is disabled until replayed data is flushed; the old commitlogs are still needed")]
    OldLogsNeeded,
    /// The work was cancelled: the table is being dropped or truncated, or the shard stops.
    #[error("cancelled")]
    Cancelled,
    /// An administrator stopped the compaction.
    #[error("the compaction was stopped")]
    Stopped,
}

impl EngineError {
    /// Whether the process has no descriptors left.
    pub(crate) fn is_out_of_files(&self) -> bool {
        match self {
            EngineError::Sstable(sstable::Error::Io { source: error, .. }) | EngineError::Io { source: error, .. } => {
                sstable::is_out_of_files(error)
            }
            _ => false,
        }
    }

    /// Whether the operation may succeed later, without any data loss: the disk is full, or the
    /// process has no descriptors left.
    pub fn may_pass(&self) -> bool {
        let source = match self {
            EngineError::Sstable(sstable::Error::Io { source: error, .. }) | EngineError::Io { source: error, .. } => {
                error
            }
            EngineError::Log(error) => return error.may_pass(),
            _ => return false,
        };
        may_pass(source)
    }

    /// Whether an sstable is damaged.
    pub fn is_damage(&self) -> bool {
        matches!(self, EngineError::Sstable(sstable::Error::Corrupt(_)))
    }

    /// Whether sstables were not replaced or loaded, and a restart will not do it either.
    pub fn changed_nothing(&self) -> bool {
        matches!(self, EngineError::Replacement(crate::deletion_log::DeletionLogError::NotBegun { .. }))
    }

    /// For `map_err` on an I/O operation at `path`.
    pub(crate) fn io(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> EngineError {
        let path = path.into();
        move |source| EngineError::Io { path, source }
    }
}

/// Why a write was not done.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// The table is not on this shard (any more).
    #[error(transparent)]
    NoSuchTable(#[from] NoSuchTable),
    /// The key belongs to no tablet of this shard.
    #[error("token {token} of table {table} is not on this shard")]
    NoSuchTablet {
        /// The table.
        table: TableId,
        /// The key's token.
        token: Token,
    },
    /// Larger than a commitlog record may be.
    #[error(
        "a mutation of {size} bytes is larger than the limit of {limit}, which is half of commitlog_segment_size_in_mb"
    )]
    TooLarge {
        /// Its size in bytes.
        size: usize,
        /// The most that is allowed, in bytes.
        limit: usize,
    },
    /// Memtables stayed full: flushing does not keep up, or fails.
    #[error("no room in the memtables")]
    NoRoom,
    /// Memtables are full, and flushes fail for lack of disk space or descriptors.
    #[error(
        "no space left for memtables: flushes fail (the disk is full, or too many files are open; the node's log says \
         which)"
    )]
    NoSpace,
    /// The commitlog failed; whether the write will be found after a restart is unknown.
    #[error(transparent)]
    Log(#[from] crate::commitlog::LogError),
}

/// Why a read failed.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The table is not on this shard (any more).
    #[error(transparent)]
    NoSuchTable(#[from] NoSuchTable),
    /// An sstable could not be read, or is corrupt.
    #[error(transparent)]
    Sstable(#[from] sstable::Error),
}

impl ReadError {
    /// Whether an sstable is damaged.
    pub fn is_damage(&self) -> bool {
        matches!(self, ReadError::Sstable(sstable::Error::Corrupt(_)))
    }
}
