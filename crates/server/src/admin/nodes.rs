//! The members of the cluster for administrators, under ScyllaDB's paths: which nodes are up, their
//! location, state, load and schema.
//!
//! `/cluster/nodes` is Messina's own path: everything in one answer, for `messina admin status`. So
//! is `/cluster/missed/{node}`: the writes that a node missed and that hint replay will not
//! deliver.

use super::RemoteServices;
use super::extract::{Path, Query};
use super::operations::observed;
use super::refusal::{Refusal, RestResult};
use super::rest::AdminState;
use super::ring::{Entry, facts};
use axum::extract::State;
use axum::routing::{get, post};
use axum::{Json, Router};
use cluster::observe::{Member, SNITCH, members};
use cluster::{Node, NodeState};
use coordinator::hints::MissedWrites;
use model::HostId;
use rt::ShardId;
use rt::task::Group;
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use uuid::Uuid;

/// The version of values that nodes do not report.
const UNREACHABLE: &str = "UNREACHABLE";

/// The paths of this file.
pub fn routes() -> Router<AdminState> {
    Router::new()
        .route("/cluster/nodes", get(all))
        .route("/cluster/missed/{node}", post(resync).delete(forget_missed))
        .route("/storage_service/rebuild", post(rebuild))
        .route("/storage_service/host_id", get(host_ids))
        .route("/storage_service/load_map", get(load_map))
        .route("/storage_service/nodes/joining", get(joining))
        .route("/storage_service/nodes/leaving", get(leaving))
        .route("/storage_service/nodes/moving", get(moving))
        .route("/storage_proxy/schema_versions", get(schema_versions))
        .route("/snitch/datacenter", get(datacenter))
        .route("/snitch/rack", get(rack))
        .route("/snitch/name", get(snitch))
        .route("/gossiper/endpoint/live", get(live))
        .route("/gossiper/endpoint/down", get(down))
        .route("/failure_detector/endpoints", get(endpoints))
        .route("/failure_detector/simple_states", get(simple_states))
        .route("/failure_detector/count/endpoint/up", get(count_up))
        .route("/failure_detector/count/endpoint/down", get(count_down))
}

/// The name by which this interface calls a node.
pub fn address(node: &Node) -> String {
    node.broadcast_address.to_string()
}

/// The tokens that clients are shown of a member.
pub fn tokens(member: &Member) -> Vec<i64> {
    member.seen.rank.map_or_else(Vec::new, |(place, count)| cql::system::tokens_of(place, count).collect())
}

/// The version of a member's schema. `None` if the node cannot be reached.
fn schema(member: &Member) -> Option<Uuid> {
    member.seen.schema.filter(|_| member.seen.is_up)
}

/// All members, in the order of their ids.
pub async fn members(remote: &RemoteServices) -> Result<Vec<Member>, Refusal> {
    observed(remote, |services| async move {
        let service = services.cluster.metadata.get();
        members::members(&service.current(), service.info(), services.cluster).await
    })
    .await
}

/// The member with an address or id; this node if none is given.
pub fn find<'a>(members: &'a [Member], endpoint: Option<&str>) -> Result<&'a Member, Refusal> {
    let found = match endpoint.filter(|endpoint| !endpoint.is_empty()) {
        Some(name) => {
            members.iter().find(|one| address(&one.seen.node) == name || one.seen.node.host.to_string() == name)
        }
        None => members.iter().find(|one| one.seen.is_own),
    };
    found.ok_or_else(|| Refusal::Bad(format!("The endpoint {} is not known", endpoint.unwrap_or_default())))
}

async fn addresses(state: &AdminState, which: impl Fn(&Member) -> bool) -> RestResult<Vec<String>> {
    let members = members(&state.remote).await?;
    Ok(Json(members.iter().filter(|member| which(member)).map(|member| address(&member.seen.node)).collect()))
}

/// Writes of a node that hint replay will not deliver, with the name of the table.
async fn missed(remote: &RemoteServices) -> Result<Vec<(MissedWrites, Option<String>)>, Refusal> {
    let asked = remote.call(ShardId(0), |services| async move {
        let missed = coordinator::resync::missed(services.resync).await;
        let metadata = services.cluster.metadata.get().current();
        let name = |one: &MissedWrites| {
            let table = metadata.table_by_id(one.table?)?;
            Some(format!("{}.{}", table.schema.keyspace, table.schema.name))
        };
        missed.into_iter().map(|one| (one, name(&one))).collect()
    });
    asked.await.map_err(Refusal::failed)
}

