//! Coordinators of nodes with two shards each. They are connected by real sockets, and detect when
//! the others are up and down.

use crate::support;

use cluster::metadata::{ChangeError, MetadataLog, Op, Recovered, change, open_log};
use cluster::{ClusterShards, MetadataService, Node, NodeInfo, NodeState};
use coordinator::{
    Consistency, Coordinator, CoordinatorError, PageLimits, PageRequest, QueryPartitions, TimestampClock, WriteKind,
    serve_replica,
};
use engine::{Engine, EngineConfig};
use internode::{AddressBook, Identity, InternodeConfig, InternodeListener, LivenessConfig, PeerAddress, Running};
use model::id::HostId;
use model::range::PartitionRange;
use replica::{Replica, ReplicaConfig};
use rt::shard::PerShard;
use rt::time::{Duration, sleep};
use rt::{Machine, MachineConfig, MachineHandle, ShardId};
use smallvec::smallvec;
use std::cell::RefCell;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::LazyLock;
use support::{Change, Shape, key, ops, rows, table_id};
use uuid::Uuid;

const SHARDS: usize = 2;
/// The most polls for a condition that must hold soon.
const POLLS: u32 = 12_000;

/// The services of every shard of every node.
static SERVICES: LazyLock<ClusterShards> = LazyLock::new(ClusterShards::default);
static COORDINATORS: LazyLock<PerShard<Coordinator>> = LazyLock::new(PerShard::new);
/// What runs on shard 0 of every node.
static RUNNING: LazyLock<PerShard<Kept>> = LazyLock::new(PerShard::new);

struct Kept(RefCell<Option<Running>>);

struct Up {
    machine: MachineHandle,
    host: HostId,
    address: SocketAddr,
}

fn host(n: u128) -> HostId {
    HostId(Uuid::from_u128(n))
}

fn info(n: u128) -> NodeInfo {
    let address = IpAddr::from([127, 0, 0, 1]);
    NodeInfo {
        host_id: host(n),
        cluster_name: "C".into(),
        shards: SHARDS,
        datacenter: "dc1".into(),
        rack: format!("rack{n}"),
        rpc_address: address,
        listen_address: address,
        broadcast_address: address,
        native_port: 0,
        shard_aware_port: 0,
        storage_port: 0,
        release_version: "4.1.7".into(),
        started_micros: 0,
    }
}

fn node(n: u128) -> Node {
    cluster::metadata::own_node(&info(n), NodeState::Normal)
}

async fn open_shard(path: PathBuf, n: u128, recovered: &Recovered, log: Option<MetadataLog>) {
    let mut config = EngineConfig::new(path, rt::shard::this(), host(n), 32 << 20);
    config.auto_snapshot = false;
    let engine = Engine::open(config).await.expect("the engine opens");
    SERVICES.engine.set(engine.clone());
    let metadata = MetadataService::start(engine, Rc::new(info(n)), *SERVICES, recovered, log).await;
    SERVICES.metadata.set(metadata.unwrap_or_else(|_| panic!("the metadata starts")));
}

