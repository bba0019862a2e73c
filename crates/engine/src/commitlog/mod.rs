//! The commitlog of a shard: what was acknowledged and is not yet in an sstable.
//!
//! ```text
//! commitlog/<shard>/<run>/manifest          the segments that replay needs (sealed text, synced before a segment is used)
//! commitlog/<shard>/<run>/segment-<id>      preallocated; a header, then records
//! commitlog/<shard>/<run>/synced            how far the segments are on the device
//! ```
//!
//! A *run* is one start of the process: it writes to a directory of its own and never to an earlier one, so what a crash
//! left behind is only read. [`find_old`] lists the runs before [`Commitlog::open`] begins a new one, [`Replay`] reads them,
//! [`retire`] removes them when their contents are safe elsewhere. Segment ids grow for ever and hold the shard's number, so
//! a [`Position`] means one place in one node's life.
//!
//! Invariants. *Acknowledged is kept*: [`Commitlog::acknowledged`] resolves only when the kernel has the record (periodic
//! mode) or the device has (batch, group). *A prefix*: what replay gives of a run is a prefix of what was appended to it.
//! *No silent holes*: every segment that the manifest names must be there and whole up to the highest position that any
//! later record, the manifest, or the file beside them names as synced; what lies behind that is the torn tail. *Old bytes are dead*: a record's
//! checksum covers its segment's id and its offset. A failed fsync ends the log: it is never tried again.
//!
//! The log must never look into a mutation beyond its table and schema version, nor decide what a memtable flushes.
//! Reading order: position, format, mapping, ledger, manifest, waiters, state, synced, log, writer, keeper, presence, replay.

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
pub use replay::{Replay, ReplayOptions, ReplayReport, ReplayedRecord, Skipped, Tail, replay};
pub use runs::{LoggedRun, OldLogs, OldRun, ends, find_old, missing, old_spans, retire, runs_in};

#[cfg(test)]
mod tests;
