//! The tasks that bring records to the kernel and to the device.
//!
//! All records since the last write are written with one call (one more for each segment that
//! ended in between). The kernel gets the bytes in order, so `written`, `synced` and the
//! acknowledged position only grow. Only these tasks call fsync, because a dropped future must not
//! lose track of a file that was not synced.

use super::config::SyncMode;
use super::log::Commitlog;
use super::metrics::add;
use super::position::Position;
use super::state::{Chunk, Segment};
use super::waiters;
use crate::files::{is_full, may_pass};
use bytes::Bytes;
use rt::fs::IoClass;
use std::rc::Rc;
use std::time::Duration;

/// How long to wait before a write without disk space is retried.
const SPACE_RETRY: Duration = Duration::from_millis(500);
/// The allocator gets larger buffers than this back.
const MAX_KEPT_BUFFER: usize = 1 << 20;

/// The records that one round of the writer writes.
struct Batch {
    chunks: Vec<Chunk>,
    /// Behind the last record of the batch.
    end: Position,
}

/// The writer's task.
pub(super) async fn write(log: Rc<Commitlog>) {
    loop {
        if !log.has_work() {
            let closing = {
                let mut state = log.state.borrow_mut();
                state.writer_idle = true;
                state.closing || state.failed.is_some()
            };
            if closing {
                return;
            }
            log.signals.write.notified().await;
            continue;
        }
        if let SyncMode::Group { window } = log.config.mode
            && !log.state.borrow().closing
        {
            rt::time::sleep(window).await;
        }
        let Some(batch) = log.take_batch() else { continue };
        let Some(()) = write_batch(&log, batch).await else { return };
    }
}

async fn write_batch(log: &Rc<Commitlog>, batch: Batch) -> Option<()> {
    for chunk in batch.chunks {
        let len = chunk.bytes.len();
        debug_assert!(chunk.start as usize + len <= chunk.segment.size as usize, "a chunk is inside its segment");
        let bytes = Bytes::from(chunk.bytes);
        write_chunk(log, &chunk.segment.file, chunk.start, &bytes).await?;
        // After the write: a sync that began during it may not include it.
        log.note_unsynced(&chunk.segment);
        add(&log.counters.writes, 1);
        add(&log.counters.bytes_written, len as u64);
        let mut state = log.state.borrow_mut();
        debug_assert!(state.buffered >= len, "each byte is written once");
        state.buffered -= len;
        if chunk.last {
            state.ledger.complete(chunk.segment.id);
            if state.ledger.has_free() {
                log.signals.keep.notify_one();
            }
        }
        if bytes.is_unique() && state.chunk.capacity() == 0 && len <= MAX_KEPT_BUFFER {
            let mut buffer = Vec::from(bytes);
            buffer.clear();
            state.chunk = buffer;
        }
    }
    let before = std::mem::replace(&mut log.state.borrow_mut().written, batch.end);
    assert!(before <= batch.end, "batches are written in order");
    if !matches!(log.config.mode, SyncMode::Periodic { .. }) {
        sync(log).await?;
    }
    log.acknowledge(batch.end);
    Some(())
}

/// Writes, and waits for disk space if necessary. `None`: the log has failed.
async fn write_chunk(log: &Rc<Commitlog>, file: &rt::fs::File, start: u32, bytes: &Bytes) -> Option<()> {
    loop {
        match file.write_at(u64::from(start), bytes.clone(), IoClass::Log).await {
            Ok(()) => {
                let was = std::mem::take(&mut log.state.borrow_mut().no_space_to_write);
                if was {
                    tracing::warn!(shard = log.config.shard.0, "the commitlog has space again");
                }
                return Some(());
            }
            Err(error) if is_full(&error) && !log.state.borrow().closing => {
                let before = std::mem::replace(&mut log.state.borrow_mut().no_space_to_write, true);
                if !before {
                    tracing::error!(shard = log.config.shard.0, %error, "no space for the commitlog: writes are refused");
                    log.wake_everyone();
                    log.signals.progress.notify_waiters();
                    log.signals.room.notify_waiters();
                }
                rt::time::sleep(SPACE_RETRY).await;
                if log.state.borrow().failed.is_some() {
                    return None;
                }
            }
            Err(error) => {
                log.fail(&format!("a write to {} failed: {error}", file.path().display()));
                return None;
            }
        }
    }
}

