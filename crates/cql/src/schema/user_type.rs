//! CREATE TYPE and DROP TYPE.

use super::{PlannedChange, names, types, written_keyspace};
use crate::api::{SchemaAction, SchemaTarget};
use crate::error::Error;
use crate::syntax::ast::{CreateType, DropType, TypeName};
use cluster::Metadata;
use cluster::metadata::{Op, TypeDefinition};
use model::CqlType;

/// The most fields of a user type. Field indexes are stored as signed 16-bit integers.
pub(super) const MAX_FIELDS: usize = 32_767;

pub(super) fn create(metadata: &Metadata, statement: &CreateType) -> Result<PlannedChange, Error> {
    let (keyspace, name) = (written_keyspace(&statement.name), statement.name.name.as_str());
    names::check_modifiable(keyspace)?;
    let home = names::keyspace(metadata, keyspace)?;
    if home.types.contains_key(name) {
        if statement.if_not_exists {
            return Ok(PlannedChange::nothing());
        }
        return Err(Error::invalid(format!("A user type of name {keyspace}.{name} already exists")));
    }
    if statement.fields.len() > MAX_FIELDS {
        return Err(Error::invalid(format!("A user type cannot have more than {MAX_FIELDS} fields")));
    }
    names::check_type_name(name)?;
    let mut fields: Vec<(String, String)> = Vec::with_capacity(statement.fields.len());
    for (field, written) in &statement.fields {
        names::check_type_name(field.as_str())?;
        let ty = field_type(metadata, keyspace, written)?;
        fields.push((field.as_str().to_owned(), ty.to_string()));
    }
    check_distinct(name, &fields)?;
    let definition = TypeDefinition { keyspace: keyspace.to_owned(), name: name.to_owned(), fields };
    let identity = rt::random::time_uuid();
    let identify = Op::IdentifyType { keyspace: keyspace.to_owned(), name: name.to_owned(), identity };
    let ops = vec![Op::PutType(definition), identify];
    Ok(PlannedChange::new(ops, SchemaAction::Created, SchemaTarget::Type(name.to_owned()), keyspace))
}

pub(super) fn drop(metadata: &Metadata, statement: &DropType) -> Result<PlannedChange, Error> {
    let (keyspace, name) = (written_keyspace(&statement.name), statement.name.name.as_str());
    names::check_modifiable(keyspace)?;
    let Some(home) = metadata.keyspace(keyspace) else {
        if statement.if_exists {
            return Ok(PlannedChange::nothing());
        }
        return Err(Error::invalid(format!("Cannot drop type in unknown keyspace {keyspace}")));
    };
    if !home.types.contains_key(name) {
        if statement.if_exists {
            return Ok(PlannedChange::nothing());
        }
        return Err(Error::invalid(format!("No user type named {keyspace}.{name} exists.")));
    }
    for other in home.types.values().filter(|other| other.name != name) {
        if other.fields.iter().any(|(_, ty)| ty.references_udt(keyspace, name)) {
            return Err(Error::invalid(format!(
                "Cannot drop user type {keyspace}.{name} as it is still used by user type {}",
                other.name
            )));
        }
    }
    for table in home.tables.values() {
        if table.schema.all_columns().any(|column| column.ty.references_udt(keyspace, name)) {
            return Err(Error::invalid(format!(
                "Cannot drop user type {keyspace}.{name} as it is still used by table {keyspace}.{}",
                table.schema.name
            )));
        }
    }
    let ops = vec![Op::DropType { keyspace: keyspace.to_owned(), name: name.to_owned() }];
    Ok(PlannedChange::new(ops, SchemaAction::Dropped, SchemaTarget::Type(name.to_owned()), keyspace))
}

/// The type of a field.
pub(super) fn field_type(metadata: &Metadata, keyspace: &str, written: &TypeName) -> Result<CqlType, Error> {
    let ty = types::resolve(metadata, keyspace, written)?;
    if ty.contains_counter() {
        return Err(Error::invalid("A user type cannot contain counters"));
    }
    if matches!(&ty, CqlType::Udt(user_type) if !user_type.frozen) {
        return Err(Error::invalid("A user type cannot contain non-frozen user type fields"));
    }
    Ok(ty)
}

/// Refuses duplicate field names.
pub(super) fn check_distinct(name: &str, fields: &[(String, String)]) -> Result<(), Error> {
    let mut seen = rt::hash::HashSet::default();
    match fields.iter().find(|(field, _)| !seen.insert(field.as_str())) {
        Some((field, _)) => Err(Error::invalid(format!("Duplicate field name {field} in type {name}"))),
        None => Ok(()),
    }
}
