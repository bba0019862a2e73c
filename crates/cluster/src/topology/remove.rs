//! Removes a node that is down, and will not come back.
//!
//! The node is banned first: its state says that it is not a member any more, so others reject it.
//! From then on no barrier waits for it. Its replicas are built on other nodes by the leader
//! ([`super::balancer`]), as soon as nodes can take them.

use super::{Node, NodeState, features, leave, planner};
use crate::metadata::{ChangeError, MetadataService, Op, change};
use model::id::HostId;
use rt::shard::PerShard;
use rt::time::Duration;

/// The interval at which the last replica is looked for.
const LOOK_FOR_END: Duration = Duration::from_millis(50);

/// Removes a node from the cluster, which must be down. With `must_end`, other nodes must be able
/// to take all its replicas now. The error says why it cannot be removed.
pub async fn exclude(
    services: PerShard<MetadataService>,
    host: HostId,
    must_end: bool,
    is_down: impl Fn(HostId) -> bool,
) -> Result<(), ChangeError<String>> {
    let down = services.get().current().topology.down(is_down);
    change(services, move |metadata, info| {
        let node = metadata.topology.node(host).ok_or_else(|| format!("node {host} is not known"))?;
        match node.state {
            NodeState::Removed => return Ok((Vec::new(), ())),
            NodeState::Left => return Err(format!("node {host} has left the cluster already")),
            NodeState::Joining | NodeState::Normal | NodeState::Leaving => {}
        }
        if host == info.host_id || !down.contains(&host) {
            return Err(format!(
                "node {host} is up: it can leave by itself (`messina admin decommission` on that node)"
            ));
        }
        features::check_streaming(&metadata.topology)?;
        planner::check_has_others(metadata, host)?;
        if must_end {
            planner::check_can_remove(metadata, host, &down)?;
        }
        Ok((vec![Op::PutNode(Box::new(Node { state: NodeState::Removed, ..(**node).clone() }))], ()))
    })
    .await
}

/// Waits until no tablet has a replica on a node any more. An error if this node stops.
pub async fn wait_for_last_replica(
    services: PerShard<MetadataService>,
    host: HostId,
    is_down: impl Fn(HostId) -> bool,
) -> Result<(), String> {
    let mut logged = rt::time::now();
    loop {
        let metadata = services.try_get().ok_or("the node is stopping")?.current();
        if leave::tablets_on(&metadata, host) == 0 {
            return Ok(());
        }
        leave::log(&mut logged, &metadata, host, &is_down);
        drop(metadata);
        if rt::shard::stopping().unless(rt::time::sleep(LOOK_FOR_END)).await.is_none() {
            return Err("the node is stopping".to_owned());
        }
    }
}
