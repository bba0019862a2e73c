//! Ownership, under ScyllaDB's paths: tokens, tablets, owners of ranges and of keys; and what the
//! node reports about itself.
//!
//! Clients that split work by the ring see evenly spaced tokens of every full member, as in
//! `system.local` and `system.peers`. The actual owners of a partition depend on its table's
//! tablets.

use super::RemoteServices;
use super::extract::{Path, Query};
use super::nodes::{self, address};
use super::operations;
use super::refusal::{Refusal, RestResult};
use super::rest::AdminState;
use axum::extract::State;
use axum::routing::get;
use axum::{Json, Router};
use cluster::NodeInfo;
use cluster::metadata::builtin;
use cluster::observe::Member;
use cluster::tablets::TabletReplica;
use model::key::{self, DecoratedKey};
use model::schema::TableSchema;
use model::types::Value;
use rt::ShardId;
use serde::{Deserialize, Serialize};
use serde_json::json;
use uuid::Uuid;

/// The paths of this file.
pub fn routes() -> Router<AdminState> {
    let nothing = || get(async || Json(Vec::<()>::new()));
    let zero = || get(async || Json(0u64));
    Router::new()
        .route("/cluster/tablets/{keyspace}", get(tablets_of_table))
        .route("/storage_service/tokens", get(tokens))
        .route("/storage_service/tokens/{endpoint}", get(tokens_of))
        .route("/storage_service/tokens_endpoint", get(tokens_endpoint))
        .route("/storage_service/ownership", get(ownership))
        .route("/storage_service/ownership/{keyspace}", get(ownership_of))
        .route("/storage_service/describe_ring/{keyspace}", get(describe_ring))
        .route("/storage_service/natural_endpoints/{keyspace}", get(natural_endpoints))
        .route("/storage_service/schema_version", get(schema_version))
        .route("/storage_service/generation_number", get(generation_number))
        .route("/storage_service/partitioner_name", get(async || Json(cql::system::PARTITIONER)))
        .route("/storage_proxy/read_repair_attempted", zero())
        .route("/storage_proxy/read_repair_repaired_blocking", zero())
        .route("/storage_proxy/read_repair_repaired_background", zero())
        .route("/messaging_service/messages/pending", nothing())
        .route("/messaging_service/messages/sent", nothing())
        .route("/messaging_service/messages/dropped", nothing())
        .route("/messaging_service/messages/respond_pending", nothing())
        .route("/messaging_service/messages/respond_completed", nothing())
}

/// One entry of a map, as this interface writes maps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Entry<V> {
    /// The key.
    pub key: String,
    /// Its value.
    pub value: V,
}

impl<V> Entry<V> {
    /// An entry.
    pub fn new(key: impl ToString, value: V) -> Entry<V> {
        Entry { key: key.to_string(), value }
    }
}

/// The state that the node reports about itself, and the version of the schema.
pub struct Facts {
    /// The node.
    pub node: NodeInfo,
    schema: Uuid,
}

/// Calls shard 0.
pub async fn facts(remote: &RemoteServices) -> Result<Facts, Refusal> {
    let asked = remote.call(ShardId(0), |services| async move {
        let service = services.cluster.metadata.get();
        Facts { node: service.info().as_ref().clone(), schema: service.current().version }
    });
    asked.await.map_err(Refusal::failed)
}

async fn schema_version(State(state): State<AdminState>) -> RestResult<String> {
    Ok(Json(facts(&state.remote).await?.schema.to_string()))
}

/// Seconds since 1970 at which the node started.
async fn generation_number(State(state): State<AdminState>) -> RestResult<i64> {
    Ok(Json(facts(&state.remote).await?.node.started_micros / 1_000_000))
}

/// The tokens of this node.
async fn tokens(State(state): State<AdminState>) -> RestResult<Vec<String>> {
    let members = nodes::members(&state.remote).await?;
    Ok(Json(nodes::tokens(nodes::find(&members, None)?).iter().map(i64::to_string).collect()))
}

async fn tokens_of(State(state): State<AdminState>, Path(endpoint): Path<String>) -> RestResult<Vec<String>> {
    let members = nodes::members(&state.remote).await?;
    let found = nodes::find(&members, Some(&endpoint)).ok();
    Ok(Json(found.map_or_else(Vec::new, |member| nodes::tokens(member).iter().map(i64::to_string).collect())))
}

/// The tokens that clients see, in order, with their nodes.
fn ring(members: &[Member]) -> Vec<(i64, &Member)> {
    let mut ring: Vec<_> =
        members.iter().flat_map(|member| nodes::tokens(member).into_iter().map(move |token| (token, member))).collect();
    ring.sort_by_key(|(token, _)| *token);
    ring
}

/// The query of paths about a table: its keyspace's name is in the path or in `keyspace`.
#[derive(Deserialize)]
struct TableQuery {
    keyspace: Option<String>,
    #[serde(alias = "table")]
    cf: Option<String>,
    key: Option<String>,
}

impl TableQuery {
    fn table(&self) -> Option<&str> {
        self.cf.as_deref().filter(|name| !name.is_empty())
    }
}

