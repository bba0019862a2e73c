//! The interface of the Raft group for the rest of the node.

use super::divergence::{self, Divergence};
use super::election::{self, ELECTION_TIMEOUT_MAX, ELECTION_TIMEOUT_MIN, HEARTBEAT};
use super::machine::{Applied, Applier, Machine, Outcome};
use super::network::{self, Connector, Link, RaftRequest, RaftResponse, Transport};
use super::saved::Saved;
use super::store::Store;
use super::stored::{Opened, Position, decode, encode};
use super::{Command, Member, Types};
use bytes::Bytes;
use engine::raft_log::RaftLog;
use futures_util::future::{Either, select};
use model::id::HostId;
use openraft::error::{CheckIsLeaderError, ClientWriteError, RaftError};
use openraft::{EmptyNode, ServerState, SnapshotPolicy};
use rt::sync::Deadline;
use rt::task::Task;
use rt::time::{Duration, Instant};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use thiserror::Error;

/// The number of entries after a snapshot until the next one, unless [`Machine::weight`] is larger.
const SNAPSHOT_EVERY: u64 = 256;
/// The bytes of entries after a snapshot until the next one: entries are in memory, too. A file of
/// this length with at least [`KEPT`] entries is also cut.
pub(super) const LARGE_LOG: u64 = 32 << 20;
/// The number of entries that stay in the log after a snapshot, for nodes that are slightly behind.
pub(super) const KEPT: u64 = 64;
/// The most bytes of these entries. A node that is further behind gets the snapshot.
const KEPT_BYTES: u64 = 8 << 20;
/// The size in bytes of the parts in which a snapshot is sent.
const SNAPSHOT_PART: u64 = 1 << 20;
/// The time limit of one part of a snapshot.
const SNAPSHOT_TIME: Duration = Duration::from_secs(10);
/// The time limit of one request to the leader. After that the current leader is looked up again.
const QUESTION: Duration = Duration::from_secs(2);
/// The pause before a retry.
const PAUSE: Duration = Duration::from_millis(50);
/// The time within which a single node must become the leader.
const SETTLE: Duration = Duration::from_secs(5);
/// The minimum free disk space in bytes for taking or receiving a snapshot.
const LEAST_SPACE: u64 = 16 << 20;

/// A committed command.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Proposed {
    /// The outcome of applying it.
    pub outcome: Outcome,
    /// Its index in the log.
    pub index: u64,
}

/// Why the group did not carry out a request.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum GroupError {
    /// Nothing was done.
    #[error("no majority of the {voters} Raft voters responded: {why}")]
    NoMajority {
        /// The number of voters.
        voters: usize,
        /// The error of the last attempt.
        why: String,
    },
    /// The command may be committed, now or later.
    #[error("it is unknown whether the change was made: {0}")]
    Unknown(String),
    /// A node has no room to log the command, or cannot apply commands. Nothing was done.
    #[error("{0}")]
    NoSpace(String),
    /// This node cannot apply a committed entry and keeps retrying. The request was not carried
    /// out, or its outcome is unknown.
    #[error("this node cannot apply a committed change of the metadata, and retries: {0}")]
    Stuck(String),
    /// The group has ended on this node.
    #[error("the Raft group has ended on this node: {0}")]
    Ended(String),
}

/// openraft's answer to a request for the read index.
type ReadIndex = Result<Option<super::LogId>, RaftError<Member, CheckIsLeaderError<Member, EmptyNode>>>;

/// The group. On shard 0.
pub struct Group {
    host: HostId,
    pub(super) raft: openraft::Raft<Types>,
    pub(super) log: Rc<RaftLog>,
    dir: PathBuf,
    machine: Rc<dyn Machine>,
    applied: Rc<Applied>,
    pub(super) saved: Rc<Saved>,
    pub(super) link: Rc<Link>,
    alone: Rc<Cell<bool>>,
    /// When this node last received a message of a leader.
    leader_seen_at: Cell<Option<Instant>>,
    /// Whether this node gives up the leadership: see [`Group::set_resigning`].
    pub(super) resigns: Cell<bool>,
    watcher: RefCell<Option<Task<()>>>,
    divergence: Divergence,
}

