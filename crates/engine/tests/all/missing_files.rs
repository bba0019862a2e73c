//! Files of sstables that are missing when an engine starts: no row is lost silently, and no file
//! is deleted.

use crate::support::*;
use engine::commitlog::{self, OldLogs};
use engine::datadir::{DataDir, Inventory};
use engine::{Engine, EngineConfig, LogLeft};
use model::range::{PartitionRange, Slice};
use model::schema::TableSchema;
use std::path::{Path, PathBuf};
use std::rc::Rc;

const ROWS: i32 = 40;

/// The table directory of a killed engine with two sstables, each with half of the rows.
async fn prepared(root: &Path, schema: &Rc<TableSchema>) -> PathBuf {
    let engine = open(config(root, 16 << 20), schema, &tablets(1)).await;
    for half in 0..2 {
        for k in (0..ROWS).filter(|k| k % 2 == half) {
            let change = Change::Insert { k, c: 1, value: format!("v{k}") };
            engine.apply_durably(&change.mutation(schema, 1), &key(k)).await.unwrap();
        }
        engine.flush(None).await.unwrap();
    }
    engine.stop().await;
    // The log of the next run holds none of the rows.
    open(config(root, 16 << 20), schema, &tablets(1)).await.abandon().await;
    root.join("data/ks").join(engine::datadir::table_dir_name("t", schema.id))
}

