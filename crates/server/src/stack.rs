//! The layers of a node on every shard, without the ports: data directory, engine, replay, replica,
//! coordinator, query processor. `node` adds the ports. The simulation and the benchmarks use this
//! module directly.

use crate::config::Config;
use crate::config::setting::{Bytes, HotPartitionProtection, Size};
use crate::connection::Limits;
use crate::counter_id;
use crate::inventory::{self, InventoryRecord};
pub use crate::layers::{Layers, Stack};
use crate::local_sources;
use crate::membership::{self, ClusterSettings, OpenMetadata};
use crate::old_logs::AfterReplay;
pub use crate::stack_config::StackConfig;
pub use crate::start_error::StartError;
use crate::stopping::{Phase, StopError};
use crate::wire;
use cluster::ClusterShards;
use cluster::metadata::{MetadataLog, MetadataService, PagingKeyPolicy, Recovered, paging_keys};
use coordinator::hints::HintsSettings;
use coordinator::{Coordinator, PageLimits, TimestampClock};
use cql::Processor;
use cql::dialect::Dialect;
use cql::guardrails::Guardrails;
use cql::large_data::LargeDataLimits;
use engine::commitlog::{self, OldLogs, ReplayOptions, ReplayReport};
use engine::datadir::DataDir;
use engine::{DescribeSchema, DiskReserve, Engine, EngineConfig, LargeLimits, Unwritten};
use model::id::{CounterId, HostId, TableId};
use model::key::DecoratedKey;
pub use replica::ReplicaConfig;
use replica::large_data::{LargeDataThresholds, Thresholds};
use replica::{HotSettings, ProtectionMode, Replica};
use rt::ShardId;
use rt::shard::PerShard;
use rt::task::Group;
use std::collections::BTreeSet;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicI64;
use streaming::StreamSettings;

/// The schema may take 1/32 of the memory.
const SCHEMA_PART: u64 = 32;
/// Results that are being collected may take one in this many bytes of a shard's memory.
const RESULT_PART: usize = 4;
/// The minimum of this limit, in bytes.
const LEAST_SCHEMA: u64 = 4 << 20;
/// The maximum of this limit in bytes, unless the operator sets another one.
const MOST_SCHEMA: u64 = 64 << 20;
/// Disk space that is enough for any start, in bytes.
const START_NEEDS: u64 = 1 << 20;

/// Where pages end with this configuration.
pub fn page_limits(config: &Config) -> PageLimits {
    PageLimits {
        bytes: config.query_page_size_in_bytes.0,
        tombstones: config.query_tombstone_page_limit,
        tombstones_are_set: config.sources.of("query_tombstone_page_limit").is_some(),
        unpaged_bytes: config.max_memory_for_unlimited_query_hard_limit.0,
        empty_page_time: config.query_empty_page_time_budget_in_ms.0,
        empty_page_bytes: config.query_empty_page_memory_budget.0,
        state_expiry: config.paging_state_expiry_in_s.0,
        key_rotation: config.paging_key_rotation_period_in_s.0,
    }
}

/// The settings of hints in this configuration.
pub fn hints_settings(config: &Config) -> HintsSettings {
    HintsSettings {
        kept_for: config.hinted_handoff_enabled.0.clone(),
        window: config.max_hint_window_in_ms.0,
        throttle: config.hinted_handoff_throttle_in_kb.0,
    }
}

/// The cluster settings of this configuration, without addresses.
pub fn cluster_settings(config: &Config) -> ClusterSettings {
    ClusterSettings {
        hints_directory: config.hints_directory.clone(),
        hints: hints_settings(config),
        change_timeout: config.group0_raft_op_timeout_in_ms.0,
        replaces: config.replace_node_first_boot,
        ..ClusterSettings::default()
    }
}

/// The thresholds for large data in sstables, with this configuration.
pub fn large_limits(config: &Config) -> LargeLimits {
    LargeLimits {
        partition_bytes: config.compaction_large_partition_warning_threshold_mb.0,
        partition_rows: config.compaction_rows_count_warning_threshold,
        row_bytes: config.compaction_large_row_warning_threshold_mb.0,
        cell_bytes: config.compaction_large_cell_warning_threshold_mb.0,
        collection_elements: config.compaction_collection_elements_count_warning_threshold,
        records: usize::try_from(config.compaction_large_data_records_per_sstable).unwrap_or(usize::MAX),
    }
}

