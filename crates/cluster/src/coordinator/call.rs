//! One message, three distances: this shard by a function call, another shard by its mailbox, another node by a socket (which
//! comes with the cluster).

use super::{Coordinator, count};
use crate::metadata::Table;
use crate::tablets::TabletReplica;
use model::token::Token;
use replica::wire::{Answer, Header, Request, decode_response, encode_request};
use replica::{Context, Page, ReadCommand, Replica, ReplicaError};
use rt::ShardId;

impl Coordinator {
    /// The shard of this node that holds the token's tablet; node-local tables have theirs on shard 0.
    pub(super) fn owner(&self, table: &Table, token: Token) -> ShardId {
        let replicas = table.tablets.replicas(table.tablets.tablet_of(token));
        let own = replicas.iter().find(|replica: &&TabletReplica| replica.host == self.host);
        ShardId(own.map_or(0, |replica| replica.shard))
    }

    pub(super) async fn call_read(
        &self,
        shard: ShardId,
        command: ReadCommand,
        context: &Context,
    ) -> Result<Page, ReplicaError> {
        if shard == rt::shard::this() {
            return self.replica.read(&command, context).await;
        }
        // Boxed: the far distances must not make the near one's future larger.
        match Box::pin(self.ask(shard, Request::Read(command), context)).await? {
            Answer::Page(page) => Ok(page),
            Answer::Written => Err(ReplicaError::Rejected("a read was answered as a write".into())),
        }
    }

    /// Asks another shard of this node. Dropping the future stops the work there.
    pub(super) async fn ask(
        &self,
        shard: ShardId,
        request: Request,
        context: &Context,
    ) -> Result<Answer, ReplicaError> {
        count(&self.counters.cross_shard);
        let began = context.trace.as_ref().map(|trace| {
            trace.event(format!("Sending a request to shard {}", shard.0));
            trace.elapsed_micros()
        });
        let bytes = encode_request(&Header::of(context), &request);
        let answer =
            rt::shard::call(shard, move || async move { rt::shard::service::<Replica>().serve(bytes).await }).await;
        let response = decode_response(answer).map_err(|error| ReplicaError::Rejected(error.to_string()))?;
        if let (Some(trace), Some(began)) = (&context.trace, began) {
            trace.absorb(began, response.events);
        }
        response.result
    }
}
