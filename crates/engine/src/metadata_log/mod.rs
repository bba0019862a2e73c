//! The log of a node's metadata on its disk.
//!
//! - [`raft_log`]: the log of the metadata's Raft group, its vote and its snapshot.
//! - [`journal`]: the journal of releases before there was a group. It is only read.
//! - `record`: the parts of their file formats that are the same.

pub mod journal;
pub mod raft_log;
mod record;

pub use journal::{Entry, Snapshot, read_journal};
pub use raft_log::RaftLog;

use crate::files;
use rt::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The longest body of an entry or a snapshot: 1 GiB.
pub const MAX_BODY: usize = 1 << 30;

/// What can go wrong with a log of the metadata.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// The body is too large.
    #[error("a body of {0} bytes is too large for the metadata log")]
    TooLarge(usize),
    /// Something that was durable is damaged.
    #[error(
        "{file} is damaged at byte {offset} ({why}): restore its directory exactly as it was when the node stopped. An older copy is \
         unsafe on a member of a cluster, because the node's votes are in it: replace such a node by a new one with an empty data \
         directory. On a node without others the directory can be restored from a backup, or moved away; a start with --accept-loss \
         then begins without keyspaces, tables and roles"
    )]
    Corrupt {
        /// The file.
        file: PathBuf,
        /// Where.
        offset: u64,
        /// What is wrong.
        why: String,
    },
    /// Another node wrote it.
    #[error(
        "{0} is of another node: put its directory back exactly as it was when this node stopped. A member of a cluster cannot start \
         with the votes of another node, nor without its own: if they are lost, replace it by a new node with an empty data directory. \
         On a node without others the directory can be restored from a backup of this node, or moved away; a start with --accept-loss \
         then begins without keyspaces, tables and roles"
    )]
    Foreign(PathBuf),
    /// A later release wrote it.
    #[error("{file} was written by a later release (format {found}, this one knows up to {known})")]
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
    #[error("{path}: {error}{}", fs::way_out(.path, .error))]
    Io {
        /// Of what.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
}

impl JournalError {
    /// Whether the disk (or a quota) is full.
    pub fn is_full(&self) -> bool {
        matches!(self, JournalError::Io { error, .. } if files::is_full(error))
    }

    /// Whether the disk is full, or there are no descriptors left: nothing is wrong with the
    /// device, and the same may succeed later.
    pub fn may_pass(&self) -> bool {
        matches!(self, JournalError::Io { error, .. } if files::may_pass(error))
    }
}

fn io_error(path: &Path) -> impl FnOnce(io::Error) -> JournalError {
    let path = path.to_path_buf();
    move |error| JournalError::Io { path, error }
}

fn log_path(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("log-{number}"))
}
