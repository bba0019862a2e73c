//! Messages between shards of a machine.
//!
//! Each shard has one mailbox: a lock-free list of batches that any thread may push to. A shard
//! collects the messages for a target during a turn, and posts them as one batch. A sleeping target
//! is woken once per batch. The number of messages that a shard has posted to a target and that the
//! target has not taken is bounded: further callers wait ([`Mail::room`]).

use crate::ctx::Ctx;
use crate::executor::{self, Shared};
use crate::group::Group;
use crate::shard::ShardId;
use crate::sync::waiters::{WaiterSlot, Waiters};
use rand::Rng;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering, fence};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use tokio::time::Instant;

/// The maximum number of messages from one shard to another that the other has not taken.
pub(crate) const MAILBOX_LIMIT: u64 = 4096;
/// The maximum number of messages that a shard takes per turn. The rest waits for the next turn.
const TAKEN_PER_TURN: usize = 512;

/// Work for another shard, or the notice that it is done.
pub(crate) enum Message {
    /// Work sent by a shard.
    Run { from: ShardId, call: Arc<dyn Call> },
    /// Work sent by a thread that is not a shard.
    Foreign { location: executor::SpawnLocation, work: Box<dyn FnOnce() + Send> },
    /// Work that this shard requested is done.
    Done(Arc<dyn Call>),
}

/// A call between two shards; shared by both sides.
pub(crate) trait Call: Send + Sync {
    /// Starts the work; on the target's shard.
    fn run(self: Arc<Self>, from: ShardId);
    /// Wakes the caller; on the caller's shard.
    fn done(&self);
    /// Where the call was made.
    fn location(&self) -> executor::SpawnLocation;
    /// The caller's scheduling group.
    fn group(&self) -> Group;
}

struct Batch {
    messages: Vec<Message>,
    next: *mut Batch,
}

/// The mailbox of one shard.
pub(crate) struct Mailbox {
    head: AtomicPtr<Batch>,
    sleeping: AtomicBool,
    /// The shard has ended: messages for it are dropped.
    closed: AtomicBool,
    executor: OnceLock<Arc<Shared>>,
    /// Messages taken so far, by sender.
    taken: Vec<AtomicU64>,
    /// Senders that wait for room.
    wants_room: Vec<AtomicBool>,
}

impl Mailbox {
    pub fn new(shards: usize) -> Self {
        Self {
            head: AtomicPtr::new(std::ptr::null_mut()),
            sleeping: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            executor: OnceLock::new(),
            taken: (0..shards).map(|_| AtomicU64::new(0)).collect(),
            wants_room: (0..shards).map(|_| AtomicBool::new(false)).collect(),
        }
    }

    /// Adds a batch. Returns true if the shard had to be woken.
    pub fn push(&self, messages: Vec<Message>) -> bool {
        let batch = Box::into_raw(Box::new(Batch { messages, next: std::ptr::null_mut() }));
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            // SAFETY: `batch` is ours until the exchange below succeeds.
            #[allow(unsafe_code)]
            unsafe {
                (*batch).next = head;
            }
            match self.head.compare_exchange_weak(head, batch, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => break,
                Err(now) => head = now,
            }
        }
        self.wake()
    }

    /// Wakes the shard if it sleeps.
    fn wake(&self) -> bool {
        // Pairs with the fence in `about_to_sleep`: either that function sees the batch, or this
        // one sees that the shard sleeps.
        fence(Ordering::SeqCst);
        if self.closed.load(Ordering::Relaxed) {
            self.take(drop);
            return false;
        }
        if self.sleeping.load(Ordering::Relaxed) && self.sleeping.swap(false, Ordering::AcqRel) {
            if let Some(executor) = self.executor.get() {
                executor.notify();
            }
            return true;
        }
        false
    }

    /// Makes the shard take a turn (to check for a stop request).
    pub fn nudge(&self) {
        self.sleeping.store(false, Ordering::Release);
        if let Some(executor) = self.executor.get() {
            executor.notify();
        }
    }

    /// Drops the present and all later messages.
    fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.take(drop);
    }

    fn is_empty(&self) -> bool {
        self.head.load(Ordering::Relaxed).is_null()
    }

    /// Takes all batches, oldest first.
    fn take(&self, mut each: impl FnMut(Batch)) {
        if self.is_empty() {
            return;
        }
        let mut newest = self.head.swap(std::ptr::null_mut(), Ordering::Acquire);
        let mut oldest: *mut Batch = std::ptr::null_mut();
        while !newest.is_null() {
            // SAFETY: the swap made the whole list ours; every node came from `Box::into_raw` in
            // `push`.
            #[allow(unsafe_code)]
            unsafe {
                let next = (*newest).next;
                (*newest).next = oldest;
                oldest = newest;
                newest = next;
            }
        }
        while !oldest.is_null() {
            // SAFETY: as above; each node is turned back into its box exactly once.
            #[allow(unsafe_code)]
            let batch = unsafe { Box::from_raw(oldest) };
            oldest = batch.next;
            each(*batch);
        }
    }
}

