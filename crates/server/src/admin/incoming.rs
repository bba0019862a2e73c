//! The tablets that nodes receive, for administrators of any node: each receiver answers for
//! itself ([`serve`]). It knows how much has arrived, and why the last attempt failed.

use super::AdminShards;
use super::other_node::json_of;
use bytes::Bytes;
use cluster::metadata::Metadata;
use engine::streaming::Direction;
use futures_util::future::join_all;
use internode::{Internode, Verb};
use model::HostId;
use rt::Pieces;
use rt::shard::PerShard;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use streaming::{StreamProgress, StreamService};
use uuid::Uuid;

/// The progress of a tablet that a node receives from one source or several.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TabletProgress {
    /// The bytes that have arrived.
    pub bytes: u64,
    /// The bytes of all files. `None` if it is streamed as mutations.
    pub total_bytes: Option<u64>,
    /// Why the last attempt failed.
    pub failure: Option<String>,
}

/// The tablets that nodes receive, by session.
#[derive(Clone, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Incoming(BTreeMap<Uuid, TabletProgress>);

/// Answers other nodes.
pub fn serve(internode: &Internode, streams: PerShard<StreamService>) {
    internode.serve(Verb::IncomingTablets, move |_, _| async move {
        let body = serde_json::to_vec(&own(streams).await).expect("numbers and texts are JSON");
        Ok(Pieces::from(Bytes::from(body)))
    });
}

/// The tablets that all nodes receive. Nodes that are down, or do not answer in time, are left out.
pub async fn of_all_nodes(services: AdminShards) -> Incoming {
    let (receivers, own_host) = {
        let service = services.cluster.metadata.get();
        (receivers(&service.current()), service.info().host_id)
    };
    let parts = join_all(receivers.into_iter().map(|host| async move {
        match host == own_host {
            true => own(services.streams).await,
            false => json_of(services.cluster, host, Verb::IncomingTablets).await.unwrap_or_default(),
        }
    }));
    Incoming(parts.await.into_iter().flat_map(|part| part.0).collect())
}

/// The nodes that receive tablets.
fn receivers(metadata: &Metadata) -> BTreeSet<HostId> {
    let streamed = metadata.transitions().filter(|(_, _, moving)| moving.session.is_some());
    let new = streamed.flat_map(|(table, tablet, moving)| {
        let old = table.tablets.replicas(tablet);
        moving.new_replicas.iter().filter(move |replica| !old.contains(replica)).map(|replica| replica.host)
    });
    new.collect()
}

/// The tablets that this node receives.
async fn own(streams: PerShard<StreamService>) -> Incoming {
    let shards =
        rt::shard::call_all(
            move || async move { streams.try_get().map(|streams| streams.progress()).unwrap_or_default() },
        );
    let mut incoming = Incoming::default();
    shards.await.into_iter().flatten().for_each(|progress| incoming.add(progress));
    incoming
}

impl Incoming {
    /// Adds what comes from one source.
    fn add(&mut self, progress: StreamProgress) {
        if progress.direction != Direction::In {
            return;
        }
        let StreamProgress { session, done, total, failure, .. } = progress;
        let new = || TabletProgress { bytes: 0, total_bytes: Some(0), failure: None };
        let known = self.0.entry(session).or_insert_with(new);
        known.bytes += done;
        known.total_bytes = known.total_bytes.zip(total).map(|(all, more)| all + more);
        known.failure = known.failure.take().or(failure);
    }

    /// The progress of a tablet in a session.
    pub fn of(&self, session: Option<Uuid>) -> Option<&TabletProgress> {
        self.0.get(&session?)
    }

    /// Why the last attempt of a session failed.
    pub fn failure_of(&self, session: Option<Uuid>) -> Option<String> {
        self.of(session)?.failure.clone()
    }

    /// Why the last attempt to stream a tablet of a node failed, with the table's name.
    pub fn failure_of_host(&self, metadata: &Metadata, host: HostId) -> Option<String> {
        metadata.transitions().find_map(|(table, tablet, moving)| {
            table.tablets.holders(tablet).find(|replica| replica.host == host)?;
            let why = self.failure_of(moving.session)?;
            Some(format!("a tablet of table {}.{} is not streamed: {why}", table.schema.keyspace, table.schema.name))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::id::TableId;

    #[test]
    fn the_sources_of_a_session_are_summed_up() {
        let session = Uuid::from_u128(1);
        let from = |peer, direction, done, total, failure: Option<&str>| StreamProgress {
            session,
            direction,
            peer: HostId(Uuid::from_u128(peer)),
            table: TableId(Uuid::from_u128(2)),
            tablet: 3,
            sstables: 1,
            done,
            total,
            failure: failure.map(str::to_owned),
        };
        let mut incoming = Incoming::default();
        incoming.add(from(4, Direction::Out, 5, Some(6), Some("not the receiver")));
        assert_eq!(incoming, Incoming::default());
        incoming.add(from(4, Direction::In, 10, Some(100), None));
        incoming.add(from(5, Direction::In, 20, Some(200), Some("a damaged file")));
        let all = TabletProgress { bytes: 30, total_bytes: Some(300), failure: Some("a damaged file".into()) };
        assert_eq!(incoming.of(Some(session)), Some(&all));
        incoming.add(from(6, Direction::In, 1, None, None));
        assert_eq!(
            incoming.of(Some(session)).map(|all| (all.bytes, all.total_bytes)),
            Some((31, None)),
            "as mutations"
        );
        assert_eq!(incoming.of(None), None);
    }
}
