//! One shard's copy of the metadata, and how it follows the changes that the group decides.

use super::definition::{Change, Op};
use super::recovery::{Gone, MetadataLog, OpenError, Recovered, snapshot_of};
use super::state::{Metadata, Table};
use super::touched::Touched;
use super::{builtin, decode};
use crate::raft::{Group, Machine, Outcome};
use crate::topology::Topology;
use engine::{Engine, EngineError, TabletRange};
use futures_util::FutureExt;
use futures_util::future::LocalBoxFuture;
use model::id::{HostId, TableId};
use model::schema::TableSchema;
use replica::Replica;
use rt::ShardId;
use rt::sync::Deadline;
use rt::task::Task;
use rt::time::Duration;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, VecDeque};
use std::net::IpAddr;
use std::rc::{Rc, Weak};
use uuid::Uuid;

/// How many tables are opened at the same time.
const TABLES_AT_ONCE: usize = 32;

/// How many versions are remembered, to find out what became of a change.
const HISTORY: usize = 1024;

/// How long a change may take unless somebody says otherwise.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(60);

/// After how long it is tried again to make the data of a table void.
const TRUNCATE_AGAIN: Duration = Duration::from_secs(1);

/// How often it is looked whether what is waited for has come about.
const LOOK: Duration = Duration::from_millis(1);

/// What this node is; the same on every shard.
#[derive(Clone, Debug)]
pub struct NodeInfo {
    /// Its identity.
    pub host_id: HostId,
    /// The cluster's name.
    pub cluster_name: String,
    /// How many shards it has.
    pub shards: usize,
    /// Its datacenter.
    pub datacenter: String,
    /// Its rack.
    pub rack: String,
    /// Where clients reach it.
    pub rpc_address: IpAddr,
    /// Where nodes reach it.
    pub listen_address: IpAddr,
    /// Where others are told to reach it.
    pub broadcast_address: IpAddr,
    /// The port for clients.
    pub native_port: u16,
    /// The port at which a client chooses its shard.
    pub shard_aware_port: u16,
    /// The port for nodes.
    pub storage_port: u16,
    /// The version that clients are told.
    pub release_version: String,
    /// When it started, in microseconds since the epoch.
    pub started_micros: i64,
}

/// Why a shard's metadata did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// What was read back does not fit.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The engine could not follow.
    #[error("{0}")]
    Storage(String),
}

/// Told of every topology that differs from the one before.
type TopologyListener = Rc<dyn Fn(&Topology)>;
/// Told of every change, once all shards have it: what was before, and what is now.
type ChangeListener = Rc<dyn Fn(&Metadata, &Metadata)>;

/// One shard's view of the metadata.
pub struct MetadataService {
    current: RefCell<Rc<Metadata>>,
    /// Earlier ones that somebody may still use.
    earlier: RefCell<Vec<Weak<Metadata>>>,
    /// Tables that are gone from the metadata, and from which the engine is just parting.
    dropping: RefCell<Vec<Rc<Table>>>,
    listeners: RefCell<Vec<TopologyListener>>,
    change_listeners: RefCell<Vec<ChangeListener>>,
    engine: Rc<Engine>,
    info: Rc<NodeInfo>,
    /// On shard 0 only.
    leading: Option<Leading>,
}

/// What only shard 0 has.
pub(super) struct Leading {
    pub group: Rc<Group>,
    /// One change of this node at a time.
    pub turn: rt::sync::Semaphore,
    /// How long a change may take until a majority has agreed.
    pub timeout: Cell<Duration>,
    /// The versions that were reached last.
    history: RefCell<VecDeque<Uuid>>,
}

