//! The group as the rest of the node sees it.

use super::divergence::{self, Divergence};
use super::election::{self, HEARTBEAT, MOST_PATIENCE, PATIENCE};
use super::machine::{Applied, Applier, Machine, Outcome};
use super::network::{self, Answer, Connector, Link, Request, Transport};
use super::saved::Saved;
use super::store::Store;
use super::stored::{Opened, Position, decode, encode};
use super::{Command, Member, Types};
use bytes::Bytes;
use engine::raft_log::RaftLog;
use futures_util::future::{Either, select};
use model::id::HostId;
use openraft::error::{CheckIsLeaderError, ClientWriteError, RaftError};
use openraft::{ChangeMembers, EmptyNode, ServerState, SnapshotPolicy};
use rt::sync::Deadline;
use rt::task::Task;
use rt::time::{Duration, Instant};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use thiserror::Error;

/// Entries after a snapshot before the next, if the machine does not want more.
const SNAPSHOT_EVERY: u64 = 256;
/// A log of so many bytes is cut earlier: its entries are in memory, too.
const LARGE_LOG: u64 = 32 << 20;
/// Entries that stay in the log although a snapshot has them, for nodes that are a little behind.
const KEPT: u64 = 64;
/// A snapshot is sent in parts of this many bytes.
const SNAPSHOT_PART: u64 = 1 << 20;
/// How long a part of a snapshot may take.
const SNAPSHOT_TIME: Duration = Duration::from_secs(10);
/// How long one question to the leader may take before it is looked who leads by now.
const QUESTION: Duration = Duration::from_secs(2);
/// Pause before something is tried again.
const PAUSE: Duration = Duration::from_millis(50);
/// How long a node alone may take to know that it leads.
const SETTLE: Duration = Duration::from_secs(5);
/// Space on the disk below which no snapshot is begun or taken, in bytes.
const LEAST_SPACE: u64 = 16 << 20;

/// A command that was decided.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Proposed {
    /// What became of it.
    pub outcome: Outcome,
    /// Its place in the history.
    pub index: u64,
}

/// Why the group did not do what it was asked.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum GroupError {
    /// Nothing was done.
    #[error("no majority of the {voters} nodes that decide on metadata answers ({why})")]
    NoMajority {
        /// How many nodes decide.
        voters: usize,
        /// What was tried last.
        why: String,
    },
    /// It may have been done, or may be done yet.
    #[error("whether it was done is not known: {0}")]
    Unknown(String),
    /// This node cannot write it down. Nothing was done.
    #[error("{0}")]
    NoSpace(String),
    /// This node does not get on with the history. What was asked is not done, or is not known to
    /// be.
    #[error("this node cannot carry out a change of the metadata that was agreed upon, and tries again: {0}")]
    Stuck(String),
    /// The group has ended on this node.
    #[error("the metadata group has ended on this node: {0}")]
    Ended(String),
}

/// What openraft says of how far a leader is.
type ReadIndex = Result<Option<super::LogId>, RaftError<Member, CheckIsLeaderError<Member, EmptyNode>>>;

/// The group. On shard 0.
pub struct Group {
    host: HostId,
    raft: openraft::Raft<Types>,
    log: Rc<RaftLog>,
    dir: PathBuf,
    machine: Rc<dyn Machine>,
    applied: Rc<Applied>,
    saved: Rc<Saved>,
    link: Rc<Link>,
    alone: Rc<Cell<bool>>,
    /// When a leader last gave a sign of life.
    heard: Cell<Option<Instant>>,
    watcher: RefCell<Option<Task<()>>>,
    divergence: Divergence,
}

fn config(name: &str) -> openraft::Config {
    openraft::Config {
        cluster_name: name.to_owned(),
        heartbeat_interval: HEARTBEAT.as_millis() as u64,
        election_timeout_min: PATIENCE.as_millis() as u64,
        election_timeout_max: MOST_PATIENCE.as_millis() as u64,
        install_snapshot_timeout: SNAPSHOT_TIME.as_millis() as u64,
        snapshot_max_chunk_size: SNAPSHOT_PART,
        snapshot_policy: SnapshotPolicy::Never,
        max_in_snapshot_log_to_keep: KEPT,
        max_payload_entries: 64,
        // Nothing ticks as long as the node is alone; and when it stands for election is decided in `election`.
        enable_tick: false,
        enable_elect: false,
        ..openraft::Config::default()
    }
}

