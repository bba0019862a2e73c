//! The memory budget of a shard for requests.
//!
//! A request is large if its frame exceeds a read buffer, or does after decompression. It reserves
//! all memory that it may need before its body is read. Reservations are granted in order of
//! arrival and in one piece, so none waits for another waiting one. A reservation is capped at the
//! part for large requests, so each can be granted. Further memory for a request is borrowed from
//! the caches.
//!
//! Other requests are charged when they have to wait. While the budget is used up, connections stop
//! reading their sockets. Requests that finish at once are never charged, because they hold nothing
//! when the next one starts.
//!
//! A quarter of the budget is for requests that are not large, so neither kind can starve the
//! other.
//!
//! Connections also hold input that is in no reservation: read buffers that have grown, incomplete
//! frames, decompressed segments. The sum of these bytes is known. Above a quarter of the budget,
//! the shard is under input pressure: idle connections give their buffers back, and new input
//! beyond a small buffer needs a reservation. No connection waits until the pressure ends.

use std::any::Any;
use std::cell::{Cell, OnceCell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// 1/4 of the budget is for requests that are not large.
const SMALL_PART: usize = 4;

/// 1/4 of the budget is for input without reservations.
const INPUT_PART: usize = 4;

/// Memory that is counted in another budget until this is dropped.
pub type Held = Box<dyn Any>;
/// Counts this many bytes in another budget.
pub type Lender = Box<dyn Fn(usize) -> Held>;

/// The memory budget of a shard.
pub struct Memory {
    limit: usize,
    lender: OnceCell<Lender>,
    /// Bytes of requests that are not large.
    small: Cell<usize>,
    /// Bytes of large requests.
    large: Cell<usize>,
    /// Bytes that connections hold for input beyond their first buffers, without reservations.
    input: Cell<usize>,
    /// Connections that wait until the budget is no longer used up.
    blocked: RefCell<Vec<Waker>>,
    /// How often all of them were woken.
    wakes: Cell<u64>,
    /// Large requests that wait for their reservations, with their tickets.
    queue: RefCell<VecDeque<(u64, Waker)>>,
    next_ticket: Cell<u64>,
    /// How often a connection had to wait for memory.
    waits: Cell<u64>,
}

impl std::fmt::Debug for Memory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Memory").field("limit", &self.limit).field("used", &self.used()).finish_non_exhaustive()
    }
}

/// A charged part of the budget. Dropping it frees the part.
#[derive(Debug)]
pub struct Charge {
    memory: Rc<Memory>,
    bytes: usize,
    is_large: bool,
    /// The bytes borrowed beyond the budget.
    _loan: Option<Held>,
}

/// A connection waits until the next wake.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Blocked {
    wakes: u64,
}

/// A position in the queue of large requests. Dropping it leaves the queue.
#[derive(Debug)]
pub struct Ticket {
    memory: Rc<Memory>,
    id: u64,
}

impl Memory {
    /// A budget of `limit` bytes.
    pub fn new(limit: usize) -> Rc<Memory> {
        Rc::new(Memory {
            limit,
            lender: OnceCell::new(),
            small: Cell::new(0),
            large: Cell::new(0),
            input: Cell::new(0),
            blocked: RefCell::default(),
            wakes: Cell::new(0),
            queue: RefCell::default(),
            next_ticket: Cell::new(0),
            waits: Cell::new(0),
        })
    }

    /// Sets where large requests borrow bytes beyond the budget. To be called once.
    pub fn borrow_from(&self, lender: Lender) {
        assert!(self.lender.set(lender).is_ok(), "the lender is set once");
    }

    /// Whether large requests wait for memory.
    pub fn has_waiting(&self) -> bool {
        !self.queue.borrow().is_empty()
    }

    /// The budget in bytes.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// The bytes in use.
    pub fn used(&self) -> usize {
        self.small.get() + self.large.get()
    }

    /// The bytes that connections hold for input beyond their first buffers, without reservations.
    pub fn input(&self) -> usize {
        self.input.get()
    }

    /// Whether these are too many.
    #[inline]
    pub fn is_pressed(&self) -> bool {
        self.input.get() > self.limit / INPUT_PART
    }

    /// A connection held `before` bytes of input and now holds `after`.
    pub(super) fn input_changed(&self, before: usize, after: usize) {
        debug_assert!(self.input.get() >= before, "the input of each connection is counted");
        self.input.set(self.input.get() - before + after);
    }

    /// How often a connection had to wait.
    pub fn waits(&self) -> u64 {
        self.waits.get()
    }

