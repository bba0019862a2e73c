//! Whether a node may be admitted, and the changes of the topology for that. Pure.

use super::planner::check_has_others;
use super::{Node, NodeState, Topology, features};
use crate::metadata::{Metadata, Op};
use model::id::HostId;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

/// Why a node is not admitted.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(super) enum NotAdmitted {
    /// It may be admitted later.
    #[error("{0}")]
    Yet(String),
    /// It will never be admitted.
    #[error("{0}")]
    Ever(String),
}

/// The address of a node in the metadata.
pub(super) fn place(topology: &Topology, host: HostId) -> Option<SocketAddr> {
    topology.node(host).map(|node| node.internode())
}

/// Two nodes with one host id may ask at the same time. The leader checked whether the member still
/// answers at `seen`, its address in the metadata at that time. If its address is another one
/// `now`, the check must be repeated.
pub(super) fn check_unchanged(
    seen: Option<SocketAddr>,
    now: Option<SocketAddr>,
    host: HostId,
) -> Result<(), NotAdmitted> {
    match now {
        now if now == seen => Ok(()),
        Some(now) => Err(NotAdmitted::Yet(format!("a node with the id {host} was admitted a moment ago, at {now}"))),
        None => Err(NotAdmitted::Yet(format!("node {host} was removed a moment ago"))),
    }
}

/// Why a full member that has lost its metadata cannot join again. It may only vote again with its
/// last votes: with older votes it could vote twice in one term.
pub(super) fn has_lost_metadata(topology: &Topology, node: &Node) -> Option<String> {
    let known = topology.node(node.host)?;
    let is_full = matches!(known.state, NodeState::Normal | NodeState::Leaving);
    (is_full && node.state == NodeState::Joining).then(|| {
        format!(
            "node {0} is a member of this cluster already, but starts without the cluster's metadata: the directory `raft` of its \
             data directory is missing or empty. The directory holds the node's votes: restore it exactly as it was when the node \
             stopped. An older copy, such as a backup, is unsafe: the node could vote twice. If there is no exact copy, replace \
             the node: leave it stopped, and start a new node with an empty data directory and `replace_node_first_boot: {0}`. \
             Sstables of the old node can be loaded into the cluster with `messina admin refresh`",
            node.host
        )
    })
}

/// The changes of addresses that make room for a node's address. If the member with this address
/// was located elsewhere, it gets that address, which may displace a further member. A `lost`
/// member is marked as left instead: the node at its address may be the same machine with an empty
/// disk. An error if the other member may still use the address.
pub(super) fn relocate(
    topology: &Topology,
    node: &Node,
    moved: &BTreeMap<HostId, SocketAddr>,
    lost: &BTreeSet<HostId>,
) -> Result<Vec<Op>, String> {
    let (mut ops, mut placed) = (Vec::new(), BTreeSet::from([node.host]));
    let mut newcomer = node.clone();
    while let Some(other) = topology.with_address_of(&newcomer).filter(|other| !placed.contains(&other.host)) {
        let address = newcomer.internode();
        let Some(now_at) = moved.get(&other.host).filter(|now_at| **now_at != address) else {
            // The metadata may have changed since the member was found to be lost.
            if lost.contains(&other.host) && other.state == NodeState::Joining {
                ops.push(Op::PutNode(Box::new(Node { state: NodeState::Left, ..(**other).clone() })));
                return Ok(ops);
            }
            return Err(format!(
                "the address {address} belongs to node {}, a member of the cluster: use another address",
                other.host
            ));
        };
        let follows = |own: IpAddr| if own == other.broadcast_address { now_at.ip() } else { own };
        newcomer = Node {
            broadcast_address: now_at.ip(),
            storage_port: now_at.port(),
            rpc_address: follows(other.rpc_address),
            listen_address: follows(other.listen_address),
            ..(**other).clone()
        };
        placed.insert(other.host);
        ops.push(Op::PutNode(Box::new(newcomer.clone())));
    }
    Ok(ops)
}

