//! On a disk that loses its power at every write.

use super::*;
use rt::sim::{Disk, Fault};
use std::cell::Cell;
use std::rc::Rc;

const DIR: &str = "/node/journal";

/// Appends and takes snapshots for ever; `done` counts what returned `Ok`.
async fn work(done: Rc<Cell<u64>>, snapshot_at: Rc<Cell<u64>>, limit: u64) {
    let dir = Path::new(DIR);
    fs::create_dir_all(dir).await.expect("made");
    for part in ["/", "/node"] {
        fs::sync_dir(Path::new(part)).await.expect("synced");
    }
    let (journal, entries, snapshot) = match Journal::open(dir).await {
        Ok(all) => all,
        Err(error) => panic!("open after {} entries: {error}", done.get()),
    };
    let base = snapshot.map_or(0, |snapshot| {
        let number = snapshot.id.as_u64_pair().1;
        assert_eq!(snapshot.body, &number.to_le_bytes()[..]);
        number
    });
    assert!(base >= snapshot_at.get(), "a snapshot went back");
    let mut last = base + entries.len() as u64;
    check(&entries, base, last);
    assert!(last == done.get() || last == done.get() + 1, "{} were appended, {last} are there", done.get());
    done.set(last);
    while last < limit {
        append(&journal, last + 1).await.expect("appended");
        last += 1;
        done.set(last);
        if rt::random::below(4) == 0 {
            let at = base.max(last - rt::random::below(3).min(last));
            match journal.snapshot(id(at), &at.to_le_bytes()).await {
                Ok(()) => snapshot_at.set(at),
                // An older snapshot than the last one.
                Err(JournalError::UnknownId(_)) => assert!(at < snapshot_at.get()),
                Err(error) => panic!("snapshot: {error}"),
            }
        }
    }
}

#[test]
fn nothing_that_was_appended_is_lost_whenever_the_power_goes() {
    for seed in 0..6 {
        for cut in 1..140 {
            let disk = Disk::new(seed * 1000 + cut);
            let (done, snapshot_at) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
            let mut cut_at = cut;
            // Several lives, so that what one crash left is itself torn by the next.
            for life in 0..3 {
                disk.power_loss_at_write(cut_at);
                let work = work(done.clone(), snapshot_at.clone(), done.get() + 12);
                let _ = rt::sim::run(seed + life, &disk, work);
                disk.no_power_loss();
                disk.lose_power();
                cut_at = 1 + (cut * 7 + life * 13) % 40;
            }
            rt::sim::block_on(seed, &disk, work(done.clone(), snapshot_at.clone(), done.get() + 2));
        }
    }
}

#[test]
fn a_failed_fsync_ends_the_journal_and_a_full_disk_does_not() {
    let disk = Disk::new(1);
    rt::sim::block_on(1, &disk, async {
        let dir = Path::new(DIR);
        let (journal, ..) = Journal::open(dir).await.expect("opened");
        append(&journal, 1).await.expect("appended");
        disk.set_free(0);
        let mut failed = None;
        for number in 2..200 {
            if let Err(error) = append(&journal, number).await {
                failed = Some((number, error));
                break;
            }
        }
        let (number, error) = failed.expect("the disk is full");
        assert!(matches!(error, JournalError::Io { .. }), "{error}");
        disk.set_free(1 << 30);
        append(&journal, number).await.expect("there is space again");
        disk.fail_next(Fault::Sync, 1);
        append(&journal, number + 1).await.expect_err("the fsync fails");
        let error = append(&journal, number + 1).await.expect_err("for ever");
        assert!(matches!(error, JournalError::Failed(_)), "{error}");
        drop(journal);
        let (_, entries, _) = Journal::open(dir).await.expect("opened");
        assert!(entries.len() as u64 >= number);
    });
}