fn config(name: &str) -> openraft::Config {
    openraft::Config {
        cluster_name: name.to_owned(),
        heartbeat_interval: HEARTBEAT.as_millis() as u64,
        election_timeout_min: ELECTION_TIMEOUT_MIN.as_millis() as u64,
        election_timeout_max: ELECTION_TIMEOUT_MAX.as_millis() as u64,
        install_snapshot_timeout: SNAPSHOT_TIME.as_millis() as u64,
        snapshot_max_chunk_size: SNAPSHOT_PART,
        snapshot_policy: SnapshotPolicy::Never,
        max_in_snapshot_log_to_keep: KEPT,
        max_payload_entries: 64,
        // Nothing ticks while the node is alone. `election` decides when to start an election.
        enable_tick: false,
        enable_elect: false,
        ..openraft::Config::default()
    }
}

/// Why a node that was the leader cannot say up to where everything is committed.
fn not_leading(error: &CheckIsLeaderError<Member, EmptyNode>) -> &'static str {
    match error {
        CheckIsLeaderError::ForwardToLeader(_) => "this node is no longer the leader",
        CheckIsLeaderError::QuorumNotEnough(_) => "this node leads, but too few voters answer it",
    }
}

impl Group {
    /// Starts the group that was opened. `machine` must already have the restored state.
    pub async fn start(
        opened: Opened,
        dir: PathBuf,
        name: &str,
        machine: Rc<dyn Machine>,
    ) -> Result<Rc<Group>, String> {
        let (link, alone) = (Rc::new(Link::default()), Rc::new(Cell::new(opened.alone)));
        let saved = Rc::new(Saved::new(opened.saved));
        let store = Store::new(opened.log.clone(), saved.clone(), opened.host, alone.clone());
        let applier = Applier::new(&opened, saved.clone(), machine.clone());
        let applied = applier.applied();
        let config = Arc::new(config(name).validate().map_err(|error| error.to_string())?);
        let member = Member::from(opened.host);
        let raft = openraft::Raft::new(member, config, Connector(link.clone()), store, applier).await;
        let group = Rc::new(Group {
            host: opened.host,
            raft: raft.map_err(|error| error.to_string())?,
            log: opened.log,
            dir,
            machine,
            applied,
            saved,
            link,
            alone,
            leader_seen_at: Cell::new(None),
            resigns: Cell::new(false),
            watcher: RefCell::default(),
            divergence: Divergence::default(),
        });
        group.settle().await?;
        Ok(group)
    }

    /// Waits until a node that is the only voter is the leader, which takes almost no time.
    async fn settle(&self) -> Result<(), String> {
        let mut metrics = self.raft.metrics();
        let leads = async {
            while self.is_alone() && !self.is_leader() {
                if metrics.changed().await.is_err() {
                    return Err("it ended at once".to_owned());
                }
            }
            Ok(())
        };
        let settled = rt::time::timeout(SETTLE, leads).await;
        settled.unwrap_or_else(|_| Err("this node is alone, and is not the leader".into()))
    }

    /// Gives the group its transport to the other nodes, and starts heartbeats and elections.
    pub fn connect(self: &Rc<Self>, transport: Rc<dyn Transport>) {
        self.link.connect(transport);
        self.raft.runtime_config().tick(true);
        *self.watcher.borrow_mut() = Some(rt::task::spawn(election::watch(Rc::downgrade(self))));
    }

    /// Ends the group on this node. Nothing is written any more once this returns.
    pub async fn stop(&self) {
        if let Some(watcher) = self.watcher.take() {
            watcher.abort();
        }
        self.saved.stop();
        // Fails only if the group's task has already ended.
        let _ = self.raft.shutdown().await;
    }

    /// Checks that the log is still on disk. The error is for the operator.
    pub async fn check_log(&self) -> Result<(), String> {
        self.log.check_there().await.map_err(|error| error.to_string())
    }

    /// Waits until the group fails on this node, and returns the reason. The node must then end.
    pub async fn failure(&self) -> String {
        let (ended, diverged) = (std::pin::pin!(self.openraft_failure()), std::pin::pin!(self.divergence.wait()));
        match select(ended, diverged).await {
            Either::Left((why, _)) | Either::Right((why, _)) => why,
        }
    }

