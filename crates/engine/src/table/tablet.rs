//! One tablet's data on this shard: the active memtable, the memtables being flushed, and the
//! sstables.
//!
//! Invariant: at any moment every write of the tablet is in one of the three, so a reader that
//! takes them in one synchronous step misses nothing. A flushed memtable is removed in the same
//! step that attaches its sstable.

use super::{Attached, CachedTablet, LargeIndex, RowCache, SstableSet, TabletCompactions};
use crate::commitlog::{Position, SlotId};
use crate::compaction::PickMemo;
use crate::memtable::{Interval, Memtable, Pool};
use model::key::DecoratedKey;
use model::range::PartitionRange;
use model::time::Timestamp;
use rt::sync::Semaphore;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use uuid::Uuid;

/// A flushed sstable that is attached, and may not be in the list of sstables on disk yet.
#[derive(Clone, Copy)]
pub(crate) struct Unlisted {
    /// The last record of this run's log that it covers.
    pub last: Option<Position>,
}

/// See the module.
pub(crate) struct Tablet {
    pub id: u32,
    pub range: PartitionRange,
    pub slot: SlotId,
    pool: Rc<Pool>,
    active: RefCell<Rc<Memtable>>,
    /// Oldest first.
    flushing: RefCell<Vec<Rc<Memtable>>>,
    sstables: RefCell<Rc<SstableSet>>,
    rows: Rc<RowCache>,
    cached: Cell<CachedTablet>,
    /// The large data in the sstables of a version of the set. It is computed on demand.
    large: RefCell<Option<(u64, Rc<LargeIndex>)>>,
    /// One flush at a time, so that the log is cleaned in order.
    pub flush_turn: Semaphore,
    /// How many flushes have failed since the last success. Flushes under memory pressure choose
    /// other tablets first.
    pub failed_flushes: Cell<u32>,
    /// An sstable of the last flush that may not be listed yet: its records of the log are kept.
    pub unlisted: Cell<Option<Unlisted>>,
    /// The last result of the compaction picker.
    pub pick_memo: PickMemo,
    /// Stops the tablet's compactions.
    pub compactions: TabletCompactions,
    /// The tablet's data is still arriving from other nodes. Tombstones may cover data that comes
    /// later, so none is purged.
    pub is_pending: Cell<bool>,
    /// See `table_ops/tablet_counter_ids.rs`.
    pub tablet_counter_id: Cell<Option<Uuid>>,
    /// The intervals of other shards' logs, of this run, that may have records of the tablet: it
    /// was on those shards before. Its sstables or the replay filters cover all of these records.
    pub earlier_logs: RefCell<Vec<Interval>>,
}

impl Tablet {
    pub fn new(
        id: u32,
        range: PartitionRange,
        slot: SlotId,
        pool: Rc<Pool>,
        rows: Rc<RowCache>,
        sstables: SstableSet,
    ) -> Rc<Self> {
        Rc::new(Tablet {
            id,
            active: RefCell::new(Memtable::new(pool.clone(), &range)),
            range,
            slot,
            pool,
            flushing: RefCell::default(),
            sstables: RefCell::new(Rc::new(sstables)),
            cached: Cell::new(rows.register()),
            large: RefCell::default(),
            rows,
            flush_turn: Semaphore::new(1),
            failed_flushes: Cell::new(0),
            unlisted: Cell::default(),
            pick_memo: PickMemo::default(),
            compactions: TabletCompactions::default(),
            is_pending: Cell::new(false),
            tablet_counter_id: Cell::new(None),
            earlier_logs: RefCell::default(),
        })
    }

    /// The memtable that takes writes.
    pub fn active(&self) -> Rc<Memtable> {
        self.active.borrow().clone()
    }

    /// Calls `f` with every memtable, newest first.
    pub fn for_each_memtable(&self, mut f: impl FnMut(&Rc<Memtable>)) {
        f(&self.active.borrow());
        for memtable in self.flushing.borrow().iter().rev() {
            f(memtable);
        }
    }

    /// The sstables as they are now.
    pub fn sstables(&self) -> Rc<SstableSet> {
        self.sstables.borrow().clone()
    }

    /// The large data in the sstables.
    pub fn large_index(&self) -> Rc<LargeIndex> {
        let version = self.sstables.borrow().version();
        if let Some((known, index)) = &*self.large.borrow()
            && *known == version
        {
            return index.clone();
        }
        let index = Rc::new(LargeIndex::of(self));
        *self.large.borrow_mut() = Some((version, index.clone()));
        index
    }

    /// Bytes of memtables, flushing ones included.
    pub fn memtable_bytes(&self) -> usize {
        let mut bytes = 0;
        self.for_each_memtable(|memtable| bytes += memtable.bytes());
        bytes
    }

