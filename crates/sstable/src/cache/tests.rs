//! The page cache: what it keeps, lends and evicts.

use super::*;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

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
    let segment = cache.inner.borrow().segments.size();
    assert_eq!((cache.stats().pages, cache.stats().bytes), (1, segment + OVERHEAD));
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

const PAGE: usize = 4 << 10;

fn large_page(n: u64) -> Bytes {
    Bytes::from(vec![n as u8; PAGE])
}

/// A cache whose segments have 16 pages.
fn cache_with_segments() -> Rc<PageCache> {
    let cache = PageCache::new(4 << 20);
    assert_eq!(cache.inner.borrow().segments.size(), 16 * PAGE);
    cache
}

/// The bytes of all segments and separate allocations that have pages.
fn held_by_entries(inner: &Inner) -> usize {
    let mut segments = std::collections::BTreeSet::new();
    let mut separate = 0;
    for entry in &inner.entries {
        match (&entry.bytes, entry.segment) {
            (None, _) => {}
            (Some(_), Some(n)) => {
                segments.insert(n);
            }
            (Some(bytes), None) => separate += bytes.len(),
        }
    }
    segments.len() * inner.segments.size() + separate
}

#[test]
fn a_segment_counts_until_its_last_page_is_dropped() {
    let cache = cache_with_segments();
    let mut files: Vec<_> = (0..4).map(|_| cache.register()).collect();
    let mut rng = SmallRng::seed_from_u64(7);
    let mut below = |n: u64| rng.gen_range(0..n);
    for step in 0..30_000 {
        let n = below(files.len() as u64) as usize;
        let hot = below(2) == 0;
        let page = below(if hot { 100 } else { 2_000 });
        match below(4_000) {
            0 => files[n] = cache.register(),
            1 => cache.set_budget((1 + below(4) as usize) << 20),
            2 => drop(cache.lend(below(4 << 20) as usize)),
            3 => {
                cache.shrink(below(1 << 20) as usize);
            }
            _ => match files[n].get(Kind::Data, page) {
                Some(bytes) => assert!(bytes.iter().all(|&byte| byte == page as u8), "page {page}"),
                // Some pages are too large for a segment.
                None => {
                    let len = if page % 50 == 0 { 5 * PAGE } else { PAGE - page as usize };
                    files[n].insert(Kind::Data, page, &Bytes::from(vec![page as u8; len]));
                }
            },
        }
        let inner = cache.inner.borrow();
        assert!(inner.bytes() <= inner.limit(), "step {step}");
        if step % 50 == 0 {
            assert_eq!(inner.segments.held(), held_by_entries(&inner), "step {step}");
        }
    }
    let stats = cache.stats();
    assert!(stats.hits > 5_000 && stats.evictions > 5_000, "{stats:?}");
    drop(files);
    assert_eq!((cache.stats().pages, cache.stats().bytes), (0, 0));
}

#[test]
fn a_page_does_not_keep_the_buffer_it_was_read_into() {
    for budget in [100 << 10, 4 << 20] {
        let cache = PageCache::new(budget);
        let file = cache.register();
        let buffer = Bytes::from(vec![1; 16 * PAGE]);
        file.insert(Kind::Data, 1, &buffer.slice(..PAGE));
        assert_eq!(file.get(Kind::Data, 1), Some(buffer.slice(..PAGE)));
        assert!(buffer.is_unique(), "a cache of {budget} bytes");
    }
}

#[test]
fn segments_are_nearly_full_of_pages_after_the_budget_shrank() {
    let cache = cache_with_segments();
    let file = cache.register();
    for n in 0..4_000 {
        file.insert(Kind::Data, n, &large_page(n));
        // Every tenth page is requested again and again.
        (0..=n).step_by(10).for_each(|n| drop(file.get(Kind::Data, n)));
    }
    cache.set_budget(1 << 20);
    for n in 4_000..6_000 {
        file.insert(Kind::Data, n, &large_page(n));
    }
    let stats = cache.stats();
    assert!(stats.bytes <= 1 << 20, "{stats:?}");
    assert!(stats.pages * PAGE > stats.bytes * 8 / 10, "{stats:?}");
    assert_eq!(file.get(Kind::Data, 5_999), Some(large_page(5_999)));
}

#[test]
fn an_eviction_is_short_although_all_pages_were_requested() {
    let cache = cache_with_segments();
    let file = cache.register();
    let mut n = 0;
    while cache.stats().evictions == 0 {
        file.insert(Kind::Data, n, &large_page(n));
        for _ in 0..=MAX_VISITS {
            file.get(Kind::Data, n);
        }
        n += 1;
    }
    assert!(file.has(Kind::Data, n - 1), "the page that needed room is cached");
    let inner = cache.inner.borrow();
    assert_eq!(inner.main.len(), MOST_KEPT_SEGMENTS * 16, "so many pages were copied");
    assert!(inner.stats.evictions <= 2 * 16, "{:?}", inner.stats);
    assert_eq!(inner.segments.held(), held_by_entries(&inner));
}
