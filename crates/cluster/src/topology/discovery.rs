//! Discovery: nodes that know only a few addresses find out whether a cluster exists, and if not,
//! which node creates it. Pure.
//!
//! A node asks all addresses that it knows, beginning with its seeds, and sends its list of
//! addresses with each question. So all nodes get the same list. If any node is in a cluster, the
//! search ends and the searching node joins that cluster. Otherwise, when all known addresses have
//! answered with the same list, the node with the lowest id creates the cluster. The others keep
//! asking until it exists.

use model::id::HostId;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

/// The answer of a node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DiscoveryResponse {
    /// The host id of the node at the address.
    pub host: HostId,
    /// The addresses that it knows, including its own.
    pub known: BTreeSet<SocketAddr>,
    /// Whether it is in a cluster.
    pub in_cluster: bool,
}

/// The next step of a search.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DiscoveryStep {
    /// A cluster exists: join it through one of these addresses.
    Join(BTreeSet<SocketAddr>),
    /// No cluster exists, and this node creates it.
    Begin,
    /// Keep asking: some nodes have not answered, or another node creates the cluster.
    Ask,
}

/// The state of a search.
#[derive(Clone, Debug)]
pub struct Discovery {
    host: HostId,
    address: SocketAddr,
    known: BTreeSet<SocketAddr>,
    answers: BTreeMap<SocketAddr, DiscoveryResponse>,
}

impl Discovery {
    /// A search that begins with seeds; this node's own address may be among them.
    pub fn new(host: HostId, address: SocketAddr, seeds: impl IntoIterator<Item = SocketAddr>) -> Discovery {
        let known = seeds.into_iter().chain([address]).collect();
        Discovery { host, address, known, answers: BTreeMap::new() }
    }

    /// All known addresses, including this node's own.
    pub fn known(&self) -> &BTreeSet<SocketAddr> {
        &self.known
    }

    /// The addresses to ask.
    pub fn to_ask(&self) -> Vec<SocketAddr> {
        self.known.iter().copied().filter(|address| *address != self.address).collect()
    }

    /// The addresses that have not answered yet.
    pub fn silent(&self) -> Vec<SocketAddr> {
        self.to_ask().into_iter().filter(|address| !self.answers.contains_key(address)).collect()
    }

    /// Adds the addresses that another node sent with its question, and the address of that node.
    pub fn add_known(&mut self, known: impl IntoIterator<Item = SocketAddr>) {
        self.known.extend(known);
    }

    /// Records an answer.
    pub fn record_answer(&mut self, from: SocketAddr, answer: DiscoveryResponse) {
        if answer.host == self.host {
            // The address is another address of this node.
            self.known.remove(&from);
            return;
        }
        self.known.extend(answer.known.iter().copied());
        self.answers.insert(from, answer);
    }

    /// Records that an address does not answer any more.
    pub fn lost(&mut self, address: SocketAddr) {
        self.answers.remove(&address);
    }

    /// The next step, according to the answers so far.
    pub fn verdict(&self) -> DiscoveryStep {
        let members: BTreeSet<SocketAddr> =
            self.answers.iter().filter(|(_, answer)| answer.in_cluster).map(|(address, _)| *address).collect();
        if !members.is_empty() {
            return DiscoveryStep::Join(members);
        }
        let agree = |address: &SocketAddr| self.answers.get(address).is_some_and(|answer| answer.known == self.known);
        let lowest = self.answers.values().all(|answer| answer.host > self.host);
        if self.to_ask().iter().all(agree) && lowest { DiscoveryStep::Begin } else { DiscoveryStep::Ask }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use uuid::Uuid;

    fn address(n: u8) -> SocketAddr {
        ([127, 0, 0, n], 7000).into()
    }

    fn host(n: u8) -> HostId {
        HostId(Uuid::from_u128(n.into()))
    }

    fn node(n: u8, seeds: &[u8]) -> Discovery {
        Discovery::new(host(n), address(n), seeds.iter().copied().map(address))
    }

    /// `asker` sends the nodes that it knows to `asked`, and records the response.
    fn ask(nodes: &mut [Discovery], asker: usize, asked: usize) {
        let known = nodes[asker].known().clone();
        nodes[asked].add_known(known);
        let (from, other) = (nodes[asked].address, &nodes[asked]);
        let answer = DiscoveryResponse { host: other.host, known: other.known.clone(), in_cluster: false };
        nodes[asker].record_answer(from, answer);
    }

    #[test]
    fn a_node_that_is_its_only_seed_begins_at_once() {
        assert_eq!(node(1, &[1]).verdict(), DiscoveryStep::Begin);
        assert_eq!(node(1, &[]).verdict(), DiscoveryStep::Begin);
        assert_eq!(node(1, &[2]).verdict(), DiscoveryStep::Ask);
    }

    #[test]
    fn a_node_that_is_in_a_cluster_is_joined() {
        let mut one = node(1, &[2, 3]);
        one.record_answer(
            address(3),
            DiscoveryResponse { host: host(3), known: [address(3)].into(), in_cluster: true },
        );
        assert_eq!(one.verdict(), DiscoveryStep::Join([address(3)].into()));
    }

    #[test]
    fn another_address_of_the_node_itself_is_not_a_peer() {
        let mut one = node(1, &[9]);
        one.record_answer(
            address(9),
            DiscoveryResponse { host: host(1), known: [address(1)].into(), in_cluster: false },
        );
        assert_eq!(one.verdict(), DiscoveryStep::Begin);
    }

    proptest! {
        /// For any seeds and any order of questions, exactly one of the nodes that learn of each
        /// other creates the cluster: the node with the lowest id.
        #[test]
        fn exactly_one_begins(
            seeds in prop::collection::vec(prop::collection::vec(0..5u8, 1..3), 2..6),
            asks in prop::collection::vec((0..6usize, 0..6usize), 0..60),
        ) {
            let count = seeds.len() as u8;
            // All nodes are connected through the first one, as the docs require.
            let mut nodes: Vec<Discovery> = seeds.iter().enumerate()
                .map(|(n, seeds)| {
                    let seeds: Vec<u8> = seeds.iter().map(|seed| seed % count + 1).chain([1]).collect();
                    node(n as u8 + 1, &seeds)
                })
                .collect();
            let mut begun = BTreeSet::new();
            let look = |nodes: &[Discovery], begun: &mut BTreeSet<usize>| {
                for (n, node) in nodes.iter().enumerate() {
                    if node.verdict() == DiscoveryStep::Begin {
                        begun.insert(n);
                    }
                }
            };
            for (asker, asked) in asks {
                let (asker, asked) = (asker % nodes.len(), asked % nodes.len());
                let knows = nodes[asker].to_ask().contains(&address(asked as u8 + 1));
                if asker != asked && knows {
                    ask(&mut nodes, asker, asked);
                }
                // Unless its seeds name others, the first node knows only itself at the start, and
                // may create the cluster at once.
                look(&nodes, &mut begun);
            }
            prop_assert!(begun.len() <= 1, "{begun:?} begin");
            for _ in 0..6 {
                for asker in 0..nodes.len() {
                    for to in nodes[asker].to_ask() {
                        let asked = nodes.iter().position(|node| node.address == to).expect("one of them");
                        ask(&mut nodes, asker, asked);
                    }
                }
                look(&nodes, &mut begun);
            }
            prop_assert_eq!(begun.into_iter().collect::<Vec<_>>(), [0]);
        }
    }
}
