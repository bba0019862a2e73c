//! One incarnation of a node: started on a disk, used by clients on all its shards, ended by its
//! own stop or from outside.
//!
//! An incarnation has rounds. In each round, every client executes some steps on its own
//! partitions, while flushes and compactions run. Changes of the whole table come between rounds.
//! The node's shards and the driver of the world share [`Shared`].

use crate::checker::Oracle;
use crate::layers::LAYERS;
use crate::model::{Change, SeenRow};
use crate::reads::{execute, fresh_second, read_all, read_partition, read_shape};
use crate::workload::{KEYSPACE, PARTITIONS, Step, global, global_statement, statement, step};
use coordinator::PageLimits;
use engine::commitlog::SyncMode;
use engine::{Engine, EngineError};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rt::ShardId;
use rt::time::Duration;
use server::stack::{self, ReplicaConfig, StackConfig};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::rc::Rc;

/// The number of clients that write in parallel, each to its own partitions.
const CLIENTS: usize = 3;

/// Settings that must not change any answer. The checkers `compaction_is_invisible` and
/// `querier_cache_is_invisible` repeat an incarnation with different ones.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Variant {
    /// The kind of table (its compaction and compression), a number below
    /// [`crate::workload::KINDS`]. `None`: a random kind.
    pub kind: Option<usize>,
    /// The memory of each shard, in bytes. Memtables and caches share it.
    pub memory: usize,
    /// Flushes and compactions that the driver requests in one round, in addition to the engine's
    /// own.
    pub maintenance: u32,
    /// The largest number of sstable files that each shard keeps open; 0 for many.
    pub open_files: usize,
    /// The configuration of the querier cache, a number below [`QUERIER_CACHES`]. `None`: chosen by
    /// the seed.
    pub queriers: Option<u64>,
}

impl Default for Variant {
    fn default() -> Self {
        Variant { kind: None, memory: 4 << 20, maintenance: 6, open_files: 0, queriers: None }
    }
}

/// The configuration of an incarnation.
#[derive(Clone, Debug)]
pub struct Incarnation {
    /// The seed of all choices of the clients.
    pub seed: u64,
    /// Shards of the node.
    pub shards: usize,
    /// When writes are acknowledged: the sync mode of the commitlog.
    pub sync: SyncMode,
    /// Rounds of work.
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

/// The state of an incarnation, or how it ended.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Progress {
    /// The node runs.
    #[default]
    Running,
    /// The node did not start, for this reason.
    Refused(String),
    /// The node did its work and stopped.
    Ended,
    /// The node stopped because its commitlog failed, as it must.
    Stopped(String),
    /// A promise is broken.
    Broken(String),
    /// A statement failed. The run has failed, unless the test injected a fault.
    Failed(String),
}

/// The state that the clients, the node's shards and the driver share.
pub struct Shared {
    /// The states that the table may be in.
    pub oracle: RefCell<Oracle>,
    /// The state of the present incarnation.
    pub progress: RefCell<Progress>,
    /// Statements that begin before this time may fail. Microseconds since 1970.
    pub trouble_until: Cell<i64>,
    /// Reads may fail until then, too.
    pub reads_may_fail: Cell<bool>,
    /// The errors of statements that were allowed to fail.
    pub failures: RefCell<Vec<String>>,
    /// The number of acknowledged writes.
    pub acknowledged: Cell<u32>,
    /// The rows that were read last, before the node stopped.
    pub last_seen: RefCell<BTreeMap<i32, Vec<SeenRow>>>,
    /// Writes begun by each client. A client's values do not depend on the pace of the others.
    values: [Cell<i32>; CLIENTS],
    telling: bool,
    round: Cell<u32>,
    working: Cell<usize>,
    ending: Cell<bool>,
}

impl Shared {
    /// The state for a new table. Power losses may lose acknowledged writes that are younger than
    /// `window`.
    pub fn new(window: Option<Duration>) -> Rc<Self> {
        Rc::new(Shared {
            oracle: RefCell::new(Oracle::new(0..PARTITIONS, window)),
            progress: RefCell::default(),
            trouble_until: Cell::new(i64::MIN),
            reads_may_fail: Cell::new(false),
            failures: RefCell::default(),
            acknowledged: Cell::new(0),
            last_seen: RefCell::default(),
            values: Default::default(),
            telling: std::env::var_os("TELL").is_some(),
            round: Cell::new(0),
            working: Cell::new(0),
            ending: Cell::new(false),
        })
    }

