//! The run of this node: see [`cluster::topology::runs`].
//!
//! Before a starting member joins the Raft group, it asks the other members whether its data
//! directory is an older copy. If so, the start fails. It waits for answers at most 2 s. If no
//! other member is up, the start continues.
//!
//! Then the node writes a new run to the stamp of the data directory, and has the run recorded in
//! the metadata. A node that reaches no majority serves nevertheless, and compares its run again as
//! soon as it reaches a majority. While the node runs, it announces its write marks
//! ([`cluster::topology::write_marks`]). It stops if another process replaces it, according to the
//! metadata or to other nodes.

use crate::start_error::StartError;
use cluster::ClusterShards;
use cluster::metadata::{self, ChangeError, MetadataService, own_node};
use cluster::raft::Group;
use cluster::topology::admission::Admission;
use cluster::topology::join;
use cluster::topology::runs::{self, HasLeft, KnownNode, RunClaim};
use cluster::topology::write_marks::{MarkAnnouncement, WriteMarks};
use coordinator::Coordinator;
use engine::Engine;
use engine::datadir::InventoryKeeper;
use internode::Internode;
use model::id::{HostId, NodeRun};
use rt::shard::PerShard;
use rt::sync::{Deadline, watch};
use rt::time::Duration;
use std::cell::Cell;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::rc::{Rc, Weak};

/// The interval at which a start checks whether it may continue.
const LOOK: Duration = Duration::from_millis(20);
/// The pause between two attempts to record the run.
const PAUSE: Duration = Duration::from_secs(1);
/// The time limit of one attempt to read the newest metadata.
const BARRIER: Duration = Duration::from_secs(10);
/// The interval at which a node asks others for its run.
const ASK_EVERY: Duration = Duration::from_secs(5);
/// The interval at which a node with writes raises its write mark.
const MARK_EVERY: Duration = Duration::from_secs(2);
/// How long write marks of other nodes may be only in memory.
const SAVE_EVERY: Duration = Duration::from_secs(10);
/// The time limit for the answers of other nodes.
const ANSWERS: Duration = Duration::from_secs(2);
/// How long a start waits for the metadata while a majority seems to be up.
const MAJORITY_WAIT: Duration = Duration::from_secs(30);

/// Whether this process may serve.
#[derive(Clone, PartialEq, Debug)]
enum RunStatus {
    /// It is not known yet.
    Open,
    /// No other process had replaced this one at the time of the check.
    Accepted,
    /// Another process has replaced this one, or ran with later data. The text is for the operator.
    Displaced(String),
    /// The cluster has recorded that this node has left. The text is for the operator.
    Left(String),
}

/// The result of an attempt to record the run.
enum Attempt {
    /// The run is recorded.
    Recorded,
    /// This process may serve, but the run could not be recorded.
    Checked,
    /// The metadata could not be read.
    Failed,
}

/// The run of this node. On shard 0.
pub struct Runs {
    claim: RunClaim,
    keeper: Rc<InventoryKeeper>,
    internode: Weak<Internode>,
    admission: Rc<Admission>,
    service: Rc<MetadataService>,
    standing: watch::Sender<RunStatus>,
    /// The stamp names the claimed run.
    is_named: Cell<bool>,
    /// The last attempt to raise the write mark failed.
    has_no_mark: Cell<bool>,
}

/// The address of this node in the metadata, if it is another one and the cluster has other
/// members.
pub fn known_elsewhere(service: &MetadataService) -> Option<SocketAddr> {
    let (topology, info) = (service.current().topology.clone(), service.info().clone());
    let known = topology.node(info.host_id)?;
    let is_elsewhere = known.internode() != own_node(&info, known.state).internode();
    (is_elsewhere && topology.members().count() > 1).then(|| known.internode())
}

