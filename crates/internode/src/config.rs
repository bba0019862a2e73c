//! The identity of a node, the address book, the verbs, and the limits of connections.

use model::id::HostId;
use rt::task::Group;
use rt::time::Duration;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;

/// The identity of this node. The same on all of its shards.
#[derive(Clone, Debug)]
pub struct Identity {
    /// Its host id.
    pub host: HostId,
    /// Its cluster. Nodes of other clusters are rejected.
    pub cluster: String,
    /// Its address for other nodes.
    pub address: SocketAddr,
    /// Its datacenter.
    pub datacenter: String,
    /// Its rack.
    pub rack: String,
    /// The cluster features that it supports.
    pub features: Vec<String>,
}

/// The pairs of nodes to which a setting applies.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Between {
    /// No pair.
    #[default]
    None,
    /// Nodes in different racks or datacenters.
    Racks,
    /// Nodes in different datacenters.
    Datacenters,
    /// All pairs.
    All,
}

impl Between {
    /// Whether the setting applies to two nodes in these datacenters and racks.
    pub fn applies(self, (datacenter, rack): (&str, &str), (other_datacenter, other_rack): (&str, &str)) -> bool {
        match self {
            Between::None => false,
            Between::Racks => datacenter != other_datacenter || rack != other_rack,
            Between::Datacenters => datacenter != other_datacenter,
            Between::All => true,
        }
    }
}

/// The settings of the failure detector.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LivenessConfig {
    /// The time between two pings of a node.
    pub interval: Duration,
    /// The time limit of a ping.
    pub timeout: Duration,
    /// A node that has not answered for this long is marked down.
    pub down_after: Duration,
    /// The number of consecutive pings that a node that was down must answer to be up. It doubles
    /// each time the node goes down again within `flapping`.
    pub answers_to_be_up: u32,
    /// The maximum of that number.
    pub most_answers_to_be_up: u32,
    /// After this much uptime, the failure history of a node is cleared.
    pub flapping: Duration,
    /// How long a member must be unresponsive before a node with its host id is accepted at another
    /// address (`address_change_delay_in_ms`). That node may run on a copy of the data directory.
    pub address_change_delay: Duration,
}

impl Default for LivenessConfig {
    fn default() -> Self {
        LivenessConfig {
            interval: Duration::from_millis(100),
            timeout: Duration::from_millis(600),
            down_after: Duration::from_secs(2),
            answers_to_be_up: 2,
            most_answers_to_be_up: 64,
            flapping: Duration::from_secs(60),
            address_change_delay: Duration::from_secs(30),
        }
    }
}

/// The settings of internode connections.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InternodeConfig {
    /// Between which nodes bodies are compressed, if that makes them shorter
    /// (`internode_compression`).
    pub compression: Between,
    /// Between which nodes connections are encrypted (`internode_encryption`).
    pub encryption: Between,
    /// The maximum length of a frame's body, in bytes.
    pub largest_body: usize,
    /// The maximum number of requests of a connection that wait for their responses.
    pub in_flight: usize,
    /// The maximum bytes of a connection that wait to be written. Also the limit for the expected
    /// bytes of its responses, beyond which it accepts no more requests.
    pub queued_bytes: usize,
    /// The maximum number of calls that wait for room on a connection, or for the connection.
    pub waiting: usize,
    /// The time limit for connecting.
    pub connect_timeout: Duration,
    /// The time limit of the handshake.
    pub handshake_timeout: Duration,
    /// If no frame arrives for this long although one is expected, the connection is closed. A node
    /// that works on requests sends a keep-alive twice a second.
    pub silence: Duration,
    /// A connection that is unused for this long is closed.
    pub idle: Duration,
    /// The pause after a first failure to connect. It doubles with each further failure.
    pub first_pause: Duration,
    /// The longest pause.
    pub longest_pause: Duration,
    /// The maximum number of connections that are in their handshake, for each shard.
    pub handshakes: usize,
    /// The failure detector.
    pub liveness: LivenessConfig,
}

impl Default for InternodeConfig {
    fn default() -> Self {
        InternodeConfig {
            compression: Between::None,
            encryption: Between::None,
            largest_body: 160 << 20,
            in_flight: 4096,
            queued_bytes: 16 << 20,
            waiting: 16 << 10,
            connect_timeout: Duration::from_secs(2),
            handshake_timeout: Duration::from_secs(3),
            silence: Duration::from_secs(2),
            idle: Duration::from_secs(300),
            first_pause: Duration::from_millis(50),
            longest_pause: Duration::from_secs(1),
            handshakes: 256,
            liveness: LivenessConfig::default(),
        }
    }
}

/// The address, shards and location of a node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PeerAddress {
    /// Its address for other nodes.
    pub address: SocketAddr,
    /// The number of its shards.
    pub shards: u16,
    /// Its datacenter.
    pub datacenter: String,
    /// Its rack.
    pub rack: String,
}

/// All other nodes, as in the metadata.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct AddressBook {
    /// Their addresses. This node may be among them, which has no effect.
    pub peers: BTreeMap<HostId, PeerAddress>,
    /// The nodes that have left the cluster: they are rejected.
    pub left: BTreeSet<HostId>,
}

impl AddressBook {
    /// The nodes of `self` that `other` has at another address or not at all.
    pub fn moved(&self, other: &AddressBook) -> Vec<HostId> {
        let moved = |(host, peer): &(&HostId, &PeerAddress)| other.peers.get(host) != Some(peer);
        self.peers.iter().filter(moved).map(|(host, _)| *host).collect()
    }
}

