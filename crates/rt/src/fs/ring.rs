//! The io_uring of a shard.
//!
//! Tasks put requests into slots. At the end of a turn, one system call submits all of them, and
//! everything that the kernel finished inline is taken at once. Urgent reads and writes do not wait
//! for the end of the turn when the disk has little to do. Otherwise the shard and the disk would
//! alternate, each idle while the other works. While the shard is awake, completions raise no
//! event. Before it sleeps, it arms an eventfd that wakes its reactor.
//!
//! Invariants: a slot owns its request (file and memory) until the kernel has completed it, also if
//! the waiting future is dropped. A class's requests in the kernel are within its [`LIMITS`];
//! further requests wait in the class's queue.

use super::IoClass;
use super::io::{MAX_OPERATION, Op, Request};
use crate::ctx::Ctx;
use io_uring::{EnterFlags, IoUring, opcode, squeue, types};
use slab::Slab;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// The limit of a class's requests in the kernel.
#[derive(Clone, Copy)]
struct Limit {
    requests: usize,
    /// Total bytes. A larger request goes alone.
    bytes: usize,
}

/// The limits by class: foreground, background, log, scan. All requests together fit into the
/// rings.
const LIMITS: [Limit; IoClass::COUNT] = [
    Limit { requests: 128, bytes: usize::MAX },
    Limit { requests: 16, bytes: 16 << 20 },
    Limit { requests: 64, bytes: usize::MAX },
    Limit { requests: 16, bytes: 16 << 20 },
];
/// Foreground requests are submitted during a turn once this many wait, or fewer if they exceed a
/// quarter of those in the kernel. One system call for each request would cost a busy shard more
/// than it gains.
const EAGER: usize = 4;
/// Slots of the submission ring; the completion ring has twice as many.
const ENTRIES: u32 = 256;
/// The urgent classes, in the order in which they get free places. The others follow; the one with
/// fewer bytes served goes first.
const URGENT: [IoClass; 2] = [IoClass::Log, IoClass::Foreground];
/// The classes whose limits the governor scales.
const SCALED: [IoClass; 2] = [IoClass::Background, IoClass::Scan];

/// A shard's ring.
pub(crate) struct Ring {
    inner: RefCell<Inner>,
    event: AsyncFd<OwnedFd>,
}

struct Inner {
    ring: IoUring,
    /// The kernel posts completions only when it is entered with a request for them.
    deferred: bool,
    slots: Slab<Slot>,
    /// Slots that are not in the kernel yet, by class.
    waiting: [VecDeque<usize>; IoClass::COUNT],
    in_kernel: [usize; IoClass::COUNT],
    bytes_in_kernel: [usize; IoClass::COUNT],
    limits: [Limit; IoClass::COUNT],
    /// Bytes served by class, to decide the order of classes.
    served: [u64; IoClass::COUNT],
    /// Entries in the submission ring that are not submitted yet.
    pushed: u32,
    /// Completions signal the eventfd.
    armed: bool,
    /// Wakers of the operations that completed in this turn.
    woken: Vec<Waker>,
}

struct Slot {
    request: Request,
    class: IoClass,
    state: State,
    waker: Option<Waker>,
    /// The waiting future was dropped.
    abandoned: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Waiting,
    InKernel,
    Done(i32),
}

impl Ring {
    /// Creates a ring for the calling thread, inside its tokio runtime.
    pub fn new() -> io::Result<Self> {
        let (ring, deferred) =
            match IoUring::builder().setup_single_issuer().setup_defer_taskrun().setup_taskrun_flag().build(ENTRIES) {
                Ok(ring) => (ring, true),
                // Kernels before 6.1.
                Err(error) if error.raw_os_error() == Some(libc::EINVAL) => (IoUring::new(ENTRIES)?, false),
                Err(error) => return Err(error),
            };
        let event = eventfd()?;
        ring.submitter().register_eventfd(event.as_raw_fd())?;
        // SAFETY: an `OwnedFd` that is never replaced stays open and the same as long as the
        // `AsyncFd` owns it.
        #[allow(unsafe_code)]
        let event = unsafe { AsyncFd::register_with_interest(event, Interest::READABLE) }.map_err(io::Error::from)?;
        let inner = Inner {
            ring,
            deferred,
            slots: Slab::with_capacity(64),
            waiting: Default::default(),
            in_kernel: [0; IoClass::COUNT],
            bytes_in_kernel: [0; IoClass::COUNT],
            limits: LIMITS,
            served: [0; IoClass::COUNT],
            pushed: 0,
            armed: true,
            woken: Vec::new(),
        };
        Ok(Self { inner: RefCell::new(inner), event })
    }

