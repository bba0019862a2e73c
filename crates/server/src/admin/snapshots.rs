//! Snapshots for an administrator: names over all tables, found in the data directory.

use super::RemoteServices;
use super::operations::{self, TableName, observed};
use super::refusal::Refusal;
use cluster::observe::storage::{self, FoundSnapshot};
use engine::datadir::{TABLE_SNAPSHOTS, directories, entries, find_snapshots, table_dir_name, table_of_dir_name};
use engine::{Engine, EngineError, UNFINISHED_SNAPSHOT, is_snapshot_name};
use model::id::TableId;
use rt::ShardId;
use rt::shard::PerShard;
use rt::sync::Semaphore;
use serde::Serialize;
use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::rc::Rc;

/// A snapshot of one table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TableSnapshot {
    /// The keyspace.
    pub ks: String,
    /// The table.
    pub cf: String,
    /// Bytes of all its files.
    pub total: u64,
    /// Bytes of the files that only the snapshot uses.
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
pub async fn list(remote: &RemoteServices) -> Result<Vec<Snapshot>, Refusal> {
    let mut by_name: BTreeMap<String, Vec<TableSnapshot>> = BTreeMap::new();
    for FoundSnapshot { keyspace: ks, table: cf, name, live, total } in find(remote, None).await? {
        by_name.entry(name).or_default().push(TableSnapshot { ks, cf, total, live });
    }
    Ok(by_name.into_iter().map(|(key, value)| Snapshot { key, value }).collect())
}

/// The snapshots of these tables, or of all.
pub(super) async fn find(
    remote: &RemoteServices,
    tables: Option<Vec<TableName>>,
) -> Result<Vec<FoundSnapshot>, Refusal> {
    let found = observed(remote, |services| async move {
        storage::snapshots(services.cluster.engine, is_of(tables.as_deref())).await
    });
    found.await?.map_err(Refusal::of_engine)
}

/// Whether a keyspace, or a table of it, has one of these tables.
pub fn is_of(tables: Option<&[TableName]>) -> impl Fn(&str, Option<&str>) -> bool {
    move |keyspace, table| {
        let is_it = |one: &TableName| one.keyspace == keyspace && table.is_none_or(|table| one.name == table);
        tables.is_none_or(|tables| tables.iter().any(is_it))
    }
}

/// An error with the path and the remedy.
fn at(path: &Path) -> impl FnOnce(io::Error) -> EngineError {
    |source| EngineError::Io { path: path.to_owned(), source }
}

/// Takes the snapshot `name` of `tables`. None of them may have a snapshot of that name. The
/// snapshot appears when all shards have linked all tables, or not at all, even if the caller
/// disconnects.
pub async fn take(remote: &RemoteServices, data_dir: &Path, tables: &[TableName], name: &str) -> Result<(), Refusal> {
    let (root, tables, name) = (data_dir.join("data"), tables.to_vec(), name.to_owned());
    let taken = remote.call(ShardId(0), move |services| async move {
        let (engines, turn) = (services.cluster.engine, services.snapshot_turn.get());
        let task = rt::task::spawn(async move { take_here(engines, &turn, &root, &tables, &name).await });
        task.await.unwrap_or_else(|_| Err(Refusal::failed("the node is stopping")))
    });
    taken.await.map_err(Refusal::failed)?
}

/// Like [`take`], on shard 0. `root` is the directory of the keyspaces. `turn` allows one snapshot
/// at a time.
pub async fn take_here(
    engines: PerShard<Engine>,
    turn: &Semaphore,
    root: &Path,
    tables: &[TableName],
    name: &str,
) -> Result<(), Refusal> {
    let _turn = turn.acquire().await.map_err(Refusal::failed)?;
    let known = find_snapshots(root, is_of(Some(tables))).await.map_err(Refusal::of_engine)?;
    if let Some(same) = known.iter().find(|known| known.name == name) {
        return Err(Refusal::Bad(format!("Keyspace {}: snapshot {name} already exists.", same.keyspace)));
    }
    if !is_snapshot_name(name) {
        return Err(Refusal::of_engine(EngineError::SnapshotName(name.to_owned())));
    }
    let taken = link_and_publish(engines, tables, name).await;
    // No table had this snapshot before.
    let left = taken.as_deref().unwrap_or(tables);
    for table in left {
        let dir = root.join(&table.keyspace).join(table_dir_name(&table.name, table.id)).join(TABLE_SNAPSHOTS);
        for left in [dir.join(name), dir.join(format!("{UNFINISHED_SNAPSHOT}{name}"))] {
            remove_if_there(&left).await;
        }
    }
    taken.map(|_| ())
}

