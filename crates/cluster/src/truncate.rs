//! TRUNCATE: every shard of every node drops what it holds of a table.
//!
//! An epoch of the table begins, by a change of the metadata: each shard makes void what it has before it shows them, and refuses from then on
//! what was routed by earlier ones, so nothing that is still on its way (a write, a repair, a hint) brings anything back; whoever is refused
//! tries again by newer metadata, and finds the table empty. It is acknowledged when all nodes have followed. All must be up: one that is not
//! would follow before it serves again, but nobody could say when. Only a node that has not finished joining may be down: it has no tablets,
//! and replicas refuse what it would route by earlier metadata.
//!
//! A table that each node stores by itself is emptied on this node, and no other is asked.

use crate::metadata::{Metadata, MetadataService, Op, change};
use crate::topology::barrier::barrier;
use engine::Engine;
use internode::Internode;
use model::id::{HostId, TableId};
use replica::Replica;
use rt::ShardId;
use rt::sync::Deadline;
use rt::time::Duration;
use std::collections::BTreeSet;
use std::rc::Rc;

/// Empties a table on every shard of this node. The error says which shard failed and why.
pub async fn truncate(table: TableId, timeout: Duration) -> Result<(), String> {
    // One time for all shards, so that their snapshots are one.
    let at_micros = rt::time::wall_micros();
    let work = rt::shard::call_all(move || async move {
        let engine = rt::shard::service::<Engine>();
        let done = engine.truncate(table, at_micros).await;
        if let Some(replica) = rt::shard::try_service::<Replica>() {
            replica.forget_queriers(Some(table));
        }
        done.map(|_| ()).map_err(|error| format!("shard {}: {error}", rt::shard::this().0))
    });
    match rt::time::timeout(timeout, work).await {
        Ok(results) => results.into_iter().collect(),
        Err(_) => Err(format!("TRUNCATE did not end within {} ms", timeout.as_millis())),
    }
}

/// Empties a table of this metadata, which nobody else on this shard may hold on behalf of the statement, on every node. The error says what
/// stands in the way; if nodes did not follow in time, they do so later.
pub async fn everywhere(metadata: Rc<Metadata>, table: TableId, timeout: Duration) -> Result<(), String> {
    if metadata.table_by_id(table).is_none_or(|known| known.tablets.is_node_local()) {
        return truncate(table, timeout).await;
    }
    let internode = rt::shard::try_service::<Internode>();
    let without = lost_while_joining(&metadata, internode.as_deref());
    if let Some(internode) = internode {
        let nodes = metadata.topology.members().map(|node| node.host);
        let is_missing = |host: &_| !without.contains(host) && internode.liveness().is_down(*host);
        if let Some(down) = nodes.into_iter().find(is_missing) {
            return Err(format!("node {down} is down: all nodes must be up"));
        }
    }
    // The barrier waits until nobody uses them.
    drop(metadata);
    let deadline = Deadline::after(timeout);
    rt::shard::call(ShardId(0), move || begin_epoch(table, deadline)).await
}

/// The nodes that went down before they had joined.
fn lost_while_joining(metadata: &Metadata, internode: Option<&Internode>) -> BTreeSet<HostId> {
    let liveness = internode.map(|internode| internode.liveness());
    metadata.topology.lost_while_joining(|host| liveness.as_ref().is_some_and(|liveness| liveness.is_down(host)))
}

/// Begins the next epoch of a table and waits until all members have followed. On shard 0.
async fn begin_epoch(table: TableId, deadline: Deadline) -> Result<(), String> {
    let changed = change(move |metadata, _| match metadata.table_by_id(table) {
        Some(_) => {
            let epoch = metadata.number + 1;
            Ok((vec![Op::Truncate { table, epoch }], epoch))
        }
        None => Err("the table is gone".to_owned()),
    });
    let changed = deadline.limit(changed).await;
    let changed = changed.map_err(|_| "the metadata could not be changed in time; they may change yet".to_owned())?;
    let epoch = changed.map_err(|error| error.to_string())?;
    let internode = rt::shard::try_service::<Internode>();
    let without = lost_while_joining(&rt::shard::service::<MetadataService>().current(), internode.as_deref());
    barrier(internode.as_ref(), epoch, &without, deadline).await.map_err(|error| error.to_string())
}
