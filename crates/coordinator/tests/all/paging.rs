//! Pages of one query on changing coordinators: they are read by the replicas that keep its
//! readers, and are the same without those.

use crate::support::{Change, Cluster, Fault, Shape, key, rows, table_id, with_cluster};
use bytes::Bytes;
use cluster::metadata::{Op, PagingKey};
use coordinator::Consistency::{self, *};
use coordinator::{
    Binding, CoordinatorError, PageLimits, PageRequest, PagingState, Query, QueryPartitions, StatementHash,
};
use model::range::{PartitionRange, Slice};
use proptest::prelude::*;
use proptest::test_runner::{TestCaseError, TestRunner};
use replica::Output;
use rt::time::Duration;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Mutex;

type Row = (i32, i32, i64);

/// The counters of the nodes' querier caches: lookups, reused, drops.
fn queriers(cluster: &Cluster, nodes: &[usize]) -> (u64, u64, u64) {
    let of = |node: &usize| cluster.nodes[*node].replica.metrics().queriers;
    let sum = |a: (u64, u64, u64), b: (u64, u64, u64)| (a.0 + b.0, a.1 + b.1, a.2 + b.2);
    nodes.iter().map(of).map(|it| (it.lookups, it.reused(), it.drops)).fold((0, 0, 0), sum)
}

fn reads(cluster: &Cluster) -> Vec<u64> {
    cluster.nodes.iter().map(|node| node.replica.metrics().reads).collect()
}

fn kept(cluster: &Cluster) -> u64 {
    cluster.nodes.iter().map(|node| node.replica.metrics().queriers.population).sum()
}

/// All rows, page by page. `coordinator` returns the coordinator of the page of this number, and
/// may do other things.
async fn pages(
    cluster: &Cluster,
    query: &Query,
    size: u64,
    level: Consistency,
    mut coordinator: impl AsyncFnMut(usize) -> usize,
) -> Vec<Row> {
    let mut page = PageRequest { size: Some(size), ..PageRequest::default() };
    let mut found = Vec::new();
    for number in 0..1000 {
        let node = coordinator(number).await;
        let read = cluster.page(node, query, &page, level).await.expect("enough replicas answer");
        assert!(read.rows <= size);
        found.extend(rows(&read));
        match read.next {
            Some(next) => page.state = Some(next),
            None => return found,
        }
    }
    panic!("the pages do not end");
}

/// Writes the rows 0 to `count` of some partitions to all replicas.
async fn fill(cluster: &Cluster, partitions: i32, count: i32) {
    for k in 0..partitions {
        let all = (0..count).fold(Change::of(cluster, k, 5), |change, c| change.row(c, 100 * k + c)).done();
        for node in 0..3 {
            cluster.put(node, all.clone()).await;
        }
    }
}

fn queries(cluster: &Cluster) -> Vec<Query> {
    let one = cluster.query(QueryPartitions::Keys([key(1)].into_iter().collect()));
    let backwards = Rc::new(Slice { reversed: true, ..Slice::full() });
    vec![
        Query { slice: backwards, ..one.clone() },
        one,
        cluster.query(QueryPartitions::Keys([key(3), key(0), key(2)].into_iter().collect())),
        cluster.query(QueryPartitions::Range(PartitionRange::FULL)),
    ]
}

#[test]
fn pages_resume_the_kept_readers_on_any_coordinator() {
    with_cluster("sticky", Shape::DEFAULT, |cluster| async move {
        fill(&cluster, 6, 20).await;
        let mut one_set = 0;
        for query in queries(&cluster) {
            let whole = cluster.page(0, &query, &PageRequest::default(), One).await.expect("all live");
            for (level, asked) in [(One, 1), (LocalOne, 1), (Two, 2), (Quorum, 2), (LocalQuorum, 2), (All, 3)] {
                let (before, at_first) = (queriers(&cluster, &[0, 1, 2]), reads(&cluster));
                let found = pages(&cluster, &query, 7, level, async |number| number % 3).await;
                assert_eq!(found, rows(&whole), "{level:?}");
                let after = queriers(&cluster, &[0, 1, 2]);
                let lookups = after.0 - before.0;
                assert!(lookups >= 2 * asked, "{level:?}: {lookups}");
                if matches!(&query.partitions, QueryPartitions::Keys(keys) if keys.len() == 1) {
                    let done: Vec<u64> = reads(&cluster).iter().zip(at_first).map(|(now, then)| now - then).collect();
                    one_set += u64::from(done.iter().filter(|reads| **reads > 0).count() as u64 == asked);
                }
            }
        }
        // On a busy machine a node may seem slow once or twice. Then another one continues to read.
        let (lookups, reused, _) = queriers(&cluster, &[0, 1, 2]);
        assert!(reused * 10 >= lookups * 9, "each page finds the readers of the page before: {reused} of {lookups}");
        assert!(
            one_set >= 10,
            "of 12 queries of one partition {one_set} were read by as few replicas as the level asks for"
        );
        assert_eq!(kept(&cluster), 0, "a query that has ended leaves nothing");
        let metrics = cluster.nodes[0].coordinator.metrics();
        assert_eq!(metrics.digest_mismatches, 0);
    });
}

