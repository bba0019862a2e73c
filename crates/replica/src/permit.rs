//! Permits: the right to run a read. A permit is one count and some memory of its class. Reads
//! without one wait in a queue.
//!
//! The queue is served in order of arrival. It is bounded: beyond it, a read is refused at once,
//! which costs less than serving it.
//!
//! A reader that is kept for the next page keeps its permit. A read never waits while such a permit
//! could be freed: before the read queues, the querier cache evicts readers of its class, least
//! recently used first. While reads wait, no reader is kept. A running page never gives up its
//! permit, and it ends at the latest at its deadline.

use crate::error::{Overload, ReplicaError};
use crate::request::Class;
use engine::LargeRead;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

/// Memory of every admitted read, in bytes.
pub const BASE_MEMORY: usize = 16 * 1024;

/// The limits of a class.
#[derive(Clone, Copy, Debug)]
pub struct PermitLimits {
    /// The most concurrent reads.
    pub count: usize,
    /// The most bytes that they may hold together.
    pub memory: usize,
    /// The most reads that may wait.
    pub queue: usize,
}

/// The permits of one class on one shard.
pub struct Permits {
    state: Rc<RefCell<State>>,
}

struct State {
    limits: PermitLimits,
    class: Class,
    count: usize,
    memory: usize,
    next_ticket: u64,
    waiting: VecDeque<(u64, Option<Waker>)>,
    admitted: u64,
    rejected: u64,
}

/// The right to run a read. Dropping it returns it.
pub struct Permit {
    state: Rc<RefCell<State>>,
    memory: usize,
    /// Memory of large rows and of a long result. Boxed, because few reads have any.
    large: Option<Box<Large>>,
}

#[derive(Debug, Default)]
struct Large {
    bytes: usize,
    parts: Vec<LargeRead>,
}

impl Permits {
    /// Permits with these limits.
    pub fn new(class: Class, limits: PermitLimits) -> Self {
        let state = State {
            limits,
            class,
            count: 0,
            memory: 0,
            next_ticket: 0,
            waiting: VecDeque::new(),
            admitted: 0,
            rejected: 0,
        };
        Permits { state: Rc::new(RefCell::new(state)) }
    }

    /// A permit if one is free and no read waits.
    pub fn try_acquire(&self) -> Option<Permit> {
        let mut state = self.state.borrow_mut();
        (state.waiting.is_empty() && state.has_room()).then(|| state.admit(&self.state))
    }

    /// Waits for a permit, in order of arrival.
    ///
    /// # Errors
    ///
    /// Overloaded if the queue is full.
    pub async fn acquire(&self) -> Result<Permit, ReplicaError> {
        if let Some(permit) = self.try_acquire() {
            return Ok(permit);
        }
        let ticket = {
            let mut state = self.state.borrow_mut();
            if state.waiting.len() >= state.limits.queue {
                state.rejected += 1;
                let (class, waiting) = (state.class, state.waiting.len() as u32);
                return Err(ReplicaError::Overloaded(Overload::Reads { class, waiting }));
            }
            state.next_ticket += 1;
            let ticket = state.next_ticket;
            state.waiting.push_back((ticket, None));
            ticket
        };
        let mut waiter = PermitWaiter { state: self.state.clone(), ticket, done: false };
        poll_fn(|cx| {
            let mut state = waiter.state.borrow_mut();
            let first = state.waiting.front().is_some_and(|(front, _)| *front == ticket);
            if first && state.has_room() {
                state.waiting.pop_front();
                let permit = state.admit(&self.state);
                state.wake_first();
                drop(state);
                waiter.done = true;
                return Poll::Ready(Ok(permit));
            }
            if let Some(entry) = state.waiting.iter_mut().find(|(waiting, _)| *waiting == ticket) {
                entry.1 = Some(cx.waker().clone());
            }
            Poll::Pending
        })
        .await
    }

    /// Whether a read waits for a permit.
    pub fn has_waiting(&self) -> bool {
        !self.state.borrow().waiting.is_empty()
    }

    /// The current usage.
    pub fn usage(&self) -> PermitUsage {
        let state = self.state.borrow();
        PermitUsage {
            count: state.count,
            memory: state.memory,
            waiting: state.waiting.len(),
            admitted: state.admitted,
            rejected: state.rejected,
        }
    }
}

/// The usage of a class's permits. Queriers between two pages count as running reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PermitUsage {
    /// Reads that run.
    pub count: usize,
    /// Bytes they hold.
    pub memory: usize,
    /// Reads that wait.
    pub waiting: usize,
    /// Reads admitted so far.
    pub admitted: u64,
    /// Reads refused so far.
    pub rejected: u64,
}

impl State {
    fn has_room(&self) -> bool {
        self.count < self.limits.count && (self.memory + BASE_MEMORY <= self.limits.memory || self.count == 0)
    }

    fn admit(&mut self, own: &Rc<RefCell<State>>) -> Permit {
        self.count += 1;
        self.memory += BASE_MEMORY;
        self.admitted += 1;
        debug_assert!(self.count <= self.limits.count, "no more reads run than there are permits");
        Permit { state: own.clone(), memory: BASE_MEMORY, large: None }
    }

    fn wake_first(&mut self) {
        if self.has_room()
            && let Some(waker) = self.waiting.front_mut().and_then(|(_, waker)| waker.take())
        {
            waker.wake();
        }
    }
}

impl Permit {
    /// Holds memory of large rows or results until the page is complete.
    pub fn hold_large(&mut self, part: LargeRead, bytes: usize) {
        let large = self.large.get_or_insert_default();
        large.bytes += bytes;
        large.parts.push(part);
    }

    /// Bytes held for large rows or results.
    #[inline]
    pub fn large_memory(&self) -> usize {
        self.large.as_ref().map_or(0, |large| large.bytes)
    }

    /// Releases the memory of large rows and results: the page is complete, and its result is
    /// accounted for itself.
    pub fn leave_large(&mut self) {
        self.large = None;
    }

    /// Sets the memory that the read holds, in bytes, in addition to the base.
    pub fn set_memory(&mut self, bytes: usize) {
        let memory = BASE_MEMORY + bytes;
        let mut state = self.state.borrow_mut();
        debug_assert!(state.memory >= self.memory, "the memory of each read is counted");
        state.memory = state.memory - self.memory + memory;
        state.wake_first();
        self.memory = memory;
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut state = self.state.borrow_mut();
        state.count -= 1;
        state.memory -= self.memory;
        debug_assert!(state.count > 0 || state.memory == 0, "without reads, no memory is held");
        state.wake_first();
    }
}

struct PermitWaiter {
    state: Rc<RefCell<State>>,
    ticket: u64,
    done: bool,
}

impl Drop for PermitWaiter {
    fn drop(&mut self) {
        if !self.done {
            let mut state = self.state.borrow_mut();
            state.waiting.retain(|(ticket, _)| *ticket != self.ticket);
            state.wake_first();
        }
    }
}
