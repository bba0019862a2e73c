//! The loop of a connection.
//!
//! One turn starts all buffered requests, writes all answers and reads all input, until nothing is
//! left to do. Tasks append the answers of statements that had to wait, and wake the loop. All
//! answers of one wake are written together, in any order: clients match them by stream.
//!
//! The loop stops reading while the client does not read its answers, too many of its statements
//! are pending, or the shard has no memory for requests. TCP then slows the client down.

mod large_frames;

use super::Service;
use super::arrival::Arrival;
use super::client::Connection;
use super::memory::{Blocked, Charge, Ticket};
use super::slots::PendingConnection;
use super::startup;
use super::statement::{Job, Statement, Waiting};
use super::stream::ClientStream;
use super::transport::{Server, Transport};
use crate::protocol::{Frames, Next, Opcode, RawFrame, Reply, Request};
use cql::Error;
use cql::system::Encryption;
use large_frames::LargeFrame;
use rt::net::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, StreamBacklog};
use rt::time::Duration;
use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

/// How often a request holds its body: as received, as a mutation, and as logged or sent to a
/// shard.
const COPIES: usize = 3;
/// Bytes of large answers that a client must read within `Limits::unread_time`. Of others, one
/// byte.
const LEAST_TAKEN: u64 = 1 << 20;
/// A pending statement is charged for its frame and for this many bytes.
const STATEMENT: usize = 8 << 10;
/// The fraction of the shard's memory for answers that one connection's pending answers may take.
const CONNECTION_PART: usize = 4;
/// The number of frames between two checks of the clock.
const FRAMES_PER_CLOCK: u32 = 16;
/// How long a client may take to read its last answers before its connection is closed.
const LINGER: Duration = Duration::from_secs(1);

/// How often a connection that is not read is asked whether its client has closed it.
const LOOK_FOR_CLOSE: Duration = Duration::from_millis(500);

/// The reason why a loop ended.
#[derive(Debug, PartialEq, Eq)]
enum End {
    /// The client disconnected, or must be disconnected.
    Disconnected,
    /// All answers were written. The client may still be sending.
    Answered,
    /// The node is stopping.
    Stopped,
}

/// Serves one connection until it ends.
pub(super) async fn serve<T, S>(
    server: Rc<Server<S>>,
    mut stream: T,
    peer: SocketAddr,
    encryption: Option<Encryption>,
    pending_connection: Option<Arc<PendingConnection>>,
) where
    T: ClientStream,
    S: Service,
{
    let Some(_inside) = server.gate.borrow().enter() else { return };
    let transport = server.transport.clone();
    let connection = Connection::new(transport.clone(), peer, encryption, pending_connection.clone());
    let id = transport.add(connection.clone());
    if pending_connection.is_some_and(|pending| !pending.is_listed_as(id)) {
        connection.cut();
    }
    let stop = transport.stop();
    let mut drive = Drive {
        stream: &mut stream,
        frames: Frames::new(transport.limits.longest_body()),
        stopping: stop.cancelled(),
        stop,
        connection: connection.clone(),
        transport: transport.clone(),
        server,
        large: None,
        ticket: None,
        blocked: Cell::default(),
        unflushed: false,
        taken: 0,
        unread: None,
        look_for_close: None,
        arrival: Arrival::new(rt::time::coarse_now(), transport.limits.longest_wait),
        backlog: StreamBacklog::default(),
    };
    let end = poll_fn(|cx| drive.poll(cx)).await;
    drop(drive);
    connection.close();
    transport.remove(id);
    // A close with unread input resets the connection; the client might miss the error, or the last
    // answers of a node that stops.
    if end == End::Answered || end == End::Stopped && stream.unread_input() > 0 {
        let _ = rt::time::timeout(LINGER, drain(&mut stream)).await;
    }
}

/// Sends the end of the stream, and discards further input.
async fn drain<T: AsyncRead + AsyncWrite + Unpin>(stream: &mut T) -> io::Result<()> {
    stream.shutdown().await?;
    let mut bin = vec![0; 4 << 10];
    while stream.read(&mut bin).await? > 0 {}
    Ok(())
}

