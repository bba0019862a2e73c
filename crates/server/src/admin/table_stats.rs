//! Statistics of tables: ScyllaDB's paths for single numbers, and one answer with all of them for
//! `messina admin tablestats`.
//!
//! Numbers that Messina does not keep for each table (latencies, cells per slice, false positives)
//! are left out instead of shown as 0.

use super::RemoteServices;
use super::operations::{self, TableName, observed};
use super::refusal::Refusal;
use super::snapshots;
use cluster::observe::storage::{self, TableDetails};
use serde::Serialize;
use serde_json::{Value, json};

/// A table over all shards.
#[derive(Clone, Debug, Serialize)]
pub struct TableNumbers {
    /// Its keyspace.
    pub keyspace: String,
    /// Its name.
    pub table: String,
    /// Its sstables.
    pub sstable_count: u64,
    /// On each level of leveled compaction.
    pub sstables_in_each_level: Vec<u64>,
    /// Sstables that cannot be read.
    pub sstables_unreadable: u64,
    /// Bytes that live sstables take on disk.
    pub space_used_live: u64,
    /// The same, plus files that only snapshots use.
    pub space_used_total: u64,
    /// Bytes of files that only snapshots use.
    pub space_used_by_snapshots_total: u64,
    /// Bytes of memory that memtables and open sstables hold.
    pub off_heap_memory_used_total: u64,
    /// Bytes of memory that filters of keys hold.
    pub bloom_filter_off_heap_memory_used: u64,
    /// Bytes of memory that summaries of indexes hold.
    pub index_summary_off_heap_memory_used: u64,
    /// Bytes of memory for the chunk offsets of compressed files.
    pub compression_metadata_off_heap_memory_used: u64,
    /// Bytes of Data.db for each byte of contents.
    pub sstable_compression_ratio: Option<f64>,
    /// Partitions, without regard to overlap between sstables.
    pub number_of_partitions_estimate: u64,
    /// Partitions in memtables.
    pub memtable_partition_count: u64,
    /// Bytes of mutations in memtables.
    pub memtable_data_size: u64,
    /// Bytes of memory that memtables hold.
    pub memtable_off_heap_memory_used: u64,
    /// Memtables that wait to be flushed.
    pub pending_flushes: u64,
    /// Memtables flushed since the start.
    pub memtable_switch_count: u64,
    /// Readers opened since the start: one for every page that did not resume a cached reader.
    pub local_read_count: u64,
    /// Mutations applied since the start.
    pub local_write_count: u64,
    /// The smallest size of a partition in bytes.
    pub compacted_partition_minimum_bytes: u64,
    /// The largest size.
    pub compacted_partition_maximum_bytes: u64,
    /// The mean size.
    pub compacted_partition_mean_bytes: u64,
    /// Tablets on this node.
    pub tablets: u64,
}

impl TableNumbers {
    fn new(name: &TableName, details: &TableDetails, snapshots: u64) -> TableNumbers {
        TableNumbers {
            keyspace: name.keyspace.clone(),
            table: name.name.clone(),
            sstable_count: details.sstables,
            sstables_in_each_level: details.levels.clone(),
            sstables_unreadable: details.unreadable,
            space_used_live: details.disk_bytes,
            space_used_total: details.disk_bytes + snapshots,
            space_used_by_snapshots_total: snapshots,
            off_heap_memory_used_total: details.memtable_bytes + details.sstable_memory_bytes,
            bloom_filter_off_heap_memory_used: details.filter_bytes,
            index_summary_off_heap_memory_used: details.summary_bytes,
            compression_metadata_off_heap_memory_used: details.chunk_offset_bytes,
            sstable_compression_ratio: details.compression_ratio(),
            number_of_partitions_estimate: details.partitions,
            memtable_partition_count: details.memtable_partitions,
            memtable_data_size: details.memtable_data_bytes,
            memtable_off_heap_memory_used: details.memtable_bytes,
            pending_flushes: details.pending_flushes,
            memtable_switch_count: details.flushes,
            local_read_count: details.reads,
            local_write_count: details.writes,
            compacted_partition_minimum_bytes: details.least_partition_bytes.unwrap_or(0),
            compacted_partition_maximum_bytes: details.greatest_partition_bytes.unwrap_or(0),
            compacted_partition_mean_bytes: details.mean_partition_bytes(),
            tablets: details.tablets,
        }
    }

    /// A number by ScyllaDB's name in `/column_family/metrics/...`.
    fn metric(&self, name: &str) -> Option<Value> {
        Some(match name {
            "live_ss_table_count" => json!(self.sstable_count),
            "live_disk_space_used" => json!(self.space_used_live),
            "total_disk_space_used" => json!(self.space_used_total),
            "snapshots_size" => json!(self.space_used_by_snapshots_total),
            "memtable_live_data_size" => json!(self.memtable_data_size),
            "memtable_off_heap_size" => json!(self.memtable_off_heap_memory_used),
            "bloom_filter_off_heap_memory_used" => json!(self.bloom_filter_off_heap_memory_used),
            "index_summary_off_heap_memory_used" => json!(self.index_summary_off_heap_memory_used),
            "compression_metadata_off_heap_memory_used" => json!(self.compression_metadata_off_heap_memory_used),
            "pending_flushes" => json!(self.pending_flushes),
            "memtable_switch_count" => json!(self.memtable_switch_count),
            "read" => json!(self.local_read_count),
            "write" => json!(self.local_write_count),
            "compression_ratio" => json!(self.sstable_compression_ratio.unwrap_or(0.0)),
            "estimated_row_count" => json!(self.number_of_partitions_estimate),
            "min_row_size" => json!(self.compacted_partition_minimum_bytes),
            "max_row_size" => json!(self.compacted_partition_maximum_bytes),
            "mean_row_size" => json!(self.compacted_partition_mean_bytes),
            _ => return None,
        })
    }
}

/// The statistics of `tables`, in order.
pub async fn collect(remote: &RemoteServices, tables: &[TableName]) -> Result<Vec<TableNumbers>, Refusal> {
    let ids: Vec<_> = tables.iter().map(|table| table.id).collect();
    let details = observed(remote, |services| storage::table_details(services.cluster.engine, ids)).await?;
    let snapshots = snapshots::find(remote, Some(tables.to_vec())).await?;
    let numbers = tables.iter().zip(&details).map(|(table, details)| {
        let own = snapshots.iter().filter(|one| one.keyspace == table.keyspace && one.table == table.name);
        TableNumbers::new(table, details, own.map(|one| one.live).sum())
    });
    Ok(numbers.collect())
}

/// One number of one table, or the sum over all if `table` is not given.
pub async fn metric(remote: &RemoteServices, metric: &str, table: Option<&TableName>) -> Result<Value, Refusal> {
    let unknown = || Refusal::Missing(format!("Not found: /column_family/metrics/{metric}"));
    let tables = match table {
        Some(table) => vec![table.clone()],
        None => operations::all_tables(remote).await?,
    };
    let numbers = collect(remote, &tables).await?;
    match (table, &numbers[..]) {
        (Some(_), [one]) => one.metric(metric).ok_or_else(unknown),
        _ => {
            let each: Option<Vec<u64>> =
                numbers.iter().map(|one| one.metric(metric).and_then(|value| value.as_u64())).collect();
            let each = each.filter(|_| !metric.ends_with("_row_size")).ok_or_else(unknown)?;
            Ok(json!(each.iter().sum::<u64>()))
        }
    }
}
