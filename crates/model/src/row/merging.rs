//! The merge of versions of a row.
//!
//! A row may have millions of cells, because each element of a collection is one. [`Merging`]
//! merges such rows in parts, so that the caller can yield in between.

use super::{Cell, Cells, Marker, Reader, Row, RowBuilder, cell_order, reconcile};
use crate::counter;
use crate::id::ColumnId;
use crate::row::State;
use crate::schema::TableSchema;
use crate::time::Tombstone;
use std::cmp::Ordering;

/// Merges two versions of a row. Commutative, associative and idempotent. Data that the merged
/// tombstones cover is dropped.
///
/// Merging rows of counters is associative only if no tombstone is between the counts of two nodes.
/// A deleted count is deleted for good only if it is not merged with a later count first. The
/// counts of one node are always associative, because its later states replace the earlier ones.
pub fn merge(schema: &TableSchema, a: &Row, b: &Row) -> Row {
    Row(merge_to(schema, a, b, Vec::with_capacity(a.len() + b.len())).into())
}

/// Merges all versions of a row. Adjacent versions are merged first, then the results, so that each
/// cell is copied a logarithmic number of times. Rows of counters are merged in order, because
/// [`merge`] is not associative for them; they have at most one cell for each column.
pub fn merge_all(schema: &TableSchema, mut versions: Vec<Row>) -> Option<Row> {
    if schema.is_counter() {
        return versions.into_iter().reduce(|kept, row| merge(schema, &kept, &row));
    }
    let merge_pair = |pair: &[Row]| match pair {
        [a, b] => merge(schema, a, b),
        _ => pair[0].clone(),
    };
    while versions.len() > 1 {
        versions = versions.chunks(2).map(merge_pair).collect();
    }
    versions.pop()
}

/// Like [`merge`], appended to a buffer.
pub fn merge_to(schema: &TableSchema, a: &Row, b: &Row, out: Vec<u8>) -> Vec<u8> {
    let (mut writer, a, b) = MergeWriter::begin(a, b, out);
    let (mut a, mut b) = (Ahead::new(a), Ahead::new(b));
    let counters = schema.is_counter();
    while writer.merge_next(schema, counters, &mut a, &mut b) {}
    writer.out.into_inner()
}

/// A merge of two rows that is done in parts, with the same result as [`merge`].
#[derive(Debug)]
pub struct Merging {
    rows: [Row; 2],
    /// The bytes at the end of each row that are not merged yet.
    left: [usize; 2],
    writer: MergeWriter,
}

impl Merging {
    /// The merge of two rows. Nothing is done yet.
    pub fn new(a: Row, b: Row) -> Merging {
        let (writer, a_cells, b_cells) = MergeWriter::begin(&a, &b, Vec::with_capacity(a.len() + b.len()));
        let left = [a_cells.0.0.len(), b_cells.0.0.len()];
        Merging { rows: [a, b], left, writer }
    }

    /// Merges cells of about this many bytes. True: the merge is complete.
    pub fn run(&mut self, schema: &TableSchema, bytes: usize) -> bool {
        let rest = |i: usize| {
            let row = &self.rows[i].0;
            Ahead::new(Cells(Reader(&row[row.len() - self.left[i]..])))
        };
        let (mut a, mut b) = (rest(0), rest(1));
        let counters = schema.is_counter();
        let until = (a.left + b.left).saturating_sub(bytes);
        let mut has_more = true;
        while has_more && a.left + b.left > until {
            has_more = self.writer.merge_next(schema, counters, &mut a, &mut b);
        }
        self.left = [a.left, b.left];
        !has_more || self.left == [0, 0]
    }

    /// Takes the merged row, after [`Merging::run`] has returned true.
    pub fn finish(&mut self) -> Row {
        debug_assert_eq!(self.left, [0, 0], "the merge is complete");
        std::mem::take(&mut self.writer.out).finish()
    }
}

