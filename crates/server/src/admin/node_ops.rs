//! Operations on this node as a member of its cluster, under ScyllaDB's paths: decommission, drain,
//! and the operation mode.

use super::RemoteServices;
use super::extract::Query;
use super::hindrances::Hindrances;
use super::nodes::{address, find, members};
use super::operations::observed;
use super::refusal::{Refusal, RestResult};
use super::rest::AdminState;
use crate::node_ops::{NodeOps, OpError, OperationMode};
use axum::extract::State;
use axum::routing::{get, post};
use axum::{Json, Router};
use cluster::topology::leave;
use cluster::{Node, NodeState};
use model::HostId;
use rt::ShardId;
use serde::{Deserialize, Serialize};
use std::future::Future;
use std::rc::Rc;
use uuid::Uuid;

/// The paths of this file.
pub fn routes() -> Router<AdminState> {
    Router::new()
        .route("/storage_service/operation_mode", get(operation_mode))
        .route("/storage_service/decommission", post(decommission).get(progress).delete(cancel_decommission))
        .route("/storage_service/drain", post(drain))
        .route("/storage_service/remove_node", post(remove_node).get(progress_of_removal))
        .route("/storage_service/exclude_node", post(exclude_node))
        .route("/cluster/excluded", get(excluded))
}

async fn operation_mode(State(state): State<AdminState>) -> RestResult<&'static str> {
    let mode = state.remote.call(ShardId(0), |services| async move {
        services.node_ops.try_get().map_or(OperationMode::Normal, |ops| ops.mode())
    });
    Ok(Json(mode.await.map_err(Refusal::failed)?.name()))
}

/// How far a node is in leaving its cluster, or in being removed.
#[derive(Serialize)]
struct Progress {
    /// The operation mode of this node.
    mode: &'static str,
    /// The replicas of tablets that the node still has.
    tablets: usize,
    /// Why they do not move, if something prevents it.
    waits_for: Option<String>,
}

async fn progress(State(state): State<AdminState>) -> RestResult<Progress> {
    progress_of(&state.remote, HostId(state.host_id)).await
}

async fn progress_of_removal(State(state): State<AdminState>, Query(query): Query<Removed>) -> RestResult<Progress> {
    progress_of(&state.remote, host(&state, &query.host_id).await?).await
}

async fn progress_of(remote: &RemoteServices, host: HostId) -> RestResult<Progress> {
    let progress = remote.call(ShardId(0), move |services| async move {
        let hindrances = Hindrances::of_all_nodes(services).await;
        let (metadata, ops) = (services.cluster.metadata.get().current(), services.node_ops.try_get());
        let mode = ops.map_or(OperationMode::Normal, |ops| ops.mode()).name();
        let waits_for = hindrances.of_host(&metadata, host);
        Progress { mode, tablets: leave::tablets_on(&metadata, host), waits_for }
    });
    Ok(Json(progress.await.map_err(Refusal::failed)?))
}

/// Answers once the node has left.
async fn decommission(State(state): State<AdminState>) -> RestResult {
    with_ops(&state.remote, |ops| async move { ops.decommission().await }).await.map(Json)
}

async fn cancel_decommission(State(state): State<AdminState>) -> RestResult {
    with_ops(&state.remote, |ops| async move { ops.cancel_decommission().await }).await.map(Json)
}

async fn drain(State(state): State<AdminState>) -> RestResult {
    with_ops(&state.remote, |ops| async move { ops.drain().await }).await.map(Json)
}

/// The node to remove: by host id, or by address. The name is ScyllaDB's.
#[derive(Deserialize)]
struct Removed {
    host_id: String,
}

/// Answers once other nodes have all replicas of the node.
async fn remove_node(State(state): State<AdminState>, Query(query): Query<Removed>) -> RestResult {
    let host = host(&state, &query.host_id).await?;
    with_ops(&state.remote, move |ops| async move { ops.remove(host, true).await }).await.map(Json)
}

/// The nodes to exclude. The name is ScyllaDB's.
#[derive(Deserialize)]
struct Excluded {
    hosts: String,
}

async fn exclude_node(State(state): State<AdminState>, Query(query): Query<Excluded>) -> RestResult {
    // All names are checked before the first node is banned.
    let mut hosts = Vec::new();
    for name in query.hosts.split(',') {
        hosts.push(host(&state, name).await?);
    }
    for host in hosts {
        with_ops(&state.remote, move |ops| async move { ops.remove(host, false).await }).await?;
    }
    Ok(Json(()))
}

/// A node that was removed or excluded, while other nodes build its replicas.
#[derive(Serialize)]
struct ExcludedNode {
    address: String,
    host_id: String,
    datacenter: String,
    rack: String,
    shards: u16,
    state: &'static str,
    /// The replicas that other nodes have not built yet.
    tablets: usize,
    /// Why they are not built, if something prevents it.
    waits_for: Option<String>,
}

async fn excluded(State(state): State<AdminState>) -> RestResult<Vec<ExcludedNode>> {
    let excluded = observed(&state.remote, |services| async move {
        let hindrances = Hindrances::of_all_nodes(services).await;
        let metadata = services.cluster.metadata.get().current();
        let of_node = |node: &Rc<Node>| ExcludedNode {
            address: address(node),
            host_id: node.host.to_string(),
            datacenter: node.datacenter.clone(),
            rack: node.rack.clone(),
            shards: node.shards,
            state: node.state.name(),
            tablets: leave::tablets_on(&metadata, node.host),
            waits_for: hindrances.of_host(&metadata, node.host),
        };
        let removed = metadata.topology.nodes().filter(|node| node.state == NodeState::Removed);
        removed.map(of_node).filter(|node| node.tablets > 0).collect()
    });
    Ok(Json(excluded.await?))
}

/// A node by its id or address. A node that was removed has only its id.
async fn host(state: &AdminState, name: &str) -> Result<HostId, Refusal> {
    let name = name.trim();
    if name.is_empty() {
        return Err(Refusal::Bad("The host id or address of a node must be given".to_owned()));
    }
    match Uuid::parse_str(name) {
        Ok(id) => Ok(HostId(id)),
        Err(_) => Ok(find(&members(&state.remote).await?, Some(name))?.seen.node.host),
    }
}

async fn with_ops<Fut>(
    remote: &RemoteServices,
    run: impl FnOnce(Rc<NodeOps>) -> Fut + Send + 'static,
) -> Result<(), Refusal>
where
    Fut: Future<Output = Result<(), OpError>> + 'static,
{
    let done = remote.call(ShardId(0), |services| async move {
        match services.node_ops.try_get() {
            Some(ops) => run(ops).await,
            None => Err(OpError::Refused("The node is starting or stopping".to_owned())),
        }
    });
    done.await.map_err(Refusal::failed)?.map_err(|error| match error {
        OpError::Refused(why) => Refusal::Bad(why),
        OpError::Failed(why) => Refusal::Failed(why),
    })
}
