//! Properties of tables, under ScyllaDB's paths: compaction strategy and thresholds, compression,
//! automatic compaction.

use super::RemoteServices;
use super::extract::Path;
use super::operations::{self, TableName, observed};
use super::refusal::{Refusal, RestResult};
use super::rest::AdminState;
use super::ring::Entry;
use axum::extract::State;
use axum::routing::{get, post};
use axum::{Json, Router};
use cluster::observe::storage;
use model::options::TableOptions;
use rt::ShardId;
use serde_json::Value;

/// `min_threshold` and `max_threshold` of tables that do not set them.
const THRESHOLDS: (i64, i64) = (4, 32);

/// The paths of this file.
pub fn routes() -> Router<AdminState> {
    Router::new()
        .route("/column_family/name/keyspace", get(keyspaces))
        .route("/column_family/major_compaction/{name}", post(compact))
        .route("/column_family/minimum_compaction/{name}", get(least_threshold))
        .route("/column_family/maximum_compaction/{name}", get(greatest_threshold))
        .route("/column_family/compaction_strategy/{name}", get(strategy))
        .route("/column_family/compression_parameters/{name}", get(compression))
        .route("/column_family/built_indexes/{name}", get(indexes))
        .route("/column_family/autocompaction/{name}", get(is_compacted).post(enable).delete(disable))
}

/// The table with the name `keyspace:table`.
pub async fn named(remote: &RemoteServices, name: &str) -> Result<TableName, Refusal> {
    let Some((keyspace, table)) = name.split_once(':') else {
        return Err(Refusal::Bad("Column family name should be in keyspace:column_family format".to_owned()));
    };
    let all = operations::all_tables(remote).await?;
    let found = all.into_iter().find(|one| one.keyspace == keyspace && one.name == table);
    found.ok_or_else(|| Refusal::Bad(format!("Can't find a column family {table} in keyspace {keyspace}")))
}

async fn options(state: &AdminState, name: &str) -> Result<TableOptions, Refusal> {
    let id = named(&state.remote, name).await?.id;
    let found = state.remote.call(ShardId(0), move |services| async move {
        let metadata = services.cluster.metadata.get().current();
        metadata.table_by_id(id).map(|table| table.definition.options.clone())
    });
    let gone = || Refusal::Bad(format!("Can't find a column family {name}: it was dropped just now"));
    found.await.map_err(Refusal::failed)?.ok_or_else(gone)
}

async fn keyspaces(State(state): State<AdminState>) -> RestResult<Vec<String>> {
    let mut names: Vec<String> =
        operations::all_tables(&state.remote).await?.into_iter().map(|table| table.keyspace).collect();
    names.dedup();
    Ok(Json(names))
}

async fn compact(State(state): State<AdminState>, Path(name): Path<String>) -> RestResult {
    let table = named(&state.remote, &name).await?;
    Ok(Json(operations::compact(&state.remote, &[table]).await?))
}

async fn threshold(state: &AdminState, name: &str, option: &str, otherwise: i64) -> RestResult<i64> {
    let options = options(state, name).await?;
    Ok(Json(options.compaction.get(option).and_then(|text| text.parse().ok()).unwrap_or(otherwise)))
}

async fn least_threshold(State(state): State<AdminState>, Path(name): Path<String>) -> RestResult<i64> {
    threshold(&state, &name, "min_threshold", THRESHOLDS.0).await
}

async fn greatest_threshold(State(state): State<AdminState>, Path(name): Path<String>) -> RestResult<i64> {
    threshold(&state, &name, "max_threshold", THRESHOLDS.1).await
}

async fn strategy(State(state): State<AdminState>, Path(name): Path<String>) -> RestResult<String> {
    let options = options(&state, &name).await?;
    let class = options.compaction.get("class").map(String::as_str).unwrap_or_default();
    Ok(Json(class.rsplit('.').next().unwrap_or_default().to_owned()))
}

async fn compression(State(state): State<AdminState>, Path(name): Path<String>) -> RestResult<Vec<Entry<String>>> {
    let options = options(&state, &name).await?;
    Ok(Json(options.compression.into_iter().map(|(key, value)| Entry { key, value }).collect()))
}

/// There are no indexes yet.
async fn indexes(State(state): State<AdminState>, Path(name): Path<String>) -> RestResult<[Value; 0]> {
    named(&state.remote, &name).await?;
    Ok(Json([]))
}

async fn is_compacted(State(state): State<AdminState>, Path(name): Path<String>) -> RestResult<bool> {
    let id = named(&state.remote, &name).await?.id;
    let is_on = observed(&state.remote, move |services| storage::auto_compaction(services.cluster.engine, id)).await?;
    is_on.map(Json).map_err(Refusal::of_engine)
}

async fn set(state: &AdminState, name: &str, on: bool) -> RestResult {
    let table = named(&state.remote, name).await?;
    Ok(Json(operations::set_auto_compaction(&state.remote, &[table], on).await?))
}

async fn enable(State(state): State<AdminState>, Path(name): Path<String>) -> RestResult {
    set(&state, &name, true).await
}

async fn disable(State(state): State<AdminState>, Path(name): Path<String>) -> RestResult {
    set(&state, &name, false).await
}
