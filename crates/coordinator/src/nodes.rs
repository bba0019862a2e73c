//! The coordinator's view of the nodes: where they are, whether they are up, and which of them to
//! ask first. Pure.
//!
//! The view is an immutable snapshot, which is replaced entirely. The topology says where nodes
//! are, the failure detector whether they are up. Both may change at any moment; a request that was
//! sent by an older view is still correct.

use super::response_tracker::{Candidate, DatacenterId, Factors};
use cluster::tablets::TabletReplica;
use cluster::tablets::strategy::{FACTOR, SIMPLE, copies as copies_of, short_class};
use model::id::HostId;
use model::options::OptionMap;
use rt::hash::HashMap;
use rt::time::{Duration, Instant};
use smallvec::SmallVec;
use std::net::IpAddr;

/// A node as the source of a snapshot describes it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NodeView {
    /// Its host id.
    pub host: HostId,
    /// Its datacenter.
    pub datacenter: String,
    /// Its rack.
    pub rack: String,
    /// Its broadcast address. Errors name the node by it.
    pub address: IpAddr,
    /// Since when it is down. None: it is up.
    pub down_since: Option<Instant>,
}

#[derive(Clone, Debug)]
struct NodeEntry {
    datacenter: DatacenterId,
    rack: u16,
    address: IpAddr,
    down_since: Option<Instant>,
}

/// A snapshot of the nodes.
#[derive(Clone, Debug, Default)]
pub struct Nodes {
    datacenters: Vec<String>,
    own: Option<(HostId, DatacenterId, u16)>,
    by_host: HashMap<HostId, NodeEntry>,
}

impl Nodes {
    /// Builds a snapshot. `own` is this node. If `views` does not contain it, it is alone in a
    /// datacenter.
    pub fn new(own: HostId, views: &[NodeView]) -> Nodes {
        let mut nodes = Nodes::default();
        let mut racks: Vec<(DatacenterId, &str)> = Vec::new();
        for view in views {
            let datacenter = match nodes.datacenters.iter().position(|name| *name == view.datacenter) {
                Some(at) => at,
                None => {
                    nodes.datacenters.push(view.datacenter.clone());
                    nodes.datacenters.len() - 1
                }
            };
            let datacenter = DatacenterId(datacenter as u16);
            let rack = match racks.iter().position(|known| *known == (datacenter, &view.rack[..])) {
                Some(at) => at,
                None => {
                    racks.push((datacenter, &view.rack));
                    racks.len() - 1
                }
            } as u16;
            if view.host == own {
                nodes.own = Some((own, datacenter, rack));
            }
            let known = NodeEntry { datacenter, rack, address: view.address, down_since: view.down_since };
            nodes.by_host.insert(view.host, known);
        }
        if nodes.own.is_none() {
            nodes.own = Some((own, DatacenterId(nodes.datacenters.len() as u16), u16::MAX));
            nodes.datacenters.push(String::new());
        }
        nodes
    }

    fn is_own(&self, host: HostId) -> bool {
        self.own.is_some_and(|(own, ..)| own == host)
    }

    /// Whether there are other nodes.
    pub fn are_several(&self) -> bool {
        self.by_host.len() > 1
    }

    /// The other nodes that are up.
    pub fn others_alive(&self) -> impl Iterator<Item = HostId> {
        let alive = self.by_host.iter().filter(|(host, known)| known.down_since.is_none() && !self.is_own(**host));
        alive.map(|(host, _)| *host)
    }

    /// This node's datacenter.
    pub fn own_datacenter(&self) -> DatacenterId {
        self.own.map_or(DatacenterId::NOWHERE, |(_, datacenter, _)| datacenter)
    }

    /// A node's datacenter.
    pub fn datacenter(&self, host: HostId) -> DatacenterId {
        match self.by_host.get(&host) {
            Some(known) => known.datacenter,
            None if self.is_own(host) => self.own_datacenter(),
            None => DatacenterId::NOWHERE,
        }
    }

    /// The name of a node's datacenter, if known.
    pub fn datacenter_name(&self, host: HostId) -> Option<&str> {
        let DatacenterId(at) = self.datacenter(host);
        self.datacenters.get(usize::from(at)).map(String::as_str)
    }

    /// Whether a node is up. This node is; an unknown node is not.
    pub fn is_alive(&self, host: HostId) -> bool {
        self.is_own(host) || self.by_host.get(&host).is_some_and(|known| known.down_since.is_none())
    }

    /// Whether a node is a member of the cluster.
    pub fn is_member(&self, host: HostId) -> bool {
        self.is_own(host) || self.by_host.contains_key(&host)
    }

    /// How long a node has been down. None: it is up or unknown.
    pub fn down_for(&self, host: HostId, now: Instant) -> Option<Duration> {
        self.by_host.get(&host)?.down_since.map(|since| now.saturating_duration_since(since))
    }

