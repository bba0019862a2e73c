//! Paths of the admin REST interface.

use super::RemoteServices;
use super::extract::{Path, Query};
use super::operations;
use super::refusal::{Refusal, RestResult};
use super::snapshots;
use super::table_stats;
use super::tables::named;
use axum::extract::State;
use axum::routing::{get, post};
use axum::{Json, Router};
use rt::ShardId;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::sync::Arc;
use uuid::Uuid;

/// Returns the level of a module, after setting it if one is given. The error is for the operator.
pub type LogControl = Arc<dyn Fn(&str, Option<&str>) -> Result<String, String> + Send + Sync>;

/// The state that the handlers use.
#[derive(Clone)]
pub struct AdminState {
    /// The shards.
    pub remote: RemoteServices,
    /// The data directory.
    pub data_dir: PathBuf,
    /// The node's identity.
    pub host_id: Uuid,
    /// The cluster's name.
    pub cluster_name: String,
    /// The version that clients see.
    pub release_version: String,
    /// Changes a log level.
    pub log: LogControl,
}

/// All paths.
pub fn router(state: AdminState) -> Router {
    Router::new()
        .route("/storage_service/keyspaces", get(keyspaces))
        .route("/storage_service/flush", post(flush_all))
        .route("/storage_service/keyspace_flush/{keyspace}", post(flush))
        .route("/storage_service/compact", post(compact_all))
        .route("/storage_service/keyspace_compaction/{keyspace}", post(compact))
        .route("/storage_service/snapshots", get(list_snapshots).post(take_snapshot).delete(clear_snapshots))
        .route("/storage_service/sstables/{keyspace}", post(refresh))
        .route("/storage_service/auto_compaction/{keyspace}", post(enable_keyspace).delete(disable_keyspace))
        .route("/storage_service/hostid/local", get(host_id))
        .route("/storage_service/host_id/local", get(host_id))
        .route("/storage_service/native_transport", get(native_transport).post(serve_clients).delete(refuse_clients))
        .route("/storage_service/cluster_name", get(cluster_name))
        .route("/storage_service/release_version", get(release_version))
        .route("/storage_service/scylla_release_version", get(messina_version))
        .route("/storage_service/load", get(load))
        .route("/column_family/", get(column_families))
        .route("/column_family", get(column_families))
        .route("/column_family/name", get(column_family_names))
        .route("/column_family/tablestats", get(table_stats))
        .route("/column_family/metrics/{metric}", get(metric_of_all))
        .route("/column_family/metrics/{metric}/{name}", get(metric_of_table))
        .route("/column_family/sstables/per_level/{name}", get(sstables_per_level))
        .route("/system/logger", get(loggers).post(set_root_logger))
        .route("/system/logger/{name}", get(logger).post(set_logger))
        .merge(super::compactions::routes())
        .merge(super::hot::routes())
        .merge(super::node_ops::routes())
        .merge(super::nodes::routes())
        .merge(super::process::routes())
        .merge(super::ring::routes())
        .merge(super::slow_query::routes())
        .merge(super::tables::routes())
        .merge(super::streams::routes())
        .merge(super::tablets::routes())
        .merge(super::tasks::routes())
        .fallback(unknown)
        .method_not_allowed_fallback(wrong_method)
        .with_state(state)
}

async fn unknown(uri: axum::http::Uri) -> Refusal {
    Refusal::Missing(format!("Not found: {}", uri.path()))
}

async fn wrong_method(method: axum::http::Method, uri: axum::http::Uri) -> Refusal {
    Refusal::Bad(format!("{method} is not possible on {}", uri.path()))
}

/// The query of paths that take some tables of a keyspace.
#[derive(Deserialize)]
struct Tables {
    cf: Option<String>,
}

#[derive(Deserialize)]
struct KeyspaceType {
    #[serde(rename = "type")]
    kind: Option<String>,
}

