//! The events about nodes that clients receive: new, removed, up, down. Each event is sent once.
//!
//! A node is new when it is a full member and its port for clients is open, because a driver
//! connects at once. It is down when it does not answer pings, or reports that it does not serve
//! clients. A node sends no events about itself to its own clients, because they see their
//! connection. On shard 0.

use crate::connection::Server;
use crate::events;
use crate::protocol::Event;
use cluster::observe::NodeView;
use cluster::observe::members::nodes;
use cluster::{ClusterShards, MetadataService, NodeState};
use cql::Processor;
use internode::Internode;
use model::HostId;
use rt::shard::PerShard;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;

/// A node that clients can receive events about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct ClientEndpoint {
    /// The address for clients.
    address: SocketAddr,
    /// Whether it serves clients.
    serving: bool,
}

/// The state of nodes that was last sent to clients.
#[derive(Default)]
struct SentStates {
    nodes: BTreeMap<HostId, ClientEndpoint>,
}

impl SentStates {
    /// The events to send, given the current nodes.
    fn diff(&mut self, now: &BTreeMap<HostId, ClientEndpoint>) -> Vec<Event> {
        let mut events = Vec::new();
        self.nodes.retain(|host, sent| {
            let stays = now.get(host).is_some_and(|place| place.address == sent.address);
            if !stays {
                events.push(Event::Topology { joined: false, node: sent.address });
            }
            stays
        });
        for (host, place) in now {
            let node = place.address;
            match self.nodes.get_mut(host) {
                Some(sent) if sent.serving == place.serving => {}
                Some(sent) => {
                    sent.serving = place.serving;
                    events.push(Event::Status { up: place.serving, node });
                }
                None if place.serving => {
                    self.nodes.insert(*host, *place);
                    events.extend([Event::Topology { joined: true, node }, Event::Status { up: true, node }]);
                }
                None => {}
            }
        }
        events
    }
}

/// The other nodes that clients see in `system.peers`.
fn places(nodes: Vec<NodeView>) -> BTreeMap<HostId, ClientEndpoint> {
    let is_shown = |seen: &NodeView| !seen.is_own && seen.node.state != NodeState::Joining;
    let place = |seen: NodeView| {
        let address = SocketAddr::new(seen.node.rpc_address, seen.node.native_port);
        (seen.node.host, ClientEndpoint { address, serving: seen.serving })
    };
    nodes.into_iter().filter(is_shown).map(place).collect()
}

/// The state of the other nodes, for events to this node's clients.
pub struct NodeEvents {
    sent: RefCell<SentStates>,
    shards: ClusterShards,
    servers: PerShard<Server<Processor>>,
}

impl NodeEvents {
    fn send_changes(&self) {
        let events = self.sent.borrow_mut().diff(&places(nodes(self.shards)));
        if !events.is_empty() {
            rt::task::spawn(events::broadcast(self.servers, events)).detach();
        }
    }
}

/// Starts sending events about other nodes. Clients already know the current members from
/// `system.peers`. No more events are sent once `own` is cleared.
pub fn begin(
    own: PerShard<NodeEvents>,
    internode: &Internode,
    metadata: &MetadataService,
    servers: PerShard<Server<Processor>>,
) {
    let shards = metadata.shards();
    let sent = RefCell::new(SentStates { nodes: places(nodes(shards)) });
    own.set(Rc::new(NodeEvents { sent, shards, servers }));
    let send_changes = move || {
        if let Some(events) = own.try_get() {
            events.send_changes();
        }
    };
    metadata.on_topology(move |_| send_changes());
    internode.watch_liveness(move |_| send_changes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use uuid::Uuid;

    fn host(n: u128) -> HostId {
        HostId(Uuid::from_u128(n))
    }

    fn address(n: u8) -> SocketAddr {
        ([127, 0, 0, n], 9042).into()
    }

    fn now(nodes: &[(u128, u8, bool)]) -> BTreeMap<HostId, ClientEndpoint> {
        let place = |(n, at, serving): &(u128, u8, bool)| {
            (host(*n), ClientEndpoint { address: address(*at), serving: *serving })
        };
        nodes.iter().map(place).collect()
    }

    #[test]
    fn each_change_of_a_node_sends_one_event() {
        let mut sent = SentStates { nodes: now(&[(1, 1, true), (2, 2, false)]) };
        let status = |up, n| Event::Status { up, node: address(n) };
        let topology = |joined, n| Event::Topology { joined, node: address(n) };
        let mut diff = |nodes: &[(u128, u8, bool)]| sent.diff(&now(nodes));
        assert_eq!(diff(&[(1, 1, true), (2, 2, false)]), []);
        assert_eq!(diff(&[(1, 1, false), (2, 2, true)]), [status(false, 1), status(true, 2)]);
        assert_eq!(diff(&[(1, 1, false), (2, 2, true)]), []);
        // A third node joins: the event is sent once it serves clients.
        assert_eq!(diff(&[(1, 1, true), (2, 2, true), (3, 3, false)]), [status(true, 1)]);
        assert_eq!(diff(&[(1, 1, true), (2, 2, true), (3, 3, true)]), [topology(true, 3), status(true, 3)]);
        // The second node comes back with another address.
        assert_eq!(diff(&[(1, 1, true), (2, 9, false), (3, 3, true)]), [topology(false, 2)]);
        assert_eq!(diff(&[(1, 1, true), (2, 9, true), (3, 3, true)]), [topology(true, 9), status(true, 9)]);
        assert_eq!(diff(&[(1, 1, true), (3, 3, true)]), [topology(false, 9)]);
    }
}
