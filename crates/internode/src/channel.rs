//! The requesting end of a connection: sends requests, and delivers responses to the waiting calls.
//!
//! The number of requests in flight and of bytes that wait to be written is bounded. Beyond that,
//! calls wait, and beyond a number of waiting calls they are refused. A live peer soon answers any
//! frame with a keep-alive, and repeats the keep-alive while it works on a request. So a connection
//! on which nothing arrives after a request was sent is closed.

use super::config::{InternodeConfig, Verb};
use super::connection::{Connection, Role, Timer};
use super::error::{CallError, Refusal, RefusalCode};
use super::frame::{BadFrame, Frame, HEADER, Head, Kind};
use super::handshake::Party;
use super::metrics::{Level, count};
use bytes::Bytes;
use rt::hash::HashMap;
use rt::sync::{Deadline, Semaphore};
use rt::time::{Duration, Instant};
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// The interval at which a connection that waits for responses is checked.
const LOOK: Duration = Duration::from_millis(250);

/// The requesting end of an open connection.
pub(super) struct Channel {
    pub connection: Rc<Connection>,
    /// The answering end.
    pub party: Party,
    pending: RefCell<HashMap<u64, Pending>>,
    next_stream: Cell<u64>,
    /// Permits for requests in flight.
    requests: Semaphore,
    /// Permits for bytes to queue.
    room: Semaphore,
    /// Queued bytes beyond the permits of `room`: of a request that is larger than all of them.
    excess: Cell<usize>,
    waiting: Cell<u64>,
    /// When the first frame was sent after the last one arrived. Since when a frame of the peer is
    /// expected.
    expected_since: Cell<Instant>,
    last_used: Cell<Instant>,
    closed: RefCell<Option<Arc<str>>>,
    config: InternodeConfig,
}

enum Pending {
    Waits(Option<Waker>),
    Came(Result<Bytes, CallError>),
}

impl Channel {
    pub fn new(connection: Rc<Connection>, config: InternodeConfig, party: Party) -> Rc<Channel> {
        let now = rt::time::coarse_now();
        Rc::new(Channel {
            connection,
            party,
            pending: RefCell::default(),
            next_stream: Cell::new(1),
            requests: Semaphore::new(config.in_flight),
            room: Semaphore::new(config.queued_bytes.min(u32::MAX as usize >> 1)),
            excess: Cell::new(0),
            waiting: Cell::new(0),
            expected_since: Cell::new(now),
            last_used: Cell::new(now),
            closed: RefCell::default(),
            config,
        })
    }

    /// Whether calls can be made.
    pub fn is_open(&self) -> bool {
        self.closed.borrow().is_none()
    }

    /// Closes the connection. Waiting calls get the reason.
    pub fn close(&self, why: &Arc<str>) {
        let why = self.closed.borrow_mut().get_or_insert_with(|| why.clone()).clone();
        self.requests.close();
        self.room.close();
        let lost = &self.connection.counters.lost;
        let mut wakers = Vec::new();
        for pending in self.pending.borrow_mut().values_mut() {
            if let Pending::Waits(waker) = pending {
                wakers.extend(waker.take());
                *pending = Pending::Came(Err(CallError::Lost(why.clone())));
                count(lost);
            }
        }
        wakers.into_iter().for_each(Waker::wake);
        self.connection.end(&why, true);
    }

