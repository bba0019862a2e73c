//! Replicas that differ are read as one, and are equal after the read.

use crate::support;

use coordinator::Consistency::{self, *};
use coordinator::{CoordinatorError, PageRequest, QueryPartitions};
use model::range::PartitionRange;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use replica::{Class, ReplicaError};
use rt::time::Duration;
use std::collections::BTreeMap;
use support::{Change, Cluster, Fault, Shape, key, rows, with_cluster, within};

#[test]
fn a_replica_that_was_down_is_repaired_by_the_first_read() {
    with_cluster("repair", Shape::DEFAULT, |cluster| async move {
        cluster.write(0, Change::of(&cluster, 1, 1).row(1, 1).row(2, 2).row(3, 3).done(), All).await.expect("all live");
        cluster.set_alive(2, false);
        let news = Change::of(&cluster, 1, 5).row(1, 10).delete(2).row(4, 40).done();
        cluster.write(0, news, Quorum).await.expect("two live");
        cluster.write(0, Change::of(&cluster, 2, 5).row(1, 1).done(), Quorum).await.expect("two live");
        cluster.write(0, Change::of(&cluster, 2, 6).delete_partition().done(), Quorum).await.expect("two live");
        cluster.set_alive(2, true);
        cluster.settle().await;
        assert_eq!(cluster.own(2, 1).await, [(1, 1), (2, 2), (3, 3)], "it knows nothing of it");
        let expected = vec![(1, 10), (3, 3), (4, 40)];
        assert_eq!(cluster.read(2, 1, Quorum).await, Ok(expected.clone()));
        assert_eq!(cluster.own(2, 1).await, expected, "and has it before the answer goes out");
        let metrics = cluster.nodes[2].coordinator.metrics();
        assert_eq!((metrics.digest_mismatches, metrics.read_repairs), (1, 1));
        assert_eq!(cluster.read(2, 1, All).await, Ok(expected));
        assert_eq!(cluster.nodes[2].coordinator.metrics().digest_mismatches, 1, "all have the same now");
        assert_eq!(cluster.read(2, 2, All).await, Ok(vec![]));
    });
}

/// A replica was asked because others were slow, and has not responded. It takes the place of one
/// that refuses its repair.
#[test]
fn a_read_does_without_a_replica_that_cannot_be_repaired() {
    let shape = Shape { speculative_retry: "5ms", ..Shape::DEFAULT };
    with_cluster("unrepaired", shape, |cluster| async move {
        let full = Fault::FailsWrites(ReplicaError::Storage("no space left".into()));
        cluster.break_node(2, full.clone());
        cluster.write(0, Change::of(&cluster, 1, 1).row(1, 1).done(), Quorum).await.expect("two of three");
        cluster.break_node(2, Fault::Late(Duration::from_millis(30), Some(Box::new(full))));
        cluster.break_node(1, Fault::Late(Duration::from_millis(500), None));
        assert_eq!(cluster.read(0, 1, Quorum).await, Ok(vec![(1, 1)]));
        assert!(cluster.nodes[0].coordinator.metrics().speculative_reads > 0);
    });
}

#[test]
fn a_client_that_goes_ends_the_reconciliation_of_its_read() {
    with_cluster("reconciled-for-no-replica", Shape::DEFAULT, |cluster| async move {
        cluster.write(0, Change::of(&cluster, 1, 1).row(1, 1).done(), All).await.expect("all live");
        cluster.put(1, Change::of(&cluster, 1, 2).row(1, 2).done()).await;
        cluster.break_node(1, Fault::LosesFragmentReads);
        let options = within(All);
        let cancel = options.context.cancel.clone();
        let coordinator = cluster.nodes[0].coordinator.clone();
        let query = cluster.query(QueryPartitions::Keys(smallvec::smallvec![key(1)]));
        let reader = coordinator.clone();
        let read = rt::task::spawn(async move { reader.read(&query, &PageRequest::default(), &options).await });
        while coordinator.metrics().digest_mismatches == 0 {
            rt::task::yield_now().await;
        }
        cancel.cancel();
        assert_eq!(read.await.expect("it ends"), Err(CoordinatorError::Cancelled));
    });
}

#[test]
fn deleted_rows_stay_deleted() {
    with_cluster("deleted", Shape::DEFAULT, |cluster| async move {
        let old = Change::of(&cluster, 1, 1).row(1, 1).row(2, 2).row(3, 3).row(4, 4).done();
        cluster.write(0, old, All).await.expect("all live");
        // Each replica misses one of two deletions.
        cluster.put(0, Change::of(&cluster, 1, 5).delete_range(2, 3).done()).await;
        cluster.put(1, Change::of(&cluster, 1, 6).delete(4).done()).await;
        for level in [All, Quorum, All] {
            assert_eq!(cluster.read(0, 1, level).await, Ok(vec![(1, 1)]), "{level:?}");
        }
        for node in 0..3 {
            assert_eq!(cluster.own(node, 1).await, [(1, 1)], "node {node}");
        }
    });
}

/// A change: partition, clustering key, timestamp, what it does, and which replicas got it.
type Event = (i32, i32, i64, u8, u8);

fn any_event() -> impl Strategy<Value = Event> {
    (0..4i32, 0..8i32, 1..20i64, 0..8u8, 1..8u8)
}

