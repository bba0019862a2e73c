//! Moves tablets: the leader advances each tablet in a transition from stage to stage.
//!
//! A stage is complete when all nodes follow it (a [`barrier`](super::barrier)) and its work is
//! done. The change that begins the next stage also raises the fence. From then on replicas refuse
//! requests that are based on metadata older than the completed stage, wherever they were delayed.
//! So two nodes are never more than one stage apart.
//!
//! All state is in the metadata, so a new leader resumes where the previous one was. A former
//! leader that does not know of its replacement does no harm. Its observations stay true, because a
//! node never returns to older metadata. Its change has no effect if the tablet has advanced since,
//! or if another leader has raised the fence.
//!
//! # While a member is down
//!
//! A member that is down cannot follow, and must not block unrelated tablets. A tablet proceeds
//! without it if none of the tablet's old and new replicas is on a member that is down. For such
//! tablets the driver raises the fence first, in a change of its own, and then runs a second
//! barrier over all other members. The next stage begins only when each of their shards
//!
//! * refuses requests that are based on metadata older than the completed stage, because the fence
//!   is part of the metadata of the second barrier, and
//! * has finished all such requests that it had admitted. This holds because a replica
//!   (`coordinator::answer`) holds the metadata while it works on a request. All nodes do so: the
//!   feature `ANSWERS_HOLD_METADATA` is required.
//!
//! All replicas of such a tablet are on nodes that took part. So neither the excluded member's
//! metadata nor its real state matters. It may be alive behind a partition and serve clients, or
//! return at any moment with its last metadata. While its metadata is older than the completed
//! stage, it can neither read nor write a replica. So it reaches no consistency level until it has
//! newer metadata. A barrier would not have required more of the member. The member holds no
//! replica of the tablet itself. If it had a replica once, it has followed until the end of the
//! transition that removed the replica: until then the tablet could not proceed without it. A
//! replica that restarts knows the fence before it serves, because a node stores the metadata to
//! which it has followed (`raft::store`).
//!
//! None of this holds for a tablet with a replica on the member that is down, because that member
//! would not refuse its own requests. Such a tablet waits until the member is up again or has left.
//!
//! The driver itself streams no data: [`Streamer`] does. The driver retries the streaming, under
//! the session of the stage, until it succeeds or the transition is rolled back.

use super::NodeState;
use super::barrier::{NotFollowed, barrier};
use super::{features, planner};
use crate::metadata::{ChangeError, ClusterShards, Metadata, MetadataService, Op, Table, builtin, change};
use crate::tablets::TabletReplica;
use crate::tablets::transition::{Next, Replicas, Set, Stage, Transition, TransitionKind};
use futures_util::future::LocalBoxFuture;
use model::id::{HostId, TableId};
use rt::shard::PerShard;
use rt::sync::{Deadline, Notify};
use rt::task::Task;
use rt::time::{Duration, Instant};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use thiserror::Error;
use uuid::Uuid;

/// The longest interval between checks. Usually a change of the metadata or the end of a streaming
/// causes one.
const LOOK: Duration = Duration::from_millis(200);
/// The interval at which the end of a transition is looked for.
const LOOK_FOR_END: Duration = Duration::from_millis(10);
/// The minimum interval between equal log lines.
const REPORT_EVERY: Duration = Duration::from_secs(60);
/// The pause before a tablet is streamed again after a failure. It doubles with each failure.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// The time limit of a barrier. After that the driver begins a new barrier.
const BARRIER: Duration = Duration::from_secs(30);

/// A tablet whose data is to be streamed to new replicas.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StreamTask {
    /// The table.
    pub table: TableId,
    /// The tablet.
    pub tablet: u32,
    /// The replicas that together have the data. It is streamed from all of them.
    pub from: Replicas,
    /// The pending replicas, which already receive writes.
    pub to: Replicas,
    /// Once the metadata no longer contains this session, nothing may be streamed.
    pub session: Uuid,
}

/// Why a tablet could not be streamed.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("{why}")]
pub struct StreamError {
    /// The reason, for the log.
    pub why: String,
    /// Whether the data of a source is damaged, so that another attempt would fail as well.
    pub is_damage: bool,
}

impl<T: Into<String>> From<T> for StreamError {
    fn from(why: T) -> StreamError {
        StreamError { why: why.into(), is_damage: false }
    }
}

