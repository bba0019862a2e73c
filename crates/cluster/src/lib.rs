//! Who owns what, and asking the owners.
//!
//! Two rooms. The control plane ([`metadata`], [`topology`], [`tablets`]) keeps one numbered, immutable snapshot of schema and tablets per
//! shard, fed by a journal of changes. The [`coordinator`] asks the shards that own data, at one of three distances. The control
//! plane never imports the coordinator; neither parses CQL or opens an sstable.

pub mod coordinator;
pub mod flush;
pub mod hints;
pub mod metadata;
pub mod placement;
pub mod raft;
pub mod refresh;
pub mod resync;
pub mod tablets;
pub mod topology;
pub mod truncate;

pub use coordinator::{Coordinator, CoordinatorError, PageRequest, Query, QueryPage, RequestOptions};
pub use metadata::{Metadata, MetadataService, NodeInfo};
pub use tablets::TabletMap;
pub use topology::{Node, NodeState, Topology};