// SAFETY: the raw pointers are list links owned by the mailbox; messages are Send.
#[allow(unsafe_code)]
unsafe impl Send for Mailbox {}
// SAFETY: all access to the list goes through one atomic pointer.
#[allow(unsafe_code)]
unsafe impl Sync for Mailbox {}

impl Drop for Mailbox {
    fn drop(&mut self) {
        self.take(drop);
    }
}

/// A shard's side of the mail: its own mailbox, and the messages that it is about to send.
pub(crate) struct Mail {
    own: ShardId,
    mailboxes: Arc<[Mailbox]>,
    outboxes: Vec<Outbox>,
    /// Targets with messages to post.
    dirty: RefCell<Vec<ShardId>>,
    /// Messages taken from the mailbox and not handled yet.
    inbox: RefCell<VecDeque<Message>>,
    waiting_for_room: Cell<usize>,
}

#[derive(Default)]
struct Outbox {
    messages: RefCell<Vec<Message>>,
    /// The total number of calls posted, or about to be.
    sent: Cell<u64>,
    waiters: Waiters,
}

impl Mail {
    pub fn new(own: ShardId, mailboxes: Arc<[Mailbox]>) -> Self {
        let outboxes = mailboxes.iter().map(|_| Outbox::default()).collect();
        Self {
            own,
            mailboxes,
            outboxes,
            dirty: RefCell::default(),
            inbox: RefCell::default(),
            waiting_for_room: Cell::new(0),
        }
    }

    pub fn mailboxes(&self) -> &Arc<[Mailbox]> {
        &self.mailboxes
    }

    /// Waits until `to` has room for one more call, and takes that room.
    pub fn room(self_ctx: Rc<Ctx>, to: ShardId) -> Room {
        Room { ctx: self_ctx, to, slot: WaiterSlot::default(), waits: false }
    }

    /// Adds a message to the outbox of `to`; the caller must have room.
    pub fn send(&self, to: ShardId, message: Message) {
        debug_assert_ne!(to, self.own, "a shard calls itself without a message");
        let mut messages = self.outboxes[to.0 as usize].messages.borrow_mut();
        if messages.is_empty() {
            self.dirty.borrow_mut().push(to);
        }
        messages.push(message);
    }

    /// Posts every outbox, one batch per target.
    pub fn post(&self, ctx: &Ctx) {
        if self.dirty.borrow().is_empty() {
            return;
        }
        let dirty = std::mem::take(&mut *self.dirty.borrow_mut());
        for &to in &dirty {
            let messages = std::mem::take(&mut *self.outboxes[to.0 as usize].messages.borrow_mut());
            if messages.is_empty() {
                continue;
            }
            ctx.counters.mail_batches_sent.add(1);
            if self.mailboxes[to.0 as usize].push(messages) {
                ctx.counters.mail_wakes_sent.add(1);
            }
        }
    }

    /// Takes and handles the mail: at most a turn's worth, and not after `until`. Returns the time
    /// at which it ended.
    pub fn receive(&self, ctx: &Rc<Ctx>, mut now: Instant, until: Instant) -> Instant {
        let own = &self.mailboxes[self.own.0 as usize];
        if !own.is_empty() {
            let mut inbox = self.inbox.borrow_mut();
            own.take(|batch| inbox.extend(batch.messages));
        }
        let limit = if ctx.clock.is_real() {
            TAKEN_PER_TURN
        } else if self.inbox.borrow().is_empty() {
            0
        } else {
            // Messages of one batch need not be seen together: a real shard could be slow at
            // exactly that point.
            ctx.rng.borrow_mut().gen_range(0..8)
        };
        for _ in 0..limit {
            let next = self.inbox.borrow_mut().pop_front();
            let Some(message) = next else { break };
            match message {
                Message::Run { from, call } => {
                    ctx.counters.hops_received.add(1);
                    self.count_taken(from);
                    now = ctx.executor.run_mail(ctx, call.location(), call.group(), now, || call.run(from));
                }
                Message::Foreign { location, work } => {
                    ctx.counters.hops_received.add(1);
                    now = ctx.executor.run_mail(ctx, location, Group::Control, now, work);
                }
                Message::Done(call) => call.done(),
            }
            if ctx.clock.is_real() && now >= until {
                break;
            }
        }
        if !self.inbox.borrow().is_empty() {
            ctx.executor.shared.notify();
        }
        if self.waiting_for_room.get() > 0 {
            for (to, outbox) in self.outboxes.iter().enumerate() {
                let room = self.room_at(to);
                if room > 0 {
                    outbox.waiters.wake_first(room as usize);
                }
            }
        }
        now
    }

