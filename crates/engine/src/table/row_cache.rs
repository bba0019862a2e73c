//! The row cache: the merged contents of all sstables of a tablet for a partition. It serves tables
//! with one row in each partition.
//!
//! Without it, a point read of such a table asks filter, summary, index and data of every sstable
//! for a few hundred bytes. Here it is one lookup. Partitions of tables with clustering columns
//! are cached by the page cache only.
//!
//! Invariant: an entry holds everything that the sstables in the tablet's set at the entry's
//! version hold of the key.
//!
//! - A flush does not invalidate entries. A reader asks the filters of the sstables with newer
//!   contents, and drops the entry if one may have the key.
//! - A compaction adds no contents, but it may purge contents that were added after an entry's
//!   version, so that no filter has them: then the entry is dropped.
//! - A compaction may also purge deletions that an entry holds. They would then cover writes with
//!   older timestamps in the cache only. An entry with deletions is dropped after the next
//!   compaction.
//! - Where data is removed (TRUNCATE), and where the columns change, the tablet gets another number
//!   here, and its entries are not found any more.
//!
//! Eviction is CLOCK: a hand passes over the entries and evicts entries that were not used since
//! its last pass. The page cache gives up the memory of rows, up to three quarters of the budget.
//! No step takes long: the maps are many and small, the entries are in pieces, and the hand stops
//! after a number of steps.

use super::SstableSet;
use crate::memtable::Stored;
use bytes::Bytes;
use model::Token;
use model::key::DecoratedKey;
use rt::hash::HashMap;
use sstable::PageCache;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// The overhead of an entry in addition to its row: its place, its share of a map, its allocation.
const OVERHEAD: usize = 144;
/// Larger partitions, in bytes, are not cached: they cost a page, and gain little.
const LARGEST: usize = 8 << 10;
/// The page cache keeps a fourth of the budget: it mostly has what rows do not hold.
const SHARE_OF_PAGES: usize = 4;
/// The number of maps, selected by the last bits of the token.
const MAPS: usize = 256;
/// Entries of a piece.
const PIECE: usize = 1024;
/// How many entries the hand passes for each insertion.
const STEPS: usize = 256;
/// The page cache's budget changes in steps of this many bytes.
const BUDGET_STEP: usize = 1 << 20;

/// Statistics of the cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RowCacheStats {
    /// Partitions found.
    pub hits: u64,
    /// Partitions that were not found, or were outdated.
    pub misses: u64,
    /// Partitions inserted.
    pub insertions: u64,
    /// Partitions evicted.
    pub evictions: u64,
    /// Partitions held now.
    pub partitions: u64,
    /// Bytes held now.
    pub bytes: u64,
}

/// The contents of a partition.
pub(crate) struct Content {
    /// The merged contents of the sstables.
    pub stored: Stored,
    /// Its bytes.
    pub bytes: usize,
    /// Whether a compaction may purge some of it: deletions, and expiring cells.
    pub may_purge: bool,
}

/// A tablet's number in the cache.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct CachedTablet(u64);

/// See the module.
pub(crate) struct RowCache {
    inner: RefCell<Inner>,
    pages: Rc<PageCache>,
    budget: usize,
    next_tablet: Cell<u64>,
}

struct Entry {
    tablet: CachedTablet,
    token: Token,
    stored: Stored,
    version: u64,
    cost: u32,
    used: bool,
    /// Whether it holds something that a compaction may purge.
    may_purge: bool,
}

struct Inner {
    maps: Vec<HashMap<(CachedTablet, Token), u32>>,
    pieces: Vec<Vec<Option<Entry>>>,
    free: Vec<u32>,
    hand: u32,
    bytes: usize,
    /// The memory that the page cache has given up for rows.
    taken: usize,
    stats: RowCacheStats,
}

