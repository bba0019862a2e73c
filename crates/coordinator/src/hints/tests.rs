//! Hints of a replica that is down: bounds, damage, order, and the results of replay.

mod notes;

use super::*;
use model::id::{SchemaVersion, TableId};
use model::mutation::MutationBuilder;
use model::options::TableOptions;
use model::schema::{Column, ColumnKind, TableSchema};
use model::time::Tombstone;
use model::types::CqlType;
use test_support::Scratch;

/// A mutation of the partition of this number.
pub(super) fn mutation(n: i32) -> Mutation {
    let (table, version) = (TableId(Uuid::from_u128(7)), SchemaVersion(Uuid::from_u128(1)));
    let key = Column {
        id: model::ColumnId(0),
        name: "k".into(),
        kind: ColumnKind::PartitionKey,
        position: 0,
        ty: CqlType::Int,
        descending: false,
    };
    let options = TableOptions::default();
    let schema =
        TableSchema::new(table, version, "ks", "t", vec![key], Vec::new(), Vec::new(), Vec::new(), Vec::new(), options);
    let mut builder = MutationBuilder::new(table, version, &n.to_be_bytes());
    builder.delete_partition(Tombstone::new(i64::from(n), n));
    builder.finish(&schema)
}

fn config(scratch: &Path) -> HintsConfig {
    HintsConfig {
        file_bytes: 500,
        settings: HintsSettings { throttle: 0, ..HintsSettings::default() },
        ..HintsConfig::new(scratch.to_path_buf(), scratch.join("notes"), 1 << 20)
    }
}

/// The files of hints of shard 0, in order.
fn files_in(scratch: &Path) -> Vec<PathBuf> {
    let Ok(directory) = std::fs::read_dir(scratch.join("0").join(target().to_string())) else { return Vec::new() };
    let mut files: Vec<PathBuf> = directory.map(|entry| entry.expect("an entry").path()).collect();
    files.sort();
    files
}

/// What a shard `from` left is of a shard `to` now.
fn renumber(scratch: &Path, from: u16, to: u16) {
    let rename = |from: PathBuf, to: PathBuf| {
        if from.exists() {
            std::fs::rename(from, to).expect("renamed");
        }
    };
    rename(scratch.join(from.to_string()), scratch.join(to.to_string()));
    for ending in ["files", "missed"] {
        let note = |shard| scratch.join("notes").join(format!("{shard}.{ending}"));
        rename(note(from), note(to));
    }
}

fn target() -> HostId {
    HostId(Uuid::from_u128(2))
}

async fn fill(hints: &Hints, count: i32) {
    for n in 0..count {
        hints.store(target(), &mutation(n), 1, None).await.expect("there is room");
    }
}

/// What is delivered while `accept` says so.
async fn replay(hints: &Hints, accept: impl Fn(usize) -> Delivered) -> (bool, Vec<Mutation>) {
    let seen = RefCell::new(Vec::new());
    let done = hints
        .replay(target(), |hint| {
            seen.borrow_mut().push(hint.mutation);
            let outcome = accept(seen.borrow().len());
            async move { outcome }
        })
        .await
        .expect("the disk works");
    (done, seen.into_inner())
}

#[test]
fn hints_are_delivered_in_order_and_then_removed() {
    rt::block_on(async {
        let scratch = Scratch::new("order");
        let hints = Hints::open(config(&scratch), 0, 1).await.expect("opens");
        fill(&hints, 20).await;
        assert_eq!(hints.targets(), [target()]);
        let (done, seen) = replay(&hints, |_| Delivered::Sent).await;
        assert!(done);
        assert_eq!(seen, (0..20).map(mutation).collect::<Vec<_>>());
        assert_eq!(hints.metrics(), HintsMetrics { written: 20, sent: 20, ..HintsMetrics::default() });
        assert!(hints.targets().is_empty());
        let left = std::fs::read_dir(scratch.join("0").join(target().to_string())).expect("a directory").count();
        assert_eq!(left, 0, "no file is left");
    });
}

