//! Moving tablets: which replicas are written and read in each stage, and coordinators that have
//! outdated metadata.

use crate::support;

use cluster::metadata::{Op, TransitionDefinition};
use cluster::tablets::TabletReplica;
use cluster::tablets::transition::Stage;
use coordinator::Consistency::{self, *};
use coordinator::{CoordinatorError, WriteKind, answer};
use futures_util::FutureExt;
use replica::ReplicaError;
use replica::wire::{Header, decode_response, encode_request};
use replica::{ReplicaRequest, ReplicaResponse};
use rt::sync::Deadline;
use rt::time::Duration;
use std::rc::Rc;
use support::{Change, Cluster, SHORT_TIMEOUT, Shape, TIMEOUT, table_id, with_cluster};

const TABLETS: u32 = 4;

/// Four nodes. The replicas are on the first three; those of the third node move to the fourth.
fn four() -> Shape {
    Shape { datacenters: &["dc1", "dc1", "dc1", "dc1"], ..Shape::DEFAULT }
}

fn replicas(cluster: &Cluster, nodes: &[usize]) -> Vec<TabletReplica> {
    nodes.iter().map(|node| TabletReplica { host: cluster.nodes[*node].host, shard: 0 }).collect()
}

/// All tablets go from the third node to the fourth, and are at this stage.
fn at(cluster: &Cluster, stage: Stage) -> Vec<Op> {
    let transition = |tablet| TransitionDefinition {
        table: table_id(),
        tablet,
        kind: "migration".into(),
        stage: stage.name().into(),
        new_replicas: replicas(cluster, &[0, 1, 3]),
        session: None,
    };
    (0..TABLETS).map(|tablet| Op::PutTransition(Box::new(transition(tablet)))).collect()
}

fn ended(moved: bool) -> Vec<Op> {
    (0..TABLETS).map(|tablet| Op::EndTransition { table: table_id(), tablet, moved }).collect()
}

fn number(cluster: &Cluster, node: usize) -> u64 {
    cluster.nodes[node].coordinator.metadata().number
}

/// Waits until a node has removed a partition with its tablet, which no change waits for.
async fn left_by(cluster: &Cluster, k: i32, node: usize) {
    let is_left = async {
        while holders(cluster, k).await.contains(&node) {
            rt::time::sleep(Duration::from_millis(1)).await;
        }
    };
    rt::time::timeout(Duration::from_secs(60), is_left).await.expect("the data is removed with the tablet");
}

/// The nodes that have a partition, each read on its own.
async fn holders(cluster: &Cluster, k: i32) -> Vec<usize> {
    let mut holders = Vec::new();
    for node in 0..4 {
        if !cluster.own(node, k).await.is_empty() {
            holders.push(node);
        }
    }
    holders
}

/// Which nodes a read at ALL asks.
async fn asked(cluster: &Cluster, k: i32) -> Vec<usize> {
    let before = cluster.wire.sent.borrow().clone();
    cluster.read(0, k, All).await.expect("all live");
    let sent = cluster.wire.sent.borrow();
    let count = |node: usize, of: &std::collections::BTreeMap<_, u64>| of.get(&cluster.nodes[node].host).copied();
    (1..4).filter(|node| count(*node, &sent) != count(*node, &before)).collect()
}

#[test]
fn each_stage_writes_and_reads_where_it_should() {
    with_cluster("stages", four(), |cluster| async move {
        let stages = [
            (Stage::AllowWriteBothReadOld, vec![0, 1, 2], vec![1, 2]),
            (Stage::WriteBothReadOld, vec![0, 1, 2, 3], vec![1, 2]),
            (Stage::Streaming, vec![0, 1, 2, 3], vec![1, 2]),
            (Stage::WriteBothReadNew, vec![0, 1, 2, 3], vec![1, 3]),
            (Stage::UseNew, vec![0, 1, 3], vec![1, 3]),
            (Stage::Cleanup, vec![0, 1, 3], vec![1, 3]),
            (Stage::EndMigration, vec![0, 1, 3], vec![1, 3]),
        ];
        for (n, (stage, written, read)) in stages.into_iter().enumerate() {
            cluster.change_all(at(&cluster, stage)).await;
            let k = n as i32;
            cluster.write(0, Change::of(&cluster, k, 5).row(1, 1).done(), All).await.expect("all live");
            cluster.settle().await;
            assert_eq!(holders(&cluster, k).await, written, "{stage:?}");
            assert_eq!(asked(&cluster, k).await, read, "{stage:?}");
        }
        cluster.change_all(ended(true)).await;
        cluster.write(2, Change::of(&cluster, 50, 5).row(1, 1).done(), All).await.expect("all live");
        assert_eq!(cluster.read(2, 50, All).await, Ok(vec![(1, 1)]));
        assert_eq!(holders(&cluster, 50).await, [0, 1, 3]);
        for k in 0..7 {
            left_by(&cluster, k, 2).await;
        }
        let metadata = cluster.nodes[0].coordinator.metadata();
        let tablets = &metadata.table_by_id(table_id()).expect("it is there").tablets;
        assert_eq!(tablets.replicas(0), replicas(&cluster, &[0, 1, 3]));
        assert_eq!(tablets.transitions().count(), 0);
    });
}

