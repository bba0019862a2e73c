//! Compactions for administrators, under ScyllaDB's paths: running ones, history, stopping,
//! cleanup.

use super::RemoteServices;
use super::extract::{Path, Query};
use super::operations::{self, TableName, observed};
use super::refusal::{Refusal, RestResult};
use super::rest::AdminState;
use axum::extract::State;
use axum::routing::{get, post};
use axum::{Json, Router};
use cluster::observe::storage::{self, CompactionProgress, EngineMetrics};
use engine::CompactionKind;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// Kinds of work that other databases stop by name and that never run here.
const NEVER_RUN: [&str; 5] = ["MAJOR", "RESHAPE", "RESHARD", "SCRUB", "UPGRADE"];

/// The paths of this file.
pub fn routes() -> Router<AdminState> {
    Router::new()
        .route("/compaction_manager/compactions", get(running))
        .route("/compaction_manager/compaction_history", get(history))
        .route("/compaction_manager/stop_compaction", post(stop))
        .route("/compaction_manager/stop_keyspace_compaction/{keyspace}", post(stop_keyspace))
        .route("/compaction_manager/metrics/pending_tasks", get(pending))
        .route("/compaction_manager/metrics/pending_tasks_by_table", get(pending_by_table))
        .route("/compaction_manager/metrics/completed_tasks", get(completed))
        .route("/compaction_manager/metrics/total_compactions_completed", get(completed))
        .route("/compaction_manager/metrics/bytes_compacted", get(bytes_compacted))
        .route("/storage_service/keyspace_cleanup/{keyspace}", post(cleanup))
        .route("/storage_service/cleanup_all", post(cleanup_all))
}

/// A compaction that runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RunningCompaction {
    id: Uuid,
    ks: String,
    cf: String,
    task_type: &'static str,
    unit: &'static str,
    completed: u64,
    total: u64,
    shard: u16,
    tablet: u32,
    started_at: i64,
}

impl RunningCompaction {
    fn new(shard: u16, one: CompactionProgress) -> Self {
        RunningCompaction {
            id: one.id,
            ks: one.keyspace,
            cf: one.name,
            task_type: one.kind.name(),
            unit: "bytes",
            completed: one.completed_bytes,
            total: one.total_bytes,
            shard,
            tablet: one.tablet,
            started_at: one.started_at_millis,
        }
    }
}

async fn running(State(state): State<AdminState>) -> RestResult<Vec<RunningCompaction>> {
    let running = observed(&state.remote, |services| storage::compactions_running(services.cluster.engine)).await?;
    Ok(Json(running.into_iter().map(|(shard, one)| RunningCompaction::new(shard.0, one)).collect()))
}

/// A compaction that was done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DoneCompaction {
    id: Uuid,
    ks: String,
    cf: String,
    compaction_type: String,
    shard_id: u16,
    started_at: i64,
    compacted_at: i64,
    bytes_in: u64,
    bytes_out: u64,
    sstables_in: u64,
    sstables_out: u64,
    /// Not counted.
    rows_merged: [u64; 0],
}

async fn history(State(state): State<AdminState>) -> RestResult<Vec<DoneCompaction>> {
    let records = observed(&state.remote, |services| storage::compactions_finished(services.cluster.engine)).await?;
    let mut done: Vec<DoneCompaction> = records
        .into_iter()
        .map(|record| DoneCompaction {
            id: record.id,
            ks: record.keyspace,
            cf: record.table,
            compaction_type: record.kind,
            shard_id: record.shard,
            started_at: record.started_at_millis,
            compacted_at: record.compacted_at_millis,
            bytes_in: record.bytes_in,
            bytes_out: record.bytes_out,
            sstables_in: record.sstables_in,
            sstables_out: record.sstables_out,
            rows_merged: [],
        })
        .collect();
    done.sort_by_key(|one| one.compacted_at);
    Ok(Json(done))
}

/// The compactions to stop.
#[derive(Deserialize)]
struct Stop {
    #[serde(rename = "type")]
    kind: Option<String>,
    tables: Option<String>,
}

