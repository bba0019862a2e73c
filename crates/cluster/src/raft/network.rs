//! The messages between the nodes of the group, and openraft's network on top of them.
//!
//! Messages are (version, body by postcard). Their enums are append-only.

use super::divergence::Acknowledged;
use super::machine::Outcome;
use super::stored::{Position, Record, SnapshotHead, StoredVote, byte_string, decode, encode};
use super::{Entry, LogId, Member, Types, Vote};
use bytes::Bytes;
use futures_util::future::LocalBoxFuture;
use model::id::HostId;
use openraft::error::{Infallible, InstallSnapshotError, RPCError, RaftError, Unreachable};
use openraft::network::{Backoff, RPCOption, RaftNetwork, RaftNetworkFactory};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, InstallSnapshotRequest, InstallSnapshotResponse, VoteRequest,
    VoteResponse,
};
use openraft::{AnyError, EmptyNode};
use rt::hash::HashMap;
use rt::time::Duration;
use serde::{Deserialize, Serialize};
use std::cell::RefCell;
use std::rc::Rc;
use thiserror::Error;
use uuid::Uuid;

/// The pause before openraft retries an unreachable node.
const BACKOFF: Duration = Duration::from_millis(200);

/// Sends messages to other nodes.
pub trait Transport: 'static {
    /// Sends a message to a node. [`super::Group::handle`] answers it there.
    fn call(&self, to: HostId, message: Bytes, limit: Duration) -> LocalBoxFuture<'static, Result<Bytes, CallFailed>>;
}

/// A message got no answer.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("{why}")]
pub struct CallFailed {
    /// The reason.
    pub why: String,
    /// Whether the other node may have carried out the request.
    pub may_have_been_done: bool,
}

/// A request. Append-only.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(super) enum RaftRequest {
    /// Entries of the leader; without entries, a heartbeat.
    Append { vote: StoredVote, previous: Option<Position>, entries: Vec<Record>, committed: Option<Position> },
    /// A candidate's request for a vote.
    Vote { vote: StoredVote, last: Option<Position> },
    /// A part of a snapshot.
    Snapshot {
        vote: StoredVote,
        head: SnapshotHead,
        offset: u64,
        #[serde(with = "byte_string")]
        data: Vec<u8>,
        done: bool,
    },
    /// A request for a pre-vote. The log of the sender ends at `last`.
    MayElect { last: Option<Position> },
    /// A command for the leader.
    Propose(#[serde(with = "byte_string")] Vec<u8>),
    /// A request to the leader for the index up to which everything is committed now.
    ReadIndex,
    /// A request to answer once the entry of an index is applied.
    Reached(u64),
    /// Informs a node that it had acknowledged the entries up to this position, and lacks them now.
    Forgotten(Position),
}

/// A response. Append-only.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(super) enum RaftResponse {
    /// All entries are durable.
    Appended,
    /// The entries up to this position are durable.
    AppendedUpTo(Option<Position>),
    /// The entries do not follow the end of the log.
    Conflict,
    /// The node has granted a higher vote.
    HigherVote(StoredVote),
    /// The response to a candidate.
    Vote { vote: StoredVote, granted: bool, last: Option<Position> },
    /// The part of the snapshot was accepted.
    Snapshot(StoredVote),
    /// Whether the pre-vote is granted.
    MayElect(bool),
    /// The command is committed.
    Proposed { outcome: Outcome, index: u64 },
    /// The requested index.
    Index(u64),
    /// The node is not the leader; carries the leader, if known.
    NotLeader(Option<Uuid>),
    /// The command may be committed or not.
    Unknown(String),
    /// The request failed.
    Failed(String),
}

/// The connection to the other nodes; without a transport while this node is alone.
#[derive(Default)]
pub(super) struct Link {
    transport: RefCell<Option<Rc<dyn Transport>>>,
    acknowledged: RefCell<HashMap<HostId, Rc<Acknowledged>>>,
}

