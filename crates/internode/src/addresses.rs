//! The addresses of the other nodes: those in the metadata, and located ones that override outdated
//! metadata. Pure.
//!
//! A located address is knowledge of this node only, in memory. After nodes have moved, it lets the
//! members reach each other, so that they can agree on metadata with the new addresses. It is
//! dropped as soon as the metadata has a new address for the node.

use super::config::AddressBook;
use model::HostId;
use std::collections::BTreeMap;
use std::net::SocketAddr;

/// The addresses of the other nodes.
#[derive(Clone, Debug, Default)]
pub struct Addresses {
    stated: AddressBook,
    located: BTreeMap<HostId, SocketAddr>,
}

impl Addresses {
    /// Takes over the address book of newer metadata.
    pub fn state(&mut self, book: AddressBook) {
        let before = std::mem::replace(&mut self.stated, book);
        let stated = &self.stated;
        self.located.retain(|host, found| match (before.peers.get(host), stated.peers.get(host)) {
            (Some(before), Some(now)) => before.address == now.address && now.address != *found,
            _ => false,
        });
    }

    /// Records the address at which a node was located, or removes it. Only nodes of the address
    /// book can have one.
    pub fn find(&mut self, host: HostId, address: Option<SocketAddr>) {
        let stated = self.stated(host);
        match address.filter(|address| stated.is_some_and(|stated| stated != *address)) {
            Some(address) => self.located.insert(host, address),
            None => self.located.remove(&host),
        };
    }

    /// The address of a node in the metadata.
    pub fn stated(&self, host: HostId) -> Option<SocketAddr> {
        self.stated.peers.get(&host).map(|peer| peer.address)
    }

    /// The located addresses.
    pub fn located(&self) -> &BTreeMap<HostId, SocketAddr> {
        &self.located
    }

    /// The address book with the addresses in use.
    pub fn book(&self) -> AddressBook {
        let mut book = self.stated.clone();
        for (host, address) in &self.located {
            if let Some(peer) = book.peers.get_mut(host) {
                peer.address = *address;
            }
        }
        book
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PeerAddress;
    use uuid::Uuid;

    fn host(n: u128) -> HostId {
        HostId(Uuid::from_u128(n))
    }

    fn at(n: u8) -> SocketAddr {
        ([127, 0, 0, n], 7000).into()
    }

    fn book(nodes: &[(u128, u8)]) -> AddressBook {
        let peer = |n: u8| PeerAddress { address: at(n), shards: 1, datacenter: "d".into(), rack: "r".into() };
        AddressBook { peers: nodes.iter().map(|(node, n)| (host(*node), peer(*n))).collect(), ..AddressBook::default() }
    }

    #[test]
    fn found_addresses_hold_until_the_metadata_say_something_new() {
        let mut addresses = Addresses::default();
        addresses.find(host(1), Some(at(9)));
        assert!(addresses.located().is_empty(), "only members have addresses");
        addresses.state(book(&[(1, 1), (2, 2), (3, 3)]));
        for (node, n) in [(1, 2), (2, 1), (3, 3)] {
            addresses.find(host(node), Some(at(n)));
        }
        assert_eq!(addresses.book(), book(&[(1, 2), (2, 1), (3, 3)]), "two have swapped their addresses");
        assert_eq!((addresses.stated(host(1)), addresses.located().len()), (Some(at(1)), 2));
        // First another node's address changes. Then the metadata confirms the located address.
        // Then it has a different one.
        addresses.state(book(&[(1, 1), (2, 2), (3, 4)]));
        assert_eq!(addresses.book(), book(&[(1, 2), (2, 1), (3, 4)]));
        addresses.state(book(&[(1, 2), (2, 2), (3, 4)]));
        assert_eq!(addresses.located().keys().copied().collect::<Vec<_>>(), [host(2)]);
        addresses.state(book(&[(1, 2), (2, 5), (3, 4)]));
        assert_eq!(addresses.book(), book(&[(1, 2), (2, 5), (3, 4)]));
        addresses.find(host(3), Some(at(8)));
        addresses.find(host(3), None);
        addresses.find(host(1), Some(at(8)));
        addresses.state(book(&[(2, 5)]));
        assert_eq!(addresses.book(), book(&[(2, 5)]));
    }
}
