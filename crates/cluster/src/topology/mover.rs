//! Moving tablets: the node that leads the metadata brings each tablet that is on the move from stage to stage.
//!
//! A stage is over when every node follows it (a [`barrier`](super::barrier)) and what it is for is done. The change that begins the next one
//! raises the fence with it: what was routed before the stage that is over is refused from then on, wherever it was held up. So nobody is
//! ever more than one stage behind or ahead of another. All that is known is in the metadata: a leader that takes over goes on where the one
//! before was, and one that was replaced and does not know it does no harm: what it has found out stays true, for nodes follow and never go
//! back, and its change does nothing where the tablet has gone on since, or the fence was raised by another.
//!
//! # While a member is down
//!
//! It cannot follow, and must not hold up tablets that it has nothing to do with. Those of which neither an old nor a new copy is on a member
//! that is down go on without it, with the fence before the stage: the fence is agreed upon alone, and a second barrier over all others begins
//! the next stage no sooner than each of their shards
//!
//! * refuses what was routed before the stage that is over, for the fence comes with the metadata that they follow to, and
//! * is done with what of that it had let in, for who answers (`coordinator::answer`) holds on to the metadata for as long as
//!   it works (all nodes do once [`ANSWERS_HOLD_METADATA`] is enabled; until then nobody is left out).
//!
//! All copies of such a tablet are on nodes that were asked. So it does not matter what the member that is down believes, nor whether it is
//! down: this node may be wrong about that, and the member work on behind a partition with clients of its own, or come back at any moment with
//! what it last knew. By anything older than the stage that is over it can neither read nor write a copy, hence reach no level, until it has
//! learned what is true; and a barrier would not have had it do more. It holds no copy by itself either: who has had one has followed to the
//! end of the move that took it away, since up to there the tablet was one of its own. A copy that restarts knows the fence before it serves:
//! what a node has followed to is on its disk (`raft::store`).
//!
//! For a tablet of which the member has a copy this does not hold: it would not refuse itself. Such a tablet waits until it is back, or has
//! left.
//!
//! Copying data is somebody else's work ([`Streamer`]). It is tried until it succeeds, under the session of its stage, or until the move
//! is given up.

use super::NodeState;
use super::barrier::{NotFollowed, barrier};
use crate::metadata::{ChangeError, Metadata, MetadataService, Op, builtin, change};
use crate::tablets::TabletReplica;
use crate::tablets::transition::{Next, Replicas, Stage, Transition, TransitionKind};
use futures_util::future::LocalBoxFuture;
use internode::Internode;
use model::id::{HostId, TableId};
use rt::sync::Deadline;
use rt::task::Task;
use rt::time::{Duration, Instant};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use thiserror::Error;
use uuid::Uuid;

/// How often it is looked whether there is something to do.
const LOOK: Duration = Duration::from_millis(200);
/// How often the same is said: that tablets do not get on, or that one's data cannot be copied.
const TELL: Duration = Duration::from_secs(60);
/// How long a barrier may take before it is begun anew.
const BARRIER: Duration = Duration::from_secs(30);

/// A tablet's data that is to be copied.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Copying {
    /// The table.
    pub table: TableId,
    /// The tablet.
    pub tablet: u32,
    /// Who has the data.
    pub from: Replicas,
    /// Who is to have it as well. Writes go there already.
    pub to: Replicas,
    /// Nothing may be copied when this is no session of the metadata any more.
    pub session: Uuid,
}

/// Copies the data of tablets.
pub trait Streamer {
    /// Copies all that was written before it was asked. When it fails it is asked again: what it has copied twice is there once.
    fn copy(&self, what: Copying) -> LocalBoxFuture<'static, Result<(), String>>;
}

/// Where the streamer of a node is found, as a service of shard 0. Without one no data can be copied.
pub struct Streaming(pub Rc<dyn Streamer>);

/// Copies with the streamer that there is.
fn copy(what: Copying) -> LocalBoxFuture<'static, Result<(), String>> {
    match rt::shard::try_service::<Streaming>() {
        Some(streaming) => streaming.0.copy(what),
        None => Box::pin(async { Err("data cannot be copied between nodes yet".to_owned()) }),
    }
}

