//! The types with which columns were created, where ALTER has changed them since. Ids of prepared statements are made of these:
//! a driver that prepares a statement again, after an ALTER and the loss of what a node had prepared, must get the id it knows.
//!
//! They are part of the table's definition, under names among its options that no statement can write and DESCRIBE does not
//! show. A column that is added again under its name continues the one that was dropped: its type is one that keeps the values.

use cluster::Metadata;
use cluster::metadata::TableDefinition;
use model::TableSchema;
use model::schema::Column;

/// What stands before a column's name in the name of the option.
const PREFIX: &str = "first type of ";

/// Notes that the type of a column changes from this one.
pub(super) fn note(definition: &mut TableDefinition, column: &str, ty: &str) {
    let name = format!("{PREFIX}{column}");
    definition.options.others.entry(name).or_insert_with(|| ty.to_owned());
}

/// Notes that a column gets another name.
pub(super) fn rename(definition: &mut TableDefinition, from: &str, to: &str) {
    if let Some(ty) = definition.options.others.remove(&format!("{PREFIX}{from}")) {
        definition.options.others.insert(format!("{PREFIX}{to}"), ty);
    }
}

/// Whether an option is the first type of a column.
pub(crate) fn is_one(option: &str) -> bool {
    option.starts_with(PREFIX)
}

/// Whether columns of a table have, or had, other types than those with which they were created.
pub(crate) fn differ(schema: &TableSchema) -> bool {
    schema.options.others.keys().any(|option| is_one(option))
}

/// The schema with the types with which the columns were created.
pub(crate) fn schema(metadata: &Metadata, schema: &TableSchema) -> TableSchema {
    let first = |column: &Column| {
        let ty = schema.options.others.get(&format!("{PREFIX}{}", column.name));
        let ty = ty.and_then(|ty| metadata.parse_type(&schema.keyspace, ty).ok());
        Column { ty: ty.unwrap_or_else(|| column.ty.clone()), ..column.clone() }
    };
    let all = |columns: &[Column]| columns.iter().map(first).collect();
    TableSchema::new(
        schema.id,
        schema.version,
        schema.keyspace.clone(),
        schema.name.clone(),
        all(&schema.partition_key),
        all(&schema.clustering),
        all(&schema.statics),
        all(&schema.regulars),
        schema.dropped.clone(),
        schema.options.clone(),
    )
}
