//! On a real disk: order, acknowledgement, classification of damage, segments' lives.

use super::super::format::{Image, SEGMENT_HEADER};
use super::super::manifest::{self, segment_path};
use super::super::*;
use super::setup::*;
use rt::ShardId;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;
use test_support::Scratch;

const NEVER: SyncMode = SyncMode::Periodic { period: Duration::from_secs(3600) };

/// Waits for something that the tasks of the log do.
async fn until(what: &str, condition: impl Fn() -> bool) {
    for _ in 0..12_000 {
        if condition() {
            return;
        }
        rt::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("not within a minute: {what}");
}

/// Stops as a crash does, once the next segment is ready.
async fn crash(log: &Rc<Commitlog>) {
    until("the next segment is ready", || log.state.borrow().next.is_some()).await;
    log.abandon().await;
}

fn segments(run_dir: &Path) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = std::fs::read_dir(run_dir)
        .expect("readable")
        .map(|entry| entry.expect("readable").path())
        .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("segment-")))
        .collect();
    found.sort();
    found
}

fn flip(path: &Path, at: u64) {
    let mut bytes = std::fs::read(path).expect("readable");
    bytes[at as usize] ^= 4;
    std::fs::write(path, bytes).expect("writable");
}

#[test]
fn every_mode_keeps_what_it_acknowledged_over_a_crash() {
    let modes = [NEVER, SyncMode::Batch, SyncMode::Group { window: Duration::from_millis(2) }];
    for (index, mode) in modes.into_iter().enumerate() {
        rt::block_on(async {
            let scratch = Scratch::new(&format!("log-modes{index}"));
            let log = open(&scratch, mode).await;
            for number in 0..300 {
                append(&log, 0, number, 100).await;
            }
            log.abandon().await;
            assert_eq!(numbers(&scratch).await, (0..300).collect::<Vec<_>>());
        });
    }
}

#[test]
fn thousands_of_waiters_share_few_writes() {
    rt::block_on(async {
        let scratch = Scratch::new("log-waiters");
        let log = open(&scratch, SyncMode::Periodic { period: Duration::from_secs(10) }).await;
        let schema = schema(1, 1);
        let tasks: Vec<_> = (0..3000u64)
            .map(|number| {
                let (log, schema) = (log.clone(), schema.clone());
                rt::task::spawn(async move {
                    let mutation = mutation(&schema, number, 10);
                    let entry = Entry { schema: &schema, slot: SlotId(1), mutation: &mutation };
                    let position = log.append_wait(&[entry]).await?.position;
                    log.acknowledged(position).await
                })
            })
            .collect();
        for task in tasks {
            task.await.expect("not aborted").expect("acknowledged");
        }
        let metrics = log.metrics();
        assert_eq!(metrics.records, 3000);
        assert!(metrics.writes < 300, "{metrics:?}");
        assert_eq!((metrics.buffered_bytes, metrics.blocked_writers), (0, 0));
        log.abandon().await;
        assert_eq!(numbers(&scratch).await.len(), 3000);
    });
}

#[test]
fn a_dropped_waiter_does_not_take_anothers_wake() {
    rt::block_on(async {
        let scratch = Scratch::new("log-dropped");
        let log = open(&scratch, SyncMode::Batch).await;
        for number in 0..50 {
            let schema = schema(1, 1);
            let first = log.append(&schema, SlotId(0), &mutation(&schema, number, 10)).expect("room").position;
            let dropped = rt::time::timeout(Duration::ZERO, log.acknowledged(first));
            let second = log.append(&schema, SlotId(0), &mutation(&schema, number, 10)).expect("room").position;
            drop(dropped.await);
            log.acknowledged(second).await.expect("acknowledged");
            log.acknowledged(first).await.expect("acknowledged");
        }
        log.close().await.expect("closed");
    });
}

