//! A cluster in memory: nodes of one shard each on the test's shard, and a transport that can fail.

mod fault;
pub mod requests;
mod wire;

use bytes::Bytes;
use cluster::metadata::{
    ChangeError, ColumnDefinition, KeyspaceDefinition, Op, TableDefinition, TabletsDefinition, change, open_log,
};
use cluster::tablets::TabletReplica;
use cluster::{ClusterShards, MetadataService, NodeInfo};
use coordinator::hints::{Hints, HintsConfig, HintsSettings};
use coordinator::{
    Consistency, Coordinator, CoordinatorError, NodeView, Nodes, PageLimits, PageRequest, Query, QueryPage,
    QueryPartitions, RequestOptions, TimestampClock, WriteKind,
};
use engine::{Engine, EngineConfig};
pub use fault::Fault;
use model::id::{ColumnId, HostId, SchemaVersion, TableId};
use model::key::{Clustering, DecoratedKey};
use model::mutation::{Mutation, MutationBuilder, RangeTombstone};
use model::options::{OptionMap, TableOptions};
use model::range::{PartitionRange, RowRange, Slice};
use model::row::{Cell, Marker, RowBuilder};
use model::schema::{ColumnKind, TableSchema};
use model::time::Tombstone;
use replica::{
    Class, Context, Output, OutputColumn, RateLimitMode, ReadCommand, Replica, ReplicaConfig, ReplicaRequest,
    ReplicaResponse,
};
use rt::ShardId;
use rt::sync::{Cancel, Deadline};
use smallvec::smallvec;
use std::cell::{self, RefCell};
use std::net::IpAddr;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;
use test_support::{Scratch, on_large_stack};
use uuid::Uuid;
use wire::{End, Wire};

pub const NOW: i32 = 1_000_000;
const VALUE: ColumnId = ColumnId(0);

/// The timeout of a request that must succeed.
pub const TIMEOUT: Duration = Duration::from_secs(60);
/// The timeout of a request that cannot succeed: healthy replicas have responded by then.
pub const SHORT_TIMEOUT: Duration = Duration::from_secs(2);

pub struct Node {
    pub host: HostId,
    pub coordinator: Rc<Coordinator>,
    pub replica: Rc<Replica>,
    pub engine: Rc<Engine>,
    pub metadata: Rc<MetadataService>,
}

pub struct Cluster {
    pub nodes: Vec<Node>,
    pub wire: Rc<Wire>,
    pub directory: Scratch,
    views: RefCell<Vec<NodeView>>,
    timeout: cell::Cell<Duration>,
}

/// The properties of a test's table.
pub struct Shape {
    /// The datacenter of each node.
    pub datacenters: &'static [&'static str],
    /// The indexes of the nodes with replicas. Each tablet is on all of them.
    pub copies: &'static [usize],
    pub replication: &'static [(&'static str, &'static str)],
    pub counter: bool,
    pub speculative_retry: &'static str,
    /// Shards of each node; tablets are spread over them.
    pub shards: u16,
    /// Whether readers are kept for the next page.
    pub keeps_readers: bool,
    pub rate_limits: &'static [(&'static str, &'static str)],
}

impl Shape {
    /// Three nodes in one datacenter, each with a replica.
    pub const DEFAULT: Shape = Shape {
        datacenters: &["dc1", "dc1", "dc1"],
        copies: &[0, 1, 2],
        replication: &[("class", "NetworkTopologyStrategy"), ("dc1", "3")],
        counter: false,
        speculative_retry: "NONE",
        shards: 1,
        keeps_readers: true,
        rate_limits: &[],
    };
}

/// Runs `test` on a cluster.
pub fn with_cluster<F: Future<Output = ()>>(name: &str, shape: Shape, test: impl FnOnce(Rc<Cluster>) -> F + Send) {
    with_cluster_of(name, shape, |_| {}, test);
}

/// Runs `test` on a cluster whose engines are configured by `configure`.
pub fn with_cluster_of<F: Future<Output = ()>>(
    name: &str,
    shape: Shape,
    configure: impl Fn(&mut EngineConfig) + Sync,
    test: impl FnOnce(Rc<Cluster>) -> F + Send,
) {
    on_large_stack(|| {
        rt::block_on(async {
            let cluster = Rc::new(Cluster::start(name, &shape, &configure).await);
            test(cluster.clone()).await;
            for node in &cluster.nodes {
                node.metadata.stop().await;
                node.engine.stop().await;
            }
        })
    });
}

fn options(entries: &[(&str, &str)]) -> OptionMap {
    entries.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect()
}

pub fn table_id() -> TableId {
    TableId(Uuid::from_u128(0x7ab1e))
}

