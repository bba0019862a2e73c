//! TRUNCATE.

use super::{names, written_keyspace};
use crate::api::{ResultKind, StatementResult};
use crate::error::Error;
use crate::syntax::ast::Truncate;
use crate::system::SystemTables;
use cluster::MetadataService;
use std::time::Duration;

/// Executes a TRUNCATE with an explicit keyspace. `timeout` is the remaining time of the request.
pub async fn truncate(
    service: &MetadataService,
    system: &SystemTables,
    statement: &Truncate,
    timeout: Duration,
) -> Result<StatementResult, Error> {
    let (keyspace, name) = (written_keyspace(&statement.table), statement.table.name.as_str());
    if crate::system::is_virtual(keyspace) {
        return Err(match system.table(keyspace, name) {
            Some(_) => Error::Unauthorized(format!("{keyspace} keyspace is not user-modifiable.")),
            None => Error::invalid(format!("unconfigured table {name}")),
        });
    }
    let metadata = service.current();
    let table = names::table(&metadata, keyspace, name)?.schema.id;
    match cluster::truncate::everywhere(service.shards(), metadata, table, timeout).await {
        Ok(()) => Ok(StatementResult::new(ResultKind::Void)),
        Err(why) => Err(Error::Truncate(format!("Error during truncate of {keyspace}.{name}: {why}"))),
    }
}
