//! The cache of decompressed data chunks and of index pages: one per shard, with a byte budget, no locks.
//!
//! Eviction is S3-FIFO: new pages enter a small queue; those asked for again move to the main queue, others leave, and are
//! remembered for a while so that a second miss takes them straight to the main queue. Pages of the small queue may share a buffer
//! with those that were read together with them and leave together with them; in the main queue each has its own. A page that several readers miss at
//! once is read once: the first claims it ([`Claim`]), the others wait for its [`Flight`]. Pages of a file that is closed go at
//! once. When the cache is full, long sequential reads fill it with a sample of what they read only: one that comes by once would put out what others
//! need, and pay for it; what is scanned time and again still comes in, piece by piece.

use crate::large_reads::LargeReads;
use crate::open_files::OpenFiles;
use bytes::Bytes;
use rt::hash::HashMap;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

/// What an entry costs beside its bytes.
const OVERHEAD: usize = 128;
/// The part of the budget for pages that were not asked for twice, in percent.
const SMALL_PERCENT: usize = 10;
/// A full cache takes one in so many windows of a long sequential read.
const SAMPLE: u64 = 8;
/// The part of the budget that all readers together may have under way beyond one read each: one in so many bytes.
const AHEAD_SHARE: usize = 32;
/// More hits than this are not counted.
const MAX_VISITS: u8 = 3;

/// Numbers of a cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Pages found.
    pub hits: u64,
    /// Pages not found.
    pub misses: u64,
    /// Bytes held now.
    pub bytes: usize,
    /// Pages held now.
    pub pages: usize,
    /// Pages that had to leave.
    pub evictions: u64,
    /// Pages of indexes asked for, found or not.
    pub index_reads: u64,
    /// Sstables ever opened with it.
    pub sstables_opened: u64,
}

/// See the module.
pub struct PageCache {
    inner: RefCell<Inner>,
    files: Rc<OpenFiles>,
    /// Bytes of the room for reads ahead that are taken.
    ahead: Rc<Cell<usize>>,
    /// The memory of reads that hold something large.
    large: Rc<LargeReads>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Key {
    file: u64,
    page: u64,
}

/// Which component a page belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Data = 0,
    Index = 1,
}

struct Entry {
    key: Key,
    /// `None` once the file is closed.
    bytes: Option<Bytes>,
    visits: u8,
    small: bool,
}

#[derive(Default)]
struct Inner {
    budget: usize,
    bytes: usize,
    small_bytes: usize,
    entries: Vec<Entry>,
    free: Vec<u32>,
    /// Entries of closed files that still stand in a queue.
    dead: usize,
    /// By file, then page.
    files: HashMap<u64, HashMap<u64, u32>>,
    small: VecDeque<u32>,
    main: VecDeque<u32>,
    ghosts: HashMap<Key, u64>,
    ghost_queue: VecDeque<(u64, Key)>,
    ghost_clock: u64,
    flights: HashMap<Key, Rc<Flight>>,
    next_file: u64,
    /// The state of a generator that says which windows are taken; not random, so that a run can be repeated.
    sample: u64,
    stats: CacheStats,
}

impl PageCache {
    /// A cache that holds up to `budget` bytes.
    pub fn new(budget: usize) -> Rc<PageCache> {
        PageCache::with_files(budget, OpenFiles::usual())
    }

    /// A cache that holds up to `budget` bytes, of sstables whose files are opened there.
    pub fn with_files(budget: usize, files: Rc<OpenFiles>) -> Rc<PageCache> {
        PageCache::with_large_reads(budget, files, LargeReads::new(usize::MAX))
    }

    /// The same, with a budget for reads that hold something large.
    pub fn with_large_reads(budget: usize, files: Rc<OpenFiles>, large: Rc<LargeReads>) -> Rc<PageCache> {
        let inner = RefCell::new(Inner { budget, ..Inner::default() });
        Rc::new(PageCache { inner, files, ahead: Rc::default(), large })
    }

    /// The memory of reads that hold something large.
    pub fn large_reads(&self) -> &Rc<LargeReads> {
        &self.large
    }

