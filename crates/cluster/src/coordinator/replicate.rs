//! Writing to several replicas: to all of them at once, waiting for as many as the level asks for.
//!
//! Each replica gets one request with all that a write has for it, in a task of its own: it goes on when the level is reached or the client
//! has gone. A replica that is down, or whose answer does not come, gets a hint. So does one that refuses the write, and this node itself, if
//! the level is reached all the same: an acknowledged write is on every replica, or is hinted, or is noted as missed.

use super::error::Attempt;
use super::far::{Far, MAX_BYTES_ON_THE_WAY, Message, Miss, MissClass};
use super::nodes::Nodes;
use super::tally::{Factors, Standing, Tally};
use super::write::{Mutations, WriteKind};
use super::{Consistency, Coordinator, CoordinatorError, RequestOptions, count};
use crate::hints::Cause;
use crate::metadata::builtin::is_built_in;
use crate::metadata::{Metadata, Table};
use crate::tablets::TabletReplica;
use crate::tablets::transition::{Replicas, WriteSet};
use model::id::HostId;
use model::key::DecoratedKey;
use model::mutation::Mutation;
use replica::wire::{Answer, Request};
use replica::{Context, ReplicaError};
use rt::sync::Notify;
use smallvec::SmallVec;
use std::cell::{Cell, RefCell};
use std::net::IpAddr;
use std::rc::Rc;

/// Mutations that go to the same replicas.
struct Part {
    replicas: Replicas,
    /// How many of them are only being made.
    pending: usize,
    keyspace: String,
    mutations: Vec<Mutation>,
    tally: Tally,
}

/// Which parts of a write a replica has.
type Share = SmallVec<[usize; 1]>;

/// A write on its way, shared by the tasks that carry it.
struct Round {
    parts: RefCell<Vec<Part>>,
    /// Why replicas answered that they failed, and where they are.
    failures: RefCell<Vec<(Option<IpAddr>, String)>>,
    /// Why a replica refused the write itself, if one did.
    refused: RefCell<Option<String>>,
    /// Replicas that have not been heard of yet.
    outstanding: Cell<usize>,
    /// A replica got the write, or may have.
    was_sent: Cell<bool>,
    changed: Notify,
    nodes: Rc<Nodes>,
    consistency: Consistency,
    /// Somebody waits for what becomes of it.
    is_open: Cell<bool>,
    /// A replica refused it, meanwhile, as routed by outdated metadata.
    outdated: Cell<bool>,
    /// Replicas that will not have the write, and that nothing brings it yet.
    lacking: RefCell<Vec<Lacking>>,
}

/// A replica that did not take its part of a write.
struct Lacking {
    host: HostId,
    message: Rc<Message>,
    miss: Miss,
}

/// What became of a round.
enum Decided {
    Reached,
    OutOfReach,
    Outdated,
}

impl Round {
    fn change(&self, replica: TabletReplica, parts: &[usize], change: impl Fn(&mut Tally, super::tally::DatacenterId)) {
        let datacenter = self.nodes.datacenter(replica.host);
        let mut all = self.parts.borrow_mut();
        parts.iter().for_each(|part| change(&mut all[*part].tally, datacenter));
        drop(all);
        self.changed.notify_one();
    }

    fn standing(&self) -> Standing {
        let parts = self.parts.borrow();
        let mut standing = Standing::Reached;
        for part in parts.iter() {
            match part.tally.standing() {
                Standing::OutOfReach => return Standing::OutOfReach,
                Standing::Open => standing = Standing::Open,
                Standing::Reached => {}
            }
        }
        standing
    }

    async fn decided(&self) -> Decided {
        loop {
            match self.standing() {
                Standing::Reached => return Decided::Reached,
                _ if self.outdated.get() => return Decided::Outdated,
                // Where replicas are merely unreachable, the error says how many of the others
                // answered.
                Standing::OutOfReach if !self.failures.borrow().is_empty() || self.outstanding.get() == 0 => {
                    return Decided::OutOfReach;
                }
                Standing::Open | Standing::OutOfReach => self.changed.notified().await,
            }
        }
    }