    /// The address of a node.
    pub fn address(&self, host: HostId) -> Option<IpAddr> {
        self.by_host.get(&host).map(|known| known.address)
    }

    /// A replica as levels count it. `pending`: it is still receiving the tablet's data.
    pub fn candidate(&self, replica: TabletReplica, pending: bool) -> Candidate {
        let datacenter = self.datacenter(replica.host);
        Candidate { datacenter, alive: self.is_alive(replica.host), pending }
    }

    /// The replication factors that levels are computed from: the factors of a keyspace with these
    /// options, or the number of `copies` that the tablet has, whichever is larger. While the
    /// factor of a keyspace is lowered, its tablets still have more replicas than the new factor,
    /// and a quorum must be one of these. `SimpleStrategy` names no datacenters, so `copies`
    /// decides how many replicas each datacenter has.
    pub fn factors(&self, replication: &OptionMap, copies: &[Candidate]) -> Factors {
        let number = |text: &String| copies_of(text);
        let everywhere = replication.get(FACTOR).and_then(number);
        let mut factors = Factors { total: 0, by_datacenter: SmallVec::new() };
        if replication.get("class").is_some_and(|class| short_class(class) == SIMPLE) {
            factors.total = everywhere.unwrap_or(1).max(copies.len() as u32);
            factors.add_copies(copies);
            return factors;
        }
        for (at, name) in self.datacenters.iter().enumerate() {
            let factor = replication.get(name).and_then(number).or(everywhere).unwrap_or(0);
            if factor > 0 {
                factors.by_datacenter.push((at as u16, factor));
            }
        }
        let named = replication.iter().filter(|(name, _)| *name != "class" && *name != FACTOR);
        let elsewhere = named.filter(|(name, _)| !self.datacenters.contains(name)).filter_map(|(_, text)| number(text));
        let total = factors.by_datacenter.iter().map(|(_, factor)| factor).sum::<u32>() + elsewhere.sum::<u32>();
        factors.total = total.max(copies.len() as u32);
        factors.add_copies(copies);
        factors
    }

    /// The datacenters' names.
    pub fn datacenters(&self) -> impl Iterator<Item = &str> {
        self.datacenters.iter().map(String::as_str)
    }

    /// The distance of a node: 0 this node, 1 the same rack, 2 the same datacenter, 3 elsewhere.
    fn distance(&self, host: HostId) -> u8 {
        let Some((own, datacenter, rack)) = self.own else { return ELSEWHERE };
        match self.by_host.get(&host) {
            _ if host == own => 0,
            Some(known) if known.datacenter == datacenter && known.rack == rack => 1,
            Some(known) if known.datacenter == datacenter => 2,
            _ => ELSEWHERE,
        }
    }

    /// The replicas that are up, in the order in which to ask them: near ones first, and slow ones
    /// last among equally near ones. Otherwise the tablet's order holds, so that all pages of a
    /// query ask the same replicas.
    ///
    /// `kept`: nodes that may keep readers for this page. They precede others of their datacenter
    /// unless they are very slow. In another datacenter, a kept reader does not matter.
    pub fn by_proximity(
        &self,
        replicas: &[TabletReplica],
        latencies: &Latencies,
        kept: &[HostId],
        now: Instant,
    ) -> SmallVec<[TabletReplica; 4]> {
        let mut alive: SmallVec<[TabletReplica; 4]> =
            replicas.iter().copied().filter(|replica| self.is_alive(replica.host)).collect();
        let of = |host: HostId| latencies.of(host, now);
        let best = alive.iter().filter_map(|replica| of(replica.host)).min();
        let is_slower = |host, margin| best.zip(of(host)).is_some_and(|(best, own)| own > best * 3 + margin);
        alive.sort_by_key(|replica| {
            let distance = self.distance(replica.host);
            let is_slow = distance > 0 && is_slower(replica.host, SLOW_MARGIN);
            let has_kept = kept.contains(&replica.host) && !(is_slow && is_slower(replica.host, KEPT_MARGIN));
            (distance == ELSEWHERE, !has_kept, distance, is_slow)
        });
        alive
    }
}

/// The distance of a node in another datacenter.
const ELSEWHERE: u8 = 3;

/// A node is slow only if its response time exceeds three times the fastest one's by this much.
const SLOW_MARGIN: Duration = Duration::from_millis(2);
/// The same margin for a node that may have the querier. It is larger, because a new reader on
/// another node takes time as well. A node that does not respond exceeds it after its first
/// timeout.
const KEPT_MARGIN: Duration = Duration::from_millis(200);