/// The nodes that a routing payload names, by their numbers.
fn named(cluster: &Cluster, hint: &Bytes) -> Vec<usize> {
    let is_named = |node: &usize| {
        let host = cluster.nodes[*node].host;
        hint.windows(16).any(|bytes| bytes == host.as_bytes())
    };
    (0..cluster.nodes.len()).filter(is_named).collect()
}

#[test]
fn clients_that_page_are_routed_to_the_kept_reader() {
    with_cluster("steered", Shape::DEFAULT, |cluster| async move {
        fill(&cluster, 2, 20).await;
        let query = cluster.query(QueryPartitions::Keys([key(1)].into_iter().collect()));
        for level in [One, Quorum] {
            let mut page = PageRequest { size: Some(7), ..PageRequest::default() };
            page.state = cluster.page(0, &query, &page, level).await.expect("all live").next;
            let hint = |node: usize, next: Option<&PagingState>| {
                cluster.nodes[node].coordinator.hint_of_page(&query.table, key(1).token, next)
            };
            for node in [1, 2] {
                let next = cluster.page(node, &query, &page, level).await.expect("all live").next.expect("20 rows");
                let hosts = &next.replicas.as_ref().expect("they keep readers").hosts;
                for node in 0..3 {
                    let told = hint(node, Some(&next)).map(|hint| named(&cluster, &hint));
                    let kept = (0..3).filter(|node| hosts.contains(&cluster.nodes[*node].host)).collect::<Vec<_>>();
                    assert_eq!(told, (!kept.contains(&node)).then_some(kept), "{level:?}");
                }
            }
            let told_at_the_end = |node| hint(node, None).map(|hint| named(&cluster, &hint));
            assert_eq!(told_at_the_end(0), None, "there are others, which would have to be steered again");
            cluster.nodes.iter().for_each(|node| node.replica.forget_queriers(None));
            assert_eq!(told_at_the_end(0), Some(vec![0, 1, 2]), "all is over");
        }
    });
}

#[test]
fn where_no_readers_are_kept_each_coordinator_asks_the_nearest() {
    let shape = Shape { keeps_readers: false, ..Shape::DEFAULT };
    with_cluster("stateless", shape, |cluster| async move {
        fill(&cluster, 2, 20).await;
        let query = cluster.query(QueryPartitions::Keys([key(1)].into_iter().collect()));
        let found = pages(&cluster, &query, 4, One, async |number| number % 3).await;
        assert_eq!(found.len(), 20);
        assert_eq!(reads(&cluster), [2, 2, 2], "each reads for itself");
        assert_eq!((queriers(&cluster, &[0, 1, 2]), kept(&cluster)), ((0, 0, 0), 0));
    });
}

#[test]
fn replicas_that_are_down_are_replaced() {
    let shape = Shape { speculative_retry: "5ms", ..Shape::DEFAULT };
    with_cluster("gone", shape, |cluster| async move {
        fill(&cluster, 3, 30).await;
        for query in queries(&cluster) {
            let whole = rows(&cluster.page(0, &query, &PageRequest::default(), One).await.expect("all live"));
            for level in [One, Quorum] {
                for (way, fault) in [None, Some(Fault::Refused), Some(Fault::LosesRequests)].into_iter().enumerate() {
                    let before = queriers(&cluster, &[1, 2]);
                    // Node 0 reads the first pages. Then it is down, and this is known or not.
                    let found = pages(&cluster, &query, 4, level, async |number| {
                        match (number, &fault) {
                            (0..2, _) => return 0,
                            (2, None) => cluster.set_alive(0, false),
                            (2, Some(fault)) => cluster.break_node(0, fault.clone()),
                            _ => {}
                        }
                        1 + number % 2
                    });
                    assert_eq!(found.await, whole, "{level:?}, way {way}");
                    cluster.set_alive(0, true);
                    let after = queriers(&cluster, &[1, 2]);
                    assert!(after.1 > before.1, "the nodes that are left keep their queriers: {level:?}, way {way}");
                }
            }
        }
    });
}

