//! `system.size_estimates`: the partitions of each tablet and their mean size, estimated from each
//! shard's estimate for the table.

use super::Knowledge;
use super::rows::{Rows, text};
use model::id::TableId;
use model::types::Value;
use rt::ShardId;

/// The data of a table on one shard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TableSize {
    /// The approximate number of partitions.
    pub partitions: u64,
    /// Their mean size, in bytes.
    pub mean_partition_bytes: u64,
}

/// A service of each shard, set at the node's start: estimates the size of a table on the
/// shard.
pub struct TableSizes(pub Box<dyn Fn(TableId) -> Option<TableSize>>);

pub(super) async fn fill(known: &Knowledge, rows: &mut Rows) {
    let (sizes, services) = (known.shards.table_sizes, known.cluster.metadata);
    let sizes = rt::shard::call_all(move || async move {
        let (Some(sizes), Some(metadata)) = (sizes.try_get(), services.try_get()) else {
            return Vec::new();
        };
        let size_of = |id: TableId| (sizes.0)(id).map(|size| (id, size));
        metadata.current().tables().filter_map(|table| size_of(table.schema.id)).collect()
    });
    for (shard, sizes) in sizes.await.into_iter().enumerate() {
        add(known, ShardId(shard as u16), &sizes, rows);
    }
}

/// Adds the tablets of one shard. Each gets an equal part of the table's partitions there. Empty
/// tablets are left out.
pub(super) fn add(known: &Knowledge, shard: ShardId, sizes: &[(TableId, TableSize)], rows: &mut Rows) {
    for (id, size) in sizes {
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
