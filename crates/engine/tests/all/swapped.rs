//! A Data.db that was exchanged with that of another sstable: reads and compactions of its table
//! fail, the error names the file, and the node and its other tablets continue.

use crate::support::table_files::*;
use crate::support::*;
use engine::{Engine, ReadOptions};
use model::range::{PartitionRange, Slice};
use model::schema::TableSchema;
use std::collections::VecDeque;
use std::path::PathBuf;
use std::rc::Rc;

/// The keys of two sstables in the first tablet of two, and of one in the second.
fn keys() -> [i32; 3] {
    let [first, second] = [0, 1].map(|i| (0x1234_5678..).filter(move |k| tablets(2)[i].range.contains(&key(*k))));
    let first: Vec<i32> = first.take(2).collect();
    [first[0], first[1], second.take(1).next().unwrap()]
}

/// Writes the sstables, stops the engine, and exchanges the Data.db of the first with that of the
/// last. Returns the two paths.
async fn make_swapped(scratch: &Scratch, schema: &Rc<TableSchema>, is_old: bool) -> [PathBuf; 2] {
    let engine = open(config(scratch, 16 << 20), schema, &tablets(2)).await;
    let mut paths = Vec::new();
    for k in keys() {
        write(&engine, schema, 1, insert(k, 0, "value")).await;
        engine.flush(None).await.unwrap();
        let mut new = files(&table_dir(scratch), "-Data.db");
        new.retain(|path| !paths.contains(path));
        paths.append(&mut new);
    }
    engine.stop().await;
    if is_old {
        files(&table_dir(scratch), "-Checksums.db").iter().for_each(|path| test_support::make_checksums_old(path));
    }
    let swapped = [paths[0].clone(), paths[2].clone()];
    let data = [0, 1].map(|i| std::fs::read(&swapped[i]).unwrap());
    assert!(data[0].len() == data[1].len() && data[0] != data[1]);
    std::fs::write(&swapped[0], &data[1]).unwrap();
    std::fs::write(&swapped[1], &data[0]).unwrap();
    swapped
}

/// The error of a read of everything.
async fn scan_fails(engine: &Engine, schema: &TableSchema) -> String {
    let reader = engine.reader(schema.id, PartitionRange::FULL, Rc::new(Slice::full()), ReadOptions::default());
    let mut fragments = VecDeque::new();
    match reader {
        Err(error) => error.to_string(),
        Ok(mut reader) => loop {
            match reader.fill(&mut fragments).await {
                Ok(true) => {}
                Ok(false) => panic!("the table was read to its end: {fragments:?}"),
                Err(error) => break error.to_string(),
            }
        },
    }
}

#[test]
fn the_data_of_another_sstable_is_an_error_of_its_table() {
    rt::block_on(async {
        for is_old in [false, true] {
            let (scratch, schema) = (Scratch::new("engine-swapped"), still(0));
            let swapped = make_swapped(&scratch, &schema, is_old).await;
            let is_named = |error: &str| swapped.iter().any(|path| error.contains(path.to_str().unwrap()));
            for _ in 0..2 {
                let engine = open(config(&scratch, 16 << 20), &schema, &tablets(2)).await;
                // Without the new checksums, the keys are found to be wrong when they are read.
                assert_eq!(engine.metrics().sstables_unreadable, if is_old { 0 } else { 2 });
                let error = scan_fails(&engine, &schema).await;
                assert!(is_named(&error), "{error}");
                let compacted = engine.compact_major(schema.id).await;
                if is_old {
                    let error = compacted.expect_err("the inputs have keys of other tablets").to_string();
                    assert!(is_named(&error), "{error}");
                }
                // The engine works: it writes, flushes, and reports the damage again.
                write(&engine, &schema, 2, insert(keys()[1], 1, "later")).await;
                engine.flush(None).await.unwrap();
                assert!(engine.metrics().sstables_unreadable >= 1);
                assert!(is_named(&scan_fails(&engine, &schema).await));
                engine.stop().await;
            }
        }
    });
}
