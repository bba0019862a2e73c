//! Power loss and kill -9 at the writes of random incarnations of a node: acknowledged data
//! survives, and deleted data does not return.
//!
//! `SEEDS=n` runs n seeds (default 2) from `FIRST_SEED=n` on; `EVERY=n` crashes at every n-th write
//! (default: a few writes for each seed), `AT=n` at the n-th alone. `TELL=1` prints every step.
//!
//! A seed has 1,300 to 1,800 writes in each of eight settings, and a crash costs 0.3 s of CPU in a
//! debug build. `SEEDS=1 EVERY=1` takes half an hour on two cores; `EVERY=25` (as in `make sim`) a
//! minute and a half for each seed. The first crash moves with the seed, so that n seeds with
//! `EVERY=n` cover every n-th write in all n offsets.
use engine::commitlog::SyncMode;
use rt::sim::Latency;
use rt::time::Duration;
use sim::checker::Global;
use sim::node::Progress;
use sim::scenario::{End, Scenario};
use std::collections::BTreeSet;
use std::path::PathBuf;

const PERIODIC: SyncMode = SyncMode::Periodic { period: Duration::from_millis(60) };

fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|value| value.parse().ok())
}

fn seeds() -> std::ops::Range<u64> {
    let first = setting("FIRST_SEED").unwrap_or(0);
    first..first + setting("SEEDS").unwrap_or(2)
}

/// The numbers of the writes at which to crash, out of `writes`.
fn cuts(seed: u64, writes: u64) -> impl Iterator<Item = u64> {
    if let Some(at) = setting("AT") {
        return (at..at + 1).step_by(1);
    }
    let every = setting("EVERY").unwrap_or(writes / 6).max(1);
    (1 + seed * 7919 % every..writes + 1).step_by(every as usize)
}

fn is_well(progress: &Progress) -> bool {
    matches!(progress, Progress::Running | Progress::Ended)
}

/// Crashes the first incarnation of each seed at many writes, and the second in another way each
/// time. The incarnations after them must find a possible state.
fn cut_at_many_writes(shards: [usize; 3], sync: SyncMode, end: fn(u64) -> End) {
    let (mut reached, mut all) = (0, 0);
    for seed in seeds() {
        let mut whole = Scenario::new(seed, sync);
        let progress = whole.run(shards[0], End::Stop);
        assert_eq!(progress, Progress::Ended, "seed {seed}: without any fault");
        for at in cuts(seed, whole.disk.writes()) {
            let mut scenario = Scenario::new(seed, sync);
            let check = |incarnation: u32, progress: Progress| {
                assert!(
                    is_well(&progress),
                    "seed {seed}, {shards:?} shards, {sync:?}, cut at {at}, incarnation {incarnation}: {progress:#?}"
                );
            };
            check(1, scenario.run(shards[0], end(at)));
            all += 1;
            reached += u32::from(scenario.shared.acknowledged.get() > 0);
            scenario.rounds = 1;
            // The second incarnation may end while it is still starting.
            let n = 1 + scenario.any(300);
            let second = [End::KillAtWrite(n), End::PowerAtWrite(n), End::Stop][n as usize % 3];
            check(2, scenario.run(shards[1], second));
            check(3, scenario.run(shards[2], End::Stop));
            scenario.rounds = 0;
            check(4, scenario.run(shards[0], End::Stop));
        }
    }
    println!("{shards:?} shards, {sync:?}: {all} cuts, {reached} of them after an acknowledged write");
    assert!(reached > 0 || setting("AT").is_some(), "no cut came after a write");
}

#[test]
fn acked_writes_survive_power_loss_in_batch_mode() {
    cut_at_many_writes([1, 1, 1], SyncMode::Batch, End::PowerAtWrite);
}

#[test]
fn acked_writes_survive_power_loss_in_batch_mode_on_two_shards() {
    cut_at_many_writes([2, 2, 2], SyncMode::Batch, End::PowerAtWrite);
}

#[test]
fn power_loss_in_periodic_mode_takes_only_the_last_period() {
    cut_at_many_writes([1, 1, 1], PERIODIC, End::PowerAtWrite);
}

#[test]
fn power_loss_in_periodic_mode_takes_only_the_last_period_on_two_shards() {
    cut_at_many_writes([2, 2, 2], PERIODIC, End::PowerAtWrite);
}

#[test]
fn a_kill_takes_nothing_in_periodic_mode() {
    cut_at_many_writes([2, 2, 1], PERIODIC, End::KillAtWrite);
}

#[test]
fn a_kill_takes_nothing_in_batch_mode() {
    cut_at_many_writes([1, 2, 1], SyncMode::Batch, End::KillAtWrite);
}

#[test]
fn shards_may_become_more_and_fewer() {
    cut_at_many_writes([1, 2, 3], SyncMode::Batch, End::PowerAtWrite);
    cut_at_many_writes([3, 1, 2], PERIODIC, End::PowerAtWrite);
}

