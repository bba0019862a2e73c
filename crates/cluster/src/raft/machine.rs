//! openraft's state machine on top of [`Machine`].

use super::saved::Saved;
use super::stored::{Opened, SnapshotFile, SnapshotHead, decode};
use super::{Entry, LogId, Member, Membership, StorageError, Types};
use engine::raft_log::RaftLog;
use engine::raft_log::RaftLogError;
use futures_util::future::LocalBoxFuture;
use openraft::storage::{RaftStateMachine, Snapshot};
use openraft::{AnyError, EmptyNode, EntryPayload, RaftSnapshotBuilder, SnapshotMeta, StorageIOError};
use serde::{Deserialize, Serialize};
use std::cell::{Cell, RefCell};
use std::io::Cursor;
use std::rc::Rc;

/// The outcome of applying a command. Append-only: nodes send it to each other.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Outcome {
    /// The command was applied.
    Applied,
    /// The command was built on another state than the current one, and had no effect.
    Stale,
    /// The command is invalid in the current state, and had no effect. All nodes have this outcome.
    Failed(String),
}

/// The state machine that applies commands. After the same commands, its state is the same on all
/// nodes.
pub trait Machine: 'static {
    /// Applies a command. Calls never overlap and come in the order of the log. The outcome must
    /// depend only on this and earlier commands. An error means that this node cannot follow any
    /// more, and ends the group on this node.
    fn apply(&self, command: Vec<u8>) -> LocalBoxFuture<'_, Result<Outcome, String>>;

    /// The cost of a snapshot, in entries. Snapshots are at least this many entries apart.
    fn weight(&self) -> u64 {
        0
    }

    /// The state after the last applied command before this call. The future only encodes it, and
    /// more commands may be applied meanwhile.
    fn snapshot(&self) -> LocalBoxFuture<'static, Vec<u8>>;

    /// Replaces the state with the state in a snapshot.
    fn install(&self, snapshot: Vec<u8>) -> LocalBoxFuture<'_, Result<(), String>>;

    /// Why this node cannot apply a committed command. Returned once it has retried for some time;
    /// it keeps retrying.
    fn apply_failure(&self) -> Option<String> {
        None
    }
}

/// openraft's state machine. Clones share it.
#[derive(Clone)]
pub(super) struct Applier {
    machine: Rc<dyn Machine>,
    log: Rc<RaftLog>,
    saved: Rc<Saved>,
    applied: Rc<Applied>,
}

/// The position of the machine in the log.
pub(super) struct Applied {
    last: Cell<Option<LogId>>,
    membership: RefCell<Membership>,
    /// The number of entries since the latest snapshot.
    pub since_snapshot: Cell<u64>,
}

impl Applier {
    pub fn new(opened: &Opened, saved: Rc<Saved>, machine: Rc<dyn Machine>) -> Applier {
        let applied = Applied {
            last: Cell::new(opened.applied),
            membership: RefCell::new(opened.membership.clone()),
            since_snapshot: Cell::new(opened.since_snapshot),
        };
        Applier { machine, log: opened.log.clone(), saved, applied: Rc::new(applied) }
    }

    pub fn applied(&self) -> Rc<Applied> {
        self.applied.clone()
    }

    /// Saves a snapshot of the leader. Waits for free disk space, because nothing after the
    /// snapshot can be applied before.
    async fn save(&self, file: SnapshotFile) -> Result<SnapshotFile, RaftLogError> {
        let (file, bytes) = file.encoded().await;
        let Some(_turn) = self.saved.turn(file.head.meta().last_log_id).await else { return Ok(file) };
        loop {
            match self.log.save_snapshot(&bytes).await {
                Err(error) if error.may_pass() => {
                    tracing::warn!(%error, "no disk space for the leader's snapshot of the metadata; retrying later");
                    if !self.saved.pause().await {
                        return Err(error);
                    }
                }
                done => return done.map(|()| file),
            }
        }
    }
}

fn snapshot_of(file: SnapshotFile) -> Snapshot<Types> {
    Snapshot { meta: file.head.meta(), snapshot: Box::new(Cursor::new(file.body)) }
}

/// A snapshot that is being encoded and written to disk.
pub(super) struct Builder {
    head: SnapshotHead,
    body: Option<LocalBoxFuture<'static, Vec<u8>>>,
    log: Rc<RaftLog>,
    saved: Rc<Saved>,
    applied: Rc<Applied>,
}

