//! The memory of reads that hold large rows or long results: one budget per shard. Flushes and
//! compactions of large rows have another budget.
//!
//! The size of a row is not known before it is found, so the permit of a read cannot count it. A
//! read that meets something large requests memory here, and waits until there is enough. Reads are
//! admitted in the order of arrival. The read that was admitted first always gets more, so that no
//! two reads wait for each other.
//!
//! A result counts from the moment it is built until its last byte is released, mostly by the
//! client's socket, on whatever shard that is. The page cache shrinks by what is held, since one
//! large row may exceed the budget.

use crate::cache::{Loan, PageCache};
use bytes::Bytes;
use rt::sync::Notify;
use rt::time::Duration;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The size in bytes from which a row or result is large.
pub const LARGE: usize = 1 << 20;
/// A result of at least so many bytes counts until it is released. A page that ends at its byte
/// limit is shorter.
const LARGE_RESULT: usize = 2 << 20;
/// Results are released on other shards, which do not wake this one. A waiting read looks at this
/// interval.
const LOOK: Duration = Duration::from_millis(5);

/// The number of a read. 0 stands for reads that this budget does not bound: those of compactions
/// and other jobs.
pub type ReadId = u64;

/// The budget for large rows and results.
#[derive(Debug)]
pub struct LargeReads {
    budget: usize,
    /// Bytes that reads hold.
    used: Cell<usize>,
    /// Bytes of results that are not released yet.
    results: Arc<AtomicUsize>,
    /// The reads that hold memory, in the order of admission, each with its number of parts.
    holders: RefCell<Vec<(ReadId, usize)>>,
    /// The reads that wait for admission.
    queue: RefCell<VecDeque<ReadId>>,
    room: Notify,
    last: Cell<ReadId>,
    /// The cache that shrinks by what is held.
    cache: Weak<PageCache>,
}

/// A part of the budget that a read holds. Dropping it returns the bytes.
#[derive(Debug)]
pub struct LargeRead {
    of: Rc<LargeReads>,
    read: ReadId,
    bytes: usize,
    _loan: Option<Loan>,
}

impl LargeReads {
    /// A budget of so many bytes.
    pub fn new(budget: usize) -> Rc<LargeReads> {
        LargeReads::beside(budget, Weak::new())
    }

    /// A budget of so many bytes. `cache` shrinks by what is held.
    pub(crate) fn beside(budget: usize, cache: Weak<PageCache>) -> Rc<LargeReads> {
        Rc::new(LargeReads {
            budget,
            used: Cell::new(0),
            results: Arc::default(),
            holders: RefCell::default(),
            queue: RefCell::default(),
            room: Notify::new(),
            last: Cell::new(0),
            cache,
        })
    }

    /// The number of a new read.
    #[inline]
    pub fn next_id(&self) -> ReadId {
        let id = self.last.get() + 1;
        self.last.set(id);
        id
    }

    /// The counter of bytes of results that are not released yet.
    pub(crate) fn results(&self) -> Arc<AtomicUsize> {
        self.results.clone()
    }

    /// Bytes that reads and their results hold.
    pub fn used(&self) -> usize {
        self.used.get() + self.results.load(Ordering::Relaxed)
    }

    /// Waits until a read may hold `bytes` more.
    pub async fn enter(self: &Rc<Self>, read: ReadId, bytes: usize) -> LargeRead {
        if !self.may_hold(read, bytes) {
            let _queued = QueueEntry::of(self, read);
            while !self.may_hold(read, bytes) {
                // Looks again after a timeout, too: see LOOK.
                let _ = rt::time::timeout(LOOK, self.room.notified()).await;
            }
        }
        self.used.set(self.used.get() + bytes);
        let mut holders = self.holders.borrow_mut();
        match holders.iter_mut().find(|(holder, _)| *holder == read) {
            Some((_, parts)) => *parts += 1,
            None => holders.push((read, 1)),
        }
        drop(holders);
        let loan = self.cache.upgrade().map(|cache| cache.lend(bytes));
        LargeRead { of: self.clone(), read, bytes, _loan: loan }
    }

    fn may_hold(&self, read: ReadId, bytes: usize) -> bool {
        let (holders, queue) = (self.holders.borrow(), self.queue.borrow());
        if holders.first().is_some_and(|(first, _)| *first == read) {
            return true;
        }
        let is_next =
            holders.iter().any(|(holder, _)| *holder == read) || queue.front().is_none_or(|next| *next == read);
        let used = self.used();
        is_next && (used + bytes <= self.budget || used == 0)
    }

    /// Counts a copy of a result until the returned value is dropped.
    pub fn copy_of_result(&self, bytes: usize) -> ResultCopy {
        self.results.fetch_add(bytes, Ordering::Relaxed);
        ResultCopy { bytes, results: self.results.clone() }
    }

