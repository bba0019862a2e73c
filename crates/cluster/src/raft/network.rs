//! What nodes of the group say to each other, and openraft's network on it.
//!
//! Messages are (version, body by postcard), and append-only as everything that is sent.

use super::divergence::Acknowledged;
use super::machine::Outcome;
use super::stored::{Ballot, Position, Record, SnapshotHead, decode, encode};
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

/// How long openraft waits before it tries a node again that could not be reached.
const BACKOFF: Duration = Duration::from_millis(200);

/// How messages reach other nodes.
pub trait Transport: 'static {
    /// Sends a message to a node, whose [`super::Group::handle`] answers it.
    fn call(&self, to: HostId, message: Bytes, limit: Duration) -> LocalBoxFuture<'static, Result<Bytes, CallFailed>>;
}

/// A message has no answer.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("{why}")]
pub struct CallFailed {
    /// Why.
    pub why: String,
    /// Whether the other node may have done what it was asked.
    pub may_have_been_done: bool,
}

/// A question. Append-only.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(super) enum Request {
    /// The leader's entries, or none: a sign of life.
    Append { vote: Ballot, previous: Option<Position>, entries: Vec<Record>, committed: Option<Position> },
    /// A candidate asks for a vote.
    Vote { vote: Ballot, last: Option<Position> },
    /// A part of a snapshot.
    Snapshot { vote: Ballot, head: SnapshotHead, offset: u64, data: Vec<u8>, done: bool },
    /// Whether an election would be welcome, asked by one whose log ends here.
    MayElect { last: Option<Position> },
    /// A command for the leader.
    Propose(Vec<u8>),
    /// The leader is asked how far one has to be to know all that is decided by now.
    ReadIndex,
    /// To answer once the entry of an index is applied.
    Reached(u64),
    /// The leader says that the asked node had acknowledged the entries up to here, and lacks them now.
    Forgotten(Position),
}

/// An answer. Append-only.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(super) enum Answer {
    /// All entries are written down.
    Appended,
    /// Those up to here are.
    AppendedUpTo(Option<Position>),
    /// The entries do not follow what is there.
    Conflict,
    /// Somebody else leads.
    HigherVote(Ballot),
    /// To a candidate.
    Vote { vote: Ballot, granted: bool, last: Option<Position> },
    /// The part of the snapshot was taken.
    Snapshot(Ballot),
    /// Whether an election is welcome.
    MayElect(bool),
    /// The command is decided.
    Proposed { outcome: Outcome, index: u64 },
    /// How far one has to be.
    Index(u64),
    /// The asked node does not lead; who does, as far as it knows.
    NotLeader(Option<Uuid>),
    /// The command may or may not be decided.
    Unknown(String),
    /// It could not be done.
    Failed(String),
}

/// The way to the other nodes; none, as long as this node is alone.
#[derive(Default)]
pub(super) struct Link {
    transport: RefCell<Option<Rc<dyn Transport>>>,
    acknowledged: RefCell<HashMap<HostId, Rc<Acknowledged>>>,
}

impl Link {
    /// Sets the way.
    pub fn connect(&self, transport: Rc<dyn Transport>) {
        *self.transport.borrow_mut() = Some(transport);
    }

    pub fn is_connected(&self) -> bool {
        self.transport.borrow().is_some()
    }

    /// What is known of a node.
    pub fn acknowledged(&self, host: HostId) -> Rc<Acknowledged> {
        self.acknowledged.borrow_mut().entry(host).or_default().clone()
    }

    /// Asks a node.
    pub async fn ask(&self, to: HostId, request: &Request, limit: Duration) -> Result<Answer, CallFailed> {
        let transport = self.transport.borrow().clone();
        let Some(transport) = transport else {
            return Err(CallFailed { why: "this node has no connections yet".into(), may_have_been_done: false });
        };
        let answer = transport.call(to, encode(request).into(), limit).await?;
        decode(&answer).map_err(|why| CallFailed {
            why: format!("the answer of node {to} cannot be understood: {why}"),
            may_have_been_done: true,
        })
    }
}

/// Makes connections for openraft.
pub(super) struct Connector(pub Rc<Link>);