impl MetadataService {
    /// Starts a shard's service: the tables of the metadata are added to the engine. Shard 0 gets the log, and starts first.
    pub async fn start(
        engine: Rc<Engine>,
        info: Rc<NodeInfo>,
        recovered: &Recovered,
        log: Option<MetadataLog>,
    ) -> Result<Rc<Self>, StartError> {
        let (metadata, gone) = recovered.metadata_and_gone(info.host_id)?;
        if log.is_some() {
            // Shard 0 starts first: what a crash interrupted is finished, and files that span tablets (put there by hand) are split,
            // before any shard opens them.
            let prepare = |table: Rc<Table>| {
                let engine = engine.clone();
                async move {
                    let ranges =
                        (0..table.tablets.count()).map(|id| TabletRange { id, range: table.tablets.range(id) });
                    let tablets: Vec<TabletRange> = ranges.collect();
                    if table.epoch > 0 {
                        let done = engine.catch_up_with_epoch(&table.schema, table.epoch).await;
                        done.map_err(|error| error.to_string())?;
                    }
                    engine.reshard(table.schema.clone(), &tablets).await.map_err(|error| error.to_string())
                }
            };
            sweep(&engine, &gone).await;
            side_by_side(metadata.tables().cloned().collect(), prepare).await.map_err(StartError::Storage)?;
        } else {
            let found = rt::shard::call(ShardId(0), || async {
                rt::shard::try_service::<Engine>().map(|engine| engine.found_sstables()).unwrap_or_default()
            });
            engine.expect(found.await);
        }
        let leading = match log {
            Some(MetadataLog { opened, dir }) => {
                let group = Group::start(opened, dir, &info.cluster_name, Rc::new(AllShards)).await;
                let group = group.map_err(OpenError::Group)?;
                let (turn, timeout) = (rt::sync::Semaphore::new(1), Cell::new(CHANGE_TIMEOUT));
                Some(Leading { group, turn, timeout, history: RefCell::default() })
            }
            None => None,
        };
        let service = Rc::new(MetadataService {
            current: RefCell::new(Rc::new(Metadata::empty())),
            earlier: RefCell::default(),
            dropping: RefCell::default(),
            listeners: RefCell::default(),
            change_listeners: RefCell::default(),
            engine,
            info,
            leading,
        });
        let all = Touched { put: metadata.tables().cloned().collect(), dropped: Vec::new() };
        service.install(metadata, all).await.map_err(StartError::Storage)?;
        Ok(service)
    }

    /// The newest metadata that this shard knows.
    pub fn current(&self) -> Rc<Metadata> {
        self.current.borrow().clone()
    }

    /// Its number.
    pub fn number(&self) -> u64 {
        self.current.borrow().number
    }

    /// A table of the newest metadata, or one that is just being dropped.
    pub fn table_even_if_dropping(&self, id: TableId) -> Option<Rc<Table>> {
        let dropping = self.dropping.borrow();
        let found = dropping.iter().find(|table| table.schema.id == id).cloned();
        found.or_else(|| self.current.borrow().table_by_id(id).cloned())
    }

    /// What this node is.
    pub fn info(&self) -> &Rc<NodeInfo> {
        &self.info
    }

    /// The group that decides on changes. On shard 0 only.
    pub fn group(&self) -> Option<&Rc<Group>> {
        self.leading.as_ref().map(|leading| &leading.group)
    }

    pub(super) fn leading(&self) -> &Leading {
        self.leading.as_ref().expect("shard 0 leads the others")
    }

    /// Changes may take this long from now on, until a majority has agreed (`group0_raft_op_timeout_in_ms`). Nothing but on shard 0.
    pub fn set_change_timeout(&self, timeout: Duration) {
        if let Some(leading) = &self.leading {
            leading.timeout.set(timeout);
        }
    }

    /// Whether this node decides what happens in the cluster, as far as it knows. On shard 0 only.
    pub fn is_leader(&self) -> bool {
        self.group().is_some_and(|group| group.is_leader())
    }

    /// Has `listener` told of the topology now, and of every later one on this shard.
    pub fn on_topology(&self, listener: impl Fn(&Topology) + 'static) {
        listener(&self.current().topology);
        self.listeners.borrow_mut().push(Rc::new(listener));
    }

