//! Runs all trials of clusters ([`sim::cluster::trials`]) with many seeds, on all cores. Prints how
//! to repeat a failed seed.
//!
//! `SEEDS=n` runs n seeds of each trial (default 11) from `FIRST_SEED=n` on, `SECONDS=n` for so
//! long (simulated; default 2), `TRIALS="name name"` only these. `TELL=1` prints every step.
//! `tests/run sim-seeds` runs it in CI, `make sim` for longer.
//!
//! It is a program of its own, because it is no list of tests: it has no test harness.

#![allow(clippy::disallowed_methods, reason = "runs simulations on threads, in real time")]

use rt::time::Duration;
use sim::cluster::trials::{ALL, Trial};
use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::Builder;
use std::time::Instant;

/// The size of a scenario's stack, in bytes. Futures of unoptimised builds are large.
const STACK: usize = 16 << 20;
/// Progress is printed after so many seeds.
const TOLD_EVERY: u64 = 100;

thread_local! {
    /// Whether anything has panicked in this thread, even if the panic was caught.
    static PANICKED: Cell<bool> = const { Cell::new(false) };
}

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(default)
}

/// The seeds of one trial.
struct TrialTotals {
    trial: &'static Trial,
    left: AtomicU64,
    failed: AtomicU64,
    /// The time of all seeds, in milliseconds.
    took: AtomicU64,
}

struct Run {
    tallies: Vec<TrialTotals>,
    /// The trials and seeds that no thread has begun.
    waiting: Mutex<VecDeque<(usize, u64)>>,
    seeds: u64,
    seconds: u64,
    passed: AtomicU64,
    failed: AtomicU64,
    began: Instant,
}

impl Run {
    /// The run that the environment describes.
    fn new() -> Run {
        let named = std::env::var("TRIALS").unwrap_or_default();
        let named: Vec<&str> = named.split_whitespace().collect();
        for name in &named {
            let known = ALL.iter().map(|trial| trial.name).collect::<Vec<_>>().join(" ");
            assert!(Trial::of(name).is_some(), "no trial {name}; there are {known}");
        }
        let seeds = setting("SEEDS", 11);
        let first = setting("FIRST_SEED", 0);
        let wanted = ALL.iter().filter(|trial| named.is_empty() || named.contains(&trial.name));
        let fresh = |trial| TrialTotals {
            trial,
            left: AtomicU64::new(seeds),
            failed: AtomicU64::new(0),
            took: AtomicU64::new(0),
        };
        let tallies: Vec<TrialTotals> = wanted.map(fresh).collect();
        let waiting = (0..tallies.len()).flat_map(|trial| (first..first + seeds).map(move |seed| (trial, seed)));
        Run {
            waiting: Mutex::new(waiting.collect()),
            tallies,
            seeds,
            seconds: setting("SECONDS", 2),
            passed: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            began: Instant::now(),
        }
    }

    /// Runs one seed after the other, until none is left.
    fn work(&self) {
        loop {
            let next = self.waiting.lock().expect("no thread panics with it").pop_front();
            let Some((at, seed)) = next else { return };
            let own = &self.tallies[at];
            let began = Instant::now();
            let result = run_seed(own.trial, seed, self.seconds);
            own.took.fetch_add(began.elapsed().as_millis() as u64, Ordering::Relaxed);
            if let Err(why) = result {
                self.failed.fetch_add(1, Ordering::Relaxed);
                own.failed.fetch_add(1, Ordering::Relaxed);
                let (name, seconds) = (own.trial.name, self.seconds);
                println!(
                    "FAILED {name}, seed {seed}: {why}\n    once more: TRIALS={name} FIRST_SEED={seed} SEEDS=1 SECONDS={seconds} TELL=1 \
                     tests/run sim-seeds"
                );
            } else {
                self.passed.fetch_add(1, Ordering::Relaxed);
            }
            if own.left.fetch_sub(1, Ordering::Relaxed) == 1 {
                let failed = own.failed.load(Ordering::Relaxed);
                let each = own.took.load(Ordering::Relaxed) / self.seeds;
                println!("{}: {} seeds passed, {failed} failed ({each} ms each)", own.trial.name, self.seeds - failed);
            }
            self.tell_progress();
        }
    }

    fn tell_progress(&self) {
        let (passed, failed) = (self.passed.load(Ordering::Relaxed), self.failed.load(Ordering::Relaxed));
        let all = self.seeds * self.tallies.len() as u64;
        if (passed + failed).is_multiple_of(TOLD_EVERY) && passed + failed < all {
            println!("{} of {all} seeds, {failed} failed ({} s)", passed + failed, self.began.elapsed().as_secs());
        }
    }
}

/// Runs the scenario of one seed in a new thread, so that thread-local state of other seeds has no
/// effect.
fn run_seed(trial: &'static Trial, seed: u64, seconds: u64) -> Result<(), String> {
    let scenario = move || {
        let outcome = trial.run(seed, Duration::from_secs(seconds));
        // In a simulation, a panic ends only its task. In production it ends the node.
        if PANICKED.get() { Err("a task panicked".into()) } else { outcome.map(drop) }
    };
    let thread = Builder::new().name(format!("{}, seed {seed}", trial.name)).stack_size(STACK);
    thread.spawn(scenario).expect("a thread starts").join().unwrap_or_else(|_| Err("it panicked".into()))
}

fn main() {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        PANICKED.set(true);
        hook(info);
    }));
    let run = Run::new();
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| run.work());
        }
    });
    println!(
        "{} seeds passed, {} failed: {} trials, {} s simulated each, on {cores} cores ({} s)",
        run.passed.load(Ordering::Relaxed),
        run.failed.load(Ordering::Relaxed),
        run.tallies.len(),
        run.seconds,
        run.began.elapsed().as_secs()
    );
    std::process::exit(i32::from(run.failed.load(Ordering::Relaxed) > 0));
}
