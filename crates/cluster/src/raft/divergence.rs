//! Histories that contradict each other: a member was started with an older copy of its `raft/`.
//!
//! Raft relies on that a member never forgets what it acknowledged. A member that did may have helped others to decide something else in
//! the same places of the log, and openraft asserts that this does not happen. So it is looked for here, before openraft sees the message:
//! by the follower in what a leader sends ([`contradiction`]), and by all in what they know of each other ([`Acknowledged`]). A node that is
//! told that it has forgotten, or finds that others have decided differently, takes no further part: it ends, and says why. What is known
//! of others is in memory: if all that knew are down, a member with an older log goes unnoticed until one of them is back.

use super::network::Request;
use super::stored::{Ballot, FORMAT, Position, decode};
use engine::raft_log::RaftLog;
use model::id::HostId;
use rt::sync::Notify;
use std::cell::{Cell, RefCell};

/// The end of both messages: what an operator can do.
const WAY_OUT: &str = "A backup of `raft/` is no copy as of the last stop. Replace the node whose `raft/` is older than its last run: leave it \
                       stopped, and start a new node with an empty data directory at another address (docs/faults.md, \"The metadata log is \
                       lost\")";

/// What keeps this node from taking part, once it is known.
#[derive(Default)]
pub(super) struct Divergence {
    why: RefCell<Option<String>>,
    found: Notify,
}

impl Divergence {
    /// The node must take no further part. Gives the reason that is known first.
    pub fn find(&self, why: String) -> String {
        if self.why.borrow().is_none() {
            tracing::error!(why, "this node takes no further part in the metadata group");
            self.why.replace(Some(why));
            self.found.notify_waiters();
        }
        self.why().unwrap_or_default()
    }

    pub fn why(&self) -> Option<String> {
        self.why.borrow().clone()
    }

    /// Waits until there is a reason.
    pub async fn wait(&self) -> String {
        loop {
            let found = self.found.notified();
            if let Some(why) = self.why() {
                return why;
            }
            found.await;
        }
    }
}

/// Where an entry stands, from its written form, in which that comes first.
fn position_of(bytes: &[u8]) -> Option<Position> {
    let (_, body) = bytes.split_first().filter(|(version, _)| **version == FORMAT)?;
    postcard::take_from_bytes(body).ok().map(|(position, _)| position)
}

/// Where the entry of an index stands, if the log still says it.
fn at(log: &RaftLog, index: u64) -> Option<Position> {
    match log.purged() {
        Some((purged, id)) if purged == index => position_of(&id),
        _ => log.entries(index, index + 1).first().and_then(|bytes| position_of(bytes)),
    }
}

/// Whether the message is of a leader that was replaced since: this node has voted in a later term.
///
/// Such a leader may hold entries that were never committed in the places of those that its successor has committed, and a message of
/// its may arrive late. That is no contradiction: openraft refuses it for its term. What is decided in a term goes to disk after the vote
/// that opens it, so the vote in the log is never older than what is committed.
fn is_of_a_former_leader(log: &RaftLog, request: &Request) -> bool {
    let term = match request {
        Request::Append { vote, .. } | Request::Snapshot { vote, .. } => vote.term,
        _ => return false,
    };
    let own = log.vote().and_then(|bytes| decode::<Ballot>(&bytes).ok());
    own.is_some_and(|own| term < own.term)
}

/// What contradicts this node's log in what a leader says: (what the leader has, what is committed here).
fn contradicting(log: &RaftLog, request: &Request) -> Option<(Position, Position)> {
    if is_of_a_former_leader(log, request) {
        return None;
    }
    // What was purged is in a snapshot, hence committed. What is applied counts for less: while a snapshot takes effect, the log may yet
    // hold entries in its place that were never agreed upon.
    let committed = log.committed().unwrap_or(0).max(log.purged().map_or(0, |(purged, _)| purged));
    let end = at(log, committed)?;
    let differs = |theirs: &Position| {
        let ours = if theirs.index <= committed { at(log, theirs.index) } else { None };
        match ours {
            Some(ours) => (ours != *theirs).then_some((*theirs, ours)),
            // Terms never fall along a log.
            None if theirs.index > committed => (theirs.term < end.term).then_some((*theirs, end)),
            None => (theirs.term > end.term).then_some((*theirs, end)),
        }
    };
    match request {
        Request::Append { previous, entries, committed, .. } => {
            let entries = entries.iter().map(|record| &record.at);
            previous.iter().chain(committed).chain(entries).find_map(differs)
        }
        Request::Snapshot { head, .. } => head.last.as_ref().and_then(differs),
        _ => None,
    }
}

/// Why this node cannot follow a leader that asks this: the leader's log has other entries where this node's are committed.
pub(super) fn contradiction(log: &RaftLog, from: HostId, request: &Request) -> Option<String> {
    let (theirs, ours) = contradicting(log, request)?;
    Some(format!(
        "the metadata of this node and those of node {from}, which leads, have different committed changes (change {} of term {} there, \
         change {} of term {} here): a member of the cluster was started with an older `raft/` than it had, so changes that were \
         acknowledged are lost on one side. {WAY_OUT}. If that node is among those that lead now, stop them first, and start this node with \
         the members that have its changes",
        theirs.index, theirs.term, ours.index, ours.term
    ))
}