/// `t (k int, c int, v int, primary key (k, c))`; `v` may be a counter.
pub fn ops(shape: &Shape, hosts: &[HostId]) -> Vec<Op> {
    let column = |name: &str, kind, ty: &str| ColumnDefinition {
        id: VALUE,
        name: name.into(),
        kind,
        ty: ty.into(),
        descending: false,
    };
    let table = TableDefinition {
        id: table_id(),
        version: SchemaVersion(Uuid::from_u128(1)),
        keyspace: "ks".into(),
        name: "t".into(),
        columns: vec![
            column("k", ColumnKind::PartitionKey, "int"),
            column("c", ColumnKind::Clustering, "int"),
            column("v", ColumnKind::Regular, if shape.counter { "counter" } else { "int" }),
        ],
        dropped: Vec::new(),
        options: TableOptions {
            speculative_retry: shape.speculative_retry.into(),
            per_partition_rate_limit: options(shape.rate_limits),
            ..TableOptions::default()
        },
    };
    let copies = |tablet: u16| -> Vec<TabletReplica> {
        let shard = tablet % shape.shards;
        shape.copies.iter().map(|node| TabletReplica { host: hosts[*node], shard }).collect()
    };
    vec![
        Op::PutKeyspace(KeyspaceDefinition {
            name: "ks".into(),
            replication: options(shape.replication),
            durable_writes: true,
            tablets: OptionMap::new(),
        }),
        Op::PutTable(Box::new(table)),
        Op::PutTablets(TabletsDefinition { table: table_id(), replicas: (0..4).map(copies).collect() }),
    ]
}

impl Cluster {
    async fn start(name: &str, shape: &Shape, configure: &impl Fn(&mut EngineConfig)) -> Cluster {
        let directory = Scratch::new(&format!("cluster-{name}"));
        let wire = Rc::new(Wire::default());
        let hosts: Vec<HostId> = (0..shape.datacenters.len()).map(|n| HostId(Uuid::from_u128(n as u128 + 1))).collect();
        let views: Vec<NodeView> = hosts
            .iter()
            .zip(shape.datacenters)
            .enumerate()
            .map(|(n, (host, datacenter))| NodeView {
                host: *host,
                datacenter: datacenter.to_string(),
                rack: format!("rack{n}"),
                address: IpAddr::from([127, 0, 0, n as u8 + 1]),
                down_since: None,
            })
            .collect();
        let mut nodes = Vec::new();
        for view in &views {
            let path = directory.join(view.host.to_string());
            std::fs::create_dir_all(&path).expect("a directory can be made");
            let config = ReplicaConfig { querier_cache: shape.keeps_readers, ..ReplicaConfig::with_memory(32 << 20) };
            let node = start_node(path, view, ops(shape, &hosts), &wire, config, configure).await;
            node.coordinator.set_nodes(Nodes::new(view.host, &views));
            wire.replicas.borrow_mut().insert(node.host, node.replica.clone());
            nodes.push(node);
        }
        Cluster { nodes, wire, directory, views: RefCell::new(views), timeout: cell::Cell::new(TIMEOUT) }
    }

    /// Marks a node as down or up for all nodes; its connections are refused or accepted.
    pub fn set_alive(&self, node: usize, alive: bool) {
        self.views.borrow_mut()[node].down_since = (!alive).then(rt::time::now);
        let views = self.views.borrow();
        for node in &self.nodes {
            node.coordinator.set_nodes(Nodes::new(node.host, &views));
        }
        match alive {
            true => self.heal(node),
            false => self.break_node(node, Fault::Refused),
        }
    }

    /// Applies a change on one node: here each node has its own Raft group.
    pub async fn change(&self, node: usize, ops: Vec<Op>) {
        let services = self.nodes[node].metadata.shards().metadata;
        let made: Result<(), ChangeError<String>> = change(services, move |_, _| Ok((ops.clone(), ()))).await;
        made.expect("the change fits");
    }

    pub async fn change_all(&self, ops: Vec<Op>) {
        for node in 0..self.nodes.len() {
            self.change(node, ops.clone()).await;
        }
    }

    pub fn set_timeout(&self, timeout: Duration) {
        self.timeout.set(timeout);
    }

    fn options(&self, consistency: Consistency) -> RequestOptions {
        let mut options = within(consistency);
        options.context.deadline = Deadline::after(self.timeout.get());
        options
    }

