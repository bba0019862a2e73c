//! A shard's connections: the list, the limits and the counters.

use super::client::Connection;
use super::late_refusals::{LateLimits, LateRefusals};
use super::latency::Latencies;
use super::memory::{Held, Lender, Memory};
use super::saturation::Saturation;
use super::service::Service;
use super::worker::Workers;
use crate::protocol::Opcode;
use cql::Error;
use cql::system::ClientInfo;
use rt::LogThrottle;
use rt::sync::{Cancel, Gate};
use std::cell::{Cell, OnceCell, RefCell};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;
use uuid::Uuid;

/// When this many times the memory for unread answers is in use, clients get errors instead of
/// large answers.
const FULL: usize = 4;

/// Limits on what clients can make a shard hold.
#[derive(Debug, Clone)]
pub struct Limits {
    /// The longest body of a frame, in bytes.
    pub frame_body: usize,
    /// The shard's memory for requests, in bytes.
    pub request_memory: usize,
    /// Pending statements of one connection. At the limit, the connection is not read.
    pub connection_in_flight: usize,
    /// Pending statements of the shard. At the limit, statements are refused with Overloaded.
    pub shard_in_flight: usize,
    /// Pending statements of the shard from which on, while it is overloaded, a connection is not
    /// read that has its fair share of them.
    pub overloaded_in_flight: usize,
    /// How long requests may wait for their turn while an overload lasts. 0: without limit.
    pub longest_wait: Duration,
    /// Bytes of unread answers of one connection. At the limit, the connection is not read.
    pub connection_unread: usize,
    /// Bytes of unread and expected answers of the shard. At the limit, connections with unread or
    /// pending answers are not read. If unread answers alone exceed it, clients that have stopped
    /// reading are dropped. At four times the limit, large answers are replaced by errors.
    pub shard_unread: usize,
    /// A client that reads none of its answers for this long is dropped.
    pub unread_time: Duration,
    /// A large request that hardly advances for this long is refused if others wait for memory.
    /// After five times this duration, it must be complete.
    pub large_frame_step: Duration,
    /// Refusals by rate limits of clients that ignore them.
    pub late_refusals: LateLimits,
}

impl Limits {
    /// The longest accepted body, as received and after decompression, in bytes.
    pub fn longest_body(&self) -> usize {
        self.frame_body.min(self.request_memory)
    }

    /// The longest answer in bytes: the memory for unread answers, up to which it may be exceeded.
    pub fn largest_answer(&self) -> usize {
        FULL.saturating_mul(self.shard_unread)
    }

    /// The limits for a shard with `memory` bytes. A tenth each is for requests and for unread
    /// answers.
    pub fn for_memory(memory: usize) -> Limits {
        Limits {
            frame_body: 256 << 20,
            request_memory: (memory / 10).max(1 << 20),
            connection_in_flight: 2048,
            shard_in_flight: usize::MAX,
            overloaded_in_flight: 1024,
            longest_wait: Duration::from_millis(500),
            connection_unread: 1 << 20,
            shard_unread: (memory / 10).max(8 << 20),
            unread_time: Duration::from_secs(30),
            large_frame_step: Duration::from_secs(6),
            late_refusals: LateLimits::default(),
        }
    }
}

/// How many connections are looked at in one turn when idle ones must give memory back.
const SWEEP: usize = 256;

/// What SUPPORTED says about the node.
#[derive(Debug, Clone)]
pub struct NodeFacts {
    /// The host id of the node.
    pub host_id: Uuid,
    /// The shard-aware port, if there is one.
    pub shard_aware_port: Option<u16>,
    /// The shard-aware port for encrypted connections, if there is one.
    pub shard_aware_port_ssl: Option<u16>,
    /// The address that identifies this node in errors.
    pub address: IpAddr,
}

/// A counter of this shard.
#[derive(Debug, Default)]
pub struct Count(Cell<u64>);

