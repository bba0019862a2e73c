//! Records the types with which columns were created, if ALTER has changed them since.
//!
//! The ids of prepared statements are computed from these types. After an ALTER, a node may no
//! longer have a prepared statement. A driver that prepares it again must get the id that it knows.
//!
//! A statement that was prepared after the ALTER has the same id, but its values are of the new
//! type. So DROP of such a table retires its ids: statements for a later table of its name get
//! others.
//!
//! The types are stored in the table's definition, as options under names that no statement can
//! set. DESCRIBE does not show them. A column that is added again under its name continues the
//! dropped one: its new type must be able to read the old values.

use cluster::Metadata;
use cluster::metadata::{Op, Table, TableDefinition};
use model::TableSchema;
use model::schema::Column;

/// The prefix of the option's name, before the name of the column.
const PREFIX: &str = "first type of ";

/// Records the type of a column before its first change.
pub(super) fn note(definition: &mut TableDefinition, column: &str, ty: &str) {
    let name = format!("{PREFIX}{column}");
    definition.options.others.entry(name).or_insert_with(|| ty.to_owned());
}

/// Records the new name of a column.
pub(super) fn rename(definition: &mut TableDefinition, from: &str, to: &str) {
    if let Some(ty) = definition.options.others.remove(&format!("{PREFIX}{from}")) {
        definition.options.others.insert(format!("{PREFIX}{to}"), ty);
    }
}

/// Whether an option holds the first type of a column.
pub(crate) fn is_one(option: &str) -> bool {
    option.starts_with(PREFIX)
}

/// Whether columns of a table have or had other types than those with which they were created.
pub(crate) fn differ(schema: &TableSchema) -> bool {
    schema.options.others.keys().any(|option| is_one(option))
}

/// Retires the ids of the statements that were prepared for a table, if it is necessary when the
/// table is dropped.
pub(super) fn retire(table: &Table) -> Option<Op> {
    let schema = &table.schema;
    let (keyspace, name) = (schema.keyspace.clone(), schema.name.clone());
    differ(schema).then(|| Op::RetireIds { keyspace, table: name, salt: schema.id.0 })
}

/// The schema of the table with the types with which its columns were created.
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
