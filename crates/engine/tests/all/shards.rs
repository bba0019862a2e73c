//! Several shards on one data directory, and restarts with other numbers of shards.

use crate::support::table_files::{files, table_dir};
use crate::support::*;
use engine::commitlog::{self, OldLogs, ReplayOptions};
use engine::datadir::DataDir;
use engine::replay_logs;
use engine::{Engine, TabletRange};
use model::TableId;
use model::key::DecoratedKey;
use model::range::{PartitionRange, Slice};
use rt::{Machine, MachineConfig, ShardId};
use std::collections::BTreeMap;
use std::path::PathBuf;

pub const TABLETS: u64 = 6;

pub fn owner(tablet: u32, shards: usize) -> ShardId {
    ShardId((tablet as usize % shards) as u16)
}

pub fn route(key: &DecoratedKey, shards: usize) -> ShardId {
    let tablet = tablets(TABLETS).into_iter().find(|tablet| tablet.range.contains(key)).unwrap();
    owner(tablet.id, shards)
}

async fn add_table(dir: PathBuf, shards: usize, epoch: u64) {
    let shard = rt::shard::this();
    let schema = schema(0, |_| {});
    let mut config = config(&dir, 32 << 20);
    config.shard = shard;
    config.log.shard = shard;
    config.log.dir = dir.join("commitlog").join(shard.to_string());
    let engine = Engine::open(config).await.unwrap();
    ENGINES.set(engine.clone());
    if shard == ShardId(0) {
        engine.catch_up_with_epoch(&schema, &tablets(TABLETS), epoch, rt::time::wall_micros()).await.unwrap();
    }
    let own: Vec<TabletRange> =
        tablets(TABLETS).into_iter().filter(|tablet| owner(tablet.id, shards) == shard).collect();
    engine.add_table(schema, own).await.unwrap();
}

async fn replay_part(old: OldLogs, shards: usize) {
    let part = old.part(rt::shard::this(), shards as u16);
    let to = |_: TableId, key: &DecoratedKey| Some(route(key, shards));
    replay_logs(&part, *ENGINES, ReplayOptions::default(), to).await.unwrap();
}

/// Starts a node with this number of shards, runs `f` on shard 0, and stops it properly or
/// crashes.
pub fn run<T: Send + 'static, F>(dir: PathBuf, shards: usize, crash: bool, f: impl FnOnce() -> F + Send + 'static) -> T
where
    F: Future<Output = T> + 'static,
{
    run_in_epoch(dir, shards, 0, crash, f)
}

/// A run on a full disk: replayed data cannot be made durable, and the old logs are kept. It ends
/// with a crash.
fn run_with_old_logs<T: Send + 'static, F>(dir: PathBuf, shards: usize, f: impl FnOnce() -> F + Send + 'static) -> T
where
    F: Future<Output = T> + 'static,
{
    run_as(dir, shards, 0, true, false, f)
}

/// The same, with a table that is in this epoch according to the metadata.
pub fn run_in_epoch<T: Send + 'static, F>(
    dir: PathBuf,
    shards: usize,
    epoch: u64,
    crash: bool,
    f: impl FnOnce() -> F + Send + 'static,
) -> T
where
    F: Future<Output = T> + 'static,
{
    run_as(dir, shards, epoch, crash, true, f)
}

fn run_as<T: Send + 'static, F>(
    dir: PathBuf,
    shards: usize,
    epoch: u64,
    crash: bool,
    retires: bool,
    f: impl FnOnce() -> F + Send + 'static,
) -> T
where
    F: Future<Output = T> + 'static,
{
    let config = MachineConfig { shards, overprovisioned: true, ..MachineConfig::default() };
    let machine = Machine::start(config, |_| async { rt::shard::stopping().cancelled().await }).unwrap();
    let done = machine.remote().call(ShardId(0), move || async move {
        let _data_dir = DataDir::open(&dir, "test", shards as u16).await.unwrap();
        let old = commitlog::find_old(&dir.join("commitlog")).await.unwrap();
        for shard in 0..shards as u16 {
            let dir = dir.clone();
            rt::shard::call(ShardId(shard), move || add_table(dir, shards, epoch)).await;
        }
        let logs = old.clone();
        rt::shard::call_all(move || replay_part(logs.clone(), shards)).await;
        if retires {
            rt::shard::call_all(|| async {
                ENGINES.get().replay_finished().await.unwrap();
            })
            .await;
            commitlog::retire(&old).await.unwrap();
            ENGINES.call_all(|engine| async move { engine.start() }).await;
        }
        let out = f().await;
        rt::shard::call_all(move || async move {
            let engine = ENGINES.get();
            if crash { engine.abandon().await } else { drop(engine.stop().await) }
        })
        .await;
        out
    });
    let out = rt::block_on(done).unwrap();
    machine.stop();
    machine.join();
    out
}

