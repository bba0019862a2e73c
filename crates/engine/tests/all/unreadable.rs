//! Truncations, drops and snapshots of tables with sstables that cannot be opened. Their rows do
//! not return after a truncation and a repair, a drop removes their files, and a snapshot has
//! them.

use crate::support::table_files::*;
use crate::support::*;
use std::path::{Path, PathBuf};

/// A way in which an sstable cannot be opened at the start. `toc` and `statistics` are the paths of
/// its components.
type Defect = fn(toc: &Path, statistics: &Path);

const DEFECTS: [Defect; 4] = [
    |_, statistics| damage(statistics),
    |_, statistics| std::fs::remove_file(statistics).unwrap(),
    // The table of contents cannot be rebuilt.
    |toc, statistics| {
        damage(statistics);
        std::fs::remove_file(toc).unwrap();
    },
    |toc, _| {
        std::fs::remove_file(toc).unwrap();
        std::fs::create_dir(toc).unwrap();
    },
];

/// Stops an engine and makes its first sstable unreadable. The files of that sstable before.
async fn make_unreadable(engine: &engine::Engine, root: &Path, defect: Defect) -> Vec<(PathBuf, Vec<u8>)> {
    engine.stop().await;
    let dir = table_dir(root);
    let toc = files(&dir, "-TOC.txt").remove(0);
    let own = toc.to_str().unwrap().trim_end_matches("TOC.txt").to_owned();
    let mut all = files(&dir, "");
    all.retain(|path| path.to_str().unwrap().starts_with(&own));
    let contents = all.into_iter().map(|path| (path.clone(), std::fs::read(path).unwrap())).collect();
    defect(&toc, Path::new(&format!("{own}Statistics.db")));
    contents
}

/// Puts files back, in place of any directory.
fn restore(files: &[(PathBuf, Vec<u8>)]) {
    for (path, contents) in files {
        if path.is_dir() {
            std::fs::remove_dir(path).unwrap();
        }
        std::fs::write(path, contents).unwrap();
    }
}

/// An sstable that cannot be opened is truncated with its table: its rows do not return when it is
/// repaired, and without it the table can be read.
#[test]
fn a_truncation_includes_sstables_that_cannot_be_opened() {
    for (i, defect) in DEFECTS.into_iter().enumerate() {
        for (others, auto_snapshot) in [(false, false), (true, false), (true, true)] {
            rt::block_on(async {
                let name = format!("truncate-unreadable-{i}-{others}-{auto_snapshot}");
                let (scratch, schema) = (Scratch::new(&name), still(0));
                let config = || engine::EngineConfig { auto_snapshot, ..config(&scratch, 16 << 20) };
                let engine = open(config(), &schema, &tablets(1)).await;
                for k in 0..if others { 2 } else { 1 } {
                    write(&engine, &schema, 1, insert(k, 0, "old")).await;
                    engine.flush(None).await.unwrap();
                }
                let before = make_unreadable(&engine, &scratch, defect).await;

                let engine = open(config(), &schema, &tablets(1)).await;
                assert_eq!(engine.metrics().sstables_unreadable, 1, "{name}");
                if others {
                    write(&engine, &schema, 1, insert(2, 0, "old")).await;
                }
                engine.truncate(schema.id, rt::time::wall_micros()).await.unwrap();
                assert_eq!(engine.metrics().sstables_unreadable, 0, "{name}");
                assert_eq!(all(&engine, &schema).await, Seen::new(), "{name}");
                let dir = table_dir(&scratch);
                assert_eq!(files(&dir, ".db"), Vec::<PathBuf>::new(), "{name}: the files are removed");
                if auto_snapshot {
                    let snapshots: Vec<_> = std::fs::read_dir(dir.join("snapshots")).unwrap().collect();
                    let snapshot = snapshots[0].as_ref().unwrap().path();
                    assert_eq!(files(&snapshot, "-Data.db").len(), 3, "{name}: it may be repaired");
                }
                write(&engine, &schema, 1, insert(3, 0, "new")).await;
                let wanted: Seen = [(3, (None, [(0, (true, Some("new".to_string())))].into()))].into();
                engine.stop().await;

                restore(&before);
                for _ in 0..2 {
                    let engine = open(config(), &schema, &tablets(1)).await;
                    assert_eq!(engine.metrics().sstables_unreadable, 0, "{name}");
                    assert_eq!(all(&engine, &schema).await, wanted, "{name}");
                    engine.stop().await;
                }
            });
        }
    }
}

/// The same if the node was down during the truncation: the start discards the sstable.
#[test]
fn a_later_epoch_includes_sstables_that_cannot_be_opened() {
    for (i, defect) in DEFECTS.into_iter().enumerate() {
        rt::block_on(async {
            let (scratch, schema) = (Scratch::new(&format!("epoch-unreadable-{i}")), still(0));
            let config = || engine::EngineConfig { auto_snapshot: true, ..config(&scratch, 16 << 20) };
            let engine = open(config(), &schema, &tablets(1)).await;
            write(&engine, &schema, 1, insert(1, 0, "old")).await;
            engine.flush(None).await.unwrap();
            make_unreadable(&engine, &scratch, defect).await;
            {
                let _lock = engine::datadir::DataDir::open(&scratch, "test", 1).await.unwrap();
                let engine = engine::Engine::open(config()).await.unwrap();
                assert!(engine.catch_up_with_epoch(&schema, &tablets(1), 7, rt::time::wall_micros()).await.unwrap());
                engine.abandon().await;
            }
            let dir = table_dir(&scratch);
            assert_eq!(files(&dir, ".db"), Vec::<PathBuf>::new(), "defect {i}");
            let engine = open(config(), &schema, &tablets(1)).await;
            assert_eq!(engine.metrics().sstables_unreadable, 0, "defect {i}");
            assert_eq!(all(&engine, &schema).await, Seen::new(), "defect {i}");
            engine.stop().await;
        });
    }
}

