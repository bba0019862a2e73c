//! A shard's identity, its services, and calls to other shards.
//!
//! A call to the running shard is a plain await, without a task or a message. A call to another
//! shard is posted with the turn's other mail. Dropping its future cancels the work at its next
//! yield.

use crate::ctx;
use crate::executor;
use crate::group::Group;
pub use crate::machine::{Machine, MachineConfig, MachineHandle, Remote, ShardStopped};
use crate::mailbox::{Call, Mail, Message};
pub use per_shard::PerShard;
use std::fmt;
use std::future::Future;
use std::panic::Location;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

mod per_shard;

/// The number of a shard within its node, from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ShardId(pub u16);

impl fmt::Display for ShardId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The running shard.
#[inline]
pub fn this() -> ShardId {
    ctx::with(|c| c.shard)
}

/// The number of shards of the machine.
#[inline]
pub fn count() -> usize {
    ctx::with(|c| c.mail.mailboxes().len())
}

/// Fires when the machine is asked to stop. The shard's main future must then finish.
pub fn stopping() -> crate::sync::Cancel {
    ctx::with(|c| c.stop.clone())
}

/// A handle for threads that are not shards.
pub fn remote() -> Remote {
    ctx::with(|c| Remote::new(c.mail.mailboxes().clone()))
}

/// Runs `f` on shard `to`, in the group of the running task, and returns the output of its future.
///
/// Never resolves if shard `to` is gone (the machine stops all shards together). The future must be
/// awaited on the shard that created it.
#[track_caller]
pub fn call<R, Fut>(to: ShardId, f: impl FnOnce() -> Fut + Send + 'static) -> impl Future<Output = R>
where
    R: Send + 'static,
    Fut: Future<Output = R> + 'static,
{
    let location = Location::caller();
    async move {
        let ctx = ctx::current();
        if to == ctx.shard {
            drop(ctx);
            // Boxed, so that a call to another shard does not have the size of the work's future.
            return Box::pin(f()).await;
        }
        assert!((to.0 as usize) < ctx.mail.mailboxes().len(), "no shard {to} on this machine");
        Mail::room(ctx.clone(), to).await;
        ctx.counters.hops_sent.add(1);
        let call = Arc::new(Packet {
            location,
            group: ctx.executor.group(),
            state: Mutex::new(PacketState { work: Some(f), reply: None, caller: None, worker: None }),
            cancelled: AtomicBool::new(false),
        });
        ctx.mail.send(to, Message::Run { from: ctx.shard, call: call.clone() });
        drop(ctx);
        Reply { call, finished: false }.await
    }
}

/// Runs `f` on every shard concurrently. The results are in the order of the shard ids.
pub async fn call_all<R, Fut>(f: impl Fn() -> Fut + Clone + Send + 'static) -> Vec<R>
where
    R: Send + 'static,
    Fut: Future<Output = R> + 'static,
{
    let calls = (0..count() as u16).map(|shard| {
        let f = f.clone();
        call(ShardId(shard), f)
    });
    futures_util::future::join_all(calls).await
}

/// The state of one call, shared by both sides.
struct Packet<F, R> {
    location: executor::SpawnLocation,
    group: Group,
    state: Mutex<PacketState<F, R>>,
    cancelled: AtomicBool,
}

struct PacketState<F, R> {
    work: Option<F>,
    reply: Option<R>,
    caller: Option<Waker>,
    /// Wakes the work, so that it sees its cancellation.
    worker: Option<Waker>,
}

impl<F, R> Packet<F, R> {
    fn state(&self) -> MutexGuard<'_, PacketState<F, R>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<F, Fut, R> Call for Packet<F, R>
where
    F: FnOnce() -> Fut + Send + 'static,
    Fut: Future<Output = R> + 'static,
    R: Send + 'static,
{
    fn run(self: Arc<Self>, from: ShardId) {
        let Some(work) = self.state().work.take() else { return };
        if self.cancelled.load(Ordering::Acquire) {
            return;
        }
        let (location, group) = (self.location, self.group);
        let shard = ctx::current();
        executor::start_mail(&shard, location, group, async move {
            let Some(reply) = (Cancellable { call: &*self, work: work(), registered: false }).await else { return };
            self.state().reply = Some(reply);
            ctx::with(|c| c.mail.send(from, Message::Done(self.clone())));
        });
    }

    fn location(&self) -> executor::SpawnLocation {
        self.location
    }

    fn group(&self) -> Group {
        self.group
    }

    fn done(&self) {
        let caller = self.state().caller.take();
        if let Some(caller) = caller {
            caller.wake();
        }
    }
}

pin_project_lite::pin_project! {
    /// The work of a call. Ends early when the caller cancels it.
    struct Cancellable<'a, F, R, Fut> {
        call: &'a Packet<F, R>,
        #[pin]
        work: Fut,
        registered: bool,
    }
}

impl<F, R, Fut: Future<Output = R>> Future for Cancellable<'_, F, R, Fut> {
    type Output = Option<R>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<R>> {
        let this = self.project();
        if this.call.cancelled.load(Ordering::Acquire) {
            return Poll::Ready(None);
        }
        if let Poll::Ready(out) = this.work.poll(cx) {
            return Poll::Ready(Some(out));
        }
        if !std::mem::replace(this.registered, true) {
            this.call.state().worker = Some(cx.waker().clone());
            if this.call.cancelled.load(Ordering::Acquire) {
                return Poll::Ready(None);
            }
        }
        Poll::Pending
    }
}

/// The caller's side: waits for the reply; cancels the call if dropped before.
struct Reply<F, R> {
    call: Arc<Packet<F, R>>,
    finished: bool,
}

impl<F, R> Future for Reply<F, R> {
    type Output = R;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<R> {
        let this = self.get_mut();
        let mut state = this.call.state();
        if let Some(reply) = state.reply.take() {
            this.finished = true;
            return Poll::Ready(reply);
        }
        state.caller = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl<F, R> Drop for Reply<F, R> {
    fn drop(&mut self) {
        if self.finished {
            return;
        }
        self.call.cancelled.store(true, Ordering::Release);
        let worker = self.call.state().worker.take();
        if let Some(worker) = worker {
            worker.wake();
        }
    }
}
