//! On a disk that loses its power at every write, runs full, or fails.

use super::super::*;
use super::setup::*;
use rt::sim::{Disk, Fault, Refusal, Unsynced};
use rt::time::Instant;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

const ROOT: &str = "/node/commitlog";
const PERIOD: Duration = Duration::from_millis(40);

/// What the world knows of the log's contents.
#[derive(Default)]
struct LogOracle {
    next: u64,
    /// Everything appended since the last replay, in order.
    appended: Vec<u64>,
    /// Of these, what may be missing because it was said to be safe elsewhere.
    clean: BTreeSet<u64>,
    /// How many of `appended` must be there after a power loss.
    promised: usize,
    /// How many must be there when only the process was killed.
    acknowledged: usize,
}

async fn directories() {
    rt::fs::create_dir_all(Path::new(ROOT)).await.expect("made");
    for part in ["/", "/node"] {
        rt::fs::sync_dir(Path::new(part)).await.expect("synced");
    }
}

/// Checks what is there against what is known, and carries it over into a new run.
async fn recover(mode: SyncMode, known: &Rc<RefCell<LogOracle>>, power_was_lost: bool) -> Rc<Commitlog> {
    directories().await;
    let old = find_old(Path::new(ROOT)).await.expect("listed");
    let mut found = Vec::new();
    let visit = |record: ReplayedRecord| found.push(number_of(&record.mutation));
    replay(&old, ReplayOptions::default(), visit).await.expect("no power loss looks like corruption");
    {
        let mut known = known.borrow_mut();
        let mut unique = found.clone();
        unique.sort();
        unique.dedup();
        let must = if power_was_lost { known.promised } else { known.acknowledged };
        for (index, number) in known.appended.iter().enumerate() {
            let there = unique.binary_search(number).is_ok() || known.clean.contains(number);
            assert!(there || index >= must, "{number}, the {index}th of {must} that were safe, is lost");
            if !there {
                let later = known.appended[index..].iter().find(|later| unique.binary_search(later).is_ok());
                assert_eq!(later, None, "{number} is missing and a later one is there");
            }
        }
        let all: BTreeSet<u64> = known.appended.iter().copied().collect();
        assert!(unique.iter().all(|number| all.contains(number)), "a record from nowhere");
        known.appended = unique.clone();
        known.clean.clear();
        (known.promised, known.acknowledged) = (0, 0);
        found = unique;
    }
    let log = Commitlog::open(config(Path::new(ROOT), mode)).await.expect("opened");
    // As a store does: everything goes into the new log, is made durable, and only then the old
    // ones go. Until then the old runs promise what they held.
    let (promised, acknowledged) = (found.len(), found.len());
    {
        let mut known = known.borrow_mut();
        (known.promised, known.acknowledged) = (promised, acknowledged);
    }
    let schema = schema(1, 1);
    for number in found {
        let mutation = mutation(&schema, number, 20);
        let entry = Entry { schema: &schema, slot: SlotId(0), mutation: &mutation };
        log.append_wait(&[entry]).await.expect("appended");
    }
    log.sync_now().await.expect("synced");
    retire(&old).await.expect("retired");
    log
}

/// A random life of a log.
async fn live(mode: SyncMode, known: Rc<RefCell<LogOracle>>, power_was_lost: bool, steps: u64) {
    let log = recover(mode, &known, power_was_lost).await;
    let schemas = [schema(1, 1), schema(1, 2), schema(3, 3)];
    let mut last = Position::MIN;
    let mut periods: Vec<(Instant, usize)> = Vec::new();
    for _ in 0..steps {
        let count = 1 + rt::random::below(4);
        let mut appended = Vec::new();
        for _ in 0..count {
            let number = known.borrow().next;
            known.borrow_mut().next += 1;
            let schema = &schemas[rt::random::below(3) as usize];
            let mutation = mutation(schema, number, rt::random::below(1500) as usize);
            let entry = Entry { schema, slot: SlotId(0), mutation: &mutation };
            last = log.append_wait(&[entry]).await.expect("appended").position;
            appended.push(number);
            known.borrow_mut().appended.push(number);
        }
        if rt::random::below(3) > 0 {
            log.acknowledged(last).await.expect("acknowledged");
            let mut known = known.borrow_mut();
            known.acknowledged = known.appended.len();
            match mode {
                SyncMode::Periodic { .. } => periods.push((rt::time::now(), known.appended.len())),
                SyncMode::Batch | SyncMode::Group { .. } => known.promised = known.appended.len(),
            }
        }
        match rt::random::below(12) {
            0 => {
                log.sync_now().await.expect("synced");
                let mut known = known.borrow_mut();
                known.promised = known.appended.len();
            }
            1 => {
                let safe: Vec<u64> = known.borrow().appended.clone();
                known.borrow_mut().clean.extend(safe);
                log.clean(SlotId(0), last);
            }
            2 => rt::time::sleep(Duration::from_millis(rt::random::below(60))).await,
            _ => {}
        }
        // The period, and as long again for the fsync itself.
        for (at, count) in &periods {
            if at.elapsed() > PERIOD * 2 {
                let mut known = known.borrow_mut();
                known.promised = known.promised.max(*count);
            }
        }
    }
    if rt::random::below(2) == 0 {
        log.close().await.expect("closed");
        let mut known = known.borrow_mut();
        (known.promised, known.acknowledged) = (known.appended.len(), known.appended.len());
    }
}

