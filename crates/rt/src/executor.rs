//! The executor of one shard: a run queue of `!Send` tasks, driven in turns by one tokio task.
//!
//! A turn takes the mail. It then polls ready tasks until none is left, or until the turn's time or
//! tokio's cooperative budget is spent. Finally it posts outgoing mail, submits I/O and takes
//! completions. Only then does the thread return to tokio's reactor. Each scheduling group has its
//! own queue; [`FairClock`] decides which is next. While no urgent task is ready, a turn polls at
//! most one other task, so that sockets are polled in between.
//!
//! Invariants: tasks of a shard are polled and dropped only on its thread, with its context set.
//! Dropping the executor drops every task. With a simulated clock, no decision may depend on
//! measured time.

use crate::ctx::{self, Ctx};
use crate::fair_clock::FairClock;
use crate::group::Group;
use crate::preemption::Preemption;
use crate::stall_log::{StallLine, StallLog};
use async_task::Runnable;
use futures_util::task::AtomicWaker;
use pin_project_lite::pin_project;
use rand::Rng;
use slab::Slab;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::panic::Location;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::time::Instant;

pub(crate) type SpawnLocation = &'static Location<'static>;
type Work = Runnable<TaskLabel>;

/// The label of a task.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TaskLabel {
    /// Where it was spawned.
    location: SpawnLocation,
    /// Its index in the list of live tasks of its shard.
    key: usize,
}

/// The maximum length of a turn, after which the reactor and the rings are polled.
const TURN: Duration = Duration::from_micros(250);
/// The maximum number of polls of a simulated turn, in which time does not pass while tasks run.
const SIMULATED_TURN_POLLS: u32 = 64;
/// The assumed cost of a poll where time is simulated.
const SIMULATED_POLL: Duration = Duration::from_micros(100);
/// The number of simulated polls that take one millisecond, so that a busy shard does not stop
/// simulated time.
const SIMULATED_POLLS_PER_MS: u32 = 4_000;
/// A poll longer than this counts as a stall.
const STALL: Duration = Duration::from_micros(500);

/// The tuning of a shard's scheduler.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tuning {
    /// Polls longer than this are logged.
    pub log_stalls_over: Duration,
    /// How long to poll the mailbox before sleeping; zero: not at all.
    pub poll: Duration,
    /// Whether other programs run on the shard's CPU.
    pub shares_cpu: bool,
}

impl Default for Tuning {
    fn default() -> Self {
        Self { log_stalls_over: Duration::from_millis(20), poll: Duration::ZERO, shares_cpu: false }
    }
}

/// The part of the executor that other threads may use.
#[derive(Default)]
pub(crate) struct Shared {
    injected: Mutex<VecDeque<Work>>,
    notified: AtomicBool,
    waker: AtomicWaker,
}

impl Shared {
    /// Makes the executor take a turn soon. Cheap if one is already due.
    pub fn notify(&self) {
        if !self.notified.swap(true, Ordering::AcqRel) {
            self.waker.wake();
        }
    }

    fn inject(&self, work: Work) {
        let mut queue = self.injected.lock().unwrap_or_else(PoisonError::into_inner);
        queue.push_back(work);
        drop(queue);
        self.notify();
    }
}

/// A task that is ready to be polled.
struct Ready {
    work: Work,
    /// When it became ready, in the executor's time (`Executor::now_nanos`).
    since: u64,
}

/// A task that has not ended.
struct Alive {
    waker: Waker,
    group: Cell<Group>,
}

/// The task that is being polled.
#[derive(Clone, Copy)]
struct Running {
    /// Its index in the list of live tasks; `None` for mail that is not a task yet.
    key: Option<usize>,
    group: Group,
}

/// The executor of a shard.
pub(crate) struct Executor {
    pub shared: Arc<Shared>,
    /// Ready tasks, by group.
    ready: [RefCell<VecDeque<Ready>>; Group::COUNT],
    pub clock: FairClock,
    active: RefCell<Slab<Alive>>,
    /// When the running poll began.
    pub poll_started: Cell<Option<Instant>>,
    running: Cell<Running>,
    /// Calls of `maybe_yield` in the running poll. The simulation measures the length of a poll by
    /// them.
    pub yields_asked: Cell<u32>,
    tuning: Tuning,
    /// None: the shard has its CPU for itself.
    preemption: Option<Preemption>,
    stall_log: StallLog,
    idle_since: Cell<Option<Instant>>,
    /// The shard's time since its start, as of the end of the last poll. It includes the time
    /// asleep from the next turn on.
    now_nanos: Cell<u64>,
}

