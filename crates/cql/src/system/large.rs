//! `system.large_partitions`, `large_rows` and `large_cells`: large data found while this node
//! wrote its sstables. The rows of an sstable disappear with it.

use super::Knowledge;
use super::rows::{Rows, text};
use cluster::observe::LargeFound;
use cluster::observe::storage::{self, LargeKind};
use model::types::Value;
use std::collections::BTreeMap;

/// One of the three tables.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Partitions,
    Rows,
    Cells,
}

pub(super) async fn fill(kind: Kind, known: &Knowledge, rows: &mut Rows) {
    add(kind, known, storage::large_data(known.cluster.engine).await, rows);
}

/// Adds the rows of one kind. Shortened keys may be equal; then one row represents them.
fn add(kind: Kind, known: &Knowledge, found: Vec<LargeFound>, rows: &mut Rows) {
    let mut unique = BTreeMap::new();
    for found in found {
        let large = &found.large;
        let names = match &large.what {
            LargeKind::Partition { .. } if kind == Kind::Partitions => (String::new(), String::new()),
            LargeKind::Row { clustering_key } if kind == Kind::Rows => (clustering_key.clone(), String::new()),
            LargeKind::Cell { clustering_key, column, .. } if kind == Kind::Cells => {
                (clustering_key.clone(), column.clone())
            }
            _ => continue,
        };
        let key = (found.table, found.sstable.clone(), large.size, large.partition_key.clone(), names);
        unique.insert(key, found);
    }
    for LargeFound { table, sstable, written_at, large } in unique.into_values() {
        let Some(table) = known.metadata.table_by_id(table) else { continue };
        let size = Value::Bigint(large.size.cast_signed());
        let number = |number: u64| Value::Bigint(number.cast_signed());
        let mut row = vec![
            ("keyspace_name", text(&table.schema.keyspace)),
            ("table_name", text(&table.schema.name)),
            ("sstable_name", text(sstable)),
            ("partition_key", text(large.partition_key)),
            ("compaction_time", Value::Timestamp(written_at)),
        ];
        match large.what {
            LargeKind::Partition { rows, range_tombstones } => row.extend([
                ("partition_size", size),
                ("rows", number(rows)),
                ("range_tombstones", number(range_tombstones)),
            ]),
            LargeKind::Row { clustering_key } => {
                row.extend([("row_size", size), ("clustering_key", text(clustering_key))])
            }
            LargeKind::Cell { clustering_key, column, elements } => row.extend([
                ("cell_size", size),
                ("clustering_key", text(clustering_key)),
                ("column_name", text(column)),
                ("collection_elements", number(elements)),
            ]),
        }
        rows.add(&row);
    }
}
