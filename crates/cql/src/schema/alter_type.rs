//! ALTER TYPE. The same change gives tables that use the type a new schema version.

use super::user_type::{MAX_FIELDS, check_distinct, field_type};
use super::{PlannedChange, names, written_keyspace};
use crate::api::{SchemaAction, SchemaTarget};
use crate::error::Error;
use crate::syntax::ast::{AlterType, AlterTypeAction, Name, TypeName};
use cluster::Metadata;
use cluster::metadata::{Keyspace, Op, TypeDefinition, types_in_order};
use model::CqlType;
use model::schema::Column;
use model::types::UserType;
use model::types::compatibility::{keeps_bytes, keeps_order};
use std::collections::BTreeSet;

pub(super) fn alter(metadata: &Metadata, statement: &AlterType) -> Result<PlannedChange, Error> {
    let (keyspace, name) = (written_keyspace(&statement.name), statement.name.name.as_str());
    names::check_modifiable(keyspace)?;
    let Some(home) = metadata.keyspace(keyspace) else {
        return Err(Error::invalid(format!("Cannot alter type in unknown keyspace {keyspace}")));
    };
    let Some(user_type) = home.types.get(name) else {
        if statement.if_exists {
            return Ok(PlannedChange::nothing());
        }
        return Err(Error::invalid(format!("No user type named {keyspace}.{name} exists.")));
    };
    let mut fields = stored_fields(user_type);
    match &statement.action {
        AlterTypeAction::Add { if_not_exists, field, type_name } => {
            if *if_not_exists && user_type.field_index(field.as_str()).is_some() {
                return Ok(PlannedChange::nothing());
            }
            fields.push(added(metadata, home, user_type, field, type_name)?);
        }
        AlterTypeAction::Rename { if_exists, pairs } => {
            for (from, to) in pairs {
                names::check_type_name(to.as_str())?;
                match user_type.field_index(from.as_str()) {
                    Some(at) => fields[at].0 = to.as_str().to_owned(),
                    None if *if_exists => {}
                    None => return Err(Error::invalid(format!("Unknown field {from} in type {keyspace}.{name}"))),
                }
            }
            check_distinct(name, &fields)?;
        }
        AlterTypeAction::FieldType { field, type_name } => {
            let Some(at) = user_type.field_index(field.as_str()) else {
                return Err(Error::invalid(format!("Unknown field {field} in type {keyspace}.{name}")));
            };
            let (new, old) = (field_type(metadata, keyspace, type_name)?, &user_type.fields[at].1);
            if !keeps_order(old, &new) || is_in_partition_key(home, name) && !keeps_bytes(old, &new) {
                return Err(Error::invalid(format!(
                    "Type {new} in incompatible with previous type {old} of field {field} in user type {keyspace}.{name}"
                )));
            }
            check_field(home, user_type, &new, &format!("change field {field} to type {new} in"))?;
            fields[at].1 = new.to_string();
        }
    }
    let mut ops = vec![Op::PutType(TypeDefinition { keyspace: keyspace.to_owned(), name: name.to_owned(), fields })];
    ops.extend(dependents(home, name));
    Ok(PlannedChange::new(ops, SchemaAction::Updated, SchemaTarget::Type(name.to_owned()), keyspace))
}

/// Whether a table of the keyspace uses the type in its partition key.
fn is_in_partition_key(home: &Keyspace, name: &str) -> bool {
    home.tables.values().any(|table| in_use(&table.schema.partition_key, &home.definition.name, name).is_some())
}

/// The first of these columns that uses the type.
fn in_use<'c>(columns: &'c [Column], keyspace: &str, name: &str) -> Option<&'c Column> {
    columns.iter().find(|column| column.ty.references_udt(keyspace, name))
}