impl Executor {
    pub fn new(tuning: Tuning) -> Self {
        Self {
            shared: Arc::default(),
            ready: Default::default(),
            clock: FairClock::new(),
            active: RefCell::default(),
            poll_started: Cell::new(None),
            running: Cell::new(Running { key: None, group: Group::Control }),
            yields_asked: Cell::new(0),
            tuning,
            preemption: if tuning.shares_cpu { Preemption::of_this_thread() } else { None },
            stall_log: StallLog::default(),
            idle_since: Cell::new(None),
            now_nanos: Cell::new(0),
        }
    }

    /// The group of the running poll.
    #[inline]
    pub fn group(&self) -> Group {
        self.running.get().group
    }

    /// Moves the running task to another group, from its next poll on. Returns its previous group.
    pub fn move_running_to(&self, group: Group) -> Group {
        let running = self.running.get();
        if let Some(alive) =
            running.key.and_then(|key| self.active.borrow().get(key).map(|alive| alive.group.replace(group)))
        {
            return alive;
        }
        running.group
    }

    /// The number of ready tasks of the group.
    pub fn queue_length(&self, group: Group) -> usize {
        self.ready[group as usize].borrow().len()
    }

    /// The key of the running task, unique among the live tasks of the shard.
    pub fn running_key(&self) -> Option<usize> {
        self.running.get().key
    }

    /// Appends `work` to its group's queue. For the running shard only.
    fn push(&self, ctx: &Ctx, work: Work) {
        let group = match self.active.borrow().get(work.metadata().key) {
            Some(alive) => alive.group.get(),
            None => unreachable!("a task that can be polled is alive"),
        };
        let now = self.now_nanos.get();
        self.ready[group as usize].borrow_mut().push_back(Ready { work, since: now });
        if self.clock.becomes_ready(group) {
            ctx.counters.groups[group as usize].ready_since.set(now);
        }
    }

    /// The next task, and its group. With `urgent_only`, `None` unless an urgent group has a ready
    /// task.
    fn pop(&self, ctx: &Ctx, urgent_only: bool) -> Option<(Work, Group)> {
        if urgent_only && !self.clock.is_urgent_ready() {
            return None;
        }
        let group = self.clock.next()?;
        let mut ready = self.ready[group as usize].borrow_mut();
        debug_assert!(!ready.is_empty(), "a group that is ready has a task to run");
        if !ctx.clock.is_real() && ready.len() > 1 {
            // Strict first-in first-out order would explore few interleavings.
            let mut rng = ctx.rng.borrow_mut();
            if rng.gen_ratio(1, 3) {
                let other = rng.gen_range(0..ready.len());
                ready.swap(0, other);
            }
        }
        let Ready { work, since } = ready.pop_front()?;
        let is_last = ready.is_empty();
        drop(ready);
        let now = self.now_nanos.get();
        ctx.counters.groups[group as usize].begins(now, since);
        if group == Group::Statement {
            ctx.governor.waited(now.saturating_sub(since));
        }
        if is_last {
            self.clock.becomes_idle(group);
        }
        Some((work, group))
    }

    fn take_injected(&self, ctx: &Ctx) {
        if self.shared.notified.swap(false, Ordering::AcqRel) {
            let injected = std::mem::take(&mut *self.shared.injected.lock().unwrap_or_else(PoisonError::into_inner));
            injected.into_iter().for_each(|work| self.push(ctx, work));
        }
    }

