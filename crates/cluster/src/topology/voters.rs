//! Chooses the voters of the Raft group. Pure.
//!
//! All nodes receive every change, and at most [`MOST`] of them vote, so that agreement stays fast
//! in a large cluster. Rules:
//!
//! - Voters are spread over datacenters, then over racks.
//! - If possible, no datacenter has half of the votes or more, so that losing one loses no
//!   majority.
//! - A node that is down has no vote if another can replace it.
//! - Present voters are kept unless another rule forbids it, because each replacement is a risk.
//! - Beyond two voters the number is odd, because one more would not tolerate more failures.

use model::id::HostId;
use std::collections::{BTreeMap, BTreeSet};

/// The maximum number of voters.
pub const MOST: usize = 5;

/// A node that can be a voter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Candidate<'a> {
    /// Its identity.
    pub host: HostId,
    /// Its datacenter.
    pub datacenter: &'a str,
    /// Its rack.
    pub rack: &'a str,
    /// Whether it is known to be up.
    pub alive: bool,
    /// Whether it is a voter now.
    pub votes: bool,
}

/// The nodes that should be voters. The order of the candidates does not change the result.
pub fn choose(candidates: &[Candidate<'_>]) -> BTreeSet<HostId> {
    let alive = candidates.iter().filter(|candidate| candidate.alive).count();
    let wanted = odd(alive.clamp(1, MOST)).min(candidates.len());
    let mut datacenters: BTreeMap<&str, Vec<Candidate<'_>>> = BTreeMap::new();
    for candidate in candidates {
        datacenters.entry(candidate.datacenter).or_default().push(*candidate);
    }
    let ranked: BTreeMap<&str, Vec<Candidate<'_>>> =
        datacenters.into_iter().map(|(name, nodes)| (name, by_rack(nodes))).collect();
    // Live nodes first. Dead nodes are chosen only if no live node is left.
    let mut chosen = choose_voters(&ranked, wanted, true);
    if chosen.is_empty() {
        chosen = choose_voters(&ranked, wanted, false);
    }
    debug_assert!(chosen.len() <= MOST, "there are no more voters than are useful");
    debug_assert!(candidates.is_empty() || !chosen.is_empty(), "a cluster with members has voters");
    chosen
}

fn odd(n: usize) -> usize {
    if n > 2 && n.is_multiple_of(2) { n - 1 } else { n }
}

/// The nodes of a datacenter in the order in which they become voters: a node of each rack in turn,
/// present voters first within a rack.
fn by_rack(nodes: Vec<Candidate<'_>>) -> Vec<Candidate<'_>> {
    let mut racks: BTreeMap<&str, Vec<Candidate<'_>>> = BTreeMap::new();
    for node in nodes {
        racks.entry(node.rack).or_default().push(node);
    }
    let rank = |node: &Candidate<'_>| (!node.alive, !node.votes, node.host);
    let mut racks: Vec<Vec<Candidate<'_>>> = racks.into_values().collect();
    for rack in &mut racks {
        rack.sort_by_key(rank);
    }
    let longest = racks.iter().map(Vec::len).max().unwrap_or(0);
    let turn = |turn: usize| {
        let mut nodes: Vec<Candidate<'_>> = racks.iter().filter_map(|rack| rack.get(turn)).copied().collect();
        // Present voters first here too, to avoid needless replacements.
        nodes.sort_by_key(rank);
        nodes
    };
    (0..longest).flat_map(turn).collect()
}

/// Assigns votes one at a time, to the datacenter that has the fewest so far.
fn choose_voters(ranked: &BTreeMap<&str, Vec<Candidate<'_>>>, wanted: usize, alive: bool) -> BTreeSet<HostId> {
    let mut queues: Vec<Vec<Candidate<'_>>> = ranked
        .values()
        .map(|nodes| nodes.iter().rev().filter(|node| node.alive || !alive).copied().collect::<Vec<_>>())
        .filter(|queue| !queue.is_empty())
        .collect();
    let most = match queues.len() {
        0 | 1 => wanted,
        // With two datacenters, one necessarily has a majority. It gets no more votes than that.
        2 => wanted / 2 + 1,
        _ => wanted.div_ceil(2).saturating_sub(1).max(1),
    };
    let mut given = vec![0; queues.len()];
    let mut chosen = BTreeSet::new();
    while chosen.len() < wanted {
        let next = (0..queues.len()).filter(|dc| !queues[*dc].is_empty() && given[*dc] < most).min_by_key(|dc| {
            let first = queues[*dc].last().expect("it is not empty");
            (given[*dc], !first.votes, *dc)
        });
        let Some(dc) = next else { break };
        let Some(node) = queues[dc].pop() else { break };
        chosen.insert(node.host);
        given[dc] += 1;
    }
    // The limits for datacenters can lead to an even number. One voter less tolerates as many
    // failures.
    while chosen.len() > 2 && chosen.len().is_multiple_of(2) {
        let fullest = (0..given.len()).max_by_key(|dc| given[*dc]).expect("a voter was chosen");
        let nodes = ranked.values().filter(|nodes| nodes.iter().any(|node| node.alive || !alive)).nth(fullest);
        let last = nodes.into_iter().flatten().rev().find(|node| chosen.contains(&node.host)).map(|node| node.host);
        let Some(last) = last else { break };
        chosen.remove(&last);
        given[fullest] -= 1;
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use uuid::Uuid;

    fn host(n: usize) -> HostId {
        HostId(Uuid::from_u128(n as u128 + 1))
    }

    /// Nodes as `datacenter/rack`, with `!` for a node that is down and `*` for a present voter.
    fn nodes<'a>(list: &[&'a str]) -> Vec<Candidate<'a>> {
        list.iter()
            .enumerate()
            .map(|(n, text)| {
                let place = text.trim_end_matches(['!', '*']);
                let (datacenter, rack) = place.split_once('/').expect("dc/rack");
                Candidate { host: host(n), datacenter, rack, alive: !text.contains('!'), votes: text.contains('*') }
            })
            .collect()
    }

    fn chosen(list: &[&str]) -> Vec<usize> {
        let chosen = choose(&nodes(list));
        (0..list.len()).filter(|n| chosen.contains(&host(*n))).collect()
    }

    #[test]
    fn small_clusters() {
        assert_eq!(chosen(&["a/1"]), [0]);
        assert_eq!(chosen(&["a/1", "a/1"]), [0, 1]);
        assert_eq!(chosen(&["a/1", "a/2", "a/3"]), [0, 1, 2]);
        assert_eq!(chosen(&["a/1", "a/2", "a/3", "a/3"]), [0, 1, 2]);
        assert_eq!(chosen(&["a/1", "a/1", "a/1", "a/2", "a/3", "a/3"]).len(), 5);
    }

    #[test]
    fn racks_share_the_votes() {
        assert_eq!(chosen(&["a/1", "a/1", "a/1", "a/1", "a/2", "a/3"]).iter().filter(|n| **n < 4).count(), 3);
        assert_eq!(chosen(&["a/1", "a/1", "a/2", "a/3"]), [0, 2, 3]);
    }

    #[test]
    fn no_datacenter_has_half_of_the_votes_if_that_can_be() {
        let three = ["a/1", "a/1", "a/1", "b/1", "b/1", "c/1", "c/1"];
        let votes = chosen(&three);
        assert_eq!(votes.len(), 5);
        assert!(votes.iter().filter(|n| **n < 3).count() <= 2);
        // Two of the large datacenter and one of each other make four, one of which is removed.
        assert_eq!(chosen(&["a/1", "a/1", "a/1", "b/1", "c/1"]), [0, 3, 4]);
        let two = chosen(&["a/1", "a/1", "a/1", "b/1", "b/1", "b/1"]);
        assert_eq!(two.len(), 5);
    }

    #[test]
    fn the_dead_lose_their_votes_and_the_others_keep_them() {
        assert_eq!(chosen(&["a/1*", "a/2*", "a/3!*", "a/3"]), [0, 1, 3]);
        assert_eq!(chosen(&["a/1", "a/1*", "a/1*", "a/1*"]), [1, 2, 3]);
        assert_eq!(chosen(&["a/1!*", "a/2!*"]), [0], "a node must vote");
    }

    proptest! {
        #[test]
        fn laws(places in prop::collection::vec((0..4u8, 0..3u8, any::<bool>(), any::<bool>()), 1..12)) {
            let names = ["a", "b", "c", "d"];
            let racks = ["1", "2", "3"];
            let mut candidates: Vec<Candidate<'_>> = places.iter().enumerate().map(|(n, (dc, rack, alive, votes))| Candidate {
                host: host(n),
                datacenter: names[*dc as usize],
                rack: racks[*rack as usize],
                alive: *alive,
                votes: *votes,
            }).collect();
            let voters = choose(&candidates);
            let alive = candidates.iter().filter(|node| node.alive).count();
            prop_assert!(!voters.is_empty() && voters.len() <= MOST);
            prop_assert!(voters.len() <= 2 || voters.len() % 2 == 1);
            if alive > 0 {
                prop_assert!(candidates.iter().all(|node| node.alive || !voters.contains(&node.host)));
            }
            let of = |dc: &str| candidates.iter().filter(|node| node.datacenter == dc && voters.contains(&node.host)).count();
            let living: BTreeSet<&str> = candidates.iter().filter(|node| node.alive).map(|node| node.datacenter).collect();
            if living.len() > 2 && voters.len() > 2 {
                prop_assert!(living.iter().all(|dc| of(dc) * 2 < voters.len()));
            }
            // Choosing again changes nothing, and the order of the candidates has no effect.
            for node in &mut candidates {
                node.votes = voters.contains(&node.host);
            }
            prop_assert_eq!(&choose(&candidates), &voters);
            candidates.reverse();
            prop_assert_eq!(&choose(&candidates), &voters);
        }
    }
}
