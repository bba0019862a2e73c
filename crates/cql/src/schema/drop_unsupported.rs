//! DROP INDEX, MATERIALIZED VIEW, FUNCTION, AGGREGATE, ROLE, USER and SERVICE LEVEL.
//!
//! Objects of these kinds cannot be created yet, so the named object never exists. With IF EXISTS
//! the statement does nothing. Otherwise the answer is ScyllaDB's error for an unknown object.

use super::{PlannedChange, names, written_keyspace};
use crate::error::Error;
use crate::syntax::ast::{DropUnsupported, UnsupportedKind};
use crate::term::typing::show_type;
use cluster::Metadata;

pub(super) fn drop(metadata: &Metadata, statement: &DropUnsupported) -> Result<PlannedChange, Error> {
    let name = &statement.name.name;
    let keyspace = written_keyspace(&statement.name);
    if statement.kind.has_keyspace() {
        names::check_modifiable(keyspace)?;
    }
    let is_table = metadata.table(keyspace, name.as_str()).is_some();
    if statement.kind == UnsupportedKind::View && is_table {
        return Err(Error::invalid("Cannot use DROP MATERIALIZED VIEW on Table"));
    }
    if statement.if_exists {
        return Ok(PlannedChange::nothing());
    }
    if statement.kind.has_keyspace() {
        names::keyspace(metadata, keyspace)?;
    }
    Err(match statement.kind {
        UnsupportedKind::Index => {
            Error::invalid(format!("Index '{name}' could not be found in any of the tables of keyspace '{keyspace}'"))
        }
        UnsupportedKind::View => Error::Configuration(format!(
            "Cannot drop non existing materialized view '{name}' in keyspace '{keyspace}'."
        )),
        UnsupportedKind::Function | UnsupportedKind::Aggregate => Error::invalid(match &statement.arguments {
            None => format!("No function named {keyspace}.{name} found"),
            Some(arguments) => {
                let types: Vec<String> = arguments.iter().map(show_type).collect();
                format!("User function {keyspace}.{name}({}) doesn't exist", types.join(", "))
            }
        }),
        UnsupportedKind::Role | UnsupportedKind::User => Error::invalid(format!("Role {name} doesn't exist.")),
        UnsupportedKind::ServiceLevel => Error::invalid(format!("Service Level {name} doesn't exists.")),
    })
}

impl UnsupportedKind {
    /// Whether objects of this kind belong to a keyspace.
    pub(super) fn has_keyspace(self) -> bool {
        !matches!(self, UnsupportedKind::Role | UnsupportedKind::User | UnsupportedKind::ServiceLevel)
    }
}
