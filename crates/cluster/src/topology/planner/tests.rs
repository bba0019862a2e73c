//! Which tablets move from leaving nodes and to nodes that have fewer, and which nodes may leave.

use super::*;
use crate::metadata::Op;
use crate::tablets::transition::{Stage, Transition};
use crate::topology::node::tests::{TABLE, metadata as one_table, node};
use proptest::prelude::*;
use uuid::Uuid;

fn host(n: u8) -> HostId {
    HostId(Uuid::from_u128(n.into()))
}

/// Nodes of two shards by `datacenter/rack`, with `!` for a leaving one and `-` for a removed one,
/// numbered from 1; and a table with tablets on these nodes, replicas on shard 0.
fn metadata(places: &str, replication: &[(&str, &str)], tablets: &[&[u8]]) -> Metadata {
    let nodes = places.split(' ').zip(1..).map(|(place, n)| {
        let (datacenter, rack) = place.trim_end_matches(['!', '-']).split_once('/').expect("a datacenter and a rack");
        let state = match place.as_bytes().last() {
            Some(b'!') => NodeState::Leaving,
            Some(b'-') => NodeState::Removed,
            _ => NodeState::Normal,
        };
        Node { state, ..node(n, datacenter, rack) }
    });
    let class = [("class".to_owned(), "NetworkTopologyStrategy".to_owned())];
    let factors = replication.iter().map(|(name, factor)| ((*name).to_owned(), (*factor).to_owned()));
    let replica = |n: &u8| TabletReplica { host: host(*n), shard: 0 };
    let replicas = tablets.iter().map(|tablet| tablet.iter().map(replica).collect()).collect();
    let metadata = one_table(nodes, factors.chain(class), replicas);
    metadata.with(&[Op::EnableFeatures(vec![features::FILE_STREAM.to_owned()])]).expect("the steps fit")
}

/// The nodes of each tablet after the moves that can begin.
fn moved(metadata: &Metadata) -> Vec<(u32, Vec<u128>)> {
    let nodes = |one: Move| (one.tablet, one.new.iter().map(|replica| replica.host.0.as_u128()).collect());
    next_moves(metadata, &BTreeSet::new()).into_iter().map(nodes).collect()
}

#[test]
fn replicas_move_within_their_datacenter_and_to_another_rack_than_the_others() {
    let factor = [("a", "2")];
    let tablets: &[&[u8]] = &[&[1, 2], &[2, 3]];
    let stays = metadata("a/1 a/2 a/1 a/3 b/1", &factor, tablets).with(&[Op::SetBalancing(false)]).expect("it fits");
    assert_eq!(moved(&stays), [], "no node leaves");
    let leaves = metadata("a/1! a/2 a/1 a/3 b/1", &factor, tablets);
    assert_eq!(moved(&leaves), [(0, vec![4, 2])], "rack 2 has a replica, and node 4 has fewer tablets than node 3");
    let listed = metadata("a/1! a/2 a/1 a/3", &[("a", "['1', '2']")], tablets);
    assert_eq!(moved(&listed), [(0, vec![3, 2])], "the keyspace lists racks");
    assert_eq!(moved(&metadata("a/1! a/2 b/1", &factor, &[&[1, 2]])), [], "no node can take it");
}

#[test]
fn a_shard_sends_and_receives_a_few_tablets_at_a_time() {
    let one: &[u8] = &[1];
    let tablets = &[one; 8];
    let mut metadata = metadata("a/1! a/1 a/1 a/1", &[("a", "1")], tablets);
    let moves = next_moves(&metadata, &BTreeSet::new());
    assert_eq!(moves.len(), AT_ONCE, "shard 0 of node 1 sends so many");
    assert_ne!(moves[0].new, moves[1].new, "they go to different nodes");
    for Move { table, tablet, new, kind } in moves {
        let moving = Transition { kind, stage: Stage::Streaming, new_replicas: new, session: None };
        metadata = metadata.with(&[Op::PutTransition(Box::new(moving.written(table, tablet)))]).expect("it fits");
    }
    assert_eq!(next_moves(&metadata, &BTreeSet::new()), [], "the others wait");
    metadata = metadata.with(&[Op::EndTransition { table: TABLE, tablet: 0, moved: true }]).expect("it fits");
    let next = next_moves(&metadata, &BTreeSet::new());
    assert_eq!(next.iter().map(|one| one.tablet).collect::<Vec<_>>(), [2]);
    assert_eq!(next[0].new[0].host, host(4), "it has no tablet yet");
}