async fn keyspaces(State(state): State<AdminState>, Query(query): Query<KeyspaceType>) -> RestResult<Vec<String>> {
    let mut names = operations::keyspaces(&state.remote).await?;
    match query.kind.as_deref() {
        Some("user") => names.retain(|name| !name.starts_with("system")),
        Some("non_local_strategy") => names.retain(|name| !cql::system::is_virtual(name)),
        _ => {}
    }
    Ok(Json(names))
}

async fn flush_all(State(state): State<AdminState>) -> RestResult {
    let tables = operations::all_tables(&state.remote).await?;
    Ok(Json(operations::flush(&state.remote, &tables).await?))
}

async fn flush(
    State(state): State<AdminState>,
    Path(keyspace): Path<String>,
    Query(query): Query<Tables>,
) -> RestResult {
    let tables = operations::tables(&state.remote, &keyspace, query.cf.as_deref()).await?;
    Ok(Json(operations::flush(&state.remote, &tables).await?))
}

async fn compact_all(State(state): State<AdminState>) -> RestResult {
    let tables = operations::all_tables(&state.remote).await?;
    Ok(Json(operations::compact(&state.remote, &tables).await?))
}

async fn compact(
    State(state): State<AdminState>,
    Path(keyspace): Path<String>,
    Query(query): Query<Tables>,
) -> RestResult {
    let tables = operations::tables(&state.remote, &keyspace, query.cf.as_deref()).await?;
    Ok(Json(operations::compact(&state.remote, &tables).await?))
}

/// The result of a refresh.
#[derive(Serialize)]
struct Loaded {
    /// Absolute: the client has another working directory than the node.
    directory: String,
    sstables: usize,
    partitions: u64,
    bytes: u64,
}

async fn refresh(
    State(state): State<AdminState>,
    Path(keyspace): Path<String>,
    Query(query): Query<Tables>,
) -> RestResult<Loaded> {
    let Some(name) = query.cf.as_deref().filter(|name| !name.is_empty()) else {
        return Err(Refusal::Bad("The column family must be specified: cf".to_owned()));
    };
    if name.contains(',') {
        return Err(Refusal::Bad("Only one column family can be refreshed at a time".to_owned()));
    }
    let tables = operations::tables(&state.remote, &keyspace, Some(name)).await?;
    let Some(table) = tables.first() else {
        return Err(Refusal::Missing(format!("Can't find a column family {name}")));
    };
    let done = operations::refresh(&state.remote, table).await?;
    Ok(Json(Loaded {
        directory: std::path::absolute(&done.dir).unwrap_or(done.dir).display().to_string(),
        sstables: done.sstables,
        partitions: done.partitions,
        bytes: done.bytes,
    }))
}

async fn set_keyspace(state: &AdminState, keyspace: &str, tables: &Tables, on: bool) -> RestResult {
    let tables = operations::tables(&state.remote, keyspace, tables.cf.as_deref()).await?;
    Ok(Json(operations::set_auto_compaction(&state.remote, &tables, on).await?))
}

async fn enable_keyspace(
    State(state): State<AdminState>,
    Path(keyspace): Path<String>,
    Query(query): Query<Tables>,
) -> RestResult {
    set_keyspace(&state, &keyspace, &query, true).await
}

async fn disable_keyspace(
    State(state): State<AdminState>,
    Path(keyspace): Path<String>,
    Query(query): Query<Tables>,
) -> RestResult {
    set_keyspace(&state, &keyspace, &query, false).await
}

/// The query of table statistics: keyspace and tables; without them, all.
#[derive(Deserialize)]
struct StatsQuery {
    ks: Option<String>,
    cf: Option<String>,
}

async fn table_stats(
    State(state): State<AdminState>,
    Query(query): Query<StatsQuery>,
) -> RestResult<Vec<table_stats::TableNumbers>> {
    let tables = match query.ks.as_deref().filter(|keyspace| !keyspace.is_empty()) {
        Some(keyspace) => operations::tables(&state.remote, keyspace, query.cf.as_deref()).await?,
        None => operations::all_tables(&state.remote).await?,
    };
    Ok(Json(table_stats::collect(&state.remote, &tables).await?))
}

