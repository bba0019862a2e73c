//! Hints: writes are kept for replicas that are down, and replayed to them.

use crate::support::{Change, Cluster, Fault, SHORT_TIMEOUT, Shape, TIMEOUT, table_id, with_cluster};
use cluster::NodeState;
use cluster::metadata::{Op, own_node};
use coordinator::Consistency::*;
use coordinator::CoordinatorError;
use coordinator::hints::{Cause, Hints, HintsConfig, HintsSettings, KeptFor, Store, Witnessed};
use coordinator::resync::{self, ResyncShards};
use model::id::HostId;
use replica::{Overload, ReplicaError};
use rt::shard::PerShard;
use rt::sync::watch;
use std::rc::Rc;
use std::time::Duration;

#[test]
fn hints_replay_missed_writes() {
    with_cluster("hints", Shape::DEFAULT, |cluster| async move {
        let hints = cluster.keep_hints(0).await;
        cluster.set_alive(2, false);
        for k in 0..20 {
            cluster.write(0, Change::of(&cluster, k, 5).row(1, k).done(), Quorum).await.expect("two live");
        }
        cluster.settle().await;
        while hints.metrics().written < 20 {
            rt::task::yield_now().await;
        }
        cluster.nodes[0].coordinator.replay_hints().await;
        assert_eq!(hints.metrics().sent, 0, "it is still down");
        cluster.set_alive(2, true);
        cluster.break_node(2, Fault::LosesRequests);
        cluster.break_node(2, Fault::Refused);
        cluster.nodes[0].coordinator.replay_hints().await;
        assert_eq!((hints.metrics().sent, hints.targets().len()), (0, 1), "it is up and does not answer");
        cluster.heal(2);
        cluster.nodes[0].coordinator.replay_hints().await;
        assert_eq!((hints.metrics().sent, hints.metrics().bytes, hints.targets().len()), (20, 0, 0));
        for k in 0..20 {
            assert_eq!(cluster.own(2, k).await, [(1, i64::from(k))]);
        }
    });
}

#[test]
fn a_write_is_acknowledged_after_hints_for_nodes_that_are_down_are_stored() {
    with_cluster("stored", Shape::DEFAULT, |cluster| async move {
        let hints = cluster.keep_hints(0).await;
        let far = cluster.nodes[2].host;
        let notes = cluster.directory.join("hint-notes-0");
        let write = async |k: i32| cluster.write(0, Change::of(&cluster, k, 5).row(1, 7).done(), Quorum).await;
        cluster.set_alive(2, false);
        // The first hint begins a file.
        for k in 1..4 {
            write(k).await.expect("two live");
            assert_eq!(hints.metrics().written, k as u64);
        }
        // No more hints are kept: the first note is written.
        hints.set(HintsSettings { window: Duration::ZERO, ..HintsSettings::default() });
        write(4).await.expect("two live");
        assert_eq!((noted(&hints), notes.join("0.missed").exists()), (vec![(far, Cause::WindowOver)], true));
    });
    with_cluster("stored-late", Shape::DEFAULT, |cluster| async move {
        let (hints, release) = stalled_hints(&cluster, 1 << 20).await;
        cluster.set_alive(2, false);
        cluster.set_timeout(SHORT_TIMEOUT);
        let write = async |k: i32| cluster.write(0, Change::of(&cluster, k, 5).row(1, 7).done(), Quorum).await;
        let timeout = CoordinatorError::Timeout { consistency: Quorum, required: 2, received: 1, data_present: false };
        assert_eq!((write(1).await, hints.metrics().written), (Err(timeout), 0));
        cluster.set_timeout(TIMEOUT);
        release.send_replace(true);
        write(2).await.expect("two live");
        assert_eq!(hints.metrics().written, 2);
    });
    with_cluster("stored-own", Shape::DEFAULT, |cluster| async move {
        let hints = cluster.keep_hints(0).await;
        cluster.nodes[0].engine.stop().await;
        cluster.write(0, Change::of(&cluster, 1, 5).row(1, 7).done(), Quorum).await.expect("two take it");
        let note = cluster.directory.join("hint-notes-0/0.missed");
        assert_eq!((noted(&hints), note.exists()), (vec![(cluster.nodes[0].host, Cause::Refused)], true));
    });
}

