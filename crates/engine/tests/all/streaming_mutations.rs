//! A tablet moves between two engines as mutations: over cuts and restarts, with damage on disk,
//! with streams that no reader makes.

use crate::streaming::{
    KEYS, Pair, SESSION, TABLET, config_of, dir_of, host, own_keys, receiver, source, tablet, target, with_pair,
};
use crate::support::table_files::{damage, files, insert, write};
use crate::support::*;
use engine::streaming::{AttachedFiles, Direction, IncomingMutations};
use engine::{Engine, EngineError, ReadOptions};
use model::fragment::Fragment;
use model::key::{ClusteringCut, RingCut};
use model::range::Slice;
use model::time::Tombstone;
use std::collections::VecDeque;
use std::rc::Rc;

/// The fragments of the tablet behind what has arrived.
async fn fragments(source: &Engine, incoming: &IncomingMutations) -> Vec<Fragment> {
    let mut range = tablets(4)[TABLET as usize].range.clone();
    if let Some(after) = incoming.after() {
        range.start = RingCut::after_key(after);
    }
    let mut reader = source.reader(target().table, range, Rc::new(Slice::full()), ReadOptions::default()).unwrap();
    let mut out = VecDeque::new();
    while reader.fill(&mut out).await.unwrap() {}
    out.into()
}

/// The number of partitions that begin in fragments.
fn partitions(fragments: &[Fragment]) -> usize {
    fragments.iter().filter(|fragment| matches!(fragment, Fragment::PartitionStart { .. })).count()
}

/// Moves the tablet, and returns what was attached.
async fn move_tablet(source: &Engine, receiver: &Engine) -> AttachedFiles {
    let mut incoming = receiver.receive_mutations(target(), host(1)).await.unwrap();
    source.flush_one_tablet(target().table, TABLET).await.unwrap();
    incoming.expect(source.size_of_tablet(target().table, TABLET).unwrap()).await.unwrap();
    for part in fragments(source, &incoming).await.chunks(7) {
        incoming.push(part.to_vec()).await.unwrap();
    }
    let arrived = incoming.finish().await.unwrap();
    receiver.attach_streamed(target(), vec![arrived], || Ok(())).await.unwrap()
}

#[test]
fn mutations_arrive_and_are_read_with_newer_writes() {
    let (from, to) = (Scratch::new("mutations-from"), Scratch::new("mutations-to"));
    rt::block_on(async {
        let schema = still(0);
        let source = source(&from, &schema).await;
        let mut keys = own_keys();
        let (first, second) = (keys.next().unwrap(), keys.next().unwrap());
        write(&source, &schema, 25, Change::DeletePartition { k: first }).await;
        let receiver = receiver(&to, &schema).await;
        write(&receiver, &schema, 20, insert(first, 50, "older than its deletion")).await;
        write(&receiver, &schema, 30, insert(second, 99, "new")).await;
        let mut expected = tablet(&source, &schema).await;
        expected.get_mut(&second).unwrap().1.insert(99, (true, Some("new".into())));

        let attached = move_tablet(&source, &receiver).await;
        assert_eq!(attached.sstables, 1, "it is what the four sstables and the memtable have");
        assert_eq!(tablet(&receiver, &schema).await, expected);
        receiver.abandon().await;
        let receiver = open(config_of(&to, 2), &schema, &tablets(4)[1..]).await;
        assert_eq!(tablet(&receiver, &schema).await, expected, "after a crash");
        assert!(receiver.is_attached(target()).await.unwrap());
        assert_eq!(receiver.session_dirs(&schema).await.unwrap(), [(Direction::In, SESSION)]);
        assert_eq!(receiver.sweep_sessions(&schema, |_| false).await.unwrap(), 1);
        receiver.compact_major(schema.id).await.unwrap();
        assert_eq!(tablet(&receiver, &schema).await, expected);
        receiver.stop().await;
        source.stop().await;
    });
}

/// What is sealed is not asked for again, even after a restart.
#[test]
fn an_attempt_that_was_cut_continues_behind_what_is_sealed() {
    let (from, to) = (Scratch::new("mutations-cut-from"), Scratch::new("mutations-cut-to"));
    rt::block_on(async {
        let schema = still(0);
        let source = source(&from, &schema).await;
        let mut receiver = receiver(&to, &schema).await;
        let all = own_keys().count();
        let mut left = all;
        for cut in 1.. {
            let mut incoming = receiver.receive_mutations(target(), host(1)).await.unwrap();
            incoming.split_at(1);
            let missing = fragments(&source, &incoming).await;
            assert_eq!(partitions(&missing), left);
            if left <= 2 {
                incoming.push(missing).await.unwrap();
                let arrived = incoming.finish().await.unwrap();
                let attached = receiver.attach_streamed(target(), vec![arrived], || Ok(())).await.unwrap();
                assert_eq!(attached.sstables as usize, all, "one for each partition");
                break;
            }
            // The third partition begins, so the first two are sealed.
            let third = missing.iter().enumerate().filter(|(_, one)| matches!(one, Fragment::PartitionStart { .. }));
            let third = third.map(|(at, _)| at).nth(2).unwrap();
            incoming.push(missing[..third + 2].to_vec()).await.unwrap();
            left -= 2;
            match cut % 3 {
                0 => incoming.abandon().await,
                1 => drop(incoming),
                _ => {
                    drop(incoming);
                    receiver.abandon().await;
                    receiver = open(config_of(&to, 2), &schema, &tablets(4)[1..]).await;
                }
            }
        }
        assert_eq!(tablet(&receiver, &schema).await, tablet(&source, &schema).await);
        receiver.stop().await;
        source.stop().await;
    });
}

