//! The compaction options of a table, from its schema. Values were validated when they were set; a
//! value that cannot be parsed counts as the default.
//!
//! Names and defaults are ScyllaDB's. `IncrementalCompactionStrategy` and unknown classes run as
//! size-tiered. `NullCompactionStrategy` turns automatic compaction off.

use model::options::OptionMap;
use rt::time::Duration;

/// How a table is compacted.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Options {
    /// Whether automatic compaction is on.
    pub enabled: bool,
    pub strategy: Strategy,
    /// When a single sstable is rewritten to drop its tombstones; `None` for never.
    pub tombstones: Option<Tombstones>,
}

/// Which sstables are merged.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Strategy {
    SizeTiered(SizeTiered),
    Leveled(Leveled),
    TimeWindow(TimeWindow),
}

/// When a single sstable is worth rewriting.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Tombstones {
    /// The estimated fraction of droppable tombstones is larger than this ...
    pub threshold: f64,
    /// ... and the sstable is older than this.
    pub interval: Duration,
}

/// Sstables of similar size are merged.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SizeTiered {
    /// The fewest sstables that are merged.
    pub min_threshold: usize,
    /// The most.
    pub max_threshold: usize,
    /// An sstable belongs to a bucket if it is larger than this multiple of the bucket's mean ...
    pub bucket_low: f64,
    /// ... and smaller than this one.
    pub bucket_high: f64,
    /// All sstables smaller than this belong to one bucket.
    pub min_sstable_size: u64,
}

/// Levels of small sstables that do not overlap, each level ten times the one before.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Leveled {
    /// Bytes of one sstable.
    pub sstable_size: u64,
    /// How much larger each level is than the one before.
    pub fan_out: u64,
    /// How sstables of level 0 are merged with one another.
    pub level0: SizeTiered,
}

/// Sstables of one time window are merged.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TimeWindow {
    /// A window's length, in units of write timestamps.
    pub window: i64,
    /// How the newest window is merged.
    pub newest: SizeTiered,
    /// How often to look for sstables that are expired.
    pub expired_check: Duration,
    /// Drops expired sstables even if they cover data in other sstables. That data becomes visible
    /// again.
    pub drop_unchecked: bool,
}

impl Default for SizeTiered {
    fn default() -> Self {
        SizeTiered {
            min_threshold: 4,
            max_threshold: 32,
            bucket_low: 0.5,
            bucket_high: 1.5,
            min_sstable_size: 50 << 20,
        }
    }
}

fn get<T: std::str::FromStr>(options: &OptionMap, name: &str, default: T) -> T {
    options.get(name).and_then(|text| text.trim().parse().ok()).unwrap_or(default)
}

fn is(options: &OptionMap, name: &str) -> bool {
    options.get(name).is_some_and(|text| text.eq_ignore_ascii_case("true"))
}

impl Options {
    pub fn of(options: &OptionMap) -> Self {
        let tiered = SizeTiered::of(options);
        let class = options.get("class").map_or("", |class| class.rsplit('.').next().unwrap_or(class));
        let strategy = match class {
            "LeveledCompactionStrategy" => Strategy::Leveled(Leveled::of(options, tiered)),
            "TimeWindowCompactionStrategy" => Strategy::TimeWindow(TimeWindow::of(options, tiered)),
            _ => Strategy::SizeTiered(tiered),
        };
        let is_requested =
            options.contains_key("tombstone_threshold") || options.contains_key("tombstone_compaction_interval");
        let tombstones = Tombstones {
            threshold: get(options, "tombstone_threshold", 0.2),
            interval: Duration::from_secs(get(options, "tombstone_compaction_interval", 86_400)),
        };
        // The sstables of a window expire together, so rewriting a single one must be requested by
        // an option.
        let rewrites = is_requested || !matches!(strategy, Strategy::TimeWindow(_));
        Options {
            enabled: class != "NullCompactionStrategy"
                && options.get("enabled").is_none_or(|text| !text.eq_ignore_ascii_case("false")),
            strategy,
            tombstones: rewrites.then_some(tombstones),
        }
    }
}

impl SizeTiered {
    fn of(options: &OptionMap) -> Self {
        let default = SizeTiered::default();
        let min_threshold = get(options, "min_threshold", default.min_threshold).max(2);
        SizeTiered {
            min_threshold,
            max_threshold: get(options, "max_threshold", default.max_threshold).max(min_threshold),
            bucket_low: get(options, "bucket_low", default.bucket_low),
            bucket_high: get(options, "bucket_high", default.bucket_high),
            min_sstable_size: get(options, "min_sstable_size", default.min_sstable_size),
        }
    }
}

