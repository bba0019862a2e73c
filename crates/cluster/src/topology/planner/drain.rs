//! Moves all tablets away from leaving nodes. As for new tables, the node whose rack has the fewest
//! replicas of the tablet is chosen, then the one with the fewest tablets per shard.

use super::{Work, hosts, lists_rack_of, moved, stuck_table};
use crate::metadata::Metadata;
use crate::tablets::allocator::Host;
use crate::tablets::transition::TransitionKind;
use crate::topology::NodeState;
use model::id::HostId;
use std::collections::BTreeSet;

/// Plans the next moves.
pub(super) fn plan(work: &mut Work<'_>) {
    let topology = &work.metadata.topology;
    let leaving: BTreeSet<HostId> = topology
        .members()
        .filter(|node| node.state == NodeState::Leaving && !work.down.contains(&node.host))
        .map(|node| node.host)
        .collect();
    for table in work.tables() {
        for tablet in 0..table.tablets.count() {
            let replicas = table.tablets.replicas(tablet);
            let Some(place) = replicas.iter().position(|replica| leaving.contains(&replica.host)) else { continue };
            if work.is_idle(table, tablet) && work.outgoing.has_room(replicas[place]) {
                let metadata = work.metadata;
                let choose = |hosts: &mut [Host]| moved(metadata, table, replicas, place, hosts);
                work.place(table, tablet, TransitionKind::Migration, choose);
            }
        }
    }
}

/// Refuses to let a node leave if one of its tablets has no other place. The error names the table.
pub fn check_can_leave(metadata: &Metadata, leaving: HostId, down: &BTreeSet<HostId>) -> Result<(), String> {
    let mut hosts = hosts(metadata, down);
    hosts.retain(|host| host.id != leaving);
    if hosts.is_empty() {
        return Err(match metadata.topology.owners().any(|node| node.host != leaving) {
            true => "the other nodes are down: no node can take its tablets".to_owned(),
            false => "no other node can take its tablets".to_owned(),
        });
    }
    check_listed_racks(metadata, leaving, &hosts)?;
    let Some(table) = stuck_table(metadata, leaving, &mut hosts) else { return Ok(()) };
    let (keyspace, name) = (&table.schema.keyspace, &table.schema.name);
    let down = if down.is_empty() { "" } else { ", start the nodes that are down" };
    Err(format!(
        "no other node can take a replica of table {keyspace}.{name}: add a node where the keyspace needs one{down}, or \
         lower its replication factor"
    ))
}

/// Refuses to let the last node of a rack leave that a keyspace lists, also one without tables.
fn check_listed_racks(metadata: &Metadata, leaving: HostId, others: &[Host]) -> Result<(), String> {
    let Some(node) = metadata.topology.node(leaving) else { return Ok(()) };
    if others.iter().any(|host| host.datacenter == node.datacenter && host.rack == node.rack) {
        return Ok(());
    }
    let listing = metadata.keyspaces.values().find(|keyspace| {
        let wanted = keyspace.wanted_replication.as_ref();
        let mut all = std::iter::once(&keyspace.definition.replication).chain(wanted);
        all.any(|options| lists_rack_of(options, node))
    });
    let Some(keyspace) = listing else { return Ok(()) };
    Err(format!(
        "keyspace {} lists rack {} of datacenter {}, and no other node of this rack is up: remove the rack from the list \
         (ALTER KEYSPACE), or add a node to the rack",
        keyspace.definition.name, node.rack, node.datacenter
    ))
}
