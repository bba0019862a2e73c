//! Power loss at every disk write of a random workload, on a node of one and of two shards.
//!
//! `SEEDS=n` runs n seeds (default 2), `EVERY=n` cuts at every n-th write (default chosen for CI).
#![cfg(feature = "sim")]

use engine::commitlog::SyncMode;
use rt::sim::Disk;
use rt::time::Duration;
use sim::checker::{a_prefix_of_what_was_acknowledged, exactly_what_was_acknowledged};
use sim::node::Run;
use sim::workload::{ops, state_after};
use std::rc::Rc;

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(default)
}

fn cut_at_every_write(shards: usize, sync: SyncMode, count: usize, exact: bool) {
    for seed in 0..setting("SEEDS", 2) {
        let run = Run { seed, shards, sync, ops: Rc::new(ops(seed, count)) };
        let disk = Disk::new(seed);
        let whole = run.operate(&disk);
        assert_eq!(whole.seen, Some(state_after(&run.ops)), "seed {seed}: without any fault");
        let writes = disk.writes();
        let every = setting("EVERY", (writes / 40).max(1));
        for at in (1..=writes).step_by(every as usize) {
            let disk = Disk::new(seed);
            disk.power_loss_at_write(at);
            let before = run.operate(&disk);
            let left = disk.fork();
            left.no_power_loss();
            let after = run.read_back(&left);
            let seen = after.seen.expect("the node starts again");
            let checked = if exact {
                exactly_what_was_acknowledged(&run.ops, before.progress, &seen)
            } else {
                a_prefix_of_what_was_acknowledged(&run.ops, 0, before.progress, &seen)
            };
            checked.unwrap_or_else(|why| panic!("seed {seed}, {shards} shards, power lost at write {at} of {writes}: {why}"));
        }
    }
}

#[test]
fn acked_writes_survive_in_batch_mode() {
    cut_at_every_write(1, SyncMode::Batch, 60, true);
}

#[test]
fn acked_writes_survive_in_batch_mode_on_two_shards() {
    cut_at_every_write(2, SyncMode::Batch, 60, true);
}

#[test]
fn a_prefix_survives_in_periodic_mode() {
    cut_at_every_write(1, SyncMode::Periodic { period: Duration::from_millis(50) }, 60, false);
}

#[test]
fn the_same_seed_gives_the_same_run() {
    for seed in 0..3 {
        let run = Run { seed, shards: 2, sync: SyncMode::Batch, ops: Rc::new(ops(seed, 40)) };
        assert_eq!(run.operate(&Disk::new(seed)), run.operate(&Disk::new(seed)), "seed {seed}");
    }
}
