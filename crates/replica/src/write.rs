//! The write path of a replica: admission, then the engine's commitlog and memtable.

use crate::error::{ReplicaError, Stale};
use crate::replica::Replica;
use crate::request::{Context, KeyedMutation};
use engine::ApplyError;

impl Replica {
    /// Checks a write against the large-data guardrails, if its context requires it.
    #[inline]
    pub(crate) fn admit_write(&self, mutations: &[KeyedMutation], context: &Context) -> Result<(), ReplicaError> {
        match &context.large_data {
            Some(found) => mutations.iter().try_for_each(|(mutation, key)| self.check_large_data(mutation, key, found)),
            None => Ok(()),
        }
    }

    /// Applies mutations, which share one commitlog record. Returns when they are as durable as the
    /// commitlog's mode requires.
    pub(crate) async fn append(&self, mutations: &[KeyedMutation], context: &Context) -> Result<(), ReplicaError> {
        self.metrics.writes.set(self.metrics.writes.get() + mutations.len() as u64);
        match mutations {
            [(mutation, key)] => {
                context.trace("Appending to the commitlog and the memtable");
                self.engine.apply_durably(mutation, key).await.map_err(apply_error)
            }
            several => {
                if let Some(trace) = &context.trace {
                    let count = several.len();
                    trace.event(format!("Appending {count} mutations to the commitlog and the memtables"));
                }
                self.engine.apply_group(several).await.map_err(apply_error)
            }
        }
    }
}

pub(crate) fn apply_error(error: ApplyError) -> ReplicaError {
    match error {
        ApplyError::NoSuchTable(_) => ReplicaError::NoSuchTable,
        // The tablet has moved: a coordinator with newer metadata finds it.
        ApplyError::NoSuchTablet { .. } => ReplicaError::Stale(Stale::Moved),
        ApplyError::TooLarge { .. } => ReplicaError::Rejected(error.to_string()),
        other => ReplicaError::Storage(other.to_string()),
    }
}
