//! Disk faults other than a full disk: slow operations, I/O errors, too many open files, failed
//! fsyncs. Clients get errors, no data is wrong or lost, and the node recovers by itself or stops
//! where it must.
//!
//! `SEEDS=n` runs n seeds (default 2) from `FIRST_SEED=n` on.
use engine::commitlog::SyncMode;
use rt::sim::{Fault, Latency};
use rt::time::Duration;
use sim::node::Progress;
use sim::scenario::{End, Scenario};
use std::collections::BTreeMap;

const PERIODIC: SyncMode = SyncMode::Periodic { period: Duration::from_millis(60) };
/// The time after the last error within which everything must work again. Failed flushes and
/// compactions are retried after two seconds.
const GRACE: Duration = Duration::from_secs(8);

fn seeds() -> std::ops::Range<u64> {
    let setting = |name: &str| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
    let first = setting("FIRST_SEED").unwrap_or(0);
    first..first + setting("SEEDS").unwrap_or(2)
}

/// Runs an incarnation with bursts of errors. Then everything must work again, and nothing may be
/// lost. Returns the errors of statements.
fn live_through(fault: Fault, seed: u64, shards: usize, sync: SyncMode) -> Vec<String> {
    let mut scenario = Scenario::new(seed, sync);
    scenario.rounds = 8;
    let mut burst_ends = None;
    let progress = scenario.run_with(shards, End::Stop, |scenario, lived| {
        if burst_ends.is_some_and(|end| lived >= end) {
            scenario.disk.fail_next(fault, 0);
            burst_ends = None;
        }
        let is_time = lived < Duration::from_secs(5) && scenario.shared.acknowledged.get() > 10;
        if is_time && burst_ends.is_none() && scenario.any(60) == 0 {
            scenario.shared.reads_may_fail.set(true);
            let until = scenario.world().wall_micros() + GRACE.as_micros() as i64;
            scenario.shared.trouble_until.set(until);
            let times = 1 + scenario.any(6) as u32;
            scenario.disk.fail_next(fault, times);
            burst_ends = Some(lived + Duration::from_millis(1 + scenario.any(40)));
        }
    });
    assert_eq!(progress, Progress::Ended, "{fault:?}, seed {seed}, {shards} shards");
    scenario.shared.reads_may_fail.set(false);
    scenario.shared.trouble_until.set(i64::MIN);
    scenario.rounds = 1;
    for end in [End::KillAtWrite(60), End::PowerAtWrite(60), End::Stop] {
        let progress = scenario.run(shards, end);
        assert!(matches!(progress, Progress::Running | Progress::Ended), "{fault:?}, seed {seed}: then {progress:#?}");
    }
    scenario.shared.failures.take()
}

/// The errors must say what an operator can do.
fn assert_clear(fault: Fault, failures: Vec<String>, wanted: &[&str]) {
    assert!(!failures.is_empty(), "{fault:?}: nothing ever failed");
    let mut counts: BTreeMap<String, u32> = BTreeMap::new();
    for failure in failures {
        assert!(wanted.iter().any(|text| failure.contains(text)), "{fault:?}: what is the matter with {failure}");
        *counts.entry(failure.split(' ').next().unwrap_or_default().to_owned()).or_default() += 1;
    }
    println!("what failed for {fault:?}: {counts:?}");
}

#[test]
fn read_errors_are_reported_and_the_node_recovers() {
    let mut failures = Vec::new();
    for seed in seeds() {
        for (shards, sync) in [(1, SyncMode::Batch), (2, PERIODIC)] {
            failures.append(&mut live_through(Fault::Read, seed, shards, sync));
        }
    }
    assert_clear(Fault::Read, failures, &["Input/output error"]);
}

#[test]
fn too_many_open_files_are_reported_and_the_node_recovers() {
    let mut failures = Vec::new();
    for seed in seeds() {
        for (shards, sync) in [(1, PERIODIC), (2, SyncMode::Batch)] {
            failures.append(&mut live_through(Fault::Open, seed, shards, sync));
        }
    }
    assert_clear(Fault::Open, failures, &["open files", "too many files are open"]);
}

/// An fsync or a write fails once. If it was the log's, the node stops, because the contents of the
/// device are unknown. If it was an sstable's, the write is retried with a new file. Acknowledged
/// data is not lost in either case.
#[test]
fn a_failed_fsync_or_write_of_the_log_stops_the_node_and_nothing_is_lost() {
    for seed in seeds() {
        for (shards, sync) in [(1, SyncMode::Batch), (2, PERIODIC)] {
            for fault in [Fault::Sync, Fault::Write] {
                for (below, stops) in [("/node/commitlog", true), ("/node/data", false)] {
                    let what = format!("{fault:?} below {below}, seed {seed}, {shards} shards, {sync:?}");
                    let mut scenario = Scenario::new(seed, sync);
                    (scenario.rounds, scenario.globals) = (4, false);
                    let begins = 15 + scenario.any(20) as u32;
                    let mut is_due = true;
                    let progress = scenario.run_with(shards, End::Stop, |scenario, _| {
                        if is_due && scenario.shared.acknowledged.get() > begins {
                            is_due = false;
                            let until = scenario.world().wall_micros() + GRACE.as_micros() as i64;
                            scenario.shared.trouble_until.set(until);
                            scenario.disk.fail_next_below(below, fault, 1);
                        }
                    });
                    assert!(!is_due, "{what}: it came to an end before");
                    match progress {
                        Progress::Stopped(why) if stops => assert!(why.contains("Input/output error"), "{what}: {why}"),
                        Progress::Ended if !stops => {}
                        other => panic!("{what}: {other:#?}"),
                    }
                    scenario.disk.fail_next_below(below, fault, 0);
                    scenario.shared.trouble_until.set(i64::MIN);
                    scenario.rounds = 1;
                    for incarnation in 1..=2 {
                        assert_eq!(
                            scenario.run(shards, End::Stop),
                            Progress::Ended,
                            "{what}: incarnation {incarnation} after it"
                        );
                    }
                }
            }
        }
    }
}

/// Operations take a tenth of a second. Everything takes longer, but nothing fails.
#[test]
fn a_slow_disk_makes_nothing_fail() {
    for seed in seeds() {
        let mut scenario = Scenario::new(seed, SyncMode::Batch);
        (scenario.rounds, scenario.steps) = (2, 5);
        let (min, max) = (Duration::from_millis(20), Duration::from_millis(120));
        scenario.disk.set_latency(Latency { min, max, slow_permille: 700 });
        for incarnation in 0..2 {
            assert_eq!(
                scenario.run(1 + incarnation, End::Stop),
                Progress::Ended,
                "seed {seed}, incarnation {incarnation}"
            );
        }
    }
}
