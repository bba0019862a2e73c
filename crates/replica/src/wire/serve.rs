//! Serves requests in their wire form, from other shards and other nodes.

use super::{Pieces, Response, decode_request, encode_response};
use crate::error::ReplicaError;
use crate::replica::Replica;
use crate::request::ReplicaRequest;
use bytes::Bytes;
use model::row::Malformed;
use rt::sync::Deadline;

impl Replica {
    /// Performs a request of another node. Refuses mutations that sstables cannot hold. The
    /// connection knows when the request arrived, so its `deadline` replaces that of the header.
    /// Dropping the future, as the caller does at the deadline, stops the work at its next yield.
    pub async fn serve(&self, request: Bytes, deadline: Deadline) -> Pieces {
        self.serve_checked(request, deadline, |request| self.check_mutations(request)).await
    }

    /// The same for another shard of this node, whose mutations are known to be good. All reads of
    /// a statement on this node have the same deadline.
    pub async fn serve_own(&self, request: Bytes, deadline: Deadline) -> Pieces {
        self.serve_checked(request, deadline, |_| Ok(())).await
    }

    async fn serve_checked(
        &self,
        request: Bytes,
        deadline: Deadline,
        check: impl FnOnce(&ReplicaRequest) -> Result<(), Malformed>,
    ) -> Pieces {
        let response = match decode_request(&request) {
            Ok((header, request)) => {
                let mut context = header.context();
                context.deadline = deadline;
                let result = match check(&request) {
                    Ok(()) => self.perform(&request, &context).await,
                    Err(error) => Err(ReplicaError::Rejected(error.to_string())),
                };
                Response::reporting(result, &context)
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
