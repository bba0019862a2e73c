//! The write path: sends mutations to their replicas and waits until the level is reached.
//!
//! A write with a single replica on this node is performed without any allocation
//! ([`Coordinator::only_replica`]). Any other write is sent by [`super::write_responses`]. Counter
//! updates are first applied by one replica ([`super::counter_write`]).

use super::client::Message;
use super::error::Attempt;
use super::level::{factors, needs_one};
use super::nodes::Nodes;
use super::replica_failure::ReplicaFailure;
use super::response_tracker::ResponseTracker;
use super::write_responses::WriteGroup;
use super::{Consistency, Coordinator, CoordinatorError, RequestOptions, count};
use crate::hints::Hints;
use cluster::metadata::{Metadata, Table};
use cluster::tablets::TabletReplica;
use cluster::tablets::transition::WriteSet;
use model::key::DecoratedKey;
use model::mutation::Mutation;
use replica::{Mutations, Overload, RateLimitMode, ReplicaError, ReplicaRequest};
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
        let metadata = self.metadata();
        let Some(only) = self.only_replica(&metadata, &mutations, options)? else {
            let limited = self.limit_write(&metadata, &mutations, kind, options)?;
            return Box::pin(self.write_limited(metadata, mutations, limited, options)).await;
        };
        pin!(self.write_only(only, metadata, mutations, options)).await
    }

    /// Writes mutations that have several replicas, or a limit of writes. `limited`: the options of
    /// a limited write.
    async fn write_limited(
        &self,
        metadata: Rc<Metadata>,
        mutations: Mutations,
        limited: Option<Box<RequestOptions>>,
        options: &RequestOptions,
    ) -> Result<(), CoordinatorError> {
        let Some(limited) = limited else { return self.route(metadata, mutations, None, options).await };
        match self.only_replica(&metadata, &mutations, &limited)? {
            Some(only) => self.write_only(only, metadata, mutations, &limited).await,
            None => self.route(metadata, mutations, None, &limited).await,
        }
    }

    /// Writes mutations that have only one replica.
    #[inline]
    async fn write_only(
        &self,
        only: TabletReplica,
        metadata: Rc<Metadata>,
        mutations: Mutations,
        options: &RequestOptions,
    ) -> Result<(), CoordinatorError> {
        let message = Message::new(ReplicaRequest::Write(mutations));
        let answered = {
            // Pinned here, so that this large future is not moved.
            let sent = pin!(self.client.send(only, &message, &options.context));
            options.context.deadline.limit(sent).await
        };
        let error = match answered {
            Ok(Ok(_)) => return Ok(()),
            Ok(Err(failure)) if failure.is_stale() => {
                let number = metadata.number;
                drop(metadata);
                return Box::pin(self.write_again(message, number, options)).await;
            }
            Ok(Err(ReplicaFailure::Refused(error))) => error,
            Ok(Err(failure)) => ReplicaError::Storage(failure.why()),
            Err(_) => ReplicaError::Timeout,
        };
        if error == ReplicaError::Timeout {
            count(&self.counters.write_timeouts);
        }
        let error = CoordinatorError::of(error, options.consistency, 1);
        self.count_rate_limited(&error);
        Err(error)
    }

    /// The only replica of all mutations. `None` unless it is on this node, the level needs one
    /// response, and the request was planned with the newest metadata. None also if a table has a
    /// limit of writes and nothing has decided yet.
    #[inline]
    fn only_replica(
        &self,
        metadata: &Metadata,
        mutations: &Mutations,
        options: &RequestOptions,
    ) -> Result<Option<TabletReplica>, CoordinatorError> {
        let mut only = None;
        if options.context.metadata_number != metadata.number {
            return Ok(None);
        }
        for (mutation, key) in mutations {
            let table = metadata.table_by_id(mutation.table()).ok_or(CoordinatorError::NoSuchTable)?;
            if table.schema.rate_limits().limits_writes() && options.context.rate_limit == RateLimitMode::Off {
                return Ok(None);
            }
            let replica = table.tablets.only_replica(table.tablets.tablet_of(key.token), self.host);
            let is_same = only.is_none() || only == replica;
            if replica.is_none() || !is_same || !needs_one(metadata, table, options.consistency) {
                return Ok(None);
            }
            only = replica;
        }
        Ok(only)
    }

    /// Repeats a write that was refused as routed by outdated metadata, the one of this number.
    /// Waits for newer metadata first.
    async fn write_again(
        &self,
        message: Message,
        number: u64,
        options: &RequestOptions,
    ) -> Result<(), CoordinatorError> {
        let ReplicaRequest::Write(mutations) = message.request else { return Ok(()) };
        self.wait_for_newer(number, options).await?;
        self.route(self.metadata(), mutations, None, &options.exempt()).await
    }

    /// Sends mutations to their replicas and waits for the level. Repeats with newer metadata while
    /// replicas refuse them as outdated.
    ///
    /// `done`: a replica that has the mutations already (a counter's leader). They are then derived
    /// from its data as of `metadata`. If one of the tables is truncated since, they are void and
    /// not sent again.
    pub(super) async fn route(
        &self,
        mut metadata: Rc<Metadata>,
        mutations: Mutations,
        done: Option<TabletReplica>,
        options: &RequestOptions,
    ) -> Result<(), CoordinatorError> {
        let (made, mut sent) = (metadata.number, done.is_some());
        // Replicas of an earlier attempt may have the write.
        let failed = |error: CoordinatorError, sent: bool| if sent { maybe_applied(error) } else { error };
        loop {
            let number = metadata.number;
            let nodes = self.nodes_by(&metadata);
            let groups =
                self.group_by_replicas(&metadata, &nodes, &mutations, options).map_err(|error| failed(error, sent))?;
            if !sent
                && let Some(hints) = self.writer.hints_if_full()
                && needs_hint(&groups, &nodes, &hints)
            {
                return Err(CoordinatorError::Overloaded(Overload::Writes));
            }
            let mut routed = options.routed_by(number);
            if sent {
                // Replicas have counted the write.
                routed.context.rate_limit = RateLimitMode::Exempt;
            }
            match self.send_groups(groups, nodes, done, &routed).await {
                Ok(()) => return Ok(()),
                Err(Attempt::Failed(error)) => return Err(failed(error, sent)),
                Err(Attempt::Outdated) => sent = true,
            }
            drop(metadata);
            self.wait_for_newer(number, options).await?;
            metadata = self.metadata();
            let table = |mutation: &Mutation| metadata.table_by_id(mutation.table());
            let is_void = |mutation: &Mutation| table(mutation).is_some_and(|table| table.epoch > made);
            if done.is_some() && mutations.iter().any(|(mutation, _)| is_void(mutation)) {
                return Ok(());
            }
        }
    }

    /// Groups mutations by their replicas.
    fn group_by_replicas(
        &self,
        metadata: &Metadata,
        nodes: &Nodes,
        mutations: &Mutations,
        options: &RequestOptions,
    ) -> Result<Vec<WriteGroup>, CoordinatorError> {
        let mut groups: Vec<WriteGroup> = Vec::new();
        for (mutation, key) in mutations {
            let table = metadata.table_by_id(mutation.table()).ok_or(CoordinatorError::NoSuchTable)?;
            let (tracker, set) = self.checked(metadata, nodes, table, key, options)?;
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
    /// # Errors [`CoordinatorError::Unavailable`] if too few replicas are up.
    pub(super) fn checked(
        &self,
        metadata: &Metadata,
        nodes: &Nodes,
        table: &Table,
        key: &DecoratedKey,
        options: &RequestOptions,
    ) -> Result<(ResponseTracker, WriteSet), CoordinatorError> {
        let mut set = write_set(table, key);
        if set.replicas.is_empty() {
            // A node-local table: its data is on shard 0.
            set.replicas.push(TabletReplica { host: self.host, shard: 0 });
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
pub(super) fn maybe_applied(error: CoordinatorError) -> CoordinatorError {
    match error {
        CoordinatorError::Unavailable { consistency, required, .. } => {
            CoordinatorError::Timeout { consistency, required, received: 0, data_present: false }
        }
        other => other,
    }
}
