//! The running process for administrators, under ScyllaDB's paths: operations, settings,
//! directories, caches, the log.
//!
//! Features that do not exist here (gossip, Thrift, key and counter caches, incremental backups)
//! are reported as off or empty.

use super::RemoteServices;
use super::extract::{Path, Query};
use super::operations::observed;
use super::refusal::{Refusal, RestResult};
use super::rest::AdminState;
use super::ring::facts;
use super::snapshots;
use axum::extract::State;
use axum::routing::{get, post};
use axum::{Json, Router};
use cluster::observe::storage::{self, EngineMetrics};
use rt::ShardId;
use serde::Deserialize;
use serde_json::{Value, json};

/// The format of the sstables that are written.
const SSTABLE_VERSION: &str = "me";

/// The paths of this file.
pub fn routes() -> Router<AdminState> {
    Router::new()
        .route("/system/uptime_ms", get(uptime))
        .route("/system/drop_sstable_caches", post(drop_caches))
        .route("/system/log", post(write_log))
        .route("/system/highest_supported_sstable_version", get(sstable_version))
        .route("/system/chosen_sstable_version", get(sstable_version))
        .route("/v2/config/{name}", get(setting))
        .route("/storage_service/gossiping", get(no))
        .route("/storage_service/rpc_server", get(no))
        .route("/storage_service/is_starting", get(no))
        .route("/storage_service/incremental_backups", get(no))
        .route("/storage_service/is_initialized", get(yes))
        .route("/storage_service/join_ring", get(yes))
        .route("/storage_service/metrics/exceptions", get(zero))
        .route("/storage_service/compaction_throughput", get(compaction_throughput))
        .route("/storage_service/data_file_locations", get(data_directories))
        .route("/storage_service/commitlog", get(log_directory))
        .route("/storage_service/snapshots/size/true", get(snapshots_size))
        .route("/cache_service/row_cache_save_period", get(zero))
        .route("/cache_service/key_cache_save_period", get(zero))
        .route("/cache_service/counter_cache_save_period", get(zero))
        .route("/cache_service/metrics/{cache}/{metric}", get(cache_metric))
        .route("/commitlog/metrics/{metric}", get(log_metric))
}

async fn yes() -> Json<bool> {
    Json(true)
}

async fn no() -> Json<bool> {
    Json(false)
}

async fn zero() -> Json<u64> {
    Json(0)
}

/// Milliseconds since the start.
async fn uptime_ms(remote: &RemoteServices) -> Result<i64, Refusal> {
    Ok(facts(remote).await?.node.uptime_micros() / 1000)
}

async fn uptime(State(state): State<AdminState>) -> RestResult<i64> {
    Ok(Json(uptime_ms(&state.remote).await?))
}

/// Empties the caches of pages and rows of every shard.
async fn drop_caches(State(state): State<AdminState>) -> RestResult<()> {
    let dropped = state.remote.call_all(|services| async move { services.cluster.engine.get().drop_caches() });
    dropped.await.map(|_| Json(())).map_err(Refusal::failed)
}

#[derive(Deserialize)]
struct LogLine {
    message: Option<String>,
    level: Option<String>,
}

/// Writes a line to the log, as a marker for readers of the log.
async fn write_log(Query(line): Query<LogLine>) -> RestResult<()> {
    let message = line.message.ok_or_else(|| Refusal::Bad("The message is missing: ?message=...".to_owned()))?;
    let message = one_line(&message);
    match line.level.as_deref().unwrap_or("info") {
        "error" => tracing::error!("{message}"),
        "warn" => tracing::warn!("{message}"),
        "info" => tracing::info!("{message}"),
        "debug" => tracing::debug!("{message}"),
        "trace" => tracing::trace!("{message}"),
        other => return Err(Refusal::Bad(format!("Unknown log level {other}"))),
    }
    Ok(Json(()))
}

/// Escapes control characters, so that a message cannot look like several log lines or control a
/// terminal.
fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            // Line and paragraph separators, and characters that change the direction of text.
            c if c.is_control() || matches!(c, '\u{2028}'..='\u{202E}' | '\u{2066}'..='\u{2069}') => {
                line.extend(c.escape_default());
            }
            c => line.push(c),
        }
    }
    line
}

async fn sstable_version() -> Json<&'static str> {
    Json(SSTABLE_VERSION)
}

