//! Power loss at every write of a small random workload, on the simulated disk: acknowledged
//! writes survive, and deleted data does not return.
//!
//! By default every 23rd write is tested, with another first one for each seed.
//! `POWER_LOSS_STEP=1` tests every write (ten minutes).
//!
//! RUSTFLAGS="--cfg tokio_unstable" CARGO_TARGET_DIR=target/sim cargo test -p messina-engine
//! --features sim --test all power_loss::

use crate::support::*;
use engine::Engine;
use engine::commitlog::SyncMode;
use model::range::{PartitionRange, Slice};
use model::schema::TableSchema;
use rt::sim::{Disk, Latency, PowerLost, Unsynced};
use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

#[derive(Clone, Debug)]
enum Op {
    Change(Change),
    Flush,
    CompactMajor,
    Truncate,
    Sync,
}

/// splitmix64, so that a workload depends on its seed alone.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (x ^ (x >> 31)) % below
    }
}

fn workload(seed: u64, len: usize) -> Vec<Op> {
    let mut numbers = Numbers(seed);
    (0..len)
        .map(|i| {
            let (k, c) = (numbers.next(4) as i32, numbers.next(6) as i32);
            let value = format!("v{i}");
            match numbers.next(40) {
                0..18 => Op::Change(Change::Insert { k, c, value }),
                18..21 => Op::Change(Change::Static { k, value }),
                21..25 => Op::Change(Change::DeleteRow { k, c }),
                25..28 => Op::Change(Change::DeleteRange { k, from: c, to: c + 2 }),
                28..30 => Op::Change(Change::DeletePartition { k }),
                30..35 => Op::Flush,
                35..37 => Op::CompactMajor,
                37..38 => Op::Truncate,
                _ => Op::Sync,
            }
        })
        .collect()
}

/// The progress of a run.
#[derive(Clone, Default)]
struct Progress {
    /// Operations that were begun; all but the last are acknowledged.
    begun: usize,
    /// The number of operations that are on the device.
    durable: usize,
}

async fn work(dir: &Path, schema: &Rc<TableSchema>, mode: SyncMode, ops: &[Op], progress: &RefCell<Progress>) {
    let mut config = config(dir, 16 << 20);
    config.log.mode = mode;
    let engine = open(config, schema, &tablets(2)).await;
    for (i, op) in ops.iter().enumerate() {
        progress.borrow_mut().begun = i + 1;
        match op {
            Op::Change(change) => {
                let mutation = change.mutation(schema, i as i64 + 1);
                engine.apply_durably(&mutation, &key(change.k())).await.unwrap();
            }
            Op::Flush => engine.flush(None).await.unwrap(),
            Op::CompactMajor => engine.compact_major(schema.id).await.unwrap(),
            Op::Truncate => drop(engine.truncate(schema.id, rt::time::wall_micros()).await.unwrap()),
            Op::Sync => engine.sync_log().await.unwrap(),
        }
        let durable = mode == SyncMode::Batch || !matches!(op, Op::Change(_));
        if durable {
            progress.borrow_mut().durable = i + 1;
        }
    }
    engine.stop().await;
}

/// The visible rows after the first `n` operations.
fn after(ops: &[Op], n: usize) -> Seen {
    let mut naive = Naive::default();
    for (i, op) in ops[..n].iter().enumerate() {
        match op {
            Op::Change(change) => naive.changes.push((i as i64 + 1, change.clone())),
            Op::Truncate => naive.changes.clear(),
            _ => {}
        }
    }
    naive.seen()
}

/// Each partition must look as after some prefix of the operations that has all durable ones.
fn check(ops: &[Op], progress: &Progress, found: &Seen, context: &str) {
    let prefixes: Vec<Seen> = (progress.durable..=progress.begun).map(|n| after(ops, n)).collect();
    for k in 0..4 {
        let fits = prefixes.iter().any(|wanted| wanted.get(&k) == found.get(&k));
        assert!(
            fits,
            "{context}: partition {k} is {:?}, none of {:?}; {progress:?}",
            found.get(&k),
            prefixes.iter().map(|p| p.get(&k)).collect::<Vec<_>>(),
            progress = (progress.durable, progress.begun)
        );
    }
}

