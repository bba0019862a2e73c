//! Tests of the metadata log: against a model, on damaged files, and (feature `sim`) on a disk that
//! loses its power at every write.

use super::*;
use proptest::prelude::*;
use test_support::Scratch;

#[cfg(feature = "sim")]
mod power;

pub(super) const NODE: HostId = HostId(uuid::Uuid::from_u128(1));

pub(super) fn body(term: u64, index: u64) -> Bytes {
    Bytes::from(vec![(term * 31 + index) as u8; ((term * 17 + index * 37) % 200) as usize])
}

/// What the log should hold.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Model {
    pub vote: Option<Bytes>,
    pub committed: Option<u64>,
    pub purged: Option<u64>,
    pub entries: Vec<(u64, Bytes)>,
}

impl Model {
    pub fn of(log: &RaftLog) -> Model {
        let entries = log.entries(0, u64::MAX);
        let from = log.last().map_or(0, |(last, _)| last + 1 - entries.len() as u64);
        Model {
            vote: log.vote(),
            committed: log.committed(),
            purged: log.purged().map(|(index, _)| index),
            entries: (from..).zip(entries).collect(),
        }
    }

    pub fn next(&self) -> u64 {
        self.entries.last().map(|(index, _)| index + 1).or(self.purged.map(|index| index + 1)).unwrap_or(1)
    }
}

#[derive(Clone, Debug)]
pub(super) enum Step {
    Append(u64, usize),
    Vote(u8),
    Commit,
    Truncate(u64),
    Purge(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (1..5u64, 1..4usize).prop_map(|(term, count)| Step::Append(term, count)),
        1 => any::<u8>().prop_map(Step::Vote),
        1 => Just(Step::Commit),
        1 => (0..6u64).prop_map(Step::Truncate),
        1 => (0..6u64).prop_map(Step::Purge),
    ]
}

/// Where a truncation of the last `back` entries begins. Committed entries are never removed.
fn truncated_from(model: &Model, back: u64) -> u64 {
    let next = model.next();
    let first = model.entries.first().map_or(next, |(index, _)| *index);
    let uncommitted = model.committed.map_or(0, |index| index + 1);
    next.saturating_sub(back).max(first).max(uncommitted)
}

/// What a step leads to.
pub(super) fn plan(model: &mut Model, step: &Step) {
    let next = model.next();
    match step {
        Step::Append(term, count) => {
            model.entries.extend((next..next + *count as u64).map(|index| (index, body(*term, index))));
        }
        Step::Vote(vote) => model.vote = Some(Bytes::copy_from_slice(&[*vote])),
        Step::Commit => model.committed = Some(next - 1),
        Step::Truncate(back) => {
            let from = truncated_from(model, *back);
            model.entries.retain(|(index, _)| *index < from);
        }
        Step::Purge(back) => {
            let upto = (next - 1).saturating_sub(*back);
            if model.purged.is_none_or(|purged| purged < upto) {
                model.purged = Some(upto);
                model.entries.retain(|(index, _)| *index > upto);
            }
        }
    }
}

/// Takes a step.
pub(super) async fn take(log: &RaftLog, model: &mut Model, step: &Step) -> Result<(), RaftLogError> {
    let next = model.next();
    let from = if let Step::Truncate(back) = step { truncated_from(model, *back) } else { next };
    plan(model, step);
    match step {
        Step::Append(term, count) => {
            let bodies: Vec<Bytes> = (next..next + *count as u64).map(|index| body(*term, index)).collect();
            log.append(next, &bodies).await
        }
        Step::Vote(vote) => log.save_vote(Bytes::copy_from_slice(&[*vote])).await,
        Step::Commit => log.save_committed(next - 1).await,
        Step::Truncate(_) => log.truncate(from).await,
        Step::Purge(back) => log.purge((next - 1).saturating_sub(*back), Bytes::from_static(b"id")).await,
    }
}

async fn open(dir: &Path) -> RaftLog {
    match RaftLog::open(dir, NODE).await {
        Ok(log) => log,
        Err(error) => panic!("open: {error}"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases / 21))]
    #[test]
    fn all_steps_survive_a_reopen(steps in prop::collection::vec(prop::collection::vec(step(), 1..8), 1..4)) {
        rt::block_on(async {
            let scratch = Scratch::new("raft-model");
            let mut model = Model::default();
            for life in &steps {
                let log = open(&scratch).await;
                assert_eq!(Model::of(&log), model);
                for step in life {
                    // An empty log has no first index to purge or truncate from.
                    if model.next() == 1 && !matches!(step, Step::Append(..) | Step::Vote(_)) {
                        continue;
                    }
                    take(&log, &mut model, step).await.expect("done");
                    assert_eq!(Model::of(&log), model, "{step:?}");
                }
            }
            assert_eq!(Model::of(&open(&scratch).await), model);
        });
    }
}

