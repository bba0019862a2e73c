//! The lifecycle of a node: the order of the steps of a start. A stop has the reverse order.
//!
//! [`run`] is called on the process's first thread. It starts the shards, and shard 0 starts the
//! layers and the ports. The first thread serves administration and metrics itself, and waits for a
//! signal. A node that cannot start reports the reason, and releases all that it has opened.

use crate::admin::{self, AdminState, LogControl};
use crate::client_service::ClientService;
use crate::config::setting::{Size, Time};
use crate::config::{CommitlogSync, Config, live};
use crate::connection::accept::{self, Choice};
use crate::connection::memory::Held;
use crate::connection::tls::{self, Tls, TlsFiles};
use crate::connection::{ClientPort, LateLimits, Limits, Listeners, NodeFacts, Server};
use crate::failures;
use crate::http::Port;
use crate::http::caller::Callers;
use crate::http::starting;
use crate::machine_checks::{
    check_descriptors, check_threads, log_size_warning, memory_warning, segment_size_note, tls_error, usable_cpus,
};
use crate::membership::{self, ClusterConfig};
use crate::memory;
use crate::memory_guard;
use crate::metrics;
use crate::node_events;
use crate::node_ops::NodeOps;
use crate::remote::RemoteShards;
use crate::services::Services;
use crate::signals;
use crate::stack::{self, StackConfig, StartError};
use crate::stopping::{self, FAILED, FailureSender, Phase, StopClock, StopError, Stopping};
use crate::wire;
use crate::{report, schema_events};
use cluster::NodeInfo;
use cql::system::{ClientList, SettingsTable};
use engine::commitlog::SyncMode;
use internode::{InternodeConfig, LivenessConfig};
use model::HostId;
use replica::ReplicaConfig;
use rt::shard::Remote;
use rt::sync::{Semaphore, watch};
use rt::task::Task;
use rt::time::Instant;
use rt::tls::{PeerFiles, Stamp};
use rt::{Machine, MachineConfig, ShardId};
use rustls::ServerConfig;
use std::fmt::Display;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use uuid::Uuid;

/// The version that drivers see. They choose their queries by this version.
pub const RELEASE_VERSION: &str = "4.1.0";

/// The fraction of the time limit of a stop for pending client requests.
const STOP_CLIENTS: u32 = 4;

/// The plan of a node, after all defaults are filled in.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The number of shards.
    pub shards: usize,
    /// The memory of the node, in bytes.
    pub memory: u64,
    /// Memory of each shard, in bytes.
    pub shard_memory: usize,
    /// Ports for clients.
    pub client_ports: Vec<ClientPort>,
    /// Whether the ports are opened when the node starts.
    pub serves_clients: bool,
    /// The TLS files of the encrypted ports.
    pub tls: Option<TlsFiles>,
    /// The layers.
    pub stack: StackConfig,
    /// The limits of connections.
    pub limits: Limits,
    config: Config,
    machine: MachineConfig,
    prometheus: Option<SocketAddr>,
    admin: Option<SocketAddr>,
}

fn because(error: impl Display) -> StartError {
    StartError(error.to_string())
}

impl Plan {
    /// The plan for `config` on this machine.
    pub fn of(config: &Config) -> Result<Plan, StartError> {
        let cpus = usable_cpus(config.cpuset.as_ref(), rt::host::cpus())?;
        let shards = config.shards.map_or(cpus.len().max(1), usize::from);
        let limit = rt::host::memory_limit()
            .map_err(|error| StartError(format!("cannot read the size of the machine's memory: {error}")))?;
        let memory = config.memory.map_or(limit.bytes() / 2, |Size(bytes)| bytes);
        memory::check(memory, shards)?;
        check_descriptors(rt::host::open_files().unwrap_or(u64::MAX), shards)?;
        let shard_memory = memory::without_rate_limiter(config, memory::of_shard(memory, shards));
        let segment_size = Size(memory::segment_size(config, shards, shard_memory));
        let config = &Config { commitlog_segment_size_in_mb: segment_size, ..config.clone() };
        let port = |address, port: u16| (port != 0).then(|| SocketAddr::new(address, port));
        let tls = config.client_encryption_options.files().map_err(StartError)?;
        let client_ports = client_ports(config, tls.is_some());
        Ok(Plan {
            shards,
            memory,
            shard_memory,
            client_ports,
            serves_clients: config.start_native_transport,
            tls,
            stack: stack_config(config, shards, shard_memory),
            limits: client_limits(config, shard_memory),
            config: config.clone(),
            machine: MachineConfig {
                shards,
                cpus: Some(cpus),
                overprovisioned: config.overprovisioned,
                poll: config.idle_poll_time_us.0,
                stall_threshold: config.blocked_reactor_notify_ms.0,
                io_buffers: memory::io_buffers(shard_memory),
                ..MachineConfig::default()
            },
            prometheus: port(config.prometheus_address, config.prometheus_port),
            admin: port(config.api_address, config.api_port),
        })
    }