/// Whether requests of this kind are refused by an overloaded shard.
fn is_statement(opcode: Opcode) -> bool {
    matches!(opcode, Opcode::Query | Opcode::Prepare | Opcode::Execute | Opcode::Batch)
}

impl<T, S> Drop for Drive<'_, T, S> {
    fn drop(&mut self) {
        self.connection.holds_input(0);
    }
}

struct Drive<'a, T, S> {
    stream: &'a mut T,
    frames: Frames,
    /// Fires when the connection must end.
    stop: rt::sync::Cancel,
    stopping: rt::sync::Cancelled,
    connection: Rc<Connection>,
    transport: Rc<Transport>,
    server: Rc<Server<S>>,
    /// The memory of the large frame that is being read, and its deadline.
    large: Option<LargeFrame>,
    /// The position in the queue of large frames that wait for memory.
    ticket: Option<Ticket>,
    /// Set while the connection waits for memory of requests that are not large.
    blocked: Cell<Option<Blocked>>,
    /// The stream was given bytes that it may not have sent yet.
    unflushed: bool,
    /// Bytes of answers that the socket has taken.
    taken: u64,
    /// Set while answers wait for the socket.
    unread: Option<Unread>,
    /// When the socket is asked next whether the client has closed it, while it is not read.
    look_for_close: Option<Pin<Box<dyn Future<Output = ()>>>>,
    /// When the frames were received.
    arrival: Arrival,
    /// The input that is left when a turn ends because the poll's time slice was used up.
    backlog: StreamBacklog,
}

/// Answers that wait for the socket.
struct Unread {
    /// `Drive::taken` at the last check.
    taken: u64,
    /// The time of the next check.
    look: Pin<Box<dyn Future<Output = ()>>>,
}

/// Why no more requests are started.
#[derive(PartialEq, Eq)]
enum Stop {
    /// No complete frame is buffered.
    Input,
    /// A limit is reached. The loop is woken when that changes.
    Blocked,
    /// Other tasks should run first.
    Yield,
}

