//! Virtual tables: rows fit their schemas, and contain what clients need.

use super::{Generator, KEYSPACES, Knowledge, Rows, SystemShards, SystemTables};
use crate::schema::tests::World;
use crate::source::VirtualRow;
use cluster::ClusterShards;
use cluster::observe::ShardStorage;
use cluster::observe::storage::{CompactionRecord, TableStats};
use model::schema::{ColumnKind, TableSchema};
use model::types::{Value, validate};
use std::rc::Rc;
use std::sync::LazyLock;

/// The services of every test. Tests share no instances.
static SHARDS: LazyLock<SystemShards> = LazyLock::new(SystemShards::default);

fn tables() -> SystemTables {
    SystemTables::new(ClusterShards::default(), *SHARDS)
}

fn knowledge(world: &World) -> Knowledge {
    Knowledge {
        metadata: world.metadata.clone(),
        node: world.node.clone(),
        system: tables().keyspaces(),
        cluster: ClusterShards::default(),
        shards: *SHARDS,
    }
}

async fn rows(world: &World, keyspace: &str, name: &str) -> (Rc<TableSchema>, Vec<VirtualRow>) {
    let all = tables();
    let registry = all.registry();
    let table = registry.tables.iter().find(|table| table.schema.keyspace == keyspace && table.schema.name == name);
    let table = table.unwrap_or_else(|| panic!("there is a table {keyspace}.{name}"));
    let mut rows = Rows::new(table.schema.clone());
    table.generator.fill(&knowledge(world), &mut rows).await;
    (table.schema.clone(), rows.finish())
}

/// The values of some columns of each row.
async fn values(world: &World, keyspace: &str, name: &str, columns: &[&str]) -> Vec<Vec<Value>> {
    let (schema, rows) = rows(world, keyspace, name).await;
    decoded(&schema, &rows, columns)
}

fn decoded(schema: &TableSchema, rows: &[VirtualRow], columns: &[&str]) -> Vec<Vec<Value>> {
    let places: Vec<_> = columns
        .iter()
        .map(|name| schema.all_columns().enumerate().find(|(_, column)| column.name == *name).expect("a column"))
        .collect();
    let value = |row: &VirtualRow, at: usize, ty| Value::decode_optional(ty, row[at].as_deref()).unwrap();
    rows.iter().map(|row| places.iter().map(|(at, column)| value(row, *at, &column.ty)).collect()).collect()
}

async fn world() -> World {
    let mut world = World::new();
    for text in [
        "CREATE TYPE u (a int, b frozen<list<text>>)",
        "CREATE TABLE t (pk int, ck uuid, v frozen<u>, m map<int, text>, s int STATIC, x int, PRIMARY KEY (pk, ck)) \
         WITH CLUSTERING ORDER BY (ck DESC)",
        "ALTER TABLE t DROP x USING TIMESTAMP 5000",
        "ALTER TABLE t ADD x int",
        "ALTER TABLE t DROP x USING TIMESTAMP 7000",
        "CREATE TABLE \"Quoted\" (\"Pk\" text PRIMARY KEY) WITH compression = {'enabled': false}",
    ] {
        world.run(text).unwrap();
    }
    world
}

#[test]
fn every_generator_fits_its_schema() {
    rt::block_on(async {
        let world = world().await;
        let tables: Vec<_> = tables().registry().tables.iter().map(|table| table.schema.clone()).collect();
        assert!(tables.len() > 30);
        for schema in tables {
            let (_, rows) = rows(&world, &schema.keyspace, &schema.name).await;
            let mut keys = Vec::new();
            for row in &rows {
                assert_eq!(row.len(), schema.all_columns().count());
                for (column, bytes) in schema.all_columns().zip(row) {
                    if let Some(bytes) = bytes {
                        validate(&column.ty, bytes)
                            .unwrap_or_else(|error| panic!("{}.{}: {error}", schema.name, column.name));
                    }
                    let key = matches!(column.kind, ColumnKind::PartitionKey | ColumnKind::Clustering);
                    assert!(!key || bytes.is_some(), "{}.{}", schema.name, column.name);
                }
                let key = row[..schema.partition_key.len() + schema.clustering.len()].to_vec();
                assert!(!keys.contains(&key), "{}.{} has a key twice", schema.keyspace, schema.name);
                keys.push(key);
            }
        }
    });
}