/// One replica has nothing of a partition: page for page, the others resume both readers.
#[test]
fn readers_for_reconciliation_are_resumed() {
    with_cluster("reconciled", Shape::DEFAULT, |cluster| async move {
        let all = (0..40).fold(Change::of(&cluster, 1, 5), |change, c| change.row(c, c)).done();
        cluster.put(0, all.clone()).await;
        cluster.put(1, all).await;
        let query = cluster.query(QueryPartitions::Keys([key(1)].into_iter().collect()));
        let found = pages(&cluster, &query, 5, All, async |number| number % 3).await;
        assert_eq!(found, (0..40).map(|c| (1, c, i64::from(c))).collect::<Vec<_>>());
        let mismatches: u64 = cluster.nodes.iter().map(|node| node.coordinator.metrics().digest_mismatches).sum();
        assert_eq!(mismatches, 8);
        // Seven more pages with rows, and an empty one on which all agree.
        let (lookups, reused, drops) = queriers(&cluster, &[0, 1]);
        assert_eq!((lookups, reused, drops), (2 * (7 * 2 + 1), 2 * (7 * 2 + 1), 0));
        for node in 0..3 {
            assert_eq!(cluster.own(node, 1).await.len(), 40, "node {node}");
        }
    });
}

/// A replica that lacks a row stops one row further on. Its reader does not fit and is counted as
/// dropped, and no row is lost.
#[test]
fn readers_at_other_positions_are_dropped() {
    with_cluster("dropped", Shape::DEFAULT, |cluster| async move {
        let rows_but = |missing: &[i32]| {
            let some = (0..30).filter(|c| !missing.contains(c));
            some.fold(Change::of(&cluster, 1, 5), |change, c| change.row(c, c)).done()
        };
        cluster.put(0, rows_but(&[])).await;
        cluster.put(1, rows_but(&[2])).await;
        cluster.put(2, rows_but(&[3, 17, 18])).await;
        let query = cluster.query(QueryPartitions::Keys([key(1)].into_iter().collect()));
        let found = pages(&cluster, &query, 5, All, async |number| number % 3).await;
        assert_eq!(found, (0..30).map(|c| (1, c, i64::from(c))).collect::<Vec<_>>());
        let (lookups, reused, drops) = queriers(&cluster, &[0]);
        assert!(drops == 0 && lookups - reused <= 1, "node 0 was always right: {lookups} {reused}");
        assert_eq!(queriers(&cluster, &[1]).2, 1);
        // After page 4 it looked for both of its readers, one of which has not been kept since page
        // 1.
        assert!(queriers(&cluster, &[2]).2 >= 2);
    });
}

/// A node that receives a new key a little later than others accepts states that these
/// authenticated with it.
#[test]
fn a_state_of_a_key_that_is_on_its_way_is_waited_for() {
    with_cluster("keys", Shape::DEFAULT, |cluster| async move {
        let put = |id| Op::PutPagingKey(PagingKey { id, secret: [7; 32], created: 1 });
        let binding = Binding { table: table_id(), role: None, statement: StatementHash([3; 32]) };
        let state = PagingState::of_processor(Bytes::from_static(b"more"));
        cluster.change(0, vec![put(9)]).await;
        let sealed = cluster.nodes[0].coordinator.seal_state(&state, &binding);
        let later = {
            let cluster = cluster.clone();
            rt::task::spawn(async move {
                rt::time::sleep(Duration::from_millis(20)).await;
                cluster.change(1, vec![put(8)]).await;
                rt::time::sleep(Duration::from_millis(20)).await;
                cluster.change(1, vec![put(9)]).await;
            })
        };
        let behind = &cluster.nodes[1].coordinator;
        assert_eq!(behind.open_state(&sealed, &binding, None).await, Ok(state.clone()));
        later.await.expect("the keys are changed");

        // A key that no node can have is not waited for. A key that does not arrive is waited for
        // only briefly.
        let with_key = |id: u32| Bytes::from([&sealed[..1], &id.to_le_bytes(), &sealed[5..]].concat());
        let began = rt::time::now();
        for id in [1, 7, 9 + 17, u32::MAX] {
            assert_eq!(behind.open_state(&with_key(id), &binding, None).await, Err(CoordinatorError::PagingState));
        }
        assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
        assert_eq!(behind.open_state(&with_key(10), &binding, None).await, Err(CoordinatorError::PagingState));
        assert_eq!(behind.metrics().refused_states, 5);
    });
}

