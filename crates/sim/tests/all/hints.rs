//! Hints of a process that is killed at each write to its disk, and of a machine that loses its
//! power there. Acknowledged (or synced) hints are replayed. A kill is mistaken neither for damage
//! nor for a loss of notes.

use coordinator::hints::{Cause, Delivered, Hints, HintsConfig, HintsSettings, Refused, Store, Witnessed};
use model::id::{HostId, SchemaVersion, TableId};
use model::mutation::{Mutation, MutationBuilder};
use model::options::TableOptions;
use model::schema::{Column, ColumnKind, TableSchema};
use model::time::Tombstone;
use model::types::CqlType;
use rt::sim::{Disk, Fault, Refusal, Unsynced};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::Path;
use std::rc::Rc;
use uuid::Uuid;

fn target() -> HostId {
    HostId(Uuid::from_u128(2))
}

/// A mutation of partition `n`.
fn mutation(n: i32) -> Mutation {
    let (table, version) = (TableId(Uuid::from_u128(7)), SchemaVersion(Uuid::from_u128(1)));
    let key = Column {
        id: model::ColumnId(0),
        name: "k".into(),
        kind: ColumnKind::PartitionKey,
        position: 0,
        ty: CqlType::Int,
        descending: false,
    };
    let (name, none) = ("t", Vec::new);
    let options = TableOptions::default();
    let schema = TableSchema::new(table, version, "ks", name, vec![key], none(), none(), none(), Vec::new(), options);
    let mut builder = MutationBuilder::new(table, version, &n.to_be_bytes());
    builder.delete_partition(Tombstone::new(i64::from(n), n));
    builder.finish(&schema)
}

/// What the test knows, which no crash loses.
#[derive(Default)]
struct HintOracle {
    next: i32,
    acknowledged: BTreeSet<i32>,
    /// The hints among these that a power loss must not lose.
    synced: BTreeSet<i32>,
    delivered: BTreeSet<i32>,
}

async fn open() -> Rc<Hints> {
    // A start does the same with the data directory.
    rt::fs::create_dir_all(Path::new("/node")).await.expect("made");
    rt::fs::sync_dir(Path::new("/")).await.expect("synced");
    let config = HintsConfig {
        file_bytes: 300,
        settings: HintsSettings { throttle: 0, ..HintsSettings::default() },
        ..HintsConfig::new(Path::new("/node/hints").into(), Path::new("/node/hint-notes").into(), 1 << 20)
    };
    let known = witnessed().await;
    Hints::open_witnessed(config, 0, 1, known, second_place()).await.expect("it opens")
}

/// The second place that knows of notes: as an inventory, a file that is replaced durably.
const SECOND: &str = "/node/second";

async fn witnessed() -> Witnessed {
    let text = rt::fs::read(Path::new(SECOND)).await.unwrap_or_else(|_| b"{}".to_vec());
    serde_json::from_slice(&text).expect("whole")
}

fn second_place() -> Store {
    Box::new(|changes| {
        Box::pin(async move {
            let mut known = witnessed().await;
            for (name, notes) in changes {
                match notes {
                    Some(notes) => drop(known.insert(name, notes)),
                    None => drop(known.remove(&name)),
                }
            }
            rt::fs::write_durably(Path::new(SECOND), &serde_json::to_vec(&known).expect("plain")).await
        })
    })
}

async fn store(hints: &Hints, known: &RefCell<HintOracle>, count: i32) {
    for _ in 0..count {
        let n = known.borrow().next;
        known.borrow_mut().next += 1;
        hints.store(target(), &mutation(n), 1, None).await.expect("there is room");
        known.borrow_mut().acknowledged.insert(n);
    }
}

async fn sync(hints: &Hints, known: &RefCell<HintOracle>) {
    let all = known.borrow().acknowledged.clone();
    hints.sync().await;
    known.borrow_mut().synced = all;
}

/// Replays at most `count` hints.
async fn deliver(hints: &Hints, known: &RefCell<HintOracle>, count: usize) {
    let before = known.borrow().delivered.len();
    let one = |hint: coordinator::hints::format::Hint| async move {
        if known.borrow().delivered.len() >= before + count {
            return Delivered::NotYet;
        }
        let n = i32::from_be_bytes(hint.mutation.key()[..4].try_into().expect("an int"));
        known.borrow_mut().delivered.insert(n);
        Delivered::Sent
    };
    hints.replay(target(), one).await.expect("the disk works");
}