fn names(dir: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(dir) else { return Vec::new() };
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// The names of the files of the first sstable.
fn first(dir: &Path) -> Vec<String> {
    let all = names(dir);
    let toc = all.iter().find(|name| name.ends_with("-big-TOC.txt")).expect("there is an sstable");
    let own = toc.trim_end_matches("TOC.txt").to_owned();
    all.into_iter().filter(|name| name.starts_with(&own)).collect()
}

fn component(name: &str) -> &str {
    name.rsplit_once("-big-").expect("a component").1
}

async fn count(engine: &Engine, schema: &TableSchema) -> usize {
    read(engine, schema.id, PartitionRange::FULL, Slice::full()).await.len()
}

#[test]
fn a_lost_toc_is_rebuilt() {
    rt::block_on(async {
        let (scratch, schema) = (Scratch::new("lost-toc"), still(0));
        let dir = prepared(&scratch, &schema).await;
        let before = names(&dir);
        let toc = dir.join(first(&dir).into_iter().find(|name| component(name) == "TOC.txt").unwrap());
        let contents = std::fs::read(&toc).unwrap();
        std::fs::remove_file(&toc).unwrap();
        let engine = open(config(&scratch, 16 << 20), &schema, &tablets(1)).await;
        assert_eq!(count(&engine, &schema).await, ROWS as usize);
        assert_eq!(std::fs::read(&toc).unwrap(), contents);
        assert_eq!(names(&dir), before);
        engine.stop().await;
    });
}

/// A lost component is reported when the table is read, at each start. So it is if the TOC.txt is
/// lost as well, which then cannot be rebuilt. The files stay.
#[test]
fn lost_components_make_the_table_unreadable_and_nothing_is_deleted() {
    rt::block_on(async {
        let schema = still(0);
        let template = Scratch::new("lost-component");
        let dir = prepared(&template, &schema).await;
        let own = first(&dir);
        assert!(own.len() >= 8, "{own:?}");
        for lost in own.iter().filter(|name| component(name) != "TOC.txt") {
            let (path, toc) = (dir.join(lost), dir.join(own.iter().find(|name| component(name) == "TOC.txt").unwrap()));
            let (contents, contents_of_toc) = (std::fs::read(&path).unwrap(), std::fs::read(&toc).unwrap());
            std::fs::remove_file(&path).unwrap();
            let engine = open(config(&template, 16 << 20), &schema, &tablets(1)).await;
            let error = reading_fails(&engine, &schema).await;
            assert!(error.contains("me-") && error.contains("-big-"), "{lost}: {error}");
            engine.abandon().await;

            std::fs::remove_file(&toc).unwrap();
            let left = names(&dir);
            for start in 0..2 {
                let why = fails_at_start(&template, &schema).await;
                let named = why.contains("TOC.txt") && why.contains(&format!("{} is missing", component(lost)));
                assert!(named, "{lost}, start {start}: {why}");
                assert_eq!(names(&dir), left, "{lost}, start {start}");
            }
            std::fs::write(&path, &contents).unwrap();
            // Damaged, if a checksum detects that without reading the entire file.
            if !["Data.db", "Index.db"].contains(&component(lost)) {
                for bytes in [Vec::new(), vec![0; contents.len()]] {
                    std::fs::write(&path, bytes).unwrap();
                    let why = fails_at_start(&template, &schema).await;
                    assert!(why.contains(&format!("{} is damaged", component(lost))), "{lost}: {why}");
                }
            }
            std::fs::write(&path, contents).unwrap();
            std::fs::write(&toc, contents_of_toc).unwrap();
        }
        let engine = open(config(&template, 16 << 20), &schema, &tablets(1)).await;
        assert_eq!(count(&engine, &schema).await, ROWS as usize);
        engine.stop().await;
    });
}

/// The system refuses to open one file. Only its table cannot be read, and the error names the
/// file.
#[test]
fn a_component_that_the_system_refuses_makes_its_table_unreadable() {
    rt::block_on(async {
        let (scratch, schema) = (Scratch::new("refused-component"), still(0));
        let dir = prepared(&scratch, &schema).await;
        for refused in first(&dir) {
            let (path, aside) = (dir.join(&refused), scratch.join("aside"));
            std::fs::rename(&path, &aside).unwrap();
            std::fs::create_dir(&path).unwrap();
            let engine = open(config(&scratch, 16 << 20), &schema, &tablets(1)).await;
            let error = reading_fails(&engine, &schema).await;
            assert!(error.contains(&refused), "{refused}: {error}");
            engine.abandon().await;
            std::fs::remove_dir(&path).unwrap();
            std::fs::rename(&aside, &path).unwrap();
        }
        let engine = open(config(&scratch, 16 << 20), &schema, &tablets(1)).await;
        assert_eq!(count(&engine, &schema).await, ROWS as usize);
        engine.stop().await;
    });
}

/// Starts an engine of which the table cannot be read. The error of a read.
async fn fails_at_start(root: &Path, schema: &Rc<TableSchema>) -> String {
    let engine = open(config(root, 16 << 20), schema, &tablets(1)).await;
    let error = reading_fails(&engine, schema).await;
    engine.abandon().await;
    error
}

async fn reading_fails(engine: &Engine, schema: &TableSchema) -> String {
    let reader = engine.reader(schema.id, PartitionRange::FULL, Rc::new(Slice::full()), engine::ReadOptions::default());
    let mut fragments = Default::default();
    match reader {
        Err(error) => error.to_string(),
        Ok(mut reader) => loop {
            match reader.fill(&mut fragments).await {
                Ok(true) => {}
                Ok(false) => panic!("the table was read to its end"),
                Err(error) => break error.to_string(),
            }
        },
    }
}

fn copy_dir(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
        let target = to.join(entry.file_name());
        match entry.path().is_dir() {
            true => copy_dir(&entry.path(), &target),
            // A temporary file of the engine may have gone.
            false => drop(std::fs::copy(entry.path(), target)),
        }
    }
}

/// Removes a directory in which the engine may be creating files.
fn remove_dir(dir: &Path) {
    while std::fs::remove_dir_all(dir).is_err_and(|error| error.kind() != std::io::ErrorKind::NotFound) {}
}

/// The files of the running log, which has one run.
fn of_log(root: &Path) -> Vec<PathBuf> {
    let run = std::fs::read_dir(root.join("commitlog/0")).unwrap().next().unwrap().unwrap().path();
    names(&run).into_iter().map(|name| run.join(name)).collect()
}

fn segment(root: &Path) -> PathBuf {
    of_log(root).into_iter().find(|path| path.to_string_lossy().contains("/segment-")).unwrap()
}