#[test]
fn a_node_leaves_only_if_others_can_take_its_tablets() {
    let may_leave = |places: &str, factor: &str, tablets: &[&[u8]]| {
        check_can_leave(&metadata(places, &[("a", factor)], tablets), host(1), &BTreeSet::new())
    };
    assert_eq!(may_leave("a/1 a/1 a/1", "2", &[&[1, 2]]), Ok(()));
    assert_eq!(may_leave("a/1 a/1", "1", &[&[2], &[2]]), Ok(()), "it has none");
    let why = may_leave("a/1 a/1", "2", &[&[1, 2]]).expect_err("a node has one replica");
    assert!(why.contains("table ks.t"), "{why}");
    assert!(may_leave("a/1 a/2 a/2", "['1', '2']", &[&[1, 2]]).is_err(), "no other node is in rack 1");
    let why = may_leave("a/1 a/2 a/2", "['1', '2']", &[&[2]]).expect_err("the rack would have no node");
    assert!(why.contains("lists rack 1"), "{why}");
    assert_eq!(may_leave("a/1 a/2 a/2", "['2']", &[&[2]]), Ok(()), "rack 1 is not listed");
    assert!(may_leave("a/1 b/1 b/1", "1", &[&[1]]).is_err(), "no other node is in the datacenter");
    assert!(may_leave("a/1 a/1!", "1", &[&[1]]).is_err(), "the other node leaves, too");
}

#[test]
fn nothing_moves_from_or_to_a_node_that_is_down() {
    let metadata = metadata("a/1! a/1 a/1", &[("a", "1")], &[&[1], &[1]]);
    let to = |down: &[u8]| {
        let moves = next_moves(&metadata, &down.iter().map(|n| host(*n)).collect());
        moves.into_iter().map(|one| one.new[0].host).collect::<Vec<_>>()
    };
    assert_eq!(to(&[]), [host(2), host(3)]);
    assert_eq!(to(&[2]), [host(3), host(3)]);
    assert_eq!(to(&[1]), [], "it cannot send them");
    let why = |down: &[u8]| check_can_leave(&metadata, host(1), &down.iter().map(|n| host(*n)).collect());
    assert_eq!(why(&[2]), Ok(()));
    assert!(why(&[2, 3]).expect_err("both are down").contains("are down"));
}

#[test]
fn replicas_of_removed_nodes_are_built_from_all_others() {
    let metadata = metadata("a/1- a/2 a/3 a/1", &[("a", "3")], &[&[1, 2, 3], &[2, 3, 4]]);
    let moves = next_moves(&metadata, &BTreeSet::new());
    let new: Vec<HostId> = moves[0].new.iter().map(|replica| replica.host).collect();
    assert_eq!((moves.len(), moves[0].tablet, moves[0].kind), (1, 0, TransitionKind::Rebuild));
    assert_eq!(new, [host(4), host(2), host(3)]);
    assert_eq!(next_moves(&metadata, &BTreeSet::from([host(2)])), [], "it would wait for node 2");
}

