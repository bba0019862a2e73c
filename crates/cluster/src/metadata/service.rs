//! One shard's copy of the metadata, and its part in applying committed changes.

use super::builtin;
use super::follow::{AllShards, Following, Source, Staged};
use super::leaving::Left;
use super::recovery::{MetadataLog, OpenError, Recovered, RemovedData};
use super::shards::ClusterShards;
use super::state::{Metadata, Table};
use super::touched::Touched;
use crate::raft::Group;
use crate::tablets::TabletReplica;
use crate::topology::{Topology, features};
use engine::{Engine, TabletRange};
use model::id::{HostId, TableId};
use model::range::PartitionRange;
use rt::ShardId;
use rt::sync::Deadline;
use rt::task::Task;
use rt::time::Duration;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, VecDeque};
use std::net::IpAddr;
use std::rc::{Rc, Weak};
use uuid::Uuid;

/// The number of tables that are opened concurrently.
const TABLES_AT_ONCE: usize = 32;

/// The number of versions kept, to find out the outcome of a change.
const HISTORY: usize = 1024;

/// The default time limit of a change.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(60);

/// The interval at which a waited-for condition is checked.
const LOOK: Duration = Duration::from_millis(1);

/// The description of this node; the same on every shard.
#[derive(Clone, Debug)]
pub struct NodeInfo {
    /// Its identity.
    pub host_id: HostId,
    /// The cluster's name.
    pub cluster_name: String,
    /// The number of its shards.
    pub shards: usize,
    /// Its datacenter.
    pub datacenter: String,
    /// Its rack.
    pub rack: String,
    /// The address for clients.
    pub rpc_address: IpAddr,
    /// The address on which it listens for other nodes.
    pub listen_address: IpAddr,
    /// The address that is announced to other nodes.
    pub broadcast_address: IpAddr,
    /// The port for clients.
    pub native_port: u16,
    /// The port at which a client chooses its shard by its source port.
    pub shard_aware_port: u16,
    /// The port for other nodes.
    pub storage_port: u16,
    /// The release version that is reported to clients.
    pub release_version: String,
    /// When it started, in microseconds since the epoch.
    pub started_micros: i64,
}

impl NodeInfo {
    /// The time since its start, in microseconds.
    pub fn uptime_micros(&self) -> i64 {
        (rt::time::wall_micros() - self.started_micros).max(0)
    }
}

/// Why a shard's metadata did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The recovered metadata is invalid.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The engine could not apply it.
    #[error("{0}")]
    Storage(String),
}

/// Called with every topology that differs from the one before.
type TopologyListener = Rc<dyn Fn(&Topology)>;
/// Called after every change with the metadata before and after it, once all shards have applied
/// it.
type ChangeListener = Rc<dyn Fn(&Metadata, &Metadata)>;

/// The metadata of one shard.
pub struct MetadataService {
    current: RefCell<Rc<Metadata>>,
    /// Earlier snapshots that may still be in use.
    earlier: RefCell<Vec<Weak<Metadata>>>,
    /// The metadata that is published next; see [`super::follow`].
    staged: RefCell<Option<Staged>>,
    /// Tables and tablets that this shard no longer owns, and that the engine still has.
    pub(super) left: RefCell<Vec<Left>>,
    /// The tablets that this shard hands over to other shards of this node.
    pub(super) handing: RefCell<BTreeSet<(TableId, u32)>>,
    /// One removal at a time.
    pub(super) removing: rt::sync::Semaphore,
    /// Tables that are no longer in the metadata, and that the engine is removing.
    pub(super) dropping: RefCell<Vec<Rc<Table>>>,
    /// Dropped tables with directories that must be removed.
    just_dropped: RefCell<Vec<Dropped>>,
    listeners: RefCell<Vec<TopologyListener>>,
    change_listeners: RefCell<Vec<ChangeListener>>,
    pub(super) engine: Rc<Engine>,
    info: Rc<NodeInfo>,
    /// What all shards of this node have.
    pub(super) shards: ClusterShards,
    /// The tables with a running [`crate::refresh`]. On shard 0.
    pub(crate) refreshing: RefCell<BTreeSet<TableId>>,
    /// On shard 0 only.
    leading: Option<Leading>,
}

/// The state of shard 0.
pub(super) struct Leading {
    pub group: Rc<Group>,
    /// One change of this node at a time.
    pub turn: rt::sync::Semaphore,
    /// The time limit for agreement on a change.
    pub timeout: Cell<Duration>,
    /// The application of committed changes.
    pub following: Following,
    /// The most recent versions.
    history: RefCell<VecDeque<Uuid>>,
}

