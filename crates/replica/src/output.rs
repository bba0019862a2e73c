//! The output of a read: which values of each row are returned. Values are copied once, from the
//! bytes of the source into the result.

use crate::reduce::Reduction;
use model::compact::LiveCells;
use model::counter;
use model::id::{ColumnId, SchemaVersion};
use model::key::Clustering;
use model::row::{Cell, State};
use model::schema::{ColumnKind, TableSchema};
use model::types::CqlType;
use rt::hash::HashMap;
use smallvec::{SmallVec, smallvec};
use std::cell::RefCell;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// One value of a result row.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum OutputColumn {
    /// A component of the partition key.
    PartitionKey(u16),
    /// A component of the clustering key.
    Clustering(u16),
    /// The value of a static or regular column.
    Value(ColumnId),
    /// The column's timestamp in microseconds, as bigint; null if there is no value.
    WriteTime(ColumnId),
    /// The column's remaining TTL in seconds, as int; null without TTL.
    Ttl(ColumnId),
    /// A collection's cells as a map from cell path to value, for writes that must read first.
    Elements(ColumnId),
    /// A collection's or user type's cells as a map from cell path to write time (i64) and
    /// remaining TTL in seconds (i32; below zero without TTL). For `writetime` and `ttl` of
    /// elements and fields.
    CellTimes(ColumnId),
}

impl OutputColumn {
    /// The static or regular column. `None` for a component of a key.
    pub fn column_id(self) -> Option<ColumnId> {
        match self {
            OutputColumn::PartitionKey(_) | OutputColumn::Clustering(_) => None,
            OutputColumn::Value(id)
            | OutputColumn::WriteTime(id)
            | OutputColumn::Ttl(id)
            | OutputColumn::Elements(id)
            | OutputColumn::CellTimes(id) => Some(id),
        }
    }
}

/// The output of a read.
#[derive(Debug)]
pub struct Output {
    /// The values of each row, in order.
    pub columns: Vec<OutputColumn>,
    /// Whether a partition with static content but no rows returns one row.
    pub static_only_rows: bool,
    /// Whether each live partition returns exactly one row, of key and static columns (`DISTINCT`).
    pub distinct: bool,
    /// If not empty: a page has one row of partial results in place of its rows.
    pub reductions: Vec<Reduction>,
    /// The columns, bound to the schema version of the last read. So a prepared statement binds
    /// once, not for each request.
    bound: RefCell<Option<(SchemaVersion, Rc<Binding>)>>,
}

impl PartialEq for Output {
    fn eq(&self, other: &Self) -> bool {
        (&self.columns, self.static_only_rows, self.distinct, &self.reductions)
            == (&other.columns, other.static_only_rows, other.distinct, &other.reductions)
    }
}

impl Output {
    /// An output of these columns.
    pub fn new(mut columns: Vec<OutputColumn>, static_only_rows: bool, distinct: bool) -> Self {
        columns.shrink_to_fit();
        Output { columns, static_only_rows, distinct, reductions: Vec::new(), bound: RefCell::new(None) }
    }

    /// The same output with these reductions.
    pub fn reduced(&self, reductions: Vec<Reduction>) -> Self {
        Output { reductions, ..Output::new(self.columns.clone(), self.static_only_rows, self.distinct) }
    }

    /// The bytes of each allocation of an output that is bound to a schema.
    pub fn allocations(&self) -> [usize; 5] {
        let ids = self.columns.iter().filter_map(|column| column.column_id()).map(|id| usize::from(id.0) + 1).max();
        [
            self.columns.capacity() * size_of::<OutputColumn>(),
            self.reductions.capacity() * size_of::<Reduction>(),
            size_of::<Binding>() + 2 * size_of::<usize>(),
            self.columns.len() * size_of::<Slot>(),
            ids.unwrap_or_default() * size_of::<Option<u32>>(),
        ]
    }

    pub(crate) fn bind(&self, schema: &TableSchema) -> Rc<Binding> {
        let mut bound = self.bound.borrow_mut();
        match &*bound {
            Some((version, binding)) if *version == schema.version => binding.clone(),
            _ => {
                let binding = Rc::new(Binding::new(self, schema));
                *bound = Some((schema.version, binding.clone()));
                binding
            }
        }
    }
}

