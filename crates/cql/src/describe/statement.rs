//! Statements that create schema objects.

use super::options;
use crate::syntax::quote_identifier;
use cluster::metadata::{ColumnDefinition, DroppedDefinition, KeyspaceDefinition, Table, TableDefinition};
use model::schema::ColumnKind;
use model::types::UserType;
use std::collections::BTreeMap;
use std::fmt::Write;

/// `CREATE KEYSPACE ...;`
pub fn create_keyspace(definition: &KeyspaceDefinition) -> String {
    let mut out = format!(
        "CREATE KEYSPACE {} WITH replication = {} AND durable_writes = {}",
        quote_identifier(&definition.name),
        options::replication(&definition.replication),
        definition.durable_writes
    );
    if !definition.tablets.is_empty() {
        // The values were checked when they were set: a number and a boolean. ScyllaDB prints them
        // without quotes.
        let tablets: Vec<String> =
            definition.tablets.iter().map(|(name, value)| format!("'{name}': {value}")).collect();
        let _ = write!(out, " AND tablets = {{{}}}", tablets.join(", "));
    }
    out.push(';');
    out
}

/// `CREATE TYPE ...;`
pub fn create_type(user_type: &UserType) -> String {
    let fields: Vec<String> =
        user_type.fields.iter().map(|(name, ty)| format!("    {} {ty}", quote_identifier(name))).collect();
    let (keyspace, name) = (quote_identifier(&user_type.keyspace), quote_identifier(&user_type.name));
    format!("CREATE TYPE {keyspace}.{name} (\n{}\n);", fields.join(",\n"))
}

/// `CREATE TABLE ...;`. With internals, it includes the table's id and the dropped columns,
/// followed by statements that drop them again.
pub fn create_table(table: &Table, internals: bool) -> String {
    let definition = &table.definition;
    let of_kind = |kind: ColumnKind| definition.columns.iter().filter(move |column| column.kind == kind);
    let (partition, clustering): (Vec<_>, Vec<_>) =
        (of_kind(ColumnKind::PartitionKey).collect(), of_kind(ColumnKind::Clustering).collect());
    let gone = if internals { dropped(definition) } else { Vec::new() };
    let inline_key = partition.len() == 1 && clustering.is_empty();

    let mut lines = Vec::new();
    for column in table.schema.all_columns() {
        let line = column_line(&column.name, &column.ty.to_string(), column.kind == ColumnKind::Static);
        lines.push(if inline_key && column.kind == ColumnKind::PartitionKey { line + " PRIMARY KEY" } else { line });
    }
    for column in gone.iter().filter(|column| !is_there(definition, &column.name)) {
        lines.push(column_line(&column.name, &column.shown_type(), column.kind == ColumnKind::Static));
    }
    if !inline_key {
        lines.push(format!("    PRIMARY KEY ({})", key(&partition, &clustering)));
    }
    let name = format!("{}.{}", quote_identifier(&definition.keyspace), quote_identifier(&definition.name));
    let mut properties = Vec::new();
    if internals {
        properties.push(format!("ID = {}", definition.id));
    }
    if !clustering.is_empty() {
        let order = |column: &&ColumnDefinition| {
            format!("{} {}", quote_identifier(&column.name), if column.descending { "DESC" } else { "ASC" })
        };
        let order: Vec<String> = clustering.iter().map(order).collect();
        properties.push(format!("CLUSTERING ORDER BY ({})", order.join(", ")));
    }
    properties.extend(options::properties(&definition.options));
    let mut out = format!("CREATE TABLE {name} (\n{}\n) WITH {};", lines.join(",\n"), properties.join("\n    AND "));
    let columns: BTreeMap<&str, &ColumnDefinition> =
        definition.columns.iter().map(|column| (column.name.as_str(), column)).collect();
    for column in &gone {
        let quoted = quote_identifier(&column.name);
        let _ = write!(out, "\n\nALTER TABLE {name} DROP {quoted} USING TIMESTAMP {};", column.drop_time);
        if let Some(again) = columns.get(column.name.as_str()) {
            let mark = if again.kind == ColumnKind::Static { " static" } else { "" };
            let _ = write!(out, "\n\nALTER TABLE {name} ADD {quoted} {}{mark};", again.ty);
        }
    }
    out
}

fn column_line(name: &str, ty: &str, is_static: bool) -> String {
    format!("    {} {ty}{}", quote_identifier(name), if is_static { " static" } else { "" })
}

fn key(partition: &[&ColumnDefinition], clustering: &[&ColumnDefinition]) -> String {
    let names = |columns: &[&ColumnDefinition]| -> Vec<String> {
        columns.iter().map(|column| quote_identifier(&column.name).into_owned()).collect()
    };
    let partition = match names(partition).as_slice() {
        [one] => one.clone(),
        several => format!("({})", several.join(", ")),
    };
    let mut parts = vec![partition];
    parts.extend(names(clustering));
    parts.join(", ")
}

/// The dropped columns. If a name was dropped several times, only the last one.
fn dropped(definition: &TableDefinition) -> Vec<&DroppedDefinition> {
    let all = &definition.dropped;
    let is_last = |at: usize| !all[at + 1..].iter().any(|later| later.name == all[at].name);
    (0..all.len()).filter(|at| is_last(*at)).map(|at| &all[at]).collect()
}

fn is_there(definition: &TableDefinition, name: &str) -> bool {
    definition.columns.iter().any(|column| column.name == name)
}
