//! Writes to node-local tables that every node must have: traces, which a client may read on any
//! node.

use super::Coordinator;
use super::client::Message;
use cluster::tablets::TabletReplica;
use model::mutation::Mutation;
use replica::{Context, ReplicaRequest};
use rt::time::Duration;
use std::rc::Rc;

/// How long to wait for the other nodes. A slower node has the rows later.
const WAIT: Duration = Duration::from_secs(1);

impl Coordinator {
    /// Writes a mutation of a node-local table to all other nodes that are up. Waits for them at
    /// most one second. A failure is only logged: the rows are then missing on that node.
    pub async fn write_to_other_nodes(&self, mutation: Mutation, context: &Context) {
        let message = Rc::new(Message::new(ReplicaRequest::write(mutation)));
        let nodes = self.nodes();
        let writes = nodes.others_alive().map(|host| {
            let (client, message, context) = (self.client.clone(), message.clone(), context.clone());
            // Separate tasks continue after the wait ends.
            rt::task::spawn(async move {
                // Node-local tables are on shard 0 of each node.
                let written = client.send(TabletReplica { host, shard: 0 }, &message, &context).await;
                if let Err(failure) = written {
                    tracing::debug!(node = %host, why = failure.why(), "a node did not accept a write that is sent to all nodes");
                }
            })
        });
        let _ = rt::time::timeout(WAIT, futures_util::future::join_all(writes)).await;
    }
}
