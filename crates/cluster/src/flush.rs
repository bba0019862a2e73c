//! Flush: every shard of this node writes its memtables of a table to sstables.

use engine::Engine;
use model::id::TableId;
use rt::shard::PerShard;

/// Flushes the memtables of a table on every shard of this node. The error names the shard that
/// failed and the reason.
pub async fn flush(engines: PerShard<Engine>, table: TableId) -> Result<(), String> {
    let work = engines.call_all(move |engine| async move {
        engine.flush(Some(table)).await.map_err(|error| format!("shard {}: {error}", rt::shard::this().0))
    });
    work.await.into_iter().collect()
}
