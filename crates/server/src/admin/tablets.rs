//! Moving tablets, and adding and removing their replicas, under ScyllaDB's paths. Each request
//! waits until the transition of the tablet is over. Another request can cancel it.

use super::extract::Query;
use super::nodes::{find, members};
use super::operations;
use super::refusal::{Refusal, RestResult};
use super::rest::AdminState;
use super::{AdminShards, RemoteServices};
use crate::node_ops::OpError;
use axum::extract::State;
use axum::routing::{get, post};
use axum::{Json, Router};
use cluster::metadata::{ChangeError, Metadata};
use cluster::tablets::TabletReplica;
use cluster::tablets::transition::{Replicas, TransitionKind};
use cluster::topology::{balancer, migration_driver};
use model::TableId;
use model::id::HostId;
use model::token::Token;
use rt::ShardId;
use serde::Deserialize;

/// The paths of this file.
pub fn routes() -> Router<AdminState> {
    Router::new()
        .route("/storage_service/tablets/balancing", get(is_balancing).post(set_balancing))
        .route("/storage_service/tablets/move", post(move_tablet).delete(cancel_move))
        .route("/storage_service/tablets/add_replica", post(add_replica))
        .route("/storage_service/tablets/del_replica", post(del_replica))
}

/// The parameters of all requests. The names are ScyllaDB's.
#[derive(Deserialize)]
struct Parameters {
    ks: String,
    table: String,
    token: i64,
    src_host: Option<String>,
    src_shard: Option<u16>,
    dst_host: Option<String>,
    dst_shard: Option<u16>,
    host: Option<String>,
    shard: Option<u16>,
}

/// A change of a tablet's replicas.
#[derive(Clone, Copy, Debug)]
struct Change {
    kind: TransitionKind,
    /// The node that loses its replica, and the shard on which that is, if given.
    from: Option<(HostId, Option<u16>)>,
    /// The node that gets a replica, and its shard. If no shard is given, the shard with the fewest
    /// tablets gets it.
    to: Option<(HostId, Option<u16>)>,
}

#[derive(Deserialize)]
struct Balancing {
    enabled: bool,
}

async fn is_balancing(State(state): State<AdminState>) -> Result<Json<bool>, Refusal> {
    let is_on = state
        .remote
        .call(ShardId(0), |services| async move { services.cluster.metadata.get().current().topology.is_balancing() });
    Ok(Json(is_on.await.map_err(Refusal::failed)?))
}

async fn set_balancing(State(state): State<AdminState>, Query(query): Query<Balancing>) -> RestResult {
    let done = state.remote.call(ShardId(0), move |services| async move {
        check_is_member(services).map_err(ChangeError::Refused)?;
        balancer::set_balancing(services.cluster.metadata, query.enabled).await
    });
    changed(done.await.map_err(Refusal::failed)?)
}

async fn move_tablet(State(state): State<AdminState>, Query(query): Query<Parameters>) -> RestResult {
    let from = (host(&state, "src_host", query.src_host.as_deref()).await?, query.src_shard);
    let to = (host(&state, "dst_host", query.dst_host.as_deref()).await?, query.dst_shard);
    let kind = match from.0 == to.0 {
        true => TransitionKind::IntranodeMigration,
        false => TransitionKind::Migration,
    };
    carry_out(&state.remote, query, Change { kind, from: Some(from), to: Some(to) }).await
}

async fn add_replica(State(state): State<AdminState>, Query(query): Query<Parameters>) -> RestResult {
    let to = (host(&state, "dst_host", query.dst_host.as_deref()).await?, query.dst_shard);
    carry_out(&state.remote, query, Change { kind: TransitionKind::Rebuild, from: None, to: Some(to) }).await
}

async fn del_replica(State(state): State<AdminState>, Query(query): Query<Parameters>) -> RestResult {
    let from = (host(&state, "host", query.host.as_deref()).await?, query.shard);
    carry_out(&state.remote, query, Change { kind: TransitionKind::Rebuild, from: Some(from), to: None }).await
}

/// An error if this node has left the cluster.
fn check_is_member(services: AdminShards) -> Result<(), String> {
    match services.node_ops.try_get().map(|ops| ops.check_is_member()) {
        Some(Err(OpError::Refused(why) | OpError::Failed(why))) => Err(why),
        Some(Ok(())) | None => Ok(()),
    }
}