async fn filled(dir: &Path) -> (Model, Vec<u64>) {
    let log = open(dir).await;
    let (mut model, mut ends) = (Model::default(), Vec::new());
    let steps = [Step::Append(1, 3), Step::Vote(7), Step::Append(2, 2), Step::Truncate(1), Step::Append(3, 3)];
    for step in steps {
        take(&log, &mut model, &step).await.expect("done");
        ends.push(log.log_bytes());
    }
    (model, ends)
}

#[test]
fn a_torn_tail_is_cut_off_and_damage_before_it_is_an_error() {
    rt::block_on(async {
        let scratch = Scratch::new("raft-damage");
        let (model, ends) = filled(&scratch).await;
        let path = log_path(&scratch, 1);
        let good = std::fs::read(&path).expect("readable");
        let last = ends[ends.len() - 2];
        for len in (last..ends[ends.len() - 1]).step_by(3) {
            // The batch of three is torn: whole entries at its beginning stay, and more can be
            // appended.
            std::fs::write(&path, &good[..len as usize]).expect("cut");
            let log = open(&scratch).await;
            let found = Model::of(&log);
            assert!(found.entries.len() >= model.entries.len() - 3 && model.entries.starts_with(&found.entries));
            let mut found = found;
            take(&log, &mut found, &Step::Append(4, 1)).await.expect("done");
            drop(log);
            assert_eq!(Model::of(&open(&scratch).await), found);
        }
        for at in (0..good.len()).step_by(7) {
            let mut bad = good.clone();
            bad[at] ^= 1;
            std::fs::write(&path, &bad).expect("damaged");
            match RaftLog::open(&scratch, NODE).await {
                Ok(log) => assert_eq!(Model::of(&log), model, "byte {at}: padding, or the mark at the end"),
                Err(error) => {
                    let corrupt = matches!(error, RaftLogError::Corrupt { .. });
                    assert!(corrupt && (at as u64) < ends[ends.len() - 1], "byte {at}: {error}");
                }
            }
        }
    });
}

/// Writes to a file without a name are lost with the process.
#[test]
fn a_log_that_was_removed_acknowledges_nothing() {
    rt::block_on(async {
        let scratch = Scratch::new("raft-removed");
        let (log, mut model) = (open(&scratch).await, Model::default());
        take(&log, &mut model, &Step::Append(1, 3)).await.expect("done");
        log.check_there().await.expect("there");
        let path = log_path(&scratch, 1);
        std::fs::remove_file(&path).expect("removed");
        for what in [log.check_there().await, take(&log, &mut model, &Step::Vote(7)).await] {
            let why = what.expect_err("it is gone").to_string();
            assert!(why.contains("log-1 was removed while the node ran"), "{why}");
        }
        std::fs::write(&path, "another").expect("written");
        assert!(take(&log, &mut model, &Step::Vote(8)).await.is_err(), "it has failed for good");
    });
}

#[test]
fn a_batch_of_which_the_middle_was_not_written_is_torn_and_not_damaged() {
    rt::block_on(async {
        let scratch = Scratch::new("raft-torn");
        let (model, ends) = filled(&scratch).await;
        let path = log_path(&scratch, 1);
        let mut bytes = std::fs::read(&path).expect("readable");
        let last = ends[ends.len() - 2] as usize;
        bytes[last..last + 32].fill(0);
        // Power was lost before the fsync, so there is no mark either.
        bytes.truncate(ends[ends.len() - 1] as usize);
        std::fs::write(&path, &bytes).expect("written");
        let found = Model::of(&open(&scratch).await);
        assert_eq!(found.entries, model.entries[..model.entries.len() - 3]);
    });
}

#[test]
fn a_log_made_from_a_snapshot_goes_on_behind_it() {
    rt::block_on(async {
        let scratch = Scratch::new("raft-create");
        let dir = scratch.join("raft");
        assert!(!RaftLog::exists(&dir).await.expect("looked"));
        RaftLog::create(&dir, NODE, b"vote", 41, b"id", b"all of it").await.expect("made");
        assert!(RaftLog::exists(&dir).await.expect("looked"));
        let log = open(&dir).await;
        assert_eq!(log.snapshot().await.expect("read").expect("there"), &b"all of it"[..]);
        assert_eq!((log.purged(), log.committed()), (Some((41, Bytes::from_static(b"id"))), Some(41)));
        let error = log.append(41, &[body(1, 41)]).await.expect_err("purged");
        assert!(matches!(error, RaftLogError::Corrupt { .. }), "{error}");
        log.append(42, &[body(1, 42)]).await.expect("appended");
        log.reserve(100).await.expect("there is space");
        log.save_snapshot(&b"more"[..].into()).await.expect("saved");
        drop(log);
        let log = open(&dir).await;
        assert_eq!(log.last(), Some((42, body(1, 42))));
        assert_eq!(log.snapshot().await.expect("read").expect("there"), &b"more"[..]);
        let path = snapshot_path(&dir);
        let good = std::fs::read(&path).expect("readable");
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 0x10;
            std::fs::write(&path, &bad).expect("damaged");
            assert!(log.snapshot().await.is_err(), "byte {at}");
        }
    });
}

