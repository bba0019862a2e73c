//! Detects contradicting histories: a member was started with an older copy of its `raft/`
//! directory.
//!
//! Raft relies on members never losing acknowledged entries. After such a loss, a majority may have
//! committed other entries at the same indexes, and openraft asserts that this does not happen. So
//! the group checks for it before openraft sees a message. A follower checks the messages of a
//! leader ([`contradiction`]). All nodes check the entries that other nodes have acknowledged
//! ([`Acknowledged`]).
//!
//! A node exits, with the reason, if it has lost entries, or if others have committed different
//! entries. The knowledge about other members is only in memory. If all nodes with that knowledge
//! are down, a member with an older log is not detected until one of these nodes is up again.

use super::group::Group;
use super::network::RaftRequest;
use super::stored::{FORMAT, Leader, Position, StoredVote, decode};
use engine::raft_log::RaftLog;
use model::id::HostId;
use rt::sync::Notify;
use std::cell::{Cell, RefCell};

/// The end of both messages: the remedy.
const REMEDY: &str = "A backup of `raft/` is not a copy from the last stop. Replace the node that has an older \
    `raft/` than in its last run. To do so, leave the node stopped, and start a new node with an empty data \
    directory at another address (docs/faults.md, \"The metadata log is lost\")";

/// Why this node must not take part any more, once known.
#[derive(Default)]
pub(super) struct Divergence {
    why: RefCell<Option<String>>,
    declared: Notify,
}

impl Divergence {
    /// Excludes this node from the group. Returns the first reason.
    pub fn declare(&self, why: String) -> String {
        if self.why.borrow().is_none() {
            tracing::error!(why, "this node is excluded from the Raft group");
            self.why.replace(Some(why));
            self.declared.notify_waiters();
        }
        self.why().unwrap_or_default()
    }

    pub fn why(&self) -> Option<String> {
        self.why.borrow().clone()
    }

    /// Waits until there is a reason.
    pub async fn wait(&self) -> String {
        loop {
            let declared = self.declared.notified();
            if let Some(why) = self.why() {
                return why;
            }
            declared.await;
        }
    }
}

/// The position of an entry, read from its stored form, which begins with it.
fn position_of(bytes: &[u8]) -> Option<Position> {
    let (_, body) = bytes.split_first().filter(|(version, _)| **version == FORMAT)?;
    postcard::take_from_bytes(body).ok().map(|(position, _)| position)
}

/// The position of the entry of an index, if the log still has it.
fn at(log: &RaftLog, index: u64) -> Option<Position> {
    match log.purged() {
        Some((purged, id)) if purged == index => position_of(&id),
        _ => log.entries(index, index + 1).first().and_then(|bytes| position_of(bytes)),
    }
}

/// Whether a message comes from a former leader: this node has voted for a later one, in a later
/// term or in the same.
///
/// Such a leader may have uncommitted entries at indexes where its successor has committed others,
/// and its message may arrive late. Such a message is not a contradiction: openraft refuses it
/// because of its vote. The entries that a leader commits become durable after the vote for it. So
/// the stored vote is never older than the committed entries.
fn is_of_a_former_leader(log: &RaftLog, request: &RaftRequest) -> bool {
    let leader = match request {
        RaftRequest::Append { vote, .. } | RaftRequest::Snapshot { vote, .. } => vote.leader(),
        _ => return false,
    };
    let own = log.vote().and_then(|bytes| decode::<StoredVote>(&bytes).ok());
    own.is_some_and(|own| leader < own.leader())
}

/// The contradiction between a leader's message and this node's log: (the leader's entry, the
/// committed entry here).
fn contradicting(log: &RaftLog, request: &RaftRequest) -> Option<(Position, Position)> {
    if is_of_a_former_leader(log, request) {
        return None;
    }
    // Purged entries are in a snapshot, hence committed. The applied index is not enough: while a
    // snapshot is installed, the log may still hold entries at its indexes that were never
    // committed.
    let committed = log.committed().unwrap_or(0).max(log.purged().map_or(0, |(purged, _)| purged));
    let end = at(log, committed)?;
    let differs = |theirs: &Position| {
        let ours = if theirs.index <= committed { at(log, theirs.index) } else { None };
        match ours {
            Some(ours) => (ours != *theirs).then_some((*theirs, ours)),
            // Terms never decrease along a log.
            None if theirs.index > committed => (theirs.term < end.term).then_some((*theirs, end)),
            None => (theirs.term > end.term).then_some((*theirs, end)),
        }
    };
    match request {
        RaftRequest::Append { previous, entries, committed, .. } => {
            let entries = entries.iter().map(|record| &record.at);
            previous.iter().chain(committed).chain(entries).find_map(differs)
        }
        RaftRequest::Snapshot { head, .. } => head.last.as_ref().and_then(differs),
        _ => None,
    }
}

