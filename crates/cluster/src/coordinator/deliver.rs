//! Delivering hints: what is kept for replicas that missed it goes to them once they answer again.

use super::Coordinator;
use super::far::{Message, Miss};
use crate::hints::Delivered;
use crate::hints::fate::{self, Fate};
use crate::hints::format::Hint;
use model::id::HostId;
use replica::wire::Request;
use replica::{Class, Context};
use rt::sync::{Cancel, Deadline};
use rt::time::Duration;

/// How long a replica may take over a hint.
const HINT_TIMEOUT: Duration = Duration::from_secs(10);

impl Coordinator {
    /// Delivers hints that wait for nodes which are alive. To be called now and then on every shard; see [`crate::hints::Hints::period`].
    pub async fn replay_hints(&self) {
        let Some(hints) = self.far.hints() else { return };
        hints.sync().await;
        for target in hints.targets() {
            if !self.nodes().is_alive(target) {
                continue;
            }
            let deliver = |hint: Hint| self.deliver_hint(target, hint);
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

    async fn deliver_hint(&self, target: HostId, hint: Hint) -> Delivered {
        let fate = fate::decide(&hint, target, &self.metadata(), rt::time::wall_micros());
        let replicas = match fate {
            Fate::Send(replicas) => replicas,
            Fate::Drop => return Delivered::Dropped,
            Fate::Expire => return Delivered::Expired(hint.mutation.table()),
        };
        let context = Context {
            class: Class::System,
            deadline: Deadline::after(HINT_TIMEOUT),
            cancel: Cancel::new(),
            trace: None,
            metadata_number: self.metadata().number,
        };
        let message = Message::new(Request::Write(hint.mutation));
        let asked = replicas.iter().map(|replica| self.far.ask(*replica, &message, &context));
        let asked = context.deadline.limit(futures_util::future::join_all(asked)).await;
        let Ok(answers) = asked else { return Delivered::NotYet };
        match answers.iter().any(|answer| answer.as_ref().is_err_and(Miss::may_pass)) {
            true => Delivered::NotYet,
            false => Delivered::Sent,
        }
    }
}