    /// An independent copy.
    pub fn fork(&self) -> Rc<Self> {
        let fork = Shared::new(None);
        *fork.oracle.borrow_mut() = self.oracle.borrow().clone();
        fork.acknowledged.set(self.acknowledged.get());
        for (own, value) in fork.values.iter().zip(&self.values) {
            own.set(value.get());
        }
        fork
    }

    /// Resets what belongs to one incarnation, before the next one.
    pub fn reset(&self) {
        *self.progress.borrow_mut() = Progress::Running;
        self.round.set(0);
        self.working.set(0);
        self.ending.set(false);
    }

    /// Prints a step of the scenario to stderr, if the environment has `TELL=1`.
    pub fn tell(&self, what: impl FnOnce() -> String) {
        if self.telling {
            eprintln!("{}", what());
        }
    }

    /// Records the first failure.
    fn note(&self, progress: Progress) {
        let mut now = self.progress.borrow_mut();
        if *now == Progress::Running {
            *now = progress;
        }
    }

    fn is_running(&self) -> bool {
        *self.progress.borrow() == Progress::Running
    }

    /// Judges a failed statement. Returns true if it was allowed to fail.
    fn excuse(&self, begun: i64, why: String) -> bool {
        if begun <= self.trouble_until.get() {
            self.failures.borrow_mut().push(why);
            return true;
        }
        self.note(Progress::Failed(why));
        false
    }
}

impl Incarnation {
    fn rng(&self, parts: [u64; 2]) -> SmallRng {
        let mixed = parts.iter().fold(self.seed, |mixed, part| mixed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ part);
        SmallRng::seed_from_u64(mixed)
    }

    /// The main future of each shard.
    pub async fn run(self, shard: ShardId, shared: Rc<Shared>) {
        let clients: Vec<_> = (0..CLIENTS)
            .filter(|client| client % self.shards == shard.0 as usize)
            .map(|client| rt::task::spawn(self.clone().client(client, shared.clone())))
            .collect();
        rt::task::spawn(stop_with_the_log(shared.clone())).detach();
        if shard == ShardId(0) {
            match stack::start(*LAYERS, self.config()).await {
                Err(error) => shared.note(Progress::Refused(error.to_string())),
                Ok(_stack) => match self.lead(&shared).await {
                    Err(progress) => shared.note(progress),
                    Ok(()) => {
                        // A failed stop is not an error here. The next incarnation checks the
                        // contents of the disk.
                        let _ = stack::stop(*LAYERS).await;
                        shared.note(Progress::Ended);
                    }
                },
            }
            shared.ending.set(true);
        }
        for client in clients {
            client.await.unwrap_or_default();
        }
    }

    /// Runs on shard 0: checks the table after the start, then leads through the rounds.
    async fn lead(&self, shared: &Rc<Shared>) -> Result<(), Progress> {
        let mut rng = self.rng([1, 0]);
        let settled = self.settle(&mut rng, shared).await;
        settled?;
        for round in 1..=self.rounds {
            if self.globals || !shared.oracle.borrow().shape().exists {
                self.global(&mut rng, shared).await;
            }
            if shared.oracle.borrow().shape().exists {
                shared.working.set(CLIENTS);
                shared.round.set(round);
                let mut maintenance = 0;
                while shared.working.get() > 0 {
                    if maintenance < self.variant.maintenance {
                        self.maintain(&mut rng, shared).await;
                        maintenance += 1;
                    }
                    rt::time::sleep(Duration::from_millis(rng.gen_range(1..20))).await;
                }
            }
            if !shared.is_running() {
                // The failure is recorded already.
                std::future::pending::<()>().await;
            }
        }
        // Checks the whole table again, after everything that was done in this incarnation.
        self.wait_for_calm(shared).await;
        if shared.oracle.borrow().shape().exists {
            let (found, now) = read_all(&mut rng, &shared.oracle).await.map_err(Progress::Failed)?;
            for pk in 0..PARTITIONS {
                let found = found.get(&pk).map_or(&[][..], Vec::as_slice);
                shared.oracle.borrow().check(pk, found, now).map_err(Progress::Broken)?;
            }
            shared.last_seen.replace(found);
        }
        permits_returned().await.map_err(Progress::Broken)
    }

