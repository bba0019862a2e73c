//! The `compaction` option.

use super::properties::int;
use crate::error::Error;
use model::options::OptionMap;

const PACKAGE: &str = "org.apache.cassandra.db.compaction.";
const SIZE_TIERED: &str = "SizeTieredCompactionStrategy";

const INCREMENTAL: &str = "IncrementalCompactionStrategy";

/// Options without effect. Compaction behaves as if `unchecked_tombstone_compaction` were always
/// true: it rewrites an sstable for its tombstones without checking the data that they cover in
/// other sstables.
const WITHOUT_EFFECT: &[&str] =
    &["log_all", "only_purge_repaired_tombstones", "single_sstable_uplevel", "split_during_flush"];

/// The options of all strategies.
const COMMON: &[&str] = &[
    "enabled",
    "log_all",
    "max_threshold",
    "min_threshold",
    "only_purge_repaired_tombstones",
    "tombstone_compaction_interval",
    "tombstone_threshold",
    "unchecked_tombstone_compaction",
];

/// The strategies with their own options.
const STRATEGIES: &[(&str, &[&str])] = &[
    (SIZE_TIERED, &["bucket_high", "bucket_low", "cold_reads_to_omit", "min_sstable_size"]),
    ("LeveledCompactionStrategy", &["fanout_size", "single_sstable_uplevel", "sstable_size_in_mb"]),
    (
        "TimeWindowCompactionStrategy",
        &[
            "bucket_high",
            "bucket_low",
            "compaction_window_size",
            "compaction_window_unit",
            "enable_optimized_twcs_queries",
            "expired_sstable_check_frequency_seconds",
            "min_sstable_size",
            "split_during_flush",
            "timestamp_resolution",
            "unsafe_aggressive_sstable_expiration",
        ],
    ),
    // Automatic compaction is off.
    ("NullCompactionStrategy", &[]),
    (INCREMENTAL, &["bucket_high", "bucket_low", "min_sstable_size", "space_amplification_goal", "sstable_size_in_mb"]),
];

/// The stored form of the option: the class without its package.
pub fn stored(mut written: OptionMap, warnings: &mut Vec<String>) -> Result<OptionMap, Error> {
    let Some(class) = written.get("class").cloned() else {
        return Err(refused("Missing sub-option 'class' for the 'compaction' option."));
    };
    let short = class.strip_prefix(PACKAGE).unwrap_or(&class);
    let Some((class, own)) = STRATEGIES.iter().find(|(name, _)| *name == short) else {
        return Err(refused(format!("Unable to find compaction strategy class '{class}'")));
    };
    written.insert("class".to_owned(), (*class).to_owned());
    for (name, value) in &mut written {
        if name != "class" && !COMMON.contains(&name.as_str()) && !own.contains(&name.as_str()) {
            return Err(refused(format!(
                "Invalid compaction strategy options {{{{{name}, {value}}}}} for chosen strategy type"
            )));
        }
        check(name, value)?;
    }
    check_thresholds(&written)?;
    if *class == INCREMENTAL {
        warnings.push(format!("{class} is not supported yet: the table is compacted by {SIZE_TIERED}"));
    }
    for name in WITHOUT_EFFECT {
        if written.get(*name).is_some_and(|value| value == "true") {
            warnings.push(super::without_effect(&format!("{name} of compaction")));
        }
    }
    Ok(written)
}

fn refused(message: impl Into<String>) -> Error {
    Error::Configuration(message.into())
}

/// Checks one option alone, and converts booleans to lower case.
fn check(name: &str, value: &mut String) -> Result<(), Error> {
    let number = |value: &str| {
        let parsed = value.trim().parse::<f64>().ok().filter(|number| number.is_finite());
        parsed.ok_or_else(|| refused(format!("Invalid number {value} for '{name}'")))
    };
    let must = |must: &str| Err(refused(format!("{name} value ({value}) must be {must}")));
    match name {
        "enabled"
        | "unchecked_tombstone_compaction"
        | "only_purge_repaired_tombstones"
        | "log_all"
        | "single_sstable_uplevel"
        | "split_during_flush"
        | "enable_optimized_twcs_queries"
        | "unsafe_aggressive_sstable_expiration" => match value.to_lowercase().as_str() {
            lower @ ("true" | "false") => *value = lower.to_owned(),
            _ => return must("\"true\" or \"false\""),
        },
        "min_threshold" | "max_threshold" => {
            int(name, value)?;
        }
        "tombstone_threshold" | "cold_reads_to_omit" => match number(value)? {
            part if (0.0..=1.0).contains(&part) => {}
            _ => return must("between 0.0 and 1.0"),
        },
        "min_sstable_size" => match number(value)? {
            size if size >= 0.0 => {}
            _ => return must("non negative"),
        },
        "tombstone_compaction_interval" => match number(value)? {
            seconds if seconds > 0.0 => {}
            seconds => {
                return Err(refused(format!("{name} value ({}ms) must be positive", (seconds * 1000.0) as i64)));
            }
        },
        "compaction_window_size" => match int(name, value)? {
            1.. => {}
            _ => return must("greater than 1"),
        },
        "sstable_size_in_mb" | "fanout_size" => match int(name, value)? {
            1.. => {}
            _ => return must("positive"),
        },
        "compaction_window_unit" => match value.as_str() {
            "MINUTES" | "HOURS" | "DAYS" => {}
            _ => return Err(refused(format!("Invalid window unit {value} for {name}"))),
        },
        "timestamp_resolution" => match value.as_str() {
            "MICROSECONDS" | "MILLISECONDS" => {}
            _ => return Err(refused(format!("Invalid timestamp resolution {value} for {name}"))),
        },
        "space_amplification_goal" => match number(value)? {
            goal if goal > 1.0 && goal <= 2.0 => {}
            _ => return must("greater than 1.0 and less than or equal to 2.0"),
        },
        "expired_sstable_check_frequency_seconds" => match number(value)? {
            seconds if seconds >= 0.0 => {}
            _ => return must("non negative"),
        },
        "bucket_high" | "bucket_low" => {
            number(value)?;
        }
        _ => {}
    }
    Ok(())
}

fn check_thresholds(options: &OptionMap) -> Result<(), Error> {
    let threshold = |name: &str, default: i32| options.get(name).map_or(Ok(default), |value| int(name, value));
    let (least, most) = (threshold("min_threshold", 4)?, threshold("max_threshold", 32)?);
    if least <= 0 || most <= 0 {
        return Err(refused(
            "Disabling compaction by setting compaction thresholds to 0 has been deprecated, set the compaction option \
             'enabled' to false instead.",
        ));
    }
    for (name, threshold) in [("min_threshold", least), ("max_threshold", most)] {
        if threshold < 2 {
            return Err(refused(format!("{name} value ({threshold}) must be bigger or equal to 2")));
        }
    }
    if most < least {
        return Err(refused(format!(
            "max_threshold value ({most}) must be bigger or equal to min_threshold value ({least})"
        )));
    }
    let bound = |name: &str, default: f64| options.get(name).and_then(|value| value.parse().ok()).unwrap_or(default);
    let (low, high) = (bound("bucket_low", 0.5), bound("bucket_high", 1.5));
    if low <= 0.0 || low >= 1.0 {
        return Err(refused(format!("bucket_low value ({low}) must be between 0.0 and 1.0")));
    }
    if high <= 1.0 {
        return Err(refused(format!("bucket_high value ({high}) must be greater than 1.0")));
    }
    Ok(())
}
