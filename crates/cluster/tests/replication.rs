//! Reads and writes at every level against replicas that are down, lose messages, refuse, or have not what others have.

mod support;

use cluster::coordinator::Consistency::{self, *};
use cluster::coordinator::{Partitions, WriteKind};
use cluster::hints::{HintsSettings, KeptFor};
use cluster::{CoordinatorError, PageRequest, Query};
use model::CqlType;
use model::aggregate::{Accumulator, AggregateKind};
use model::range::PartitionRange;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use replica::{Output, OutputColumn, Reduction, ReplicaError};
use smallvec::smallvec;
use std::collections::BTreeMap;
use std::rc::Rc;
use support::{Change, Cluster, Fault, IMPATIENCE, PATIENCE, Shape, key, rows, with_cluster};

#[test]
fn writes_reach_all_replicas_and_reads_find_them_from_everywhere() {
    with_cluster("everywhere", Shape::default(), |cluster| async move {
        for (n, level) in [One, Two, Three, Quorum, All, LocalQuorum, EachQuorum, LocalOne, Any].into_iter().enumerate()
        {
            let (k, v) = (n as i32, 10 * n as i32);
            cluster.write(n % 3, Change::of(&cluster, k, 5).row(1, v).done(), level).await.expect("all live");
            cluster.settle().await;
            for node in 0..3 {
                assert_eq!(cluster.own(node, k).await, [(1, i64::from(v))], "{level:?} on node {node}");
                let read = if level == Any { One } else { level };
                assert_eq!(cluster.read(node, k, read).await, Ok(vec![(1, i64::from(v))]), "{level:?}");
            }
        }
        let metrics = cluster.nodes[0].coordinator.metrics();
        assert_eq!((metrics.digest_mismatches, metrics.read_repairs), (0, 0));
        assert!(metrics.remote_requests > 0);
    });
}

#[test]
fn levels_hold_while_nodes_are_down() {
    with_cluster("down", Shape::default(), |cluster| async move {
        cluster.set_alive(2, false);
        let unavailable =
            |consistency, required, alive| Err(CoordinatorError::Unavailable { consistency, required, alive });
        let change = |c: &Cluster| Change::of(c, 1, 5).row(1, 10).done();
        assert_eq!(cluster.write(0, change(&cluster), All).await, unavailable(All, 3, 2));
        assert_eq!(cluster.read(0, 1, All).await.map(|_| ()), unavailable(All, 3, 2));
        assert_eq!(cluster.read(0, 1, Quorum).await, Ok(vec![]), "what is refused is not written");
        cluster.write(0, change(&cluster), Quorum).await.expect("two live");
        assert_eq!(cluster.read(1, 1, Quorum).await, Ok(vec![(1, 10)]));
        cluster.set_alive(1, false);
        for level in [Quorum, Two, LocalQuorum, EachQuorum] {
            assert_eq!(cluster.write(0, change(&cluster), level).await, unavailable(level, 2, 1));
            assert_eq!(cluster.read(0, 1, level).await.map(|_| ()), unavailable(level, 2, 1));
        }
        assert_eq!(cluster.write(0, change(&cluster), Three).await, unavailable(Three, 3, 1));
        assert_eq!(cluster.read(0, 1, One).await, Ok(vec![(1, 10)]));
        assert!(cluster.nodes[0].coordinator.metrics().unavailable > 5);
    });
}

