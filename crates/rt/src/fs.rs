//! Files of a shard: one io_uring per shard in production, a simulated disk under `rt::sim`.
//!
//! Reads and writes carry a class. Scans and background work have limits of requests and bytes at
//! the device, so that they cannot fill its queue. The governor lowers these limits while
//! statements are slow.
//!
//! A buffer belongs to its operation until the kernel has finished, even if the requesting future
//! is dropped. Large buffers are in huge pages, of which a shard keeps some.
//!
//! If io_uring or `O_DIRECT` is refused, one log line reports it, and a slower path is used (helper
//! threads, page cache).

mod buffer;
mod directory;
mod file;
mod huge;
mod io;
mod os_file;
pub(crate) mod regular;
mod remedy;
mod ring;
mod sequential;

pub use directory::{
    DirEntry, FileLock, Metadata, canonicalize, create_dir_all, disk_space, free_files, hard_link, is_absence,
    is_there, lock_dir, lock_file, metadata, read, read_and_measure, read_dir, remove_dir_all, remove_file, rename,
    sync_dir, write_durably, write_durably_owned, write_durably_with_room,
};
pub use file::{File, OpenOptions, open};
pub(crate) use huge::keep as keep_huge_pages;
pub(crate) use io::{Io, blocking};
pub use remedy::{remedy, remedy_for_new_dir};
pub use sequential::{SequentialWriter, WriteBuffers};

use crate::group::Group;

/// The class of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum IoClass {
    /// Client requests.
    Foreground = 0,
    /// Compaction, flush, streaming, repair: limited queue depth.
    Background = 1,
    /// The commitlog: has priority.
    Log = 2,
    /// Scans of whole tables: limited queue depth.
    Scan = 3,
}

impl IoClass {
    /// The number of classes.
    pub const COUNT: usize = 4;

    /// The class of a scheduling group's reads and writes.
    pub fn of(group: Group) -> IoClass {
        match group {
            Group::Control | Group::Statement => IoClass::Foreground,
            Group::Scan => IoClass::Scan,
            Group::Maintenance => IoClass::Background,
        }
    }
}

#[cfg(test)]
mod tests;
