//! The language's door: one processor per shard answers the statements of that shard's connections.

use crate::api::{Answer, Batch, ClientState, Prepared, QueryParams};
use crate::error::Error;
use std::rc::Rc;

/// Answers statements on one shard.
#[derive(Default)]
pub struct Processor {}

impl Processor {
    /// Executes a statement given as text.
    pub async fn query(&self, _client: &Rc<ClientState>, _text: &str, _params: &QueryParams) -> Result<Answer, Error> {
        Err(Error::not_supported("QUERY"))
    }

    /// Prepares a statement on every shard.
    pub async fn prepare(&self, _client: &Rc<ClientState>, _text: &str) -> Result<Prepared, Error> {
        Err(Error::not_supported("PREPARE"))
    }

    /// Executes a prepared statement.
    pub async fn execute(&self, _client: &Rc<ClientState>, id: &[u8; 16], _params: &QueryParams) -> Result<Answer, Error> {
        Err(Error::Unprepared(*id))
    }

    /// Executes a batch.
    pub async fn batch(&self, _client: &Rc<ClientState>, _batch: &Batch) -> Result<Answer, Error> {
        Err(Error::not_supported("BATCH"))
    }
}