/// A shard of a node.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Peer {
    /// The node.
    pub host: HostId,
    /// The shard, modulo the number of the node's shards.
    pub shard: u16,
}

/// The subject of a request. Numbers are never reused.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Verb {
    /// Whether the node is up. Answered by internode itself.
    Ping = 0,
    /// `replica::wire`: a read or a write of data.
    Replica = 1,
    /// Messages of the Raft group.
    Raft = 2,
    /// Discovery, admission and location of nodes.
    Join = 3,
    /// Changes and reads of the metadata on behalf of another node.
    Metadata = 4,
    /// `replica::wire` in the maintenance group: repair, and replay of hints.
    Maintenance = 5,
    /// Barriers of topology and of schema.
    Barrier = 6,
    /// Streaming of tablets.
    Stream = 7,
    /// The calling node stops and must get no more requests. Answered by internode itself.
    Stopping = 8,
    /// Missed writes: writes that hint replay will not deliver.
    Missed = 9,
    /// The rates of hot partitions at a coordinator, reported to a shard that owns them.
    Arrivals = 10,
    /// The hot partitions of the node, as JSON for operators.
    HotPartitions = 11,
    /// The tablets that the node receives, as JSON for operators.
    IncomingTablets = 12,
}

/// The connection that a verb uses. Urgent requests do not queue behind large ones.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(super) enum Lane {
    Control,
    Data,
    Bulk,
}

impl Verb {
    /// All verbs.
    const ALL: [Verb; 13] = [
        Verb::Ping,
        Verb::Replica,
        Verb::Raft,
        Verb::Join,
        Verb::Metadata,
        Verb::Maintenance,
        Verb::Barrier,
        Verb::Stream,
        Verb::Stopping,
        Verb::Missed,
        Verb::Arrivals,
        Verb::HotPartitions,
        Verb::IncomingTablets,
    ];

    pub(super) fn lane(self) -> Lane {
        match self {
            Verb::Ping
            | Verb::Raft
            | Verb::Join
            | Verb::Metadata
            | Verb::Barrier
            | Verb::Stopping
            | Verb::Missed
            | Verb::Arrivals
            | Verb::HotPartitions
            | Verb::IncomingTablets => Lane::Control,
            Verb::Replica => Lane::Data,
            Verb::Maintenance | Verb::Stream => Lane::Bulk,
        }
    }

    /// The verb of a replica request that runs in this scheduling group.
    pub fn of_replica(group: Group) -> Verb {
        match group {
            Group::Control | Group::Statement => Verb::Replica,
            Group::Scan | Group::Maintenance => Verb::Maintenance,
        }
    }

    /// The scheduling group of requests with the verb of this number. `None` for an unknown verb.
    pub(super) fn group_of(code: u8) -> Option<Group> {
        let verb = Verb::ALL.into_iter().find(|verb| *verb as u8 == code)?;
        Some(verb.lane().group())
    }
}

impl Lane {
    /// The scheduling group in which the connection's requests are read, handled and answered.
    pub(super) fn group(self) -> Group {
        match self {
            Lane::Control => Group::Control,
            Lane::Data => Group::Statement,
            Lane::Bulk => Group::Maintenance,
        }
    }
}

/// The target of a connection.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) enum Target {
    /// A shard of a node in the address book.
    Host(Peer, Lane),
    /// The node at this address.
    Address(SocketAddr),
}

impl Target {
    /// The scheduling group of the connection.
    pub fn group(&self) -> Group {
        match self {
            Target::Host(_, lane) => lane.group(),
            Target::Address(_) => Group::Control,
        }
    }
}

/// The settings that all connections of a shard share.
#[derive(Debug)]
pub(super) struct Setting {
    pub own: Identity,
    /// The number of shards of this node.
    pub shards: u16,
    /// The local address of outgoing connections; any if `None`.
    pub from: Option<IpAddr>,
    pub config: InternodeConfig,
}

impl Setting {
    pub fn place(&self) -> (&str, &str) {
        (&self.own.datacenter, &self.own.rack)
    }
}

pub(super) type SharedSetting = Rc<Setting>;

#[cfg(test)]
mod tests {
    use super::*;
    use uuid::Uuid;

    #[test]
    fn between_which_nodes() {
        let places = [("dc1", "r1"), ("dc1", "r2"), ("dc2", "r1")];
        let cases = [
            (Between::None, [false, false, false]),
            (Between::Racks, [false, true, true]),
            (Between::Datacenters, [false, false, true]),
            (Between::All, [true, true, true]),
        ];
        for (between, expected) in cases {
            assert_eq!(places.map(|place| between.applies(places[0], place)), expected, "{between:?}");
        }
    }

    #[test]
    fn moved_lists_nodes_that_moved_or_left() {
        let peer = |port: u16| PeerAddress {
            address: ([127, 0, 0, 1], port).into(),
            shards: 2,
            datacenter: "d".into(),
            rack: "r".into(),
        };
        let host = |n: u128| HostId(Uuid::from_u128(n));
        let book = |peers: &[(u128, u16)]| AddressBook {
            peers: peers.iter().map(|(n, port)| (host(*n), peer(*port))).collect(),
            left: BTreeSet::new(),
        };
        let before = book(&[(1, 1), (2, 2), (3, 3)]);
        assert_eq!(before.moved(&before), []);
        assert_eq!(before.moved(&book(&[(1, 1), (3, 4), (5, 5)])), [host(2), host(3)]);
    }
}
