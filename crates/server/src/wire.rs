//! The open transport to other nodes, and its end.

use internode::{Internode, Running};
use rt::shard::PerShard;
use rt::time::Duration;
use std::cell::RefCell;

/// The time limit for announcing this node's stop to the other nodes.
const ANNOUNCE: Duration = Duration::from_millis(500);

/// The open transport to other nodes, until it is closed.
pub struct OpenWire(RefCell<Option<Running>>);

impl OpenWire {
    /// Keeps a transport open.
    pub(crate) fn new(running: Running) -> OpenWire {
        OpenWire(RefCell::new(Some(running)))
    }
}

/// Announces this node's stop to the other nodes, so that they send it no more requests. On shard
/// 0.
pub async fn announce_stop(internodes: PerShard<Internode>) {
    if let Some(internode) = internodes.try_get() {
        internode.announce_stop(ANNOUNCE).await;
    }
}

/// Closes the transport, if there is one.
pub async fn close(wires: PerShard<OpenWire>) {
    let running = wires.try_get().and_then(|wire| wire.0.take());
    wires.clear();
    if let Some(running) = running {
        running.stop().await;
    }
}
