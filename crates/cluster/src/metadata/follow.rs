//! Applies committed changes of the metadata: a change is carried out on every shard, or the node
//! ends with the reason.
//!
//! Shard 0 drives the steps of a change, one change at a time:
//!
//! 1. *Stage.* Every shard decodes the change and applies it to its metadata, in memory. A change
//!    is applied, stale, or refused because it does not fit. The result depends only on the log, so
//!    it is the same on all nodes and after a restart ([`super::recovery`]).
//! 2. *Prepare.* Epochs of truncated tables begin, and every shard adds its tables and tablets to
//!    the engine. This needs files, so it may fail. It is repeated until it succeeds; a repetition
//!    resumes where the failed attempt ended. Nothing of the change is visible yet, and the group
//!    applies no later entry, so the node answers from an older prefix of the log.
//! 3. *Show.* Every shard publishes the new metadata. This cannot fail.
//! 4. *Remove.* Data of dropped tables and of tablets that moved away is deleted. Only disk space
//!    depends on it. So tablets are removed in the background, and dropped tables delay the change
//!    by at most [`REMOVAL_WAIT`]. A failed removal is repeated in the background, and finished by
//!    the next start.
//!
//! The steps use reserved resources. Connections leave file descriptors free
//! (`server/connection/accept.rs`). When a step fails, sstable files are closed and reserved disk
//! space ([`DiskReserve`]) is released.
//!
//! A node that cannot prepare a change for [`FOLLOW_LIMIT`] ends. Before that, it refuses changes
//! of the metadata with the reason.

use super::decode;
use super::definition::{Change, Op};
use super::recovery::{Recovered, snapshot_of};
use super::service::{Dropped, MetadataService};
use super::state::{Metadata, Table};
use super::touched::Touched;
use crate::raft::{Machine, Outcome};
use engine::{DiskReserve, EngineError};
use futures_util::FutureExt;
use futures_util::future::LocalBoxFuture;
use model::id::TableId;
use model::schema::TableSchema;
use rt::shard::PerShard;
use rt::sync::{Cancel, Semaphore};
use rt::time::{Duration, Instant};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;
use uuid::Uuid;

/// A node that cannot apply a committed change for this long ends.
const FOLLOW_LIMIT: Duration = Duration::from_secs(300);
/// After failing for this long, metadata changes are refused with the reason.
const APPLY_STUCK_AFTER: Duration = Duration::from_secs(2);
/// The pause after the first failure; it doubles up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(20);
/// The longest pause between two attempts.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// The interval of log lines about a failing change.
const LOG_EVERY: Duration = Duration::from_secs(10);
/// How long a change waits for the removal of obsolete data.
const REMOVAL_WAIT: Duration = Duration::from_secs(10);
/// The pause between two attempts to remove data.
const REMOVE_AGAIN: Duration = Duration::from_secs(5);
/// While removals are pending, the metadata log may grow to this many times its usual length,
/// because only the log names the data that a start must remove.
const PENDING_REMOVALS_WEIGHT: u64 = 16;
/// While removals are pending, at least this many entries are between two snapshots.
const PENDING_REMOVALS_ENTRIES: u64 = 256 * PENDING_REMOVALS_WEIGHT;

/// The progress of this node in applying changes. On shard 0.
pub(super) struct Following {
    /// Cancelled by [`MetadataService::stop`]: ends all retries.
    pub stop: Cancel,
    apply_failure: RefCell<Option<ApplyFailure>>,
    /// The versions that refused changes would have led to. A later change must not be based on one
    /// of them.
    refused: RefCell<BTreeSet<Uuid>>,
    removals: Removals,
    reserve: DiskReserve,
    /// The total number of failed attempts.
    failures: Cell<u64>,
}

/// A failing step.
struct ApplyFailure {
    since: Instant,
    why: String,
}

/// A dropped table with a directory that must be removed.
#[derive(Clone)]
struct Removal {
    dropped: Dropped,
    /// An attempt has failed: a shard may have left sstables behind.
    failed_before: bool,
}