/// The thresholds at which replicas warn about, or refuse, writes to large data.
pub fn large_data_thresholds(config: &Config) -> LargeDataThresholds {
    LargeDataThresholds {
        partition: Thresholds {
            warned: config.compaction_large_partition_warning_threshold_mb.0,
            refused: config.large_partition_fail_threshold_mb.0,
        },
        rows: Thresholds {
            warned: config.compaction_rows_count_warning_threshold,
            refused: config.rows_count_fail_threshold,
        },
        row: large_rows(config),
        collection: large_collections(config),
    }
}

/// How hot partitions are treated.
pub fn hot_settings(config: &Config) -> HotSettings {
    HotSettings {
        mode: match config.hot_partition_protection {
            HotPartitionProtection::Off => ProtectionMode::Off,
            HotPartitionProtection::Observe => ProtectionMode::Observe,
            HotPartitionProtection::On => ProtectionMode::On,
        },
        wait_threshold: config.hot_partition_wait_threshold_in_ms.0,
        in_metrics: config.hot_partitions_in_metrics as usize,
    }
}

/// How tablets are streamed.
pub fn stream_settings(config: &Config) -> StreamSettings {
    let bytes_per_second = config.stream_io_throughput_mb_per_sec.0;
    StreamSettings { whole_files: config.enable_file_stream, bytes_per_second }
}

fn large_rows(config: &Config) -> Thresholds {
    Thresholds {
        warned: config.compaction_large_row_warning_threshold_mb.0,
        refused: config.large_row_fail_threshold_mb.0,
    }
}

fn large_collections(config: &Config) -> Thresholds {
    Thresholds {
        warned: config.compaction_collection_elements_count_warning_threshold,
        refused: config.large_collection_elements_fail_threshold,
    }
}

/// The size limit of the schema, in bytes.
fn schema_bytes(config: &Config) -> usize {
    let of_memory = |memory: Option<Bytes>| memory.map_or(u64::MAX, |Size(bytes)| bytes / SCHEMA_PART);
    let most = config.schema_size_fail_threshold_in_mb.map(|Size(bytes)| bytes);
    most.unwrap_or_else(|| of_memory(config.memory).clamp(LEAST_SCHEMA, MOST_SCHEMA)) as usize
}

/// The limits of the query processor with this configuration.
pub fn query_processor_config(config: &Config) -> cql::Config {
    cql::Config {
        read_timeout: config.read_request_timeout_in_ms.0,
        range_timeout: config.range_request_timeout_in_ms.0,
        write_timeout: config.write_request_timeout_in_ms.0,
        counter_write_timeout: config.counter_write_request_timeout_in_ms.0,
        truncate_timeout: config.truncate_request_timeout_in_ms.0,
        batch_size_warn: config.batch_size_warn_threshold_in_kb.0 as usize,
        batch_size_fail: config.batch_size_fail_threshold_in_kb.0 as usize,
        unpaged_bytes: config.max_memory_for_unlimited_query_hard_limit.0 as usize,
        mutation_bytes: config.commitlog_segment_size_in_mb.0 as usize / 2,
        restrict_future_timestamp: config.restrict_future_timestamp,
        dialect: Dialect {
            names_are_one: config.cql_duplicate_bind_variable_names_refer_to_same_variable,
            in_is_upper: config.cql_in_bind_variable_name_uses_uppercase_operator,
        },
        guardrails: Guardrails {
            least_factor_warned: config.minimum_replication_factor_warn_threshold.0,
            least_factor: config.minimum_replication_factor_fail_threshold.0,
            most_factor_warned: config.maximum_replication_factor_warn_threshold.0,
            most_factor: config.maximum_replication_factor_fail_threshold.0,
            strategies_warned: config.replication_strategy_warn_list.0.iter().map(|class| class.0.clone()).collect(),
            strategies_refused: config.replication_strategy_fail_list.0.iter().map(|class| class.0.clone()).collect(),
            write_levels_warned: config.write_consistency_levels_warned.0.clone(),
            write_levels_refused: config.write_consistency_levels_disallowed.0.clone(),
            most_windows: u32::try_from(config.twcs_max_window_count).unwrap_or(u32::MAX),
            windows_without_ttl: config.restrict_twcs_without_default_ttl,
            large_data: LargeDataLimits {
                cell: Thresholds {
                    warned: config.compaction_large_cell_warning_threshold_mb.0,
                    refused: config.large_cell_fail_threshold_mb.0,
                },
                row: large_rows(config),
                collection: large_collections(config),
                warns_clients: config.large_data_cql_warnings,
            },
            schema_bytes: schema_bytes(config),
            ..Guardrails::default()
        },
        ..cql::Config::default()
    }
}

