//! Orders snapshots and log purges: entries are purged only once a durable snapshot has them.
//!
//! openraft purges the log at the same time as it has a leader's snapshot saved. A crash between
//! the two would leave a log without its beginning. The node would then apply the rest to a state
//! that lacks that part.

use super::LogId;
use rt::sync::{Cancel, Notify, Semaphore, SemaphorePermit};
use rt::time::Duration;
use std::cell::{Cell, RefCell};

/// The pause before a snapshot is written again if the disk had no room for it.
const NO_ROOM: Duration = Duration::from_secs(1);

/// The latest durable snapshot.
pub(super) struct Saved {
    /// One snapshot at a time.
    turn: Semaphore,
    upto: Cell<Option<LogId>>,
    failed: RefCell<Option<String>>,
    changed: Notify,
    stop: Cancel,
}

impl Saved {
    /// The state when a snapshot of the entries up to `upto` exists.
    pub fn new(upto: Option<LogId>) -> Saved {
        Saved {
            turn: Semaphore::new(1),
            upto: Cell::new(upto),
            failed: RefCell::default(),
            changed: Notify::new(),
            stop: Cancel::new(),
        }
    }

    /// Acquires the right to save a snapshot of the entries up to `upto`. `None` if there is one at
    /// least as recent: the log may already be purged up to it.
    pub async fn turn(&self, upto: Option<LogId>) -> Option<SemaphorePermit<'_>> {
        let turn = self.turn.acquire().await.ok()?;
        (self.upto.get() < upto).then_some(turn)
    }

    /// The index of the last entry in the latest durable snapshot.
    pub fn index(&self) -> Option<u64> {
        self.upto.get().map(|upto| upto.index)
    }

    /// A snapshot of the entries up to `upto` is durable now.
    pub fn reaches(&self, upto: Option<LogId>) {
        self.upto.set(self.upto.get().max(upto));
        self.changed.notify_waiters();
    }

    /// No further snapshot will be saved.
    pub fn fails(&self, why: String) {
        self.failed.replace(Some(why));
        self.changed.notify_waiters();
    }

    /// Waits until a durable snapshot includes the entry `id`. The error says why there will be
    /// none.
    pub async fn has(&self, id: LogId) -> Result<(), String> {
        loop {
            let changed = self.changed.notified();
            if self.upto.get() >= Some(id) {
                return Ok(());
            }
            if let Some(why) = &*self.failed.borrow() {
                return Err(why.clone());
            }
            changed.await;
        }
    }

    /// Waits before a snapshot is written again. False if the group is stopping.
    pub async fn pause(&self) -> bool {
        self.stop.unless(rt::time::sleep(NO_ROOM)).await.is_some()
    }

    /// Ends all waiting for free disk space.
    pub fn stop(&self) {
        self.stop.cancel();
    }
}