#[test]
fn local_has_what_drivers_need() {
    rt::block_on(async {
        let world = world().await;
        let columns = [
            "key",
            "cluster_name",
            "cql_version",
            "data_center",
            "rack",
            "host_id",
            "partitioner",
            "release_version",
            "rpc_address",
            "broadcast_address",
            "listen_address",
            "schema_version",
            "tokens",
            "native_protocol_version",
            "supported_features",
        ];
        let rows = values(&world, "system", "local", &columns).await;
        assert_eq!(rows.len(), 1);
        assert!(rows[0].iter().all(|value| *value != Value::Null), "{:?}", rows[0]);
        assert_eq!(rows[0][0], Value::Text("local".into()));
        assert_eq!(rows[0][11], Value::Uuid(world.metadata.version));
        let Value::Set(tokens) = &rows[0][12] else { panic!("tokens are a set") };
        assert_eq!(tokens.len(), 64);
        let Value::Text(features) = &rows[0][14] else { panic!("features are a text") };
        let features: Vec<&str> = features.split(',').collect();
        assert!(features.is_sorted() && features.contains(&"TABLETS"), "{features:?}");
        for own in cluster::topology::features::supported() {
            assert!(features.contains(&own.as_str()), "{own}");
        }
    });
}

#[test]
fn system_schema_describes_users_and_itself() {
    rt::block_on(async {
        let world = world().await;
        let text = |text: &str| Value::Text(text.into());
        let keyspaces = values(&world, "system_schema", "keyspaces", &["keyspace_name"]).await;
        for name in ["ks", "system", "system_schema", "system_traces"] {
            assert!(keyspaces.contains(&vec![text(name)]), "{name}");
        }
        assert!(!keyspaces.contains(&vec![text("system_virtual_schema")]), "it describes itself elsewhere");
        let tables = values(&world, "system_schema", "tables", &["keyspace_name", "table_name"]).await;
        for (keyspace, name) in [
            ("ks", "t"),
            ("ks", "Quoted"),
            ("system", "local"),
            ("system_schema", "columns"),
            ("system_traces", "events"),
        ] {
            assert!(tables.contains(&vec![text(keyspace), text(name)]), "{keyspace}.{name}");
        }
        let columns = ["keyspace_name", "table_name", "column_name", "kind", "position", "type", "clustering_order"];
        let columns = values(&world, "system_schema", "columns", &columns).await;
        for (name, kind, position, ty, order) in [
            ("pk", "partition_key", 0, "int", "none"),
            ("ck", "clustering", 0, "uuid", "desc"),
            ("v", "regular", -1, "frozen<u>", "none"),
            ("m", "regular", -1, "map<int, text>", "none"),
            ("s", "static", -1, "int", "none"),
        ] {
            let row = vec![text("ks"), text("t"), text(name), text(kind), Value::Int(position), text(ty), text(order)];
            assert!(columns.contains(&row), "{name}");
        }
        let dropped = values(&world, "system_schema", "dropped_columns", &["column_name", "dropped_time"]).await;
        assert_eq!(dropped, [vec![text("x"), Value::Timestamp(7)]]);
        let types = values(&world, "system_schema", "types", &["type_name", "field_types"]).await;
        assert_eq!(types, [vec![text("u"), Value::List(vec![text("int"), text("frozen<list<text>>")])]]);
        let own = values(&world, "system_virtual_schema", "tables", &["keyspace_name", "table_name"]).await;
        assert_eq!(own.len(), 3);
    });
}

