//! Descriptions create the same schema again. Objects are found, or refused with the right error.

use super::{Catalog, encode, result_metadata, rows};
use crate::error::Error;
use crate::schema::tests::World;
use crate::syntax::{self, Statement};
use crate::system::SystemTables;
use model::types::Value;

/// The rows that a DESCRIBE answers, as text.
fn run(world: &World, current: Option<&str>, text: &str) -> Result<Vec<Vec<String>>, Error> {
    let Statement::Describe(statement) = syntax::parse(text).unwrap().statement else {
        panic!("{text} is no DESCRIBE")
    };
    let catalog = Catalog {
        user: world.metadata.clone(),
        system: SystemTables::new(Default::default(), Default::default()).keyspaces(),
    };
    let rows = rows(&catalog, &world.node, current, &statement)?;
    let metadata = result_metadata(&statement, current);
    let encoded = encode(metadata.clone(), &rows);
    assert_eq!(encoded.count as usize, rows.len());
    let texts = |row: &Vec<Value>| -> Vec<String> {
        let text = |value: &Value| if let Value::Text(text) = value { text.clone() } else { format!("{value:?}") };
        row.iter().map(text).collect()
    };
    Ok(rows.iter().map(texts).collect())
}

fn one(world: &World, text: &str) -> String {
    let rows = run(world, Some("ks"), text).unwrap_or_else(|error| panic!("{text}: {error}"));
    assert_eq!(rows.len(), 1, "{text}");
    rows[0][3].clone()
}

const TYPES: &[&str] =
    &["CREATE TYPE ks.zz (x int, \"Y\" text)", "CREATE TYPE ks.\"Aa\" (i frozen<zz>, l list<frozen<zz>>, \"int\" int)"];

const TABLES: &[&str] = &[
    "CREATE TABLE ks.plain (pk int PRIMARY KEY, v text)",
    "CREATE TABLE ks.composite (a int, b text, c timeuuid, d bigint, s set<int> STATIC, v frozen<map<text, frozen<list<int>>>>, \
     w list<text>, PRIMARY KEY ((a, b), c, d)) WITH CLUSTERING ORDER BY (c DESC, d ASC)",
    "CREATE TABLE ks.\"Quoted\" (\"Pk\" int, \"select\" text, \"a \"\"quote\"\"\" int, v int, PRIMARY KEY (\"Pk\", \"select\")) \
     WITH CLUSTERING ORDER BY (\"select\" DESC)",
    "CREATE TABLE ks.natives (pk uuid PRIMARY KEY, a ascii, b blob, c boolean, d date, e decimal, f double, g duration, h float, \
     i inet, j smallint, k time, l timestamp, m tinyint, n tuple<int, text>, o varint, p bigint, q timeuuid, r vector<float, 3>)",
    "CREATE TABLE ks.options (pk int PRIMARY KEY) WITH comment = 'it''s described' AND gc_grace_seconds = 100 \
     AND default_time_to_live = 50 AND bloom_filter_fp_chance = 0.0001 AND min_index_interval = 64 AND max_index_interval = 1024 \
     AND crc_check_chance = 0.5 AND memtable_flush_period_in_ms = 70000 AND speculative_retry = '10ms' \
     AND caching = {'keys': 'NONE', 'rows_per_partition': '5'} AND compression = {'class': 'DeflateCompressor', 'chunk_length_in_kb': 32} \
     AND compaction = {'class': 'SizeTieredCompactionStrategy', 'min_threshold': '5', 'max_threshold': '17', 'enabled': 'false'} \
     AND tombstone_gc = {'mode': 'immediate'} AND per_partition_rate_limit = {'max_reads_per_second': 7} \
     AND tablets = {'min_tablet_count': 4, 'min_per_shard_tablet_count': 0.8} AND paxos_grace_seconds = 5 AND read_repair = 'NONE' \
     AND allow_auto_snapshot = false",
    "CREATE TABLE ks.uncompressed (pk int PRIMARY KEY) WITH compression = {'enabled': false}",
    "CREATE TABLE ks.udts (pk int PRIMARY KEY, a frozen<\"Aa\">, b zz, c list<frozen<zz>>, d map<int, frozen<\"Aa\">>)",
];

fn world() -> World {
    let mut world = World::new();
    for text in TYPES.iter().chain(TABLES) {
        world.run(text).unwrap_or_else(|error| panic!("{text}: {error}"));
    }
    world
}

