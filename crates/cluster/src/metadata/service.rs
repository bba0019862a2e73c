//! The shell around the metadata: its journal on shard 0, its copy on every shard, and the making of changes.

use super::builtin;
use super::definition::{Change, Op, TabletsDefinition};
use super::state::{INITIAL_VERSION, Metadata, MetadataError};
use crate::tablets::{self, TabletReplica};
use engine::journal::{Journal, JournalError};
use engine::{Engine, TabletRange};
use model::id::HostId;
use rt::ShardId;
use std::cell::{Cell, RefCell};
use std::net::IpAddr;
use std::path::Path;
use std::rc::Rc;
use thiserror::Error;
use uuid::Uuid;

/// Changes in the journal before it is cut to a snapshot.
const SNAPSHOT_EVERY: u64 = 256;

/// The version byte of journalled changes and snapshots.
const FORMAT: u8 = 1;

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

/// Why a change was not made.
#[derive(Debug, Error)]
pub enum ChangeError<E> {
    /// The one who makes it refused.
    #[error("{0}")]
    Refused(E),
    /// It does not fit.
    #[error(transparent)]
    Metadata(#[from] MetadataError),
    /// It could not be written down or carried out.
    #[error("{0}")]
    Storage(String),
}

/// Why the metadata could not be read back.
#[derive(Debug, Error)]
pub enum OpenError {
    /// The journal is damaged or cannot be read.
    #[error("metadata journal: {0}")]
    Journal(#[from] JournalError),
    /// A journalled change does not fit.
    #[error("metadata journal: {0}")]
    Metadata(#[from] MetadataError),
    /// An entry cannot be understood.
    #[error("metadata journal: entry {0} cannot be understood: {1}")]
    Entry(Uuid, String),
}

/// One shard's view of the metadata.
pub struct MetadataService {
    current: RefCell<Rc<Metadata>>,
    engine: Rc<Engine>,
    info: Rc<NodeInfo>,
    /// On shard 0 only.
    journal: Option<JournalKeeper>,
}

struct JournalKeeper {
    journal: Journal,
    turn: rt::sync::Semaphore,
    since_snapshot: Cell<u64>,
}

/// The journal as it was read back: changes in their encoded form, for every shard to apply.
#[derive(Clone, Debug, Default)]
pub struct Recovered {
    snapshot: Option<Vec<u8>>,
    changes: Vec<Vec<u8>>,
}

impl Recovered {
    /// The metadata they lead to.
    pub fn metadata(&self) -> Result<Metadata, OpenError> {
        let mut metadata = Metadata::empty().with(&builtin::ops())?;
        if let Some(snapshot) = &self.snapshot {
            let (number, version, ops): (u64, Uuid, Vec<Op>) =
                decode(snapshot).map_err(|why| OpenError::Entry(Uuid::nil(), why))?;
            metadata = metadata.with(&ops)?;
            metadata.number = number;
            metadata.version = version;
        }
        for bytes in &self.changes {
            let change: Change = decode(bytes).map_err(|why| OpenError::Entry(metadata.version, why))?;
            metadata = metadata.apply(&change)?;
        }
        Ok(metadata)
    }
}

/// The id of a version in the journal, where nothing is before the first change.
fn journal_id(version: Uuid) -> Uuid {
    if version == INITIAL_VERSION { Uuid::nil() } else { version }
}

/// Opens the journal, on shard 0 and before any shard's service starts. If the node's shard count has changed, the tablets are
/// spread over the shards that there are, as one more change.
pub async fn open_journal(dir: &Path, host: HostId, shards: usize) -> Result<(Journal, Recovered), OpenError> {
    let (journal, entries, snapshot) = Journal::open(dir).await?;
    let mut recovered = Recovered {
        snapshot: snapshot.map(|snapshot| snapshot.body.to_vec()),
        changes: entries.into_iter().map(|entry| entry.body.to_vec()).collect(),
    };
    let metadata = recovered.metadata()?;
    let ops = respread(&metadata, host, shards);
    if !ops.is_empty() {
        tracing::info!(shards, tables = ops.len(), "the shard count has changed: spreading tablets over the shards");
        let change = Change { previous: metadata.version, new: rt::random::uuid_v4(), ops };
        let bytes = encode(&change);
        journal.append(journal_id(change.previous), change.new, &bytes).await?;
        recovered.changes.push(bytes);
    }
    Ok((journal, recovered))
}

/// Tablets that no shard of this node serves any more, because it has fewer or more shards than before, are spread anew: the
/// steps that do it.
fn respread(metadata: &Metadata, host: HostId, shards: usize) -> Vec<Op> {
    let mut load = vec![0; shards];
    let mut ops = Vec::new();
    for table in metadata.tables().filter(|table| !builtin::is_built_in(&table.schema.keyspace)) {
        let map = &table.tablets;
        let used = (0..shards as u16).filter(|shard| map.on_shard(host, ShardId(*shard)).next().is_some()).count();
        let homeless = (0..map.count()).any(|tablet| {
            let gone = |replica: &TabletReplica| replica.host == host && replica.shard as usize >= shards;
            map.replicas(tablet).is_empty() || map.replicas(tablet).iter().any(gone)
        });
        let spread = if homeless || used < shards.min(map.count() as usize) {
            let spread = tablets::allocate(map.count(), host, &load);
            ops.push(Op::PutTablets(TabletsDefinition {
                table: table.schema.id,
                replicas: (0..spread.count()).map(|tablet| spread.replicas(tablet).to_vec()).collect(),
            }));
            Rc::new(spread)
        } else {
            map.clone()
        };
        for (shard, load) in load.iter_mut().enumerate() {
            *load += spread.on_shard(host, ShardId(shard as u16)).count() as u32;
        }
    }
    ops
}

impl MetadataService {
    /// Starts a shard's service: the tables of the metadata are added to the engine. Shard 0 gets the journal.
    pub async fn start(
        engine: Rc<Engine>,
        info: Rc<NodeInfo>,
        recovered: &Recovered,
        journal: Option<Journal>,
    ) -> Result<Rc<Self>, ChangeError<OpenError>> {
        let metadata = recovered.metadata().map_err(ChangeError::Refused)?;
        let journal = journal.map(|journal| JournalKeeper {
            journal,
            turn: rt::sync::Semaphore::new(1),
            since_snapshot: Cell::new(recovered.changes.len() as u64),
        });
        if journal.is_some() {
            // Shard 0 starts first: what a crash interrupted is finished, and files that span tablets (put there by hand) are split,
            // before any shard opens them.
            for table in metadata.tables() {
                let tablets: Vec<TabletRange> =
                    (0..table.tablets.count()).map(|id| TabletRange { id, range: table.tablets.range(id) }).collect();
                let prepared = engine.reshard(table.schema.clone(), &tablets).await;
                prepared.map_err(|error| ChangeError::Storage(error.to_string()))?;
            }
        }
        let empty = RefCell::new(Rc::new(Metadata::empty()));
        let service = Rc::new(MetadataService { current: empty, engine, info, journal });
        service.install(metadata).await.map_err(ChangeError::Storage)?;
        Ok(service)
    }

    /// The newest metadata that this shard knows.
    pub fn current(&self) -> Rc<Metadata> {
        self.current.borrow().clone()
    }

    /// What this node is.
    pub fn info(&self) -> &Rc<NodeInfo> {
        &self.info
    }

    async fn apply_encoded(&self, bytes: &[u8]) -> Result<(), String> {
        let change: Change = decode(bytes)?;
        let metadata = self.current().apply(&change).map_err(|error| error.to_string())?;
        self.install(metadata).await
    }

    /// Makes the engine follow, then shows the new metadata: a table is there before anybody can ask for it.
    async fn install(&self, metadata: Metadata) -> Result<(), String> {
        let old = self.current();
        let own = rt::shard::this();
        for table in metadata.tables() {
            let tablets = || -> Vec<TabletRange> {
                let on_shard = table.tablets.on_shard(self.info.host_id, own);
                let local = builtin::is_built_in(&table.schema.keyspace) && own == ShardId(0);
                let on_shard: Vec<u32> = if local { (0..table.tablets.count()).collect() } else { on_shard.collect() };
                on_shard.into_iter().map(|id| TabletRange { id, range: table.tablets.range(id) }).collect()
            };
            match old.table_by_id(table.schema.id) {
                None => {
                    self.engine.add_table(table.schema.clone(), tablets()).await.map_err(|error| error.to_string())?;
                }
                Some(before) => {
                    if before.schema.version != table.schema.version {
                        self.engine.update_schema(table.schema.clone());
                    }
                }
            }
        }
        let dropped: Vec<_> =
            old.tables().filter(|table| metadata.table_by_id(table.schema.id).is_none()).cloned().collect();
        *self.current.borrow_mut() = Rc::new(metadata);
        for table in dropped {
            self.engine.drop_table(table.schema.id).await.map_err(|error| error.to_string())?;
        }
        Ok(())
    }
}

/// Makes a change: runs `make` on shard 0 against the newest metadata, one change at a time; journals what it returns, applies
/// it on every shard, and only then returns. No steps: nothing to change. From any shard.
pub async fn change<T, E, F>(make: F) -> Result<T, ChangeError<E>>
where
    F: FnOnce(&Metadata, &NodeInfo) -> Result<(Vec<Op>, T), E> + Send + 'static,
    T: Send + 'static,
    E: Send + 'static,
{
    rt::shard::call(ShardId(0), move || async move {
        let service = rt::shard::service::<MetadataService>();
        // A change that began is finished even if the client goes away: its journal entry must reach every shard.
        let task = rt::task::spawn(async move { change_here(&service, make).await });
        task.await.unwrap_or_else(|_| Err(ChangeError::Storage("the node is stopping".into())))
    })
    .await
}

async fn change_here<T, E, F>(service: &Rc<MetadataService>, make: F) -> Result<T, ChangeError<E>>
where
    F: FnOnce(&Metadata, &NodeInfo) -> Result<(Vec<Op>, T), E>,
{
    let keeper = service.journal.as_ref().expect("shard 0 keeps the journal");
    let _turn = keeper.turn.acquire().await;
    let current = service.current();
    let (ops, result) = make(&current, &service.info).map_err(ChangeError::Refused)?;
    if ops.is_empty() {
        return Ok(result);
    }
    let change = Change { previous: current.version, new: rt::random::uuid_v4(), ops };
    current.apply(&change)?;
    let bytes = encode(&change);
    let storage = |error: JournalError| ChangeError::Storage(error.to_string());
    keeper.journal.append(journal_id(change.previous), change.new, &bytes).await.map_err(storage)?;
    let applied = rt::shard::call_all(move || {
        let bytes = bytes.clone();
        async move { rt::shard::service::<MetadataService>().apply_encoded(&bytes).await }
    })
    .await;
    for result in applied {
        result.map_err(ChangeError::Storage)?;
    }
    let now = service.current();
    for table in current.tables().filter(|table| now.table_by_id(table.schema.id).is_none()) {
        let removed = service.engine.remove_directory(&table.schema).await;
        removed.map_err(|error| ChangeError::Storage(error.to_string()))?;
    }
    keeper.since_snapshot.set(keeper.since_snapshot.get() + 1);
    if keeper.since_snapshot.get() >= SNAPSHOT_EVERY {
        let metadata = service.current();
        let body = encode(&(metadata.number, metadata.version, metadata.as_ops(builtin::is_built_in)));
        keeper.journal.snapshot(metadata.version, &body).await.map_err(storage)?;
        keeper.since_snapshot.set(0);
    }
    Ok(result)
}

fn encode<T: serde::Serialize>(value: &T) -> Vec<u8> {
    let out = vec![FORMAT];
    postcard::to_extend(value, out).expect("metadata can be encoded")
}

fn decode<T: serde::de::DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    match bytes.split_first() {
        Some((&FORMAT, body)) => postcard::from_bytes(body).map_err(|error| error.to_string()),
        Some((version, _)) => Err(format!("format {version} is newer than this release knows")),
        None => Err("it is empty".into()),
    }
}
