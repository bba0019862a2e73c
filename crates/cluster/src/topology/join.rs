//! Becoming part of a cluster: asking and answering.
//!
//! A node without metadata searches ([`super::discovery`]); it begins a cluster, or asks to be let in. The node that leads the metadata group
//! looks at what it says of itself ([`admit`]), writes it into the topology as joining, and adds it to the group, from which it
//! learns everything. It must not be let in twice under two identities, nor with an address that another node has.

use super::discovery::{Discovery, Heard, Verdict};
use super::locate::Locator;
use super::{Node, NodeState, Topology, features};
use crate::metadata::{ChangeError, MetadataService, Op, change};
use bytes::Bytes;
use internode::{
    AddressBook, CallError, Caller, Internode, NodeStatus, Party, PeerAddress, Refusal, RefusalCode, RejectionCode,
    Verb,
};
use model::id::HostId;
use rt::sync::Deadline;
use rt::time::Duration;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;

/// The version of the messages.
const FORMAT: u8 = 1;
/// Pause between two rounds of questions.
const PAUSE: Duration = Duration::from_millis(100);
/// How long a question of the search may take.
const QUESTION: Duration = Duration::from_secs(2);
/// How long it may take to be let in.
const ADMISSION: Duration = Duration::from_secs(60);
/// How often an operator is told what a node waits for.
const TELL: Duration = Duration::from_secs(10);
/// Of so many hosts it is remembered why they are not let in.
const MOST_TOLD: usize = 256;

/// What a node asks. Append-only.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(super) enum Request {
    /// Whether there is a cluster, and whom the other node knows; and whom the asker knows.
    Discover(BTreeSet<SocketAddr>),
    /// To be let in.
    Join(Box<Node>),
    /// Who is there, and which addresses it knows of; and those that the asker knows of. See
    /// [`super::locate`].
    Locate(BTreeSet<SocketAddr>),
}

/// What it is answered. Append-only.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(super) enum Answer {
    /// There is no cluster yet.
    Searching(BTreeSet<SocketAddr>),
    /// There is one.
    InCluster,
    /// Come in; these are the others.
    Welcome(Vec<Node>),
    /// Ask the node at this address.
    Elsewhere(SocketAddr),
    /// Ask again in a while.
    Later(String),
    /// Never.
    Refused(String),
    /// The addresses of which the node knows, its own among them.
    Located(BTreeSet<SocketAddr>),
}

fn encode<T: Serialize>(value: &T) -> Bytes {
    postcard::to_extend(value, vec![FORMAT]).expect("plain values can be encoded").into()
}

fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    match bytes.split_first() {
        Some((&FORMAT, body)) => postcard::from_bytes(body).map_err(|error| error.to_string()),
        _ => Err("it is of another release".into()),
    }
}

/// The search of this node, while it lasts. On shard 0.
struct Searching(RefCell<Discovery>);

/// That this node can let others in: all of its shards follow changes of the metadata. On shard 0.
#[derive(Default)]
struct Open {
    /// Why nodes that ask again and again are not let in, as it was logged last.
    told: RefCell<BTreeMap<HostId, String>>,
}

impl Open {
    /// Whether this reason is news.
    fn is_news(&self, host: HostId, why: &str) -> bool {
        let mut told = self.told.borrow_mut();
        // Hosts that nobody knows may be anybody's invention.
        if told.len() >= MOST_TOLD && !told.contains_key(&host) {
            told.clear();
        }
        told.insert(host, why.to_owned()).is_none_or(|before| before != why)
    }
}

/// From now on this node lets others in, for all of its shards follow changes of the metadata. On shard 0.
pub fn open() {
    rt::shard::install(Rc::new(Open::default()));
}

/// Answers other nodes' questions about the cluster. On shard 0.
pub fn serve(internode: &Internode) {
    internode.serve(Verb::Join, |caller, body| async move {
        match decode::<Request>(&body) {
            Ok(request) => Ok(encode(&answer(caller, request).await).into()),
            Err(why) => Err(Refusal::new(RefusalCode::Malformed, why)),
        }
    });
}

