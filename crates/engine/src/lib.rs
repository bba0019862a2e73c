//! All data that one shard stores: commitlog, memtables, tablets' sstable sets, compaction.
//!
//! [`Engine`] is the store of one shard. A write is appended to the commitlog and merged into the
//! memtable of its tablet in one synchronous step. A flush makes an sstable of a memtable, and
//! compaction merges sstables. A [`Reader`] merges memtables and sstables into one stream of
//! fragments. Acknowledged writes survive crashes, and deleted data does not return. The crate
//! knows no nodes, queries or CQL.
//!
//! Modules, from the bottom up:
//!
//! | module | what it is |
//! |---|---|
//! | `files` | small files: sealed texts, their owner, reserved disk space |
//! | [`commitlog`] | the log of acknowledged writes |
//! | [`raft_log`] | the metadata log, which is the log of the Raft group |
//! | `deletion_log` | replaces sstables by others, atomically despite crashes |
//! | `memtable` | the newest data of a tablet, in memory, and its memory budget |
//! | `table_dir` | the directory of a table and its small files |
//! | [`datadir`] | the data directory of a node, and the files that a start requires |
//! | `table` | one table on this shard: tablets, sstable sets, cached rows |
//! | `engine` | [`Engine`]: opening and stopping it, its tables, its numbers |
//! | `write` | writes: commitlog and memtable |
//! | `reader` | reads: a merged stream, suspended between pages |
//! | `flush` | memtables to sstables; small memtables are relogged instead |
//! | `compaction` | fewer and larger sstables |
//! | `replay` | what earlier runs logged comes back into memtables |
//! | [`streaming`] | a tablet that moves to another node as whole files |
//! | `table_ops` | add, truncate, drop, snapshot, upload; add, remove and hand over tablets |

pub mod commitlog;
pub mod datadir;
pub mod raft_log;
pub mod streaming;

mod compaction;
mod config;
mod deletion_log;
mod engine;
mod error;
mod files;
mod flush;
mod memtable;
mod metrics;
mod reader;
mod replay;
mod table;
mod table_dir;
mod table_ops;
mod write;

pub use compaction::{CompactionKind, CompactionProgress, CompactionRecord};
pub use config::{DescribeSchema, EngineConfig, open_files_of_process};
pub use engine::{Engine, LogLeft, TabletPlace, TabletRange, Unwritten};
pub use error::{ApplyError, EngineError, NoSuchTable, ReadError};
pub use files::{DiskReserve, ReserveError};
pub use metrics::{EngineMetrics, TableStats};
pub use reader::{Origin, PartitionHead, ReadOptions, Reader, Resumed, Stale, Suspended};
pub use replay::replay_logs;
pub use sstable::{LARGE, Large, LargeData, LargeKind, LargeLimits, LargeRead, LargeReads, Loan, ReadId};
pub use sstable::{clustering_key_texts, key_texts};
pub use table::{LargePartition, LargeView, RowCacheStats, TableDetails};
pub use table_dir::{FoundSstables, TruncateRecord, UNFINISHED_SNAPSHOT, is_snapshot_name};
pub use table_ops::{LoadedPiece, Uploaded};
pub use write::Applied;
