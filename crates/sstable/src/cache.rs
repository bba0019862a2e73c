//! The page cache: decompressed chunks of Data.db and pages of Index.db. One per shard, with a byte
//! budget and no locks.
//!
//! Eviction is S3-FIFO. New pages enter a small queue. Pages that are requested again move to the
//! main queue. Others are evicted, and their keys are remembered for a while, so that after a
//! second miss they enter the main queue directly. The bytes of the pages are in [`segments`].
//!
//! A page that several readers miss at once is read once: the first reader claims it ([`Claim`]),
//! the others wait for its [`Flight`]. Pages of a closed file are dropped at once.
//!
//! When the cache is full, long sequential reads insert only a sample of their pages. A single scan
//! would evict pages that other reads need, for no benefit. Data that is scanned repeatedly still
//! enters the cache, piece by piece.

mod flight;
mod segments;

use crate::large_reads::LargeReads;
use crate::open_files::OpenFiles;
use bytes::Bytes;
pub(crate) use flight::{Claim, Flight};
use rt::hash::HashMap;
use segments::{Queue, Segment, Segments};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes that an entry costs besides its page.
const OVERHEAD: usize = 128;
/// The share of the budget for pages that were not requested twice, in percent.
const SMALL_PERCENT: usize = 10;
/// Of a long sequential read, a full cache accepts one window in this number.
const SAMPLE: u64 = 8;
/// The budget divided by this is the limit, in bytes, of all reads ahead of a shard beyond the
/// first one of each reader.
const AHEAD_SHARE: usize = 32;
/// The budget divided by this is never lent.
const LEAST_PART: usize = 8;
/// An eviction copies pages that were requested, to keep them. It copies at most this number of
/// segments, and evicts further pages although they were requested. So it does not take long.
const MOST_KEPT_SEGMENTS: usize = 8;
/// The counter of an entry's hits stops here.
const MAX_VISITS: u8 = 3;

/// Returns how many bytes of the shard's memory are free. Must not use the cache.
pub type Spare = Box<dyn Fn() -> usize>;

/// Counters and sizes of a cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Requests that found their page.
    pub hits: u64,
    /// Requests that did not.
    pub misses: u64,
    /// Bytes held now.
    pub bytes: usize,
    /// Pages cached now.
    pub pages: usize,
    /// Pages evicted.
    pub evictions: u64,
    /// Requests for index pages, hits and misses.
    pub index_reads: u64,
    /// Sstables opened with this cache since it was created.
    pub sstables_opened: u64,
}

/// The page cache of a shard.
pub struct PageCache {
    inner: RefCell<Inner>,
    files: Rc<OpenFiles>,
    /// Bytes reserved for reads ahead.
    ahead: Rc<Cell<usize>>,
    /// The budget of reads that hold large rows or results.
    large: Rc<LargeReads>,
    /// The same budget of flushes and compactions.
    large_jobs: Rc<LargeReads>,
}

impl std::fmt::Debug for PageCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PageCache").field("stats", &self.stats()).finish_non_exhaustive()
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Key {
    file: u64,
    page: u64,
}

/// The component that a page belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Data = 0,
    Index = 1,
}

struct CacheEntry {
    key: Key,
    /// `None` once the file is closed.
    bytes: Option<Bytes>,
    segment: Segment,
    queue: Queue,
    visits: u8,
}

#[derive(Default)]
struct Inner {
    budget: usize,
    /// Bytes of the budget that are lent.
    lent: usize,
    /// Bytes of results on their way to clients.
    results: Arc<AtomicUsize>,
    /// Returns the free bytes of the shard's memory. Only loans beyond them reduce the cache.
    spare: Option<Spare>,
    segments: Segments,
    entries: Vec<CacheEntry>,
    free: Vec<u32>,
    /// Entries of closed files that are still in a queue.
    dead: usize,
    /// Slots by file, then page.
    files: HashMap<u64, HashMap<u64, u32>>,
    small: VecDeque<u32>,
    main: VecDeque<u32>,
    ghosts: HashMap<Key, u64>,
    ghost_queue: VecDeque<(u64, Key)>,
    ghost_clock: u64,
    flights: HashMap<Key, Rc<Flight>>,
    next_file: u64,
    /// The state of the generator that chooses the sample. It is deterministic, so that a simulated
    /// run can be repeated.
    sample: u64,
    stats: CacheStats,
}

impl PageCache {
    /// A cache of up to `budget` bytes.
    pub fn new(budget: usize) -> Rc<PageCache> {
        PageCache::with_files(budget, OpenFiles::usual())
    }

    /// A cache of up to `budget` bytes. `files` opens the files of its sstables.
    pub fn with_files(budget: usize, files: Rc<OpenFiles>) -> Rc<PageCache> {
        PageCache::with_large_budgets(budget, files, usize::MAX, usize::MAX)
    }

