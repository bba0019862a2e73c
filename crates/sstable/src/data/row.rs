//! Rows: liveness, deletion, the subset of columns, cells.
//!
//! Decoding copies each value once, from the window into the row's buffer. If the column order of
//! the file differs from the order of the ids, cells are collected and sorted first.

use super::flags::*;
use super::layout::{Columns, Layout};
use super::prefix;
use crate::input::{Fault, Input, Parsed};
use crate::large_reads::LARGE;
use crate::statistics::collector::Collector;
use model::row::{Cell, Marker, Row, RowBuilder, State};
use model::time::Tombstone;
use model::types::vint::{unsigned_len, write_unsigned};
use smallvec::SmallVec;

/// Flags of a cell.
mod cell_flags {
    pub const DELETED: u8 = 0x01;
    pub const EXPIRING: u8 = 0x02;
    pub const EMPTY_VALUE: u8 = 0x04;
    pub const USE_ROW_TIMESTAMP: u8 = 0x08;
    pub const USE_ROW_TTL: u8 = 0x10;
}
use cell_flags::*;

/// Column subsets of at least this number of columns have the large form.
const LARGE_SUBSET: usize = 64;

const BAD_SUBSET: Fault = Fault::Bad("the column subset is not valid");

/// The columns that a row has.
enum Subset {
    All,
    /// A set bit is a missing column.
    Missing(u64),
    Present(Vec<bool>),
}

impl Subset {
    #[inline]
    fn has(&self, i: usize) -> bool {
        match self {
            Subset::All => true,
            Subset::Missing(bits) => bits >> i & 1 == 0,
            Subset::Present(present) => present[i],
        }
    }

    fn read(input: &mut Input<'_>, columns: usize) -> Parsed<Subset> {
        let first = input.uvint()?;
        if columns < LARGE_SUBSET {
            return if first >> columns == 0 { Ok(Subset::Missing(first)) } else { Err(BAD_SUBSET) };
        }
        let missing = usize::try_from(first).ok().filter(|&m| m <= columns).ok_or(BAD_SUBSET)?;
        if missing == 0 {
            return Ok(Subset::All);
        }
        let present = columns - missing;
        let lists_present = present < columns / 2;
        let mut flags = vec![!lists_present; columns];
        for _ in 0..if lists_present { present } else { missing } {
            let flag = input.size().ok().and_then(|i| flags.get_mut(i)).ok_or(BAD_SUBSET)?;
            if *flag == lists_present {
                return Err(BAD_SUBSET);
            }
            *flag = lists_present;
        }
        Ok(Subset::Present(flags))
    }

    /// `present` has the indexes of the existing columns, ascending.
    fn write(present: &[usize], columns: usize, out: &mut Vec<u8>) {
        if columns < LARGE_SUBSET {
            let all = (1u64 << columns) - 1;
            write_unsigned(present.iter().fold(all, |bits, &i| bits & !(1 << i)), out);
            return;
        }
        write_unsigned((columns - present.len()) as u64, out);
        if present.len() < columns / 2 {
            present.iter().for_each(|&i| write_unsigned(i as u64, out));
        } else {
            let mut present = present.iter().peekable();
            (0..columns).filter(|i| present.next_if_eq(&i).is_none()).for_each(|i| write_unsigned(i as u64, out));
        }
    }
}

