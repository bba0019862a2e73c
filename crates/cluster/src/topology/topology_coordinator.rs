//! The topology coordinator: the task on the leader that chooses voters, removes nodes that have
//! left from the Raft group, and enables features.
//!
//! It acts only by changes that the group agrees on. So a former leader that does not know of its
//! replacement cannot do harm.

use super::leave::is_about_to_leave;
use super::voters::{Candidate, choose};
use super::{Node, Topology, features};
use crate::metadata::{Metadata, MetadataService, Op, change};
use crate::raft::Group;
use model::id::HostId;
use rt::shard::PerShard;
use rt::sync::Deadline;
use rt::time::Duration;
use std::collections::BTreeSet;
use std::convert::Infallible;
use std::rc::Rc;

/// The interval between checks.
const LOOK: Duration = Duration::from_millis(200);
/// How long a joining node waits until it is a voter.
const VOTE: Duration = Duration::from_secs(10);
/// The interval at which a joining node checks whether it is a voter.
const LOOK_FOR_VOTE: Duration = Duration::from_millis(5);

/// Maintains voters and features whenever this node is the leader, until the node stops. On shard
/// 0. `is_down` says which nodes are down.
pub async fn run(services: PerShard<MetadataService>, is_down: impl Fn(HostId) -> bool) {
    while rt::time::timeout(LOOK, rt::shard::stopping().cancelled()).await.is_err() {
        let Some(service) = services.try_get() else { return };
        let Some(group) = service.group().filter(|group| group.is_leader()).cloned() else { continue };
        let metadata = service.current();
        drop(service);
        let topology = &metadata.topology;
        let voters = wanted(&metadata, &group, &is_down);
        if voters != group.voters()
            && let Err(error) = group.set_voters(&voters).await
        {
            tracing::info!(%error, "the voters of the Raft group could not be changed; retrying");
        }
        let gone = left(topology, &group);
        if !gone.is_empty()
            && let Err(error) = group.remove(&gone).await
        {
            tracing::info!(%error, "nodes that have left could not be removed from the Raft group; retrying");
        }
        if !features::to_enable(topology).is_empty() {
            let made = change::<(), Infallible, _>(services, |metadata, _| {
                let enabled = features::to_enable(&metadata.topology);
                Ok((if enabled.is_empty() { Vec::new() } else { vec![Op::EnableFeatures(enabled)] }, ()))
            });
            if let Err(error) = made.await {
                tracing::info!(%error, "features could not be enabled; retrying");
            }
        }
    }
}

/// Waits until this node, which has just joined, is a voter, if the voters' rule selects it. An
/// operator who sees three nodes serve clients expects the cluster to survive the loss of one.
/// After ten seconds the node serves clients anyway.
pub async fn wait_for_vote(service: &MetadataService, is_down: impl Fn(HostId) -> bool) {
    let (Some(group), own) = (service.group(), service.info().host_id) else { return };
    let until = Deadline::after(VOTE);
    while is_to_vote(&service.current().topology, &group.voters(), own, &is_down) {
        if until.is_past() {
            tracing::warn!(
                "this node has joined, but is not a voter yet: if other nodes fail now, the Raft group may lose its majority"
            );
            return;
        }
        rt::time::sleep(LOOK_FOR_VOTE).await;
    }
}

/// Whether a node that is not a voter is about to become one.
fn is_to_vote(topology: &Topology, voters: &BTreeSet<HostId>, host: HostId, is_down: &impl Fn(HostId) -> bool) -> bool {
    let candidates: Vec<_> = topology.members().map(|node| candidate(node, voters, !is_down(node.host))).collect();
    !voters.contains(&host) && choose(&candidates).contains(&host)
}

fn candidate<'a>(node: &'a Node, voters: &BTreeSet<HostId>, alive: bool) -> Candidate<'a> {
    let (datacenter, rack) = (&node.datacenter, &node.rack);
    Candidate { host: node.host, datacenter, rack, alive, votes: voters.contains(&node.host) }
}

/// Nodes that have left, but are still learners of the Raft group.
fn left(topology: &Topology, group: &Rc<Group>) -> BTreeSet<HostId> {
    let voters = group.voters();
    let has_left = |host: &HostId| topology.node(*host).is_some_and(|node| !node.state.is_member());
    group.members().into_iter().filter(|host| has_left(host) && !voters.contains(host)).collect()
}

/// The nodes that should be voters. A leaving node keeps its vote until its last tablet has moved.
fn wanted(metadata: &Metadata, group: &Rc<Group>, is_down: &impl Fn(HostId) -> bool) -> BTreeSet<HostId> {
    let (members, voters) = (group.members(), group.voters());
    let ready = |host: HostId| host == group.host() || voters.contains(&host) || group.has_caught_up(host);
    let may_vote =
        |node: &&Rc<Node>| members.contains(&node.host) && ready(node.host) && !is_about_to_leave(metadata, node);
    let nodes: Vec<_> = metadata.topology.members().filter(may_vote).collect();
    // Removing a voter that is down helps only if another node can replace it: five voters with one
    // down tolerate as many further failures as four voters. But without the vote of a leaving
    // node, the voters that are up may be no majority.
    let up = nodes.iter().filter(|node| !is_down(node.host)).count();
    let is_majority_lost =
        voters.iter().any(|host| !nodes.iter().any(|node| node.host == *host)) && up * 2 <= nodes.len();
    let spare = is_majority_lost || nodes.iter().any(|node| !voters.contains(&node.host) && !is_down(node.host));
    let candidates: Vec<Candidate<'_>> = nodes
        .iter()
        .map(|node| candidate(node, &voters, !is_down(node.host) || (voters.contains(&node.host) && !spare)))
        .collect();
    let chosen = choose(&candidates);
    if chosen.is_empty() { voters } else { chosen }
}
