//! Locates members that are not at the address in the metadata. All members may have new addresses
//! at once, or each other's.
//!
//! While a member is down, this node connects to every known address: its seeds, the addresses in
//! the metadata, and the addresses that other nodes name. The handshake identifies the node there,
//! with the usual checks of cluster, certificate and host id. A member that answers at one other
//! address is reached there from then on ([`Internode::located_addresses`]), so that the Raft group
//! can work. The metadata changes when the moved node introduces itself to the leader
//! ([`super::join::introduce`]).
//!
//! A second node with the same host id (a copied data directory) does not displace the first. No
//! other address is accepted while the member answers at its known address, and for
//! [`Internode::address_change_delay`] afterwards. The exception: another node is at its address
//! now. If the id answers at two other addresses, neither is accepted.

use super::join::{JoinRequest, JoinResponse, ask};
use internode::{Internode, NodeStatus, publish_located};
use model::id::HostId;
use rt::sync::Notify;
use rt::time::Duration;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::rc::{Rc, Weak};

/// The pause before the first round of questions, and after a round that located a node.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
/// The longest pause between two rounds. The pause doubles up to this while rounds find nothing.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// The maximum number of addresses kept because other nodes named them.
const MOST_NAMED: usize = 256;

/// The addresses that other nodes named. On shard 0.
#[derive(Default)]
pub struct Locator {
    named: RefCell<BTreeSet<SocketAddr>>,
    hurry: Notify,
    /// Host ids that several nodes have, with the addresses of these nodes. The log has reported
    /// these already.
    several: RefCell<BTreeMap<HostId, BTreeSet<SocketAddr>>>,
}

impl Locator {
    /// Handles a request of the node at `from`, which names the addresses that it knows. Returns
    /// the addresses that this node knows.
    pub(super) fn asked(
        &self,
        internode: &Internode,
        from: SocketAddr,
        names: BTreeSet<SocketAddr>,
    ) -> BTreeSet<SocketAddr> {
        self.name(names.into_iter().chain([from]), internode.own().address);
        self.known(internode).into_iter().chain([internode.own().address]).collect()
    }

    /// Adds addresses that another node named. The node soon connects to the new ones.
    fn name(&self, addresses: impl IntoIterator<Item = SocketAddr>, own: SocketAddr) {
        let mut named = self.named.borrow_mut();
        let before = named.len();
        for address in addresses {
            if address != own && named.len() < MOST_NAMED {
                named.insert(address);
            }
        }
        if named.len() > before {
            self.hurry.notify_one();
        }
    }

    /// All known addresses except this node's own.
    fn known(&self, internode: &Internode) -> BTreeSet<SocketAddr> {
        let stated = internode.stated().into_values();
        let found = internode.located_addresses().into_values();
        let own = internode.own().address;
        stated.chain(found).chain(self.named.borrow().iter().copied()).filter(|address| *address != own).collect()
    }
}

/// The known addresses of a member, and whether it answers there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Believed {
    /// The address in the metadata.
    stated: SocketAddr,
    /// The address where it was located instead.
    located: Option<SocketAddr>,
    /// Whether it answers at the address in use.
    is_up: bool,
    /// Whether another address may be accepted: the member has not answered at the address in use
    /// for [`Internode::address_change_delay`], or another node is there now.
    may_move: bool,
}

/// The result of a round of questions for one member.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Finding {
    /// No change.
    Same,
    /// The member is at the address in the metadata.
    AsStated,
    /// The member is at this address.
    Here(SocketAddr),
    /// Several nodes have its host id: none is accepted.
    Several,
}

/// Decides where a member is that answered at the addresses `answered`.
fn classify(believed: Believed, answered: &BTreeSet<SocketAddr>) -> Finding {
    let Believed { stated, located, is_up, may_move } = believed;
    match located {
        None if is_up => Finding::Same,
        Some(_) if answered.contains(&stated) => Finding::AsStated,
        None if answered.contains(&stated) => Finding::Same,
        Some(found) if is_up || answered.contains(&found) => Finding::Same,
        _ => match (answered.first(), answered.len()) {
            (None, _) => Finding::Same,
            _ if !may_move => Finding::Same,
            (Some(address), 1) => Finding::Here(*address),
            _ => Finding::Several,
        },
    }
}

/// Locates members that moved, until this node stops. `seeds` returns the current addresses of the
/// seeds. On shard 0.
pub async fn keep_locating(locator: Rc<Locator>, internode: Weak<Internode>, seeds: impl AsyncFn() -> Vec<SocketAddr>) {
    let stopping = rt::shard::stopping();
    let mut pause = FIRST_PAUSE;
    loop {
        let waited = stopping.unless(rt::time::timeout(pause, locator.hurry.notified())).await;
        let Some(internode) = internode.upgrade().filter(|_| waited.is_some()) else { return };
        if believed(&internode).values().all(|one| one.is_up && one.located.is_none()) {
            locator.named.borrow_mut().clear();
            locator.several.borrow_mut().clear();
            pause = match internode.stated().keys().all(|host| *host == internode.own().host) {
                // There are no other members to locate.
                true => LONGEST_PAUSE,
                false => FIRST_PAUSE,
            };
            continue;
        }
        locator.name(seeds().await, internode.own().address);
        let Some(has_found) = stopping.unless(round(&internode, &locator)).await else { return };
        pause = if has_found { FIRST_PAUSE } else { (pause * 2).min(LONGEST_PAUSE) };
    }
}

