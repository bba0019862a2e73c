//! Events to clients: from wherever they happen to every registered connection of every shard.

use crate::connection::{Server, Service};
use crate::protocol::Event;
use rt::shard::PerShard;
use std::sync::Arc;

/// Sends `events` to the registered clients of all shards, in this order.
pub async fn broadcast<S: Service>(servers: PerShard<Server<S>>, events: Vec<Event>) {
    let events: Arc<[Event]> = events.into();
    rt::shard::call_all(move || {
        let events = events.clone();
        async move { events.iter().for_each(|event| deliver(servers, event)) }
    })
    .await;
}

/// Sends `event` to the registered clients of this shard.
fn deliver<S: Service>(servers: PerShard<Server<S>>, event: &Event) {
    let Some(server) = servers.try_get() else { return };
    for connection in server.transport.connections() {
        connection.event(event);
    }
}
