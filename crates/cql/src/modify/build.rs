//! From a planned statement and its values to mutations.
//!
//! Statements whose operations each make one cell write their row in one pass, without collecting cells. List elements get time
//! UUIDs as paths: those appended grow, those prepended run backwards from a fixed time, so that order is that of the paths.

use super::operation::{Change, Operation};
use super::read_first::Prior;
use super::{Deletion, Modify, Stamp};
use crate::error::Error;
use crate::restrictions::{Partitions, Rows};
use crate::term::{Env, Term, Val};
use bytes::Bytes;
use model::counter;
use model::id::ColumnId;
use model::key::{self, DecoratedKey};
use model::mutation::{MutationBuilder, RangeTombstone};
use model::row::{self, Cell, Marker, Row, RowBuilder};
use model::time::Tombstone;
use model::types::{CqlType, ValueError, collection, compare};
use smallvec::SmallVec;
use std::cmp::Ordering;

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
        env: Env<'_>,
        stamp: &Stamp,
        prior: &Prior,
    ) -> Result<(), Error> {
        if self.deletion == Deletion::Partitions {
            mutation.delete_partition(stamp.tombstone());
            return Ok(());
        }
        if !self.statics.is_empty() {
            let row = self.row(&self.statics, None, env, stamp, prior.of(key, &key::Clustering::EMPTY))?;
            if !row.is_empty() {
                mutation.static_row(&self.schema, row);
            }
        }
        match (self.deletion, rows) {
            (Deletion::Rows, Rows::Keys(keys)) => {
                for row_key in keys {
                    mutation.row(row_key.clone(), RowBuilder::new(None, stamp.tombstone()).finish());
                }
            }
            (Deletion::Ranges, Rows::Ranges(ranges)) => {
                for range in ranges {
                    let (start, end) = (range.start.clone(), range.end.clone());
                    mutation.delete_range(RangeTombstone { start, end, tombstone: stamp.tombstone() });
                }
            }
            (_, Rows::Keys(keys)) if self.marker || !self.operations.is_empty() => {
                let marker = self.marker.then(|| stamp.marker());
                for row_key in keys {
                    let row = self.row(&self.operations, marker, env, stamp, prior.of(key, row_key))?;
                    if !row.is_empty() {
                        mutation.row(row_key.clone(), row);
                    }
                }
            }
            _ => {}
        }
        Ok(())
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
            let mut cells = Cells { stamp, out: Vec::new() };
            for operation in operations {
                let elements = prior.and_then(|prior| prior.iter().find(|(id, _)| *id == operation.column));
                cells.apply(operation, env, elements.map(|(_, elements)| &elements[..]))?;
            }
            let cells = cells.out.iter().map(OwnedCell::as_cell).collect();
            return Ok(row::build(&self.schema, marker, Tombstone::LIVE, cells));
        }
        let mut row = RowBuilder::append_to(Vec::with_capacity(64 + 48 * operations.len()), marker, Tombstone::LIVE);
        for operation in operations {
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

/// A cell that owns its bytes.
struct OwnedCell {
    cell: Cell<'static>,
    path: Option<Bytes>,
    value: Bytes,
}

impl OwnedCell {
    fn as_cell(&self) -> Cell<'_> {
        Cell { path: self.path.as_deref(), value: &self.value, ..self.cell }
    }
}

/// Gathers the cells of one row.
struct Cells<'a> {
    stamp: &'a Stamp,
    out: Vec<OwnedCell>,
}

fn wrong(error: ValueError) -> Error {
    Error::invalid(error.to_string())
}

