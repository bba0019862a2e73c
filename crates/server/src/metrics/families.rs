//! The names of all metrics.

use super::sample::Sample;
use super::text::{Family, Kind, Put, Value};
use crate::protocol::Opcode;
use cluster::observe::hot::HotView;
use coordinator::Consistency;
use cql::guardrails::Guardrail;
use replica::Class;
use rt::task::Group;

macro_rules! families {
    ($( $kind:ident $name:literal $help:literal $read:expr; )+) => {
        /// Every metric, grouped by layer.
        pub static FAMILIES: &[Family] = &[
            $( Family { name: $name, help: $help, kind: families!(@kind $kind), value: families!(@value $kind $read) }, )+
        ];
    };
    (@kind counter) => { Kind::Counter };
    (@kind gauge) => { Kind::Gauge };
    (@kind counters) => { Kind::Counter };
    (@kind gauges) => { Kind::Gauge };
    (@value counter $read:expr) => { Value::One(|sample| { let read: fn(&Sample) -> u64 = $read; read(sample) as f64 }) };
    (@value gauge $read:expr) => { Value::One(|sample| { let read: fn(&Sample) -> u64 = $read; read(sample) as f64 }) };
    (@kind histogram) => { Kind::Histogram };
    (@value histogram $read:expr) => { Value::Histogram($read) };
    (@value counters $read:expr) => { Value::Each($read) };
    (@value gauges $read:expr) => { Value::Each($read) };
}

