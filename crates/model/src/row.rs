//! A row as one contiguous buffer, parsed in place.
//!
//! Layout, little-endian:
//!
//! ```text
//! u8 flags            1: marker, 2: marker has TTL, 4: row deletion
//! marker              i64 timestamp, [i32 ttl, i32 expiry]
//! deletion            i64 timestamp, i32 deletion time
//! entry*              in order of (column, complex deletion first, path)
//!   u16 column, u8 state
//!   i64 timestamp
//!   EXPIRING: i32 ttl, i32 expiry    DEAD, COMPLEX_DELETION: i32 deletion time
//!   HAS_PATH: u32 length, path
//!   LIVE, EXPIRING: u32 length, value
//! ```
//!
//! Invariant of [`merge`]'s results: nothing in a row is covered by the row's own deletion or by
//! its column's complex deletion. Rows from outside are checked once by [`Row::check`]; readers may
//! then rely on the layout.

mod merging;

pub use merging::{Merging, merge, merge_all, merge_to};

use crate::id::ColumnId;
use crate::schema::TableSchema;
use crate::time::{DEAD_MARKER_TTL, Seconds, Timestamp, Tombstone};
use bytes::Bytes;
use std::cmp::Ordering;

const MARKER: u8 = 1;
const MARKER_TTL: u8 = 2;
const DELETION: u8 = 4;

const LIVE: u8 = 0;
const EXPIRING: u8 = 1;
const DEAD: u8 = 2;
const COMPLEX_DELETION: u8 = 3;
const STATE: u8 = 3;
const HAS_PATH: u8 = 4;

/// A row's content, without its key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Row(pub Bytes);

/// The row marker: the row exists even without cells.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Marker {
    /// When it was written.
    pub timestamp: Timestamp,
    /// In seconds; 0 for none; with [`DEAD_MARKER_TTL`] the marker is dead since `expiry`.
    pub ttl: i32,
    /// When it expires. Without meaning if there is no TTL.
    pub expiry: Seconds,
}

impl Marker {
    /// A marker without TTL.
    pub fn new(timestamp: Timestamp) -> Self {
        Marker { timestamp, ttl: 0, expiry: 0 }
    }

    /// A marker that expires.
    pub fn expiring(timestamp: Timestamp, ttl: i32, expiry: Seconds) -> Self {
        Marker { timestamp, ttl, expiry }
    }

    /// Whether it lives at `now`.
    pub fn is_live(&self, now: Seconds) -> bool {
        self.ttl == 0 || (self.ttl != DEAD_MARKER_TTL && self.expiry > now)
    }

    /// The second since which the marker is dead, if it only records that.
    pub fn dead_since(&self) -> Option<Seconds> {
        (self.ttl == DEAD_MARKER_TTL).then_some(self.expiry)
    }

    /// If the marker has expired by `now`: a dead marker with the time of the write.
    pub fn settled(self, now: Seconds) -> Marker {
        if self.is_live(now) || self.dead_since().is_some() {
            return self;
        }
        Marker { ttl: DEAD_MARKER_TTL, expiry: self.expiry.saturating_sub(self.ttl), ..self }
    }

    fn rank(&self) -> (Timestamp, bool, bool, Seconds, i32) {
        (self.timestamp, self.ttl == DEAD_MARKER_TTL, self.ttl != 0, self.expiry, -self.ttl)
    }
}

/// The state of a cell.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// A value.
    Live,
    /// A value until `expiry`.
    Expiring {
        /// The seconds from the write to the expiry.
        ttl: i32,
        /// When it expires.
        expiry: Seconds,
    },
    /// The tombstone of a cell.
    Dead {
        /// When it was deleted.
        deletion_time: Seconds,
    },
    /// Not a cell: the tombstone of all cells of a collection or user type.
    ComplexDeletion {
        /// When it was deleted.
        deletion_time: Seconds,
    },
}

/// A cell, or the tombstone of a collection, borrowed from a row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cell<'a> {
    /// Its column.
    pub column: ColumnId,
    /// The element within a collection or user type.
    pub path: Option<&'a [u8]>,
    /// When it was written.
    pub timestamp: Timestamp,
    /// The state.
    pub state: State,
    /// The value; empty if the cell is dead.
    pub value: &'a [u8],
}

impl<'a> Cell<'a> {
    /// A live cell of a simple column.
    pub fn live(column: ColumnId, timestamp: Timestamp, value: &'a [u8]) -> Self {
        Cell { column, path: None, timestamp, state: State::Live, value }
    }

