//! The epoch of a table: since which number of the cluster's metadata its data count. What is older was truncated.
//!
//! A TRUNCATE in a cluster begins an epoch. Every shard refuses from then on what was routed by metadata from before, and makes void what it
//! has ([`Engine::truncate_at`]); when all shards of the node have done so, and before any of them takes in something of the new epoch, shard
//! 0 writes it down ([`Engine::begin_epoch`]): a small file per table, replaced durably, `epoch` in the table's directory. So a start that
//! finds an earlier epoch there than the metadata say knows that all that the node has of the table is void, whichever shard it was of and
//! however many shards there are now ([`Engine::catch_up_with_epoch`]). What a node stores by itself is truncated without epochs.

use crate::commitlog::{self, Position};
use crate::datadir::Made;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::marks::{Marks, TruncateRecord};
use crate::open::remove_all;
use crate::owner::FileOwner;
use crate::sealed::{self, Unusable};
use crate::table::Table;
use crate::truncate::snapshot_name;
use model::schema::TableSchema;
use model::{HostId, TableId};
use rt::ShardId;
use rt::sync::GateGuard;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

const KIND: &str = "epoch";
const FORMAT: u32 = 1;
const FILE: &str = "epoch";

/// What the file holds, for messages.
pub(crate) const HOLDS: &str =
    "the proof that the rows of the table are not truncated ones: without it this node removes all it has of the table";

/// What the file says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Written {
    epoch: u64,
    /// Whose file it is: another node may have removed what this one has not. `None` by an earlier
    /// state of the development.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    owner: Option<FileOwner>,
}

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
        self.write_epoch(&dir, epoch).await?;
        self.made(Made::Epoch(schema.id, epoch));
        Ok(())
    }

    async fn write_epoch(&self, dir: &Path, epoch: u64) -> Result<(), EngineError> {
        let path = epoch_path(dir);
        let owner = Some(FileOwner::of_files_in(dir, self.config().host_id));
        sealed::write(&path, KIND, FORMAT, &Written { epoch, owner }).await.map_err(EngineError::io(path))
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
        if begun(&dir, host).await? >= epoch {
            return Ok(false);
        }
        let found = self.finish_interrupted(&dir).await?;
        if self.config().auto_snapshot && !found.places.is_empty() {
            self.snapshot_files(schema, &dir, &found.places, &snapshot_name(schema, at_micros)).await?;
        }
        self.make_directories(&dir).await?;
        // Replay leaves out what any shard has logged, also one that is no more.
        let mut ends: BTreeMap<ShardId, Position> = self.log_ends().await?.into_iter().collect();
        ends.extend(running.iter().copied());
        let mut marks: BTreeMap<ShardId, Marks> = found.marks.into_iter().collect();
        let mut marked = Vec::new();
        for (shard, below) in ends {
            let marks = marks.entry(shard).or_default();
            marks.truncated = Some(TruncateRecord { at_micros, below });
            marks.write(&dir, shard, host).await?;
            marked.push(Made::Marks(schema.id, shard, marks.sequence));
        }
        remove_all(&dir, &found.places).await?;
        self.write_epoch(&dir, epoch).await?;
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

/// The file in a table's directory that says which epoch the node has begun.
pub(crate) fn epoch_path(dir: &Path) -> PathBuf {
    dir.join(FILE)
}

/// The epoch that the node `host` has begun last, by a table's directory.
async fn begun(dir: &Path, host: HostId) -> Result<u64, EngineError> {
    let path = epoch_path(dir);
    match read_at(&path, host).await.map_err(EngineError::io(&path))? {
        Ok(written) => Ok(written.epoch),
        Err(Unusable { is_there: false, .. }) => Ok(0),
        Err(Unusable { why, .. }) => Err(EngineError::Damaged { path, why, holds: HOLDS }),
    }
}

async fn read_at(path: &Path, host: HostId) -> io::Result<Result<Written, Unusable>> {
    let owner = FileOwner::of_files_in(path.parent().unwrap_or(path), host);
    let read = sealed::read::<Written>(path, KIND, FORMAT).await?;
    Ok(read.and_then(|written| match owner.refuses(written.owner) {
        Some(why) => Err(Unusable { why, is_there: true }),
        None => Ok(written),
    }))
}

/// What is wrong with the file of a table that has begun this epoch on the node `host`.
pub(crate) async fn defect(path: &Path, epoch: u64, host: HostId) -> io::Result<Option<Unusable>> {
    Ok(match read_at(path, host).await? {
        Ok(written) if written.epoch >= epoch => None,
        Ok(written) => {
            let why = format!("is older than it was (it has epoch {}, and the table has begun {epoch})", written.epoch);
            Some(Unusable { why, is_there: false })
        }
        Err(unusable) => Some(unusable),
    })
}
