//! How a node joins its cluster, and leaves the network at a stop: internode transport, discovery,
//! and admission.
//!
//! `stack` calls these functions on shard 0, in the order of this file. A node without seeds has no
//! internode transport, opens no port for other nodes, and is a cluster of one.

use crate::config::Config;
use crate::config::handoff::Handoff;
use crate::inventory;
use crate::runs::{self, Runs};
use crate::seeds::Seeds;
use crate::stack_config::StackConfig;
use crate::start_error::StartError;
use crate::wire::OpenWire;
use cluster::metadata::{self, ChangeError, MetadataLog, MetadataService, Op, Recovered, own_node};
use cluster::raft;
use cluster::topology::admission::Admission;
use cluster::topology::admit;
use cluster::topology::balancer;
use cluster::topology::barrier;
use cluster::topology::foreign_seeds;
use cluster::topology::join::{self, SearchOutcome};
use cluster::topology::locate;
use cluster::topology::migration_driver::{MigrationDriver, Streaming};
use cluster::topology::search_progress::SearchProgress;
use cluster::topology::write_marks::WriteMarks;
use cluster::topology::{NodeState, features, topology_coordinator};
use cluster::{ClusterShards, NodeInfo};
use coordinator::Coordinator;
use coordinator::hints::{self, Hints, HintsConfig, HintsSettings};
use coordinator::resync::ResyncShards;
use engine::datadir::InventoryKeeper;
use futures_util::future::{Either, select};
use internode::{Identity, Internode, InternodeConfig, InternodeListener};
use model::HostId;
use replica::Replica;
use rt::shard::PerShard;
use rt::sync::Deadline;
use rt::task::Group;
use rt::time::Duration;
use rt::tls::PeerTls;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::rc::Rc;
use streaming::{StreamService, StreamSettings, TabletStreamer};

/// How long an admitted node may take to receive the metadata of the cluster.
const LEARN: Duration = Duration::from_secs(120);
/// Hints may take the disk size divided by this.
const HINTS_SHARE: u64 = 10;
/// The pause before a node retries to announce itself.
const PAUSE: Duration = Duration::from_secs(1);

/// The configuration of a node that can have other nodes in its cluster.
#[derive(Clone, Debug)]
pub struct ClusterConfig {
    /// The seeds: addresses at which the node looks for its cluster first.
    pub seeds: Seeds,
    /// The address on which the node listens for other nodes.
    pub listen: SocketAddr,
    /// The limits of connections between nodes.
    pub internode: InternodeConfig,
    /// TLS of connections between nodes, if configured.
    pub tls: Option<PeerTls>,
    /// The settings with defaults.
    pub settings: ClusterSettings,
}

/// Settings with defaults, of a node that can have other nodes in its cluster.
#[derive(Clone, Debug)]
pub struct ClusterSettings {
    /// `hints_directory`; none: in the data directory.
    pub hints_directory: Option<PathBuf>,
    /// The settings of hints.
    pub hints: HintsSettings,
    /// `group0_raft_op_timeout_in_ms`.
    pub change_timeout: Duration,
    /// The text about what the node waits for while it looks for its cluster.
    pub progress: SearchProgress,
    /// `replace_node_first_boot`.
    pub replaces: Option<HostId>,
}

impl Default for ClusterSettings {
    fn default() -> Self {
        let change_timeout = Duration::from_secs(60);
        let (hints, progress) = (HintsSettings::default(), SearchProgress::default());
        ClusterSettings { hints_directory: None, hints, change_timeout, progress, replaces: None }
    }
}

/// The open internode transport.
pub struct OpenInternode {
    internode: Rc<Internode>,
    running: internode::Running,
    seeds: Seeds,
    admission: Rc<Admission>,
    progress: SearchProgress,
}

/// The metadata, and whether this node still has to receive it.
pub struct OpenMetadata {
    /// The log.
    pub log: MetadataLog,
    /// The loaded metadata.
    pub recovered: Recovered,
    /// Whether the node was admitted during this start.
    pub joins: bool,
}