    async fn wait_for_calm(&self, shared: &Shared) {
        while rt::time::wall_micros() <= shared.trouble_until.get() {
            rt::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Reads the table after a start. Its state must be possible.
    async fn settle(&self, rng: &mut SmallRng, shared: &Shared) -> Result<(), Progress> {
        execute(KEYSPACE).await.map_err(Progress::Failed)?;
        let shape = read_shape().await.map_err(Progress::Failed)?;
        let (found, now) = match shape.exists {
            true => read_all(rng, &shared.oracle).await.map_err(Progress::Failed)?,
            false => Default::default(),
        };
        rt::sim::trace(&format!("settles with {found:?}"));
        shared.tell(|| format!("{} settles: {shape:?}", rt::time::wall_micros()));
        shared.oracle.borrow_mut().settle(shape, &found, now).map_err(Progress::Broken)
    }

    async fn global(&self, rng: &mut SmallRng, shared: &Shared) {
        let Some(what) = global(rng, shared.oracle.borrow().shape()) else { return };
        // The clocks of the shards may differ by some microseconds.
        rt::time::sleep(Duration::from_millis(2)).await;
        let begun = rt::time::wall_micros();
        shared.oracle.borrow_mut().begin_global(what);
        let statement = global_statement(rng, what, self.variant.kind);
        shared.tell(|| format!("{begun} {statement}"));
        match execute(&statement).await {
            Ok(()) => shared.oracle.borrow_mut().global_acknowledged(),
            Err(why) => {
                shared.tell(|| format!("it failed: {why}"));
                if shared.excuse(begun, why) {
                    match read_shape().await {
                        Ok(shape) => {
                            if let Err(why) = shared.oracle.borrow_mut().global_failed(shape) {
                                shared.note(Progress::Broken(why));
                            }
                        }
                        Err(why) => shared.note(Progress::Failed(why)),
                    }
                }
            }
        }
        rt::time::sleep(Duration::from_millis(2)).await;
    }

    /// Flushes or compacts at random, while the clients work.
    async fn maintain(&self, rng: &mut SmallRng, shared: &Shared) {
        let begun = rt::time::wall_micros();
        let choice = rng.gen_range(0..8);
        let done = match choice {
            0..=4 => {
                let number = shared.oracle.borrow().number();
                let done = on_every_shard(|engine| async move { engine.flush(None).await }).await;
                if done.is_ok() {
                    shared.oracle.borrow_mut().saved(number);
                }
                done
            }
            5 => {
                on_every_shard(|engine| async move {
                    let mut tables = engine.tables();
                    tables.sort();
                    for table in tables {
                        engine.compact_major(table).await?;
                    }
                    Ok(())
                })
                .await
            }
            _ => Ok(()),
        };
        shared.tell(|| match choice {
            0..=4 => format!("{begun}..{} flush -> {done:?}", rt::time::wall_micros()),
            5 => format!("{begun}..{} compaction -> {done:?}", rt::time::wall_micros()),
            _ => "no maintenance".into(),
        });
        if let Err(why) = done {
            shared.excuse(begun, format!("flush or compaction: {why}"));
        }
    }

    async fn client(self, client: usize, shared: Rc<Shared>) {
        let partitions: Vec<i32> = (0..PARTITIONS).filter(|pk| *pk as usize % CLIENTS == client).collect();
        let mut done = 0;
        while !shared.ending.get() {
            if shared.round.get() == done {
                rt::time::sleep(Duration::from_millis(1)).await;
                continue;
            }
            done = shared.round.get();
            let mut rng = self.rng([2 + client as u64, u64::from(done)]);
            // Reads have their own random numbers, because a repeated read draws more of them.
            let mut reading = self.rng([100 + client as u64, u64::from(done)]);
            for _ in 0..self.steps {
                let shape = shared.oracle.borrow().shape();
                let counter = &shared.values[client];
                counter.set(counter.get() + 1);
                let value = counter.get() * CLIENTS as i32 + client as i32;
                let step = step(&mut rng, &partitions, shape, value, self.expiring);
                if !self.carry_out(&mut reading, step, &shared).await {
                    break;
                }
            }
            shared.working.set(shared.working.get() - 1);
        }
    }

    /// Executes a step. Returns false if the client must not continue in this round.
    async fn carry_out(&self, rng: &mut SmallRng, step: Step, shared: &Shared) -> bool {
        let begun = rt::time::wall_micros();
        match step {
            Step::Wait(millis) => rt::time::sleep(Duration::from_millis(millis)).await,
            Step::Read(pk) => match read_partition(rng, pk, &shared.oracle).await {
                Ok((found, now)) => {
                    if let Err(why) = shared.oracle.borrow().check(pk, &found, now) {
                        shared.note(Progress::Broken(why));
                        return false;
                    }
                }
                // A read needs no disk space, so it must succeed.
                Err(why) if !shared.reads_may_fail.get() => {
                    shared.note(Progress::Failed(why));
                    return false;
                }
                Err(why) => return shared.excuse(begun, why),
            },
            Step::Write(writes) => {
                if writes.iter().any(|(_, change): &(i32, Change)| change.expires()) {
                    fresh_second().await;
                }
                let second = rt::time::wall_seconds();
                writes.iter().for_each(|(pk, change)| shared.oracle.borrow_mut().begin(*pk, change, second));
                let done = execute(&statement(&writes)).await;
                shared.tell(|| {
                    let (at, shard) = (rt::time::wall_micros(), rt::shard::this());
                    format!("{at} shard {shard}: {writes:?} -> {done:?}")
                });
                let (second, at) = (rt::time::wall_seconds(), rt::time::wall_micros());
                let mut oracle = shared.oracle.borrow_mut();
                match done {
                    Ok(()) => {
                        writes.iter().for_each(|(pk, _)| oracle.acknowledged(*pk, second, at));
                        shared.acknowledged.set(shared.acknowledged.get() + 1);
                    }
                    Err(why) => {
                        writes.iter().for_each(|(pk, _)| oracle.failed(*pk, second));
                        drop(oracle);
                        shared.excuse(begun, why);
                        return false;
                    }
                }
            }
        }
        true
    }
}

/// The checker `permits_returned`. At the end no permit, memory or queue entry is held, and the
/// querier cache is empty after its queriers are dropped.
pub async fn permits_returned() -> Result<(), String> {
    let results = rt::shard::call_all(|| async {
        let replica = LAYERS.replica.get();
        replica.forget_queriers(None);
        let metrics = replica.metrics();
        let left = metrics.permits.iter().any(|own| own.count > 0 || own.memory > 0 || own.waiting > 0);
        let (queriers, shard) = (metrics.queriers, rt::shard::this());
        if left || queriers.population > 0 || queriers.memory > 0 {
            return Err(format!("shard {shard}: permits or queriers are left: {metrics:?}"));
        }
        if queriers.lookups < queriers.misses + queriers.drops {
            return Err(format!("shard {shard}: the querier cache's counters do not add up: {queriers:?}"));
        }
        Ok(())
    });
    results.await.into_iter().collect()
}

/// The number of querier cache configurations.
pub const QUERIER_CACHES: u64 = 5;

/// The checker `querier_cache_is_invisible`: incarnations have different configurations of the
/// querier cache, and their reads are checked alike.
fn replica_config(number: u64, memory: usize) -> ReplicaConfig {
    let usual = ReplicaConfig::with_memory(memory);
    match number % QUERIER_CACHES {
        0 => ReplicaConfig { querier_cache: false, ..usual },
        1 => ReplicaConfig { user_reads: 1, ..usual },
        2 => ReplicaConfig { querier_cache_ttl: Duration::from_millis(1), ..usual },
        3 => ReplicaConfig { querier_cache_memory_fraction: 0.004, ..usual },
        _ => usual,
    }
}

async fn on_every_shard<Fut>(work: impl Fn(Rc<Engine>) -> Fut + Copy + Send + 'static) -> Result<(), String>
where
    Fut: Future<Output = Result<(), EngineError>> + 'static,
{
    let results =
        rt::shard::call_all(move || async move { work(LAYERS.engine.get()).await.map_err(|error| error.to_string()) });
    results.await.into_iter().collect()
}

impl Incarnation {
    fn config(&self) -> StackConfig {
        StackConfig {
            sync: self.sync,
            // Small, so that segments and the limit of the log matter.
            segment_size: 8 << 10,
            log_size_limit: 48 << 10,
            disk_reserve: 64 << 10,
            page_limits: PageLimits { bytes: 300, ..PageLimits::default() },
            replica: replica_config(self.variant.queriers.unwrap_or(self.seed), self.variant.memory),
            open_files: self.variant.open_files,
            ..StackConfig::new("/node", "sim", Ipv4Addr::LOCALHOST.into(), self.variant.memory)
        }
    }
}

/// Ends the node when its commitlog fails, as the server does.
async fn stop_with_the_log(shared: Rc<Shared>) {
    let engine = loop {
        match LAYERS.engine.try_get() {
            Some(engine) => break engine,
            None => rt::time::sleep(Duration::from_millis(5)).await,
        }
    };
    let why = engine.failure().await;
    shared.note(Progress::Stopped(why.to_string()));
}
