//! The write path of a replica: checks, then the engine's log and memtable.

use crate::error::ReplicaError;
use crate::read::Replica;
use crate::request::Context;
use engine::ApplyError;
use model::key::DecoratedKey;
use model::mutation::Mutation;

impl Replica {
    /// Applies a mutation; returns when it is as durable as the log's mode promises.
    pub async fn write(&self, mutation: &Mutation, key: &DecoratedKey, context: &Context) -> Result<(), ReplicaError> {
        if context.deadline.is_past() {
            return Err(ReplicaError::Timeout);
        }
        if let Some(found) = &context.large_data {
            self.check_large_data(mutation, key, found)?;
        }
        self.metrics.writes.set(self.metrics.writes.get() + 1);
        if let Some(trace) = &context.trace {
            trace.event("Appending to the commitlog and the memtable");
        }
        self.engine.apply_durably(mutation, key).await.map_err(apply_error)
    }

    /// Applies several mutations that share one log record: after a crash all of them are there or none.
    pub async fn write_group(
        &self,
        mutations: &[(Mutation, DecoratedKey)],
        context: &Context,
    ) -> Result<(), ReplicaError> {
        if context.deadline.is_past() {
            return Err(ReplicaError::Timeout);
        }
        if let Some(found) = &context.large_data {
            mutations.iter().try_for_each(|(mutation, key)| self.check_large_data(mutation, key, found))?;
        }
        self.metrics.writes.set(self.metrics.writes.get() + mutations.len() as u64);
        if let Some(trace) = &context.trace {
            trace.event(format!("Appending {} mutations to the commitlog and the memtables", mutations.len()));
        }
        self.engine.apply_group(mutations).await.map_err(apply_error)
    }
}

pub(crate) fn apply_error(error: ApplyError) -> ReplicaError {
    match error {
        ApplyError::NoSuchTable(_) => ReplicaError::NoSuchTable,
        // It has moved on: whoever routes by newer metadata finds it.
        ApplyError::NoSuchTablet { .. } => ReplicaError::Stale(error.to_string()),
        ApplyError::TooLarge { .. } => ReplicaError::Rejected(error.to_string()),
        other => ReplicaError::Storage(other.to_string()),
    }
}
