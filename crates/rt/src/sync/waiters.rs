//! The tasks that wait for one condition. A waiter that is dropped leaves no trace.

use slab::Slab;
use std::cell::RefCell;
use std::task::{Context, Waker};

/// The wakers of everyone who waits.
#[derive(Default)]
pub(crate) struct Waiters {
    wakers: RefCell<Slab<Waker>>,
}

/// One waiter's place in the list; the owner must call [`Waiters::leave`] with it when it stops waiting.
#[derive(Default)]
pub(crate) struct Place(Option<usize>);

impl Waiters {
    /// Registers or refreshes the waiter at `place`.
    pub fn wait(&self, place: &mut Place, cx: &mut Context<'_>) {
        let mut wakers = self.wakers.borrow_mut();
        match place.0 {
            Some(key) => wakers[key].clone_from(cx.waker()),
            None => place.0 = Some(wakers.insert(cx.waker().clone())),
        }
    }

    /// Takes the waiter off the list.
    pub fn leave(&self, place: &mut Place) {
        if let Some(key) = place.0.take() {
            let waker = self.wakers.borrow_mut().remove(key);
            drop(waker);
        }
    }

    /// Wakes everyone; they stay on the list until they leave.
    pub fn wake_all(&self) {
        let all: Vec<Waker> = self.wakers.borrow().iter().map(|(_, waker)| waker.clone()).collect();
        for waker in all {
            waker.wake();
        }
    }
}
