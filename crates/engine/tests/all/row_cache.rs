//! The row cache is never stale: whatever flushes, compactions, truncations and schema changes
//! happen between writes and reads, a cached read sees the same as an uncached one.

use crate::support::*;
use engine::{Engine, ReadOptions};
use model::fragment::Fragment;
use model::key::Clustering;
use model::mutation::MutationBuilder;
use model::range::{PartitionRange, Slice};
use model::row::{Cell, Marker, RowBuilder};
use model::schema::{Column, TableSchema};
use model::time::Tombstone;
use model::{ColumnId, SchemaVersion};
use proptest::prelude::*;
use std::rc::Rc;
use uuid::Uuid;

/// `t (k int primary key, v text)`.
fn key_value(version: u128) -> Rc<TableSchema> {
    key_and_columns(version, &[VALUE], 0)
}

/// The same with these columns, and with an option.
fn key_and_columns(version: u128, columns: &[ColumnId], gc_grace_seconds: i32) -> Rc<TableSchema> {
    let wide = schema(gc_grace_seconds, |options| {
        options.compaction.insert("enabled".into(), "false".into());
    });
    let regulars: Vec<Column> = wide.regulars.iter().filter(|column| columns.contains(&column.id)).cloned().collect();
    assert_eq!(regulars.len(), columns.len());
    Rc::new(TableSchema::new(
        wide.id,
        SchemaVersion(Uuid::from_u128(version)),
        "ks",
        "kv",
        wide.partition_key.clone(),
        Vec::new(),
        Vec::new(),
        regulars,
        Vec::new(),
        wide.options.clone(),
    ))
}

#[derive(Clone, Debug)]
enum Step {
    Write { k: i32, timestamp: i64 },
    DeleteCell { k: i32, timestamp: i64 },
    DeletePartition { k: i32, timestamp: i64 },
    Read { k: i32 },
    Flush,
    Compact,
    Truncate,
    Alter,
}

fn step() -> impl Strategy<Value = Step> {
    let (k, timestamp) = (0i32..6, 1i64..1_000_000);
    prop_oneof![
        6 => (k.clone(), timestamp.clone()).prop_map(|(k, timestamp)| Step::Write { k, timestamp }),
        1 => (k.clone(), timestamp.clone()).prop_map(|(k, timestamp)| Step::DeleteCell { k, timestamp }),
        1 => (k.clone(), timestamp).prop_map(|(k, timestamp)| Step::DeletePartition { k, timestamp }),
        12 => k.prop_map(|k| Step::Read { k }),
        4 => Just(Step::Flush),
        1 => Just(Step::Compact),
        1 => Just(Step::Truncate),
        1 => Just(Step::Alter),
    ]
}

/// The cell values that a client sees.
async fn seen(engine: &Engine, schema: &TableSchema, k: i32, bypass: bool) -> Vec<Vec<u8>> {
    let options = ReadOptions { bypass, ..ReadOptions::default() };
    let range = PartitionRange::singular(&key(k));
    let fragments = read_fragments(engine, schema.id, range, Slice::full(), options).await;
    let mut cover = model::compact::Cover::default();
    let mut values = Vec::new();
    for fragment in &fragments {
        match fragment {
            Fragment::PartitionStart { tombstone, .. } => cover.start(*tombstone),
            Fragment::Row { row, .. } => {
                values.extend(model::compact::live_cells(row, cover.row(), NOW).map(|cell| cell.value.to_vec()))
            }
            _ => {}
        }
    }
    values
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases / 4))]
    #[test]
    fn never_stale(steps in prop::collection::vec(step(), 1..120)) {
        rt::block_on(async {
            let scratch = Scratch::new("row-cache");
            let mut schema = key_value(1);
            let engine = open(config(&scratch, 16 << 20), &schema, &tablets(2)).await;
            for (n, step) in steps.into_iter().enumerate() {
                let mutation = |k: i32| MutationBuilder::new(schema.id, schema.version, &k.to_be_bytes());
                match step {
                    Step::Write { k, timestamp } => {
                        let mut row = RowBuilder::new(Some(Marker::new(timestamp)), Tombstone::LIVE);
                        row.push(&Cell::live(VALUE, timestamp, n.to_string().as_bytes()));
                        let mut builder = mutation(k);
                        builder.row(Clustering::EMPTY, row.finish());
                        engine.apply_durably(&builder.finish(&schema), &key(k)).await.unwrap();
                    }
                    Step::DeleteCell { k, timestamp } => {
                        let mut row = RowBuilder::new(None, Tombstone::LIVE);
                        row.push(&Cell::dead(VALUE, timestamp, DELETED_AT));
                        let mut builder = mutation(k);
                        builder.row(Clustering::EMPTY, row.finish());
                        engine.apply_durably(&builder.finish(&schema), &key(k)).await.unwrap();
                    }
                    Step::DeletePartition { k, timestamp } => {
                        let mut builder = mutation(k);
                        builder.delete_partition(Tombstone::new(timestamp, DELETED_AT));
                        engine.apply_durably(&builder.finish(&schema), &key(k)).await.unwrap();
                    }
                    Step::Read { k } => {
                        let through = seen(&engine, &schema, k, false).await;
                        assert_eq!(through, seen(&engine, &schema, k, true).await, "k = {k}, step {n}");
                    }
                    Step::Flush => engine.flush(None).await.unwrap(),
                    Step::Compact => engine.compact_major(schema.id).await.unwrap(),
                    Step::Truncate => drop(engine.truncate(schema.id, rt::time::wall_micros()).await.unwrap()),
                    Step::Alter => {
                        schema = key_value(2 + n as u128);
                        engine.update_schema(schema.clone());
                    }
                }
            }
            engine.stop().await;
        });
    }
}

