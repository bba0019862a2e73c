//! Keys of scylla.yaml and cassandra.yaml that have no effect here. An existing file can be used:
//! each such key causes one warning, with the reason of its group.

/// Keys without effect, grouped by the reason that the warning gives.
pub const WITHOUT_EFFECT: &[(&str, &[&str])] = &[
    (
        "it does not apply here, or is not supported yet",
        &[
            "num_tokens",
            "initial_token",
            "endpoint_snitch",
            "partitioner",
            "ssl_storage_port",
            "phi_convict_threshold",
            "view_hints_directory",
            "listen_interface",
            "rpc_interface",
            "auto_bootstrap",
            "enable_repair_based_node_ops",
            "ring_delay_ms",
            "inter_dc_tcp_nodelay",
            "stream_throughput_outbound_megabits_per_sec",
            "tablets_mode_for_new_keyspaces",
            "rf_rack_valid_keyspaces",
            "consistent_cluster_management",
            "force_schema_commit_log",
            "prefer_local",
            "replace_address",
            "replace_address_first_boot",
            "listen_on_broadcast_address",
        ],
    ),
    (
        "authentication is not supported yet",
        &[
            "permissions_validity_in_ms",
            "permissions_validity",
            "permissions_update_interval_in_ms",
            "permissions_cache_max_entries",
            "roles_validity",
            "credentials_validity",
            "role_manager",
            "auth_superuser_name",
            "auth_superuser_salted_password",
            "maintenance_socket",
            "audit",
            "network_authorizer",
            "cidr_authorizer",
            "internode_authenticator",
            "alternator_encryption_options",
            "transparent_data_encryption_options",
        ],
    ),
    (
        "all files of a node are in `data_dir`. Without `data_dir`, a start with one of these keys is refused",
        &["commitlog_directory", "data_file_directories", "schema_commitlog_directory"],
    ),
    (
        "the mechanism that it tunes works differently here, or does not exist",
        &[
            "max_hints_delivery_threads",
            "hints_flush_period_in_ms",
            "max_hints_file_size_in_mb",
            "saved_caches_directory",
            "cdc_raw_directory",
            "disk_failure_policy",
            "commit_failure_policy",
            "memtable_allocation_type",
            "memtable_flush_writers",
            "concurrent_reads",
            "concurrent_writes",
            "concurrent_counter_writes",
            "concurrent_compactors",
            "sstable_format",
            "sstable_preemptive_open_interval_in_mb",
            "row_cache_size_in_mb",
            "row_cache_size",
            "key_cache_size_in_mb",
            "key_cache_size",
            "key_cache_save_period",
            "counter_cache_size_in_mb",
            "counter_cache_size",
            "column_index_size_in_kb",
            "column_index_size",
            "trickle_fsync",
            "incremental_backups",
            "snapshot_before_compaction",
            "developer_mode",
            "experimental",
            "experimental_features",
            "api_ui_dir",
            "api_doc_dir",
            "prometheus_prefix",
            "broadcast_interface",
            "dynamic_snitch_update_interval_in_ms",
            "request_timeout_in_ms",
            "request_timeout",
            "cas_contention_timeout_in_ms",
            "cas_contention_timeout",
            "tombstone_failure_threshold",
            "rpc_keepalive",
            "rpc_port",
            "start_rpc",
            "alternator_port",
            "alternator_address",
            "alternator_write_isolation",
            "redis_port",
            "hugepages",
            "lock_memory",
            "live_updatable_config_params_changeable_via_cql",
            "strict_is_not_null_in_views",
            "enable_materialized_views",
            "murmur3_partitioner_ignore_msb_bits",
            "native_transport_max_concurrent_connections",
            "native_transport_max_threads",
            "storage_compatibility_mode",
            "io_properties_file",
            "io_setup",
            "max_io_requests",
            "num_io_queues",
            "sstable_summary_ratio",
            "enable_cache",
            "enable_commitlog",
            "cache_index_pages",
            "volatile_system_keyspace_for_testing",
            "defragment_memory_on_idle",
            "user_defined_function_time_limit_ms",
            "enable_user_defined_functions",
            "batchlog_replay_throttle_in_kb",
        ],
    ),
];

/// Why the key `name` has no effect, if it is such a key.
pub fn reason(name: &str) -> Option<&'static str> {
    WITHOUT_EFFECT.iter().find(|(_, names)| names.contains(&name)).map(|(reason, _)| *reason)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::keys;

    #[test]
    fn no_key_is_both() {
        for (_, names) in WITHOUT_EFFECT {
            for name in *names {
                assert!(keys::find(name).is_none(), "{name}");
            }
        }
    }
}
