//! Builds the replicas of removed nodes on other nodes, from all replicas that are left: one alone
//! may lack what a majority has acknowledged.

use super::{Work, hosts, movable, moved, stuck_table};
use crate::metadata::Metadata;
use crate::tablets::TabletReplica;
use crate::tablets::allocator::Host;
use crate::tablets::transition::{Set, TransitionKind};
use model::id::HostId;
use std::collections::BTreeSet;

/// Plans the next replicas. A tablet waits while another node with a replica is down.
pub(super) fn plan(work: &mut Work<'_>) {
    let metadata = work.metadata;
    if metadata.topology.nodes().all(|node| node.state.is_member()) {
        return;
    }
    let is_member = |host: HostId| metadata.topology.is_member(host);
    for table in work.tables() {
        for tablet in 0..table.tablets.count() {
            let replicas = table.tablets.replicas(tablet);
            let Some(place) = replicas.iter().position(|replica| !is_member(replica.host)) else { continue };
            let can_copy = replicas.iter().any(|replica| is_member(replica.host));
            if !can_copy
                || !work.is_idle(table, tablet)
                || replicas.iter().any(|replica| work.down.contains(&replica.host))
            {
                continue;
            }
            let choose = |hosts: &mut [Host]| moved(metadata, table, replicas, place, hosts);
            work.place(table, tablet, TransitionKind::Rebuild, choose);
        }
    }
}

/// Refuses the removal of a node if a tablet has no other replica, or no other node can take the
/// replica. The error names the table.
pub fn check_can_remove(metadata: &Metadata, removed: HostId, down: &BTreeSet<HostId>) -> Result<(), String> {
    check_has_others(metadata, removed)?;
    let mut hosts = hosts(metadata, down);
    hosts.retain(|host| host.id != removed);
    let Some(table) = stuck_table(metadata, removed, &mut hosts) else { return Ok(()) };
    let (keyspace, name) = (&table.schema.keyspace, &table.schema.name);
    Err(format!(
        "no other node can take a replica of table {keyspace}.{name}. Add a node first. Or exclude the \
         node (`messina admin excludenode`): its replicas are then built once a node can take them"
    ))
}

/// Refuses to give up a node that has the only replica of a tablet. The error names the table.
pub(crate) fn check_has_others(metadata: &Metadata, removed: HostId) -> Result<(), String> {
    let is_member = |host: HostId| metadata.topology.is_member(host);
    for table in movable(metadata) {
        for tablet in 0..table.tablets.count() {
            let has_it = table.tablets.holders(tablet).any(|replica| replica.host == removed);
            let is_left = |replicas: &[TabletReplica]| {
                replicas.iter().any(|replica| replica.host != removed && is_member(replica.host))
            };
            let old = table.tablets.replicas(tablet);
            let is_kept = match table.tablets.transition(tablet) {
                // The old replicas serve no more, and may lack the last writes.
                Some(moving) if moving.stage.reads() == Set::New && moving.stage.given_up().is_none() => {
                    is_left(&moving.new_replicas)
                }
                _ => is_left(old),
            };
            if has_it && !is_kept {
                let (keyspace, name) = (&table.schema.keyspace, &table.schema.name);
                return Err(format!(
                    "the node has the only replica of a tablet of table {keyspace}.{name}: start the node again, or drop the table"
                ));
            }
        }
    }
    Ok(())
}
