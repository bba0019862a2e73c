//! What can go wrong on a replica, as values that the coordinator acts on. What is refused often is small and has no text: whoever tells a
//! client makes that.

use crate::request::Class;
use thiserror::Error;

/// A queue of a replica or a coordinator that is full. Small, for refusing has to cost less than serving.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum Overload {
    /// So many reads of a class wait for a permit already.
    #[error("{class:?} read admission queue is full: {waiting} reads wait already")]
    Reads {
        /// The class of the read that is refused.
        class: Class,
        /// Reads that wait.
        waiting: u32,
    },
    /// As many updates of one partition's counters wait as may.
    #[error("Too many updates of one partition's counters wait")]
    Counters,
    /// As many bytes of writes as may are on their way from a coordinator to replicas.
    #[error("Too many writes are on their way to replicas")]
    Writes,
}

/// In what way a request was routed by outdated metadata.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum Stale {
    /// Nobody may work any more with the metadata by which it was routed.
    #[error("stale topology exception, caller version {caller}, callee fence version {fence}")]
    Fenced {
        /// The number of the coordinator's metadata.
        caller: u64,
        /// The least number that the replica accepts.
        fence: u64,
    },
    /// The tablet is not on this shard any more.
    #[error("the tablet is not on this shard")]
    Moved,
}

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
    #[error(transparent)]
    Overloaded(Overload),
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
    /// The coordinator routed it by outdated metadata.
    #[error(transparent)]
    Stale(Stale),
}

impl ReplicaError {
    /// The refusal of a request that was routed by metadata below the fence.
    #[cold]
    pub fn stale(caller: u64, fence: u64) -> Self {
        ReplicaError::Stale(Stale::Fenced { caller, fence })
    }
}