families! {
    counter "scylla_transport_cql_connections" "Client connections ever accepted." |s| s.transport.connections;
    gauge "scylla_transport_current_connections" "Client connections now." |s| s.transport.open_connections;
    counter "scylla_transport_requests_served" "Requests received and answered." |s| s.transport.served;
    gauge "scylla_transport_requests_serving" "Requests that wait for something." |s| s.transport.serving;
    counter "scylla_transport_requests_waited" "Requests that could not be answered at once." |s| s.transport.waited;
    counter "scylla_transport_requests_shed" "Requests refused because too many were in flight, or because they had waited too long." |s| s.transport.shed;
    counter "scylla_transport_requests_blocked_overload" "Times that a connection was not read because the shard is overloaded." |s| s.transport.blocked_overload;
    counter "scylla_transport_requests_blocked_memory" "Times that a connection waited for request memory." |s| s.transport.memory_waits;
    gauge "scylla_transport_requests_memory_available" "Bytes left of the memory for requests." |s| s.transport.memory_available;
    gauge "scylla_transport_input_bytes" "Bytes of read buffers and incomplete requests that are not reserved." |s| s.transport.input_bytes;
    gauge "scylla_transport_unread_response_bytes" "Bytes of responses that clients have not read." |s| s.transport.unread_bytes;
    counter "scylla_transport_connections_dropped_unread" "Connections closed because their clients did not read." |s| s.transport.dropped_unread;
    counter "scylla_transport_connections_evicted_silent" "Connections without STARTUP that were closed to free connection slots." |s| s.transport.evicted_silent;
    counter "scylla_transport_rate_limit_errors_delayed" "Refusals by a per-partition rate limit that were answered late, because the client had ignored earlier ones." |s| s.transport.late_refusals;
    counter "scylla_transport_received_bytes" "Bytes received from clients." |s| s.transport.received;
    counter "scylla_transport_sent_bytes" "Bytes sent to clients." |s| s.transport.sent;
    counters "scylla_transport_cql_requests_count" "Requests by kind." |s, put| {
        for (opcode, count) in Opcode::REQUESTS.iter().zip(&s.transport.requests) {
            put(&format!("kind=\"{}\"", opcode.name()), *count as f64);
        }
    };
    counters "scylla_transport_cql_errors_total" "Errors sent to clients, by type." |s, put| {
        for (code, count) in &s.transport.errors {
            put(&format!("type=\"{}\"", error_type(*code)), *count as f64);
        }
    };

    counter "scylla_cql_reads" "SELECT statements executed." |s| s.statements.reads;
    counters "scylla_cql_inserts" "INSERT statements executed, also within batches." |s, put| conditional(put, s.statements.inserts);
    counters "scylla_cql_updates" "UPDATE statements executed, also within batches." |s, put| conditional(put, s.statements.updates);
    counters "scylla_cql_deletes" "DELETE statements executed, also within batches." |s, put| conditional(put, s.statements.deletes);
    counters "scylla_cql_batches" "Batches executed." |s, put| conditional(put, s.statements.batches);
    counters "scylla_cql_statements_in_batches" "Statements of executed batches." |s, put| conditional(put, s.statements.statements_in_batches);
    counter "scylla_cql_batches_pure_logged" "Logged batches executed." |s| s.statements.batches_pure_logged;
    counter "scylla_cql_batches_pure_unlogged" "Unlogged batches executed." |s| s.statements.batches_pure_unlogged;
    counter "scylla_cql_rows_read" "Rows returned by SELECT statements." |s| s.statements.rows_read;
    counter "scylla_cql_unpaged_select_queries" "SELECT statements without a page size." |s| s.statements.unpaged_select_queries;
    counter "scylla_cql_reverse_queries" "SELECT statements against the clustering order." |s| s.statements.reverse_queries;
    counter "scylla_cql_select_bypass_caches" "SELECT statements with BYPASS CACHE." |s| s.statements.select_bypass_caches;
    counter "scylla_cql_select_allow_filtering" "SELECT statements with ALLOW FILTERING." |s| s.statements.select_allow_filtering;
    counter "scylla_cql_filtered_read_requests" "SELECT statements that filtered rows." |s| s.statements.filtered_read_requests;
    counter "scylla_cql_select_partition_range_scan" "SELECT statements of token ranges or whole tables." |s| s.statements.select_partition_range_scan;
    counter "scylla_cql_select_partition_range_scan_no_bypass_cache" "SELECT statements of token ranges or whole tables without BYPASS CACHE." |s| s.statements.select_partition_range_scan_no_bypass_cache;
    counter "scylla_query_processor_statements_prepared" "PREPARE requests of clients." |s| s.statements.statements_prepared;
    counters "scylla_query_processor_queries" "Requests for data by consistency level." |s, put| {
        for (level, count) in Consistency::ALL.iter().zip(&s.statements.queries) {
            put(&format!("consistency_level=\"{}\"", level.name()), *count as f64);
        }
    };
    counters "scylla_cql_writes_per_consistency_level" "Writes by consistency level." |s, put| {
        for (level, count) in Consistency::ALL.iter().zip(&s.statements.writes) {
            put(&format!("consistency_level=\"{}\"", level.name()), *count as f64);
        }
    };
    counter "scylla_cql_minimum_replication_factor_warn_violations" "Keyspaces with fewer replicas than recommended." |s| violations(s, Guardrail::LeastFactorWarned);
    counter "scylla_cql_minimum_replication_factor_fail_violations" "Keyspaces refused because of too few replicas." |s| violations(s, Guardrail::LeastFactor);
    counter "scylla_cql_maximum_replication_factor_warn_violations" "Keyspaces with more replicas than recommended." |s| violations(s, Guardrail::MostFactorWarned);
    counter "scylla_cql_maximum_replication_factor_fail_violations" "Keyspaces refused because of too many replicas." |s| violations(s, Guardrail::MostFactor);
    counter "scylla_cql_replication_strategy_warn_list_violations" "Keyspaces with a replication strategy that causes a warning." |s| violations(s, Guardrail::StrategyWarned);
    counter "scylla_cql_replication_strategy_fail_list_violations" "Keyspaces refused for their replication strategy." |s| violations(s, Guardrail::StrategyRefused);
    counter "scylla_cql_write_consistency_levels_warned_violations" "Writes at a consistency level that causes a warning." |s| violations(s, Guardrail::WriteLevelWarned);
    counter "scylla_cql_large_cell_warn_violations" "Writes of a cell above the warning threshold." |s| violations(s, Guardrail::LargeCellWarned);
    counter "scylla_cql_large_cell_fail_violations" "Writes refused for a large cell." |s| violations(s, Guardrail::LargeCell);
    counter "scylla_cql_large_row_warn_violations" "Writes of a row above the warning threshold." |s| violations(s, Guardrail::LargeRowWarned);
    counter "scylla_cql_large_row_fail_violations" "Writes refused for a large row." |s| violations(s, Guardrail::LargeRow);
    counter "scylla_cql_large_collection_elements_warn_violations" "Writes of a collection above the warning threshold." |s| violations(s, Guardrail::LargeCollectionWarned);
    counter "scylla_cql_large_collection_elements_fail_violations" "Writes refused for a large collection." |s| violations(s, Guardrail::LargeCollection);
    counter "scylla_cql_write_consistency_levels_disallowed_violations" "Writes refused for their consistency level." |s| violations(s, Guardrail::WriteLevelRefused);
    gauge "scylla_cql_prepared_cache_size" "Statements prepared on the shard." |s| s.prepared.statements as u64;
    gauge "scylla_cql_prepared_cache_memory_footprint" "Estimated bytes of the statements prepared on the shard." |s| s.prepared.bytes as u64;
    counter "scylla_cql_prepared_cache_evictions" "Prepared statements evicted because the cache was full." |s| s.prepared.evicted;

    counter "scylla_storage_proxy_coordinator_reads" "Pages requested by clients." |s| s.coordinator.reads;
    counter "scylla_storage_proxy_coordinator_writes" "Writes requested by clients." |s| s.coordinator.writes;
    histogram "scylla_storage_proxy_coordinator_read_latency" "Microseconds that statements with rows took in the server." |s| &s.transport.read_latency;
    histogram "scylla_storage_proxy_coordinator_write_latency" "Microseconds that statements without rows took in the server." |s| &s.transport.write_latency;
    counter "scylla_storage_proxy_coordinator_read_timeouts" "Reads that timed out." |s| s.coordinator.read_timeouts;
    counter "scylla_storage_proxy_coordinator_write_timeouts" "Writes that timed out." |s| s.coordinator.write_timeouts;
    counter "scylla_storage_proxy_coordinator_unavailable" "Requests for which too few replicas were alive." |s| s.coordinator.unavailable;
    counter "scylla_storage_proxy_coordinator_refused_paging_states" "Paging states refused because they belonged to another query or had expired." |s| s.coordinator.refused_states;
    gauge "scylla_storage_proxy_coordinator_collected_result_bytes" "Bytes of results that are being collected." |s| s.coordinator.collected_bytes;
    counter "scylla_storage_proxy_coordinator_refused_results" "Results refused because other results that are being collected needed the memory." |s| s.coordinator.refused_results;
    counter "scylla_storage_proxy_replica_cross_shard_ops" "Requests sent to another shard of this node." |s| s.coordinator.cross_shard_requests;
    counter "scylla_storage_proxy_coordinator_remote_requests" "Requests sent to other nodes." |s| s.coordinator.remote_requests;
    counter "scylla_storage_proxy_coordinator_foreground_read_repairs" "Reads whose replicas had different data." |s| s.coordinator.digest_mismatches;
    counter "scylla_storage_proxy_coordinator_read_repair_write_attempts" "Writes of read repair to replicas that lacked data." |s| s.coordinator.read_repairs;
    counter "scylla_storage_proxy_coordinator_speculation_skipped" "Reads that queried no other replica although one was slow, because the shard of the coordinator was overloaded." |s| s.coordinator.speculation_skipped;
    counter "scylla_storage_proxy_coordinator_speculative_data_reads" "Reads that queried one more replica because a replica was slow." |s| s.coordinator.speculative_reads;
    counter "scylla_storage_proxy_coordinator_coalesced_reads" "Reads that got the page of a concurrent equal read, without requests to replicas." |s| s.coordinator.coalesced_reads;
    counters "scylla_storage_proxy_coordinator_read_rate_limited" "Reads refused by a per-partition rate limit." |s, put| by_refuser(put, s.coordinator.limited_reads);
    counters "scylla_storage_proxy_coordinator_write_rate_limited" "Writes refused by a per-partition rate limit." |s, put| by_refuser(put, s.coordinator.limited_writes);
    counter "scylla_hints_manager_written" "Hints written." |s| s.coordinator.hints.written;
    counter "scylla_hints_manager_errors" "Hints that could not be written." |s| s.coordinator.hints.refused;
    counter "scylla_hints_manager_sent_total" "Hints replayed successfully." |s| s.coordinator.hints.sent;
    counter "scylla_hints_manager_discarded" "Hints discarded because they were too old or their table was dropped." |s| s.coordinator.hints.dropped;
    counter "scylla_hints_manager_corrupted_files" "Hint files that could not be read completely." |s| s.coordinator.hints.corrupted;
    gauge "scylla_hints_manager_disk_bytes" "Bytes of hints on disk." |s| s.coordinator.hints.bytes;

    counter "scylla_database_total_reads" "Pages read by this shard's replica." |s| s.replica.reads;
    counter "scylla_database_total_writes" "Mutations applied by this shard's replica." |s| s.replica.writes;
    counter "scylla_database_total_reads_rate_limited" "Reads that this shard's replica refused by a per-partition rate limit." |s| s.replica.rate_limits.refused_reads;
    counter "scylla_database_total_writes_rate_limited" "Writes that this shard's replica refused by a per-partition rate limit." |s| s.replica.rate_limits.refused_writes;
    counter "scylla_database_total_reads_rate_limit_observed" "Reads that a per-partition rate limit in mode observe would have refused." |s| s.replica.rate_limits.observed_reads;
    counter "scylla_database_total_writes_rate_limit_observed" "Writes that a per-partition rate limit in mode observe would have refused." |s| s.replica.rate_limits.observed_writes;
    counter "scylla_per_partition_rate_limiter_allocations" "Slots of the rate limiter that were taken by a partition." |s| s.replica.rate_limits.slots.allocations;
    counter "scylla_per_partition_rate_limiter_successful_lookups" "Operations whose partition had a slot." |s| s.replica.rate_limits.slots.successful_lookups;
    counter "scylla_per_partition_rate_limiter_failed_allocations" "Slots whose count was lost because another partition needed one." |s| s.replica.rate_limits.slots.failed_allocations;
    counter "scylla_per_partition_rate_limiter_probe_count" "Cache lines of the rate limiter that were searched." |s| s.replica.rate_limits.slots.probe_count;
    gauges "scylla_per_partition_rate_limiter_load_factor" "Share of the slots that are taken, from 0 to 1, at most." |s, put| put("", s.replica.rate_limits.load_factor);
    gauge "scylla_per_partition_rate_limiter_memory_bytes" "Bytes of the counts of the rate limiter." |s| s.replica.rate_limits.bytes;
    counters "scylla_database_hot_partition_refused" "Operations refused by the hot partition protection." |s, put| by_kind(put, s.replica.protection.refused);
    counters "scylla_database_hot_partition_would_refuse" "Operations that the hot partition protection would have refused." |s, put| by_kind(put, s.replica.protection.would_refuse);
    gauge "scylla_database_hot_partition_protected" "Partitions that exceed their share of this overloaded shard now." |s| s.replica.protection.partitions;
    gauges "scylla_database_hot_partition_operations" "Operations per second of the hottest partitions, with refused ones." |s, put| by_partition(s, put, HotView::operations);
    gauges "scylla_database_hot_partition_bytes" "Bytes per second of the hottest partitions." |s, put| by_partition(s, put, |hot| hot.seen.bytes);
    gauges "scylla_database_hot_partition_cpu_share" "Share of the CPU time of this shard's operations, from 0 to 1, of the hottest partitions." |s, put| by_partition(s, put, |hot| hot.seen.cpu_share);
    counter "scylla_database_short_data_queries" "Pages cut by bytes or tombstones." |s| s.replica.short_reads;
    counter "scylla_database_tombstones_read" "Tombstones read." |s| s.replica.tombstones;
    gauges "scylla_database_active_reads" "Reads that hold a permit." |s, put| by_class(s, put, |p| p.count as u64);
    gauges "scylla_database_active_reads_memory_consumption" "Bytes held by admitted reads." |s, put| by_class(s, put, |p| p.memory as u64);
    gauges "scylla_database_queued_reads" "Reads that wait for a permit." |s, put| by_class(s, put, |p| p.waiting as u64);
    counters "scylla_database_total_reads_admitted" "Reads that got a permit." |s, put| by_class(s, put, |p| p.admitted);
    counters "scylla_database_reads_shed_due_to_overload" "Reads refused because the queue was full." |s, put| by_class(s, put, |p| p.rejected);
    gauge "scylla_database_requests_blocked_memory_current" "Writes that wait for memtable memory." |s| s.storage.engine.writes_waiting_for_memory;
    counter "scylla_database_requests_blocked_memory" "Writes delayed by back-pressure." |s| s.storage.engine.writes_delayed;
    counter "scylla_database_engine_writes" "Mutations applied to memtables." |s| s.storage.engine.writes;
    counter "scylla_database_engine_reads" "Readers opened." |s| s.storage.engine.reads;
    counter "scylla_database_large_partition_exceeding_threshold" "Partitions above compaction_large_partition_warning_threshold_mb in written sstables." |s| s.storage.engine.large_partitions;
    counter "scylla_database_large_rows_exceeding_threshold" "Rows above compaction_large_row_warning_threshold_mb in written sstables." |s| s.storage.engine.large_rows;
    counter "scylla_database_large_cell_exceeding_threshold" "Cells above compaction_large_cell_warning_threshold_mb in written sstables." |s| s.storage.engine.large_cells;
    counter "scylla_database_large_collection_exceeding_threshold" "Collections above compaction_collection_elements_count_warning_threshold in written sstables." |s| s.storage.engine.large_collections;

    gauge "scylla_cache_bytes_used" "Bytes in the row cache and the page cache." |s| s.storage.engine.cache_bytes();
    gauge "scylla_cache_bytes_total" "Limit of the row cache and the page cache together, in bytes." |s| s.storage.engine.cache_limit_bytes;
    gauge "scylla_cache_pages" "Sstable pages in the cache." |s| s.storage.engine.cache.pages as u64;
    counter "scylla_cache_page_hits" "Sstable pages found in the cache." |s| s.storage.engine.cache.hits;
    counter "scylla_cache_page_misses" "Sstable pages read from disk." |s| s.storage.engine.cache.misses;
    counter "scylla_cache_page_evictions" "Sstable pages evicted from the cache." |s| s.storage.engine.cache.evictions;
    gauge "scylla_cache_partitions" "Partitions in the row cache, which have one row each." |s| s.storage.engine.rows.partitions;
    counter "scylla_cache_partition_hits" "Partitions found in the row cache." |s| s.storage.engine.rows.hits;
    counter "scylla_cache_partition_misses" "Partitions missing in the row cache and read from sstables." |s| s.storage.engine.rows.misses;
    counter "scylla_cache_partition_insertions" "Partitions inserted into the row cache." |s| s.storage.engine.rows.insertions;
    counter "scylla_cache_partition_evictions" "Partitions evicted from the row cache." |s| s.storage.engine.rows.evictions;
    gauge "scylla_cache_rows" "Same as scylla_cache_partitions, because cached partitions have one row." |s| s.storage.engine.rows.partitions;
    counter "scylla_cache_row_insertions" "Same as scylla_cache_partition_insertions." |s| s.storage.engine.rows.insertions;
    counter "scylla_cache_row_evictions" "Same as scylla_cache_partition_evictions." |s| s.storage.engine.rows.evictions;
    counter "scylla_cache_row_hits" "Same as scylla_cache_partition_hits, because cached partitions have one row." |s| s.storage.engine.rows.hits;
    counter "scylla_cache_row_misses" "Same as scylla_cache_partition_misses." |s| s.storage.engine.rows.misses;

    gauge "scylla_sstables_count" "Sstables attached." |s| s.storage.engine.sstables;
    gauge "scylla_sstables_unreadable" "Sstables that could not be opened or are corrupt." |s| s.storage.engine.sstables_unreadable;
    gauge "scylla_column_family_live_disk_space" "Bytes of sstables on disk." |s| s.storage.engine.disk_bytes;
    gauge "scylla_column_family_live_sstable" "Sstables attached." |s| s.storage.tables.sstables;
    gauge "scylla_column_family_pending_flushes" "Memtables that wait to be flushed." |s| s.storage.tables.pending_flushes;
    counter "scylla_column_family_memtable_switch" "Memtables that were flushed." |s| s.storage.engine.flushes;
    gauge "scylla_column_family_tablet_count" "Tablets." |s| s.storage.tables.tablets;
    counter "scylla_column_family_tablets_taken_over" "Tablets that other shards of the node handed over to this one." |s| s.storage.engine.tablets_taken_over;
    gauge "scylla_sstables_currently_open_for_reading" "Sstables with open files. Files are opened when they are read." |s| s.storage.tables.open_sstables;
    gauge "scylla_sstables_currently_open_for_writing" "Sstables being written by flushes and compactions." |s| s.storage.engine.sstables_writing;
    counter "scylla_sstables_total_open_for_reading" "Sstables loaded." |s| s.storage.engine.cache.sstables_opened;
    counter "scylla_sstables_total_open_for_writing" "Sstables begun by flushes and compactions." |s| s.storage.engine.sstables_begun;
    counter "scylla_sstables_total_deleted" "Sstables removed from the disk." |s| s.storage.engine.sstables_deleted;
    gauge "scylla_sstables_open_files" "Open sstable files." |s| s.storage.engine.open_files.open as u64;
    gauge "scylla_sstables_open_files_limit" "Limit of open sstable files (sstable_open_files_limit)." |s| s.storage.engine.open_files.limit as u64;
    counter "scylla_sstables_files_opened" "Sstable files opened." |s| s.storage.engine.open_files.opened;
    counter "scylla_sstables_files_closed" "Sstable files closed because others needed their descriptors." |s| s.storage.engine.open_files.closed;
    gauge "scylla_sstables_memory_bytes" "Bytes of memory of open sstables: filters, summaries, chunk offsets." |s| s.storage.tables.sstable_memory_bytes;
    counter "scylla_sstables_index_page_reads" "Pages of sstable indexes read, from the cache or from disk." |s| s.storage.engine.cache.index_reads;
    counter "scylla_sstables_bloom_filter_rejects" "Sstables that point reads skipped because of a bloom filter." |s| s.storage.engine.bloom_filter_rejects;

    gauge "scylla_memory_total_memory" "Memory budget of the shard, in bytes." |s| s.memory;
    gauge "scylla_memory_dirty_bytes" "Bytes held by memtables." |s| s.storage.engine.memtable_bytes;
    gauge "scylla_memory_dirty_limit_bytes" "Limit of the bytes held by memtables." |s| s.storage.engine.memtable_limit_bytes;

    gauge "scylla_memtables_pending_flushes" "Running flushes." |s| s.storage.engine.flushes_running;
    counter "scylla_memtables_flushes" "Memtables flushed." |s| s.storage.engine.flushes;
    gauge "scylla_memtables_pending_flushes_bytes" "Bytes of memtables that wait to be flushed." |s| s.storage.tables.pending_flush_bytes;
    counter "scylla_memtables_relogged" "Small memtables that were written to the commitlog again instead of being flushed." |s| s.storage.engine.relogged;
    counter "scylla_memtables_flushed_for_memory" "Memtables flushed because much memory of the process was resident." |s| s.storage.engine.flushed_for_memory;
    counter "scylla_memtables_failed_flushes" "Flushes that failed." |s| s.storage.engine.flush_failures;
    counter "scylla_memtables_flushed_bytes" "Bytes written by flushes." |s| s.storage.engine.flushed_bytes;

    gauge "scylla_commitlog_pending_flushes" "Running commitlog syncs." |s| s.storage.engine.log.syncing;
    counter "scylla_database_querier_cache_lookups" "Lookups of the querier of the previous page." |s| s.replica.queriers.lookups;
    counter "scylla_database_querier_cache_misses" "Lookups that found no querier." |s| s.replica.queriers.misses;
    counter "scylla_database_querier_cache_drops" "Lookups that found a querier that could not be resumed." |s| s.replica.queriers.drops;
    counter "scylla_database_querier_cache_scheduling_group_mismatches" "Dropped queriers of another scheduling group." |s| s.replica.queriers.scheduling_group_mismatches;
    counter "scylla_database_querier_cache_reused" "Pages that resumed a querier: lookups minus misses and drops." |s| s.replica.queriers.reused();
    counter "scylla_database_querier_cache_advanced" "Resumed queriers that had to skip forward to the position of the page." |s| s.replica.queriers.advanced;
    counter "scylla_database_querier_cache_time_based_evictions" "Queriers evicted because they were idle for too long." |s| s.replica.queriers.time_based_evictions;
    counter "scylla_database_querier_cache_resource_based_evictions" "Queriers evicted for reads that needed their permits." |s| s.replica.queriers.resource_based_evictions;
    counter "scylla_database_querier_cache_memory_based_evictions" "Queriers evicted because of the memory limit of the querier cache." |s| s.replica.queriers.memory_based_evictions;
    gauge "scylla_database_querier_cache_population" "Queriers in the querier cache." |s| s.replica.queriers.population;
    gauge "scylla_database_querier_cache_querier_population" "Same as scylla_database_querier_cache_population." |s| s.replica.queriers.population;
    gauge "scylla_database_querier_cache_memory_bytes" "Bytes held by queriers in the querier cache." |s| s.replica.queriers.memory;

    counter "scylla_commitlog_flush" "Commitlog syncs." |s| s.storage.engine.log.syncs;
    counter "scylla_commitlog_alloc" "Commitlog records appended." |s| s.storage.engine.log.records;
    counter "scylla_commitlog_cycle" "Write calls of the commitlog." |s| s.storage.engine.log.writes;
    counter "scylla_commitlog_bytes_written" "Bytes written to the commitlog." |s| s.storage.engine.log.bytes_written;
    gauge "scylla_commitlog_segments" "Commitlog segments that replay would need." |s| s.storage.engine.log.segments;
    gauge "scylla_commitlog_allocating_segments" "Commitlog segments being created." |s| s.storage.engine.log.allocating;
    gauge "scylla_commitlog_disk_total_bytes" "Bytes of all commitlog segment files." |s| s.storage.engine.log.disk_total_bytes;
    gauge "scylla_commitlog_memory_buffer_bytes" "Bytes in the commitlog's buffer." |s| s.storage.engine.log.buffered_bytes;
    gauge "scylla_commitlog_pending_allocations" "Waiting appends to the commitlog." |s| s.storage.engine.log.blocked_writers;
    gauge "scylla_commitlog_out_of_space" "1: no space for another commitlog segment, so writes are refused." |s| u64::from(s.storage.engine.log.out_of_space);
    counter "scylla_commitlog_replayed" "Commitlog records applied by replay." |s| s.storage.engine.replayed;
    counter "scylla_commitlog_replay_skipped" "Commitlog records skipped by replay because they were not needed." |s| s.storage.engine.replay_skipped;

    gauge "scylla_compaction_manager_compactions" "Running compactions." |s| s.storage.engine.compactions_running;
    gauge "scylla_compaction_manager_pending_compactions" "Pending compactions." |s| s.storage.engine.compactions_pending;
    gauge "scylla_compaction_manager_backlog" "Estimated bytes that compaction has still to write." |s| s.storage.engine.compaction_backlog;
    gauge "scylla_compaction_manager_background_share" "Share of the time, in 1/1000, that flushes and compactions get while requests wait; 0 before the first." |s| s.storage.engine.background_share;
    counter "scylla_compaction_manager_completed_compactions" "Compactions done." |s| s.storage.engine.compactions;
    counter "scylla_compaction_manager_failed_compactions" "Compactions that failed." |s| s.storage.engine.compaction_failures;
    counter "scylla_compaction_manager_read_bytes" "Bytes read by compactions." |s| s.storage.engine.compacted_bytes_in;
    counter "scylla_compaction_manager_written_bytes" "Bytes written by compactions." |s| s.storage.engine.compacted_bytes_out;

    counter "scylla_streaming_total_incoming_bytes" "Bytes of tablets received from other nodes." |s| s.streams.incoming_bytes;
    counter "scylla_streaming_total_outgoing_bytes" "Bytes of tablets sent to other nodes." |s| s.streams.outgoing_bytes;
    counter "scylla_streaming_hot_rows_read" "Rows of received tablets that were read into the cache, because the source reads them often." |s| s.streams.hot_rows;
    counter "scylla_streaming_received_tablets" "Tablets received from other nodes." |s| s.streams.received_tablets;
    gauges "scylla_streaming_finished_percentage" "Finished part, from 0 to 1, of the files that arrive from other nodes; 1 if none arrive." |s, put| put("", s.streams.finished);
    counter "scylla_streaming_failed_attempts" "Attempts to receive a tablet that failed; they are repeated." |s| s.streams.failed_attempts;

    gauge "scylla_rpc_client_count" "Connections to shards of other nodes." |s| s.internode.connections;
    counter "scylla_rpc_client_sent_messages" "Requests sent to other nodes." |s| s.internode.requests_sent;
    counter "scylla_rpc_client_replied" "Responses received from other nodes." |s| s.internode.replied;
    counter "scylla_rpc_client_exception_received" "Responses of other nodes that were refusals." |s| s.internode.refused;
    counter "scylla_rpc_client_timeout" "Requests to other nodes that timed out." |s| s.internode.timeouts;
    counter "scylla_rpc_client_lost" "Requests to other nodes whose connections were lost." |s| s.internode.lost;
    counter "scylla_rpc_client_unreachable" "Requests not sent because the node was down or could not be reached." |s| s.internode.unreachable;
    counter "scylla_rpc_client_overloaded" "Requests not sent because too many waited for the node already." |s| s.internode.overloaded;
    counter "scylla_rpc_client_cancelled" "Requests to other nodes that were cancelled." |s| s.internode.cancelled;
    gauge "scylla_rpc_client_wait_reply" "Requests to other nodes that wait for their responses." |s| s.internode.wait_reply;
    gauge "scylla_rpc_client_pending" "Requests to other nodes that wait to be sent." |s| s.internode.pending;
    counter "scylla_rpc_client_failed_connects" "Failed connection attempts to other nodes." |s| s.internode.failed_connects;
    gauge "scylla_rpc_server_count" "Connections of shards of other nodes." |s| s.internode.served_connections;
    counter "scylla_rpc_server_received_messages" "Requests received from other nodes." |s| s.internode.served;
    counter "scylla_rpc_server_waited" "Requests of other nodes that could not be answered at once." |s| s.internode.served_later;
    gauge "scylla_rpc_server_pending" "Running requests of other nodes." |s| s.internode.serving;
    counter "scylla_rpc_server_blocked" "Times that a node's connection was not read because too many of its requests were running." |s| s.internode.blocked;
    counter "scylla_rpc_rejected_connections" "Connections between nodes that either side rejected." |s| s.internode.rejected;
    counter "scylla_rpc_garbage_connections" "Connections to the internode port that sent bytes of another protocol." |s| s.internode.garbage;
    counter "scylla_rpc_sent_bytes" "Bytes sent to other nodes." |s| s.internode.sent;
    counter "scylla_rpc_received_bytes" "Bytes received from other nodes." |s| s.internode.received;
    gauge "scylla_metadata_change_stuck" "1 while a committed change of the metadata cannot be applied on this node; on shard 0." |s| s.metadata_stuck;
    counter "scylla_metadata_change_failures" "Failed attempts to apply a committed change of the metadata; on shard 0." |s| s.metadata_failures;
    gauge "scylla_gossip_live" "Other nodes that are up, as seen by shard 0." |s| s.nodes_up;
    gauge "scylla_gossip_unreachable" "Other nodes that are down, as seen by shard 0." |s| s.nodes_down;

    gauges "scylla_reactor_utilization" "Share of the time since the start that the shard was busy, in percent." |s, put| {
        let (busy, idle) = (s.runtime.busy.as_secs_f64(), s.runtime.idle.as_secs_f64());
        put("", 100.0 * busy / (busy + idle).max(f64::MIN_POSITIVE));
    };
    counter "scylla_reactor_cpu_busy_ms" "Time that the shard was busy." |s| s.runtime.busy.as_millis() as u64;
    counter "scylla_reactor_cpu_idle_ms" "Time that the shard slept." |s| s.runtime.idle.as_millis() as u64;
    counters "scylla_scheduler_runtime_ms" "Run time of the tasks of a scheduling group." |s, put| by_group(s, put, |group| group.runtime.as_secs_f64() * 1e3);
    counters "scylla_scheduler_starvetime_ms" "Time for which a scheduling group had ready tasks while others ran." |s, put| by_group(s, put, |group| group.starved.as_secs_f64() * 1e3);
    counters "scylla_scheduler_task_waittime_ms" "Total time that ready tasks of a scheduling group waited for their polls." |s, put| by_group(s, put, |group| group.task_wait.as_secs_f64() * 1e3);
    counters "scylla_scheduler_time_spent_on_task_quota_violations_ms" "Time in polls of a scheduling group's tasks that took more than 500 us." |s, put| by_group(s, put, |group| group.violations.as_secs_f64() * 1e3);
    counters "scylla_scheduler_tasks_processed" "Polls of a scheduling group's tasks." |s, put| by_group(s, put, |group| group.tasks as f64);
    gauges "scylla_scheduler_queue_length" "Ready tasks of a scheduling group." |s, put| by_group(s, put, |group| group.queue_length as f64);
    gauge "scylla_scheduler_unread_input_bytes" "Bytes that the shard has left in sockets because the poll's time slice was used up." |s| s.runtime.input_left;
    counters "scylla_scheduler_unread_input_byte_seconds" "Sum over time of the bytes left in sockets because the poll's time slice was used up. Its rate divided by the rate of the bytes received is the time for which they wait." |s, put| put("", s.runtime.input_waited);
    gauges "scylla_scheduler_governor_allowance" "Share of its demand that maintenance gets, from 0 to 1; below 1 while statements are slower than foreground_p99_target_in_ms." |s, put| put("", s.runtime.governor_allowance);
    gauges "scylla_scheduler_shares" "Shares of a scheduling group; statements have 1000." |s, put| by_group(s, put, |group| f64::from(group.shares));
    counter "scylla_reactor_polls" "Iterations of the event loop." |s| s.runtime.turns;
    counter "scylla_reactor_tasks_processed" "Polls of tasks." |s| s.runtime.polls;
    gauge "scylla_reactor_tasks_pending" "Tasks that exist." |s| s.runtime.tasks;
    counter "scylla_reactor_stalls_count" "Polls that took more than 500 us." |s| s.runtime.stalls;
    gauge "scylla_reactor_longest_stall_us" "The longest poll so far." |s| s.runtime.longest_poll.as_micros() as u64;
    counter "scylla_reactor_aio_reads" "Disk reads." |s| s.runtime.io.iter().map(|io| io.reads).sum();
    counter "scylla_reactor_aio_bytes_read" "Bytes read from disk." |s| s.runtime.io.iter().map(|io| io.read_bytes).sum();
    counter "scylla_reactor_aio_writes" "Disk writes." |s| s.runtime.io.iter().map(|io| io.writes).sum();
    counter "scylla_reactor_aio_bytes_write" "Bytes written to disk." |s| s.runtime.io.iter().map(|io| io.written_bytes).sum();
    counter "scylla_reactor_fsyncs" "Disk syncs." |s| s.runtime.io.iter().map(|io| io.syncs).sum();
    gauge "scylla_reactor_io_in_flight" "Disk operations in the kernel." |s| s.runtime.io.iter().map(|io| io.in_flight).sum();
    gauge "scylla_reactor_io_queued" "Disk operations that wait for a slot." |s| s.runtime.io.iter().map(|io| io.queued).sum();
    counter "scylla_reactor_aio_errors" "Disk operations that failed." |s| s.runtime.io_errors;
    counter "scylla_smp_messages_sent" "Calls to other shards." |s| s.runtime.hops_sent;
    counter "scylla_smp_messages_received" "Calls from other shards." |s| s.runtime.hops_received;
    counter "scylla_smp_batches_sent" "Batches of messages to other shards." |s| s.runtime.mail_batches_sent;
    counter "scylla_smp_wakes_sent" "Sleeping shards woken." |s| s.runtime.mail_wakes_sent;

    gauge "scylla_node_operation_mode" "Operation mode of the node: 2 joining, 3 normal, 4 leaving, 5 decommissioned, 6 draining, 7 drained." |s| s.mode;
}

