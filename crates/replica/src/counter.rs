//! Counter updates: turns increments into new states of this node's counter shards.
//!
//! A request has increments. The node stores the sum of its increments so far (its counter shard).
//! So each update reads first, under its partition's lock. The commitlog gets the new state, under
//! this node's counter id, so replay counts no update twice. The read must find all that was stored
//! under that id. So the server takes a new id at each start after a possible loss
//! ([`Replica::set_counter_id`]).
//!
//! The clock of a counter shard follows the time. A counter that starts again after its row was
//! deleted has a higher clock than the deleted one, wherever the two are merged. Deletions in
//! counter tables take this path too, so that none falls between the read and the write of an
//! update.

use crate::error::ReplicaError;
use crate::replica::Replica;
use crate::request::Context;
use engine::{ReadOptions, Reader};
use model::compact::{Cover, live_cells};
use model::counter::{self, Shard};
use model::fragment::Fragment;
use model::key::{Clustering, DecoratedKey};
use model::mutation::{Mutation, MutationBuilder, Parts};
use model::range::{PartitionRange, RowRange, Slice};
use model::row::{Cell, Row, RowBuilder, State};
use model::time::stored_seconds;
use model::{ColumnId, CounterId, TableId, TableSchema};
use rt::hash::HashMap;
use std::cell;
use std::rc::Rc;
use uuid::Uuid;

/// The clock for counter shards.
#[derive(Default)]
pub(crate) struct CounterClock(cell::Cell<i64>);

impl CounterClock {
    /// The time in microseconds, and always higher than the last one.
    fn next(&self) -> i64 {
        let now = rt::time::wall_micros().max(self.0.get() + 1);
        self.0.set(now);
        now
    }
}

/// The id of a cell in its partition: the clustering key of its row as the update has it (none: the
/// static row) and the column.
type CellId = (Option<Clustering>, ColumnId);

impl Replica {
    /// The id under which this node counts.
    pub fn counter_id(&self) -> CounterId {
        self.counter_id.get()
    }

    /// The id under which this node counts in the tablet of a partition.
    fn counter_id_in(&self, table: TableId, key: &DecoratedKey) -> CounterId {
        let own = self.counter_id.get();
        match self.engine.tablet_counter_id(table, key) {
            Some(of_tablet) => CounterId(Uuid::from_u128(own.0.as_u128() ^ of_tablet.as_u128())),
            None => own,
        }
    }

    /// Sets the counter id of this node. `id` must be new, or all data that was ever stored under
    /// it must be on this node. Without this call the id is new.
    pub fn set_counter_id(&self, id: CounterId) {
        self.counter_id.set(id);
    }

    /// Computes the new state from a mutation with increments and the stored state. The caller must
    /// hold the partition's lock.
    pub(crate) async fn update_counter(
        &self,
        mutation: &Mutation,
        key: &DecoratedKey,
        context: &Context,
    ) -> Result<Mutation, ReplicaError> {
        let schema = self.engine.schema(mutation.table()).ok_or(ReplicaError::NoSuchTable)?;
        if !schema.is_counter() {
            return Err(ReplicaError::Rejected("counter updates need a counter table".to_owned()));
        }
        let now = self.counter_clock.next();
        let own = self.counter_id_in(mutation.table(), key);
        context.trace("Reading the counters before they are changed");
        let own_shards = match updated_rows(mutation.parts()) {
            Some(slice) => self.own_shards(&schema, key, slice, own, now, context).await?,
            None => HashMap::default(),
        };
        new_state(&schema, mutation.parts(), mutation, &own_shards, own, now)
    }

    /// Reads this node's counter shards in the rows of `slice`.
    async fn own_shards(
        &self,
        schema: &TableSchema,
        key: &DecoratedKey,
        slice: Slice,
        own: CounterId,
        now: i64,
        context: &Context,
    ) -> Result<HashMap<CellId, Shard>, ReplicaError> {
        let _permit = self.permit(context).await?;
        let class = rt::fs::IoClass::of(context.class.group());
        let options = ReadOptions { class, fill_cache: true, ..ReadOptions::default() };
        let slice = Rc::new(slice);
        let reader = self.engine.reader(schema.id, PartitionRange::singular(key), slice.clone(), options);
        let mut reader: Reader = reader.map_err(|_| ReplicaError::NoSuchTable)?;
        let seconds = stored_seconds(now.div_euclid(1_000_000));
        let mut found = HashMap::default();
        let mut cover = Cover::default();
        let mut keep = |row: &Row, place: Option<&Clustering>, cover| {
            for cell in live_cells(row, cover, seconds) {
                if let Some(shard) = counter::shard_of(cell.value, own) {
                    found.insert((place.cloned(), cell.column), shard);
                }
            }
        };
        // The stored key of a row can have other bytes than the update's: the decimals 1 and 1.0
        // are one row.
        let updated = |row: &Clustering| {
            let at = slice.rows.partition_point(|range| range.end.cmp_row(&schema.order, row).is_lt());
            let range = slice.rows.get(at).filter(|range| range.contains(&schema.order, row));
            range.map_or_else(|| row.clone(), |range| range.start.prefix.clone())
        };
        loop {
            while let Some(fragment) = reader.pop() {
                match fragment {
                    Fragment::PartitionStart { tombstone, .. } => cover.start(tombstone),
                    Fragment::Static(row) => keep(&row, None, cover.static_row()),
                    Fragment::Row { key, row } => keep(&row, Some(&updated(&key)), cover.row()),
                    Fragment::Change { tombstone, .. } => cover.change(tombstone),
                    Fragment::PartitionEnd => {}
                }
            }
            if reader.is_finished() {
                return Ok(found);
            }
            rt::task::maybe_yield().await;
            context.check_wanted()?;
            if !reader.advance().await? {
                return Ok(found);
            }
        }
    }
}

