//! Tables about the node's data: `system.snapshots`, `system.tablet_sizes`, `system.load_per_node`,
//! and the counters in `system.runtime_info`.

use super::rows::{Rows, text};
use super::{Knowledge, members};
use cluster::observe::Member;
use cluster::observe::storage::{self, ShardStorage};
use model::id::TableId;
use model::types::Value;
use std::collections::BTreeMap;

pub(super) async fn snapshots(known: &Knowledge, rows: &mut Rows) {
    let found = storage::snapshots(known.cluster.engine, |_, _| true).await;
    for snapshot in found.unwrap_or_else(|error| {
        tracing::warn!(%error, "cannot list snapshots: system.snapshots shows none");
        Vec::new()
    }) {
        rows.add(&[
            ("keyspace_name", text(snapshot.keyspace)),
            ("table_name", text(snapshot.table)),
            ("snapshot_name", text(snapshot.name)),
            ("live", Value::Bigint(snapshot.live as i64)),
            ("total", Value::Bigint(snapshot.total as i64)),
        ]);
    }
}

pub(super) async fn tablet_sizes(known: &Knowledge, rows: &mut Rows) {
    add_tablets(known, &storage::tablet_bytes(known.cluster.engine).await, rows);
}

/// Adds the tablets of this node, with their bytes on disk by table and tablet.
pub(super) fn add_tablets(known: &Knowledge, sizes: &BTreeMap<(TableId, u32), u64>, rows: &mut Rows) {
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

/// The capacity of disks is unknown, so columns that depend on it are left out.
pub(super) async fn load_per_node(known: &Knowledge, rows: &mut Rows) {
    for Member { seen, tablets: count } in members(known).await {
        let node = &seen.node;
        rows.add(&[
            ("node", Value::Uuid(node.host.0)),
            ("dc", text(&node.datacenter)),
            ("rack", text(&node.rack)),
            ("ip", Value::Inet(node.broadcast_address)),
            ("up", Value::Boolean(seen.is_up)),
            ("tablets_allocated", Value::Bigint(count as i64)),
            ("tablets_allocated_per_shard", Value::Double(count as f64 / f64::from(node.shards.max(1)))),
            ("storage_load", seen.load_bytes.map_or(Value::Null, |load| Value::Bigint(load as i64))),
        ]);
    }
}

pub(super) async fn runtime(known: &Knowledge, rows: &mut Rows) {
    add_counters(&storage::shards(known.cluster.engine).await, rows);
}

/// A counter: its group, its name, and its value of one shard.
type Counter = (&'static str, &'static str, fn(&ShardStorage) -> u64);

/// Adds the counters, each summed over the shards.
pub(super) fn add_counters(shards: &[ShardStorage], rows: &mut Rows) {
    let counters: [Counter; 9] = [
        ("cache", "entries", |shard| shard.engine.rows.partitions),
        ("cache", "hits", |shard| shard.engine.rows.hits),
        ("cache", "memory_total", |shard| shard.engine.cache_limit_bytes),
        ("cache", "memory_used", |shard| shard.engine.cache_bytes()),
        ("cache", "misses", |shard| shard.engine.rows.misses),
        ("generic", "load", |shard| shard.engine.disk_bytes),
        ("memtable", "entries", |shard| shard.tables.memtable_partitions),
        ("memtable", "memory_total", |shard| shard.engine.memtable_limit_bytes),
        ("memtable", "memory_used", |shard| shard.engine.memtable_bytes),
    ];
    for (group, item, counter) in counters {
        let sum: u64 = shards.iter().map(counter).sum();
        rows.add(&[("group", text(group)), ("item", text(item)), ("value", text(sum.to_string()))]);
    }
}