fn violations(sample: &Sample, of: Guardrail) -> u64 {
    sample.statements.violations[of as usize]
}

/// The counters of statements without a condition, and of conditional statements, which do not
/// exist yet.
fn conditional(put: Put, without: u64) {
    put("conditional=\"no\"", without as f64);
    put("conditional=\"yes\"", 0.0);
}

/// Values of reads and writes.
fn by_kind(put: Put, counts: [u64; 2]) {
    put("kind=\"read\"", counts[0] as f64);
    put("kind=\"write\"", counts[1] as f64);
}

/// The longest key in a label, in characters.
const LONGEST_LABEL: usize = 100;

/// Values of the hottest partitions. The token distinguishes keys whose labels are equal.
fn by_partition(sample: &Sample, put: Put, value: fn(&HotView) -> f64) {
    for hot in &sample.hot {
        let (keyspace, table, token) = (&hot.keyspace, &hot.table, hot.seen.id.token.0);
        let key = label(hot.key.as_deref().unwrap_or_default());
        let labels = format!("keyspace=\"{keyspace}\",table=\"{table}\",key=\"{key}\",token=\"{token}\"");
        put(&labels, value(hot));
    }
}

/// A text as the value of a label: shortened, without control characters, and escaped.
fn label(text: &str) -> String {
    let shown = text.chars().take(LONGEST_LABEL).map(|char| if char.is_control() { '?' } else { char });
    shown.collect::<String>().replace('\\', "\\\\").replace('"', "\\\"")
}

