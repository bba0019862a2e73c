//! Why replicas of a node that leaves or was removed cannot move or be rebuilt now.

use super::{hosts, movable, moved};
use crate::metadata::{Metadata, Table};
use model::id::HostId;
use std::collections::BTreeSet;

/// Why replicas of a node cannot move to, or be built on, other nodes now, and the remedy. `None`
/// if nothing prevents it.
pub fn waits_for(metadata: &Metadata, host: HostId, down: &BTreeSet<HostId>) -> Option<String> {
    let mut hosts = hosts(metadata, down);
    hosts.retain(|known| known.id != host);
    let is_member = metadata.topology.is_member(host);
    if is_member && down.contains(&host) {
        return Some(format!("node {host} itself is down: start it, or remove it (`messina admin removenode`)"));
    }
    for table in movable(metadata) {
        for tablet in 0..table.tablets.count() {
            let mut holders = table.tablets.holders(tablet);
            if !holders.any(|replica| replica.host == host) {
                continue;
            }
            let replicas = table.tablets.replicas(tablet);
            let is_moving = table.tablets.transition(tablet).is_some();
            // A removed replica is built from all others, and a move waits for all of them.
            if let Some(needs) = needs_node(table, tablet, down).filter(|_| is_moving || !is_member) {
                return Some(needs);
            }
            let place = replicas.iter().position(|replica| replica.host == host);
            let is_stuck = place.is_some_and(|place| moved(metadata, table, replicas, place, &mut hosts).is_none());
            if !is_moving && is_stuck {
                let (keyspace, name) = (&table.schema.keyspace, &table.schema.name);
                return Some(format!(
                    "no other node can take a replica of table {keyspace}.{name}: add a node, or lower the replication factor"
                ));
            }
        }
    }
    None
}

/// Why the move of a tablet does not continue, and the remedy. `None` if nothing prevents it.
pub fn move_waits_for(table: &Table, tablet: u32, down: &BTreeSet<HostId>) -> Option<String> {
    table.tablets.transition(tablet)?;
    needs_node(table, tablet, down)
}

/// The node that is down and has or receives a replica of a tablet, and the way out.
fn needs_node(table: &Table, tablet: u32, down: &BTreeSet<HostId>) -> Option<String> {
    let dead = table.tablets.holders(tablet).find(|replica| down.contains(&replica.host))?.host;
    let (keyspace, name) = (&table.schema.keyspace, &table.schema.name);
    Some(format!(
        "node {dead}, which is down, takes part in the move of a tablet of table {keyspace}.{name}. Start it, \
         or, if it will not come back, run `messina admin excludenode {dead}`"
    ))
}
