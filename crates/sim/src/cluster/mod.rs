//! A whole cluster on the simulated machine: the real floors of every node, clients beside them, and everything that can go wrong.
//!
//! [`Simulation`] drives one: nodes find each other, clients work while the [`nemesis`] strikes, then all is mended and the checkers
//! look at what is left. [`trials`] are the clusters and faults that there are. [`history`], [`counters`] and [`schema_book`] are what the clients were told; [`node`] is what runs on a node.
//!
//! Checkers: `reads_are_merged`, `pages_are_exact` and `no_resurrection` at each read, `raft_safety` all the time, `acked_writes_survive`,
//! `schema_agrees` and `replicas_converge` in the end.

pub mod client;
pub mod counters;
pub mod emptied;
pub mod history;
pub mod moves;
pub mod nemesis;
pub mod node;
pub mod pages;
pub mod schema_book;
pub mod shared;
pub mod trials;
pub mod truncations;
pub mod workload;

use nemesis::{Nemesis, Regime};
use rt::sim::{Disk, Unsynced, World};
use rt::time::Duration;
use shared::{Command, Plan, Report, Shared};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::rc::Rc;

const PORT: u16 = 7000;
/// A cluster without faults is formed, and its tables are made, within this time.
const FORMING: Duration = Duration::from_secs(60);
/// Once all is well again, nodes are up and see each other within this time: the worst flapping asks for many answers in a row.
const CALM: Duration = Duration::from_secs(40);
/// Connections that died unnoticed are given up within this time.
const SETTLED: Duration = Duration::from_secs(6);
/// What was begun before all was mended has ended after this time: no request takes longer.
const ENDED: Duration = Duration::from_secs(12);
/// What is begun while all is well ends within this time.
const PROMPT: Duration = Duration::from_secs(2);
/// What has a time to live is over after this time: copies are not looked at in the same second.
const EXPIRED: Duration = Duration::from_secs(10);
/// Hints are delivered within this time.
const HINTS: Duration = Duration::from_secs(25);
/// How long nodes are given between two tries to deliver them.
const BETWEEN_TRIES: Duration = Duration::from_millis(500);
/// How long a node may take over what the driver asks it.
const ANSWER: Duration = Duration::from_secs(60);
/// Tablets that are on the move get to their ends within this time.
const ARRIVED: Duration = Duration::from_secs(60);
/// A node that is to stop in order has this time.
const STOPPING: Duration = Duration::from_secs(30);

/// What a story came to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// The hash of all that happened.
    pub trace: u64,
    /// Writes that were acknowledged, failed, refused.
    pub writes: [u64; 3],
    /// Reads that were judged.
    pub reads: u64,
    /// Schema changes that were acknowledged.
    pub schema_changes: u64,
    /// TRUNCATEs that were acknowledged.
    pub truncations: u64,
    /// Tablets whose data was copied to another node.
    pub copied: u64,
    /// Queries that came to their ends from page to page over all nodes.
    pub queries: u64,
    /// Their pages.
    pub pages: u64,
}

/// One cluster's story.
pub struct Simulation {
    /// The world.
    pub world: World,
    /// What the clients know.
    pub shared: Rc<Shared>,
    /// Who disturbs.
    pub nemesis: Nemesis,
    names: Vec<String>,
    stopping: Vec<(usize, Duration)>,
    /// When all was mended.
    mended: Duration,
}

impl Simulation {
    /// A new cluster of as many nodes as the plan has; all begin at once.
    pub fn new(seed: u64, plan: Plan, regime: Regime) -> Simulation {
        let mut world = World::new(seed);
        let names: Vec<String> = (0..plan.shards.len()).map(|n| format!("n{n}")).collect();
        let addresses = names.iter().map(|name| SocketAddr::new(world.lookup(name.as_str()), PORT)).collect();
        let shards = plan.shards.clone();
        let shared = Shared::new(plan, addresses);
        let disks: Vec<Disk> = (0..names.len() as u64).map(|n| Disk::new(seed.wrapping_mul(31) + n)).collect();
        for (n, name) in names.iter().enumerate() {
            let shared = shared.clone();
            world.node(name, shards[n], &disks[n], move |shard| {
                if shard.0 == 0 {
                    shared.nodes[n].starts();
                }
                node::run(shared.clone(), n, shard)
            });
        }
        let datacenters = (0..names.len()).map(|node| shared.plan.datacenter(node)).collect();
        let nemesis = Nemesis::new(regime, names.clone(), datacenters, disks);
        Simulation { world, shared, nemesis, names, stopping: Vec::new(), mended: Duration::ZERO }
    }

    /// What its nodes and clients share.
    pub fn shared(&self) -> &Shared {
        &self.shared
    }

    /// What a loss of power leaves of what was not synced.
    pub fn set_unsynced(&mut self, unsynced: Unsynced) {
        self.nemesis.disks().iter().for_each(|disk| disk.set_unsynced(unsynced));
    }