    /// Like [`PageCache::with_files`], with budgets for what reads (`reads`) and what flushes and
    /// compactions (`jobs`) hold of large rows and results. The cache shrinks by the bytes that
    /// they hold.
    pub fn with_large_budgets(budget: usize, files: Rc<OpenFiles>, reads: usize, jobs: usize) -> Rc<PageCache> {
        Rc::new_cyclic(|me| {
            let (large, large_jobs) = (LargeReads::beside(reads, me.clone()), LargeReads::beside(jobs, me.clone()));
            let segments = Segments::for_budget(budget);
            let inner = RefCell::new(Inner { budget, results: large.results(), segments, ..Inner::default() });
            PageCache { inner, files, ahead: Rc::default(), large, large_jobs }
        })
    }

    /// Sets the source of the shard's free bytes. Without it, none are free.
    pub fn set_spare(&self, spare: Spare) {
        self.inner.borrow_mut().spare = Some(spare);
    }

    /// Lends `bytes` until the loan is dropped. The cache shrinks at once by the part that free
    /// memory does not cover.
    pub fn lend(self: &Rc<Self>, bytes: usize) -> Loan {
        let mut inner = self.inner.borrow_mut();
        inner.lent += bytes;
        let limit = inner.limit();
        inner.evict_to(limit);
        Loan { cache: self.clone(), bytes }
    }

    /// The bytes that are lent.
    pub fn lent(&self) -> usize {
        self.inner.borrow().lent
    }

    /// The budget of flushes and compactions that hold large rows.
    pub fn large_jobs(&self) -> &Rc<LargeReads> {
        &self.large_jobs
    }

    /// The budget of reads that hold large rows or results.
    pub fn large_reads(&self) -> &Rc<LargeReads> {
        &self.large
    }

    /// The open files of the cache's sstables.
    pub fn files(&self) -> &Rc<OpenFiles> {
        &self.files
    }

    /// Changes the budget. Evicts at once if it shrinks.
    pub fn set_budget(&self, bytes: usize) {
        let mut inner = self.inner.borrow_mut();
        inner.budget = bytes;
        let limit = inner.limit();
        inner.evict_to(limit);
    }

    /// The budget in bytes.
    pub fn budget(&self) -> usize {
        self.inner.borrow().budget
    }

    /// Evicts about `bytes` bytes. Returns how many were freed. The budget stays the same.
    pub fn shrink(&self, bytes: usize) -> usize {
        let mut inner = self.inner.borrow_mut();
        let before = inner.bytes();
        inner.evict_to(before.saturating_sub(bytes));
        before - inner.bytes()
    }

    /// Whether the cache accepts `bytes` of a long sequential read.
    pub(crate) fn samples(&self, bytes: usize) -> bool {
        let mut inner = self.inner.borrow_mut();
        if inner.bytes() + bytes + bytes / 8 <= inner.limit() {
            return true;
        }
        inner.sample = inner.sample.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (inner.sample >> 33).is_multiple_of(SAMPLE)
    }

    /// Evicts everything. Returns how many bytes were freed.
    pub fn clear(&self) -> usize {
        self.shrink(usize::MAX)
    }

    /// The counters and sizes.
    pub fn stats(&self) -> CacheStats {
        let inner = self.inner.borrow();
        let pages = inner.pages();
        debug_assert_eq!(
            pages,
            inner.files.values().map(HashMap::len).sum::<usize>(),
            "each page of an open file is in one queue"
        );
        CacheStats { bytes: inner.bytes(), pages, sstables_opened: inner.next_file, ..inner.stats }
    }

    pub(crate) fn register(self: &Rc<Self>) -> CachedFile {
        let mut inner = self.inner.borrow_mut();
        inner.next_file += 1;
        let id = inner.next_file;
        inner.files.insert(id, HashMap::default());
        CachedFile { cache: self.clone(), id }
    }
}

impl Inner {
    /// The bytes that the cache may hold now: the budget, less the loans and results that free
    /// memory does not cover.
    fn limit(&self) -> usize {
        let others = self.lent + self.results.load(Ordering::Relaxed);
        if others == 0 {
            return self.budget;
        }
        let spare = self.spare.as_ref().map_or(0, |spare| spare());
        self.budget.saturating_sub(others.saturating_sub(spare)).max(self.budget / LEAST_PART)
    }

    /// The pages that are cached.
    fn pages(&self) -> usize {
        self.small.len() + self.main.len() - self.dead
    }

    /// The bytes that are held.
    fn bytes(&self) -> usize {
        self.segments.held() + self.pages() * OVERHEAD
    }

    /// Whether each entry is in one queue or free, and the counts agree.
    fn is_consistent(&self) -> bool {
        let queued = self.small.len() + self.main.len();
        self.entries.len() == queued + self.free.len()
            && self.dead <= queued
            && (self.segments.held() == 0) == (self.dead == queued)
    }