async fn metric_of_all(State(state): State<AdminState>, Path(metric): Path<String>) -> RestResult<serde_json::Value> {
    Ok(Json(table_stats::metric(&state.remote, &metric, None).await?))
}

async fn metric_of_table(
    State(state): State<AdminState>,
    Path((metric, name)): Path<(String, String)>,
) -> RestResult<serde_json::Value> {
    let table = named(&state.remote, &name).await?;
    Ok(Json(table_stats::metric(&state.remote, &metric, Some(&table)).await?))
}

async fn sstables_per_level(State(state): State<AdminState>, Path(name): Path<String>) -> RestResult<Vec<u64>> {
    let table = named(&state.remote, &name).await?;
    let mut numbers = table_stats::collect(&state.remote, &[table]).await?;
    Ok(Json(numbers.pop().map(|one| one.sstables_in_each_level).unwrap_or_default()))
}

/// The query of the snapshots' path: name, keyspaces, tables.
#[derive(Deserialize)]
struct SnapshotQuery {
    tag: Option<String>,
    kn: Option<String>,
    cf: Option<String>,
}

impl SnapshotQuery {
    async fn tables(&self, remote: &RemoteServices) -> Result<Vec<operations::TableName>, Refusal> {
        let Some(keyspaces) = self.kn.as_deref().filter(|names| !names.is_empty()) else {
            if self.cf.as_deref().is_some_and(|names| !names.is_empty()) {
                return Err(Refusal::Bad("The keyspace of the column families must be given".to_owned()));
            }
            return operations::all_tables(remote).await;
        };
        if keyspaces.contains(',') && self.cf.as_deref().is_some_and(|names| !names.is_empty()) {
            return Err(Refusal::Bad("Only one keyspace allowed when specifying a column family".to_owned()));
        }
        let mut tables = Vec::new();
        for keyspace in keyspaces.split(',') {
            tables.extend(operations::tables(remote, keyspace, self.cf.as_deref()).await?);
        }
        Ok(tables)
    }

    /// Snapshots outlive their tables, so the chosen tables need not exist.
    fn chosen(&self) -> Result<snapshots::Chosen, Refusal> {
        let names = |list: &Option<String>| -> Option<Vec<String>> {
            let list = list.as_deref().filter(|list| !list.is_empty())?;
            Some(list.split(',').map(str::to_owned).collect())
        };
        let chosen = snapshots::Chosen {
            name: self.name().map(str::to_owned),
            keyspaces: names(&self.kn),
            tables: names(&self.cf),
        };
        match (&chosen.keyspaces, &chosen.tables) {
            (None, Some(_)) => Err(Refusal::Bad("The keyspace of the column families must be given".to_owned())),
            (Some(keyspaces), Some(_)) if keyspaces.len() > 1 => {
                Err(Refusal::Bad("Only one keyspace allowed when specifying a column family".to_owned()))
            }
            _ => Ok(chosen),
        }
    }

    fn name(&self) -> Option<&str> {
        self.tag.as_deref().filter(|tag| !tag.is_empty())
    }
}

async fn list_snapshots(State(state): State<AdminState>) -> RestResult<Vec<snapshots::Snapshot>> {
    Ok(Json(snapshots::list(&state.remote).await?))
}

async fn take_snapshot(State(state): State<AdminState>, Query(query): Query<SnapshotQuery>) -> RestResult {
    let tables = query.tables(&state.remote).await?;
    let name = match query.name() {
        Some(name) => name.to_owned(),
        None => (rt::time::wall_micros() / 1000).to_string(),
    };
    Ok(Json(snapshots::take(&state.remote, &state.data_dir, &tables, &name).await?))
}

async fn clear_snapshots(State(state): State<AdminState>, Query(query): Query<SnapshotQuery>) -> RestResult {
    let chosen = query.chosen()?;
    Ok(Json(snapshots::clear(&state.remote, &state.data_dir, chosen).await?))
}

async fn host_id(State(state): State<AdminState>) -> Json<String> {
    Json(state.host_id.to_string())
}