/// The cells of a row, the next of which is known.
struct Ahead<'a> {
    cells: Cells<'a>,
    head: Option<Cell<'a>>,
    /// The bytes from the head to the end of the row.
    left: usize,
}

impl<'a> Ahead<'a> {
    #[inline]
    fn new(mut cells: Cells<'a>) -> Self {
        let left = cells.0.0.len();
        Ahead { head: cells.next(), cells, left }
    }

    #[inline]
    fn next(&mut self) -> Option<Cell<'a>> {
        self.left = self.cells.0.0.len();
        std::mem::replace(&mut self.head, self.cells.next())
    }
}

#[derive(Debug)]
struct MergeWriter {
    out: RowBuilder,
    deletion: Tombstone,
    complex: Option<(ColumnId, Tombstone)>,
}

impl MergeWriter {
    /// Merges what precedes the cells. Returns the cells of both rows.
    fn begin<'a>(a: &'a Row, b: &'a Row, out: Vec<u8>) -> (MergeWriter, Cells<'a>, Cells<'a>) {
        let (a_marker, a_deletion, a_cells) = a.parts();
        let (b_marker, b_deletion, b_cells) = b.parts();
        let deletion = a_deletion.max(b_deletion);
        let marker = match (a_marker, b_marker) {
            (Some(x), Some(y)) => Some(if x.rank() >= y.rank() { x } else { y }),
            (x, y) => x.or(y),
        };
        let marker = marker.filter(|marker: &Marker| !deletion.deletes(marker.timestamp));
        (MergeWriter { out: RowBuilder::append_to(out, marker, deletion), deletion, complex: None }, a_cells, b_cells)
    }

    /// Merges the next cell of either row or of both. False: there is none.
    #[inline]
    fn merge_next(&mut self, schema: &TableSchema, counters: bool, a: &mut Ahead<'_>, b: &mut Ahead<'_>) -> bool {
        let order = match (&a.head, &b.head) {
            (None, None) => return false,
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some(x), Some(y)) => cell_order(schema, x, y),
        };
        let cell = match order {
            Ordering::Less => a.next(),
            Ordering::Greater => b.next(),
            Ordering::Equal => match (a.next(), b.next()) {
                (Some(x), Some(y)) if counters => {
                    self.push_counters(&x, &y);
                    None
                }
                (Some(x), Some(y)) => Some(if reconcile(&x, &y) == Ordering::Less { y } else { x }),
                (x, y) => x.or(y),
            },
        };
        if let Some(cell) = cell {
            self.push(&cell);
        }
        true
    }

    /// Merges two versions of a counter: the parts of both that are not deleted are summed. The
    /// deletion of a counter's cell is final, whatever its timestamp: no count returns after it.
    fn push_counters(&mut self, a: &Cell<'_>, b: &Cell<'_>) {
        let covered = |cell: &Cell<'_>| self.deletion.deletes(cell.timestamp);
        match (covered(a), covered(b)) {
            (true, _) => return self.push(b),
            (_, true) => return self.push(a),
            (false, false) => {}
        }
        if a.state == State::Live && b.state == State::Live {
            let value = counter::merge(a.value, b.value);
            return self.push(&Cell { timestamp: a.timestamp.max(b.timestamp), value: &value, ..*a });
        }
        let dead = |cell: &Cell<'_>| cell.state != State::Live;
        let first = match (dead(a), dead(b)) {
            (true, false) => true,
            (false, true) => false,
            _ => reconcile(a, b) != Ordering::Less,
        };
        self.push(if first { a } else { b });
    }

    fn push(&mut self, cell: &Cell<'_>) {
        if self.deletion.deletes(cell.timestamp) {
            return;
        }
        if let Some(tombstone) = cell.as_complex_deletion() {
            self.complex = Some((cell.column, tombstone));
        } else if self.complex.is_some_and(|(column, by)| column == cell.column && by.deletes(cell.timestamp)) {
            return;
        }
        self.out.push(cell);
    }
}
