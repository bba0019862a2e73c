//! The epoch of a table: the number of the cluster's metadata from which on its data counts.
//! Older data was truncated.
//!
//! A TRUNCATE in a cluster begins an epoch:
//!
//! 1. Every shard refuses requests that are based on older metadata, and truncates
//!    ([`Engine::truncate_at`]).
//! 2. When all shards of the node have done so, shard 0 writes the file `epoch` in the table's
//!    directory ([`Engine::begin_epoch`]). Only then do shards accept data of the new epoch.
//!
//! At startup, if the file has an earlier epoch than the metadata, the node discards all its data
//! of the table ([`Engine::catch_up_with_epoch`]). This includes data of all former shards. Tables
//! that are local to a node are truncated without epochs.

use super::truncate::snapshot_name;
use crate::commitlog::{self, Position};
use crate::datadir::Made;
use crate::engine::{Engine, TabletRange};
use crate::error::EngineError;
use crate::table::Table;
use crate::table_dir::{ReplayFilters, SnapshotWriter, TruncateRecord, epoch_file, finish_interrupted};
use model::TableId;
use model::schema::TableSchema;
use rt::ShardId;
use rt::sync::GateGuard;
use std::collections::BTreeMap;
use std::rc::Rc;

impl Engine {
    /// The epoch of a table on this shard; 0 if it was never truncated in a cluster, or is not
    /// here.
    pub fn epoch(&self, id: TableId) -> u64 {
        self.table(id).map_or(0, |table| table.epoch.get())
    }

    /// The newest epoch of all tables on this shard.
    #[inline]
    pub fn newest_epoch(&self) -> u64 {
        self.epochs_up_to().get()
    }

    /// Sets the epoch of a table that was truncated before it was added. Unknown tables are
    /// ignored.
    pub fn set_epoch(&self, id: TableId, epoch: u64) {
        if let Some(table) = self.table(id) {
            self.raise_epoch(&table, epoch);
        }
    }

    pub(crate) fn raise_epoch(&self, table: &Table, epoch: u64) {
        table.epoch.set(table.epoch.get().max(epoch));
        self.epochs_up_to().set(self.newest_epoch().max(epoch));
        debug_assert!(table.epoch.get() <= self.newest_epoch(), "no table is ahead of the newest epoch");
    }

    /// Waits until all admitted writes that wait for room are applied or refused: no write of an
    /// earlier epoch follows.
    pub(crate) async fn waiting_writes_are_done(&self, table: &Table) {
        table.waiting_writes.earlier_have_left().await;
    }

    /// Delays truncations of these tables until the guards are dropped.
    pub(crate) fn wait_inside(&self, tables: impl Iterator<Item = TableId>) -> Vec<GateGuard> {
        tables.filter_map(|id| Some(self.table(id)?.waiting_writes.enter())).collect()
    }

    /// Records durably that the epoch has begun. Call it on one shard, after
    /// [`Engine::truncate_at`] has returned on all of them, and before any accepts data of the
    /// epoch.
    pub async fn begin_epoch(&self, schema: &TableSchema, epoch: u64) -> Result<(), EngineError> {
        let dir = self.table_dir(schema);
        self.make_directories(&dir).await?;
        epoch_file::write(&dir, epoch, self.config().host_id).await?;
        self.made(Made::Epoch(schema.id, epoch));
        Ok(())
    }