    /// A deleted cell of a simple column.
    pub fn dead(column: ColumnId, timestamp: Timestamp, deletion_time: Seconds) -> Self {
        Cell { column, path: None, timestamp, state: State::Dead { deletion_time }, value: &[] }
    }

    /// The same as an element of a collection.
    pub fn at(self, path: &'a [u8]) -> Self {
        Cell { path: Some(path), ..self }
    }

    /// The same with a TTL.
    pub fn with_ttl(self, ttl: i32, expiry: Seconds) -> Self {
        Cell { state: State::Expiring { ttl, expiry }, ..self }
    }

    /// The tombstone of all cells of a collection.
    pub fn complex_deletion(column: ColumnId, tombstone: Tombstone) -> Self {
        let state = State::ComplexDeletion { deletion_time: tombstone.deletion_time };
        Cell { column, path: None, timestamp: tombstone.timestamp, state, value: &[] }
    }

    /// The tombstone, if it is a complex deletion.
    pub fn as_complex_deletion(&self) -> Option<Tombstone> {
        match self.state {
            State::ComplexDeletion { deletion_time } => Some(Tombstone::new(self.timestamp, deletion_time)),
            _ => None,
        }
    }

    /// Whether a reader at `now` sees a value.
    pub fn is_live(&self, now: Seconds) -> bool {
        match self.state {
            State::Live => true,
            State::Expiring { expiry, .. } => expiry > now,
            State::Dead { .. } | State::ComplexDeletion { .. } => false,
        }
    }
}

/// Which of two versions of a cell wins. The order of the rules: the later timestamp, a dead cell,
/// an expiring cell (later expiry first), the greater value. Total and symmetric, so that merging
/// is commutative. The rule is ScyllaDB's.
pub fn reconcile(a: &Cell<'_>, b: &Cell<'_>) -> Ordering {
    fn rank(cell: &Cell<'_>) -> (Timestamp, bool, bool, Seconds, i32) {
        match cell.state {
            State::Live => (cell.timestamp, false, false, 0, 0),
            State::Expiring { ttl, expiry } => (cell.timestamp, false, true, expiry, -ttl),
            State::Dead { deletion_time } | State::ComplexDeletion { deletion_time } => {
                (cell.timestamp, true, false, deletion_time, 0)
            }
        }
    }
    rank(a).cmp(&rank(b)).then_with(|| a.value.cmp(b.value))
}

/// Bytes of a row or mutation from outside that are malformed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("malformed {0}")]
pub struct Malformed(pub &'static str);

impl Row {
    /// The encoded length in bytes.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether it has no marker, no tombstone and no cell.
    pub fn is_empty(&self) -> bool {
        self.0.len() <= 1
    }

    /// The marker.
    pub fn marker(&self) -> Option<Marker> {
        let mut reader = Reader(&self.0);
        reader.header().0
    }

    /// The row's own tombstone.
    pub fn deletion(&self) -> Tombstone {
        let mut reader = Reader(&self.0);
        reader.header().1
    }

    /// The marker, the tombstone and the cells.
    pub fn parts(&self) -> (Option<Marker>, Tombstone, Cells<'_>) {
        let mut reader = Reader(&self.0);
        let (marker, deletion) = reader.header();
        (marker, deletion, Cells(reader))
    }

    /// The cells and complex deletions in order.
    pub fn cells(&self) -> Cells<'_> {
        self.parts().2
    }

    /// A reference-counted slice of a part of this row.
    pub fn slice(&self, part: &[u8]) -> Bytes {
        self.0.slice_ref(part)
    }

    /// Whether a reader at `now` sees a row: a live marker or a live cell.
    pub fn is_live(&self, now: Seconds) -> bool {
        let (marker, _, mut cells) = self.parts();
        marker.is_some_and(|marker| marker.is_live(now)) || cells.any(|cell| cell.is_live(now))
    }

    /// Checks the layout of bytes from outside.
    pub fn check(bytes: &[u8]) -> Result<(), Malformed> {
        let mut reader = Reader(bytes);
        reader.try_header().ok_or(Malformed("row header"))?;
        let mut last: Option<ColumnId> = None;
        while !reader.0.is_empty() {
            let cell = reader.try_cell().ok_or(Malformed("cell"))?;
            let has_path = cell.path.is_some() && cell.as_complex_deletion().is_some();
            if has_path || last.is_some_and(|last| last > cell.column) {
                return Err(Malformed("order of cells"));
            }
            last = Some(cell.column);
        }
        Ok(())
    }
}

/// The cells of a row.
#[derive(Clone)]
pub struct Cells<'a>(Reader<'a>);

