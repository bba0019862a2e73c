//! `system.size_estimates`: partitions and their mean size by tablet, which the shards' engines estimate.

use super::Knowledge;
use super::rows::{Rows, text};
use model::id::TableId;
use model::types::Value;

/// The data of one tablet on one shard.
#[derive(Clone, Copy, Debug)]
pub struct TabletSize {
    /// The table.
    pub table: TableId,
    /// The tablet's number.
    pub tablet: u32,
    /// About how many partitions.
    pub partitions: u64,
    /// About how many bytes, compressed or in memory.
    pub bytes: u64,
}

/// A service that whoever starts the node installs on each shard: estimates the shard's tablets.
pub struct TableSizes(pub Box<dyn Fn() -> Vec<TabletSize>>);

pub(super) async fn fill(known: &Knowledge, rows: &mut Rows) {
    let sizes = rt::shard::call_all(|| async {
        rt::shard::try_service::<TableSizes>().map(|sizes| (sizes.0)()).unwrap_or_default()
    });
    for size in sizes.await.into_iter().flatten().filter(|size| size.partitions > 0) {
        let Some(table) = known.metadata.table_by_id(size.table) else { continue };
        if size.tablet >= table.tablets.count() {
            continue;
        }
        rows.add(&[
            ("keyspace_name", text(&table.schema.keyspace)),
            ("table_name", text(&table.schema.name)),
            ("range_start", text(table.tablets.first_token(size.tablet).to_string())),
            ("range_end", text(table.tablets.last_token(size.tablet).to_string())),
            ("mean_partition_size", Value::Bigint((size.bytes / size.partitions) as i64)),
            ("partitions_count", Value::Bigint(size.partitions as i64)),
        ]);
    }
}
