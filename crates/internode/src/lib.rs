//! Internode: the connections between nodes, with frames, handshake and liveness.
//!
//! [`Internode::call`] sends a request to a shard of another node, with a [`Verb`], an opaque body
//! and a deadline. [`Internode::serve`] registers the handler of a verb. Shard 0 listens
//! ([`serve`]) and pings all nodes of the [`AddressBook`]; the result is the [`Liveness`] of every
//! shard.
//!
//! Invariants: a response reaches the call that it belongs to, or none. Every queue is bounded. A
//! node exchanges no requests with a node of another cluster or protocol version, or with another
//! node than the intended one. Input from a peer can end its connection, but never this process.
//!
//! Reading order: [`config`] (nodes, verbs, limits), [`frame`], [`handshake`]; `outbox`,
//! `connection`, `channel`, `handlers`, `serving` (one connection); `addresses`, `socket`, `tls`,
//! `dial`, `link`, `accept` (establishing it); `detector`, [`liveness`], [`metrics`],
//! `peer_log_throttle`, [`error`].

mod accept;
mod addresses;
mod channel;
pub mod config;
mod connection;
mod detector;
mod dial;
pub mod error;
pub mod frame;
mod handlers;
pub mod handshake;
mod link;
pub mod liveness;
pub mod metrics;
mod outbox;
mod peer_log_throttle;
mod serving;
mod socket;
mod tls;

#[cfg(test)]
mod golden_tests;
#[cfg(test)]
mod loop_tests;

pub use accept::InternodeListener;
pub use config::{AddressBook, Between, Identity, InternodeConfig, LivenessConfig, Peer, PeerAddress, Verb};
pub use error::{CallError, Refusal, RefusalCode, Rejection, RejectionCode};
pub use handlers::Caller;
pub use handshake::Party;
pub use liveness::{Liveness, LivenessEvent, NodeStatus, PeerStatus, SelfReport};
pub use metrics::InternodeMetrics;
pub use tls::watch_files;

use addresses::Addresses;
use bytes::Bytes;
use channel::Channel;
use config::{Setting, SharedSetting, Target};
use connection::Connection;
use handlers::Handlers;
use link::Link;
use metrics::{Counters, count};
use model::HostId;
use peer_log_throttle::PeerLogThrottle;
use rt::Pieces;
use rt::hash::HashMap;
use rt::shard::PerShard;
use rt::sync::{Cancel, Deadline, Gate};
use rt::task::Task;
use rt::time::Duration;
use rt::tls::PeerTls;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::rc::{Rc, Weak};
use std::sync::Arc;

/// Why a connection from a node that has left is closed.
const LEFT: &str = "the other node has left the cluster";
/// How long connections may take to close when the node stops.
const STOP: Duration = Duration::from_secs(5);
/// How long requests of other nodes may take to finish when the node stops.
const DRAIN: Duration = Duration::from_secs(1);
/// The interval at which this is checked.
const DRAIN_LOOK: Duration = Duration::from_millis(5);

type Subscriber = Rc<dyn Fn(LivenessEvent)>;
type Watcher = Rc<dyn Fn(&Liveness)>;
type Reporter = Rc<dyn Fn() -> SelfReport>;

/// One shard's end of internode.
pub struct Internode {
    this: Weak<Internode>,
    /// The instances of all shards.
    shards: PerShard<Internode>,
    setting: SharedSetting,
    shard: u16,
    handlers: Rc<Handlers>,
    counters: Rc<Counters>,
    links: RefCell<HashMap<Target, Rc<Link>>>,
    addresses: RefCell<Addresses>,
    /// The address book that results from `addresses`.
    book: RefCell<Rc<AddressBook>>,
    tls: RefCell<Option<PeerTls>>,
    liveness: RefCell<Rc<Liveness>>,
    subscribers: RefCell<Vec<Subscriber>>,
    watchers: RefCell<Vec<Watcher>>,
    /// Makes the report of this node about itself in answers to pings.
    reporter: RefCell<Option<Reporter>>,
    /// This node has announced that it stops.
    announced: Cell<bool>,
    /// Incoming connections with the nodes that opened them, so that they can be closed.
    served: RefCell<HashMap<u64, (HostId, Rc<Connection>)>>,
    next_served: Cell<u64>,
    /// The number of incoming connections that are in their handshake.
    greeting: Cell<u64>,
    rejection_log: RefCell<PeerLogThrottle>,
    gate: Gate,
    stop: Cancel,
}

