//! A tablet moves from shard 0 to shard 1 while it is read and written. Afterwards it has every row
//! once, whatever comes next: compaction, truncation, a crash, the way back.

use crate::shards::{TABLETS, read_all, route, run, run_in_epoch};
use crate::support::table_files::{files, table_dir};
use crate::support::*;
use engine::{ReadOptions, TabletPlace};
use model::TableId;
use model::range::{PartitionRange, Slice};
use rt::ShardId;
use std::rc::Rc;

/// The tablet that moves. Shard 0 has it first.
const MOVES: u32 = 0;

fn table() -> TableId {
    schema(0, |_| {}).id
}

fn moving() -> engine::TabletRange {
    tablets(TABLETS).into_iter().find(|tablet| tablet.id == MOVES).unwrap()
}

/// The keys of the tablet, of the first 60.
fn keys() -> Vec<i32> {
    let range = moving().range;
    (0..60).filter(|k| range.contains(&key(*k))).collect()
}

/// Writes a row on a shard.
async fn write(on: u16, k: i32, timestamp: i64, change: Change) {
    rt::shard::call(ShardId(on), move || async move {
        let mutation = change.mutation(&schema(0, |_| {}), timestamp);
        ENGINES.get().apply_durably(&mutation, &key(k)).await.unwrap();
    })
    .await;
}

fn insert(k: i32) -> Change {
    Change::Insert { k, c: 0, value: format!("v{k}") }
}

/// Writes all rows where they belong before the move. A third of them is flushed.
async fn fill() {
    for k in 0..60 {
        write(route(&key(k), 2).0, k, 1, insert(k)).await;
        if k == 20 {
            ENGINES.call_all(|engine| async move { engine.flush(None).await.unwrap() }).await;
        }
    }
}

async fn expect(on: u16) {
    rt::shard::call(ShardId(on), || async { ENGINES.get().expect_tablet(table(), moving()) }).await;
}

async fn hand_over(from: u16, to: u16) {
    expect(to).await;
    rt::shard::call(ShardId(from), move || async move {
        ENGINES.get().hand_over(table(), MOVES, ShardId(to), *ENGINES).await.unwrap();
    })
    .await;
}

/// The tablets of each shard.
async fn owned() -> Vec<bool> {
    ENGINES.call_all(|engine| async move { engine.tablets_of(table()).contains(&MOVES) }).await
}

async fn compact(on: u16) {
    rt::shard::call(ShardId(on), || async {
        let engine = ENGINES.get();
        engine.flush(None).await.unwrap();
        engine.compact_major(table()).await.unwrap();
    })
    .await;
}

#[test]
fn a_tablet_has_every_row_once_after_its_move_and_a_crash() {
    let scratch = Scratch::new("shard-moves");
    for round in 0..3 {
        let found = run(scratch.to_path_buf(), 2, true, move || async move {
            fill().await;
            hand_over(0, 1).await;
            assert_eq!(owned().await, [false, true]);
            assert_eq!(read_all().await.len(), 60, "round {round}");
            for k in keys() {
                write(1, k, 2, Change::Insert { k, c: 1, value: "later".into() }).await;
            }
            compact(1).await;
            if round == 1 {
                hand_over(1, 0).await;
                assert_eq!(owned().await, [true, false]);
                compact(0).await;
            }
            read_all().await
        });
        let again = run(scratch.to_path_buf(), 2, true, read_all);
        assert_eq!(again, found, "after a crash in round {round}");
        assert_eq!(again.len(), 60);
    }
}