    /// Runs one turn. Returns true if it stopped early and needs another.
    fn turn(&self, ctx: &Rc<Ctx>) -> bool {
        let real = ctx.clock.is_real();
        let start = Instant::now();
        if let Some(since) = self.idle_since.take() {
            let idle = (start - since).as_nanos() as u64;
            ctx.counters.idle_nanos.add(idle);
            self.now_nanos.set(self.now_nanos.get() + idle);
        }
        ctx.counters.turns.add(1);
        ctx.clock.set_coarse(start);
        if real && let Some(allowance) = ctx.governor.sample(start) {
            ctx.io.set_allowance(allowance);
        }
        if let Some(preemption) = &self.preemption {
            preemption.update_if_due(start);
        }
        let mut now = start;
        let (mut polls, mut had_other_poll) = (0u32, false);
        let early = loop {
            self.take_injected(ctx);
            now = ctx.mail.receive(ctx, now, start + TURN / 2);
            let mut spent = false;
            while let Some((work, group)) = self.pop(ctx, true) {
                polls += 1;
                now = self.poll(ctx, work, group, now);
                let over = if real { now - start >= TURN } else { polls >= SIMULATED_TURN_POLLS || ctx.io.is_dead() };
                if over || !tokio::task::coop::has_budget_remaining() {
                    spent = true;
                    break;
                }
            }
            ctx.mail.post(ctx);
            let completed = ctx.io.turn(ctx);
            if spent {
                break true;
            }
            if self.clock.is_urgent_ready() || completed {
                continue;
            }
            if had_other_poll {
                break self.clock.is_any_ready();
            }
            let Some((work, group)) = self.pop(ctx, false) else { break false };
            now = self.poll(ctx, work, group, now);
            had_other_poll = true;
        };
        if real {
            // Submitting and posting took time too.
            let ended = Instant::now();
            self.now_nanos.set(self.now_nanos.get() + (ended - now).as_nanos() as u64);
            now = ended;
        }
        ctx.counters.busy_nanos.add((now - start).as_nanos() as u64);
        self.idle_since.set(Some(now));
        early
    }

    /// Polls a task of the group. Returns the time at which the poll ended.
    fn poll(&self, ctx: &Ctx, work: Work, group: Group, started: Instant) -> Instant {
        let TaskLabel { location, key } = *work.metadata();
        self.timed(ctx, location, Running { key: Some(key), group }, started, || work.run())
    }

    /// Runs mail for the group. Returns the time at which it ended.
    pub fn run_mail(
        &self,
        ctx: &Ctx,
        location: SpawnLocation,
        group: Group,
        started: Instant,
        work: impl FnOnce(),
    ) -> Instant {
        self.timed(ctx, location, Running { key: None, group }, started, work)
    }

    /// Runs `poll` and accounts its time to the group.
    fn timed<R>(
        &self,
        ctx: &Ctx,
        location: SpawnLocation,
        running: Running,
        started: Instant,
        poll: impl FnOnce() -> R,
    ) -> Instant {
        self.poll_started.set(Some(started));
        self.running.set(running);
        self.yields_asked.set(0);
        ctx.counters.polls.add(1);
        #[cfg(feature = "sim")]
        if let Some(sim) = &ctx.simulated {
            let micros = (ctx.clock.wall_nanos() - crate::sim::EPOCH_NANOS) as u64 / 1_000;
            sim.trace.numbers(&[u64::from(ctx.shard.0), u64::from(location.line()), micros]);
        }
        poll();
        let (ended, took) = if ctx.clock.is_real() {
            let ended = Instant::now();
            ctx.clock.set_coarse(ended);
            (ended, ended - started)
        } else {
            (started, SIMULATED_POLL)
        };
        let nanos = took.as_nanos() as u64;
        let now = self.now_nanos.get() + nanos;
        self.now_nanos.set(now);
        self.clock.ran(running.group, nanos);
        ctx.counters.groups[running.group as usize].ran(now, nanos, took > STALL);
        if ctx.clock.is_real() && took > STALL {
            ctx.counters.stalls.add(1);
            let longest = &ctx.counters.longest_poll_nanos;
            longest.set(longest.get().max(nanos));
            if took >= self.tuning.log_stalls_over
                && let Some(StallLine { times, longest }) = self.stall_log.record(location, took, ended)
            {
                let (ms, group) = (longest.as_millis() as u64, running.group.name());
                tracing::warn!(shard = ctx.shard.0, task = %location, group, ms, times, "a task stalled the shard");
            }
        }
        ended
    }

