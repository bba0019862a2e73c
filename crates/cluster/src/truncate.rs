//! TRUNCATE: every shard of the table's owners drops what it holds.

use engine::Engine;
use model::id::TableId;
use rt::time::Duration;

/// Empties a table on every shard. The error says which shard failed and why.
pub async fn truncate(table: TableId, timeout: Duration) -> Result<(), String> {
    let work = rt::shard::call_all(move || async move {
        let engine = rt::shard::service::<Engine>();
        engine.truncate(table).await.map(|_| ()).map_err(|error| format!("shard {}: {error}", rt::shard::this().0))
    });
    match rt::time::timeout(timeout, work).await {
        Ok(results) => results.into_iter().collect(),
        Err(_) => Err(format!("TRUNCATE did not end within {} ms", timeout.as_millis())),
    }
}
