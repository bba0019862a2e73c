//! One table on this shard: its schema, its directory, its tablets in ring order.

mod compactions;
mod details;
mod large;
mod leftovers;
mod listed;
mod loading;
mod row_cache;
mod sstable_set;
mod tablet;
mod unreadable;

use compactions::{Excluded, Exclusion, TabletCompactions};
pub use details::TableDetails;
pub(crate) use large::LargeIndex;
pub use large::{LargePartition, LargeView};
pub(crate) use leftovers::Leftovers;
pub(crate) use listed::Listed;
pub(crate) use loading::Loading;
pub use row_cache::RowCacheStats;
pub(crate) use row_cache::{CachedTablet, Content, RowCache};
pub(crate) use sstable_set::{Attached, SstableSet};
pub(crate) use tablet::{Tablet, Unlisted};
pub(crate) use unreadable::Unreadable;

use crate::commitlog::Position;
use crate::table_dir::{ReplayFilters, SstableKeys};
use model::key::DecoratedKey;
use model::range::PartitionRange;
use model::schema::TableSchema;
use model::token::Token;
use rt::ShardId;
use rt::sync::{Gate, RenewedGate, RwLock, Semaphore};
use sstable::SstablePath;
use std::cell::{Cell, RefCell};
use std::cmp::Ordering;
use std::path::PathBuf;
use std::rc::Rc;

/// Counters of a table on this shard since it was opened.
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
    /// Tablets that are no longer served and still have data.
    removing: RefCell<Vec<Rc<Tablet>>>,
    pub auto_compaction: Cell<bool>,
    /// Entered by flushes and compactions; closed by DROP.
    pub work: Gate,
    /// See `table_ops/epoch.rs`.
    pub epoch: Cell<u64>,
    /// Entered by writes that were admitted and wait for room.
    pub waiting_writes: RenewedGate,
    /// The table was truncated before the logs of earlier runs were replayed.
    pub old_logs_truncated: Cell<bool>,
    /// The records that replay skips, by the shard that wrote the filters.
    filters: RefCell<Vec<(ShardId, ReplayFilters)>>,
    /// Serialises changes of the replay filters.
    pub filters_turn: Semaphore,
    /// Between linking and removing sstables: a set is linked exclusively, and removals share the
    /// lock. Its holders do nothing but file operations, so they wait for no other task.
    pub sstable_files: RwLock<()>,
    /// Serialises the compactions that administrators request. Two of them would take each other's
    /// sstables.
    pub requested_turn: Semaphore,
    /// Sstables whose files are being removed, or could not be removed.
    pub leftovers: Leftovers,
    /// Sstables that could not be opened.
    pub unreadable: Unreadable,
    /// Listed sstables that are missing, and whose loss this start accepts. They stay listed until
    /// the node has recorded the loss.
    pub given_up: RefCell<Vec<SstablePath>>,
    /// The list of this shard's sstables on disk.
    pub listed: Listed,
    /// Entered while sstables that have arrived from other nodes are written.
    pub arriving: RenewedGate,
    /// The pieces of a refresh that are not attached yet.
    pub loading: Loading,
    /// Entered while a tablet is handed over to another shard.
    pub handing: RenewedGate,
    /// How many snapshots keep tablets from being handed over.
    pub tablets_held: Cell<u32>,
    /// Sstables outside of all tablets of this node, as found at start. They are removed when such
    /// a tablet returns.
    pub foreign: RefCell<Vec<SstableKeys>>,
    /// How many guards keep compactions from starting without a request.
    paused: Cell<u32>,
    /// Keeps all compactions from starting, also requested ones: data of all tablets is being
    /// removed.
    exclusion: Exclusion,
    /// Counters since the table was opened on this shard.
    pub done: Done,
}

/// A key in two tablets would be written to one and read from the other.
fn check_apart(tablets: &[Rc<Tablet>]) {
    debug_assert!(!tablets.iter().any(|tablet| tablet.range.is_empty()), "a tablet can hold keys");
    let apart = tablets.windows(2).all(|pair| pair[0].range.end <= pair[1].range.start);
    assert!(apart, "tablets are in ring order and do not overlap");
}