#[test]
fn tablets_end_at_the_greatest_token() {
    rt::block_on(async {
        let world = world().await;
        let id = world.metadata.table("ks", "t").unwrap().schema.id.0;
        let rows = values(&world, "system", "tablets", &["table_id", "last_token", "replicas", "tablet_count"]).await;
        let mine: Vec<_> = rows.iter().filter(|row| row[0] == Value::Uuid(id)).collect();
        assert_eq!(mine.len(), 16);
        assert_eq!(mine.last().unwrap()[1], Value::Bigint(i64::MAX));
        let replica = Value::Tuple(vec![Value::Uuid(world.node.host_id.0), Value::Int(0)]);
        assert_eq!(mine[0][2], Value::List(vec![replica]));
        let keyspaces =
            values(&world, "system_schema", "scylla_keyspaces", &["keyspace_name", "initial_tablets"]).await;
        assert_eq!(keyspaces, [vec![Value::Text("ks".into()), Value::Int(0)]]);
    });
}

#[test]
fn tables_are_found_by_name_and_the_same_each_time() {
    rt::block_on(async {
        for keyspace in KEYSPACES {
            assert!(tables().keyspaces().keyspace(keyspace).is_some());
        }
        assert!(tables().table("system", "local").is_some());
        assert!(tables().table("system", "IndexInfo").is_some());
        assert!(tables().table("system", "nothing").is_none());
        assert!(tables().table("ks", "local").is_none());
        let ids: Vec<_> =
            tables().registry().tables.iter().map(|table| (table.schema.id, table.schema.version)).collect();
        let (again, generators) = super::tables::build();
        assert_eq!(generators.len(), ids.len());
        for (keyspace, name, generator) in &generators {
            let schema = &again.table(keyspace, name).unwrap().schema;
            assert!(ids.contains(&(schema.id, schema.version)), "{name}");
            let of_shards = [
                "clients",
                "cluster_status",
                "compaction_history",
                "hot_partitions",
                "large_cells",
                "large_partitions",
                "large_rows",
                "load_per_node",
                "runtime_info",
                "size_estimates",
                "snapshots",
                "tablet_loads",
                "tablet_sizes",
            ];
            assert!(matches!(generator, Generator::Known(_)) || of_shards.contains(&name.as_str()));
        }
    });
}

#[test]
fn sizes_are_spread_over_a_shards_tablets() {
    rt::block_on(async {
        let world = world().await;
        let id = world.metadata.table("ks", "t").unwrap().schema.id;
        let table = tables().table("system", "size_estimates").unwrap();
        let mut rows = Rows::new(table.schema().clone());
        let size = TableStats { partitions: 20, mean_partition_bytes: 300, ..TableStats::default() };
        super::sizes::add(&knowledge(&world), rt::ShardId(1), &[(id, size)], &mut rows);
        let rows = rows.finish();
        assert_eq!(rows.len(), 8, "half of the 16 tablets are on each of two shards");
        let number = |bytes: &Option<bytes::Bytes>| i64::from_be_bytes(bytes.as_ref().unwrap()[..].try_into().unwrap());
        let columns: Vec<&str> = table.schema().all_columns().map(|column| column.name.as_str()).collect();
        let at = |name: &str| columns.iter().position(|column| *column == name).unwrap();
        assert_eq!(rows.iter().map(|row| number(&row[at("partitions_count")])).sum::<i64>(), 20);
        assert!(rows.iter().all(|row| number(&row[at("mean_partition_size")]) == 300));
    });
}

#[test]
fn clients_are_those_of_the_servers_list() {
    rt::block_on(async {
        let world = world().await;
        let address = "127.0.0.9:50000".parse().unwrap();
        let options = [("DRIVER_NAME".to_owned(), "driver".to_owned())].into();
        let client = super::ClientInfo {
            address,
            stage: "READY".into(),
            options,
            protocol_version: 4,
            shard: 0,
            role: None,
            encryption: None,
        };
        SHARDS.clients.set(Rc::new(super::ClientList(Box::new(move || vec![client.clone()]))));
        let columns = ["address", "port", "driver_name", "driver_version", "username", "connection_stage"];
        let rows = values(&world, "system", "clients", &columns).await;
        let text = |text: &str| Value::Text(text.into());
        let (ip, port) = (Value::Inet("127.0.0.9".parse().unwrap()), Value::Int(50000));
        assert_eq!(rows, [vec![ip, port, text("driver"), Value::Null, text("anonymous"), text("READY")]]);
    });
}