#[test]
fn undelivered_hints_stay_over_a_restart() {
    rt::block_on(async {
        let scratch = Scratch::new("stays");
        let hints = Hints::open(config(&scratch), 0, 1).await.expect("opens");
        fill(&hints, 20).await;
        let bytes = hints.metrics().bytes;
        let (done, _) = replay(&hints, |_| Delivered::NotYet).await;
        assert!(!done);
        assert_eq!((hints.metrics().bytes, hints.metrics().sent), (bytes, 0));
        drop(hints);
        // Two shards less: shard 0 takes over what the others left.
        renumber(&scratch, 0, 2);
        let hints = Hints::open(config(&scratch), 0, 2).await.expect("opens");
        assert_eq!(hints.metrics().bytes, bytes);
        fill(&hints, 1).await;
        let (done, seen) = replay(&hints, |_| Delivered::Sent).await;
        assert!(done);
        assert_eq!(seen.len(), 21);
        assert_eq!(hints.metrics().bytes, 0);
    });
}

#[test]
fn bounds_hold() {
    rt::block_on(async {
        let scratch = Scratch::new("bounds");
        let config = HintsConfig { max_bytes: 1000, ..config(&scratch) };
        let hints = Hints::open(config, 0, 1).await.expect("opens");
        let down_for = Some(Duration::from_secs(4 * 3600));
        let refused = hints.store(target(), &mutation(1), 1, down_for).await;
        assert!(matches!(refused, Err(Refused::TooLongDown)), "{refused:?}");
        let mut kept = 0;
        while hints.store(target(), &mutation(kept), 1, Some(Duration::from_secs(1))).await.is_ok() {
            kept += 1;
        }
        assert!(kept > 3 && hints.metrics().bytes <= 1000 + 29, "{kept} hints in {:?}", hints.metrics());
        assert_eq!(hints.metrics().refused, 2);
        let (done, seen) = replay(&hints, |_| Delivered::Dropped).await;
        assert!(done);
        assert_eq!((seen.len() as i32, hints.metrics().dropped as i32), (kept, kept));
        assert!(hints.store(target(), &mutation(1), 1, None).await.is_ok(), "there is room again");
    });
}

#[test]
fn stores_at_the_same_time_are_all_kept() {
    rt::block_on(async {
        let scratch = Scratch::new("together");
        let hints = Hints::open(config(&scratch), 0, 1).await.expect("opens");
        let all: Vec<Mutation> = (0..50).map(mutation).collect();
        let stores = all.iter().map(|mutation| hints.store(target(), mutation, 1, None));
        for stored in futures_util::future::join_all(stores).await {
            stored.expect("there is room");
        }
        let (_, mut seen) = replay(&hints, |_| Delivered::Sent).await;
        seen.sort_by_key(Mutation::key);
        assert_eq!(seen, all);
    });
}

#[test]
fn a_damaged_file_loses_only_its_own_hints() {
    rt::block_on(async {
        let scratch = Scratch::new("damage");
        let hints = Hints::open(config(&scratch), 0, 1).await.expect("opens");
        fill(&hints, 20).await;
        hints.sync().await;
        drop(hints);
        let directory = scratch.join("0").join(target().to_string());
        let mut files: Vec<PathBuf> =
            std::fs::read_dir(&directory).expect("a directory").map(|entry| entry.expect("an entry").path()).collect();
        files.sort();
        assert!(files.len() > 2, "several files");
        let mut bytes = std::fs::read(&files[1]).expect("read");
        bytes[60] ^= 1;
        std::fs::write(&files[1], bytes).expect("written");
        let hints = Hints::open(config(&scratch), 0, 1).await.expect("opens");
        let (done, seen) = replay(&hints, |_| Delivered::Sent).await;
        assert!(done);
        assert!((10..20).contains(&seen.len()), "{} of 20", seen.len());
        assert_eq!(hints.metrics().corrupted, 1);
    });
}

