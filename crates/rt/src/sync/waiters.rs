//! The tasks that wait for one condition, in order of arrival. A waiter that leaves is removed.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::task::{Context, Waker};

/// The wakers of all waiting tasks.
#[derive(Default)]
pub(crate) struct Waiters {
    wakers: RefCell<BTreeMap<u64, Waker>>,
    arrivals: Cell<u64>,
}

/// One waiter's slot in the list. Its owner must call [`Waiters::leave`] when it stops waiting.
#[derive(Default)]
pub(crate) struct WaiterSlot(Option<u64>);

impl Waiters {
    /// Registers or refreshes the waiter at `slot`.
    pub fn wait(&self, slot: &mut WaiterSlot, cx: &mut Context<'_>) {
        let key = *slot.0.get_or_insert_with(|| {
            let key = self.arrivals.get();
            self.arrivals.set(key + 1);
            key
        });
        let mut wakers = self.wakers.borrow_mut();
        match wakers.get_mut(&key) {
            Some(waker) => waker.clone_from(cx.waker()),
            None => {
                wakers.insert(key, cx.waker().clone());
            }
        }
    }

    /// Removes the waiter from the list.
    pub fn leave(&self, slot: &mut WaiterSlot) {
        if let Some(key) = slot.0.take() {
            let waker = self.wakers.borrow_mut().remove(&key);
            drop(waker);
        }
    }

    /// Wakes all waiters. They stay on the list until they leave.
    pub fn wake_all(&self) {
        self.wake_first(usize::MAX);
    }

    /// Wakes the `n` waiters that have waited longest. They stay on the list until they leave.
    pub fn wake_first(&self, n: usize) {
        let woken: Vec<Waker> = self.wakers.borrow().values().take(n).cloned().collect();
        for waker in woken {
            waker.wake();
        }
    }
}
