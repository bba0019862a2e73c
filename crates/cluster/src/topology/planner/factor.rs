//! Adds replicas to tablets that have fewer than their keyspace asks for, and removes replicas from
//! tablets that have more. Causes are ALTER KEYSPACE, or too few nodes when a table was created.
//! Without a pending ALTER KEYSPACE, this is part of balancing: an operator who moves replicas
//! turns it off.

use super::Work;
use crate::metadata::{Keyspace, KeyspaceDefinition, Metadata, Op, Table};
use crate::tablets::TabletReplica;
use crate::tablets::allocator::{Host, add_replica};
use crate::tablets::strategy::{Replication, racks_of};
use crate::tablets::transition::{Replicas, TransitionKind};
use model::options::OptionMap;
use std::collections::BTreeSet;

/// The next change of a tablet's replicas.
enum Change {
    /// One more, in this datacenter if given.
    Add(Option<String>),
    /// Without the one at this place.
    Remove(usize),
}

/// Plans the next replicas. A tablet waits while a node with a replica is down or removed.
pub(super) fn plan(work: &mut Work<'_>) {
    let metadata = work.metadata;
    for table in work.tables() {
        let is_asked = metadata.keyspace(&table.schema.keyspace).is_some_and(|own| own.wanted_replication.is_some());
        if !is_asked && !metadata.topology.is_balancing() {
            continue;
        }
        let Some(replication) = target(metadata, table) else { continue };
        for tablet in 0..table.tablets.count() {
            let replicas = table.tablets.replicas(tablet);
            if !is_asked && replicas.len() as u32 == total(&replication) || !work.is_idle(table, tablet) {
                continue;
            }
            let Some(change) = next_change(metadata, &replication, replicas) else { continue };
            let is_there = |replica: &TabletReplica| {
                metadata.topology.is_member(replica.host) && !work.down.contains(&replica.host)
            };
            if !replicas.iter().all(is_there) {
                continue;
            }
            work.place(table, tablet, TransitionKind::Rebuild, |hosts| match change {
                Change::Add(datacenter) => added(metadata, table, replicas, datacenter.as_deref(), hosts),
                Change::Remove(place) => {
                    let mut rest = Replicas::from_slice(replicas);
                    rest.remove(place);
                    Some(rest)
                }
            });
        }
    }
}

/// Whether all tablets of a keyspace have the replicas that it asks for, and none moves.
fn has_replicas(metadata: &Metadata, keyspace: &Keyspace) -> bool {
    keyspace.tables.values().all(|table| {
        let Some(replication) = target(metadata, table) else { return true };
        let is_there = |tablet| next_change(metadata, &replication, table.tablets.replicas(tablet)).is_none();
        table.tablets.transitions().next().is_none() && (0..table.tablets.count()).all(is_there)
    })
}

/// The operations that give keyspaces the replication that they wanted, and have now.
pub fn replication_is_due(metadata: &Metadata) -> Vec<Op> {
    let mut ops = Vec::new();
    for keyspace in metadata.keyspaces.values() {
        let Some(replication) = keyspace.wanted_replication.clone() else { continue };
        if !has_replicas(metadata, keyspace) {
            continue;
        }
        ops.push(Op::PutKeyspace(KeyspaceDefinition { replication, ..keyspace.definition.clone() }));
        ops.push(Op::PutWantedReplication { keyspace: keyspace.definition.name.clone(), replication: None });
    }
    ops
}

/// The options that decide about a table's replicas.
fn options<'a>(metadata: &'a Metadata, table: &Table) -> Option<&'a OptionMap> {
    let keyspace = metadata.keyspace(&table.schema.keyspace)?;
    Some(keyspace.wanted_replication.as_ref().unwrap_or(&keyspace.definition.replication))
}

/// The numbers of replicas that a table should have. `None` if its keyspace cannot be understood.
fn target(metadata: &Metadata, table: &Table) -> Option<Replication> {
    let datacenters: BTreeSet<&str> = metadata.topology.owners().map(|node| &*node.datacenter).collect();
    Replication::of(options(metadata, table)?, datacenters).ok()
}

fn total(replication: &Replication) -> u32 {
    match replication {
        Replication::Simple(factor) => *factor,
        Replication::ByDatacenter(factors) => factors.values().sum(),
    }
}

/// The next change that brings a tablet nearer to its replication. `None` if it has it.
fn next_change(metadata: &Metadata, replication: &Replication, replicas: &[TabletReplica]) -> Option<Change> {
    let datacenter = |replica: &TabletReplica| metadata.topology.node(replica.host).map(|node| &*node.datacenter);
    match replication {
        Replication::Simple(factor) => {
            let count = replicas.len() as u32;
            if count < *factor {
                return Some(Change::Add(None));
            }
            surplus(metadata, replicas, |_| true, *factor)
        }
        Replication::ByDatacenter(factors) => {
            let count = |name: &str| replicas.iter().filter(|replica| datacenter(replica) == Some(name)).count() as u32;
            // First those that are missing: the others are sources.
            if let Some((name, _)) = factors.iter().find(|(name, factor)| count(name) < **factor) {
                return Some(Change::Add(Some(name.clone())));
            }
            let known: BTreeSet<&str> = replicas.iter().filter_map(datacenter).collect();
            known.into_iter().find_map(|name| {
                let factor = factors.get(name).copied().unwrap_or(0);
                surplus(metadata, replicas, |replica| datacenter(replica) == Some(name), factor)
            })
        }
    }
}

/// Removes a replica beyond `factor` of those that count: one in the rack that has the most, the
/// last of the list. The last replica of a tablet stays.
fn surplus(
    metadata: &Metadata,
    replicas: &[TabletReplica],
    counts: impl Fn(&TabletReplica) -> bool,
    factor: u32,
) -> Option<Change> {
    let places: Vec<usize> = (0..replicas.len()).filter(|place| counts(&replicas[*place])).collect();
    if places.len() as u32 <= factor || replicas.len() == 1 {
        return None;
    }
    let rack = |place: &usize| metadata.topology.node(replicas[*place].host).map(|node| &*node.rack);
    let in_rack = |place: &usize| places.iter().filter(|other| rack(other) == rack(place)).count();
    places.iter().copied().max_by_key(|place| (in_rack(place), *place)).map(Change::Remove)
}

/// The replicas with one more, which adds to the load of its host. `None` if no host can take it.
fn added(
    metadata: &Metadata,
    table: &Table,
    replicas: &[TabletReplica],
    datacenter: Option<&str>,
    hosts: &mut [Host],
) -> Option<Replicas> {
    let racks = datacenter.and_then(|name| racks_of(options(metadata, table)?.get(name)?));
    let topology = &metadata.topology;
    let is_taken = |rack: &str| {
        let in_rack = |replica: &TabletReplica| {
            topology.node(replica.host).is_some_and(|node| Some(&*node.datacenter) == datacenter && node.rack == rack)
        };
        replicas.iter().any(in_rack)
    };
    let takes_part = |host: &Host| {
        let is_listed = racks.as_ref().is_none_or(|racks| racks.contains(&host.rack) && !is_taken(&host.rack));
        datacenter.is_none_or(|name| name == host.datacenter) && is_listed
    };
    let new = add_replica(hosts, takes_part, replicas)?;
    Some(replicas.iter().copied().chain([new]).collect())
}
