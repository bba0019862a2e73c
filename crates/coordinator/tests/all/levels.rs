//! Consistency levels over nodes and datacenters, and the errors that clients get while replicas
//! are down, slow, unreachable or broken.

use crate::support;

use cluster::metadata::{Op, TabletsDefinition};
use cluster::tablets::TabletReplica;
use coordinator::Consistency::{self, *};
use coordinator::{CoordinatorError, WriteKind};
use replica::ReplicaError;
use smallvec::smallvec;
use support::{Change, Cluster, Fault, SHORT_TIMEOUT, Shape, TIMEOUT, key, table_id, with_cluster, within};

#[test]
fn writes_reach_all_replicas_and_reads_find_them_from_everywhere() {
    with_cluster("everywhere", Shape::DEFAULT, |cluster| async move {
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
    with_cluster("down", Shape::DEFAULT, |cluster| async move {
        cluster.set_alive(2, false);
        let unavailable =
            |consistency, required, alive| Err(CoordinatorError::Unavailable { consistency, required, alive });
        let change = |c: &Cluster| Change::of(c, 1, 5).row(1, 10).done();
        assert_eq!(cluster.write(0, change(&cluster), All).await, unavailable(All, 3, 2));
        assert_eq!(cluster.read(0, 1, All).await.map(|_| ()), unavailable(All, 3, 2));
        assert_eq!(cluster.read(0, 1, Quorum).await, Ok(vec![]), "a refused write is not applied");
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
fn errors_report_the_responses() {
    with_cluster("errors", Shape::DEFAULT, |cluster| async move {
        let change = |timestamp| Change::of(&cluster, 1, timestamp).row(1, 1).done();
        cluster.write(0, change(1), All).await.expect("all live");
        cluster.set_timeout(SHORT_TIMEOUT);
        cluster.break_node(2, Fault::LosesRequests);
        let timeout = |received, data_present| {
            Err(CoordinatorError::Timeout { consistency: All, required: 3, received, data_present })
        };
        assert_eq!(cluster.write(0, change(2), All).await, timeout(2, false));
        assert_eq!(cluster.read(0, 1, All).await.map(|_| ()), timeout(2, true));
        cluster.write(0, change(3), Quorum).await.expect("two answer");
        cluster.break_node(2, Fault::LosesAnswers);
        assert_eq!(cluster.write(0, change(4), All).await, timeout(2, false));
        cluster.set_timeout(TIMEOUT);
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

/// A failure is reported as soon as the level is unreachable. The number of responses by then does
/// not matter here.
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
    with_cluster("unreachable", Shape::DEFAULT, |cluster| async move {
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
        // The connection is lost midway: it is unknown whether the replica applied the write.
        cluster.break_node(2, Fault::LosesConnection);
        assert_eq!(cluster.write(0, change(4), All).await, timeout(2));
        assert!(matches!(
            cluster.read(0, 1, All).await,
            Err(CoordinatorError::Timeout { consistency: All, required: 3, .. })
        ));
        assert_eq!(cluster.read(0, 1, Quorum).await, Ok(vec![(1, 1)]));
        // One replica responds that it failed, another is unreachable: that is a failure, of one
        // replica.
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

/// A connection that broke while it was idle shows this only at the next request.
#[test]
fn a_read_survives_a_connection_that_broke_without_a_sign() {
    with_cluster("lost-connection", Shape::DEFAULT, |cluster| async move {
        cluster.write(0, Change::of(&cluster, 1, 1).row(1, 1).done(), All).await.expect("all live");
        cluster.break_node(2, Fault::LostConnection);
        assert_eq!(cluster.read(0, 1, All).await, Ok(vec![(1, 1)]));
        cluster.break_node(2, Fault::LostConnection);
        let write = cluster.write(0, Change::of(&cluster, 1, 2).row(1, 2).done(), All).await;
        assert!(matches!(write, Err(CoordinatorError::Timeout { received: 2, .. })), "it may be applied: {write:?}");
    });
}

/// The same error as on a single replica.
#[test]
fn a_write_to_a_table_that_replicas_do_not_have_fails_as_one_to_a_dropped_table() {
    with_cluster("dropped", Shape::DEFAULT, |cluster| async move {
        cluster.break_node(1, Fault::FailsWrites(ReplicaError::NoSuchTable));
        cluster.write(0, Change::of(&cluster, 1, 1).row(1, 1).done(), Quorum).await.expect("two have the table");
        cluster.break_node(2, Fault::FailsWrites(ReplicaError::NoSuchTable));
        let write = cluster.write(0, Change::of(&cluster, 1, 2).row(1, 2).done(), Quorum).await;
        assert_eq!(write, Err(CoordinatorError::NoSuchTable));
    });
}

#[test]
fn a_write_that_no_replica_got_is_unavailable() {
    let shape =
        Shape { copies: &[1], replication: &[("class", "NetworkTopologyStrategy"), ("dc1", "1")], ..Shape::DEFAULT };
    with_cluster("no-node", shape, |cluster| async move {
        cluster.break_node(1, Fault::Refused);
        let change = Change::of(&cluster, 1, 1).row(1, 1).done();
        let error = Err(CoordinatorError::Unavailable { consistency: One, required: 1, alive: 0 });
        assert_eq!(cluster.write(0, change, One).await, error);
    });
}

#[test]
fn a_replica_that_fails_is_replaced() {
    with_cluster("replaced", Shape::DEFAULT, |cluster| async move {
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
        ..Shape::DEFAULT
    };
    with_cluster("slow", shape, |cluster| async move {
        cluster.write(0, Change::of(&cluster, 1, 1).row(1, 1).done(), All).await.expect("all live");
        // The replica that answers faster is asked first. The machine decides which one that is.
        let speculative_reads = || cluster.nodes[0].coordinator.metrics().speculative_reads;
        for broken in [1, 2].into_iter().cycle().take(20) {
            cluster.break_node(broken, Fault::LosesRequests);
            assert_eq!(cluster.read(0, 1, One).await, Ok(vec![(1, 1)]));
            cluster.heal(broken);
            if speculative_reads() > 0 {
                break;
            }
        }
        assert!(speculative_reads() > 0, "every read began at the replica that answers");
    });
}

#[test]
fn levels_of_datacenters() {
    let shape = Shape {
        datacenters: &["dc1", "dc1", "dc2", "dc2"],
        copies: &[0, 1, 2, 3],
        replication: &[("class", "NetworkTopologyStrategy"), ("dc1", "2"), ("dc2", "2")],
        ..Shape::DEFAULT
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
    let shape = Shape { counter: true, ..Shape::DEFAULT };
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

/// A client may retry what is Overloaded, and the update of the other partition would count twice.
#[test]
fn a_counter_batch_that_is_refused_in_part_is_a_timeout() {
    let replication = &[("class", "NetworkTopologyStrategy"), ("dc1", "2")];
    let shape = Shape { counter: true, copies: &[1, 2], replication, ..Shape::DEFAULT };
    with_cluster("counters-in-part", shape, |cluster| async move {
        let refusal = || ReplicaError::Overloaded(replica::Overload::Counters);
        [1, 2].iter().for_each(|node| cluster.break_node(*node, Fault::FailsCounter(key(1), refusal())));
        let add = |partitions: &[i32]| {
            let updates = partitions.iter().map(|k| {
                let mutation = Change::of(&cluster, *k, 5).add(1, 10).done();
                let key = mutation.decorated_key();
                (mutation, key)
            });
            let (updates, options) = (updates.collect(), support::within(Quorum));
            let coordinator = cluster.nodes[0].coordinator.clone();
            async move { coordinator.write(updates, WriteKind::Counter, &options).await }
        };
        assert!(matches!(add(&[1]).await, Err(CoordinatorError::Overloaded(_))));
        assert!(matches!(add(&[1, 2]).await, Err(CoordinatorError::Timeout { required: 2, .. })));
        cluster.settle().await;
        for node in [1, 2] {
            assert_eq!(cluster.own(node, 2).await, [(1, 10)], "the update reaches all replicas");
        }
    });
}

#[test]
fn batches_go_to_each_replica_in_one_request() {
    with_cluster("batches", Shape::DEFAULT, |cluster| async move {
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

/// No replica has the write, so drivers may send it again.
#[test]
fn a_write_that_its_only_replica_refused_as_outdated_may_be_unavailable() {
    let replication = &[("class", "NetworkTopologyStrategy"), ("dc1", "1")];
    let shape = Shape { copies: &[0], replication, ..Shape::DEFAULT };
    with_cluster("levels-only-moved", shape, |cluster| async move {
        cluster.set_alive(1, false);
        let (node, moved_to) = (&cluster.nodes[0], cluster.nodes[1].host);
        let number = node.coordinator.metadata().number;
        node.replica.set_fence(number + 1);
        let to = || vec![TabletReplica { host: moved_to, shard: 0 }];
        let tablets = TabletsDefinition { table: table_id(), replicas: (0..4).map(|_| to()).collect() };
        let mut options = within(One);
        options.context.metadata_number = number;
        let mutations = smallvec![(Change::of(&cluster, 1, 5).row(1, 1).done(), key(1))];
        let write = node.coordinator.write(mutations, WriteKind::Simple, &options);
        let moves = cluster.change(0, vec![Op::PutTablets(tablets)]);
        let (written, ()) = futures_util::future::join(write, moves).await;
        assert_eq!(written, Err(CoordinatorError::Unavailable { consistency: One, required: 1, alive: 0 }));
    });
}