/// An output bound to a schema version: maps column ids to slots of the row.
#[derive(Debug)]
pub(crate) struct Binding {
    slots: Vec<Slot>,
    /// The first slot that needs each column, by column id. `None` if no slot needs it.
    by_column: Vec<Option<u32>>,
    /// Whether any column has multiple cells.
    complex: bool,
    /// Whether all columns are key components or values of one cell, returned as they are stored.
    plain: bool,
    /// Whether the values are counters: their stored form differs from the returned value.
    counters: bool,
    /// How often the most frequent column is selected, at least once.
    repeats: usize,
}

/// A row to be written.
pub(crate) struct StoredRow<'a> {
    /// The components of the partition key.
    pub key_components: &'a [&'a [u8]],
    /// `None` in a row that represents a partition without rows.
    pub clustering: Option<&'a Clustering>,
    pub static_cells: Option<LiveCells<'a>>,
    pub cells: Option<LiveCells<'a>>,
}

/// The number of cells after which a task that writes a large row may yield.
const CELLS_AT_ONCE: usize = 512;

/// Whether the writing of a row yields.
trait Pace {
    /// Called before cell `n` of a sequence.
    fn after(&self, n: usize) -> impl Future<Output = ()>;
}

struct Unpaced;

impl Pace for Unpaced {
    #[inline]
    fn after(&self, _: usize) -> impl Future<Output = ()> {
        std::future::ready(())
    }
}

struct Yielding;

impl Pace for Yielding {
    #[inline]
    async fn after(&self, n: usize) {
        if n % CELLS_AT_ONCE == CELLS_AT_ONCE - 1 {
            rt::task::maybe_yield().await;
        }
    }
}

/// A row of the result would exceed the limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TooLong;

#[derive(Debug)]
struct Slot {
    column: OutputColumn,
    ty: Option<CqlType>,
    is_static: bool,
    /// The next slot that needs the same column.
    next: Option<u32>,
}

impl Binding {
    fn new(output: &Output, schema: &TableSchema) -> Binding {
        let mut slots: Vec<Slot> = Vec::with_capacity(output.columns.len());
        let mut by_column: Vec<Option<u32>> = Vec::new();
        let mut complex = false;
        for (i, column) in output.columns.iter().enumerate() {
            let mut slot = Slot { column: *column, ty: None, is_static: false, next: None };
            if let Some(id) = column.column_id() {
                if by_column.len() <= id.0 as usize {
                    by_column.resize(id.0 as usize + 1, None);
                }
                slot.next = by_column[id.0 as usize]
                    .replace(u32::try_from(i).expect("the columns are in a list of four bytes' length"));
                if let Some(found) = schema.column(id) {
                    slot.is_static = found.kind == ColumnKind::Static;
                    slot.ty = Some(found.ty.clone());
                    complex |= found.ty.is_multi_cell();
                }
            }
            slots.push(slot);
        }
        let counters = schema.is_counter();
        let shows = |slot: &Slot| {
            matches!(slot.column, OutputColumn::PartitionKey(_) | OutputColumn::Clustering(_) | OutputColumn::Value(_))
        };
        let plain = !complex && !counters && slots.iter().all(shows);
        let repeats = most_repeated(&output.columns);
        Binding { slots, by_column, complex, plain, counters, repeats }
    }

    /// The most times that a value of a row is written, because a column is selected several times.
    #[inline]
    pub fn repeats(&self) -> usize {
        self.repeats
    }