impl Count {
    /// Adds `n`.
    #[inline]
    pub fn add(&self, n: u64) {
        self.0.set(self.0.get().wrapping_add(n));
    }

    /// The value.
    pub fn get(&self) -> u64 {
        self.0.get()
    }
}

/// Counters of a shard's connections.
#[derive(Debug, Default)]
pub struct Stats {
    /// Connections accepted.
    pub connections: Count,
    /// Requests by kind, in the order of [`Opcode::REQUESTS`].
    pub requests: [Count; Opcode::REQUESTS.len()],
    /// Requests answered.
    pub served: Count,
    /// Requests that had to wait.
    pub waited: Count,
    /// Requests refused because too many were in flight, or because they had waited too long.
    pub shed: Count,
    /// Bytes received.
    pub received: Count,
    /// Bytes sent.
    pub sent: Count,
    /// How often a connection was not read because its client did not read answers.
    pub blocked_unread: Count,
    /// How often a connection was not read because the shard is overloaded, and the connection has
    /// its share of the pending statements.
    pub blocked_overload: Count,
    /// Connections dropped because their clients did not read.
    pub dropped_unread: Count,
    /// Connections closed because they had sent no STARTUP while others needed their slots.
    pub evicted_silent: Count,
    /// Refusals by rate limits that were answered late.
    pub late_refusals: Count,
    /// Errors by code.
    errors: RefCell<BTreeMap<i32, u64>>,
}

impl Stats {
    /// Counts an error sent to a client.
    pub fn error(&self, error: &Error) {
        *self.errors.borrow_mut().entry(error.code()).or_default() += 1;
    }

    /// Errors by code.
    pub fn errors(&self) -> BTreeMap<i32, u64> {
        self.errors.borrow().clone()
    }

    #[inline]
    pub(super) fn request(&self, opcode: Opcode) {
        if let Some(at) = Opcode::REQUESTS.iter().position(|known| *known == opcode) {
            self.requests[at].add(1);
        }
    }
}

/// A shard's connections.
pub struct Transport {
    /// The limits.
    pub limits: Limits,
    /// The node's properties for SUPPORTED.
    pub node: NodeFacts,
    /// The counters.
    pub stats: Stats,
    /// The latencies of statements.
    pub latencies: Latencies,
    /// The memory for requests.
    pub memory: Rc<Memory>,
    /// The number of pending statements.
    pub(super) in_flight: Cell<usize>,
    unread: Cell<usize>,
    /// The expected bytes of answers: of pending statements, and of late refusals.
    pub(super) expected: Cell<usize>,
    list: RefCell<BTreeMap<u64, Rc<Connection>>>,
    next_id: Cell<u64>,
    /// Counts copies of large rows until clients have read them.
    copies: OnceCell<Lender>,
    /// Throttles the log lines about clients that were dropped because they do not read.
    pub(super) dropped_log: LogThrottle,
    /// Refusals by rate limits that are answered late.
    pub(super) late_refusals: LateRefusals,
    /// The state of [`Transport::sweep`].
    sweep: Cell<Sweep>,
    /// Whether the shard has idle time.
    saturation: Saturation,
    /// The connections that are not read because the shard is overloaded.
    held_back: RefCell<Vec<Rc<Connection>>>,
    /// Tells whether requests wait too long for the shard.
    overload: OnceCell<Box<dyn Fn() -> bool>>,
    /// Fires when all connections must end.
    stop: RefCell<Cancel>,
}

/// Whether connections with input are being woken.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Sweep {
    #[default]
    No,
    Yes,
    /// The sweep restarts when it ends.
    Again,
}

impl std::fmt::Debug for Transport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Transport").field("connections", &self.connection_count()).finish_non_exhaustive()
    }
}

