//! Moves tablets to nodes that have fewer for each shard, such as nodes that have just joined.
//!
//! A replica moves only if its new node does not have more tablets per shard afterwards than its
//! old one. So each move reduces the sum of squares of the loads, and the moves end.

use super::{Bounds, Work};
use crate::metadata::Table;
use crate::tablets::TabletReplica;
use crate::tablets::allocator::Host;
use crate::tablets::transition::{Replicas, TransitionKind};
use model::id::HostId;
use std::collections::BTreeMap;

/// A replica that can move: of a table, a tablet, at a place of the tablet's list.
type Candidate<'a> = (&'a Table, u32, usize);

/// Plans the next moves.
pub(super) fn plan(work: &mut Work<'_>) {
    if !is_uneven(&work.hosts) {
        return;
    }
    let mut on_host: BTreeMap<HostId, Vec<Candidate<'_>>> = BTreeMap::new();
    for table in work.tables() {
        for tablet in (0..table.tablets.count()).filter(|tablet| work.is_idle(table, *tablet)) {
            for (place, replica) in table.tablets.replicas(tablet).iter().enumerate() {
                on_host.entry(replica.host).or_default().push((table, tablet, place));
            }
        }
    }
    while push_one(work, &mut on_host) {}
}

/// Whether a move between some hosts would improve the balance.
fn is_uneven(hosts: &[Host]) -> bool {
    hosts.iter().any(|from| hosts.iter().any(|to| improves(from, to)))
}

/// Whether the host that receives a tablet has not more per shard afterwards than the host that
/// sends it.
fn improves(from: &Host, to: &Host) -> bool {
    let ((tablets, shards), (others, other_shards)) = (from.fullness(), to.fullness());
    shards > 0 && other_shards > 0 && tablets > 0 && (tablets - 1) * other_shards >= (others + 1) * shards
}

/// Plans the move from the fullest host to the emptiest that can be made. Returns false if there is
/// none.
fn push_one(work: &mut Work<'_>, on_host: &mut BTreeMap<HostId, Vec<Candidate<'_>>>) -> bool {
    let mut order: Vec<usize> = (0..work.hosts.len()).collect();
    order.sort_by(|a, b| by_fullness(&work.hosts[*a], &work.hosts[*b]));
    for from in order.iter().rev() {
        for to in order.iter().filter(|to| improves(&work.hosts[*from], &work.hosts[**to])) {
            let Some(candidates) = on_host.get_mut(&work.hosts[*from].id) else { continue };
            let target = emptiest_shard(&work.hosts[*to]);
            if !work.incoming.has_room(target) {
                continue;
            }
            // Each shard of the sender gives in turn: the fullest first.
            let best = (0..candidates.len())
                .filter(|at| may_move(work, candidates[*at], &work.hosts[*to]))
                .max_by_key(|at| (load_of(work, candidates[*at]), std::cmp::Reverse(*at)));
            let Some(best) = best else { continue };
            let (table, tablet, place) = candidates.swap_remove(best);
            let mut new = Replicas::from_slice(table.tablets.replicas(tablet));
            let old = std::mem::replace(&mut new[place], target);
            work.weigh(old, |load| load.saturating_sub(1));
            work.weigh(target, |load| load + 1);
            work.push(table, tablet, TransitionKind::Migration, new);
            return true;
        }
    }
    false
}

fn by_fullness(one: &Host, other: &Host) -> std::cmp::Ordering {
    let ((tablets, shards), (others, other_shards)) = (one.fullness(), other.fullness());
    (tablets * other_shards, one.id).cmp(&(others * shards, other.id))
}

fn emptiest_shard(host: &Host) -> TabletReplica {
    let least = host.load.iter().enumerate().min_by_key(|(shard, load)| (**load, *shard));
    TabletReplica { host: host.id, shard: least.map_or(0, |(shard, _)| shard as u16) }
}

fn load_of(work: &Work<'_>, (table, tablet, place): Candidate<'_>) -> u32 {
    let TabletReplica { host, shard } = table.tablets.replicas(tablet)[place];
    let known = work.hosts.iter().find(|known| known.id == host);
    known.and_then(|known| known.load.get(usize::from(shard))).copied().unwrap_or(0)
}

/// Whether a replica may move to a host. Its rack must not have more replicas of the tablet than
/// the rack of the old host has without this one.
fn may_move(work: &Work<'_>, (table, tablet, place): Candidate<'_>, to: &Host) -> bool {
    let replicas = table.tablets.replicas(tablet);
    let topology = &work.metadata.topology;
    let Some(from) = topology.node(replicas[place].host) else { return false };
    let bounds = Bounds::of(work.metadata, table, from);
    let others = || replicas.iter().enumerate().filter(|(at, _)| *at != place).map(|(_, replica)| replica.host);
    let in_rack = |datacenter: &str, rack: &str| {
        others()
            .filter_map(|host| topology.node(host))
            .filter(|node| node.datacenter == datacenter && node.rack == rack)
            .count()
    };
    work.is_idle(table, tablet)
        && bounds.is_some_and(|bounds| bounds.include(to))
        && work.outgoing.has_room(replicas[place])
        && others().all(|host| host != to.id && !work.down.contains(&host))
        && in_rack(&to.datacenter, &to.rack) <= in_rack(&from.datacenter, &from.rack)
}