fn by_refuser(put: Put, [by_coordinator, by_replicas]: [u64; 2]) {
    put("rejected_by_coordinator=\"true\"", by_coordinator as f64);
    put("rejected_by_coordinator=\"false\"", by_replicas as f64);
}

fn by_group(sample: &Sample, put: Put, read: fn(&rt::metrics::GroupMetrics) -> f64) {
    for (group, metrics) in Group::ALL.iter().zip(&sample.runtime.groups) {
        put(&format!("group=\"{}\"", group.name()), read(metrics));
    }
}

fn by_class(sample: &Sample, put: Put, read: fn(&replica::permit::PermitUsage) -> u64) {
    for (class, usage) in Class::ALL.iter().zip(&sample.replica.permits) {
        let name = format!("{class:?}").to_ascii_lowercase();
        put(&format!("class=\"{name}\""), read(usage) as f64);
    }
}

/// ScyllaDB's name for errors with this code.
fn error_type(code: i32) -> &'static str {
    match code {
        0x0000 => "server_error",
        0x000A => "protocol_error",
        0x0100 => "authentication",
        0x1000 => "unavailable",
        0x1001 => "overloaded",
        0x1002 => "is_bootstrapping",
        0x1003 => "truncate_error",
        0x1100 => "write_timeout",
        0x1200 => "read_timeout",
        0x1300 => "read_failure",
        0x1400 => "function_failure",
        0x1500 => "write_failure",
        0x2000 => "syntax_error",
        0x2100 => "unauthorized",
        0x2200 => "invalid",
        0x2300 => "config_error",
        0x2400 => "already_exists",
        0x2500 => "unprepared",
        0xF000 => "rate_limit_error",
        _ => "other",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::text;

    #[test]
    fn every_line_is_well_formed_and_names_are_unique() {
        let mut sample = Sample { shard: 1, ..Sample::default() };
        sample.transport.errors.insert(0x2200, 3);
        sample.transport.requests[2] = 7;
        sample.statements.inserts = 9;
        sample.statements.queries[Consistency::Quorum as usize] = 4;
        let out = text::write(FAMILIES, &[Sample::default(), sample]);
        assert!(out.contains("scylla_transport_cql_requests_count{shard=\"1\",kind=\"QUERY\"} 7\n"));
        assert!(out.contains("scylla_transport_cql_errors_total{shard=\"1\",type=\"invalid\"} 3\n"));
        assert!(out.contains("scylla_cql_inserts{shard=\"1\",conditional=\"no\"} 9\n"));
        assert!(out.contains("scylla_query_processor_queries{shard=\"1\",consistency_level=\"QUORUM\"} 4\n"));
        assert!(out.contains("scylla_node_operation_mode{shard=\"0\"} 0\n"));
        let mut names = std::collections::BTreeSet::new();
        for family in FAMILIES {
            assert!(names.insert(family.name), "{} twice", family.name);
            assert!(family.name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_'));
        }
        for line in out.lines().filter(|line| !line.starts_with('#')) {
            let (_, value) = line.rsplit_once(' ').expect("a value");
            assert!(value.parse::<f64>().is_ok_and(f64::is_finite), "{line}");
        }
    }
}
