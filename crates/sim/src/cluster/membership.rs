//! Nodes that leave their cluster, are removed from it or are replaced after the loss of their
//! disk, while clients work. Each comes back as a new node with an empty disk.
//!
//! At any time, the data of at most one node is lost: until other nodes have its replicas, no other
//! node is removed or loses its disk. Nodes that leave hand over their data.

use super::shared::{NodeState, Shared};
use super::workload::any;
use crate::layers::LAYERS;
use cluster::metadata::{ChangeError, Metadata};
use cluster::topology::{self, leave, remove};
use model::id::HostId;
use rt::time::Duration;
use server::node_ops::leaving;
use std::cell::Cell;
use std::rc::Rc;

/// The interval at which a leaving node looks for the end of its clients' requests.
const LOOK: Duration = Duration::from_millis(5);
/// The longest pause of a node between two operations, in milliseconds.
const PAUSE_MILLIS: u64 = 1_500;

/// How often the members of a cluster changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MemberChanges {
    /// Nodes that left by themselves.
    pub left: u64,
    /// Nodes that others removed.
    pub removed: u64,
    /// Nodes whose disks were lost, and that others replace or remove.
    pub lost: u64,
}

/// Begins or cancels the departure of this node, and removes others that are down, until the node
/// stops. Runs on shard 0.
pub async fn run(shared: Rc<Shared>, node: usize) {
    let mut leaving: Option<rt::task::Task<()>> = None;
    loop {
        rt::time::sleep(Duration::from_millis(100 + rt::random::below(PAUSE_MILLIS))).await;
        let state = &shared.nodes[node];
        if state.is_stopping() {
            return;
        }
        leaving = leaving.filter(|task| !task.is_finished());
        let is_leaving = own_state() == Some(topology::NodeState::Leaving);
        if is_leaving && leaving.is_none() {
            // A restart has interrupted it.
            leaving = Some(rt::task::spawn(leave(shared.clone(), node)));
        }
        if !shared.members_change.get() {
            remove_lost(&shared, node).await;
            // Half of the nodes stay, the others may still leave.
            if is_leaving && own_host().0.as_u128().is_multiple_of(2) {
                // Refused if it has left.
                let _ = leave::cancel(LAYERS.metadata, own_host()).await;
            }
            continue;
        }
        if !state.is_ready() {
            continue;
        }
        let (what, done) = match any(16) {
            0 if is_leaving => ("stays", leave::cancel(LAYERS.metadata, own_host()).await.map_err(|e| e.to_string())),
            0..=5 => ("leaves", leave::request(LAYERS.metadata, is_down).await.map_err(|e| e.to_string())),
            _ => ("removes another node", remove_any(&shared, node).await),
        };
        shared.tell(|| format!("node {node} {what}: {done:?}"));
    }
}

/// Leaves the cluster once its tablets have moved, unless that is cancelled.
async fn leave(shared: Rc<Shared>, node: usize) {
    let state = &shared.nodes[node];
    let has_ended_requests = Cell::new(false);
    let end_requests = async || {
        has_ended_requests.set(state.is_ready());
        state.set_ready(false);
        while state.requests.get() > 0 {
            rt::time::sleep(LOOK).await;
        }
    };
    let left = leaving::leave(*LAYERS, end_requests).await;
    shared.tell(|| format!("node {node} has left: {left:?}"));
    match left {
        Ok(()) => {
            let mut changes = shared.member_changes.get();
            changes.left += 1;
            shared.member_changes.set(changes);
            state.erase();
        }
        Err(_) if has_ended_requests.get() => state.set_ready(true),
        Err(_) => {}
    }
}

/// Removes a node that seems down, if no other node is lost.
async fn remove_any(shared: &Shared, node: usize) -> Result<(), String> {
    let metadata = LAYERS.metadata.get().current();
    let down: Vec<HostId> = metadata.topology.down(is_down).into_iter().collect();
    drop(metadata);
    let host = *down.get(any(down.len().max(1) as i32) as usize).ok_or("no node is down")?;
    remove(shared, node, host).await
}

/// Removes the lost node unless it is up, so that the cluster has only the nodes that are there.
async fn remove_lost(shared: &Shared, node: usize) {
    let Some(host) = shared.lost.get() else { return };
    let is_member = LAYERS.metadata.get().current().topology.node(host).is_some_and(|node| node.state.is_member());
    if is_member && is_down(host) {
        let done = remove(shared, node, host).await;
        shared.tell(|| format!("node {node} removes the lost node: {done:?}"));
    }
}

