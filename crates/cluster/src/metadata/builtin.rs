//! The tables that exist on every node without a logged change: the tables of `system_traces`.
//!
//! These tables are node-local. The coordinator of a traced request writes its trace to every node
//! that is up. So there are at least as many copies as the replication of the keyspace requires.
//! Clients see that replication, and can alter it like any other.
//!
//! Ids and versions are fixed, so that each release finds the data of earlier ones. A new column
//! takes the next free column id, and the table a new version.

use super::definition::{ColumnDefinition, KeyspaceDefinition, Op, TableDefinition};
use model::id::{ColumnId, SchemaVersion, TableId};
use model::options::{OptionMap, TableOptions};
use model::schema::ColumnKind;
use uuid::Uuid;

/// The keyspace of traces.
pub const TRACES: &str = "system_traces";

/// The TTL of a trace: one day, in seconds.
const TRACE_TTL: i32 = 86_400;

/// Whether a keyspace is built in.
pub fn is_built_in(keyspace: &str) -> bool {
    keyspace == TRACES
}

/// The operations that create the built-in tables.
pub fn ops() -> Vec<Op> {
    let tables = [sessions(), events(), node_slow_log(), node_slow_log_time_idx()];
    std::iter::once(Op::PutKeyspace(keyspace())).chain(tables.map(|table| Op::PutTable(Box::new(table)))).collect()
}

/// The keyspace before any ALTER KEYSPACE.
pub fn keyspace() -> KeyspaceDefinition {
    let class = "org.apache.cassandra.locator.SimpleStrategy";
    let replication = [("class", class), ("replication_factor", "2")];
    let replication = replication.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    KeyspaceDefinition { name: TRACES.into(), replication, durable_writes: true, tablets: OptionMap::new() }
}

/// One row per traced request.
fn sessions() -> TableDefinition {
    let columns = vec![
        key(ColumnKind::PartitionKey, "session_id", "uuid"),
        regular(0, "client", "inet"),
        regular(1, "command", "text"),
        regular(2, "coordinator", "inet"),
        regular(3, "coordinator_port", "int"),
        regular(4, "duration", "int"),
        regular(5, "request", "text"),
        regular(6, "request_size", "int"),
        regular(7, "response_size", "int"),
        regular(8, "started_at", "timestamp"),
        regular(9, "username", "text"),
        regular(10, "parameters", "map<text, text>"),
    ];
    table(
        "sessions",
        0xc5e99f16_8677_3914_b17e_960613512345,
        0x5e551045_0001_4001_8001_000000000001,
        "tracing sessions",
        columns,
    )
}

/// The events of traced requests, in order of time.
fn events() -> TableDefinition {
    let columns = vec![
        key(ColumnKind::PartitionKey, "session_id", "uuid"),
        key(ColumnKind::Clustering, "event_id", "timeuuid"),
        regular(0, "activity", "text"),
        regular(1, "scylla_parent_id", "bigint"),
        regular(2, "scylla_span_id", "bigint"),
        regular(3, "source", "inet"),
        regular(4, "source_elapsed", "int"),
        regular(5, "source_port", "int"),
        regular(6, "thread", "text"),
    ];
    table(
        "events",
        0x8826e8e9_e16a_3728_8753_3bc1fc713c25,
        0xe7e47500_0001_4001_8001_000000000001,
        "tracing events",
        columns,
    )
}

/// One row per request that took longer than the threshold of `/storage_service/slow_query`.
fn node_slow_log() -> TableDefinition {
    let columns = vec![
        key(ColumnKind::PartitionKey, "start_time", "timeuuid"),
        key(ColumnKind::Clustering, "node_ip", "inet"),
        key(ColumnKind::Clustering, "shard", "int"),
        regular(0, "command", "text"),
        regular(1, "date", "timestamp"),
        regular(2, "duration", "int"),
        regular(3, "session_id", "uuid"),
        regular(4, "source_ip", "inet"),
        regular(5, "username", "text"),
        regular(6, "parameters", "map<text, text>"),
        regular(7, "table_names", "set<text>"),
    ];
    table(
        "node_slow_log",
        0xbfcc4e62_5b63_3aa1_a1c3_6f5e47f3325c,
        0x510e1090_0001_4001_8001_000000000001,
        "slow requests",
        columns,
    )
}

/// The slow requests by the minute of their start.
fn node_slow_log_time_idx() -> TableDefinition {
    let columns = vec![
        key(ColumnKind::PartitionKey, "minute", "timestamp"),
        key(ColumnKind::Clustering, "started_at", "timestamp"),
        key(ColumnKind::Clustering, "session_id", "uuid"),
        regular(0, "node_ip", "inet"),
        regular(1, "shard", "int"),
        regular(2, "start_time", "timeuuid"),
    ];
    table(
        "node_slow_log_time_idx",
        0xf9706768_aa1e_3d87_9e5c_51a3927c2870,
        0x510e1d80_0001_4001_8001_000000000001,
        "slow requests by time",
        columns,
    )
}

fn table(name: &str, id: u128, version: u128, comment: &str, columns: Vec<ColumnDefinition>) -> TableDefinition {
    TableDefinition {
        id: TableId(Uuid::from_u128(id)),
        version: SchemaVersion(Uuid::from_u128(version)),
        keyspace: TRACES.into(),
        name: name.into(),
        columns,
        dropped: Vec::new(),
        options: TableOptions {
            comment: comment.into(),
            default_time_to_live: TRACE_TTL,
            gc_grace_seconds: 0,
            ..TableOptions::default()
        },
    }
}

fn key(kind: ColumnKind, name: &str, ty: &str) -> ColumnDefinition {
    ColumnDefinition { id: ColumnId(0), name: name.into(), kind, ty: ty.into(), descending: false }
}

fn regular(id: u16, name: &str, ty: &str) -> ColumnDefinition {
    ColumnDefinition {
        id: ColumnId(id),
        name: name.into(),
        kind: ColumnKind::Regular,
        ty: ty.into(),
        descending: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::Metadata;

    #[test]
    fn the_built_in_tables_are_sound() {
        let metadata = Metadata::empty().with(&ops()).unwrap();
        for (name, keys, regulars) in
            [("sessions", 1, 11), ("events", 2, 7), ("node_slow_log", 3, 8), ("node_slow_log_time_idx", 3, 3)]
        {
            let schema = &metadata.table(TRACES, name).unwrap().schema;
            let columns = (schema.partition_key.len() + schema.clustering.len(), schema.regulars.len());
            assert_eq!(columns, (keys, regulars), "{name}");
            let ids = schema.regulars.iter().filter(|column| !column.ty.is_multi_cell()).map(|column| column.id);
            assert!(ids.is_sorted(), "simple columns have ids in order of name");
        }
        assert!(metadata.tables().all(|table| is_built_in(&table.schema.keyspace)));
    }
}
