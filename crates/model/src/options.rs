//! Table options: the content of a WITH clause, with Messina's defaults. The query processor checks
//! values before they get here.

use std::collections::BTreeMap;

/// A map option, ordered so that it prints the same each time.
pub type OptionMap = BTreeMap<String, String>;

/// The options of a table. All are stored and described. The layers above decide which of them have
/// an effect.
#[derive(Clone, PartialEq, Debug, serde::Serialize, serde::Deserialize)]
pub struct TableOptions {
    /// Free text.
    pub comment: String,
    /// Bloom filters' wanted false positive chance, in (0, 1].
    pub bloom_filter_fp_chance: f64,
    /// `keys`, `rows_per_partition`, `enabled`.
    pub caching: OptionMap,
    /// `class` and the strategy's own options.
    pub compaction: OptionMap,
    /// `sstable_compression`, `chunk_length_in_kb`, ...; an empty map or class: not compressed.
    pub compression: OptionMap,
    /// Kept for description: checksums are always checked.
    pub crc_check_chance: f64,
    /// Seconds; 0 = none.
    pub default_time_to_live: i32,
    /// Seconds that a tombstone is kept at least.
    pub gc_grace_seconds: i32,
    /// Partitions between summary entries, bounds.
    pub max_index_interval: i32,
    /// Partitions between summary entries.
    pub min_index_interval: i32,
    /// Milliseconds; 0 = none.
    pub memtable_flush_period_in_ms: i32,
    /// When a second replica is asked.
    pub speculative_retry: String,
    /// `mode`, `propagation_delay_in_seconds`.
    pub tombstone_gc: OptionMap,
    /// `max_reads_per_second`, `max_writes_per_second`.
    pub per_partition_rate_limit: OptionMap,
    /// Change data capture options.
    pub cdc: OptionMap,
    /// Tablet hints: `min_tablet_count` and others.
    pub tablets: OptionMap,
    /// Seconds.
    pub paxos_grace_seconds: i32,
    /// Options of Cassandra that are accepted and described only: `additional_write_policy`, `read_repair`, ...
    pub others: OptionMap,
}

fn map(entries: &[(&str, &str)]) -> OptionMap {
    entries.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect()
}

impl Default for TableOptions {
    fn default() -> Self {
        TableOptions {
            comment: String::new(),
            bloom_filter_fp_chance: 0.01,
            caching: map(&[("keys", "ALL"), ("rows_per_partition", "ALL")]),
            compaction: map(&[("class", "SizeTieredCompactionStrategy")]),
            compression: map(&[
                ("sstable_compression", "org.apache.cassandra.io.compress.LZ4Compressor"),
                ("chunk_length_in_kb", "4"),
            ]),
            crc_check_chance: 1.0,
            default_time_to_live: 0,
            gc_grace_seconds: 864_000,
            max_index_interval: 2048,
            min_index_interval: 128,
            memtable_flush_period_in_ms: 0,
            speculative_retry: "99.0PERCENTILE".into(),
            tombstone_gc: map(&[("mode", "timeout"), ("propagation_delay_in_seconds", "3600")]),
            per_partition_rate_limit: OptionMap::new(),
            cdc: OptionMap::new(),
            tablets: OptionMap::new(),
            paxos_grace_seconds: 864_000,
            others: OptionMap::new(),
        }
    }
}
