//! The engine against a simple model: random changes, flushes, compactions, restarts and crashes
//! of the process. For every order and budget, a read returns what the model has.

use crate::support::*;
use engine::{Engine, EngineConfig};
use model::range::{PartitionRange, Slice};
use model::schema::TableSchema;
use proptest::prelude::*;
use std::rc::Rc;

#[derive(Clone, Debug)]
enum Op {
    Change(i64, Change),
    Group(Vec<(i64, Change)>),
    Flush,
    CompactMajor,
    Restart,
    Crash,
    Truncate,
    Cleanup,
    /// The table gets other options of compaction.
    Strategy(usize),
    Check,
    CheckKey(i32),
    CheckSlice(i32, i32, i32, i32, bool),
}

fn change() -> impl Strategy<Value = Change> {
    let (k, c) = (0i32..8, 0i32..12);
    let value = "[a-c]{1,3}";
    prop_oneof![
        6 => (k.clone(), c.clone(), value).prop_map(|(k, c, value)| Change::Insert { k, c, value }),
        3 => (k.clone(), c.clone(), value).prop_map(|(k, c, value)| Change::Update { k, c, value }),
        1 => (k.clone(), value).prop_map(|(k, value)| Change::Static { k, value }),
        2 => (k.clone(), c.clone()).prop_map(|(k, c)| Change::DeleteRow { k, c }),
        2 => (k.clone(), c.clone(), c).prop_map(|(k, a, b)| Change::DeleteRange { k, from: a.min(b), to: a.max(b) }),
        1 => k.prop_map(|k| Change::DeletePartition { k }),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    let stamped = || (1i64..40, change());
    let c = || 0i32..12;
    prop_oneof![
        40 => stamped().prop_map(|(t, change)| Op::Change(t, change)),
        3 => prop::collection::vec(stamped(), 1..4).prop_map(Op::Group),
        6 => Just(Op::Flush),
        2 => Just(Op::CompactMajor),
        1 => Just(Op::Restart),
        1 => Just(Op::Crash),
        1 => Just(Op::Truncate),
        1 => Just(Op::Cleanup),
        1 => (0..STRATEGIES.len()).prop_map(Op::Strategy),
        2 => Just(Op::Check),
        3 => (0i32..8).prop_map(Op::CheckKey),
        3 => (c(), c(), c(), c(), any::<bool>()).prop_map(|(a, b, x, y, r)| Op::CheckSlice(a, b, x, y, r)),
    ]
}

/// Options of compaction that merge small sstables eagerly. Timestamps of the tests lie in several
/// windows.
const STRATEGIES: [&[(&str, &str)]; 5] = [
    &[("class", "SizeTieredCompactionStrategy"), ("min_threshold", "2")],
    &[("class", "SizeTieredCompactionStrategy"), ("min_threshold", "3"), ("min_sstable_size", "0")],
    &[
        ("class", "LeveledCompactionStrategy"),
        ("min_threshold", "2"),
        // About 200 bytes: every compaction has several outputs.
        ("sstable_size_in_mb", "0.0002"),
        ("fanout_size", "2"),
    ],
    &[
        ("class", "TimeWindowCompactionStrategy"),
        ("min_threshold", "2"),
        ("compaction_window_unit", "MINUTES"),
        ("timestamp_resolution", "MILLISECONDS"),
        ("expired_sstable_check_frequency_seconds", "0"),
    ],
    &[("class", "IncrementalCompactionStrategy"), ("min_threshold", "4")],
];

/// A timestamp of the operations, spread over windows of a minute in milliseconds.
const SPREAD: i64 = 9_000;

async fn check_slices(engine: &Engine, schema: &TableSchema, naive: &Naive, cuts: [i32; 4], reversed: bool) {
    let mut cuts = cuts;
    cuts.sort_unstable();
    let [a, b, x, y] = cuts;
    let ranges = if b < x { vec![(a, b), (x, y)] } else { vec![(a, y)] };
    let slice = Slice {
        rows: ranges.iter().map(|(from, to)| row_range(*from, *to)).collect(),
        static_row: reversed,
        reversed,
        resume: None,
    };
    let found = read(engine, schema.id, PartitionRange::FULL, slice).await;
    assert_eq!(found, sliced(&naive.seen(), &ranges, reversed));
}

async fn run(name: &str, ops: &[Op], schema: Rc<TableSchema>, tune: impl Fn(&mut EngineConfig), ordered: bool) {
    let scratch = Scratch::new(name);
    let tablets = tablets(3);
    let make = || {
        let mut config = config(&scratch, 64 << 20);
        tune(&mut config);
        config
    };
    let mut engine = open(make(), &schema, &tablets).await;
    let mut naive = Naive::default();
    let mut schema = schema;
    let mut clock = 0;
    for op in ops {
        let mut stamp = |timestamp: i64| {
            clock += 1;
            SPREAD * if ordered { clock } else { timestamp }
        };
        match op {
            Op::Change(timestamp, change) => {
                let timestamp = stamp(*timestamp);
                engine.apply_durably(&change.mutation(&schema, timestamp), &key(change.k())).await.unwrap();
                naive.changes.push((timestamp, change.clone()));
            }
            Op::Group(changes) => {
                let changes: Vec<_> = changes.iter().map(|(t, change)| (stamp(*t), change.clone())).collect();
                let mutations: Vec<_> =
                    changes.iter().map(|(t, change)| (change.mutation(&schema, *t), key(change.k()))).collect();
                engine.apply_group(&mutations).await.unwrap();
                naive.changes.extend(changes);
            }
            Op::Flush => engine.flush(None).await.unwrap(),
            Op::CompactMajor => engine.compact_major(schema.id).await.unwrap(),
            Op::Restart => {
                engine.stop().await;
                engine = open(make(), &schema, &tablets).await;
            }
            Op::Crash => {
                engine.abandon().await;
                engine = open(make(), &schema, &tablets).await;
            }
            Op::Truncate => {
                engine.truncate(schema.id, rt::time::wall_micros()).await.unwrap();
                naive.changes.clear();
            }
            Op::Cleanup => assert_eq!(engine.cleanup(schema.id).await.unwrap(), 0),
            Op::Strategy(n) => {
                schema = with_strategy(&schema, *n);
                engine.update_schema(schema.clone());
            }
            Op::Check => {
                let (range, slice) = full();
                assert_eq!(read(&engine, schema.id, range, slice).await, naive.seen());
            }
            Op::CheckKey(k) => {
                let found = read(&engine, schema.id, PartitionRange::singular(&key(*k)), Slice::full()).await;
                let mut wanted = naive.seen();
                wanted.retain(|own, _| own == k);
                assert_eq!(found, wanted);
            }
            Op::CheckSlice(a, b, x, y, reversed) => {
                check_slices(&engine, &schema, &naive, [*a, *b, *x, *y], *reversed).await;
            }
        }
    }
    let (range, slice) = full();
    assert_eq!(read(&engine, schema.id, range, slice).await, naive.seen());
    engine.stop().await;
}

/// The table with other options of compaction.
fn with_strategy(schema: &TableSchema, n: usize) -> Rc<TableSchema> {
    let mut next = schema.clone();
    next.options.compaction = STRATEGIES[n].iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
    Rc::new(next)
}

/// Merges small sstables eagerly.
fn eager(gc_grace: i32) -> Rc<TableSchema> {
    schema(gc_grace, |options| {
        options.compaction.insert("min_threshold".into(), "2".into());
    })
}

/// The number of random histories: few, because each takes a tenth of a second.
fn cases() -> u32 {
    ProptestConfig::default().cases / 21
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), max_shrink_iters: 400, failure_persistence: None, ..ProptestConfig::default() })]

    /// Nothing is flushed.
    #[test]
    fn memtables_alone_give_what_was_written(ops in prop::collection::vec(op(), 1..120)) {
        let in_memory = |op: &Op| !matches!(op, Op::Flush | Op::CompactMajor | Op::Restart | Op::Crash | Op::Truncate);
        let ops: Vec<Op> = ops.into_iter().filter(in_memory).collect();
        rt::block_on(run("model-memory", &ops, eager(0), |_| {}, false));
    }

    /// Timestamps in any order; tombstones are kept.
    #[test]
    fn reads_give_what_was_written(ops in prop::collection::vec(op(), 1..120)) {
        rt::block_on(run("model-any", &ops, eager(1_999_000_000), |_| {}, false));
    }

    /// Timestamps grow, and every tombstone may be purged at once: what was deleted must not
    /// return.
    #[test]
    fn nothing_deleted_returns(ops in prop::collection::vec(op(), 1..120)) {
        rt::block_on(run("model-purge", &ops, eager(0), |_| {}, true));
    }

    /// Whatever the strategy, its changes, and the moments of flushes: purging at once, and several
    /// outputs for each compaction.
    #[test]
    fn compaction_is_invisible(ops in prop::collection::vec(op(), 1..100), first in 0..STRATEGIES.len(), ordered: bool) {
        let gc_grace = if ordered { 0 } else { 1_999_000_000 };
        rt::block_on(run("model-strategy", &ops, with_strategy(&eager(gc_grace), first), |_| {}, ordered));
    }

    /// The same with budgets so small that everything is flushed, evicted and compacted all the
    /// time.
    #[test]
    fn tiny_budgets_change_nothing(ops in prop::collection::vec(op(), 1..120)) {
        rt::block_on(run("model-tiny", &ops, eager(0), |config| config.memory = 20 << 10, true));
    }
}
