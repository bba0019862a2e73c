//! The tests of the engine through its public interface, one module for each subject.
//!
//! They are one program, because linking one for each file takes minutes. With the feature `sim` it
//! has those that need the simulated machine, and without it the others: each test is compiled and
//! run once.

#[cfg(not(feature = "sim"))]
mod compaction;
#[cfg(feature = "sim")]
mod concurrent;
#[cfg(feature = "sim")]
mod dropped;
#[cfg(not(feature = "sim"))]
mod dropped_columns;
#[cfg(not(feature = "sim"))]
mod epochs;
#[cfg(feature = "sim")]
mod full_disk;
#[cfg(not(feature = "sim"))]
mod large_rows;
#[cfg(not(feature = "sim"))]
mod many_tablets;
#[cfg(not(feature = "sim"))]
mod missing_files;
#[cfg(not(feature = "sim"))]
mod missing_sstables;
#[cfg(not(feature = "sim"))]
mod model;
#[cfg(not(feature = "sim"))]
mod open_files;
#[cfg(not(feature = "sim"))]
mod operations;
#[cfg(feature = "sim")]
mod power_loss;
#[cfg(feature = "sim")]
mod refused_files;
#[cfg(feature = "sim")]
mod relogging;
#[cfg(not(feature = "sim"))]
mod removal_beside;
#[cfg(not(feature = "sim"))]
mod row_cache;
#[cfg(not(feature = "sim"))]
mod shard_moves;
mod shards;
#[cfg(not(feature = "sim"))]
mod streaming;
#[cfg(not(feature = "sim"))]
mod streaming_mutations;
mod support;
#[cfg(not(feature = "sim"))]
mod swapped;
#[cfg(not(feature = "sim"))]
mod tablet_lifecycle;
#[cfg(not(feature = "sim"))]
mod timestamps;
#[cfg(not(feature = "sim"))]
mod unreadable;
#[cfg(not(feature = "sim"))]
mod unstorable;
#[cfg(not(feature = "sim"))]
mod upload;
#[cfg(feature = "sim")]
mod upload_faults;