async fn native_transport(State(state): State<AdminState>) -> RestResult<bool> {
    let serving = state.remote.call(ShardId(0), |services| async move {
        services.clients.try_get().is_some_and(|clients| clients.is_serving())
    });
    Ok(Json(serving.await.map_err(Refusal::failed)?))
}

/// Opens the ports for clients.
async fn serve_clients(State(state): State<AdminState>) -> RestResult {
    let opened = state.remote.call(ShardId(0), |services| async move {
        if let Some(ops) = services.node_ops.try_get() {
            ops.check_may_serve().map_err(Refusal::Bad)?;
        }
        match services.clients.try_get() {
            Some(clients) => clients.start().await.map_err(Refusal::failed),
            None => Err(Refusal::Failed("The node is starting or stopping".to_owned())),
        }
    });
    opened.await.map_err(Refusal::failed)?.map(Json)
}

/// Closes the ports for clients and their connections.
async fn refuse_clients(State(state): State<AdminState>) -> RestResult {
    let closed = state.remote.call(ShardId(0), |services| async move {
        if let Some(clients) = services.clients.try_get() {
            clients.stop().await;
        }
    });
    closed.await.map(Json).map_err(Refusal::failed)
}

async fn cluster_name(State(state): State<AdminState>) -> Json<String> {
    Json(state.cluster_name)
}

async fn release_version(State(state): State<AdminState>) -> Json<String> {
    Json(state.release_version)
}

async fn messina_version() -> Json<&'static str> {
    Json(env!("CARGO_PKG_VERSION"))
}

async fn load(State(state): State<AdminState>) -> RestResult<u64> {
    Ok(Json(operations::load(&state.remote).await?))
}

#[derive(Serialize)]
struct ColumnFamily {
    ks: String,
    cf: String,
    #[serde(rename = "type")]
    kind: &'static str,
}

async fn column_families(State(state): State<AdminState>) -> RestResult<Vec<ColumnFamily>> {
    let tables = operations::all_tables(&state.remote).await?;
    let named =
        tables.into_iter().map(|table| ColumnFamily { ks: table.keyspace, cf: table.name, kind: "ColumnFamilies" });
    Ok(Json(named.collect()))
}

async fn column_family_names(State(state): State<AdminState>) -> RestResult<Vec<String>> {
    let tables = operations::all_tables(&state.remote).await?;
    Ok(Json(tables.into_iter().map(|table| format!("{}:{}", table.keyspace, table.name)).collect()))
}

#[derive(Deserialize)]
struct Level {
    level: Option<String>,
}

/// The modules whose log level can be read: everything, the crates, and the libraries that log.
const LOGGERS: &[&str] = &[
    "root", "messina", "rt", "model", "sstable", "engine", "replica", "cluster", "cql", "server", "openraft", "rustls",
    "hyper", "axum", "tower", "tokio", "mio",
];

async fn loggers() -> Json<&'static [&'static str]> {
    Json(LOGGERS)
}

/// Refuses names that neither are nor contain a logger: their level would have no effect.
fn check_logger(name: &str) -> Result<(), Refusal> {
    let owner = name.split("::").next().unwrap_or(name);
    match LOGGERS.contains(&owner) {
        true => Ok(()),
        false => {
            Err(Refusal::Bad(format!("There is no logger '{name}': {}, or a module below one", LOGGERS.join(", "))))
        }
    }
}

/// The level of all modules without a level of their own.
async fn set_root_logger(state: State<AdminState>, query: Query<Level>) -> RestResult {
    set_logger(state, Path("root".to_owned()), query).await
}

async fn logger(State(state): State<AdminState>, Path(name): Path<String>) -> RestResult<String> {
    check_logger(&name)?;
    (state.log)(&name, None).map(Json).map_err(Refusal::Bad)
}

async fn set_logger(
    State(state): State<AdminState>,
    Path(name): Path<String>,
    Query(query): Query<Level>,
) -> RestResult {
    let Some(level) = query.level else {
        return Err(Refusal::Bad("The level is missing: ?level=debug".to_owned()));
    };
    check_logger(&name)?;
    (state.log)(&name, Some(&level)).map(|_| Json(())).map_err(Refusal::Bad)
}