    async fn openraft_failure(&self) -> String {
        let mut metrics = self.raft.metrics();
        loop {
            let state = metrics.borrow_and_update().running_state.clone();
            match state {
                Err(openraft::error::Fatal::Stopped) => return std::future::pending().await,
                Err(fatal) => return fatal.to_string(),
                Ok(()) => {}
            }
            if metrics.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }

    /// This node's id.
    pub fn host(&self) -> HostId {
        self.host
    }

    /// The leader that this node knows.
    /// None while this node leads and [resigns](Group::set_resigning).
    pub fn leader(&self) -> Option<HostId> {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow();
        let leader = metrics.current_leader.map(HostId::from);
        leader.filter(|leader| *leader != self.host || !self.resigns.get())
    }

    /// The current term.
    pub fn term(&self) -> u64 {
        self.raft.metrics().borrow().current_term
    }

    /// Whether this node is the leader, by its own knowledge.
    pub fn is_leader(&self) -> bool {
        self.leader() == Some(self.host)
    }

    /// Whether this node is the only voter.
    pub fn is_alone(&self) -> bool {
        self.alone.get()
    }

    /// All voters and learners.
    pub fn members(&self) -> BTreeSet<HostId> {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow();
        metrics.membership_config.nodes().map(|(member, _)| HostId::from(*member)).collect()
    }

    /// The voters.
    pub fn voters(&self) -> BTreeSet<HostId> {
        self.voter_lists().into_iter().flatten().collect()
    }

    /// The voters. During a membership change there are two lists, and each needs a majority.
    pub(super) fn voter_lists(&self) -> Vec<BTreeSet<HostId>> {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow();
        let lists = metrics.membership_config.membership().get_joint_config().iter();
        lists.map(|voters| voters.iter().copied().map(HostId::from).collect()).collect()
    }

    pub(super) fn link(&self) -> &Rc<Link> {
        &self.link
    }

    pub(super) fn leader_seen_at(&self) -> Option<Instant> {
        self.leader_seen_at.get()
    }

    /// The position of the last entry of this node's log.
    pub(super) fn last_position(&self) -> Option<Position> {
        match self.log.last() {
            Some((_, bytes)) => decode::<super::stored::Record>(&bytes).ok().map(|record| record.at),
            None => self.log.purged().and_then(|(_, id)| decode(&id).ok()),
        }
    }

    /// Whether this node can start an election: it is a voter, is connected to others, is not the
    /// leader, and has not diverged.
    pub(super) fn can_campaign(&self) -> bool {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow();
        let voter = metrics.membership_config.voter_ids().any(|member| HostId::from(member) == self.host);
        voter && metrics.state != ServerState::Leader && self.link.is_connected() && self.divergence.why().is_none()
    }

    pub(super) async fn campaign(&self) {
        // A candidate must write its own vote, and a new leader its first entry. Without room for
        // them, openraft would end.
        if let Err(error) = self.log.reserve(0).await {
            tracing::warn!(node = %self.host, %error, "this node cannot start an election, because it cannot write its vote; retrying");
            return;
        }
        // Fails only if the group has ended, which [`Group::failure`] reports.
        let _ = self.raft.trigger().elect().await;
    }

    /// Whether this node grants a pre-vote to a node with a log that ends at `last`.
    fn grants_pre_vote(&self, last: Option<Position>) -> bool {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow();
        let led = match metrics.state {
            ServerState::Leader => {
                metrics.millis_since_quorum_ack.is_some_and(|millis| millis < ELECTION_TIMEOUT_MAX.as_millis() as u64)
            }
            _ => self.leader_seen_at.get().is_some_and(|at| at.elapsed() < ELECTION_TIMEOUT_MAX),
        };
        !led && election::is_up_to_date(last, self.last_position())
    }

    /// Answers a message of another node.
    pub async fn handle(&self, from: HostId, message: Bytes) -> Result<Bytes, String> {
        let request: RaftRequest = decode(&message)?;
        if let Some(why) = self.divergence.why() {
            return Err(why);
        }
        if let Some(why) = divergence::contradiction(&self.log, from, &request) {
            return Err(self.divergence.declare(why));
        }
        if let RaftRequest::MayElect { last } | RaftRequest::Vote { last, .. } = &request
            && let Some(acknowledged) = self.link.acknowledged(from).is_beyond(*last)
        {
            let link = self.link.clone();
            let report = async move { link.ask(from, &RaftRequest::Forgotten(acknowledged), QUESTION).await };
            rt::task::spawn(report).detach();
            return Err("it has lost acknowledged changes".into());
        }
        let sent = match &request {
            RaftRequest::Append { vote, previous, entries, committed } => {
                Some((vote.leader(), entries.last().map(|record| record.at).or(*previous), *committed))
            }
            _ => None,
        };
        let answer = match request {
            RaftRequest::Forgotten(acknowledged) => {
                let last = self.last_position();
                let lacks = !election::is_up_to_date(last, Some(acknowledged));
                let why = lacks.then(|| self.divergence.declare(divergence::forgotten(acknowledged, last)));
                RaftResponse::Failed(why.unwrap_or_else(|| "nothing is forgotten".into()))
            }
            RaftRequest::MayElect { last } => RaftResponse::MayElect(self.grants_pre_vote(last)),
            RaftRequest::Propose(command) => self.propose_for(command).await,
            // Confirming its leadership would prolong it.
            RaftRequest::ReadIndex if self.resigns.get() => RaftResponse::NotLeader(None),
            RaftRequest::ReadIndex => match self.applied_index().await {
                Ok(Ok(id)) => RaftResponse::Index(id.map_or(0, |id| id.index)),
                Ok(Err(RaftError::APIError(CheckIsLeaderError::ForwardToLeader(leader)))) => {
                    RaftResponse::NotLeader(leader.leader_id.map(|member| member.0))
                }
                Ok(Err(RaftError::APIError(error))) => {
                    RaftResponse::Failed(format!("node {}: {}", self.host, not_leading(&error)))
                }
                Ok(Err(RaftError::Fatal(fatal))) => RaftResponse::Failed(format!("node {}: {fatal}", self.host)),
                Err(stuck) => RaftResponse::Failed(format!("node {}: {stuck}", self.host)),
            },
            RaftRequest::Reached(index) => match self.wait_for(index, Deadline::after(QUESTION)).await {
                Ok(()) => RaftResponse::Index(index),
                Err(error) => RaftResponse::Failed(error.to_string()),
            },
            request => {
                self.make_room_for(&request, message.len() as u64).await?;
                let from_leader = matches!(request, RaftRequest::Append { .. } | RaftRequest::Snapshot { .. });
                let answer = network::answer(&self.raft, request).await;
                let refused = matches!(answer, RaftResponse::HigherVote(_) | RaftResponse::Failed(_));
                if from_leader && !refused {
                    self.leader_seen_at.set(Some(rt::time::now()));
                }
                if let (RaftResponse::Appended, Some((leader, last, committed))) = (&answer, sent) {
                    self.link.acknowledged(from).upto(leader, last, committed);
                }
                self.cut_log().await;
                answer
            }
        };
        tracing::trace!(%from, ?answer, "the node answered a request of another Raft member");
        Ok(encode(&answer).into())
    }

    /// Refuses a message of `len` bytes if the disk has no room for it: a full disk must not end
    /// the group on this node. The sender retries later.
    async fn make_room_for(&self, request: &RaftRequest, len: u64) -> Result<(), String> {
        if let RaftRequest::Snapshot { offset, .. } = request
            && let Ok((_, free)) = rt::fs::disk_space(&self.dir).await
            && free < LEAST_SPACE.saturating_add(*offset).saturating_add(len)
        {
            return Err(format!("no room for a snapshot: {free} bytes are free"));
        }
        let entries = if matches!(request, RaftRequest::Append { .. }) { len * 2 } else { 0 };
        self.log.reserve(entries).await.map_err(|error| error.to_string())
    }

    /// Commits a command that another node proposes.
    async fn propose_for(&self, command: Vec<u8>) -> RaftResponse {
        if !self.is_leader() {
            return RaftResponse::NotLeader(self.leader().map(|host| host.0));
        }
        match self.write(command).await {
            Ok(Proposed { outcome, index }) => RaftResponse::Proposed { outcome, index },
            Err(GroupError::Unknown(why)) => RaftResponse::Unknown(why),
            Err(stuck @ GroupError::Stuck(_)) => RaftResponse::Unknown(format!("node {}: {stuck}", self.host)),
            Err(error) => RaftResponse::Failed(error.to_string()),
        }
    }

    /// Commits a command as the leader.
    async fn write(&self, command: Vec<u8>) -> Result<Proposed, GroupError> {
        if let Some(why) = self.machine.apply_failure() {
            let why = GroupError::Stuck(why);
            return Err(GroupError::NoSpace(format!("the leader, node {}: {why}; nothing was changed", self.host)));
        }
        let len = command.len() as u64;
        self.log.reserve(len + 1024).await.map_err(|error| GroupError::NoSpace(error.to_string()))?;
        let writing = async { Ok(self.raft.client_write(Command(command)).await) };
        let written = self.unless_stuck(writing).await?;
        self.cut_log().await;
        match written {
            Ok(response) => Ok(Proposed { outcome: response.data, index: response.log_id.index }),
            // Also the result of commands that were in progress when this node lost the leadership.
            Err(RaftError::APIError(ClientWriteError::ForwardToLeader(_))) => {
                Err(GroupError::Unknown("this node is no longer the leader".into()))
            }
            Err(error) => Err(GroupError::Ended(error.to_string())),
        }
    }

    /// Proposes a command, and waits until it is committed and this node has applied it.
    pub async fn propose(&self, command: Vec<u8>, until: Deadline) -> Result<Proposed, GroupError> {
        let mut why = "no leader is known".to_owned();
        loop {
            match self.leader() {
                Some(leader) if leader == self.host => {
                    let written = until.limit(self.write(command)).await;
                    return written
                        .unwrap_or_else(|_| Err(GroupError::Unknown("the change is not committed yet".into())));
                }
                Some(leader) => {
                    let request = RaftRequest::Propose(command.clone());
                    match self.link.ask(leader, &request, until.remaining()).await {
                        Ok(RaftResponse::Proposed { outcome, index }) => {
                            self.wait_for(index, until).await?;
                            return Ok(Proposed { outcome, index });
                        }
                        Ok(RaftResponse::NotLeader(_)) => why = format!("node {leader} is no longer the leader"),
                        Ok(RaftResponse::Failed(failed)) => return Err(GroupError::NoSpace(failed)),
                        Ok(RaftResponse::Unknown(unknown)) => return Err(GroupError::Unknown(unknown)),
                        Ok(_) => return Err(GroupError::Unknown(network::unexpected_answer(leader))),
                        Err(failed) if failed.may_have_been_done => return Err(GroupError::Unknown(failed.why)),
                        Err(failed) => why = format!("the leader, node {leader}: {}", failed.why),
                    }
                }
                None => {}
            }
            self.pause(until, &why).await?;
        }
    }

    /// Waits until this node has applied everything that was committed before the call. Returns the
    /// applied index.
    pub async fn barrier(&self, until: Deadline) -> Result<u64, GroupError> {
        let mut why = "no leader is known".to_owned();
        loop {
            match self.leader() {
                Some(leader) if leader == self.host => match until.limit(self.applied_index()).await {
                    Ok(Err(stuck)) => return Err(stuck),
                    Ok(Ok(Ok(id))) => return Ok(id.map_or(0, |id| id.index)),
                    Ok(Ok(Err(RaftError::Fatal(fatal)))) => return Err(GroupError::Ended(fatal.to_string())),
                    Ok(Ok(Err(RaftError::APIError(error)))) => why = not_leading(&error).to_owned(),
                    Err(_) => {}
                },
                Some(leader) => {
                    match self.link.ask(leader, &RaftRequest::ReadIndex, until.remaining().min(QUESTION)).await {
                        Ok(RaftResponse::Index(index)) => {
                            self.wait_for(index, until).await?;
                            return Ok(index);
                        }
                        Ok(RaftResponse::NotLeader(_)) => why = format!("node {leader} is no longer the leader"),
                        Ok(RaftResponse::Failed(failed)) => why = failed,
                        Ok(_) => why = network::unexpected_answer(leader),
                        Err(failed) => why = format!("the leader, node {leader}: {}", failed.why),
                    }
                }
                None => {}
            }
            self.pause(until, &why).await?;
        }
    }

    /// Waits until the other members have applied the entry of an index, for at most `limit`. Does
    /// not wait for members that do not answer.
    pub async fn wait_for_members(&self, index: u64, limit: Duration) {
        let others = self.members().into_iter().filter(|host| *host != self.host);
        let request = RaftRequest::Reached(index);
        futures_util::future::join_all(others.map(|host| self.link.ask(host, &request, limit))).await;
    }

    /// Waits before a retry. An error if the deadline has passed.
    async fn pause(&self, until: Deadline, why: &str) -> Result<(), GroupError> {
        if until.is_past() {
            return Err(GroupError::NoMajority { voters: self.voters().len(), why: why.to_owned() });
        }
        rt::time::sleep(PAUSE.min(until.remaining())).await;
        Ok(())
    }

    /// Waits until this node has applied the entry of an index.
    pub async fn wait_for(&self, index: u64, until: Deadline) -> Result<(), GroupError> {
        let mut metrics = self.raft.metrics();
        let reached = async {
            loop {
                if metrics.borrow_and_update().last_applied.is_some_and(|last| last.index >= index) {
                    return Ok(());
                }
                if metrics.changed().await.is_err() {
                    return Err(GroupError::Ended("it was stopped".into()));
                }
            }
        };
        let late = |_| Err(GroupError::Unknown(format!("this node has not received entry {index} in time")));
        until.limit(self.unless_stuck(reached)).await.unwrap_or_else(late)
    }

    /// As the leader, the read index: the position up to which everything was committed before the
    /// call. This node has applied it.
    async fn applied_index(&self) -> Result<ReadIndex, GroupError> {
        self.unless_stuck(async { Ok(self.raft.ensure_linearizable().await) }).await
    }

    /// Runs `work`. Returns early with an error if the machine cannot apply commands.
    async fn unless_stuck<T>(&self, work: impl Future<Output = Result<T, GroupError>>) -> Result<T, GroupError> {
        let stuck = async {
            loop {
                rt::time::sleep(PAUSE).await;
                if let Some(why) = self.machine.apply_failure() {
                    return why;
                }
            }
        };
        match select(std::pin::pin!(work), std::pin::pin!(stuck)).await {
            Either::Left((done, _)) => done,
            Either::Right((why, _)) => Err(GroupError::Stuck(why)),
        }
    }

    /// Purges entries of the snapshot beyond [`KEPT_BYTES`], and starts a snapshot if one is due.
    /// Once it is done, openraft purges all but [`KEPT`] of its entries.
    async fn cut_log(&self) {
        let saved = self.saved.index();
        if let Some(upto) = self.log.surplus(KEPT_BYTES).min(saved)
            && self.log.purged().is_none_or(|(purged, _)| purged < upto)
        {
            // Fails only if the group has ended.
            let _ = self.raft.trigger().purge_log(upto).await;
        }
        let (every, since) = (self.machine.weight().max(SNAPSHOT_EVERY), self.applied.since_snapshot.get());
        let is_large = since >= KEPT && self.log.log_bytes() >= LARGE_LOG
            || since > 0 && self.log.entry_bytes_after(saved.unwrap_or(0)) >= LARGE_LOG;
        if since < every && !is_large {
            return;
        }
        match rt::fs::disk_space(&self.dir).await {
            Ok((_, free)) if free < LEAST_SPACE + 4 * self.log.log_bytes() => {
                tracing::warn!(free, "the disk is too full to truncate the metadata log; retrying later");
            }
            _ => {
                // Fails only if the group has ended.
                let _ = self.raft.trigger().snapshot().await;
            }
        }
    }
}
