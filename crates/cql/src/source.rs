//! Virtual tables: tables whose rows are made when they are read.
//!
//! A virtual table has a schema like any other, so its reads are planned like any other's. Its rows come all at once, as values
//! in the order of [`TableSchema::all_columns`]; restrictions, order, limits and pages are applied to them by the reader of
//! `select`. Pages after the first make the rows anew: a row that comes or goes in between may be seen twice or missed.

use crate::error::Error;
use crate::restrictions::Partitions;
use bytes::Bytes;
use model::TableSchema;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

/// One row: a value or null for each column of the schema, in the order of [`TableSchema::all_columns`].
pub type VirtualRow = Vec<Option<Bytes>>;

/// The rows of a virtual table, when they are ready.
pub type Generated<'a> = Pin<Box<dyn Future<Output = Result<Vec<VirtualRow>, Error>> + 'a>>;

/// A table whose rows are made when they are read.
pub trait VirtualTable {
    /// Its schema; it does not change while the node runs.
    fn schema(&self) -> &Rc<TableSchema>;

    /// Its rows, each partition and clustering key at most once: those of the partitions that are wanted, and others if it is no more work.
    fn rows<'a>(&'a self, wanted: &'a Partitions) -> Generated<'a>;

    /// Whether its rows may take much memory. Reads of such tables take turns on each shard.
    fn may_be_large(&self) -> bool {
        false
    }

    /// Whether the rows of each partition come in their order, which their clustering keys alone do not give. Otherwise they come in any.
    fn is_in_order(&self) -> bool {
        false
    }
}