    /// Sends a request and waits for the response. Dropping the future cancels the request on the
    /// other node.
    pub async fn call(&self, verb: Verb, body: Bytes, deadline: Deadline) -> Result<Bytes, CallError> {
        let cost = (HEADER + body.len()).min(self.config.queued_bytes.min(u32::MAX as usize >> 1)) as u32;
        match (self.requests.try_acquire(), self.room.try_acquire_many(cost)) {
            (Ok(request), Ok(room)) => {
                request.forget();
                room.forget();
            }
            (request, room) => {
                drop((request, room));
                Box::pin(self.wait_for_room(cost, deadline)).await?;
            }
        }
        let left = deadline.remaining();
        if left.is_zero() || !self.is_open() {
            self.requests.add_permits(1);
            self.room.add_permits(cost as usize);
            if !self.is_open() {
                return Err(CallError::Unreachable(self.why_closed()));
            }
            count(&self.connection.counters.timeouts);
            return Err(CallError::Timeout);
        }
        let stream = self.next_stream.get();
        self.next_stream.set(stream + 1);
        let head = Head { kind: Kind::Request, verb: verb as u8, stream, time_left: left.as_micros() as u64 };
        let now = rt::time::coarse_now();
        let other = self.pending.borrow_mut().insert(stream, Pending::Waits(None));
        debug_assert!(other.is_none(), "an answer belongs to one request");
        debug_assert!(self.pending.borrow().len() <= self.config.in_flight, "each request in flight has a permit");
        self.expect_frame(now);
        self.last_used.set(now);
        let added = self.connection.push(head, body.into());
        // Permits that compression saved are returned. Bytes beyond all permits are counted as
        // excess.
        match added.checked_sub(cost as usize) {
            Some(more) => self.excess.set(self.excess.get() + more),
            None => self.room.add_permits(cost as usize - added),
        }
        count(&self.connection.counters.requests_sent);
        let _level = Level::up(&self.connection.counters.wait_reply);
        match deadline.limit(ResponseFuture { channel: self, stream, came: false }).await {
            Ok(answer) => answer,
            Err(_) => {
                count(&self.connection.counters.timeouts);
                Err(CallError::Timeout)
            }
        }
    }

    async fn wait_for_room(&self, cost: u32, deadline: Deadline) -> Result<(), CallError> {
        if self.waiting.get() >= self.config.waiting as u64 {
            count(&self.connection.counters.overloaded);
            return Err(CallError::Overloaded);
        }
        let _waits = Level::up(&self.waiting);
        let _pending = Level::up(&self.connection.counters.pending);
        let room = async {
            let request = self.requests.acquire().await.ok()?;
            let room = self.room.acquire_many(cost).await.ok()?;
            request.forget();
            room.forget();
            Some(())
        };
        let got = deadline.limit(room).await;
        match got {
            Ok(Some(())) => Ok(()),
            Ok(None) => Err(CallError::Unreachable(self.why_closed())),
            Err(_) => {
                count(&self.connection.counters.timeouts);
                Err(CallError::Timeout)
            }
        }
    }

    fn why_closed(&self) -> Arc<str> {
        self.closed.borrow().clone().unwrap_or_else(|| "the connection was closed".into())
    }

    fn answered(&self, stream: u64, answer: Result<Bytes, CallError>) {
        // A stream without an entry belongs to a call that was cancelled or timed out.
        let waker = match self.pending.borrow_mut().get_mut(&stream) {
            Some(pending @ Pending::Waits(_)) => match std::mem::replace(pending, Pending::Came(answer)) {
                Pending::Waits(waker) => waker,
                Pending::Came(_) => None,
            },
            // A second response is an error of the other node.
            Some(Pending::Came(_)) | None => return,
        };
        count(&self.connection.counters.replied);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Notes that a frame is sent. The peer answers each frame, at least with a keep-alive.
    fn expect_frame(&self, now: Instant) {
        if !self.expects_frame() {
            self.expected_since.set(now);
        }
    }

    /// Whether no bytes have arrived since a frame was sent.
    fn expects_frame(&self) -> bool {
        self.connection.last_received() < self.expected_since.get()
    }

    /// Whether a frame is expected.
    fn expects(&self) -> bool {
        self.expects_frame() || !self.pending.borrow().is_empty()
    }

    /// How long nothing has arrived on the connection although a frame is expected.
    fn silent_for(&self, now: Instant) -> Duration {
        match self.expects() {
            true => now.saturating_duration_since(self.connection.last_received().max(self.expected_since.get())),
            false => Duration::ZERO,
        }
    }

    /// Why the connection should be closed now, if it should. True: at once.
    fn looked_at(&self, now: Instant) -> Option<(Arc<str>, bool)> {
        if !self.expects() {
            let idle = now.saturating_duration_since(self.last_used.get()) >= self.config.idle;
            return idle.then(|| ("the connection was idle".into(), false));
        }
        let silent = self.silent_for(now);
        (silent >= self.config.silence).then(|| (silence(silent), true))
    }

    /// Closes the connection if nothing has arrived for `time` although a frame is expected.
    pub fn end_if_silent(&self, time: Duration) {
        let silent = self.silent_for(rt::time::now());
        if silent >= time {
            self.close(&silence(silent));
        }
    }
}

fn silence(silent: Duration) -> Arc<str> {
    format!("the other node sent nothing for {silent:?}").into()
}

/// Waits for a response.
struct ResponseFuture<'a> {
    channel: &'a Channel,
    stream: u64,
    came: bool,
}

