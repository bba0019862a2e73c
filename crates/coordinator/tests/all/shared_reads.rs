//! Equal reads of one moment share their requests to replicas.

use crate::support;

use coordinator::Consistency::{self, *};
use coordinator::{CoordinatorError, PageRequest, Query, QueryPage, QueryPartitions};
use futures_util::future::join_all;
use replica::ReplicaError;
use rt::time::Duration;
use smallvec::smallvec;
use std::pin::pin;
use support::{Change, Cluster, Fault, Shape, key, rows, with_cluster};

/// A query of a partition; like a prepared statement, it can be executed many times.
fn query(cluster: &Cluster, k: i32) -> Query {
    cluster.query(QueryPartitions::Keys(smallvec![key(k)]))
}

async fn read(cluster: &Cluster, query: &Query, level: Consistency) -> Result<QueryPage, CoordinatorError> {
    cluster.page(0, query, &PageRequest { size: Some(100), ..PageRequest::default() }, level).await
}

fn values(read: &Result<QueryPage, CoordinatorError>) -> Vec<i64> {
    rows(read.as_ref().expect("it is read")).into_iter().map(|(_, _, value)| value).collect()
}

fn shared(cluster: &Cluster) -> u64 {
    cluster.nodes[0].coordinator.metrics().shared_reads
}

fn sent(cluster: &Cluster) -> u64 {
    cluster.nodes[0].coordinator.metrics().remote_requests
}

/// Makes the other nodes answer after some time, so that reads are in flight together.
fn slow_down(cluster: &Cluster) {
    answer_after(cluster, Duration::from_millis(30));
}

fn answer_after(cluster: &Cluster, time: Duration) {
    for node in [1, 2] {
        cluster.break_node(node, Fault::Late(time, None));
    }
}

async fn write(cluster: &Cluster, k: i32, value: i32) {
    let change = Change::of(cluster, k, i64::from(value)).row(1, value.into()).done();
    cluster.write(0, change, All).await.expect("all live");
}

#[test]
fn equal_reads_that_arrive_together_share_one_request() {
    with_cluster("shared", Shape::DEFAULT, |cluster| async move {
        write(&cluster, 1, 5).await;
        write(&cluster, 2, 6).await;
        let (one, other) = (query(&cluster, 1), query(&cluster, 2));
        slow_down(&cluster);
        let before = sent(&cluster);
        let reads = join_all((0..20).map(|_| read(&cluster, &one, Quorum))).await;
        assert!(reads.iter().all(|read| values(read) == [5]));
        assert_eq!((shared(&cluster), sent(&cluster) - before), (18, 2), "the first is sent at once");
        // A read of another partition, at another level, or of other values is not the same.
        let different = query(&cluster, 1);
        let mixed = [(&one, Quorum), (&one, One), (&one, All), (&different, Quorum), (&other, Quorum)];
        let reads = join_all(mixed.iter().map(|(query, level)| read(&cluster, query, *level))).await;
        assert_eq!(reads.iter().flat_map(values).collect::<Vec<_>>(), [5, 5, 5, 5, 6]);
        assert_eq!(shared(&cluster), 18);
    });
}

#[test]
fn a_read_sees_what_was_written_before_it_began() {
    with_cluster("shared_fresh", Shape::DEFAULT, |cluster| async move {
        write(&cluster, 1, 5).await;
        let query = query(&cluster, 1);
        answer_after(&cluster, Duration::from_millis(700));
        let earlier = read(&cluster, &query, Quorum);
        let later = async {
            rt::task::yield_now().await;
            // The replicas answer the earlier read after all that follows.
            [1, 2].iter().for_each(|node| cluster.heal(*node));
            write(&cluster, 1, 7).await;
            join_all((0..3).map(|_| read(&cluster, &query, Quorum))).await
        };
        let (_, later) = futures_util::join!(earlier, later);
        assert!(later.iter().all(|read| values(read) == [7]), "{later:?}");
        assert_eq!(shared(&cluster), 2, "none has joined the read that was sent before the write");
    });
}

#[test]
fn a_read_whose_leader_is_cancelled_or_fails_is_sent_by_itself() {
    with_cluster("shared_cancelled", Shape::DEFAULT, |cluster| async move {
        write(&cluster, 1, 5).await;
        let query = query(&cluster, 1);
        slow_down(&cluster);
        let first = read(&cluster, &query, Quorum);
        let mut leader = Box::pin(read(&cluster, &query, Quorum));
        let joined = pin!(read(&cluster, &query, Quorum));
        let cancelled = async {
            // Polled once: it is open for others.
            assert!(futures_util::poll!(leader.as_mut()).is_pending());
            let (read, ()) = futures_util::join!(joined, async { drop(leader) });
            read
        };
        let (first, joined) = futures_util::join!(first, cancelled);
        assert_eq!((values(&first), values(&joined), shared(&cluster)), (vec![5], vec![5], 1));

        let broken = Fault::Fails(ReplicaError::Storage("broken".into()));
        for node in [1, 2] {
            cluster.break_node(node, Fault::Late(Duration::from_millis(30), Some(Box::new(broken.clone()))));
        }
        let reads = join_all((0..4).map(|_| read(&cluster, &query, Quorum))).await;
        assert!(reads.iter().all(Result::is_err));
        slow_down(&cluster);
        let reads = join_all((0..4).map(|_| read(&cluster, &query, Quorum))).await;
        assert!(reads.iter().all(|read| values(read) == [5]));
    });
}

#[test]
fn a_page_that_another_one_follows_is_not_shared() {
    with_cluster("shared_pages", Shape::DEFAULT, |cluster| async move {
        let change = Change::of(&cluster, 1, 1).row(1, 10).row(2, 20).row(3, 30).done();
        cluster.write(0, change, All).await.expect("all live");
        let query = query(&cluster, 1);
        slow_down(&cluster);
        let all = async || {
            let (mut page, mut found) = (PageRequest { size: Some(2), ..PageRequest::default() }, Vec::new());
            loop {
                let read = cluster.page(0, &query, &page, Quorum).await.expect("all live");
                found.extend(rows(&read).into_iter().map(|(_, _, value)| value));
                page.state = read.next;
                if page.state.is_none() {
                    return found;
                }
            }
        };
        let found = join_all((0..6).map(|_| all())).await;
        assert!(found.iter().all(|found| found == &[10, 20, 30]), "{found:?}");
        // With LIMIT, no other page follows.
        let limited = Query { limit: Some(2), ..query.clone() };
        let before = shared(&cluster);
        let reads = join_all((0..6).map(|_| read(&cluster, &limited, Quorum))).await;
        assert!(reads.iter().all(|read| values(read) == [10, 20]));
        assert_eq!(shared(&cluster) - before, 4);
    });
}
