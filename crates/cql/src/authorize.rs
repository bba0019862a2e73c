//! Permissions. Every statement calls [`authorize`] once for each resource that it accesses. Roles
//! are not implemented yet, so every request is allowed (docs/cql.md, "Not supported yet").

use crate::error::Error;

/// A kind of access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Permission {
    /// Read rows.
    Select,
    /// Write rows.
    Modify,
    /// Create keyspaces, tables and types.
    Create,
    /// Change them.
    Alter,
    /// Drop them.
    Drop,
    /// Read their definitions.
    Describe,
}

/// The object of a permission.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Resource<'a> {
    /// All keyspaces.
    AllKeyspaces,
    /// A keyspace.
    Keyspace(&'a str),
    /// A table.
    Table {
        /// Its keyspace.
        keyspace: &'a str,
        /// Its name.
        table: &'a str,
    },
}

/// Whether a role has a permission on a resource. `None` is the role of unauthenticated
/// connections.
#[inline]
pub fn authorize(_role: Option<&str>, _permission: Permission, _resource: Resource<'_>) -> Result<(), Error> {
    Ok(())
}
