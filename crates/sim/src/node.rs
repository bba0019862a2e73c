//! A node in the simulated world: started on a disk, driven from inside, killed by power loss, started again.

use crate::checker::Progress;
use crate::workload::{Op, READ_ALL, SCHEMA, State};
use cluster::coordinator::PageLimits;
use cluster::metadata::NodeInfo;
use cql::api::{AnswerKind, ClientState, QueryParams, Rows};
use cql::{Answer, Processor};
use engine::Engine;
use engine::commitlog::SyncMode;
use model::HostId;
use rt::ShardId;
use rt::sim::{Disk, World};
use rt::time::Duration;
use server::stack::{self, StackConfig};
use std::cell::{Cell, RefCell};
use std::net::{IpAddr, Ipv4Addr};
use std::rc::Rc;

/// Simulated time after which a run is considered stuck.
const PATIENCE: Duration = Duration::from_secs(600);

/// What a run is about.
#[derive(Clone)]
pub struct Run {
    /// Drives every choice.
    pub seed: u64,
    /// Shards of the node.
    pub shards: usize,
    /// When writes are acknowledged.
    pub sync: SyncMode,
    /// What to do.
    pub ops: Rc<Vec<Op>>,
}

/// What came out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// How far it came.
    pub progress: Progress,
    /// What was read at the end, if it came that far.
    pub seen: Option<State>,
    /// The trace of everything that happened.
    pub trace_hash: u64,
}

impl Run {
    /// Runs the operations from the beginning on a node on `disk`, until they end or the power goes.
    pub fn operate(&self, disk: &Disk) -> Outcome {
        self.in_world(disk, self.seed, self.ops.clone())
    }

    /// Starts a node on what is left on `disk` and reads everything.
    pub fn read_back(&self, disk: &Disk) -> Outcome {
        self.in_world(disk, self.seed ^ 0x5eed, Rc::default())
    }

    fn in_world(&self, disk: &Disk, seed: u64, ops: Rc<Vec<Op>>) -> Outcome {
        let progress = Rc::new(Cell::new(Progress::default()));
        let seen = Rc::new(RefCell::new(None));
        let failure = Rc::new(RefCell::new(None::<String>));
        let mut world = World::new(seed);
        let (run, shared) = (self.clone(), (progress.clone(), seen.clone(), failure.clone()));
        world.node("node", self.shards, disk, move |shard| {
            let (run, ops, (progress, seen, failure)) = (run.clone(), ops.clone(), shared.clone());
            async move {
                if shard != ShardId(0) {
                    rt::shard::stopping().cancelled().await;
                    return;
                }
                match run.drive(&ops, &progress).await {
                    Ok(state) => *seen.borrow_mut() = Some(state),
                    Err(why) => *failure.borrow_mut() = Some(why),
                }
            }
        });
        let mut elapsed = Duration::ZERO;
        while disk.is_on() && seen.borrow().is_none() && failure.borrow().is_none() {
            world.step();
            elapsed += Duration::from_millis(1);
            assert!(elapsed < PATIENCE, "seed {seed}: the node makes no progress: {:?}", progress.get());
        }
        // Where the power went, statements may have failed on their way down: that is no failure of the node.
        if disk.is_on()
            && let Some(why) = failure.take()
        {
            panic!("seed {seed}: {why}");
        }
        Outcome { progress: progress.get(), seen: seen.take(), trace_hash: world.trace_hash() }
    }

    async fn drive(&self, ops: &[Op], progress: &Cell<Progress>) -> Result<State, String> {
        stack::start(config(self.sync)).await.map_err(|error| error.to_string())?;
        for statement in SCHEMA {
            execute(statement).await?;
        }
        for op in ops {
            let now = progress.get();
            progress.set(Progress { attempted: now.acked + 1, ..now });
            match op {
                Op::Flush => on_every_shard(|engine| async move { engine.flush(None).await }).await?,
                Op::Compact => {
                    on_every_shard(|engine| async move {
                        for table in engine.tables() {
                            engine.compact_major(table).await?;
                        }
                        Ok(())
                    })
                    .await?;
                }
                statement => drop(execute(&statement.statement().expect("it is one")).await?),
            }
            let now = progress.get();
            progress.set(Progress { acked: now.attempted, attempted: now.attempted });
        }
        read_all().await
    }
}

async fn on_every_shard<Fut>(work: impl Fn(Rc<Engine>) -> Fut + Copy + Send + 'static) -> Result<(), String>
where
    Fut: Future<Output = Result<(), engine::EngineError>> + 'static,
{
    let results = rt::shard::call_all(move || async move {
        work(rt::shard::service::<Engine>()).await.map_err(|error| error.to_string())
    });
    results.await.into_iter().collect()
}

fn config(sync: SyncMode) -> StackConfig {
    let local = IpAddr::V4(Ipv4Addr::LOCALHOST);
    StackConfig {
        data_dir: "/node".into(),
        info: NodeInfo {
            host_id: HostId::from_bytes([0; 16]),
            cluster_name: "sim".into(),
            shards: 0,
            datacenter: "datacenter1".into(),
            rack: "rack1".into(),
            rpc_address: local,
            listen_address: local,
            broadcast_address: local,
            native_port: 9042,
            shard_aware_port: 19042,
            storage_port: 7000,
            release_version: "4.1.0".into(),
            started_micros: rt::time::wall_micros(),
        },
        memory_per_shard: 8 << 20,
        sync,
        segment_size: 256 << 10,
        log_size_limit: 2 << 20,
        ignore_log_corruption: false,
        auto_snapshot: false,
        auto_compaction: true,
        page_limits: PageLimits { bytes: 300, ..PageLimits::default() },
        tombstone_warn_threshold: u64::MAX,
    }
}

fn client() -> Rc<ClientState> {
    Rc::new(ClientState {
        keyspace: RefCell::new(None),
        role: RefCell::new(None),
        address: None,
        tablets_routing: Cell::new(false),
        cancel: rt::sync::Cancel::new(),
    })
}

async fn ask(text: &str, params: &QueryParams) -> Result<Answer, String> {
    let processor = rt::shard::service::<Processor>();
    processor.query(&client(), text, params).await.map_err(|error| format!("{text}: {error}"))
}

async fn execute(text: &str) -> Result<Answer, String> {
    ask(text, &QueryParams::default()).await
}

async fn read_all() -> Result<State, String> {
    let mut params = QueryParams { page_size: Some(3), ..QueryParams::default() };
    let mut state = State::new();
    loop {
        let answer = ask(READ_ALL, &params).await?;
        let AnswerKind::Rows(rows) = answer.kind else { return Err("no rows".into()) };
        for row in decode(&rows) {
            let [pk, ck, v] = row[..] else { return Err("three columns".into()) };
            let key = (pk.ok_or("null pk")?, ck.ok_or("null ck")?);
            let v = v.ok_or_else(|| format!("row {key:?} is half there"))?;
            if state.insert(key, v).is_some() {
                return Err(format!("row {key:?} came twice"));
            }
        }
        match rows.paging_state {
            Some(next) => params.paging_state = Some(next),
            None => return Ok(state),
        }
    }
}

fn decode(rows: &Rows) -> Vec<Vec<Option<i32>>> {
    let mut rest = &rows.body[..];
    let mut number = || {
        let (head, tail) = rest.split_first_chunk::<4>().expect("a length or a value");
        rest = tail;
        i32::from_be_bytes(*head)
    };
    (0..rows.count)
        .map(|_| rows.metadata.columns.iter().map(|_| (number() >= 0).then(&mut number)).collect())
        .collect()
}
