//! Coordinators report to owners what comes to them: the limit holds for all of them together.

use crate::support::{Change, Cluster, Shape, key, with_cluster};
use cluster::metadata::Op;
use cluster::topology::{Node, NodeState, features};
use coordinator::Consistency::*;
use coordinator::{CoordinatorError, answer_report};
use model::id::HostId;
use replica::LimitKind::Read;
use replica::arrivals::Origin;
use replica::rate_limit::Admission;
use rt::time::Duration;

const READS: &[(&str, &str)] = &[("max_reads_per_second", "10")];
/// Node 0 has no replica.
const OUTSIDE: Shape =
    Shape { datacenters: &["dc1", "dc1", "dc1", "dc1"], copies: &[1, 2, 3], rate_limits: READS, ..Shape::DEFAULT };
const HOT: i32 = 1;
/// So many operations come to one node.
const MANY: u64 = 4_000;
/// Within this time, counts do not decay much, and no report expires.
const SOON: Duration = Duration::from_millis(700);

fn member(host: HostId, n: u8, features: Vec<String>) -> Op {
    let address = [127, 0, 0, n].into();
    Op::PutNode(Box::new(Node {
        host,
        state: NodeState::Normal,
        rpc_address: address,
        listen_address: address,
        broadcast_address: address,
        native_port: 9042,
        shard_aware_port: 19042,
        storage_port: 7000,
        datacenter: "dc1".into(),
        rack: format!("rack{n}"),
        shards: 1,
        release_version: "4.1.7".into(),
        features,
    }))
}

/// Makes all nodes members for each other.
async fn know_each_other(cluster: &Cluster) {
    let hosts = cluster.nodes.iter().map(|node| node.host);
    let members = hosts.enumerate().map(|(n, host)| member(host, n as u8 + 1, features::supported()));
    cluster.change_all(members.collect()).await;
}

/// Lets many reads of the hot partition arrive at a node; how many it accepts.
fn arrive(cluster: &Cluster, node: usize, owns: bool) -> usize {
    let schema = cluster.schema();
    let arrived = (0..MANY).map(|n| {
        let draw = (n as u32).wrapping_mul(0x9e37_79b9);
        cluster.nodes[node].replica.limit(key(HOT).token, &schema, Read, draw, owns, None)
    });
    arrived.filter(|decision| *decision == Ok(Admission::Accepted)).count()
}

/// Reads the hot partition from a node; how many reads the coordinator and the replicas refused.
async fn refused(cluster: &Cluster, node: usize, reads: usize) -> [usize; 2] {
    let mut refused = [0, 0];
    for _ in 0..reads {
        match cluster.read(node, HOT, One).await {
            Ok(_) => {}
            Err(CoordinatorError::RateLimited { by_coordinator, .. }) => refused[usize::from(!by_coordinator)] += 1,
            Err(error) => panic!("{error}"),
        }
    }
    refused
}

/// Repeats a test that took too long, on a busy machine.
async fn in_time(mut test: impl AsyncFnMut()) {
    for _ in 0..50 {
        let began = rt::time::now();
        test().await;
        if began.elapsed() < SOON {
            return;
        }
        // What was counted is forgotten.
        rt::time::sleep(Duration::from_secs(12)).await;
    }
    panic!("the machine is too busy");
}

#[test]
fn owners_decide_by_what_comes_to_all_of_them() {
    with_cluster("limit_reports", Shape { rate_limits: READS, ..Shape::DEFAULT }, |cluster| async move {
        know_each_other(&cluster).await;
        let mut found = Vec::new();
        in_time(async || {
            arrive(&cluster, 0, true);
            let alone = refused(&cluster, 1, 5).await;
            cluster.nodes[0].coordinator.report_arrivals().await;
            found = vec![alone, refused(&cluster, 1, 50).await];
        })
        .await;
        assert_eq!(found[0], [0, 0], "node 1 does not know what came to node 0");
        assert!(found[1][0] > 40 && found[1][1] == 0, "{found:?}");
    });
}

#[test]
fn reports_let_a_coordinator_without_a_replica_refuse() {
    with_cluster("limit_learns", OUTSIDE, |cluster| async move {
        know_each_other(&cluster).await;
        let mut found = Vec::new();
        in_time(async || {
            arrive(&cluster, 1, true);
            cluster.nodes[1].coordinator.report_arrivals().await;
            let by_replicas = refused(&cluster, 0, 20).await;
            let sent = || cluster.wire.sent.borrow().values().sum::<u64>();
            // One of the owners does not answer.
            cluster.set_alive(3, false);
            cluster.nodes[0].coordinator.report_arrivals().await;
            cluster.set_alive(3, true);
            let before = sent();
            let alone = refused(&cluster, 0, 50).await;
            found = vec![by_replicas, alone, [(sent() - before) as usize, 50]];
        })
        .await;
        assert!(found[0][1] > 10 && found[0][0] == 0, "{found:?}");
        assert!(found[1][0] > 40 && found[1][1] == 0, "{found:?}");
        assert_eq!(found[2][0] + found[1][0], 50, "only what is accepted is sent");
    });
}

#[test]
fn nothing_is_reported_below_the_limit_or_alone() {
    with_cluster("limit_quiet", OUTSIDE, |cluster| async move {
        arrive(&cluster, 1, true);
        cluster.nodes[1].coordinator.report_arrivals().await;
        assert_eq!(*cluster.wire.reports.borrow(), 0, "the node is the only member that it knows");
        know_each_other(&cluster).await;
        cluster.nodes[2].coordinator.report_arrivals().await;
        assert_eq!(*cluster.wire.reports.borrow(), 0, "nothing has come to it");
        arrive(&cluster, 2, true);
        cluster.nodes[2].coordinator.report_arrivals().await;
        assert_eq!(*cluster.wire.reports.borrow(), 2, "one to each other owner");
    });
}

#[test]
fn owners_report_the_bytes_that_they_read() {
    let few: &[(&str, &str)] = &[("max_read_kb_per_second", "1")];
    with_cluster("limit_report_bytes", Shape { rate_limits: few, ..Shape::DEFAULT }, |cluster| async move {
        know_each_other(&cluster).await;
        for node in 0..3 {
            let large = (0..1_000).fold(Change::of(&cluster, HOT, 5), |change, c| change.row(c, c)).done();
            cluster.put(node, large).await;
        }
        cluster.read(0, HOT, Quorum).await.expect("nothing was read yet");
        cluster.nodes[0].coordinator.report_arrivals().await;
        for node in 0..3 {
            let read = cluster.read(node, HOT, One).await;
            assert!(matches!(read, Err(CoordinatorError::RateLimited { .. })), "{node}: {read:?}");
        }
        let reports = *cluster.wire.reports.borrow();
        assert_eq!(reports, 2, "one to each other owner");
        cluster.nodes[0].coordinator.report_arrivals().await;
        assert_eq!(*cluster.wire.reports.borrow(), reports, "bytes are reported once");
    });
}

#[test]
fn a_report_of_garbage_is_refused() {
    with_cluster("limit_garbage", Shape { rate_limits: READS, ..Shape::DEFAULT }, |cluster| async move {
        let replica = &cluster.nodes[0].replica;
        let from = Origin { host: cluster.nodes[1].host, shard: 0 };
        for garbage in [&b""[..], b"\x01", b"\x01\x04\0\0\0\xff\xff\xff\xff", &[7; 500]] {
            assert!(answer_report(replica, from, &bytes::Bytes::copy_from_slice(garbage)).is_err());
        }
        assert_eq!(refused(&cluster, 0, 5).await, [0, 0]);
    });
}
