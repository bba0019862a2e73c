#![allow(dead_code, reason = "each program uses its part")]
//! A node with one shard in this process, with its own directory, and a session on it.

pub mod statements;

use bytes::Bytes;
use cluster::metadata::open_log;
use cluster::{ClusterShards, MetadataService, NodeInfo};
use coordinator::{Coordinator, PageLimits, TimestampClock};
use cql::api::{BoundValue, BoundValues, Rows};
use cql::{ClientState, Config, Error, Processor, ProcessorShards, QueryParams, ResultKind, StatementResult};
use engine::datadir::DataDir;
use engine::{Engine, EngineConfig};
use model::CqlType;
use model::types::Value;
use replica::{Replica, ReplicaConfig};
use rt::ShardId;
use std::cell::{Cell, RefCell};
use std::net::IpAddr;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::LazyLock;
use test_support::{Scratch, on_large_stack};

/// Runs `test` on a new node.
pub fn with_node<F: Future<Output = ()>>(name: &str, test: impl FnOnce(Session) -> F + Send) {
    on_large_stack(|| {
        let path = Scratch::new(&format!("cql-{name}"));
        rt::block_on(async {
            let _data_dir = start(path.to_path_buf()).await;
            test(Session::new()).await;
            CLUSTER.engine.get().stop().await;
        });
    });
}

/// The services of every shard of every node.
pub static CLUSTER: LazyLock<ClusterShards> = LazyLock::new(ClusterShards::default);
pub static SHARDS: LazyLock<ProcessorShards> = LazyLock::new(ProcessorShards::default);

async fn start(path: PathBuf) -> DataDir {
    let data_dir = DataDir::open(&path, "Test Cluster", 1).await.expect("a fresh data directory opens");
    let host = data_dir.host_id;
    let config = EngineConfig::new(path.clone(), ShardId(0), host, 64 << 20);
    let engine = Engine::open(config).await.expect("a fresh engine opens");
    CLUSTER.engine.set(engine.clone());
    let address: IpAddr = "127.0.0.1".parse().expect("an address");
    let info = Rc::new(NodeInfo {
        host_id: host,
        cluster_name: "Test Cluster".into(),
        shards: 1,
        datacenter: "datacenter1".into(),
        rack: "rack1".into(),
        rpc_address: address,
        listen_address: address,
        broadcast_address: address,
        native_port: 9042,
        shard_aware_port: 19042,
        storage_port: 7000,
        release_version: "4.1.7".into(),
        started_micros: 0,
    });
    let (log, recovered) = open_log(&path, &info).await.expect("fresh metadata opens");
    let metadata = MetadataService::start(engine.clone(), info, *CLUSTER, &recovered, Some(log)).await;
    let metadata = metadata.unwrap_or_else(|_| panic!("fresh metadata starts"));
    CLUSTER.metadata.set(metadata.clone());
    engine.replay_finished().await.expect("there is nothing to replay");
    engine.start();
    let replica = Replica::new(engine, ReplicaConfig::with_memory(64 << 20));
    CLUSTER.replica.set(replica.clone());
    let coordinator = Coordinator::new(metadata, replica, TimestampClock::above(i64::MIN), PageLimits::default());
    SHARDS.coordinator.set(coordinator.clone());
    SHARDS.processor.set(Rc::new(Processor::with_config(coordinator, patient(), *SHARDS)));
    data_dir
}

/// A configuration whose timeouts do not depend on the speed of the machine.
fn patient() -> Config {
    let timeout = rt::time::Duration::from_secs(600);
    Config {
        read_timeout: timeout,
        range_timeout: timeout,
        write_timeout: timeout,
        counter_write_timeout: timeout,
        ..Config::default()
    }
}

/// A client's session.
pub struct Session {
    /// The processor of the shard.
    pub processor: Rc<Processor>,
    /// The state of the connection.
    pub client: Rc<ClientState>,
}

