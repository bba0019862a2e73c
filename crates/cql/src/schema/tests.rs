//! Statements and their changes of the metadata: definitions, operations, errors.

use super::{PlannedChange, checked, qualify};
use crate::api::{SchemaAction, SchemaChange, SchemaTarget};
use crate::error::Error;
use crate::guardrails::Guardrails;
use crate::syntax;
use cluster::Metadata;
use cluster::metadata::{NodeInfo, Op, builtin};
use model::id::HostId;
use model::schema::{ColumnKind, TableSchema};
use std::net::IpAddr;
use std::rc::Rc;

/// Metadata for statements to change, without a node.
pub(crate) struct World {
    pub(crate) metadata: Rc<Metadata>,
    pub(crate) node: Rc<NodeInfo>,
    guardrails: Guardrails,
}

impl World {
    /// The metadata of a new node, and the keyspace `ks`.
    pub(crate) fn new() -> World {
        let features = Op::EnableFeatures(cluster::topology::features::supported());
        let metadata = Metadata::empty().with(&builtin::ops()).unwrap().with(&[features]).unwrap();
        let mut world = World { metadata: Rc::new(metadata), node: Rc::new(node()), guardrails: Guardrails::default() };
        world
            .run("CREATE KEYSPACE ks WITH replication = {'class': 'NetworkTopologyStrategy', 'replication_factor': 1}")
            .unwrap();
        world
    }

    /// Applies the change of a statement. Unqualified names are in `ks`.
    pub(crate) fn run(&mut self, text: &str) -> Result<PlannedChange, Error> {
        let mut statement = syntax::parse(text).map_err(|error| Error::Syntax(error.to_string()))?.statement;
        qualify(&mut statement, Some("ks"))?;
        let made = checked(&self.metadata, &self.node, &self.guardrails, &statement, &rt::time::wall_micros)?;
        let metadata = self.metadata.with(&made.ops).expect("the steps of a statement fit");
        metadata.check_restorable(&made.ops).expect("a node can start with the metadata");
        self.metadata = Rc::new(metadata);
        Ok(made)
    }

