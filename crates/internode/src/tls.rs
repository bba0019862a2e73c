//! Reloads the certificates of internode while the node runs.

use super::Internode;
use rt::Remote;
use rt::tls::{PeerFiles, PeerTls, Stamp};

/// Reloads the files whenever they have changed since `known`, and gives them to every shard for
/// new connections. Runs until dropped, on the process's first thread, because reading files
/// blocks.
pub async fn watch_files(files: PeerFiles, known: Stamp, remote: Remote) {
    let take = |tls: PeerTls| {
        if let Some(internode) = rt::shard::try_service::<Internode>() {
            internode.set_tls(Some(tls));
        }
    };
    files.watch(known, remote, take).await;
}
