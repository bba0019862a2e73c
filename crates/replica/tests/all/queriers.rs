//! Which readers are kept between pages, why they are dropped, and what the trace says.

use crate::support::*;
use engine::Engine;
use model::key::RingCut;
use model::range::{PartitionRange, Resume, Slice};
use replica::{Class, Context, Page, PageEnd, ReadCommand, Replica, ReplicaConfig, ReplicaError};
use rt::time::Duration;
use std::rc::Rc;

const KEPT: &str = "kept for the next page";

/// A partition of 20 rows in one sstable, and another in the memtable.
async fn with_data(name: &str) -> (Scratch, Rc<Engine>) {
    let scratch = Scratch::new(name);
    let engine = engine(&scratch).await;
    for i in 0..20 {
        Change::Row { k: 1, a: i, b: 0, size: 100 }.apply(&engine, 1);
    }
    engine.flush(None).await.unwrap();
    for i in 0..20 {
        Change::Row { k: 2, a: i, b: 0, size: 100 }.apply(&engine, 1);
    }
    (scratch, engine)
}

fn config() -> ReplicaConfig {
    ReplicaConfig::with_memory(1 << 30)
}

async fn first_page(replica: &Replica, query: &Query) -> Page {
    let (page, words) = traced(replica, &query.command(1, None).unwrap()).await;
    assert_eq!(words, [KEPT]);
    page
}

/// Reads the page after another. Returns the trace's event about the querier cache.
async fn next_page(replica: &Replica, query: &Query, before: &Page) -> (Page, String) {
    let (page, words) = traced(replica, &query.command(1, Some(before)).unwrap()).await;
    (page, words.first().cloned().unwrap_or_default())
}

#[test]
fn pages_of_one_partition_resume_one_reader() {
    rt::block_on(async {
        let (_scratch, engine) = with_data("one").await;
        for (k, reversed) in [(1, false), (1, true), (2, false), (2, true)] {
            let replica = Replica::new(engine.clone(), config());
            let query = Query { reversed, ..Query::of_key(1, k, 3) };
            let mut page = first_page(&replica, &query).await;
            let mut rows = page.rows;
            while page.end != PageEnd::Exhausted {
                let words;
                (page, words) = next_page(&replica, &query, &page).await;
                assert_eq!(words, "hit");
                rows += page.rows;
            }
            assert_eq!(rows, 20);
            let queriers = replica.metrics().queriers;
            assert_eq!((queriers.lookups, queriers.misses, queriers.drops, queriers.reused()), (6, 0, 0, 6));
            assert_eq!((queriers.population, queriers.memory), (0, 0));
            let permits = replica.metrics().permits[0];
            assert_eq!((permits.count, permits.memory, permits.admitted), (0, 0, 1), "admitted once for all pages");
        }
    });
}

/// Some thirty blocks of an sstable, so that backward readers load several at once.
#[test]
fn a_large_partition_is_read_in_both_orders() {
    rt::block_on(async {
        let scratch = Scratch::new("large");
        let engine = engine(&scratch).await;
        for i in 0..2000 {
            Change::Row { k: 1, a: i, b: 0, size: 1000 }.apply(&engine, 1);
        }
        for (from, to) in [(100, 150), (700, 1300)] {
            Change::DeleteRange { k: 1, from: (from, 0), to: (to, 0), open: false }.apply(&engine, 2);
        }
        engine.flush(None).await.unwrap();
        let truth = Replica::new(engine.clone(), ReplicaConfig { querier_cache: false, ..config() });
        let parts = [clustering(&[50]), clustering(&[800]), clustering(&[1500]), clustering(&[1990])];
        let slice = |from: usize, to: usize| model::range::RowRange {
            start: model::key::ClusteringCut::after(parts[from].clone()),
            end: model::key::ClusteringCut::before(parts[to].clone()),
        };
        for rows in [vec![model::range::RowRange::FULL], vec![slice(0, 1), slice(2, 3)], vec![slice(1, 3)]] {
            let mut both = Vec::new();
            for reversed in [false, true] {
                let whole = Query { rows: rows.clone(), reversed, ..Query::of_key(1, 1, 1 << 20) };
                let mut whole = Query { limits: limits(1 << 20), ..whole };
                whole.limits.bytes = 1 << 30;
                let at_once = read(&truth, &whole.command(1, None).unwrap(), &context()).await.unwrap();
                assert_eq!(at_once.end, PageEnd::Exhausted);
                let query = Query { limits: limits(37), ..whole };
                let replica = Replica::new(engine.clone(), config());
                let mut page = read(&replica, &query.command(1, None).unwrap(), &context()).await.unwrap();
                let mut body = page.body.clone();
                while let Some(command) = query.command(1, Some(&page)) {
                    page = read(&replica, &command, &context()).await.unwrap();
                    body = [&body[..], &page.body].concat().into();
                }
                assert!(body == at_once.body, "reversed {reversed}, {rows:?}");
                let queriers = replica.metrics().queriers;
                assert_eq!(queriers.lookups, queriers.reused());
                both.push((at_once.rows, body.len()));
            }
            assert_eq!(both[0], both[1], "{rows:?}");
            assert!(both[0].0 > 100);
        }
    });
}

