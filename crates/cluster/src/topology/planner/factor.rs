//! Adds replicas to tablets that have fewer than their keyspace asks for, removes replicas from
//! tablets that have more, and moves replicas to the racks that the keyspace lists. Causes are
//! ALTER KEYSPACE, or too few nodes when a table was created. Without a pending ALTER KEYSPACE,
//! this is part of balancing: an operator who moves replicas turns it off.

use super::Work;
use crate::metadata::{Keyspace, KeyspaceDefinition, Metadata, Op, Table};
use crate::tablets::TabletReplica;
use crate::tablets::allocator::{Host, add_replica};
use crate::tablets::strategy::{Replication, racks_by_datacenter};
use crate::tablets::transition::{Replicas, TransitionKind};
use model::options::OptionMap;
use std::collections::{BTreeMap, BTreeSet};

/// The next change of a tablet's replicas.
enum Change {
    /// One more, in this datacenter if given.
    Add(Option<String>),
    /// The one at this place moves to another rack of this datacenter.
    Move(usize, String),
    /// Without the one at this place.
    Remove(usize),
}

/// The replicas that a table should have.
struct Target {
    replication: Replication,
    /// The listed racks, by datacenter: each has one replica.
    racks: BTreeMap<String, Vec<String>>,
}

/// Plans the next replicas. A tablet waits while a node with a replica is down or removed.
pub(super) fn plan(work: &mut Work<'_>) {
    let metadata = work.metadata;
    for table in work.tables() {
        let is_asked = metadata.keyspace(&table.schema.keyspace).is_some_and(|own| own.wanted_replication.is_some());
        if !is_asked && !metadata.topology.is_balancing() {
            continue;
        }
        let Some(target) = Target::of(metadata, table) else { continue };
        for tablet in 0..table.tablets.count() {
            let replicas = table.tablets.replicas(tablet);
            if !is_asked && replicas.len() as u32 == target.replication.total() || !work.is_idle(table, tablet) {
                continue;
            }
            let Some(change) = target.next_change(metadata, replicas) else { continue };
            let is_there = |replica: &TabletReplica| {
                metadata.topology.is_member(replica.host) && !work.down.contains(&replica.host)
            };
            if !replicas.iter().all(is_there) {
                continue;
            }
            let kind = match change {
                Change::Move(place, _) if !work.outgoing.has_room(replicas[place]) => continue,
                Change::Move(..) => TransitionKind::Migration,
                Change::Add(_) | Change::Remove(_) => TransitionKind::Rebuild,
            };
            work.place(table, tablet, kind, |hosts| {
                let mut new = Replicas::from_slice(replicas);
                match change {
                    Change::Add(datacenter) => {
                        new.push(target.added(metadata, replicas, datacenter.as_deref(), hosts)?);
                    }
                    Change::Move(place, datacenter) => {
                        new.remove(place);
                        new.insert(place, target.added(metadata, &new, Some(&datacenter), hosts)?);
                    }
                    Change::Remove(place) => drop(new.remove(place)),
                }
                Some(new)
            });
        }
    }
}

