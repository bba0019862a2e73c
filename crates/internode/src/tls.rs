//! Reloads the certificates of internode while the node runs.

use super::Internode;
use rt::Remote;
use rt::shard::PerShard;
use rt::tls::{PeerFiles, PeerTls, Stamp};

/// Reloads the files whenever they have changed since `known`, and gives them to every shard for
/// new connections. Runs until dropped, on the process's first thread, because reading files
/// blocks.
pub async fn watch_files(shards: PerShard<Internode>, files: PeerFiles, known: Stamp, remote: Remote) {
    let take = move |tls: PeerTls| {
        if let Some(internode) = shards.try_get() {
            internode.set_tls(Some(tls));
        }
    };
    files.watch(known, remote, take).await;
}