pub async fn write_on_owner(k: i32, timestamp: i64, change: Change, shards: usize) {
    rt::shard::call(route(&key(k), shards), move || async move {
        let mutation = change.mutation(&schema(0, |_| {}), timestamp);
        ENGINES.get().apply_durably(&mutation, &key(k)).await.unwrap();
    })
    .await;
}

pub async fn read_all() -> Seen {
    let parts = rt::shard::call_all(|| async {
        let engine = ENGINES.get();
        read(&engine, schema(0, |_| {}).id, PartitionRange::FULL, Slice::full()).await
    })
    .await;
    let mut seen = BTreeMap::new();
    for part in parts {
        for (k, partition) in part {
            assert!(seen.insert(k, partition).is_none(), "partition {k} is on two shards");
        }
    }
    seen
}

#[test]
fn a_restart_with_another_number_of_shards_finds_everything() {
    let scratch = Scratch::new("shards");
    let mut naive = Naive::default();
    let mut timestamp = 0;
    for (run_number, (shards, crash)) in
        [(2, true), (3, false), (1, true), (4, true), (2, false)].into_iter().enumerate()
    {
        let mut changes = Vec::new();
        for k in 0..60 {
            timestamp += 1;
            let change = match (k + run_number as i32) % 7 {
                0 => Change::DeletePartition { k },
                1 => Change::DeleteRow { k, c: run_number as i32 },
                _ => Change::Insert { k, c: run_number as i32, value: format!("{run_number}-{k}") },
            };
            changes.push((timestamp, change));
        }
        let before = naive.clone();
        naive.changes.extend(changes.clone());
        let (found_before, found_after) = run(scratch.to_path_buf(), shards, crash, move || async move {
            let found_before = read_all().await;
            for (i, (timestamp, change)) in changes.into_iter().enumerate() {
                write_on_owner(change.k(), timestamp, change, shards).await;
                if i == 30 {
                    rt::shard::call_all(|| async {
                        let engine = ENGINES.get();
                        engine.flush(None).await.unwrap();
                        engine.compact_major(schema(0, |_| {}).id).await.unwrap();
                    })
                    .await;
                }
            }
            (found_before, read_all().await)
        });
        assert_eq!(found_before, before.seen(), "at the start of run {run_number} with {shards} shards");
        assert_eq!(found_after, naive.seen(), "at the end of run {run_number} with {shards} shards");
    }
}

/// The lists of sstables show the loss whichever shard owns the sstable, or the rest of the list.
#[test]
fn a_missing_sstable_is_missed_with_any_number_of_shards() {
    let scratch = Scratch::new("shards-missing");
    let insert = |k| Change::Insert { k, c: 0, value: "v".into() };
    run(scratch.to_path_buf(), 2, false, move || async move {
        for k in 0..60 {
            write_on_owner(k, 1, insert(k), 2).await;
        }
        ENGINES.call_all(|engine| async move { engine.flush(None).await.unwrap() }).await;
    });
    let dir = table_dir(&scratch);
    let aside = scratch.join("aside");
    std::fs::create_dir(&aside).unwrap();
    for toc in files(&dir, "-TOC.txt") {
        let own = toc.to_str().unwrap().trim_end_matches("TOC.txt").to_owned();
        let mut lost = files(&dir, "");
        lost.retain(|path| path.to_str().unwrap().starts_with(&own));
        lost.iter().for_each(|path| std::fs::rename(path, aside.join(path.file_name().unwrap())).unwrap());
        for (shards, crash) in [(2, false), (3, true), (1, false), (2, true)] {
            let unreadable = run(scratch.to_path_buf(), shards, crash, || async {
                let all = ENGINES.call_all(|engine| async move { engine.metrics().sstables_unreadable }).await;
                all.into_iter().max().unwrap()
            });
            assert_eq!(unreadable, 1, "{shards} shards");
        }
        lost.iter().for_each(|path| std::fs::rename(aside.join(path.file_name().unwrap()), path).unwrap());
        assert_eq!(run(scratch.to_path_buf(), 3, true, || async { read_all().await.len() }), 60);
    }
}

