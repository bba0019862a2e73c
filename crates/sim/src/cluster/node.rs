//! A node of a simulated cluster: all layers on every shard, clients beside them, and commands of
//! the driver.

use super::client::{self, Failed, counter, execute};
use super::history::{EVERY, PARTITIONS};
use super::limited;
use super::membership;
use super::moves;
use super::ownership;
use super::pages;
use super::shared::{Command, NodeState, PlantedBug, Report, Shared};
use super::truncating;
use super::truncations::KEYS;
use super::workload::{COUNTERS, Read, any, setup};
use crate::layers::LAYERS;
use cluster::metadata::Table;
use cluster::topology;
use coordinator::hints::{Hints, HintsConfig};
use cql::api::Consistency;
use engine::Engine;
use engine::commitlog::SyncMode;
use internode::NodeStatus;
use model::id::CounterId;
use model::range::Slice;
use replica::{
    Class, Context, HotSettings, Limits, Output, OutputColumn, PartitionId, ProtectionMode, RateLimitMode, ReadCommand,
    Replica, ReplicaRequest, ReplicaResponse,
};
use rt::ShardId;
use rt::sync::{Cancel, Deadline};
use rt::time::Duration;
use server::membership::ClusterConfig;
use server::stack::{self, StackConfig};
use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;

/// Memory of each shard, in bytes.
const MEMORY: usize = 8 << 20;
/// Tablets of each table.
const TABLETS: u32 = 4;
/// The interval at which a node looks for commands.
const LOOK: Duration = Duration::from_millis(10);
/// The largest number of tables that are created and dropped by the clients, at a time.
const MOST_TABLES: usize = 5;

/// The data directory of every node, each on its own disk.
pub const DIR: &str = "/node";

/// The main future of each shard.
pub async fn run(shared: Rc<Shared>, node: usize, shard: ShardId) {
    if shard != ShardId(0) {
        let clients = spawn_clients(&shared, node);
        while !shared.nodes[node].over.get() {
            rt::time::sleep(LOOK).await;
        }
        drop(clients);
        return;
    }
    match stack::start(*LAYERS, config(&shared, node)).await {
        Err(error) => {
            shared.tell(|| format!("node {node} does not start: {error}"));
            let is_excused = shared.plan.member_changes && membership::may_not_start(&shared, node, &error.to_string());
            if !is_excused {
                shared.broken(format!("node {node} does not start: {error}"));
            }
        }
        Ok(stack) => {
            shared.tell(|| format!("node {node} is {}", stack.info.host_id));
            shared.nodes[node].host.set(Some(stack.info.host_id));
            shared.nodes[node].up.set(true);
            shared.nodes[node].voted.set(votes());
            lead(&shared, node).await;
            moves::stop();
            // A failed stop is not an error here. The next start shows the contents of the disk.
            let _ = stack::stop(*LAYERS).await;
            drop(stack);
        }
    }
    shared.nodes[node].over.set(true);
}

/// Whether this node is a voter of the Raft group.
fn votes() -> bool {
    let service = LAYERS.metadata.get();
    service.group().is_some_and(|group| group.voters().contains(&service.info().host_id))
}

fn spawn_clients(shared: &Rc<Shared>, node: usize) -> Vec<rt::task::Task<()>> {
    (0..shared.plan.clients).map(|_| rt::task::spawn(client::run(shared.clone(), node))).collect()
}