impl<'a> Iterator for Cells<'a> {
    type Item = Cell<'a>;

    #[inline]
    fn next(&mut self) -> Option<Cell<'a>> {
        if self.0.0.is_empty() {
            return None;
        }
        let cell = self.0.try_cell();
        debug_assert!(cell.is_some(), "rows from outside are checked when they come in");
        cell
    }
}

#[derive(Clone)]
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    #[inline]
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, tail) = self.0.split_first_chunk::<N>()?;
        self.0 = tail;
        Some(*head)
    }

    #[inline]
    fn u8(&mut self) -> Option<u8> {
        self.array::<1>().map(|[b]| b)
    }

    #[inline]
    fn i32(&mut self) -> Option<i32> {
        self.array().map(i32::from_le_bytes)
    }

    #[inline]
    fn i64(&mut self) -> Option<i64> {
        self.array().map(i64::from_le_bytes)
    }

    #[inline]
    fn bytes(&mut self) -> Option<&'a [u8]> {
        let len = u32::from_le_bytes(self.array()?) as usize;
        let (head, tail) = self.0.split_at_checked(len)?;
        self.0 = tail;
        Some(head)
    }

    fn header(&mut self) -> (Option<Marker>, Tombstone) {
        let header = self.try_header();
        debug_assert!(header.is_some(), "rows from outside are checked when they come in");
        header.unwrap_or((None, Tombstone::LIVE))
    }

    #[inline]
    fn try_header(&mut self) -> Option<(Option<Marker>, Tombstone)> {
        let flags = self.u8()?;
        let marker = if flags & MARKER != 0 {
            let timestamp = self.i64()?;
            let (ttl, expiry) = if flags & MARKER_TTL != 0 { (self.i32()?, self.i32()?) } else { (0, 0) };
            Some(Marker { timestamp, ttl, expiry })
        } else {
            None
        };
        let deletion = if flags & DELETION != 0 { Tombstone::new(self.i64()?, self.i32()?) } else { Tombstone::LIVE };
        Some((marker, deletion))
    }

    #[inline]
    fn try_cell(&mut self) -> Option<Cell<'a>> {
        let column = ColumnId(u16::from_le_bytes(self.array()?));
        let flags = self.u8()?;
        let timestamp = self.i64()?;
        let state = match flags & STATE {
            LIVE => State::Live,
            EXPIRING => State::Expiring { ttl: self.i32()?, expiry: self.i32()? },
            DEAD => State::Dead { deletion_time: self.i32()? },
            _ => State::ComplexDeletion { deletion_time: self.i32()? },
        };
        let path = if flags & HAS_PATH != 0 { Some(self.bytes()?) } else { None };
        let value = if matches!(state, State::Live | State::Expiring { .. }) { self.bytes()? } else { &[] };
        Some(Cell { column, path, timestamp, state, value })
    }
}

/// Writes a row in order: marker, tombstone, then cells by column and path.
#[derive(Default, Clone, Debug)]
pub struct RowBuilder {
    out: Vec<u8>,
}

/// The longest encoding of what precedes the cells: flags, a marker that expires, and a tombstone.
const MAX_HEAD: usize = 1 + (8 + 4 + 8) + (8 + 8);

/// The fewest bytes of a collection's element without its path and value. They hold column, state
/// and timestamp, and either both lengths, or the deletion time and the length of the path.
pub const MIN_ELEMENT_HEAD: usize = 2 + 1 + 8 + 4 + 4;

/// The longest encoding of a cell without path and value: column, state, timestamp, TTL and expiry,
/// and both lengths.
const MAX_CELL_HEAD: usize = 2 + 1 + 8 + (4 + 8) + 4 + 4;

impl RowBuilder {
    /// A row with this marker and deletion.
    pub fn new(marker: Option<Marker>, deletion: Tombstone) -> Self {
        let mut builder = RowBuilder { out: Vec::with_capacity(64) };
        builder.start(marker, deletion);
        builder
    }

    /// Appends to a buffer that already holds other bytes. [`RowBuilder::into_inner`] returns it.
    pub fn append_to(out: Vec<u8>, marker: Option<Marker>, deletion: Tombstone) -> Self {
        let mut builder = RowBuilder { out };
        builder.start(marker, deletion);
        builder
    }

