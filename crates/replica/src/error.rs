//! What can go wrong on a replica, as values that the coordinator acts on.

use thiserror::Error;

/// Why a replica did not answer.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum ReplicaError {
    /// The deadline passed, or the client went away: the work was stopped.
    #[error("the request's time ran out")]
    Timeout,
    /// The client went away.
    #[error("the request was cancelled")]
    Cancelled,
    /// Too many requests wait already.
    #[error("{0}")]
    Overloaded(String),
    /// The table is not here (any more).
    #[error("no such table on this replica")]
    NoSuchTable,
    /// Data on disk is damaged.
    #[error("{0}")]
    Corrupt(String),
    /// A result of an unpaged query grew beyond its limit.
    #[error("{0}")]
    TooLarge(String),
    /// The request itself cannot be carried out (a mutation that is too big, malformed bytes).
    #[error("{0}")]
    Rejected(String),
    /// Storage failed.
    #[error("{0}")]
    Storage(String),
    /// The coordinator routed it by metadata that nobody may work with any more.
    #[error("{0}")]
    Stale(String),
}

impl ReplicaError {
    /// The refusal of a request that was routed by metadata below the fence.
    #[cold]
    pub fn stale(caller: u64, fence: u64) -> Self {
        ReplicaError::Stale(format!("stale topology exception, caller version {caller}, callee fence version {fence}"))
    }

    /// The number by which the wire names it.
    pub fn code(&self) -> u8 {
        match self {
            ReplicaError::Timeout => 1,
            ReplicaError::Cancelled => 2,
            ReplicaError::Overloaded(_) => 3,
            ReplicaError::NoSuchTable => 4,
            ReplicaError::Corrupt(_) => 5,
            ReplicaError::TooLarge(_) => 6,
            ReplicaError::Rejected(_) => 7,
            ReplicaError::Storage(_) => 8,
            ReplicaError::Stale(_) => 9,
        }
    }

    /// From the wire's number and text; an unknown number is a storage error.
    pub fn from_code(code: u8, text: String) -> Self {
        match code {
            1 => ReplicaError::Timeout,
            2 => ReplicaError::Cancelled,
            3 => ReplicaError::Overloaded(text),
            4 => ReplicaError::NoSuchTable,
            5 => ReplicaError::Corrupt(text),
            6 => ReplicaError::TooLarge(text),
            7 => ReplicaError::Rejected(text),
            9 => ReplicaError::Stale(text),
            _ => ReplicaError::Storage(text),
        }
    }
}
