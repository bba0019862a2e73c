//! Events to clients: from wherever they happen to every registered connection of every shard.

use crate::connection::Transport;
use crate::protocol::Event;

/// Sends `event` to the registered clients of all shards.
pub async fn broadcast(event: Event) {
    rt::shard::call_all(move || {
        let event = event.clone();
        async move { deliver(&event) }
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
