//! Four nodes in one process, with all layers except the ports for clients. A tablet moves from one
//! node to another while clients write: across a restart of the leader, and while a node without a
//! replica is down. A migration that cannot finish is aborted.
use crate::support::{LAYERS, Scratch};
use bytes::Bytes;
use cluster::tablets::TabletReplica;
use cluster::tablets::transition::{Replicas, Stage, TransitionKind};
use cluster::topology::NodeState;
use cluster::topology::migration_driver::{self, StreamError, StreamTask, Streamer, Streaming};
use cql::api::{ClientState, Consistency, QueryParams, ResultKind, Rows};
use engine::commitlog::SyncMode;
use futures_util::future::LocalBoxFuture;
use internode::{InternodeConfig, LivenessConfig};
use model::HostId;
use model::id::TableId;
use replica::ReplicaConfig;
use rt::shard::PerShard;
use rt::time::Duration;
use rt::{Machine, MachineConfig, MachineHandle, ShardId};
use server::membership::{ClusterConfig, ClusterSettings};
use server::stack::{self, StackConfig};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};
use streaming::TabletStreamer;

/// The time between two checks of a condition.
const PAUSE: Duration = Duration::from_millis(20);
/// The maximum time of a wait, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);
const ROWS: i32 = 60;
/// Memory of each shard, in bytes.
const MEMORY: usize = 32 << 20;

/// What the start of each node returned. On shard 0.
static STACK: LazyLock<PerShard<stack::Stack>> = LazyLock::new(PerShard::new);

pub struct Up {
    machine: MachineHandle,
    path: PathBuf,
    address: SocketAddr,
    pub host: HostId,
}

/// Streams while the link is up.
struct OverLink {
    is_up: Arc<AtomicBool>,
    streamer: TabletStreamer,
}

impl Streamer for OverLink {
    fn copy(&self, what: StreamTask) -> LocalBoxFuture<'static, Result<(), StreamError>> {
        match self.is_up.load(Ordering::Relaxed) {
            true => self.streamer.copy(what),
            false => Box::pin(async { Err("the link is down".into()) }),
        }
    }
}

fn client() -> Rc<ClientState> {
    Rc::new(ClientState {
        keyspace: Default::default(),
        role: Default::default(),
        address: None,
        tablets_routing: Default::default(),
        cancel: rt::sync::Cancel::new(),
        identity: Default::default(),
    })
}

async fn ask(text: &str, consistency: Consistency) -> Result<ResultKind, String> {
    ask_with(text, QueryParams { consistency, ..QueryParams::default() }).await
}

async fn ask_with(text: &str, params: QueryParams) -> Result<ResultKind, String> {
    let processor = LAYERS.processor.get();
    let answer = processor.query(&client(), text, &params).await;
    answer.map(|answer| answer.kind).map_err(|error| format!("{text}: {error}"))
}

/// Rows of two ints and a bigint.
async fn rows(text: &str, consistency: Consistency) -> Result<Vec<(i32, i32, i64)>, String> {
    let ResultKind::Rows(rows) = ask(text, consistency).await? else { return Err(format!("{text}: no rows")) };
    Ok(values(&rows))
}

fn values(rows: &Rows) -> Vec<(i32, i32, i64)> {
    let mut rest = &rows.body[..];
    let mut value = || {
        let (len, tail) = rest.split_at(4);
        let (value, tail) = tail.split_at(i32::from_be_bytes(len.try_into().expect("four bytes")) as usize);
        rest = tail;
        value.iter().fold(0i64, |number, byte| number << 8 | i64::from(*byte))
    };
    (0..rows.count).map(|_| (value() as i32, value() as i32, value())).collect()
}

/// The next page of the keys of the table, at ALL, and its paging state.
async fn page(state: Option<Bytes>) -> Result<(Vec<i32>, Option<Bytes>), String> {
    let text = "SELECT k, v, writetime(v) FROM ks.t";
    let params = QueryParams {
        consistency: Consistency::All,
        page_size: Some(ROWS / 10),
        paging_state: state,
        ..QueryParams::default()
    };
    let ResultKind::Rows(rows) = ask_with(text, params).await? else { return Err(format!("{text}: no rows")) };
    Ok((values(&rows).into_iter().map(|(k, ..)| k).collect(), rows.paging_state))
}

