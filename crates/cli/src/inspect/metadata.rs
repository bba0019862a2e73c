//! `messina inspect metadata`: an sstable's statistics and schema.

use super::{open, render};
use crate::Failure;
use model::TableSchema;
use model::key::{Clustering, DecoratedKey};
use serde_json::{Map, Value, json};
use sstable::dump::{clustering_json, key_texts};
use sstable::statistics::histogram::Histogram;
use sstable::{Sstable, Stats};
use std::io::Write;
use std::path::PathBuf;

/// Prints the properties of each file.
pub async fn print(files: &[PathBuf], json: bool, out: &mut impl Write) -> Result<(), Failure> {
    for (i, file) in files.iter().enumerate() {
        let table = open(file).await?;
        let facts = facts(&table, &file.display().to_string()).await?;
        if json {
            let facts: Map<String, Value> = facts.into_iter().map(|(name, value)| (name.to_string(), value)).collect();
            writeln!(out, "{:#}", Value::Object(facts))?;
            continue;
        }
        if i > 0 {
            writeln!(out)?;
        }
        facts.iter().try_for_each(|(name, value)| render::line(name, value, 0, out))?;
    }
    Ok(())
}

/// The properties, the most important ones first.
async fn facts(table: &Sstable, file: &str) -> Result<Vec<(&'static str, Value)>, Failure> {
    let (schema, stats) = (table.header_schema("", ""), table.stats());
    let components = table.component_lengths().await?;
    let mut all = Vec::new();
    let mut add = |name: &'static str, value: Value| all.push((name, value));
    add("file", json!(file));
    add("version", json!(table.version().name()));
    add("generation", json!(table.generation().to_string()));
    add("bytes", json!(table.total_bytes()));
    add("content_bytes", json!(table.content_bytes()));
    add("components", components.into_iter().map(|(name, length)| (name, json!(length))).collect());
    add("all_components_have_checksums", json!(table.all_protected()));
    add("compression", compression(table));
    add("bloom_filter", filter(table));
    add("partitioner", json!("org.apache.cassandra.dht.Murmur3Partitioner"));
    add("first_key", key(&schema, table.first_key()));
    add("last_key", key(&schema, table.last_key()));
    add("partitions", json!(stats.partitions()));
    add("estimated_distinct_keys", json!(table.cardinality()));
    add("rows", json!(stats.rows));
    add("columns_set", json!(stats.columns_set));
    add("partition_bytes", quantiles(&stats.partition_sizes));
    add("partition_cells", quantiles(&stats.partition_cells));
    add("min_clustering", clustering(&schema, &stats.min_clustering));
    add("max_clustering", clustering(&schema, &stats.max_clustering));
    times(stats, &mut add);
    add("level", json!(stats.level));
    add("repaired_at", json!(stats.repaired_at));
    let intervals = stats.log_intervals.iter().map(|interval| {
        let (start, end) = (interval.start, interval.end);
        json!({ "from": [start.0, i64::from(start.1)], "to": [end.0, i64::from(end.1)] })
    });
    add("commitlog_intervals", intervals.collect());
    add("host_id", json!(stats.host_id.map(|id| id.to_string())));
    add("schema", header(table));
    Ok(all)
}

fn times(stats: &Stats, add: &mut impl FnMut(&'static str, Value)) {
    // The value that represents a missing one becomes null.
    let unless = |value: i32, none: i32| if value == none { Value::Null } else { json!(value) };
    add("min_timestamp", json!(stats.min_timestamp));
    add("max_timestamp", json!(stats.max_timestamp));
    add("min_local_deletion_time", unless(stats.min_deletion_time, i32::MAX));
    add("max_local_deletion_time", unless(stats.max_deletion_time, i32::MAX));
    add("min_ttl", unless(stats.min_ttl, i32::MAX));
    add("max_ttl", json!(stats.max_ttl));
    let bins = stats.drop_times.bins().iter();
    let times = bins.map(|&(time, count)| json!({ "local_deletion_time": time, "count": count }));
    add("tombstone_drop_times", times.collect());
}

fn compression(table: &Sstable) -> Value {
    let Some(facts) = table.compression_facts() else { return Value::Null };
    json!({
        "class": facts.class,
        "options": facts.options.into_iter().map(|(name, value)| (name, json!(value))).collect::<Map<_, _>>(),
        "chunk_bytes": facts.chunk_length,
        "chunks": facts.chunks,
        "max_compressed_bytes": facts.max_compressed_length,
        "ratio": table.stats().compression_ratio,
    })
}

fn filter(table: &Sstable) -> Value {
    let Some(facts) = table.filter_facts() else { return Value::Null };
    let filled = facts.bits_set as f64 / facts.bits.max(1) as f64;
    json!({
        "wanted_false_positives": table.bloom_fp_chance(),
        "likely_false_positives": filled.powi(facts.hashes as i32),
        "hashes": facts.hashes,
        "bits": facts.bits,
        "bits_set": facts.bits_set,
    })
}

/// A key with its token.
pub fn key(schema: &TableSchema, key: &DecoratedKey) -> Value {
    json!({ "token": key.token.0, "key": key_texts(schema, &key.key) })
}

/// The clustering values of a bound. Null if there are none.
fn clustering(schema: &TableSchema, prefix: &Clustering) -> Value {
    let texts = clustering_json(schema, prefix, false);
    if texts.is_empty() { Value::Null } else { texts.iter().map(|text| parsed(text)).collect() }
}

/// Parses JSON. If a number exceeds the range of JSON values, returns the text.
pub fn parsed(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|_| json!(text))
}

fn quantiles(histogram: &Histogram) -> Value {
    if histogram.count() == 0 {
        return Value::Null;
    }
    let parts = [("p50", 0.5), ("p75", 0.75), ("p95", 0.95), ("p99", 0.99), ("max", 1.0)];
    parts.into_iter().map(|(name, part)| (name.to_string(), json!(histogram.quantile(part)))).collect()
}

fn header(table: &Sstable) -> Value {
    let header = table.header();
    let columns = |columns: &[sstable::statistics::header::HeaderColumn]| -> Value {
        columns.iter().map(|column| (column.name.clone(), json!(column.ty.to_string()))).collect()
    };
    let clustering = header.clustering.iter().map(|(ty, descending)| {
        let order = if *descending { "DESC" } else { "ASC" };
        json!(format!("{ty} {order}"))
    });
    json!({
        "partition_key": header.partition_key.iter().map(|ty| ty.to_string()).collect::<Vec<_>>(),
        "clustering": clustering.collect::<Value>(),
        "static_columns": columns(&header.statics),
        "regular_columns": columns(&header.regulars),
        "min_timestamp": header.min_timestamp,
        "min_local_deletion_time": header.min_deletion_time,
        "min_ttl": header.min_ttl,
    })
}