#[test]
fn pages_of_a_scan_resume_one_reader() {
    rt::block_on(async {
        let (_scratch, engine) = with_data("scan").await;
        for (reversed, per_partition) in [(false, u64::MAX), (true, u64::MAX), (false, 6)] {
            let replica = Replica::new(engine.clone(), config());
            let mut query = Query { range: PartitionRange::FULL, reversed, ..Query::of_key(1, 1, 3) };
            query.limits.per_partition = per_partition;
            let mut page = first_page(&replica, &query).await;
            let mut rows = page.rows;
            while page.end != PageEnd::Exhausted {
                let words;
                (page, words) = next_page(&replica, &query, &page).await;
                assert_eq!(words, "hit");
                rows += page.rows;
            }
            assert_eq!(rows, 2 * per_partition.min(20));
            assert_eq!(replica.metrics().permits[0].admitted, 1);
        }
    });
}

#[test]
fn a_first_page_looks_for_nothing_and_an_unpaged_read_leaves_nothing() {
    rt::block_on(async {
        let (_scratch, engine) = with_data("first").await;
        let replica = Replica::new(engine, config());
        let query = Query::of_key(1, 1, 3);
        first_page(&replica, &query).await;
        first_page(&replica, &query).await;
        let command = ReadCommand { query: None, ..query.command(1, None).unwrap() };
        assert!(traced(&replica, &command).await.1.is_empty());
        assert!(traced(&replica, &Query::of_key(2, 1, 100).command(1, None).unwrap()).await.1.is_empty());
        let limited = ReadCommand { ends_with_rows: true, ..Query::of_key(3, 1, 3).command(1, None).unwrap() };
        assert!(traced(&replica, &limited).await.1.is_empty(), "a LIMIT was reached");
        let queriers = replica.metrics().queriers;
        assert_eq!((queriers.lookups, queriers.population), (0, 1));
    });
}

/// A coordinator reads several ranges in parallel, and discards pages that do not fit. A reader of
/// a discarded page is of no use to the page that reads the range from its beginning, and no other
/// page would find it.
#[test]
fn read_ahead_queriers_are_dropped_when_the_query_reaches_their_range() {
    rt::block_on(async {
        let (_scratch, engine) = with_data("ahead").await;
        let replica = Replica::new(engine, config());
        let scan = Query { range: PartitionRange::FULL, ..Query::of_key(1, 1, 3) };
        for query in [Query::of_key(1, 1, 3), scan] {
            first_page(&replica, &query).await;
            let elsewhere = Query { id: 2, ..query.clone() };
            first_page(&replica, &elsewhere).await;
            assert_eq!(replica.metrics().queriers.population, 2);
            let all = Query { limits: limits(100), ..query.clone() };
            let late = ReadCommand { first_page: false, ..all.command(1, None).unwrap() };
            let (page, words) = traced(&replica, &late).await;
            assert_eq!((page.end, words.len()), (PageEnd::Exhausted, 0));
            let queriers = replica.metrics().queriers;
            assert_eq!((queriers.population, queriers.lookups), (1, 0), "the one of the other query");
            replica.forget_queriers(None);
        }
        assert_eq!(replica.metrics().permits[0].count, 0);
    });
}