/// An aggregate of all rows reads several tablets in parallel. Each one resumes its own reader on
/// each replica.
#[test]
fn pages_of_an_aggregate_resume_readers() {
    with_cluster("aggregate", Shape::DEFAULT, |cluster| async move {
        fill(&cluster, 8, 20).await;
        for k in 0..8 {
            let dead = (0..20).step_by(2).fold(Change::of(&cluster, k, 6), |change, c| change.delete(c)).done();
            for node in 0..3 {
                cluster.put(node, dead.clone()).await;
            }
        }
        let limits = PageLimits { tombstones: 3, tombstones_are_set: true, ..PageLimits::default() };
        cluster.nodes.iter().for_each(|node| node.coordinator.set_page_limits(limits));
        let mut query = cluster.query(QueryPartitions::Range(PartitionRange::FULL));
        query.output = Rc::new(Output::new(Vec::new(), false, false));
        for level in [One, Quorum, All] {
            let before = queriers(&cluster, &[0, 1, 2]);
            assert_eq!(cluster.reduce(1, &query, level).await.map(|page| page.rows), Ok(80), "{level:?}");
            let after = queriers(&cluster, &[0, 1, 2]);
            let (lookups, reused) = (after.0 - before.0, after.1 - before.1);
            assert!(lookups >= 20 && reused * 10 >= lookups * 9, "{level:?}: {reused} of {lookups}");
        }
        assert_eq!(kept(&cluster), 0);
    });
}

/// A change: partition, clustering key, timestamp, kind, and which of three replicas missed it, if
/// any.
type Event = (i32, i32, i64, u8, usize);

const KEYS: i32 = 4;
const SIDE: i32 = 12;

fn event() -> impl Strategy<Value = Event> {
    (0..KEYS, 0..SIDE, 1..40i64, 0..10u8, 0..4usize)
}

fn change_of(cluster: &Cluster, (k, c, timestamp, what, _): Event) -> model::mutation::Mutation {
    let change = Change::of(cluster, k, timestamp);
    match what {
        0 => change.delete(c),
        1 => change.delete_range(c, c + 3),
        2 => change.delete_partition(),
        _ => change.row(c, timestamp as i32),
    }
    .done()
}

/// Rows and their values after all changes, in the table's order of partitions.
fn model(events: &[Event]) -> BTreeMap<(model::key::DecoratedKey, i32), Row> {
    let mut out = BTreeMap::new();
    for (k, c) in (0..KEYS).flat_map(|k| (0..SIDE).map(move |c| (k, c))) {
        let touches = |event: &&Event| {
            event.0 == k
                && match event.3 {
                    1 => (event.1..=event.1 + 3).contains(&c),
                    2 => true,
                    _ => event.1 == c,
                }
        };
        let newest =
            |deletes| events.iter().filter(touches).filter(|event| (event.3 < 3) == deletes).map(|event| event.2).max();
        if let Some(written) = newest(false)
            && newest(true).is_none_or(|deleted| deleted < written)
        {
            out.insert((key(k), c), (k, c, written));
        }
    }
    out
}

#[derive(Clone, Debug)]
struct Asked {
    keys: Option<Vec<i32>>,
    reversed: bool,
    limit: Option<u64>,
    per_partition: Option<u64>,
    size: u64,
    /// Tombstones that end a page, and bytes.
    cuts: (u64, u64),
}

