//! Rate limits in bytes, and the mode `observe`. No test depends on time: an operation costs the
//! budget of at least ten seconds.

use crate::limits::Counts;
use crate::support::requests::without_excess;
use crate::support::{Change, Cluster, Shape, key, query_on, table_id, with_cluster, with_cluster_of, within};
use coordinator::Consistency::*;
use coordinator::{CoordinatorError, Counting, PageRequest, QueryPartitions, WriteKind};
use engine::EngineConfig;
use engine::commitlog::SyncMode;
use futures_util::FutureExt;
use model::mutation::Mutation;
use replica::{Context, Excess, LimitKind, LimitedBy, RateLimitMode, RateLimited, ReplicaError, ReplicaRequest};
use smallvec::smallvec;

const FEW_KIB: &[(&str, &str)] = &[("max_read_kb_per_second", "1"), ("max_write_kb_per_second", "1")];
const OBSERVED: &[(&str, &str)] = &[
    ("max_read_kb_per_second", "0"),
    ("max_reads_per_second", "0"),
    ("max_writes_per_second", "0"),
    ("mode", "observe"),
];
const MANY_KIB: &[(&str, &str)] =
    &[("max_read_kb_per_second", "4294967295"), ("max_write_kb_per_second", "4294967295")];

/// Node 0 has no replica.
const OUTSIDE: Shape = Shape { datacenters: &["dc1", "dc1", "dc1", "dc1"], copies: &[1, 2, 3], ..Shape::DEFAULT };

fn refused<T>(kind: LimitKind, by_coordinator: bool) -> Result<T, CoordinatorError> {
    let refused =
        RateLimited { kind, table: table_id(), by: LimitedBy::Table, partition: 0, excess: Excess::default() };
    Err(CoordinatorError::RateLimited { refused, by_coordinator })
}

/// A mutation of many KiB.
fn large(cluster: &Cluster, k: i32) -> Mutation {
    (0..1_000).fold(Change::of(cluster, k, 5), |change, c| change.row(c, c)).done()
}

fn small(cluster: &Cluster, k: i32) -> Mutation {
    Change::of(cluster, k, 6).row(1, 1).done()
}

/// Stores a large partition on all replicas, which is not charged.
async fn store(cluster: &Cluster, nodes: std::ops::Range<usize>, k: i32) {
    for node in nodes {
        cluster.put(node, large(cluster, k)).await;
    }
}

#[test]
fn bytes_are_charged_where_they_were_read() {
    with_cluster("limit_read_kib", Shape { rate_limits: FEW_KIB, ..Shape::DEFAULT }, |cluster| async move {
        store(&cluster, 0..3, 1).await;
        store(&cluster, 0..3, 2).await;
        assert_eq!(cluster.read(0, 1, One).await.expect("nothing was read yet").len(), 1_000);
        assert_eq!(cluster.read(0, 1, One).await, refused(LimitKind::ReadBytes, true));
        cluster.write(0, small(&cluster, 1), One).await.expect("writes have a budget of their own");
        assert_eq!(cluster.read(0, 2, Quorum).await.expect("another partition").len(), 1_000);
        cluster.read(2, 1, One).await.expect("node 2 got no report yet");
        let metrics = cluster.nodes[0].coordinator.metrics();
        assert_eq!((metrics.limited_reads, metrics.limited_writes), ([1, 0], [0, 0]));
    });
    with_cluster("limit_read_kib_away", Shape { rate_limits: FEW_KIB, ..OUTSIDE }, |cluster| async move {
        store(&cluster, 1..4, 1).await;
        cluster.read(0, 1, All).await.expect("nothing was read yet");
        assert_eq!(cluster.read(0, 1, All).await, refused(LimitKind::ReadBytes, false));
    });
}

/// Otherwise many reads would be refused after the replica that reads the rows has paid for them.
#[test]
fn replicas_that_read_digests_do_not_decide_by_bytes() {
    with_cluster("limit_kib_digests", Shape { rate_limits: FEW_KIB, ..OUTSIDE }, |cluster| async move {
        store(&cluster, 1..4, 1).await;
        for digests in [2, 3] {
            cluster.read(digests, 1, One).await.expect("nothing was read there yet");
            assert_eq!(cluster.read(digests, 1, One).await, refused(LimitKind::ReadBytes, true));
        }
        cluster.read(0, 1, All).await.expect("nothing was read yet where the rows are read");
        assert_eq!(cluster.read(0, 1, All).await, refused(LimitKind::ReadBytes, false));
    });
}

#[test]
fn a_write_that_is_exempt_is_not_charged() {
    with_cluster("limit_write_exempt", Shape { rate_limits: FEW_KIB, ..Shape::DEFAULT }, |cluster| async move {
        // As by read repair.
        let mut options = within(All);
        options.context.rate_limit = RateLimitMode::Exempt;
        let mutations = smallvec![(large(&cluster, 1), key(1))];
        cluster.nodes[0].coordinator.write(mutations, WriteKind::Simple, &options).await.expect("written");
        for node in 0..3 {
            cluster.write(node, small(&cluster, 1), One).await.expect("nothing was charged");
        }
    });
}

