//! The common parts of a node's small files: sealed texts, owners, and temporary failures of the
//! file system.
//!
//! - `sealed`: small checksummed text files that are replaced entirely.
//! - `bytes`: fields and checksums of binary headers.
//! - `owner`: the node and the table that a file belongs to.
//! - `reserve`: reserved disk space, for steps that must not fail on a full disk.

pub(crate) mod bytes;
mod owner;
mod reserve;
pub(crate) mod sealed;

pub(crate) use owner::{FileOwner, IS_FOREIGN, NodeDigest, read_owned};
pub use reserve::{DiskReserve, ReserveError};

use std::io;

/// Whether the disk (or a quota) is full.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Whether the disk is full or the process has no file descriptors left. Then the device works, and
/// the same operation may succeed later.
pub(crate) fn may_pass(error: &io::Error) -> bool {
    is_full(error) || sstable::is_out_of_files(error)
}
