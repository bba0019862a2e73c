//! On a disk that loses its power at every write.

use super::*;
use rt::sim::{Disk, Fault};
use std::rc::Rc;

const DIR: &str = "/node/raft";
const END: &str = "/node/end";

async fn noted_end() -> LogEnd {
    match read_end(Path::new(END), NODE).await.expect("read") {
        NotedEnd::At(end) => end,
        other => {
            assert_eq!(other, NotedEnd::Nothing);
            LogEnd::default()
        }
    }
}

fn random_step() -> Step {
    match rt::random::below(9) {
        0..4 => Step::Append(1 + rt::random::below(4), 1 + rt::random::below(3) as usize),
        4 => Step::Vote(rt::random::below(200) as u8),
        5 => Step::Commit,
        6 => Step::Truncate(rt::random::below(5)),
        _ => Step::Purge(rt::random::below(5)),
    }
}

/// Takes random steps for ever; the model has what was done, and the model before what was under
/// way.
async fn work(known: Rc<RefCell<(Model, Option<Model>)>>, steps: usize) {
    let dir = Path::new(DIR);
    fs::create_dir_all(dir).await.expect("made");
    for part in ["/", "/node"] {
        fs::sync_dir(Path::new(part)).await.expect("synced");
    }
    let end = inspect(dir, NODE).await.expect("whole").map_or(LogEnd::default(), |found| found.end);
    let noted = noted_end().await;
    assert!(end >= noted, "the log ends at {end:?}, and {noted:?} was noted");
    let log = match RaftLog::open(dir, NODE).await {
        Ok(log) => log,
        Err(error) => panic!("open: {error}"),
    };
    log.keep_end(Path::new(END)).await.expect("noted");
    let found = Model::of(&log);
    {
        let mut known = known.borrow_mut();
        let (done, under_way) = &*known;
        // Of a batch under way a part may be there.
        let partly = under_way.as_ref().is_some_and(|next| {
            found == *next
                || (found.vote == done.vote
                    && found.purged == done.purged
                    && found.entries.starts_with(&done.entries)
                    && next.entries.starts_with(&found.entries))
        });
        assert!(found == *done || partly, "{found:?} instead of {done:?} or {under_way:?}");
        *known = (found, None);
    }
    for _ in 0..steps {
        let step = random_step();
        let mut next = known.borrow().0.clone();
        if next.next() == 1 && !matches!(step, Step::Append(..) | Step::Vote(_)) {
            continue;
        }
        // What is under way must be known before the write begins.
        let mut planned = next.clone();
        plan(&mut planned, &step);
        known.borrow_mut().1 = Some(planned);
        take(&log, &mut next, &step).await.expect("done");
        *known.borrow_mut() = (next, None);
    }
}

#[test]
fn nothing_that_was_done_is_lost_whenever_the_power_goes() {
    for seed in 0..5 {
        for cut in 1..100 {
            let disk = Disk::new(seed * 1000 + cut);
            let known = Rc::new(RefCell::new((Model::default(), None)));
            let mut cut_at = cut;
            for life in 0..3 {
                disk.power_loss_at_write(cut_at);
                let _ = rt::sim::run(seed + life, &disk, work(known.clone(), 20));
                disk.no_power_loss();
                disk.lose_power();
                cut_at = 1 + (cut * 7 + life * 13) % 40;
            }
            rt::sim::block_on(seed, &disk, work(known.clone(), 3));
        }
    }
}

#[test]
fn a_failed_fsync_ends_the_log_but_a_full_disk_does_not() {
    let disk = Disk::new(1);
    rt::sim::block_on(1, &disk, async {
        let log = RaftLog::open(Path::new(DIR), NODE).await.expect("opened");
        log.append(1, &[body(1, 1)]).await.expect("appended");
        log.reserve(1000).await.expect("there is space");
        disk.set_free(0);
        let error = log.reserve(64 << 20).await.expect_err("the disk is full");
        assert!(matches!(error, RaftLogError::Io { .. }), "{error}");
        disk.set_free(1 << 30);
        log.append(2, &[body(1, 2)]).await.expect("appended");
        log.reserve(64 << 20).await.expect("there is space again");
        disk.fail_next(Fault::Sync, 1);
        log.append(3, &[body(1, 3)]).await.expect_err("the fsync fails");
        let error = log.append(3, &[body(1, 3)]).await.expect_err("for ever");
        assert!(matches!(error, RaftLogError::Failed(_)), "{error}");
        drop(log);
        let log = RaftLog::open(Path::new(DIR), NODE).await.expect("opened");
        assert!(log.entries(0, 9).len() >= 2);
    });
}

#[test]
fn votes_and_marks_are_written_down_on_a_full_disk_also_after_a_purge() {
    let disk = Disk::new(2);
    let fill = disk.clone();
    rt::sim::block_on(2, &disk, async {
        let dir = Path::new(DIR);
        fs::create_dir_all(dir).await.expect("made");
        for part in ["/", "/node"] {
            fs::sync_dir(Path::new(part)).await.expect("synced");
        }
        let log = RaftLog::open(dir, NODE).await.expect("opened");
        log.reserve(0).await.expect("there is space");
        disk.set_free(0);
        log.save_vote(body(1, 1)).await.expect("reserved");
        log.append(1, &[body(1, 1), body(1, 2)]).await.expect("reserved");
        disk.set_free(1 << 30);
        log.purge(1, Bytes::from_static(b"id")).await.expect("purged");
        disk.set_free(0);
        log.save_vote(body(2, 2)).await.expect("reserved by the purge");
        log.save_committed(2).await.expect("reserved by the purge");
        log.purge(2, Bytes::from_static(b"id")).await.expect("put off");
        assert_eq!(log.purged().map(|(index, _)| index), Some(1), "there is no room for another log");
        log.save_vote(body(3, 3)).await.expect("the room is still there");
    });
    // A loss of power takes what was reserved: the log opens nevertheless.
    fill.lose_power();
    fill.set_free(0);
    rt::sim::block_on(2, &fill, async {
        let log = RaftLog::open(Path::new(DIR), NODE).await.expect("opened");
        assert_eq!((log.vote(), log.committed()), (Some(body(3, 3)), Some(2)));
        log.reserve(0).await.expect_err("the disk is full");
    });
}
