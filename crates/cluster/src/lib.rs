//! Which node and shard owns which tablet, and how that changes: the control plane.
//!
//! It keeps one numbered, immutable snapshot of schema, nodes and tablets per shard. Changes are
//! agreed upon by the Raft group of the cluster and applied on all shards of all nodes. It never
//! imports the coordinator, which asks the owners for data; it parses no CQL and opens no sstable.
//!
//! Reading order: [`tablets`], [`topology`], [`metadata`], [`raft`], [`placement`]; [`truncate`],
//! [`flush`], [`refresh`] (what all shards do with a table).

pub mod flush;
pub mod metadata;
pub mod placement;
pub mod raft;
pub mod refresh;
pub mod tablets;
pub mod topology;
pub mod truncate;

pub use metadata::{Metadata, MetadataService, NodeInfo};
pub use tablets::TabletMap;
pub use topology::{Node, NodeState, Topology};