/// If the disk damages or loses what is sealed, all is asked for again.
#[test]
fn damaged_files_are_received_again() {
    with_pair("mutations-rot", async |Pair { to, schema, source, receiver, .. }| {
        for ending in ["-Statistics.db", "-Index.db", "-TOC.txt", "sealed.json", "damaged sealed.json"] {
            let mut incoming = receiver.receive_mutations(target(), host(1)).await.unwrap();
            incoming.split_at(1);
            incoming.push(fragments(source, &incoming).await).await.unwrap();
            drop(incoming);
            let session = dir_of(to).join(format!("streaming/in-{}/epoch-0", SESSION.simple()));
            let dir = std::fs::read_dir(session).unwrap().next().unwrap().unwrap().path();
            let (is_damaged, ending) = match ending.strip_prefix("damaged ") {
                Some(ending) => (true, ending),
                None => (ending == "-Statistics.db", ending),
            };
            let file = files(&dir, ending).remove(0);
            if is_damaged {
                damage(&file)
            } else {
                std::fs::remove_file(&file).unwrap()
            }
            let incoming = receiver.receive_mutations(target(), host(1)).await.unwrap();
            assert_eq!(incoming.after(), None, "{ending}");
            assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 0, "{ending}");
        }
        move_tablet(source, receiver).await;
        assert_eq!(tablet(receiver, schema).await, tablet(source, schema).await);
    });
}

/// What no reader of the tablet returns is refused, and nothing of it is loaded.
#[test]
fn wrong_streams_are_refused() {
    with_pair("mutations-wrong", async |Pair { schema, source, receiver, .. }| {
        let incoming = receiver.receive_mutations(target(), host(1)).await.unwrap();
        let good = fragments(source, &incoming).await;
        let foreign = (0..KEYS).map(key).find(|key| !tablets(4)[TABLET as usize].range.contains(key)).unwrap();
        let open = Fragment::Change { at: ClusteringCut::START, tombstone: Tombstone::new(3, 4) };
        let first_end = good.iter().position(|one| *one == Fragment::PartitionEnd).unwrap();
        type Change<'a> = &'a dyn Fn(&mut Vec<Fragment>);
        let rows = good.iter().position(|one| matches!(one, Fragment::Row { .. })).unwrap();
        let cases: [(Change<'_>, &str); 8] = [
            (&|all| all.swap(rows, rows + 1), "rows are not in order"),
            (&|all| all.insert(rows + 1, all[rows].clone()), "rows are not in order"),
            (&|all| all.swap(0, 1), "another order"),
            (&|all| all.truncate(first_end), "no end"),
            (&|all| all.extend_from_within(..=first_end), "not in order"),
            (
                &|all| all.insert(0, Fragment::PartitionStart { key: foreign.clone(), tombstone: Tombstone::LIVE }),
                "outside of the tablet",
            ),
            (&|all| all.insert(1, open.clone()), "open at the end"),
            (&|all| drop(all.remove(first_end)), "another order"),
        ];
        for (change, expected) in cases {
            let mut incoming = receiver.receive_mutations(target(), host(1)).await.unwrap();
            let mut wrong = good.clone();
            change(&mut wrong);
            let pushed = incoming.push(wrong).await;
            let refused = match pushed {
                Ok(()) => incoming.finish().await.map(drop),
                Err(error) => Err(error),
            };
            let error = refused.expect_err(expected);
            assert!(matches!(error, EngineError::WrongMutations(why) if why.contains(expected)), "{error}");
        }
        assert_eq!(tablet(receiver, schema).await, Seen::new());
    });
}

/// A tablet with an sstable that another database wrote moves as mutations only.
#[test]
fn foreign_sstables_move_as_mutations() {
    let (from, to) = (Scratch::new("mutations-foreign-from"), Scratch::new("mutations-foreign-to"));
    rt::block_on(async {
        let schema = still(0);
        let engine = source(&from, &schema).await;
        engine.stop().await;
        for toc in files(&dir_of(&from), "-TOC.txt") {
            let without = std::fs::read_to_string(&toc).unwrap().replace("Checksums.db\n", "");
            std::fs::write(&toc, without).unwrap();
            std::fs::remove_file(toc.to_str().unwrap().replace("TOC.txt", "Checksums.db")).unwrap();
        }
        let source = open(config_of(&from, 1), &schema, &tablets(4)).await;
        let pinned = source.pin_tablet(schema.id, TABLET, SESSION, 0).await;
        let error = pinned.map(drop).expect_err("another database wrote it");
        assert!(matches!(error, EngineError::OnlyAsMutations { .. }), "{error}");
        let receiver = receiver(&to, &schema).await;
        move_tablet(&source, &receiver).await;
        assert_eq!(tablet(&receiver, &schema).await, tablet(&source, &schema).await);
        receiver.stop().await;
        source.stop().await;
    });
}