impl Link {
    /// Sets the transport.
    pub fn connect(&self, transport: Rc<dyn Transport>) {
        *self.transport.borrow_mut() = Some(transport);
    }

    pub fn is_connected(&self) -> bool {
        self.transport.borrow().is_some()
    }

    /// The entries that a node is known to have acknowledged.
    pub fn acknowledged(&self, host: HostId) -> Rc<Acknowledged> {
        self.acknowledged.borrow_mut().entry(host).or_default().clone()
    }

    /// Sends a request to a node.
    pub async fn ask(&self, to: HostId, request: &RaftRequest, limit: Duration) -> Result<RaftResponse, CallFailed> {
        let transport = self.transport.borrow().clone();
        let Some(transport) = transport else {
            return Err(CallFailed { why: "this node has no connections yet".into(), may_have_been_done: false });
        };
        let answer = transport.call(to, encode(request).into(), limit).await?;
        decode(&answer).map_err(|why| CallFailed {
            why: format!("the response of node {to} cannot be decoded: {why}"),
            may_have_been_done: true,
        })
    }
}

/// Creates openraft's connections.
pub(super) struct Connector(pub Rc<Link>);

/// The connection to one node.
pub(super) struct Connection {
    link: Rc<Link>,
    to: HostId,
    acknowledged: Rc<Acknowledged>,
}

impl RaftNetworkFactory<Types> for Connector {
    type Network = Connection;

    async fn new_client(&mut self, target: Member, _: &EmptyNode) -> Connection {
        let to = HostId::from(target);
        Connection { link: self.0.clone(), to, acknowledged: self.0.acknowledged(to) }
    }
}

type Failed<E> = RPCError<Member, EmptyNode, RaftError<Member, E>>;

impl Connection {
    async fn ask<E: std::error::Error>(
        &self,
        request: RaftRequest,
        option: &RPCOption,
    ) -> Result<RaftResponse, Failed<E>> {
        let asked = self.link.ask(self.to, &request, option.hard_ttl()).await;
        asked.map_err(|failed| RPCError::Unreachable(Unreachable::new(&failed)))
    }

    /// Informs the node that it has lost acknowledged entries. openraft gets the error that the
    /// node is unreachable, because openraft asserts that such a loss never happens.
    async fn forgot(&self, acknowledged: Position, limit: Duration) -> Failed<Infallible> {
        let why = format!("it has lost acknowledged changes, up to change {}", acknowledged.index);
        match self.link.ask(self.to, &RaftRequest::Forgotten(acknowledged), limit).await {
            Ok(RaftResponse::Failed(_)) | Err(_) => {}
            Ok(other) => {
                tracing::warn!(node = %self.to, why, response = ?other, "the leader treats a member of the Raft group as unreachable")
            }
        }
        RPCError::Unreachable(Unreachable::new(&AnyError::error(why)))
    }

    /// The error for a response that refuses or is unexpected.
    fn refused<E: std::error::Error>(&self, answer: RaftResponse) -> Failed<E> {
        let why = match answer {
            RaftResponse::Failed(why) => why,
            _ => unexpected_answer(self.to),
        };
        RPCError::Unreachable(Unreachable::new(&AnyError::error(why)))
    }
}

/// The error text for a response that does not match its request.
pub(super) fn unexpected_answer(from: HostId) -> String {
    format!("the response of node {from} does not match the request")
}

fn positions(id: Option<LogId>) -> Option<Position> {
    id.map(Position::from)
}

