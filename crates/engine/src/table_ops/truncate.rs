//! TRUNCATE: everything of a table on this shard is void from one moment on.
//!
//! That moment is the writing of the file of replay filters (see [`crate::table_dir::ReplayFilters`]): it names the log position below which nothing is
//! replayed and the sstables that are void. Before it nothing has changed; after it a restart finishes the work. Writes that come
//! in meanwhile go to fresh memtables and stay. In a cluster those stay that belong to the epoch that begins (see [`crate::epoch`]).

use crate::commitlog::{self, Position, same_log};
use crate::datadir::Made;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::memtable::Interval;
use crate::table::Table;
use crate::table_dir::{ReplayFilters, TruncateRecord};
use model::TableId;
use model::schema::TableSchema;
use rt::ShardId;
use std::rc::Rc;

impl Engine {
    /// Removes all data of a table on this shard that was written before the call; durable when it returns. With
    /// `auto_snapshot`, a snapshot is taken first. `at_micros` is the time of the truncation, in microseconds since 1970. It names the
    /// snapshot, so all shards are given the same.
    pub async fn truncate(&self, id: TableId, at_micros: i64) -> Result<TruncateRecord, EngineError> {
        let table = self.table_or_error(id)?;
        self.detached(move |engine| async move { engine.truncate_table(&table, None, at_micros).await }).await
    }

    /// The same, and no later than the data go [`Engine::epoch`] says that only requests of this epoch are to be let in; writes that were let
    /// in before are gone with the data. May be called again when it failed, as long as nothing of the epoch was let in.
    pub async fn truncate_at(&self, id: TableId, epoch: u64, at_micros: i64) -> Result<TruncateRecord, EngineError> {
        let table = self.table_or_error(id)?;
        self.detached(move |engine| async move { engine.truncate_table(&table, Some(epoch), at_micros).await }).await
    }

    async fn truncate_table(
        &self,
        table: &Rc<Table>,
        epoch: Option<u64>,
        at_micros: i64,
    ) -> Result<TruncateRecord, EngineError> {
        let Some(_working) = table.work.enter() else { return Err(EngineError::Cancelled) };
        let _barrier = table.without_compactions().await;
        if self.has_data(table) && self.config().auto_snapshot {
            self.snapshot_table(table, &snapshot_name(&table.schema(), at_micros)).await?;
        }
        if let Some(epoch) = epoch {
            self.raise_epoch(table, epoch);
            self.waiting_writes_are_done(table).await;
        }
        if !self.is_started() {
            // What earlier runs logged is still to come, from any shard: in this run, or in the next one if the old logs are kept so long.
            table.old_logs_truncated.set(true);
            self.truncate_logs_of_absent_shards(table, at_micros).await?;
        } else if !self.has_data(table) {
            // What the log may have of it was flushed and is covered, or was truncated, and that is on record.
            return Ok(TruncateRecord { at_micros, below: self.log().position() });
        }
        let tablets = table.tablets();
        // Flushes that run are waited for, so that none attaches afterwards what is void.
        let mut turns = Vec::new();
        for tablet in tablets.iter() {
            turns.push(tablet.flush_turn.acquire().await.map_err(|_| EngineError::Cancelled)?);
        }
        let record = TruncateRecord { at_micros, below: self.log().position() };
        let void: Vec<_> = tablets
            .iter()
            .map(|tablet| {
                tablet.seal();
                (tablet.clone(), tablet.sealed(), tablet.sstables())
            })
            .collect();
        let sstables: Vec<_> = void.iter().flat_map(|(_, _, set)| set.iter().cloned()).collect();
        self.change_filters(table, |filters| {
            filters.truncated = Some(record);
            filters.truncated_sstables = sstables.iter().map(|own| own.generation().to_string()).collect();
        })
        .await?;
        for (tablet, memtables, set) in &void {
            let gone: Vec<_> = set.iter().cloned().collect();
            tablet.replace(&gone, []);
            for memtable in memtables {
                if let Some(interval) = memtable.logged() {
                    self.log().clean(tablet.slot, interval.last);
                }
                tablet.forget(memtable);
            }
        }
        drop(turns);
        self.delete_files(table, &sstables).await?;
        Ok(record)
    }

    /// Makes void what earlier runs logged on shards that this run does not have. The shards that it has do so by their own replay filters.
    async fn truncate_logs_of_absent_shards(&self, table: &Table, at_micros: i64) -> Result<(), EngineError> {
        if self.config().shard != ShardId(0) {
            return Ok(());
        }
        let running = rt::shard::count() as u16;
        for (shard, _, below) in self.old_log_spans().await?.into_iter().filter(|(shard, ..)| shard.0 >= running) {
            let record = TruncateRecord { at_micros, below };
            self.change_filters_of(table, shard, |filters| filters.truncated = Some(record)).await?;
        }
        Ok(())
    }

    /// What earlier runs have logged and is not known to be safe, by shard.
    pub(crate) async fn old_log_spans(&self) -> Result<Vec<(ShardId, Position, Position)>, EngineError> {
        match self.config().log.dir.parent() {
            Some(root) if !self.is_started() => Ok(commitlog::old_spans(root, rt::shard::count() as u16).await?),
            _ => Ok(Vec::new()),
        }
    }

    pub(crate) fn has_data(&self, table: &Table) -> bool {
        table.tablets().iter().any(|tablet| tablet.memtable_bytes() > 0 || tablet.sstables().len() > 0)
    }

    /// Remembers that the records of these intervals are done with.
    pub(crate) async fn remember_covered(
        &self,
        table: &Table,
        tablet: u32,
        intervals: &[Interval],
    ) -> Result<(), EngineError> {
        let (begun, started) = (self.log_begun(), self.is_started());
        self.change_filters(table, |filters| {
            filters.covered.extend(intervals.iter().map(|interval| (tablet, *interval)));
            // What earlier runs logged was replayed and retired, once the engine has started.
            filters
                .covered
                .retain(|(_, interval)| !started || (same_log(interval.last, begun) && interval.last >= begun));
        })
        .await
    }

    /// Changes this shard's replay filters, on disk first.
    async fn change_filters(&self, table: &Table, change: impl FnOnce(&mut ReplayFilters)) -> Result<(), EngineError> {
        self.change_filters_of(table, self.config().shard, change).await
    }

    async fn change_filters_of(
        &self,
        table: &Table,
        shard: ShardId,
        change: impl FnOnce(&mut ReplayFilters),
    ) -> Result<(), EngineError> {
        let _turn = table.filters_turn.acquire().await.map_err(|_| EngineError::Cancelled)?;
        let mut filters = table.filters_of(shard);
        change(&mut filters);
        self.make_directory(table).await?;
        filters.write(&table.dir, shard, self.config().host_id).await?;
        self.made(Made::ReplayFilters(table.schema().id, shard, filters.sequence));
        table.set_filters(shard, filters);
        Ok(())
    }
}

/// The name of the snapshot that a truncation at this time takes.
pub(crate) fn snapshot_name(schema: &TableSchema, at_micros: i64) -> String {
    format!("truncated-{}-{}", at_micros / 1000, schema.name)
}
