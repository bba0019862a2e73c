//! Joining: which nodes are admitted and which are refused.

use super::*;
use crate::topology::node;
use crate::topology::node::tests::node;

/// Like [`super::admit`], without lost members.
fn admit(topology: &Topology, node: &Node, moved: &BTreeMap<HostId, SocketAddr>) -> Result<Vec<Op>, String> {
    super::admit(topology, node, moved, &BTreeSet::new())
}

#[test]
fn a_lost_node_that_never_finished_joining_makes_room_at_its_address() {
    let mut topology = cluster();
    let unfinished = Node { state: NodeState::Joining, ..node(5, "dc1", "r1") };
    topology.put(unfinished.clone());
    let new = Node { state: NodeState::Joining, ..at(node(6, "dc1", "r1"), 5) };
    let no_moves = BTreeMap::new();
    let admit = |topology: &Topology, lost: &[&Node]| {
        super::admit(topology, &new, &no_moves, &lost.iter().map(|node| node.host).collect())
    };
    let refused = admit(&topology, &[]).expect_err("it may be there");
    assert!(refused.contains("belongs to node") && !refused.contains("remove"), "{refused}");
    let gone = Node { state: NodeState::Left, ..unfinished.clone() };
    let put = |node: &Node| Op::PutNode(Box::new(node.clone()));
    assert_eq!(admit(&topology, &[&unfinished]), Ok(vec![put(&gone), put(&new)]));
    // The member has finished joining meanwhile, so it may have tablets.
    topology.put(Node { state: NodeState::Normal, ..unfinished.clone() });
    assert!(admit(&topology, &[&unfinished]).is_err());
}

fn cluster() -> Topology {
    let mut topology = Topology::default();
    topology.put(node(1, "dc1", "r1"));
    topology.put(Node { state: NodeState::Left, ..node(2, "dc1", "r2") });
    topology.enable(&["RAFT_METADATA".into()]);
    topology
}

#[test]
fn which_nodes_are_admitted() {
    let topology = cluster();
    let new = node(3, "dc1", "r3");
    let no_moves = BTreeMap::new();
    let admit = |topology: &Topology, node: &Node| admit(topology, node, &no_moves);
    let ops = admit(&topology, &new).expect("admitted");
    assert_eq!(ops, [Op::PutNode(Box::new(Node { state: NodeState::Joining, ..new.clone() }))]);
    assert_eq!(admit(&topology, &node(1, "dc1", "r1")), Ok(vec![]), "it has asked before");
    let moved = Node { storage_port: 7007, ..node(1, "dc1", "r1") };
    assert_eq!(admit(&topology, &moved), Ok(vec![Op::PutNode(Box::new(moved.clone()))]));
    let refused = [
        (Node { features: vec![], ..new.clone() }, "RAFT_METADATA"),
        (Node { broadcast_address: node(1, "", "").broadcast_address, ..new }, "belongs to node"),
        (node(2, "dc1", "r2"), "has left"),
        (node(1, "dc1", "r2"), "Saved rack name \"r1\" is not equal"),
        (node(1, "dc2", "r1"), "Saved DC name \"dc1\" is not equal"),
    ];
    for (node, why) in refused {
        let error = admit(&topology, &node).expect_err(why);
        assert!(error.contains(why), "{error}");
    }
}

#[test]
fn only_a_node_that_never_had_others_may_move() {
    let mut topology = Topology::default();
    let moved = node(1, "dc2", "r2");
    assert_eq!(check_location(&topology, &moved), Ok(()), "it is new");
    topology.put(node(1, "dc1", "r1"));
    assert_eq!(check_location(&topology, &moved), Ok(()), "it is alone");
    topology.put(Node { state: NodeState::Left, ..node(2, "dc1", "r2") });
    assert!(check_location(&topology, &moved).is_err_and(|why| why.contains("Set `datacenter` back to \"dc1\"")));
    assert_eq!(check_location(&topology, &node(1, "dc1", "r1")), Ok(()));
}

/// A node at the address of another node of these tests.
fn at(node: Node, n: u8) -> Node {
    let address = node::tests::node(n, "", "").broadcast_address;
    Node { broadcast_address: address, rpc_address: address, listen_address: address, ..node }
}

