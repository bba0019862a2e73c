//! Compaction: fewer and larger sstables, without what is covered, expired or may be purged.
//!
//! [`picker`] decides what to merge (pure), `controller` when, `task` does it, `purge` knows which tombstones may go.

mod controller;
mod options;
mod picker;
mod purge;
mod task;

pub(crate) use controller::Compactions;
