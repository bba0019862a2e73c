//! An sstable: one set of files with partitions of one table, in token order, written once.
//!
//! The format is `me` (BIG layout) of Cassandra and ScyllaDB, so that their tools read what Messina
//! writes, and the reverse. All details of the format stay in this crate. Everything from disk is
//! checked before it is used. Damage is a value ([`Error::Corrupt`]), never a panic. The crate does
//! not know tablets, levels or other sstables.
//!
//! Reading order: generation, statistics, data, writer, index, promoted, cache, large_reads,
//! open_files, table, reader, arrival.

mod arrival;
pub mod cache;
pub(crate) mod checksums;
pub mod compression;
pub mod contents;
pub(crate) mod data;
pub mod directory;
pub mod dump;
pub mod error;
pub mod filter;
pub mod generation;
pub(crate) mod index;
pub(crate) mod input;
pub mod large;
pub mod large_reads;
pub mod open_files;
pub(crate) mod promoted;
pub mod reader;
mod relabel;
pub mod statistics;
pub(crate) mod summary;
pub mod table;
mod verify;
pub mod writer;

pub use arrival::{Arrival, FileCheck, arrival_order};
pub use cache::{CacheStats, Loan, PageCache, Spare};
pub use compression::{Algorithm, Compression};
pub use dump::{clustering_key_texts, key_texts};
pub use error::{Corrupt, Error};
pub use generation::{Component, Generation, SstablePath, Version, unreadable_format};
pub use large::{Large, LargeCounts, LargeData, LargeKind, LargeLimits};
pub use large_reads::{LARGE, LargeRead, LargeReads, ReadId};
pub use open_files::{OpenFiles, OpenFilesStats, is_out_of_files};
pub use reader::{LARGEST_WINDOW, ReadOptions, Reader};
pub use statistics::stats::{LogInterval, Stats};
pub use table::{Sstable, SstableMemory};
pub use verify::Verified;
pub use writer::{Sealed, Unsealed, Writer, WriterOptions, seal_all};
