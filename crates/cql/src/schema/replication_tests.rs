//! ALTER KEYSPACE and CREATE TABLE in a cluster of several nodes: replication options and their
//! errors.

use super::tests::World;
use cluster::metadata::{Op, own_node};
use cluster::topology::features;
use cluster::{NodeInfo, NodeState};
use model::id::HostId;
use std::rc::Rc;

/// Metadata of a cluster with nodes in these datacenters.
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
fn the_replication_of_tables_changes_by_one_replica_at_a_time() {
    rt::block_on(async {
        let mut world = cluster(&["a", "a", "a", "b", "b"]);
        world
            .run("CREATE KEYSPACE two WITH replication = {'class': 'NetworkTopologyStrategy', 'a': 2, 'b': 1}")
            .unwrap();
        let alter = |options: &str| {
            format!("ALTER KEYSPACE two WITH replication = {{'class': 'NetworkTopologyStrategy', {options}}}")
        };
        let one_step = "Only one DC's RF can be changed at a time and not by more than 1";
        // The keyspace has no tables yet.
        for (options, expected) in
            [("'a': 3, 'b': 2", one_step), ("'a': 3, 'b': 1", "ok 1"), ("'a': 3, 'b': 2", "ok 1")]
        {
            assert_eq!(answer(&mut world, &alter(options)), expected, "{options}");
        }
        world.run("CREATE TABLE two.t (k int PRIMARY KEY)").unwrap();
        let busy = "The replication of keyspace two is being changed already: wait for the end, or alter it back";
        let unknown = "Unrecognized strategy option {c} passed to org.apache.cassandra.locator.NetworkTopologyStrategy for keyspace two (datacenters: a, b)";
        for (options, expected) in [
            ("'a': 3, 'b': 2", "ok 1"),
            ("'b': 2, 'a': 3", "ok 1"),
            ("'a': 2, 'b': 1", one_step),
            ("'a': 1, 'b': 2", one_step),
            ("'a': 4, 'b': 2", "Datacenter a doesn't have enough nodes for replication_factor=4"),
            ("'a': 3, 'b': 2, 'c': 1", unknown),
            ("'a': 'many'", "Replication factor must be numeric and non-negative, found 'many'"),
            // Levels count fewer replicas at once.
            ("'a': 2, 'b': 2", "ok 2"),
            ("'a': 2, 'b': 1", busy),
            ("'a': 2, 'b': 2", "ok 2"),
        ] {
            assert_eq!(answer(&mut world, &alter(options)), expected, "{options}");
        }
        let factor = |world: &World| world.metadata.keyspace("two").unwrap().definition.replication["a"].clone();
        assert_eq!(factor(&world), "2");
        let end = [Op::PutWantedReplication { keyspace: "two".into(), replication: None }];
        world.metadata = Rc::new(world.metadata.with(&end).unwrap());
        // Levels count more replicas only once they are there.
        for (options, expected) in [("'a': 3, 'b': 2", "ok 2"), ("'a': 3, 'b': 2", "ok 2"), ("'a': 2, 'b': 3", busy)] {
            assert_eq!(answer(&mut world, &alter(options)), expected, "{options}");
            assert_eq!(factor(&world), "2");
        }
        assert_eq!(answer(&mut world, &alter("'a': 2, 'b': 2")), "ok 2", "it is taken back");
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
            // `replication_factor` applies to datacenters without a factor.
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

#[test]
fn a_factor_can_be_a_list_of_racks() {
    rt::block_on(async {
        // The racks of datacenter a are r0, r1 and r2, that of b is r3.
        let mut world = cluster(&["a", "a", "a", "b"]);
        let create = |name: &str, options: &str| format!("CREATE KEYSPACE {name} WITH replication = {{{options}}}");
        world.run(&create("k", "'class': 'NetworkTopologyStrategy', 'a': ['r0', 'r2'], 'b': 1")).unwrap();
        let stored = |world: &World| world.metadata.keyspace("k").unwrap().definition.replication.clone();
        let class = "org.apache.cassandra.locator.NetworkTopologyStrategy";
        let expected = [("a", "['r0', 'r2']"), ("b", "1"), ("class", class)];
        assert_eq!(stored(&world), expected.map(|(name, value)| (name.to_owned(), value.to_owned())).into());
        let described = crate::describe::statement::create_keyspace(&world.metadata.keyspace("k").unwrap().definition);
        assert!(described.contains(&format!("{{'class': '{class}', 'a': ['r0', 'r2'], 'b': '1'}}")), "{described}");
        let again = described.replacen(" k ", " again ", 1);
        world.run(&again).unwrap();
        assert_eq!(world.metadata.keyspace("again").unwrap().definition.replication, stored(&world));

        for (options, words) in [
            ("'class': 'NetworkTopologyStrategy', 'a': ['r0', 'r9']", "Rack r9 doesn't exist in datacenter a"),
            ("'class': 'NetworkTopologyStrategy', 'a': ['r0', 'r3']", "Rack r3 doesn't exist in datacenter a"),
            ("'class': 'NetworkTopologyStrategy', 'a': ['r0', 'r0']", "Rack r0 is listed twice for datacenter a"),
            ("'class': 'NetworkTopologyStrategy', 'c': ['r0']", "Unrecognized strategy option {c}"),
            ("'class': 'NetworkTopologyStrategy', 'replication_factor': ['r0']", "Replication factor must be numeric"),
            ("'class': 'SimpleStrategy', 'replication_factor': ['r0']", "Replication factor must be numeric"),
            ("'a': [1, 2]", "It should be a map of strings"),
        ] {
            let answer = answer(&mut world, &create("bad", options));
            assert!(answer.contains(words), "{options}: {answer}");
        }
        let without = format!("{} AND tablets = {{'enabled': false}}", create("bad", "'a': ['r0']"));
        assert!(answer(&mut world, &without).contains("has no tablets"));

        world.run("CREATE TABLE k.t (p int PRIMARY KEY)").unwrap();
        let table = world.metadata.table("k", "t").unwrap().clone();
        for tablet in 0..table.tablets.count() {
            let mut hosts: Vec<u8> =
                table.tablets.replicas(tablet).iter().map(|replica| replica.host.0.as_bytes()[0]).collect();
            hosts.sort();
            assert_eq!(hosts, [1, 3, 4], "one copy in each of r0, r2 and r3");
        }
    });
}

#[test]
fn a_list_of_racks_is_altered_by_one_rack() {
    rt::block_on(async {
        let mut world = cluster(&["a", "a", "a", "b"]);
        world.run("CREATE KEYSPACE k WITH replication = {'a': 2, 'b': 1}").unwrap();
        let alter = |options: &str| format!("ALTER KEYSPACE k WITH replication = {{{options}}}");
        let one_rack = "The rack list of datacenter a can be altered by one rack at a time";
        let only_converts = "cannot change a number of replicas";
        for (options, expected) in [
            // From a number to a list: the same number of replicas, and no other change.
            ("'a': ['r0', 'r1', 'r2'], 'b': 1", only_converts),
            ("'a': ['r0', 'r1'], 'b': 0", only_converts),
            ("'a': ['r0', 'r1'], 'b': 1", "ok 1"),
            // From list to list.
            ("'a': ['r0', 'r2'], 'b': 1", one_rack),
            ("'a': ['r0', 'r1', 'r2'], 'b': 1", "ok 1"),
            ("'a': ['r2', 'r1'], 'b': 1", "ok 1"),
            // From a list to a number: only its length is accepted, and keeps the list.
            ("'a': 3, 'b': 1", "is a rack list and cannot be altered to the number 3"),
            ("'a': 2, 'b': 1", "ok 1"),
            ("'a': ['r2'], 'b': 1", "ok 1"),
            ("'a': [], 'b': 1", "ok 1"),
        ] {
            let answer = answer(&mut world, &alter(options));
            assert!(answer.contains(expected), "{options}: {answer}");
            if options == "'a': 2, 'b': 1" {
                let replication = &world.metadata.keyspace("k").unwrap().definition.replication;
                assert_eq!(replication["a"], "['r2', 'r1']");
            }
        }
        assert_eq!(world.metadata.keyspace("k").unwrap().definition.replication["a"], "0");
    });
}

#[test]
fn tables_move_to_listed_racks() {
    rt::block_on(async {
        // The racks of datacenter a are r0, r1 and r2, that of b is r3.
        let mut world = cluster(&["a", "a", "a", "b"]);
        let stream = [Op::EnableFeatures(vec![features::FILE_STREAM.to_owned()])];
        world.metadata = Rc::new(world.metadata.with(&stream).unwrap());
        world.run("CREATE KEYSPACE t WITH replication = {'b': 1}").unwrap();
        world.run("CREATE TABLE t.t (p int PRIMARY KEY)").unwrap();
        let in_place = answer(&mut world, "ALTER KEYSPACE t WITH replication = {'b': ['r3']}");
        assert_eq!(in_place, "ok 1", "the replicas are there");
        world.run("CREATE KEYSPACE u WITH replication = {'a': 1}").unwrap();
        world.run("CREATE TABLE u.t (p int PRIMARY KEY)").unwrap();
        let stored = |world: &World| {
            let keyspace = world.metadata.keyspace("u").unwrap();
            let wanted = keyspace.wanted_replication.as_ref().map(|options| options["a"].clone());
            (keyspace.definition.replication["a"].clone(), wanted)
        };
        let has = |known: &str, wanted: Option<&str>| (known.to_owned(), wanted.map(str::to_owned));
        let end = |world: &mut World| {
            let options = world.metadata.keyspace("u").unwrap().wanted_replication.clone().unwrap();
            let mut definition = world.metadata.keyspace("u").unwrap().definition.clone();
            definition.replication = options;
            let ops =
                [Op::PutKeyspace(definition), Op::PutWantedReplication { keyspace: "u".into(), replication: None }];
            world.metadata = Rc::new(world.metadata.with(&ops).unwrap());
        };
        let busy = "is being changed already";
        for (racks, expected, known, wanted) in [
            ("['r1']", "ok 2", "1", Some("['r1']")),
            ("['r2']", busy, "1", Some("['r1']")),
            ("['r9']", "Rack r9 doesn't exist in datacenter a", "1", Some("['r1']")),
            ("['r1']", "ok 2", "1", Some("['r1']")),
            ("1", "ok 2", "1", Some("1")),
        ] {
            let answer = answer(&mut world, &format!("ALTER KEYSPACE u WITH replication = {{'a': {racks}}}"));
            assert!(answer.contains(expected), "{racks}: {answer}");
            assert_eq!(stored(&world), has(known, wanted), "{racks}");
        }
        end(&mut world);
        for (racks, known, wanted) in [
            ("['r1']", "1", "['r1']"),
            // Levels count two replicas once they are there, and one at once.
            ("['r1', 'r0']", "['r1']", "['r1', 'r0']"),
            ("['r0']", "['r0']", "['r0']"),
        ] {
            let answer = answer(&mut world, &format!("ALTER KEYSPACE u WITH replication = {{'a': {racks}}}"));
            assert_eq!(answer, "ok 2", "{racks}");
            assert_eq!(stored(&world), has(known, Some(wanted)), "{racks}");
            end(&mut world);
            assert_eq!(stored(&world), has(wanted, None));
        }
    });
}

#[test]
fn the_replication_of_traces_can_be_altered() {
    rt::block_on(async {
        let mut world = cluster(&["a", "a", "a"]);
        let replication =
            |world: &World| world.metadata.keyspace("system_traces").unwrap().definition.replication.clone();
        let simple = |factor: &str| {
            let class = "org.apache.cassandra.locator.SimpleStrategy";
            [("class", class), ("replication_factor", factor)].map(|(name, value)| (name.to_owned(), value.to_owned()))
        };
        assert_eq!(replication(&world), simple("2").into());
        let alter = |replication: &str| format!("ALTER KEYSPACE system_traces WITH replication = {replication}");
        assert_eq!(answer(&mut world, &alter("{'class': 'SimpleStrategy', 'replication_factor': 3}")), "ok 1");
        assert_eq!(replication(&world), simple("3").into());
        assert_eq!(answer(&mut world, &alter("{'class': 'NetworkTopologyStrategy', 'a': 1}")), "ok 1");
        assert_eq!(replication(&world)["a"], "1");
        assert_eq!(world.metadata.keyspace("system_traces").unwrap().tables.len(), 4);
        for text in ["DROP KEYSPACE system_traces", "CREATE TABLE system_traces.t (p int PRIMARY KEY)"] {
            assert!(answer(&mut world, text).contains("not user-modifiable"), "{text}");
        }
    });
}
