//! The nodes of the cluster: identity, addresses, location, state and features. Part of the
//! metadata, so all nodes agree on it. Pure.
//!
//! [`Topology`] lists the nodes, with views by datacenter and rack. [`features`] decides which
//! features all members have. [`voters`] chooses the voters of the Raft group. Whether a node is up
//! is not part of the topology: each node judges that for itself (`internode::Liveness`).
//!
//! A node comes by [`join`] (which nodes are admitted: [`admit`]), and goes by [`leave`], or by
//! [`remove`] if it is dead. [`planner`] decides which tablets move, [`balancer`] begins the moves,
//! and [`migration_driver`] completes them. [`requests`] lists what is under way, and how it ended.

pub mod admission;
pub mod admit;
pub mod balancer;
pub mod barrier;
pub mod discovery;
pub mod features;
pub mod foreign_seeds;
pub mod join;
pub mod leave;
pub mod locate;
pub mod migration_driver;
pub(crate) mod node;
pub mod planner;
pub mod remove;
pub mod requests;
pub mod runs;
pub mod search_progress;
pub mod topology_coordinator;
pub mod voters;
mod whereabouts;
pub mod write_marks;

pub use node::{Node, NodeState};

use model::id::{HostId, NodeRun};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// The nodes of a cluster with their runs, the enabled features and the fence. Copies share
/// unchanged parts.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Topology {
    /// Whether an operator has turned off balancing.
    keeps_uneven: bool,
    nodes: Rc<BTreeMap<HostId, Rc<Node>>>,
    runs: Rc<BTreeMap<HostId, NodeRun>>,
    features: Rc<BTreeSet<String>>,
    fence: u64,
}

impl Topology {
    /// All nodes in the order of their ids, including nodes that have left.
    pub fn nodes(&self) -> impl DoubleEndedIterator<Item = &Rc<Node>> {
        self.nodes.values()
    }

    /// The members: all nodes except nodes that have left.
    pub fn members(&self) -> impl DoubleEndedIterator<Item = &Rc<Node>> {
        self.nodes.values().filter(|node| node.state.is_member())
    }

    /// The nodes that can receive new tablets.
    pub fn owners(&self) -> impl DoubleEndedIterator<Item = &Rc<Node>> {
        self.nodes.values().filter(|node| node.state == NodeState::Normal)
    }

    /// The nodes that are down and have not finished joining. They have no tablets and may never
    /// return, so no operation waits for them.
    pub fn lost_while_joining(&self, is_down: impl Fn(HostId) -> bool) -> BTreeSet<HostId> {
        let joining = self.members().filter(|node| node.state == NodeState::Joining).map(|node| node.host);
        joining.filter(|host| is_down(*host)).collect()
    }

    /// The members that are down.
    pub fn down(&self, is_down: impl Fn(HostId) -> bool) -> BTreeSet<HostId> {
        self.members().map(|node| node.host).filter(|host| is_down(*host)).collect()
    }

    /// Whether a node is a member.
    pub fn is_member(&self, host: HostId) -> bool {
        self.node(host).is_some_and(|node| node.state.is_member())
    }

    /// The node with an id.
    pub fn node(&self, host: HostId) -> Option<&Rc<Node>> {
        self.nodes.get(&host)
    }

    /// The recorded run of a node; `None` before the first one.
    pub fn run(&self, host: HostId) -> Option<NodeRun> {
        self.runs.get(&host).copied()
    }

    /// The recorded runs of all nodes.
    pub fn runs(&self) -> impl Iterator<Item = (HostId, NodeRun)> {
        self.runs.iter().map(|(host, run)| (*host, *run))
    }

    /// The number of nodes, including nodes that have left.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether the topology is empty: the first node of the cluster has not added itself yet.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// The datacenters with members, in alphabetical order.
    pub fn datacenters(&self) -> BTreeSet<&str> {
        self.members().map(|node| node.datacenter.as_str()).collect()
    }

    /// The racks of a datacenter with members, in alphabetical order.
    pub fn racks(&self, datacenter: &str) -> BTreeSet<&str> {
        self.in_datacenter(datacenter).map(|node| node.rack.as_str()).collect()
    }

    /// The members of a datacenter.
    pub fn in_datacenter(&self, datacenter: &str) -> impl DoubleEndedIterator<Item = &Rc<Node>> {
        self.members().filter(move |node| node.datacenter == datacenter)
    }

    /// The enabled features. Every node must support them, because they may be in use.
    pub fn enabled_features(&self) -> &BTreeSet<String> {
        &self.features
    }

    /// Whether a feature is enabled.
    pub fn has_feature(&self, name: &str) -> bool {
        self.features.contains(name)
    }

