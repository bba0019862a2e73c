//! How far this node's snapshot goes: what openraft has cut off the log, at the same time as it has a leader's snapshot saved, stays until
//! the snapshot is there.
//!
//! A crash between the two would leave a log whose beginning is nowhere: the node would carry out what follows on a state that lacks it.

use super::LogId;
use rt::sync::{Cancel, Notify, Semaphore, SemaphorePermit};
use rt::time::Duration;
use std::cell::{Cell, RefCell};

/// Pause before a snapshot is written again for which the disk had no room.
const NO_ROOM: Duration = Duration::from_secs(1);

/// The latest snapshot on the disk.
pub(super) struct Saved {
    /// One snapshot at a time.
    turn: Semaphore,
    upto: Cell<Option<LogId>>,
    failed: RefCell<Option<String>>,
    changed: Notify,
    stop: Cancel,
}

impl Saved {
    /// A snapshot of the entries up to this one is there.
    pub fn new(upto: Option<LogId>) -> Saved {
        Saved {
            turn: Semaphore::new(1),
            upto: Cell::new(upto),
            failed: RefCell::default(),
            changed: Notify::new(),
            stop: Cancel::new(),
        }
    }

    /// The right to save a snapshot of the entries up to this one; none if there is one as good: the log may be cut to its measure by now.
    pub async fn turn(&self, upto: Option<LogId>) -> Option<SemaphorePermit<'_>> {
        let turn = self.turn.acquire().await.ok()?;
        (self.upto.get() < upto).then_some(turn)
    }

    /// There is one of the entries up to this one now.
    pub fn reaches(&self, upto: Option<LogId>) {
        self.upto.set(self.upto.get().max(upto));
        self.changed.notify_waiters();
    }

    /// None will be saved any more.
    pub fn fails(&self, why: String) {
        self.failed.replace(Some(why));
        self.changed.notify_waiters();
    }

    /// Waits until a snapshot has the entries up to this one. The error says why none will.
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

    /// Waits before a snapshot is written again. False when the group is to end instead.
    pub async fn pause(&self) -> bool {
        self.stop.unless(rt::time::sleep(NO_ROOM)).await.is_some()
    }

    /// Nobody waits for room any more.
    pub fn stop(&self) {
        self.stop.cancel();
    }
}
