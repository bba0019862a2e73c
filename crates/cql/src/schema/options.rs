//! Table options: checks the WITH clause of CREATE TABLE and ALTER TABLE, and gives the options
//! their stored form.
//!
//! The stored form is canonical: the output of DESCRIBE sets the same options again. If an option
//! has no effect yet and is set to other than its default, the client gets a warning.

mod compaction;
mod compression;
pub mod properties;
pub mod rate_limit;
mod small;

use crate::error::Error;
use crate::large_data;
use crate::syntax::ast::{Literal, OptionValue, SchemaOption};
use cluster::Metadata;
use cluster::topology::features;
use model::options::TableOptions;
use model::time::MAX_TTL;
use properties::Properties;
use uuid::Uuid;

/// The lowest false positive rate for which a bloom filter can be built.
const MIN_BLOOM_FILTER_FP_CHANCE: f64 = 6.71e-5;

/// The shortest period of memtable flushes, in milliseconds.
const MIN_FLUSH_PERIOD: i32 = 60_000;

const KNOWN: &[&str] = &[
    "bloom_filter_fp_chance",
    "caching",
    "cdc",
    "comment",
    "compaction",
    "compression",
    "crc_check_chance",
    "default_time_to_live",
    "extensions",
    "gc_grace_seconds",
    "id",
    "max_index_interval",
    "memtable_flush_period_in_ms",
    "min_index_interval",
    "paxos_grace_seconds",
    "per_partition_rate_limit",
    "speculative_retry",
    "synchronous_updates",
    "tablets",
    "tombstone_gc",
];

/// Options of Cassandra and of newer ScyllaDB without effect, with their defaults. They are stored
/// as text, and described if set.
const OTHERS: &[(&str, &[&str])] = &[
    ("additional_write_policy", &["99p", "99PERCENTILE", "99.0PERCENTILE"]),
    ("allow_auto_snapshot", &["true"]),
    ("incremental_backups", &["true"]),
    ("memtable", &["default"]),
    ("read_repair", &["BLOCKING"]),
];

/// Stored as text like [`OTHERS`]. It decides whether the large-data guardrails check the table's
/// writes.
const GUARDED: &str = large_data::OPTION;

/// Accepted and ignored.
const OBSOLETE: &[&str] = &[
    "dclocal_read_repair_chance",
    "index_interval",
    "populate_io_cache_on_flush",
    "read_repair_chance",
    "replicate_on_write",
];

/// The statement that has the options.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Purpose {
    /// CREATE TABLE.
    Create,
    /// ALTER TABLE.
    Alter,
}

/// Checked options in their stored form.
#[derive(Debug)]
pub struct Applied {
    /// All options of the table.
    pub options: TableOptions,
    /// The id that the statement requests for the table.
    pub id: Option<Uuid>,
    /// Warnings for the client.
    pub warnings: Vec<String>,
}

/// Applies a WITH clause to the previous options, or to the defaults.
pub fn apply(before: Option<&TableOptions>, written: &[SchemaOption], purpose: Purpose) -> Result<Applied, Error> {
    let properties = Properties::new(written)?;
    let known: Vec<&str> = KNOWN.iter().copied().chain(OTHERS.iter().map(|(name, _)| *name)).chain([GUARDED]).collect();
    properties.check_known(&known, OBSOLETE)?;
    let mut applied = Applied {
        options: before.cloned().unwrap_or_default(),
        id: table_id(&properties, purpose)?,
        warnings: Vec::new(),
    };
    numbers(&properties, &mut applied)?;
    maps(&properties, purpose, &mut applied)?;
    others(&properties, &mut applied)?;
    Ok(applied)
}

/// Refuses options that some member of the cluster does not apply.
pub fn check_features(metadata: &Metadata, options: &TableOptions) -> Result<(), Error> {
    if options.per_partition_rate_limit.is_empty() || metadata.topology.has_feature(features::RATE_LIMITS) {
        return Ok(());
    }
    Err(Error::Configuration("Per-partition rate limit is not supported yet by the whole cluster".into()))
}

/// The warning for an option without effect.
fn without_effect(what: &str) -> String {
    format!("The option {what} is stored but has no effect yet")
}

fn table_id(properties: &Properties, purpose: Purpose) -> Result<Option<Uuid>, Error> {
    let Some(value) = properties.value("id") else { return Ok(None) };
    if purpose == Purpose::Alter {
        return Err(Error::Configuration("Cannot alter table id.".into()));
    }
    let id = match value {
        OptionValue::Literal(Literal::Uuid(id)) => Some(*id),
        OptionValue::Literal(literal) => Uuid::parse_str(&literal.text()).ok(),
        _ => None,
    };
    id.map(Some).ok_or_else(|| Error::Configuration("Invalid table id".into()))
}

