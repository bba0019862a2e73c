//! Hard links to sstables of a table in a directory of its snapshots, with a manifest and a
//! schema.

use super::{TABLE_SNAPSHOTS, is_absent, names_in};
use crate::config::{DescribeSchema, EngineConfig};
use crate::error::EngineError;
use model::schema::TableSchema;
use rt::ShardId;
use sstable::{Component, SstablePath};
use std::io;
use std::path::{Path, PathBuf};

/// The file that names all Data files of a snapshot.
pub(crate) const MANIFEST: &str = "manifest.json";
const SCHEMA: &str = "schema.cql";
/// The prefix of the directory of an unfinished snapshot, before the snapshot's name.
pub const UNFINISHED_SNAPSHOT: &str = ".unfinished-";
/// How often the manifest is written again because another shard has linked more files.
const MANIFEST_TRIES: u32 = 100;

/// What happens if files of a linked sstable are missing. The node itself removes none meanwhile.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum OnMissing {
    /// The snapshot fails, because it would lack rows.
    Fail,
    /// The remaining files are linked. The table's data is removed next, and files that are already
    /// gone must not prevent that.
    Skip,
    /// The same without a warning. The sstable could not be opened, or another shard has removed
    /// it.
    Ignore,
}

/// Links and describes snapshots for one shard.
pub(crate) struct SnapshotWriter {
    shard: ShardId,
    /// Describes a table as CQL text.
    describe: Option<DescribeSchema>,
}

impl SnapshotWriter {
    /// A writer for the shard of this configuration.
    pub fn of(config: &EngineConfig) -> SnapshotWriter {
        SnapshotWriter { shard: config.shard, describe: config.describe.clone() }
    }

    /// Links sstables that are removed next into the snapshot `name` of their table. No other
    /// operation may remove them meanwhile.
    pub async fn take(
        &self,
        schema: &TableSchema,
        dir: &Path,
        places: &[SstablePath],
        name: &str,
    ) -> Result<(), EngineError> {
        let to = dir.join(TABLE_SNAPSHOTS).join(name);
        self.link_all(dir, places, &to, OnMissing::Skip).await?;
        self.describe(schema, &to).await
    }

    /// Links sstables durably into a directory of their table's snapshots.
    pub async fn link_all(
        &self,
        dir: &Path,
        places: &[SstablePath],
        to: &Path,
        on_missing: OnMissing,
    ) -> Result<(), EngineError> {
        rt::fs::create_dir_all(to).await.map_err(EngineError::io(to))?;
        let files = names_in(dir).await?;
        for place in places {
            self.link(&files, place, to, on_missing).await?;
        }
        for dir in [to, &dir.join(TABLE_SNAPSHOTS), dir] {
            rt::fs::sync_dir(dir).await.map_err(EngineError::io(dir))?;
        }
        Ok(())
    }

    /// Writes `schema.cql` and the manifest of a snapshot.
    pub async fn describe(&self, schema: &TableSchema, to: &Path) -> Result<(), EngineError> {
        if let Some(DescribeSchema(describe)) = &self.describe {
            let path = to.join(format!("{SCHEMA}-{}", self.shard));
            let text = describe(schema);
            rt::fs::write_durably(&path, text.as_bytes()).await.map_err(EngineError::io(&path))?;
            rt::fs::rename(&path, &to.join(SCHEMA)).await.map_err(EngineError::io(&path))?;
        }
        self.write_manifest(to).await?;
        rt::fs::sync_dir(to).await.map_err(EngineError::io(to))
    }

    /// Links all components of an sstable, its table of contents last.
    async fn link(
        &self,
        files: &[String],
        place: &SstablePath,
        to: &Path,
        on_missing: OnMissing,
    ) -> Result<(), EngineError> {
        let prefix = file_name(&place.path(Component::Toc)).replace(Component::Toc.name(), "");
        let mut own: Vec<&String> = files.iter().filter(|name| name.starts_with(&prefix)).collect();
        for component in [Component::Data, Component::Toc] {
            let path = place.path(component);
            if !own.contains(&&file_name(&path)) {
                missing(path, io::ErrorKind::NotFound.into(), on_missing)?;
            }
        }
        own.sort_by_key(|name| name.ends_with(Component::Toc.name()));
        for name in own {
            let (path, target) = (place.dir.join(name), to.join(name));
            match rt::fs::hard_link(&path, &target).await {
                // A directory in the place of a TOC.txt has no rows.
                Err(_) if on_missing != OnMissing::Fail && rt::fs::metadata(&path).await.is_ok_and(|it| it.is_dir) => {}
                // If only the target's directory is missing, the operator has removed the snapshot.
                Err(error) if error.kind() == io::ErrorKind::NotFound && is_absent(&path).await? => {
                    missing(path, error, on_missing)?;
                }
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                    return Err(EngineError::io(target)(error));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Names all Data files of a snapshot in its manifest. Every shard does this, so the last one
    /// names all.
    async fn write_manifest(&self, dir: &Path) -> Result<(), EngineError> {
        for _ in 0..MANIFEST_TRIES {
            let files = data_files(dir).await?;
            let text = serde_json::json!({ "files": files }).to_string() + "\n";
            let own = dir.join(format!("{MANIFEST}-{}", self.shard));
            rt::fs::write_durably(&own, text.as_bytes()).await.map_err(EngineError::io(&own))?;
            rt::fs::rename(&own, &dir.join(MANIFEST)).await.map_err(EngineError::io(&own))?;
            if data_files(dir).await? == files {
                break;
            }
        }
        Ok(())
    }
}

/// Reports a missing file of an sstable that is being linked.
fn missing(path: PathBuf, error: io::Error, on_missing: OnMissing) -> Result<(), EngineError> {
    match on_missing {
        OnMissing::Fail => return Err(EngineError::io(path)(error)),
        OnMissing::Skip => {
            tracing::warn!(file = %path.display(), "file of an sstable is missing: the snapshot of the removed data lacks its rows");
        }
        OnMissing::Ignore => {}
    }
    Ok(())
}

/// The directory of the unfinished snapshot `name` of a table. No valid name has this prefix.
pub(crate) fn unfinished(table_dir: &Path, name: &str) -> PathBuf {
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

/// Whether a name is valid: letters, digits, `-`, `_` and `.`, so that it stays in the directory.
pub fn is_snapshot_name(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= 200
        && !name.starts_with('.')
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
}
