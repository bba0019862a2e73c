//! Table options (`WITH`) and their defaults in Messina. The query processor checks the values.

use std::collections::BTreeMap;

/// A map option. It is ordered, so that it is always printed the same.
pub type OptionMap = BTreeMap<String, String>;

/// The options of a table. All of them are stored and described; the layers above decide which have
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
    /// `sstable_compression`, `chunk_length_in_kb`, ...; an empty map or class means no
    /// compression.
    pub compression: OptionMap,
    /// Only stored: checksums are always checked.
    pub crc_check_chance: f64,
    /// In seconds; 0 for none.
    pub default_time_to_live: i32,
    /// The seconds for which a tombstone is kept at least.
    pub gc_grace_seconds: i32,
    /// Partitions between summary entries, at most.
    pub max_index_interval: i32,
    /// Partitions between summary entries.
    pub min_index_interval: i32,
    /// In milliseconds; 0 for none.
    pub memtable_flush_period_in_ms: i32,
    /// When one more replica is asked.
    pub speculative_retry: String,
    /// `mode`, `propagation_delay_in_seconds`.
    pub tombstone_gc: OptionMap,
    /// `max_reads_per_second`, `max_writes_per_second`.
    pub per_partition_rate_limit: OptionMap,
    /// Change data capture options.
    pub cdc: OptionMap,
    /// Tablet hints: `min_tablet_count` and others.
    pub tablets: OptionMap,
    /// In seconds.
    pub paxos_grace_seconds: i32,
    /// Options of Cassandra that are only stored and described: `additional_write_policy`,
    /// `read_repair`, ...
    pub others: OptionMap,
}

/// The names of the numbers in `per_partition_rate_limit`.
pub const MAX_READS: &str = "max_reads_per_second";
/// See [`MAX_READS`].
pub const MAX_WRITES: &str = "max_writes_per_second";

/// The parsed option `per_partition_rate_limit`: operations per second of each partition. None: no
/// limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RateLimits {
    /// The limit of reads.
    pub reads: Option<u32>,
    /// The limit of writes.
    pub writes: Option<u32>,
}

impl RateLimits {
    /// The limits of an option map that was checked. A number that is not understood is no limit.
    pub fn of(option: &OptionMap) -> RateLimits {
        let limit = |name: &str| option.get(name)?.parse().ok();
        RateLimits { reads: limit(MAX_READS), writes: limit(MAX_WRITES) }
    }
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