/// The number of queriers that the shards of a node keep for next pages.
async fn readers() -> u64 {
    let populations = rt::shard::call_all(|| async { LAYERS.replica.get().metrics().queriers.population });
    populations.await.into_iter().sum()
}

fn config(path: &Path, address: SocketAddr, seeds: &[SocketAddr]) -> StackConfig {
    // A busy machine may stall for a while.
    let liveness = LivenessConfig {
        timeout: Duration::from_secs(5),
        down_after: Duration::from_secs(10),
        ..LivenessConfig::default()
    };
    let mut config = StackConfig {
        cluster: Some(ClusterConfig {
            seeds: seeds.to_vec().into(),
            listen: address,
            internode: InternodeConfig { liveness, ..InternodeConfig::default() },
            tls: None,
            settings: ClusterSettings::default(),
        }),
        sync: SyncMode::Periodic { period: Duration::from_secs(10) },
        // No querier may be evicted by its age.
        replica: ReplicaConfig { querier_cache_ttl: 10 * PATIENCE, ..ReplicaConfig::with_memory(MEMORY) },
        query_processor: cql::Config {
            read_timeout: PATIENCE,
            range_timeout: PATIENCE,
            write_timeout: PATIENCE,
            ..cql::Config::default()
        },
        ..StackConfig::new(path, "moving", address.ip(), MEMORY)
    };
    config.info.storage_port = address.port();
    config
}

/// Starts a node, and returns when it serves.
async fn start(path: PathBuf, address: SocketAddr, seeds: Vec<SocketAddr>, copies: Arc<AtomicBool>) -> Up {
    try_start(path, address, seeds, copies).await.expect("the node starts")
}

/// Like [`start`], but returns an error if the node does not start.
pub async fn try_start(
    path: PathBuf,
    address: SocketAddr,
    seeds: Vec<SocketAddr>,
    copies: Arc<AtomicBool>,
) -> Result<Up, String> {
    let config_of_machine = MachineConfig { shards: 2, overprovisioned: true, ..MachineConfig::default() };
    let machine = Machine::start(config_of_machine, |_| async { rt::shard::stopping().cancelled().await });
    let machine = machine.expect("a machine starts");
    std::fs::create_dir_all(&path).expect("a directory can be made");
    let directory = path.clone();
    let started = machine.remote().call(ShardId(0), move || async move {
        let stack =
            stack::start(*LAYERS, config(&directory, address, &seeds)).await.map_err(|error| error.to_string())?;
        let streamer = TabletStreamer { shards: LAYERS.cluster(), services: LAYERS.streams };
        LAYERS.streaming.set(Rc::new(Streaming(Rc::new(OverLink { is_up: copies, streamer }))));
        let host = stack.info.host_id;
        STACK.set(Rc::new(stack));
        Ok::<_, String>(host)
    });
    match started.await.expect("it runs") {
        Ok(host) => Ok(Up { machine, path, address, host }),
        Err(why) => {
            let _ = machine.remote().call(ShardId(0), || stack::stop(*LAYERS)).await;
            machine.stop();
            machine.join();
            Err(why)
        }
    }
}

impl Up {
    pub async fn on<T: Send + 'static, F: Future<Output = T> + 'static>(
        &self,
        work: impl FnOnce() -> F + Send + 'static,
    ) -> T {
        self.machine.remote().call(ShardId(0), work).await.expect("it runs")
    }

    async fn ask(&self, text: &str, consistency: Consistency) -> Result<(), String> {
        let text = text.to_owned();
        self.on(move || async move { ask(&text, consistency).await.map(drop) }).await
    }

