//! Permissions. Every statement asks here, once per resource it touches. There are no roles yet, so every request is allowed
//! (docs/cql.md, "Not supported yet").

use crate::error::Error;

/// What one may be allowed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Permission {
    /// Reading.
    Select,
    /// Writing.
    Modify,
    /// Making new things.
    Create,
    /// Changing things.
    Alter,
    /// Removing things.
    Drop,
    /// Looking at definitions.
    Describe,
}

/// What it is about.
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

/// Whether a role may do this. `None` is the role of connections without authentication.
#[inline]
pub fn authorize(_role: Option<&str>, _permission: Permission, _resource: Resource<'_>) -> Result<(), Error> {
    Ok(())
}
