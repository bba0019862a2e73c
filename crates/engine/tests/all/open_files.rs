//! Few descriptors and many sstables: all of them are served, no more are open than allowed, and
//! readers of removed sstables continue.

use crate::support::*;
use engine::{Engine, EngineConfig, ReadOptions};
use model::range::{PartitionRange, Slice};
use model::schema::TableSchema;
use std::collections::VecDeque;
use std::path::Path;
use std::rc::Rc;

/// Of three sstables.
const OPEN: usize = 6;

fn few(dir: &Path) -> EngineConfig {
    EngineConfig { open_files: OPEN, ..config(dir, 32 << 20) }
}

async fn insert(engine: &Engine, schema: &TableSchema, naive: &mut Naive, k: i32, c: i32, value: String) {
    let timestamp = naive.changes.len() as i64 + 1;
    let change = Change::Insert { k, c, value };
    engine.apply_durably(&change.mutation(schema, timestamp), &key(k)).await.unwrap();
    naive.changes.push((timestamp, change));
}

#[test]
fn many_sstables_are_served_with_few_open_files() {
    rt::block_on(async {
        let scratch = Scratch::new("open-files");
        let schema = still(i32::MAX);
        let engine = open(few(&scratch), &schema, &tablets(2)).await;
        let mut naive = Naive::default();
        for k in 0..30 {
            insert(&engine, &schema, &mut naive, k, 1, format!("v{k}")).await;
            engine.flush(None).await.unwrap();
        }
        let readers: Vec<_> = (0..30)
            .map(|k| {
                let (engine, id) = (engine.clone(), schema.id);
                let range = PartitionRange::singular(&key(k));
                rt::task::spawn(async move { read(&engine, id, range, Slice::full()).await })
            })
            .collect();
        let mut found = Seen::new();
        for reader in readers {
            found.extend(reader.await.unwrap());
        }
        assert_eq!(found, naive.seen());
        let metrics = engine.metrics();
        assert_eq!(metrics.sstables, 30);
        assert!(metrics.open_files.open <= OPEN && metrics.open_files.closed > 0, "{:?}", metrics.open_files);
        engine.abandon().await;
        let engine = open(few(&scratch), &schema, &tablets(2)).await;
        assert_eq!(engine.metrics().open_files.opened, 0, "a start opens none");
        assert_eq!(read(&engine, schema.id, PartitionRange::FULL, Slice::full()).await, naive.seen());
        assert!(engine.metrics().open_files.open <= OPEN);
        engine.stop().await;
    });
}

/// A reader uses more sstables than may be open while all of them are replaced, or truncated. It
/// reads to its end.
#[test]
fn removed_sstables_stay_open_for_their_readers() {
    for truncated in [false, true] {
        rt::block_on(async {
            let scratch = Scratch::new(&format!("kept-open-{truncated}"));
            let schema = still(i32::MAX);
            let engine = open(few(&scratch), &schema, &tablets(1)).await;
            let mut naive = Naive::default();
            for round in 0..8 {
                for c in 0..40 {
                    // More than a window of each sstable: some is read only later.
                    insert(&engine, &schema, &mut naive, c % 4, round * 40 + c, "x".repeat(4000)).await;
                }
                engine.flush(None).await.unwrap();
            }
            let wanted = naive.seen();
            let options = ReadOptions { bypass: true, ..ReadOptions::default() };
            let (range, slice) = full();
            let mut reader = engine.reader(schema.id, range, Rc::new(slice), options).unwrap();
            let mut fragments = VecDeque::new();
            assert!(reader.fill(&mut fragments).await.unwrap(), "there is more");
            if truncated {
                engine.truncate(schema.id, rt::time::wall_micros()).await.unwrap();
            } else {
                engine.compact_major(schema.id).await.unwrap();
            }
            while reader.fill(&mut fragments).await.unwrap() {}
            assert_eq!(seen_of(fragments.make_contiguous()), wanted);
            drop(reader);
            assert!(engine.metrics().open_files.open <= OPEN, "{:?}", engine.metrics().open_files);
            engine.stop().await;
        });
    }
}