/// Refuses a field of type `ty` in a user type that exists: new, or with a new type. `change`: what
/// the statement does, for errors.
fn check_field(home: &Keyspace, user_type: &UserType, ty: &CqlType, change: &str) -> Result<(), Error> {
    let (keyspace, name) = (user_type.keyspace.as_str(), user_type.name.as_str());
    let refused = |why: &str| Err(Error::invalid(format!("Cannot {change} type {keyspace}.{name} {why}")));
    if contains(home, ty, name) {
        return refused("as this would create a circular reference");
    }
    for table in home.tables.values() {
        let schema = &table.schema;
        for (columns, kind) in [(&schema.partition_key, "partition"), (&schema.clustering, "clustering")] {
            let column = in_use(columns, keyspace, name);
            if let Some(column) = column.filter(|_| ty.contains_duration()) {
                return refused(&format!(
                    "because it is used in the {kind} key column {} of table {keyspace}.{} where durations are not allowed",
                    column.name, schema.name
                ));
            }
        }
        let holds = schema.statics.iter().chain(&schema.regulars).any(|column| {
            column.ty.is_multi_cell() && matches!(&column.ty, CqlType::Udt(user_type) if user_type.name == name)
        });
        if holds && ty.is_multi_cell() {
            return Err(Error::invalid("Non-frozen UDTs with nested non-frozen collections are not supported"));
        }
    }
    Ok(())
}

/// Whether values of a type contain values of the user type `name`, directly or through any number
/// of other user types.
fn contains(home: &Keyspace, ty: &CqlType, name: &str) -> bool {
    let (mut seen, mut ahead): (BTreeSet<String>, Vec<String>) = Default::default();
    ty.each_user_type(&mut |used| ahead.push(used.name.clone()));
    while let Some(used) = ahead.pop() {
        if used == name {
            return true;
        }
        if let Some(user_type) = home.types.get(&used)
            && seen.insert(used)
        {
            // Nested types are looked up in the keyspace, instead of walking into copies of them.
            for (_, ty) in &user_type.fields {
                ty.each_user_type(&mut |used| ahead.push(used.name.clone()));
            }
        }
    }
    false
}

fn stored_fields(user_type: &UserType) -> Vec<(String, String)> {
    user_type.fields.iter().map(|(name, ty)| (name.clone(), ty.to_string())).collect()
}

fn added(
    metadata: &Metadata,
    home: &Keyspace,
    user_type: &UserType,
    field: &Name,
    written: &TypeName,
) -> Result<(String, String), Error> {
    let (keyspace, name) = (user_type.keyspace.as_str(), user_type.name.as_str());
    if user_type.field_index(field.as_str()).is_some() {
        return Err(Error::invalid(format!(
            "Cannot add new field {field} to type {keyspace}.{name}: a field of the same name already exists"
        )));
    }
    if user_type.fields.len() >= MAX_FIELDS {
        return Err(Error::invalid(format!(
            "Cannot add new field to type {keyspace}.{name}: maximum number of fields reached"
        )));
    }
    names::check_type_name(field.as_str())?;
    let ty = field_type(metadata, keyspace, written)?;
    check_field(home, user_type, &ty, &format!("add new field {field} of type {ty} to"))?;
    for table in home.tables.values() {
        if let Some(column) = in_use(&table.schema.partition_key, keyspace, name) {
            return Err(Error::invalid(format!(
                "Cannot add new field to type {keyspace}.{name} because it is used in the partition key column {} of table \
                 {keyspace}.{}",
                column.name, table.schema.name
            )));
        }
    }
    Ok((field.as_str().to_owned(), ty.to_string()))
}

/// Operations that replace the types and tables that use a type: types because they contain a copy
/// of it, tables because they need a new version.
fn dependents(home: &Keyspace, name: &str) -> Vec<Op> {
    let keyspace = home.definition.name.as_str();
    let mut ops = Vec::new();
    for other in types_in_order(home) {
        if other.name != name && other.fields.iter().any(|(_, ty)| ty.references_udt(keyspace, name)) {
            let fields = stored_fields(&other);
            ops.push(Op::PutType(TypeDefinition { keyspace: keyspace.to_owned(), name: other.name.clone(), fields }));
        }
    }
    for table in home.tables.values() {
        if table.schema.all_columns().any(|column| column.ty.references_udt(keyspace, name)) {
            let mut definition = (*table.definition).clone();
            definition.version = super::table::new_version();
            ops.push(Op::PutTable(Box::new(definition)));
        }
    }
    ops
}