    /// Waits until `is_so` of this node's metadata.
    pub async fn sees(&self, what: &str, is_so: impl Fn(&cluster::Metadata) -> bool + Clone + Send + 'static) {
        let begun = rt::time::now();
        loop {
            let is_so = is_so.clone();
            if self.on(move || async move { is_so(&LAYERS.metadata.get().current()) }).await {
                return;
            }
            assert!(begun.elapsed() < PATIENCE, "{what} does not come about");
            rt::time::sleep(PAUSE).await;
        }
    }

    pub async fn stop(self) -> (PathBuf, SocketAddr) {
        self.on(|| async {
            stack::stop(*LAYERS).await.expect("all is written");
            STACK.clear();
        })
        .await;
        self.machine.stop();
        self.machine.join();
        (self.path, self.address)
    }

    /// Waits until this node has a tablet, or none of it.
    async fn holds(&self, table: TableId, tablet: u32, expected: bool) {
        let begun = rt::time::now();
        while self.bytes_of(table, tablet).await.is_some() != expected {
            assert!(begun.elapsed() < PATIENCE, "node {} has a copy: {}", self.host, !expected);
            rt::time::sleep(PAUSE).await;
        }
    }

    /// Bytes of sstables that the shards of this node have of a tablet; none: none of them has it.
    async fn bytes_of(&self, table: TableId, tablet: u32) -> Option<u64> {
        self.on(move || async move {
            let sizes = rt::shard::call_all(move || async move {
                let sizes = LAYERS.engine.get().tablet_sizes();
                sizes.into_iter().find(|(id, at, _)| (*id, *at) == (table, tablet)).map(|(.., bytes)| bytes)
            });
            sizes.await.into_iter().flatten().reduce(|a, b| a + b)
        })
        .await
    }
}

/// Addresses that only this process uses, at a port outside of the ephemeral range. Each test has
/// its own, starting at `first`.
pub fn addresses(first: u8) -> Vec<SocketAddr> {
    let process = (std::process::id() as u16).to_be_bytes();
    (0..4).map(|n| (IpAddr::from([127, first + n, process[0], process[1].max(1)]), 7000).into()).collect()
}

/// Starts four nodes, and returns when they are one cluster.
pub async fn start_four(directory: &Path, addresses: &[SocketAddr], copies: &Arc<AtomicBool>) -> Vec<Up> {
    let starts = addresses.iter().enumerate().map(|(n, address)| {
        let (path, seeds) = (directory.join(n.to_string()), addresses.to_vec());
        start(path, *address, seeds, copies.clone())
    });
    let nodes = futures_util::future::join_all(starts).await;
    for node in &nodes {
        node.sees("a cluster of four", |metadata| {
            let normal = metadata.topology.members().filter(|node| node.state == NodeState::Normal);
            normal.count() == 4
        })
        .await;
    }
    nodes
}

/// Makes a table of so many tablets with this many copies each.
async fn make_table(nodes: &[Up], tablets: u32, factor: u32) {
    let made = format!(
        "CREATE KEYSPACE ks WITH replication = {{'class': 'NetworkTopologyStrategy', 'datacenter1': {factor}}}"
    );
    nodes[0].ask(&made, Consistency::One).await.expect("made");
    let made = format!("CREATE TABLE ks.t (k int PRIMARY KEY, v int) WITH tablets = {{'max_tablet_count': {tablets}}}");
    nodes[0].ask(&made, Consistency::One).await.expect("made");
    for node in nodes {
        node.sees("the table", |metadata| metadata.table("ks", "t").is_some()).await;
    }
}

fn insert(k: i32) -> String {
    format!("INSERT INTO ks.t (k, v) VALUES ({k}, {k})")
}

/// A table's tablet, where it is, and a node that has none of it.
async fn tablet_to_move(node: &Up, hosts: Vec<HostId>) -> (TableId, Replicas, HostId) {
    node.on(move || async move {
        let metadata = LAYERS.metadata.get().current();
        let table = metadata.table("ks", "t").expect("the table is there");
        let replicas = Replicas::from_slice(table.tablets.replicas(0));
        let other = hosts.into_iter().find(|host| replicas.iter().all(|replica| replica.host != *host));
        (table.schema.id, replicas, other.expect("a node has no copy"))
    })
    .await
}

