//! Statements and what they make of the metadata: definitions, steps, errors.

use super::{Made, make};
use crate::api::{SchemaAction, SchemaChange, SchemaTarget};
use crate::error::Error;
use crate::guardrails::Guardrails;
use crate::syntax::{self, Name, QualifiedName, Statement};
use cluster::Metadata;
use cluster::metadata::{NodeInfo, Op, builtin};
use model::id::HostId;
use model::schema::{ColumnKind, TableSchema};
use std::net::IpAddr;
use std::rc::Rc;

/// Metadata that statements change, without a node around it.
pub(crate) struct World {
    pub(crate) metadata: Rc<Metadata>,
    pub(crate) node: Rc<NodeInfo>,
}

impl World {
    /// A new node's metadata, and the keyspace `ks`.
    pub(crate) fn new() -> World {
        let metadata = Metadata::empty().with(&builtin::ops()).unwrap();
        let mut world = World { metadata: Rc::new(metadata), node: Rc::new(node()) };
        world
            .run("CREATE KEYSPACE ks WITH replication = {'class': 'NetworkTopologyStrategy', 'replication_factor': 1}")
            .unwrap();
        world
    }

    /// Makes the change of a statement; bare names are those of `ks`.
    pub(crate) fn run(&mut self, text: &str) -> Result<Made, Error> {
        let mut statement = syntax::parse(text).map_err(|error| Error::Syntax(error.to_string()))?.statement;
        if let Some(name) = name_of(&mut statement) {
            name.keyspace.get_or_insert_with(|| Name::new("ks"));
        }
        let made = make(&self.metadata, &self.node, &Guardrails::default(), &statement)?;
        self.metadata = Rc::new(self.metadata.with(&made.ops).expect("the steps of a statement fit"));
        Ok(made)
    }

