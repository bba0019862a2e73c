//! Operations on this node as a member of its cluster, under ScyllaDB's paths: decommission, drain,
//! and the operation mode.

use super::RemoteServices;
use super::operations::Refusal;
use super::rest::AdminState;
use crate::node_ops::{NodeOps, OpError, OperationMode};
use axum::extract::State;
use axum::routing::{get, post};
use axum::{Json, Router};
use cluster::topology::leave;
use rt::ShardId;
use serde::Serialize;
use std::future::Future;
use std::rc::Rc;

type Answer<T = ()> = Result<Json<T>, Refusal>;

/// The paths of this file.
pub fn routes() -> Router<AdminState> {
    Router::new()
        .route("/storage_service/operation_mode", get(operation_mode))
        .route("/storage_service/decommission", post(decommission).get(progress).delete(cancel_decommission))
        .route("/storage_service/drain", post(drain))
}

async fn operation_mode(State(state): State<AdminState>) -> Answer<&'static str> {
    let mode = state.remote.call(ShardId(0), |services| async move {
        services.node_ops.try_get().map_or(OperationMode::Normal, |ops| ops.mode())
    });
    Ok(Json(mode.await.map_err(Refusal::failed)?.name()))
}

/// How far this node is in leaving its cluster.
#[derive(Serialize)]
struct Progress {
    mode: &'static str,
    /// The replicas of tablets that this node still has.
    tablets: usize,
}

async fn progress(State(state): State<AdminState>) -> Answer<Progress> {
    let progress = state.remote.call(ShardId(0), |services| async move {
        let service = services.cluster.metadata.get();
        let mode = services.node_ops.try_get().map_or(OperationMode::Normal, |ops| ops.mode()).name();
        Progress { mode, tablets: leave::tablets_on(&service.current(), service.info().host_id) }
    });
    Ok(Json(progress.await.map_err(Refusal::failed)?))
}

/// Answers once the node has left.
async fn decommission(State(state): State<AdminState>) -> Answer {
    with_ops(&state.remote, |ops| async move { ops.decommission().await }).await
}

async fn cancel_decommission(State(state): State<AdminState>) -> Answer {
    with_ops(&state.remote, |ops| async move { ops.cancel_decommission().await }).await
}

async fn drain(State(state): State<AdminState>) -> Answer {
    with_ops(&state.remote, |ops| async move { ops.drain().await }).await
}

async fn with_ops<Fut>(remote: &RemoteServices, run: impl FnOnce(Rc<NodeOps>) -> Fut + Send + 'static) -> Answer
where
    Fut: Future<Output = Result<(), OpError>> + 'static,
{
    let done = remote.call(ShardId(0), |services| async move {
        match services.node_ops.try_get() {
            Some(ops) => run(ops).await,
            None => Err(OpError::Refused("The node is starting or stopping".to_owned())),
        }
    });
    match done.await.map_err(Refusal::failed)? {
        Ok(()) => Ok(Json(())),
        Err(OpError::Refused(why)) => Err(Refusal::Bad(why)),
        Err(OpError::Failed(why)) => Err(Refusal::Failed(why)),
    }
}