#[test]
fn records_carry_their_mapping_and_groups_stay_together() {
    rt::block_on(async {
        let scratch = Scratch::new("log-mapping");
        let log = open(&scratch, SyncMode::Batch).await;
        let schemas = [schema(1, 1), schema(1, 2), schema(2, 9)];
        let mut count = 0;
        for round in 0..200 {
            let mutations: Vec<_> = schemas.iter().map(|schema| mutation(schema, round, 60)).collect();
            let entries: Vec<Entry> = schemas
                .iter()
                .zip(&mutations)
                .take(1 + round as usize % 3)
                .map(|(schema, mutation)| Entry { schema, slot: SlotId(0), mutation })
                .collect();
            count += entries.len();
            log.append_wait(&entries).await.expect("appended");
        }
        log.sync_now().await.expect("synced");
        log.abandon().await;
        let old = find_old(&scratch).await.expect("listed");
        let mut replay = Replay::new(&old, ReplayOptions::default());
        let mut found = 0;
        let mut by_position = std::collections::BTreeMap::<Position, usize>::new();
        while let Some(record) = replay.next().await.expect("whole") {
            let mapping = record.mapping.expect("each segment has its mappings");
            assert_eq!((mapping.table, mapping.version), (record.table, record.schema_version));
            let schema = schemas.iter().find(|schema| schema.version == mapping.version).expect("known");
            assert_eq!(*mapping, ColumnMapping::of(schema));
            *by_position.entry(record.position).or_default() += 1;
            found += 1;
        }
        assert_eq!(found, count);
        assert!(replay.into_report().segments > 2, "the test spans segments");
        let sizes: Vec<usize> = by_position.into_values().collect();
        assert_eq!(sizes, (0..200).map(|round| 1 + round % 3).collect::<Vec<_>>());
    });
}

#[test]
fn clean_segments_are_used_again_and_their_old_records_are_dead() {
    rt::block_on(async {
        let scratch = Scratch::new("log-recycle");
        let log = open(&scratch, NEVER).await;
        let mut kept = Vec::new();
        let mut last = Position::MIN;
        for number in 0..2000 {
            if number % 400 == 7 {
                append(&log, 1, number, 200).await;
                kept.push(number);
                continue;
            }
            last = append(&log, 0, number, 200).await;
            if number % 50 == 0 {
                log.clean(SlotId(0), last);
            }
        }
        log.clean(SlotId(0), last);
        until("segments are freed", || log.metrics().segments <= kept.len() as u64 + 1).await;
        let files = log.disk_bytes() / u64::from(SEGMENT);
        assert!(files <= kept.len() as u64 + 4, "{files} files");
        log.abandon().await;
        let found = numbers(&scratch).await;
        assert!(kept.iter().all(|number| found.contains(number)), "{found:?}");
        // A segment with a needed record holds the neighbours of the record, too. Older records are
        // removed.
        assert!(found.len() < 500, "{}", found.len());
        let mut sorted = found.clone();
        sorted.sort();
        assert_eq!(sorted, found, "records of a recycled segment's earlier life would be out of order");
    });
}

#[test]
fn an_orderly_end_leaves_what_is_needed_and_nothing_else() {
    rt::block_on(async {
        let scratch = Scratch::new("log-close");
        let log = open(&scratch, NEVER).await;
        let mut last = Position::MIN;
        for number in 0..500 {
            last = append(&log, 0, number, 100).await;
        }
        log.clean(SlotId(0), last);
        log.close().await.expect("closed");
        let schema1 = schema(1, 1);
        let refused = log.append(&schema1, SlotId(0), &mutation(&schema1, 1, 1));
        assert!(matches!(refused, Err(LogError::Closed)), "{refused:?}");
        assert!(segments(&log.run_dir).is_empty());
        assert_eq!(log.disk_bytes(), 0);
        assert!(numbers(&scratch).await.is_empty());

        let log = open(&scratch, NEVER).await;
        for number in 0..500 {
            append(&log, 0, number, 100).await;
        }
        log.close().await.expect("closed");
        let (found, report) = read_all(&scratch, false).await.expect("whole");
        assert_eq!(found, (0..500).collect::<Vec<_>>());
        assert!(report.tails.is_empty(), "a run that was closed has no torn tail: {report:?}");
        let file = segments(&log.run_dir).pop().expect("the last segment is needed");
        let len = std::fs::metadata(&file).expect("there").len();
        // A part that was synced is cut off.
        std::fs::OpenOptions::new().write(true).open(&file).expect("there").set_len(1000).expect("cut");
        let error = read_all(&scratch, false).await.expect_err("records are lost");
        assert!(matches!(error, LogError::Corrupt { .. }), "{error}");
        assert!(error.to_string().contains("commitlog_ignore_corruption"), "{error}");
        assert!(len > 1000);
    });
}

