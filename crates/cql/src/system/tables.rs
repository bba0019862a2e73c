//! The schemas of the virtual tables, as CREATE TABLE statements, each with its generator.
//!
//! The layouts combine the columns of Cassandra 4 and ScyllaDB, so that clients of both find the
//! columns that they use. Ids are derived from names, so they are the same on every node and after
//! a restart.

use super::{Generator, config, large, peers, ring, schema_tables, status, topology};
use crate::schema::{Identity, table_definition};
use crate::syntax::{self, Statement};
use cluster::Metadata;
use cluster::metadata::{KeyspaceDefinition, Op};
use md5::{Digest, Md5};
use model::id::{SchemaVersion, TableId};
use model::options::OptionMap;
use uuid::Uuid;

/// The columns of `system_schema.tables` and `.views` with options.
macro_rules! option_columns {
    () => {
        "additional_write_policy text, allow_auto_snapshot boolean, bloom_filter_fp_chance double, caching frozen<map<text, text>>, \
         cdc boolean, comment text, compaction frozen<map<text, text>>, compression frozen<map<text, text>>, crc_check_chance double, \
         dclocal_read_repair_chance double, default_time_to_live int, extensions frozen<map<text, blob>>, gc_grace_seconds int, \
         id uuid, incremental_backups boolean, max_index_interval int, memtable text, memtable_flush_period_in_ms int, \
         min_index_interval int, read_repair text, read_repair_chance double, speculative_retry text"
    };
}

/// The columns of a table that lists columns.
macro_rules! column_columns {
    () => {
        "keyspace_name text, table_name text, column_name text, clustering_order text, column_name_bytes blob, kind text, \
         position int, type text, PRIMARY KEY (keyspace_name, table_name, column_name)"
    };
}

/// Keyspace, table, columns, comment, generator.
type Entry = (&'static str, &'static str, &'static str, &'static str, Generator);

const fn known(fill: fn(&super::Knowledge, &mut super::Rows)) -> Generator {
    Generator::Known(fill)
}

const EMPTY: Generator = known(|_, _| {});