/// Links all tables, and publishes the links of those that no shard has dropped meanwhile. Returns
/// the dropped tables: their links lack rows.
async fn link_and_publish(
    engines: PerShard<Engine>,
    tables: &[TableName],
    name: &str,
) -> Result<Vec<TableName>, Refusal> {
    let (all, snapshot) = (tables.to_vec(), name.to_owned());
    let ids: Vec<TableId> = tables.iter().map(|table| table.id).collect();
    let held = ids.clone();
    let hold = move |engine: Rc<Engine>| {
        let ids = held.clone();
        async move {
            for id in ids {
                engine.hold_tablets(id).await;
            }
        }
    };
    engines.call_all(hold).await;
    let linked = engines.call_all(move |engine| {
        let (tables, name) = (all.clone(), snapshot.clone());
        async move {
            let mut dropped = Vec::new();
            for table in &tables {
                let linked = engine.snapshot(table.id, &name).await;
                if !is_done(&engine, table, linked)? {
                    dropped.push(table.id);
                }
            }
            Ok(dropped)
        }
    });
    let linked = linked.await;
    let release = move |engine: Rc<Engine>| {
        let ids = ids.clone();
        async move { ids.into_iter().for_each(|id| engine.release_tablets(id)) }
    };
    engines.call_all(release).await;
    let dropped = linked.into_iter().collect::<Result<Vec<_>, Refusal>>()?.concat();
    let (mut dropped, mut kept): (Vec<_>, Vec<_>) =
        tables.iter().cloned().partition(|table| dropped.contains(&table.id));
    let engine = engines.get();
    for table in std::mem::take(&mut kept) {
        let completed = engine.complete_snapshot(table.id, name).await;
        if is_done(&engine, &table, completed)? { kept.push(table) } else { dropped.push(table) }
    }
    for table in kept {
        let published = engine.publish_snapshot(table.id, name).await;
        if !is_done(&engine, &table, published)? {
            dropped.push(table);
        }
    }
    Ok(dropped)
}

/// Whether a step for a table succeeded. False if it failed because the table was dropped.
fn is_done(engine: &Engine, table: &TableName, step: Result<(), EngineError>) -> Result<bool, Refusal> {
    match step {
        Ok(()) => Ok(true),
        Err(_) if engine.is_dropped(table.id) => Ok(false),
        Err(error) => Err(refusal(table, error)),
    }
}

fn refusal(table: &TableName, error: EngineError) -> Refusal {
    let place = format!("{}.{} on shard {}", table.keyspace, table.name, rt::shard::this());
    Refusal::of_engine(error).at(place)
}

async fn remove_if_there(dir: &Path) {
    match rt::fs::remove_dir_all(dir).await {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::warn!(dir = %dir.display(), %error, "an unfinished snapshot could not be removed, and takes up disk space");
        }
        _ => {}
    }
}

/// Removes the snapshots that a crash left unfinished. Must be called on shard 0 at start, before
/// any snapshot is taken.
pub async fn remove_unfinished(data_dir: &Path) {
    if let Err(error) = try_remove_unfinished(&data_dir.join("data")).await {
        tracing::warn!(%error, "cannot look for unfinished snapshots: the next start retries");
    }
}

async fn try_remove_unfinished(root: &Path) -> Result<(), EngineError> {
    for keyspace in directories(root).await? {
        for table_dir in directories(&root.join(&keyspace)).await? {
            let snapshots = root.join(&keyspace).join(table_dir).join(TABLE_SNAPSHOTS);
            for name in directories(&snapshots).await?.into_iter().filter(|name| name.starts_with(UNFINISHED_SNAPSHOT))
            {
                tracing::info!(dir = %snapshots.join(&name).display(), "removing an unfinished snapshot");
                remove_if_there(&snapshots.join(&name)).await;
            }
        }
    }
    Ok(())
}

