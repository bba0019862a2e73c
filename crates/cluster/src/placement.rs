//! Placement of a new table: chooses the replicas of its tablets from the keyspace's replication
//! options, the table's options and the current nodes. Pure.

use crate::metadata::{KeyspaceDefinition, Metadata, NodeInfo};
use crate::tablets::allocator::{self, Host};
use crate::tablets::count::{self, Home, TabletCountHints};
use crate::tablets::strategy::{Replication, StrategyError, racks_by_datacenter};
use crate::tablets::{TabletMap, allocate, initial_count};
use std::collections::BTreeMap;

/// The nodes that can receive new tablets, with their load. If no member is in state `Normal` yet,
/// the result is this node alone.
pub fn hosts(metadata: &Metadata, node: &NodeInfo) -> Vec<Host> {
    let host = |id, datacenter: &String, rack: &String, shards| Host {
        id,
        datacenter: datacenter.clone(),
        rack: rack.clone(),
        load: metadata.load(id, shards),
    };
    let mut hosts: Vec<Host> = metadata
        .topology
        .owners()
        .map(|node| host(node.host, &node.datacenter, &node.rack, usize::from(node.shards).max(1)))
        .collect();
    if hosts.is_empty() {
        hosts.push(host(node.host_id, &node.datacenter, &node.rack, node.shards));
    }
    hosts
}

/// The racks of each datacenter, with the number of nodes in each rack.
pub fn racks(hosts: &[Host]) -> BTreeMap<&str, BTreeMap<&str, u32>> {
    let mut racks: BTreeMap<&str, BTreeMap<&str, u32>> = BTreeMap::new();
    for host in hosts {
        *racks.entry(&host.datacenter).or_default().entry(&host.rack).or_default() += 1;
    }
    racks
}

/// Chooses the replicas of each tablet of a new table of a keyspace.
pub fn place(
    metadata: &Metadata,
    node: &NodeInfo,
    keyspace: &KeyspaceDefinition,
    hints: TabletCountHints,
) -> Result<TabletMap, StrategyError> {
    let mut hosts = hosts(metadata, node);
    if let [only] = &hosts[..]
        && keyspace.replication_factor() > 0
    {
        // A single node holds one replica of each tablet, whatever the replication factor is. The
        // factor takes effect for tables that are created once there are more nodes.
        let shards = only.load.len() as u32;
        let per_shard = (hints.per_shard.unwrap_or(0.0).max(0.0) * f64::from(shards)).ceil() as u32;
        let count = initial_count(shards, 1, hints.at_least.max(per_shard), hints.at_most);
        return Ok(allocate(count, only.id, &only.load));
    }
    let datacenters: Vec<String> = racks(&hosts).keys().map(|name| (*name).to_owned()).collect();
    let replication = Replication::of(&keyspace.replication, datacenters.iter().map(String::as_str))?;
    replication.check(&allocator::nodes_by_datacenter(&hosts))?;
    let racks = racks_by_datacenter(&keyspace.replication);
    let homes: Vec<Home> = match &replication {
        Replication::Simple(factor) => vec![home(&hosts, *factor, |_| true)],
        Replication::ByDatacenter(factors) => factors
            .iter()
            .map(|(datacenter, factor)| {
                let listed = |host: &Host| racks.get(datacenter).is_none_or(|racks| racks.contains(&host.rack));
                home(&hosts, *factor, |host| host.datacenter == *datacenter && listed(host))
            })
            .collect(),
    };
    allocator::place(count::for_new_table(&homes, hints), &replication, &racks, &mut hosts)
}

fn home(hosts: &[Host], factor: u32, is_there: impl Fn(&Host) -> bool) -> Home {
    let mut home = Home { shards: 0, factor, held: 0 };
    for host in hosts.iter().filter(|host| is_there(host)) {
        home.shards += host.load.len() as u32;
        home.held += host.load.iter().sum::<u32>();
    }
    home
}