/// Tokens, and the first replica of the range that ends at each token.
async fn tokens_endpoint(
    State(state): State<AdminState>,
    Query(query): Query<TableQuery>,
) -> RestResult<Vec<Entry<String>>> {
    let members = nodes::members(&state.remote).await?;
    match (&query.keyspace, query.table()) {
        (Some(keyspace), Some(table)) => {
            let tablets = tablets(&state.remote, keyspace, table).await?;
            let owner = |tablet: &Tablet| {
                tablet.endpoints(&members).into_iter().next().map(|member| address(&member.seen.node))
            };
            let owned = tablets.iter().map(|tablet| Entry::new(tablet.last, owner(tablet).unwrap_or_default()));
            Ok(Json(owned.collect()))
        }
        (None, None) => Ok(Json(
            ring(&members).into_iter().map(|(token, member)| Entry::new(token, address(&member.seen.node))).collect(),
        )),
        _ => Err(Refusal::Bad("Both keyspace and cf must be given, or none of them".to_owned())),
    }
}

/// A tablet of a table.
struct Tablet {
    /// The token before its first.
    first: i64,
    /// Its last token.
    last: i64,
    replicas: Vec<TabletReplica>,
    /// Whether every node has its own rows.
    is_node_local: bool,
}

impl Tablet {
    /// The nodes with a replica. For a node-local table this is this node only.
    fn endpoints<'a>(&self, members: &'a [Member]) -> Vec<&'a Member> {
        if self.is_node_local {
            return members.iter().filter(|member| member.seen.is_own).collect();
        }
        let of = |replica: &TabletReplica| members.iter().find(|member| member.seen.node.host == replica.host);
        self.replicas.iter().filter_map(of).collect()
    }
}

async fn tablets(remote: &RemoteServices, keyspace: &str, table: &str) -> Result<Vec<Tablet>, Refusal> {
    let found = operations::tables(remote, keyspace, Some(table)).await?;
    let [table] = &found[..] else {
        return Err(Refusal::Bad("One column family must be given".to_owned()));
    };
    let id = table.id;
    let tablets = remote.call(ShardId(0), move |services| async move {
        let metadata = services.cluster.metadata.get().current();
        // A table that was dropped meanwhile has none.
        metadata.table_by_id(id).map_or(Vec::new(), |table| {
            let (map, is_node_local) = (&table.tablets, builtin::is_built_in(&table.schema.keyspace));
            let tablet = |n| Tablet {
                first: map.first_token(n).0,
                last: map.last_token(n).0,
                replicas: map.replicas(n).to_vec(),
                is_node_local,
            };
            (0..map.count()).map(tablet).collect()
        })
    });
    tablets.await.map_err(Refusal::failed)
}

/// The tablets of a table with the shards that have them.
async fn tablets_of_table(
    State(state): State<AdminState>,
    Path(keyspace): Path<String>,
    Query(query): Query<TableQuery>,
) -> RestResult<Vec<serde_json::Value>> {
    let Some(table) = query.table() else {
        return Err(Refusal::Bad("The column family must be specified: cf".to_owned()));
    };
    let members = nodes::members(&state.remote).await?;
    let tablets = tablets(&state.remote, &keyspace, table).await?;
    let shown = |tablet: &Tablet| {
        let replica = |replica: &TabletReplica| {
            let member = members.iter().find(|member| member.seen.node.host == replica.host);
            let address = member.map_or_else(|| replica.host.to_string(), |member| address(&member.seen.node));
            json!({ "address": address, "host_id": replica.host.to_string(), "shard": replica.shard })
        };
        json!({
            "first_token": tablet.first.to_string(),
            "last_token": tablet.last.to_string(),
            "replicas": tablet.replicas.iter().map(replica).collect::<Vec<_>>(),
        })
    };
    Ok(Json(tablets.iter().map(shown).collect()))
}

/// The share of the ring that clients see for each full member.
async fn ownership(State(state): State<AdminState>) -> RestResult<Vec<Entry<String>>> {
    let members = nodes::members(&state.remote).await?;
    let share =
        |member: &Member| Some(Entry::new(address(&member.seen.node), owned(1.0 / f64::from(member.seen.rank?.1))));
    Ok(Json(members.iter().filter_map(share).collect()))
}

fn owned(share: f64) -> String {
    format!("{share:?}")
}

/// The fraction of the tablets of a keyspace, or of a table, that each node has a replica of.
async fn ownership_of(
    State(state): State<AdminState>,
    Path(keyspace): Path<String>,
    Query(query): Query<TableQuery>,
) -> RestResult<Vec<Entry<String>>> {
    let tables = operations::tables(&state.remote, &keyspace, query.table()).await?;
    let members = nodes::members(&state.remote).await?;
    let mut shares = vec![0.0; members.len()];
    for table in &tables {
        let tablets = tablets(&state.remote, &keyspace, &table.name).await?;
        for tablet in &tablets {
            let endpoints = tablet.endpoints(&members);
            for (share, member) in shares.iter_mut().zip(&members) {
                if endpoints.iter().any(|endpoint| endpoint.seen.node.host == member.seen.node.host) {
                    *share += 1.0 / (tablets.len() * tables.len()) as f64;
                }
            }
        }
    }
    // The fractions are powers of two divided by the number of tables, so the sum is rounded to
    // give 1.0.
    let entry =
        |(member, share): (&Member, &f64)| Entry::new(address(&member.seen.node), owned((share * 1e6).round() / 1e6));
    Ok(Json(members.iter().zip(&shares).filter(|(member, _)| member.seen.rank.is_some()).map(entry).collect()))
}