#[test]
fn a_row_is_found_whatever_is_flushed_and_compacted() {
    rt::block_on(async {
        let scratch = Scratch::new("row-cache-hits");
        let schema = key_value(1);
        let engine = open(config(&scratch, 16 << 20), &schema, &tablets(1)).await;
        let write = async |k: i32, timestamp: i64| {
            let mut row = RowBuilder::new(Some(Marker::new(timestamp)), Tombstone::LIVE);
            row.push(&Cell::live(VALUE, timestamp, b"x"));
            let mut builder = MutationBuilder::new(schema.id, schema.version, &k.to_be_bytes());
            builder.row(Clustering::EMPTY, row.finish());
            engine.apply_durably(&builder.finish(&schema), &key(k)).await.unwrap();
        };
        let hits = || (engine.metrics().rows.hits, engine.metrics().rows.misses);
        for k in 0..200 {
            write(k, 1).await;
        }
        engine.flush(None).await.unwrap();
        seen(&engine, &schema, 1, false).await;
        assert_eq!(hits(), (0, 1));
        seen(&engine, &schema, 1, false).await;
        assert_eq!(hits(), (1, 1));
        // Other keys are flushed: the filter says that nothing is new.
        write(1000, 2).await;
        engine.flush(None).await.unwrap();
        seen(&engine, &schema, 1, false).await;
        assert_eq!(hits(), (2, 1));
        engine.compact_major(schema.id).await.unwrap();
        seen(&engine, &schema, 1, false).await;
        assert_eq!(hits(), (3, 1), "a compaction brings nothing new");
        write(1, 3).await;
        engine.flush(None).await.unwrap();
        seen(&engine, &schema, 1, false).await;
        assert_eq!(hits(), (3, 2), "the new sstable has the key");
        seen(&engine, &schema, 1, false).await;
        assert_eq!(hits(), (4, 2));
        engine.update_schema(key_and_columns(2, &[VALUE], 20));
        seen(&engine, &schema, 1, false).await;
        assert_eq!(hits(), (5, 2), "only an option has changed");
        engine.update_schema(key_and_columns(3, &[VALUE, OTHER], 20));
        seen(&engine, &schema, 1, false).await;
        assert_eq!(hits(), (5, 3), "the columns have changed");
        engine.stop().await;
    });
}

