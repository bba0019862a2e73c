//! Files of a shard: one io_uring per shard in production, a simulated disk under `rt::sim`.
//!
//! Reads and writes carry a class. Scans and background work have limits of requests and bytes at the device, so that they cannot fill
//! its queue; the governor lowers them while statements are slow.
//! Buffers belong to the operation until the kernel is done with them, also when the future that asked is dropped. Large ones lie in huge
//! pages, of which a shard keeps some.
//! Where io_uring or `O_DIRECT` is refused, one log line says so and the slower way (helper threads, page cache) is taken.

mod buffer;
mod directory;
mod file;
mod huge;
mod io;
mod os_file;
mod regular;
mod ring;
mod sequential;
mod way_out;

pub use directory::{
    DirEntry, FileLock, Metadata, create_dir_all, disk_space, exists, free_files, hard_link, is_absence, lock_dir,
    lock_file, metadata, read, read_and_measure, read_dir, remove_dir_all, remove_file, rename, sync_dir,
    write_durably, write_durably_with_room,
};
pub use file::{File, OpenOptions, open};
pub(crate) use huge::keep as keep_huge_pages;
pub(crate) use io::Io;
pub use sequential::SequentialWriter;
pub use way_out::way_out;

use crate::group::Group;

/// Who waits for an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum IoClass {
    /// A request of a client.
    Foreground = 0,
    /// Compaction, flush, streaming, repair: limited depth.
    Background = 1,
    /// The commitlog: goes first.
    Log = 2,
    /// Scans of whole tables: limited depth.
    Scan = 3,
}

impl IoClass {
    /// How many classes there are.
    pub const COUNT: usize = 4;

    /// The class of what a scheduling group reads and writes.
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
