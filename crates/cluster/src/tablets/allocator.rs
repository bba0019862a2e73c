//! Chooses the replicas of a new table's tablets from datacenters, racks, nodes and shards. Pure.
//!
//! A node gets at most one replica of a tablet. The replicas in a datacenter are spread over its
//! racks as evenly as the nodes allow. Within these limits, the node with the fewest tablets per
//! shard is chosen, and on that node the shard with the fewest tablets.

use super::strategy::{Replication, StrategyError, check_racks};
use super::{MAX_LOG2_COUNT, TabletMap, TabletReplica};
use model::id::HostId;
use smallvec::SmallVec;
use std::collections::BTreeMap;

/// A node that can hold tablets.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Host {
    /// Its identity.
    pub id: HostId,
    /// Its datacenter.
    pub datacenter: String,
    /// Its rack.
    pub rack: String,
    /// Tablets of each shard. A host without shards gets no tablets.
    pub load: Vec<u32>,
}

impl Host {
    /// The node's tablets and shards, as a fraction.
    pub fn fullness(&self) -> (u64, u64) {
        (self.load.iter().map(|load| u64::from(*load)).sum(), self.load.len() as u64)
    }
}

/// The number of nodes of each datacenter.
pub fn nodes_by_datacenter(hosts: &[Host]) -> BTreeMap<String, u32> {
    let mut nodes = BTreeMap::new();
    for host in hosts {
        *nodes.entry(host.datacenter.clone()).or_default() += 1;
    }
    nodes
}

/// Places `count` tablets, a power of two, and adds them to the hosts' loads. If `racks` lists
/// racks of a datacenter, each of these racks gets one replica.
pub fn place(
    count: u32,
    replication: &Replication,
    racks: &BTreeMap<String, Vec<String>>,
    hosts: &mut [Host],
) -> Result<TabletMap, StrategyError> {
    assert!(count.is_power_of_two() && count <= 1 << MAX_LOG2_COUNT, "a count of tablets");
    replication.check(&nodes_by_datacenter(hosts))?;
    let is_known = |datacenter: &str, rack: &str| {
        hosts.iter().any(|host| host.datacenter == datacenter && host.rack == rack && !host.load.is_empty())
    };
    check_racks(racks, is_known)?;
    let mut tablets = Vec::with_capacity(count as usize);
    for _ in 0..count {
        let mut replicas: SmallVec<[TabletReplica; 1]> = SmallVec::new();
        match replication {
            Replication::Simple(factor) => add_copies(*factor, hosts, |_| true, &mut replicas),
            Replication::ByDatacenter(factors) => {
                for (datacenter, factor) in factors {
                    let is_there = |host: &Host| host.datacenter == *datacenter;
                    let Some(racks) = racks.get(datacenter) else {
                        add_copies(*factor, hosts, is_there, &mut replicas);
                        continue;
                    };
                    for rack in racks {
                        add_copies(1, hosts, |host| is_there(host) && host.rack == *rack, &mut replicas);
                    }
                }
            }
        }
        let is_twice = |i: usize| replicas[..i].iter().any(|other| other.host == replicas[i].host);
        debug_assert!(!(0..replicas.len()).any(is_twice), "a node has one replica of a tablet");
        debug_assert!(replicas.len() <= replication.total() as usize, "a tablet has no more replicas than are wanted");
        tablets.push(replicas);
    }
    Ok(TabletMap::new(tablets).expect("the count is a power of two"))
}

fn add_copies(
    factor: u32,
    hosts: &mut [Host],
    takes_part: impl Fn(&Host) -> bool,
    replicas: &mut SmallVec<[TabletReplica; 1]>,
) {
    for _ in 0..factor {
        let Some(replica) = add_replica(hosts, &takes_part, replicas) else { return };
        replicas.push(replica);
    }
}

