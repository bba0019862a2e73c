//! The life of a node: what is started in which order, and stopped in the reverse one.
//!
//! [`run`] is called on the process's first thread. It starts the shards, has shard 0 bring up the floors and the ports, serves
//! administration and metrics itself, and waits for a signal. A node that cannot start says why and leaves nothing behind.

use crate::admin::{self, AdminState, LogControl};
use crate::config::setting::{Size, Time};
use crate::config::{CommitlogSync, Config};
use crate::connection::accept::Choice;
use crate::connection::{Limits, Listeners, NodeFacts, Server, Spread};
use crate::http::Port;
use crate::metrics::{self, sample::Budget};
use crate::stack::{self, Stack, StackConfig, StartError};
use cluster::NodeInfo;
use cluster::coordinator::PageLimits;
use cql::Processor;
use cql::system::ClientList;
use engine::Engine;
use engine::commitlog::SyncMode;
use model::HostId;
use rt::sync::watch;
use rt::task::Task;
use rt::time::{Duration, Instant};
use rt::{Machine, MachineConfig, ShardId};
use std::cell::RefCell;
use std::fmt::Display;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use tokio::signal::unix::{SignalKind, signal};
use uuid::Uuid;

/// The version that drivers are told: they choose their queries by it.
pub const RELEASE_VERSION: &str = "4.1.0";

/// How long connections may take to finish their requests when the node stops.
const STOP_CONNECTIONS: Duration = Duration::from_secs(15);

/// What a node is made of, after all defaults are filled in.
#[derive(Clone, Debug)]
pub struct Plan {
    /// How many shards.
    pub shards: usize,
    /// Memory of each, in bytes.
    pub shard_memory: usize,
    /// Ports for clients.
    pub client_ports: Vec<(SocketAddr, Choice)>,
    /// The floors.
    pub stack: StackConfig,
    /// The limits of connections.
    pub limits: Limits,
    machine: MachineConfig,
    prometheus: Option<SocketAddr>,
    admin: Option<SocketAddr>,
}

fn because(error: impl Display) -> StartError {
    StartError(error.to_string())
}

impl Plan {
    /// What `config` means on this machine.
    pub fn of(config: &Config) -> Result<Plan, StartError> {
        let cpus = match &config.cpuset {
            Some(set) => set.0.clone(),
            None => rt::host::cpus(),
        };
        let shards = config.shards.map_or(cpus.len().max(1), usize::from);
        let memory = match config.memory {
            Some(Size(bytes)) => bytes,
            None => {
                rt::host::memory_limit()
                    .map_err(|error| StartError(format!("cannot tell the memory's size: {error}")))?
                    / 2
            }
        };
        let shard_memory = (memory / shards as u64) as usize;
        let port = |address, port: u16| (port != 0).then(|| SocketAddr::new(address, port));
        let mut client_ports = Vec::new();
        if config.start_native_transport {
            client_ports.extend(port(config.rpc_address, config.native_transport_port).map(|at| (at, Choice::Server)));
            let shard_aware = port(config.rpc_address, config.native_shard_aware_transport_port);
            client_ports.extend(shard_aware.map(|at| (at, Choice::Client)));
        }
        let mut limits = Limits::for_memory(shard_memory);
        limits.frame_body = config.native_transport_max_frame_size_in_mb.0 as usize;
        limits.shard_in_flight = config.max_concurrent_requests_per_shard.map_or(usize::MAX, |max| max as usize);
        Ok(Plan {
            shards,
            shard_memory,
            client_ports,
            stack: stack_config(config, shards, shard_memory),
            limits,
            machine: MachineConfig {
                shards,
                cpus: Some(cpus),
                overprovisioned: config.overprovisioned,
                poll: config.idle_poll_time_us.0,
                stall_threshold: config.blocked_reactor_notify_ms.0,
                ..MachineConfig::default()
            },
            prometheus: port(config.prometheus_address, config.prometheus_port),
            admin: port(config.api_address, config.api_port),
        })
    }

