//! A gate that counts work in progress: once it is closed, no work can enter, and closing waits
//! until all work has left.

use super::waiters::{WaiterSlot, Waiters};
use std::cell::Cell;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

/// Counts the users of something that will be shut down. Cheap to clone; clones are the same gate.
#[derive(Clone, Default)]
pub struct Gate {
    inner: Rc<Inner>,
}

#[derive(Default)]
struct Inner {
    inside: Cell<usize>,
    closed: Cell<bool>,
    waiting: Waiters,
}

/// Proof of having entered a [`Gate`]. Dropping it leaves the gate.
pub struct GateGuard {
    inner: Rc<Inner>,
}

impl Gate {
    /// An open gate without guards.
    pub fn new() -> Self {
        Self::default()
    }

    /// Enters, unless the gate is closed.
    pub fn enter(&self) -> Option<GateGuard> {
        if self.inner.closed.get() {
            return None;
        }
        self.inner.inside.set(self.inner.inside.get() + 1);
        Some(GateGuard { inner: self.inner.clone() })
    }

    /// Whether [`Gate::close`] was called.
    pub fn is_closed(&self) -> bool {
        self.inner.closed.get()
    }

    /// The number of live guards.
    pub fn inside(&self) -> usize {
        self.inner.inside.get()
    }

    /// Closes at once (even if the returned future is dropped), and waits until all guards are
    /// dropped. May be called again.
    pub fn close(&self) -> Closing {
        self.inner.closed.set(true);
        Closing { inner: self.inner.clone(), slot: WaiterSlot::default() }
    }
}

/// Waits until a closed gate has no guards; created by [`Gate::close`].
#[must_use = "the gate is closed, but some tasks have not left it yet"]
pub struct Closing {
    inner: Rc<Inner>,
    slot: WaiterSlot,
}

impl Future for Closing {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        if this.inner.inside.get() == 0 {
            return Poll::Ready(());
        }
        this.inner.waiting.wait(&mut this.slot, cx);
        Poll::Pending
    }
}

impl Drop for Closing {
    fn drop(&mut self) {
        self.inner.waiting.leave(&mut self.slot);
    }
}

impl Drop for GateGuard {
    fn drop(&mut self) {
        let inside = self.inner.inside.get() - 1;
        self.inner.inside.set(inside);
        if inside == 0 {
            self.inner.waiting.wake_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn close_waits_for_guards_and_refuses_newcomers() {
        crate::block_on(async {
            let gate = Gate::new();
            let first = gate.enter().expect("open");
            let second = gate.enter().expect("open");
            let closing = crate::task::spawn(gate.close());
            crate::task::yield_now().await;
            assert!(gate.enter().is_none());
            drop(first);
            crate::task::yield_now().await;
            assert!(!closing.is_finished());
            drop(second);
            crate::time::timeout(Duration::from_secs(60), closing).await.expect("closed").expect("not aborted");
            gate.close().await;
        });
    }
}