/// All layers of a node, on every shard. Called on shard 0.
async fn start_floors(path: PathBuf, n: u128, internode_config: InternodeConfig) -> SocketAddr {
    let (log, recovered) = open_log(&path, &info(n)).await.expect("the metadata opens");
    open_shard(path.clone(), n, &recovered, Some(log)).await;
    for shard in 1..SHARDS as u16 {
        let (path, recovered) = (path.clone(), recovered.clone());
        rt::shard::call(ShardId(shard), move || async move { open_shard(path, n, &recovered, None).await }).await;
    }
    rt::shard::call_all(|| async {
        let engine = SERVICES.engine.get();
        engine.replay_finished().await.expect("there is nothing to replay");
        engine.start();
    })
    .await;
    let hosts: Vec<HostId> = (1..=3).map(host).collect();
    let made: Result<(), ChangeError<String>> = change(SERVICES.metadata, move |metadata, _| {
        if metadata.table_by_id(table_id()).is_some() {
            return Ok((Vec::new(), ()));
        }
        let others = (1..=3).filter(|other| *other != n).map(|other| Op::PutNode(Box::new(node(other))));
        let copies = Shape { shards: SHARDS as u16, ..Shape::DEFAULT };
        Ok((others.chain(ops(&copies, &hosts)).collect(), ()))
    })
    .await;
    made.expect("the table can be made");
    let listener = InternodeListener::open(([127, 0, 0, 1], 0).into()).await.expect("a port");
    let address = listener.local_addr().expect("known");
    let own = Identity {
        host: host(n),
        cluster: "C".into(),
        address,
        datacenter: "dc1".into(),
        rack: format!("rack{n}"),
        features: Vec::new(),
    };
    internode::install(SERVICES.internode, own, internode_config, None, None).await;
    rt::shard::call_all(|| async {
        let (engine, metadata) = (SERVICES.engine.get(), SERVICES.metadata.get());
        let replica = Replica::new(engine, ReplicaConfig::with_memory(32 << 20));
        SERVICES.replica.set(replica.clone());
        let internode = SERVICES.internode.get();
        serve_replica(&internode, replica.clone(), metadata.clone());
        let clock = TimestampClock::above(i64::MIN);
        let coordinator = Coordinator::new(metadata, replica, clock, PageLimits::default());
        coordinator.connect(&internode);
        COORDINATORS.set(coordinator);
    })
    .await;
    RUNNING.set(Rc::new(Kept(RefCell::new(Some(internode::serve(SERVICES.internode.get(), listener))))));
    address
}

async fn start(directory: &Path, n: u128) -> Up {
    let config = MachineConfig { shards: SHARDS, overprovisioned: true, ..MachineConfig::default() };
    let machine = Machine::start(config, |_| async { rt::shard::stopping().cancelled().await }).expect("started");
    let liveness = LivenessConfig {
        interval: Duration::from_millis(50),
        timeout: Duration::from_secs(2),
        // A busy machine may stall for a while.
        down_after: Duration::from_secs(5),
        ..LivenessConfig::default()
    };
    let internode_config = InternodeConfig { liveness, ..InternodeConfig::default() };
    let path = directory.join(n.to_string());
    std::fs::create_dir_all(&path).expect("a directory can be made");
    let address = machine.remote().call(ShardId(0), move || start_floors(path, n, internode_config)).await.expect("up");
    Up { machine, host: host(n), address }
}

impl Up {
    async fn knows(&self, others: &[(HostId, SocketAddr)]) {
        let peer = |address: SocketAddr| PeerAddress {
            address,
            shards: SHARDS as u16,
            datacenter: "dc1".into(),
            rack: "rack".into(),
        };
        let peers = others.iter().filter(|(host, _)| *host != self.host).map(|(host, at)| (*host, peer(*at)));
        let book = AddressBook { peers: peers.collect(), ..AddressBook::default() };
        self.machine
            .remote()
            .call(ShardId(0), move || internode::publish_book(SERVICES.internode, book))
            .await
            .expect("published");
    }

    async fn write(&self, shard: u16, k: i32, timestamp: i64, level: Consistency) -> Result<(), CoordinatorError> {
        let write = self.machine.remote().call(ShardId(shard), move || async move {
            let coordinator = COORDINATORS.get();
            let metadata = coordinator.metadata();
            let schema = metadata.table_by_id(table_id()).expect("it is there").schema.clone();
            let mutation = Change::with(schema, k, timestamp).row(1, timestamp as i32).done();
            let key = mutation.decorated_key();
            coordinator.write(smallvec![(mutation, key)], WriteKind::Simple, &support::within(level)).await
        });
        write.await.expect("ran")
    }

    async fn read(&self, shard: u16, k: i32, level: Consistency) -> Result<Vec<i64>, CoordinatorError> {
        let read = self.machine.remote().call(ShardId(shard), move || async move {
            let coordinator = COORDINATORS.get();
            let query = support::query_on(&coordinator, QueryPartitions::Keys(smallvec![key(k)]));
            let page = coordinator.read(&query, &PageRequest::default(), &support::within(level)).await?;
            Ok(rows(&page).into_iter().map(|(_, _, v)| v).collect())
        });
        read.await.expect("ran")
    }

