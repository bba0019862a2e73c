//! Errors of the metadata log.

use crate::files::{is_full, may_pass};
use rt::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Why an operation on the metadata log failed.
#[derive(Debug, thiserror::Error)]
pub enum RaftLogError {
    /// The body is too large.
    #[error("a body of {0} bytes is too large for the metadata log")]
    TooLarge(usize),
    /// Something that was durable is damaged.
    #[error(
        "{file} is damaged at byte {offset} ({why}): restore its directory exactly as it was when the node \
         stopped. An older copy is unsafe on a member of a cluster, because the node's votes are in it: replace \
         such a node by a new one with an empty data directory. On a node without others the directory can be \
         restored from a backup, or moved away. A start with --accept-loss then begins without keyspaces \
         and tables"
    )]
    Corrupt {
        /// The file.
        file: PathBuf,
        /// Offset in the file, in bytes.
        offset: u64,
        /// The damage.
        why: String,
    },
    /// Another node wrote it.
    #[error(
        "{0} is of another node: put its directory back exactly as it was when this node stopped. A member of a \
         cluster cannot start with the votes of another node, nor without its own: if they are lost, replace \
         the member by a new node with an empty data directory. On a node without others the directory can be \
         restored from a backup of this node, or moved away. A start with --accept-loss then begins without \
         keyspaces and tables"
    )]
    Foreign(PathBuf),
    /// A later release wrote it.
    #[error("{file} was written by a later release (format {found}, this release reads up to {known})")]
    Newer {
        /// The file.
        file: PathBuf,
        /// Its format.
        found: u32,
        /// The newest known one.
        known: u32,
    },
    /// An earlier write or fsync failed: the node must stop.
    #[error("the metadata log has failed: {0}")]
    Failed(String),
    /// The operating system refused.
    #[error("{path}: {error}{}", fs::remedy(.path, .error))]
    Io {
        /// Of what.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
}

impl RaftLogError {
    /// Whether the disk (or a quota) is full.
    pub fn is_full(&self) -> bool {
        matches!(self, RaftLogError::Io { error, .. } if is_full(error))
    }

    /// Whether the disk is full, or there are no descriptors left: nothing is wrong with the
    /// device, and the same may succeed later.
    pub fn may_pass(&self) -> bool {
        matches!(self, RaftLogError::Io { error, .. } if may_pass(error))
    }
}

/// For `map_err` on an I/O operation at `path`.
pub(crate) fn io_error(path: &Path) -> impl FnOnce(io::Error) -> RaftLogError {
    let path = path.to_path_buf();
    move |error| RaftLogError::Io { path, error }
}
