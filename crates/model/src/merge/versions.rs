//! The versions of one row in several inputs of a merger. Large ones are merged in parts, because a
//! collection may have millions of elements.

use super::Step;
use crate::fragment::Fragment;
use crate::key::Clustering;
use crate::row::{self, Merging, Row};
use crate::schema::TableSchema;
use std::collections::VecDeque;

/// Two versions with more bytes than this are merged in parts.
const LARGE: usize = 1 << 20;
/// The bytes of a part: about a thousand small cells.
const PART: usize = 32 << 10;

/// The versions of a large row, merged in parts, so that the caller can yield in between.
#[derive(Debug)]
pub struct LargeRow {
    /// None: the static row.
    key: Option<Clustering>,
    merging: Merging,
    /// The versions to be merged after that.
    later: VecDeque<Row>,
}

impl LargeRow {
    /// Merges a part. Returns the row once all versions are merged; then it must not be called
    /// again.
    pub fn run(&mut self, schema: &TableSchema) -> Option<Fragment> {
        if !self.merging.run(schema, PART) {
            return None;
        }
        let row = self.merging.finish();
        if let Some(next) = self.later.pop_front() {
            self.merging = Merging::new(row, next);
            return None;
        }
        Some(match self.key.take() {
            Some(key) => Fragment::Row { key, row },
            None => Fragment::Static(row),
        })
    }
}

/// Merges the versions of a row as they are added, except for large ones.
pub(super) struct Versions<'s> {
    schema: &'s TableSchema,
    row: Row,
    /// These and all that are added later are merged in parts.
    later: VecDeque<Row>,
}

impl<'s> Versions<'s> {
    pub fn new(schema: &'s TableSchema, row: Row) -> Self {
        Versions { schema, row, later: VecDeque::new() }
    }

    pub fn add(&mut self, next: Row) {
        if self.later.is_empty() && self.row.len() + next.len() <= LARGE {
            self.row = row::merge(self.schema, &self.row, &next);
        } else {
            self.later.push_back(next);
        }
    }

    /// The step that yields the row of this key; without a key, the static row.
    pub fn step(mut self, key: Option<Clustering>) -> Step {
        match (self.later.pop_front(), key) {
            (Some(next), key) => {
                Step::Merge(Box::new(LargeRow { key, merging: Merging::new(self.row, next), later: self.later }))
            }
            (None, Some(key)) => Step::Emit(Fragment::Row { key, row: self.row }),
            (None, None) => Step::Emit(Fragment::Static(self.row)),
        }
    }
}