    /// The open files of its sstables.
    pub fn files(&self) -> &Rc<OpenFiles> {
        &self.files
    }

    /// Changes the budget; evicts at once if it shrinks.
    pub fn set_budget(&self, bytes: usize) {
        let mut inner = self.inner.borrow_mut();
        inner.budget = bytes;
        inner.evict_to(bytes);
    }

    /// The budget in bytes.
    pub fn budget(&self) -> usize {
        self.inner.borrow().budget
    }

    /// Evicts about `bytes` bytes; says how many were freed. The budget stays.
    pub fn shrink(&self, bytes: usize) -> usize {
        let mut inner = self.inner.borrow_mut();
        let before = inner.bytes;
        inner.evict_to(before.saturating_sub(bytes));
        before - inner.bytes
    }

    /// Whether it takes `bytes` bytes in of a long sequential read.
    pub(crate) fn samples(&self, bytes: usize) -> bool {
        let mut inner = self.inner.borrow_mut();
        if inner.bytes + bytes + bytes / 8 <= inner.budget {
            return true;
        }
        inner.sample = inner.sample.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (inner.sample >> 33).is_multiple_of(SAMPLE)
    }

    /// Evicts everything; says how many bytes were freed.
    pub fn clear(&self) -> usize {
        self.shrink(usize::MAX)
    }

