//! The answering end of a connection: starts requests as they arrive, and sends responses as they
//! are ready, in any order.
//!
//! The connection's task moves to the scheduling group of its requests. A request whose handler
//! does not wait is answered without a task. The number of requests in progress and the expected
//! bytes of their responses are bounded. Beyond that the connection is not read. If frames have
//! arrived or requests are in progress, and there is nothing to send, the connection sends a
//! keep-alive.

use super::config::{InternodeConfig, Verb};
use super::connection::{Connection, Role, Timer};
use super::error::{Refusal, RefusalCode};
use super::frame::{BadFrame, Frame, Head, Kind};
use super::handlers::{Caller, Handlers};
use super::handshake::Party;
use super::metrics::count;
use bytes::{BufMut, Bytes, BytesMut};
use model::HostId;
use rt::Pieces;
use rt::hash::HashMap;
use rt::sync::Deadline;
use rt::task::Task;
use rt::time::{Duration, Instant};
use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// The interval of keep-alives.
const ALIVE: Duration = Duration::from_millis(500);
/// The maximum time that a request gets, whatever its deadline is.
const LONGEST: Duration = Duration::from_secs(24 * 3600);

/// The state that the loop shares with the requests in progress.
struct Work {
    connection: Rc<Connection>,
    active: RefCell<HashMap<u64, Task<()>>>,
    /// The moving average of the length of a response, in bytes.
    average: Cell<usize>,
    /// When bytes were last sent, or were queued.
    last_sent: Cell<Instant>,
    /// The maximum length of a response, in bytes.
    largest_body: usize,
}

impl Work {
    fn respond(&self, stream: u64, result: Result<Pieces, Refusal>) {
        // The other node would take a longer response for a damaged frame, and close the
        // connection.
        let result = match result {
            Ok(body) if body.len() > self.largest_body => {
                let why = format!("the response has {} bytes; the limit is {}", body.len(), self.largest_body);
                Err(Refusal::new(RefusalCode::Failed, why))
            }
            other => other,
        };
        let (kind, body) = match result {
            Ok(body) => (Kind::Response, body),
            Err(refusal) => {
                let mut body = BytesMut::with_capacity(1 + refusal.text.len());
                body.put_u8(refusal.code as u8);
                body.put_slice(refusal.text.as_bytes());
                (Kind::Error, body.freeze().into())
            }
        };
        self.average.set((self.average.get() * 7 + body.len()) / 8);
        self.last_sent.set(rt::time::coarse_now());
        self.connection.push(Head { kind, verb: 0, stream, time_left: 0 }, body);
    }

    fn finished(&self, stream: u64, result: Result<Pieces, Refusal>) {
        let task = self.active.borrow_mut().remove(&stream);
        debug_assert!(task.is_some(), "a request is answered once");
        drop(task);
        let serving = &self.connection.counters.serving;
        serving.set(serving.get() - 1);
        self.respond(stream, result);
    }

    fn cancel(&self, stream: u64) {
        let task = self.active.borrow_mut().remove(&stream);
        if let Some(task) = task {
            task.abort();
            let serving = &self.connection.counters.serving;
            serving.set(serving.get() - 1);
        }
    }
}

/// The role of the answering end.
pub(super) struct Serving {
    work: Rc<Work>,
    host: HostId,
    shard: u16,
    address: SocketAddr,
    handlers: Rc<Handlers>,
    config: InternodeConfig,
    timer: Timer,
    /// When it was last checked whether a keep-alive is due.
    checked: Instant,
}

impl Serving {
    /// Answers the shard `party` of another node.
    pub fn new(connection: Rc<Connection>, party: &Party, handlers: Rc<Handlers>, config: InternodeConfig) -> Serving {
        let checked = connection.last_received();
        let last_sent = Cell::new(checked);
        let work = Work {
            connection,
            active: RefCell::default(),
            average: Cell::new(0),
            last_sent,
            largest_body: config.largest_body,
        };
        let (host, shard, address) = (party.host, party.shard, party.address);
        Serving { work: Rc::new(work), host, shard, address, handlers, config, timer: Timer::default(), checked }
    }