const TABLES: &[Entry] = &[
    (
        "system",
        "local",
        "key text PRIMARY KEY, bootstrapped text, broadcast_address inet, broadcast_port int, cluster_name text, cql_version text, \
         data_center text, gossip_generation int, host_id uuid, listen_address inet, listen_port int, native_protocol_version text, \
         partitioner text, rack text, release_version text, rpc_address inet, rpc_port int, schema_version uuid, \
         supported_features text, tokens set<text>, truncated_at map<uuid, blob>",
        "information about the local node",
        known(ring::local),
    ),
    (
        "system",
        "peers",
        "peer inet PRIMARY KEY, data_center text, host_id uuid, preferred_ip inet, rack text, release_version text, \
         rpc_address inet, schema_version uuid, supported_features text, tokens set<text>",
        "information about known peers in the cluster",
        known(peers::peers),
    ),
    (
        "system",
        "peers_v2",
        "peer inet, peer_port int, data_center text, host_id uuid, native_address inet, native_port int, preferred_ip inet, \
         preferred_port int, rack text, release_version text, schema_version uuid, tokens set<text>, PRIMARY KEY (peer, peer_port)",
        "information about known peers in the cluster",
        known(peers::peers_v2),
    ),
    (
        "system",
        "tablets",
        "table_id uuid, last_token bigint, base_table uuid STATIC, keyspace_name text STATIC, \
         new_replicas frozen<list<frozen<tuple<uuid, int>>>>, repair_time timestamp, replicas frozen<list<frozen<tuple<uuid, int>>>>, \
         resize_seq_number bigint STATIC, resize_type text STATIC, session uuid, stage text, table_name text STATIC, \
         tablet_count int STATIC, transition text, PRIMARY KEY (table_id, last_token)",
        "tablets of each table and their replicas",
        known(ring::tablets),
    ),
    (
        "system",
        "topology",
        "key text, host_id uuid, datacenter text, enabled_features set<text> STATIC, fence_version bigint STATIC, node_state text, \
         rack text, release_version text, request_id timeuuid, shard_count int, supported_features set<text>, \
         tablet_balancing_enabled boolean STATIC, topology_request text, transition_state text STATIC, version bigint STATIC, \
         PRIMARY KEY (key, host_id)",
        "nodes of the cluster, including those that have left",
        known(topology::topology),
    ),
    (
        "system",
        "topology_requests",
        "id timeuuid PRIMARY KEY, done boolean, end_time timestamp, error text, host_id uuid, initiating_host uuid, \
         new_keyspace_rf_change_ks_name text, request_type text, start_time timestamp",
        "requests that change the cluster, open ones and the last ended ones",
        known(topology::topology_requests),
    ),
    (
        "system",
        "token_ring",
        "keyspace_name text, table_name text, start_token text, endpoint inet, dc text, end_token text, rack text, \
         PRIMARY KEY (keyspace_name, table_name, start_token, endpoint)",
        "token ranges of each table and the nodes that own them",
        known(ring::token_ring),
    ),
    (
        "system",
        "cluster_status",
        "peer inet PRIMARY KEY, dc text, host_id uuid, load text, owns float, rack text, status text, tokens int, up boolean",
        "the nodes of the cluster and their state",
        Generator::ClusterStatus,
    ),
    (
        "system",
        "size_estimates",
        "keyspace_name text, table_name text, range_start text, range_end text, mean_partition_size bigint, \
         partitions_count bigint, PRIMARY KEY (keyspace_name, table_name, range_start, range_end)",
        "estimated partition counts and sizes by token range",
        Generator::Sizes,
    ),
    (
        "system",
        "snapshots",
        "keyspace_name text, table_name text, snapshot_name text, live bigint, total bigint, \
         PRIMARY KEY (keyspace_name, table_name, snapshot_name)",
        "snapshots of tables",
        Generator::Snapshots,
    ),
    (
        "system",
        "tablet_sizes",
        "table_id uuid, last_token bigint, missing_replicas frozen<set<uuid>>, replicas frozen<map<uuid, bigint>>, \
         PRIMARY KEY (table_id, last_token)",
        "sizes of tablets on disk",
        Generator::TabletSizes,
    ),
    (
        "system",
        "large_partitions",
        "keyspace_name text, table_name text, sstable_name text, partition_size bigint, partition_key text, \
         compaction_time timestamp, dead_rows bigint, range_tombstones bigint, rows bigint, \
         PRIMARY KEY ((keyspace_name, table_name), sstable_name, partition_size, partition_key)",
        "partitions larger than specified threshold",
        Generator::Large(large::Kind::Partitions),
    ),
    (
        "system",
        "large_rows",
        "keyspace_name text, table_name text, sstable_name text, row_size bigint, partition_key text, clustering_key text, \
         compaction_time timestamp, PRIMARY KEY ((keyspace_name, table_name), sstable_name, row_size, partition_key, clustering_key)",
        "rows larger than specified threshold",
        Generator::Large(large::Kind::Rows),
    ),
    (
        "system",
        "large_cells",
        "keyspace_name text, table_name text, sstable_name text, cell_size bigint, partition_key text, clustering_key text, \
         column_name text, collection_elements bigint, compaction_time timestamp, \
         PRIMARY KEY ((keyspace_name, table_name), sstable_name, cell_size, partition_key, clustering_key, column_name)",
        "cells larger than specified threshold",
        Generator::Large(large::Kind::Cells),
    ),
    (
        "system",
        "load_per_node",
        "node uuid PRIMARY KEY, dc text, ip inet, rack text, storage_allocated_load bigint, storage_allocated_utilization double, \
         storage_capacity bigint, storage_load bigint, storage_utilization double, tablets_allocated bigint, \
         tablets_allocated_per_shard double, up boolean",
        "tablets and their sizes by node",
        Generator::LoadPerNode,
    ),
    (
        "system",
        "clients",
        "address inet, port int, client_type text, client_options frozen<map<text, text>>, connection_stage text, driver_name text, driver_version text, hostname text, \
         protocol_version int, scheduling_group text, shard_id int, ssl_cipher_suite text, ssl_enabled boolean, ssl_protocol text, \
         username text, PRIMARY KEY (address, port, client_type)",
        "connected clients",
        Generator::Clients,
    ),
    (
        "system",
        "compaction_history",
        "id uuid PRIMARY KEY, bytes_in bigint, bytes_out bigint, columnfamily_name text, compacted_at timestamp, \
         compaction_type text, keyspace_name text, rows_merged map<int, bigint>, shard_id int, started_at timestamp",
        "the newest compactions",
        Generator::Compactions,
    ),
    (
        "system",
        "hot_partitions",
        "keyspace_name text, rank int, table_name text, partition_key text, key blob, partition_token bigint, shard_id int, \
         reads_per_second double, writes_per_second double, bytes_per_second double, cpu_share double, \
         accepted_per_second double, refused_per_second double, would_be_refused_per_second double, error_per_second double, \
         PRIMARY KEY (keyspace_name, rank)",
        "the hottest partitions of each shard of the local node",
        Generator::HotPartitions,
    ),
    (
        "system",
        "tablet_loads",
        "keyspace_name text, table_name text, last_token bigint, shard_id int, reads_per_second double, \
         writes_per_second double, bytes_per_second double, cpu_share double, \
         PRIMARY KEY (keyspace_name, table_name, last_token, shard_id)",
        "operations of the tablets of the local node",
        Generator::TabletLoads,
    ),
    (
        "system",
        "versions",
        "key text PRIMARY KEY, build_id text, build_mode text, compatible_version text, version text",
        "version of the server",
        known(status::versions),
    ),
    (
        "system",
        "runtime_info",
        "group text, item text, value text, PRIMARY KEY (group, item)",
        "facts about the running process",
        Generator::RuntimeInfo,
    ),
    (
        "system",
        "protocol_servers",
        "name text PRIMARY KEY, is_running boolean, listen_addresses frozen<list<text>>, protocol text, protocol_version text",
        "protocols that clients can speak",
        known(status::protocol_servers),
    ),
    (
        "system",
        "config",
        "name text PRIMARY KEY, source text, type text, value text",
        "configuration",
        known(config::fill),
    ),
    (
        "system",
        "scylla_local",
        "key text PRIMARY KEY, value text",
        "facts about the local node",
        known(status::scylla_local),
    ),
    (
        "system",
        "one_row",
        "\"system$dummy\" text PRIMARY KEY",
        "one row, for SELECT without FROM",
        known(status::one_row),
    ),
    (
        "system",
        "IndexInfo",
        "table_name text, index_name text, PRIMARY KEY (table_name, index_name)",
        "built indexes",
        EMPTY,
    ),
    (
        "system",
        "built_views",
        "keyspace_name text, view_name text, status_replicated boolean, PRIMARY KEY (keyspace_name, view_name)",
        "built views",
        EMPTY,
    ),
    (
        "system_schema",
        "keyspaces",
        "keyspace_name text PRIMARY KEY, durable_writes boolean, replication frozen<map<text, text>>",
        "keyspace definitions",
        known(schema_tables::keyspaces),
    ),
    (
        "system_schema",
        "tables",
        concat!(
            "keyspace_name text, table_name text, flags frozen<set<text>>, ",
            option_columns!(),
            ", PRIMARY KEY (keyspace_name, table_name)"
        ),
        "table definitions",
        known(schema_tables::tables),
    ),
    ("system_schema", "columns", column_columns!(), "column definitions", known(schema_tables::columns)),
    ("system_schema", "view_virtual_columns", column_columns!(), "virtual column definitions", EMPTY),
    (
        "system_schema",
        "computed_columns",
        "keyspace_name text, table_name text, column_name text, computation blob, \
         PRIMARY KEY (keyspace_name, table_name, column_name)",
        "computed columns",
        EMPTY,
    ),
    (
        "system_schema",
        "dropped_columns",
        "keyspace_name text, table_name text, column_name text, dropped_time timestamp, kind text, type text, \
         PRIMARY KEY (keyspace_name, table_name, column_name)",
        "dropped column registry",
        known(schema_tables::dropped_columns),
    ),
    (
        "system_schema",
        "types",
        "keyspace_name text, type_name text, field_names frozen<list<text>>, field_types frozen<list<text>>, \
         PRIMARY KEY (keyspace_name, type_name)",
        "user defined type definitions",
        known(schema_tables::types),
    ),
    (
        "system_schema",
        "functions",
        "keyspace_name text, function_name text, argument_types frozen<list<text>>, argument_names frozen<list<text>>, body text, \
         called_on_null_input boolean, language text, return_type text, \
         PRIMARY KEY (keyspace_name, function_name, argument_types)",
        "user defined function definitions",
        EMPTY,
    ),
    (
        "system_schema",
        "aggregates",
        "keyspace_name text, aggregate_name text, argument_types frozen<list<text>>, final_func text, initcond text, \
         return_type text, state_func text, state_type text, PRIMARY KEY (keyspace_name, aggregate_name, argument_types)",
        "user defined aggregate definitions",
        EMPTY,
    ),
    (
        "system_schema",
        "triggers",
        "keyspace_name text, table_name text, trigger_name text, options frozen<map<text, text>>, \
         PRIMARY KEY (keyspace_name, table_name, trigger_name)",
        "trigger definitions",
        EMPTY,
    ),
    (
        "system_schema",
        "indexes",
        "keyspace_name text, table_name text, index_name text, kind text, options frozen<map<text, text>>, \
         PRIMARY KEY (keyspace_name, table_name, index_name)",
        "secondary index definitions",
        EMPTY,
    ),
    (
        "system_schema",
        "views",
        concat!(
            "keyspace_name text, view_name text, base_table_id uuid, base_table_name text, include_all_columns boolean, \
             where_clause text, ",
            option_columns!(),
            ", PRIMARY KEY (keyspace_name, view_name)"
        ),
        "view definitions",
        EMPTY,
    ),
    (
        "system_schema",
        "scylla_tables",
        "keyspace_name text, table_name text, cdc frozen<map<text, text>>, committed_by_group0 boolean, in_memory boolean, \
         partitioner text, per_partition_rate_limit frozen<map<text, text>>, tablets frozen<map<text, text>>, version uuid, \
         PRIMARY KEY (keyspace_name, table_name)",
        "table definitions beyond those of Cassandra",
        known(schema_tables::scylla_tables),
    ),
    (
        "system_schema",
        "scylla_keyspaces",
        "keyspace_name text PRIMARY KEY, initial_tablets int, storage_options frozen<map<text, text>>, storage_type text",
        "keyspace definitions beyond those of Cassandra",
        known(schema_tables::scylla_keyspaces),
    ),
    (
        "system_schema",
        "scylla_aggregates",
        "keyspace_name text, aggregate_name text, argument_types frozen<list<text>>, reduce_func text, state_type text, \
         PRIMARY KEY (keyspace_name, aggregate_name, argument_types)",
        "aggregate definitions beyond those of Cassandra",
        EMPTY,
    ),
    (
        super::VIRTUAL_SCHEMA,
        "keyspaces",
        "keyspace_name text PRIMARY KEY",
        "virtual keyspace definitions",
        known(schema_tables::virtual_keyspaces),
    ),
    (
        super::VIRTUAL_SCHEMA,
        "tables",
        "keyspace_name text, table_name text, comment text, PRIMARY KEY (keyspace_name, table_name)",
        "virtual table definitions",
        known(schema_tables::virtual_tables),
    ),
    (
        super::VIRTUAL_SCHEMA,
        "columns",
        column_columns!(),
        "virtual column definitions",
        known(schema_tables::virtual_columns),
    ),
];