impl Internode {
    /// The instance of this shard, without other nodes yet. `from` is the local address of outgoing
    /// connections, if given.
    pub fn new(
        shards: PerShard<Internode>,
        own: Identity,
        config: InternodeConfig,
        from: Option<IpAddr>,
        tls: Option<PeerTls>,
    ) -> Rc<Internode> {
        let count = rt::shard::count() as u16;
        let internode = Rc::new_cyclic(|this| Internode {
            this: this.clone(),
            shards,
            setting: Rc::new(Setting { own, shards: count, from, config }),
            shard: rt::shard::this().0,
            handlers: Handlers::new(),
            counters: Rc::default(),
            links: RefCell::default(),
            addresses: RefCell::default(),
            book: RefCell::default(),
            tls: RefCell::new(tls),
            liveness: RefCell::default(),
            subscribers: RefCell::default(),
            watchers: RefCell::default(),
            reporter: RefCell::default(),
            announced: Cell::new(false),
            served: RefCell::default(),
            next_served: Cell::new(0),
            greeting: Cell::new(0),
            rejection_log: RefCell::default(),
            gate: Gate::new(),
            stop: Cancel::new(),
        });
        let own = internode.this.clone();
        internode.serve(Verb::Ping, move |_, body| {
            let answer = detector::pong(&body, own.upgrade().and_then(|own| own.report()));
            async move { answer.map(Pieces::from) }
        });
        internode
    }

    fn this(&self) -> Result<Rc<Internode>, CallError> {
        self.this.upgrade().ok_or(CallError::Stopping)
    }

    /// The instances of all shards of this node.
    pub fn shards(&self) -> PerShard<Internode> {
        self.shards
    }

    /// This node's identity.
    pub fn own(&self) -> &Identity {
        &self.setting.own
    }

    /// How long a member must be unresponsive before it is accepted at another address.
    pub fn address_change_delay(&self) -> Duration {
        self.setting.config.liveness.address_change_delay
    }

    /// Sets the handler of a verb on this shard, replacing an earlier one. The future of a request
    /// is dropped at its deadline, or when the caller cancels it.
    pub fn serve<F, Fut>(&self, verb: Verb, handler: F)
    where
        F: Fn(Caller, Bytes) -> Fut + 'static,
        Fut: Future<Output = Result<Pieces, Refusal>> + 'static,
    {
        self.handlers.set(verb, handler);
    }

    /// Sends a request to a shard of another node, and returns the response. Fails at once if the
    /// node is known to be down. Dropping the future cancels the request on the other node, best
    /// effort.
    pub async fn call(&self, to: Peer, verb: Verb, body: Bytes, deadline: Deadline) -> Result<Bytes, CallError> {
        self.check_len(&body)?;
        // Pings are also sent to nodes that are down: answers bring them up again.
        if verb != Verb::Ping && self.refuses_calls(to.host) {
            count(&self.counters.unreachable);
            return Err(CallError::Down(to.host));
        }
        let link = self.link_to(to, verb)?;
        let channel = match link.up() {
            Some(channel) => channel,
            None => Box::pin(link.connected(self, deadline)).await?,
        };
        channel.call(verb, body, deadline).await
    }

    /// No requests are sent to a node that is down. A node that announced its stop is an exception.
    /// No new work is started on it, but requests already in progress may still reach it.
    fn refuses_calls(&self, host: HostId) -> bool {
        let liveness = self.liveness.borrow();
        liveness.nodes.get(&host).is_some_and(|node| node.status == NodeStatus::Down && !node.stopping)
    }

