//! The page cache: what it keeps, lends and evicts.

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
