//! Requests to a replica and their answers: the same from this shard, another shard and another
//! node.

use crate::digest::Digest;
use crate::error::ReplicaError;
use crate::fragments::FragmentPage;
use crate::large_data::LargeKinds;
use crate::output::Output;
use crate::page::Page;
use crate::trace::Trace;
use model::id::{QueryId, SchemaVersion, TableId};
use model::key::DecoratedKey;
use model::mutation::Mutation;
use model::options::LIMITS;
use model::range::{PartitionRange, Slice};
use model::time::Seconds;
use rt::sync::{Cancel, Deadline};
use rt::task::Group;
use smallvec::SmallVec;
use std::cell::Cell;
use std::rc::Rc;

/// The class of work of a request. Each class has its own permits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[repr(u8)]
pub enum Class {
    /// Statements of clients.
    User = 0,
    /// The node's own statements.
    System = 1,
    /// Repair, streaming, and scans that operators start.
    Maintenance = 2,
}

impl Class {
    /// All classes, in the order of their numbers.
    pub const ALL: [Class; 3] = [Class::User, Class::System, Class::Maintenance];

    /// The scheduling group in which requests of this class are performed. Whatever sends them to
    /// this node runs in it; requests to other nodes carry it as the verb.
    pub fn group(self) -> Group {
        match self {
            Class::User | Class::System => Group::Statement,
            Class::Maintenance => Group::Maintenance,
        }
    }

    /// Decodes the number of the wire form.
    pub fn from_code(code: u8) -> Option<Class> {
        Class::ALL.into_iter().find(|class| *class as u8 == code)
    }
}

/// How a request is counted against the rate limits of its tables.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum RateLimitMode {
    /// It is neither counted nor refused by rate limits. The hot partition protection of an
    /// overloaded shard may refuse it.
    #[default]
    Off,
    /// It is neither counted nor refused, because it belongs to an operation that was accepted.
    Exempt,
    /// It continues an operation that was counted: only its bytes are charged.
    ChargeOnly,
    /// The coordinator's shard has counted and accepted the request. A replica on another shard
    /// counts it, too, and does not refuse it.
    Counted,
    /// The coordinator on another shard has counted and accepted the request. This replica counts
    /// it, too, and does not refuse it.
    CountOnly,
    /// The replica counts it, and decides.
    Enforce {
        /// The random number of the decision, the same for all replicas.
        draw: u32,
    },
    /// The coordinator's shard has counted the request, and knows too little to decide. Replicas on
    /// other shards count it and decide, as for `Enforce`. A replica on the coordinator's shard
    /// only decides.
    Deferred {
        /// As for `Enforce`.
        draw: u32,
    },
}

impl RateLimitMode {
    /// Whether the request is counted, or its bytes are charged.
    #[inline]
    pub(crate) fn is_limited(self) -> bool {
        LIMITS && !matches!(self, RateLimitMode::Off | RateLimitMode::Exempt)
    }

    /// The mode of a request that repeats or continues an accepted request of this mode: its bytes
    /// are charged if the bytes of the first request are.
    pub fn continued(self) -> RateLimitMode {
        if self.is_limited() { RateLimitMode::ChargeOnly } else { RateLimitMode::Exempt }
    }

    /// Whether the request belongs to an operation that was accepted, so that nothing refuses it.
    fn is_accepted(self) -> bool {
        matches!(self, RateLimitMode::Exempt | RateLimitMode::ChargeOnly)
    }
}

/// The context of every request: class, deadline, cancellation, and the metadata that routed it.
#[derive(Clone)]
pub struct Context {
    /// The class of work.
    pub class: Class,
    /// The time after which nothing waits for the answer.
    pub deadline: Deadline,
    /// Set when the client has disconnected.
    pub cancel: Cancel,
    /// Records the request's events, if it is traced.
    pub trace: Option<Rc<Trace>>,
    /// The number of the metadata by which the coordinator routed the request.
    pub metadata_number: u64,
    /// Set for writes that replicas check against the large-data guardrails. Receives the kinds
    /// that exceed soft limits.
    pub large_data: Option<Rc<Cell<LargeKinds>>>,
    /// How the request is counted against rate limits.
    pub rate_limit: RateLimitMode,
}

impl Context {
    /// An error if the client or coordinator does not wait for the answer any more.
    pub(crate) fn check_wanted(&self) -> Result<(), ReplicaError> {
        if self.cancel.is_cancelled() {
            return Err(ReplicaError::Cancelled);
        }
        if self.deadline.is_past() {
            return Err(ReplicaError::Timeout);
        }
        Ok(())
    }

    /// Whether the hot partition protection of an overloaded shard may refuse the request.
    pub fn may_be_protected_against(&self) -> bool {
        self.class == Class::User && !self.rate_limit.is_accepted()
    }

    /// Records an event, if the request is traced.
    pub fn trace(&self, activity: &str) {
        if let Some(trace) = &self.trace {
            trace.event(activity);
        }
    }
}

