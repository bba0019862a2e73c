//! DROP TABLE: removes a table from this shard, then its files.
//!
//! Replay needs no record of it: records of unknown tables are skipped. A later table with the
//! same id begins with an epoch, which discards the earlier records ([`Engine::begin_empty`]).
//!
//! All shards share the directory. It is removed after all of them have dropped the table
//! ([`Engine::remove_directory`]), except for snapshots. After a crash, the next start removes
//! the rest ([`Engine::sweep_dropped`]), but only for tables that the caller knows as dropped: an
//! unknown directory is never removed.
//!
//! Sstables that could not be opened are removed like the others. With `auto_snapshot` the
//! snapshot has them: they may be repaired.

use crate::deletion_log::{QUARANTINE, UPLOAD};
use crate::engine::Engine;
use crate::error::EngineError;
use crate::table::Table;
use crate::table_dir::{STREAMING, SnapshotWriter, TABLE_SNAPSHOTS, finish_interrupted, is_absent, remove_tree};
use model::TableId;
use model::schema::TableSchema;
use sstable::{Component, SstablePath};
use std::io;
use std::path::Path;
use std::rc::Rc;

impl Engine {
    /// Removes a table and its data from this shard. With `auto_snapshot`, a snapshot is taken
    /// first. `at_micros` is the time of the drop, in microseconds since 1970. It names the
    /// snapshot, so all shards are given the same. Open readers continue. May be called again
    /// after an error; `NoSuchTable` then means that only files are left, which
    /// [`Engine::sweep_dropped`] removes.
    pub async fn drop_table(&self, id: TableId, at_micros: i64) -> Result<(), EngineError> {
        let table = self.table_or_error(id)?;
        self.detached(move |engine| async move { engine.drop_whole(&table, at_micros).await }).await
    }

    async fn drop_whole(&self, table: &Rc<Table>, at_micros: i64) -> Result<(), EngineError> {
        let _barrier = table.without_compactions().await;
        if self.config().auto_snapshot {
            self.replay_before_snapshot(table).await?;
        }
        if self.config().auto_snapshot && self.has_data(table) {
            self.snapshot_table(table, &snapshot_name(&table.schema(), at_micros)).await?;
        }
        // Refuses flushes from now on, and waits for running ones.
        table.work.close().await;
        if self.registry().remove(table.schema().id).is_none() {
            return Ok(());
        }
        // A later table with the same id has other sstables.
        self.prepared().borrow_mut().remove(&table.schema().id);
        let mut sstables = Vec::new();
        for tablet in table.served_and_removing() {
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
        table.leftovers.add(&table.unreadable.remove(&table.unreadable.places()));
        let deleted = async {
            self.delete_files(table, &sstables).await?;
            self.remove_leftovers(table, table.leftovers.places()).await
        };
        match deleted.await {
            // Not even the record of a removal can be written, and nothing is left to remove.
            Err(error) if is_absent(&table.dir).await? => {
                tracing::warn!(dir = %table.dir.display(), %error, "the directory of a dropped table does not exist any more");
                Ok(())
            }
            other => other,
        }
    }

    /// Removes the directory of a table that every shard has dropped. Snapshots stay. An error if
    /// an sstable is left in it, which [`Engine::sweep_dropped`] removes. Call it once, on one
    /// shard.
    pub async fn remove_directory(&self, schema: &TableSchema) -> Result<(), EngineError> {
        remove_directory(&self.table_dir(schema)).await
    }

    /// Removes what an interrupted drop has left of a table: its sstables and its directory.
    /// Snapshots stay, and with `auto_snapshot` these sstables get one, too. It lacks rows that are
    /// only in the logs: nothing shows whether the drop had already saved them. `schema` is the
    /// table when it was dropped, `at_micros` the time for the name of the snapshot. Call it on
    /// one shard, at start before any shard opens its tables, or when no shard has the table any
    /// more. False if nothing was left.
    pub async fn sweep_dropped(&self, schema: &TableSchema, at_micros: i64) -> Result<bool, EngineError> {
        let dir = self.table_dir(schema);
        let left = match rt::fs::read_dir(&dir).await {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                sync_removal(&dir).await?;
                return Ok(false);
            }
            Err(error) => return Err(EngineError::io(dir)(error)),
        };
        if !left.is_empty()
            && left
                .iter()
                .all(|entry| entry.is_dir && [TABLE_SNAPSHOTS, UPLOAD, QUARANTINE].contains(&entry.name.as_str()))
        {
            sync_removal(&dir).await?;
            return Ok(false);
        }
        let mut left = finish_interrupted(&dir, self.config()).await?;
        let mut sstables = left.places.clone();
        sstables.extend(left.incomplete.iter().map(|incomplete| incomplete.place.clone()));
        if self.config().auto_snapshot && !sstables.is_empty() {
            SnapshotWriter::of(self.config()).take(schema, &dir, &sstables, &snapshot_name(schema, at_micros)).await?;
        }
        left.remove(&dir, self.config(), &sstables).await?;
        remove_directory(&dir).await?;
        tracing::info!(keyspace = schema.keyspace, table = schema.name, table_id = %schema.id, sstables = sstables.len(),
            "removed the remains of a dropped table after a crash");
        Ok(true)
    }
}

/// The name of the snapshot of a drop at this time.
fn snapshot_name(schema: &TableSchema, at_micros: i64) -> String {
    format!("dropped-{}-{}", at_micros / 1000, schema.name)
}

async fn remove_directory(dir: &Path) -> Result<(), EngineError> {
    remove_tree(&dir.join(STREAMING)).await?;
    // Files of an operator stay.
    let uploads = dir.join(UPLOAD);
    if rt::fs::read_dir(&uploads).await.is_ok_and(|left| left.is_empty()) {
        rt::fs::remove_dir_all(&uploads).await.map_err(EngineError::io(&uploads))?;
    }
    let entries = match rt::fs::read_dir(dir).await {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return sync_removal(dir).await,
        Err(error) => return Err(EngineError::io(dir)(error)),
    };
    // This includes an sstable that has lost its table of contents: only unfinished sstables have
    // the mark.
    let is_unfinished =
        |place: &SstablePath| entries.iter().any(|entry| entry.name == place.file_name(Component::TemporaryToc.name()));
    let mut places = entries.iter().filter_map(|entry| SstablePath::parse_name(dir, &entry.name));
    if let Some((place, component)) =
        places.find(|(place, component)| *component == Component::Toc || !is_unfinished(place))
    {
        return Err(EngineError::NotDropped(place.path(component)));
    }
    let removed = if entries.iter().any(|entry| entry.is_dir) {
        let mut removed = Ok(());
        for entry in entries.iter().filter(|entry| !entry.is_dir) {
            match rt::fs::remove_file(&dir.join(&entry.name)).await {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                done => removed = removed.and(done),
            }
        }
        removed
    } else {
        rt::fs::remove_dir_all(dir).await
    };
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(EngineError::io(dir)(error)),
        _ => {}
    }
    sync_removal(dir).await
}

/// Makes removals in a table's directory durable, also removals by an earlier process that was
/// killed. The log may drop the table after this, so its files must not return after a power loss.
async fn sync_removal(dir: &Path) -> Result<(), EngineError> {
    let is_gone = is_absent(dir).await?;
    let Some(gone_from) = (if is_gone { dir.parent() } else { Some(dir) }) else { return Ok(()) };
    match rt::fs::sync_dir(gone_from).await {
        // The keyspace has no directory either, so there is nothing to sync.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other.map_err(EngineError::io(gone_from)),
    }
}
