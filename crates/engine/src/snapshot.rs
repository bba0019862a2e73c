//! Snapshots: hard links to a table's sstables, in `snapshots/<name>/` of its directory. `manifest.json` names all Data files, and
//! `schema.cql` says how to make the table, if the configuration knows how to describe one. Snapshots outlive their tables.
//!
//! An administrator's snapshot comes in steps: every shard links its sstables into a directory with a name that no snapshot has
//! ([`Engine::snapshot`]); the caller completes that directory when all shards are done, and then gives it its name. So what has
//! the name of a snapshot is whole. What TRUNCATE and DROP TABLE remove gets its name at once: each shard links before it removes
//! its own data, and a crash between two shards must not take away what the first one has removed already.

use crate::config::DescribeSchema;
use crate::datadir::TABLE_SNAPSHOTS;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::open::names_in;
use crate::table::Table;
use model::TableId;
use model::schema::TableSchema;
use sstable::{Component, SstablePath};
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// The name of the file that names all Data files of a snapshot.
pub(crate) const MANIFEST: &str = "manifest.json";
const SCHEMA: &str = "schema.cql";
/// What the directory of an unfinished snapshot is called, before the snapshot's name.
pub const UNFINISHED_SNAPSHOT: &str = ".unfinished-";
/// The most times the manifest is written anew because another shard linked more.
const MANIFEST_TRIES: u32 = 100;

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
        self.describe_snapshot(&table.schema(), &unfinished(&table.dir, name)).await
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
        self.describe_snapshot(&table.schema(), &to).await
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
        self.link_all(&table.dir, &places, to).await
    }

    /// Links sstables of a table's directory into its snapshot `name`. Nobody may remove them meanwhile.
    pub(crate) async fn snapshot_files(
        &self,
        schema: &TableSchema,
        dir: &Path,
        places: &[SstablePath],
        name: &str,
    ) -> Result<(), EngineError> {
        let to = dir.join(TABLE_SNAPSHOTS).join(name);
        self.link_all(dir, places, &to).await?;
        self.describe_snapshot(schema, &to).await
    }

    /// Links sstables of a table's directory into a directory of its snapshots, durably.
    async fn link_all(&self, dir: &Path, places: &[SstablePath], to: &Path) -> Result<(), EngineError> {
        rt::fs::create_dir_all(to).await.map_err(EngineError::io(to))?;
        let files = names_in(dir).await?;
        for place in places {
            self.link(&files, place, to).await?;
        }
        for dir in [to, &dir.join(TABLE_SNAPSHOTS), dir] {
            rt::fs::sync_dir(dir).await.map_err(EngineError::io(dir))?;
        }
        Ok(())
    }

    /// Writes `schema.cql` and the manifest of a snapshot.
    async fn describe_snapshot(&self, schema: &TableSchema, to: &Path) -> Result<(), EngineError> {
        if let Some(DescribeSchema(describe)) = &self.config().describe {
            let path = to.join(format!("{SCHEMA}-{}", self.config().shard));
            let text = describe(schema);
            rt::fs::write_durably(&path, text.as_bytes()).await.map_err(EngineError::io(&path))?;
            rt::fs::rename(&path, &to.join(SCHEMA)).await.map_err(EngineError::io(&path))?;
        }
        self.write_manifest(to).await?;
        rt::fs::sync_dir(to).await.map_err(EngineError::io(to))
    }

    /// Links all components of an sstable, its table of contents last.
    async fn link(&self, files: &[String], place: &SstablePath, to: &Path) -> Result<(), EngineError> {
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

/// Where the unfinished snapshot `name` of a table is. No snapshot's name begins so.
fn unfinished(table_dir: &Path, name: &str) -> PathBuf {
    table_dir.join(TABLE_SNAPSHOTS).join(format!("{UNFINISHED_SNAPSHOT}{name}"))
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
pub fn is_snapshot_name(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= 200
        && !name.starts_with('.')
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
}
