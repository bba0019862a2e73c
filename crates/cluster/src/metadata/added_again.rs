//! Columns that are added with the name of a dropped column: their cells that are newer than the
//! drop are visible again. Those in memory must be in sstables first.

use engine::Engine;
use model::schema::{Column, TableSchema};

/// Before a shard publishes the next schema of a table, finishes the flushes that began when its
/// columns were dropped.
pub(super) async fn finish_flushes(engine: &Engine, before: Option<&TableSchema>, next: &TableSchema) {
    if before.is_none_or(|before| !adds_again(before, next)) {
        return;
    }
    if let Err(error) = engine.finish_flushes(next.id).await {
        // A full disk must not keep the node from applying the change: the cells return with a
        // later flush.
        tracing::warn!(keyspace = next.keyspace, table = next.name, %error,
            "a dropped column is added again, and its cells in memory cannot be flushed yet");
    }
}

fn adds_again(before: &TableSchema, next: &TableSchema) -> bool {
    let is_new = |column: &&Column| before.column(column.id).is_none();
    next.statics.iter().chain(&next.regulars).filter(is_new).any(|column| next.dead_until(column.id).is_some())
}
