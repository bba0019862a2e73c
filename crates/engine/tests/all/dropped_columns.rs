//! Columns that are dropped and added again, with cells in memory.

use crate::support::*;
use model::TableSchema;
use model::fragment::Fragment;
use model::id::{ColumnId, SchemaVersion};
use model::mutation::MutationBuilder;
use model::range::{PartitionRange, Slice};
use model::row::{Cell, Marker, RowBuilder};
use model::schema::{Column, DroppedColumn};
use model::time::Tombstone;
use std::rc::Rc;
use uuid::Uuid;

/// When the column `v` is dropped.
const DROP_TIME: i64 = 10;

/// The next version of a schema, with these regular columns.
fn version(old: &TableSchema, number: u128, regulars: Vec<Column>, dropped: Vec<DroppedColumn>) -> Rc<TableSchema> {
    Rc::new(TableSchema::new(
        old.id,
        SchemaVersion(Uuid::from_u128(number)),
        old.keyspace.clone(),
        old.name.clone(),
        old.partition_key.clone(),
        old.clustering.clone(),
        old.statics.clone(),
        regulars,
        dropped,
        old.options.clone(),
    ))
}

/// The schema without the column `v`, and then with a new one of that name.
fn without_and_with(old: &TableSchema) -> (Rc<TableSchema>, Rc<TableSchema>) {
    let (gone, others): (Vec<Column>, Vec<Column>) =
        old.regulars.iter().cloned().partition(|column| column.id == VALUE);
    let Column { id, name, kind, ty, .. } = gone[0].clone();
    let without = version(old, 2, others, vec![DroppedColumn { id, name, kind, ty, drop_time: DROP_TIME }]);
    let mut regulars = without.regulars.clone();
    regulars.push(Column { id: without.next_column_id(), ..gone[0].clone() });
    let with = version(old, 3, regulars, without.dropped.clone());
    (without, with)
}

async fn write(engine: &engine::Engine, schema: &TableSchema, k: i32, column: ColumnId, timestamp: i64) {
    let mut row = RowBuilder::new(Some(Marker::new(timestamp)), Tombstone::LIVE);
    row.push(&Cell::live(column, timestamp, b"value"));
    let mut builder = MutationBuilder::new(schema.id, schema.version, &k.to_be_bytes());
    builder.row(clustering(0), row.finish());
    engine.apply_durably(&builder.finish(schema), &key(k)).await.expect("the write is taken");
}

/// The columns of each row, by name.
async fn columns(engine: &engine::Engine, schema: &TableSchema) -> Vec<Vec<String>> {
    let fragments = read_fragments(engine, schema.id, PartitionRange::FULL, Slice::full(), Default::default()).await;
    let mut rows: Vec<Vec<String>> = Vec::new();
    for fragment in fragments {
        if let Fragment::Row { row, .. } = fragment {
            rows.push(row.cells().filter_map(|cell| Some(schema.column(cell.column)?.name.clone())).collect());
        }
    }
    rows.sort();
    rows
}

#[test]
fn cells_newer_than_the_drop_return_from_memory_and_older_ones_do_not() {
    rt::block_on(async {
        let scratch = Scratch::new("newer-than-a-drop");
        let old = schema(864_000, |_| {});
        let engine = open(config(&scratch, 16 << 20), &old, &tablets(4)).await;
        for k in 0..8 {
            write(&engine, &old, k, VALUE, if k % 2 == 0 { DROP_TIME } else { DROP_TIME + 1 }).await;
        }
        let (without, with) = without_and_with(&old);
        engine.update_schema(without.clone());
        // Later writes are in other memtables, which know nothing of the column.
        write(&engine, &without, 8, OTHER, 30).await;
        assert_eq!(columns(&engine, &without).await.concat(), ["w"], "the column is dropped");
        engine.finish_flushes(old.id).await.expect("the sealed memtables are flushed");
        engine.update_schema(with.clone());
        write(&engine, &with, 9, with.column_named("v").expect("it is added again").id, 30).await;
        let expected = ["v", "v", "v", "v", "v", "w"];
        let sorted = async |engine: &engine::Engine| {
            let mut names = columns(engine, &with).await.concat();
            names.sort();
            names
        };
        assert_eq!(sorted(&engine).await, expected);
        engine.flush(None).await.expect("flushed");
        engine.compact_major(old.id).await.expect("compacted");
        assert_eq!(sorted(&engine).await, expected, "after a compaction");
        engine.abandon().await;
        let engine = open(config(&scratch, 16 << 20), &with, &tablets(4)).await;
        assert_eq!(sorted(&engine).await, expected, "after a start");
        engine.stop().await;
    });
}
