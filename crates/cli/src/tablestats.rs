//! The text of `messina admin tablestats`, with the labels of ScyllaDB's and Cassandra's command.

use serde_json::Value;
use std::fmt::Write;

/// The properties of a table: the label, and the field in the node's answer.
const FIELDS: [(&str, &str); 23] = [
    ("SSTable count", "sstable_count"),
    ("SSTables in each level", "sstables_in_each_level"),
    ("SSTables that cannot be read", "sstables_unreadable"),
    ("Space used (live)", "space_used_live"),
    ("Space used (total)", "space_used_total"),
    ("Space used by snapshots (total)", "space_used_by_snapshots_total"),
    ("Off heap memory used (total)", "off_heap_memory_used_total"),
    ("SSTable Compression Ratio", "sstable_compression_ratio"),
    ("Number of partitions (estimate)", "number_of_partitions_estimate"),
    ("Memtable partition count", "memtable_partition_count"),
    ("Memtable data size", "memtable_data_size"),
    ("Memtable off heap memory used", "memtable_off_heap_memory_used"),
    ("Memtable switch count", "memtable_switch_count"),
    ("Local read count", "local_read_count"),
    ("Local write count", "local_write_count"),
    ("Pending flushes", "pending_flushes"),
    ("Bloom filter off heap memory used", "bloom_filter_off_heap_memory_used"),
    ("Index summary off heap memory used", "index_summary_off_heap_memory_used"),
    ("Compression metadata off heap memory used", "compression_metadata_off_heap_memory_used"),
    ("Compacted partition minimum bytes", "compacted_partition_minimum_bytes"),
    ("Compacted partition maximum bytes", "compacted_partition_maximum_bytes"),
    ("Compacted partition mean bytes", "compacted_partition_mean_bytes"),
    ("Tablets", "tablets"),
];

/// The text for the node's answer.
pub fn text(tables: &Value) -> String {
    let tables = tables.as_array().map(Vec::as_slice).unwrap_or_default();
    let mut out = format!("Total number of tables: {}\n", tables.len());
    let mut keyspace = None;
    for table in tables {
        let own = table["keyspace"].as_str().unwrap_or_default();
        if keyspace != Some(own) {
            keyspace = Some(own);
            let _ = write!(out, "----------------\nKeyspace: {own}\n");
        }
        let _ = writeln!(out, "\tTable: {}", table["table"].as_str().unwrap_or_default());
        for (label, field) in FIELDS {
            let _ = writeln!(out, "\t\t{label}: {}", value(&table[field]));
        }
        out.push('\n');
    }
    out
}

fn value(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(Value::to_string).collect();
            format!("[{}]", items.join(", "))
        }
        Value::Number(number) if number.is_f64() => format!("{:.3}", number.as_f64().unwrap_or(0.0)),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn tables_stand_below_their_keyspace() {
        let tables = json!([
            {"keyspace": "a", "table": "t", "sstable_count": 3, "sstables_in_each_level": [1, 2], "sstable_compression_ratio": 0.25},
            {"keyspace": "a", "table": "u", "sstable_count": 0, "sstable_compression_ratio": null},
            {"keyspace": "b", "table": "t"},
        ]);
        let text = text(&tables);
        assert!(text.starts_with(
            "Total number of tables: 3\n----------------\nKeyspace: a\n\tTable: t\n\t\tSSTable count: 3\n"
        ));
        assert!(
            text.contains("SSTables in each level: [1, 2]\n") && text.contains("SSTable Compression Ratio: 0.250\n")
        );
        assert!(text.contains("SSTable Compression Ratio: -\n"));
        assert_eq!(text.matches("Keyspace:").count(), 2);
    }
}