/// Runs on shard 0 after the start: makes the tables, starts clients and maintenance, and executes
/// commands of the driver, until the node must stop.
async fn lead(shared: &Rc<Shared>, node: usize) {
    rt::task::spawn(watch(shared.clone(), node)).detach();
    if shared.plan.member_changes {
        rt::task::spawn(membership::watch(shared.clone(), node)).detach();
        rt::task::spawn(membership::run(shared.clone(), node)).detach();
    }
    moves::serve(shared);
    if shared.plan.planted_bug == PlantedBug::NoHints {
        forget_hints().await;
    }
    if shared.plan.planted_bug == PlantedBug::CountsFromLoss {
        let set = || async { LAYERS.replica.get().set_counter_id(CounterId(LAYERS.engine.get().host_id().0)) };
        rt::shard::call_all(set).await;
    }
    if shared.plan.is_limiting() {
        protect(ProtectionMode::On).await;
    }
    let made = rt::task::spawn(make_tables(shared.clone(), node));
    let clients = spawn_clients(shared, node);
    let changes = rt::task::spawn(change_schema(shared.clone(), node));
    let chores = rt::task::spawn(maintain(shared.clone(), node));
    let moves = rt::task::spawn(moves::run(shared.clone(), node));
    let state = &shared.nodes[node];
    state.seems_overloaded.set(false);
    let mut seen = None;
    while !state.is_stopping() {
        look_at_others(shared, node, &mut seen);
        rt::time::sleep(LOOK).await;
        let metadata = LAYERS.metadata.get().current();
        shared.knows(node, metadata.number, metadata.version);
        state.moving.set(moves::is_moving());
        membership::look_at_lost(shared);
        state.unsettled.replace(membership::unsettled(shared));
        if shared.plan.planted_bug == PlantedBug::NoArrivalReports {
            rt::shard::call_all(|| async { LAYERS.replica.get().set_reporting_coordinators(0) }).await;
        }
        if shared.plan.is_limiting() {
            overload(shared, state).await;
        }
        if let Some(command) = state.command.take() {
            let answer = obey(shared, command).await;
            state.answer.replace(Some(answer));
        }
    }
    for task in clients.into_iter().chain([made, changes, chores, moves]) {
        // A statement may wait a minute for a majority. Clients do not delay a stop for longer than
        // the server waits.
        if rt::time::timeout(Duration::from_secs(10), task).await.is_err() {
            shared.tell(|| format!("node {node} stops before all statements were answered"));
        }
    }
}

/// Records whether this node sees all others up, and prints changes.
fn look_at_others(shared: &Shared, node: usize, seen: &mut Option<Vec<NodeStatus>>) {
    let liveness = LAYERS.internode.get().liveness();
    let now: Vec<NodeStatus> = liveness.nodes.values().map(|other| other.status).collect();
    let up = now.iter().filter(|status| **status == NodeStatus::Up).count();
    shared.nodes[node].sees_all.set(up + 1 == shared.nodes.len());
    if seen.as_ref() != Some(&now) {
        shared.tell(|| {
            let others = liveness.nodes.iter().map(|(host, other)| format!("{host} {:?}", other.status));
            format!("node {node} sees {:?}", others.collect::<Vec<_>>())
        });
        *seen = Some(now);
    }
}

/// Watches the logs and the run of the node. A log that fails, and another process in the node's
/// place, end the node, as in the server. No fault here does that.
async fn watch(shared: Rc<Shared>, node: usize) {
    let group = LAYERS.metadata.get().group().cloned();
    if let Some(group) = group {
        rt::task::spawn({
            let shared = shared.clone();
            async move {
                let why = group.failure().await;
                shared.broken(format!("the Raft group of node {node} has failed: {why}"));
            }
        })
        .detach();
    }
    if let Some(runs) = LAYERS.runs.try_get() {
        rt::task::spawn({
            let shared = shared.clone();
            async move {
                let why = runs.displaced().await;
                shared.broken(format!("node {node} has lost its place in the cluster: {why}"));
            }
        })
        .detach();
    }
    let why = rt::shard::call_all(|| async { LAYERS.engine.get().failure().await.to_string() }).await;
    shared.broken(format!("the log of node {node} has failed: {why:?}"));
}

/// Makes the keyspace and the tables. Other nodes do the same at once. Clients start afterwards.
async fn make_tables(shared: Rc<Shared>, node: usize) {
    // Waits for all nodes, as operators do, because tables are placed on the nodes that exist.
    let has_joined = |node: &&Rc<topology::Node>| node.state != topology::NodeState::Joining;
    while LAYERS.metadata.get().current().keyspace("c").is_none()
        && LAYERS.metadata.get().current().topology.members().filter(has_joined).count() < shared.nodes.len()
    {
        rt::time::sleep(LOOK).await;
        if shared.nodes[node].is_stopping() {
            return;
        }
    }
    for text in setup(&shared.plan, TABLETS) {
        while let Err(why) = execute(&text, Consistency::One, 1).await {
            shared.tell(|| format!("node {node}: {}", why.why()));
            rt::time::sleep(Duration::from_millis(300)).await;
            if shared.nodes[node].is_stopping() {
                return;
            }
        }
    }
    shared.nodes[node].set_ready(true);
}

