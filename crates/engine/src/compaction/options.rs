//! A table's compaction options, out of its schema. Values were checked when they were set; what cannot be read is the default.

use model::options::OptionMap;
use model::schema::TableSchema;
use model::time::Seconds;
use rt::time::Duration;

/// The options of size-tiered compaction, which serves for every class for now.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SizeTiered {
    pub enabled: bool,
    /// The fewest sstables that are merged.
    pub min_threshold: usize,
    /// The most.
    pub max_threshold: usize,
    /// An sstable is of a bucket if it is larger than this part of the bucket's mean ...
    pub bucket_low: f64,
    /// ... and smaller than this multiple of it.
    pub bucket_high: f64,
    /// All sstables smaller than this are of one bucket.
    pub min_sstable_size: u64,
    /// A single sstable is rewritten if this part of it is droppable tombstones ...
    pub tombstone_threshold: f64,
    /// ... and it is older than this.
    pub tombstone_compaction_interval: Duration,
}

impl Default for SizeTiered {
    fn default() -> Self {
        SizeTiered {
            enabled: true,
            min_threshold: 4,
            max_threshold: 32,
            bucket_low: 0.5,
            bucket_high: 1.5,
            min_sstable_size: 50 << 20,
            tombstone_threshold: 0.2,
            tombstone_compaction_interval: Duration::from_secs(86_400),
        }
    }
}

impl SizeTiered {
    pub fn of(options: &OptionMap) -> Self {
        fn get<T: std::str::FromStr>(options: &OptionMap, name: &str, default: T) -> T {
            options.get(name).and_then(|text| text.trim().parse().ok()).unwrap_or(default)
        }
        let default = SizeTiered::default();
        let min_threshold = get(options, "min_threshold", default.min_threshold).max(2);
        let interval = get(options, "tombstone_compaction_interval", default.tombstone_compaction_interval.as_secs());
        SizeTiered {
            enabled: options.get("enabled").is_none_or(|text| !text.eq_ignore_ascii_case("false")),
            min_threshold,
            max_threshold: get(options, "max_threshold", default.max_threshold).max(min_threshold),
            bucket_low: get(options, "bucket_low", default.bucket_low),
            bucket_high: get(options, "bucket_high", default.bucket_high),
            min_sstable_size: get(options, "min_sstable_size", default.min_sstable_size),
            tombstone_threshold: get(options, "tombstone_threshold", default.tombstone_threshold),
            tombstone_compaction_interval: Duration::from_secs(interval),
        }
    }
}

/// Tombstones made before this second have outlived their grace period.
pub(crate) fn gc_before(schema: &TableSchema, now: i64) -> Seconds {
    let as_seconds = |at: i64| at.clamp(Seconds::MIN as i64, Seconds::MAX as i64) as Seconds;
    match schema.options.tombstone_gc.get("mode").map(String::as_str) {
        Some("disabled") => Seconds::MIN,
        Some("immediate") => as_seconds(now),
        // Until there is repair, `repair` means `timeout`.
        _ => as_seconds(now - i64::from(schema.options.gc_grace_seconds)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read_from_their_map() {
        assert_eq!(SizeTiered::of(&OptionMap::new()), SizeTiered::default());
        let map: OptionMap =
            [("enabled", "false"), ("min_threshold", "1"), ("max_threshold", "x"), ("bucket_high", "2.5")]
                .into_iter()
                .map(|(a, b)| (a.to_string(), b.to_string()))
                .collect();
        let options = SizeTiered::of(&map);
        assert_eq!((options.enabled, options.min_threshold, options.max_threshold), (false, 2, 32));
        assert_eq!(options.bucket_high, 2.5);
    }
}
