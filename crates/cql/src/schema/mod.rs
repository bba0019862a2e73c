//! Statements that change the schema: CREATE, ALTER and DROP of keyspaces, tables and types; and TRUNCATE.
//!
//! Each statement's work is a pure function from the newest metadata to the steps of a change ([`Made`]); [`execute`] has the
//! metadata service run it, one change at a time in the cluster, so what it checks still holds when the change is applied.
//! Nothing here touches data, except TRUNCATE, which asks the cluster to.

mod alter_table;
mod alter_type;
mod compatibility;
mod create_table;
mod drop_unsupported;
pub(crate) mod first_types;
mod keyspace;
pub mod names;
#[cfg(test)]
mod option_tests;
pub mod options;
#[cfg(test)]
mod replication_tests;
mod table;
#[cfg(test)]
pub(crate) mod tests;
mod truncate;
pub mod types;
mod user_type;

pub use create_table::{Identity, definition as table_definition};
pub use truncate::truncate;

use crate::api::{Answer, AnswerKind, ClientState, SchemaAction, SchemaChange, SchemaTarget};
use crate::error::Error;
use crate::guardrails::Guardrails;
use crate::syntax::ast::{AlterTableAction, Literal, Name, QualifiedName, Statement, Term};
use cluster::Metadata;
use cluster::metadata::{ChangeError, NodeInfo, Op};

/// What a statement makes of the metadata.
#[derive(Debug, Default)]
pub struct Made {
    /// The steps of the change; none where there is nothing to do.
    pub ops: Vec<Op>,
    /// What is told to the client, and as an event to others; nothing where nothing changed.
    pub change: Option<SchemaChange>,
    /// Warnings for the client.
    pub warnings: Vec<String>,
}

impl Made {
    /// Nothing to do: what was to be made is there, or what was to be dropped is not.
    fn nothing() -> Made {
        Made::default()
    }

    fn new(ops: Vec<Op>, action: SchemaAction, target: SchemaTarget, keyspace: &str) -> Made {
        let change = SchemaChange { action, target, keyspace: keyspace.to_owned() };
        Made { ops, change: Some(change), warnings: Vec::new() }
    }

    fn warned(mut self, warnings: Vec<String>) -> Made {
        self.warnings.extend(warnings);
        self
    }
}

/// Whether `execute` takes the statement.
pub fn is_schema_statement(statement: &Statement) -> bool {
    matches!(
        statement,
        Statement::CreateKeyspace(_)
            | Statement::AlterKeyspace(_)
            | Statement::DropKeyspace(_)
            | Statement::CreateTable(_)
            | Statement::AlterTable(_)
            | Statement::DropTable(_)
            | Statement::CreateType(_)
            | Statement::AlterType(_)
            | Statement::DropType(_)
            | Statement::DropUnsupported(_)
    )
}

/// Executes a statement for which [`is_schema_statement`] holds. `drop_time` is the value of the bind marker of
/// ALTER TABLE ... DROP USING TIMESTAMP: none if there is no such marker, or if it is unset.
pub async fn execute(
    client: &ClientState,
    statement: &Statement,
    drop_time: Option<i64>,
    guardrails: &Guardrails,
) -> Result<Answer, Error> {
    let mut statement = qualified(client, statement)?;
    set_drop_time(&mut statement, drop_time);
    keep_newer_than_drop(&statement).await?;
    let (own, guardrails) = (statement.clone(), guardrails.clone());
    let outcome = cluster::metadata::change(move |metadata, node| {
        let Made { ops, change, warnings } = checked(metadata, node, &guardrails, &own)?;
        Ok::<_, Error>((ops, (change, warnings)))
    })
    .await;
    let (change, warnings) = outcome.map_err(|error| match error {
        ChangeError::Refused(error) => error,
        ChangeError::Metadata(error) => Error::Server(error.to_string()),
        ChangeError::Storage(why) => Error::Server(format!("the schema change could not be carried out: {why}")),
    })?;
    let kind = change.map_or(AnswerKind::Void, AnswerKind::SchemaChange);
    Ok(Answer { warnings, ..Answer::new(kind) })
}