/// Creates and drops tables and columns.
async fn change_schema(shared: Rc<Shared>, node: usize) {
    loop {
        rt::time::sleep(Duration::from_millis(200 + rt::random::below(3000))).await;
        if shared.nodes[node].is_stopping() {
            return;
        }
        if !shared.plan.schema_changes || !shared.is_working() || !shared.nodes[node].is_ready() {
            continue;
        }
        let began = shared.elapsed();
        let done = match any(4) {
            0 => change(if any(2) == 0 { "ALTER TABLE c.t ADD x int" } else { "ALTER TABLE c.t DROP x" }).await,
            1 => drop_table(&shared).await,
            _ if shared.schema.borrow().count() < MOST_TABLES => make_table(&shared).await,
            _ => Ok(()),
        };
        if let Err(failed) = done {
            shared.failed(node, began, failed);
        }
    }
}

async fn change(text: &str) -> Result<(), Failed> {
    execute(text, Consistency::Quorum, 1).await.map(drop)
}

async fn drop_table(shared: &Shared) -> Result<(), Failed> {
    let Some(name) = shared.schema.borrow_mut().begin_drop() else { return Ok(()) };
    change(&format!("DROP TABLE c.{name}")).await?;
    shared.schema.borrow_mut().dropped(&name);
    Ok(())
}

async fn make_table(shared: &Shared) -> Result<(), Failed> {
    let name = shared.schema.borrow_mut().begin_create();
    change(&format!("CREATE TABLE c.{name} (k int PRIMARY KEY, v int)")).await?;
    shared.schema.borrow_mut().created(&name);
    // The table exists for the client that created it, and on the nodes that answer.
    if let Err(Failed::Unknown(why)) = change(&format!("INSERT INTO c.{name} (k, v) VALUES (1, 1)")).await
        && why.contains("unconfigured")
        && shared.schema.borrow().is_there(&name)
    {
        shared.broken(format!("table {name} was made, and then: {why}"));
    }
    Ok(())
}

/// Flushes and compacts at random times.
async fn maintain(shared: Rc<Shared>, node: usize) {
    while !shared.nodes[node].is_stopping() {
        rt::time::sleep(Duration::from_millis(500 + rt::random::below(4000))).await;
        if any(4) == 0 {
            on_engines(|engine| async move {
                let mut tables = engine.tables();
                tables.sort();
                for table in tables {
                    // The table may be dropped by now.
                    let _ = engine.compact_major(table).await;
                }
            })
            .await;
        } else {
            on_engines(|engine| async move {
                let _ = engine.flush(None).await;
            })
            .await;
        }
    }
}

async fn on_engines<Fut: Future<Output = ()> + 'static>(work: impl Fn(Rc<Engine>) -> Fut + Copy + Send + 'static) {
    rt::shard::call_all(move || async move {
        if let Some(engine) = LAYERS.engine.try_get() {
            work(engine).await;
        }
    })
    .await;
}

/// [`PlantedBug::NoHints`]: hints that keep nothing.
async fn forget_hints() {
    let shards = rt::shard::count() as u16;
    rt::shard::call_all(move || async move {
        let config = HintsConfig::new(Path::new(DIR).join("forgotten"), Path::new(DIR).join("forgotten-notes"), 0);
        let hints = Hints::open(config, rt::shard::this().0, shards).await.expect("the disk works");
        LAYERS.coordinator.get().set_hints(hints);
    })
    .await;
}

async fn obey(shared: &Shared, command: Command) -> Result<Report, String> {
    match command {
        Command::Report => report().await,
        Command::ReportObserved => Ok(Report { observed: observed().await, ..Report::default() }),
        Command::DeliverHints => Ok(Report { hints: deliver_hints().await, ..Report::default() }),
        Command::Read => read_all(shared, Consistency::Quorum).await,
        Command::Repair => read_all(shared, Consistency::All).await,
    }
}

