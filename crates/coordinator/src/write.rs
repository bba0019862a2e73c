//! The write path: mutations to their replicas, waiting for as many as the level asks for.
//!
//! A write whose only replica is on this node goes there without any allocation ([`Coordinator::only_replica`]); any other is a round
//! ([`super::round`]), updates of counters are counted first ([`super::counting`]).

use super::client::Message;
use super::error::Attempt;
use super::level::{factors, needs_one};
use super::miss::Miss;
use super::nodes::Nodes;
use super::round::Part;
use super::tally::Tally;
use super::{Consistency, Coordinator, CoordinatorError, RequestOptions, count};
use cluster::metadata::{Metadata, Table};
use cluster::tablets::TabletReplica;
use cluster::tablets::transition::WriteSet;
use model::key::DecoratedKey;
use model::mutation::Mutation;
use replica::{Mutations, Overload, ReplicaError, Request};
use smallvec::SmallVec;
use std::pin::pin;
use std::rc::Rc;

/// The kind of a write, as errors name it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WriteKind {
    /// One statement.
    Simple,
    /// A batch that is applied whole.
    LoggedBatch,
    /// A batch whose partitions are on their own.
    UnloggedBatch,
    /// Counters.
    Counter,
}

/// Where a table's writes with a key go.
fn write_set(table: &Table, key: &DecoratedKey) -> WriteSet {
    let tablet = table.tablets.tablet_of(key.token);
    let moving = table.tablets.moving_write_set(tablet);
    moving.unwrap_or_else(|| WriteSet { replicas: table.tablets.replicas(tablet).into(), pending: 0 })
}

impl Coordinator {
    /// Writes mutations. Those of one shard share one log record, so that a crash keeps all of them or none.
    pub async fn write(
        &self,
        mutations: Mutations,
        kind: WriteKind,
        options: &RequestOptions,
    ) -> Result<(), CoordinatorError> {
        count(&self.counters.writes);
        if self.carrier.is_full() {
            return Err(CoordinatorError::Overloaded(Overload::Writes));
        }
        if kind == WriteKind::Counter {
            return Box::pin(self.count_all(&mutations, options)).await;
        }
        let metadata = self.metadata();
        let Some(only) = self.only_replica(&metadata, &mutations, options)? else {
            return Box::pin(self.route(metadata, mutations, None, options)).await;
        };
        let message = Message::new(Request::Write(mutations));
        let answered = {
            // Pinned here, so that a future of this size is not moved about.
            let sent = pin!(self.client.send(only, &message, &options.context));
            options.context.deadline.limit(sent).await
        };
        let error = match answered {
            Ok(Ok(_)) => return Ok(()),
            Ok(Err(miss)) if miss.is_stale() => {
                let number = metadata.number;
                drop(metadata);
                return Box::pin(self.write_again(message, number, options)).await;
            }
            Ok(Err(Miss::Refused(error))) => error,
            Ok(Err(miss)) => ReplicaError::Storage(miss.why()),
            Err(_) => ReplicaError::Timeout,
        };
        if error == ReplicaError::Timeout {
            count(&self.counters.write_timeouts);
        }
        Err(CoordinatorError::of(error, options.consistency, 1))
    }

    /// The replica that has all of a write, if there is one, it is on this node, its answer is what the level asks for, and it was the
    /// newest metadata by which the request was planned.
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
            let replica = table.tablets.only_replica(table.tablets.tablet_of(key.token), self.host);
            let is_same = only.is_none() || only == replica;
            if replica.is_none() || !is_same || !needs_one(metadata, table, options.consistency) {
                return Ok(None);
            }
            only = replica;
        }
        Ok(only)
    }

    /// Writes what a replica refused, as routed by the metadata of this number, by newer metadata.
    async fn write_again(
        &self,
        message: Message,
        number: u64,
        options: &RequestOptions,
    ) -> Result<(), CoordinatorError> {
        let Request::Write(mutations) = message.request else { return Ok(()) };
        self.newer_than(number, options).await?;
        self.route(self.metadata(), mutations, None, options).await
    }

    /// Sends mutations to their replicas, except to the one that has them, by metadata as new as it takes, and waits for the level. Those that
    /// one has already are of its data by this metadata: where these have been truncated since, they are not sent any more.
    pub(super) async fn route(
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
            match self.send_parts(parts, nodes, done, &options.routed_by(number)).await {
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
            let same = |part: &&mut Part| {
                let same_keyspace = part.table.schema.keyspace == table.schema.keyspace;
                same_keyspace && part.replicas == set.replicas && part.pending == set.pending
            };
            match parts.iter_mut().find(same) {
                Some(part) => part.mutations.push((mutation.clone(), key.clone())),
                None => parts.push(Part {
                    replicas: set.replicas,
                    pending: set.pending,
                    table: table.clone(),
                    mutations: Mutations::from_iter([(mutation.clone(), key.clone())]),
                    tally,
                }),
            }
        }
        Ok(parts)
    }

    /// What a level asks for of a write with this key, and where it goes; an error if too few of these replicas live.
    pub(super) fn checked(
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
            let hints = self.carrier.hints();
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
}

/// The error of a write of which replicas may have a part: drivers repeat a write that was Unavailable, even one that must not be done
/// twice.
pub(super) fn perhaps_done(error: CoordinatorError) -> CoordinatorError {
    match error {
        CoordinatorError::Unavailable { consistency, required, .. } => {
            CoordinatorError::Timeout { consistency, required, received: 0, data_present: false }
        }
        other => other,
    }
}