    fn shard_aware_port(&self, encrypted: bool) -> Option<u16> {
        let wanted = |port: &&ClientPort| port.choice == Choice::Client && port.encrypted == encrypted;
        self.client_ports.iter().find(wanted).map(|port| port.address.port())
    }
}

/// The limits of a shard's connections.
fn client_limits(config: &Config, shard_memory: usize) -> Limits {
    let count = |setting: u64| u32::try_from(setting).unwrap_or(u32::MAX);
    Limits {
        frame_body: config.native_transport_max_frame_size_in_mb.0 as usize,
        unread_time: config.native_transport_unread_timeout_in_ms.0,
        shard_in_flight: config.max_concurrent_requests_per_shard.map_or(usize::MAX, |max| max as usize),
        overloaded_in_flight: config.native_transport_max_pending_while_overloaded as usize,
        longest_wait: config.native_transport_max_queue_wait_in_ms.0,
        late_refusals: LateLimits {
            delay: config.per_partition_rate_limit_max_delay_in_ms.0,
            retries_at_once: count(config.per_partition_rate_limit_retries_before_delay),
            at_once: count(config.per_partition_rate_limit_errors_before_delay),
            per_connection: count(config.per_partition_rate_limit_max_delayed_per_connection),
            per_shard: config.per_partition_rate_limit_max_delayed_per_shard as usize,
        },
        ..Limits::for_memory(shard_memory)
    }
}

/// The ports for clients: unencrypted, encrypted, or one number for both, which then is encrypted.
fn client_ports(config: &Config, encrypted: bool) -> Vec<ClientPort> {
    let pairs = [
        (Choice::Server, config.native_transport_port, config.native_transport_port_ssl),
        (Choice::Client, config.native_shard_aware_transport_port, config.native_shard_aware_transport_port_ssl),
    ];
    let mut ports = Vec::new();
    for (choice, plain, ssl) in pairs {
        let mut add = |number, encrypted| {
            let address = SocketAddr::new(config.rpc_address, number);
            ports.push(ClientPort { address, choice, encrypted });
        };
        if plain != 0 && !(encrypted && plain == ssl) {
            add(plain, false);
        }
        if ssl != 0 && encrypted {
            add(ssl, true);
        }
    }
    ports
}