/// Opens the internode transport, if the node has seeds. From then on other nodes can send
/// requests.
pub async fn open_internode(shards: ResyncShards, config: &StackConfig) -> Result<Option<OpenInternode>, StartError> {
    let Some(cluster) = &config.cluster else { return Ok(None) };
    let info = &config.info;
    let identity = Identity {
        host: info.host_id,
        cluster: info.cluster_name.clone(),
        address: SocketAddr::new(info.broadcast_address, info.storage_port),
        datacenter: info.datacenter.clone(),
        rack: info.rack.clone(),
        features: features::supported(),
    };
    let listener = InternodeListener::open(cluster.listen).await;
    let listener = listener.map_err(|error| StartError(error.to_string()))?;
    let internodes = shards.cluster.internode;
    internode::install(internodes, identity, cluster.internode, Some(cluster.listen.ip()), cluster.tls.clone()).await;
    let internode = internodes.get();
    let marks = WriteMarks::open(&config.data_dir, info.host_id).await.map_err(StartError::because)?;
    let admission = Admission::new(shards.cluster, marks);
    join::serve(&internode, &admission);
    barrier::serve(&internode, shards.cluster.metadata);
    coordinator::resync::serve(&internode, shards);
    crate::admin::hot::serve(&internode, shards.cluster);
    let running = internode::serve(internode.clone(), listener);
    let (seeds, progress) = (cluster.seeds.clone(), cluster.settings.progress.clone());
    Ok(Some(OpenInternode { internode, running, seeds, admission, progress }))
}

/// Opens the metadata: from disk, as a new member of a cluster that admits this node, or as a new
/// cluster.
pub async fn open_metadata(config: &StackConfig, wire: Option<&OpenInternode>) -> Result<OpenMetadata, StartError> {
    let (dir, info) = (&config.data_dir, &config.info);
    let begins = async || {
        let (log, recovered) = metadata::open_log(dir, info).await.map_err(StartError::because)?;
        Ok(OpenMetadata { log, recovered, joins: false })
    };
    let Some(wire) = wire else {
        let found = begins().await?;
        if !found.log.is_alone() {
            let why = "the data directory belongs to a member of a cluster of several nodes: set `seeds` to the addresses of other \
                members";
            return Err(StartError(why.into()));
        }
        return Ok(found);
    };
    if metadata::is_member(dir, info).await.map_err(StartError::because)? {
        let found = begins().await?;
        check_can_start(&found, info)?;
        return Ok(found);
    }
    let own = own_node(info, NodeState::Joining);
    let seeds = wire.seeds.find(own.internode(), &wire.progress).await;
    let replaces = config.cluster.as_ref().and_then(|cluster| cluster.settings.replaces);
    let searched = join::search(&wire.admission, &wire.internode, &own, replaces, seeds, &wire.progress).await;
    match searched.map_err(StartError)? {
        SearchOutcome::Nothing if replaces.is_some() => Err(StartError(
            "replace_node_first_boot is set, and there is no cluster at the seeds: set `seeds` to addresses of its members".to_owned(),
        )),
        SearchOutcome::Nothing => begins().await,
        SearchOutcome::Cluster(nodes) => {
            internode::publish_book(wire.internode.shards(), join::address_book(nodes.iter())).await;
            let (log, recovered) = metadata::open_log_to_join(dir, info).await.map_err(StartError::because)?;
            Ok(OpenMetadata { log, recovered, joins: true })
        }
    }
}

/// Refuses a node that has left its cluster, and a smaller number of shards in a cluster of several
/// nodes. The cluster's metadata has the shard of each tablet, so a node cannot move tablets
/// between its shards on its own.
fn check_can_start(found: &OpenMetadata, info: &NodeInfo) -> Result<(), StartError> {
    let metadata = found.recovered.metadata().map_err(StartError::because)?;
    match metadata.topology.node(info.host_id) {
        Some(known) if !known.state.is_member() => Err(StartError(format!(
            "node {} has left its cluster and cannot come back: to have this machine join as a new node, start it with an empty data \
             directory",
            info.host_id
        ))),
        Some(known) if !found.log.is_alone() && usize::from(known.shards) > info.shards => Err(StartError(format!(
            "this node had {0} shards and is started with {1}. In a cluster of several nodes the number of \
             shards can only grow: start the node with --shards {0}",
            known.shards, info.shards
        ))),
        _ => Ok(()),
    }
}

/// Joins the Raft group of the other nodes. When this returns, a joining node has received the
/// metadata. A returning node is refused first if its data directory is an older copy.
pub async fn join_group(
    wire: &OpenInternode,
    joins: bool,
    service: &Rc<MetadataService>,
    keeper: &InventoryKeeper,
    accept_loss: bool,
) -> Result<(), StartError> {
    let internodes = wire.internode.shards();
    service.on_topology(move |topology| {
        let book = join::address_book(topology.nodes().map(|node| &**node));
        if !book.peers.is_empty() || !book.left.is_empty() {
            rt::task::spawn(internode::publish_book(internodes, book)).detach();
        }
    });
    let Some(group) = service.group() else { return Ok(()) };
    if !joins {
        runs::check_directory(&wire.internode, wire.admission.marks(), service, keeper, accept_loss).await?;
    }
    wire.admission.open();
    raft::connect(group, &wire.internode);
    let (seeds, address) = (wire.seeds.clone(), wire.internode.own().address);
    let (of_others, internode) = (seeds.clone(), Rc::downgrade(&wire.internode));
    rt::task::spawn(foreign_seeds::watch(internode.clone(), service.shards().metadata, async move || {
        of_others.resolve(address).await
    }))
    .detach();
    let locator = wire.admission.locator().clone();
    rt::task::spawn(locate::keep_locating(locator, internode, async move || seeds.resolve(address).await)).detach();
    if joins { unless_failed(service, receive_metadata(service)).await? } else { Ok(()) }
}