fn lose_power_everywhere(seed: u64, mode: SyncMode, len: usize) {
    let schema = schema(0, |options| {
        options.compaction.insert("min_threshold".into(), "2".into());
        if seed % 2 == 1 {
            // Sstables of about 200 bytes: compactions have several outputs.
            options.compaction.insert("class".into(), "LeveledCompactionStrategy".into());
            options.compaction.insert("sstable_size_in_mb".into(), "0.0002".into());
            options.compaction.insert("fanout_size".into(), "2".into());
        }
    });
    let ops = workload(seed, len);
    let dir = Path::new("/data");
    let step = std::env::var("POWER_LOSS_STEP").ok().and_then(|step| step.parse::<u64>().ok()).unwrap_or(23).max(1);
    let whole = Disk::new(seed);
    let progress = RefCell::new(Progress::default());
    rt::sim::block_on(seed, &whole, work(dir, &schema, mode, &ops, &progress));
    let writes = whole.writes();
    assert!(writes > len as u64);
    for n in (1 + seed % step..=writes).step_by(step as usize) {
        let disk = Disk::new(seed);
        disk.power_loss_at_write(n);
        let progress = RefCell::new(Progress::default());
        let lost = rt::sim::run(seed, &disk, work(dir, &schema, mode, &ops, &progress));
        if lost == Ok(()) {
            continue;
        }
        // Sometimes the power goes again while the node recovers.
        disk.no_power_loss();
        if n.is_multiple_of(3) {
            disk.power_loss_at_write(1 + n % 29);
            let _: Result<(), PowerLost> = rt::sim::run(seed + n, &disk, async {
                let engine = open(config(dir, 16 << 20), &schema, &tablets(2)).await;
                engine.compact_major(schema.id).await.unwrap();
                engine.stop().await;
            });
            disk.no_power_loss();
        }
        let context = format!("seed {seed}, power loss at write {n} of {writes}");
        let progress = progress.borrow().clone();
        rt::sim::block_on(seed + n, &disk, async {
            let engine = open(config(dir, 16 << 20), &schema, &tablets(2)).await;
            let found = read(&engine, schema.id, PartitionRange::FULL, Slice::full()).await;
            check(&ops, &progress, &found, &context);
            // And what was recovered stays what it is.
            engine.compact_major(schema.id).await.unwrap();
            let again = read(&engine, schema.id, PartitionRange::FULL, Slice::full()).await;
            assert_eq!(found, again, "{context}: after a compaction");
            engine.stop().await;
        });
    }
}

/// The epoch that the workload begins.
const EPOCH: u64 = 5;

/// The state of the cluster's metadata, and the progress of the node.
#[derive(Clone, Copy, Default, PartialEq)]
enum Truncating {
    #[default]
    NotYet,
    Agreed,
    Begun,
}

/// Opens the engine as a node does whose metadata has the epoch.
async fn open_in_epoch(dir: &Path, schema: &Rc<TableSchema>) -> Rc<Engine> {
    let config = || {
        let mut config = config(dir, 16 << 20);
        config.log.mode = SyncMode::Batch;
        config
    };
    let first = Engine::open(config()).await.unwrap();
    first.catch_up_with_epoch(schema, &tablets(2), EPOCH, rt::time::wall_micros()).await.unwrap();
    first.stop().await;
    let engine = open(config(), schema, &tablets(2)).await;
    engine.set_epoch(schema.id, EPOCH);
    engine
}