/// Starts the layers on every shard, and sets them in `layers`. To be called on shard 0.
pub async fn start(layers: Layers, config: StackConfig) -> Result<Stack, StartError> {
    let data_dir = config.data_dir.clone();
    match Box::pin(start_layers(layers, config)).await {
        Err(StartError(why)) => Err(StartError(match lack_of_room(&data_dir).await {
            Some(lack) => format!("{why}; {lack}"),
            None => why,
        })),
        started => started,
    }
}

/// How many bytes of disk space a start lacks in a directory.
async fn lack_of_room(dir: &Path) -> Option<String> {
    let at = dir.display();
    match (rt::fs::disk_space(dir).await, rt::fs::free_files(dir).await) {
        (Ok((_, free)), _) if free < START_NEEDS => {
            let (free, needs) = (free >> 20, START_NEEDS >> 20);
            Some(format!("the disk of {at} has {free} MiB free, and a start needs {needs} MiB"))
        }
        (_, Ok(Some(0))) => Some(format!(
            "the disk of {at} has free space, but no inodes: no more files can be created. Remove files from it (snapshots first), \
             or use a file system with more inodes"
        )),
        _ => None,
    }
}

async fn start_layers(layers: Layers, config: StackConfig) -> Result<Stack, StartError> {
    assert_eq!(rt::shard::this(), ShardId(0), "shard 0 starts the others");
    let shards = rt::shard::count();
    let reserve = DiskReserve::of(&config.data_dir, config.disk_reserve);
    let open_dir = || DataDir::open(&config.data_dir, &config.info.cluster_name, shards as u16);
    let data_dir = match open_dir().await {
        // The stamp needs space for the new number of shards.
        Err(error) if error.may_pass() => {
            reserve.release().await.map_err(StartError::because)?;
            open_dir().await
        }
        opened => opened,
    };
    let data_dir = Rc::new(data_dir.map_err(StartError::because)?);
    let mut config = config;
    config.info.host_id = data_dir.host_id;
    config.info.shards = shards;
    if config.accept_loss {
        tracing::warn!(
            "accept_loss is set: the node starts without missing files; remove the setting after this start"
        );
    }
    let mut given_up = inventory::check_logs(&data_dir, &config).await?;
    reserve.release().await.map_err(StartError::because)?;

    let old_logs = commitlog::find_old(&config.data_dir.join("commitlog")).await.map_err(StartError::because)?;
    let wire = Box::pin(membership::open_internode(layers.resync(), &config)).await?;
    let opened = Box::pin(membership::open_metadata(&config, wire.as_ref())).await?;
    let OpenMetadata { log, recovered, joins } = opened;
    let alone = log.is_alone();
    if !joins {
        given_up.extend(inventory::check_tables(&data_dir, &config, &recovered).await?);
    }

    let counter_id = counter_id::choose(&data_dir, !given_up.is_empty()).await?;

    open_shard(layers.cluster(), config.clone(), &recovered, Some(log)).await?;
    let others = (1..shards).map(|shard| {
        let (config, recovered) = (config.clone(), recovered.clone());
        let open = move || async move { open_shard(layers.cluster(), config, &recovered, None).await };
        rt::task::spawn(rt::shard::call(ShardId(shard as u16), open))
    });
    // Waits for all shards, so that none uses the directory any more when the error is returned.
    let mut opened = Ok(());
    for task in others.collect::<Vec<_>>() {
        opened = opened.and(task.await.unwrap_or_else(|_| Err(StartError("the node is stopping".into()))));
    }
    opened?;
    given_up.extend(layers.engine.get().given_up());

    let metadata = layers.metadata.get();
    // Must come before flushes, which can use up the rest of a nearly full disk.
    reserve.take().await;
    let keeper = Rc::new(data_dir.inventory_keeper(alone));
    if let Some(wire) = &wire {
        membership::join_group(wire, joins, &metadata, &keeper, config.accept_loss).await?;
        Box::pin(membership::claim_run(layers.cluster(), layers.coordinator, layers.runs, wire, keeper.clone(), joins))
            .await?;
    }
    inventory::name_unknown_tables(&data_dir, &metadata).await?;
    let replayed = replay(layers.cluster(), &old_logs, config.ignore_log_corruption).await?;
    let counter_id = counter_id.after_replay(&data_dir, !replayed.skipped.is_empty()).await?.id;
    if wire.is_some() {
        inventory::note_given_up(&config, &metadata, &given_up, &replayed).await?;
    }
    let inventory = InventoryRecord {
        data_dir: data_dir.clone(),
        keeper: keeper.clone(),
        engines: layers.engine,
        metadata: metadata.clone(),
        alone,
    };
    AfterReplay { logs: old_logs, inventory: inventory.clone(), reserve }.finish().await?;
    rt::task::spawn(inventory.follow_metadata_log()).detach();
    layers.inventory.set(keeper);
    inventory::watch_directories(layers.inventory, layers.engine).await;
    let floors = layers.engine.call_all(|engine| async move { engine.max_timestamp_seen() }).await;
    let timestamps = Arc::new(AtomicI64::new(floors.into_iter().max().unwrap_or(i64::MIN)));
    rt::shard::call_all({
        let config = config.clone();
        move || {
            let (config, timestamps) = (config.clone(), timestamps.clone());
            async move { serve_shard(layers, &config, timestamps, counter_id) }
        }
    })
    .await;
    let PageLimits { state_expiry: expiry, key_rotation: rotation, .. } = config.page_limits;
    let policy = PagingKeyPolicy { expiry, rotation };
    rt::task::spawn(paging_keys::keep(layers.metadata, policy)).detach();
    if let Some(wire) = wire {
        membership::keep_hints(&metadata, layers.coordinator, layers.inventory, &config).await?;
        membership::start_streaming(layers.cluster(), layers.streaming, layers.streams, config.streaming).await;
        membership::settle(layers.cluster(), layers.streaming, &wire, joins).await?;
        wire.keep(layers.wire);
    }
    Ok(Stack { info: config.info, replayed, data_dir })
}

