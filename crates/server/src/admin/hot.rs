//! Hot partitions for administrators.
//!
//! `/cluster/hot_partitions` is Messina's own path: the hot partitions of all nodes that are up,
//! for `messina admin hot`. Each node answers for itself ([`serve`]). ScyllaDB's `toppartitions`
//! paths count all operations of this node for some time.

use super::RemoteServices;
use super::extract::{Path, Query};
use super::operations::{self, TableName, observed};
use super::other_node::json_of;
use super::refusal::{Refusal, RestResult};
use super::rest::AdminState;
use super::tables::named;
use axum::extract::State;
use axum::routing::get;
use axum::{Json, Router};
use bytes::Bytes;
use cluster::ClusterShards;
use cluster::observe::hot::{self, HotView, RecordingRequest, TopOfKind, TopView};
use cluster::observe::members;
use internode::{Internode, Verb};
use replica::hot::{MOST_PARTITIONS, MOST_RECORDINGS};
use rt::Pieces;
use rt::time::Duration;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// The limits of a recording.
const MOST_MILLIS: u64 = 600_000;
const MOST_CAPACITY: u64 = MOST_PARTITIONS as u64;

/// The paths of this file.
pub fn routes() -> Router<AdminState> {
    Router::new()
        .route("/cluster/hot_partitions", get(all_nodes))
        .route("/storage_service/toppartitions/", get(top_of_tables))
        .route("/storage_service/toppartitions", get(top_of_tables))
        .route("/column_family/toppartitions/{name}", get(top_of_table))
}

/// Answers other nodes.
pub fn serve(internode: &Internode, shards: ClusterShards) {
    internode.serve(Verb::HotPartitions, move |_, _| async move {
        let rows = own_rows(shards).await;
        Ok(Pieces::from(Bytes::from(Value::from(rows).to_string())))
    });
}

/// The hot partitions of this node.
async fn own_rows(shards: ClusterShards) -> Vec<Value> {
    hot::partitions(shards).await.iter().map(row).collect()
}

fn row(view: &HotView) -> Value {
    let seen = &view.seen;
    let rounded = |rate: f64| (rate * 10.0).round() / 10.0;
    json!({
        "keyspace": view.keyspace,
        "table": view.table,
        "key": view.key,
        "token": seen.id.token.0,
        "shard": view.shard,
        "reads_per_second": rounded(seen.reads),
        "writes_per_second": rounded(seen.writes),
        "bytes_per_second": rounded(seen.bytes),
        "cpu_share": (seen.cpu_share * 10_000.0).round() / 10_000.0,
        "accepted_per_second": rounded(seen.accepted),
        "refused_per_second": rounded(seen.refused),
        "would_be_refused_per_second": rounded(seen.would_refuse),
        "error_per_second": rounded(seen.error),
    })
}

/// The hot partitions of all nodes. A node that does not answer has an error instead.
async fn all_nodes(State(state): State<AdminState>) -> RestResult<Vec<Value>> {
    let nodes = observed(&state.remote, |services| async move {
        let shards = services.cluster;
        let asked = members::nodes(shards).into_iter().map(|seen| async move {
            let found = match seen.is_own {
                true => Ok(Value::from(own_rows(shards).await)),
                false => json_of(shards, seen.node.host, Verb::HotPartitions).await,
            };
            let (partitions, error) = match found {
                Ok(partitions) => (partitions, Value::Null),
                Err(why) => (json!([]), Value::from(why)),
            };
            let (address, host) = (super::nodes::address(&seen.node), seen.node.host.to_string());
            json!({ "address": address, "host_id": host, "error": error, "partitions": partitions })
        });
        futures_util::future::join_all(asked).await
    });
    let mut nodes = nodes.await?;
    complete_keys(&mut nodes);
    Ok(Json(nodes))
}

/// Sets the keys that a shard does not know because it has only refused operations, if another
/// shard knows them.
fn complete_keys(nodes: &mut [Value]) {
    let id = |row: &Value| {
        let text = |name: &str| row[name].as_str().map(str::to_owned);
        Some((text("keyspace")?, text("table")?, row["token"].as_i64()?))
    };
    let rows = |node: &mut Value| node["partitions"].as_array_mut().map(std::mem::take).unwrap_or_default();
    let mut lists: Vec<Vec<Value>> = nodes.iter_mut().map(rows).collect();
    let known = lists.iter().flatten().filter(|row| !row["key"].is_null());
    let known: BTreeMap<_, Value> = known.filter_map(|row| Some((id(row)?, row["key"].clone()))).collect();
    for row in lists.iter_mut().flatten().filter(|row| row["key"].is_null()) {
        if let Some(key) = id(row).and_then(|id| known.get(&id)) {
            row["key"] = key.clone();
        }
    }
    for (node, rows) in nodes.iter_mut().zip(lists) {
        node["partitions"] = rows.into();
    }
}

/// The query of `toppartitions`, with ScyllaDB's names and defaults.
#[derive(Deserialize)]
struct Top {
    /// Tables as `keyspace:table`, separated by commas.
    table_filters: Option<String>,
    /// Keyspaces, separated by commas.
    keyspace_filters: Option<String>,
    /// Milliseconds.
    duration: Option<String>,
    /// How many partitions are returned of each kind.
    list_size: Option<String>,
    /// How many partitions are counted at once.
    capacity: Option<String>,
}

