//! One partition in a memtable: compact while it is a single row, then a body that readers share by pointer.
//!
//! Invariant: what a reader cloned never changes. A writer that finds the body shared copies the body's few words, and the
//! chunk of rows that it changes.

use super::chunks::{Chunks, ROW_OVERHEAD};
use super::range_tombstones::RangeTombstones;
use super::{ALLOCATION, own_clustering, own_row};
use model::key::Clustering;
use model::mutation::Parts;
use model::row::{self, Row};
use model::schema::TableSchema;
use model::time::{Timestamp, Tombstone};
use std::rc::Rc;

/// The most rows whose timestamps are looked at one by one.
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
    pub tombstone: Tombstone,
    pub static_row: Option<Row>,
    pub ranges: Rc<RangeTombstones>,
    pub rows: Rows,
}

#[derive(Clone, Debug)]
pub(crate) enum Rows {
    None,
    One(Clustering, Row),
    Many(Chunks),
}

const BODY_OVERHEAD: usize = std::mem::size_of::<Body>() + std::mem::size_of::<RangeTombstones>() + 2 * ALLOCATION;

impl Partition {
    /// A partition without anything: only ever on the way to [`Partition::apply`].
    pub fn new() -> Self {
        Partition::Body(Rc::new(Body {
            tombstone: Tombstone::LIVE,
            static_row: None,
            ranges: Rc::default(),
            rows: Rows::None,
        }))
    }

    /// The partition that a mutation makes where there was none, and what it costs in bytes.
    pub fn of(schema: &TableSchema, mut parts: Parts<'_>) -> (Partition, isize) {
        if parts.tombstone.is_live() && parts.static_row.is_none() && parts.range_tombstones.is_empty() {
            let first = parts.rows.next();
            let second = parts.rows.next();
            if let (Some((key, row)), None) = (&first, &second) {
                let grew = (2 * ALLOCATION + key.0.len() + row.len()) as isize;
                return (Partition::Row(own_clustering(key), own_row(row)), grew);
            }
            let mut partition = Partition::new();
            let mut grew = BODY_OVERHEAD as isize;
            let body = partition.body();
            for (key, row) in first.into_iter().chain(second).chain(parts.rows) {
                grew += body.apply_row(schema, key, row);
            }
            return (partition, grew);
        }
        let mut partition = Partition::new();
        let grew = BODY_OVERHEAD as isize + partition.apply(schema, parts);
        (partition, grew)
    }

    /// Merges a mutation in; returns by how many bytes the partition grew.
    pub fn apply(&mut self, schema: &TableSchema, mut parts: Parts<'_>) -> isize {
        let mut grew = 0;
        if let Partition::Row(own_key, own_row) = self {
            if parts.tombstone.is_live() && parts.static_row.is_none() && parts.range_tombstones.is_empty() {
                let Some((key, row)) = parts.rows.next() else { return 0 };
                let same = schema.order.compare_rows(own_key, &key).is_eq();
                if same {
                    let merged = row::merge(schema, own_row, &row);
                    grew += merged.len() as isize - own_row.len() as isize;
                    *own_row = merged;
                } else {
                    grew += self.widen();
                    grew += self.body().apply_row(schema, key, row);
                }
                for (key, row) in parts.rows {
                    grew += self.widen();
                    grew += self.body().apply_row(schema, key, row);
                }
                return grew;
            }
            grew += self.widen();
        }
        let body = self.body();
        body.tombstone = body.tombstone.max(parts.tombstone);
        if let Some(row) = parts.static_row {
            let (merged, by) = match &body.static_row {
                Some(old) => {
                    let merged = row::merge(schema, old, &row);
                    let by = merged.len() as isize - old.len() as isize;
                    (merged, by)
                }
                None => (own_row(&row), (row.len() + ALLOCATION) as isize),
            };
            body.static_row = Some(merged);
            grew += by;
        }
        if !parts.range_tombstones.is_empty() {
            let ranges = Rc::make_mut(&mut body.ranges);
            for range in &parts.range_tombstones {
                grew += ranges.insert(&schema.order, range);
            }
        }
        for (key, row) in parts.rows {
            grew += body.apply_row(schema, key, row);
        }
        grew
    }

    /// Turns the compact form into the general one.
    fn widen(&mut self) -> isize {
        if !matches!(self, Partition::Row(..)) {
            return 0;
        }
        let Partition::Row(key, row) = std::mem::replace(self, Partition::new()) else { return 0 };
        self.body().rows = Rows::One(key, row);
        BODY_OVERHEAD as isize
    }

    fn body(&mut self) -> &mut Body {
        match self {
            Partition::Body(body) => Rc::make_mut(body),
            Partition::Row(..) => unreachable!("a single row was widened first"),
        }
    }

    /// The rows of a large partition that no reader shares, for freeing them bit by bit; what is small is freed here.
    pub fn into_large(self) -> Option<Chunks> {
        match self {
            Partition::Body(body) => match Rc::try_unwrap(body) {
                Ok(Body { rows: Rows::Many(chunks), .. }) => Some(chunks),
                _ => None,
            },
            Partition::Row(..) => None,
        }
    }

    /// The least timestamp of what it holds; a bound below it when there is too much to look at.
    pub fn min_timestamp(&self) -> Timestamp {
        match self {
            Partition::Row(_, row) => min_of_row(row),
            Partition::Body(body) => {
                let mut least = Timestamp::MAX;
                if !body.tombstone.is_live() {
                    least = body.tombstone.timestamp;
                }
                least = least.min(body.ranges.min_timestamp().unwrap_or(Timestamp::MAX));
                least = least.min(body.static_row.as_ref().map_or(Timestamp::MAX, min_of_row));
                match &body.rows {
                    Rows::None => least,
                    Rows::One(_, row) => least.min(min_of_row(row)),
                    Rows::Many(chunks) => least.min(min_of_rows(chunks).unwrap_or(Timestamp::MIN)),
                }
            }
        }
    }
}

impl Body {
    fn apply_row(&mut self, schema: &TableSchema, key: Clustering, row: Row) -> isize {
        match &mut self.rows {
            Rows::None => {
                let grew = ROW_OVERHEAD + key.0.len() + row.len();
                self.rows = Rows::One(own_clustering(&key), own_row(&row));
                grew as isize
            }
            Rows::One(own_key, old) => {
                if schema.order.compare_rows(own_key, &key).is_eq() {
                    let merged = row::merge(schema, old, &row);
                    let grew = merged.len() as isize - old.len() as isize;
                    *old = merged;
                    return grew;
                }
                let mut chunks = Chunks::new(own_key.clone(), old.clone());
                let grew = upsert(&mut chunks, schema, &key, &row);
                self.rows = Rows::Many(chunks);
                grew
            }
            Rows::Many(chunks) => upsert(chunks, schema, &key, &row),
        }
    }
}

fn upsert(chunks: &mut Chunks, schema: &TableSchema, key: &Clustering, row: &Row) -> isize {
    chunks.upsert(&schema.order, key, |old| match old {
        Some(old) => (None, row::merge(schema, old, row)),
        None => (Some(own_clustering(key)), own_row(row)),
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