impl Future for ResponseFuture<'_> {
    type Output = Result<Bytes, CallError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let mut all = this.channel.pending.borrow_mut();
        match all.get_mut(&this.stream) {
            Some(Pending::Waits(waker)) => {
                match waker {
                    Some(waker) => waker.clone_from(cx.waker()),
                    None => *waker = Some(cx.waker().clone()),
                }
                Poll::Pending
            }
            Some(Pending::Came(_)) | None => {
                this.came = true;
                match all.remove(&this.stream) {
                    Some(Pending::Came(answer)) => Poll::Ready(answer),
                    _ => Poll::Ready(Err(CallError::Lost(this.channel.why_closed()))),
                }
            }
        }
    }
}

impl Drop for ResponseFuture<'_> {
    fn drop(&mut self) {
        self.channel.requests.add_permits(1);
        let free = self.channel.requests.available_permits();
        debug_assert!(free <= self.channel.config.in_flight, "a request returns its permit once");
        if self.came {
            return;
        }
        let dropped = self.channel.pending.borrow_mut().remove(&self.stream);
        if matches!(dropped, Some(Pending::Waits(_))) && self.channel.is_open() {
            count(&self.channel.connection.counters.cancelled);
            // Best effort: a full queue is not made longer by a cancel frame.
            if self.channel.connection.unwritten() < self.channel.config.queued_bytes {
                let head = Head { kind: Kind::Cancel, verb: 0, stream: self.stream, time_left: 0 };
                // A connection that loses it would lose the next request, too.
                self.channel.expect_frame(rt::time::coarse_now());
                let added = self.channel.connection.push(head, Bytes::new().into());
                self.channel.excess.set(self.channel.excess.get() + added);
            }
        }
    }
}

/// The role of the requesting end.
pub(super) struct Asking {
    channel: Rc<Channel>,
    timer: Timer,
}

impl Asking {
    pub fn new(channel: Rc<Channel>) -> Asking {
        Asking { channel, timer: Timer::default() }
    }
}

impl Role for Asking {
    fn frame(&mut self, frame: Frame) -> Result<(), BadFrame> {
        match frame.head.kind {
            Kind::Response => self.channel.answered(frame.head.stream, Ok(frame.body)),
            Kind::Error => {
                count(&self.channel.connection.counters.refused);
                let (code, text) = frame.body.split_first().map_or((0, &[][..]), |(code, text)| (*code, text));
                let refusal = Refusal::new(RefusalCode::from_code(code), String::from_utf8_lossy(text));
                self.channel.answered(frame.head.stream, Err(CallError::Refused(refusal)));
            }
            Kind::Alive => {}
            kind @ (Kind::Request | Kind::Cancel) => return Err(BadFrame::Kind(kind as u8)),
        }
        Ok(())
    }

    fn may_take(&self) -> bool {
        true
    }

    fn written(&mut self, n: usize) {
        let excess = self.channel.excess.get();
        let of_excess = excess.min(n);
        self.channel.excess.set(excess - of_excess);
        self.channel.room.add_permits(n - of_excess);
        let all = self.channel.config.queued_bytes.min(u32::MAX as usize >> 1);
        debug_assert!(self.channel.room.available_permits() <= all, "only bytes that were queued become free");
    }

    fn turn(&mut self, cx: &mut Context<'_>) {
        loop {
            let busy = self.channel.expects();
            let now = rt::time::coarse_now();
            let wanted = now + if busy { LOOK } else { self.channel.config.idle };
            if !self.timer.fired(wanted, cx) {
                return;
            }
            if let Some((why, at_once)) = self.channel.looked_at(rt::time::now()) {
                if at_once {
                    self.channel.close(&why);
                } else {
                    self.channel.connection.end(&why, false);
                    self.channel.closed.borrow_mut().get_or_insert(why);
                }
                return;
            }
        }
    }
}
