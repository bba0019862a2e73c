//! All services of a node by a handle for each: its layers, and what serves clients and operators.

use crate::admin::AdminShards;
use crate::client_service::ClientService;
use crate::config::live::Live;
use crate::connection::Server;
use crate::connection::tls::Tls;
use crate::layers::{Layers, Stack};
use crate::metrics::sample::MetricsShards;
use crate::node_events::NodeEvents;
use crate::node_ops::NodeOps;
use crate::report::Report;
use cql::Processor;
use rt::shard::PerShard;
use rt::sync::Semaphore;
use std::ops::Deref;

/// The services of every shard of a node. Made once, before the node starts.
#[derive(Clone, Copy, Debug, Default)]
pub struct Services {
    /// The layers.
    pub layers: Layers,
    /// The connections of clients.
    pub server: PerShard<Server<Processor>>,
    /// The TLS configuration of the ports. Not set without encryption.
    pub tls: PerShard<Tls>,
    /// The ports for clients. On shard 0, until the node stops.
    pub clients: PerShard<ClientService>,
    /// Events about other nodes for clients. On shard 0.
    pub(crate) node_events: PerShard<NodeEvents>,
    /// The report of this node to other nodes. On shard 0.
    pub(crate) report: PerShard<Report>,
    /// The settings that can be changed while the node runs.
    pub(crate) live: PerShard<Live>,
    /// Operations on this node as a member of its cluster. On shard 0, until the node stops.
    pub node_ops: PerShard<NodeOps>,
    /// Held while an administrator's snapshot is taken. On shard 0.
    pub snapshot_turn: PerShard<Semaphore>,
    /// What [`crate::stack::start`] returned. On shard 0, until the node stops.
    pub stack: PerShard<Stack>,
}

impl Deref for Services {
    type Target = Layers;

    fn deref(&self) -> &Layers {
        &self.layers
    }
}

impl Services {
    /// The services that administration uses.
    pub fn admin(self) -> AdminShards {
        let Services { layers, clients, node_ops, snapshot_turn, .. } = self;
        let Layers { processor, system, streams, .. } = layers;
        let (cluster, resync) = (layers.cluster(), layers.resync());
        let settings = system.settings;
        AdminShards { cluster, resync, processor, settings, streams, clients, node_ops, snapshot_turn }
    }

    /// The services that metrics are read from.
    pub fn metrics(self) -> MetricsShards {
        let Services { layers, server, node_ops, .. } = self;
        let Layers { coordinator, processor, streams, .. } = layers;
        MetricsShards { cluster: layers.cluster(), coordinator, processor, server, streams, node_ops }
    }
}
