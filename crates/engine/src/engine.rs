//! One shard's store: opening it, its tables, and its end.
//!
//! A node starts so: [`Engine::open`] on every shard; [`Engine::add_table`] for each table, first on shard 0 (with
//! [`Engine::reshard`] before it where sstables may span tablets), then on the others (which may be told by [`Engine::expect`] what shard 0 has
//! found); then the old logs are replayed, each record to [`Engine::replayed`] on the shard that
//! owns its key; when that is over [`Engine::replay_finished`] on every shard, which makes safe what came back; then the old logs are
//! retired; then [`Engine::start`] on every shard. Compaction begins only there: before, a purge could lose what replay needs.

use crate::commitlog::{CloseError, Commitlog, LogError, LoggedRun, OldRun, Position, SlotId};
use crate::compaction::Compactions;
use crate::config::EngineConfig;
use crate::datadir::{DiskReserve, Made, table_dir_name};
use crate::error::{EngineError, NoSuchTable};
use crate::metrics::Counters;
use crate::open::{FoundSstables, Prepared};
use crate::pressure::Pool;
use crate::reshard::Undisturbed;
use crate::row_cache::RowCache;
use crate::table::Table;
use crate::tablet::Tablet;
use model::range::PartitionRange;
use model::schema::TableSchema;
use model::{HostId, TableId};
use rt::ShardId;
use rt::hash::HashMap;
use rt::sync::{Cancel, Gate, Notify};
use rt::time::Duration;
use sstable::{LargeCounts, LargeLimits, LargeReads, Loan, OpenFiles, PageCache};
use std::cell::{Cell, RefCell};
use std::path::PathBuf;
use std::rc::{Rc, Weak};

/// How often the log is asked whether it has grown too large.
const LOG_WATCH: Duration = Duration::from_millis(100);
/// The year 2200, in microseconds since 1970.
const BEYOND_CLOCKS: i64 = 7_258_118_400_000_000;

/// A tablet that lives on this shard.
#[derive(Clone, Debug, PartialEq)]
pub struct TabletRange {
    /// Its number within its table.
    pub id: u32,
    /// Its part of the ring.
    pub range: PartitionRange,
}

/// One shard's store. Everything in it belongs to one shard; several shards share only the directories.
pub struct Engine {
    me: Weak<Engine>,
    config: EngineConfig,
    log: Rc<Commitlog>,
    cache: Rc<PageCache>,
    rows: Rc<RowCache>,
    pool: Rc<Pool>,
    tables: RefCell<HashMap<TableId, Rc<Table>>>,
    /// By slot, for the log's wish to be flushed.
    slots: RefCell<Vec<Option<(TableId, u32)>>>,
    counters: Counters,
    compactions: Compactions,
    /// What counts as large in the sstables that are written from now on.
    large: Cell<LargeLimits>,
    large_counts: Rc<LargeCounts>,
    max_timestamp: Cell<i64>,
    /// The newest epoch that any table has had.
    newest_epoch: Cell<u64>,
    /// What is known of tables' sstables while the node starts.
    prepared: RefCell<HashMap<TableId, Prepared>>,
    /// What has become durable in directories of tables, for [`Engine::next_made`].
    made: RefCell<Vec<Made>>,
    has_made: Notify,
    /// Where this run's log begins.
    log_begun: Position,
    /// Fired by [`Engine::stop`].
    stop: Cancel,
    /// The engine's own loops are inside.
    loops: Gate,
    started: Cell<bool>,
}

/// What a shard could not write until it stopped.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Unwritten {
    /// Tables whose last flush failed. What it would have written is in the commitlog.
    pub tables: Vec<String>,
    /// What became of the commitlog, if it could not be closed.
    pub log: Option<LogLeft>,
}

