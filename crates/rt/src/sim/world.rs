//! A cluster in one thread: nodes of several shards, a network between them, crashes, partitions.
//!
//! turmoil provides network and time. Each shard is one task of its node's runtime there. The world
//! advances in steps of one simulated millisecond. Between steps the test injects faults.

use super::net::Cuts;
use super::pause::PausableShard;
use super::single::context;
use super::{Disk, EPOCH_NANOS, SimShard, Trace, derive};
use crate::ctx;
use crate::executor::{self, RunState, ShardFuture};
use crate::group::Group;
use crate::machine::mailboxes;
use crate::shard::ShardId;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::future::Future;
use std::hash::{Hash, Hasher};
use std::net::IpAddr;
use std::panic::Location;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use turmoil::Sim;

/// The simulated network.
#[derive(Debug, Clone, Copy)]
pub struct Network {
    /// The minimum latency of a message.
    pub min_latency: Duration,
    /// The maximum latency of a message.
    pub max_latency: Duration,
}

impl Default for Network {
    fn default() -> Self {
        Self { min_latency: Duration::from_millis(1), max_latency: Duration::from_millis(10) }
    }
}

/// How often a node that may get a shard more does so when it restarts.
const GROWTH: f64 = 0.3;

/// A simulated world; see the module.
pub struct World {
    sim: Sim<'static>,
    seed: u64,
    rng: SmallRng,
    trace: Trace,
    cuts: Cuts,
    nodes: BTreeMap<String, Node>,
    now: Rc<Cell<Duration>>,
    ahead: Rc<Cell<Duration>>,
    /// See [`World::grow`].
    most_shards: usize,
}

struct Node {
    disk: Disk,
    /// The shards of the next run.
    shards: Rc<Cell<usize>>,
    /// The main futures of the node's current run have all ended.
    ended: Rc<Cell<bool>>,
    stop: Rc<AtomicBool>,
    skew: Rc<Cell<i64>>,
    paused_until: Rc<Cell<Duration>>,
    running: bool,
    /// The world ends when all awaited nodes have ended.
    awaited: bool,
}

impl World {
    /// A world whose choices are all derived from `seed`.
    pub fn new(seed: u64) -> Self {
        Self::with_network(seed, Network::default())
    }

    /// A world with a custom network.
    pub fn with_network(seed: u64, network: Network) -> Self {
        let epoch: SystemTime = UNIX_EPOCH + Duration::from_nanos(EPOCH_NANOS as u64);
        let sim = turmoil::Builder::new()
            .rng_seed(seed)
            .epoch(epoch)
            .tick_duration(Duration::from_millis(1))
            .simulation_duration(Duration::from_secs(u64::from(u32::MAX)))
            .min_message_latency(network.min_latency)
            .max_message_latency(network.max_latency)
            .tcp_capacity(1 << 16)
            .enable_random_order()
            .build();
        Self {
            sim,
            seed,
            rng: SmallRng::seed_from_u64(derive(seed, &[2])),
            trace: Trace::default(),
            cuts: Cuts::default(),
            nodes: BTreeMap::new(),
            now: Rc::default(),
            ahead: Rc::default(),
            most_shards: 0,
        }
    }

    /// Gives nodes one more shard in some of their restarts, as long as they have fewer than
    /// `most`.
    pub fn grow(&mut self, most: usize) {
        self.most_shards = most;
    }

    /// Sets the wall clock ahead of the world's time, for nodes that start from now on. A smaller
    /// value than before makes it jump back for them.
    pub fn set_clock_ahead(&mut self, ahead: Duration) {
        self.ahead.set(ahead);
    }

    /// The wall clock of a node that would start now, in microseconds since 1970.
    pub fn wall_micros(&self) -> i64 {
        (EPOCH_NANOS / 1_000) as i64 + (self.sim.elapsed() + self.ahead.get()).as_micros() as i64
    }

    /// Adds a node of `shards` shards on `disk` and starts it: `main` is called for every shard,
    /// and again after [`World::bounce`]. Other nodes connect to it by [`World::lookup`] or, inside
    /// the world, by its name.
    pub fn node<F, Fut>(&mut self, name: &str, shards: usize, disk: &Disk, main: F)
    where
        F: Fn(ShardId) -> Fut + 'static,
        Fut: Future<Output = ()> + 'static,
    {
        self.add(name, shards, disk, main, false);
    }