/// Waits until this joining node has received the metadata.
async fn receive_metadata(service: &MetadataService) -> Result<(), StartError> {
    let (own, until) = (service.info().host_id, Deadline::after(LEARN));
    while service.current().topology.node(own).is_none() {
        if until.is_past() {
            return Err(StartError("the cluster admitted this node, but did not send it the metadata in time".into()));
        }
        rt::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(())
}

/// Waits for the cluster. Ends with an error if the Raft group fails on this node: without it, the
/// cluster's part would never arrive.
async fn unless_failed<T>(service: &MetadataService, wait: impl Future<Output = T>) -> Result<T, StartError> {
    let Some(group) = service.group() else { return Ok(wait.await) };
    match select(pin!(group.failure()), pin!(wait)).await {
        Either::Left((why, _)) => Err(StartError::of_group(&why)),
        Either::Right((done, _)) => Ok(done),
    }
}

/// Records a new run of this node, unless it joins or is alone. Returns once this node may serve:
/// see [`runs`]. A node at a new address may run on a copy of a data directory, so it waits until
/// the cluster has confirmed its identity.
pub async fn claim_run(
    shards: ClusterShards,
    coordinators: PerShard<Coordinator>,
    own: PerShard<Runs>,
    wire: &OpenInternode,
    keeper: Rc<InventoryKeeper>,
    joins: bool,
) -> Result<(), StartError> {
    runs::begin(shards, coordinators, own, &wire.internode, &wire.admission, keeper, joins).await
}

/// Starts the streaming of tablets from and to this node. A streamer that is set already is kept.
/// On shard 0.
pub async fn start_streaming(
    shards: ClusterShards,
    streamer: PerShard<Streaming>,
    services: PerShard<StreamService>,
    settings: StreamSettings,
) {
    streaming::start(shards, services, settings).await;
    if let Some(internode) = shards.internode.try_get() {
        crate::admin::incoming::serve(&internode, services);
    }
    if streamer.try_get().is_none() {
        streamer.set(Rc::new(Streaming(Rc::new(TabletStreamer { shards, services }))));
    }
}

/// Announces the current state of this node to the cluster, and starts the topology coordinator,
/// which is active while this node leads.
///
/// - A joining node is a full member with a vote when this returns.
/// - A returning node announces itself as soon as a majority is up.
///
/// An error if the Raft group fails on this node while it waits.
pub async fn settle(
    shards: ClusterShards,
    streaming: PerShard<Streaming>,
    wire: &OpenInternode,
    joins: bool,
) -> Result<(), StartError> {
    let metadata = shards.metadata.get();
    let announced = rt::task::spawn(announce_self(metadata.clone()));
    if joins || runs::known_elsewhere(&metadata).is_some() {
        announced.await.map_err(|_| StartError("the node is stopping".into()))??;
    } else {
        announced.detach();
    }
    let internode = wire.internode.clone();
    let is_down = move |host| internode.liveness().is_down(host);
    if joins {
        unless_failed(&metadata, topology_coordinator::wait_for_vote(&metadata, &is_down)).await?;
    }
    rt::task::spawn(balancer::run(shards.metadata, is_down.clone())).detach();
    rt::task::spawn(topology_coordinator::run(shards.metadata, is_down)).detach();
    let driver = MigrationDriver::new(shards, streaming);
    rt::task::spawn(driver.run()).detach();
    Ok(())
}

/// Announces this node until the cluster has recorded it, or the node stops. An error if the Raft
/// group fails on this node.
async fn announce_self(service: Rc<MetadataService>) -> Result<(), StartError> {
    unless_failed(&service, keep_announcing(&service)).await
}

async fn keep_announcing(service: &MetadataService) {
    loop {
        let made = metadata::change::<(), String, _>(service.shards().metadata, |metadata, info| {
            let known = metadata.topology.node(info.host_id);
            // A restart does not return a leaving node to the cluster.
            let state = known.map_or(NodeState::Normal, |known| match known.state {
                NodeState::Joining => NodeState::Normal,
                state => state,
            });
            let own = own_node(info, state);
            let is_to_announce = known.is_none_or(|known| **known != own && known.state.is_member());
            admit::check_location(&metadata.topology, &own)?;
            Ok((if is_to_announce { vec![Op::PutNode(Box::new(own))] } else { Vec::new() }, ()))
        });
        match made.await {
            Ok(()) => return,
            Err(ChangeError::Refused(why)) => {
                tracing::error!(why, "the cluster refuses the return of this node; retrying")
            }
            Err(error) => {
                tracing::warn!(%error, "the cluster could not record the new description of this node; retrying")
            }
        }
        if rt::time::timeout(PAUSE, rt::shard::stopping().cancelled()).await.is_ok() {
            return;
        }
    }
}

impl OpenInternode {
    /// Keeps the transport open until [`crate::wire::close`]. On shard 0.
    pub fn keep(self, wires: PerShard<OpenWire>) {
        wires.set(Rc::new(OpenWire::new(self.running)));
    }
}

/// Connects this shard's coordinator to the other nodes, and handles their requests on this shard.
/// Does nothing without a transport.
pub fn connect_shard(
    internodes: PerShard<Internode>,
    coordinator: &Rc<Coordinator>,
    replica: &Rc<Replica>,
    metadata: &Rc<MetadataService>,
) {
    if let Some(internode) = internodes.try_get() {
        coordinator::serve_replica(&internode, replica.clone(), metadata.clone());
        coordinator.connect(&internode);
    }
}

/// The error of a start that cannot store hints. `key` is the setting that names the directory, if
/// set.
fn no_hints(directory: &Path, key: &str, error: &std::io::Error) -> StartError {
    let remedy = rt::fs::remedy(directory, error);
    StartError(format!("hints cannot be kept in {}{key}: {error}{remedy}", directory.display()))
}

/// Warns about settings of hints that have no effect on the only node of a cluster, which stores no
/// hints.
pub async fn warn_of_hints(config: &Config, metadata: &MetadataService) {
    Handoff::warn_of_unknown(&config.hinted_handoff_enabled.0, &metadata.current().topology.datacenters());
    if let Some(directory) = &config.hints_directory
        && let Err(error) = rt::fs::create_dir_all(directory).await
    {
        tracing::warn!(dir = %directory.display(), %error,
            "hints cannot be stored in hints_directory: with `seeds` set, this node would not start");
    }
}

/// Makes every shard store hints for nodes that are down, and replay them when the nodes are up
/// again.
pub async fn keep_hints(
    metadata: &MetadataService,
    coordinators: PerShard<Coordinator>,
    keepers: PerShard<InventoryKeeper>,
    config: &StackConfig,
) -> Result<(), StartError> {
    let settings = config.cluster.as_ref().map(|cluster| cluster.settings.clone()).unwrap_or_default();
    let shards = rt::shard::count() as u16;
    let key = if settings.hints_directory.is_some() { " (hints_directory)" } else { "" };
    let directory = settings.hints_directory.unwrap_or_else(|| config.data_dir.join("hints"));
    rt::fs::create_dir_all(&directory).await.map_err(|error| no_hints(&directory, key, &error))?;
    if !key.is_empty() {
        let own = metadata.info().host_id;
        hints::claim_directory(&directory, own).await.map_err(|error| no_hints(&directory, key, &error))?;
    }
    let (total, _) = rt::fs::disk_space(&directory).await.map_err(|error| no_hints(&directory, key, &error))?;
    let notes = hints::notes_directory(&config.data_dir);
    let bounds = HintsConfig::new(directory.clone(), notes, total / HINTS_SHARE / u64::from(shards));
    let config = HintsConfig { settings: settings.hints, ..bounds };
    metadata.set_change_timeout(settings.change_timeout);
    Handoff::warn_of_unknown(&config.settings.kept_for, &metadata.current().topology.datacenters());
    let known = inventory::witnessed_notes(keepers.get().as_ref());
    let opened = coordinators.call_all(move |coordinator| {
        let (config, known) = (config.clone(), known.clone());
        async move {
            let directory = config.directory.clone();
            let (own, store) = (rt::shard::this().0, inventory::store_of_notes(keepers));
            let hints = Hints::open_witnessed(config, own, shards, known, store).await;
            let hints = hints.map_err(|error| no_hints(&directory, key, &error))?;
            coordinator.set_hints(hints);
            rt::task::spawn_in(Group::Maintenance, coordinator.keep_replaying_hints()).detach();
            Ok(())
        }
    });
    opened.await.into_iter().collect()
}