/// Stops the layers on every shard, top down: running work ends, and the logs are synced. Must be
/// called on shard 0. The error names the data that could not be written, and whether acknowledged
/// writes may be lost.
pub async fn stop(layers: Layers) -> Result<(), StopError> {
    stop_in(layers, &Phase::default()).await
}

/// Like [`stop`], and reports its current phase.
pub(crate) async fn stop_in(layers: Layers, phase: &Phase) -> Result<(), StopError> {
    let mut log = Ok(());
    if let Some(metadata) = layers.metadata.try_get() {
        phase.enter("closing the metadata log");
        metadata.stop().await;
        log = metadata.check_log().await;
        phase.enter("closing connections to other nodes");
        wire::close(layers.wire).await;
    }
    phase.enter("syncing hints, stopping flushes and compactions, closing the commitlog");
    let unwritten = rt::shard::call_all(move || async move {
        layers.processor.clear();
        layers.streaming.clear();
        layers.streams.clear();
        if let Some(replica) = layers.replica.try_get() {
            replica.forget_queriers(None);
        }
        let mut unrecorded = BTreeSet::new();
        if let Some(hints) = layers.coordinator.try_get().and_then(|coordinator| coordinator.hints()) {
            hints.sync().await;
            unrecorded = hints.unrecorded();
        }
        let (unwritten, made) = match layers.engine.try_get() {
            Some(engine) => (engine.stop().await, engine.take_made()),
            None => (Unwritten::default(), Vec::new()),
        };
        ((unwritten, unrecorded), made)
    });
    let (left, made): (Vec<_>, Vec<_>) = unwritten.await.into_iter().unzip();
    let (unwritten, unrecorded): (Vec<_>, Vec<_>) = left.into_iter().unzip();
    let unrecorded: BTreeSet<HostId> = unrecorded.into_iter().flatten().collect();
    inventory::add_last_made(layers.inventory, made.into_iter().flatten().collect()).await;
    inventory::forget_removed_logs(layers.inventory, &unwritten).await;
    layers.inventory.clear();
    let unwritten = StopError::of(unwritten);
    let log = match (log, StopError::unrecorded(&unrecorded)) {
        (Err(why), Some(also)) => Err(format!("{why}; {also}")),
        (Ok(()), Some(why)) => Err(why),
        (log, None) => log,
    };
    match (log, unwritten) {
        (Ok(()), Ok(())) => {
            counter_id::keep(layers.engine, layers.replica).await;
            Ok(())
        }
        (Ok(()), unwritten) => unwritten,
        (Err(why), Ok(())) => Err(StopError::MayLackWrites(why)),
        (Err(why), Err(also)) => Err(StopError::MayLackWrites(format!("{why}; {also}"))),
    }
}

