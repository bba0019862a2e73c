//! How nodes that know nothing but a few addresses find out whether there is a cluster already, and if not, which of them begins it. Pure.
//!
//! A node asks all addresses that it knows, beginning with its seeds, and tells whom it asks of all of them; so all get to know the same.
//! Whoever is in a cluster ends the search: one joins that. If all that anybody knows have answered, know the same, and are in no
//! cluster, the one with the lowest id begins it, and the others wait for that.

use model::id::HostId;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

/// What a node is told when it asks another.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Heard {
    /// Who is at the address.
    pub host: HostId,
    /// The addresses that it knows, its own among them.
    pub known: BTreeSet<SocketAddr>,
    /// Whether it is in a cluster.
    pub in_cluster: bool,
}

/// What is to be done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// There is a cluster: join it, by one of these.
    Join(BTreeSet<SocketAddr>),
    /// There is none, and this node begins it.
    Begin,
    /// Ask on: some have not answered, or somebody else is to begin.
    Ask,
}

/// A search.
#[derive(Clone, Debug)]
pub struct Discovery {
    host: HostId,
    address: SocketAddr,
    known: BTreeSet<SocketAddr>,
    heard: BTreeMap<SocketAddr, Heard>,
}

impl Discovery {
    /// A search that begins with seeds; the own address may be among them.
    pub fn new(host: HostId, address: SocketAddr, seeds: impl IntoIterator<Item = SocketAddr>) -> Discovery {
        let known = seeds.into_iter().chain([address]).collect();
        Discovery { host, address, known, heard: BTreeMap::new() }
    }

    /// All addresses that are known, the own one among them.
    pub fn known(&self) -> &BTreeSet<SocketAddr> {
        &self.known
    }

    /// The addresses to ask.
    pub fn to_ask(&self) -> Vec<SocketAddr> {
        self.known.iter().copied().filter(|address| *address != self.address).collect()
    }

    /// The addresses that have not answered yet.
    pub fn silent(&self) -> Vec<SocketAddr> {
        self.to_ask().into_iter().filter(|address| !self.heard.contains_key(address)).collect()
    }

    /// Takes note of what another node that asks knows, or that it exists.
    pub fn told(&mut self, known: impl IntoIterator<Item = SocketAddr>) {
        self.known.extend(known);
    }

    /// Takes note of an answer.
    pub fn heard(&mut self, from: SocketAddr, heard: Heard) {
        if heard.host == self.host {
            // Another address of this node itself.
            self.known.remove(&from);
            return;
        }
        self.known.extend(heard.known.iter().copied());
        self.heard.insert(from, heard);
    }

    /// Takes note that an address does not answer any more.
    pub fn lost(&mut self, address: SocketAddr) {
        self.heard.remove(&address);
    }

    /// What is to be done, by what is known so far.
    pub fn verdict(&self) -> Verdict {
        let members: BTreeSet<SocketAddr> =
            self.heard.iter().filter(|(_, heard)| heard.in_cluster).map(|(address, _)| *address).collect();
        if !members.is_empty() {
            return Verdict::Join(members);
        }
        let agree = |address: &SocketAddr| self.heard.get(address).is_some_and(|heard| heard.known == self.known);
        let lowest = self.heard.values().all(|heard| heard.host > self.host);
        if self.to_ask().iter().all(agree) && lowest { Verdict::Begin } else { Verdict::Ask }
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

    /// `asker` asks `asked`, as the nodes do.
    fn ask(nodes: &mut [Discovery], asker: usize, asked: usize) {
        let known = nodes[asker].known().clone();
        nodes[asked].told(known);
        let (from, other) = (nodes[asked].address, &nodes[asked]);
        let heard = Heard { host: other.host, known: other.known.clone(), in_cluster: false };
        nodes[asker].heard(from, heard);
    }

    #[test]
    fn a_node_that_is_its_only_seed_begins_at_once() {
        assert_eq!(node(1, &[1]).verdict(), Verdict::Begin);
        assert_eq!(node(1, &[]).verdict(), Verdict::Begin);
        assert_eq!(node(1, &[2]).verdict(), Verdict::Ask);
    }

    #[test]
    fn who_is_in_a_cluster_is_joined() {
        let mut one = node(1, &[2, 3]);
        one.heard(address(3), Heard { host: host(3), known: [address(3)].into(), in_cluster: true });
        assert_eq!(one.verdict(), Verdict::Join([address(3)].into()));
    }

    #[test]
    fn another_address_of_the_node_itself_is_nobody() {
        let mut one = node(1, &[9]);
        one.heard(address(9), Heard { host: host(1), known: [address(1)].into(), in_cluster: false });
        assert_eq!(one.verdict(), Verdict::Begin);
    }

    proptest! {
        /// Whatever the seeds and in whatever order nodes ask: of those that come to know each other exactly one begins, the lowest.
        #[test]
        fn exactly_one_begins(
            seeds in prop::collection::vec(prop::collection::vec(0..5u8, 1..3), 2..6),
            asks in prop::collection::vec((0..6usize, 0..6usize), 0..60),
        ) {
            let count = seeds.len() as u8;
            // All are connected by the first one, as operators are told to do.
            let mut nodes: Vec<Discovery> = seeds.iter().enumerate()
                .map(|(n, seeds)| {
                    let seeds: Vec<u8> = seeds.iter().map(|seed| seed % count + 1).chain([1]).collect();
                    node(n as u8 + 1, &seeds)
                })
                .collect();
            let mut begun = BTreeSet::new();
            let look = |nodes: &[Discovery], begun: &mut BTreeSet<usize>| {
                for (n, node) in nodes.iter().enumerate() {
                    if node.verdict() == Verdict::Begin {
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
                // The first is alone in its list at the beginning unless its seeds name others, and may begin at once.
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