fn manifest(root: &Path) -> PathBuf {
    of_log(root).into_iter().find(|path| path.ends_with("manifest")).unwrap()
}

/// Waits until the log has its next segment. It writes no manifest until that segment is used,
/// and so does not repair the damage of the test.
async fn is_settled(root: &Path) {
    let names_two = || {
        let text = std::fs::read_to_string(manifest(root)).unwrap_or_default();
        let list = text.split_once("\"segments\": [").and_then(|(_, rest)| rest.split_once(']'));
        list.is_some_and(|(list, _)| list.contains(','))
    };
    while !names_two() {
        rt::time::sleep(rt::time::Duration::from_millis(5)).await;
    }
}

/// Changes the log of a running engine.
type LogFault = fn(&Path);

const LOG_FAULTS: [LogFault; 7] = [
    |root| remove_dir(&root.join("commitlog")),
    |root| remove_dir(manifest(root).parent().unwrap()),
    |root| std::fs::remove_file(segment(root)).unwrap(),
    |root| std::fs::remove_file(manifest(root)).unwrap(),
    |root| std::fs::remove_file(manifest(root).with_file_name("synced")).unwrap(),
    |root| std::fs::File::options().write(true).open(segment(root)).unwrap().set_len(100).unwrap(),
    |root| {
        let (log, copy) = (root.join("commitlog"), root.join("copy"));
        copy_dir(&log, &copy);
        remove_dir(&log);
        std::fs::rename(&copy, &log).unwrap();
    },
];

/// The stop flushes the writes of the log, and reports exactly that.
#[test]
fn a_log_that_was_changed_behind_the_engine_loses_nothing() {
    rt::block_on(async {
        for (i, inject) in LOG_FAULTS.into_iter().enumerate() {
            let (scratch, schema) = (Scratch::new(&format!("log-changed-{i}")), still(0));
            let engine = open(config(&scratch, 16 << 20), &schema, &tablets(1)).await;
            for k in 0..ROWS {
                if k == ROWS / 2 {
                    is_settled(&scratch).await;
                    inject(&scratch);
                }
                let change = Change::Insert { k, c: 1, value: format!("v{k}") };
                // The engine may have noticed.
                if engine.apply_durably(&change.mutation(&schema, 1), &key(k)).await.is_err() {
                    break;
                }
            }
            let written = count(&engine, &schema).await;
            assert!(written >= ROWS as usize / 2, "fault {i}: {written}");
            let left = engine.stop().await;
            let Some(LogLeft::Removed { what, run }) = left.log else { panic!("fault {i}: {left:?}") };
            assert!(what.contains("while the node ran"), "fault {i}: {what}");
            assert!(left.tables.is_empty(), "fault {i}: {:?}", left.tables);
            // As the stop of a node does.
            commitlog::retire(&OldLogs { runs: vec![run] }).await.unwrap();
            let engine = open(config(&scratch, 16 << 20), &schema, &tablets(1)).await;
            assert_eq!(count(&engine, &schema).await, written, "fault {i}");
            engine.stop().await;
        }
    });
}

/// The loss is noticed without a stop, and also if nothing is written.
#[test]
fn a_log_that_was_changed_behind_the_engine_fails_soon() {
    rt::block_on(async {
        for (i, inject) in LOG_FAULTS.into_iter().enumerate() {
            let (scratch, schema) = (Scratch::new(&format!("log-watched-{i}")), still(0));
            let engine = open(config(&scratch, 16 << 20), &schema, &tablets(1)).await;
            is_settled(&scratch).await;
            inject(&scratch);
            let failed = rt::time::timeout(rt::time::Duration::from_secs(30), engine.failure()).await;
            let failed = failed.unwrap_or_else(|_| panic!("fault {i} is not detected")).to_string();
            assert!(failed.contains("while the node ran"), "fault {i}: {failed}");
            engine.stop().await;
        }
    });
}