fn change_of(cluster: &Cluster, (k, c, timestamp, what, _): Event) -> model::mutation::Mutation {
    let change = Change::of(cluster, k, timestamp);
    match what {
        0 => change.delete(c),
        1 => change.delete_range(c, c + 2),
        2 => change.delete_partition(),
        _ => change.row(c, timestamp as i32),
    }
    .done()
}

/// All rows of the table, page by page.
async fn scan(cluster: &Cluster, node: usize, size: u64, level: Consistency) -> Vec<(i32, i32, i64)> {
    let query = cluster.query(QueryPartitions::Range(PartitionRange::FULL));
    let mut page = PageRequest { size: Some(size), ..PageRequest::default() };
    let mut found = Vec::new();
    for _ in 0..200 {
        let read = cluster.page(node, &query, &page, level).await.expect("all live");
        assert!(read.rows <= size);
        found.extend(rows(&read));
        match read.next {
            Some(next) => page.state = Some(next),
            None => return found,
        }
    }
    panic!("the pages do not end");
}

/// Replicas each missed some changes. Together they return what a replica with all changes would:
/// each row exactly once, in order, whatever the page size. Afterwards they are equal.
#[test]
fn replicas_that_differ_are_read_as_one() {
    let mut runner =
        proptest::test_runner::TestRunner::new(ProptestConfig::with_cases(ProptestConfig::default().cases / 21));
    let strategy = (prop::collection::vec(any_event(), 1..40), 1..6u64);
    let cases: Vec<(Vec<Event>, u64)> =
        (0..12).map(|_| strategy.new_tree(&mut runner).expect("a case").current()).collect();
    for (n, (events, size)) in cases.into_iter().enumerate() {
        with_cluster(&format!("differ{n}"), Shape::DEFAULT, move |cluster| async move {
            // A value is its timestamp, so changes with equal timestamps are equal.
            for event in &events {
                for node in (0..3).filter(|node| event.4 & 1 << node != 0) {
                    cluster.put(node, change_of(&cluster, *event)).await;
                }
            }
            let expected = model(&events);
            let found = scan(&cluster, 0, size, All).await;
            let by_partition: Vec<_> = found.clone();
            let mut sorted = by_partition.clone();
            sorted.sort_by_key(|(k, c, _)| (key(*k), *c));
            assert_eq!(by_partition, sorted, "in order, and each once: {events:?}");
            let as_map: BTreeMap<_, _> = found.into_iter().map(|(k, c, v)| ((k, c), v)).collect();
            assert_eq!(as_map, expected, "pages of {size}: {events:?}");
            for k in 0..4 {
                let of_key: Vec<_> =
                    expected.iter().filter(|((other, _), _)| *other == k).map(|((_, c), v)| (*c, *v)).collect();
                for node in 0..3 {
                    assert_eq!(cluster.own(node, k).await, of_key, "node {node}, partition {k}: {events:?}");
                }
            }
            // A limit ends an unpaged read after as many rows.
            let mut query = cluster.query(QueryPartitions::Keys((0..4).map(key).collect()));
            query.limit = Some(2);
            let page = cluster.page(1, &query, &PageRequest::default(), Quorum).await.expect("all live");
            assert_eq!(page.rows as usize, expected.len().min(2));
        });
    }
}

/// Rows and their values after all changes.
fn model(events: &[Event]) -> BTreeMap<(i32, i32), i64> {
    let mut out = BTreeMap::new();
    for k in 0..4 {
        for c in 0..8 {
            let of = |event: &&Event| {
                event.0 == k
                    && match event.3 {
                        1 => (event.1..=event.1 + 2).contains(&c),
                        2 => true,
                        _ => event.1 == c,
                    }
            };
            let newest = |deletes: bool| {
                events.iter().filter(of).filter(|event| (event.3 < 3) == deletes).map(|event| event.2).max()
            };
            match (newest(false), newest(true)) {
                (Some(written), deleted) if deleted.is_none_or(|deleted| deleted < written) => {
                    out.insert((k, c), written);
                }
                _ => {}
            }
        }
    }
    out
}

/// A maintenance read does not use digests, which leave out deletions whose grace period is over.
/// After it, every replica has every deletion, including deletions of rows that no replica has.
#[test]
fn a_maintenance_read_gives_replicas_the_deletions_that_they_lack() {
    with_cluster("maintenance", Shape::DEFAULT, |cluster| async move {
        for node in [0, 1] {
            cluster.put(node, Change::of(&cluster, 1, 5).delete(1).delete_range(5, 6).row(2, 2).done()).await;
            cluster.put(node, Change::of(&cluster, 2, 5).delete_partition().done()).await;
        }
        cluster.put(2, Change::of(&cluster, 1, 5).row(2, 2).done()).await;
        let mut options = support::within(All);
        options.context.class = Class::Maintenance;
        let query = cluster.query(QueryPartitions::Range(PartitionRange::FULL));
        let read = cluster.nodes[0].coordinator.read(&query, &PageRequest::default(), &options).await;
        assert_eq!(read.map(|page| support::rows(&page)), Ok(vec![(1, 2, 2)]));
        assert_eq!(cluster.nodes[0].coordinator.metrics().digest_mismatches, 0, "no digests were compared");
        // The data that the deletions cover arrives late.
        for k in [1, 2] {
            cluster.put(2, Change::of(&cluster, k, 1).row(1, 1).row(5, 5).done()).await;
        }
        assert_eq!(cluster.own(2, 1).await, [(2, 2)]);
        assert!(cluster.own(2, 2).await.is_empty());
    });
}
