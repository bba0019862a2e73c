//! Moves tablets between the shards of a node, to shards that have fewer: the node may have been
//! restarted with more shards, or tablets have left it.
//!
//! Each move is from the fullest shard of a node to its emptiest, and reduces the difference of the
//! two. So the moves end.

use super::Work;
use crate::metadata::Table;
use crate::tablets::TabletReplica;
use crate::tablets::transition::{Replicas, TransitionKind};
use model::id::{HostId, TableId};
use std::collections::BTreeMap;

/// Plans the next moves.
pub(super) fn plan(work: &mut Work<'_>) {
    for at in 0..work.hosts.len() {
        let host = work.hosts[at].id;
        if uneven_shards(&work.hosts[at].load).is_none() {
            continue;
        }
        let mut idle = idle_tablets(work, host);
        while let Some((from, to)) = uneven_shards(&work.hosts[at].load) {
            let (from, to) = (TabletReplica { host, shard: from }, TabletReplica { host, shard: to });
            if !push_one(work, &mut idle, from, to) {
                break;
            }
        }
    }
}

/// The fullest and the emptiest shard, if a move between them improves the balance.
fn uneven_shards(load: &[u32]) -> Option<(u16, u16)> {
    let shards = || load.iter().zip(0u16..);
    let (least, to) = shards().min_by_key(|(load, shard)| (**load, *shard))?;
    let (most, from) = shards().max_by_key(|(load, shard)| (**load, std::cmp::Reverse(*shard)))?;
    (*most > *least + 1).then_some((from, to))
}

/// A tablet that can move: its table and number.
type Idle<'a> = (&'a Table, u32);

/// The tablets of a host that are in no transition, by shard. All their nodes are up.
fn idle_tablets<'a>(work: &Work<'a>, host: HostId) -> BTreeMap<u16, Vec<Idle<'a>>> {
    let mut idle: BTreeMap<u16, Vec<Idle<'a>>> = BTreeMap::new();
    for table in work.tables() {
        for tablet in (0..table.tablets.count()).filter(|tablet| work.is_idle(table, *tablet)) {
            let replicas = table.tablets.replicas(tablet);
            let own = replicas.iter().find(|replica| replica.host == host);
            if let Some(own) = own.filter(|_| !replicas.iter().any(|replica| work.down.contains(&replica.host))) {
                idle.entry(own.shard).or_default().push((table, tablet));
            }
        }
    }
    idle
}

/// Plans the move of one tablet. Returns false if none can move now.
fn push_one<'a>(
    work: &mut Work<'a>,
    idle: &mut BTreeMap<u16, Vec<Idle<'a>>>,
    from: TabletReplica,
    to: TabletReplica,
) -> bool {
    if !work.outgoing.has_room(from) || !work.incoming.has_room(to) {
        return false;
    }
    let Some(table) = most_uneven_table(idle, from.shard, to.shard) else { return false };
    let Some(tablets) = idle.get_mut(&from.shard) else { return false };
    let Some(at) = tablets.iter().position(|(of, _)| of.schema.id == table) else { return false };
    let (table, tablet) = tablets.remove(at);
    let mut new = Replicas::from_slice(table.tablets.replicas(tablet));
    let Some(own) = new.iter_mut().find(|replica| **replica == from) else { return false };
    *own = to;
    work.weigh(from, |load| load.saturating_sub(1));
    work.weigh(to, |load| load + 1);
    work.push(table, tablet, TransitionKind::IntranodeMigration, new);
    true
}

/// The table of which one shard has the most tablets more than the other, so that each table uses
/// all shards.
fn most_uneven_table(idle: &BTreeMap<u16, Vec<Idle<'_>>>, from: u16, to: u16) -> Option<TableId> {
    let mut surplus: BTreeMap<TableId, i64> = BTreeMap::new();
    for (shard, weight) in [(from, 1), (to, -1)] {
        for (table, _) in idle.get(&shard).into_iter().flatten() {
            *surplus.entry(table.schema.id).or_default() += weight;
        }
    }
    let there = idle.get(&from).into_iter().flatten().map(|(table, _)| table.schema.id);
    there.max_by_key(|table| (surplus.get(table).copied(), std::cmp::Reverse(*table)))
}
