//! Loading foreign sstables into a table with faults: power losses, no descriptors, an `upload`
//! directory without write access, truncations meanwhile.

use crate::support::uploads::*;
use crate::support::*;
use rt::sim::{Disk, Refusal};
use rt::time::Duration;
use std::path::Path;

/// A power loss at every write of a refresh: afterwards all sstables are loaded and `upload` is
/// empty, or none is and `upload` is complete.
#[test]
fn a_power_loss_at_any_write_loads_all_or_nothing() {
    let dir = Path::new("/var/messina");
    let (schema, table) = (still(0), table_dir(dir, &still(0)));
    let prepared = Disk::new(7);
    let naive = rt::sim::block_on(7, &prepared, async {
        rt::fs::create_dir_all(dir).await.unwrap();
        rt::fs::sync_dir(Path::new("/var")).await.unwrap();
        rt::fs::sync_dir(Path::new("/")).await.unwrap();
        let mut naive = Naive::default();
        let engine = open(config(dir, 16 << 20), &schema, &tablets(2)).await;
        for round in 0..2 {
            for k in 0..6 {
                let change = Change::Insert { k, c: round, value: "v".into() };
                write(&engine, &schema, &mut naive, 10, change).await;
            }
            engine.flush(None).await.unwrap();
        }
        snapshot(&engine, schema.id, "s").await;
        engine.truncate(schema.id, rt::time::wall_micros()).await.unwrap();
        upload(&table, "s").await;
        engine.stop().await;
        naive
    });
    let whole = rt::sim::block_on(8, &prepared.fork(), async { names(&table.join("upload")).await });
    assert!(whole.len() > 20);
    let mut outcomes = [0, 0];
    for cut in (1..).step_by(3) {
        let disk = prepared.fork();
        disk.power_loss_at_write(cut);
        let done = rt::sim::run(cut, &disk, async {
            let engine = open(config(dir, 16 << 20), &schema, &tablets(2)).await;
            refresh(&engine, &schema, &tablets(2)).await.unwrap();
            engine.stop().await;
        });
        disk.no_power_loss();
        disk.lose_power();
        rt::sim::block_on(cut, &disk, async {
            let engine = open(config(dir, 16 << 20), &schema, &tablets(2)).await;
            let (found, left) = (seen(&engine, &schema).await, names(&table.join("upload")).await);
            if found.is_empty() && done.is_err() {
                assert_eq!(left, whole, "nothing was loaded at {cut}");
                outcomes[0] += 1;
            } else {
                assert_eq!(found, naive.seen(), "all was loaded at {cut}");
                assert_eq!(left, Vec::<String>::new(), "at {cut}");
                outcomes[1] += 1;
            }
            engine.stop().await;
        });
        if done.is_ok() {
            break;
        }
    }
    assert!(outcomes[0] > 5 && outcomes[1] > 2, "{outcomes:?}");
}

/// A disk with a table without rows and two sstables in its `upload` directory. Also returns the
/// rows of these.
fn with_uploads(dir: &Path) -> (Disk, Naive) {
    let prepared = Disk::new(7);
    let (schema, table) = (still(0), table_dir(dir, &still(0)));
    let naive = rt::sim::block_on(7, &prepared, async {
        rt::fs::create_dir_all(dir).await.unwrap();
        let mut naive = Naive::default();
        let engine = open(config(dir, 16 << 20), &schema, &tablets(2)).await;
        for k in 0..6 {
            let change = Change::Insert { k, c: 1, value: "v".into() };
            write(&engine, &schema, &mut naive, 10, change).await;
        }
        snapshot(&engine, schema.id, "s").await;
        engine.truncate(schema.id, rt::time::wall_micros()).await.unwrap();
        upload(&table, "s").await;
        engine.stop().await;
        naive
    });
    (prepared, naive)
}

