//! Tables about the node's data: `system.snapshots`, `system.tablet_sizes`, `system.load_per_node`,
//! and the counters in `system.runtime_info`.
//!
//! The values come from services of each shard, which are set at the node's start. Without
//! them the tables are empty.

use super::rows::{Rows, text};
use super::{Knowledge, nodes};
use model::id::{HostId, TableId};
use model::types::Value;
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;

/// A snapshot of a table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TableSnapshot {
    /// The table's keyspace.
    pub keyspace: String,
    /// The table's name.
    pub table: String,
    /// The snapshot's name.
    pub name: String,
    /// Bytes that only the snapshot references.
    pub live: u64,
    /// Bytes of all its files.
    pub total: u64,
}

/// The future of a snapshot listing, which reads the disk.
pub type SnapshotsFound = Pin<Box<dyn Future<Output = Vec<TableSnapshot>>>>;

/// A service of each shard: lists the node's snapshots.
pub struct SnapshotList(pub Box<dyn Fn() -> SnapshotsFound>);

/// The size of a tablet on disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TabletSize {
    /// The table.
    pub table: TableId,
    /// The tablet's number.
    pub tablet: u32,
    /// Bytes of its sstables.
    pub bytes: u64,
}

/// A service of each shard: the sizes of its tablets.
pub struct TabletSizes(pub Box<dyn Fn() -> Vec<TabletSize>>);

/// A counter of the process: its group, its name, and the value of one shard.
pub type RuntimeNumber = (&'static str, &'static str, u64);

/// A service of each shard: its values of the counters in `system.runtime_info`.
pub struct RuntimeNumbers(pub Box<dyn Fn() -> Vec<RuntimeNumber>>);

pub(super) async fn snapshots(known: &Knowledge, rows: &mut Rows) {
    let Some(list) = known.shards.snapshots.try_get() else { return };
    for snapshot in (list.0)().await {
        rows.add(&[
            ("keyspace_name", text(snapshot.keyspace)),
            ("table_name", text(snapshot.table)),
            ("snapshot_name", text(snapshot.name)),
            ("live", Value::Bigint(snapshot.live as i64)),
            ("total", Value::Bigint(snapshot.total as i64)),
        ]);
    }
}

/// The bytes on disk by table and tablet, of all shards.
async fn sizes(known: &Knowledge) -> BTreeMap<(TableId, u32), u64> {
    let sizes = known.shards.tablet_sizes;
    let lists =
        rt::shard::call_all(move || async move { sizes.try_get().map(|sizes| (sizes.0)()).unwrap_or_default() });
    let mut sizes = BTreeMap::new();
    for size in lists.await.into_iter().flatten() {
        *sizes.entry((size.table, size.tablet)).or_insert(0) += size.bytes;
    }
    sizes
}

/// The bytes on disk of this node's tablets.
pub(super) async fn own_load(known: &Knowledge) -> u64 {
    sizes(known).await.values().sum()
}

pub(super) async fn tablet_sizes(known: &Knowledge, rows: &mut Rows) {
    let sizes = sizes(known).await;
    let host = known.node.host_id;
    for table in known.metadata.tables() {
        let map = &table.tablets;
        for tablet in 0..map.count() {
            if !map.replicas(tablet).iter().any(|replica| replica.host == host) {
                continue;
            }
            let others = map.replicas(tablet).iter().filter(|replica| replica.host != host);
            let bytes = sizes.get(&(table.schema.id, tablet)).copied().unwrap_or(0);
            rows.add(&[
                ("table_id", Value::Uuid(table.schema.id.0)),
                ("last_token", Value::Bigint(map.last_token(tablet).0)),
                ("missing_replicas", Value::Set(others.map(|replica| Value::Uuid(replica.host.0)).collect())),
                ("replicas", Value::Map(vec![(Value::Uuid(host.0), Value::Bigint(bytes as i64))])),
            ]);
        }
    }
}

/// The number of tablet replicas on each node.
fn tablets_by_node(known: &Knowledge) -> BTreeMap<HostId, u64> {
    let mut tablets = BTreeMap::new();
    for table in known.metadata.tables() {
        let map = &table.tablets;
        for replica in (0..map.count()).flat_map(|tablet| map.replicas(tablet)) {
            *tablets.entry(replica.host).or_insert(0) += 1;
        }
    }
    tablets
}

/// The capacity of disks is unknown, so columns that depend on it are left out.
pub(super) async fn load_per_node(known: &Knowledge, rows: &mut Rows) {
    let tablets = tablets_by_node(known);
    for seen in nodes(known) {
        let node = &seen.node;
        let load = if seen.is_own { Some(own_load(known).await) } else { seen.load_bytes };
        let count = tablets.get(&node.host).copied().unwrap_or(0);
        rows.add(&[
            ("node", Value::Uuid(node.host.0)),
            ("dc", text(&node.datacenter)),
            ("rack", text(&node.rack)),
            ("ip", Value::Inet(node.broadcast_address)),
            ("up", Value::Boolean(seen.is_up)),
            ("tablets_allocated", Value::Bigint(count as i64)),
            ("tablets_allocated_per_shard", Value::Double(count as f64 / f64::from(node.shards.max(1)))),
            ("storage_load", load.map_or(Value::Null, |load| Value::Bigint(load as i64))),
        ]);
    }
}

pub(super) async fn runtime(known: &Knowledge, rows: &mut Rows) {
    let numbers = known.shards.runtime_numbers;
    let lists =
        rt::shard::call_all(move || async move { numbers.try_get().map(|numbers| (numbers.0)()).unwrap_or_default() });
    let mut sums: BTreeMap<(&'static str, &'static str), u64> = BTreeMap::new();
    for (group, item, value) in lists.await.into_iter().flatten() {
        *sums.entry((group, item)).or_insert(0) += value;
    }
    for ((group, item), value) in sums {
        rows.add(&[("group", text(group)), ("item", text(item)), ("value", text(value.to_string()))]);
    }
}