#[test]
fn missed_writes_are_known_until_they_are_repaired_also_after_a_restart() {
    rt::block_on(async {
        let scratch = Scratch::new("missed");
        let hints = Hints::open(config(&scratch), 0, 1).await.expect("opens");
        fill(&hints, 1).await;
        assert_eq!(hints.missed(), []);
        let table = mutation(0).table();
        let too_long = Some(hints.settings.borrow().window + Duration::from_secs(1));
        for _ in 0..3 {
            hints.store(target(), &mutation(7), 1, too_long).await.expect_err("it was down for too long");
        }
        let known =
            |hints: &Hints| -> Vec<_> { hints.missed().iter().map(|one| (one.target, one.table, one.cause)).collect() };
        let window = (target(), Some(table), Cause::WindowOver);
        assert_eq!(known(&hints), [window]);
        // A hint that is too old, and a file that is damaged.
        let other = TableId(Uuid::from_u128(9));
        replay(&hints, |_| Delivered::Expired(other)).await;
        fill(&hints, 3).await;
        drop(hints);
        let directory = scratch.join("0").join(target().to_string());
        let file =
            std::fs::read_dir(&directory).expect("a directory").next().expect("a file").expect("readable").path();
        let mut bytes = std::fs::read(&file).expect("readable");
        *bytes.last_mut().expect("not empty") ^= 1;
        std::fs::write(&file, bytes).expect("writable");
        let hints = Hints::open(config(&scratch), 0, 1).await.expect("opens");
        let (done, seen) = replay(&hints, |_| Delivered::Sent).await;
        assert_eq!((done, seen.len()), (true, 2));
        let all = [(target(), None, Cause::Damaged), window, (target(), Some(other), Cause::Expired)];
        assert_eq!(known(&hints), all);
        drop(hints);
        // Fewer shards than before: another one takes the notes over.
        renumber(&scratch, 0, 1);
        let hints = Hints::open(config(&scratch), 0, 1).await.expect("opens");
        assert_eq!(known(&hints), all);
        assert!(!missed_path(&scratch.join("notes"), 1).exists());
        hints.forget_missed(target(), Some(&[Some(other), None]), 0).await;
        assert_eq!(known(&hints), all, "later entries are kept");
        hints.forget_missed(target(), Some(&[Some(other), None]), i64::MAX).await;
        drop(hints);
        let hints = Hints::open(config(&scratch), 0, 1).await.expect("opens");
        assert_eq!(known(&hints), [window]);
        hints.forget_missed(target(), None, i64::MAX).await;
        assert_eq!(known(&hints), []);
    });
}

#[test]
fn a_truncated_hint_is_recorded_as_a_missed_write() {
    rt::block_on(async {
        let scratch = Scratch::new("cut");
        let hints = Hints::open(config(&scratch), 0, 1).await.expect("opens");
        fill(&hints, 3).await;
        drop(hints);
        let directory = scratch.join("0").join(target().to_string());
        let file =
            std::fs::read_dir(&directory).expect("a directory").next().expect("a file").expect("readable").path();
        let bytes = std::fs::read(&file).expect("readable");
        std::fs::write(&file, &bytes[..bytes.len() - 1]).expect("writable");
        let hints = Hints::open(config(&scratch), 0, 1).await.expect("opens");
        assert_eq!(replay(&hints, |_| Delivered::Sent).await.1.len(), 2);
        let known: Vec<_> = hints.missed().iter().map(|one| (one.table, one.cause)).collect();
        assert_eq!(known, [(None, Cause::Damaged)]);
    });
}

#[test]
fn a_missing_file_does_not_block_later_files() {
    rt::block_on(async {
        let scratch = Scratch::new("gone");
        let hints = Hints::open(config(&scratch), 0, 1).await.expect("opens");
        hints.store(target(), &mutation(1), 1, None).await.expect("kept");
        assert!(!replay(&hints, |_| Delivered::NotYet).await.0);
        let is_file = |path: &std::path::PathBuf| path.extension().is_some_and(|extension| extension == "hints");
        let dir = scratch.join("0").join(target().to_string());
        let files: Vec<_> = std::fs::read_dir(&dir).expect("there").map(|entry| entry.expect("read").path()).collect();
        let first = files.iter().find(|path| is_file(path)).expect("a file of hints");
        std::fs::remove_file(first).expect("removed");
        hints.store(target(), &mutation(2), 1, None).await.expect("kept");
        let (done, seen) = replay(&hints, |_| Delivered::Sent).await;
        assert_eq!((done, seen.len()), (true, 1));
        let known: Vec<_> = hints.missed().iter().map(|one| (one.table, one.cause)).collect();
        assert_eq!(known, [(None, Cause::Damaged)]);
    });
}

#[test]
fn a_note_that_could_not_be_written_is_written_later() {
    rt::block_on(async {
        let scratch = Scratch::new("unwritten");
        let hints = Hints::open(config(&scratch), 0, 1).await.expect("opens");
        // A file cannot take the place of a directory.
        let notes = missed_path(&scratch.join("notes"), 0);
        std::fs::create_dir(&notes).expect("made");
        let too_long = Some(hints.settings.borrow().window + Duration::from_secs(1));
        for _ in 0..2 {
            hints.store(target(), &mutation(7), 1, too_long).await.expect_err("it was down for too long");
            hints.sync().await;
        }
        std::fs::remove_dir(&notes).expect("removed");
        hints.sync().await;
        drop(hints);
        let hints = Hints::open(config(&scratch), 0, 1).await.expect("opens");
        assert_eq!(hints.missed().len(), 1);
    });
}

