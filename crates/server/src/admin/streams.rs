//! The tablets that this node streams, and the rate of that, under ScyllaDB's paths.

use super::extract::Query;
use super::hindrances::Hindrances;
use super::nodes::{address, members};
use super::operations::observed;
use super::process::setting_of;
use super::refusal::{Refusal, RestResult};
use super::rest::AdminState;
use super::{AdminShards, RemoteServices};
use crate::node_ops::is_down;
use axum::extract::State;
use axum::routing::{get, post};
use axum::{Json, Router};
use cluster::metadata::Table;
use cluster::tablets::TabletReplica;
use cluster::tablets::transition::{Transition, TransitionKind};
use cluster::topology::planner;
use engine::streaming::Direction;
use model::HostId;
use rt::time::Duration;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::future::Future;
use std::rc::Rc;
use streaming::{StreamMetrics, StreamProgress, StreamService};

/// The setting behind `/storage_service/stream_throughput`.
const THROUGHPUT: &str = "stream_io_throughput_mb_per_sec";

/// The interval between two checks.
const LOOK: Duration = Duration::from_millis(50);

/// The paths of this file.
pub fn routes() -> Router<AdminState> {
    Router::new()
        .route("/cluster/moves", get(moves))
        .route("/stream_manager", get(streams))
        .route("/stream_manager/", get(streams))
        .route("/stream_manager/metrics/incoming", get(incoming_bytes))
        .route("/stream_manager/metrics/outgoing", get(outgoing_bytes))
        .route("/storage_service/stream_throughput", get(throughput).post(set_throughput))
        .route("/storage_service/quiesce_topology", post(quiesce_topology))
}

/// A tablet that is streamed, with the name of its table and the number of its shard.
struct Stream {
    keyspace: String,
    table: String,
    shard: usize,
    progress: StreamProgress,
}

/// Asks the streaming services of all shards. A node without others has none, nor has one that is
/// starting or stopping.
fn on_shards<R: Default + Send + 'static>(
    services: AdminShards,
    ask: fn(&StreamService) -> R,
) -> impl Future<Output = Vec<R>> {
    let ask = move || async move { services.streams.try_get().map(|streams| ask(&streams)).unwrap_or_default() };
    rt::shard::call_all(ask)
}

async fn all(remote: &RemoteServices) -> Result<Vec<Stream>, Refusal> {
    observed(remote, |services| async move {
        let shards = on_shards(services, StreamService::progress).await;
        let metadata = services.cluster.metadata.get().current();
        let named = |shard: usize, progress: StreamProgress| {
            let schema = &metadata.table_by_id(progress.table)?.schema;
            Some(Stream { keyspace: schema.keyspace.clone(), table: schema.name.clone(), shard, progress })
        };
        let shards = shards.into_iter().enumerate();
        shards.flat_map(|(shard, all)| all.into_iter().filter_map(move |one| named(shard, one))).collect()
    })
    .await
}

/// Each stream is a plan of one session with one node, as for tools that expect ScyllaDB's form.
async fn streams(State(state): State<AdminState>) -> RestResult<Vec<Value>> {
    let nodes = members(&state.remote).await?;
    let peer_of = |host: HostId| {
        let member = nodes.iter().find(|member| member.seen.node.host == host);
        member.map_or_else(|| host.to_string(), |member| address(&member.seen.node))
    };
    let shown = |stream: &Stream| {
        let StreamProgress { session, direction, peer, table, tablet, sstables, done, total, failure } =
            &stream.progress;
        let (is_incoming, peer) = (*direction == Direction::In, peer_of(*peer));
        let total = total.unwrap_or(*done);
        let name = format!("{}.{} tablet {tablet}", stream.keyspace, stream.table);
        let summary = json!([{ "cf_id": table.to_string(), "files": sstables, "total_size": total }]);
        let file = json!([{ "key": name, "value": {
            "peer": peer, "session_index": 0, "file_name": name, "direction": if is_incoming { "IN" } else { "OUT" },
            "current_bytes": done, "total_bytes": total,
        }}]);
        let of = |value: &Value, wanted: bool| if wanted { value.clone() } else { json!([]) };
        json!({
            "plan_id": session.to_string(),
            "description": "Tablet migration",
            "keyspace": stream.keyspace, "table": stream.table, "tablet": tablet, "shard": stream.shard,
            "as_mutations": stream.progress.total.is_none(), "last_failure": failure,
            "sessions": [{
                "peer": peer, "session_index": 0, "connecting": peer, "state": "STREAMING",
                "receiving_summaries": of(&summary, is_incoming), "sending_summaries": of(&summary, !is_incoming),
                "receiving_files": of(&file, is_incoming), "sending_files": of(&file, !is_incoming),
            }],
        })
    };
    Ok(Json(all(&state.remote).await?.iter().map(shown).collect()))
}

