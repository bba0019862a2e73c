//! One statement: ask the language, answer the client.

use super::client::Connection;
use super::service::Service;
use crate::protocol::{Reply, body::Text};
use cql::api::{Batch, QueryParams};
use rt::time::Instant;
use std::rc::Rc;

/// What a worker runs.
#[allow(clippy::large_enum_variant)]
pub(super) enum Statement {
    Query { text: Text, params: QueryParams },
    Prepare { text: Text },
    Execute { id: [u8; 16], params: QueryParams },
    Batch(Batch),
}

/// A statement with its way back.
pub(super) struct Job {
    pub connection: Rc<Connection>,
    pub reply: Reply,
    /// When its frame was read.
    pub came: Instant,
    pub statement: Statement,
}

/// Runs a job to its answer.
pub(super) async fn run<S: Service>(service: &S, job: Job) {
    let Job { connection, reply, came, statement } = job;
    let client = &connection.client;
    match &statement {
        Statement::Execute { id, params } => {
            let answer = service.execute(client, id, params).await;
            connection.answer(&reply, came, answer);
        }
        Statement::Query { text, params } => {
            let answer = service.query(client, text.as_str(), params).await;
            connection.answer(&reply, came, answer);
        }
        Statement::Batch(batch) => {
            let answer = service.batch(client, batch).await;
            connection.answer(&reply, came, answer);
        }
        Statement::Prepare { text } => {
            let prepared = service.prepare(client, text.as_str()).await;
            connection.prepared(&reply, prepared);
        }
    }
}
