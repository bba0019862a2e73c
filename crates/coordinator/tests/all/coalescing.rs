//! Concurrent equal reads share their requests to replicas.

use crate::support;

use coordinator::Consistency::{self, *};
use coordinator::{CoordinatorError, PageRequest, Query, QueryPage, QueryPartitions};
use futures_util::future::join_all;
use futures_util::{join, poll};
use replica::ReplicaError;
use rt::time::Duration;
use smallvec::smallvec;
use support::{Change, Cluster, Fault, Shape, key, rows, with_cluster};

/// A query of a partition. Like a prepared statement, it can be executed many times.
fn query(cluster: &Cluster, k: i32) -> Query {
    cluster.query(QueryPartitions::Keys(smallvec![key(k)]))
}

type Read = Result<QueryPage, CoordinatorError>;

async fn read(cluster: &Cluster, query: &Query, level: Consistency) -> Read {
    cluster.page(0, query, &PageRequest { size: Some(100), ..PageRequest::default() }, level).await
}

async fn reads(cluster: &Cluster, query: &Query, count: usize) -> Vec<Read> {
    join_all((0..count).map(|_| read(cluster, query, Quorum))).await
}

fn values(read: &Read) -> Vec<i64> {
    rows(read.as_ref().expect("it is read")).into_iter().map(|(_, _, value)| value).collect()
}

fn coalesced(cluster: &Cluster) -> u64 {
    cluster.nodes[0].coordinator.metrics().coalesced_reads
}

fn sent(cluster: &Cluster) -> u64 {
    cluster.nodes[0].coordinator.metrics().remote_requests
}

async fn write(cluster: &Cluster, k: i32, value: i32) {
    let change = Change::of(cluster, k, i64::from(value)).row(1, value).done();
    cluster.write(0, change, All).await.expect("all live");
}

const LONG: Duration = Duration::from_secs(60);

fn answer_after(cluster: &Cluster, time: Duration) {
    [1, 2].iter().for_each(|node| cluster.break_node(*node, Fault::Late(time, None)));
}

fn heal(cluster: &Cluster) {
    [1, 2].iter().for_each(|node| cluster.heal(*node));
}

/// Does `work` while an equal read is in flight, and another one has been answered.
async fn while_in_flight<T>(cluster: &Cluster, query: &Query, work: impl Future<Output = T>) -> T {
    while_reading(cluster, async || read(cluster, query, Quorum).await, work).await
}

/// The same with any read.
async fn while_reading<T>(cluster: &Cluster, read: impl AsyncFn() -> Read, work: impl Future<Output = T>) -> T {
    answer_after(cluster, LONG);
    let mut held = Box::pin(read());
    assert!(poll!(held.as_mut()).is_pending());
    heal(cluster);
    read().await.expect("it is read");
    let done = work.await;
    assert!(poll!(held.as_mut()).is_pending(), "it is in flight");
    done
}

#[test]
fn concurrent_equal_reads_share_one_request() {
    with_cluster("coalesced", Shape::DEFAULT, |cluster| async move {
        write(&cluster, 1, 5).await;
        write(&cluster, 2, 6).await;
        let (one, other, different) = (query(&cluster, 1), query(&cluster, 2), query(&cluster, 1));
        let all = reads(&cluster, &one, 20).await;
        assert!(all.iter().all(|read| values(read) == [5]));
        while_in_flight(&cluster, &one, async {
            let before = (coalesced(&cluster), sent(&cluster));
            let all = reads(&cluster, &one, 20).await;
            assert!(all.iter().all(|read| values(read) == [5]));
            assert_eq!((coalesced(&cluster) - before.0, sent(&cluster) - before.1), (19, 1));
            // A read of another partition or statement, or at another level, is not equal.
            let mixed = [(&one, Quorum), (&one, One), (&one, All), (&different, Quorum), (&other, Quorum)];
            let all = join_all(mixed.iter().map(|(query, level)| read(&cluster, query, *level))).await;
            assert_eq!(all.iter().flat_map(values).collect::<Vec<_>>(), [5, 5, 5, 5, 6]);
            assert_eq!(coalesced(&cluster) - before.0, 19);
        })
        .await;
    });
}

