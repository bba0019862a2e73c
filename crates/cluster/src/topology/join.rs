//! Joining a cluster: the requests of the joining node, and the answers of the cluster.
//!
//! A node without metadata searches ([`super::discovery`]). It either creates a cluster or asks to
//! be admitted. The leader of the Raft group checks the node's description ([`admit`]). It adds the
//! node to the topology as joining, and to the group as a learner. From the group the node receives
//! all metadata. A node must not be admitted twice under two identities, nor with an address that
//! another node has.

use super::Node;
use super::admission::Admission;
use super::admit::{NotAdmitted, admit, check_unchanged, has_lost_metadata, place, relocate, replace};
use super::discovery::{Discovery, DiscoveryResponse, DiscoveryStep};
use super::runs::{self, KnownNode, RunClaim};
use super::search_progress::{SearchProgress, waits_for};
use super::whereabouts::{down, lost, may_be_elsewhere, moved, reached_at};
use super::write_marks::MarkAnnouncement;
use crate::metadata::{ChangeError, MetadataService, change};
use bytes::Bytes;
use internode::{
    AddressBook, CallError, Caller, Internode, Party, PeerAddress, Refusal, RefusalCode, RejectionCode, Verb,
};
use model::id::HostId;
use rt::sync::Deadline;
use rt::time::Duration;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::cell::{RefCell, RefMut};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::rc::Rc;

/// The version of the messages.
const FORMAT: u8 = 1;
/// The pause between two rounds of questions.
const PAUSE: Duration = Duration::from_millis(100);
/// The time limit of a question of the search.
const QUESTION: Duration = Duration::from_secs(2);
/// The time limit of an admission.
const ADMISSION: Duration = Duration::from_secs(60);
/// The interval of log lines while the node waits.
const REPORT_EVERY: Duration = Duration::from_secs(10);
/// When the search is logged first.
const FIRST_REPORT: Duration = Duration::from_secs(1);

/// A request to another node. Append-only.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(super) enum JoinRequest {
    /// Asks whether a cluster exists, and which addresses the other node knows. Carries the
    /// addresses that the sender knows.
    Discover(BTreeSet<SocketAddr>),
    /// Asks for admission.
    Join(Box<Node>),
    /// Asks which node is there, and which addresses it knows. Carries the addresses that the
    /// sender knows. See [`super::locate`].
    Locate(BTreeSet<SocketAddr>),
    /// A member asks for admission at a new address, and claims a new run.
    Return(Box<Node>, RunClaim),
    /// Asks for the receiver's records of the sender's runs.
    OwnRuns,
    /// Announces the write mark of the sender, and asks for the receiver's records of its runs.
    Marked(MarkAnnouncement),
    /// Asks for admission in the place of a member that is down.
    Replace(Box<Node>, HostId),
}

/// The response to a [`JoinRequest`]. Append-only.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(super) enum JoinResponse {
    /// The node is not in a cluster; it knows these addresses.
    Searching(BTreeSet<SocketAddr>),
    /// The node is in a cluster.
    InCluster,
    /// The node is admitted; these are the members.
    Welcome(Vec<Node>),
    /// The leader is at this address: ask there.
    Elsewhere(SocketAddr),
    /// Not now, with the reason: ask again.
    Later(String),
    /// Never, with the reason.
    Refused(String),
    /// The addresses that the node knows, including its own.
    Located(BTreeSet<SocketAddr>),
    /// The receiver's records of the sender's runs.
    Runs(KnownNode),
}

fn encode<T: Serialize>(value: &T) -> Bytes {
    postcard::to_extend(value, vec![FORMAT]).expect("plain values can be encoded").into()
}

fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    match bytes.split_first() {
        Some((&FORMAT, body)) => postcard::from_bytes(body).map_err(|error| error.to_string()),
        _ => Err("the message is of another release".into()),
    }
}

/// Answers other nodes' questions about the cluster. On shard 0.
pub fn serve(internode: &Internode, admission: &Rc<Admission>) {
    let admission = admission.clone();
    internode.serve(Verb::Join, move |caller, body| {
        let admission = admission.clone();
        async move {
            match decode::<JoinRequest>(&body) {
                Ok(request) => Ok(encode(&answer(&admission, caller, request).await).into()),
                Err(why) => Err(Refusal::new(RefusalCode::Malformed, why)),
            }
        }
    });
}

