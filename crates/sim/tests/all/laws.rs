//! Settings that must not change any answer. The same statements of the same clients give the
//! answers of the model with other compaction strategies, times of flushes, memory, caches, numbers
//! of open files and numbers of shards.
//!
//! `SEEDS=n` runs n seeds (default 1) from `FIRST_SEED=n` on.
use engine::commitlog::SyncMode;
use rt::time::Duration;
use sim::model::SeenRow;
use sim::node::{Progress, QUERIER_CACHES, Variant};
use sim::scenario::{End, Scenario};
use sim::workload::KINDS;
use std::collections::BTreeMap;

const PERIODIC: SyncMode = SyncMode::Periodic { period: Duration::from_millis(60) };

fn seeds() -> std::ops::Range<u64> {
    let setting = |name: &str| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
    let first = setting("FIRST_SEED").unwrap_or(0);
    first..first + setting("SEEDS").unwrap_or(1)
}

/// Runs the statements of the seed in a new incarnation. Returns the rows at its end.
fn run(seed: u64, shards: usize, variant: Variant) -> BTreeMap<i32, Vec<SeenRow>> {
    let mut scenario = Scenario::new(seed, SyncMode::Batch);
    // No TTLs and no changes of the whole table, because their times differ between incarnations.
    (scenario.expiring, scenario.globals, scenario.variant) = (false, false, variant);
    (scenario.rounds, scenario.steps) = (5, 12);
    assert_eq!(scenario.run(shards, End::Stop), Progress::Ended, "seed {seed}, {shards} shards, {variant:?}");
    scenario.shared.last_seen.take()
}

/// Checks that all `variants` end with the same rows.
fn all_the_same(seed: u64, variants: impl IntoIterator<Item = (usize, Variant)>) {
    let mut first = None;
    for (shards, variant) in variants {
        let found = run(seed, shards, variant);
        assert!(found.values().any(|rows| !rows.is_empty()), "seed {seed}: something is there");
        let wanted = first.get_or_insert_with(|| found.clone());
        assert_eq!(&found, wanted, "seed {seed}, {shards} shards, {variant:?}");
    }
}

/// Every strategy, with many flushes and compactions, and with only those that the engine starts.
#[test]
fn compaction_is_invisible() {
    for seed in seeds() {
        let variants = (0..KINDS).flat_map(|kind| {
            [0, 20].map(|maintenance| (1, Variant { kind: Some(kind), maintenance, ..Variant::default() }))
        });
        all_the_same(seed, variants);
    }
}

#[test]
fn querier_cache_is_invisible() {
    for seed in seeds() {
        let with = |queriers| (1, Variant { queriers: Some(queriers), kind: Some(1), ..Variant::default() });
        all_the_same(seed, (0..QUERIER_CACHES).map(with));
    }
}

#[test]
fn shards_memory_and_open_files_are_invisible() {
    for seed in seeds() {
        let with = |(shards, memory, open_files)| {
            (shards, Variant { memory, open_files, kind: Some(2), ..Variant::default() })
        };
        all_the_same(seed, [(1, 4 << 20, 0), (1, 1 << 20, 4), (2, 2 << 20, 4), (3, 1 << 20, 6)].map(with));
    }
}

/// Everything together: expiry, truncation, drops and all kinds of crashes, with each strategy.
#[test]
fn no_resurrection_whatever_the_strategy() {
    for seed in seeds() {
        for kind in 0..KINDS {
            let mut scenario = Scenario::new(seed * 100 + kind as u64, PERIODIC);
            scenario.variant = Variant { kind: Some(kind), maintenance: 15, ..Variant::default() };
            (scenario.rounds, scenario.steps) = (3, 10);
            for end in [End::KillAtWrite(300), End::PowerAtWrite(400), End::Stop] {
                let shards = 1 + scenario.any(2) as usize;
                let progress = scenario.run(shards, end);
                assert!(
                    matches!(progress, Progress::Running | Progress::Ended),
                    "seed {seed}, kind {kind}, {end:?}: {progress:#?}"
                );
            }
        }
    }
}
