//! What the tests of loading foreign sstables share.

use super::*;
use engine::EngineError;
use std::path::PathBuf;

pub fn table_dir(dir: &Path, schema: &TableSchema) -> PathBuf {
    dir.join("data/ks").join(engine::datadir::table_dir_name("t", schema.id))
}

pub async fn names(dir: &Path) -> Vec<String> {
    match rt::fs::read_dir(dir).await {
        Ok(entries) => entries.into_iter().filter(|entry| !entry.is_dir).map(|entry| entry.name).collect(),
        Err(_) => Vec::new(),
    }
}

/// Copies a snapshot's sstables into the `upload` directory.
pub async fn upload(table: &Path, snapshot: &str) {
    let (from, to) = (table.join("snapshots").join(snapshot), table.join("upload"));
    rt::fs::create_dir_all(&to).await.unwrap();
    for name in names(&from).await.into_iter().filter(|name| name.contains("-big-")) {
        rt::fs::hard_link(&from.join(&name), &to.join(&name)).await.unwrap();
    }
    for dir in [&to, table] {
        rt::fs::sync_dir(dir).await.unwrap();
    }
}

/// Loads them as a node of one shard does.
pub async fn refresh(engine: &Engine, schema: &TableSchema, tablets: &[TabletRange]) -> Result<usize, EngineError> {
    let uploads = engine.uploaded(schema.id).await?;
    let pieces = engine.copy_uploaded(schema.id, uploads.clone(), tablets.to_vec()).await?;
    engine.expect_loaded(schema.id, &pieces)?;
    engine.seal_loaded(schema.id, pieces.clone(), uploads).await?;
    engine.attach_loaded(schema.id, pieces.clone()).await?;
    Ok(pieces.len())
}

pub async fn write(engine: &Engine, schema: &TableSchema, naive: &mut Naive, timestamp: i64, change: Change) {
    engine.apply_durably(&change.mutation(schema, timestamp), &key(change.k())).await.unwrap();
    naive.changes.push((timestamp, change));
}

pub async fn seen(engine: &Engine, schema: &TableSchema) -> Seen {
    read(engine, schema.id, PartitionRange::FULL, Slice::full()).await
}