#[test]
fn a_node_is_removed_only_if_others_have_and_can_take_its_replicas() {
    let check = |places: &str, factor: &str, tablets: &[&[u8]]| {
        check_can_remove(&metadata(places, &[("a", factor)], tablets), host(1), &BTreeSet::from([host(1)]))
    };
    assert_eq!(check("a/1 a/1 a/1", "2", &[&[1, 2]]), Ok(()));
    assert!(check("a/1 a/1 a/1", "1", &[&[1]]).expect_err("it is lost").contains("only replica"));
    assert!(check("a/1 a/1 a/1-", "2", &[&[1, 3]]).expect_err("both are removed").contains("only replica"));
    let why = check("a/1 a/1", "2", &[&[1, 2]]).expect_err("a node has one replica");
    assert!(why.contains("table ks.t") && why.contains("excludenode"), "{why}");
    // Node 1 receives the only replica, from node 2.
    let moving = |stage| {
        let new_replicas = [TabletReplica { host: host(1), shard: 0 }].into_iter().collect();
        let moving = Transition { kind: TransitionKind::Migration, stage, new_replicas, session: None };
        let known = metadata("a/1 a/1 a/1", &[("a", "1")], &[&[2]]);
        let known = known.with(&[Op::PutTransition(Box::new(moving.written(TABLE, 0)))]).expect("it fits");
        check_can_remove(&known, host(1), &BTreeSet::from([host(1)]))
    };
    for stage in [Stage::AllowWriteBothReadOld, Stage::Streaming, Stage::WriteBothReadNew, Stage::CleanupTarget] {
        assert_eq!(moving(stage), Ok(()), "{stage:?} is rolled back");
    }
    for stage in [Stage::UseNew, Stage::Cleanup, Stage::EndMigration] {
        assert!(moving(stage).is_err(), "at {stage:?} node 2 may lack writes");
    }
}

/// The nodes of the only tablet after all changes of its replicas, and the operations that are due
/// then.
fn replicas_after(mut metadata: Metadata) -> (Vec<u128>, usize) {
    while let Some(Move { table, tablet, new, kind }) = next_moves(&metadata, &BTreeSet::new()).pop() {
        assert!(replication_is_due(&metadata).is_empty(), "not before all tablets have their replicas");
        let moving = Transition { kind, stage: Stage::Streaming, new_replicas: new, session: None };
        metadata = metadata.with(&[Op::PutTransition(Box::new(moving.written(table, tablet)))]).expect("it fits");
        assert!(replication_is_due(&metadata).is_empty(), "a replica is being made");
        metadata = metadata.with(&[Op::EndTransition { table, tablet, moved: true }]).expect("it fits");
    }
    let table = metadata.table_by_id(TABLE).expect("the table");
    let hosts = table.tablets.replicas(0).iter().map(|replica| replica.host.0.as_u128()).collect();
    (hosts, replication_is_due(&metadata).len())
}

#[test]
fn a_tablet_gets_the_replicas_that_its_keyspace_asks_for() {
    let cluster = |factor, tablet: &[u8]| metadata("a/1 a/2 a/2 a/3", &[("a", factor)], &[tablet]);
    assert_eq!(replicas_after(cluster("3", &[1])), (vec![1, 2, 4], 0), "one in each rack");
    assert_eq!(replicas_after(cluster("1", &[2])), (vec![2], 0));
    assert_eq!(replicas_after(cluster("2", &[1, 2, 3])), (vec![1, 2], 0), "rack 2 has two");
    let off = cluster("3", &[1]).with(&[Op::SetBalancing(false)]).expect("it fits");
    assert_eq!(replicas_after(off.clone()), (vec![1], 0), "an operator moves replicas");
    let wanted = |factor: &str| Op::PutWantedReplication {
        keyspace: "ks".into(),
        replication: Some(
            [("class", "NetworkTopologyStrategy"), ("a", factor)].map(|(a, b)| (a.into(), b.into())).into(),
        ),
    };
    assert_eq!(
        replicas_after(off.with(&[wanted("2")]).expect("it fits")),
        (vec![1, 2], 2),
        "ALTER KEYSPACE asks for it"
    );
    let fewer = cluster("1", &[1, 2]).with(&[wanted("1")]).expect("it fits");
    assert_eq!(replicas_after(fewer), (vec![1], 2));
    assert_eq!(replicas_after(metadata("a/1 a/1", &[("a", "3")], &[&[1]])).0, [1, 2], "as many as there are nodes");
}

