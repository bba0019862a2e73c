//! Permits: the right to run a read, one count and some memory of its class; and the queue of those who wait for it.
//!
//! Fair by order of arrival. The queue is bounded: beyond it a read is refused at once, which costs less than serving it.
//!
//! A reader that is kept for the next page keeps its permit. No read ever waits while such a permit could be had: before it
//! queues, the querier cache gives up readers of its class, the longest unused first; and where reads wait, none is kept. In
//! mid-page no read gives its permit up, since in mid-page none is idle: a page ends at the latest when its deadline passes.

use crate::error::{Overload, ReplicaError};
use crate::request::Class;
use engine::LargeRead;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

/// Memory that every read holds from admission on, in bytes.
pub const BASE_MEMORY: usize = 16 * 1024;

/// What the permits of a class allow.
#[derive(Clone, Copy, Debug)]
pub struct PermitLimits {
    /// Reads at once.
    pub count: usize,
    /// Bytes they may hold together.
    pub memory: usize,
    /// Reads that may wait.
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

/// The right to run a read; given back on drop.
pub struct Permit {
    state: Rc<RefCell<State>>,
    memory: usize,
    /// What the read holds of large rows and of a long result. Few reads have any, so it takes a
    /// pointer's room in the others.
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

    /// A permit at once if one is free and nobody waits.
    pub fn try_acquire(&self) -> Option<Permit> {
        let mut state = self.state.borrow_mut();
        (state.waiting.is_empty() && state.has_room()).then(|| state.admit(&self.state))
    }

    /// Waits for a permit in order of arrival.
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
        let mut place = Place { state: self.state.clone(), ticket, done: false };
        poll_fn(|cx| {
            let mut state = place.state.borrow_mut();
            let first = state.waiting.front().is_some_and(|(front, _)| *front == ticket);
            if first && state.has_room() {
                state.waiting.pop_front();
                let permit = state.admit(&self.state);
                state.wake_first();
                drop(state);
                place.done = true;
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

    /// Reads that run, bytes they hold, reads that wait, reads admitted and refused so far.
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

/// What a class's permits are doing. Reads between two pages count as running.
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
    /// Keeps what the read holds of something large until the page is done.
    pub fn hold_large(&mut self, part: LargeRead, bytes: usize) {
        let large = self.large.get_or_insert_default();
        large.bytes += bytes;
        large.parts.push(part);
    }

    /// Bytes that it holds of something large.
    #[inline]
    pub fn large_memory(&self) -> usize {
        self.large.as_ref().map_or(0, |large| large.bytes)
    }

    /// The page is done: its result counts by itself.
    pub fn leave_large(&mut self) {
        self.large = None;
    }

    /// Says how much memory the read holds now, beyond the base.
    pub fn set_memory(&mut self, bytes: usize) {
        let memory = BASE_MEMORY + bytes;
        let mut state = self.state.borrow_mut();
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
        state.wake_first();
    }
}

struct Place {
    state: Rc<RefCell<State>>,
    ticket: u64,
    done: bool,
}

impl Drop for Place {
    fn drop(&mut self) {
        if !self.done {
            let mut state = self.state.borrow_mut();
            state.waiting.retain(|(ticket, _)| *ticket != self.ticket);
            state.wake_first();
        }
    }
}