/// The metadata of the virtual keyspaces, and the keyspace, name and generator of each table.
pub(super) fn build() -> (Metadata, Vec<(&'static str, String, Generator)>) {
    let replication = OptionMap::from([("class".to_owned(), "org.apache.cassandra.locator.LocalStrategy".to_owned())]);
    let mut ops: Vec<Op> = super::KEYSPACES
        .iter()
        .map(|name| {
            Op::PutKeyspace(KeyspaceDefinition {
                name: (*name).to_owned(),
                replication: replication.clone(),
                durable_writes: true,
                tablets: OptionMap::new(),
            })
        })
        .collect();
    let mut generators = Vec::new();
    let empty = Metadata::empty();
    for (keyspace, name, columns, comment, generator) in TABLES {
        let text = format!(
            "CREATE TABLE {keyspace}.\"{name}\" ({columns}) WITH comment = '{comment}' AND gc_grace_seconds = 0"
        );
        let parsed = syntax::parse(&text).unwrap_or_else(|error| panic!("virtual table {name}: {error}"));
        let Statement::CreateTable(statement) = parsed.statement else { panic!("virtual table {name} is no table") };
        let identity = Identity { table: TableId(named(&[keyspace, name])), version: SchemaVersion(named(&[&text])) };
        let made = table_definition(&empty, &statement, identity);
        let (definition, _) = made.unwrap_or_else(|error| panic!("virtual table {name}: {error}"));
        ops.push(Op::PutTable(Box::new(definition)));
        generators.push((*keyspace, (*name).to_owned(), *generator));
    }
    let metadata = empty.with(&ops).unwrap_or_else(|error| panic!("virtual tables: {error}"));
    (metadata, generators)
}

/// A UUID (version 3) derived from names.
fn named(names: &[&str]) -> Uuid {
    let mut digest = Md5::new();
    for name in names {
        digest.update(name.as_bytes());
    }
    uuid::Builder::from_md5_bytes(digest.finalize().into()).into_uuid()
}
