//! When requests begin and end.

use super::*;
use crate::tablets::TabletReplica;
use crate::tablets::transition::{Replicas, Stage, Transition, TransitionKind};
use crate::topology::node::tests::{TABLE, metadata, node};
use model::options::OptionMap;

/// 1970 in the ticks of time UUIDs, each 100 ns.
const GREGORIAN: u64 = 0x01B2_1DD2_1381_4000;

fn replica(n: u8) -> TabletReplica {
    TabletReplica { host: node(n, "", "").host, shard: 0 }
}

/// Three nodes, and a tablet on the first two. The feature is enabled.
fn three() -> Metadata {
    let known = metadata((1..=3).map(|n| node(n, "dc1", "r1")), [], vec![vec![replica(1), replica(2)]]);
    known.with(&[Op::EnableFeatures(vec![features::TOPOLOGY_REQUESTS.to_owned()])]).expect("it fits")
}

fn in_state(n: u8, state: NodeState) -> Op {
    Op::PutNode(Box::new(Node { state, ..node(n, "dc1", "r1") }))
}

/// Makes a change, `at` seconds after 1970.
fn change(known: &mut Metadata, at: u64, ops: Vec<Op>) -> Uuid {
    let ticks = GREGORIAN + at * 10_000_000;
    let high = (ticks >> 48) as u16 | 0x1000;
    let new = Uuid::from_fields(ticks as u32, (ticks >> 32) as u16, high, &[0x80, 0, 1, 0, 0, 0, 0, 0]);
    *known = known.apply(&Change { previous: known.version, new, ops }).expect("it fits");
    new
}

/// Kind, node or keyspace, and state of each request.
fn shown(known: &Metadata) -> Vec<String> {
    let one = |request: &TopologyRequest| {
        let host = request.host.map(|host| host.0.as_u128().to_string());
        let of = host.or(request.keyspace.clone()).expect("a node or a keyspace");
        let state = match &request.ended {
            None => "open",
            Some(RequestEnd { error: None, .. }) => "done",
            Some(RequestEnd { error: Some(error), .. }) => error,
        };
        format!("{} {of} {state}", request.kind)
    };
    known.requests.iter().map(one).collect()
}

#[test]
fn a_node_leaves_or_stays() {
    let mut known = three();
    let begun = change(&mut known, 1, vec![in_state(3, NodeState::Leaving)]);
    assert_eq!(shown(&known), ["leave 3 open"]);
    assert_eq!(known.requests.iter().next().expect("one").id, begun);
    change(&mut known, 2, vec![in_state(3, NodeState::Normal)]);
    assert_eq!(shown(&known), ["leave 3 the request was cancelled"]);
    change(&mut known, 3, vec![in_state(3, NodeState::Leaving)]);
    let ended = change(&mut known, 4, vec![in_state(3, NodeState::Left)]);
    assert_eq!(shown(&known), ["leave 3 the request was cancelled", "leave 3 done"]);
    let last = known.requests.iter().next_back().expect("two");
    assert_eq!(last.ended.as_ref().map(|end| end.version), Some(ended));
}

#[test]
fn removal_of_a_replaced_node_is_done_once_its_replicas_are_rebuilt() {
    let mut known = three();
    change(&mut known, 1, vec![in_state(2, NodeState::Removed), in_state(4, NodeState::Joining)]);
    assert_eq!(shown(&known), ["remove 2 open", "replace 4 open"]);
    let ids: Vec<Uuid> = known.requests.iter().map(|request| request.id).collect();
    assert_ne!(ids[0], ids[1]);
    assert_eq!(ids[0].get_timestamp(), ids[1].get_timestamp());
    change(&mut known, 2, vec![in_state(4, NodeState::Normal)]);
    assert_eq!(shown(&known), ["remove 2 open", "replace 4 done"]);
    let new_replicas = Replicas::from_slice(&[replica(1), replica(4)]);
    let moving =
        Transition { kind: TransitionKind::Migration, stage: Stage::EndMigration, new_replicas, session: None };
    change(&mut known, 3, vec![Op::PutTransition(Box::new(moving.written(TABLE, 0)))]);
    assert_eq!(shown(&known)[0], "remove 2 open");
    change(&mut known, 4, vec![Op::EndTransition { table: TABLE, tablet: 0, moved: true }]);
    assert_eq!(shown(&known)[0], "remove 2 done");
}

#[test]
fn a_node_that_is_removed_reaches_no_other_goal() {
    let mut known = three();
    change(&mut known, 1, vec![in_state(3, NodeState::Leaving), in_state(4, NodeState::Joining)]);
    change(&mut known, 2, vec![in_state(3, NodeState::Removed), in_state(4, NodeState::Left)]);
    // Node 3 had no replicas.
    assert_eq!(shown(&known), ["leave 3 the node was removed", "join 4 the node did not finish joining"]);
}

#[test]
fn a_keyspace_gets_its_replication_or_is_dropped() {
    let mut known = three();
    let wanted = |replication| Op::PutWantedReplication { keyspace: "ks".into(), replication };
    let three_replicas = Some(OptionMap::from([("dc1".to_owned(), "3".to_owned())]));
    change(&mut known, 1, vec![wanted(three_replicas.clone())]);
    assert_eq!(shown(&known), ["keyspace_rf_change ks open"]);
    change(&mut known, 2, vec![wanted(None)]);
    change(&mut known, 3, vec![wanted(three_replicas)]);
    change(&mut known, 4, vec![Op::DropKeyspace("ks".into())]);
    assert_eq!(shown(&known), ["keyspace_rf_change ks done", "keyspace_rf_change ks the keyspace was dropped"]);
}

#[test]
fn the_last_ended_requests_are_kept_in_snapshots_too() {
    let mut known = three();
    for n in 0..KEPT as u64 + 5 {
        change(&mut known, 2 * n + 1, vec![in_state(3, NodeState::Leaving)]);
        change(&mut known, 2 * n + 2, vec![in_state(3, NodeState::Normal)]);
    }
    change(&mut known, 1_000, vec![in_state(3, NodeState::Leaving)]);
    assert_eq!(known.requests.iter().count(), KEPT + 1);
    let first = known.requests.iter().next().expect("many").id;
    assert_eq!(first.get_timestamp().map(|time| time.to_unix().0), Some(11), "the oldest are forgotten");
    let restored = Metadata::empty().with(&known.as_ops(|_| false)).expect("it can be restored");
    assert_eq!(restored.requests, known.requests);
    assert_eq!(known.requests.get(first), known.requests.iter().next());
}

#[test]
fn there_are_none_before_all_nodes_know_them() {
    let mut known = metadata((1..=3).map(|n| node(n, "dc1", "r1")), [], vec![vec![replica(1)]]);
    change(&mut known, 1, vec![in_state(3, NodeState::Leaving)]);
    assert_eq!(shown(&known), [""; 0]);
    // What is under way then becomes a request.
    change(&mut known, 2, vec![Op::EnableFeatures(vec![features::TOPOLOGY_REQUESTS.to_owned()])]);
    assert_eq!(shown(&known), ["leave 3 open"]);
}
