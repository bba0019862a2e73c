//! Sealed sstables of which all files are missing when an engine starts, or whose `TOC.txt` has the
//! name of an unfinished one: the lists of sstables show the loss.

use crate::support::table_files::*;
use crate::support::*;
use engine::datadir::Lacks;
use engine::{Engine, EngineConfig};
use model::TableId;
use model::range::{PartitionRange, Slice};
use model::schema::TableSchema;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use uuid::Uuid;

fn engine_config(root: &Path, accept_loss: bool) -> EngineConfig {
    EngineConfig { accept_loss, ..config(root, 16 << 20) }
}

async fn start(root: &Path, schema: &Rc<TableSchema>) -> Rc<Engine> {
    open(engine_config(root, false), schema, &tablets(1)).await
}

/// A table directory with two sstables of one row each, of a stopped engine.
async fn two_sstables(root: &Path, schema: &Rc<TableSchema>) -> PathBuf {
    let engine = start(root, schema).await;
    for k in 0..2 {
        write(&engine, schema, 1, insert(k, 0, "v")).await;
        engine.flush(None).await.unwrap();
    }
    engine.stop().await;
    table_dir(root)
}

/// The files of the first sstable.
fn first(dir: &Path) -> Vec<PathBuf> {
    let toc = files(dir, "-TOC.txt").remove(0);
    let own = toc.to_str().unwrap().trim_end_matches("TOC.txt").to_owned();
    let mut all = files(dir, "");
    all.retain(|path| path.to_str().unwrap().starts_with(&own));
    all
}

/// Moves the files of an sstable away.
fn move_away(root: &Path, files: &[PathBuf]) -> PathBuf {
    let aside = root.join("aside");
    std::fs::create_dir_all(&aside).unwrap();
    files.iter().for_each(|path| std::fs::rename(path, aside.join(path.file_name().unwrap())).unwrap());
    aside
}

fn move_back(aside: &Path, dir: &Path) {
    files(aside, "").iter().for_each(|path| std::fs::rename(path, dir.join(path.file_name().unwrap())).unwrap());
}

/// The error of a read of the table; `None` if it can be read.
async fn read_error(engine: &Engine, table: TableId) -> Option<String> {
    let options = engine::ReadOptions::default();
    let mut reader = match engine.reader(table, PartitionRange::FULL, Rc::new(Slice::full()), options) {
        Ok(reader) => reader,
        Err(error) => return Some(error.to_string()),
    };
    let mut fragments = Default::default();
    loop {
        match reader.fill(&mut fragments).await {
            Ok(true) => {}
            Ok(false) => return None,
            Err(error) => return Some(error.to_string()),
        }
    }
}

/// The number of rows that a start finds.
async fn rows_at_start(root: &Path, schema: &Rc<TableSchema>) -> usize {
    let engine = start(root, schema).await;
    let rows = all(&engine, schema).await.len();
    engine.stop().await;
    rows
}

/// The error of a read after a start; `None` if the table can be read.
async fn error_at_start(root: &Path, schema: &Rc<TableSchema>) -> Option<String> {
    let engine = start(root, schema).await;
    let error = read_error(&engine, schema.id).await;
    engine.stop().await;
    error
}

/// Another table of the same columns.
fn another(schema: &TableSchema) -> Rc<TableSchema> {
    let mut other = schema.clone();
    other.id = TableId(Uuid::from_u128(0x99));
    other.name = "other".into();
    Rc::new(other)
}

#[test]
fn a_table_with_a_missing_sstable_cannot_be_read() {
    rt::block_on(async {
        let (scratch, schema) = (Scratch::new("missing-sstable"), still(0));
        let dir = two_sstables(&scratch, &schema).await;
        let lost = first(&dir);
        let generation = lost[0].file_name().unwrap().to_str().unwrap().split('-').nth(1).unwrap().to_owned();
        let aside = move_away(&scratch, &lost);
        for run in 0..2 {
            let engine = start(&scratch, &schema).await;
            let error = read_error(&engine, schema.id).await.expect("rows are missing");
            let named =
                [&generation, "all files", "--accept-loss", "TRUNCATE"].iter().all(|part| error.contains(*part));
            assert!(named, "run {run}: {error}");
            assert_eq!(engine.metrics().sstables_unreadable, 1);
            let other = another(&schema);
            engine.add_table(other.clone(), tablets(1)).await.unwrap();
            write(&engine, &other, 1, insert(1, 0, "other")).await;
            assert_eq!(all(&engine, &other).await.len(), 1, "another table is served");
            // A flush and a compaction replace the list: the loss is not forgotten.
            write(&engine, &schema, 2, insert(2 + run, 0, "new")).await;
            engine.flush(None).await.unwrap();
            engine.compact_major(schema.id).await.unwrap();
            engine.stop().await;
        }
        move_back(&aside, &dir);
        assert_eq!(rows_at_start(&scratch, &schema).await, 4, "the files are back");
    });
}