    /// Where in the log the oldest memtable with contents begins. Contents of earlier runs come
    /// before all positions. `None` if all contents are flushed.
    pub fn first_unflushed(&self) -> Option<Position> {
        let mut least = None;
        self.for_each_memtable(|memtable| {
            if memtable.bytes() > 0 {
                let first = memtable.logged().map_or(Position::MIN, |interval| interval.first);
                least = Some(least.map_or(first, |least: Position| least.min(first)));
            }
        });
        least
    }

    /// Whether a memtable holds mutations that only the logs of earlier runs have.
    pub fn needs_old_logs(&self) -> bool {
        let mut needs = false;
        self.for_each_memtable(|memtable| needs |= memtable.needs_old_logs());
        needs
    }

    /// Whether something waits to be flushed.
    pub fn is_flushing(&self) -> bool {
        !self.flushing.borrow().is_empty()
    }

    /// Seals the active memtable for a flush. A new one takes its place.
    pub fn seal(&self) {
        if self.active.borrow().is_empty() {
            return;
        }
        let sealed = self.active.replace(Memtable::new(self.pool.clone(), &self.range));
        let mut flushing = self.flushing.borrow_mut();
        debug_assert!(
            flushing.iter().all(|before| is_before(before, &sealed)),
            "memtables are sealed in the order of the log"
        );
        flushing.push(sealed);
    }

    /// The memtables that wait to be flushed, oldest first.
    pub fn sealed(&self) -> Vec<Rc<Memtable>> {
        self.flushing.borrow().clone()
    }

    /// The oldest of the memtables that wait to be flushed.
    pub fn oldest_sealed(&self) -> Option<Rc<Memtable>> {
        self.flushing.borrow().first().cloned()
    }

    /// Replaces a flushed memtable by its sstable; `None` if there was nothing to write.
    pub fn attach_flushed(&self, memtable: &Rc<Memtable>, sstable: Option<Rc<Attached>>) {
        debug_assert!(
            self.oldest_sealed().is_some_and(|oldest| Rc::ptr_eq(&oldest, memtable)),
            "memtables are flushed in order, each once"
        );
        if let Some(sstable) = sstable {
            self.replace(&[], [sstable]);
        }
        self.forget(memtable);
    }

    /// Whether a flush has something to do: memtables to write, or an sstable to list.
    pub fn needs_flush(&self) -> bool {
        self.is_flushing() || self.unlisted.get().is_some()
    }

    /// Removes a sealed memtable.
    pub fn forget(&self, memtable: &Rc<Memtable>) {
        debug_assert!(
            self.flushing.borrow().iter().any(|own| Rc::ptr_eq(own, memtable)),
            "a sealed memtable is forgotten once"
        );
        self.flushing.borrow_mut().retain(|own| !Rc::ptr_eq(own, memtable));
        memtable.retire();
    }

    /// The row cache, and the tablet's number in it.
    pub fn cached(&self) -> (&Rc<RowCache>, CachedTablet) {
        (&self.rows, self.cached.get())
    }

    /// Invalidates the cached rows.
    pub fn forget_rows(&self) {
        self.cached.set(self.rows.register());
    }

    /// Replaces sstables.
    pub fn replace(&self, remove: &[Rc<Attached>], add: impl IntoIterator<Item = Rc<Attached>>) {
        let add = add.into_iter().inspect(|own| {
            let (first, last) = (own.sstable.first_key(), own.sstable.last_key());
            assert!(self.range.contains(first) && self.range.contains(last), "an sstable is within its tablet");
        });
        let next = Rc::new(self.sstables.borrow().replace(remove, add));
        if next.len() + remove.len() == self.sstables.borrow().len() {
            // No sstable came in exchange.
            self.forget_rows();
        }
        let before = self.sstables.replace(next);
        drop(before);
    }

    /// The least timestamp of a key in the memtables; the greatest possible one if they do not
    /// have the key.
    pub fn min_timestamp_in_memtables(&self, key: &DecoratedKey) -> Timestamp {
        let mut least = Timestamp::MAX;
        self.for_each_memtable(|memtable| least = least.min(memtable.min_timestamp_of(key).unwrap_or(Timestamp::MAX)));
        least
    }

    /// Whether a sealed sstable covers a position of a log of this node, for this key.
    pub fn covers(&self, key: &DecoratedKey, position: Position) -> bool {
        debug_assert!(self.range.contains(key));
        self.sstables
            .borrow()
            .iter()
            .any(|own| own.intervals.iter().any(|interval| interval.first <= position && position <= interval.last))
    }
}

/// Whether all logged records of a memtable are before the records of a later memtable of its
/// tablet.
fn is_before(memtable: &Memtable, later: &Memtable) -> bool {
    memtable.logged().is_none_or(|own| later.logged().is_none_or(|later| own.last < later.first))
}
