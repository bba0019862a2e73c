//! The parameters of the layers of a node. [`crate::node`] fills them in from the configuration,
//! field by field. Tests, the simulation and the benchmarks begin with [`StackConfig::new`] and
//! change single settings, so that a new setting affects only this file and `node`.

use crate::membership::ClusterConfig;
use crate::node::RELEASE_VERSION;
use cluster::metadata::NodeInfo;
use coordinator::PageLimits;
use engine::commitlog::SyncMode;
use model::id::HostId;
use replica::ReplicaConfig;
use std::net::IpAddr;
use std::path::PathBuf;
use streaming::StreamSettings;

/// The parameters of the layers of a node.
#[derive(Clone, Debug)]
pub struct StackConfig {
    /// The data directory.
    pub data_dir: PathBuf,
    /// How the node finds other nodes; `None` for a node without a cluster.
    pub cluster: Option<ClusterConfig>,
    /// The description of the node. Its host id and shard count are filled in at start.
    pub info: NodeInfo,
    /// Memory of each shard, in bytes.
    pub memory_per_shard: usize,
    /// When a write is acknowledged.
    pub sync: SyncMode,
    /// `commitlog_segment_size_in_mb`, in bytes.
    pub segment_size: u32,
    /// `commitlog_total_space_in_mb` of one shard, in bytes.
    pub log_size_limit: u64,
    /// `accept_loss`: start without missing files of the data directory.
    pub accept_loss: bool,
    /// Disk space that is held back for starts and changes of the metadata on a full disk, in
    /// bytes.
    pub disk_reserve: u64,
    /// `commitlog_ignore_corruption`: start with a damaged commitlog.
    pub ignore_log_corruption: bool,
    /// Whether DROP and TRUNCATE leave a snapshot.
    pub auto_snapshot: bool,
    /// Whether compaction runs by itself.
    pub auto_compaction: bool,
    /// Where pages end.
    pub page_limits: PageLimits,
    /// `tombstone_warn_threshold`.
    pub tombstone_warn_threshold: u64,
    /// The limits of the replica. Its memory is filled in at start.
    pub replica: ReplicaConfig,
    /// The limit of compaction's writes on one shard, in bytes per second; 0 for no limit.
    pub compaction_throughput: u64,
    /// How tablets are streamed.
    pub streaming: StreamSettings,
    /// The maximum number of sstable files that one shard keeps open; 0 for its share of the
    /// process's descriptors.
    pub open_files: usize,
    /// The limits of the query processor.
    pub query_processor: cql::Config,
}

impl StackConfig {
    /// A node of its own at `address`, with `memory_per_shard` bytes for each shard and the usual
    /// ports. Every write is synced before it is acknowledged; nothing is snapshotted, limited or
    /// held back.
    pub fn new(
        data_dir: impl Into<PathBuf>,
        cluster_name: &str,
        address: IpAddr,
        memory_per_shard: usize,
    ) -> StackConfig {
        StackConfig {
            data_dir: data_dir.into(),
            cluster: None,
            info: NodeInfo {
                host_id: HostId::from_bytes([0; 16]),
                cluster_name: cluster_name.to_owned(),
                shards: 0,
                datacenter: "datacenter1".to_owned(),
                rack: "rack1".to_owned(),
                rpc_address: address,
                listen_address: address,
                broadcast_address: address,
                native_port: 9042,
                shard_aware_port: 19042,
                storage_port: 7000,
                release_version: RELEASE_VERSION.to_owned(),
                started_micros: rt::time::wall_micros(),
            },
            memory_per_shard,
            sync: SyncMode::Batch,
            segment_size: 1 << 20,
            log_size_limit: 32 << 20,
            accept_loss: false,
            disk_reserve: 0,
            ignore_log_corruption: false,
            auto_snapshot: false,
            auto_compaction: true,
            page_limits: PageLimits::default(),
            tombstone_warn_threshold: u64::MAX,
            replica: ReplicaConfig::with_memory(memory_per_shard),
            compaction_throughput: 0,
            streaming: StreamSettings::default(),
            open_files: 0,
            query_processor: cql::Config::default(),
        }
    }
}