    /// Appends one row. `out` exceeds `max` at most by the length of the stored row, because
    /// repeated values are counted before they are written.
    #[inline]
    pub(crate) fn write_row(&self, row: StoredRow<'_>, now: i32, max: u64, out: &mut Vec<u8>) -> Result<(), TooLong> {
        if self.plain {
            return self.write_plain_row(row, max, out);
        }
        let writing = pin!(self.write_cells(row, now, max, out, &Unpaced));
        match writing.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(written) => written,
            Poll::Pending => unreachable!("without pauses it does not wait"),
        }
    }

    /// Like [`Binding::write_row`], for a row that may have millions of cells: yields in between.
    pub(crate) async fn write_large_row(
        &self,
        row: StoredRow<'_>,
        now: i32,
        max: u64,
        out: &mut Vec<u8>,
    ) -> Result<(), TooLong> {
        if self.plain {
            return self.write_plain_row(row, max, out);
        }
        self.write_cells(row, now, max, out, &Yielding).await
    }

    /// Appends a row that is not plain.
    async fn write_cells<'a>(
        &self,
        row: StoredRow<'a>,
        now: i32,
        max: u64,
        out: &mut Vec<u8>,
        pace: &impl Pace,
    ) -> Result<(), TooLong> {
        let StoredRow { key_components, clustering, static_cells, cells } = row;
        let mut found: SmallVec<[FoundCells<'a>; 16]> = SmallVec::with_capacity(self.slots.len());
        found.resize_with(self.slots.len(), FoundCells::default);
        for (n, cell) in static_cells.into_iter().chain(cells).flatten().enumerate() {
            pace.after(n).await;
            let mut want = self.by_column.get(cell.column.0 as usize).copied().flatten();
            while let Some(i) = want {
                let slot = &self.slots[i as usize];
                if self.complex && slot.ty.as_ref().is_some_and(CqlType::is_multi_cell) {
                    found[i as usize].many.push(cell);
                } else {
                    found[i as usize].one = Some(cell);
                }
                want = slot.next;
            }
        }
        let is_full = |out: &Vec<u8>| self.repeats > 1 && out.len() as u64 > max;
        for (slot, found) in self.slots.iter().zip(&found) {
            if is_full(out) {
                return Err(TooLong);
            }
            match slot.column {
                OutputColumn::PartitionKey(i) => write_value(key_components.get(i as usize).copied(), out),
                OutputColumn::Clustering(i) => {
                    write_value(clustering.and_then(|key| key.components().nth(i as usize)), out);
                }
                OutputColumn::Value(_) => match (&found.one, &slot.ty) {
                    (Some(cell), _) if self.counters => {
                        write_value(Some(&counter::total(cell.value).to_be_bytes()), out);
                    }
                    (Some(cell), _) => write_value(Some(cell.value), out),
                    (None, Some(ty)) if !found.many.is_empty() => {
                        write_collection(ty, &found.many, out, pace).await;
                    }
                    _ => write_value(None, out),
                },
                OutputColumn::WriteTime(_) => {
                    let timestamp = found.one.iter().chain(&found.many).map(|cell| cell.timestamp).max();
                    write_value(timestamp.map(i64::to_be_bytes).as_ref().map(|bytes| &bytes[..]), out);
                }
                OutputColumn::Ttl(_) => {
                    let left = found.one.iter().chain(&found.many).find_map(|cell| match cell.state {
                        State::Expiring { expiry, .. } => Some((expiry - now).to_be_bytes()),
                        _ => None,
                    });
                    write_value(left.as_ref().map(|bytes| &bytes[..]), out);
                }
                OutputColumn::Elements(_) => {
                    let start = begin_value(out);
                    out.extend_from_slice(&(found.many.len() as i32).to_be_bytes());
                    for (n, cell) in found.many.iter().enumerate() {
                        pace.after(n).await;
                        write_value(Some(cell.path.unwrap_or_default()), out);
                        write_value(Some(cell.value), out);
                    }
                    end_value(start, out);
                }
                OutputColumn::CellTimes(_) => {
                    let start = begin_value(out);
                    out.extend_from_slice(&(found.many.len() as i32).to_be_bytes());
                    for (n, cell) in found.many.iter().enumerate() {
                        pace.after(n).await;
                        write_value(Some(cell.path.unwrap_or_default()), out);
                        let left = match cell.state {
                            State::Expiring { expiry, .. } => expiry - now,
                            _ => -1,
                        };
                        out.extend_from_slice(&12i32.to_be_bytes());
                        out.extend_from_slice(&cell.timestamp.to_be_bytes());
                        out.extend_from_slice(&left.to_be_bytes());
                    }
                    end_value(start, out);
                }
            }
        }
        Ok(())
    }

    /// The fast path of `write_row`: each slot needs only the bytes of a value.
    fn write_plain_row(&self, row: StoredRow<'_>, max: u64, out: &mut Vec<u8>) -> Result<(), TooLong> {
        let StoredRow { key_components, clustering, static_cells, cells } = row;
        let mut values: SmallVec<[Option<&[u8]>; 16]> = smallvec![None; self.slots.len()];
        for cells in [static_cells, cells] {
            let Some(cells) = cells else { continue };
            for cell in cells {
                let mut want = self.by_column.get(cell.column.0 as usize).copied().flatten();
                while let Some(i) = want {
                    values[i as usize] = Some(cell.value);
                    want = self.slots[i as usize].next;
                }
            }
        }
        if self.repeats > 1 {
            for (slot, value) in self.slots.iter().zip(&mut values) {
                match slot.column {
                    OutputColumn::PartitionKey(i) => *value = key_components.get(i as usize).copied(),
                    OutputColumn::Clustering(i) => *value = clustering.and_then(|key| key.components().nth(i as usize)),
                    _ => {}
                }
            }
            let len: u64 = values.iter().flatten().map(|value| value.len() as u64).sum();
            if out.len() as u64 + len > max {
                return Err(TooLong);
            }
        }
        for (slot, value) in self.slots.iter().zip(values) {
            let value = match slot.column {
                OutputColumn::PartitionKey(i) => key_components.get(i as usize).copied(),
                OutputColumn::Clustering(i) => clustering.and_then(|key| key.components().nth(i as usize)),
                _ => value,
            };
            write_value(value, out);
        }
        Ok(())
    }
}