/// A table that the metadata no longer has.
#[derive(Clone)]
pub(super) struct Dropped {
    pub table: Rc<Table>,
    /// When it was dropped, in microseconds since 1970. The name of the snapshot contains it.
    pub at_micros: i64,
}

impl MetadataService {
    /// Starts a shard's service, and adds the tables of the metadata to the engine. Shard 0 gets
    /// the log, and starts first.
    pub async fn start(
        engine: Rc<Engine>,
        info: Rc<NodeInfo>,
        shards: ClusterShards,
        recovered: &Recovered,
        log: Option<MetadataLog>,
    ) -> Result<Rc<Self>, StartError> {
        let (metadata, removed) = recovered.metadata_and_removed(info.host_id)?;
        engine.set_lists_sstables(metadata.topology.has_feature(features::SSTABLE_LISTS));
        if log.is_some() {
            // Before any shard opens tables, shard 0 completes the file operations that a crash
            // interrupted. It also splits files that span tablets: an operator may have added such
            // files.
            let (host, shard_count) = (info.host_id, info.shards);
            let prepare = |table: Rc<Table>| {
                let engine = engine.clone();
                async move {
                    let ranges =
                        (0..table.tablets.count()).map(|id| TabletRange { id, range: table.tablets.range(id) });
                    let tablets: Vec<TabletRange> = ranges.collect();
                    if table.epoch > 0 {
                        let now = rt::time::wall_micros();
                        let done = engine.catch_up_with_epoch(&table.schema, &tablets, table.epoch, now).await;
                        done.map_err(|error| error.to_string())?;
                    }
                    let own = on_node(&table, host, shard_count);
                    engine.reshard(table.schema.clone(), &tablets, &own).await.map_err(|error| error.to_string())
                }
            };
            let at_micros = rt::time::wall_micros();
            sweep(&engine, &removed, at_micros).await;
            side_by_side(metadata.tables().cloned().collect(), prepare).await.map_err(StartError::Storage)?;
        } else {
            let found = rt::shard::call(ShardId(0), move || async move {
                shards.engine.try_get().map(|engine| engine.found_sstables()).unwrap_or_default()
            });
            engine.expect(found.await);
        }
        let leading = match log {
            Some(MetadataLog { opened, dir }) => {
                let group = Group::start(opened, dir, &info.cluster_name, Rc::new(AllShards(shards.metadata))).await;
                let group = group.map_err(OpenError::Group)?;
                let following = Following::new(engine.disk_reserve());
                let (turn, timeout) = (rt::sync::Semaphore::new(1), Cell::new(CHANGE_TIMEOUT));
                Some(Leading { group, turn, timeout, following, history: RefCell::default() })
            }
            None => None,
        };
        let service = Rc::new(MetadataService {
            current: RefCell::new(Rc::new(Metadata::empty())),
            earlier: RefCell::default(),
            staged: RefCell::default(),
            left: RefCell::default(),
            handing: RefCell::default(),
            removing: rt::sync::Semaphore::new(1),
            dropping: RefCell::default(),
            just_dropped: RefCell::default(),
            listeners: RefCell::default(),
            change_listeners: RefCell::default(),
            engine,
            info,
            shards,
            refreshing: RefCell::default(),
            leading,
        });
        let all = Touched { put: metadata.tables().cloned().collect(), dropped: Vec::new() };
        service.staged.replace(Some(Staged { metadata: Rc::new(metadata), touched: Rc::new(all) }));
        service.prepare().await.map_err(StartError::Storage)?;
        service.show(rt::time::wall_micros());
        let listing = Rc::downgrade(&service.engine);
        service.on_topology(move |topology| {
            if let Some(engine) = listing.upgrade() {
                engine.set_lists_sstables(topology.has_feature(features::SSTABLE_LISTS));
            }
        });
        Ok(service)
    }

    /// The newest metadata of this shard.
    #[inline]
    pub fn current(&self) -> Rc<Metadata> {
        self.current.borrow().clone()
    }

    /// The number of the newest metadata.
    #[inline]
    pub fn number(&self) -> u64 {
        self.current.borrow().number
    }

    /// A table of the newest metadata, or a table that is being dropped.
    pub fn table_even_if_dropping(&self, id: TableId) -> Option<Rc<Table>> {
        let dropping = self.dropping.borrow();
        let found = dropping.iter().find(|table| table.schema.id == id).cloned();
        found.or_else(|| self.current.borrow().table_by_id(id).cloned())
    }