#[test]
fn a_missing_segment_is_an_error_unless_ignored() {
    rt::block_on(async {
        let scratch = Scratch::new("log-missing");
        let log = open(&scratch, NEVER).await;
        for number in 0..500 {
            append(&log, 0, number, 100).await;
        }
        crash(&log).await;
        let files = segments(&log.run_dir);
        assert!(files.len() > 4);
        for missing in [0, 2, files.len() - 1] {
            let aside = scratch.join("aside");
            std::fs::rename(&files[missing], &aside).expect("moved");
            let error = read_all(&scratch, false).await.expect_err("a hole");
            assert!(matches!(&error, LogError::Missing(path) if *path == files[missing]), "{error}");
            let (found, report) = read_all(&scratch, true).await.expect("ignored");
            assert_eq!(report.skipped.iter().filter(|skipped| skipped.why == "missing").count(), 1, "{report:?}");
            assert!(found.len() >= 300, "{}", found.len());
            std::fs::rename(&aside, &files[missing]).expect("moved back");
        }
        let manifest = log.run_dir.join("manifest");
        flip(&manifest, 100);
        let error = read_all(&scratch, false).await.expect_err("a damaged manifest");
        assert!(matches!(error, LogError::Corrupt { .. }), "{error}");
        std::fs::remove_file(&manifest).expect("removed");
        let error = read_all(&scratch, false).await.expect_err("no manifest");
        assert!(matches!(error, LogError::Missing(_)), "{error}");
        let (found, report) = read_all(&scratch, true).await.expect("ignored");
        assert_eq!((found.len(), report.skipped.len()), (500, 1));
        retire(&find_old(&scratch).await.expect("listed")).await.expect("retired");
        assert!(find_old(&scratch).await.expect("listed").is_empty());
    });
}

#[test]
fn damage_before_a_synced_position_is_corruption_and_after_it_the_tail() {
    rt::block_on(async {
        let scratch = Scratch::new("log-damage");
        let log = open(&scratch, NEVER).await;
        let mut positions = Vec::new();
        for number in 0..10 {
            positions.push(append(&log, 0, number, 100).await);
        }
        log.sync_now().await.expect("synced");
        for number in 10..30 {
            positions.push(append(&log, 0, number, 100).await);
        }
        log.abandon().await;
        let file = segment_path(&log.run_dir, positions[0].segment);
        let good = std::fs::read(&file).expect("readable");
        for (number, position) in positions.iter().enumerate() {
            for at in [0, 9, 16, 40, 120] {
                flip(&file, u64::from(position.offset + at));
                let result = read_all(&scratch, false).await;
                if number < 10 {
                    let error = result.expect_err("synced records are damaged");
                    let expected = u64::from(position.offset);
                    assert!(
                        matches!(&error, LogError::Corrupt { offset, .. } if *offset == expected),
                        "record {number}: {error}"
                    );
                    let (found, report) = read_all(&scratch, true).await.expect("ignored");
                    assert_eq!(found, (0..30).filter(|n| *n != number as u64).collect::<Vec<_>>());
                    assert_eq!(report.skipped.len(), 1);
                } else {
                    let (found, report) = result.expect("the torn tail");
                    assert_eq!(found, (0..number as u64).collect::<Vec<_>>());
                    assert_eq!(report.tails.len(), 1);
                    assert_eq!(report.tails[0].position, *position);
                    assert!(report.tails[0].discarded >= 29 - number as u64, "{report:?}");
                }
                std::fs::write(&file, &good).expect("restored");
            }
        }
        flip(&file, 20);
        let error = read_all(&scratch, false).await.expect_err("a segment's header was synced before its use");
        assert!(matches!(error, LogError::Corrupt { offset: 0, .. }), "{error}");
    });
}

#[test]
fn records_of_a_later_release_are_refused_as_such() {
    rt::block_on(async {
        let scratch = Scratch::new("log-newer");
        let log = open(&scratch, SyncMode::Batch).await;
        let position = append(&log, 0, 1, 10).await;
        log.abandon().await;
        let file = segment_path(&log.run_dir, position.segment);
        let mut bytes = std::fs::read(&file).expect("readable");
        let at = position.offset as usize;
        bytes[at + 12] = 2;
        let mut covered = [0u8; 40];
        covered[0..8].copy_from_slice(&position.segment.to_le_bytes());
        covered[8..12].copy_from_slice(&position.offset.to_le_bytes());
        covered[12..].copy_from_slice(&bytes[at + 4..at + 32]);
        let crc = crc32fast::hash(&covered);
        bytes[at..at + 4].copy_from_slice(&crc.to_le_bytes());
        std::fs::write(&file, &bytes).expect("written");
        let error = read_all(&scratch, true).await.expect_err("newer");
        assert!(matches!(error, LogError::Newer { found: 2, known: 1, .. }), "{error}");
    });
}

