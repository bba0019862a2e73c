//! TRUNCATE by epochs: a replica that has the new metadata refuses requests that are routed by
//! earlier ones, and the coordinator repeats them with newer metadata.

use crate::support;

use cluster::metadata::Op;
use coordinator::hints::HintsMetrics;
use coordinator::{Consistency, CoordinatorError, PageRequest, WriteKind};
use replica::{Context, Mutations, ReplicaError, ReplicaRequest, ReplicaResponse};
use std::rc::Rc;
use std::time::Duration;
use support::{Change, Cluster, SHORT_TIMEOUT, Shape, TIMEOUT, table_id, with_cluster};

use Consistency::{All, One, Quorum};

fn number(cluster: &Cluster, node: usize) -> u64 {
    cluster.nodes[node].coordinator.metadata().number
}

/// The change that truncates the table, for nodes that all have the same metadata.
fn truncation(cluster: &Cluster) -> Vec<Op> {
    vec![Op::Truncate { table: table_id(), epoch: number(cluster, 0) + 1 }]
}

/// The nodes that have a partition, each read on its own.
async fn holders(cluster: &Cluster, k: i32) -> Vec<usize> {
    let mut holders = Vec::new();
    for node in 0..3 {
        if !cluster.own(node, k).await.is_empty() {
            holders.push(node);
        }
    }
    holders
}

/// A node applies the change after a while.
fn follows(cluster: &Rc<Cluster>, node: usize, change: &[Op]) -> rt::task::Task<()> {
    let (cluster, change) = (cluster.clone(), change.to_vec());
    rt::task::spawn(async move {
        rt::time::sleep(Duration::from_millis(20)).await;
        cluster.change(node, change).await;
    })
}

#[test]
fn a_concurrent_read_repairs_no_replica() {
    with_cluster("truncated-repair", Shape::DEFAULT, |cluster| async move {
        for k in 0..4 {
            cluster.put(2, Change::of(&cluster, k, 5).row(1, 1).done()).await;
        }
        let truncation = truncation(&cluster);
        cluster.change(0, truncation.clone()).await;
        cluster.set_timeout(SHORT_TIMEOUT);
        let refused = cluster.read(2, 1, All).await;
        assert!(matches!(refused, Err(CoordinatorError::Timeout { .. })), "{refused:?}");
        assert_eq!(cluster.read(2, 2, Quorum).await, Ok(vec![(1, 1)]), "two of them do not know of it yet");
        assert_eq!(holders(&cluster, 2).await, [1, 2], "only the one that does not know of it was repaired");
        cluster.set_timeout(TIMEOUT);
        cluster.change(1, truncation.clone()).await;
        let learns = follows(&cluster, 2, &truncation);
        assert_eq!(cluster.read(2, 3, All).await, Ok(vec![]), "by newer metadata it is gone");
        learns.await.expect("it learns");
        for k in 0..4 {
            assert_eq!((holders(&cluster, k).await, cluster.read(0, k, All).await), (vec![], Ok(vec![])));
        }
        cluster.write(1, Change::of(&cluster, 1, 1).row(1, 2).done(), All).await.expect("all have followed");
        assert_eq!(cluster.read(0, 1, All).await, Ok(vec![(1, 2)]));
    });
}

#[test]
fn an_earlier_write_is_repeated_or_void() {
    with_cluster("truncated-write", Shape::DEFAULT, |cluster| async move {
        let truncation = truncation(&cluster);
        for node in [0, 1] {
            cluster.change(node, truncation.clone()).await;
        }
        cluster.set_timeout(SHORT_TIMEOUT);
        let refused = cluster.write(2, Change::of(&cluster, 1, 5).row(1, 1).done(), Quorum).await;
        assert!(matches!(refused, Err(CoordinatorError::Timeout { .. })), "{refused:?}");
        cluster.set_timeout(TIMEOUT);
        cluster.settle().await;
        assert_eq!(holders(&cluster, 1).await, [2], "only the node itself took it");
        let learns = follows(&cluster, 2, &truncation);
        cluster.write(2, Change::of(&cluster, 2, 5).row(1, 1).done(), Quorum).await.expect("by newer metadata");
        learns.await.expect("it learns");
        cluster.settle().await;
        assert_eq!((holders(&cluster, 1).await, holders(&cluster, 2).await), (vec![], vec![0, 1, 2]));
    });
}

