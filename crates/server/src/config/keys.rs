//! Every setting: its name, its default, and its effect.

use super::encryption::ClientEncryption;
use super::guardrail::{List, Strategy, Threshold};
use super::handoff::Handoff;
use super::hosts::HostName;
use super::internode::{InternodeCompression, ServerEncryption};
use super::seeds::Seeds;
use super::setting::{
    Authenticator, Authorizer, BadValue, Bytes, CommitlogSync, CpuSet, HotPartitionProtection, KiB, LogFormat, MiB,
    Micros, Millis, Range, Raw, Seconds, Setting, Size, Time, within,
};
use super::source::Sources;
use coordinator::hints::KeptFor;
use cql::api::Consistency;
use cql::guardrails::Restriction;
use model::HostId;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::time::Duration;

/// A key of the configuration.
pub struct Key {
    /// The name in the file. On the command line, dashes replace the underscores.
    pub name: &'static str,
    /// Aliases.
    pub aliases: &'static [&'static str],
    /// The section of the reference.
    pub section: &'static str,
    /// The documentation, by line.
    pub doc: &'static [&'static str],
    /// Describes a valid value.
    pub wanted: &'static str,
    /// The range of valid values, if not all are.
    pub range: Option<Range>,
    /// The default as it is written in the file; empty for none.
    pub default: fn() -> String,
    /// Sets the value.
    pub set: fn(&mut Config, &Raw) -> Result<(), BadValue>,
    /// The value as it is written in the file.
    pub get: fn(&Config) -> String,
    /// The type in `system.config`.
    pub kind: &'static str,
    /// The value in `system.config`: JSON.
    pub json: fn(&Config) -> String,
}

impl Key {
    /// Whether the value is true or false. On the command line it can be left out.
    pub fn is_switch(&self) -> bool {
        self.wanted == <bool as Setting>::WANTED
    }

    /// The documentation as one text.
    pub fn help(&self) -> String {
        self.doc.iter().map(|line| line.trim()).collect::<Vec<_>>().join(" ")
    }
}

macro_rules! range {
    () => {
        None
    };
    ($least:literal $most:literal) => {
        Some(($least, $most))
    };
}