async fn answer(caller: Caller, request: Request) -> Answer {
    let member = rt::shard::try_service::<MetadataService>().filter(|service| !service.current().topology.is_empty());
    match (request, member) {
        (Request::Locate(named), _) => {
            let (locator, internode) = (rt::shard::try_service::<Locator>(), rt::shard::try_service::<Internode>());
            match (locator, internode) {
                (Some(locator), Some(internode)) => Answer::Located(locator.asked(&internode, caller.address, named)),
                _ => Answer::Later("the node is stopping".into()),
            }
        }
        (Request::Discover(_), Some(_)) => Answer::InCluster,
        (Request::Discover(known), None) => match rt::shard::try_service::<Searching>() {
            Some(searching) => {
                let mut search = searching.0.borrow_mut();
                search.told(known);
                Answer::Searching(search.known().clone())
            }
            None => Answer::Later("the node is starting".into()),
        },
        (Request::Join(_), None) => Answer::Later("the node is not part of a cluster yet".into()),
        (Request::Join(_), Some(_)) if rt::shard::try_service::<Open>().is_none() => {
            Answer::Later("the node is starting".into())
        }
        (Request::Join(node), Some(service)) => match node.host == caller.host {
            true => let_in(&service, *node).await,
            false => Answer::Refused("a node can only ask for itself".into()),
        },
    }
}

/// Lets a node in, if this one leads.
async fn let_in(service: &Rc<MetadataService>, node: Node) -> Answer {
    let Some(group) = service.group() else { return Answer::Later("this is not the right shard".into()) };
    let host = node.host;
    let is_news = |why: &str| rt::shard::try_service::<Open>().is_some_and(|open| open.is_news(host, why));
    if let Some(why) = has_lost_metadata(&service.current().topology, &node) {
        if is_news(&why) {
            tracing::warn!(why, "a node is refused");
        }
        return Answer::Refused(why);
    }
    if !group.is_leader() {
        let topology = service.current().topology.clone();
        let leader = group.leader().and_then(|leader| topology.node(leader).cloned());
        return match leader {
            Some(leader) => Answer::Elsewhere(reached_at(&leader)),
            None => Answer::Later("no leader of the metadata is known".into()),
        };
    }
    let (moved, lost) = (moved(service), lost(service));
    let topology = service.current().topology.clone();
    if let Some(old) = still_at(&topology, &node).await {
        let why = format!(
            "node {host} answers at {old}, and a node of the same id asks from {}: either it has just moved, or one of the two runs on a copy \
             of the other's data directory",
            node.internode()
        );
        if is_news(&why) {
            tracing::warn!(why, "a node is not let in yet");
        }
        return Answer::Later(why);
    }
    if topology.node(host).is_some()
        && let Err(why) = relocate(&topology, &node, &moved, &lost)
    {
        // A member that took another one's address: that one may yet be found where it is now.
        if is_news(&why) {
            tracing::info!(%host, why, "a member with a new address is not let in yet");
        }
        return Answer::Later(why);
    }
    let replaced = topology.with_address_of(&node).map(|other| other.host).filter(|other| lost.contains(other));
    let seen = place(&topology, host);
    let made = change(move |metadata, _| {
        check_unchanged(seen, place(&metadata.topology, host), host)?;
        let ops = admit(&metadata.topology, &node, &moved, &lost).map_err(NotAdmitted::Ever)?;
        Ok((ops, ()))
    });
    match made.await {
        Ok(()) => {}
        Err(ChangeError::Refused(NotAdmitted::Ever(why))) => {
            if is_news(&why) {
                tracing::warn!(%host, why, "a node is not let in");
            }
            return Answer::Refused(why);
        }
        Err(ChangeError::Refused(NotAdmitted::Yet(why))) => {
            if is_news(&why) {
                tracing::warn!(%host, why, "a node is not let in yet");
            }
            return Answer::Later(why);
        }
        Err(error) => return Answer::Later(error.to_string()),
    }
    match group.add(host).await {
        Ok(()) => {
            tracing::info!(%host, "a node joins the cluster");
            if let Some(replaced) = replaced {
                tracing::warn!(%host, %replaced, "the node takes the address of one that never finished joining and does not answer: that one has left for good");
            }
            Answer::Welcome(service.current().topology.members().map(|node| (**node).clone()).collect())
        }
        Err(error) => Answer::Later(error.to_string()),
    }
}

