//! The querier cache of a shard: which queriers are kept, found and evicted. Pure: time is an
//! argument.
//!
//! A querier is found by its query's id and the end of its range. The start of a range moves as
//! pages are read, the end does not. Ranges that a query reads in parallel (the keys of an IN list,
//! the tablets of a scan) end in different places.
//!
//! Queriers for pages and queriers for reconciliation are kept apart, because they stop in
//! different places. Finding a querier removes it from the cache.
//!
//! The cache is bounded by time, by memory, and by the permits that its queriers hold. Evicted
//! queriers are returned to the caller, which drops them outside of any borrow.

use crate::request::Class;
use model::id::{QueryId, TableId};
use model::key::RingCut;
use model::range::PartitionRange;
use rt::hash::HashMap;
use rt::time::{Duration, Instant};
use smallvec::{SmallVec, smallvec};

/// The limits of the cache.
#[derive(Clone, Copy, Debug)]
pub struct CacheLimits {
    /// How long a querier waits for its next page.
    pub ttl: Duration,
    /// The most bytes of all queriers together.
    pub memory: usize,
}

/// Counters, with ScyllaDB's names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheCounters {
    /// Pages that searched for a querier. First pages do not.
    pub lookups: u64,
    /// Lookups that found none.
    pub misses: u64,
    /// Lookups that found one which did not fit.
    pub drops: u64,
    /// Dropped queriers that were of another class of work.
    pub scheduling_group_mismatches: u64,
    /// Reused queriers that first had to advance to the page's position.
    pub advanced: u64,
    /// Queriers evicted because their next page did not come in time.
    pub time_based_evictions: u64,
    /// Queriers evicted because a read needed their permit.
    pub resource_based_evictions: u64,
    /// Queriers evicted because the cache held too much memory.
    pub memory_based_evictions: u64,
    /// Queriers in the cache.
    pub population: u64,
    /// Bytes they hold.
    pub memory: u64,
}

impl CacheCounters {
    /// Pages that reused a querier.
    pub fn reused(&self) -> u64 {
        self.lookups - self.misses - self.drops
    }
}

/// The purpose of a querier.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Purpose {
    /// Pages, and digests of them.
    Pages,
    /// Fragments for reconciliation.
    Fragments,
}

/// The identity of a querier.
#[derive(Clone, Debug)]
pub struct CacheKey {
    /// The query.
    pub query: QueryId,
    /// The purpose.
    pub purpose: Purpose,
    /// Where its range ends.
    pub end: RingCut,
    /// The class of work.
    pub class: Class,
    /// Its table.
    pub table: TableId,
}

struct CacheEntry<Q> {
    key: CacheKey,
    /// Increases with each insertion.
    number: u64,
    expires: Instant,
    memory: usize,
    querier: Q,
    /// Its neighbours in the list of its class.
    older: Option<EntryIndex>,
    newer: Option<EntryIndex>,
}

/// Index of an entry.
type EntryIndex = u32;

/// The ends of a list of entries: the longest unused entry, which is also the first to expire, and
/// the newest.
#[derive(Clone, Copy, Default)]
struct Ends {
    oldest: Option<EntryIndex>,
    newest: Option<EntryIndex>,
}

/// The cache; see the module.
pub struct QuerierCache<Q> {
    limits: CacheLimits,
    indexes: HashMap<QueryId, SmallVec<[EntryIndex; 2]>>,
    /// Entries keep their index until they are removed: once there is room, an insertion allocates
    /// nothing.
    entries: Vec<Option<CacheEntry<Q>>>,
    free: Vec<EntryIndex>,
    lists: [Ends; Class::ALL.len()],
    next: u64,
    memory: usize,
    counters: CacheCounters,
}

impl<Q> QuerierCache<Q> {
    /// An empty cache.
    pub fn new(limits: CacheLimits) -> Self {
        QuerierCache {
            limits,
            indexes: HashMap::default(),
            entries: Vec::new(),
            free: Vec::new(),
            lists: Default::default(),
            next: 0,
            memory: 0,
            counters: CacheCounters::default(),
        }
    }

    /// Removes and returns the querier of a query with a range that ends at `end`.
    pub fn take(&mut self, query: QueryId, purpose: Purpose, end: &RingCut) -> Option<Q> {
        self.counters.lookups += 1;
        let taken = self.find(query, purpose, end).and_then(|index| self.remove(index));
        if taken.is_none() {
            self.counters.misses += 1;
        }
        taken
    }

    /// Removes a querier that no page will request any more. It counts neither as lookup nor as
    /// eviction.
    #[must_use]
    pub fn discard(&mut self, query: QueryId, purpose: Purpose, end: &RingCut) -> Option<Q> {
        self.find(query, purpose, end).and_then(|index| self.remove(index))
    }