    fn slot(&self, key: Key) -> Option<u32> {
        self.files.get(&key.file)?.get(&key.page).copied()
    }

    fn get(&mut self, key: Key) -> Option<Bytes> {
        self.stats.index_reads += key.page & Kind::Index as u64;
        let entry = match self.slot(key) {
            Some(slot) => &mut self.entries[slot as usize],
            None => {
                self.stats.misses += 1;
                return None;
            }
        };
        self.stats.hits += 1;
        entry.visits = (entry.visits + 1).min(MAX_VISITS);
        entry.bytes.clone()
    }

    fn insert(&mut self, key: Key, bytes: &[u8]) {
        if self.slot(key).is_some() || !self.files.contains_key(&key.file) {
            return;
        }
        let queue = if self.ghosts.contains_key(&key) { Queue::Main } else { Queue::Small };
        let limit = self.limit();
        // The pages that an eviction keeps may fill the segment that had room.
        loop {
            let cost = self.segments.cost(queue, bytes.len()) + OVERHEAD;
            if cost > limit {
                return;
            }
            if self.bytes() + cost <= limit {
                break;
            }
            self.evict_to(limit - cost);
        }
        self.ghosts.remove(&key);
        let (bytes, segment) = self.segments.store(queue, bytes);
        let entry = CacheEntry { key, bytes: Some(bytes), segment, queue, visits: 0 };
        let slot = match self.free.pop() {
            Some(slot) => {
                self.entries[slot as usize] = entry;
                slot
            }
            None => {
                self.entries.push(entry);
                self.entries.len() as u32 - 1
            }
        };
        if let Some(pages) = self.files.get_mut(&key.file) {
            pages.insert(key.page, slot);
        }
        match queue {
            Queue::Small => self.small.push_back(slot),
            Queue::Main => self.main.push_back(slot),
        }
        debug_assert!(self.bytes() <= limit, "the cache stays within its limit");
        debug_assert!(self.is_consistent(), "each entry is in one queue or free");
    }

    fn evict_to(&mut self, target: usize) {
        let mut may_keep = MOST_KEPT_SEGMENTS * self.segments.size();
        while self.bytes() > target {
            let over = self.segments.held_by(Queue::Small) > self.budget / 100 * SMALL_PERCENT;
            let from_small = over || self.main.is_empty();
            let queue = if from_small { &mut self.small } else { &mut self.main };
            let Some(slot) = queue.pop_front() else { break };
            let entry = &self.entries[slot as usize];
            let Some(bytes) = &entry.bytes else {
                self.bury(slot);
                continue;
            };
            let len = bytes.len();
            if entry.visits > 0 && (entry.segment.is_none() || len <= may_keep) {
                if entry.segment.is_some() {
                    may_keep -= len;
                }
                self.keep(slot);
            } else if from_small {
                self.evict_to_ghosts(slot);
            } else {
                self.evict(slot);
            }
        }
    }

    /// Moves an entry that was just taken from its queue to the end of the main queue.
    fn keep(&mut self, slot: u32) {
        let entry = &mut self.entries[slot as usize];
        let Some(bytes) = &mut entry.bytes else { unreachable!("the caller has looked") };
        let (len, from, segment) = (bytes.len(), entry.queue, entry.segment);
        entry.visits = if from == Queue::Small { 0 } else { entry.visits - 1 };
        entry.queue = Queue::Main;
        if segment.is_some() {
            (*bytes, entry.segment) = self.segments.store(Queue::Main, bytes);
            self.segments.remove(from, segment, len);
        } else {
            self.segments.transfer(from, Queue::Main, len);
        }
        self.main.push_back(slot);
    }

    /// Evicts an entry that was just taken from the small queue, and remembers its key.
    fn evict_to_ghosts(&mut self, slot: u32) {
        let key = self.entries[slot as usize].key;
        self.evict(slot);
        self.ghost_clock += 1;
        self.ghosts.insert(key, self.ghost_clock);
        self.ghost_queue.push_back((self.ghost_clock, key));
        let room = (self.main.len() + self.small.len()).max(64);
        while self.ghost_queue.len() > room {
            if let Some((clock, key)) = self.ghost_queue.pop_front()
                && self.ghosts.get(&key) == Some(&clock)
            {
                self.ghosts.remove(&key);
            }
        }
    }

    /// Frees the slot of a removed entry that was just taken from its queue.
    fn bury(&mut self, slot: u32) {
        self.dead -= 1;
        self.free.push(slot);
    }

    /// Drops the page of an entry that was just taken from its queue.
    fn evict(&mut self, slot: u32) {
        let key = self.entries[slot as usize].key;
        self.drop_bytes(slot);
        if let Some(pages) = self.files.get_mut(&key.file) {
            pages.remove(&key.page);
        }
        self.free.push(slot);
        self.stats.evictions += 1;
    }