/// Why this node cannot follow the leader that sent `request`: the leader's log has other entries
/// at indexes that are committed here.
pub(super) fn contradiction(log: &RaftLog, from: HostId, request: &RaftRequest) -> Option<String> {
    let (theirs, ours) = contradicting(log, request)?;
    Some(format!(
        "this node and the leader, node {from}, have different committed changes of the metadata (change {} of \
         term {} there, change {} of term {} here). A member of the cluster was started with an older `raft/`, \
         so acknowledged changes are lost on one side. {REMEDY}. If the node to be replaced is in the present \
         majority, stop the nodes of that majority first, and start this node with the members that have its \
         changes",
        theirs.index, theirs.term, ours.index, ours.term
    ))
}

/// The error of a node that once acknowledged more than its log contains.
pub(super) fn forgotten(acknowledged: Position, last: Option<Position>) -> String {
    format!(
        "this node lacks acknowledged changes of the metadata: it acknowledged change {} of term {}, and its log ends at {}. Its \
         `raft/` is older than its last run. {REMEDY}",
        acknowledged.index,
        acknowledged.term,
        last.map_or_else(|| "nothing".to_owned(), |last| format!("change {} of term {}", last.index, last.term))
    )
}

/// The entries that another member is known to have had on disk.
#[derive(Default)]
pub(super) struct Acknowledged {
    /// The entries that it acknowledged to a leader. A later leader may overwrite them.
    to_leader: Cell<Option<(Leader, Position)>>,
    /// Its committed entries, which are never overwritten.
    committed: Cell<Option<Position>>,
}

impl Acknowledged {
    /// Records that the member has everything up to `position`, and that entries up to `committed`
    /// are committed. This also holds for a leader's own messages, because a leader writes entries
    /// before it sends them.
    pub fn upto(&self, leader: Leader, position: Option<Position>, committed: Option<Position>) {
        let Some(position) = position else { return };
        let is_known = |(known, last): (Leader, Position)| known == leader && last.index >= position.index;
        if !self.to_leader.get().is_some_and(is_known) {
            self.to_leader.set(Some((leader, position)));
        }
        let Some(committed) = committed else { return };
        let both = if position.index < committed.index { position } else { committed };
        if self.committed.get().is_none_or(|known| known.index < both.index) {
            self.committed.set(Some(both));
        }
    }

    /// The member lacks the entry at `previous`. Returns the position that it once had and has
    /// lost, if any.
    pub fn lost(&self, leader: Leader, previous: Option<Position>) -> Option<Position> {
        let previous = previous?;
        let to_leader = self.to_leader.get().filter(|(known, _)| *known == leader).map(|(_, last)| last);
        [self.committed.get(), to_leader].into_iter().flatten().find(|last| previous.index <= last.index)
    }

    /// The member's log ends at `last`. Returns the position that it once had and has lost, if any.
    pub fn is_beyond(&self, last: Option<Position>) -> Option<Position> {
        self.committed.get().filter(|known| last.is_none_or(|last| last.index < known.index))
    }
}

impl Group {
    /// The index of the last committed entry that another member is known to have had on disk.
    pub fn acknowledged_by(&self, host: HostId) -> Option<u64> {
        self.link.acknowledged(host).committed.get().map(|position| position.index)
    }

