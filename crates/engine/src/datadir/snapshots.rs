//! The snapshots of tables in a data directory, found by reading it.

use super::table_of_dir_name;
use crate::error::EngineError;
use crate::table_dir::{TABLE_SNAPSHOTS, is_snapshot_name};
use std::io;
use std::path::Path;

/// A snapshot of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundSnapshot {
    /// The table's keyspace.
    pub keyspace: String,
    /// The table's name.
    pub table: String,
    /// The snapshot's name.
    pub name: String,
    /// Bytes of the files that only the snapshot keeps.
    pub live: u64,
    /// Bytes of all its files.
    pub total: u64,
}

/// The snapshots below `root`, the directory of the keyspaces. `is_wanted` is asked for a keyspace,
/// then for each of its tables; directories of others are not read. A table that was dropped and
/// created again has the snapshots of both.
pub async fn find_snapshots(
    root: &Path,
    is_wanted: impl Fn(&str, Option<&str>) -> bool,
) -> Result<Vec<FoundSnapshot>, EngineError> {
    let mut found = Vec::new();
    for keyspace in directories(root).await?.into_iter().filter(|keyspace| is_wanted(keyspace, None)) {
        for table_dir in directories(&root.join(&keyspace)).await? {
            let Some((table, _)) = table_of_dir_name(&table_dir) else { continue };
            if !is_wanted(&keyspace, Some(table)) {
                continue;
            }
            let dir = root.join(&keyspace).join(&table_dir);
            let living: Vec<String> = files(&dir).await?.into_iter().map(|(name, _)| name).collect();
            for name in directories(&dir.join(TABLE_SNAPSHOTS)).await?.into_iter().filter(|name| is_snapshot_name(name))
            {
                let files = files(&dir.join(TABLE_SNAPSHOTS).join(&name)).await?;
                let total = files.iter().map(|(_, len)| len).sum();
                let live = files.iter().filter(|(name, _)| !living.contains(name)).map(|(_, len)| len).sum();
                found.push(FoundSnapshot { keyspace: keyspace.clone(), table: table.to_owned(), name, live, total });
            }
        }
    }
    Ok(found)
}

/// The contents of a directory. Empty if the directory does not exist.
pub async fn entries(dir: &Path) -> Result<Vec<rt::fs::DirEntry>, EngineError> {
    match rt::fs::read_dir(dir).await {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        other => other.map_err(|source| EngineError::Io { path: dir.to_owned(), source }),
    }
}

/// The names of the directories in a directory, sorted.
pub async fn directories(dir: &Path) -> Result<Vec<String>, EngineError> {
    let mut found: Vec<String> =
        entries(dir).await?.into_iter().filter(|entry| entry.is_dir).map(|entry| entry.name).collect();
    found.sort();
    Ok(found)
}

/// The files in a directory, with their lengths.
async fn files(dir: &Path) -> Result<Vec<(String, u64)>, EngineError> {
    Ok(entries(dir).await?.into_iter().filter(|entry| !entry.is_dir).map(|entry| (entry.name, entry.len)).collect())
}
