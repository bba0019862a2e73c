//! What a replica is asked, and what it answers. The same at every distance.

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
use model::range::{PartitionRange, Slice};
use model::time::Seconds;
use rt::sync::{Cancel, Deadline};
use rt::task::Group;
use smallvec::SmallVec;
use std::cell::Cell;
use std::rc::Rc;

/// Whose work it is; each class has its own permits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[repr(u8)]
pub enum Class {
    /// Clients' statements.
    User = 0,
    /// The node's own.
    System = 1,
    /// Repair, streaming, scans on behalf of operators.
    Maintenance = 2,
}

impl Class {
    /// All classes, in the order of their numbers.
    pub const ALL: [Class; 3] = [Class::User, Class::System, Class::Maintenance];

    /// The scheduling group in which requests of this class are performed, at every distance.
    pub fn group(self) -> Group {
        match self {
            Class::User | Class::System => Group::Statement,
            Class::Maintenance => Group::Maintenance,
        }
    }

    /// From the wire's number.
    pub fn from_code(code: u8) -> Option<Class> {
        Class::ALL.into_iter().find(|class| *class as u8 == code)
    }
}

/// What goes with every request: whose it is, until when, and under which metadata.
#[derive(Clone)]
pub struct Context {
    /// Whose work it is.
    pub class: Class,
    /// When nobody waits for the answer any more.
    pub deadline: Deadline,
    /// Set when the client is gone.
    pub cancel: Cancel,
    /// Where the request's steps are recorded, if it is traced.
    pub trace: Option<Rc<Trace>>,
    /// The number of the metadata snapshot under which the coordinator routed it.
    pub metadata_number: u64,
    /// Set for writes that replicas check against the large-data guardrails: what exceeds soft limits is noted here.
    pub large_data: Option<Rc<Cell<LargeKinds>>>,
}

impl Context {
    /// An error if nobody waits for the answer any more.
    pub(crate) fn check_wanted(&self) -> Result<(), ReplicaError> {
        if self.cancel.is_cancelled() {
            return Err(ReplicaError::Cancelled);
        }
        if self.deadline.is_past() {
            return Err(ReplicaError::Timeout);
        }
        Ok(())
    }

    /// Records a step, if the request is traced.
    pub fn trace(&self, activity: &str) {
        if let Some(trace) = &self.trace {
            trace.event(activity);
        }
    }
}

/// Where a page ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Rows of the whole page.
    pub rows: u64,
    /// Rows of each partition.
    pub per_partition: u64,
    /// Bytes of result; the row that crosses it is the last (`query_page_size_in_bytes`).
    pub bytes: u64,
    /// Tombstones read (`query_tombstone_page_limit`).
    pub tombstones: u64,
    /// Whether the page may end on bytes or tombstones. An unpaged read may not: beyond `unpaged_bytes` it fails.
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
    /// The partitions, in order; all on the shard that is asked.
    pub ranges: SmallVec<[PartitionRange; 1]>,
    /// What is wanted of each partition.
    pub slice: Rc<Slice>,
    /// What is emitted of each row.
    pub output: Rc<Output>,
    /// Where the page ends.
    pub limits: Limits,
    /// The time for TTLs.
    pub now: Seconds,
    /// Rows of the slice's resumed partition that earlier pages returned.
    pub resumed_rows: u64,
    /// `BYPASS CACHE`.
    pub bypass_cache: bool,
    /// The query, the same on all its pages; none where there will be no second page.
    pub query: Option<QueryId>,
    /// Whether this is its first page.
    pub first_page: bool,
    /// Whether the query ends where the page ends on rows (it is the statement's LIMIT): nothing is kept for a next page then.
    pub ends_with_rows: bool,
}

/// A mutation and the key of its partition.
pub type KeyedMutation = (Mutation, DecoratedKey);

/// Mutations with the keys of their partitions; mostly one.
pub type Mutations = SmallVec<[KeyedMutation; 1]>;

/// What a replica is asked. Several replicas are asked with one command: it is shared.
#[derive(Clone, Debug)]
pub enum Request {
    /// The rows of a page.
    Read(Rc<ReadCommand>),
    /// The digest of a page.
    Digest(Rc<ReadCommand>),
    /// The rows of a page and their digest.
    ReadAndDigest(Rc<ReadCommand>),
    /// The data behind a page, for reconciliation.
    Fragments(Rc<ReadCommand>),
    /// A write of mutations that share one commitlog record: after a crash all of them are there or none.
    Write(Mutations),
    /// A mutation of a table of counters, whose live cells are updates. Answered with the new state.
    Count(KeyedMutation),
}

/// What a coordinator compares.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Compared {
    /// A digest of the rows of a page.
    Digest,
    /// The rows of a page and their digest.
    RowsAndDigest,
    /// The data behind a page.
    Fragments,
}

impl Request {
    /// A write of one mutation.
    pub fn write(mutation: Mutation) -> Request {
        let key = mutation.decorated_key();
        Request::Write(Mutations::from_iter([(mutation, key)]))
    }

    /// The mutations that it writes or counts.
    pub fn mutations(&self) -> &[KeyedMutation] {
        match self {
            Request::Write(mutations) => mutations,
            Request::Count(counted) => std::slice::from_ref(counted),
            Request::Read(_) | Request::Digest(_) | Request::ReadAndDigest(_) | Request::Fragments(_) => &[],
        }
    }

    /// The read that is to be compared with those of other replicas, and what is compared.
    #[inline]
    pub(crate) fn to_compare(&self) -> Option<(&ReadCommand, Compared)> {
        match self {
            Request::Digest(command) => Some((command, Compared::Digest)),
            Request::ReadAndDigest(command) => Some((command, Compared::RowsAndDigest)),
            Request::Fragments(command) => Some((command, Compared::Fragments)),
            Request::Read(_) | Request::Write(_) | Request::Count(_) => None,
        }
    }

    /// The tables that it is for, some of them more than once.
    pub(crate) fn tables(&self) -> impl Iterator<Item = TableId> {
        let read = match self {
            Request::Read(command) => Some(command.table),
            other => other.to_compare().map(|(command, _)| command.table),
        };
        read.into_iter().chain(self.mutations().iter().map(|(mutation, _)| mutation.table()))
    }
}

/// What a replica answers. Small, for it is moved from the replica to the coordinator by several hands.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// The rows of a page.
    Page(Box<Page>),
    /// The write is done.
    Written,
    /// A page, without its rows if only its digest was asked for, and its digest.
    Digested(Box<Page>, Digest),
    /// The data behind a page.
    Fragments(Box<FragmentPage>),
    /// Counted: the new state.
    Counted(Mutation),
}
