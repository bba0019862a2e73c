//! Sends a write to one replica, and keeps a hint if the replica does not accept it.
//!
//! A replica that is down or does not respond gets a hint. A replica that refuses the write gets
//! one if the level is reached nevertheless; so does this node itself. A replica that refuses it by
//! a rate limit gets the write again if the level is reached, this time without a limit.
//!
//! Invariant: an acknowledged write is on every replica, or is hinted, or is recorded as missed. A
//! write is acknowledged after this is done for replicas that were down, and for replicas that
//! failed before the level was reached. If the disk fails to record it, the write fails. For a
//! replica that has not responded by then it is done later.

use super::Consistency;
use super::client::{Message, ReplicaClient};
use super::error::CoordinatorError;
use super::replica_failure::{FailureClass, ReplicaFailure, SendError};
use super::response_tracker::{LevelStatus, ResponseTracker};
use super::write_responses::{GroupIndexes, Lacking, WriteResponses};
use crate::hints::{Cause, Hints, Refused};
use cluster::tablets::TabletReplica;
use replica::{Context, RateLimitMode, ReplicaError};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// The most bytes of writes in flight to replicas. Beyond it new writes are refused as Overloaded.
const MAX_BYTES_IN_FLIGHT: usize = 64 << 20;

/// Sends writes to replicas. One for each shard.
pub(super) struct ReplicaWriter {
    client: Rc<ReplicaClient>,
    hints: RefCell<Option<Rc<Hints>>>,
    /// Bytes of writes to which replicas have not responded, or whose hints are not stored yet.
    bytes_in_flight: Cell<usize>,
}