/// Recent response times of nodes.
#[derive(Clone, Debug, Default)]
pub struct Latencies {
    /// Smoothed response time in microseconds, and when the newest response was counted.
    by_host: HashMap<HostId, (u64, Instant)>,
}

/// The newest response has the weight 1 / `SMOOTHING`.
const SMOOTHING: u64 = 8;
/// Older response times are ignored. Otherwise a node that was slow once would never be asked
/// again, and would count as slow for ever.
const FORGOTTEN: Duration = Duration::from_secs(10);
/// A response that had not arrived after this time says nothing about a node whose response time is
/// not known.
const SHORTEST_WAIT: Duration = Duration::from_millis(1);

impl Latencies {
    /// Counts a response that arrived `now`.
    pub fn add(&mut self, host: HostId, took: Duration, now: Instant) {
        let took = took.as_micros() as u64;
        let before = self.recent(host, now).unwrap_or(took);
        self.by_host.insert(host, ((before * (SMOOTHING - 1) + took) / SMOOTHING, now));
    }

    /// Counts a response that had not arrived after this time. A time below the recent response
    /// time says nothing: the request had little time left.
    pub fn add_longer(&mut self, host: HostId, waited: Duration, now: Instant) {
        if waited > self.of(host, now).unwrap_or(SHORTEST_WAIT) {
            self.add(host, waited, now);
        }
    }

    /// The recent response time of a node, if there is any.
    pub fn of(&self, host: HostId, now: Instant) -> Option<Duration> {
        self.recent(host, now).map(Duration::from_micros)
    }