async fn check_rows(nodes: &[Up], expected: i32) {
    for node in nodes {
        let found = node.on(|| rows("SELECT k, v, writetime(v) FROM ks.t", Consistency::All)).await;
        let mut keys: Vec<i32> = found.expect("all live").into_iter().map(|(k, ..)| k).collect();
        keys.sort_unstable();
        assert_eq!(keys, (0..expected).collect::<Vec<_>>());
    }
}

#[test]
fn a_tablet_moves_while_it_is_written_to_and_its_leader_restarts() {
    let directory = Scratch::new("moving");
    rt::block_on(async {
        let addresses = addresses(100);
        let copies = Arc::new(AtomicBool::new(false));
        let mut nodes = start_four(&directory, &addresses, &copies).await;
        make_table(&nodes, 2, 3).await;
        for k in 0..ROWS / 3 {
            nodes[k as usize % 4].ask(&insert(k), Consistency::Quorum).await.expect("written");
        }

        let hosts: Vec<HostId> = nodes.iter().map(|node| node.host).collect();
        let (table, old, target) = tablet_to_move(&nodes[0], hosts.clone()).await;
        let leaving = old[0];
        let new: Replicas = old[1..].iter().copied().chain([TabletReplica { host: target, shard: 1 }]).collect();
        let begun = new.clone();
        let begin = move || migration_driver::begin(LAYERS.metadata, table, 0, TransitionKind::Migration, begun);
        nodes[0].on(begin).await.expect("it may move");
        let again = new.clone();
        let twice = nodes[1]
            .on(move || migration_driver::begin(LAYERS.metadata, table, 0, TransitionKind::Migration, again))
            .await;
        assert!(twice.expect_err("it moves").to_string().starts_with("the tablet is already moving"));

        // Streaming fails until the test allows it. Meanwhile the leader restarts. Acknowledged
        // writes stay.
        let streaming = |metadata: &cluster::Metadata| {
            metadata.transitions().any(|(_, _, moving)| moving.stage == Stage::Streaming && moving.session.is_some())
        };
        nodes[0].sees("copying", streaming).await;
        for k in ROWS / 3..2 * ROWS / 3 {
            nodes[k as usize % 4].ask(&insert(k), Consistency::Quorum).await.expect("written");
        }
        let mut leader = 0;
        for (at, node) in nodes.iter().enumerate() {
            if node.on(|| async { LAYERS.metadata.get().is_leader() }).await {
                leader = at;
            }
        }
        let (path, address) = nodes.swap_remove(leader).stop().await;
        nodes.push(start(path, address, addresses.clone(), copies.clone()).await);
        copies.store(true, Ordering::Relaxed);
        for k in 2 * ROWS / 3..ROWS {
            let written = rt::time::now();
            // The other nodes may not have seen yet that the node is up.
            while let Err(why) = nodes[k as usize % 4].ask(&insert(k), Consistency::Quorum).await {
                assert!(written.elapsed() < PATIENCE, "{why}");
                rt::time::sleep(PAUSE).await;
            }
        }
        for node in &nodes {
            node.sees("the end of the move", |metadata| metadata.transitions().next().is_none()).await;
            let new = new.clone();
            node.sees("the new copies", move |metadata| {
                metadata.table_by_id(table).is_some_and(|table| table.tablets.replicas(0) == &new[..])
            })
            .await;
        }
        check_rows(&nodes, ROWS).await;
        for node in &nodes {
            let has = node.bytes_of(table, 0).await.is_some();
            assert_eq!(has, node.host != leaving.host, "node {}", node.host);
        }

        // The migration is aborted, and the target keeps nothing.
        copies.store(false, Ordering::Relaxed);
        let back = old.clone();
        nodes[0]
            .on(move || migration_driver::begin(LAYERS.metadata, table, 0, TransitionKind::Migration, back))
            .await
            .expect("it may move");
        nodes[1].sees("copying", streaming).await;
        nodes[2].on(move || migration_driver::give_up(LAYERS.metadata, table, 0)).await.expect("it can be given up");
        for node in &nodes {
            node.sees("the end of the move", |metadata| metadata.transitions().next().is_none()).await;
        }
        check_rows(&nodes, ROWS).await;
        for node in &nodes {
            let has = node.bytes_of(table, 0).await.is_some();
            assert_eq!(has, node.host != leaving.host, "node {}", node.host);
        }
        for node in nodes {
            node.stop().await;
        }
    });
}