fn numbers(properties: &Properties, applied: &mut Applied) -> Result<(), Error> {
    let refuse = |message: String| Err(Error::Configuration(message));
    let at_least_zero = |name: &str, default: i32| match properties.int(name)? {
        Some(value) if value < 0 => {
            Err(Error::Configuration(format!("{name} cannot be smaller than 0, (default {default})")))
        }
        value => Ok(value),
    };
    let defaults = TableOptions::default();
    let options = &mut applied.options;
    if let Some(comment) = properties.text("comment")? {
        options.comment = comment;
    }
    if let Some(seconds) = at_least_zero("gc_grace_seconds", defaults.gc_grace_seconds)? {
        options.gc_grace_seconds = seconds;
    }
    if let Some(seconds) = at_least_zero("default_time_to_live", 0)? {
        if seconds > MAX_TTL {
            return refuse(format!("default_time_to_live must be less than or equal to {MAX_TTL} (got {seconds})"));
        }
        options.default_time_to_live = seconds;
    }
    if let Some(seconds) = at_least_zero("paxos_grace_seconds", defaults.paxos_grace_seconds)? {
        options.paxos_grace_seconds = seconds;
        if seconds != defaults.paxos_grace_seconds {
            applied.warnings.push(without_effect("paxos_grace_seconds"));
        }
    }
    if let Some(interval) = properties.int("min_index_interval")? {
        options.min_index_interval = interval;
    }
    if let Some(interval) = properties.int("max_index_interval")? {
        options.max_index_interval = interval;
    }
    if options.min_index_interval < 1 {
        return refuse("min_index_interval must be greater than 0".into());
    }
    if options.max_index_interval < options.min_index_interval {
        return refuse("max_index_interval must be greater than min_index_interval".into());
    }
    if let Some(chance) = properties.double("bloom_filter_fp_chance")? {
        if chance <= MIN_BLOOM_FILTER_FP_CHANCE || chance > 1.0 {
            return refuse(format!(
                "bloom_filter_fp_chance must be larger than {MIN_BLOOM_FILTER_FP_CHANCE} and less than or equal to 1.0 (got {chance})"
            ));
        }
        options.bloom_filter_fp_chance = chance;
    }
    if let Some(chance) = properties.double("crc_check_chance")? {
        if !(0.0..=1.0).contains(&chance) {
            return refuse(format!("crc_check_chance must be between 0.0 and 1.0 (got {chance})"));
        }
        options.crc_check_chance = chance;
        if chance != defaults.crc_check_chance {
            applied
                .warnings
                .push("crc_check_chance is stored but has no effect: checksums are always checked".to_owned());
        }
    }
    if let Some(period) = properties.int("memtable_flush_period_in_ms")? {
        if period != 0 && period < MIN_FLUSH_PERIOD {
            return refuse(format!("memtable_flush_period_in_ms must be 0 or greater than {MIN_FLUSH_PERIOD}"));
        }
        options.memtable_flush_period_in_ms = period;
        if period != 0 {
            applied.warnings.push(without_effect("memtable_flush_period_in_ms"));
        }
    }
    Ok(())
}

fn maps(properties: &Properties, purpose: Purpose, applied: &mut Applied) -> Result<(), Error> {
    let Applied { options, warnings, .. } = applied;
    // Drivers write this option when they describe a table.
    if let Some(written) = properties.map("extensions")?
        && let Some(limits) = rate_limit::of_extensions(&written)?
    {
        options.per_partition_rate_limit = limits;
    }
    if let Some(written) = properties.map("compaction")?
        && !written.is_empty()
    {
        options.compaction = compaction::stored(written, warnings)?;
    }
    if let Some(written) = properties.map("compression")? {
        options.compression = compression::stored(written, warnings)?;
    }
    if let Some(written) = small::caching(properties)? {
        options.caching = written;
        if options.caching != TableOptions::default().caching {
            warnings.push(without_effect("caching"));
        }
    }
    if let Some(written) = properties.text("speculative_retry")? {
        options.speculative_retry = small::speculative_retry(&written)?;
    }
    if let Some(written) = properties.map("tombstone_gc")? {
        options.tombstone_gc = small::tombstone_gc(written, warnings)?;
    }
    if let Some(written) = properties.map(rate_limit::OPTION)? {
        options.per_partition_rate_limit = rate_limit::stored(written)?;
    }
    if let Some(written) = small::cdc(properties)? {
        options.cdc = written;
    }
    if let Some(written) = properties.map("tablets")? {
        options.tablets = small::tablets(written)?;
        if purpose == Purpose::Alter && !options.tablets.is_empty() {
            warnings.push(
                "The tablets option of an existing table is stored but does not change its tablets yet".to_owned(),
            );
        }
    }
    Ok(())
}

fn others(properties: &Properties, applied: &mut Applied) -> Result<(), Error> {
    if properties.boolean("synchronous_updates")?.unwrap_or(false) {
        return Err(Error::invalid(
            "The synchronous_updates option is only applicable to materialized views, not to base tables",
        ));
    }
    match properties.boolean(GUARDED)? {
        Some(true) => drop(applied.options.others.insert(GUARDED.to_owned(), "true".to_owned())),
        Some(false) => drop(applied.options.others.remove(GUARDED)),
        None => {}
    }
    for (name, defaults) in OTHERS {
        let Some(value) = properties.text(name)? else { continue };
        if defaults.iter().any(|default| default.eq_ignore_ascii_case(&value)) {
            applied.options.others.remove(*name);
        } else {
            applied.options.others.insert((*name).to_owned(), value);
            applied.warnings.push(without_effect(name));
        }
    }
    Ok(())
}