/// Requests to another table continue; so do pages of a query that began before.
#[test]
fn a_query_that_began_before_reads_the_new_contents() {
    with_cluster("truncated-page", Shape::DEFAULT, |cluster| async move {
        for c in 0..10 {
            cluster.write(0, Change::of(&cluster, 1, 5).row(c, c).done(), All).await.expect("all live");
        }
        let query = cluster.query(coordinator::QueryPartitions::Keys(smallvec::smallvec![support::key(1)]));
        let first = PageRequest { size: Some(4), ..PageRequest::default() };
        let page = cluster.page(0, &query, &first, Quorum).await.expect("all live");
        assert_eq!(page.rows, 4);
        cluster.change_all(truncation(&cluster)).await;
        cluster.write(0, Change::of(&cluster, 1, 1).row(8, 80).done(), All).await.expect("all live");
        let next = PageRequest { size: Some(4), state: page.next, ..PageRequest::default() };
        let page = cluster.page(0, &query, &next, Quorum).await.expect("all live");
        assert_eq!(support::rows(&page), [(1, 8, 80)]);
    });
}

#[test]
fn hints_from_before_are_dropped() {
    with_cluster("truncated-hints", Shape::DEFAULT, |cluster| async move {
        let hints = cluster.keep_hints(0).await;
        let (before, target) = (number(&cluster, 0), cluster.nodes[1].host);
        let change = |k| Change::of(&cluster, k, 5).row(1, 1).done();
        hints.store(target, &change(1), 0, None).await.expect("there is room");
        hints.store(target, &change(2), before, None).await.expect("there is room");
        cluster.change_all(truncation(&cluster)).await;
        hints.store(target, &change(3), before + 1, None).await.expect("there is room");
        cluster.nodes[0].coordinator.replay_hints().await;
        let HintsMetrics { sent, dropped, .. } = hints.metrics();
        assert_eq!((sent, dropped), (1, 2));
        let found = [holders(&cluster, 1).await, holders(&cluster, 2).await, holders(&cluster, 3).await];
        assert_eq!(found, [vec![], vec![], vec![1]]);
    });
}

/// A replica without the new metadata has added to a discarded counter. Its sum does not return
/// anywhere.
#[test]
fn an_earlier_count_does_not_return() {
    let shape = Shape { counter: true, ..Shape::DEFAULT };
    with_cluster("truncated-counter", shape, |cluster| async move {
        let add = |count| Change::of(&cluster, 1, 5).add(1, count).done();
        cluster.write_as(0, add(10), WriteKind::Counter, All).await.expect("all live");
        let truncation = truncation(&cluster);
        for node in [1, 2] {
            cluster.change(node, truncation.clone()).await;
        }
        let learns = follows(&cluster, 0, &truncation);
        cluster
            .write_as(0, add(1), WriteKind::Counter, All)
            .await
            .expect("it was counted, and truncated with the rest");
        learns.await.expect("it learns");
        cluster.settle().await;
        assert_eq!((holders(&cluster, 1).await, cluster.read(0, 1, All).await), (vec![], Ok(vec![])));
        cluster.write_as(2, add(3), WriteKind::Counter, All).await.expect("all have followed");
        assert_eq!(cluster.read(1, 1, All).await, Ok(vec![(1, 3)]));
    });
}

/// A replica refuses by the table's epoch, and nothing but requests of that table.
#[test]
fn a_replica_refuses_requests_older_than_the_epoch() {
    with_cluster("truncated-refused", Shape::DEFAULT, |cluster| async move {
        let before = number(&cluster, 0);
        cluster.change(0, truncation(&cluster)).await;
        let ask = async |number, request: ReplicaRequest| {
            let context = Context { metadata_number: number, ..support::within(One).context };
            cluster.nodes[0].replica.perform(&request, &context).await
        };
        let mutation = Change::of(&cluster, 1, 5).row(1, 1).done();
        let two = || Mutations::from_elem((mutation.clone(), mutation.decorated_key()), 2);
        let requests = || [ReplicaRequest::write(mutation.clone()), ReplicaRequest::Write(two())];
        for request in requests() {
            let refused = ask(before, request).await;
            assert!(matches!(refused, Err(ReplicaError::Stale(_))), "{refused:?}");
        }
        for request in requests() {
            let written = ask(before + 1, request).await;
            assert!(matches!(written, Ok(ReplicaResponse::Written)), "{written:?}");
        }
    });
}
