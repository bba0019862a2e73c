//! `messina inspect index` and `summary`: the positions of partitions, by entry. With `--json`,
//! prints a list while it reads.

use super::metadata::{key, parsed};
use super::open;
use crate::Failure;
use model::TableSchema;
use model::time::Tombstone;
use serde_json::{Value, json};
use sstable::contents::{BlockPosition, IndexBlock, IndexWalk};
use sstable::dump::{clustering_json, key_texts};
use std::io::{self, Write};
use std::path::PathBuf;

/// Prints a JSON list, one entry per line.
struct List<'o, W: Write> {
    out: &'o mut W,
    entries: u64,
}

impl<'o, W: Write> List<'o, W> {
    fn begin(out: &'o mut W) -> io::Result<Self> {
        write!(out, "[")?;
        Ok(List { out, entries: 0 })
    }

    fn entry(&mut self, value: &Value) -> io::Result<()> {
        let comma = if self.entries == 0 { "" } else { "," };
        self.entries += 1;
        write!(self.out, "{comma}\n  {value}")
    }

    fn end(self) -> io::Result<()> {
        writeln!(self.out, "\n]")
    }
}

/// Prints every entry of the index.
pub async fn index(files: &[PathBuf], json: bool, out: &mut impl Write) -> Result<(), Failure> {
    for file in files {
        let table = open(file).await?;
        let schema = table.header_schema("", "");
        let mut walk = IndexWalk::new(&table)?;
        if !json {
            writeln!(out, "{}: index, {} partitions", file.display(), table.stats().partitions())?;
            writeln!(out, "{:>20} {:>14} {:>7}  key", "token", "position", "blocks")?;
            while let Some(entry) = walk.next().await? {
                let blocks = entry.promoted.map_or(0, |promoted| promoted.blocks);
                let key_text = key_texts(&schema, &entry.key.key).join(", ");
                writeln!(out, "{:>20} {:>14} {blocks:>7}  {key_text}", entry.key.token.0, entry.position)?;
                for i in 0..blocks {
                    let Some(block) = walk.block(&entry, i).await? else { break };
                    let (first, last) = (position_text(&schema, &block.first), position_text(&schema, &block.last));
                    let open = if block.open.is_live() { "" } else { ", in a deleted range" };
                    writeln!(out, "{:>35}-{}  {first} to {last}{open}", block.start, block.end)?;
                }
            }
            continue;
        }
        let mut list = List::begin(&mut *out)?;
        while let Some(entry) = walk.next().await? {
            let mut value = key(&schema, &entry.key);
            value["position"] = json!(entry.position);
            if let Some(promoted) = entry.promoted {
                let mut blocks = Vec::new();
                for i in 0..promoted.blocks {
                    let Some(block) = walk.block(&entry, i).await? else { break };
                    blocks.push(block_value(&schema, &block));
                }
                value["promoted_index"] = json!({
                    "bytes": promoted.size,
                    "header_bytes": promoted.header,
                    "deletion": deletion(promoted.tombstone),
                    "blocks": blocks,
                });
            }
            list.entry(&value)?;
        }
        list.end()?;
    }
    Ok(())
}

/// Prints every entry of the summary.
pub async fn summary(files: &[PathBuf], json: bool, out: &mut impl Write) -> Result<(), Failure> {
    for file in files {
        let table = open(file).await?;
        let schema = table.header_schema("", "");
        let (interval, level) = table.summary_sampling();
        let entries = table.summary_entries();
        if json {
            let entries = entries.map(|entry| {
                let mut value = key(&schema, &entry.key);
                value["index_position"] = json!(entry.index_position);
                value
            });
            let value = json!({
                "file": file.display().to_string(),
                "min_index_interval": interval,
                "sampling_level": level,
                "first_key": key(&schema, table.first_key()),
                "last_key": key(&schema, table.last_key()),
                "entries": entries.collect::<Vec<_>>(),
            });
            writeln!(out, "{value:#}")?;
            continue;
        }
        let count = entries.len();
        writeln!(out, "{}: summary, {count} entries, one of {interval} keys at level {level} of 128", file.display())?;
        writeln!(out, "first: {}", key_texts(&schema, &table.first_key().key).join(", "))?;
        writeln!(out, "last: {}", key_texts(&schema, &table.last_key().key).join(", "))?;
        writeln!(out, "{:>20} {:>14}  key", "token", "index position")?;
        for entry in entries {
            let text = key_texts(&schema, &entry.key.key).join(", ");
            writeln!(out, "{:>20} {:>14}  {text}", entry.key.token.0, entry.index_position)?;
        }
    }
    Ok(())
}

fn side(position: &BlockPosition) -> &'static str {
    match position.weight {
        ..0 => "before",
        0 => "row",
        _ => "after",
    }
}

fn position_text(schema: &TableSchema, position: &BlockPosition) -> String {
    let values = clustering_json(schema, &position.prefix, false).join(", ");
    match position.weight {
        0 => format!("({values})"),
        _ => format!("{} ({values})", side(position)),
    }
}

fn position_value(schema: &TableSchema, position: &BlockPosition) -> Value {
    let values = clustering_json(schema, &position.prefix, false);
    json!({ "at": side(position), "clustering": values.iter().map(|text| parsed(text)).collect::<Vec<_>>() })
}

fn block_value(schema: &TableSchema, block: &IndexBlock) -> Value {
    json!({
        "start": block.start,
        "end": block.end,
        "first": position_value(schema, &block.first),
        "last": position_value(schema, &block.last),
        "open_deletion": deletion(block.open),
    })
}

fn deletion(tombstone: Tombstone) -> Value {
    match tombstone.is_live() {
        true => Value::Null,
        false => json!({ "timestamp": tombstone.timestamp, "local_deletion_time": tombstone.deletion_time }),
    }
}
