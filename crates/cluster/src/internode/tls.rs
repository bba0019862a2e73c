//! Certificates between nodes that change while the node runs.

use super::Internode;
use rt::Remote;
use rt::time::Duration;
use rt::tls::{PeerFiles, Stamp};

/// The time between two looks at the files.
const LOOK: Duration = Duration::from_secs(1);

/// Looks at the files until dropped, and hands what has changed since they were `known` to all shards: new connections use it. For the
/// process's first thread, as reading files blocks.
pub async fn watch_files(files: PeerFiles, mut known: Stamp, remote: Remote) {
    loop {
        rt::time::sleep(LOOK).await;
        let found = files.stamp();
        if found == known {
            continue;
        }
        // Should a file change while it is read, the next look sees it.
        known = found;
        match files.load() {
            Ok(tls) => {
                let replaced = remote.call_all(move || {
                    let tls = tls.clone();
                    async move {
                        if let Some(internode) = rt::shard::try_service::<Internode>() {
                            internode.set_tls(Some(tls));
                        }
                    }
                });
                if replaced.await.is_ok() {
                    tracing::info!(certificate = %files.certificate.display(), "new connections between nodes use the changed certificate");
                }
            }
            Err(error) => {
                tracing::warn!(%error, "the files for server_encryption_options have changed and cannot be used; \
                 connections go on with what they were before");
            }
        }
    }
}
