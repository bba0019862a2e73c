//! Read repair: replicas that lack some of what a read found get it before its answer goes out, so a later read at this level never sees less.
//!
//! While a tablet moves, reads go to one set of copies and later to another. What a read shows must hold in both: the copies that are not read
//! just now are given the repairs too, and the level is counted in either set. If too few of the other set have everything, the copies that
//! are in this one only do not count, and others are asked.

use super::client::Message;
use super::level::factors;
use super::miss::Miss;
use super::nodes::Nodes;
use super::quorum::Sources;
use super::tally::{Standing, Tally};
use super::{Coordinator, RequestOptions, count};
use cluster::metadata::{Metadata, Table};
use cluster::tablets::TabletReplica;
use cluster::tablets::transition::Replicas;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use model::mutation::Mutation;
use replica::{Context, ReplicaError, Request};
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

/// What replicas lack of what a read found.
pub(super) struct Repairs<'a> {
    /// Those that lack something.
    pub lacking: Sources,
    /// What each of them lacks.
    of_each: Vec<(TabletReplica, Vec<Mutation>)>,
    /// What all of them lack, for copies that are not read.
    of_all: Vec<Mutation>,
    other: Option<&'a OtherSet>,
}

impl<'a> Repairs<'a> {
    /// What the sources lack: `repairs` has a list for each of them.
    pub fn new(sources: &[TabletReplica], repairs: Vec<Vec<Mutation>>, other: Option<&'a OtherSet>) -> Repairs<'a> {
        let of_all = match other {
            Some(_) => repairs.iter().flatten().cloned().collect(),
            None => Vec::new(),
        };
        let of_each: Vec<_> = sources.iter().copied().zip(repairs).filter(|(_, lacks)| !lacks.is_empty()).collect();
        Repairs { lacking: of_each.iter().map(|(source, _)| *source).collect(), of_each, of_all, other }
    }
}

/// What became of repairs.
pub(super) struct Repaired {
    /// The level, as far as it is reached by replicas that have everything.
    pub tally: Tally,
    /// Sources that do not count any more.
    pub missed: Sources,
    /// Why replicas did not take what they lack.
    pub misses: Vec<(TabletReplica, Miss)>,
}

/// Counts copies of the other set that have everything.
struct Elsewhere<'a> {
    other: Option<&'a OtherSet>,
    tally: Option<Tally>,
}

impl Elsewhere<'_> {
    fn has_everything(&mut self, replica: TabletReplica, nodes: &Nodes) {
        if let (Some(tally), Some(other)) = (&mut self.tally, self.other)
            && other.copies.contains(&replica)
        {
            tally.answered(nodes.datacenter(replica.host));
        }
    }

    fn is_reached(&self) -> bool {
        self.tally.as_ref().is_none_or(|tally| tally.standing() == Standing::Reached)
    }
}

impl Coordinator {
    /// Gives replicas what they lack, and waits until as many as the level asks for have everything. `tally` counts the sources that lack
    /// nothing. `has_spare`: another replica may be read in place of one that is slow.
    pub(super) async fn repair(
        &self,
        repairs: Repairs<'_>,
        sources: &[TabletReplica],
        nodes: &Nodes,
        mut tally: Tally,
        has_spare: bool,
        options: &RequestOptions,
    ) -> Repaired {
        let Repairs { lacking, of_each, of_all, other } = repairs;
        let mut elsewhere = Elsewhere { other, tally: other.map(|other| other.tally.clone()) };
        let (mut missed, mut misses) = (Sources::new(), Vec::new());
        if of_each.is_empty() {
            return Repaired { tally, missed, misses };
        }
        let complete = sources.iter().filter(|source| !lacking.contains(source));
        complete.for_each(|source| elsewhere.has_everything(*source, nodes));
        let mut under_way = FuturesUnordered::new();
        for (source, lacks) in of_each {
            under_way.push(self.bring(source, lacks, &options.context));
        }
        let mut context = options.context.clone();
        if has_spare {
            context.deadline = context.deadline.min(Deadline::after(UNREAD_PATIENCE));
        }
        for unread in other.iter().flat_map(|other| &other.unread) {
            under_way.push(self.bring(*unread, of_all.clone(), &context));
        }
        while tally.standing() != Standing::Reached || !elsewhere.is_reached() {
            let Some((replica, brought)) = under_way.next().await else { break };
            let is_read = sources.contains(&replica);
            match brought {
                Ok(()) => {
                    if is_read {
                        tally.answered(nodes.datacenter(replica.host));
                    }
                    elsewhere.has_everything(replica, nodes);
                }
                Err(miss) => {
                    if is_read {
                        tally.failed(nodes.datacenter(replica.host));
                        missed.push(replica);
                    }
                    misses.push((replica, miss));
                }
            }
        }
        if let Some(other) = other.filter(|_| !elsewhere.is_reached()) {
            let only_here = |source: &&TabletReplica| !other.copies.contains(source) && !missed.contains(source);
            let only_here: Replicas = sources.iter().filter(only_here).copied().collect();
            for replica in only_here {
                let datacenter = nodes.datacenter(replica.host);
                tally.withdrawn(datacenter);
                tally.failed(datacenter);
                missed.push(replica);
            }
        }
        Repaired { tally, missed, misses }
    }

    /// Has a replica write repairs. Tasks of their own: what is begun is finished, also if the client goes.
    fn bring(
        &self,
        to: TabletReplica,
        repairs: Vec<Mutation>,
        context: &Context,
    ) -> impl Future<Output = (TabletReplica, Result<(), Miss>)> + use<> {
        count(&self.counters.read_repairs);
        let (client, context) = (self.client.clone(), context.clone());
        let task = rt::task::spawn(async move {
            for repair in repairs {
                client.send(to, &Message::new(Request::write(repair)), &context).await?;
            }
            Ok(())
        });
        async move { (to, task.await.unwrap_or(Err(Miss::Refused(ReplicaError::Cancelled)))) }
    }
}
