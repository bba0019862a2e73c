//! Reports to the owners of hot partitions how many operations this shard receives. Their answers
//! have the rates at all other coordinators ([`replica::arrivals`]). An owner of a partition with a
//! limit of bytes also reports the bytes that it has read.
//!
//! A few times a second each shard sends one small message to each shard that owns one of its hot
//! partitions. Nothing is sent while no partition has a good part of its limit. A lost report of
//! operations does not matter, because the next report replaces it. Lost bytes are not reported
//! again. The reports of a shard that no longer reports expire.

use super::Coordinator;
use bytes::Bytes;
use cluster::metadata::Metadata;
use cluster::tablets::TabletReplica;
use internode::{Internode, Refusal, Verb};
use model::id::{HostId, TableId};
use model::token::Token;
use replica::Replica;
use replica::arrivals::{Arrival, Origin};
use replica::limiter::LimitKey;
use replica::wire::{decode_arrivals, decode_others, encode_arrivals, encode_others};
use rt::ShardId;
use rt::sync::Deadline;
use rt::time::Duration;
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};
use uuid::Uuid;

/// The pause between two reports.
const PERIOD: Duration = Duration::from_millis(250);
/// How long an owner may take to answer.
const ANSWER: Duration = Duration::from_millis(200);

/// Serves the reports of other nodes' coordinators on this shard.
pub(super) fn serve(internode: &Internode, replica: Rc<Replica>) {
    internode.serve(Verb::Arrivals, move |caller, report: Bytes| {
        let answer = answer(&replica, Origin { host: caller.host, shard: caller.shard }, &report);
        async move { answer.map(Into::into) }
    });
}

/// Takes a report, and returns the answer.
///
/// # Errors
///
/// A report that is malformed, or has too many partitions.
pub fn answer(replica: &Replica, from: Origin, report: &Bytes) -> Result<Bytes, Refusal> {
    let report = decode_arrivals(report).map_err(Refusal::malformed)?;
    Ok(encode_others(&replica.take_arrivals(from, report)))
}

/// The shards to report to, each with the indexes of its partitions.
fn by_owner(metadata: &Metadata, arrivals: &[Arrival], own: TabletReplica) -> BTreeMap<(HostId, u16), Vec<usize>> {
    let mut owners: BTreeMap<_, Vec<usize>> = BTreeMap::new();
    for (at, Arrival { key: LimitKey { table, token, .. }, .. }) in arrivals.iter().enumerate() {
        let Some(table) = metadata.table_by_id(TableId(Uuid::from_u128(*table))) else { continue };
        let tablets = &table.tablets;
        for owner in tablets.read_set(tablets.tablet_of(Token(*token))).iter().filter(|owner| **owner != own) {
            owners.entry((owner.host, owner.shard)).or_default().push(at);
        }
    }
    owners
}

impl Coordinator {
    /// Reports periodically until the shard stops, or the coordinator is dropped.
    pub async fn keep_reporting_arrivals(coordinator: Weak<Coordinator>) {
        let stopping = rt::shard::stopping();
        while stopping.unless(rt::time::sleep(PERIOD)).await.is_some() {
            let Some(coordinator) = coordinator.upgrade() else { return };
            coordinator.report_arrivals().await;
        }
    }

    /// Reports once, if there is something to report, and takes the answers.
    pub async fn report_arrivals(&self) {
        let arrivals = self.replica.arrivals();
        if arrivals.is_empty() {
            return;
        }
        let metadata = self.metadata();
        let nodes = self.nodes_by(&metadata);
        let own = TabletReplica { host: self.host, shard: rt::shard::this().0 };
        let owners = by_owner(&metadata, &arrivals, own);
        drop(metadata);
        let reports = owners.iter().filter(|((host, _), _)| nodes.is_alive(*host)).map(|((host, shard), parts)| {
            let owner = TabletReplica { host: *host, shard: *shard };
            let report = encode_arrivals(parts.iter().map(|at| &arrivals[*at]));
            async move { (parts, self.report_to(owner, own, report).await) }
        });
        let mut others = vec![None; arrivals.len()];
        for (parts, answer) in futures_util::future::join_all(reports).await {
            // The owners may have different answers, if one of them has missed a report.
            let told = answer.and_then(|answer| decode_others(&answer).ok()).unwrap_or_default();
            parts.iter().zip(told).for_each(|(at, told)| others[*at] = others[*at].max(Some(told)));
        }
        for (arrival, others) in arrivals.iter().zip(others) {
            if let Some(others) = others {
                self.replica.learn_arrivals(arrival.key, others);
            }
        }
    }

    /// Sends a report to an owner. None: it does not answer in time.
    async fn report_to(&self, owner: TabletReplica, own: TabletReplica, report: Bytes) -> Option<Bytes> {
        let until = Deadline::after(ANSWER);
        if owner.host != own.host {
            return self.client.transport()?.call(owner, Verb::Arrivals, report, until).await.ok();
        }
        let (from, replicas) = (Origin { host: own.host, shard: own.shard }, self.metadata.shards().replica);
        let take = move || async move { answer(&*replicas.try_get()?, from, &report).ok() };
        until.limit(rt::shard::call(ShardId(owner.shard), take)).await.ok().flatten()
    }
}