#[test]
fn bytes_are_charged_on_each_replica_of_a_write() {
    with_cluster("limit_write_kib", Shape { rate_limits: FEW_KIB, ..Shape::DEFAULT }, |cluster| async move {
        cluster.write(0, large(&cluster, 1), Quorum).await.expect("nothing was written yet");
        cluster.settle().await;
        for node in 0..3 {
            assert_eq!(cluster.write(node, small(&cluster, 1), One).await, refused(LimitKind::WriteBytes, true));
            assert_eq!(cluster.own(node, 1).await.len(), 1_000);
        }
        cluster.read(0, 1, One).await.expect("reads have a budget of their own");
        cluster.write(0, small(&cluster, 2), One).await.expect("another partition");
    });
    with_cluster("limit_write_kib_away", Shape { rate_limits: FEW_KIB, ..OUTSIDE }, |cluster| async move {
        cluster.write(0, large(&cluster, 1), All).await.expect("nothing was written yet");
        assert_eq!(cluster.write(0, small(&cluster, 1), One).await, refused(LimitKind::WriteBytes, false));
        cluster.settle().await;
        assert_eq!(cluster.nodes[1].replica.metrics().rate_limits.refused_writes, 1);
    });
}

/// Otherwise replicas whose debts differ would take turns to accept writes.
#[test]
fn a_replica_that_refused_an_accepted_write_is_charged_for_it() {
    with_cluster("limit_write_kib_again", Shape { rate_limits: FEW_KIB, ..OUTSIDE }, |cluster| async move {
        let context = within(One).context;
        let context = Context { metadata_number: u64::MAX, rate_limit: RateLimitMode::ChargeOnly, ..context };
        let in_debt = ReplicaRequest::write(large(&cluster, 1));
        cluster.nodes[3].replica.perform(&in_debt, &context).await.expect("it is not refused");
        let mut charges = Counts::new(&cluster);
        cluster.write(0, large(&cluster, 1), One).await.expect("two replicas accept it");
        cluster.settle().await;
        assert_eq!(cluster.nodes[3].replica.metrics().rate_limits.refused_writes, 1);
        assert_eq!(cluster.own(3, 1).await.len(), 1_000, "the accepted write is on all replicas");
        assert_eq!(charges.more(&cluster), [0, 1, 1, 1]);
    });
}

#[test]
fn bytes_are_charged_on_each_replica_of_a_counter() {
    let shape = Shape { rate_limits: FEW_KIB, counter: true, ..Shape::DEFAULT };
    with_cluster("limit_counter_kib", shape, |cluster| async move {
        let add = |cells| (0..cells).fold(Change::of(&cluster, 1, 5), |change, c| change.add(c, 1)).done();
        cluster.write_as(0, add(1_000), WriteKind::Counter, Quorum).await.expect("nothing was written yet");
        cluster.settle().await;
        for node in 0..3 {
            let again = cluster.write_as(node, add(1), WriteKind::Counter, One).await;
            assert_eq!(again, refused(LimitKind::WriteBytes, true), "node {node}");
        }
    });
}

#[test]
fn a_cancelled_read_is_charged_for_the_bytes_it_has_read() {
    with_cluster("limit_cancelled_kib", Shape { rate_limits: FEW_KIB, ..Shape::DEFAULT }, |cluster| async move {
        store(&cluster, 0..1, 1).await;
        let context = |rate_limit| Context { metadata_number: u64::MAX, rate_limit, ..within(One).context };
        let request = ReplicaRequest::Read(cluster.read_of(1).into());
        let free = context(RateLimitMode::Exempt);
        for (context, pays) in [(free, false), (context(RateLimitMode::ChargeOnly), true)] {
            // The replica looks for it only after it has read the first rows.
            context.cancel.cancel();
            let cancelled = cluster.nodes[0].replica.perform(&request, &context).await;
            assert!(matches!(cancelled, Err(ReplicaError::Cancelled)), "{cancelled:?}");
            if pays {
                assert_eq!(cluster.read(0, 1, One).await, refused(LimitKind::ReadBytes, true));
            }
        }
    });
}

#[test]
fn bytes_of_later_parts_of_an_operation_are_charged() {
    with_cluster("limit_parts_kib", Shape { rate_limits: FEW_KIB, ..Shape::DEFAULT }, |cluster| async move {
        store(&cluster, 0..3, 1).await;
        let query = cluster.query(QueryPartitions::Keys([key(1)].into_iter().collect()));
        let part = PageRequest { counting: Counting::Accepted, ..PageRequest::default() };
        for _ in 0..2 {
            cluster.page(0, &query, &part, One).await.expect("it is not refused");
        }
        assert_eq!(cluster.read(0, 1, One).await, refused(LimitKind::ReadBytes, true));
    });
}