/// The log of shard 0 still has the rows that shard 1 has deleted and purged.
#[test]
fn what_the_new_shard_purges_does_not_return_from_the_log_of_the_old_one() {
    let scratch = Scratch::new("shard-moves-purged");
    run(scratch.to_path_buf(), 2, true, || async {
        fill().await;
        hand_over(0, 1).await;
        for k in keys() {
            write(1, k, 2, Change::DeletePartition { k }).await;
        }
        // The deletions are older than the grace period of no seconds.
        let written = rt::time::wall_seconds();
        while rt::time::wall_seconds() <= written + 1 {
            rt::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        compact(1).await;
    });
    let found = run(scratch.to_path_buf(), 2, true, read_all);
    assert_eq!(found.len(), 60 - keys().len());
}

#[test]
fn a_truncation_takes_what_was_handed_over() {
    for before in [true, false] {
        let scratch = Scratch::new(&format!("shard-moves-truncated-{before}"));
        run(scratch.to_path_buf(), 2, true, move || async move {
            fill().await;
            let truncate = move || async move {
                let engine = ENGINES.get();
                engine.truncate_at(table(), 5, rt::time::wall_micros()).await.unwrap();
            };
            if before {
                // Shard 0 has begun the epoch, and shard 1 has not: the move waits for it.
                rt::shard::call(ShardId(0), truncate).await;
                expect(1).await;
                let moves = rt::task::spawn(hand_over_only());
                rt::task::yield_now().await;
                assert_eq!(owned().await, [true, false]);
                rt::shard::call(ShardId(1), truncate).await;
                moves.await.unwrap();
            } else {
                hand_over(0, 1).await;
                rt::shard::call_all(truncate).await;
            }
            assert_eq!((owned().await, read_all().await.len()), (vec![false, true], 0));
            rt::shard::call(ShardId(0), || async {
                ENGINES.get().begin_epoch(&schema(0, |_| {}), 5).await.unwrap();
            })
            .await;
        });
        let dir = table_dir(&scratch);
        assert_eq!(run_in_epoch(scratch.to_path_buf(), 2, 5, true, read_all).len(), 0, "truncated {before}");
        assert!(files(&dir, "-Data.db").is_empty(), "no file is left");
    }
}

async fn hand_over_only() {
    rt::shard::call(ShardId(0), || async {
        ENGINES.get().hand_over(table(), MOVES, ShardId(1), *ENGINES).await.unwrap();
    })
    .await;
}

#[test]
fn a_reader_of_the_old_shard_ends_although_the_new_one_removes_the_files() {
    let scratch = Scratch::new("shard-moves-read");
    run(scratch.to_path_buf(), 2, true, || async {
        fill().await;
        rt::shard::call(ShardId(0), || async {
            let engine = ENGINES.get();
            engine.flush(None).await.unwrap();
            let range = PartitionRange::FULL;
            let mut reader = engine.reader(table(), range, Rc::new(Slice::full()), ReadOptions::default()).unwrap();
            // It has opened the first tablet.
            reader.advance().await.unwrap();
            hand_over(0, 1).await;
            compact(1).await;
            // Files that need not be kept open are closed, and can no longer be opened.
            engine.give_back_files();
            let (mut fragments, own) = (Vec::new(), keys());
            loop {
                while let Some(fragment) = reader.pop() {
                    fragments.push(fragment);
                }
                if reader.is_finished() {
                    break;
                }
                reader.advance().await.unwrap();
            }
            let seen = seen_of(&fragments);
            assert!(own.iter().all(|k| seen.contains_key(k)), "{own:?} of {seen:?}");
        })
        .await;
    });
}

#[test]
fn place_of_reports_where_a_tablet_is() {
    let scratch = Scratch::new("shard-moves-place");
    run(scratch.to_path_buf(), 2, true, || async {
        let (engine, k) = (ENGINES.get(), key(keys()[0]));
        assert!(!engine.moves_between_shards());
        engine.set_tablets_elsewhere(table(), [moving().range]);
        assert_eq!(engine.place_of(table(), &k), TabletPlace::Elsewhere);
        assert_eq!(engine.place_of_range(table(), &PartitionRange::FULL), TabletPlace::Elsewhere);
        engine.set_tablets_elsewhere(table(), []);
        assert_eq!((engine.moves_between_shards(), engine.place_of(table(), &k)), (false, TabletPlace::Here));
        rt::shard::call(ShardId(1), || async {
            let (engine, k) = (ENGINES.get(), key(keys()[0]));
            engine.expect_tablet(table(), moving());
            assert_eq!(engine.place_of(table(), &k), TabletPlace::Arriving);
            let waits = rt::task::spawn({
                let engine = engine.clone();
                async move { engine.tablet_arrival().await }
            });
            rt::task::yield_now().await;
            hand_over_only().await;
            waits.await.unwrap();
            assert_eq!((engine.moves_between_shards(), engine.place_of(table(), &k)), (false, TabletPlace::Here));
        })
        .await;
    });
}

/// Shard 0 has no other tablet, so that it has nothing left to truncate.
#[test]
fn a_truncation_applies_to_the_log_of_the_old_shard() {
    let scratch = Scratch::new("shard-moves-truncated-log");
    run(scratch.to_path_buf(), 2, true, || async {
        for tablet in tablets(TABLETS).into_iter().filter(|tablet| tablet.id != MOVES && tablet.id % 2 == 0) {
            rt::shard::call(ShardId(0), move || async move {
                ENGINES.get().remove_tablet(table(), tablet.id).await.unwrap();
            })
            .await;
        }
        for k in keys() {
            write(0, k, 1, insert(k)).await;
        }
        hand_over(0, 1).await;
        rt::shard::call_all(|| async {
            ENGINES.get().truncate_at(table(), 5, rt::time::wall_micros()).await.unwrap();
        })
        .await;
        ENGINES.get().begin_epoch(&schema(0, |_| {}), 5).await.unwrap();
    });
    assert_eq!(run_in_epoch(scratch.to_path_buf(), 2, 5, true, read_all).len(), 0);
}

/// The tablet leaves the node from the new shard, and returns without data.
#[test]
fn a_tablet_that_has_left_the_node_gets_nothing_from_the_log_of_its_first_shard() {
    let scratch = Scratch::new("shard-moves-left");
    run(scratch.to_path_buf(), 2, true, || async {
        for k in keys() {
            write(0, k, 1, insert(k)).await;
        }
        hand_over(0, 1).await;
        rt::shard::call(ShardId(1), || async {
            let engine = ENGINES.get();
            engine.remove_tablet(table(), MOVES).await.unwrap();
            engine.add_tablet(table(), moving()).await.unwrap();
        })
        .await;
    });
    assert_eq!(run(scratch.to_path_buf(), 2, true, read_all).len(), 0);
}

/// The interval of the log that a truncation or a removal covers ends before the next record.
#[test]
fn the_first_write_after_a_truncation_or_a_removal_survives_a_crash() {
    for removed in [false, true] {
        let scratch = Scratch::new(&format!("shard-moves-next-{removed}"));
        run(scratch.to_path_buf(), 2, true, move || async move {
            hand_over(0, 1).await;
            hand_over(1, 0).await;
            if removed {
                let engine = ENGINES.get();
                engine.remove_tablet(table(), MOVES).await.unwrap();
                engine.add_tablet(table(), moving()).await.unwrap();
            } else {
                rt::shard::call_all(|| async {
                    ENGINES.get().truncate_at(table(), 5, rt::time::wall_micros()).await.unwrap();
                })
                .await;
                ENGINES.get().begin_epoch(&schema(0, |_| {}), 5).await.unwrap();
            }
            write(0, keys()[0], 1, insert(keys()[0])).await;
        });
        let epoch = if removed { 0 } else { 5 };
        assert_eq!(run_in_epoch(scratch.to_path_buf(), 2, epoch, true, read_all).len(), 1, "removed: {removed}");
    }
}

/// Snapshots of all shards together have each sstable once, whenever they link.
#[test]
fn a_tablet_is_not_handed_over_while_a_snapshot_is_taken() {
    let scratch = Scratch::new("shard-moves-snapshot");
    run(scratch.to_path_buf(), 2, true, || async {
        fill().await;
        rt::shard::call_all(|| async { ENGINES.get().hold_tablets(table()).await }).await;
        expect(1).await;
        let moves = rt::task::spawn(hand_over_only());
        rt::time::sleep(std::time::Duration::from_millis(50)).await;
        assert_eq!(owned().await, [true, false]);
        rt::shard::call_all(|| async { ENGINES.get().release_tablets(table()) }).await;
        moves.await.unwrap();
        assert_eq!(owned().await, [false, true]);
    });
}

/// Truncations after moves cover the same parts of logs: the file of replay filters does not grow.
#[test]
fn replay_filters_do_not_grow_with_truncations() {
    let scratch = Scratch::new("shard-moves-filters");
    run(scratch.to_path_buf(), 2, true, || async {
        for round in 0..6 {
            let (from, to) = if round % 2 == 0 { (0, 1) } else { (1, 0) };
            hand_over(from, to).await;
            write(to, keys()[0], round, insert(keys()[0])).await;
            rt::shard::call_all(move || async move {
                let epoch = 5 + round as u64;
                ENGINES.get().truncate_at(table(), epoch, rt::time::wall_micros()).await.unwrap();
            })
            .await;
        }
    });
    let filters =
        files(&table_dir(&scratch), "").into_iter().filter(|path| path.to_str().unwrap().contains("replay-marks"));
    let sizes: Vec<u64> = filters.map(|path| path.metadata().unwrap().len()).collect();
    assert!(sizes.len() == 2 && sizes.iter().all(|size| *size < 1500), "{sizes:?}");
}
