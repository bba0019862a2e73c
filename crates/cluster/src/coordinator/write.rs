//! The write path: mutations to the shards that own them. Where other nodes have copies of any, all go the way of `replicate`.

use super::{Consistency, Coordinator, CoordinatorError, RequestOptions, count};
use crate::metadata::Table;
use crate::metadata::builtin::is_built_in;
use model::key::DecoratedKey;
use model::mutation::Mutation;
use replica::ReplicaError;
use replica::wire::Request;
use rt::ShardId;
use smallvec::SmallVec;
use std::pin::pin;
use std::rc::Rc;

/// Mutations with their keys; mostly one.
pub type Mutations = SmallVec<[(Mutation, DecoratedKey); 1]>;

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

impl Coordinator {
    /// Writes mutations. Those of one shard share one log record, so that a crash keeps all of them or none.
    pub async fn write(
        &self,
        mutations: Mutations,
        kind: WriteKind,
        options: &RequestOptions,
    ) -> Result<(), CoordinatorError> {
        count(&self.counters.writes);
        let metadata = self.metadata();
        let context = &options.context;
        let (mut required, mut places) = (1, SmallVec::<[ShardId; 4]>::new());
        for (mutation, key) in &mutations {
            let table = metadata.table_by_id(mutation.table()).ok_or(CoordinatorError::NoSuchTable)?;
            if !table.tablets.is_only_on(self.host) {
                return Box::pin(self.replicate(metadata, mutations, kind, options)).await;
            }
            required = required.max(self.check_level(&metadata, table, options.consistency)?);
            places.push(self.owner(table, key.token));
        }
        if kind == WriteKind::Counter {
            let counted = Box::pin(self.count_all(&places, &mutations, options));
            return self.written(context.deadline.limit(counted).await.ok(), options, required);
        }
        // Pinned here, so that a future of this size is not moved about.
        let work = pin!(async {
            match &places[..] {
                [] => Ok(()),
                [first, others @ ..] if others.iter().all(|other| other == first) => {
                    self.write_to(*first, &mutations, options).await
                }
                _ => Box::pin(self.write_to_each(&places, mutations, options)).await,
            }
        });
        self.written(context.deadline.limit(work).await.ok(), options, required)
    }

    /// What became of a write; `None`: its time ran out.
    fn written(
        &self,
        result: Option<Result<(), ReplicaError>>,
        options: &RequestOptions,
        required: u32,
    ) -> Result<(), CoordinatorError> {
        result.unwrap_or(Err(ReplicaError::Timeout)).map_err(|error| {
            if error == ReplicaError::Timeout {
                count(&self.counters.write_timeouts);
            }
            CoordinatorError::of(error, options.consistency, required)
        })
    }

    /// Updates of counters, each partition for itself: a shard counts one after the other what belongs to one partition.
    /// `places` are the shards of the mutations.
    async fn count_all(
        &self,
        places: &[ShardId],
        mutations: &Mutations,
        options: &RequestOptions,
    ) -> Result<(), ReplicaError> {
        let counts = places.iter().zip(mutations).map(|(&shard, (mutation, key))| async move {
            if shard == rt::shard::this() {
                return self.replica.count(mutation, key, &options.context).await.map(|_| ());
            }
            self.ask(shard, Request::Count(mutation.clone()), &options.context).await.map(|_| ())
        });
        futures_util::future::try_join_all(counts).await.map(|_| ())
    }

    /// Writes of several shards. `places` are the shards of the mutations.
    async fn write_to_each(
        &self,
        places: &[ShardId],
        mutations: Mutations,
        options: &RequestOptions,
    ) -> Result<(), ReplicaError> {
        let mut by_shard: SmallVec<[(ShardId, Mutations); 2]> = SmallVec::new();
        for (&shard, one) in places.iter().zip(mutations) {
            match by_shard.iter_mut().find(|(other, _)| *other == shard) {
                Some((_, group)) => group.push(one),
                None => by_shard.push((shard, SmallVec::from_iter([one]))),
            }
        }
        let writes = by_shard.iter().map(|(shard, group)| self.write_to(*shard, group, options));
        futures_util::future::try_join_all(writes).await.map(|_| ())
    }

    async fn write_to(
        &self,
        shard: ShardId,
        group: &[(Mutation, DecoratedKey)],
        options: &RequestOptions,
    ) -> Result<(), ReplicaError> {
        if shard == rt::shard::this() {
            return match group {
                [(mutation, key)] => self.replica.write(mutation, key, &options.context).await,
                several => self.replica.write_group(several, &options.context).await,
            };
        }
        let request = match group {
            [(mutation, _)] => Request::Write(mutation.clone()),
            several => Request::WriteGroup(several.iter().map(|(mutation, _)| mutation.clone()).collect()),
        };
        Box::pin(self.ask(shard, request, &options.context)).await.map(|_| ())
    }

    /// How many replicas must answer; an error if there are not as many.
    pub(super) fn check_level(
        &self,
        metadata: &crate::metadata::Metadata,
        table: &Rc<Table>,
        consistency: Consistency,
    ) -> Result<u32, CoordinatorError> {
        if matches!(consistency, Consistency::One | Consistency::LocalOne | Consistency::Any) {
            return Ok(1);
        }
        let keyspace = metadata.keyspace(&table.schema.keyspace).filter(|_| !is_built_in(&table.schema.keyspace));
        let factor = keyspace.map_or(1, |keyspace| keyspace.definition.replication_factor());
        let (required, alive) = (consistency.required(factor), table.tablets.replicas(0).len().max(1) as u32);
        if required > alive {
            count(&self.counters.unavailable);
            return Err(CoordinatorError::Unavailable { consistency, required, alive });
        }
        Ok(required)
    }
}