    /// Has `listener` told of every change from now on, when all shards of this node have it. On shard 0.
    pub fn on_change(&self, listener: impl Fn(&Metadata, &Metadata) + 'static) {
        self.change_listeners.borrow_mut().push(Rc::new(listener));
    }

    /// All shards have what differs from `before`.
    fn changed(&self, before: &Metadata) {
        let (now, listeners) = (self.current(), self.change_listeners.borrow().clone());
        listeners.iter().for_each(|listener| listener(before, &now));
    }

    /// Waits until this shard has the metadata of a number, or later. False if the time ran out.
    pub async fn wait_for_number(&self, number: u64, until: Deadline) -> bool {
        while self.current.borrow().number < number {
            if until.is_past() {
                return false;
            }
            rt::time::sleep(LOOK).await;
        }
        true
    }

    /// Waits until nobody on this shard uses metadata of a number below `number` any more. False if the time ran out.
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

    /// Whether a change led to this version, not too long ago. On shard 0.
    pub(super) fn has_reached(&self, version: Uuid) -> bool {
        self.current.borrow().version == version || self.leading().history.borrow().contains(&version)
    }

    /// Ends the group on this node. On shard 0, when nobody makes changes any more.
    pub async fn stop(&self) {
        if let Some(group) = self.group() {
            group.stop().await;
        }
    }

    async fn apply_encoded(&self, bytes: &[u8]) -> Result<(), String> {
        let change: Change = decode(bytes)?;
        let before = self.current();
        let metadata = before.apply(&change).map_err(|error| error.to_string())?;
        let touched = Touched::by(&before, &metadata, &change.ops);
        self.install(metadata, touched).await
    }

    /// Takes over the metadata of a snapshot.
    async fn take_over(&self, snapshot: Vec<u8>) -> Result<(), String> {
        let metadata = Recovered::of_snapshot(snapshot).metadata().map_err(|error| error.to_string())?;
        let touched = Touched::between(&self.current(), &metadata);
        self.install(metadata, touched).await
    }

    /// Makes the engine follow, then shows the new metadata: a table is there before anybody can ask for it.
    async fn install(&self, metadata: Metadata, touched: Touched) -> Result<(), String> {
        let old = self.current();
        let own = rt::shard::this();
        let (mut fresh, mut parted, host) = (Vec::new(), Vec::new(), self.info.host_id);
        for table in &touched.put {
            match old.table_by_id(table.schema.id) {
                None => fresh.push(table.clone()),
                Some(before) => {
                    if before.schema.version != table.schema.version {
                        self.engine.update_schema(table.schema.clone());
                        forget_queriers(table.schema.id);
                    }
                    parted.extend(self.take_tablets(before, table).await?);
                }
            }
        }
        let add = |table: Rc<Table>| {
            let engine = self.engine.clone();
            async move {
                let local = builtin::is_built_in(&table.schema.keyspace) && own == ShardId(0);
                let on_shard: Vec<u32> = match local {
                    true => (0..table.tablets.count()).collect(),
                    false => table.tablets.on_shard(host, own).collect(),
                };
                let ranges = on_shard.into_iter().map(|id| TabletRange { id, range: table.tablets.range(id) });
                let added = engine.add_table(table.schema.clone(), ranges.collect()).await;
                engine.set_epoch(table.schema.id, table.epoch);
                added.map_err(|error| error.to_string())
            }
        };
        side_by_side(fresh, add).await?;
        let dropped = touched.dropped;
        let moved = metadata.topology != old.topology;
        let before = self.current.replace(Rc::new(metadata));
        self.earlier.borrow_mut().retain(|earlier| earlier.strong_count() > 0);
        self.earlier.borrow_mut().push(Rc::downgrade(&before));
        drop((before, old));
        if moved {
            let (topology, listeners) = (self.current().topology.clone(), self.listeners.borrow().clone());
            listeners.iter().for_each(|listener| listener(&topology));
        }
        self.dropping.borrow_mut().clone_from(&dropped);
        let mut done = Ok(());
        for table in dropped {
            forget_queriers(table.schema.id);
            done = self.engine.drop_table(table.schema.id).await.map_err(|error| error.to_string());
            if done.is_err() {
                break;
            }
        }
        self.dropping.take();
        for (table, tablet) in parted {
            forget_queriers(table);
            if done.is_ok() {
                done = self.engine.drop_tablet(table, tablet).await.map_err(|error| error.to_string());
            }
        }
        done
    }

