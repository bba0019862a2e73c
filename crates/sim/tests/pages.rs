//! `pages_are_exact` on whole clusters: each page of a query is read by another client, of any node, while networks fail, tablets move, nodes
//! die and lose their power.
//!
//! `SEEDS=n` runs n seeds (default 1), each regime in turn, from `FIRST_SEED=n` on, `SECONDS=n` so long (simulated; default 4). `TELL=1`
//! prints every step.
#![cfg(feature = "sim")]

use engine::commitlog::SyncMode;
use rt::time::Duration;
use sim::cluster::Simulation;
use sim::cluster::nemesis::{DEATHS, NETWORK, POWER};
use sim::cluster::shared::Plan;

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(default)
}

#[test]
fn pages_are_exact() {
    let (first, time) = (setting("FIRST_SEED", 0), Duration::from_secs(setting("SECONDS", 4)));
    for seed in first..first + setting("SEEDS", 1) {
        let periodic = SyncMode::Periodic { period: Duration::from_millis(500) };
        let (regime, shards, sync) = match seed % 4 {
            0 => (DEATHS, vec![1, 2, 1, 2], periodic),
            1 => (NETWORK, vec![2, 1, 2], periodic),
            2 => (NETWORK, vec![1, 2, 1, 2, 1], periodic),
            _ => (POWER, vec![1, 2, 1], SyncMode::Batch),
        };
        let schema_changes = seed % 2 == 0;
        let moving = shards.len() > 3;
        let plan = Plan { shards, sync, moving, paging: true, pause_millis: 30, schema_changes, ..Plan::default() };
        let mut simulation = Simulation::new(seed, plan, regime);
        let mut story = || {
            simulation.form()?;
            simulation.run_for(Duration::from_millis(500))?;
            simulation.disturb(time)?;
            simulation.judge(false)
        };
        let outcome = story().unwrap_or_else(|why| panic!("seed {seed}: {why}\nfaults: {:?}", simulation.nemesis.done));
        let book = simulation.shared.pages.borrow();
        println!("seed {seed}: {} queries in {} pages, {outcome:?}", book.done, book.pages);
        assert!(book.done > 5 && book.pages > 100, "seed {seed}: {} queries, {} pages", book.done, book.pages);
    }
}
