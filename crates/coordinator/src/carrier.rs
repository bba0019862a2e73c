//! Carrying a write to its replicas, and seeing to those that did not take it.
//!
//! A replica that is down, or whose answer does not come, gets a hint. So does one that refuses the write, and this node itself, if the level
//! is reached all the same: an acknowledged write is on every replica, or is hinted, or is noted as missed.

use super::Consistency;
use super::client::{Message, ReplicaClient};
use super::miss::{Miss, MissClass};
use super::nodes::Nodes;
use super::round::{Lacking, Round, Share};
use super::tally::{Standing, Tally};
use crate::hints::{Cause, Hints};
use cluster::tablets::TabletReplica;
use replica::{Context, ReplicaError};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// Bytes of writes on their way to replicas, beyond which new ones are refused.
const MAX_BYTES_ON_THE_WAY: usize = 64 << 20;

/// What takes writes to replicas.
pub(super) struct Carrier {
    client: Rc<ReplicaClient>,
    hints: RefCell<Option<Rc<Hints>>>,
    /// Bytes of writes that replicas have not answered.
    on_the_way: Cell<usize>,
}

impl Carrier {
    pub fn new(client: Rc<ReplicaClient>) -> Rc<Carrier> {
        Rc::new(Carrier { client, hints: RefCell::new(None), on_the_way: Cell::new(0) })
    }

    /// What is kept for replicas that missed it.
    pub fn hints(&self) -> Option<Rc<Hints>> {
        self.hints.borrow().clone()
    }

    pub fn set_hints(&self, hints: Rc<Hints>) {
        *self.hints.borrow_mut() = Some(hints);
    }

    /// Whether so much is on its way that nothing more is taken.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.on_the_way.get() > MAX_BYTES_ON_THE_WAY
    }

    /// Takes what parts have to a replica, and tells how it went.
    pub async fn carry(
        &self,
        round: &Round,
        replica: TabletReplica,
        parts: Share,
        message: Rc<Message>,
        context: Context,
    ) {
        let mutations = message.request.mutations();
        let bytes: usize = mutations.iter().map(|(mutation, _)| mutation.as_bytes().len()).sum();
        let datacenter = round.nodes.datacenter_name(replica.host);
        let hints = self.hints().filter(|hints| replica.host != self.client.host && hints.are_kept_for(datacenter));
        let mut by_hint = round.consistency == Consistency::Any && hints.is_some();
        if !round.nodes.is_alive(replica.host) {
            round.is_heard();
            if !by_hint {
                round.change(replica, &parts, Tally::absent);
            }
        } else {
            self.on_the_way.set(self.on_the_way.get() + bytes);
            let outcome = context.deadline.limit(self.client.send(replica, &message, &context)).await;
            self.on_the_way.set(self.on_the_way.get() - bytes);
            round.is_heard();
            let miss = match outcome {
                Ok(Ok(_)) => {
                    round.was_sent.set(true);
                    round.change(replica, &parts, Tally::answered);
                    return self.provide(round, context.metadata_number).await;
                }
                Ok(Err(miss)) => miss,
                Err(_) => Miss::Refused(ReplicaError::Timeout),
            };
            let class = miss.class();
            if class != MissClass::NotSent {
                round.was_sent.set(true);
            }
            if miss.is_stale() && round.is_outdated() {
                // The level may be reached without it, before anybody does the write again.
                round.lacking.borrow_mut().push(Lacking { host: replica.host, message, miss });
                return self.provide(round, context.metadata_number).await;
            }
            by_hint &= miss.may_pass();
            if !by_hint && class != MissClass::Failed {
                round.change(replica, &parts, Tally::absent);
            } else if !by_hint {
                let node = round.nodes.address(replica.host);
                if let Miss::Refused(ReplicaError::Rejected(why)) = &miss {
                    round.refused.borrow_mut().get_or_insert_with(|| why.clone());
                }
                round.failures.borrow_mut().push((node, miss.why()));
                round.change(replica, &parts, Tally::failed);
            }
            if replica.host == self.client.host || !miss.may_pass() {
                round.lacking.borrow_mut().push(Lacking { host: replica.host, message, miss });
                return self.provide(round, context.metadata_number).await;
            }
        }
        let Some(hints) = hints else { return };
        // A hint may bring the write later, so no client may be told that it was not done.
        round.was_sent.set(true);
        let down_for = round.nodes.down_for(replica.host, rt::time::now());
        let mut kept = true;
        for (mutation, _) in mutations {
            if let Err(refused) = hints.store(replica.host, mutation, context.metadata_number, down_for).await {
                tracing::debug!(target_node = %replica.host, %refused, "a hint was not kept");
                kept = false;
            }
        }
        if by_hint {
            round.change(replica, &parts, if kept { Tally::answered } else { Tally::failed });
            self.provide(round, context.metadata_number).await;
        }
    }

    /// Once a write has reached its level, and its client may be told that it is done: sees to the replicas that did not take it. `number`: of the
    /// metadata that routed it.
    async fn provide(&self, round: &Round, number: u64) {
        if round.lacking.borrow().is_empty() || round.standing() != Standing::Reached {
            return;
        }
        for lacking in round.lacking.take() {
            Box::pin(self.provide_one(&round.nodes, lacking, number)).await;
        }
    }

    /// Keeps a hint for a replica. The hint may be accepted where the write was not: it is not checked against guardrails, and the replica may have
    /// time or room again. If it is refused as well, replay notes that the replica misses the write. Without hints that is noted at once; so it is
    /// for a disk of this node that fails, because hints are on the same disk in most configurations.
    async fn provide_one(&self, nodes: &Nodes, lacking: Lacking, number: u64) {
        let Some(hints) = self.hints() else { return };
        let Lacking { host, message, miss } = lacking;
        let is_own_disk = host == self.client.host
            && matches!(miss, Miss::Refused(ReplicaError::Storage(_) | ReplicaError::Corrupt(_)));
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
