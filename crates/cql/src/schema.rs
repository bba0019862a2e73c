//! Statements that change the schema: CREATE, ALTER and DROP of keyspaces, tables and types. Also
//! TRUNCATE.
//!
//! Each statement is a pure function from the newest metadata to the operations of a change
//! ([`PlannedChange`]). [`execute`] passes it to the metadata service. The cluster applies one
//! change at a time, so the checks of the function still hold when the change is applied. Only
//! TRUNCATE affects data.

mod alter_table;
mod alter_type;
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

use crate::api::{ResultKind, SchemaAction, SchemaChange, SchemaTarget, StatementResult};
use crate::error::Error;
use crate::guardrails::Guardrails;
use crate::syntax::ast::{AlterTableAction, Literal, Name, QualifiedName, Statement, Term};
use cluster::metadata::{ChangeError, NodeInfo, Op};
use cluster::{Metadata, MetadataService};
use coordinator::Coordinator;
use rt::shard::PerShard;
use rt::time::Duration;

/// The interval at which ALTER KEYSPACE looks for its replicas.
const LOOK_FOR_REPLICAS: Duration = Duration::from_millis(20);
/// The interval of log lines while it waits.
const LOG_EVERY: Duration = Duration::from_secs(30);

/// The change of the metadata that a statement makes.
#[derive(Debug, Default)]
pub struct PlannedChange {
    /// The operations. Empty if there is nothing to do.
    pub ops: Vec<Op>,
    /// The result for the client and the event for other clients. `None` if nothing changes.
    pub change: Option<SchemaChange>,
    /// Warnings for the client.
    pub warnings: Vec<String>,
}

impl PlannedChange {
    /// No change: the object to create exists, or the object to drop does not.
    fn nothing() -> PlannedChange {
        PlannedChange::default()
    }

    fn new(ops: Vec<Op>, action: SchemaAction, target: SchemaTarget, keyspace: &str) -> PlannedChange {
        let change = SchemaChange { action, target, keyspace: keyspace.to_owned() };
        PlannedChange { ops, change: Some(change), warnings: Vec::new() }
    }

    fn warned(mut self, warnings: Vec<String>) -> PlannedChange {
        self.warnings.extend(warnings);
        self
    }
}

/// Whether [`execute`] accepts the statement.
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

/// Executes a statement for which [`is_schema_statement`] is true, with an explicit keyspace
/// ([`qualify`]). `drop_time` is the value of the bind marker of ALTER TABLE ... DROP USING
/// TIMESTAMP. `None` if there is no marker, or if it is unset.
pub async fn execute(
    service: &MetadataService,
    clocks: PerShard<Coordinator>,
    statement: &Statement,
    drop_time: Option<i64>,
    guardrails: &Guardrails,
) -> Result<StatementResult, Error> {
    let mut statement = statement.clone();
    set_drop_time(&mut statement, drop_time);
    keep_newer_than_drop(service, &statement).await?;
    let (own, guardrails) = (statement.clone(), guardrails.clone());
    let outcome = cluster::metadata::change(service.shards().metadata, move |metadata, node| {
        // The clock of shard 0, where the change is made.
        let now = || clocks.try_get().map_or_else(rt::time::wall_micros, |clock| clock.timestamp());
        let PlannedChange { ops, change, warnings } = checked(metadata, node, &guardrails, &own, &now)?;
        Ok::<_, Error>((ops, (change, warnings)))
    })
    .await;
    let (change, warnings) = outcome.map_err(|error| match error {
        ChangeError::Refused(error) => error,
        ChangeError::Metadata(error) => Error::Server(error.to_string()),
        ChangeError::Storage(why) => Error::Server(format!("the schema change could not be applied: {why}")),
    })?;
    if let Statement::AlterKeyspace(altered) = &statement {
        wait_for_replicas(service, altered.name.as_str()).await?;
    }
    let kind = change.map_or(ResultKind::Void, ResultKind::SchemaChange);
    Ok(StatementResult { warnings, ..StatementResult::new(kind) })
}

/// Waits until the tablets of a keyspace have the replicas that its replication requires. The
/// change continues without its client.
async fn wait_for_replicas(service: &MetadataService, keyspace: &str) -> Result<(), Error> {
    let is_due = || service.current().keyspace(keyspace).is_some_and(|known| known.wanted_replication.is_some());
    let mut logged = rt::time::now();
    while is_due() {
        if logged.elapsed() >= LOG_EVERY {
            logged = rt::time::now();
            tracing::info!(
                keyspace,
                "ALTER KEYSPACE waits until all tablets have their replicas; nodes that are down delay it"
            );
        }
        if rt::shard::stopping().unless(rt::time::sleep(LOOK_FOR_REPLICAS)).await.is_none() {
            return Err(Error::Server("the node is stopping; the change of the replication continues".to_owned()));
        }
    }
    Ok(())
}

