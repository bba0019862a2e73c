//! The metrics of one shard at one moment.

use crate::connection::latency::{Did, HistogramMetrics};
use crate::connection::{Server, Transport};
use crate::node_ops::{NodeOps, mode};
use crate::protocol::Opcode;
use cluster::ClusterShards;
use cluster::observe::ShardStorage;
use cluster::observe::hot::{self, HotView};
use coordinator::{Coordinator, CoordinatorMetrics};
use cql::{Processor, StatementMetrics};
use internode::{InternodeMetrics, NodeStatus};
use replica::ReplicaMetrics;
use rt::metrics::ShardMetrics;
use rt::shard::PerShard;
use std::collections::BTreeMap;
use streaming::{StreamMetrics, StreamService};

/// The services whose metrics are read, by a handle for each.
#[derive(Clone, Copy, Debug)]
pub struct MetricsShards {
    /// The metadata, the data, and the other nodes.
    pub cluster: ClusterShards,
    /// The requests to replicas.
    pub coordinator: PerShard<Coordinator>,
    /// The query processor.
    pub processor: PerShard<Processor>,
    /// The connections of clients.
    pub server: PerShard<Server<Processor>>,
    /// The streaming of tablets.
    pub streams: PerShard<StreamService>,
    /// Operations on this node as a member of its cluster. On shard 0.
    pub node_ops: PerShard<NodeOps>,
}

/// The metrics of a shard. The values of a layer that does not run yet are zero.
#[derive(Debug, Default)]
pub struct Sample {
    /// The shard.
    pub shard: u16,
    /// Its memory budget, in bytes.
    pub memory: u64,
    /// Metrics of the runtime.
    pub runtime: ShardMetrics,
    /// Metrics of client connections.
    pub transport: TransportMetrics,
    /// Metrics of the data.
    pub storage: ShardStorage,
    /// Metrics of the replica.
    pub replica: ReplicaMetrics,
    /// Its hottest partitions, as many as `hot_partitions_in_metrics`.
    pub hot: Vec<HotView>,
    /// Metrics of the coordinator.
    pub coordinator: CoordinatorMetrics,
    /// Metrics of the prepared statement cache.
    pub prepared: cql::prepared::CacheMetrics,
    /// Metrics of executed statements.
    pub statements: StatementMetrics,
    /// Metrics of connections to other nodes.
    pub internode: InternodeMetrics,
    /// Metrics of streamed tablets.
    pub streams: StreamMetrics,
    /// 1 while a committed change of the metadata cannot be applied. On shard 0.
    pub metadata_stuck: u64,
    /// Failed attempts to apply such a change. On shard 0.
    pub metadata_failures: u64,
    /// The operation mode of the node, as a number.
    pub mode: u64,
    /// Other nodes that are up. On shard 0.
    pub nodes_up: u64,
    /// Other nodes that are down. On shard 0.
    pub nodes_down: u64,
}

/// Metrics of a shard's client connections.
#[derive(Debug, Default)]
pub struct TransportMetrics {
    /// Connections accepted.
    pub connections: u64,
    /// Open connections.
    pub open_connections: u64,
    /// Requests by kind, in the order of [`Opcode::REQUESTS`].
    pub requests: [u64; Opcode::REQUESTS.len()],
    /// Requests answered.
    pub served: u64,
    /// Requests that had to wait.
    pub waited: u64,
    /// Pending requests.
    pub serving: u64,
    /// Requests refused with Overloaded.
    pub shed: u64,
    /// How often a connection was not read because the shard is overloaded.
    pub blocked_overload: u64,
    /// How often a connection waited for memory.
    pub memory_waits: u64,
    /// Available memory for requests, in bytes.
    pub memory_available: u64,
    /// Bytes of input that connections hold beyond their first buffers, without reservations.
    pub input_bytes: u64,
    /// Bytes received.
    pub received: u64,
    /// Bytes sent.
    pub sent: u64,
    /// Bytes of answers that clients have not read.
    pub unread_bytes: u64,
    /// Connections dropped because their clients did not read.
    pub dropped_unread: u64,
    /// Refusals by rate limits that were answered late.
    pub late_refusals: u64,
    /// Connections closed because they had sent no STARTUP while others needed their slots.
    pub evicted_silent: u64,
    /// Errors by code.
    pub errors: BTreeMap<i32, u64>,
    /// Latencies of statements with rows in their answers.
    pub read_latency: HistogramMetrics,
    /// Latencies of statements without rows in their answers.
    pub write_latency: HistogramMetrics,
}

impl Sample {
    /// The current metrics of this shard, whose memory budget is `memory` bytes.
    pub fn take(shards: MetricsShards, memory: u64) -> Sample {
        let MetricsShards { cluster, coordinator, processor, server, streams, node_ops } = shards;
        let internode = cluster.internode.try_get();
        let nodes = |status| match &internode {
            Some(internode) if rt::shard::this().0 == 0 => {
                internode.liveness().nodes.values().filter(|node| node.status == status).count() as u64
            }
            _ => 0,
        };
        let metadata = cluster.metadata.try_get().map(|metadata| metadata.apply_failure());
        let (apply_failure, metadata_failures) = metadata.unwrap_or_default();
        Sample {
            shard: rt::shard::this().0,
            memory,
            runtime: rt::metrics::snapshot(),
            transport: server.try_get().map(|server| transport_metrics(&server.transport)).unwrap_or_default(),
            storage: ShardStorage::of_this_shard(cluster.engine),
            replica: cluster.replica.try_get().map(|replica| replica.metrics()).unwrap_or_default(),
            hot: cluster
                .replica
                .try_get()
                .map_or_else(Vec::new, |replica| hot::of_shard(cluster, replica.hot_settings().in_metrics)),
            prepared: processor.try_get().map(|processor| processor.prepared_statements()).unwrap_or_default(),
            statements: processor.try_get().map(|processor| processor.statistics()).unwrap_or_default(),
            coordinator: coordinator.try_get().map(|coordinator| coordinator.metrics()).unwrap_or_default(),
            streams: streams.try_get().map(|streams| streams.metrics()).unwrap_or_default(),
            metadata_stuck: u64::from(apply_failure.is_some()),
            metadata_failures,
            mode: node_ops.try_get().map_or_else(|| mode::of_member(cluster.metadata), |ops| ops.mode()) as u64,
            nodes_up: nodes(NodeStatus::Up),
            nodes_down: nodes(NodeStatus::Down),
            internode: internode.as_ref().map(|internode| internode.metrics()).unwrap_or_default(),
        }
    }
}

fn transport_metrics(transport: &Transport) -> TransportMetrics {
    let stats = &transport.stats;
    TransportMetrics {
        connections: stats.connections.get(),
        open_connections: transport.connection_count() as u64,
        requests: std::array::from_fn(|at| stats.requests[at].get()),
        served: stats.served.get(),
        waited: stats.waited.get(),
        serving: transport.in_flight() as u64,
        shed: stats.shed.get(),
        blocked_overload: stats.blocked_overload.get(),
        memory_waits: transport.memory.waits(),
        memory_available: transport.memory.limit().saturating_sub(transport.memory.used()) as u64,
        input_bytes: transport.memory.input() as u64,
        received: stats.received.get(),
        sent: stats.sent.get(),
        unread_bytes: transport.unread() as u64,
        dropped_unread: stats.dropped_unread.get(),
        late_refusals: stats.late_refusals.get(),
        evicted_silent: stats.evicted_silent.get(),
        errors: stats.errors(),
        read_latency: transport.latencies.of(Did::Read).metrics(),
        write_latency: transport.latencies.of(Did::Write).metrics(),
    }
}