fn modes() -> [SyncMode; 3] {
    [SyncMode::Periodic { period: PERIOD }, SyncMode::Batch, SyncMode::Group { window: Duration::from_millis(2) }]
}

#[test]
fn acked_writes_survive_a_power_loss_at_every_write() {
    for (index, mode) in modes().into_iter().enumerate() {
        for cut in 1..250u64 {
            let seed = cut * 10 + index as u64;
            let disk = Disk::new(seed);
            let known = Rc::new(RefCell::new(LogOracle::default()));
            for life in 0..3 {
                disk.power_loss_at_write(if life == 0 { cut } else { 1 + (cut * 31 + life * 17) % 200 });
                let result = rt::sim::run(seed * 10 + life, &disk, live(mode, known.clone(), true, 60));
                disk.no_power_loss();
                if result.is_ok() {
                    disk.lose_power();
                }
            }
            rt::sim::block_on(seed, &disk, live(mode, known, true, 3));
        }
    }
}

#[test]
fn acked_writes_survive_a_kill_at_any_moment() {
    for (index, mode) in modes().into_iter().enumerate() {
        for moment in 0..60u64 {
            let seed = 5000 + moment * 10 + index as u64;
            let disk = Disk::new(seed);
            let known = Rc::new(RefCell::new(LogOracle::default()));
            for life in 0..3 {
                // The page cache survives a killed process.
                rt::sim::block_on(seed + life, &disk, async {
                    let live = live(mode, known.clone(), false, 200);
                    let _ = rt::time::timeout(Duration::from_millis(1 + moment * (1 + life)), live).await;
                });
            }
            rt::sim::block_on(seed, &disk, live(mode, known, false, 1));
        }
    }
}

#[test]
fn a_failed_fsync_or_write_ends_the_log_for_good() {
    for (seed, fault) in [(1, Fault::Sync), (2, Fault::Write)] {
        let disk = Disk::new(seed);
        rt::sim::block_on(seed, &disk, async {
            directories().await;
            let log = Commitlog::open(config(Path::new(ROOT), SyncMode::Batch)).await.expect("opened");
            // Let the keeper finish the next segment, so that the fault meets a record.
            rt::time::sleep(Duration::from_millis(100)).await;
            let schema = schema(1, 1);
            disk.fail_next(fault, 1);
            let position = log.append(&schema, SlotId(0), &mutation(&schema, 1, 10)).expect("buffered").position;
            let error = log.acknowledged(position).await.expect_err("it is not safe");
            assert!(matches!(error, LogError::Failed(_)), "{error}");
            let error = log.append(&schema, SlotId(0), &mutation(&schema, 2, 10)).expect_err("for ever");
            assert!(matches!(error, LogError::Failed(_)), "{error}");
            assert!(matches!(log.failure().await, LogError::Failed(_)));
            assert!(log.sync_now().await.is_err() && log.close().await.is_err());
        });
    }
}