    /// Prepares the shard to sleep, because no task is ready. Polls the mailbox first, if that is
    /// configured. Returns true if mail or a completion arrived meanwhile.
    fn before_sleep(&self, ctx: &Ctx) -> bool {
        if !self.tuning.poll.is_zero() {
            let until = Instant::now() + self.tuning.poll;
            while Instant::now() < until {
                if ctx.mail.has_arrived() || ctx.io.has_completed() || self.shared.notified.load(Ordering::Relaxed) {
                    return true;
                }
                std::hint::spin_loop();
            }
        }
        ctx.mail.about_to_sleep() || ctx.io.about_to_sleep() || self.shared.notified.load(Ordering::Acquire)
    }

    /// Drops every task. The shard's context must be set.
    fn tear_down(&self) {
        // Dropping a task may wake, spawn or detach others, so this repeats until none is left. A
        // task that another thread is about to inject stays on the list until it arrives here.
        while !self.active.borrow().is_empty() {
            let wakers: Vec<Waker> = self.active.borrow().iter().map(|(_, alive)| alive.waker.clone()).collect();
            for waker in wakers {
                waker.wake();
            }
            let injected = std::mem::take(&mut *self.shared.injected.lock().unwrap_or_else(PoisonError::into_inner));
            let ready = Group::ALL.map(|group| {
                self.clock.becomes_idle(group);
                std::mem::take(&mut *self.ready[group as usize].borrow_mut())
            });
            if injected.is_empty() && ready.iter().all(VecDeque::is_empty) {
                std::thread::yield_now();
            }
            drop(injected);
            drop(ready);
        }
    }
}

pin_project! {
    /// The future of a task, and its entry in the list of live tasks. Not an `async` block, which
    /// would hold the future twice.
    struct Lived<F> {
        #[pin]
        future: F,
        living: Living,
    }
}

impl<F: Future> Future for Lived<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        self.project().future.poll(cx)
    }
}

/// Removes a task from the list of live tasks when its future is dropped.
struct Living {
    ctx: Rc<Ctx>,
    key: usize,
}

impl Drop for Living {
    fn drop(&mut self) {
        self.ctx.counters.tasks.sub(1);
        let alive = self.ctx.executor.active.borrow_mut().try_remove(self.key);
        debug_assert!(alive.is_some(), "a task ends once");
        drop(alive);
    }
}

/// Creates a task of `future` in a group on the shard of `ctx`. The caller runs or schedules the
/// runnable.
///
/// SAFETY: everything `future` borrows must outlive the executor's tear-down, and the caller must
/// be on the shard's thread.
#[allow(unsafe_code)]
pub(crate) unsafe fn make<F: Future>(
    ctx: &Rc<Ctx>,
    location: SpawnLocation,
    group: Group,
    future: F,
) -> (Work, async_task::Task<F::Output, TaskLabel>) {
    let shared = ctx.executor.shared.clone();
    let schedule = move |work: Work| {
        let mut work = Some(work);
        ctx::try_with(|c| {
            if Arc::ptr_eq(&c.executor.shared, &shared)
                && let Some(work) = work.take()
            {
                c.executor.push(c, work);
            }
        });
        if let Some(work) = work {
            shared.inject(work);
        }
    };
    ctx.counters.spawned.add(1);
    ctx.counters.tasks.add(1);
    let key = ctx.executor.active.borrow().vacant_key();
    let future = Lived { future, living: Living { ctx: ctx.clone(), key } };
    // SAFETY: the future is only run and dropped on the shard's thread. Runnables travel only
    // through this executor's queues. Turns and the tear-down empty these queues on that thread.
    // The caller vouches for the borrows. The schedule function is Send and Sync by its captures.
    let label = TaskLabel { location, key };
    let (work, task) = unsafe { async_task::Builder::new().metadata(label).spawn_unchecked(|_| future, schedule) };
    let at = ctx.executor.active.borrow_mut().insert(Alive { waker: work.waker(), group: Cell::new(group) });
    debug_assert_eq!(at, key);
    (work, task)
}

