//! A disk that fills up, on the simulated machine: writes are refused, and the node keeps
//! running. When there is space again, it continues with all acknowledged writes.

use crate::support::*;
use engine::commitlog::SyncMode;
use model::range::{PartitionRange, Slice};
use rt::sim::Disk;
use std::path::Path;

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
