//! SELECT: from a statement to pages of rows.
//!
//! A statement is planned once ([`plan`]): what replicas emit of each row (`Output`), and the [`Shape`] in which the client gets
//! it. Where the two are the same, a page's bytes pass through untouched. Everything else is done here, row by row: functions
//! ([`selector`]), aggregates ([`aggregate`]) of all rows or of groups ([`group`]), filters, and orders that cross partitions.
//! Virtual tables ([`virtual_rows`]) go the same way with rows made on the spot.

pub mod aggregate;
pub mod execute;
mod expression;
pub mod group;
mod pace;
pub mod pager;
mod pages;
pub mod plan;
pub mod rows;
pub mod selector;
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
    /// The table as it was planned.
    pub schema: Rc<TableSchema>,
    /// Where its rows are made, if it is virtual.
    pub virtual_table: Option<Rc<dyn VirtualTable>>,
    /// Which partitions and rows, and what is tested of them.
    pub restrictions: Restrictions,
    /// For each filter, the output columns that it tests.
    pub filter_slots: Box<[SmallVec<[usize; 1]>]>,
    /// What is emitted of each row.
    pub output: Rc<Output>,
    /// The same for owners that compute the aggregates themselves, if these are of nothing but columns of all rows.
    pub reduced: Option<Rc<Output>>,
    /// What the client gets of it.
    pub shape: Shape,
    /// What is wanted of each partition, if that does not depend on values.
    pub slice: Option<Rc<Slice>>,
    /// Whether static rows are wanted.
    pub static_row: bool,
    /// Whether rows come in the opposite order.
    pub reversed: bool,
    /// The order among several partitions, if it is asked for.
    pub sort: Box<[SortKey]>,
    /// GROUP BY.
    pub grouping: Option<Box<Grouping>>,
    /// For a PER PARTITION LIMIT of filtered rows or of groups: the output columns that are the partition key.
    pub key_slots: Box<[usize]>,
    /// LIMIT.
    pub limit: Option<Box<Term>>,
    /// PER PARTITION LIMIT.
    pub per_partition_limit: Option<Box<Term>>,
    /// USING.
    pub attributes: Attributes,
    /// ALLOW FILTERING.
    pub allow_filtering: bool,
    /// BYPASS CACHE.
    pub bypass_cache: bool,
    /// The result's columns.
    pub metadata: Rc<ResultMetadata>,
}

/// How rows as emitted become rows of the result.
pub enum Shape {
    /// They are the same.
    Plain,
    /// Expressions of each row.
    Rows(Box<[Selector]>),
    /// One row of all rows, or of each group: aggregates, and expressions of them and of the first row.
    Aggregate(Box<[Aggregate]>, Box<[Selector]>),
}

/// A column of an order.
#[derive(Clone, PartialEq, Debug)]
pub struct SortKey {
    /// The output column.
    pub slot: usize,
    /// Its type.
    pub ty: CqlType,
    /// Whether it descends.
    pub descending: bool,
}