#[test]
fn a_resync_clears_only_missed_writes_recorded_before_it() {
    rt::block_on(async {
        let scratch = Scratch::new("marked");
        let hints = Hints::open(config(&scratch), 0, 1).await.expect("opens");
        let table = Some(mutation(0).table());
        let too_long = Some(hints.settings.borrow().window + Duration::from_secs(1));
        let misses = async || drop(hints.store(target(), &mutation(7), 1, too_long).await);
        let (first, second) = (Uuid::from_u128(1), Uuid::from_u128(2));
        misses().await;
        hints.mark_missed(target(), first);
        misses().await;
        hints.forget_marked(target(), &[table], first).await;
        assert_eq!(hints.missed().len(), 1, "it was renewed");
        hints.mark_missed(target(), second);
        hints.forget_marked(target(), &[table], first).await;
        hints.forget_marked(target(), &[None], second).await;
        hints.forget_marked(HostId(Uuid::from_u128(3)), &[table], second).await;
        assert_eq!(hints.missed().len(), 1, "another mark, table, node");
        hints.forget_marked(target(), &[table], second).await;
        assert_eq!(hints.missed(), []);

        assert_eq!(hints.pending(target()), 0);
        fill(&hints, 30).await;
        assert_eq!(hints.pending(target()), hints.metrics().bytes);
        replay(&hints, |_| Delivered::Sent).await;
        assert_eq!(hints.pending(target()), 0);
    });
}

/// Polls a future at most this many times. None if it has not ended then.
async fn polled<T>(times: usize, future: impl Future<Output = T>) -> Option<T> {
    let (mut future, mut left) = (std::pin::pin!(future), times);
    std::future::poll_fn(move |context| {
        let Some(less) = left.checked_sub(1) else { return std::task::Poll::Ready(None) };
        left = less;
        future.as_mut().poll(context).map(Some)
    })
    .await
}

/// A replay is dropped at any point, as by a timeout: no hint is forgotten.
#[test]
fn a_replay_that_is_dropped_loses_no_hint() {
    rt::block_on(async {
        for polls in 0.. {
            let scratch = Scratch::new("dropped-replay");
            let hints = Hints::open(config(&scratch), 0, 1).await.expect("opens");
            fill(&hints, 20).await;
            let first = RefCell::new(Vec::new());
            let deliver = |hint: Hint| {
                first.borrow_mut().push(hint.mutation);
                async { Delivered::Sent }
            };
            let ended = polled(polls, hints.replay(target(), deliver)).await;
            let mut seen = first.into_inner();
            assert!(seen.len() == 20 || hints.pending(target()) > 0, "after {polls} polls: {} delivered", seen.len());
            let (done, rest) = replay(&hints, |_| Delivered::Sent).await;
            assert!(done, "after {polls} polls");
            seen.extend(rest);
            seen.sort_by_key(Mutation::key);
            seen.dedup();
            assert_eq!(seen, (0..20).map(mutation).collect::<Vec<_>>(), "after {polls} polls");
            assert_eq!((hints.pending(target()), hints.metrics().bytes), (0, 0), "after {polls} polls");
            if ended.is_some() {
                assert!(polls > 5, "{polls} polls");
                break;
            }
        }
    });
}

/// The same for a sync: the next one measures the file.
#[test]
fn a_sync_that_is_dropped_is_repeated() {
    rt::block_on(async {
        for polls in 0.. {
            let scratch = Scratch::new("dropped-sync");
            let hints = Hints::open(config(&scratch), 0, 1).await.expect("opens");
            fill(&hints, 3).await;
            let ended = polled(polls, hints.sync()).await;
            hints.sync().await;
            drop(hints);
            let file = files_in(&scratch).pop().expect("a file");
            let bytes = std::fs::read(&file).expect("readable");
            std::fs::write(&file, &bytes[..bytes.len() - 1]).expect("writable");
            let hints = Hints::open(config(&scratch), 0, 1).await.expect("opens");
            assert_eq!(noted(&hints), [(target(), None, DAMAGED)], "after {polls} polls");
            if ended.is_some() {
                break;
            }
        }
    });
}

/// What is noted of missed writes, without times.
fn noted(hints: &Hints) -> Vec<(HostId, Option<TableId>, Cause)> {
    hints.missed().iter().map(|one| (one.target, one.table, one.cause)).collect()
}

const DAMAGED: Cause = Cause::Damaged;

