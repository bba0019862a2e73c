//! Read repairs and hints while tablets move. They reach the replicas that are read now, and the
//! replicas that are read after the move succeeded or was rolled back.

use crate::support::{Change, Cluster, Fault, SHORT_TIMEOUT, Shape, table_id, with_cluster};
use cluster::metadata::{Op, TransitionDefinition};
use cluster::tablets::TabletReplica;
use cluster::tablets::transition::Stage;
use coordinator::Consistency::*;
use coordinator::CoordinatorError;
use replica::ReplicaError;

const TABLETS: u32 = 4;

/// Four nodes. The replicas are on the first three.
fn four() -> Shape {
    Shape { datacenters: &["dc1", "dc1", "dc1", "dc1"], ..Shape::DEFAULT }
}

/// All tablets move to these nodes, and are in this stage.
async fn at(cluster: &Cluster, stage: Stage, nodes: &[usize]) {
    let copy = |node: &usize| TabletReplica { host: cluster.nodes[*node].host, shard: 0 };
    let transition = |tablet| TransitionDefinition {
        table: table_id(),
        tablet,
        kind: "migration".into(),
        stage: stage.name().into(),
        new_replicas: nodes.iter().map(copy).collect(),
        session: None,
    };
    let put = |tablet| Op::PutTransition(Box::new(transition(tablet)));
    cluster.change_all((0..TABLETS).map(put).collect()).await;
}

async fn put(cluster: &Cluster, node: usize, k: i32) {
    cluster.put(node, Change::of(cluster, k, 5).row(1, 7).done()).await;
}

const SHOWN: [(i32, i64); 1] = [(1, 7)];

#[test]
fn repairs_during_a_move_hold_after_it() {
    with_cluster("repaired_before", four(), |cluster| async move {
        at(&cluster, Stage::Streaming, &[0, 1, 3]).await;
        put(&cluster, 0, 1).await;
        cluster.set_alive(1, false);
        assert_eq!(cluster.read(0, 1, Quorum).await, Ok(SHOWN.to_vec()));
        assert_eq!((cluster.own(2, 1).await, cluster.own(3, 1).await), (SHOWN.to_vec(), SHOWN.to_vec()));
        cluster.set_alive(1, true);
        at(&cluster, Stage::WriteBothReadNew, &[0, 1, 3]).await;
        cluster.set_alive(0, false);
        assert_eq!(cluster.read(1, 1, Quorum).await, Ok(SHOWN.to_vec()), "without the replica that had it first");
    });
}

#[test]
fn repairs_during_a_move_hold_after_it_is_given_up() {
    with_cluster("repaired_after", four(), |cluster| async move {
        at(&cluster, Stage::WriteBothReadNew, &[0, 1, 3]).await;
        put(&cluster, 0, 1).await;
        cluster.set_alive(1, false);
        assert_eq!(cluster.read(0, 1, Quorum).await, Ok(SHOWN.to_vec()));
        cluster.set_alive(1, true);
        at(&cluster, Stage::WriteBothReadOldFallbackCleanup, &[0, 1, 3]).await;
        cluster.set_alive(0, false);
        assert_eq!(cluster.read(1, 1, Quorum).await, Ok(SHOWN.to_vec()));
    });
}

/// The coordinator's own replica is the one that leaves. It is asked first, because it is the
/// nearest.
#[test]
fn a_leaving_replica_counts_only_if_its_successor_is_repaired_too() {
    with_cluster("unread", four(), |cluster| async move {
        at(&cluster, Stage::Streaming, &[0, 1, 3]).await;
        put(&cluster, 0, 1).await;
        assert_eq!(cluster.read(2, 1, Quorum).await, Ok(SHOWN.to_vec()));
        cluster.settle().await;
        assert_eq!(
            (cluster.own(3, 1).await, cluster.own(1, 1).await),
            (SHOWN.to_vec(), vec![]),
            "there is no need of another"
        );
        for (k, fault) in [(2, Fault::Refused), (3, Fault::LosesRequests)] {
            put(&cluster, 0, k).await;
            cluster.break_node(3, fault.clone());
            assert_eq!(cluster.read(2, k, Quorum).await, Ok(SHOWN.to_vec()), "another is asked: {fault:?}");
            assert_eq!(cluster.own(1, k).await, SHOWN, "{fault:?}");
        }
        put(&cluster, 0, 4).await;
        cluster.set_alive(1, false);
        cluster.set_timeout(SHORT_TIMEOUT);
        let read = cluster.read(2, 4, Quorum).await;
        assert!(matches!(read, Err(CoordinatorError::Timeout { .. })), "there is no other: {read:?}");
        cluster.break_node(3, Fault::Refused);
        put(&cluster, 0, 5).await;
        let read = cluster.read(2, 5, Quorum).await;
        assert!(matches!(read, Err(CoordinatorError::Unavailable { .. })), "the replica is unreachable: {read:?}");
        assert_eq!(
            cluster.read(2, 1, Quorum).await,
            Ok(SHOWN.to_vec()),
            "a replica that lacks nothing needs no repair"
        );
    });
}

#[test]
fn remaining_replicas_are_asked_before_the_leaving_one() {
    with_cluster("staying", four(), |cluster| async move {
        let asked = |node: usize| cluster.wire.sent.borrow().get(&cluster.nodes[node].host).copied().unwrap_or(0);
        assert_eq!(cluster.read(3, 1, Quorum).await, Ok(vec![]));
        assert_eq!([asked(0), asked(1), asked(2)], [1, 1, 0]);
        at(&cluster, Stage::Streaming, &[3, 1, 2]).await;
        assert_eq!(cluster.read(3, 1, Quorum).await, Ok(vec![]));
        assert_eq!([asked(0), asked(1), asked(2)], [1, 2, 1]);
    });
}

/// Without any move: a replica that returned its data and refuses its repair is replaced.
#[test]
fn a_replica_that_misses_a_repair_is_replaced() {
    with_cluster("replaced", Shape::DEFAULT, |cluster| async move {
        put(&cluster, 0, 1).await;
        cluster.break_node(1, Fault::FailsWrites(ReplicaError::Storage("the disk is full".into())));
        assert_eq!(cluster.read(0, 1, Quorum).await, Ok(SHOWN.to_vec()));
        assert_eq!((cluster.own(1, 1).await, cluster.own(2, 1).await), (vec![], SHOWN.to_vec()));
    });
}

#[test]
fn a_hint_goes_to_the_copy_that_is_being_made_as_well() {
    with_cluster("hinted", four(), |cluster| async move {
        let hints = cluster.keep_hints(0).await;
        cluster.set_alive(2, false);
        cluster.write(0, Change::of(&cluster, 1, 5).row(1, 7).done(), Quorum).await.expect("two live");
        while hints.metrics().written < 1 {
            rt::task::yield_now().await;
        }
        at(&cluster, Stage::Streaming, &[0, 1, 3]).await;
        cluster.set_alive(2, true);
        cluster.nodes[0].coordinator.replay_hints().await;
        assert_eq!((cluster.own(2, 1).await, cluster.own(3, 1).await), (SHOWN.to_vec(), SHOWN.to_vec()));
    });
}