fn stack_config(config: &Config, shards: usize, shard_memory: usize) -> StackConfig {
    let Time(period) = config.commitlog_sync_period_in_ms;
    let rpc_address = config.broadcast_rpc_address.unwrap_or(config.rpc_address);
    let info = NodeInfo {
        // Known once the data directory is open.
        host_id: HostId(Uuid::nil()),
        cluster_name: config.cluster_name.clone(),
        shards,
        datacenter: config.datacenter.clone(),
        rack: config.rack.clone(),
        rpc_address,
        listen_address: config.listen_address,
        broadcast_address: config.broadcast_address.unwrap_or(config.listen_address),
        native_port: config.native_transport_port,
        shard_aware_port: config.native_shard_aware_transport_port,
        storage_port: config.storage_port,
        release_version: RELEASE_VERSION.to_owned(),
        started_micros: rt::time::wall_micros(),
    };
    StackConfig {
        data_dir: config.data_dir.clone(),
        cluster: (!config.seeds.is_empty()).then(|| ClusterConfig {
            seeds: config.seeds.with_port(config.storage_port),
            listen: SocketAddr::new(config.listen_address, config.storage_port),
            internode: InternodeConfig {
                compression: config.internode_compression.0,
                encryption: config.server_encryption_options.between,
                liveness: LivenessConfig {
                    address_change_delay: config.address_change_delay_in_ms.0,
                    ..LivenessConfig::default()
                },
                ..InternodeConfig::default()
            },
            tls: None,
            settings: stack::cluster_settings(config),
        }),
        info,
        memory_per_shard: shard_memory,
        sync: match config.commitlog_sync {
            CommitlogSync::Periodic => SyncMode::Periodic { period },
            CommitlogSync::Batch => SyncMode::Batch,
            CommitlogSync::Group => SyncMode::Group { window: config.commitlog_sync_group_window_in_ms.0 },
        },
        segment_size: config.commitlog_segment_size_in_mb.0 as u32,
        log_size_limit: config.commitlog_total_space_in_mb.map_or(1 << 30, |Size(bytes)| bytes / shards as u64),
        accept_loss: config.accept_loss,
        disk_reserve: config.disk_reserve_in_mb.0,
        ignore_log_corruption: config.commitlog_ignore_corruption || config.accept_loss,
        auto_snapshot: config.auto_snapshot,
        auto_compaction: true,
        page_limits: stack::page_limits(config),
        tombstone_warn_threshold: config.tombstone_warn_threshold,
        replica: ReplicaConfig {
            user_reads: config.reader_concurrency_semaphore_count_limit as usize,
            maintenance_reads: config.maintenance_reader_concurrency_semaphore_count_limit as usize,
            querier_cache: config.querier_cache,
            querier_cache_ttl: config.querier_cache_ttl_in_ms.0,
            querier_cache_memory_fraction: config.querier_cache_memory_percent.min(100) as f64 / 100.0,
            rate_limiter_bytes: memory::rate_limiter(config, shard_memory),
            ..ReplicaConfig::with_memory(shard_memory)
        },
        compaction_throughput: config.compaction_throughput_mb_per_sec.0.div_ceil(shards as u64),
        streaming: stack::stream_settings(config),
        open_files: config.sstable_open_files_limit.div_ceil(shards as u64) as usize,
        query_processor: cql::Config {
            prepared_statements_cache_size: (shard_memory / 64).min(32 << 20),
            ..stack::query_processor_config(config)
        },
    }
}

/// The message to the first thread when the node is up.
struct Up {
    host_id: Uuid,
    release_version: String,
}

/// Why a node ended with an error. The text is for the operator.
#[derive(Debug)]
pub struct NodeError {
    /// The failure, and the remedy.
    pub why: String,
    /// The exit status of the process.
    pub exit_status: u8,
}

impl From<StartError> for NodeError {
    fn from(StartError(why): StartError) -> NodeError {
        NodeError { why, exit_status: FAILED }
    }
}

impl From<StopError> for NodeError {
    fn from(error: StopError) -> NodeError {
        NodeError { exit_status: error.exit_status(), why: error.to_string() }
    }
}

/// A warning if clients on other machines are given an address that is not this machine's for them.
fn client_address_warning(config: &Config) -> Option<String> {
    let own = config.broadcast_address.unwrap_or(config.listen_address);
    let announced = config.broadcast_rpc_address.unwrap_or(config.rpc_address);
    (announced.is_loopback() && !own.is_loopback()).then(|| {
        format!(
            "rpc_address is {announced}: drivers on other machines cannot use it, although other nodes reach this              one at {own}. Set rpc_address, or broadcast_rpc_address"
        )
    })
}