/// Hints of the first node whose directory cannot be written until `true` is sent. At most
/// `max_bytes` of them are kept.
async fn stalled_hints(cluster: &Cluster, max_bytes: u64) -> (Rc<Hints>, watch::Sender<bool>) {
    let (release, released) = watch::channel(false);
    let store: Store = Box::new(move |_| {
        let mut released = released.clone();
        Box::pin(async move {
            let _ = released.wait_for(|released| *released).await;
            Ok(())
        })
    });
    let directory = |name: &str| cluster.directory.join(name);
    let config = HintsConfig::new(directory("stalled"), directory("stalled-notes"), max_bytes);
    let hints = Hints::open_witnessed(config, 0, 1, Witnessed::new(), store).await.expect("hints open");
    cluster.nodes[0].coordinator.set_hints(hints.clone());
    (hints, release)
}

#[test]
fn missed_writes_of_a_dropped_table_are_removed() {
    with_cluster("dropped", Shape::DEFAULT, |cluster| async move {
        let hints = cluster.keep_hints(0).await;
        let far = cluster.nodes[2].host;
        hints.note_missed(far, table_id(), Cause::Full).await.expect("the disk works");
        cluster.nodes[0].coordinator.replay_hints().await;
        assert_eq!(noted(&hints), [(far, Cause::Full)]);
        cluster.change(0, vec![Op::DropTable { keyspace: "ks".into(), name: "t".into() }]).await;
        cluster.nodes[0].coordinator.replay_hints().await;
        assert_eq!(noted(&hints), []);
        let config =
            HintsConfig::new(cluster.directory.join("hints-0"), cluster.directory.join("hint-notes-0"), 1 << 20);
        assert_eq!(noted(&Hints::open(config, 0, 1).await.expect("hints open")), [], "also after a restart");
    });
}

/// The disk of the hints stalls while a node is down: the hints that wait in memory are bounded,
/// and writes that need no hint are accepted.
#[test]
fn writes_are_refused_while_too_many_hints_wait_for_the_disk() {
    with_cluster("stalled", Shape::DEFAULT, |cluster| async move {
        let (hints, release) = stalled_hints(&cluster, 1 << 30).await;
        // The hints are never stored in time.
        let short = Duration::from_millis(100);
        cluster.set_timeout(short);
        // About 600 KiB.
        let write = async |k: i32| {
            let change = (0..10_000).fold(Change::of(&cluster, k, 5), |change, c| change.row(c, 7));
            cluster.write(0, change.done(), Quorum).await
        };
        cluster.set_alive(2, false);
        let overloaded = Err(CoordinatorError::Overloaded(Overload::Writes));
        let mut sent = 0;
        while write(sent).await != overloaded {
            sent += 1;
            assert!(sent < 100, "the hints that wait have no bound");
        }
        assert!(sent > 5 && hints.pending(cluster.nodes[2].host) < 12 << 20, "{sent} writes");
        cluster.set_timeout(TIMEOUT);
        cluster.set_alive(2, true);
        write(1000).await.expect("no hint is needed");
        cluster.set_alive(2, false);
        assert_eq!(write(1001).await, overloaded);
        hints.set(HintsSettings { kept_for: KeptFor::NoNode, ..HintsSettings::default() });
        write(1003).await.expect("its datacenter gets no hints");
        hints.set(HintsSettings { window: Duration::ZERO, ..HintsSettings::default() });
        cluster.set_timeout(short);
        assert_ne!(write(1004).await, overloaded, "a node that is down for so long gets no hints");
        hints.set(HintsSettings::default());
        cluster.set_timeout(TIMEOUT);
        assert_eq!(write(1001).await, overloaded);
        release.send_replace(true);
        while hints.metrics().written < sent as u64 {
            rt::time::sleep(Duration::from_millis(1)).await;
        }
        write(1002).await.expect("there is room again");
    });
}