impl Cells<'_> {
    fn live(&mut self, column: ColumnId, path: Option<Bytes>, value: Bytes) {
        self.out.push(OwnedCell { cell: self.stamp.live(column, &[]), path, value });
    }

    fn dead(&mut self, column: ColumnId, path: Option<Bytes>) {
        self.out.push(OwnedCell { cell: self.stamp.dead(column), path, value: Bytes::new() });
    }

    fn delete_all(&mut self, column: ColumnId, by: Tombstone) {
        self.out.push(OwnedCell { cell: Cell::complex_deletion(column, by), path: None, value: Bytes::new() });
    }

    /// `prior`: the list's elements as they are, if the operation reads first and the row is there.
    fn apply(&mut self, operation: &Operation, env: Env<'_>, prior: Option<&[u8]>) -> Result<(), Error> {
        let column = operation.column;
        let multi_cell = operation.ty.is_multi_cell();
        let given = |term: &Term| -> Result<Option<Option<Bytes>>, Error> {
            let value = term.evaluate(env)?;
            Ok(if value.is_unset() { None } else { Some(value.into_bytes()) })
        };
        match &operation.change {
            Change::Set(term) => {
                let Some(value) = given(term)? else { return Ok(()) };
                if multi_cell {
                    self.delete_all(column, self.stamp.tombstone_before());
                    return match value {
                        Some(value) => self.elements(column, &operation.ty, &value),
                        None => Ok(()),
                    };
                }
                match value {
                    Some(value) => self.live(column, None, value),
                    None => self.dead(column, None),
                }
            }
            Change::Delete if multi_cell => self.delete_all(column, self.stamp.tombstone()),
            Change::Delete => self.dead(column, None),
            Change::Append(term) | Change::Add(term) => {
                if let Some(Some(value)) = given(term)? {
                    self.elements(column, &operation.ty, &value)?;
                }
            }
            Change::Prepend(term) => {
                if let Some(Some(value)) = given(term)? {
                    let elements: Vec<_> =
                        collection::elements(&value).map_err(wrong)?.collect::<Result<_, _>>().map_err(wrong)?;
                    for element in elements.into_iter().rev() {
                        self.live(column, Some(backward_path()), value.slice_ref(element));
                    }
                }
            }
            Change::Remove(term) => {
                if let Some(Some(value)) = given(term)? {
                    for element in collection::elements(&value).map_err(wrong)? {
                        self.dead(column, Some(value.slice_ref(element.map_err(wrong)?)));
                    }
                }
            }
            Change::Discard(term) => {
                let Some(Some(value)) = given(term)? else { return Ok(()) };
                let CqlType::List { elem, .. } = &operation.ty else { return Ok(()) };
                let unwanted: Vec<_> =
                    collection::elements(&value).map_err(wrong)?.collect::<Result<_, _>>().map_err(wrong)?;
                for (path, element) in elements_of(prior)? {
                    if unwanted.iter().any(|other| compare(elem, other, element) == Ordering::Equal) {
                        self.dead(column, Some(Bytes::copy_from_slice(path)));
                    }
                }
            }
            Change::SetIndex(index, term) => {
                let Some(value) = given(term)? else { return Ok(()) };
                let path = path_at(index, env, prior, "Attempted to set an element on a list which is null")?;
                match value {
                    Some(value) => self.live(column, Some(path), value),
                    None => self.dead(column, Some(path)),
                }
            }
            Change::DeleteIndex(index) => {
                if index.evaluate(env)?.is_unset() {
                    return Ok(());
                }
                let path = path_at(index, env, prior, "Attempted to delete an element from a list which is null")?;
                self.dead(column, Some(path));
            }
            Change::SetKey(key, term) => {
                let key = match given(key)? {
                    Some(Some(key)) => key,
                    Some(None) => return Err(Error::invalid("Invalid null map key")),
                    None => return Err(Error::invalid("Invalid unset map key")),
                };
                let Some(value) = given(term)? else { return Ok(()) };
                match value {
                    Some(value) => self.live(column, Some(key), value),
                    None => self.dead(column, Some(key)),
                }
            }
            Change::DeleteKey(key) => match given(key)? {
                Some(Some(key)) => self.dead(column, Some(key)),
                Some(None) => return Err(Error::invalid("Invalid null value for the key of a deleted element")),
                None => return Err(Error::invalid("Invalid unset value for the key of a deleted element")),
            },
            Change::SetField(field, term) => {
                let Some(value) = given(term)? else { return Ok(()) };
                let path = Some(Bytes::copy_from_slice(&field.to_be_bytes()));
                match value {
                    Some(value) => self.live(column, path, value),
                    None => self.dead(column, path),
                }
            }
            Change::DeleteField(field) => self.dead(column, Some(Bytes::copy_from_slice(&field.to_be_bytes()))),
            Change::Count(term, down) => {
                if let Some(delta) = delta(term, *down, env)? {
                    let before = self.out.iter_mut().find(|other| other.cell.column == column);
                    match before {
                        Some(before) => before.value = counter::merge(&before.value, &counter::update(delta)).into(),
                        None => self.live(column, None, counter::update(delta)),
                    }
                }
            }
        }
        Ok(())
    }

    /// The cells of a whole value of a multi-cell type.
    fn elements(&mut self, column: ColumnId, ty: &CqlType, value: &Bytes) -> Result<(), Error> {
        match ty {
            CqlType::Udt(_) => {
                for (i, field) in collection::fields(value).enumerate() {
                    if let Some(field) = field.map_err(wrong)? {
                        let path = Bytes::copy_from_slice(&(i as u16).to_be_bytes());
                        self.live(column, Some(path), value.slice_ref(field));
                    }
                }
            }
            CqlType::Map { .. } => {
                for pair in collection::pairs(value).map_err(wrong)? {
                    let (k, v) = pair.map_err(wrong)?;
                    self.live(column, Some(value.slice_ref(k)), value.slice_ref(v));
                }
            }
            CqlType::Set { .. } => {
                for element in collection::elements(value).map_err(wrong)? {
                    let element = element.map_err(wrong)?;
                    self.live(column, Some(value.slice_ref(element)), Bytes::new());
                }
            }
            _ => {
                for element in collection::elements(value).map_err(wrong)? {
                    let path = Bytes::copy_from_slice(rt::random::time_uuid().as_bytes());
                    self.live(column, Some(path), value.slice_ref(element.map_err(wrong)?));
                }
            }
        }
        Ok(())
    }
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

