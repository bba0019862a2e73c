//! TRUNCATE: discards all data of a table on this shard that was written before one moment.
//!
//! That moment is when the file of [`ReplayFilters`] is written. The file names the log position
//! below which nothing is replayed, and the truncated sstables. Before it nothing has changed;
//! after it a restart finishes the work. Concurrent writes go to new memtables and stay. In a
//! cluster, writes of the new epoch stay (see `table_ops/epoch.rs`).

use crate::commitlog::{self, Position};
use crate::datadir::Made;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::memtable::Interval;
use crate::table::{Attached, Table, Tablet};
use crate::table_dir::{ReplayFilters, TruncateRecord};
use model::TableId;
use model::schema::TableSchema;
use rt::ShardId;
use std::rc::Rc;

impl Engine {
    /// Removes all data of a table on this shard that was written before the call. It is durable
    /// when the call returns. With `auto_snapshot`, a snapshot is taken first. `at_micros` is the
    /// time of the truncation, in microseconds since 1970. It names the snapshot, so all shards
    /// are given the same.
    pub async fn truncate(&self, id: TableId, at_micros: i64) -> Result<TruncateRecord, EngineError> {
        let table = self.table_or_error(id)?;
        self.detached(move |engine| async move { engine.truncate_table(&table, None, at_micros).await }).await
    }

    /// Like [`Engine::truncate`], in a cluster. No later than the data is removed,
    /// [`Engine::epoch`] admits only requests of this epoch. Writes that were admitted before are
    /// removed with the data. May be called again after an error, as long as no data of the epoch
    /// was accepted.
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
        // The snapshot has all tablets of this shard. Tablets of another epoch do not come later.
        let id = table.schema().id;
        self.hold_tablets(id).await;
        let truncated = self.truncate_held(table, epoch, at_micros).await;
        self.release_tablets(id);
        truncated
    }

    async fn truncate_held(
        &self,
        table: &Rc<Table>,
        epoch: Option<u64>,
        at_micros: i64,
    ) -> Result<TruncateRecord, EngineError> {
        let Some(_working) = table.work.enter() else { return Err(EngineError::Cancelled) };
        let _barrier = table.without_compactions().await;
        if self.config().auto_snapshot {
            self.replay_before_snapshot(table).await?;
        }
        if self.has_data(table) && self.config().auto_snapshot {
            self.snapshot_table(table, &snapshot_name(&table.schema(), at_micros)).await?;
        }
        if let Some(epoch) = epoch {
            self.raise_epoch(table, epoch);
            self.waiting_writes_are_done(table).await;
        }
        if !self.is_started() {
            // The logs of earlier runs may still be replayed: in this run, or in the next one if
            // the old logs are kept.
            table.old_logs_truncated.set(true);
            self.truncate_logs_of_absent_shards(table, at_micros).await?;
        } else if !self.has_data(table) {
            // Everything in the log was flushed and is covered, or was truncated before.
            self.remove_leftovers(table, table.leftovers.places()).await?;
            return Ok(TruncateRecord { at_micros, below: self.log().position() });
        }
        let tablets = table.tablets();
        // A running flush could attach truncated data afterwards.
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
        let mut sstables: Vec<_> = void.iter().flat_map(|(_, _, set)| set.iter().cloned()).collect();
        // The filters must name all other sstables that the next start would load, too: sstables
        // that are still to be removed, that could not be opened, or that are being loaded.
        let unreadable = table.unreadable.places();
        let loading = table.loading.places();
        let given_up = table.given_up.borrow().clone();
        let others =
            table.leftovers.places().into_iter().chain(unreadable.iter().chain(&loading).chain(&given_up).cloned());
        let truncated = others.map(|place| place.generation).chain(sstables.iter().map(|own| own.generation()));
        let names = truncated.map(|generation| generation.to_string()).collect();
        self.change_filters(table, |filters| {
            filters.truncated = Some(record);
            filters.truncated_sstables = names;
            // The record is about this shard's log only.
            for (tablet, ..) in &void {
                let earlier = tablet.earlier_logs.borrow();
                earlier.iter().for_each(|interval| filters.cover(tablet.id, &tablet.range, *interval));
            }
        })
        .await?;
        // Nothing of the table is missing any more. A refresh may have ended meanwhile.
        table.loading.truncated(&loading);
        table.leftovers.add(&given_up);
        table.given_up.borrow_mut().retain(|place| !given_up.contains(place));
        for gone in [&unreadable, &loading] {
            let unreadable = table.unreadable.remove(gone);
            table.leftovers.add(&unreadable);
        }
        for (tablet, memtables, set) in &void {
            let now = tablet.sstables();
            let is_loaded = |own: &&Rc<Attached>| loading.contains(own.sstable.place());
            let loaded: Vec<_> = now.iter().filter(is_loaded).cloned().collect();
            let gone: Vec<_> = set.iter().chain(&loaded).cloned().collect();
            tablet.replace(&gone, []);
            sstables.extend(loaded);
            for memtable in memtables {
                if let Some(interval) = memtable.logged() {
                    self.log().clean(tablet.slot, interval.last);
                }
                tablet.forget(memtable);
            }
        }
        debug_assert!(
            !void.iter().any(|(tablet, ..)| tablet.is_flushing()),
            "nothing that was truncated waits for a flush"
        );
        drop(turns);
        self.delete_files(table, &sstables).await?;
        self.remove_leftovers(table, table.leftovers.places()).await?;
        Ok(record)
    }

    /// Truncates the old logs of shards that this run does not have. Running shards write their
    /// own replay filters.
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

    /// The log spans of earlier runs that may not be durable elsewhere, by shard.
    pub(crate) async fn old_log_spans(&self) -> Result<Vec<(ShardId, Position, Position)>, EngineError> {
        match self.config().log.dir.parent() {
            Some(root) if !self.is_started() => Ok(commitlog::old_spans(root, rt::shard::count() as u16).await?),
            _ => Ok(Vec::new()),
        }
    }

    /// Whether the table may have data on this shard, including sstables that could not be opened.
    pub(crate) fn has_data(&self, table: &Table) -> bool {
        !table.unreadable.is_empty()
            || !table.loading.is_empty()
            || table.tablets().iter().any(|tablet| tablet.memtable_bytes() > 0 || tablet.sstables().len() > 0)
    }

    /// Records that replay skips the records of these intervals.
    pub(crate) async fn remember_covered(
        &self,
        table: &Table,
        tablet: &Tablet,
        intervals: &[Interval],
    ) -> Result<(), EngineError> {
        let started = self.is_started();
        self.change_filters(table, |filters| {
            intervals.iter().for_each(|interval| filters.cover(tablet.id, &tablet.range, *interval));
            // Once the engine has started, the logs of earlier runs were replayed and retired.
            filters.keep_covered(|interval| !started || self.is_of_this_run(interval.last));
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
        self.renew_directory(table).await?;
        filters.write(&table.dir, shard, self.config().host_id).await?;
        self.made(Made::ReplayFilters(table.schema().id, shard, filters.sequence));
        table.set_filters(shard, filters);
        Ok(())
    }
}

/// The name of the snapshot of a truncation at this time.
pub(crate) fn snapshot_name(schema: &TableSchema, at_micros: i64) -> String {
    format!("truncated-{}-{}", at_micros / 1000, schema.name)
}