/// A power loss at every write of a truncation by epoch, of the operations around it, and of the
/// recovery. After the metadata has the epoch, no older data is visible, and acknowledged writes
/// of the epoch are there.
#[test]
fn an_epoch_begins_once_whenever_the_power_goes() {
    let (dir, old, new) = (Path::new("/data"), 0..6, 10..14);
    let row = |k| Change::Insert { k, c: 0, value: "v".into() };
    for seed in 1..=1 {
        let schema = schema(0, |_| {});
        let work = async |state: &RefCell<(Truncating, Vec<i32>)>| {
            let mut config = config(dir, 16 << 20);
            config.log.mode = SyncMode::Batch;
            let engine = open(config, &schema, &tablets(2)).await;
            for k in old.clone() {
                engine.apply_durably(&row(k).mutation(&schema, 9), &key(k)).await.unwrap();
                if k % 3 == 1 {
                    engine.flush(None).await.unwrap();
                }
            }
            state.borrow_mut().0 = Truncating::Agreed;
            engine.truncate_at(schema.id, EPOCH, rt::time::wall_micros()).await.unwrap();
            engine.begin_epoch(&schema, EPOCH).await.unwrap();
            state.borrow_mut().0 = Truncating::Begun;
            for k in new.clone() {
                engine.apply_durably(&row(k).mutation(&schema, 1), &key(k)).await.unwrap();
                state.borrow_mut().1.push(k);
                if k % 2 == 0 {
                    engine.flush(None).await.unwrap();
                }
            }
            engine.stop().await;
        };
        let whole = Disk::new(seed);
        rt::sim::block_on(seed, &whole, work(&RefCell::default()));
        let writes = whole.writes();
        let mut cut = [0; 3];
        for n in 1..=writes {
            let disk = Disk::new(seed);
            disk.power_loss_at_write(n);
            let state = RefCell::default();
            let _: Result<(), PowerLost> = rt::sim::run(seed, &disk, work(&state));
            disk.no_power_loss();
            let (truncating, acked) = state.into_inner();
            cut[truncating as usize] += 1;
            if truncating == Truncating::NotYet {
                continue;
            }
            if n.is_multiple_of(2) {
                disk.power_loss_at_write(1 + n % 17);
                let _: Result<(), PowerLost> = rt::sim::run(seed + n, &disk, async {
                    open_in_epoch(dir, &schema).await.stop().await;
                });
                disk.no_power_loss();
            }
            rt::sim::block_on(seed + n, &disk, async {
                let engine = open_in_epoch(dir, &schema).await;
                let found = read(&engine, schema.id, PartitionRange::FULL, Slice::full()).await;
                let context = format!("seed {seed}, power loss at write {n} of {writes}: {found:?}");
                assert!(found.keys().all(|k| new.contains(k)), "{context}");
                assert!(acked.iter().all(|k| found.contains_key(k)), "{context}, acknowledged {acked:?}");
                engine.stop().await;
            });
        }
        assert!(cut.iter().all(|cut| *cut > 3), "{cut:?}");
    }
}

#[test]
fn acked_writes_survive_power_loss_in_batch_mode() {
    for seed in 1..=3 {
        lose_power_everywhere(seed, SyncMode::Batch, 40);
    }
}

#[test]
fn synced_writes_survive_power_loss_in_periodic_mode() {
    for seed in 11..=13 {
        lose_power_everywhere(seed, SyncMode::Periodic { period: Duration::from_millis(50) }, 40);
    }
}

/// A kill leaves names that were never synced. The next run relies on them, and then the power
/// fails.
#[test]
fn an_sstable_that_a_kill_left_half_sealed_outlives_a_power_loss() {
    let (schema, dir, disk) = (schema(0, |_| {}), Path::new("/data"), Disk::new(7));
    let slow = Duration::from_millis(2);
    disk.set_latency(Latency { min: slow, max: slow, slow_permille: 1000 });
    disk.set_unsynced(Unsynced::Lost);
    rt::sim::block_on(1, &disk, async {
        let engine = open(config(dir, 16 << 20), &schema, &tablets(1)).await;
        let change = Change::Insert { k: 1, c: 1, value: "v".into() };
        engine.apply_durably(&change.mutation(&schema, 1), &key(1)).await.unwrap();
        engine.sync_log().await.unwrap();
        rt::task::spawn(async move { engine.flush(None).await }).detach();
        while !disk.files().iter().any(|(file, _)| file.to_string_lossy().ends_with("-TOC.txt")) {
            rt::time::sleep(Duration::from_millis(1)).await;
        }
    });
    rt::sim::block_on(2, &disk, async {
        open(config(dir, 16 << 20), &schema, &tablets(1)).await.stop().await;
    });
    disk.lose_power();
    rt::sim::block_on(3, &disk, async {
        let engine = open(config(dir, 16 << 20), &schema, &tablets(1)).await;
        let found = read(&engine, schema.id, PartitionRange::FULL, Slice::full()).await;
        assert_eq!(found.len(), 1, "{found:?}");
        engine.stop().await;
    });
}