/// Puts the value of a bind marker into the place of the marker.
fn set_drop_time(statement: &mut Statement, drop_time: Option<i64>) {
    if let Statement::AlterTable(altered) = statement
        && let AlterTableAction::Drop { timestamp, .. } = &mut altered.action
        && let Some(Term::Marker(_)) = timestamp
    {
        *timestamp = drop_time.map(|time| Term::Literal(Literal::Integer(time.to_string())));
    }
}

/// A column dropped as of a timestamp may be added again, and then shows what is newer. Files name columns and tell; memtables know
/// ids, which are never used twice. So what memtables hold goes into files first.
async fn keep_newer_than_drop(statement: &Statement) -> Result<(), Error> {
    let Statement::AlterTable(altered) = statement else { return Ok(()) };
    if !matches!(altered.action, AlterTableAction::Drop { timestamp: Some(_), .. }) {
        return Ok(());
    }
    let metadata = rt::shard::service::<cluster::MetadataService>().current();
    let Some(table) = metadata.table(written_keyspace(&altered.name), altered.name.name.as_str()) else {
        return Ok(());
    };
    let flushed = cluster::flush::flush(table.schema.id).await;
    flushed.map_err(|why| Error::Server(format!("the table could not be flushed: {why}")))
}

/// The statement with its keyspace written out, so that it means the same on every shard.
fn qualified(client: &ClientState, statement: &Statement) -> Result<Statement, Error> {
    let mut statement = statement.clone();
    let name: Option<&mut QualifiedName> = match &mut statement {
        Statement::CreateTable(statement) => Some(&mut statement.name),
        Statement::AlterTable(statement) => Some(&mut statement.name),
        Statement::DropTable(statement) => Some(&mut statement.name),
        Statement::CreateType(statement) => Some(&mut statement.name),
        Statement::AlterType(statement) => Some(&mut statement.name),
        Statement::DropType(statement) => Some(&mut statement.name),
        Statement::DropUnsupported(statement) if statement.kind.has_keyspace() => Some(&mut statement.name),
        _ => None,
    };
    if let Some(name) = name {
        name.keyspace = Some(Name::new(names::keyspace_of(client, name)?));
    }
    Ok(statement)
}

/// What a statement makes of this metadata, if that is within the limits of the metadata.
fn checked(
    metadata: &Metadata,
    node: &NodeInfo,
    guardrails: &Guardrails,
    statement: &Statement,
) -> Result<Made, Error> {
    let made = make(metadata, node, guardrails, statement)?;
    metadata.check_types(&made.ops).map_err(|error| Error::invalid(error.to_string()))?;
    metadata.check_size(&made.ops, guardrails.schema_bytes).map_err(|error| Error::invalid(error.to_string()))?;
    Ok(made)
}

/// What a statement makes of this metadata.
fn make(metadata: &Metadata, node: &NodeInfo, guardrails: &Guardrails, statement: &Statement) -> Result<Made, Error> {
    match statement {
        Statement::CreateKeyspace(statement) => keyspace::create(metadata, node, guardrails, statement),
        Statement::AlterKeyspace(statement) => keyspace::alter(metadata, node, guardrails, statement),
        Statement::DropKeyspace(statement) => keyspace::drop(metadata, statement),
        Statement::CreateTable(statement) => table::create(metadata, node, guardrails, statement),
        Statement::AlterTable(statement) => alter_table::alter(metadata, guardrails, statement),
        Statement::DropTable(statement) => table::drop(metadata, statement),
        Statement::CreateType(statement) => user_type::create(metadata, statement),
        Statement::AlterType(statement) => alter_type::alter(metadata, statement),
        Statement::DropType(statement) => user_type::drop(metadata, statement),
        Statement::DropUnsupported(statement) => drop_unsupported::drop(metadata, statement),
        _ => Err(Error::invalid("The statement does not change the schema")),
    }
}

/// The written-out keyspace of a name.
fn written_keyspace(name: &QualifiedName) -> &str {
    name.keyspace.as_ref().map_or("", Name::as_str)
}
