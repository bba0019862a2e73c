//! A reader's slice in the order of reading. In the table's own order it costs nothing.

use model::key::DecoratedKey;
use model::range::{RowRange, Slice};
use model::schema::{ClusteringOrder, TableSchema};
use std::rc::Rc;

/// The rows wanted, as ranges in the order of reading.
#[derive(Clone)]
pub(crate) struct Slices {
    slice: Rc<Slice>,
    reversed: Option<Rc<Reversed>>,
}

struct Reversed {
    order: ClusteringOrder,
    rows: Vec<RowRange>,
    resumed: Vec<RowRange>,
}

/// Which ranges of a slice hold for a partition.
#[derive(Clone, Copy)]
pub(crate) struct Wanted {
    resumed: bool,
    pub static_row: bool,
}

impl Slices {
    pub fn new(schema: &TableSchema, slice: Rc<Slice>) -> Self {
        let reversed = slice.reversed.then(|| {
            let reverse = |rows: &[RowRange]| rows.iter().rev().cloned().map(RowRange::reversed).collect();
            Rc::new(Reversed {
                order: schema.order.reversed(),
                rows: reverse(&slice.rows),
                resumed: slice.resume.as_ref().map(|resume| reverse(&resume.rows)).unwrap_or_default(),
            })
        });
        Slices { slice, reversed }
    }

    pub fn slice(&self) -> &Rc<Slice> {
        &self.slice
    }

    pub fn is_reversed(&self) -> bool {
        self.reversed.is_some()
    }

    /// The order in which rows are read.
    pub fn order<'a>(&'a self, schema: &'a TableSchema) -> &'a ClusteringOrder {
        self.reversed.as_ref().map_or(&schema.order, |reversed| &reversed.order)
    }

    /// The requested part of a partition.
    pub fn of(&self, key: &DecoratedKey) -> Wanted {
        match &self.slice.resume {
            Some(resume) if resume.key == *key => Wanted { resumed: true, static_row: resume.static_row },
            _ => Wanted { resumed: false, static_row: self.slice.static_row },
        }
    }

    /// The ranges of rows that are wanted.
    pub fn ranges(&self, wanted: Wanted) -> &[RowRange] {
        match (&self.reversed, &self.slice.resume) {
            (Some(reversed), _) if wanted.resumed => &reversed.resumed,
            (Some(reversed), _) => &reversed.rows,
            (None, Some(resume)) if wanted.resumed => &resume.rows,
            (None, _) => &self.slice.rows,
        }
    }
}
