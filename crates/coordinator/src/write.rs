//! The write path: sends mutations to their replicas and waits until the level is reached.
//!
//! A write whose only replica is on this node is sent to it without an allocation
//! ([`super::only_replica`]). [`Coordinator::route`] sends all others, by
//! [`super::write_responses`]. Counter updates are first applied by one replica
//! ([`super::counter_write`]).

use super::client::Message;
use super::error::Attempt;
use super::level::factors;
use super::nodes::Nodes;
use super::response_tracker::ResponseTracker;
use super::write_responses::WriteGroup;
use super::{Consistency, Coordinator, CoordinatorError, RequestOptions, count};
use crate::hints::Hints;
use cluster::metadata::{Metadata, Table};
use cluster::tablets::TabletReplica;
use cluster::tablets::transition::WriteSet;
use model::key::DecoratedKey;
use replica::{KeyedMutation, Mutations, Overload, RateLimitMode, ReplicaRequest};
use smallvec::SmallVec;
use std::pin::pin;
use std::rc::Rc;

/// The kind of a write, as errors name it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WriteKind {
    /// One statement.
    Simple,
    /// A batch that is applied entirely or not at all.
    LoggedBatch,
    /// A batch whose partitions are applied independently.
    UnloggedBatch,
    /// Counter updates.
    Counter,
}

/// The replicas to which writes of a partition are sent.
fn write_set(table: &Table, key: &DecoratedKey) -> WriteSet {
    let tablet = table.tablets.tablet_of(key.token);
    let moving = table.tablets.moving_write_set(tablet);
    moving.unwrap_or_else(|| WriteSet { replicas: table.tablets.replicas(tablet).into(), pending: 0 })
}

impl Coordinator {
    /// Writes mutations. All mutations for one shard share one log record, so a crash keeps all of
    /// them or none.
    pub async fn write(
        &self,
        mutations: Mutations,
        kind: WriteKind,
        options: &RequestOptions,
    ) -> Result<(), CoordinatorError> {
        count(&self.counters.writes);
        if self.writer.is_full() {
            return Err(CoordinatorError::Overloaded(Overload::Writes));
        }
        // A logged batch must be applied entirely.
        let entire = (kind == WriteKind::LoggedBatch && mutations.len() > 1).then(|| Box::new(options.exempt()));
        let options = entire.as_deref().unwrap_or(options);
        if self.replica.protects_itself() {
            self.protect_write(&mutations, options)?;
        }
        if kind == WriteKind::Counter {
            let limited = self.limit_write(&self.metadata(), &mutations, kind, options)?;
            return Box::pin(self.update_counters(&mutations, limited, options)).await;
        }
        let mut metadata = self.metadata();
        let mut only = self.only_replica_written(&metadata, &mutations, options)?;
        let mut limited = None;
        if only.is_none() {
            limited = self.limit_write(&metadata, &mutations, kind, options)?;
            if let Some(limited) = &limited {
                only = self.only_replica_written(&metadata, &mutations, limited)?;
            }
        }
        let mut options = limited.as_deref().unwrap_or(options);
        let continued;
        let message = Message::new(ReplicaRequest::Write(mutations));
        if let Some(only) = only {
            // Pinned, so that this large future is not moved.
            let response = pin!(self.client.send(only, &message, &options.context));
            match self.written_to_only(response.await, options) {
                Ok(()) => return Ok(()),
                Err(Attempt::Failed(error)) => return Err(error),
                // The replica may have counted the write before it refused it.
                Err(Attempt::Outdated { required }) => {
                    continued = options.continued();
                    options = &continued;
                    let number = metadata.number;
                    drop(metadata);
                    let newer = self.wait_for_newer(number, required, options, &self.counters.write_timeouts);
                    Box::pin(newer).await?;
                    metadata = self.metadata();
                }
            }
        }
        // Boxed: it must not enlarge the future of writes with one replica.
        Box::pin(self.route(metadata, message.request.mutations(), None, options)).await
    }

    /// Sends mutations to their replicas and waits for the level. Repeats with newer metadata while
    /// replicas refuse them as outdated.
    ///
    /// `done`: a replica that has the mutations already (the counter leader). They are then derived
    /// from its data as of `metadata`. If one of the tables is truncated since, they have no effect
    /// and are not sent again.
    pub(super) async fn route(
        &self,
        mut metadata: Rc<Metadata>,
        mutations: &[KeyedMutation],
        done: Option<TabletReplica>,
        options: &RequestOptions,
    ) -> Result<(), CoordinatorError> {
        let (made, mut sent) = (metadata.number, done.is_some());
        loop {
            let number = metadata.number;
            let required = match self.write_to_all(&metadata, mutations, done, sent, options).await {
                Ok(()) => return Ok(()),
                // Replicas of an earlier attempt may have the write.
                Err(Attempt::Failed(error)) => return Err(if sent { maybe_applied(error) } else { error }),
                Err(Attempt::Outdated { required }) => required,
            };
            sent = true;
            drop(metadata);
            self.wait_for_newer(number, required, options, &self.counters.write_timeouts).await?;
            metadata = self.metadata();
            let is_void = |(mutation, _): &KeyedMutation| {
                metadata.table_by_id(mutation.table()).is_some_and(|table| table.epoch > made)
            };
            if done.is_some() && mutations.iter().any(is_void) {
                return Ok(());
            }
        }
    }