impl Group {
    /// Starts the group that was opened. `machine` is already in the state that it was left in.
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
            heard: Cell::new(None),
            watcher: RefCell::default(),
            divergence: Divergence::default(),
        });
        group.settle().await?;
        Ok(group)
    }

    /// Waits until a node that decides alone knows that it leads, which takes no time worth mentioning.
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
        settled.unwrap_or_else(|_| Err("this node does not lead although it is alone".into()))
    }

    /// Gives the group its way to the other nodes. From now on it keeps in touch with them.
    pub fn connect(self: &Rc<Self>, transport: Rc<dyn Transport>) {
        self.link.connect(transport);
        self.raft.runtime_config().tick(true);
        *self.watcher.borrow_mut() = Some(rt::task::spawn(election::watch(Rc::downgrade(self))));
    }

    /// Ends the group on this node: nothing is written any more once this returns.
    pub async fn stop(&self) {
        if let Some(watcher) = self.watcher.take() {
            watcher.abort();
        }
        self.saved.stop();
        // It only fails if the group's task is gone already.
        let _ = self.raft.shutdown().await;
    }

    /// Whether the log is on the disk yet. The error is for the operator.
    pub async fn check_log(&self) -> Result<(), String> {
        self.log.check_there().await.map_err(|error| error.to_string())
    }

    /// Waits until the group fails on this node, and says why. The node must end then.
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

    /// This node.
    pub fn host(&self) -> HostId {
        self.host
    }

    /// Who leads, as far as this node knows.
    pub fn leader(&self) -> Option<HostId> {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow();
        metrics.current_leader.map(HostId::from)
    }

    /// The term of the present leader, or of the present election.
    pub fn term(&self) -> u64 {
        self.raft.metrics().borrow().current_term
    }

    /// Whether this node leads, as far as it knows.
    pub fn is_leader(&self) -> bool {
        self.leader() == Some(self.host)
    }

    /// Whether this node decides alone.
    pub fn is_alone(&self) -> bool {
        self.alone.get()
    }

    /// All nodes of the group.
    pub fn members(&self) -> BTreeSet<HostId> {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow();
        metrics.membership_config.nodes().map(|(member, _)| HostId::from(*member)).collect()
    }

    /// The nodes that decide.
    pub fn voters(&self) -> BTreeSet<HostId> {
        self.voter_lists().into_iter().flatten().collect()
    }

    /// The nodes that decide: two lists while they change, of each of which a majority is needed.
    pub(super) fn voter_lists(&self) -> Vec<BTreeSet<HostId>> {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow();
        let lists = metrics.membership_config.membership().get_joint_config().iter();
        lists.map(|voters| voters.iter().copied().map(HostId::from).collect()).collect()
    }

    pub(super) fn link(&self) -> &Rc<Link> {
        &self.link
    }

    pub(super) fn heard(&self) -> Option<Instant> {
        self.heard.get()
    }

    /// Where this node's log ends.
    pub(super) fn last_position(&self) -> Option<Position> {
        match self.log.last() {
            Some((_, bytes)) => decode::<super::stored::Record>(&bytes).ok().map(|record| record.at),
            None => self.log.purged().and_then(|(_, id)| decode(&id).ok()),
        }
    }

    /// Whether this node could stand for election: it is a voter with others, and does not lead.
    pub(super) fn may_stand(&self) -> bool {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow();
        let voter = metrics.membership_config.voter_ids().any(|member| HostId::from(member) == self.host);
        voter && metrics.state != ServerState::Leader && self.link.is_connected() && self.divergence.why().is_none()
    }

    pub(super) async fn stand(&self) {
        // Who could not write its own vote down would end, and who leads has to write first of all.
        if let Err(error) = self.log.reserve(0).await {
            tracing::warn!(host = %self.host, %error, "this node cannot stand for election");
            return;
        }
        // The group has ended if it fails, which others are told.
        let _ = self.raft.trigger().elect().await;
    }

    /// Whether this node would have an election.
    fn welcomes_election(&self, last: Option<Position>) -> bool {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow();
        let led = match metrics.state {
            ServerState::Leader => {
                metrics.millis_since_quorum_ack.is_some_and(|millis| millis < MOST_PATIENCE.as_millis() as u64)
            }
            _ => self.heard.get().is_some_and(|heard| heard.elapsed() < MOST_PATIENCE),
        };
        !led && election::is_up_to_date(last, self.last_position())
    }

    /// Answers a message of another node.
    pub async fn handle(&self, from: HostId, message: Bytes) -> Result<Bytes, String> {
        let request: Request = decode(&message)?;
        if let Some(why) = self.divergence.why() {
            return Err(why);
        }
        if let Some(why) = divergence::contradiction(&self.log, from, &request) {
            return Err(self.divergence.find(why));
        }
        if let Request::MayElect { last } | Request::Vote { last, .. } = &request
            && let Some(acknowledged) = self.link.acknowledged(from).is_beyond(*last)
        {
            let link = self.link.clone();
            let tell = async move { link.ask(from, &Request::Forgotten(acknowledged), QUESTION).await };
            rt::task::spawn(tell).detach();
            return Err("it has lost what it had acknowledged".into());
        }
        let sent = match &request {
            Request::Append { vote, previous, entries, committed } => {
                Some((vote.term, entries.last().map(|record| record.at).or(*previous), *committed))
            }
            _ => None,
        };
        let answer = match request {
            Request::Forgotten(acknowledged) => {
                let last = self.last_position();
                let lacks = !election::is_up_to_date(last, Some(acknowledged));
                let why = lacks.then(|| self.divergence.find(divergence::forgotten(acknowledged, last)));
                Answer::Failed(why.unwrap_or_else(|| "nothing is forgotten".into()))
            }
            Request::MayElect { last } => Answer::MayElect(self.welcomes_election(last)),
            Request::Propose(command) => self.propose_for(command).await,
            Request::ReadIndex => match self.applied_index().await {
                Ok(Ok(id)) => Answer::Index(id.map_or(0, |id| id.index)),
                Ok(Err(RaftError::APIError(CheckIsLeaderError::ForwardToLeader(leader)))) => {
                    Answer::NotLeader(leader.leader_id.map(|member| member.0))
                }
                Ok(Err(error)) => Answer::Failed(error.to_string()),
                Err(stuck) => Answer::Failed(format!("node {}: {stuck}", self.host)),
            },
            Request::Reached(index) => match self.wait_for(index, Deadline::after(QUESTION)).await {
                Ok(()) => Answer::Index(index),
                Err(error) => Answer::Failed(error.to_string()),
            },
            request => {
                self.make_room_for(&request, message.len() as u64).await?;
                let from_leader = matches!(request, Request::Append { .. } | Request::Snapshot { .. });
                let answer = network::answer(&self.raft, request).await;
                let refused = matches!(answer, Answer::HigherVote(_) | Answer::Failed(_));
                if from_leader && !refused {
                    self.heard.set(Some(rt::time::now()));
                }
                if let (Answer::Appended, Some((term, last, committed))) = (&answer, sent) {
                    self.link.acknowledged(from).upto(term, last, committed);
                }
                self.cut_log().await;
                answer
            }
        };
        tracing::trace!(%from, ?answer, "asked for the metadata group");
        Ok(encode(&answer).into())
    }

    /// Refuses what there is no room for: a full disk must not end the group here, and the other node tries again later. `len`: the
    /// length of the message.
    async fn make_room_for(&self, request: &Request, len: u64) -> Result<(), String> {
        if let Request::Snapshot { offset, .. } = request
            && let Ok((_, free)) = rt::fs::disk_space(&self.dir).await
            && free < LEAST_SPACE.saturating_add(*offset).saturating_add(len)
        {
            return Err(format!("no room for a snapshot: {free} bytes are free"));
        }
        let entries = if matches!(request, Request::Append { .. }) { len * 2 } else { 0 };
        self.log.reserve(entries).await.map_err(|error| error.to_string())
    }

    /// Decides a command that another node proposes.
    async fn propose_for(&self, command: Vec<u8>) -> Answer {
        if !self.is_leader() {
            return Answer::NotLeader(self.leader().map(|host| host.0));
        }
        match self.write(command).await {
            Ok(Proposed { outcome, index }) => Answer::Proposed { outcome, index },
            Err(GroupError::Unknown(why)) => Answer::Unknown(why),
            Err(stuck @ GroupError::Stuck(_)) => Answer::Unknown(format!("node {}: {stuck}", self.host)),
            Err(error) => Answer::Failed(error.to_string()),
        }
    }

    /// Decides a command as the leader.
    async fn write(&self, command: Vec<u8>) -> Result<Proposed, GroupError> {
        if let Some(why) = self.machine.trouble() {
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
            // Also what a leader says of the commands that it had begun when it lost its office.
            Err(RaftError::APIError(ClientWriteError::ForwardToLeader(_))) => {
                Err(GroupError::Unknown("this node does not lead any more".into()))
            }
            Err(error) => Err(GroupError::Ended(error.to_string())),
        }
    }

    /// Proposes a command and waits until it is decided and this node has applied it.
    pub async fn propose(&self, command: Vec<u8>, until: Deadline) -> Result<Proposed, GroupError> {
        let mut why = "no leader is known".to_owned();
        loop {
            match self.leader() {
                Some(leader) if leader == self.host => {
                    let written = until.limit(self.write(command)).await;
                    return written.unwrap_or_else(|_| Err(GroupError::Unknown("it is not decided yet".into())));
                }
                Some(leader) => {
                    let request = Request::Propose(command.clone());
                    match self.link.ask(leader, &request, until.remaining()).await {
                        Ok(Answer::Proposed { outcome, index }) => {
                            self.wait_for(index, until).await?;
                            return Ok(Proposed { outcome, index });
                        }
                        Ok(Answer::NotLeader(_)) => why = format!("node {leader} does not lead any more"),
                        Ok(Answer::Failed(failed)) => return Err(GroupError::NoSpace(failed)),
                        Ok(Answer::Unknown(unknown)) => return Err(GroupError::Unknown(unknown)),
                        Ok(other) => return Err(GroupError::Unknown(format!("node {leader} answers {other:?}"))),
                        Err(failed) if failed.may_have_been_done => return Err(GroupError::Unknown(failed.why)),
                        Err(failed) => why = format!("node {leader}, which leads: {}", failed.why),
                    }
                }
                None => {}
            }
            self.pause(until, &why).await?;
        }
    }

    /// Waits until this node has applied everything that was decided anywhere before the call. Gives the index up to which it is.
    pub async fn barrier(&self, until: Deadline) -> Result<u64, GroupError> {
        let mut why = "no leader is known".to_owned();
        loop {
            match self.leader() {
                Some(leader) if leader == self.host => match until.limit(self.applied_index()).await {
                    Ok(Err(stuck)) => return Err(stuck),
                    Ok(Ok(Ok(id))) => return Ok(id.map_or(0, |id| id.index)),
                    Ok(Ok(Err(RaftError::Fatal(fatal)))) => return Err(GroupError::Ended(fatal.to_string())),
                    Ok(Ok(Err(error))) => why = error.to_string(),
                    Err(_) => {}
                },
                Some(leader) => {
                    match self.link.ask(leader, &Request::ReadIndex, until.remaining().min(QUESTION)).await {
                        Ok(Answer::Index(index)) => {
                            self.wait_for(index, until).await?;
                            return Ok(index);
                        }
                        Ok(Answer::NotLeader(_)) => why = format!("node {leader} does not lead any more"),
                        Ok(Answer::Failed(failed)) => why = failed,
                        Ok(other) => why = format!("node {leader} answers {other:?}"),
                        Err(failed) => why = format!("node {leader}, which leads: {}", failed.why),
                    }
                }
                None => {}
            }
            self.pause(until, &why).await?;
        }
    }

    /// Waits until the other members have applied the entry of an index, or have let `limit` pass: who does not answer is not waited for.
    pub async fn spread(&self, index: u64, limit: Duration) {
        let others = self.members().into_iter().filter(|host| *host != self.host);
        let request = Request::Reached(index);
        futures_util::future::join_all(others.map(|host| self.link.ask(host, &request, limit))).await;
    }

    /// Waits a little before the next try, if there is time for one.
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
        let late = |_| Err(GroupError::Unknown(format!("this node has not learned entry {index} in time")));
        until.limit(self.unless_stuck(reached)).await.unwrap_or_else(late)
    }

    /// How far this node has applied when it asked, as the leader, and has all that was decided
    /// before.
    async fn applied_index(&self) -> Result<ReadIndex, GroupError> {
        self.unless_stuck(async { Ok(self.raft.ensure_linearizable().await) }).await
    }

    /// Does `work` unless the machine does not get on.
    async fn unless_stuck<T>(&self, work: impl Future<Output = Result<T, GroupError>>) -> Result<T, GroupError> {
        let stuck = async {
            loop {
                rt::time::sleep(PAUSE).await;
                if let Some(why) = self.machine.trouble() {
                    return why;
                }
            }
        };
        match select(std::pin::pin!(work), std::pin::pin!(stuck)).await {
            Either::Left((done, _)) => done,
            Either::Right((why, _)) => Err(GroupError::Stuck(why)),
        }
    }

    /// Adds a node that learns and does not vote yet. Only the leader can.
    pub async fn add(&self, host: HostId) -> Result<(), GroupError> {
        if self.members().contains(&host) {
            return Ok(());
        }
        let added = self.raft.add_learner(host.into(), EmptyNode {}, false).await;
        added.map(drop).map_err(|error| GroupError::Unknown(error.to_string()))
    }

    /// Sets who votes; all must be members. Only the leader can.
    pub async fn set_voters(&self, voters: &BTreeSet<HostId>) -> Result<(), GroupError> {
        let voters: BTreeSet<Member> = voters.iter().copied().map(Member::from).collect();
        // Who votes no more goes on learning.
        let changed = self.raft.change_membership(voters, true).await;
        changed.map(drop).map_err(|error| GroupError::Unknown(error.to_string()))
    }

    /// Removes members that do not vote. Only the leader can.
    pub async fn remove(&self, hosts: &BTreeSet<HostId>) -> Result<(), GroupError> {
        let members = hosts.iter().copied().map(Member::from).collect();
        let changed = self.raft.change_membership(ChangeMembers::RemoveNodes(members), true).await;
        changed.map(drop).map_err(|error| GroupError::Unknown(error.to_string()))
    }

    /// Whether a member has all that is in the log of this node, the leader, give or take what was added just now.
    pub fn has_caught_up(&self, host: HostId) -> bool {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow();
        let replication = metrics.replication.as_ref();
        let matched = replication.and_then(|all| all.get(&Member::from(host)).copied().flatten());
        matched.is_some_and(|matched| matched.index + KEPT >= metrics.last_log_index.unwrap_or(0))
    }

    /// Begins a snapshot if it is time, which cuts the log once it is done.
    async fn cut_log(&self) {
        let (every, since) = (self.machine.weight().max(SNAPSHOT_EVERY), self.applied.since_snapshot.get());
        let is_large = since >= KEPT && self.log.log_bytes() >= LARGE_LOG;
        if since < every && !is_large {
            return;
        }
        match rt::fs::disk_space(&self.dir).await {
            Ok((_, free)) if free < LEAST_SPACE + 4 * self.log.log_bytes() => {
                tracing::warn!(free, "the disk is too full to cut the Raft log; it will be tried again");
            }
            _ => {
                // Fails only if the group has ended.
                let _ = self.raft.trigger().snapshot().await;
            }
        }
    }
}