/// A tablet in a transition.
#[derive(Serialize)]
struct TabletMove {
    keyspace: String,
    table: String,
    tablet: u32,
    /// Its last token.
    last_token: String,
    kind: &'static str,
    stage: &'static str,
    /// The nodes that lose a replica; with the shard if it moves to another shard of its node.
    from: Vec<String>,
    /// The nodes that get one.
    to: Vec<String>,
    /// The bytes that have arrived, and the bytes of all files.
    bytes: Option<u64>,
    total_bytes: Option<u64>,
    /// Why the move does not continue, and the remedy.
    waits_for: Option<String>,
}

/// The tablets of all tables that are moving.
async fn moves(State(state): State<AdminState>) -> RestResult<Vec<TabletMove>> {
    let nodes = members(&state.remote).await?;
    let name = move |host: HostId| {
        let member = nodes.iter().find(|member| member.seen.node.host == host);
        member.map_or_else(|| host.to_string(), |member| address(&member.seen.node))
    };
    let moves = observed(&state.remote, move |services| async move {
        let hindrances = Hindrances::of_all_nodes(services).await;
        let metadata = services.cluster.metadata.get().current();
        let one = |(table, tablet, moving): (&Rc<Table>, u32, &Transition)| {
            let old = table.tablets.replicas(tablet);
            let only_in = |of: &[TabletReplica], without: &[TabletReplica]| -> Vec<TabletReplica> {
                of.iter().filter(|replica| !without.contains(replica)).copied().collect()
            };
            let arrived = hindrances.incoming.of(moving.session);
            let named = TabletMove {
                keyspace: table.schema.keyspace.clone(),
                table: table.schema.name.clone(),
                tablet,
                last_token: table.tablets.last_token(tablet).0.to_string(),
                kind: moving.kind.name(),
                stage: moving.stage.name(),
                from: Vec::new(),
                to: Vec::new(),
                bytes: arrived.map(|arrived| arrived.bytes),
                total_bytes: arrived.and_then(|arrived| arrived.total_bytes),
                waits_for: hindrances.of_move(table, tablet, moving),
            };
            (named, only_in(old, &moving.new_replicas), only_in(&moving.new_replicas, old))
        };
        metadata.transitions().map(one).collect::<Vec<_>>()
    });
    let named = moves.await?.into_iter().map(|(mut one, from, to)| {
        let is_on_node = one.kind == TransitionKind::IntranodeMigration.name();
        let place = |replica: TabletReplica| match is_on_node {
            true => format!("{} shard {}", name(replica.host), replica.shard),
            false => name(replica.host),
        };
        one.from = from.into_iter().map(place).collect();
        one.to = to.into_iter().map(place).collect();
        one
    });
    Ok(Json(named.collect()))
}

async fn sum(remote: &RemoteServices, number: fn(&StreamMetrics) -> u64) -> RestResult<u64> {
    let all = observed(remote, |services| on_shards(services, StreamService::metrics));
    Ok(Json(all.await?.iter().map(number).sum()))
}

async fn incoming_bytes(State(state): State<AdminState>) -> RestResult<u64> {
    sum(&state.remote, |streams| streams.incoming_bytes).await
}

async fn outgoing_bytes(State(state): State<AdminState>) -> RestResult<u64> {
    sum(&state.remote, |streams| streams.outgoing_bytes).await
}

/// MiB per second; 0 for no limit.
async fn throughput(State(state): State<AdminState>) -> RestResult<Value> {
    Ok(Json(setting_of(&state.remote, THROUGHPUT.to_owned()).await?.unwrap_or(json!(0))))
}

/// The new limit. The name is ScyllaDB's.
#[derive(Deserialize)]
struct Limit {
    value: String,
}

async fn set_throughput(State(state): State<AdminState>, Query(Limit { value }): Query<Limit>) -> RestResult<()> {
    if value.trim().parse::<u32>().is_err() {
        return Err(Refusal::Bad(format!("{value} is not a number of MiB per second")));
    }
    let done = observed(&state.remote, |services| async move {
        let set = move || {
            let (settings, value) = (services.settings, value.clone());
            async move { settings.try_get().map(|table| table.0.set(THROUGHPUT, &value)) }
        };
        rt::shard::call_all(set).await
    });
    for set in done.await? {
        // A shard without settings is not ready yet, or stops: the limit would not hold there.
        let set = set.ok_or_else(|| Refusal::Failed("The node is starting or stopping".to_owned()))?;
        set.map_err(|refused| Refusal::Bad(refused.to_string()))?;
    }
    Ok(Json(()))
}

/// Answers once no tablet moves, and none will unless something changes.
async fn quiesce_topology(State(state): State<AdminState>) -> RestResult<()> {
    let mut moved = None;
    loop {
        // Planning takes time: only when something has changed.
        let is_quiet = observed(&state.remote, move |services| async move {
            let metadata = services.cluster.metadata.get().current();
            if moved == Some(metadata.number) {
                return Err(metadata.number);
            }
            let down = metadata.topology.down(is_down(services.cluster.internode));
            if planner::is_quiet(&metadata, &down) { Ok(()) } else { Err(metadata.number) }
        });
        match is_quiet.await? {
            Ok(()) => return Ok(Json(())),
            Err(number) => moved = Some(number),
        }
        rt::time::sleep(LOOK).await;
    }
}
