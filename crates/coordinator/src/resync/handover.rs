//! The handover of a node that leaves the cluster: another node gets its hints for nodes that are
//! down, and its entries of nodes that miss writes.

use super::{ANSWER, FORMAT, Request, ResyncShards, here};
use crate::hints::format::{self, Hint};
use crate::hints::{Delivered, Hints, MissedWrites};
use bytes::Bytes;
use internode::{Internode, NodeStatus, Peer, Refusal, Verb};
use model::id::HostId;
use rt::Pieces;
use rt::sync::Deadline;
use std::cell::RefCell;
use std::rc::Rc;

/// Hands over the hints of all shards, and the entries of this node. The error says why some are
/// not handed over. A repeated call continues with these.
pub async fn hand_over(shards: ResyncShards) -> Result<(), String> {
    let hints = rt::shard::call_all(move || async move {
        match shards.own_hints() {
            Some(hints) => hand_over_hints(shards, &hints).await,
            None => Ok(()),
        }
    });
    hints.await.into_iter().collect::<Result<(), String>>()?;
    let own = shards.cluster.metadata.get().info().host_id;
    // After the hints: a file of hints that cannot be read becomes an entry.
    let notes: Vec<MissedWrites> = here(shards).await.into_iter().filter(|note| note.target != own).collect();
    match notes.is_empty() {
        true => Ok(()),
        false => ask_one(shards, None, &Request::TakeOver(notes)).await,
    }
}

async fn hand_over_hints(shards: ResyncShards, hints: &Hints) -> Result<(), String> {
    for target in hints.targets() {
        let refusal = RefCell::new(None);
        let give = |hint: Hint| {
            let (request, refusal) = (Request::TakeOverHint { target, record: format::encode(&hint) }, &refusal);
            async move {
                match ask_one(shards, Some(target), &request).await {
                    Ok(()) => Delivered::Sent,
                    Err(why) => {
                        refusal.replace(Some(why));
                        Delivered::NotYet
                    }
                }
            }
        };
        let given = hints.replay(target, give).await.map_err(|error| error.to_string())?;
        if !given {
            let why = refusal.take().unwrap_or_else(|| "they are being delivered".to_owned());
            return Err(format!("the hints for node {target} are not handed over yet: {why}"));
        }
    }
    Ok(())
}

/// Sends a request to the nodes that are up, except `except`, one after the other, until one of
/// them accepts it. The error comes from the last node asked.
async fn ask_one(shards: ResyncShards, except: Option<HostId>, request: &Request) -> Result<(), String> {
    let internode = shards.cluster.internode.try_get().ok_or("this node has no connections to others")?;
    let body = postcard::to_stdvec(request).map_err(|error| error.to_string())?;
    let body = Bytes::from([&[FORMAT], &body[..]].concat());
    let mut why = "no other node is up".to_owned();
    for host in others(&internode).into_iter().filter(|host| Some(*host) != except) {
        let asked = internode.call(Peer { host, shard: 0 }, Verb::Missed, body.clone(), Deadline::after(ANSWER)).await;
        match asked {
            Ok(_) => return Ok(()),
            Err(error) => why = format!("node {host}: {error}"),
        }
    }
    Err(why)
}

fn others(internode: &Rc<Internode>) -> Vec<HostId> {
    let liveness = internode.liveness();
    liveness.nodes.iter().filter(|(_, node)| node.status == NodeStatus::Up).map(|(host, _)| *host).collect()
}

/// Takes over the entries of a node that leaves.
pub(super) async fn take_over_notes(shards: ResyncShards, notes: Vec<MissedWrites>) -> Result<Pieces, Refusal> {
    let hints = own_hints(shards)?;
    for note in notes {
        hints.take_over_note(note).await.map_err(Refusal::failed)?;
    }
    Ok(Pieces::default())
}

/// Takes over a hint of a node that leaves.
pub(super) async fn take_over_hint(shards: ResyncShards, target: HostId, record: Bytes) -> Result<Pieces, Refusal> {
    let hint = format::decode(&record).ok_or_else(|| Refusal::malformed("not a hint"))?;
    own_hints(shards)?.take_over(target, &hint).await.map_err(Refusal::failed)?;
    Ok(Pieces::default())
}

fn own_hints(shards: ResyncShards) -> Result<Rc<Hints>, Refusal> {
    shards.own_hints().ok_or_else(|| Refusal::failed("the node is starting or stopping"))
}
