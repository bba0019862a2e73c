//! Events to clients: from wherever they happen to every registered connection of every shard.

use crate::connection::Transport;
use crate::protocol::Event;
use std::sync::Arc;

/// Sends `events` to the registered clients of all shards, in this order.
pub async fn broadcast(events: Vec<Event>) {
    let events: Arc<[Event]> = events.into();
    rt::shard::call_all(move || {
        let events = events.clone();
        async move { events.iter().for_each(deliver) }
    })
    .await;
}

/// Sends `event` to the registered clients of this shard.
pub fn deliver(event: &Event) {
    let Some(transport) = rt::shard::try_service::<Transport>() else { return };
    for connection in transport.connections() {
        connection.event(event);
    }
}
