//! The requests that change the cluster and take time: nodes that join, leave or are removed, and
//! keyspaces that get another replication. Part of the metadata, so all nodes agree on it. Pure.
//!
//! A request is not recorded by the node that makes it. It follows from the metadata: a node that
//! is leaving, for example, is a request to leave ([`Goal`]). [`TopologyRequests::follow`] compares
//! the open requests with the metadata after each change. So a request begins and ends with the
//! change that begins and ends its work, whichever node makes that change, and also if the node
//! that made the request is gone. Ended requests are kept for operators, up to [`KEPT`].

use super::{Node, NodeState, features};
use crate::metadata::{Change, Keyspace, Metadata, Op, micros_of};
use crate::named::named;
use model::id::HostId;
use serde::{Deserialize, Serialize};
use std::rc::Rc;
use uuid::Uuid;

/// The most ended requests that are kept.
pub const KEPT: usize = 100;

/// A request. The stored form; kinds are stored by name, and names never change.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TopologyRequest {
    /// A time UUID: when it began.
    pub id: Uuid,
    /// See [`RequestKind`].
    pub kind: String,
    /// The node that joins, leaves or is removed.
    pub host: Option<HostId>,
    /// The keyspace whose replication changes.
    pub keyspace: Option<String>,
    /// `None` while its work is under way.
    pub ended: Option<RequestEnd>,
}

/// The end of a request.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RequestEnd {
    /// The version of the metadata that ended it, a time UUID.
    pub version: Uuid,
    /// Why the request did not reach its goal. `None` if it reached its goal.
    pub error: Option<String>,
}

impl TopologyRequest {
    /// Its kind. `None` if a later release has made it.
    pub fn kind(&self) -> Option<RequestKind> {
        RequestKind::from_name(&self.kind)
    }

    /// When it began, in microseconds since 1970.
    pub fn began_at(&self) -> Option<i64> {
        micros_of(self.id)
    }
}

impl RequestEnd {
    /// When it ended, in microseconds since 1970.
    pub fn at(&self) -> Option<i64> {
        micros_of(self.version)
    }
}

named! {
    /// The kind of a request. The names are ScyllaDB's.
    RequestKind {
        /// A node joins.
        Join = "join",
        /// A node joins in the place of one that is removed.
        Replace = "replace",
        /// A node leaves.
        Leave = "leave",
        /// The replicas of a removed node are built on others.
        Remove = "remove",
        /// A keyspace gets another replication.
        ReplicationChange = "keyspace_rf_change",
    }
}

impl RequestKind {
    /// Whether a node joins, with or without the place of another.
    fn is_join(self) -> bool {
        matches!(self, RequestKind::Join | RequestKind::Replace)
    }

    /// Whether replicas of a node go to others.
    pub fn empties_node(self) -> bool {
        matches!(self, RequestKind::Leave | RequestKind::Remove)
    }

    /// Whether the node itself makes the request.
    pub fn is_of_the_node(self) -> bool {
        self.is_join() || self == RequestKind::Leave
    }
}

/// What the metadata shows as under way.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Goal {
    Node(HostId, RequestKind),
    Replication(String),
}

impl Goal {
    /// Whether a request is for this goal.
    fn is_of(&self, request: &TopologyRequest) -> bool {
        match self {
            Goal::Node(host, kind) => {
                let is_same = |known: RequestKind| known == *kind || known.is_join() && kind.is_join();
                request.host == Some(*host) && request.kind().is_some_and(is_same)
            }
            Goal::Replication(keyspace) => request.keyspace.as_ref() == Some(keyspace),
        }
    }

    /// All goals that the metadata shows.
    fn all(metadata: &Metadata) -> Vec<Goal> {
        let of_node = |node: &Rc<Node>| {
            let kind = match node.state {
                NodeState::Joining => RequestKind::Join,
                NodeState::Leaving => RequestKind::Leave,
                NodeState::Removed if has_tablets(metadata, node) => RequestKind::Remove,
                NodeState::Removed | NodeState::Normal | NodeState::Left => return None,
            };
            Some(Goal::Node(node.host, kind))
        };
        let of_keyspace = |keyspace: &Rc<Keyspace>| {
            keyspace.wanted_replication.as_ref().map(|_| Goal::Replication(keyspace.definition.name.clone()))
        };
        let nodes = metadata.topology.nodes().filter_map(of_node);
        nodes.chain(metadata.keyspaces.values().filter_map(of_keyspace)).collect()
    }
}

/// The open requests and the last ended ones, in the order in which they began.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TopologyRequests(Vec<TopologyRequest>);

