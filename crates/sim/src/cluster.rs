//! A simulated cluster: all layers of every node, clients on every shard, and faults.
//!
//! [`Simulation`] drives a cluster. Nodes form it, clients work while the [`nemesis`] injects
//! faults. Then all faults are repaired, and the checkers examine the contents. [`trials`] lists
//! the kinds of clusters and faults. [`history`], [`counters`] and [`schema_oracle`] record the
//! answers to the clients. [`node`] is what runs on a node.
//!
//! Checkers: `reads_are_merged`, `pages_are_exact` and `no_resurrection` at each read,
//! `rate_limit_bounds` and `raft_safety` all the time, `acked_writes_survive`, `schema_agrees`,
//! `refused_is_not_done`, `moves_end`, `tablet_owned_once`, `copies_as_asked` and
//! `replicas_converge` at the end, `streamed_files_identical` after each copy of a tablet.

pub mod client;
pub mod counters;
pub mod history;
pub mod limited;
pub mod membership;
pub mod moves;
pub mod nemesis;
pub mod node;
pub mod ownership;
pub mod pages;
pub mod rate_limits;
pub mod schema_oracle;
pub mod shared;
pub mod streamed_files;
pub mod trials;
pub mod truncating;
pub mod truncations;
pub mod workload;

use membership::MemberChanges;
use nemesis::{FaultProfile, Nemesis};
use rt::sim::{Disk, Unsynced, World};
use rt::time::Duration;
use shared::{Command, Plan, Report, Shared};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::rc::Rc;

const PORT: u16 = 7000;
/// Without faults, a cluster forms and makes its tables within this time.
const FORMING: Duration = Duration::from_secs(60);
/// After the repair of all faults, nodes are up and see each other within this time. The worst
/// flapping requires many answers in a row.
const CALM: Duration = Duration::from_secs(40);
/// All nodes are members again within this time, if members have changed.
const SETTLING: Duration = Duration::from_secs(150);
/// A node loses its disk after this number of faults, on average, if members change.
const DISK_LOSS: u32 = 8;
/// The pause before a process starts again whose start failed.
const RESTART_PAUSE: Duration = Duration::from_secs(1);
/// Connections that broke without a sign are closed within this time.
const SETTLED: Duration = Duration::from_secs(6);
/// Requests that began before the repair have ended after this time: no request takes longer.
const ENDED: Duration = Duration::from_secs(12);
/// Requests that begin without faults end within this time.
const PROMPT: Duration = Duration::from_secs(2);
/// All values with a TTL have expired after this time. The reports of copies are not made in the
/// same second.
const EXPIRED: Duration = Duration::from_secs(10);
/// Hints are replayed within this time.
const HINTS: Duration = Duration::from_secs(25);
/// The pause between two requests to replay hints.
const BETWEEN_TRIES: Duration = Duration::from_millis(500);
/// The longest that a node may take to answer a command of the driver.
const ANSWER: Duration = Duration::from_secs(60);
/// All tablet moves end within this time.
const ARRIVED: Duration = Duration::from_secs(60);
/// The time after the last fault from which rate limits hold exactly.
const LIMITS_SETTLE: Duration = Duration::from_secs(3);
/// The number of seconds for which accepted operations are counted.
const LIMITS_SECONDS: u64 = 10;
/// A node stops within this time after it is asked to.
const STOPPING: Duration = Duration::from_secs(30);

/// The most shards of a node that grows.
const MOST_SHARDS: usize = 4;

/// The result of a scenario.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// The hash of everything that happened in the world.
    pub trace: u64,
    /// Writes that were acknowledged, that failed, and that were refused.
    pub writes: [u64; 3],
    /// Reads that were checked.
    pub reads: u64,
    /// Schema changes that were acknowledged.
    pub schema_changes: u64,
    /// TRUNCATEs that were acknowledged.
    pub truncations: u64,
    /// Tablets whose data was copied to another node.
    pub copied: u64,
    /// Queries that were read to their end over clients of all nodes.
    pub queries: u64,
    /// The pages of these queries.
    pub pages: u64,
    /// Operations of a hot partition that an overloaded shard refused.
    pub protected: u64,
    /// The most tablets that the shards of a node handed over to each other between two starts.
    pub handed_over: u64,
    /// The most reads that a shard coalesced between two starts of its node.
    pub coalesced: u64,
    /// How often the members of the cluster changed.
    pub member_changes: MemberChanges,
    /// Files of sstables that were compared with their copies on other disks.
    pub compared: u64,
}

