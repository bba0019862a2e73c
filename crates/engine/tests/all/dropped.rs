//! Files that an interrupted drop removed stay removed, even after a later power loss.
//!
//! RUSTFLAGS="--cfg tokio_unstable" CARGO_TARGET_DIR=target/sim cargo test -p messina-engine
//! --features sim --test all dropped::

use crate::support::*;
use engine::Engine;
use rt::sim::{Disk, Unsynced};
use std::path::{Path, PathBuf};

/// The files of the table's own directory, without subdirectories.
fn left(disk: &Disk) -> Vec<PathBuf> {
    let files = disk.files().into_iter().map(|(file, _)| file);
    files
        .filter(|file| file.parent().is_some_and(|dir| dir.starts_with("/data/data/ks") && !dir.ends_with("mine")))
        .collect()
}

/// A killed process leaves the removal of names to the kernel. The next start finds nothing to
/// remove, and must make the removal durable nevertheless.
#[test]
fn files_removed_by_a_killed_drop_do_not_return_after_a_power_loss() {
    // A start that learns of the drop only while it runs removes the directory in the usual way.
    for (with_snapshot, at_start) in [(false, true), (true, true), (false, false)] {
        let (schema, dir, disk) = (schema(0, |_| {}), Path::new("/data"), Disk::new(3));
        disk.set_unsynced(Unsynced::Lost);
        rt::sim::block_on(1, &disk, async {
            let engine = open(config(dir, 16 << 20), &schema, &tablets(1)).await;
            let change = Change::Insert { k: 1, c: 1, value: "v".into() };
            engine.apply_durably(&change.mutation(&schema, 1), &key(1)).await.unwrap();
            engine.flush(None).await.unwrap();
            if with_snapshot {
                snapshot(&engine, schema.id, "mine").await;
            }
            assert!(!left(&disk).is_empty());
            // So far a drop comes before it is killed.
            if with_snapshot {
                for file in left(&disk) {
                    rt::fs::remove_file(&file).await.unwrap();
                }
            } else {
                rt::fs::remove_dir_all(left(&disk)[0].parent().unwrap()).await.unwrap();
            }
        });
        assert_eq!(left(&disk), [] as [PathBuf; 0], "the page cache has it so");
        rt::sim::block_on(2, &disk, async {
            let engine = Engine::open(config(dir, 16 << 20)).await.unwrap();
            match at_start {
                true => assert!(
                    !engine.sweep_dropped(&schema, rt::time::wall_micros()).await.unwrap(),
                    "there is nothing to remove"
                ),
                false => engine.remove_directory(&schema).await.unwrap(),
            }
            engine.stop().await;
        });
        // From now on the table may be forgotten.
        disk.lose_power();
        assert_eq!(left(&disk), [] as [PathBuf; 0], "with a snapshot: {with_snapshot}, at start: {at_start}");
    }
}