    fn all(&mut self, texts: &[&str]) {
        for text in texts {
            self.run(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        }
    }

    pub(crate) fn schema(&self, name: &str) -> Rc<TableSchema> {
        self.metadata.table("ks", name).expect("the table is there").schema.clone()
    }

    /// The statement is refused with this code and these words, and changes nothing.
    #[track_caller]
    fn refused(&mut self, text: &str, code: i32, words: &str) {
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

fn name_of(statement: &mut Statement) -> Option<&mut QualifiedName> {
    Some(match statement {
        Statement::CreateTable(statement) => &mut statement.name,
        Statement::AlterTable(statement) => &mut statement.name,
        Statement::DropTable(statement) => &mut statement.name,
        Statement::CreateType(statement) => &mut statement.name,
        Statement::AlterType(statement) => &mut statement.name,
        Statement::DropType(statement) => &mut statement.name,
        _ => return None,
    })
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

fn in_world(test: impl FnOnce(&mut World)) {
    rt::block_on(async { test(&mut World::new()) });
}

const SYNTAX: i32 = 0x2000;
const UNAUTHORIZED: i32 = 0x2100;
const INVALID: i32 = 0x2200;
const CONFIGURATION: i32 = 0x2300;
const EXISTS: i32 = 0x2400;

#[test]
fn a_table_has_the_columns_that_were_written() {
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
fn what_is_there_is_told_apart_from_what_is_made() {
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

#[test]
fn statements_are_refused_with_their_code() {
    in_world(|world| {
        world.all(&[
            "CREATE TYPE u (a int)",
            "CREATE TYPE holder (l list<int>)",
            "CREATE TABLE there (pk int PRIMARY KEY, v int)",
        ]);
        for (text, code, words) in [
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
            ("CREATE TABLE there (pk int PRIMARY KEY)", EXISTS, "already existing table \"there\""),
            ("CREATE TABLE nothing.t (pk int PRIMARY KEY)", INVALID, "non-existent keyspace: nothing"),
            ("CREATE TABLE system.t (pk int PRIMARY KEY)", UNAUTHORIZED, "not user-modifiable"),
            ("CREATE TABLE \"../up\" (pk int PRIMARY KEY)", INVALID, "not a valid table name"),
            ("CREATE TABLE t (pk int)", INVALID, "No PRIMARY KEY"),
            ("CREATE TABLE t (pk int PRIMARY KEY, v int PRIMARY KEY)", INVALID, "Multiple PRIMARY KEYs"),
            ("CREATE TABLE t (pk int, pk int, PRIMARY KEY (pk))", INVALID, "Multiple definition of identifier pk"),
            ("CREATE TABLE t (pk int, PRIMARY KEY (x))", INVALID, "Unknown definition x referenced in PRIMARY KEY"),
            (
                "CREATE TABLE t (pk int, PRIMARY KEY (pk, pk))",
                INVALID,
                "Unknown definition pk referenced in PRIMARY KEY",
            ),
            (
                "CREATE TABLE t (pk list<int> PRIMARY KEY)",
                INVALID,
                "Invalid non-frozen collection type for PRIMARY KEY",
            ),
            ("CREATE TABLE t (pk u PRIMARY KEY)", INVALID, "Invalid non-frozen user-defined type for PRIMARY KEY"),
            (
                "CREATE TABLE t (pk counter PRIMARY KEY)",
                INVALID,
                "counter type is not supported for PRIMARY KEY part pk",
            ),
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
            (
                "CREATE TABLE t (pk int PRIMARY KEY, v other.u)",
                INVALID,
                "cannot refer to a user type in keyspace other",
            ),
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
            (
                "ALTER TABLE there WITH id = 5a1c395e-b41f-11e5-9f22-ba0be0483c18",
                CONFIGURATION,
                "Cannot alter table id",
            ),
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
        ] {
            world.refused(text, code, words);
        }
    });
}

#[test]
fn options_are_checked() {
    in_world(|world| {
        world.all(&["CREATE TABLE there (pk int PRIMARY KEY)"]);
        for (option, code, words) in [
            ("nothing = 1", SYNTAX, "Unknown property 'nothing'"),
            ("comment = 'a' AND comment = 'b'", SYNTAX, "Multiple definition for property 'comment'"),
            ("comment = {'a': 'b'}", SYNTAX, "should be a string"),
            ("gc_grace_seconds = -1", CONFIGURATION, "cannot be smaller than 0"),
            ("gc_grace_seconds = 'x'", SYNTAX, "Invalid integer value x"),
            ("default_time_to_live = 700000000", CONFIGURATION, "less than or equal to 630720000"),
            ("bloom_filter_fp_chance = 0", CONFIGURATION, "must be larger than"),
            ("bloom_filter_fp_chance = NaN", SYNTAX, "Invalid double value"),
            ("crc_check_chance = 1.1", CONFIGURATION, "between 0.0 and 1.0"),
            ("min_index_interval = 0", CONFIGURATION, "must be greater than 0"),
            ("max_index_interval = 64", CONFIGURATION, "must be greater than min_index_interval"),
            ("memtable_flush_period_in_ms = 1", CONFIGURATION, "must be 0 or greater"),
            ("speculative_retry = 'sometimes'", CONFIGURATION, "Invalid value sometimes"),
            ("speculative_retry = '101PERCENTILE'", CONFIGURATION, "Invalid value 101PERCENTILE"),
            ("compaction = {'class': 'Nothing'}", CONFIGURATION, "Unable to find compaction strategy class 'Nothing'"),
            ("compaction = {'min_threshold': '4'}", CONFIGURATION, "Missing sub-option 'class'"),
            (
                "compaction = {'class': 'SizeTieredCompactionStrategy', 'x': '1'}",
                CONFIGURATION,
                "Invalid compaction strategy options",
            ),
            (
                "compaction = {'class': 'SizeTieredCompactionStrategy', 'min_threshold': 1}",
                CONFIGURATION,
                "bigger or equal to 2",
            ),
            (
                "compaction = {'class': 'SizeTieredCompactionStrategy', 'max_threshold': 3}",
                CONFIGURATION,
                "max_threshold value (3)",
            ),
            (
                "compression = {'sstable_compression': 'Nothing'}",
                CONFIGURATION,
                "Unsupported compression class 'Nothing'",
            ),
            ("compression = {'class': 'LZ4Compressor', 'chunk_length_in_kb': 3}", CONFIGURATION, "power of 2"),
            ("compression = {'class': 'LZ4Compressor', 'x': 3}", CONFIGURATION, "Unknown compression option 'x'"),
            ("compression = {'chunk_length_in_kb': 4}", CONFIGURATION, "Missing sub-option 'sstable_compression'"),
            ("caching = {'keys': 'SOME'}", CONFIGURATION, "Invalid value SOME"),
            ("caching = {'x': 'ALL'}", CONFIGURATION, "Invalid caching option: x"),
            ("tombstone_gc = {'mode': 'sometimes'}", CONFIGURATION, "Invalid value"),
            ("per_partition_rate_limit = {'x': 1}", CONFIGURATION, "Unknown keys in map"),
            ("cdc = {'enabled': true}", INVALID, "not supported yet"),
            ("cdc = {'x': true}", CONFIGURATION, "Invalid CDC option: x"),
            ("tablets = {'x': 1}", CONFIGURATION, "Unknown tablet hint: x"),
            ("synchronous_updates = true", INVALID, "only applicable to materialized views"),
        ] {
            world.refused(&format!("CREATE TABLE t (pk int PRIMARY KEY) WITH {option}"), code, words);
            world.refused(&format!("ALTER TABLE there WITH {option}"), code, words);
        }
    });
}

#[test]
fn options_are_kept_in_one_form_and_told_when_they_do_nothing() {
    in_world(|world| {
        let mut number = 0;
        let mut make = |option: &str| {
            number += 1;
            let made = world.run(&format!("CREATE TABLE t{number} (pk int PRIMARY KEY) WITH {option}")).unwrap();
            (world.schema(&format!("t{number}")).options.clone(), made.warnings)
        };
        for silent in [
            "comment = 'x'",
            "gc_grace_seconds = 0",
            "caching = {'keys': 'all', 'rows_per_partition': 'ALL'}",
            "speculative_retry = '99p'",
            "speculative_retry = 'NONE'",
            "speculative_retry = '10ms'",
            "crc_check_chance = 1",
            "read_repair_chance = 0.5",
            "additional_write_policy = '99p'",
            "cdc = {'enabled': 'false'}",
            "compaction = {'class': 'org.apache.cassandra.db.compaction.SizeTieredCompactionStrategy'}",
            "compaction = {'class': 'LeveledCompactionStrategy', 'sstable_size_in_mb': 5, 'fanout_size': 4}",
            "compaction = {'class': 'TimeWindowCompactionStrategy', 'compaction_window_unit': 'HOURS', \
             'expired_sstable_check_frequency_seconds': 60, 'unsafe_aggressive_sstable_expiration': true} \
             AND default_time_to_live = 3600",
            "tombstone_gc = {'mode': 'disabled'}",
            "extensions = {}",
        ] {
            assert_eq!(make(silent).1, Vec::<String>::new(), "{silent}");
        }
        for (warned, words) in [
            ("crc_check_chance = 0.5", "always checked"),
            ("memtable_flush_period_in_ms = 60000", "memtable_flush_period_in_ms"),
            ("caching = {'keys': 'NONE'}", "caching"),
            ("compaction = {'class': 'IncrementalCompactionStrategy'}", "SizeTieredCompactionStrategy"),
            ("compaction = {'class': 'LeveledCompactionStrategy', 'single_sstable_uplevel': true}", "has no effect"),
            ("compression = {'sstable_compression': 'LZ4WithDictsCompressor'}", "dictionaries"),
            ("tombstone_gc = {'mode': 'repair'}", "timeout"),
            ("compaction = {'class': 'TimeWindowCompactionStrategy'}", "without a default_time_to_live"),
            ("per_partition_rate_limit = {'max_reads_per_second': 5}", "not enforced"),
            ("read_repair = 'NONE'", "read_repair"),
        ] {
            let warnings = make(warned).1;
            assert!(warnings.len() == 1 && warnings[0].contains(words), "{warned}: {warnings:?}");
        }
        let none = make("compression = {'enabled': false}").0.compression;
        assert_eq!(none, [("sstable_compression".to_owned(), String::new())].into());
        for other in ["compression = {}", "compression = {'sstable_compression': ''}"] {
            assert_eq!(make(other).0.compression, none, "{other}");
        }
        let deflate = make("compression = {'class': 'DeflateCompressor', 'chunk_length_kb': 16}").0.compression;
        assert_eq!(deflate["sstable_compression"], "org.apache.cassandra.io.compress.DeflateCompressor");
        assert_eq!(deflate["chunk_length_in_kb"], "16");
        assert_eq!(make("speculative_retry = '50p'").0.speculative_retry, "50.0PERCENTILE");
        assert_eq!(make("speculative_retry = '10MS'").0.speculative_retry, "10.00ms");
    });
}

#[test]
fn tablet_hints_count() {
    in_world(|world| {
        for (name, option, count) in [
            ("a", "{'min_tablet_count': 33}", 32),
            ("b", "{'max_tablet_count': 4}", 4),
            ("c", "{'expected_data_size_in_gb': 320}", 64),
        ] {
            world.run(&format!("CREATE TABLE {name} (pk int PRIMARY KEY) WITH tablets = {option}")).unwrap();
            assert_eq!(world.metadata.table("ks", name).unwrap().tablets.count(), count, "{option}");
            let made = world.run(&format!("ALTER TABLE {name} WITH tablets = {option}")).unwrap();
            assert!(made.warnings.len() == 1 && made.warnings[0].contains("existing table"), "{:?}", made.warnings);
        }
    });
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
            // One of the factor below three, one of more replicas than nodes, one of the strategy.
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
fn compaction_options_are_refused_in_scylladbs_words() {
    in_world(|world| {
        world.all(&["CREATE TABLE t (pk int PRIMARY KEY)"]);
        for (class, option, words) in [
            (
                "SizeTiered",
                "'tombstone_threshold': -0.4",
                "tombstone_threshold value (-0.4) must be between 0.0 and 1.0",
            ),
            (
                "Leveled",
                "'tombstone_compaction_interval': -7",
                "tombstone_compaction_interval value (-7000ms) must be positive",
            ),
            ("Leveled", "'unchecked_tombstone_compaction': 'maybe'", "value (maybe) must be \"true\" or \"false\""),
            ("Leveled", "'enabled': 'certainly'", "enabled value (certainly) must be \"true\" or \"false\""),
            ("SizeTiered", "'min_sstable_size': -1", "min_sstable_size value (-1) must be non negative"),
            ("SizeTiered", "'bucket_low': 0.0", "bucket_low value (0) must be between 0.0 and 1.0"),
            ("SizeTiered", "'bucket_high': 0.7", "bucket_high value (0.7) must be greater than 1.0"),
            ("SizeTiered", "'cold_reads_to_omit': 3.5", "cold_reads_to_omit value (3.5) must be between 0.0 and 1.0"),
            (
                "TimeWindow",
                "'compaction_window_unit': 'SECONDS'",
                "Invalid window unit SECONDS for compaction_window_unit",
            ),
            ("TimeWindow", "'compaction_window_size': -8", "compaction_window_size value (-8) must be greater than 1"),
            ("TimeWindow", "'timestamp_resolution': 'SECONDS'", "Invalid timestamp resolution SECONDS"),
            ("TimeWindow", "'expired_sstable_check_frequency_seconds': -1", "value (-1) must be non negative"),
            ("TimeWindow", "'max_threshold': 1", "max_threshold value (1) must be bigger or equal to 2"),
            ("Leveled", "'sstable_size_in_mb': -5", "sstable_size_in_mb value (-5) must be positive"),
            (
                "Incremental",
                "'space_amplification_goal': 2.2",
                "must be greater than 1.0 and less than or equal to 2.0",
            ),
            (
                "SizeTiered",
                "'abc': -54.54",
                "Invalid compaction strategy options {{abc, -54.54}} for chosen strategy type",
            ),
            (
                "Leveled",
                "'compaction_window_size': 4",
                "Invalid compaction strategy options {{compaction_window_size, 4}}",
            ),
        ] {
            let text = format!("ALTER TABLE t WITH compaction = {{'class': '{class}CompactionStrategy', {option}}}");
            world.refused(&text, CONFIGURATION, words);
        }
        let too_long =
            "ALTER TABLE t WITH compaction = {'class': 'LeveledCompactionStrategy', 'sstable_size_in_mb': 2147483648}";
        world.refused(too_long, SYNTAX, "Invalid integer value 2147483648 for 'sstable_size_in_mb'");
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
        ] {
            world.refused(&text, INVALID, &longer);
        }
    });
}

#[test]
fn the_tablets_option_of_a_keyspace_is_kept() {
    in_world(|world| {
        let kept = |world: &World| world.metadata.keyspace("k").unwrap().definition.tablets.clone();
        let made = world.run("CREATE KEYSPACE k WITH tablets = {'initial': 4}").unwrap();
        assert!(made.warnings[0].contains("deprecated"));
        world.all(&["CREATE TABLE k.t (pk int PRIMARY KEY)", "ALTER KEYSPACE k WITH durable_writes = true"]);
        assert_eq!(kept(world)["initial"], "4");
        world.refused("ALTER KEYSPACE k WITH tablets = {'enabled': false}", INVALID, "vnode/tablets flavor");
        world.refused("ALTER KEYSPACE k WITH tablets = {'initial': 'x'}", CONFIGURATION, "should be numeric");
        world.refused("ALTER KEYSPACE k WITH tablets = {'x': 1}", CONFIGURATION, "Unrecognized tablets option x");
        world.all(&["ALTER KEYSPACE k WITH tablets = {'enabled': true}"]);
        assert_eq!(kept(world).get("initial"), None);
        let made = world.run("CREATE KEYSPACE without WITH tablets = {'enabled': false}").unwrap();
        assert!(made.warnings[0].contains("no effect"), "{:?}", made.warnings);
    });
}
