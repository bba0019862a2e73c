//! Every setting: its name, its default, and what it does.

use super::encryption::ClientEncryption;
use super::guardrail::{List, Strategy, Threshold};
use super::handoff::Handoff;
use super::hosts::HostName;
use super::internode::{InternodeCompression, ServerEncryption};
use super::seeds::Seeds;
use super::setting::{
    Authenticator, Authorizer, BadValue, Bytes, CommitlogSync, CpuSet, KiB, LogFormat, MiB, Micros, Millis, Range, Raw,
    Seconds, Setting, Size, Time, within,
};
use super::source::Sources;
use coordinator::hints::KeptFor;
use cql::api::Consistency;
use cql::guardrails::Restriction;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::time::Duration;

/// A key of the configuration.
pub struct Key {
    /// Its name in the file; on the command line with dashes for underscores.
    pub name: &'static str,
    /// Other names for it.
    pub aliases: &'static [&'static str],
    /// The heading it stands under.
    pub section: &'static str,
    /// What it does.
    pub doc: &'static [&'static str],
    /// What a value is.
    pub wanted: &'static str,
    /// The values that are possible, where not all are.
    pub range: Option<Range>,
    /// Its default as one would write it; empty for none.
    pub default: fn() -> String,
    /// Sets it.
    pub set: fn(&mut Config, &Raw) -> Result<(), BadValue>,
    /// Its value as one would write it.
    pub get: fn(&Config) -> String,
    /// What `system.config` calls its type.
    pub kind: &'static str,
    /// Its value as `system.config` has it: JSON.
    pub json: fn(&Config) -> String,
}

impl Key {
    /// Whether the value is true or false: on the command line it may be left out.
    pub fn is_switch(&self) -> bool {
        self.wanted == <bool as Setting>::WANTED
    }

