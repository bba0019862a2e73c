//! Names: validity, the keyspace of an unqualified name, and keyspaces that users cannot change.

use crate::error::Error;
use crate::syntax::ast::{Name, QualifiedName};
use cluster::Metadata;
use cluster::metadata::{Keyspace, Table, builtin};
use std::rc::Rc;

/// The most characters in the name of a keyspace, table or column, as in ScyllaDB: a file name also
/// needs space for an id.
pub const MAX_NAME_CHARACTERS: usize = 207;

/// Checks the name of a new keyspace.
pub fn check_keyspace_name(name: &str) -> Result<(), Error> {
    if !is_word(name) {
        return Err(Error::invalid(format!("\"{name}\" is not a valid keyspace name")));
    }
    if name.len() > MAX_NAME_CHARACTERS {
        return Err(Error::invalid(format!(
            "Keyspace names shouldn't be more than {MAX_NAME_CHARACTERS} characters long (got \"{name}\")"
        )));
    }
    Ok(())
}

/// Checks the name of a new table.
pub fn check_table_name(name: &str) -> Result<(), Error> {
    if !is_word(name) {
        return Err(Error::invalid(format!(
            "\"{name}\" is not a valid table name (must be alphanumeric character only: [0-9A-Za-z]+)"
        )));
    }
    if name.len() > MAX_NAME_CHARACTERS {
        return Err(Error::invalid(format!(
            "Table names shouldn't be more than {MAX_NAME_CHARACTERS} characters long (got \"{name}\")"
        )));
    }
    Ok(())
}

/// Checks the name of a new column.
pub fn check_column_name(name: &str) -> Result<(), Error> {
    if name.chars().count() > MAX_NAME_CHARACTERS {
        return Err(Error::invalid(format!(
            "Column names shouldn't be more than {MAX_NAME_CHARACTERS} characters long (got \"{name}\")"
        )));
    }
    Ok(())
}

/// Checks the name of a new user type or of a field.
pub fn check_type_name(name: &str) -> Result<(), Error> {
    if name.chars().count() > MAX_NAME_CHARACTERS {
        return Err(Error::invalid(format!(
            "Names of user types and their fields shouldn't be more than {MAX_NAME_CHARACTERS} characters long (got \"{name}\")"
        )));
    }
    Ok(())
}

fn is_word(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// Gives a name without a keyspace the keyspace of the session.
pub fn qualify(name: &mut QualifiedName, keyspace: Option<&str>) -> Result<(), Error> {
    if name.keyspace.is_none() {
        name.keyspace = Some(Name::new(keyspace.ok_or_else(no_keyspace)?));
    }
    Ok(())
}

/// The error for a name without a keyspace in a session without one.
pub fn no_keyspace() -> Error {
    Error::invalid("No keyspace has been specified. USE a keyspace, or explicitly specify keyspace.tablename")
}

/// Whether this is a system keyspace. Its tables are virtual or built in.
pub fn is_system(keyspace: &str) -> bool {
    crate::system::is_virtual(keyspace) || builtin::is_built_in(keyspace)
}

/// Refuses changes to the schema of system keyspaces.
pub fn check_modifiable(keyspace: &str) -> Result<(), Error> {
    if is_system(keyspace) {
        return Err(Error::Unauthorized(format!("{keyspace} keyspace is not user-modifiable.")));
    }
    Ok(())
}

/// The keyspace, or an error if it does not exist.
pub fn keyspace<'m>(metadata: &'m Metadata, name: &str) -> Result<&'m Rc<Keyspace>, Error> {
    metadata.keyspace(name).ok_or_else(|| Error::invalid(format!("Keyspace {name} does not exist")))
}

/// The table, or an error if it does not exist.
pub fn table<'m>(metadata: &'m Metadata, keyspace: &str, name: &str) -> Result<&'m Rc<Table>, Error> {
    let found = self::keyspace(metadata, keyspace)?.tables.get(name);
    found.ok_or_else(|| Error::invalid(format!("unconfigured table {name}")))
}