    /// Another member that has the same internode address and port as `newcomer`.
    pub fn with_address_of(&self, newcomer: &Node) -> Option<&Rc<Node>> {
        self.members().find(|node| {
            node.host != newcomer.host
                && node.broadcast_address == newcomer.broadcast_address
                && node.storage_port == newcomer.storage_port
        })
    }

    /// Whether tablets move by themselves to nodes that have fewer.
    pub fn is_balancing(&self) -> bool {
        !self.keeps_uneven
    }

    /// The oldest metadata that a request may be based on. Replicas refuse requests with a lower
    /// number.
    pub fn fence(&self) -> u64 {
        self.fence
    }

    /// Raises the fence; it never decreases.
    pub(crate) fn raise_fence(&mut self, number: u64) {
        self.fence = self.fence.max(number);
    }

    /// Turns balancing on or off.
    pub(crate) fn set_balancing(&mut self, on: bool) {
        self.keeps_uneven = !on;
    }

    /// Adds a node, or replaces its description.
    pub(crate) fn put(&mut self, node: Node) {
        Rc::make_mut(&mut self.nodes).insert(node.host, Rc::new(node));
    }

    /// Records a run of a node.
    pub(crate) fn put_run(&mut self, host: HostId, run: NodeRun) {
        Rc::make_mut(&mut self.runs).insert(host, run);
    }

    /// Removes a node. Returns whether it was present.
    pub(crate) fn remove(&mut self, host: HostId) -> bool {
        Rc::make_mut(&mut self.runs).remove(&host);
        Rc::make_mut(&mut self.nodes).remove(&host).is_some()
    }

    /// Enables features; they are never disabled.
    pub(crate) fn enable(&mut self, features: &[String]) {
        Rc::make_mut(&mut self.features).extend(features.iter().cloned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use node::tests::node;

    fn three() -> Topology {
        let mut topology = Topology::default();
        for (n, datacenter, rack) in [(1, "dc1", "r1"), (2, "dc1", "r2"), (3, "dc2", "r1")] {
            topology.put(node(n, datacenter, rack));
        }
        topology
    }

    #[test]
    fn only_a_node_that_never_finished_joining_may_be_lost() {
        let mut topology = Topology::default();
        let all = [NodeState::Normal, NodeState::Joining, NodeState::Leaving, NodeState::Left, NodeState::Joining];
        for (n, state) in (1..).zip(all) {
            topology.put(Node { state, ..node(n, "dc1", "r1") });
        }
        let up = node(5, "", "").host;
        assert_eq!(topology.lost_while_joining(|host| host != up), BTreeSet::from([node(2, "", "").host]));
    }

    #[test]
    fn views_show_members_by_place() {
        let mut topology = three();
        assert_eq!(topology.datacenters().into_iter().collect::<Vec<_>>(), ["dc1", "dc2"]);
        assert_eq!(topology.racks("dc1").into_iter().collect::<Vec<_>>(), ["r1", "r2"]);
        let left = Node { state: NodeState::Left, ..node(3, "dc2", "r1") };
        topology.put(left);
        assert_eq!(topology.datacenters().into_iter().collect::<Vec<_>>(), ["dc1"]);
        assert_eq!((topology.len(), topology.members().count(), topology.owners().count()), (3, 2, 2));
        let leaving = Node { state: NodeState::Leaving, ..node(2, "dc1", "r2") };
        topology.put(leaving);
        assert_eq!((topology.members().count(), topology.owners().count()), (2, 1));
    }

    #[test]
    fn an_address_belongs_to_one_node() {
        let mut topology = three();
        let newcomer = Node { broadcast_address: node(2, "", "").broadcast_address, ..node(9, "dc1", "r1") };
        assert_eq!(topology.with_address_of(&newcomer).map(|node| node.host), Some(node(2, "", "").host));
        assert!(topology.with_address_of(&node(2, "dc1", "r2")).is_none(), "its own address");
        let other_port = Node { storage_port: 7777, ..newcomer.clone() };
        assert!(topology.with_address_of(&other_port).is_none());
        topology.put(Node { state: NodeState::Left, ..node(2, "dc1", "r2") });
        assert!(topology.with_address_of(&newcomer).is_none(), "a node that has left needs no address");
    }

    #[test]
    fn a_copy_does_not_see_later_changes() {
        let mut topology = three();
        let before = topology.clone();
        assert!(topology.remove(node(1, "", "").host) && !topology.remove(node(1, "", "").host));
        topology.enable(&["a".into()]);
        assert_eq!((before.len(), topology.len()), (3, 2));
        assert!(topology.has_feature("a") && !before.has_feature("a"));
    }
}