#[test]
fn truncate_ends_the_loss_of_an_sstable() {
    rt::block_on(async {
        for auto_snapshot in [false, true] {
            let (scratch, schema) = (Scratch::new(&format!("missing-truncated-{auto_snapshot}")), still(0));
            let dir = two_sstables(&scratch, &schema).await;
            let aside = move_away(&scratch, &first(&dir));
            let config = EngineConfig { auto_snapshot, ..engine_config(&scratch, false) };
            let engine = open(config, &schema, &tablets(1)).await;
            engine.truncate(schema.id, rt::time::wall_micros()).await.unwrap();
            write(&engine, &schema, 2, insert(5, 0, "new")).await;
            engine.flush(None).await.unwrap();
            assert_eq!(all(&engine, &schema).await.len(), 1);
            engine.abandon().await;
            // Files that return were truncated.
            move_back(&aside, &dir);
            for _ in 0..2 {
                assert_eq!(rows_at_start(&scratch, &schema).await, 1);
            }
        }
    });
}

/// A crash comes after the truncation has taken effect, and before its files are removed. Later
/// truncations name other sstables.
#[test]
fn a_truncation_that_was_interrupted_leaves_nothing_missing() {
    rt::block_on(async {
        let (scratch, schema) = (Scratch::new("missing-interrupted"), still(0));
        let dir = two_sstables(&scratch, &schema).await;
        let list = std::fs::read(dir.join("sstables-0")).unwrap();
        let engine = start(&scratch, &schema).await;
        engine.truncate(schema.id, rt::time::wall_micros()).await.unwrap();
        engine.abandon().await;
        std::fs::write(dir.join("sstables-0"), list).unwrap();
        for k in 0..2 {
            let engine = start(&scratch, &schema).await;
            assert_eq!(all(&engine, &schema).await.len(), 0);
            write(&engine, &schema, 2, insert(k, 0, "new")).await;
            engine.flush(None).await.unwrap();
            engine.truncate(schema.id, rt::time::wall_micros()).await.unwrap();
            engine.abandon().await;
        }
    });
}

#[test]
fn drop_removes_a_table_with_a_missing_sstable() {
    rt::block_on(async {
        let (scratch, schema) = (Scratch::new("missing-dropped"), still(0));
        let dir = two_sstables(&scratch, &schema).await;
        move_away(&scratch, &first(&dir));
        let engine = start(&scratch, &schema).await;
        engine.drop_table(schema.id, rt::time::wall_micros()).await.unwrap();
        engine.remove_directory(&schema).await.unwrap();
        assert!(!dir.exists());
        engine.stop().await;
    });
}

/// The loss stays until it was recorded: a crash before requires it to be accepted once more.
#[test]
fn a_recorded_loss_of_an_sstable_is_not_reported_again() {
    rt::block_on(async {
        let (scratch, schema) = (Scratch::new("missing-accepted"), still(0));
        let dir = two_sstables(&scratch, &schema).await;
        move_away(&scratch, &first(&dir));
        let engine = Engine::open(engine_config(&scratch, true)).await.unwrap();
        engine.add_table(schema.clone(), tablets(1)).await.unwrap();
        let given_up = engine.given_up();
        assert!(given_up.len() == 1 && given_up[0].lacks == Lacks::Table(schema.id), "{given_up:?}");
        assert!(given_up[0].what.contains("-big-Data.db"), "{given_up:?}");
        engine.abandon().await;
        assert!(error_at_start(&scratch, &schema).await.is_some(), "it was not recorded");
        let engine = open(engine_config(&scratch, true), &schema, &tablets(1)).await;
        assert_eq!(all(&engine, &schema).await.len(), 1);
        assert!(engine.given_up().is_empty());
        engine.abandon().await;
        assert_eq!(rows_at_start(&scratch, &schema).await, 1);
    });
}

