//! Virtual tables: tables whose rows are generated when they are read.
//!
//! A virtual table has a schema, so its reads are planned like any others. It generates all rows at
//! once, as values in the order of [`TableSchema::all_columns`]. `select` then applies
//! restrictions, order, limits and pages.
//!
//! Each page generates the rows again. A row that is added or removed between two pages may be
//! returned twice or not at all.

use crate::error::Error;
use crate::restrictions::Partitions;
use bytes::Bytes;
use model::TableSchema;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

/// A row: for each column of [`TableSchema::all_columns`] in order, a value or null.
pub type VirtualRow = Vec<Option<Bytes>>;

/// The future that generates the rows of a virtual table.
pub type Generated<'a> = Pin<Box<dyn Future<Output = Result<Vec<VirtualRow>, Error>> + 'a>>;

/// A table whose rows are generated when they are read.
pub trait VirtualTable {
    /// Its schema, which does not change while the node runs.
    fn schema(&self) -> &Rc<TableSchema>;

    /// Its rows, with each partition and clustering key at most once. It must return all rows of
    /// the partitions in `wanted`. It may return others if leaving them out is more work.
    fn rows<'a>(&'a self, wanted: &'a Partitions) -> Generated<'a>;

    /// Whether its rows may take much memory. Reads of such tables take turns on each shard.
    fn may_be_large(&self) -> bool {
        false
    }

    /// Whether the rows of each partition are generated in their final order, which the clustering
    /// keys do not define. Otherwise they come in any order.
    fn is_in_order(&self) -> bool {
        false
    }
}
