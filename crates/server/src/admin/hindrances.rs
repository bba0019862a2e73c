//! What moves of tablets wait for: nodes that are down, and failures that their receivers report.

use super::AdminShards;
use super::incoming::{self, Incoming};
use crate::node_ops::is_down;
use cluster::Metadata;
use cluster::metadata::Table;
use cluster::tablets::transition::Transition;
use cluster::topology::planner;
use model::id::HostId;
use std::collections::BTreeSet;

/// See the module.
pub struct Hindrances {
    down: BTreeSet<HostId>,
    /// The progress of the receivers.
    pub incoming: Incoming,
}

impl Hindrances {
    /// What this node and the receivers know at present.
    pub async fn of_all_nodes(services: AdminShards) -> Hindrances {
        Hindrances { incoming: incoming::of_all_nodes(services).await, ..Hindrances::without_receivers(services) }
    }

    /// What this node knows without the receivers.
    pub fn without_receivers(services: AdminShards) -> Hindrances {
        let incoming = Incoming::default();
        let metadata = services.cluster.metadata.get().current();
        Hindrances { down: metadata.topology.down(is_down(services.cluster.internode)), incoming }
    }

    /// Why replicas of a node that leaves or was removed cannot move now, and the remedy if there
    /// is one. `None` if nothing is known to prevent it.
    pub fn of_host(&self, metadata: &Metadata, host: HostId) -> Option<String> {
        planner::waits_for(metadata, host, &self.down).or_else(|| self.incoming.failure_of_host(metadata, host))
    }

    /// Why the move of a tablet does not continue, and the remedy if there is one. `None` if
    /// nothing is known to prevent it.
    pub fn of_move(&self, table: &Table, tablet: u32, moving: &Transition) -> Option<String> {
        planner::move_waits_for(table, tablet, &self.down).or_else(|| self.incoming.failure_of(moving.session))
    }
}
