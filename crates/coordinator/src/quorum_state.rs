//! The state of a read of several replicas: the replicas that were asked, their answers, and the
//! next replicas. Pure.
//!
//! Rows come from one replica, digests from as many others as the level needs. A replica that fails
//! is replaced by the next one. If only digests arrived, a replica that sent one is asked for its
//! rows.

use super::nodes::Nodes;
use super::read_failures::ReadFailures;
use super::read_trace::ReadKind;
use super::reconcile;
use super::replica_failure::{FailureClass, ReplicaFailure};
use super::response_tracker::{LevelStatus, ResponseTracker};
use super::{Consistency, CoordinatorError};
use bytes::Bytes;
use cluster::tablets::TabletReplica;
use model::schema::ClusteringOrder;
use replica::{Digest, Page, ReplicaResponse};
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::rc::Rc;

/// The replicas of one read.
pub(super) type Sources = SmallVec<[TabletReplica; 3]>;

/// The next step of a read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Next {
    /// Wait for the replicas that were asked.
    Wait,
    /// Ask this replica in place of a failed replica.
    Ask(TabletReplica, ReadKind),
    /// Ask this replica once more: for its rows after its digest, or because the connection to it
    /// was lost.
    AskAgain(TabletReplica, ReadKind),
    /// Done: the level is reached, and the rows have arrived.
    Enough,
    /// Fail: the level cannot be reached.
    Unreachable,
}

/// The outcome of repairs.
pub(super) struct Repaired {
    /// The tracker of the level: it counts the replicas that have all data.
    pub tracker: ResponseTracker,
    /// Sources that no longer count.
    pub missed: Sources,
    /// The failures of repairs.
    pub failures: Vec<(TabletReplica, ReplicaFailure)>,
}

/// The next step of a reconciliation whose repairs were sent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum AfterRepair {
    /// Done: as many replicas as the level needs have all data.
    Enough,
    /// Merge the data of these replicas.
    Merge(Sources),
    /// Fail: the level cannot be reached.
    Unreachable,
}

/// The state of a read of several replicas.
pub(super) struct QuorumState {
    pub nodes: Rc<Nodes>,
    pub tracker: ResponseTracker,
    pub failures: ReadFailures,
    /// Replicas that were not asked yet, in the order in which to ask them.
    spare: VecDeque<TabletReplica>,
    /// Replicas that were asked and have not responded.
    silent: SmallVec<[TabletReplica; 4]>,
    /// Replicas that were asked once more because the connection to them was lost.
    lost: Sources,
    /// The number of replicas that were asked for rows and have not failed.
    rows_asked: usize,
    rows: Option<(TabletReplica, Box<Page>, Option<Digest>)>,
    digests: SmallVec<[(TabletReplica, Box<Page>, Digest); 2]>,
}

impl QuorumState {
    /// The state before the first request. `alive`: replicas that count towards the level and are
    /// up.
    pub fn new(
        nodes: Rc<Nodes>,
        tracker: ResponseTracker,
        consistency: Consistency,
        spare: VecDeque<TabletReplica>,
        alive: u32,
    ) -> QuorumState {
        QuorumState {
            nodes,
            tracker,
            failures: ReadFailures::new(consistency, alive),
            spare,
            silent: SmallVec::new(),
            lost: Sources::new(),
            rows_asked: 0,
            rows: None,
            digests: SmallVec::new(),
        }
    }

    /// Records that a replica is asked.
    pub fn asked(&mut self, replica: TabletReplica, kind: ReadKind) {
        debug_assert!(!self.silent.contains(&replica), "a replica has one request at a time");
        debug_assert!(!self.spare.contains(&replica), "a replica that is asked is no spare one");
        self.silent.push(replica);
        self.rows_asked += usize::from(kind == ReadKind::Rows);
    }

    /// Whether a replica is left that was not asked.
    pub fn has_spare(&self) -> bool {
        !self.spare.is_empty()
    }

    /// The additional replica to ask because the asked replicas are slow.
    pub fn next_speculative(&mut self) -> Option<(TabletReplica, ReadKind)> {
        let replica = self.next_spare().or_else(|| self.spare.pop_front())?;
        Some((replica, if self.rows.is_none() { ReadKind::Rows } else { ReadKind::Digest }))
    }

