//! Serves requests in their wire form, from other shards and other nodes.

use super::{Pieces, Response, decode_request, encode_response};
use crate::error::ReplicaError;
use crate::read::Replica;
use bytes::Bytes;

impl Replica {
    /// Performs a request from another shard or node. Dropping the future stops the work at its
    /// next yield.
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
