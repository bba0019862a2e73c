//! Read repair: replicas receive the data that they lack before the client is answered, so a later
//! read at this level never returns less.
//!
//! While a tablet moves, reads first use one set of replicas and later another. A result must hold
//! in both sets. So replicas that are not read now are repaired too, and the level is counted in
//! each set. If too few replicas of the other set have all data, sources that are only in this set
//! do not count, and more replicas are asked.

use super::client::Message;
use super::level::factors;
use super::nodes::Nodes;
use super::quorum_state::{Repaired, Sources};
use super::replica_failure::ReplicaFailure;
use super::response_tracker::{LevelStatus, ResponseTracker};
use super::{Coordinator, RequestOptions, count};
use cluster::metadata::{Metadata, Table};
use cluster::tablets::TabletReplica;
use cluster::tablets::transition::Replicas;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use model::mutation::Mutation;
use replica::{Context, ReplicaError, ReplicaRequest};
use rt::sync::Deadline;
use rt::time::Duration;
use smallvec::SmallVec;

/// How long to wait for a replica that is not read, if another source may be read instead.
const UNREAD_TIMEOUT: Duration = Duration::from_millis(500);

/// The read set of a moving tablet before or after the current stage.
pub(super) struct OtherSet {
    copies: Replicas,
    /// The replicas of `copies` that are not read now.
    unread: Replicas,
    /// A tracker for the level in this set.
    tracker: ResponseTracker,
}

impl OtherSet {
    /// The other read set of a tablet. None: the tablet does not move.
    pub fn of(
        metadata: &Metadata,
        nodes: &Nodes,
        table: &Table,
        tablet: u32,
        options: &RequestOptions,
    ) -> Option<OtherSet> {
        let copies = table.tablets.other_read_set(tablet)?;
        let read = table.tablets.read_set(tablet);
        let candidates: SmallVec<[_; 4]> = copies.iter().map(|copy| nodes.candidate(*copy, false)).collect();
        let factors = factors(metadata, nodes, &table.schema.keyspace, &candidates);
        let tracker = ResponseTracker::new(options.consistency, nodes.own_datacenter(), &factors, &candidates);
        Some(OtherSet { unread: copies.iter().filter(|copy| !read.contains(copy)).copied().collect(), copies, tracker })
    }
}

/// The data that replicas lack.
pub(super) struct Repairs<'a> {
    /// The sources that lack something.
    pub lacking: Sources,
    /// The repairs of each source.
    of_each: Vec<(TabletReplica, Vec<Mutation>)>,
    /// The repairs of all sources together, for replicas that are not read.
    of_all: Vec<Mutation>,
    other: Option<&'a OtherSet>,
}

impl<'a> Repairs<'a> {
    /// The repairs of the sources: `repairs` has a list for each of them.
    pub fn new(sources: &[TabletReplica], repairs: Vec<Vec<Mutation>>, other: Option<&'a OtherSet>) -> Repairs<'a> {
        let of_all = match other {
            Some(_) => repairs.iter().flatten().cloned().collect(),
            None => Vec::new(),
        };
        let of_each: Vec<_> = sources.iter().copied().zip(repairs).filter(|(_, lacks)| !lacks.is_empty()).collect();
        Repairs { lacking: of_each.iter().map(|(source, _)| *source).collect(), of_each, of_all, other }
    }
}

/// Counts the replicas of the other set that have all data.
struct OtherSetTracker<'a> {
    other: Option<&'a OtherSet>,
    tracker: Option<ResponseTracker>,
}

impl OtherSetTracker<'_> {
    fn has_everything(&mut self, replica: TabletReplica, nodes: &Nodes) {
        if let (Some(tracker), Some(other)) = (&mut self.tracker, self.other)
            && other.copies.contains(&replica)
        {
            tracker.answered(nodes.datacenter(replica.host));
        }
    }

    fn is_reached(&self) -> bool {
        self.tracker.as_ref().is_none_or(|tracker| tracker.status() == LevelStatus::Reached)
    }
}

impl Coordinator {
    /// Sends repairs, and waits until as many replicas as the level needs have all data. `tracker`
    /// counts the sources that lack nothing. `has_spare`: another replica can be read in place of a
    /// slow one.
    pub(super) async fn repair(
        &self,
        repairs: Repairs<'_>,
        sources: &[TabletReplica],
        nodes: &Nodes,
        mut tracker: ResponseTracker,
        has_spare: bool,
        options: &RequestOptions,
    ) -> Repaired {
        let Repairs { lacking, of_each, of_all, other } = repairs;
        let mut other_tracker = OtherSetTracker { other, tracker: other.map(|other| other.tracker.clone()) };
        let (mut missed, mut failures) = (Sources::new(), Vec::new());
        if of_each.is_empty() {
            return Repaired { tracker, missed, failures };
        }
        let complete = sources.iter().filter(|source| !lacking.contains(source));
        complete.for_each(|source| other_tracker.has_everything(*source, nodes));
        let mut under_way = FuturesUnordered::new();
        // The read was counted.
        let mut context = options.exempt().context;
        for (source, lacks) in of_each {
            under_way.push(self.send_repairs(source, lacks, &context));
        }
        if has_spare {
            context.deadline = context.deadline.min(Deadline::after(UNREAD_TIMEOUT));
        }
        for unread in other.iter().flat_map(|other| &other.unread) {
            under_way.push(self.send_repairs(*unread, of_all.clone(), &context));
        }
        while tracker.status() != LevelStatus::Reached || !other_tracker.is_reached() {
            let Some((replica, sent)) = under_way.next().await else { break };
            let is_read = sources.contains(&replica);
            match sent {
                Ok(()) => {
                    if is_read {
                        tracker.answered(nodes.datacenter(replica.host));
                    }
                    other_tracker.has_everything(replica, nodes);
                }
                Err(failure) => {
                    if is_read {
                        tracker.failed(nodes.datacenter(replica.host));
                        missed.push(replica);
                    }
                    failures.push((replica, failure));
                }
            }
        }
        if let Some(other) = other.filter(|_| !other_tracker.is_reached()) {
            let only_here = |source: &&TabletReplica| !other.copies.contains(source) && !missed.contains(source);
            let only_here: Replicas = sources.iter().filter(only_here).copied().collect();
            for replica in only_here {
                let datacenter = nodes.datacenter(replica.host);
                tracker.withdrawn(datacenter);
                tracker.failed(datacenter);
                missed.push(replica);
            }
        }
        Repaired { tracker, missed, failures }
    }

    /// Sends repairs to a replica, in a task of its own: repairs that have begun are completed even
    /// if the client disconnects.
    fn send_repairs(
        &self,
        to: TabletReplica,
        repairs: Vec<Mutation>,
        context: &Context,
    ) -> impl Future<Output = (TabletReplica, Result<(), ReplicaFailure>)> + use<> {
        count(&self.counters.read_repairs);
        let (client, context) = (self.client.clone(), context.clone());
        let task = rt::task::spawn(async move {
            for repair in repairs {
                client.send(to, &Message::new(ReplicaRequest::write(repair)), &context).await?;
            }
            Ok(())
        });
        async move { (to, task.await.unwrap_or(Err(ReplicaFailure::Refused(ReplicaError::Cancelled)))) }
    }
}