/// The notes are removed, so neither their file nor the reserved space can be written.
#[test]
fn a_write_fails_if_nothing_can_record_that_a_replica_misses_it() {
    with_cluster("not-recorded", Shape::DEFAULT, |cluster| async move {
        let hints = cluster.keep_hints(0).await;
        let notes = cluster.directory.join("hint-notes-0");
        std::fs::remove_dir_all(&notes).expect("removed");
        cluster.nodes[0].engine.stop().await;
        for k in 0..3 {
            let write = cluster.write(0, Change::of(&cluster, k, 5).row(1, 7).done(), Quorum).await;
            let Err(CoordinatorError::Failed { received, required, why, .. }) = write else { panic!("{write:?}") };
            assert!(received < required && why.contains("failed to record that"), "{why}");
        }
        let own = cluster.nodes[0].host;
        assert_eq!(hints.unrecorded().into_iter().collect::<Vec<_>>(), [own]);
        std::fs::create_dir(&notes).expect("made");
        hints.sync().await;
        let change = Change::of(&cluster, 4, 5).row(1, 7).done();
        cluster.write(0, change, Quorum).await.expect("the note is on disk");
        assert_eq!((hints.unrecorded().len(), noted(&hints)), (0, vec![(own, Cause::Refused)]));
    });
}

#[test]
fn hints_are_kept_for_the_configured_datacenters() {
    let shape = Shape {
        datacenters: &["dc1", "dc2", "dc3"],
        replication: &[("class", "NetworkTopologyStrategy"), ("dc1", "1"), ("dc2", "1"), ("dc3", "1")],
        ..Shape::DEFAULT
    };
    with_cluster("kept_for", shape, |cluster| async move {
        let hints = cluster.keep_hints(0).await;
        cluster.set_alive(1, false);
        cluster.set_alive(2, false);
        let names = |names: &[&str]| KeptFor::Datacenters(names.iter().map(|name| (*name).to_owned()).collect());
        let cases = [
            (KeptFor::NoNode, vec![]),
            (names(&["dc3"]), vec![2]),
            (names(&["dc9"]), vec![2]),
            (KeptFor::All, vec![1, 2]),
        ];
        for (n, (kept_for, nodes)) in cases.into_iter().enumerate() {
            hints.set(HintsSettings { kept_for, ..HintsSettings::default() });
            cluster.write(0, Change::of(&cluster, n as i32, 5).row(1, 1).done(), One).await.expect("one lives");
            cluster.settle().await;
            let expected: Vec<_> = nodes.into_iter().map(|node: usize| cluster.nodes[node].host).collect();
            while hints.targets().len() < expected.len() {
                rt::task::yield_now().await;
            }
            assert_eq!(hints.targets(), expected);
        }
        // The last hint may not be on disk yet.
        while hints.metrics().written < 3 {
            rt::task::yield_now().await;
        }
        // The hint window is over: no more hints are kept.
        let written = hints.metrics().written;
        hints.set(HintsSettings { window: rt::time::Duration::ZERO, ..HintsSettings::default() });
        cluster.write(0, Change::of(&cluster, 9, 5).row(1, 1).done(), One).await.expect("one lives");
        while hints.metrics().refused < 2 {
            rt::task::yield_now().await;
        }
        assert_eq!(hints.metrics().written, written);
    });
}

#[test]
fn any_is_content_with_a_hint() {
    let shape =
        Shape { copies: &[2], replication: &[("class", "NetworkTopologyStrategy"), ("dc1", "1")], ..Shape::DEFAULT };
    with_cluster("any", shape, |cluster| async move {
        let change = || Change::of(&cluster, 1, 5).row(1, 1).done();
        cluster.set_alive(2, false);
        let unavailable = |consistency| Err(CoordinatorError::Unavailable { consistency, required: 1, alive: 0 });
        assert_eq!(cluster.write(0, change(), Any).await, unavailable(Any), "it keeps no hints");
        let hints = cluster.keep_hints(0).await;
        assert_eq!(cluster.write(0, change(), One).await, unavailable(One));
        cluster.write(0, change(), Any).await.expect("a hint is enough");
        assert_eq!(hints.metrics().written, 1);
        cluster.set_alive(2, true);
        cluster.nodes[0].coordinator.replay_hints().await;
        assert_eq!(cluster.own(2, 1).await, [(1, 1)]);
    });
}

