//! Serves requests in their wire form, from other shards and other nodes.

use super::{Pieces, Response, decode_request, encode_response};
use crate::error::ReplicaError;
use crate::read::Replica;
use bytes::Bytes;
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
                let result = context.deadline.limit(self.perform(&request, &context)).await;
                Response::reporting(result.unwrap_or(Err(ReplicaError::Timeout)), &context)
            }
            Err(error) => Response::new(Err(ReplicaError::Rejected(error.to_string()))),
        };
        encode_response(&response)
    }
}
