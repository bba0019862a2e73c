//! Starts of members on older copies of their data directories, and the many starts that are none.

use crate::moving::{Up, addresses, start_four, try_start};
use crate::support::{LAYERS, Scratch};
use model::id::NodeRun;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

fn copy(from: &Path, to: &Path) {
    let done = std::process::Command::new("cp").arg("-a").arg(from).arg(to).status();
    assert!(done.expect("cp runs").success());
}

/// The recorded run of a node, as another one sees it.
async fn recorded(by: &Up, of: &Up) -> Option<NodeRun> {
    let host = of.host;
    by.on(move || async move { LAYERS.metadata.get().current().topology.run(host) }).await
}

#[test]
fn an_older_copy_of_a_members_directory_is_refused() {
    let scratch = Scratch::new("runs");
    rt::block_on(async {
        let (addresses, copies) = (addresses(120), Arc::new(AtomicBool::new(true)));
        let mut nodes = start_four(&scratch, &addresses, &copies).await;
        let features = |metadata: &cluster::Metadata| metadata.topology.has_feature("NODE_RUNS");
        for node in &nodes {
            node.sees("the feature", features).await;
        }
        let backup = scratch.join("backup");
        for start in 1..4 {
            let (path, address) = nodes.pop().expect("the last one").stop().await;
            if start == 2 {
                copy(&path, &backup);
            }
            let node = try_start(path, address, addresses.clone(), copies.clone()).await.expect("it starts");
            assert_eq!(recorded(&node, &node).await.map(|run| run.number), Some(start), "before it serves");
            nodes.push(node);
        }
        let (path, address) = nodes.pop().expect("the last one").stop().await;
        let newest = scratch.join("newest");
        std::fs::rename(&path, &newest).expect("renamed");
        std::fs::rename(&backup, &path).expect("renamed");
        let refused = try_start(path.clone(), address, addresses.clone(), copies.clone()).await;
        let why = refused.err().expect("it is older");
        // Whichever is noticed first.
        assert!(why.contains("recorded run 3") || why.contains("has forgotten changes"), "{why}");
        assert!(why.contains("start a new node with an empty data directory"), "{why}");
        std::fs::remove_dir_all(&path).expect("removed");
        std::fs::rename(&newest, &path).expect("renamed");
        let node = try_start(path, address, addresses.clone(), copies.clone()).await.expect("it is the newest");
        assert_eq!(recorded(&nodes[0], &node).await.map(|run| run.number), Some(4));
        nodes.push(node);

        // All stop, and start at once.
        let mut places = Vec::new();
        for node in nodes {
            places.push(node.stop().await);
        }
        let starts =
            places.into_iter().map(|(path, address)| try_start(path, address, addresses.clone(), copies.clone()));
        for node in futures_util::future::join_all(starts).await {
            node.expect("it starts").stop().await;
        }
    });
}
