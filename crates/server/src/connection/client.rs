//! The state of one connection, shared by its loop and its requests.

use super::latency::Did;
use super::memory::Held;
use super::slots::PendingConnection;
use super::transport::Transport;
use crate::protocol::{Dialect, Event, EventKinds, Outbox, Reply, Version};
use cql::Error;
use cql::api::{ClientState, Prepared, ResultKind, StatementResult};
use cql::system::{ClientInfo, Encryption};
use rt::time::Instant;
use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

/// When memory is short, a client may be dropped that has not read any of its waiting answers for
/// this long.
const STALLED: Duration = Duration::from_secs(5);
/// The same time once [`TOO_FULL`] times the memory for unread answers is in use.
const SLOW: Duration = Duration::from_secs(1);
/// See [`SLOW`].
const TOO_FULL: usize = 2;
/// Copies of rows of at least this many bytes are counted like large results.
const LARGE_COPY: usize = 2 << 20;
/// The assumed size of the first answer of a connection, as a fraction of the shard's memory for
/// answers. It is large, because nothing is known yet.
const FIRST_ANSWER: usize = 64;

/// A connection of this shard.
#[derive(Debug)]
pub struct Connection {
    /// The state that its statements share.
    pub client: Rc<ClientState>,
    /// The address of the client.
    pub peer: SocketAddr,
    /// The options of STARTUP that are kept, in the order sent; empty before.
    pub options: RefCell<Box<[(String, String)]>>,
    /// The protocol version of STARTUP.
    pub version: Cell<Option<Version>>,
    /// Whether STARTUP succeeded.
    pub ready: Cell<bool>,
    pub(super) dialect: Cell<Dialect>,
    pub(super) rate_limit: Cell<bool>,
    pub(super) lwt_mark: Cell<bool>,
    /// The TLS parameters, if the connection is encrypted.
    encryption: Option<Encryption>,
    pub(super) registered: Cell<EventKinds>,
    /// The state shared with the accepting shard, until STARTUP succeeds.
    pending_connection: RefCell<Option<Arc<PendingConnection>>>,
    /// Pending statements.
    pub(super) in_flight: Cell<usize>,
    /// Whether it is in the transport's list of connections that are held back.
    pub(super) held_back: Cell<bool>,
    /// The expected bytes of their answers, and of late refusals.
    pub(super) expected: Cell<usize>,
    /// The expected bytes of the next answer: roughly the largest recent one. `None` before the
    /// first.
    answer_size: Cell<Option<usize>>,
    /// The bytes that the loop holds for input beyond its first buffer, without a reservation.
    input: Cell<usize>,
    /// Write all answers, then close.
    pub(super) closing: Cell<bool>,
    /// Close at once.
    pub(super) doomed: Cell<bool>,
    /// The loop has ended, and answers are discarded.
    closed: Cell<bool>,
    /// The loop is running, and will see new answers without a wake.
    pub(super) driving: Cell<bool>,
    last_progress: Cell<Instant>,
    /// The client has read nothing for too long. It is dropped unless it reads when its answers are
    /// offered again.
    pub(super) overdue: Cell<bool>,
    outbox: RefCell<Outbox>,
    /// Counts the compressed copies of large rows. The rows themselves are counted only until they
    /// are compressed.
    copies: RefCell<Vec<Held>>,
    waker: RefCell<Option<Waker>>,
    /// Until when the refusals that were answered at once use up their allowance.
    pub(super) refused_until: Cell<Option<Instant>>,
    /// The refusals that are answered late.
    pub(super) late_refusals: Cell<u32>,
    pub(super) transport: Rc<Transport>,
}