/// Lets all shards replay their hints. Returns for how many nodes hints are left, summed over the
/// shards.
async fn deliver_hints() -> usize {
    let left = rt::shard::call_all(|| async {
        let coordinator = LAYERS.coordinator.get();
        coordinator.replay_hints().await;
        coordinator.hints().map_or(0, |hints| hints.targets().len())
    });
    left.await.into_iter().sum()
}

/// The reads and the writes that this node would have refused in mode `observe`.
async fn observed() -> [u64; 2] {
    let shards = rt::shard::call_all(|| async {
        let metrics = LAYERS.replica.get().metrics().rate_limits;
        [metrics.observed_reads, metrics.observed_writes]
    });
    shards.await.into_iter().fold([0; 2], |sum, shard| [sum[0] + shard[0], sum[1] + shard[1]])
}

/// Sets whether hot partitions of overloaded shards are refused.
async fn protect(mode: ProtectionMode) {
    let settings = HotSettings { mode, wait_threshold: Duration::from_millis(5), in_metrics: 0 };
    rt::shard::call_all(move || async move { LAYERS.replica.get().set_hot_partitions(settings) }).await;
}

/// Lets all shards behave as overloaded ones while they have to. No work takes time here, so that
/// no shard is really overloaded.
async fn overload(shared: &Shared, state: &NodeState) {
    // The overload may end while the shards are called.
    let is_overloaded = shared.is_overloaded();
    if is_overloaded {
        state.seems_overloaded.set(true);
        let hot: Vec<PartitionId> = limited::hot_partitions(shared);
        rt::shard::call_all(move || {
            let hot = hot.clone();
            async move {
                let replica = LAYERS.replica.get();
                hot.iter().for_each(|id| replica.seem_overloaded(*id, 0.5));
            }
        })
        .await;
    } else if state.seems_overloaded.get() {
        protect(ProtectionMode::Off).await;
        protect(ProtectionMode::On).await;
        state.seems_overloaded.set(false);
    }
}

/// Reads everything, and checks that all promised writes are there.
async fn read_all(shared: &Shared, level: Consistency) -> Result<Report, String> {
    let began = rt::time::wall_seconds();
    let (promises, by) = match level {
        Consistency::All => (shared.history.borrow().promises(began), EVERY),
        _ => (shared.history.borrow().floors(&EVERY[..1], began), &EVERY[..1]),
    };
    for pk in (0..PARTITIONS).map(Some).chain([None]) {
        let read = Read::whole(pk, 7);
        let rows = execute(&read.text, level, read.page).await.map_err(Failed::why)?;
        let shown = read.shown(PARTITIONS, &rows)?;
        shared
            .history
            .borrow_mut()
            .check(&shown, &promises.of(pk), by, rt::time::wall_seconds())
            .map_err(|why| format!("{why}, {} at {level:?}", read.text))?;
    }
    for k in 0..COUNTERS {
        let floor = shared.counters.borrow().floor(k);
        let rows = execute(&format!("SELECT n FROM c.n WHERE k = {k}"), level, 10).await.map_err(Failed::why)?;
        shared.counters.borrow_mut().check(k, counter(&rows)?, floor)?;
    }
    for key in 0..KEYS {
        truncating::read(shared, key, level).await.map_err(Failed::why)?;
    }
    if shared.plan.paging {
        pages::read_all(level).await?;
    }
    if shared.plan.is_limiting() {
        limited::read_all(shared, level).await?;
    }
    // Nothing is promised for the tables that clients create and drop, but their copies agree after
    // a read.
    for name in coming_and_going() {
        execute(&format!("SELECT k, v FROM c.{name}"), level, 10).await.map_err(Failed::why)?;
    }
    Ok(Report::default())
}

/// The tables that clients create and drop, as this node knows them.
fn coming_and_going() -> Vec<String> {
    let metadata = LAYERS.metadata.get().current();
    let own = metadata.tables().filter(|table| table.schema.keyspace == "c" && table.schema.name.starts_with('u'));
    let mut names: Vec<String> = own.map(|table| table.schema.name.clone()).collect();
    names.sort();
    names
}

