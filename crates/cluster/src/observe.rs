//! The read model of a node: what operators and clients are shown of it, as plain values.
//!
//! System tables, metrics, administration and a node's report about itself render these values.
//! None of them collects a value itself. The functions run on any shard, and wait for all shards.
//! A shard whose engine does not run yet counts nothing.
//!
//! For operators and clients only: the database makes no decision by these values.
//!
//! Reading order: [`members`], [`storage`], [`hot`].

pub mod hot;
pub mod members;
pub mod storage;

pub use members::{Member, NodeView};
pub use storage::{LargeFound, ShardStorage};

/// The snitch that clients and tools are shown: it takes a node's location from its configuration.
pub const SNITCH: &str = "org.apache.cassandra.locator.SimpleSnitch";
