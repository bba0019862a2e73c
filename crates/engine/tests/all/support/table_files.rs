//! Writes to a table, and the files of its sstables.

use super::*;
use std::path::PathBuf;

pub fn insert(k: i32, c: i32, value: &str) -> Change {
    Change::Insert { k, c, value: value.into() }
}

pub async fn write(engine: &Engine, schema: &TableSchema, timestamp: i64, change: Change) {
    engine.apply_durably(&change.mutation(schema, timestamp), &key(change.k())).await.unwrap();
}

pub async fn all(engine: &Engine, schema: &TableSchema) -> Seen {
    read(engine, schema.id, PartitionRange::FULL, Slice::full()).await
}

pub fn table_dir(root: &Path) -> PathBuf {
    let mut tables = std::fs::read_dir(root.join("data/ks")).unwrap();
    tables.next().unwrap().unwrap().path()
}

pub fn files(dir: &Path, ending: &str) -> Vec<PathBuf> {
    let mut files: Vec<_> = match std::fs::read_dir(dir) {
        Ok(entries) => entries.map(|entry| entry.unwrap().path()).collect(),
        Err(_) => Vec::new(),
    };
    files.retain(|path| path.to_str().unwrap().ends_with(ending));
    files.sort();
    files
}

/// Flips a bit in the middle of a file.
pub fn damage(path: &Path) {
    let mut bytes = std::fs::read(path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0x10;
    std::fs::write(path, bytes).unwrap();
}