    /// Adds a node of one shard with an empty disk, which drives the others. [`World::run`] ends
    /// when all such clients have ended.
    pub fn client<F, Fut>(&mut self, name: &str, main: F)
    where
        F: Fn() -> Fut + 'static,
        Fut: Future<Output = ()> + 'static,
    {
        let disk = Disk::new(derive(self.seed, &[3, hash(name)]));
        self.add(name, 1, &disk, move |_| main(), true);
    }

    fn add<F, Fut>(&mut self, name: &str, shards: usize, disk: &Disk, main: F, awaited: bool)
    where
        F: Fn(ShardId) -> Fut + 'static,
        Fut: Future<Output = ()> + 'static,
    {
        assert!(shards > 0 && !self.nodes.contains_key(name), "node {name}");
        let ended = Rc::new(Cell::new(false));
        let stop = Rc::new(AtomicBool::new(false));
        let skew = Rc::new(Cell::new(0));
        let paused_until = Rc::new(Cell::new(Duration::ZERO));
        let shards = Rc::new(Cell::new(shards));
        let node = Node {
            disk: disk.clone(),
            shards: shards.clone(),
            ended: ended.clone(),
            stop: stop.clone(),
            skew: skew.clone(),
            paused_until: paused_until.clone(),
            running: true,
            awaited,
        };
        self.nodes.insert(name.to_string(), node);
        let boot = Rc::new(Boot {
            name: name.into(),
            seed: derive(self.seed, &[4, hash(name)]),
            shards,
            disk: disk.clone(),
            trace: self.trace.clone(),
            cuts: self.cuts.clone(),
            ended,
            stop,
            skew,
            paused_until,
            boots: Cell::new(0),
            now: self.now.clone(),
            ahead: self.ahead.clone(),
        });
        let main = Rc::new(main);
        self.sim.host(name, move || {
            let (boot, main) = (boot.clone(), main.clone());
            async move {
                boot.run(move |shard| main(shard)).await;
                Ok(())
            }
        });
    }

    /// Advances by one millisecond. Nodes whose disks have lost their power stop. Returns true if
    /// all clients have ended. Panics if code in the world panics.
    pub fn step(&mut self) -> bool {
        self.now.set(self.sim.elapsed());
        if let Err(error) = self.sim.step() {
            panic!("the simulated world failed (seed {}): {error}", self.seed);
        }
        let dead: Vec<String> =
            self.nodes.iter().filter(|(_, n)| n.running && !n.disk.is_on()).map(|(name, _)| name.clone()).collect();
        for name in dead {
            self.halt(&name, "power lost");
        }
        self.nodes.values().all(|n| !n.awaited || n.ended.get())
    }

    /// Advances by `time`, or until all clients have ended, if there are any. Returns whether they
    /// have.
    pub fn run_for(&mut self, time: Duration) -> bool {
        let until = self.sim.elapsed() + time;
        let clients = self.nodes.values().any(|n| n.awaited);
        let mut ended = false;
        while self.sim.elapsed() < until && !(clients && ended) {
            ended = self.step();
        }
        clients && ended
    }

    /// Advances until all clients have ended. Panics after `limit`.
    pub fn run(&mut self, limit: Duration) {
        if !self.run_for(limit) {
            panic!("the clients did not end within {limit:?} (seed {})", self.seed);
        }
    }

    fn get(&mut self, name: &str) -> &mut Node {
        match self.nodes.get_mut(name) {
            Some(node) => node,
            None => panic!("no node {name}"),
        }
    }

    fn halt(&mut self, name: &str, how: &str) {
        self.trace.line(&format!("{} {name} {how}", self.sim.elapsed().as_millis()));
        self.get(name).running = false;
        self.sim.crash(name);
    }

    /// Power failure of a node: it stops, and its disk loses unsynced data as configured. Its peers
    /// still see their connections end. To prevent that, partition the node first.
    pub fn crash(&mut self, name: &str) {
        let node = self.get(name);
        node.disk.lose_power();
        if node.running {
            self.halt(name, "crashed");
        }
    }