/// A node that is down delays migrations only of tablets that have a replica on it. When it is up
/// again, it gets the changes that it missed. A query that had read some pages before continues,
/// and the replica that left keeps no querier of it.
#[test]
fn a_tablet_moves_while_a_node_without_a_copy_is_down() {
    let directory = Scratch::new("moving-without");
    rt::block_on(async {
        let addresses = addresses(110);
        let copies = Arc::new(AtomicBool::new(true));
        let mut nodes = start_four(&directory, &addresses, &copies).await;
        make_table(&nodes, 1, 2).await;
        for k in 0..ROWS / 2 {
            nodes[k as usize % 4].ask(&insert(k), Consistency::All).await.expect("written");
        }
        let hosts: Vec<HostId> = nodes.iter().map(|node| node.host).collect();
        let (table, old, target) = tablet_to_move(&nodes[0], hosts).await;
        let new: Replicas = [old[0], TabletReplica { host: target, shard: 1 }].into_iter().collect();
        // Two nodes have a replica and a third one gets one. The fourth node is not involved.
        let concerned = |host: HostId| host == target || old.iter().any(|replica| replica.host == host);
        let down = nodes.iter().position(|node| !concerned(node.host)).expect("one of four");
        let (path, address) = nodes.remove(down).stop().await;

        let (mut found, mut state) = nodes[1].on(|| page(None)).await.expect("those with copies live");
        for node in nodes.iter().filter(|node| old.iter().any(|replica| replica.host == node.host)) {
            assert_eq!(node.on(readers).await, 1, "each of the replicas keeps a reader");
        }
        let begun = new.clone();
        let begin = move || migration_driver::begin(LAYERS.metadata, table, 0, TransitionKind::Migration, begun);
        nodes[0].on(begin).await.expect("it may move");
        let moved = new.clone();
        let is_moved = move |metadata: &cluster::Metadata| {
            let known = metadata.table_by_id(table);
            known.is_some_and(|known| known.tablets.replicas(0) == &moved[..] && known.tablets.transition(0).is_none())
        };
        for node in &nodes {
            node.sees("the end of the move", is_moved.clone()).await;
            node.holds(table, 0, new.iter().any(|replica| replica.host == node.host)).await;
        }

        for node in nodes.iter().filter(|node| new.iter().all(|replica| replica.host != node.host)) {
            assert_eq!(node.on(readers).await, 0, "it has no copy any more");
        }
        while state.is_some() {
            let (keys, next) = nodes[found.len() % 3].on(move || page(state)).await.expect("those with copies live");
            found.extend(keys);
            state = next;
        }
        found.sort_unstable();
        assert_eq!(found, (0..ROWS / 2).collect::<Vec<_>>(), "each row once, though a replica has left");

        // The node comes up with its old state, and gets the changes.
        nodes.push(start(path, address, addresses.clone(), copies.clone()).await);
        nodes[3].sees("the end of the move", is_moved).await;
        for k in ROWS / 2..ROWS {
            let written = rt::time::now();
            // The other nodes may not have seen yet that the node is up.
            while let Err(why) = nodes[k as usize % 4].ask(&insert(k), Consistency::All).await {
                assert!(written.elapsed() < PATIENCE, "{why}");
                rt::time::sleep(PAUSE).await;
            }
        }
        check_rows(&nodes, ROWS).await;
        for node in nodes {
            node.stop().await;
        }
    });
}
