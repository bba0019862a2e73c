//! `system.compaction_history`: the latest compactions of all shards.

use super::Knowledge;
use super::rows::{Rows, text};
use cluster::observe::storage::{self, CompactionRecord};
use model::types::Value;

pub(super) async fn fill(known: &Knowledge, rows: &mut Rows) {
    for done in storage::compactions_finished(known.cluster.engine).await {
        add(&done, rows);
    }
}

/// Adds a row. As in ScyllaDB, `rows_merged` is not filled.
pub(super) fn add(done: &CompactionRecord, rows: &mut Rows) {
    rows.add(&[
        ("id", Value::Uuid(done.id)),
        ("bytes_in", Value::Bigint(done.bytes_in as i64)),
        ("bytes_out", Value::Bigint(done.bytes_out as i64)),
        ("columnfamily_name", text(&done.table)),
        ("compacted_at", Value::Timestamp(done.compacted_at_millis)),
        ("compaction_type", text(&done.kind)),
        ("keyspace_name", text(&done.keyspace)),
        ("shard_id", Value::Int(done.shard.into())),
        ("started_at", Value::Timestamp(done.started_at_millis)),
    ]);
}