/// Why a node is not let in.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
enum NotAdmitted {
    /// It may be another time.
    #[error("{0}")]
    Yet(String),
    /// It never will be.
    #[error("{0}")]
    Ever(String),
}

/// Where the metadata have a node.
fn place(topology: &Topology, host: HostId) -> Option<SocketAddr> {
    topology.node(host).map(|node| node.internode())
}

/// Two nodes with one host id may ask at the same time. Whether one of them answers at the place of the member was found out while the
/// metadata had it at the place `seen`; if they have another place `now`, it has to be found out again.
fn check_unchanged(seen: Option<SocketAddr>, now: Option<SocketAddr>, host: HostId) -> Result<(), NotAdmitted> {
    match now {
        now if now == seen => Ok(()),
        Some(now) => Err(NotAdmitted::Yet(format!("a node of the id {host} was let in a moment ago, at {now}"))),
        None => Err(NotAdmitted::Yet(format!("node {host} was removed a moment ago"))),
    }
}

/// Where the node is that this one says it is, if it answers somewhere else. The places where it
/// may be are asked now: what the failure detector knows can be some time old.
async fn still_at(topology: &Topology, node: &Node) -> Option<SocketAddr> {
    let internode = rt::shard::try_service::<Internode>()?;
    if let Some(address) = internode.liveness().answers_elsewhere(node.host, node.internode()) {
        return Some(address);
    }
    let stated = topology.node(node.host).map(|known| known.internode());
    let found = internode.found().get(&node.host).copied();
    if node.host == internode.own().host {
        return None;
    }
    for address in stated.into_iter().chain(found).filter(|address| *address != node.internode()) {
        let answer = ask(&internode, address, Request::Locate(BTreeSet::new())).await;
        if answer.is_ok_and(|(party, _)| party.host == node.host) {
            return Some(address);
        }
    }
    None
}

/// Where this node reaches another one just now.
fn reached_at(node: &Node) -> SocketAddr {
    let found = rt::shard::try_service::<Internode>().and_then(|internode| internode.found().get(&node.host).copied());
    found.unwrap_or_else(|| node.internode())
}

/// Members that answer at addresses which the metadata do not say, this one among them.
fn moved(service: &MetadataService) -> BTreeMap<HostId, SocketAddr> {
    let Some(internode) = rt::shard::try_service::<Internode>() else { return BTreeMap::new() };
    let liveness = internode.liveness();
    let answers = |host: &HostId| liveness.status(*host) == NodeStatus::Up;
    let own = (service.info().host_id, internode.own().address);
    internode.found().into_iter().filter(|(host, _)| answers(host)).chain([own]).collect()
}

/// Members that have not finished joining and do not answer. They have no tablets.
fn lost(service: &MetadataService) -> BTreeSet<HostId> {
    let Some(internode) = rt::shard::try_service::<Internode>() else { return BTreeSet::new() };
    let (topology, liveness) = (service.current().topology.clone(), internode.liveness());
    topology.lost_while_joining(|host| liveness.is_down(host))
}

