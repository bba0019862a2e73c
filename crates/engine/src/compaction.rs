//! Compaction: merges sstables into fewer, larger ones, and drops data that is covered, expired or
//! purgeable.
//!
//! [`picker`] decides what to merge (pure), and `controller` when. `shares` requests time on the
//! shard. `task` runs a compaction and writes its `outputs`. `purge` decides which tombstones can
//! be dropped. `request` has the compactions that administrators start. `progress` and `history`
//! report running and finished compactions.

mod controller;
mod history;
mod options;
mod outputs;
mod picker;
mod progress;
mod purge;
mod request;
mod shares;
mod task;

pub(crate) use controller::{Compactions, PickMemo};
pub use history::CompactionRecord;
pub use progress::{CompactionKind, CompactionProgress};
