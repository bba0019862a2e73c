//! Many tablets with little data in each: the log stays within its size without a tiny sstable
//! for each of them, and nothing is lost.

use crate::support::table_files::{insert, write};
use crate::support::*;
use engine::commitlog::{self, ReplayOptions};
use engine::replay_logs;
use engine::{Engine, Origin};
use model::fragment::Fragment;
use model::key::{DecoratedKey, RingCut};
use model::range::{PartitionRange, Slice};
use model::schema::TableSchema;
use rt::ShardId;
use rt::time::Duration;
use std::ops::ControlFlow;

const TABLETS: u64 = 64;

/// Writes every kind of data into every tablet, then so much into one partition that the log must
/// free segments repeatedly. `naive` gets all acknowledged mutations.
async fn fill(engine: &Engine, schema: &TableSchema, naive: &mut Naive, megabytes: i64) {
    let mut timestamp = 0;
    let mut write = async |naive: &mut Naive, change: Change| {
        timestamp += 1;
        engine.apply_durably(&change.mutation(schema, timestamp), &key(change.k())).await.unwrap();
        naive.changes.push((timestamp, change));
    };
    for k in 0..300 {
        write(naive, Change::Insert { k, c: 1, value: "deleted".into() }).await;
        match k % 5 {
            0 => write(naive, Change::DeletePartition { k }).await,
            1 => write(naive, Change::DeleteRow { k, c: 1 }).await,
            2 => write(naive, Change::DeleteRange { k, from: 0, to: 7 }).await,
            3 => write(naive, Change::Static { k, value: format!("s{k}") }).await,
            _ => {}
        }
        write(naive, Change::Insert { k, c: 2, value: format!("v{k}") }).await;
    }
    for c in 0..megabytes * 16 {
        let change = Change::Update { k: 1000, c: (c % 20) as i32, value: format!("{c:064000}") };
        write(naive, change).await;
    }
}

async fn settled(engine: &Engine) {
    while engine.metrics().log.segments > 6 {
        rt::time::sleep(Duration::from_millis(5)).await;
    }
}

#[test]
fn small_memtables_are_relogged() {
    rt::block_on(async {
        let scratch = Scratch::new("many-tablets");
        let schema = still(i32::MAX);
        let mut naive = Naive::default();
        let engine = open(config(&scratch, 64 << 20), &schema, &tablets(TABLETS)).await;
        fill(&engine, &schema, &mut naive, 24).await;
        settled(&engine).await;
        let metrics = engine.metrics();
        assert!(metrics.relogged >= 50, "{} were relogged", metrics.relogged);
        assert!(metrics.log.disk_total_bytes <= (8 + 2) << 20, "{} bytes of log", metrics.log.disk_total_bytes);
        // Where the oldest segment holds few small ones, these are flushed.
        assert!(metrics.sstables < 40, "{} sstables for one large partition and many small ones", metrics.sstables);
        assert_eq!(read(&engine, schema.id, PartitionRange::FULL, Slice::full()).await, naive.seen());
        engine.abandon().await;
        let engine = open(config(&scratch, 64 << 20), &schema, &tablets(TABLETS)).await;
        assert_eq!(read(&engine, schema.id, PartitionRange::FULL, Slice::full()).await, naive.seen(), "after a crash");
        let after = engine.metrics();
        assert!(after.relogged >= 30, "{} were relogged at the start", after.relogged);
        assert!(after.sstables <= metrics.sstables + 2, "{} sstables after the start", after.sstables);
        engine.stop().await;
    });
}

