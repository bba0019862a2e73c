//! The configuration of a running node, as `system.config` shows it, and changes of live settings.
//!
//! Every shard has its own copy, which the query processor uses. A change is applied on all shards
//! before the statement is answered. It is lost at a restart or SIGHUP, as both read the
//! configuration again.

use super::handoff::Handoff;
use super::keys::{Config, KEYS, Key, find};
use super::setting::Raw;
use super::source::{DEFAULT, Source};
use super::{file, fixed};
use crate::stack::{
    hints_settings, hot_settings, large_data_thresholds, large_limits, page_limits, query_processor_config,
    stream_settings,
};
use cluster::MetadataService;
use coordinator::Coordinator;
use cql::Processor;
use cql::system::{Setting, SettingRefused, Settings};
use engine::Engine;
use replica::Replica;
use rt::ShardId;
use rt::shard::PerShard;
use std::cell::RefCell;
use std::rc::Rc;
use streaming::StreamService;

/// The services that a change of a setting reaches, by a handle for each.
#[derive(Clone, Copy, Debug, Default)]
pub struct LiveShards {
    /// The storage engine.
    pub engine: PerShard<Engine>,
    /// The metadata.
    pub metadata: PerShard<MetadataService>,
    /// Reads and writes of the shard.
    pub replica: PerShard<Replica>,
    /// The requests to replicas.
    pub coordinator: PerShard<Coordinator>,
    /// The query processor.
    pub processor: PerShard<Processor>,
    /// The streaming of tablets.
    pub streams: PerShard<StreamService>,
}

/// Applies a changed value to the services of this shard.
type ApplySetting = fn(LiveShards, &Config);

/// The settings that can be changed while the node runs.
const LIVE: &[(&str, ApplySetting)] = &[
    ("query_tombstone_page_limit", apply_page_limits),
    ("query_page_size_in_bytes", apply_page_limits),
    ("query_empty_page_time_budget_in_ms", apply_page_limits),
    ("query_empty_page_memory_budget", apply_page_limits),
    ("read_request_timeout_in_ms", apply_to_query_processor),
    ("range_request_timeout_in_ms", apply_to_query_processor),
    ("write_request_timeout_in_ms", apply_to_query_processor),
    ("counter_write_request_timeout_in_ms", apply_to_query_processor),
    ("truncate_request_timeout_in_ms", apply_to_query_processor),
    ("max_memory_for_unlimited_query_hard_limit", apply_both),
    ("batch_size_warn_threshold_in_kb", apply_to_query_processor),
    ("batch_size_fail_threshold_in_kb", apply_to_query_processor),
    ("restrict_future_timestamp", apply_to_query_processor),
    ("cql_duplicate_bind_variable_names_refer_to_same_variable", apply_to_query_processor),
    ("cql_in_bind_variable_name_uses_uppercase_operator", apply_to_query_processor),
    ("minimum_replication_factor_warn_threshold", apply_to_query_processor),
    ("minimum_replication_factor_fail_threshold", apply_to_query_processor),
    ("maximum_replication_factor_warn_threshold", apply_to_query_processor),
    ("maximum_replication_factor_fail_threshold", apply_to_query_processor),
    ("replication_strategy_warn_list", apply_to_query_processor),
    ("replication_strategy_fail_list", apply_to_query_processor),
    ("write_consistency_levels_warned", apply_to_query_processor),
    ("write_consistency_levels_disallowed", apply_to_query_processor),
    ("twcs_max_window_count", apply_to_query_processor),
    ("restrict_twcs_without_default_ttl", apply_to_query_processor),
    ("schema_size_fail_threshold_in_mb", apply_to_query_processor),
    ("foreground_p99_target_in_ms", apply_governor),
    ("hot_partition_protection", apply_hot_partitions),
    ("hot_partition_wait_threshold_in_ms", apply_hot_partitions),
    ("hot_partitions_in_metrics", apply_hot_partitions),
    ("enable_file_stream", apply_streaming),
    ("stream_io_throughput_mb_per_sec", apply_streaming),
    ("hinted_handoff_enabled", apply_hints),
    ("max_hint_window_in_ms", apply_hints),
    ("hinted_handoff_throttle_in_kb", apply_hints),
    ("group0_raft_op_timeout_in_ms", apply_change_timeout),
    ("compaction_large_partition_warning_threshold_mb", apply_large_limits),
    ("compaction_large_row_warning_threshold_mb", apply_large_data),
    ("compaction_large_cell_warning_threshold_mb", apply_large_data),
    ("compaction_rows_count_warning_threshold", apply_large_limits),
    ("compaction_collection_elements_count_warning_threshold", apply_large_data),
    ("compaction_large_data_records_per_sstable", apply_large_limits),
    ("large_partition_fail_threshold_mb", apply_large_limits),
    ("rows_count_fail_threshold", apply_large_limits),
    ("large_cell_fail_threshold_mb", apply_to_query_processor),
    ("large_row_fail_threshold_mb", apply_large_data),
    ("large_collection_elements_fail_threshold", apply_large_data),
    ("large_data_cql_warnings", apply_to_query_processor),
];

