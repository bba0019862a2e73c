//! Flush: every shard of this node writes its memtables of a table to sstables.

use engine::Engine;
use model::id::TableId;

/// Flushes the memtables of a table on every shard of this node. The error names the shard that
/// failed and the reason.
pub async fn flush(table: TableId) -> Result<(), String> {
    let work = rt::shard::call_all(move || async move {
        let engine = rt::shard::service::<Engine>();
        engine.flush(Some(table)).await.map_err(|error| format!("shard {}: {error}", rt::shard::this().0))
    });
    work.await.into_iter().collect()
}