    /// Waits until no request is in flight, also to replicas that no client waits for.
    pub async fn settle(&self) {
        loop {
            for _ in 0..200 {
                rt::task::yield_now().await;
            }
            if self.wire.under_way.get() == 0 {
                return;
            }
            rt::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Sets a node's fault from now on. Other nodes do not see it as down.
    pub fn break_node(&self, node: usize, fault: Fault) {
        self.wire.faults.borrow_mut().insert(self.nodes[node].host, fault);
    }

    pub fn heal(&self, node: usize) {
        self.wire.faults.borrow_mut().remove(&self.nodes[node].host);
    }

    pub fn schema(&self) -> Rc<TableSchema> {
        let metadata = self.nodes[0].coordinator.metadata();
        metadata.table_by_id(table_id()).expect("the table is there").schema.clone()
    }

    pub async fn write(
        &self,
        node: usize,
        mutation: Mutation,
        consistency: Consistency,
    ) -> Result<(), CoordinatorError> {
        self.write_as(node, mutation, WriteKind::Simple, consistency).await
    }

    /// Applies a change to one replica only.
    pub async fn put(&self, node: usize, mutation: Mutation) {
        self.nodes[node]
            .replica
            .perform(&ReplicaRequest::write(mutation), &by_any_metadata())
            .await
            .expect("the node works");
    }

    pub fn query(&self, partitions: QueryPartitions) -> Query {
        query_on(&self.nodes[0].coordinator, partitions)
    }

    /// A partition's rows that a node reads at this level: clustering keys and values.
    pub async fn read(
        &self,
        node: usize,
        k: i32,
        consistency: Consistency,
    ) -> Result<Vec<(i32, i64)>, CoordinatorError> {
        let query = self.query(QueryPartitions::Keys(smallvec![key(k)]));
        let page = self.page(node, &query, &PageRequest::default(), consistency).await?;
        Ok(rows(&page).into_iter().map(|(_, c, v)| (c, v)).collect())
    }

    /// The command that reads a partition entirely.
    pub fn read_of(&self, k: i32) -> ReadCommand {
        let query = self.query(QueryPartitions::Keys(smallvec![key(k)]));
        ReadCommand {
            table: table_id(),
            schema_version: query.table.schema.version,
            ranges: smallvec![PartitionRange::singular(&key(k))],
            slice: query.slice.clone(),
            output: query.output.clone(),
            limits: replica::Limits {
                rows: u64::MAX,
                per_partition: u64::MAX,
                bytes: u64::MAX,
                tombstones: u64::MAX,
                paged: false,
                unpaged_bytes: u64::MAX,
            },
            now: NOW,
            resumed_rows: 0,
            bypass_cache: false,
            query: None,
            first_page: true,
            ends_with_rows: false,
        }
    }

    /// The rows of a partition on one replica alone.
    pub async fn own(&self, node: usize, k: i32) -> Vec<(i32, i64)> {
        let command = self.read_of(k);
        let read = self.nodes[node].replica.perform(&ReplicaRequest::Read(command.into()), &by_any_metadata()).await;
        let Ok(ReplicaResponse::Page(page)) = read else { panic!("the node works: {read:?}") };
        let page = QueryPage { rows: page.rows, body: page.body, next: None, ..QueryPage::default() };
        rows(&page).into_iter().map(|(_, c, v)| (c, v)).collect()
    }

    pub async fn keep_hints(&self, node: usize) -> Rc<Hints> {
        let config = HintsConfig {
            settings: HintsSettings { throttle: 0, ..HintsSettings::default() },
            ..HintsConfig::new(
                self.directory.join(format!("hints-{node}")),
                self.directory.join(format!("hint-notes-{node}")),
                1 << 20,
            )
        };
        let hints = Hints::open(config, 0, 1).await.expect("hints open");
        self.nodes[node].coordinator.set_hints(hints.clone());
        hints
    }
}

async fn start_node(
    path: PathBuf,
    view: &NodeView,
    ops: Vec<Op>,
    wire: &Rc<Wire>,
    replica_config: ReplicaConfig,
    configure: &impl Fn(&mut EngineConfig),
) -> Node {
    let host = view.host;
    let mut config = EngineConfig::new(path.clone(), ShardId(0), host, 32 << 20);
    config.auto_compaction = false;
    config.auto_snapshot = false;
    configure(&mut config);
    let engine = Engine::open(config).await.expect("a fresh engine opens");
    let info = Rc::new(NodeInfo {
        host_id: host,
        cluster_name: "Test Cluster".into(),
        shards: 1,
        datacenter: view.datacenter.clone(),
        rack: view.rack.clone(),
        rpc_address: view.address,
        listen_address: view.address,
        broadcast_address: view.address,
        native_port: 9042,
        shard_aware_port: 19042,
        storage_port: 7000,
        release_version: "4.1.7".into(),
        started_micros: 0,
    });
    let shards = ClusterShards::default();
    let (log, recovered) = open_log(&path, &info).await.expect("fresh metadata opens");
    let metadata = MetadataService::start(engine.clone(), info, shards, &recovered, Some(log)).await;
    let metadata = metadata.unwrap_or_else(|_| panic!("fresh metadata starts"));
    shards.metadata.set(metadata.clone());
    engine.replay_finished().await.expect("there is nothing to replay");
    engine.start();
    let made: Result<(), ChangeError<String>> = change(shards.metadata, move |_, _| Ok((ops.clone(), ()))).await;
    made.expect("the table can be made");
    let replica = Replica::new(engine.clone(), replica_config);
    let clock = TimestampClock::above(i64::MIN);
    let coordinator = Coordinator::new(metadata.clone(), replica.clone(), clock, PageLimits::default());
    coordinator.set_transport(Rc::new(End(wire.clone(), host)));
    Node { host, coordinator, replica, engine, metadata }
}

/// Options with enough time for a busy machine.
pub fn within(consistency: Consistency) -> RequestOptions {
    RequestOptions {
        context: Context {
            class: Class::User,
            deadline: Deadline::after(TIMEOUT),
            cancel: Cancel::new(),
            trace: None,
            metadata_number: 1,
            large_data: None,
            rate_limit: RateLimitMode::Off,
        },
        consistency,
    }
}

/// A context that no fence refuses, for requests that a test sends to a replica itself.
fn by_any_metadata() -> Context {
    Context { metadata_number: u64::MAX, ..within(Consistency::One).context }
}

pub fn key(k: i32) -> DecoratedKey {
    DecoratedKey::new(Bytes::copy_from_slice(&k.to_be_bytes()))
}

pub fn clustering(c: i32) -> Clustering {
    Clustering::from_components([&c.to_be_bytes()[..]])
}

/// The rows of a page: partition, clustering key, value.
pub fn rows(page: &QueryPage) -> Vec<(i32, i32, i64)> {
    let mut rest = &page.body[..];
    let mut value = || {
        let (len, tail) = rest.split_at(4);
        let (value, tail) = tail.split_at(i32::from_be_bytes(len.try_into().expect("four bytes")) as usize);
        rest = tail;
        value.iter().fold(if value[0] >= 128 { -1i64 } else { 0 }, |number, byte| number << 8 | i64::from(*byte))
    };
    (0..page.rows).map(|_| (value() as i32, value() as i32, value())).collect()
}

/// A change of one partition.
pub struct Change {
    schema: Rc<TableSchema>,
    builder: MutationBuilder,
    timestamp: i64,
}

impl Change {
    pub fn of(cluster: &Cluster, k: i32, timestamp: i64) -> Change {
        Change::with(cluster.schema(), k, timestamp)
    }

    pub fn with(schema: Rc<TableSchema>, k: i32, timestamp: i64) -> Change {
        let builder = MutationBuilder::new(schema.id, schema.version, &k.to_be_bytes());
        Change { schema, builder, timestamp }
    }

    pub fn row(mut self, c: i32, v: i32) -> Change {
        let mut row = RowBuilder::new(Some(Marker::new(self.timestamp)), Tombstone::LIVE);
        row.push(&Cell::live(VALUE, self.timestamp, &v.to_be_bytes()));
        self.builder.row(clustering(c), row.finish());
        self
    }

    pub fn add(mut self, c: i32, delta: i64) -> Change {
        let mut row = RowBuilder::new(None, Tombstone::LIVE);
        row.push(&Cell::live(VALUE, self.timestamp, &model::counter::update(delta)));
        self.builder.row(clustering(c), row.finish());
        self
    }

    pub fn delete(mut self, c: i32) -> Change {
        let row = RowBuilder::new(None, Tombstone::new(self.timestamp, NOW - 1)).finish();
        self.builder.row(clustering(c), row);
        self
    }

    /// Deletes the rows from one clustering key to another.
    pub fn delete_range(mut self, from: i32, to: i32) -> Change {
        let RowRange { start, .. } = RowRange::prefix(clustering(from));
        let RowRange { end, .. } = RowRange::prefix(clustering(to));
        self.builder.delete_range(RangeTombstone { start, end, tombstone: Tombstone::new(self.timestamp, NOW - 1) });
        self
    }

    pub fn delete_partition(mut self) -> Change {
        self.builder.delete_partition(Tombstone::new(self.timestamp, NOW - 1));
        self
    }

    pub fn done(self) -> Mutation {
        self.builder.finish(&self.schema)
    }
}

/// A query of the test's table, on a node's own snapshot of the metadata.
pub fn query_on(coordinator: &Coordinator, partitions: QueryPartitions) -> Query {
    let metadata = coordinator.metadata();
    let columns = vec![OutputColumn::PartitionKey(0), OutputColumn::Clustering(0), OutputColumn::Value(VALUE)];
    Query {
        table: metadata.table_by_id(table_id()).expect("the table is there").clone(),
        partitions,
        slice: Rc::new(Slice::full()),
        output: Rc::new(Output::new(columns, false, false)),
        limit: None,
        per_partition_limit: None,
        now: NOW,
        bypass_cache: false,
    }
}