#[test]
fn a_tablet_gets_its_replicas_in_the_racks_that_its_keyspace_lists() {
    let wanted = |before: &str, racks: &str, tablet: &[u8]| {
        let wanted = [("class", "NetworkTopologyStrategy"), ("a", racks)].map(|(a, b)| (a.into(), b.into()));
        let wanted = Op::PutWantedReplication { keyspace: "ks".into(), replication: Some(wanted.into()) };
        let cluster = metadata("a/1 a/2 a/3 a/3", &[("a", before)], &[tablet]);
        replicas_after(cluster.with(&[wanted]).expect("it fits"))
    };
    assert_eq!(wanted("2", "['1', '2']", &[1, 2]), (vec![1, 2], 2), "they are there");
    assert_eq!(wanted("1", "['2']", &[1]), (vec![2], 2), "it moves");
    assert_eq!(wanted("2", "['1', '2']", &[3, 4]), (vec![2, 1], 2), "one after the other");
    assert_eq!(wanted("2", "['3', '1']", &[4, 3]), (vec![4, 1], 2), "rack 3 had two");
    assert_eq!(wanted("['1']", "['1', '2']", &[1]), (vec![1, 2], 2));
    assert_eq!(wanted("['3', '2', '1']", "['2', '1']", &[1, 2, 3]), (vec![1, 2], 2));
    assert_eq!(wanted("['2', '1']", "['1']", &[1, 2]), (vec![1], 2), "not the last of the list");
    assert_eq!(wanted("['1']", "0", &[1]), (vec![1], 2), "the last replica stays");
}

#[test]
fn an_operator_cannot_move_a_replica_out_of_a_listed_rack() {
    let check = |factor: &str, to: u8| {
        let metadata = metadata("a/1 a/2 a/1 a/3 b/1", &[("a", factor)], &[&[1, 2]]);
        let table = metadata.table_by_id(TABLE).expect("the table");
        let replica = |n| TabletReplica { host: host(n), shard: 0 };
        check_stays_in_rack(&metadata, table, table.tablets.replicas(0), &[replica(to), replica(2)])
    };
    assert_eq!(check("['1', '2']", 3), Ok(()));
    assert!(check("['1', '2']", 4).expect_err("rack 3 is not listed").contains("lists rack 1"));
    assert!(check("['1', '2']", 5).is_err(), "the rack of another datacenter has the same name");
    assert_eq!(check("2", 4), Ok(()));
}

/// The tablets of each node, numbered from 1, after all moves; and the number of moves.
fn settled(mut metadata: Metadata) -> (Vec<usize>, usize) {
    let mut moved = 0;
    loop {
        let moves = next_moves(&metadata, &BTreeSet::new());
        if moves.is_empty() {
            break;
        }
        for Move { table, tablet, new, kind } in moves {
            moved += 1;
            let hosts: BTreeSet<HostId> = new.iter().map(|replica| replica.host).collect();
            assert_eq!(hosts.len(), new.len(), "no node has two replicas");
            let moving = Transition { kind, stage: Stage::Streaming, new_replicas: new, session: None };
            let steps = [
                Op::PutTransition(Box::new(moving.written(table, tablet))),
                Op::EndTransition { table, tablet, moved: true },
            ];
            metadata = metadata.with(&steps).expect("it fits");
        }
    }
    let count = |n: u8| metadata.load(host(n), 2).iter().sum::<u32>() as usize;
    ((1..=metadata.topology.len() as u8).map(count).collect(), moved)
}

#[test]
fn tablets_move_to_a_node_that_has_joined() {
    let tablets: Vec<&[u8]> = [1u8, 2, 3, 1, 2, 3, 1, 2].iter().map(std::slice::from_ref).collect();
    assert_eq!(settled(metadata("a/1 a/1 a/1 a/1", &[("a", "1")], &tablets)), (vec![2, 2, 2, 2], 2));
    let even = metadata("a/1 a/1 a/1", &[("a", "1")], &tablets);
    assert_eq!(next_moves(&even, &BTreeSet::new()), [], "nothing moves without need");
    let off = metadata("a/1 a/1 a/1 a/1", &[("a", "1")], &tablets).with(&[Op::SetBalancing(false)]).expect("it fits");
    assert_eq!(next_moves(&off, &BTreeSet::new()), []);
    let down = BTreeSet::from([host(4)]);
    assert_eq!(next_moves(&metadata("a/1 a/1 a/1 a/1", &[("a", "1")], &tablets), &down), [], "it is down");
}

