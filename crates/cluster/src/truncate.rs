//! TRUNCATE: every shard of every node drops its data of a table.
//!
//! A change of the metadata begins a new epoch of the table. Before a shard publishes the new
//! metadata, it discards its data of the table. From then on the shard refuses requests that are
//! based on earlier metadata. So no write, read repair or hint in flight can restore deleted data.
//! The coordinator of a refused request retries it with newer metadata, and reads an empty table.
//!
//! TRUNCATE is acknowledged when all nodes have applied the change. All nodes must be up: a node
//! that is down applies the change before it serves again, but that may take arbitrarily long. Only
//! a node that has not finished joining may be down. It has no tablets, and replicas refuse
//! requests that it bases on earlier metadata.
//!
//! For a node-local table only this node's data is dropped.

use crate::metadata::{ClusterShards, Metadata, Op, change};
use crate::topology::barrier::barrier;
use internode::Internode;
use model::id::{HostId, TableId};
use rt::ShardId;
use rt::sync::Deadline;
use rt::time::Duration;
use std::collections::BTreeSet;
use std::rc::Rc;

/// Empties a table on every shard of this node. The error names the shard that failed and the
/// reason.
pub async fn truncate(shards: ClusterShards, table: TableId, timeout: Duration) -> Result<(), String> {
    // All shards use one timestamp, so that their snapshots form one snapshot.
    let at_micros = rt::time::wall_micros();
    let work = rt::shard::call_all(move || async move {
        let engine = shards.engine.get();
        let done = engine.truncate(table, at_micros).await;
        if let Some(replica) = shards.replica.try_get() {
            replica.forget_queriers(Some(table));
        }
        done.map(|_| ()).map_err(|error| format!("shard {}: {error}", rt::shard::this().0))
    });
    match rt::time::timeout(timeout, work).await {
        Ok(results) => results.into_iter().collect(),
        Err(_) => Err(format!("TRUNCATE did not end within {} ms", timeout.as_millis())),
    }
}

/// Empties a table on every node. `metadata` must be the only handle on this shard that the
/// statement holds, because the barrier waits until the old metadata is unused. The error names the
/// obstacle. Nodes that have not applied the change in time apply it later.
pub async fn everywhere(
    shards: ClusterShards,
    metadata: Rc<Metadata>,
    table: TableId,
    timeout: Duration,
) -> Result<(), String> {
    if metadata.table_by_id(table).is_none_or(|known| known.tablets.is_node_local()) {
        return truncate(shards, table, timeout).await;
    }
    let internode = shards.internode.try_get();
    let without = lost_while_joining(&metadata, internode.as_deref());
    if let Some(internode) = internode {
        let nodes = metadata.topology.members().map(|node| node.host);
        let is_missing = |host: &_| !without.contains(host) && internode.liveness().is_down(*host);
        if let Some(down) = nodes.into_iter().find(is_missing) {
            return Err(format!("node {down} is down: all nodes must be up"));
        }
    }
    // The barrier waits until no request uses this metadata.
    drop(metadata);
    let deadline = Deadline::after(timeout);
    rt::shard::call(ShardId(0), move || begin_epoch(shards, table, deadline)).await
}

/// The nodes that are down and have not finished joining.
fn lost_while_joining(metadata: &Metadata, internode: Option<&Internode>) -> BTreeSet<HostId> {
    let liveness = internode.map(|internode| internode.liveness());
    metadata.topology.lost_while_joining(|host| liveness.as_ref().is_some_and(|liveness| liveness.is_down(host)))
}

/// Begins the next epoch of a table, and waits until all members have followed. On shard 0.
async fn begin_epoch(shards: ClusterShards, table: TableId, deadline: Deadline) -> Result<(), String> {
    let changed = change(shards.metadata, move |metadata, _| match metadata.table_by_id(table) {
        Some(_) => {
            let epoch = metadata.number + 1;
            Ok((vec![Op::Truncate { table, epoch }], epoch))
        }
        None => Err("the table was dropped".to_owned()),
    });
    let changed = deadline.limit(changed).await;
    let changed =
        changed.map_err(|_| "the metadata could not be changed in time; the change may still be applied".to_owned())?;
    let epoch = changed.map_err(|error| error.to_string())?;
    let internode = shards.internode.try_get();
    let without = lost_while_joining(&shards.metadata.get().current(), internode.as_deref());
    barrier(shards, epoch, &without, deadline).await.map_err(|error| error.to_string())
}
