//! `system.large_partitions`, `large_rows` and `large_cells`: large data found while this node
//! wrote its sstables. The rows of an sstable disappear with it.

use super::Knowledge;
use super::rows::{Rows, text};
use model::id::TableId;
use model::types::Value;
use std::collections::BTreeMap;

/// A large partition, row or cell in an sstable.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LargeFound {
    /// The table.
    pub table: TableId,
    /// The file name of the sstable's Data.db.
    pub sstable: String,
    /// When it was written, in milliseconds since 1970.
    pub written_at: i64,
    /// The size in bytes, before compression.
    pub size: u64,
    /// The partition key as text.
    pub partition_key: String,
    /// The kind of data.
    pub what: LargeThing,
}

/// The kind of large data. Keys are text; the key of the static row is empty.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum LargeThing {
    Partition { rows: u64, range_tombstones: u64 },
    Row { clustering_key: String },
    Cell { clustering_key: String, column: String, elements: u64 },
}

/// A service of each shard, set at the node's start: lists the large data in its sstables.
pub struct LargeThings(pub Box<dyn Fn() -> Vec<LargeFound>>);

/// One of the three tables.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Partitions,
    Rows,
    Cells,
}

pub(super) async fn fill(kind: Kind, known: &Knowledge, rows: &mut Rows) {
    let large = known.shards.large;
    let lists =
        rt::shard::call_all(move || async move { large.try_get().map(|things| (things.0)()).unwrap_or_default() });
    add(kind, known, lists.await.into_iter().flatten(), rows);
}

/// Adds the rows of one kind. Shortened keys may be equal; then one row represents them.
fn add(kind: Kind, known: &Knowledge, found: impl Iterator<Item = LargeFound>, rows: &mut Rows) {
    let mut unique = BTreeMap::new();
    for large in found {
        let names = match &large.what {
            LargeThing::Partition { .. } if kind == Kind::Partitions => (String::new(), String::new()),
            LargeThing::Row { clustering_key } if kind == Kind::Rows => (clustering_key.clone(), String::new()),
            LargeThing::Cell { clustering_key, column, .. } if kind == Kind::Cells => {
                (clustering_key.clone(), column.clone())
            }
            _ => continue,
        };
        unique.insert((large.table, large.sstable.clone(), large.size, large.partition_key.clone(), names), large);
    }
    for large in unique.into_values() {
        let Some(table) = known.metadata.table_by_id(large.table) else { continue };
        let size = Value::Bigint(large.size.cast_signed());
        let number = |number: u64| Value::Bigint(number.cast_signed());
        let mut row = vec![
            ("keyspace_name", text(&table.schema.keyspace)),
            ("table_name", text(&table.schema.name)),
            ("sstable_name", text(large.sstable)),
            ("partition_key", text(large.partition_key)),
            ("compaction_time", Value::Timestamp(large.written_at)),
        ];
        match large.what {
            LargeThing::Partition { rows, range_tombstones } => row.extend([
                ("partition_size", size),
                ("rows", number(rows)),
                ("range_tombstones", number(range_tombstones)),
            ]),
            LargeThing::Row { clustering_key } => {
                row.extend([("row_size", size), ("clustering_key", text(clustering_key))])
            }
            LargeThing::Cell { clustering_key, column, elements } => row.extend([
                ("cell_size", size),
                ("clustering_key", text(clustering_key)),
                ("column_name", text(column)),
                ("collection_elements", number(elements)),
            ]),
        }
        rows.add(&row);
    }
}
