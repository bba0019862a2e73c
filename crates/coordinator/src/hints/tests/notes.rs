//! Lost notes of hints: the second record has the nodes that they named.

use super::*;

/// A second record of the notes.
#[derive(Clone, Default)]
struct Second {
    known: Rc<RefCell<Witnessed>>,
    changes: Rc<Cell<u64>>,
    is_broken: Rc<Cell<bool>>,
}

impl Second {
    fn store(&self) -> Store {
        let place = self.clone();
        Box::new(move |changes| {
            let place = place.clone();
            Box::pin(async move {
                if place.is_broken.get() {
                    return Err(io::Error::other("broken"));
                }
                place.changes.set(place.changes.get() + 1);
                for (name, notes) in changes {
                    match notes {
                        Some(notes) => drop(place.known.borrow_mut().insert(name, notes)),
                        None => drop(place.known.borrow_mut().remove(&name)),
                    }
                }
                Ok(())
            })
        })
    }

    async fn open(&self, scratch: &Scratch) -> Rc<Hints> {
        self.open_shard(scratch, 1).await
    }

    async fn open_shard(&self, scratch: &Scratch, shards: u16) -> Rc<Hints> {
        let known = self.known.borrow().clone();
        Hints::open_witnessed(config(scratch), 0, shards, known, self.store()).await.expect("opens")
    }
}

const LOST: Cause = Cause::NotesLost;

/// The node was down for longer than hints are kept.
async fn miss(hints: &Hints) {
    let too_long = Some(hints.settings.borrow().window + Duration::from_secs(1));
    hints.store(target(), &mutation(7), 1, too_long).await.expect_err("it was down for too long");
}

#[test]
fn lost_notes_are_known_from_the_second_record() {
    type Harm = fn(&Path);
    let files: &[&[&str]] = &[&["0.files"], &["0.missed"], &["0.files", "0.missed"]];
    let harms: &[Harm] = &[
        |file| std::fs::remove_file(file).expect("removed"),
        |file| {
            let len = std::fs::metadata(file).expect("there").len() as usize;
            std::fs::write(file, vec![0; len]).expect("written");
        },
        |file| std::fs::write(file, b"").expect("written"),
    ];
    rt::block_on(async {
        for (number, (files, harm)) in
            files.iter().flat_map(|files| harms.iter().map(move |harm| (files, harm))).enumerate()
        {
            for hints_are_lost in [false, true] {
                let (scratch, second) = (Scratch::new("lost-notes"), Second::default());
                let hints = second.open(&scratch).await;
                fill(&hints, 5).await;
                miss(&hints).await;
                let began = hints.missed()[0].since;
                drop(hints);
                files.iter().for_each(|file| harm(&scratch.join("notes").join(file)));
                if hints_are_lost {
                    std::fs::remove_dir_all(scratch.join("0")).expect("removed");
                }
                for start in 0..2 {
                    let hints = second.open(&scratch).await;
                    let at = format!("{files:?}, harm {number}, start {start}: {:?}", noted(&hints));
                    let whole: Vec<_> = hints.missed().into_iter().filter(|one| one.table.is_none()).collect();
                    assert_eq!(whole.len(), 1, "{at}");
                    assert_eq!((whole[0].target, whole[0].cause), (target(), LOST), "{at}");
                    // A resync must not treat writes that are older than gc_grace_seconds as new.
                    assert!(whole[0].since <= began, "{at}");
                }
                let hints = second.open(&scratch).await;
                replay(&hints, |_| Delivered::Sent).await;
                hints.forget_missed(target(), None, i64::MAX).await;
                hints.sync().await;
                assert_eq!(*second.known.borrow(), Witnessed::new());
                drop(hints);
                // The loss of the file costs nothing now.
                std::fs::remove_dir_all(scratch.join("notes")).expect("removed");
                assert_eq!(noted(&*second.open(&scratch).await), []);
            }
        }
    });
}

