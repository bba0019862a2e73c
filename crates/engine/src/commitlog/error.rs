//! What can go wrong with a log.

use crate::files::may_pass;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// An error of the log. Cheap to clone.
#[derive(Clone, Debug, thiserror::Error)]
pub enum LogError {
    /// Too many bytes wait to be written, or the log has reached its size limit. Try again later,
    /// or use `append_wait`.
    #[error("the commitlog is busy")]
    Busy,
    /// The disk is full, or no more files can be opened. The node keeps running, and appends
    /// succeed again when there is space.
    #[error("no space left for the commitlog (the disk is full, or too many files are open; see the log of the node)")]
    NoSpace,
    /// The record does not fit into half a segment.
    #[error("a mutation of {len} bytes is too large for the commitlog: the maximum is {max} (half of a segment)")]
    TooLarge {
        /// Its length in bytes.
        len: usize,
        /// The longest possible.
        max: usize,
    },
    /// Segments cannot have the configured size.
    #[error(
        "a commitlog segment of {0} bytes is not possible: commitlog_segment_size_in_mb must be between 1 and 1024"
    )]
    SegmentSize(u32),
    /// The log was closed.
    #[error("the commitlog is closed")]
    Closed,
    /// The log has failed permanently, and the node must stop. Unsynced records may be lost.
    #[error("the commitlog has failed: {0}")]
    Failed(Arc<str>),
    /// Damage in the part of the log that was synced.
    #[error(
        "the commitlog {file} is damaged at byte {offset} ({why}), before records that were known to be safe. \
         Restore the file, or start once with commitlog_ignore_corruption: true to skip the damaged records"
    )]
    Corrupt {
        /// The segment or manifest.
        file: PathBuf,
        /// Where.
        offset: u64,
        /// The damage.
        why: &'static str,
    },
    /// A segment or manifest is missing that replay needs.
    #[error(
        "the commitlog file {0} is missing: restore the file, or start once with commitlog_ignore_corruption: true to start \
         without its records"
    )]
    Missing(PathBuf),
    /// Another node wrote a segment or manifest.
    #[error(
        "the commitlog file {0} is of another node. Restore this node's file, or move the run away if it is not \
         this node's. Or start once with commitlog_ignore_corruption: true to start without this node's records"
    )]
    Foreign(PathBuf),
    /// A later release wrote it.
    #[error("the commitlog {file} was written by a later release ({what} {found}, this release reads up to {known})")]
    Newer {
        /// The file.
        file: PathBuf,
        /// The part with a newer version.
        what: &'static str,
        /// Its version.
        found: u32,
        /// The newest known one.
        known: u32,
    },
    /// The operating system refused.
    #[error("{path}: {error}{}", rt::fs::remedy(.path, .error))]
    Io {
        /// Of what.
        path: PathBuf,
        /// Why.
        error: Arc<io::Error>,
    },
    /// The consumer of the replayed records refused one.
    #[error("replay of the commitlog stopped: {0}")]
    Refused(Arc<str>),
}

/// Why a log was not closed properly.
#[derive(Clone, Debug, thiserror::Error)]
pub enum CloseError {
    /// Its last records may not be on the device.
    #[error("{0}")]
    Unsynced(LogError),
    /// All its records are on the device, but the run was not ended: the next start replays more
    /// than it needs.
    #[error("{0}")]
    NotEnded(LogError),
}

impl LogError {
    /// Whether the operation may succeed later, without any data loss.
    pub fn may_pass(&self) -> bool {
        match self {
            LogError::NoSpace => true,
            LogError::Io { error, .. } => may_pass(error),
            _ => false,
        }
    }

    /// An error of the operating system about `path`.
    pub(super) fn io(path: &Path) -> impl FnOnce(io::Error) -> LogError {
        let path = path.to_path_buf();
        move |error| LogError::Io { path, error: Arc::new(error) }
    }
}