/// The process has no descriptors from some operation of a refresh on, for a while. If the refresh
/// fails, then nothing is loaded, also not by a restart.
#[test]
fn a_refresh_without_descriptors_loads_all_or_nothing() {
    let (dir, schema) = (Path::new("/var/messina"), still(0));
    let table = table_dir(dir, &schema);
    let (prepared, naive) = with_uploads(dir);
    let mut outcomes = [0, 0];
    for skip in 0.. {
        let disk = prepared.fork();
        let (loaded, left) = rt::sim::block_on(u64::from(skip), &disk, async {
            let engine = open(config(dir, 16 << 20), &schema, &tablets(2)).await;
            disk.refuse_below(&table, Refusal::NoDescriptors, skip, 4);
            let loaded = refresh(&engine, &schema, &tablets(2)).await;
            let left = disk.refuse_nothing();
            let wanted = if loaded.is_ok() { naive.seen() } else { Seen::new() };
            assert_eq!(seen(&engine, &schema).await, wanted, "after {skip} operations: {loaded:?}");
            engine.abandon().await;
            (loaded, left)
        });
        rt::sim::block_on(u64::from(skip), &disk, async {
            let engine = open(config(dir, 16 << 20), &schema, &tablets(2)).await;
            let wanted = if loaded.is_ok() { naive.seen() } else { Seen::new() };
            assert_eq!(seen(&engine, &schema).await, wanted, "after {skip} operations, restarted: {loaded:?}");
            engine.stop().await;
        });
        outcomes[usize::from(loaded.is_ok())] += 1;
        if left == 4 {
            break;
        }
    }
    assert!(outcomes[0] > 5 && outcomes[1] > 2, "{outcomes:?}");
}

/// A truncation while a refresh waits for descriptors, at every operation: no loaded row returns.
#[test]
fn a_truncation_includes_sstables_that_are_being_loaded() {
    let (dir, schema) = (Path::new("/var/messina"), still(0));
    let table = table_dir(dir, &schema);
    let (prepared, naive) = with_uploads(dir);
    let waits = Duration::from_secs(3);
    let mut failed = 0;
    for skip in 0.. {
        let disk = prepared.fork();
        let left = rt::sim::block_on(u64::from(skip), &disk, async {
            let engine = open(config(dir, 16 << 20), &schema, &tablets(2)).await;
            disk.refuse_below(&table, Refusal::NoDescriptors, skip, 1000);
            let loading = rt::task::spawn({
                let (engine, schema) = (engine.clone(), schema.clone());
                async move { refresh(&engine, &schema, &tablets(2)).await }
            });
            rt::time::sleep(waits).await;
            let left = disk.refuse_nothing();
            engine.truncate(schema.id, rt::time::wall_micros()).await.unwrap();
            let loaded = loading.await.unwrap();
            failed += usize::from(loaded.is_err());
            assert_eq!(seen(&engine, &schema).await, Seen::new(), "after {skip} operations: {loaded:?}");
            let sstables = names(&table).await.into_iter().filter(|name| name.contains("-big-")).count();
            assert_eq!(sstables, 0, "after {skip} operations: {loaded:?}");
            engine.abandon().await;
            left
        });
        rt::sim::block_on(u64::from(skip), &disk, async {
            let engine = open(config(dir, 16 << 20), &schema, &tablets(2)).await;
            assert_eq!(seen(&engine, &schema).await, Seen::new(), "after {skip} operations, restarted");
            // What was not loaded can be loaded now.
            if !names(&table.join("upload")).await.is_empty() {
                refresh(&engine, &schema, &tablets(2)).await.unwrap();
                assert_eq!(seen(&engine, &schema).await, naive.seen());
            }
            engine.stop().await;
        });
        if left == 1000 {
            assert!((5..skip as usize).contains(&failed), "{failed} of {skip} failed");
            break;
        }
    }
}