    /// The index of the last entry in this node's log; 0 without entries.
    pub fn last_index(&self) -> u64 {
        self.last_position().map_or(0, |position| position.index)
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

    /// A position in a log, created by the leader of a term.
    fn place(term: u64, index: u64) -> Position {
        Position { term, leader: Uuid::from_u128(term.into()), index }
    }

    fn blank(term: u64, index: u64) -> Record {
        Record { at: place(term, index), payload: Payload::Blank }
    }

    /// A message of the leader of a term: its own entries after the first one.
    fn append(term: u64) -> RaftRequest {
        let vote = StoredVote { term, node: Uuid::from_u128(term.into()), committed: true };
        let entries = vec![blank(term, 2)];
        RaftRequest::Append { vote, previous: Some(place(1, 1)), entries, committed: Some(place(1, 1)) }
    }

    /// The leader of term 2 had a slow disk. Its last message arrived
    /// when the leader of term 3 had committed another entry at the index of the entry in the
    /// message.
    #[test]
    fn a_late_message_of_a_replaced_leader_is_not_a_contradiction() {
        rt::block_on(async {
            let scratch = Scratch::new("late");
            let log = RaftLog::open(&scratch, OWN).await.expect("opened");
            let entries = [blank(1, 1), blank(3, 2)].map(|record| Bytes::from(encode(&record)));
            let vote = StoredVote { term: 3, node: Uuid::from_u128(3), committed: true };
            log.save_vote(encode(&vote).into()).await.expect("saved");
            log.append(1, &entries).await.expect("appended");
            log.save_committed(2).await.expect("saved");
            assert_eq!(contradiction(&log, OWN, &append(2)), None, "term 2 is over");
            assert_eq!(contradiction(&log, OWN, &append(3)), None, "that is what is there");
            // A leader after term 3 has everything that was committed in term 3.
            let why = contradiction(&log, OWN, &append(4)).expect("the leader of term 4 lacks what was committed");
            assert!(why.contains("change 2 of term 4 there, change 2 of term 3 here"), "{why}");
        });
    }

    /// Two nodes began an election at once, and both led in one term, one after the other.
    #[test]
    fn a_late_message_of_a_replaced_leader_of_the_same_term_is_not_a_contradiction() {
        rt::block_on(async {
            let scratch = Scratch::new("same-term");
            let log = RaftLog::open(&scratch, OWN).await.expect("opened");
            let by = |leader| Record {
                at: Position { term: 3, leader: Uuid::from_u128(leader), index: 2 },
                payload: Payload::Blank,
            };
            let vote = |leader| StoredVote { term: 3, node: Uuid::from_u128(leader), committed: true };
            log.save_vote(encode(&vote(7)).into()).await.expect("saved");
            let entries = [blank(1, 1), by(7)].map(|record| Bytes::from(encode(&record)));
            log.append(1, &entries).await.expect("appended");
            log.save_committed(2).await.expect("saved");
            let append = |leader| RaftRequest::Append {
                vote: vote(leader),
                previous: Some(place(1, 1)),
                entries: vec![by(leader)],
                committed: Some(place(1, 1)),
            };
            assert_eq!(contradiction(&log, OWN, &append(6)), None, "node 7 has replaced node 6");
            assert_eq!(contradiction(&log, OWN, &append(7)), None, "that is what is there");
            assert!(contradiction(&log, OWN, &append(8)).is_some(), "node 8 lacks what node 7 committed");
        });
    }

    #[test]
    fn missing_changes_that_were_acknowledged_or_committed_are_lost() {
        let at = |index| Some(Position { term: 2, leader: Uuid::nil(), index });
        let by = |term, node| Leader { term, node: Uuid::from_u128(node) };
        let known = Acknowledged::default();
        assert_eq!(known.lost(by(2, 1), at(1)), None);
        known.upto(by(2, 1), at(7), None);
        known.upto(by(2, 1), at(5), at(2));
        known.upto(by(2, 1), None, at(6));
        assert_eq!((known.lost(by(2, 1), at(7)), known.lost(by(2, 1), at(8))), (at(7), None));
        assert_eq!(known.lost(by(3, 1), at(7)), None, "another leader may have taken it back");
        assert_eq!(known.lost(by(2, 2), at(7)), None, "so may another leader of the same term");
        assert_eq!(known.lost(by(3, 1), at(2)), at(2), "committed entries remain known");
        assert_eq!((known.is_beyond(at(1)), known.is_beyond(at(2)), known.is_beyond(None)), (at(2), None, at(2)));
        known.upto(by(3, 1), at(4), at(9));
        assert_eq!((known.lost(by(3, 1), at(4)), known.lost(by(3, 1), at(5))), (at(4), None));
    }
}