/// The syncer's task of periodic mode.
pub(super) async fn sync_each(log: Rc<Commitlog>, period: Duration) {
    loop {
        // The period is over, or a user requested a sync.
        let _ = rt::time::timeout(period, log.signals.sync.notified()).await;
        if log.state.borrow().failed.is_some() || sync(&log).await.is_none() {
            return;
        }
        let done = {
            let state = log.state.borrow();
            state.closing && state.synced >= state.end()
        };
        if done {
            return;
        }
    }
}

/// Makes all data that the kernel has durable. `None`: the log has failed.
async fn sync(log: &Rc<Commitlog>) -> Option<()> {
    let (files, upto, before) = {
        let mut state = log.state.borrow_mut();
        (std::mem::take(&mut state.unsynced), state.written, state.synced)
    };
    for segment in files {
        add(&log.counters.syncing, 1);
        let result = segment.file.sync_data().await;
        log.counters.syncing.set(log.counters.syncing.get() - 1);
        if let Err(error) = result {
            log.fail(&format!("an fsync of {} failed: {error}", segment.file.path().display()));
            return None;
        }
        add(&log.counters.syncs, 1);
    }
    if upto > before {
        note_synced(log, upto).await?;
    }
    {
        let mut state = log.state.borrow_mut();
        if state.failed.is_some() {
            return None;
        }
        assert!(state.synced <= upto, "the synced position never moves back");
        state.synced = upto;
    }
    log.signals.progress.notify_waiters();
    Some(())
}

/// Records how far the log is durable, before that is acknowledged. Some full file systems have
/// no space even for overwriting: the position is not recorded then, and the records are durable
/// nevertheless.
async fn note_synced(log: &Rc<Commitlog>, upto: Position) -> Option<()> {
    match log.synced_file.write(upto).await {
        Err(error) if !may_pass(&error) => {
            log.fail(&format!("a write to {} failed: {error}", log.synced_file.path().display()));
            None
        }
        _ => Some(()),
    }
}

impl Commitlog {
    fn has_work(&self) -> bool {
        let state = self.state.borrow();
        state.failed.is_none() && !(state.chunk.is_empty() && state.queue.is_empty())
    }

    fn take_batch(&self) -> Option<Batch> {
        let mut state = self.state.borrow_mut();
        let state = &mut *state;
        if state.failed.is_some() {
            return None;
        }
        if !state.chunk.is_empty() {
            let bytes = std::mem::take(&mut state.chunk);
            state.queue.push(Chunk { segment: state.active.clone(), start: state.chunk_start, bytes, last: false });
            state.chunk_start = state.offset;
        }
        debug_assert!(state.batch_start < state.end(), "a batch has records");
        state.batch_start = state.end();
        self.waiters.borrow_mut().advance();
        Some(Batch { chunks: std::mem::take(&mut state.queue), end: state.batch_start })
    }

    fn note_unsynced(&self, segment: &Rc<Segment>) {
        let mut state = self.state.borrow_mut();
        if state.unsynced.last().is_none_or(|last| last.id != segment.id) {
            state.unsynced.push(segment.clone());
        }
    }

    /// Acknowledges all below `end`.
    fn acknowledge(&self, end: Position) {
        {
            let state = self.state.borrow();
            let is_kept = matches!(self.config.mode, SyncMode::Periodic { .. }) || state.synced >= end;
            assert!(is_kept && state.written >= end, "an acknowledged write is as durable as the mode promises");
        }
        debug_assert!(self.acknowledged.get() <= end, "the acknowledged position does not decrease");
        self.acknowledged.set(end);
        let mut list = self.waiters.borrow_mut().take_on_its_way();
        waiters::wake(&mut list);
        self.waiters.borrow_mut().put_back(list);
        self.signals.room.notify_waiters();
        self.signals.progress.notify_waiters();
    }
}