impl RaftNetwork<Types> for Connection {
    async fn append_entries(
        &mut self,
        rpc: AppendEntriesRequest<Types>,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse<Member>, RPCError<Member, EmptyNode, RaftError<Member>>> {
        let request = RaftRequest::Append {
            vote: rpc.vote.into(),
            previous: positions(rpc.prev_log_id),
            entries: rpc.entries.iter().map(Record::from).collect(),
            committed: positions(rpc.leader_commit),
        };
        let (leader, previous) = (StoredVote::from(rpc.vote).leader(), positions(rpc.prev_log_id));
        match self.ask::<Infallible>(request, &option).await? {
            RaftResponse::Appended => {
                let last = rpc.entries.last().map(|entry| entry.log_id.into()).or(previous);
                self.acknowledged.upto(leader, last, positions(rpc.leader_commit));
                Ok(AppendEntriesResponse::Success)
            }
            RaftResponse::AppendedUpTo(last) => {
                self.acknowledged.upto(leader, last, positions(rpc.leader_commit));
                Ok(AppendEntriesResponse::PartialSuccess(last.map(LogId::from)))
            }
            RaftResponse::Conflict => match self.acknowledged.lost(leader, previous) {
                Some(acknowledged) => Err(self.forgot(acknowledged, option.hard_ttl()).await),
                None => Ok(AppendEntriesResponse::Conflict),
            },
            RaftResponse::HigherVote(vote) => Ok(AppendEntriesResponse::HigherVote(vote.into())),
            other => Err(self.refused(other)),
        }
    }

    async fn install_snapshot(
        &mut self,
        rpc: InstallSnapshotRequest<Types>,
        option: RPCOption,
    ) -> Result<InstallSnapshotResponse<Member>, RPCError<Member, EmptyNode, RaftError<Member, InstallSnapshotError>>>
    {
        let head = SnapshotHead::of(rpc.meta.last_log_id, &rpc.meta.last_membership);
        let request =
            RaftRequest::Snapshot { vote: rpc.vote.into(), head, offset: rpc.offset, data: rpc.data, done: rpc.done };
        match self.ask::<InstallSnapshotError>(request, &option).await? {
            RaftResponse::Snapshot(vote) => Ok(InstallSnapshotResponse { vote: vote.into() }),
            other => Err(self.refused(other)),
        }
    }

    async fn vote(
        &mut self,
        rpc: VoteRequest<Member>,
        option: RPCOption,
    ) -> Result<VoteResponse<Member>, RPCError<Member, EmptyNode, RaftError<Member>>> {
        let request = RaftRequest::Vote { vote: rpc.vote.into(), last: positions(rpc.last_log_id) };
        match self.ask::<Infallible>(request, &option).await? {
            RaftResponse::Vote { vote, granted, last } => {
                Ok(VoteResponse { vote: vote.into(), vote_granted: granted, last_log_id: last.map(LogId::from) })
            }
            other => Err(self.refused(other)),
        }
    }

    fn backoff(&self) -> Backoff {
        Backoff::new(std::iter::repeat(BACKOFF))
    }
}

/// Passes a request of another node's openraft to this node's.
pub(super) async fn answer(raft: &openraft::Raft<Types>, request: RaftRequest) -> RaftResponse {
    fn failed(error: impl std::fmt::Display) -> RaftResponse {
        RaftResponse::Failed(error.to_string())
    }
    match request {
        RaftRequest::Append { vote, previous, entries, committed } => {
            let rpc = AppendEntriesRequest {
                vote: Vote::from(vote),
                prev_log_id: previous.map(LogId::from),
                entries: entries.into_iter().map(Entry::from).collect(),
                leader_commit: committed.map(LogId::from),
            };
            match raft.append_entries(rpc).await {
                Ok(AppendEntriesResponse::Success) => RaftResponse::Appended,
                Ok(AppendEntriesResponse::PartialSuccess(last)) => RaftResponse::AppendedUpTo(positions(last)),
                Ok(AppendEntriesResponse::Conflict) => RaftResponse::Conflict,
                Ok(AppendEntriesResponse::HigherVote(vote)) => RaftResponse::HigherVote(vote.into()),
                Err(error) => failed(error),
            }
        }
        RaftRequest::Vote { vote, last } => {
            let rpc = VoteRequest { vote: vote.into(), last_log_id: last.map(LogId::from) };
            match raft.vote(rpc).await {
                Ok(VoteResponse { vote, vote_granted, last_log_id }) => {
                    RaftResponse::Vote { vote: vote.into(), granted: vote_granted, last: positions(last_log_id) }
                }
                Err(error) => failed(error),
            }
        }
        RaftRequest::Snapshot { vote, head, offset, data, done } => {
            let rpc = InstallSnapshotRequest { vote: vote.into(), meta: head.meta(), offset, data, done };
            match raft.install_snapshot(rpc).await {
                Ok(InstallSnapshotResponse { vote }) => RaftResponse::Snapshot(vote.into()),
                Err(error) => failed(error),
            }
        }
        RaftRequest::MayElect { .. }
        | RaftRequest::Propose(_)
        | RaftRequest::ReadIndex
        | RaftRequest::Reached(_)
        | RaftRequest::Forgotten(_) => failed("openraft does not handle this request"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raft::stored::{Members, Payload};

    /// The bytes of every message of this release. If they change, nodes of two releases cannot
    /// decode each other's messages.
    #[test]
    fn the_form_of_messages_stays() {
        let node = Uuid::from_u128(1);
        let at = Position { term: 2, leader: node, index: 3 };
        let vote = StoredVote { term: 2, node, committed: true };
        let mut place = vec![2, 16];
        place.extend_from_slice(node.as_bytes());
        let mut vote_bytes = place.clone();
        vote_bytes.push(1);
        place.push(3);
        let bytes = |parts: &[&[u8]]| [&[1][..], &parts.concat()].concat();
        let record = Record { at, payload: Payload::Blank };
        let append = RaftRequest::Append { vote, previous: Some(at), entries: vec![record], committed: None };
        assert_eq!(encode(&append), bytes(&[&[0], &vote_bytes, &[1], &place, &[1], &place, &[0], &[0]]));
        assert_eq!(encode(&RaftRequest::Vote { vote, last: None }), bytes(&[&[1], &vote_bytes, &[0]]));
        assert_eq!(encode(&RaftRequest::MayElect { last: Some(at) }), bytes(&[&[3, 1], &place]));
        assert_eq!(encode(&RaftRequest::Propose(vec![7])), bytes(&[&[4, 1, 7]]));
        assert_eq!(encode(&RaftRequest::ReadIndex), bytes(&[&[5]]));
        assert_eq!(encode(&RaftRequest::Reached(9)), bytes(&[&[6, 9]]));
        assert_eq!(encode(&RaftRequest::Forgotten(at)), bytes(&[&[7], &place]));
        let head = SnapshotHead { last: None, members_at: None, members: Members { voters: vec![], all: vec![] } };
        let snapshot = RaftRequest::Snapshot { vote, head, offset: 5, data: vec![9], done: true };
        assert_eq!(encode(&snapshot), bytes(&[&[2], &vote_bytes, &[0, 0, 0, 0], &[5, 1, 9, 1]]));
        let answers = [
            (RaftResponse::Appended, bytes(&[&[0]])),
            (RaftResponse::AppendedUpTo(Some(at)), bytes(&[&[1, 1], &place])),
            (RaftResponse::Conflict, bytes(&[&[2]])),
            (RaftResponse::HigherVote(vote), bytes(&[&[3], &vote_bytes])),
            (RaftResponse::Vote { vote, granted: false, last: None }, bytes(&[&[4], &vote_bytes, &[0, 0]])),
            (RaftResponse::Snapshot(vote), bytes(&[&[5], &vote_bytes])),
            (RaftResponse::MayElect(true), bytes(&[&[6, 1]])),
            (RaftResponse::Proposed { outcome: Outcome::Stale, index: 4 }, bytes(&[&[7, 1, 4]])),
            (RaftResponse::Index(4), bytes(&[&[8, 4]])),
            (RaftResponse::NotLeader(None), bytes(&[&[9, 0]])),
            (RaftResponse::Unknown("x".into()), bytes(&[&[10, 1, b'x']])),
            (RaftResponse::Failed("y".into()), bytes(&[&[11, 1, b'y']])),
        ];
        for (answer, expected) in answers {
            assert_eq!(encode(&answer), expected, "{answer:?}");
            assert_eq!(decode::<RaftResponse>(&expected), Ok(answer));
        }
    }
}
