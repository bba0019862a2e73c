//! Rate limits: whether the coordinator or the replicas decide, which operations are counted, and
//! the effects of a refusal. No test depends on time. Limits are either 0, which refuses
//! everything, or so high that only the counts matter.

use crate::support::requests::without_excess;
use crate::support::{Change, Cluster, Fault, Shape, key, ops, table_id, with_cluster, within};
use cluster::metadata::Op;
use coordinator::Consistency::{self, *};
use coordinator::{CoordinatorError, Counting, PageRequest, QueryPartitions, RequestOptions, WriteKind};
use model::id::SchemaVersion;
use model::range::PartitionRange;
use replica::{Class, Context, Excess, LimitKind, LimitedBy, Mutations, RateLimited};
use uuid::Uuid;

const NOTHING: &[(&str, &str)] = &[("max_reads_per_second", "0"), ("max_writes_per_second", "0")];
const NO_READS: &[(&str, &str)] = &[("max_reads_per_second", "0")];
const VERY_MUCH: &[(&str, &str)] = &[("max_reads_per_second", "4294967295"), ("max_writes_per_second", "4294967295")];

/// Node 0 has no replica.
const OUTSIDE: Shape = Shape { datacenters: &["dc1", "dc1", "dc1", "dc1"], copies: &[1, 2, 3], ..Shape::DEFAULT };

fn refused(kind: LimitKind, by_coordinator: bool) -> CoordinatorError {
    let (by, excess) = (LimitedBy::Table, Excess::default());
    let refused = RateLimited { kind, table: table_id(), by, partition: 0, excess };
    CoordinatorError::RateLimited { refused, by_coordinator }
}

/// The operations that each node has counted since the last call.
pub struct Counts(Vec<u64>);

impl Counts {
    fn of(cluster: &Cluster) -> Vec<u64> {
        let slots = cluster.nodes.iter().map(|node| node.replica.metrics().rate_limits.slots);
        slots.map(|slots| slots.allocations + slots.successful_lookups).collect()
    }

    pub fn new(cluster: &Cluster) -> Counts {
        Counts(Counts::of(cluster))
    }

    pub fn more(&mut self, cluster: &Cluster) -> Vec<u64> {
        let now = Counts::of(cluster);
        let before = std::mem::replace(&mut self.0, now.clone());
        now.iter().zip(before).map(|(now, before)| now - before).collect()
    }
}

fn sent(cluster: &Cluster) -> u64 {
    cluster.wire.sent.borrow().values().sum()
}

#[test]
fn a_coordinator_with_a_replica_decides_alone() {
    with_cluster("limit_own", Shape { rate_limits: NOTHING, ..Shape::DEFAULT }, |cluster| async move {
        let hints = cluster.keep_hints(0).await;
        cluster.set_alive(2, false);
        for level in [Any, One, Quorum] {
            let written = cluster.write(0, Change::of(&cluster, 1, 5).row(1, 1).done(), level).await;
            assert_eq!(written, Err(refused(LimitKind::Write, true)), "{level:?}");
        }
        for level in [One, Quorum] {
            assert_eq!(cluster.read(0, 1, level).await, Err(refused(LimitKind::Read, true)));
        }
        cluster.settle().await;
        assert_eq!(sent(&cluster), 0);
        assert_eq!(Counts::of(&cluster), [5, 0, 0], "refused operations are counted");
        assert_eq!(hints.metrics().written, 0);
        let metrics = cluster.nodes[0].coordinator.metrics();
        assert_eq!((metrics.limited_reads, metrics.limited_writes), ([2, 0], [3, 0]));
    });
}