/// Whether all tablets of a keyspace have the replicas that its replication requires, and none
/// moves.
fn has_replicas(metadata: &Metadata, keyspace: &Keyspace) -> bool {
    keyspace.tables.values().all(|table| {
        let Some(target) = Target::of(metadata, table) else { return true };
        let is_there = |tablet| target.next_change(metadata, table.tablets.replicas(tablet)).is_none();
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
pub(super) fn options<'a>(metadata: &'a Metadata, table: &Table) -> Option<&'a OptionMap> {
    let keyspace = metadata.keyspace(&table.schema.keyspace)?;
    Some(keyspace.wanted_replication.as_ref().unwrap_or(&keyspace.definition.replication))
}

impl Target {
    /// `None` if the options of the table's keyspace cannot be understood.
    fn of(metadata: &Metadata, table: &Table) -> Option<Target> {
        let datacenters: BTreeSet<&str> = metadata.topology.owners().map(|node| &*node.datacenter).collect();
        let options = options(metadata, table)?;
        Some(Target { replication: Replication::of(options, datacenters).ok()?, racks: racks_by_datacenter(options) })
    }

    /// The next change that brings a tablet nearer to these replicas. `None` if it has them.
    fn next_change(&self, metadata: &Metadata, replicas: &[TabletReplica]) -> Option<Change> {
        let datacenter = |replica: &TabletReplica| metadata.topology.node(replica.host).map(|node| &*node.datacenter);
        match &self.replication {
            Replication::Simple(factor) => {
                let count = replicas.len() as u32;
                if count < *factor {
                    return Some(Change::Add(None));
                }
                self.surplus(metadata, replicas, |_| true, *factor)
            }
            Replication::ByDatacenter(factors) => {
                let count =
                    |name: &str| replicas.iter().filter(|replica| datacenter(replica) == Some(name)).count() as u32;
                // First those that are missing: the others are sources.
                if let Some((name, _)) = factors.iter().find(|(name, factor)| count(name) < **factor) {
                    return Some(Change::Add(Some(name.clone())));
                }
                let known: BTreeSet<&str> = replicas.iter().filter_map(datacenter).collect();
                let moved = known.iter().find_map(|name| self.moved(metadata, replicas, name));
                moved.or_else(|| {
                    known.into_iter().find_map(|name| {
                        let factor = factors.get(name).copied().unwrap_or(0);
                        self.surplus(metadata, replicas, |replica| datacenter(replica) == Some(name), factor)
                    })
                })
            }
        }
    }

    /// A replica in this datacenter that moves to a listed rack without one.
    fn moved(&self, metadata: &Metadata, replicas: &[TabletReplica], datacenter: &str) -> Option<Change> {
        let is_used = |rack: &&String| replicas.iter().any(|replica| is_in(metadata, replica, datacenter, rack));
        if self.racks.get(datacenter)?.iter().all(|rack| is_used(&rack)) {
            return None;
        }
        let is_there = |replica: &TabletReplica| {
            metadata.topology.node(replica.host).is_some_and(|node| node.datacenter == datacenter)
        };
        let misplaced = |place: &usize| is_there(&replicas[*place]) && !self.is_placed(metadata, replicas, *place);
        let place = (0..replicas.len()).rev().find(misplaced)?;
        Some(Change::Move(place, datacenter.to_owned()))
    }

    /// Whether the rack of the replica at this place should have it: the datacenter lists no racks,
    /// or lists this one, and no earlier replica is in the rack.
    fn is_placed(&self, metadata: &Metadata, replicas: &[TabletReplica], place: usize) -> bool {
        let Some(node) = metadata.topology.node(replicas[place].host) else { return true };
        self.racks.get(&node.datacenter).is_none_or(|racks| {
            let is_same = |other: &TabletReplica| is_in(metadata, other, &node.datacenter, &node.rack);
            racks.contains(&node.rack) && !replicas[..place].iter().any(is_same)
        })
    }

    /// Removes a replica beyond `factor` of those that count: one outside of the listed racks, or
    /// in the rack that has the most, the last of the list. The last replica of a tablet stays.
    fn surplus(
        &self,
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
        let order = |place: &usize| (!self.is_placed(metadata, replicas, *place), in_rack(place), *place);
        places.iter().copied().max_by_key(order).map(Change::Remove)
    }

    /// One more replica, in this datacenter if given, which adds to the load of its host. `None` if
    /// no host can take it.
    fn added(
        &self,
        metadata: &Metadata,
        replicas: &[TabletReplica],
        datacenter: Option<&str>,
        hosts: &mut [Host],
    ) -> Option<TabletReplica> {
        let racks = datacenter.and_then(|name| self.racks.get(name));
        let is_taken = |host: &Host| replicas.iter().any(|one| is_in(metadata, one, &host.datacenter, &host.rack));
        let takes_part = |host: &Host| {
            let is_listed = racks.is_none_or(|racks| racks.contains(&host.rack) && !is_taken(host));
            datacenter.is_none_or(|name| name == host.datacenter) && is_listed
        };
        add_replica(hosts, takes_part, replicas)
    }
}

/// Whether a replica is in this rack.
fn is_in(metadata: &Metadata, replica: &TabletReplica, datacenter: &str, rack: &str) -> bool {
    let node = metadata.topology.node(replica.host);
    node.is_some_and(|node| node.datacenter == datacenter && node.rack == rack)
}
