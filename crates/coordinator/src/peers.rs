//! Connects the coordinator to other nodes.
//!
//! It sends its requests over internode connections and serves other coordinators' requests for
//! this shard's replica. It builds the view of the nodes from the failure detector and the
//! topology.

use super::Coordinator;
use super::arrival_reports;
use super::client::Transport;
use super::nodes::{NodeView, Nodes};
use super::replica_failure::SendError;
use bytes::Bytes;
use cluster::metadata::{Metadata, MetadataService, NodeInfo};
use cluster::tablets::TabletReplica;
use futures_util::future::LocalBoxFuture;
use internode::{CallError, Internode, NodeStatus, Peer, Refusal, RefusalCode, Verb};
use model::id::HostId;
use replica::Replica;
use replica::wire::header_of;
use rt::Pieces;
use rt::hash::HashMap;
use rt::sync::Deadline;
use rt::time::Instant;
use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};

/// The connection to other nodes, and their state.
pub(super) struct Peers {
    internode: Weak<Internode>,
    /// The nodes that are down, and since when.
    down: RefCell<HashMap<HostId, Instant>>,
    /// The number of the metadata from which the current view was built. None: the view is
    /// outdated.
    seen: Cell<Option<u64>>,
}

/// The view of this node before it is a member of a cluster.
pub(super) fn view_of(own: &NodeInfo) -> NodeView {
    NodeView {
        host: own.host_id,
        datacenter: own.datacenter.clone(),
        rack: own.rack.clone(),
        address: own.broadcast_address,
        down_since: None,
    }
}

struct InternodeTransport(Weak<Internode>);

impl Transport for InternodeTransport {
    fn call(
        &self,
        to: TabletReplica,
        verb: Verb,
        request: Bytes,
        deadline: Deadline,
    ) -> LocalBoxFuture<'static, Result<Bytes, SendError>> {
        let internode = self.0.upgrade();
        Box::pin(async move {
            let Some(internode) = internode else { return Err(SendError::Down("this node is stopping".into())) };
            let to = Peer { host: to.host, shard: to.shard };
            internode.call(to, verb, request, deadline).await.map_err(send_error)
        })
    }
}

fn send_error(error: CallError) -> SendError {
    match &error {
        CallError::Timeout => SendError::TimedOut,
        CallError::Refused(refusal) if refusal.code == RefusalCode::Late => SendError::TimedOut,
        CallError::Refused(refusal) if matches!(refusal.code, RefusalCode::Failed | RefusalCode::Malformed) => {
            SendError::Refused(error.to_string())
        }
        CallError::TooLarge { .. } => SendError::Refused(error.to_string()),
        _ if error.may_have_been_done() => SendError::Lost(error.to_string()),
        _ => SendError::Down(error.to_string()),
    }
}

/// Serves requests and reports of other nodes' coordinators on this shard.
pub fn serve_replica(internode: &Internode, replica: Rc<Replica>, metadata: Rc<MetadataService>) {
    arrival_reports::serve(internode, replica.clone());
    for verb in [Verb::Replica, Verb::Maintenance] {
        let (replica, metadata) = (replica.clone(), metadata.clone());
        internode.serve(verb, move |caller, request: Bytes| {
            let (replica, metadata) = (replica.clone(), metadata.clone());
            async move { answer(&replica, &metadata, request, caller.deadline).await }
        });
    }
}

/// Serves one request of another node, once this shard has the metadata that routed it. Dropping
/// the future stops the work at its next yield.
pub async fn answer(
    replica: &Replica,
    metadata: &MetadataService,
    request: Bytes,
    deadline: Deadline,
) -> Result<Pieces, Refusal> {
    let header = header_of(&request).map_err(Refusal::malformed)?;
    // The request may be based on newer metadata than this shard has: a table that is not known yet
    // must not be reported as dropped.
    let Some(_held) = metadata.for_request(header.metadata_number, deadline).await else {
        return Err(Refusal::new(RefusalCode::Late, "the metadata of the request did not arrive in time"));
    };
    Ok(replica.serve(request, deadline).await)
}

impl Coordinator {
    /// Connects the coordinator to other nodes. From now on its view of the nodes follows the
    /// topology and the failure detector.
    pub fn connect(self: &Rc<Self>, internode: &Rc<Internode>) {
        let peers = Peers { internode: Rc::downgrade(internode), down: RefCell::default(), seen: Cell::new(None) };
        let down = internode.liveness();
        for (host, _) in down.nodes.iter().filter(|(_, node)| node.status == NodeStatus::Down) {
            peers.down.borrow_mut().insert(*host, rt::time::now());
        }
        self.client.set_transport(Rc::new(InternodeTransport(Rc::downgrade(internode))));
        *self.peers.borrow_mut() = Some(Rc::new(peers));
        let coordinator = Rc::downgrade(self);
        internode.on_liveness(move |event| {
            let Some(coordinator) = coordinator.upgrade() else { return };
            let peers = coordinator.peers.borrow().clone();
            let Some(peers) = peers else { return };
            if event.up {
                peers.down.borrow_mut().remove(&event.host);
            } else {
                peers.down.borrow_mut().entry(event.host).or_insert_with(rt::time::now);
            }
            peers.seen.set(None);
        });
    }

    /// The view of the nodes by this metadata and the failure detector.
    pub(super) fn nodes_by(&self, metadata: &Metadata) -> Rc<Nodes> {
        let peers = self.peers.borrow();
        let Some(peers) = peers.as_ref().filter(|peers| peers.seen.get() != Some(metadata.number)) else {
            return self.client.nodes();
        };
        let down = peers.down.borrow();
        let view = |node: &Rc<cluster::topology::Node>| NodeView {
            host: node.host,
            datacenter: node.datacenter.clone(),
            rack: node.rack.clone(),
            address: node.broadcast_address,
            down_since: down.get(&node.host).copied(),
        };
        let mut views: Vec<NodeView> = metadata.topology.members().map(view).collect();
        if views.iter().all(|view| view.host != self.host) {
            views.push(view_of(self.metadata.info()));
        }
        self.client.set_nodes(Nodes::new(self.host, &views));
        peers.seen.set(Some(metadata.number));
        self.client.nodes()
    }

    /// Whether the coordinator is connected, and the internode service still runs.
    pub fn is_connected(&self) -> bool {
        self.peers.borrow().as_ref().is_some_and(|peers| peers.internode.strong_count() > 0)
    }

    /// Replays hints periodically until the shard stops.
    pub async fn keep_replaying_hints(self: Rc<Self>) {
        let stopping = rt::shard::stopping();
        while let Some(hints) = self.writer.hints() {
            if stopping.unless(rt::time::sleep(hints.period())).await.is_none() {
                return;
            }
            self.replay_hints().await;
        }
    }
}