/// Counts the bytes of a write to a replica until it is dropped.
struct InFlight<'a>(&'a ReplicaWriter, usize);

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        let bytes = &self.0.bytes_in_flight;
        debug_assert!(bytes.get() >= self.1, "the bytes of each write are counted");
        bytes.set(bytes.get() - self.1);
    }
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

    /// The store for hints, if writes that need a hint must be refused: too many hints are being
    /// stored.
    pub fn hints_if_full(&self) -> Option<Rc<Hints>> {
        self.hints().filter(|hints| hints.is_full())
    }

    fn in_flight(&self, message: &Message) -> InFlight<'_> {
        let bytes: usize = message.request.mutations().iter().map(|(mutation, _)| mutation.as_bytes().len()).sum();
        self.bytes_in_flight.set(self.bytes_in_flight.get() + bytes);
        InFlight(self, bytes)
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
        // A write is in memory until its hint is stored.
        let _in_flight = self.in_flight(&message);
        let mutations = message.request.mutations();
        let datacenter = responses.nodes.datacenter_name(replica.host);
        let hints = self.hints().filter(|hints| replica.host != self.client.host && hints.are_kept_for(datacenter));
        let decides = matches!(context.rate_limit, RateLimitMode::Deferred { .. });
        let mut by_hint = responses.consistency == Consistency::Any && hints.is_some();
        if !responses.nodes.is_alive(replica.host) {
            responses.replica_done();
            // The other replicas may refuse the write. Then there must be no hint either.
            let waits = decides && hints.is_some() && responses.has_live(&groups);
            by_hint &= !waits;
            if !by_hint {
                responses.update_trackers(replica, &groups, ResponseTracker::absent);
            }
            if waits {
                responses.was_sent.set(true);
                let failure = ReplicaFailure::Send(SendError::Down(String::new()));
                self.lacks(responses, Lacking { replica, message, failure }, &context).await;
                return responses.end_hint();
            }
        } else {
            let outcome = self.client.send(replica, &message, &context).await;
            responses.replica_done();
            let failure = match outcome {
                Ok(_) => {
                    responses.was_sent.set(true);
                    responses.update_trackers(replica, &groups, ResponseTracker::answered);
                    return self.complete_lacking(responses, &context).await;
                }
                Err(failure) => failure,
            };
            let class = failure.class();
            if class != FailureClass::NotSent {
                responses.was_sent.set(true);
            }
            if failure.is_stale() && responses.mark_outdated() {
                // The level may still be reached without this replica, before the request is
                // repeated.
                return self.lacks(responses, Lacking { replica, message, failure }, &context).await;
            }
            // The other replicas may refuse the write: then there must be no hint.
            let waits = decides && hints.is_some() && failure.may_pass();
            by_hint &= failure.may_pass() && !waits;
            if !by_hint && class != FailureClass::Failed {
                responses.update_trackers(replica, &groups, ResponseTracker::absent);
            } else if let ReplicaFailure::Refused(ReplicaError::RateLimited(refused)) = &failure {
                responses.rate_limited.set(Some(*refused));
                responses.update_trackers(replica, &groups, ResponseTracker::failed);
            } else if !by_hint {
                let node = responses.nodes.address(replica.host);
                if let Some(error) = CoordinatorError::of_refused_write(&failure) {
                    responses.refused.borrow_mut().get_or_insert(error);
                }
                responses.failures.borrow_mut().push((node, failure.why()));
                responses.update_trackers(replica, &groups, ResponseTracker::failed);
            }
            if waits || replica.host == self.client.host || !failure.may_pass() {
                self.lacks(responses, Lacking { replica, message, failure }, &context).await;
                // After the end of the request, nothing else keeps this hint.
                if waits && !responses.is_open.get() {
                    self.hint_unanswered(responses, context.metadata_number).await;
                }
                return;
            }
            responses.begin_hint();
        }
        let Some(hints) = hints else { return responses.end_hint() };
        // A hint may apply the write later, so the error to the client must not claim that the
        // write was not applied.
        responses.was_sent.set(true);
        let down_for = responses.nodes.down_for(replica.host, rt::time::now());
        let mut kept = true;
        for (mutation, _) in mutations {
            if let Err(refused) = hints.store(replica.host, mutation, context.metadata_number, down_for).await {
                responses.not_stored(&refused);
                kept = false;
            }
        }
        if by_hint {
            responses.update_trackers(
                replica,
                &groups,
                if kept { ResponseTracker::answered } else { ResponseTracker::failed },
            );
            self.complete_lacking(responses, &context).await;
        }
        responses.end_hint();
    }

    /// Records that a replica did not accept the write.
    async fn lacks(&self, responses: &WriteResponses, lacking: Lacking, context: &Context) {
        responses.lacking.borrow_mut().push(lacking);
        self.complete_lacking(responses, context).await;
    }

    /// Completes the write on the replicas that did not accept it, once it has reached its level.
    /// The write is acknowledged after that. They get a hint, or, after a refusal by a rate limit,
    /// the write again.
    async fn complete_lacking(&self, responses: &WriteResponses, context: &Context) {
        if responses.lacking.borrow().is_empty() || responses.status() != LevelStatus::Reached {
            return;
        }
        responses.begin_hint();
        for lacking in responses.lacking.take() {
            if !lacking.failure.is_rate_limited() {
                Box::pin(self.hint_one(responses, lacking, context.metadata_number)).await;
            } else if let Some(lacking) = Box::pin(self.send_again(lacking, context)).await {
                Box::pin(self.hint_one(responses, lacking, context.metadata_number)).await;
            }
        }
        responses.end_hint();
    }

    /// Keeps hints after a write has failed: see [`ReplicaWriter::hint_unanswered`].
    pub fn hint_after_failure(self: &Rc<Self>, responses: &Rc<WriteResponses>, context: &Context) {
        let is_due = responses.lacking.borrow().iter().any(|lacking| self.is_unanswered(lacking));
        if is_due && responses.rate_limited.get().is_none() {
            let (writer, responses, number) = (self.clone(), responses.clone(), context.metadata_number);
            rt::task::spawn(async move { writer.hint_unanswered(&responses, number).await }).detach();
        }
    }

    /// Whether another node did not respond, or is down.
    fn is_unanswered(&self, lacking: &Lacking) -> bool {
        let is_down = matches!(lacking.failure, ReplicaFailure::Send(SendError::Down(_)));
        lacking.replica.host != self.client.host && (is_down || lacking.failure.may_pass())
    }

    /// Keeps the hints for replicas that did not respond or are down, if a write failed and no rate
    /// limit refused it: some replicas may have it.
    async fn hint_unanswered(&self, responses: &WriteResponses, number: u64) {
        if responses.rate_limited.get().is_some() {
            return;
        }
        for lacking in responses.lacking.take().into_iter().filter(|lacking| self.is_unanswered(lacking)) {
            let message = lacking.message.clone();
            let _in_flight = self.in_flight(&message);
            self.hint_one(responses, lacking, number).await;
        }
    }

    /// Sends a write, which is accepted now, to a replica that refused it by a rate limit. The
    /// replica has counted it. Returns the writes that the replica still lacks.
    async fn send_again(&self, lacking: Lacking, context: &Context) -> Option<Lacking> {
        let Lacking { replica, message, .. } = lacking;
        // It has not performed the write: so it has not charged its bytes.
        let unlimited = Context { rate_limit: context.rate_limit.continued(), ..context.clone() };
        // A message has the mode of its first request.
        let again = Message::new(message.request.clone());
        let failure = self.client.send(replica, &again, &unlimited).await.err()?;
        Some(Lacking { replica, message, failure })
    }

    /// Stores a hint for a replica that did not accept a write. The replica may accept the hint
    /// later: hints are not checked against guardrails, and the replica may have time or room
    /// again. If the hint is refused as well, replay records the write as missed.
    ///
    /// Records the write as missed at once in two cases: the replica's datacenter gets no hints, or
    /// this node's own disk failed. In most configurations hints are on the same disk.
    async fn hint_one(&self, responses: &WriteResponses, lacking: Lacking, number: u64) {
        let Some(hints) = self.hints() else { return };
        let nodes = &responses.nodes;
        let Lacking { replica: TabletReplica { host, .. }, message, failure } = lacking;
        if !nodes.is_member(host) {
            // Another node takes over its replicas.
            return;
        }
        let down_for = nodes.down_for(host, rt::time::now());
        let is_own_disk = host == self.client.host
            && matches!(failure, ReplicaFailure::Refused(ReplicaError::Storage(_) | ReplicaError::Corrupt(_)));
        let is_hinted = !is_own_disk && hints.are_kept_for(nodes.datacenter_name(host));
        for (mutation, _) in message.request.mutations() {
            let stored = match is_hinted {
                true => hints.store(host, mutation, number, down_for).await,
                false => hints.note_missed(host, mutation.table(), Cause::Refused).await.map_err(Refused::from),
            };
            if let Err(refused) = stored {
                responses.not_stored(&refused);
            }
        }
    }
}
