//! Gates that count work in progress. Once a [`Gate`] is closed, no work can enter, and closing
//! waits until all work has left. A [`RenewedGate`] admits new work while it waits for the earlier.

use super::waiters::{WaiterSlot, Waiters};
use std::cell::{Cell, RefCell};
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

/// Counts the users of something that is stopped now and then and continues: work that enters later
/// does not delay tasks that wait for earlier work.
#[derive(Default)]
pub struct RenewedGate {
    now: RefCell<Gate>,
    /// Closed gates that may still have guards.
    earlier: RefCell<Vec<Gate>>,
}

impl RenewedGate {
    /// Enters. Never refused.
    pub fn enter(&self) -> GateGuard {
        self.now.borrow().enter().expect("the gate of now is open")
    }

    /// Whether nothing is inside.
    pub fn is_empty(&self) -> bool {
        self.now.borrow().inside() == 0 && self.earlier.borrow().iter().all(|gate| gate.inside() == 0)
    }

    /// Waits until everything that entered before the call has left, also what an earlier call
    /// still waits for. The future may be awaited later.
    pub fn earlier_have_left(&self) -> impl Future<Output = ()> + use<> {
        let now = self.now.take();
        drop(now.close());
        let waits = {
            let mut earlier = self.earlier.borrow_mut();
            earlier.push(now);
            earlier.retain(|gate| gate.inside() > 0);
            earlier.clone()
        };
        async move {
            for gate in waits {
                gate.close().await;
            }
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

    #[test]
    fn all_that_wait_for_earlier_work_wait_for_all_of_it() {
        crate::block_on(async {
            let gate = Rc::new(RenewedGate::default());
            let wait = || {
                let gate = gate.clone();
                crate::task::spawn(async move { gate.earlier_have_left().await })
            };
            let first = gate.enter();
            let (one, two) = (wait(), wait());
            crate::task::yield_now().await;
            let later = gate.enter();
            let three = wait();
            crate::task::yield_now().await;
            assert!(!one.is_finished() && !two.is_finished());
            drop(first);
            for task in [one, two] {
                crate::time::timeout(Duration::from_secs(60), task).await.expect("left").expect("not aborted");
            }
            crate::task::yield_now().await;
            assert!(!three.is_finished(), "it waits for what entered before it");
            drop(later);
            crate::time::timeout(Duration::from_secs(60), three).await.expect("left").expect("not aborted");
        });
    }
}
