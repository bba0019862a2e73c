//! The names of all metrics.

use super::sample::Sample;
use super::text::{Family, Kind, Put, Value};
use crate::protocol::Opcode;
use replica::Class;

/// The node serves clients (ScyllaDB's number for it).
const MODE_NORMAL: f64 = 3.0;

macro_rules! families {
    ($( $kind:ident $name:literal $help:literal $read:expr; )+) => {
        /// Every metric, grouped by floor.
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
    gauge "scylla_transport_current_connections" "Client connections now." |s| s.transport.current;
    counter "scylla_transport_requests_served" "Requests received and answered." |s| s.transport.served;
    gauge "scylla_transport_requests_serving" "Requests that wait for something." |s| s.transport.serving;
    counter "scylla_transport_requests_waited" "Requests that could not be answered at once." |s| s.transport.waited;
    counter "scylla_transport_requests_shed" "Requests refused because too many were in flight." |s| s.transport.shed;
    counter "scylla_transport_requests_blocked_memory" "Times that a connection waited for request memory." |s| s.transport.memory_waits;
    gauge "scylla_transport_requests_memory_available" "Bytes left of the memory for requests." |s| s.transport.memory_available;
    gauge "scylla_transport_unread_response_bytes" "Bytes of answers that clients have not taken." |s| s.transport.unread;
    counter "scylla_transport_connections_dropped_unread" "Connections closed because their clients did not read." |s| s.transport.dropped_unread;
    counter "scylla_transport_received_bytes" "Bytes received from clients." |s| s.transport.received;
    counter "scylla_transport_sent_bytes" "Bytes sent to clients." |s| s.transport.sent;
    counters "scylla_transport_cql_requests_count" "Requests by kind." |s, put| {
        for (opcode, count) in Opcode::REQUESTS.iter().zip(&s.transport.requests) {
            put(&format!("kind=\"{}\"", opcode.name()), *count as f64);
        }
    };
    counters "scylla_transport_cql_errors_total" "Errors that clients got, by type." |s, put| {
        for (code, count) in &s.transport.errors {
            put(&format!("type=\"{}\"", error_type(*code)), *count as f64);
        }
    };

    gauge "scylla_cql_prepared_cache_size" "Statements prepared on the shard." |s| s.prepared.0 as u64;
    counter "scylla_cql_prepared_cache_evictions" "Prepared statements that had to go for want of room." |s| s.prepared.1;

    counter "scylla_storage_proxy_coordinator_reads" "Pages that clients asked for." |s| s.coordinator.reads;
    counter "scylla_storage_proxy_coordinator_writes" "Writes that clients asked for." |s| s.coordinator.writes;
    histogram "scylla_storage_proxy_coordinator_read_latency" "Microseconds that statements with rows took in the server." |s| &s.transport.read_latency;
    histogram "scylla_storage_proxy_coordinator_write_latency" "Microseconds that statements without rows took in the server." |s| &s.transport.write_latency;
    counter "scylla_storage_proxy_coordinator_read_timeouts" "Reads that ran out of time." |s| s.coordinator.read_timeouts;
    counter "scylla_storage_proxy_coordinator_write_timeouts" "Writes that ran out of time." |s| s.coordinator.write_timeouts;
    counter "scylla_storage_proxy_coordinator_unavailable" "Requests for which too few replicas were alive." |s| s.coordinator.unavailable;
    counter "scylla_storage_proxy_replica_cross_shard_ops" "Requests that had to go to another shard of this node." |s| s.coordinator.cross_shard_requests;

    counter "scylla_database_total_reads" "Pages read by this shard's replica." |s| s.replica.reads;
    counter "scylla_database_total_writes" "Mutations applied by this shard's replica." |s| s.replica.writes;
    counter "scylla_database_short_data_queries" "Pages cut by bytes or tombstones." |s| s.replica.short_reads;
    counter "scylla_database_tombstones_read" "Tombstones met by reads." |s| s.replica.tombstones;
    gauges "scylla_database_active_reads" "Reads that hold a permit." |s, put| by_class(s, put, |p| p.count as u64);
    gauges "scylla_database_active_reads_memory_consumption" "Bytes that admitted reads hold." |s, put| by_class(s, put, |p| p.memory as u64);
    gauges "scylla_database_queued_reads" "Reads that wait for a permit." |s, put| by_class(s, put, |p| p.waiting as u64);
    counters "scylla_database_total_reads_admitted" "Reads that got a permit." |s, put| by_class(s, put, |p| p.admitted);
    counters "scylla_database_reads_shed_due_to_overload" "Reads refused because the queue was full." |s, put| by_class(s, put, |p| p.rejected);
    gauge "scylla_database_requests_blocked_memory_current" "Writes that wait for memtable memory." |s| s.engine.writes_waiting_for_memory;
    counter "scylla_database_requests_blocked_memory" "Writes ever held up by back-pressure." |s| s.engine.writes_delayed;
    counter "scylla_database_engine_writes" "Mutations applied to memtables." |s| s.engine.writes;
    counter "scylla_database_engine_reads" "Readers opened." |s| s.engine.reads;

    gauge "scylla_cache_bytes_used" "Bytes of sstable pages in the cache." |s| s.engine.cache.bytes as u64;
    gauge "scylla_cache_pages" "Sstable pages in the cache." |s| s.engine.cache.pages as u64;
    counter "scylla_cache_page_hits" "Sstable pages found in the cache." |s| s.engine.cache.hits;
    counter "scylla_cache_page_misses" "Sstable pages read from disk." |s| s.engine.cache.misses;
    counter "scylla_cache_page_evictions" "Sstable pages that had to leave the cache." |s| s.engine.cache.evictions;
    counter "scylla_cache_row_hits" "As scylla_cache_page_hits: the cache holds pages, not rows." |s| s.engine.cache.hits;
    counter "scylla_cache_row_misses" "As scylla_cache_page_misses." |s| s.engine.cache.misses;

    gauge "scylla_sstables_count" "Sstables attached." |s| s.engine.sstables;
    gauge "scylla_sstables_unreadable" "Sstables that could not be opened or are corrupt." |s| s.engine.sstables_unreadable;
    gauge "scylla_column_family_live_disk_space" "Bytes that sstables take on disk." |s| s.engine.disk_bytes;
    counter "scylla_sstables_bloom_filter_rejects" "Sstables that point reads did not open thanks to a bloom filter." |s| s.engine.bloom_filter_rejects;

    gauge "scylla_memory_total_memory" "Memory budget of the shard, in bytes." |s| s.memory;
    gauge "scylla_memory_dirty_bytes" "Bytes held by memtables." |s| s.engine.memtable_bytes;
    gauge "scylla_memory_dirty_limit_bytes" "Bytes that memtables may hold." |s| s.engine.memtable_limit_bytes;

    gauge "scylla_memtables_pending_flushes" "Flushes that run." |s| s.engine.flushes_running;
    counter "scylla_memtables_flushes" "Memtables flushed." |s| s.engine.flushes;
    counter "scylla_memtables_failed_flushes" "Flushes that failed." |s| s.engine.flush_failures;
    counter "scylla_memtables_flushed_bytes" "Bytes written by flushes." |s| s.engine.flushed_bytes;

    gauge "scylla_commitlog_pending_flushes" "Syncs under way." |s| s.engine.log.syncing;
    counter "scylla_commitlog_flush" "Syncs done." |s| s.engine.log.syncs;
    counter "scylla_commitlog_alloc" "Records appended." |s| s.engine.log.records;
    counter "scylla_commitlog_cycle" "Write calls." |s| s.engine.log.writes;
    counter "scylla_commitlog_bytes_written" "Bytes handed to the kernel." |s| s.engine.log.bytes_written;
    gauge "scylla_commitlog_segments" "Segments that replay would need." |s| s.engine.log.segments;
    gauge "scylla_commitlog_allocating_segments" "Segments being made." |s| s.engine.log.allocating;
    gauge "scylla_commitlog_disk_total_bytes" "Bytes of all segment files." |s| s.engine.log.disk_total_bytes;
    gauge "scylla_commitlog_memory_buffer_bytes" "Bytes that wait to be written." |s| s.engine.log.buffered_bytes;
    gauge "scylla_commitlog_pending_allocations" "Appends that wait." |s| s.engine.log.blocked_writers;
    counter "scylla_commitlog_replayed" "Records of earlier runs that were applied." |s| s.engine.replayed;
    counter "scylla_commitlog_replay_skipped" "Records of earlier runs that were not needed." |s| s.engine.replay_skipped;

    gauge "scylla_compaction_manager_compactions" "Compactions that run." |s| s.engine.compactions_running;
    gauge "scylla_compaction_manager_pending_compactions" "Compactions that wait." |s| s.engine.compactions_pending;
    counter "scylla_compaction_manager_completed_compactions" "Compactions done." |s| s.engine.compactions;
    counter "scylla_compaction_manager_failed_compactions" "Compactions that failed." |s| s.engine.compaction_failures;
    counter "scylla_compaction_manager_read_bytes" "Bytes read by compactions." |s| s.engine.compacted_bytes_in;
    counter "scylla_compaction_manager_written_bytes" "Bytes written by compactions." |s| s.engine.compacted_bytes_out;

    gauges "scylla_reactor_utilization" "Part of the time since the start that the shard was busy, in percent." |s, put| {
        let (busy, idle) = (s.runtime.busy.as_secs_f64(), s.runtime.idle.as_secs_f64());
        put("", 100.0 * busy / (busy + idle).max(f64::MIN_POSITIVE));
    };
    counter "scylla_reactor_cpu_busy_ms" "Time that the shard was busy." |s| s.runtime.busy.as_millis() as u64;
    counter "scylla_reactor_cpu_idle_ms" "Time that the shard slept." |s| s.runtime.idle.as_millis() as u64;
    counter "scylla_reactor_cpu_background_ms" "Part of the busy time that was background work." |s| s.runtime.background.as_millis() as u64;
    counter "scylla_reactor_polls" "Turns of the shard's loop." |s| s.runtime.turns;
    counter "scylla_reactor_tasks_processed" "Polls of tasks." |s| s.runtime.polls;
    gauge "scylla_reactor_tasks_pending" "Tasks alive." |s| s.runtime.tasks;
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

    gauges "scylla_node_operation_mode" "What the node does: 3 is normal." |_, put| put("", MODE_NORMAL);
}

fn by_class(sample: &Sample, put: Put, read: fn(&replica::permit::PermitUsage) -> u64) {
    for (class, usage) in Class::ALL.iter().zip(&sample.replica.permits) {
        let name = format!("{class:?}").to_ascii_lowercase();
        put(&format!("class=\"{name}\""), read(usage) as f64);
    }
}

/// ScyllaDB's name for errors of this code.
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
        let out = text::write(FAMILIES, &[Sample::default(), sample]);
        assert!(out.contains("scylla_transport_cql_requests_count{shard=\"1\",kind=\"QUERY\"} 7\n"));
        assert!(out.contains("scylla_transport_cql_errors_total{shard=\"1\",type=\"invalid\"} 3\n"));
        assert!(out.contains("scylla_node_operation_mode{shard=\"0\"} 3\n"));
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