#[test]
fn replicas_decide_for_a_coordinator_without_one() {
    with_cluster("limit_others", Shape { rate_limits: NOTHING, ..OUTSIDE }, |cluster| async move {
        let hints = cluster.keep_hints(0).await;
        for level in [One, Quorum, All] {
            let written = cluster.write(0, Change::of(&cluster, 1, 5).row(1, 1).done(), level).await;
            assert_eq!(written, Err(refused(LimitKind::Write, false)), "{level:?}");
        }
        cluster.settle().await;
        for (level, asked) in [(One, 1), (Quorum, 2), (All, 3)] {
            let before = sent(&cluster);
            assert_eq!(cluster.read(0, 1, level).await, Err(refused(LimitKind::Read, false)), "{level:?}");
            cluster.settle().await;
            assert!(sent(&cluster) - before <= asked, "no other replica is asked in place of one that refuses");
        }
        for node in 1..4 {
            assert!(cluster.own(node, 1).await.is_empty());
            assert_eq!(cluster.nodes[node].replica.metrics().rate_limits.refused_writes, 3);
        }
        assert_eq!(hints.metrics().written, 0);
        cluster.set_alive(3, false);
        for level in [Any, Quorum] {
            let written = cluster.write(0, Change::of(&cluster, 1, 5).row(1, 1).done(), level).await;
            assert_eq!(written, Err(refused(LimitKind::Write, false)), "{level:?}");
            cluster.settle().await;
        }
        assert_eq!(hints.metrics().written, 0, "a refused write leaves no hint for a node that is down");
        let metrics = cluster.nodes[0].coordinator.metrics();
        assert_eq!((metrics.limited_reads, metrics.limited_writes), ([0, 3], [0, 5]));
    });
}

/// Otherwise such writes would have no limit.
#[test]
fn a_coordinator_decides_on_hints_while_no_replica_is_up() {
    for (limits, accepted) in [(NOTHING, false), (VERY_MUCH, true)] {
        with_cluster("limit_hinted", Shape { rate_limits: limits, ..OUTSIDE }, move |cluster| async move {
            let hints = cluster.keep_hints(0).await;
            (1..4).for_each(|node| cluster.set_alive(node, false));
            let written = cluster.write(0, Change::of(&cluster, 1, 5).row(1, 1).done(), Any).await;
            assert_eq!(written, if accepted { Ok(()) } else { Err(refused(LimitKind::Write, true)) });
            cluster.settle().await;
            assert_eq!(hints.metrics().written > 0, accepted);
            assert_eq!(cluster.nodes[0].coordinator.metrics().limited_writes, [u64::from(!accepted), 0]);
        });
    }
}

#[test]
fn an_operation_counts_once_on_each_replica() {
    with_cluster("limit_once", Shape { rate_limits: VERY_MUCH, ..Shape::DEFAULT }, |cluster| async move {
        let mut counts = Counts::new(&cluster);
        cluster.write(0, Change::of(&cluster, 1, 5).row(1, 1).done(), Quorum).await.expect("accepted");
        cluster.settle().await;
        assert_eq!(counts.more(&cluster), [1, 1, 1]);
        cluster.read(0, 1, All).await.expect("accepted");
        assert_eq!(counts.more(&cluster), [1, 1, 1]);
        cluster.read(0, 1, One).await.expect("accepted");
        assert_eq!(counts.more(&cluster), [1, 0, 0]);
        // Replicas that differ: reconciliation and repair are not counted.
        cluster.put(2, Change::of(&cluster, 1, 6).row(2, 2).done()).await;
        let read = cluster.read(0, 1, All).await.expect("accepted");
        cluster.settle().await;
        assert_eq!((read.len(), counts.more(&cluster)), (2, vec![1, 1, 1]));
        assert_eq!(cluster.own(1, 1).await.len(), 2, "repaired");
        assert_eq!(counts.more(&cluster), [0, 0, 0], "requests without a mode are not counted");
    });
    with_cluster("limit_once_away", Shape { rate_limits: VERY_MUCH, ..OUTSIDE }, |cluster| async move {
        let mut counts = Counts::new(&cluster);
        cluster.write(0, Change::of(&cluster, 1, 5).row(1, 1).done(), One).await.expect("accepted");
        cluster.settle().await;
        assert_eq!(counts.more(&cluster), [1, 1, 1, 1], "its coordinator and each replica");
        cluster.put(2, Change::of(&cluster, 1, 6).row(2, 2).done()).await;
        cluster.read(0, 1, All).await.expect("accepted");
        assert_eq!(counts.more(&cluster), [1, 1, 1, 1]);
    });
}