fn apply_large_limits(shards: LiveShards, config: &Config) {
    shards.engine.get().set_large_limits(large_limits(config));
    shards.replica.get().set_large_data_thresholds(large_data_thresholds(config));
}

fn apply_large_data(shards: LiveShards, config: &Config) {
    apply_large_limits(shards, config);
    apply_to_query_processor(shards, config);
}

fn apply_hints(shards: LiveShards, config: &Config) {
    if let Some(hints) = shards.coordinator.get().hints() {
        hints.set(hints_settings(config));
    }
    if rt::shard::this() == ShardId(0) {
        let metadata = shards.metadata.get().current();
        Handoff::warn_of_unknown(&config.hinted_handoff_enabled.0, &metadata.topology.datacenters());
    }
}

fn apply_hot_partitions(shards: LiveShards, config: &Config) {
    shards.replica.get().set_hot_partitions(hot_settings(config));
}

fn apply_streaming(shards: LiveShards, config: &Config) {
    // A node without others may have none.
    if let Some(streams) = shards.streams.try_get() {
        streams.set(stream_settings(config));
    }
}

fn apply_governor(_: LiveShards, config: &Config) {
    set_governor(config);
}

/// Sets the latency target of statements on this shard.
pub(crate) fn set_governor(config: &Config) {
    rt::governor::set_target(Some(config.foreground_p99_target_in_ms.0));
}

fn apply_change_timeout(shards: LiveShards, config: &Config) {
    shards.metadata.get().set_change_timeout(config.group0_raft_op_timeout_in_ms.0);
}

fn apply_page_limits(shards: LiveShards, config: &Config) {
    shards.coordinator.get().set_page_limits(page_limits(config));
}

fn apply_to_query_processor(shards: LiveShards, config: &Config) {
    shards.processor.get().set_config(query_processor_config(config));
}

fn apply_both(shards: LiveShards, config: &Config) {
    apply_page_limits(shards, config);
    apply_to_query_processor(shards, config);
}

/// One shard's configuration.
#[derive(Debug)]
pub struct Live {
    config: RefCell<Config>,
    /// The services that changes are applied to.
    shards: LiveShards,
}

/// The names of settings that have another value in `new` than in `old`: either the settings that
/// can be changed while the node runs, or the others.
pub(crate) fn changed(old: &Config, new: &Config, live: bool) -> Vec<&'static str> {
    let keys = KEYS.iter().filter(|key| is_live(key) == live && (key.get)(old) != (key.get)(new));
    keys.map(|key| key.name).collect()
}

impl Live {
    /// The settings of this shard.
    pub fn new(config: Config, shards: LiveShards) -> Rc<Live> {
        Rc::new(Live { config: RefCell::new(config), shards })
    }