/// Where a page ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// The most rows of the page.
    pub rows: u64,
    /// The most rows of each partition.
    pub per_partition: u64,
    /// Bytes of result. The row that crosses the limit is the last one
    /// (`query_page_size_in_bytes`).
    pub bytes: u64,
    /// Tombstones read (`query_tombstone_page_limit`).
    pub tombstones: u64,
    /// Whether the page may end on bytes or tombstones. An unpaged read may not: beyond
    /// `unpaged_bytes` it fails.
    pub paged: bool,
    /// `max_memory_for_unlimited_query_hard_limit`, in bytes.
    pub unpaged_bytes: u64,
}

/// A read of one page.
#[derive(Clone, Debug)]
pub struct ReadCommand {
    /// The table.
    pub table: TableId,
    /// The schema version that the coordinator planned with.
    pub schema_version: SchemaVersion,
    /// The partitions, in order. All are on the shard that gets the command.
    pub ranges: SmallVec<[PartitionRange; 1]>,
    /// The rows of each partition that are read.
    pub slice: Rc<Slice>,
    /// The values of each row that are returned.
    pub output: Rc<Output>,
    /// Where the page ends.
    pub limits: Limits,
    /// The time for TTLs, in seconds since the epoch.
    pub now: Seconds,
    /// Rows of the slice's resumed partition that earlier pages returned.
    pub resumed_rows: u64,
    /// `BYPASS CACHE`.
    pub bypass_cache: bool,
    /// The id of the query, the same for all its pages. None where there will be no second page.
    pub query: Option<QueryId>,
    /// Whether this is the query's first page.
    pub first_page: bool,
    /// Whether the query ends if the page ends on rows, because that is the statement's LIMIT. Then
    /// no reader is kept for a next page.
    pub ends_with_rows: bool,
}

/// A mutation and the key of its partition.
pub type KeyedMutation = (Mutation, DecoratedKey);

/// Mutations with the keys of their partitions; mostly one.
pub type Mutations = SmallVec<[KeyedMutation; 1]>;

/// A request to a replica. Its command is shared, because several replicas get the same one.
#[derive(Clone, Debug)]
pub enum ReplicaRequest {
    /// Read the rows of a page. Response: `Page`.
    Read(Rc<ReadCommand>),
    /// Read the digest of a page. Response: `Digested`, without rows.
    Digest(Rc<ReadCommand>),
    /// Read the rows of a page and their digest. Response: `Digested`.
    ReadAndDigest(Rc<ReadCommand>),
    /// Read the data behind a page, for reconciliation. Response: `Fragments`.
    ReadFragments(Rc<ReadCommand>),
    /// Write mutations. They share one commitlog record: after a crash all of them are there or
    /// none. Response: `Written`.
    Write(Mutations),
    /// Apply a mutation of a counter table. Its live cells are increments. Response:
    /// `CounterUpdated`.
    CounterUpdate(KeyedMutation),
}

/// The data that a coordinator compares among replicas.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Compared {
    /// A digest of the rows of a page.
    Digest,
    /// The rows of a page and their digest.
    RowsAndDigest,
    /// The data behind a page.
    Fragments,
}

impl ReplicaRequest {
    /// A write of one mutation.
    pub fn write(mutation: Mutation) -> ReplicaRequest {
        let key = mutation.decorated_key();
        ReplicaRequest::Write(Mutations::from_iter([(mutation, key)]))
    }

    /// The mutations that the request writes. Empty for reads.
    pub fn mutations(&self) -> &[KeyedMutation] {
        match self {
            ReplicaRequest::Write(mutations) => mutations,
            ReplicaRequest::CounterUpdate(counted) => std::slice::from_ref(counted),
            ReplicaRequest::Read(_)
            | ReplicaRequest::Digest(_)
            | ReplicaRequest::ReadAndDigest(_)
            | ReplicaRequest::ReadFragments(_) => &[],
        }
    }

    /// The command and kind of a read whose answer is compared with those of other replicas.
    #[inline]
    pub(crate) fn to_compare(&self) -> Option<(&ReadCommand, Compared)> {
        match self {
            ReplicaRequest::Digest(command) => Some((command, Compared::Digest)),
            ReplicaRequest::ReadAndDigest(command) => Some((command, Compared::RowsAndDigest)),
            ReplicaRequest::ReadFragments(command) => Some((command, Compared::Fragments)),
            ReplicaRequest::Read(_) | ReplicaRequest::Write(_) | ReplicaRequest::CounterUpdate(_) => None,
        }
    }

    /// The tables of the request, some of them more than once.
    pub(crate) fn tables(&self) -> impl Iterator<Item = TableId> {
        let read = match self {
            ReplicaRequest::Read(command) => Some(command.table),
            other => other.to_compare().map(|(command, _)| command.table),
        };
        read.into_iter().chain(self.mutations().iter().map(|(mutation, _)| mutation.table()))
    }
}

/// The answer of a replica. Its variants are small, because it is moved several times on its way to
/// the coordinator.
#[derive(Clone, Debug, PartialEq)]
pub enum ReplicaResponse {
    /// The rows of a page.
    Page(Box<Page>),
    /// The write is applied.
    Written,
    /// A page and its digest. The page has no rows if only its digest was requested.
    Digested(Box<Page>, Digest),
    /// The data behind a page.
    Fragments(Box<FragmentPage>),
    /// The counter update is applied: the new state, which other replicas store.
    CounterUpdated(Mutation),
}
