//! Compaction: fewer and larger sstables, without what is covered, expired or may be purged.
//!
//! [`picker`] decides what to merge (pure), `controller` when, `shares` at which pace, `task` does it into `outputs`, `purge` knows which
//! tombstones may go, `request` is what administrators ask for, `progress` and `history` tell them.

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
mod throttle;

pub(crate) use controller::{Compactions, LastLook};
pub use history::CompactionRecord;
pub use progress::{CompactionKind, CompactionProgress};