/// A coordinator without a replica does not decide on bytes. The replicas decide on each key of an
/// IN when they are first asked for it, whichever part of the operation that is.
#[test]
fn replicas_decide_on_each_key_of_an_in() {
    with_cluster("limit_in_kib", Shape { rate_limits: FEW_KIB, ..OUTSIDE }, |cluster| async move {
        store(&cluster, 1..4, 1).await;
        for k in 2..=20 {
            for node in 1..4 {
                cluster.put(node, Change::of(&cluster, k, 5).row(1, 1).row(2, 2).row(3, 3).done()).await;
            }
        }
        cluster.read(0, 1, All).await.expect("nothing was read yet");
        let node = &cluster.nodes[0].coordinator;
        let mut options = within(All);
        options.context.rate_limit = RateLimitMode::Deferred { draw: 0 };
        let read_all = async |keys: Vec<i32>, size| {
            let query = query_on(node, QueryPartitions::Keys(keys.into_iter().map(key).collect()));
            let (mut state, mut counting, mut parts) = (None, Counting::Page, 0);
            loop {
                let part = PageRequest { size: Some(size), state, counting, ..PageRequest::default() };
                let page = node.read(&query, &part, &options).await.map_err(without_excess)?;
                parts += 1;
                (state, counting) = (page.next, Counting::PartOfFirst { asked: page.asked });
                if state.is_none() {
                    return Ok(parts);
                }
            }
        };
        // The first part is full before the last of these keys is reached.
        assert!(read_all((2..=20).collect(), 4).await.expect("no key has a debt") > 5);
        let with_debt: Vec<i32> = (2..=20).chain([1]).collect();
        assert_eq!(read_all(with_debt, 4).await, refused(LimitKind::ReadBytes, false));
        // Both keys are asked at once, and the page has rows of the first one only.
        assert_eq!(read_all(vec![2, 1], 2).await, refused(LimitKind::ReadBytes, false));
    });
}

/// Such a write is stored all the same.
#[test]
fn a_write_whose_deadline_passes_while_it_is_stored_is_charged() {
    let durable = |config: &mut EngineConfig| config.log.mode = SyncMode::Batch;
    with_cluster_of(
        "limit_late_kib",
        Shape { rate_limits: FEW_KIB, ..Shape::DEFAULT },
        durable,
        |cluster| async move {
            let options = within(One);
            let context = Context { metadata_number: u64::MAX, rate_limit: RateLimitMode::Counted, ..options.context };
            let request = ReplicaRequest::write(large(&cluster, 1));
            // It waits for the disk, and is dropped.
            assert!(cluster.nodes[0].replica.perform(&request, &context).now_or_never().is_none());
            assert_eq!(cluster.own(0, 1).await.len(), 1_000);
            assert_eq!(cluster.write(0, small(&cluster, 1), One).await, refused(LimitKind::WriteBytes, true));
        },
    );
}

#[test]
fn a_high_limit_of_bytes_refuses_nothing_and_counts_no_operations() {
    with_cluster("limit_many_kib", Shape { rate_limits: MANY_KIB, ..Shape::DEFAULT }, |cluster| async move {
        for _ in 0..3 {
            cluster.write(0, large(&cluster, 1), Quorum).await.expect("accepted");
            cluster.read(0, 1, Quorum).await.expect("accepted");
        }
        cluster.settle().await;
        let slots = cluster.nodes[0].replica.metrics().rate_limits.slots;
        assert_eq!(slots.allocations + slots.successful_lookups, 6, "one charge for each");
    });
}

#[test]
fn the_mode_observe_counts_and_refuses_nothing() {
    for (shape, by) in [(Shape::DEFAULT, 0), (OUTSIDE, 1)] {
        with_cluster("limit_observe", Shape { rate_limits: OBSERVED, ..shape }, move |cluster| async move {
            for _ in 0..2 {
                cluster.write(0, large(&cluster, 1), All).await.expect("nothing is refused");
                assert_eq!(cluster.read(0, 1, All).await.expect("nothing is refused").len(), 1_000);
            }
            let metrics = cluster.nodes[by].replica.metrics().rate_limits;
            assert_eq!((metrics.observed_reads, metrics.observed_writes), (2, 2));
            assert_eq!((metrics.refused_reads, metrics.refused_writes), (0, 0));
            let metrics = cluster.nodes[0].coordinator.metrics();
            assert_eq!((metrics.limited_reads, metrics.limited_writes), ([0, 0], [0, 0]));
        });
    }
    let counter = Shape { rate_limits: OBSERVED, counter: true, ..Shape::DEFAULT };
    with_cluster("limit_observe_counter", counter, |cluster| async move {
        let change = Change::of(&cluster, 1, 5).add(1, 3).done();
        cluster.write_as(0, change, WriteKind::Counter, Quorum).await.expect("nothing is refused");
        assert_eq!(cluster.nodes[0].replica.metrics().rate_limits.observed_writes, 1);
    });
}