    /// Sets all settings that can be changed to their values in `new`. Returns the settings that
    /// differed.
    pub fn reload(&self, new: &Config) -> Vec<&'static str> {
        let mut config = self.config.borrow_mut();
        let changed = changed(&config, new, true);
        for (name, apply) in LIVE {
            let Some(key) = KEYS.iter().find(|key| key.name == *name) else { continue };
            match new.sources.of(name) {
                Some(source) => config.sources.set(key.name, source),
                None => config.sources.reset(key.name),
            }
            // A value that is shown is accepted back.
            if changed.contains(name) && (key.set)(&mut config, &Raw::of_text(&(key.json)(new))).is_ok() {
                apply(self.shards, &config);
            }
        }
        changed
    }
}

fn shown(key: &Key, config: &Config) -> Setting {
    Setting {
        name: key.name,
        source: config.sources.of(key.name).map_or(DEFAULT, Source::name),
        kind: key.kind,
        value: (key.json)(config),
    }
}

/// Whether the setting of this key can be changed while the node runs.
pub(super) fn is_live(key: &Key) -> bool {
    LIVE.iter().any(|(name, _)| *name == key.name)
}

fn unknown(name: &str) -> SettingRefused {
    SettingRefused::Unknown { meant: file::nearest(name, file::names()) }
}

impl Settings for Live {
    fn list(&self) -> Vec<Setting> {
        let config = self.config.borrow();
        KEYS.iter().map(|key| shown(key, &config)).chain(fixed::settings(&config)).collect()
    }