/// Why tablets did not get on.
#[derive(Debug, Error)]
pub enum MoveError {
    /// Not all nodes follow.
    #[error(transparent)]
    Barrier(#[from] NotFollowed),
    /// The next stage could not be agreed upon.
    #[error(transparent)]
    Change(#[from] ChangeError<String>),
}

/// A tablet on the move, as it was seen.
type Seen = (TableId, u32, Transition);

/// Data that is being copied; the result once it is.
type Copy = (Task<()>, Rc<RefCell<Option<Result<(), String>>>>);

/// See the module.
pub struct Mover {
    internode: Option<Rc<Internode>>,
    /// By session.
    copies: RefCell<BTreeMap<Uuid, Copy>>,
    /// When it was last said of a tablet that its data could not be copied.
    told: RefCell<BTreeMap<(TableId, u32), Instant>>,
}

impl Mover {
    /// A mover; to other nodes it is connected by `internode`.
    pub fn new(internode: Option<Rc<Internode>>) -> Rc<Mover> {
        Rc::new(Mover { internode, copies: RefCell::default(), told: RefCell::default() })
    }

    /// Moves tablets whenever this node leads, until it stops. On shard 0.
    pub async fn keep_moving(self: Rc<Self>) {
        let mut told: Option<Instant> = None;
        while rt::time::timeout(LOOK, rt::shard::stopping().cancelled()).await.is_err() {
            let Some(service) = rt::shard::try_service::<MetadataService>() else { return };
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
                        if told.is_none_or(|told| told.elapsed() >= TELL) {
                            tracing::warn!(%error, "tablets do not get on; trying again");
                            told = Some(rt::time::now());
                        }
                        break;
                    }
                }
            }
        }
    }

    /// Brings every tablet whose stage is over to the next one. False if there was none. On shard 0.
    pub async fn round(&self, until: Deadline) -> Result<bool, MoveError> {
        let (number, ready) = {
            let metadata = rt::shard::service::<MetadataService>().current();
            let moving = metadata.transitions();
            let seen: Vec<Seen> =
                moving.map(|(table, tablet, moving)| (table.schema.id, tablet, moving.clone())).collect();
            self.forget_copies(&metadata);
            let ready: Vec<Seen> = seen.into_iter().filter(|seen| self.is_done(&metadata, seen)).collect();
            (metadata.number, ready)
        };
        if ready.is_empty() {
            return Ok(false);
        }
        let (down, ready) = self.without_those_down(ready)?;
        barrier(self.internode.as_ref(), number, &down, until).await?;
        if !down.is_empty() {
            change(move |_, _| Ok::<_, String>((vec![Op::Fence(number)], ()))).await?;
            let fenced = rt::shard::service::<MetadataService>().current().number;
            barrier(self.internode.as_ref(), fenced, &down, until).await?;
        }
        change(move |metadata, _| Ok::<_, String>((steps(metadata, number, &ready), ()))).await?;
        Ok(true)
    }

    /// The members that are down, as this node sees it, and the tablets that can go on without them; an error if none can.
    fn without_those_down(&self, ready: Vec<Seen>) -> Result<(BTreeSet<HostId>, Vec<Seen>), NotFollowed> {
        let metadata = rt::shard::service::<MetadataService>().current();
        let liveness = self.internode.as_ref().map(|internode| internode.liveness());
        let Some(liveness) = liveness else {
            return Ok((BTreeSet::new(), ready));
        };
        let members = metadata.topology.members().map(|node| node.host);
        let down: BTreeSet<HostId> = members.filter(|host| liveness.is_down(*host)).collect();
        let ready: Vec<Seen> = ready.into_iter().filter(|seen| !has_copy_on(&metadata, seen, &down)).collect();
        match ready.is_empty() {
            true => Err(NotFollowed(down.into_iter().map(|host| (host, "it is down".into())).collect())),
            false => Ok((down, ready)),
        }
    }

    /// Copies under sessions that have ended are ended.
    fn forget_copies(&self, metadata: &Metadata) {
        self.told.borrow_mut().retain(|_, told| told.elapsed() < TELL);
        self.copies.borrow_mut().retain(|session, _| metadata.session_is_open(*session));
    }

    /// Whether to say that a tablet's data could not be copied: once in a while, for it is tried several times a second.
    fn is_to_tell(&self, table: TableId, tablet: u32) -> bool {
        let mut told = self.told.borrow_mut();
        let lately = told.get(&(table, tablet)).is_some_and(|told| told.elapsed() < TELL);
        if !lately {
            told.insert((table, tablet), rt::time::now());
        }
        !lately
    }

    /// Whether what a stage is for is done. What is to be copied is begun here.
    fn is_done(&self, metadata: &Metadata, (table, tablet, moving): &Seen) -> bool {
        let (Some(session), true) = (moving.session, moving.stage.copies()) else { return true };
        let Some(known) = metadata.table_by_id(*table) else { return false };
        let old = known.tablets.replicas(*tablet);
        let to: Replicas = moving.pending(old).collect();
        if to.is_empty() || !all_are_there(metadata, &to) {
            return true;
        }
        let mut copies = self.copies.borrow_mut();
        if let Some((_, result)) = copies.get(&session) {
            let result = result.borrow().clone();
            match result {
                None => return false,
                Some(Ok(())) => return true,
                Some(Err(why)) => {
                    if self.is_to_tell(*table, *tablet) {
                        let (keyspace, name) = (&known.schema.keyspace, &known.schema.name);
                        tracing::warn!(
                            keyspace,
                            table = name,
                            tablet,
                            why,
                            "a tablet could not be copied; trying again"
                        );
                    }
                    copies.remove(&session);
                    return false;
                }
            }
        }
        let what = Copying { table: *table, tablet: *tablet, from: Replicas::from_slice(old), to, session };
        let (result, copying) = (Rc::new(RefCell::new(None)), copy(what));
        let done = result.clone();
        let task = rt::task::spawn(async move {
            let copied = copying.await;
            *done.borrow_mut() = Some(copied);
        });
        copies.insert(session, (task, result));
        false
    }
}

