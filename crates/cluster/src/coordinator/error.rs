//! Why a request failed, in the coordinator's terms.

use super::Consistency;
use replica::ReplicaError;
use thiserror::Error;

/// Why a request failed.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum CoordinatorError {
    /// Too few replicas are alive.
    #[error("too few replicas are alive: {alive} of {required}")]
    Unavailable {
        /// The level asked for.
        consistency: Consistency,
        /// Replicas needed.
        required: u32,
        /// Replicas there are.
        alive: u32,
    },
    /// Too few replicas answered in time.
    #[error("the request timed out: {received} of {required} replicas answered")]
    Timeout {
        /// The level asked for.
        consistency: Consistency,
        /// Replicas needed.
        required: u32,
        /// Replicas that answered.
        received: u32,
    },
    /// A replica is overloaded.
    #[error("{0}")]
    Overloaded(String),
    /// A replica failed.
    #[error("{why}")]
    Failed {
        /// The level asked for.
        consistency: Consistency,
        /// Replicas needed.
        required: u32,
        /// What went wrong.
        why: String,
    },
    /// The request cannot be carried out by anybody.
    #[error("{0}")]
    Invalid(String),
    /// The paging state is not one of ours, or of another query.
    #[error("Invalid value for the paging state")]
    PagingState,
    /// The table was dropped meanwhile.
    #[error("the table is gone")]
    NoSuchTable,
    /// The client is gone: nobody reads the answer.
    #[error("the client is gone")]
    Cancelled,
}

impl CoordinatorError {
    pub(super) fn of(error: ReplicaError, consistency: Consistency, required: u32) -> Self {
        match error {
            ReplicaError::Timeout => CoordinatorError::Timeout { consistency, required, received: 0 },
            ReplicaError::Cancelled => CoordinatorError::Cancelled,
            ReplicaError::Overloaded(why) => CoordinatorError::Overloaded(why),
            ReplicaError::NoSuchTable => CoordinatorError::NoSuchTable,
            ReplicaError::Rejected(why) => CoordinatorError::Invalid(why),
            ReplicaError::Corrupt(why) | ReplicaError::Storage(why) | ReplicaError::TooLarge(why) => {
                CoordinatorError::Failed { consistency, required, why }
            }
        }
    }
}
