//! A disk that fills up, on the simulated machine: writes are refused, and the node keeps
//! running. When there is space again, it continues with all acknowledged writes.

use crate::support::*;
use engine::Engine;
use engine::commitlog::SyncMode;
use model::range::{PartitionRange, Slice};
use model::schema::TableSchema;
use rt::sim::{Disk, Refusal};
use std::path::Path;
use std::rc::Rc;

/// 3 kB that do not compress.
fn noise(number: i32) -> String {
    let mut state = number as u64;
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        char::from(b'!' + (state >> 40) as u8 % 90)
    };
    (0..3000).map(|_| next()).collect()
}

#[test]
fn a_full_disk_refuses_and_recovers() {
    for seed in 0..3 {
        let disk = Disk::new(seed);
        let dir = Path::new("/data");
        let schema = schema(0, |_| {});
        let mut acked = Naive::default();
        rt::sim::block_on(seed, &disk, async {
            let mut config = config(dir, 256 << 10);
            config.log.mode = SyncMode::Batch;
            let engine = open(config, &schema, &tablets(2)).await;
            let mut refused = 0;
            let mut number = 0;
            disk.set_free(3 << 20);
            // Retries of flushes sleep for seconds; simulated time makes that nothing.
            while refused < 2 {
                number += 1;
                assert!(number < 5_000, "seed {seed}: the disk never gets full");
                let change = Change::Insert { k: number % 50, c: number, value: noise(number) };
                let mutation = change.mutation(&schema, i64::from(number));
                match engine.apply_durably(&mutation, &key(number % 50)).await {
                    Ok(()) => acked.changes.push((i64::from(number), change)),
                    Err(_) => refused += 1,
                }
            }
            assert!(!acked.changes.is_empty());
            let found = read(&engine, schema.id, PartitionRange::FULL, Slice::full()).await;
            for (k, (_, rows)) in acked.seen() {
                assert!(
                    rows.keys().all(|c| found[&k].1.contains_key(c)),
                    "seed {seed}: rows of {k} are missing while full"
                );
            }
            disk.set_free(1 << 30);
            let mut waited = 0;
            while engine.flush(None).await.is_err() {
                rt::time::sleep(std::time::Duration::from_secs(1)).await;
                waited += 1;
                assert!(waited < 60, "seed {seed}: flushes do not recover");
            }
            for _ in 0..20 {
                number += 1;
                let change = Change::Insert { k: number % 50, c: number, value: "y".into() };
                engine.apply_durably(&change.mutation(&schema, i64::from(number)), &key(number % 50)).await.unwrap();
                acked.changes.push((i64::from(number), change));
            }
            engine.compact_major(schema.id).await.unwrap();
            engine.abandon().await;
        });
        disk.lose_power();
        rt::sim::block_on(seed + 100, &disk, async {
            let engine = open(config(dir, 16 << 20), &schema, &tablets(2)).await;
            let found = read(&engine, schema.id, PartitionRange::FULL, Slice::full()).await;
            for (k, (_, rows)) in acked.seen() {
                for (c, row) in rows {
                    assert_eq!(found[&k].1.get(&c), Some(&row), "seed {seed}: row {c} of {k}");
                }
            }
            engine.stop().await;
        });
    }
}

/// Writes rows to four sstables and to a memtable.
async fn fill(engine: &Engine, schema: &TableSchema) {
    for number in 0..5 {
        for k in 0..8 {
            let change = Change::Insert { k, c: number, value: "truncated".into() };
            engine.apply_durably(&change.mutation(schema, i64::from(number)), &key(k)).await.unwrap();
        }
        if number < 4 {
            engine.flush(None).await.unwrap();
        }
    }
}

async fn truncate(engine: &Engine, schema: &TableSchema) {
    let mut failures = 0;
    while engine.truncate(schema.id, 1).await.is_err() {
        failures += 1;
        assert!(failures < 3, "a table can be truncated when there is space");
    }
}

/// While one operation runs, the disk refuses some of its writes or creations of files. Then there
/// is space again, the table is truncated, and one row is written. After a restart, the table has
/// this row and no other.
fn truncated_after(operation: impl AsyncFn(&Engine, &Rc<TableSchema>) -> bool) {
    let schema = schema(0, |_| {});
    let dir = Path::new("/data");
    let prepared = Disk::new(0);
    rt::sim::block_on(0, &prepared, async {
        let engine = open(batched(dir), &schema, &tablets(2)).await;
        fill(&engine, &schema).await;
        engine.abandon().await;
    });
    let (mut failed, mut refused_none) = (0, false);
    for skip in 0.. {
        for times in [1, 4, 1000] {
            let disk = prepared.fork();
            refused_none = rt::sim::block_on(skip, &disk, async {
                let engine = open(batched(dir), &schema, &tablets(2)).await;
                disk.refuse_below(dir.join("data/ks"), Refusal::NoSpace, skip as u32, times);
                failed += u32::from(!operation(&engine, &schema).await);
                let refused_none = disk.refuse_nothing() == times;
                truncate(&engine, &schema).await;
                let stays = Change::Insert { k: 1, c: 77, value: "stays".into() };
                engine.apply_durably(&stays.mutation(&schema, 100), &key(1)).await.unwrap();
                engine.abandon().await;
                refused_none
            });
            disk.lose_power();
            rt::sim::block_on(skip + 1000, &disk, async {
                let engine = open(batched(dir), &schema, &tablets(2)).await;
                let found = read(&engine, schema.id, PartitionRange::FULL, Slice::full()).await;
                let rows: Vec<_> = found.iter().flat_map(|(k, (_, rows))| rows.keys().map(|c| (*k, *c))).collect();
                assert_eq!(rows, [(1, 77)], "the rows after {times} refusals, from step {skip} on");
                engine.stop().await;
            });
        }
        if refused_none {
            break;
        }
    }
    assert!(failed > 10, "{failed} attempts failed");
}

fn batched(dir: &Path) -> engine::EngineConfig {
    let mut config = config(dir, 16 << 20);
    config.log.mode = SyncMode::Batch;
    config
}

#[test]
fn rows_truncated_after_a_failed_compaction_never_return() {
    truncated_after(async |engine, schema| engine.compact_major(schema.id).await.is_ok());
}

#[test]
fn rows_truncated_after_a_failed_flush_never_return() {
    truncated_after(async |engine, schema| {
        for k in 0..8 {
            let change = Change::Insert { k, c: 5, value: "truncated".into() };
            engine.apply_durably(&change.mutation(schema, 5), &key(k)).await.unwrap();
        }
        engine.flush(None).await.is_ok()
    });
}

/// Rows that arrive between a failed and a repeated TRUNCATE are truncated with the others.
#[test]
fn rows_truncated_after_a_failed_truncate_never_return() {
    truncated_after(async |engine, schema| {
        let truncated = engine.truncate(schema.id, 0).await.is_ok();
        let between = Change::Insert { k: 3, c: 66, value: "between".into() };
        engine.apply_durably(&between.mutation(schema, 50), &key(3)).await.unwrap();
        truncated & engine.flush(None).await.is_ok()
    });
}
