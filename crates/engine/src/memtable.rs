//! A tablet's newest data, in memory: partitions in ring order, of which readers take snapshots.
//!
//! The charged memory is exact enough for a budget: bytes of keys and rows, their places in the
//! trees, their allocations. It is charged to the shard's [`Pool`] until the memtable is flushed.
//! Memory that a reader holds after that is charged to the reader. Nothing here waits or does
//! I/O.

mod arena;
mod chunks;
mod packed;
mod partition;
mod partitions;
mod pool;
mod range_tombstones;
mod slices;
mod source;
mod stored;

pub(crate) use partition::max_of_row;
pub(crate) use pool::{NoRoom, Pool};
pub(crate) use slices::{Slices, Wanted};
pub(crate) use source::MemtableSource;
pub(crate) use stored::Stored;

use crate::commitlog::{Position, shard_of_segment};
use arena::Arena;
use bytes::Bytes;
use chunks::DeferredFree;
use model::Token;
use model::key::{Clustering, DecoratedKey, RingCut};
use model::mutation::Mutation;
use model::range::PartitionRange;
use model::row::Row;
use model::schema::TableSchema;
use model::time::Timestamp;
use partition::Partition;
use partitions::Partitions;
use rt::ShardId;
use sstable::LogInterval;
use std::cell::{Cell, OnceCell, RefCell};
use std::rc::Rc;

/// The memory of one reference-counted buffer besides its bytes: the allocator's rounding and the
/// count.
pub(crate) const ALLOCATION: usize = 40;

/// Memtables with more bytes of mutations than this are freed in steps.
const FREED_AT_ONCE: u64 = 512 << 10;

/// The most partitions that are scanned for a least timestamp.
const SCANNED_PARTITIONS: usize = 1_000;

/// The first and last position of a memtable's records in one shard's log. All records of its
/// tablet between them are in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct Interval {
    pub first: Position,
    pub last: Position,
}

impl Interval {
    /// The shard that owns the log.
    pub fn shard(&self) -> ShardId {
        shard_of_segment(self.first.segment)
    }

    /// The least interval that contains both; they are of one shard's log.
    pub fn hull(&self, other: &Interval) -> Interval {
        debug_assert_eq!(self.shard(), other.shard(), "positions of different logs have no order");
        Interval { first: self.first.min(other.first), last: self.last.max(other.last) }
    }

    /// As sstables store it. Segment ids are positive there too.
    pub fn to_stats(self) -> LogInterval {
        debug_assert!(self.first <= self.last, "an interval of the log has its ends in order");
        let pair = |position: Position| (position.segment as i64, position.offset as i32);
        LogInterval { start: pair(self.first), end: pair(self.last) }
    }

    /// From an sstable; `None` for the interval of another database's log.
    pub fn of_stats(interval: &LogInterval) -> Option<Interval> {
        let position = |(segment, offset): (i64, i32)| {
            Some(Position { segment: u64::try_from(segment).ok()?, offset: u32::try_from(offset).ok()? })
        };
        Some(Interval { first: position(interval.start)?, last: position(interval.end)? })
    }
}

/// See the module.
pub(crate) struct Memtable {
    partitions: RefCell<Partitions>,
    arena: RefCell<Arena>,
    bytes: Cell<usize>,
    /// Bytes of the mutations that came in.
    written: Cell<u64>,
    pool: Rc<Pool>,
    logged: Cell<Option<Interval>>,
    /// It holds mutations that only the logs of earlier runs have.
    needs_old_logs: Cell<bool>,
    /// Set if the table's newest schema lacks columns that it may have cells of.
    flush_schema: OnceCell<Rc<TableSchema>>,
}

impl Memtable {
    /// A memtable of a tablet with this range.
    pub fn new(pool: Rc<Pool>, range: &PartitionRange) -> Rc<Self> {
        Rc::new(Memtable {
            partitions: RefCell::new(Partitions::new(range)),
            arena: RefCell::default(),
            bytes: Cell::new(0),
            written: Cell::new(0),
            pool,
            logged: Cell::new(None),
            needs_old_logs: Cell::new(false),
            flush_schema: OnceCell::new(),
        })
    }

    /// Merges a mutation into its partition.
    pub fn apply(&self, schema: &TableSchema, key: &DecoratedKey, mutation: &Mutation) {
        debug_assert_eq!(mutation.table(), schema.id, "a mutation is applied to its own table");
        debug_assert_eq!(mutation.key(), key.key, "a mutation is applied to its own partition");
        let parts = mutation.parts();
        let (mut partitions, mut arena) = (self.partitions.borrow_mut(), self.arena.borrow_mut());
        let grew = match partitions.get_mut(key) {
            Some(partition) => partition.apply(&mut arena, schema, parts),
            None => {
                let (partition, grew) = Stored::of(&mut arena, schema, &key.key, parts);
                partitions.insert(key.token, partition);
                grew + partitions::SLOT as isize
            }
        };
        drop((partitions, arena));
        self.written.set(self.written.get() + mutation.as_bytes().len() as u64);
        let bytes = self.bytes.get();
        debug_assert!(bytes.checked_add_signed(grew).is_some(), "a memtable never holds less than nothing");
        let now = bytes.saturating_add_signed(grew);
        self.bytes.set(now);
        self.pool.change(bytes, now);
    }