    fn recent(&self, host: HostId, now: Instant) -> Option<u64> {
        let (micros, at) = self.by_host.get(&host)?;
        (now.saturating_duration_since(*at) < FORGOTTEN).then_some(*micros)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uuid::Uuid;

    fn host(n: u8) -> HostId {
        HostId(Uuid::from_u128(n.into()))
    }

    fn replica(n: u8) -> TabletReplica {
        TabletReplica { host: host(n), shard: 0 }
    }

    fn view(n: u8, datacenter: &str, rack: &str) -> NodeView {
        NodeView {
            host: host(n),
            datacenter: datacenter.into(),
            rack: rack.into(),
            address: [127, 0, 0, n].into(),
            down_since: None,
        }
    }

    fn nodes() -> Nodes {
        let far_away = view(5, "b", "r1");
        let mut dead = view(6, "a", "r1");
        dead.down_since = Some(rt::time::now());
        Nodes::new(
            host(1),
            &[view(1, "a", "r1"), view(2, "a", "r2"), view(3, "a", "r1"), view(4, "a", "r2"), far_away, dead],
        )
    }

    fn order(nodes: &Nodes, latencies: &Latencies, now: Instant) -> Vec<u128> {
        order_with(nodes, latencies, &[], now)
    }

    fn order_with(nodes: &Nodes, latencies: &Latencies, kept: &[u8], now: Instant) -> Vec<u128> {
        let kept: Vec<_> = kept.iter().copied().map(host).collect();
        let replicas: Vec<_> = (2..=7).rev().chain([1]).map(replica).collect();
        nodes.by_proximity(&replicas, latencies, &kept, now).iter().map(|replica| replica.host.0.as_u128()).collect()
    }

    #[test]
    fn near_nodes_come_first_and_nodes_that_are_down_never() {
        assert_eq!(order(&nodes(), &Latencies::default(), rt::time::now()), [1, 3, 4, 2, 5]);
    }

    #[test]
    fn slow_nodes_come_last_among_equally_near_ones() {
        let (mut latencies, now) = (Latencies::default(), rt::time::now());
        for (n, millis) in [(1, 50), (2, 1), (3, 1), (4, 30), (5, 9)] {
            latencies.add(host(n), Duration::from_millis(millis), now);
        }
        assert_eq!(order(&nodes(), &latencies, now), [1, 3, 2, 4, 5], "but this node stays the nearest");
        assert_eq!(order(&nodes(), &latencies, now + FORGOTTEN), [1, 3, 4, 2, 5], "it is given another chance");
        for _ in 0..100 {
            latencies.add(host(4), Duration::from_millis(1), now);
        }
        assert_eq!(order(&nodes(), &latencies, now), [1, 3, 4, 2, 5], "it has recovered");
    }

    #[test]
    fn nodes_with_kept_readers_come_first_in_their_datacenter() {
        let (mut latencies, now) = (Latencies::default(), rt::time::now());
        let order = |latencies: &Latencies, kept: &[u8]| order_with(&nodes(), latencies, kept, now);
        assert_eq!(order(&latencies, &[4]), [4, 1, 3, 2, 5]);
        assert_eq!(order(&latencies, &[2, 1]), [1, 2, 3, 4, 5], "near ones first among them, too");
        assert_eq!(order(&latencies, &[5]), [1, 3, 4, 2, 5], "it is in another datacenter");
        assert_eq!(order(&latencies, &[6, 7]), [1, 3, 4, 2, 5], "they are dead, or gone");
        for (n, millis) in [(2, 1), (3, 1), (4, 30)] {
            latencies.add(host(n), Duration::from_millis(millis), now);
        }
        assert_eq!(order(&latencies, &[4]), [4, 1, 3, 2, 5], "it is slow, and worth to be waited for");
        latencies.add(host(4), Duration::from_secs(5), now);
        assert_eq!(order(&latencies, &[4, 2]), [2, 1, 3, 4, 5], "too slow");
        assert_eq!(order_with(&nodes(), &latencies, &[4], now + FORGOTTEN), [4, 1, 3, 2, 5], "that was long ago");
        latencies.add(host(4), Duration::from_millis(1), now + FORGOTTEN);
        assert_eq!(latencies.of(host(4), now + FORGOTTEN), Some(Duration::from_millis(1)), "and counts no more");
    }

    #[test]
    fn factors_are_numbered_as_datacenters_are() {
        let nodes = nodes();
        let options = |entries: &[(&str, &str)]| -> OptionMap {
            entries.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect()
        };
        let network = "org.apache.cassandra.locator.NetworkTopologyStrategy";
        let factors = nodes.factors(&options(&[("class", network), ("b", "1"), ("a", "3")]), &[]);
        assert_eq!((factors.total, factors.of(DatacenterId(0)), factors.of(DatacenterId(1))), (4, 3, 1));
        let copies = [5, 1, 2].map(|n| nodes.candidate(replica(n), false));
        let simple = nodes.factors(&options(&[("class", SIMPLE), (FACTOR, "3")]), &copies);
        assert_eq!((simple.total, simple.of(DatacenterId(0)), simple.of(DatacenterId(1))), (3, 2, 1));
        let racks = nodes.factors(&options(&[("class", network), ("a", "['r1', 'r2']"), ("b", "1")]), &[]);
        assert_eq!((racks.total, racks.of(DatacenterId(0)), racks.of(DatacenterId(1))), (3, 2, 1));
        let unknown = nodes.factors(&options(&[("class", network), ("a", "3"), ("gone", "3")]), &[]);
        assert_eq!((unknown.total, unknown.of(DatacenterId(0))), (6, 3));
    }

    #[test]
    fn levels_count_the_copies_that_a_tablet_still_has() {
        let nodes = nodes();
        let options = |class: &str, name: &str| -> OptionMap {
            [("class", class), (name, "1")].map(|(name, value)| (name.to_owned(), value.to_owned())).into()
        };
        let copies = [1, 2, 5].map(|n| nodes.candidate(replica(n), false));
        for lowered in [options("NetworkTopologyStrategy", "a"), options(SIMPLE, FACTOR)] {
            let factors = nodes.factors(&lowered, &copies);
            assert_eq!((factors.total, factors.of(DatacenterId(0)), factors.of(DatacenterId(1))), (3, 2, 1));
        }
        let raised = nodes.factors(&options("NetworkTopologyStrategy", "b"), &copies[..1]);
        assert_eq!((raised.total, raised.of(DatacenterId(0)), raised.of(DatacenterId(1))), (1, 1, 1));
        let unknown = [1, 2, 9].map(|n| nodes.candidate(replica(n), false));
        let factors = nodes.factors(&options("NetworkTopologyStrategy", "a"), &unknown);
        assert_eq!((factors.total, factors.by_datacenter.len()), (3, 1), "the place of node 9 is not known");
    }

    #[test]
    fn an_unknown_node_is_not_alive() {
        let nodes = nodes();
        assert!(nodes.is_alive(host(1)) && !nodes.is_alive(host(6)) && !nodes.is_alive(host(7)));
        assert!(
            nodes.down_for(host(6), rt::time::now()).is_some() && nodes.down_for(host(7), rt::time::now()).is_none()
        );
        let alone = Nodes::new(host(9), &[]);
        assert!(alone.is_alive(host(9)));
        assert_eq!(alone.datacenter(host(9)), alone.own_datacenter());
    }

    #[test]
    fn a_timeout_counts_only_if_it_is_longer_than_the_response_time() {
        let (mut latencies, now) = (Latencies::default(), rt::time::now());
        latencies.add_longer(host(2), Duration::ZERO, now);
        assert_eq!(latencies.of(host(2), now), None, "the request had no time");
        latencies.add_longer(host(2), Duration::from_secs(5), now);
        let slow = latencies.of(host(2), now).expect("it is known");
        for _ in 0..200 {
            latencies.add_longer(host(2), Duration::from_millis(3), now);
        }
        assert_eq!(latencies.of(host(2), now), Some(slow));
    }
}
