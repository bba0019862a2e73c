//! DROP TABLE: the table leaves this shard at once, its files follow.
//!
//! Nothing has to be remembered for replay: a table's id is never used again, and records of unknown tables are skipped.
//! The directory is every shard's: it goes when all of them have dropped the table ([`Engine::remove_directory`]), but for snapshots.

use crate::engine::Engine;
use crate::error::EngineError;
use crate::table::Table;
use model::TableId;
use model::schema::TableSchema;
use sstable::{Component, Place};
use std::io;
use std::path::Path;
use std::rc::Rc;

impl Engine {
    /// Removes a table and its data from this shard. With `auto_snapshot`, a snapshot is taken first. Readers that are open
    /// may go on.
    pub async fn drop_table(&self, id: TableId) -> Result<(), EngineError> {
        let table = self.table_or_error(id)?;
        self.detached(|engine| async move { engine.drop_whole(&table).await }).await
    }

    async fn drop_whole(&self, table: &Rc<Table>) -> Result<(), EngineError> {
        let _paused = table.pause_compactions();
        table.stop_compactions().await;
        if self.config().auto_snapshot && self.has_data(table) {
            let name = format!("dropped-{}-{}", rt::time::wall_micros() / 1000, table.schema().name);
            self.snapshot_table(table, &name).await?;
        }
        // Refuses flushes from now on, and waits for those that run.
        table.work.close().await;
        if self.remove_table(table.schema().id).is_none() {
            return Ok(());
        }
        let mut sstables = Vec::new();
        for tablet in table.tablets().iter() {
            let set = tablet.sstables();
            let gone: Vec<_> = set.iter().cloned().collect();
            tablet.replace(&gone, []);
            sstables.extend(gone);
            tablet.seal();
            for memtable in tablet.sealed() {
                tablet.forget(&memtable);
            }
            self.log().clean(tablet.slot, crate::commitlog::Position::MAX);
        }
        self.delete_files(table, &sstables).await
    }

    /// Removes the directory of a table that every shard has dropped, unless an sstable is left in it; snapshots stay. To be called
    /// once, on one shard.
    pub async fn remove_directory(&self, schema: &TableSchema) -> Result<(), EngineError> {
        remove_directory(&self.table_dir(schema)).await
    }
}

async fn remove_directory(dir: &Path) -> Result<(), EngineError> {
    let entries = match rt::fs::read_dir(dir).await {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(EngineError::io(dir)(error)),
    };
    let is_sealed = |name: &str| matches!(Place::parse_name(dir, name), Some((_, Component::Toc)));
    if entries.iter().any(|entry| is_sealed(&entry.name)) {
        return Ok(());
    }
    let removed = if entries.iter().any(|entry| entry.is_dir) {
        let mut removed = Ok(());
        for entry in entries.iter().filter(|entry| !entry.is_dir) {
            removed = removed.and(rt::fs::remove_file(&dir.join(&entry.name)).await);
        }
        removed
    } else {
        rt::fs::remove_dir_all(dir).await
    };
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(EngineError::io(dir)(error)),
        _ => Ok(()),
    }
}
