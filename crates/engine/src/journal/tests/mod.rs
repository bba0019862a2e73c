//! Tests of the journal: on a real disk, and (feature `sim`) on one that loses its power at every write.

use super::*;
use crate::scratch::Scratch;

#[cfg(feature = "sim")]
mod power;

pub(super) fn id(number: u64) -> Uuid {
    if number == 0 { Uuid::nil() } else { Uuid::from_u64_pair(0xABCD, number) }
}

pub(super) fn body(number: u64) -> Vec<u8> {
    vec![number as u8; (number as usize * 37) % 300]
}

pub(super) async fn append(journal: &Journal, number: u64) -> Result<(), JournalError> {
    journal.append(id(number - 1), id(number), &body(number)).await
}

pub(super) fn check(entries: &[Entry], from: u64, to: u64) {
    assert_eq!(entries.len() as u64, to - from, "entries {from}..={to}");
    for (entry, number) in entries.iter().zip(from + 1..) {
        assert_eq!((entry.previous, entry.id, &entry.body[..]), (id(number - 1), id(number), &body(number)[..]));
    }
}

async fn open(dir: &Path) -> (Journal, Vec<Entry>, Option<Snapshot>) {
    match Journal::open(dir).await {
        Ok(all) => all,
        Err(error) => panic!("open: {error}"),
    }
}

async fn filled(dir: &Path, to: u64) -> Journal {
    let (journal, entries, snapshot) = open(dir).await;
    assert!(entries.is_empty() && snapshot.is_none());
    for number in 1..=to {
        append(&journal, number).await.expect("appended");
    }
    journal
}

#[test]
fn entries_come_back_in_order_and_only_the_next_is_accepted() {
    rt::block_on(async {
        let scratch = Scratch::new("journal-chain");
        let journal = filled(scratch.path(), 20).await;
        let error = journal.append(id(19), id(21), b"late").await.expect_err("not the last");
        assert!(matches!(error, JournalError::WrongPrevious { last, .. } if last == id(20)), "{error}");
        drop(journal);
        let (journal, entries, _) = open(scratch.path()).await;
        check(&entries, 0, 20);
        assert_eq!(journal.last(), id(20));
        append(&journal, 21).await.expect("appended");
    });
}

#[test]
fn one_of_two_concurrent_appends_wins() {
    rt::block_on(async {
        let scratch = Scratch::new("journal-race");
        let journal = std::rc::Rc::new(filled(scratch.path(), 3).await);
        let race = |new: u64| {
            let journal = journal.clone();
            rt::task::spawn(async move { journal.append(id(3), id(new), b"x").await.is_ok() })
        };
        let (first, second) = (race(100), race(200));
        let won = [first.await.expect("not aborted"), second.await.expect("not aborted")];
        assert_eq!(won.iter().filter(|won| **won).count(), 1);
    });
}

#[test]
fn a_snapshot_takes_the_place_of_the_entries_up_to_it() {
    rt::block_on(async {
        let scratch = Scratch::new("journal-snapshot");
        let journal = filled(scratch.path(), 10).await;
        let error = journal.snapshot(id(99), b"?").await.expect_err("unknown");
        assert!(matches!(error, JournalError::UnknownId(_)), "{error}");
        journal.snapshot(id(7), b"up to seven").await.expect("written");
        append(&journal, 11).await.expect("appended");
        drop(journal);
        let (journal, entries, snapshot) = open(scratch.path()).await;
        assert_eq!(snapshot, Some(Snapshot { id: id(7), body: Bytes::from_static(b"up to seven") }));
        check(&entries, 7, 11);
        journal.snapshot(id(11), b"up to eleven").await.expect("written");
        journal.snapshot(id(11), b"again").await.expect("written");
        assert_eq!(journal.last(), id(11));
        drop(journal);
        let (journal, entries, snapshot) = open(scratch.path()).await;
        assert_eq!(snapshot.expect("there").body, &b"again"[..]);
        assert!(entries.is_empty());
        assert_eq!(journal.last(), id(11));
        append(&journal, 12).await.expect("appended");
        assert_eq!(std::fs::read_dir(scratch.path()).expect("readable").count(), 2, "older files are gone");
    });
}

#[test]
fn a_torn_tail_is_cut_off_and_damage_before_it_is_an_error() {
    rt::block_on(async {
        let scratch = Scratch::new("journal-damage");
        let journal = filled(scratch.path(), 8).await;
        let ends: Vec<u64> = journal.state.borrow().entries.iter().map(|(_, end)| *end).collect();
        drop(journal);
        let path = log_path(scratch.path(), 0);
        let good = std::fs::read(&path).expect("readable");
        for len in ends[6]..ends[7] {
            std::fs::write(&path, &good[..len as usize]).expect("cut");
            let (journal, entries, _) = open(scratch.path()).await;
            check(&entries, 0, 7);
            append(&journal, 8).await.expect("appended");
            drop(journal);
            let (_, entries, _) = open(scratch.path()).await;
            check(&entries, 0, 8);
        }
        for at in (0..good.len()).step_by(5) {
            let mut bad = good.clone();
            bad[at] ^= 1;
            std::fs::write(&path, &bad).expect("damaged");
            let result = Journal::open(scratch.path()).await;
            let in_padding = (1..=8u64).zip(&ends).any(|(number, end)| {
                let body_end = end - ((56 + body(number).len()).next_multiple_of(8) - 56 - body(number).len()) as u64;
                (body_end..*end).contains(&(at as u64))
            });
            match result {
                Ok((_, entries, _)) => {
                    // The last entry too is known to have been whole, by the mark behind it.
                    assert!(in_padding || at as u64 >= ends[7], "byte {at}");
                    check(&entries, 0, 8);
                }
                Err(error) => {
                    let corrupt = matches!(error, JournalError::Corrupt { .. });
                    assert!(corrupt && (at as u64) < ends[7], "byte {at}: {error}");
                }
            }
        }
        std::fs::remove_file(&path).expect("removed");
        std::fs::write(scratch.path().join("log-1"), &good).expect("written");
        let error = Journal::open(scratch.path()).await.err().expect("the log of the snapshot is missing");
        assert!(matches!(error, JournalError::Corrupt { .. }), "{error}");
    });
}

#[test]
fn a_damaged_snapshot_is_an_error() {
    rt::block_on(async {
        let scratch = Scratch::new("journal-badsnap");
        let journal = filled(scratch.path(), 3).await;
        journal.snapshot(id(2), b"two").await.expect("written");
        drop(journal);
        let path = snapshot_path(scratch.path(), 1);
        let good = std::fs::read(&path).expect("readable");
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 0x20;
            std::fs::write(&path, &bad).expect("damaged");
            assert!(Journal::open(scratch.path()).await.is_err(), "byte {at}");
        }
        std::fs::write(&path, &good).expect("restored");
        let (_, entries, _) = open(scratch.path()).await;
        check(&entries, 2, 3);
    });
}
