//! Losses that a start accepts.

use super::*;
use std::path::{Path, PathBuf};

/// Makes replay filters by a TRUNCATE, and removes them.
async fn lose_filters(disk: Disk) -> Result<(), String> {
    make("create keyspace", 1).await?;
    make("create table", 1).await?;
    fill().await?;
    execute("TRUNCATE q.t").await?;
    // The inventory names them.
    rt::time::sleep(Duration::from_secs(1)).await;
    let is_filters =
        |path: &Path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("replay-marks-"));
    let lost: Vec<PathBuf> = disk.files().into_iter().map(|(path, _)| path).filter(|path| is_filters(path)).collect();
    assert!(!lost.is_empty(), "{:?}", disk.files());
    for path in lost {
        rt::fs::remove_file(&path).await.map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// The inventory cannot be written at first, after a start that accepts a loss. Later starts do not
/// report that loss again.
#[test]
fn an_accepted_loss_is_not_reported_again() {
    let accepting = || StackConfig { accept_loss: true, ..config(false) };
    for times in 0..4 {
        let (mut world, disk, shared) = new_node(40, false);
        let own = disk.clone();
        run_node(&mut world, &disk, false, move |_| lose_filters(own.clone()), &shared);
        let nothing = |_| async { Ok(()) };
        let refused = try_node(&mut world, &disk, || config(false), nothing, &shared).expect_err("a loss");
        assert!(refused.contains("replay-marks-"), "{refused}");

        disk.refuse_below("/node/messina.stamp.tmp", Refusal::NoSpace, 0, times);
        // Longer than the pause between two attempts.
        let retried = |_| async {
            rt::time::sleep(Duration::from_secs(60)).await;
            Ok(())
        };
        try_node(&mut world, &disk, accepting, retried, &shared).expect("the loss is accepted");
        assert_eq!(disk.refuse_nothing(), 0, "the inventory is written at last");
        if let Err(why) = try_node(&mut world, &disk, || config(false), nothing, &shared) {
            panic!("after {times} failures: {why}");
        }
    }
}
