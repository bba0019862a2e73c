//! The end of a commitlog after a crash: replay detects damage in synced records.

use super::super::manifest::{Manifest, segment_path};
use super::super::*;
use super::setup::*;
use model::HostId;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;
use test_support::Scratch;
use uuid::Uuid;

const NEVER: SyncMode = SyncMode::Periodic { period: Duration::from_secs(3600) };
const RECORDS: u64 = 4;
/// Bytes of each mutation beyond its ids and number.
const LEN: usize = 20;

/// A run that was killed after its last record was acknowledged. Where the records begin, and the
/// file they are in.
async fn killed(root: &Path, mode: SyncMode) -> (Rc<Commitlog>, Vec<Position>, PathBuf) {
    let config = CommitlogConfig { host: Some(HostId(Uuid::from_u128(1))), ..config(root, mode) };
    let log = Commitlog::open(config).await.expect("opened");
    let schema = schema(1, 1);
    let mut positions = Vec::new();
    for number in 0..RECORDS {
        let mutation = mutation(&schema, number, LEN);
        let entry = Entry { schema: &schema, slot: SlotId(0), mutation: &mutation };
        let position = log.append_wait(&[entry]).await.expect("appended").position;
        log.acknowledged(position).await.expect("acknowledged");
        positions.push(position);
    }
    let file = segment_path(&log.run_dir, positions[0].segment);
    log.abandon().await;
    (log, positions, file)
}

fn flip(path: &Path, bit: usize) {
    let mut bytes = std::fs::read(path).expect("readable");
    bytes[bit / 8] ^= 1 << (bit % 8);
    std::fs::write(path, bytes).expect("writable");
}

fn all() -> Vec<u64> {
    (0..RECORDS).collect()
}

#[test]
fn a_bit_that_flips_in_the_last_acknowledged_record_is_damage() {
    let modes = [SyncMode::Batch, SyncMode::Group { window: Duration::from_millis(1) }];
    for (index, mode) in modes.into_iter().enumerate() {
        rt::block_on(async {
            let scratch = Scratch::new(&format!("log-tail{index}"));
            let (_log, positions, file) = killed(&scratch, mode).await;
            let last = positions[RECORDS as usize - 1].offset as usize;
            let good = std::fs::read(&file).expect("readable");
            let end = last + 32 + mutation(&schema(1, 1), 0, LEN).len();
            for bit in last * 8..end * 8 {
                flip(&file, bit);
                let error = read_all(&scratch, false).await.expect_err("an acknowledged record is damaged");
                assert!(
                    matches!(&error, LogError::Corrupt { offset, .. } if *offset == last as u64),
                    "bit {bit}: {error}"
                );
                let (found, report) = read_all(&scratch, true).await.expect("ignored");
                assert_eq!((found, report.skipped.len()), ((0..RECORDS - 1).collect(), 1), "bit {bit}");
                std::fs::write(&file, &good).expect("restored");
            }
        });
    }
}

#[test]
fn unsynced_records_are_a_torn_tail() {
    rt::block_on(async {
        let scratch = Scratch::new("log-tail-unsynced");
        let (_log, positions, file) = killed(&scratch, NEVER).await;
        flip(&file, (positions[2].offset as usize + 40) * 8);
        let (found, report) = read_all(&scratch, false).await.expect("a torn tail");
        assert_eq!((found, report.tails.len()), (vec![0, 1], 1));
    });
}

#[test]
fn damage_to_what_says_how_far_it_was_synced_loses_nothing() {
    rt::block_on(async {
        let scratch = Scratch::new("log-tail-note");
        let (log, positions, file) = killed(&scratch, SyncMode::Batch).await;
        let note = log.run_dir.join("synced");
        let good = std::fs::read(&note).expect("it is there");
        for bit in 0..good.len() * 8 {
            flip(&note, bit);
            assert_eq!(numbers(&scratch).await, all(), "bit {bit}");
            std::fs::write(&note, &good).expect("restored");
        }
        // As releases before there was such a file left a run.
        std::fs::remove_file(&note).expect("removed");
        assert_eq!(numbers(&scratch).await, all());
        flip(&file, (positions[3].offset as usize + 40) * 8);
        let (found, _) = read_all(&scratch, false).await.expect("nothing says that it was synced");
        assert_eq!(found, [0, 1, 2]);
    });
}