/// Fails the start of a member if other members know that its data directory is an older copy. To
/// be called before the node joins the Raft group: a member with an older metadata log could vote
/// twice in one term.
pub async fn check_directory(
    internode: &Rc<Internode>,
    marks: &WriteMarks,
    service: &MetadataService,
    keeper: &InventoryKeeper,
    accept_loss: bool,
) -> Result<(), StartError> {
    let (topology, host) = (service.current().topology.clone(), service.info().host_id);
    let others: BTreeSet<_> =
        topology.members().filter(|node| node.host != host).map(|node| node.internode()).collect();
    let Some(group) = service.group().filter(|_| !others.is_empty()) else { return Ok(()) };
    let (asked, last) = (others.len(), group.last_index());
    let answers = runs::ask_others(internode, None, others, ANSWERS).await.map_err(|HasLeft(why)| StartError(why))?;
    tracing::info!(
        asked,
        responses = answers.len(),
        last,
        mark = marks.stored_at_start(),
        "other members were asked whether the data directory is an older copy"
    );
    if accept_loss && marks.stored_at_start().is_none() {
        marks.adopt(answers.iter().filter_map(KnownNode::mark).max().unwrap_or(0));
    }
    for known in answers {
        let checked = runs::check(host, known.run, &keeper.runs());
        checked
            .and_then(|()| known.check_mark(host, marks))
            .and_then(|()| known.check_log(host, last))
            .map_err(StartError)?;
    }
    Ok(())
}

/// Watches for other processes that replace this one, until the node stops. If the node has been a
/// member before, this function has a new run recorded, and returns once this process may serve. It
/// returns an error if the process must not serve.
pub async fn begin(
    shards: ClusterShards,
    coordinators: PerShard<Coordinator>,
    runs: PerShard<Runs>,
    internode: &Rc<Internode>,
    admission: &Rc<Admission>,
    keeper: Rc<InventoryKeeper>,
    joins: bool,
) -> Result<(), StartError> {
    let service = shards.metadata.get();
    let Some(group) = service.group().cloned() else { return Ok(()) };
    let moved_from = known_elsewhere(&service);
    if let Some(known) = moved_from {
        tracing::warn!(%known, "the metadata has another address of this node; the node serves clients once the cluster has recorded \
            the new address");
    }
    let has_others = service.current().topology.members().count() > 1;
    let claim = RunClaim::new(keeper.runs());
    let (standing, _) = watch::channel(RunStatus::Open);
    let own = Rc::new(Runs {
        claim,
        keeper,
        internode: Rc::downgrade(internode),
        admission: admission.clone(),
        service: service.clone(),
        standing,
        is_named: Cell::default(),
        has_no_mark: Cell::default(),
    });
    runs.set(own.clone());
    let runs = own;
    let (host, listening) = (service.info().host_id, Rc::downgrade(&runs));
    service.on_topology(move |topology| {
        if let Some(runs) = listening.upgrade() {
            runs.check(host, topology.run(host));
        }
    });
    rt::task::spawn(keep_comparing(runs.clone(), group.clone(), shards.engine, coordinators)).detach();
    // A node that joins, or that is the only node of its cluster, has no run until it is started
    // again.
    if joins || !has_others {
        runs.accept();
        return Ok(());
    }
    rt::task::spawn(keep_claiming(runs.clone(), group.clone())).detach();
    let (began, mut failure) = (rt::time::now(), std::pin::pin!(group.failure()));
    loop {
        let standing = runs.standing.borrow().clone();
        match standing {
            RunStatus::Accepted => return Ok(()),
            RunStatus::Displaced(why) | RunStatus::Left(why) => return Err(StartError(why)),
            RunStatus::Open if moved_from.is_some() => {}
            RunStatus::Open if is_majority_down(&group, internode) => {
                tracing::warn!(
                    "no majority of the cluster is up: the node serves requests with the metadata on its disk"
                );
                return Ok(());
            }
            RunStatus::Open if began.elapsed() >= MAJORITY_WAIT => {
                tracing::warn!(
                    "the metadata of the cluster cannot be read: the node serves requests with the metadata on its disk"
                );
                return Ok(());
            }
            RunStatus::Open => {}
        }
        if let Ok(why) = rt::time::timeout(LOOK, failure.as_mut()).await {
            return Err(StartError::of_group(&why));
        }
    }
}

fn is_majority_down(group: &Group, internode: &Internode) -> bool {
    let (voters, liveness) = (group.voters(), internode.liveness());
    let up = voters.iter().filter(|host| !liveness.is_down(**host)).count();
    !voters.is_empty() && up * 2 <= voters.len()
}

impl Runs {
    /// Waits until this process must stop, because another process has replaced it. The returned
    /// reason is for the operator.
    pub async fn displaced(&self) -> String {
        self.wait(|standing| if let RunStatus::Displaced(why) = standing { Some(why.clone()) } else { None }).await
    }