/// Replaces the bind marker by its value.
fn set_drop_time(statement: &mut Statement, drop_time: Option<i64>) {
    if let Statement::AlterTable(altered) = statement
        && let AlterTableAction::Drop { timestamp, .. } = &mut altered.action
        && let Some(Term::Marker(_)) = timestamp
    {
        *timestamp = drop_time.map(|time| Term::Literal(Literal::Integer(time.to_string())));
    }
}

/// Flushes the table before a column is dropped as of a timestamp. When such a column is added
/// again, its cells newer than the timestamp are visible again, but only those in sstables. Every
/// node flushes when it applies the drop (`engine/src/flush/dropped_columns.rs`). This flush before
/// the drop keeps the cells of this node even if it crashes then.
async fn keep_newer_than_drop(service: &MetadataService, statement: &Statement) -> Result<(), Error> {
    let Statement::AlterTable(altered) = statement else { return Ok(()) };
    if !matches!(altered.action, AlterTableAction::Drop { timestamp: Some(_), .. }) {
        return Ok(());
    }
    let metadata = service.current();
    let Some(table) = metadata.table(written_keyspace(&altered.name), altered.name.name.as_str()) else {
        return Ok(());
    };
    let flushed = cluster::flush::flush(service.shards().engine, table.schema.id).await;
    flushed.map_err(|why| Error::Server(format!("the table could not be flushed: {why}")))
}

/// Gives the statement an explicit keyspace: the keyspace of the session in which it is planned. So
/// it means the same on every shard and in every session.
pub fn qualify(statement: &mut Statement, keyspace: Option<&str>) -> Result<(), Error> {
    let name: Option<&mut QualifiedName> = match statement {
        Statement::Truncate(statement) => Some(&mut statement.table),
        Statement::CreateTable(statement) => Some(&mut statement.name),
        Statement::AlterTable(statement) => Some(&mut statement.name),
        Statement::DropTable(statement) => Some(&mut statement.name),
        Statement::CreateType(statement) => Some(&mut statement.name),
        Statement::AlterType(statement) => Some(&mut statement.name),
        Statement::DropType(statement) => Some(&mut statement.name),
        Statement::DropUnsupported(statement) if statement.kind.has_keyspace() => Some(&mut statement.name),
        _ => None,
    };
    name.map_or(Ok(()), |name| names::qualify(name, keyspace))
}

/// Computes the change of a statement on this metadata, if it is within the limits of the metadata.
/// `now` is the clock of writes, in microseconds since 1970.
fn checked(
    metadata: &Metadata,
    node: &NodeInfo,
    guardrails: &Guardrails,
    statement: &Statement,
    now: &dyn Fn() -> i64,
) -> Result<PlannedChange, Error> {
    let made = make(metadata, node, guardrails, statement, now)?;
    metadata.check_types(&made.ops).map_err(|error| Error::invalid(error.to_string()))?;
    metadata.check_size(&made.ops, guardrails.schema_bytes).map_err(|error| Error::invalid(error.to_string()))?;
    Ok(made)
}

/// Computes the change of a statement on this metadata.
fn make(
    metadata: &Metadata,
    node: &NodeInfo,
    guardrails: &Guardrails,
    statement: &Statement,
    now: &dyn Fn() -> i64,
) -> Result<PlannedChange, Error> {
    match statement {
        Statement::CreateKeyspace(statement) => keyspace::create(metadata, node, guardrails, statement),
        Statement::AlterKeyspace(statement) => keyspace::alter(metadata, node, guardrails, statement),
        Statement::DropKeyspace(statement) => keyspace::drop(metadata, statement),
        Statement::CreateTable(statement) => table::create(metadata, node, guardrails, statement),
        Statement::AlterTable(statement) => alter_table::alter(metadata, guardrails, statement, now),
        Statement::DropTable(statement) => table::drop(metadata, statement),
        Statement::CreateType(statement) => user_type::create(metadata, statement),
        Statement::AlterType(statement) => alter_type::alter(metadata, statement),
        Statement::DropType(statement) => user_type::drop(metadata, statement),
        Statement::DropUnsupported(statement) => drop_unsupported::drop(metadata, statement),
        _ => Err(Error::invalid("The statement does not change the schema")),
    }
}

/// The explicit keyspace of a name.
pub(crate) fn written_keyspace(name: &QualifiedName) -> &str {
    name.keyspace.as_ref().map_or("", Name::as_str)
}