#[test]
fn time_evicts() {
    rt::block_on(async {
        let (_scratch, engine) = with_data("time").await;
        let ttl = Duration::from_millis(5);
        let replica = Replica::new(engine, ReplicaConfig { querier_cache_ttl: ttl, ..config() });
        let query = Query::of_key(1, 1, 3);
        let page = first_page(&replica, &query).await;
        while replica.metrics().queriers.population > 0 {
            rt::time::sleep(Duration::from_millis(1)).await;
        }
        let metrics = replica.metrics();
        assert_eq!((metrics.queriers.time_based_evictions, metrics.permits[0].count), (1, 0));
        let (after, words) = next_page(&replica, &query, &page).await;
        assert_eq!((words.as_str(), after.rows), ("miss", 3));
        assert_eq!(replica.metrics().queriers.misses, 1);
    });
}

#[test]
fn memory_evicts() {
    rt::block_on(async {
        let (_scratch, engine) = with_data("memory").await;
        let probe = Replica::new(engine.clone(), config());
        first_page(&probe, &Query::of_key(1, 1, 3)).await;
        // From now on the sstable's content is cached, so that all hold the same.
        probe.forget_queriers(None);
        first_page(&probe, &Query::of_key(1, 1, 3)).await;
        let one = probe.metrics().queriers.memory as usize;
        assert!(one > 1000, "{one}");
        // Room for two.
        let fraction = (2 * one + one / 2) as f64 / (1u64 << 30) as f64;
        let replica = Replica::new(engine, ReplicaConfig { querier_cache_memory_fraction: fraction, ..config() });
        let mut pages = Vec::new();
        for id in 0..5 {
            pages.push(first_page(&replica, &Query::of_key(id, 1, 3)).await);
        }
        let metrics = replica.metrics();
        assert_eq!((metrics.queriers.memory_based_evictions, metrics.queriers.population), (3, 2));
        assert_eq!(metrics.permits[0].count, 2);
        assert_eq!(next_page(&replica, &Query::of_key(3, 1, 3), &pages[3]).await.1, "hit");
        assert_eq!(next_page(&replica, &Query::of_key(2, 1, 3), &pages[2]).await.1, "miss");
    });
}

#[test]
fn reads_that_would_wait_for_a_permit_evict() {
    rt::block_on(async {
        let (_scratch, engine) = with_data("permits").await;
        let replica = Replica::new(engine.clone(), ReplicaConfig { user_reads: 2, ..config() });
        let mut pages = Vec::new();
        for id in 0..2 {
            pages.push(first_page(&replica, &Query::of_key(id, 1, 3)).await);
        }
        assert_eq!(replica.metrics().permits[0].count, 2);
        // No read waits: the longest unused reader is evicted.
        first_page(&replica, &Query::of_key(2, 2, 3)).await;
        let metrics = replica.metrics();
        assert_eq!((metrics.queriers.resource_based_evictions, metrics.queriers.population), (1, 2));
        assert_eq!(metrics.permits[0].waiting, 0);
        assert_eq!(next_page(&replica, &Query::of_key(0, 1, 3), &pages[0]).await.1, "miss");
        assert_eq!(next_page(&replica, &Query::of_key(1, 1, 3), &pages[1]).await.1, "miss");
        // The other classes have their own.
        let system = Context { class: Class::System, ..context() };
        read(&replica, &Query::of_key(9, 1, 3).command(1, None).unwrap(), &system).await.unwrap();
        assert_eq!(replica.metrics().permits[1].count, 1);

        // By memory as well as by count.
        let small = ReplicaConfig {
            memory: 1 << 20,
            reads_memory_fraction: 0.05,
            querier_cache_memory_fraction: 1.0,
            ..config()
        };
        let replica = Replica::new(engine, small);
        for id in 0..20 {
            first_page(&replica, &Query::of_key(id, 1, 3)).await;
            let permits = replica.metrics().permits[0];
            assert!(permits.count <= 4 && permits.waiting == 0, "{permits:?}");
        }
        assert!(replica.metrics().queriers.resource_based_evictions >= 16);
    });
}

