//! openraft's log storage on top of the engine's metadata log.

use super::saved::Saved;
use super::stored::{Members, Opened, Position, Record, StoredVote, decode, encode};
use super::{Entry, LogId, StorageError, Types, Vote};
use bytes::Bytes;
use engine::raft_log::RaftLog;
use model::id::HostId;
use openraft::storage::{LogFlushed, RaftLogStorage};
use openraft::{AnyError, EntryPayload, LogState, RaftLogReader, StorageIOError};
use std::cell::Cell;
use std::fmt::Debug;
use std::ops::{Bound, RangeBounds};
use std::rc::Rc;

/// The log. Clones share it.
#[derive(Clone)]
pub(super) struct Store {
    log: Rc<RaftLog>,
    saved: Rc<Saved>,
    host: HostId,
    /// This node is the only voter, so every durable entry is committed.
    alone: Rc<Cell<bool>>,
}

fn unreadable(why: String) -> StorageError {
    StorageIOError::read_logs(AnyError::error(why)).into()
}

impl Store {
    pub fn new(log: Rc<RaftLog>, saved: Rc<Saved>, host: HostId, alone: Rc<Cell<bool>>) -> Store {
        Store { log, saved, host, alone }
    }
}

impl RaftLogReader<Types> for Store {
    async fn try_get_log_entries<R: RangeBounds<u64> + Clone + Debug>(
        &mut self,
        range: R,
    ) -> Result<Vec<Entry>, StorageError> {
        let from = match range.start_bound() {
            Bound::Included(from) => *from,
            Bound::Excluded(before) => before.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let to = match range.end_bound() {
            Bound::Included(last) => last.saturating_add(1),
            Bound::Excluded(to) => *to,
            Bound::Unbounded => u64::MAX,
        };
        let mut entries = Vec::new();
        for bytes in self.log.entries(from, to) {
            entries.push(Entry::from(decode::<Record>(&bytes).map_err(unreadable)?));
        }
        Ok(entries)
    }
}

impl RaftLogStorage<Types> for Store {
    type LogReader = Store;

    async fn get_log_state(&mut self) -> Result<LogState<Types>, StorageError> {
        let purged = match self.log.purged() {
            Some((_, id)) => Some(Opened::position(&id).map_err(unreadable)?),
            None => None,
        };
        let last = match self.log.last() {
            Some((_, bytes)) => Some(decode::<Record>(&bytes).map_err(unreadable)?.at.into()),
            None => purged,
        };
        Ok(LogState { last_purged_log_id: purged, last_log_id: last })
    }

    async fn get_log_reader(&mut self) -> Store {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote) -> Result<(), StorageError> {
        let before = self.log.vote().and_then(|bytes| decode::<StoredVote>(&bytes).ok());
        let term = |vote: &Vote| vote.leader_id().term;
        debug_assert!(
            before.is_none_or(|before| term(&Vote::from(before)) <= term(vote)),
            "a node never votes in an earlier term"
        );
        let saved = self.log.save_vote(encode(&StoredVote::from(*vote)).into()).await;
        saved.map_err(|error| StorageIOError::write_vote(AnyError::new(&error)).into())
    }

    async fn read_vote(&mut self) -> Result<Option<Vote>, StorageError> {
        let understood = |bytes: Bytes| -> Result<Vote, String> {
            let mut stored = decode::<StoredVote>(&bytes)?;
            // openraft would let a restarted leader continue in its term. If its log is older than
            // before, it would write other entries with the ids of the lost entries. Therefore a
            // restarted leader must be elected again.
            stored.committed &= self.alone.get() || stored.node != self.host.0;
            Ok(Vote::from(stored))
        };
        let vote = self.log.vote().map(understood).transpose();
        vote.map_err(|why| StorageIOError::read_vote(AnyError::error(why)).into())
    }

    async fn save_committed(&mut self, committed: Option<LogId>) -> Result<(), StorageError> {
        let Some(id) = committed else { return Ok(()) };
        // After a restart, this node must know that all applied entries are committed: its
        // commitlog may hold writes to a table that such an entry created. The only voter does not
        // need this record.
        if self.alone.get() || self.log.committed().is_some_and(|known| known >= id.index) {
            return Ok(());
        }
        let saved = self.log.save_committed(id.index).await;
        saved.map_err(|error| StorageIOError::write_logs(AnyError::new(&error)).into())
    }

    async fn append<I>(&mut self, entries: I, callback: LogFlushed<Types>) -> Result<(), StorageError>
    where
        I: IntoIterator<Item = Entry>,
    {
        let (mut first, mut bodies, mut alone) = (None, Vec::new(), self.alone.get());
        let mut others_from = None;
        for entry in entries {
            let from = *first.get_or_insert(entry.log_id.index);
            debug_assert_eq!(entry.log_id.index, from + bodies.len() as u64, "entries have consecutive indexes");
            if let EntryPayload::Membership(membership) = &entry.payload {
                let before = std::mem::replace(&mut alone, Members::from(membership).is_only(self.host));
                if before && !alone {
                    others_from.get_or_insert(entry.log_id.index);
                }
            }
            bodies.push(Bytes::from(encode(&Record::from(&entry))));
        }
        if let Some(first) = first {
            if let Some(from) = others_from {
                // From this entry on, the committed index must be recorded. Everything before it is
                // committed, because this node was the only voter.
                let saved = self.log.save_committed(from - 1).await;
                saved.map_err(|error| StorageError::from(StorageIOError::write_logs(AnyError::new(&error))))?;
            }
            let appended = self.log.append(first, &bodies).await;
            appended.map_err(|error| StorageError::from(StorageIOError::write_logs(AnyError::new(&error))))?;
            self.alone.set(alone);
        }
        callback.log_io_completed(Ok(()));
        Ok(())
    }

    async fn truncate(&mut self, log_id: LogId) -> Result<(), StorageError> {
        // The removed entries may include the entry that made this node the only voter.
        self.alone.set(false);
        let truncated = self.log.truncate(log_id.index).await;
        truncated.map_err(|error| StorageIOError::write_logs(AnyError::new(&error)).into())
    }

    async fn purge(&mut self, log_id: LogId) -> Result<(), StorageError> {
        let saved = self.saved.has(log_id).await;
        saved.map_err(|why| StorageError::from(StorageIOError::write_logs(AnyError::error(why))))?;
        let own = self.log.entries(log_id.index, log_id.index.saturating_add(1));
        if let Some(bytes) = own.first() {
            let own = LogId::from(decode::<Record>(bytes).map_err(unreadable)?.at);
            if own != log_id {
                // The snapshot holds other entries than this log, so the entries that follow here
                // were never committed.
                self.truncate(log_id).await?;
            }
        }
        let purged = self.log.purge(log_id.index, encode(&Position::from(log_id)).into()).await;
        purged.map_err(|error| StorageIOError::write_logs(AnyError::new(&error)).into())
    }
}