async fn run(known: &RefCell<HintOracle>) {
    for _ in 0..2 {
        let hints = open().await;
        store(&hints, known, 9).await;
        sync(&hints, known).await;
        deliver(&hints, known, 5).await;
        store(&hints, known, 5).await;
        deliver(&hints, known, 100).await;
        store(&hints, known, 7).await;
        sync(&hints, known).await;
    }
}

#[test]
fn no_crash_loses_hints_and_no_kill_is_reported_as_damage() {
    let whole = Disk::new(1);
    rt::sim::block_on(1, &whole, run(&RefCell::default()));
    let writes = whole.writes();
    assert!(writes > 50, "{writes} writes");
    for unsynced in [Unsynced::Kept, Unsynced::Lost, Unsynced::Torn] {
        for n in 1..=writes {
            let (disk, known) = (Disk::new(n), RefCell::new(HintOracle::default()));
            disk.set_unsynced(unsynced);
            disk.power_loss_at_write(n);
            rt::sim::run(1, &disk, run(&known)).expect_err("it is killed");
            disk.no_power_loss();
            let (corrupted, noted) = rt::sim::block_on(1, &disk, async {
                let hints = open().await;
                deliver(&hints, &known, 100).await;
                let has_lost_notes = hints.missed().iter().any(|one| one.cause == Cause::NotesLost);
                assert!(!has_lost_notes, "{unsynced:?} at write {n}: notes are lost");
                (hints.metrics().corrupted, hints.missed().len())
            });
            let known = known.into_inner();
            let is_kill = unsynced == Unsynced::Kept;
            let must = if is_kill { &known.acknowledged } else { &known.synced };
            let lost: Vec<_> = must.difference(&known.delivered).collect();
            assert!(lost.is_empty(), "{unsynced:?} at write {n}: {lost:?} are lost");
            // Only a record that the kill cut off may be reported.
            assert!(!is_kill || corrupted == 0, "killed at write {n}: {corrupted} files, {noted} notes");
        }
    }
}

#[test]
fn notes_that_are_removed_after_a_kill_are_missed() {
    let whole = Disk::new(1);
    rt::sim::block_on(1, &whole, run(&RefCell::default()));
    for n in 1..=whole.writes() {
        let (disk, known) = (Disk::new(n), RefCell::new(HintOracle::default()));
        disk.set_unsynced(Unsynced::Kept);
        disk.power_loss_at_write(n);
        rt::sim::run(1, &disk, run(&known)).expect_err("it is killed");
        disk.no_power_loss();
        let is_noted = rt::sim::block_on(1, &disk, async {
            for directory in ["/node/hints", "/node/hint-notes"] {
                let _ = rt::fs::remove_dir_all(Path::new(directory)).await;
            }
            open().await.missed().iter().any(|one| (one.target, one.cause) == (target(), Cause::NotesLost))
        });
        let known = known.into_inner();
        let lost = known.acknowledged.difference(&known.delivered).count();
        assert!(lost == 0 || is_noted, "killed at write {n}: {lost} hints are lost");
    }
}

/// Writes are acknowledged while the disk is full. The notes of the replicas that miss them survive
/// each end of the node, even if the disk is still full at the next start.
#[test]
fn a_full_disk_loses_no_notes_of_missed_writes() {
    let (own, table) = (HostId(Uuid::from_u128(1)), mutation(0).table());
    for unsynced in [Unsynced::Kept, Unsynced::Lost, Unsynced::Torn] {
        for stops in [false, true] {
            for is_full_again in [false, true] {
                let disk = Disk::new(1);
                disk.set_unsynced(unsynced);
                let at = format!("{unsynced:?}, stop {stops}, full again {is_full_again}");
                let of_node = disk.clone();
                rt::sim::block_on(1, &disk, async move {
                    let hints = open().await;
                    of_node.set_free(0);
                    let _ = hints.note_missed(own, table, Cause::Refused).await;
                    hints.store(target(), &mutation(1), 1, None).await.expect_err("the disk is full");
                    if stops {
                        hints.sync().await;
                    }
                });
                disk.lose_power();
                disk.set_free(if is_full_again { 0 } else { 1 << 20 });
                let seen = rt::sim::block_on(1, &disk, async { open().await.missed() });
                let seen: Vec<_> = seen.into_iter().map(|one| (one.target, one.table, one.cause)).collect();
                let wanted = [(own, Some(table), Cause::Refused), (target(), Some(table), Cause::NotWritten)];
                assert_eq!(seen, wanted, "{at}");
            }
        }
    }
}