/// A listed sstable with a `TOC.txt.tmp` was sealed. Its `TOC.txt` is rebuilt, or the table cannot
/// be read, at each start.
#[test]
fn a_sealed_sstable_is_not_removed_as_unfinished() {
    rt::block_on(async {
        let (scratch, schema) = (Scratch::new("toc-renamed"), still(0));
        let dir = two_sstables(&scratch, &schema).await;
        let (own, before) = (first(&dir), files(&dir, ""));
        let toc = own.iter().find(|path| path.to_str().unwrap().ends_with("-TOC.txt")).unwrap();
        let temporary = toc.with_extension("txt.tmp");
        std::fs::rename(toc, &temporary).unwrap();
        assert_eq!(rows_at_start(&scratch, &schema).await, 2);
        assert_eq!(files(&dir, ""), before);

        std::fs::rename(toc, &temporary).unwrap();
        let filter = own.iter().find(|path| path.to_str().unwrap().ends_with("-Filter.db")).unwrap();
        let contents = std::fs::read(filter).unwrap();
        std::fs::remove_file(filter).unwrap();
        let left = files(&dir, "");
        for run in 0..2 {
            let engine = start(&scratch, &schema).await;
            let error = read_error(&engine, schema.id).await.expect("it is incomplete");
            assert!(error.contains("Filter.db is missing"), "run {run}: {error}");
            engine.stop().await;
            assert_eq!(files(&dir, ""), left, "run {run}");
        }
        std::fs::write(filter, contents).unwrap();
        assert_eq!(rows_at_start(&scratch, &schema).await, 2);
    });
}

/// Without a list, or with an unusable one, nothing is known, and nothing is missed. The list is
/// written again.
#[test]
fn a_lost_list_is_written_again() {
    rt::block_on(async {
        for damaged in [false, true] {
            let (scratch, schema) = (Scratch::new(&format!("lost-list-{damaged}")), still(0));
            let dir = two_sstables(&scratch, &schema).await;
            let list = dir.join("sstables-0");
            let contents = std::fs::read(&list).unwrap();
            match damaged {
                true => std::fs::write(&list, "messina").unwrap(),
                false => std::fs::remove_file(&list).unwrap(),
            }
            let engine = start(&scratch, &schema).await;
            assert_eq!(all(&engine, &schema).await.len(), 2);
            engine.abandon().await;
            assert_eq!(std::fs::read(&list).unwrap(), contents);
            move_away(&scratch, &first(&dir));
            assert!(error_at_start(&scratch, &schema).await.is_some());
        }
    });
}

/// An older list names fewer sstables, as after a crash between the seal and the list. Compactions
/// and crashes after them leave nothing missing.
#[test]
fn crashes_beside_the_list_leave_nothing_missing() {
    rt::block_on(async {
        let (scratch, schema) = (Scratch::new("list-crashes"), still(0));
        let engine = start(&scratch, &schema).await;
        write(&engine, &schema, 1, insert(0, 0, "v")).await;
        engine.flush(None).await.unwrap();
        let list = table_dir(&scratch).join("sstables-0");
        let older = std::fs::read(&list).unwrap();
        write(&engine, &schema, 1, insert(1, 0, "v")).await;
        engine.flush(None).await.unwrap();
        engine.abandon().await;
        std::fs::write(&list, older).unwrap();
        let engine = start(&scratch, &schema).await;
        assert_eq!(all(&engine, &schema).await.len(), 2);
        engine.compact_major(schema.id).await.unwrap();
        engine.abandon().await;
        let engine = start(&scratch, &schema).await;
        assert_eq!((all(&engine, &schema).await.len(), engine.metrics().sstables_unreadable), (2, 0));
        engine.stop().await;
        // The output is listed, too.
        move_away(&scratch, &first(&table_dir(&scratch)));
        assert!(error_at_start(&scratch, &schema).await.is_some());
    });
}

/// A list of a shard that no longer exists is merged into the one of shard 0.
#[test]
fn lists_of_former_shards_count() {
    rt::block_on(async {
        let (scratch, schema) = (Scratch::new("former-shards"), still(0));
        let dir = two_sstables(&scratch, &schema).await;
        std::fs::rename(dir.join("sstables-0"), dir.join("sstables-3")).unwrap();
        let aside = move_away(&scratch, &first(&dir));
        let engine = start(&scratch, &schema).await;
        assert!(read_error(&engine, schema.id).await.is_some());
        assert!(!dir.join("sstables-3").exists() && dir.join("sstables-0").exists());
        engine.stop().await;
        move_back(&aside, &dir);
        let engine = start(&scratch, &schema).await;
        assert_eq!(all(&engine, &schema).await.len(), 2);
        engine.compact_major(schema.id).await.unwrap();
        engine.stop().await;
        assert_eq!(rows_at_start(&scratch, &schema).await, 2);
    });
}

