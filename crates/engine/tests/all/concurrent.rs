//! Concurrent writers, readers, flushes, compactions and snapshots on the simulated machine.
//! Operations are dropped at random, every seed is another interleaving, and the power fails at a
//! random write. Acknowledged writes survive, deleted data does not return, and readers never see
//! a partition in a state that it never had.
//!
//! `CONCURRENT_SEEDS` is the number of seeds.

use crate::support::*;
use engine::Engine;
use engine::commitlog::SyncMode;
use model::range::{PartitionRange, Slice};
use model::schema::TableSchema;
use rt::sim::Disk;
use std::cell::{Cell, RefCell};
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

const WRITERS: i32 = 4;
const CHANGES: usize = 40;

/// The changes of one partition, which one writer makes in order.
fn changes_of(seed: u64, k: i32) -> Vec<Change> {
    let mut state = seed.wrapping_mul(31).wrapping_add(k as u64);
    let mut next = |below: u64| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) % below
    };
    (0..CHANGES)
        .map(|i| {
            let c = next(5) as i32;
            match next(10) {
                0 => Change::DeletePartition { k },
                1 => Change::DeleteRange { k, from: c, to: c + 1 },
                2 => Change::DeleteRow { k, c },
                3 => Change::Static { k, value: format!("s{i}") },
                _ => Change::Insert { k, c, value: format!("v{i}") },
            }
        })
        .collect()
}

#[derive(Default)]
struct Progress {
    begun: Cell<usize>,
    acked: Cell<usize>,
}

/// The visible rows of a partition after its first `n` changes.
fn after(changes: &[Change], n: usize) -> Seen {
    let changes = changes[..n].iter().enumerate().map(|(i, change)| (i as i64 + 1, change.clone())).collect();
    Naive { changes }.seen()
}

fn check(changes: &[Change], acked: usize, begun: usize, found: &Seen, context: &str) {
    let fits = (acked..=begun).any(|n| after(changes, n) == *found);
    assert!(
        fits,
        "{context}: {found:?} is no state between {acked} and {begun}: {:?} .. {:?}",
        after(changes, acked),
        after(changes, begun)
    );
}

async fn read_partition(engine: &Engine, schema: &TableSchema, k: i32) -> Seen {
    read(engine, schema.id, PartitionRange::singular(&key(k)), Slice::full()).await
}

async fn live(dir: &Path, schema: &Rc<TableSchema>, seed: u64, progress: &Rc<Vec<Progress>>) {
    let mut config = config(dir, 96 << 10);
    config.log.mode = SyncMode::Batch;
    let engine = open(config, schema, &tablets(2)).await;
    let done = Rc::new(Cell::new(0));
    let mut tasks = Vec::new();
    for k in 0..WRITERS {
        let (engine, schema, progress, done) = (engine.clone(), schema.clone(), progress.clone(), done.clone());
        tasks.push(rt::task::spawn(async move {
            let mine = &progress[k as usize];
            for (i, change) in changes_of(seed, k).into_iter().enumerate() {
                mine.begun.set(i + 1);
                engine.apply_durably(&change.mutation(&schema, i as i64 + 1), &key(k)).await.unwrap();
                mine.acked.set(i + 1);
                if rt::random::below(3) == 0 {
                    rt::time::sleep(Duration::from_millis(rt::random::below(4))).await;
                }
            }
            done.set(done.get() + 1);
        }));
    }
    for _ in 0..2 {
        let (engine, schema, progress, done) = (engine.clone(), schema.clone(), progress.clone(), done.clone());
        tasks.push(rt::task::spawn(async move {
            while done.get() < WRITERS {
                let k = rt::random::below(WRITERS as u64) as i32;
                let acked = progress[k as usize].acked.get();
                let found = read_partition(&engine, &schema, k).await;
                let begun = progress[k as usize].begun.get();
                check(&changes_of(seed, k), acked, begun, &found, &format!("seed {seed}, a reader of {k}"));
                rt::task::yield_now().await;
                rt::time::sleep(Duration::from_millis(1)).await;
            }
        }));
    }
    let maintenance = {
        let (engine, schema, done) = (engine.clone(), schema.clone(), done.clone());
        rt::task::spawn(async move {
            let mut number = 0;
            while done.get() < WRITERS {
                number += 1;
                let patience = Duration::from_millis(1 + rt::random::below(20));
                let name = format!("s{number}");
                // Beyond the timeout, compactions continue beside the next operation.
                let done = match rt::random::below(6) {
                    0..3 => rt::time::timeout(patience, engine.flush(None)).await,
                    3 => rt::time::timeout(patience, engine.snapshot(schema.id, &name)).await,
                    _ => rt::time::timeout(patience, engine.compact_major(schema.id)).await,
                };
                if let Ok(done) = done {
                    done.expect("no operation fails because of another one");
                }
                rt::time::sleep(Duration::from_millis(rt::random::below(10))).await;
            }
        })
    };
    for task in tasks {
        task.await.unwrap();
    }
    maintenance.await.unwrap();
    engine.stop().await;
}

async fn look(dir: &Path, schema: &Rc<TableSchema>, seed: u64, progress: &[Progress], context: &str) {
    let engine = open(config(dir, 16 << 20), schema, &tablets(2)).await;
    let found = RefCell::new(Vec::new());
    for k in 0..WRITERS {
        let seen = read_partition(&engine, schema, k).await;
        let (acked, begun) = (progress[k as usize].acked.get(), progress[k as usize].begun.get());
        check(&changes_of(seed, k), acked, begun, &seen, &format!("{context}, partition {k}"));
        found.borrow_mut().push(seen);
    }
    engine.compact_major(schema.id).await.unwrap();
    for k in 0..WRITERS {
        assert_eq!(read_partition(&engine, schema, k).await, found.borrow()[k as usize], "{context}: after compaction");
    }
    engine.stop().await;
}

#[test]
fn acked_writes_survive_and_nothing_returns_whatever_runs_at_once() {
    let seeds = std::env::var("CONCURRENT_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(20u64);
    let tiered = schema(0, |options| {
        options.compaction.insert("min_threshold".into(), "2".into());
    });
    let leveled = schema(0, |options| {
        options.compaction.insert("min_threshold".into(), "2".into());
        options.compaction.insert("class".into(), "LeveledCompactionStrategy".into());
        options.compaction.insert("sstable_size_in_mb".into(), "0.0002".into());
        options.compaction.insert("fanout_size".into(), "2".into());
    });
    let dir = Path::new("/data");
    for seed in 0..seeds {
        let schema = if seed % 2 == 0 { &tiered } else { &leveled }.clone();
        let whole = Disk::new(seed);
        let fresh = || -> Rc<Vec<Progress>> { Rc::new((0..WRITERS).map(|_| Progress::default()).collect()) };
        let progress = fresh();
        rt::sim::block_on(seed, &whole, live(dir, &schema, seed, &progress));
        assert!(progress.iter().all(|mine| mine.acked.get() == CHANGES));
        rt::sim::block_on(seed + 1, &whole, look(dir, &schema, seed, &progress, &format!("seed {seed}, no accident")));
        let writes = whole.writes();
        for part in 1..=3 {
            let disk = Disk::new(seed);
            disk.power_loss_at_write(writes * part / 4 + seed % 7);
            let progress = fresh();
            let _ = rt::sim::run(seed, &disk, live(dir, &schema, seed, &progress));
            disk.no_power_loss();
            let context = format!("seed {seed}, power loss in part {part} of {writes} writes");
            rt::sim::block_on(seed + part, &disk, look(dir, &schema, seed, &progress, &context));
        }
    }
}