    /// Has the engine take in the tablets of a table that come to this shard, and says which it has to part with.
    async fn take_tablets(&self, before: &Table, table: &Table) -> Result<Vec<(TableId, u32)>, String> {
        if Rc::ptr_eq(&before.tablets, &table.tablets) || builtin::is_built_in(&table.schema.keyspace) {
            return Ok(Vec::new());
        }
        let (id, own) = (table.schema.id, rt::shard::this());
        let on_shard = |table: &Table| table.tablets.on_shard(self.info.host_id, own).collect::<BTreeSet<u32>>();
        let (had, has) = (on_shard(before), on_shard(table));
        for tablet in has.difference(&had) {
            let range = TabletRange { id: *tablet, range: table.tablets.range(*tablet) };
            self.engine.add_tablet(id, range).await.map_err(|error| error.to_string())?;
        }
        Ok(had.difference(&has).map(|tablet| (id, *tablet)).collect())
    }
}

/// A table whose epoch begins, and its epoch.
type Begins = (Rc<TableSchema>, u64);

/// Has the epochs of tables begin on all shards of this node, before any of them shows the metadata that say so: what the tables hold is void,
/// durably, and what was routed by earlier metadata is refused from here on. It is tried until it is done or the node stops: nobody may go on
/// with what others have truncated. On shard 0.
async fn begin_epochs(engine: &Engine, begins: Vec<Begins>) -> Result<(), String> {
    for (schema, epoch) in begins {
        while let Err(why) = begin_epoch(engine, &schema, epoch).await {
            tracing::error!(
                keyspace = schema.keyspace,
                table = schema.name,
                why,
                "a table cannot be truncated; trying again"
            );
            if rt::shard::stopping().unless(rt::time::sleep(TRUNCATE_AGAIN)).await.is_none() {
                return Err(why);
            }
        }
    }
    Ok(())
}

async fn begin_epoch(engine: &Engine, schema: &TableSchema, epoch: u64) -> Result<(), String> {
    let id = schema.id;
    let truncated = rt::shard::call_all(move || async move {
        let done = rt::shard::service::<MetadataService>().engine.truncate_at(id, epoch).await;
        forget_queriers(id);
        match done {
            // It comes with the metadata.
            Ok(_) | Err(EngineError::NoSuchTable(_)) => Ok(()),
            Err(error) => Err(format!("shard {}: {error}", rt::shard::this().0)),
        }
    });
    truncated.await.into_iter().collect::<Result<(), String>>()?;
    engine.begin_epoch(schema, epoch).await.map_err(|error| error.to_string())
}

/// The machine of the group: the metadata on all shards of this node. Shard 0 knows what it was before.
struct AllShards;

impl AllShards {
    async fn carry_out(bytes: Vec<u8>) -> Outcome {
        let service = rt::shard::service::<MetadataService>();
        let change: Change = match decode(&bytes) {
            Ok(change) => change,
            Err(why) => return Outcome::Failed(why),
        };
        let before = service.current();
        if change.previous != before.version {
            return Outcome::Stale;
        }
        let begins = change.ops.iter().filter_map(|op| match op {
            Op::Truncate { table, epoch } => Some((before.table_by_id(*table)?.schema.clone(), *epoch)),
            _ => None,
        });
        if let Err(why) = begin_epochs(&service.engine, begins.collect()).await {
            return Outcome::Failed(why);
        }
        let applied = rt::shard::call_all(move || {
            let bytes = bytes.clone();
            async move { rt::shard::service::<MetadataService>().apply_encoded(&bytes).await }
        });
        if let Err(why) = applied.await.into_iter().collect::<Result<(), String>>() {
            return Outcome::Failed(why);
        }
        service.changed(&before);
        {
            let mut history = service.leading().history.borrow_mut();
            history.push_back(change.new);
            if history.len() > HISTORY {
                history.pop_front();
            }
        }
        let dropped = Touched::by(&before, &service.current(), &change.ops).dropped;
        remove_directories(&service, dropped).await.map_or_else(Outcome::Failed, |()| Outcome::Applied)
    }