#[test]
fn a_speculative_read_counts_once_on_each_replica() {
    for shape in [OUTSIDE, Shape::DEFAULT] {
        let shape = Shape { rate_limits: VERY_MUCH, speculative_retry: "ALWAYS", ..shape };
        with_cluster("limit_speculation", shape, |cluster| async move {
            cluster.write(0, Change::of(&cluster, 1, 5).row(1, 1).done(), All).await.expect("accepted");
            cluster.settle().await;
            let mut counts = Counts::new(&cluster);
            // All replicas are asked, and two answer.
            cluster.break_node(1, Fault::LosesAnswers);
            assert_eq!(cluster.read(0, 1, Quorum).await, Ok(vec![(1, 1)]));
            assert_eq!(cluster.nodes[0].coordinator.metrics().speculative_reads, 1);
            let counted = counts.more(&cluster);
            assert!(counted.iter().all(|count| *count == 1), "{counted:?}");
        });
    }
}

#[test]
fn an_accepted_write_comes_to_a_replica_that_refused_it() {
    with_cluster("limit_again", Shape { rate_limits: VERY_MUCH, ..OUTSIDE }, |cluster| async move {
        let hints = cluster.keep_hints(0).await;
        // Replica 3 alone refuses.
        let hosts: Vec<_> = cluster.nodes.iter().map(|node| node.host).collect();
        for node in 0..4 {
            let limits = if node == 3 { NOTHING } else { VERY_MUCH };
            let ops = ops(&Shape { rate_limits: limits, ..OUTSIDE }, &hosts);
            let altered = |op| match op {
                Op::PutTable(mut table) => {
                    table.version = SchemaVersion(Uuid::from_u128(2));
                    Some(Op::PutTable(table))
                }
                _ => None,
            };
            cluster.change(node, ops.into_iter().filter_map(altered).collect()).await;
        }
        let change = |k| Change::of(&cluster, k, 5).row(1, 7).done();
        for (k, level) in [(1, One), (2, Quorum)] {
            cluster.write(0, change(k), level).await.expect("two accept it");
            cluster.settle().await;
            assert_eq!(cluster.own(3, k).await, [(1, 7)], "{level:?}");
        }
        assert_eq!(cluster.nodes[3].replica.metrics().rate_limits.refused_writes, 2);
        assert_eq!(hints.metrics().written, 0);
        assert_eq!(cluster.write(0, change(3), All).await, Err(refused(LimitKind::Write, false)));
        cluster.settle().await;
        assert!(cluster.own(3, 3).await.is_empty());
        // A replica that is down gets its hint.
        cluster.set_alive(2, false);
        cluster.write(0, change(4), One).await.expect("one accepts it");
        cluster.settle().await;
        while hints.metrics().written < 1 {
            rt::task::yield_now().await;
        }
        assert_eq!(cluster.own(3, 4).await, [(1, 7)]);
        assert_eq!(hints.targets(), [hosts[2]]);
        assert_eq!(cluster.write(0, change(5), Quorum).await, Err(refused(LimitKind::Write, false)));
    });
}

#[test]
fn a_repetition_with_newer_metadata_is_not_counted_again() {
    with_cluster("limit_stale", Shape { rate_limits: VERY_MUCH, ..OUTSIDE }, |cluster| async move {
        let hosts: Vec<_> = cluster.nodes.iter().map(|node| node.host).collect();
        let keyspace = || ops(&OUTSIDE, &hosts).into_iter().filter(|op| matches!(op, Op::PutKeyspace(_))).collect();
        let mut counts = Counts::new(&cluster);
        // Node 3 refuses requests that were routed by older metadata, until all nodes have
        // newer metadata.
        let newer = async || {
            cluster.settle().await;
            cluster.change_all(keyspace()).await;
        };
        let raise = || cluster.nodes[3].replica.set_fence(cluster.nodes[0].coordinator.metadata().number + 1);
        raise();
        let write = cluster.write(0, Change::of(&cluster, 1, 5).row(1, 1).done(), All);
        let (written, ()) = futures_util::future::join(write, newer()).await;
        written.expect("all have it");
        assert_eq!(counts.more(&cluster), [1, 1, 1, 0]);
        raise();
        let (read, ()) = futures_util::future::join(cluster.read(0, 1, All), newer()).await;
        assert_eq!(read, Ok(vec![(1, 1)]));
        assert!(counts.more(&cluster).iter().all(|count| *count <= 1));
    });
}