fn has_updates(row: &Row) -> bool {
    row.cells().any(|cell| cell.state == State::Live)
}

/// The rows whose counters a mutation updates. None if it only deletes.
fn updated_rows(parts: Parts<'_>) -> Option<Slice> {
    let static_row = parts.static_row.as_ref().is_some_and(has_updates);
    let rows: Vec<RowRange> =
        parts.rows.filter(|(_, row)| has_updates(row)).map(|(key, _)| RowRange::prefix(key)).collect();
    (static_row || !rows.is_empty()).then_some(Slice { rows, static_row, reversed: false, resume: None })
}

/// The mutation with new states of this node's counter shards in place of the increments.
fn new_state(
    schema: &TableSchema,
    parts: Parts<'_>,
    updates: &Mutation,
    own_shards: &HashMap<CellId, Shard>,
    own: CounterId,
    now: i64,
) -> Result<Mutation, ReplicaError> {
    let mut out = MutationBuilder::new(updates.table(), updates.schema_version(), &parts.key);
    if !parts.tombstone.is_live() {
        out.delete_partition(parts.tombstone);
    }
    for range in parts.range_tombstones {
        out.delete_range(range);
    }
    if let Some(row) = parts.static_row {
        out.static_row(new_row(&row, None, own_shards, own, now)?);
    }
    for (key, row) in parts.rows {
        let row = new_row(&row, Some(&key), own_shards, own, now)?;
        out.row(key, row);
    }
    Ok(out.finish(schema))
}

fn new_row(
    row: &Row,
    key: Option<&Clustering>,
    own_shards: &HashMap<CellId, Shard>,
    own: CounterId,
    now: i64,
) -> Result<Row, ReplicaError> {
    let (marker, deletion, cells) = row.parts();
    let mut out = RowBuilder::new(marker, deletion);
    for cell in cells {
        if cell.state != State::Live {
            out.push(&cell);
            continue;
        }
        let delta = counter::as_update(cell.value);
        let delta = delta.ok_or_else(|| ReplicaError::Rejected("a counter's update has eight bytes".to_owned()))?;
        let before = own_shards.get(&(key.cloned(), cell.column));
        let (clock, count) = before.map_or((now, 0), |before| (now.max(before.clock.saturating_add(1)), before.count));
        let shard = Shard { id: own, clock, count: count.wrapping_add(delta) };
        out.push(&Cell { value: &counter::context(&[shard]), ..cell });
    }
    Ok(out.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_state_continues_the_previous_one() {
        let own = CounterId::from_bytes([7; 16]);
        let column = ColumnId(0);
        let place = (None, column);
        let mut row = RowBuilder::new(None, model::time::Tombstone::LIVE);
        row.push(&Cell::live(column, 5, &counter::update(-2)));
        let row = row.finish();
        let state = |own_shards: &HashMap<CellId, Shard>, now| {
            let row = new_row(&row, None, own_shards, own, now).expect("it is an update");
            let cell = row.cells().next().expect("one cell");
            assert_eq!(cell.timestamp, 5);
            counter::shard_of(cell.value, own).expect("this node has counted")
        };
        let mut own_shards = HashMap::default();
        assert_eq!(state(&own_shards, 1_000), Shard { id: own, clock: 1_000, count: -2 });
        own_shards.insert(place, Shard { id: own, clock: 2_000, count: 40 });
        assert_eq!(state(&own_shards, 1_000), Shard { id: own, clock: 2_001, count: 38 }, "clocks never go back");
        assert_eq!(state(&own_shards, 3_000), Shard { id: own, clock: 3_000, count: 38 });
    }

    #[test]
    fn only_updates_are_taken() {
        let mut row = RowBuilder::new(None, model::time::Tombstone::LIVE);
        row.push(&Cell::live(ColumnId(0), 5, &counter::context(&[])));
        let made = new_row(&row.finish(), None, &HashMap::default(), CounterId::from_bytes([7; 16]), 1);
        assert!(matches!(made, Err(ReplicaError::Rejected(_))));
    }
}
