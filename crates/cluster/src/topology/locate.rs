//! Finding members that are not where the metadata say they are: all of them may have new
//! addresses, or each other's.
//!
//! While a member does not answer, this node asks every address that it knows of (its seeds, the
//! addresses in the metadata, those that others name) who is there. The handshake answers that:
//! cluster, certificate and host id are checked as for any connection. A member that answers at one
//! other address is reached there from then on ([`Internode::found`]), so that the metadata group
//! can work; the metadata themselves change when the moved node introduces itself to the leader
//! ([`super::join::introduce`]).
//!
//! Two nodes with one host id (a copied data directory) gain nothing: while a member answers where
//! it is known to be, nobody else is believed to be that member; of two that answer elsewhere
//! neither is.

use super::join::{Answer, Request, ask};
use internode::{Internode, NodeStatus, publish_found};
use model::id::HostId;
use rt::sync::Notify;
use rt::time::Duration;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::rc::{Rc, Weak};

/// The pause before the first round of questions, and after a round that found a node.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
/// The longest pause between two rounds; it doubles up to this while rounds find nothing.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// The most addresses that are remembered because other nodes named them.
const MOST_NAMED: usize = 256;

/// Addresses that other nodes named. On shard 0.
#[derive(Default)]
pub struct Locator {
    named: RefCell<BTreeSet<SocketAddr>>,
    hurry: Notify,
    /// Members whose id several nodes have, and where these answer: logged already.
    several: RefCell<BTreeMap<HostId, BTreeSet<SocketAddr>>>,
}

impl Locator {
    /// Installs it on this shard: from now on other nodes' questions are answered.
    pub fn install() {
        rt::shard::install(Rc::new(Locator::default()));
    }

    /// Another node, which is at `from`, asks; the answer: the addresses that this node knows of.
    pub(super) fn asked(
        &self,
        internode: &Internode,
        from: SocketAddr,
        names: BTreeSet<SocketAddr>,
    ) -> BTreeSet<SocketAddr> {
        self.name(names.into_iter().chain([from]), internode.own().address);
        self.known(internode).into_iter().chain([internode.own().address]).collect()
    }

    /// Takes note of addresses; new ones are asked soon.
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

    /// All addresses of which this node knows, but its own.
    fn known(&self, internode: &Internode) -> BTreeSet<SocketAddr> {
        let stated = internode.stated().into_values();
        let found = internode.found().into_values();
        let own = internode.own().address;
        stated.chain(found).chain(self.named.borrow().iter().copied()).filter(|address| *address != own).collect()
    }
}

/// What is known of a member's address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Believed {
    /// Where the metadata say it is.
    stated: SocketAddr,
    /// Where it was found instead.
    found: Option<SocketAddr>,
    /// Whether it answers where it is believed to be.
    is_up: bool,
}

/// What a round of questions says about a member.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Finding {
    /// Nothing new.
    Same,
    /// It is where the metadata say.
    AsStated,
    /// It is here.
    Here(SocketAddr),
    /// Several nodes have its host id: none of them is believed.
    Several,
}

/// Where a member is that answered at these addresses.
fn judge(believed: Believed, answered: &BTreeSet<SocketAddr>) -> Finding {
    let Believed { stated, found, is_up } = believed;
    match found {
        None if is_up => Finding::Same,
        Some(_) if answered.contains(&stated) => Finding::AsStated,
        None if answered.contains(&stated) => Finding::Same,
        Some(found) if is_up || answered.contains(&found) => Finding::Same,
        _ => match (answered.first(), answered.len()) {
            (None, _) => Finding::Same,
            (Some(address), 1) => Finding::Here(*address),
            _ => Finding::Several,
        },
    }
}

/// Finds members that moved, until this node stops. `seeds` gives the addresses of the seeds as
/// they are now. On shard 0.
pub async fn keep_locating(internode: Weak<Internode>, seeds: impl AsyncFn() -> Vec<SocketAddr>) {
    let stopping = rt::shard::stopping();
    let mut pause = FIRST_PAUSE;
    loop {
        let Some(locator) = rt::shard::try_service::<Locator>() else { return };
        let waited = stopping.unless(rt::time::timeout(pause, locator.hurry.notified())).await;
        let Some(internode) = internode.upgrade().filter(|_| waited.is_some()) else { return };
        if believed(&internode).values().all(|one| one.is_up && one.found.is_none()) {
            locator.named.borrow_mut().clear();
            locator.several.borrow_mut().clear();
            pause = match internode.stated().keys().all(|host| *host == internode.own().host) {
                // There is nobody to be lost.
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

/// What this node believes of the other members.
fn believed(internode: &Internode) -> BTreeMap<HostId, Believed> {
    let (liveness, found, own) = (internode.liveness(), internode.found(), internode.own().host);
    let stated = internode.stated().into_iter().filter(|(host, _)| *host != own);
    let of = |(host, stated)| {
        let is_up = liveness.status(host) == NodeStatus::Up;
        (host, Believed { stated, found: found.get(&host).copied(), is_up })
    };
    stated.map(of).collect()
}

/// Asks all addresses who is there. Whether a member was found.
async fn round(internode: &Rc<Internode>, locator: &Locator) -> bool {
    let addresses = locator.known(internode);
    let questions = addresses.iter().map(|address| ask(internode, *address, Request::Locate(addresses.clone())));
    let answers = futures_util::future::join_all(questions).await;
    let mut answered: BTreeMap<HostId, BTreeSet<SocketAddr>> = BTreeMap::new();
    for (address, answer) in addresses.iter().zip(answers) {
        let Ok((party, Answer::Located(named))) = answer else { continue };
        // Where others reach a node is for that node to say: an address by which it was reached by
        // chance is not used.
        if party.address == *address {
            answered.entry(party.host).or_default().insert(*address);
        }
        locator.name(named.into_iter().chain([party.address]), internode.own().address);
    }
    let mut has_found = false;
    for (host, believed) in believed(internode) {
        let answered = answered.remove(&host).unwrap_or_default();
        let finding = judge(believed, &answered);
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
                    "several nodes have the id of this member: none of them is believed; is a data directory a copy of the other's?"
                );
                None
            }
        };
        if found != believed.found {
            publish_found(host, found).await;
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
    fn a_member_is_believed_to_be_where_it_alone_answers() {
        let silent = Believed { stated: at(1), found: None, is_up: false };
        let up = Believed { is_up: true, ..silent };
        let elsewhere = Believed { found: Some(at(2)), ..silent };
        let up_elsewhere = Believed { is_up: true, ..elsewhere };
        let cases: [(Believed, &[u8], Finding); 15] = [
            (silent, &[], Finding::Same),
            (silent, &[1], Finding::Same),
            (silent, &[2], Finding::Here(at(2))),
            (silent, &[1, 2], Finding::Same),
            (silent, &[2, 3], Finding::Several),
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
            assert_eq!(judge(believed, &answered), expected, "{believed:?} {answered:?}");
        }
    }
}