#[test]
fn a_move_that_is_given_up_leaves_nothing_behind() {
    with_cluster("given_up", four(), |cluster| async move {
        for round in 0..2 {
            for stage in [Stage::AllowWriteBothReadOld, Stage::WriteBothReadOld] {
                cluster.change_all(at(&cluster, stage)).await;
            }
            let k = 10 + round;
            assert_eq!(holders(&cluster, 10).await, if round == 0 { vec![] } else { vec![0, 1, 2] });
            cluster.write(0, Change::of(&cluster, k, 5).row(1, 1).done(), All).await.expect("all live");
            cluster.settle().await;
            assert_eq!(holders(&cluster, k).await, [0, 1, 2, 3]);
            if round == 1 {
                cluster.nodes[3].engine.flush(None).await.expect("the disk works");
            }
            for stage in [Stage::CleanupTarget, Stage::RevertMigration] {
                cluster.change_all(at(&cluster, stage)).await;
            }
            cluster.change_all(ended(false)).await;
            left_by(&cluster, k, 3).await;
            assert_eq!(holders(&cluster, k).await, [0, 1, 2]);
            assert_eq!(cluster.read(3, k, All).await, Ok(vec![(1, 1)]));
        }
        // The tablet moves here again, and finds nothing of its former data.
        cluster.change_all(at(&cluster, Stage::WriteBothReadOld)).await;
        assert_eq!((holders(&cluster, 10).await, holders(&cluster, 11).await), (vec![0, 1, 2], vec![0, 1, 2]));
    });
}

#[test]
fn a_pending_replica_adds_one_to_what_a_write_needs() {
    with_cluster("pending", four(), |cluster| async move {
        cluster.change_all(at(&cluster, Stage::WriteBothReadOld)).await;
        let change = || Change::of(&cluster, 1, 5).row(1, 1).done();
        let unavailable =
            |consistency, required, alive| Err(CoordinatorError::Unavailable { consistency, required, alive });
        cluster.set_alive(2, false);
        cluster.write(0, change(), Quorum).await.expect("three of four");
        cluster.set_alive(3, false);
        assert_eq!(cluster.write(0, change(), Quorum).await, unavailable(Quorum, 3, 2));
        assert_eq!(cluster.write(0, change(), LocalQuorum).await, unavailable(LocalQuorum, 3, 2));
        assert_eq!(cluster.read(0, 1, Quorum).await, Ok(vec![(1, 1)]), "reads ask the old copies only");
    });
}

/// The replicas refuse the requests of one coordinator as outdated, until it has the newer
/// metadata.
async fn behind(cluster: &Rc<Cluster>) {
    for node in 1..4 {
        let fence = number(cluster, node) + 1;
        cluster.change(node, vec![Op::Fence(fence)]).await;
    }
}

fn catches_up(cluster: &Rc<Cluster>) -> rt::task::Task<()> {
    let cluster = cluster.clone();
    rt::task::spawn(async move {
        rt::time::sleep(Duration::from_millis(20)).await;
        let fence = number(&cluster, 0) + 1;
        cluster.change(0, vec![Op::Fence(fence)]).await;
    })
}