    /// Notes that a replica refused it as routed by outdated metadata. False if nobody waits any more who could do it again.
    fn is_outdated(&self) -> bool {
        self.outdated.set(true);
        self.changed.notify_one();
        self.is_open.get()
    }

    /// Notes that a replica was heard of, or will not be.
    fn is_heard(&self) {
        self.outstanding.set(self.outstanding.get() - 1);
        self.changed.notify_one();
    }

    /// The part that is furthest from its level, for errors.
    fn worst(&self) -> (u32, u32, u32) {
        let parts = self.parts.borrow();
        let missing = |part: &&Part| part.tally.required() - part.tally.received();
        let worst = parts.iter().max_by_key(missing);
        worst.map_or((0, 0, 0), |part| (part.tally.required(), part.tally.received(), part.tally.failures()))
    }
}

/// What a keyspace's options ask for. Each node stores the built-in tables by itself, so any level needs this node alone.
pub(super) fn factors(metadata: &Metadata, nodes: &Nodes, keyspace: &str, copies: &[TabletReplica]) -> Factors {
    match metadata.keyspace(keyspace).filter(|_| !is_built_in(keyspace)) {
        Some(keyspace) => nodes.factors(&keyspace.definition.replication, copies),
        None => Factors::default(),
    }
}

/// Where a table's writes with a key go.
fn write_set(table: &Table, key: &DecoratedKey) -> WriteSet {
    let tablet = table.tablets.tablet_of(key.token);
    let moving = table.tablets.moving_write_set(tablet);
    moving.unwrap_or_else(|| WriteSet { replicas: table.tablets.replicas(tablet).into(), pending: 0 })
}

impl Coordinator {
    /// Writes mutations of which some go to other nodes.
    pub(super) async fn replicate(
        &self,
        metadata: Rc<Metadata>,
        mutations: Mutations,
        kind: WriteKind,
        options: &RequestOptions,
    ) -> Result<(), CoordinatorError> {
        if self.far.on_the_way.get() > MAX_BYTES_ON_THE_WAY {
            return Err(CoordinatorError::Overloaded("Too many writes are on their way to replicas".into()));
        }
        if kind == WriteKind::Counter {
            drop(metadata);
            let several = mutations.len() > 1;
            let counts = mutations.iter().map(|(mutation, key)| self.count_far(mutation, key, options));
            let counted = futures_util::future::try_join_all(counts).await.map(|_| ());
            return counted.map_err(|error| if several { perhaps_done(error) } else { error });
        }
        self.route(metadata, mutations, None, options).await
    }

    /// Sends mutations to their replicas, except to the one that has them, by metadata as new as it takes, and waits for the level. Those that
    /// one has already are of its data by this metadata: where these have been truncated since, they are not sent any more.
    async fn route(
        &self,
        mut metadata: Rc<Metadata>,
        mutations: Mutations,
        done: Option<TabletReplica>,
        options: &RequestOptions,
    ) -> Result<(), CoordinatorError> {
        let (made, mut sent) = (metadata.number, done.is_some());
        // Replicas of an earlier attempt may have the write.
        let failed = |error: CoordinatorError, sent: bool| if sent { perhaps_done(error) } else { error };
        loop {
            let number = metadata.number;
            let nodes = self.nodes_by(&metadata);
            let parts = self.parts(&metadata, &nodes, &mutations, options).map_err(|error| failed(error, sent))?;
            match self.send(parts, nodes, done, &options.routed_by(number)).await {
                Ok(()) => return Ok(()),
                Err(Attempt::Failed(error)) => return Err(failed(error, sent)),
                Err(Attempt::Outdated) => sent = true,
            }
            drop(metadata);
            self.newer_than(number, options).await?;
            metadata = self.metadata();
            let table = |mutation: &Mutation| metadata.table_by_id(mutation.table());
            let is_void = |mutation: &Mutation| table(mutation).is_some_and(|table| table.epoch > made);
            if done.is_some() && mutations.iter().any(|(mutation, _)| is_void(mutation)) {
                return Ok(());
            }
        }
    }

