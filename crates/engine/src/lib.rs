//! All data that one shard stores: commitlog, memtables, tablets' sstable sets, compaction.
//!
//! [`Engine`] is one shard's store. A write is appended to the commitlog and merged into the memtable of its tablet in one
//! synchronous step; memtables become sstables by flush, sstables become fewer by compaction; a [`Reader`] merges what is in
//! memory with what is on disk into one stream of fragments. Whatever was acknowledged survives, and nothing deleted returns.
//! The crate knows no nodes, queries or CQL.
//! Reading order: engine, table, tablet, memtable, write, reader, flush, pressure, compaction, replay, truncate, epoch, snapshot.

pub mod commitlog;
pub mod config;
pub mod datadir;
pub mod deletion_log;
pub mod engine;
pub mod error;
pub mod metrics;
pub mod raft_log;
pub mod reader;
pub mod replay;
pub mod upload;

mod carry;
mod compaction;
mod drop_table;
mod epoch;
mod flush;
mod large;
mod marks;
mod memtable;
mod open;
mod own_tablets;
mod owner;
mod parts;
mod pressure;
mod reshard;
mod row_cache;
mod sealed;
mod slices;
mod snapshot;
mod sstable_set;
mod table;
mod table_stats;
mod tablet;
mod truncate;
mod write;

#[cfg(test)]
mod scratch;

pub use compaction::{CompactionKind, CompactionProgress, CompactionRecord};
pub use config::{DescribeSchema, EngineConfig, open_files_of_process};
pub use engine::{Engine, LogLeft, TabletRange, Unwritten};
pub use error::{ApplyError, EngineError, NoSuchTable, ReadError};
pub use large::{LargePartition, LargeView};
pub use marks::TruncateRecord;
pub use metrics::{EngineMetrics, TableStats};
pub use parts::Origin;
pub use reader::{PartitionHead, ReadOptions, Reader, Resumed, Stale, Suspended};
pub use row_cache::RowCacheStats;
pub use snapshot::{UNFINISHED_SNAPSHOT, is_snapshot_name};
pub use sstable::{LARGE, Large, LargeData, LargeKind, LargeLimits, LargeRead, LargeReads, Loan, ReadId};
pub use sstable::{clustering_key_texts, key_texts};
pub use table_stats::TableDetails;
pub use write::Applied;
