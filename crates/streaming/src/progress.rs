//! The tablets that a shard is streaming, for operators.

use crate::message::TabletSession;
use engine::streaming::Direction;
use model::id::{HostId, TableId};
use std::cell::RefCell;
use std::collections::BTreeMap;
use uuid::Uuid;

/// A tablet that a shard sends or receives.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StreamProgress {
    /// The session of the tablet's stage.
    pub session: Uuid,
    /// Whether it is sent or received.
    pub direction: Direction,
    /// The other node.
    pub peer: HostId,
    /// The table.
    pub table: TableId,
    /// The tablet.
    pub tablet: u32,
    /// The number of its sstables; 0 if it is streamed as mutations.
    pub sstables: u64,
    /// The bytes that were streamed. After a restart, those that had arrived before count.
    pub done: u64,
    /// The bytes of all files. `None` if it is streamed as mutations.
    pub total: Option<u64>,
    /// Why the last attempt failed, on the receiver.
    pub failure: Option<String>,
}

type Key = (Uuid, Direction, HostId);

/// The tablets that a shard is streaming.
#[derive(Default)]
pub(crate) struct OpenStreams(RefCell<BTreeMap<Key, StreamProgress>>);

impl OpenStreams {
    /// A tablet begins to be streamed, or begins again. `files`: the number of its sstables, and
    /// their bytes. Returns false if an attempt is repeated.
    pub fn begin(&self, what: &TabletSession, direction: Direction, peer: HostId, files: Option<(u64, u64)>) -> bool {
        let TabletSession { session, table, tablet, .. } = *what;
        let (sstables, total) = files.map_or((0, None), |(sstables, total)| (sstables, Some(total)));
        let begun = StreamProgress { session, direction, peer, table, tablet, sstables, done: 0, total, failure: None };
        let key = (session, direction, peer);
        let mut all = self.0.borrow_mut();
        assert!(
            all.get(&key).is_none_or(|known| (known.table, known.tablet) == (table, tablet)),
            "session {session} is of one tablet"
        );
        // A repeated attempt continues with the same files.
        let is_new = all.get(&key).is_none_or(|known| known.total != total);
        if is_new {
            all.insert(key, begun);
        } else if let Some(known) = all.get_mut(&key).filter(|_| total.is_none()) {
            // It begins behind what is sealed.
            known.done = 0;
        }
        is_new
    }

    /// Bytes were streamed.
    pub fn add(&self, session: Uuid, direction: Direction, peer: HostId, bytes: u64) {
        if let Some(known) = self.0.borrow_mut().get_mut(&(session, direction, peer)) {
            known.done += bytes;
            // A source may send the same bytes several times.
            assert!(
                direction == Direction::Out || known.total.is_none_or(|total| known.done <= total),
                "no more bytes of session {session} arrive than its files have"
            );
        }
    }

    /// All bytes but these were streamed.
    pub fn set_left(&self, session: Uuid, direction: Direction, peer: HostId, left: u64) {
        if let Some(known) = self.0.borrow_mut().get_mut(&(session, direction, peer)) {
            let total = known.total.expect("bytes are left of files only");
            assert!(left <= total, "{left} of {total} bytes of session {session} are left");
            known.done = total - left;
        }
    }

    /// An attempt to receive a tablet failed.
    pub fn failed(&self, session: Uuid, why: &str) {
        let mut all = self.0.borrow_mut();
        let is_own = |(own, direction, _): &Key| *own == session && *direction == Direction::In;
        for known in all.iter_mut().filter(|(key, _)| is_own(key)).map(|(_, known)| known) {
            known.failure = Some(why.to_owned());
        }
    }

    /// Drops a session that has ended.
    pub fn end(&self, session: Uuid) {
        self.0.borrow_mut().retain(|(own, ..), _| *own != session);
    }

    /// All of them, by session.
    pub fn list(&self) -> Vec<StreamProgress> {
        self.0.borrow().values().cloned().collect()
    }

    /// The bytes of files that arrive, done and in total.
    pub fn incoming(&self) -> (u64, u64) {
        let all = self.0.borrow();
        let files = all.values().filter(|one| one.direction == Direction::In);
        let known = files.filter_map(|one| Some((one.done, one.total?)));
        known.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_count_until_the_session_ends() {
        let (session, table, peer) = (Uuid::from_u128(1), TableId(Uuid::from_u128(2)), HostId(Uuid::from_u128(3)));
        let what = TabletSession { table, tablet: 4, session, epoch: 0, number: 0 };
        let streams = OpenStreams::default();
        streams.add(session, Direction::In, peer, 7);
        assert_eq!(streams.list(), [], "it has not begun");
        assert!(streams.begin(&what, Direction::In, peer, Some((2, 100))));
        assert!(streams.begin(&what, Direction::Out, peer, None));
        streams.add(session, Direction::In, peer, 30);
        streams.add(session, Direction::Out, peer, 5);
        assert_eq!(streams.incoming(), (30, 100));
        assert!(!streams.begin(&what, Direction::In, peer, Some((2, 100))));
        assert_eq!(streams.incoming(), (30, 100), "an attempt is repeated");
        streams.set_left(session, Direction::In, peer, 60);
        assert_eq!(streams.incoming(), (40, 100));
        assert!(streams.begin(&what, Direction::In, peer, Some((3, 200))));
        assert_eq!(streams.incoming(), (0, 200), "other files");
        let done: Vec<(u64, Option<u64>)> = streams.list().into_iter().map(|one| (one.done, one.total)).collect();
        assert_eq!(done, [(0, Some(200)), (5, None)]);
        streams.failed(session, "the disk is full");
        let failures: Vec<Option<String>> = streams.list().into_iter().map(|one| one.failure).collect();
        assert_eq!(failures, [Some("the disk is full".to_owned()), None], "the receiver knows it");
        streams.end(session);
        assert_eq!((streams.list(), streams.incoming()), (Vec::new(), (0, 0)));
    }
}
