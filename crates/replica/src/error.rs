//! The errors of a replica, as values on which the coordinator acts. Errors that are frequent under
//! load are small and have no text. The text is made for the response to the client.

use crate::excess::Excess;
use crate::limiter::LimitKind;
use crate::request::Class;
use engine::ReadError;
use model::id::TableId;
use thiserror::Error;

/// A full queue of a replica or coordinator. Small, because refusing a request must cost less than
/// serving it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum Overload {
    /// The admission queue of a class is full.
    #[error("{class:?} read admission queue is full: {waiting} reads wait already")]
    Reads {
        /// The class of the read that is refused.
        class: Class,
        /// The number of reads that wait.
        waiting: u32,
    },
    /// The queue of one partition's lock is full.
    #[error("Too many counter updates of one partition are waiting")]
    Counters,
    /// Too many bytes of writes are in flight from this coordinator to replicas.
    #[error("Too many bytes of writes to replicas are in flight on this coordinator")]
    Writes,
}

/// The mechanism that refuses operations of a partition.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LimitedBy {
    /// The rate limit of the table.
    Table,
    /// The hot partition protection of an overloaded shard.
    Protection,
}

/// A refusal by a table's rate limit, or by the hot partition protection. Small, because refusing
/// must cost less than serving.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("the per-partition rate limit is reached")]
pub struct RateLimited {
    /// The kind of the limit.
    pub kind: LimitKind,
    /// The table of the partition.
    pub table: TableId,
    /// A hash of the partition and kind: the same for all refusals of it.
    pub partition: u32,
    /// By how much the partition exceeds the limit.
    pub excess: Excess,
    /// The mechanism that refuses it.
    pub by: LimitedBy,
}

/// In what way a request's metadata is outdated.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum Stale {
    /// The metadata that routed the request is below the fence.
    #[error("stale topology exception, caller version {caller}, callee fence version {fence}")]
    Fenced {
        /// The number of the coordinator's metadata.
        caller: u64,
        /// The lowest number that the replica accepts.
        fence: u64,
    },
    /// The tablet is not on this shard any more.
    #[error("the tablet is not on this shard")]
    Moved,
}

/// Why a replica did not perform a request.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum ReplicaError {
    /// The deadline passed, and the work was stopped.
    #[error("the request's time ran out")]
    Timeout,
    /// The client disconnected.
    #[error("the request was cancelled")]
    Cancelled,
    /// A queue is full.
    #[error(transparent)]
    Overloaded(Overload),
    /// The replica does not have the table, or not any more.
    #[error("no such table on this replica")]
    NoSuchTable,
    /// Data on disk is damaged.
    #[error("{0}")]
    Corrupt(String),
    /// The result of an unpaged query, or a row, exceeds its limit.
    #[error("{0}")]
    TooLarge(String),
    /// The request itself is invalid: a mutation that is too large, malformed bytes.
    #[error("{0}")]
    Rejected(String),
    /// Storing the data failed.
    #[error("{0}")]
    Storage(String),
    /// The coordinator routed the request by outdated metadata.
    #[error(transparent)]
    Stale(Stale),
    /// A partition of the request exceeds the rate limit of its table.
    #[error(transparent)]
    RateLimited(RateLimited),
}

impl From<ReadError> for ReplicaError {
    fn from(error: ReadError) -> Self {
        ReplicaError::Corrupt(error.to_string())
    }
}

impl ReplicaError {
    /// The refusal of a result, or a row, of more than `max` bytes.
    #[cold]
    pub fn too_large(what: &str, max: u64) -> Self {
        ReplicaError::TooLarge(format!(
            "Memory usage of {what} exceeds hard limit of {max} (configured via max_memory_for_unlimited_query_hard_limit)"
        ))
    }

    /// The refusal of a request that was routed by metadata below the fence.
    #[cold]
    pub fn stale(caller: u64, fence: u64) -> Self {
        ReplicaError::Stale(Stale::Fenced { caller, fence })
    }
}
