//! One table on this shard: its schema, its directory, its tablets in ring order.

mod details;
mod large;
mod row_cache;
mod sstable_set;
mod tablet;

pub use details::TableDetails;
pub(crate) use large::LargeIndex;
pub use large::{LargePartition, LargeView};
pub use row_cache::RowCacheStats;
pub(crate) use row_cache::{CachedTablet, Content, RowCache};
pub(crate) use sstable_set::{Attached, SstableSet};
pub(crate) use tablet::Tablet;

use crate::commitlog::Position;
use crate::table_dir::ReplayFilters;
use model::key::DecoratedKey;
use model::range::PartitionRange;
use model::schema::TableSchema;
use rt::ShardId;
use rt::sync::{Cancel, Gate, Semaphore};
use sstable::Corrupt;
use std::cell::{Cell, RefCell};
use std::cmp::Ordering;
use std::path::PathBuf;
use std::rc::Rc;

/// What was done with a table on this shard since it was opened.
#[derive(Default)]
pub(crate) struct Done {
    pub reads: Cell<u64>,
    pub writes: Cell<u64>,
    pub flushes: Cell<u64>,
}

/// See the module.
pub(crate) struct Table {
    schema: RefCell<Rc<TableSchema>>,
    pub dir: PathBuf,
    /// Whether the directory is known to be there, durably.
    pub has_directory: Cell<bool>,
    tablets: RefCell<Rc<[Rc<Tablet>]>>,
    /// Tablets that are not served any more and whose data is not removed yet.
    leaving: RefCell<Vec<Rc<Tablet>>>,
    pub auto_compaction: Cell<bool>,
    /// Fired and renewed to stop the compactions that run.
    compactions: RefCell<Cancel>,
    /// Flushes and compactions are inside; closed by drop.
    pub work: Gate,
    /// See [`crate::epoch`].
    pub epoch: Cell<u64>,
    /// Writes are inside that were let in and wait for room.
    pub waiting_writes: RefCell<Gate>,
    /// It was truncated before what earlier runs logged came back.
    pub old_logs_truncated: Cell<bool>,
    /// What replay must skip, by the shard that said so.
    filters: RefCell<Vec<(ShardId, ReplayFilters)>>,
    /// One change of the replay filters at a time.
    pub filters_turn: Semaphore,
    /// Files that could not be opened: they are left alone, and since what they hold is unknown, nothing is purged.
    pub unreadable: RefCell<Vec<PathBuf>>,
    /// An sstable that is not among those served although it holds data: reads fail.
    pub missing: RefCell<Option<Rc<Corrupt>>>,
    /// How many want no compaction to start by itself.
    paused: Cell<u32>,
    /// How many make data void: no compaction may start at all, also if it is asked for.
    voiding: Cell<u32>,
    /// The compaction work that runs now, for whoever has to wait for its end.
    pub compacting: RefCell<Gate>,
    /// Readers opened, mutations applied, memtables flushed since the table was opened here.
    pub done: Done,
}

impl Table {
    pub fn new(
        schema: Rc<TableSchema>,
        dir: PathBuf,
        tablets: Vec<Rc<Tablet>>,
        unreadable: Vec<PathBuf>,
        filters: Vec<(ShardId, ReplayFilters)>,
    ) -> Rc<Self> {
        debug_assert!(tablets.windows(2).all(|pair| pair[0].range.end <= pair[1].range.start));
        Rc::new(Table {
            schema: RefCell::new(schema),
            dir,
            has_directory: Cell::new(false),
            tablets: RefCell::new(tablets.into()),
            leaving: RefCell::default(),
            auto_compaction: Cell::new(true),
            compactions: RefCell::default(),
            work: Gate::new(),
            epoch: Cell::new(0),
            waiting_writes: RefCell::default(),
            old_logs_truncated: Cell::new(false),
            filters: RefCell::new(filters),
            filters_turn: Semaphore::new(1),
            unreadable: RefCell::new(unreadable),
            missing: RefCell::default(),
            paused: Cell::new(0),
            voiding: Cell::new(0),
            compacting: RefCell::default(),
            done: Done::default(),
        })
    }

    /// The schema's newest version.
    pub fn schema(&self) -> Rc<TableSchema> {
        self.schema.borrow().clone()
    }

    /// Takes over a newer version.
    pub fn set_schema(&self, schema: Rc<TableSchema>) {
        let before = self.schema.replace(schema);
        drop(before);
        self.tablets.borrow().iter().for_each(|tablet| tablet.forget_rows());
    }

    /// Its tablets, in ring order.
    pub fn tablets(&self) -> Rc<[Rc<Tablet>]> {
        self.tablets.borrow().clone()
    }

    /// Takes a tablet in.
    pub fn add_tablet(&self, tablet: Rc<Tablet>) {
        let mut tablets = self.tablets().to_vec();
        tablets.push(tablet);
        tablets.sort_by(|a, b| a.range.start.cmp(&b.range.start));
        self.tablets.replace(tablets.into());
    }