#[test]
fn an_orderly_end_needs_no_note() {
    rt::block_on(async {
        let scratch = Scratch::new("log-tail-closed");
        let log = Commitlog::open(config(&scratch, SyncMode::Batch)).await.expect("opened");
        let schema = schema(1, 1);
        let position = log.append(&schema, SlotId(0), &mutation(&schema, 0, LEN)).expect("appended").position;
        let file = segment_path(&log.run_dir, position.segment);
        log.close().await.expect("closed");
        assert!(!log.run_dir.join("synced").exists());
        flip(&file, (position.offset as usize + 40) * 8);
        let error = read_all(&scratch, false).await.expect_err("the manifest says it was synced");
        assert!(matches!(error, LogError::Corrupt { .. }), "{error}");
    });
}

#[test]
fn missing_files_of_a_run_are_named() {
    rt::block_on(async {
        let scratch = Scratch::new("log-tail-missing");
        let root = &scratch;
        let (log, _, segment) = killed(root, SyncMode::Batch).await;
        let runs = [log.logged_run()];
        let lost = async || missing(root, &runs, HostId(Uuid::from_u128(1))).await.expect("looked");
        assert_eq!(lost().await, Vec::<String>::new());
        for name in ["synced", "manifest"] {
            let path = log.run_dir.join(name);
            let good = std::fs::read(&path).expect("it is there");
            std::fs::remove_file(&path).expect("removed");
            assert!(matches!(&*lost().await, [one] if one.contains(name)), "{name}");
            std::fs::write(&path, good).expect("restored");
        }
        let good = std::fs::read(&segment).expect("it is there");
        std::fs::write(&segment, &good[..good.len() - 1]).expect("cut");
        let error = read_all(root, false).await.expect_err("segments have their full length");
        assert!(matches!(error, LogError::Corrupt { .. }), "{error}");
        let (found, report) = read_all(root, true).await.expect("ignored");
        assert_eq!((found, report.skipped.len()), (all(), 1), "the remaining records are read");
        std::fs::write(&segment, good).expect("restored");
        for dir in [log.run_dir.as_path(), log.run_dir.parent().expect("the shard's"), root] {
            std::fs::remove_dir_all(dir).expect("removed");
            assert!(matches!(&*lost().await, [one] if *one == format!("{} is missing", dir.display())));
        }
        std::fs::create_dir_all(root).expect("for the scratch");
    });
}

/// Runs and segments of other nodes have the same names. Their records are never taken for this
/// node's own.
#[test]
fn files_of_another_node_are_not_replayed() {
    rt::block_on(async {
        let scratch = Scratch::new("log-tail-foreign");
        let root = &scratch;
        let [own, other] = [1, 2].map(|n| HostId(Uuid::from_u128(n)));
        let config = CommitlogConfig { host: Some(own), ..config(root, SyncMode::Batch) };
        let log = Commitlog::open(config).await.expect("opened");
        let schema = schema(1, 1);
        let entry = Entry { schema: &schema, slot: SlotId(0), mutation: &mutation(&schema, 0, LEN) };
        let position = log.append_wait(&[entry]).await.expect("appended").position;
        log.acknowledged(position).await.expect("acknowledged");
        log.abandon().await;
        let replayed = async |host, ignore_corruption| {
            let mut count = 0;
            let old = find_old(root).await.expect("listed");
            let options = ReplayOptions { ignore_corruption, host: Some(host) };
            let report = replay(&old, options, |_| count += 1);
            report.await.map(|report| (count, report.skipped.len()))
        };
        assert_eq!(replayed(own, false).await.expect("its own"), (1, 0));
        let runs = [log.logged_run()];
        assert_eq!(missing(root, &runs, own).await.expect("looked"), Vec::<String>::new());
        assert!(missing(root, &runs, other).await.expect("looked")[0].contains("of another node"));
        let is_foreign = |error: LogError, name: &str| {
            let why = error.to_string();
            matches!(error, LogError::Foreign(_)) && why.contains(name) && why.contains("commitlog_ignore_corruption")
        };
        assert!(is_foreign(replayed(other, false).await.expect_err("another node's"), "manifest"));
        assert_eq!(replayed(other, true).await.expect("skipped"), (0, 1));
        let manifest = Manifest::read(&log.run_dir).await.expect("whole").expect("there");
        Manifest { host: Some(other), ..manifest.clone() }.write(&log.run_dir).await.expect("written");
        assert!(is_foreign(replayed(other, false).await.expect_err("another node's"), "segment-"));
        assert_eq!(replayed(other, true).await.expect("skipped").0, 0);
        Manifest { host: None, ..manifest }.write(&log.run_dir).await.expect("written");
        assert!(is_foreign(replayed(own, false).await.expect_err("it names no node"), "manifest"));
    });
}