impl RowCache {
    /// A cache that takes up to three quarters of the `budget` bytes that it shares with the page
    /// cache.
    pub fn new(budget: usize, pages: Rc<PageCache>) -> Rc<RowCache> {
        let inner = Inner {
            maps: (0..MAPS).map(|_| HashMap::default()).collect(),
            pieces: Vec::new(),
            free: Vec::new(),
            hand: 0,
            bytes: 0,
            taken: 0,
            stats: RowCacheStats::default(),
        };
        Rc::new(RowCache { inner: RefCell::new(inner), pages, budget, next_tablet: Cell::new(0) })
    }

    /// A new number for a tablet. Entries under its earlier number are not found any more.
    pub fn register(&self) -> CachedTablet {
        self.next_tablet.set(self.next_tablet.get() + 1);
        CachedTablet(self.next_tablet.get())
    }

    /// The contents of a key in the sstables; `None` if it is not cached.
    #[inline]
    pub fn get(&self, tablet: CachedTablet, key: &DecoratedKey, set: &SstableSet) -> Option<Stored> {
        let mut inner = self.inner.borrow_mut();
        let inner = &mut *inner;
        let Some(&n) = inner.maps[map_of(key.token)].get(&(tablet, key.token)) else {
            inner.stats.misses += 1;
            return None;
        };
        let entry = inner.pieces[n as usize / PIECE][n as usize % PIECE].as_mut();
        let Some(entry) = entry.filter(|entry| entry.stored.key() == key.key) else {
            inner.stats.misses += 1;
            return None;
        };
        if entry.may_purge && set.shrunk_after(entry.version) {
            inner.stats.misses += 1;
            inner.remove(n);
            return None;
        }
        if set.last_added_version() > entry.version {
            // A tombstone that was added since then may have been purged together with the data
            // that it covers, and be in no filter.
            let may_be_purged = set.last_purged_version() > entry.version;
            if may_be_purged || set.with_contents_after(entry.version).any(|attached| attached.may_contain(key)) {
                inner.stats.misses += 1;
                inner.remove(n);
                return None;
            }
            entry.version = set.version();
        }
        entry.used = true;
        inner.stats.hits += 1;
        Some(entry.stored.clone())
    }

    /// Caches the contents of a key in the sstables of a set of this version.
    pub fn insert(&self, tablet: CachedTablet, token: Token, version: u64, content: Content) {
        let Content { stored, bytes, may_purge } = content;
        let cost = bytes + OVERHEAD;
        let limit = self.budget - self.budget / SHARE_OF_PAGES;
        if bytes > LARGEST || cost > limit {
            return;
        }
        let mut inner = self.inner.borrow_mut();
        let inner = &mut *inner;
        if let Some(before) = inner.maps[map_of(token)].get(&(tablet, token)).copied() {
            inner.remove(before);
        }
        inner.make_room(limit - cost);
        let n = inner.free.pop().unwrap_or_else(|| inner.grow());
        let entry = Entry { tablet, token, stored, version, cost: cost as u32, used: false, may_purge };
        debug_assert!(inner.pieces[n as usize / PIECE][n as usize % PIECE].is_none(), "a free place has no entry");
        inner.pieces[n as usize / PIECE][n as usize % PIECE] = Some(entry);
        inner.maps[map_of(token)].insert((tablet, token), n);
        inner.bytes += cost;
        debug_assert!(inner.bytes <= limit, "the cache stays within its limit");
        inner.stats.insertions += 1;
        let taken = inner.bytes.next_multiple_of(BUDGET_STEP);
        if taken != inner.taken {
            inner.taken = taken;
            self.pages.set_budget(self.budget.saturating_sub(taken));
        }
    }

    /// The keys of a tablet, with their tokens, in one piece of the cache, that were read since the
    /// hand has passed them. `None` behind the last piece.
    pub fn used_keys(&self, tablet: CachedTablet, piece: usize) -> Option<Vec<(Token, Bytes)>> {
        let inner = self.inner.borrow();
        let used = inner.pieces.get(piece)?.iter().flatten().filter(|entry| entry.used && entry.tablet == tablet);
        Some(used.map(|entry| (entry.token, Bytes::copy_from_slice(entry.stored.key()))).collect())
    }

