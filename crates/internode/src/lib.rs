//! Connections between nodes: frames, handshake, liveness.
//!
//! [`Internode::call`] asks a shard of another node about something ([`Verb`]) until a deadline,
//! [`Internode::serve`] says who answers here, and bodies are opaque. Shard 0 listens ([`serve`])
//! and pings all nodes of the [`AddressBook`]; what it finds is the [`Liveness`] of every shard. An
//! answer reaches the call it belongs to, or no call, and everything that waits is bounded. A node
//! of another cluster or version, or another one than was meant, is never talked to. What a peer
//! sends can end its connection, never this process.
//!
//! Reading order: [`config`] (nodes, verbs, limits), [`frame`], [`handshake`]; `outbox`, `wire`,
//! `channel`, `handlers`, `serving` (one connection); `addresses`, `socket`, `tls`, `dial`, `link`,
//! `accept` (how it comes to be); `detector`, [`liveness`], [`metrics`], `rejection_throttle`, [`error`].

mod accept;
mod addresses;
mod channel;
pub mod config;
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
mod rejection_throttle;
mod serving;
mod socket;
mod tls;
mod wire;

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
use handlers::Handlers;
use link::Link;
use metrics::{Counters, count};
use model::HostId;
use rejection_throttle::RejectionThrottle;
use rt::Pieces;
use rt::hash::HashMap;
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
use wire::Wire;

/// How long connections may take to end when the node stops.
const STOP: Duration = Duration::from_secs(5);
/// How long requests of other nodes that are in work may take when the node stops.
const DRAIN: Duration = Duration::from_secs(1);
/// How often it is looked whether they are done.
const DRAIN_LOOK: Duration = Duration::from_millis(5);

type Subscriber = Rc<dyn Fn(LivenessEvent)>;
type Watcher = Rc<dyn Fn(&Liveness)>;
type Reporter = Rc<dyn Fn() -> SelfReport>;

/// One shard's side of the wire between nodes.
pub struct Internode {
    this: Weak<Internode>,
    setting: SharedSetting,
    shard: u16,
    handlers: Rc<Handlers>,
    counters: Rc<Counters>,
    links: RefCell<HashMap<Target, Rc<Link>>>,
    addresses: RefCell<Addresses>,
    /// What `addresses` come to.
    book: RefCell<Rc<AddressBook>>,
    tls: RefCell<Option<PeerTls>>,
    liveness: RefCell<Rc<Liveness>>,
    subscribers: RefCell<Vec<Subscriber>>,
    watchers: RefCell<Vec<Watcher>>,
    /// What this node says of itself to those that ping it.
    reporter: RefCell<Option<Reporter>>,
    /// This node has announced that it stops.
    announced: Cell<bool>,
    /// Connections of other nodes, so that they can be ended.
    served: RefCell<HashMap<u64, Rc<Wire>>>,
    next_served: Cell<u64>,
    /// Connections of other nodes that are in the midst of their handshakes.
    greeting: Cell<u64>,
    rejection_throttle: RefCell<RejectionThrottle>,
    gate: Gate,
    stop: Cancel,
}