#[test]
fn older_copies_of_notes_are_reported_as_lost() {
    rt::block_on(async {
        for name in ["0.files", "0.missed"] {
            let (scratch, second) = (Scratch::new("older-notes"), Second::default());
            let file = scratch.join("notes").join(name);
            let hints = second.open(&scratch).await;
            fill(&hints, 1).await;
            miss(&hints).await;
            let older = std::fs::read(&file).expect("there");
            let (other, table) = (HostId(Uuid::from_u128(3)), mutation(0).table());
            hints.note_missed(other, table, Cause::Refused).await.expect("noted");
            fill(&hints, 20).await;
            hints.sync().await;
            drop(hints);
            std::fs::write(&file, older).expect("written");
            // A start that accepts the loss of files writes to it before it is read.
            if name == "0.missed" {
                let own = HostId(Uuid::from_u128(9));
                note_accepted_loss(&scratch.join("notes"), own, &[None]).await.expect("written");
            }
            let lost: Vec<_> = noted(&*second.open(&scratch).await).into_iter().filter(|one| one.2 == LOST).collect();
            let wanted = [target(), HostId(Uuid::from_u128(3))].map(|target| (target, None, LOST));
            assert_eq!(lost, wanted[..if name == "0.files" { 1 } else { 2 }], "{name}");
        }
    });
}

#[test]
fn the_second_record_changes_per_node_and_not_per_hint() {
    rt::block_on(async {
        let (scratch, second) = (Scratch::new("second"), Second::default());
        let hints = second.open(&scratch).await;
        let before = second.changes.get();
        fill(&hints, 40).await;
        assert!(files_in(&scratch).len() > 5);
        assert_eq!(second.changes.get(), before + 1);
        for _ in 0..5 {
            miss(&hints).await;
        }
        assert_eq!(second.changes.get(), before + 2);
        // A sync records the sequence number of the manifest once, even if only the length of a
        // file has changed.
        hints.sync().await;
        hints.sync().await;
        assert_eq!(second.changes.get(), before + 3);
        fill(&hints, 20).await;
        assert_eq!(second.changes.get(), before + 3);
        hints.sync().await;
        hints.sync().await;
        assert_eq!(second.changes.get(), before + 4);
        replay(&hints, |_| Delivered::Sent).await;
        hints.forget_missed(target(), None, i64::MAX).await;
        hints.sync().await;
        assert_eq!(*second.known.borrow(), Witnessed::new());
        // A hint is acknowledged only after the second record has the node.
        second.is_broken.set(true);
        let refused = hints.store(target(), &mutation(1), 1, None).await;
        assert!(matches!(refused, Err(Refused::Io(_))), "{refused:?}");
        assert_eq!((noted(&hints).len(), files_in(&scratch).len()), (1, 0));
        second.is_broken.set(false);
        hints.sync().await;
        assert_eq!(second.known.borrow().keys().collect::<Vec<_>>(), ["0.missed"]);
        fill(&hints, 3).await;
        assert_eq!(second.known.borrow().len(), 2);
    });
}

#[test]
fn the_second_record_keeps_the_notes_of_removed_shards() {
    rt::block_on(async {
        for is_lost in [false, true] {
            let (scratch, second) = (Scratch::new("second-shards"), Second::default());
            let hints = second.open(&scratch).await;
            fill(&hints, 5).await;
            miss(&hints).await;
            drop(hints);
            // The notes of shard 0 belong to shard 1 of two now.
            renumber(&scratch, 0, 1);
            let known = std::mem::take(&mut *second.known.borrow_mut());
            let renamed = known.into_iter().map(|(name, notes)| (name.replace('0', "1"), notes));
            second.known.borrow_mut().extend(renamed);
            if is_lost {
                std::fs::remove_dir_all(scratch.join("notes")).expect("removed");
            }
            assert_eq!(noted(&*second.open_shard(&scratch, 2).await), [], "another shard's");
            let hints = second.open_shard(&scratch, 1).await;
            let cause = if is_lost { LOST } else { Cause::WindowOver };
            assert_eq!(noted(&hints).iter().map(|one| one.2).collect::<Vec<_>>(), [cause]);
            let names: Vec<String> = second.known.borrow().keys().cloned().collect();
            assert_eq!(names, ["0.missed", "1.files"]);
            assert!(!missed_path(&scratch.join("notes"), 1).exists());
        }
    });
}

#[test]
fn notes_with_the_sequence_number_0_get_another() {
    rt::block_on(async {
        let (scratch, second) = (Scratch::new("uncounted"), Second::default());
        let notes = scratch.join("notes");
        std::fs::create_dir_all(&notes).expect("made");
        let one = MissedWrites { target: target(), table: None, cause: Cause::Full, since: 7 };
        std::fs::write(notes.join("0.missed"), sealed::encode(2, &(0_u64, vec![one]))).expect("written");
        let hints = second.open(&scratch).await;
        assert_eq!(hints.missed(), [one]);
        drop(hints);
        std::fs::remove_dir_all(&notes).expect("removed");
        let hints = second.open(&scratch).await;
        assert_eq!(hints.missed(), [MissedWrites { cause: LOST, ..one }]);
    });
}

