//! Power loss and kill -9 at the writes of random lives of a node: what was acknowledged survives, nothing deleted returns.
//!
//! `SEEDS=n` runs n seeds (default 2) from `FIRST_SEED=n` on; `EVERY=n` cuts at every n-th write (default: a few places for each
//! seed), `AT=n` at the n-th alone. `TELL=1` prints what happens.
#![cfg(feature = "sim")]

use engine::commitlog::SyncMode;
use rt::sim::Latency;
use rt::time::Duration;
use sim::node::Progress;
use sim::story::{End, Story};

const PERIODIC: SyncMode = SyncMode::Periodic { period: Duration::from_millis(60) };

fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|value| value.parse().ok())
}

fn seeds() -> std::ops::Range<u64> {
    let first = setting("FIRST_SEED").unwrap_or(0);
    first..first + setting("SEEDS").unwrap_or(2)
}

/// The places to cut at, of `writes`.
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

/// Ends the first life of each seed at many places, in another way each time; what comes after must find what it should.
fn cut_at_many_writes(shards: [usize; 3], sync: SyncMode, end: fn(u64) -> End) {
    let mut reached = 0;
    for seed in seeds() {
        let mut whole = Story::new(seed, sync);
        let progress = whole.live(shards[0], End::Stop);
        assert_eq!(progress, Progress::Ended, "seed {seed}: without any fault");
        for at in cuts(seed, whole.disk.writes()) {
            let mut story = Story::new(seed, sync);
            let check = |life: u32, progress: Progress| {
                assert!(
                    is_well(&progress),
                    "seed {seed}, {shards:?} shards, {sync:?}, cut at {at}, life {life}: {progress:#?}"
                );
            };
            check(1, story.live(shards[0], end(at)));
            reached += u32::from(story.shared.acknowledged.get() > 0);
            story.rounds = 1;
            // The second life's end may come while it is still starting.
            let n = 1 + story.any(300);
            let second = [End::KillAtWrite(n), End::PowerAtWrite(n), End::Stop][n as usize % 3];
            check(2, story.live(shards[1], second));
            check(3, story.live(shards[2], End::Stop));
            story.rounds = 0;
            check(4, story.live(shards[0], End::Stop));
        }
    }
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

/// What a restart finds in the page cache only must not go with the power later.
#[test]
fn power_loss_after_a_kill_takes_nothing() {
    for seed in seeds() {
        for at in (20..500).step_by(setting("EVERY").unwrap_or(40) as usize) {
            let mut story = Story::new(seed, PERIODIC);
            (story.rounds, story.steps) = (1, 4);
            // So that a kill can come between any two operations.
            let slow = Duration::from_millis(1);
            story.disk.set_latency(Latency { min: slow, max: slow, slow_permille: 1000 });
            let first = story.live(1, End::KillAtWrite(at + seed % 20));
            story.rounds = 0;
            let lives = [first, story.live(2, End::Stop), story.live(1, End::Stop)];
            assert!(lives.iter().all(is_well), "seed {seed}, killed at {at}: {lives:#?}");
        }
    }
}

#[test]
fn many_long_lives_in_a_row() {
    for seed in seeds() {
        for sync in [SyncMode::Batch, PERIODIC] {
            let mut story = Story::new(seed, sync);
            (story.rounds, story.steps) = (5, 12);
            for life in 1..=5 {
                let shards = 1 + story.any(3) as usize;
                let end = match story.any(4) {
                    0 => End::Stop,
                    1 => End::KillAtWrite(story.any(1500)),
                    _ => End::PowerAtWrite(1 + story.any(1500)),
                };
                let progress = story.live(shards, end);
                assert!(is_well(&progress), "seed {seed}, {sync:?}, life {life}: {progress:#?}");
            }
            story.rounds = 0;
            let progress = story.live(1, End::Stop);
            assert_eq!(progress, Progress::Ended, "seed {seed}, {sync:?}, the last life");
        }
    }
}

#[test]
fn the_same_seed_gives_the_same_story() {
    let tell = |seed| {
        let mut story = Story::new(seed, SyncMode::Batch);
        let first = story.live(2, End::PowerAtWrite(300 + seed));
        let second = story.live(1, End::Stop);
        (story.trace_hash(), story.disk.stats(), story.shared.acknowledged.get(), first, second)
    };
    for seed in 0..3 {
        assert_eq!(tell(seed), tell(seed), "seed {seed}");
    }
}