#[test]
fn who_was_down_gets_what_it_missed_from_the_first_read() {
    with_cluster("repair", Shape::default(), |cluster| async move {
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

#[test]
fn what_was_deleted_stays_so() {
    with_cluster("deleted", Shape::default(), |cluster| async move {
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

#[test]
fn errors_say_what_came() {
    with_cluster("errors", Shape::default(), |cluster| async move {
        let change = |timestamp| Change::of(&cluster, 1, timestamp).row(1, 1).done();
        cluster.write(0, change(1), All).await.expect("all live");
        cluster.set_patience(IMPATIENCE);
        cluster.break_node(2, Fault::LosesRequests);
        let timeout = |received, data_present| {
            Err(CoordinatorError::Timeout { consistency: All, required: 3, received, data_present })
        };
        assert_eq!(cluster.write(0, change(2), All).await, timeout(2, false));
        assert_eq!(cluster.read(0, 1, All).await.map(|_| ()), timeout(2, true));
        cluster.write(0, change(3), Quorum).await.expect("two answer");
        cluster.break_node(2, Fault::LosesAnswers);
        assert_eq!(cluster.write(0, change(4), All).await, timeout(2, false));
        cluster.set_patience(PATIENCE);
        assert_eq!(cluster.own(2, 1).await, [(1, 1)], "it is written all the same");
        let broken = ReplicaError::Storage("the disk is gone".into());
        cluster.break_node(2, Fault::Fails(broken.clone()));
        let failed = |received, data_present, nodes: &[u8]| {
            Err(CoordinatorError::Failed {
                consistency: All,
                required: 3,
                received,
                failures: nodes.len() as u32,
                nodes: nodes.iter().map(|n| [127, 0, 0, *n].into()).collect(),
                data_present,
                why: "the disk is gone".into(),
            })
        };
        assert_eq!(cluster.write(0, change(5), All).await.map_err(whole), failed(2, false, &[3]));
        assert!(matches!(
            cluster.read(0, 1, All).await,
            Err(CoordinatorError::Failed { failures: 1, required: 3, .. })
        ));
        cluster.write(0, change(6), Quorum).await.expect("two work");
        assert_eq!(cluster.read(0, 1, Quorum).await, Ok(vec![(1, 1)]));
        let metrics = cluster.nodes[0].coordinator.metrics();
        assert_eq!((metrics.write_timeouts, metrics.read_timeouts), (2, 1));
    });
}

/// A failure is told as soon as the level is out of reach: how many had answered by then does not matter here.
fn whole(error: CoordinatorError) -> CoordinatorError {
    match error {
        CoordinatorError::Failed { consistency, required, failures, nodes, data_present, why, .. } => {
            CoordinatorError::Failed { consistency, required, received: 2, failures, nodes, data_present, why }
        }
        other => other,
    }
}

#[test]
fn an_unreachable_replica_is_no_failure() {
    with_cluster("unreachable", Shape::default(), |cluster| async move {
        let change = |timestamp| Change::of(&cluster, 1, timestamp).row(1, 1).done();
        cluster.write(0, change(1), All).await.expect("all live");
        let unavailable = Err(CoordinatorError::Unavailable { consistency: All, required: 3, alive: 2 });
        let timeout = |received| {
            let data_present = false;
            Err(CoordinatorError::Timeout { consistency: All, required: 3, received, data_present })
        };
        // Its connection is refused before it is known to be down: a read has no effect, a write
        // reached the others.
        cluster.break_node(2, Fault::Refused);
        assert_eq!(cluster.read(0, 1, All).await.map(|_| ()), unavailable);
        assert_eq!(cluster.write(0, change(2), All).await, timeout(2));
        cluster.write(0, change(3), Quorum).await.expect("two answer");
        // The connection is lost midway: nobody knows what the replica did.
        cluster.break_node(2, Fault::LosesConnection);
        assert_eq!(cluster.write(0, change(4), All).await, timeout(2));
        assert!(matches!(
            cluster.read(0, 1, All).await,
            Err(CoordinatorError::Timeout { consistency: All, required: 3, .. })
        ));
        assert_eq!(cluster.read(0, 1, Quorum).await, Ok(vec![(1, 1)]));
        // One says that it failed, another one is unreachable: that is a failure, of one replica.
        cluster.break_node(1, Fault::Fails(ReplicaError::Storage("the disk is gone".into())));
        for level in [All, Quorum] {
            assert!(matches!(
                cluster.write(0, change(5), level).await,
                Err(CoordinatorError::Failed { failures: 1, .. })
            ));
        }
        let metrics = cluster.nodes[0].coordinator.metrics();
        assert_eq!((metrics.write_timeouts, metrics.read_timeouts, metrics.unavailable), (2, 1, 1));
    });
}

#[test]
fn a_write_that_no_replica_got_is_unavailable() {
    let shape =
        Shape { copies: &[1], replication: &[("class", "NetworkTopologyStrategy"), ("dc1", "1")], ..Shape::default() };
    with_cluster("nobody", shape, |cluster| async move {
        cluster.break_node(1, Fault::Refused);
        let change = Change::of(&cluster, 1, 1).row(1, 1).done();
        let error = Err(CoordinatorError::Unavailable { consistency: One, required: 1, alive: 0 });
        assert_eq!(cluster.write(0, change, One).await, error);
    });
}

#[test]
fn a_replica_that_fails_is_replaced() {
    with_cluster("replaced", Shape::default(), |cluster| async move {
        cluster.write(0, Change::of(&cluster, 1, 1).row(1, 1).done(), All).await.expect("all live");
        for broken in [1, 2] {
            cluster.break_node(broken, Fault::Refused);
            for level in [Quorum, Two, One] {
                assert_eq!(cluster.read(0, 1, level).await, Ok(vec![(1, 1)]), "{broken} is broken");
            }
            cluster.heal(broken);
        }
    });
}

#[test]
fn a_slow_replica_gets_company() {
    let shape = Shape {
        copies: &[1, 2],
        replication: &[("class", "NetworkTopologyStrategy"), ("dc1", "2")],
        speculative_retry: "5ms",
        ..Shape::default()
    };
    with_cluster("slow", shape, |cluster| async move {
        cluster.write(0, Change::of(&cluster, 1, 1).row(1, 1).done(), All).await.expect("all live");
        cluster.break_node(1, Fault::LosesRequests);
        cluster.break_node(2, Fault::LosesRequests);
        cluster.heal(2);
        assert_eq!(cluster.read(0, 1, One).await, Ok(vec![(1, 1)]));
        assert_eq!(cluster.nodes[0].coordinator.metrics().speculative_reads, 1);
    });
}

#[test]
fn hints_bring_what_was_missed() {
    with_cluster("hints", Shape::default(), |cluster| async move {
        let hints = cluster.keep_hints(0).await;
        cluster.set_alive(2, false);
        for k in 0..20 {
            cluster.write(0, Change::of(&cluster, k, 5).row(1, k).done(), Quorum).await.expect("two live");
        }
        cluster.settle().await;
        while hints.metrics().written < 20 {
            rt::task::yield_now().await;
        }
        cluster.nodes[0].coordinator.replay_hints().await;
        assert_eq!(hints.metrics().sent, 0, "it is still down");
        cluster.set_alive(2, true);
        cluster.break_node(2, Fault::LosesRequests);
        cluster.break_node(2, Fault::Refused);
        cluster.nodes[0].coordinator.replay_hints().await;
        assert_eq!((hints.metrics().sent, hints.targets().len()), (0, 1), "it is up and does not answer");
        cluster.heal(2);
        cluster.nodes[0].coordinator.replay_hints().await;
        assert_eq!((hints.metrics().sent, hints.metrics().bytes, hints.targets().len()), (20, 0, 0));
        for k in 0..20 {
            assert_eq!(cluster.own(2, k).await, [(1, i64::from(k))]);
        }
    });
}

#[test]
fn hints_are_kept_for_whom_the_operator_says() {
    let shape = Shape {
        datacenters: &["dc1", "dc2", "dc3"],
        replication: &[("class", "NetworkTopologyStrategy"), ("dc1", "1"), ("dc2", "1"), ("dc3", "1")],
        ..Shape::default()
    };
    with_cluster("kept_for", shape, |cluster| async move {
        let hints = cluster.keep_hints(0).await;
        cluster.set_alive(1, false);
        cluster.set_alive(2, false);
        let names = |names: &[&str]| KeptFor::Datacenters(names.iter().map(|name| (*name).to_owned()).collect());
        let cases = [
            (KeptFor::Nobody, vec![]),
            (names(&["dc3"]), vec![2]),
            (names(&["dc9"]), vec![2]),
            (KeptFor::All, vec![1, 2]),
        ];
        for (n, (kept_for, nodes)) in cases.into_iter().enumerate() {
            hints.set(HintsSettings { kept_for, ..HintsSettings::default() });
            cluster.write(0, Change::of(&cluster, n as i32, 5).row(1, 1).done(), One).await.expect("one lives");
            cluster.settle().await;
            let expected: Vec<_> = nodes.into_iter().map(|node: usize| cluster.nodes[node].host).collect();
            while hints.targets().len() < expected.len() {
                rt::task::yield_now().await;
            }
            assert_eq!(hints.targets(), expected);
        }
        // What was kept last may still be on its way to the disk.
        while hints.metrics().written < 3 {
            rt::task::yield_now().await;
        }
        // A window that is over: nothing more is kept.
        let written = hints.metrics().written;
        hints.set(HintsSettings { window: rt::time::Duration::ZERO, ..HintsSettings::default() });
        cluster.write(0, Change::of(&cluster, 9, 5).row(1, 1).done(), One).await.expect("one lives");
        while hints.metrics().refused < 2 {
            rt::task::yield_now().await;
        }
        assert_eq!(hints.metrics().written, written);
    });
}

#[test]
fn any_is_content_with_a_hint() {
    let shape =
        Shape { copies: &[2], replication: &[("class", "NetworkTopologyStrategy"), ("dc1", "1")], ..Shape::default() };
    with_cluster("any", shape, |cluster| async move {
        let change = || Change::of(&cluster, 1, 5).row(1, 1).done();
        cluster.set_alive(2, false);
        let unavailable = |consistency| Err(CoordinatorError::Unavailable { consistency, required: 1, alive: 0 });
        assert_eq!(cluster.write(0, change(), Any).await, unavailable(Any), "it keeps no hints");
        let hints = cluster.keep_hints(0).await;
        assert_eq!(cluster.write(0, change(), One).await, unavailable(One));
        cluster.write(0, change(), Any).await.expect("a hint is enough");
        assert_eq!(hints.metrics().written, 1);
        cluster.set_alive(2, true);
        cluster.nodes[0].coordinator.replay_hints().await;
        assert_eq!(cluster.own(2, 1).await, [(1, 1)]);
    });
}

#[test]
fn levels_of_datacenters() {
    let shape = Shape {
        datacenters: &["dc1", "dc1", "dc2", "dc2"],
        copies: &[0, 1, 2, 3],
        replication: &[("class", "NetworkTopologyStrategy"), ("dc1", "2"), ("dc2", "2")],
        ..Shape::default()
    };
    with_cluster("datacenters", shape, |cluster| async move {
        let change = || Change::of(&cluster, 1, 5).row(1, 1).done();
        let unavailable =
            |consistency, required, alive| Err(CoordinatorError::Unavailable { consistency, required, alive });
        cluster.set_alive(3, false);
        cluster.write(0, change(), LocalQuorum).await.expect("this datacenter is whole");
        assert_eq!(cluster.read(0, 1, LocalQuorum).await, Ok(vec![(1, 1)]));
        assert_eq!(cluster.write(2, change(), LocalQuorum).await, unavailable(LocalQuorum, 2, 1));
        assert_eq!(cluster.write(0, change(), EachQuorum).await, unavailable(EachQuorum, 2, 1));
        assert_eq!(cluster.read(0, 1, EachQuorum).await.map(|_| ()), unavailable(EachQuorum, 2, 1));
        cluster.write(2, change(), Quorum).await.expect("three of four");
        cluster.set_alive(2, false);
        assert_eq!(cluster.read(2, 1, LocalOne).await, Ok(vec![(1, 1)]), "to itself it lives");
        let before = cluster.wire.sent.borrow().clone();
        assert_eq!(cluster.read(0, 1, LocalQuorum).await, Ok(vec![(1, 1)]));
        let far = cluster.nodes[3].host;
        assert_eq!(cluster.wire.sent.borrow().get(&far), before.get(&far), "nothing is asked of the other datacenter");
    });
}

#[test]
fn counters_count_once_wherever() {
    let shape = Shape { counter: true, ..Shape::default() };
    with_cluster("counters", shape, |cluster| async move {
        let add = |node: usize, delta: i64, level: Consistency| {
            let change = Change::of(&cluster, 1, 5).add(1, delta).done();
            cluster.write_as(node, change, WriteKind::Counter, level)
        };
        for node in 0..3 {
            add(node, 10, Quorum).await.expect("all live");
        }
        cluster.settle().await;
        assert_eq!(cluster.read(0, 1, All).await, Ok(vec![(1, 30)]));
        cluster.set_alive(2, false);
        add(0, 5, Quorum).await.expect("two live");
        cluster.set_alive(2, true);
        add(2, 7, One).await.expect("it lives again");
        cluster.settle().await;
        for node in 0..3 {
            assert_eq!(cluster.read(node, 1, All).await, Ok(vec![(1, 42)]), "from node {node}");
        }
    });
}

#[test]
fn batches_go_to_each_replica_in_one_request() {
    with_cluster("batches", Shape::default(), |cluster| async move {
        let mutations = (0..8)
            .map(|k| {
                let mutation = Change::of(&cluster, k, 5).row(1, k).done();
                let key = mutation.decorated_key();
                (mutation, key)
            })
            .collect();
        let options = support::within(All);
        let coordinator = &cluster.nodes[0].coordinator;
        coordinator.write(mutations, WriteKind::LoggedBatch, &options).await.expect("all live");
        assert_eq!(cluster.wire.sent.borrow().values().copied().collect::<Vec<_>>(), [1, 1]);
        for k in 0..8 {
            assert_eq!(cluster.own(2, k).await, [(1, i64::from(k))]);
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
    let query = cluster.query(Partitions::Range(PartitionRange::FULL));
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

/// What replicas of which each has missed some changes tell together is what one that missed none would tell: whatever the size of the
/// pages, each row exactly once, in order; and they have the same afterwards.
#[test]
fn replicas_that_differ_are_read_as_one() {
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig { cases: 12, ..ProptestConfig::default() });
    let strategy = (prop::collection::vec(any_event(), 1..40), 1..6u64);
    let cases: Vec<(Vec<Event>, u64)> =
        (0..12).map(|_| strategy.new_tree(&mut runner).expect("a case").current()).collect();
    for (n, (events, size)) in cases.into_iter().enumerate() {
        with_cluster(&format!("differ{n}"), Shape::default(), move |cluster| async move {
            // A value is its timestamp, so that equal timestamps do not tell replicas apart.
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
            let mut query = cluster.query(Partitions::Keys((0..4).map(key).collect()));
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

#[test]
fn rows_are_counted_by_their_owners_in_one_request_for_each_tablet() {
    with_cluster("counted", Shape::default(), |cluster| async move {
        for k in 0..200 {
            cluster.put(k as usize % 3, Change::of(&cluster, k, 5).row(1, k).row(2, k).done()).await;
            cluster.put((k as usize + 1) % 3, Change::of(&cluster, k, 5).row(1, k).row(2, k).done()).await;
        }
        let mut query = cluster.query(Partitions::Range(PartitionRange::FULL));
        query.output = Rc::new(Output::new(Vec::new(), false, false));
        // What differs is brought together first.
        assert_eq!(cluster.reduce(0, &query, All).await.map(|read| (read.rows, read.next)), Ok((400, None)));
        let before: u64 = cluster.wire.sent.borrow().values().sum();
        let read = cluster.reduce(0, &query, Quorum).await.expect("all live");
        assert_eq!((read.rows, read.body.len(), read.next), (400, 0, None));
        let sent = cluster.wire.sent.borrow().values().sum::<u64>() - before;
        assert_eq!(sent, 4, "one other replica for each of four tablets");
    });
}

/// What a query's aggregates of `v` come to: count, min, max, sum.
async fn aggregates(cluster: &Cluster, query: &Query, level: Consistency) -> Result<Vec<i64>, CoordinatorError> {
    let reduced = cluster.reduce(0, query, level).await?;
    let mut parts = replica::reduce::values(&reduced.body).peekable();
    let mut whole = AGGREGATES.map(|kind| Accumulator::new(kind, &CqlType::Int));
    while parts.peek().is_some() {
        for aggregate in &mut whole {
            aggregate.add_part(parts.next().expect("rows of parts are whole")).expect("a part");
        }
    }
    let number = |bytes: Vec<u8>| match &bytes[..] {
        [_, _, _, _] => i64::from(i32::from_be_bytes(bytes.try_into().expect("four bytes"))),
        _ => i64::from_be_bytes(bytes.try_into().expect("eight bytes")),
    };
    let finished = whole.map(|aggregate| aggregate.finish().expect("it fits").map_or(0, number));
    Ok(finished.to_vec())
}

const AGGREGATES: [AggregateKind; 4] =
    [AggregateKind::Count, AggregateKind::Min, AggregateKind::Max, AggregateKind::Sum];

/// Owners send what their rows come to, and not the rows; where they differ it is that of the rows brought together.
#[test]
fn owners_compute_aggregates_of_their_rows() {
    with_cluster("reduced", Shape::default(), |cluster| async move {
        for k in 0..200 {
            cluster.put(k as usize % 3, Change::of(&cluster, k, 5).row(1, k).row(2, -k).done()).await;
            cluster.put((k as usize + 1) % 3, Change::of(&cluster, k, 5).row(1, k).row(2, -k).done()).await;
        }
        // One replica alone knows of these.
        cluster.put(0, Change::of(&cluster, 7, 6).row(1, 5000).done()).await;
        cluster.put(1, Change::of(&cluster, 199, 6).delete(2).done()).await;
        cluster.put(2, Change::of(&cluster, 8, 6).delete_partition().done()).await;
        let mut query = cluster.query(Partitions::Range(PartitionRange::FULL));
        let column = cluster.schema().regulars[0].id;
        let reductions = AGGREGATES.map(|kind| Reduction { kind, column: Some(0) }).to_vec();
        query.output = Rc::new(Output::new(vec![OutputColumn::Value(column)], false, false).reduced(reductions));
        let expected = Ok(vec![397, -198, 5000, 5000 - 7 + 199]);
        assert_eq!(aggregates(&cluster, &query, All).await, expected);
        for level in [One, Two, Quorum, All, EachQuorum, LocalOne] {
            let before: u64 = cluster.wire.sent.borrow().values().sum();
            assert_eq!(aggregates(&cluster, &query, level).await, expected, "{level:?}");
            let sent = cluster.wire.sent.borrow().values().sum::<u64>() - before;
            assert_eq!(
                sent,
                4 * (match level {
                    One | LocalOne => 0,
                    All => 2,
                    _ => 1,
                }),
                "{level:?}: none for its rows"
            );
        }
        let bytes = cluster.reduce(0, &query, Quorum).await.expect("all live").body.len();
        assert!(bytes < 4 * 64, "{bytes} bytes of four tablets");
        query.partitions = Partitions::Keys(smallvec![key(7), key(3)]);
        assert_eq!(aggregates(&cluster, &query, Quorum).await, Ok(vec![4, -7, 5000, 5000 - 7]));
        query.partitions = Partitions::Keys(smallvec![key(8)]);
        assert_eq!(aggregates(&cluster, &query, Quorum).await, Ok(vec![0; 4]));
        cluster.set_alive(1, false);
        cluster.set_alive(2, false);
        let unavailable = CoordinatorError::Unavailable { consistency: Quorum, required: 2, alive: 1 };
        assert_eq!(aggregates(&cluster, &query, Quorum).await, Err(unavailable));
    });
}

#[test]
fn pages_of_single_partitions_and_limits_per_partition() {
    with_cluster("limits", Shape::default(), |cluster| async move {
        for c in 0..10 {
            cluster.put(c as usize % 3, Change::of(&cluster, 1, 5).row(c, c).done()).await;
            cluster.put((c as usize + 1) % 3, Change::of(&cluster, 2, 5).row(c, c).done()).await;
        }
        cluster.put(0, Change::of(&cluster, 1, 6).delete_range(0, 2).done()).await;
        let mut query = cluster.query(Partitions::Keys(smallvec![key(1), key(2)]));
        query.per_partition_limit = Some(3);
        let mut page = PageRequest { size: Some(2), ..PageRequest::default() };
        let mut found = Vec::new();
        loop {
            let read = cluster.page(1, &query, &page, All).await.expect("all live");
            found.extend(rows(&read).into_iter().map(|(k, c, _)| (k, c)));
            let Some(next) = read.next else { break };
            page.state = Some(next);
        }
        assert_eq!(found, [(1, 3), (1, 4), (1, 5), (2, 0), (2, 1), (2, 2)]);
    });
}
