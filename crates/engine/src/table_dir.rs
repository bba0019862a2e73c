//! The directory of a table: its files, and their contents.
//!
//! - `listing`: names of files; the removal of sstables.
//! - `clean`: completes interrupted file operations.
//! - `found`: the files that shard 0 has found, for other shards.
//! - `replay_filters`: which records of the commitlog are not replayed.
//! - `sstable_list`: which sstables the directory must have.
//! - `epoch_file`: the newest epoch that the node has begun.
//! - `snapshot`: hard links to sstables.
//!
//! Sstables are replaced by others through [`crate::deletion_log`]. Nothing here knows the tablets
//! or memtables of a table.

mod clean;
pub(crate) mod epoch_file;
mod found;
mod listing;
pub(crate) mod replay_filters;
mod snapshot;
pub(crate) mod sstable_list;

pub(crate) use clean::{CleanDirectory, finish_interrupted};
pub use found::FoundSstables;
pub(crate) use found::{Prepared, SstableKeys};
pub(crate) use listing::{
    foreign_files, is_absent, is_sealed, is_truncated, names_in, remove_all, remove_tree, sealed_places,
};
pub(crate) use replay_filters::ReplayFilters;
pub use replay_filters::TruncateRecord;
pub(crate) use snapshot::{MANIFEST, OnMissing, SnapshotWriter, unfinished};
pub use snapshot::{UNFINISHED_SNAPSHOT, is_snapshot_name};
pub(crate) use sstable_list::{ListedName, ListedNames, SstableLists};

/// The directory in a table's directory that holds its snapshots.
pub const TABLE_SNAPSHOTS: &str = "snapshots";
/// The directory in a table's directory for tablets that are being streamed.
pub(crate) const STREAMING: &str = "streaming";
