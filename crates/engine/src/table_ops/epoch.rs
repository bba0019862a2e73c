//! The epoch of a table: since which number of the cluster's metadata its data count. What is older was truncated.
//!
//! A TRUNCATE in a cluster begins an epoch. Every shard refuses from then on what was routed by metadata from before, and makes void what it
//! has ([`Engine::truncate_at`]); when all shards of the node have done so, and before any of them takes in something of the new epoch, shard
//! 0 writes it down ([`Engine::begin_epoch`]): a small file per table, replaced durably, `epoch` in the table's directory. So a start that
//! finds an earlier epoch there than the metadata say knows that all that the node has of the table is void, whichever shard it was of and
//! however many shards there are now ([`Engine::catch_up_with_epoch`]). What a node stores by itself is truncated without epochs.

use super::truncate::snapshot_name;
use crate::commitlog::{self, Position};
use crate::datadir::Made;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::table::Table;
use crate::table_dir::{ReplayFilters, SnapshotWriter, TruncateRecord, epoch_file, finish_interrupted, remove_all};
use model::TableId;
use model::schema::TableSchema;
use rt::ShardId;
use rt::sync::GateGuard;
use std::collections::BTreeMap;

impl Engine {
    /// The epoch of a table on this shard; 0 if it was never truncated in a cluster, or is not here.
    pub fn epoch(&self, id: TableId) -> u64 {
        self.table(id).map_or(0, |table| table.epoch.get())
    }

    /// No table of this shard has an epoch beyond this one.
    #[inline]
    pub fn newest_epoch(&self) -> u64 {
        self.epochs_up_to().get()
    }

    /// A table has come to this shard that was truncated before. Unknown tables are ignored.
    pub fn set_epoch(&self, id: TableId, epoch: u64) {
        if let Some(table) = self.table(id) {
            self.raise_epoch(&table, epoch);
        }
    }

    pub(crate) fn raise_epoch(&self, table: &Table, epoch: u64) {
        table.epoch.set(table.epoch.get().max(epoch));
        self.epochs_up_to().set(self.newest_epoch().max(epoch));
    }

    /// Waits until the writes are through or given up that were let in and wait for room: nothing of an earlier epoch comes after them.
    pub(crate) async fn waiting_writes_are_done(&self, table: &Table) {
        table.waiting_writes.take().close().await;
    }

    /// Has truncations of these tables wait until the guards are dropped.
    pub(crate) fn wait_inside(&self, tables: impl Iterator<Item = TableId>) -> Vec<GateGuard> {
        tables.filter_map(|id| self.table(id)?.waiting_writes.borrow().enter()).collect()
    }

    /// Writes down that the epoch has begun, durably. To be called on one shard, when [`Engine::truncate_at`] has returned on all of them and
    /// before anything of the epoch is taken in.
    pub async fn begin_epoch(&self, schema: &TableSchema, epoch: u64) -> Result<(), EngineError> {
        let dir = self.table_dir(schema);
        self.make_directories(&dir).await?;
        epoch_file::write(&dir, epoch, self.config().host_id).await?;
        self.made(Made::Epoch(schema.id, epoch));
        Ok(())
    }

    /// Makes void what the node has of a table if a crash kept it from beginning this epoch; with `auto_snapshot` there is a snapshot of what
    /// was flushed, named after the time `at_micros`. To be called on shard 0 at start, before any shard opens the table and before other
    /// shards open their logs. Whether there was anything to do.
    pub async fn catch_up_with_epoch(
        &self,
        schema: &TableSchema,
        epoch: u64,
        at_micros: i64,
    ) -> Result<bool, EngineError> {
        // This shard has begun a new log.
        self.begin_empty(schema, epoch, &[(self.config().shard, self.log_begun())], at_micros).await
    }

    /// Where the next write to this shard's log will stand, for [`Engine::begin_empty`].
    pub fn log_end(&self) -> (ShardId, Position) {
        (self.config().shard, self.log().position())
    }

    /// Begins the epoch of a table that no shard of this node has open, without anything that the node may have of the table, or of an
    /// earlier table with the same id. `running` says up to where the logs of running shards are void; logs of other shards are void
    /// entirely. `at_micros` is the time of the truncation, for the name of the snapshot. May be called again after an error. To be called on
    /// one shard. False if the epoch had begun before.
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
        let found = finish_interrupted(&dir, self.config()).await?;
        if self.config().auto_snapshot && !found.places.is_empty() {
            SnapshotWriter::of(self.config())
                .take(schema, &dir, &found.places, &snapshot_name(schema, at_micros))
                .await?;
        }
        self.make_directories(&dir).await?;
        // Replay leaves out what any shard has logged, also one that is no more.
        let mut ends: BTreeMap<ShardId, Position> = self.log_ends().await?.into_iter().collect();
        ends.extend(running.iter().copied());
        let mut filters: BTreeMap<ShardId, ReplayFilters> = found.filters.into_iter().collect();
        let mut marked = Vec::new();
        for (shard, below) in ends {
            let filters = filters.entry(shard).or_default();
            filters.truncated = Some(TruncateRecord { at_micros, below });
            filters.write(&dir, shard, host).await?;
            marked.push(Made::ReplayFilters(schema.id, shard, filters.sequence));
        }
        remove_all(&dir, &found.places).await?;
        epoch_file::write(&dir, epoch, self.config().host_id).await?;
        self.made(Made::Emptied(schema.id, epoch));
        marked.into_iter().for_each(|made| self.made(made));
        if !found.places.is_empty() {
            tracing::info!(
                keyspace = schema.keyspace,
                table = schema.name,
                epoch,
                sstables = found.places.len(),
                "removed sstables from before the epoch of a table"
            );
        }
        Ok(true)
    }

    /// Positions behind all that the logs on disk hold, of every shard that has any.
    async fn log_ends(&self) -> Result<Vec<(ShardId, Position)>, EngineError> {
        match self.config().log.dir.parent() {
            Some(root) => Ok(commitlog::ends(root).await?),
            None => Ok(Vec::new()),
        }
    }
}
