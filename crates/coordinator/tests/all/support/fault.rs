//! Faults of the nodes of a test.

use bytes::Bytes;
use model::key::DecoratedKey;
use replica::wire::decode_request;
use replica::{ReplicaError, ReplicaRequest};
use std::time::Duration;

/// The fault of a node for requests that are sent to it.
#[derive(Clone, Debug)]
pub enum Fault {
    /// Its connection is refused.
    Refused,
    /// Requests never arrive.
    LosesRequests,
    /// It performs requests, and its responses never arrive.
    LosesAnswers,
    /// Its connection is lost after it performed a request.
    LosesConnection,
    /// Its connection broke without a sign. The next request shows it, and later ones get a new
    /// connection.
    LostConnection,
    /// It refuses all requests.
    Fails(ReplicaError),
    /// Requests for the data behind a page never arrive.
    LosesFragmentReads,
    /// It refuses writes.
    FailsWrites(ReplicaError),
    /// It refuses counter updates of this partition.
    FailsCounter(DecoratedKey, ReplicaError),
    /// It is slow by this time, and then has this fault, if any.
    Late(Duration, Option<Box<Fault>>),
}

impl Fault {
    /// Whether the node answers this request in spite of the fault.
    pub fn spares(&self, request: &Bytes) -> bool {
        let request = || decode_request(request).map(|(_, request)| request);
        match self {
            Fault::FailsWrites(_) => !matches!(request(), Ok(ReplicaRequest::Write(_))),
            Fault::FailsCounter(refused, _) => {
                !matches!(request(), Ok(ReplicaRequest::CounterUpdate((_, key))) if key == *refused)
            }
            Fault::LosesFragmentReads => !matches!(request(), Ok(ReplicaRequest::ReadFragments(_))),
            _ => false,
        }
    }
}
