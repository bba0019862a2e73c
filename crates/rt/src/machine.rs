//! The production machine: pinned threads, one shard each. And `block_on`: a machine of one shard
//! on the calling thread.
//!
//! A shard serves calls until the main futures of all shards have ended, so that shards can stop in
//! any order.

use crate::clock::Clock;
use crate::ctx::{self, Ctx};
use crate::executor::{self, Executor, RunState, ShardFuture, Tuning};
use crate::fs::{self, Io};
use crate::governor::Governor;
use crate::group::Group;
use crate::mailbox::{Mail, Mailbox, Message};
use crate::shard::ShardId;
use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::panic::Location;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::runtime::Runtime;

/// Turns between two polls of the reactor while tasks are ready.
const TURNS_PER_REACTOR_POLL: u32 = 2;
/// The stack size of a shard and of its helper threads, in bytes: large enough to parse deeply
/// nested statements and to poll nested futures. Only touched pages take memory.
const STACK: usize = 8 << 20;
/// The number of threads of a shard for file operations without an asynchronous form, and for one
/// offloaded computation.
const BLOCKING_THREADS: usize = 5;
/// A helper thread does not end while it is idle: if the process could not start threads later, a
/// shard without a helper thread could not run file operations.
const HELPER_IDLE_TIME: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// The configuration of a [`Machine`].
#[derive(Debug, Clone)]
pub struct MachineConfig {
    /// Number of shards, at least 1.
    pub shards: usize,
    /// The CPUs to pin shards to, in order. `None`: the CPUs that the process may use.
    pub cpus: Option<Vec<usize>>,
    /// The CPUs are shared with other processes: no pinning, no polling, and a busy shard preempts
    /// no other thread when it wakes up.
    pub overprovisioned: bool,
    /// How long a shard polls its mailbox before it sleeps; zero: not at all.
    pub poll: Duration,
    /// The prefix of thread names. A dash and the shard's number follow it.
    pub thread_name: String,
    /// Polls of a task longer than this are logged (all over 500 us are counted).
    pub stall_threshold: Duration,
    /// The maximum bytes of huge pages that each shard keeps for disk I/O buffers.
    pub io_buffers: usize,
}

impl Default for MachineConfig {
    fn default() -> Self {
        Self {
            shards: 1,
            cpus: None,
            overprovisioned: false,
            poll: Duration::ZERO,
            thread_name: "shard".into(),
            stall_threshold: Duration::from_millis(20),
            io_buffers: 0,
        }
    }
}

/// The machine: see [`Machine::start`].
pub struct Machine;

impl Machine {
    /// Starts the shards and runs `per_shard` on each, in the control group. Fails if a thread or
    /// its reactor cannot be created.
    pub fn start<F, Fut>(config: MachineConfig, per_shard: F) -> io::Result<MachineHandle>
    where
        F: Fn(ShardId) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = ()> + 'static,
    {
        if config.shards == 0 || config.shards > usize::from(u16::MAX) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "a machine has 1 to 65535 shards"));
        }
        let allowed = affinity();
        let cpus = match &config.cpus {
            Some(cpus) if !cpus.is_empty() => cpus.clone(),
            _ => allowed.clone(),
        };
        let mailboxes = mailboxes(config.shards);
        let run_state = RunState::new(config.shards);
        let per_shard = Arc::new(per_shard);
        // All reactors are created before the first thread: a shard that calls another one waits
        // for its answer, so all must start.
        let reactors = (0..config.shards).map(|_| reactor(allowed.clone())).collect::<io::Result<Vec<_>>>()?;
        let mut threads = Vec::with_capacity(config.shards);
        for (index, reactor) in reactors.into_iter().enumerate() {
            let shard = ShardId(index as u16);
            let pin = (!config.overprovisioned && !cpus.is_empty()).then(|| cpus[index % cpus.len()]);
            let setup = ShardSetup {
                shard,
                mailboxes: mailboxes.clone(),
                run_state: run_state.clone(),
                tuning: Tuning {
                    log_stalls_over: config.stall_threshold,
                    poll: if config.overprovisioned { Duration::ZERO } else { config.poll },
                    shares_cpu: config.overprovisioned,
                },
            };
            let per_shard = per_shard.clone();
            let remote = Remote::new(mailboxes.clone());
            let ending = Ending { run_state: run_state.clone(), remote: remote.clone() };
            let io_buffers = config.io_buffers;
            let thread = std::thread::Builder::new()
                .name(format!("{}-{index}", config.thread_name))
                .stack_size(STACK)
                .spawn(move || {
                    let _ending = ending;
                    if let Some(cpu) = pin
                        && let Err(error) = set_affinity(&[cpu])
                    {
                        tracing::warn!(%shard, cpu, %error, "cannot pin the shard to its CPU: the kernel may move it to other CPUs");
                    }
                    fs::keep_huge_pages(io_buffers);
                    run_shard(setup, reactor, remote, move || per_shard(shard));
                })?;
            threads.push(thread);
        }
        Ok(MachineHandle { remote: Remote::new(mailboxes), run_state, threads })
    }
}