/// A removed tablet, and sstables that a start splits, are no loss.
#[test]
fn removed_and_split_sstables_are_not_missed() {
    rt::block_on(async {
        let (scratch, schema) = (Scratch::new("split-and-removed"), still(0));
        let engine = start(&scratch, &schema).await;
        for k in 0..20 {
            write(&engine, &schema, 1, insert(k, 0, "v")).await;
        }
        engine.flush(None).await.unwrap();
        engine.abandon().await;
        let both = tablets(2);
        let engine = open(engine_config(&scratch, false), &schema, &both).await;
        assert_eq!(all(&engine, &schema).await.len(), 20);
        engine.abandon().await;
        let engine = open(engine_config(&scratch, false), &schema, &both).await;
        assert_eq!(all(&engine, &schema).await.len(), 20);
        engine.remove_tablet(schema.id, 0).await.unwrap();
        let left = all(&engine, &schema).await.len();
        engine.abandon().await;
        let engine = open(engine_config(&scratch, false), &schema, &both[1..]).await;
        assert_eq!((all(&engine, &schema).await.len(), engine.metrics().sstables_unreadable), (left, 0));
        engine.stop().await;
    });
}

/// The list cannot be written: the flush fails after its sstable is attached, and a later flush
/// lists it.
#[test]
fn a_flush_fails_until_its_sstable_is_listed() {
    rt::block_on(async {
        let (scratch, schema) = (Scratch::new("unwritable-list"), still(0));
        let engine = start(&scratch, &schema).await;
        write(&engine, &schema, 1, insert(0, 0, "v")).await;
        engine.flush(None).await.unwrap();
        let list = table_dir(&scratch).join("sstables-0");
        std::fs::remove_file(&list).unwrap();
        std::fs::create_dir(&list).unwrap();
        write(&engine, &schema, 1, insert(1, 0, "v")).await;
        for _ in 0..2 {
            let error = engine.flush(None).await.expect_err("the list is a directory").to_string();
            assert!(error.contains("sstables-0"), "{error}");
            assert_eq!(all(&engine, &schema).await.len(), 2);
            assert_eq!(files(&table_dir(&scratch), "-TOC.txt").len(), 2);
        }
        std::fs::remove_dir(&list).unwrap();
        engine.flush(None).await.unwrap();
        let names = std::fs::read_to_string(&list).unwrap();
        for toc in files(&table_dir(&scratch), "-TOC.txt") {
            let name = toc.file_name().unwrap().to_str().unwrap().trim_end_matches("-big-TOC.txt");
            assert!(names.contains(name), "{name}: {names}");
        }
        engine.stop().await;
    });
}

/// While an earlier release may start on the directory, lists would become out of date.
#[test]
fn no_list_is_made_before_all_nodes_know_lists() {
    rt::block_on(async {
        let (scratch, schema) = (Scratch::new("no-lists-yet"), still(0));
        let engine = start(&scratch, &schema).await;
        engine.set_lists_sstables(false);
        write(&engine, &schema, 1, insert(0, 0, "v")).await;
        engine.flush(None).await.unwrap();
        let lists = || files(&table_dir(&scratch), "sstables-0").len();
        assert_eq!(lists(), 0);
        engine.set_lists_sstables(true);
        write(&engine, &schema, 1, insert(1, 0, "v")).await;
        engine.flush(None).await.unwrap();
        assert_eq!(lists(), 1);
        // Lists that exist stay up to date.
        engine.set_lists_sstables(false);
        engine.compact_major(schema.id).await.unwrap();
        engine.stop().await;
        assert_eq!(rows_at_start(&scratch, &schema).await, 2);
    });
}

/// A damaged list may have named an sstable that looks unfinished. It is not deleted.
#[test]
fn an_sstable_that_looks_unfinished_is_kept_if_the_list_is_damaged() {
    rt::block_on(async {
        let (scratch, schema) = (Scratch::new("unknown-seal"), still(0));
        let dir = two_sstables(&scratch, &schema).await;
        let toc = files(&dir, "-TOC.txt").remove(0);
        let count = first(&dir).len();
        std::fs::rename(&toc, format!("{}.tmp", toc.display())).unwrap();
        std::fs::write(dir.join("sstables-0"), b"damaged").unwrap();
        assert_eq!(rows_at_start(&scratch, &schema).await, 1);
        assert_eq!(files(&dir.join("quarantine"), "").len(), count);
    });
}