    /// What it does, as one text.
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
            /// Which of them were set, and where.
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
        /// The cluster's name. A data directory belongs to one cluster and is refused under another name.
        cluster_name: String = "Messina".to_owned();
        /// The datacenter this node is in. A node that has joined others keeps it.
        datacenter ["dc"]: String = "datacenter1".to_owned();
        /// The rack this node is in. A node that has joined others keeps it.
        rack: String = "rack1".to_owned();
    }
    section "Storage" {
        /// Where everything is kept: sstables, commitlog, metadata.
        data_dir ["workdir"]: PathBuf = PathBuf::from("./data");
        /// When a write is acknowledged: `periodic` once the kernel has it (kill -9 loses nothing, power loss at most the period),
        /// `batch` once the device has it, `group` the same after gathering writes for a window.
        commitlog_sync: CommitlogSync = CommitlogSync::Periodic;
        /// Time between two fsyncs of the log in periodic mode.
        commitlog_sync_period_in_ms ["commitlog_sync_period"] ("1ms" to "1h"): Millis = millis(10_000);
        /// How long group mode gathers writes before it syncs.
        commitlog_sync_group_window_in_ms ["commitlog_sync_group_window"] ("0ms" to "10s"): Millis = millis(1);
        /// Size of a log segment. A write of more than half of it is refused. Segments are smaller
        /// if two would have more bytes than the memory of a shard, or five more than the shard's
        /// part of `commitlog_total_space_in_mb`; the log of the node says so.
        commitlog_segment_size_in_mb ["commitlog_segment_size"] ("1MiB" to "1GiB"): MiB = Size(32 << 20);
        /// What the logs of all shards may take on disk. From three quarters on memtables are
        /// flushed to free segments. Without a value: 1 GiB per shard. Each shard takes at least
        /// five segments; a smaller value brings a warning.
        commitlog_total_space_in_mb ["commitlog_total_space"]: Option<MiB> = None;
        /// Skip damaged or missing parts of the log at start instead of refusing to start. Loses data: a last resort.
        commitlog_ignore_corruption: bool = false;
        /// For one start: go on without files that were in the data directory when the node last ran and are missing or damaged now.
        /// Each is named in the log with what it held. Loses data: a last resort. Implies `commitlog_ignore_corruption`.
        accept_loss: bool = false;
        /// Disk space that a running node holds back (the file `messina.reserve`), so that on a full disk a node can start and serve
        /// reads, and carry out changes of the metadata; 0 for none.
        disk_reserve_in_mb ["disk_reserve"] ("" to "16GiB"): MiB = Size(16 << 20);
        /// Whether DROP and TRUNCATE leave a snapshot behind.
        auto_snapshot: bool = true;
        /// What compaction of all shards may write per second; 0 for no limit.
        compaction_throughput_mb_per_sec ["compaction_throughput"]: MiB = Size(0);
        /// A larger partition is logged when its sstable is written, and listed in `system.large_partitions`.
        compaction_large_partition_warning_threshold_mb: MiB = Size(1000 << 20);
        /// A partition of more rows is listed there as well.
        compaction_rows_count_warning_threshold: u64 = 100_000;
        /// A larger row is logged, and listed in `system.large_rows`.
        compaction_large_row_warning_threshold_mb: MiB = Size(10 << 20);
        /// A larger cell or collection is logged, and listed in `system.large_cells`.
        compaction_large_cell_warning_threshold_mb: MiB = Size(1 << 20);
        /// A collection of more elements is listed there as well.
        compaction_collection_elements_count_warning_threshold: u64 = 10_000;
        /// How many partitions, rows and cells are listed for an sstable by each measure, the largest first.
        compaction_large_data_records_per_sstable: u64 = 10;
        /// A write to a partition that is larger in an sstable of a replica is refused, in tables with
        /// `large_data_guardrails_enabled = true`; 0: no write is. From `compaction_large_partition_warning_threshold_mb` on a
        /// write brings a warning.
        large_partition_fail_threshold_mb: MiB = Size(2000 << 20);
        /// The same for the rows of a partition. The warning: `compaction_rows_count_warning_threshold`.
        rows_count_fail_threshold: u64 = 200_000;
        /// A write of a larger cell to a table with `large_data_guardrails_enabled = true` is refused; 0: no write is. From
        /// `compaction_large_cell_warning_threshold_mb` on a write brings a warning.
        large_cell_fail_threshold_mb: MiB = Size(2 << 20);
        /// The same for a row: of one write, or of a row that has grown. The warning:
        /// `compaction_large_row_warning_threshold_mb`.
        large_row_fail_threshold_mb: MiB = Size(20 << 20);
        /// The same for the elements of a collection: of one write, or of a collection that has grown. The warning:
        /// `compaction_collection_elements_count_warning_threshold`.
        large_collection_elements_fail_threshold: u64 = 20_000;
        /// Whether clients get the warnings of large data. The log always gets them.
        large_data_cql_warnings: bool = true;
        /// The most files of sstables that all shards together keep open: they are opened when they are read, two for each sstable. 0: half
        /// of what the process may have open (`RLIMIT_NOFILE`).
        sstable_open_files_limit: u64 = 0;
    }
    section "Addresses and ports" {
        /// Where clients connect.
        rpc_address: IpAddr = LOOPBACK;
        /// Where clients are told to connect, if not at `rpc_address`. Needed when that is 0.0.0.0.
        broadcast_rpc_address: Option<IpAddr> = None;
        /// Where other nodes connect.
        listen_address: IpAddr = LOOPBACK;
        /// Where other nodes are told to connect, if not at `listen_address`.
        broadcast_address: Option<IpAddr> = None;
        /// Addresses or host names of nodes that this one asks for the cluster when it starts; the first node of a cluster names itself. With none
        /// the node stays alone and opens no port for others. A node that is new waits until all names have addresses; one that is in a cluster
        /// needs none. `seed_provider` is understood too.
        seeds: Seeds = Seeds::default();
        /// Whether clients are served at all.
        start_native_transport: bool = true;
        /// The port for CQL; 0 for none.
        native_transport_port: u16 = 9042;
        /// The port for CQL on which the client's own port, modulo the number of shards, chooses the shard; 0 for none.
        native_shard_aware_transport_port: u16 = 19042;
        /// The port for CQL over TLS, where `client_encryption_options` enables it; 0 for none. If it is `native_transport_port`, that
        /// one is encrypted; else clients without TLS are served on that one unless it is 0.
        native_transport_port_ssl: u16 = 9142;
        /// The same for the port on which clients choose their shard.
        native_shard_aware_transport_port_ssl: u16 = 19142;
        /// The port for other nodes.
        storage_port: u16 = 7000;
        /// Between which nodes what is sent is compressed with lz4, where that makes it shorter: `none`, `dc` (between datacenters), `all`.
        internode_compression: InternodeCompression = InternodeCompression::default();
        /// Where the admin REST interface listens. It has no authentication: keep it on loopback.
        api_address: IpAddr = LOOPBACK;
        /// The port of the admin REST interface; 0 for none.
        api_port: u16 = 10000;
        /// Where metrics are served.
        prometheus_address: IpAddr = LOOPBACK;
        /// The port of `/metrics` for Prometheus; 0 for none.
        prometheus_port: u16 = 9180;
        /// Names by which HTTP clients may call this node in the header `Host`, beside `localhost` and the address that they connect to;
        /// `*` for any. The admin REST interface refuses other names, so that web pages cannot reach it. The port for metrics does so too
        /// if it is on loopback, or if names are set here.
        http_allowed_hosts: List<HostName> = List(Vec::new());
    }
    section "Machine" {
        /// How many shards to run. Without a value: one for each CPU of `cpuset` or of the process's affinity mask.
        /// In a cluster of several nodes the number can only grow: with fewer, the node does not
        /// start.
        shards ["smp"] ("1" to "1024"): Option<u16> = None;
        /// The CPUs to use, such as `0-3,6`. Shards are pinned to them in order. The node does not
        /// start if it cannot use one of them.
        cpuset: Option<CpuSet> = None;
        /// Memory for all shards together. Without a value: half of the machine's (or of the control group's limit). 24 MiB of it, and 64 for
        /// each shard (at most four tenths), are set aside for what is not counted piece by piece; the rest is the shards' budgets.
        /// A node with less than 16 MiB for each shard does not start.
        memory ("64MiB" to ""): Option<Bytes> = None;
        /// The CPUs are shared with other programs: no pinning, no polling.
        overprovisioned: bool = false;
        /// How long a shard that has nothing to do polls its mailbox before it sleeps. Answers of other shards come faster, the
        /// CPU never idles.
        idle_poll_time_us ("0us" to "1s"): Micros = Time(Duration::ZERO);
        /// A target for the 99th percentile of statements' latency in this node. While it is exceeded, compactions and other maintenance
        /// get less of the shard's time and of its disk, down to a twentieth of what they ask for. 0: no target.
        foreground_p99_target_in_ms ["foreground_p99_target"] ("0ms" to "1h"): Millis = millis(0);
        /// How long a stop may take in all. A quarter of it is for the requests of clients that are under way. What has not ended
        /// then is cut off and logged; the commitlog has all acknowledged writes.
        shutdown_timeout_in_ms ["shutdown_timeout"] ("1s" to "1d"): Millis = millis(60_000);
        /// A task that holds its shard for longer is logged.
        blocked_reactor_notify_ms ("1ms" to ""): Millis = millis(25);
    }
    section "Requests" {
        /// How long a read may take.
        read_request_timeout_in_ms ["read_request_timeout"] ("10ms" to "365d"): Millis = millis(5_000);
        /// How long a page of a range scan may take.
        range_request_timeout_in_ms ["range_request_timeout"] ("10ms" to "365d"): Millis = millis(10_000);
        /// How long a write may take.
        write_request_timeout_in_ms ["write_request_timeout"] ("10ms" to "365d"): Millis = millis(2_000);
        /// How long a write to counters may take.
        counter_write_request_timeout_in_ms ["counter_write_request_timeout"] ("10ms" to "365d"): Millis = millis(5_000);
        /// How long a TRUNCATE may take.
        truncate_request_timeout_in_ms ["truncate_request_timeout"] ("10ms" to "365d"): Millis = millis(60_000);
        /// A page ends when its rows have this many bytes.
        query_page_size_in_bytes ("1B" to ""): Bytes = Size(1 << 20);
        /// How many tombstones a page may read. If it is set, in the file, on the command line or live in `system.config`, a page
        /// ends there, even without a row. If it is not, a replica pauses there and the coordinator goes on by itself until
        /// there is a row or the budget below is spent: many drivers lose rows when they get an empty page.
        query_tombstone_page_limit ("1" to ""): u64 = 10_000;
        /// How long the coordinator goes on past tombstones, and past rows that filters reject, to find the first row of a page
        /// before it answers with an empty one; half of the request's time, if that is less.
        query_empty_page_time_budget_in_ms ["query_empty_page_time_budget"]: Millis = millis(2_000);
        /// How many bytes of keys and rows it may look at for that.
        query_empty_page_memory_budget: Bytes = Size(256 << 20);
        /// How long a paging state can be used.
        paging_state_expiry_in_s ["paging_state_expiry"] ("1s" to ""): Seconds = seconds(24 * 3600);
        /// How long a key authenticates new paging states. Keys go when no state that they authenticated can be used any more.
        paging_key_rotation_period_in_s ["paging_key_rotation_period"] ("1s" to ""): Seconds = seconds(24 * 3600);
        /// The most that an unpaged answer may take in memory.
        max_memory_for_unlimited_query_hard_limit ("64KiB" to ""): Bytes = Size(100 << 20);
        /// A read that meets this many tombstones is logged.
        tombstone_warn_threshold: u64 = 1_000;
        /// Whether the reader of a page is kept for the next page of its query, which then goes on without opening anything again.
        /// The answers are the same without, only slower.
        querier_cache: bool = true;
        /// How long such a reader waits for its next page.
        querier_cache_ttl_in_ms ["querier_cache_ttl"]: Millis = millis(10_000);
        /// How much of a shard's memory such readers may hold, in percent.
        querier_cache_memory_percent ("0" to "100"): u64 = 4;
        /// How many reads of clients a shard runs at once; others wait. Readers that are kept for their next page count, and make
        /// room for reads that would have to wait.
        reader_concurrency_semaphore_count_limit ("1" to ""): u64 = 100;
        /// The same for repair, streaming and other maintenance.
        maintenance_reader_concurrency_semaphore_count_limit ("1" to ""): u64 = 10;
        /// A batch larger than this brings its client a warning.
        batch_size_warn_threshold_in_kb ["batch_size_warn_threshold"]: KiB = Size(128 << 10);
        /// A batch larger than this is refused.
        batch_size_fail_threshold_in_kb ["batch_size_fail_threshold"] ("1KiB" to ""): KiB = Size(1024 << 10);
        /// Refuse timestamps of clients that are more than three days ahead.
        restrict_future_timestamp: bool = true;
        /// Bind markers of one name in a statement are one variable, as in ScyllaDB; else each is its own, as in Cassandra.
        cql_duplicate_bind_variable_names_refer_to_same_variable: bool = true;
        /// The variable of `c IN ?` is called `IN(c)`, as in ScyllaDB; else `in(c)`, as in Cassandra.
        cql_in_bind_variable_name_uses_uppercase_operator: bool = true;
        /// The longest request frame. A tenth of the shard's memory, if that is less.
        native_transport_max_frame_size_in_mb ["native_transport_max_frame_size"] ("1MiB" to "2047MiB"): MiB = Size(256 << 20);
        /// A client that takes nothing of its answers for this long is dropped; of more than 1 MiB it must take 1 MiB. Reads of large rows
        /// wait for the memory of answers that are not read.
        native_transport_unread_timeout_in_ms ["native_transport_unread_timeout"] ("1s" to "1d"): Millis = millis(30_000);
        /// Requests of a shard that may wait for something at once; more are refused as overload. Without a value: no limit but memory.
        max_concurrent_requests_per_shard ("1" to ""): Option<u64> = None;
    }
    section "Nodes that are down" {
        /// Whether what a replica misses is kept for it, and delivered when it answers again: `true`, `false`, or the datacenters of
        /// the replicas for which it is, separated by commas. Words that are nearly `true` or `false` are refused; a
        /// datacenter of such a name is written in brackets.
        hinted_handoff_enabled: Handoff = Handoff(KeptFor::All);
        /// Nothing more is kept for a node that has been down for longer: it must be repaired.
        max_hint_window_in_ms ["max_hint_window"]: Millis = millis(3 * 3600 * 1000);
        /// Where it is kept. Without a value: `hints` in the data directory. At most a tenth of its disk is used.
        hints_directory: Option<PathBuf> = None;
        /// How fast each shard delivers what it has kept, per second; 0 for no limit.
        hinted_handoff_throttle_in_kb ["hinted_handoff_throttle"]: KiB = Size(8 << 20);
        /// How long a change of the schema or of the cluster may take until a majority of nodes has agreed.
        group0_raft_op_timeout_in_ms ("100ms" to "365d"): Millis = millis(60_000);
    }
    section "Guardrails" {
        /// A keyspace with a lower replication factor in a datacenter (0 excepted) brings its client a warning; -1: none does.
        minimum_replication_factor_warn_threshold: Threshold = Threshold(Some(3));
        /// A keyspace with a lower replication factor in a datacenter (0 excepted) is refused; -1: none is.
        minimum_replication_factor_fail_threshold: Threshold = Threshold(None);
        /// A keyspace with a higher replication factor in a datacenter brings its client a warning; -1: none does.
        maximum_replication_factor_warn_threshold: Threshold = Threshold(None);
        /// A keyspace with a higher replication factor in a datacenter is refused; -1: none is.
        maximum_replication_factor_fail_threshold: Threshold = Threshold(None);
        /// A keyspace with one of these replication strategies brings its client a warning.
        replication_strategy_warn_list: List<Strategy> = List(vec![Strategy("SimpleStrategy".to_owned())]);
        /// A keyspace with one of these replication strategies is refused.
        replication_strategy_fail_list: List<Strategy> = List(Vec::new());
        /// A write at one of these consistency levels brings its client a warning.
        write_consistency_levels_warned: List<Consistency> = List(Vec::new());
        /// A write at one of these consistency levels is refused.
        write_consistency_levels_disallowed: List<Consistency> = List(Vec::new());
        /// The most windows that the default TTL of a table with TimeWindowCompactionStrategy may span; 0: as many as there are.
        twcs_max_window_count: u64 = 50;
        /// Whether a table with TimeWindowCompactionStrategy needs a default TTL: `true`, `false`, or `warn`.
        restrict_twcs_without_default_ttl: Restriction = Restriction::Warn;
        /// A statement that makes the definitions of all keyspaces, tables and types together
        /// larger is refused. Without a value: a 32nd of `memory`, from 4 MiB to 64 MiB.
        schema_size_fail_threshold_in_mb ["schema_size_fail_threshold"]
            ("1MiB" to ""): Option<MiB> = None;
    }
    section "Security" {
        /// Who may connect.
        authenticator: Authenticator = Authenticator::AllowAll;
        /// Who may do what.
        authorizer: Authorizer = Authorizer::AllowAll;
        /// TLS for clients: a map of `enabled`, `certificate` and `keyfile` (PEM; the certificate
        /// with those between it and the root), `require_client_auth` and `truststore` (the roots
        /// of the certificates that clients must show then). Changed files are noticed within
        /// seconds and used for new connections. On the command line:
        /// `enabled=true,certificate=FILE,keyfile=FILE`. Other options are refused, except those of
        /// Cassandra and ScyllaDB, which bring a warning.
        client_encryption_options: ClientEncryption = ClientEncryption::default();
        /// TLS between nodes: a map of `internode_encryption` (`none`, `rack`: between racks, `dc`:
        /// between datacenters, `all`), `certificate`, `keyfile`, `truststore` (PEM; the roots of
        /// the other nodes' certificates) and `require_client_auth`: without it nodes that connect
        /// need not show a certificate, and whoever reaches the port can pass for a node.
        /// `storage_port` serves encrypted and other connections. Changed files are noticed within
        /// seconds and used for new connections. Other options are refused, except those of
        /// Cassandra and ScyllaDB, which bring a warning.
        server_encryption_options: ServerEncryption = ServerEncryption::default();
    }
    section "Logging" {
        /// What is logged: `error`, `warn`, `info`, `debug`, `trace`, or per module as in `info,server::connection=debug`.
        log_level ["default_log_level"]: String = "info".to_owned();
        /// How log lines look: `auto` is text, with colours in a terminal, `text` is without colours, `json` is one object a line.
        log_format: LogFormat = LogFormat::Auto;
    }
}

/// The key of this name, with underscores or dashes, or an alias.
pub fn find(name: &str) -> Option<&'static Key> {
    let name = name.replace('-', "_");
    KEYS.iter().find(|key| key.name == name || key.aliases.contains(&name.as_str()))
}
