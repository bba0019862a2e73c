//! Table options as text, in ScyllaDB's order.

use crate::schema::first_types;
use cluster::tablets::strategy::racks_of;
use model::options::{OptionMap, TableOptions};

/// `name = value` for each option. Options of ScyllaDB's extensions and of Cassandra alone are left
/// out while they have no effect.
pub fn properties(options: &TableOptions) -> Vec<String> {
    let mut out = vec![
        format!("bloom_filter_fp_chance = {}", options.bloom_filter_fp_chance),
        format!("caching = {}", map(&options.caching)),
        format!("comment = {}", string(&options.comment)),
        format!("compaction = {}", map(&options.compaction)),
        format!("compression = {}", map(&options.compression)),
        format!("crc_check_chance = {}", options.crc_check_chance),
        format!("default_time_to_live = {}", options.default_time_to_live),
        format!("gc_grace_seconds = {}", options.gc_grace_seconds),
        format!("max_index_interval = {}", options.max_index_interval),
        format!("memtable_flush_period_in_ms = {}", options.memtable_flush_period_in_ms),
        format!("min_index_interval = {}", options.min_index_interval),
        format!("speculative_retry = {}", string(&options.speculative_retry)),
        format!("tombstone_gc = {}", map(&options.tombstone_gc)),
    ];
    if options.paxos_grace_seconds != TableOptions::default().paxos_grace_seconds {
        out.push(format!("paxos_grace_seconds = {}", options.paxos_grace_seconds));
    }
    for (name, value) in [
        ("per_partition_rate_limit", &options.per_partition_rate_limit),
        ("cdc", &options.cdc),
        ("tablets", &options.tablets),
    ] {
        if !value.is_empty() {
            out.push(format!("{name} = {}", map(value)));
        }
    }
    let others = options.others.iter().filter(|(name, _)| !first_types::is_one(name));
    out.extend(others.map(|(name, value)| format!("{name} = {}", string(value))));
    out
}

/// A map of strings, with the class first.
pub fn map(map: &OptionMap) -> String {
    let (class, rest): (Vec<_>, Vec<_>) = map.iter().partition(|(key, _)| *key == "class");
    let entries = class.into_iter().chain(rest).map(|(key, value)| format!("{}: {}", string(key), string(value)));
    format!("{{{}}}", entries.collect::<Vec<_>>().join(", "))
}

/// The replication options of a keyspace: a map of strings, with rack lists as lists.
pub fn replication(map: &OptionMap) -> String {
    let (class, rest): (Vec<_>, Vec<_>) = map.iter().partition(|(key, _)| *key == "class");
    let entries = class.into_iter().chain(rest).map(|(key, value)| match racks_of(value) {
        Some(_) => format!("{}: {value}", string(key)),
        None => format!("{}: {}", string(key), string(value)),
    });
    format!("{{{}}}", entries.collect::<Vec<_>>().join(", "))
}

fn string(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}
