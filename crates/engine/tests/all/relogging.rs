//! Many tablets with little data in each, on a simulated disk: a full log and power losses while
//! small memtables are relogged.

use crate::support::*;
use engine::commitlog::SyncMode;
use model::range::{PartitionRange, Slice};
use rt::sim::{Disk, Latency, PowerLost};
use rt::time::Duration;
use std::cell::RefCell;
use std::path::Path;

/// A power loss while memtables are relogged: acknowledged writes (in batch mode) survive.
#[test]
fn a_power_loss_while_relogging_loses_nothing() {
    let dir = Path::new("/var/messina");
    let schema = still(i32::MAX);
    let mut relogged = 0;
    for seed in 0..12 {
        let disk = Disk::new(seed);
        rt::sim::block_on(seed, &disk, async {
            rt::fs::create_dir_all(dir).await.unwrap();
            rt::fs::sync_dir(Path::new("/var")).await.unwrap();
            rt::fs::sync_dir(Path::new("/")).await.unwrap();
        });
        disk.power_loss_at_write(400 + seed * 90);
        // What is acknowledged, and with what was under way when the power went.
        let (acknowledged, begun) = (RefCell::new(Naive::default()), RefCell::new(Naive::default()));
        let seen = RefCell::new(0);
        let lost = rt::sim::run(seed, &disk, async {
            let mut config = config(dir, 64 << 20);
            config.log.mode = SyncMode::Batch;
            let engine = open(config, &schema, &tablets(24)).await;
            let mut timestamp = 0;
            let mut write = async |change: Change| {
                timestamp += 1;
                begun.borrow_mut().changes.push((timestamp, change.clone()));
                engine.apply_durably(&change.mutation(&schema, timestamp), &key(change.k())).await.unwrap();
                acknowledged.borrow_mut().changes.push((timestamp, change));
            };
            for round in 0..400 {
                for k in (0..40).take_while(|k| round < 6 || *k == 0) {
                    write(match (k + round) % 7 {
                        0 => Change::DeletePartition { k },
                        1 => Change::DeleteRange { k, from: 0, to: round },
                        _ => Change::Insert { k, c: round, value: "v".into() },
                    })
                    .await;
                }
                write(Change::Update { k: 1000, c: round % 9, value: format!("{round}{}", "x".repeat(240_000)) }).await;
                *seen.borrow_mut() = engine.metrics().relogged;
            }
        });
        assert!(lost.is_err(), "the power went");
        relogged += seen.into_inner();
        disk.no_power_loss();
        disk.lose_power();
        rt::sim::block_on(seed, &disk, async {
            let engine = open(config(dir, 64 << 20), &schema, &tablets(24)).await;
            let found = read(&engine, schema.id, PartitionRange::FULL, Slice::full()).await;
            let (least, most) = (acknowledged.into_inner().seen(), begun.into_inner().seen());
            for k in (0..40).chain([1000]) {
                let fits = found.get(&k) == least.get(&k) || found.get(&k) == most.get(&k);
                assert!(fits, "seed {seed}: partition {k} is not as it was acknowledged");
            }
            engine.stop().await;
        });
    }
    assert!(relogged > 0, "memtables were relogged");
}

/// A log that fills faster than its segments are freed still has room for relogging, and no small
/// tablet gets a file.
#[test]
fn a_full_log_relogs_too() {
    const WRITERS: i32 = 8;
    let (dir, schema, disk) = (Path::new("/data"), still(i32::MAX), Disk::new(5));
    let (min, max) = (Duration::from_millis(5), Duration::from_millis(20));
    rt::sim::block_on(5, &disk, async {
        let engine = open(config(dir, 64 << 20), &schema, &tablets(40)).await;
        let mut naive = Naive::default();
        for k in 0..200 {
            let change = Change::Insert { k, c: 1, value: format!("v{k}") };
            engine.apply_durably(&change.mutation(&schema, 1), &key(k)).await.unwrap();
            naive.changes.push((1, change));
        }
        disk.set_latency(Latency { min, max, slow_permille: 1000 });
        let writers: Vec<_> = (0..WRITERS)
            .map(|c| {
                let (engine, schema) = (engine.clone(), schema.clone());
                rt::task::spawn(async move {
                    let mut waited = 0;
                    for i in 0..50 {
                        let change = Change::Insert { k: 1000, c, value: format!("{i:060000}") };
                        engine.apply_durably(&change.mutation(&schema, i), &key(1000)).await.unwrap();
                        waited = engine.metrics().log.blocked_writers.max(waited);
                    }
                    waited
                })
            })
            .collect();
        let mut waited = 0;
        for writer in writers {
            waited = writer.await.unwrap().max(waited);
        }
        naive
            .changes
            .extend((0..WRITERS).map(|c| (49, Change::Insert { k: 1000, c, value: format!("{:060000}", 49) })));
        let metrics = engine.metrics();
        assert!(waited > 0, "the log was never full");
        assert!(metrics.relogged >= 30, "{} were relogged", metrics.relogged);
        assert!(metrics.flushes < 24, "{} flushes for one large partition", metrics.flushes);
        assert!(metrics.log.disk_total_bytes <= (8 + 2) << 20, "{} bytes of log", metrics.log.disk_total_bytes);
        assert_eq!(read(&engine, schema.id, PartitionRange::FULL, Slice::full()).await, naive.seen());
        engine.abandon().await;
    });
}