#[test]
fn members_that_took_each_others_addresses_are_admitted_together() {
    let mut topology = cluster();
    let all: Vec<Node> = [1, 3, 4].into_iter().map(|n| node(n, "dc1", "r1")).collect();
    all.iter().for_each(|node| topology.put(node.clone()));
    let first = |to: u8| at(all[0].clone(), to);
    let put = |nodes: &[&Node]| -> Vec<Op> { nodes.iter().map(|one| Op::PutNode(Box::new((*one).clone()))).collect() };
    let moved = |places: &[(usize, u8)]| -> BTreeMap<HostId, SocketAddr> {
        places.iter().map(|(one, n)| (all[*one].host, at(all[*one].clone(), *n).internode())).collect()
    };
    // Two nodes have swapped addresses: admitted only if the other one is known to answer at its
    // new address.
    let error = admit(&topology, &first(3), &moved(&[])).expect_err("the other one may be there");
    assert!(error.contains("belongs to node"), "{error}");
    let swapped = admit(&topology, &first(3), &moved(&[(1, 1)]));
    assert_eq!(swapped, Ok(put(&[&at(all[1].clone(), 1), &first(3)])));
    // Three nodes in a circle, and one that moved to a free address.
    let circle = admit(&topology, &first(3), &moved(&[(1, 4), (2, 1)]));
    assert_eq!(circle, Ok(put(&[&at(all[1].clone(), 4), &at(all[2].clone(), 1), &first(3)])));
    let chain = admit(&topology, &first(3), &moved(&[(1, 9)]));
    assert_eq!(chain, Ok(put(&[&at(all[1].clone(), 9), &first(3)])));
    assert!(admit(&topology, &first(3), &moved(&[(1, 4)])).is_err(), "the third one may be there");
    // A new node at the address of a node that has left.
    let new = Node { state: NodeState::Joining, ..at(node(8, "dc1", "r1"), 3) };
    assert_eq!(admit(&topology, &new, &moved(&[(1, 9)])), Ok(put(&[&at(all[1].clone(), 9), &new])));
}

/// Two nodes on copies of one data directory ask at once. The topology by which both are judged
/// knows neither.
#[test]
fn of_two_concurrent_joins_with_one_id_one_is_checked_again() {
    let before = cluster();
    let mut after = before.clone();
    let first = Node { state: NodeState::Joining, ..at(node(8, "dc1", "r1"), 8) };
    let check =
        |seen: &Topology, now: &Topology| check_unchanged(place(seen, first.host), place(now, first.host), first.host);
    assert_eq!(check(&before, &before), Ok(()));
    after.put(first.clone());
    let checked = check(&before, &after);
    let address = first.broadcast_address.to_string();
    assert!(matches!(&checked, Err(NotAdmitted::Yet(why)) if why.contains(&address)), "{checked:?}");
    assert_eq!(check(&after, &after), Ok(()), "the same one asks again");
}

#[test]
fn a_full_member_that_asks_to_join_has_lost_its_metadata() {
    let mut topology = cluster();
    topology.put(Node { state: NodeState::Joining, ..node(5, "dc1", "r1") });
    let asks = |n: u8, state| has_lost_metadata(&topology, &Node { state, ..node(n, "dc1", "r1") });
    assert!(asks(1, NodeState::Joining).is_some_and(|why| why.contains("`raft`")
        && why.contains("restore it exactly as it was")
        && why.contains("older copy, such as a backup, is unsafe")
        && why.contains("replace the node")));
    assert_eq!(asks(1, NodeState::Normal), None, "it is introduced at a new address");
    assert_eq!(asks(5, NodeState::Joining), None, "it asked before");
    assert_eq!(asks(9, NodeState::Joining), None);
}

#[test]
fn a_dead_member_is_replaced_in_its_place_only() {
    let metadata = crate::metadata::Metadata::empty();
    let nodes = cluster();
    let ops: Vec<Op> = nodes.nodes().map(|node| Op::PutNode(Box::new((**node).clone()))).collect();
    let known = metadata.with(&ops).expect("the steps fit");
    let known = known.with(&[Op::EnableFeatures(vec![features::FILE_STREAM.to_owned()])]).expect("it fits");
    let dead = known.topology.nodes().next().expect("a node").clone();
    let features = vec![features::FILE_STREAM.to_owned()];
    let new = Node { state: NodeState::Joining, features, ..node(9, &dead.datacenter, &dead.rack) };
    let down = BTreeSet::from([dead.host]);
    let (ops, after) = replace(&known, &new, dead.host, &down).expect("it is dead");
    assert_eq!(ops, [Op::PutNode(Box::new(Node { state: NodeState::Removed, ..(*dead).clone() }))]);
    let taken = Node { broadcast_address: dead.broadcast_address, ..new.clone() };
    assert!(super::admit(&known.topology, &taken, &BTreeMap::new(), &BTreeSet::new()).is_err());
    assert!(super::admit(&after, &taken, &BTreeMap::new(), &BTreeSet::new()).is_ok(), "its address is free");
    let again = known.with(&ops).expect("it fits");
    assert_eq!(replace(&again, &new, dead.host, &BTreeSet::new()).expect("it is removed already").0, []);

    let elsewhere = Node { rack: "elsewhere".into(), ..new.clone() };
    assert!(
        matches!(replace(&known, &elsewhere, dead.host, &down), Err(NotAdmitted::Ever(why)) if why.contains("rack"))
    );
    assert!(
        matches!(replace(&known, &new, dead.host, &BTreeSet::new()), Err(NotAdmitted::Yet(why)) if why.contains("is up"))
    );
    let unknown = HostId(uuid::Uuid::from_u128(99));
    assert!(matches!(replace(&known, &new, unknown, &down), Err(NotAdmitted::Ever(why)) if why.contains("not known")));
}