#[test]
fn a_coordinator_that_is_behind_is_refused_and_tries_again_when_it_knows_more() {
    let levels: [(Consistency, u32); 3] = [(Quorum, 2), (All, 3), (EachQuorum, 2)];
    with_cluster("fenced", four(), move |cluster| async move {
        for (n, (level, required)) in levels.into_iter().enumerate() {
            let late = CoordinatorError::Timeout { consistency: level, required, received: 0, data_present: false };
            let k = n as i32;
            behind(&cluster).await;
            cluster.set_timeout(SHORT_TIMEOUT);
            let refused = cluster.write(0, Change::of(&cluster, k, 5).row(1, 1).done(), level).await;
            assert_eq!(refused, Err(late.clone()));
            assert_eq!(holders(&cluster, k).await, [0], "only the node itself took it");
            let refused = cluster.read(0, k, level).await;
            assert_eq!(refused.unwrap_err(), late);
            cluster.set_timeout(TIMEOUT);
            let learns = catches_up(&cluster);
            cluster.write(0, Change::of(&cluster, k, 6).row(1, 2).done(), level).await.expect("it has caught up");
            learns.await.expect("it learns");
            cluster.settle().await;
            assert_eq!(holders(&cluster, k).await, [0, 1, 2]);
            behind(&cluster).await;
            let learns = catches_up(&cluster);
            assert_eq!(cluster.read(0, k, level).await, Ok(vec![(1, 2)]));
            learns.await.expect("it learns");
        }
    });
}

#[test]
fn a_write_that_was_refused_goes_where_the_copies_are_by_then() {
    with_cluster("rerouted", four(), |cluster| async move {
        // All nodes but the first have completed the move, which the first has missed.
        for stage in [Stage::WriteBothReadOld, Stage::WriteBothReadNew, Stage::UseNew] {
            cluster.change_all(at(&cluster, stage)).await;
        }
        let fence = number(&cluster, 1) + 1;
        let end: Vec<Op> = ended(true).into_iter().chain([Op::Fence(fence)]).collect();
        for node in 1..4 {
            cluster.change(node, end.clone()).await;
        }
        let learns = {
            let (cluster, end) = (cluster.clone(), end.clone());
            rt::task::spawn(async move {
                rt::time::sleep(Duration::from_millis(20)).await;
                cluster.change(0, end).await;
            })
        };
        cluster.write(0, Change::of(&cluster, 1, 5).row(1, 1).done(), All).await.expect("by the new map");
        learns.await.expect("it learns");
        assert_eq!(holders(&cluster, 1).await, [0, 1, 3]);
        assert_eq!(cluster.read(0, 1, All).await, Ok(vec![(1, 1)]));
    });
}

/// A node without a replica is excluded from a move, like a node that is down. It continues with
/// its metadata from before the fence, and has no effect.
#[test]
fn a_coordinator_excluded_from_a_move_has_no_effect() {
    let copies = |cluster: &Cluster, stage: Stage| {
        let transition = |tablet| TransitionDefinition {
            table: table_id(),
            tablet,
            kind: "migration".into(),
            stage: stage.name().into(),
            new_replicas: replicas(cluster, &[0, 3]),
            session: None,
        };
        (0..TABLETS).map(|tablet| Op::PutTransition(Box::new(transition(tablet)))).collect::<Vec<_>>()
    };
    let replication = &[("class", "NetworkTopologyStrategy"), ("dc1", "2")];
    let shape = Shape { copies: &[0, 1], replication, ..four() };
    with_cluster("left_out", shape, move |cluster| async move {
        let mut missed: Vec<Vec<Op>> = Vec::new();
        let stages = [
            Stage::AllowWriteBothReadOld,
            Stage::WriteBothReadOld,
            Stage::WriteBothReadNew,
            Stage::UseNew,
            Stage::Cleanup,
            Stage::EndMigration,
        ];
        let steps = stages.into_iter().map(|stage| copies(&cluster, stage)).chain([ended(true)]);
        for (at, step) in steps.enumerate() {
            // The fence is set first: it refuses requests that are routed by metadata from before
            // the stage that ends with this step.
            let fence = vec![Op::Fence(number(&cluster, 0))];
            for node in [0, 1, 3] {
                cluster.change(node, fence.clone()).await;
                cluster.change(node, step.clone()).await;
            }
            missed.extend([fence, step]);
            let k = at as i32;
            let change = Change::of(&cluster, k, 5).row(1, 1).done();
            let level = match at {
                0 => {
                    cluster.write(2, change, All).await.expect("it is one stage behind, and goes by what still holds");
                    continue;
                }
                1 => One,
                4 => All,
                _ => continue,
            };
            cluster.set_timeout(SHORT_TIMEOUT);
            let refused = cluster.write(2, change, level).await;
            assert!(matches!(refused, Err(CoordinatorError::Timeout { .. })), "{level:?}: {refused:?}");
            let refused = cluster.read(2, 0, level).await;
            assert!(matches!(refused, Err(CoordinatorError::Timeout { .. })), "{level:?}: {refused:?}");
            assert!(holders(&cluster, k).await.is_empty());
            cluster.set_timeout(TIMEOUT);
        }
        for change in missed {
            cluster.change(2, change).await;
        }
        cluster.write(2, Change::of(&cluster, 9, 5).row(1, 2).done(), All).await.expect("it has learned");
        assert_eq!(holders(&cluster, 9).await, [0, 3]);
    });
}