/// Decodes the body of a row, and appends the row in its form in memory to `arena`. After an error
/// `arena` is not usable.
pub(crate) fn read(body: &[u8], flags: u8, extended: u8, layout: &Layout, arena: &mut Vec<u8>) -> Parsed<()> {
    let mut input = Input(body);
    let columns = if extended & EXTENDED_STATIC != 0 { &layout.statics } else { &layout.regulars };
    input.uvint()?;
    let mut marker = None;
    if flags & HAS_TIMESTAMP != 0 {
        let timestamp = layout.read_timestamp(&mut input)?;
        marker = Some(if flags & HAS_TTL != 0 {
            let ttl = layout.read_ttl(&mut input)?;
            Marker::expiring(timestamp, ttl, layout.read_deletion_time(&mut input)?)
        } else {
            Marker::new(timestamp)
        });
    }
    let mut deletion = Tombstone::LIVE;
    if flags & HAS_DELETION != 0 {
        deletion = layout.read_deletion(&mut input)?;
        if extended & EXTENDED_DELETION_SHADOWABLE != 0
            && marker.is_some_and(|marker| marker.timestamp > deletion.timestamp)
        {
            deletion = Tombstone::LIVE;
        }
    }
    if extended & EXTENDED_SHADOWABLE != 0 {
        // Holds until the row is written again.
        let shadowable = layout.read_deletion(&mut input)?;
        if marker.is_none_or(|marker| marker.timestamp <= shadowable.timestamp) {
            deletion = deletion.max(shadowable);
        }
    }
    let subset = match flags & HAS_ALL_COLUMNS {
        0 => Subset::read(&mut input, columns.targets.len())?,
        _ => Subset::All,
    };
    let complex = flags & HAS_COMPLEX_DELETION != 0;
    let cells = CellReader { layout, columns, subset, complex, marker };
    arena.reserve(body.len() + 16 + 16 * columns.targets.len());
    let mut builder = RowBuilder::append_to(std::mem::take(arena), marker, deletion);
    if columns.ascending {
        cells.read(&mut input, |cell| builder.push(&cell))?;
    } else {
        let mut all: SmallVec<[Cell<'_>; 16]> = SmallVec::new();
        cells.read(&mut input, |cell| all.push(cell))?;
        all.sort_by_key(|cell| cell.column);
        all.iter().for_each(|cell| builder.push(cell));
    }
    *arena = builder.into_inner();
    if input.0.is_empty() { Ok(()) } else { Err(Fault::Bad("bytes follow the cells of a row")) }
}

struct CellReader<'l> {
    layout: &'l Layout,
    columns: &'l Columns,
    subset: Subset,
    complex: bool,
    marker: Option<Marker>,
}

impl CellReader<'_> {
    #[inline]
    fn read<'a>(&self, input: &mut Input<'a>, mut sink: impl FnMut(Cell<'a>)) -> Parsed<()> {
        for (i, target) in self.columns.targets.iter().enumerate() {
            if !self.subset.has(i) {
                continue;
            }
            // Cells without an id are parsed and discarded.
            let id = target.id.unwrap_or(model::ColumnId(0));
            let keep = |timestamp| target.id.is_some() && target.dead_until.is_none_or(|until| timestamp > until);
            if !target.multi {
                let cell = self.cell(input, id, false, target.width)?;
                if keep(cell.timestamp) {
                    sink(cell);
                }
                continue;
            }
            if self.complex {
                let deletion = self.layout.read_deletion(input)?;
                if !deletion.is_live() && keep(deletion.timestamp) {
                    sink(Cell::complex_deletion(id, deletion));
                }
            }
            for _ in 0..input.uvint()? {
                let cell = self.cell(input, id, true, None)?;
                if keep(cell.timestamp) {
                    sink(cell);
                }
            }
        }
        Ok(())
    }

    #[inline]
    fn cell<'a>(
        &self,
        input: &mut Input<'a>,
        column: model::ColumnId,
        path: bool,
        width: Option<usize>,
    ) -> Parsed<Cell<'a>> {
        let flags = input.u8()?;
        let row = || self.marker.ok_or(Fault::Bad("a cell refers to a missing row marker"));
        let timestamp = match flags & USE_ROW_TIMESTAMP {
            0 => self.layout.read_timestamp(input)?,
            _ => row()?.timestamp,
        };
        let state = match flags & (DELETED | EXPIRING) {
            0 => State::Live,
            DELETED => {
                let deletion_time =
                    if flags & USE_ROW_TTL != 0 { row()?.expiry } else { self.layout.read_deletion_time(input)? };
                State::Dead { deletion_time }
            }
            EXPIRING if flags & USE_ROW_TTL != 0 => {
                let marker = row()?;
                State::Expiring { ttl: marker.ttl, expiry: marker.expiry }
            }
            EXPIRING => {
                let expiry = self.layout.read_deletion_time(input)?;
                State::Expiring { ttl: self.layout.read_ttl(input)?, expiry }
            }
            _ => return Err(Fault::Bad("a cell is both deleted and expiring")),
        };
        let path = if path { Some(input.vbytes()?) } else { None };
        let value = match (flags & EMPTY_VALUE, width) {
            (0, Some(width)) => input.take(width)?,
            (0, None) => input.vbytes()?,
            _ => &[],
        };
        Ok(Cell { column, path, timestamp, state, value })
    }
}

/// A row to write.
pub(crate) struct Source<'a> {
    pub row: &'a Row,
    /// The clustering key's bytes; `None` for the static row.
    pub key: Option<&'a [u8]>,
    /// The position of this row minus the position of the preceding element.
    pub previous: u64,
}