/// One compaction purges the deletion and what it covers, so that no filter has either of them.
#[test]
fn a_purged_deletion_takes_the_cached_row_along() {
    rt::block_on(async {
        let scratch = Scratch::new("row-cache-purged");
        let schema = key_value(1);
        let engine = open(config(&scratch, 16 << 20), &schema, &tablets(1)).await;
        let mutation = |k: i32| MutationBuilder::new(schema.id, schema.version, &k.to_be_bytes());
        for k in [1, 2] {
            let mut row = RowBuilder::new(Some(Marker::new(1)), Tombstone::LIVE);
            row.push(&Cell::live(VALUE, 1, b"x"));
            let mut builder = mutation(k);
            builder.row(Clustering::EMPTY, row.finish());
            engine.apply_durably(&builder.finish(&schema), &key(k)).await.unwrap();
        }
        engine.flush(None).await.unwrap();
        assert_eq!(seen(&engine, &schema, 1, false).await, [b"x".to_vec()]);
        let mut builder = mutation(1);
        builder.delete_partition(Tombstone::new(2, DELETED_AT));
        engine.apply_durably(&builder.finish(&schema), &key(1)).await.unwrap();
        engine.flush(None).await.unwrap();
        engine.compact_major(schema.id).await.unwrap();
        assert_eq!(seen(&engine, &schema, 1, false).await, Vec::<Vec<u8>>::new());
        assert_eq!(seen(&engine, &schema, 2, false).await, [b"x".to_vec()]);
        engine.stop().await;
    });
}

/// A write older than a purged deletion is visible, with the cache as without it.
#[test]
fn a_cached_deletion_goes_when_it_was_purged() {
    rt::block_on(async {
        let scratch = Scratch::new("row-cache-purged-alone");
        let schema = key_value(1);
        let engine = open(config(&scratch, 16 << 20), &schema, &tablets(1)).await;
        let apply = async |k: i32, row: RowBuilder| {
            let mut builder = MutationBuilder::new(schema.id, schema.version, &k.to_be_bytes());
            builder.row(Clustering::EMPTY, row.finish());
            engine.apply_durably(&builder.finish(&schema), &key(k)).await.unwrap();
        };
        let with = |cell: Cell<'_>| {
            let mut row = RowBuilder::new(None, Tombstone::LIVE);
            row.push(&cell);
            row
        };
        apply(1, with(Cell::dead(VALUE, 5, DELETED_AT))).await;
        apply(2, with(Cell::live(VALUE, 1, b"y"))).await;
        engine.flush(None).await.unwrap();
        assert_eq!(seen(&engine, &schema, 1, false).await, Vec::<Vec<u8>>::new());
        engine.compact_major(schema.id).await.unwrap();
        apply(1, with(Cell::live(VALUE, 1, b"x"))).await;
        assert_eq!(seen(&engine, &schema, 1, true).await, [b"x".to_vec()]);
        assert_eq!(seen(&engine, &schema, 1, false).await, [b"x".to_vec()]);
        engine.stop().await;
    });
}

/// The keys that were found in the cache, in the order of the ring, and no more than are asked for.
/// Reading them in makes the next read of each a hit.
#[test]
fn keys_that_are_read_often_are_listed_and_read_in() {
    rt::block_on(async {
        let scratch = Scratch::new("row-cache-hot");
        let schema = key_value(1);
        let engine = open(config(&scratch, 16 << 20), &schema, &tablets(1)).await;
        for k in 0..50i32 {
            let mut row = RowBuilder::new(Some(Marker::new(1)), Tombstone::LIVE);
            row.push(&Cell::live(VALUE, 1, b"x"));
            let mut builder = MutationBuilder::new(schema.id, schema.version, &k.to_be_bytes());
            builder.row(Clustering::EMPTY, row.finish());
            engine.apply_durably(&builder.finish(&schema), &key(k)).await.unwrap();
        }
        engine.flush(None).await.unwrap();
        // One read brings a row into the cache, and a second one finds it there.
        for k in (0..20).chain(0..10) {
            seen(&engine, &schema, k, false).await;
        }
        let mut expected: Vec<_> = (0..10).map(key).collect();
        expected.sort_by_key(|key| key.token);
        let expected: Vec<_> = expected.into_iter().map(|key| key.key).collect();
        assert_eq!(engine.hot_keys(schema.id, 0, 1000).await, expected);
        assert_eq!(engine.hot_keys(schema.id, 0, 8).await.len(), 2, "keys of four bytes");
        assert!(engine.hot_keys(schema.id, 1, 1000).await.is_empty(), "no such tablet");

        engine.drop_caches();
        engine.read_in(schema.id, &expected).await.unwrap();
        let misses = engine.metrics().rows.misses;
        for k in 0..10 {
            seen(&engine, &schema, k, false).await;
        }
        assert_eq!(engine.metrics().rows.misses, misses);
        engine.stop().await;
    });
}