    async fn take_over(snapshot: Vec<u8>) -> Result<(), String> {
        let service = rt::shard::service::<MetadataService>();
        let before = service.current();
        let after = Recovered::of_snapshot(snapshot.clone()).metadata().map_err(|error| error.to_string())?;
        let known = |table: &Table| before.table_by_id(table.schema.id).map_or(0, |known| known.epoch);
        let begins = after.tables().filter(|table| table.epoch > known(table));
        begin_epochs(&service.engine, begins.map(|table| (table.schema.clone(), table.epoch)).collect()).await?;
        let taken = rt::shard::call_all(move || {
            let snapshot = snapshot.clone();
            async move { rt::shard::service::<MetadataService>().take_over(snapshot).await }
        });
        taken.await.into_iter().collect::<Result<(), String>>()?;
        service.changed(&before);
        let dropped = Touched::between(&before, &service.current()).dropped;
        remove_directories(&service, dropped).await
    }
}

impl Machine for AllShards {
    fn apply(&self, command: Vec<u8>) -> LocalBoxFuture<'_, Outcome> {
        AllShards::carry_out(command).boxed_local()
    }

    fn weight(&self) -> u64 {
        rt::shard::try_service::<MetadataService>().map_or(0, |service| service.current().table_count() as u64)
    }

    fn snapshot(&self) -> Vec<u8> {
        snapshot_of(&rt::shard::service::<MetadataService>().current())
    }

    fn install(&self, snapshot: Vec<u8>) -> LocalBoxFuture<'_, Result<(), String>> {
        AllShards::take_over(snapshot).boxed_local()
    }
}

/// Removes what is left on disk of tables that no shard has any more.
async fn remove_directories(service: &MetadataService, dropped: Vec<Rc<Table>>) -> Result<(), String> {
    for table in dropped {
        service.engine.remove_directory(&table.schema).await.map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// Does `work` for each of `tables`, some at a time: at start it is mostly waiting for files. The first error ends it.
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
    // All are waited for: nothing works on a table any more when the error is known.
    for task in running {
        result = result.and(finished(task).await);
    }
    result
}

async fn finished(task: Task<Result<(), String>>) -> Result<(), String> {
    task.await.unwrap_or_else(|_| Err("the node is stopping".into()))
}

/// Gives back at once what readers hold that were kept for the next pages of a table.
fn forget_queriers(table: TableId) {
    // There is none while the node starts.
    if let Some(replica) = rt::shard::try_service::<Replica>() {
        replica.forget_queriers(Some(table));
    }
}

/// Finishes what a crash interrupted: the directories of tables that logged changes dropped, and what is left of tablets that moved away.
/// A directory of which the log says nothing is left alone. What cannot be removed takes up space and is in nobody's way, so it is reported
/// only.
async fn sweep(engine: &Engine, gone: &Gone) {
    for table in &gone.tables {
        if let Err(error) = engine.sweep_dropped(&table.schema).await {
            let (keyspace, name) = (&table.schema.keyspace, &table.schema.name);
            tracing::warn!(keyspace, table = name, %error, "the directory of a dropped table cannot be removed");
        }
    }
    for (table, tablet) in &gone.tablets {
        if let Err(error) = engine.sweep_tablet(&table.schema, &table.tablets.range(*tablet)).await {
            let (keyspace, name) = (&table.schema.keyspace, &table.schema.name);
            tracing::warn!(keyspace, table = name, tablet, %error, "what is left of a tablet that moved away cannot be removed");
        }
    }
}