impl Leveled {
    fn of(options: &OptionMap, tiered: SizeTiered) -> Self {
        let megabytes = get(options, "sstable_size_in_mb", 160.0f64);
        Leveled {
            sstable_size: (megabytes * 1_048_576.0).max(1.0) as u64,
            fan_out: get(options, "fanout_size", 10u64).max(2),
            // `min_sstable_size` is 0, so that only small sstables of similar size are merged: the
            // result is written again when it leaves level 0.
            level0: SizeTiered { min_sstable_size: 0, ..tiered },
        }
    }
}

impl TimeWindow {
    fn of(options: &OptionMap, newest: SizeTiered) -> Self {
        let unit = match options.get("compaction_window_unit").map(String::as_str) {
            Some("MINUTES") => 60,
            Some("HOURS") => 3_600,
            _ => 86_400i64,
        };
        let per_second = match options.get("timestamp_resolution").map(String::as_str) {
            Some("MILLISECONDS") => 1_000,
            _ => 1_000_000i64,
        };
        let size = get(options, "compaction_window_size", 1i64).max(1);
        let check = get(options, "expired_sstable_check_frequency_seconds", 600.0f64);
        TimeWindow {
            window: size.saturating_mul(unit * per_second),
            newest,
            expired_check: Duration::try_from_secs_f64(check.max(0.0)).unwrap_or(Duration::MAX),
            drop_unchecked: is(options, "unsafe_aggressive_sstable_expiration"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(entries: &[(&str, &str)]) -> OptionMap {
        entries.iter().map(|(a, b)| (a.to_string(), b.to_string())).collect()
    }

    #[test]
    fn size_tiered_is_the_default_and_serves_for_incremental() {
        let default = Options::of(&OptionMap::new());
        assert_eq!(default.strategy, Strategy::SizeTiered(SizeTiered::default()));
        assert!(default.enabled);
        assert_eq!(default.tombstones, Some(Tombstones { threshold: 0.2, interval: Duration::from_secs(86_400) }));
        let incremental = map(&[("class", "IncrementalCompactionStrategy"), ("sstable_size_in_mb", "7")]);
        assert_eq!(Options::of(&incremental), default);
        let options = Options::of(&map(&[
            ("enabled", "false"),
            ("min_threshold", "1"),
            ("max_threshold", "x"),
            ("bucket_high", "2.5"),
        ]));
        let tiered = SizeTiered { min_threshold: 2, bucket_high: 2.5, ..SizeTiered::default() };
        assert_eq!((options.enabled, options.strategy), (false, Strategy::SizeTiered(tiered)));
    }

    #[test]
    fn leveled_has_scylladbs_defaults() {
        let class = ("class", "org.apache.cassandra.db.compaction.LeveledCompactionStrategy");
        let Strategy::Leveled(leveled) = Options::of(&map(&[class])).strategy else { panic!("leveled") };
        assert_eq!((leveled.sstable_size, leveled.fan_out), (160 << 20, 10));
        let own = map(&[class, ("sstable_size_in_mb", "5"), ("fanout_size", "4")]);
        let Strategy::Leveled(leveled) = Options::of(&own).strategy else { panic!("leveled") };
        assert_eq!((leveled.sstable_size, leveled.fan_out), (5 << 20, 4));
    }

    #[test]
    fn windows_are_counted_in_the_unit_of_timestamps() {
        let class = ("class", "TimeWindowCompactionStrategy");
        let options = Options::of(&map(&[class]));
        assert_eq!(options.tombstones, None);
        let Strategy::TimeWindow(default) = options.strategy else { panic!("time window") };
        assert_eq!((default.window, default.drop_unchecked), (86_400_000_000, false));
        assert_eq!(default.expired_check, Duration::from_secs(600));
        let own = map(&[
            class,
            ("compaction_window_unit", "MINUTES"),
            ("compaction_window_size", "5"),
            ("timestamp_resolution", "MILLISECONDS"),
            ("unsafe_aggressive_sstable_expiration", "true"),
            ("expired_sstable_check_frequency_seconds", "30"),
            ("tombstone_threshold", "0.5"),
        ]);
        let options = Options::of(&own);
        assert!(options.tombstones.is_some_and(|tombstones| tombstones.threshold == 0.5));
        let Strategy::TimeWindow(own) = options.strategy else { panic!("time window") };
        assert_eq!((own.window, own.drop_unchecked, own.expired_check), (300_000, true, Duration::from_secs(30)));
    }
}