    /// The number of rows of the table.
    async fn scan(&self, level: Consistency) -> Result<usize, CoordinatorError> {
        let scan = self.machine.remote().call(ShardId(0), move || async move {
            let coordinator = COORDINATORS.get();
            let query = support::query_on(&coordinator, QueryPartitions::Range(PartitionRange::FULL));
            let page = coordinator.read(&query, &PageRequest::default(), &support::within(level)).await?;
            Ok(rows(&page).len())
        });
        scan.await.expect("ran")
    }

    /// Waits until every shard sees another node as up or down.
    async fn sees(&self, other: HostId, alive: bool) {
        for _ in 0..POLLS {
            let seen = self.machine.remote().call(ShardId(0), move || async move {
                rt::shard::call_all(move || async move { COORDINATORS.get().nodes().is_alive(other) == alive }).await
            });
            if seen.await.expect("ran").into_iter().all(|seen| seen) {
                return;
            }
            sleep(Duration::from_millis(5)).await;
        }
        panic!("node {other} is not seen to be {}", if alive { "up" } else { "down" });
    }

    async fn stop(self) {
        let stopped = self.machine.remote().call(ShardId(0), || async {
            let running = RUNNING.get().0.borrow_mut().take();
            if let Some(running) = running {
                running.stop().await;
            }
            SERVICES.metadata.get().stop().await;
            rt::shard::call_all(|| async {
                let engine = SERVICES.engine.get();
                engine.flush(None).await.expect("the disk works");
                engine.stop().await;
            })
            .await;
        });
        stopped.await.expect("stopped");
        self.machine.stop();
        self.machine.join();
    }
}

#[test]
fn quorum_requests_succeed_with_a_node_down_and_repair_it() {
    use Consistency::{All, One, Quorum};
    let directory = test_support::Scratch::new("wired");
    rt::block_on(async {
        let (a, b, c) = (start(&directory, 1).await, start(&directory, 2).await, start(&directory, 3).await);
        let addresses = [(a.host, a.address), (b.host, b.address), (c.host, c.address)];
        for node in [&a, &b, &c] {
            node.knows(&addresses).await;
        }
        for k in 0..20 {
            let node = [&a, &b, &c][k as usize % 3];
            node.write(k as u16 % 2, k, 1, All).await.expect("all live");
        }
        for node in [&a, &b, &c] {
            for shard in 0..SHARDS as u16 {
                for k in 0..20 {
                    assert_eq!(node.read(shard, k, Quorum).await, Ok(vec![1]));
                }
            }
            assert_eq!(node.scan(All).await, Ok(20));
        }
        let gone = c.host;
        c.stop().await;
        for node in [&a, &b] {
            node.sees(gone, false).await;
            let (consistency, required, alive) = (All, 3, 2);
            let unavailable = CoordinatorError::Unavailable { consistency, required, alive };
            assert_eq!(node.read(0, 1, All).await, Err(unavailable));
        }
        for k in 0..20 {
            [&a, &b][k as usize % 2].write(1, k, 2, Quorum).await.expect("two live");
        }
        let c = start(&directory, 3).await;
        let addresses = [(a.host, a.address), (b.host, b.address), (c.host, c.address)];
        for node in [&a, &b, &c] {
            node.knows(&addresses).await;
        }
        for node in [&a, &b] {
            node.sees(gone, true).await;
            c.sees(node.host, true).await;
        }
        for k in 0..20 {
            assert_eq!(c.read(0, k, One).await, Ok(vec![1]), "it was not there");
            assert_eq!(c.read(1, k, Quorum).await, Ok(vec![2]));
            assert_eq!(c.read(0, k, One).await, Ok(vec![2]), "the read has brought it");
        }
        for node in [a, b, c] {
            node.stop().await;
        }
    });
}
