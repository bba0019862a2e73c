//! A scenario: several incarnations of a node, one after the other, on one simulated disk. Each
//! ends by a stop, a kill or a power loss.

use crate::node::{Incarnation, Progress, Shared, Variant};
use engine::commitlog::SyncMode;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rt::sim::{Disk, World};
use rt::time::Duration;
use std::rc::Rc;

/// An incarnation that takes longer, in simulated time, is stuck.
const PATIENCE: Duration = Duration::from_secs(600);
/// The longest that a sync takes: it may wait for an earlier one.
const SYNC_TAKES: Duration = Duration::from_millis(25);
/// The size of a disk that never fills up, in bytes.
const UNLIMITED: u64 = 1 << 40;

/// What ends an incarnation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// The node does its work and stops. Then the power fails.
    Stop,
    /// The power fails at the n-th write of the disk, if the disk is written that often.
    PowerAtWrite(u64),
    /// The process is killed after at least n writes of the disk.
    KillAtWrite(u64),
}

/// The incarnations of a node, with the world and the disk that they share.
pub struct Scenario {
    /// The disk of the node.
    pub disk: Disk,
    /// The state that clients, shards and driver share, with the oracle.
    pub shared: Rc<Shared>,
    world: World,
    rng: SmallRng,
    seed: u64,
    sync: SyncMode,
    incarnations: u64,
    /// Rounds of work in each incarnation.
    pub rounds: u32,
    /// Steps of each client in a round.
    pub steps: u32,
    /// Whether some writes have a TTL.
    pub expiring: bool,
    /// Whether the table is truncated, dropped and altered.
    pub globals: bool,
    /// Settings that must not change any answer.
    pub variant: Variant,
}

impl Scenario {
    /// A scenario with a new node on an empty disk.
    pub fn new(seed: u64, sync: SyncMode) -> Self {
        let window = match sync {
            SyncMode::Periodic { period } => Some(period + SYNC_TAKES),
            SyncMode::Batch | SyncMode::Group { .. } => None,
        };
        Scenario {
            disk: Disk::new(seed),
            shared: Shared::new(window),
            world: World::new(seed),
            rng: SmallRng::seed_from_u64(seed ^ 0x5707),
            seed,
            sync,
            incarnations: 0,
            rounds: 3,
            steps: 8,
            expiring: true,
            globals: true,
            variant: Variant::default(),
        }
    }

    /// A copy of this scenario with its own world and a copy of the disk. Both can be continued
    /// independently.
    pub fn fork(&self, seed: u64) -> Self {
        let mut world = World::new(seed);
        world.set_clock_ahead(self.clock_ahead());
        Scenario {
            disk: self.disk.fork(),
            shared: self.shared.fork(),
            world,
            rng: SmallRng::seed_from_u64(seed),
            seed,
            ..*self
        }
    }

    fn clock_ahead(&self) -> Duration {
        Duration::from_micros((self.world.wall_micros() - World::new(0).wall_micros()) as u64)
    }

    /// The random numbers for choices of the test.
    pub fn rng(&mut self) -> &mut SmallRng {
        &mut self.rng
    }

    /// The world.
    pub fn world(&mut self) -> &mut World {
        &mut self.world
    }

    /// The hash of everything that happened in the world.
    pub fn trace_hash(&self) -> u64 {
        self.world.trace_hash()
    }

    /// Runs one more incarnation. Returns how it ended, or [`Progress::Running`] if a kill or a
    /// power loss ended it. If the node ended by itself with anything but [`Progress::Ended`], a
    /// promise is broken.
    pub fn run(&mut self, shards: usize, end: End) -> Progress {
        self.run_with(shards, end, |_, _| {})
    }

    /// Like [`Scenario::run`]. `trouble` is called after each simulated millisecond, with the time
    /// since the node's start.
    pub fn run_with(&mut self, shards: usize, end: End, mut trouble: impl FnMut(&mut Scenario, Duration)) -> Progress {
        self.incarnations += 1;
        let incarnation = Incarnation {
            seed: self.seed ^ self.incarnations.wrapping_mul(0x1_0000_0001),
            shards,
            sync: self.sync,
            rounds: self.rounds,
            steps: self.steps,
            expiring: self.expiring,
            globals: self.globals,
            variant: self.variant,
        };
        // Part of the seed of the node: a new name gives other random numbers.
        let name = format!("life{}", self.incarnations);
        self.shared.reset();
        let begun = self.disk.writes();
        if let End::PowerAtWrite(n) = end {
            self.disk.power_loss_at_write(n);
        }
        let shared = self.shared.clone();
        self.world.node(&name, shards, &self.disk, move |shard| incarnation.clone().run(shard, shared.clone()));
        let started = self.world.elapsed();
        self.shared.tell(|| format!("{name} on {shards} shards begins, {end:?}"));
        loop {
            self.world.step();
            let progress = self.shared.progress.borrow().clone();
            if progress != Progress::Running {
                self.world.kill(&name);
                self.disk.no_power_loss();
                if progress == Progress::Ended {
                    self.disk.lose_power();
                }
                self.note_death(progress == Progress::Ended, self.disk.is_on());
                return progress;
            }
            if !self.disk.is_on() {
                self.note_death(false, false);
                return Progress::Running;
            }
            if let End::KillAtWrite(n) = end
                && self.disk.writes() - begun >= n
            {
                self.world.kill(&name);
                self.note_death(false, true);
                return Progress::Running;
            }
            let lived = self.world.elapsed() - started;
            trouble(self, lived);
            assert!(lived < PATIENCE, "seed {}: incarnation {} makes no progress", self.seed, self.incarnations);
        }
    }

    fn note_death(&mut self, in_order: bool, power: bool) {
        let mut oracle = self.shared.oracle.borrow_mut();
        if in_order {
            let number = oracle.number();
            oracle.saved(number);
        }
        let at = self.world.wall_micros();
        self.shared.tell(|| format!("{at} the incarnation has ended, stopped: {in_order}, with power: {power}"));
        if power { oracle.killed(at) } else { oracle.power_lost(at) }
    }

    /// Leaves `bytes` of free space on the disk. Statements may fail from now on.
    pub fn fill_disk(&mut self, bytes: u64) {
        self.disk.set_free(bytes);
        self.shared.trouble_until.set(i64::MAX);
    }

    /// Frees the disk's space. From `grace` later, statements must succeed again.
    pub fn empty_disk(&mut self, grace: Duration) {
        self.disk.set_capacity(UNLIMITED);
        self.shared.trouble_until.set(self.world.wall_micros() + grace.as_micros() as i64);
    }

    /// A random number below `n`.
    pub fn any(&mut self, n: u64) -> u64 {
        self.rng.gen_range(0..n.max(1))
    }
}
