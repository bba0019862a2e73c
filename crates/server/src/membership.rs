//! A node's way into its cluster: the wire to other nodes, the search for them, being let in, and the way back.
//!
//! Used by `stack`, on shard 0, in the order of the functions here. A node that is told of no other node has no wire, opens no port, and
//! is a cluster of one.

use crate::config::Config;
use crate::config::handoff::Handoff;
use crate::inventory;
use crate::layers::{Layers, OpenWire};
use crate::seeds::Seeds;
use crate::stack_config::StackConfig;
use crate::start_error::StartError;
use cluster::NodeInfo;
use cluster::metadata::{self, ChangeError, MetadataLog, MetadataService, Op, Recovered, own_node};
use cluster::raft;
use cluster::topology::admission::Admission;
use cluster::topology::barrier;
use cluster::topology::foreign_seeds;
use cluster::topology::join::{self, SearchOutcome};
use cluster::topology::locate;
use cluster::topology::migration_driver::MigrationDriver;
use cluster::topology::{Node, NodeState, features, topology_coordinator};
use coordinator::Coordinator;
use coordinator::hints::{self, Hints, HintsConfig, HintsSettings};
use internode::{Identity, Internode, InternodeConfig, InternodeListener};
use replica::Replica;
use rt::sync::Deadline;
use rt::task::Group;
use rt::time::Duration;
use rt::tls::PeerTls;
use std::cell::RefCell;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// How long an admitted node may take to receive the metadata of the cluster.
const LEARN: Duration = Duration::from_secs(120);
/// Hints may take this part of the disk: one in so many bytes.
const HINTS_SHARE: u64 = 10;
/// How long the other nodes may take to learn that this one stops.
const ANNOUNCE: Duration = Duration::from_millis(500);
/// Pause before a node tries again to tell the others of itself.
const PAUSE: Duration = Duration::from_secs(1);

/// What a node of a cluster of several is told.
#[derive(Clone, Debug)]
pub struct ClusterConfig {
    /// Nodes that are asked first for others.
    pub seeds: Seeds,
    /// Where it listens for other nodes.
    pub listen: SocketAddr,
    /// The limits of connections between nodes.
    pub internode: InternodeConfig,
    /// What encrypts them, where that is wanted.
    pub tls: Option<PeerTls>,
    /// What else there is to say.
    pub settings: ClusterSettings,
}

/// Settings of a node of a cluster of several that have defaults.
#[derive(Clone, Debug)]
pub struct ClusterSettings {
    /// `hints_directory`; none: within the data directory.
    pub hints_directory: Option<PathBuf>,
    /// What is kept for nodes that are down.
    pub hints: HintsSettings,
    /// `group0_raft_op_timeout_in_ms`.
    pub change_timeout: Duration,
}

impl Default for ClusterSettings {
    fn default() -> Self {
        let change_timeout = Duration::from_secs(60);
        ClusterSettings { hints_directory: None, hints: HintsSettings::default(), change_timeout }
    }
}

/// The wire to the other nodes, open.
pub struct Wire {
    internode: Rc<Internode>,
    running: internode::Running,
    seeds: Seeds,
    admission: Rc<Admission>,
}

/// The metadata, and whether this node has yet to learn it.
pub struct OpenMetadata {
    /// The log.
    pub log: MetadataLog,
    /// What is known.
    pub recovered: Recovered,
    /// The node was admitted just now.
    pub joins: bool,
}

/// Opens the wire, if the node is to have one: others can ask it from here on.
pub async fn open_wire(layers: Layers, config: &StackConfig) -> Result<Option<Wire>, StartError> {
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
    internode::install(layers.internode, identity, cluster.internode, Some(cluster.listen.ip()), cluster.tls.clone())
        .await;
    let internode = layers.internode.get();
    let admission = Admission::new(layers.cluster());
    join::serve(&internode, &admission);
    barrier::serve(&internode, layers.metadata);
    coordinator::resync::serve(&internode, layers.resync());
    let running = internode::serve(internode.clone(), listener);
    Ok(Some(Wire { internode, running, seeds: cluster.seeds.clone(), admission }))
}