/// Why a node cannot join: it is a full member already, and asks without knowing it, because it has
/// lost its metadata. To vote again it must have its last votes: older ones would let it vote twice
/// in one term.
fn has_lost_metadata(topology: &Topology, node: &Node) -> Option<String> {
    let known = topology.node(node.host)?;
    let is_full = matches!(known.state, NodeState::Normal | NodeState::Leaving);
    (is_full && node.state == NodeState::Joining).then(|| {
        format!(
            "node {} is a member of this cluster already, but starts without the cluster's metadata: the directory `raft` of its data \
             directory is missing or empty. It holds the node's votes: restore it exactly as it was when the node stopped. An older \
             copy, such as one of a backup, is unsafe: the node could vote twice. Without it, replace the node: leave it stopped, and \
             start a new node with an empty data directory at another address. Sstables of this one can be loaded into the cluster \
             with `messina admin refresh`",
            node.host
        )
    })
}

/// The members whose addresses have to change so that a node can have its own: the one that the
/// metadata have there, if it was found elsewhere, and so on. One that is `lost` leaves instead: the node that has its address now may be the
/// same machine with an empty disk. An error if the other one may still be there.
fn relocate(
    topology: &Topology,
    node: &Node,
    moved: &BTreeMap<HostId, SocketAddr>,
    lost: &BTreeSet<HostId>,
) -> Result<Vec<Op>, String> {
    let (mut ops, mut placed) = (Vec::new(), BTreeSet::from([node.host]));
    let mut newcomer = node.clone();
    while let Some(other) = topology.with_address_of(&newcomer).filter(|other| !placed.contains(&other.host)) {
        let address = newcomer.internode();
        let Some(now_at) = moved.get(&other.host).filter(|now_at| **now_at != address) else {
            // The metadata may have changed since it was found to be lost.
            if lost.contains(&other.host) && other.state == NodeState::Joining {
                ops.push(Op::PutNode(Box::new(Node { state: NodeState::Left, ..(**other).clone() })));
                return Ok(ops);
            }
            return Err(format!(
                "the address {address} belongs to node {}, a member of the cluster: use another address",
                other.host
            ));
        };
        let follows = |own: IpAddr| if own == other.broadcast_address { now_at.ip() } else { own };
        newcomer = Node {
            broadcast_address: now_at.ip(),
            storage_port: now_at.port(),
            rpc_address: follows(other.rpc_address),
            listen_address: follows(other.listen_address),
            ..(**other).clone()
        };
        placed.insert(other.host);
        ops.push(Op::PutNode(Box::new(newcomer.clone())));
    }
    Ok(ops)
}

/// Whether a node may be let in, and what that changes. `moved`: members that were found at other
/// addresses than the metadata have. `lost`: members that have not finished joining and do not answer.
pub fn admit(
    topology: &Topology,
    node: &Node,
    moved: &BTreeMap<HostId, SocketAddr>,
    lost: &BTreeSet<HostId>,
) -> Result<Vec<Op>, String> {
    let missing = features::missing(topology, &node.features);
    if !missing.is_empty() {
        return Err(format!("the cluster uses features that this release does not have: {}", missing.join(", ")));
    }
    let mut ops = relocate(topology, node, moved, lost)?;
    check_location(topology, node)?;
    match topology.node(node.host) {
        Some(known) if known.state == NodeState::Left => {
            Err(format!("node {} has left the cluster for good: start it with an empty data directory", node.host))
        }
        Some(known) => {
            let again = Node { state: known.state, ..node.clone() };
            if **known != again {
                ops.push(Op::PutNode(Box::new(again)));
            }
            Ok(ops)
        }
        None => {
            ops.push(Op::PutNode(Box::new(Node { state: NodeState::Joining, ..node.clone() })));
            Ok(ops)
        }
    }
}