/// The node with the address or id that a parameter has.
async fn host(state: &AdminState, parameter: &str, name: Option<&str>) -> Result<HostId, Refusal> {
    let name = name.filter(|name| !name.is_empty());
    let name = name.ok_or_else(|| Refusal::Bad(format!("The parameter {parameter} must be specified")))?;
    Ok(find(&members(&state.remote).await?, Some(name))?.seen.node.host)
}

/// Answers once the rollback of a tablet's transition has begun.
async fn cancel_move(State(state): State<AdminState>, Query(query): Query<Parameters>) -> RestResult {
    let (table, token) = (table(&state.remote, &query).await?, Token(query.token));
    let done = state.remote.call(ShardId(0), move |services| async move {
        check_is_member(services).map_err(ChangeError::Refused)?;
        let services = services.cluster.metadata;
        let known = services.get().current().table_by_id(table).map(|known| known.tablets.tablet_of(token));
        let tablet = known.ok_or_else(|| ChangeError::Refused("the table was dropped".to_owned()))?;
        migration_driver::give_up(services, table, tablet).await
    });
    changed(done.await.map_err(Refusal::failed)?)
}

/// The answer after a change of the metadata.
fn changed(made: Result<(), ChangeError<String>>) -> RestResult {
    made.map(Json).map_err(|error| match error {
        ChangeError::Refused(why) => Refusal::Bad(why),
        error => Refusal::failed(error),
    })
}

/// The table that a request names.
async fn table(remote: &RemoteServices, of: &Parameters) -> Result<TableId, Refusal> {
    let tables = operations::tables(remote, &of.ks, Some(&of.table)).await?;
    tables.first().map(|table| table.id).ok_or_else(|| Refusal::Bad(format!("Can't find a column family {}", of.table)))
}

async fn carry_out(remote: &RemoteServices, of: Parameters, change: Change) -> RestResult {
    let (table, token) = (table(remote, &of).await?, Token(of.token));
    let done = remote.call(ShardId(0), move |services| async move {
        check_is_member(services).map_err(Refusal::Bad)?;
        let services = services.cluster.metadata;
        let (tablet, new) = {
            let metadata = services.get().current();
            replicas_after(&metadata, table, token, change).map_err(Refusal::Bad)?
        };
        match migration_driver::begin(services, table, tablet, change.kind, new.clone()).await {
            Ok(()) => {}
            Err(ChangeError::Refused(why)) => return Err(Refusal::Bad(why)),
            Err(error) => return Err(Refusal::failed(error)),
        }
        migration_driver::wait_for_end(services, table, tablet, new).await.map_err(Refusal::Failed)
    });
    Ok(Json(done.await.map_err(Refusal::failed)??))
}

/// The tablet of a token, and its replicas after a change.
fn replicas_after(
    metadata: &Metadata,
    table: TableId,
    token: Token,
    change: Change,
) -> Result<(u32, Replicas), String> {
    let known = metadata.table_by_id(table).ok_or("the table was dropped")?;
    let tablet = known.tablets.tablet_of(token);
    let mut replicas = Replicas::from_slice(known.tablets.replicas(tablet));
    // A replica that moves keeps its place: the nearest of equally near replicas is asked first.
    let mut place = replicas.len();
    if let Some((host, shard)) = change.from {
        let is_it = |replica: &TabletReplica| replica.host == host && shard.is_none_or(|shard| replica.shard == shard);
        let on = shard.map_or_else(String::new, |shard| format!(" on shard {shard}"));
        let found = replicas.iter().position(is_it);
        place = found.ok_or_else(|| format!("node {host} has no replica of the tablet{on}"))?;
        replicas.remove(place);
    }
    if let Some((host, shard)) = change.to {
        if replicas.iter().any(|replica| replica.host == host) {
            return Err(format!("node {host} has a replica of the tablet already"));
        }
        let shard = match shard {
            Some(shard) => shard,
            None => idlest_shard(metadata, host).ok_or_else(|| format!("node {host} is not known"))?,
        };
        replicas.insert(place, TabletReplica { host, shard });
    }
    Ok((tablet, replicas))
}

/// The shard of a node with the fewest tablets.
fn idlest_shard(metadata: &Metadata, host: HostId) -> Option<u16> {
    let shards = metadata.topology.node(host)?.shards;
    let load = metadata.load(host, usize::from(shards));
    (0..shards).min_by_key(|shard| load[usize::from(*shard)])
}