/// Runs a node until a signal or a failure ends it. `ready` is called with the lines for the
/// operator once clients are served.
pub fn run(
    config: &Config,
    log: LogControl,
    reload: impl Fn() -> Result<Config, String> + Send + Sync + 'static,
    ready: impl FnOnce(&[String]),
) -> Result<(), NodeError> {
    let started = rt::time::now();
    let mut plan = Plan::of(config)?;
    if let Some(note) = segment_size_note(config, &plan.config) {
        match config.sources.of("commitlog_segment_size_in_mb") {
            Some(_) => tracing::warn!("{note}"),
            None => tracing::info!("{note}"),
        }
    }
    let of_memory = memory_warning(config.memory, rt::host::memory_limit().map_err(because)?);
    let warnings = log_size_warning(&plan.config, plan.shards).into_iter().chain(of_memory);
    for warning in warnings.chain(client_address_warning(config)) {
        tracing::warn!("{warning}");
    }
    check_threads(plan.shards, rt::host::startable_threads, rt::host::thread_limits)?;
    memory::prepare(plan.shard_memory as u64 * plan.shards as u64);
    let tls = match &plan.tls {
        Some(files) => {
            let of_setting = tls_error("client_encryption_options", &config.client_encryption_options);
            let known = files.stamp();
            let loaded = files.load().map_err(of_setting)?;
            files.warn_of_dates();
            Some((files.clone(), known, loaded))
        }
        None => None,
    };
    let peer_files = load_peer_tls(config, &mut plan)?;
    let machine = Machine::start(plan.machine.clone(), |_| async { rt::shard::stopping().cancelled().await })
        .map_err(|error| StartError(format!("cannot start the shards: {error}")))?;
    let (remote, services) = (machine.remote(), Services::default());
    let ran = rt::try_block_on(async {
        let clock = StopClock::start().map_err(|error| StartError(format!("cannot start a thread: {error}")))?;
        let (stop, stopped) = watch::channel(false);
        let ports = open_ports(&plan).await.map_err(because)?;
        let (signals, others) = signals::listen().map_err(because)?;
        let (failures, mut failed) = stopping::failure_channel();
        let of_node = plan.clone();
        let encryption = tls.as_ref().map(|(_, _, config)| config.clone());
        let mut signals = std::pin::pin!(signals);
        let progress = plan.stack.cluster.as_ref().map(|cluster| cluster.settings.progress.clone()).unwrap_or_default();
        let up = tokio::select! {
            never = starting::serve(ports.prometheus.as_ref(), ports.admin.as_ref(), config, &progress) => match never {},
            up = remote.call(ShardId(0), move || async move { bring_up(services, of_node, encryption, failures).await }) => up.map_err(because)??,
            signal = &mut signals => {
                // Ending during replay is as safe as a crash: the next start replays again.
                tracing::info!(signal, "stopping before the node was ready");
                stopping::exit(0);
            }
        };
        if let Some((files, known, _)) = tls {
            rt::task::spawn(tls::watch(services.tls, files, known, remote.clone())).detach();
        }
        if let Some((files, known)) = peer_files {
            rt::task::spawn(internode::watch_files(services.layers.internode, files, known, remote.clone())).detach();
        }
        memory_guard::begin(plan.memory, &remote, services.engine);
        let settings = signals::LiveSettings::new(config, RemoteShards::new(remote.clone(), services.live));
        rt::task::spawn(settings.handle(others, reload)).detach();
        let serving = serve_http(ports, &plan, &up, (remote.clone(), services), log, &stopped);
        ready(&ready_lines(&plan, started));
        let limit = config.shutdown_timeout_in_ms.0;
        let failure = tokio::select! {
            signal = signals => {
                tracing::info!(signal, ?limit, "stopping");
                None
            }
            why = failed.recv() => {
                tracing::error!(why, ?limit, "the node has failed: stopping");
                Some(why)
            }
        };
        let stopping = Stopping::begin(clock, limit, &failed);
        // The HTTP ports close now. Their requests end while the node stops.
        let _ = stop.send(true);
        let phase = stopping.phase.clone();
        let down = remote.call(ShardId(0), move || wind_down(services, phase));
        let down = down.await.map_err(because)?;
        stopping.phase.enter("ending HTTP requests");
        for served in serving {
            let _ = served.await;
        }
        stopping.phase.enter("ending the shards");
        Ok::<_, StartError>((stopping, down, failure))
    });
    machine.stop();
    machine.join();
    // The time limit of the stop holds until the shards have ended.
    let (stopping, down, failure) = ran.map_err(|error| StartError(format!("cannot start the node: {error}")))??;
    drop(stopping);
    match (failure, down) {
        (None, down) => Ok(down.inspect(|()| tracing::info!("stopped"))?),
        (Some(why), Ok(())) => Err(NodeError { why, exit_status: FAILED }),
        (Some(why), Err(left)) => Err(NodeError { why: format!("{why}; {left}"), exit_status: FAILED }),
    }
}

/// Reads the TLS files for connections to other nodes, if TLS is on. Returns the files, which are
/// then watched for changes.
fn load_peer_tls(config: &Config, plan: &mut Plan) -> Result<Option<(PeerFiles, Stamp)>, StartError> {
    let files = config.server_encryption_options.files().map_err(StartError)?;
    let (Some(files), Some(cluster)) = (files, &mut plan.stack.cluster) else { return Ok(None) };
    let known = files.stamp();
    let of_setting = tls_error("server_encryption_options", &config.server_encryption_options);
    cluster.tls = Some(files.load().map_err(of_setting)?);
    files.warn_of_dates();
    Ok(Some((files, known)))
}