/// A disk that returns errors: the caller must not acknowledge the write. Later the file is written
/// again.
#[test]
fn a_note_that_no_disk_takes_is_reported_to_the_caller() {
    let disk = Disk::new(1);
    let of_node = disk.clone();
    rt::sim::block_on(1, &disk, async move {
        let (hints, table) = (open().await, mutation(0).table());
        of_node.refuse_below("/node", Refusal::Broken, 0, u32::MAX);
        for _ in 0..3 {
            hints.note_missed(target(), table, Cause::Refused).await.expect_err("the disk is broken");
            let refused = hints.store(target(), &mutation(1), 1, None).await;
            assert!(matches!(refused, Err(Refused::NotRecorded(_))), "{refused:?}");
        }
        assert_eq!(hints.unrecorded(), BTreeSet::from([target()]));
        of_node.refuse_nothing();
        hints.sync().await;
        assert_eq!(hints.unrecorded(), BTreeSet::new());
        hints.note_missed(target(), table, Cause::Refused).await.expect("the disk works again");
    });
    disk.lose_power();
    let seen = rt::sim::block_on(1, &disk, async { open().await.missed().len() });
    assert_eq!(seen, 1);
}

/// Entries that were removed while the disk was full stay removed. Those in the file do not return
/// in place of newer ones in the reserved space, and the reverse.
#[test]
fn the_newer_of_the_file_and_the_reserved_space_is_used() {
    let disk = Disk::new(1);
    let of_node = disk.clone();
    let other = HostId(Uuid::from_u128(3));
    rt::sim::block_on(1, &disk, async move {
        let (hints, table) = (open().await, mutation(0).table());
        hints.note_missed(target(), table, Cause::Refused).await.expect("noted");
        of_node.set_free(0);
        hints.note_missed(other, table, Cause::Refused).await.expect("noted");
        hints.forget_missed(target(), None, i64::MAX).await;
    });
    let targets = || -> Vec<HostId> {
        rt::sim::block_on(1, &disk, async { open().await.missed().iter().map(|one| one.target).collect() })
    };
    assert_eq!(targets(), vec![other]);
    disk.set_free(1 << 20);
    assert_eq!(targets(), vec![other]);
    rt::sim::block_on(1, &disk, async { open().await.forget_missed(other, None, i64::MAX).await });
    assert_eq!(targets(), vec![]);
}

/// A sync of hints fails: the target is noted, and nothing is added to the file, because later
/// syncs of it would succeed. Hints that are stored and synced afterwards survive a power loss.
#[test]
fn a_failed_sync_is_recorded_and_its_file_is_not_reused() {
    // The failing sync is that of the period, or of a full file, or of a replay.
    for case in 0..3 {
        let disk = Disk::new(case);
        disk.set_unsynced(Unsynced::Lost);
        let of_node = disk.clone();
        let later = rt::sim::block_on(case, &disk, async move {
            let (hints, known) = (open().await, RefCell::new(HintOracle::default()));
            store(&hints, &known, 2).await;
            of_node.fail_next_below("/node/hints", Fault::Sync, 1);
            match case {
                0 => hints.sync().await,
                1 => {
                    while hints.missed().is_empty() {
                        let n = known.borrow().next;
                        known.borrow_mut().next += 1;
                        let _ = hints.store(target(), &mutation(n), 1, None).await;
                    }
                }
                _ => {
                    let failed = hints.replay(target(), |_| async { Delivered::NotYet }).await;
                    failed.expect_err("the sync fails");
                }
            }
            let noted: Vec<_> = hints.missed().iter().map(|one| (one.target, one.table, one.cause)).collect();
            assert!(noted.contains(&(target(), None, Cause::NotWritten)), "case {case}: {noted:?}");
            let first = known.borrow().next;
            store(&hints, &known, 3).await;
            sync(&hints, &known).await;
            first..first + 3
        });
        disk.lose_power();
        rt::sim::block_on(case, &disk, async {
            let (hints, known) = (open().await, RefCell::new(HintOracle::default()));
            assert!(hints.missed().iter().any(|one| one.target == target()), "case {case}");
            deliver(&hints, &known, 100).await;
            let delivered = known.into_inner().delivered;
            let lost: Vec<_> = later.filter(|n| !delivered.contains(n)).collect();
            assert!(lost.is_empty(), "case {case}: {lost:?} are lost");
        });
    }
}