    /// Takes over a request. The future returns it with its result: a number of bytes, or an error.
    pub fn start(ctx: &Rc<Ctx>, class: IoClass, request: Request) -> Operation {
        let mut inner = ctx.io.ring().inner.borrow_mut();
        if inner.waiting[class as usize].is_empty() {
            inner.begins_to_wait(class);
        }
        let slot = Slot { request, class, state: State::Waiting, waker: None, abandoned: false };
        let key = inner.slots.insert(slot);
        inner.waiting[class as usize].push_back(key);
        ctx.counters.io[class as usize].queued.add(1);
        if class == IoClass::Foreground && inner.is_disk_idle() && inner.push_waiting(ctx) {
            ctx.counters.io_submits.add(1);
            inner.enter(EnterFlags::empty());
        }
        drop(inner);
        Operation { ctx: ctx.clone(), key: Some(key) }
    }

    /// Scales the limits of scans and background work. Each may always have one request at the
    /// disk.
    pub fn set_allowance(&self, allowance: f64) {
        let mut inner = self.inner.borrow_mut();
        for class in SCALED {
            let Limit { requests, bytes } = LIMITS[class as usize];
            let scaled = |limit: usize| ((limit as f64 * allowance) as usize).max(1);
            inner.limits[class as usize] = Limit { requests: scaled(requests), bytes: scaled(bytes) };
        }
    }

    /// Submits and completes until neither finds anything. Returns true if something completed.
    pub fn turn(&self, ctx: &Ctx) -> bool {
        let mut completed = false;
        loop {
            let mut inner = self.inner.borrow_mut();
            let pushed = inner.push_waiting(ctx);
            if inner.pushed > 0 || inner.has_deferred() {
                ctx.counters.io_submits.add(1);
                let posts = if inner.deferred { EnterFlags::GETEVENTS } else { EnterFlags::empty() };
                inner.enter(posts);
            }
            let reaped = inner.reap(ctx);
            let woken = std::mem::take(&mut inner.woken);
            drop(inner);
            completed |= reaped;
            let mut woken = woken;
            for waker in woken.drain(..) {
                waker.wake();
            }
            self.inner.borrow_mut().woken = woken;
            if !pushed && !reaped {
                return completed;
            }
        }
    }

    /// Whether completions wait to be taken.
    pub fn has_completed(&self) -> bool {
        self.inner.borrow_mut().has_completed()
    }

    /// Requests an event at the next completion. Returns true if there already is one.
    pub fn about_to_sleep(&self) -> bool {
        let mut inner = self.inner.borrow_mut();
        if inner.in_kernel == [0; IoClass::COUNT] {
            return false;
        }
        inner.armed = true;
        inner.ring.completion().enable_eventfd();
        // The kernel posts a completion, then reads the flag. The shard sets the flag, then checks
        // for completions.
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        inner.has_completed() || inner.pushed > 0
    }

    /// Disables events: the awake shard polls the ring itself.
    pub fn awake(&self) {
        let mut inner = self.inner.borrow_mut();
        if std::mem::take(&mut inner.armed) {
            inner.ring.completion().disable_eventfd();
        }
    }

    /// Registers the shard with the reactor, to be woken by the eventfd. Returns true if the shard
    /// must take a turn at once.
    pub fn poll_wake(&self, cx: &mut Context<'_>) -> bool {
        if self.inner.borrow().in_kernel == [0; IoClass::COUNT] {
            return false;
        }
        while let Poll::Ready(ready) = self.event.poll_read_ready(cx) {
            match ready {
                // Every signal creates a new edge, so the counter need not be read.
                Ok(mut guard) => guard.clear_ready(),
                Err(_) => return true,
            }
        }
        self.has_completed()
    }