/// The directories to remove once no shard has the table any more.
struct Removals {
    tables: RefCell<Vec<Removal>>,
    turn: Semaphore,
    /// A background task repeats failed removals.
    repeats: Cell<bool>,
    /// More tables were dropped while that task was running.
    more: Cell<bool>,
}

impl Default for Removals {
    fn default() -> Self {
        Removals {
            tables: RefCell::default(),
            turn: Semaphore::new(1),
            repeats: Cell::new(false),
            more: Cell::new(false),
        }
    }
}

impl Following {
    /// The state of a node with this disk reserve.
    pub fn new(reserve: DiskReserve) -> Following {
        Following {
            stop: Cancel::new(),
            apply_failure: RefCell::default(),
            refused: RefCell::default(),
            removals: Removals::default(),
            reserve,
            failures: Cell::new(0),
        }
    }

    /// Why this node has not applied a committed change for [`APPLY_STUCK_AFTER`], if so.
    pub fn apply_failure(&self) -> Option<String> {
        let failure = self.apply_failure.borrow();
        failure
            .as_ref()
            .filter(|failure| failure.since.elapsed() >= APPLY_STUCK_AFTER)
            .map(|failure| failure.why.clone())
    }

    /// The number of failed attempts.
    pub fn failures(&self) -> u64 {
        self.failures.get()
    }