    /// Counts that the querier last taken could not be used.
    pub fn count_drop(&mut self, other_class: bool) {
        let counters = &self.counters;
        debug_assert!(counters.misses + counters.drops < counters.lookups, "only a querier that was found is dropped");
        self.counters.drops += 1;
        self.counters.scheduling_group_mismatches += u64::from(other_class);
    }

    /// Counts that the querier last taken had to advance.
    pub fn count_advance(&mut self) {
        self.counters.advanced += 1;
    }

    /// Counts a querier that was not kept, because reads wait for its permit.
    pub fn count_refused(&mut self) {
        self.counters.resource_based_evictions += 1;
    }

    /// Adds a querier, and returns the evicted ones, which may include the new one. A querier of
    /// the same query, purpose and range, left by an abandoned page, is evicted too.
    #[must_use]
    pub fn insert(&mut self, key: CacheKey, memory: usize, querier: Q, now: Instant) -> SmallVec<[Q; 1]> {
        let mut gone = SmallVec::new();
        gone.extend(self.discard(key.query, key.purpose, &key.end));
        let expires = now + self.limits.ttl;
        let (query, class) = (key.query, key.class as usize);
        let older = self.lists[class].newest;
        let number = self.next;
        let entry = Some(CacheEntry { key, number, expires, memory, querier, older, newer: None });
        let index = match self.free.pop() {
            Some(index) => {
                self.entries[index as usize] = entry;
                index
            }
            None => {
                self.entries.push(entry);
                self.entries.len() as EntryIndex - 1
            }
        };
        match older {
            Some(older) => self.entry_mut(older).newer = Some(index),
            None => self.lists[class].oldest = Some(index),
        }
        self.lists[class].newest = Some(index);
        match self.indexes.get_mut(&query) {
            Some(indexes) => indexes.push(index),
            None => drop(self.indexes.insert(query, smallvec![index])),
        }
        self.next += 1;
        self.memory += memory;
        while self.memory > self.limits.memory
            && let Some(oldest) = self.oldest()
        {
            self.counters.memory_based_evictions += 1;
            gone.extend(self.remove(oldest));
        }
        debug_assert!(self.is_consistent(), "each querier is counted, listed and found");
        gone
    }

    /// Evicts the longest unused querier of a class, for a read that needs its permit.
    #[must_use]
    pub fn evict_for_permit(&mut self, class: Class) -> Option<Q> {
        let oldest = self.lists[class as usize].oldest?;
        self.counters.resource_based_evictions += 1;
        self.remove(oldest)
    }

    /// Evicts the expired queriers. Also returns the next expiry, if any querier is left.
    #[must_use]
    pub fn evict_expired(&mut self, now: Instant) -> (Vec<Q>, Option<Instant>) {
        let mut gone = Vec::new();
        while let Some(oldest) = self.oldest() {
            let expires = self.entry(oldest).expires;
            if expires > now {
                return (gone, Some(expires));
            }
            self.counters.time_based_evictions += 1;
            gone.extend(self.remove(oldest));
        }
        (gone, None)
    }

    /// Evicts the queriers of a table, or all.
    #[must_use]
    pub fn evict_table(&mut self, table: Option<TableId>) -> Vec<Q> {
        self.evict(|key| table.is_none_or(|table| key.table == table))
    }

    fn evict(&mut self, which: impl Fn(&CacheKey) -> bool) -> Vec<Q> {
        let is_gone =
            |index: &EntryIndex| self.entries[*index as usize].as_ref().is_some_and(|entry| which(&entry.key));
        let indexes: Vec<EntryIndex> = (0..self.entries.len() as EntryIndex).filter(is_gone).collect();
        indexes.into_iter().filter_map(|index| self.remove(index)).collect()
    }

    /// Evicts the queriers of a tablet: of a table, with ranges that end in this range.
    #[must_use]
    pub fn evict_tablet(&mut self, table: TableId, range: &PartitionRange) -> Vec<Q> {
        let of_tablet = |key: &CacheKey| key.table == table && range.start < key.end && key.end <= range.end;
        self.evict(of_tablet)
    }