async fn answer(admission: &Admission, caller: Caller, request: JoinRequest) -> JoinResponse {
    let service = admission.shards.metadata.try_get();
    let member = service.filter(|service| !service.current().topology.is_empty());
    match (request, member) {
        (JoinRequest::Locate(named), _) => match admission.shards.internode.try_get() {
            Some(internode) => JoinResponse::Located(admission.locator.asked(&internode, caller.address, named)),
            None => JoinResponse::Later("the node is stopping".into()),
        },
        (JoinRequest::Discover(_), Some(_)) => JoinResponse::InCluster,
        (JoinRequest::Discover(known), None) => match &mut *admission.searching.borrow_mut() {
            Some(search) => {
                search.add_known(known);
                JoinResponse::Searching(search.known().clone())
            }
            None => JoinResponse::Later("the node is starting".into()),
        },
        (JoinRequest::OwnRuns, member) => JoinResponse::Runs(KnownNode::of(caller.host, member, &admission.marks)),
        (JoinRequest::Marked(announcement), member) => {
            // A process on a copy at another address announces nothing.
            let book = admission.shards.internode.try_get().map(|internode| internode.book());
            let known = book.and_then(|book| book.peers.get(&caller.host).map(|peer| peer.address));
            if known == Some(caller.address) {
                admission.marks.record(caller.host, announcement);
            }
            JoinResponse::Runs(KnownNode::of(caller.host, member, &admission.marks))
        }
        (JoinRequest::Join(node), member) => answer_applicant(admission, caller, member, *node, None, None).await,
        (JoinRequest::Return(node, claim), member) => {
            answer_applicant(admission, caller, member, *node, Some(claim), None).await
        }
        (JoinRequest::Replace(node, dead), member) => {
            answer_applicant(admission, caller, member, *node, None, Some(dead)).await
        }
    }
}

async fn answer_applicant(
    admission: &Admission,
    caller: Caller,
    member: Option<Rc<MetadataService>>,
    node: Node,
    claim: Option<RunClaim>,
    replaces: Option<HostId>,
) -> JoinResponse {
    let Some(service) = member else { return JoinResponse::Later("the node is not part of a cluster yet".into()) };
    if !admission.is_open() {
        return JoinResponse::Later("the node is starting".into());
    }
    match node.host == caller.host {
        true => admit_node(admission, &service, node, claim, replaces).await,
        false => JoinResponse::Refused("a node can only ask for itself".into()),
    }
}

/// Admits a node, if this node is the leader. `replaces`: a member that is down, which the node
/// replaces.
async fn admit_node(
    admission: &Admission,
    service: &Rc<MetadataService>,
    node: Node,
    claim: Option<RunClaim>,
    replaces: Option<HostId>,
) -> JoinResponse {
    let Some(group) = service.group() else { return JoinResponse::Later("this is not the right shard".into()) };
    let host = node.host;
    let internode = admission.shards.internode.try_get();
    let is_news = |why: &str| admission.is_open() && admission.is_news(host, why);
    let topology = service.current().topology.clone();
    let is_older = || runs::record(&topology, host, claim.as_ref()?).err();
    if let Some(why) = has_lost_metadata(&topology, &node).or_else(is_older) {
        if is_news(&why) {
            tracing::warn!(node = %host, why, "a node is not admitted");
        }
        return JoinResponse::Refused(why);
    }
    if !group.is_leader() {
        let leader = group.leader().and_then(|leader| topology.node(leader).cloned());
        return match leader {
            Some(leader) => JoinResponse::Elsewhere(reached_at(internode.as_ref(), &leader)),
            None => JoinResponse::Later("no leader of the metadata is known".into()),
        };
    }
    let (moved, lost) = (moved(internode.as_ref(), service), lost(internode.as_ref(), service));
    if let Some(why) = may_be_elsewhere(internode.as_ref(), &topology, &node).await {
        if is_news(&why) {
            tracing::warn!(node = %host, why, "a node is not admitted yet");
        }
        return JoinResponse::Later(why);
    }
    if topology.node(host).is_some()
        && let Err(why) = relocate(&topology, &node, &moved, &lost)
    {
        // A member took another member's address. The other member may still be located at its new
        // address.
        if is_news(&why) {
            tracing::info!(node = %host, why, "a member with a new address is not admitted yet");
        }
        return JoinResponse::Later(why);
    }
    let replaced = topology.with_address_of(&node).map(|other| other.host).filter(|other| lost.contains(other));
    let seen = place(&topology, host);
    let down = down(internode.as_ref(), &topology);
    let made = change(admission.shards.metadata, move |metadata, _| {
        check_unchanged(seen, place(&metadata.topology, host), host)?;
        let (mut ops, topology) = match replaces {
            Some(dead) => replace(metadata, &node, dead, &down)?,
            None => (Vec::new(), metadata.topology.clone()),
        };
        ops.extend(admit(&topology, &node, &moved, &lost).map_err(NotAdmitted::Ever)?);
        if let Some(claim) = &claim {
            ops.extend(runs::record(&metadata.topology, host, claim).map_err(NotAdmitted::Ever)?);
        }
        Ok((ops, ()))
    });
    match made.await {
        Ok(()) => {}
        Err(ChangeError::Refused(NotAdmitted::Ever(why))) => {
            if is_news(&why) {
                tracing::warn!(node = %host, why, "a node is not admitted");
            }
            return JoinResponse::Refused(why);
        }
        Err(ChangeError::Refused(NotAdmitted::Yet(why))) => {
            if is_news(&why) {
                tracing::warn!(node = %host, why, "a node is not admitted yet");
            }
            return JoinResponse::Later(why);
        }
        Err(error) => return JoinResponse::Later(error.to_string()),
    }
    match group.add(host).await {
        Ok(()) => {
            tracing::info!(node = %host, "a node joins the cluster");
            if let Some(dead) = replaces {
                tracing::info!(node = %host, %dead, "the node replaces one that is down, whose replicas are built on other nodes");
            }
            if let Some(replaced) = replaced {
                tracing::warn!(node = %host, %replaced, "the node takes the address of a member that never finished joining and is down: that member has left the cluster");
            }
            JoinResponse::Welcome(service.current().topology.members().map(|node| (**node).clone()).collect())
        }
        Err(error) => JoinResponse::Later(error.to_string()),
    }
}

