//! The barrier: waits until every node has the metadata of a given number, and no request uses
//! older metadata.
//!
//! The step after a barrier (such as the next stage of a tablet's transition) can rely on this. If
//! a node does not answer, the barrier fails: a node is never assumed to have applied it.

use crate::metadata::{ClusterShards, MetadataService};
use internode::{Internode, Peer, Refusal, RefusalCode, Verb};
use model::id::HostId;
use rt::Pieces;
use rt::shard::PerShard;
use rt::sync::Deadline;
use std::collections::BTreeSet;
use thiserror::Error;

/// The version of the messages. The number follows it, little-endian.
const FORMAT: u8 = 1;

/// The nodes that have not applied the metadata, with reasons.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("{}", .0.iter().map(|(host, why)| format!("node {host} has not applied the metadata: {why}")).collect::<Vec<_>>().join("; "))]
pub struct NotFollowed(pub Vec<(HostId, String)>);

/// Waits until all members except `without` have the metadata of `number` and use none older. On
/// shard 0.
///
/// A caller that leaves members out must not rely on them: they may be alive and use older
/// metadata.
pub async fn barrier(
    shards: ClusterShards,
    number: u64,
    without: &BTreeSet<HostId>,
    until: Deadline,
) -> Result<(), NotFollowed> {
    let service = shards.metadata.get();
    let own = service.info().host_id;
    let members: Vec<HostId> = service.current().topology.members().map(|node| node.host).collect();
    let members = members.into_iter().filter(|host| !without.contains(host));
    drop(service);
    let asked = members.map(|host| async move {
        let followed = if host == own {
            here(shards.metadata, number, until).await
        } else {
            there(shards.internode, host, number, until).await
        };
        followed.err().map(|why| (host, why))
    });
    let behind: Vec<_> = futures_util::future::join_all(asked).await.into_iter().flatten().collect();
    if behind.is_empty() { Ok(()) } else { Err(NotFollowed(behind)) }
}

/// The part of this node: waits for all of its shards.
async fn here(services: PerShard<MetadataService>, number: u64, until: Deadline) -> Result<(), String> {
    let followed = rt::shard::call_all(move || async move {
        match services.try_get() {
            Some(service) => service.wait_until_unused(number, until).await,
            None => false,
        }
    });
    if followed.await.into_iter().all(|followed| followed) { Ok(()) } else { Err("not in time".into()) }
}

async fn there(internodes: PerShard<Internode>, host: HostId, number: u64, until: Deadline) -> Result<(), String> {
    let internode = internodes.try_get().ok_or("this node has no connections to others")?;
    let mut message = vec![FORMAT];
    message.extend_from_slice(&number.to_le_bytes());
    let called = internode.call(Peer { host, shard: 0 }, Verb::Barrier, message.into(), until).await;
    called.map(drop).map_err(|error| error.to_string())
}

/// Answers the barriers of other nodes. On shard 0.
pub fn serve(internode: &Internode, services: PerShard<MetadataService>) {
    internode.serve(Verb::Barrier, move |caller, message| async move {
        let number = match message.split_first() {
            Some((&FORMAT, number)) => number.try_into().map(u64::from_le_bytes).ok(),
            _ => None,
        };
        let number = number.ok_or_else(|| Refusal::new(RefusalCode::Malformed, "not a barrier"))?;
        let followed = here(services, number, caller.deadline).await;
        followed.map(|()| Pieces::default()).map_err(|why| Refusal::new(RefusalCode::Failed, why))
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use uuid::Uuid;

    #[test]
    fn nodes_that_have_not_applied_the_metadata_are_named() {
        let host = |n: u128| HostId(Uuid::from_u128(n));
        let one = NotFollowed(vec![(host(1), "down".into())]);
        let text = |n: u128, why: &str| format!("node {} has not applied the metadata: {why}", host(n));
        assert_eq!(one.to_string(), text(1, "down"));
        let two = NotFollowed(vec![(host(1), "a".into()), (host(2), "b".into())]).to_string();
        assert_eq!(two, format!("{}; {}", text(1, "a"), text(2, "b")));
    }
}