    /// Extends the log interval to the position of the mutation that was just applied.
    pub fn logged_at(&self, position: Position) {
        let last = self.logged.get().map(|interval| interval.last);
        debug_assert!(last.is_none_or(|last| last <= position), "mutations are applied in the order of the log");
        let first = self.logged.get().map_or(position, |interval| interval.first);
        self.logged.set(Some(Interval { first, last: position }));
    }

    /// The positions in this shard's running log.
    pub fn logged(&self) -> Option<Interval> {
        self.logged.get()
    }

    /// Whether it holds what only the logs of earlier runs have.
    pub fn needs_old_logs(&self) -> bool {
        self.needs_old_logs.get()
    }

    /// Sets whether it holds mutations that only the logs of earlier runs have.
    pub fn set_needs_old_logs(&self, needs: bool) {
        self.needs_old_logs.set(needs);
    }

    /// The schema that it is flushed with, if not with the table's newest one.
    pub fn flush_schema(&self) -> Option<&Rc<TableSchema>> {
        self.flush_schema.get()
    }

    /// Flushes it with this schema, unless an earlier one was set.
    pub fn flush_with(&self, schema: &Rc<TableSchema>) {
        self.flush_schema.get_or_init(|| schema.clone());
    }

    pub fn is_empty(&self) -> bool {
        self.partitions.borrow().is_empty()
    }

    /// Partitions in it.
    pub fn len(&self) -> usize {
        self.partitions.borrow().len()
    }

    /// Memory charged for it.
    pub fn bytes(&self) -> usize {
        self.bytes.get()
    }

    /// Bytes of all mutations applied to it.
    pub fn written(&self) -> u64 {
        self.written.get()
    }

    /// Stops charging its memory after its flush: only readers may still hold it.
    pub fn retire(&self) {
        self.pool.change(self.bytes.replace(0), 0);
    }

    /// The least timestamp of a key; `None` if it does not have the key.
    pub fn min_timestamp_of(&self, key: &DecoratedKey) -> Option<Timestamp> {
        self.partitions.borrow().get(key).map(Stored::min_timestamp)
    }

    /// A lower bound of the timestamps between two keys; `None` if there is nothing.
    pub fn min_timestamp_within(&self, first: &DecoratedKey, last: &DecoratedKey) -> Option<Timestamp> {
        let range = PartitionRange { start: RingCut::before_key(first), end: RingCut::after_key(last) };
        let (mut least, mut seen) = (None, 0);
        self.partitions.borrow().for_each(&range, None, |_, entry| {
            seen += 1;
            let own = if seen > SCANNED_PARTITIONS { Timestamp::MIN } else { entry.min_timestamp() };
            least = Some(least.unwrap_or(Timestamp::MAX).min(own));
            seen <= SCANNED_PARTITIONS
        });
        least
    }

    /// A row of a partition as it is here; without a clustering key, the static row.
    pub fn row(&self, schema: &TableSchema, key: &DecoratedKey, clustering: Option<&Clustering>) -> Option<Row> {
        match (self.get(key)?, clustering) {
            (Partition::Row(own, row), Some(wanted)) => schema.order.compare_rows(&own, wanted).is_eq().then_some(row),
            (Partition::Row(..), None) => None,
            (Partition::Body(body), None) => body.static_row.clone(),
            (Partition::Body(body), Some(wanted)) => body.row(schema, wanted),
        }
    }

    /// A snapshot of one partition.
    fn get(&self, key: &DecoratedKey) -> Option<Partition> {
        self.partitions.borrow().get(key).map(Stored::snapshot)
    }

    /// Calls `f` with each partition of a range that comes after a key, in order, until it says
    /// `false`.
    fn for_each(&self, range: &PartitionRange, after: Option<&DecoratedKey>, f: impl FnMut(Token, &Stored) -> bool) {
        self.partitions.borrow().for_each(range, after, f);
    }
}

impl Drop for Memtable {
    fn drop(&mut self) {
        self.retire();
        debug_assert_eq!(self.bytes.get(), 0, "a dropped memtable is not charged any more");
        let partitions = std::mem::replace(self.partitions.get_mut(), Partitions::new(&PartitionRange::FULL));
        if self.written.get() > FREED_AT_ONCE {
            rt::task::spawn_in(rt::task::Group::Maintenance, free(partitions)).detach();
        }
    }
}

/// Frees partitions without blocking the shard.
async fn free(partitions: Partitions) {
    for (freed, partition) in partitions.into_stored().enumerate() {
        if let Some(mut deferred) = partition.into_large().map(DeferredFree::from) {
            while deferred.free_some() {
                rt::task::maybe_yield().await;
            }
        }
        if freed % 64 == 63 {
            rt::task::maybe_yield().await;
        }
    }
}

/// A clustering key with its own bytes, so that it does not keep a whole mutation alive.
pub(crate) fn own_clustering(key: &Clustering) -> Clustering {
    if key.0.is_empty() { Clustering::EMPTY } else { Clustering(Bytes::copy_from_slice(&key.0)) }
}

/// A row with its own bytes.
fn own_row(row: &Row) -> Row {
    Row(Bytes::copy_from_slice(&row.0))
}
