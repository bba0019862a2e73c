//! Builds mutations from a planned statement and its values.
//!
//! If each operation of a statement makes one cell, its row is written in one pass. The cells of
//! other rows are collected first ([`super::cells`]).

use super::cells::Cells;
use super::evaluated::EvaluatedOperations;
use super::operation::{Change, Operation};
use super::read_first::Prior;
use super::{Deletion, Modify, Room, Stamp};
use crate::error::Error;
use crate::restrictions::{Partitions, Rows};
use crate::term::{Env, Val};
use bytes::Bytes;
use model::id::ColumnId;
use model::key::{self, DecoratedKey};
use model::mutation::{Mutation, MutationBuilder, RangeTombstone};
use model::row::{Cell, Marker, Row, RowBuilder};
use model::time::Tombstone;
use smallvec::SmallVec;

/// The inputs for building a mutation.
#[derive(Clone, Copy)]
pub struct Inputs<'a> {
    /// The bound values.
    pub env: Env<'a>,
    /// The timestamp and TTL.
    pub stamp: &'a Stamp,
    /// The data that was read of the partition, if the statement reads first.
    pub prior: Option<&'a Prior>,
    /// The operations, if they are evaluated already.
    pub evaluated: Option<&'a EvaluatedOperations>,
}

impl Stamp {
    pub(super) fn tombstone(&self) -> Tombstone {
        Tombstone::new(self.timestamp, self.now)
    }

    /// The deletion of the previous contents of a collection. Its timestamp is the write's
    /// timestamp minus one, so that it does not delete the new contents. It is live if the write
    /// has the lowest timestamp: nothing lower can exist.
    pub(super) fn tombstone_before(&self) -> Tombstone {
        Tombstone::new(self.timestamp.saturating_sub(1), self.now)
    }

    fn marker(&self) -> Marker {
        if self.ttl == 0 {
            Marker::new(self.timestamp)
        } else {
            Marker::expiring(self.timestamp, self.ttl, self.expiry)
        }
    }

    #[inline]
    pub(super) fn live<'v>(&self, column: ColumnId, value: &'v [u8]) -> Cell<'v> {
        let cell = Cell::live(column, self.timestamp, value);
        if self.ttl == 0 { cell } else { cell.with_ttl(self.ttl, self.expiry) }
    }

    pub(super) fn dead(&self, column: ColumnId) -> Cell<'static> {
        Cell::dead(column, self.timestamp, self.now)
    }

    /// The error for a mutation of at least this many bytes.
    #[cold]
    pub(super) fn too_large(&self, bytes: usize) -> Error {
        Error::invalid(format!(
            "a mutation of at least {bytes} bytes is larger than the limit of {}",
            self.mutation_bytes
        ))
    }
}

impl Modify {
    /// The partitions to write. They are never a range.
    pub fn keys(&self, env: Env<'_>) -> Result<SmallVec<[DecoratedKey; 1]>, Error> {
        match self.partition.evaluate(&self.schema, env, true)? {
            Partitions::Keys(keys) => Ok(keys),
            Partitions::Range(_) => Err(Error::invalid("A write needs the whole partition key")),
        }
    }

    /// The rows to write in each partition.
    pub fn rows(&self, env: Env<'_>) -> Result<Rows, Error> {
        self.clustering.evaluate(&self.schema, env, true)
    }

    /// The mutation of one partition. `None` if the statement changes nothing there.
    #[inline]
    pub fn mutation(
        &self,
        key: &DecoratedKey,
        rows: &Rows,
        inputs: &Inputs<'_>,
        room: &mut Room,
    ) -> Result<Option<Mutation>, Error> {
        let mut mutation = MutationBuilder::new(self.schema.id, self.schema.version, &key.key);
        self.fill(&mut mutation, key, rows, inputs, room)?;
        Ok(if mutation.is_empty() { None } else { Some(mutation.finish(&self.schema)) })
    }

    /// Adds the changes of the statement to the mutation of one partition.
    pub fn fill(
        &self,
        mutation: &mut MutationBuilder,
        key: &DecoratedKey,
        rows: &Rows,
        inputs: &Inputs<'_>,
        room: &mut Room,
    ) -> Result<(), Error> {
        let Inputs { env, stamp, prior, evaluated } = *inputs;
        let (operations, statics) = match evaluated {
            Some(evaluated) => (&evaluated.operations, &evaluated.statics),
            None => (&self.operations, &self.statics),
        };
        room.take(key.key.len())?;
        if self.deletion == Deletion::Partitions {
            mutation.delete_partition(stamp.tombstone());
            return Ok(());
        }
        let mut bytes = 0;
        if !statics.is_empty() {
            let prior = prior.and_then(|prior| prior.of(&key::Clustering::EMPTY, &self.schema.order));
            let row = self.row(statics, None, env, stamp, prior)?;
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
            (_, Rows::Keys(keys)) if self.marker || !operations.is_empty() => {
                let marker = self.marker.then(|| stamp.marker());
                for row_key in keys {
                    let prior = prior.and_then(|prior| prior.of(row_key, &self.schema.order));
                    let row = self.row(operations, marker, env, stamp, prior)?;
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

    /// Whether the operation's cells are dead already, because an earlier column of this name was
    /// dropped later than the write's timestamp. Such cells are left out: the memtable must not
    /// return them, because no sstable would keep them.
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
        // A statement may write the same large value to many columns.
        let mut bytes = 0usize;
        for operation in operations {
            if self.is_dead(operation, stamp) {
                continue;
            }
            let value = match &operation.change {
                Change::Set(term) => term.evaluate(env)?,
                _ => Val::Null,
            };
            bytes += value.as_slice().map_or(0, <[u8]>::len);
            if bytes > stamp.mutation_bytes {
                return Err(stamp.too_large(bytes));
            }
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
