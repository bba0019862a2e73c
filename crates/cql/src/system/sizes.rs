//! `system.size_estimates`: the partitions of each tablet and their mean size, estimated from each
//! shard's estimate for the table.

use super::Knowledge;
use super::rows::{Rows, text};
use cluster::observe::storage::{self, TableStats};
use model::id::TableId;
use model::types::Value;
use rt::ShardId;

pub(super) async fn fill(known: &Knowledge, rows: &mut Rows) {
    let stats = storage::table_stats(known.cluster).await;
    for (shard, stats) in (0..).zip(stats) {
        add(known, ShardId(shard), &stats, rows);
    }
}

/// Adds the tablets of one shard. Each gets an equal part of the table's partitions there. Empty
/// tablets are left out.
pub(super) fn add(known: &Knowledge, shard: ShardId, tables: &[(TableId, TableStats)], rows: &mut Rows) {
    for (id, size) in tables {
        let Some(table) = known.metadata.table_by_id(*id) else { continue };
        let tablets: Vec<u32> = table.tablets.on_shard(known.node.host_id, shard).collect();
        let count = tablets.len() as u64;
        for (place, tablet) in (0..count).zip(tablets) {
            let partitions = size.partitions / count + u64::from(place < size.partitions % count);
            if partitions == 0 {
                continue;
            }
            rows.add(&[
                ("keyspace_name", text(&table.schema.keyspace)),
                ("table_name", text(&table.schema.name)),
                ("range_start", text(table.tablets.first_token(tablet).to_string())),
                ("range_end", text(table.tablets.last_token(tablet).to_string())),
                ("mean_partition_size", Value::Bigint(size.mean_partition_bytes as i64)),
                ("partitions_count", Value::Bigint(partitions as i64)),
            ]);
        }
    }
}