impl Connection {
    pub(super) fn new(
        transport: Rc<Transport>,
        peer: SocketAddr,
        encryption: Option<Encryption>,
        pending_connection: Option<Arc<PendingConnection>>,
    ) -> Rc<Connection> {
        let client = Rc::new(ClientState {
            keyspace: RefCell::default(),
            role: RefCell::default(),
            address: Some(peer),
            tablets_routing: Cell::new(false),
            cancel: rt::sync::Cancel::new(),
            identity: Default::default(),
        });
        Rc::new(Connection {
            client,
            peer,
            options: RefCell::default(),
            version: Cell::new(None),
            ready: Cell::new(false),
            dialect: Cell::default(),
            rate_limit: Cell::new(false),
            lwt_mark: Cell::new(false),
            encryption,
            registered: Cell::default(),
            pending_connection: RefCell::new(pending_connection),
            in_flight: Cell::new(0),
            held_back: Cell::new(false),
            expected: Cell::new(0),
            answer_size: Cell::new(None),
            input: Cell::new(0),
            closing: Cell::new(false),
            doomed: Cell::new(false),
            closed: Cell::new(false),
            driving: Cell::new(false),
            last_progress: Cell::new(rt::time::coarse_now()),
            overdue: Cell::new(false),
            outbox: RefCell::new(Outbox::of_node(transport.node.address)),
            copies: RefCell::default(),
            waker: RefCell::new(None),
            refused_until: Cell::default(),
            late_refusals: Cell::new(0),
            transport,
        })
    }

    /// Records that STARTUP succeeded. From now on the connection is not evicted.
    pub(super) fn started(&self) {
        self.ready.set(true);
        if self.pending_connection.take().is_some_and(|pending| !pending.start()) {
            self.cut();
        }
    }

    /// The value of a STARTUP option.
    pub fn option(&self, name: &str) -> Option<String> {
        self.options.borrow().iter().find(|(key, _)| key == name).map(|(_, value)| value.clone())
    }

    /// How to answer the frame on `stream` in this version.
    #[inline]
    pub(super) fn reply(&self, version: Version, stream: i16) -> Reply {
        let dialect = self.dialect.get();
        let plain = Reply::plain(version, stream);
        Reply {
            compression: dialect.compression,
            metadata_ids: plain.metadata_ids || dialect.metadata_ids,
            lwt_mark: self.lwt_mark.get(),
            rate_limit: self.rate_limit.get(),
            ..plain
        }
    }

    /// The state for the statements of a request that names its own keyspace.
    pub(super) fn client_in(&self, keyspace: &str) -> Rc<ClientState> {
        let client = &self.client;
        Rc::new(ClientState {
            keyspace: RefCell::new(Some(keyspace.to_owned())),
            role: client.role.clone(),
            address: client.address,
            tablets_routing: client.tablets_routing.clone(),
            cancel: client.cancel.clone(),
            identity: client.identity.clone(),
        })
    }

    /// The connection's row in `system.clients`.
    pub fn info(&self) -> ClientInfo {
        ClientInfo {
            address: self.peer,
            stage: if self.ready.get() { "READY" } else { "ESTABLISHED" }.to_owned(),
            options: self.options.borrow().iter().cloned().collect(),
            protocol_version: self.version.get().map_or(0, |version| version as u8),
            shard: rt::shard::this().0,
            role: self.client.role.borrow().clone(),
            encryption: self.encryption.clone(),
        }
    }

    /// The number of pending statements.
    pub fn in_flight(&self) -> usize {
        self.in_flight.get()
    }

    /// Bytes held for answers that the client has not read.
    pub fn unread(&self) -> usize {
        self.outbox.borrow().held()
    }

    /// The expected bytes of the next answer that has rows.
    pub(super) fn answer_size(&self) -> usize {
        self.answer_size.get().unwrap_or(self.transport.limits.shard_unread / FIRST_ANSWER)
    }

    /// Counts an answer of `bytes` bytes that is still to come.
    #[inline]
    pub(super) fn expects(&self, bytes: usize) {
        let transport = &self.transport;
        transport.expected.set(transport.expected.get() + bytes);
        self.expected.set(self.expected.get() + bytes);
    }

    /// Ends [`Connection::expects`].
    #[inline]
    pub(super) fn no_longer_expects(&self, bytes: usize) {
        let transport = &self.transport;
        debug_assert!(
            transport.expected.get() >= self.expected.get() && self.expected.get() >= bytes,
            "the expected answers of each connection are counted"
        );
        transport.expected.set(transport.expected.get() - bytes);
        self.expected.set(self.expected.get() - bytes);
    }

