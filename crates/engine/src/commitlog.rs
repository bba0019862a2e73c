//! The commitlog of a shard: acknowledged writes that are not yet in an sstable.
//!
//! ```text
//! commitlog/<shard>/<run>/manifest          the segments that replay needs (sealed text, synced
//!                                           before a segment is used)
//! commitlog/<shard>/<run>/segment-<id>      preallocated; a header, then records
//! commitlog/<shard>/<run>/synced            how far the segments are on the device
//! ```
//!
//! A *run* is one start of the process. It writes to its own directory and never to an earlier
//! one. [`find_old`] lists the runs before [`Commitlog::open`] begins a new one, [`Replay`] reads
//! them, [`retire`] removes them when their contents are durable elsewhere. Segment ids only grow
//! and contain the shard's number, so a [`Position`] is unique in the life of a node.
//!
//! Invariants:
//!
//! - *Acknowledged records are kept*: [`Commitlog::acknowledged`] resolves only when the kernel
//!   has the record (periodic mode), or the device has it (batch, group).
//! - *A prefix*: replay returns a prefix of the records that were appended to a run.
//! - *No silent holes*: every segment in the manifest must exist. It must be undamaged up to the
//!   highest synced position that a later record, the manifest, or the file `synced` names. The
//!   rest is the torn tail.
//! - *Old bytes are never records*: a record's checksum covers its segment's id and its offset.
//! - A failed fsync ends the log: it is never retried.
//!
//! The log must never read a mutation beyond its table and schema version, nor decide which
//! memtables are flushed.
//!
//! Reading order: position, format, mapping, ledger, manifest, waiters, state, synced, log,
//! writer, keeper, presence, replay.

mod acknowledged;
mod config;
mod error;
mod format;
mod keeper;
mod ledger;
mod log;
mod manifest;
mod mapping;
mod metrics;
mod position;
mod presence;
mod replay;
mod runs;
mod state;
mod synced;
mod waiters;
mod writer;

pub use acknowledged::Acknowledged;
pub use config::{CommitlogConfig, SyncMode};
pub use error::{CloseError, LogError};
pub use format::fuzz_segment;
pub use log::{Appended, Commitlog, Entry};
pub use mapping::{ColumnMapping, MappedColumn};
pub use metrics::Metrics;
pub(crate) use position::same_log;
pub use position::{Position, SlotId, shard_of_segment};
pub use replay::{Replay, ReplayOptions, ReplayReport, ReplayedRecord, Skipped, Tail};
pub use runs::{
    EndedRun, LoggedRun, OldLogs, OldRun, ended, ends, find_old, missing, old_runs, old_spans, retire, runs_in,
};

#[cfg(test)]
mod tests;
