//! The `compaction` option.

use super::properties::{boolean, int};
use crate::error::Error;
use model::options::OptionMap;

const PACKAGE: &str = "org.apache.cassandra.db.compaction.";
const SIZE_TIERED: &str = "SizeTieredCompactionStrategy";

/// Options of every strategy.
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

/// The strategies and their own options.
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
    (
        "IncrementalCompactionStrategy",
        &["bucket_high", "bucket_low", "min_sstable_size", "space_amplification_goal", "sstable_size_in_mb"],
    ),
];

/// The option in its stored form: the class without its package.
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
    if *class != SIZE_TIERED {
        warnings.push(format!("{class} is not supported yet: the table is compacted by {SIZE_TIERED}"));
    }
    Ok(written)
}

fn refused(message: impl Into<String>) -> Error {
    Error::Configuration(message.into())
}

/// Checks one option by itself, and makes switches lower case.
fn check(name: &str, value: &mut String) -> Result<(), Error> {
    let number = |value: &str| {
        let parsed = value.trim().parse::<f64>().ok().filter(|number| number.is_finite());
        parsed.ok_or_else(|| refused(format!("Invalid number {value} for '{name}'")))
    };
    let must = match name {
        "enabled"
        | "unchecked_tombstone_compaction"
        | "only_purge_repaired_tombstones"
        | "log_all"
        | "single_sstable_uplevel"
        | "split_during_flush"
        | "enable_optimized_twcs_queries"
        | "unsafe_aggressive_sstable_expiration" => {
            *value = boolean(name, value)?.to_string();
            None
        }
        "min_threshold" | "max_threshold" => int(name, value).map(|_| None)?,
        "tombstone_threshold" => (!(0.0..=1.0).contains(&number(value)?)).then_some("must be between 0.0 and 1.0"),
        "tombstone_compaction_interval" | "min_sstable_size" | "cold_reads_to_omit" => {
            (number(value)? < 0.0).then_some("must be non negative")
        }
        "compaction_window_size" | "sstable_size_in_mb" | "fanout_size" => {
            (int(name, value)? < 1).then_some("must be greater than 0")
        }
        "compaction_window_unit" => {
            (!["MINUTES", "HOURS", "DAYS"].contains(&value.as_str())).then_some("must be MINUTES, HOURS or DAYS")
        }
        "timestamp_resolution" => (!["MICROSECONDS", "MILLISECONDS"].contains(&value.as_str()))
            .then_some("must be MICROSECONDS or MILLISECONDS"),
        "expired_sstable_check_frequency_seconds" | "bucket_high" | "bucket_low" | "space_amplification_goal" => {
            number(value).map(|_| None)?
        }
        _ => None,
    };
    must.map_or(Ok(()), |must| Err(refused(format!("{name} value ({value}) {must}"))))
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
    if least < 2 {
        return Err(refused(format!("min_threshold value ({least}) must be bigger or equal to 2")));
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