    fn shard_aware_port(&self) -> Option<u16> {
        self.client_ports.iter().find(|(_, choice)| *choice == Choice::Client).map(|(at, _)| at.port())
    }
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
        info,
        memory_per_shard: shard_memory,
        sync: match config.commitlog_sync {
            CommitlogSync::Periodic => SyncMode::Periodic { period },
            CommitlogSync::Batch => SyncMode::Batch,
            CommitlogSync::Group => SyncMode::Group { window: config.commitlog_sync_group_window_in_ms.0 },
        },
        segment_size: config.commitlog_segment_size_in_mb.0 as u32,
        log_size_limit: config.commitlog_total_space_in_mb.map_or(1 << 30, |Size(bytes)| bytes / shards as u64),
        ignore_log_corruption: config.commitlog_ignore_corruption,
        auto_snapshot: config.auto_snapshot,
        auto_compaction: true,
        page_limits: PageLimits {
            bytes: config.query_page_size_in_bytes.0,
            tombstones: config.query_tombstone_page_limit,
            unpaged_bytes: config.max_memory_for_unlimited_query_hard_limit.0,
        },
        tombstone_warn_threshold: config.tombstone_warn_threshold,
        compaction_throughput: config.compaction_throughput_mb_per_sec.0.div_ceil(shards as u64),
        language: cql::Config {
            read_timeout: config.read_request_timeout_in_ms.0,
            range_timeout: config.range_request_timeout_in_ms.0,
            write_timeout: config.write_request_timeout_in_ms.0,
            truncate_timeout: config.truncate_request_timeout_in_ms.0,
            batch_size_warn: config.batch_size_warn_threshold_in_kb.0 as usize,
            batch_size_fail: config.batch_size_fail_threshold_in_kb.0 as usize,
            restrict_future_timestamp: config.restrict_future_timestamp,
            ..cql::Config::default()
        },
    }
}

/// What is up and running on shard 0.
struct Running {
    _stack: Stack,
    accepting: RefCell<Option<Task<()>>>,
}

/// What the first thread is told when the node is up.
struct Up {
    host_id: Uuid,
    release_version: String,
}

/// Runs a node until a signal ends it. `ready` is called with the lines for the operator once clients are served.
pub fn run(config: &Config, log: LogControl, ready: impl FnOnce(&[String])) -> Result<(), StartError> {
    let started = rt::time::now();
    let plan = Plan::of(config)?;
    let machine = Machine::start(plan.machine.clone(), |_| async { rt::shard::stopping().cancelled().await })
        .map_err(|error| StartError(format!("cannot start the shards: {error}")))?;
    let remote = machine.remote();
    let ran = rt::block_on(async {
        let (stop, stopped) = watch::channel(false);
        let ports = open_ports(&plan).await.map_err(because)?;
        let signals = wait_for_signal().map_err(because)?;
        let starting = plan.clone();
        let mut signals = std::pin::pin!(signals);
        let up = tokio::select! {
            up = remote.call(ShardId(0), move || async move { bring_up(starting).await }) => up.map_err(because)??,
            signal = &mut signals => {
                // Replay can take a while. Leaving in the midst of it is as safe as a crash: it is done anew at the next start.
                tracing::info!(signal, "leaving before the node was up");
                std::process::exit(0);
            }
        };
        let serving = serve_http(ports, &plan, &up, &remote, log, &stopped);
        ready(&ready_lines(&plan, started));
        let signal = signals.await;
        tracing::info!(signal, "stopping");
        let down = remote.call(ShardId(0), || async { wind_down().await });
        down.await.map_err(because)?;
        let _ = stop.send(true);
        for served in serving {
            let _ = served.await;
        }
        Ok(())
    });
    machine.stop();
    let joined = machine.join().map_err(|error| StartError(format!("a shard failed: {error}")));
    ran.and(joined)
}