async fn open_shard(
    shards: ClusterShards,
    config: StackConfig,
    recovered: &Recovered,
    log: Option<MetadataLog>,
) -> Result<(), StartError> {
    let shard = rt::shard::this();
    let engine = engine_config(shards.metadata, &config, shard, config.info.host_id);
    let engine = Engine::open(engine).await.map_err(StartError::because)?;
    let info = Rc::new(config.info);
    shards.engine.set(engine.clone());
    let metadata = MetadataService::start(engine, info, shards, recovered, log).await;
    let metadata = metadata.map_err(StartError::because)?;
    shards.metadata.set(metadata);
    Ok(())
}

fn engine_config(
    services: PerShard<MetadataService>,
    config: &StackConfig,
    shard: ShardId,
    host_id: HostId,
) -> EngineConfig {
    let mut engine = EngineConfig::new(config.data_dir.clone(), shard, host_id, config.memory_per_shard);
    engine.log.mode = config.sync;
    engine.log.segment_size = config.segment_size;
    engine.log.total_size_limit = config.log_size_limit;
    engine.auto_snapshot = config.auto_snapshot;
    engine.accept_loss = config.accept_loss;
    engine.ignore_log_corruption = config.ignore_log_corruption;
    engine.describe = Some(DescribeSchema(Rc::new(move |schema| cql::describe::snapshot_schema(services, schema))));
    engine.auto_compaction = config.auto_compaction;
    engine.compaction_throughput = config.compaction_throughput;
    engine.open_files = config.open_files;
    engine.disk_reserve = config.disk_reserve;
    engine
}

fn serve_shard(layers: Layers, config: &StackConfig, timestamps: Arc<AtomicI64>, counter_id: CounterId) {
    let engine = layers.engine.get();
    layers.fragments.set(local_sources::service(engine.clone()));
    let replica_config = ReplicaConfig {
        memory: config.memory_per_shard,
        tombstone_warn_threshold: config.tombstone_warn_threshold,
        ..config.replica.clone()
    };
    let replica = Replica::new(engine, replica_config);
    replica.set_counter_id(counter_id);
    layers.replica.set(replica.clone());
    let metadata = layers.metadata.get();
    let clock = TimestampClock::on_node(timestamps);
    let coordinator = Coordinator::new(metadata.clone(), replica.clone(), clock, config.page_limits);
    coordinator.set_result_memory(config.memory_per_shard / RESULT_PART);
    coordinator.set_largest_answer(Limits::for_memory(config.memory_per_shard).largest_answer());
    membership::connect_shard(layers.internode, &coordinator, &replica, &metadata);
    let reporting = Coordinator::keep_reporting_arrivals(Rc::downgrade(&coordinator));
    rt::task::spawn_in(Group::Control, reporting).detach();
    layers.coordinator.set(coordinator.clone());
    layers.processor.set(Rc::new(Processor::with_config(coordinator, config.query_processor.clone(), layers.cql())));
}

/// Replays the logs of earlier runs, on all shards in parallel. Each record goes to the shard that
/// owns its key now.
async fn replay(shards: ClusterShards, logs: &OldLogs, ignore_corruption: bool) -> Result<ReplayReport, StartError> {
    let shared = logs.clone();
    let reports = rt::shard::call_all(move || {
        let part = shared.part(rt::shard::this(), rt::shard::count() as u16);
        async move {
            let service = shards.metadata.get();
            let (metadata, host) = (service.current(), service.info().host_id);
            let route = |table: TableId, key: &DecoratedKey| {
                let tablets = &metadata.table_by_id(table)?.tablets;
                // Pending tablets, too: the log may have the only copy of a write to them.
                Some(ShardId(tablets.shard_on(tablets.tablet_of(key.token), host).unwrap_or(0)))
            };
            let options = ReplayOptions { ignore_corruption, host: Some(host) };
            engine::replay_logs(&part, shards.engine, options, route).await.map_err(StartError::because)
        }
    })
    .await;
    let mut report = ReplayReport::default();
    for part in reports {
        report.merge(part?);
    }
    inventory::name_unknown_mutations(&shards.metadata.get().current(), &report.unknown);
    if report.mutations > 0 || !report.skipped.is_empty() {
        tracing::info!(
            mutations = report.mutations - report.unknown.values().sum::<u64>(),
            bytes = report.bytes,
            segments = report.segments,
            "commitlog replayed"
        );
    }
    for skipped in &report.skipped {
        tracing::error!(file = %skipped.file.display(), offset = skipped.offset, why = skipped.why,
            "commitlog damage was skipped (commitlog_ignore_corruption): acknowledged writes may be lost");
    }
    Ok(report)
}
