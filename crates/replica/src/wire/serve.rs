//! Serving a request in its wire form: the two far distances end here.

use super::{Pieces, Response, decode_request, encode_response};
use crate::error::ReplicaError;
use crate::read::Replica;
use bytes::Bytes;

impl Replica {
    /// Answers a request from another shard or node. Dropping the future stops the work at its next yield.
    pub async fn serve(&self, request: Bytes) -> Pieces {
        let response = match decode_request(&request) {
            Ok((header, request)) => {
                let context = header.context();
                let result = context.deadline.limit(self.perform(&request, &context)).await;
                Response::reporting(result.unwrap_or(Err(ReplicaError::Timeout)), &context)
            }
            Err(error) => Response::new(Err(ReplicaError::Rejected(error.to_string()))),
        };
        encode_response(&response)
    }
}
