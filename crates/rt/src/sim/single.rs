//! One simulated shard without a network, for tests of everything below the cluster.

use super::{Disk, EPOCH_NANOS, SimShard, Trace, derive};
use crate::clock::Clock;
use crate::ctx::{self, Ctx};
use crate::executor::{self, Executor, RunState, ShardFuture, Tuning};
use crate::fs::Io;
use crate::governor::Governor;
use crate::group::Group;
use crate::machine::mailboxes;
use crate::mailbox::{Mail, Mailbox};
use crate::shard::ShardId;
use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::{Future, poll_fn};
use std::panic::Location;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use tokio::time::Instant;

/// The disk lost its power before the future ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PowerLost;

impl fmt::Display for PowerLost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the simulated disk lost its power")
    }
}

impl std::error::Error for PowerLost {}

/// Creates the context of a simulated shard that starts now. Must be called inside its tokio
/// runtime.
pub(super) fn context(
    seed: u64,
    shard: ShardId,
    mailboxes: Arc<[Mailbox]>,
    disk: &Disk,
    sim: SimShard,
    epoch_nanos: i128,
) -> Rc<Ctx> {
    let (rng, uuid_tail) = Ctx::seeded(seed);
    Rc::new(Ctx {
        shard,
        rng: RefCell::new(rng),
        last_time_uuid: Cell::new(0),
        uuid_tail,
        services: RefCell::default(),
        executor: Executor::new(Tuning::default()),
        governor: Governor::new(),
        mail: Mail::new(shard, mailboxes),
        io: Io::Disk { disk: disk.clone(), boot: disk.boot() },
        counters: Default::default(),
        backlog: Default::default(),
        offload: crate::offload::permit(),
        clock: Clock::simulated(epoch_nanos, Instant::now(), sim.skew.clone()),
        stop: Default::default(),
        simulated: Some(sim),
    })
}

fn runtime(seed: u64) -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_time().start_paused(true);
    #[cfg(tokio_unstable)]
    builder.rng_seed(tokio::runtime::RngSeed::from_bytes(&seed.to_le_bytes()));
    #[cfg(not(tokio_unstable))]
    let _ = seed;
    match builder.build() {
        Ok(runtime) => runtime,
        Err(error) => panic!("cannot make a runtime: {error}"),
    }
}

/// Runs `f` as the main future of one simulated shard on `disk`. Time is simulated, and jumps when
/// all tasks wait. Panics if the disk loses its power first: see [`run`].
#[track_caller]
pub fn block_on<F: Future>(seed: u64, disk: &Disk, f: F) -> F::Output {
    match run(seed, disk, f) {
        Ok(output) => output,
        Err(PowerLost) => panic!("the simulated disk lost its power (seed {seed})"),
    }
}

/// Like [`block_on`], but when the disk loses its power, everything on the shard is dropped at
/// once. The next run on the same disk finds what survived. A run that ends keeps the page cache,
/// like a killed process. `disk.lose_power()` between two runs drops that too.
#[track_caller]
#[allow(unsafe_code)]
pub fn run<F: Future>(seed: u64, disk: &Disk, f: F) -> Result<F::Output, PowerLost> {
    let location = Location::caller();
    let run_state = RunState::new(1);
    let output = Cell::new(None);
    disk.start_machine();
    runtime(seed).block_on(async {
        let sim =
            SimShard { node: "single".into(), trace: Trace::default(), skew: Rc::default(), cuts: Default::default() };
        let ctx = context(derive(seed, &[1]), ShardId(0), mailboxes(1), disk, sim, EPOCH_NANOS);
        let mut shard = ShardFuture::new(ctx.clone(), run_state.clone());
        let main = async {
            output.set(Some(f.await));
            run_state.running.store(0, Ordering::Release);
        };
        ctx::enter(&ctx, || {
            // SAFETY: `shard` is declared after everything `main` borrows and drops all tasks when
            // it is dropped, even when a panic unwinds through here; its context was made on this
            // thread.
            let (work, task) = unsafe { executor::make(&ctx, location, Group::Statement, main) };
            task.detach();
            work.schedule();
        });
        drop(ctx);
        poll_fn(|cx| match Pin::new(&mut shard).poll(cx) {
            Poll::Pending if !disk.is_on() => Poll::Ready(()),
            other => other,
        })
        .await;
    });
    output.into_inner().ok_or(PowerLost)
}
