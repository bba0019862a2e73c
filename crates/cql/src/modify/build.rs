//! From a planned statement and its values to mutations.
//!
//! Statements whose operations each make one cell write their row in one pass, without collecting cells. List elements get time
//! UUIDs as paths: those appended grow, those prepended run backwards from a fixed time, so that order is that of the paths.

use super::operation::{Change, Operation};
use super::read_first::Prior;
use super::{Deletion, Modify, Room, Stamp};
use crate::api::BoundValue;
use crate::error::Error;
use crate::restrictions::{Partitions, Rows};
use crate::term::{Env, Term, Val};
use bytes::Bytes;
use model::counter;
use model::id::ColumnId;
use model::key::{self, DecoratedKey};
use model::mutation::{MutationBuilder, RangeTombstone};
use model::row::{self, Cell, Marker, Row, RowBuilder};
use model::schema::TableSchema;
use model::time::Tombstone;
use model::types::{CqlType, ValueError, collection, compare};
use smallvec::SmallVec;

/// What a statement is evaluated with.
#[derive(Clone, Copy)]
pub struct Inputs<'a> {
    /// The values.
    pub env: Env<'a>,
    /// The time.
    pub stamp: &'a Stamp,
    /// What was read of the partition, if anything.
    pub prior: Option<&'a Prior>,
}

impl Stamp {
    fn tombstone(&self) -> Tombstone {
        Tombstone::new(self.timestamp, self.now)
    }

    /// The deletion of what was there before, which spares what this very write puts in its place.
    fn tombstone_before(&self) -> Tombstone {
        Tombstone::new(self.timestamp.saturating_sub(1).max(i64::MIN + 1), self.now)
    }

    fn marker(&self) -> Marker {
        if self.ttl == 0 {
            Marker::new(self.timestamp)
        } else {
            Marker::expiring(self.timestamp, self.ttl, self.expiry)
        }
    }

    #[inline]
    fn live<'v>(&self, column: ColumnId, value: &'v [u8]) -> Cell<'v> {
        let cell = Cell::live(column, self.timestamp, value);
        if self.ttl == 0 { cell } else { cell.with_ttl(self.ttl, self.expiry) }
    }

    fn dead(&self, column: ColumnId) -> Cell<'static> {
        Cell::dead(column, self.timestamp, self.now)
    }

    /// The error for a mutation that takes so many bytes, or more.
    #[cold]
    fn too_large(&self, bytes: usize) -> Error {
        Error::invalid(format!(
            "a mutation of at least {bytes} bytes is larger than the limit of {}",
            self.mutation_bytes
        ))
    }
}

impl Modify {
    /// The partitions written, which are never a range.
    pub fn keys(&self, env: Env<'_>) -> Result<SmallVec<[DecoratedKey; 1]>, Error> {
        match self.partition.evaluate(&self.schema, env, true)? {
            Partitions::Keys(keys) => Ok(keys),
            Partitions::Range(_) => Err(Error::invalid("A write needs the whole partition key")),
        }
    }

    /// The rows written in each partition.
    pub fn rows(&self, env: Env<'_>) -> Result<Rows, Error> {
        self.clustering.evaluate(&self.schema, env, true)
    }

