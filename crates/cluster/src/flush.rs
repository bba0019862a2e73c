//! Flush: every shard writes what its memtables hold of a table.

use engine::Engine;
use model::id::TableId;

/// Writes the memtables of a table into sstables, on every shard. The error says which shard failed and why.
pub async fn flush(table: TableId) -> Result<(), String> {
    let work = rt::shard::call_all(move || async move {
        let engine = rt::shard::service::<Engine>();
        engine.flush(Some(table)).await.map_err(|error| format!("shard {}: {error}", rt::shard::this().0))
    });
    work.await.into_iter().collect()
}