/// On shard 0: floors, then servers on every shard, then the ports.
async fn bring_up(plan: Plan) -> Result<Up, StartError> {
    // A port that is taken should be told before the data is opened.
    drop(Listeners::open(&plan.client_ports).await.map_err(because)?);
    let stack = stack::start(plan.stack.clone()).await?;
    let up = Up { host_id: stack.info.host_id.0, release_version: stack.info.release_version.clone() };
    let node = NodeFacts { host_id: up.host_id, shard_aware_port: plan.shard_aware_port() };
    let (limits, budget) = (plan.limits.clone(), Budget { shard_memory: plan.shard_memory });
    rt::shard::call_all(move || {
        let (limits, node) = (limits.clone(), node.clone());
        async move {
            rt::shard::install(Rc::new(budget));
            let server = Server::new(rt::shard::service::<Processor>(), limits, node);
            server.install();
            let transport = server.transport.clone();
            rt::shard::install(Rc::new(ClientList(Box::new(move || transport.clients()))));
            rt::task::spawn(watch_log()).detach();
        }
    })
    .await;
    let listeners = match Listeners::open(&plan.client_ports).await {
        Ok(listeners) => listeners,
        Err(error) => {
            stack::stop().await;
            return Err(because(error));
        }
    };
    let accepting = rt::task::spawn(listeners.accept::<Processor>(Spread::new(plan.shards)));
    rt::shard::install(Rc::new(Running { _stack: stack, accepting: RefCell::new(Some(accepting)) }));
    Ok(up)
}

/// A log that cannot be written any more can promise nothing: the process ends, and replay at the next start finds what was
/// acknowledged.
async fn watch_log() {
    let error = rt::shard::service::<Engine>().failure().await;
    tracing::error!(%error, shard = %rt::shard::this(), "the commitlog has failed: the node ends");
    std::process::exit(1);
}

/// On shard 0: the way back. Nobody new comes in, those inside finish, the floors stop, the directory is let go.
async fn wind_down() {
    let Some(running) = rt::shard::try_service::<Running>() else { return };
    let accepting = running.accepting.borrow_mut().take();
    if let Some(accepting) = accepting {
        accepting.abort();
        let _ = accepting.await;
    }
    rt::shard::call_all(|| async {
        let server = rt::shard::service::<Server<Processor>>();
        if rt::time::timeout(STOP_CONNECTIONS, server.stop()).await.is_err() {
            tracing::warn!(connections = server.transport.connection_count(), "connections did not end in time");
        }
        rt::shard::uninstall::<Server<Processor>>();
    })
    .await;
    stack::stop().await;
    rt::shard::uninstall::<Running>();
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
    remote: &rt::Remote,
    log: LogControl,
    stopped: &watch::Receiver<bool>,
) -> Vec<Task<()>> {
    let state = AdminState {
        remote: remote.clone(),
        data_dir: plan.stack.data_dir.clone(),
        host_id: up.host_id,
        cluster_name: plan.stack.info.cluster_name.clone(),
        release_version: up.release_version.clone(),
        log,
    };
    let servers = [
        (ports.prometheus, metrics::router(remote.clone()), "metrics"),
        (ports.admin, admin::router(state), "administration"),
    ];
    servers
        .into_iter()
        .filter_map(|(port, router, what)| port.map(|port| (port, router, what)))
        .map(|(port, router, what)| {
            let mut stopped = stopped.clone();
            let until = async move {
                let _ = stopped.wait_for(|stop| *stop).await;
            };
            rt::task::spawn(async move {
                if let Err(error) = port.serve(router, until).await {
                    tracing::error!(%error, what, "HTTP ended");
                }
            })
        })
        .collect()
}

/// Starts listening for signals; the future gives the name of the first.
fn wait_for_signal() -> io::Result<impl Future<Output = &'static str>> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => "SIGINT",
            _ = terminate.recv() => "SIGTERM",
        }
    })
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
    for (at, choice) in &plan.client_ports {
        lines.push(match choice {
            Choice::Server => format!("  CQL on {at}: cqlsh {} {}", at.ip(), at.port()),
            Choice::Client => format!("  CQL on {at} for drivers that choose their shard"),
        });
    }
    if let Some(at) = plan.prometheus {
        lines.push(format!("  metrics on http://{at}/metrics"));
    }
    if let Some(at) = plan.admin {
        lines.push(format!("  administration on http://{at}: messina admin status"));
    }
    lines
}