#[test]
fn removed_hint_files_are_recorded_once_as_missed_writes() {
    rt::block_on(async {
        for (removed, kept) in [(0..1, true), (1..2, true), (2..100, true), (0..100, true), (0..100, false)] {
            let scratch = Scratch::new("removed");
            let hints = Hints::open(config(&scratch), 0, 1).await.expect("opens");
            fill(&hints, 20).await;
            drop(hints);
            let files = files_in(&scratch);
            assert!(files.len() > 3, "several files");
            let removed = removed.start..removed.end.min(files.len());
            match kept {
                true => files[removed.clone()].iter().for_each(|file| std::fs::remove_file(file).expect("removed")),
                // With all directories.
                false => std::fs::remove_dir_all(scratch.join("0")).expect("removed"),
            }
            let hints = Hints::open(config(&scratch), 0, 1).await.expect("opens");
            assert_eq!(noted(&hints), [(target(), None, DAMAGED)], "{removed:?} of {} files", files.len());
            assert_eq!(hints.metrics().corrupted, removed.len() as u64);
            let (done, seen) = replay(&hints, |_| Delivered::Sent).await;
            assert!(done && seen.len() < 20);
            assert_eq!(seen.is_empty(), removed.len() == files.len());
            drop(hints);
            let hints = Hints::open(config(&scratch), 0, 1).await.expect("opens");
            assert_eq!(noted(&hints).len(), 1, "it is known after a restart");
            hints.forget_missed(target(), None, i64::MAX).await;
            drop(hints);
            let hints = Hints::open(config(&scratch), 0, 1).await.expect("opens");
            assert_eq!(noted(&hints), [], "repaired writes are not noted again");
        }
    });
}

#[test]
fn notes_of_missed_writes_outlive_the_hints() {
    rt::block_on(async {
        let scratch = Scratch::new("outlive");
        let hints = Hints::open(config(&scratch), 0, 1).await.expect("opens");
        let too_long = Some(hints.settings.borrow().window + Duration::from_secs(1));
        hints.store(target(), &mutation(7), 1, too_long).await.expect_err("it was down for too long");
        drop(hints);
        std::fs::remove_dir_all(scratch.join("0")).expect("removed");
        let hints = Hints::open(config(&scratch), 0, 1).await.expect("opens");
        assert_eq!(noted(&hints), [(target(), Some(mutation(7).table()), Cause::WindowOver)]);
    });
}

#[test]
fn nothing_is_missed_of_a_release_without_manifests() {
    rt::block_on(async {
        let scratch = Scratch::new("old");
        let hints = Hints::open(config(&scratch), 0, 1).await.expect("opens");
        fill(&hints, 20).await;
        drop(hints);
        std::fs::remove_dir_all(scratch.join("notes")).expect("removed");
        let hints = Hints::open(config(&scratch), 0, 1).await.expect("opens");
        assert_eq!(noted(&hints), []);
        drop(hints);
        // The files are listed from then on, although no other hint was stored.
        std::fs::remove_file(&files_in(&scratch)[0]).expect("removed");
        let hints = Hints::open(config(&scratch), 0, 1).await.expect("opens");
        assert_eq!(noted(&hints), [(target(), None, DAMAGED)]);
        let (done, seen) = replay(&hints, |_| Delivered::Sent).await;
        assert!(done && !seen.is_empty() && seen.len() < 20);
    });
}

