//! `system.compaction_history`: the latest compactions of all shards.

use super::Knowledge;
use super::rows::{Rows, text};
use model::types::Value;
use uuid::Uuid;

/// A finished compaction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CompactionDone {
    /// Its id.
    pub id: Uuid,
    /// Its kind, such as `COMPACTION`.
    pub kind: String,
    /// The table's keyspace.
    pub keyspace: String,
    /// The table's name.
    pub table: String,
    /// The shard that ran it.
    pub shard: u16,
    /// When it began, in milliseconds since 1970.
    pub started_at: i64,
    /// When it ended, in milliseconds since 1970.
    pub compacted_at: i64,
    /// The bytes on disk of the inputs.
    pub bytes_in: u64,
    /// The bytes on disk of the outputs.
    pub bytes_out: u64,
}

/// A service of each shard, set at the node's start: lists the shard's compactions.
pub struct CompactionHistory(pub Box<dyn Fn() -> Vec<CompactionDone>>);

pub(super) async fn fill(known: &Knowledge, rows: &mut Rows) {
    let compactions = known.shards.compactions;
    let lists =
        rt::shard::call_all(
            move || async move { compactions.try_get().map(|history| (history.0)()).unwrap_or_default() },
        );
    for done in lists.await.into_iter().flatten() {
        add(&done, rows);
    }
}

/// Adds a row. As in ScyllaDB, `rows_merged` is not filled.
pub(super) fn add(done: &CompactionDone, rows: &mut Rows) {
    rows.add(&[
        ("id", Value::Uuid(done.id)),
        ("bytes_in", Value::Bigint(done.bytes_in as i64)),
        ("bytes_out", Value::Bigint(done.bytes_out as i64)),
        ("columnfamily_name", text(&done.table)),
        ("compacted_at", Value::Timestamp(done.compacted_at)),
        ("compaction_type", text(&done.kind)),
        ("keyspace_name", text(&done.keyspace)),
        ("shard_id", Value::Int(done.shard.into())),
        ("started_at", Value::Timestamp(done.started_at)),
    ]);
}