impl Transport {
    /// A transport without connections.
    pub fn new(limits: Limits, node: NodeFacts) -> Rc<Transport> {
        let memory = Memory::new(limits.request_memory);
        Rc::new(Transport {
            limits,
            node,
            stats: Stats::default(),
            latencies: Latencies::default(),
            memory,
            in_flight: Cell::new(0),
            unread: Cell::new(0),
            expected: Cell::new(0),
            list: RefCell::default(),
            next_id: Cell::new(0),
            copies: OnceCell::new(),
            dropped_log: LogThrottle::default(),
            late_refusals: LateRefusals::default(),
            sweep: Cell::default(),
            saturation: Saturation::default(),
            held_back: RefCell::default(),
            overload: OnceCell::new(),
            stop: RefCell::default(),
        })
    }

    /// The open connections.
    pub fn connections(&self) -> Vec<Rc<Connection>> {
        self.list.borrow().values().cloned().collect()
    }

    /// The open connections, for `system.clients`.
    pub fn clients(&self) -> Vec<ClientInfo> {
        let list = self.list.borrow();
        list.values().map(|connection| connection.info()).collect()
    }

    /// The number of open connections.
    pub fn connection_count(&self) -> usize {
        self.list.borrow().len()
    }

    /// The number of pending statements.
    pub fn in_flight(&self) -> usize {
        self.in_flight.get()
    }

    /// Bytes held for answers that clients have not read.
    pub fn unread(&self) -> usize {
        self.unread.get()
    }

    pub(super) fn unread_changed(&self, before: usize, after: usize) {
        debug_assert!(self.unread.get() >= before, "the unread answers of each connection are counted");
        self.unread.set(self.unread.get() + after - before);
    }

    /// A connection held `before` bytes of input and now holds `after`.
    pub(super) fn input_changed(self: &Rc<Self>, before: usize, after: usize) {
        let was_pressed = self.memory.is_pressed();
        self.memory.input_changed(before, after);
        if !was_pressed && self.memory.is_pressed() {
            self.pressure_begins();
        }
    }

    /// Wakes the connections that hold input, because nothing else wakes idle ones.
    #[cold]
    fn pressure_begins(self: &Rc<Self>) {
        if self.sweep.get() != Sweep::No {
            return self.sweep.set(Sweep::Again);
        }
        self.sweep.set(Sweep::Again);
        let transport = self.clone();
        rt::task::spawn(async move {
            while transport.sweep.get() == Sweep::Again {
                transport.sweep.set(Sweep::Yes);
                transport.wake_with_input().await;
            }
            transport.sweep.set(Sweep::No);
        })
        .detach();
    }

    async fn wake_with_input(&self) {
        let mut next = 0;
        while self.memory.is_pressed() {
            let (mut seen, mut held) = (0, Vec::new());
            for (id, connection) in self.list.borrow().range(next..).take(SWEEP) {
                seen += 1;
                next = id + 1;
                held.extend(connection.has_input().then(|| connection.clone()));
            }
            held.iter().for_each(|connection| connection.wake());
            if seen < SWEEP {
                return;
            }
            rt::task::yield_now().await;
        }
    }

    /// Sets where copies of large rows are counted: in the same budget as the rows. To be called
    /// once.
    pub fn count_copies_in(&self, counter: Lender) {
        let _ = self.copies.set(counter);
    }

    pub(super) fn count_copy(&self, bytes: usize) -> Option<Held> {
        self.copies.get().map(|count| count(bytes))
    }

    /// Whether this shard has had hardly any idle time lately.
    pub(super) fn is_saturated(&self) -> bool {
        self.saturation.sample(rt::time::coarse_now())
    }

    /// Sets what tells whether requests wait too long for the shard. To be called once.
    pub fn observe_overload(&self, is_overloaded: Box<dyn Fn() -> bool>) {
        assert!(self.overload.set(is_overloaded).is_ok(), "the measure of overload is set once");
    }