#[test]
fn balancing_keeps_replicas_in_their_places() {
    let tablets: Vec<&[u8]> = vec![&[1, 2]; 8];
    assert_eq!(settled(metadata("a/1 a/2 a/1", &[("a", "2")], &tablets)), (vec![4, 8, 4], 4), "rack 2 has one node");
    assert_eq!(settled(metadata("a/1 a/1 b/1", &[("a", "2")], &tablets)), (vec![8, 8, 0], 0), "another datacenter");
    let listed = metadata("a/1 a/2 a/3 a/2", &[("a", "['1', '2']")], &tablets);
    assert_eq!(settled(listed), (vec![8, 4, 0, 4], 4), "rack 3 is not listed");
}

proptest! {
    /// Whatever the cluster is like, the moves come to an end; no node has two replicas of a
    /// tablet, and no rack more than it needs to have.
    #[test]
    fn moves_come_to_an_end(
        racks in prop::collection::vec((0..3u8, any::<bool>()), 2..6),
        tablets in (0..5u32).prop_flat_map(|n| prop::collection::vec(prop::collection::btree_set(1..3u8, 1..3), 1 << n)),
    ) {
        let places: Vec<String> =
            racks.iter().map(|(rack, leaves)| format!("a/{rack}{}", if *leaves { "!" } else { "" })).collect();
        let tablets: Vec<Vec<u8>> = tablets.into_iter().map(|nodes| nodes.into_iter().collect()).collect();
        let tablets: Vec<&[u8]> = tablets.iter().map(Vec::as_slice).collect();
        let metadata = metadata(&places.join(" "), &[("a", "2")], &tablets);
        let (_, moved) = settled(metadata);
        prop_assert!(moved <= tablets.len() * 2 * racks.len() * 4, "{} moves", moved);
    }
}

/// Enables moves between shards.
fn with_shard_moves(metadata: &Metadata) -> Metadata {
    let feature = Op::EnableFeatures(vec![features::INTRANODE_MIGRATION.to_owned()]);
    metadata.with(&[feature]).expect("the steps fit")
}

#[test]
fn tablets_move_to_the_shards_of_their_node_that_have_fewer() {
    let one: &[u8] = &[1];
    let two: &[u8] = &[1, 2];
    let even = metadata("a/1 a/1", &[("a", "1")], &[one; 8]).with(&[Op::SetBalancing(false)]).expect("it fits");
    assert_eq!(next_moves(&with_shard_moves(&even), &BTreeSet::new()), [], "balancing is off");
    let replicated = metadata("a/1 a/1", &[("a", "2")], &[two; 4]);
    assert_eq!(next_moves(&replicated, &BTreeSet::new()), [], "the nodes have equally many");
    let mut known = with_shard_moves(&replicated);
    let moves = next_moves(&known, &BTreeSet::new());
    let shards = |one: &Move| one.new.iter().map(|replica| replica.shard).collect::<Vec<_>>();
    assert!(moves.iter().all(|one| one.kind == TransitionKind::IntranodeMigration), "{moves:?}");
    assert_eq!(moves.iter().map(shards).collect::<Vec<_>>(), [[1, 0], [1, 0], [0, 1], [0, 1]]);
    let tablets: BTreeSet<u32> = moves.iter().map(|one| one.tablet).collect();
    assert_eq!(tablets.len(), 4, "a tablet moves once at a time");
    assert_eq!(next_moves(&known, &BTreeSet::from([host(2)])), [], "node 2 takes part in all of them");
    for Move { table, tablet, new, kind } in moves {
        let moving = Transition { kind, stage: Stage::EndMigration, new_replicas: new, session: None };
        let put = Op::PutTransition(Box::new(moving.written(table, tablet)));
        known = known.with(&[put]).expect("it fits");
    }
    assert_eq!(next_moves(&known, &BTreeSet::new()), [], "these moves make the shards even");
    let ends = (0..4).map(|tablet| Op::EndTransition { table: TABLE, tablet, moved: true }).collect::<Vec<_>>();
    let known = known.with(&ends).expect("they fit");
    assert_eq!([1, 2].map(|n| known.load(host(n), 2)), [[2, 2], [2, 2]]);
    assert_eq!(next_moves(&known, &BTreeSet::new()), []);
    let uneven = with_shard_moves(&metadata("a/1", &[("a", "1")], &[one; 8]));
    assert_eq!(next_moves(&uneven, &BTreeSet::new()).len(), AT_ONCE, "a shard sends so many at a time");
}
