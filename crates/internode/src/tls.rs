//! Certificates between nodes that change while the node runs.

use super::Internode;
use rt::Remote;
use rt::tls::{PeerFiles, PeerTls, Stamp};

/// Has every shard use what the files are for new connections, whenever these have changed since they were `known`, until dropped. For the
/// process's first thread, as reading files blocks.
pub async fn watch_files(files: PeerFiles, known: Stamp, remote: Remote) {
    let take = |tls: PeerTls| {
        if let Some(internode) = rt::shard::try_service::<Internode>() {
            internode.set_tls(Some(tls));
        }
    };
    files.watch(known, remote, take).await;
}