impl Table {
    pub fn new(
        schema: Rc<TableSchema>,
        dir: PathBuf,
        tablets: Vec<Rc<Tablet>>,
        unreadable: Unreadable,
        filters: Vec<(ShardId, ReplayFilters)>,
        listed: Listed,
    ) -> Rc<Self> {
        check_apart(&tablets);
        Rc::new(Table {
            schema: RefCell::new(schema),
            dir,
            has_directory: Cell::new(false),
            tablets: RefCell::new(tablets.into()),
            removing: RefCell::default(),
            auto_compaction: Cell::new(true),
            work: Gate::new(),
            epoch: Cell::new(0),
            waiting_writes: RenewedGate::default(),
            old_logs_truncated: Cell::new(false),
            filters: RefCell::new(filters),
            filters_turn: Semaphore::new(1),
            sstable_files: RwLock::new(()),
            requested_turn: Semaphore::new(1),
            leftovers: Leftovers::default(),
            unreadable,
            given_up: RefCell::default(),
            listed,
            arriving: RenewedGate::default(),
            loading: Loading::default(),
            handing: RenewedGate::default(),
            tablets_held: Cell::new(0),
            foreign: RefCell::default(),
            paused: Cell::new(0),
            exclusion: Exclusion::default(),
            done: Done::default(),
        })
    }

    /// The schema's newest version.
    pub fn schema(&self) -> Rc<TableSchema> {
        self.schema.borrow().clone()
    }

    /// Sets a newer version. Cached rows are kept unless the columns have changed.
    pub fn set_schema(&self, schema: Rc<TableSchema>) {
        let before = self.schema.replace(schema.clone());
        debug_assert_eq!(before.id, schema.id, "a table keeps its id");
        if !schema.has_same_columns(&before) {
            self.tablets.borrow().iter().for_each(|tablet| tablet.forget_rows());
        }
    }

    /// Its tablets, in ring order.
    pub fn tablets(&self) -> Rc<[Rc<Tablet>]> {
        self.tablets.borrow().clone()
    }

    /// Adds a tablet.
    pub fn add_tablet(&self, tablet: Rc<Tablet>) {
        debug_assert!(!self.tablets.borrow().iter().any(|own| own.id == tablet.id), "a tablet is served once");
        debug_assert!(self.removing(tablet.id).is_none(), "a tablet returns after its data was removed");
        let mut tablets = self.tablets().to_vec();
        tablets.push(tablet);
        tablets.sort_by(|a, b| a.range.start.cmp(&b.range.start));
        check_apart(&tablets);
        self.tablets.replace(tablets.into());
    }

    /// Stops serving a tablet. It is kept in `removing` until [`Table::finish_removal`].
    pub fn begin_removal(&self, tablet: &Rc<Tablet>) {
        let (gone, left): (Vec<_>, Vec<_>) = self.tablets().iter().cloned().partition(|own| Rc::ptr_eq(own, tablet));
        self.tablets.replace(left.into());
        self.removing.borrow_mut().extend(gone);
    }

    /// Whether a tablet has not left the table.
    pub fn serves(&self, tablet: &Rc<Tablet>) -> bool {
        self.tablets.borrow().iter().any(|own| Rc::ptr_eq(own, tablet))
    }

    /// Whether a tablet may have data on this shard.
    pub fn has(&self, tablet: &Rc<Tablet>) -> bool {
        self.serves(tablet) || self.removing.borrow().iter().any(|own| Rc::ptr_eq(own, tablet))
    }

    /// A tablet that is no longer served and still has data.
    pub fn removing(&self, id: u32) -> Option<Rc<Tablet>> {
        self.removing.borrow().iter().find(|own| own.id == id).cloned()
    }