/// An fsync or a write fails, of a record, a segment or the manifest: the next start finds all that
/// was acknowledged.
#[test]
fn acknowledged_records_survive_any_failed_fsync_or_write() {
    for (seed, fault) in (0..60).flat_map(|seed| [(seed, Fault::Sync), (seed, Fault::Write)]) {
        let disk = Disk::new(seed);
        let safe = rt::sim::block_on(seed, &disk, async {
            directories().await;
            let log = Commitlog::open(config(Path::new(ROOT), SyncMode::Batch)).await.expect("opened");
            let schema = schema(1, 1);
            // Segments hold 15 of these: most faults meet the making of the next one.
            let due = 13 + rt::random::below(4);
            let mut safe = Vec::new();
            for number in 0..100 {
                if number == due {
                    disk.fail_next(fault, 1);
                }
                let mutation = mutation(&schema, number, 1000);
                let entry = Entry { schema: &schema, slot: SlotId(0), mutation: &mutation };
                let appended = log.append_wait(&[entry]).await;
                let Ok(Appended { position }) = appended else { break };
                if log.acknowledged(position).await.is_err() {
                    break;
                }
                safe.push(number);
            }
            log.abandon().await;
            safe
        });
        assert!(safe.len() < 100, "{fault:?}, seed {seed}: nothing failed");
        rt::sim::block_on(seed, &disk, async {
            let found: BTreeSet<u64> = numbers(Path::new(ROOT)).await.into_iter().collect();
            assert!(safe.iter().all(|number| found.contains(number)), "{fault:?}, seed {seed}: {safe:?}, {found:?}");
        });
    }
}

#[test]
fn a_full_disk_refuses_appends_until_there_is_space() {
    for seed in 0..20 {
        let disk = Disk::new(seed);
        let known = Rc::new(RefCell::new(LogOracle::default()));
        rt::sim::block_on(seed, &disk, async {
            directories().await;
            let log = Commitlog::open(config(Path::new(ROOT), SyncMode::Batch)).await.expect("opened");
            disk.set_free(rt::random::below(3 * u64::from(SEGMENT)));
            let schema = schema(1, 1);
            let mut refused = 0;
            let mut safe = Vec::new();
            for number in 0..400u64 {
                let mutation = mutation(&schema, number, 300);
                let entry = Entry { schema: &schema, slot: SlotId(0), mutation: &mutation };
                let result = match log.append_wait(&[entry]).await {
                    Ok(appended) => log.acknowledged(appended.position).await,
                    Err(error) => Err(error),
                };
                match result {
                    Ok(()) => safe.push(number),
                    Err(LogError::NoSpace) => {
                        refused += 1;
                        if refused == 10 {
                            disk.set_free(1 << 30);
                            rt::time::sleep(Duration::from_secs(3)).await;
                        }
                    }
                    Err(error) => panic!("{error}"),
                }
            }
            assert!(refused >= 10, "the disk was never full");
            assert!(safe.last() == Some(&399) && safe.len() >= 380, "{} of 400, {refused} refused", safe.len());
            known.borrow_mut().appended = safe;
        });
        disk.lose_power();
        rt::sim::block_on(seed, &disk, async {
            let found: BTreeSet<u64> = numbers(Path::new(ROOT)).await.into_iter().collect();
            assert!(known.borrow().appended.iter().all(|number| found.contains(number)));
        });
    }
}

/// It is a manifest that does not fit: the next segment is ready all the time.
#[test]
fn out_of_space_is_cleared_once_the_disk_has_room() {
    let disk = Disk::new(9);
    rt::sim::block_on(9, &disk, async {
        directories().await;
        let log = Commitlog::open(config(Path::new(ROOT), SyncMode::Batch)).await.expect("opened");
        let schema = schema(1, 1);
        let mut last = Position::MIN;
        while log.metrics().segments < 3 {
            let mutation = mutation(&schema, 1, 500);
            let entry = Entry { schema: &schema, slot: SlotId(0), mutation: &mutation };
            last = log.append_wait(&[entry]).await.expect("appended").position;
            log.acknowledged(last).await.expect("acknowledged");
        }
        let until = async |is_full: bool| {
            let mut waited = 0;
            while log.state.borrow().next.is_none() || log.metrics().out_of_space != is_full {
                rt::time::sleep(Duration::from_millis(1)).await;
                waited += 1;
                assert!(waited < 10_000, "the log never says that the disk is full: {is_full}");
            }
        };
        until(false).await;
        disk.set_free(0);
        log.clean(SlotId(0), last);
        until(true).await;
        disk.set_free(1 << 30);
        until(false).await;
        log.close().await.expect("closed");
    });
}

