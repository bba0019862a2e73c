//! `system.hot_partitions`: the hot partitions of all shards. `rank` 1 has the largest share of its
//! shard. `system.tablet_loads`: the operations of the tablets of all shards.

use super::Knowledge;
use super::rows::{Rows, text};
use cluster::observe::hot::{self, HotView, TabletView};
use model::types::Value;

pub(super) async fn fill(known: &Knowledge, rows: &mut Rows) {
    for (rank, view) in (1..).zip(hot::partitions(known.cluster).await) {
        add(rank, view, rows);
    }
}

fn add(rank: i32, view: HotView, rows: &mut Rows) {
    let HotView { keyspace, table, key, shard, seen } = view;
    rows.add(&[
        ("keyspace_name", text(keyspace)),
        ("rank", Value::Int(rank)),
        ("table_name", text(table)),
        ("partition_key", key.map_or(Value::Null, text)),
        ("key", seen.key.map_or(Value::Null, |key| Value::Blob(key.into_vec()))),
        ("partition_token", Value::Bigint(seen.id.token.0)),
        ("shard_id", Value::Int(shard.into())),
        ("reads_per_second", Value::Double(seen.reads)),
        ("writes_per_second", Value::Double(seen.writes)),
        ("bytes_per_second", Value::Double(seen.bytes)),
        ("cpu_share", Value::Double(seen.cpu_share)),
        ("accepted_per_second", Value::Double(seen.accepted)),
        ("refused_per_second", Value::Double(seen.refused)),
        ("would_be_refused_per_second", Value::Double(seen.would_refuse)),
        ("error_per_second", Value::Double(seen.error)),
    ]);
}

pub(super) async fn tablet_loads(known: &Knowledge, rows: &mut Rows) {
    for TabletView { keyspace, table, shard, load } in hot::tablets(known.cluster).await {
        rows.add(&[
            ("keyspace_name", text(keyspace)),
            ("table_name", text(table)),
            ("last_token", Value::Bigint(load.id.last_token.0)),
            ("shard_id", Value::Int(shard.into())),
            ("reads_per_second", Value::Double(load.reads)),
            ("writes_per_second", Value::Double(load.writes)),
            ("bytes_per_second", Value::Double(load.bytes)),
            ("cpu_share", Value::Double(load.cpu_share)),
        ]);
    }
}