#[test]
fn where_reads_wait_nothing_is_kept() {
    rt::block_on(async {
        let (_scratch, engine) = with_data("waiting").await;
        let replica = Replica::new(engine, ReplicaConfig { user_reads: 1, ..config() });
        // Several at once: each that ends finds others waiting, but for the last.
        let reads: Vec<_> = (0..4)
            .map(|id| {
                let replica = replica.clone();
                rt::task::spawn(async move {
                    read(&replica, &Query::of_key(id, 1, 3).command(1, None).unwrap(), &context()).await.unwrap()
                })
            })
            .collect();
        for read in reads {
            assert_eq!(read.await.unwrap().rows, 3);
        }
        let metrics = replica.metrics();
        let (queriers, permits) = (metrics.queriers, metrics.permits[0]);
        assert_eq!((permits.waiting, permits.count as u64), (0, queriers.population));
        assert_eq!((queriers.population, queriers.resource_based_evictions), (1, 3));
    });
}

#[test]
fn queriers_that_do_not_fit_are_dropped_with_a_reason() {
    rt::block_on(async {
        let (_scratch, engine) = with_data("drops").await;
        let replica = Replica::new(engine.clone(), config());
        let truth = Replica::new(engine.clone(), ReplicaConfig { querier_cache: false, ..config() });
        let query = Query::of_key(1, 1, 3);
        let mut drops = 0;
        let mut check = async |command: ReadCommand, context: Context, why: &str| {
            let before = replica.metrics().queriers;
            let trace = Rc::new(replica::Trace::new(uuid::Uuid::from_u128(1)));
            let traced = Context { trace: Some(trace.clone()), ..context.clone() };
            let page = read(&replica, &command, &traced).await.unwrap();
            assert_eq!(page, read(&truth, &command, &context).await.unwrap());
            let words: Vec<_> = trace.take_events().into_iter().map(|event| event.activity).collect();
            assert!(words.contains(&format!("Querier cache: dropped, since {why}")), "{words:?}");
            drops += 1;
            let queriers = replica.metrics().queriers;
            assert_eq!((queriers.drops, queriers.lookups), (drops, before.lookups + 1));
        };
        let page = first_page(&replica, &query).await;
        let command = query.command(1, Some(&page)).unwrap();
        let maintenance = Context { class: Class::Maintenance, ..context() };
        check(command.clone(), maintenance, "it is of another class of work").await;
        assert_eq!(replica.metrics().queriers.scheduling_group_mismatches, 1);

        replica.forget_queriers(None);
        first_page(&replica, &query).await;
        let bypass = ReadCommand { bypass_cache: true, ..command.clone() };
        check(bypass, context(), "it reads something else").await;

        replica.forget_queriers(None);
        first_page(&replica, &query).await;
        let other = Query { reversed: true, ..query.clone() }.command(1, Some(&page)).unwrap();
        check(other, context(), "it reads something else").await;

        // Another replica was not as far.
        replica.forget_queriers(None);
        let second = next_page(&truth, &query, &page).await.0;
        first_page(&replica, &query).await;
        next_page(&replica, &query, &page).await;
        check(command.clone(), context(), "it is at another position").await;

        // An sstable went.
        replica.forget_queriers(None);
        first_page(&replica, &query).await;
        engine.flush(None).await.unwrap();
        engine.compact_major(schema(1).id).await.unwrap();
        check(command.clone(), context(), "sstables were replaced").await;

        replica.forget_queriers(None);
        first_page(&replica, &query).await;
        engine.update_schema(schema(2));
        check(command.clone(), context(), "the schema has changed").await;
        assert!(second.rows > 0);
    });
}