    /// Waits until the kernel has completed everything.
    pub fn shut_down(&self, ctx: &Ctx) {
        loop {
            self.turn(ctx);
            let inner = self.inner.borrow();
            if inner.in_kernel == [0; IoClass::COUNT] && inner.waiting.iter().all(VecDeque::is_empty) {
                return;
            }
            if let Err(error) = inner.ring.submit_and_wait(1)
                && !matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY))
            {
                tracing::error!(%error, "io_uring does not complete its requests; their memory is leaked");
                drop(inner);
                let slots = std::mem::take(&mut self.inner.borrow_mut().slots);
                std::mem::forget(slots);
                return;
            }
        }
    }
}

impl Inner {
    /// Moves requests from the queues into the submission ring, within the limits.
    fn push_waiting(&mut self, ctx: &Ctx) -> bool {
        let mut any = false;
        for class in URGENT {
            while self.push_next(ctx, class) {
                any = true;
            }
        }
        loop {
            let mut order = SCALED;
            order.sort_by_key(|class| self.served[*class as usize]);
            if !order.into_iter().any(|class| self.push_next(ctx, class)) {
                return any;
            }
            any = true;
        }
    }

    /// Moves the next request of the class into the submission ring. Returns false if none waits or
    /// the limits are reached.
    fn push_next(&mut self, ctx: &Ctx, class: IoClass) -> bool {
        let index = class as usize;
        while let Some(key) = self.waiting[index].front().copied() {
            if self.slots[key].abandoned {
                self.waiting[index].pop_front();
                ctx.counters.io[index].queued.sub(1);
                let slot = self.slots.remove(key);
                drop(slot);
                continue;
            }
            let (limit, bytes) = (self.limits[index], self.slots[key].request.len());
            let has_room = self.in_kernel[index] < limit.requests
                && (self.in_kernel[index] == 0 || self.bytes_in_kernel[index].saturating_add(bytes) <= limit.bytes);
            if !has_room {
                return false;
            }
            self.waiting[index].pop_front();
            ctx.counters.io[index].queued.sub(1);
            debug_assert!(self.slots[key].state == State::Waiting, "the kernel gets a request once");
            let slot = &mut self.slots[key];
            slot.state = State::InKernel;
            let entry = entry(&mut slot.request).user_data(key as u64);
            // SAFETY: the slot owns the file and the memory that the entry names, and stays until
            // the kernel has completed the entry. The slab moves slots, but the entry points to the
            // heap behind them.
            #[allow(unsafe_code)]
            let full = unsafe { self.ring.submission().push(&entry) }.is_err();
            assert!(!full, "the limits of the classes exceed the submission ring");
            self.in_kernel[index] += 1;
            self.bytes_in_kernel[index] += bytes;
            self.served[index] += bytes as u64;
            self.pushed += 1;
            ctx.counters.io[index].in_flight.add(1);
            return true;
        }
        false
    }

    /// A class without waiting requests gets no credit for bytes that the other class moved
    /// meanwhile.
    fn begins_to_wait(&mut self, class: IoClass) {
        let others = SCALED.into_iter().filter(|other| *other != class && !self.waiting[*other as usize].is_empty());
        if let Some(least) = others.map(|other| self.served[other as usize]).min() {
            let served = &mut self.served[class as usize];
            *served = (*served).max(least);
        }
    }

    fn has_deferred(&mut self) -> bool {
        self.deferred && self.in_kernel != [0; IoClass::COUNT] && self.ring.submission().taskrun()
    }

    fn has_completed(&mut self) -> bool {
        self.has_deferred() || !self.ring.completion().is_empty()
    }

    /// Whether the waiting foreground requests are worth a system call now.
    fn is_disk_idle(&self) -> bool {
        let class = IoClass::Foreground as usize;
        let (waiting, in_kernel) = (self.waiting[class].len(), self.in_kernel[class]);
        in_kernel < self.limits[class].requests && waiting >= EAGER.min(1 + in_kernel / 4)
    }

