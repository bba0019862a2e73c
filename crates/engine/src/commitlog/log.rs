//! The log of one shard for its users: append, wait for the acknowledgement, release records.
//!
//! Appending copies the record into the buffer of the current batch and returns. Tasks do the
//! rest. The writer (`writer.rs`) writes batches and acknowledges them. The syncer (periodic
//! mode) calls fsync. The keeper (`keeper.rs`) creates segments before they are needed and
//! removes free ones. A fourth task (`presence.rs`) detects files that were removed.
//!
//! Contract with the store: a mutation is appended and put into its memtable in the same poll. So a
//! memtable holds all records of its slot up to its highest position.

use super::acknowledged::Acknowledged;
use super::config::{CommitlogConfig, SyncMode};
use super::error::{CloseError, LogError};
use super::format::{Kind, RECORD_HEADER, SEGMENT_HEADER, record_len};
use super::ledger::Ledger;
use super::mapping::ColumnMapping;
use super::metrics::{Blocked, Counters, Metrics, add};
use super::position::{Position, SlotId};
use super::runs::{LoggedRun, OldRun};
use super::state::State;
use super::synced::SyncedFile;
use super::waiters::Waiters;
use super::{keeper, presence, waiters, writer};
use bytes::Bytes;
use model::TableSchema;
use rt::hash::HashSet;
use rt::sync::Notify;
use rt::task::{Group, Task};
use rt::time::Duration;
use std::cell::{Cell, RefCell};
use std::path::PathBuf;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;

/// One shard's log.
pub struct Commitlog {
    pub(super) config: CommitlogConfig,
    pub(super) run_dir: PathBuf,
    pub(super) run: u64,
    /// The length of the first segment's file: on a full disk, less than the length of others.
    pub(super) first_size: u32,
    segments_for_writes: usize,
    pub(super) synced_file: SyncedFile,
    pub(super) state: RefCell<State>,
    /// All records that begin below are acknowledged.
    pub(super) acknowledged: Cell<Position>,
    pub(super) waiters: RefCell<Waiters>,
    pub(super) signals: Signals,
    pub(super) counters: Counters,
    tasks: RefCell<Vec<Task<()>>>,
}

/// Signals between the tasks and the users.
#[derive(Default)]
pub(super) struct Signals {
    /// To the writer: there is something to write.
    pub write: Notify,
    /// To the syncer: sync now.
    pub sync: Notify,
    /// To the keeper: a segment is needed, or free.
    pub keep: Notify,
    /// To the watch: the log ends.
    pub watch: Notify,
    /// To blocked appenders: try again.
    pub room: Notify,
    /// To waiters for writes, syncs, or the failure of the log.
    pub progress: Notify,
    /// To the store: flush the memtables that hold the oldest segments.
    pub pressure: Notify,
}

/// A record was appended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Appended {
    /// Where it begins.
    pub position: Position,
}

/// Which records may use the last segments of a log.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Room {
    ForWrites,
    /// Also relogged records.
    All,
}

/// One mutation of a group.
#[derive(Clone, Copy)]
pub struct Entry<'a> {
    /// The current schema: the version of the mutation, or another version that has its columns.
    pub schema: &'a Rc<TableSchema>,
    /// The memtable it goes to.
    pub slot: SlotId,
    /// The encoded mutation.
    pub mutation: &'a Bytes,
}

impl Commitlog {
    /// Begins a new run in `config.dir`. Existing runs stay as they are: list them before with
    /// [`super::find_old`].
    pub async fn open(config: CommitlogConfig) -> Result<Rc<Commitlog>, LogError> {
        let opened = keeper::begin_run(&config).await?;
        let first = opened.first;
        let start = Position { segment: first.id, offset: SEGMENT_HEADER };
        let mut ledger = Ledger::default();
        ledger.begin(first.id);
        let counters = Counters::default();
        counters.segment_files.set(1);
        let log = Rc::new(Commitlog {
            run: first.id,
            first_size: first.size,
            segments_for_writes: config.segments_for_writes(),
            run_dir: opened.run_dir,
            synced_file: opened.synced_file,
            state: RefCell::new(State {
                active: first,
                offset: SEGMENT_HEADER,
                mapped: HashSet::default(),
                last_mapped: None,
                chunk: Vec::new(),
                chunk_start: SEGMENT_HEADER,
                queue: Vec::new(),
                batch_start: start,
                next: None,
                buffered: 0,
                written: start,
                synced: start,
                unsynced: Vec::new(),
                ledger,
                failed: None,
                no_space_to_write: false,
                no_space_for_segment: false,
                flushes_blocked: false,
                closing: false,
                writer_idle: false,
            }),
            acknowledged: Cell::new(start),
            waiters: RefCell::default(),
            signals: Signals::default(),
            counters,
            tasks: RefCell::default(),
            config,
        });
        let mut tasks = vec![
            rt::task::spawn_in(Group::Statement, writer::write(log.clone())),
            rt::task::spawn(keeper::keep(log.clone())),
            rt::task::spawn(presence::watch(log.clone())),
        ];
        if let SyncMode::Periodic { period } = log.config.mode {
            tasks.push(rt::task::spawn(writer::sync_each(log.clone(), period)));
        }
        *log.tasks.borrow_mut() = tasks;
        Ok(log)
    }