impl RaftSnapshotBuilder<Types> for Builder {
    async fn build_snapshot(&mut self) -> Result<Snapshot<Types>, StorageError> {
        let nothing = || Snapshot { meta: SnapshotMeta::default(), snapshot: Box::default() };
        let Some(body) = self.body.take() else { return Ok(nothing()) };
        // The state is held until it is encoded, so this does not wait for the turn.
        let (file, bytes) = SnapshotFile { head: self.head.clone(), body: body.await }.encoded().await;
        let last = self.head.meta().last_log_id;
        // A snapshot of the leader may have been saved meanwhile.
        let Some(_turn) = self.saved.turn(last).await else { return Ok(nothing()) };
        match self.log.save_snapshot(&bytes).await {
            Ok(()) => {
                self.applied.since_snapshot.set(0);
                self.saved.reaches(last);
                Ok(snapshot_of(file))
            }
            // An empty snapshot has no effect: the log keeps its length, and a later command starts
            // another snapshot.
            Err(error) if error.may_pass() => {
                tracing::warn!(%error, "no disk space for a snapshot of the metadata; retrying later");
                Ok(nothing())
            }
            Err(error) => {
                let (signature, error) = (self.head.meta().signature(), AnyError::new(&error));
                Err(StorageError::from(StorageIOError::write_snapshot(Some(signature), error)))
            }
        }
    }
}

impl RaftStateMachine<Types> for Applier {
    type SnapshotBuilder = Builder;

    async fn applied_state(&mut self) -> Result<(Option<LogId>, Membership), StorageError> {
        Ok((self.applied.last.get(), self.applied.membership.borrow().clone()))
    }

    async fn apply<I>(&mut self, entries: I) -> Result<Vec<Outcome>, StorageError>
    where
        I: IntoIterator<Item = Entry>,
    {
        let mut outcomes = Vec::new();
        for entry in entries {
            let last = self.applied.last.get();
            debug_assert!(
                last.is_none_or(|last| last.index + 1 == entry.log_id.index),
                "entries are applied in order, each once"
            );
            let outcome = match entry.payload {
                EntryPayload::Blank => Outcome::Applied,
                EntryPayload::Normal(command) => self
                    .machine
                    .apply(command.0)
                    .await
                    .map_err(|why| StorageError::from(StorageIOError::apply(entry.log_id, AnyError::error(why))))?,
                EntryPayload::Membership(membership) => {
                    *self.applied.membership.borrow_mut() = Membership::new(Some(entry.log_id), membership);
                    Outcome::Applied
                }
            };
            self.applied.last.set(Some(entry.log_id));
            self.applied.since_snapshot.set(self.applied.since_snapshot.get() + 1);
            outcomes.push(outcome);
        }
        Ok(outcomes)
    }

    async fn get_snapshot_builder(&mut self) -> Builder {
        let head = SnapshotHead::of(self.applied.last.get(), &self.applied.membership.borrow());
        let (body, applied) = (Some(self.machine.snapshot()), self.applied.clone());
        Builder { head, body, log: self.log.clone(), saved: self.saved.clone(), applied }
    }

    async fn begin_receiving_snapshot(&mut self) -> Result<Box<Cursor<Vec<u8>>>, StorageError> {
        Ok(Box::default())
    }

    async fn install_snapshot(
        &mut self,
        meta: &SnapshotMeta<Member, EmptyNode>,
        snapshot: Box<Cursor<Vec<u8>>>,
    ) -> Result<(), StorageError> {
        let failed =
            |error: AnyError| StorageError::from(StorageIOError::write_snapshot(Some(meta.signature()), error));
        let head = SnapshotHead::of(meta.last_log_id, &meta.last_membership);
        let file = match self.save(SnapshotFile { head, body: snapshot.into_inner() }).await {
            Ok(file) => file,
            Err(error) => {
                self.saved.fails(error.to_string());
                return Err(failed(AnyError::new(&error)));
            }
        };
        self.saved.reaches(meta.last_log_id);
        self.machine.install(file.body).await.map_err(|why| failed(AnyError::error(why)))?;
        self.applied.last.set(meta.last_log_id);
        *self.applied.membership.borrow_mut() = meta.last_membership.clone();
        self.applied.since_snapshot.set(0);
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<Snapshot<Types>>, StorageError> {
        let failed = |error: AnyError| StorageError::from(StorageIOError::read_snapshot(None, error));
        match self.log.snapshot().await.map_err(|error| failed(AnyError::new(&error)))? {
            Some(bytes) => {
                let file = decode::<SnapshotFile>(&bytes).map_err(|why| failed(AnyError::error(why)))?;
                Ok(Some(snapshot_of(file)))
            }
            None => Ok(None),
        }
    }
}