impl<T, S> Drive<'_, T, S>
where
    T: ClientStream,
    S: Service,
{
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<End> {
        if self.connection.set_waker(cx.waker()) {
            self.blocked.take();
            // A cancellation is detected by `is_cancelled` below.
            let _ = Pin::new(&mut self.stopping).poll(cx);
        }
        self.connection.driving.set(true);
        let began = rt::time::coarse_now();
        self.frames.set_pressed(self.transport.memory.is_pressed());
        let out = self.turn(cx);
        self.count_input();
        self.connection.driving.set(false);
        self.transport.latencies.turn_ends(began);
        match out {
            Ok(poll) => poll,
            Err(_) => Poll::Ready(End::Disconnected),
        }
    }

    /// Does as much as possible now. An error comes from the socket.
    fn turn(&mut self, cx: &mut Context<'_>) -> io::Result<Poll<End>> {
        loop {
            let stop = self.start_requests(cx);
            if self.stop.is_cancelled() {
                self.connection.answer_late_refusals();
            }
            let flushed = self.flush(cx)?;
            if flushed {
                self.unread = None;
                self.connection.all_taken();
            } else {
                self.check_unread(cx);
            }
            if self.connection.doomed.get() {
                return Ok(Poll::Ready(End::Disconnected));
            }
            if self.connection.closing.get() {
                self.backlog.none_left();
                // No more input is read, so others may have the memory for it.
                (self.large, self.ticket) = (None, None);
                return Ok(if flushed { Poll::Ready(End::Answered) } else { Poll::Pending });
            }
            if self.stop.is_cancelled() && self.connection.in_flight() == 0 {
                return Ok(if flushed { Poll::Ready(End::Stopped) } else { Poll::Pending });
            }
            match stop {
                Stop::Yield => {
                    self.input_is_left();
                    cx.waker().wake_by_ref();
                    return Ok(Poll::Pending);
                }
                // Writing may have made room, so the connection can continue. If not, it leaves the
                // queue for memory.
                Stop::Blocked if self.is_blocked(cx) => {
                    self.ticket = None;
                    if let Some(large) = &mut self.large {
                        large.paused = true;
                    }
                    return Ok(self.wait_without_reading(cx));
                }
                Stop::Blocked if self.ticket.is_some() => return Ok(self.wait_without_reading(cx)),
                Stop::Blocked => continue,
                Stop::Input => {}
            }
            if !self.may_read(cx) {
                if self.connection.closing.get() {
                    continue;
                }
                return Ok(self.wait_without_reading(cx));
            }
            self.look_for_close = None;
            if self.large.is_some() && self.frames.must_not_open() {
                self.frames.grant();
                continue;
            }
            let buffered = self.frames.buffered();
            let read = {
                let space = self.frames.space(self.large.is_some());
                pin!(self.stream.read_buf(space)).poll(cx)?
            };
            match read {
                // The stream may have input, but this shard should run other tasks first.
                Poll::Pending if !rt::task::may_poll_io() => {
                    self.input_is_left();
                    return Ok(Poll::Pending);
                }
                Poll::Pending => {
                    self.backlog.none_left();
                    self.arrival.forget_marks();
                    self.relieve();
                    return Ok(Poll::Pending);
                }
                Poll::Ready(0) => return Ok(Poll::Ready(End::Disconnected)),
                Poll::Ready(n) => {
                    self.frames.arrived(n);
                    self.backlog.received(n);
                    self.arrival.has_read(rt::time::coarse_now(), n, buffered);
                    self.transport.stats.received.add(n as u64);
                }
            }
        }
    }

    /// Waits without reading the socket. The end of the stream is not detected meanwhile, so this
    /// function asks the socket at intervals whether the client has closed it. Requests of a closed
    /// connection would only delay others. The loop also looks then whether it may read again: an
    /// overload may have ended.
    #[cold]
    fn wait_without_reading(&mut self, cx: &mut Context<'_>) -> Poll<End> {
        self.arrival.pauses(rt::time::coarse_now());
        match self.has_enough_pending() {
            true => {
                if self.connection.in_flight() < self.transport.limits.connection_in_flight {
                    self.transport.hold_back(&self.connection);
                }
                self.mark();
            }
            // It waits for the client, which reads its answers slowly, or for memory.
            false => self.arrival.forget_marks(),
        }
        self.backlog.none_left();
        self.relieve();
        let new_look = || Box::pin(rt::time::sleep(LOOK_FOR_CLOSE)) as Pin<Box<dyn Future<Output = ()>>>;
        let look = self.look_for_close.get_or_insert_with(new_look);
        while look.as_mut().poll(cx).is_ready() {
            if self.stream.is_closed_by_client() {
                return Poll::Ready(End::Disconnected);
            }
            *look = new_look();
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    }

    /// Records that the turn ends because the poll's time slice was used up.
    fn input_is_left(&mut self) {
        self.backlog.some_left(self.frames.unopened(), self.stream);
        self.mark();
    }

    /// Records what the socket holds.
    fn mark(&mut self) {
        let now = rt::time::coarse_now();
        if self.arrival.wants_mark(now) {
            self.arrival.mark(now, self.stream.unread_input());
        }
    }

    /// Counts the input that is in no reservation.
    #[inline]
    fn count_input(&self) {
        let reserved = self.large.as_ref().map_or(0, LargeFrame::need);
        self.connection.holds_input(self.frames.held().saturating_sub(reserved));
    }

    /// Under input pressure, gives memory back that the connection does not need now.
    #[inline]
    fn relieve(&mut self) {
        if self.transport.memory.is_pressed() && self.large.is_none() {
            self.frames.shrink();
        }
    }

    /// Starts the buffered requests.
    fn start_requests(&mut self, cx: &mut Context<'_>) -> Stop {
        let mut started = 0u32;
        loop {
            if self.connection.closing.get() || self.is_blocked(cx) {
                return Stop::Blocked;
            }
            if self.connection.dialect.get().compression.is_some() && !self.may_open(cx) {
                return Stop::Blocked;
            }
            match self.frames.take_next() {
                Next::Incomplete => return Stop::Input,
                Next::Frame(frame) => {
                    let charge = self.take_charge(frame.body.len());
                    self.request(frame, charge);
                }
                Next::Refused(refused) => {
                    self.arrival.of_frame(rt::time::coarse_now(), self.frames.unopened());
                    self.take_charge(0);
                    self.transport.stats.error(&refused.error);
                    self.transport.stats.served.add(1);
                    self.connection.outbox(|out| out.foreign_error(refused.version, refused.stream, &refused.error));
                    if refused.fatal {
                        tracing::debug!(peer = %self.connection.peer, error = %refused.error, "refused a client");
                        self.connection.closing.set(true);
                    }
                }
            }
            started += 1;
            if started.is_multiple_of(FRAMES_PER_CLOCK) && rt::task::is_time_to_yield() {
                return Stop::Yield;
            }
        }
    }

    /// Whether no request may be started. If so, the loop is woken when that changes.
    #[inline]
    fn is_blocked(&self, cx: &mut Context<'_>) -> bool {
        let limits = &self.transport.limits;
        if self.has_enough_pending() {
            return true;
        }
        let unread = self.connection.unread();
        let expected = self.connection.expected.get();
        // A client without unread or pending answers always gets one: no starvation by others.
        let shard_is_full =
            unread + expected > 0 && self.transport.unread() + self.transport.expected.get() >= limits.shard_unread;
        let expects_much = expected > 0 && expected >= limits.shard_unread / CONNECTION_PART;
        if unread >= limits.connection_unread || expects_much || shard_is_full {
            self.transport.stats.blocked_unread.add(1);
            return true;
        }
        if self.stop.is_cancelled() {
            return true;
        }
        if self.transport.memory.is_full() {
            self.transport.memory.wait(&self.blocked, cx.waker());
            return true;
        }
        false
    }

    /// Whether the connection has as many pending statements as it may have now.
    #[inline]
    fn has_enough_pending(&self) -> bool {
        let pending = self.connection.in_flight();
        pending >= self.transport.limits.connection_in_flight || !self.transport.may_start(pending)
    }

    /// Drops the client if it stopped reading, because others may wait for memory of its answers.
    #[cold]
    fn check_unread(&mut self, cx: &mut Context<'_>) {
        if self.connection.overdue.take() {
            return self.connection.drop_unread(self.connection.unread());
        }
        let limit = self.transport.limits.unread_time;
        let unread =
            self.unread.get_or_insert_with(|| Unread { taken: self.taken, look: Box::pin(rt::time::sleep(limit)) });
        while unread.look.as_mut().poll(cx).is_ready() {
            let held = self.connection.unread();
            let least = if held as u64 >= LEAST_TAKEN { LEAST_TAKEN } else { 1 };
            if self.taken - unread.taken < least {
                return self.connection.drop_unread(held);
            }
            *unread = Unread { taken: self.taken, look: Box::pin(rt::time::sleep(limit)) };
        }
    }

    /// Writes all answers. True if nothing is left.
    fn flush(&mut self, cx: &mut Context<'_>) -> io::Result<bool> {
        let connection = &self.connection;
        let stream = &mut *self.stream;
        let stats = &self.transport.stats;
        let unflushed = &mut self.unflushed;
        let taken = &mut self.taken;
        connection.outbox(|outbox| {
            outbox.flush(stream, unflushed, cx, |n| {
                *taken += n as u64;
                stats.sent.add(n as u64);
                connection.progressed();
            })
        })
    }

    /// Starts the request in `frame`.
    #[inline]
    fn request(&mut self, frame: RawFrame, charge: Option<Charge>) {
        let received = self.arrival.of_frame(rt::time::coarse_now(), self.frames.unopened());
        let connection = &self.connection;
        let stats = &self.transport.stats;
        stats.request(frame.opcode);
        stats.served.add(1);
        let (opcode, version, traced) = (frame.opcode, frame.version, frame.is_traced());
        let frame_len = frame.body.len();
        let mut reply = connection.reply(version, frame.stream);
        if let Err(error) = startup::check_order(connection, opcode, version) {
            return connection.error(&reply, &error);
        }
        if let Some(waited) = received.too_long
            && is_statement(opcode)
            && self.transport.is_saturated()
        {
            return self.refuse_late(&reply, waited);
        }
        let received = received.at;
        let request = match Request::decode(frame, connection.dialect.get(), self.transport.limits.longest_body()) {
            Ok(request) => request,
            Err(error) => return connection.error(&reply, &error),
        };
        if traced {
            reply.trace = Some(rt::random::time_uuid());
        }
        let mut keyspace = None;
        let statement = match request {
            Request::Execute { id, metadata_id, mut params } => {
                (params.trace, params.received) = (reply.trace, Some(received));
                (reply.skip_metadata, reply.rate_limit_info) = (params.skip_metadata, params.rate_limit_info);
                reply.metadata_id = metadata_id;
                // Without a metadata id, the client relies on the columns that it knows.
                params.skip_metadata &= metadata_id.is_none();
                Statement::Execute { id, params }
            }
            Request::Query { text, mut params, keyspace: inside } => {
                keyspace = inside;
                (params.trace, params.received) = (reply.trace, Some(received));
                (reply.skip_metadata, reply.rate_limit_info) = (params.skip_metadata, params.rate_limit_info);
                Statement::Query { text, params }
            }
            Request::Batch { mut batch, keyspace: inside } => {
                keyspace = inside;
                (batch.params.trace, batch.params.received) = (reply.trace, Some(received));
                reply.rate_limit_info = batch.params.rate_limit_info;
                Statement::Batch(batch)
            }
            Request::Prepare { text, keyspace: inside } => {
                keyspace = inside;
                Statement::Prepare { text, trace: reply.trace }
            }
            other => return self.session(&Reply { trace: None, ..reply }, other),
        };
        let job = Job { connection: connection.clone(), reply, came: received, statement, keyspace };
        self.statement(job, frame_len, charge);
    }

    /// Refuses a request that has waited too long.
    #[cold]
    fn refuse_late(&self, reply: &Reply, waited: Duration) {
        self.transport.stats.shed.add(1);
        let error = Error::Overloaded(format!(
            "the request has waited for {} ms for this shard, which is overloaded (configured via \
             native_transport_max_queue_wait_in_ms)",
            waited.as_millis()
        ));
        self.connection.error(reply, &error);
    }

    /// Handles requests about the connection itself.
    fn session(&mut self, reply: &Reply, request: Request) {
        let connection = &self.connection;
        match request {
            Request::Options => {
                let options = startup::supported(&self.transport, reply.version);
                connection.outbox(|out| out.supported(reply, &options));
            }
            Request::Startup { options } => match startup::start(connection, reply.version, options) {
                Ok(form) => {
                    self.frames.started();
                    connection.outbox(|out| out.ready(reply));
                    if let Some(form) = form {
                        connection.outbox(|out| out.use_segments(form));
                        self.frames.use_segments(form);
                    }
                }
                Err(error) => connection.error(reply, &error),
            },
            Request::Register(kinds) => {
                let mut registered = connection.registered.get();
                registered.add_all(kinds);
                connection.registered.set(registered);
                connection.outbox(|out| out.ready(reply));
            }
            _ => connection.error(reply, &Error::Protocol("Unexpected message AUTH_RESPONSE".to_owned())),
        }
    }

    /// Starts a statement. If it has to wait, a task finishes it.
    #[inline]
    fn statement(&mut self, job: Job, frame_len: usize, charge: Option<Charge>) {
        let transport = &self.transport;
        let limit = transport.limits.shard_in_flight;
        if transport.in_flight.get() >= limit {
            transport.stats.shed.add(1);
            let error = Error::Overloaded(format!(
                "too many in-flight requests (configured via max_concurrent_requests_per_shard): {limit}"
            ));
            return self.connection.error(&job.reply, &error);
        }
        let writes = job.statement.writes();
        let Some(rest) = self.server.workers.start(job) else { return };
        transport.stats.waited.add(1);
        let expected = self.server.workers.answer_size(writes, self.connection.answer_size());
        // The memory of a large frame is charged already.
        let bytes = if charge.is_some() { STATEMENT } else { STATEMENT + COPIES * frame_len };
        let waiting = Waiting::new(transport, &self.connection, expected, bytes, charge);
        rt::task::spawn(async move {
            rest.await;
            drop(waiting);
        })
        .detach();
    }
}