    /// Whether a connection with `own` pending statements may start another one.
    ///
    /// An overloaded shard gains nothing from starting more: each pending statement holds memory,
    /// which requests that wait in their sockets do not. The statements that may be pending are
    /// shared fairly, and each connection may have one.
    #[inline]
    pub(super) fn may_start(&self, own: usize) -> bool {
        self.in_flight.get() < self.limits.overloaded_in_flight || self.may_exceed(own)
    }

    #[cold]
    fn may_exceed(&self, own: usize) -> bool {
        let share = self.limits.overloaded_in_flight / self.connection_count().max(1);
        own < share.max(1) || !self.overload.get().is_some_and(|is_overloaded| is_overloaded())
    }

    /// Notes a connection that may not start another statement. It is woken when its own statements
    /// end, and when the shard has clearly fewer pending statements.
    pub(super) fn hold_back(&self, connection: &Rc<Connection>) {
        self.stats.blocked_overload.add(1);
        if !connection.held_back.replace(true) {
            self.held_back.borrow_mut().push(connection.clone());
        }
    }

    /// Forgets such a connection.
    pub(super) fn no_longer_holds_back(&self, connection: &Connection) {
        if connection.held_back.take() {
            self.held_back.borrow_mut().retain(|held| !std::ptr::eq(&**held, connection));
        }
    }

    /// A pending statement has ended. Wakes the connections that were held back once an eighth of
    /// the statements that may be pending is free, and not for each: all of them look then.
    #[inline]
    pub(super) fn statement_ended(&self) {
        let (pending, limit) = (self.in_flight.get() - 1, self.limits.overloaded_in_flight);
        self.in_flight.set(pending);
        if pending + 1 == limit - limit / 8 {
            self.release_held_back();
        }
    }

    #[cold]
    fn release_held_back(&self) {
        for connection in self.held_back.take() {
            connection.held_back.set(false);
            connection.wake();
        }
    }

    /// Fires when the connections that start now must end.
    pub(super) fn stop(&self) -> Cancel {
        self.stop.borrow().clone()
    }

    /// Closes all connections at once.
    pub fn cut_all(&self) {
        self.connections().iter().for_each(|connection| connection.cut());
    }

    /// Closes a connection that had sent no STARTUP while others needed its slot. `id` is its id in
    /// the list, if it is there.
    pub(super) fn evict(&self, id: Option<u64>) {
        self.stats.evicted_silent.add(1);
        let connection = id.and_then(|id| self.list.borrow().get(&id).cloned());
        if let Some(connection) = connection {
            connection.cut();
        }
    }

    pub(super) fn add(&self, connection: Rc<Connection>) -> u64 {
        let id = self.next_id.get();
        self.next_id.set(id + 1);
        self.stats.connections.add(1);
        let other = self.list.borrow_mut().insert(id, connection);
        debug_assert!(other.is_none(), "each connection has an id of its own");
        id
    }

    pub(super) fn remove(&self, id: u64) {
        let gone = self.list.borrow_mut().remove(&id);
        drop(gone);
    }
}

/// A shard's server: its transport and its workers.
pub struct Server<S> {
    /// The connections.
    pub transport: Rc<Transport>,
    pub(super) workers: Rc<Workers<S>>,
    /// Each connection holds it open. Closing it waits for all of them.
    pub(super) gate: RefCell<Gate>,
}

impl<S: Service> Server<S> {
    /// A server without connections.
    pub fn new(service: Rc<S>, limits: Limits, node: NodeFacts) -> Rc<Server<S>> {
        Rc::new(Server {
            transport: Transport::new(limits, node),
            workers: Rc::new(Workers::new(service)),
            gate: RefCell::default(),
        })
    }

    /// Accepts connections again after [`Server::stop`].
    pub fn start(&self) {
        if self.gate.borrow().is_closed() {
            self.gate.take();
            self.transport.stop.take();
        }
    }

    /// Ends all connections after their requests are answered, and waits for that.
    pub async fn stop(&self) {
        self.transport.stop().cancel();
        let closing = self.gate.borrow().close();
        closing.await;
    }
}
