//! Snapshots and requested compactions beside operations that remove sstables. No operation fails
//! because of another one, and a snapshot that succeeds has all files of its sstables. Missing
//! files fail a snapshot, and not a drop.

use crate::support::*;
use engine::{Engine, EngineError, UNFINISHED_SNAPSHOT};
use model::schema::TableSchema;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

const FLUSHES: i64 = 6;
/// With so many sstables, linking takes longer than the removal of a tablet.
const MANY_FLUSHES: i64 = 30;
const KEYS: i32 = 12;
/// In each round, the removal begins at another time.
const ROUNDS: usize = 4;
/// The tablet that leaves. Its sstables are linked last.
const LEAVES: u32 = 3;

/// An operation that removes sstables.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Removal {
    Truncate,
    RemoveTablet,
    DropTable,
    CompactMajor,
}

async fn filled(dir: &Path, flushes: i64, auto_snapshot: bool) -> (Rc<Engine>, Rc<TableSchema>) {
    let schema = schema(0, |options| {
        options.compaction.insert("enabled".into(), "false".into());
    });
    let mut config = config(dir, 16 << 20);
    config.auto_snapshot = auto_snapshot;
    let engine = open(config, &schema, &tablets(4)).await;
    for round in 1..=flushes {
        write(&engine, &schema, round).await;
        engine.flush(None).await.unwrap();
    }
    (engine, schema)
}

async fn write(engine: &Engine, schema: &TableSchema, timestamp: i64) {
    for k in 0..KEYS {
        let change = Change::Insert { k, c: 1, value: "v".into() };
        engine.apply_durably(&change.mutation(schema, timestamp), &key(k)).await.unwrap();
    }
}

async fn remove(engine: &Engine, schema: &TableSchema, how: Removal) -> Result<(), EngineError> {
    match how {
        Removal::Truncate => engine.truncate(schema.id, 1_000).await.map(drop),
        Removal::RemoveTablet => engine.remove_tablet(schema.id, LEAVES).await,
        Removal::DropTable => engine.drop_table(schema.id, 1_000).await,
        Removal::CompactMajor => engine.compact_major(schema.id).await,
    }
}

fn table_dir(root: &Path) -> PathBuf {
    std::fs::read_dir(root.join("data/ks")).unwrap().next().unwrap().unwrap().path()
}

