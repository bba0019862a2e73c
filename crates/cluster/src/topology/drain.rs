//! Which tablets move next from nodes that leave the cluster. Pure.
//!
//! A replica moves to a node that has none of its tablet: in the same datacenter, and in the same
//! rack if the keyspace lists racks. With `SimpleStrategy` any node will do. As for new tables, the
//! node whose rack has the fewest replicas of the tablet is chosen, then the one with the fewest
//! tablets per shard. A shard sends and receives a few tablets at a time, so that the others serve
//! at full speed.

use super::{Node, NodeState};
use crate::metadata::{Metadata, Table, builtin};
use crate::tablets::TabletReplica;
use crate::tablets::allocator::{Host, add_replica};
use crate::tablets::strategy::{SIMPLE, racks_of, short_class};
use crate::tablets::transition::Replicas;
use model::id::{HostId, TableId};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// Tablets that a shard sends, and that it receives, at a time.
const AT_ONCE: usize = 2;

/// A replica that moves to another node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Move {
    /// The table.
    pub table: TableId,
    /// The tablet.
    pub tablet: u32,
    /// Its replicas after the move.
    pub new: Replicas,
}

/// The numbers of tablets that shards send or receive.
#[derive(Default)]
struct Traffic(BTreeMap<(HostId, u16), usize>);

impl Traffic {
    fn add(&mut self, replica: TabletReplica) {
        *self.0.entry((replica.host, replica.shard)).or_default() += 1;
    }

    fn has_room(&self, replica: TabletReplica) -> bool {
        self.0.get(&(replica.host, replica.shard)).is_none_or(|count| *count < AT_ONCE)
    }
}

/// The moves that can begin now. None if no node leaves, or if its tablets already move. Nothing
/// moves from or to a node that is down.
pub fn next_moves(metadata: &Metadata, down: &BTreeSet<HostId>) -> Vec<Move> {
    let leaving = |host: HostId| {
        let is_leaving = |node: &Rc<Node>| node.state == NodeState::Leaving && !down.contains(&host);
        metadata.topology.node(host).is_some_and(is_leaving)
    };
    if !metadata.topology.members().any(|node| leaving(node.host)) {
        return Vec::new();
    }
    let (mut outgoing, mut incoming) = (Traffic::default(), Traffic::default());
    let mut hosts = hosts(metadata, down);
    for (table, tablet, moving) in metadata.transitions() {
        let old = table.tablets.replicas(tablet);
        old.iter().filter(|replica| !moving.new_replicas.contains(replica)).for_each(|replica| outgoing.add(*replica));
        for pending in moving.pending(old) {
            incoming.add(pending);
            let host = hosts.iter_mut().find(|host| host.id == pending.host);
            if let Some(load) = host.and_then(|host| host.load.get_mut(usize::from(pending.shard))) {
                *load += 1;
            }
        }
    }
    let mut moves = Vec::new();
    for table in metadata.tables().filter(|table| !builtin::is_built_in(&table.schema.keyspace)) {
        for tablet in (0..table.tablets.count()).filter(|tablet| table.tablets.transition(*tablet).is_none()) {
            let replicas = table.tablets.replicas(tablet);
            let Some(place) = replicas.iter().position(|replica| leaving(replica.host)) else { continue };
            if !outgoing.has_room(replicas[place]) {
                continue;
            }
            let before = hosts.clone();
            let Some(new) = moved(metadata, table, replicas, place, &mut hosts) else { continue };
            if !incoming.has_room(new[place]) {
                hosts = before;
                continue;
            }
            outgoing.add(replicas[place]);
            incoming.add(new[place]);
            moves.push(Move { table: table.schema.id, tablet, new });
        }
    }
    moves
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
    for table in metadata.tables().filter(|table| !builtin::is_built_in(&table.schema.keyspace)) {
        for tablet in 0..table.tablets.count() {
            let replicas: Replicas = table.tablets.holders(tablet).collect();
            let Some(place) = replicas.iter().position(|replica| replica.host == leaving) else { continue };
            if moved(metadata, table, &replicas, place, &mut hosts).is_none() {
                let (keyspace, name) = (&table.schema.keyspace, &table.schema.name);
                let down = if down.is_empty() { "" } else { ", start the nodes that are down" };
                return Err(format!(
                    "no other node can take a replica of table {keyspace}.{name}: add a node where the keyspace needs one{down}, or \
                     lower its replication factor"
                ));
            }
        }
    }
    Ok(())
}

/// The nodes that can take tablets, with their load.
fn hosts(metadata: &Metadata, down: &BTreeSet<HostId>) -> Vec<Host> {
    let host = |node: &Rc<Node>| Host {
        id: node.host,
        datacenter: node.datacenter.clone(),
        rack: node.rack.clone(),
        load: metadata.load(node.host, usize::from(node.shards).max(1)),
    };
    metadata.topology.owners().filter(|node| !down.contains(&node.host)).map(host).collect()
}

/// The replicas after the one at `place` has moved, which adds to the load of its new host. `None`
/// if no host can take it.
fn moved(
    metadata: &Metadata,
    table: &Table,
    replicas: &[TabletReplica],
    place: usize,
    hosts: &mut [Host],
) -> Option<Replicas> {
    let leaving = metadata.topology.node(replicas[place].host)?;
    let options = &metadata.keyspace(&table.schema.keyspace)?.definition.replication;
    let is_simple = options.get("class").is_some_and(|class| short_class(class) == SIMPLE);
    let lists_racks = options.get(&leaving.datacenter).is_some_and(|factor| racks_of(factor).is_some());
    let takes_part = |host: &Host| {
        let is_near = is_simple || host.datacenter == leaving.datacenter;
        is_near && (!lists_racks || host.rack == leaving.rack)
    };
    let mut others = Replicas::from_slice(replicas);
    others.remove(place);
    let new = add_replica(hosts, takes_part, &others)?;
    others.insert(place, new);
    Some(others)
}

#[cfg(test)]
mod tests;
