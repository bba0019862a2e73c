//! What a node says of itself to others, where it finds them, and the limits it keeps.

use model::id::HostId;
use rt::task::Group;
use rt::time::Duration;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;

/// Who this node is. The same on all of its shards.
#[derive(Clone, Debug)]
pub struct Identity {
    /// Its id.
    pub host: HostId,
    /// The cluster it belongs to: nodes of others are refused.
    pub cluster: String,
    /// Where other nodes find it.
    pub address: SocketAddr,
    /// Its datacenter.
    pub datacenter: String,
    /// Its rack.
    pub rack: String,
    /// The features of the cluster that it supports.
    pub features: Vec<String>,
}

/// Between which nodes something is done: nothing, between racks, between datacenters, everything.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Between {
    /// Between none.
    #[default]
    None,
    /// Between nodes that are not in the same rack of the same datacenter.
    Racks,
    /// Between nodes of different datacenters.
    Datacenters,
    /// Between all.
    All,
}

impl Between {
    /// Whether it is done between two nodes that are in these datacenters and racks.
    pub fn applies(self, (datacenter, rack): (&str, &str), (other_datacenter, other_rack): (&str, &str)) -> bool {
        match self {
            Between::None => false,
            Between::Racks => datacenter != other_datacenter || rack != other_rack,
            Between::Datacenters => datacenter != other_datacenter,
            Between::All => true,
        }
    }
}

/// How nodes are found to be down.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LivenessConfig {
    /// The time between two pings of a node.
    pub interval: Duration,
    /// A ping that is not answered for this long is given up.
    pub timeout: Duration,
    /// A node that has not answered for this long is down.
    pub down_after: Duration,
    /// How many pings in a row a node that was down must answer to be up; twice as many each time that it goes down again within
    /// `flapping`.
    pub answers_to_be_up: u32,
    /// The most that may become of that.
    pub most_answers_to_be_up: u32,
    /// A node that has stayed up for this long has no past.
    pub flapping: Duration,
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
        }
    }
}

/// The settings of connections between nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InternodeConfig {
    /// Between which nodes bodies are compressed, if that makes them shorter (`internode_compression`).
    pub compression: Between,
    /// Between which nodes connections are encrypted (`internode_encryption`).
    pub encryption: Between,
    /// The largest body of a frame, in bytes.
    pub largest_body: usize,
    /// How many requests of one connection may be waiting for their answers.
    pub in_flight: usize,
    /// How many bytes of one connection may wait to be written; and how many its answers are expected to have, for more requests to be
    /// taken up.
    pub queued_bytes: usize,
    /// How many calls may wait until one connection has room, or is there.
    pub waiting: usize,
    /// How long connecting may take.
    pub connect_timeout: Duration,
    /// How long the handshake may take.
    pub handshake_timeout: Duration,
    /// A connection from which nothing comes for this long while something should is given up. Nodes tell each other twice a second that
    /// they are still working.
    pub silence: Duration,
    /// A connection that nobody needed for this long is closed.
    pub idle: Duration,
    /// The pause after a first failure to connect; doubled with each further one.
    pub first_pause: Duration,
    /// The longest pause.
    pub longest_pause: Duration,
    /// How many nodes may be in the midst of their handshakes.
    pub handshakes: usize,
    /// How nodes are found to be down.
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

/// Where a node is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PeerAddress {
    /// Where it listens.
    pub address: SocketAddr,
    /// How many shards it has.
    pub shards: u16,
    /// Its datacenter.
    pub datacenter: String,
    /// Its rack.
    pub rack: String,
}

/// All other nodes, as the metadata knows them.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct AddressBook {
    /// Where they are. This node need not be among them, and does no harm.
    pub peers: BTreeMap<HostId, PeerAddress>,
    /// Nodes that have left for ever: they are refused.
    pub left: BTreeSet<HostId>,
}

impl AddressBook {
    /// The nodes of `self` that are elsewhere in `other`, or not in it at all.
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
    /// The shard. If the node has fewer, it is one of them: this number modulo theirs.
    pub shard: u16,
}

/// What a call is about. Numbers are never used again for something else.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Verb {
    /// Whether the node is there: answered by the transport.
    Ping = 0,
    /// `replica::wire`: a read or a write of data.
    Replica = 1,
    /// The metadata group's own messages.
    Raft = 2,
    /// Becoming a member, and finding others.
    Join = 3,
    /// Changes and reads of metadata on behalf of another node.
    Metadata = 4,
    /// `replica::wire`, performed in the maintenance group: repair, writes that a node has missed.
    Maintenance = 5,
    /// Barriers of topology and of schema.
    Barrier = 6,
    /// Data of tablets that move.
    Stream = 7,
    /// The calling node stops: it is to get no more requests. Answered by the transport.
    Stopping = 8,
    /// Writes that nodes missed and no hint will bring.
    Missed = 9,
}

/// Which connection a verb uses: what has to be swift does not stand behind what is large.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(super) enum Lane {
    Control,
    Data,
    Bulk,
}

impl Verb {
    /// All verbs.
    const ALL: [Verb; 10] = [
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
    ];

    pub(super) fn lane(self) -> Lane {
        match self {
            Verb::Ping | Verb::Raft | Verb::Join | Verb::Metadata | Verb::Barrier | Verb::Stopping | Verb::Missed => {
                Lane::Control
            }
            Verb::Replica => Lane::Data,
            Verb::Maintenance | Verb::Stream => Lane::Bulk,
        }
    }

    /// The verb of requests to replicas that are performed in a group.
    pub fn of_replica(group: Group) -> Verb {
        match group {
            Group::Control | Group::Statement => Verb::Replica,
            Group::Scan | Group::Maintenance => Verb::Maintenance,
        }
    }

    /// The scheduling group of a request with the verb of this number; none if there is no such verb.
    pub(super) fn group_of(code: u8) -> Option<Group> {
        let verb = Verb::ALL.into_iter().find(|verb| *verb as u8 == code)?;
        Some(verb.lane().group())
    }
}

impl Lane {
    /// The scheduling group in which the connection's requests are read, performed and answered.
    pub(super) fn group(self) -> Group {
        match self {
            Lane::Control => Group::Control,
            Lane::Data => Group::Statement,
            Lane::Bulk => Group::Maintenance,
        }
    }
}

/// Where a connection goes.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) enum Target {
    /// A shard of a node that the address book has.
    Host(Peer, Lane),
    /// Whoever is there.
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

/// What calling needs of the outside: shared by all connections of a shard.
#[derive(Debug)]
pub(super) struct Setting {
    pub own: Identity,
    /// How many shards this node has.
    pub shards: u16,
    /// Connections go out from here; anywhere if none.
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
    fn nodes_that_moved_or_went_are_told() {
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