/// A commitlog that a stop could not close.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogLeft {
    /// Acknowledged writes may be neither in the log nor in an sstable. Why.
    MayLackWrites(String),
    /// Nothing is lost, but the next start replays records that it would not need. Why.
    NotEnded(String),
    /// Files of it were removed, replaced or cut off while the node ran. All its writes are in sstables.
    Removed {
        /// Which files.
        what: String,
        /// The run that nobody needs: the next start must neither miss it nor replay what is left of it.
        run: OldRun,
    },
}

impl Engine {
    /// A store without tables. Opens a new run of the log: list the old ones before.
    pub async fn open(config: EngineConfig) -> Result<Rc<Engine>, EngineError> {
        let mut log = config.log.clone();
        log.reserve = (config.disk_reserve > 0).then(|| DiskReserve::of(&config.data_dir, config.disk_reserve));
        let log = Commitlog::open(log).await?;
        let files = OpenFiles::new(config.open_files());
        let cache = PageCache::with_large_budgets(
            config.cache_budget(),
            files,
            config.large_reads_budget(),
            config.large_jobs_budget(),
        );
        let pool = Pool::new(config.memtable_budget());
        let (memtables, rest) = (pool.clone(), config.memory_for_memtables_and_large());
        cache.set_spare(Box::new(move || rest.saturating_sub(memtables.used())));
        let engine = Rc::new_cyclic(|me| Engine {
            me: me.clone(),
            rows: RowCache::new(config.cache_budget(), cache.clone()),
            cache,
            pool,
            log_begun: log.position(),
            log,
            config,
            tables: RefCell::default(),
            slots: RefCell::default(),
            counters: Counters::default(),
            compactions: Compactions::default(),
            large: Cell::default(),
            large_counts: Rc::default(),
            max_timestamp: Cell::new(i64::MIN),
            newest_epoch: Cell::new(0),
            prepared: RefCell::default(),
            made: RefCell::default(),
            has_made: Notify::new(),
            stop: Cancel::new(),
            loops: Gate::new(),
            started: Cell::new(false),
        });
        let inside = engine.loops.enter();
        let flusher = engine.clone();
        rt::task::spawn(async move {
            let _inside = inside;
            flusher.stop.clone().unless(flusher.watch_memory()).await;
        })
        .detach();
        let inside = engine.loops.enter();
        let flusher = engine.clone();
        rt::task::spawn(async move {
            let _inside = inside;
            flusher.stop.clone().unless(flusher.watch_log(LOG_WATCH)).await;
        })
        .detach();
        engine.load_compaction_history().await;
        let inside = engine.loops.enter();
        let keeper = engine.clone();
        rt::task::spawn(async move {
            let _inside = inside;
            keeper.keep_compaction_history().await;
        })
        .detach();
        let inside = engine.loops.enter();
        let sharer = engine.clone();
        rt::task::spawn(async move {
            let _inside = inside;
            sharer.stop.clone().unless(sharer.share_loop()).await;
        })
        .detach();
        Ok(engine)
    }

    /// Lets compaction run. To be called once, when replay is over and its logs are retired.
    pub fn start(self: &Rc<Self>) {
        if self.started.replace(true) {
            return;
        }
        self.prepared.take();
        let inside = self.loops.enter();
        let engine = self.clone();
        rt::task::spawn(async move {
            let _inside = inside;
            engine.compaction_loop().await;
        })
        .detach();
        self.compactions.wake();
    }