    /// One millisecond.
    fn step(&mut self) -> Result<(), String> {
        self.shared.set_seconds(self.world.elapsed().as_secs() as i64);
        self.world.step();
        self.nemesis.go_on(&mut self.world);
        for node in std::mem::take(&mut self.nemesis.stopping) {
            let (name, state) = (&self.names[node], &self.shared.nodes[node]);
            if !self.world.is_running(name) || state.is_stopping() {
                continue;
            }
            if state.up.get() {
                state.stop();
                self.stopping.push((node, self.world.elapsed()));
            } else {
                // As a process that is told to end before it was up: it leaves at once.
                self.world.bounce(name);
            }
        }
        for node in std::mem::take(&mut self.nemesis.filling) {
            if self.world.is_running(&self.names[node]) && self.shared.nodes[node].up.get() {
                self.nemesis.fill(&mut self.world, node);
            }
        }
        let (world, names) = (&mut self.world, &self.names);
        let mut stuck = None;
        self.stopping.retain(|(node, since)| {
            let name = &names[*node];
            if !world.is_running(name) {
                return false;
            }
            if world.has_ended(name) {
                world.bounce(name);
                return false;
            }
            if world.elapsed() - *since > STOPPING {
                stuck = Some(format!("node {node} does not stop within {STOPPING:?}"));
            }
            true
        });
        match stuck.or_else(|| self.shared.first_broken()) {
            Some(why) => Err(why),
            None => Ok(()),
        }
    }

    /// Lets time pass.
    pub fn run_for(&mut self, time: Duration) -> Result<(), String> {
        let until = self.world.elapsed() + time;
        while self.world.elapsed() < until {
            self.step()?;
        }
        Ok(())
    }

    /// Lets time pass until something is so, and says how long it took.
    fn run_until(
        &mut self,
        limit: Duration,
        what: &str,
        is_so: impl Fn(&mut Simulation) -> bool,
    ) -> Result<Duration, String> {
        let began = self.world.elapsed();
        while !is_so(self) {
            if self.world.elapsed() - began > limit {
                return Err(format!("{what}: not within {limit:?}"));
            }
            self.step()?;
        }
        Ok(self.world.elapsed() - began)
    }

    /// Waits until all nodes are part of the cluster and have its tables; then clients begin to work.
    pub fn form(&mut self) -> Result<Duration, String> {
        let took = self.run_until(FORMING, "the nodes form a cluster and make its tables", |simulation| {
            simulation.shared.nodes.iter().all(|node| node.is_ready())
        })?;
        self.shared.set_working(true);
        Ok(took)
    }

    /// Has the nemesis strike for this long, again and again.
    pub fn disturb(&mut self, time: Duration) -> Result<(), String> {
        let until = self.world.elapsed() + time;
        while self.world.elapsed() < until {
            let pause = rand::Rng::gen_range(self.world.rng(), 20..1500);
            self.run_for(Duration::from_millis(pause))?;
            self.nemesis.strike(&mut self.world);
        }
        Ok(())
    }

    /// Asks a node for something.
    fn ask(&mut self, node: usize, command: Command) -> Result<Report, String> {
        self.shared.nodes[node].answer.take();
        self.shared.nodes[node].command.set(Some(command));
        self.run_until(ANSWER, &format!("node {node} answers {command:?}"), |simulation| {
            simulation.shared.nodes[node].answer.borrow().is_some()
        })?;
        let answer = self.shared.nodes[node].answer.take();
        answer.unwrap_or_else(|| Err("no answer".into())).map_err(|why| format!("node {node}, {command:?}: {why}"))
    }

    /// All is mended, and clients rest after a while: then everything that was promised must be there. `hints_suffice`: no node has lost
    /// anything that it knew, so replicas agree without anybody reading.
    pub fn judge(&mut self, hints_suffice: bool) -> Result<Outcome, String> {
        self.heal()?;
        let before = self.shared.history.borrow().counts[0];
        self.shared.failures.borrow_mut().clear();
        self.run_for(Duration::from_secs(3))?;
        if self.shared.history.borrow().counts[0] <= before {
            return Err("all is well, and no write is acknowledged".into());
        }
        let failures = self.shared.failures.borrow().clone();
        if let Some((why, times)) = failures.iter().find(|(why, _)| !is_excused(why)) {
            return Err(format!("all is well, and {times} statements fail: {why}"));
        }
        self.rest()?;
        self.run_until(ARRIVED, "tablets on the move arrive", |simulation| {
            simulation.shared.nodes.iter().all(|node| !node.moving.get())
        })?;
        self.ask(0, Command::Read).map_err(|why| format!("acked_writes_survive: {why}"))?;
        if hints_suffice {
            self.deliver_hints()?;
        } else {
            self.ask(1, Command::Repair).map_err(|why| format!("acked_writes_survive: {why}"))?;
        }
        self.compare()?;
        if hints_suffice {
            self.ask(1, Command::Repair).map_err(|why| format!("acked_writes_survive: {why}"))?;
        }
        let history = self.shared.history.borrow();
        Ok(Outcome {
            trace: self.world.trace_hash(),
            writes: history.counts,
            reads: history.reads,
            schema_changes: self.shared.schema.borrow().made,
            truncations: self.shared.truncations.borrow().done,
            copied: self.shared.copied.get(),
            queries: self.shared.pages.borrow().done,
            pages: self.shared.pages.borrow().pages,
        })
    }

