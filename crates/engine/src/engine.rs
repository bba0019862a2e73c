//! One shard's store: its parts, and how it is opened.
//!
//! A node starts in this order:
//!
//! 1. [`Engine::open`] on every shard.
//! 2. [`Engine::add_table`] for each table, first on shard 0, then on the others. Where sstables
//!    may span tablets, [`Engine::reshard`] comes before it. [`Engine::expect`] gives the other
//!    shards what shard 0 has found.
//! 3. The old logs are replayed ([`crate::replay_logs`]): each mutation goes to the shard that
//!    owns its key now.
//! 4. [`Engine::replay_finished`] on every shard makes the replayed mutations durable.
//! 5. The old logs are retired.
//! 6. [`Engine::start`] on every shard begins compaction. Before that, a purge could remove
//!    tombstones that replay needs.
//!
//! The methods of [`Engine`], by the files that have them:
//!
//! | what | methods | file |
//! |---|---|---|
//! | life | `open`, `start`, `stop`, `abandon`, `failure`, `sync_log` | `engine/lifecycle.rs` |
//! | write | `apply`, `apply_durably`, `apply_group`, `acknowledged` | `write.rs` |
//! | read | `reader`, `keys`, `dump_sources` | `reader` |
//! | flush | `flush` | `flush` |
//! | compaction | `compact_major`, `cleanup`, progress and history | `compaction` |
//! | startup | `reshard`, `expect`, `replayed`, `replay_finished` | `table_ops`, `replay.rs` |
//! | tables | `add_table`, `update_schema`, `truncate`, `drop_table` | `table_ops` |
//! | moves between shards | `expect_tablet`, `place_of` | `engine/shard_moves.rs` |
//! | | `hand_over` | `table_ops/hand_over.rs` |
//! | tablets | `tablets_of`, `add_tablet`, `remove_tablet` | `table_ops/tablet_lifecycle.rs` |
//! | epochs | `epoch`, `truncate_at`, `begin_epoch`, `begin_empty` | `table_ops/epoch.rs` |
//! | snapshots | `snapshot`, `complete_snapshot`, `publish_snapshot` | `table_ops/snapshot.rs` |
//! | loading sstables | `uploaded`, `copy_uploaded`, `seal_loaded` | `table_ops/upload.rs` |
//! | statistics | `metrics`, `table_details`, `large_data` | `engine/statistics.rs` |

mod access;
mod directory_changes;
mod lifecycle;
mod registry;
mod shard_moves;
mod statistics;

pub use lifecycle::{LogLeft, Unwritten};
pub(crate) use registry::TableRegistry;
pub(crate) use shard_moves::ShardMoves;
pub use shard_moves::TabletPlace;

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
use rt::sync::{Cancel, Gate, Semaphore};
use rt::time::Duration;
use sstable::{LargeCounts, LargeLimits, OpenFiles, PageCache};
use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};

/// How often the size of the log is checked.
const LOG_WATCH: Duration = Duration::from_millis(100);
/// The year 2200, in microseconds since 1970.
const BEYOND_CLOCKS: i64 = 7_258_118_400_000_000;

/// A tablet that lives on this shard.
#[derive(Clone, Debug, PartialEq)]
pub struct TabletRange {
    /// The tablet's number within its table.
    pub id: u32,
    /// The tablet's part of the ring.
    pub range: PartitionRange,
}

/// One shard's store. All of it belongs to one shard. Shards share only directories.
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
    /// The limits above which data counts as large in sstables written from now on.
    large: Cell<LargeLimits>,
    large_counts: Rc<LargeCounts>,
    max_timestamp: Cell<i64>,
    /// The newest epoch of all tables.
    newest_epoch: Cell<u64>,
    /// The sstables that were found in each table's directory, during startup.
    prepared: RefCell<HashMap<TableId, Prepared>>,
    changes: DirectoryChanges,
    /// Held while logs of earlier processes are read for the snapshot of one table.
    log_reading: Semaphore,
    /// The position at which the log of this run begins.
    log_begun: Position,
    /// Cancelled by [`Engine::stop`].
    stop: Cancel,
    /// Entered by the engine's own loops.
    loops: Gate,
    started: Cell<bool>,
    /// See [`Engine::set_lists_sstables`].
    lists_sstables: Cell<bool>,
    shard_moves: ShardMoves,
}

impl Engine {
    /// A store without tables. It begins a new run of the log, so old runs must be listed before.
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
            log_reading: Semaphore::new(1),
            stop: Cancel::new(),
            loops: Gate::new(),
            started: Cell::new(false),
            lists_sstables: Cell::new(true),
            shard_moves: ShardMoves::default(),
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

    /// Runs one of the engine's own tasks until [`Engine::stop`].
    pub(crate) fn run<F: Future<Output = ()> + 'static>(&self, work: impl FnOnce(Rc<Engine>) -> F) {
        let Some(engine) = self.me.upgrade() else { return };
        let (inside, stop, work) = (self.loops.enter(), self.stop.clone(), work(engine));
        rt::task::spawn(async move {
            let _inside = inside;
            stop.unless(work).await;
        })
        .detach();
    }

    /// Runs `f` to completion even if the caller is dropped.
    pub(crate) async fn detached<T, F>(&self, f: impl FnOnce(Rc<Engine>) -> F) -> Result<T, EngineError>
    where
        T: 'static,
        F: Future<Output = Result<T, EngineError>> + 'static,
    {
        let Some(engine) = self.me.upgrade() else { return Err(EngineError::Cancelled) };
        rt::task::spawn(f(engine)).await.unwrap_or(Err(EngineError::Cancelled))
    }

    /// Records a timestamp. Timestamps beyond the year 2200 are ignored. Files without any
    /// timestamp contain the greatest possible one, and clients that count in nanoseconds must not
    /// advance the node's clock.
    pub(crate) fn saw_timestamp(&self, timestamp: i64) {
        if timestamp < BEYOND_CLOCKS {
            self.max_timestamp.set(self.max_timestamp.get().max(timestamp));
        }
    }
}