    /// Drops the page of an entry.
    fn drop_bytes(&mut self, slot: u32) {
        let entry = &mut self.entries[slot as usize];
        if let Some(bytes) = entry.bytes.take() {
            let len = bytes.len();
            drop(bytes);
            self.segments.remove(entry.queue, entry.segment, len);
        }
    }

    fn close(&mut self, file: u64) {
        for (_, slot) in self.files.remove(&file).into_iter().flatten() {
            self.drop_bytes(slot);
            self.dead += 1;
        }
        if self.dead > (self.small.len() + self.main.len()) / 2 + 64 {
            for queue in [&mut self.small, &mut self.main] {
                queue.retain(|&slot| {
                    let alive = self.entries[slot as usize].bytes.is_some();
                    if !alive {
                        self.free.push(slot);
                    }
                    alive
                });
            }
            self.dead = 0;
        }
        debug_assert!(self.is_consistent(), "a closed file leaves no bytes");
    }
}

/// The part of an open file in the cache. Dropping it drops the file's pages.
pub(crate) struct CachedFile {
    cache: Rc<PageCache>,
    id: u64,
}

impl Drop for CachedFile {
    fn drop(&mut self) {
        self.cache.inner.borrow_mut().close(self.id);
    }
}

impl CachedFile {
    fn key(&self, kind: Kind, page: u64) -> Key {
        Key { file: self.id, page: page << 1 | kind as u64 }
    }

    /// A number that no other open file of this cache has.
    pub fn id(&self) -> u64 {
        self.id
    }

    #[inline]
    pub fn get(&self, kind: Kind, page: u64) -> Option<Bytes> {
        self.cache.inner.borrow_mut().get(self.key(kind, page))
    }

    /// See [`PageCache::samples`].
    pub fn samples(&self, bytes: usize) -> bool {
        self.cache.samples(bytes)
    }

    /// The budget of reads that hold large rows or results.
    pub fn large_reads(&self) -> &Rc<LargeReads> {
        &self.cache.large
    }

    /// The budget of flushes and compactions that hold large rows.
    pub fn large_jobs(&self) -> &Rc<LargeReads> {
        &self.cache.large_jobs
    }

    /// Reserves `bytes` for one more read ahead of a reader that has one in progress. `None` if the
    /// limit of the shard is reached.
    pub fn reserve_read_ahead(&self, bytes: usize) -> Option<ReadAheadReservation> {
        let (room, all) = (&self.cache.ahead, self.cache.budget() / AHEAD_SHARE);
        let taken = room.get() + bytes;
        (taken <= all).then(|| {
            room.set(taken);
            ReadAheadReservation { room: room.clone(), bytes }
        })
    }

    /// Whether a page is cached. Does not count as a hit.
    pub fn has(&self, kind: Kind, page: u64) -> bool {
        self.cache.inner.borrow().slot(self.key(kind, page)).is_some()
    }

    pub fn insert(&self, kind: Kind, page: u64, bytes: &Bytes) {
        self.cache.inner.borrow_mut().insert(self.key(kind, page), bytes);
    }

    /// The read of a page, if one is in progress.
    pub fn flight(&self, kind: Kind, page: u64) -> Option<Rc<Flight>> {
        self.cache.inner.borrow().flights.get(&self.key(kind, page)).cloned()
    }

    /// Claims the pages from `first` up to `end`, up to the first that is cached or being read. The
    /// caller has checked `first`.
    pub fn claim(&self, kind: Kind, first: u64, end: u64) -> Claim {
        let mut inner = self.cache.inner.borrow_mut();
        let mut keys = Vec::new();
        debug_assert!(first < end, "a claim has pages");
        for page in first..end {
            let key = self.key(kind, page);
            if page > first && (inner.slot(key).is_some() || inner.flights.contains_key(&key)) {
                break;
            }
            let other = inner.flights.insert(key, Rc::default());
            debug_assert!(other.is_none(), "a page is read by one reader at a time: those that wait for it are woken");
            keys.push(key);
        }
        Claim::new(self.cache.clone(), keys)
    }
}

/// Memory that the cache lends. Dropping it returns the memory.
#[derive(Debug)]
pub struct Loan {
    cache: Rc<PageCache>,
    bytes: usize,
}

impl Drop for Loan {
    fn drop(&mut self) {
        self.cache.inner.borrow_mut().lent -= self.bytes;
    }
}

/// The reservation of a read ahead. Dropping it returns the bytes.
pub(crate) struct ReadAheadReservation {
    room: Rc<Cell<usize>>,
    bytes: usize,
}

impl Drop for ReadAheadReservation {
    fn drop(&mut self) {
        self.room.set(self.room.get() - self.bytes);
    }
}

#[cfg(test)]
mod tests;
