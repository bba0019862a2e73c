//! TRUNCATE: every shard of every node drops what it holds of a table.
//!
//! Where nobody else has copies the table is emptied here and nobody is asked. Else an epoch of the table begins, by a change of the metadata:
//! each shard makes void what it has before it shows them, and refuses from then on what was routed by earlier ones, so nothing that is still
//! on its way (a write, a repair, a hint) brings anything back; whoever is refused tries again by newer metadata, and finds the table empty. It
//! is acknowledged when all nodes have followed. All must be up: one that is not would follow before it serves again, but nobody could say when.
//! Only a node that has not finished joining may be down: it has no tablets, and replicas refuse what it would route by earlier metadata.
//!
//! # Where not all nodes know of epochs
//!
//! Until [`TRUNCATE_BY_EPOCH`] is enabled each node is asked to deliver its hints, so that none brings back what is gone, and then to drop the
//! data. What runs beside it can be brought back by a replica that has not dropped yet.
//!
//! A request between nodes is `u8 version (1), u32 length, u8 step, 16 bytes table, u64 number of the metadata`; the answer is empty.

use crate::coordinator::Coordinator;
use crate::internode::{Internode, Peer, Refusal, Verb};
use crate::metadata::{Metadata, MetadataService, Op, change};
use crate::topology::barrier::barrier;
use crate::topology::features::TRUNCATE_BY_EPOCH;
use bytes::Bytes;
use engine::Engine;
use model::id::{HostId, TableId};
use replica::Replica;
use rt::ShardId;
use rt::sync::Deadline;
use rt::time::Duration;
use std::rc::Rc;

const VERSION: u8 = 1;
const BODY: usize = 1 + 16 + 8;

/// How long a node may take over either step on behalf of another.
const LIMIT: Duration = Duration::from_secs(300);

/// What a node is asked for, one after the other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
enum Step {
    /// Deliver hints.
    Deliver = 0,
    /// Drop the data.
    Drop = 1,
}

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

/// Empties a table of this metadata, which nobody else on this shard may hold on behalf of the statement, on every node. `own` is this one. The
/// error says what stands in the way; if nodes did not follow in time, they do so later.
pub async fn everywhere(metadata: Rc<Metadata>, table: TableId, own: HostId, timeout: Duration) -> Result<(), String> {
    if metadata.table_by_id(table).is_none_or(|known| known.tablets.is_only_on(own)) {
        return truncate(table, timeout).await;
    }
    let Some(internode) = rt::shard::try_service::<Internode>() else {
        return Err("other nodes have copies, and there is no way to them".into());
    };
    let liveness = internode.liveness();
    let without = metadata.topology.lost_while_joining(|host| liveness.is_down(host));
    let nodes = metadata.topology.members().map(|node| node.host).filter(|host| !without.contains(host));
    let nodes: Vec<HostId> = nodes.collect();
    if let Some(down) = nodes.iter().find(|host| liveness.is_down(**host)) {
        return Err(format!("node {down} is down: all nodes must be up"));
    }
    let deadline = Deadline::after(timeout);
    if metadata.topology.has_feature(TRUNCATE_BY_EPOCH) {
        // The barrier waits until nobody uses them.
        drop(metadata);
        return rt::shard::call(ShardId(0), move || begin_epoch(table, deadline)).await;
    }
    for step in [Step::Deliver, Step::Drop] {
        let asked = nodes.iter().map(|host| {
            let (host, internode, number) = (*host, internode.clone(), metadata.number);
            async move {
                let failed = |why: &dyn std::fmt::Display| format!("node {host}: {why}");
                if host == own {
                    return here(step, table, deadline).await.map_err(|why| failed(&why));
                }
                let body = encode(step, table, number);
                let answer = internode.call(Peer { host, shard: 0 }, Verb::Truncate, body, deadline).await;
                answer.map(|_| ()).map_err(|why| failed(&why))
            }
        });
        futures_util::future::join_all(asked).await.into_iter().collect::<Result<(), String>>()?;
    }
    Ok(())
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
    let without = {
        let (metadata, liveness) =
            (rt::shard::service::<MetadataService>().current(), internode.as_ref().map(|wire| wire.liveness()));
        metadata.topology.lost_while_joining(|host| liveness.as_ref().is_some_and(|liveness| liveness.is_down(host)))
    };
    barrier(internode.as_ref(), epoch, &without, deadline).await.map_err(|error| error.to_string())
}

/// Does on behalf of other nodes what they ask for.
pub fn serve(internode: &Internode) {
    internode.serve(Verb::Truncate, |_, body: Bytes| async move {
        let (step, table, number) = decode(&body).ok_or_else(|| Refusal::malformed("a TRUNCATE that is none"))?;
        let deadline = Deadline::after(LIMIT);
        if !rt::shard::service::<MetadataService>().wait_for_number(number, deadline).await {
            return Err(Refusal::failed("the metadata of the request did not come in time"));
        }
        here(step, table, deadline).await.map_err(Refusal::failed)?;
        Ok(Bytes::from_static(&[VERSION, 0, 0, 0, 0]).into())
    });
}

async fn here(step: Step, table: TableId, deadline: Deadline) -> Result<(), String> {
    match step {
        Step::Drop => truncate(table, deadline.remaining()).await,
        Step::Deliver => {
            let delivered = rt::shard::call_all(|| async {
                if let Some(coordinator) = rt::shard::try_service::<Coordinator>() {
                    coordinator.replay_hints().await;
                }
            });
            let delivered = deadline.limit(delivered).await;
            delivered.map(|_| ()).map_err(|_| "hints could not be delivered in time".into())
        }
    }
}

fn encode(step: Step, table: TableId, number: u64) -> Bytes {
    let mut out = vec![VERSION];
    out.extend_from_slice(&(BODY as u32).to_le_bytes());
    out.push(step as u8);
    out.extend_from_slice(table.as_bytes());
    out.extend_from_slice(&number.to_le_bytes());
    out.into()
}

fn decode(bytes: &[u8]) -> Option<(Step, TableId, u64)> {
    let (head, rest) = bytes.split_first_chunk::<5>()?;
    let len = u32::from_le_bytes([head[1], head[2], head[3], head[4]]) as usize;
    // A later version may say more.
    let body = rest.first_chunk::<BODY>().filter(|_| head[0] >= VERSION && len == rest.len())?;
    let step = [Step::Deliver, Step::Drop].into_iter().find(|step| *step as u8 == body[0])?;
    let table = TableId::from_bytes(body[1..17].try_into().ok()?);
    Some((step, table, u64::from_le_bytes(body[17..].try_into().ok()?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_read_back_and_others_refused() {
        let table = TableId::from_bytes([7; 16]);
        let bytes = encode(Step::Drop, table, 42);
        assert_eq!(decode(&bytes), Some((Step::Drop, table, 42)));
        assert_eq!(bytes[..6], [1, 25, 0, 0, 0, 1]);
        for len in 0..bytes.len() {
            assert_eq!(decode(&bytes[..len]), None, "cut at {len}");
        }
        let mut unknown = bytes.to_vec();
        unknown[5] = 9;
        assert_eq!(decode(&unknown), None);
    }
}
