//! Where members are, and which node may be admitted at another address than before.
//!
//! A node with a new address may be the member, or may run on a copy of its data directory. The
//! copy may lack writes that the member has acknowledged. A member that is being restarted must not
//! lose its place to a copy. So a node is admitted at a new address only if another node is at the
//! old address now, or the member has not answered there for [`Internode::address_change_delay`].

use super::join::{JoinRequest, JoinResponse, NoResponse, ask};
use super::{Node, Topology};
use crate::metadata::MetadataService;
use internode::{Internode, NodeStatus};
use model::id::HostId;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::rc::Rc;

/// Why the member with the id of `node` may still be at another address. `None` if it is not.
pub(super) async fn may_be_elsewhere(
    internode: Option<&Rc<Internode>>,
    topology: &Topology,
    node: &Node,
) -> Option<String> {
    let internode = internode?;
    if let Some(address) = internode.liveness().answers_elsewhere(node.host, node.internode()) {
        return Some(two_nodes(node, address));
    }
    if node.host == internode.own().host {
        return None;
    }
    let known = topology.node(node.host).filter(|known| known.state.is_member());
    let (stated, found) =
        (known.map(|known| known.internode()), internode.located_addresses().get(&node.host).copied());
    let mut is_taken = false;
    for address in stated.into_iter().chain(found).filter(|address| *address != node.internode()) {
        match occupant(internode, address).await {
            Some(host) if host == node.host => return Some(two_nodes(node, address)),
            Some(_) if stated == Some(address) => is_taken = true,
            _ => {}
        }
    }
    let old = stated.filter(|address| *address != node.internode())?;
    let (delay, silent) = (internode.address_change_delay(), internode.liveness().silent_for(node.host));
    // The locator has waited for the silence.
    if is_taken || silent >= delay || found == Some(node.internode()) {
        return None;
    }
    Some(format!(
        "node {} was at {old}, and a node of the same id asks from {}. It is admitted once {old} has not \
         answered for {} s. Until then the node there may be restarting, and this one may run on an older copy \
         of its data directory",
        node.host,
        node.internode(),
        delay.as_secs_f64()
    ))
}

fn two_nodes(node: &Node, address: SocketAddr) -> String {
    format!(
        "node {} answers at {address}, and a node of the same id asks from {}. Either it has just moved, or one \
         of the two runs on a copy of the other's data directory",
        node.host,
        node.internode()
    )
}

/// The node that answers at an address. This function asks the node now, because the failure
/// detector's knowledge may be outdated.
async fn occupant(internode: &Rc<Internode>, address: SocketAddr) -> Option<HostId> {
    match ask(internode, address, JoinRequest::Locate(BTreeSet::new())).await {
        // A node itself states its address. An address at which it answers by chance is not used.
        Ok((party, JoinResponse::Located(_))) if party.address == address => Some(party.host),
        Err(NoResponse::Own) => Some(internode.own().host),
        _ => None,
    }
}

/// The address at which this node currently reaches another one.
pub(super) fn reached_at(internode: Option<&Rc<Internode>>, node: &Node) -> SocketAddr {
    let found = internode.and_then(|internode| internode.located_addresses().get(&node.host).copied());
    found.unwrap_or_else(|| node.internode())
}

/// Members that answer at another address than the one in the metadata, and this node.
pub(super) fn moved(internode: Option<&Rc<Internode>>, service: &MetadataService) -> BTreeMap<HostId, SocketAddr> {
    let Some(internode) = internode else { return BTreeMap::new() };
    let liveness = internode.liveness();
    let answers = |host: &HostId| liveness.status(*host) == NodeStatus::Up;
    let own = (service.info().host_id, internode.own().address);
    internode.located_addresses().into_iter().filter(|(host, _)| answers(host)).chain([own]).collect()
}

/// Members that have not finished joining and are down. They have no tablets.
pub(super) fn lost(internode: Option<&Rc<Internode>>, service: &MetadataService) -> BTreeSet<HostId> {
    let Some(internode) = internode else { return BTreeSet::new() };
    let (topology, liveness) = (service.current().topology.clone(), internode.liveness());
    topology.lost_while_joining(|host| liveness.is_down(host))
}

/// Members that are down, as seen by this node.
pub(super) fn down(internode: Option<&Rc<Internode>>, topology: &Topology) -> BTreeSet<HostId> {
    let Some(internode) = internode else { return BTreeSet::new() };
    let liveness = internode.liveness();
    topology.down(|host| liveness.is_down(host))
}
