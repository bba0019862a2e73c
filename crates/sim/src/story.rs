//! Several lives of a node on one disk, in one world, each ended by something.

use crate::node::{Life, Progress, Shared, Variant};
use engine::commitlog::SyncMode;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rt::sim::{Disk, World};
use rt::time::Duration;
use std::rc::Rc;

/// Simulated time after which a life is considered stuck.
const PATIENCE: Duration = Duration::from_secs(600);
/// A sync that is due waits for the one under way and takes a while itself.
const SYNC_TAKES: Duration = Duration::from_millis(25);
/// Room enough for everything.
const UNLIMITED: u64 = 1 << 40;

/// What ends a life.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// It does its work and stops; then the power goes.
    Stop,
    /// The power goes at the n-th write of the disk, if there are as many.
    PowerAtWrite(u64),
    /// The process is killed after about as many writes of the disk.
    KillAtWrite(u64),
}

/// The lives of a node.
pub struct Story {
    /// The disk.
    pub disk: Disk,
    /// What the clients know.
    pub shared: Rc<Shared>,
    world: World,
    rng: SmallRng,
    seed: u64,
    sync: SyncMode,
    lives: u64,
    /// Rounds of work in each life.
    pub rounds: u32,
    /// Steps of each client in a round.
    pub steps: u32,
    /// Whether some writes have a time to live.
    pub expiring: bool,
    /// Whether the table is truncated, dropped and altered.
    pub globals: bool,
    /// What must make no difference.
    pub variant: Variant,
}

impl Story {
    /// A new node's, on an empty disk.
    pub fn new(seed: u64, sync: SyncMode) -> Self {
        let window = match sync {
            SyncMode::Periodic { period } => Some(period + SYNC_TAKES),
            SyncMode::Batch | SyncMode::Group { .. } => None,
        };
        Story {
            disk: Disk::new(seed),
            shared: Shared::new(window),
            world: World::new(seed),
            rng: SmallRng::seed_from_u64(seed ^ 0x5707),
            seed,
            sync,
            lives: 0,
            rounds: 3,
            steps: 8,
            expiring: true,
            globals: true,
            variant: Variant::default(),
        }
    }

    /// A story that goes on from here in another world, with a disk of its own; this one may still go on too.
    pub fn fork(&self, seed: u64) -> Self {
        let mut world = World::new(seed);
        world.set_clock_ahead(self.clock_ahead());
        Story {
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

    /// For choices of the test.
    pub fn rng(&mut self) -> &mut SmallRng {
        &mut self.rng
    }

    /// The world.
    pub fn world(&mut self) -> &mut World {
        &mut self.world
    }

    /// The hash of all that happened.
    pub fn trace_hash(&self) -> u64 {
        self.world.trace_hash()
    }

    /// Lives once more. Gives how it ended, if it ended by itself: with anything but [`Progress::Ended`] a promise is broken.
    pub fn live(&mut self, shards: usize, end: End) -> Progress {
        self.live_with(shards, end, |_, _| {})
    }

    /// As [`Story::live`]; `trouble` is called after each simulated millisecond.
    pub fn live_with(&mut self, shards: usize, end: End, mut trouble: impl FnMut(&mut Story, Duration)) -> Progress {
        self.lives += 1;
        let life = Life {
            seed: self.seed ^ self.lives.wrapping_mul(0x1_0000_0001),
            shards,
            sync: self.sync,
            rounds: self.rounds,
            steps: self.steps,
            expiring: self.expiring,
            globals: self.globals,
            variant: self.variant,
        };
        let name = format!("life{}", self.lives);
        self.shared.reset();
        let begun = self.disk.writes();
        if let End::PowerAtWrite(n) = end {
            self.disk.power_loss_at_write(n);
        }
        let shared = self.shared.clone();
        self.world.node(&name, shards, &self.disk, move |shard| life.clone().run(shard, shared.clone()));
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
            assert!(lived < PATIENCE, "seed {}: life {} makes no progress", self.seed, self.lives);
        }
    }

    fn note_death(&mut self, in_order: bool, power: bool) {
        let mut book = self.shared.book.borrow_mut();
        if in_order {
            let number = book.number();
            book.saved(number);
        }
        let at = self.world.wall_micros();
        self.shared.tell(|| format!("{at} it is over, in order: {in_order}, with power: {power}"));
        if power { book.killed(at) } else { book.power_lost(at) }
    }

    /// Leaves only `bytes` of free space, and lets statements fail.
    pub fn fill_disk(&mut self, bytes: u64) {
        self.disk.set_free(bytes);
        self.shared.trouble_until.set(i64::MAX);
    }

    /// Gives the space back; `grace` later all must be well.
    pub fn empty_disk(&mut self, grace: Duration) {
        self.disk.set_capacity(UNLIMITED);
        self.shared.trouble_until.set(self.world.wall_micros() + grace.as_micros() as i64);
    }

    /// Any number below `n`.
    pub fn any(&mut self, n: u64) -> u64 {
        self.rng.gen_range(0..n.max(1))
    }
}
