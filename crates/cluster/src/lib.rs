//! The control plane: which node and shard owns which tablet, and how that changes.
//!
//! Each shard holds a numbered, immutable snapshot of the schema, the nodes and the tablets. The
//! cluster's Raft group agrees on changes, and all shards of all nodes apply them in the same
//! order. This crate never imports `coordinator`, which sends requests to the owners. It parses no
//! CQL and opens no sstable.
//!
//! Reading order: [`tablets`], [`topology`], [`metadata`], [`raft`], [`placement`]; then
//! [`truncate`], [`flush`] and [`refresh`], which run on all shards; [`observe`], which operators
//! and clients are shown.

pub mod flush;
pub mod metadata;
mod named;
pub mod observe;
pub mod placement;
pub mod raft;
pub mod refresh;
pub mod tablets;
pub mod topology;
pub mod truncate;

pub use metadata::{ClusterShards, Metadata, MetadataService, NodeInfo};
pub use tablets::TabletMap;
pub use topology::{Node, NodeState, Topology};