    /// The statistics.
    pub fn stats(&self) -> RowCacheStats {
        let inner = self.inner.borrow();
        let partitions = inner.maps.iter().map(|map| map.len() as u64).sum();
        RowCacheStats { partitions, bytes: inner.bytes as u64, ..inner.stats }
    }
}

fn map_of(token: Token) -> usize {
    token.0 as usize % MAPS
}

impl Inner {
    fn remove(&mut self, n: u32) {
        if let Some(entry) = self.pieces[n as usize / PIECE][n as usize % PIECE].take() {
            let known = self.maps[map_of(entry.token)].remove(&(entry.tablet, entry.token));
            debug_assert_eq!(known, Some(n), "an entry is found under its own key");
            debug_assert!(self.bytes >= entry.cost as usize, "the bytes of each entry are counted");
            self.bytes -= entry.cost as usize;
            self.free.push(n);
        }
    }

    /// A new entry.
    fn grow(&mut self) -> u32 {
        if self.pieces.last().is_none_or(|piece| piece.len() == PIECE) {
            self.pieces.push(Vec::with_capacity(PIECE));
        }
        let piece = self.pieces.len() - 1;
        self.pieces[piece].push(None);
        (piece * PIECE + self.pieces[piece].len() - 1) as u32
    }

    /// Evicts until at most `target` bytes are left. After a number of steps it also evicts used
    /// entries.
    fn make_room(&mut self, target: usize) {
        let mut steps = 0;
        while self.bytes > target {
            let (piece, at) = (self.hand as usize / PIECE, self.hand as usize % PIECE);
            let Some(place) = self.pieces.get_mut(piece).and_then(|piece| piece.get_mut(at)) else {
                self.hand = 0;
                continue;
            };
            if let Some(entry) = place {
                if entry.used && steps < STEPS {
                    entry.used = false;
                } else {
                    self.remove(self.hand);
                    self.stats.evictions += 1;
                }
                steps += 1;
            }
            self.hand += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(n: u32) -> DecoratedKey {
        DecoratedKey::new(Bytes::copy_from_slice(&n.to_be_bytes()))
    }

    fn content(n: u32, bytes: usize) -> Content {
        Content { stored: Stored::empty(key(n).key), bytes, may_purge: false }
    }

    #[test]
    fn holds_its_budget_and_keeps_what_is_asked_for() {
        let pages = PageCache::new(100 << 20);
        let cache = RowCache::new(100 << 20, pages.clone());
        let (tablet, set) = (cache.register(), SstableSet::default());
        let put = |n: u32| cache.insert(tablet, key(n).token, 0, content(n, 1000));
        for n in 0..100 {
            put(n);
        }
        for n in 100..200_000 {
            put(n);
            if n % 100 == 0 {
                assert!((0..100).all(|n| cache.get(tablet, &key(n), &set).is_some()), "asked for all the time");
            }
        }
        let stats = cache.stats();
        assert!(stats.bytes <= 75 << 20 && stats.bytes > 74 << 20 && stats.evictions > 100_000, "{stats:?}");
        assert_eq!(stats.insertions, stats.partitions + stats.evictions);
        assert_eq!(pages.budget(), 25 << 20, "the page cache shrinks by the memory of rows");
        assert!(cache.get(cache.register(), &key(1), &set).is_none(), "another tablet");
        let used = |tablet| -> Vec<Bytes> {
            let pieces = (0..).map_while(|piece| cache.used_keys(tablet, piece));
            pieces.flatten().map(|(_, key)| key).collect()
        };
        let asked_for = used(tablet);
        assert!((0..100).all(|n| asked_for.contains(&key(n).key)), "asked for all the time");
        assert!(used(cache.register()).is_empty(), "another tablet");
        cache.insert(tablet, key(0).token, 0, content(0, LARGEST + 1));
        let after = cache.stats();
        assert_eq!(
            after,
            RowCacheStats { hits: after.hits, misses: after.misses, ..stats },
            "what is too large is not kept"
        );
    }
}