    /// Announces to all nodes that are up that this node stops. They send it no more requests, and
    /// mark it down until it is back. Returns once they know, or after `limit`. On shard 0.
    pub async fn announce_stop(&self, limit: Duration) {
        self.announced.set(true);
        let (own, liveness) = (self.setting.own.host, self.liveness());
        let others: Vec<HostId> =
            self.book.borrow().peers.keys().copied().filter(|host| *host != own && !liveness.is_down(*host)).collect();
        let until = Deadline::after(limit);
        let announcements = others.iter().map(|host| async move {
            let to = Peer { host: *host, shard: 0 };
            if let Err(error) = self.call(to, Verb::Stopping, Bytes::new(), until).await {
                tracing::debug!(node = %host, %error, "the node could not be notified that this node stops");
            }
        });
        futures_util::future::join_all(announcements).await;
    }

    /// Sends a request to shard 0 of the node at an address, and returns also which node that is.
    /// For nodes that do not know each other yet.
    pub async fn call_at(
        &self,
        address: SocketAddr,
        verb: Verb,
        body: Bytes,
        deadline: Deadline,
    ) -> Result<(Party, Bytes), CallError> {
        self.check_len(&body)?;
        let channel: Rc<Channel> = self.link(Target::Address(address)).connected(self, deadline).await?;
        let answer = channel.call(verb, body, deadline).await?;
        Ok((channel.party.clone(), answer))
    }

    /// Clears the failures of an address: the next call to it connects at once.
    pub fn forgive_address(&self, address: SocketAddr) {
        let link = self.links.borrow().get(&Target::Address(address)).cloned();
        if let Some(link) = link {
            link.forgive();
        }
    }

    fn check_len(&self, body: &Bytes) -> Result<(), CallError> {
        let (len, limit) = (body.len(), self.setting.config.largest_body);
        if len > limit {
            return Err(CallError::TooLarge { len, limit });
        }
        if self.stop.is_cancelled() {
            return Err(CallError::Stopping);
        }
        Ok(())
    }

    fn link_to(&self, to: Peer, verb: Verb) -> Result<Rc<Link>, CallError> {
        let shards = match self.book.borrow().peers.get(&to.host) {
            Some(peer) => peer.shards.max(1),
            None => {
                count(&self.counters.unreachable);
                return Err(CallError::NoAddress(to.host));
            }
        };
        Ok(self.link(Target::Host(Peer { host: to.host, shard: to.shard % shards }, verb.lane())))
    }

    fn link(&self, target: Target) -> Rc<Link> {
        let mut links = self.links.borrow_mut();
        links.entry(target.clone()).or_insert_with(|| Link::new(target)).clone()
    }

    /// Sets the other nodes, as in the metadata. Closes connections to nodes that have moved or
    /// left, and connections from nodes that have left.
    pub fn set_book(&self, book: AddressBook) {
        self.addresses.borrow_mut().state(book);
        self.apply_addresses();
    }

    /// Sets the address at which a node was located, which overrides the metadata. `None`: the
    /// address in the metadata applies.
    fn set_found(&self, host: HostId, address: Option<SocketAddr>) {
        self.addresses.borrow_mut().find(host, address);
        self.apply_addresses();
    }

    /// The addresses of the other nodes in the metadata.
    pub fn stated(&self) -> BTreeMap<HostId, SocketAddr> {
        let addresses = self.addresses.borrow();
        let hosts = self.book.borrow().peers.keys().copied().collect::<Vec<_>>();
        hosts.into_iter().filter_map(|host| Some((host, addresses.stated(host)?))).collect()
    }

    /// The nodes that are reached at another address than the one in the metadata.
    pub fn located_addresses(&self) -> BTreeMap<HostId, SocketAddr> {
        self.addresses.borrow().located().clone()
    }

    fn apply_addresses(&self) {
        let book = self.addresses.borrow().book();
        let before = self.book.replace(Rc::new(book));
        let book = self.book();
        if book.left != before.left {
            let served = self.served.borrow();
            let left = served.values().filter(|(host, _)| book.left.contains(host));
            left.for_each(|(_, connection)| connection.end(LEFT, true));
        }
        let moved = before.moved(&book);
        if !moved.is_empty() {
            let why: Arc<str> = "the node has moved or left".into();
            self.take_links(|host| moved.contains(&host)).iter().for_each(|link| link.reset(&why));
        }
    }