/// A partition in an answer.
#[derive(Serialize)]
struct TopPartition {
    partition: String,
    count: u64,
    error: u64,
}

#[derive(Serialize)]
struct TopPartitions {
    read_cardinality: usize,
    write_cardinality: usize,
    read: Vec<TopPartition>,
    write: Vec<TopPartition>,
}

/// A number of the query.
fn number(name: &str, text: Option<&str>, default: u64, most: u64) -> Result<u64, Refusal> {
    let Some(text) = text.filter(|text| !text.is_empty()) else { return Ok(default) };
    let number = text.parse().ok().filter(|number| (1..=most).contains(number));
    number.ok_or_else(|| Refusal::Bad(format!("{name} must be a number from 1 to {most}, not {text}")))
}

impl Top {
    /// The tables that the filters name; without filters, all.
    async fn tables(&self, remote: &RemoteServices) -> Result<Vec<TableName>, Refusal> {
        let words = |list: &Option<String>| -> Vec<String> {
            let words = list.iter().flat_map(|list| list.split(',')).map(str::trim);
            words.filter(|word| !word.is_empty()).map(str::to_owned).collect()
        };
        let (tables, keyspaces) = (words(&self.table_filters), words(&self.keyspace_filters));
        if tables.is_empty() && keyspaces.is_empty() {
            return operations::all_tables(remote).await;
        }
        let mut chosen = Vec::new();
        for name in &tables {
            chosen.push(named(remote, name).await?);
        }
        for keyspace in &keyspaces {
            chosen.extend(operations::tables(remote, keyspace, None).await?);
        }
        Ok(chosen)
    }

    /// Records the tables. `shown` is the text of a partition.
    async fn record(
        &self,
        remote: &RemoteServices,
        tables: Vec<TableName>,
        shown: fn(&TopView) -> String,
    ) -> RestResult<TopPartitions> {
        let duration = number("duration", self.duration.as_deref(), 1_000, MOST_MILLIS)?;
        let list_size = number("list_size", self.list_size.as_deref(), 10, MOST_CAPACITY)? as usize;
        let capacity = number("capacity", self.capacity.as_deref(), 256, MOST_CAPACITY)? as usize;
        let tables: Vec<_> = tables.into_iter().map(|table| table.id).collect();
        let (capacity, duration) = (capacity.max(list_size), Duration::from_millis(duration));
        let request = RecordingRequest { tables, capacity, duration, list_size };
        let recorded = observed(remote, move |services| hot::record(services.cluster, request)).await?;
        let Some([read, write]) = recorded else {
            return Err(Refusal::Busy(format!(
                "this node already runs {MOST_RECORDINGS} toppartitions requests, the most at the same time: try again when one of \
                 them has ended"
            )));
        };
        let top = |kind: &TopOfKind| {
            let top = kind.top.iter();
            top.map(|one| TopPartition { partition: shown(one), count: one.count, error: one.error }).collect()
        };
        let (read_cardinality, write_cardinality) = (read.partitions, write.partitions);
        Ok(Json(TopPartitions { read_cardinality, write_cardinality, read: top(&read), write: top(&write) }))
    }
}

/// The text of a partition: its key, or its token if the key is too long to be kept.
fn key_or_token(one: &TopView) -> String {
    one.key.clone().unwrap_or_else(|| format!("token {}", one.token))
}

async fn top_of_tables(State(state): State<AdminState>, Query(query): Query<Top>) -> RestResult<TopPartitions> {
    let tables = query.tables(&state.remote).await?;
    query.record(&state.remote, tables, |one| format!("({}:{}) {}", one.keyspace, one.table, key_or_token(one))).await
}

async fn top_of_table(
    State(state): State<AdminState>,
    Path(name): Path<String>,
    Query(query): Query<Top>,
) -> RestResult<TopPartitions> {
    let table = named(&state.remote, &name).await?;
    query.record(&state.remote, vec![table], key_or_token).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_defaults_and_bounds() {
        assert_eq!(number("duration", None, 7, 9), Ok(7));
        assert_eq!(number("duration", Some(""), 7, 9), Ok(7));
        assert_eq!(number("duration", Some("9"), 7, 9), Ok(9));
        for wrong in ["0", "10", "-1", "1.5", "x", "99999999999999999999999"] {
            let why = format!("duration must be a number from 1 to 9, not {wrong}");
            assert_eq!(number("duration", Some(wrong), 7, 9), Err(Refusal::Bad(why)));
        }
    }

    #[test]
    fn keys_come_from_shards_that_know_them() {
        let row =
            |table: &str, token: i64, key: Value| json!({"keyspace": "k", "table": table, "token": token, "key": key});
        let node = |rows: Vec<Value>| json!({"address": "a", "error": null, "partitions": rows});
        let mut nodes = [
            node(vec![row("t", 1, Value::Null), row("u", 1, Value::Null)]),
            json!({"address": "b", "error": "the node is down", "partitions": []}),
            node(vec![row("t", 1, json!("'a'")), row("t", 2, Value::Null)]),
        ];
        complete_keys(&mut nodes);
        let keys = |node: &Value| {
            node["partitions"].as_array().expect("a list").iter().map(|row| row["key"].clone()).collect()
        };
        let keys: Vec<Vec<Value>> = nodes.iter().map(keys).collect();
        assert_eq!(keys, [vec![json!("'a'"), Value::Null], vec![], vec![json!("'a'"), Value::Null]]);
    }
}