#[test]
fn tables_make_themselves_again() {
    rt::block_on(async {
        let mut world = world();
        let names: Vec<String> = world.metadata.keyspace("ks").unwrap().tables.keys().cloned().collect();
        assert_eq!(names.len(), TABLES.len());
        for name in names {
            let target = format!("TABLE ks.{}", syntax::quote_identifier(&name));
            let (before, text) = (world.schema(&name), one(&world, &format!("DESCRIBE {target}")));
            world.run(&format!("DROP {target}")).unwrap();
            world.run(&text).unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!(one(&world, &format!("DESCRIBE {target}")), text);
            let after = world.schema(&name);
            assert_eq!(after.options, before.options, "{name}");
            assert!(after.all_columns().eq(before.all_columns()), "{name}");
            assert_ne!(after.id, before.id, "{name}");
        }
    });
}

#[test]
fn a_keyspace_makes_itself_again() {
    rt::block_on(async {
        let mut world = world();
        let before = run(&world, None, "DESCRIBE KEYSPACE ks").unwrap();
        let kinds: Vec<&str> = before.iter().map(|row| row[1].as_str()).collect();
        assert_eq!(kinds, ["keyspace", "type", "type", "table", "table", "table", "table", "table", "table", "table"]);
        assert_eq!((before[1][2].as_str(), before[2][2].as_str()), ("zz", "\"Aa\""), "a type after those it uses");
        world.run("DROP KEYSPACE ks").unwrap();
        for row in &before {
            world.run(&row[3]).unwrap_or_else(|error| panic!("{}: {error}", row[3]));
        }
        assert_eq!(run(&world, Some("ks"), "DESCRIBE KEYSPACE").unwrap(), before);
        assert_eq!(run(&world, None, "DESCRIBE ONLY KEYSPACE ks").unwrap(), before[..1]);
        assert_eq!(run(&world, None, "DESCRIBE SCHEMA").unwrap(), before);
        assert_eq!(run(&world, None, "DESCRIBE ks").unwrap(), before);
    });
}

#[test]
fn statements_have_their_known_form() {
    rt::block_on(async {
        let world = world();
        assert_eq!(one(&world, "DESCRIBE TYPE zz"), "CREATE TYPE ks.zz (\n    x int,\n    \"Y\" text\n);");
        assert_eq!(
            one(&world, "DESCRIBE ONLY KEYSPACE ks"),
            "CREATE KEYSPACE ks WITH replication = {'class': 'org.apache.cassandra.locator.NetworkTopologyStrategy', \
             'datacenter1': '1'} AND durable_writes = true;"
        );
        let mut other = World::new();
        other.run("CREATE KEYSPACE k WITH tablets = {'initial': 4}").unwrap();
        let keyspace = one(&other, "DESCRIBE ONLY KEYSPACE k");
        assert!(keyspace.ends_with(" AND durable_writes = true AND tablets = {'initial': 4};"), "{keyspace}");
        let plain = one(&world, "DESCRIBE plain");
        assert!(plain.starts_with(
            "CREATE TABLE ks.plain (\n    pk int PRIMARY KEY,\n    v text\n) WITH bloom_filter_fp_chance = 0.01\n"
        ));
        assert!(plain.ends_with("AND tombstone_gc = {'mode': 'timeout', 'propagation_delay_in_seconds': '3600'};"));
        let composite = one(&world, "DESCRIBE TABLE composite");
        assert!(
            composite.contains("    PRIMARY KEY ((a, b), c, d)\n) WITH CLUSTERING ORDER BY (c DESC, d ASC)\n    AND ")
        );
    });
}

#[test]
fn internals_include_the_id_and_the_dropped_columns() {
    rt::block_on(async {
        let mut world = world();
        for text in [
            "ALTER TABLE plain ADD (a int, b list<int>)",
            "ALTER TABLE plain DROP a USING TIMESTAMP 1000",
            "ALTER TABLE plain DROP b USING TIMESTAMP 2000",
            "ALTER TABLE plain ADD b list<int>",
        ] {
            world.run(text).unwrap();
        }
        let text = one(&world, "DESCRIBE TABLE plain WITH INTERNALS");
        let before = world.schema("plain");
        assert!(text.contains(&format!(") WITH ID = {}\n", before.id)));
        assert!(!one(&world, "DESCRIBE TABLE plain").contains("DROP"));
        world.run("DROP TABLE plain").unwrap();
        for part in text.split_inclusive(";").filter(|part| !part.trim().is_empty()) {
            world.run(part).unwrap_or_else(|error| panic!("{part}: {error}"));
        }
        let after = world.schema("plain");
        assert_eq!(after.id, before.id);
        let drops = |schema: &model::TableSchema| -> Vec<_> {
            schema.dropped.iter().map(|d| (d.name.clone(), d.ty.clone(), d.drop_time)).collect()
        };
        assert_eq!(drops(&after), drops(&before));
        let names = |schema: &model::TableSchema| schema.all_columns().map(|c| c.name.clone()).collect::<Vec<_>>();
        assert_eq!(names(&after), names(&before));
    });
}