/// The way to one node.
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
    async fn ask<E: std::error::Error>(&self, request: Request, option: &RPCOption) -> Result<Answer, Failed<E>> {
        let asked = self.link.ask(self.to, &request, option.hard_ttl()).await;
        asked.map_err(|failed| RPCError::Unreachable(Unreachable::new(&failed)))
    }

    /// Tells the node that it has lost what it had acknowledged, and openraft, which would not bear it, that the node does not answer.
    async fn forgot(&self, acknowledged: Position, limit: Duration) -> Failed<Infallible> {
        let why = format!("it has lost what it had acknowledged, up to change {}", acknowledged.index);
        match self.link.ask(self.to, &Request::Forgotten(acknowledged), limit).await {
            Ok(Answer::Failed(_)) | Err(_) => {}
            Ok(other) => {
                tracing::warn!(node = %self.to, why, answer = ?other, "a member of the metadata group is left out")
            }
        }
        RPCError::Unreachable(Unreachable::new(&AnyError::error(why)))
    }

    /// An answer that says why not, or makes no sense.
    fn refused<E: std::error::Error>(&self, answer: Answer) -> Failed<E> {
        let why = match answer {
            Answer::Failed(why) => why,
            other => format!("node {} answers with {other:?}", self.to),
        };
        RPCError::Unreachable(Unreachable::new(&AnyError::error(why)))
    }
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
        let request = Request::Append {
            vote: rpc.vote.into(),
            previous: positions(rpc.prev_log_id),
            entries: rpc.entries.iter().map(Record::from).collect(),
            committed: positions(rpc.leader_commit),
        };
        let (term, previous) = (rpc.vote.leader_id.term, positions(rpc.prev_log_id));
        match self.ask::<Infallible>(request, &option).await? {
            Answer::Appended => {
                let last = rpc.entries.last().map(|entry| entry.log_id.into()).or(previous);
                self.acknowledged.upto(term, last, positions(rpc.leader_commit));
                Ok(AppendEntriesResponse::Success)
            }
            Answer::AppendedUpTo(last) => {
                self.acknowledged.upto(term, last, positions(rpc.leader_commit));
                Ok(AppendEntriesResponse::PartialSuccess(last.map(LogId::from)))
            }
            Answer::Conflict => match self.acknowledged.lost(term, previous) {
                Some(acknowledged) => Err(self.forgot(acknowledged, option.hard_ttl()).await),
                None => Ok(AppendEntriesResponse::Conflict),
            },
            Answer::HigherVote(vote) => Ok(AppendEntriesResponse::HigherVote(vote.into())),
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
            Request::Snapshot { vote: rpc.vote.into(), head, offset: rpc.offset, data: rpc.data, done: rpc.done };
        match self.ask::<InstallSnapshotError>(request, &option).await? {
            Answer::Snapshot(vote) => Ok(InstallSnapshotResponse { vote: vote.into() }),
            other => Err(self.refused(other)),
        }
    }

    async fn vote(
        &mut self,
        rpc: VoteRequest<Member>,
        option: RPCOption,
    ) -> Result<VoteResponse<Member>, RPCError<Member, EmptyNode, RaftError<Member>>> {
        let request = Request::Vote { vote: rpc.vote.into(), last: positions(rpc.last_log_id) };
        match self.ask::<Infallible>(request, &option).await? {
            Answer::Vote { vote, granted, last } => {
                Ok(VoteResponse { vote: vote.into(), vote_granted: granted, last_log_id: last.map(LogId::from) })
            }
            other => Err(self.refused(other)),
        }
    }

    fn backoff(&self) -> Backoff {
        Backoff::new(std::iter::repeat(BACKOFF))
    }
}