    /// Makes a result of this shard. If it is large, it counts until its last part is released.
    #[inline]
    pub fn result(&self, bytes: Vec<u8>) -> Bytes {
        match bytes.len() < LARGE_RESULT {
            true => bytes.into(),
            false => self.large_result(bytes),
        }
    }

    #[cold]
    fn large_result(&self, bytes: Vec<u8>) -> Bytes {
        self.results.fetch_add(bytes.len(), Ordering::Relaxed);
        Bytes::from_owner(LargeResult { bytes, results: self.results.clone() })
    }
}

/// The count of a copy of a large result in another form.
#[derive(Debug)]
pub struct ResultCopy {
    bytes: usize,
    results: Arc<AtomicUsize>,
}

impl Drop for ResultCopy {
    fn drop(&mut self) {
        self.results.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// The place in the queue of a read that waits for admission.
struct QueueEntry<'a> {
    of: &'a LargeReads,
    read: Option<ReadId>,
}

impl<'a> QueueEntry<'a> {
    fn of(of: &'a LargeReads, read: ReadId) -> QueueEntry<'a> {
        let is_inside = of.holders.borrow().iter().any(|(holder, _)| *holder == read);
        if !is_inside {
            of.queue.borrow_mut().push_back(read);
        }
        QueueEntry { of, read: (!is_inside).then_some(read) }
    }
}

impl Drop for QueueEntry<'_> {
    fn drop(&mut self) {
        if let Some(read) = self.read {
            self.of.queue.borrow_mut().retain(|waiting| *waiting != read);
            self.of.room.notify_waiters();
        }
    }
}

impl Drop for LargeRead {
    fn drop(&mut self) {
        let of = &self.of;
        of.used.set(of.used.get() - self.bytes);
        let mut holders = of.holders.borrow_mut();
        if let Some((_, parts)) = holders.iter_mut().find(|(holder, _)| *holder == self.read) {
            *parts -= 1;
        }
        holders.retain(|(_, parts)| *parts > 0);
        of.room.notify_waiters();
    }
}

/// The bytes of a result, and the counter that includes them.
struct LargeResult {
    bytes: Vec<u8>,
    results: Arc<AtomicUsize>,
}

impl AsRef<[u8]> for LargeResult {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for LargeResult {
    fn drop(&mut self) {
        self.results.fetch_sub(self.bytes.len(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_come_in_one_after_the_other_and_the_first_one_gets_more() {
        rt::block_on(async {
            let all = LargeReads::new(100);
            let (one, two) = (all.next_id(), all.next_id());
            let first = all.enter(one, 1000).await;
            let order = Rc::new(RefCell::new(Vec::new()));
            let mut waiting = Vec::new();
            for read in [two, all.next_id()] {
                let (all, order) = (all.clone(), order.clone());
                waiting.push(rt::task::spawn(async move {
                    let held = all.enter(read, 80).await;
                    order.borrow_mut().push(read);
                    drop(held);
                }));
                rt::task::yield_now().await;
            }
            let more = all.enter(one, 50).await;
            assert_eq!((all.used(), order.borrow().len()), (1050, 0));
            drop((first, more));
            for task in waiting {
                task.await.expect("not aborted");
            }
            assert_eq!((&order.borrow()[..], all.used()), (&[two, two + 1][..], 0));
        });
    }

    #[test]
    fn two_that_hold_something_do_not_wait_for_each_other() {
        rt::block_on(async {
            let all = LargeReads::new(100);
            let (one, two) = (all.next_id(), all.next_id());
            let (first, second) = (all.enter(one, 40).await, all.enter(two, 40).await);
            let waits = rt::task::spawn({
                let all = all.clone();
                async move { drop(all.enter(two, 40).await) }
            });
            let more = all.enter(one, 40).await;
            assert!(!waits.is_finished());
            drop((first, more));
            waits.await.expect("not aborted");
            drop(second);
            assert_eq!(all.used(), 0);
        });
    }

    #[test]
    fn a_result_counts_until_it_is_given_up_elsewhere() {
        rt::block_on(async {
            let all = LargeReads::new(LARGE);
            assert_eq!((all.result(vec![1; 10]).len(), all.used()), (10, 0));
            let result = all.result(vec![1; LARGE_RESULT]);
            let part = result.slice(10..20);
            drop(result);
            assert_eq!(all.used(), LARGE_RESULT);
            let waits = rt::task::spawn({
                let all = all.clone();
                async move { drop(all.enter(all.next_id(), 10).await) }
            });
            rt::task::yield_now().await;
            assert!(!waits.is_finished());
            #[allow(clippy::disallowed_methods, reason = "another thread frees the part")]
            let elsewhere = std::thread::spawn(move || drop(part));
            waits.await.expect("not aborted");
            elsewhere.join().expect("ended");
            assert_eq!(all.used(), 0);
        });
    }
}
