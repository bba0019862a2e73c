//! Tablets that are added to a shard and removed from it while their table is served, over
//! crashes.

use crate::support::*;
use engine::{Engine, TabletRange};
use model::range::Slice;
use model::schema::TableSchema;
use std::rc::Rc;

const KEYS: i32 = 40;

async fn write_all(engine: &Engine, schema: &TableSchema, value: &str) {
    for k in 0..KEYS {
        let change = Change::Insert { k, c: 1, value: value.into() };
        // Those of tablets that are elsewhere are not taken.
        let _ = engine.apply_durably(&change.mutation(schema, 1), &key(k)).await;
    }
}

/// The number of partitions of a tablet that an engine has.
async fn held(engine: &Engine, schema: &Rc<TableSchema>, tablet: &TabletRange) -> usize {
    let seen = read_fragments(engine, schema.id, tablet.range.clone(), Slice::full(), Default::default()).await;
    seen.iter().filter(|fragment| matches!(fragment, model::fragment::Fragment::PartitionStart { .. })).count()
}

fn of(tablet: &TabletRange) -> usize {
    (0..KEYS).filter(|k| tablet.range.contains(&key(*k))).count()
}

/// The data of a removed tablet is gone: from memory, from the disk, and from replay, also when
/// the tablet is added again.
#[test]
fn a_tablet_that_leaves_takes_its_data_along_for_good() {
    for flushed in [false, true] {
        let scratch = Scratch::new(&format!("leaves-{flushed}"));
        rt::block_on(async {
            let (schema, all) = (schema(0, |_| {}), tablets(4));
            let engine = open(config(&scratch, 16 << 20), &schema, &all).await;
            write_all(&engine, &schema, "old").await;
            if flushed {
                engine.flush(None).await.unwrap();
            }
            engine.remove_tablet(schema.id, 1).await.unwrap();
            engine.remove_tablet(schema.id, 1).await.unwrap();
            assert_eq!(held(&engine, &schema, &all[1]).await, 0);
            assert_eq!(held(&engine, &schema, &all[2]).await, of(&all[2]));
            let change = (0..KEYS).find(|k| all[1].range.contains(&key(*k))).map(|k| Change::Insert {
                k,
                c: 1,
                value: "x".into(),
            });
            let change = change.unwrap();
            let refused = engine.apply_durably(&change.mutation(&schema, 2), &key(change.k())).await;
            assert!(refused.is_err(), "it is not here");
            engine.abandon().await;

            // It is somewhere else when the node starts again, then it comes back, empty.
            let others: Vec<_> = all.iter().filter(|tablet| tablet.id != 1).cloned().collect();
            let engine = open(config(&scratch, 16 << 20), &schema, &others).await;
            engine.add_tablet(schema.id, all[1].clone()).await.unwrap();
            assert_eq!(held(&engine, &schema, &all[1]).await, 0, "flushed: {flushed}");
            engine.apply_durably(&change.mutation(&schema, 2), &key(change.k())).await.unwrap();
            assert_eq!(held(&engine, &schema, &all[1]).await, 1);
            engine.remove_tablet(schema.id, 1).await.unwrap();
            engine.add_tablet(schema.id, all[1].clone()).await.unwrap();
            engine.abandon().await;

            // It is here when the log is replayed.
            let engine = open(config(&scratch, 16 << 20), &schema, &all).await;
            assert_eq!(held(&engine, &schema, &all[1]).await, 0, "flushed: {flushed}");
            assert_eq!(held(&engine, &schema, &all[3]).await, of(&all[3]));
            engine.stop().await;
        });
    }
}

/// A crash between the end of a move and the removal of the files.
#[test]
fn files_left_of_a_moved_tablet_are_removed_before_it_can_return() {
    let scratch = Scratch::new("swept");
    rt::block_on(async {
        let (schema, all) = (schema(0, |_| {}), tablets(2));
        let engine = open(config(&scratch, 16 << 20), &schema, &all).await;
        write_all(&engine, &schema, "old").await;
        engine.flush(None).await.unwrap();
        engine.stop().await;
        // At the next start the metadata log shows that the tablet has left.
        let engine = Engine::open(config(&scratch, 16 << 20)).await.unwrap();
        assert_eq!(engine.sweep_tablet(&schema, &all[0].range).await.unwrap(), 1);
        assert_eq!(engine.sweep_tablet(&schema, &all[0].range).await.unwrap(), 0);
        engine.stop().await;
        let engine = open(config(&scratch, 16 << 20), &schema, &all).await;
        assert_eq!((held(&engine, &schema, &all[0]).await, held(&engine, &schema, &all[1]).await), (0, of(&all[1])));
        engine.stop().await;

        // The tablet is not added at start: its old data is removed when it is added.
        let engine = open(config(&scratch, 16 << 20), &schema, &all[..1]).await;
        engine.add_tablet(schema.id, all[1].clone()).await.unwrap();
        assert_eq!(held(&engine, &schema, &all[1]).await, 0);
        engine.stop().await;
        let engine = open(config(&scratch, 16 << 20), &schema, &all).await;
        assert_eq!(held(&engine, &schema, &all[1]).await, 0, "its files were removed");
        engine.stop().await;
    });
}

/// A node counts under another id each time that a tablet of counters comes to it.
#[test]
fn counts_in_a_tablet_that_returns_have_another_id() {
    let scratch = Scratch::new("count-ids");
    rt::block_on(async {
        let (schema, plain, all) = (counters(), schema(0, |_| {}), tablets(2));
        let k = key((0..KEYS).find(|k| all[1].range.contains(&key(*k))).expect("a key of the tablet"));
        let engine = open(config(&scratch, 16 << 20), &schema, &all).await;
        assert_eq!(engine.tablet_counter_id(schema.id, &k), None, "it was here from the beginning");
        let mut ids = Vec::new();
        for _ in 0..2 {
            engine.remove_tablet(schema.id, 1).await.unwrap();
            engine.add_tablet(schema.id, all[1].clone()).await.unwrap();
            ids.push(engine.tablet_counter_id(schema.id, &k).expect("it came from elsewhere"));
        }
        assert_ne!(ids[0], ids[1]);
        engine.count_apart(schema.id, &[1].into()).await.unwrap();
        assert_eq!(engine.tablet_counter_id(schema.id, &k), Some(ids[1]), "it has one");
        engine.abandon().await;

        let engine = open(config(&scratch, 16 << 20), &schema, &all).await;
        assert_eq!(engine.tablet_counter_id(schema.id, &k), Some(ids[1]), "after a restart");
        engine.count_apart(schema.id, &[0, 1].into()).await.unwrap();
        let other = key((0..KEYS).find(|k| all[0].range.contains(&key(*k))).expect("a key of the tablet"));
        assert!(engine.tablet_counter_id(schema.id, &other).is_some(), "the tablet is being received");
        engine.drop_table(schema.id, 0).await.unwrap();
        engine.add_table(plain.clone(), all.clone()).await.unwrap();
        engine.remove_tablet(plain.id, 1).await.unwrap();
        engine.add_tablet(plain.id, all[1].clone()).await.unwrap();
        assert_eq!(engine.tablet_counter_id(plain.id, &k), None, "it has no counters");
        engine.stop().await;
    });
}