/// The addresses of the nodes for internode.
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

/// The result of a search.
#[derive(Debug)]
pub enum SearchOutcome {
    /// There is no cluster: this node creates it.
    Nothing,
    /// A cluster has admitted this node; these are its members.
    Cluster(Vec<Node>),
}

/// Searches for a cluster from `seeds`, and has this node admitted if there is one. If `replaces`
/// is given, the node takes the place of this member, which is down. On shard 0, while [`serve`]
/// answers questions. Returns an error if the cluster refuses. Continues for as long as no node
/// answers.
pub async fn search(
    admission: &Admission,
    internode: &Rc<Internode>,
    own: &Node,
    replaces: Option<HostId>,
    seeds: Vec<SocketAddr>,
    progress: &SearchProgress,
) -> Result<SearchOutcome, String> {
    progress.set(Some("it looks for its cluster at its seeds".to_owned()));
    admission.searching.replace(Some(Discovery::new(own.host, own.internode(), seeds)));
    let found = search_with(internode, (own, replaces), &admission.searching, progress).await;
    admission.searching.take();
    progress.set(None);
    found
}

async fn search_with(
    internode: &Rc<Internode>,
    (own, replaces): (&Node, Option<HostId>),
    searching: &RefCell<Option<Discovery>>,
    progress: &SearchProgress,
) -> Result<SearchOutcome, String> {
    let search = || RefMut::map(searching.borrow_mut(), |search| search.as_mut().expect("the search is running"));
    let mut next_report = rt::time::now() + FIRST_REPORT;
    loop {
        let (addresses, known) = {
            let search = search();
            (search.to_ask(), search.known().clone())
        };
        let questions = addresses.iter().map(|address| ask(internode, *address, JoinRequest::Discover(known.clone())));
        let answers = futures_util::future::join_all(questions).await;
        let mut reasons = BTreeMap::new();
        for (address, answer) in addresses.into_iter().zip(answers) {
            let mut search = search();
            match answer {
                Ok((Party { host, .. }, JoinResponse::InCluster)) => {
                    search
                        .record_answer(address, DiscoveryResponse { host, known: [address].into(), in_cluster: true });
                }
                Ok((Party { host, .. }, JoinResponse::Searching(known))) => {
                    search.record_answer(address, DiscoveryResponse { host, known, in_cluster: false });
                }
                Ok((_, other)) => {
                    search.lost(address);
                    reasons.insert(address, format!("{other:?}"));
                }
                Err(NoResponse::Own) => {
                    search.record_answer(
                        address,
                        DiscoveryResponse { host: own.host, known: BTreeSet::new(), in_cluster: false },
                    );
                }
                Err(NoResponse::Ever(why) | NoResponse::Left(why)) => return Err(why),
                Err(NoResponse::Yet(why) | NoResponse::Twin(why)) => {
                    search.lost(address);
                    reasons.insert(address, why);
                }
            }
        }
        let verdict = search().verdict();
        match verdict {
            DiscoveryStep::Begin => return Ok(SearchOutcome::Nothing),
            DiscoveryStep::Join(members) => match join(internode, own, None, replaces, members).await {
                Ok(Some(nodes)) => return Ok(SearchOutcome::Cluster(nodes)),
                Ok(None) => {}
                Err(why) => return Err(why),
            },
            DiscoveryStep::Ask => {}
        }
        let waits_for = waits_for(&search().silent(), &reasons);
        if rt::time::now() >= next_report {
            next_report = rt::time::now() + REPORT_EVERY;
            tracing::warn!(waits_for, "this node is still looking for a cluster");
        }
        progress.set(Some(format!("it looks for its cluster, and waits for {waits_for}")));
        rt::time::sleep(PAUSE).await;
    }
}