    /// The other nodes, with the addresses in use.
    pub fn book(&self) -> Rc<AddressBook> {
        self.book.borrow().clone()
    }

    /// Sets the TLS configuration of new connections.
    pub fn set_tls(&self, tls: Option<PeerTls>) {
        let before = self.tls.replace(tls);
        drop(before);
    }

    /// The liveness of the other nodes, as last published to this shard.
    pub fn liveness(&self) -> Rc<Liveness> {
        self.liveness.borrow().clone()
    }

    /// Calls `subscriber` on this shard for every node that goes up or down.
    pub fn on_liveness(&self, subscriber: impl Fn(LivenessEvent) + 'static) {
        self.subscribers.borrow_mut().push(Rc::new(subscriber));
    }

    /// Calls `watcher` on this shard whenever the result of [`Liveness::same_statuses`] changes:
    /// nodes go up or down, start or stop serving clients, or have another schema.
    pub fn watch_liveness(&self, watcher: impl Fn(&Liveness) + 'static) {
        self.watchers.borrow_mut().push(Rc::new(watcher));
    }

    /// Sets what this node reports about itself in answers to pings. On shard 0, which receives the
    /// pings.
    pub fn report_with(&self, reporter: impl Fn() -> SelfReport + 'static) {
        *self.reporter.borrow_mut() = Some(Rc::new(reporter));
    }

    /// This node's current report; `None` before there is one.
    pub fn report(&self) -> Option<SelfReport> {
        let reporter = self.reporter.borrow().clone();
        let report = reporter.map(|reporter| reporter());
        match self.announced.get() {
            true => Some(SelfReport { stopping: true, serving: false, ..report.unwrap_or_default() }),
            false => report,
        }
    }

    /// Takes over the result of the detector.
    fn set_liveness(&self, liveness: Rc<Liveness>, events: &[LivenessEvent]) {
        let before = self.liveness.replace(liveness.clone());
        for event in events {
            if event.up {
                let of_host = |target: &Target| matches!(target, Target::Host(peer, _) if peer.host == event.host);
                self.links.borrow().iter().filter(|(target, _)| of_host(target)).for_each(|(_, link)| link.forgive());
            } else if !liveness.is_stopping(event.host) {
                // A node that announced its stop still answers the requests that it has.
                let why: Arc<str> = "the node is down".into();
                self.take_links(|host| host == event.host).iter().for_each(|link| link.end(&why, event.host));
            }
            let subscribers = self.subscribers.borrow().clone();
            subscribers.iter().for_each(|subscriber| subscriber(*event));
        }
        if !before.same_statuses(&liveness) {
            let watchers = self.watchers.borrow().clone();
            watchers.iter().for_each(|watcher| watcher(&liveness));
        }
    }

    /// Removes and returns the links to some nodes.
    fn take_links(&self, which: impl Fn(HostId) -> bool) -> Vec<Rc<Link>> {
        let mut taken = Vec::new();
        self.links.borrow_mut().retain(|target, link| match target {
            Target::Host(peer, _) if which(peer.host) => {
                taken.push(link.clone());
                false
            }
            _ => true,
        });
        taken
    }

    /// Closes the connection for a verb if nothing has arrived for `time` although a frame is
    /// expected.
    fn end_if_silent(&self, to: Peer, verb: Verb, time: Duration) {
        let channel = self.link_to(to, verb).ok().and_then(|link| link.up());
        if let Some(channel) = channel {
            channel.end_if_silent(time);
        }
    }

    /// The current metrics.
    pub fn metrics(&self) -> InternodeMetrics {
        self.counters.read()
    }

