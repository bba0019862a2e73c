//! The leader's part: asks the shards of pending replicas to receive their tablets.

use crate::message::{Request, TabletSession};
use crate::sessions::StreamService;
use cluster::ClusterShards;
use cluster::tablets::TabletReplica;
use cluster::topology::migration_driver::{StreamError, StreamTask, Streamer};
use futures_util::future::{LocalBoxFuture, join_all};
use internode::{CallError, Peer, RefusalCode, Verb};
use rt::ShardId;
use rt::shard::PerShard;
use rt::sync::Deadline;
use rt::time::Duration;

/// How long one attempt to stream a tablet may take.
const ATTEMPT: Duration = Duration::from_secs(12 * 3600);

/// Streams tablets. On shard 0.
#[derive(Clone, Copy)]
pub struct TabletStreamer {
    /// What all shards of this node have.
    pub shards: ClusterShards,
    /// The streaming services of this node.
    pub services: PerShard<StreamService>,
}

impl Streamer for TabletStreamer {
    fn copy(&self, what: StreamTask) -> LocalBoxFuture<'static, Result<(), StreamError>> {
        assert!(!what.from.is_empty(), "a tablet is streamed from replicas that have it");
        assert!(!what.to.iter().any(|to| what.from.contains(to)), "no replica receives what it sends");
        let (shards, services) = (self.shards, self.services);
        Box::pin(async move {
            let session = session_of(shards, &what)?;
            let asked = what.to.iter().map(|to| ask(shards, services, *to, session, what.from.to_vec()));
            join_all(asked).await.into_iter().collect()
        })
    }
}

fn session_of(shards: ClusterShards, what: &StreamTask) -> Result<TabletSession, String> {
    let metadata = shards.metadata.get().current();
    let table = metadata.table_by_id(what.table).ok_or("the table was dropped")?;
    let StreamTask { table: id, tablet, session, .. } = *what;
    Ok(TabletSession { table: id, tablet, session, epoch: table.epoch, number: metadata.number })
}

/// Asks a pending replica to receive its tablet, and waits until the tablet is received.
async fn ask(
    shards: ClusterShards,
    services: PerShard<StreamService>,
    to: TabletReplica,
    what: TabletSession,
    from: Vec<TabletReplica>,
) -> Result<(), StreamError> {
    let until = Deadline::after(ATTEMPT);
    if to.host == shards.metadata.get().info().host_id {
        let received = services
            .call(ShardId(to.shard), move |service| async move { service.receive(what, from, until).await.map(drop) });
        return received.await;
    }
    let internode = shards.internode.try_get().ok_or("this node has no connections to others")?;
    let peer = Peer { host: to.host, shard: to.shard };
    let request = Request::Receive { what, from }.encode();
    let answer = internode.call(peer, Verb::Stream, request.into(), until).await;
    answer.map(drop).map_err(|error| StreamError {
        why: format!("node {}: {error}", to.host),
        is_damage: matches!(&error, CallError::Refused(refusal) if refusal.code == RefusalCode::Damaged),
    })
}
