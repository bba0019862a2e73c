//! Work that takes time, as tasks under ScyllaDB's paths: requests that change the cluster,
//! tablets that move, and compactions. Nothing is kept for them: a task is what the metadata and
//! the engine show of the work. So every node shows the tasks of the whole cluster, even if the
//! node that began them has left. Compactions are those of this node.

use super::extract::{Path, Query};
use super::hindrances::Hindrances;
use super::operations::observed;
use super::refusal::{Refusal, RestResult};
use super::rest::AdminState;
use super::{AdminShards, RemoteServices};
use axum::extract::State;
use axum::routing::{get, post};
use axum::{Json, Router};
use cluster::Metadata;
use cluster::metadata::{ChangeError, Table};
use cluster::observe::storage::{self, CompactionProgress};
use cluster::tablets::transition::{Replicas, Transition};
use cluster::topology::requests::{RequestKind, TopologyRequest};
use cluster::topology::{leave, migration_driver};
use model::id::{HostId, TableId};
use model::types::temporal;
use rt::ShardId;
use rt::time::Duration;
use serde::{Deserialize, Serialize};
use std::rc::Rc;
use uuid::Uuid;

/// The interval at which the end of a task is looked for.
const LOOK: Duration = Duration::from_millis(50);

const COMPACTION: &str = "compaction";
const GLOBAL_REQUESTS: &str = "global_topology_requests";
const NODE_OPS: &str = "node_ops";
const TABLETS: &str = "tablets";
/// The modules, in alphabetical order.
const MODULES: [&str; 4] = [COMPACTION, GLOBAL_REQUESTS, NODE_OPS, TABLETS];

const RUNNING: &str = "running";
const DONE: &str = "done";
const FAILED: &str = "failed";

/// The paths of this file.
pub fn routes() -> Router<AdminState> {
    Router::new()
        .route("/task_manager/list_modules", get(modules))
        .route("/task_manager/list_module_tasks/{module}", get(tasks_of_module))
        .route("/task_manager/task_status/{id}", get(status))
        .route("/task_manager/wait_task/{id}", get(wait))
        .route("/task_manager/abort_task/{id}", post(abort))
}

/// A task. The names of the fields are ScyllaDB's, except `waits_for`.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Task {
    id: Uuid,
    module: &'static str,
    #[serde(rename = "type")]
    kind: String,
    /// Whether it is work of a node or of the cluster.
    #[serde(rename = "kind")]
    of: &'static str,
    scope: &'static str,
    state: &'static str,
    is_abortable: bool,
    /// RFC 3339; empty if it is not known.
    start_time: String,
    end_time: String,
    error: String,
    shard: u16,
    keyspace: String,
    table: String,
    entity: String,
    progress_units: &'static str,
    progress_total: u64,
    progress_completed: u64,
    /// Why it does not continue, if that is known.
    waits_for: Option<String>,
}

/// A task as lists show it.
#[derive(Serialize)]
struct TaskStats {
    task_id: Uuid,
    #[serde(flatten)]
    task: Task,
}

impl Task {
    fn new(id: Uuid, module: &'static str, kind: impl Into<String>) -> Task {
        Task {
            id,
            module,
            kind: kind.into(),
            of: "cluster",
            scope: "cluster",
            state: RUNNING,
            is_abortable: false,
            start_time: String::new(),
            end_time: String::new(),
            error: String::new(),
            shard: 0,
            keyspace: String::new(),
            table: String::new(),
            entity: String::new(),
            progress_units: "",
            progress_total: 0,
            progress_completed: 0,
            waits_for: None,
        }
    }

    /// The task, which is no longer shown, as it ended.
    fn ended(self, failure: Option<&str>) -> Task {
        Task {
            state: if failure.is_some() { FAILED } else { DONE },
            is_abortable: false,
            error: failure.unwrap_or_default().to_owned(),
            waits_for: None,
            ..self
        }
    }

    fn of_request(request: &TopologyRequest, metadata: &Metadata, hindrances: &Hindrances) -> Task {
        let (kind, is_of_nodes, end) = (request.kind(), request.keyspace.is_none(), request.ended.as_ref());
        let is_open = end.is_none();
        let emptied = request.host.filter(|_| is_open && kind.is_some_and(RequestKind::empties_node));
        let error = end.and_then(|end| end.error.clone());
        Task {
            scope: if is_of_nodes { "cluster" } else { "keyspace" },
            state: match end {
                None => RUNNING,
                Some(_) if error.is_some() => FAILED,
                Some(_) => DONE,
            },
            is_abortable: is_open && kind == Some(RequestKind::Leave),
            start_time: request.began_at().map(shown_time).unwrap_or_default(),
            end_time: end.and_then(|end| end.at()).map(shown_time).unwrap_or_default(),
            error: error.unwrap_or_default(),
            keyspace: request.keyspace.clone().unwrap_or_default(),
            entity: request.host.map(|host| host.to_string()).unwrap_or_default(),
            progress_units: if emptied.is_some() { "tablets left" } else { "" },
            progress_total: emptied.map_or(0, |host| leave::tablets_on(metadata, host) as u64),
            waits_for: emptied.and_then(|host| hindrances.of_host(metadata, host)),
            ..Task::new(
                request.id,
                module_of(request),
                kind.map_or_else(|| request.kind.clone(), |kind| task_type(kind).into()),
            )
        }
    }