    /// Updates the expected size after an answer of `bytes`: it grows at once, and shrinks slowly.
    #[inline]
    fn answered(&self, bytes: usize) {
        let known = self.answer_size.get().unwrap_or(bytes);
        self.answer_size.set(Some(bytes.max(known - known / 8)));
    }

    /// Sets the waker of the loop. True if it differs from the previous one.
    pub(super) fn set_waker(&self, waker: &Waker) -> bool {
        let mut known = self.waker.borrow_mut();
        if known.as_ref().is_some_and(|known| known.will_wake(waker)) {
            return false;
        }
        *known = Some(waker.clone());
        true
    }

    /// Wakes the loop.
    pub(super) fn wake(&self) {
        if !self.driving.get()
            && let Some(waker) = &*self.waker.borrow()
        {
            waker.wake_by_ref();
        }
    }

    /// Makes the loop close the connection at once.
    pub(super) fn cut(&self) {
        self.doomed.set(true);
        self.wake();
    }

    /// Sets the bytes that the loop holds for input without a reservation.
    #[inline]
    pub(super) fn holds_input(&self, bytes: usize) {
        let before = self.input.replace(bytes);
        if before != bytes {
            self.transport.input_changed(before, bytes);
        }
    }

    /// Whether the loop holds input beyond its first buffer, without a reservation.
    pub(super) fn has_input(&self) -> bool {
        self.input.get() > 0
    }

    /// Accesses the outbox, and accounts for bytes added or written.
    pub(super) fn outbox<R>(&self, f: impl FnOnce(&mut Outbox) -> R) -> R {
        let mut outbox = self.outbox.borrow_mut();
        let before = outbox.held();
        let out = f(&mut outbox);
        if self.closed.get() {
            outbox.clear();
        }
        let after = outbox.held();
        drop(outbox);
        self.transport.unread_changed(before, after);
        if after > before {
            self.check_unread(before, after);
        }
        out
    }

    /// Called when the loop has ended. Cancels statements that still run, and discards their
    /// answers.
    pub(super) fn close(&self) {
        self.closed.set(true);
        self.transport.no_longer_holds_back(self);
        self.outbox(Outbox::clear);
        debug_assert_eq!(self.unread(), 0, "a closed connection holds no answers");
        self.all_taken();
        self.client.cancel.cancel();
    }

    /// Marks the client as overdue if the shard holds too many unread answers and this client has
    /// stopped reading. The loop decides whether to drop it, because a busy shard may not have
    /// offered the answers for a while.
    fn check_unread(&self, before: usize, after: usize) {
        let now = rt::time::coarse_now();
        if before == 0 {
            self.last_progress.set(now);
        }
        let limits = &self.transport.limits;
        if self.transport.unread() <= limits.shard_unread || after <= self.unread_share() {
            return;
        }
        let is_too_full = self.transport.unread() / limits.shard_unread.max(1) >= TOO_FULL;
        let timeout = if is_too_full { SLOW } else { STALLED };
        if now.saturating_duration_since(self.last_progress.get()) >= timeout {
            self.overdue.set(true);
            self.wake();
        }
    }

    /// The socket has taken some bytes of the answers.
    #[inline]
    pub(super) fn progressed(&self) {
        self.last_progress.set(rt::time::coarse_now());
        self.overdue.set(false);
    }

    /// Bytes of unread answers that each connection may have, whatever others hold.
    fn unread_share(&self) -> usize {
        let limits = &self.transport.limits;
        limits.connection_unread.min(limits.shard_unread / self.transport.connection_count().max(1))
    }

    /// The error if the shard has no memory for an answer with this many bytes of rows.
    #[inline]
    fn no_room(&self, bytes: usize) -> Option<Error> {
        let most = self.transport.limits.largest_answer();
        (self.transport.unread() + bytes > most).then(|| self.why_no_room(bytes, most)).flatten()
    }

