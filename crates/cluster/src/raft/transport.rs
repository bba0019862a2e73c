//! Carries the group's messages over internode.

use super::group::Group;
use super::network::{CallFailed, Transport};
use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::LocalBoxFuture;
use internode::{CallError, Caller, Internode, Peer, Refusal, RefusalCode, Verb};
use model::id::HostId;
use rt::Pieces;
use rt::sync::Deadline;
use rt::time::Duration;
use std::net::SocketAddr;
use std::rc::Rc;

/// The shard that runs the group, on every node.
const SHARD: u16 = 0;

/// Internode as the group's transport.
struct InternodeTransport(Rc<Internode>);

impl Transport for InternodeTransport {
    fn call(&self, to: HostId, message: Bytes, limit: Duration) -> LocalBoxFuture<'static, Result<Bytes, CallFailed>> {
        let internode = self.0.clone();
        let failed =
            |error: CallError| CallFailed { why: error.to_string(), may_have_been_done: error.may_have_been_done() };
        async move {
            let to = Peer { host: to, shard: SHARD };
            internode.call(to, Verb::Raft, message, Deadline::after(limit)).await.map_err(failed)
        }
        .boxed_local()
    }
}

/// Connects this node's Raft group to the other nodes. On shard 0.
pub fn connect(group: &Rc<Group>, internode: &Rc<Internode>) {
    let (answering, watching) = (Rc::downgrade(group), Rc::downgrade(internode));
    internode.serve(Verb::Raft, move |caller, message| {
        let group = answering.upgrade();
        // Of two nodes with one host id (a copied data directory), only the one at the known
        // address takes part in the group.
        let stands_elsewhere = watching.upgrade().and_then(|internode| stands_elsewhere(&internode, &caller));
        async move {
            if let Some(address) = stands_elsewhere {
                let why = format!("node {} is at {address}: {} is not its address", caller.host, caller.address);
                return Err(Refusal::new(RefusalCode::UnknownVerb, why));
            }
            let group = group.ok_or_else(|| Refusal::new(RefusalCode::Stopping, "the node is stopping"))?;
            let answer = group.handle(caller.host, message).await;
            answer.map(Pieces::from).map_err(|why| Refusal::new(RefusalCode::Failed, why))
        }
    });
    group.connect(Rc::new(InternodeTransport(internode.clone())));
}

/// The address at which another node with the caller's id answers, or answered a moment ago.
fn stands_elsewhere(internode: &Internode, caller: &Caller) -> Option<SocketAddr> {
    let known = internode.book().peers.get(&caller.host).map(|peer| peer.address);
    if known == Some(caller.address) {
        return None;
    }
    internode.liveness().answered_elsewhere(caller.host, caller.address, internode.address_change_delay())
}
