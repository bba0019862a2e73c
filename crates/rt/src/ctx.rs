//! The context of a shard: the parts of the machine that a task can reach without an argument.
//!
//! It is a task-local, never a thread-local, so that many simulated shards can share a thread. The
//! executor sets it once per turn, around all polls of that turn. Access costs one thread-local
//! read.

use crate::backlog::Backlog;
use crate::clock::Clock;
use crate::executor::Executor;
use crate::fs::Io;
use crate::governor::Governor;
use crate::mailbox::Mail;
use crate::metrics::Counters;
use crate::shard::ShardId;
use crate::sync::Cancel;
use rand::rngs::SmallRng;
use rand::{RngCore, SeedableRng};
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use tokio::sync::Semaphore;

tokio::task_local! {
    static CTX: Rc<Ctx>;
}

/// One shard's context.
pub(crate) struct Ctx {
    pub shard: ShardId,
    pub rng: RefCell<SmallRng>,
    pub last_time_uuid: Cell<u64>,
    /// Clock sequence and node of this shard's time UUIDs.
    pub uuid_tail: [u8; 8],
    /// Services by the number of their [`crate::shard::PerShard`]. Ordered, so that a simulated
    /// shard drops them in the same order in every run.
    pub services: RefCell<BTreeMap<u32, Rc<dyn Any>>>,
    pub executor: Executor,
    pub governor: Governor,
    pub mail: Mail,
    pub io: Io,
    pub counters: Counters,
    pub backlog: Rc<Backlog>,
    /// The permit of the one computation that runs on a helper thread.
    pub offload: Arc<Semaphore>,
    pub clock: Clock,
    /// Fired when the machine is asked to stop.
    pub stop: Cancel,
    #[cfg(feature = "sim")]
    pub simulated: Option<crate::sim::SimShard>,
}

impl Ctx {
    /// The generator and the UUID tail of `seed`.
    pub fn seeded(seed: u64) -> (SmallRng, [u8; 8]) {
        let mut rng = SmallRng::seed_from_u64(seed);
        let mut tail = [0u8; 8];
        rng.fill_bytes(&mut tail);
        // The variant bits of RFC 9562, and the multicast bit that marks a node id as random.
        tail[0] = (tail[0] & 0x3F) | 0x80;
        tail[2] |= 0x01;
        (rng, tail)
    }
}

/// Runs `f` with the running shard's context. Panics outside a shard: that is a bug of the caller.
#[inline]
pub(crate) fn with<R>(f: impl FnOnce(&Rc<Ctx>) -> R) -> R {
    match CTX.try_with(f) {
        Ok(out) => out,
        Err(_) => panic!("not on a shard: use rt::block_on, Machine::start or rt::sim"),
    }
}

/// Like [`with`], but returns `None` outside a shard.
#[inline]
pub(crate) fn try_with<R>(f: impl FnOnce(&Rc<Ctx>) -> R) -> Option<R> {
    CTX.try_with(f).ok()
}

/// The running shard's context.
#[inline]
pub(crate) fn current() -> Rc<Ctx> {
    with(Rc::clone)
}

/// Runs `f` in the context of a shard.
pub(crate) fn enter<R>(ctx: &Rc<Ctx>, f: impl FnOnce() -> R) -> R {
    CTX.sync_scope(ctx.clone(), f)
}