/// Data that a restart finds only in the page cache must not be lost by a later power loss.
#[test]
fn power_loss_after_a_kill_takes_nothing() {
    for seed in seeds() {
        for at in (20..500).step_by(setting("EVERY").unwrap_or(40) as usize) {
            let mut scenario = Scenario::new(seed, PERIODIC);
            (scenario.rounds, scenario.steps) = (1, 4);
            // Slow writes, so that a kill can come between any two operations.
            let slow = Duration::from_millis(1);
            scenario.disk.set_latency(Latency { min: slow, max: slow, slow_permille: 1000 });
            let first = scenario.run(1, End::KillAtWrite(at + seed % 20));
            scenario.rounds = 0;
            let incarnations = [first, scenario.run(2, End::Stop), scenario.run(1, End::Stop)];
            assert!(incarnations.iter().all(is_well), "seed {seed}, killed at {at}: {incarnations:#?}");
        }
    }
}

#[test]
fn many_long_lives_in_a_row() {
    for seed in seeds() {
        for sync in [SyncMode::Batch, PERIODIC] {
            let mut scenario = Scenario::new(seed, sync);
            (scenario.rounds, scenario.steps) = (5, 12);
            for incarnation in 1..=5 {
                let shards = 1 + scenario.any(3) as usize;
                let end = match scenario.any(4) {
                    0 => End::Stop,
                    1 => End::KillAtWrite(scenario.any(1500)),
                    _ => End::PowerAtWrite(1 + scenario.any(1500)),
                };
                let progress = scenario.run(shards, end);
                assert!(is_well(&progress), "seed {seed}, {sync:?}, incarnation {incarnation}: {progress:#?}");
            }
            scenario.rounds = 0;
            let progress = scenario.run(1, End::Stop);
            assert_eq!(progress, Progress::Ended, "seed {seed}, {sync:?}, the last incarnation");
        }
    }
}

#[test]
fn the_same_seed_gives_the_same_story() {
    let run = |seed| {
        let mut scenario = Scenario::new(seed, SyncMode::Batch);
        let first = scenario.run(2, End::PowerAtWrite(300 + seed));
        let second = scenario.run(1, End::Stop);
        (scenario.trace_hash(), scenario.disk.stats(), scenario.shared.acknowledged.get(), first, second)
    };
    for seed in 0..3 {
        assert_eq!(run(seed), run(seed), "seed {seed}");
    }
}

/// The directories of the workload's table, with any id, that are not empty.
fn table_directories(scenario: &Scenario) -> BTreeSet<PathBuf> {
    let files = scenario.disk.files().into_iter().filter_map(|(file, _)| file.parent().map(PathBuf::from));
    files.filter(|dir| dir.starts_with("/node/data/w")).collect()
}

/// A kill or a power loss in the middle of DROP TABLE leaves files of a table that does not exist
/// any more. The next start removes them, and nothing of the existing table.
#[test]
fn files_left_of_a_dropped_table_are_removed_at_the_next_start() {
    let (mut drops, mut swept) = (0, 0);
    for seed in seeds() {
        let mut whole = Scenario::new(seed, PERIODIC);
        (whole.rounds, whole.steps) = (16, 6);
        // Slow writes, so that a crash can come between any two operations.
        let slow = Duration::from_millis(1);
        whole.disk.set_latency(Latency { min: slow, max: slow, slow_permille: 1000 });
        let mut crashes: Vec<(Scenario, bool)> = Vec::new();
        let mut seen = 0;
        let progress = whole.run_with(2, End::Stop, |scenario, _| {
            let dropping = scenario.shared.oracle.borrow().under_way() == Some(Global::Drop);
            if dropping && scenario.disk.writes() != seen {
                seen = scenario.disk.writes();
                let at = scenario.world().wall_micros();
                for power in [true, false] {
                    let fork = scenario.fork(seed << 16 | seen);
                    let mut oracle = fork.shared.oracle.borrow_mut();
                    if power {
                        oracle.killed(at);
                    } else {
                        fork.disk.lose_power();
                        oracle.power_lost(at);
                    }
                    drop(oracle);
                    crashes.push((fork, power));
                }
            }
        });
        assert_eq!(progress, Progress::Ended, "seed {seed}: without any fault");
        let every = setting("EVERY").map_or(3, |_| 1);
        for (n, (mut scenario, power)) in crashes.into_iter().enumerate().step_by(every) {
            drops += 1;
            let left = table_directories(&scenario);
            scenario.rounds = 0;
            let progress = scenario.run(1 + n / every % 2, End::Stop);
            assert_eq!(progress, Progress::Ended, "seed {seed}, crash {n}, power {power}");
            let now = table_directories(&scenario);
            let exists = scenario.shared.oracle.borrow().shape().exists;
            let files = || {
                scenario
                    .disk
                    .files()
                    .into_iter()
                    .filter(|(file, _)| file.starts_with("/node/data/w"))
                    .collect::<Vec<_>>()
            };
            assert!(
                exists || now.is_empty(),
                "seed {seed}, crash {n}, power {power}: {now:?} is left of {left:?}: {:?}",
                files()
            );
            swept += u32::from(!exists && !left.is_empty());
        }
    }
    println!("{drops} crashes in a drop, of which {swept} left something to sweep");
    assert!(swept > 0, "no crash left anything");
}