impl TopologyRequests {
    /// All requests, in the order in which they began.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &TopologyRequest> {
        self.0.iter()
    }

    /// The request with an id.
    pub fn get(&self, id: Uuid) -> Option<&TopologyRequest> {
        self.0.iter().find(|request| request.id == id)
    }

    /// Adds a request, or replaces it.
    pub(crate) fn put(&mut self, request: TopologyRequest) {
        match self.0.iter_mut().find(|known| known.id == request.id) {
            Some(known) => *known = request,
            None => self.0.push(request),
        }
    }

    /// The requests after a change that led to this metadata. `None` if they stay the same.
    pub(crate) fn follow(&self, metadata: &Metadata, change: &Change) -> Option<TopologyRequests> {
        if !metadata.topology.has_feature(features::TOPOLOGY_REQUESTS) || !change.ops.iter().any(may_concern_requests) {
            return None;
        }
        let mut new = Goal::all(metadata);
        let mut is_over = |request: &TopologyRequest| match new.iter().position(|goal| goal.is_of(request)) {
            Some(known) => {
                new.remove(known);
                false
            }
            None => true,
        };
        let open = self.0.iter().enumerate().filter(|(_, request)| request.ended.is_none());
        let over: Vec<usize> = open.filter(|(_, request)| is_over(request)).map(|(at, _)| at).collect();
        if over.is_empty() && new.is_empty() {
            return None;
        }
        let mut next = self.clone();
        for at in over {
            let error = failure(metadata, &self.0[at]);
            next.0[at].ended = Some(RequestEnd { version: change.new, error });
        }
        next.0.extend(new.into_iter().zip(0..).map(|(goal, n)| begin(goal, change, n)));
        next.forget_old();
        Some(next)
    }

    fn forget_old(&mut self) {
        let ended = self.0.iter().filter(|request| request.ended.is_some()).count();
        let mut surplus = ended.saturating_sub(KEPT);
        self.0.retain(|request| {
            let is_old = surplus > 0 && request.ended.is_some();
            surplus -= usize::from(is_old);
            !is_old
        });
    }
}

/// Whether an operation may begin or end a request.
fn may_concern_requests(op: &Op) -> bool {
    matches!(
        op,
        Op::PutNode(_)
            | Op::RemoveNode(_)
            | Op::EnableFeatures(_)
            | Op::PutWantedReplication { .. }
            | Op::DropKeyspace(_)
            | Op::DropTable { .. }
            | Op::PutTablets(_)
            | Op::PutTransition(_)
            | Op::EndTransition { .. }
    )
}

/// The `n`th request that begins with a change.
fn begin(goal: Goal, change: &Change, n: u64) -> TopologyRequest {
    // The last bits of a time UUID name the node, so that the time stays.
    let id = Uuid::from_u128(change.new.as_u128() ^ u128::from(n));
    let (host, keyspace, kind) = match goal {
        Goal::Node(host, kind) => (Some(host), None, kind),
        Goal::Replication(keyspace) => (None, Some(keyspace), RequestKind::ReplicationChange),
    };
    let removes = |op: &Op| matches!(op, Op::PutNode(node) if node.state == NodeState::Removed);
    let kind = match kind {
        RequestKind::Join if change.ops.iter().any(removes) => RequestKind::Replace,
        kind => kind,
    };
    TopologyRequest { id, kind: kind.name().to_owned(), host, keyspace, ended: None }
}

/// Why a request that is over did not reach its goal. `None` if it reached its goal.
fn failure(metadata: &Metadata, request: &TopologyRequest) -> Option<String> {
    if let Some(keyspace) = &request.keyspace {
        return metadata.keyspace(keyspace).is_none().then(|| "the keyspace was dropped".to_owned());
    }
    let state = metadata.topology.node(request.host?).map(|node| node.state);
    match (request.kind()?, state) {
        (kind, Some(NodeState::Removed)) if kind.is_of_the_node() => Some("the node was removed".to_owned()),
        (kind, Some(NodeState::Left) | None) if kind.is_join() => Some("the node did not finish joining".to_owned()),
        (RequestKind::Leave, Some(NodeState::Normal)) => Some("the request was cancelled".to_owned()),
        _ => None,
    }
}

/// Whether a node has or receives a replica of a tablet.
fn has_tablets(metadata: &Metadata, node: &Node) -> bool {
    metadata.load(node.host, usize::from(node.shards)).iter().any(|tablets| *tablets > 0)
}

#[cfg(test)]
mod tests;
