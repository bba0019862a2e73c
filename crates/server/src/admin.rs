//! The admin REST interface, under ScyllaDB's paths.
//!
//! [`rest`] maps paths to [`operations`], which call the shards. The state of the node comes from
//! [`cluster::observe`]. Errors are JSON: `{message, code}`. All administrative commands use this
//! interface: `messina admin` is a client of it. It has no authentication, so it listens on
//! loopback unless configured otherwise.

pub mod compactions;
mod extract;
mod hindrances;
pub mod hot;
pub mod incoming;
pub mod node_ops;
pub mod nodes;
pub mod operations;
mod other_node;
pub mod process;
mod refusal;
pub mod rest;
pub mod ring;
pub mod slow_query;
pub mod snapshots;
pub mod streams;
pub mod table_stats;
pub mod tables;
pub mod tablets;
pub mod tasks;

pub use rest::{AdminState, LogControl, router};

use crate::client_service::ClientService;
use crate::node_ops::NodeOps;
use crate::remote::RemoteShards;
use cluster::ClusterShards;
use coordinator::resync::ResyncShards;
use cql::Processor;
use cql::system::SettingsTable;
use rt::shard::PerShard;
use rt::sync::Semaphore;
use streaming::StreamService;

/// The services that administration uses, by a handle for each.
#[derive(Clone, Copy, Debug)]
pub struct AdminShards {
    /// The metadata, the data, and the other nodes.
    pub cluster: ClusterShards,
    /// What nodes missed.
    pub resync: ResyncShards,
    /// The query processors, for the slow query log.
    pub processor: PerShard<Processor>,
    /// The settings.
    pub settings: PerShard<SettingsTable>,
    /// The streaming of tablets.
    pub streams: PerShard<StreamService>,
    /// The ports for clients. On shard 0.
    pub clients: PerShard<ClientService>,
    /// Operations on this node as a member of its cluster. On shard 0.
    pub node_ops: PerShard<NodeOps>,
    /// Held while a snapshot is taken. On shard 0.
    pub snapshot_turn: PerShard<Semaphore>,
}

/// These services, for the thread of administration.
pub type RemoteServices = RemoteShards<AdminShards>;
