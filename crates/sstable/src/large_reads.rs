//! The memory of reads with large rows or long results: one budget for each shard. Flushes and
//! compactions of large rows have another budget.
//!
//! The memory for a large row is not known before the row is found, so a permit cannot include it.
//! A read requests the memory when it reads a large row, and waits until there is room. Reads are
//! admitted in order of arrival. The read that was admitted first always gets more memory, so
//! admitted reads cannot deadlock. A result counts from the time it is built until its last byte is
//! dropped, usually by the socket of the client, on any shard.
//!
//! A statement may consist of several reads, and keep the results of the first ones until the last
//! one ends. If the results of several statements fill the budget, none of them could end. So, when
//! no read of another statement is admitted, one waiting statement is admitted over the budget. It
//! is the statement that has kept results for the longest time.
//!
//! This memory is taken from the page cache, since one large row may take more than the budget.

use crate::cache::{Loan, PageCache};
use bytes::Bytes;
use rt::sync::Notify;
use rt::time::{Duration, Instant};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The size in bytes from which a row or result is large.
pub const LARGE: usize = 1 << 20;
/// A result of at least this size counts until it is released. A page that ends at its byte limit
/// is shorter.
const LARGE_RESULT: usize = 2 << 20;
/// Results are released on other shards, which do not wake this one. A waiting read looks at this
/// interval.
const LOOK: Duration = Duration::from_millis(5);

/// The identity of a read in this budget.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ReadId {
    /// From 1; 0 for reads that are not bounded here.
    number: u64,
    /// The deadline of its statement, which all reads of the statement on this node have in common.
    statement: Option<Instant>,
}

impl ReadId {
    /// The id of reads that are not bounded here, such as reads of compactions.
    pub const NONE: ReadId = ReadId { number: 0, statement: None };

    /// Whether the read is not bounded here.
    #[inline]
    pub fn is_none(self) -> bool {
        self.number == 0
    }
}

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
    /// The number of the last read.
    last: Cell<u64>,
    /// The statements with results that are still kept, in the order of their first ones.
    statements: RefCell<Vec<Statement>>,
    /// The page cache, which shrinks by the held memory.
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
    /// A budget of `budget` bytes.
    pub fn new(budget: usize) -> Rc<LargeReads> {
        LargeReads::beside(budget, Weak::new())
    }

    /// A budget of `budget` bytes. `cache` shrinks by the held memory.
    pub(crate) fn beside(budget: usize, cache: Weak<PageCache>) -> Rc<LargeReads> {
        Rc::new(LargeReads {
            budget,
            used: Cell::new(0),
            results: Arc::default(),
            holders: RefCell::default(),
            queue: RefCell::default(),
            room: Notify::new(),
            last: Cell::new(0),
            statements: RefCell::default(),
            cache,
        })
    }

    /// The id of one more read, of the statement with this deadline.
    #[inline]
    pub fn next_id(&self, statement: Option<Instant>) -> ReadId {
        let number = self.last.get() + 1;
        self.last.set(number);
        ReadId { number, statement }
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
        let is_inside = holders.iter().any(|(holder, _)| *holder == read);
        let is_first = read.statement.is_some() && self.first_statement(&queue) == read.statement;
        let is_next = is_inside || is_first || queue.front().is_none_or(|next| *next == read);
        let used = self.used();
        let is_alone = is_first && holders.iter().all(|(holder, _)| holder.statement == read.statement);
        is_next && (used + bytes <= self.budget || used == 0 || is_alone)
    }

    /// Of the statements with waiting reads, the statement that has kept results for the longest
    /// time.
    fn first_statement(&self, queue: &VecDeque<ReadId>) -> Option<Instant> {
        let mut statements = self.statements.borrow_mut();
        statements.retain(Statement::keeps_results);
        let waits = |statement: &&Statement| queue.iter().any(|read| read.statement == Some(statement.deadline));
        statements.iter().find(waits).map(|statement| statement.deadline)
    }

    /// Counts a copy of a result until the returned value is dropped.
    pub fn copy_of_result(&self, bytes: usize) -> ResultCopy {
        self.results.fetch_add(bytes, Ordering::Relaxed);
        ResultCopy { bytes, results: self.results.clone() }
    }

    /// The result of a read of the statement with this deadline. A large result counts until its
    /// last part is dropped.
    #[inline]
    pub fn result(&self, bytes: Vec<u8>, statement: Instant) -> Bytes {
        match bytes.len() < LARGE_RESULT {
            true => bytes.into(),
            false => self.large_result(bytes, statement),
        }
    }

    #[cold]
    fn large_result(&self, bytes: Vec<u8>, deadline: Instant) -> Bytes {
        self.results.fetch_add(bytes.len(), Ordering::Relaxed);
        let mut statements = self.statements.borrow_mut();
        statements.retain(Statement::keeps_results);
        let kept = match statements.iter().find(|statement| statement.deadline == deadline) {
            Some(statement) => statement.kept.clone(),
            None => {
                let kept: Arc<AtomicUsize> = Arc::default();
                statements.push(Statement { deadline, kept: kept.clone() });
                kept
            }
        };
        kept.fetch_add(bytes.len(), Ordering::Relaxed);
        Bytes::from_owner(LargeResult { bytes, results: self.results.clone(), kept })
    }
}

