//! Updates of counters: one replica counts, and the state that it has then goes to the others.

use super::client::Message;
use super::error::Attempt;
use super::miss::{Miss, MissClass};
use super::write::perhaps_done;
use super::{Consistency, Coordinator, CoordinatorError, RequestOptions, count};
use cluster::metadata::Metadata;
use cluster::tablets::TabletReplica;
use model::key::DecoratedKey;
use model::mutation::Mutation;
use replica::{Answer, Context, Mutations, ReplicaError, Request};
use std::net::IpAddr;

/// An update of a counter that one replica has done.
struct Counted {
    leader: TabletReplica,
    /// The state of the counter there.
    state: Mutation,
    /// Whether other replicas are to get the state.
    others: bool,
}

impl Coordinator {
    /// Updates counters, each partition for itself: a replica counts one after the other what belongs to one partition.
    pub(super) async fn count_all(
        &self,
        mutations: &Mutations,
        options: &RequestOptions,
    ) -> Result<(), CoordinatorError> {
        let several = mutations.len() > 1;
        let counts = mutations.iter().map(|(mutation, key)| self.count_one(mutation, key, options));
        let counted = futures_util::future::try_join_all(counts).await.map(|_| ());
        counted.map_err(|error| if several { perhaps_done(error) } else { error })
    }

    /// An update of a counter: one replica counts, and the state that it has then goes to the others.
    async fn count_one(
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
                Ok(Counted { others: false, .. }) => return Ok(()),
                Ok(Counted { leader, state, .. }) => {
                    let state = Mutations::from_iter([(state, key.clone())]);
                    let counted = self.route(metadata, state, Some(leader), &unchecked);
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

    /// Has one replica count.
    async fn count_by(
        &self,
        metadata: &Metadata,
        mutation: &Mutation,
        key: &DecoratedKey,
        options: &RequestOptions,
    ) -> Result<Counted, Attempt> {
        let nodes = self.nodes_by(metadata);
        let table = metadata.table_by_id(mutation.table()).ok_or(CoordinatorError::NoSuchTable)?;
        let (tally, set) = self.checked(metadata, &nodes, table, key, options)?;
        let consistency = options.consistency;
        let (required, received) = (tally.required(), 0);
        // A pending replica has not all that was counted: it must not count.
        let settled = &set.replicas[..set.replicas.len() - set.pending];
        let leaders = nodes.by_proximity(settled, &self.client.latencies.borrow(), &[], rt::time::coarse_now());
        let message = Message::new(Request::Count((mutation.clone(), key.clone())));
        for leader in leaders {
            let asked = self.client.send(leader, &message, &options.context);
            match options.context.deadline.limit(asked).await {
                Ok(Ok(Answer::Counted(state))) => return Ok(Counted { leader, state, others: set.replicas.len() > 1 }),
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
        Miss::Refused(ReplicaError::Cancelled) => CoordinatorError::Cancelled,
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