    /// Mends everything, and waits until all nodes see that.
    fn heal(&mut self) -> Result<(), String> {
        self.nemesis.heal(&mut self.world);
        self.mended = self.world.elapsed();
        // One that is still stopping is gone in a moment.
        let is_up = |node: &shared::NodeState| node.is_ready() && !node.is_stopping() && node.sees_all.get();
        let all = |simulation: &mut Simulation| simulation.shared.nodes.iter().all(is_up);
        self.run_until(CALM, "all nodes are up again, and see that all are", all)?;
        self.run_for(SETTLED)
    }

    /// Clients rest, everything is mended, and hints alone must make all copies the same: nobody reads.
    pub fn converge(&mut self) -> Result<(), String> {
        self.shared.set_working(false);
        self.heal()?;
        self.rest()?;
        self.deliver_hints()?;
        self.compare()
    }

    /// Clients begin nothing more, and whatever was begun ends.
    fn rest(&mut self) -> Result<(), String> {
        self.shared.set_working(false);
        let ended = (self.mended + ENDED).saturating_sub(self.world.elapsed());
        let quiet = if self.shared.plan.expiring { EXPIRED } else { PROMPT };
        self.run_for(ended.max(quiet))
    }

    /// Has all nodes deliver their hints at once, until none is left.
    fn deliver_hints(&mut self) -> Result<(), String> {
        let until = self.world.elapsed() + HINTS;
        loop {
            let mut left = 0;
            for node in 0..self.names.len() {
                left += self.ask(node, Command::DeliverHints)?.hints;
            }
            if left == 0 || self.world.elapsed() > until {
                return Ok(());
            }
            self.run_for(BETWEEN_TRIES)?;
        }
    }

    /// `schema_agrees` and `replicas_converge`.
    fn compare(&mut self) -> Result<(), String> {
        let reports = (0..self.names.len()).map(|node| self.ask(node, Command::Report));
        let reports: Vec<Report> = reports.collect::<Result<_, _>>()?;
        let versions: BTreeSet<_> = reports.iter().flat_map(|report| &report.metadata).collect();
        if versions.len() != 1 {
            return Err(format!("schema_agrees is broken: there are {versions:?}"));
        }
        let tables: BTreeSet<String> = reports[0].tables.iter().cloned().collect();
        self.shared.schema.borrow().check(&tables)?;
        let mut copies: BTreeMap<_, Vec<(usize, &Vec<u8>)>> = BTreeMap::new();
        for (node, report) in reports.iter().enumerate() {
            for (place, rows) in &report.copies {
                copies.entry(place).or_default().push((node, rows));
            }
        }
        for ((table, tablet), all) in &copies {
            if all.len() != self.shared.plan.copies {
                return Err(format!("tablet {tablet} of {table} has {} copies", all.len()));
            }
            let lengths: Vec<_> = all.iter().map(|(node, rows)| (node, rows.len())).collect();
            if all.iter().any(|(_, rows)| rows != &all[0].1) {
                return Err(format!(
                    "replicas_converge is broken: tablet {tablet} of {table} is not the same on all nodes: {lengths:?}"
                ));
            }
        }
        Ok(())
    }
}

/// What a statement may fail with although all is well: two change the same column at once.
fn is_excused(why: &str) -> bool {
    ["conflicts with an existing column", "was not found", "already exists", "Column x", "column x"]
        .iter()
        .any(|known| why.contains(known))
}

/// A whole story: the cluster forms, is disturbed for this long, and judged. The error says what is wrong, with what was done.
pub fn story(seed: u64, plan: Plan, regime: Regime, time: Duration) -> Result<Outcome, String> {
    let hints_suffice = nemesis::loses_nothing(regime);
    told(seed, plan, regime, |simulation| {
        simulation.form()?;
        simulation.run_for(Duration::from_millis(500))?;
        simulation.disturb(time)?;
        simulation.judge(hints_suffice)
    })
}

/// As [`story`], but it is disturbed while the nodes search each other and join.
pub fn rough_start(seed: u64, plan: Plan, regime: Regime, time: Duration) -> Result<Outcome, String> {
    told(seed, plan, regime, |simulation| {
        simulation.disturb(time)?;
        simulation.nemesis.heal(&mut simulation.world);
        simulation.form()?;
        simulation.run_for(Duration::from_secs(2))?;
        simulation.judge(false)
    })
}

fn told(
    seed: u64,
    plan: Plan,
    regime: Regime,
    tell: impl FnOnce(&mut Simulation) -> Result<Outcome, String>,
) -> Result<Outcome, String> {
    let mut simulation = Simulation::new(seed, plan, regime);
    tell(&mut simulation).map_err(|why| {
        let Simulation { world, nemesis, shared, .. } = &simulation;
        format!(
            "seed {seed} at {} ms: {why}\nfaults: {:?}\nfailed statements: {:?}",
            world.elapsed().as_millis(),
            nemesis.done,
            shared.failures.borrow()
        )
    })
}
