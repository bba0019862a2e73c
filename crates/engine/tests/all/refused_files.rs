//! Files that the system refuses to examine: they do not count as absent.

use crate::support::*;
use engine::commitlog;
use engine::datadir::DataDir;
use engine::{Engine, EngineError};
use model::range::{PartitionRange, Slice};
use rt::sim::{Disk, Refusal};
use std::collections::VecDeque;
use std::path::Path;
use std::rc::Rc;

const DIR: &str = "/var/messina";

async fn write(engine: &Engine, schema: &model::TableSchema) {
    let change = Change::Insert { k: 1, c: 1, value: "v".into() };
    engine.apply_durably(&change.mutation(schema, 1), &key(1)).await.unwrap();
}

/// The disk fails from some operation of a start on. The table is not opened, or its rows are read,
/// or reads fail. No row is missing without an error.
#[test]
fn an_sstable_that_cannot_be_examined_is_not_skipped() {
    let (dir, schema) = (Path::new(DIR), schema(0, |_| {}));
    let prepared = Disk::new(3);
    rt::sim::block_on(3, &prepared, async {
        rt::fs::create_dir_all(dir).await.unwrap();
        let engine = open(config(dir, 16 << 20), &schema, &tablets(1)).await;
        write(&engine, &schema).await;
        engine.flush(None).await.unwrap();
        engine.stop().await;
    });
    let table = dir.join("data/ks").join(engine::datadir::table_dir_name("t", schema.id));
    let (mut refused, mut failed, mut whole) = (0, 0, 0);
    for skip in 0.. {
        let disk = prepared.fork();
        let left = rt::sim::block_on(u64::from(skip), &disk, async {
            let _lock = DataDir::open(dir, "test", 1).await.unwrap();
            let engine = Engine::open(config(dir, 16 << 20)).await.unwrap();
            disk.refuse_below(&table, Refusal::Broken, skip, 1000);
            let opening = async {
                engine.reshard(schema.clone(), &tablets(1), &[0].into()).await?;
                engine.add_table(schema.clone(), tablets(1)).await?;
                Ok::<_, EngineError>(())
            };
            let opened = opening.await;
            let left = disk.refuse_nothing();
            if opened.is_err() {
                refused += 1;
                return left;
            }
            let options = Default::default();
            let mut reader = engine.reader(schema.id, PartitionRange::FULL, Rc::new(Slice::full()), options).unwrap();
            let mut out = VecDeque::new();
            let read = loop {
                match reader.fill(&mut out).await {
                    Ok(true) => {}
                    Ok(false) => break Ok(()),
                    Err(error) => break Err(error),
                }
            };
            match read {
                Ok(()) => {
                    assert_eq!(seen_of(out.make_contiguous()).len(), 1, "the row is missing after {skip} operations");
                    whole += 1;
                }
                Err(_) => failed += 1,
            }
            engine.abandon().await;
            left
        });
        if left == 1000 {
            break;
        }
    }
    assert!(refused > 0 && failed > 0 && whole > 0, "{refused} starts refused, {failed} reads failed, {whole} whole");
}

/// A log whose directory cannot be examined is not taken for a retired one.
#[test]
fn a_log_that_cannot_be_examined_is_not_retired() {
    let (dir, schema, disk) = (Path::new(DIR), schema(0, |_| {}), Disk::new(4));
    rt::sim::block_on(4, &disk, async {
        rt::fs::create_dir_all(dir).await.unwrap();
        let engine = open(config(dir, 16 << 20), &schema, &tablets(1)).await;
        write(&engine, &schema).await;
        engine.abandon().await;
    });
    rt::sim::block_on(5, &disk, async {
        let root = dir.join("commitlog");
        let old = commitlog::find_old(&root).await.unwrap();
        assert!(!old.runs.is_empty());
        disk.refuse_below(&root, Refusal::NoAccess, 0, 1000);
        commitlog::retire(&old).await.expect_err("it cannot be examined");
        disk.refuse_nothing();
        commitlog::retire(&old).await.unwrap();
        commitlog::retire(&old).await.expect("they are gone");
        assert!(commitlog::find_old(&root).await.unwrap().runs.is_empty());
    });
}
