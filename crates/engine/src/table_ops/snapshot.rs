//! Snapshots: hard links to a table's sstables, in `snapshots/<name>/` of its directory.
//! `manifest.json` names all Data files, and `schema.cql` has the statement that creates the
//! table, if the configuration can describe tables. Snapshots stay when their tables are dropped.
//!
//! A snapshot of an administrator takes three steps. Every shard links its sstables into a
//! directory with a temporary name ([`Engine::snapshot`]). When all shards are done, the caller
//! completes the directory, and then gives it its name. So a directory with the name of a
//! snapshot is complete.
//!
//! The snapshots of TRUNCATE and DROP TABLE have their names from the start. Each shard links its
//! sstables before it removes them, and after a crash between two shards the links of the first
//! must still be there.

use crate::engine::Engine;
use crate::error::EngineError;
use crate::table::Table;
use crate::table_dir::{OnMissing, SnapshotWriter, TABLE_SNAPSHOTS, is_snapshot_name, unfinished};
use model::TableId;
use sstable::SstablePath;
use std::path::Path;
use std::rc::Rc;

impl Engine {
    /// Flushes a table and links this shard's sstables into the unfinished snapshot `name`. The
    /// caller ensures that the name is new, and that no other snapshot of this name is taken
    /// meanwhile.
    pub async fn snapshot(&self, table: TableId, name: &str) -> Result<(), EngineError> {
        if !is_snapshot_name(name) {
            return Err(EngineError::SnapshotName(name.to_string()));
        }
        let table = self.table_or_error(table)?;
        self.link_table(&table, &unfinished(&table.dir, name), OnMissing::Fail).await
    }

    /// Writes the manifest and the schema of an unfinished snapshot. Call it on one shard, after
    /// all have linked their sstables.
    pub async fn complete_snapshot(&self, table: TableId, name: &str) -> Result<(), EngineError> {
        let table = self.table_or_error(table)?;
        SnapshotWriter::of(self.config()).describe(&table.schema(), &unfinished(&table.dir, name)).await
    }

    /// Gives a complete snapshot its name.
    pub async fn publish_snapshot(&self, table: TableId, name: &str) -> Result<(), EngineError> {
        let table = self.table_or_error(table)?;
        let snapshots = table.dir.join(TABLE_SNAPSHOTS);
        let (from, to) = (unfinished(&table.dir, name), snapshots.join(name));
        rt::fs::rename(&from, &to).await.map_err(EngineError::io(&to))?;
        for dir in [&snapshots, &table.dir] {
            rt::fs::sync_dir(dir).await.map_err(EngineError::io(dir))?;
        }
        Ok(())
    }

    /// Takes the snapshot of a table whose data is removed next.
    pub(crate) async fn snapshot_table(&self, table: &Rc<Table>, name: &str) -> Result<(), EngineError> {
        let to = table.dir.join(TABLE_SNAPSHOTS).join(name);
        self.renew_directory(table).await?;
        self.link_table(table, &to, OnMissing::Skip).await?;
        SnapshotWriter::of(self.config()).describe(&table.schema(), &to).await
    }

    async fn link_table(&self, table: &Rc<Table>, to: &Path, on_missing: OnMissing) -> Result<(), EngineError> {
        for tablet in table.tablets().iter() {
            self.flush_tablet(table, tablet).await?;
        }
        self.make_directory(table).await?;
        // Removals wait until all files are linked. Compactions continue until they remove inputs.
        let _linking = table.sstable_files.write().await;
        // A dropped table has no sstables any more, and its snapshot would lack all rows.
        let Some(_working) = table.work.enter() else { return Err(EngineError::Cancelled) };
        let places: Vec<SstablePath> = table
            .tablets()
            .iter()
            .flat_map(|tablet| tablet.sstables().iter().map(|own| own.sstable.place().clone()).collect::<Vec<_>>())
            .collect();
        let writer = SnapshotWriter::of(self.config());
        writer.link_all(&table.dir, &places, to, on_missing).await?;
        let unreadable = table.unreadable.places();
        if unreadable.is_empty() {
            return Ok(());
        }
        // They have rows of the table, and might be repaired.
        if on_missing != OnMissing::Fail {
            return writer.link_all(&table.dir, &unreadable, to, OnMissing::Ignore).await;
        }
        let (schema, sstables) = (table.schema(), unreadable.len());
        tracing::warn!(
            keyspace = schema.keyspace, table = schema.name, sstables, to = %to.display(),
            "the snapshot contains sstables that cannot be read"
        );
        writer.link_all(&table.dir, &unreadable, to, on_missing).await
    }
}
