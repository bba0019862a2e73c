//! What the node that leads the metadata looks after by itself: who votes, who has left the group, and which features are enabled.
//!
//! It acts only through changes that the group agrees on, so a leader that has been replaced and does not know it does no harm.

use super::voters::{Candidate, choose};
use super::{Node, Topology, features};
use crate::metadata::{MetadataService, Op, change};
use crate::raft::Group;
use model::id::HostId;
use rt::sync::Deadline;
use rt::time::Duration;
use std::collections::BTreeSet;
use std::convert::Infallible;
use std::rc::Rc;

/// How often it is looked whether there is something to do.
const LOOK: Duration = Duration::from_millis(200);
/// How long a node that joins waits for its vote.
const VOTE: Duration = Duration::from_secs(10);
/// How often it looks whether it has it.
const LOOK_FOR_VOTE: Duration = Duration::from_millis(5);

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

/// Waits until this node, which has just joined, votes, if it is to be a voter: whoever sees three nodes serve clients expects two of them to
/// go on without the third. Without an answer after a while the node serves clients all the same.
pub async fn wait_for_vote(service: &MetadataService, is_down: impl Fn(HostId) -> bool) {
    let (Some(group), own) = (service.group(), service.info().host_id) else { return };
    let until = Deadline::after(VOTE);
    while is_to_vote(&service.current().topology, &group.voters(), own, &is_down) {
        if until.is_past() {
            tracing::warn!(
                "this node has joined, and does not vote on metadata yet: if others fail now, a majority may be missing"
            );
            return;
        }
        rt::time::sleep(LOOK_FOR_VOTE).await;
    }
}

/// Whether a node that does not vote will.
fn is_to_vote(topology: &Topology, voters: &BTreeSet<HostId>, host: HostId, is_down: &impl Fn(HostId) -> bool) -> bool {
    let candidates: Vec<_> = topology.members().map(|node| candidate(node, voters, !is_down(node.host))).collect();
    !voters.contains(&host) && choose(&candidates).contains(&host)
}

fn candidate<'a>(node: &'a Node, voters: &BTreeSet<HostId>, alive: bool) -> Candidate<'a> {
    let (datacenter, rack) = (&node.datacenter, &node.rack);
    Candidate { host: node.host, datacenter, rack, alive, votes: voters.contains(&node.host) }
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
        .map(|node| candidate(node, &voters, !is_down(node.host) || (voters.contains(&node.host) && !spare)))
        .collect();
    let chosen = choose(&candidates);
    if chosen.is_empty() { voters } else { chosen }
}
