//! Writes to tables of each node's own that are to be found on every node: traces, which a client may look for anywhere.

use super::Coordinator;
use super::client::Message;
use cluster::tablets::TabletReplica;
use model::mutation::Mutation;
use replica::{Context, Request};
use rt::time::Duration;
use std::rc::Rc;

/// Who takes longer has it later.
const MOMENT: Duration = Duration::from_secs(1);

impl Coordinator {
    /// Gives all other nodes that live a write to a table of each node's own, and waits a moment until they have it. What does not work out is
    /// missing there, and nobody's error.
    pub async fn spread(&self, mutation: Mutation, context: &Context) {
        let message = Rc::new(Message::new(Request::write(mutation)));
        let nodes = self.nodes();
        let writes = nodes.others_alive().map(|host| {
            let (client, message, context) = (self.client.clone(), message.clone(), context.clone());
            // Tasks of their own: they go on when they are not waited for any more.
            rt::task::spawn(async move {
                // Such tables are on shard 0 everywhere.
                let written = client.send(TabletReplica { host, shard: 0 }, &message, &context).await;
                if let Err(miss) = written {
                    tracing::debug!(node = %host, why = miss.why(), "a node did not take what all nodes are given");
                }
            })
        });
        let _ = rt::time::timeout(MOMENT, futures_util::future::join_all(writes)).await;
    }
}
