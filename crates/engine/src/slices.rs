//! A reader's slice, turned once into the order in which it is read.

use crate::memtable::RangeTombstones;
use model::key::DecoratedKey;
use model::range::{RowRange, Slice};
use model::schema::{ClusteringOrder, TableSchema};
use std::rc::Rc;

/// The rows wanted, as ranges in the order of reading.
pub(crate) struct Slices {
    pub reversed: bool,
    pub no_changes: Rc<RangeTombstones>,
    reversed_order: Option<ClusteringOrder>,
    rows: Rc<[RowRange]>,
    static_row: bool,
    resume: Option<(DecoratedKey, Rc<[RowRange]>, bool)>,
}

impl Slices {
    pub fn new(schema: &TableSchema, slice: &Slice) -> Rc<Self> {
        let in_order = |rows: &[RowRange]| -> Rc<[RowRange]> {
            if slice.reversed { rows.iter().rev().cloned().map(RowRange::reversed).collect() } else { rows.into() }
        };
        Rc::new(Slices {
            reversed: slice.reversed,
            no_changes: Rc::default(),
            reversed_order: slice.reversed.then(|| schema.order.reversed()),
            rows: in_order(&slice.rows),
            static_row: slice.static_row,
            resume: slice.resume.as_ref().map(|r| (r.key.clone(), in_order(&r.rows), r.static_row)),
        })
    }

    /// The order in which rows are read.
    pub fn order<'a>(&'a self, schema: &'a TableSchema) -> &'a ClusteringOrder {
        self.reversed_order.as_ref().unwrap_or(&schema.order)
    }

    /// What is wanted of a partition.
    pub fn of(&self, key: &DecoratedKey) -> (Rc<[RowRange]>, bool) {
        match &self.resume {
            Some((resumed, rows, static_row)) if resumed == key => (rows.clone(), *static_row),
            _ => (self.rows.clone(), self.static_row),
        }
    }
}