#[test]
fn each_page_of_a_partition_counts() {
    with_cluster("limit_pages", Shape { rate_limits: VERY_MUCH, ..Shape::DEFAULT }, |cluster| async move {
        for k in 0..4 {
            for c in 0..6 {
                cluster.put(0, Change::of(&cluster, k, 5).row(c, c).done()).await;
            }
        }
        let mut counts = Counts::new(&cluster);
        let all = [3, 0, 1, 2].map(key);
        let query = cluster.query(QueryPartitions::Keys(all.iter().cloned().collect()));
        let mut page = PageRequest { size: Some(4), ..PageRequest::default() };
        let mut counted = Vec::new();
        loop {
            let read = cluster.page(0, &query, &page, One).await.expect("accepted");
            counted.push(counts.more(&cluster)[0]);
            if let Some(state) = &read.next {
                // A client may ask for a page any number of times.
                let again = PageRequest { state: Some(state.clone()), ..page.clone() };
                let (first, second) = (cluster.page(0, &query, &again, One).await, counts.more(&cluster)[0]);
                first.expect("accepted");
                cluster.page(0, &query, &again, One).await.expect("accepted");
                assert_eq!((counts.more(&cluster)[0], second > 0), (second, true), "each time counts alike");
            }
            page.state = read.next;
            if page.state.is_none() {
                break;
            }
        }
        // Four rows a page, six rows a partition. All keys count before the first is read. Each
        // later page counts the partitions that it reads, even if nothing is left of the first.
        assert_eq!(counted, [4, 2, 1, 2, 2, 1, 1]);
        let exempt = PageRequest { counting: Counting::Accepted, ..PageRequest::default() };
        cluster.page(0, &query, &exempt, One).await.expect("accepted");
        assert_eq!(counts.more(&cluster), [0, 0, 0]);
        cluster.reduce(0, &query, One).await.expect("accepted");
        assert_eq!(counts.more(&cluster), [4, 0, 0], "an aggregate counts once");
    });
}

/// The answers of keys that do not fit into a page are not used, and asked for again.
#[test]
fn a_key_of_an_in_that_is_asked_for_again_counts_once() {
    with_cluster("limit_given_back", Shape { rate_limits: VERY_MUCH, ..OUTSIDE }, |cluster| async move {
        for k in 1..=6 {
            for node in 1..4 {
                cluster.put(node, Change::of(&cluster, k, 5).row(1, 1).row(2, 2).row(3, 3).done()).await;
            }
        }
        let mut counts = Counts::new(&cluster);
        let query = cluster.query(QueryPartitions::Keys((1..=6).map(key).collect()));
        let page = PageRequest { size: Some(8), ..PageRequest::default() };
        let read = cluster.page(0, &query, &page, All).await.expect("accepted");
        assert_eq!((read.rows, read.asked), (8, 6));
        cluster.settle().await;
        assert_eq!(counts.more(&cluster), [6; 4]);
    });
}

/// A paging state points behind a partition without a limit to speak of. The page that it leads to
/// reads the hot one.
#[test]
fn a_later_page_is_refused_where_it_reaches_a_limited_partition() {
    for (shape, by_coordinator) in [(Shape::DEFAULT, true), (OUTSIDE, false)] {
        with_cluster("limit_later", Shape { rate_limits: NO_READS, ..shape }, move |cluster| async move {
            for k in [1, 2] {
                for node in 0..cluster.nodes.len() {
                    if shape.copies.contains(&node) {
                        cluster.put(node, Change::of(&cluster, k, 5).row(1, 1).row(2, 2).done()).await;
                    }
                }
            }
            let query = cluster.query(QueryPartitions::Keys([1, 2].map(key).into_iter().collect()));
            let first = PageRequest { size: Some(2), counting: Counting::Accepted, ..PageRequest::default() };
            let read = cluster.page(0, &query, &first, Quorum).await.expect("it does not count");
            let state = read.next.expect("there is more");
            let read = cluster.page(0, &query, &PageRequest { size: Some(1), ..first }, Quorum).await;
            let within = read.expect("it does not count").next.expect("there is more");
            for (counting, inside) in [(Counting::Page, false), (Counting::PartOfLater, true)] {
                let state = if inside { within.clone() } else { state.clone() };
                let page = PageRequest { size: Some(10), state: Some(state), counting, ..PageRequest::default() };
                let read = cluster.page(0, &query, &page, Quorum).await;
                assert_eq!(read, Err(refused(LimitKind::Read, by_coordinator)), "{counting:?}");
            }
        });
    }
}

