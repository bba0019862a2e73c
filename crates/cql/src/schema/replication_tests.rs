//! What ALTER KEYSPACE and CREATE TABLE say of copies in a cluster of several nodes.

use super::tests::World;
use cluster::metadata::{Op, own_node};
use cluster::{NodeInfo, NodeState};
use model::id::HostId;
use std::rc::Rc;

/// A world of nodes in these datacenters.
fn cluster(datacenters: &[&str]) -> World {
    let mut world = World::new();
    let node = |(n, datacenter): (usize, &&str)| {
        let info = NodeInfo {
            host_id: HostId::from_bytes([n as u8 + 1; 16]),
            datacenter: (*datacenter).to_owned(),
            rack: format!("r{n}"),
            ..(*world.node).clone()
        };
        Op::PutNode(Box::new(own_node(&info, NodeState::Normal)))
    };
    let ops: Vec<Op> = datacenters.iter().enumerate().map(node).collect();
    world.metadata = Rc::new(world.metadata.with(&ops).unwrap());
    world
}

fn answer(world: &mut World, text: &str) -> String {
    world.run(text).map_or_else(|error| error.to_string(), |made| format!("ok {}", made.ops.len()))
}

#[test]
fn replication_of_tables_can_be_said_otherwise_and_not_changed() {
    rt::block_on(async {
        let mut world = cluster(&["a", "a", "a", "b", "b"]);
        world
            .run("CREATE KEYSPACE two WITH replication = {'class': 'NetworkTopologyStrategy', 'a': 2, 'b': 1}")
            .unwrap();
        let alter = |options: &str| {
            format!("ALTER KEYSPACE two WITH replication = {{'class': 'NetworkTopologyStrategy', {options}}}")
        };
        let one_step = "Only one DC's RF can be changed at a time and not by more than 1";
        // It has no tables yet.
        for (options, expected) in
            [("'a': 3, 'b': 2", one_step), ("'a': 3, 'b': 1", "ok 1"), ("'a': 3, 'b': 2", "ok 1")]
        {
            assert_eq!(answer(&mut world, &alter(options)), expected, "{options}");
        }
        world.run("CREATE TABLE two.t (k int PRIMARY KEY)").unwrap();
        let not_yet = "changing how many copies there are of the tables of a keyspace is not supported yet";
        let unknown = "Unrecognized strategy option {c} passed to org.apache.cassandra.locator.NetworkTopologyStrategy for keyspace two";
        for (options, expected) in [
            ("'a': 3, 'b': 2", "ok 1"),
            ("'b': 2, 'a': 3", "ok 1"),
            ("'a': 2, 'b': 2", not_yet),
            ("'a': 3, 'b': 1", not_yet),
            ("'a': 2, 'b': 1", one_step),
            ("'a': 1, 'b': 2", one_step),
            ("'a': 4, 'b': 2", "Datacenter a doesn't have enough nodes for replication_factor=4"),
            ("'a': 3, 'b': 2, 'c': 1", unknown),
            ("'a': 'many'", "Replication factor must be numeric and non-negative, found 'many'"),
        ] {
            assert_eq!(answer(&mut world, &alter(options)), expected, "{options}");
        }
    });
}

#[test]
fn a_factor_changes_by_one_at_a_time_also_without_tables() {
    rt::block_on(async {
        let mut world = World::new();
        let one_step = "Only one DC's RF can be changed at a time and not by more than 1";
        let network = |factor: &str| format!("{{'class': 'NetworkTopologyStrategy', {factor}}}");
        let simple = |factor: u32| format!("{{'class': 'SimpleStrategy', 'replication_factor': {factor}}}");
        world.run(&format!("CREATE KEYSPACE one WITH replication = {}", network("'datacenter1': 1"))).unwrap();
        world.run(&format!("CREATE KEYSPACE simple WITH replication = {}", simple(1))).unwrap();
        let without = "tablets = {'enabled': false}";
        world
            .run(&format!("CREATE KEYSPACE free WITH replication = {} AND {without}", network("'datacenter1': 1")))
            .unwrap();
        for (keyspace, replication, expected) in [
            ("one", network("'datacenter1': 3"), one_step),
            // It speaks for datacenters that have no factor yet.
            ("one", network("'replication_factor': 3"), "ok 1"),
            ("one", network("'datacenter1': 4294967295"), one_step),
            ("one", network("'datacenter1': 2"), "ok 1"),
            ("one", network("'datacenter1': 2"), "ok 1"),
            ("one", network("'datacenter1': 3"), "ok 1"),
            ("one", network("'datacenter1': 1"), one_step),
            ("one", network("'datacenter1': 0"), one_step),
            ("free", network("'datacenter1': 3"), "ok 1"),
            ("simple", simple(3), "ok 1"),
            ("simple", network("'datacenter1': 1"), "ok 1"),
        ] {
            let text = format!("ALTER KEYSPACE {keyspace} WITH replication = {replication}");
            assert_eq!(answer(&mut world, &text), expected, "{text}");
        }
    });
}

#[test]
fn more_copies_than_nodes_are_refused_with_the_table() {
    rt::block_on(async {
        let mut world = cluster(&["a", "a"]);
        let made =
            world.run("CREATE KEYSPACE three WITH replication = {'class': 'NetworkTopologyStrategy', 'a': 3}").unwrap();
        let few = "Datacenter a doesn't have enough nodes for replication_factor=3";
        assert!(made.warnings.iter().any(|warning| warning.contains(few)), "{:?}", made.warnings);
        assert!(answer(&mut world, "CREATE TABLE three.t (k int PRIMARY KEY)").contains(few));
        assert_eq!(
            answer(&mut world, "CREATE KEYSPACE odd WITH replication = {'class': 'OddStrategy', 'a': 1}"),
            "Unable to find replication strategy class 'org.apache.cassandra.locator.OddStrategy'"
        );
    });
}