    /// Mutations by where they go.
    fn parts(
        &self,
        metadata: &Metadata,
        nodes: &Nodes,
        mutations: &Mutations,
        options: &RequestOptions,
    ) -> Result<Vec<Part>, CoordinatorError> {
        let mut parts: Vec<Part> = Vec::new();
        for (mutation, key) in mutations {
            let table = metadata.table_by_id(mutation.table()).ok_or(CoordinatorError::NoSuchTable)?;
            let (tally, set) = self.checked(metadata, nodes, table, key, options)?;
            let keyspace = &table.schema.keyspace;
            let same = |part: &&mut Part| {
                part.replicas == set.replicas && part.pending == set.pending && part.keyspace == *keyspace
            };
            match parts.iter_mut().find(same) {
                Some(part) => part.mutations.push(mutation.clone()),
                None => parts.push(Part {
                    replicas: set.replicas,
                    pending: set.pending,
                    keyspace: keyspace.clone(),
                    mutations: vec![mutation.clone()],
                    tally,
                }),
            }
        }
        Ok(parts)
    }

    /// What a level asks for of a write with this key, and where it goes; an error if too few of these replicas live.
    fn checked(
        &self,
        metadata: &Metadata,
        nodes: &Nodes,
        table: &Table,
        key: &DecoratedKey,
        options: &RequestOptions,
    ) -> Result<(Tally, WriteSet), CoordinatorError> {
        let mut set = write_set(table, key);
        if set.replicas.is_empty() {
            // A table of each node's own: its data are on shard 0.
            set.replicas.push(TabletReplica { host: self.host, shard: 0 });
        }
        let settled = set.replicas.len() - set.pending;
        let copies: SmallVec<[_; 4]> =
            set.replicas.iter().enumerate().map(|(at, replica)| nodes.candidate(*replica, at >= settled)).collect();
        let level = options.consistency;
        let factors = factors(metadata, nodes, &table.schema.keyspace, &set.replicas[..settled]);
        let tally = Tally::new(level, nodes.own_datacenter(), &factors, &copies);
        // At ANY a hint is enough.
        let hinted = |replica: &TabletReplica| {
            let hints = self.far.hints();
            hints.is_some_and(|hints| hints.are_kept_for(nodes.datacenter_name(replica.host)))
        };
        if (level != Consistency::Any || !set.replicas.iter().any(hinted))
            && let Err(few) = tally.check_alive(&copies)
        {
            count(&self.counters.unavailable);
            return Err(CoordinatorError::Unavailable { consistency: level, required: few.required, alive: few.alive });
        }
        Ok((tally, set))
    }