    /// Discards the node's data of a table if a crash interrupted the truncation to this epoch.
    /// With `auto_snapshot`, the data gets a snapshot that is named after the time `at_micros`
    /// (microseconds since 1970), also rows that are only in the logs. `tablets` are all tablets of
    /// the table on this node. Call it on shard 0 at start, before any shard opens the table and
    /// before other shards open their logs. May be called again after an error. Whether there was
    /// anything to discard.
    pub async fn catch_up_with_epoch(
        &self,
        schema: &Rc<TableSchema>,
        tablets: &[TabletRange],
        epoch: u64,
        at_micros: i64,
    ) -> Result<bool, EngineError> {
        let dir = self.table_dir(schema);
        if self.config().auto_snapshot && epoch_file::begun(&dir, self.config().host_id).await? < epoch {
            let found = finish_interrupted(&dir, self.config()).await?;
            let written = self.write_logged_rows(schema, &dir, tablets, &found).await?;
            if !written.is_empty() {
                tracing::info!(
                    keyspace = schema.keyspace,
                    table = schema.name,
                    sstables = written.len(),
                    "wrote the rows of a truncated table that were only in the commitlog to sstables for its snapshot"
                );
            }
        }
        // This shard has begun a new log.
        self.begin_empty(schema, epoch, &[(self.config().shard, self.log_begun())], at_micros).await
    }

    /// The position of the next write to this shard's log, for [`Engine::begin_empty`].
    pub fn log_end(&self) -> (ShardId, Position) {
        (self.config().shard, self.log().position())
    }

    /// Begins the epoch of a table that no shard of this node has open. Discards all data of the
    /// table, and of an earlier table with the same id, on this node. `running` gives the positions
    /// below which the logs of running shards are discarded; logs of other shards are discarded
    /// entirely. `at_micros` is the time of the truncation in microseconds since 1970, for the name
    /// of the snapshot. May be called again after an error. Call it on one shard. False if the
    /// epoch had begun before.
    pub async fn begin_empty(
        &self,
        schema: &TableSchema,
        epoch: u64,
        running: &[(ShardId, Position)],
        at_micros: i64,
    ) -> Result<bool, EngineError> {
        let dir = self.table_dir(schema);
        let host = self.config().host_id;
        if epoch_file::begun(&dir, host).await? >= epoch {
            return Ok(false);
        }
        let mut found = finish_interrupted(&dir, self.config()).await?;
        // An incomplete sstable would be loaded after its repair.
        let mut sstables = found.places.clone();
        sstables.extend(found.incomplete.iter().map(|incomplete| incomplete.place.clone()));
        if self.config().auto_snapshot && !sstables.is_empty() {
            SnapshotWriter::of(self.config()).take(schema, &dir, &sstables, &snapshot_name(schema, at_micros)).await?;
        }
        self.make_directories(&dir).await?;
        // The truncation applies to the logs of all shards, including shards that no longer exist:
        // replay skips their older records of this table.
        let mut ends: BTreeMap<ShardId, Position> = self.log_ends().await?.into_iter().collect();
        ends.extend(running.iter().copied());
        let mut filters: BTreeMap<ShardId, ReplayFilters> = found.filters.drain(..).collect();
        let mut marked = Vec::new();
        for (shard, below) in ends {
            let filters = filters.entry(shard).or_default();
            filters.truncated = Some(TruncateRecord { at_micros, below });
            filters.write(&dir, shard, host).await?;
            marked.push(Made::ReplayFilters(schema.id, shard, filters.sequence));
        }
        found.lists.forget(&dir, host, &found.missing).await?;
        found.remove(&dir, self.config(), &sstables).await?;
        epoch_file::write(&dir, epoch, self.config().host_id).await?;
        self.made(Made::Emptied(schema.id, epoch));
        marked.into_iter().for_each(|made| self.made(made));
        if !sstables.is_empty() {
            tracing::info!(
                keyspace = schema.keyspace,
                table = schema.name,
                epoch,
                sstables = sstables.len(),
                "the table was truncated: removed its sstables of earlier epochs"
            );
        }
        Ok(true)
    }

    /// The ends of the logs on disk, of every shard that has any.
    async fn log_ends(&self) -> Result<Vec<(ShardId, Position)>, EngineError> {
        match self.config().log.dir.parent() {
            Some(root) => Ok(commitlog::ends(root).await?),
            None => Ok(Vec::new()),
        }
    }
}
