//! Sends a write to one replica, and keeps a hint if the replica does not accept it.
//!
//! A replica that is down or does not respond gets a hint. A replica that refuses the write gets
//! one if the level is reached nevertheless; so does this node itself.
//!
//! Invariant: an acknowledged write is on every replica, or is hinted, or is recorded as missed. A
//! write is acknowledged after this is done for replicas that were down, and for replicas that
//! failed before the level was reached. For a replica that has not responded by then it is done
//! later.

use super::Consistency;
use super::client::{Message, ReplicaClient};
use super::nodes::Nodes;
use super::replica_failure::{FailureClass, ReplicaFailure};
use super::response_tracker::{LevelStatus, ResponseTracker};
use super::write_responses::{GroupIndexes, Lacking, WriteResponses};
use crate::hints::{Cause, Hints};
use cluster::tablets::TabletReplica;
use replica::{Context, ReplicaError};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// The most bytes of writes in flight to replicas. Beyond it new writes are refused as Overloaded.
const MAX_BYTES_IN_FLIGHT: usize = 64 << 20;

/// Sends writes to replicas. One for each shard.
pub(super) struct ReplicaWriter {
    client: Rc<ReplicaClient>,
    hints: RefCell<Option<Rc<Hints>>>,
    /// Bytes of writes to which replicas have not responded.
    bytes_in_flight: Cell<usize>,
}

impl ReplicaWriter {
    pub fn new(client: Rc<ReplicaClient>) -> Rc<ReplicaWriter> {
        Rc::new(ReplicaWriter { client, hints: RefCell::new(None), bytes_in_flight: Cell::new(0) })
    }

    /// The store for hints, if one is set.
    pub fn hints(&self) -> Option<Rc<Hints>> {
        self.hints.borrow().clone()
    }

    pub fn set_hints(&self, hints: Rc<Hints>) {
        *self.hints.borrow_mut() = Some(hints);
    }

    /// Whether new writes must be refused, because too many bytes are in flight.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.bytes_in_flight.get() > MAX_BYTES_IN_FLIGHT
    }

    /// Sends the mutations of some groups to a replica, counts its response, and keeps a hint where
    /// that is needed. If its node is down, the caller has begun the hint
    /// ([`WriteResponses::begin_hint`]).
    pub async fn send_write(
        &self,
        responses: &WriteResponses,
        replica: TabletReplica,
        groups: GroupIndexes,
        message: Rc<Message>,
        context: Context,
    ) {
        let mutations = message.request.mutations();
        let bytes: usize = mutations.iter().map(|(mutation, _)| mutation.as_bytes().len()).sum();
        let datacenter = responses.nodes.datacenter_name(replica.host);
        let hints = self.hints().filter(|hints| replica.host != self.client.host && hints.are_kept_for(datacenter));
        let mut by_hint = responses.consistency == Consistency::Any && hints.is_some();
        if !responses.nodes.is_alive(replica.host) {
            responses.replica_done();
            if !by_hint {
                responses.change(replica, &groups, ResponseTracker::absent);
            }
        } else {
            self.bytes_in_flight.set(self.bytes_in_flight.get() + bytes);
            let outcome = context.deadline.limit(self.client.send(replica, &message, &context)).await;
            self.bytes_in_flight.set(self.bytes_in_flight.get() - bytes);
            responses.replica_done();
            let failure = match outcome {
                Ok(Ok(_)) => {
                    responses.was_sent.set(true);
                    responses.change(replica, &groups, ResponseTracker::answered);
                    return self.hint_lacking(responses, context.metadata_number).await;
                }
                Ok(Err(failure)) => failure,
                Err(_) => ReplicaFailure::Refused(ReplicaError::Timeout),
            };
            let class = failure.class();
            if class != FailureClass::NotSent {
                responses.was_sent.set(true);
            }
            if failure.is_stale() && responses.mark_outdated() {
                // The level may still be reached without this replica, before the request is
                // repeated.
                responses.lacking.borrow_mut().push(Lacking { host: replica.host, message, failure });
                return self.hint_lacking(responses, context.metadata_number).await;
            }
            by_hint &= failure.may_pass();
            if !by_hint && class != FailureClass::Failed {
                responses.change(replica, &groups, ResponseTracker::absent);
            } else if !by_hint {
                let node = responses.nodes.address(replica.host);
                if let ReplicaFailure::Refused(ReplicaError::Rejected(why)) = &failure {
                    responses.refused.borrow_mut().get_or_insert_with(|| why.clone());
                }
                responses.failures.borrow_mut().push((node, failure.why()));
                responses.change(replica, &groups, ResponseTracker::failed);
            }
            if replica.host == self.client.host || !failure.may_pass() {
                responses.lacking.borrow_mut().push(Lacking { host: replica.host, message, failure });
                return self.hint_lacking(responses, context.metadata_number).await;
            }
            responses.begin_hint();
        }
        let Some(hints) = hints else { return responses.end_hint() };
        // A hint may apply the write later, so the client must not be told that it was not applied.
        responses.was_sent.set(true);
        let down_for = responses.nodes.down_for(replica.host, rt::time::now());
        let mut kept = true;
        for (mutation, _) in mutations {
            if let Err(refused) = hints.store(replica.host, mutation, context.metadata_number, down_for).await {
                tracing::debug!(target_node = %replica.host, %refused, "a hint was not kept");
                kept = false;
            }
        }
        if by_hint {
            responses.change(replica, &groups, if kept { ResponseTracker::answered } else { ResponseTracker::failed });
            self.hint_lacking(responses, context.metadata_number).await;
        }
        responses.end_hint();
    }

    /// Keeps hints for the replicas that did not accept the write, once it has reached its level.
    /// The write is acknowledged after that. `number`: of the metadata that routed it.
    async fn hint_lacking(&self, responses: &WriteResponses, number: u64) {
        if responses.lacking.borrow().is_empty() || responses.status() != LevelStatus::Reached {
            return;
        }
        responses.begin_hint();
        for lacking in responses.lacking.take() {
            Box::pin(self.hint_one(&responses.nodes, lacking, number)).await;
        }
        responses.end_hint();
    }

    /// Keeps a hint for a replica that did not accept a write. The hint may be accepted later: it
    /// is not checked against guardrails, and the replica may have time or room again. If the hint
    /// is refused as well, replay records the write as missed.
    ///
    /// Records the write as missed at once in two cases: no hints are kept for the replica's
    /// datacenter, or this node's own disk failed, because hints are on the same disk in most
    /// configurations.
    async fn hint_one(&self, nodes: &Nodes, lacking: Lacking, number: u64) {
        let Some(hints) = self.hints() else { return };
        let Lacking { host, message, failure } = lacking;
        let is_own_disk = host == self.client.host
            && matches!(failure, ReplicaFailure::Refused(ReplicaError::Storage(_) | ReplicaError::Corrupt(_)));
        let is_hinted = !is_own_disk && hints.are_kept_for(nodes.datacenter_name(host));
        for (mutation, _) in message.request.mutations() {
            if !is_hinted {
                hints.note_missed(host, mutation.table(), Cause::Refused).await;
            } else if let Err(refused) = hints.store(host, mutation, number, None).await {
                tracing::debug!(target_node = %host, %refused, "a hint was not kept");
            }
        }
    }
}