#[test]
fn a_full_disk_can_be_relieved_by_flushes() {
    let disk = Disk::new(7);
    rt::sim::block_on(7, &disk, async {
        directories().await;
        let config = CommitlogConfig { spare_segments: 0, ..config(Path::new(ROOT), SyncMode::Batch) };
        let log = Commitlog::open(config).await.expect("opened");
        disk.set_free(3 * u64::from(SEGMENT) + 100);
        let schema = schema(1, 1);
        let mut last = Position::MIN;
        let mut number = 0;
        let mut append = || {
            number += 1;
            log.append(&schema, SlotId(0), &mutation(&schema, number, 300)).map(|appended| appended.position)
        };
        let mut full = false;
        while !full {
            match append() {
                Ok(position) => last = position,
                Err(LogError::Busy) => rt::time::sleep(Duration::from_millis(1)).await,
                Err(LogError::NoSpace) => full = true,
                Err(error) => panic!("{error}"),
            }
        }
        disk.set_free(0);
        log.clean(SlotId(0), last);
        let mut recovered = None;
        for _ in 0..100 {
            rt::time::sleep(Duration::from_millis(200)).await;
            if let Ok(position) = append() {
                recovered = Some(position);
                break;
            }
        }
        let position = recovered.expect("freed segments give space");
        log.acknowledged(position).await.expect("acknowledged");
    });
    disk.lose_power();
    rt::sim::block_on(7, &disk, async {
        assert!(!numbers(Path::new(ROOT)).await.is_empty());
    });
}

/// Appends until the log has so many segments. Waits while the disk refuses.
async fn fill(log: &Rc<Commitlog>, segments: u64) -> Position {
    let schema = schema(1, 1);
    let mut last = Position::MIN;
    while log.metrics().segments < segments {
        let mutation = mutation(&schema, 1, 1000);
        match log.append_wait(&[Entry { schema: &schema, slot: SlotId(0), mutation: &mutation }]).await {
            Ok(appended) => {
                last = appended.position;
                log.acknowledged(last).await.expect("acknowledged");
            }
            Err(LogError::NoSpace) => rt::time::sleep(Duration::from_secs(1)).await,
            Err(error) => panic!("{error}"),
        }
    }
    last
}

/// The files of segments on the disk: in use, spare, and free ones that the manifest names.
fn segment_files(disk: &Disk) -> Vec<PathBuf> {
    let is_segment = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        ["segment-", "spare-", "freed-"].iter().any(|prefix| name.starts_with(prefix))
    };
    disk.files().into_iter().map(|(path, _)| path).filter(is_segment).collect()
}

/// Waits until the next segment is ready, and checks that each file of a segment is in use or
/// spare.
async fn check_files(disk: &Disk, log: &Commitlog, what: &str) {
    let needed = |log: &Commitlog| {
        let state = log.state.borrow();
        state.next.is_some().then(|| state.ledger.len() + 1)
    };
    let mut waited = 0;
    let spare = loop {
        let (files, needed) = (segment_files(disk), needed(log));
        let counted = log.disk_bytes() / u64::from(SEGMENT);
        if let Some(needed) = needed
            && files.len() as u64 == counted
            && (needed..=needed + log.config.spare_segments).contains(&files.len())
        {
            break files.len() - needed;
        }
        rt::time::sleep(Duration::from_millis(100)).await;
        waited += 1;
        assert!(waited < 100, "{what}: {needed:?} files are needed, {counted} are counted: {files:?}");
    };
    assert!(spare <= log.config.spare_segments, "{what}");
}