/// The names of the files in the unfinished snapshot.
fn linked(root: &Path) -> Vec<String> {
    let dir = table_dir(root).join("snapshots").join(format!("{UNFINISHED_SNAPSHOT}s"));
    let Ok(entries) = std::fs::read_dir(dir) else { return Vec::new() };
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

/// The number of sstables in the unfinished snapshot. Each must have all its files.
fn whole_sstables(root: &Path) -> usize {
    let names = linked(root);
    let prefixes: Vec<&str> = names.iter().filter_map(|name| name.strip_suffix("TOC.txt")).collect();
    for prefix in &prefixes {
        for component in ["Data.db", "Index.db", "Statistics.db", "Checksums.db"] {
            assert!(names.contains(&format!("{prefix}{component}")), "{prefix}{component} of {names:?}");
        }
    }
    assert_eq!(prefixes.len(), names.iter().filter(|name| name.ends_with("-Data.db")).count(), "{names:?}");
    prefixes.len()
}

fn snapshot_beside(how: Removal, flushes: i64) {
    let mut failed = Vec::new();
    for round in 0..ROUNDS {
        let scratch = Scratch::new(&format!("beside-{how:?}-{round}"));
        rt::block_on(async {
            let (engine, schema) = filled(&scratch, flushes, false).await;
            let all = std::fs::read_dir(table_dir(&scratch)).unwrap().count();
            let (worker, id) = (engine.clone(), schema.id);
            let snapshot = rt::task::spawn(async move { worker.snapshot(id, "s").await });
            while linked(&scratch).len() < all * round / ROUNDS && !snapshot.is_finished() {
                rt::task::yield_now().await;
            }
            let removed = remove(&engine, &schema, how).await;
            if let Err(error) = removed {
                failed.push(format!("round {round}, {how:?}: {error}"));
            }
            match snapshot.await.unwrap() {
                // A truncated table is empty.
                Ok(()) if whole_sstables(&scratch) == 0 && how != Removal::Truncate => {
                    failed.push(format!("round {round}: a snapshot beside {how:?} has no rows"));
                }
                Ok(()) => {}
                // A snapshot of a dropped table does not appear.
                Err(EngineError::Cancelled) if how == Removal::DropTable => {}
                Err(error) => failed.push(format!("round {round}, snapshot beside {how:?}: {error}")),
            }
            engine.stop().await;
        });
    }
    assert_eq!(failed, [] as [String; 0], "{} of {ROUNDS}", failed.len());
}

#[test]
fn a_snapshot_beside_a_truncation() {
    snapshot_beside(Removal::Truncate, FLUSHES);
}

#[test]
fn a_snapshot_beside_a_tablet_that_leaves() {
    snapshot_beside(Removal::RemoveTablet, MANY_FLUSHES);
}

#[test]
fn a_snapshot_beside_a_drop() {
    snapshot_beside(Removal::DropTable, FLUSHES);
}

#[test]
fn a_snapshot_beside_a_major_compaction() {
    snapshot_beside(Removal::CompactMajor, FLUSHES);
}

/// A removal stops a requested compaction, which continues with the remaining sstables.
#[test]
fn a_major_compaction_beside_removals() {
    let mut failed = Vec::new();
    for how in [Removal::CompactMajor, Removal::Truncate, Removal::RemoveTablet] {
        for round in 0..ROUNDS {
            let scratch = Scratch::new(&format!("major-{how:?}-{round}"));
            rt::block_on(async {
                let (engine, schema) = filled(&scratch, FLUSHES, false).await;
                let (worker, id) = (engine.clone(), schema.id);
                let major = rt::task::spawn(async move { worker.compact_major(id).await });
                rt::time::sleep(Duration::from_micros(2_000 * round as u64)).await;
                let removed = remove(&engine, &schema, how).await;
                let compacted = major.await.unwrap();
                for (what, done) in [("the removal", removed), ("the compaction", compacted)] {
                    if let Err(error) = done {
                        failed.push(format!("round {round}, {what}, major beside {how:?}: {error}"));
                    }
                }
                let left = engine.table_stats(schema.id).unwrap().sstables;
                let wanted = match how {
                    Removal::CompactMajor => 4,
                    Removal::RemoveTablet => 3,
                    _ => 0,
                };
                assert_eq!(left, wanted, "round {round}, beside {how:?}");
                engine.stop().await;
            });
        }
    }
    assert_eq!(failed, [] as [String; 0], "{}", failed.len());
}

/// A snapshot that would lack an sstable fails. The snapshot of a drop has the other sstables, and
/// the drop succeeds.
#[test]
fn a_missing_sstable_fails_a_snapshot_and_not_a_drop() {
    let scratch = Scratch::new("missing-sstable");
    rt::block_on(async {
        let (engine, schema) = filled(&scratch, FLUSHES, true).await;
        let table = table_dir(&scratch);
        let names = || std::fs::read_dir(&table).unwrap().map(|entry| entry.unwrap().path());
        let data = names().find(|path| path.to_string_lossy().ends_with("-Data.db")).unwrap();
        let prefix = data.to_string_lossy().replace("Data.db", "");
        for path in names().filter(|path| path.to_string_lossy().starts_with(&prefix)) {
            std::fs::remove_file(path).unwrap();
        }
        let error = engine.snapshot(schema.id, "s").await.unwrap_err().to_string();
        assert!(error.contains(&*data.to_string_lossy()), "{error}");
        engine.drop_table(schema.id, 1_000).await.unwrap();
        engine.remove_directory(&schema).await.unwrap();
        let left: Vec<_> = names().collect();
        assert_eq!(left, [table.join("snapshots")]);
        let kept = std::fs::read_dir(table.join("snapshots/dropped-1-t")).unwrap();
        let kept = kept.filter(|entry| entry.as_ref().unwrap().path().to_string_lossy().ends_with("-Data.db"));
        assert_eq!(kept.count(), FLUSHES as usize * 4 - 1);
        engine.stop().await;
    });
}

/// An operator removed the directory of a table. Dropping the table succeeds, and its snapshot has
/// the rows that were only in memory.
#[test]
fn a_drop_without_a_directory_succeeds() {
    for auto_snapshot in [false, true] {
        let scratch = Scratch::new(&format!("drop-gone-{auto_snapshot}"));
        rt::block_on(async {
            let (engine, schema) = filled(&scratch, FLUSHES, auto_snapshot).await;
            write(&engine, &schema, FLUSHES + 1).await;
            let table = table_dir(&scratch);
            std::fs::remove_dir_all(&table).unwrap();
            engine.drop_table(schema.id, 1_000).await.unwrap();
            engine.remove_directory(&schema).await.unwrap();
            let kept = std::fs::read_dir(table.join("snapshots/dropped-1-t")).map_or(0, |entries| {
                entries.filter(|entry| entry.as_ref().unwrap().path().to_string_lossy().ends_with("-Data.db")).count()
            });
            assert_eq!(kept, if auto_snapshot { 4 } else { 0 });
            assert!(auto_snapshot || !table.exists());
            engine.stop().await;
        });
    }
}