    /// Sends parts to their replicas, except to the one that has them, and waits for the level.
    async fn send(
        &self,
        parts: Vec<Part>,
        nodes: Rc<Nodes>,
        done: Option<TabletReplica>,
        options: &RequestOptions,
    ) -> Result<(), Attempt> {
        let consistency = options.consistency;
        let mut targets: SmallVec<[(TabletReplica, Share); 4]> = SmallVec::new();
        for (at, part) in parts.iter().enumerate() {
            for replica in &part.replicas {
                match targets.iter_mut().find(|(known, _)| known == replica) {
                    Some((_, parts)) => parts.push(at),
                    None => targets.push((*replica, SmallVec::from_slice(&[at]))),
                }
            }
        }
        let round = Rc::new(Round {
            parts: RefCell::new(parts),
            failures: RefCell::default(),
            refused: RefCell::default(),
            outstanding: Cell::new(targets.len()),
            was_sent: Cell::new(done.is_some()),
            changed: Notify::new(),
            nodes,
            consistency,
            is_open: Cell::new(true),
            outdated: Cell::new(false),
            lacking: RefCell::default(),
        });
        // Those who get the same share a message.
        let mut messages: SmallVec<[(Share, Rc<Message>); 1]> = SmallVec::new();
        for (replica, parts) in targets {
            if done == Some(replica) {
                round.is_heard();
                round.change(replica, &parts, Tally::answered);
                continue;
            }
            let message = match messages.iter().find(|(known, _)| *known == parts) {
                Some((_, message)) => message.clone(),
                None => {
                    let message = message_of(&round.parts.borrow(), &parts);
                    messages.push((parts.clone(), message.clone()));
                    message
                }
            };
            let carry = carry(self.far.clone(), round.clone(), replica, parts, message, options.context.clone());
            rt::task::spawn(carry).detach();
        }
        let decided = options.context.deadline.limit(round.decided()).await;
        round.is_open.set(false);
        let (required, received, failures) = round.worst();
        match decided {
            Ok(Decided::Reached) => Ok(()),
            Ok(Decided::Outdated) => Err(Attempt::Outdated),
            Ok(Decided::OutOfReach) => {
                if let Some(why) = round.refused.take() {
                    return Err(CoordinatorError::Invalid(why).into());
                }
                let failed = round.failures.borrow();
                if failed.is_empty() && !round.was_sent.get() {
                    count(&self.counters.unavailable);
                    return Err(CoordinatorError::Unavailable { consistency, required, alive: 0 }.into());
                }
                if failed.is_empty() {
                    count(&self.counters.write_timeouts);
                    let data_present = false;
                    return Err(CoordinatorError::Timeout { consistency, required, received, data_present }.into());
                }
                let why = failed.first().map_or_else(String::new, |(_, why)| why.clone());
                let nodes = failed.iter().filter_map(|(node, _)| *node).collect();
                let data_present = false;
                let error =
                    CoordinatorError::Failed { consistency, required, received, failures, nodes, data_present, why };
                Err(error.into())
            }
            Err(_) => {
                count(&self.counters.write_timeouts);
                Err(CoordinatorError::Timeout { consistency, required, received, data_present: false }.into())
            }
        }
    }

    /// An update of a counter: one replica counts, and the state that it has then goes to the others.
    async fn count_far(
        &self,
        mutation: &Mutation,
        key: &DecoratedKey,
        options: &RequestOptions,
    ) -> Result<(), CoordinatorError> {
        // Once it has been counted, no replica may refuse the new state.
        let unchecked = Context { large_data: None, ..options.context.clone() };
        let unchecked = RequestOptions { context: unchecked, consistency: options.consistency };
        loop {
            let metadata = self.metadata();
            let number = metadata.number;
            match self.count_by(&metadata, mutation, key, &options.routed_by(number)).await {
                Ok((leader, state)) => {
                    let counted =
                        self.route(metadata, Mutations::from_iter([(state, key.clone())]), Some(leader), &unchecked);
                    return counted.await.map_err(|error| match error {
                        // It has been counted: nobody may be told that it was not.
                        CoordinatorError::Unavailable { consistency, required, .. } => {
                            CoordinatorError::Timeout { consistency, required, received: 1, data_present: false }
                        }
                        other => other,
                    });
                }
                Err(Attempt::Failed(error)) => return Err(error),
                Err(Attempt::Outdated) => {}
            }
            drop(metadata);
            self.newer_than(number, options).await?;
        }
    }

