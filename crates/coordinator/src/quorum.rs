//! The state of a read of several replicas: which of them were asked for what, what came, and which one to ask next. Pure.
//!
//! The rows come from one replica, digests of them from as many others as the level asks for. A replica that fails is replaced by the next
//! one; where only digests came, a replica that gave one is asked for its rows.

use super::miss::Miss;
use super::misses::Misses;
use super::nodes::Nodes;
use super::reconcile;
use super::steps::Part;
use super::tally::{Standing, Tally};
use super::{Consistency, CoordinatorError};
use bytes::Bytes;
use cluster::tablets::TabletReplica;
use model::schema::ClusteringOrder;
use replica::{Answer, Digest, Page, ReplicaError};
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::rc::Rc;

/// Replicas of one read.
pub(super) type Sources = SmallVec<[TabletReplica; 3]>;

/// What a read does next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Next {
    /// It waits for replicas that were asked.
    Wait,
    /// It asks a replica in place of one that failed.
    Ask(TabletReplica, Part),
    /// The level is reached, and the rows are there.
    Enough,
    /// The level cannot be reached any more.
    OutOfReach,
}

/// A read of several replicas.
pub(super) struct QuorumRead {
    pub nodes: Rc<Nodes>,
    pub tally: Tally,
    pub misses: Misses,
    /// Replicas that may be asked if others fail.
    spare: VecDeque<TabletReplica>,
    /// Replicas that were asked and have not answered.
    silent: SmallVec<[TabletReplica; 4]>,
    /// How many of these were asked for rows.
    rows_asked: usize,
    rows: Option<(TabletReplica, Box<Page>, Option<Digest>)>,
    digests: SmallVec<[(TabletReplica, Box<Page>, Digest); 2]>,
}

impl QuorumRead {
    /// A read of which nobody was asked yet. `alive`: replicas that count and are taken to be alive.
    pub fn new(
        nodes: Rc<Nodes>,
        tally: Tally,
        consistency: Consistency,
        spare: VecDeque<TabletReplica>,
        alive: u32,
    ) -> QuorumRead {
        QuorumRead {
            nodes,
            tally,
            misses: Misses::new(consistency, alive),
            spare,
            silent: SmallVec::new(),
            rows_asked: 0,
            rows: None,
            digests: SmallVec::new(),
        }
    }

    /// Notes that a replica is asked.
    pub fn asked(&mut self, replica: TabletReplica, part: Part) {
        self.silent.push(replica);
        self.rows_asked += usize::from(part == Part::Rows);
    }

    /// Whether there is a replica that could be asked as well.
    pub fn has_spare(&self) -> bool {
        !self.spare.is_empty()
    }

    /// Whom to ask as well, where those that were asked are slow.
    pub fn ask_as_well(&mut self) -> Option<(TabletReplica, Part)> {
        let replica = self.spare.pop_front()?;
        Some((replica, if self.rows.is_none() { Part::Rows } else { Part::Digest }))
    }

    /// Takes what a replica answered.
    pub fn add(&mut self, replica: TabletReplica, part: Part, answer: Result<Answer, Miss>) -> Next {
        self.silent.retain(|other| *other != replica);
        let miss = match (part, answer) {
            (Part::Rows, Ok(Answer::Page(page))) => {
                self.counts(replica);
                self.rows = Some((replica, page, None));
                None
            }
            (Part::Rows, Ok(Answer::Digested(page, digest))) if self.rows.is_none() => {
                self.counts(replica);
                self.rows = Some((replica, page, Some(digest)));
                None
            }
            (_, Ok(Answer::Digested(mut page, digest))) => {
                self.counts(replica);
                page.body = Bytes::new();
                self.digests.push((replica, page, digest));
                None
            }
            (_, Ok(_)) => Some(otherwise()),
            (_, Err(miss)) => Some(miss),
        };
        let mut instead = None;
        if let Some(miss) = miss {
            self.fail(replica, miss);
            self.rows_asked -= usize::from(part == Part::Rows);
            instead = self.instead();
        } else if self.rows_asked == 0 && self.rows.is_none() {
            instead = self.instead();
        }
        match (self.tally.standing(), instead) {
            (Standing::OutOfReach, _) => Next::OutOfReach,
            (Standing::Reached, _) if self.rows.is_some() => Next::Enough,
            (_, Some((replica, part))) => Next::Ask(replica, part),
            // Nobody is left who could give the rows.
            _ if self.silent.is_empty() => Next::OutOfReach,
            _ => Next::Wait,
        }
    }

    /// Whom to ask in place of a replica that failed.
    fn instead(&mut self) -> Option<(TabletReplica, Part)> {
        if let Some(spare) = self.next_spare() {
            return Some((spare, if self.rows_asked == 0 { Part::Rows } else { Part::Digest }));
        }
        if self.rows_asked > 0 || self.rows.is_some() {
            return None;
        }
        // Enough digests may have come, but nobody is left to give the rows, save those who gave digests.
        let (replica, ..) = self.digests.pop()?;
        self.tally.withdrawn(self.nodes.datacenter(replica.host));
        Some((replica, Part::Rows))
    }

    /// Ends the asking: replicas that have not answered are spare ones again, for what is reconciled may need them.
    pub fn end_asking(&mut self) {
        self.spare.extend(std::mem::take(&mut self.silent));
    }

    /// The page, if all agree on it, and who they are. It ends where the first of them ended.
    pub fn agreed(&mut self, order: &ClusteringOrder) -> Option<(Box<Page>, Sources)> {
        let (_, page, digest) = self.rows.as_ref()?;
        match digest {
            Some(digest) if self.digests.iter().any(|(_, _, other)| other != digest) => return None,
            Some(_) => {}
            // One replica is enough for the level: it was asked for no digest, and what others gave does not matter.
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

    /// Those who answered, which do not count any more: they are to be asked for their data.
    pub fn disagreed(&mut self) -> Sources {
        let answered = self.answered();
        self.withdraw(&answered);
        answered
    }

    fn answered(&self) -> Sources {
        let rows = self.rows.iter().map(|(replica, ..)| *replica);
        rows.chain(self.digests.iter().map(|(replica, ..)| *replica)).collect()
    }

    /// The next spare replica whose answer would count.
    pub fn next_spare(&mut self) -> Option<TabletReplica> {
        let counts = |replica: &TabletReplica| self.tally.needs(self.nodes.datacenter(replica.host));
        let at = self.spare.iter().position(counts)?;
        self.spare.remove(at)
    }

    /// A replica's answer counts.
    pub fn counts(&mut self, replica: TabletReplica) {
        self.tally.answered(self.nodes.datacenter(replica.host));
    }

    /// A replica does not answer.
    pub fn fail(&mut self, replica: TabletReplica, miss: Miss) {
        self.tally.failed(self.nodes.datacenter(replica.host));
        self.misses.note(self.nodes.address(replica.host), miss);
    }

    /// Answers that do not count any more.
    pub fn withdraw(&mut self, replicas: &[TabletReplica]) {
        replicas.iter().for_each(|replica| self.tally.withdrawn(self.nodes.datacenter(replica.host)));
    }

    /// Why there is no page: too little came. `late`: the time ran out.
    pub fn error(&mut self, late: bool) -> CoordinatorError {
        self.misses.error(&self.tally, self.rows.is_some(), late)
    }
}

/// A replica answered something else than it was asked for.
#[cold]
pub(super) fn otherwise() -> Miss {
    Miss::Refused(ReplicaError::Storage("a read was answered otherwise".into()))
}

#[cfg(test)]
mod tests;