/// The longest encoding of the two numbers between a row's head and its body: the length of the
/// body, and the length of the preceding element.
const LENGTHS: usize = 2 * 9;

/// Appends a row. False if there was nothing to write. The error names a value that does not fit
/// its type. A large row is written in place after a gap for its lengths, so that it is in memory
/// once. For others `scratch` is cheaper.
pub(crate) fn write(
    source: &Source<'_>,
    layout: &Layout,
    scratch: &mut Vec<u8>,
    out: &mut Vec<u8>,
    collector: &mut Collector,
) -> Result<bool, String> {
    let columns = if source.key.is_some() { &layout.regulars } else { &layout.statics };
    let (marker, deletion, row_cells) = source.row.parts();
    // Cells of columns that the schema dropped are dead.
    let mut cells: SmallVec<[(usize, Cell<'_>); 16]> =
        row_cells.filter_map(|cell| Some((columns.place(cell.column)?, cell))).collect();
    if !columns.ascending {
        cells.sort_by_key(|(place, _)| *place);
    }
    if marker.is_none() && deletion.is_live() && cells.is_empty() {
        return Ok(false);
    }
    let mut present: SmallVec<[usize; 16]> = cells.iter().map(|(place, _)| *place).collect();
    present.dedup();
    let mut flags = 0;
    if let Some(marker) = marker {
        flags |= HAS_TIMESTAMP | if marker.ttl != 0 { HAS_TTL } else { 0 };
    }
    if !deletion.is_live() {
        flags |= HAS_DELETION;
    }
    if present.len() == columns.targets.len() {
        flags |= HAS_ALL_COLUMNS;
    }
    let complex = cells.iter().any(|(_, cell)| cell.as_complex_deletion().is_some());
    if complex {
        flags |= HAS_COMPLEX_DELETION;
    }
    let in_place = source.row.len() >= LARGE;
    let start = if in_place {
        out.reserve_exact(source.row.len() + source.row.len() / 64 + LENGTHS);
        write_row_head(source, flags, layout, out)?;
        out.resize(out.len() + LENGTHS, 0);
        out.len()
    } else {
        0
    };
    let body = if in_place { &mut *out } else { &mut *scratch };
    body.truncate(start);
    if let Some(marker) = marker {
        layout.write_timestamp(marker.timestamp, body);
        if marker.ttl != 0 {
            layout.write_ttl(marker.ttl, body);
            layout.write_deletion_time(marker.expiry, body);
        }
        collector.marker(&marker);
    }
    if !deletion.is_live() {
        layout.write_deletion(deletion, body);
        collector.tombstone(deletion);
    }
    if flags & HAS_ALL_COLUMNS == 0 {
        Subset::write(&present, columns.targets.len(), body);
    }
    write_cells(&cells, marker, complex, (columns, layout), body, collector)?;
    collector.row();
    if in_place {
        close_up(start, source.previous, out);
        return Ok(true);
    }
    write_row_head(source, flags, layout, out)?;
    write_unsigned((unsigned_len(source.previous) + scratch.len()) as u64, out);
    write_unsigned(source.previous, out);
    out.extend_from_slice(scratch);
    Ok(true)
}

/// Appends the cells of a row, in the order of their columns. `complex`: a multi-cell column is
/// preceded by its deletion.
#[inline]
fn write_cells(
    cells: &[(usize, Cell<'_>)],
    marker: Option<Marker>,
    complex: bool,
    (columns, layout): (&Columns, &Layout),
    body: &mut Vec<u8>,
    collector: &mut Collector,
) -> Result<(), String> {
    let mut rest = cells;
    while let Some(&(place, _)) = rest.first() {
        let target = &columns.targets[place];
        let (own, tail) = rest.split_at(rest.partition_point(|(other, _)| *other == place));
        rest = tail;
        if !target.multi {
            if let [(_, cell)] = own {
                write_cell(cell, marker, target.width, layout, body).map_err(|n| wrong_length(n, cell))?;
                collector.cell(cell);
                collector.column_set();
                continue;
            }
            return Err(format!("column {} has several cells in one row", own[0].1.column.0));
        }
        let (first, elements) = match own {
            [(_, cell), elements @ ..] if cell.as_complex_deletion().is_some() => {
                (cell.as_complex_deletion(), elements)
            }
            elements => (None, elements),
        };
        if complex {
            layout.write_deletion(first.unwrap_or(Tombstone::LIVE), body);
        }
        if let Some(tombstone) = first {
            collector.tombstone(tombstone);
        }
        write_unsigned(elements.len() as u64, body);
        for (_, cell) in elements {
            if cell.path.is_none() {
                return Err(format!("column {} has a cell without a path", cell.column.0));
            }
            write_cell(cell, marker, None, layout, body).map_err(|n| wrong_length(n, cell))?;
            collector.cell(cell);
        }
        if !elements.is_empty() {
            collector.column_set();
        }
    }
    Ok(())
}

/// Writes what precedes the lengths of a row.
#[inline]
fn write_row_head(source: &Source<'_>, flags: u8, layout: &Layout, out: &mut Vec<u8>) -> Result<(), String> {
    match source.key {
        Some(key) => {
            out.push(flags);
            prefix::write(key, &layout.clustering, true, out)
                .map_err(|i| format!("clustering value {i} has a wrong length"))?;
        }
        None => out.extend_from_slice(&[flags | EXTENSION, EXTENDED_STATIC]),
    }
    Ok(())
}

/// Writes the lengths of the body that begins at `start` into the gap before it, and closes the
/// rest of the gap.
fn close_up(start: usize, previous: u64, out: &mut Vec<u8>) {
    let mut lengths = Vec::with_capacity(LENGTHS);
    write_unsigned((unsigned_len(previous) + out.len() - start) as u64, &mut lengths);
    write_unsigned(previous, &mut lengths);
    let room = start - LENGTHS;
    out[room..room + lengths.len()].copy_from_slice(&lengths);
    out.copy_within(start.., room + lengths.len());
    out.truncate(out.len() - (LENGTHS - lengths.len()));
}

/// Appends the empty static row of a partition that has none, in a file with static columns.
pub(crate) fn write_empty_static(layout: &Layout, out: &mut Vec<u8>) {
    out.extend_from_slice(&[EXTENSION, EXTENDED_STATIC]);
    let mut body = vec![0];
    Subset::write(&[], layout.statics.targets.len(), &mut body);
    write_unsigned(body.len() as u64, out);
    out.extend_from_slice(&body);
}

fn wrong_length(len: usize, cell: &Cell<'_>) -> String {
    format!("a value of column {} has {len} bytes, which its type forbids", cell.column.0)
}

#[inline]
fn write_cell(
    cell: &Cell<'_>,
    marker: Option<Marker>,
    width: Option<usize>,
    layout: &Layout,
    out: &mut Vec<u8>,
) -> Result<(), usize> {
    let at = out.len();
    let mut flags = if cell.value.is_empty() { EMPTY_VALUE } else { 0 };
    out.push(0);
    if marker.is_some_and(|marker| marker.timestamp == cell.timestamp) {
        flags |= USE_ROW_TIMESTAMP;
    } else {
        layout.write_timestamp(cell.timestamp, out);
    }
    match cell.state {
        State::Live => {}
        State::Dead { deletion_time } | State::ComplexDeletion { deletion_time } => {
            flags |= DELETED;
            layout.write_deletion_time(deletion_time, out);
        }
        State::Expiring { ttl, expiry } => {
            flags |= EXPIRING;
            if marker.is_some_and(|marker| marker.ttl != 0 && marker.ttl == ttl && marker.expiry == expiry) {
                flags |= USE_ROW_TTL;
            } else {
                layout.write_deletion_time(expiry, out);
                layout.write_ttl(ttl, out);
            }
        }
    }
    if let Some(path) = cell.path {
        crate::input::write_vbytes(path, out);
    }
    if !cell.value.is_empty() {
        match width {
            Some(width) if width == cell.value.len() => out.extend_from_slice(cell.value),
            Some(_) => return Err(cell.value.len()),
            None => crate::input::write_vbytes(cell.value, out),
        }
    }
    out[at] = flags;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_stand_close_before_a_body_written_in_place() {
        for (previous, len) in [(0, 0), (127, 3), (1 << 20, 200), (u64::MAX, 20_000)] {
            let body: Vec<u8> = (0..len).map(|n| n as u8).collect();
            let mut expected = b"head".to_vec();
            write_unsigned((unsigned_len(previous) + body.len()) as u64, &mut expected);
            write_unsigned(previous, &mut expected);
            expected.extend_from_slice(&body);
            let mut out = [b"head", &[0; LENGTHS][..], &body].concat();
            close_up(4 + LENGTHS, previous, &mut out);
            assert_eq!(out, expected);
        }
    }
}
