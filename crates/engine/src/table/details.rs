//! One table on one shard in detail, for administrators. Values of several shards can be added.

use super::{Attached, Tablet};
use serde::{Deserialize, Serialize};

/// Levels above count as this one.
const MAX_LEVEL: usize = 31;

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TableDetails {
    /// Tablets here.
    pub tablets: u64,
    /// Sstables attached.
    pub sstables: u64,
    /// Sstables with an open file: files are opened when they are read.
    #[serde(default)]
    pub open_sstables: u64,
    /// The number of attached sstables on each level of leveled compaction.
    pub levels: Vec<u64>,
    /// Sstables that could not be opened or were found corrupt.
    pub unreadable: u64,
    /// Bytes on disk of all components.
    pub disk_bytes: u64,
    /// Bytes of Data.db on disk.
    pub data_bytes: u64,
    /// The same before compression.
    pub content_bytes: u64,
    /// Partitions of sstables and memtables, without regard to overlap.
    pub partitions: u64,
    /// The least size of a partition in an sstable, in bytes, rounded up like the histograms.
    /// `None` without any.
    pub least_partition_bytes: Option<u64>,
    /// The greatest.
    pub greatest_partition_bytes: Option<u64>,
    /// Sizes of all partitions in sstables, in bytes, by the histograms.
    pub partition_bytes: f64,
    /// Cells in sstables, about.
    pub cells: f64,
    /// Bytes of memory that open sstables hold: filters, summaries, chunk offsets.
    pub sstable_memory_bytes: u64,
    /// Of these, the filters of keys.
    #[serde(default)]
    pub filter_bytes: u64,
    /// The summaries of indexes.
    #[serde(default)]
    pub summary_bytes: u64,
    /// The offsets of chunks in compressed files.
    #[serde(default)]
    pub chunk_offset_bytes: u64,
    /// Partitions in memtables.
    pub memtable_partitions: u64,
    /// Bytes of mutations that memtables took in.
    pub memtable_data_bytes: u64,
    /// Bytes of memory that memtables hold.
    pub memtable_bytes: u64,
    /// Memtables that wait to be flushed.
    pub pending_flushes: u64,
    /// Bytes of memory that these hold.
    pub pending_flush_bytes: u64,
    /// Readers opened since the start: one for every page that did not resume a reader.
    #[serde(default)]
    pub reads: u64,
    /// Mutations applied since the start.
    #[serde(default)]
    pub writes: u64,
    /// Memtables flushed since the start.
    #[serde(default)]
    pub flushes: u64,
}

impl TableDetails {
    /// Adds the values of another shard, or of another table.
    pub fn add(&mut self, other: &TableDetails) {
        self.tablets += other.tablets;
        self.sstables += other.sstables;
        self.open_sstables += other.open_sstables;
        self.levels.resize(self.levels.len().max(other.levels.len()), 0);
        for (level, count) in self.levels.iter_mut().zip(&other.levels) {
            *level += count;
        }
        self.unreadable += other.unreadable;
        self.disk_bytes += other.disk_bytes;
        self.data_bytes += other.data_bytes;
        self.content_bytes += other.content_bytes;
        self.partitions += other.partitions;
        self.least_partition_bytes = self.least_partition_bytes.into_iter().chain(other.least_partition_bytes).min();
        self.greatest_partition_bytes =
            self.greatest_partition_bytes.into_iter().chain(other.greatest_partition_bytes).max();
        self.partition_bytes += other.partition_bytes;
        self.cells += other.cells;
        self.sstable_memory_bytes += other.sstable_memory_bytes;
        self.filter_bytes += other.filter_bytes;
        self.summary_bytes += other.summary_bytes;
        self.chunk_offset_bytes += other.chunk_offset_bytes;
        self.memtable_partitions += other.memtable_partitions;
        self.memtable_data_bytes += other.memtable_data_bytes;
        self.memtable_bytes += other.memtable_bytes;
        self.pending_flushes += other.pending_flushes;
        self.pending_flush_bytes += other.pending_flush_bytes;
        self.reads += other.reads;
        self.writes += other.writes;
        self.flushes += other.flushes;
    }

    /// Bytes of Data.db for one byte of contents; `None` without any.
    pub fn compression_ratio(&self) -> Option<f64> {
        (self.content_bytes > 0).then(|| self.data_bytes as f64 / self.content_bytes as f64)
    }

    /// The mean size of a partition in sstables, in bytes; 0 without any.
    pub fn mean_partition_bytes(&self) -> u64 {
        let partitions = self.partitions - self.memtable_partitions;
        if partitions == 0 { 0 } else { (self.partition_bytes / partitions as f64) as u64 }
    }

    /// Adds the values that need no read of the statistics.
    pub(crate) fn outside(&mut self, own: &Attached) {
        self.sstables += 1;
        self.open_sstables += u64::from(own.sstable.is_open());
        self.unreadable += u64::from(own.corrupt.get());
        self.disk_bytes += own.sstable.total_bytes();
        self.data_bytes += own.sstable.data_bytes();
        self.content_bytes += own.sstable.content_bytes();
        let kept = own.sstable.kept();
        self.sstable_memory_bytes += kept.total() as u64;
        self.filter_bytes += kept.filter as u64;
        self.summary_bytes += kept.summary as u64;
        self.chunk_offset_bytes += kept.chunks as u64;
    }

    /// Adds the values of the histograms.
    pub(crate) fn inside(&mut self, own: &Attached) {
        let stats = own.sstable.stats();
        // The level in a file can be any number.
        let level = (stats.level as usize).min(MAX_LEVEL);
        self.levels.resize(self.levels.len().max(level + 1), 0);
        self.levels[level] += 1;
        self.partitions += stats.partitions();
        self.partition_bytes += stats.partition_sizes.sum();
        self.cells += stats.cells();
        let (least, greatest) = (stats.partition_sizes.quantile(0.0), stats.partition_sizes.quantile(1.0));
        self.least_partition_bytes = self.least_partition_bytes.into_iter().chain(least).min();
        self.greatest_partition_bytes = self.greatest_partition_bytes.into_iter().chain(greatest).max();
    }

    pub(crate) fn tablet(&mut self, tablet: &Tablet) {
        self.tablets += 1;
        tablet.sstables().iter().for_each(|own| self.outside(own));
        tablet.for_each_memtable(|memtable| {
            self.partitions += memtable.len() as u64;
            self.memtable_partitions += memtable.len() as u64;
            self.memtable_data_bytes += memtable.written();
            self.memtable_bytes += memtable.bytes() as u64;
        });
        let sealed = tablet.sealed();
        self.pending_flushes += sealed.len() as u64;
        self.pending_flush_bytes += sealed.iter().map(|memtable| memtable.bytes() as u64).sum::<u64>();
    }
}