    /// Records the response of a replica.
    pub fn add(
        &mut self,
        replica: TabletReplica,
        kind: ReadKind,
        answer: Result<ReplicaResponse, ReplicaFailure>,
    ) -> Next {
        debug_assert!(self.silent.contains(&replica), "only replicas that were asked answer");
        self.silent.retain(|other| *other != replica);
        let failure = match (kind, answer) {
            (ReadKind::Rows, Ok(ReplicaResponse::Page(page))) => {
                self.counts(replica);
                self.rows = Some((replica, page, None));
                None
            }
            (ReadKind::Rows, Ok(ReplicaResponse::Digested(page, digest))) if self.rows.is_none() => {
                self.counts(replica);
                self.rows = Some((replica, page, Some(digest)));
                None
            }
            (_, Ok(ReplicaResponse::Digested(mut page, digest))) => {
                self.counts(replica);
                page.body = Bytes::new();
                self.digests.push((replica, page, digest));
                None
            }
            (_, Ok(_)) => Some(ReplicaFailure::unexpected_answer("a read")),
            (_, Err(failure)) => Some(failure),
        };
        let mut instead = None;
        if let Some(failure) = failure {
            if failure.is_lost() && self.may_ask_again(replica) {
                self.lost.push(replica);
                self.rows_asked -= usize::from(kind == ReadKind::Rows);
                return Next::AskAgain(replica, kind);
            }
            if failure.is_rate_limited() {
                self.give_up_spare();
            }
            // The replica received the first request, or may have.
            let was_sent = failure.class() == FailureClass::NotSent && self.lost.contains(&replica);
            self.fail(replica, if was_sent { failure.into_lost() } else { failure });
            self.rows_asked -= usize::from(kind == ReadKind::Rows);
            instead = self.replacement();
        } else if self.rows_asked == 0 && self.rows.is_none() {
            instead = self.replacement();
        }
        debug_assert!(is_distinct(&self.answered()), "the answer of each replica counts once");
        match (self.tracker.status(), instead) {
            (LevelStatus::Unreachable, _) => Next::Unreachable,
            (LevelStatus::Reached, _) if self.rows.is_some() => Next::Enough,
            (_, Some(next)) => next,
            // No replica is left that could return the rows.
            _ if self.silent.is_empty() => Next::Unreachable,
            _ => Next::Wait,
        }
    }

    /// The replica to ask in place of a failed replica.
    fn replacement(&mut self) -> Option<Next> {
        if let Some(spare) = self.next_spare() {
            return Some(Next::Ask(spare, if self.rows_asked == 0 { ReadKind::Rows } else { ReadKind::Digest }));
        }
        if self.rows_asked > 0 || self.rows.is_some() {
            return None;
        }
        // Only replicas that sent a digest are left: ask one of them for its rows.
        let (replica, ..) = self.digests.pop()?;
        self.tracker.withdrawn(self.nodes.datacenter(replica.host));
        Some(Next::AskAgain(replica, ReadKind::Rows))
    }

    /// Whether a replica is asked once more when the connection to it was lost. A connection that
    /// broke while it was idle shows this only at the next request, and a read has no effect. A
    /// spare replica is preferred: the node may be down.
    fn may_ask_again(&self, replica: TabletReplica) -> bool {
        !self.lost.contains(&replica) && self.place_of_spare().is_none()
    }

    /// Asks no other replica in place of a replica that refuses by a rate limit: a refusal must not
    /// cause work elsewhere.
    #[cold]
    fn give_up_spare(&mut self) {
        for spare in std::mem::take(&mut self.spare) {
            self.tracker.failed(self.nodes.datacenter(spare.host));
        }
    }

    /// Makes replicas that have not responded spare ones again: reconciliation may need them.
    pub fn return_unanswered(&mut self) {
        let has_answered = self.answered();
        debug_assert!(
            !self.silent.iter().any(|replica| has_answered.contains(replica)),
            "a silent replica has no answer"
        );
        self.spare.extend(std::mem::take(&mut self.silent));
    }

