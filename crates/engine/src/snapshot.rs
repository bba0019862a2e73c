//! Snapshots: hard links to a table's sstables, in `snapshots/<name>/` of its directory.
//!
//! Each shard links its own sstables; whoever comes last leaves a `manifest.json` that names all Data files, and `schema.cql`
//! says how to make the table, if the configuration knows how to describe one.

use crate::datadir::TABLE_SNAPSHOTS;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::open::names_in;
use crate::table::Table;
use model::TableId;
use model::schema::TableSchema;
use sstable::{Component, Place};
use std::io;
use std::path::Path;
use std::rc::Rc;

const MANIFEST: &str = "manifest.json";
const SCHEMA: &str = "schema.cql";
/// The most times the manifest is written anew because another shard linked more.
const MANIFEST_TRIES: u32 = 100;

impl Engine {
    /// Flushes a table and links its sstables into the snapshot `name`. The same name may be used by every shard of the node; the
    /// caller makes sure that it is a new one.
    pub async fn snapshot(&self, table: TableId, name: &str) -> Result<(), EngineError> {
        if !is_snapshot_name(name) {
            return Err(EngineError::SnapshotName(name.to_string()));
        }
        let table = self.table_or_error(table)?;
        self.snapshot_table(&table, name).await
    }

    pub(crate) async fn snapshot_table(&self, table: &Rc<Table>, name: &str) -> Result<(), EngineError> {
        for tablet in table.tablets().iter() {
            self.flush_tablet(table, tablet).await?;
        }
        self.make_directory(table).await?;
        // Without compactions nothing is unlinked while it is linked.
        let _paused = table.pause_compactions();
        table.stop_compactions().await;
        let places: Vec<Place> = table
            .tablets()
            .iter()
            .flat_map(|tablet| tablet.sstables().iter().map(|own| own.sstable.place().clone()).collect::<Vec<_>>())
            .collect();
        self.snapshot_files(&table.schema(), &table.dir, &places, name).await
    }

    /// Links sstables of a table's directory into its snapshot `name`. Nobody may remove them meanwhile.
    pub(crate) async fn snapshot_files(
        &self,
        schema: &TableSchema,
        dir: &Path,
        places: &[Place],
        name: &str,
    ) -> Result<(), EngineError> {
        let to = dir.join(TABLE_SNAPSHOTS).join(name);
        rt::fs::create_dir_all(&to).await.map_err(EngineError::io(&to))?;
        let files = names_in(dir).await?;
        for place in places {
            self.link(&files, place, &to).await?;
        }
        if let Some(describe) = self.config().describe {
            let path = to.join(format!("{SCHEMA}-{}", self.config().shard));
            let text = describe(schema);
            rt::fs::write_durably(&path, text.as_bytes()).await.map_err(EngineError::io(&path))?;
            rt::fs::rename(&path, &to.join(SCHEMA)).await.map_err(EngineError::io(&path))?;
        }
        self.write_manifest(&to).await?;
        for dir in [to.as_path(), &dir.join(TABLE_SNAPSHOTS), dir] {
            rt::fs::sync_dir(dir).await.map_err(EngineError::io(dir))?;
        }
        Ok(())
    }
}

impl Engine {
    /// Removes snapshots of a table: the named one, or all. Those that do not exist are no error.
    pub async fn clear_snapshot(&self, table: TableId, name: Option<&str>) -> Result<(), EngineError> {
        let table = self.table_or_error(table)?;
        let mut dir = table.dir.join(TABLE_SNAPSHOTS);
        if let Some(name) = name {
            if !is_snapshot_name(name) {
                return Err(EngineError::SnapshotName(name.to_string()));
            }
            dir = dir.join(name);
        }
        match rt::fs::remove_dir_all(&dir).await {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(EngineError::io(dir)(error)),
            _ => Ok(()),
        }
    }

    /// Links all components of an sstable, its table of contents last.
    async fn link(&self, files: &[String], place: &Place, to: &Path) -> Result<(), EngineError> {
        let prefix = file_name(&place.path(Component::Toc)).replace(Component::Toc.name(), "");
        let mut own: Vec<&String> = files.iter().filter(|name| name.starts_with(&prefix)).collect();
        own.sort_by_key(|name| name.ends_with(Component::Toc.name()));
        for name in own {
            let target = to.join(name);
            match rt::fs::hard_link(&place.dir.join(name), &target).await {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                    return Err(EngineError::io(target)(error));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Names all Data files of a snapshot in its manifest. Every shard does so; what one misses, the other has seen.
    async fn write_manifest(&self, dir: &Path) -> Result<(), EngineError> {
        for _ in 0..MANIFEST_TRIES {
            let files = data_files(dir).await?;
            let text = serde_json::json!({ "files": files }).to_string() + "\n";
            let own = dir.join(format!("{MANIFEST}-{}", self.config().shard));
            rt::fs::write_durably(&own, text.as_bytes()).await.map_err(EngineError::io(&own))?;
            rt::fs::rename(&own, &dir.join(MANIFEST)).await.map_err(EngineError::io(&own))?;
            if data_files(dir).await? == files {
                break;
            }
        }
        Ok(())
    }
}

async fn data_files(dir: &Path) -> Result<Vec<String>, EngineError> {
    let mut names = names_in(dir).await?;
    names.retain(|name| name.ends_with(&format!("-{}", Component::Data.name())));
    names.sort();
    Ok(names)
}

fn file_name(path: &Path) -> String {
    path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

/// Letters, digits, `-`, `_` and `.`, so that a name cannot leave the directory.
fn is_snapshot_name(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= 200
        && !name.starts_with('.')
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
}
