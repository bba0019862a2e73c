//! Serves requests in their wire form, from other shards and other nodes.

use super::{Pieces, Response, decode_request, encode_response};
use crate::error::ReplicaError;
use crate::read::Replica;
use crate::request::ReplicaRequest;
use bytes::Bytes;
use model::row::Malformed;
use rt::sync::Deadline;

impl Replica {
    /// Performs a request from another shard or node. `deadline` is the deadline of a request from
    /// this node: all reads of a statement on this node have the same deadline. Dropping the future
    /// stops the work at its next yield.
    pub async fn serve(&self, request: Bytes, deadline: Option<Deadline>) -> Pieces {
        let response = match decode_request(&request) {
            Ok((header, request)) => {
                let mut context = header.context();
                context.deadline = deadline.unwrap_or(context.deadline);
                let result = match self.check_mutations(&request) {
                    Ok(()) => context.deadline.limit(self.perform(&request, &context)).await,
                    Err(error) => Ok(Err(ReplicaError::Rejected(error.to_string()))),
                };
                Response::reporting(result.unwrap_or(Err(ReplicaError::Timeout)), &context)
            }
            Err(error) => Response::new(Err(ReplicaError::Rejected(error.to_string()))),
        };
        encode_response(&response)
    }

    /// Checks that sstables can hold the mutations of a request. A faulty node may send others.
    fn check_mutations(&self, request: &ReplicaRequest) -> Result<(), Malformed> {
        for (mutation, _) in request.mutations() {
            // A table that is not here is reported later.
            if let Some(schema) = self.engine.schema(mutation.table()) {
                mutation.check(&schema)?;
            }
        }
        Ok(())
    }
}