/// Creates and schedules a task of a `'static` future.
#[allow(unsafe_code)]
pub(crate) fn spawn<F: Future + 'static>(
    ctx: &Rc<Ctx>,
    location: SpawnLocation,
    group: Group,
    future: F,
) -> async_task::Task<F::Output, TaskLabel> {
    // SAFETY: a 'static future borrows nothing that could end, and the context is `Rc`, so we are
    // on its thread.
    let (work, task) = unsafe { make(ctx, location, group, future) };
    work.schedule();
    task
}

/// Creates a task for a request that came by mail. In an urgent group it is polled at once, within
/// the running poll. Otherwise it waits in its group's queue.
#[allow(unsafe_code)]
pub(crate) fn start_mail<F: Future + 'static>(ctx: &Rc<Ctx>, location: SpawnLocation, group: Group, future: F) {
    // SAFETY: as in `spawn`.
    let (work, task) = unsafe { make(ctx, location, group, future) };
    task.detach();
    if group.is_urgent() {
        let before = ctx.executor.running.get();
        ctx.executor.running.set(Running { key: Some(work.metadata().key), group });
        work.run();
        ctx.executor.running.set(before);
    } else {
        work.schedule();
    }
}

/// The run state that the shards of one machine share.
pub(crate) struct RunState {
    /// The machine was asked to stop.
    pub stop: AtomicBool,
    /// The number of shards whose main future has not ended. At zero every shard ends.
    pub running: AtomicUsize,
}

impl RunState {
    pub fn new(shards: usize) -> Arc<Self> {
        Arc::new(Self { stop: AtomicBool::new(false), running: AtomicUsize::new(shards) })
    }
}

/// Drives a shard until all main futures of its machine have ended. Dropping it drops all tasks of
/// the shard.
pub(crate) struct ShardFuture {
    ctx: Rc<Ctx>,
    run_state: Arc<RunState>,
    simulated_polls: u64,
    pause: Option<Pin<Box<tokio::time::Sleep>>>,
}

impl ShardFuture {
    pub fn new(ctx: Rc<Ctx>, run_state: Arc<RunState>) -> Self {
        Self { ctx, run_state, simulated_polls: 0, pause: None }
    }
}

impl Future for ShardFuture {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        let ctx = this.ctx.clone();
        let executor = &ctx.executor;
        executor.shared.waker.register(cx.waker());
        if let Some(pause) = &mut this.pause {
            if pause.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            this.pause = None;
        }
        if ctx.io.is_dead() {
            return Poll::Pending;
        }
        ctx::enter(&ctx, || {
            if this.run_state.stop.load(Ordering::Relaxed) && !ctx.stop.is_cancelled() {
                ctx.stop.cancel();
            }
            ctx.mail.awake(&executor.shared);
            ctx.io.awake();
            let polls_before = ctx.counters.polls.get();
            let early = executor.turn(&ctx);
            if this.run_state.running.load(Ordering::Acquire) == 0 {
                return Poll::Ready(());
            }
            if !ctx.clock.is_real() {
                this.simulated_polls += ctx.counters.polls.get() - polls_before;
                if this.simulated_polls >= u64::from(SIMULATED_POLLS_PER_MS) {
                    this.simulated_polls = 0;
                    let mut pause = Box::pin(tokio::time::sleep(Duration::from_millis(1)));
                    if pause.as_mut().poll(cx).is_pending() {
                        this.pause = Some(pause);
                        return Poll::Pending;
                    }
                }
            }
            let again = early || executor.before_sleep(&ctx) || ctx.io.poll_wake(cx);
            if again {
                cx.waker().wake_by_ref();
            }
            Poll::Pending
        })
    }
}

impl Drop for ShardFuture {
    fn drop(&mut self) {
        let ctx = self.ctx.clone();
        ctx::enter(&ctx, || {
            ctx.mail.close();
            ctx.executor.tear_down();
            // Services refer to each other, and their drops may still look others up.
            loop {
                let services = std::mem::take(&mut *ctx.services.borrow_mut());
                if services.is_empty() {
                    break;
                }
                drop(services);
            }
            ctx.executor.tear_down();
            ctx.mail.close();
            ctx.io.shut_down(&ctx);
        });
    }
}