#[test]
fn bytes_of_a_failed_write_are_not_a_record_of_a_later_one() {
    rt::block_on(async {
        let scratch = Scratch::new("raft-stale");
        let log = open(&scratch).await;
        let same = |term: u64| Bytes::from(vec![term as u8; 24]);
        log.append(1, &[same(1)]).await.expect("appended");
        let before = log.log_bytes();
        log.append(2, &[same(2), same(2)]).await.expect("appended");
        let bytes = std::fs::read(log_path(&scratch, 1)).expect("readable");
        drop(log);
        // Of a batch of two only the second came to the disk, and later a batch of one in the first
        // one's place, but not its mark.
        let path = log_path(&scratch, 1);
        let one = (bytes.len() as u64 - 32 - before) / 2;
        std::fs::write(&path, &bytes[..before as usize]).expect("written");
        let log = open(&scratch).await;
        log.append(2, &[same(3)]).await.expect("appended");
        drop(log);
        let mut torn = std::fs::read(&path).expect("readable");
        torn.truncate((before + one) as usize);
        torn.extend_from_slice(&bytes[(before + one) as usize..(before + 2 * one) as usize]);
        std::fs::write(&path, &torn).expect("written");
        let log = open(&scratch).await;
        assert_eq!(log.entries(0, 9), [same(1), same(3)]);
        assert_eq!(
            std::fs::metadata(&path).expect("there").len(),
            before + one + 32,
            "the bytes behind the end were removed"
        );
    });
}

#[test]
fn the_end_of_the_log_is_recorded_outside_its_directory() {
    rt::block_on(async {
        let scratch = Scratch::new("raft-log-end");
        let (dir, path) = (scratch.join("raft"), scratch.join("end"));
        let log = open(&dir).await;
        log.keep_end(&path).await.expect("kept");
        let noted = async || match read_end(&path, NODE).await.expect("read") {
            NotedEnd::At(end) => end,
            other => panic!("there is an end, not {other:?}"),
        };
        for index in 1..5 {
            log.append(index, &[body(1, index)]).await.expect("appended");
            assert_eq!((noted().await, noted().await.number), (log.end(), 1));
        }
        log.purge(2, Bytes::from_static(b"id")).await.expect("purged");
        assert_eq!((noted().await, noted().await.number), (log.end(), 2));
        let before = log.end();
        log.append(5, &[body(1, 5)]).await.expect("appended");
        let whole = inspect(&dir, NODE).await.expect("looked").expect("there is a log");
        assert_eq!((whole.end, whole.marked), (noted().await, true));

        // Cut off at a record, it looks like a log to which no more was ever written.
        let file = log_path(&dir, 2);
        let bytes = std::fs::read(&file).expect("read");
        std::fs::write(&file, &bytes[..before.at as usize]).expect("written");
        let cut = inspect(&dir, NODE).await.expect("looked").expect("there is a log");
        assert_eq!((cut.end, cut.marked), (before, false));
        assert!(cut.end < noted().await);
        std::fs::remove_file(&file).expect("removed");
        assert_eq!(inspect(&dir, NODE).await.expect("looked"), None);

        std::fs::write(&path, [0; 32]).expect("written");
        assert_eq!(read_end(&path, NODE).await.expect("read"), NotedEnd::Nothing);
    });
}

/// The headers say whose files they are.
#[test]
fn files_of_another_node_are_refused() {
    rt::block_on(async {
        let scratch = Scratch::new("raft-foreign");
        let (dir, end) = (scratch.join("raft"), scratch.join("end"));
        RaftLog::create(&dir, NODE, b"vote", 41, b"id", b"all of it").await.expect("made");
        open(&dir).await.keep_end(&end).await.expect("noted");
        let other = HostId(uuid::Uuid::from_u128(2));
        let is_foreign = |error: RaftLogError, name: &str| {
            matches!(&error, RaftLogError::Foreign(file) if file.ends_with(name))
                && error.to_string().contains("--accept-loss")
        };
        assert!(inspect(&dir, NODE).await.expect("its own").is_some());
        assert!(is_foreign(inspect(&dir, other).await.expect_err("another's"), "log-1"));
        assert!(is_foreign(RaftLog::open(&dir, other).await.err().expect("another's"), "log-1"));
        assert!(is_foreign(RaftLog::snapshot_in(&dir, other).await.expect_err("another's"), "snapshot"));
        assert!(matches!(read_end(&end, NODE).await.expect("read"), NotedEnd::At(_)));
        assert_eq!(read_end(&end, other).await.expect("read"), NotedEnd::Foreign);

        // Without a digest.
        let mut bytes = std::fs::read(dir.join("log-1")).expect("readable");
        [12, 24].into_iter().for_each(|at| bytes[at..at + 4].fill(0));
        let crc = crc32fast::hash(&bytes[..28]);
        bytes[28..32].copy_from_slice(&crc.to_le_bytes());
        std::fs::write(dir.join("log-1"), bytes).expect("written");
        assert!(is_foreign(inspect(&dir, NODE).await.expect_err("it names no node"), "log-1"));
    });
}
