//! `system_schema` and `system_virtual_schema`: the metadata as drivers read it.

use super::Knowledge;
use super::rows::{Rows, text, text_map, texts};
use crate::schema::options::rate_limit;
use cluster::metadata::{Keyspace, Table};
use cluster::tablets::strategy::racks_of;
use model::options::OptionMap;
use model::schema::{Column, ColumnKind, TableSchema};
use model::types::Value;
use std::rc::Rc;

pub(super) fn keyspaces(known: &Knowledge, rows: &mut Rows) {
    for keyspace in known.keyspaces() {
        let definition = &keyspace.definition;
        // Drivers read replication factors here, so a rack list is shown as its length.
        let number = |value: &String| racks_of(value).map_or_else(|| value.clone(), |racks| racks.len().to_string());
        let replication: OptionMap =
            definition.replication.iter().map(|(name, value)| (name.clone(), number(value))).collect();
        rows.add(&[
            ("keyspace_name", text(&definition.name)),
            ("durable_writes", Value::Boolean(definition.durable_writes)),
            ("replication", text_map(&replication)),
        ]);
    }
}

fn tables_of<'k>(keyspaces: impl Iterator<Item = &'k Rc<Keyspace>>) -> impl Iterator<Item = &'k Rc<Table>> {
    keyspaces.flat_map(|keyspace| keyspace.tables.values())
}

pub(super) fn tables(known: &Knowledge, rows: &mut Rows) {
    for table in tables_of(known.keyspaces()) {
        let (schema, options) = (&table.schema, &table.schema.options);
        let other = |name: &str, default: &str| text(options.others.get(name).map_or(default, String::as_str));
        let switch = |name: &str| Value::Boolean(options.others.get(name).is_none_or(|value| value != "false"));
        rows.add(&[
            ("keyspace_name", text(&schema.keyspace)),
            ("table_name", text(&schema.name)),
            ("additional_write_policy", other("additional_write_policy", "99p")),
            ("allow_auto_snapshot", switch("allow_auto_snapshot")),
            ("bloom_filter_fp_chance", Value::Double(options.bloom_filter_fp_chance)),
            ("caching", text_map(&options.caching)),
            ("comment", text(&options.comment)),
            ("compaction", text_map(&options.compaction)),
            ("compression", text_map(&options.compression)),
            ("crc_check_chance", Value::Double(options.crc_check_chance)),
            ("dclocal_read_repair_chance", Value::Double(0.0)),
            ("default_time_to_live", Value::Int(options.default_time_to_live)),
            ("extensions", extensions(&options.per_partition_rate_limit)),
            ("flags", flags(schema)),
            ("gc_grace_seconds", Value::Int(options.gc_grace_seconds)),
            ("id", Value::Uuid(schema.id.0)),
            ("incremental_backups", switch("incremental_backups")),
            ("max_index_interval", Value::Int(options.max_index_interval)),
            ("memtable_flush_period_in_ms", Value::Int(options.memtable_flush_period_in_ms)),
            ("min_index_interval", Value::Int(options.min_index_interval)),
            ("read_repair", other("read_repair", "BLOCKING")),
            ("read_repair_chance", Value::Double(0.0)),
            ("speculative_retry", text(&options.speculative_retry)),
        ]);
    }
}

/// The extensions of a table: its rate limits, if it has any.
fn extensions(rate_limit: &OptionMap) -> Value {
    let extension = || (text(rate_limit::OPTION), Value::Blob(rate_limit::extension(rate_limit)));
    Value::Map((!rate_limit.is_empty()).then(extension).into_iter().collect())
}

/// The flags of a table, in the order of a set.
fn flags(schema: &TableSchema) -> Value {
    let counter = schema.is_counter().then(|| text("counter"));
    Value::Set([text("compound")].into_iter().chain(counter).collect())
}

pub(super) fn columns(known: &Knowledge, rows: &mut Rows) {
    tables_of(known.keyspaces()).for_each(|table| add_columns(table, rows));
}