    /// Stops serving a tablet. It is kept in `leaving` until [`Table::has_left`].
    pub fn remove_tablet(&self, tablet: &Rc<Tablet>) {
        let (gone, left): (Vec<_>, Vec<_>) = self.tablets().iter().cloned().partition(|own| Rc::ptr_eq(own, tablet));
        self.tablets.replace(left.into());
        self.leaving.borrow_mut().extend(gone);
    }

    /// A tablet that is not served any more and whose data is not removed yet.
    pub fn leaving(&self, id: u32) -> Option<Rc<Tablet>> {
        self.leaving.borrow().iter().find(|own| own.id == id).cloned()
    }

    /// The data of a removed tablet is gone.
    pub fn has_left(&self, tablet: &Rc<Tablet>) {
        self.leaving.borrow_mut().retain(|own| !Rc::ptr_eq(own, tablet));
    }

    /// All tablets whose data may be on this shard.
    pub fn served_and_leaving(&self) -> Vec<Rc<Tablet>> {
        self.tablets.borrow().iter().chain(self.leaving.borrow().iter()).cloned().collect()
    }

    /// The tablet of a key; `None` if it is not on this shard.
    pub fn tablet_of(&self, key: &DecoratedKey) -> Option<Rc<Tablet>> {
        let tablets = self.tablets.borrow();
        // The first tablet that does not end before the key.
        let i = tablets.partition_point(|tablet| tablet.range.end.cmp_key(key.token, &key.key) == Ordering::Less);
        tablets.get(i).filter(|tablet| tablet.range.contains(key)).cloned()
    }

    /// The tablets that a range touches, in ring order, each with its part of the range.
    pub fn tablets_within(&self, range: &PartitionRange) -> Vec<(Rc<Tablet>, PartitionRange)> {
        let tablets = self.tablets.borrow();
        let i = tablets.partition_point(|tablet| tablet.range.end <= range.start);
        tablets[i..]
            .iter()
            .take_while(|tablet| tablet.range.start < range.end)
            .filter_map(|tablet| Some((tablet.clone(), tablet.range.intersection(range)?)))
            .collect()
    }

    /// The token by which the compactions that are started now can be stopped.
    pub fn compaction_cancel(&self) -> Cancel {
        self.compactions.borrow().clone()
    }

    /// Whether a record of an earlier log was truncated, or is known to be done with.
    pub fn skips_replay_of(&self, tablet: u32, position: Position) -> bool {
        self.old_logs_truncated.get() || self.filters.borrow().iter().any(|(_, filters)| filters.skip(tablet, position))
    }

    /// The replay filters of a shard, which may be one that is no more.
    pub fn filters_of(&self, shard: ShardId) -> ReplayFilters {
        let filters = self.filters.borrow();
        filters.iter().find(|(of, _)| *of == shard).map(|(_, filters)| filters.clone()).unwrap_or_default()
    }

    /// Replaces the replay filters of a shard.
    pub fn set_filters(&self, shard: ShardId, filters: ReplayFilters) {
        let mut all = self.filters.borrow_mut();
        all.retain(|(of, _)| *of != shard);
        all.push((shard, filters));
    }

    /// The shards that have replay filters, and how often these were written.
    pub fn filter_sequences(&self) -> Vec<(ShardId, u64)> {
        self.filters.borrow().iter().map(|(shard, filters)| (*shard, filters.sequence)).collect()
    }

    /// Whether compactions may start without being asked.
    pub fn may_compact_by_itself(&self) -> bool {
        self.auto_compaction.get() && self.paused.get() == 0 && !self.is_voiding()
    }

    /// No compaction starts by itself as long as the guard lives.
    pub fn pause_compactions(self: &Rc<Self>) -> Paused {
        self.paused.set(self.paused.get() + 1);
        Paused(self.clone())
    }

    /// Whether data are being made void: what is compacted meanwhile would come back as the compaction's output.
    pub fn is_voiding(&self) -> bool {
        self.voiding.get() > 0
    }

    /// No compaction starts as long as the guard lives. Those that run are stopped, and have ended when it is there.
    pub async fn without_compactions(self: &Rc<Self>) -> CompactionBarrier {
        self.voiding.set(self.voiding.get() + 1);
        let guard = CompactionBarrier(self.clone());
        self.stop_compactions().await;
        guard
    }

    /// Stops the compactions that run and waits for their end. Those started later are not affected.
    pub async fn stop_compactions(&self) {
        self.compactions.replace(Cancel::new()).cancel();
        let running = self.compacting.replace(Gate::new());
        running.close().await;
    }
}

/// See [`Table::without_compactions`].
pub(crate) struct CompactionBarrier(Rc<Table>);

impl Drop for CompactionBarrier {
    fn drop(&mut self) {
        self.0.voiding.set(self.0.voiding.get() - 1);
    }
}

/// See [`Table::pause_compactions`].
pub(crate) struct Paused(Rc<Table>);

impl Drop for Paused {
    fn drop(&mut self) {
        self.0.paused.set(self.0.paused.get() - 1);
    }
}