/// Streams the data of tablets to other nodes.
pub trait Streamer {
    /// Streams all data that was written before the call. After an error it is called again;
    /// streaming the same data twice is harmless.
    fn copy(&self, what: StreamTask) -> LocalBoxFuture<'static, Result<(), StreamError>>;
}

/// The streamer of the node. On shard 0. Without it, no data can be streamed.
pub struct Streaming(pub Rc<dyn Streamer>);

/// Why tablets do not progress.
#[derive(Debug, Error)]
pub enum MoveError {
    /// Not all nodes have applied the metadata.
    #[error(transparent)]
    Barrier(#[from] NotFollowed),
    /// The change to the next stage was not agreed on.
    #[error(transparent)]
    Change(#[from] ChangeError<String>),
}

/// A tablet and its transition, as read from the metadata.
type Seen = (TableId, u32, Transition);

/// A tablet that can advance.
struct Ready {
    seen: Seen,
    /// Whether its transition is to be rolled back. Otherwise the work of its stage is done. Nodes
    /// may leave or stay while the barrier waits, so the next step must know which of the two.
    is_given_up: bool,
}

/// A running streaming task, with its result once it has ended.
type Copy = (Task<()>, Rc<RefCell<Option<Result<(), StreamError>>>>);

/// The failures to stream a tablet in a session.
#[derive(Clone, Copy, Default)]
struct Failures {
    count: u32,
    /// Whether a source was damaged.
    is_damage: bool,
}

/// See the module.
pub struct MigrationDriver {
    shards: ClusterShards,
    streaming: PerShard<Streaming>,
    /// Streaming tasks by session.
    copies: RefCell<BTreeMap<Uuid, Copy>>,
    /// How streaming has failed, by session.
    failures: RefCell<BTreeMap<Uuid, Failures>>,
    /// When the failure to stream a tablet was last logged.
    reported: RefCell<BTreeMap<(TableId, u32), Instant>>,
    /// Notified when a tablet may be able to advance.
    wake: Rc<Notify>,
}

impl MigrationDriver {
    /// A driver that streams with `streaming`, once that is set on shard 0.
    pub fn new(shards: ClusterShards, streaming: PerShard<Streaming>) -> Rc<MigrationDriver> {
        let (copies, failures, reported) = (RefCell::default(), RefCell::default(), RefCell::default());
        Rc::new(MigrationDriver { shards, streaming, copies, failures, reported, wake: Rc::default() })
    }

    /// Advances tablets whenever this node is the leader, until the node stops. On shard 0.
    pub async fn run(self: Rc<Self>) {
        let mut reported: Option<Instant> = None;
        let wake = self.wake.clone();
        let notify = move |_: &Metadata, now: &Metadata| {
            if now.transitions().next().is_some() {
                wake.notify_one();
            }
        };
        let Some(service) = self.shards.metadata.try_get() else { return };
        service.on_change(notify);
        drop(service);
        while rt::shard::stopping().unless(rt::time::timeout(LOOK, self.wake.notified())).await.is_some() {
            let Some(service) = self.shards.metadata.try_get() else { return };
            if !service.is_leader() {
                self.copies.take();
                continue;
            }
            drop(service);
            loop {
                match self.round(Deadline::after(BARRIER)).await {
                    Ok(true) => {}
                    Ok(false) => break,
                    Err(error) => {
                        if reported.is_none_or(|reported| reported.elapsed() >= REPORT_EVERY) {
                            tracing::warn!(%error, "tablet migrations do not progress; retrying");
                            reported = Some(rt::time::now());
                        }
                        break;
                    }
                }
            }
        }
    }

    /// Advances every tablet whose stage is complete. Returns false if there was none. On shard 0.
    pub async fn round(&self, until: Deadline) -> Result<bool, MoveError> {
        let (number, ready) = {
            let metadata = self.shards.metadata.get().current();
            let moving = metadata.transitions();
            let seen: Vec<Seen> =
                moving.map(|(table, tablet, moving)| (table.schema.id, tablet, moving.clone())).collect();
            self.cancel_stale_copies(&metadata);
            let ready: Vec<Ready> = seen.into_iter().filter_map(|seen| self.ready(&metadata, seen)).collect();
            (metadata.number, ready)
        };
        if ready.is_empty() {
            return Ok(false);
        }
        let (down, ready) = self.without_those_down(ready)?;
        barrier(self.shards, number, &down, until).await?;
        if !down.is_empty() {
            change(self.shards.metadata, move |_, _| Ok::<_, String>((vec![Op::Fence(number)], ()))).await?;
            let fenced = self.shards.metadata.get().current().number;
            barrier(self.shards, fenced, &down, until).await?;
        }
        change(self.shards.metadata, move |metadata, _| Ok::<_, String>((steps(metadata, number, &ready), ()))).await?;
        Ok(true)
    }

    /// The members that are down, as seen by this node, and the tablets that can proceed without
    /// them. An error if no tablet can.
    fn without_those_down(&self, ready: Vec<Ready>) -> Result<(BTreeSet<HostId>, Vec<Ready>), NotFollowed> {
        let metadata = self.shards.metadata.get().current();
        let liveness = self.shards.internode.try_get().map(|internode| internode.liveness());
        let Some(liveness) = liveness else {
            return Ok((BTreeSet::new(), ready));
        };
        let down = metadata.topology.down(|host| liveness.is_down(host));
        let ready: Vec<Ready> = ready.into_iter().filter(|one| !has_copy_on(&metadata, &one.seen, &down)).collect();
        match ready.is_empty() {
            true => Err(NotFollowed(down.into_iter().map(|host| (host, "it is down".into())).collect())),
            false => Ok((down, ready)),
        }
    }

    /// Cancels streaming under sessions that have ended.
    fn cancel_stale_copies(&self, metadata: &Metadata) {
        self.reported.borrow_mut().retain(|_, reported| reported.elapsed() < REPORT_EVERY);
        self.copies.borrow_mut().retain(|session, _| metadata.session_is_open(*session));
        self.failures.borrow_mut().retain(|session, _| metadata.session_is_open(*session));
    }

    fn copy(&self, what: StreamTask) -> LocalBoxFuture<'static, Result<(), StreamError>> {
        match self.streaming.try_get() {
            Some(streaming) => streaming.0.copy(what),
            None => Box::pin(async { Err("this node has no connections to others".into()) }),
        }
    }

    /// Whether to log that a tablet could not be streamed. It is retried soon, so the log line is
    /// limited to one per [`REPORT_EVERY`].
    fn report_is_due(&self, table: TableId, tablet: u32) -> bool {
        let mut reported = self.reported.borrow_mut();
        let lately = reported.get(&(table, tablet)).is_some_and(|reported| reported.elapsed() < REPORT_EVERY);
        if !lately {
            reported.insert((table, tablet), rt::time::now());
        }
        !lately
    }

    /// A tablet that is to be rolled back, or whose stage's work is done. `None`: neither.
    fn ready(&self, metadata: &Metadata, seen: Seen) -> Option<Ready> {
        let is_given_up = is_given_up(metadata, &seen);
        (is_given_up || self.is_done(metadata, &seen)).then_some(Ready { seen, is_given_up })
    }

    /// Whether the work of a stage is done. Starts the streaming if the stage needs it.
    fn is_done(&self, metadata: &Metadata, (table, tablet, moving): &Seen) -> bool {
        let (Some(session), true) = (moving.session, moving.stage.copies()) else { return true };
        let Some(known) = metadata.table_by_id(*table) else { return false };
        let old = known.tablets.replicas(*tablet);
        let to: Replicas = moving.pending(old).collect();
        // The first replica of a tablet has nothing to copy.
        if to.is_empty() || old.is_empty() {
            return true;
        }
        let failures = self.failures.borrow().get(&session).copied().unwrap_or_default();
        let from = match failures.is_damage {
            true => others(metadata, moving, old),
            false => sources(metadata, moving, old),
        };
        let mut copies = self.copies.borrow_mut();
        if let Some((_, result)) = copies.get(&session) {
            let result = result.borrow().clone();
            match result {
                None => return false,
                Some(Ok(())) => return true,
                Some(Err(StreamError { why, is_damage })) => {
                    if self.report_is_due(*table, *tablet) {
                        let (keyspace, name) = (&known.schema.keyspace, &known.schema.name);
                        tracing::warn!(keyspace, table = name, tablet, why, "a tablet could not be copied; retrying");
                    }
                    let mut all = self.failures.borrow_mut();
                    let failures = all.entry(session).or_default();
                    failures.count += 1;
                    failures.is_damage |= is_damage;
                    copies.remove(&session);
                }
            }
        }
        let what = StreamTask { table: *table, tablet: *tablet, from, to, session };
        let (result, copying) = (Rc::new(RefCell::new(None)), self.copy(what));
        let (done, wake) = (result.clone(), self.wake.clone());
        let pause = pause_after(failures.count);
        let task = rt::task::spawn(async move {
            rt::time::sleep(pause).await;
            let copied = copying.await;
            *done.borrow_mut() = Some(copied);
            wake.notify_one();
        });
        debug_assert!(!copies.contains_key(&session), "a session has at most one task that streams the tablet");
        copies.insert(session, (task, result));
        false
    }
}

/// The pause before the next attempt to stream a tablet.
fn pause_after(failures: u32) -> Duration {
    match failures {
        0 => Duration::ZERO,
        _ => FIRST_PAUSE.saturating_mul(1 << (failures - 1).min(16)).min(LONGEST_PAUSE),
    }
}

/// Whether one of these nodes has or receives a replica of the tablet.
fn has_copy_on(metadata: &Metadata, (table, tablet, moving): &Seen, nodes: &BTreeSet<HostId>) -> bool {
    let old = metadata.table_by_id(*table).map_or(&[][..], |known| known.tablets.replicas(*tablet));
    old.iter().chain(&moving.new_replicas).any(|replica| nodes.contains(&replica.host))
}

/// The replicas whose data the pending replicas need, without those on nodes that are no members
/// any more. Empty if the data cannot be copied.
fn sources(metadata: &Metadata, moving: &Transition, old: &[TabletReplica]) -> Replicas {
    let is_member = |replica: &TabletReplica| metadata.topology.is_member(replica.host);
    moving.sources(old).into_iter().filter(is_member).collect()
}

/// The replicas that stay, if there are any: together they have what a majority acknowledged. So
/// they replace a replica that is damaged. A write that only the damaged part of that replica has
/// is lost already.
fn others(metadata: &Metadata, moving: &Transition, old: &[TabletReplica]) -> Replicas {
    let is_usable =
        |replica: &&TabletReplica| moving.new_replicas.contains(replica) && metadata.topology.is_member(replica.host);
    let staying: Replicas = old.iter().filter(is_usable).copied().collect();
    if staying.is_empty() { sources(metadata, moving, old) } else { staying }
}

/// Whether a transition cannot be completed: a pending replica, or the replica that is still to be
/// copied, is on a node that is not a member any more.
fn is_hopeless(metadata: &Metadata, moving: &Transition, old: &[TabletReplica]) -> bool {
    let pending: Replicas = moving.pending(old).collect();
    let has_to_copy = moving.stage.reads() == Set::Old && !pending.is_empty() && !old.is_empty();
    !all_are_there(metadata, &pending) || has_to_copy && sources(metadata, moving, old).is_empty()
}

/// Whether a transition is to be rolled back.
fn is_given_up(metadata: &Metadata, (table, tablet, moving): &Seen) -> bool {
    let known = metadata.table_by_id(*table);
    let is_lost = |old: &[TabletReplica]| is_hopeless(metadata, moving, old);
    moving.stage.given_up().is_some() && known.is_some_and(|known| is_lost(known.tablets.replicas(*tablet)))
}

/// Whether all of these replicas are on nodes that serve.
fn all_are_there(metadata: &Metadata, replicas: &[TabletReplica]) -> bool {
    let is_there = |replica: &TabletReplica| {
        metadata.topology.node(replica.host).is_some_and(|node| node.state == NodeState::Normal)
    };
    replicas.iter().all(is_there)
}

/// The operations that raise the fence and advance tablets, which were read from the metadata of
/// `number`. Empty if another leader has raised the fence further meanwhile: a tablet may have
/// finished and begun another transition that looks the same.
fn steps(metadata: &Metadata, number: u64, ready: &[Ready]) -> Vec<Op> {
    if metadata.topology.fence() > number {
        return Vec::new();
    }
    let steps: Vec<Op> = ready.iter().filter_map(|one| step(metadata, one)).collect();
    let fence = (!steps.is_empty()).then_some(Op::Fence(number));
    fence.into_iter().chain(steps).collect()
}

/// The operation that advances a tablet. `None` if the tablet's transition has changed since it was
/// read, or if the reason for its rollback has passed: then its data may not have been copied.
fn step(metadata: &Metadata, Ready { seen: (table, tablet, seen), is_given_up }: &Ready) -> Option<Op> {
    let known = metadata.table_by_id(*table)?;
    let moving = known.tablets.transition(*tablet).filter(|moving| *moving == seen)?;
    let given_up = moving.stage.given_up().filter(|_| is_hopeless(metadata, moving, known.tablets.replicas(*tablet)));
    let next = match given_up {
        Some(back) => Next::Stage(back),
        None if *is_given_up => return None,
        None => moving.stage.next(),
    };
    Some(match next {
        Next::Stage(stage) => at_stage(*table, *tablet, moving, stage),
        Next::Moved => Op::EndTransition { table: *table, tablet: *tablet, moved: true },
        Next::Forgotten => Op::EndTransition { table: *table, tablet: *tablet, moved: false },
    })
}

fn at_stage(table: TableId, tablet: u32, moving: &Transition, stage: Stage) -> Op {
    debug_assert!(
        moving.stage.next() == Next::Stage(stage) || moving.stage.given_up() == Some(stage),
        "a tablet passes each stage of its move: {} follows {}",
        stage.name(),
        moving.stage.name()
    );
    let session = stage.copies().then(rt::random::uuid_v4);
    let next = Transition { stage, session, ..moving.clone() };
    Op::PutTransition(Box::new(next.written(table, tablet)))
}

/// Begins to move a tablet, or to add or remove a replica. On return the transition is agreed on;
/// the driver then completes it.
pub async fn begin(
    services: PerShard<MetadataService>,
    table: TableId,
    tablet: u32,
    kind: TransitionKind,
    new_replicas: Replicas,
) -> Result<(), ChangeError<String>> {
    if services.get().shards().internode.try_get().is_none() {
        // It does not move tablets: see `server/src/membership.rs`.
        let why = "this node has no `seeds`, so it is alone: a restart spreads its tablets over its shards";
        return Err(ChangeError::Refused(why.to_owned()));
    }
    change(services, move |metadata, _| {
        check(metadata, table, tablet, kind, &new_replicas)?;
        features::check_streaming(&metadata.topology)?;
        debug_assert!(!new_replicas.is_empty(), "a tablet moves to some node");
        let (stage, new_replicas) = (Stage::AllowWriteBothReadOld, new_replicas.clone());
        let begun = Transition { kind, stage, new_replicas, session: None };
        Ok((vec![Op::PutTransition(Box::new(begun.written(table, tablet)))], ()))
    })
    .await
}

/// Waits until a transition that [`begin`] has begun is over, and the tablet has these replicas.
/// The error says why it does not have them.
pub async fn wait_for_end(
    services: PerShard<MetadataService>,
    table: TableId,
    tablet: u32,
    new_replicas: Replicas,
) -> Result<(), String> {
    loop {
        {
            let metadata = services.try_get().ok_or("the node is stopping")?.current();
            let tablets = &metadata.table_by_id(table).ok_or("the table was dropped")?.tablets;
            if tablets.transition(tablet).is_none() {
                return match tablets.replicas(tablet) == new_replicas.as_slice() {
                    true => Ok(()),
                    false => Err("the transition was rolled back".to_owned()),
                };
            }
        }
        if rt::shard::stopping().unless(rt::time::sleep(LOOK_FOR_END)).await.is_none() {
            return Err("the node is stopping".to_owned());
        }
    }
}

/// Begins the rollback of a tablet's transition to the old replicas.
pub async fn give_up(
    services: PerShard<MetadataService>,
    table: TableId,
    tablet: u32,
) -> Result<(), ChangeError<String>> {
    change(services, move |metadata, _| {
        let known = metadata.table_by_id(table).and_then(|known| known.tablets.transition(tablet));
        let moving = known.ok_or_else(|| "the tablet is not moving".to_owned())?;
        let back = rollback(table, tablet, moving);
        Ok((vec![back.ok_or_else(|| format!("the move can no longer be cancelled: {}", moving.stage.name()))?], ()))
    })
    .await
}

/// The operations that begin the rollback of all moves of replicas away from a node, where that is
/// still possible.
pub(super) fn rollbacks_from(metadata: &Metadata, host: HostId) -> Vec<Op> {
    let is_on_host = |replicas: &[TabletReplica]| replicas.iter().any(|replica| replica.host == host);
    let leaves = |(table, tablet, moving): &(&Rc<Table>, u32, &Transition)| {
        is_on_host(table.tablets.replicas(*tablet)) && !is_on_host(&moving.new_replicas)
    };
    let leaving = metadata.transitions().filter(leaves);
    leaving.filter_map(|(table, tablet, moving)| rollback(table.schema.id, tablet, moving)).collect()
}

/// The operation that begins the rollback of a transition. `None` if it is too late.
fn rollback(table: TableId, tablet: u32, moving: &Transition) -> Option<Op> {
    moving.stage.given_up().map(|back| at_stage(table, tablet, moving, back))
}

/// Whether a tablet may change its replicas to `new`. The error gives the reason.
pub fn check(
    metadata: &Metadata,
    table: TableId,
    tablet: u32,
    kind: TransitionKind,
    new: &[TabletReplica],
) -> Result<(), String> {
    let known = metadata.table_by_id(table).filter(|known| !builtin::is_built_in(&known.schema.keyspace));
    let known = known.ok_or("there is no such table")?;
    let tablets = &known.tablets;
    if tablet >= tablets.count() {
        return Err(format!("the table has no tablet {tablet}: it has {} tablets", tablets.count()));
    }
    if let Some(moving) = tablets.transition(tablet) {
        return Err(format!("the tablet is already moving: {}", moving.stage.name()));
    }
    let old = tablets.replicas(tablet);
    for (at, replica) in new.iter().enumerate() {
        let node = metadata.topology.node(replica.host).filter(|node| node.state == NodeState::Normal);
        let node = node.ok_or_else(|| format!("node {} serves no tablets", replica.host))?;
        if replica.shard >= node.shards {
            return Err(format!("node {} has no shard {}: it has {} shards", replica.host, replica.shard, node.shards));
        }
        if new[..at].iter().any(|other| other.host == replica.host) {
            return Err(format!("node {} would have two replicas", replica.host));
        }
        let moves_on_node = old.iter().any(|other| other.host == replica.host && other.shard != replica.shard);
        if moves_on_node && kind != TransitionKind::IntranodeMigration {
            return Err(format!("node {} has the tablet on another shard", replica.host));
        }
    }
    let stay = old.iter().filter(|replica| new.contains(replica)).count();
    match kind {
        TransitionKind::Migration if new.len() == old.len() && stay + 1 == old.len() => {
            planner::check_stays_in_rack(metadata, known, old, new)
        }
        TransitionKind::Migration => Err("only one replica can move at a time".into()),
        TransitionKind::IntranodeMigration => check_moves_on_node(metadata, old, new),
        TransitionKind::Rebuild if !new.is_empty() && stay > 0 && new.len().abs_diff(old.len()) == 1 => {
            match stay == new.len().min(old.len()) {
                true => Ok(()),
                false => Err("only one replica can be added or removed at a time".into()),
            }
        }
        TransitionKind::Rebuild => Err("only one replica can be added or removed at a time".into()),
        _ => Err(format!("{} is not implemented yet", kind.name())),
    }
}

/// Refuses a change of replicas that is not the move of one replica to another shard of its node.
fn check_moves_on_node(metadata: &Metadata, old: &[TabletReplica], new: &[TabletReplica]) -> Result<(), String> {
    if !metadata.topology.has_feature(features::INTRANODE_MIGRATION) {
        return Err("a node of the cluster cannot move tablets between shards yet: upgrade all nodes first".into());
    }
    let is_moved = |(old, new): &(&TabletReplica, &TabletReplica)| old != new;
    let moved: Vec<_> = old.iter().zip(new).filter(is_moved).collect();
    match &moved[..] {
        [(from, to)] if from.host == to.host && old.len() == new.len() => Ok(()),
        [] => Err("the replica is on this shard already".into()),
        _ => Err("only one replica can move at a time, to another shard of its node".into()),
    }
}

#[cfg(test)]
mod tests;
