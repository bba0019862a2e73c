//! The epoch of a table: since which number of the cluster's metadata its data count. What is older was truncated.
//!
//! A TRUNCATE in a cluster begins an epoch. Every shard refuses from then on what was routed by metadata from before, and makes void what it
//! has ([`Engine::truncate_at`]); when all shards of the node have done so, and before any of them takes in something of the new epoch, shard
//! 0 writes it down ([`Engine::begin_epoch`]): a small file per table, replaced durably, `epoch` in the table's directory. So a start that
//! finds an earlier epoch there than the metadata say knows that all that the node has of the table is void, whichever shard it was of and
//! however many shards there are now ([`Engine::catch_up_with_epoch`]). A node alone truncates without epochs.

use crate::commitlog::{self, Position};
use crate::engine::Engine;
use crate::error::EngineError;
use crate::marks::Marks;
use crate::open::remove_all;
use crate::sealed;
use crate::table::Table;
use crate::truncate::{TruncateRecord, snapshot_name};
use model::TableId;
use model::schema::TableSchema;
use rt::ShardId;
use rt::sync::GateGuard;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

const KIND: &str = "epoch";
const FORMAT: u32 = 1;
const FILE: &str = "epoch";

/// What the file says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Written {
    epoch: u64,
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
        let path = dir.join(FILE);
        sealed::write(&path, KIND, FORMAT, &Written { epoch }).await.map_err(EngineError::io(path))
    }

    /// Makes void what the node has of a table if a crash kept it from beginning this epoch; with `auto_snapshot` there is a snapshot of what
    /// was flushed. To be called on shard 0 at start, before any shard opens the table and before other shards open their logs. Whether there
    /// was anything to do.
    pub async fn catch_up_with_epoch(&self, schema: &TableSchema, epoch: u64) -> Result<bool, EngineError> {
        let dir = self.table_dir(schema);
        if begun(&dir).await? >= epoch {
            return Ok(false);
        }
        let found = self.finish_interrupted(&dir).await?;
        if self.config().auto_snapshot && !found.places.is_empty() {
            self.snapshot_files(schema, &dir, &found.places, &snapshot_name(schema)).await?;
        }
        self.make_directories(&dir).await?;
        // Replay leaves out what any shard has logged, also one that is no more.
        let mut marks: BTreeMap<ShardId, Marks> = found.marks.into_iter().collect();
        for (shard, below) in self.ends_of_old_logs().await? {
            let marks = marks.entry(shard).or_default();
            marks.truncated = Some(TruncateRecord { at_micros: rt::time::wall_micros(), below });
            marks.write(&dir, shard).await?;
        }
        remove_all(&dir, &found.places).await?;
        self.begin_epoch(schema, epoch).await?;
        tracing::info!(
            keyspace = schema.keyspace,
            table = schema.name,
            epoch,
            sstables = found.places.len(),
            "finished a TRUNCATE that was interrupted"
        );
        Ok(true)
    }

    /// Where the logs of earlier runs end, of every shard that has any.
    async fn ends_of_old_logs(&self) -> Result<BTreeMap<ShardId, Position>, EngineError> {
        let mut ends = BTreeMap::new();
        if let Some(root) = self.config().log.dir.parent() {
            ends.extend(commitlog::ends(root).await?);
        }
        // This shard has begun a new one.
        ends.insert(self.config().shard, self.log_begun());
        Ok(ends)
    }
}

/// The epoch that a node has begun last, by a table's directory.
async fn begun(dir: &Path) -> Result<u64, EngineError> {
    let path: PathBuf = dir.join(FILE);
    let text = match rt::fs::read(&path).await {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        other => other.map_err(EngineError::io(&path))?,
    };
    let written = sealed::unseal::<Written>(KIND, FORMAT, &text);
    written.map(|written| written.epoch).map_err(|why| EngineError::Damaged { path, why: why.to_string() })
}
