//! What the node that leads the metadata looks after by itself: who votes, who has left the group, and which features are enabled.
//!
//! It acts only through changes that the group agrees on, so a leader that has been replaced and does not know it does no harm.

use super::voters::{Candidate, choose};
use super::{Topology, features};
use crate::metadata::{MetadataService, Op, change};
use crate::raft::Group;
use model::id::HostId;
use rt::time::Duration;
use std::collections::BTreeSet;
use std::convert::Infallible;
use std::rc::Rc;

/// How often it is looked whether there is something to do.
const LOOK: Duration = Duration::from_millis(200);

/// Looks after voters and features whenever this node leads, until it stops. On shard 0. `is_down` says which nodes do not answer.
pub async fn look_after(is_down: impl Fn(HostId) -> bool) {
    while rt::time::timeout(LOOK, rt::shard::stopping().cancelled()).await.is_err() {
        let Some(service) = rt::shard::try_service::<MetadataService>() else { return };
        let Some(group) = service.group().filter(|group| group.is_leader()).cloned() else { continue };
        let topology = service.current().topology.clone();
        drop(service);
        let voters = wanted(&topology, &group, &is_down);
        if voters != group.voters()
            && let Err(error) = group.set_voters(&voters).await
        {
            tracing::info!(%error, "who votes on metadata could not be changed; trying again");
        }
        let gone = left(&topology, &group);
        if !gone.is_empty()
            && let Err(error) = group.remove(&gone).await
        {
            tracing::info!(%error, "nodes that have left could not be removed from the metadata group; trying again");
        }
        if !features::to_enable(&topology).is_empty() {
            let made = change::<(), Infallible, _>(|metadata, _| {
                let enabled = features::to_enable(&metadata.topology);
                Ok((if enabled.is_empty() { Vec::new() } else { vec![Op::EnableFeatures(enabled)] }, ()))
            });
            if let Err(error) = made.await {
                tracing::info!(%error, "features could not be enabled; trying again");
            }
        }
    }
}

/// Nodes that have left, and are sent changes of the metadata all the same.
fn left(topology: &Topology, group: &Rc<Group>) -> BTreeSet<HostId> {
    let voters = group.voters();
    let has_left = |host: &HostId| topology.node(*host).is_some_and(|node| !node.state.is_member());
    group.members().into_iter().filter(|host| has_left(host) && !voters.contains(host)).collect()
}

/// Who should vote.
fn wanted(topology: &Topology, group: &Rc<Group>, is_down: &impl Fn(HostId) -> bool) -> BTreeSet<HostId> {
    let (members, voters) = (group.members(), group.voters());
    let ready = |host: HostId| host == group.host() || voters.contains(&host) || group.has_caught_up(host);
    let nodes: Vec<_> = topology.members().filter(|node| members.contains(&node.host) && ready(node.host)).collect();
    // Taking a vote away helps only if somebody else can have it: a dead voter of five counts as much as a missing one.
    let spare = nodes.iter().any(|node| !voters.contains(&node.host) && !is_down(node.host));
    let candidates: Vec<Candidate<'_>> = nodes
        .iter()
        .map(|node| Candidate {
            host: node.host,
            datacenter: &node.datacenter,
            rack: &node.rack,
            alive: !is_down(node.host) || (voters.contains(&node.host) && !spare),
            votes: voters.contains(&node.host),
        })
        .collect();
    let chosen = choose(&candidates);
    if chosen.is_empty() { voters } else { chosen }
}
