//! The description of a node in the topology.

use model::id::HostId;
use serde::{Deserialize, Serialize};
use std::net::{IpAddr, SocketAddr};

/// The state of a node in the cluster. Append-only: the stored form is the index in this list.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum NodeState {
    /// The node was admitted and receives metadata changes. It has no tablets yet.
    Joining,
    /// The node serves.
    Normal,
    /// The node moves its tablets to other nodes before it leaves.
    Leaving,
    /// The node has left the cluster and cannot return.
    Left,
    /// An operator has removed the node while it was down. Other nodes take over its replicas. It
    /// cannot return.
    Removed,
}

impl NodeState {
    /// Whether a node in this state is a member.
    pub fn is_member(self) -> bool {
        !matches!(self, NodeState::Left | NodeState::Removed)
    }

    /// The name in `system.topology` and in operator tools.
    pub fn name(self) -> &'static str {
        match self {
            NodeState::Joining => "bootstrapping",
            NodeState::Normal => "normal",
            NodeState::Leaving => "decommissioning",
            NodeState::Left => "left",
            NodeState::Removed => "removed",
        }
    }
}

/// A node: its identity, addresses, location, state and features.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Node {
    /// Its identity, which never changes.
    pub host: HostId,
    /// Its state in the cluster.
    pub state: NodeState,
    /// The address for clients.
    pub rpc_address: IpAddr,
    /// The address on which it listens for other nodes.
    pub listen_address: IpAddr,
    /// The address at which other nodes reach it.
    pub broadcast_address: IpAddr,
    /// The port for clients.
    pub native_port: u16,
    /// The port at which a client chooses its shard by its source port.
    pub shard_aware_port: u16,
    /// The port for other nodes.
    pub storage_port: u16,
    /// Its datacenter.
    pub datacenter: String,
    /// Its rack.
    pub rack: String,
    /// How many shards it has.
    pub shards: u16,
    /// The release version that is reported to clients.
    pub release_version: String,
    /// The names of the features that its release supports.
    pub features: Vec<String>,
}

impl Node {
    /// The address and port for other nodes.
    pub fn internode(&self) -> SocketAddr {
        SocketAddr::new(self.broadcast_address, self.storage_port)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::metadata::{KeyspaceDefinition, Metadata, Op, TableDefinition, TabletsDefinition};
    use crate::tablets::TabletReplica;
    use model::id::{SchemaVersion, TableId};
    use model::options::TableOptions;
    use uuid::Uuid;

    /// A node with default values for everything that tests do not check.
    pub(crate) fn node(n: u8, datacenter: &str, rack: &str) -> Node {
        let address = IpAddr::from([127, 0, 0, n]);
        Node {
            host: HostId(Uuid::from_u128(n.into())),
            state: NodeState::Normal,
            rpc_address: address,
            listen_address: address,
            broadcast_address: address,
            native_port: 9042,
            shard_aware_port: 19042,
            storage_port: 7000,
            datacenter: datacenter.into(),
            rack: rack.into(),
            shards: 2,
            release_version: "4.1.0".into(),
            features: vec!["RAFT_METADATA".into()],
        }
    }

    /// The table of [`metadata`].
    pub(crate) const TABLE: TableId = TableId(Uuid::from_u128(7));

    /// Nodes, a keyspace `ks` with this replication, and its table `t` with these replicas.
    pub(crate) fn metadata(
        nodes: impl IntoIterator<Item = Node>,
        replication: impl IntoIterator<Item = (String, String)>,
        replicas: Vec<Vec<TabletReplica>>,
    ) -> Metadata {
        let keyspace = KeyspaceDefinition {
            name: "ks".into(),
            replication: replication.into_iter().collect(),
            durable_writes: true,
            tablets: Default::default(),
        };
        let table = TableDefinition {
            id: TABLE,
            version: SchemaVersion(Uuid::from_u128(1)),
            keyspace: "ks".into(),
            name: "t".into(),
            columns: Vec::new(),
            dropped: Vec::new(),
            options: TableOptions::default(),
        };
        let rest = [
            Op::PutKeyspace(keyspace),
            Op::PutTable(Box::new(table)),
            Op::PutTablets(TabletsDefinition { table: TABLE, replicas }),
        ];
        let nodes = nodes.into_iter().map(|node| Op::PutNode(Box::new(node)));
        Metadata::empty().with(&nodes.chain(rest).collect::<Vec<_>>()).expect("the steps fit")
    }

    #[test]
    fn its_written_form_stays() {
        let written = postcard::to_stdvec(&node(1, "dc1", "r1")).expect("encoded");
        let mut expected = vec![16];
        expected.extend([0; 15]);
        expected.push(1);
        expected.push(1);
        for _ in 0..3 {
            expected.extend([0, 127, 0, 0, 1]);
        }
        // 9042, 19042 and 7000, seven bits a byte.
        expected.extend([0xd2, 0x46, 0xe2, 0x94, 0x01, 0xd8, 0x36]);
        expected.extend(b"\x03dc1\x02r1\x02\x054.1.0\x01\x0dRAFT_METADATA");
        assert_eq!(written, expected);
        assert_eq!(postcard::from_bytes::<Node>(&written).expect("decoded"), node(1, "dc1", "r1"));
    }
}