/// A setting of `system.config` as JSON; `None` if there is none of that name.
pub(super) async fn setting_of(remote: &RemoteServices, name: String) -> Result<Option<Value>, Refusal> {
    let found = remote.call(ShardId(0), move |services| async move {
        let table = services.settings.try_get()?;
        table.0.list().into_iter().find(|setting| setting.name == name).map(|setting| setting.value)
    });
    let found = found.await.map_err(Refusal::failed)?;
    found.map(|text| serde_json::from_str(&text).map_err(Refusal::failed)).transpose()
}

async fn setting(State(state): State<AdminState>, Path(name): Path<String>) -> RestResult<Value> {
    let found = setting_of(&state.remote, name.clone()).await?;
    found.map(Json).ok_or_else(|| Refusal::Missing(format!("No such config entry: {name}")))
}

/// MB per second; 0 for no limit.
async fn compaction_throughput(State(state): State<AdminState>) -> RestResult<Value> {
    let limit = setting_of(&state.remote, "compaction_throughput_mb_per_sec".to_owned()).await?;
    Ok(Json(limit.unwrap_or(json!(0))))
}

async fn data_directories(State(state): State<AdminState>) -> Json<[String; 1]> {
    Json([state.data_dir.join("data").display().to_string()])
}

async fn log_directory(State(state): State<AdminState>) -> Json<String> {
    Json(state.data_dir.join("commitlog").display().to_string())
}

/// Bytes of files that only snapshots use.
async fn snapshots_size(State(state): State<AdminState>) -> RestResult<u64> {
    let all = snapshots::find(&state.remote, None).await?;
    Ok(Json(all.iter().map(|snapshot| snapshot.live).sum()))
}

/// The metrics of the store, over all shards.
async fn engines(remote: &RemoteServices) -> Result<Vec<EngineMetrics>, Refusal> {
    observed(remote, |services| storage::engines(services.cluster.engine)).await
}

/// A number of a cache, by ScyllaDB's name. Only the row cache exists here. It shares a budget with
/// the page cache: size and capacity are of the shared budget.
async fn cache_metric(
    State(state): State<AdminState>,
    Path((cache, metric)): Path<(String, String)>,
) -> RestResult<Value> {
    let unknown = || Refusal::Missing(format!("Not found: /cache_service/metrics/{cache}/{metric}"));
    let engines = match cache.as_str() {
        "row" => engines(&state.remote).await?,
        "key" | "counter" => Vec::new(),
        _ => return Err(unknown()),
    };
    let sum = |number: fn(&EngineMetrics) -> u64| engines.iter().map(number).sum::<u64>();
    let hits = sum(|engine| engine.rows.hits);
    let requests = hits + sum(|engine| engine.rows.misses);
    let moving = |count: u64, uptime: i64| {
        // Rates over the last minutes are not kept.
        json!({ "rates": [], "mean_rate": count as f64 * 1000.0 / uptime.max(1) as f64, "count": count })
    };
    Ok(Json(match metric.as_str() {
        "entries" => json!(sum(|engine| engine.rows.partitions)),
        "size" => json!(sum(|engine| engine.cache_bytes())),
        "capacity" => json!(sum(|engine| engine.cache_limit_bytes)),
        "hits" => json!(hits),
        "requests" => json!(requests),
        "hit_rate" if requests == 0 => json!(0.0),
        "hit_rate" => json!(hits as f64 / requests as f64),
        "hits_moving_avrage" => moving(hits, uptime_ms(&state.remote).await?),
        "requests_moving_avrage" => moving(requests, uptime_ms(&state.remote).await?),
        _ => return Err(unknown()),
    }))
}

async fn log_metric(State(state): State<AdminState>, Path(metric): Path<String>) -> RestResult<u64> {
    let number: fn(&EngineMetrics) -> u64 = match metric.as_str() {
        "completed_tasks" => |engine: &EngineMetrics| engine.log.records,
        "pending_tasks" => |engine: &EngineMetrics| engine.log.blocked_writers,
        "total_commit_log_size" => |engine: &EngineMetrics| engine.log.disk_total_bytes,
        _ => return Err(Refusal::Missing(format!("Not found: /commitlog/metrics/{metric}"))),
    };
    Ok(Json(engines(&state.remote).await?.iter().map(number).sum()))
}

#[cfg(test)]
mod tests {
    use super::one_line;

    #[test]
    fn a_message_stays_one_line() {
        assert_eq!(one_line("begin of the \u{e9}t\u{e9} \"test\""), "begin of the \u{e9}t\u{e9} \"test\"");
        assert_eq!(one_line("a\nb\r\n\x1b[31mc\0\u{85}\u{2028}"), "a\\nb\\r\\n\\u{1b}[31mc\\u{0}\\u{85}\\u{2028}");
    }
}