    /// Whether nothing is left for requests that are not large.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.used() >= self.limit && self.small.get() >= self.limit / SMALL_PART
    }

    /// Charges `bytes`, beyond the limit if necessary, for a request that was accepted already.
    pub fn charge(self: &Rc<Self>, bytes: usize) -> Charge {
        self.small.set(self.small.get() + bytes);
        Charge { memory: self.clone(), bytes, is_large: false, _loan: None }
    }

    /// Reserves `bytes` for a large request, when it is first in the queue and the bytes are
    /// available. Sets and clears `ticket`, the position in the queue.
    pub fn poll_reserve(
        self: &Rc<Self>,
        ticket: &mut Option<Ticket>,
        bytes: usize,
        cx: &mut Context<'_>,
    ) -> Poll<Charge> {
        debug_assert!(
            ticket.as_ref().is_none_or(|ticket| Rc::ptr_eq(&ticket.memory, self)),
            "a ticket is of the queue of this budget"
        );
        let most = self.limit - self.limit / SMALL_PART;
        let beyond = bytes.saturating_sub(most);
        let bytes = bytes - beyond;
        let mut queue = self.queue.borrow_mut();
        let is_first = match (&*ticket, queue.front()) {
            (Some(ticket), Some((first, _))) => ticket.id == *first,
            (None, None) => true,
            _ => false,
        };
        if is_first && self.large.get() + bytes <= most {
            drop(queue);
            self.large.set(self.large.get() + bytes);
            // Leaves the queue and wakes the next request, which may fit too.
            *ticket = None;
            let loan = (beyond > 0).then(|| self.lender.get()).flatten().map(|lend| lend(beyond));
            return Poll::Ready(Charge { memory: self.clone(), bytes, is_large: true, _loan: loan });
        }
        match ticket {
            Some(ticket) => {
                debug_assert!(queue.iter().any(|(id, _)| *id == ticket.id), "a request with a ticket is in the queue");
                if let Some((_, waker)) = queue.iter_mut().find(|(id, _)| *id == ticket.id) {
                    waker.clone_from(cx.waker());
                }
            }
            None => {
                self.waits.set(self.waits.get() + 1);
                let id = self.next_ticket.get();
                self.next_ticket.set(id + 1);
                queue.push_back((id, cx.waker().clone()));
                *ticket = Some(Ticket { memory: self.clone(), id });
            }
        }
        Poll::Pending
    }

    /// Wakes `waker` when memory is freed. `blocked` belongs to the connection: a connection that
    /// waits already is not added again.
    pub fn wait(&self, blocked: &Cell<Option<Blocked>>, waker: &Waker) {
        self.waits.set(self.waits.get() + 1);
        let now = Some(Blocked { wakes: self.wakes.get() });
        if blocked.replace(now) != now {
            self.blocked.borrow_mut().push(waker.clone());
        }
    }

    fn wake_first(&self) {
        if let Some((_, waker)) = self.queue.borrow().front() {
            waker.wake_by_ref();
        }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        let memory = &self.memory;
        let part = if self.is_large { &memory.large } else { &memory.small };
        debug_assert!(part.get() >= self.bytes, "the memory of each request is counted");
        part.set(part.get() - self.bytes);
        if self.is_large {
            memory.wake_first();
        }
        if memory.is_full() || memory.blocked.borrow().is_empty() {
            return;
        }
        let blocked = std::mem::take(&mut *memory.blocked.borrow_mut());
        memory.wakes.set(memory.wakes.get() + 1);
        for waker in blocked {
            waker.wake();
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.memory.queue.borrow_mut().retain(|(id, _)| *id != self.id);
        self.memory.wake_first();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reserve(memory: &Rc<Memory>, ticket: &mut Option<Ticket>, bytes: usize) -> Option<Charge> {
        match memory.poll_reserve(ticket, bytes, &mut Context::from_waker(Waker::noop())) {
            Poll::Ready(charge) => Some(charge),
            Poll::Pending => None,
        }
    }

    #[test]
    fn large_requests_are_granted_in_order_and_whole() {
        let memory = Memory::new(100);
        let (mut one, mut two, mut three) = (None, None, None);
        let first = reserve(&memory, &mut one, 50).expect("there is room");
        assert!(reserve(&memory, &mut two, 1000).is_none(), "takes all that there is for large ones");
        assert!(reserve(&memory, &mut three, 10).is_none(), "there would be room, but another came before");
        drop(first);
        assert!(reserve(&memory, &mut three, 10).is_none());
        let second = reserve(&memory, &mut two, 1000).expect("its turn");
        assert_eq!((memory.used(), two.is_none()), (75, true));
        assert!(reserve(&memory, &mut three, 10).is_none());
        drop(second);
        let third = reserve(&memory, &mut three, 10).expect("its turn");
        drop(third);
        assert_eq!(memory.used(), 0);
    }

    #[test]
    fn one_that_leaves_the_queue_lets_the_next_go_on() {
        let memory = Memory::new(100);
        let (mut one, mut two, mut three) = (None, None, None);
        let _held = reserve(&memory, &mut one, 50);
        assert!(reserve(&memory, &mut two, 60).is_none());
        assert!(reserve(&memory, &mut three, 20).is_none());
        drop(two);
        assert!(reserve(&memory, &mut three, 20).is_some());
    }

    #[test]
    fn large_requests_and_others_do_not_shut_each_other_out() {
        let memory = Memory::new(100);
        let large = reserve(&memory, &mut None, 1000).expect("there is room");
        assert!(!memory.is_full());
        let small = memory.charge(25);
        assert!(memory.is_full(), "the quarter is used, and so is the rest");
        drop(large);
        assert!(!memory.is_full());
        let more = memory.charge(75);
        assert!(memory.is_full());
        assert!(
            reserve(&memory, &mut None, 1000).is_some(),
            "memory of other requests does not count for large requests"
        );
        drop((small, more));
        assert_eq!(memory.used(), 0);
    }

    #[test]
    fn a_connection_that_waits_is_added_once_until_it_is_woken() {
        let memory = Memory::new(100);
        let charge = memory.charge(100);
        let (one, two) = (Cell::default(), Cell::default());
        for _ in 0..3 {
            memory.wait(&one, Waker::noop());
            memory.wait(&two, Waker::noop());
        }
        assert_eq!((memory.blocked.borrow().len(), memory.waits()), (2, 6));
        drop(charge);
        assert_eq!(memory.blocked.borrow().len(), 0);
        let _charge = memory.charge(100);
        memory.wait(&one, Waker::noop());
        assert_eq!(memory.blocked.borrow().len(), 1);
    }
}