    fn of_move(table: &Table, tablet: u32, moving: &Transition, hindrances: &Hindrances) -> Task {
        Task {
            scope: "tablet",
            is_abortable: moving.stage.given_up().is_some(),
            keyspace: table.schema.keyspace.clone(),
            table: table.schema.name.clone(),
            entity: table.tablets.last_token(tablet).0.to_string(),
            waits_for: hindrances.of_move(table, tablet, moving),
            ..Task::new(id_of_move(table, tablet, moving), TABLETS, moving.kind.name())
        }
    }

    fn of_compaction(shard: ShardId, running: CompactionProgress) -> Task {
        Task {
            of: "node",
            scope: "tablet",
            start_time: shown_time(running.started_at_millis * 1_000),
            shard: shard.0,
            keyspace: running.keyspace,
            table: running.name,
            progress_units: "bytes",
            progress_total: running.total_bytes,
            progress_completed: running.completed_bytes,
            ..Task::new(running.id, COMPACTION, running.kind.name())
        }
    }
}

fn module_of(request: &TopologyRequest) -> &'static str {
    if request.keyspace.is_none() { NODE_OPS } else { GLOBAL_REQUESTS }
}

/// ScyllaDB's name for the task of a request.
fn task_type(kind: RequestKind) -> &'static str {
    match kind {
        RequestKind::Join => "bootstrap",
        RequestKind::Leave => "decommission",
        RequestKind::Remove => "removenode",
        RequestKind::Replace | RequestKind::ReplicationChange => kind.name(),
    }
}

fn shown_time(micros: i64) -> String {
    temporal::format_timestamp(micros / 1_000, 'T')
}

/// The id of a tablet's move. A transition has no id of its own: this one follows from the table,
/// the tablet and the replicas, so all nodes show the same. A later move of the tablet between the
/// same shards has the same id.
fn id_of_move(table: &Table, tablet: u32, moving: &Transition) -> Uuid {
    let replicas = table.tablets.replicas(tablet).iter().chain(&moving.new_replicas);
    let id = replicas.fold(table.schema.id.0.as_u128(), |id, replica| {
        id.rotate_left(29) ^ replica.host.0.as_u128() ^ u128::from(replica.shard)
    });
    uuid::Builder::from_custom_bytes((id.rotate_left(29) ^ u128::from(tablet)).to_be_bytes()).into_uuid()
}

/// The tasks of a module.
async fn tasks_of(module: String, services: AdminShards) -> Vec<Task> {
    if module == COMPACTION {
        return compactions(services).await;
    }
    let hindrances = Hindrances::of_all_nodes(services).await;
    let metadata = services.cluster.metadata.get().current();
    if module == TABLETS {
        return metadata
            .transitions()
            .map(|(table, tablet, moving)| Task::of_move(table, tablet, moving, &hindrances))
            .collect();
    }
    let requests = metadata.requests.iter().filter(|request| module_of(request) == module);
    requests.map(|request| Task::of_request(request, &metadata, &hindrances)).collect()
}

async fn compactions(services: AdminShards) -> Vec<Task> {
    let running = storage::compactions_running(services.cluster.engine).await;
    running.into_iter().map(|(shard, one)| Task::of_compaction(shard, one)).collect()
}

async fn modules() -> Json<[&'static str; 4]> {
    Json(MODULES)
}

/// Which tasks of a module to list. The names are ScyllaDB's.
#[derive(Deserialize)]
struct Filter {
    keyspace: Option<String>,
    table: Option<String>,
}

async fn tasks_of_module(
    State(state): State<AdminState>,
    Path(module): Path<String>,
    Query(filter): Query<Filter>,
) -> RestResult<Vec<TaskStats>> {
    if !MODULES.contains(&module.as_str()) {
        return Err(Refusal::Missing(format!("Module {module} not found: the modules are {}", MODULES.join(", "))));
    }
    let is_wanted = |task: &Task| {
        let has = |wanted: &Option<String>, own: &str| wanted.as_deref().is_none_or(|wanted| wanted == own);
        has(&filter.keyspace, &task.keyspace) && has(&filter.table, &task.table)
    };
    let tasks = observed(&state.remote, move |services| tasks_of(module, services)).await?;
    let wanted = tasks.into_iter().filter(is_wanted);
    Ok(Json(wanted.map(|task| TaskStats { task_id: task.id, task }).collect()))
}

/// A task that is shown, and the goal of a move.
async fn find(id: Uuid, services: AdminShards, hindrances: Hindrances) -> Option<(Task, Option<MoveGoal>)> {
    {
        let metadata = services.cluster.metadata.get().current();
        if let Some(request) = metadata.requests.get(id) {
            return Some((Task::of_request(request, &metadata, &hindrances), None));
        }
        if let Some((table, tablet, moving)) = move_with_id(&metadata, id) {
            let goal = (table.schema.id, tablet, moving.new_replicas.clone());
            return Some((Task::of_move(table, tablet, moving, &hindrances), Some(goal)));
        }
    }
    compactions(services).await.into_iter().find(|task| task.id == id).map(|task| (task, None))
}

