//! The layers of a node that have one instance on every shard, by a handle for each.

use crate::config::live::LiveShards;
use crate::runs::Runs;
use crate::wire::OpenWire;
use cluster::topology::migration_driver::Streaming;
use cluster::{ClusterShards, MetadataService, NodeInfo};
use coordinator::Coordinator;
use coordinator::resync::ResyncShards;
use cql::fragments::LocalSourcesService;
use cql::system::SystemShards;
use cql::{Processor, ProcessorShards};
use engine::Engine;
use engine::commitlog::ReplayReport;
use engine::datadir::{DataDir, InventoryKeeper};
use internode::Internode;
use replica::Replica;
use rt::shard::PerShard;
use std::rc::Rc;
use streaming::StreamService;

/// The layers of every shard of a node. Made once, before [`crate::stack::start`], which sets the
/// instances.
#[derive(Clone, Copy, Debug, Default)]
pub struct Layers {
    /// The storage engine.
    pub engine: PerShard<Engine>,
    /// The metadata.
    pub metadata: PerShard<MetadataService>,
    /// The transport to other nodes. Not set on a node without `seeds`.
    pub internode: PerShard<Internode>,
    /// Reads and writes of the shard.
    pub replica: PerShard<Replica>,
    /// The requests to replicas.
    pub coordinator: PerShard<Coordinator>,
    /// The query processor.
    pub processor: PerShard<Processor>,
    /// What system tables show.
    pub system: SystemShards,
    /// What MUTATION_FRAGMENTS shows.
    pub fragments: PerShard<LocalSourcesService>,
    /// What writes the inventory of the data directory. On shard 0.
    pub inventory: PerShard<InventoryKeeper>,
    /// The open transport to other nodes. On shard 0.
    pub wire: PerShard<OpenWire>,
    /// The run of this node. On shard 0. Not set on a node without `seeds`.
    pub runs: PerShard<Runs>,
    /// The streamer of tablets to other nodes. On shard 0. Not set on a node without `seeds`.
    pub streaming: PerShard<Streaming>,
    /// The streaming of the shard's tablets.
    pub streams: PerShard<StreamService>,
}

impl Layers {
    /// The layers that the control plane uses.
    pub fn cluster(self) -> ClusterShards {
        let Layers { metadata, engine, replica, internode, .. } = self;
        ClusterShards { metadata, engine, replica, internode }
    }

    /// The layers that the query processor uses.
    pub fn cql(self) -> ProcessorShards {
        let Layers { processor, coordinator, system, fragments, .. } = self;
        ProcessorShards { processor, coordinator, system, fragments }
    }

    /// The layers that a change of a setting reaches.
    pub fn live_shards(self) -> LiveShards {
        let Layers { engine, metadata, replica, coordinator, processor, streams, .. } = self;
        LiveShards { engine, metadata, replica, coordinator, processor, streams }
    }

    /// The layers that a resync uses.
    pub fn resync(self) -> ResyncShards {
        ResyncShards { cluster: self.cluster(), coordinator: self.coordinator }
    }
}

/// A node's running layers. Kept by shard 0.
pub struct Stack {
    /// The description of the node.
    pub info: NodeInfo,
    /// The report of the replay.
    pub replayed: ReplayReport,
    /// The lock on the data directory.
    #[expect(dead_code, reason = "held until the node stops")]
    pub(crate) data_dir: Rc<DataDir>,
}