/// A simulated cluster and the state of its scenario.
pub struct Simulation {
    /// The world.
    pub world: World,
    /// The state that nodes, clients and driver share.
    pub shared: Rc<Shared>,
    /// The source of faults.
    pub nemesis: Nemesis,
    names: Vec<String>,
    stopping: Vec<(usize, Duration)>,
    /// When each node was first seen to have ended without being stopped.
    ended: Vec<Option<Duration>>,
    /// When the last faults were repaired.
    mended: Duration,
    /// The tablets that had been copied when files were last compared.
    copied: u64,
    /// Files of sstables that were compared with their copies on other disks.
    compared: u64,
}

impl Simulation {
    /// A new cluster with the nodes of `plan`, which all start at once.
    pub fn new(seed: u64, plan: Plan, profile: FaultProfile) -> Simulation {
        let mut world = World::new(seed);
        if plan.growing {
            world.grow(MOST_SHARDS);
        }
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
                    shared.limits.iter().for_each(|limits| limits.borrow_mut().restarted(n));
                }
                node::run(shared.clone(), n, shard)
            });
        }
        let datacenters = (0..names.len()).map(|node| shared.plan.datacenter(node)).collect();
        let nemesis = Nemesis::new(profile, names.clone(), datacenters, disks);
        let (stopping, ended) = (Vec::new(), vec![None; names.len()]);
        Simulation { world, shared, nemesis, names, stopping, ended, mended: Duration::ZERO, copied: 0, compared: 0 }
    }

    /// The state that nodes, clients and driver share.
    pub fn shared(&self) -> &Shared {
        &self.shared
    }

    /// Sets the part of unsynced writes that survives a power loss.
    pub fn set_unsynced(&mut self, unsynced: Unsynced) {
        self.nemesis.disks().iter().for_each(|disk| disk.set_unsynced(unsynced));
    }

    /// Simulates one millisecond.
    fn step(&mut self) -> Result<(), String> {
        self.shared.set_elapsed(self.world.elapsed());
        self.world.step();
        self.nemesis.advance(&mut self.world);
        for node in std::mem::take(&mut self.nemesis.stopping) {
            let (name, state) = (&self.names[node], &self.shared.nodes[node]);
            if !self.world.is_running(name) || state.is_stopping() {
                continue;
            }
            if state.up.get() {
                state.stop();
                self.stopping.push((node, self.world.elapsed()));
            } else {
                // A process that gets SIGTERM before it is up ends at once.
                self.world.bounce(name);
            }
        }
        for node in std::mem::take(&mut self.nemesis.filling) {
            if self.world.is_running(&self.names[node]) && self.shared.nodes[node].up.get() {
                self.nemesis.fill(&mut self.world, node);
            }
        }
        let (world, names, shared, nemesis) = (&mut self.world, &self.names, &self.shared, &self.nemesis);
        let mut stuck = None;
        self.stopping.retain(|(node, since)| {
            let name = &names[*node];
            if !world.is_running(name) {
                return false;
            }
            if world.has_ended(name) {
                restart(world, shared, nemesis, *node);
                return false;
            }
            if world.elapsed() - *since > STOPPING {
                stuck = Some(format!("node {node} does not stop within {STOPPING:?}"));
            }
            true
        });
        if shared.plan.member_changes {
            self.restart_ended();
        }
        if self.copied < self.shared.copied.get() {
            self.copied = self.shared.copied.get();
            self.compared += streamed_files::check(self.nemesis.disks())?;
        }
        match stuck.or_else(|| self.shared.first_broken()) {
            Some(why) => Err(why),
            None => Ok(()),
        }
    }

    /// Starts the nodes again that were removed, or did not start.
    fn restart_ended(&mut self) {
        for node in 0..self.names.len() {
            let is_stopping = self.stopping.iter().any(|(stopping, _)| *stopping == node);
            if is_stopping || !self.world.is_running(&self.names[node]) || !self.world.has_ended(&self.names[node]) {
                self.ended[node] = None;
                continue;
            }
            let now = self.world.elapsed();
            if now - *self.ended[node].get_or_insert(now) >= RESTART_PAUSE {
                self.ended[node] = None;
                restart(&mut self.world, &self.shared, &self.nemesis, node);
            }
        }
    }

    /// Has a member lose its disk, if no other node is lost. A new node replaces it.
    fn lose_disk(&mut self) {
        let node = rand::Rng::gen_range(self.world.rng(), 0..self.names.len());
        let state = &self.shared.nodes[node];
        let Some(host) = state.host.get() else { return };
        if self.shared.lost.get().is_some() || state.gone.get() || !state.is_ready() || state.is_stopping() {
            return;
        }
        self.shared.lost.set(Some(host));
        let mut changes = self.shared.member_changes.get();
        changes.lost += 1;
        self.shared.member_changes.set(changes);
        state.gone.set(true);
        restart(&mut self.world, &self.shared, &self.nemesis, node);
        self.shared.nodes[node].replaces.set(Some(host));
    }

    /// Simulates a length of time.
    pub fn run_for(&mut self, time: Duration) -> Result<(), String> {
        let until = self.world.elapsed() + time;
        while self.world.elapsed() < until {
            self.step()?;
        }
        Ok(())
    }

    /// Simulates until `is_so` is true. Returns how long that took; an error after `limit`.
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

    /// Waits until all nodes are members and have the tables. Then clients begin to work.
    pub fn form(&mut self) -> Result<Duration, String> {
        let took = self.run_until(FORMING, "the nodes form a cluster and make its tables", |simulation| {
            simulation.shared.nodes.iter().all(|node| node.is_ready())
        })?;
        self.shared.set_working(true);
        Ok(took)
    }

    /// Injects faults for a length of time, with random pauses.
    pub fn disturb(&mut self, time: Duration) -> Result<(), String> {
        let until = self.world.elapsed() + time;
        while self.world.elapsed() < until {
            let pause = rand::Rng::gen_range(self.world.rng(), 20..1500);
            self.run_for(Duration::from_millis(pause))?;
            self.nemesis.strike(&mut self.world);
            if self.shared.plan.member_changes && rand::Rng::gen_range(self.world.rng(), 0..DISK_LOSS) == 0 {
                self.lose_disk();
            }
        }
        Ok(())
    }

    /// Sends a command to a node, and waits for its report.
    fn ask(&mut self, node: usize, command: Command) -> Result<Report, String> {
        self.shared.nodes[node].answer.take();
        self.shared.nodes[node].command.set(Some(command));
        self.run_until(ANSWER, &format!("node {node} answers {command:?}"), |simulation| {
            simulation.shared.nodes[node].answer.borrow().is_some()
        })?;
        let answer = self.shared.nodes[node].answer.take();
        answer.unwrap_or_else(|| Err("no answer".into())).map_err(|why| format!("node {node}, {command:?}: {why}"))
    }

    /// Repairs all faults, lets clients end their work, and checks all promises. `hints_suffice`:
    /// no node has lost anything, so hints alone must make the replicas agree.
    pub fn verify(&mut self, hints_suffice: bool) -> Result<Outcome, String> {
        self.heal()?;
        let before = self.shared.history.borrow().counts[0];
        // A request on a connection that broke without a sign may still fail.
        self.shared.count_failures_from_now();
        self.run_for(Duration::from_secs(3))?;
        if self.shared.history.borrow().counts[0] <= before {
            return Err("all is well, and no write is acknowledged".into());
        }
        let failures = self.shared.failures.borrow().clone();
        if let Some((why, times)) = failures.iter().find(|(why, _)| !is_excused(why)) {
            return Err(format!("all is well, and {times} statements fail: {why}"));
        }
        if self.shared.plan.is_limiting() {
            self.check_limits()?;
        }
        self.rest()?;
        self.run_until(ARRIVED, "moves_end is broken: tablets on the move arrive", |simulation| {
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
            protected: self.shared.protected.get(),
            handed_over: self.shared.handed_over.get(),
            coalesced: self.shared.coalesced.get(),
            member_changes: self.shared.member_changes.get(),
            compared: self.compared,
        })
    }

    /// The checker `rate_limit_bounds`, while clients work without faults.
    fn check_limits(&mut self) -> Result<(), String> {
        self.run_for(LIMITS_SETTLE)?;
        let before: Vec<_> = self.shared.limits.iter().map(|limits| limits.borrow().hot).collect();
        let observed_before = self.observed()?;
        self.run_for(Duration::from_secs(LIMITS_SECONDS))?;
        let observed = self.observed()?;
        let observed = [0, 1].map(|kind| observed[kind] - observed_before[kind]);
        for (limits, before) in self.shared.limits.iter().zip(before) {
            limits.borrow().check_accepted(before, LIMITS_SECONDS, observed)?;
        }
        Ok(())
    }

    /// The reads and the writes that all nodes would have refused in mode `observe`.
    fn observed(&mut self) -> Result<[u64; 2], String> {
        let mut sum = [0; 2];
        for node in 0..self.names.len() {
            let observed = self.ask(node, Command::ReportObserved)?.observed;
            sum = [0, 1].map(|kind| sum[kind] + observed[kind]);
        }
        Ok(sum)
    }

    /// Repairs all faults, and waits until all nodes see each other.
    fn heal(&mut self) -> Result<(), String> {
        self.nemesis.heal(&mut self.world);
        self.mended = self.world.elapsed();
        self.shared.members_change.set(false);
        let members_change = self.shared.plan.member_changes;
        // A node that is stopping is still ready for a moment.
        let is_up = |node: &shared::NodeState| {
            let is_settled = !members_change || node.unsettled.borrow().is_none();
            node.is_ready() && !node.is_stopping() && node.sees_all.get() && is_settled
        };
        let all = |simulation: &mut Simulation| simulation.shared.nodes.iter().all(is_up);
        let limit = if members_change { SETTLING } else { CALM };
        self.run_until(limit, "all nodes are up again, and see that all are", all).map_err(|why| {
            let unsettled = self.shared.nodes.iter().map(|node| node.unsettled.take()).filter(|_| members_change);
            format!("{why}: {:?}", unsettled.collect::<Vec<_>>())
        })?;
        if members_change {
            // Requests that began earlier may have been sent to nodes that are gone.
            self.mended = self.world.elapsed();
        }
        self.run_for(SETTLED)
    }

    /// Stops the clients and repairs all faults. Then hints alone must make all copies equal,
    /// without any read.
    pub fn converge(&mut self) -> Result<(), String> {
        self.shared.set_working(false);
        self.heal()?;
        self.rest()?;
        self.deliver_hints()?;
        self.compare()
    }

    /// Repairs all faults, lets clients work for `time`, and then checks at ALL that every replica
    /// together with the others has all acknowledged writes. Afterwards all replicas are equal, and
    /// clients work again.
    pub fn audit(&mut self, time: Duration) -> Result<(), String> {
        self.heal()?;
        self.run_for(time)?;
        self.rest()?;
        self.ask(1, Command::Repair).map_err(|why| format!("acked_writes_survive: {why}"))?;
        self.shared.set_working(true);
        Ok(())
    }

    /// Clients begin no more requests. Waits until those in progress have ended.
    fn rest(&mut self) -> Result<(), String> {
        self.shared.set_working(false);
        let ended = (self.mended + ENDED).saturating_sub(self.world.elapsed());
        let quiet = if self.shared.plan.expiring { EXPIRED } else { PROMPT };
        self.run_for(ended.max(quiet))
    }

    /// Lets all nodes replay their hints at once, until none is left or [`HINTS`] is over.
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

    /// The checkers `schema_agrees` and `replicas_converge`.
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
            if all.len() != reports[0].asked {
                return Err(format!(
                    "copies_as_asked is broken: tablet {tablet} of {table} has {} replicas instead of {}",
                    all.len(),
                    reports[0].asked
                ));
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

/// Starts a node again. Erases its disk first, if it is no member any more.
fn restart(world: &mut World, shared: &Shared, nemesis: &Nemesis, node: usize) {
    let (name, state) = (format!("n{node}"), &shared.nodes[node]);
    if state.gone.replace(false) {
        world.kill(&name);
        nemesis.disks()[node].restore(&Disk::new(0));
        state.host.set(None);
        state.replaces.set(None);
    }
    world.bounce(&name);
}

/// Whether a statement may fail with this error without any fault: two clients change the same
/// column at once.
fn is_excused(why: &str) -> bool {
    ["conflicts with an existing column", "was not found", "already exists", "Column x", "column x"]
        .iter()
        .any(|known| why.contains(known))
}

/// A complete scenario: the cluster forms, faults are injected for `time`, then all promises are
/// checked. The error has the broken promise, the faults and the failed statements.
pub fn scenario(seed: u64, plan: Plan, profile: FaultProfile, time: Duration) -> Result<Outcome, String> {
    // A write that some replicas refused and others accepted leaves no hint.
    let hints_suffice = nemesis::loses_nothing(profile) && !plan.is_limiting();
    simulate(seed, plan, profile, |simulation| {
        simulation.form()?;
        simulation.run_for(Duration::from_millis(500))?;
        simulation.shared.set_overloaded(true);
        simulation.disturb(time)?;
        simulation.shared.set_overloaded(false);
        simulation.verify(hints_suffice)
    })
}

/// Like [`scenario`], but faults are injected while the nodes find each other and join.
pub fn rough_start(seed: u64, plan: Plan, profile: FaultProfile, time: Duration) -> Result<Outcome, String> {
    simulate(seed, plan, profile, |simulation| {
        simulation.disturb(time)?;
        simulation.nemesis.heal(&mut simulation.world);
        simulation.form()?;
        simulation.run_for(Duration::from_secs(2))?;
        simulation.verify(false)
    })
}

fn simulate(
    seed: u64,
    plan: Plan,
    profile: FaultProfile,
    run: impl FnOnce(&mut Simulation) -> Result<Outcome, String>,
) -> Result<Outcome, String> {
    let mut simulation = Simulation::new(seed, plan, profile);
    run(&mut simulation).map_err(|why| {
        let Simulation { world, nemesis, shared, .. } = &simulation;
        format!(
            "seed {seed} at {} ms: {why}\nfaults: {:?}\nfailed statements: {:?}",
            world.elapsed().as_millis(),
            nemesis.done,
            shared.failures.borrow()
        )
    })
}