/// Why a node cannot go on that has once acknowledged more than is in its log.
pub(super) fn forgotten(acknowledged: Position, last: Option<Position>) -> String {
    format!(
        "this node has forgotten changes of the metadata that it had acknowledged: change {} of term {}, and its log ends at {}. Its `raft/` \
         is older than its last run. {WAY_OUT}",
        acknowledged.index,
        acknowledged.term,
        last.map_or_else(|| "nothing".to_owned(), |last| format!("change {} of term {}", last.index, last.term))
    )
}

/// What another member is known to have had on its disk.
#[derive(Default)]
pub(super) struct Acknowledged {
    /// What it acknowledged to this node, the leader of a term: a leader of a later term may take it back.
    in_term: Cell<Option<(u64, Position)>>,
    /// What it had and was committed: that is never taken back.
    committed: Cell<Option<Position>>,
}

impl Acknowledged {
    /// It has everything up to `position`, and what is committed goes up to `committed`. A leader has what it sends: it writes down first.
    pub fn upto(&self, term: u64, position: Option<Position>, committed: Option<Position>) {
        let Some(position) = position else { return };
        let is_known = |(known, last): (u64, Position)| known == term && last.index >= position.index;
        if !self.in_term.get().is_some_and(is_known) {
            self.in_term.set(Some((term, position)));
        }
        let Some(committed) = committed else { return };
        let both = if position.index < committed.index { position } else { committed };
        if self.committed.get().is_none_or(|known| known.index < both.index) {
            self.committed.set(Some(both));
        }
    }

    /// It does not have the entry at `previous`. What it once had and has lost, if that is so.
    pub fn lost(&self, term: u64, previous: Option<Position>) -> Option<Position> {
        let previous = previous?;
        let of_term = self.in_term.get().filter(|(known, _)| *known == term).map(|(_, last)| last);
        [self.committed.get(), of_term].into_iter().flatten().find(|last| previous.index <= last.index)
    }

    /// Its log ends at `last`. What it once had and has lost, if that is so.
    pub fn is_beyond(&self, last: Option<Position>) -> Option<Position> {
        self.committed.get().filter(|known| last.is_none_or(|last| last.index < known.index))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raft::stored::{Payload, Record, encode};
    use crate::raft::tests::Scratch;
    use bytes::Bytes;
    use uuid::Uuid;

    const OWN: HostId = HostId(Uuid::from_u128(9));

    /// A place in a log, made by the leader of a term.
    fn place(term: u64, index: u64) -> Position {
        Position { term, leader: Uuid::from_u128(term.into()), index }
    }

    fn blank(term: u64, index: u64) -> Record {
        Record { at: place(term, index), payload: Payload::Blank }
    }

    /// What the leader of a term sends: the entries behind the first one, which it has made itself.
    fn append(term: u64) -> Request {
        let vote = Ballot { term, node: Uuid::from_u128(term.into()), committed: true };
        let entries = vec![blank(term, 2)];
        Request::Append { vote, previous: Some(place(1, 1)), entries, committed: Some(place(1, 1)) }
    }

    /// Found by `power`, seed 9007: the leader of term 2 had a slow disk, and its last message came when the leader of term 3 had
    /// committed another entry in the place of the one that it carried.
    #[test]
    fn what_a_replaced_leader_sends_late_is_no_contradiction() {
        rt::block_on(async {
            let scratch = Scratch::new("late");
            let log = RaftLog::open(&scratch.0, OWN).await.expect("opened");
            let entries = [blank(1, 1), blank(3, 2)].map(|record| Bytes::from(encode(&record)));
            let vote = Ballot { term: 3, node: Uuid::from_u128(3), committed: true };
            log.save_vote(encode(&vote).into()).await.expect("saved");
            log.append(1, &entries).await.expect("appended");
            log.save_committed(2).await.expect("saved");
            assert_eq!(contradiction(&log, OWN, &append(2)), None, "term 2 is over");
            assert_eq!(contradiction(&log, OWN, &append(3)), None, "that is what is there");
            // Whoever leads after term 3 has what was committed in it.
            let why = contradiction(&log, OWN, &append(4)).expect("the leader of term 4 lacks what was committed");
            assert!(why.contains("change 2 of term 4 there, change 2 of term 3 here"), "{why}");
        });
    }

    #[test]
    fn what_was_acknowledged_in_the_same_term_or_committed_is_lost() {
        let at = |index| Some(Position { term: 2, leader: Uuid::nil(), index });
        let known = Acknowledged::default();
        assert_eq!(known.lost(2, at(1)), None);
        known.upto(2, at(7), None);
        known.upto(2, at(5), at(2));
        known.upto(2, None, at(6));
        assert_eq!((known.lost(2, at(7)), known.lost(2, at(8))), (at(7), None));
        assert_eq!(known.lost(3, at(7)), None, "another leader may have taken it back");
        assert_eq!(known.lost(3, at(2)), at(2), "what is committed stays");
        assert_eq!((known.is_beyond(at(1)), known.is_beyond(at(2)), known.is_beyond(None)), (at(2), None, at(2)));
        known.upto(3, at(4), at(9));
        assert_eq!((known.lost(3, at(4)), known.lost(3, at(5))), (at(4), None));
    }
}