    /// The description of this node.
    pub fn info(&self) -> &Rc<NodeInfo> {
        &self.info
    }

    /// The services of all shards of this node.
    pub fn shards(&self) -> ClusterShards {
        self.shards
    }

    /// The Raft group. On shard 0 only.
    pub fn group(&self) -> Option<&Rc<Group>> {
        self.leading.as_ref().map(|leading| &leading.group)
    }

    pub(super) fn leading(&self) -> &Leading {
        self.leading.as_ref().expect("shard 0 leads the others")
    }

    /// Sets the time limit for agreement on a change (`group0_raft_op_timeout_in_ms`). No effect on
    /// other shards than shard 0.
    pub fn set_change_timeout(&self, timeout: Duration) {
        if let Some(leading) = &self.leading {
            leading.timeout.set(timeout);
        }
    }

    /// Whether this node is the leader, by its own knowledge. On shard 0 only.
    pub fn is_leader(&self) -> bool {
        self.group().is_some_and(|group| group.is_leader())
    }

    /// Calls `listener` with the current topology, and with every later one on this shard.
    pub fn on_topology(&self, listener: impl Fn(&Topology) + 'static) {
        listener(&self.current().topology);
        self.listeners.borrow_mut().push(Rc::new(listener));
    }

    /// Calls `listener` after every later change, once all shards of this node have applied it. On
    /// shard 0.
    pub fn on_change(&self, listener: impl Fn(&Metadata, &Metadata) + 'static) {
        self.change_listeners.borrow_mut().push(Rc::new(listener));
    }

    /// Calls the change listeners. All shards have applied the change after `before`.
    pub(super) fn changed(&self, before: &Metadata) {
        let (now, listeners) = (self.current(), self.change_listeners.borrow().clone());
        listeners.iter().for_each(|listener| listener(before, &now));
    }

    /// Waits until this shard has the metadata of a number, or newer. False if the deadline passed.
    pub async fn wait_for_number(&self, number: u64, until: Deadline) -> bool {
        while self.current.borrow().number < number {
            if until.is_past() {
                return false;
            }
            rt::time::sleep(LOOK).await;
        }
        true
    }

    /// Waits for the metadata that routed a request: of this number, or newer. The request holds
    /// the returned metadata until its end. A wait for old metadata to become unused then also
    /// waits for requests that began under it. None if the deadline passed.
    pub async fn for_request(&self, number: u64, until: Deadline) -> Option<Rc<Metadata>> {
        self.wait_for_number(number, until).await.then(|| self.current())
    }

    /// Waits until this shard has the metadata of `number`, and no request on it uses older
    /// metadata. False if the deadline passed.
    pub async fn wait_until_unused(&self, number: u64, until: Deadline) -> bool {
        loop {
            let is_used = {
                let mut earlier = self.earlier.borrow_mut();
                earlier.retain(|metadata| metadata.strong_count() > 0);
                earlier.iter().any(|metadata| metadata.upgrade().is_some_and(|metadata| metadata.number < number))
            };
            if !is_used && self.current.borrow().number >= number {
                return true;
            }
            if until.is_past() {
                return false;
            }
            rt::time::sleep(LOOK).await;
        }
    }

    /// Whether a recent change led to this version. On shard 0.
    pub(super) fn has_reached(&self, version: Uuid) -> bool {
        self.current.borrow().version == version || self.leading().history.borrow().contains(&version)
    }

    /// Records that a change led to this version. On shard 0.
    pub(super) fn remember(&self, version: Uuid) {
        let mut history = self.leading().history.borrow_mut();
        history.push_back(version);
        if history.len() > HISTORY {
            history.pop_front();
        }
    }

    pub(super) fn engine(&self) -> &Rc<Engine> {
        &self.engine
    }

    /// Why this node cannot apply a committed change, once it has retried for some time; and the
    /// total number of failed attempts. Empty on other shards than shard 0.
    pub fn apply_failure(&self) -> (Option<String>, u64) {
        let following = self.leading.as_ref().map(|leading| &leading.following);
        following.map_or((None, 0), |following| (following.apply_failure(), following.failures()))
    }

    /// Checks that the metadata log is still on disk. The error is for the operator.
    pub async fn check_log(&self) -> Result<(), String> {
        match &self.leading {
            Some(leading) => leading.group.check_log().await,
            None => Ok(()),
        }
    }

    /// Ends the group on this node. On shard 0, when no more changes are made.
    pub async fn stop(&self) {
        if let Some(leading) = &self.leading {
            leading.following.stop.cancel();
            leading.group.stop().await;
        }
    }