    /// Submits the pushed entries. With GETEVENTS, the kernel also posts finished requests.
    fn enter(&mut self, flags: EnterFlags) {
        // SAFETY: no argument is passed beyond the ring's own memory.
        #[allow(unsafe_code)]
        let submitted = unsafe { self.ring.submitter().enter::<libc::sigset_t>(self.pushed, 0, flags.bits(), None) };
        match submitted {
            Ok(n) => self.pushed -= (n as u32).min(self.pushed),
            // The kernel lacks a resource: the next turn retries.
            Err(error) if matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY)) => {}
            Err(error) => panic!("io_uring_enter: {error}"),
        }
    }

    /// Takes completions from the ring.
    fn reap(&mut self, ctx: &Ctx) -> bool {
        let mut any = false;
        loop {
            let Some(entry) = self.ring.completion().next() else { return any };
            any = true;
            let key = entry.user_data() as usize;
            let slot = &mut self.slots[key];
            let index = slot.class as usize;
            debug_assert!(slot.state == State::InKernel, "the kernel completes requests that it has");
            self.in_kernel[index] -= 1;
            self.bytes_in_kernel[index] -= slot.request.len();
            debug_assert!(
                self.in_kernel[index] > 0 || self.bytes_in_kernel[index] == 0,
                "without requests, no bytes are in the kernel"
            );
            ctx.counters.io[index].in_flight.sub(1);
            if matches!(-entry.result(), libc::EINTR | libc::EAGAIN) && !slot.abandoned {
                slot.state = State::Waiting;
                self.waiting[index].push_front(key);
                ctx.counters.io[index].queued.add(1);
                continue;
            }
            slot.state = State::Done(entry.result());
            if slot.abandoned {
                let slot = self.slots.remove(key);
                drop(slot);
            } else if let Some(waker) = slot.waker.take() {
                self.woken.push(waker);
            }
        }
    }
}

fn entry(request: &mut Request) -> squeue::Entry {
    let fd = types::Fd(request.file.as_raw_fd());
    match &mut request.op {
        Op::Read { into, len } => {
            let len = (*len).min(into.capacity()).min(MAX_OPERATION) as u32;
            opcode::Read::new(fd, into.as_mut_ptr(), len).offset(request.offset).build()
        }
        Op::Write { data, skip } => {
            let data = &data.as_ref()[*skip..];
            let len = data.len().min(MAX_OPERATION) as u32;
            opcode::Write::new(fd, data.as_ptr(), len).offset(request.offset).build()
        }
        Op::SyncData => opcode::Fsync::new(fd).flags(types::FsyncFlags::DATASYNC).build(),
        Op::SyncAll => opcode::Fsync::new(fd).build(),
        Op::Allocate { len } => {
            opcode::Fallocate::new(fd, *len).offset(request.offset).mode(libc::FALLOC_FL_KEEP_SIZE).build()
        }
    }
}

#[allow(unsafe_code)]
fn eventfd() -> io::Result<OwnedFd> {
    // SAFETY: a plain call; the descriptor is new and ours.
    unsafe {
        let fd = libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK);
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(OwnedFd::from_raw_fd(fd))
    }
}

/// A request in progress. Dropping it leaves the request to the ring.
pub(crate) struct Operation {
    ctx: Rc<Ctx>,
    key: Option<usize>,
}

impl Future for Operation {
    type Output = (io::Result<usize>, Request);

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let Some(key) = this.key else { panic!("Operation polled after it was ready") };
        let mut inner = this.ctx.io.ring().inner.borrow_mut();
        let slot = &mut inner.slots[key];
        let State::Done(result) = slot.state else {
            match &mut slot.waker {
                Some(waker) => waker.clone_from(cx.waker()),
                None => slot.waker = Some(cx.waker().clone()),
            }
            return Poll::Pending;
        };
        let slot = inner.slots.remove(key);
        drop(inner);
        this.key = None;
        let result = if result < 0 { Err(io::Error::from_raw_os_error(-result)) } else { Ok(result as usize) };
        Poll::Ready((result, slot.request))
    }
}

impl Drop for Operation {
    fn drop(&mut self) {
        let Some(key) = self.key else { return };
        let mut inner = self.ctx.io.ring().inner.borrow_mut();
        let slot = &mut inner.slots[key];
        slot.abandoned = true;
        let waker = slot.waker.take();
        let done = matches!(slot.state, State::Done(_)).then(|| inner.slots.remove(key));
        drop(inner);
        drop((waker, done));
    }
}
