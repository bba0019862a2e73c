//! Services for the query processor's system tables, with values that the admin API also shows:
//! snapshots, tablet sizes, counters.

use super::snapshots;
use cql::system::{
    RuntimeNumber, RuntimeNumbers, SnapshotList, SnapshotsFound, SystemShards, TableSnapshot, TabletSize, TabletSizes,
};
use engine::Engine;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// Sets the services of this shard.
pub fn set(system: SystemShards, data_dir: &Path, engine: &Rc<Engine>) {
    let root = data_dir.join("data");
    let (sizes, counters) = (engine.clone(), engine.clone());
    system.snapshots.set(Rc::new(SnapshotList(Box::new(move || -> SnapshotsFound { Box::pin(find(root.clone())) }))));
    system.tablet_sizes.set(Rc::new(TabletSizes(Box::new(move || tablet_sizes(&sizes)))));
    system.runtime_numbers.set(Rc::new(RuntimeNumbers(Box::new(move || numbers(&counters)))));
}

async fn find(root: PathBuf) -> Vec<TableSnapshot> {
    let found = snapshots::scan(&root, None).await.unwrap_or_else(|error| {
        tracing::warn!(%error, "cannot look for snapshots");
        Default::default()
    });
    let each = |(name, tables): (String, Vec<snapshots::TableSnapshot>)| {
        tables.into_iter().map(move |one| TableSnapshot {
            keyspace: one.ks,
            table: one.cf,
            name: name.clone(),
            live: one.live,
            total: one.total,
        })
    };
    found.into_iter().flat_map(each).collect()
}

fn tablet_sizes(engine: &Engine) -> Vec<TabletSize> {
    engine.tablet_sizes().into_iter().map(|(table, tablet, bytes)| TabletSize { table, tablet, bytes }).collect()
}

fn numbers(engine: &Engine) -> Vec<RuntimeNumber> {
    let (metrics, tables) = (engine.metrics(), engine.details());
    vec![
        ("cache", "entries", metrics.rows.partitions),
        ("cache", "hits", metrics.rows.hits),
        ("cache", "misses", metrics.rows.misses),
        ("cache", "memory_total", metrics.cache_limit_bytes),
        ("cache", "memory_used", metrics.rows.bytes + metrics.cache.bytes as u64),
        ("generic", "load", metrics.disk_bytes),
        ("memtable", "entries", tables.memtable_partitions),
        ("memtable", "memory_total", metrics.memtable_limit_bytes),
        ("memtable", "memory_used", metrics.memtable_bytes),
    ]
}
