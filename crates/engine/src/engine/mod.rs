//! One shard's store: opening it, its tables, and its end.
//!
//! A node starts so: [`Engine::open`] on every shard; [`Engine::add_table`] for each table, first on shard 0 (with
//! [`Engine::reshard`] before it where sstables may span tablets), then on the others (which may be told by [`Engine::expect`] what shard 0 has
//! found); then the old logs are replayed, each record to [`Engine::replayed`] on the shard that
//! owns its key; when that is over [`Engine::replay_finished`] on every shard, which makes safe what came back; then the old logs are
//! retired; then [`Engine::start`] on every shard. Compaction begins only there: before, a purge could lose what replay needs.

mod access;
mod directory_changes;
mod lifecycle;
mod registry;
mod statistics;

pub use lifecycle::{LogLeft, Unwritten};
pub(crate) use registry::TableRegistry;

use crate::commitlog::{Commitlog, Position};
use crate::compaction::Compactions;
use crate::config::EngineConfig;
use crate::error::EngineError;
use crate::files::DiskReserve;
use crate::memtable::Pool;
use crate::metrics::Counters;
use crate::table::RowCache;
use crate::table_dir::Prepared;
use directory_changes::DirectoryChanges;
use model::TableId;
use model::range::PartitionRange;
use rt::hash::HashMap;
use rt::sync::{Cancel, Gate};
use rt::time::Duration;
use sstable::{LargeCounts, LargeLimits, OpenFiles, PageCache};
use std::cell::{Cell, RefCell};
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
    registry: TableRegistry,
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
    changes: DirectoryChanges,
    /// Where this run's log begins.
    log_begun: Position,
    /// Fired by [`Engine::stop`].
    stop: Cancel,
    /// The engine's own loops are inside.
    loops: Gate,
    started: Cell<bool>,
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
            registry: TableRegistry::default(),
            counters: Counters::default(),
            compactions: Compactions::default(),
            large: Cell::default(),
            large_counts: Rc::default(),
            max_timestamp: Cell::new(i64::MIN),
            newest_epoch: Cell::new(0),
            prepared: RefCell::default(),
            changes: DirectoryChanges::default(),
            stop: Cancel::new(),
            loops: Gate::new(),
            started: Cell::new(false),
        });
        engine.run(|engine| async move { engine.watch_memory().await });
        engine.run(|engine| async move { engine.watch_log(LOG_WATCH).await });
        engine.load_compaction_history().await;
        let (inside, keeper) = (engine.loops.enter(), engine.clone());
        rt::task::spawn(async move {
            let _inside = inside;
            keeper.keep_compaction_history().await;
        })
        .detach();
        engine.run(|engine| async move { engine.share_loop().await });
        Ok(engine)
    }

    /// Runs one of the engine's own loops until [`Engine::stop`].
    fn run<F: Future<Output = ()> + 'static>(self: &Rc<Self>, work: impl FnOnce(Rc<Engine>) -> F) {
        let (inside, stop, work) = (self.loops.enter(), self.stop.clone(), work(self.clone()));
        rt::task::spawn(async move {
            let _inside = inside;
            stop.unless(work).await;
        })
        .detach();
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
}
