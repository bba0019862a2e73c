//! One message, three distances: this shard by a function call, another shard by its mailbox. The third, another node by a socket, is in
//! [`super::far`]: tables of which other nodes have copies go that way as a whole.

use super::far::serve_on;
use super::{Coordinator, count};
use crate::metadata::Table;
use crate::tablets::TabletReplica;
use model::token::Token;
use replica::wire::{Answer, Header, Request, decode_response, encode_request};
use replica::{Context, Page, ReadCommand, ReplicaError};
use rt::ShardId;

impl Coordinator {
    /// The shard of this node that holds the token's tablet; node-local tables have theirs on shard 0.
    pub(super) fn owner(&self, table: &Table, token: Token) -> ShardId {
        self.owner_of_tablet(table, table.tablets.tablet_of(token))
    }

    /// The shard of this node that holds a tablet.
    pub(super) fn owner_of_tablet(&self, table: &Table, tablet: u32) -> ShardId {
        let replicas = table.tablets.replicas(tablet);
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
            _ => Err(ReplicaError::Rejected("a read was answered otherwise".into())),
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
        let answer = serve_on(shard, bytes, context).await;
        let mut response = decode_response(answer).map_err(|error| ReplicaError::Rejected(error.to_string()))?;
        response.report_to(context, began, None);
        response.result
    }
}
