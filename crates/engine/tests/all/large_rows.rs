//! Rows with many cells: the work of one such row does not occupy its shard.

use crate::support::*;
use engine::Engine;
use model::TableSchema;
use model::fragment::Fragment;
use model::id::{ColumnId, SchemaVersion};
use model::mutation::MutationBuilder;
use model::range::{PartitionRange, Slice};
use model::row::{Cell, Row, RowBuilder};
use model::schema::{Column, ColumnKind};
use model::time::Tombstone;
use model::types::CqlType;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use uuid::Uuid;

/// The elements of each version of the map.
const ELEMENTS: i32 = 30_000;
/// The writes of each version.
const PARTS: i32 = 3;

/// `t (k int, c int, m map<int, text>, primary key (k, c))`.
fn with_map() -> Rc<TableSchema> {
    let other = schema(864_000, |_| {});
    let ty = CqlType::map(CqlType::Int, CqlType::Text);
    let map =
        Column { id: ColumnId(0), name: "m".into(), kind: ColumnKind::Regular, position: 0, ty, descending: false };
    Rc::new(TableSchema::new(
        other.id,
        SchemaVersion(Uuid::from_u128(1)),
        "ks",
        "t",
        other.partition_key.clone(),
        other.clustering.clone(),
        Vec::new(),
        vec![map],
        Vec::new(),
        other.options.clone(),
    ))
}

/// Writes a version of the map, which has every third element, in parts that the log accepts.
async fn write(engine: &Engine, schema: &TableSchema, version: i32) {
    for part in 0..PARTS {
        let mut row = RowBuilder::new(None, Tombstone::LIVE);
        for element in part * ELEMENTS / PARTS..(part + 1) * ELEMENTS / PARTS {
            let key = (3 * element + version).to_be_bytes();
            row.push(&Cell::live(ColumnId(0), i64::from(version), &[b'x'; 20]).at(&key));
        }
        let mut builder = MutationBuilder::new(schema.id, schema.version, &1i32.to_be_bytes());
        builder.row(clustering(0), row.finish());
        engine.apply_durably(&builder.finish(schema), &key(1)).await.expect("the write is taken");
    }
}

fn rows(fragments: Vec<Fragment>) -> Vec<Row> {
    let row = |fragment| match fragment {
        Fragment::Row { row, .. } => Some(row),
        _ => None,
    };
    fragments.into_iter().filter_map(row).collect()
}

#[test]
fn other_tasks_run_while_versions_of_a_large_row_are_merged() {
    rt::block_on(async {
        let scratch = Scratch::new("large-rows");
        let schema = with_map();
        let engine = open(config(&scratch, 64 << 20), &schema, &tablets(1)).await;
        for version in 0..3 {
            write(&engine, &schema, version).await;
            if version < 2 {
                engine.flush(None).await.expect("flushed");
            }
        }
        let read = async || {
            rows(read_fragments(&engine, schema.id, PartitionRange::FULL, Slice::full(), Default::default()).await)
        };
        let mut polls = 0;
        let mut reading = pin!(read());
        let merged = poll_fn(|context| {
            polls += 1;
            reading.as_mut().poll(context)
        })
        .await;
        assert_eq!(merged.len(), 1);
        assert_eq!(merged[0].cells().count() as i32, 3 * ELEMENTS);
        // About 20 without the merge, which waits for nothing and yields about 200 times.
        assert!(polls > 60, "the reader was polled {polls} times");
        engine.flush(None).await.expect("flushed");
        engine.compact_major(schema.id).await.expect("compacted");
        assert_eq!(read().await, merged);
        engine.stop().await;
    });
}