    /// Kills the node's process: written data stays, synced or not.
    pub fn kill(&mut self, name: &str) {
        if self.get(name).running {
            self.halt(name, "killed");
        }
    }

    /// Starts a stopped node again on its disk.
    pub fn bounce(&mut self, name: &str) {
        if self.get(name).running {
            self.halt(name, "killed to start again");
        }
        let shards = self.get(name).shards.clone();
        if shards.get() < self.most_shards && self.rng.gen_bool(GROWTH) {
            shards.set(shards.get() + 1);
        }
        self.trace.line(&format!("{} {name} starts with {} shards", self.sim.elapsed().as_millis(), shards.get()));
        let node = self.get(name);
        node.running = true;
        node.ended.set(false);
        node.paused_until.set(Duration::ZERO);
        self.sim.bounce(name);
    }

    /// Pauses the node for `time`, like a suspended machine: none of its tasks run, its clock
    /// advances, and messages to it arrive.
    pub fn pause_node(&mut self, name: &str, time: Duration) {
        let now = self.sim.elapsed();
        self.trace.line(&format!("{} {name} is paused for {time:?}", now.as_millis()));
        self.get(name).paused_until.set(now + time);
    }

    /// Resumes all paused nodes.
    pub fn resume_all(&mut self) {
        self.nodes.values().for_each(|node| node.paused_until.set(Duration::ZERO));
    }

    /// Fires `rt::shard::stopping()` on the node's shards, as a signal would.
    pub fn stop(&mut self, name: &str) {
        self.get(name).stop.store(true, Ordering::Release);
    }

    /// Whether the node was started and has not crashed, been killed or lost its power since.
    pub fn is_running(&self, name: &str) -> bool {
        self.nodes.get(name).is_some_and(|n| n.running)
    }

    /// Whether all main futures of the node have ended.
    pub fn has_ended(&self, name: &str) -> bool {
        self.nodes.get(name).is_some_and(|n| n.ended.get())
    }

    /// Cuts the network between two nodes, in both directions. A connection that loses a message
    /// stays dead.
    pub fn partition(&mut self, a: &str, b: &str) {
        self.trace.line(&format!("{} partition {a} {b}", self.sim.elapsed().as_millis()));
        self.sim.partition(a, b);
    }

    /// Cuts the network from `from` to `to` only.
    pub fn partition_oneway(&mut self, from: &str, to: &str) {
        self.trace.line(&format!("{} partition {from} to {to}", self.sim.elapsed().as_millis()));
        self.sim.partition_oneway(from, to);
    }

    /// Restores the network between two nodes.
    pub fn repair(&mut self, a: &str, b: &str) {
        self.trace.line(&format!("{} repair {a} {b}", self.sim.elapsed().as_millis()));
        self.sim.repair(a, b);
    }

    /// Delays all messages between two nodes until [`World::release`].
    pub fn hold(&mut self, a: &str, b: &str) {
        self.sim.hold(a, b);
    }

    /// Delivers the messages that [`World::hold`] delayed.
    pub fn release(&mut self, a: &str, b: &str) {
        self.sim.release(a, b);
    }

    /// Ends the connection that carries the byte after the next `bytes` bytes from one node to
    /// another. The bytes before it arrive; that byte and later ones do not, and both sides see the
    /// end. Replaces an earlier pending cut of the two nodes.
    pub fn cut_connection_after(&mut self, from: &str, to: &str, bytes: u64) {
        self.cuts.set(self.lookup(from), self.lookup(to), bytes);
    }

    /// Cancels all pending cuts of [`World::cut_connection_after`].
    pub fn cut_no_more(&mut self) {
        self.cuts.clear();
    }

    /// Sets the maximum latency of later messages between two nodes. Messages in flight are not
    /// delayed.
    pub fn slow_link(&mut self, a: &str, b: &str, longest: Duration) {
        self.trace.line(&format!("{} slow link {a} {b}", self.sim.elapsed().as_millis()));
        self.sim.set_link_max_message_latency(a, b, longest);
    }