    /// Registers an incoming connection until the returned guard is dropped.
    fn list(&self, host: HostId, connection: &Rc<Connection>) -> Listed<'_> {
        let id = self.next_served.get();
        self.next_served.set(id + 1);
        self.served.borrow_mut().insert(id, (host, connection.clone()));
        if self.book.borrow().left.contains(&host) {
            connection.end(LEFT, true);
        }
        Listed { internode: self, id }
    }

    /// Logs why a connection was rejected, unless the same was logged recently.
    fn report_rejection(&self, rejection: &Rejection, about: IpAddr) {
        if self.rejection_log.borrow_mut().is_due(rejection.code, about, rt::time::now()) {
            tracing::warn!(peer = %about, "a connection between nodes was rejected: {rejection}");
        }
    }

    fn report_garbage(&self, from: SocketAddr, what: &str) {
        count(&self.counters.garbage);
        if self.rejection_log.borrow_mut().is_due(RejectionCode::Garbage, from.ip(), rt::time::now()) {
            tracing::warn!(peer = %from, "closing a connection whose peer is not a node: {what}");
        }
    }

    /// Closes all connections of this shard, and removes its handlers.
    pub async fn stop(&self) {
        self.handlers.stopping.set(true);
        let drained = Deadline::after(DRAIN);
        while self.counters.serving.get() > 0 && !drained.is_past() {
            rt::time::sleep(DRAIN_LOOK).await;
        }
        self.stop.cancel();
        let links = std::mem::take(&mut *self.links.borrow_mut());
        let why: Arc<str> = "this node is stopping".into();
        links.values().for_each(|link| link.reset(&why));
        let served: Vec<Rc<Connection>> = self.served.borrow().values().map(|(_, served)| served.clone()).collect();
        served.iter().for_each(|connection| connection.end(&why, false));
        if rt::time::timeout(STOP, self.gate.close()).await.is_err() {
            tracing::warn!(connections = self.gate.inside(), "connections to other nodes did not end in time");
        }
        self.handlers.clear();
        let subscribers = std::mem::take(&mut *self.subscribers.borrow_mut());
        drop((subscribers, self.watchers.take(), self.reporter.take()));
    }
}

struct Listed<'a> {
    internode: &'a Internode,
    id: u64,
}

impl Drop for Listed<'_> {
    fn drop(&mut self) {
        let connection = self.internode.served.borrow_mut().remove(&self.id);
        drop(connection);
    }
}

/// Sets an [`Internode`] on every shard of this node. Handlers and address books come next, then
/// [`serve`].
pub async fn install(
    shards: PerShard<Internode>,
    own: Identity,
    config: InternodeConfig,
    from: Option<IpAddr>,
    tls: Option<PeerTls>,
) {
    rt::shard::call_all(move || {
        let (own, tls) = (own.clone(), tls.clone());
        async move { shards.set(Internode::new(shards, own, config, from, tls)) }
    })
    .await;
}

/// Sets the address book on every shard of this node.
pub async fn publish_book(shards: PerShard<Internode>, book: AddressBook) {
    let book = Arc::new(book);
    rt::shard::call_all(move || {
        let book = book.clone();
        async move {
            if let Some(internode) = shards.try_get() {
                internode.set_book(AddressBook::clone(&book));
            }
        }
    })
    .await;
}

/// Sets on every shard of this node the address at which a node was located. `None`: the address in
/// the metadata applies.
pub async fn publish_located(shards: PerShard<Internode>, host: HostId, address: Option<SocketAddr>) {
    rt::shard::call_all(move || async move {
        if let Some(internode) = shards.try_get() {
            internode.set_found(host, address);
        }
    })
    .await;
}

/// The running listener and failure detector of a node.
pub struct Running {
    shards: PerShard<Internode>,
    tasks: Vec<Task<()>>,
}

/// Accepts connections for all shards, and watches the nodes of the address book. On shard 0, after
/// [`install`].
pub fn serve(internode: Rc<Internode>, listener: InternodeListener) -> Running {
    let shards = internode.shards;
    let accept = rt::task::spawn(listener.accept(internode.clone()));
    let watch = rt::task::spawn(detector::watch_peers(internode));
    Running { shards, tasks: vec![accept, watch] }
}

impl Running {
    /// Closes the port and all connections on every shard, and removes every [`Internode`].
    pub async fn stop(self) {
        let shards = self.shards;
        for task in self.tasks {
            task.abort();
            let _ = task.await;
        }
        rt::shard::call_all(move || async move {
            if let Some(internode) = shards.try_get() {
                internode.stop().await;
                shards.clear();
            }
        })
        .await;
    }
}