#[test]
fn a_reader_that_is_behind_goes_forward() {
    rt::block_on(async {
        let (_scratch, engine) = with_data("forward").await;
        let truth = Replica::new(engine.clone(), ReplicaConfig { querier_cache: false, ..config() });
        for reversed in [false, true] {
            let replica = Replica::new(engine.clone(), config());
            let query = Query { reversed, ..Query::of_key(1, 1, 3) };
            let mut page = first_page(&replica, &query).await;
            for _ in 0..2 {
                page = next_page(&truth, &query, &page).await.0;
            }
            let (third, words) = next_page(&replica, &query, &page).await;
            assert_eq!(words, "hit, advanced to the position");
            assert_eq!(third, next_page(&truth, &query, &page).await.0);
            let queriers = replica.metrics().queriers;
            assert_eq!((queriers.advanced, queriers.reused(), queriers.drops), (1, 1, 0));
        }
        // A scan may find that nothing more is wanted of the partition.
        let replica = Replica::new(engine.clone(), config());
        let query = Query { range: PartitionRange::FULL, ..Query::of_key(1, 1, 3) };
        let page = first_page(&replica, &query).await;
        let key = model::key::DecoratedKey::new(page.last.as_ref().unwrap().key.clone());
        let mut command = query.command(1, Some(&page)).unwrap();
        command.slice = Rc::new(Slice { resume: None, ..(*command.slice).clone() });
        command.ranges[0].start = RingCut::after_key(&key);
        let (after, words) = traced(&replica, &command).await;
        assert_eq!(words[0], "hit, advanced to the position");
        assert_eq!(after, read(&truth, &command, &context()).await.unwrap());
        assert_eq!(after.rows, 3);
    });
}

#[test]
fn writes_and_flushes_between_pages_are_seen() {
    rt::block_on(async {
        let (_scratch, engine) = with_data("fresh").await;
        let replica = Replica::new(engine.clone(), config());
        let truth = Replica::new(engine.clone(), ReplicaConfig { querier_cache: false, ..config() });
        let query = Query::of_key(1, 1, 2);
        let mut page = first_page(&replica, &query).await;
        let changes = [
            Change::Row { k: 1, a: 3, b: 5, size: 10 },
            Change::DeleteRange { k: 1, from: (0, 0), to: (8, 0), open: false },
            Change::Static { k: 1 },
            Change::Row { k: 1, a: 10, b: 0, size: 10 },
            Change::DeletePrefix { k: 1, a: 12 },
            Change::DeletePartition { k: 1 },
        ];
        for (i, change) in changes.iter().enumerate() {
            change.apply(&engine, 10 + i as i64);
            if i % 2 == 1 {
                engine.flush(None).await.unwrap();
            }
            let wanted = next_page(&truth, &query, &page).await.0;
            let (next, words) = next_page(&replica, &query, &page).await;
            assert_eq!((words.as_str(), &next), ("hit", &wanted), "after {change:?}");
            page = next;
            if page.end == PageEnd::Exhausted {
                assert_eq!(i, changes.len() - 1, "nothing is left only when the partition is gone");
            }
        }
    });
}

#[test]
fn queriers_do_not_return_truncated_or_dropped_rows() {
    rt::block_on(async {
        let (_scratch, engine) = with_data("dead").await;
        let replica = Replica::new(engine.clone(), config());
        let queries = [Query::of_key(1, 1, 3), Query::of_key(2, 2, 3)];
        let mut pages = Vec::new();
        for query in &queries {
            pages.push(first_page(&replica, query).await);
        }
        engine.truncate(schema(1).id, rt::time::wall_micros()).await.unwrap();
        for (query, page) in queries.iter().zip(&pages) {
            let (next, _) = next_page(&replica, query, page).await;
            assert_eq!((next.rows, next.end, next.tombstones), (0, PageEnd::Exhausted, 0));
        }
        assert_eq!(replica.metrics().queriers.population, 0);

        Change::Row { k: 1, a: 1, b: 1, size: 1 }.apply(&engine, 100);
        Change::Row { k: 1, a: 2, b: 1, size: 1 }.apply(&engine, 100);
        let query = Query::of_key(3, 1, 1);
        let page = first_page(&replica, &query).await;
        engine.drop_table(schema(1).id, rt::time::wall_micros()).await.unwrap();
        let gone = read(&replica, &query.command(1, Some(&page)).unwrap(), &context()).await;
        assert_eq!(gone, Err(ReplicaError::NoSuchTable));
        let metrics = replica.metrics();
        assert_eq!((metrics.queriers.population, metrics.permits[0].count), (0, 0));
    });
}