    /// Has one replica count. It, and the state that it has then.
    async fn count_by(
        &self,
        metadata: &Metadata,
        mutation: &Mutation,
        key: &DecoratedKey,
        options: &RequestOptions,
    ) -> Result<(TabletReplica, Mutation), Attempt> {
        let nodes = self.nodes_by(metadata);
        let table = metadata.table_by_id(mutation.table()).ok_or(CoordinatorError::NoSuchTable)?;
        let (tally, set) = self.checked(metadata, &nodes, table, key, options)?;
        let consistency = options.consistency;
        let (required, received) = (tally.required(), 0);
        // A pending replica has not all that was counted: it must not count.
        let settled = &set.replicas[..set.replicas.len() - set.pending];
        let leaders = nodes.by_proximity(settled, &self.far.latencies.borrow(), &[], rt::time::coarse_now());
        let message = Message::new(Request::Count(mutation.clone()));
        for leader in leaders {
            let asked = self.far.ask(leader, &message, &options.context);
            match options.context.deadline.limit(asked).await {
                Ok(Ok(Answer::Counted(state))) => return Ok((leader, state)),
                // It was not asked: another may count.
                Ok(Err(miss)) if miss.class() == MissClass::NotSent => continue,
                Ok(Err(miss)) if miss.is_stale() => return Err(Attempt::Outdated),
                Ok(Err(miss)) if miss.class() == MissClass::Failed => {
                    return Err(failed(miss, consistency, required, nodes.address(leader.host)).into());
                }
                Ok(Ok(_)) => return Err(CoordinatorError::Invalid("counting was answered otherwise".into()).into()),
                Ok(Err(_)) | Err(_) => {
                    count(&self.counters.write_timeouts);
                    let data_present = false;
                    return Err(CoordinatorError::Timeout { consistency, required, received, data_present }.into());
                }
            }
        }
        count(&self.counters.unavailable);
        Err(CoordinatorError::Unavailable { consistency, required, alive: 0 }.into())
    }
}

fn failed(miss: Miss, consistency: Consistency, required: u32, node: Option<IpAddr>) -> CoordinatorError {
    match miss {
        Miss::Refused(ReplicaError::Overloaded(why)) => CoordinatorError::Overloaded(why),
        Miss::Refused(ReplicaError::Rejected(why)) => CoordinatorError::Invalid(why),
        Miss::Refused(ReplicaError::NoSuchTable) => CoordinatorError::NoSuchTable,
        other => CoordinatorError::Failed {
            consistency,
            required,
            received: 0,
            failures: 1,
            nodes: node.into_iter().collect(),
            data_present: false,
            why: other.why(),
        },
    }
}

fn message_of(parts: &[Part], wanted: &[usize]) -> Rc<Message> {
    let mut mutations: Vec<Mutation> = wanted.iter().flat_map(|part| parts[*part].mutations.iter().cloned()).collect();
    Message::new(match mutations.len() {
        1 => Request::Write(mutations.remove(0)),
        _ => Request::WriteGroup(mutations),
    })
}

/// The error of a write of which replicas may have a part: drivers repeat a write that was Unavailable, even one that must not be done
/// twice.
fn perhaps_done(error: CoordinatorError) -> CoordinatorError {
    match error {
        CoordinatorError::Unavailable { consistency, required, .. } => {
            CoordinatorError::Timeout { consistency, required, received: 0, data_present: false }
        }
        other => other,
    }
}