macro_rules! settings {
    ($( section $section:literal { $( $(#[doc = $doc:literal])+ $name:ident $([$($alias:literal),+])? $(($least:literal to $most:literal))? : $ty:ty = $default:expr; )+ } )+) => {
        /// The configuration of a node.
        #[derive(Clone, Debug, PartialEq)]
        pub struct Config {
            $($( $(#[doc = $doc])+ pub $name: $ty, )+)+
            /// Which settings were set, and where.
            pub sources: Sources,
        }

        impl Default for Config {
            fn default() -> Self {
                Config { $($( $name: $default, )+)+ sources: Sources::default() }
            }
        }

        /// Every key, in the order of the reference.
        pub static KEYS: &[Key] = &[
            $($( Key {
                name: stringify!($name),
                aliases: &[$($($alias),+)?],
                section: $section,
                doc: &[$($doc),+],
                wanted: <$ty as Setting>::WANTED,
                range: range!($($least $most)?),
                default: || { let default: $ty = $default; default.show() },
                set: |config, raw| {
                    let range = range!($($least $most)?);
                    config.$name = match within(<$ty as Setting>::read(raw)?, range)? {
                        Some(value) => value,
                        None => $default,
                    };
                    Ok(())
                },
                get: |config| config.$name.show(),
                kind: <$ty as Setting>::KIND,
                json: |config| config.$name.json(),
            }, )+)+
        ];
    };
}

const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

const fn millis(n: u64) -> Millis {
    Time(Duration::from_millis(n))
}

const fn seconds(n: u64) -> Seconds {
    Time(Duration::from_secs(n))
}

settings! {
    section "Identity" {
        /// The name of the cluster. Once a node has joined, its data directory cannot be used with
        /// another name.
        cluster_name: String = "Messina".to_owned();
        /// The datacenter of this node. It cannot change after the node has joined other nodes.
        datacenter ["dc"]: String = "datacenter1".to_owned();
        /// The rack of this node. It cannot change after the node has joined other nodes.
        rack: String = "rack1".to_owned();
    }
    section "Storage" {
        /// The data directory: sstables, commitlog, metadata.
        data_dir ["workdir"]: PathBuf = PathBuf::from("./data");
        /// When a write is acknowledged. `periodic`: once the kernel has it (kill -9 loses nothing,
        /// a power loss at most one period). `batch`: once the disk has it. `group`: like `batch`,
        /// after collecting writes for a short time.
        commitlog_sync: CommitlogSync = CommitlogSync::Periodic;
        /// Time between two syncs of the commitlog in `periodic` mode.
        commitlog_sync_period_in_ms ["commitlog_sync_period"] ("1ms" to "1h"): Millis = millis(10_000);
        /// How long `group` mode collects writes before it syncs.
        commitlog_sync_group_window_in_ms ["commitlog_sync_group_window"] ("0ms" to "10s"): Millis = millis(1);
        /// The size of a commitlog segment. A write larger than half of it is refused. Segments are
        /// smaller if two would be larger than a shard's memory, or five larger than a shard's part
        /// of `commitlog_total_space_in_mb`. The node logs their size then.
        commitlog_segment_size_in_mb ["commitlog_segment_size"] ("1MiB" to "1GiB"): MiB = Size(32 << 20);
        /// The disk space for the commitlogs of all shards. From three quarters on, memtables are
        /// flushed to free segments. Without a value: 1 GiB for each shard. Each shard uses at
        /// least five segments; a smaller value causes a warning.
        commitlog_total_space_in_mb ["commitlog_total_space"]: Option<MiB> = None;
        /// Skip damaged or missing parts of the commitlog at start, instead of refusing to start.
        /// Loses data: use it as a last resort.
        commitlog_ignore_corruption: bool = false;
        /// For one start: continue although files that were in the data directory when the node
        /// last ran are missing or damaged. The log names each file and its contents. Loses data:
        /// use it as a last resort. Implies `commitlog_ignore_corruption`.
        accept_loss: bool = false;
        /// Disk space that a running node reserves (the file `messina.reserve`). With it, a node on
        /// a full disk can start, serve reads, and apply changes of the metadata. 0: none.
        disk_reserve_in_mb ["disk_reserve"] ("" to "16GiB"): MiB = Size(16 << 20);
        /// Whether DROP and TRUNCATE take a snapshot first.
        auto_snapshot: bool = true;
        /// The maximum write rate of compaction on all shards together, per second. 0: no limit.
        compaction_throughput_mb_per_sec ["compaction_throughput"]: MiB = Size(0);
        /// Whether tablets move between nodes as whole sstable files. `false`: as mutations, which
        /// is slower. Tablets with sstables of other databases always move as mutations.
        enable_file_stream: bool = true;
        /// The maximum rate at which this node streams tablets, to and from all others together,
        /// per second. 0: no limit.
        stream_io_throughput_mb_per_sec ["stream_io_throughput"]: MiB = Size(0);
        /// A larger partition is logged when its sstable is written, and listed in
        /// `system.large_partitions`.
        compaction_large_partition_warning_threshold_mb: MiB = Size(1000 << 20);
        /// A partition with more rows is also listed in `system.large_partitions`.
        compaction_rows_count_warning_threshold: u64 = 100_000;
        /// A larger row is logged, and listed in `system.large_rows`.
        compaction_large_row_warning_threshold_mb: MiB = Size(10 << 20);
        /// A larger cell or collection is logged, and listed in `system.large_cells`.
        compaction_large_cell_warning_threshold_mb: MiB = Size(1 << 20);
        /// A collection with more elements is also listed in `system.large_cells`.
        compaction_collection_elements_count_warning_threshold: u64 = 10_000;
        /// The maximum number of partitions, rows and cells that are listed for each sstable and
        /// measure. The largest ones are listed.
        compaction_large_data_records_per_sstable: u64 = 10;
        /// A write is refused if its partition is larger than this in an sstable of a replica.
        /// Applies to tables with `large_data_guardrails_enabled = true`. 0: no write is refused.
        /// From `compaction_large_partition_warning_threshold_mb` on, a write causes a warning.
        large_partition_fail_threshold_mb: MiB = Size(2000 << 20);
        /// The same for the rows of a partition. The warning threshold is
        /// `compaction_rows_count_warning_threshold`.
        rows_count_fail_threshold: u64 = 200_000;
        /// A write of a larger cell is refused, in tables with
        /// `large_data_guardrails_enabled = true`. 0: no write is refused. From
        /// `compaction_large_cell_warning_threshold_mb` on, a write causes a warning. Frozen
        /// collections are cells; the elements of others are only counted.
        large_cell_fail_threshold_mb: MiB = Size(2 << 20);
        /// The same for a row: in one write, or stored. The warning threshold is
        /// `compaction_large_row_warning_threshold_mb`.
        large_row_fail_threshold_mb: MiB = Size(20 << 20);
        /// The same for the elements of a collection: in one write, or stored. The warning
        /// threshold is `compaction_collection_elements_count_warning_threshold`.
        large_collection_elements_fail_threshold: u64 = 20_000;
        /// Whether clients get the warnings about large data. They are logged in any case.
        large_data_cql_warnings: bool = true;
        /// The maximum number of sstable files that all shards together keep open. Each sstable has
        /// two, which are opened when it is read. 0: half of the process's limit (`RLIMIT_NOFILE`).
        sstable_open_files_limit: u64 = 0;
    }
    section "Addresses and ports" {
        /// The address for clients.
        rpc_address: IpAddr = LOOPBACK;
        /// The address that is announced to clients, if it differs from `rpc_address`. Required if
        /// `rpc_address` is 0.0.0.0.
        broadcast_rpc_address: Option<IpAddr> = None;
        /// The address for other nodes.
        listen_address: IpAddr = LOOPBACK;
        /// The address that is announced to other nodes, if it differs from `listen_address`.
        broadcast_address: Option<IpAddr> = None;
        /// Addresses or host names of nodes that this node asks for the cluster at start. The first
        /// node of a cluster names itself. A node without seeds is a cluster of one, and opens no
        /// port for other nodes. A new node waits until all names have addresses. A member of a
        /// cluster starts also if no seed answers, but not without this setting. `seed_provider` is
        /// accepted, too.
        seeds: Seeds = Seeds::default();
        /// Whether clients are served.
        start_native_transport: bool = true;
        /// The port for CQL; 0 for none.
        native_transport_port: u16 = 9042;
        /// The port for CQL on which a client chooses the shard: its own port modulo the number of
        /// shards. 0: none.
        native_shard_aware_transport_port: u16 = 19042;
        /// The port for CQL over TLS, if `client_encryption_options` enables TLS. 0: none. If it
        /// equals `native_transport_port`, that port is encrypted. Otherwise
        /// `native_transport_port` serves clients without TLS, unless it is 0.
        native_transport_port_ssl: u16 = 9142;
        /// The same for the port on which a client chooses the shard.
        native_shard_aware_transport_port_ssl: u16 = 19142;
        /// The port for other nodes.
        storage_port: u16 = 7000;
        /// How long a member must be unresponsive before a node with its host id is admitted at
        /// another address. The value must exceed the duration of a restart, because the node at
        /// the other address may run on a copy of the member's data directory. Set it to the same
        /// value on all nodes.
        address_change_delay_in_ms ["address_change_delay"] ("1s" to "1d"): Millis = millis(30_000);
        /// The host id of a node that is down for good, which this node replaces when it starts for
        /// the first time. The new node has the datacenter and rack of that node, and any address.
        /// Later starts ignore the setting.
        replace_node_first_boot: Option<HostId> = None;
        /// The connections between nodes that are compressed with lz4: `none`, `dc` (between
        /// datacenters), `all`. Data that does not get shorter is sent uncompressed.
        internode_compression: InternodeCompression = InternodeCompression::default();
        /// The address of the admin REST interface. It has no authentication: keep it on loopback.
        api_address: IpAddr = LOOPBACK;
        /// The port of the admin REST interface; 0 for none.
        api_port: u16 = 10000;
        /// The address for metrics.
        prometheus_address: IpAddr = LOOPBACK;
        /// The port of `/metrics` for Prometheus; 0 for none.
        prometheus_port: u16 = 9180;
        /// The names that HTTP clients may use for this node in the header `Host`, besides
        /// `localhost` and the address that they connect to. `*`: any. The admin REST interface
        /// refuses other names, so that web pages cannot reach it. So does the port for metrics if
        /// it is on loopback, or if names are set here.
        http_allowed_hosts: List<HostName> = List(Vec::new());
    }
    section "Machine" {
        /// The number of shards. Without a value: one for each CPU of `cpuset`, or of the process's
        /// affinity mask. In a cluster of several nodes, the number can only grow: with fewer
        /// shards, the node does not start. With more, tablets of the node move to the new shards.
        shards ["smp"] ("1" to "1024"): Option<u16> = None;
        /// The CPUs to use, such as `0-3,6`. Shards are pinned to them in order. The node does not
        /// start if it cannot use one of them.
        cpuset: Option<CpuSet> = None;
        /// Memory of all shards together. Without a value: half of the machine's memory, or of the
        /// limit of the control group. The node reserves 24 MiB, and 64 MiB for each shard, for
        /// memory that it does not count: together at most four tenths of the value. The shards
        /// divide the rest. A node with less than 16 MiB for each shard does not start.
        memory ("64MiB" to ""): Option<Bytes> = None;
        /// The CPUs are shared with other programs: no pinning, no polling, and a busy shard that
        /// wakes up preempts no other program.
        overprovisioned: bool = false;
        /// How long an idle shard polls its mailbox before it sleeps. Responses of other shards
        /// arrive faster, but the CPU is always busy.
        idle_poll_time_us ("0us" to "1s"): Micros = Time(Duration::ZERO);
        /// The target for the 99th percentile of the latency of statements in this node. While it
        /// is exceeded, and while statements wait, compactions and other maintenance get less time
        /// and disk bandwidth, down to a twentieth of their demand. They use idle time all the
        /// same. The target has no effect on a shard with fewer than about 100 statements per
        /// second. 0: no target.
        foreground_p99_target_in_ms ["foreground_p99_target"] ("0ms" to "1h"): Millis = millis(0);
        /// The maximum duration of a stop. A quarter of it is for pending client requests. At the
        /// end, the remaining work is logged and aborted; the commitlog has all acknowledged
        /// writes.
        shutdown_timeout_in_ms ["shutdown_timeout"] ("1s" to "1d"): Millis = millis(60_000);
        /// A task that blocks its shard for longer is logged.
        blocked_reactor_notify_ms ("1ms" to ""): Millis = millis(25);
    }
    section "Requests" {
        /// The timeout of a read.
        read_request_timeout_in_ms ["read_request_timeout"] ("10ms" to "365d"): Millis = millis(5_000);
        /// The timeout of a page of a range scan.
        range_request_timeout_in_ms ["range_request_timeout"] ("10ms" to "365d"): Millis = millis(10_000);
        /// The timeout of a write.
        write_request_timeout_in_ms ["write_request_timeout"] ("10ms" to "365d"): Millis = millis(2_000);
        /// The timeout of a counter update.
        counter_write_request_timeout_in_ms ["counter_write_request_timeout"] ("10ms" to "365d"): Millis = millis(5_000);
        /// The timeout of a TRUNCATE.
        truncate_request_timeout_in_ms ["truncate_request_timeout"] ("10ms" to "365d"): Millis = millis(60_000);
        /// A page ends when its rows reach this size. The maximum is the memory that a shard
        /// reserves for clients: two fifths of the shard's memory.
        query_page_size_in_bytes ("1B" to ""): Bytes = Size(1 << 20);
        /// The maximum number of tombstones that a page reads. If it is set (in the file, on the
        /// command line or in `system.config`), the page ends there, even without a row. Otherwise
        /// the coordinator continues to read until there is a row or the budget below is used up.
        /// The reason: many drivers lose rows when they get an empty page.
        query_tombstone_page_limit ("1" to ""): u64 = 10_000;
        /// How long the coordinator searches for the first row of a page, past tombstones and rows
        /// that filters reject, before it returns an empty page. At most half of the request's
        /// timeout.
        query_empty_page_time_budget_in_ms ["query_empty_page_time_budget"]: Millis = millis(2_000);
        /// How many bytes of keys and rows it may read for that.
        query_empty_page_memory_budget: Bytes = Size(256 << 20);
        /// How long a paging state is valid.
        paging_state_expiry_in_s ["paging_state_expiry"] ("1s" to ""): Seconds = seconds(24 * 3600);
        /// How long a key authenticates new paging states. A key is removed when all paging states
        /// that it authenticated have expired.
        paging_key_rotation_period_in_s ["paging_key_rotation_period"] ("1s" to ""): Seconds = seconds(24 * 3600);
        /// The maximum size of an unpaged result in memory. It is limited to the memory that a
        /// shard reserves for clients: two fifths of the shard's memory.
        max_memory_for_unlimited_query_hard_limit ("64KiB" to ""): Bytes = Size(100 << 20);
        /// A read that meets this many tombstones is logged.
        tombstone_warn_threshold: u64 = 1_000;
        /// Whether the reader of a page is kept for the next page of its query (a querier), which
        /// then resumes without opening files again. The results are the same without it, only
        /// slower.
        querier_cache: bool = true;
        /// How long a querier waits for the next page.
        querier_cache_ttl_in_ms ["querier_cache_ttl"]: Millis = millis(10_000);
        /// The maximum share of a shard's memory for queriers, in percent.
        querier_cache_memory_percent ("0" to "100"): u64 = 4;
        /// The maximum number of concurrent client reads of a shard; more reads wait. Queriers
        /// count, and are evicted if a read would have to wait.
        reader_concurrency_semaphore_count_limit ("1" to ""): u64 = 100;
        /// The same for repair, streaming and other maintenance.
        maintenance_reader_concurrency_semaphore_count_limit ("1" to ""): u64 = 10;
        /// The memory of each shard for the counts of `per_partition_rate_limit`, rounded down to
        /// a power of two, and at most a sixteenth of the shard's memory. It holds a count for each
        /// 16 bytes. It is allocated when a table has a limit.
        per_partition_rate_limiter_memory ("64KiB" to "64MiB"): Bytes = Size(1 << 20);
        /// If a client ignores refusals by a rate limit, its further refusals are answered late.
        /// The delay is random, from half of this time to all of it. 0 answers all refusals at
        /// once.
        per_partition_rate_limit_max_delay_in_ms ["per_partition_rate_limit_max_delay"] ("" to "1s"): Millis = millis(1_000);
        /// Early retries of a partition, per second and connection, after which its further
        /// refusals are delayed.
        per_partition_rate_limit_retries_before_delay ("" to "1000000"): u64 = 100;
        /// Refusals per second and connection, over all partitions, after which further refusals
        /// are delayed.
        per_partition_rate_limit_errors_before_delay ("" to "1000000"): u64 = 250;
        /// The most refusals of a connection that wait. Beyond it, they are answered at once.
        per_partition_rate_limit_max_delayed_per_connection ("" to "32768"): u64 = 512;
        /// The same for all connections of a shard. A refusal that waits takes about
        /// 800 bytes. All of a shard take at most an eightieth of its memory.
        per_partition_rate_limit_max_delayed_per_shard ("" to "1000000"): u64 = 8_192;
        /// A larger batch causes a warning to the client.
        batch_size_warn_threshold_in_kb ["batch_size_warn_threshold"]: KiB = Size(128 << 10);
        /// A larger batch is refused.
        batch_size_fail_threshold_in_kb ["batch_size_fail_threshold"] ("1KiB" to ""): KiB = Size(1024 << 10);
        /// Whether to refuse client timestamps that are more than three days in the future.
        restrict_future_timestamp: bool = true;
        /// Whether bind markers with the same name in a statement are one variable, as in ScyllaDB.
        /// Otherwise each is a variable of its own, as in Cassandra.
        cql_duplicate_bind_variable_names_refer_to_same_variable: bool = true;
        /// Whether the variable of `c IN ?` is named `IN(c)`, as in ScyllaDB. Otherwise it is
        /// `in(c)`, as in Cassandra.
        cql_in_bind_variable_name_uses_uppercase_operator: bool = true;
        /// The maximum size of a request frame, and at most a tenth of the shard's memory.
        native_transport_max_frame_size_in_mb ["native_transport_max_frame_size"] ("1MiB" to "2047MiB"): MiB = Size(256 << 20);
        /// A client that reads nothing of its pending responses for this long is disconnected. If
        /// these are large, it must read 1 MiB in that time. While the unread responses of a shard
        /// use all of their memory, a client is disconnected that reads nothing for 5 s, or for 1 s
        /// if they use twice as much. Reads of large rows wait for the memory of unread responses.
        native_transport_unread_timeout_in_ms ["native_transport_unread_timeout"] ("1s" to "1d"): Millis = millis(30_000);
        /// How long requests may wait for a shard that has no idle time. Once such waits have
        /// lasted for ten times as long, requests that have waited longer are refused as overload.
        /// So a burst is served. 0: no limit except the timeout of the request.
        native_transport_max_queue_wait_in_ms ["native_transport_max_queue_wait"] ("" to "1h"): Millis = millis(500);
        /// The maximum number of pending requests of a shard; more are refused as overload. Without
        /// a value: no limit except memory.
        max_concurrent_requests_per_shard ("1" to ""): Option<u64> = None;
        /// While requests wait for a shard longer than `hot_partition_wait_threshold_in_ms`, on
        /// average, and it has this many pending requests, it does not read a connection that has
        /// its fair share of them. Further requests wait in their sockets.
        native_transport_max_pending_while_overloaded ("1" to ""): u64 = 1024;
        /// Whether a shard refuses requests of its hot partitions while other requests wait for it.
        /// `off`: no. `observe`: no, but it counts what it would refuse. `on`: partitions that take
        /// more than their fair share of the shard's time are refused down to that share.
        hot_partition_protection: HotPartitionProtection = HotPartitionProtection::Observe;
        /// How long requests must wait for a shard, on average, until it protects itself against
        /// hot partitions.
        hot_partition_wait_threshold_in_ms ["hot_partition_wait_threshold"] ("1ms" to "10s"): Millis = millis(5);
        /// How many of its hottest partitions each shard shows in metrics.
        hot_partitions_in_metrics ("0" to "64"): u64 = 3;
    }
    section "Nodes that are down" {
        /// Whether writes that a replica misses are kept as hints and replayed when it is up again.
        /// The value is `true`, `false`, or a list of the replicas' datacenters, separated by
        /// commas. Words that are close to `true` or `false` are refused; write a datacenter with
        /// such a name in brackets.
        hinted_handoff_enabled: Handoff = Handoff(KeptFor::All);
        /// A node that has been down for longer gets no new hints, and needs a repair.
        max_hint_window_in_ms ["max_hint_window"]: Millis = millis(3 * 3600 * 1000);
        /// The directory of hints. Without a value: `hints` in the data directory. Hints use at
        /// most a tenth of its disk.
        hints_directory: Option<PathBuf> = None;
        /// The maximum replay rate of hints of each shard, per second. 0: no limit.
        hinted_handoff_throttle_in_kb ["hinted_handoff_throttle"]: KiB = Size(8 << 20);
        /// How long a change of the schema or the topology may take until a majority of nodes has
        /// agreed.
        group0_raft_op_timeout_in_ms ("100ms" to "365d"): Millis = millis(60_000);
    }
    section "Guardrails" {
        /// A keyspace with a lower replication factor in a datacenter (except 0) causes a warning
        /// to the client. -1: off.
        minimum_replication_factor_warn_threshold: Threshold = Threshold(Some(3));
        /// A keyspace with a lower replication factor in a datacenter (except 0) is refused. -1:
        /// off.
        minimum_replication_factor_fail_threshold: Threshold = Threshold(None);
        /// A keyspace with a higher replication factor in a datacenter causes a warning to the
        /// client. -1: off.
        maximum_replication_factor_warn_threshold: Threshold = Threshold(None);
        /// A keyspace with a higher replication factor in a datacenter is refused. -1: off.
        maximum_replication_factor_fail_threshold: Threshold = Threshold(None);
        /// A keyspace with one of these replication strategies causes a warning to the client.
        replication_strategy_warn_list: List<Strategy> = List(vec![Strategy("SimpleStrategy".to_owned())]);
        /// A keyspace with one of these replication strategies is refused.
        replication_strategy_fail_list: List<Strategy> = List(Vec::new());
        /// A write at one of these consistency levels causes a warning to the client.
        write_consistency_levels_warned: List<Consistency> = List(Vec::new());
        /// A write at one of these consistency levels is refused.
        write_consistency_levels_disallowed: List<Consistency> = List(Vec::new());
        /// The maximum number of windows within the default TTL of a table with
        /// TimeWindowCompactionStrategy. 0: no limit.
        twcs_max_window_count: u64 = 50;
        /// Whether a table with TimeWindowCompactionStrategy must have a default TTL: `true`,
        /// `false`, or `warn`.
        restrict_twcs_without_default_ttl: Restriction = Restriction::Warn;
        /// A statement is refused if the definitions of all keyspaces, tables and types would be
        /// larger than this together. Without a value: 1/32 of `memory`, from 4 MiB to 64 MiB.
        schema_size_fail_threshold_in_mb ["schema_size_fail_threshold"]
            ("1MiB" to ""): Option<MiB> = None;
    }
    section "Security" {
        /// The authenticator: which clients may connect.
        authenticator: Authenticator = Authenticator::AllowAll;
        /// The authorizer: what clients may do.
        authorizer: Authorizer = Authorizer::AllowAll;
        /// TLS for clients: a map of `enabled`, `certificate`, `keyfile`, `require_client_auth` and
        /// `truststore`. All files are PEM. `certificate` includes the intermediate certificates.
        /// `truststore` has the root certificates for the clients' certificates, which are required
        /// then. Changed files are detected within seconds and used for new connections. On the
        /// command line: `enabled=true,certificate=FILE,keyfile=FILE`. Other options are refused,
        /// except options of Cassandra and ScyllaDB, which cause a warning.
        client_encryption_options: ClientEncryption = ClientEncryption::default();
        /// TLS between nodes: a map of `internode_encryption` (`none`, `rack`: between racks, `dc`:
        /// between datacenters, `all`), `certificate`, `keyfile`, `truststore` and
        /// `require_client_auth`. `truststore` is PEM, with the root certificates for the other
        /// nodes' certificates. Without `require_client_auth`, connecting nodes need no
        /// certificate, and any client of the port can impersonate a node. `storage_port` serves
        /// encrypted and unencrypted connections. Changed files are detected within seconds and
        /// used for new connections. Other options are refused, except options of Cassandra and
        /// ScyllaDB, which cause a warning.
        server_encryption_options: ServerEncryption = ServerEncryption::default();
    }
    section "Logging" {
        /// The log level: `error`, `warn`, `info`, `debug`, `trace`, or by module as in
        /// `info,server::connection=debug`.
        log_level ["default_log_level"]: String = "info".to_owned();
        /// The format of log lines: `auto` (text, with colours in a terminal), `text` (without
        /// colours), `json` (one object for each line).
        log_format: LogFormat = LogFormat::Auto;
    }
}

/// The key with this name (with underscores or dashes) or alias.
pub fn find(name: &str) -> Option<&'static Key> {
    let name = name.replace('-', "_");
    KEYS.iter().find(|key| key.name == name || key.aliases.contains(&name.as_str()))
}