/// The same, with what the task waits for.
async fn find_with_hindrances(remote: &RemoteServices, id: Uuid) -> Result<Option<(Task, Option<MoveGoal>)>, Refusal> {
    observed(remote, move |services| async move {
        let hindrances = Hindrances::of_all_nodes(services).await;
        find(id, services, hindrances).await
    })
    .await
}

/// The id in a path.
fn parsed(id: &str) -> Result<Uuid, Refusal> {
    Uuid::parse_str(id).map_err(|_| Refusal::Bad(format!("{id} is not the id of a task")))
}

fn not_found(id: Uuid) -> Refusal {
    Refusal::Missing(format!("task with id {id} not found: moves and compactions are no longer shown after their end"))
}

async fn status(State(state): State<AdminState>, Path(id): Path<String>) -> RestResult<Task> {
    let id = parsed(&id)?;
    let found = find_with_hindrances(&state.remote, id).await?;
    found.map(|(task, _)| Json(task)).ok_or_else(|| not_found(id))
}

/// How long to wait. The name is ScyllaDB's.
#[derive(Deserialize)]
struct Wait {
    /// In seconds.
    timeout: Option<u64>,
}

/// The tablet of a move, and the replicas that it is to have.
type MoveGoal = (TableId, u32, Replicas);

/// The move with an id, if that is under way.
fn move_with_id(metadata: &Metadata, id: Uuid) -> Option<(&Rc<Table>, u32, &Transition)> {
    metadata.transitions().find(|(table, tablet, moving)| id_of_move(table, *tablet, moving) == id)
}

/// Why a move that is over did not reach its goal. `None` if it reached its goal.
fn failure_of_move(metadata: &Metadata, (table, tablet, new_replicas): &MoveGoal) -> Option<&'static str> {
    match metadata.table_by_id(*table) {
        None => Some("the table was dropped"),
        Some(table) if table.tablets.replicas(*tablet) != new_replicas.as_slice() => {
            Some("the transition was rolled back")
        }
        Some(_) => None,
    }
}

/// Answers once a task has ended.
async fn wait(State(state): State<AdminState>, Path(id): Path<String>, Query(query): Query<Wait>) -> RestResult<Task> {
    let (id, began) = (parsed(&id)?, rt::time::now());
    // What a task waits for is not shown, so the receivers need not be asked each time.
    let look = || observed(&state.remote, move |services| find(id, services, Hindrances::without_receivers(services)));
    let (mut last, mut goal) = look().await?.ok_or_else(|| not_found(id))?;
    while last.state == RUNNING {
        if query.timeout.is_some_and(|timeout| began.elapsed() >= Duration::from_secs(timeout)) {
            return Err(Refusal::TimedOut(format!("task {id} is still running")));
        }
        rt::time::sleep(LOOK).await;
        match look().await? {
            Some(found) => (last, goal) = found,
            None => {
                let failure = observed(&state.remote, move |services| async move {
                    goal.and_then(|goal| failure_of_move(&services.cluster.metadata.get().current(), &goal))
                });
                return Ok(Json(last.ended(failure.await?)));
            }
        }
    }
    Ok(Json(last))
}

/// What can be aborted.
enum Abortable {
    Leave(HostId),
    Move(TableId, u32),
}

async fn abort(State(state): State<AdminState>, Path(id): Path<String>) -> RestResult<()> {
    let id = parsed(&id)?;
    let aborted = state.remote.call(ShardId(0), move |services| async move {
        let service = services.cluster.metadata;
        let found = abortable(&service.get().current(), id);
        match found {
            None => Ok(false),
            Some(Abortable::Leave(host)) => leave::cancel(service, host).await.map(|()| true),
            Some(Abortable::Move(table, tablet)) => {
                migration_driver::give_up(service, table, tablet).await.map(|()| true)
            }
        }
    });
    match aborted.await.map_err(Refusal::failed)? {
        Ok(true) => Ok(Json(())),
        Ok(false) => match find_with_hindrances(&state.remote, id).await? {
            Some(_) => Err(Refusal::Bad(format!("task {id} cannot be aborted"))),
            None => Err(not_found(id)),
        },
        Err(ChangeError::Refused(why)) => Err(Refusal::Bad(why)),
        Err(error) => Err(Refusal::failed(error)),
    }
}

fn abortable(metadata: &Metadata, id: Uuid) -> Option<Abortable> {
    let request = metadata.requests.get(id).filter(|request| request.ended.is_none());
    let leaves = request.filter(|request| request.kind() == Some(RequestKind::Leave));
    if let Some(host) = leaves.and_then(|request| request.host) {
        return Some(Abortable::Leave(host));
    }
    move_with_id(metadata, id).map(|(table, tablet, _)| Abortable::Move(table.schema.id, tablet))
}