/// The chosen snapshots. An empty part means all.
#[derive(Clone, Debug, Default)]
pub struct Chosen {
    /// The name.
    pub name: Option<String>,
    /// The keyspaces.
    pub keyspaces: Option<Vec<String>>,
    /// The tables.
    pub tables: Option<Vec<String>>,
}

/// Whether `one` is chosen. An empty list chooses all.
fn has(all: &Option<Vec<String>>, one: &str) -> bool {
    all.as_ref().is_none_or(|all| all.iter().any(|other| other == one))
}

/// Removes snapshots, also snapshots of dropped tables. Fails if a keyspace or table is named that
/// has neither data nor snapshots here.
pub async fn clear(remote: &RemoteServices, data_dir: &Path, chosen: Chosen) -> Result<(), Refusal> {
    if let Some(name) = chosen.name.as_ref().filter(|name| !is_snapshot_name(name)) {
        return Err(Refusal::of_engine(EngineError::SnapshotName(name.clone())));
    }
    let living = operations::all_tables(remote).await?;
    let root = data_dir.join("data");
    let done = remote.call(ShardId(0), move |services| async move {
        let turn = services.snapshot_turn.get();
        // Not while a snapshot is taken.
        let _turn = turn.acquire().await.map_err(Refusal::failed)?;
        remove(&root, &chosen, &living).await
    });
    done.await.map_err(Refusal::failed)?
}

async fn remove(root: &Path, chosen: &Chosen, living: &[TableName]) -> Result<(), Refusal> {
    let keyspaces = directories(root).await.map_err(Refusal::of_engine)?;
    let known = |keyspace: &String| keyspaces.contains(keyspace) || living.iter().any(|one| one.keyspace == *keyspace);
    if let Some(keyspace) = chosen.keyspaces.iter().flatten().find(|keyspace| !known(keyspace)) {
        return Err(Refusal::Bad(format!("Can't find a keyspace {keyspace}")));
    }
    let mut seen: Vec<String> = living.iter().map(|one| one.name.clone()).collect();
    let mut failed = None;
    for keyspace in keyspaces.iter().filter(|keyspace| has(&chosen.keyspaces, keyspace)) {
        for table_dir in directories(&root.join(keyspace)).await.map_err(Refusal::of_engine)? {
            let Some((table, id)) = table_of_dir_name(&table_dir) else { continue };
            seen.push(table.to_owned());
            if !has(&chosen.tables, table) {
                continue;
            }
            let is_dropped = !living.iter().any(|one| one.id == id);
            let removed = remove_of_table(&root.join(keyspace).join(&table_dir), chosen, is_dropped).await;
            // The snapshots of the other tables can still be removed.
            failed = failed.or(removed.err());
        }
    }
    if let Some(failed) = failed {
        return Err(Refusal::of_engine(failed));
    }
    match chosen.tables.iter().flatten().find(|table| !seen.contains(table)) {
        Some(table) => Err(Refusal::Bad(format!("Can't find a column family {table}"))),
        None => Ok(()),
    }
}

/// Removes the chosen snapshots of a table. `dir` is its directory.
async fn remove_of_table(dir: &Path, chosen: &Chosen, is_dropped: bool) -> Result<(), EngineError> {
    let snapshots = dir.join(TABLE_SNAPSHOTS);
    let remove = async |path: &Path| rt::fs::remove_dir_all(path).await.map_err(at(path));
    for name in directories(&snapshots).await? {
        if chosen.name.as_ref().is_none_or(|wanted| *wanted == name) {
            remove(&snapshots.join(name)).await?;
        }
    }
    // Only the snapshots of a dropped table are left.
    let left = entries(dir).await?;
    let is_empty = left.iter().all(|entry| entry.is_dir && entry.name == TABLE_SNAPSHOTS);
    if is_dropped && is_empty && entries(&snapshots).await?.is_empty() {
        remove(dir).await?;
    }
    Ok(())
}
