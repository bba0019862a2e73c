//! Plans which tablets move next. The purposes: no replica is lost ([`rebuild`]), tablets have as
//! many replicas as their keyspaces ask for ([`factor`]), nodes leave ([`drain`]), all nodes have
//! their part ([`balance`]), and so have the shards of a node ([`shards`]). Pure.
//!
//! A replica moves within its datacenter, and within its rack if the keyspace lists it. Racks
//! have no more replicas of a tablet after a move than they need to have. With `SimpleStrategy` any
//! node will do. A shard sends and receives a few tablets at a time, so that clients are served at
//! full speed.

mod balance;
mod drain;
mod factor;
mod rebuild;
mod shards;
mod waiting;

pub use drain::check_can_leave;
pub use factor::replication_is_due;
pub use rebuild::check_can_remove;
pub(super) use rebuild::check_has_others;
pub use waiting::{move_waits_for, waits_for};

use super::{Node, NodeState, features};
use crate::metadata::{Metadata, Table, builtin};
use crate::tablets::TabletReplica;
use crate::tablets::allocator::{Host, add_replica};
use crate::tablets::strategy::{SIMPLE, racks_of, short_class};
use crate::tablets::transition::{Replicas, TransitionKind};
use model::id::{HostId, TableId};
use model::options::OptionMap;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// Tablets that a shard sends, and that it receives, at a time.
const AT_ONCE: usize = 2;

/// A change of a tablet's replicas by one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Move {
    /// The table.
    pub table: TableId,
    /// The tablet.
    pub tablet: u32,
    /// Its replicas after the move.
    pub new: Replicas,
    /// Whether a replica is copied from the one that moves, or built from the others.
    pub kind: TransitionKind,
}

/// The moves that can begin now. Nothing moves from or to a node that is down. While a node leaves,
/// tablets move for that only.
pub fn next_moves(metadata: &Metadata, down: &BTreeSet<HostId>) -> Vec<Move> {
    if !metadata.topology.has_feature(features::FILE_STREAM) {
        return Vec::new();
    }
    let mut work = Work::of(metadata, down);
    rebuild::plan(&mut work);
    factor::plan(&mut work);
    match metadata.topology.members().any(|node| node.state == NodeState::Leaving) {
        true => drain::plan(&mut work),
        false if metadata.topology.is_balancing() => {
            balance::plan(&mut work);
            if metadata.topology.has_feature(features::INTRANODE_MIGRATION) {
                shards::plan(&mut work);
            }
        }
        false => {}
    }
    work.moves
}

/// Whether no tablet moves, and none will unless something changes.
pub fn is_quiet(metadata: &Metadata, down: &BTreeSet<HostId>) -> bool {
    metadata.transitions().next().is_none()
        && !metadata.topology.members().any(|node| matches!(node.state, NodeState::Joining | NodeState::Leaving))
        && replication_is_due(metadata).is_empty()
        && next_moves(metadata, down).is_empty()
}

/// A plan that is being made.
struct Work<'a> {
    metadata: &'a Metadata,
    down: &'a BTreeSet<HostId>,
    /// The nodes that can take tablets, with their loads after all moves.
    hosts: Vec<Host>,
    outgoing: Traffic,
    incoming: Traffic,
    moves: Vec<Move>,
    /// The tablets of `moves`.
    planned: BTreeSet<(TableId, u32)>,
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

impl<'a> Work<'a> {
    /// Nothing is planned yet. Transitions under way count.
    fn of(metadata: &'a Metadata, down: &'a BTreeSet<HostId>) -> Work<'a> {
        let mut work = Work {
            metadata,
            down,
            hosts: hosts(metadata, down),
            outgoing: Traffic::default(),
            incoming: Traffic::default(),
            moves: Vec::new(),
            planned: BTreeSet::new(),
        };
        for (table, tablet, moving) in metadata.transitions() {
            let old = table.tablets.replicas(tablet);
            for gone in old.iter().filter(|replica| !moving.new_replicas.contains(replica)) {
                work.outgoing.add(*gone);
                work.weigh(*gone, |load| load.saturating_sub(1));
            }
            // Their load counts already.
            moving.pending(old).for_each(|pending| work.incoming.add(pending));
        }
        work
    }

    fn weigh(&mut self, replica: TabletReplica, change: impl FnOnce(u32) -> u32) {
        let host = self.hosts.iter_mut().find(|host| host.id == replica.host);
        if let Some(load) = host.and_then(|host| host.load.get_mut(usize::from(replica.shard))) {
            *load = change(*load);
        }
    }

    /// The tables whose tablets move.
    fn tables(&self) -> impl Iterator<Item = &'a Rc<Table>> + use<'a> {
        movable(self.metadata)
    }

    /// Whether a tablet is in no transition, and none is planned for it.
    fn is_idle(&self, table: &Table, tablet: u32) -> bool {
        table.tablets.transition(tablet).is_none() && !self.planned.contains(&(table.schema.id, tablet))
    }

    /// Plans new replicas of a tablet, which `choose` adds to the loads of their hosts. Plans
    /// nothing if it finds none, or if their shards receive enough tablets already.
    fn place(
        &mut self,
        table: &Table,
        tablet: u32,
        kind: TransitionKind,
        choose: impl FnOnce(&mut [Host]) -> Option<Replicas>,
    ) {
        let old = table.tablets.replicas(tablet);
        let Some(new) = choose(&mut self.hosts) else { return };
        let added: Replicas = new.iter().filter(|replica| !old.contains(replica)).copied().collect();
        if !added.iter().all(|replica| self.incoming.has_room(*replica)) {
            added.iter().for_each(|replica| self.weigh(*replica, |load| load.saturating_sub(1)));
            return;
        }
        self.push(table, tablet, kind, new);
    }

    /// Plans new replicas of a tablet. The loads are already those after the move.
    fn push(&mut self, table: &Table, tablet: u32, kind: TransitionKind, new: Replicas) {
        let old = table.tablets.replicas(tablet);
        // A replica that moves is copied from its node alone. Others are built from several.
        if matches!(kind, TransitionKind::Migration | TransitionKind::IntranodeMigration) {
            old.iter().filter(|replica| !new.contains(replica)).for_each(|gone| self.outgoing.add(*gone));
        }
        new.iter().filter(|replica| !old.contains(replica)).for_each(|added| self.incoming.add(*added));
        self.planned.insert((table.schema.id, tablet));
        self.moves.push(Move { table: table.schema.id, tablet, new, kind });
    }
}