    #[cold]
    fn why_no_room(&self, bytes: usize, most: usize) -> Option<Error> {
        if self.unread() + bytes <= self.unread_share() {
            return None;
        }
        if bytes > most {
            return Some(Error::Invalid(format!(
                "The result of {bytes} bytes is larger than this node keeps for its clients: {most} bytes per shard. Read fewer rows or \
                 columns at a time, or give the node more memory (--memory)"
            )));
        }
        Some(Error::Overloaded(format!(
            "No memory for the result of {bytes} bytes: this shard keeps {} of {most} bytes for clients that have not read their responses yet",
            self.transport.unread()
        )))
    }

    /// Drops the client because it does not read its responses.
    #[cold]
    pub(super) fn drop_unread(&self, bytes: usize) {
        self.transport.stats.dropped_unread.add(1);
        if let Some(dropped) = self.transport.dropped_log.count(rt::time::coarse_now()) {
            tracing::warn!(peer = %self.peer, bytes, dropped,
                "dropped the connection of a client that does not read its responses");
        }
        self.cut();
    }

    /// Sends the answer of a statement, or an error.
    #[inline]
    pub(super) fn answer(self: &Rc<Self>, reply: &Reply, came: Instant, answer: Result<StatementResult, Error>) {
        match answer {
            Ok(answer) => {
                if let ResultKind::Rows(rows) = &answer.kind
                    && let Some(error) = self.no_room(rows.body.len())
                {
                    return self.error(reply, &error);
                }
                self.count_latency(&answer.kind, came);
                self.after(&answer.kind);
                let (bytes, copied) = self.outbox(|out| {
                    let before = out.len();
                    out.answer(reply, &answer);
                    // The answer may fill a segment that is then compressed, so `len` may have
                    // decreased.
                    let bytes = out.len().saturating_sub(before);
                    (bytes, bytes >= LARGE_COPY && out.copies(reply))
                });
                if copied {
                    self.count_copy(bytes);
                }
                self.answered(bytes);
            }
            Err(Error::RateLimit(refusal)) => self.refuse(reply, came, refusal),
            Err(error) => self.error(reply, &error),
        }
    }

    #[cold]
    fn count_copy(&self, bytes: usize) {
        if !self.closed.get() {
            self.copies.borrow_mut().extend(self.transport.count_copy(bytes));
        }
    }

    /// The socket has taken all answers.
    #[inline]
    pub(super) fn all_taken(&self) {
        if !self.copies.borrow().is_empty() {
            self.copies.borrow_mut().clear();
        }
    }

    #[inline]
    fn count_latency(&self, kind: &ResultKind, came: Instant) {
        let did = match kind {
            ResultKind::Rows(_) => Did::Read,
            ResultKind::Void => Did::Write,
            ResultKind::SetKeyspace(_) | ResultKind::SchemaChange(_) => return,
        };
        if self.driving.get() {
            self.transport.latencies.answered_in_turn(did);
        } else {
            self.transport.latencies.answered(did, came);
        }
    }

    fn after(&self, kind: &ResultKind) {
        match kind {
            // Schema events are sent when this node's shards have the change, whichever node
            // coordinated it.
            ResultKind::Void | ResultKind::Rows(_) | ResultKind::SchemaChange(_) => {}
            ResultKind::SetKeyspace(name) => *self.client.keyspace.borrow_mut() = Some(name.clone()),
        }
    }

    pub(super) fn prepared(&self, reply: &Reply, prepared: Result<Prepared, Error>) {
        match prepared {
            Ok(prepared) => self.outbox(|out| out.prepared(reply, &prepared)),
            Err(error) => self.error(reply, &error),
        }
    }

    pub(super) fn error(&self, reply: &Reply, error: &Error) {
        self.transport.stats.error(error);
        self.outbox(|out| out.error(reply, error));
    }

    /// Sends an event if the client registered for its kind.
    pub(crate) fn event(&self, event: &Event) {
        if !self.registered.get().has(event.kind()) {
            return;
        }
        let Some(version) = self.version.get() else { return };
        self.outbox(|out| out.event(version, self.dialect.get().compression, event));
        self.wake();
    }
}