    /// Adds a table with the tablets that this shard has, and opens their sstables.
    ///
    /// An sstable that lies in no tablet of this shard is another shard's; one that lies in several
    /// is an error ([`Engine::reshard`] splits them). Files that cannot be opened are reported,
    /// left alone, and counted. After an error the table is not here, and the call may be repeated.
    /// A table without a directory needs no file descriptor.
    pub async fn add_table(&self, schema: Rc<TableSchema>, tablets: Vec<TabletRange>) -> Result<(), EngineError> {
        let id = schema.id;
        if self.table(id).is_some() {
            return Err(EngineError::TableExists(id));
        }
        let dir = self.table_dir(&schema);
        let mut prepared = self.prepared.borrow_mut().get_mut(&id).map(Prepared::take);
        if self.config.shard == ShardId(0) && !self.started.get() && prepared.is_none() {
            let Undisturbed { places, marks } = self.finish_interrupted(&dir).await?;
            prepared =
                Some(Prepared { found: FoundSstables { places, marks, ..Default::default() }, open: Vec::new() });
        }
        let opened = self.open_sstables(&dir, &tablets, prepared).await?;
        let has_sstables = opened.sets.iter().any(|set| set.len() > 0);
        let mut tablets: Vec<Rc<Tablet>> = tablets
            .into_iter()
            .zip(opened.sets)
            .map(|(tablet, set)| {
                let slot = self.take_slot(id, tablet.id);
                Tablet::new(tablet.id, tablet.range, slot, self.pool.clone(), self.rows.clone(), set)
            })
            .collect();
        tablets.sort_by(|a, b| a.range.start.cmp(&b.range.start));
        let table = Table::new(schema, dir, tablets, opened.unreadable, opened.marks);
        table.auto_compaction.set(self.config.auto_compaction);
        *table.missing.borrow_mut() = opened.missing.map(Rc::new);
        let before = self.tables.borrow_mut().insert(id, table);
        assert!(before.is_none(), "a table is added once");
        if has_sstables {
            self.compactions.wake();
        }
        Ok(())
    }

    /// The disk space that the node holds back.
    pub fn disk_reserve(&self) -> DiskReserve {
        DiskReserve::of(&self.config.data_dir, self.config.disk_reserve)
    }

    /// The memory of reads that hold large rows or long results.
    pub fn large_reads(&self) -> &Rc<LargeReads> {
        self.cache.large_reads()
    }

    /// Makes the caches do without `bytes` until what it gives is dropped.
    pub fn lend_cache(&self, bytes: usize) -> Loan {
        self.cache.lend(bytes)
    }

    /// The memory of flushes and compactions that hold large rows.
    pub(crate) fn large_jobs(&self) -> &Rc<LargeReads> {
        self.cache.large_jobs()
    }

    /// What counts as large in the sstables that are written from now on.
    pub fn set_large_limits(&self, limits: LargeLimits) {
        self.large.set(limits);
    }

    /// What counts as large now.
    pub(crate) fn large_limits(&self) -> LargeLimits {
        self.large.get()
    }

    /// Counts what is found to be large while sstables are written.
    pub(crate) fn large_counts(&self) -> &Rc<LargeCounts> {
        &self.large_counts
    }

    /// Takes over a newer version of a table's schema. Unknown tables are ignored.
    pub fn update_schema(&self, schema: Rc<TableSchema>) {
        if let Some(table) = self.table(schema.id) {
            table.set_schema(schema);
            self.compactions.wake();
        }
    }

    /// Stops flushing and compacting, waits for what runs, and syncs the log. What is in memtables
    /// stays in the log. Only where the log has failed are they flushed. Says what could not be
    /// written.
    pub async fn stop(&self) -> Unwritten {
        let removed = self.log.check_there().await;
        let without_log = self.log.has_failed() && self.flush_all_tablets().await;
        self.stop.cancel();
        self.compactions.wake_all();
        let tables: Vec<_> = self.tables.borrow().values().cloned().collect();
        for table in &tables {
            table.stop_compactions().await;
        }
        self.loops.close().await;
        for table in &tables {
            table.work.close().await;
        }
        let mut unwritten = Unwritten::default();
        for table in &tables {
            let schema = table.schema();
            if table.tablets().iter().any(|tablet| tablet.failed_flushes.get() > 0 && tablet.memtable_bytes() > 0) {
                unwritten.tables.push(format!("{}.{}", schema.keyspace, schema.name));
            }
        }
        unwritten.log = match (self.log.close().await, removed.filter(|_| without_log)) {
            (Ok(()), _) => None,
            (Err(_), Some(what)) => {
                tracing::error!(
                    what,
                    "the commitlog is lost, and its writes were flushed to sstables: all writes are on disk"
                );
                Some(LogLeft::Removed { what, run: self.log.own_run() })
            }
            (Err(CloseError::Unsynced(error)), None) if !without_log => {
                tracing::error!(%error, "the commitlog could not be closed: the last writes may not be on disk");
                Some(LogLeft::MayLackWrites(error.to_string()))
            }
            (Err(error), None) => {
                tracing::error!(%error, "the commitlog could not be closed: all writes are on disk, the next start replays it");
                Some(LogLeft::NotEnded(error.to_string()))
            }
        };
        unwritten
    }