    pub(super) fn all(&mut self, texts: &[&str]) {
        for text in texts {
            self.run(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        }
    }

    /// Disables all features, as if another member lacked them.
    pub(super) fn forget_features(&mut self) {
        let mut metadata = (*self.metadata).clone();
        metadata.topology = cluster::topology::Topology::default();
        self.metadata = Rc::new(metadata);
    }

    pub(crate) fn schema(&self, name: &str) -> Rc<TableSchema> {
        self.metadata.table("ks", name).expect("the table is there").schema.clone()
    }

    /// Checks that the statement is refused with this code and message, and changes nothing.
    #[track_caller]
    pub(super) fn refused(&mut self, text: &str, code: i32, words: &str) {
        let version = self.metadata.keyspaces.len();
        match self.run(text) {
            Ok(made) => panic!("{text}: made {:?}", made.change),
            Err(error) => {
                assert_eq!(error.code(), code, "{text}: {error}");
                assert!(error.to_string().contains(words), "{text}: {error}");
            }
        }
        assert_eq!(self.metadata.keyspaces.len(), version);
    }
}

fn node() -> NodeInfo {
    let address: IpAddr = "127.0.0.1".parse().unwrap();
    NodeInfo {
        host_id: HostId::from_bytes([9; 16]),
        cluster_name: "Test Cluster".into(),
        shards: 2,
        datacenter: "datacenter1".into(),
        rack: "rack1".into(),
        rpc_address: address,
        listen_address: address,
        broadcast_address: address,
        native_port: 9042,
        shard_aware_port: 19042,
        storage_port: 7000,
        release_version: "4.1.7".into(),
        started_micros: 1_700_000_000_000_000,
    }
}

pub(super) fn in_world(test: impl FnOnce(&mut World)) {
    rt::block_on(async { test(&mut World::new()) });
}

pub(super) const SYNTAX: i32 = 0x2000;
const UNAUTHORIZED: i32 = 0x2100;
pub(super) const INVALID: i32 = 0x2200;
pub(super) const CONFIGURATION: i32 = 0x2300;
const EXISTS: i32 = 0x2400;

#[test]
fn create_table_keeps_the_declared_columns() {
    in_world(|world| {
        world.run(
            "CREATE TABLE t (a int, b text, c int, d bigint, m map<int, text>, s set<int> STATIC, z frozen<map<text, int>>, y int, \
             PRIMARY KEY ((a, b), c, d)) WITH CLUSTERING ORDER BY (c DESC, d ASC)",
        )
        .unwrap();
        let schema = world.schema("t");
        let columns: Vec<_> = schema
            .all_columns()
            .map(|c| (c.name.as_str(), c.kind, c.ty.to_string(), c.descending, c.position))
            .collect();
        use ColumnKind::*;
        assert_eq!(
            columns,
            [
                ("a", PartitionKey, "int".into(), false, 0),
                ("b", PartitionKey, "text".into(), false, 1),
                ("c", Clustering, "int".into(), true, 0),
                ("d", Clustering, "bigint".to_string(), false, 1),
                ("s", Static, "set<int>".into(), false, 0),
                ("m", Regular, "map<int, text>".into(), false, 0),
                ("y", Regular, "int".into(), false, 1),
                ("z", Regular, "frozen<map<text, int>>".into(), false, 2),
            ]
        );
        let id = |name: &str| schema.column_named(name).unwrap().id.0;
        assert_eq!(
            [id("y"), id("z"), id("m"), id("s")],
            [0, 1, 2, 3],
            "simple columns first, then those of many cells"
        );
        let table = world.metadata.table("ks", "t").unwrap();
        assert_eq!(table.tablets.count(), 16);
        assert!((0..16).all(|tablet| table.tablets.replicas(tablet).len() == 1));
    });
}

#[test]
fn statements_that_change_nothing_report_no_schema_change() {
    in_world(|world| {
        let made = world.run("CREATE TABLE IF NOT EXISTS t (pk int PRIMARY KEY)").unwrap();
        let change = SchemaChange {
            action: SchemaAction::Created,
            target: SchemaTarget::Table("t".into()),
            keyspace: "ks".into(),
        };
        assert_eq!(made.change, Some(change));
        for text in [
            "CREATE TABLE IF NOT EXISTS t (other text PRIMARY KEY)",
            "CREATE KEYSPACE IF NOT EXISTS ks",
            "DROP TABLE IF EXISTS nothing",
            "DROP KEYSPACE IF EXISTS nothing",
            "DROP TYPE IF EXISTS nothing",
            "ALTER TABLE IF EXISTS nothing ADD v int",
            "ALTER TABLE t ADD IF NOT EXISTS pk int",
        ] {
            let made = world.run(text).unwrap();
            assert!(made.ops.is_empty() && made.change.is_none(), "{text}");
        }
    });
}

/// Checks statements that are refused, each with its code and message, on some types and a table.
fn are_refused(statements: &[(&str, i32, &str)]) {
    in_world(|world| {
        world.all(&[
            "CREATE TYPE u (a int)",
            "CREATE TYPE holder (l list<int>)",
            "CREATE TABLE there (pk int PRIMARY KEY, v int)",
        ]);
        for (text, code, words) in statements {
            world.refused(text, *code, words);
        }
    });
}

#[test]
fn keyspaces_are_refused_with_their_code() {
    are_refused(&[
        ("CREATE KEYSPACE ks", EXISTS, "Cannot add existing keyspace"),
        ("CREATE KEYSPACE \"a-b\"", INVALID, "not a valid keyspace name"),
        ("CREATE KEYSPACE system", UNAUTHORIZED, "not user-modifiable"),
        (
            "CREATE KEYSPACE k WITH replication = {'class': 'NoSuchStrategy'}",
            CONFIGURATION,
            "Unable to find replication",
        ),
        (
            "CREATE KEYSPACE k WITH replication = {'class': 'SimpleStrategy'}",
            CONFIGURATION,
            "requires a replication_factor",
        ),
        ("CREATE KEYSPACE k WITH replication = {'class': 'LocalStrategy'}", CONFIGURATION, "internal"),
        (
            "CREATE KEYSPACE k WITH replication = {'replication_factor': -1}",
            CONFIGURATION,
            "numeric and non-negative, found '-1'",
        ),
        ("CREATE KEYSPACE k WITH replication = {'dc9': 1}", CONFIGURATION, "Unrecognized strategy option {dc9}"),
        ("CREATE KEYSPACE k WITH replication = 'SimpleStrategy'", SYNTAX, "should be a map"),
        ("CREATE KEYSPACE k WITH nothing = 1", SYNTAX, "Unknown property 'nothing'"),
        ("CREATE KEYSPACE k WITH durable_writes = true AND durable_writes = true", SYNTAX, "Multiple definition"),
        ("ALTER KEYSPACE nothing WITH durable_writes = true", INVALID, "Unknown keyspace nothing"),
        ("DROP KEYSPACE nothing", CONFIGURATION, "Cannot drop non existing keyspace 'nothing'"),
        ("DROP KEYSPACE system_traces", UNAUTHORIZED, "not user-modifiable"),
    ]);
}

#[test]
fn new_tables_are_refused_with_their_code() {
    are_refused(&[
        ("CREATE TABLE there (pk int PRIMARY KEY)", EXISTS, "already existing table \"there\""),
        ("CREATE TABLE nothing.t (pk int PRIMARY KEY)", INVALID, "non-existent keyspace: nothing"),
        ("CREATE TABLE system.t (pk int PRIMARY KEY)", UNAUTHORIZED, "not user-modifiable"),
        ("CREATE TABLE \"../up\" (pk int PRIMARY KEY)", INVALID, "not a valid table name"),
        ("CREATE TABLE t (pk int)", INVALID, "No PRIMARY KEY"),
        ("CREATE TABLE t (pk int PRIMARY KEY, v int PRIMARY KEY)", INVALID, "Multiple PRIMARY KEYs"),
        ("CREATE TABLE t (pk int, pk int, PRIMARY KEY (pk))", INVALID, "Multiple definition of identifier pk"),
        ("CREATE TABLE t (pk int, PRIMARY KEY (x))", INVALID, "Unknown definition x referenced in PRIMARY KEY"),
        ("CREATE TABLE t (pk int, PRIMARY KEY (pk, pk))", INVALID, "Unknown definition pk referenced in PRIMARY KEY"),
        ("CREATE TABLE t (pk list<int> PRIMARY KEY)", INVALID, "Invalid non-frozen collection type for PRIMARY KEY"),
        ("CREATE TABLE t (pk u PRIMARY KEY)", INVALID, "Invalid non-frozen user-defined type for PRIMARY KEY"),
        ("CREATE TABLE t (pk counter PRIMARY KEY)", INVALID, "counter type is not supported for PRIMARY KEY part pk"),
        ("CREATE TABLE t (pk tuple<int, duration> PRIMARY KEY)", INVALID, "duration type is not supported"),
        ("CREATE TABLE t (pk int PRIMARY KEY, s int STATIC)", INVALID, "at least one clustering column"),
        ("CREATE TABLE t (pk int STATIC, c int, PRIMARY KEY (pk, c))", INVALID, "Static column pk cannot be part"),
        (
            "CREATE TABLE t (pk int PRIMARY KEY, c counter, v int)",
            CONFIGURATION,
            "Cannot add a non counter column (v) in a counter column family",
        ),
        (
            "CREATE TABLE t (pk int PRIMARY KEY, c counter) WITH default_time_to_live = 1",
            INVALID,
            "Cannot set default_time_to_live on a table with counters",
        ),
        ("CREATE TABLE t (pk int PRIMARY KEY, v nothing)", INVALID, "Unknown type ks.nothing"),
        ("CREATE TABLE t (pk int PRIMARY KEY, v other.u)", INVALID, "cannot refer to a user type in keyspace other"),
        (
            "CREATE TABLE t (pk int PRIMARY KEY, v list<list<int>>)",
            INVALID,
            "Non-frozen collections are not allowed inside",
        ),
        ("CREATE TABLE t (pk int PRIMARY KEY, v map<int, ks.u>)", INVALID, "inside collections: map<int, ks.u>"),
        (
            "CREATE TABLE t (pk int PRIMARY KEY, v list<u>)",
            INVALID,
            "Non-frozen UDTs are not allowed inside collections",
        ),
        ("CREATE TABLE t (pk int PRIMARY KEY, v holder)", INVALID, "nested non-frozen collections"),
        ("CREATE TABLE t (pk int PRIMARY KEY, v set<duration>)", INVALID, "Durations are not allowed inside sets"),
        ("CREATE TABLE t (pk int PRIMARY KEY, v frozen<int>)", INVALID, "frozen<> is only allowed"),
        ("CREATE TABLE t (pk int PRIMARY KEY, v vector<int, 0>)", INVALID, "Vectors must have"),
        ("CREATE TABLE t (pk int PRIMARY KEY) WITH COMPACT STORAGE", INVALID, "COMPACT STORAGE"),
        (
            "CREATE TABLE t (pk int, c int, PRIMARY KEY (pk, c)) WITH CLUSTERING ORDER BY (x ASC)",
            INVALID,
            "Missing CLUSTERING ORDER for column c",
        ),
        (
            "CREATE TABLE t (pk int, c int, d int, PRIMARY KEY (pk, c, d)) WITH CLUSTERING ORDER BY (d ASC, c ASC)",
            INVALID,
            "must appear before",
        ),
        (
            "CREATE TABLE t (pk int PRIMARY KEY) WITH CLUSTERING ORDER BY (pk ASC)",
            INVALID,
            "Only clustering key columns",
        ),
        ("CREATE TABLE t (pk int PRIMARY KEY) WITH id = 55", CONFIGURATION, "Invalid table id"),
    ]);
}

#[test]
fn changes_of_tables_are_refused_with_their_code() {
    are_refused(&[
        ("ALTER TABLE there WITH id = 5a1c395e-b41f-11e5-9f22-ba0be0483c18", CONFIGURATION, "Cannot alter table id"),
        ("ALTER TABLE nothing ADD v int", INVALID, "unconfigured table nothing"),
        ("ALTER TABLE there ADD v int", INVALID, "conflicts with an existing column"),
        ("ALTER TABLE there ADD pk int", INVALID, "conflicts with a PRIMARY KEY part"),
        ("ALTER TABLE there ADD s int STATIC", INVALID, "at least one clustering column"),
        ("ALTER TABLE there ADD c counter", CONFIGURATION, "Cannot add a counter column"),
        ("ALTER TABLE there DROP pk", INVALID, "Cannot drop PRIMARY KEY part pk"),
        ("ALTER TABLE there DROP x", INVALID, "Column x was not found"),
        ("ALTER TABLE there RENAME v TO w", INVALID, "Cannot rename non PRIMARY KEY part v"),
        ("ALTER TABLE there RENAME pk TO v", INVALID, "another column of that name already exist"),
        ("ALTER TABLE there RENAME x TO y", INVALID, "Cannot rename unknown column x"),
        ("ALTER TABLE there ALTER v TYPE text", CONFIGURATION, "Cannot change v from type int to type text"),
        ("DROP TABLE nothing", INVALID, "Cannot drop non existing table 'nothing' in keyspace 'ks'"),
        ("DROP TABLE nothing.t", INVALID, "nothing"),
        ("DROP TABLE system.local", UNAUTHORIZED, "not user-modifiable"),
    ]);
}

#[test]
fn types_are_refused_with_their_code() {
    are_refused(&[
        ("CREATE TYPE u (a int)", INVALID, "already exists"),
        ("CREATE TYPE v (a int, a text)", INVALID, "Duplicate field name a"),
        ("CREATE TYPE v (a counter)", INVALID, "cannot contain counters"),
        ("CREATE TYPE v (a u)", INVALID, "non-frozen user type fields"),
        ("CREATE TYPE nothing.v (a int)", INVALID, "Keyspace nothing does not exist"),
        ("ALTER TYPE nothing ADD a int", INVALID, "No user type named ks.nothing"),
        ("ALTER TYPE u ADD a int", INVALID, "a field of the same name already exists"),
        ("ALTER TYPE u ADD b frozen<u>", INVALID, "circular reference"),
        ("ALTER TYPE u RENAME x TO y", INVALID, "Unknown field x"),
        ("ALTER TYPE u ALTER a TYPE text", INVALID, "incompatible with previous type int"),
        ("DROP TYPE nothing", INVALID, "No user type named ks.nothing"),
    ]);
}

#[test]
fn added_columns_take_new_ids_and_dropped_ones_are_remembered() {
    in_world(|world| {
        world.all(&["CREATE TABLE t (pk int, c int, v int, PRIMARY KEY (pk, c))"]);
        let before = world.schema("t");
        world.all(&["ALTER TABLE t ADD (w text, s set<int> STATIC)", "ALTER TABLE t DROP v USING TIMESTAMP 2000"]);
        let schema = world.schema("t");
        assert_ne!(before.version, schema.version);
        assert_eq!(before.id, schema.id);
        let id = |name: &str| schema.column_named(name).unwrap().id.0;
        assert_eq!([id("w"), id("s")], [1, 2]);
        assert_eq!((schema.dropped[0].id.0, schema.dropped[0].drop_time), (0, 2000));
        world.refused("ALTER TABLE t ADD v text", INVALID, "incompatible with previous type int");
        world.refused(
            "ALTER TABLE t ADD v int STATIC",
            INVALID,
            "of kind STATIC, incompatible with previous kind REGULAR",
        );
        world.all(&["ALTER TABLE t ADD v int"]);
        assert_eq!(world.schema("t").column_named("v").unwrap().id.0, 3, "an id is never used again");
        world.all(&["ALTER TABLE t DROP (v, w)", "ALTER TABLE t RENAME pk TO a AND c TO b"]);
        let schema = world.schema("t");
        assert_eq!(schema.all_columns().map(|column| column.name.as_str()).collect::<Vec<_>>(), ["a", "b", "s"]);
        assert_eq!(schema.dropped.len(), 3);
    });
}

#[test]
fn a_changed_type_changes_what_uses_it() {
    in_world(|world| {
        world.all(&[
            "CREATE TYPE u (a int)",
            "CREATE TYPE outer_type (i frozen<u>)",
            "CREATE TABLE direct (pk int PRIMARY KEY, v u, l list<frozen<u>>)",
            "CREATE TABLE nested (pk int PRIMARY KEY, v frozen<outer_type>)",
            "CREATE TABLE free (pk int PRIMARY KEY, v int)",
        ]);
        let before: Vec<_> = ["direct", "nested", "free"].iter().map(|name| world.schema(name)).collect();
        world.all(&["ALTER TYPE u ADD b text", "ALTER TYPE u RENAME a TO z"]);
        let after: Vec<_> = ["direct", "nested", "free"].iter().map(|name| world.schema(name)).collect();
        assert_ne!(before[0].version, after[0].version);
        assert_ne!(before[1].version, after[1].version);
        assert_eq!(before[2].version, after[2].version);
        let mut fields = Vec::new();
        after[1].column_named("v").unwrap().ty.any(&mut |ty| {
            if let model::CqlType::Udt(user_type) = ty {
                fields.push(user_type.fields.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>());
            }
            false
        });
        assert_eq!(fields, [vec!["i".to_owned()], vec!["z".to_owned(), "b".to_owned()]]);
        for (text, words) in [
            ("DROP TYPE u", "still used by user type outer_type"),
            ("DROP TYPE outer_type", "still used by table ks.nested"),
            ("ALTER TYPE u ADD c frozen<outer_type>", "circular"),
        ] {
            world.refused(text, INVALID, words);
        }
        world.all(&["DROP TABLE nested", "DROP TYPE outer_type", "DROP TABLE direct", "DROP TYPE u"]);
        assert!(world.metadata.keyspace("ks").unwrap().types.is_empty());
    });
}

#[test]
fn a_type_never_contains_itself() {
    in_world(|world| {
        world.all(&[
            "CREATE TYPE a (x tuple<int>)",
            "CREATE TYPE b (x frozen<a>)",
            "CREATE TYPE c (x frozen<list<frozen<b>>>)",
            "CREATE TYPE d (x tuple<frozen<c>, int>)",
        ]);
        for used in ["a", "b", "c", "d"] {
            for change in [
                format!("ADD y frozen<{used}>"),
                format!("ADD y frozen<map<int, tuple<frozen<{used}>>>>"),
                format!("ALTER x TYPE tuple<int, frozen<{used}>>"),
                format!("ALTER x TYPE frozen<tuple<int, int, frozen<set<frozen<{used}>>>>>"),
            ] {
                world.refused(&format!("ALTER TYPE a {change}"), INVALID, "would create a circular reference");
            }
        }
        world.all(&["ALTER TYPE d ALTER x TYPE tuple<frozen<c>, int, frozen<a>>", "ALTER TYPE a ADD y int"]);
    });
}

#[test]
fn no_field_brings_durations_where_values_are_ordered() {
    in_world(|world| {
        world.all(&[
            "CREATE TYPE u (x tuple<int>)",
            "CREATE TYPE holder (x frozen<u>)",
            "CREATE TABLE free (pk int PRIMARY KEY, v frozen<holder>, w u)",
            "ALTER TYPE u ALTER x TYPE tuple<int, duration>",
            "ALTER TYPE u ADD y duration",
            "CREATE TYPE c (x tuple<int>)",
            "CREATE TYPE c_holder (x frozen<c>)",
            "CREATE TABLE by_row (pk int, ck frozen<c_holder>, PRIMARY KEY (pk, ck))",
            "CREATE TYPE p (x tuple<int>)",
            "CREATE TABLE by_partition (pk frozen<p> PRIMARY KEY)",
            "CREATE TYPE s (x tuple<int>)",
            "CREATE TABLE by_element (pk int PRIMARY KEY, v set<frozen<s>>)",
        ]);
        for (name, words) in [("c", "clustering key column ck"), ("p", ""), ("s", "not allowed inside sets")] {
            world.refused(&format!("ALTER TYPE {name} ADD y duration"), INVALID, words);
            world.refused(&format!("ALTER TYPE {name} ALTER x TYPE tuple<int, duration>"), INVALID, words);
        }
        world.all(&["ALTER TYPE c ALTER x TYPE tuple<int, int>", "ALTER TYPE c ADD y int"]);
        world.refused("ALTER TYPE u ADD z list<int>", INVALID, "nested non-frozen collections");
    });
}

#[test]
fn replication_is_stored_in_one_form() {
    in_world(|world| {
        let network = "org.apache.cassandra.locator.NetworkTopologyStrategy";
        for (written, stored) in [
            ("", vec![("class", network), ("datacenter1", "1")]),
            ("WITH replication = {'replication_factor': 1}", vec![("class", network), ("datacenter1", "1")]),
            (
                "WITH replication = {'class': 'NetworkTopologyStrategy', 'replication_factor': 3, 'datacenter1': 1}",
                vec![("class", network), ("datacenter1", "1")],
            ),
            (
                "WITH replication = {'class': 'org.apache.cassandra.locator.SimpleStrategy', 'replication_factor': 2}",
                vec![("class", "org.apache.cassandra.locator.SimpleStrategy"), ("replication_factor", "2")],
            ),
        ] {
            let made = world.run(&format!("CREATE KEYSPACE k {written}")).unwrap();
            let Op::PutKeyspace(definition) = &made.ops[0] else { panic!("{:?}", made.ops) };
            let entries: Vec<_> = definition.replication.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
            assert_eq!(entries, stored, "{written}");
            // Up to three warnings: a factor below three, more replicas than nodes, and the
            // strategy.
            let more = [definition.replication_factor() > 1, written.contains("SimpleStrategy")];
            let wanted = 1 + more.into_iter().filter(|more| *more).count();
            assert_eq!(made.warnings.len(), wanted, "{written}: {:?}", made.warnings);
            world.all(&["ALTER KEYSPACE k WITH durable_writes = false"]);
            let keyspace = &world.metadata.keyspace("k").unwrap().definition;
            assert!(!keyspace.durable_writes && keyspace.replication == definition.replication);
            if keyspace.replication["class"] == network {
                let nowhere = "ALTER KEYSPACE k WITH replication = {'class': 'NetworkTopologyStrategy'}";
                world.refused(nowhere, CONFIGURATION, "at least one datacenter");
            } else {
                world.all(&["ALTER KEYSPACE k WITH replication = {'class': 'NetworkTopologyStrategy'}"]);
                assert_eq!(world.metadata.keyspace("k").unwrap().definition.replication["datacenter1"], "2");
            }
            world.all(&["DROP KEYSPACE k"]);
        }
    });
}

#[test]
fn names_have_a_greatest_length() {
    in_world(|world| {
        let (longest, longer) = ("x".repeat(207), "x".repeat(208));
        world.all(&[
            &format!("CREATE KEYSPACE {longest}"),
            &format!("CREATE TABLE {longest} ({longest} int PRIMARY KEY)"),
            "CREATE TABLE \"_0\" (pk int PRIMARY KEY)",
        ]);
        for text in [
            format!("CREATE KEYSPACE {longer}"),
            format!("CREATE TABLE {longer} (pk int PRIMARY KEY)"),
            format!("CREATE TABLE t (pk int PRIMARY KEY, {longer} int)"),
            format!("ALTER TABLE {longest} ADD {longer} int"),
            format!("ALTER TABLE {longest} RENAME {longest} TO {longer}"),
        ] {
            world.refused(&text, INVALID, &longer);
        }
    });
}

#[test]
fn options_have_a_greatest_length() {
    in_world(|world| {
        let (longest, longer) = ("c".repeat(65_536), "c".repeat(65_537));
        world.all(&[&format!("CREATE TABLE t (k int PRIMARY KEY) WITH comment = '{longest}'")]);
        let halves = format!("{{'{}': '{}'}}", "k".repeat(40_000), "v".repeat(40_000));
        for text in [
            format!("CREATE TABLE u (k int PRIMARY KEY) WITH comment = '{longer}'"),
            format!("ALTER TABLE t WITH comment = '{longer}'"),
            format!("ALTER TABLE t WITH speculative_retry = '{longer}'"),
            format!("ALTER TABLE t WITH additional_write_policy = '{longer}'"),
            format!("ALTER TABLE t WITH compaction = {halves}"),
            format!("CREATE KEYSPACE k WITH replication = {halves}"),
            format!("ALTER KEYSPACE ks WITH tablets = {halves}"),
        ] {
            world.refused(&text, INVALID, "bytes; the maximum is 65536 bytes");
        }
    });
}

#[test]
fn the_schema_has_a_greatest_size() {
    in_world(|world| {
        world.guardrails.schema_bytes = world.metadata.schema_bytes() + (100 << 10);
        let comment = "c".repeat(60_000);
        world.all(&[&format!("CREATE TABLE t (k int PRIMARY KEY) WITH comment = '{comment}'")]);
        let setting = "(schema_size_fail_threshold_in_mb)";
        let table = format!("CREATE TABLE u (k int PRIMARY KEY) WITH comment = '{comment}'");
        world.refused(&table, INVALID, setting);
        world.all(&["CREATE TABLE v (k int PRIMARY KEY)"]);
        world.refused(&format!("ALTER TABLE v WITH comment = '{comment}'"), INVALID, setting);
        let fields: Vec<String> = (0..1000).map(|at| format!("field_{at} int")).collect();
        world.refused(&format!("CREATE TYPE y ({})", fields.join(", ")), INVALID, setting);
        // The operator has lowered the limit: what makes the schema smaller is still allowed.
        world.guardrails.schema_bytes = 1;
        world.all(&["ALTER TABLE t WITH comment = 'short'", "DROP TABLE t", "DROP TABLE v"]);
        world.refused("CREATE TABLE v (k int PRIMARY KEY)", INVALID, setting);
    });
}

#[test]
fn a_definition_has_a_greatest_size() {
    in_world(|world| {
        let columns: Vec<String> = (0..20_000).map(|at| format!("{}{at} int", "c".repeat(200))).collect();
        let table = format!("CREATE TABLE t (k int PRIMARY KEY, {})", columns.join(", "));
        world.refused(&table, INVALID, "the maximum for a keyspace, table or type is 4194304 bytes");
    });
}