    fn request(&mut self, head: Head, body: Bytes) {
        let work = &self.work;
        count(&work.connection.counters.served);
        // Its time began when it was received: it may have waited for its turn.
        let left = Duration::from_micros(head.time_left).min(LONGEST);
        let deadline = Deadline(work.connection.last_received() + left);
        if deadline.is_past() {
            return work.respond(head.stream, Err(late()));
        }
        // All requests of a connection are of one lane, so this happens once.
        if let Some(group) = Verb::group_of(head.verb)
            && group != rt::task::group()
        {
            rt::task::move_to(group);
        }
        let caller = Caller { host: self.host, shard: self.shard, address: self.address, deadline };
        let mut answer = match self.handlers.start(head.verb, caller, body) {
            Ok(answer) => answer,
            Err(refusal) => return work.respond(head.stream, Err(refusal)),
        };
        // A handler that does not wait is answered here. The waker can be a no-op, because the task
        // of a handler that waits polls it again.
        match answer.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(result) => work.respond(head.stream, result),
            Poll::Pending => {
                let counters = &work.connection.counters;
                count(&counters.served_later);
                count(&counters.serving);
                let (later, stream) = (work.clone(), head.stream);
                let task = rt::task::spawn(async move {
                    let result = deadline.limit(answer).await.unwrap_or_else(|_| Err(late()));
                    later.finished(stream, result);
                });
                // A stream that is used twice is an error of the other node. The first request gets
                // no response.
                work.cancel(head.stream);
                let other = work.active.borrow_mut().insert(head.stream, task);
                debug_assert!(other.is_none(), "a stream has one request");
            }
        }
    }
}

fn late() -> Refusal {
    Refusal::new(RefusalCode::Late, "the request's time ran out")
}

impl Role for Serving {
    fn frame(&mut self, frame: Frame) -> Result<(), BadFrame> {
        match frame.head.kind {
            Kind::Request => self.request(frame.head, frame.body),
            Kind::Cancel => self.work.cancel(frame.head.stream),
            Kind::Alive => {}
            kind @ (Kind::Response | Kind::Error) => return Err(BadFrame::Kind(kind as u8)),
        }
        Ok(())
    }

    fn may_take(&self) -> bool {
        let active = self.work.active.borrow().len();
        let unwritten = self.work.connection.unwritten();
        let expected = unwritten.saturating_add(active.saturating_mul(self.work.average.get()));
        let may =
            active < self.config.in_flight && (expected < self.config.queued_bytes || (active == 0 && unwritten == 0));
        if !may {
            count(&self.work.connection.counters.blocked);
        }
        may
    }

    fn written(&mut self, _n: usize) {
        self.work.last_sent.set(rt::time::coarse_now());
    }

    fn turn(&mut self, cx: &mut Context<'_>) {
        loop {
            let last_received = self.work.connection.last_received();
            let busy = last_received >= self.checked || !self.work.active.borrow().is_empty();
            let wanted = rt::time::coarse_now() + if busy { ALIVE } else { self.config.idle * 2 };
            if !self.timer.fired(wanted, cx) {
                return;
            }
            if busy {
                // What was sent before the last frame arrived does not answer that frame.
                if self.work.last_sent.get() <= last_received.max(self.checked) {
                    self.work
                        .connection
                        .push(Head { kind: Kind::Alive, verb: 0, stream: 0, time_left: 0 }, Bytes::new().into());
                }
                self.checked = rt::time::coarse_now();
            } else if rt::time::now().saturating_duration_since(last_received) >= self.config.idle * 2 {
                self.work.connection.end("the connection was idle", false);
                return;
            }
        }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let active = std::mem::take(&mut *self.work.active.borrow_mut());
        let serving = &self.work.connection.counters.serving;
        serving.set(serving.get() - active.len() as u64);
        active.into_values().for_each(|task| task.abort());
    }
}