async fn remove(shared: &Shared, node: usize, host: HostId) -> Result<(), String> {
    let others = shared.lost.get();
    if others.is_some_and(|lost| lost != host) {
        return Err("another node is lost".into());
    }
    shared.lost.set(Some(host));
    match remove::exclude(LAYERS.metadata, host, any(2) == 0, is_down).await {
        Ok(()) => {
            let mut changes = shared.member_changes.get();
            changes.removed += 1;
            shared.member_changes.set(changes);
            Ok(())
        }
        Err(error) => {
            // Otherwise, it may still take effect.
            if matches!(error, ChangeError::Refused(_)) && others.is_none() {
                shared.lost.set(None);
            }
            Err(format!("node {node} cannot remove {host}: {error}"))
        }
    }
}

/// Ends the loss of a node once no tablet has a replica on it.
pub fn look_at_lost(shared: &Shared) {
    let Some(lost) = shared.lost.get() else { return };
    let metadata = LAYERS.metadata.get().current();
    let is_member = metadata.topology.node(lost).is_none_or(|node| node.state.is_member());
    if !is_member && leave::tablets_on(&metadata, lost) == 0 {
        shared.lost.set(None);
    }
}

/// The members that join, leave, were removed, or are too many, according to this node's metadata.
/// `None` if the cluster has all its nodes, and no replica is to be built for a removed one.
pub fn unsettled(shared: &Shared) -> Option<String> {
    let metadata = LAYERS.metadata.get().current();
    let members = metadata.topology.members().count();
    let is_unsettled = |node: &&Rc<topology::Node>| match node.state {
        topology::NodeState::Normal => members > shared.nodes.len(),
        topology::NodeState::Joining | topology::NodeState::Leaving => true,
        topology::NodeState::Removed => leave::tablets_on(&metadata, node.host) > 0,
        topology::NodeState::Left => false,
    };
    let nodes = metadata.topology.nodes().filter(is_unsettled);
    let named = nodes.map(|node| {
        let (waits, left) = (leave::waits_for(&metadata, node.host, is_down), replicas_on(&metadata, node.host));
        format!("{} {} {} {waits:?} {left:?}", node.host, node.listen_address, node.state.name())
    });
    let named: Vec<String> = named.collect();
    (members != shared.nodes.len() || !named.is_empty()).then(|| format!("{members} members; {}", named.join(", ")))
}

/// The tablets with replicas on a node: table, tablet, and the stage if it is moving.
fn replicas_on(metadata: &Metadata, host: HostId) -> Vec<(&str, u32, Option<&'static str>)> {
    let mut found = Vec::new();
    for table in metadata.tables().filter(|table| table.schema.keyspace == "c") {
        for tablet in 0..table.tablets.count() {
            if table.tablets.holders(tablet).any(|replica| replica.host == host) {
                let stage = table.tablets.transition(tablet).map(|moving| moving.stage.name());
                found.push((&*table.schema.name, tablet, stage));
            }
        }
    }
    found
}

/// Waits until this node is no member any more, because another node has removed it.
pub async fn watch(shared: Rc<Shared>, node: usize) {
    let Some(runs) = LAYERS.runs.try_get() else { return };
    let why = runs.left().await;
    shared.tell(|| format!("node {node} ends: {why}"));
    shared.nodes[node].erase();
}

/// Whether the start of a node may fail with this error: the node was removed, and is erased. Or it
/// is new, and the cluster does not admit it at present: it tries again.
pub fn may_not_start(shared: &Shared, node: usize, why: &str) -> bool {
    let state = &shared.nodes[node];
    if why.contains("has left") {
        state.gone.set(true);
    }
    state.gone.get() || state.host.get().is_none()
}

impl NodeState {
    /// The node is no member any more: it stops, its disk is erased, and it starts as a new node.
    fn erase(&self) {
        self.gone.set(true);
        self.stop();
    }
}

fn own_host() -> HostId {
    LAYERS.metadata.get().info().host_id
}

fn own_state() -> Option<topology::NodeState> {
    let service = LAYERS.metadata.get();
    service.current().topology.node(service.info().host_id).map(|node| node.state)
}

fn is_down(host: HostId) -> bool {
    LAYERS.internode.try_get().is_some_and(|internode| internode.liveness().is_down(host))
}
