//! How this node leaves its cluster, from its last tablet on. Moving the tablets is the work of the
//! leader ([`cluster::topology::leave`]).
//!
//! The order matters. Requests of clients end before the hints are handed over, because they could
//! store more. The node gives up its vote before it is recorded as left: from then on others reject
//! it, and a group of two voters needs both to agree.

use super::is_down;
use crate::layers::Layers;
use crate::wire;
use cluster::metadata::ChangeError;
use cluster::topology::leave;
use coordinator::resync;
use internode::AddressBook;
use rt::time::Duration;

/// How long hints for nodes that are up may take to be delivered. Afterwards other nodes take them
/// over.
const DELIVERY: Duration = Duration::from_secs(60);
/// The interval at which undelivered hints are looked for.
const LOOK: Duration = Duration::from_millis(50);
/// The pause between attempts.
const PAUSE: Duration = Duration::from_secs(1);

/// Leaves the cluster, as the metadata request. `end_requests` closes the ports for clients. The
/// error is the reason why the node stays.
pub async fn leave(layers: Layers, end_requests: impl AsyncFnOnce()) -> Result<(), String> {
    leave::wait_for_last_tablet(layers.metadata, is_down(layers.internode)).await?;
    tracing::info!("this node has no tablets any more: it ends the requests of clients and hands over its hints");
    end_requests().await;
    deliver_hints(layers).await;
    hand_over(layers).await?;
    leave::wait_for_other_voters(layers.metadata).await?;
    // The metadata service removes files of tablets that have moved, in the background, and ends
    // now.
    if let Err(why) = layers.metadata.get().finish_removals().await {
        tracing::warn!(why, "files of tablets that have moved away are left in the data directory");
    }
    record_departure(layers).await?;
    close(layers).await;
    Ok(())
}

/// Delivers hints to nodes that are up.
async fn deliver_hints(layers: Layers) {
    let delivering = rt::shard::call_all(move || async move {
        let Some(coordinator) = layers.coordinator.try_get() else { return };
        while coordinator.has_deliverable_hints() {
            coordinator.replay_hints().await;
            if rt::shard::stopping().unless(rt::time::sleep(LOOK)).await.is_none() {
                return;
            }
        }
    });
    if rt::time::timeout(DELIVERY, delivering).await.is_err() {
        tracing::warn!(limit = ?DELIVERY, "hints could not be delivered in time: other nodes take them over");
    }
}

/// Hands over the hints for nodes that are down, and which nodes miss writes. Retries until other
/// nodes have it, or the request is cancelled.
async fn hand_over(layers: Layers) -> Result<(), String> {
    while let Err(why) = resync::hand_over(layers.resync()).await {
        tracing::warn!(why, "this node cannot leave yet; retrying");
        if rt::shard::stopping().unless(rt::time::sleep(PAUSE)).await.is_none() {
            return Err("the node is stopping".to_owned());
        }
        leave::wait_for_last_tablet(layers.metadata, is_down(layers.internode)).await?;
    }
    Ok(())
}

/// Records the departure in the metadata. Other nodes reject this node from then on, so the
/// response may be lost. Then the rejection confirms the departure.
async fn record_departure(layers: Layers) -> Result<(), String> {
    let runs = layers.runs.get();
    loop {
        let recorded = tokio::select! {
            recorded = leave::finish(layers.metadata) => recorded,
            _ = runs.left() => return Ok(()),
        };
        match recorded {
            Ok(()) => {
                runs.leave("this node has left the cluster");
                return Ok(());
            }
            Err(ChangeError::Refused(why)) => return Err(why),
            // Others may have closed the connections to this node because it has left.
            Err(error) => {
                tracing::info!(%error, "it is unknown whether the departure of this node is recorded; retrying")
            }
        }
        runs.ask().await;
        if rt::shard::stopping().unless(rt::time::sleep(PAUSE)).await.is_none() {
            return Err("the node is stopping".to_owned());
        }
    }
}

/// Ends what this node does as a member. Administration and metrics continue until it is stopped.
async fn close(layers: Layers) {
    if let Some(metadata) = layers.metadata.try_get() {
        metadata.stop().await;
    }
    internode::publish_book(layers.internode, AddressBook::default()).await;
    wire::close(layers.wire).await;
}