    /// The page and the replicas that agree on it, if all digests are equal. The page ends where
    /// the first replica ended.
    pub fn agreed(&mut self, order: &ClusteringOrder) -> Option<(Box<Page>, Sources)> {
        debug_assert_eq!(self.tracker.status(), LevelStatus::Reached, "rows are returned when the level is reached");
        let (_, page, digest) = self.rows.as_ref()?;
        match digest {
            Some(digest) if self.digests.iter().any(|(_, _, other)| other != digest) => return None,
            Some(_) => {}
            // The level needs one replica, which was asked for no digest. Other responses do not
            // matter.
            None => self.digests.clear(),
        }
        let answered = self.answered();
        let others = self.digests.iter().map(|(_, page, _)| &**page);
        let first = reconcile::first_end(order, std::iter::once(&**page).chain(others));
        let first = first.map(|page| (page.end, page.last.clone(), page.rows_in_last));
        let (_, mut page, _) = self.rows.take()?;
        if let Some(first) = first {
            (page.end, page.last, page.rows_in_last) = first;
        }
        Some((page, answered))
    }

    /// The replicas that responded. They no longer count, because they are asked for their data
    /// next.
    pub fn disagreed(&mut self) -> Sources {
        let answered = self.answered();
        self.withdraw(&answered);
        answered
    }

    fn answered(&self) -> Sources {
        let rows = self.rows.iter().map(|(replica, ..)| *replica);
        rows.chain(self.digests.iter().map(|(replica, ..)| *replica)).collect()
    }

    /// The next spare replica with an answer that would count.
    pub fn next_spare(&mut self) -> Option<TabletReplica> {
        self.spare.remove(self.place_of_spare()?)
    }

    /// The place among the spare replicas of the next one with an answer that would count.
    fn place_of_spare(&self) -> Option<usize> {
        let counts = |replica: &TabletReplica| self.tracker.needs(self.nodes.datacenter(replica.host));
        self.spare.iter().position(counts)
    }

    /// Counts the response of a replica towards the level.
    pub fn counts(&mut self, replica: TabletReplica) {
        self.tracker.answered(self.nodes.datacenter(replica.host));
    }

    /// Records the failure of a replica.
    pub fn fail(&mut self, replica: TabletReplica, failure: ReplicaFailure) {
        self.tracker.failed(self.nodes.datacenter(replica.host));
        self.failures.record(self.nodes.address(replica.host), failure);
    }

    /// Stops counting the responses of these replicas.
    pub fn withdraw(&mut self, replicas: &[TabletReplica]) {
        replicas.iter().for_each(|replica| self.tracker.withdrawn(self.nodes.datacenter(replica.host)));
    }

    /// Records the outcome of the repairs of these replicas. Spare replicas take the place of those
    /// that could not be repaired.
    pub fn repaired(&mut self, sources: &[TabletReplica], outcome: Repaired) -> AfterRepair {
        self.tracker = outcome.tracker;
        for (replica, failure) in outcome.failures {
            self.failures.record_unrepaired(replica.host, self.nodes.address(replica.host), failure);
        }
        match self.tracker.status() {
            LevelStatus::Reached => return AfterRepair::Enough,
            LevelStatus::Unreachable => return AfterRepair::Unreachable,
            LevelStatus::Open => {}
        }
        let others: Sources = outcome.missed.iter().map_while(|_| self.next_spare()).collect();
        if others.is_empty() {
            return AfterRepair::Unreachable;
        }
        let kept = sources.iter().copied().filter(|source| !outcome.missed.contains(source));
        let mut replicas: Sources = kept.collect();
        self.withdraw(&replicas);
        replicas.extend(others);
        AfterRepair::Merge(replicas)
    }

    /// The error of a read with too few responses. `late`: the deadline passed.
    pub fn error(&mut self, late: bool) -> CoordinatorError {
        self.failures.error(&self.tracker, self.rows.is_some(), late)
    }
}

/// Whether each replica is there once.
fn is_distinct(replicas: &[TabletReplica]) -> bool {
    replicas.iter().enumerate().all(|(i, replica)| !replicas[..i].contains(replica))
}

#[cfg(test)]
mod tests;