/// A wait for metadata to become unused also waits for requests that a replica admitted under it,
/// wherever they came from.
#[test]
fn a_replica_holds_the_metadata_until_it_responds() {
    with_cluster("held", four(), |cluster| async move {
        let (replica, metadata) = (&cluster.nodes[1].replica, &cluster.nodes[1].metadata);
        let before = number(&cluster, 1);
        let request = |k| {
            let mut context = support::within(One).context;
            context.metadata_number = before;
            encode_request(&Header::of(&context), &ReplicaRequest::write(Change::of(&cluster, k, 5).row(1, 1).done()))
        };
        let mut answering = std::pin::pin!(answer(replica, metadata, request(1), Deadline::after(TIMEOUT)));
        assert!(answering.as_mut().now_or_never().is_none(), "it is being written");
        let fence = before + 1;
        cluster.change(1, vec![Op::Fence(fence)]).await;
        let soon = Deadline::after(Duration::from_millis(100));
        assert!(!metadata.wait_until_unused(fence, soon).await, "it was admitted under earlier metadata");
        let written = decode_response(answering.await.expect("it was admitted")).expect("understood");
        assert!(matches!(written.result, Ok(ReplicaResponse::Written)), "{:?}", written.result);
        assert!(metadata.wait_until_unused(fence, Deadline::after(TIMEOUT)).await);
        let refused = answer(replica, metadata, request(2), Deadline::after(TIMEOUT)).await.expect("asked");
        let refused = decode_response(refused).expect("understood");
        assert!(matches!(refused.result, Err(ReplicaError::Stale(_))), "{:?}", refused.result);
        assert_eq!((holders(&cluster, 1).await, holders(&cluster, 2).await), (vec![1], vec![]));
    });
}

#[test]
fn counters_count_once_when_the_coordinator_is_behind() {
    let shape = Shape { counter: true, ..four() };
    with_cluster("counted", shape, |cluster| async move {
        for n in 1..=3 {
            behind(&cluster).await;
            let learns = catches_up(&cluster);
            let add = Change::of(&cluster, 1, 5).add(1, 10).done();
            cluster.write_as(0, add, WriteKind::Counter, All).await.expect("it has caught up");
            learns.await.expect("it learns");
            cluster.settle().await;
            assert_eq!(cluster.read(2, 1, All).await, Ok(vec![(1, 10 * n)]));
        }
    });
}

#[test]
fn a_scan_meets_tablets_that_move_while_it_runs() {
    with_cluster("scanned", four(), |cluster| async move {
        use coordinator::{PageRequest, QueryPartitions};
        use model::range::PartitionRange;
        for stage in [Stage::WriteBothReadOld, Stage::Streaming] {
            cluster.change_all(at(&cluster, stage)).await;
        }
        for k in 0..40 {
            cluster.write(0, Change::of(&cluster, k, 5).row(1, k).done(), All).await.expect("all live");
        }
        // The query was planned by this map; each page finds another stage.
        let query = cluster.query(QueryPartitions::Range(PartitionRange::FULL));
        let mut page = PageRequest { size: Some(10), ..PageRequest::default() };
        let mut found = Vec::new();
        let stages = [Stage::WriteBothReadNew, Stage::UseNew, Stage::EndMigration];
        let mut steps = stages.map(|stage| at(&cluster, stage)).into_iter().chain([ended(true)]);
        loop {
            if let Some(step) = steps.next() {
                let fence = number(&cluster, 0);
                cluster.change_all(step.into_iter().chain([Op::Fence(fence)]).collect()).await;
            }
            let read = cluster.nodes[0].coordinator.read(&query, &page, &support::within(Quorum)).await;
            let read = read.expect("all live");
            found.extend(support::rows(&read).into_iter().map(|(k, ..)| k));
            let Some(next) = read.next else { break };
            page.state = Some(next);
        }
        found.sort_unstable();
        assert_eq!(found, (0..40).collect::<Vec<_>>());
    });
}