/// Whether a node may be admitted, and the changes for that. `moved`: members that were located at
/// other addresses than those in the metadata. `lost`: members that have not finished joining and
/// are down.
pub fn admit(
    topology: &Topology,
    node: &Node,
    moved: &BTreeMap<HostId, SocketAddr>,
    lost: &BTreeSet<HostId>,
) -> Result<Vec<Op>, String> {
    let missing = features::missing(topology, &node.features);
    if !missing.is_empty() {
        return Err(format!("the cluster uses features that this release does not have: {}", missing.join(", ")));
    }
    let mut ops = relocate(topology, node, moved, lost)?;
    check_location(topology, node)?;
    match topology.node(node.host) {
        Some(known) if !known.state.is_member() => {
            Err(format!("node {} has left the cluster for good: start it with an empty data directory", node.host))
        }
        Some(known) => {
            let again = Node { state: known.state, ..node.clone() };
            if **known != again {
                ops.push(Op::PutNode(Box::new(again)));
            }
            Ok(ops)
        }
        None => {
            ops.push(Op::PutNode(Box::new(Node { state: NodeState::Joining, ..node.clone() })));
            Ok(ops)
        }
    }
}

/// Refuses a change of a node's datacenter or rack. Replicas are placed by them, so after a move
/// LOCAL_QUORUM reads could miss rows that LOCAL_QUORUM writes acknowledged. Only a node that is
/// not a member yet, or is the only node, may change them. The error is for the operator of the
/// node.
pub fn check_location(topology: &Topology, node: &Node) -> Result<(), String> {
    let Some(known) = topology.node(node.host).filter(|known| known.state.is_member() && topology.len() > 1) else {
        return Ok(());
    };
    for (what, key, saved, configured) in
        [("DC", "datacenter", &known.datacenter, &node.datacenter), ("rack", "rack", &known.rack, &node.rack)]
    {
        if saved != configured {
            return Err(format!(
                "Saved {what} name \"{saved}\" is not equal to the {what} name \"{configured}\" specified by \
                 the configuration. Node {} has joined as datacenter {}, rack {}, and a member of a cluster \
                 cannot move. Set `{key}` back to \"{saved}\", or start a new node with an empty data directory \
                 in the other place",
                node.host, known.datacenter, known.rack
            ));
        }
    }
    Ok(())
}

/// Removes the member that a node replaces, which must be down. Returns the changes, and the
/// topology after them. `down`: members that are down. The node may have another address than that
/// member, but must be in its datacenter and rack.
pub(super) fn replace(
    metadata: &Metadata,
    node: &Node,
    dead: HostId,
    down: &BTreeSet<HostId>,
) -> Result<(Vec<Op>, Topology), NotAdmitted> {
    let mut topology = metadata.topology.clone();
    let known = topology.node(dead).cloned();
    let known =
        known.ok_or_else(|| NotAdmitted::Ever(format!("node {dead}, which is to be replaced, is not known")))?;
    match known.state {
        NodeState::Left => {
            let why =
                format!("node {dead} has left the cluster, and needs no replacement: remove replace_node_first_boot");
            return Err(NotAdmitted::Ever(why));
        }
        NodeState::Removed if topology.node(node.host).is_some() => return Ok((Vec::new(), topology)),
        NodeState::Removed | NodeState::Joining | NodeState::Normal | NodeState::Leaving => {}
    }
    if (&known.datacenter, &known.rack) != (&node.datacenter, &node.rack) {
        return Err(NotAdmitted::Ever(format!(
            "node {dead}, which is to be replaced, is in datacenter {}, rack {}. The new node must be there, \
             too, but is configured for datacenter {}, rack {}",
            known.datacenter, known.rack, node.datacenter, node.rack
        )));
    }
    if known.state == NodeState::Removed {
        tracing::warn!(node = %node.host, %dead, "the node to replace was removed or replaced before: the new node joins as a further member");
        return Ok((Vec::new(), topology));
    }
    features::check_streaming(&topology).map_err(NotAdmitted::Yet)?;
    if !down.contains(&dead) {
        return Err(NotAdmitted::Yet(format!("node {dead}, which is to be replaced, is up: stop it first")));
    }
    check_has_others(metadata, dead).map_err(NotAdmitted::Ever)?;
    let removed = Node { state: NodeState::Removed, ..(*known).clone() };
    topology.put(removed.clone());
    Ok((vec![Op::PutNode(Box::new(removed))], topology))
}

#[cfg(test)]
mod tests;