/// The directory of a table is replaced by an older copy, or a directory is in place of a file.
/// With the older copy, acknowledged rows would be removed, or truncated ones would return.
#[test]
fn older_and_unusable_files_that_say_what_was_truncated_are_named() {
    rt::block_on(async {
        let (scratch, schema) = (Scratch::new("older"), still(0));
        let host_id = DataDir::open(&scratch, "test", 1).await.unwrap().host_id;
        let config = EngineConfig { host_id, ..config(&scratch, 16 << 20) };
        let engine = open(config, &schema, &tablets(1)).await;
        let dir = scratch.join("data/ks").join(engine::datadir::table_dir_name("t", schema.id));
        let older = scratch.join("older");
        let mut made = Vec::new();
        for epoch in [4, 5] {
            let change = Change::Insert { k: 1, c: 1, value: "v".into() };
            engine.apply_durably(&change.mutation(&schema, 1), &key(1)).await.unwrap();
            engine.truncate(schema.id, rt::time::wall_micros()).await.unwrap();
            engine.begin_epoch(&schema, epoch).await.unwrap();
            made.extend(engine.next_made().await.unwrap());
            if epoch == 4 {
                copy_dir(&dir, &older);
            }
        }
        engine.stop().await;
        let data_dir = DataDir::open(&scratch, "test", 1).await.unwrap();
        let note = |inventory: &mut Inventory| made.iter().for_each(|made| inventory.add(made));
        data_dir.inventory_keeper(true).change(note).await.unwrap();
        drop(data_dir);
        let data_dir = DataDir::open(&scratch, "test", 1).await.unwrap();
        assert_eq!(data_dir.missing_of_table(&schema, 5).await.unwrap(), [], "nothing is missing");

        for name in ["epoch", "replay-marks-0"] {
            let (path, aside) = (dir.join(name), scratch.join("aside"));
            std::fs::rename(&path, &aside).unwrap();
            let named = async |why: &str| {
                let missing = data_dir.missing_of_table(&schema, 5).await.unwrap();
                let [missing] = missing.as_slice() else { panic!("{name}: {missing:?}") };
                assert!(missing.what.contains(&*path.to_string_lossy()) && missing.what.contains(why), "{missing}");
                missing.in_its_place.clone()
            };
            assert_eq!(named("is missing").await, None);
            std::fs::copy(older.join(name), &path).unwrap();
            assert_eq!(named("is older than it was").await, None);
            std::fs::write(&path, "messina").unwrap();
            assert_eq!(named("is damaged").await, Some(path.clone()));
            std::fs::remove_file(&path).unwrap();
            std::fs::create_dir(&path).unwrap();
            assert_eq!(named("is a directory").await, Some(path.clone()));
            data_dir.move_away(&path).await.unwrap();
            assert_eq!(named("is missing").await, None);
            std::fs::rename(&aside, &path).unwrap();
        }
        assert_eq!(data_dir.missing_of_table(&schema, 5).await.unwrap(), [], "all is back");
    });
}

/// A sealed sstable of another database that has lost its TOC.txt. Nothing can rebuild it.
#[test]
fn a_foreign_sstable_without_its_toc_makes_its_table_unreadable() {
    rt::block_on(async {
        let (scratch, schema) = (Scratch::new("lost-foreign-toc"), still(0));
        let dir = prepared(&scratch, &schema).await;
        for name in ["nb-8-big-Data.db", "nb-8-big-Index.db"] {
            std::fs::write(dir.join(name), "contents").unwrap();
        }
        let before = names(&dir);
        let why = fails_at_start(&scratch, &schema).await;
        assert!(why.contains("nb-8-big-TOC.txt") && why.contains("Checksums.db is missing"), "{why}");
        assert_eq!(names(&dir), before);
    });
}