/// An sstable that cannot be opened is removed with its table, and the snapshot has it. `in_time`:
/// the node drops the table; otherwise it was down, and its start removes the rest.
#[test]
fn a_drop_includes_sstables_that_cannot_be_opened() {
    for (i, defect) in DEFECTS.into_iter().enumerate() {
        for (others, auto_snapshot, in_time) in
            [(false, false, true), (true, true, true), (false, false, false), (true, true, false)]
        {
            rt::block_on(async {
                let name = format!("drop-unreadable-{i}-{others}-{in_time}");
                let (scratch, schema) = (Scratch::new(&name), still(0));
                let config = || engine::EngineConfig { auto_snapshot, ..config(&scratch, 16 << 20) };
                let engine = open(config(), &schema, &tablets(1)).await;
                let sstables = if others { 2 } else { 1 };
                for k in 0..sstables {
                    write(&engine, &schema, 1, insert(k, 0, "old")).await;
                    engine.flush(None).await.unwrap();
                }
                make_unreadable(&engine, &scratch, defect).await;
                let dir = table_dir(&scratch);
                let at_micros = rt::time::wall_micros();
                if in_time {
                    let engine = open(config(), &schema, &tablets(1)).await;
                    assert_eq!(engine.metrics().sstables_unreadable, 1, "{name}");
                    engine.drop_table(schema.id, at_micros).await.unwrap();
                    engine.remove_directory(&schema).await.unwrap();
                    engine.stop().await;
                } else {
                    let _lock = engine::datadir::DataDir::open(&scratch, "test", 1).await.unwrap();
                    let engine = engine::Engine::open(config()).await.unwrap();
                    assert!(engine.sweep_dropped(&schema, at_micros).await.unwrap(), "{name}");
                    engine.abandon().await;
                }
                let left: Vec<_> = std::fs::read_dir(&dir).into_iter().flatten().map(|entry| entry.unwrap()).collect();
                assert!(left.iter().all(|entry| entry.path().is_dir()), "{name}: {left:?}");
                let snapshot = dir.join(format!("snapshots/dropped-{}-t", at_micros / 1000));
                let kept = if auto_snapshot { sstables } else { 0 };
                assert_eq!(files(&snapshot, "-Data.db").len(), kept as usize, "{name}: it may be repaired");
            });
        }
    }
}

/// A directory with an sstable is not reported as removed: the removal is repeated.
#[test]
fn a_directory_with_an_sstable_is_not_removed_silently() {
    rt::block_on(async {
        let (scratch, schema) = (Scratch::new("drop-left"), still(0));
        let engine = open(config(&scratch, 16 << 20), &schema, &tablets(1)).await;
        write(&engine, &schema, 1, insert(1, 0, "old")).await;
        engine.flush(None).await.unwrap();
        let dir = table_dir(&scratch);
        let own = files(&dir, "").into_iter().filter(|path| path.to_str().unwrap().contains("-big-"));
        let contents: Vec<_> = own.map(|path| (path.clone(), std::fs::read(path).unwrap())).collect();
        engine.drop_table(schema.id, rt::time::wall_micros()).await.unwrap();
        restore(&contents);
        let error = engine.remove_directory(&schema).await.expect_err("an sstable is left").to_string();
        assert!(error.contains("-big-") && error.contains("of a dropped table"), "{error}");
        assert!(engine.sweep_dropped(&schema, rt::time::wall_micros()).await.unwrap());
        assert!(!dir.exists());
        engine.stop().await;
    });
}

/// An administrator's snapshot has the sstables that cannot be opened. It fails if files are
/// missing without which they cannot be repaired.
#[test]
fn a_snapshot_includes_sstables_that_cannot_be_opened() {
    for (i, defect) in DEFECTS.into_iter().enumerate() {
        rt::block_on(async {
            let (scratch, schema) = (Scratch::new(&format!("snapshot-unreadable-{i}")), still(0));
            let engine = open(config(&scratch, 16 << 20), &schema, &tablets(1)).await;
            for k in 0..2 {
                write(&engine, &schema, 1, insert(k, 0, "row")).await;
                engine.flush(None).await.unwrap();
            }
            make_unreadable(&engine, &scratch, defect).await;
            let engine = open(config(&scratch, 16 << 20), &schema, &tablets(1)).await;
            assert_eq!(engine.metrics().sstables_unreadable, 1, "defect {i}");
            match engine.snapshot(schema.id, "s").await {
                Ok(()) => {
                    engine.complete_snapshot(schema.id, "s").await.unwrap();
                    engine.publish_snapshot(schema.id, "s").await.unwrap();
                    let snapshot = table_dir(&scratch).join("snapshots/s");
                    assert_eq!(files(&snapshot, "-Data.db").len(), 2, "defect {i}");
                    assert!(i < 2, "defect {i} leaves no table of contents");
                }
                Err(error) => {
                    assert!(i >= 2, "defect {i}: {error}");
                    assert!(error.to_string().contains("-TOC.txt"), "defect {i}: {error}");
                }
            }
            engine.stop().await;
        });
    }
}