/// A running machine. Dropping the handle leaves it running.
pub struct MachineHandle {
    remote: Remote,
    run_state: Arc<RunState>,
    threads: Vec<JoinHandle<()>>,
}

impl MachineHandle {
    /// A handle for calls from threads that are not shards.
    pub fn remote(&self) -> Remote {
        self.remote.clone()
    }

    /// Fires `rt::shard::stopping()` on every shard. Returns at once; see [`MachineHandle::join`].
    pub fn stop(&self) {
        self.run_state.stop.store(true, Ordering::Release);
        self.remote.nudge_all();
    }

    /// Blocks the calling thread until all shards have ended. Re-raises the panic of the first
    /// shard that panicked.
    pub fn join(self) {
        for thread in self.threads {
            if let Err(panic) = thread.join() {
                std::panic::resume_unwind(panic);
            }
        }
    }
}

/// The shard does not exist, or has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShardStopped;

impl fmt::Display for ShardStopped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the shard has stopped")
    }
}

impl std::error::Error for ShardStopped {}

/// Calls shards from any thread.
#[derive(Clone)]
pub struct Remote {
    mailboxes: Arc<[Mailbox]>,
}

impl Remote {
    pub(crate) fn new(mailboxes: Arc<[Mailbox]>) -> Self {
        Self { mailboxes }
    }

    /// The number of shards.
    pub fn shards(&self) -> usize {
        self.mailboxes.len()
    }

    /// Runs `f` on shard `to`. Dropping the future cancels the work at its next yield. The number
    /// of calls is not bounded: for rare requests only (administration, signals).
    #[track_caller]
    pub fn call<R, Fut>(
        &self,
        to: ShardId,
        f: impl FnOnce() -> Fut + Send + 'static,
    ) -> impl Future<Output = Result<R, ShardStopped>> + Send + 'static
    where
        R: Send + 'static,
        Fut: Future<Output = R> + 'static,
    {
        let (mut sender, receiver) = tokio::sync::oneshot::channel();
        let location = Location::caller();
        let work = Box::new(move || {
            let work = f();
            executor::start_mail(&ctx::current(), location, Group::Control, async move {
                let mut work = pin!(work);
                let reply = poll_fn(|cx| {
                    if sender.poll_closed(cx).is_ready() {
                        return Poll::Ready(None);
                    }
                    work.as_mut().poll(cx).map(Some)
                })
                .await;
                if let Some(reply) = reply {
                    // The caller may have dropped its future meanwhile.
                    let _ = sender.send(reply);
                }
            });
        });
        if let Some(mailbox) = self.mailboxes.get(to.0 as usize) {
            mailbox.push(vec![Message::Foreign { location, work }]);
        }
        async move { receiver.await.map_err(|_| ShardStopped) }
    }

    /// Runs `f` on every shard concurrently. The results are in the order of the shard ids.
    pub fn call_all<R, Fut>(
        &self,
        f: impl Fn() -> Fut + Clone + Send + 'static,
    ) -> impl Future<Output = Result<Vec<R>, ShardStopped>> + Send + 'static
    where
        R: Send + 'static,
        Fut: Future<Output = R> + 'static,
    {
        let calls: Vec<_> = (0..self.mailboxes.len() as u16)
            .map(|shard| {
                let f = f.clone();
                self.call(ShardId(shard), f)
            })
            .collect();
        futures_util::future::try_join_all(calls)
    }

    fn nudge_all(&self) {
        for mailbox in self.mailboxes.iter() {
            mailbox.nudge();
        }
    }
}

/// Ends the machine when a shard's thread ends for any reason.
struct Ending {
    run_state: Arc<RunState>,
    remote: Remote,
}

impl Drop for Ending {
    fn drop(&mut self) {
        self.run_state.running.store(0, Ordering::Release);
        self.remote.nudge_all();
    }
}

/// The inputs of a shard's start.
struct ShardSetup {
    shard: ShardId,
    mailboxes: Arc<[Mailbox]>,
    run_state: Arc<RunState>,
    tuning: Tuning,
}

