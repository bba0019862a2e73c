//! Counter updates: one replica, the counter leader, applies the update; its new state is sent to
//! the others.

use super::client::Message;
use super::error::Attempt;
use super::replica_failure::{FailureClass, ReplicaFailure};
use super::{Coordinator, CoordinatorError, RequestOptions, count};
use cluster::metadata::Metadata;
use cluster::tablets::TabletReplica;
use model::key::DecoratedKey;
use model::mutation::Mutation;
use replica::{Context, Mutations, ReplicaRequest, ReplicaResponse};

/// A counter update that one replica has applied.
struct AppliedUpdate {
    counter_leader: TabletReplica,
    /// The new state of the counter on its leader.
    state: Mutation,
    /// Whether there are other replicas, which need the state.
    others: bool,
}

impl Coordinator {
    /// Applies counter updates, one request for each partition. `limited`: the options of a limited
    /// update.
    pub(super) async fn update_counters(
        &self,
        mutations: &Mutations,
        limited: Option<Box<RequestOptions>>,
        options: &RequestOptions,
    ) -> Result<(), CoordinatorError> {
        let options = limited.as_deref().unwrap_or(options);
        let mut required = 1;
        if mutations.len() > 1 {
            // Nothing is applied if a partition has too few replicas.
            let metadata = self.metadata();
            let nodes = self.nodes_by(&metadata);
            for (mutation, key) in mutations {
                let table = metadata.table_by_id(mutation.table()).ok_or(CoordinatorError::NoSuchTable)?;
                let (tracker, _) = self.plan_partition_write(&metadata, &nodes, table, key, options)?;
                required = required.max(tracker.required());
            }
        }
        let counts = mutations.iter().map(|(mutation, key)| self.update_counter(mutation, key, options));
        // All of them are completed: an update that is applied must reach the other replicas.
        let counted = futures_util::future::join_all(counts).await;
        let is_refused = |result: &Result<(), CoordinatorError>| result.as_ref().is_err_and(is_refusal);
        let some_applied = !counted.iter().all(is_refused);
        let Some(error) = counted.into_iter().find_map(Result::err) else { return Ok(()) };
        if some_applied && is_refusal(&error) {
            // A client may retry a refusal, and would then repeat the updates that are applied.
            let consistency = options.consistency;
            return Err(CoordinatorError::Timeout { consistency, required, received: 0, data_present: false });
        }
        Err(error)
    }

    /// Applies the update of one partition on a counter leader, then sends the new state to the
    /// other replicas.
    async fn update_counter(
        &self,
        mutation: &Mutation,
        key: &DecoratedKey,
        options: &RequestOptions,
    ) -> Result<(), CoordinatorError> {
        // The update is applied: neither guardrails nor limits may refuse its new state on other
        // replicas.
        let (large_data, rate_limit) = (None, options.context.rate_limit.continued());
        let unchecked = Context { large_data, rate_limit, ..options.context.clone() };
        let unchecked = RequestOptions { context: unchecked, consistency: options.consistency };
        let mut rate_limit = options.context.rate_limit;
        loop {
            let metadata = self.metadata();
            let number = metadata.number;
            let mut routed = options.routed_by(number);
            // Replicas count the update once.
            routed.context.rate_limit = rate_limit;
            rate_limit = rate_limit.continued();
            let required = match self.try_update_counter(&metadata, mutation, key, &routed).await {
                Ok(AppliedUpdate { others: false, .. }) => return Ok(()),
                Ok(AppliedUpdate { counter_leader, state, .. }) => {
                    let state = [(state, key.clone())];
                    // The update is applied, so `route` returns no `Unavailable`.
                    return self.route(metadata, &state, Some(counter_leader), &unchecked).await;
                }
                Err(Attempt::Failed(error)) => return Err(error),
                // The leader has not applied the update.
                Err(Attempt::Outdated { required }) => required,
            };
            drop(metadata);
            self.wait_for_newer(number, required, options, &self.counters.write_timeouts).await?;
        }
    }

    /// Applies the update on one replica: the nearest replica that receives the request.
    async fn try_update_counter(
        &self,
        metadata: &Metadata,
        mutation: &Mutation,
        key: &DecoratedKey,
        options: &RequestOptions,
    ) -> Result<AppliedUpdate, Attempt> {
        let nodes = self.nodes_by(metadata);
        let table = metadata.table_by_id(mutation.table()).ok_or(CoordinatorError::NoSuchTable)?;
        let (tracker, set) = self.plan_partition_write(metadata, &nodes, table, key, options)?;
        let consistency = options.consistency;
        let (required, received) = (tracker.required(), 0);
        // A pending replica lacks earlier updates, so it must not be the counter leader.
        let settled = &set.replicas[..set.replicas.len() - set.pending];
        let leaders = nodes.by_proximity(settled, &self.client.latencies.borrow(), &[], rt::time::coarse_now());
        let message = Message::new(ReplicaRequest::CounterUpdate((mutation.clone(), key.clone())));
        for counter_leader in leaders {
            match self.client.send(counter_leader, &message, &options.context).await {
                // Sstables of the other replicas can hold it.
                Ok(ReplicaResponse::CounterUpdated(state))
                    if state.table() == mutation.table() && state.check(&table.schema).is_ok() =>
                {
                    return Ok(AppliedUpdate { counter_leader, state, others: set.replicas.len() > 1 });
                }
                // The replica did not receive the update: another one may be the counter leader.
                Err(failure) if failure.class() == FailureClass::NotSent => continue,
                Err(failure) if failure.is_stale() => return Err(Attempt::Outdated { required }),
                Err(failure) if failure.class() == FailureClass::Failed => {
                    let node = nodes.address(counter_leader.host);
                    let error = CoordinatorError::of_failure(failure, consistency, required, node);
                    self.count_rate_limited(&error);
                    return Err(error.into());
                }
                Ok(_) => {
                    let failure = ReplicaFailure::unexpected_answer("a counter update");
                    let node = nodes.address(counter_leader.host);
                    return Err(CoordinatorError::of_failure(failure, consistency, required, node).into());
                }
                Err(_) => {
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

/// Whether an update was refused before any replica applied it.
fn is_refusal(error: &CoordinatorError) -> bool {
    use CoordinatorError::{Invalid, NoSuchTable, Overloaded, RateLimited, Unavailable};
    matches!(error, Invalid(_) | NoSuchTable | Overloaded(_) | RateLimited { .. } | Unavailable { .. })
}
