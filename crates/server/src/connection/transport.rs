//! A shard's view of its connections: the list, the limits, the counters.

use super::client::Connection;
use super::latency::Latencies;
use super::memory::{Held, Lender, Memory};
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

/// What a client may make a shard hold.
#[derive(Debug, Clone)]
pub struct Limits {
    /// The longest body of a frame, bytes.
    pub frame_body: usize,
    /// Memory for requests of the shard, bytes.
    pub request_memory: usize,
    /// Statements of one connection that may wait for something; more are not read.
    pub connection_in_flight: usize,
    /// Statements of the shard that may wait for something; more are refused as overload.
    pub shard_in_flight: usize,
    /// Unread answers of a connection, bytes; with more, its next requests are not read.
    pub connection_unread: usize,
    /// Unread answers of the shard and those that are expected of statements that wait, bytes; with more, clients to which answers are
    /// owed are not read. Those that stopped reading are dropped when the unread ones alone are more. With four times as many, large answers
    /// are replaced by errors.
    pub shard_unread: usize,
    /// A client that takes nothing of its answers for this long is dropped.
    pub unread_time: Duration,
    /// A large request of which next to nothing came for this long is refused if others wait for its memory; after five times as long it must be
    /// complete.
    pub large_frame_step: Duration,
}

impl Limits {
    /// The longest body that is taken, as it came and opened, bytes.
    pub fn longest_body(&self) -> usize {
        self.frame_body.min(self.request_memory)
    }

    /// The limits for a shard with `memory` bytes; a tenth is for requests, another for unread answers.
    pub fn for_memory(memory: usize) -> Limits {
        Limits {
            frame_body: 256 << 20,
            request_memory: (memory / 10).max(1 << 20),
            connection_in_flight: 2048,
            shard_in_flight: usize::MAX,
            connection_unread: 1 << 20,
            shard_unread: (memory / 10).max(8 << 20),
            unread_time: Duration::from_secs(30),
            large_frame_step: Duration::from_secs(6),
        }
    }
}

/// What SUPPORTED tells about the node.
#[derive(Debug, Clone)]
pub struct NodeFacts {
    /// The node's identity.
    pub host_id: Uuid,
    /// The shard-aware port, if there is one.
    pub shard_aware_port: Option<u16>,
    /// The shard-aware port for encrypted connections, if there is one.
    pub shard_aware_port_ssl: Option<u16>,
    /// The address by which errors name the node.
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

/// What a shard counts about its connections.
#[derive(Debug, Default)]
pub struct Stats {
    /// Connections ever made.
    pub connections: Count,
    /// Requests by kind, in the order of [`Opcode::REQUESTS`].
    pub requests: [Count; Opcode::REQUESTS.len()],
    /// Requests answered.
    pub served: Count,
    /// Requests that had to wait for something.
    pub waited: Count,
    /// Requests refused because too many were in flight.
    pub shed: Count,
    /// Bytes received.
    pub received: Count,
    /// Bytes sent.
    pub sent: Count,
    /// Times that a connection stopped reading because its client did not take its answers.
    pub blocked_unread: Count,
    /// Connections dropped because their clients did not read.
    pub dropped_unread: Count,
    /// Connections closed because they had sent no STARTUP while others wanted their seats.
    pub evicted_silent: Count,
    /// Errors by code.
    errors: RefCell<BTreeMap<i32, u64>>,
}

impl Stats {
    /// Counts an error that a client got.
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
    /// For SUPPORTED.
    pub node: NodeFacts,
    /// The counters.
    pub stats: Stats,
    /// How long statements took.
    pub latencies: Latencies,
    /// The memory for requests.
    pub memory: Rc<Memory>,
    /// Statements that wait for something.
    pub(super) in_flight: Cell<usize>,
    unread: Cell<usize>,
    /// Bytes that the answers of these statements are taken to have.
    pub(super) expected: Cell<usize>,
    list: RefCell<BTreeMap<u64, Rc<Connection>>>,
    next_id: Cell<u64>,
    /// Counts copies of large rows for clients that have not taken them.
    copies: OnceCell<Lender>,
    /// Of clients that were dropped because they do not read.
    pub(super) dropped_log: LogThrottle,
    /// Fired when connections are to end.
    stop: RefCell<Cancel>,
}

impl std::fmt::Debug for Transport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Transport").field("connections", &self.connection_count()).finish_non_exhaustive()
    }
}

impl Transport {
    /// No connections yet.
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
            stop: RefCell::default(),
        })
    }

    /// The living connections.
    pub fn connections(&self) -> Vec<Rc<Connection>> {
        self.list.borrow().values().cloned().collect()
    }

    /// The living connections as `system.clients` shows them.
    pub fn clients(&self) -> Vec<ClientInfo> {
        let list = self.list.borrow();
        list.values().map(|connection| connection.info()).collect()
    }

    /// How many connections live.
    pub fn connection_count(&self) -> usize {
        self.list.borrow().len()
    }

    /// Statements that wait for something.
    pub fn in_flight(&self) -> usize {
        self.in_flight.get()
    }

    /// Bytes kept for answers that clients have not taken.
    pub fn unread(&self) -> usize {
        self.unread.get()
    }

    pub(super) fn unread_changed(&self, before: usize, after: usize) {
        self.unread.set(self.unread.get() + after - before);
    }

    /// Makes copies of large rows count where the rows themselves do. To be called once.
    pub fn count_copies_in(&self, counter: Lender) {
        let _ = self.copies.set(counter);
    }

    pub(super) fn count_copy(&self, bytes: usize) -> Option<Held> {
        self.copies.get().map(|count| count(bytes))
    }

    /// Fires when the connections that begin now are to end.
    pub(super) fn stop(&self) -> Cancel {
        self.stop.borrow().clone()
    }

    /// Closes all connections at once, whatever they are doing.
    pub fn cut_all(&self) {
        self.connections().iter().for_each(|connection| connection.cut());
    }

    /// Closes a connection that had sent no STARTUP while others wanted its seat; `id` is its id in
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
        self.list.borrow_mut().insert(id, connection);
        id
    }

    pub(super) fn remove(&self, id: u64) {
        let gone = self.list.borrow_mut().remove(&id);
        drop(gone);
    }
}

/// A shard's server: its transport and the workers of its language.
pub struct Server<S> {
    /// The connections.
    pub transport: Rc<Transport>,
    pub(super) workers: Rc<Workers<S>>,
    /// The connections are inside.
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

    /// Makes the server known on this shard: for acceptors, events and metrics.
    pub fn install(self: &Rc<Self>) {
        rt::shard::install(self.clone());
        rt::shard::install(self.transport.clone());
    }

    /// Serves connections again after [`Server::stop`].
    pub fn start(&self) {
        if self.gate.borrow().is_closed() {
            self.gate.take();
            self.transport.stop.take();
        }
    }

    /// Ends all connections once their requests are answered, and waits for it.
    pub async fn stop(&self) {
        self.transport.stop().cancel();
        let closing = self.gate.borrow().close();
        closing.await;
    }
}