fn add_columns(table: &Table, rows: &mut Rows) {
    let schema = &table.schema;
    for column in schema.all_columns() {
        let is_key = matches!(column.kind, ColumnKind::PartitionKey | ColumnKind::Clustering);
        rows.add(&[
            ("keyspace_name", text(&schema.keyspace)),
            ("table_name", text(&schema.name)),
            ("column_name", text(&column.name)),
            ("clustering_order", text(clustering_order(column))),
            ("column_name_bytes", Value::Blob(column.name.clone().into_bytes())),
            ("kind", text(kind_name(column.kind))),
            ("position", Value::Int(if is_key { column.position.into() } else { -1 })),
            ("type", text(column.ty.to_string())),
        ]);
    }
}

fn clustering_order(column: &Column) -> &'static str {
    match (column.kind, column.descending) {
        (ColumnKind::Clustering, true) => "desc",
        (ColumnKind::Clustering, false) => "asc",
        _ => "none",
    }
}

fn kind_name(kind: ColumnKind) -> &'static str {
    match kind {
        ColumnKind::PartitionKey => "partition_key",
        ColumnKind::Clustering => "clustering",
        ColumnKind::Static => "static",
        ColumnKind::Regular => "regular",
    }
}

pub(super) fn dropped_columns(known: &Knowledge, rows: &mut Rows) {
    for table in tables_of(known.keyspaces()) {
        let all = &table.definition.dropped;
        // If several columns of one name were dropped, the latest is shown.
        for (_, dropped) in
            all.iter().enumerate().filter(|(at, dropped)| !all[at + 1..].iter().any(|d| d.name == dropped.name))
        {
            rows.add(&[
                ("keyspace_name", text(&table.schema.keyspace)),
                ("table_name", text(&table.schema.name)),
                ("column_name", text(&dropped.name)),
                ("dropped_time", Value::Timestamp(dropped.drop_time / 1000)),
                ("kind", text(kind_name(dropped.kind))),
                ("type", text(dropped.shown_type())),
            ]);
        }
    }
}

pub(super) fn types(known: &Knowledge, rows: &mut Rows) {
    for user_type in known.keyspaces().flat_map(|keyspace| keyspace.types.values()) {
        rows.add(&[
            ("keyspace_name", text(&user_type.keyspace)),
            ("type_name", text(&user_type.name)),
            ("field_names", texts(user_type.fields.iter().map(|(name, _)| name))),
            ("field_types", texts(user_type.fields.iter().map(|(_, ty)| ty.to_string()))),
        ]);
    }
}

pub(super) fn scylla_tables(known: &Knowledge, rows: &mut Rows) {
    for table in tables_of(known.keyspaces()) {
        let options = &table.schema.options;
        let map = |map: &model::options::OptionMap| if map.is_empty() { Value::Null } else { text_map(map) };
        rows.add(&[
            ("keyspace_name", text(&table.schema.keyspace)),
            ("table_name", text(&table.schema.name)),
            ("cdc", map(&options.cdc)),
            ("committed_by_group0", Value::Boolean(true)),
            ("per_partition_rate_limit", map(&options.per_partition_rate_limit)),
            ("tablets", map(&options.tablets)),
            ("version", Value::Uuid(table.schema.version.0)),
        ]);
    }
}

pub(super) fn scylla_keyspaces(known: &Knowledge, rows: &mut Rows) {
    let spread = known
        .metadata
        .keyspaces
        .values()
        .filter(|keyspace| !crate::schema::names::is_system(&keyspace.definition.name));
    for keyspace in spread {
        let initial = keyspace.definition.tablets.get("initial").and_then(|count| count.parse().ok()).unwrap_or(0);
        rows.add(&[("keyspace_name", text(&keyspace.definition.name)), ("initial_tablets", Value::Int(initial))]);
    }
}

pub(super) fn virtual_keyspaces(known: &Knowledge, rows: &mut Rows) {
    for keyspace in known.virtual_keyspaces() {
        rows.add(&[("keyspace_name", text(&keyspace.definition.name))]);
    }
}

pub(super) fn virtual_tables(known: &Knowledge, rows: &mut Rows) {
    for table in tables_of(known.virtual_keyspaces()) {
        rows.add(&[
            ("keyspace_name", text(&table.schema.keyspace)),
            ("table_name", text(&table.schema.name)),
            ("comment", text(&table.schema.options.comment)),
        ]);
    }
}

pub(super) fn virtual_columns(known: &Knowledge, rows: &mut Rows) {
    tables_of(known.virtual_keyspaces()).for_each(|table| add_columns(table, rows));
}
