//! TRUNCATE.

use super::names;
use crate::api::{Answer, AnswerKind, ClientState};
use crate::error::Error;
use crate::syntax::ast::Truncate;
use std::time::Duration;

/// Executes a TRUNCATE. `timeout` is what is left of the request's time.
pub async fn truncate(client: &ClientState, statement: &Truncate, timeout: Duration) -> Result<Answer, Error> {
    let keyspace = names::keyspace_of(client, &statement.table)?;
    let name = statement.table.name.as_str();
    if crate::system::is_virtual(&keyspace) {
        return Err(match crate::system::table(&keyspace, name) {
            Some(_) => Error::Unauthorized(format!("{keyspace} keyspace is not user-modifiable.")),
            None => Error::invalid(format!("unconfigured table {name}")),
        });
    }
    let metadata = rt::shard::service::<cluster::MetadataService>().current();
    let table = names::table(&metadata, &keyspace, name)?.schema.id;
    match cluster::truncate::everywhere(metadata, table, timeout).await {
        Ok(()) => Ok(Answer::new(AnswerKind::Void)),
        Err(why) => Err(Error::Truncate(format!("Error during truncate of {keyspace}.{name}: {why}"))),
    }
}