    /// Sets the error of a node's wall clock, in microseconds. It stays across restarts, until it
    /// is set again.
    pub fn set_clock_wrong(&mut self, name: &str, micros: i64) {
        self.trace.line(&format!("{} {name} clock wrong by {micros} us", self.sim.elapsed().as_millis()));
        self.get(name).skew.set(micros * 1_000);
    }

    /// Simulated time since the start of the world.
    pub fn elapsed(&self) -> Duration {
        self.sim.elapsed()
    }

    /// The address of a node.
    pub fn lookup(&self, name: &str) -> IpAddr {
        self.sim.lookup(name)
    }

    /// For the test's own choices: derived from the seed, independent of the nodes' random numbers.
    pub fn rng(&mut self) -> &mut SmallRng {
        &mut self.rng
    }

    /// The seed, for messages of failed checks.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// The hash of the trace; equal for equal seeds.
    pub fn trace_hash(&self) -> u64 {
        self.trace.hash()
    }

    /// Keeps the lines of the trace from now on, for [`World::trace_lines`].
    pub fn keep_trace(&mut self) {
        self.trace.keep_lines();
    }

    /// The lines kept.
    pub fn trace_lines(&self) -> Vec<String> {
        self.trace.lines()
    }
}

/// The inputs of a node's start.
struct Boot {
    name: Rc<str>,
    seed: u64,
    shards: Rc<Cell<usize>>,
    disk: Disk,
    trace: Trace,
    cuts: Cuts,
    ended: Rc<Cell<bool>>,
    stop: Rc<AtomicBool>,
    skew: Rc<Cell<i64>>,
    paused_until: Rc<Cell<Duration>>,
    boots: Cell<u64>,
    now: Rc<Cell<Duration>>,
    ahead: Rc<Cell<Duration>>,
}

impl Boot {
    async fn run<F, Fut>(&self, main: F)
    where
        F: Fn(ShardId) -> Fut,
        Fut: Future<Output = ()> + 'static,
    {
        self.boots.set(self.boots.get() + 1);
        self.stop.store(false, Ordering::Release);
        self.disk.start_machine();
        let count = self.shards.get();
        let run_state = RunState::new(count);
        let mailboxes = mailboxes(count);
        let epoch = EPOCH_NANOS + (self.now.get() + self.ahead.get()).as_nanos() as i128;
        let mut shards = Vec::with_capacity(count);
        for index in 0..count {
            let shard = ShardId(index as u16);
            let sim = SimShard {
                node: self.name.clone(),
                trace: self.trace.clone(),
                skew: self.skew.clone(),
                cuts: self.cuts.clone(),
            };
            let seed = derive(self.seed, &[self.boots.get(), index as u64]);
            let ctx = context(seed, shard, mailboxes.clone(), &self.disk, sim, epoch);
            let (state_of_main, nudge) = (run_state.clone(), mailboxes.clone());
            let main = ctx::enter(&ctx, || main(shard));
            let main = async move {
                main.await;
                if state_of_main.running.fetch_sub(1, Ordering::AcqRel) == 1 {
                    nudge.iter().for_each(|mailbox| mailbox.nudge());
                }
            };
            ctx::enter(&ctx, || executor::spawn(&ctx, Location::caller(), Group::Control, main).detach());
            let shard = ShardFuture::new(ctx, run_state.clone());
            let shard = PausableShard::new(shard, self.now.clone(), self.paused_until.clone());
            shards.push(tokio::task::spawn_local(shard));
        }
        let watch_stop = async {
            loop {
                if self.stop.load(Ordering::Acquire) {
                    run_state.stop.store(true, Ordering::Release);
                    mailboxes.iter().for_each(|mailbox| mailbox.nudge());
                    return std::future::pending::<()>().await;
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let all = async {
            for shard in shards {
                if let Err(error) = shard.await
                    && let Ok(panic) = error.try_into_panic()
                {
                    std::panic::resume_unwind(panic);
                }
            }
        };
        tokio::select! {
            biased;
            () = all => {}
            () = watch_stop => {}
        }
        self.ended.set(true);
    }
}

fn hash(name: &str) -> u64 {
    let mut hasher = std::hash::DefaultHasher::new();
    name.hash(&mut hasher);
    hasher.finish()
}