#[test]
fn a_crash_between_a_file_and_its_manifest_is_not_damage() {
    rt::block_on(async {
        let scratch = Scratch::new("between");
        // The first file of all.
        drop(Hints::open(config(&scratch), 0, 1).await.expect("opens"));
        let directory = scratch.join("0").join(target().to_string());
        std::fs::create_dir(&directory).expect("made");
        std::fs::write(directory.join(format!("{:020}.hints", 1)), b"").expect("written");
        let hints = Hints::open(config(&scratch), 0, 1).await.expect("opens");
        assert_eq!((replay(&hints, |_| Delivered::Sent).await.0, noted(&hints)), (true, Vec::new()));
        drop(hints);
        let hints = Hints::open(config(&scratch), 0, 1).await.expect("opens");
        fill(&hints, 20).await;
        drop(hints);
        // Files that were created and not listed yet: without a header, with a part of it, and with
        // all of it.
        let (last, header) = (files_in(&scratch).pop().expect("a file"), format::header(target()));
        for (n, len) in [0, 5, header.len()].into_iter().enumerate() {
            let path = last.with_file_name(format!("{:020}.hints", 100 + n));
            std::fs::write(path, &header[..len]).expect("written");
        }
        let hints = Hints::open(config(&scratch), 0, 1).await.expect("opens");
        let before: Vec<(PathBuf, Vec<u8>)> = files_in(&scratch)
            .into_iter()
            .map(|path| (path.clone(), std::fs::read(&path).expect("readable")))
            .collect();
        let (done, seen) = replay(&hints, |_| Delivered::Sent).await;
        assert_eq!((done, seen.len(), noted(&hints)), (true, 20, Vec::new()));
        drop(hints);
        // Files that were delivered and are not listed any more, but were not removed.
        before.iter().for_each(|(path, bytes)| std::fs::write(path, bytes).expect("written"));
        let hints = Hints::open(config(&scratch), 0, 1).await.expect("opens");
        let (done, seen) = replay(&hints, |_| Delivered::Sent).await;
        assert_eq!((done, seen.len(), noted(&hints)), (true, 20, Vec::new()));
        assert_eq!(files_in(&scratch), [] as [PathBuf; 0]);
    });
}

#[test]
fn a_manifest_that_cannot_be_written_costs_neither_hints_nor_space() {
    rt::block_on(async {
        let scratch = Scratch::new("unnamed");
        let hints = Hints::open(config(&scratch), 0, 1).await.expect("opens");
        fill(&hints, 20).await;
        let (files, bytes) = (files_in(&scratch), hints.metrics().bytes);
        // The manifest cannot be written because a directory has its name.
        let obstacle = scratch.join("notes").join("0.files.tmp");
        std::fs::create_dir(&obstacle).expect("made");
        let other = HostId(Uuid::from_u128(3));
        let refused = hints.store(other, &mutation(1), 1, None).await;
        assert!(matches!(refused, Err(Refused::Io(_))), "{refused:?}");
        assert_eq!(noted(&hints), [(other, Some(mutation(1).table()), Cause::NotWritten)]);
        let left = std::fs::read_dir(scratch.join("0").join(other.to_string())).expect("a directory").count();
        assert_eq!((left, hints.metrics().bytes), (0, bytes));
        // Delivered hints take no space, and are not delivered again.
        let delivered = Cell::new(0);
        let deliver = |_| {
            delivered.set(delivered.get() + 1);
            async { Delivered::Sent }
        };
        for _ in 0..3 {
            assert!(hints.replay(target(), deliver).await.is_err());
        }
        let of_first = delivered.get();
        assert!(0 < of_first && of_first < 20 && hints.metrics().bytes < bytes, "{of_first} were delivered");
        assert_eq!(files_in(&scratch), files);
        std::fs::remove_dir(&obstacle).expect("removed");
        assert!(hints.replay(target(), deliver).await.expect("the disk works"));
        assert_eq!((delivered.get(), hints.metrics().bytes), (20, 0));
        hints.forget_missed(other, None, i64::MAX).await;
        drop(hints);
        let hints = Hints::open(config(&scratch), 0, 1).await.expect("opens");
        assert_eq!((noted(&hints), hints.targets()), (Vec::new(), Vec::new()));
    });
}

#[test]
fn an_accepted_loss_is_recorded_before_the_node_serves() {
    rt::block_on(async {
        let scratch = Scratch::new("own");
        let (notes, own, table) = (scratch.join("notes"), HostId(Uuid::from_u128(9)), TableId(Uuid::from_u128(7)));
        // The start may be repeated.
        for _ in 0..2 {
            note_accepted_loss(&notes, own, &[None, Some(table)]).await.expect("written");
        }
        let lost = Cause::AcceptedLoss;
        for _ in 0..2 {
            let hints = Hints::open(config(&scratch), 0, 1).await.expect("opens");
            assert_eq!(noted(&hints), [(own, None, lost), (own, Some(table), lost)]);
        }
        // Other entries stay. An entry that cannot be written is reported as an error.
        let hints = Hints::open(config(&scratch), 0, 1).await.expect("opens");
        hints.forget_missed(own, Some(&[Some(table)]), i64::MAX).await;
        drop(hints);
        std::fs::create_dir(notes.join("0.missed.tmp")).expect("made");
        note_accepted_loss(&notes, own, &[Some(table)]).await.expect_err("an obstacle");
        let hints = Hints::open(config(&scratch), 0, 1).await.expect("opens");
        assert_eq!(noted(&hints), [(own, None, lost)]);
    });
}