impl ShardSetup {
    /// Creates the shard's context. Must be called inside its tokio runtime.
    fn context(&self) -> Rc<Ctx> {
        let (rng, uuid_tail) = Ctx::seeded(rand::random());
        Rc::new(Ctx {
            shard: self.shard,
            rng: RefCell::new(rng),
            last_time_uuid: Cell::new(0),
            uuid_tail,
            services: RefCell::default(),
            executor: Executor::new(self.tuning),
            governor: Governor::new(),
            mail: Mail::new(self.shard, self.mailboxes.clone()),
            io: Io::production(),
            counters: Default::default(),
            backlog: Default::default(),
            offload: crate::offload::permit(),
            clock: Clock::real(),
            stop: Default::default(),
            #[cfg(feature = "sim")]
            simulated: None,
        })
    }
}

pub(crate) fn mailboxes(shards: usize) -> Arc<[Mailbox]> {
    (0..shards).map(|_| Mailbox::new(shards)).collect()
}

fn reactor(allowed: Vec<usize>) -> io::Result<Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .event_interval(TURNS_PER_REACTOR_POLL)
        .max_blocking_threads(BLOCKING_THREADS)
        .thread_keep_alive(HELPER_IDLE_TIME)
        .thread_stack_size(STACK)
        .on_thread_start(move || {
            // Helper threads must not be limited to the shard's CPU, where they would compete with
            // it.
            let _ = set_affinity(&allowed);
        })
        .build()
}

fn run_shard<Fut: Future<Output = ()> + 'static>(
    setup: ShardSetup,
    runtime: Runtime,
    remote: Remote,
    main: impl FnOnce() -> Fut + 'static,
) {
    let outcome = runtime.block_on(async move {
        let ctx = setup.context();
        let run_state = setup.run_state.clone();
        let ended = async move {
            main().await;
            if run_state.running.fetch_sub(1, Ordering::AcqRel) == 1 {
                remote.nudge_all();
            }
        };
        ctx::enter(&ctx, || executor::spawn(&ctx, Location::caller(), Group::Control, ended).detach());
        let shard = OnThisThread(ShardFuture::new(ctx, setup.run_state.clone()));
        // As a task, not as the root future: waking a task on its own thread costs no system call.
        tokio::spawn(shard).await
    });
    if let Err(error) = outcome
        && let Ok(panic) = error.try_into_panic()
    {
        std::panic::resume_unwind(panic);
    }
}

/// A future that a current-thread runtime may hold although it is not `Send`.
struct OnThisThread(ShardFuture);

// SAFETY: made, polled and dropped on one thread only. A current-thread runtime polls its tasks in
// `block_on`. It drops them there or in its own drop. Both run on the thread of `run_shard`.
#[allow(unsafe_code)]
unsafe impl Send for OnThisThread {}

impl Future for OnThisThread {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        Pin::new(&mut self.get_mut().0).poll(cx)
    }
}

/// Runs `f` as the main future of a machine of one unpinned shard on the calling thread, with real
/// files and time.
///
/// For unit tests and command line tools. Panics if the operating system refuses the reactor.
#[track_caller]
pub fn block_on<F: Future>(f: F) -> F::Output {
    match try_block_on(f) {
        Ok(output) => output,
        Err(error) => panic!("cannot make a reactor: {error}"),
    }
}

/// Like [`block_on`], but returns an error if the operating system refuses the reactor, for example
/// for lack of file descriptors.
#[track_caller]
#[allow(unsafe_code)]
pub fn try_block_on<F: Future>(f: F) -> io::Result<F::Output> {
    let location = Location::caller();
    let runtime = reactor(affinity())?;
    let setup = ShardSetup {
        shard: ShardId(0),
        mailboxes: mailboxes(1),
        run_state: RunState::new(1),
        tuning: Tuning::default(),
    };
    let output = Cell::new(None);
    runtime.block_on(async {
        let ctx = setup.context();
        let shard = ShardFuture::new(ctx.clone(), setup.run_state.clone());
        let main = async {
            output.set(Some(f.await));
            setup.run_state.running.store(0, Ordering::Release);
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
        shard.await;
    });
    match output.into_inner() {
        Some(output) => Ok(output),
        None => unreachable!("the shard ends only after its main future"),
    }
}

/// The CPUs this thread may run on.
#[allow(unsafe_code)]
pub(crate) fn affinity() -> Vec<usize> {
    // SAFETY: `cpu_set_t` is plain bits; the call writes at most the size we give.
    let set = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        if libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set) != 0 {
            return Vec::new();
        }
        set
    };
    // SAFETY: the index is below CPU_SETSIZE.
    (0..libc::CPU_SETSIZE as usize).filter(|&cpu| unsafe { libc::CPU_ISSET(cpu, &set) }).collect()
}

#[allow(unsafe_code)]
fn set_affinity(cpus: &[usize]) -> io::Result<()> {
    // SAFETY: as in `affinity`; indices are checked.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        for &cpu in cpus.iter().filter(|&&cpu| cpu < libc::CPU_SETSIZE as usize) {
            libc::CPU_SET(cpu, &mut set);
        }
        if libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set) != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