/// Whether any of these nodes has a copy of a tablet, or is to have one.
fn has_copy_on(metadata: &Metadata, (table, tablet, moving): &Seen, nodes: &BTreeSet<HostId>) -> bool {
    let old = metadata.table_by_id(*table).map_or(&[][..], |known| known.tablets.replicas(*tablet));
    old.iter().chain(&moving.new_replicas).any(|replica| nodes.contains(&replica.host))
}

/// Whether all of these are on nodes that serve.
fn all_are_there(metadata: &Metadata, replicas: &[TabletReplica]) -> bool {
    let is_there = |replica: &TabletReplica| {
        metadata.topology.node(replica.host).is_some_and(|node| node.state == NodeState::Normal)
    };
    replicas.iter().all(is_there)
}

/// What brings tablets, seen in the metadata of `number`, to their next stages, and raises the fence. Nothing if another leader has raised it
/// further meanwhile: a tablet may have come to an end and begun anew, and look as it was seen.
fn steps(metadata: &Metadata, number: u64, ready: &[Seen]) -> Vec<Op> {
    if metadata.topology.fence() > number {
        return Vec::new();
    }
    let steps: Vec<Op> = ready.iter().filter_map(|seen| step(metadata, seen)).collect();
    let fence = (!steps.is_empty()).then_some(Op::Fence(number));
    fence.into_iter().chain(steps).collect()
}

/// What brings a tablet to its next stage; nothing if it is not where it was seen any more.
fn step(metadata: &Metadata, (table, tablet, seen): &Seen) -> Option<Op> {
    let known = metadata.table_by_id(*table)?;
    let moving = known.tablets.transition(*tablet).filter(|moving| *moving == seen)?;
    let pending: Replicas = moving.pending(known.tablets.replicas(*tablet)).collect();
    let given_up = moving.stage.given_up().filter(|_| !all_are_there(metadata, &pending));
    let next = given_up.map_or_else(|| moving.stage.next(), Next::Stage);
    Some(match next {
        Next::Stage(stage) => at_stage(*table, *tablet, moving, stage),
        Next::Moved => Op::EndTransition { table: *table, tablet: *tablet, moved: true },
        Next::Forgotten => Op::EndTransition { table: *table, tablet: *tablet, moved: false },
    })
}