    /// This run, for [`super::retire`] when nothing in it is needed.
    pub fn own_run(&self) -> OldRun {
        OldRun { shard: self.config.shard, run: self.run, dir: self.run_dir.clone() }
    }

    /// This run, for the inventory.
    pub fn logged_run(&self) -> LoggedRun {
        LoggedRun { shard: self.config.shard.0, run: self.run }
    }

    /// Appends one mutation. Never waits: the error is [`LogError::Busy`] when too much is in
    /// flight.
    #[inline]
    pub fn append(
        self: &Rc<Self>,
        schema: &Rc<TableSchema>,
        slot: SlotId,
        mutation: &Bytes,
    ) -> Result<Appended, LogError> {
        self.put(&[Entry { schema, slot, mutation }], Room::ForWrites)
    }

    /// Appends several mutations as one record: replay gives all of them or none.
    pub fn append_group(self: &Rc<Self>, entries: &[Entry<'_>]) -> Result<Appended, LogError> {
        assert!(!entries.is_empty(), "a group has mutations");
        self.put(entries, Room::ForWrites)
    }

    /// Like [`Commitlog::append_group`], for records that make older ones obsolete: room is
    /// reserved for them in a full log.
    pub fn append_relogged(self: &Rc<Self>, entries: &[Entry<'_>]) -> Result<Appended, LogError> {
        assert!(!entries.is_empty(), "a group has mutations");
        self.put(entries, Room::All)
    }

    /// Like [`Commitlog::append_group`], but waits while the log is busy.
    pub async fn append_wait(self: &Rc<Self>, entries: &[Entry<'_>]) -> Result<Appended, LogError> {
        match self.append_group(entries) {
            Err(LogError::Busy) => {}
            other => return other,
        }
        let _blocked = Blocked::enter(&self.counters);
        loop {
            let mut room = pin!(self.signals.room.notified());
            room.as_mut().enable();
            match self.append_group(entries) {
                Err(LogError::Busy) => room.await,
                other => return other,
            }
        }
    }

    /// Waits until a busy log may have room again for relogging. False if there is none within
    /// `limit`, or none before memtables are flushed.
    pub async fn room_within(&self, limit: Duration) -> bool {
        let mut room = pin!(self.signals.room.notified());
        room.as_mut().enable();
        let full = {
            let state = self.state.borrow();
            state.next.is_none() && state.ledger.len() + 1 > self.config.max_segments()
        };
        !full && rt::time::timeout(limit, room).await.is_ok()
    }

    fn put(&self, entries: &[Entry<'_>], room: Room) -> Result<Appended, LogError> {
        let len = match entries {
            [one] => one.mutation.len(),
            several => 4 + several.iter().map(|entry| 4 + entry.mutation.len()).sum::<usize>(),
        };
        let max = self.config.max_body();
        if len > max {
            return Err(LogError::TooLarge { len, max });
        }
        let mut state = self.state.borrow_mut();
        let state = &mut *state;
        state.check()?;
        if room == Room::ForWrites && state.ledger.len() > self.segments_for_writes {
            return Err(state.too_long());
        }
        if state.buffered + len > self.config.buffer_limit && state.buffered > 0 {
            return Err(LogError::Busy);
        }
        let mut mappings = state.missing_mappings(entries);
        let needed = |mappings: &[ColumnMapping]| {
            let lens = mappings.iter().map(|mapping| record_len(mapping.encoded_len()));
            record_len(len) + lens.sum::<usize>() + RECORD_HEADER
        };
        if state.offset as usize + needed(&mappings) > state.active.size as usize {
            let fresh = state.all_mappings(entries);
            let len = needed(&fresh);
            let max = (self.config.segment_size - SEGMENT_HEADER) as usize;
            if len > max {
                return Err(LogError::TooLarge { len, max });
            }
            self.roll(state, room)?;
            mappings = fresh;
        }
        for mapping in mappings {
            state.mapped.insert((mapping.table, mapping.version));
            state.push(Kind::Mapping, |out| mapping.encode(out));
        }
        let position = match entries {
            [one] => state.push(Kind::Mutation, |out| out.extend_from_slice(one.mutation)),
            several => state.push(Kind::Group, |out| {
                out.extend_from_slice(&(several.len() as u32).to_le_bytes());
                for entry in several {
                    out.extend_from_slice(&(entry.mutation.len() as u32).to_le_bytes());
                    out.extend_from_slice(entry.mutation);
                }
            }),
        };
        let is_mapped = |entry: &Entry<'_>| state.mapped.contains(&(entry.schema.id, entry.schema.version));
        debug_assert!(entries.iter().all(is_mapped), "a segment has the columns of each of its mutations");
        debug_assert!(position >= state.batch_start, "a record belongs to the batch that is filled");
        for entry in entries {
            state.ledger.dirty(entry.slot, position.offset);
        }
        add(&self.counters.records, 1);
        if state.writer_idle {
            state.writer_idle = false;
            self.signals.write.notify_one();
        }
        Ok(Appended { position })
    }

    /// Continues in the next segment, if it is ready.
    fn roll(&self, state: &mut State, room: Room) -> Result<(), LogError> {
        let is_full = room == Room::ForWrites && state.ledger.len() >= self.segments_for_writes;
        if is_full {
            self.signals.pressure.notify_one();
        }
        let Some(next) = state.next.take_if(|_| !is_full) else {
            self.signals.keep.notify_one();
            return Err(match state.no_space_for_segment {
                true => LogError::NoSpace,
                false if is_full => state.too_long(),
                false => LogError::Busy,
            });
        };
        state.end_segment();
        state.ledger.begin(next.id);
        state.active = next;
        state.offset = SEGMENT_HEADER;
        state.chunk_start = SEGMENT_HEADER;
        state.mapped.clear();
        state.last_mapped = None;
        self.signals.keep.notify_one();
        self.signals.sync.notify_one();
        if self.is_under_pressure(state) {
            self.signals.pressure.notify_one();
        }
        Ok(())
    }

    /// Waits until the record at `position` is as durable as the mode promises. Ready at once if
    /// it is already. After an error the record may or may not be there after a restart.
    pub fn acknowledged(&self, position: Position) -> Acknowledged<'_> {
        Acknowledged::new(self, position)
    }

    /// An upper bound of the positions of all records so far.
    pub fn position(&self) -> Position {
        self.state.borrow().end()
    }

    /// Releases all records of `slot` up to and including `upto`: they are in sealed sstables, or
    /// truncated. Segments that no slot needs are removed.
    pub fn clean(&self, slot: SlotId, upto: Position) {
        let mut state = self.state.borrow_mut();
        state.ledger.clean(slot, upto);
        if state.ledger.has_free() {
            self.signals.keep.notify_one();
        }
    }

    /// The memtables whose flush would free the oldest segment; none if only the active segment
    /// has live records.
    pub fn oldest_dirty_slots(&self) -> Vec<SlotId> {
        self.state.borrow().ledger.oldest_dirty()
    }

    /// Records whether memtables cannot be flushed for lack of disk space or descriptors. While
    /// they cannot, a log at its size limit refuses records instead of making them wait.
    pub fn set_flushes_blocked(&self, blocked: bool) {
        self.state.borrow_mut().flushes_blocked = blocked;
        if blocked {
            self.signals.room.notify_waiters();
        }
    }

    /// Whether the log takes more than three quarters of its limit, so that memtables should be
    /// flushed for it.
    pub fn wants_flush(&self) -> bool {
        self.is_under_pressure(&self.state.borrow())
    }

    /// Waits until the log begins another segment while [`Commitlog::wants_flush`] holds, or
    /// appends wait for its limit. At most one task may wait.
    pub async fn pressure(&self) {
        self.signals.pressure.notified().await;
    }

    pub(super) fn is_under_pressure(&self, state: &State) -> bool {
        (state.ledger.len() + 1) * 4 > self.config.max_segments() * 3
    }

    /// Bytes of all segment files, spare ones included.
    pub fn disk_bytes(&self) -> u64 {
        self.counters.segment_files.get() * u64::from(self.config.segment_size)
    }

    /// The counters.
    pub fn metrics(&self) -> Metrics {
        let state = self.state.borrow();
        Metrics {
            bytes_written: self.counters.bytes_written.get(),
            records: self.counters.records.get(),
            writes: self.counters.writes.get(),
            syncs: self.counters.syncs.get(),
            syncing: self.counters.syncing.get(),
            allocating: self.counters.allocating.get(),
            segments: state.ledger.len() as u64,
            disk_total_bytes: self.disk_bytes(),
            buffered_bytes: state.buffered as u64,
            blocked_writers: self.counters.blocked.get(),
            out_of_space: state.no_space_for_segment,
        }
    }

    /// Waits until all that was appended so far is on the device.
    pub async fn sync_now(&self) -> Result<(), LogError> {
        self.synced(self.position()).await
    }

    async fn synced(&self, target: Position) -> Result<(), LogError> {
        loop {
            let mut progress = pin!(self.signals.progress.notified());
            progress.as_mut().enable();
            {
                let state = self.state.borrow();
                if state.synced >= target {
                    return Ok(());
                }
                if let Some(error) = &state.failed {
                    return Err(error.clone());
                }
                if state.no_space_to_write {
                    return Err(LogError::NoSpace);
                }
                if state.written >= target {
                    self.signals.sync.notify_one();
                }
            }
            progress.await;
        }
    }

    /// Waits until the log has failed, and says why. The node must stop then.
    pub async fn failure(&self) -> LogError {
        loop {
            let mut progress = pin!(self.signals.progress.notified());
            progress.as_mut().enable();
            if let Some(error) = self.state.borrow().failed.clone() {
                return error;
            }
            progress.await;
        }
    }

    /// Whether the log has failed. See [`Commitlog::failure`].
    pub fn has_failed(&self) -> bool {
        self.state.borrow().failed.is_some()
    }

    /// Ends the run in order: refuses appends, makes everything durable, and leaves only the
    /// segments that replay needs.
    pub async fn close(&self) -> Result<(), CloseError> {
        let end = {
            let mut state = self.state.borrow_mut();
            if let Some(error) = &state.failed {
                return Err(CloseError::Unsynced(error.clone()));
            }
            if state.closing {
                return Err(CloseError::NotEnded(LogError::Closed));
            }
            state.closing = true;
            state.end_segment();
            state.end()
        };
        self.signals.write.notify_one();
        self.signals.keep.notify_one();
        self.signals.watch.notify_one();
        self.signals.room.notify_waiters();
        let synced = self.synced(end).await;
        if synced.is_err() {
            self.fail("it could not be written at its close");
        }
        self.signals.sync.notify_one();
        let tasks = std::mem::take(&mut *self.tasks.borrow_mut());
        for task in tasks {
            // An aborted task has nothing left to do here.
            task.await.unwrap_or_default();
        }
        synced.map_err(CloseError::Unsynced)?;
        if let Some(lost) = self.check_there().await {
            return Err(CloseError::Unsynced(LogError::Failed(Arc::from(lost))));
        }
        keeper::end_run(self, end).await.map_err(CloseError::NotEnded)
    }

    /// Stops at once and leaves the disk as it is, as a crash would. For tests of what comes after
    /// a crash.
    pub async fn abandon(&self) {
        self.fail("it was abandoned");
        let tasks = std::mem::take(&mut *self.tasks.borrow_mut());
        for task in tasks {
            task.abort();
            task.await.unwrap_or_default();
        }
    }

    /// The log can no longer keep its promise.
    pub(super) fn fail(&self, why: &str) {
        {
            let mut state = self.state.borrow_mut();
            if state.failed.is_some() {
                return;
            }
            state.failed = Some(LogError::Failed(Arc::from(why)));
        }
        tracing::error!(shard = self.config.shard.0, dir = %self.run_dir.display(), why, "the commitlog has failed: this shard refuses writes, and the node stops");
        self.wake_everyone();
        self.signals.write.notify_one();
        self.signals.sync.notify_one();
        self.signals.keep.notify_one();
        self.signals.watch.notify_one();
        self.signals.pressure.notify_one();
        self.signals.progress.notify_waiters();
        self.signals.room.notify_waiters();
    }

    /// Wakes all waiters for acknowledgements, of both batches.
    pub(super) fn wake_everyone(&self) {
        let mut all = self.waiters.borrow_mut().take_all();
        waiters::wake(&mut all);
    }
}
