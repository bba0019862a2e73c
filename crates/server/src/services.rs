//! All services of a node by a handle for each: its layers, and what serves clients and operators.

use crate::client_service::ClientService;
use crate::config::live::Live;
use crate::connection::Server;
use crate::connection::tls::Tls;
use crate::layers::{Layers, Stack};
use crate::node_events::NodeEvents;
use crate::report::Report;
use cql::Processor;
use rt::shard::{PerShard, Remote, ShardId};
use rt::sync::Semaphore;
use std::future::Future;
use std::ops::Deref;

/// The services of every shard of a node. Made once, before the node starts.
#[derive(Clone, Copy, Debug, Default)]
pub struct Services {
    /// The layers.
    pub layers: Layers,
    /// The connections of clients.
    pub server: PerShard<Server<Processor>>,
    /// What encrypts them. Not set if nothing does.
    pub tls: PerShard<Tls>,
    /// The ports for clients. On shard 0, until the node stops.
    pub clients: PerShard<ClientService>,
    /// Events about other nodes for clients. On shard 0.
    pub(crate) node_events: PerShard<NodeEvents>,
    /// What this node reports to other nodes. On shard 0.
    pub(crate) report: PerShard<Report>,
    /// The settings that can be changed while the node runs.
    pub(crate) live: PerShard<Live>,
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

/// The services of a node, for threads that are not shards: administration and metrics.
#[derive(Clone)]
pub struct RemoteServices {
    remote: Remote,
    services: Services,
}

impl RemoteServices {
    /// The services of the node with these shards.
    pub fn new(remote: Remote, services: Services) -> RemoteServices {
        RemoteServices { remote, services }
    }

    /// Runs `f` on a shard, as [`Remote::call`] does.
    #[track_caller]
    pub fn call<R, Fut>(
        &self,
        to: ShardId,
        f: impl FnOnce(Services) -> Fut + Send + 'static,
    ) -> impl Future<Output = Result<R, rt::shard::Gone>> + Send + 'static
    where
        R: Send + 'static,
        Fut: Future<Output = R> + 'static,
    {
        let services = self.services;
        self.remote.call(to, move || f(services))
    }

    /// Runs `f` on every shard, as [`Remote::call_all`] does.
    pub fn call_all<R, Fut>(
        &self,
        f: impl Fn(Services) -> Fut + Clone + Send + 'static,
    ) -> impl Future<Output = Result<Vec<R>, rt::shard::Gone>> + Send + 'static
    where
        R: Send + 'static,
        Fut: Future<Output = R> + 'static,
    {
        let services = self.services;
        self.remote.call_all(move || f(services))
    }
}
