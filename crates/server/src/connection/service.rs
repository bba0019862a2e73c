//! The interface of a connection to the query processor. Tests replace it by a fake.

use cql::api::{Batch, ClientState, Prepared, QueryParams, StatementResult};
use cql::{Error, Processor};
use std::future::Future;
use std::rc::Rc;
use uuid::Uuid;

/// Answers the statements of a shard's connections.
pub trait Service: 'static {
    /// Executes a statement given as text.
    fn query(
        &self,
        client: &Rc<ClientState>,
        text: &str,
        params: &QueryParams,
    ) -> impl Future<Output = Result<StatementResult, Error>>;

    /// Prepares a statement on every shard. With an id, the request is traced under this id.
    fn prepare(
        &self,
        client: &Rc<ClientState>,
        text: &str,
        trace: Option<Uuid>,
    ) -> impl Future<Output = Result<Prepared, Error>>;

    /// Executes a prepared statement.
    fn execute(
        &self,
        client: &Rc<ClientState>,
        id: &[u8; 16],
        params: &QueryParams,
    ) -> impl Future<Output = Result<StatementResult, Error>>;

    /// Whether the prepared statement with this id writes rows, so that its answer is small.
    fn is_write(&self, id: &[u8; 16]) -> bool;

    /// Executes a batch.
    fn batch(&self, client: &Rc<ClientState>, batch: &Batch) -> impl Future<Output = Result<StatementResult, Error>>;
}

impl Service for Processor {
    fn query(
        &self,
        client: &Rc<ClientState>,
        text: &str,
        params: &QueryParams,
    ) -> impl Future<Output = Result<StatementResult, Error>> {
        Processor::query(self, client, text, params)
    }

    fn prepare(
        &self,
        client: &Rc<ClientState>,
        text: &str,
        trace: Option<Uuid>,
    ) -> impl Future<Output = Result<Prepared, Error>> {
        Processor::prepare(self, client, text, trace)
    }

    fn execute(
        &self,
        client: &Rc<ClientState>,
        id: &[u8; 16],
        params: &QueryParams,
    ) -> impl Future<Output = Result<StatementResult, Error>> {
        Processor::execute(self, client, id, params)
    }

    fn is_write(&self, id: &[u8; 16]) -> bool {
        Processor::is_write(self, id)
    }

    fn batch(&self, client: &Rc<ClientState>, batch: &Batch) -> impl Future<Output = Result<StatementResult, Error>> {
        Processor::batch(self, client, batch)
    }
}