#[test]
fn reads_that_come_together_again_are_coalesced_again() {
    with_cluster("coalesced_again", Shape::DEFAULT, |cluster| async move {
        write(&cluster, 1, 5).await;
        let query = query(&cluster, 1);
        let more = async |count: usize| {
            let before = coalesced(&cluster);
            assert!(reads(&cluster, &query, count).await.iter().all(|read| values(read) == [5]));
            coalesced(&cluster) - before
        };
        while_in_flight(&cluster, &query, async { assert_eq!(more(5).await, 4) }).await;
        assert_eq!(more(5).await, 4, "although none is in flight before");
        assert_eq!(more(1).await, 0);
        assert_eq!(more(5).await, 0, "a read that came alone has ended it");
    });
}

#[test]
fn a_read_sees_what_was_written_before_it_began() {
    with_cluster("coalesced_fresh", Shape::DEFAULT, |cluster| async move {
        write(&cluster, 1, 5).await;
        let query = query(&cluster, 1);
        while_in_flight(&cluster, &query, async {
            let before = coalesced(&cluster);
            answer_after(&cluster, Duration::from_millis(20));
            let mut earlier = Box::pin(read(&cluster, &query, Quorum));
            // It lets others follow, and is sent.
            assert!(poll!(earlier.as_mut()).is_pending());
            rt::task::yield_now().await;
            assert!(poll!(earlier.as_mut()).is_pending());
            heal(&cluster);
            write(&cluster, 1, 7).await;
            let later = reads(&cluster, &query, 3).await;
            assert!(later.iter().all(|read| values(read) == [7]), "{later:?}");
            assert_eq!(coalesced(&cluster) - before, 2, "none has followed the read that was sent before the write");
            earlier.await.expect("it is read");
        })
        .await;
    });
}

#[test]
fn followers_of_a_cancelled_leader_share_a_request() {
    with_cluster("coalesced_cancelled", Shape::DEFAULT, |cluster| async move {
        write(&cluster, 1, 5).await;
        let query = query(&cluster, 1);
        while_in_flight(&cluster, &query, async {
            // Cancelled before it was sent, and after that.
            for polls in [1, 3] {
                answer_after(&cluster, LONG);
                let mut leader = Box::pin(read(&cluster, &query, Quorum));
                assert!(poll!(leader.as_mut()).is_pending());
                let mut followers = Box::pin(reads(&cluster, &query, 5));
                assert!(poll!(followers.as_mut()).is_pending());
                for _ in 1..polls {
                    rt::task::yield_now().await;
                    assert!(poll!(leader.as_mut()).is_pending());
                }
                heal(&cluster);
                let before = sent(&cluster);
                drop(leader);
                assert!(followers.await.iter().all(|read| values(read) == [5]));
                assert_eq!(sent(&cluster) - before, 1, "after {polls} polls");
            }
        })
        .await;
    });
}

#[test]
fn followers_get_the_error_of_their_leader() {
    with_cluster("coalesced_errors", Shape::DEFAULT, |cluster| async move {
        write(&cluster, 1, 5).await;
        let query = query(&cluster, 1);
        while_in_flight(&cluster, &query, async {
            let broken = Fault::Fails(ReplicaError::Storage("broken".into()));
            [1, 2].iter().for_each(|node| cluster.break_node(*node, broken.clone()));
            let before = sent(&cluster);
            let failed = reads(&cluster, &query, 5).await;
            assert!(failed.iter().all(|read| matches!(read, Err(CoordinatorError::Failed { .. }))), "{failed:?}");
            assert_eq!(sent(&cluster) - before, 2, "both replicas were asked once");
            heal(&cluster);
            assert!(reads(&cluster, &query, 5).await.iter().all(|read| values(read) == [5]));
        })
        .await;
    });
}