/// The path and value of a list's element.
type Element<'a> = (&'a [u8], &'a [u8]);

/// The elements of a list as they are.
fn elements_of(prior: Option<&[u8]>) -> Result<Vec<Element<'_>>, Error> {
    let Some(prior) = prior else { return Ok(Vec::new()) };
    collection::pairs(prior).map_err(wrong)?.collect::<Result<_, _>>().map_err(wrong)
}

fn path_at(index: &Term, env: Env<'_>, prior: Option<&[u8]>, none: &str) -> Result<Bytes, Error> {
    let index = match index.evaluate(env)? {
        Val::Null => return Err(Error::invalid("Invalid null value for list index")),
        Val::Unset => return Err(Error::invalid("Invalid unset value for list index")),
        value => value.as_slice().and_then(|bytes| bytes.try_into().ok()).map(i32::from_be_bytes),
    };
    let index = index.ok_or_else(|| Error::invalid("Invalid list index"))?;
    let elements = elements_of(prior)?;
    if elements.is_empty() {
        return Err(Error::invalid(none));
    }
    let element = usize::try_from(index).ok().and_then(|index| elements.get(index));
    match element {
        Some((path, _)) => Ok(Bytes::copy_from_slice(path)),
        None => Err(Error::invalid(format!("List index {index} out of bound, list has size {}", elements.len()))),
    }
}

/// 2010-01-01 in ticks of 100 ns since 1582: prepended elements count backwards from here, appended ones lie after it.
const BACKWARD_FROM: u64 = 0x01B2_1DD2_1381_4000 + 1_262_304_000_000 * 10_000;

/// A path before all paths of the list so far: a time UUID as far before the fixed time as now is after it.
fn backward_path() -> Bytes {
    let mut bytes = rt::random::time_uuid().into_bytes();
    let high = u64::from_be_bytes(bytes[..8].try_into().expect("a UUID has 16 bytes"));
    let ticks = (high & 0x0fff) << 48 | (high >> 16 & 0xffff) << 32 | high >> 32;
    let mirrored = (2 * BACKWARD_FROM).saturating_sub(ticks);
    let high = (mirrored & 0xffff_ffff) << 32 | (mirrored >> 32 & 0xffff) << 16 | 0x1000 | (mirrored >> 48 & 0x0fff);
    bytes[..8].copy_from_slice(&high.to_be_bytes());
    Bytes::copy_from_slice(&bytes)
}
