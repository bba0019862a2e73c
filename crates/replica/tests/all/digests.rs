//! Digests and data for reconciliation: they are equal for equal data wherever it is stored, differ
//! for different data, and end where a page ends.

use crate::support::*;
use engine::Engine;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use replica::page::{Flow, PageBuilder};
use replica::{Page, ReadCommand, Replica, ReplicaConfig, ReplicaError};
use std::rc::Rc;

const KEYS: i32 = 3;
const SIDE: i32 = 6;

fn change() -> impl Strategy<Value = Change> {
    let place = (0..KEYS, 0..SIDE, 0..SIDE);
    prop_oneof![
        20 => (place.clone(), 0usize..40).prop_map(|((k, a, b), size)| Change::Row { k, a, b, size }),
        2 => (0..KEYS).prop_map(|k| Change::Static { k }),
        1 => (0..KEYS).prop_map(|k| Change::DeleteStatic { k }),
        3 => place.clone().prop_map(|(k, a, b)| Change::DeleteRow { k, a, b }),
        2 => (place, 0..SIDE).prop_map(|((k, a, b), c)| {
            Change::DeleteRange { k, from: (a, b), to: (a.max(c), b), open: false }
        }),
        1 => (0..KEYS).prop_map(|k| Change::DeletePartition { k }),
    ]
}

fn replica(engine: &Rc<Engine>) -> Rc<Replica> {
    Replica::new(engine.clone(), ReplicaConfig { querier_cache: false, ..ReplicaConfig::with_memory(64 << 20) })
}

fn queries() -> Vec<Query> {
    let mut all = Vec::new();
    for rows in [1, 3, 100] {
        for k in 0..KEYS {
            all.push(Query::of_key(1, k, rows));
            all.push(Query { reversed: true, ..Query::of_key(1, k, rows) });
        }
        let everything = model::range::PartitionRange::FULL;
        let mut whole = Query { range: everything, ..Query::of_key(1, 0, rows) };
        all.push(whole.clone());
        whole.limits.tombstones = 2;
        all.push(whole.clone());
        whole.limits.bytes = 50;
        all.push(whole);
    }
    all
}

/// The page that a coordinator makes of data for reconciliation.
fn page_of(command: &ReadCommand, fragments: Vec<model::fragment::Fragment>) -> Page {
    let schema = schema(1);
    let mut builder = PageBuilder::new(&schema, &command.output, command.limits, command.now);
    for fragment in fragments {
        if builder.push(fragment).unwrap() == Flow::Stop {
            break;
        }
    }
    builder.finish()
}

#[test]
fn the_same_data_has_the_same_digest_and_the_data_behind_it_the_same_page() {
    let mut runner = TestRunner::new(ProptestConfig::default());
    let strategy = prop::collection::vec(change(), 1..40);
    for case in 0..10 {
        let changes = strategy.new_tree(&mut runner).unwrap().current();
        let (scratch, other) = (Scratch::new(&format!("digest{case}")), Scratch::new(&format!("digested{case}")));
        rt::block_on(async {
            let (a, b) = (engine(&scratch).await, engine(&other).await);
            for (i, change) in changes.iter().enumerate() {
                change.apply(&a, i as i64 + 1);
            }
            for (i, change) in changes.iter().enumerate().rev() {
                change.apply(&b, i as i64 + 1);
                if i % 10 == 5 {
                    b.flush(None).await.unwrap();
                }
            }
            let (here, there) = (replica(&a), replica(&b));
            for query in queries() {
                let command = query.command(1, None).unwrap();
                let (page, digest) = read_digested(&here, &command).await;
                assert_eq!(page, read(&here, &command, &context()).await.unwrap(), "the digest changes no page");
                let (same_page, same) = read_digested(&there, &command).await;
                assert_eq!((same, same_page), (digest, page.clone()), "{query:?} {changes:?}");
                let part = fragments(&there, &command, &context()).await.unwrap();
                assert_eq!(part.last, page.last.clone().filter(|_| page.end != replica::PageEnd::Exhausted));
                let mut made = page_of(&command, part.fragments);
                // Fewer rows may be examined if covered data was dropped before.
                (made.examined_bytes, made.examined_rows) = (page.examined_bytes, page.examined_rows);
                assert_eq!(made, page, "{query:?} {changes:?}");
            }
            a.stop().await;
            b.stop().await;
        });
    }
}

/// Each part contains the static row, which is as large as a part. A part must not end at the
/// deletion that is open at its beginning: the same part would follow forever.
#[test]
fn parts_with_a_large_static_row_get_on() {
    let scratch = Scratch::new("large-static");
    rt::block_on(async {
        let engine = engine(&scratch).await;
        Change::LargeStatic { k: 1, size: 5 << 20 }.apply(&engine, 1);
        Change::DeleteRange { k: 1, from: (1, 0), to: (3, 0), open: false }.apply(&engine, 2);
        Change::Row { k: 1, a: 5, b: 0, size: 10 }.apply(&engine, 3);
        let mut query = Query::of_key(1, 1, 100);
        query.limits.tombstones = 1;
        let replica = replica(&engine);
        let (mut before, mut ends) = (None::<Page>, Vec::new());
        while let Some(command) = query.command(1, before.as_ref()) {
            let part = fragments(&replica, &command, &context()).await.unwrap();
            let Some(last) = part.last else { break };
            assert!(!ends.contains(&last), "{last:?} again");
            ends.push(last.clone());
            before = Some(Page { end: replica::PageEnd::Bytes, last: Some(last), ..Page::default() });
        }
        assert_eq!(ends.len(), 4, "both ends of the deletion, the row, the partition: {ends:?}");
        engine.stop().await;
    });
}