#[test]
fn only_ranges_of_one_token_are_limited() {
    with_cluster("limit_ranges", Shape { rate_limits: NO_READS, ..Shape::DEFAULT }, |cluster| async move {
        let page = PageRequest::default();
        let token = key(1).token;
        let read = async |range: PartitionRange| {
            cluster.page(0, &cluster.query(QueryPartitions::Range(range)), &page, One).await
        };
        read(PartitionRange::FULL).await.expect("a scan is not limited");
        let before = model::token::Token(token.0 - 1);
        assert_eq!(read(PartitionRange::tokens(before, token)).await, Err(refused(LimitKind::Read, true)));
        read(PartitionRange::tokens(model::token::Token(token.0 - 2), token)).await.expect("two tokens");
        cluster.write(0, Change::of(&cluster, 1, 5).row(1, 1).done(), Quorum).await.expect("writes have no limit");
    });
}

#[test]
fn other_classes_and_logged_batches_are_not_limited() {
    with_cluster("limit_kinds", Shape { rate_limits: NOTHING, ..OUTSIDE }, |cluster| async move {
        let writes = |keys: &[i32]| -> Mutations {
            keys.iter().map(|k| (Change::of(&cluster, *k, 5).row(1, 1).done(), key(*k))).collect()
        };
        let options = within(Quorum);
        let write = async |keys: &[i32], kind, options: &RequestOptions| {
            cluster.nodes[0].coordinator.write(writes(keys), kind, options).await.map_err(without_excess)
        };
        write(&[1, 2], WriteKind::LoggedBatch, &options).await.expect("it must be applied entirely");
        let limited = Err(refused(LimitKind::Write, false));
        assert_eq!(write(&[1], WriteKind::LoggedBatch, &options).await, limited);
        assert_eq!(write(&[1, 2], WriteKind::UnloggedBatch, &options).await, limited);
        for class in [Class::System, Class::Maintenance] {
            let context = Context { class, ..options.context.clone() };
            let options = RequestOptions { context, consistency: Quorum };
            write(&[1], WriteKind::Simple, &options).await.expect("only clients are limited");
        }
    });
}

#[test]
fn counter_updates_count_at_their_leader() {
    let shape = |rate_limits, outside: bool| match outside {
        true => Shape { rate_limits, counter: true, ..OUTSIDE },
        false => Shape { rate_limits, counter: true, ..Shape::DEFAULT },
    };
    let update = async |cluster: &Cluster, level: Consistency| {
        let change = Change::of(cluster, 1, 5).add(1, 3).done();
        let updated = cluster.write_as(0, change, WriteKind::Counter, level).await;
        cluster.settle().await;
        updated
    };
    with_cluster("limit_counter", shape(VERY_MUCH, false), |cluster| async move {
        update(&cluster, Quorum).await.expect("accepted");
        assert_eq!(Counts::of(&cluster), [1, 0, 0]);
        assert_eq!(cluster.own(2, 1).await, [(1, 3)]);
    });
    with_cluster("limit_counter_away", shape(VERY_MUCH, true), |cluster| async move {
        update(&cluster, Quorum).await.expect("accepted");
        let counts = Counts::of(&cluster);
        assert_eq!((counts[0], counts[1..].iter().sum::<u64>()), (1, 1));
    });
    for outside in [false, true] {
        with_cluster("limit_counter_0", shape(NOTHING, outside), move |cluster| async move {
            assert_eq!(update(&cluster, One).await, Err(refused(LimitKind::Write, !outside)));
            assert!(cluster.own(2, 1).await.is_empty());
        });
    }
}