impl Stop {
    /// The kind. `None` for a kind that never runs.
    fn kind(&self) -> Result<Option<CompactionKind>, Refusal> {
        let name = self.kind.as_deref().unwrap_or_default();
        if name.is_empty() {
            return Err(Refusal::Bad(
                "The type of compaction must be given: type=COMPACTION or type=CLEANUP".to_owned(),
            ));
        }
        match CompactionKind::named(name) {
            Some(kind) => Ok(Some(kind)),
            None if NEVER_RUN.iter().any(|never| never.eq_ignore_ascii_case(name)) => Ok(None),
            None => Err(Refusal::Bad(format!("Invalid compaction type {name}"))),
        }
    }
}

async fn stop_some(remote: &RemoteServices, stop: &Stop, tables: Option<Vec<TableName>>) -> RestResult {
    let Some(kind) = stop.kind()? else { return Ok(Json(())) };
    let stopped = remote.call_all(move |services| {
        let tables = tables.clone();
        async move {
            let engine = services.cluster.engine.get();
            match tables {
                None => engine.stop_compactions(Some(kind), None),
                Some(tables) => tables.iter().map(|table| engine.stop_compactions(Some(kind), Some(table.id))).sum(),
            }
        }
    });
    let stopped: usize = stopped.await.map_err(Refusal::failed)?.iter().sum();
    tracing::info!(kind = kind.name(), stopped, "compactions were stopped by an administrator");
    Ok(Json(()))
}

async fn stop(State(state): State<AdminState>, Query(query): Query<Stop>) -> RestResult {
    stop_some(&state.remote, &query, None).await
}

async fn stop_keyspace(
    State(state): State<AdminState>,
    Path(keyspace): Path<String>,
    Query(query): Query<Stop>,
) -> RestResult {
    let tables = operations::tables(&state.remote, &keyspace, query.tables.as_deref()).await?;
    stop_some(&state.remote, &query, Some(tables)).await
}

/// The sum of a metric over the shards.
async fn sum(state: &AdminState, metric: fn(&EngineMetrics) -> u64) -> RestResult<u64> {
    let engines = observed(&state.remote, |services| storage::engines(services.cluster.engine)).await?;
    Ok(Json(engines.iter().map(metric).sum()))
}

async fn pending(State(state): State<AdminState>) -> RestResult<u64> {
    sum(&state, |engine| engine.compactions_pending).await
}

/// How many compactions of a table wait.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct PendingOfTable {
    ks: String,
    cf: String,
    task: u64,
}

async fn pending_by_table(State(state): State<AdminState>) -> RestResult<Vec<PendingOfTable>> {
    let pending = observed(&state.remote, |services| storage::compactions_pending(services.cluster.engine)).await?;
    Ok(Json(pending.into_iter().map(|((ks, cf), task)| PendingOfTable { ks, cf, task }).collect()))
}

async fn completed(State(state): State<AdminState>) -> RestResult<u64> {
    sum(&state, |engine| engine.compactions).await
}

async fn bytes_compacted(State(state): State<AdminState>) -> RestResult<u64> {
    sum(&state, |engine| engine.compacted_bytes_in).await
}

/// The query of cleanup: tables of the keyspace.
#[derive(Deserialize)]
struct Tables {
    cf: Option<String>,
}

async fn clean(remote: &RemoteServices, tables: &[TableName]) -> RestResult<u32> {
    operations::on_every_shard(remote, tables, |engine, table| async move { engine.cleanup(table).await.map(|_| ()) })
        .await?;
    // As ScyllaDB answers when it is done.
    Ok(Json(0))
}

async fn cleanup(
    State(state): State<AdminState>,
    Path(keyspace): Path<String>,
    Query(query): Query<Tables>,
) -> RestResult<u32> {
    let tables = operations::tables(&state.remote, &keyspace, query.cf.as_deref()).await?;
    clean(&state.remote, &tables).await
}

async fn cleanup_all(State(state): State<AdminState>) -> RestResult<u32> {
    let tables = operations::all_tables(&state.remote).await?;
    clean(&state.remote, &tables).await
}
