//! Hint replay: sends hints to a replica once its node is up again.

use super::Coordinator;
use super::client::Message;
use super::replica_failure::ReplicaFailure;
use crate::hints::format::Hint;
use crate::hints::replay_outcome::{self, ReplayOutcome};
use crate::hints::{Cause, Delivered, Hints, MissedWrites};
use cluster::NodeState;
use model::id::{HostId, TableId};
use replica::{Class, Context, RateLimitMode, ReplicaError, ReplicaRequest};
use rt::sync::{Cancel, Deadline};
use rt::task::Group;
use rt::time::Duration;
use std::cell::Cell;
use std::collections::BTreeSet;

/// The timeout of one hint.
const HINT_TIMEOUT: Duration = Duration::from_secs(10);

impl Coordinator {
    /// Replays the hints for all nodes that are up or have left, in the maintenance group: requests
    /// of operators, which also call this, run in the control group. Called periodically on every
    /// shard; see [`crate::hints::Hints::period`].
    pub async fn replay_hints(&self) {
        rt::task::in_group(Group::Maintenance, self.replay_all()).await;
    }

    async fn replay_all(&self) {
        let Some(hints) = self.writer.hints() else { return };
        hints.sync().await;
        let metadata = self.metadata();
        hints.forget_dropped(|table| metadata.table_by_id(table).is_some()).await;
        drop(metadata);
        self.pass_on_notes(&hints).await;
        for target in hints.targets() {
            // Hints for a node that has left the cluster are sent to the current replicas of the
            // tablet.
            if !self.nodes().is_alive(target) && !self.has_left(target) {
                continue;
            }
            let is_logged = Cell::new(false);
            let deliver = |hint: Hint| self.replay_hint(&hints, target, hint, &is_logged);
            match hints.replay(target, deliver).await {
                Ok(true) if hints.missed().iter().any(|one| one.target == target) => tracing::warn!(
                    node = %target,
                    "the hints for a node were delivered, but the node also misses writes without hints: run `messina admin resync \
                    {target}`"
                ),
                Ok(true) => tracing::info!(node = %target, "all hints for a node were delivered"),
                Ok(false) => {}
                Err(error) => {
                    tracing::error!(node = %target, %error, "hints cannot be replayed now, and are kept; retrying")
                }
            }
        }
    }

    /// Whether hints wait for nodes that are up or have left.
    pub fn has_deliverable_hints(&self) -> bool {
        let Some(hints) = self.writer.hints() else { return false };
        hints.targets().into_iter().any(|target| self.nodes().is_alive(target) || self.has_left(target))
    }

    /// Whether a node has left the cluster.
    fn has_left(&self, host: HostId) -> bool {
        self.metadata().topology.node(host).is_some_and(|node| !node.state.is_member())
    }

    /// Passes on the notes about nodes that have left: the nodes that copied their tablets miss the
    /// same writes. The tablets of a removed node were copied from all other replicas, so they miss
    /// nothing.
    async fn pass_on_notes(&self, hints: &Hints) {
        for note in hints.missed().into_iter().filter(|note| self.has_left(note.target)) {
            let state = self.metadata().topology.node(note.target).map(|node| node.state);
            let new_owners = if state == Some(NodeState::Left) { self.holders(note.table) } else { BTreeSet::new() };
            for new_owner in new_owners {
                if let Err(error) = hints.take_over_note(MissedWrites { target: new_owner, ..note }).await {
                    tracing::debug!(%error, "the record of writes that a departed node missed is kept");
                    return;
                }
            }
            hints.forget_missed(note.target, Some(&[note.table]), i64::MAX).await;
        }
    }

    /// The nodes with replicas of a table; `None`: of any table.
    fn holders(&self, table: Option<TableId>) -> BTreeSet<HostId> {
        let metadata = self.metadata();
        let tables = metadata.tables().filter(|known| table.is_none_or(|table| table == known.schema.id));
        let holders = tables.flat_map(|known| {
            (0..known.tablets.count()).flat_map(|tablet| known.tablets.replicas(tablet)).map(|replica| replica.host)
        });
        holders.collect()
    }

    /// Sends a hint to its replicas. A hint that a replica refuses permanently is recorded as a
    /// missed write. `is_logged`: a refusal of this replay has been logged already.
    async fn replay_hint(&self, hints: &Hints, target: HostId, hint: Hint, is_logged: &Cell<bool>) -> Delivered {
        let outcome = replay_outcome::decide(&hint, target, &self.metadata(), rt::time::wall_micros());
        let replicas = match outcome {
            ReplayOutcome::Send(replicas) => replicas,
            ReplayOutcome::Drop => return Delivered::Dropped,
            ReplayOutcome::Expire => return Delivered::Expired(hint.mutation.table()),
        };
        let table = hint.mutation.table();
        let context = Context {
            class: Class::Maintenance,
            deadline: Deadline::after(HINT_TIMEOUT),
            cancel: Cancel::new(),
            trace: None,
            metadata_number: self.metadata().number,
            large_data: None,
            rate_limit: RateLimitMode::Off,
        };
        let message = Message::new(ReplicaRequest::write(hint.mutation));
        let asked = replicas.iter().map(|replica| self.client.send(*replica, &message, &context));
        let answers = futures_util::future::join_all(asked).await;
        let mut refusals = Vec::new();
        for (replica, answer) in replicas.iter().zip(answers) {
            match answer {
                Ok(_) => {}
                Err(ReplicaFailure::Refused(ReplicaError::NoSuchTable)) => match self.metadata().table_by_id(table) {
                    Some(_) => return Delivered::NotYet,
                    None => return Delivered::Dropped,
                },
                Err(failure) if failure.may_pass() => return Delivered::NotYet,
                Err(failure) => refusals.push((replica.host, failure)),
            }
        }
        if refusals.is_empty() {
            return Delivered::Sent;
        }
        for (host, failure) in refusals {
            if !is_logged.replace(true) {
                let why = failure.why();
                tracing::error!(node = %host, table_id = %table.0, why,
                    "node refused a hinted write; the write is missing there. Fix the cause, then run `messina admin resync {host}`");
            }
            if let Err(error) = hints.note_missed(host, table, Cause::Refused).await {
                tracing::debug!(%error, "a hint is kept");
                return Delivered::NotYet;
            }
        }
        Delivered::Refused
    }
}