    /// Drops a removed tablet after its data is removed.
    pub fn finish_removal(&self, tablet: &Rc<Tablet>) {
        debug_assert!(
            !tablet.is_flushing() && tablet.sstables().len() == 0,
            "the data of a tablet that has left is removed"
        );
        self.removing.borrow_mut().retain(|own| !Rc::ptr_eq(own, tablet));
    }

    /// All tablets that may have data on this shard.
    pub fn served_and_removing(&self) -> Vec<Rc<Tablet>> {
        self.tablets.borrow().iter().chain(self.removing.borrow().iter()).cloned().collect()
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

    /// Whether replay skips a record of an earlier log, for a partition of a tablet.
    pub fn skips_replay_of(&self, tablet: u32, token: Token, position: Position) -> bool {
        let skips = |(_, filters): &(ShardId, ReplayFilters)| filters.skip(tablet, token, position);
        self.old_logs_truncated.get() || self.filters.borrow().iter().any(skips)
    }

    /// The replay filters that a shard wrote; the shard may no longer exist.
    pub fn filters_of(&self, shard: ShardId) -> ReplayFilters {
        let filters = self.filters.borrow();
        filters.iter().find(|(of, _)| *of == shard).map(|(_, filters)| filters.clone()).unwrap_or_default()
    }

    /// Replaces the replay filters of a shard.
    pub fn set_filters(&self, shard: ShardId, filters: ReplayFilters) {
        let mut all = self.filters.borrow_mut();
        let is_newer = |(of, known): &(ShardId, ReplayFilters)| *of != shard || known.sequence < filters.sequence;
        debug_assert!(all.iter().all(is_newer), "replay filters are replaced by newer ones");
        all.retain(|(of, _)| *of != shard);
        all.push((shard, filters));
    }

    /// The shards that have replay filters, and how often each has written them.
    pub fn filter_sequences(&self) -> Vec<(ShardId, u64)> {
        self.filters.borrow().iter().map(|(shard, filters)| (*shard, filters.sequence)).collect()
    }

    /// Whether sstables outside of the sets may hold data of the table. Then nothing is purged,
    /// because a tombstone may cover such data.
    pub fn may_hold_other_data(&self) -> bool {
        !self.unreadable.is_empty() || !self.loading.is_empty() || self.leftovers.may_return()
    }

    /// Whether compactions may start without a request.
    pub fn may_compact_by_itself(&self) -> bool {
        self.auto_compaction.get() && self.paused.get() == 0 && !self.excludes_compactions()
    }

    /// Keeps compactions from starting without a request while the guard lives.
    pub fn pause_compactions(self: &Rc<Self>) -> Paused {
        self.paused.set(self.paused.get() + 1);
        Paused(self.clone())
    }

    /// Whether no compaction may run, because data is being truncated or removed. A compaction
    /// would write that data again.
    pub fn excludes_compactions(&self) -> bool {
        self.exclusion.is_active()
    }

    /// Stops the running compactions of all tablets, and keeps others from starting while the guard
    /// lives.
    pub async fn without_compactions(&self) -> Excluded {
        let guard = self.exclusion.begin();
        self.stop_compactions().await;
        guard
    }

    /// Waits until compactions of a tablet are no longer excluded.
    pub async fn compactions_allowed(&self, tablet: &Tablet) {
        let exclusions = [&self.exclusion, tablet.compactions.exclusion()];
        while exclusions.iter().any(|exclusion| exclusion.is_active()) {
            for exclusion in exclusions {
                exclusion.has_ended().await;
            }
        }
    }

    /// Stops the running compactions and waits for their end. Later ones are not affected.
    pub async fn stop_compactions(&self) {
        let stops: Vec<_> = self.served_and_removing().iter().map(|tablet| tablet.compactions.stop()).collect();
        for stop in stops {
            stop.await;
        }
    }
}

/// See [`Table::pause_compactions`].
pub(crate) struct Paused(Rc<Table>);

impl Drop for Paused {
    fn drop(&mut self) {
        self.0.paused.set(self.0.paused.get() - 1);
    }
}