#[test]
fn differences_change_the_digest() {
    let (scratch, other) = (Scratch::new("differs"), Scratch::new("differing"));
    rt::block_on(async {
        let (a, b) = (engine(&scratch).await, engine(&other).await);
        let command = Query::of_key(1, 1, 100).command(1, None).unwrap();
        let (here, there) = (replica(&a), replica(&b));
        let mut time = 0;
        let mut both = |change: Change| {
            time += 1;
            change.apply(&a, time);
            change.apply(&b, time);
        };
        both(Change::Row { k: 1, a: 1, b: 1, size: 4 });
        both(Change::Row { k: 1, a: 2, b: 1, size: 4 });
        both(Change::Row { k: 2, a: 2, b: 1, size: 4 });
        let same = |expected: bool, why: &'static str| {
            let (here, there, command) = (here.clone(), there.clone(), &command);
            async move {
                let (_, digest) = read_digested(&here, command).await;
                let (_, other) = read_digested(&there, command).await;
                assert_eq!(digest == other, expected, "{why}");
            }
        };
        same(true, "all is the same").await;
        for deletion in [
            Change::DeleteRow { k: 1, a: 3, b: 3 },
            Change::DeleteRange { k: 1, from: (4, 0), to: (5, 0), open: false },
            Change::DeleteStatic { k: 1 },
        ] {
            deletion.apply(&a, 10);
            same(false, "what hides nothing here may hide something on another replica").await;
            deletion.apply(&b, 10);
            same(true, "the other has it too").await;
        }
        Change::Row { k: 2, a: 1, b: 1, size: 4 }.apply(&a, 11);
        same(true, "another partition").await;
        Change::Row { k: 1, a: 2, b: 1, size: 4 }.apply(&a, 12);
        same(false, "a later write of the same row").await;
        Change::Row { k: 1, a: 2, b: 1, size: 4 }.apply(&b, 12);
        same(true, "the other has it too").await;
        Change::Static { k: 1 }.apply(&a, 13);
        same(false, "a static row").await;
        Change::DeleteStatic { k: 1 }.apply(&a, 14);
        same(false, "it is gone, and the other has no deletion of it").await;
        Change::Static { k: 1 }.apply(&b, 13);
        Change::DeleteStatic { k: 1 }.apply(&b, 14);
        same(true, "it is gone").await;
        Change::DeleteRow { k: 1, a: 1, b: 1 }.apply(&b, 15);
        same(false, "a row is gone").await;
        Change::DeletePartition { k: 1 }.apply(&a, 16);
        same(false, "all is gone from one").await;
        Change::DeletePartition { k: 1 }.apply(&b, 16);
        same(true, "all is gone, and what was deleted before does not count").await;
        Change::DeletePartition { k: 1 }.apply(&b, 17);
        same(false, "it was deleted later").await;
        a.stop().await;
        b.stop().await;
    });
}

#[test]
fn a_kept_reader_gives_the_digests_of_a_new_one() {
    let mut runner = TestRunner::new(ProptestConfig::default());
    let strategy = prop::collection::vec(change(), 1..60);
    // A case of few changes has no second page.
    let mut resumed = 0;
    for case in 0..10 {
        let changes = strategy.new_tree(&mut runner).unwrap().current();
        let scratch = Scratch::new(&format!("kept-digests{case}"));
        rt::block_on(async {
            let engine = engine(&scratch).await;
            for (i, change) in changes.iter().enumerate() {
                change.apply(&engine, i as i64 + 1);
            }
            let keeping = Replica::new(engine.clone(), ReplicaConfig::with_memory(64 << 20));
            let fresh = replica(&engine);
            for (id, query) in queries().into_iter().enumerate() {
                let query = Query { id: id as u8, ..query };
                let mut before: Option<Page> = None;
                while let Some(command) = query.command(1, before.as_ref()) {
                    let kept = read_digested(&keeping, &command).await;
                    assert_eq!(kept, read_digested(&fresh, &command).await, "{query:?} {changes:?}");
                    if kept.0.end == replica::PageEnd::Exhausted {
                        break;
                    }
                    before = Some(kept.0);
                }
            }
            let counters = keeping.metrics().queriers;
            resumed += counters.lookups - counters.misses;
            engine.stop().await;
        });
    }
    assert!(resumed > 0, "no reader was kept");
}

#[test]
fn a_deletion_counts_until_its_grace_period_is_over() {
    let (scratch, other) = (Scratch::new("grace"), Scratch::new("no-deletion"));
    rt::block_on(async {
        let (a, b) = (engine(&scratch).await, engine(&other).await);
        Change::DeleteRow { k: 1, a: 1, b: 1 }.apply(&a, 1);
        let (here, there) = (replica(&a), replica(&b));
        let grace = schema(1).options.gc_grace_seconds;
        for (passed, same) in [(grace - 1, false), (grace, true)] {
            let command = ReadCommand { now: NOW + passed, ..Query::of_key(1, 1, 100).command(1, None).unwrap() };
            let (_, digest) = read_digested(&here, &command).await;
            assert_eq!(digest == read_digested(&there, &command).await.1, same, "after {passed} s");
        }
        a.stop().await;
        b.stop().await;
    });
}

#[test]
fn limits_that_leave_holes_are_refused() {
    let scratch = Scratch::new("holes");
    rt::block_on(async {
        let engine = engine(&scratch).await;
        let replica = replica(&engine);
        let mut distinct = Query::of_key(1, 1, 10);
        distinct.distinct = true;
        let mut limited = Query::of_key(1, 1, 10);
        limited.limits.per_partition = 1;
        for query in [distinct, limited] {
            let refused = fragments(&replica, &query.command(1, None).unwrap(), &context()).await;
            assert!(matches!(refused, Err(ReplicaError::Rejected(_))), "{refused:?}");
        }
        engine.stop().await;
    });
}
