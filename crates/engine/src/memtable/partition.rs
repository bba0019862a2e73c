//! One partition in a memtable, as readers see it: a single row, or a body that readers share by
//! pointer.
//!
//! Invariant: a reader's snapshot never changes. A writer that finds the body shared copies the
//! body's few words and the chunk of rows that it changes.

use super::arena::{Arena, OwnRow};
use super::chunks::{Chunks, Upsert, bytes_of, growth_of};
use super::range_tombstones::RangeTombstones;
use super::{ALLOCATION, own_row};
use bytes::Bytes;
use model::key::{Clustering, PositionRef};
use model::mutation::Parts;
use model::row::{self, Row};
use model::schema::TableSchema;
use model::time::{Timestamp, Tombstone};
use std::rc::Rc;

/// The maximum number of rows for which each timestamp is examined.
const SCANNED_ROWS: usize = 10_000;

#[derive(Clone, Debug)]
pub(crate) enum Partition {
    /// One row and nothing else.
    Row(Clustering, Row),
    /// Anything.
    Body(Rc<Body>),
}

#[derive(Clone, Debug)]
pub(crate) struct Body {
    pub key: Bytes,
    pub tombstone: Tombstone,
    pub static_row: Option<Row>,
    pub ranges: Rc<RangeTombstones>,
    pub rows: Rows,
}

#[derive(Clone, Debug)]
pub(crate) enum Rows {
    None,
    One(OwnRow),
    Many(Chunks),
}

/// The memory of a body besides its contents.
pub(super) const BODY_OVERHEAD: usize =
    std::mem::size_of::<Body>() + std::mem::size_of::<RangeTombstones>() + 3 * ALLOCATION;

impl Body {
    /// A body without anything.
    pub fn new(key: Bytes) -> Self {
        Body { key, tombstone: Tombstone::LIVE, static_row: None, ranges: Rc::default(), rows: Rows::None }
    }

    /// Merges a mutation in; returns by how many bytes the body grew.
    pub fn apply(&mut self, arena: &mut Arena, schema: &TableSchema, parts: Parts<'_>) -> isize {
        let mut grew = 0;
        self.tombstone = self.tombstone.max(parts.tombstone);
        if let Some(row) = parts.static_row {
            let (merged, by) = match &self.static_row {
                Some(old) => {
                    let merged = row::merge(schema, old, &row);
                    let by = merged.len() as isize - old.len() as isize;
                    (merged, by)
                }
                None => (own_row(&row), (row.len() + ALLOCATION) as isize),
            };
            self.static_row = Some(merged);
            grew += by;
        }
        if !parts.range_tombstones.is_empty() {
            grew += Rc::make_mut(&mut self.ranges).add(&schema.order, &parts.range_tombstones);
        }
        for (key, row) in parts.rows {
            grew += self.apply_row(arena, schema, key, row);
        }
        grew
    }

    /// The least timestamp of its contents, or a lower bound if there are too many to examine.
    pub fn min_timestamp(&self) -> Timestamp {
        let mut least = Timestamp::MAX;
        if !self.tombstone.is_live() {
            least = self.tombstone.timestamp;
        }
        least = least.min(self.ranges.min_timestamp().unwrap_or(Timestamp::MAX));
        least = least.min(self.static_row.as_ref().map_or(Timestamp::MAX, min_of_row));
        match &self.rows {
            Rows::None => least,
            Rows::One(one) => least.min(min_of_row(&one.row)),
            Rows::Many(chunks) => least.min(min_of_rows(chunks).unwrap_or(Timestamp::MIN)),
        }
    }

    /// The row of a clustering key.
    pub fn row(&self, schema: &TableSchema, wanted: &Clustering) -> Option<Row> {
        let (key, row) = match &self.rows {
            Rows::None => return None,
            Rows::One(one) => (&one.key, &one.row),
            Rows::Many(chunks) => {
                let cursor = chunks.seek(&schema.order, PositionRef { prefix: &wanted.0, weight: -1 }, true)?;
                let (key, row) = cursor.row();
                return schema.order.compare_rows(key, wanted).is_eq().then(|| row.clone());
            }
        };
        schema.order.compare_rows(key, wanted).is_eq().then(|| row.clone())
    }

    /// Merges a row in; returns by how many bytes the body grew.
    pub fn apply_row(&mut self, arena: &mut Arena, schema: &TableSchema, key: Clustering, row: Row) -> isize {
        match &mut self.rows {
            Rows::None => {
                let own = arena.own(&key, &row);
                let grew = bytes_of(&own);
                self.rows = Rows::One(own);
                grew
            }
            Rows::One(one) => {
                if schema.order.compare_rows(&one.key, &key).is_eq() {
                    let merged = row::merge(schema, &one.row, &row);
                    let grew = growth_of(&one.row, one.is_cut, &merged);
                    (one.row, one.is_cut) = (merged, false);
                    return grew;
                }
                let mut chunks = Chunks::new(one.clone());
                let grew = upsert(&mut chunks, arena, schema, &key, &row);
                self.rows = Rows::Many(chunks);
                grew
            }
            Rows::Many(chunks) => upsert(chunks, arena, schema, &key, &row),
        }
    }
}

fn upsert(chunks: &mut Chunks, arena: &mut Arena, schema: &TableSchema, key: &Clustering, row: &Row) -> isize {
    chunks.upsert(&schema.order, key, |old| match old {
        Some(old) => Upsert::Replace(row::merge(schema, old, row)),
        None => Upsert::Insert(arena.own(key, row)),
    })
}

/// The least timestamp of many rows; `None` if there are too many to look at.
fn min_of_rows(chunks: &Chunks) -> Option<Timestamp> {
    let mut least = Timestamp::MAX;
    let mut seen = 0;
    let complete = chunks.for_each(&mut |row| {
        seen += 1;
        least = least.min(min_of_row(row));
        seen <= SCANNED_ROWS
    });
    complete.then_some(least)
}

/// The least timestamp in a row.
pub(crate) fn min_of_row(row: &Row) -> Timestamp {
    let (marker, deletion, cells) = row.parts();
    let mut least = marker.map_or(Timestamp::MAX, |marker| marker.timestamp);
    if !deletion.is_live() {
        least = least.min(deletion.timestamp);
    }
    cells.fold(least, |least, cell| least.min(cell.timestamp))
}

/// The greatest timestamp in a row.
pub(crate) fn max_of_row(row: &Row) -> Timestamp {
    let (marker, deletion, cells) = row.parts();
    let greatest = marker.map_or(Timestamp::MIN, |marker| marker.timestamp).max(deletion.timestamp);
    cells.fold(greatest, |greatest, cell| greatest.max(cell.timestamp))
}
