//! INSERT, UPDATE and DELETE: from a statement to mutations.
//!
//! A statement is planned once ([`plan`]): the rows, and the operations on columns, in the order in
//! which cells are stored. Each request evaluates keys and values, and builds one mutation for each
//! partition ([`build`]). Only some operations on list elements read first ([`read_first`]).
//!
//! A statement reads the clock once: one [`Stamp`] serves all its cells.

pub mod build;
mod cells;
pub mod evaluated;
pub mod execute;
pub mod json;
pub mod operation;
pub mod plan;
pub mod read_first;

use crate::attributes::Attributes;
use crate::error::Error;
use crate::request::Config;
use crate::restrictions::{Clustering, Partition};
use json::JsonInsert;
use model::TableSchema;
use model::id::ColumnId;
use model::time::Seconds;
use operation::Operation;
use replica::Output;
use std::rc::Rc;

/// The deletion of a statement, apart from columns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Deletion {
    /// Nothing.
    None,
    /// Entire partitions.
    Partitions,
    /// Single rows.
    Rows,
    /// Ranges of rows.
    Ranges,
}

/// The kind of statement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verb {
    /// INSERT.
    Insert,
    /// UPDATE.
    Update,
    /// DELETE.
    Delete,
}

/// A planned INSERT, UPDATE or DELETE.
#[derive(Clone, PartialEq, Debug)]
pub struct Modify {
    /// The kind of statement.
    pub verb: Verb,
    /// The table's schema when it was planned.
    pub schema: Rc<TableSchema>,
    /// The partitions to write.
    pub partition: Partition,
    /// The rows to write.
    pub clustering: Clustering,
    /// Operations on regular columns, ordered by column.
    pub operations: Box<[Operation]>,
    /// Operations on static columns, ordered by column.
    pub statics: Box<[Operation]>,
    /// Whether each operation makes one cell, and no column has two operations.
    pub simple: bool,
    /// Whether the operations are evaluated with pauses ([`evaluated`]).
    pub slow: bool,
    /// Whether the table has counters.
    pub counter: bool,
    /// Whether rows get a row marker, as INSERT gives them.
    pub marker: bool,
    /// The deletion, apart from columns.
    pub deletion: Deletion,
    /// The USING clause.
    pub attributes: Attributes,
    /// The source of values of an INSERT JSON.
    pub json: Option<Box<JsonInsert>>,
    /// Whether the large-data guardrails check the mutations.
    pub checks_large_data: bool,
    /// What must be read before the write.
    pub read_first: Option<Box<ReadFirst>>,
}

/// The lists that a statement must read.
#[derive(Clone, PartialEq, Debug)]
pub struct ReadFirst {
    /// The columns, in the order in which they follow the clustering columns in the output.
    pub columns: Box<[ColumnId]>,
    /// Whether the columns are static.
    pub statics: bool,
    /// The clustering columns, then the elements of each list.
    pub output: Rc<Output>,
}

/// The timestamp and TTL of a write, and the size limit of its mutation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stamp {
    /// The timestamp in microseconds, which resolves conflicts.
    pub timestamp: i64,
    /// The clock in seconds: the deletion time of tombstones.
    pub now: Seconds,
    /// The TTL in seconds; 0: none.
    pub ttl: i32,
    /// When the TTL ends.
    pub expiry: Seconds,
    /// The most bytes of a mutation.
    pub mutation_bytes: usize,
}

/// The memory of a row, a deletion or a partition in addition to its bytes, while mutations are
/// built.
pub const OVERHEAD: usize = 128;

/// Limits the memory of the mutations that one request builds. A statement may name many
/// partitions, and a batch has many statements. Without the limit, a short request could use any
/// amount of memory.
#[derive(Debug)]
pub struct Room {
    /// A lower bound for the bytes used so far.
    taken: usize,
    /// The limit in bytes: the limit of one mutation or of a batch, whichever is larger.
    limit: usize,
}

impl Room {
    /// The limit from a configuration.
    pub fn of(config: &Config) -> Room {
        Room { taken: 0, limit: config.mutation_bytes.max(config.batch_size_fail) }
    }

    /// Uses this many bytes and [`OVERHEAD`]. An error if they exceed the limit.
    #[inline]
    fn take(&mut self, bytes: usize) -> Result<(), Error> {
        self.taken += bytes + OVERHEAD;
        if self.taken > self.limit { Err(self.too_small()) } else { Ok(()) }
    }

    #[cold]
    fn too_small(&self) -> Error {
        Error::invalid(format!(
            "a request with mutations of at least {} bytes is larger than the limit of {}. The limit is half of \
             commitlog_segment_size_in_mb, or batch_size_fail_threshold_in_kb if that is greater",
            self.taken, self.limit
        ))
    }
}
