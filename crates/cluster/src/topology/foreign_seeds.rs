//! Warns the operator of seeds that belong to another cluster.
//!
//! A node with data is in a cluster, if only in its own, and looks for no other. So nodes that each
//! created a cluster and then get each other's addresses as seeds stay separate, without any error.
//! Each node therefore logs each seed of another cluster once.

use super::join::{JoinRequest, JoinResponse, NoResponse, ask};
use crate::metadata::MetadataService;
use internode::{Internode, Party};
use rt::shard::PerShard;
use rt::time::Duration;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::rc::{Rc, Weak};

/// The pause before the first round of questions, and before the second.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// The longest pause between two rounds.
const LONGEST_PAUSE: Duration = Duration::from_secs(256);

/// The findings at seeds of other clusters.
#[derive(Default)]
struct Findings {
    last: BTreeMap<SocketAddr, String>,
    reported: BTreeMap<SocketAddr, String>,
}

impl Findings {
    /// Records the findings of a round, and returns those to log: findings of two consecutive
    /// rounds that are not logged yet. One round is not enough, because this node may not know yet
    /// of a node that has just joined.
    fn news(&mut self, found: BTreeMap<SocketAddr, String>) -> Vec<(SocketAddr, String)> {
        let is_news = |(address, why): &(&SocketAddr, &String)| {
            self.last.get(*address) == Some(*why) && self.reported.get(*address) != Some(*why)
        };
        let news: Vec<_> = found.iter().filter(is_news).map(|(address, why)| (*address, why.clone())).collect();
        self.reported.retain(|address, _| found.contains_key(address) || self.last.contains_key(address));
        self.reported.extend(news.iter().cloned());
        self.last = found;
        news
    }
}

/// Checks the seeds at increasing intervals until this node stops. `seeds` returns their current
/// addresses. On shard 0.
pub async fn watch(
    internode: Weak<Internode>,
    services: PerShard<MetadataService>,
    seeds: impl AsyncFn() -> Vec<SocketAddr>,
) {
    let stopping = rt::shard::stopping();
    let (mut findings, mut pause) = (Findings::default(), FIRST_PAUSE);
    loop {
        if stopping.unless(rt::time::sleep(pause)).await.is_none() {
            return;
        }
        pause = (pause * 2).min(LONGEST_PAUSE);
        let Some(internode) = internode.upgrade() else { return };
        // Without a leader, this node does not receive the nodes that joined its own cluster.
        if services.try_get().and_then(|service| service.group()?.leader()).is_none() {
            continue;
        }
        let Some(found) = stopping.unless(look(&internode, services, seeds().await)).await else { return };
        for (seed, why) in findings.news(found) {
            tracing::warn!(
                %seed,
                why,
                "a seed belongs to another cluster and is ignored: clusters cannot be merged. Take it out of `seeds`; or, to have this node \
                 join that cluster, start it with an empty data directory"
            );
        }
    }
}

/// The seeds that belong to another cluster, with descriptions of the nodes there.
async fn look(
    internode: &Rc<Internode>,
    services: PerShard<MetadataService>,
    seeds: Vec<SocketAddr>,
) -> BTreeMap<SocketAddr, String> {
    let members: BTreeSet<SocketAddr> = internode
        .stated()
        .into_values()
        .chain(internode.located_addresses().into_values())
        .chain([internode.own().address])
        .collect();
    let mut found = BTreeMap::new();
    for seed in seeds.into_iter().filter(|seed| !members.contains(seed)) {
        match ask(internode, seed, JoinRequest::Discover(BTreeSet::new())).await {
            Ok((Party { host, .. }, JoinResponse::InCluster)) => {
                let service = services.get();
                if service.current().topology.node(host).is_none() {
                    found.insert(seed, format!("node {host} answers there, in a cluster without this node"));
                }
            }
            Err(NoResponse::Ever(why)) => {
                found.insert(seed, why);
            }
            Ok(_) | Err(NoResponse::Yet(_) | NoResponse::Own | NoResponse::Twin(_) | NoResponse::Left(_)) => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_foreign_seed_is_reported_once_and_after_each_change() {
        let seed: SocketAddr = ([127, 0, 0, 2], 7000).into();
        let of = |why: &str| BTreeMap::from([(seed, why.to_owned())]);
        let mut findings = Findings::default();
        let mut news = |found| findings.news(found).into_iter().map(|(_, why)| why).collect::<Vec<_>>();
        assert!(news(of("a")).is_empty(), "it may have joined just now");
        assert_eq!(news(of("a")), ["a"]);
        assert!(news(of("a")).is_empty() && news(BTreeMap::new()).is_empty() && news(of("a")).is_empty());
        assert!(news(of("a")).is_empty(), "a round without an answer changes nothing");
        assert!(news(of("b")).is_empty());
        assert_eq!(news(of("b")), ["b"]);
    }
}