#[test]
fn an_older_copy_of_a_hint_file_is_detected() {
    rt::block_on(async {
        let scratch = Scratch::new("older-copy");
        let hints = Hints::open(config(&scratch), 0, 1).await.expect("opens");
        fill(&hints, 2).await;
        hints.sync().await;
        let file = files_in(&scratch).pop().expect("a file");
        let copy = std::fs::read(&file).expect("a whole copy");
        fill(&hints, 1).await;
        hints.sync().await;
        drop(hints);
        // As it was.
        let hints = Hints::open(config(&scratch), 0, 1).await.expect("opens");
        assert_eq!(noted(&hints), Vec::new());
        drop(hints);
        std::fs::write(&file, copy).expect("put back");
        for _ in 0..2 {
            let hints = Hints::open(config(&scratch), 0, 1).await.expect("opens");
            assert_eq!(noted(&hints), [(target(), None, Cause::Damaged)]);
        }
        let hints = Hints::open(config(&scratch), 0, 1).await.expect("opens");
        hints.forget_missed(target(), None, i64::MAX).await;
        drop(hints);
        let hints = Hints::open(config(&scratch), 0, 1).await.expect("opens");
        assert_eq!(noted(&hints), Vec::new(), "it is noted once");
        let (done, seen) = replay(&hints, |_| Delivered::Sent).await;
        assert_eq!((done, seen.len()), (true, 2), "the remaining hints of the file are delivered");
    });
}

#[test]
fn older_copies_of_both_hints_and_notes_are_detected() {
    rt::block_on(async {
        let (scratch, second) = (Scratch::new("older-both"), Second::default());
        let hints = second.open(&scratch).await;
        fill(&hints, 2).await;
        hints.sync().await;
        let file = files_in(&scratch).pop().expect("a file");
        let notes = scratch.join("notes").join("0.files");
        let copies = [&file, &notes].map(|path| (path.clone(), std::fs::read(path).expect("a copy")));
        // Into the same file: the list of files stays.
        fill(&hints, 1).await;
        hints.sync().await;
        drop(hints);
        assert_eq!(files_in(&scratch), [file]);
        assert_eq!(noted(&*second.open(&scratch).await), [], "nothing was replaced");
        copies.iter().for_each(|(path, copy)| std::fs::write(path, copy).expect("put back"));
        for _ in 0..2 {
            assert_eq!(noted(&*second.open(&scratch).await), [(target(), None, LOST)]);
        }
    });
}

#[test]
fn a_delivered_file_that_was_not_removed_is_no_older_copy() {
    rt::block_on(async {
        let scratch = Scratch::new("emptied");
        let hints = Hints::open(config(&scratch), 0, 1).await.expect("opens");
        fill(&hints, 2).await;
        hints.sync().await;
        let obstacle = scratch.join("notes").join("0.files.tmp");
        std::fs::create_dir(&obstacle).expect("made");
        hints.replay(target(), |_| async { Delivered::Sent }).await.expect_err("the manifest cannot be written");
        drop(hints);
        std::fs::remove_dir(&obstacle).expect("removed");
        let hints = Hints::open(config(&scratch), 0, 1).await.expect("opens");
        let (done, seen) = replay(&hints, |_| Delivered::Sent).await;
        assert_eq!((done, seen.len(), noted(&hints)), (true, 0, Vec::new()));
        assert_eq!(files_in(&scratch), [] as [PathBuf; 0]);
    });
}

#[test]
fn each_note_of_a_missed_write_waits_until_it_is_on_disk() {
    rt::block_on(async {
        let scratch = Scratch::new("together");
        let hints = Hints::open(config(&scratch), 0, 1).await.expect("open");
        let first = hints.clone();
        let table = mutation(1).table();
        let first = rt::task::spawn(async move { first.note_missed(target(), table, Cause::Refused).await });
        // The first task begins to write.
        rt::task::yield_now().await;
        hints.note_missed(target(), table, Cause::Refused).await.expect("noted");
        assert!(scratch.join("notes/0.missed").exists());
        first.await.expect("the first task ends").expect("noted");
    });
}
