//! Why a request failed, in the coordinator's terms.

use super::Consistency;
use super::replica_failure::ReplicaFailure;
use replica::{Overload, RateLimited, ReplicaError};
use std::net::IpAddr;
use thiserror::Error;

/// Why a request failed.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum CoordinatorError {
    /// Too few replicas are up.
    #[error("too few replicas are alive: {alive} of {required}")]
    Unavailable {
        /// The consistency level.
        consistency: Consistency,
        /// Replicas needed.
        required: u32,
        /// Replicas that are up.
        alive: u32,
    },
    /// Too few replicas answered in time.
    #[error("the request timed out: {received} of {required} required replicas responded")]
    Timeout {
        /// The consistency level.
        consistency: Consistency,
        /// Replicas needed.
        required: u32,
        /// Replicas that answered.
        received: u32,
        /// Reads: whether the rows have arrived and only digests are missing.
        data_present: bool,
    },
    /// A replica is overloaded.
    #[error(transparent)]
    Overloaded(Overload),
    /// The results that are being collected on this shard need its memory.
    #[error(
        "No memory for a result of {bytes} bytes or more: this shard collects other results of {others} bytes, and may collect {most} \
         bytes. Read fewer rows at a time, or page by page"
    )]
    ResultMemoryExceeded {
        /// The bytes of this result so far.
        bytes: usize,
        /// The bytes of all other results.
        others: usize,
        /// The most bytes of all results.
        most: usize,
    },
    /// A partition exceeds the rate limit of its table.
    #[error("{refused}")]
    RateLimited {
        /// The refusal.
        refused: RateLimited,
        /// Whether the coordinator refused the request, so that it reached no replica.
        by_coordinator: bool,
    },
    /// Too many replicas failed.
    #[error("{why}")]
    Failed {
        /// The consistency level.
        consistency: Consistency,
        /// Replicas needed.
        required: u32,
        /// Replicas that answered.
        received: u32,
        /// Replicas that failed.
        failures: u32,
        /// The known addresses of the replicas that failed. Empty: the replica is on this node.
        nodes: Vec<IpAddr>,
        /// Reads: whether the rows have arrived.
        data_present: bool,
        /// The first failure.
        why: String,
    },
    /// The request is invalid: every replica would refuse it.
    #[error("{0}")]
    Invalid(String),
    /// The paging state was not made by this cluster, or is of another query.
    #[error("Invalid value for the paging state")]
    PagingState,
    /// The table was dropped.
    #[error("the table was dropped")]
    NoSuchTable,
    /// The client disconnected: nothing waits for the response.
    #[error("the client has disconnected")]
    Cancelled,
}

impl CoordinatorError {
    pub(super) fn of(error: ReplicaError, consistency: Consistency, required: u32) -> Self {
        match CoordinatorError::of_any_replica(error) {
            Ok(error) => error,
            Err(ReplicaError::Timeout) => {
                CoordinatorError::Timeout { consistency, required, received: 0, data_present: false }
            }
            Err(error) => failed(error.to_string(), consistency, required),
        }
    }

    /// The client's error for an error that ends the request, whatever other replicas respond.
    /// Gives any other error back.
    pub(super) fn of_any_replica(error: ReplicaError) -> Result<Self, ReplicaError> {
        Ok(match error {
            ReplicaError::Cancelled => CoordinatorError::Cancelled,
            ReplicaError::Overloaded(why) => CoordinatorError::Overloaded(why),
            ReplicaError::NoSuchTable => CoordinatorError::NoSuchTable,
            ReplicaError::Rejected(why) => CoordinatorError::Invalid(why),
            ReplicaError::RateLimited(refused) => CoordinatorError::RateLimited { refused, by_coordinator: false },
            other => return Err(other),
        })
    }

    /// The client's error if a replica refused a write for a reason that holds on all replicas.
    pub(super) fn of_refused_write(failure: &ReplicaFailure) -> Option<Self> {
        match failure {
            ReplicaFailure::Refused(error @ (ReplicaError::Rejected(_) | ReplicaError::NoSuchTable)) => {
                CoordinatorError::of_any_replica(error.clone()).ok()
            }
            _ => None,
        }
    }

    /// The error of a request to one replica, at the address `node` if it is known.
    pub(super) fn of_failure(
        failure: ReplicaFailure,
        consistency: Consistency,
        required: u32,
        node: Option<IpAddr>,
    ) -> Self {
        let mut error = match failure {
            ReplicaFailure::Refused(error) => CoordinatorError::of(error, consistency, required),
            ReplicaFailure::Send(_) => failed(failure.why(), consistency, required),
        };
        if let CoordinatorError::Failed { nodes, .. } = &mut error {
            nodes.extend(node);
        }
        error
    }
}

fn failed(why: String, consistency: Consistency, required: u32) -> CoordinatorError {
    let (received, failures, nodes, data_present) = (0, 1, Vec::new(), false);
    CoordinatorError::Failed { consistency, required, received, failures, nodes, data_present, why }
}

/// Why one attempt at a request failed.
pub(super) enum Attempt {
    /// A replica refused the request as routed by outdated metadata: repeat it with newer metadata.
    Outdated {
        /// Responses that the level needs, for the error if no newer metadata arrives in time.
        required: u32,
    },
    /// The request failed.
    Failed(CoordinatorError),
}

impl From<CoordinatorError> for Attempt {
    fn from(error: CoordinatorError) -> Attempt {
        Attempt::Failed(error)
    }
}