    /// Repeats a step until it succeeds. After [`FOLLOW_LIMIT`] it gives up with the last error. It
    /// never returns when the node stops: the group must not consider the change applied, and needs
    /// no error.
    async fn until_done(
        &self,
        services: PerShard<MetadataService>,
        step: impl AsyncFn() -> Result<(), String>,
    ) -> Result<(), String> {
        let (mut pause, mut logged_at) = (FIRST_PAUSE, None::<Instant>);
        while let Err(why) = step().await {
            if self.stop.is_cancelled() {
                return std::future::pending().await;
            }
            self.failures.set(self.failures.get() + 1);
            let since = self.apply_failure.borrow().as_ref().map_or_else(rt::time::now, |failure| failure.since);
            if since.elapsed() >= FOLLOW_LIMIT {
                return Err(format!(
                    "a committed change of the metadata could not be applied for {FOLLOW_LIMIT:?}: {why}"
                ));
            }
            if logged_at.is_none_or(|logged_at| logged_at.elapsed() >= LOG_EVERY) {
                logged_at = Some(rt::time::now());
                tracing::error!(why, failing_for = ?since.elapsed(), ends_after = ?FOLLOW_LIMIT,
                    "a committed change of the metadata cannot be applied on this node; retrying");
            }
            self.apply_failure.replace(Some(ApplyFailure { since, why }));
            if let Err(error) = self.reserve.release().await {
                tracing::debug!(%error, "the reserved disk space cannot be released");
            }
            services.call_all(|service| async move { service.engine().give_back_files() }).await;
            let pausing = async { rt::shard::stopping().unless(rt::time::sleep(pause)).await };
            if self.stop.unless(pausing).await.flatten().is_none() {
                return std::future::pending().await;
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
        if let Some(failure) = self.apply_failure.take()
            && logged_at.is_some()
        {
            tracing::info!(after = ?failure.since.elapsed(), "the change of the metadata is applied now");
            self.reserve.take().await;
        }
        Ok(())
    }

    fn has_removals(&self) -> bool {
        self.removals.repeats.get()
    }
}

/// A table that begins an epoch.
struct Begin {
    schema: Rc<TableSchema>,
    epoch: u64,
    /// This node has no table with this id, or another one. The table begins empty.
    is_new: bool,
    /// For the names of snapshots.
    at_micros: i64,
}

impl Begin {
    fn of(before: &Metadata, table: &Table, at_micros: i64) -> Begin {
        let is_new = before.table_by_id(table.schema.id).is_none_or(|known| !known.has_directory_of(table));
        Begin { schema: table.schema.clone(), epoch: table.epoch, is_new, at_micros }
    }
}

/// Begins epochs of tables on all shards of this node, before any shard publishes the metadata with
/// these epochs. The tables' data is discarded, durably. From here on, requests with earlier
/// metadata get a refusal.
async fn begin_epochs(service: &Rc<MetadataService>, begins: &[Begin]) -> Result<(), String> {
    for begin in begins {
        let Begin { schema, epoch, is_new, at_micros } = begin;
        let begun = match is_new {
            true => begin_empty(service, schema, *epoch, *at_micros).await,
            false => begin_epoch(service, schema, *epoch, *at_micros).await,
        };
        begun.map_err(|why| format!("table {}.{} cannot be made empty: {why}", schema.keyspace, schema.name))?;
    }
    Ok(())
}

/// Begins the first epoch of a table with an id that an earlier table may have had. First all
/// shards remove the earlier table. Its pending removal is cancelled, because it would remove the
/// new table's data.
async fn begin_empty(
    service: &Rc<MetadataService>,
    schema: &TableSchema,
    epoch: u64,
    at_micros: i64,
) -> Result<(), String> {
    let id = schema.id;
    let parted = service.shards().metadata.call_all(move |service| async move {
        service.part_from(id, at_micros).await.map_err(|why| format!("shard {}: {why}", rt::shard::this().0))?;
        Ok::<_, String>(service.engine().log_end())
    });
    let running = parted.await.into_iter().collect::<Result<Vec<_>, String>>()?;
    let removals = &service.leading().following.removals;
    let _turn = removals.turn.acquire().await.map_err(|_| "the node is stopping")?;
    let begun = service.engine().begin_empty(schema, epoch, &running, at_micros).await;
    begun.map_err(|error| error.to_string())?;
    // The removal of a directory with another name continues.
    let is_same = |table: &Table| table.schema.keyspace == schema.keyspace && table.schema.name == schema.name;
    let is_void = |table: &Table| table.schema.id == id && is_same(table);
    removals.tables.borrow_mut().retain(|removal| !is_void(&removal.dropped.table));
    Ok(())
}

async fn begin_epoch(
    service: &MetadataService,
    schema: &TableSchema,
    epoch: u64,
    at_micros: i64,
) -> Result<(), String> {
    let id = schema.id;
    let truncated = service.shards().metadata.call_all(move |service| async move {
        let done = service.engine().truncate_at(id, epoch, at_micros).await;
        service.forget_queriers(id);
        match done {
            // The table is created with this metadata.
            Ok(_) | Err(EngineError::NoSuchTable(_)) => Ok(()),
            Err(error) => Err(format!("shard {}: {error}", rt::shard::this().0)),
        }
    });
    truncated.await.into_iter().collect::<Result<(), String>>()?;
    service.engine().begin_epoch(schema, epoch).await.map_err(|error| error.to_string())
}

/// The source of new metadata.
#[derive(Clone)]
pub(super) enum Source {
    /// An encoded change.
    Change(Vec<u8>),
    /// A snapshot of the leader.
    Snapshot(Vec<u8>),
}

/// The group's state machine: the metadata on all shards of this node.
pub(super) struct AllShards(pub PerShard<MetadataService>);

impl AllShards {
    async fn apply(&self, bytes: Vec<u8>) -> Result<Outcome, String> {
        let service = self.0.get();
        let following = &service.leading().following;
        let change: Change = decode(&bytes).map_err(|why| {
            format!("the change after version {} of the metadata cannot be decoded: {why}", service.current().version)
        })?;
        if following.refused.borrow().contains(&change.previous) {
            return Err(format!("the cluster has applied change {}, which this node refused", change.previous));
        }
        let before = service.current();
        if change.previous != before.version {
            return Ok(Outcome::Stale);
        }
        if let Err(error) = before.apply(&change) {
            following.refused.borrow_mut().insert(change.new);
            tracing::error!(version = %change.new, %error, "the node refused a committed change of the metadata: the change has no effect");
            return Ok(Outcome::Failed(error.to_string()));
        }
        let at_micros = change.made_at().unwrap_or_else(rt::time::wall_micros);
        let truncated: Vec<TableId> = change.ops.iter().filter_map(Op::truncated).collect();
        let begins = |after: &Metadata| {
            let tables = truncated.iter().filter_map(|table| after.table_by_id(*table));
            tables.map(|table| Begin::of(&before, table, at_micros)).collect::<Vec<_>>()
        };
        let have_left = AllShards::follow(&service, Source::Change(bytes), at_micros, begins).await?;
        service.remember(change.new);
        AllShards::remove(&service, have_left).await;
        Ok(Outcome::Applied)
    }

    async fn take_over(&self, snapshot: Vec<u8>) -> Result<(), String> {
        let service = self.0.get();
        let (before, at_micros) = (service.current(), rt::time::wall_micros());
        let known = |table: &Table| before.table_by_id(table.schema.id).map_or(0, |known| known.epoch);
        let begins = |after: &Metadata| {
            let begins = after.tables().filter(|table| table.epoch > known(table));
            begins.map(|table| Begin::of(&before, table, at_micros)).collect::<Vec<_>>()
        };
        let have_left = AllShards::follow(&service, Source::Snapshot(snapshot), at_micros, begins).await?;
        service.leading().following.refused.take();
        AllShards::remove(&service, have_left).await;
        Ok(())
    }

    /// Stages, prepares and publishes. `at_micros` is in the names of the snapshots of removed
    /// data, the same on all shards. Returns whether tablets have left a shard.
    async fn follow(
        service: &Rc<MetadataService>,
        source: Source,
        at_micros: i64,
        begins: impl FnOnce(&Metadata) -> Vec<Begin>,
    ) -> Result<bool, String> {
        let (before, following) = (service.current(), &service.leading().following);
        let services = service.shards().metadata;
        let staged = services.call_all(move |service| {
            let source = source.clone();
            async move { service.stage(source) }
        });
        // Shard 0 could stage the change, so another shard that cannot must have other metadata.
        staged.await.into_iter().collect::<Result<(), String>>()?;
        let begins = service.staged().map_or_else(Vec::new, |staged| begins(&staged.metadata));
        following.until_done(services, async || begin_epochs(service, &begins).await).await?;
        let prepared = async || {
            let prepared = services.call_all(|service| async move {
                let prepared = service.prepare().await;
                prepared.map_err(|why| format!("shard {}: {why}", rt::shard::this().0))
            });
            prepared.await.into_iter().collect()
        };
        following.until_done(services, prepared).await?;
        let have_left = services.call_all(move |service| async move { service.show(at_micros) }).await;
        service.changed(&before);
        Ok(have_left.contains(&true))
    }

    /// Removes the data that the last change made obsolete: of tablets that have left in the
    /// background, of dropped tables at once. If that fails or takes long, a background task
    /// continues.
    async fn remove(service: &Rc<MetadataService>, have_left: bool) {
        let removals = &service.leading().following.removals;
        let dropped = service.just_dropped();
        if dropped.is_empty() && !have_left {
            return;
        }
        let waits = !dropped.is_empty();
        let fresh = dropped.into_iter().map(|dropped| Removal { dropped, failed_before: false });
        removals.tables.borrow_mut().extend(fresh);
        if !waits {
            repeat(service, Duration::ZERO);
            return;
        }
        // Tablets that have left may be removed at the same time: that keeps no drop waiting.
        let removed = rt::time::timeout(REMOVAL_WAIT, remove_once(service)).await;
        if !matches!(removed, Ok(Ok(()))) {
            // An interrupted removal may leave sstables in the directory.
            removals.tables.borrow_mut().iter_mut().for_each(|removal| removal.failed_before = true);
            if let Ok(Err(why)) = removed {
                tracing::warn!(why, "dropped data cannot be removed from the disk; retrying");
            }
            repeat(service, REMOVE_AGAIN);
        }
    }
}

/// Repeats removals in the background, beginning after `pause`. If that has begun already, requests
/// one more round.
fn repeat(service: &Rc<MetadataService>, pause: Duration) {
    let removals = &service.leading().following.removals;
    match removals.repeats.replace(true) {
        true => removals.more.set(true),
        false => rt::task::spawn(keep_removing(service.clone(), pause)).detach(),
    }
}

/// Repeats removals until nothing is left to remove. `pause` is the time before the first.
async fn keep_removing(service: Rc<MetadataService>, mut pause: Duration) {
    let following = &service.leading().following;
    let mut logged_at = rt::time::now();
    loop {
        if following.stop.unless(rt::time::sleep(pause)).await.is_none() {
            return;
        }
        pause = REMOVE_AGAIN;
        following.removals.more.set(false);
        match remove_once(&service).await {
            Ok(()) if !following.removals.more.get() => break,
            Ok(()) => pause = Duration::ZERO,
            Err(why) if logged_at.elapsed() >= LOG_EVERY => {
                logged_at = rt::time::now();
                tracing::warn!(why, "dropped data still cannot be removed from the disk; retrying");
            }
            Err(_) => {}
        }
    }
    following.removals.repeats.set(false);
}

/// Removes the data of dropped tables and of tablets that moved away: on every shard, then the
/// tables' directories.
pub(super) async fn remove_once(service: &Rc<MetadataService>) -> Result<(), String> {
    let removals = &service.leading().following.removals;
    let Ok(_turn) = removals.turn.acquire().await else { return Ok(()) };
    let tables = removals.tables.borrow().clone();
    let removed = service.shards().metadata.call_all(|service| async move { service.remove_left().await });
    let mut removed = removed.await.into_iter().collect::<Result<(), String>>();
    if removed.is_ok() {
        for Removal { dropped: Dropped { table, at_micros }, failed_before } in &tables {
            let done = match failed_before {
                false => service.engine().remove_directory(&table.schema).await,
                true => service.engine().sweep_dropped(&table.schema, *at_micros).await.map(drop),
            };
            match done {
                Ok(()) => {
                    removals.tables.borrow_mut().retain(|other| !Rc::ptr_eq(&other.dropped.table, table));
                }
                Err(error) => removed = Err(error.to_string()),
            }
        }
    }
    if removed.is_err() {
        removals.tables.borrow_mut().iter_mut().for_each(|removal| removal.failed_before = true);
    }
    removed
}

impl Machine for AllShards {
    fn apply(&self, command: Vec<u8>) -> LocalBoxFuture<'_, Result<Outcome, String>> {
        AllShards::apply(self, command).boxed_local()
    }

    fn weight(&self) -> u64 {
        let Some(service) = self.0.try_get() else { return 0 };
        let tables = service.current().table_count() as u64;
        match service.leading().following.has_removals() {
            true => (tables * PENDING_REMOVALS_WEIGHT).max(PENDING_REMOVALS_ENTRIES),
            false => tables,
        }
    }

    fn snapshot(&self) -> LocalBoxFuture<'static, Vec<u8>> {
        snapshot_of(self.0.get().current()).boxed_local()
    }

    fn install(&self, snapshot: Vec<u8>) -> LocalBoxFuture<'_, Result<(), String>> {
        self.take_over(snapshot).boxed_local()
    }

    fn apply_failure(&self) -> Option<String> {
        self.0.try_get()?.leading().following.apply_failure()
    }
}

/// The metadata that a shard publishes next.
#[derive(Clone)]
pub(super) struct Staged {
    pub metadata: Rc<Metadata>,
    pub touched: Rc<Touched>,
}

impl Staged {
    /// Computes the metadata that a change or a snapshot leads to.
    pub fn of(before: &Metadata, source: Source) -> Result<Staged, String> {
        let (metadata, touched) = match source {
            Source::Change(bytes) => {
                let change: Change = decode(&bytes)?;
                let metadata = before.apply(&change).map_err(|error| error.to_string())?;
                let touched = Touched::by(before, &metadata, &change.ops);
                (metadata, touched)
            }
            Source::Snapshot(bytes) => {
                let metadata = Recovered::of_snapshot(bytes).metadata().map_err(|error| error.to_string())?;
                let touched = Touched::between(before, &metadata);
                (metadata, touched)
            }
        };
        Ok(Staged { metadata: Rc::new(metadata), touched: Rc::new(touched) })
    }
}