/// Uploads that were loaded and cannot be removed neither fail the refresh nor the start, and are
/// not loaded again.
#[test]
fn uploads_that_cannot_be_removed_are_loaded_once() {
    let (dir, schema) = (Path::new("/var/messina"), still(0));
    let table = table_dir(dir, &schema);
    let (disk, naive) = with_uploads(dir);
    let refuse = || disk.refuse_below(table.join("upload"), Refusal::NoAccess, 0, u32::MAX);
    rt::sim::block_on(1, &disk, async {
        let engine = open(config(dir, 16 << 20), &schema, &tablets(2)).await;
        let uploads = engine.uploaded(schema.id).await.unwrap();
        let pieces = engine.copy_uploaded(schema.id, uploads.clone(), tablets(2)).await.unwrap();
        engine.expect_loaded(schema.id, &pieces).unwrap();
        refuse();
        engine.seal_loaded(schema.id, pieces.clone(), uploads).await.unwrap();
        engine.attach_loaded(schema.id, pieces).await.unwrap();
        assert_eq!(seen(&engine, &schema).await, naive.seen());
        // Compactions may replace the pieces now.
        engine.compact_major(schema.id).await.unwrap();
        engine.abandon().await;
    });
    rt::sim::block_on(2, &disk, async {
        let engine = open(config(dir, 16 << 20), &schema, &tablets(2)).await;
        assert_eq!(seen(&engine, &schema).await, naive.seen());
        engine.truncate(schema.id, rt::time::wall_micros()).await.unwrap();
        refresh(&engine, &schema, &tablets(2)).await.expect_err("they cannot be removed yet");
        engine.stop().await;
    });
    disk.refuse_nothing();
    rt::sim::block_on(3, &disk, async {
        let engine = open(config(dir, 16 << 20), &schema, &tablets(2)).await;
        assert_eq!(refresh(&engine, &schema, &tablets(2)).await.unwrap(), 0);
        assert_eq!(names(&table.join("upload")).await, Vec::<String>::new());
        assert!(!names(&table).await.iter().any(|name| name.starts_with("replacement-")));
        assert_eq!(seen(&engine, &schema).await, Seen::new());
        engine.stop().await;
    });
}

/// Uploads were loaded and could not be removed. The operator then puts other sstables with the
/// same names into `upload`: neither a start nor a refresh removes them before they are loaded.
#[test]
fn later_uploads_with_the_names_of_loaded_ones_are_loaded() {
    let (dir, schema) = (Path::new("/var/messina"), still(0));
    let (table, disk) = (table_dir(dir, &schema), Disk::new(7));
    let mut naive = Naive::default();
    rt::sim::block_on(1, &disk, async {
        rt::fs::create_dir_all(dir).await.unwrap();
        let engine = open(config(dir, 16 << 20), &schema, &tablets(1)).await;
        for (k, name) in [(1, "first"), (2, "second")] {
            let change = Change::Insert { k, c: 1, value: name.into() };
            write(&engine, &schema, &mut naive, 10, change).await;
            snapshot(&engine, schema.id, name).await;
            engine.truncate(schema.id, rt::time::wall_micros()).await.unwrap();
        }
        upload(&table, "first").await;
        let uploads = engine.uploaded(schema.id).await.unwrap();
        let pieces = engine.copy_uploaded(schema.id, uploads.clone(), tablets(1)).await.unwrap();
        engine.expect_loaded(schema.id, &pieces).unwrap();
        disk.refuse_below(table.join("upload"), Refusal::NoAccess, 0, u32::MAX);
        engine.seal_loaded(schema.id, pieces.clone(), uploads).await.unwrap();
        engine.attach_loaded(schema.id, pieces).await.unwrap();
        engine.stop().await;
    });
    disk.refuse_nothing();
    rt::sim::block_on(2, &disk, async {
        let (to, from) = (table.join("upload"), table.join("snapshots/second"));
        let prefix = |name: &str| name.split_once("-big-").unwrap().0.to_owned();
        let first = prefix(&names(&to).await[0]);
        for name in names(&to).await {
            rt::fs::remove_file(&to.join(name)).await.unwrap();
        }
        for name in names(&from).await.into_iter().filter(|name| name.contains("-big-")) {
            let renamed = name.replace(&prefix(&name), &first);
            rt::fs::hard_link(&from.join(&name), &to.join(renamed)).await.unwrap();
        }
        let before = names(&to).await;
        let engine = open(config(dir, 16 << 20), &schema, &tablets(1)).await;
        assert_eq!(names(&to).await, before, "the start keeps them");
        assert_eq!(refresh(&engine, &schema, &tablets(1)).await.unwrap(), 1);
        assert_eq!(seen(&engine, &schema).await, naive.seen());
        assert_eq!(names(&to).await, Vec::<String>::new());
        engine.stop().await;
    });
}