    /// Makes everything that was applied so far durable, whatever the log's sync mode.
    pub async fn sync_log(&self) -> Result<(), EngineError> {
        Ok(self.log.sync_now().await?)
    }

    /// Stops at once and leaves the disk as it is, as a crash of the process would. For tests of what comes after.
    pub async fn abandon(&self) {
        self.stop.cancel();
        self.compactions.wake_all();
        self.log.abandon().await;
        let tables: Vec<_> = self.tables.borrow().values().cloned().collect();
        for table in &tables {
            table.stop_compactions().await;
            table.work.close().await;
        }
        self.loops.close().await;
    }

    /// Closes half of the files of sstables that are open on this shard, for an operation that
    /// needs descriptors more.
    pub fn give_back_files(&self) {
        self.cache.files().give_back();
    }

    /// Whether a table is on this shard.
    pub fn has_table(&self, id: TableId) -> bool {
        self.tables.borrow().contains_key(&id)
    }

    /// Ids of the tables on this shard.
    pub fn tables(&self) -> Vec<TableId> {
        self.tables.borrow().keys().copied().collect()
    }

    /// The newest schema of a table on this shard.
    pub fn schema(&self, id: TableId) -> Option<Rc<TableSchema>> {
        self.table(id).map(|table| table.schema())
    }

    /// The node whose store this is.
    pub fn host_id(&self) -> HostId {
        self.config.host_id
    }

    /// The greatest timestamp (below the year 2200) found in sstables when they were opened, and in what was replayed; `i64::MIN`
    /// for none.
    pub fn max_timestamp_seen(&self) -> i64 {
        self.max_timestamp.get()
    }

    /// Runs `f` to its end even if the caller stops waiting for it.
    pub(crate) async fn detached<T, F>(&self, f: impl FnOnce(Rc<Engine>) -> F) -> Result<T, EngineError>
    where
        T: 'static,
        F: Future<Output = Result<T, EngineError>> + 'static,
    {
        let Some(engine) = self.me.upgrade() else { return Err(EngineError::Cancelled) };
        rt::task::spawn(f(engine)).await.unwrap_or(Err(EngineError::Cancelled))
    }

    /// What lies beyond any clock's time does not count: files without any timestamp name the greatest possible one, and clients
    /// that count in nanoseconds must not set the node's clock.
    pub(crate) fn saw_timestamp(&self, timestamp: i64) {
        if timestamp < BEYOND_CLOCKS {
            self.max_timestamp.set(self.max_timestamp.get().max(timestamp));
        }
    }

    pub(crate) fn table(&self, id: TableId) -> Option<Rc<Table>> {
        self.tables.borrow().get(&id).cloned()
    }

    pub(crate) fn table_or_error(&self, id: TableId) -> Result<Rc<Table>, EngineError> {
        Ok(self.table(id).ok_or(NoSuchTable(id))?)
    }

    pub(crate) fn all_tables(&self) -> Vec<Rc<Table>> {
        self.tables.borrow().values().cloned().collect()
    }

    pub(crate) fn remove_table(&self, id: TableId) -> Option<Rc<Table>> {
        let table = self.tables.borrow_mut().remove(&id)?;
        let mut slots = self.slots.borrow_mut();
        for slot in slots.iter_mut().filter(|slot| slot.is_some_and(|(table, _)| table == id)) {
            *slot = None;
        }
        Some(table)
    }

