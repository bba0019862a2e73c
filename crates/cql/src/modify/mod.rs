//! INSERT, UPDATE, DELETE: from a statement to mutations.
//!
//! A statement is planned once ([`plan`]): which rows, which operations on which columns, in the order in which cells are stored.
//! Each request evaluates the keys and values and builds one mutation per partition ([`build`]). Only operations on a list's
//! elements read first ([`read_first`]). A statement never reads the clock twice: one [`Stamp`] serves all its cells.

pub mod build;
mod cells;
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

/// What a statement deletes, beside columns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Deletion {
    /// Nothing.
    None,
    /// Whole partitions.
    Partitions,
    /// Single rows.
    Rows,
    /// Ranges of rows.
    Ranges,
}

/// Which statement it is.
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
    /// Which of the three.
    pub verb: Verb,
    /// The table as it was planned.
    pub schema: Rc<TableSchema>,
    /// The partitions.
    pub partition: Partition,
    /// The rows.
    pub clustering: Clustering,
    /// Operations on regular columns, by column.
    pub operations: Box<[Operation]>,
    /// Operations on static columns, by column.
    pub statics: Box<[Operation]>,
    /// Whether each operation makes one cell and no column has two.
    pub simple: bool,
    /// Whether the table is one of counters.
    pub counter: bool,
    /// Whether rows get a marker.
    pub marker: bool,
    /// What is deleted.
    pub deletion: Deletion,
    /// USING.
    pub attributes: Attributes,
    /// Of INSERT JSON: where the values come from.
    pub json: Option<Box<JsonInsert>>,
    /// Whether the large-data guardrails check what it writes.
    pub checks_large_data: bool,
    /// What must be read first, if anything.
    pub read_first: Option<Box<ReadFirst>>,
}

/// The lists whose elements a statement must know.
#[derive(Clone, PartialEq, Debug)]
pub struct ReadFirst {
    /// The columns, in the order in which the output has them after the clustering columns.
    pub columns: Box<[ColumnId]>,
    /// Whether they are static.
    pub statics: bool,
    /// The clustering columns, then the elements of each column.
    pub output: Rc<Output>,
}

/// The time of a write, and how large it may become.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stamp {
    /// Microseconds; what conflicts are decided by.
    pub timestamp: i64,
    /// The clock in seconds: when tombstones were made.
    pub now: Seconds,
    /// Seconds to live; 0: for ever.
    pub ttl: i32,
    /// When that ends.
    pub expiry: Seconds,
    /// The most bytes of a mutation.
    pub mutation_bytes: usize,
}

/// What a row, a deletion or a partition takes in memory beside its bytes while mutations are built.
pub const OVERHEAD: usize = 128;

/// What the mutations of one request take while they are built, [`OVERHEAD`] included. A statement may name many partitions,
/// and a batch has many statements. Without this bound a short request takes any amount of memory.
#[derive(Debug)]
pub struct Room {
    /// Bytes so far, at least.
    taken: usize,
    /// The most: that of one mutation, or of a batch if that is more.
    limit: usize,
}

impl Room {
    /// All of it, by the limits of a configuration.
    pub fn of(config: &Config) -> Room {
        Room { taken: 0, limit: config.mutation_bytes.max(config.batch_size_fail) }
    }

    /// Takes so many bytes and an overhead; an error if that is more than is left.
    #[inline]
    fn take(&mut self, bytes: usize) -> Result<(), Error> {
        self.taken += bytes + OVERHEAD;
        if self.taken > self.limit { Err(self.too_small()) } else { Ok(()) }
    }

    #[cold]
    fn too_small(&self) -> Error {
        Error::invalid(format!(
            "a request with mutations of at least {} bytes is larger than the limit of {}, the greater of half of \
             commitlog_segment_size_in_mb and batch_size_fail_threshold_in_kb",
            self.taken, self.limit
        ))
    }
}
