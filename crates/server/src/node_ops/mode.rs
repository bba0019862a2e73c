//! The operation mode of a node, under ScyllaDB's names.

use cluster::MetadataService;
use cluster::topology::NodeState;
use rt::shard::PerShard;

/// The operation mode. The numbers are the same as in ScyllaDB's metric
/// `scylla_node_operation_mode`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OperationMode {
    /// The node becomes a member.
    Joining = 2,
    /// The node serves.
    Normal = 3,
    /// The node moves its tablets to other nodes, to leave the cluster.
    Leaving = 4,
    /// The node has left the cluster.
    Decommissioned = 5,
    /// The node closes its ports and flushes.
    Draining = 6,
    /// The node waits to be stopped.
    Drained = 7,
}

impl OperationMode {
    /// The name in `/storage_service/operation_mode`.
    pub fn name(self) -> &'static str {
        match self {
            OperationMode::Joining => "JOINING",
            OperationMode::Normal => "NORMAL",
            OperationMode::Leaving => "LEAVING",
            OperationMode::Decommissioned => "DECOMMISSIONED",
            OperationMode::Draining => "DRAINING",
            OperationMode::Drained => "DRAINED",
        }
    }
}

/// The mode of a node according to its state in the metadata.
pub fn of_member(services: PerShard<MetadataService>) -> OperationMode {
    let Some(service) = services.try_get() else { return OperationMode::Normal };
    match service.current().topology.node(service.info().host_id).map(|node| node.state) {
        Some(NodeState::Joining) => OperationMode::Joining,
        Some(NodeState::Leaving) => OperationMode::Leaving,
        Some(NodeState::Left | NodeState::Removed) => OperationMode::Decommissioned,
        Some(NodeState::Normal) | None => OperationMode::Normal,
    }
}