    /// Adds what the statement does to one partition.
    pub fn fill(
        &self,
        mutation: &mut MutationBuilder,
        key: &DecoratedKey,
        rows: &Rows,
        inputs: &Inputs<'_>,
        room: &mut Room,
    ) -> Result<(), Error> {
        let Inputs { env, stamp, prior } = *inputs;
        room.take(key.key.len())?;
        if self.deletion == Deletion::Partitions {
            mutation.delete_partition(stamp.tombstone());
            return Ok(());
        }
        let mut bytes = 0;
        if !self.statics.is_empty() {
            let prior = prior.and_then(|prior| prior.of(&key::Clustering::EMPTY));
            let row = self.row(&self.statics, None, env, stamp, prior)?;
            bytes += row.len();
            room.take(row.len())?;
            if !row.is_empty() {
                mutation.static_row(row);
            }
        }
        match (self.deletion, rows) {
            (Deletion::Rows, Rows::Keys(keys)) => {
                for row_key in keys {
                    room.take(row_key.0.len())?;
                    mutation.row(row_key.clone(), RowBuilder::new(None, stamp.tombstone()).finish());
                }
            }
            (Deletion::Ranges, Rows::Ranges(ranges)) => {
                for range in ranges {
                    let (start, end) = (range.start.clone(), range.end.clone());
                    room.take(start.prefix.0.len() + end.prefix.0.len())?;
                    mutation.delete_range(RangeTombstone { start, end, tombstone: stamp.tombstone() });
                }
            }
            (_, Rows::Keys(keys)) if self.marker || !self.operations.is_empty() => {
                let marker = self.marker.then(|| stamp.marker());
                for row_key in keys {
                    let prior = prior.and_then(|prior| prior.of(row_key));
                    let row = self.row(&self.operations, marker, env, stamp, prior)?;
                    bytes += row.len();
                    room.take(row_key.0.len() + row.len())?;
                    if bytes > stamp.mutation_bytes {
                        return Err(stamp.too_large(bytes));
                    }
                    if !row.is_empty() {
                        mutation.row(row_key.clone(), row);
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Whether what the operation writes is dead already: an earlier column of that name was dropped later than this write. It must not
    /// be read from the memtable either, since no sstable would have it.
    fn is_dead(&self, operation: &Operation, stamp: &Stamp) -> bool {
        self.schema.dead_until(operation.column).is_some_and(|until| stamp.timestamp <= until)
    }

    fn row(
        &self,
        operations: &[Operation],
        marker: Option<Marker>,
        env: Env<'_>,
        stamp: &Stamp,
        prior: Option<&[(ColumnId, Bytes)]>,
    ) -> Result<Row, Error> {
        if !self.simple {
            let mut cells = Cells::new(stamp);
            for operation in operations {
                if self.is_dead(operation, stamp) {
                    continue;
                }
                let elements = prior.and_then(|prior| prior.iter().find(|(id, _)| *id == operation.column));
                cells.apply(operation, env, elements.map(|(_, elements)| &elements[..]))?;
            }
            return Ok(cells.into_row(&self.schema, marker));
        }
        let mut row = RowBuilder::append_to(Vec::with_capacity(64 + 48 * operations.len()), marker, Tombstone::LIVE);
        for operation in operations {
            if self.is_dead(operation, stamp) {
                continue;
            }
            let value = match &operation.change {
                Change::Set(term) => term.evaluate(env)?,
                _ => Val::Null,
            };
            match &value {
                Val::Unset => {}
                Val::Null => row.push(&stamp.dead(operation.column)),
                Val::Shared(bytes) => row.push(&stamp.live(operation.column, bytes)),
                Val::Owned(bytes) => row.push(&stamp.live(operation.column, bytes)),
            }
        }
        Ok(row.finish())
    }
}

/// A path or value: bytes from one place to another of the generated ones or of a value.
#[derive(Clone, Copy)]
struct Part {
    /// The number of the value; 0: the generated bytes; 1 and up: the values held.
    of: u32,
    start: u32,
    end: u32,
}

impl Part {
    const EMPTY: Part = Part { of: 0, start: 0, end: 0 };
}

/// What a cell is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Live,
    Dead,
    /// The deletion of all cells of a column that are older than the write.
    AllBefore,
    /// The deletion of all cells of a column.
    All,
}

/// A cell before the row is built. A collection has many: each is small, and borrows from the value that it is an element of.
struct Gathered {
    column: ColumnId,
    kind: Kind,
    path: Option<Part>,
    value: Part,
}

/// The path and value of a list's element.
type Element<'a> = (&'a [u8], &'a [u8]);

/// Gathers the cells of one row.
struct Cells<'a> {
    stamp: &'a Stamp,
    out: Vec<Gathered>,
    /// The values whose bytes cells are made of.
    held: SmallVec<[Bytes; 4]>,
    /// Paths that are in no value: those of list elements and of fields.
    generated: Vec<u8>,
    /// The elements of the list that was looked into last, as they were read.
    list: Option<(ColumnId, Vec<Element<'a>>)>,
    /// What the elements of collections take in the mutation, at least.
    bytes: usize,
}

fn wrong(error: ValueError) -> Error {
    Error::invalid(error.to_string())
}

/// The bytes of the path of a list's element, a time UUID.
const LIST_PATH: usize = 16;

/// What the elements of a value become.
#[derive(Clone, Copy)]
enum Shape {
    /// Cells with paths of their own.
    List,
    /// Cells, or deletions, with the elements as paths.
    Set,
    /// Cells with the keys as paths.
    Map,
    /// At most as many cells as a user type has fields.
    Other,
}

impl Shape {
    fn of(ty: &CqlType) -> Shape {
        match ty {
            CqlType::List { .. } => Shape::List,
            CqlType::Set { .. } => Shape::Set,
            CqlType::Map { .. } => Shape::Map,
            _ => Shape::Other,
        }
    }
}

impl<'a> Cells<'a> {
    fn new(stamp: &'a Stamp) -> Self {
        Cells { stamp, out: Vec::new(), held: SmallVec::new(), generated: Vec::new(), list: None, bytes: 0 }
    }

    /// The row of these cells.
    fn into_row(mut self, schema: &TableSchema, marker: Option<Marker>) -> Row {
        let mut out = std::mem::take(&mut self.out);
        row::build_from(schema, marker, Tombstone::LIVE, &mut out, |gathered| self.cell(gathered))
    }

    fn cell(&self, gathered: &Gathered) -> Cell<'_> {
        let (stamp, column) = (self.stamp, gathered.column);
        let cell = match gathered.kind {
            Kind::Live => stamp.live(column, self.bytes_of(gathered.value)),
            Kind::Dead => stamp.dead(column),
            Kind::AllBefore => Cell::complex_deletion(column, stamp.tombstone_before()),
            Kind::All => Cell::complex_deletion(column, stamp.tombstone()),
        };
        Cell { path: gathered.path.map(|path| self.bytes_of(path)), ..cell }
    }

    fn bytes_of(&self, part: Part) -> &[u8] {
        let all = match part.of.checked_sub(1) {
            None => &self.generated[..],
            Some(number) => &self.held[number as usize][..],
        };
        &all[part.start as usize..part.end as usize]
    }

    fn push(&mut self, column: ColumnId, kind: Kind, path: Option<Part>, value: Part) {
        self.out.push(Gathered { column, kind, path, value });
    }

    /// Holds a value, of which cells may have parts; all of it at first.
    fn hold(&mut self, value: Bytes) -> Part {
        let end = value.len() as u32;
        self.held.push(value);
        Part { of: self.held.len() as u32, start: 0, end }
    }

    /// A path that is in no value.
    fn generate(&mut self, path: &[u8]) -> Part {
        let start = self.generated.len() as u32;
        self.generated.extend_from_slice(path);
        Part { of: 0, start, end: self.generated.len() as u32 }
    }

    /// A value, or a deletion where there is none.
    fn put(&mut self, column: ColumnId, path: Option<Part>, value: Option<Bytes>) {
        match value {
            Some(value) => {
                let value = self.hold(value);
                self.push(column, Kind::Live, path, value);
            }
            None => self.push(column, Kind::Dead, path, Part::EMPTY),
        }
    }

    /// The value of a term for a collection whose elements become cells; none if it is unset or null. A value of so many elements that
    /// the mutation would be too large is refused before anything is made of it: cells take more memory than the elements they are of.
    fn collection(&mut self, term: &Term, shape: Shape, env: Env<'_>) -> Result<Given, Error> {
        if let Term::Variable(number) = term
            && let Some(BoundValue::Value(bytes)) = env.values.get(*number as usize)
        {
            self.check(shape, bytes)?;
        }
        let value = term.evaluate(env)?;
        if value.is_unset() {
            return Ok(Given::Unset);
        }
        let Some(value) = value.into_bytes() else { return Ok(Given::Null) };
        self.bytes = self.check(shape, &value)?;
        Ok(Given::Value(value))
    }

    /// What all elements take, at least, with those of this value; an error if that is more than a mutation may take.
    fn check(&self, shape: Shape, value: &[u8]) -> Result<usize, Error> {
        let (per_entry, path) = match shape {
            Shape::List => (1, LIST_PATH),
            Shape::Set => (1, 0),
            Shape::Map => (2, 0),
            Shape::Other => return Ok(self.bytes),
        };
        // A value that is shorter than the lengths of its elements alone is malformed: its evaluation refuses it.
        let count = collection::count(value).unwrap_or(0);
        let Some(payload) = value.len().checked_sub(4 + 4 * per_entry * count) else { return Ok(self.bytes) };
        let bytes = self.bytes + payload + count * (row::MIN_ELEMENT_HEAD + path);
        if bytes > self.stamp.mutation_bytes {
            return Err(self.stamp.too_large(bytes));
        }
        Ok(bytes)
    }

    /// The elements of a column's list as they are.
    fn list(&mut self, column: ColumnId, prior: Option<&'a [u8]>) -> Result<&[Element<'a>], Error> {
        if self.list.as_ref().is_none_or(|(known, _)| *known != column) {
            let elements = match prior {
                Some(prior) => collection::pairs(prior).map_err(wrong)?.collect::<Result<_, _>>().map_err(wrong)?,
                None => Vec::new(),
            };
            self.list = Some((column, elements));
        }
        Ok(self.list.as_ref().map_or(&[], |(_, elements)| elements))
    }

    /// The path of the element at an index of a column's list.
    fn path_at(
        &mut self,
        column: ColumnId,
        index: &Term,
        env: Env<'_>,
        prior: Option<&'a [u8]>,
        none: &str,
    ) -> Result<Part, Error> {
        let index = match index.evaluate(env)? {
            Val::Null => return Err(Error::invalid("Invalid null value for list index")),
            Val::Unset => return Err(Error::invalid("Invalid unset value for list index")),
            value => value.as_slice().and_then(|bytes| bytes.try_into().ok()).map(i32::from_be_bytes),
        };
        let index = index.ok_or_else(|| Error::invalid("Invalid list index"))?;
        let elements = self.list(column, prior)?;
        if elements.is_empty() {
            return Err(Error::invalid(none));
        }
        let size = elements.len();
        match usize::try_from(index).ok().and_then(|index| elements.get(index)).copied() {
            Some((path, _)) => Ok(self.generate(path)),
            None => Err(Error::invalid(format!("List index {index} out of bound, list has size {size}"))),
        }
    }

    /// `prior`: the list's elements as they are, if the operation reads first and the row is there.
    fn apply(&mut self, operation: &Operation, env: Env<'_>, prior: Option<&'a [u8]>) -> Result<(), Error> {
        let (column, ty) = (operation.column, &operation.ty);
        let multi_cell = ty.is_multi_cell();
        let given = |term: &Term| -> Result<Option<Option<Bytes>>, Error> {
            let value = term.evaluate(env)?;
            Ok(if value.is_unset() { None } else { Some(value.into_bytes()) })
        };
        match &operation.change {
            Change::Set(term) if multi_cell => {
                let value = self.collection(term, Shape::of(ty), env)?;
                if !matches!(value, Given::Unset) {
                    self.push(column, Kind::AllBefore, None, Part::EMPTY);
                }
                if let Given::Value(value) = value {
                    self.elements(column, ty, value)?;
                }
            }
            Change::Set(term) => {
                let Some(value) = given(term)? else { return Ok(()) };
                self.put(column, None, value);
            }
            Change::Delete if multi_cell => self.push(column, Kind::All, None, Part::EMPTY),
            Change::Delete => self.put(column, None, None),
            Change::Append(term) | Change::Add(term) => {
                if let Given::Value(value) = self.collection(term, Shape::of(ty), env)? {
                    self.elements(column, ty, value)?;
                }
            }
            Change::Prepend(term) => {
                if let Given::Value(value) = self.collection(term, Shape::List, env)? {
                    let first = self.out.len();
                    let all = self.hold(value.clone());
                    for element in collection::elements(&value).map_err(wrong)? {
                        let element = part(all, &value, element.map_err(wrong)?);
                        self.push(column, Kind::Live, None, element);
                    }
                    // The last element gets its path first, since each path is before those made so far.
                    for at in (first..self.out.len()).rev() {
                        self.out[at].path = Some(self.generate(&backward_path()));
                    }
                }
            }
            Change::Remove(term) => {
                // A map's keys are given as a set, too.
                if let Given::Value(value) = self.collection(term, Shape::Set, env)? {
                    let all = self.hold(value.clone());
                    for element in collection::elements(&value).map_err(wrong)? {
                        let element = part(all, &value, element.map_err(wrong)?);
                        self.push(column, Kind::Dead, Some(element), Part::EMPTY);
                    }
                }
            }
            Change::Discard(term) => {
                let Some(Some(value)) = given(term)? else { return Ok(()) };
                let CqlType::List { elem, .. } = ty else { return Ok(()) };
                let mut unwanted: Vec<_> =
                    collection::elements(&value).map_err(wrong)?.collect::<Result<_, _>>().map_err(wrong)?;
                unwanted.sort_unstable_by(|a, b| compare(elem, a, b));
                for at in 0..self.list(column, prior)?.len() {
                    let (path, element) = self.list(column, prior)?[at];
                    if unwanted.binary_search_by(|other| compare(elem, other, element)).is_ok() {
                        let path = self.generate(path);
                        self.push(column, Kind::Dead, Some(path), Part::EMPTY);
                    }
                }
            }
            Change::SetIndex(index, term) => {
                let Some(value) = given(term)? else { return Ok(()) };
                let none = "Attempted to set an element on a list which is null";
                let path = self.path_at(column, index, env, prior, none)?;
                self.put(column, Some(path), value);
            }
            Change::DeleteIndex(index) => {
                if index.evaluate(env)?.is_unset() {
                    return Ok(());
                }
                let none = "Attempted to delete an element from a list which is null";
                let path = self.path_at(column, index, env, prior, none)?;
                self.put(column, Some(path), None);
            }
            Change::SetKey(key, term) => {
                let key = match given(key)? {
                    Some(Some(key)) => key,
                    Some(None) => return Err(Error::invalid("Invalid null map key")),
                    None => return Err(Error::invalid("Invalid unset map key")),
                };
                let Some(value) = given(term)? else { return Ok(()) };
                let path = self.hold(key);
                self.put(column, Some(path), value);
            }
            Change::DeleteKey(key) => match given(key)? {
                Some(Some(key)) => {
                    let path = self.hold(key);
                    self.put(column, Some(path), None);
                }
                Some(None) => return Err(Error::invalid("Invalid null value for the key of a deleted element")),
                None => return Err(Error::invalid("Invalid unset value for the key of a deleted element")),
            },
            Change::SetField(field, term) => {
                let Some(value) = given(term)? else { return Ok(()) };
                let path = self.generate(&field.to_be_bytes());
                self.put(column, Some(path), value);
            }
            Change::DeleteField(field) => {
                let path = self.generate(&field.to_be_bytes());
                self.put(column, Some(path), None);
            }
            Change::Count(term, down) => {
                if let Some(delta) = delta(term, *down, env)? {
                    let before = self.out.iter().position(|other| other.column == column);
                    match before {
                        // A counter's one cell has a held value.
                        Some(before) => {
                            let value = &self.held[self.out[before].value.of as usize - 1];
                            let sum = counter::merge(value, &counter::update(delta));
                            self.out[before].value = self.hold(sum.into());
                        }
                        None => self.put(column, None, Some(counter::update(delta))),
                    }
                }
            }
        }
        Ok(())
    }

    /// The cells of a whole value of a multi-cell type.
    fn elements(&mut self, column: ColumnId, ty: &CqlType, value: Bytes) -> Result<(), Error> {
        let all = self.hold(value.clone());
        if !matches!(ty, CqlType::Udt(_)) {
            self.out.reserve(collection::count(&value).map_err(wrong)?);
        }
        match ty {
            CqlType::Udt(_) => {
                for (i, field) in collection::fields(&value).enumerate() {
                    if let Some(field) = field.map_err(wrong)? {
                        let path = self.generate(&(i as u16).to_be_bytes());
                        self.push(column, Kind::Live, Some(path), part(all, &value, field));
                    }
                }
            }
            CqlType::Map { .. } => {
                for pair in collection::pairs(&value).map_err(wrong)? {
                    let (k, v) = pair.map_err(wrong)?;
                    self.push(column, Kind::Live, Some(part(all, &value, k)), part(all, &value, v));
                }
            }
            CqlType::Set { .. } => {
                for element in collection::elements(&value).map_err(wrong)? {
                    let element = part(all, &value, element.map_err(wrong)?);
                    self.push(column, Kind::Live, Some(element), Part::EMPTY);
                }
            }
            _ => {
                for element in collection::elements(&value).map_err(wrong)? {
                    let path = self.generate(rt::random::time_uuid().as_bytes());
                    self.push(column, Kind::Live, Some(path), part(all, &value, element.map_err(wrong)?));
                }
            }
        }
        Ok(())
    }
}

/// What a term for a collection evaluates to.
enum Given {
    Unset,
    Null,
    Value(Bytes),
}

/// The part of a held value that a slice of it is. An empty slice may lie anywhere.
fn part(all: Part, value: &[u8], slice: &[u8]) -> Part {
    if slice.is_empty() {
        return Part::EMPTY;
    }
    let start = (slice.as_ptr().addr() - value.as_ptr().addr()) as u32;
    Part { of: all.of, start, end: start + slice.len() as u32 }
}

/// What a counter is changed by; none if that was not set.
fn delta(term: &Term, down: bool, env: Env<'_>) -> Result<Option<i64>, Error> {
    let value = match term.evaluate(env)? {
        Val::Unset => return Ok(None),
        Val::Null => {
            let what = if down { "decrement" } else { "increment" };
            return Err(Error::invalid(format!("Invalid null value for counter {what}")));
        }
        value => value.as_slice().and_then(counter::as_update),
    };
    let delta = value.ok_or_else(|| Error::invalid("Invalid value for a counter: 8 bytes are expected"))?;
    if !down {
        return Ok(Some(delta));
    }
    let overflows = || {
        Error::invalid(format!(
            "The negation of {delta} overflows supported integer precision (signed 8 bytes integer)"
        ))
    };
    delta.checked_neg().map(Some).ok_or_else(overflows)
}

/// 2010-01-01 in ticks of 100 ns since 1582: prepended elements count backwards from here, appended ones lie after it.
const BACKWARD_FROM: u64 = 0x01B2_1DD2_1381_4000 + 1_262_304_000_000 * 10_000;

/// A path before all paths of the list so far: a time UUID as far before the fixed time as now is after it.
fn backward_path() -> [u8; 16] {
    let mut bytes = rt::random::time_uuid().into_bytes();
    let high = u64::from_be_bytes(bytes[..8].try_into().expect("a UUID has 16 bytes"));
    let ticks = (high & 0x0fff) << 48 | (high >> 16 & 0xffff) << 32 | high >> 32;
    let mirrored = (2 * BACKWARD_FROM).saturating_sub(ticks);
    let high = (mirrored & 0xffff_ffff) << 32 | (mirrored >> 32 & 0xffff) << 16 | 0x1000 | (mirrored >> 48 & 0x0fff);
    bytes[..8].copy_from_slice(&high.to_be_bytes());
    bytes
}
