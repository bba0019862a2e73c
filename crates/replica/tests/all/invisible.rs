//! `querier_cache_is_invisible`: whatever is kept between pages, the pages are the same: rows,
//! positions and counts. So is the data behind them, for reconciliation.
//!
//! Four replicas serve the same engine: without the cache, with room for one reader, with a cache
//! that evicts at once, and with room for all. They read the same pages while the data changes in
//! between.

use crate::support::*;
use model::key::ClusteringCut;
use model::range::{PartitionRange, RowRange};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use replica::querier::cache::CacheCounters;
use replica::{Limits, Replica, ReplicaConfig};
use rt::time::Duration;
use std::cell::Cell;
use std::rc::Rc;

/// A change of the data.
#[derive(Clone, Debug)]
enum Event {
    Change(Change),
    Flush,
    Compact,
    Alter,
}

const KEYS: i32 = 3;
const SIDE: i32 = 7;

fn change() -> impl Strategy<Value = Change> {
    let place = (0..KEYS, 0..SIDE, 0..SIDE);
    prop_oneof![
        30 => (place.clone(), prop_oneof![4 => 0usize..60, 3 => 1000usize..3000])
            .prop_map(|((k, a, b), size)| Change::Row { k, a, b, size }),
        1 => (0..KEYS).prop_map(|k| Change::Static { k }),
        1 => (0..KEYS).prop_map(|k| Change::DeleteStatic { k }),
        3 => place.clone().prop_map(|(k, a, b)| Change::DeleteRow { k, a, b }),
        1 => (0..KEYS, 0..SIDE).prop_map(|(k, a)| Change::DeletePrefix { k, a }),
        3 => (place, 0..SIDE, 0..SIDE, any::<bool>()).prop_map(|((k, a, b), c, d, open)| {
            Change::DeleteRange { k, from: (a, b), to: (c, d), open }
        }),
        1 => (0..KEYS).prop_map(|k| Change::DeletePartition { k }),
    ]
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        20 => change().prop_map(Event::Change),
        3 => Just(Event::Flush),
        1 => Just(Event::Compact),
        1 => Just(Event::Alter),
    ]
}

fn cut() -> impl Strategy<Value = ClusteringCut> {
    let place = prop_oneof![
        3 => (0..SIDE, 0..SIDE).prop_map(|(a, b)| vec![a, b]),
        1 => (0..SIDE).prop_map(|a| vec![a]),
    ];
    (place, any::<bool>()).prop_map(|(place, after)| ClusteringCut { prefix: clustering(&place), after })
}

fn rows() -> impl Strategy<Value = Vec<RowRange>> {
    prop_oneof![
        2 => Just(vec![RowRange::FULL]),
        1 => proptest::collection::vec(cut(), 2..8).prop_map(|mut cuts| {
            let order = &schema(1).order;
            cuts.sort_by(|a, b| a.cmp(order, b));
            cuts.dedup();
            // Ranges that touch count as one, as a planner makes them.
            cuts.chunks_exact(2).map(|pair| RowRange { start: pair[0].clone(), end: pair[1].clone() }).collect()
        }),
    ]
}

fn query() -> impl Strategy<Value = Query> {
    let limits = (
        1u64..7,
        prop_oneof![3 => Just(1u64 << 20), 1 => 1u64..8000],
        1u64..40,
        prop_oneof![3 => Just(u64::MAX), 1 => 1u64..9],
    )
        .prop_map(|(rows, bytes, tombstones, per_partition)| Limits {
            rows,
            bytes,
            tombstones,
            per_partition,
            unpaged_bytes: 1 << 30,
            paged: true,
        });
    let range = prop_oneof![
        3 => (0..KEYS).prop_map(|k| PartitionRange::singular(&key(k))),
        2 => Just(PartitionRange::FULL),
    ];
    (range, rows(), any::<bool>(), prop_oneof![5 => Just(false), 1 => Just(true)], limits)
        .prop_map(|(range, rows, reversed, distinct, limits)| Query { id: 0, range, rows, reversed, distinct, limits })
}

fn replicas(engine: &Rc<engine::Engine>) -> Vec<Rc<Replica>> {
    let unlimited = ReplicaConfig {
        querier_cache_memory_fraction: 1.0,
        reads_memory_fraction: 1.0,
        ..ReplicaConfig::with_memory(1 << 30)
    };
    let off = ReplicaConfig { querier_cache: false, ..unlimited.clone() };
    let one = ReplicaConfig { user_reads: 1, ..unlimited.clone() };
    let forgetful = ReplicaConfig { querier_cache_ttl: Duration::ZERO, ..unlimited.clone() };
    [off, one, forgetful, unlimited].into_iter().map(|config| Replica::new(engine.clone(), config)).collect()
}