    /// Computes the metadata that a change or a snapshot leads to. See [`super::follow`] for the
    /// next steps.
    pub(super) fn stage(&self, source: Source) -> Result<(), String> {
        let staged = Staged::of(&self.current(), source)?;
        self.staged.replace(Some(staged));
        Ok(())
    }

    /// The metadata that is published next.
    pub(super) fn staged(&self) -> Option<Staged> {
        self.staged.borrow().clone()
    }

    /// Adds the tables and tablets of the staged metadata to the engine. After an error, a
    /// repetition resumes where this call ended.
    pub(super) async fn prepare(&self) -> Result<(), String> {
        let Some(Staged { touched, .. }) = self.staged.borrow().clone() else { return Ok(()) };
        let (old, mut fresh) = (self.current(), Vec::new());
        for table in &touched.put {
            let before = old.table_by_id(table.schema.id);
            super::added_again::finish_flushes(&self.engine, before.map(|before| &*before.schema), &table.schema).await;
            if !self.engine.has_table(table.schema.id) {
                fresh.push(table.clone());
            } else if before.is_none_or(|before| !Rc::ptr_eq(&before.tablets, &table.tablets)) {
                self.finish_shard_moves(table).await?;
                self.take_tablets(before.map(|before| &**before), table).await?;
            }
        }
        let add = |table: Rc<Table>| {
            let (engine, own) = (self.engine.clone(), self.own_tablets(&table));
            async move {
                let ranges = own.into_iter().map(|id| TabletRange { id, range: table.tablets.range(id) });
                let added = engine.add_table(table.schema.clone(), ranges.collect()).await;
                engine.set_epoch(table.schema.id, table.epoch);
                added.map_err(|error| error.to_string())
            }
        };
        side_by_side(fresh, add).await?;
        for table in &touched.put {
            let counted = self.engine.count_apart(table.schema.id, &self.pending_tablets(table)).await;
            counted.map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    /// Publishes the staged metadata. The engine is prepared for it, so a new table exists before
    /// any request can use it. `at_micros` is the time of drops, the same on all shards. Returns
    /// whether tablets have left this shard.
    pub(super) fn show(&self, at_micros: i64) -> bool {
        let Some(Staged { metadata, touched }) = self.staged.take() else { return false };
        let mut have_left = false;
        let old = self.current();
        assert!(old.number <= metadata.number, "the metadata of a shard never go back");
        for table in &touched.put {
            let id = table.schema.id;
            let before = old.table_by_id(id);
            self.show_shard_moves(before.map(|before| &**before), table);
            debug_assert!(self.has_or_expects_all(table), "a shard has its tablets before it shows them");
            let Some(before) = before else { continue };
            if before.schema.version != table.schema.version {
                self.engine.update_schema(table.schema.clone());
                self.forget_queriers(id);
            }
            if !Rc::ptr_eq(&before.tablets, &table.tablets) {
                let (own, here) = (self.own_tablets(table), self.engine.tablets_of(id));
                for tablet in here.difference(&own).filter(|tablet| !self.is_handing(id, **tablet)) {
                    self.forget_queriers_of_tablet(id, &before.tablets.range(*tablet));
                    if let Some(to) = self.handed_to(before, table, *tablet) {
                        self.hand_over(id, *tablet, to);
                        continue;
                    }
                    self.leave([Left::Tablet(id, *tablet)]);
                    have_left = true;
                }
            }
        }
        touched.put.iter().for_each(|table| self.keep_tombstones_of_pending(table));
        let moved = metadata.topology != old.topology;
        let before = self.current.replace(metadata);
        self.earlier.borrow_mut().retain(|earlier| earlier.strong_count() > 0);
        self.earlier.borrow_mut().push(Rc::downgrade(&before));
        drop((before, old));
        if moved {
            let (topology, listeners) = (self.current().topology.clone(), self.listeners.borrow().clone());
            listeners.iter().for_each(|listener| listener(&topology));
        }
        // If another table has the id now, this shard has already removed the dropped one. Only its
        // directory is left.
        let current = self.current();
        for table in touched.dropped.iter().filter(|table| current.table_by_id(table.schema.id).is_none()) {
            self.dropping.borrow_mut().push(table.clone());
            self.engine.forget_shard_moves(table.schema.id);
            self.forget_queriers(table.schema.id);
            self.leave([Left::Table(table.schema.id, at_micros)]);
        }
        if self.leading.is_some() {
            let dropped = touched.dropped.iter().map(|table| Dropped { table: table.clone(), at_micros });
            self.just_dropped.borrow_mut().extend(dropped);
        }
        have_left
    }

    /// The tables that were dropped since the last call.
    pub(super) fn just_dropped(&self) -> Vec<Dropped> {
        self.just_dropped.take()
    }

    /// Evicts the queriers of a table.
    pub(super) fn forget_queriers(&self, table: TableId) {
        // There is no replica service while the node starts.
        if let Some(replica) = self.shards.replica.try_get() {
            replica.forget_queriers(Some(table));
        }
    }

    /// Evicts the queriers of a tablet.
    fn forget_queriers_of_tablet(&self, table: TableId, range: &PartitionRange) {
        if let Some(replica) = self.shards.replica.try_get() {
            replica.forget_queriers_of_tablet(table, range);
        }
    }

    /// Keeps compaction from purging tombstones of the tablets of a table that this shard is still
    /// receiving: the data that a tombstone covers may arrive later.
    fn keep_tombstones_of_pending(&self, table: &Table) {
        self.engine.set_pending_tablets(table.schema.id, &self.pending_tablets(table));
    }

    /// The tablets of a table that this shard is still receiving.
    fn pending_tablets(&self, table: &Table) -> BTreeSet<u32> {
        let here = TabletReplica { host: self.info.host_id, shard: rt::shard::this().0 };
        let moving = table.tablets.transitions().map(|(tablet, _)| tablet);
        moving.filter(|tablet| table.tablets.is_incomplete(*tablet, here)).collect()
    }

    fn has_or_expects_all(&self, table: &Table) -> bool {
        let (there, expected) =
            (self.engine.tablets_of(table.schema.id), self.engine.expected_tablets(table.schema.id));
        self.own_tablets(table).iter().all(|tablet| there.contains(tablet) || expected.contains(tablet))
    }

    /// The tablets of a table that belong on this shard.
    pub(super) fn own_tablets(&self, table: &Table) -> BTreeSet<u32> {
        let own = rt::shard::this();
        match builtin::is_built_in(&table.schema.keyspace) && own == ShardId(0) {
            true => (0..table.tablets.count()).collect(),
            false => table.tablets.on_shard(self.info.host_id, own).collect(),
        }
    }
}

/// The tablets of a table on any shard of a node.
fn on_node(table: &Table, host: HostId, shards: usize) -> BTreeSet<u32> {
    match builtin::is_built_in(&table.schema.keyspace) {
        true => (0..table.tablets.count()).collect(),
        false => (0..shards).flat_map(|shard| table.tablets.on_shard(host, ShardId(shard as u16))).collect(),
    }
}

/// Runs `work` for each of `tables`, up to [`TABLES_AT_ONCE`] concurrently, because a start mostly
/// waits for files. The first error ends it.
async fn side_by_side<F>(tables: Vec<Rc<Table>>, work: impl Fn(Rc<Table>) -> F) -> Result<(), String>
where
    F: Future<Output = Result<(), String>> + 'static,
{
    let (mut result, mut running) = (Ok(()), VecDeque::new());
    for table in tables {
        if running.len() == TABLES_AT_ONCE
            && let Some(oldest) = running.pop_front()
        {
            result = finished(oldest).await;
        }
        if result.is_err() {
            break;
        }
        running.push_back(rt::task::spawn(work(table)));
    }
    // Waits for all, so that no work on a table is running when the error is returned.
    for task in running {
        result = result.and(finished(task).await);
    }
    result
}

pub(super) async fn finished(task: Task<Result<(), String>>) -> Result<(), String> {
    task.await.unwrap_or_else(|_| Err("the node is stopping".into()))
}

/// Finishes removals that a crash interrupted: the directories of tables that logged changes
/// dropped, and the data of tablets that moved away. Directories that the log does not name are
/// left alone. A failure is only logged, because the data takes up space but does no harm.
async fn sweep(engine: &Engine, removed: &RemovedData, at_micros: i64) {
    for table in &removed.tables {
        if let Err(error) = engine.sweep_dropped(&table.schema, at_micros).await {
            let (keyspace, name) = (&table.schema.keyspace, &table.schema.name);
            tracing::warn!(keyspace, table = name, %error, "the directory of a dropped table cannot be removed, and takes up disk space");
        }
    }
    for (table, tablet) in &removed.tablets {
        if let Err(error) = engine.sweep_tablet(&table.schema, &table.tablets.range(*tablet)).await {
            let (keyspace, name) = (&table.schema.keyspace, &table.schema.name);
            tracing::warn!(keyspace, table = name, tablet, %error, "the data of a tablet that moved away cannot be removed, and takes up disk space");
        }
    }
}