/// Refuses another datacenter or rack of a node than the metadata has: replicas are placed by them, so
/// rows that LOCAL_QUORUM acknowledged would not be found by LOCAL_QUORUM after a move. Only a node
/// that never had others may move. The error is for the operator of the node.
pub fn check_location(topology: &Topology, node: &Node) -> Result<(), String> {
    let Some(known) = topology.node(node.host).filter(|known| known.state.is_member() && topology.len() > 1) else {
        return Ok(());
    };
    for (what, key, saved, configured) in
        [("DC", "datacenter", &known.datacenter, &node.datacenter), ("rack", "rack", &known.rack, &node.rack)]
    {
        if saved != configured {
            return Err(format!(
                "Saved {what} name \"{saved}\" is not equal to the {what} name \"{configured}\" specified by the configuration: node {} \
                 has joined as datacenter {}, rack {}, and a member of a cluster cannot move. Set `{key}` back to \"{saved}\", or start a \
                 new node with an empty data directory in the other place",
                node.host, known.datacenter, known.rack
            ));
        }
    }
    Ok(())
}

/// Where nodes are, for the wire between them.
pub fn address_book<'a>(nodes: impl Iterator<Item = &'a Node>) -> AddressBook {
    let mut book = AddressBook::default();
    for node in nodes {
        if node.state.is_member() {
            let peer = PeerAddress {
                address: node.internode(),
                shards: node.shards,
                datacenter: node.datacenter.clone(),
                rack: node.rack.clone(),
            };
            book.peers.insert(node.host, peer);
        } else {
            book.left.insert(node.host);
        }
    }
    book
}

/// What a search came to.
#[derive(Debug)]
pub enum Found {
    /// There is no cluster: this node begins it.
    Nothing,
    /// A cluster has let this node in; these are its members.
    Cluster(Vec<Node>),
}

/// Searches for a cluster from `seeds`, and has this node let in if there is one. On shard 0, with [`serve`] answering. Ends with an
/// error when the cluster refuses; as long as nobody answers it goes on.
pub async fn search(internode: &Rc<Internode>, own: &Node, seeds: Vec<SocketAddr>) -> Result<Found, String> {
    let searching = Rc::new(Searching(RefCell::new(Discovery::new(own.host, own.internode(), seeds))));
    rt::shard::install(searching.clone());
    let found = search_with(internode, own, &searching).await;
    rt::shard::uninstall::<Searching>();
    found
}

async fn search_with(internode: &Rc<Internode>, own: &Node, searching: &Searching) -> Result<Found, String> {
    let mut told = rt::time::now();
    loop {
        let (addresses, known) = {
            let search = searching.0.borrow();
            (search.to_ask(), search.known().clone())
        };
        let questions = addresses.iter().map(|address| ask(internode, *address, Request::Discover(known.clone())));
        let answers = futures_util::future::join_all(questions).await;
        let mut last_error = None;
        for (address, answer) in addresses.into_iter().zip(answers) {
            let mut search = searching.0.borrow_mut();
            match answer {
                Ok((Party { host, .. }, Answer::InCluster)) => {
                    search.heard(address, Heard { host, known: [address].into(), in_cluster: true });
                }
                Ok((Party { host, .. }, Answer::Searching(known))) => {
                    search.heard(address, Heard { host, known, in_cluster: false });
                }
                Ok((_, other)) => {
                    search.lost(address);
                    last_error = Some(format!("{address}: {other:?}"));
                }
                Err(NoAnswer::Own) => {
                    search.heard(address, Heard { host: own.host, known: BTreeSet::new(), in_cluster: false });
                }
                Err(NoAnswer::Ever(why)) => return Err(why),
                Err(NoAnswer::Yet(why) | NoAnswer::Twin(why)) => {
                    search.lost(address);
                    last_error = Some(format!("{address}: {why}"));
                }
            }
        }
        let verdict = searching.0.borrow().verdict();
        match verdict {
            Verdict::Begin => return Ok(Found::Nothing),
            Verdict::Join(members) => match join(internode, own, members).await {
                Ok(Some(nodes)) => return Ok(Found::Cluster(nodes)),
                Ok(None) => {}
                Err(why) => return Err(why),
            },
            Verdict::Ask => {}
        }
        if told.elapsed() >= TELL {
            told = rt::time::now();
            let silent = searching.0.borrow().silent();
            let why = last_error.as_deref().unwrap_or("all answer, and another one begins the cluster");
            tracing::warn!(?silent, why, "still looking for a cluster");
        }
        rt::time::sleep(PAUSE).await;
    }
}