/// Chooses the host and shard of one more replica, besides these, and adds it to the host's load.
/// `None` if no host that takes part is free.
pub fn add_replica(
    hosts: &mut [Host],
    takes_part: impl Fn(&Host) -> bool,
    replicas: &[TabletReplica],
) -> Option<TabletReplica> {
    let in_rack_of = |host: &Host| {
        let same = |replica: &&TabletReplica| {
            hosts
                .iter()
                .any(|other| other.id == replica.host && other.rack == host.rack && other.datacenter == host.datacenter)
        };
        replicas.iter().filter(same).count()
    };
    let free = hosts.iter().enumerate().filter(|(_, host)| {
        takes_part(host) && !host.load.is_empty() && !replicas.iter().any(|replica| replica.host == host.id)
    });
    let best = free.min_by(|(_, a), (_, b)| {
        let ((tablets_a, shards_a), (tablets_b, shards_b)) = (a.fullness(), b.fullness());
        let by_rack = in_rack_of(a).cmp(&in_rack_of(b));
        by_rack.then_with(|| (tablets_a * shards_b).cmp(&(tablets_b * shards_a)))
    });
    let (best, _) = best?;
    let host = &mut hosts[best];
    let (shard, _) = host.load.iter().enumerate().min_by_key(|(shard, load)| (**load, *shard))?;
    host.load[shard] += 1;
    Some(TabletReplica { host: host.id, shard: shard as u16 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use uuid::Uuid;

    /// Hosts by `datacenter/rack:shards`.
    fn hosts(spec: &str) -> Vec<Host> {
        let host = |(i, text): (usize, &str)| {
            let (place, shards) = text.split_once(':').expect("a host has shards");
            let (datacenter, rack) = place.split_once('/').expect("a host has a rack");
            Host {
                id: HostId(Uuid::from_u128(i as u128 + 1)),
                datacenter: datacenter.into(),
                rack: rack.into(),
                load: vec![0; shards.parse().expect("a number")],
            }
        };
        spec.split(' ').enumerate().map(host).collect()
    }

    fn factors(entries: &[(&str, u32)]) -> Replication {
        Replication::ByDatacenter(entries.iter().map(|(name, factor)| (name.to_string(), *factor)).collect())
    }

    /// The number of tablets of each host.
    fn totals(hosts: &[Host]) -> Vec<u32> {
        hosts.iter().map(|host| host.load.iter().sum()).collect()
    }

    #[test]
    fn tablets_spread_evenly() {
        let cases: Vec<(&str, Replication, u32, Vec<u32>)> = vec![
            ("a/1:2 a/2:2 a/3:2", factors(&[("a", 3)]), 16, vec![16, 16, 16]),
            ("a/1:2 a/1:2 a/1:2", factors(&[("a", 2)]), 64, vec![43, 43, 42]),
            // Each rack has one replica of everything, so each node of the larger rack has fewer.
            ("a/1:2 a/1:2 a/2:2", factors(&[("a", 2)]), 16, vec![8, 8, 16]),
            // Larger nodes get more.
            ("a/1:1 a/1:3", factors(&[("a", 1)]), 16, vec![4, 12]),
            ("a/1:1 b/1:1 b/2:1", factors(&[("a", 1), ("b", 2)]), 8, vec![8, 8, 8]),
            ("a/1:1 a/2:1 b/1:1", factors(&[("a", 2)]), 8, vec![8, 8, 0]),
            ("a/1:1 b/1:1", Replication::Simple(2), 8, vec![8, 8]),
        ];
        for (spec, replication, count, expected) in cases {
            let mut hosts = hosts(spec);
            let map = place(count, &replication, &BTreeMap::new(), &mut hosts).expect("there are nodes enough");
            assert_eq!(map.count(), count);
            assert_eq!(totals(&hosts), expected, "{spec}");
            for host in &hosts {
                let (least, most) = (host.load.iter().min(), host.load.iter().max());
                assert!(most.unwrap() - least.unwrap() <= 1, "{spec}: {host:?}");
            }
        }
    }

    #[test]
    fn existing_load_counts() {
        let mut hosts = hosts("a/1:2 a/1:2");
        hosts[0].load = vec![4, 0];
        let map = place(8, &factors(&[("a", 1)]), &BTreeMap::new(), &mut hosts).expect("there are nodes enough");
        assert_eq!(totals(&hosts), [6, 6]);
        assert_eq!(hosts[0].load, [4, 2], "the fuller shard gets none");
        assert_eq!(map.on_shard(hosts[0].id, rt::ShardId(1)).count(), 2);
    }

    #[test]
    fn too_few_nodes_are_an_error() {
        let none = BTreeMap::new();
        let refused = place(1, &factors(&[("a", 3)]), &none, &mut hosts("a/1:1 a/2:1")).expect_err("two nodes");
        assert_eq!(refused, StrategyError::TooFewNodes { datacenter: "a".into(), factor: 3 });
    }

    #[test]
    fn each_rack_of_a_list_gets_one_copy() {
        let racks = |list: &[&str]| {
            BTreeMap::from([("a".to_owned(), list.iter().map(|rack| (*rack).to_owned()).collect::<Vec<_>>())])
        };
        let mut hosts = hosts("a/1:2 a/1:2 a/2:2 a/3:2 b/1:2");
        let map = place(16, &factors(&[("a", 2), ("b", 1)]), &racks(&["1", "3"]), &mut hosts).expect("there are racks");
        assert_eq!(totals(&hosts), [8, 8, 0, 16, 16]);
        for tablet in 0..map.count() {
            assert_eq!(map.replicas(tablet).len(), 3);
        }
        let refused = place(1, &factors(&[("a", 2)]), &racks(&["1", "9"]), &mut hosts).expect_err("no such rack");
        assert_eq!(refused.to_string(), "Rack 9 doesn't exist in datacenter a");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases / 4))]
        #[test]
        fn every_tablet_has_its_copies_on_different_nodes_and_racks(
            racks in prop::collection::vec(1usize..4, 1..4),
            shards in prop::collection::vec(1usize..5, 12),
            factor in 1u32..4,
            log2 in 0u32..7,
        ) {
            let spec: Vec<String> = racks.iter().enumerate()
                .flat_map(|(rack, nodes)| (0..*nodes).map(move |node| (rack, node)))
                .zip(&shards)
                .map(|((rack, _), shards)| format!("a/{rack}:{shards}"))
                .collect();
            let mut hosts = hosts(&spec.join(" "));
            let nodes = hosts.len() as u32;
            let map = match place(1 << log2, &factors(&[("a", factor)]), &BTreeMap::new(), &mut hosts) {
                Ok(map) => map,
                Err(_) => { prop_assert!(factor > nodes); return Ok(()); }
            };
            for tablet in 0..map.count() {
                let replicas = map.replicas(tablet);
                prop_assert_eq!(replicas.len() as u32, factor);
                let mut ids: Vec<_> = replicas.iter().map(|replica| replica.host).collect();
                ids.sort();
                ids.dedup();
                prop_assert_eq!(ids.len() as u32, factor, "one copy on a host");
                let mut used: Vec<&str> = hosts.iter().filter(|h| ids.contains(&h.id)).map(|h| &h.rack[..]).collect();
                used.sort();
                used.dedup();
                prop_assert_eq!(used.len(), racks.len().min(factor as usize), "as many racks as there can be");
            }
        }
    }
}
