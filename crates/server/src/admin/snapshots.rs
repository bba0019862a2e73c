//! Snapshots as an administrator sees them: names over all tables, found in the data directory.

use super::operations::{self, Refusal, TableName};
use engine::datadir::{TABLE_SNAPSHOTS, table_of_dir_name};
use rt::{Remote, ShardId};
use serde::Serialize;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

/// A snapshot of one table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TableSnapshot {
    /// The keyspace.
    pub ks: String,
    /// The table.
    pub cf: String,
    /// Bytes of all its files.
    pub total: u64,
    /// Bytes of the files that only the snapshot keeps.
    pub live: u64,
}

/// All snapshots of one name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Snapshot {
    /// The name.
    pub key: String,
    /// The tables.
    pub value: Vec<TableSnapshot>,
}

/// All snapshots, by name.
pub async fn list(remote: &Remote, data_dir: &Path) -> Result<Vec<Snapshot>, Refusal> {
    let root = data_dir.join("data");
    let found = remote.call(ShardId(0), move || async move { scan(root).await });
    let found = found.await.map_err(Refusal::failed)?.map_err(Refusal::failed)?;
    Ok(found.into_iter().map(|(key, value)| Snapshot { key, value }).collect())
}

pub(super) async fn scan(root: PathBuf) -> io::Result<BTreeMap<String, Vec<TableSnapshot>>> {
    let mut found: BTreeMap<String, Vec<TableSnapshot>> = BTreeMap::new();
    for keyspace in directories(&root).await? {
        for table_dir in directories(&root.join(&keyspace)).await? {
            let Some((table, _)) = table_of_dir_name(&table_dir) else { continue };
            let dir = root.join(&keyspace).join(&table_dir);
            let living: Vec<String> = names(&dir).await?.into_iter().map(|(name, _)| name).collect();
            for name in directories(&dir.join(TABLE_SNAPSHOTS)).await? {
                let files = names(&dir.join(TABLE_SNAPSHOTS).join(&name)).await?;
                let total = files.iter().map(|(_, len)| len).sum();
                let live = files.iter().filter(|(name, _)| !living.contains(name)).map(|(_, len)| len).sum();
                let one = TableSnapshot { ks: keyspace.clone(), cf: table.to_owned(), total, live };
                found.entry(name).or_default().push(one);
            }
        }
    }
    Ok(found)
}

/// What is in a directory; nothing if there is none.
async fn entries(dir: &Path) -> io::Result<Vec<rt::fs::DirEntry>> {
    match rt::fs::read_dir(dir).await {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        other => other,
    }
}

async fn directories(dir: &Path) -> io::Result<Vec<String>> {
    let mut found: Vec<String> =
        entries(dir).await?.into_iter().filter(|entry| entry.is_dir).map(|entry| entry.name).collect();
    found.sort();
    Ok(found)
}

async fn names(dir: &Path) -> io::Result<Vec<(String, u64)>> {
    Ok(entries(dir).await?.into_iter().filter(|entry| !entry.is_dir).map(|entry| (entry.name, entry.len)).collect())
}

/// Takes the snapshot `name` of `tables`; it must be a new one for each of them.
pub async fn take(remote: &Remote, data_dir: &Path, tables: &[TableName], name: &str) -> Result<(), Refusal> {
    let known = list(remote, data_dir).await?;
    if let Some(same) = known.iter().find(|snapshot| snapshot.key == name) {
        for table in tables {
            if same.value.iter().any(|one| one.ks == table.keyspace && one.cf == table.name) {
                return Err(Refusal::Bad(format!("Keyspace {}: snapshot {name} already exists.", table.keyspace)));
            }
        }
    }
    let name = name.to_owned();
    operations::on_every_shard(remote, tables, move |engine, table| {
        let name = name.clone();
        async move { engine.snapshot(table, &name).await }
    })
    .await
}

/// Removes the snapshot `name`, or all, of `tables`.
pub async fn clear(remote: &Remote, tables: &[TableName], name: Option<&str>) -> Result<(), Refusal> {
    let (tables, name) = (tables.to_vec(), name.map(str::to_owned));
    let done = remote.call(ShardId(0), move || async move {
        let engine = rt::shard::service::<engine::Engine>();
        for table in tables {
            engine.clear_snapshot(table.id, name.as_deref()).await.map_err(Refusal::of_engine)?;
        }
        Ok(())
    });
    done.await.map_err(Refusal::failed)?
}
