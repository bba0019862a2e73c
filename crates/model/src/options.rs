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
    /// Limits of each partition, see [`RateLimits`].
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
/// See [`MAX_READS`].
pub const MAX_READ_KB: &str = "max_read_kb_per_second";
/// See [`MAX_READS`].
pub const MAX_WRITE_KB: &str = "max_write_kb_per_second";
/// The name of the mode in `per_partition_rate_limit`: [`ENFORCE`] or [`OBSERVE`].
pub const LIMIT_MODE: &str = "mode";
/// The default mode: what exceeds a limit is refused.
pub const ENFORCE: &str = "enforce";
/// The mode in which refusals are only counted.
pub const OBSERVE: &str = "observe";

/// Whether rate limits and the sketch of hot partitions are compiled in. `bench/goodput` compares
/// with a build without them.
pub const LIMITS: bool = !cfg!(feature = "without-limits");

/// The parsed option `per_partition_rate_limit`: limits of each partition. None: no limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RateLimits {
    /// Reads per second.
    pub reads: Option<u32>,
    /// Writes per second.
    pub writes: Option<u32>,
    /// KiB read per second.
    pub read_kib: Option<u32>,
    /// KiB written per second.
    pub write_kib: Option<u32>,
    /// Whether nothing is refused: what exceeds a limit is only counted.
    pub observe: bool,
}

impl RateLimits {
    /// The limits of an option map that was checked. A number that is not understood is no limit.
    pub fn of(option: &OptionMap) -> RateLimits {
        let limit = |name: &str| option.get(name)?.parse().ok();
        RateLimits {
            reads: limit(MAX_READS),
            writes: limit(MAX_WRITES),
            read_kib: limit(MAX_READ_KB),
            write_kib: limit(MAX_WRITE_KB),
            observe: option.get(LIMIT_MODE).is_some_and(|mode| mode == OBSERVE),
        }
    }

    /// Whether reads have a limit.
    #[inline]
    pub fn limits_reads(&self) -> bool {
        LIMITS && (self.reads.is_some() | self.read_kib.is_some())
    }

    /// Whether writes have a limit.
    #[inline]
    pub fn limits_writes(&self) -> bool {
        LIMITS && (self.writes.is_some() | self.write_kib.is_some())
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
