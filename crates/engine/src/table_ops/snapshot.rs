//! Snapshots: hard links to a table's sstables, in `snapshots/<name>/` of its directory. `manifest.json` names all Data files, and
//! `schema.cql` says how to make the table, if the configuration knows how to describe one. Snapshots outlive their tables.
//!
//! An administrator's snapshot comes in steps: every shard links its sstables into a directory with a name that no snapshot has
//! ([`Engine::snapshot`]); the caller completes that directory when all shards are done, and then gives it its name. So what has
//! the name of a snapshot is whole. What TRUNCATE and DROP TABLE remove gets its name at once: each shard links before it removes
//! its own data, and a crash between two shards must not take away what the first one has removed already.

use crate::engine::Engine;
use crate::error::EngineError;
use crate::table::Table;
use crate::table_dir::{SnapshotWriter, TABLE_SNAPSHOTS, is_snapshot_name, unfinished};
use model::TableId;
use sstable::SstablePath;
use std::path::Path;
use std::rc::Rc;

impl Engine {
    /// Flushes a table and links this shard's sstables into the unfinished snapshot `name`. The caller makes sure that the name is a new
    /// one, and that nobody else takes a snapshot of this name meanwhile.
    pub async fn snapshot(&self, table: TableId, name: &str) -> Result<(), EngineError> {
        if !is_snapshot_name(name) {
            return Err(EngineError::SnapshotName(name.to_string()));
        }
        let table = self.table_or_error(table)?;
        self.link_table(&table, &unfinished(&table.dir, name)).await
    }

    /// Writes down what an unfinished snapshot holds. To be called on one shard when all have linked their sstables.
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

    pub(crate) async fn snapshot_table(&self, table: &Rc<Table>, name: &str) -> Result<(), EngineError> {
        let to = table.dir.join(TABLE_SNAPSHOTS).join(name);
        self.link_table(table, &to).await?;
        SnapshotWriter::of(self.config()).describe(&table.schema(), &to).await
    }

    async fn link_table(&self, table: &Rc<Table>, to: &Path) -> Result<(), EngineError> {
        for tablet in table.tablets().iter() {
            self.flush_tablet(table, tablet).await?;
        }
        self.make_directory(table).await?;
        // Without compactions nothing is unlinked while it is linked.
        let _paused = table.pause_compactions();
        table.stop_compactions().await;
        let places: Vec<SstablePath> = table
            .tablets()
            .iter()
            .flat_map(|tablet| tablet.sstables().iter().map(|own| own.sstable.place().clone()).collect::<Vec<_>>())
            .collect();
        SnapshotWriter::of(self.config()).link_all(&table.dir, &places, to).await
    }
}