/// The files of an interrupted write have a `TOC.txt.tmp` from the start, and are deleted.
#[test]
fn unfinished_sstables_are_deleted_and_unknown_files_of_any_version_are_kept() {
    rt::block_on(async {
        let (scratch, schema) = (Scratch::new("unfinished"), still(0));
        let dir = prepared(&scratch, &schema).await;
        let before = names(&dir);
        for name in ["me-7-big-TOC.txt.tmp", "me-7-big-Data.db", "na-8-big-Data.db", "mc-9-big-TOC.txt.tmp"] {
            std::fs::write(dir.join(name), "half").unwrap();
        }
        std::fs::create_dir_all(dir.join("quarantine")).unwrap();
        std::fs::write(dir.join("quarantine/na-8-big-Data.db"), "another").unwrap();
        let engine = open(config(&scratch, 16 << 20), &schema, &tablets(1)).await;
        assert_eq!(count(&engine, &schema).await, ROWS as usize);
        engine.stop().await;
        let mut after = names(&dir);
        after.retain(|name| name != "quarantine");
        assert_eq!(after, before);
        assert_eq!(names(&dir.join("quarantine")), ["na-8-big-Data.db", "na-8-big-Data.db.1"]);
        assert_eq!(std::fs::read(dir.join("quarantine/na-8-big-Data.db")).unwrap(), b"another");
    });
}

/// The disk may not be mounted: its rows would return.
#[test]
fn nothing_is_removed_while_its_keyspace_directory_is_missing() {
    rt::block_on(async {
        let (scratch, schema) = (Scratch::new("no-keyspace"), still(0));
        let config = || EngineConfig { auto_snapshot: false, ..config(&scratch, 16 << 20) };
        let engine = open(config(), &schema, &tablets(1)).await;
        engine
            .apply_durably(&Change::Insert { k: 1, c: 1, value: "x".into() }.mutation(&schema, 1), &key(1))
            .await
            .unwrap();
        engine.flush(None).await.unwrap();
        let (mounted, away) = (scratch.join("data/ks"), scratch.join("away"));
        std::fs::rename(&mounted, &away).unwrap();
        engine.truncate(schema.id, rt::time::wall_micros()).await.expect_err("nothing says that it was truncated");
        std::fs::rename(&away, &mounted).unwrap();
        engine.stop().await;
        let engine = open(config(), &schema, &tablets(1)).await;
        assert_eq!(count(&engine, &schema).await, 1);
        engine.stop().await;
    });
}

/// TRUNCATE and the removal of a tablet succeed although the table's directory is missing. The
/// table remains usable.
#[test]
fn data_is_removed_although_its_directory_is_missing() {
    for (auto_snapshot, drops) in [(false, false), (true, false), (false, true)] {
        rt::block_on(async {
            let (scratch, schema) = (Scratch::new("no-directory"), still(0));
            let both = tablets(2);
            let config = || EngineConfig { auto_snapshot, ..config(&scratch, 16 << 20) };
            let engine = open(config(), &schema, &both).await;
            let write = async |value: &str| {
                for k in 0..ROWS {
                    let change = Change::Insert { k, c: 1, value: value.into() };
                    // Keys of a removed tablet are refused.
                    let _ = engine.apply_durably(&change.mutation(&schema, 1), &key(k)).await;
                }
            };
            write("before").await;
            engine.flush(None).await.unwrap();
            let dir = scratch.join("data/ks").join(engine::datadir::table_dir_name("t", schema.id));
            std::fs::remove_dir_all(&dir).unwrap();
            let left = if drops {
                engine.remove_tablet(schema.id, 0).await.unwrap();
                &both[1..]
            } else {
                engine.truncate(schema.id, 1).await.unwrap();
                assert_eq!(count(&engine, &schema).await, 0);
                &both[..]
            };
            write("after").await;
            // Without snapshots of it, the other tablet's sstable is lost.
            if !drops {
                engine.flush(None).await.unwrap();
                assert_eq!(count(&engine, &schema).await, ROWS as usize);
            }
            engine.stop().await;
            // The loss of the other tablet's sstable is noticed, and has to be accepted.
            if drops {
                let why = fails_at_start(&scratch, &schema).await;
                assert!(why.contains("all files of the sstable"), "{why}");
            }
            let config = EngineConfig { accept_loss: drops, ..config() };
            let engine = open(config, &schema, left).await;
            let found = count(&engine, &schema).await;
            assert!(found > 0 && (drops || found == ROWS as usize), "{found} partitions");
            engine.stop().await;
        });
    }
}