/// On shard 0: starts the layers, then servers on every shard, then the ports.
async fn bring_up(
    services: Services,
    plan: Plan,
    encryption: Option<Arc<ServerConfig>>,
    failures: FailureSender,
) -> Result<Up, StartError> {
    // A port that is in use should be reported before the data is opened.
    if plan.serves_clients {
        drop(Listeners::open(&plan.client_ports).await.map_err(because)?);
    }
    let stack = stack::start(services.layers, plan.stack.clone()).await?;
    let metadata = services.metadata.get();
    if plan.stack.cluster.is_none() {
        membership::warn_of_hints(&plan.config, &metadata).await;
    }
    let up = Up { host_id: stack.info.host_id.0, release_version: stack.info.release_version.clone() };
    let node = NodeFacts {
        host_id: up.host_id,
        shard_aware_port: plan.shard_aware_port(false),
        shard_aware_port_ssl: plan.shard_aware_port(true),
        address: stack.info.broadcast_address,
    };
    let limits = plan.limits.clone();
    let config = plan.config.clone();
    let failures_of_metadata = failures.clone();
    rt::shard::call_all(move || {
        let (limits, node, config, encryption) = (limits.clone(), node.clone(), config.clone(), encryption.clone());
        let failures = failures.clone();
        async move {
            if let Some(encryption) = encryption {
                services.tls.set(Tls::new(&encryption));
            }
            let server = Server::new(services.processor.get(), limits, node);
            services.server.set(server.clone());
            let transport = server.transport.clone();
            let engine = services.engine.get();
            engine.set_large_limits(stack::large_limits(&config));
            let results = engine.large_reads().clone();
            transport.memory.borrow_from(Box::new(move |bytes| -> Held { Box::new(engine.lend_cache(bytes)) }));
            transport.count_copies_in(Box::new(move |bytes| -> Held { Box::new(results.copy_of_result(bytes)) }));
            let system = services.layers.system;
            system.clients.set(Rc::new(ClientList(Box::new(move || transport.clients()))));
            let replica = services.replica.get();
            replica.set_large_data_thresholds(stack::large_data_thresholds(&config));
            replica.set_hot_partitions(stack::hot_settings(&config));
            server.transport.observe_overload(Box::new(move || replica.is_overloaded()));
            live::set_governor(&config);
            let live = live::Live::new(config, services.live_shards());
            services.live.set(live.clone());
            system.settings.set(Rc::new(SettingsTable(live)));
            rt::task::spawn(failures::watch_log(services.engine.get(), failures)).detach();
        }
    })
    .await;
    crate::admin::snapshots::remove_unfinished(&plan.config.data_dir).await;
    services.snapshot_turn.set(Rc::new(Semaphore::new(1)));
    schema_events::begin(&metadata, services.server);
    if let Some(internode) = services.internode.try_get() {
        report::begin(services.report, &internode, services.metadata, services.engine);
        node_events::begin(services.node_events, &internode, &metadata, services.server);
    }
    rt::task::spawn(failures::watch_metadata(metadata, failures_of_metadata.clone())).detach();
    rt::task::spawn(failures::watch_runs(services.runs.try_get(), services.node_ops, failures_of_metadata)).detach();
    let limit = plan.config.shutdown_timeout_in_ms.0 / STOP_CLIENTS;
    let most = most_connections(&plan);
    let Services { server, tls, report, .. } = services;
    let clients = Rc::new(ClientService::new(plan.client_ports.clone(), limit, most, server, tls, report));
    if plan.serves_clients
        && let Err(error) = clients.start().await
    {
        let _ = stack::stop(services.layers).await;
        return Err(because(error));
    }
    services.clients.set(clients);
    services.stack.set(Rc::new(stack));
    let ops = NodeOps::new(services.layers, services.clients);
    services.node_ops.set(ops.clone());
    ops.resume();
    Ok(up)
}

/// The maximum number of client connections that leaves enough descriptors for everything else.
fn most_connections(plan: &Plan) -> usize {
    let Ok(descriptors) = rt::host::open_files() else { return usize::MAX };
    let files = match plan.stack.open_files as u64 {
        0 => engine::open_files_of_process(descriptors),
        of_shard => of_shard * plan.shards as u64,
    };
    accept::most_connections(descriptors, files, plan.shards)
}