    /// Waits until the cluster has recorded that this node has left. The returned text is for the
    /// operator of a node that was removed.
    pub async fn left(&self) -> String {
        self.wait(|standing| if let RunStatus::Left(why) = standing { Some(why.clone()) } else { None }).await
    }

    async fn wait(&self, wanted: impl Fn(&RunStatus) -> Option<String>) -> String {
        let mut standing = self.standing.subscribe();
        loop {
            if let Some(why) = wanted(&standing.borrow_and_update()) {
                return why;
            }
            if standing.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }

    /// Asks other members for their records of this node.
    pub async fn ask(&self) {
        self.compare(None).await;
    }

    /// Ends the comparisons with other members: this node has left the cluster.
    pub fn leave(&self, why: &str) {
        self.standing.send_replace(RunStatus::Left(why.to_owned()));
    }

    /// Whether this process must stop, or has left the cluster.
    fn is_over(&self) -> bool {
        matches!(*self.standing.borrow(), RunStatus::Displaced(_) | RunStatus::Left(_))
    }

    fn accept(&self) {
        self.standing.send_if_modified(|standing| {
            let is_open = *standing == RunStatus::Open;
            if is_open {
                *standing = RunStatus::Accepted;
            }
            is_open
        });
    }

    /// Compares the recorded run of this node with the runs that the data directory names.
    fn check(&self, host: HostId, recorded: Option<NodeRun>) {
        if let Err(why) = runs::check(host, recorded, &self.claim.named()) {
            self.displace(why);
        }
    }

    /// Compares this node with the other members' current records of it, and sends them the
    /// announcement.
    async fn compare(&self, announcement: Option<MarkAnnouncement>) {
        let Some(internode) = self.internode.upgrade() else { return };
        let host = internode.own().host;
        let answers = match runs::ask_others(&internode, announcement, others(&internode), ANSWERS).await {
            Ok(answers) => answers,
            Err(HasLeft(why)) if self.is_over() => return tracing::debug!(why, "the node has left"),
            Err(HasLeft(why)) => return self.leave(&why),
        };
        for known in answers {
            self.check(host, known.run);
            if let Err(why) = known.check_mark(host, self.admission.marks()) {
                self.displace(why);
            }
        }
    }

    /// Raises the write mark. Returns whether the caller must announce it to the other members.
    async fn raise_mark(&self) -> bool {
        let raised = self.admission.marks().raise(&self.service.current().topology).await;
        let has_failed = self.has_no_mark.replace(raised.is_err());
        if let (Err(error), false) = (&raised, has_failed) {
            tracing::warn!(%error, "the write mark cannot be raised: an older copy of the data directory may not be detected");
        }
        raised.is_ok()
    }

    fn displace(&self, why: String) {
        if !self.is_over() {
            tracing::error!(why, "another process has replaced this node in the cluster");
            self.standing.send_replace(RunStatus::Displaced(why));
        }
    }

    /// Writes the claimed run to the stamp. This must precede its announcement to other nodes.
    /// Returns whether the stamp has the run.
    async fn name_claim(&self) -> bool {
        if !self.is_named.get() {
            let named = self.claim.named();
            match self.keeper.change_runs(|runs| *runs = named).await {
                Ok(()) => self.is_named.set(true),
                Err(error) => {
                    tracing::warn!(%error, "the run of this node cannot be written to messina.stamp; retrying")
                }
            }
        }
        self.is_named.get()
    }

    /// Tries to have the run recorded.
    async fn attempt(&self, group: &Group) -> Attempt {
        let is_elsewhere = known_elsewhere(&self.service).is_some();
        if !is_elsewhere && group.barrier(Deadline::after(BARRIER)).await.is_err() {
            return Attempt::Failed;
        }
        // The topology's listener has compared the runs, not the write marks.
        self.compare(None).await;
        if is_elsewhere && !self.is_over() {
            return self.introduce().await;
        }
        if self.is_over() || !self.name_claim().await {
            return Attempt::Checked;
        }
        let claim = self.claim.clone();
        let made = metadata::change::<(), String, _>(self.service.shards().metadata, move |metadata, info| {
            Ok((runs::record(&metadata.topology, info.host_id, &claim)?.into_iter().collect(), ()))
        });
        match made.await {
            Ok(()) => Attempt::Recorded,
            Err(ChangeError::Refused(why)) => {
                self.displace(why);
                Attempt::Checked
            }
            Err(error) => {
                tracing::warn!(%error, "the cluster could not record the run of this node; retrying");
                Attempt::Checked
            }
        }
    }

    /// Announces this node's new address and run to the other members. Until they know the address
    /// they cannot send it metadata, so only a leader could record the address by a change of its
    /// own.
    async fn introduce(&self) -> Attempt {
        let (topology, info) = (self.service.current().topology.clone(), self.service.info().clone());
        let Some(known) = topology.node(info.host_id) else { return Attempt::Failed };
        if !self.name_claim().await {
            return Attempt::Failed;
        }
        let Some(internode) = self.internode.upgrade() else { return Attempt::Failed };
        let own = own_node(&info, known.state);
        match join::introduce(&self.admission, &internode, &own, &self.claim, others(&internode)).await {
            Ok(true) => Attempt::Recorded,
            Ok(false) => Attempt::Failed,
            Err(why) => {
                tracing::error!(why, "the cluster refuses the return of this node");
                Attempt::Failed
            }
        }
    }
}

/// The addresses of the other members. For members that moved as well, these are the addresses
/// where this node has located them.
fn others(internode: &Internode) -> BTreeSet<SocketAddr> {
    let own = internode.own().host;
    internode.book().peers.iter().filter(|(host, _)| **host != own).map(|(_, peer)| peer.address).collect()
}

/// Records the run in the metadata. Retries until that succeeds.
async fn keep_claiming(runs: Rc<Runs>, group: Rc<Group>) {
    loop {
        match runs.attempt(&group).await {
            Attempt::Recorded => {
                let run = runs.claim.run;
                // The stamp has this run already, with earlier runs.
                if let Err(error) = runs.keeper.change_runs(|runs| *runs = vec![run]).await {
                    tracing::debug!(%error, "earlier runs could not be removed from messina.stamp");
                }
                tracing::info!(run = run.number, "the cluster has recorded this run of the node");
                return runs.accept();
            }
            Attempt::Checked => runs.accept(),
            Attempt::Failed => {}
        }
        if runs.is_over() || rt::time::timeout(PAUSE, rt::shard::stopping().cancelled()).await.is_ok() {
            return;
        }
    }
}

/// How much this node has written: to its commitlogs, to its hints and their notes, and to its Raft
/// log. A node that owns no replica of a table has only hints for its writes.
async fn written(group: &Group, engines: PerShard<Engine>, coordinators: PerShard<Coordinator>) -> (u64, u64) {
    let writes = rt::shard::call_all(move || async move {
        let own = engines.try_get().map_or(0, |engine| engine.metrics().writes);
        let hints = coordinators.try_get().map(|coordinator| coordinator.metrics().hints).unwrap_or_default();
        own + hints.written + hints.refused
    });
    (writes.await.iter().sum(), group.last_index())
}

/// Raises and announces the write mark of this node while it takes writes, and asks other members
/// for their records of it, until the node stops. A process that was replaced does not learn this
/// from the metadata: the leader sends the metadata to the new process.
async fn keep_comparing(
    runs: Rc<Runs>,
    group: Rc<Group>,
    engines: PerShard<Engine>,
    coordinators: PerShard<Coordinator>,
) {
    let mut seen = written(&group, engines, coordinators).await;
    let (mut asked, mut saved) = (rt::time::now(), rt::time::now());
    while !runs.is_over() {
        let is_open = *runs.standing.borrow() == RunStatus::Open;
        let pause = if is_open { PAUSE } else { MARK_EVERY };
        if rt::time::timeout(pause, rt::shard::stopping().cancelled()).await.is_ok() {
            return;
        }
        let Some(internode) = runs.internode.upgrade() else { return };
        if others(&internode).is_empty() {
            continue;
        }
        drop(internode);
        if is_open {
            runs.compare(None).await;
            continue;
        }
        let now = written(&group, engines, coordinators).await;
        let is_raised = now != seen && runs.raise_mark().await;
        if is_raised {
            (seen, saved) = (now, rt::time::now());
        } else if saved.elapsed() >= SAVE_EVERY {
            saved = rt::time::now();
            if let Err(error) = runs.admission.marks().save(&runs.service.current().topology).await {
                tracing::debug!(%error, "the write marks of other nodes could not be written to disk");
            }
        }
        if is_raised || asked.elapsed() >= ASK_EVERY {
            asked = rt::time::now();
            runs.compare(Some(runs.admission.marks().announcement())).await;
        }
    }
}