#[test]
fn lists_have_what_there_is() {
    rt::block_on(async {
        let world = world();
        let names = |current: Option<&str>, text: &str| -> Vec<String> {
            run(&world, current, text).unwrap().into_iter().map(|row| format!("{}.{}", row[0], row[2])).collect()
        };
        assert_eq!(
            names(None, "DESCRIBE KEYSPACES"),
            [
                "ks.ks",
                "system.system",
                "system_schema.system_schema",
                "system_traces.system_traces",
                "system_virtual_schema.system_virtual_schema"
            ]
        );
        let all = names(None, "DESCRIBE TABLES");
        assert!(all.contains(&"ks.\"Quoted\"".to_owned()) && all.contains(&"system.\"IndexInfo\"".to_owned()));
        assert_eq!(names(Some("ks"), "DESCRIBE TABLES").len(), TABLES.len());
        assert_eq!(names(Some("ks"), "DESCRIBE TYPES"), ["ks.zz", "ks.\"Aa\""]);
        assert!(names(None, "DESCRIBE FUNCTIONS").is_empty() && names(None, "DESCRIBE AGGREGATES").is_empty());
        let full = run(&world, None, "DESCRIBE FULL SCHEMA").unwrap();
        assert!(full.iter().any(|row| row[0] == "system_schema" && row[1] == "table" && row[2] == "tables"));
        let cluster = run(&world, None, "DESCRIBE CLUSTER").unwrap();
        assert_eq!(cluster[0][..2], ["Test Cluster", "org.apache.cassandra.dht.Murmur3Partitioner"]);
        assert_eq!((cluster[0].len(), run(&world, Some("ks"), "DESCRIBE CLUSTER").unwrap()[0].len()), (3, 4));
    });
}

#[test]
fn system_tables_are_statements_too() {
    rt::block_on(async {
        let world = world();
        for row in run(&world, None, "DESCRIBE FULL SCHEMA").unwrap().iter().filter(|row| row[1] == "table") {
            let parsed = syntax::parse(&row[3]).unwrap_or_else(|error| panic!("{}: {error}", row[3]));
            assert!(matches!(parsed.statement, Statement::CreateTable(_)));
        }
    });
}

#[test]
fn missing_objects_are_refused() {
    rt::block_on(async {
        let world = world();
        for (text, words) in [
            ("DESCRIBE KEYSPACE nothing", "'nothing' not found in keyspaces"),
            ("DESCRIBE TABLE nothing", "Table 'nothing' not found in keyspace 'ks'"),
            ("DESCRIBE TABLE other.t", "'other' not found in keyspaces"),
            ("DESCRIBE TYPE nothing", "Type 'nothing' not found in keyspace 'ks'"),
            ("DESCRIBE FUNCTION nothing", "Function 'nothing' not found"),
            ("DESCRIBE AGGREGATE nothing", "Aggregate 'nothing' not found"),
            ("DESCRIBE INDEX nothing", "index 'nothing' not found"),
            ("DESCRIBE MATERIALIZED VIEW nothing", "Materialized view 'nothing' not found"),
            ("DESCRIBE nothing", "'nothing' not found in keyspace 'ks'"),
        ] {
            match run(&world, Some("ks"), text) {
                Err(Error::Invalid(message)) => assert!(message.contains(words), "{text}: {message}"),
                other => panic!("{text}: {other:?}"),
            }
        }
        for (text, words) in [
            ("DESCRIBE KEYSPACE", "No keyspace specified and no current keyspace"),
            ("DESCRIBE TABLE t", "No keyspace specified and no current keyspace"),
            ("DESCRIBE nothing", "'nothing' not found in keyspaces"),
        ] {
            let error = run(&world, None, text).unwrap_err();
            assert!(error.to_string().contains(words), "{text}: {error}");
        }
    });
}
