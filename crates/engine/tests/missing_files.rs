//! Files of sstables that are gone when an engine starts: no row is lost silently, and no file is deleted.

mod support;

use engine::Engine;
use model::range::{PartitionRange, Slice};
use model::schema::TableSchema;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use support::*;

const ROWS: i32 = 40;

fn quiet() -> Rc<TableSchema> {
    schema(0, |options| {
        options.compaction.insert("enabled".into(), "false".into());
    })
}

/// An engine with two sstables, each with half of the rows, that was killed later. The directory of its table.
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
        let (scratch, schema) = (Scratch::new("lost-toc"), quiet());
        let dir = prepared(&scratch.0, &schema).await;
        let before = names(&dir);
        let toc = dir.join(first(&dir).into_iter().find(|name| component(name) == "TOC.txt").unwrap());
        let contents = std::fs::read(&toc).unwrap();
        std::fs::remove_file(&toc).unwrap();
        let engine = open(config(&scratch.0, 16 << 20), &schema, &tablets(1)).await;
        assert_eq!(count(&engine, &schema).await, ROWS as usize);
        assert_eq!(std::fs::read(&toc).unwrap(), contents);
        assert_eq!(names(&dir), before);
        engine.stop().await;
    });
}

/// A lost component is reported when the table is read; without the TOC.txt as well, the files are moved aside.
#[test]
fn lost_components_make_the_table_unreadable_and_nothing_is_deleted() {
    rt::block_on(async {
        let schema = quiet();
        let template = Scratch::new("lost-component");
        let dir = prepared(&template.0, &schema).await;
        let own = first(&dir);
        assert!(own.len() >= 8, "{own:?}");
        for lost in own.iter().filter(|name| component(name) != "TOC.txt") {
            let (path, toc) = (dir.join(lost), dir.join(own.iter().find(|name| component(name) == "TOC.txt").unwrap()));
            let (contents, contents_of_toc) = (std::fs::read(&path).unwrap(), std::fs::read(&toc).unwrap());
            std::fs::remove_file(&path).unwrap();
            let engine = open(config(&template.0, 16 << 20), &schema, &tablets(1)).await;
            let error = reading_fails(&engine, &schema).await;
            assert!(error.contains("me-") && error.contains("-big-"), "{lost}: {error}");
            engine.abandon().await;

            std::fs::remove_file(&toc).unwrap();
            let engine = open(config(&template.0, 16 << 20), &schema, &tablets(1)).await;
            assert_eq!(count(&engine, &schema).await, ROWS as usize / 2, "{lost}: the other sstable is served");
            engine.abandon().await;
            let mut left = own.clone();
            left.retain(|name| name != lost && component(name) != "TOC.txt");
            assert_eq!(names(&dir.join("quarantine")), left, "{lost}");

            for name in left {
                std::fs::rename(dir.join("quarantine").join(&name), dir.join(&name)).unwrap();
            }
            std::fs::write(&path, contents).unwrap();
            std::fs::write(&toc, contents_of_toc).unwrap();
        }
        let engine = open(config(&template.0, 16 << 20), &schema, &tablets(1)).await;
        assert_eq!(count(&engine, &schema).await, ROWS as usize);
        engine.stop().await;
    });
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

/// What a crash in the middle of writing leaves has a `TOC.txt.tmp` from the start, and is deleted.
#[test]
fn unfinished_sstables_are_deleted_and_unknown_files_of_any_version_are_kept() {
    rt::block_on(async {
        let (scratch, schema) = (Scratch::new("unfinished"), quiet());
        let dir = prepared(&scratch.0, &schema).await;
        let before = names(&dir);
        for name in ["me-7-big-TOC.txt.tmp", "me-7-big-Data.db", "na-8-big-Data.db", "mc-9-big-TOC.txt.tmp"] {
            std::fs::write(dir.join(name), "half").unwrap();
        }
        std::fs::create_dir_all(dir.join("quarantine")).unwrap();
        std::fs::write(dir.join("quarantine/na-8-big-Data.db"), "another").unwrap();
        let engine = open(config(&scratch.0, 16 << 20), &schema, &tablets(1)).await;
        assert_eq!(count(&engine, &schema).await, ROWS as usize);
        engine.stop().await;
        let mut after = names(&dir);
        after.retain(|name| name != "quarantine");
        assert_eq!(after, before);
        assert_eq!(names(&dir.join("quarantine")), ["na-8-big-Data.db", "na-8-big-Data.db.1"]);
        assert_eq!(std::fs::read(dir.join("quarantine/na-8-big-Data.db")).unwrap(), b"another");
    });
}