/// Opens the metadata: what is on the disk, or what a cluster that lets this node in is to teach it, or a new cluster.
pub async fn open_metadata(config: &StackConfig, wire: Option<&Wire>) -> Result<OpenMetadata, StartError> {
    let (dir, info) = (&config.data_dir, &config.info);
    let begins = async || {
        let (log, recovered) = metadata::open_log(dir, info).await.map_err(StartError::because)?;
        Ok(OpenMetadata { log, recovered, joins: false })
    };
    let Some(wire) = wire else {
        let found = begins().await?;
        if !found.log.is_alone() {
            let why =
                "the data directory is that of a node of a larger cluster: set `seeds` to the addresses of other nodes";
            return Err(StartError(why.into()));
        }
        return Ok(found);
    };
    if metadata::is_member(dir, info).await.map_err(StartError::because)? {
        let found = begins().await?;
        check_shards(&found, info)?;
        return Ok(found);
    }
    let own = own_node(info, NodeState::Joining);
    let seeds = wire.seeds.find(own.internode()).await;
    match join::search(&wire.admission, &wire.internode, &own, seeds).await.map_err(StartError)? {
        SearchOutcome::Nothing => begins().await,
        SearchOutcome::Cluster(nodes) => {
            internode::publish_book(wire.internode.shards(), join::address_book(nodes.iter())).await;
            let (log, recovered) = metadata::open_log_to_join(dir, info).await.map_err(StartError::because)?;
            Ok(OpenMetadata { log, recovered, joins: true })
        }
    }
}

/// Tablets are on shards that the whole cluster knows: a node cannot take shards away by itself.
fn check_shards(found: &OpenMetadata, info: &NodeInfo) -> Result<(), StartError> {
    let metadata = found.recovered.metadata().map_err(StartError::because)?;
    match metadata.topology.node(info.host_id) {
        Some(known) if !found.log.is_alone() && usize::from(known.shards) > info.shards => Err(StartError(format!(
            "this node has had {0} shards and is started with {1}: in a cluster of several nodes their number can only grow; start it \
             with --shards {0}",
            known.shards, info.shards
        ))),
        _ => Ok(()),
    }
}