/// Pages of the queries in turn, with events in between.
async fn run(
    before: &[Event],
    queries: &[Query],
    between: &[Vec<Event>],
    name: &str,
) -> Result<CacheCounters, TestCaseError> {
    let scratch = Scratch::new(name);
    let engine = engine(&scratch).await;
    let replicas = replicas(&engine);
    let (mut timestamp, mut version) = (0, 1);
    let table = schema(1).id;
    let mut happen = async |events: &[Event]| {
        for event in events {
            timestamp += 1;
            match event {
                Event::Change(change) => change.apply(&engine, timestamp),
                Event::Flush => engine.flush(Some(table)).await.unwrap(),
                Event::Compact => engine.compact_major(table).await.unwrap(),
                Event::Alter => {
                    version += 1;
                    engine.update_schema(schema(version));
                }
            }
        }
        version
    };
    let mut version = happen(before).await;
    let mut places: Vec<_> = queries.iter().map(|_| None).collect();
    let mut left: Vec<_> = (0..queries.len()).collect();
    let mut turn = 0;
    while !left.is_empty() {
        let at = turn % left.len();
        let (number, events) = (left[at], between.get(turn).map_or(&[][..], Vec::as_slice));
        turn += 1;
        let Some(command) = queries[number].command(version, places[number].as_ref()) else {
            left.remove(at);
            continue;
        };
        let mut pages = Vec::new();
        for replica in &replicas {
            pages.push(read(replica, &command, &context()).await.unwrap());
        }
        for (i, page) in pages.iter().enumerate() {
            prop_assert_eq!(page, &pages[0], "replica {} of query {:?}, turn {}", i, queries[number], turn);
        }
        if !command.output.distinct && command.limits.per_partition == u64::MAX {
            let mut parts = Vec::new();
            for replica in &replicas {
                parts.push(fragments(replica, &command, &context()).await.unwrap());
            }
            for (i, part) in parts.iter().enumerate() {
                prop_assert_eq!(part, &parts[0], "replica {} of query {:?}, turn {}", i, queries[number], turn);
            }
        }
        prop_assert!(turn < 3000, "the pages do not end");
        places[number] = pages.pop();
        version = happen(events).await;
    }
    let reused = replicas[3].metrics().queriers;
    for replica in &replicas {
        replica.forget_queriers(None);
        prop_assert_eq!(replica.metrics().permits[0].count, 0, "permits come back");
        prop_assert_eq!(replica.metrics().permits[0].memory, 0);
        prop_assert_eq!(replica.metrics().queriers.population, 0);
    }
    engine.stop().await;
    Ok(reused)
}

/// Runs random sequences, each on all replicas. Returns the counters of the unlimited cache.
fn run_cases(cases: u32, name: &str, events_between: usize) -> CacheCounters {
    let sum = Cell::new(CacheCounters::default());
    let scenario = (
        proptest::collection::vec(event(), 60..250),
        proptest::collection::vec(query(), 2..6),
        proptest::collection::vec(proptest::collection::vec(event(), 0..3), 0..=events_between),
    );
    let config = ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() };
    let result = TestRunner::new(config).run(&scenario, |(before, mut queries, between)| {
        for (i, query) in queries.iter_mut().enumerate() {
            query.id = i as u8;
        }
        let counters = rt::block_on(run(&before, &queries, &between, name))?;
        let so_far = sum.get();
        sum.set(CacheCounters {
            lookups: so_far.lookups + counters.lookups,
            misses: so_far.misses + counters.misses,
            drops: so_far.drops + counters.drops,
            ..so_far
        });
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
    sum.get()
}

#[test]
fn querier_cache_is_invisible() {
    let counters = run_cases(24, "invisible", 60);
    assert!(counters.reused() > 100, "the cache must have been of use: {counters:?}");
}

/// Without changes in between, every page but the first resumes the previous page's reader.
#[test]
fn without_changes_every_page_resumes() {
    let counters = run_cases(12, "calm", 0);
    assert!(counters.lookups > 100, "{counters:?}");
    assert_eq!(counters.reused(), counters.lookups, "{counters:?}");
}