#[derive(Deserialize)]
struct Forced {
    /// Resync even if other replicas may have purged deletions that the node missed.
    #[serde(default)]
    force: bool,
}

/// Resyncs a node. Returns the names of the tables that were read.
async fn resync(
    State(state): State<AdminState>,
    Path(node): Path<String>,
    Query(query): Query<Forced>,
) -> RestResult<Vec<String>> {
    let host = find(&members(&state.remote).await?, Some(&node))?.seen.node.host;
    resync_node(&state.remote, host, query.force).await
}

async fn resync_node(remote: &RemoteServices, host: HostId, force: bool) -> RestResult<Vec<String>> {
    let done = remote.call(ShardId(0), move |services| async move {
        let task = rt::task::spawn_in(Group::Maintenance, coordinator::resync::resync(services.resync, host, force));
        task.await.unwrap_or_else(|_| Err("the node is stopping".into()))
    });
    Ok(Json(done.await.map_err(Refusal::failed)?.map_err(Refusal::Failed)?))
}

/// Where the data is read from. The name is ScyllaDB's.
#[derive(Deserialize)]
struct Rebuilt {
    source_dc: Option<String>,
}

/// Reads all tables of this node again from all their replicas, after it has lost data.
async fn rebuild(State(state): State<AdminState>, Query(query): Query<Rebuilt>) -> RestResult<()> {
    if query.source_dc.is_some_and(|name| !name.is_empty()) {
        let why = "A datacenter cannot be chosen: a rebuild reads all replicas, because one alone may lack writes";
        return Err(Refusal::Bad(why.to_owned()));
    }
    resync_node(&state.remote, HostId(state.host_id), true).await.map(|_| Json(()))
}

/// Removes the missed writes of a node, because an operator says that it has them.
async fn forget_missed(State(state): State<AdminState>, Path(node): Path<String>) -> RestResult<()> {
    let host = find(&members(&state.remote).await?, Some(&node))?.seen.node.host;
    let done = state
        .remote
        .call(ShardId(0), move |services| async move { coordinator::resync::forget(services.resync, host).await });
    Ok(Json(done.await.map_err(Refusal::failed)?))
}

/// Why this node has not applied a committed change of the metadata for some time, if it has not.
async fn stuck_change(remote: &RemoteServices) -> Result<Option<String>, Refusal> {
    let asked = remote.call(ShardId(0), |services| async move {
        services.cluster.metadata.try_get().and_then(|service| service.apply_failure().0)
    });
    asked.await.map_err(Refusal::failed)
}

async fn all(State(state): State<AdminState>) -> RestResult<Vec<Value>> {
    let missed = missed(&state.remote).await?;
    let stuck = stuck_change(&state.remote).await?;
    let missed_by = |node: &Node| {
        let mut of_node = missed.iter().filter(|(one, _)| one.target == node.host).peekable();
        let first = of_node.peek()?.0;
        let tables: Vec<&str> = of_node.clone().filter_map(|(_, name)| name.as_deref()).collect();
        let any_table = of_node.any(|(one, _)| one.table.is_none());
        Some(
            json!({ "tables": tables, "any_table": any_table, "why": first.cause.text(), "since": first.since / 1000 }),
        )
    };
    let shown = |member: &Member| {
        let node = &member.seen.node;
        json!({
            "address": address(&member.seen.node),
            "rpc_address": node.rpc_address.to_string(),
            "native_port": node.native_port,
            "host_id": node.host.to_string(),
            "datacenter": node.datacenter,
            "rack": node.rack,
            "up": member.seen.is_up,
            "state": node.state.name(),
            "native_transport": member.seen.serving,
            "load": member.seen.load_bytes,
            "tokens": tokens(member).len(),
            "tablets": member.tablets,
            "shards": node.shards,
            "schema_version": schema(member).map(|version| version.to_string()),
            "release_version": node.release_version,
            "clock_ahead_us": member.seen.clock_ahead_micros,
            "refuses_writes": member.seen.no_space,
            "unreadable_sstables": member.seen.unreadable,
            "missed_writes": missed_by(node),
            // A node reports this only about itself.
            "stuck_change": stuck.as_ref().filter(|_| member.seen.is_own),
            "own": member.seen.is_own,
        })
    };
    Ok(Json(members(&state.remote).await?.iter().map(shown).collect()))
}