/// Stops the node, on shard 0. The ports close, pending requests end, the layers stop, and the data
/// directory is unlocked. The error says what could not be written.
async fn wind_down(services: Services, phase: Phase) -> Result<(), StopError> {
    if services.stack.try_get().is_none() {
        return Ok(());
    }
    wire::announce_stop(services.internode).await;
    phase.enter("ending requests of clients");
    if let Some(clients) = services.clients.try_get() {
        clients.stop().await;
    }
    services.clients.clear();
    services.node_ops.clear();
    rt::shard::call_all(move || async move { services.server.clear() }).await;
    services.node_events.clear();
    let stopped = stack::stop_in(services.layers, &phase).await;
    services.report.clear();
    services.stack.clear();
    stopped
}

/// The HTTP ports of a node: metrics, administration.
struct HttpPorts {
    prometheus: Option<Port>,
    admin: Option<Port>,
}

async fn open_ports(plan: &Plan) -> io::Result<HttpPorts> {
    let open = |at: Option<SocketAddr>| async move {
        match at {
            Some(at) => Port::open(at).await.map(Some),
            None => Ok(None),
        }
    };
    Ok(HttpPorts { prometheus: open(plan.prometheus).await?, admin: open(plan.admin).await? })
}

fn serve_http(
    ports: HttpPorts,
    plan: &Plan,
    up: &Up,
    (remote, services): (Remote, Services),
    log: LogControl,
    stopped: &watch::Receiver<bool>,
) -> Vec<Task<()>> {
    let state = AdminState {
        remote: RemoteShards::new(remote.clone(), services.admin()),
        data_dir: plan.stack.data_dir.clone(),
        host_id: up.host_id,
        cluster_name: plan.stack.info.cluster_name.clone(),
        release_version: up.release_version.clone(),
        log,
    };
    let config = &plan.config;
    let names: Vec<String> = config.http_allowed_hosts.0.iter().map(|name| name.0.clone()).collect();
    let servers = [
        (
            ports.prometheus,
            metrics::router(RemoteShards::new(remote, services.metrics()), plan.shard_memory as u64),
            Callers::of_metrics(config.prometheus_address, &names),
        ),
        (ports.admin, admin::router(state), Callers::of_administration(config.api_address, &names)),
    ];
    servers
        .into_iter()
        .filter_map(|(port, router, callers)| port.map(|port| (port, router, callers)))
        .map(|(port, router, callers)| {
            let mut stopped = stopped.clone();
            rt::task::spawn(port.serve(router, callers, async move {
                let _ = stopped.wait_for(|stop| *stop).await;
            }))
        })
        .collect()
}

fn ready_lines(plan: &Plan, started: Instant) -> Vec<String> {
    let took = started.elapsed();
    let mut lines = vec![format!(
        "Messina {} is ready after {:.2} s: {} shard{} with {} MiB each, data in {}",
        env!("CARGO_PKG_VERSION"),
        took.as_secs_f64(),
        plan.shards,
        if plan.shards == 1 { "" } else { "s" },
        plan.shard_memory >> 20,
        plan.stack.data_dir.display(),
    )];
    let open = if plan.serves_clients { &plan.client_ports[..] } else { &[] };
    for ClientPort { address: at, choice, encrypted } in open {
        let over = if *encrypted { " over TLS" } else { "" };
        lines.push(match choice {
            Choice::Server if *encrypted => format!("  CQL{over} on {at}: cqlsh --ssl {} {}", at.ip(), at.port()),
            Choice::Server => format!("  CQL on {at}: cqlsh {} {}", at.ip(), at.port()),
            Choice::Client => format!("  CQL{over} on {at} for drivers that choose their shard"),
        });
    }
    if let Some(at) = plan.prometheus {
        lines.push(format!("  metrics on http://{at}/metrics"));
    }
    if let Some(at) = plan.admin {
        let api = match at.to_string().as_str() {
            "127.0.0.1:10000" | "0.0.0.0:10000" => String::new(),
            other => format!(" --api http://{other}"),
        };
        lines.push(format!("  administration on http://{at}: messina admin status{api}"));
    }
    lines
}