/// All tables but the built-in ones, whose replicas every node has.
fn movable(metadata: &Metadata) -> impl Iterator<Item = &Rc<Table>> {
    metadata.tables().filter(|table| !builtin::is_built_in(&table.schema.keyspace))
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

/// Where a replica of a table on a node may move, by datacenter and rack.
#[derive(Clone, Copy)]
struct Bounds<'a> {
    datacenter: Option<&'a str>,
    rack: Option<&'a str>,
}

impl<'a> Bounds<'a> {
    /// `None` if the keyspace does not exist.
    fn of(metadata: &Metadata, table: &Table, from: &'a Node) -> Option<Bounds<'a>> {
        let options = factor::options(metadata, table)?;
        let is_simple = options.get("class").is_some_and(|class| short_class(class) == SIMPLE);
        Some(Bounds {
            datacenter: (!is_simple).then_some(&*from.datacenter),
            rack: (!is_simple && lists_rack_of(options, from)).then_some(&*from.rack),
        })
    }

    fn include(self, host: &Host) -> bool {
        self.datacenter.is_none_or(|own| own == host.datacenter) && self.rack.is_none_or(|own| own == host.rack)
    }
}

/// Whether the options of a keyspace list the rack of a node.
fn lists_rack_of(options: &OptionMap, node: &Node) -> bool {
    let racks = options.get(&node.datacenter).and_then(|factor| racks_of(factor));
    racks.is_some_and(|racks| racks.contains(&node.rack))
}

/// Refuses to move a replica out of its rack if the keyspace lists that rack.
pub(super) fn check_stays_in_rack(
    metadata: &Metadata,
    table: &Table,
    old: &[TabletReplica],
    new: &[TabletReplica],
) -> Result<(), String> {
    let node_of = |one: &TabletReplica, others: &[TabletReplica]| {
        (!others.contains(one)).then(|| metadata.topology.node(one.host)).flatten()
    };
    let from = old.iter().find_map(|replica| node_of(replica, new));
    let to = new.iter().find_map(|replica| node_of(replica, old));
    let (Some(from), Some(to)) = (from, to) else { return Ok(()) };
    let rack = Bounds::of(metadata, table, from).and_then(|bounds| bounds.rack);
    match rack.filter(|own| *own != to.rack || from.datacenter != to.datacenter) {
        None => Ok(()),
        Some(rack) => Err(format!(
            "keyspace {} lists rack {rack}: the replica may move to another node of this rack only",
            table.schema.keyspace
        )),
    }
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
    let bounds = Bounds::of(metadata, table, metadata.topology.node(replicas[place].host)?)?;
    let mut others = Replicas::from_slice(replicas);
    others.remove(place);
    let new = add_replica(hosts, |host| bounds.include(host), &others)?;
    others.insert(place, new);
    Some(others)
}

/// The first table with a replica on a node that none of `hosts` can take.
fn stuck_table<'a>(metadata: &'a Metadata, host: HostId, hosts: &mut [Host]) -> Option<&'a Rc<Table>> {
    movable(metadata).find(|table| {
        // A transition under way may succeed, or be rolled back.
        let ends = |tablet| {
            let new = table.tablets.transition(tablet).map(|moving| &moving.new_replicas[..]);
            [Some(table.tablets.replicas(tablet)), new].into_iter().flatten()
        };
        (0..table.tablets.count()).flat_map(ends).any(|replicas| {
            let place = replicas.iter().position(|replica| replica.host == host);
            place.is_some_and(|place| moved(metadata, table, replicas, place, hosts).is_none())
        })
    })
}

#[cfg(test)]
mod tests;