    /// Whether it has a querier of this table.
    pub fn has_of(&self, table: TableId) -> bool {
        self.entries.iter().flatten().any(|entry| entry.key.table == table)
    }

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.indexes.is_empty()
    }

    /// The counters, and the current population.
    pub fn counters(&self) -> CacheCounters {
        let population = (self.entries.len() - self.free.len()) as u64;
        CacheCounters { population, memory: self.memory as u64, ..self.counters }
    }

    /// Whether the lists, the indexes and the memory agree about what is in the cache.
    fn is_consistent(&self) -> bool {
        let population = self.entries.len() - self.free.len();
        let is_oldest = |index: EntryIndex| self.entry(index).older.is_none();
        let is_newest = |index: EntryIndex| self.entry(index).newer.is_none();
        self.indexes.is_empty() == (population == 0)
            && (population > 0 || self.memory == 0)
            && self.lists.iter().all(|ends| ends.oldest.is_some() == ends.newest.is_some())
            && self.lists.iter().any(|ends| ends.oldest.is_some()) == (population > 0)
            && self.lists.iter().filter_map(|ends| ends.oldest).all(is_oldest)
            && self.lists.iter().filter_map(|ends| ends.newest).all(is_newest)
    }
    fn find(&self, query: QueryId, purpose: Purpose, end: &RingCut) -> Option<EntryIndex> {
        let is_it = |key: &CacheKey| key.purpose == purpose && key.end == *end;
        self.indexes.get(&query)?.iter().copied().find(|index| is_it(&self.entry(*index).key))
    }

    fn entry(&self, index: EntryIndex) -> &CacheEntry<Q> {
        self.entries[index as usize].as_ref().expect("indexes name entries")
    }

    fn entry_mut(&mut self, index: EntryIndex) -> &mut CacheEntry<Q> {
        self.entries[index as usize].as_mut().expect("indexes name entries")
    }

    fn oldest(&self) -> Option<EntryIndex> {
        self.lists.iter().filter_map(|ends| ends.oldest).min_by_key(|index| self.entry(*index).number)
    }

    fn remove(&mut self, index: EntryIndex) -> Option<Q> {
        let entry = self.entries[index as usize].take()?;
        self.free.push(index);
        self.memory -= entry.memory;
        let class = entry.key.class as usize;
        match entry.older {
            Some(older) => self.entry_mut(older).newer = entry.newer,
            None => self.lists[class].oldest = entry.newer,
        }
        match entry.newer {
            Some(newer) => self.entry_mut(newer).older = entry.older,
            None => self.lists[class].newest = entry.older,
        }
        if let Some(indexes) = self.indexes.get_mut(&entry.key.query) {
            indexes.retain(|own| *own != index);
            if indexes.is_empty() {
                self.indexes.remove(&entry.key.query);
            }
        }
        debug_assert!(self.is_consistent(), "a removed querier leaves nothing behind");
        Some(entry.querier)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::key::DecoratedKey;
    use model::token::Token;

    const SECOND: Duration = Duration::from_secs(1);

    fn cache(memory: usize) -> QuerierCache<u32> {
        QuerierCache::new(CacheLimits { ttl: 10 * SECOND, memory })
    }

    fn end(n: u8) -> RingCut {
        RingCut::after_key(&DecoratedKey::new(vec![n].into()))
    }

    fn key(query: u8, range: u8, class: Class) -> CacheKey {
        let query = QueryId::from_bytes([query; 16]);
        CacheKey { query, purpose: Purpose::Pages, end: end(range), class, table: TableId::from_bytes([range; 16]) }
    }

    fn query(n: u8) -> QueryId {
        QueryId::from_bytes([n; 16])
    }

    #[test]
    fn a_querier_is_found_by_query_and_end_and_only_once() {
        let mut cache = cache(1000);
        let now = rt::time::now();
        for (i, (query, range)) in [(1, 1), (1, 2), (2, 1)].into_iter().enumerate() {
            assert!(cache.insert(key(query, range, Class::User), 10, i as u32, now).is_empty());
        }
        assert_eq!(cache.counters().population, 3);
        assert_eq!(cache.take(query(1), Purpose::Pages, &end(2)), Some(1));
        assert_eq!(cache.take(query(1), Purpose::Pages, &end(2)), None);
        assert_eq!(cache.take(query(1), Purpose::Pages, &end(3)), None);
        assert_eq!(cache.take(query(3), Purpose::Pages, &end(1)), None);
        assert_eq!(cache.take(query(1), Purpose::Pages, &end(1)), Some(0));
        assert_eq!(cache.take(query(2), Purpose::Pages, &end(1)), Some(2));
        let counters = cache.counters();
        assert_eq!((counters.lookups, counters.misses, counters.population, counters.memory), (6, 3, 0, 0));
        assert!(cache.is_empty());
    }

    #[test]
    fn readers_for_pages_and_for_reconciliation_do_not_meet() {
        let mut cache = cache(1000);
        let now = rt::time::now();
        let parts = CacheKey { purpose: Purpose::Fragments, ..key(1, 1, Class::User) };
        assert!(cache.insert(key(1, 1, Class::User), 10, 1, now).is_empty());
        assert!(cache.insert(parts, 10, 2, now).is_empty());
        assert_eq!(cache.counters().population, 2);
        assert_eq!(cache.take(query(1), Purpose::Fragments, &end(1)), Some(2));
        assert_eq!(cache.take(query(1), Purpose::Fragments, &end(1)), None);
        assert_eq!(cache.take(query(1), Purpose::Pages, &end(1)), Some(1));
    }

    #[test]
    fn a_page_that_is_requested_twice_leaves_one_querier() {
        let mut cache = cache(1000);
        let now = rt::time::now();
        assert!(cache.insert(key(1, 1, Class::User), 10, 7, now).is_empty());
        assert_eq!(cache.insert(key(1, 1, Class::User), 10, 8, now).as_slice(), [7]);
        assert_eq!((cache.counters().population, cache.counters().memory), (1, 10));
        assert_eq!(cache.take(query(1), Purpose::Pages, &end(1)), Some(8));
    }

    #[test]
    fn memory_pressure_evicts_the_oldest_queriers_and_then_the_new() {
        let mut cache = cache(30);
        let now = rt::time::now();
        for n in 0..3 {
            let class = if n == 0 { Class::System } else { Class::User };
            assert!(cache.insert(key(n, n, class), 10, n as u32, now).is_empty());
        }
        assert_eq!(cache.insert(key(3, 3, Class::User), 15, 3, now).as_slice(), [0, 1]);
        assert_eq!(cache.insert(key(4, 4, Class::User), 31, 4, now).as_slice(), [2, 3, 4]);
        assert_eq!((cache.counters().memory_based_evictions, cache.counters().memory), (5, 0));
    }

    #[test]
    fn expired_queriers_are_evicted() {
        let mut cache = cache(1000);
        let now = rt::time::now();
        assert!(cache.insert(key(1, 1, Class::User), 1, 1, now).is_empty());
        assert!(cache.insert(key(2, 2, Class::Maintenance), 1, 2, now + 3 * SECOND).is_empty());
        assert_eq!(cache.evict_expired(now + 9 * SECOND), (vec![], Some(now + 10 * SECOND)));
        assert_eq!(cache.evict_expired(now + 10 * SECOND), (vec![1], Some(now + 13 * SECOND)));
        assert_eq!(cache.evict_expired(now + 14 * SECOND), (vec![2], None));
        assert_eq!(cache.counters().time_based_evictions, 2);
    }

    #[test]
    fn permits_evict_within_their_class() {
        let mut cache = cache(1000);
        let now = rt::time::now();
        for (n, class) in [(1, Class::System), (2, Class::User), (3, Class::User)] {
            assert!(cache.insert(key(n, n, class), 1, n as u32, now).is_empty());
        }
        assert_eq!(cache.evict_for_permit(Class::User), Some(2));
        assert_eq!(cache.evict_for_permit(Class::User), Some(3));
        assert_eq!(cache.evict_for_permit(Class::User), None);
        assert_eq!((cache.counters().resource_based_evictions, cache.counters().population), (2, 1));
    }

    #[test]
    fn a_table_is_evicted_alone() {
        let mut cache = cache(1000);
        let now = rt::time::now();
        for (query, table) in [(1, 1), (2, 2), (1, 2)] {
            assert!(cache.insert(key(query, table, Class::User), 1, u32::from(query), now).is_empty());
        }
        let has_of = |cache: &QuerierCache<u32>| [1, 2].map(|table| cache.has_of(TableId::from_bytes([table; 16])));
        assert_eq!(has_of(&cache), [true, true]);
        assert_eq!(cache.evict_table(Some(TableId::from_bytes([2; 16]))), vec![2, 1]);
        assert_eq!(has_of(&cache), [true, false]);
        assert_eq!(cache.take(query(1), Purpose::Pages, &end(1)), Some(1));
        assert_eq!(cache.evict_table(None), Vec::<u32>::new());
    }

    #[test]
    fn a_tablet_is_evicted_alone() {
        let mut cache = cache(1000);
        let now = rt::time::now();
        let (first, last) = (Token(-10), Token(10));
        for (n, end) in [(1, first), (2, Token(0)), (3, last), (4, Token(11))] {
            let key = CacheKey { end: RingCut::after_token(end), ..key(n, 1, Class::User) };
            assert!(cache.insert(key, 1, u32::from(n), now).is_empty());
        }
        let range = PartitionRange::tokens(first, last);
        assert_eq!(cache.evict_tablet(TableId::from_bytes([2; 16]), &range), Vec::<u32>::new(), "another table");
        assert_eq!(cache.evict_tablet(TableId::from_bytes([1; 16]), &range), vec![2, 3]);
        assert_eq!(cache.counters().population, 2);
    }
}