    fn set(&self, name: &str, value: &str) -> Result<(), SettingRefused> {
        let mut config = self.config.borrow_mut();
        let Some(key) = find(name) else {
            let fixed = fixed::settings(&config).iter().any(|setting| setting.name == name);
            return Err(if fixed { SettingRefused::NotLive } else { unknown(name) });
        };
        let (_, apply) = LIVE.iter().find(|(live, _)| *live == key.name).ok_or(SettingRefused::NotLive)?;
        (key.set)(&mut config, &Raw::of_text(value)).map_err(|why| SettingRefused::Wrong(why.to_string()))?;
        config.sources.set(key.name, Source::Cql);
        apply(self.shards, &config);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_live_name_is_a_setting() {
        for (name, _) in LIVE {
            assert!(KEYS.iter().any(|key| key.name == *name), "{name}");
        }
    }

    #[test]
    fn settings_show_name_source_type_and_value() {
        let mut config = Config::default();
        config.sources.set("cluster_name", Source::File);
        let list = Live::new(config, LiveShards::default()).list();
        let find = |name: &str| list.iter().find(|setting| setting.name == name).expect(name);
        let parts = |name| (find(name).source, find(name).kind, find(name).value.as_str());
        assert_eq!(parts("query_tombstone_page_limit"), ("default", "integer", "10000"));
        assert_eq!(parts("cluster_name"), ("yaml", "string", "\"Messina\""));
        assert_eq!(parts("read_request_timeout_in_ms"), ("default", "integer", "5000"));
        assert_eq!(parts("auto_snapshot"), ("default", "bool", "true"));
        assert_eq!(parts("native_transport_max_frame_size_in_mb"), ("default", "integer", "256"));
    }

    #[test]
    fn a_live_value_out_of_its_range_is_refused_and_changes_nothing() {
        let settings = Live::new(Config::default(), LiveShards::default());
        for (name, value, why) in [
            ("read_request_timeout_in_ms", "0", "from 10ms to 365d"),
            ("range_request_timeout_in_ms", "9ms", "from 10ms to 365d"),
            ("write_request_timeout_in_ms", "0", "from 10ms to 365d"),
            ("counter_write_request_timeout_in_ms", "0", "from 10ms to 365d"),
            ("truncate_request_timeout_in_ms", "1us", "from 10ms to 365d"),
            // Cassandra's spelling of the same setting.
            ("read_request_timeout", "0", "from 10ms to 365d"),
            ("group0_raft_op_timeout_in_ms", "0", "from 100ms to 365d"),
            ("query_tombstone_page_limit", "0", "at least 1"),
            ("query_page_size_in_bytes", "0", "at least 1B"),
            ("max_memory_for_unlimited_query_hard_limit", "0", "at least 64KiB"),
            ("batch_size_fail_threshold_in_kb", "0", "at least 1KiB"),
        ] {
            let before = settings.list().into_iter().find(|setting| setting.name == name).map(|setting| setting.value);
            match settings.set(name, value) {
                Err(SettingRefused::Wrong(text)) => assert!(text.ends_with(why), "{name}: {text}"),
                other => panic!("{name}: {other:?}"),
            }
            let after = settings.list().into_iter().find(|setting| setting.name == name).map(|setting| setting.value);
            assert_eq!(before, after, "{name}");
        }
    }

    #[test]
    fn shown_values_of_settings_are_accepted() {
        let mut config = Config::default();
        let not_default = [
            ("hinted_handoff_enabled", "dc1,dc2"),
            ("replication_strategy_fail_list", "SimpleStrategy,LocalStrategy"),
            ("write_consistency_levels_warned", "ANY,ONE"),
            ("restrict_twcs_without_default_ttl", "true"),
            ("http_allowed_hosts", "a.example,b.example"),
            ("seeds", "127.0.0.1,127.0.0.2"),
            ("cpuset", "0-2"),
            ("client_encryption_options", "enabled=true,certificate=/a,keyfile=/b"),
            ("internode_compression", "dc"),
        ];
        let check = |config: &Config| {
            for key in KEYS {
                let (mut again, shown) = (config.clone(), (key.json)(config));
                for text in [shown, (key.get)(config)] {
                    let set = (key.set)(&mut again, &Raw::of_text(&text));
                    assert!(
                        set.is_ok(),
                        "{}: {text}: {}",
                        key.name,
                        set.err().map(|why| why.to_string()).unwrap_or_default()
                    );
                    assert_eq!((key.json)(&again), (key.json)(config), "{}: {text}", key.name);
                }
            }
        };
        check(&config);
        for (name, value) in not_default {
            let key = KEYS.iter().find(|key| key.name == name).expect(name);
            assert!((key.set)(&mut config, &Raw::of_text(value)).is_ok(), "{name}");
        }
        check(&config);
    }

    #[test]
    fn only_what_is_live_is_changed() {
        let settings = Live::new(Config::default(), LiveShards::default());
        assert_eq!(settings.set("no_such_thing", "1"), Err(SettingRefused::Unknown { meant: None }));
        let near = settings.set("read_request_timeot_in_ms", "1").expect_err("misspelt");
        assert_eq!(near.to_string(), "no such option; did you mean read_request_timeout_in_ms?");
        for name in ["api_port", "num_tokens", "tablets_mode_for_new_keyspaces"] {
            assert_eq!(settings.set(name, "1"), Err(SettingRefused::NotLive), "{name}");
        }
        assert!(matches!(settings.set("query_tombstone_page_limit", "many"), Err(SettingRefused::Wrong(_))));
        let unchanged = settings.list().into_iter().find(|setting| setting.name == "query_tombstone_page_limit");
        assert_eq!(unchanged.map(|setting| (setting.source, setting.value)), Some(("default", "10000".to_owned())));
    }

    #[test]
    fn settings_that_are_read_again_are_named_with_their_kind() {
        let set = |config: &mut Config, name: &str, value: &str, source| {
            let key = KEYS.iter().find(|key| key.name == name).expect(name);
            assert!((key.set)(config, &Raw::of_text(value)).is_ok());
            config.sources.set(key.name, source);
        };
        let (mut old, mut new) = (Config::default(), Config::default());
        set(&mut old, "foreground_p99_target_in_ms", "7", Source::Cql);
        set(&mut new, "api_port", "1234", Source::File);
        assert_eq!(changed(&old, &new, true), ["foreground_p99_target_in_ms"]);
        assert_eq!(changed(&old, &new, false), ["api_port"]);
        rt::block_on(async {
            let live = Live::new(old, LiveShards::default());
            assert_eq!(live.reload(&new), ["foreground_p99_target_in_ms"]);
            assert!(live.reload(&new).is_empty());
            let list = live.list();
            let find = |name: &str| list.iter().find(|setting| setting.name == name).expect(name);
            assert_eq!(find("foreground_p99_target_in_ms").source, "default");
            assert_ne!(find("api_port").value, "1234");
        });
    }
}