/// One of three shards has truncated its part when the node dies. What the others had logged and
/// flushed is discarded, whichever shard owns it afterwards.
#[test]
fn an_interrupted_truncation_is_finished_with_any_number_of_shards() {
    let insert = |k, value: &str| Change::Insert { k, c: 0, value: value.into() };
    for after in [1, 2, 3, 5] {
        let scratch = Scratch::new(&format!("shards-epoch-{after}"));
        run(scratch.to_path_buf(), 3, true, move || async move {
            for k in 0..60 {
                write_on_owner(k, 1, insert(k, "old"), 3).await;
                if k == 30 {
                    ENGINES.call_all(|engine| async move { engine.flush(None).await.unwrap() }).await;
                }
            }
            let table = schema(0, |_| {}).id;
            let truncated =
                move || async move { ENGINES.get().truncate_at(table, 8, rt::time::wall_micros()).await.map(drop) };
            rt::shard::call(ShardId(1), truncated).await.unwrap();
        });
        let left = run_in_epoch(scratch.to_path_buf(), after, 8, true, move || async move {
            let left = read_all().await;
            write_on_owner(1, 0, insert(1, "new"), after).await;
            left
        });
        assert_eq!(left, Seen::new(), "with {after} shards");
        let found = run_in_epoch(scratch.to_path_buf(), 3, 8, false, read_all);
        assert_eq!(found.into_keys().collect::<Vec<_>>(), [1], "with {after} shards in between");
    }
}

/// Three shards logged rows. A run with fewer shards, whose old logs still exist, truncates the
/// table; then the node is killed.
#[test]
fn logs_of_removed_shards_are_truncated_too() {
    let insert = |k, value: &str| Change::Insert { k, c: 0, value: value.into() };
    for after in [1, 2, 3] {
        let scratch = Scratch::new(&format!("shards-kept-logs-{after}"));
        run(scratch.to_path_buf(), 3, true, move || async move {
            for k in 0..60 {
                write_on_owner(k, 1, insert(k, "old"), 3).await;
            }
        });
        let left = run_with_old_logs(scratch.to_path_buf(), after, move || async move {
            let table = schema(0, |_| {}).id;
            assert_eq!(read_all().await.len(), 60);
            rt::shard::call_all(move || async move {
                ENGINES.get().truncate(table, rt::time::wall_micros()).await.unwrap();
            })
            .await;
            write_on_owner(1, 0, insert(1, "new"), after).await;
            read_all().await
        });
        assert_eq!(left.into_keys().collect::<Vec<_>>(), [1], "with {after} shards");
        for shards in [after, 3] {
            let found = run(scratch.to_path_buf(), shards, false, read_all);
            assert_eq!(found.into_keys().collect::<Vec<_>>(), [1], "with {after} shards, then {shards}");
        }
    }
}

/// A tablet is removed from a shard while old logs are kept, and is added again empty. Its old
/// records do not return after a crash.
#[test]
fn old_logs_that_are_kept_bring_nothing_back_into_a_tablet_that_was_away() {
    let insert = |k, value: &str| Change::Insert { k, c: 0, value: value.into() };
    let scratch = Scratch::new("shards-kept-tablet");
    run(scratch.to_path_buf(), 3, true, move || async move {
        for k in 0..60 {
            write_on_owner(k, 1, insert(k, "old"), 3).await;
        }
    });
    let own = tablets(TABLETS).remove(0);
    let range = own.range.clone();
    let inside = move |k: &i32| range.contains(&key(*k));
    run_with_old_logs(scratch.to_path_buf(), 1, move || async move {
        let engine = ENGINES.get();
        let table = schema(0, |_| {}).id;
        engine.remove_tablet(table, own.id).await.unwrap();
        engine.add_tablet(table, own).await.unwrap();
    });
    let found = run(scratch.to_path_buf(), 1, false, read_all);
    assert!((0..60).any(|k| inside(&k)) && !found.is_empty());
    assert!(!found.keys().any(inside), "{found:?}");
}