    /// How it does.
    pub fn stats(&self) -> CacheStats {
        let inner = self.inner.borrow();
        let pages = inner.small.len() + inner.main.len() - inner.dead;
        CacheStats { bytes: inner.bytes, pages, sstables_opened: inner.next_file, ..inner.stats }
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

    fn insert(&mut self, key: Key, bytes: Bytes) {
        let cost = bytes.len() + OVERHEAD;
        if cost > self.budget || self.slot(key).is_some() || !self.files.contains_key(&key.file) {
            return;
        }
        self.evict_to(self.budget - cost);
        let small = self.ghosts.remove(&key).is_none();
        let bytes = if small { bytes } else { Bytes::copy_from_slice(&bytes) };
        let entry = Entry { key, bytes: Some(bytes), visits: 0, small };
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
        self.bytes += cost;
        if small {
            self.small_bytes += cost;
            self.small.push_back(slot);
        } else {
            self.main.push_back(slot);
        }
    }

    fn evict_to(&mut self, target: usize) {
        while self.bytes > target {
            let over = self.small_bytes > self.budget / 100 * SMALL_PERCENT;
            if over || self.main.is_empty() {
                let Some(slot) = self.small.pop_front() else { break };
                self.leave_small(slot);
            } else {
                let Some(slot) = self.main.pop_front() else { break };
                let entry = &mut self.entries[slot as usize];
                match &entry.bytes {
                    None => self.bury(slot),
                    Some(_) if entry.visits > 0 => {
                        entry.visits -= 1;
                        self.main.push_back(slot);
                    }
                    Some(_) => self.evict(slot),
                }
            }
        }
    }

    fn leave_small(&mut self, slot: u32) {
        let entry = &mut self.entries[slot as usize];
        let Some(bytes) = &mut entry.bytes else { return self.bury(slot) };
        if entry.visits > 0 {
            *bytes = Bytes::copy_from_slice(bytes);
            entry.visits = 0;
            entry.small = false;
            self.small_bytes -= bytes.len() + OVERHEAD;
            self.main.push_back(slot);
            return;
        }
        let key = entry.key;
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

    /// Frees the slot of a dead entry that was just taken from its queue.
    fn bury(&mut self, slot: u32) {
        self.dead -= 1;
        self.free.push(slot);
    }

    /// Drops the page of an entry that was just taken from its queue.
    fn evict(&mut self, slot: u32) {
        let entry = &mut self.entries[slot as usize];
        let cost = entry.bytes.take().map_or(0, |bytes| bytes.len() + OVERHEAD);
        let key = entry.key;
        self.bytes -= cost;
        if entry.small {
            self.small_bytes -= cost;
        }
        if let Some(pages) = self.files.get_mut(&key.file) {
            pages.remove(&key.page);
        }
        self.free.push(slot);
        self.stats.evictions += 1;
    }

    fn close(&mut self, file: u64) {
        for (_, slot) in self.files.remove(&file).into_iter().flatten() {
            let entry = &mut self.entries[slot as usize];
            let cost = entry.bytes.take().map_or(0, |bytes| bytes.len() + OVERHEAD);
            self.bytes -= cost;
            if entry.small {
                self.small_bytes -= cost;
            }
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
    }
}

/// An open file's part in the cache; dropping it drops its pages.
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

    /// The memory of reads that hold something large.
    pub fn large_reads(&self) -> &Rc<LargeReads> {
        &self.cache.large
    }

    /// Room for a read ahead of so many bytes, of a reader that has one under way already; none while readers have taken all there is.
    pub fn room_ahead(&self, bytes: usize) -> Option<RoomAhead> {
        let (room, all) = (&self.cache.ahead, self.cache.budget() / AHEAD_SHARE);
        let taken = room.get() + bytes;
        (taken <= all).then(|| {
            room.set(taken);
            RoomAhead { room: room.clone(), bytes }
        })
    }

    /// Whether a page is there; does not count as use.
    pub fn has(&self, kind: Kind, page: u64) -> bool {
        self.cache.inner.borrow().slot(self.key(kind, page)).is_some()
    }

    pub fn insert(&self, kind: Kind, page: u64, bytes: &Bytes) {
        self.cache.inner.borrow_mut().insert(self.key(kind, page), bytes.clone());
    }

    /// The read of a page that is under way.
    pub fn flight(&self, kind: Kind, page: u64) -> Option<Rc<Flight>> {
        self.cache.inner.borrow().flights.get(&self.key(kind, page)).cloned()
    }

    /// Claims the pages from `first` on, up to `end`, that are neither there nor under way; at least `first`, which the caller
    /// has found to be neither.
    pub fn claim(&self, kind: Kind, first: u64, end: u64) -> Claim {
        let mut inner = self.cache.inner.borrow_mut();
        let mut keys = Vec::new();
        for page in first..end {
            let key = self.key(kind, page);
            if page > first && (inner.slot(key).is_some() || inner.flights.contains_key(&key)) {
                break;
            }
            inner.flights.insert(key, Rc::default());
            keys.push(key);
        }
        Claim { cache: self.cache.clone(), keys }
    }
}

/// Room that a read ahead takes until it is used or given up.
pub(crate) struct RoomAhead {
    room: Rc<Cell<usize>>,
    bytes: usize,
}

impl Drop for RoomAhead {
    fn drop(&mut self) {
        self.room.set(self.room.get() - self.bytes);
    }
}

/// The duty to read some pages. Dropping it, done or not, lets those who wait go on.
pub(crate) struct Claim {
    cache: Rc<PageCache>,
    keys: Vec<Key>,
}

impl Claim {
    /// How many pages it is for.
    pub fn len(&self) -> u64 {
        self.keys.len() as u64
    }

    /// The `i`-th page is read: into the cache with it, and to those who wait.
    pub fn complete(&self, i: usize, bytes: &Bytes) {
        let mut inner = self.cache.inner.borrow_mut();
        if let Some(&key) = self.keys.get(i) {
            inner.insert(key, bytes.clone());
            if let Some(flight) = inner.flights.get(&key) {
                *flight.bytes.borrow_mut() = Some(bytes.clone());
            }
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let flights: Vec<_> = {
            let mut inner = self.cache.inner.borrow_mut();
            self.keys.iter().filter_map(|key| inner.flights.remove(key)).collect()
        };
        for flight in flights {
            flight.landed.set(true);
            flight.waiting.take().into_iter().for_each(Waker::wake);
        }
    }
}

/// A page that is being read by somebody.
#[derive(Default)]
pub(crate) struct Flight {
    landed: Cell<bool>,
    bytes: RefCell<Option<Bytes>>,
    waiting: RefCell<Vec<Waker>>,
}

impl Flight {
    /// The page; `None` if its reader gave up: look again.
    pub async fn wait(&self) -> Option<Bytes> {
        poll_fn(|cx| {
            if self.landed.get() {
                return Poll::Ready(self.bytes.borrow().clone());
            }
            let mut waiting = self.waiting.borrow_mut();
            if !waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
                waiting.push(cx.waker().clone());
            }
            Poll::Pending
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(n: u8) -> Bytes {
        Bytes::from(vec![n; 1000])
    }

    fn keys_held(file: &CachedFile, pages: std::ops::Range<u64>) -> Vec<u64> {
        pages.filter(|&n| file.has(Kind::Data, n)).collect()
    }

    #[test]
    fn pages_in_use_survive_a_flood_and_the_budget_holds() {
        let cache = PageCache::new(100 * (1000 + OVERHEAD));
        let file = cache.register();
        for round in 0..3 {
            for n in 0..20 {
                if file.get(Kind::Data, n).is_none() {
                    assert_eq!(round, 0, "asked for again, so it stayed");
                    file.insert(Kind::Data, n, &page(n as u8));
                }
                assert_eq!(file.get(Kind::Data, n), Some(page(n as u8)));
            }
            for n in 0..200u64 {
                file.insert(Kind::Data, 1000 * (round + 1) + n, &page(0));
            }
        }
        assert_eq!(keys_held(&file, 0..20).len(), 20, "asked for again, so they stay");
        let stats = cache.stats();
        assert!(stats.bytes <= cache.budget() && stats.pages <= 100 && stats.pages > 80, "{stats:?}");
        let freed = cache.shrink(stats.bytes / 2);
        assert!(freed >= stats.bytes / 2 && cache.stats().bytes == stats.bytes - freed);
        cache.set_budget(0);
        assert_eq!((cache.stats().bytes, cache.stats().pages), (0, 0));
        file.insert(Kind::Data, 1, &page(1));
        assert!(!file.has(Kind::Data, 1));
    }

    #[test]
    fn closing_a_file_frees_its_pages() {
        let cache = PageCache::new(1 << 20);
        let kept = cache.register();
        kept.insert(Kind::Index, 3, &page(3));
        for _ in 0..100 {
            let file = cache.register();
            (0..50).for_each(|n| file.insert(Kind::Data, n, &page(n as u8)));
        }
        assert_eq!((cache.stats().pages, cache.stats().bytes), (1, 1000 + OVERHEAD));
        assert_eq!(kept.get(Kind::Index, 3), Some(page(3)));
        assert_eq!(kept.get(Kind::Data, 3), None);
        assert!(cache.inner.borrow().entries.len() < 200, "slots are used again");
    }

    #[test]
    fn a_full_cache_samples_long_reads() {
        let cache = PageCache::new(100 * (1000 + OVERHEAD));
        let file = cache.register();
        assert!((0..1000).all(|_| file.samples(50_000)), "there is room");
        (0..100).for_each(|n| file.insert(Kind::Data, n, &page(n as u8)));
        let taken = (0..8000).filter(|_| file.samples(50_000)).count();
        assert!((800..1200).contains(&taken), "{taken} of 8000 windows");
    }

    #[test]
    fn a_page_is_claimed_once() {
        rt::block_on(async {
            let cache = PageCache::new(1 << 20);
            let file = cache.register();
            file.insert(Kind::Data, 4, &page(4));
            let claim = file.claim(Kind::Data, 1, 10);
            assert_eq!(claim.len(), 3, "up to what is there");
            let flight = file.flight(Kind::Data, 2).expect("under way");
            let waiter = rt::task::spawn(async move { flight.wait().await });
            rt::task::yield_now().await;
            claim.complete(1, &page(2));
            drop(claim);
            assert_eq!(waiter.await, Ok(Some(page(2))));
            assert!(file.flight(Kind::Data, 1).is_none() && file.has(Kind::Data, 2) && !file.has(Kind::Data, 1));
            let claim = file.claim(Kind::Data, 1, 2);
            let flight = file.flight(Kind::Data, 1).expect("under way");
            drop(claim);
            assert_eq!(flight.wait().await, None);
        });
    }
}
