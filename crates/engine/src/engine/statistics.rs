//! Statistics of the shard's store and its tables, and the large data in them.

use super::Engine;
use crate::error::NoSuchTable;
use crate::metrics::{EngineMetrics, TableStats};
use crate::table::{LargeView, TableDetails};
use model::TableId;
use model::key::DecoratedKey;
use model::token::Token;
use sstable::{Component, LargeData};

impl Engine {
    /// The statistics of this shard.
    pub fn metrics(&self) -> EngineMetrics {
        let counters = self.counters();
        let mut metrics = EngineMetrics {
            memtable_bytes: self.pool().used() as u64,
            memtable_limit_bytes: self.config().memtable_budget() as u64,
            writes_waiting_for_memory: self.pool().waiting() as u64,
            writes_delayed: self.pool().delayed(),
            writes: counters.writes.get(),
            reads: counters.reads.get(),
            bloom_filter_rejects: counters.bloom_rejects.get(),
            flushes: counters.flushes.get(),
            flush_failures: counters.flush_failures.get(),
            flushes_running: counters.flushes_running.get(),
            relogged: counters.relogged.get(),
            flushed_for_memory: counters.flushed_for_memory.get(),
            flushed_bytes: counters.flushed_bytes.get(),
            compactions: counters.compactions.get(),
            moves: counters.moves.get(),
            compaction_failures: counters.compaction_failures.get(),
            compactions_running: counters.compactions_running.get(),
            compactions_pending: self.compactions().pending(),
            compaction_backlog: self.compactions().backlog() as u64,
            background_share: self.compactions().share().into(),
            compacted_bytes_in: counters.compacted_bytes_in.get(),
            compacted_bytes_out: counters.compacted_bytes_out.get(),
            replayed: counters.replayed.get(),
            replay_skipped: counters.replay_skipped.get(),
            sstables_writing: counters.writers.get(),
            sstables_begun: counters.writers_begun.get(),
            sstables_deleted: counters.sstables_deleted.get(),
            tablets_taken_over: counters.tablets_taken_over.get(),
            large_partitions: self.large_counts().partitions.get(),
            large_rows: self.large_counts().rows.get(),
            large_cells: self.large_counts().cells.get(),
            large_collections: self.large_counts().collections.get(),
            cache_limit_bytes: self.config().cache_budget() as u64,
            cache: self.cache().stats(),
            open_files: self.cache().files().stats(),
            rows: self.rows().stats(),
            log: self.log().metrics(),
            ..EngineMetrics::default()
        };
        for table in self.all_tables() {
            metrics.sstables_unreadable += table.unreadable.count();
            for tablet in table.tablets().iter() {
                let set = tablet.sstables();
                metrics.sstables += set.len() as u64;
                metrics.disk_bytes += set.disk_bytes();
                metrics.sstables_unreadable += set.iter().filter(|own| own.corrupt.get()).count() as u64;
            }
        }
        metrics
    }

    /// The statistics of a table on this shard.
    pub fn table_stats(&self, id: TableId) -> Result<TableStats, NoSuchTable> {
        let table = self.table(id).ok_or(NoSuchTable(id))?;
        let mut stats = TableStats { unreadable: table.unreadable.count(), ..TableStats::default() };
        let mut data_bytes = 0;
        for tablet in table.tablets().iter() {
            let set = tablet.sstables();
            stats.sstables += set.len() as u64;
            stats.disk_bytes += set.disk_bytes();
            for own in set.iter() {
                stats.partitions += own.partitions();
                data_bytes += own.sstable.data_bytes();
                stats.unreadable += u64::from(own.corrupt.get());
            }
            tablet.for_each_memtable(|memtable| {
                stats.partitions += memtable.len() as u64;
                stats.memtable_bytes += memtable.bytes() as u64;
                data_bytes += memtable.written();
            });
        }
        stats.mean_partition_bytes = data_bytes.checked_div(stats.partitions).unwrap_or(0);
        Ok(stats)
    }

    /// A table on this shard in detail.
    pub fn table_details(&self, id: TableId) -> Result<TableDetails, NoSuchTable> {
        let table = self.table(id).ok_or(NoSuchTable(id))?;
        let mut details = TableDetails {
            unreadable: table.unreadable.count(),
            reads: table.done.reads.get(),
            writes: table.done.writes.get(),
            flushes: table.done.flushes.get(),
            ..TableDetails::default()
        };
        for tablet in table.tablets().iter() {
            details.tablet(tablet);
            tablet.sstables().iter().for_each(|own| details.inside(own));
        }
        Ok(details)
    }

    /// The large data of the sstables on this shard, each with its table and the name of its
    /// Data.db.
    pub fn large_data(&self) -> Vec<(TableId, String, LargeData)> {
        let mut found = Vec::new();
        for table in self.all_tables() {
            let id = table.schema().id;
            for tablet in table.tablets().iter() {
                for own in tablet.sstables().iter() {
                    if let Some(large) = own.sstable.large() {
                        let path = own.sstable.place().path(Component::Data);
                        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
                        found.push((id, name, large.clone()));
                    }
                }
            }
        }
        found
    }

    /// Bytes on disk of each tablet of this shard: table, tablet, bytes.
    pub fn tablet_sizes(&self) -> Vec<(TableId, u32, u64)> {
        let mut sizes = Vec::new();
        for table in self.all_tables() {
            let id = table.schema().id;
            sizes.extend(table.tablets().iter().map(|tablet| (id, tablet.id, tablet.sstables().disk_bytes())));
        }
        sizes
    }

    /// The last token of a key's tablet; `None` if the tablet is not on this shard.
    pub fn last_token_of_tablet(&self, table: TableId, key: &DecoratedKey) -> Option<Token> {
        Some(self.table(table)?.tablet_of(key)?.range.end.token)
    }

    /// The sum over all tables of this shard, without partitions, cells and levels of sstables.
    pub fn details(&self) -> TableDetails {
        let mut details = TableDetails::default();
        for table in self.all_tables() {
            details.unreadable += table.unreadable.count();
            table.tablets().iter().for_each(|tablet| details.tablet(tablet));
        }
        details
    }

    /// The known large data of a partition; `None` if its tablet is not on this shard.
    pub fn large_view(&self, table: TableId, key: &DecoratedKey) -> Option<LargeView> {
        let table = self.table(table)?;
        let tablet = table.tablet_of(key)?;
        Some(LargeView::new(tablet, table.schema(), key))
    }
}