fn asked() -> impl Strategy<Value = Asked> {
    let keys = prop_oneof![
        2 => (0..KEYS).prop_map(|k| Some(vec![k])),
        1 => Just(Some(vec![2, 0, 3])),
        2 => Just(None),
    ];
    let limit = || prop_oneof![2 => Just(None), 1 => (1..20u64).prop_map(Some)];
    let cuts = prop_oneof![2 => Just((10_000, 1 << 20)), 2 => (1..6u64).prop_map(|n| (n, 1 << 20)), 1 => (1..90u64).prop_map(|n| (3, n))];
    (keys, any::<bool>(), limit(), limit(), 1..6u64, cuts).prop_map(
        |(keys, reversed, limit, per_partition, size, cuts)| Asked { keys, reversed, limit, per_partition, size, cuts },
    )
}

impl Asked {
    fn query(&self, cluster: &Cluster) -> Query {
        let partitions = match &self.keys {
            Some(keys) => QueryPartitions::Keys(keys.iter().map(|k| key(*k)).collect()),
            None => QueryPartitions::Range(PartitionRange::FULL),
        };
        Query {
            slice: Rc::new(Slice { reversed: self.reversed, ..Slice::full() }),
            limit: self.limit,
            per_partition_limit: self.per_partition,
            ..cluster.query(partitions)
        }
    }

    fn expected(&self, events: &[Event]) -> Vec<Row> {
        let all = model(events);
        let mut keys: Vec<i32> = self.keys.clone().unwrap_or_else(|| {
            let mut keys: Vec<i32> = (0..KEYS).collect();
            keys.sort_by_key(|k| key(*k));
            keys
        });
        let mut found = Vec::new();
        for k in keys.drain(..) {
            let mut own: Vec<Row> = all.values().filter(|row| row.0 == k).copied().collect();
            if self.reversed {
                own.reverse();
            }
            found.extend(own.into_iter().take(self.per_partition.unwrap_or(u64::MAX) as usize));
        }
        found.truncate(self.limit.unwrap_or(u64::MAX) as usize);
        found
    }
}

/// Each change is on at least two of three replicas. Pages are read at QUORUM by any node that is
/// up, and one node at a time is down. Whatever the query and the page sizes, each row is returned
/// exactly once, in order, as in the merge of all replicas.
#[test]
fn pages_are_exact_while_replicas_differ_and_die() {
    let reused = RefCell::new((0, 0, 0));
    let config = ProptestConfig {
        cases: ProptestConfig::default().cases / 16,
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    let story = (
        prop::collection::vec(event(), 1..80),
        prop::collection::vec(asked(), 3..8),
        prop::collection::vec((0..4usize, 0..3usize), 30),
    );
    let result = TestRunner::new(config).run(&story, |(events, all, fates)| {
        let (sum, failure) = (Mutex::new((0, 0, 0)), Mutex::new(None));
        with_cluster("exact", Shape::DEFAULT, |cluster| {
            let (failure, sum) = (&failure, &sum);
            async move {
                for event in &events {
                    for node in (0..3).filter(|node| *node != event.4) {
                        cluster.put(node, change_of(&cluster, *event)).await;
                    }
                }
                for asked in &all {
                    let query = asked.query(&cluster);
                    let (tombstones, bytes) = asked.cuts;
                    let limits = PageLimits { tombstones, tombstones_are_set: true, bytes, ..PageLimits::default() };
                    cluster.nodes.iter().for_each(|node| node.coordinator.set_page_limits(limits));
                    let found = pages(&cluster, &query, asked.size, Quorum, async |number| {
                        let (dead, coordinator) = fates[number % fates.len()];
                        for node in 0..3 {
                            cluster.set_alive(node, node != dead);
                        }
                        if coordinator == dead { (coordinator + 1) % 3 } else { coordinator }
                    });
                    let (found, expected) = (found.await, asked.expected(&events));
                    if found != expected {
                        *failure.lock().expect("whole") = Some(format!("{asked:?}: {found:?} instead of {expected:?}"));
                    }
                }
                *sum.lock().expect("whole") = queriers(&cluster, &[0, 1, 2]);
            }
        });
        let (lookups, reused_now, drops) = *sum.lock().expect("whole");
        let mut so_far = reused.borrow_mut();
        *so_far = (so_far.0 + lookups, so_far.1 + reused_now, so_far.2 + drops);
        let why = failure.lock().expect("whole").take();
        why.map_or(Ok(()), |why| Err(TestCaseError::fail(why)))
    });
    if let Err(error) = result {
        panic!("{error}");
    }
    let (lookups, found, drops) = *reused.borrow();
    assert!(found > 100 && drops > 10, "the readers were of use, and not always: {lookups} {found} {drops}");
}