/// A start replays many small memtables and relogs them. A power loss at any write of it, and
/// another one during the next start, lose nothing. `POWER_LOSS_STEP=1` tests every write; by
/// default every third.
#[test]
fn a_power_loss_in_a_start_that_relogs_loses_nothing() {
    const TABLETS: u64 = 24;
    let (dir, schema) = (Path::new("/data"), still(i32::MAX));
    let step = std::env::var("POWER_LOSS_STEP").ok().and_then(|step| step.parse().ok()).unwrap_or(3).max(1);
    for (seed, mode) in [(1, SyncMode::Batch), (2, SyncMode::Periodic { period: Duration::from_millis(50) })] {
        let config = || {
            let mut config = config(dir, 64 << 20);
            config.log.mode = mode;
            // The relogged memtables take several of them.
            (config.log.segment_size, config.log.total_size_limit) = (40 << 10, 1 << 20);
            config
        };
        let disk = Disk::new(seed);
        let mut naive = Naive::default();
        rt::sim::block_on(seed, &disk, async {
            let engine = open(config(), &schema, &tablets(TABLETS)).await;
            for i in 0..150 {
                let k = i % 60;
                let change = match i % 7 {
                    0 => Change::DeletePartition { k },
                    1 => Change::DeleteRange { k, from: 0, to: 1 },
                    2 => Change::Static { k, value: format!("s{i}") },
                    _ => Change::Insert { k, c: i % 3, value: format!("{i:01000}") },
                };
                engine.apply_durably(&change.mutation(&schema, i.into()), &key(k)).await.unwrap();
                naive.changes.push((i.into(), change));
            }
            engine.sync_log().await.unwrap();
            engine.abandon().await;
        });
        disk.lose_power();
        let wanted = naive.seen();
        let start = async |check: bool| {
            let engine = open(config(), &schema, &tablets(TABLETS)).await;
            if check {
                assert_eq!(read(&engine, schema.id, PartitionRange::FULL, Slice::full()).await, wanted);
            }
            engine
        };
        let whole = disk.fork();
        let before = whole.writes();
        rt::sim::block_on(seed, &whole, async {
            let engine = start(true).await;
            let metrics = engine.metrics();
            assert!(
                metrics.relogged > 16 && metrics.flushes == 0,
                "{} relogged, {} flushed",
                metrics.relogged,
                metrics.flushes
            );
            assert!(metrics.log.segments > 1, "several segments: {:?}", metrics.log);
            engine.abandon().await;
        });
        let writes = whole.writes() - before;
        assert!(writes > 20, "{writes} writes");
        let mut lost = 0;
        for n in (1 + seed..=writes).step_by(step) {
            let disk = disk.fork();
            disk.power_loss_at_write(n);
            let first: Result<_, PowerLost> =
                rt::sim::run(seed + n, &disk, async { start(false).await.abandon().await });
            lost += u32::from(first.is_err());
            disk.no_power_loss();
            if n.is_multiple_of(2) {
                disk.power_loss_at_write(1 + n % 37);
                let _: Result<_, PowerLost> =
                    rt::sim::run(seed + n, &disk, async { start(false).await.abandon().await });
                disk.no_power_loss();
            }
            disk.lose_power();
            rt::sim::block_on(seed + n, &disk, async {
                start(true).await.stop().await;
            });
            rt::sim::block_on(seed + n, &disk, async {
                start(true).await.stop().await;
            });
        }
        assert!(lost > 3, "the power went during {lost} starts");
    }
}