impl Session {
    fn new() -> Self {
        let client = Rc::new(ClientState {
            keyspace: RefCell::new(None),
            role: RefCell::new(None),
            address: Some("127.0.0.1:40000".parse().expect("an address")),
            tablets_routing: Cell::new(false),
            cancel: rt::sync::Cancel::new(),
            identity: Default::default(),
        });
        Session { processor: SHARDS.processor.get(), client }
    }

    /// Another connection to the same node.
    pub fn another(&self) -> Session {
        Session::new()
    }

    /// Executes a statement without values.
    pub async fn query(&self, text: &str) -> Result<StatementResult, Error> {
        self.processor.query(&self.client, text, &QueryParams::default()).await
    }

    /// Executes a statement that must succeed.
    pub async fn ok(&self, text: &str) -> StatementResult {
        self.query(text).await.unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    /// The rows of a SELECT that must succeed, as text.
    pub async fn rows(&self, text: &str) -> Vec<String> {
        match self.ok(text).await.kind {
            ResultKind::Rows(rows) => show_rows(&rows),
            other => panic!("{text}: {other:?}"),
        }
    }

    /// Creates a keyspace and uses it.
    pub async fn use_keyspace(&self, name: &str) {
        let replication = "{'class': 'NetworkTopologyStrategy', 'replication_factor': 1}";
        self.ok(&format!("CREATE KEYSPACE {name} WITH replication = {replication}")).await;
        self.ok(&format!("USE {name}")).await;
    }
}

/// Positional values.
pub fn values(values: &[(&CqlType, Value)]) -> BoundValues {
    BoundValues::Positional(values.iter().map(|(ty, value)| bound(ty, value)).collect())
}

/// A bound value.
pub fn bound(ty: &CqlType, value: &Value) -> BoundValue {
    match value.encode(ty).expect("the value is of its type") {
        Some(bytes) => BoundValue::Value(bytes.into()),
        None => BoundValue::Null,
    }
}

/// Each row as `name=value, ...`.
pub fn show_rows(rows: &Rows) -> Vec<String> {
    let mut rest = rows.body.clone();
    let shown = (0..rows.count)
        .map(|_| {
            let columns = rows.metadata.columns.iter().map(|column| {
                let len = i32::from_be_bytes(take(&mut rest, 4)[..].try_into().expect("four bytes"));
                let bytes = usize::try_from(len).ok().map(|len| take(&mut rest, len));
                let value = Value::decode_optional(&column.ty, bytes.as_deref());
                let value = value.unwrap_or_else(|error| panic!("{}: {error}", column.name));
                format!("{}={}", column.name, value.to_cql_literal(&column.ty))
            });
            columns.collect::<Vec<_>>().join(", ")
        })
        .collect();
    assert!(rest.is_empty(), "{} bytes are left after the last row", rest.len());
    shown
}

fn take(rest: &mut Bytes, len: usize) -> Bytes {
    assert!(len <= rest.len(), "a row is cut short");
    rest.split_to(len)
}

/// Runs `first` on a new node, and `second` on the same node after a restart without replay of the
/// commitlog.
pub fn with_restart<T: Send, F: Future<Output = T>, G: Future<Output = ()>>(
    name: &str,
    first: impl FnOnce(Session) -> F + Send,
    second: impl FnOnce(Session, T) -> G + Send,
) {
    let path = Scratch::new(&format!("cql-{name}"));
    let kept = on_large_stack(|| {
        rt::block_on(async {
            let _data_dir = start(path.to_path_buf()).await;
            let kept = first(Session::new()).await;
            CLUSTER.engine.get().stop().await;
            kept
        })
    });
    on_large_stack(|| {
        rt::block_on(async {
            let _data_dir = start(path.to_path_buf()).await;
            second(Session::new(), kept).await;
            CLUSTER.engine.get().stop().await;
        })
    });
}