    /// Sends mutations to all their replicas once. `sent`: whether an earlier attempt may have
    /// written them to some replicas.
    async fn write_to_all(
        &self,
        metadata: &Metadata,
        mutations: &[KeyedMutation],
        done: Option<TabletReplica>,
        sent: bool,
        options: &RequestOptions,
    ) -> Result<(), Attempt> {
        let nodes = self.nodes_by(metadata);
        let groups = self.group_by_replicas(metadata, &nodes, mutations, options)?;
        if !sent
            && let Some(hints) = self.writer.hints_if_full()
            && needs_hint(&groups, &nodes, &hints)
        {
            return Err(CoordinatorError::Overloaded(Overload::Writes).into());
        }
        if !sent
            && options.consistency == Consistency::Any
            && let RateLimitMode::Deferred { draw } = options.context.rate_limit
        {
            self.limit_hinted(&groups, &nodes, draw, options)?;
        }
        let mut routed = options.routed_by(metadata.number);
        if sent && done.is_none() {
            // Replicas that have performed the write have counted and charged it.
            routed.context.rate_limit = RateLimitMode::Exempt;
        }
        self.send_groups(groups, nodes, done, &routed).await
    }

    /// Groups mutations by their replicas.
    fn group_by_replicas(
        &self,
        metadata: &Metadata,
        nodes: &Nodes,
        mutations: &[KeyedMutation],
        options: &RequestOptions,
    ) -> Result<Vec<WriteGroup>, CoordinatorError> {
        let mut groups: Vec<WriteGroup> = Vec::new();
        for (mutation, key) in mutations {
            let table = metadata.table_by_id(mutation.table()).ok_or(CoordinatorError::NoSuchTable)?;
            let (tracker, set) = self.plan_partition_write(metadata, nodes, table, key, options)?;
            let same = |group: &&mut WriteGroup| {
                let same_keyspace = group.table.schema.keyspace == table.schema.keyspace;
                same_keyspace && group.replicas == set.replicas && group.pending == set.pending
            };
            match groups.iter_mut().find(same) {
                Some(group) => group.mutations.push((mutation.clone(), key.clone())),
                None => groups.push(WriteGroup {
                    replicas: set.replicas,
                    pending: set.pending,
                    table: table.clone(),
                    mutations: Mutations::from_iter([(mutation.clone(), key.clone())]),
                    tracker,
                }),
            }
        }
        let grouped: usize = groups.iter().map(|group| group.mutations.len()).sum();
        debug_assert_eq!(grouped, mutations.len(), "each mutation is in one group");
        Ok(groups)
    }

    /// The tracker for a write of this partition, and its replicas.
    ///
    /// # Errors
    ///
    /// [`CoordinatorError::Unavailable`] if too few replicas are up.
    pub(super) fn plan_partition_write(
        &self,
        metadata: &Metadata,
        nodes: &Nodes,
        table: &Table,
        key: &DecoratedKey,
        options: &RequestOptions,
    ) -> Result<(ResponseTracker, WriteSet), CoordinatorError> {
        let mut set = write_set(table, key);
        if set.pending == set.replicas.len() {
            set.replicas.push(self.node_local_replica(table, options.consistency)?);
        }
        debug_assert!(set.pending < set.replicas.len(), "a write goes to a replica that is read, too");
        let is_twice = |i: usize| set.replicas[..i].contains(&set.replicas[i]);
        debug_assert!(!(0..set.replicas.len()).any(is_twice), "a write set has each replica once");
        let settled = set.replicas.len() - set.pending;
        let copies: SmallVec<[_; 4]> =
            set.replicas.iter().enumerate().map(|(at, replica)| nodes.candidate(*replica, at >= settled)).collect();
        let level = options.consistency;
        let factors = factors(metadata, nodes, &table.schema.keyspace, &copies[..settled]);
        let tracker = ResponseTracker::new(level, nodes.own_datacenter(), &factors, &copies);
        // At ANY, a hint suffices.
        let hinted = |replica: &TabletReplica| {
            let hints = self.writer.hints();
            let is_kept = |hints: Rc<Hints>| hints.are_kept_for(nodes.datacenter_name(replica.host));
            nodes.is_member(replica.host) && hints.is_some_and(is_kept)
        };
        if (level != Consistency::Any || !set.replicas.iter().any(hinted))
            && let Err(few) = tracker.check_alive(&copies)
        {
            count(&self.counters.unavailable);
            return Err(CoordinatorError::Unavailable { consistency: level, required: few.required, alive: few.alive });
        }
        Ok((tracker, set))
    }
}

/// Whether a replica of the write is down and gets a hint.
fn needs_hint(groups: &[WriteGroup], nodes: &Nodes, hints: &Hints) -> bool {
    let now = rt::time::now();
    let gets_hint = |replica: &TabletReplica| {
        let host = replica.host;
        let is_down = !nodes.is_alive(host) && nodes.is_member(host);
        is_down && hints.would_store(nodes.datacenter_name(host), nodes.down_for(host, now))
    };
    groups.iter().any(|group| group.replicas.iter().any(gets_hint))
}

/// Turns Unavailable into a timeout, for a write that some replica may have applied. Drivers retry
/// Unavailable, even for statements that are not idempotent.
fn maybe_applied(error: CoordinatorError) -> CoordinatorError {
    match error {
        CoordinatorError::Unavailable { consistency, required, .. } => {
            CoordinatorError::Timeout { consistency, required, received: 0, data_present: false }
        }
        other => other,
    }
}