#[test]
fn the_deadline_is_the_pages_own() {
    rt::block_on(async {
        let (_scratch, engine) = with_data("deadline").await;
        let replica = Replica::new(engine, config());
        let query = Query::of_key(1, 1, 3);
        // Short, and long enough for a page on this machine.
        let mut found = None;
        for millis in [3, 100, 3000] {
            let short = Context { deadline: rt::sync::Deadline::after(Duration::from_millis(millis)), ..context() };
            match read(&replica, &query.command(1, None).unwrap(), &short).await {
                Ok(page) => {
                    found = Some((short, page));
                    break;
                }
                Err(error) => assert_eq!(error, ReplicaError::Timeout),
            }
        }
        let (short, page) = found.expect("a page in three seconds");
        while !short.deadline.is_past() {
            rt::time::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(next_page(&replica, &query, &page).await.1, "hit");
        let late = read(&replica, &query.command(1, Some(&page)).unwrap(), &short).await;
        assert_eq!(late, Err(ReplicaError::Timeout));
    });
}

#[test]
fn the_resumed_part_names_its_partition() {
    rt::block_on(async {
        let (_scratch, engine) = with_data("foreign").await;
        let replica = Replica::new(engine.clone(), config());
        let truth = Replica::new(engine, ReplicaConfig { querier_cache: false, ..config() });
        let query = Query { range: PartitionRange::FULL, ..Query::of_key(1, 1, 3) };
        let page = first_page(&replica, &query).await;
        // A state of another place under the same id: served, but not with that reader.
        let mut command = query.command(1, Some(&page)).unwrap();
        let other = [key(1), key(2)].into_iter().find(|key| key.key != page.last.as_ref().unwrap().key).unwrap();
        let resume = command.slice.resume.clone().unwrap();
        command.slice = Rc::new(Slice { resume: Some(Resume { key: other, ..resume }), ..(*command.slice).clone() });
        let (after, words) = traced(&replica, &command).await;
        assert_eq!(words[0], "dropped, since it is at another position");
        assert_eq!(after, read(&truth, &command, &context()).await.unwrap());
    });
}

/// Whatever becomes of reads and their queriers, in the end every permit is back.
#[test]
fn permits_returned() {
    rt::block_on(async {
        let (_scratch, engine) = with_data("storm").await;
        let small = ReplicaConfig { user_reads: 3, querier_cache_ttl: Duration::from_millis(2), ..config() };
        let replica = Replica::new(engine.clone(), small);
        let mut tasks = Vec::new();
        for i in 0..300u64 {
            let replica = replica.clone();
            tasks.push(rt::task::spawn(async move {
                let query = Query::of_key(i as u8, 1 + (i % 2) as i32, 1 + i % 7);
                let context =
                    Context { deadline: rt::sync::Deadline::after(Duration::from_micros(200 * i)), ..context() };
                let mut before = None;
                while let Some(command) = query.command(1, before.as_ref()) {
                    match read(&replica, &command, &context).await {
                        Ok(page) => before = Some(page),
                        Err(error) => return assert_eq!(error, ReplicaError::Timeout),
                    }
                    rt::task::yield_now().await;
                }
            }));
        }
        for (i, task) in tasks.into_iter().enumerate() {
            match i % 3 {
                0 => task.abort(),
                1 => drop(task.await),
                _ => task.detach(),
            }
            if i == 150 {
                engine.flush(None).await.unwrap();
            }
        }
        loop {
            let metrics = replica.metrics();
            let (permits, queriers) = (metrics.permits[0], metrics.queriers);
            if permits.count == 0 && permits.waiting == 0 {
                assert_eq!((permits.memory, queriers.population, queriers.memory), (0, 0, 0));
                assert_eq!(queriers.lookups, queriers.reused() + queriers.misses + queriers.drops);
                return;
            }
            rt::time::sleep(Duration::from_millis(1)).await;
        }
    });
}
