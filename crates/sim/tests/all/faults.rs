//! A full disk, flipped bits, and a clock that jumps back. Also checks that the checkers notice a
//! broken promise.
//!
//! `SEEDS=n` runs n seeds (default 3); `FLIPS=n` flips n bits for each (default 40).
use engine::commitlog::SyncMode;
use rt::time::Duration;
use sim::node::Progress;
use sim::scenario::{End, Scenario};
use std::collections::BTreeMap;

const PERIODIC: SyncMode = SyncMode::Periodic { period: Duration::from_millis(60) };

fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|value| value.parse().ok())
}

fn seeds() -> std::ops::Range<u64> {
    let first = setting("FIRST_SEED").unwrap_or(0);
    first..first + setting("SEEDS").unwrap_or(3)
}

/// While the disk is full, writes may fail with an error that says so. Reads succeed. Afterwards
/// everything succeeds.
#[test]
fn a_full_disk_loses_nothing_and_the_node_lives_on() {
    let mut failures = Vec::new();
    for seed in seeds() {
        for (shards, sync) in [(1, SyncMode::Batch), (2, PERIODIC)] {
            let mut scenario = Scenario::new(seed, sync);
            scenario.rounds = 10;
            let (mut full_at, mut free_at) = (None, None);
            let progress = scenario.run_with(shards, End::Stop, |scenario, lived| {
                if full_at.is_none() && scenario.shared.acknowledged.get() > 20 {
                    full_at = Some(lived);
                    let left = [0, 40_000][scenario.any(2) as usize];
                    let left = scenario.any(left);
                    scenario.fill_disk(left);
                }
                let since = full_at.map_or(Duration::ZERO, |at| lived - at);
                if free_at.is_none() && since > Duration::from_secs(4) {
                    free_at = Some(lived);
                    scenario.empty_disk(Duration::from_secs(6));
                }
            });
            assert_eq!(progress, Progress::Ended, "seed {seed}, {shards} shards");
            assert!(full_at.is_some(), "seed {seed}: the disk was never full");
            let mut failed = scenario.shared.failures.take();
            if failed.iter().any(|failure| failure.contains("cannot apply a committed change")) {
                // Until the change is applied, writes wait for it, and may time out.
                failed.retain(|failure| !failure.contains("Operation timed out"));
            }
            failures.append(&mut failed);
            for end in [End::PowerAtWrite(100), End::Stop] {
                let progress = scenario.run(shards, end);
                assert!(matches!(progress, Progress::Running | Progress::Ended), "seed {seed}: then {progress:#?}");
            }
        }
    }
    assert!(!failures.is_empty(), "the disk was full, and nothing failed");
    let mut counts: BTreeMap<String, u32> = BTreeMap::new();
    for failure in failures {
        assert!(failure.contains("space"), "the error does not name the full disk: {failure}");
        *counts.entry(failure.split(' ').next().unwrap_or_default().to_owned()).or_default() += 1;
    }
    println!("what failed for lack of space: {counts:?}");
}

/// A flipped bit is an error or has no effect. No read returns anything else than what was written.
#[test]
fn flipped_bits_are_errors_and_never_wrong_data() {
    let mut counts: BTreeMap<String, [u32; 2]> = BTreeMap::new();
    let mut broken_ones = Vec::new();
    for seed in seeds() {
        let mut base = Scenario::new(seed, SyncMode::Batch);
        // No data may expire, and so be compacted away, meanwhile.
        (base.expiring, base.globals) = (false, seed % 2 == 1);
        let end = if seed % 2 == 0 { End::Stop } else { End::KillAtWrite(400) };
        base.run(2, end);
        base.rounds = 0;
        let files: Vec<_> = base.disk.files().into_iter().filter(|(_, len)| *len > 0).collect();
        for flip in 0..setting("FLIPS").unwrap_or(40) {
            let mut scenario = base.fork(seed << 16 | flip);
            let (file, len) = files[scenario.any(files.len() as u64) as usize].clone();
            let (byte, bit) = (scenario.any(len), scenario.any(8) as u8);
            assert!(scenario.disk.flip_bit(&file, byte, bit));
            let noticed = match scenario.run(2, End::Stop) {
                Progress::Ended => 0,
                Progress::Refused(_) | Progress::Failed(_) => 1,
                broken => {
                    broken_ones.push(format!(
                        "seed {seed}, bit {bit} of byte {byte} of {}, {len} bytes: {broken:#?}",
                        file.display()
                    ));
                    continue;
                }
            };
            let name = file.file_name().expect("a file has a name").to_string_lossy().into_owned();
            let kind = name.rsplit(['-', '.']).next().unwrap_or(&name).to_owned();
            counts.entry(if name.starts_with("me-") { kind } else { name[..3].to_owned() }).or_default()[noticed] += 1;
        }
    }
    assert!(
        broken_ones.is_empty(),
        "{} flips broke something, the first {}",
        broken_ones.len(),
        broken_ones.join("\n")
    );
    println!("unnoticed and noticed, by kind of file: {counts:?}");
    assert!(counts.values().map(|[_, noticed]| noticed).sum::<u32>() > 20, "{counts:?}");
}

/// New writes win over old ones, even if the clock went back while the node was down.
#[test]
fn a_clock_that_jumps_back_hides_no_write() {
    for seed in seeds() {
        let mut scenario = Scenario::new(seed, SyncMode::Batch);
        // Expiry depends on the clock.
        scenario.expiring = false;
        scenario.world().set_clock_ahead(Duration::from_secs(3600));
        let first = scenario.run(1, End::KillAtWrite(200));
        scenario.world().set_clock_ahead(Duration::ZERO);
        let second = scenario.run(2, End::Stop);
        let third = scenario.run(1, End::Stop);
        for progress in [first, second, third] {
            assert!(matches!(progress, Progress::Running | Progress::Ended), "seed {seed}: {progress:#?}");
        }
    }
}

/// A check of the checker: a node in periodic mode does not keep the promise of batch mode.
#[test]
fn a_promise_that_is_not_kept_is_noticed() {
    let mut noticed = 0;
    for seed in 0..6 {
        for at in [150, 250, 350] {
            let mut scenario = Scenario::new(seed, PERIODIC);
            scenario.shared = sim::node::Shared::new(None);
            scenario.run(1, End::PowerAtWrite(at));
            noticed += u32::from(matches!(scenario.run(1, End::Stop), Progress::Broken(_)));
        }
    }
    assert!(noticed > 0, "no write of the last period was ever lost, or the checker missed it");
}
