//! Many tablets with little data in each: the log stays within its size without a tiny sstable
//! for each of them, and nothing is lost.

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
use std::rc::Rc;

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

fn still() -> Rc<TableSchema> {
    schema(i32::MAX, |options| {
        options.compaction.insert("enabled".into(), "false".into());
    })
}

#[test]
fn small_memtables_are_relogged() {
    rt::block_on(async {
        let scratch = Scratch::new("many-tablets");
        let schema = still();
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

/// A power loss while memtables are relogged: acknowledged writes (in batch mode) survive.
#[cfg(feature = "sim")]
#[test]
fn a_power_loss_while_relogging_loses_nothing() {
    use engine::commitlog::SyncMode;
    use rt::sim::Disk;
    use std::cell::RefCell;
    use std::path::Path;
    let dir = Path::new("/var/messina");
    let schema = still();
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
#[cfg(feature = "sim")]
#[test]
fn a_full_log_relogs_too() {
    use rt::sim::{Disk, Latency};
    use std::path::Path;
    const WRITERS: i32 = 8;
    let (dir, schema, disk) = (Path::new("/data"), still(), Disk::new(5));
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
#[cfg(feature = "sim")]
#[test]
fn a_power_loss_in_a_start_that_relogs_loses_nothing() {
    use engine::commitlog::SyncMode;
    use rt::sim::{Disk, PowerLost};
    use std::path::Path;
    const TABLETS: u64 = 24;
    let (dir, schema) = (Path::new("/data"), still());
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

#[test]
fn what_each_source_holds_is_shown_apart() {
    rt::block_on(async {
        let scratch = Scratch::new("parts");
        let schema = still();
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
        let schema = still();
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
