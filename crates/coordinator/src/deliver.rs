//! Delivering hints: what is kept for replicas that missed it goes to them once they answer again.

use super::Coordinator;
use super::client::Message;
use super::miss::Miss;
use crate::hints::fate::{self, Fate};
use crate::hints::format::Hint;
use crate::hints::{Cause, Delivered, Hints};
use model::id::HostId;
use replica::{Class, Context, ReplicaError, Request};
use rt::sync::{Cancel, Deadline};
use rt::time::Duration;
use std::cell::Cell;

/// How long a replica may take over a hint.
const HINT_TIMEOUT: Duration = Duration::from_secs(10);

impl Coordinator {
    /// Delivers hints that wait for nodes which are alive. To be called now and then on every shard; see [`crate::hints::Hints::period`].
    pub async fn replay_hints(&self) {
        let Some(hints) = self.carrier.hints() else { return };
        hints.sync().await;
        for target in hints.targets() {
            if !self.nodes().is_alive(target) {
                continue;
            }
            let is_told = Cell::new(false);
            let deliver = |hint: Hint| self.deliver_hint(&hints, target, hint, &is_told);
            match hints.replay(target, deliver).await {
                Ok(true) if hints.missed().iter().any(|one| one.target == target) => tracing::warn!(
                    target_node = %target,
                    "the hints for a node were delivered, but it also missed writes that were not kept: run `messina admin resync {target}`"
                ),
                Ok(true) => tracing::info!(target_node = %target, "all hints for a node were delivered"),
                Ok(false) => {}
                Err(error) => tracing::error!(target_node = %target, %error, "hints cannot be replayed"),
            }
        }
    }

    /// Sends a hint to its replicas. What they will never take is noted as missed by them; `is_told`: the log has named the reason already.
    async fn deliver_hint(&self, hints: &Hints, target: HostId, hint: Hint, is_told: &Cell<bool>) -> Delivered {
        let fate = fate::decide(&hint, target, &self.metadata(), rt::time::wall_micros());
        let replicas = match fate {
            Fate::Send(replicas) => replicas,
            Fate::Drop => return Delivered::Dropped,
            Fate::Expire => return Delivered::Expired(hint.mutation.table()),
        };
        let table = hint.mutation.table();
        let context = Context {
            class: Class::Maintenance,
            deadline: Deadline::after(HINT_TIMEOUT),
            cancel: Cancel::new(),
            trace: None,
            metadata_number: self.metadata().number,
            large_data: None,
        };
        let message = Message::new(Request::write(hint.mutation));
        let asked = replicas.iter().map(|replica| self.client.send(*replica, &message, &context));
        let asked = context.deadline.limit(futures_util::future::join_all(asked)).await;
        let Ok(answers) = asked else { return Delivered::NotYet };
        let mut refusals = Vec::new();
        for (replica, answer) in replicas.iter().zip(answers) {
            match answer {
                Ok(_) => {}
                Err(Miss::Refused(ReplicaError::NoSuchTable)) => match self.metadata().table_by_id(table) {
                    Some(_) => return Delivered::NotYet,
                    None => return Delivered::Dropped,
                },
                Err(miss) if miss.may_pass() => return Delivered::NotYet,
                Err(miss) => refusals.push((replica.host, miss)),
            }
        }
        if refusals.is_empty() {
            return Delivered::Sent;
        }
        for (host, miss) in refusals {
            if !is_told.replace(true) {
                let why = miss.why();
                tracing::error!(target_node = %host, table = %table.0, why, "a node refuses a hint: it misses the write");
            }
            hints.note_missed(host, table, Cause::Refused).await;
        }
        Delivered::Refused
    }
}