async fn host_ids(State(state): State<AdminState>) -> RestResult<Vec<Entry<String>>> {
    let members = members(&state.remote).await?;
    Ok(Json(members.iter().map(|one| Entry::new(address(&one.seen.node), one.seen.node.host.to_string())).collect()))
}

/// Nodes that have not reported their load yet are left out.
async fn load_map(State(state): State<AdminState>) -> RestResult<Vec<Entry<u64>>> {
    let members = members(&state.remote).await?;
    Ok(Json(members.iter().filter_map(|one| Some(Entry::new(address(&one.seen.node), one.seen.load_bytes?))).collect()))
}

async fn joining(State(state): State<AdminState>) -> RestResult<Vec<String>> {
    addresses(&state, |member| member.seen.node.state == NodeState::Joining).await
}

async fn leaving(State(state): State<AdminState>) -> RestResult<Vec<String>> {
    addresses(&state, |member| member.seen.node.state == NodeState::Leaving).await
}

/// With tablets, no node moves on the ring.
async fn moving() -> Json<[String; 0]> {
    Json([])
}

async fn live(State(state): State<AdminState>) -> RestResult<Vec<String>> {
    addresses(&state, |member| member.seen.is_up).await
}

async fn down(State(state): State<AdminState>) -> RestResult<Vec<String>> {
    addresses(&state, |member| !member.seen.is_up).await
}

async fn count_up(State(state): State<AdminState>) -> RestResult<usize> {
    Ok(Json(live(State(state)).await?.0.len()))
}

async fn count_down(State(state): State<AdminState>) -> RestResult<usize> {
    Ok(Json(down(State(state)).await?.0.len()))
}

async fn simple_states(State(state): State<AdminState>) -> RestResult<Vec<Entry<&'static str>>> {
    let members = members(&state.remote).await?;
    Ok(Json(
        members
            .iter()
            .map(|one| Entry::new(address(&one.seen.node), if one.seen.is_up { "UP" } else { "DOWN" }))
            .collect(),
    ))
}

async fn schema_versions(State(state): State<AdminState>) -> RestResult<Vec<Entry<Vec<String>>>> {
    let mut versions: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for member in members(&state.remote).await? {
        let version = schema(&member).map_or_else(|| UNREACHABLE.to_owned(), |version| version.to_string());
        versions.entry(version).or_default().push(address(&member.seen.node));
    }
    Ok(Json(versions.into_iter().map(|(version, nodes)| Entry::new(version, nodes)).collect()))
}

/// The query of the snitch's paths: a node; without it, this node.
#[derive(Deserialize)]
struct Host {
    host: Option<String>,
}

async fn datacenter(State(state): State<AdminState>, Query(query): Query<Host>) -> RestResult<String> {
    let members = members(&state.remote).await?;
    Ok(Json(find(&members, query.host.as_deref())?.seen.node.datacenter.clone()))
}

async fn rack(State(state): State<AdminState>, Query(query): Query<Host>) -> RestResult<String> {
    let members = members(&state.remote).await?;
    Ok(Json(find(&members, query.host.as_deref())?.seen.node.rack.clone()))
}

async fn snitch() -> Json<&'static str> {
    Json(SNITCH)
}

/// The application states that gossip would have. ScyllaDB's tools use the same numbers. The start
/// time of other nodes is not known.
async fn endpoints(State(state): State<AdminState>) -> RestResult<Vec<Value>> {
    let started = facts(&state.remote).await?.node.started_micros;
    let version = 1;
    let shown = |member: &Member| {
        let node = &member.seen.node;
        let states = [
            (0, Some(node.state.name().to_uppercase())),
            (1, member.seen.load_bytes.map(|load| load.to_string())),
            (2, schema(member).map(|schema| schema.to_string())),
            (3, Some(node.datacenter.clone())),
            (4, Some(node.rack.clone())),
            (5, Some(node.release_version.clone())),
            (8, Some(node.rpc_address.to_string())),
            (12, Some(node.host.to_string())),
            (19, Some(node.shards.to_string())),
            (21, Some(node.features.join(","))),
        ];
        let states = states.into_iter().filter_map(|(state, value)| {
            Some(json!({ "application_state": state, "version": version, "value": value? }))
        });
        let started = if member.seen.is_own { started } else { 0 };
        json!({
            "addrs": address(&member.seen.node),
            "is_alive": member.seen.is_up,
            "update_time": started / 1000,
            "generation": started / 1_000_000,
            "version": version,
            "application_state": states.collect::<Vec<_>>(),
        })
    };
    Ok(Json(members(&state.remote).await?.iter().map(shown).collect()))
}