/// The known addresses of the other members.
fn believed(internode: &Internode) -> BTreeMap<HostId, Believed> {
    let (liveness, found, own) = (internode.liveness(), internode.located_addresses(), internode.own().host);
    let stated = internode.stated().into_iter().filter(|(host, _)| *host != own);
    let of = |(host, stated)| {
        let is_up = liveness.status(host) == NodeStatus::Up;
        let may_move = liveness.silent_for(host) >= internode.address_change_delay();
        (host, Believed { stated, located: found.get(&host).copied(), is_up, may_move })
    };
    stated.map(of).collect()
}

/// Asks all addresses for the node that they belong to. Returns whether a member was located.
async fn round(internode: &Rc<Internode>, locator: &Locator) -> bool {
    let addresses = locator.known(internode);
    let questions = addresses.iter().map(|address| ask(internode, *address, JoinRequest::Locate(addresses.clone())));
    let answers = futures_util::future::join_all(questions).await;
    let mut answered: BTreeMap<HostId, BTreeSet<SocketAddr>> = BTreeMap::new();
    for (address, answer) in addresses.iter().zip(answers) {
        let Ok((party, JoinResponse::Located(named))) = answer else { continue };
        // A node itself states its address. An address at which it answers by chance is not used.
        if party.address == *address {
            answered.entry(party.host).or_default().insert(*address);
        }
        locator.name(named.into_iter().chain([party.address]), internode.own().address);
    }
    let mut has_found = false;
    let own = &internode.own().address;
    let taken: BTreeSet<SocketAddr> = answered.values().flatten().chain([own]).copied().collect();
    for (host, mut believed) in believed(internode) {
        believed.may_move |= taken.contains(&believed.located.unwrap_or(believed.stated));
        let answered = answered.remove(&host).unwrap_or_default();
        let finding = classify(believed, &answered);
        let before = match finding {
            Finding::Several => locator.several.borrow_mut().insert(host, answered.clone()),
            _ => locator.several.borrow_mut().remove(&host),
        };
        let found = match finding {
            Finding::Same => continue,
            Finding::AsStated => None,
            Finding::Here(address) => {
                tracing::info!(node = %host, %address, stated = %believed.stated, "a member was found at a new address");
                has_found = true;
                Some(address)
            }
            Finding::Several if before.as_ref() == Some(&answered) => None,
            Finding::Several => {
                tracing::warn!(
                    node = %host, addresses = ?answered,
                    "several nodes have the host id of this member, and none is accepted: a data directory may have been copied"
                );
                None
            }
        };
        if found != believed.located {
            publish_located(internode.shards(), host, found).await;
        }
    }
    has_found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(n: u8) -> SocketAddr {
        ([127, 0, 0, n], 7000).into()
    }

    #[test]
    fn a_member_is_located_at_the_only_address_that_answers() {
        let silent = Believed { stated: at(1), located: None, is_up: false, may_move: true };
        let restarting = Believed { may_move: false, ..silent };
        let up = Believed { is_up: true, ..silent };
        let elsewhere = Believed { located: Some(at(2)), ..silent };
        let up_elsewhere = Believed { is_up: true, ..elsewhere };
        let cases: [(Believed, &[u8], Finding); 18] = [
            (silent, &[], Finding::Same),
            (silent, &[1], Finding::Same),
            (silent, &[2], Finding::Here(at(2))),
            (silent, &[1, 2], Finding::Same),
            (silent, &[2, 3], Finding::Several),
            (restarting, &[2], Finding::Same),
            (restarting, &[2, 3], Finding::Same),
            (Believed { may_move: false, ..elsewhere }, &[1], Finding::AsStated),
            (up, &[2], Finding::Same),
            (up, &[2, 3], Finding::Same),
            (elsewhere, &[], Finding::Same),
            (elsewhere, &[2], Finding::Same),
            (elsewhere, &[3], Finding::Here(at(3))),
            (elsewhere, &[2, 3], Finding::Same),
            (elsewhere, &[1, 2], Finding::AsStated),
            (up_elsewhere, &[3], Finding::Same),
            (up_elsewhere, &[1], Finding::AsStated),
            (up_elsewhere, &[], Finding::Same),
        ];
        for (believed, answered, expected) in cases {
            let answered = answered.iter().map(|n| at(*n)).collect();
            assert_eq!(classify(believed, &answered), expected, "{believed:?} {answered:?}");
        }
    }
}
