//! Every setting: its name, its default, and what it does.

use super::setting::{
    Authenticator, Authorizer, BadValue, Bytes, CommitlogSync, CpuSet, KiB, LogFormat, MiB, Micros, Millis, Raw,
    Setting, Size, Time,
};
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
    /// Its default as one would write it; empty for none.
    pub default: fn() -> String,
    /// Sets it.
    pub set: fn(&mut Config, &Raw) -> Result<(), BadValue>,
    /// Its value as one would write it.
    pub get: fn(&Config) -> String,
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

macro_rules! settings {
    ($( section $section:literal { $( $(#[doc = $doc:literal])+ $name:ident $([$($alias:literal),+])? : $ty:ty = $default:expr; )+ } )+) => {
        /// The configuration of a node.
        #[derive(Clone, Debug, PartialEq)]
        pub struct Config {
            $($( $(#[doc = $doc])+ pub $name: $ty, )+)+
        }

        impl Default for Config {
            fn default() -> Self {
                Config { $($( $name: $default, )+)+ }
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
                default: || { let default: $ty = $default; default.show() },
                set: |config, raw| {
                    config.$name = match <$ty as Setting>::read(raw)? {
                        Some(value) => value,
                        None => $default,
                    };
                    Ok(())
                },
                get: |config| config.$name.show(),
            }, )+)+
        ];
    };
}

const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

const fn millis(n: u64) -> Millis {
    Time(Duration::from_millis(n))
}

settings! {
    section "Identity" {
        /// The cluster's name. A data directory belongs to one cluster and is refused under another name.
        cluster_name: String = "Messina".to_owned();
        /// The datacenter this node is in.
        datacenter ["dc"]: String = "datacenter1".to_owned();
        /// The rack this node is in.
        rack: String = "rack1".to_owned();
    }
    section "Storage" {
        /// Where everything is kept: sstables, commitlog, metadata journal.
        data_dir ["workdir"]: PathBuf = PathBuf::from("./data");
        /// When a write is acknowledged: `periodic` once the kernel has it (kill -9 loses nothing, power loss at most the period),
        /// `batch` once the device has it, `group` the same after gathering writes for a window.
        commitlog_sync: CommitlogSync = CommitlogSync::Periodic;
        /// Time between two fsyncs of the log in periodic mode.
        commitlog_sync_period_in_ms ["commitlog_sync_period"]: Millis = millis(10_000);
        /// How long group mode gathers writes before it syncs.
        commitlog_sync_group_window_in_ms ["commitlog_sync_group_window"]: Millis = millis(1);
        /// Size of a log segment. A write of more than half of it is refused.
        commitlog_segment_size_in_mb ["commitlog_segment_size"]: MiB = Size(32 << 20);
        /// What the logs of all shards may take on disk. From three quarters on memtables are flushed to free segments. Without
        /// a value: 1 GiB per shard.
        commitlog_total_space_in_mb ["commitlog_total_space"]: Option<MiB> = None;
        /// Skip damaged or missing parts of the log at start instead of refusing to start. Loses data: a last resort.
        commitlog_ignore_corruption: bool = false;
        /// Whether DROP and TRUNCATE leave a snapshot behind.
        auto_snapshot: bool = true;
        /// What compaction of all shards may write per second; 0 for no limit.
        compaction_throughput_mb_per_sec ["compaction_throughput"]: MiB = Size(0);
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
        /// Whether clients are served at all.
        start_native_transport: bool = true;
        /// The port for CQL.
        native_transport_port: u16 = 9042;
        /// The port for CQL on which the client's own port, modulo the number of shards, chooses the shard; 0 for none.
        native_shard_aware_transport_port: u16 = 19042;
        /// The port for other nodes (nothing listens on it yet).
        storage_port: u16 = 7000;
        /// Where the admin REST interface listens. It has no authentication: keep it on loopback.
        api_address: IpAddr = LOOPBACK;
        /// The port of the admin REST interface; 0 for none.
        api_port: u16 = 10000;
        /// Where metrics are served.
        prometheus_address: IpAddr = LOOPBACK;
        /// The port of `/metrics` for Prometheus; 0 for none.
        prometheus_port: u16 = 9180;
    }
    section "Machine" {
        /// How many shards to run. Without a value: one for each CPU of `cpuset` or of the process's affinity mask.
        shards ["smp"]: Option<u16> = None;
        /// The CPUs to use, such as `0-3,6`. Shards are pinned to them in order.
        cpuset: Option<CpuSet> = None;
        /// Memory for all shards together. Without a value: half of the machine's (or of the control group's limit).
        memory: Option<Bytes> = None;
        /// The CPUs are shared with other programs: no pinning, no polling.
        overprovisioned: bool = false;
        /// How long a shard that has nothing to do polls its mailbox before it sleeps. Answers of other shards come faster, the
        /// CPU never idles.
        idle_poll_time_us: Micros = Time(Duration::ZERO);
        /// A task that holds its shard for longer is logged.
        blocked_reactor_notify_ms: Millis = millis(25);
    }
    section "Requests" {
        /// How long a read may take.
        read_request_timeout_in_ms ["read_request_timeout"]: Millis = millis(5_000);
        /// How long a page of a range scan may take.
        range_request_timeout_in_ms ["range_request_timeout"]: Millis = millis(10_000);
        /// How long a write may take.
        write_request_timeout_in_ms ["write_request_timeout"]: Millis = millis(2_000);
        /// How long a TRUNCATE may take.
        truncate_request_timeout_in_ms ["truncate_request_timeout"]: Millis = millis(60_000);
        /// A page ends when its rows have this many bytes.
        query_page_size_in_bytes: Bytes = Size(1 << 20);
        /// A page ends when this many tombstones were read for it.
        query_tombstone_page_limit: u64 = 10_000;
        /// The most that an unpaged answer may take in memory.
        max_memory_for_unlimited_query_hard_limit: Bytes = Size(100 << 20);
        /// A read that meets this many tombstones is logged.
        tombstone_warn_threshold: u64 = 1_000;
        /// A batch larger than this brings its client a warning.
        batch_size_warn_threshold_in_kb ["batch_size_warn_threshold"]: KiB = Size(128 << 10);
        /// A batch larger than this is refused.
        batch_size_fail_threshold_in_kb ["batch_size_fail_threshold"]: KiB = Size(1024 << 10);
        /// Refuse timestamps of clients that are more than three days ahead.
        restrict_future_timestamp: bool = true;
        /// The longest request frame. A tenth of the shard's memory, if that is less.
        native_transport_max_frame_size_in_mb ["native_transport_max_frame_size"]: MiB = Size(256 << 20);
        /// Requests of a shard that may wait for something at once; more are refused as overload. Without a value: no limit but memory.
        max_concurrent_requests_per_shard: Option<u64> = None;
    }
    section "Security" {
        /// Who may connect.
        authenticator: Authenticator = Authenticator::AllowAll;
        /// Who may do what.
        authorizer: Authorizer = Authorizer::AllowAll;
    }
    section "Logging" {
        /// What is logged: `error`, `warn`, `info`, `debug`, `trace`, or per module as in `info,server::connection=debug`.
        log_level ["default_log_level"]: String = "info".to_owned();
        /// How log lines look: `auto` is text, with colours in a terminal.
        log_format: LogFormat = LogFormat::Auto;
    }
}

/// The key of this name, with underscores or dashes, or an alias.
pub fn find(name: &str) -> Option<&'static Key> {
    let name = name.replace('-', "_");
    KEYS.iter().find(|key| key.name == name || key.aliases.contains(&name.as_str()))
}