fn at_stage(table: TableId, tablet: u32, moving: &Transition, stage: Stage) -> Op {
    let session = stage.copies().then(rt::random::uuid_v4);
    let next = Transition { stage, session, ..moving.clone() };
    Op::PutTransition(Box::new(next.written(table, tablet)))
}

/// Begins to move a tablet, or to make or give up a copy of it: agreed upon when it returns, and done by and by.
pub async fn begin(
    table: TableId,
    tablet: u32,
    kind: TransitionKind,
    new_replicas: Replicas,
) -> Result<(), ChangeError<String>> {
    change(move |metadata, _| {
        check(metadata, table, tablet, kind, &new_replicas)?;
        let (stage, new_replicas) = (Stage::AllowWriteBothReadOld, new_replicas.clone());
        let begun = Transition { kind, stage, new_replicas, session: None };
        Ok((vec![Op::PutTransition(Box::new(begun.written(table, tablet)))], ()))
    })
    .await
}

/// Has a tablet go back to the copies that it had.
pub async fn give_up(table: TableId, tablet: u32) -> Result<(), ChangeError<String>> {
    change(move |metadata, _| {
        let known = metadata.table_by_id(table).and_then(|known| known.tablets.transition(tablet));
        let moving = known.ok_or_else(|| "the tablet is not on the move".to_owned())?;
        let back = moving.stage.given_up().ok_or_else(|| format!("it is too late: {}", moving.stage.name()))?;
        Ok((vec![at_stage(table, tablet, moving, back)], ()))
    })
    .await
}

/// Whether a tablet may begin to change its copies to these. The error says why not.
pub fn check(
    metadata: &Metadata,
    table: TableId,
    tablet: u32,
    kind: TransitionKind,
    new: &[TabletReplica],
) -> Result<(), String> {
    let known = metadata.table_by_id(table).filter(|known| !builtin::is_built_in(&known.schema.keyspace));
    let tablets = &known.ok_or("there is no such table")?.tablets;
    if tablet >= tablets.count() {
        return Err(format!("the table has {} tablets", tablets.count()));
    }
    if let Some(moving) = tablets.transition(tablet) {
        return Err(format!("the tablet is on the move already: {}", moving.stage.name()));
    }
    let old = tablets.replicas(tablet);
    for (at, replica) in new.iter().enumerate() {
        let node = metadata.topology.node(replica.host).filter(|node| node.state == NodeState::Normal);
        let node = node.ok_or_else(|| format!("node {} serves no tablets", replica.host))?;
        if replica.shard >= node.shards {
            return Err(format!("node {} has {} shards", replica.host, node.shards));
        }
        if new[..at].iter().any(|other| other.host == replica.host) {
            return Err(format!("node {} would have two copies", replica.host));
        }
        if old.iter().any(|other| other.host == replica.host && other.shard != replica.shard) {
            return Err("a copy cannot move between the shards of its node yet".into());
        }
    }
    let stay = old.iter().filter(|replica| new.contains(replica)).count();
    match kind {
        TransitionKind::Migration if new.len() == old.len() && stay + 1 == old.len() => Ok(()),
        TransitionKind::Migration => Err("one copy moves at a time".into()),
        TransitionKind::Rebuild if !new.is_empty() && stay > 0 && new.len().abs_diff(old.len()) == 1 => {
            match stay == new.len().min(old.len()) {
                true => Ok(()),
                false => Err("one copy is made or given up at a time".into()),
            }
        }
        TransitionKind::Rebuild => Err("one copy is made or given up at a time".into()),
        _ => Err(format!("{} is not there yet", kind.name())),
    }
}

#[cfg(test)]
mod tests;
