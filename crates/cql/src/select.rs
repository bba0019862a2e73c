//! SELECT: from a statement to pages of rows.
//!
//! A statement is planned once ([`plan`]). The plan says what replicas return of each row
//! (`Output`), and how this becomes rows of the result ([`Shape`]). If both are the same, the bytes
//! of a page are returned unchanged. Everything else is computed here, row by row: functions
//! ([`selector`]), aggregates ([`aggregate`]) over all rows or over groups ([`group`]), filters,
//! and orders across partitions.
//!
//! Virtual tables ([`virtual_rows`]) use the same code, with rows that are generated when they are
//! read.

pub mod aggregate;
mod distinct;
pub mod execute;
mod expression;
pub mod group;
pub mod pager;
mod pages;
pub mod plan;
pub mod rows;
pub mod selector;
mod sort;
pub mod virtual_rows;

use crate::api::ResultMetadata;
use crate::attributes::Attributes;
use crate::restrictions::Restrictions;
use crate::source::VirtualTable;
use crate::term::Term;
use aggregate::Aggregate;
use group::Grouping;
use model::range::Slice;
use model::{CqlType, TableSchema};
use replica::Output;
use selector::Selector;
use smallvec::SmallVec;
use std::rc::Rc;

/// A planned SELECT.
pub struct Select {
    /// The table's schema when it was planned.
    pub schema: Rc<TableSchema>,
    /// The source of the rows, if the table is virtual.
    pub virtual_table: Option<Rc<dyn VirtualTable>>,
    /// The partitions and rows to read, and the filters.
    pub restrictions: Restrictions,
    /// The output columns that each filter tests.
    pub filter_slots: Box<[SmallVec<[usize; 1]>]>,
    /// What replicas return of each row.
    pub output: Rc<Output>,
    /// The same if replicas compute the aggregates. Possible if these are over plain columns and
    /// all rows.
    pub reduced: Option<Rc<Output>>,
    /// How returned rows become rows of the result.
    pub shape: Shape,
    /// The rows to read of each partition, if they do not depend on values.
    pub slice: Option<Rc<Slice>>,
    /// Whether static rows are read.
    pub static_row: bool,
    /// Whether rows are read against the clustering order.
    pub reversed: bool,
    /// The order across several partitions. Empty if rows need no sorting.
    pub sort: Box<[SortKey]>,
    /// GROUP BY.
    pub grouping: Option<Box<Grouping>>,
    /// The output columns that are the partition key. Set for a PER PARTITION LIMIT of filtered
    /// rows or of groups.
    pub key_slots: Box<[usize]>,
    /// LIMIT.
    pub limit: Option<Box<Term>>,
    /// PER PARTITION LIMIT.
    pub per_partition_limit: Option<Box<Term>>,
    /// USING TIMEOUT.
    pub attributes: Attributes,
    /// ALLOW FILTERING.
    pub allow_filtering: bool,
    /// BYPASS CACHE.
    pub bypass_cache: bool,
    /// The columns of the result.
    pub metadata: Rc<ResultMetadata>,
}

/// How rows returned by replicas become rows of the result.
pub enum Shape {
    /// Unchanged.
    Plain,
    /// Expressions over each row.
    Rows(Box<[Selector]>),
    /// One row for all rows, or for each group: aggregates, and expressions over them and the first
    /// row.
    Aggregate(Box<[Aggregate]>, Box<[Selector]>),
}

/// A column of an order across partitions.
#[derive(Clone, PartialEq, Debug)]
pub struct SortKey {
    /// The output column.
    pub slot: usize,
    /// Its type.
    pub ty: CqlType,
    /// Whether the order is descending.
    pub descending: bool,
}