    /// The table's directory: `data/<keyspace>/<table>-<id>`.
    pub(crate) fn table_dir(&self, schema: &TableSchema) -> PathBuf {
        self.config.data_dir.join("data").join(&schema.keyspace).join(table_dir_name(&schema.name, schema.id))
    }

    /// A slot of the log that no other tablet has had in this run.
    pub(crate) fn take_slot(&self, table: TableId, tablet: u32) -> SlotId {
        let mut slots = self.slots.borrow_mut();
        slots.push(Some((table, tablet)));
        SlotId(slots.len() as u32 - 1)
    }

    /// Nobody writes to a slot any more.
    pub(crate) fn leave_slot(&self, slot: SlotId) {
        if let Some(left) = self.slots.borrow_mut().get_mut(slot.0 as usize) {
            *left = None;
        }
    }

    /// The tablet that writes to a slot.
    pub(crate) fn tablet_of_slot(&self, slot: SlotId) -> Option<(Rc<Table>, Rc<Tablet>)> {
        let (table, tablet) = (*self.slots.borrow().get(slot.0 as usize)?)?;
        let table = self.table(table)?;
        let tablet = table.tablets().iter().find(|own| own.id == tablet)?.clone();
        Some((table, tablet))
    }

    /// Whether all that earlier runs logged has come back, their logs are gone, and compaction runs.
    pub(crate) fn is_started(&self) -> bool {
        self.started.get()
    }

    pub(crate) fn epochs_up_to(&self) -> &Cell<u64> {
        &self.newest_epoch
    }

    pub(crate) fn config(&self) -> &EngineConfig {
        &self.config
    }

    pub(crate) fn log(&self) -> &Rc<Commitlog> {
        &self.log
    }

    pub(crate) fn prepared(&self) -> &RefCell<HashMap<TableId, Prepared>> {
        &self.prepared
    }

    /// Everything that earlier runs logged is below.
    pub(crate) fn log_begun(&self) -> Position {
        self.log_begun
    }

    /// Something is in the directory of a table, durably.
    pub(crate) fn made(&self, made: Made) {
        made.add_to(&mut self.made.borrow_mut());
        self.has_made.notify_one();
    }

    /// Waits until something has become durable in directories of tables that was not known to be there in this run. `None` when the
    /// engine stops. For one waiter.
    pub async fn next_made(&self) -> Option<Vec<Made>> {
        while self.made.borrow().is_empty() {
            self.stop.clone().unless(self.has_made.notified()).await?;
        }
        Some(self.made.take())
    }

    /// What a start has found in the directories of this shard's tables, apart from sstables. It is durable.
    pub fn found_in_directories(&self) -> Vec<Made> {
        let tables = self.tables.borrow();
        let of_table = |(id, table): (&TableId, &Rc<Table>)| {
            let epoch = Some(table.epoch.get()).filter(|epoch| *epoch > 0).map(|epoch| Made::Epoch(*id, epoch));
            let marks = table.marked_shards().into_iter().map(|(shard, sequence)| Made::Marks(*id, shard, sequence));
            marks.chain(epoch).collect::<Vec<_>>()
        };
        tables.iter().flat_map(of_table).collect()
    }

    /// The run of this shard's log.
    pub fn logged_run(&self) -> LoggedRun {
        self.log.logged_run()
    }

    /// Waits until the log has failed: the node must stop then.
    pub async fn failure(&self) -> LogError {
        self.log.failure().await
    }

    pub(crate) fn rows(&self) -> &Rc<RowCache> {
        &self.rows
    }

    pub(crate) fn cache(&self) -> &Rc<PageCache> {
        &self.cache
    }

    pub(crate) fn pool(&self) -> &Rc<Pool> {
        &self.pool
    }

    pub(crate) fn counters(&self) -> &Counters {
        &self.counters
    }

    pub(crate) fn compactions(&self) -> &Compactions {
        &self.compactions
    }

    pub(crate) fn stopping(&self) -> &Cancel {
        &self.stop
    }
}
