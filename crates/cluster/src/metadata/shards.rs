//! The handles that the control plane of a node uses on every shard.

use super::service::MetadataService;
use engine::Engine;
use internode::Internode;
use replica::Replica;
use rt::shard::PerShard;

/// The services of every shard of a node that the control plane uses, by a handle for each.
#[derive(Clone, Copy, Debug, Default)]
pub struct ClusterShards {
    /// The metadata.
    pub metadata: PerShard<MetadataService>,
    /// The storage engine.
    pub engine: PerShard<Engine>,
    /// Reads and writes of the shard. Not set while the node starts.
    pub replica: PerShard<Replica>,
    /// The transport to other nodes. Not set on a node without `seeds`.
    pub internode: PerShard<Internode>,
}