#[test]
fn each_read_has_its_own_deadline() {
    with_cluster("coalesced_deadlines", Shape::DEFAULT, |cluster| async move {
        write(&cluster, 1, 5).await;
        let query = query(&cluster, 1);
        while_in_flight(&cluster, &query, async {
            let (short, late) = (Duration::from_millis(30), Duration::from_millis(200));
            let timeout =
                CoordinatorError::Timeout { consistency: Quorum, required: 2, received: 0, data_present: false };
            for is_short in [false, true] {
                answer_after(&cluster, late);
                cluster.set_timeout(if is_short { short } else { LONG });
                let mut leader = Box::pin(read(&cluster, &query, Quorum));
                assert!(poll!(leader.as_mut()).is_pending());
                cluster.set_timeout(if is_short { LONG } else { short });
                let mut follower = Box::pin(read(&cluster, &query, Quorum));
                assert!(poll!(follower.as_mut()).is_pending());
                let (leader, follower) = join!(leader, follower);
                let (in_time, too_late) = if is_short { (follower, leader) } else { (leader, follower) };
                assert_eq!(values(&in_time), [5]);
                let error = too_late.expect_err("it had 30 ms");
                match is_short {
                    true => assert!(matches!(error, CoordinatorError::Timeout { .. }), "{error:?}"),
                    false => assert_eq!(error, timeout),
                }
            }
            cluster.set_timeout(LONG);
        })
        .await;
    });
}

#[test]
fn a_page_that_another_one_follows_is_not_shared() {
    with_cluster("coalesced_pages", Shape::DEFAULT, |cluster| async move {
        let change = Change::of(&cluster, 1, 1).row(1, 10).row(2, 20).row(3, 30).done();
        cluster.write(0, change, All).await.expect("all live");
        let query = query(&cluster, 1);
        let small = PageRequest { size: Some(2), ..PageRequest::default() };
        let all = async || {
            let (mut page, mut found) = (small.clone(), Vec::new());
            loop {
                let read = cluster.page(0, &query, &page, Quorum).await.expect("all live");
                found.extend(rows(&read).into_iter().map(|(_, _, value)| value));
                page.state = read.next;
                if page.state.is_none() {
                    return found;
                }
            }
        };
        while_reading(&cluster, async || cluster.page(0, &query, &small, Quorum).await, async {
            let before = sent(&cluster);
            let found = join_all((0..6).map(|_| all())).await;
            assert!(found.iter().all(|found| found == &[10, 20, 30]), "{found:?}");
            assert_eq!((coalesced(&cluster), sent(&cluster) - before), (0, 12), "two pages each");
        })
        .await;
        // With LIMIT, no other page follows.
        let limited = Query { limit: Some(2), ..query.clone() };
        while_in_flight(&cluster, &limited, async {
            assert!(reads(&cluster, &limited, 6).await.iter().all(|read| values(read) == [10, 20]));
            assert_eq!(coalesced(&cluster), 5);
        })
        .await;
        // The partition grows beyond a page.
        let query = cluster.query(QueryPartitions::Keys(smallvec![key(2)]));
        write(&cluster, 2, 1).await;
        let page = async || cluster.page(0, &query, &small, Quorum).await;
        while_reading(&cluster, page, async {
            assert!(page().await.expect("all live").next.is_none());
            cluster.write(0, Change::of(&cluster, 2, 2).row(2, 2).row(3, 3).done(), All).await.expect("all live");
            let pages = join_all((0..4).map(|_| page())).await;
            let is_first = |page: &Read| page.as_ref().is_ok_and(|page| page.rows == 2 && page.next.is_some());
            assert!(pages.iter().all(is_first));
            assert_eq!(coalesced(&cluster), 5);
        })
        .await;
    });
}