    fn start(&mut self, marker: Option<Marker>, deletion: Tombstone) {
        let mut flags = 0;
        if let Some(marker) = marker {
            flags |= MARKER | if marker.ttl != 0 { MARKER_TTL } else { 0 };
        }
        if !deletion.is_live() {
            flags |= DELETION;
        }
        self.out.push(flags);
        if let Some(marker) = marker {
            self.out.extend_from_slice(&marker.timestamp.to_le_bytes());
            if marker.ttl != 0 {
                self.out.extend_from_slice(&marker.ttl.to_le_bytes());
                self.out.extend_from_slice(&marker.expiry.to_le_bytes());
            }
        }
        if !deletion.is_live() {
            self.out.extend_from_slice(&deletion.timestamp.to_le_bytes());
            self.out.extend_from_slice(&deletion.deletion_time.to_le_bytes());
        }
    }

    /// Appends a cell or complex deletion. The caller keeps the order.
    #[inline]
    pub fn push(&mut self, cell: &Cell<'_>) {
        let out = &mut self.out;
        let is_complex = matches!(cell.state, State::ComplexDeletion { .. });
        debug_assert!(!is_complex || cell.path.is_none(), "a complex deletion covers all paths");
        out.extend_from_slice(&cell.column.0.to_le_bytes());
        let path = if cell.path.is_some() { HAS_PATH } else { 0 };
        match cell.state {
            State::Live => {
                out.push(LIVE | path);
                out.extend_from_slice(&cell.timestamp.to_le_bytes());
            }
            State::Expiring { ttl, expiry } => {
                out.push(EXPIRING | path);
                out.extend_from_slice(&cell.timestamp.to_le_bytes());
                out.extend_from_slice(&ttl.to_le_bytes());
                out.extend_from_slice(&expiry.to_le_bytes());
            }
            State::Dead { deletion_time } => {
                out.push(DEAD | path);
                out.extend_from_slice(&cell.timestamp.to_le_bytes());
                out.extend_from_slice(&deletion_time.to_le_bytes());
            }
            State::ComplexDeletion { deletion_time } => {
                out.push(COMPLEX_DELETION);
                out.extend_from_slice(&cell.timestamp.to_le_bytes());
                out.extend_from_slice(&deletion_time.to_le_bytes());
            }
        }
        if let Some(path) = cell.path {
            out.extend_from_slice(&(path.len() as u32).to_le_bytes());
            out.extend_from_slice(path);
        }
        if matches!(cell.state, State::Live | State::Expiring { .. }) {
            out.extend_from_slice(&(cell.value.len() as u32).to_le_bytes());
            out.extend_from_slice(cell.value);
        }
    }

    /// The finished row.
    pub fn finish(self) -> Row {
        debug_assert!(Row::check(&self.out).is_ok(), "a row has a header, then whole cells in the order of columns");
        Row(self.out.into())
    }

    /// The buffer.
    pub fn into_inner(self) -> Vec<u8> {
        self.out
    }
}

/// Builds a row from cells in any order. It sorts them; of two versions of a cell, the winner of
/// [`reconcile`] is kept.
pub fn build(schema: &TableSchema, marker: Option<Marker>, deletion: Tombstone, mut cells: Vec<Cell<'_>>) -> Row {
    build_from(schema, marker, deletion, &mut cells, |cell| *cell)
}

/// Like [`build`], from items that are smaller than cells. `cell` makes a cell of each.
pub fn build_from<'c, T>(
    schema: &TableSchema,
    marker: Option<Marker>,
    deletion: Tombstone,
    things: &mut Vec<T>,
    cell: impl Fn(&T) -> Cell<'c>,
) -> Row {
    things.sort_unstable_by(|a, b| {
        let (a, b) = (cell(a), cell(b));
        cell_order(schema, &a, &b).then_with(|| reconcile(&b, &a))
    });
    things.dedup_by(|later, kept| cell_order(schema, &cell(kept), &cell(later)) == Ordering::Equal);
    // Capacity for everything at once.
    let room = |cell: Cell<'_>| MAX_CELL_HEAD + cell.path.map_or(0, <[u8]>::len) + cell.value.len();
    let bytes = things.iter().map(|thing| room(cell(thing))).sum::<usize>();
    let mut builder = RowBuilder { out: Vec::with_capacity(MAX_HEAD + bytes) };
    builder.start(marker, deletion);
    for thing in things.iter() {
        builder.push(&cell(thing));
    }
    builder.finish()
}

/// The order of entries in a row: column, complex deletion first, path.
pub fn cell_order(schema: &TableSchema, a: &Cell<'_>, b: &Cell<'_>) -> Ordering {
    a.column.cmp(&b.column).then_with(|| match (a.path, b.path) {
        (Some(p), Some(q)) => schema.path_order(a.column).compare(p, q),
        (p, q) => p.is_some().cmp(&q.is_some()),
    })
}
