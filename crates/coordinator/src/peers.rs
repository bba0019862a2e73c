//! The coordinator on the wire between nodes: its requests go out over it, other coordinators' requests for this shard's replica come in, and
//! what the failure detector and the topology say becomes its view of the nodes.

use super::Coordinator;
use super::client::Transport;
use super::miss::Unreached;
use super::nodes::{NodeView, Nodes};
use bytes::Bytes;
use cluster::metadata::{Metadata, MetadataService};
use cluster::tablets::TabletReplica;
use futures_util::future::LocalBoxFuture;
use internode::{CallError, Internode, NodeStatus, Peer, Refusal, RefusalCode, Verb};
use model::id::HostId;
use replica::Replica;
use replica::wire::header_of;
use rt::Pieces;
use rt::hash::HashMap;
use rt::sync::Deadline;
use rt::task::Group;
use rt::time::{Duration, Instant};
use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};

/// The way over the wire, and what is known of who is at its other ends.
pub(super) struct Peers {
    internode: Weak<Internode>,
    /// Since when nodes are down.
    down: RefCell<HashMap<HostId, Instant>>,
    /// The metadata of which the view of the nodes was made.
    seen: Cell<Option<u64>>,
}

struct Wire(Weak<Internode>);

impl Transport for Wire {
    fn call(
        &self,
        to: TabletReplica,
        request: Bytes,
        group: Group,
        deadline: Deadline,
    ) -> LocalBoxFuture<'static, Result<Bytes, Unreached>> {
        let internode = self.0.upgrade();
        Box::pin(async move {
            let Some(internode) = internode else { return Err(Unreached::Down("this node is stopping".into())) };
            let to = Peer { host: to.host, shard: to.shard };
            internode.call(to, Verb::of_replica(group), request, deadline).await.map_err(unreached)
        })
    }
}

fn unreached(error: CallError) -> Unreached {
    match &error {
        CallError::Timeout => Unreached::TimedOut,
        CallError::Refused(refusal) if refusal.code == RefusalCode::Late => Unreached::TimedOut,
        CallError::Refused(refusal) if matches!(refusal.code, RefusalCode::Failed | RefusalCode::Malformed) => {
            Unreached::Refused(error.to_string())
        }
        CallError::TooLarge { .. } => Unreached::Refused(error.to_string()),
        _ if error.may_have_been_done() => Unreached::Lost(error.to_string()),
        _ => Unreached::Down(error.to_string()),
    }
}

/// Answers requests of other nodes' coordinators on this shard.
pub fn serve_replica(internode: &Internode, replica: Rc<Replica>, metadata: Rc<MetadataService>) {
    for verb in [Verb::Replica, Verb::Maintenance] {
        let (replica, metadata) = (replica.clone(), metadata.clone());
        internode.serve(verb, move |_, request: Bytes| {
            let (replica, metadata) = (replica.clone(), metadata.clone());
            async move { answer(&replica, &metadata, request).await }
        });
    }
}

/// Answers one such request, once this shard knows the metadata by which it was routed.
///
/// Until it is answered it holds the metadata that this shard had when it was let in: who waits for these to go out of use waits for what
/// was let in under them, wherever it came from. Dropping the future stops the work at its next yield.
pub async fn answer(replica: &Replica, metadata: &MetadataService, request: Bytes) -> Result<Pieces, Refusal> {
    let header = header_of(&request).map_err(Refusal::malformed)?;
    let deadline = Deadline::after(Duration::from_micros(header.time_left_micros));
    // A request can be ahead of the metadata here: a table that is not known yet must not be told to be gone.
    if !metadata.wait_for_number(header.metadata_number, deadline).await {
        return Err(Refusal::new(RefusalCode::Late, "the metadata of the request did not come in time"));
    }
    let _held = metadata.current();
    Ok(replica.serve(request, None).await)
}

impl Coordinator {
    /// Connects it: from now on it reaches other nodes, and sees them as the topology and the failure detector do.
    pub fn connect(self: &Rc<Self>, internode: &Rc<Internode>) {
        let peers = Peers { internode: Rc::downgrade(internode), down: RefCell::default(), seen: Cell::new(None) };
        let down = internode.liveness();
        for (host, _) in down.nodes.iter().filter(|(_, node)| node.status == NodeStatus::Down) {
            peers.down.borrow_mut().insert(*host, rt::time::now());
        }
        self.client.set_transport(Rc::new(Wire(Rc::downgrade(internode))));
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

    /// The nodes as they are seen now.
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
        let views: Vec<NodeView> = metadata.topology.members().map(view).collect();
        self.client.set_nodes(Nodes::new(self.host, &views));
        peers.seen.set(Some(metadata.number));
        self.client.nodes()
    }

    /// Whether it is connected, and the wire is still there.
    pub fn is_connected(&self) -> bool {
        self.peers.borrow().as_ref().is_some_and(|peers| peers.internode.strong_count() > 0)
    }

    /// Tries again and again to deliver hints, until the shard stops.
    pub async fn keep_replaying_hints(self: Rc<Self>) {
        let stopping = rt::shard::stopping();
        while let Some(hints) = self.carrier.hints() {
            if stopping.unless(rt::time::sleep(hints.period())).await.is_none() {
                return;
            }
            self.replay_hints().await;
        }
    }
}