/// Waits for work that follows the acknowledgement of a write.
async fn eventually(what: &str, is_so: impl AsyncFn() -> bool) {
    for _ in 0..500 {
        if is_so().await {
            return;
        }
        rt::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{what}");
}

fn noted(hints: &Hints) -> Vec<(HostId, Cause)> {
    let missed = hints.missed();
    assert!(missed.iter().all(|one| one.table == Some(table_id())));
    missed.iter().map(|one| (one.target, one.cause)).collect()
}

#[test]
fn an_acknowledged_write_comes_to_a_replica_that_did_not_take_it() {
    with_cluster("taken", Shape::DEFAULT, |cluster| async move {
        cluster.keep_hints(0).await;
        cluster.set_timeout(SHORT_TIMEOUT);
        let refusals = [
            ReplicaError::Rejected("a partition that is too large here".into()),
            ReplicaError::NoSuchTable,
            ReplicaError::Storage("the disk is full".into()),
            ReplicaError::Corrupt("a file".into()),
            ReplicaError::Overloaded(replica::Overload::Counters),
            ReplicaError::Timeout,
            ReplicaError::Cancelled,
        ];
        let lost = [Fault::Refused, Fault::LosesRequests, Fault::LosesAnswers, Fault::LosesConnection];
        for (k, fault) in lost.into_iter().chain(refusals.map(Fault::Fails)).enumerate() {
            let (k, name) = (k as i32, format!("{fault:?}"));
            cluster.break_node(2, fault);
            cluster.write(0, Change::of(&cluster, k, 5).row(1, 7).done(), Quorum).await.expect("two take it");
            cluster.settle().await;
            cluster.heal(2);
            let is_there = async || {
                cluster.nodes[0].coordinator.replay_hints().await;
                cluster.own(2, k).await == [(1, 7)]
            };
            eventually(&name, is_there).await;
        }
    });
}

#[test]
fn a_write_that_a_replica_refuses_is_recorded_as_missed() {
    with_cluster("refused", Shape::DEFAULT, |cluster| async move {
        let hints = cluster.keep_hints(0).await;
        let far = cluster.nodes[2].host;
        let write = async |k: i32| cluster.write(0, Change::of(&cluster, k, 5).row(1, 7).done(), Quorum).await;
        let refuse = |cluster: &Cluster, nodes: &[usize], error: ReplicaError| {
            nodes.iter().for_each(|node| cluster.break_node(*node, Fault::FailsWrites(error.clone())));
        };
        let too_large = || ReplicaError::Rejected("too large".into());
        // Also as a hint.
        refuse(&cluster, &[2], too_large());
        write(1).await.expect("two take it");
        eventually("a hint", async || hints.targets() == [far]).await;
        cluster.nodes[0].coordinator.replay_hints().await;
        assert_eq!((noted(&hints), hints.targets()), (vec![(far, Cause::Refused)], vec![]));
        assert_eq!((hints.metrics().sent, hints.metrics().dropped), (0, 1));
        // Without hints.
        hints.forget_missed(far, None, i64::MAX).await;
        hints.set(HintsSettings { kept_for: KeptFor::NoNode, ..HintsSettings::default() });
        write(2).await.expect("two take it");
        eventually("a note", async || noted(&hints) == [(far, Cause::Refused)]).await;
        // The write was not acknowledged.
        hints.forget_missed(far, None, i64::MAX).await;
        refuse(&cluster, &[1, 2], too_large());
        assert_eq!(write(3).await, Err(CoordinatorError::Invalid("too large".into())));
        cluster.settle().await;
        assert_eq!((noted(&hints), hints.targets()), (vec![], vec![]));
        // A table that the metadata has, and the replica does not have.
        hints.set(HintsSettings::default());
        cluster.heal(1);
        refuse(&cluster, &[2], ReplicaError::NoSuchTable);
        write(4).await.expect("two take it");
        eventually("a hint", async || hints.targets() == [far]).await;
        cluster.nodes[0].coordinator.replay_hints().await;
        assert_eq!((noted(&hints), hints.targets()), (vec![], vec![far]));
    });
}

#[test]
fn a_coordinator_that_cannot_write_itself_misses_the_write() {
    with_cluster("own-disk", Shape::DEFAULT, |cluster| async move {
        let hints = cluster.keep_hints(0).await;
        let own = cluster.nodes[0].host;
        cluster.nodes[0].engine.stop().await;
        cluster.write(0, Change::of(&cluster, 1, 5).row(1, 7).done(), Quorum).await.expect("two take it");
        eventually("a note", async || noted(&hints) == [(own, Cause::Refused)]).await;
        assert_eq!(hints.targets(), []);
    });
    with_cluster("own-table", Shape::DEFAULT, |cluster| async move {
        let hints = cluster.keep_hints(0).await;
        let own = cluster.nodes[0].host;
        cluster.nodes[0].engine.drop_table(table_id(), 1).await.expect("dropped");
        cluster.write(0, Change::of(&cluster, 1, 5).row(1, 7).done(), Quorum).await.expect("two take it");
        // Its disk works: a hint for itself brings the write later.
        eventually("a hint", async || hints.targets() == [own]).await;
        cluster.nodes[0].coordinator.replay_hints().await;
        assert_eq!((noted(&hints), hints.targets()), (vec![], vec![own]));
    });
}

#[test]
fn a_resync_reads_recorded_or_forced_tables_of_a_node_that_is_up() {
    with_cluster("resync", Shape::DEFAULT, |cluster| async move {
        let hints = cluster.keep_hints(0).await;
        let far = cluster.nodes[2].host;
        let member = own_node(cluster.nodes[2].metadata.info(), NodeState::Normal);
        cluster.change(0, vec![Op::PutNode(Box::new(member))]).await;
        let node = &cluster.nodes[0];
        let shards = ResyncShards { cluster: node.metadata.shards(), coordinator: PerShard::new() };
        shards.coordinator.set(node.coordinator.clone());
        for node in 0..2 {
            cluster.put(node, Change::of(&cluster, 1, 5).row(1, 7).done()).await;
        }
        cluster.set_alive(2, false);
        for is_forced in [false, true] {
            let refused = resync::resync(shards, far, is_forced).await.expect_err("it is down");
            assert!(refused.contains("is down"), "{refused}");
        }
        cluster.set_alive(2, true);
        assert_eq!(resync::resync(shards, far, false).await, Ok(vec![]));
        assert_eq!(cluster.own(2, 1).await, [], "nothing is noted");
        assert_eq!(resync::resync(shards, far, true).await, Ok(vec!["ks.t".to_owned()]));
        assert_eq!(cluster.own(2, 1).await, [(1, 7)]);
        // A replica that refuses what it lacks is named, and its note stays.
        for node in 0..2 {
            cluster.put(node, Change::of(&cluster, 2, 5).row(1, 7).done()).await;
        }
        hints.note_missed(far, table_id(), Cause::Refused).await.expect("noted");
        cluster.break_node(2, Fault::FailsWrites(ReplicaError::Rejected("too large".into())));
        let failed = resync::resync(shards, far, false).await.expect_err("it is refused");
        let why = "ks.t could not be read at consistency ALL: node 127.0.0.3 refuses rows that it lacks: too large";
        assert_eq!((failed.as_str(), noted(&hints)), (why, vec![(far, Cause::Refused)]));
        cluster.heal(2);
        assert_eq!(resync::resync(shards, far, false).await, Ok(vec!["ks.t".to_owned()]));
        assert_eq!((cluster.own(2, 2).await, noted(&hints)), (vec![(1, 7)], vec![]));
    });
}
