//! A node leaves the cluster: its tablets move to other nodes, then it is not a member any more.
//!
//! The request is the state of the node in the metadata. So any leader moves the tablets
//! ([`super::balancer`]), and a node that restarts in between continues ([`finish`]). Until the
//! node has left, the request can be cancelled.

use super::{Node, NodeState, features, migration_driver, planner};
use crate::metadata::builtin::is_built_in;
use crate::metadata::{ChangeError, Metadata, MetadataService, Op, Table, change};
use crate::raft::Group;
use model::id::HostId;
use rt::shard::PerShard;
use rt::time::{Duration, Instant};
use std::rc::Rc;

/// The interval at which a leaving node looks for its last tablet.
const LOOK_FOR_END: Duration = Duration::from_millis(20);
/// The interval of log lines about the progress.
const LOG_EVERY: Duration = Duration::from_secs(30);

/// Requests that this node leaves. The error says why it cannot.
pub async fn request(
    services: PerShard<MetadataService>,
    is_down: impl Fn(HostId) -> bool,
) -> Result<(), ChangeError<String>> {
    let down = services.get().current().topology.down(is_down);
    change(services, move |metadata, info| {
        let own = metadata.topology.node(info.host_id).ok_or("this node has not joined")?;
        match own.state {
            NodeState::Normal => {}
            NodeState::Leaving => return Ok((Vec::new(), ())),
            state => return Err(format!("this node cannot leave: its state is {}", state.name())),
        }
        features::check_streaming(&metadata.topology)?;
        planner::check_can_leave(metadata, info.host_id, &down)?;
        Ok((vec![in_state(own, NodeState::Leaving)], ()))
    })
    .await
}

/// Cancels the request of a node. Tablets that have moved stay where they are; those that are
/// moving away from the node go back, unless their data is complete on the other node.
pub async fn cancel(services: PerShard<MetadataService>, host: HostId) -> Result<(), ChangeError<String>> {
    change(services, move |metadata, _| {
        let node = metadata.topology.node(host).filter(|node| node.state == NodeState::Leaving);
        let node = node.ok_or_else(|| format!("node {host} does not leave"))?;
        let stays = in_state(node, NodeState::Normal);
        Ok(([stays].into_iter().chain(migration_driver::rollbacks_from(metadata, host)).collect(), ()))
    })
    .await
}

/// Waits until this node has no tablets any more. The error says why it stays.
pub async fn wait_for_last_tablet(
    services: PerShard<MetadataService>,
    is_down: impl Fn(HostId) -> bool,
) -> Result<(), String> {
    let mut logged = rt::time::now();
    loop {
        {
            let service = while_leaving(services)?;
            let (metadata, own) = (service.current(), service.info().host_id);
            if tablets_on(&metadata, own) == 0 {
                return Ok(());
            }
            log(&mut logged, &metadata, own, &is_down);
        }
        if rt::shard::stopping().unless(rt::time::sleep(LOOK_FOR_END)).await.is_none() {
            return Err("the node is stopping".to_owned());
        }
    }
}

/// Logs every `LOG_EVERY` how many replicas of a node are left, and what they wait for.
pub(super) fn log(logged: &mut Instant, metadata: &Metadata, host: HostId, is_down: impl Fn(HostId) -> bool) {
    if logged.elapsed() < LOG_EVERY {
        return;
    }
    *logged = rt::time::now();
    let tablets = tablets_on(metadata, host);
    match waits_for(metadata, host, is_down) {
        Some(why) => tracing::warn!(node = %host, tablets, why, "replicas of a node have not moved yet"),
        None => tracing::info!(node = %host, tablets, "replicas of a node have not moved yet"),
    }
}

/// Why replicas of a node that leaves or was removed cannot move now. `None` if nothing prevents
/// it.
pub fn waits_for(metadata: &Metadata, host: HostId, is_down: impl Fn(HostId) -> bool) -> Option<String> {
    planner::waits_for(metadata, host, &metadata.topology.down(is_down))
}

/// The number of replicas that a node has or receives. Built-in tables do not count: every node has
/// them.
pub fn tablets_on(metadata: &Metadata, host: HostId) -> usize {
    let of_table = |table: &Rc<Table>| {
        let tablets = &table.tablets;
        (0..tablets.count()).filter(|tablet| tablets.holders(*tablet).any(|replica| replica.host == host)).count()
    };
    metadata.tables().filter(|table| !is_built_in(&table.schema.keyspace)).map(of_table).sum()
}

/// Whether a node is about to leave: its last tablet has moved. It needs no vote any more.
pub(super) fn is_about_to_leave(metadata: &Metadata, node: &Node) -> bool {
    node.state == NodeState::Leaving && tablets_on(metadata, node.host) == 0
}

/// Waits until this leaving node has no vote in the Raft group, and does not lead it. The error
/// says why it stays.
pub async fn wait_for_other_voters(services: PerShard<MetadataService>) -> Result<(), String> {
    let group = services.try_get().and_then(|service| service.group().cloned()).ok_or("the node is stopping")?;
    let waited = wait_for_other_leader(services, &group).await;
    group.set_resigning(false);
    waited
}

async fn wait_for_other_leader(services: PerShard<MetadataService>, group: &Group) -> Result<(), String> {
    loop {
        while_leaving(services)?;
        if !group.voters().contains(&group.host()) {
            if group.leader().is_some_and(|leader| leader != group.host()) {
                return Ok(());
            }
            group.set_resigning(true);
        }
        if rt::shard::stopping().unless(rt::time::sleep(LOOK_FOR_END)).await.is_none() {
            return Err("the node is stopping".to_owned());
        }
    }
}

/// The metadata service of this node, which is leaving. The error says why it is not.
fn while_leaving(services: PerShard<MetadataService>) -> Result<Rc<MetadataService>, String> {
    let service = services.try_get().ok_or("the node is stopping")?;
    let state = service.current().topology.node(service.info().host_id).map(|node| node.state);
    if state == Some(NodeState::Leaving) { Ok(service) } else { Err("the request was cancelled".to_owned()) }
}

/// Ends the membership of this node. It must have no tablets, and cannot return.
pub async fn finish(services: PerShard<MetadataService>) -> Result<(), ChangeError<String>> {
    change(services, |metadata, info| {
        let own = metadata.topology.node(info.host_id).ok_or("this node has not joined")?;
        match own.state {
            NodeState::Leaving => {}
            NodeState::Left => return Ok((Vec::new(), ())),
            _ => return Err("the request was cancelled".to_owned()),
        }
        if tablets_on(metadata, info.host_id) > 0 {
            return Err("this node still has tablets".to_owned());
        }
        Ok((vec![in_state(own, NodeState::Left)], ()))
    })
    .await
}

fn in_state(node: &Node, state: NodeState) -> Op {
    Op::PutNode(Box::new(Node { state, ..node.clone() }))
}