/// A statement with large results.
#[derive(Debug)]
struct Statement {
    /// Its deadline, by which its reads are known.
    deadline: Instant,
    /// Bytes of its results that are still kept.
    kept: Arc<AtomicUsize>,
}

impl Statement {
    fn keeps_results(&self) -> bool {
        self.kept.load(Ordering::Relaxed) > 0
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
        let is_known = holders.iter().any(|(holder, parts)| *holder == self.read && *parts > 0);
        debug_assert!(is_known, "a read that returns memory holds some");
        if let Some((_, parts)) = holders.iter_mut().find(|(holder, _)| *holder == self.read) {
            *parts -= 1;
        }
        holders.retain(|(_, parts)| *parts > 0);
        debug_assert!(!holders.is_empty() || of.used.get() == 0, "without readers nothing is held");
        of.room.notify_waiters();
    }
}

/// The bytes of a result, and the counter that includes them.
struct LargeResult {
    bytes: Vec<u8>,
    /// Of all statements.
    results: Arc<AtomicUsize>,
    /// Of its statement.
    kept: Arc<AtomicUsize>,
}

impl AsRef<[u8]> for LargeResult {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for LargeResult {
    fn drop(&mut self) {
        self.results.fetch_sub(self.bytes.len(), Ordering::Relaxed);
        self.kept.fetch_sub(self.bytes.len(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rt::time::now;

    #[test]
    fn reads_come_in_one_after_the_other_and_the_first_one_gets_more() {
        rt::block_on(async {
            let all = LargeReads::new(100);
            let (one, two) = (all.next_id(None), all.next_id(None));
            let first = all.enter(one, 1000).await;
            let order = Rc::new(RefCell::new(Vec::new()));
            let mut waiting = Vec::new();
            let three = all.next_id(None);
            for read in [two, three] {
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
            assert_eq!((&order.borrow()[..], all.used()), (&[two, three][..], 0));
        });
    }

    #[test]
    fn two_that_hold_something_do_not_wait_for_each_other() {
        rt::block_on(async {
            let all = LargeReads::new(100);
            let (one, two) = (all.next_id(None), all.next_id(None));
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
            assert_eq!((all.result(vec![1; 10], now()).len(), all.used()), (10, 0));
            let result = all.result(vec![1; LARGE_RESULT], now());
            let part = result.slice(10..20);
            drop(result);
            assert_eq!(all.used(), LARGE_RESULT);
            let waits = rt::task::spawn({
                let all = all.clone();
                async move { drop(all.enter(all.next_id(None), 10).await) }
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

    /// Two statements have results that fill the budget, and both need one more read to end.
    #[test]
    fn statements_that_keep_results_end_one_after_the_other() {
        rt::block_on(async {
            let all = LargeReads::new(LARGE_RESULT);
            let ended = Rc::new(RefCell::new(Vec::new()));
            let began = now();
            let tasks: Vec<_> = (1..=3)
                .map(|n| {
                    let (all, ended) = (all.clone(), ended.clone());
                    // The second one has the first result. The third one has none, and asks first.
                    let statement = began + Duration::from_secs(n);
                    let wait = Duration::from_millis([20, 10, 0][n as usize - 1]);
                    rt::task::spawn(async move {
                        rt::time::sleep(wait).await;
                        let kept = (n < 3).then(|| all.result(vec![1; LARGE_RESULT], statement));
                        if kept.is_none() {
                            rt::time::sleep(Duration::from_millis(30)).await;
                        }
                        rt::time::sleep(Duration::from_millis(30)).await;
                        let read = all.next_id(Some(statement));
                        drop(all.enter(read, LARGE).await);
                        drop(kept);
                        ended.borrow_mut().push(n);
                    })
                })
                .collect();
            for task in tasks {
                task.await.expect("not aborted");
            }
            assert_eq!((&ended.borrow()[..], all.used()), (&[2, 1, 3][..], 0));
        });
    }

    /// A result that waits only for its client belongs to no waiting statement, so nothing is
    /// admitted over the budget.
    #[test]
    fn results_of_ended_statements_admit_no_other_statement() {
        rt::block_on(async {
            let all = LargeReads::new(LARGE_RESULT);
            let statement = now();
            let sent = all.result(vec![1; LARGE_RESULT], statement);
            let waits = rt::task::spawn({
                let (all, other) = (all.clone(), statement + Duration::from_secs(1));
                async move { drop(all.enter(all.next_id(Some(other)), LARGE).await) }
            });
            rt::time::sleep(LOOK * 3).await;
            assert!(!waits.is_finished());
            drop(sent);
            waits.await.expect("not aborted");
        });
    }
}