/// The disk refuses some operations, then works again: no file of a segment is forgotten.
#[test]
fn a_failed_disk_operation_loses_no_segment_file() {
    type Place = fn(&Commitlog) -> PathBuf;
    // The first free segment cannot become a spare one; anything in the directory of the run.
    let spare: Place =
        |log| log.run_dir.join(format!("spare-{:016x}", log.state.borrow().ledger.ids().next().unwrap()));
    let any: Place = |log| log.run_dir.clone();
    let mut cases: Vec<(Place, Refusal, u32)> = vec![(spare, Refusal::NoSpace, 0)];
    cases.extend((0..40).map(|skip| (any, Refusal::NoDescriptors, skip)));
    let mut refused = 0;
    for (path, refusal, skip) in cases {
        for times in [1, 2, 5] {
            let disk = Disk::new(1);
            rt::sim::block_on(1, &disk, async {
                directories().await;
                let log = Commitlog::open(config(Path::new(ROOT), SyncMode::Batch)).await.expect("opened");
                let last = fill(&log, 7).await;
                disk.refuse_below(path(&log), refusal, skip, times);
                log.clean(SlotId(0), last);
                while log.metrics().segments > 1 {
                    rt::time::sleep(Duration::from_millis(1)).await;
                }
                fill(&log, 5).await;
                refused += times - disk.refuse_nothing();
                check_files(&disk, &log, &format!("{refusal:?}, {times} times after {skip}")).await;
                log.close().await.expect("closed");
            });
        }
    }
    assert!(refused > 30, "{refused} operations were refused");
}

/// A full disk: the file of a free segment gets its name, and cannot be emptied at once. Later it
/// is.
#[test]
fn emptying_a_free_segment_is_retried() {
    let disk = Disk::new(1);
    rt::sim::block_on(1, &disk, async {
        directories().await;
        let log = Commitlog::open(config(Path::new(ROOT), SyncMode::Batch)).await.expect("opened");
        let last = fill(&log, 4).await;
        let first = log.state.borrow().ledger.ids().next().unwrap();
        let freed = log.run_dir.join(format!("freed-{first:016x}"));
        disk.set_free(0);
        disk.refuse_below(&freed, Refusal::NoDescriptors, 0, 1);
        log.clean(SlotId(0), last);
        let len = || disk.files().into_iter().find(|(path, _)| *path == freed).map(|(_, len)| len);
        let mut waited = 0;
        while len() != Some(0) {
            rt::time::sleep(Duration::from_millis(100)).await;
            waited += 1;
            assert!(waited < 100, "it takes space: {:?}", len());
        }
        assert_eq!(disk.refuse_nothing(), 0, "the first attempt fails");
    });
}

/// Replay detects flipped bits in synced data, and does not take a torn tail of unsynced data for
/// them.
#[test]
fn replay_distinguishes_flipped_bits_from_torn_tails() {
    let mut corrupt = 0;
    for seed in 0..150u64 {
        let disk = Disk::new(seed);
        disk.set_unsynced(Unsynced::Torn);
        let synced = RefCell::new(0u64);
        let ran = rt::sim::run(seed, &disk, async {
            directories().await;
            let mode = SyncMode::Periodic { period: Duration::from_secs(3600) };
            let log = Commitlog::open(config(Path::new(ROOT), mode)).await.expect("opened");
            let schema = schema(1, 1);
            for number in 0..60 {
                let mutation = mutation(&schema, number, 200);
                let entry = Entry { schema: &schema, slot: SlotId(0), mutation: &mutation };
                let position = log.append_wait(&[entry]).await.expect("appended").position;
                log.acknowledged(position).await.expect("acknowledged");
                if number == 30 {
                    log.sync_now().await.expect("synced");
                    *synced.borrow_mut() = number;
                }
            }
            log.sync_now().await.expect("synced");
            // One more record, to name what is synced by now.
            let position = log.append(&schema, SlotId(0), &mutation(&schema, 60, 10)).expect("room").position;
            log.acknowledged(position).await.expect("acknowledged");
            disk.set_unsynced(Unsynced::Kept);
        });
        ran.expect("the power stays on");
        disk.lose_power();
        let segment =
            disk.files().into_iter().map(|(path, _)| path).find(|path| path.to_string_lossy().contains("segment-"));
        let segment = segment.expect("there is one");
        let byte = 64 + seed * 61 % 8000;
        assert!(disk.flip_bit(&segment, byte, (seed % 8) as u8));
        rt::sim::block_on(seed, &disk, async {
            match read_all(Path::new(ROOT), false).await {
                Err(LogError::Corrupt { .. }) => {
                    corrupt += 1;
                    let (found, _) = read_all(Path::new(ROOT), true).await.expect("ignored");
                    assert!(found.len() >= 60, "one record at most is skipped, {} are left", found.len());
                }
                // The zeros between two records are covered by nothing and mean nothing.
                Ok((found, _)) => assert_eq!(found.len(), 61, "byte {byte}"),
                Err(error) => panic!("{error}"),
            }
        });
    }
    assert!(corrupt > 100, "{corrupt}");
}