/// Joins the group with those of the other nodes. When this returns a node that joins has learned the metadata.
pub async fn join_group(wire: &Wire, joins: bool, service: &Rc<MetadataService>) -> Result<(), StartError> {
    let internodes = wire.internode.shards();
    service.on_topology(move |topology| {
        let book = join::address_book(topology.nodes().map(|node| &**node));
        if !book.peers.is_empty() || !book.left.is_empty() {
            rt::task::spawn(internode::publish_book(internodes, book)).detach();
        }
    });
    let Some(group) = service.group() else { return Ok(()) };
    wire.admission.open();
    raft::connect(group, &wire.internode);
    let (seeds, address) = (wire.seeds.clone(), wire.internode.own().address);
    let (of_others, internode) = (seeds.clone(), Rc::downgrade(&wire.internode));
    rt::task::spawn(foreign_seeds::watch(internode.clone(), service.shards().metadata, async move || {
        of_others.look(address).await
    }))
    .detach();
    let locator = wire.admission.locator().clone();
    rt::task::spawn(locate::keep_locating(locator, internode, async move || seeds.look(address).await)).detach();
    let own = service.info().host_id;
    let until = Deadline::after(LEARN);
    while joins && service.current().topology.node(own).is_none() {
        if until.is_past() {
            return Err(StartError("the cluster let this node in, and does not tell it what is in it".into()));
        }
        rt::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(())
}

/// Tells the cluster how this node is now, and looks after the cluster whenever this node leads. A node that joins becomes a full member, with its
/// vote, before this returns; one that comes back tells it as soon as a majority is there. One that comes back elsewhere may have been copied: it must not
/// serve clients with what it has on its own, so this returns when the cluster has taken it for the node that it says it is.
pub async fn settle(layers: Layers, wire: &Wire, joins: bool) -> Result<(), StartError> {
    let metadata = layers.metadata.get();
    let known = known_elsewhere(&metadata);
    if let Some(known) = known {
        tracing::warn!(%known, "the cluster knows this node at another address: clients are served when it knows the new one");
    }
    let announced = rt::task::spawn(announce_self(wire.admission.clone(), wire.internode.clone(), metadata.clone()));
    if joins || known.is_some() {
        announced.await.map_err(|_| StartError("the node is stopping".into()))?;
    } else {
        announced.detach();
    }
    let internode = wire.internode.clone();
    let is_down = move |host| internode.liveness().is_down(host);
    if joins {
        topology_coordinator::wait_for_vote(&metadata, &is_down).await;
    }
    rt::task::spawn(topology_coordinator::run(layers.metadata, is_down)).detach();
    let driver = MigrationDriver::new(layers.cluster(), layers.streaming);
    rt::task::spawn(driver.run()).detach();
    Ok(())
}

async fn announce_self(admission: Rc<Admission>, internode: Rc<Internode>, service: Rc<MetadataService>) {
    loop {
        match introduce(&admission, &internode, &service).await {
            Ok(true) => {
                let made = metadata::change::<(), String, _>(service.shards().metadata, |metadata, info| {
                    let own = own_node(info, NodeState::Normal);
                    let known = metadata.topology.node(info.host_id);
                    // One that is leaving does not come back by being started again.
                    let stays = |known: &Node| matches!(known.state, NodeState::Joining | NodeState::Normal);
                    let is_to_announce = known.is_none_or(|known| **known != own && stays(known));
                    join::check_location(&metadata.topology, &own)?;
                    Ok((if is_to_announce { vec![Op::PutNode(Box::new(own))] } else { Vec::new() }, ()))
                });
                match made.await {
                    Ok(()) => return,
                    Err(ChangeError::Refused(why)) => tracing::error!(why, "the cluster does not take this node back"),
                    Err(error) => {
                        tracing::warn!(%error, "this node could not be announced to the cluster; trying again")
                    }
                }
            }
            Ok(false) => {}
            Err(why) => tracing::error!(why, "the cluster does not take this node back"),
        }
        if rt::time::timeout(PAUSE, rt::shard::stopping().cancelled()).await.is_ok() {
            return;
        }
    }
}

/// Where the cluster knows this node to be, if that is elsewhere and there are others.
fn known_elsewhere(service: &MetadataService) -> Option<SocketAddr> {
    let (topology, info) = (service.current().topology.clone(), service.info().clone());
    let known = topology.node(info.host_id)?;
    let is_elsewhere = known.internode() != own_node(&info, known.state).internode();
    (is_elsewhere && topology.members().count() > 1).then(|| known.internode())
}

/// Tells the others where this node is now, if that is elsewhere than before: until they know, they cannot tell it anything, so it cannot
/// do that by a change of its own, unless it leads. Whether they know.
async fn introduce(
    admission: &Admission,
    internode: &Rc<Internode>,
    service: &MetadataService,
) -> Result<bool, String> {
    let topology = service.current().topology.clone();
    let info = service.info().clone();
    let Some(known) = topology.node(info.host_id) else { return Ok(true) };
    let own = own_node(&info, known.state);
    if known.internode() == own.internode() {
        return Ok(true);
    }
    // Members that moved as well are where this node has found them.
    let book = internode.book();
    let others = topology.members().filter(|node| node.host != own.host);
    let address = |node: &Rc<Node>| book.peers.get(&node.host).map_or_else(|| node.internode(), |peer| peer.address);
    join::introduce(admission, internode, &own, others.map(address).collect()).await
}

impl Wire {
    /// Keeps the wire until [`close`]. On shard 0.
    pub fn keep(self, layers: Layers) {
        layers.wire.set(Rc::new(OpenWire(RefCell::new(Some(self.running)))));
    }
}

/// Tells the other nodes that this one stops, so that they send it no more requests. On shard 0.
pub async fn announce_stop(layers: Layers) {
    if let Some(internode) = layers.internode.try_get() {
        internode.announce_stop(ANNOUNCE).await;
    }
}

/// Closes the wire, if there is one.
pub async fn close(layers: Layers) {
    let running = layers.wire.try_get().and_then(|wire| wire.0.take());
    layers.wire.clear();
    if let Some(running) = running {
        running.stop().await;
    }
}

/// Has this shard's coordinator reach the other nodes, and this shard answer theirs. Nothing where there is no wire.
pub fn connect_shard(
    layers: Layers,
    coordinator: &Rc<Coordinator>,
    replica: &Rc<Replica>,
    metadata: &Rc<MetadataService>,
) {
    if let Some(internode) = layers.internode.try_get() {
        coordinator::serve_replica(&internode, replica.clone(), metadata.clone());
        coordinator.connect(&internode);
    }
}

/// Why a start fails that cannot keep hints; `key`: the setting that names the directory, if one does.
fn no_hints(directory: &Path, key: &str, error: &std::io::Error) -> StartError {
    let way_out = rt::fs::way_out(directory, error);
    StartError(format!("hints cannot be kept in {}{key}: {error}{way_out}", directory.display()))
}

/// Warns of settings of hints that would not work, on a node without others, which keeps none.
pub async fn warn_of_hints(config: &Config, metadata: &MetadataService) {
    Handoff::warn_of_unknown(&config.hinted_handoff_enabled.0, &metadata.current().topology.datacenters());
    if let Some(directory) = &config.hints_directory
        && let Err(error) = rt::fs::create_dir_all(directory).await
    {
        tracing::warn!(directory = %directory.display(), %error,
            "hints cannot be kept in hints_directory: with other nodes (`seeds`) this node would not start");
    }
}

/// Has every shard keep what nodes that are down miss, and deliver it when they are back.
pub async fn keep_hints(layers: Layers, config: &StackConfig) -> Result<(), StartError> {
    let settings = config.cluster.as_ref().map(|cluster| cluster.settings.clone()).unwrap_or_default();
    let shards = rt::shard::count() as u16;
    let key = if settings.hints_directory.is_some() { " (hints_directory)" } else { "" };
    let directory = settings.hints_directory.unwrap_or_else(|| config.data_dir.join("hints"));
    rt::fs::create_dir_all(&directory).await.map_err(|error| no_hints(&directory, key, &error))?;
    let (total, _) = rt::fs::disk_space(&directory).await.map_err(|error| no_hints(&directory, key, &error))?;
    let notes = hints::notes_directory(&config.data_dir);
    let bounds = HintsConfig::new(directory.clone(), notes, total / HINTS_SHARE / u64::from(shards));
    let config = HintsConfig { settings: settings.hints, ..bounds };
    let metadata = layers.metadata.get();
    metadata.set_change_timeout(settings.change_timeout);
    Handoff::warn_of_unknown(&config.settings.kept_for, &metadata.current().topology.datacenters());
    let known = inventory::witnessed_notes(layers.inventory.get().as_ref());
    let opened = layers.coordinator.call_all(move |coordinator| {
        let (config, known) = (config.clone(), known.clone());
        async move {
            let directory = config.directory.clone();
            let (own, store) = (rt::shard::this().0, inventory::store_of_notes(layers.inventory));
            let hints = Hints::open_witnessed(config, own, shards, known, store).await;
            let hints = hints.map_err(|error| no_hints(&directory, key, &error))?;
            coordinator.set_hints(hints);
            rt::task::spawn_in(Group::Maintenance, coordinator.keep_replaying_hints()).detach();
            Ok(())
        }
    });
    opened.await.into_iter().collect()
}