/// How often the most frequent column is selected, at least once.
fn most_repeated(columns: &[OutputColumn]) -> usize {
    let mut times: HashMap<OutputColumn, usize> = HashMap::default();
    for column in columns {
        *times.entry(*column).or_default() += 1;
    }
    times.into_values().max().unwrap_or(1)
}

#[derive(Default)]
struct FoundCells<'a> {
    one: Option<Cell<'a>>,
    many: Vec<Cell<'a>>,
}

/// Appends a value in the protocol's form: i32 length and bytes, or -1 for null.
pub fn write_value(value: Option<&[u8]>, out: &mut Vec<u8>) {
    match value {
        Some(bytes) => {
            out.extend_from_slice(&(bytes.len() as i32).to_be_bytes());
            out.extend_from_slice(bytes);
        }
        None => out.extend_from_slice(&(-1i32).to_be_bytes()),
    }
}

fn begin_value(out: &mut Vec<u8>) -> usize {
    out.extend_from_slice(&[0; 4]);
    out.len()
}

fn end_value(start: usize, out: &mut [u8]) {
    let len = (out.len() - start) as i32;
    out[start - 4..start].copy_from_slice(&len.to_be_bytes());
}

/// Appends the live cells of a collection or user type as one value.
async fn write_collection(ty: &CqlType, cells: &[Cell<'_>], out: &mut Vec<u8>, pace: &impl Pace) {
    let start = begin_value(out);
    match ty {
        CqlType::Udt(user_type) => {
            let mut cells = cells.iter().peekable();
            for field in 0..user_type.fields.len() as u16 {
                let value = cells.next_if(|cell| cell.path == Some(&field.to_be_bytes()[..])).map(|cell| cell.value);
                write_value(value, out);
            }
        }
        _ => {
            out.extend_from_slice(&(cells.len() as i32).to_be_bytes());
            for (n, cell) in cells.iter().enumerate() {
                pace.after(n).await;
                match ty {
                    CqlType::Set { .. } => write_value(cell.path, out),
                    CqlType::Map { .. } => {
                        write_value(cell.path, out);
                        write_value(Some(cell.value), out);
                    }
                    _ => write_value(Some(cell.value), out),
                }
            }
        }
    }
    end_value(start, out);
}
