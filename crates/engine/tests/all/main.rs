//! The tests of the engine through its public interface, one module for each subject.
//!
//! They are one program, because linking one for each file takes minutes.

mod compaction;
#[cfg(feature = "sim")]
mod concurrent;
#[cfg(feature = "sim")]
mod dropped;
mod epochs;
#[cfg(feature = "sim")]
mod full_disk;
mod many_tablets;
mod missing_files;
mod model;
mod open_files;
mod operations;
mod own_tablets;
#[cfg(feature = "sim")]
mod power_loss;
mod row_cache;
mod shards;
mod support;
mod timestamps;
mod upload;
