//! Read repair: replicas that lack some of what a read found get it before its answer goes out, so a later read at this level never sees less.
//!
//! While a tablet moves, reads go to one set of copies and later to another. What a read shows must hold in both: the copies that are not read
//! just now are given the repairs too, and the level is counted in either set. If too few of the other set have everything, the copies that
//! are in this one only do not count, and others are asked.

use super::far::{Message, Miss};
use super::gather::Gathering;
use super::nodes::Nodes;
use super::reconcile::Merged;
use super::replicate::factors;
use super::tally::{Standing, Tally};
use super::{Coordinator, RequestOptions, count};
use crate::metadata::{Metadata, Table};
use crate::tablets::TabletReplica;
use crate::tablets::transition::Replicas;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use model::mutation::Mutation;
use replica::wire::Request;
use replica::{Context, ReplicaError};
use rt::sync::Deadline;
use rt::time::Duration;
use smallvec::SmallVec;

/// How long a copy that is not read is waited for, where another one may be read instead.
const UNREAD_PATIENCE: Duration = Duration::from_millis(500);

/// The copies of a tablet on the move that are read before or after this stage.
pub(super) struct OtherSet {
    copies: Replicas,
    /// Those of them that are not read now.
    unread: Replicas,
    /// What the level asks for of them.
    tally: Tally,
}

impl OtherSet {
    /// That of a tablet; none: it is not on the move.
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
        let factors = factors(metadata, nodes, &table.schema.keyspace, &copies);
        let tally = Tally::new(options.consistency, nodes.own_datacenter(), &factors, &candidates);
        Some(OtherSet { unread: copies.iter().filter(|copy| !read.contains(copy)).copied().collect(), copies, tally })
    }
}

impl Coordinator {
    /// Gives replicas what they lack, and waits until as many as the level asks for have everything. Those that do not count any more, for they
    /// missed it: the tally knows.
    pub(super) async fn repair(
        &self,
        sources: &[TabletReplica],
        merged: &mut Merged,
        other: Option<&OtherSet>,
        gathering: &mut Gathering,
        options: &RequestOptions,
    ) -> SmallVec<[TabletReplica; 3]> {
        let repairs = std::mem::take(&mut merged.repairs);
        let mut elsewhere = other.map(|other| other.tally.clone());
        let mut has_everything = |replica: &TabletReplica, nodes: &Nodes| {
            if let (Some(tally), Some(other)) = (&mut elsewhere, other)
                && other.copies.contains(replica)
            {
                tally.answered(nodes.datacenter(replica.host));
            }
            elsewhere.as_ref().is_none_or(|tally| tally.standing() == Standing::Reached)
        };
        let all: Vec<Mutation> = match other {
            Some(_) => repairs.iter().flatten().cloned().collect(),
            None => Vec::new(),
        };
        let mut under_way = FuturesUnordered::new();
        let mut holds_elsewhere = other.is_none();
        for (source, repairs) in sources.iter().zip(repairs) {
            if repairs.is_empty() {
                holds_elsewhere = has_everything(source, &gathering.nodes);
            } else {
                gathering.tally.withdrawn(gathering.nodes.datacenter(source.host));
                under_way.push(self.bring(*source, repairs, &options.context));
            }
        }
        let mut missed = SmallVec::new();
        if under_way.is_empty() {
            return missed;
        }
        let mut context = options.context.clone();
        if !gathering.spare.is_empty() {
            context.deadline = context.deadline.min(Deadline::after(UNREAD_PATIENCE));
        }
        for unread in other.iter().flat_map(|other| &other.unread) {
            under_way.push(self.bring(*unread, all.clone(), &context));
        }
        while gathering.tally.standing() != Standing::Reached || !holds_elsewhere {
            let Some((replica, brought)) = under_way.next().await else { break };
            let is_read = sources.contains(&replica);
            match brought {
                Ok(()) => {
                    if is_read {
                        gathering.tally.answered(gathering.nodes.datacenter(replica.host));
                    }
                    holds_elsewhere = has_everything(&replica, &gathering.nodes);
                }
                Err(miss) => {
                    if is_read {
                        gathering.tally.failed(gathering.nodes.datacenter(replica.host));
                        missed.push(replica);
                    }
                    gathering.note_unrepaired(replica, miss);
                }
            }
        }
        if let Some(other) = other.filter(|_| !holds_elsewhere) {
            let only_here = |source: &&TabletReplica| !other.copies.contains(source) && !missed.contains(source);
            let only_here: Replicas = sources.iter().filter(only_here).copied().collect();
            for replica in only_here {
                let datacenter = gathering.nodes.datacenter(replica.host);
                gathering.tally.withdrawn(datacenter);
                gathering.tally.failed(datacenter);
                missed.push(replica);
            }
        }
        missed
    }

    /// Has a replica write repairs. Tasks of their own: what is begun is finished, also if the client goes.
    fn bring(
        &self,
        to: TabletReplica,
        repairs: Vec<Mutation>,
        context: &Context,
    ) -> impl Future<Output = (TabletReplica, Result<(), Miss>)> + use<> {
        count(&self.counters.read_repairs);
        let (far, context) = (self.far.clone(), context.clone());
        let task = rt::task::spawn(async move {
            for repair in repairs {
                far.ask(to, &Message::new(Request::Write(repair)), &context).await?;
            }
            Ok(())
        });
        async move { (to, task.await.unwrap_or(Err(Miss::Refused(ReplicaError::Cancelled)))) }
    }
}
