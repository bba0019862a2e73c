//! The `schema.cql` of a table's snapshot: statements that create a table into which the snapshot's
//! sstables can be loaded.
//!
//! It contains the user types, the table, and the dropped columns, because older sstables may still
//! contain them. The table's id is left out, because an id is never used again.

use super::statement;
use cluster::MetadataService;
use model::types::UserType;
use model::{CqlType, TableSchema};
use rt::shard::PerShard;

/// The statements for a table of this node. Works on any shard, also while the table is being
/// dropped.
pub fn snapshot_schema(services: PerShard<MetadataService>, schema: &TableSchema) -> String {
    let service = services.try_get();
    let Some(table) = service.and_then(|service| service.table_even_if_dropping(schema.id)) else {
        return format!("-- the table {}.{} is not known any more\n", schema.keyspace, schema.name);
    };
    let mut types = Vec::new();
    schema.all_columns().for_each(|column| collect(&column.ty, &mut types));
    // Other tables may still use them.
    let create_type = |ty| statement::create_type(ty).replacen("CREATE TYPE", "CREATE TYPE IF NOT EXISTS", 1);
    let mut statements: Vec<String> = types.into_iter().map(create_type).collect();
    let id = format!("ID = {}\n    AND ", schema.id);
    statements.push(statement::create_table(&table, true).replacen(&id, "", 1));
    statements.join("\n\n") + "\n"
}

/// The user types of a type, each after the types that it uses.
fn collect<'t>(ty: &'t CqlType, types: &mut Vec<&'t UserType>) {
    match ty {
        CqlType::List { elem, .. } | CqlType::Set { elem, .. } | CqlType::Vector { elem, .. } => collect(elem, types),
        CqlType::Map { key, value, .. } => {
            collect(key, types);
            collect(value, types);
        }
        CqlType::Tuple(parts) => parts.iter().for_each(|part| collect(part, types)),
        CqlType::Udt(user_type) => {
            user_type.fields.iter().for_each(|(_, field)| collect(field, types));
            if !types.iter().any(|known| known.name == user_type.name) {
                types.push(user_type);
            }
        }
        _ => {}
    }
}