/// The metadata, tables and rows of this node.
async fn report() -> Result<Report, String> {
    let shards = rt::shard::call_all(|| async {
        let service = LAYERS.metadata.get();
        let (metadata, host) = (service.current(), service.info().host_id);
        let replica = LAYERS.replica.get();
        let mut copies = BTreeMap::new();
        for table in metadata.tables().filter(|table| table.schema.keyspace == "c") {
            for tablet in table.tablets.on_shard(host, rt::shard::this()) {
                let rows = own_rows(&replica, table, tablet).await;
                copies.insert((table.schema.name.clone(), tablet), rows);
            }
        }
        ((metadata.number, metadata.version), coming_and_going(), copies)
    });
    let mut report = Report::default();
    for (metadata, tables, copies) in shards.await {
        report.metadata.push(metadata);
        report.tables = tables;
        for (place, rows) in copies {
            report.copies.insert(place, rows?);
        }
    }
    report.asked = moves::asked_replicas()?;
    crate::node::permits_returned().await?;
    ownership::check().await?;
    Ok(report)
}

/// The rows of a tablet on this replica, each value with its timestamp.
async fn own_rows(replica: &Replica, table: &Table, tablet: u32) -> Result<Vec<u8>, String> {
    let mut columns = Vec::new();
    let (mut keys, mut clustering) = (0, 0);
    for column in &table.definition.columns {
        match column.kind {
            model::schema::ColumnKind::PartitionKey => {
                columns.push(OutputColumn::PartitionKey(keys));
                keys += 1;
            }
            model::schema::ColumnKind::Clustering => {
                columns.push(OutputColumn::Clustering(clustering));
                clustering += 1;
            }
            _ if column.ty == "counter" => columns.push(OutputColumn::Value(column.id)),
            _ => columns.extend([OutputColumn::Value(column.id), OutputColumn::WriteTime(column.id)]),
        }
    }
    let command = ReadCommand {
        table: table.schema.id,
        schema_version: table.schema.version,
        ranges: smallvec::smallvec![table.tablets.range(tablet)],
        slice: Rc::new(Slice::full()),
        output: Rc::new(Output::new(columns, true, false)),
        limits: Limits {
            rows: u64::MAX,
            per_partition: u64::MAX,
            bytes: u64::MAX,
            tombstones: u64::MAX,
            paged: false,
            unpaged_bytes: u64::MAX,
        },
        now: model::time::stored_seconds(rt::time::wall_seconds()),
        resumed_rows: 0,
        bypass_cache: false,
        query: None,
        first_page: true,
        ends_with_rows: false,
    };
    let context = Context {
        class: Class::Maintenance,
        deadline: Deadline::after(Duration::from_secs(10)),
        cancel: Cancel::new(),
        trace: None,
        // Reads all stored data, whether or not the metadata still routes it to this node.
        metadata_number: u64::MAX,
        large_data: None,
        rate_limit: RateLimitMode::Off,
    };
    match replica.perform(&ReplicaRequest::Read(command.into()), &context).await {
        Ok(ReplicaResponse::Page(page)) => Ok(page.body.to_vec()),
        Ok(_) => Err("a read was answered otherwise".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

fn config(shared: &Shared, node: usize) -> StackConfig {
    let address = shared.addresses[node];
    let sync = match (shared.plan.planted_bug, shared.plan.sync) {
        (PlantedBug::LazyLog | PlantedBug::CountsFromLoss, _) => {
            SyncMode::Periodic { period: Duration::from_secs(3600) }
        }
        (_, sync) => sync,
    };
    let mut config = StackConfig {
        cluster: Some(ClusterConfig {
            seeds: shared.addresses.clone().into(),
            listen: ([0, 0, 0, 0], address.port()).into(),
            internode: Default::default(),
            tls: None,
            settings: Default::default(),
        }),
        sync,
        segment_size: 32 << 10,
        log_size_limit: 256 << 10,
        disk_reserve: 64 << 10,
        page_limits: if shared.plan.paging { pages::limits() } else { Default::default() },
        query_processor: cql::Config { truncate_timeout: Duration::from_secs(8), ..cql::Config::default() },
        ..StackConfig::new(DIR, "sim", address.ip(), MEMORY)
    };
    if let Some(cluster) = &mut config.cluster {
        cluster.settings.replaces = shared.nodes[node].replaces.get();
    }
    config.info.datacenter = format!("datacenter{}", shared.plan.datacenter(node) + 1);
    config.info.rack = format!("rack{}", node % 3);
    config.info.storage_port = address.port();
    config
}
