//! Tablets that are added to a shard and removed from it while their table is served.
//!
//! An added tablet is empty: files that an earlier run left of it in the directory are removed
//! first. Files of it that this run has on another shard must have been removed before. A tablet is
//! removed in three steps. Requests no longer find it. Replay filters then skip its log records,
//! because the tablet may return and they must not. Last, its files are removed. After a crash in
//! between, the next start removes the rest ([`Engine::sweep_tablet`]), before any shard opens the
//! table.
//!
//! Both calls may fail at any file operation and are then repeated: a call resumes where the
//! failed one ended. A tablet whose removal failed is no longer in the table, but is kept in
//! [`crate::table::Table::removing`] until its data is removed.

use crate::commitlog::Position;
use crate::engine::{Engine, TabletRange};
use crate::error::EngineError;
use crate::memtable::Interval;
use crate::table::{SstableSet, Table, Tablet};
use crate::table_dir::{SstableKeys, finish_interrupted, remove_all};
use model::TableId;
use model::range::PartitionRange;
use model::schema::TableSchema;
use sstable::{Sstable, SstablePath};
use std::collections::BTreeSet;
use std::path::Path;

impl Engine {
    /// The tablets of a table on this shard; none if the table is not here.
    pub fn tablets_of(&self, id: TableId) -> BTreeSet<u32> {
        self.table(id).map(|table| table.tablets().iter().map(|tablet| tablet.id).collect()).unwrap_or_default()
    }

    /// Adds a tablet without any data. An existing one stays as it is. If an earlier removal of
    /// the tablet failed, that is completed first. May be called again after an error.
    pub async fn add_tablet(&self, id: TableId, tablet: TabletRange) -> Result<(), EngineError> {
        let table = self.table_or_error(id)?;
        if table.tablets().iter().any(|own| own.id == tablet.id) {
            return Ok(());
        }
        if table.removing(tablet.id).is_some() {
            self.remove_tablet(id, tablet.id).await?;
        }
        self.remove_foreign(&table, &tablet.range).await?;
        let tablet_counter_id = self.new_tablet_counter_id(&table, &tablet.range).await?;
        let slot = self.registry().take_slot(id);
        let (pool, rows) = (self.pool().clone(), self.rows().clone());
        let tablet = Tablet::new(tablet.id, tablet.range, slot, pool, rows, SstableSet::default());
        tablet.tablet_counter_id.set(tablet_counter_id);
        table.add_tablet(tablet);
        Ok(())
    }

    /// Sets which tablets of a table are still receiving their data from other nodes. Compaction
    /// purges none of their tombstones. Unknown tables are ignored.
    pub fn set_pending_tablets(&self, id: TableId, pending: &BTreeSet<u32>) {
        let Some(table) = self.table(id) else { return };
        let mut any_completed = false;
        for tablet in table.tablets().iter() {
            let is_pending = pending.contains(&tablet.id);
            any_completed |= tablet.is_pending.replace(is_pending) && !is_pending;
        }
        if any_completed {
            self.compactions().wake();
        }
    }

    /// Removes a tablet with all its data from this shard. Does nothing if it was removed before.
    /// May be called again after an error, and must be until it succeeds: otherwise a restart may
    /// replay writes to the tablet.
    pub async fn remove_tablet(&self, id: TableId, tablet: u32) -> Result<(), EngineError> {
        let table = self.table_or_error(id)?;
        self.detached(move |engine| async move {
            let Some(_working) = table.work.enter() else { return Err(EngineError::Cancelled) };
            let here = table.tablets().iter().find(|own| own.id == tablet).cloned();
            let Some(gone) = here.or_else(|| table.removing(tablet)) else { return Ok(()) };
            // Other tablets of the table are not delayed.
            let _excluded = gone.compactions.exclude().await;
            // A running flush would attach an sstable afterwards, which would stay behind.
            let _turn = gone.flush_turn.acquire().await.map_err(|_| EngineError::Cancelled)?;
            if !table.has(&gone) {
                // Another call has removed it meanwhile. The tablet may have returned since.
                return Ok(());
            }
            table.begin_removal(&gone);
            let mut all = engine.logs_of(&gone);
            // After a crash, old logs that are not retired yet are replayed again.
            let old = engine.old_log_spans().await?;
            all.extend(old.into_iter().map(|(_, first, last)| Interval { first, last }));
            engine.remember_covered(&table, &gone, &all).await?;
            let set = gone.sstables();
            let sstables: Vec<_> = set.iter().cloned().collect();
            gone.seal();
            for memtable in gone.sealed() {
                gone.forget(&memtable);
            }
            gone.unlisted.take();
            engine.log().clean(gone.slot, Position::MAX);
            engine.registry().release_slot(gone.slot);
            // The set is unchanged until the files are removed, for the next call.
            engine.delete_files(&table, &sstables).await?;
            gone.replace(&sstables, []);
            engine.remove_tablet_counter_id(&table, &gone.range).await?;
            table.finish_removal(&gone);
            Ok(())
        })
        .await
    }

    /// Removes what an earlier run has left of a tablet. Other files of the table are not opened.
    async fn remove_foreign(&self, table: &Table, range: &PartitionRange) -> Result<(), EngineError> {
        let is_within = |sstable: &SstableKeys| range.contains(&sstable.first) && range.contains(&sstable.last);
        let left: Vec<SstablePath> =
            table.foreign.borrow().iter().filter(|one| is_within(one)).map(|one| one.place.clone()).collect();
        if !left.is_empty() {
            log_remains(&table.dir, &left);
            // No list names them, since all shards have opened the table.
            remove_all(&table.dir, &left).await?;
            table.foreign.borrow_mut().retain(|sstable| !is_within(sstable));
        }
        Ok(())
    }

    /// Removes what an interrupted removal has left of a tablet. Call it on one shard at start,
    /// before any shard opens the table. Returns the number of sstables.
    pub async fn sweep_tablet(&self, schema: &TableSchema, range: &PartitionRange) -> Result<usize, EngineError> {
        let dir = self.table_dir(schema);
        let mut clean = finish_interrupted(&dir, self.config()).await?;
        let mut left: Vec<SstablePath> = Vec::new();
        for place in clean.places.clone() {
            match Sstable::open_at(&place, self.cache()).await {
                Ok(sstable) if range.contains(sstable.first_key()) && range.contains(sstable.last_key()) => {
                    left.push(place);
                }
                // Unreadable sstables are reported when the table is opened.
                _ => {}
            }
        }
        if !left.is_empty() {
            log_remains(&dir, &left);
            clean.remove(&dir, self.config(), &left).await?;
        }
        Ok(left.len())
    }
}

/// Logs that the remains of a tablet are removed.
fn log_remains(dir: &Path, left: &[SstablePath]) {
    tracing::info!(dir = %dir.display(), sstables = left.len(), "removing the remains of a tablet that this shard does not own");
}