    fn count_taken(&self, from: ShardId) {
        let own = &self.mailboxes[self.own.0 as usize];
        let index = from.0 as usize;
        own.taken[index].fetch_add(1, Ordering::SeqCst);
        if own.wants_room[index].load(Ordering::SeqCst) && own.wants_room[index].swap(false, Ordering::SeqCst) {
            self.mailboxes[index].nudge();
        }
    }

    /// The number of calls that may still be sent to `to`.
    fn room_at(&self, to: usize) -> u64 {
        let taken = self.mailboxes[to].taken[self.own.0 as usize].load(Ordering::SeqCst);
        let sent = self.outboxes[to].sent.get();
        debug_assert!((taken..=taken + MAILBOX_LIMIT).contains(&sent), "a mailbox has no more messages than its limit");
        MAILBOX_LIMIT - (sent - taken)
    }

    fn has_room(&self, to: usize) -> bool {
        self.room_at(to) > 0
    }

    /// Called when the shard ends: messages for it are dropped from now on.
    pub fn close(&self) {
        self.mailboxes[self.own.0 as usize].close();
        let inbox = std::mem::take(&mut *self.inbox.borrow_mut());
        drop(inbox);
        for outbox in &self.outboxes {
            let messages = std::mem::take(&mut *outbox.messages.borrow_mut());
            drop(messages);
        }
    }

    /// Whether mail waits to be received.
    pub fn has_arrived(&self) -> bool {
        !self.mailboxes[self.own.0 as usize].is_empty() || !self.inbox.borrow().is_empty()
    }

    /// Registers the executor to wake, and marks this shard awake.
    pub fn awake(&self, executor: &Arc<Shared>) {
        let own = &self.mailboxes[self.own.0 as usize];
        own.executor.get_or_init(|| executor.clone());
        own.sleeping.store(false, Ordering::Relaxed);
    }

    /// Requests a wake-up by the next batch. Returns true if one is already there.
    pub fn about_to_sleep(&self) -> bool {
        let own = &self.mailboxes[self.own.0 as usize];
        own.sleeping.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if self.has_arrived() {
            own.sleeping.store(false, Ordering::Relaxed);
            return true;
        }
        false
    }
}

/// Waits for room in a mailbox; created by [`Mail::room`].
pub(crate) struct Room {
    ctx: Rc<Ctx>,
    to: ShardId,
    slot: WaiterSlot,
    waits: bool,
}

impl Room {
    fn leave(&mut self) {
        let mail = &self.ctx.mail;
        mail.outboxes[self.to.0 as usize].waiters.leave(&mut self.slot);
        if std::mem::take(&mut self.waits) {
            mail.waiting_for_room.set(mail.waiting_for_room.get() - 1);
        }
    }
}

impl Future for Room {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        let ctx = this.ctx.clone();
        let mail = &ctx.mail;
        let to = this.to.0 as usize;
        if !mail.has_room(to) {
            mail.mailboxes[to].wants_room[mail.own.0 as usize].store(true, Ordering::SeqCst);
            // Check again: the target may have taken messages before it could see `wants_room`.
            if !mail.has_room(to) {
                mail.outboxes[to].waiters.wait(&mut this.slot, cx);
                if !std::mem::replace(&mut this.waits, true) {
                    mail.waiting_for_room.set(mail.waiting_for_room.get() + 1);
                }
                return Poll::Pending;
            }
        }
        this.leave();
        mail.outboxes[to].sent.set(mail.outboxes[to].sent.get() + 1);
        Poll::Ready(())
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.leave();
    }
}