/// Takes what parts have to a replica, and tells how it went.
async fn carry(
    far: Rc<Far>,
    round: Rc<Round>,
    replica: TabletReplica,
    parts: Share,
    message: Rc<Message>,
    context: Context,
) {
    let mutations = mutations_of(&message);
    let bytes: usize = mutations.iter().map(|mutation| mutation.as_bytes().len()).sum();
    let datacenter = round.nodes.datacenter_name(replica.host);
    let hints = far.hints().filter(|hints| replica.host != far.host && hints.are_kept_for(datacenter));
    let mut by_hint = round.consistency == Consistency::Any && hints.is_some();
    if !round.nodes.is_alive(replica.host) {
        round.is_heard();
        if !by_hint {
            round.change(replica, &parts, Tally::absent);
        }
    } else {
        far.on_the_way.set(far.on_the_way.get() + bytes);
        let outcome = context.deadline.limit(far.ask(replica, &message, &context)).await;
        far.on_the_way.set(far.on_the_way.get() - bytes);
        round.is_heard();
        let miss = match outcome {
            Ok(Ok(_)) => {
                round.was_sent.set(true);
                round.change(replica, &parts, Tally::answered);
                return provide(&far, &round, context.metadata_number).await;
            }
            Ok(Err(miss)) => miss,
            Err(_) => Miss::Refused(ReplicaError::Timeout),
        };
        let class = miss.class();
        if class != MissClass::NotSent {
            round.was_sent.set(true);
        }
        if miss.is_stale() && round.is_outdated() {
            // The level may be reached without it, before anybody does the write again.
            round.lacking.borrow_mut().push(Lacking { host: replica.host, message, miss });
            return provide(&far, &round, context.metadata_number).await;
        }
        by_hint &= miss.may_pass();
        if !by_hint && class != MissClass::Failed {
            round.change(replica, &parts, Tally::absent);
        } else if !by_hint {
            let node = round.nodes.address(replica.host);
            if let Miss::Refused(ReplicaError::Rejected(why)) = &miss {
                round.refused.borrow_mut().get_or_insert_with(|| why.clone());
            }
            round.failures.borrow_mut().push((node, miss.why()));
            round.change(replica, &parts, Tally::failed);
        }
        if replica.host == far.host || !miss.may_pass() {
            round.lacking.borrow_mut().push(Lacking { host: replica.host, message, miss });
            return provide(&far, &round, context.metadata_number).await;
        }
    }
    let Some(hints) = hints else { return };
    // A hint may bring the write later, so no client may be told that it was not done.
    round.was_sent.set(true);
    let down_for = round.nodes.down_for(replica.host, rt::time::now());
    let mut kept = true;
    for mutation in mutations {
        if let Err(refused) = hints.store(replica.host, mutation, context.metadata_number, down_for).await {
            tracing::debug!(target_node = %replica.host, %refused, "a hint was not kept");
            kept = false;
        }
    }
    if by_hint {
        round.change(replica, &parts, if kept { Tally::answered } else { Tally::failed });
        provide(&far, &round, context.metadata_number).await;
    }
}

fn mutations_of(message: &Message) -> &[Mutation] {
    match &message.request {
        Request::Write(mutation) => std::slice::from_ref(mutation),
        Request::WriteGroup(mutations) => mutations,
        _ => &[],
    }
}

/// Once a write has reached its level, and its client may be told that it is done: sees to the replicas that did not take it. `number`: of the
/// metadata that routed it.
async fn provide(far: &Rc<Far>, round: &Rc<Round>, number: u64) {
    if round.lacking.borrow().is_empty() || round.standing() != Standing::Reached {
        return;
    }
    for lacking in round.lacking.take() {
        Box::pin(provide_one(far, &round.nodes, lacking, number)).await;
    }
}

/// Keeps a hint for a replica. The hint may be accepted where the write was not: it is not checked against guardrails, and the replica may have
/// time or room again. If it is refused as well, replay notes that the replica misses the write. Without hints that is noted at once; so it is
/// for a disk of this node that fails, because hints are on the same disk in most configurations.
async fn provide_one(far: &Far, nodes: &Nodes, lacking: Lacking, number: u64) {
    let Some(hints) = far.hints() else { return };
    let Lacking { host, message, miss } = lacking;
    let is_own_disk =
        host == far.host && matches!(miss, Miss::Refused(ReplicaError::Storage(_) | ReplicaError::Corrupt(_)));
    let is_hinted = !is_own_disk && hints.are_kept_for(nodes.datacenter_name(host));
    for mutation in mutations_of(&message) {
        if !is_hinted {
            hints.note_missed(host, mutation.table(), Cause::Refused).await;
        } else if let Err(refused) = hints.store(host, mutation, number, None).await {
            tracing::debug!(target_node = %host, %refused, "a hint was not kept");
        }
    }
}