impl Internode {
    /// This shard's, knowing nobody yet. Connections go out from the address `from`, if given.
    pub fn new(own: Identity, config: InternodeConfig, from: Option<IpAddr>, tls: Option<PeerTls>) -> Rc<Internode> {
        let shards = rt::shard::count() as u16;
        let internode = Rc::new_cyclic(|this| Internode {
            this: this.clone(),
            setting: Rc::new(Setting { own, shards, from, config }),
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
            rejection_throttle: RefCell::default(),
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

    /// Who this node is.
    pub fn own(&self) -> &Identity {
        &self.setting.own
    }

    /// Has `handler` answer a verb on this shard, in place of an earlier one. Its future is dropped when nobody waits any more.
    pub fn serve<F, Fut>(&self, verb: Verb, handler: F)
    where
        F: Fn(Caller, Bytes) -> Fut + 'static,
        Fut: Future<Output = Result<Pieces, Refusal>> + 'static,
    {
        self.handlers.set(verb, handler);
    }

    /// Asks a shard of another node. Fails at once if that is known to be down. Dropping the future tells the other side, best effort.
    pub async fn call(&self, to: Peer, verb: Verb, body: Bytes, deadline: Deadline) -> Result<Bytes, CallError> {
        self.check_len(&body)?;
        // A ping is how a node comes to be up again.
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

    /// A node that is down is not called. One that announced its stop still answers: nobody begins
    /// a request for it, but one that was under way when the announcement came may reach it.
    fn refuses_calls(&self, host: HostId) -> bool {
        let liveness = self.liveness.borrow();
        liveness.nodes.get(&host).is_some_and(|node| node.status == NodeStatus::Down && !node.stopping)
    }

    /// Tells all nodes that answer that this one stops: they send it no more requests, and take it
    /// for down until it is back. Returns once they know, or when `limit` is over. On shard 0.
    pub async fn announce_stop(&self, limit: Duration) {
        self.announced.set(true);
        let (own, liveness) = (self.setting.own.host, self.liveness());
        let others: Vec<HostId> =
            self.book.borrow().peers.keys().copied().filter(|host| *host != own && !liveness.is_down(*host)).collect();
        let until = Deadline::after(limit);
        let told = others.iter().map(|host| async move {
            let to = Peer { host: *host, shard: 0 };
            if let Err(error) = self.call(to, Verb::Stopping, Bytes::new(), until).await {
                tracing::debug!(node = %host, %error, "the node could not be told that this one stops");
            }
        });
        futures_util::future::join_all(told).await;
    }

    /// Asks shard 0 of whichever node is at an address, and says which that is: for nodes that do not know each other yet.
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

    /// As if nothing at an address had ever failed: the next call to it connects at once.
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

    /// All other nodes, from now on, as the metadata know them. Connections to those that moved or
    /// are gone are closed.
    pub fn set_book(&self, book: AddressBook) {
        self.addresses.borrow_mut().state(book);
        self.apply_addresses();
    }

    /// A node is reached at this address from now on, whatever the metadata say; none: where they
    /// say.
    fn set_found(&self, host: HostId, address: Option<SocketAddr>) {
        self.addresses.borrow_mut().find(host, address);
        self.apply_addresses();
    }

    /// Where the metadata say that the other nodes are.
    pub fn stated(&self) -> BTreeMap<HostId, SocketAddr> {
        let addresses = self.addresses.borrow();
        let hosts = self.book.borrow().peers.keys().copied().collect::<Vec<_>>();
        hosts.into_iter().filter_map(|host| Some((host, addresses.stated(host)?))).collect()
    }

    /// The nodes that are reached elsewhere than the metadata say.
    pub fn found(&self) -> BTreeMap<HostId, SocketAddr> {
        self.addresses.borrow().found().clone()
    }

    fn apply_addresses(&self) {
        let book = self.addresses.borrow().book();
        let before = self.book.replace(Rc::new(book));
        let moved = before.moved(&self.book.borrow());
        if !moved.is_empty() {
            let why: Arc<str> = "the node has moved or left".into();
            self.take_links(|host| moved.contains(&host)).iter().for_each(|link| link.reset(&why));
        }
    }

    /// The other nodes.
    pub fn book(&self) -> Rc<AddressBook> {
        self.book.borrow().clone()
    }

    /// Encrypts new connections with these from now on.
    pub fn set_tls(&self, tls: Option<PeerTls>) {
        let before = self.tls.replace(tls);
        drop(before);
    }

    /// Which nodes are up, as far as this shard has heard.
    pub fn liveness(&self) -> Rc<Liveness> {
        self.liveness.borrow().clone()
    }

    /// Has `subscriber` told of every node that goes up or down, on this shard.
    pub fn on_liveness(&self, subscriber: impl Fn(LivenessEvent) + 'static) {
        self.subscribers.borrow_mut().push(Rc::new(subscriber));
    }

    /// Has `watcher` told, on this shard, whenever nodes went up or down, began or ceased to serve clients, or have another schema.
    pub fn watch_liveness(&self, watcher: impl Fn(&Liveness) + 'static) {
        self.watchers.borrow_mut().push(Rc::new(watcher));
    }

    /// Has this node say this of itself to those that ping it. On shard 0, which is the one that is pinged.
    pub fn report_with(&self, reporter: impl Fn() -> SelfReport + 'static) {
        *self.reporter.borrow_mut() = Some(Rc::new(reporter));
    }

    /// What this node says of itself; nothing before it knows.
    pub fn report(&self) -> Option<SelfReport> {
        let reporter = self.reporter.borrow().clone();
        let report = reporter.map(|reporter| reporter());
        match self.announced.get() {
            true => Some(SelfReport { stopping: true, serving: false, ..report.unwrap_or_default() }),
            false => report,
        }
    }

    /// What the detector has found.
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

    /// Forgets the ways to some nodes, and says which they were.
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

    /// Gives up the connection for a verb if nothing has come over it for `time`, although something should.
    fn end_if_silent(&self, to: Peer, verb: Verb, time: Duration) {
        let channel = self.link_to(to, verb).ok().and_then(|link| link.up());
        if let Some(channel) = channel {
            channel.end_if_silent(time);
        }
    }

    /// What was counted.
    pub fn metrics(&self) -> InternodeMetrics {
        self.counters.read()
    }

    /// Remembers a connection of another node for as long as what this gives is kept.
    fn list(&self, wire: &Rc<Wire>) -> Listed<'_> {
        let id = self.next_served.get();
        self.next_served.set(id + 1);
        self.served.borrow_mut().insert(id, wire.clone());
        Listed { internode: self, id }
    }

    /// Says why there is no connection, unless that was said lately.
    fn tell(&self, rejection: &Rejection, about: IpAddr) {
        if self.rejection_throttle.borrow_mut().may_log(rejection.code, about, rt::time::now()) {
            tracing::warn!(from = %about, "no connection between nodes: {rejection}");
        }
    }

    fn tell_garbage(&self, from: SocketAddr, what: &str) {
        count(&self.counters.garbage);
        if self.rejection_throttle.borrow_mut().may_log(RejectionCode::Garbage, from.ip(), rt::time::now()) {
            tracing::warn!(%from, "closing a connection that is not another node's: {what}");
        }
    }

    /// Ends all connections of this shard, and takes its handlers away.
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
        let served: Vec<Rc<Wire>> = self.served.borrow().values().cloned().collect();
        served.iter().for_each(|wire| wire.end(&why, false));
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
        let wire = self.internode.served.borrow_mut().remove(&self.id);
        drop(wire);
    }
}

/// Gives every shard of this node its [`Internode`]. Handlers and address books come next, then [`serve`].
pub async fn install(own: Identity, config: InternodeConfig, from: Option<IpAddr>, tls: Option<PeerTls>) {
    rt::shard::call_all(move || {
        let (own, tls) = (own.clone(), tls.clone());
        async move { rt::shard::install(Internode::new(own, config, from, tls)) }
    })
    .await;
}

/// Gives every shard of this node another address book.
pub async fn publish_book(book: AddressBook) {
    let book = Arc::new(book);
    rt::shard::call_all(move || {
        let book = book.clone();
        async move {
            if let Some(internode) = rt::shard::try_service::<Internode>() {
                internode.set_book(AddressBook::clone(&book));
            }
        }
    })
    .await;
}

/// Has every shard of this node reach a node at an address that the metadata do not say; none:
/// where they say.
pub async fn publish_found(host: HostId, address: Option<SocketAddr>) {
    rt::shard::call_all(move || async move {
        if let Some(internode) = rt::shard::try_service::<Internode>() {
            internode.set_found(host, address);
        }
    })
    .await;
}

/// The port and the failure detector of a node, running.
pub struct Running {
    tasks: Vec<Task<()>>,
}

/// On shard 0, after [`install`]: accepts other nodes for all shards, and watches those of the address book.
pub fn serve(listener: InternodeListener) -> Running {
    let internode = rt::shard::service::<Internode>();
    let accept = rt::task::spawn(listener.accept(internode.clone()));
    let watch = rt::task::spawn(detector::watch_peers(internode));
    Running { tasks: vec![accept, watch] }
}

impl Running {
    /// Closes the port and all connections, on every shard, and uninstalls what [`install`] has installed.
    pub async fn stop(self) {
        for task in self.tasks {
            task.abort();
            let _ = task.await;
        }
        rt::shard::call_all(|| async {
            if let Some(internode) = rt::shard::try_service::<Internode>() {
                internode.stop().await;
                rt::shard::uninstall::<Internode>();
            }
        })
        .await;
    }
}