#[test]
fn compactions_fit_their_table() {
    rt::block_on(async {
        let all = tables();
        let registry = all.registry();
        let table =
            registry.tables.iter().find(|table| table.schema.name == "compaction_history").expect("it is there");
        let mut rows = Rows::new(table.schema.clone());
        let done = CompactionRecord {
            id: uuid::Uuid::from_u128(7),
            kind: "COMPACTION".into(),
            keyspace: "k".into(),
            table: "t".into(),
            shard: 1,
            started_at_millis: 1_000,
            compacted_at_millis: 2_000,
            bytes_in: 30,
            bytes_out: 20,
            sstables_in: 4,
            sstables_out: 1,
        };
        super::compactions::add(&done, &mut rows);
        let rows = rows.finish();
        let value = |name: &str| {
            let (at, column) =
                table.schema.all_columns().enumerate().find(|(_, column)| column.name == name).expect("a column");
            Value::decode_optional(&column.ty, rows[0][at].as_deref()).expect("decodes")
        };
        assert_eq!(value("id"), Value::Uuid(uuid::Uuid::from_u128(7)));
        assert_eq!((value("bytes_in"), value("bytes_out")), (Value::Bigint(30), Value::Bigint(20)));
        assert_eq!(
            (value("keyspace_name"), value("columnfamily_name")),
            (Value::Text("k".into()), Value::Text("t".into()))
        );
        assert_eq!((value("compacted_at"), value("started_at")), (Value::Timestamp(2_000), Value::Timestamp(1_000)));
        assert_eq!((value("compaction_type"), value("shard_id")), (Value::Text("COMPACTION".into()), Value::Int(1)));
    });
}

#[test]
fn numbers_of_shards_and_tablets_are_shown() {
    rt::block_on(async {
        let world = world().await;
        let (known, host) = (knowledge(&world), Value::Uuid(world.node.host_id.0));
        let id = world.metadata.table("ks", "t").unwrap().schema.id;
        let table = |name| tables().table("system", name).unwrap().schema().clone();
        let mut rows = Rows::new(table("tablet_sizes"));
        super::numbers::add_tablets(&known, &[((id, 3), 12), ((id, 4), 1)].into(), &mut rows);
        let sizes: Vec<_> = decoded(&table("tablet_sizes"), &rows.finish(), &["table_id", "replicas"])
            .into_iter()
            .filter(|row| row[0] == Value::Uuid(id.0))
            .map(|row| row[1].clone())
            .collect();
        let on_disk = |bytes| Value::Map(vec![(host.clone(), Value::Bigint(bytes))]);
        assert_eq!((sizes.len(), &sizes[3], &sizes[4], &sizes[5]), (16, &on_disk(12), &on_disk(1), &on_disk(0)));

        let load = values(&world, "system", "load_per_node", &["node", "storage_load", "storage_capacity"]).await;
        assert_eq!(load, [vec![host, Value::Bigint(0), Value::Null]]);

        let shards = [2, 3].map(|hits| {
            let mut shard = ShardStorage::default();
            (shard.engine.rows.hits, shard.engine.rows.bytes, shard.engine.cache.bytes) = (hits, 10, 7);
            shard
        });
        let mut rows = Rows::new(table("runtime_info"));
        super::numbers::add_counters(&shards, &mut rows);
        let numbers = decoded(&table("runtime_info"), &rows.finish(), &["group", "item", "value"]);
        let row = |item: &str, value: &str| ["cache", item, value].map(|text| Value::Text(text.into())).to_vec();
        assert!(numbers.contains(&row("hits", "5")), "{numbers:?}");
        assert!(numbers.contains(&row("memory_used", "34")), "{numbers:?}");
    });
}