/// Carries out what openraft on another node asked of this one's.
pub(super) async fn answer(raft: &openraft::Raft<Types>, request: Request) -> Answer {
    fn failed(error: impl std::fmt::Display) -> Answer {
        Answer::Failed(error.to_string())
    }
    match request {
        Request::Append { vote, previous, entries, committed } => {
            let rpc = AppendEntriesRequest {
                vote: Vote::from(vote),
                prev_log_id: previous.map(LogId::from),
                entries: entries.into_iter().map(Entry::from).collect(),
                leader_commit: committed.map(LogId::from),
            };
            match raft.append_entries(rpc).await {
                Ok(AppendEntriesResponse::Success) => Answer::Appended,
                Ok(AppendEntriesResponse::PartialSuccess(last)) => Answer::AppendedUpTo(positions(last)),
                Ok(AppendEntriesResponse::Conflict) => Answer::Conflict,
                Ok(AppendEntriesResponse::HigherVote(vote)) => Answer::HigherVote(vote.into()),
                Err(error) => failed(error),
            }
        }
        Request::Vote { vote, last } => {
            let rpc = VoteRequest { vote: vote.into(), last_log_id: last.map(LogId::from) };
            match raft.vote(rpc).await {
                Ok(VoteResponse { vote, vote_granted, last_log_id }) => {
                    Answer::Vote { vote: vote.into(), granted: vote_granted, last: positions(last_log_id) }
                }
                Err(error) => failed(error),
            }
        }
        Request::Snapshot { vote, head, offset, data, done } => {
            let rpc = InstallSnapshotRequest { vote: vote.into(), meta: head.meta(), offset, data, done };
            match raft.install_snapshot(rpc).await {
                Ok(InstallSnapshotResponse { vote }) => Answer::Snapshot(vote.into()),
                Err(error) => failed(error),
            }
        }
        Request::MayElect { .. }
        | Request::Propose(_)
        | Request::ReadIndex
        | Request::Reached(_)
        | Request::Forgotten(_) => failed("this is not for openraft"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raft::stored::{Members, Payload};

    /// Every message of this release, as it is sent. A change here means that nodes of two releases do not understand each other.
    #[test]
    fn the_form_of_messages_stays() {
        let node = Uuid::from_u128(1);
        let at = Position { term: 2, leader: node, index: 3 };
        let vote = Ballot { term: 2, node, committed: true };
        let mut place = vec![2, 16];
        place.extend_from_slice(node.as_bytes());
        let mut ballot = place.clone();
        ballot.push(1);
        place.push(3);
        let bytes = |parts: &[&[u8]]| [&[1][..], &parts.concat()].concat();
        let record = Record { at, payload: Payload::Blank };
        let append = Request::Append { vote, previous: Some(at), entries: vec![record], committed: None };
        assert_eq!(encode(&append), bytes(&[&[0], &ballot, &[1], &place, &[1], &place, &[0], &[0]]));
        assert_eq!(encode(&Request::Vote { vote, last: None }), bytes(&[&[1], &ballot, &[0]]));
        assert_eq!(encode(&Request::MayElect { last: Some(at) }), bytes(&[&[3, 1], &place]));
        assert_eq!(encode(&Request::Propose(vec![7])), bytes(&[&[4, 1, 7]]));
        assert_eq!(encode(&Request::ReadIndex), bytes(&[&[5]]));
        assert_eq!(encode(&Request::Reached(9)), bytes(&[&[6, 9]]));
        assert_eq!(encode(&Request::Forgotten(at)), bytes(&[&[7], &place]));
        let head = SnapshotHead { last: None, members_at: None, members: Members { voters: vec![], all: vec![] } };
        let snapshot = Request::Snapshot { vote, head, offset: 5, data: vec![9], done: true };
        assert_eq!(encode(&snapshot), bytes(&[&[2], &ballot, &[0, 0, 0, 0], &[5, 1, 9, 1]]));
        let answers = [
            (Answer::Appended, bytes(&[&[0]])),
            (Answer::AppendedUpTo(Some(at)), bytes(&[&[1, 1], &place])),
            (Answer::Conflict, bytes(&[&[2]])),
            (Answer::HigherVote(vote), bytes(&[&[3], &ballot])),
            (Answer::Vote { vote, granted: false, last: None }, bytes(&[&[4], &ballot, &[0, 0]])),
            (Answer::Snapshot(vote), bytes(&[&[5], &ballot])),
            (Answer::MayElect(true), bytes(&[&[6, 1]])),
            (Answer::Proposed { outcome: Outcome::Stale, index: 4 }, bytes(&[&[7, 1, 4]])),
            (Answer::Index(4), bytes(&[&[8, 4]])),
            (Answer::NotLeader(None), bytes(&[&[9, 0]])),
            (Answer::Unknown("x".into()), bytes(&[&[10, 1, b'x']])),
            (Answer::Failed("y".into()), bytes(&[&[11, 1, b'y']])),
        ];
        for (answer, expected) in answers {
            assert_eq!(encode(&answer), expected, "{answer:?}");
            assert_eq!(decode::<Answer>(&expected), Ok(answer));
        }
    }
}