#[test]
fn the_data_of_each_source_is_shown_apart() {
    rt::block_on(async {
        let scratch = Scratch::new("parts");
        let schema = still(i32::MAX);
        let engine = open(config(&scratch, 16 << 20), &schema, &tablets(4)).await;
        let write = async |timestamp, change: Change| {
            engine.apply_durably(&change.mutation(&schema, timestamp), &key(change.k())).await.unwrap();
        };
        for k in 0..20 {
            write(1, Change::Insert { k, c: 0, value: "old".into() }).await;
        }
        engine.flush(None).await.unwrap();
        for k in (0..20).step_by(2) {
            write(2, Change::Insert { k, c: 1, value: "new".into() }).await;
        }
        write(3, Change::DeletePartition { k: 3 }).await;

        let mut expected: Vec<DecoratedKey> = (0..20).map(key).collect();
        expected.sort();
        let keys = engine.keys(schema.id, PartitionRange::FULL, 1000).await.unwrap();
        assert_eq!(keys, expected, "a deleted partition is one as well");
        let first = engine.keys(schema.id, PartitionRange::FULL, 7).await.unwrap();
        assert_eq!(first, expected[..7]);
        let after = PartitionRange { start: RingCut::after_key(&first[6]), end: RingCut::MAX };
        assert_eq!(engine.keys(schema.id, after, 1000).await.unwrap(), expected[7..]);

        for (k, memory, disk) in
            [(2, vec![1], vec![0]), (3, vec![], vec![0]), (5, vec![], vec![0]), (99, vec![], vec![])]
        {
            let (mut in_memory, mut on_disk) = (Vec::new(), Vec::new());
            let mut take = |origin: &Origin, fragment: &Fragment| {
                match origin {
                    Origin::Memtable(0) => in_memory.push(fragment.clone()),
                    Origin::Sstable(path) if path.exists() => on_disk.push(fragment.clone()),
                    other => panic!("{other:?}"),
                }
                ControlFlow::Continue(())
            };
            engine.dump_sources(schema.id, &key(k), &mut take).await.unwrap();
            let rows = |fragments: &[Fragment]| -> Vec<i32> {
                seen_of(fragments).remove(&k).map(|(_, rows)| rows.into_keys().collect()).unwrap_or_default()
            };
            assert_eq!((rows(&in_memory), rows(&on_disk)), (memory, disk), "of {k}");
            assert_eq!(in_memory.is_empty(), k == 5 || k == 99, "of {k}");
        }
        let mut taken = 0;
        let mut take = |_: &Origin, _: &Fragment| {
            taken += 1;
            ControlFlow::Break(())
        };
        engine.dump_sources(schema.id, &key(2), &mut take).await.unwrap();
        assert_eq!(taken, 1, "nothing comes after what was refused");
        engine.stop().await;
    });
}

/// A start on a full disk retries to make the replayed mutations durable. Durable ones are not
/// written again.
#[test]
fn making_replayed_data_safe_again_writes_nothing_again() {
    rt::block_on(async {
        let scratch = Scratch::new("many-tablets-again");
        let schema = still(i32::MAX);
        let config = || config(&scratch, 64 << 20);
        let engine = open(config(), &schema, &tablets(TABLETS)).await;
        let mut naive = Naive::default();
        fill(&engine, &schema, &mut naive, 0).await;
        engine.abandon().await;

        let old = commitlog::find_old(&scratch.join("commitlog")).await.unwrap();
        let engine = Engine::open(config()).await.unwrap();
        ENGINES.set(engine.clone());
        engine.add_table(schema.clone(), tablets(TABLETS)).await.unwrap();
        replay_logs(&old, *ENGINES, ReplayOptions::default(), |_, _| Some(ShardId(0))).await.unwrap();
        engine.replay_finished().await.unwrap();
        let (first, end) = (engine.metrics(), engine.log_end());
        assert!(first.relogged >= 50, "{} were relogged", first.relogged);
        let change = Change::Insert { k: 1, c: 9, value: "v".into() };
        engine.apply_durably(&change.mutation(&schema, 1 << 40), &key(1)).await.unwrap();
        naive.changes.push((1 << 40, change));
        let one = engine.log_end();
        for _ in 0..20 {
            engine.replay_finished().await.unwrap();
        }
        let again = engine.metrics();
        assert_eq!((again.relogged, again.flushes), (first.relogged, first.flushes));
        assert_eq!(engine.log_end(), one, "the log ended at {end:?} before the write");
        commitlog::retire(&old).await.unwrap();
        engine.abandon().await;
        let engine = open(config(), &schema, &tablets(TABLETS)).await;
        assert_eq!(read(&engine, schema.id, PartitionRange::FULL, Slice::full()).await, naive.seen());
        engine.stop().await;
    });
}

/// The memtables that exist are flushed, without a full memory or log.
#[test]
fn existing_memtables_are_flushed() {
    rt::block_on(async {
        let scratch = Scratch::new("existing");
        let schema = still(i32::MAX);
        let engine = open(config(&scratch, 64 << 20), &schema, &tablets(8)).await;
        // A flush ends after its memory is free: it lists the sstable.
        let flushed = async |flushes: u64| {
            while engine.metrics().memtable_bytes > 0 || engine.metrics().flushed_for_memory < flushes {
                rt::time::sleep(Duration::from_millis(1)).await;
            }
        };
        for k in 0..100 {
            write(&engine, &schema, 1, insert(k, 1, "v")).await;
        }
        engine.flush_existing_memtables();
        flushed(8).await;
        let metrics = engine.metrics();
        assert_eq!((metrics.flushes, metrics.flushed_for_memory), (8, 8));
        write(&engine, &schema, 2, insert(7, 1, "w")).await;
        engine.flush_existing_memtables();
        engine.flush_existing_memtables();
        flushed(9).await;
        assert_eq!(engine.metrics().flushed_for_memory, 9, "one tablet had something new");
        engine.stop().await;
    });
}