/// Why a question has no answer.
pub(super) enum NoAnswer {
    /// It may have one another time.
    Yet(String),
    /// The node that was asked is this one.
    Own,
    /// Another node has the id of this one.
    Twin(String),
    /// There will never be one: this node belongs elsewhere, or nowhere.
    Ever(String),
}

pub(super) async fn ask(
    internode: &Rc<Internode>,
    address: SocketAddr,
    request: Request,
) -> Result<(Party, Answer), NoAnswer> {
    let limit = if matches!(request, Request::Join(_)) { ADMISSION } else { QUESTION };
    if matches!(request, Request::Locate(_)) {
        // What failed a moment ago says nothing about now.
        internode.forgive_address(address);
    }
    let called = internode.call_at(address, Verb::Join, encode(&request), Deadline::after(limit)).await;
    let (party, answer) = called.map_err(|error| match &error {
        CallError::Rejected(rejection) => match rejection.code {
            RejectionCode::Itself => NoAnswer::Own,
            RejectionCode::Twin => NoAnswer::Twin(error.to_string()),
            RejectionCode::Cluster | RejectionCode::Version | RejectionCode::Left => {
                NoAnswer::Ever(format!("the node at {address}, which is to lead to the cluster: {error}"))
            }
            _ => NoAnswer::Yet(error.to_string()),
        },
        _ => NoAnswer::Yet(error.to_string()),
    })?;
    Ok((party, decode(&answer).map_err(NoAnswer::Yet)?))
}

/// Tells the cluster where a member of it is now. Whether it was heard; if not, it is to be tried again later.
pub async fn introduce(internode: &Rc<Internode>, own: &Node, members: BTreeSet<SocketAddr>) -> Result<bool, String> {
    // A node alone has nobody to tell.
    if members.is_empty() {
        return Ok(true);
    }
    // The others know whether another node with this id is there, and lead to it.
    if join(internode, own, members).await?.is_some() {
        return Ok(true);
    }
    // A leader that was back before the others chose another was sent to where it was before.
    if let Some(service) = rt::shard::try_service::<MetadataService>()
        && service.group().is_some_and(|group| group.is_leader())
    {
        match let_in(&service, own.clone()).await {
            Answer::Welcome(_) => return Ok(true),
            Answer::Refused(why) => return Err(why),
            other => tracing::info!(answer = ?other, "this node leads, and is not let in yet"),
        }
    }
    Ok(false)
}

/// Asks members to be let in, and follows where they point. Nothing: to be tried again later.
async fn join(
    internode: &Rc<Internode>,
    own: &Node,
    members: BTreeSet<SocketAddr>,
) -> Result<Option<Vec<Node>>, String> {
    let mut to_ask: Vec<SocketAddr> = members.into_iter().collect();
    let mut asked = BTreeSet::new();
    while let Some(address) = to_ask.pop() {
        if !asked.insert(address) {
            continue;
        }
        match ask(internode, address, Request::Join(Box::new(own.clone()))).await {
            Ok((_, Answer::Welcome(nodes))) => return Ok(Some(nodes)),
            Ok((_, Answer::Elsewhere(leader))) => to_ask.push(leader),
            Ok((Party { host, .. }, Answer::Refused(why))) => {
                return Err(format!("node {host} at {address} refuses: {why}"));
            }
            Ok((_, other)) => tracing::info!(%address, answer = ?other, "not let in yet"),
            Err(NoAnswer::Ever(why)) => return Err(why),
            Err(NoAnswer::Twin(why)) => return Err(why),
            Err(NoAnswer::Own) => {}
            Err(NoAnswer::Yet(why)) => tracing::info!(%address, why, "not let in yet"),
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests;
