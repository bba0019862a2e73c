//! The floors of a node stacked upon each other, on every shard, without the ports: data directory, journal, engine, replay,
//! replica, coordinator, language. `node` puts the ports on top; the simulation and the benchmarks use it as it is.

use cluster::Coordinator;
use cluster::coordinator::{PageLimits, TimestampClock};
use cluster::metadata::{MetadataService, NodeInfo, Recovered, open_journal};
use cql::Processor;
use cql::system::{TableSize, TableSizes};
use engine::commitlog::{self, OldLogs, ReplayOptions, ReplayReport, SyncMode};
use engine::datadir::DataDir;
use engine::journal::Journal;
use engine::{Engine, EngineConfig};
use model::id::{HostId, TableId};
use model::key::DecoratedKey;
use replica::{Replica, ReplicaConfig};
use rt::ShardId;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicI64;
use thiserror::Error;

/// What the floors are told.
#[derive(Clone, Debug)]
pub struct StackConfig {
    /// The data directory.
    pub data_dir: PathBuf,
    /// What the node is; its host id and shard count are filled in at start.
    pub info: NodeInfo,
    /// Memory of each shard, in bytes.
    pub memory_per_shard: usize,
    /// When a write is acknowledged.
    pub sync: SyncMode,
    /// `commitlog_segment_size_in_mb`, in bytes.
    pub segment_size: u32,
    /// `commitlog_total_space_in_mb` of one shard, in bytes.
    pub log_size_limit: u64,
    /// `commitlog_ignore_corruption`: the documented way out of a damaged log.
    pub ignore_log_corruption: bool,
    /// Whether DROP and TRUNCATE leave a snapshot.
    pub auto_snapshot: bool,
    /// Whether compaction runs by itself.
    pub auto_compaction: bool,
    /// Where pages end.
    pub page_limits: PageLimits,
    /// `tombstone_warn_threshold`.
    pub tombstone_warn_threshold: u64,
    /// What compaction of one shard may write per second, in bytes; 0 for no limit.
    pub compaction_throughput: u64,
    /// The language's limits.
    pub language: cql::Config,
}

/// Why a node did not start. The texts are for the operator.
#[derive(Debug, Error)]
#[error("{0}")]
pub struct StartError(pub String);

impl StartError {
    fn because(error: impl std::fmt::Display) -> Self {
        StartError(error.to_string())
    }
}

/// A node's floors, running. Kept by shard 0.
pub struct Stack {
    /// What the node is.
    pub info: NodeInfo,
    /// What replay found.
    pub replayed: ReplayReport,
    /// The lock on the data directory.
    _data_dir: DataDir,
}

/// Starts the floors on every shard. To be called on shard 0.
pub async fn start(config: StackConfig) -> Result<Stack, StartError> {
    assert_eq!(rt::shard::this(), ShardId(0), "shard 0 starts the others");
    let shards = rt::shard::count();
    let data_dir = DataDir::open(&config.data_dir, &config.info.cluster_name, shards as u16).await;
    let data_dir = data_dir.map_err(StartError::because)?;
    let mut config = config;
    config.info.host_id = data_dir.host_id;
    config.info.shards = shards;

    let old_logs = commitlog::find_old(&config.data_dir.join("commitlog")).await.map_err(StartError::because)?;
    let journal_dir = config.data_dir.join("journal");
    let (journal, recovered) =
        open_journal(&journal_dir, data_dir.host_id, shards).await.map_err(StartError::because)?;

    open_shard(config.clone(), &recovered, Some(journal)).await?;
    for shard in (1..shards).map(|shard| ShardId(shard as u16)) {
        let (config, recovered) = (config.clone(), recovered.clone());
        rt::shard::call(shard, move || async move { open_shard(config, &recovered, None).await }).await?;
    }

    let replayed = replay(&old_logs, config.ignore_log_corruption).await?;
    let floors = rt::shard::call_all(|| async { rt::shard::service::<Engine>().max_timestamp_seen() }).await;
    let timestamps = Arc::new(AtomicI64::new(floors.into_iter().max().unwrap_or(i64::MIN)));
    rt::shard::call_all({
        let config = config.clone();
        move || {
            let (config, timestamps) = (config.clone(), timestamps.clone());
            async move { serve_shard(&config, timestamps) }
        }
    })
    .await;
    Ok(Stack { info: config.info, replayed, _data_dir: data_dir })
}

