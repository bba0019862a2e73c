//! Stops compactions before data is removed: the compactions of one tablet, or of all tablets of a
//! table.
//!
//! A compaction that has sealed its outputs can no longer be stopped. A removal waits for it,
//! because it removes the sstables that the compaction leaves.

use rt::sync::{Cancel, GateGuard, Notify, RenewedGate};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// Counts the guards that keep compactions from starting.
#[derive(Default)]
pub(crate) struct Exclusion {
    inner: Rc<Counted>,
}

#[derive(Default)]
struct Counted {
    guards: Cell<u32>,
    ended: Notify,
}

/// Keeps compactions from starting until it is dropped.
pub(crate) struct Excluded(Rc<Counted>);

impl Exclusion {
    /// Keeps compactions from starting while the guard lives.
    pub fn begin(&self) -> Excluded {
        self.inner.guards.set(self.inner.guards.get() + 1);
        Excluded(self.inner.clone())
    }

    /// Whether a guard is left.
    pub fn is_active(&self) -> bool {
        self.inner.guards.get() > 0
    }

    /// Waits until no guard is left.
    pub async fn has_ended(&self) {
        while self.is_active() {
            self.inner.ended.notified().await;
        }
    }
}

impl Drop for Excluded {
    fn drop(&mut self) {
        self.0.guards.set(self.0.guards.get() - 1);
        self.0.ended.notify_waiters();
    }
}

/// The compactions of a tablet.
#[derive(Default)]
pub(crate) struct TabletCompactions {
    /// Cancelled and renewed to stop the running ones.
    cancel: RefCell<Cancel>,
    /// Entered by the running ones.
    running: RenewedGate,
    /// The tablet's data is being removed.
    exclusion: Exclusion,
}

impl TabletCompactions {
    /// The token that stops the compactions that are started now.
    pub fn cancel(&self) -> Cancel {
        self.cancel.borrow().clone()
    }

    /// Begins a compaction. `None` while the tablet's data is being removed.
    pub fn enter(&self) -> Option<GateGuard> {
        (!self.exclusion.is_active()).then(|| self.running.enter())
    }

    /// Whether compactions of the tablet alone are kept from starting.
    pub fn exclusion(&self) -> &Exclusion {
        &self.exclusion
    }

    /// Stops the running compactions. The future waits for their end. Later ones are not affected.
    pub fn stop(&self) -> impl Future<Output = ()> + use<> {
        self.cancel.replace(Cancel::new()).cancel();
        self.running.earlier_have_left()
    }

    /// Stops the running compactions and keeps others from starting while the guard lives.
    pub async fn exclude(&self) -> Excluded {
        let guard = self.exclusion.begin();
        self.stop().await;
        guard
    }
}