/// A node with a replica of a range.
#[derive(Clone, Debug, Serialize)]
struct Endpoint {
    host: String,
    datacenter: String,
    rack: String,
}

/// A token range and its owners.
#[derive(Clone, Debug, Serialize)]
struct TokenRange {
    start_token: String,
    end_token: String,
    endpoints: Vec<String>,
    rpc_endpoints: Vec<String>,
    endpoint_details: Vec<Endpoint>,
}

impl TokenRange {
    fn of(start: i64, end: i64, endpoints: &[&Member]) -> TokenRange {
        let detail = |member: &&Member| Endpoint {
            host: address(&member.seen.node),
            datacenter: member.seen.node.datacenter.clone(),
            rack: member.seen.node.rack.clone(),
        };
        TokenRange {
            start_token: start.to_string(),
            end_token: end.to_string(),
            endpoints: endpoints.iter().map(|member| address(&member.seen.node)).collect(),
            rpc_endpoints: endpoints.iter().map(|member| member.seen.node.rpc_address.to_string()).collect(),
            endpoint_details: endpoints.iter().map(detail).collect(),
        }
    }
}

/// The tablets of a table; without one, the ring that clients see.
async fn describe_ring(
    State(state): State<AdminState>,
    Path(keyspace): Path<String>,
    Query(query): Query<TableQuery>,
) -> RestResult<Vec<TokenRange>> {
    let members = nodes::members(&state.remote).await?;
    if let Some(table) = query.table() {
        let tablets = tablets(&state.remote, &keyspace, table).await?;
        let range = |tablet: &Tablet| TokenRange::of(tablet.first, tablet.last, &tablet.endpoints(&members));
        return Ok(Json(tablets.iter().map(range).collect()));
    }
    operations::tables(&state.remote, &keyspace, None).await?;
    let ring = ring(&members);
    let starts = ring.last().into_iter().chain(&ring);
    Ok(Json(starts.zip(&ring).map(|((start, _), (end, member))| TokenRange::of(*start, *end, &[member])).collect()))
}

/// The serialised form of a partition key as tools write it: its columns with colons between them.
fn key_of(schema: &TableSchema, text: &str) -> Result<Vec<u8>, String> {
    let columns = &schema.partition_key;
    let parts: Vec<&str> = if columns.len() == 1 { vec![text] } else { text.split(':').collect() };
    if parts.len() != columns.len() {
        return Err(format!("the key has {} columns, with colons between them", columns.len()));
    }
    let mut values = Vec::with_capacity(parts.len());
    for (column, part) in columns.iter().zip(parts) {
        let value = Value::from_text(&column.ty, part).and_then(|value| value.encode(&column.ty));
        let value = value.map_err(|error| error.to_string())?.unwrap_or_default();
        if value.len() > key::MAX_KEY_BYTES {
            return Err(format!("column {} has more than {} bytes", column.name, key::MAX_KEY_BYTES));
        }
        values.push(value);
    }
    let mut out = Vec::new();
    key::encode_partition_key(&values.iter().map(Vec::as_slice).collect::<Vec<_>>(), &mut out);
    Ok(out)
}

/// The nodes with a replica of a key.
async fn natural_endpoints(
    State(state): State<AdminState>,
    Path(keyspace): Path<String>,
    Query(query): Query<TableQuery>,
) -> RestResult<Vec<String>> {
    let Some(table) = query.table() else {
        return Err(Refusal::Bad("The column family must be specified: cf".to_owned()));
    };
    let Some(text) = query.key.clone() else {
        return Err(Refusal::Bad("The key must be specified: key".to_owned()));
    };
    let tablets = tablets(&state.remote, &keyspace, table).await?;
    let name = (keyspace, table.to_owned());
    let token = state.remote.call(ShardId(0), move |services| async move {
        let metadata = services.cluster.metadata.get().current();
        let table = metadata.table(&name.0, &name.1).ok_or_else(|| "the table was dropped".to_owned())?;
        key_of(&table.schema, &text).map(|key| DecoratedKey::new(key.into()).token.0)
    });
    let token = token.await.map_err(Refusal::failed)?.map_err(Refusal::Bad)?;
    let members = nodes::members(&state.remote).await?;
    let tablet = tablets.iter().find(|tablet| token <= tablet.last);
    let endpoints = tablet.map_or_else(Vec::new, |tablet| tablet.endpoints(&members));
    Ok(Json(endpoints.into_iter().map(|member| address(&member.seen.node)).collect()))
}