/// Stops the floors on every shard, top down: what runs is finished, the logs are synced.
pub async fn stop() {
    rt::shard::call_all(|| async {
        rt::shard::uninstall::<Processor>();
        if let Some(engine) = rt::shard::try_service::<Engine>() {
            engine.stop().await;
        }
    })
    .await;
}

async fn open_shard(config: StackConfig, recovered: &Recovered, journal: Option<Journal>) -> Result<(), StartError> {
    let shard = rt::shard::this();
    let engine = Engine::open(engine_config(&config, shard, config.info.host_id)).await.map_err(StartError::because)?;
    let info = Rc::new(config.info);
    rt::shard::install(info.clone());
    rt::shard::install(engine.clone());
    let metadata = MetadataService::start(engine, info, recovered, journal).await.map_err(StartError::because)?;
    rt::shard::install(metadata);
    Ok(())
}

fn engine_config(config: &StackConfig, shard: ShardId, host_id: HostId) -> EngineConfig {
    let mut engine = EngineConfig::new(config.data_dir.clone(), shard, host_id, config.memory_per_shard);
    engine.log.mode = config.sync;
    engine.log.segment_size = config.segment_size;
    engine.log.total_size_limit = config.log_size_limit;
    engine.auto_snapshot = config.auto_snapshot;
    engine.auto_compaction = config.auto_compaction;
    engine.compaction_throughput = config.compaction_throughput;
    engine
}

fn serve_shard(config: &StackConfig, timestamps: Arc<AtomicI64>) {
    let engine = rt::shard::service::<Engine>();
    engine.start();
    rt::shard::install(table_sizes(engine.clone()));
    let mut replica_config = ReplicaConfig::with_memory(config.memory_per_shard);
    replica_config.tombstone_warn_threshold = config.tombstone_warn_threshold;
    let replica = Replica::new(engine, replica_config);
    rt::shard::install(replica.clone());
    let metadata = rt::shard::service::<MetadataService>();
    let coordinator =
        Coordinator::new(metadata, replica, TimestampClock::on_node(timestamps), config.page_limits.clone());
    rt::shard::install(coordinator.clone());
    rt::shard::install(Rc::new(Processor::with_config(coordinator, config.language.clone())));
}

/// What `system.size_estimates` says of this shard's tables.
fn table_sizes(engine: Rc<Engine>) -> Rc<TableSizes> {
    let size = move |id| {
        let stats = engine.table_stats(id).ok()?;
        Some(TableSize { partitions: stats.partitions, mean_partition_bytes: stats.mean_partition_bytes })
    };
    Rc::new(TableSizes(Box::new(size)))
}

/// Replays the logs of earlier runs, all shards at once: each record goes to the shard that owns its key now.
async fn replay(logs: &OldLogs, ignore_corruption: bool) -> Result<ReplayReport, StartError> {
    let shared = logs.clone();
    let reports = rt::shard::call_all(move || {
        let part = shared.part(rt::shard::this(), rt::shard::count() as u16);
        async move {
            let service = rt::shard::service::<MetadataService>();
            let (metadata, host) = (service.current(), service.info().host_id);
            let route = |table: TableId, key: &DecoratedKey| {
                let tablets = &metadata.table_by_id(table)?.tablets;
                let replicas = tablets.replicas(tablets.tablet_of(key.token));
                Some(ShardId(replicas.iter().find(|replica| replica.host == host).map_or(0, |replica| replica.shard)))
            };
            let options = ReplayOptions { ignore_corruption };
            engine::replay::replay_logs(&part, options, route).await.map_err(StartError::because)
        }
    })
    .await;
    let mut report = ReplayReport::default();
    for part in reports {
        report.merge(part?);
    }
    let finished = rt::shard::call_all(|| async {
        rt::shard::service::<Engine>().replay_finished().await.map_err(StartError::because)
    });
    finished.await.into_iter().collect::<Result<Vec<_>, _>>()?;
    commitlog::retire(logs).await.map_err(StartError::because)?;
    if report.mutations > 0 || !report.skipped.is_empty() {
        tracing::info!(
            mutations = report.mutations,
            bytes = report.bytes,
            segments = report.segments,
            "commitlog replayed"
        );
    }
    for skipped in &report.skipped {
        tracing::error!(file = %skipped.file.display(), offset = skipped.offset, why = skipped.why,
            "commitlog damage was skipped, as commitlog_ignore_corruption says: acknowledged writes may be lost");
    }
    Ok(report)
}