/// Why a question has no answer.
pub(super) enum NoResponse {
    /// The question may be answered later.
    Yet(String),
    /// The address belongs to this node.
    Own,
    /// Another node has the host id of this one.
    Twin(String),
    /// The question will never be answered: this node belongs to another cluster, or to none.
    Ever(String),
    /// The cluster has recorded that this node has left.
    Left(String),
}

pub(super) async fn ask(
    internode: &Rc<Internode>,
    address: SocketAddr,
    request: JoinRequest,
) -> Result<(Party, JoinResponse), NoResponse> {
    let is_admission = matches!(request, JoinRequest::Join(_) | JoinRequest::Return(..) | JoinRequest::Replace(..));
    let limit = if is_admission { ADMISSION } else { QUESTION };
    if matches!(request, JoinRequest::Locate(_)) {
        // A recent failure says nothing about the present.
        internode.forgive_address(address);
    }
    let called = internode.call_at(address, Verb::Join, encode(&request), Deadline::after(limit)).await;
    let (party, answer) = called.map_err(|error| match &error {
        CallError::Rejected(rejection) => match rejection.code {
            RejectionCode::Itself => NoResponse::Own,
            RejectionCode::Twin => NoResponse::Twin(error.to_string()),
            RejectionCode::Cluster | RejectionCode::Version => {
                NoResponse::Ever(format!("the seed or member at {address}: {error}"))
            }
            RejectionCode::Left => NoResponse::Left(format!("{error}: start it with an empty data directory")),
            _ => NoResponse::Yet(error.to_string()),
        },
        _ => NoResponse::Yet(error.to_string()),
    })?;
    Ok((party, decode(&answer).map_err(NoResponse::Yet)?))
}

/// Announces this node's current address to the cluster, with the new run that it claims. Returns
/// whether it was accepted; if not, try again later.
pub async fn introduce(
    admission: &Admission,
    internode: &Rc<Internode>,
    own: &Node,
    claim: &RunClaim,
    members: BTreeSet<SocketAddr>,
) -> Result<bool, String> {
    // A single node has no other node to inform.
    if members.is_empty() {
        return Ok(true);
    }
    // The other members know whether another node with this id exists, and name the leader.
    if join(internode, own, Some(claim), None, members).await?.is_some() {
        return Ok(true);
    }
    // This node may be the leader itself: it restarted before the others elected another one, and
    // they name its previous address.
    if let Some(service) = admission.shards.metadata.try_get()
        && service.group().is_some_and(|group| group.is_leader())
    {
        match admit_node(admission, &service, own.clone(), Some(claim.clone()), None).await {
            JoinResponse::Welcome(_) => return Ok(true),
            JoinResponse::Refused(why) => return Err(why),
            other => tracing::info!(response = ?other, "this node is the leader, and is not admitted yet"),
        }
    }
    Ok(false)
}

/// Asks members for admission, and follows their redirections. `None`: try again later.
async fn join(
    internode: &Rc<Internode>,
    own: &Node,
    claim: Option<&RunClaim>,
    replaces: Option<HostId>,
    members: BTreeSet<SocketAddr>,
) -> Result<Option<Vec<Node>>, String> {
    let request = || match (claim, replaces) {
        (Some(claim), _) => JoinRequest::Return(Box::new(own.clone()), claim.clone()),
        (None, Some(dead)) => JoinRequest::Replace(Box::new(own.clone()), dead),
        (None, None) => JoinRequest::Join(Box::new(own.clone())),
    };
    let mut to_ask: Vec<SocketAddr> = members.into_iter().collect();
    let mut asked = BTreeSet::new();
    while let Some(address) = to_ask.pop() {
        if !asked.insert(address) {
            continue;
        }
        match ask(internode, address, request()).await {
            Ok((_, JoinResponse::Welcome(nodes))) => return Ok(Some(nodes)),
            Ok((_, JoinResponse::Elsewhere(leader))) => to_ask.push(leader),
            Ok((Party { host, .. }, JoinResponse::Refused(why))) => {
                return Err(format!("node {host} at {address} refuses: {why}"));
            }
            Ok((_, JoinResponse::Later(why))) => report_wait(address, &why),
            Ok((_, other)) => {
                tracing::info!(%address, response = ?other, "unexpected response to a request for admission; retrying")
            }
            Err(NoResponse::Ever(why) | NoResponse::Left(why) | NoResponse::Twin(why)) => return Err(why),
            Err(NoResponse::Own) => {}
            Err(NoResponse::Yet(why)) => report_wait(address, &why),
        }
    }
    Ok(None)
}

fn report_wait(address: SocketAddr, why: &str) {
    tracing::info!(%address, why, "this node is not admitted to the cluster yet; retrying");
}

#[cfg(test)]
mod tests;