#[test]
fn runs_are_independent_and_retire_for_good() {
    rt::block_on(async {
        let scratch = Scratch::new("log-runs");
        let mut expected = Vec::new();
        let mut highest = 0;
        for run in 0..3u64 {
            let log = open(&scratch, NEVER).await;
            assert!(log.run > highest, "segment ids grow across restarts");
            for number in run * 100..run * 100 + 80 {
                let position = append(&log, 0, number, 300).await;
                expected.push(number);
                highest = position.segment;
            }
            log.abandon().await;
        }
        let old = find_old(&scratch).await.expect("listed");
        assert_eq!(old.runs.len(), 3);
        assert_eq!(numbers(&scratch).await, expected);
        let log = open(&scratch, NEVER).await;
        append(&log, 0, 999, 10).await;
        retire(&old).await.expect("retired");
        log.abandon().await;
        assert_eq!(numbers(&scratch).await, [999]);
    });
}

#[test]
fn logs_of_removed_shards_are_found_and_distributed() {
    rt::block_on(async {
        let scratch = Scratch::new("log-shards");
        for shard in 0..5u16 {
            let config = CommitlogConfig {
                dir: scratch.join(shard.to_string()),
                shard: ShardId(shard),
                ..config(&scratch, SyncMode::Batch)
            };
            let log = Commitlog::open(config).await.expect("opened");
            let position = append(&log, 0, u64::from(shard), 10).await;
            assert_eq!(shard_of_segment(position.segment), ShardId(shard));
            assert!(position.segment < i64::MAX as u64);
            log.abandon().await;
        }
        assert_eq!(numbers(&scratch).await, [0, 1, 2, 3, 4]);
        let old = find_old(&scratch).await.expect("listed");
        let parts = [old.part(ShardId(0), 2), old.part(ShardId(1), 2)];
        assert_eq!(parts.iter().map(|part| part.runs.len()).sum::<usize>(), 5);
        for part in &parts {
            retire(part).await.expect("retired");
        }
        assert!(find_old(&scratch).await.expect("listed").is_empty());
        assert_eq!(std::fs::read_dir(&scratch).expect("there").count(), 0, "empty directories go");
    });
}

#[test]
fn an_image_ends_where_the_segment_says() {
    rt::block_on(async {
        let scratch = Scratch::new("log-image");
        let log = open(&scratch, NEVER).await;
        for number in 0..200 {
            append(&log, 0, number, 100).await;
        }
        crash(&log).await;
        for path in segments(&log.run_dir) {
            let bytes = std::fs::read(&path).expect("readable");
            fuzz_segment(&bytes);
            assert_eq!(bytes.len(), SEGMENT as usize);
            let header = super::super::format::SegmentHeader::decode(&bytes).expect("whole");
            assert_eq!(header.run, log.run);
            let image = Image { bytes: &bytes, segment: header.segment };
            assert!(
                image.header(SEGMENT_HEADER as usize).is_some()
                    || path == *segments(&log.run_dir).last().expect("some")
            );
        }
    });
}

/// A start on a full disk retires old logs again and again: what an attempt before has removed is
/// no error.
#[test]
fn logs_are_retired_again_after_a_failure() {
    rt::block_on(async {
        let scratch = Scratch::new("log-retired-again");
        for number in 1..4 {
            let log = open(&scratch, SyncMode::Batch).await;
            append(&log, 0, number, 10).await;
            log.abandon().await;
        }
        let old = find_old(&scratch).await.expect("listed");
        assert_eq!(old.runs.len(), 3);
        // The one attempt got so far: a run is gone, the manifest of another one is renamed, and
        // half of its files are removed.
        std::fs::remove_dir_all(&old.runs[0].dir).expect("removed");
        let second = &old.runs[1].dir;
        std::fs::rename(second.join(manifest::NAME), second.join(manifest::RETIRED)).expect("renamed");
        std::fs::remove_file(segment_path(second, old.runs[1].run)).expect("removed");
        for _ in 0..2 {
            retire(&old).await.expect("the remaining runs are retired");
        }
        assert!(find_old(&scratch).await.expect("listed").is_empty());
    });
}
