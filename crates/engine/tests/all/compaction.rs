//! Compaction by strategy: levels after a restart, entirely expired sstables, history, progress,
//! and stopping.

use crate::support::*;
use engine::{CompactionKind, Engine, EngineConfig, EngineError};
use model::mutation::MutationBuilder;
use model::range::{PartitionRange, Slice};
use model::row::{Cell, Marker, RowBuilder};
use model::schema::TableSchema;
use model::time::Tombstone;
use sstable::{PageCache, Sstable, SstablePath};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

fn table(gc_grace: i32, options: &[(&str, &str)]) -> Rc<TableSchema> {
    schema(gc_grace, |all| {
        all.compaction = options.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
        // Without compression, sizes follow from the written data.
        all.compression.clear();
        all.compression.insert("sstable_compression".into(), String::new());
    })
}

fn small(dir: &Path) -> EngineConfig {
    config(dir, 32 << 20)
}

async fn insert(engine: &Engine, schema: &TableSchema, timestamp: i64, k: i32, value: &str) {
    let change = Change::Insert { k, c: 0, value: value.into() };
    engine.apply_durably(&change.mutation(schema, timestamp), &key(k)).await.unwrap();
}

/// A row whose cells expired long ago.
async fn insert_expired(engine: &Engine, schema: &TableSchema, timestamp: i64, k: i32) {
    let mut builder = MutationBuilder::new(schema.id, schema.version, &i32::to_be_bytes(k));
    let mut row = RowBuilder::new(Some(Marker::expiring(timestamp, 10, 1_010)), Tombstone::LIVE);
    row.push(&Cell::live(VALUE, timestamp, b"x").with_ttl(10, 1_010));
    builder.row(clustering(0), row.finish());
    engine.apply_durably(&builder.finish(schema), &key(k)).await.unwrap();
}

async fn all(engine: &Engine, schema: &TableSchema) -> Seen {
    read(engine, schema.id, PartitionRange::FULL, Slice::full()).await
}

fn files(root: &Path, ending: &str) -> Vec<PathBuf> {
    let dir = std::fs::read_dir(root.join("data/ks")).unwrap().next().unwrap().unwrap().path();
    let mut files: Vec<_> = std::fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.to_str().unwrap().ends_with(ending));
    files.sort();
    files
}

/// The sstables on disk.
async fn sstables(root: &Path) -> Vec<Rc<Sstable>> {
    let cache = PageCache::new(1 << 20);
    let mut sstables = Vec::new();
    for toc in files(root, "-TOC.txt") {
        let (dir, name) = (toc.parent().unwrap(), toc.file_name().unwrap().to_str().unwrap());
        let (place, _) = SstablePath::parse_name(dir, name).unwrap();
        sstables.push(Sstable::open_at(&place, &cache).await.unwrap());
    }
    sstables
}

/// Waits until nothing is left to compact.
async fn settle(engine: &Engine) {
    let mut calm = 0;
    for _ in 0..30_000 {
        let metrics = engine.metrics();
        let busy = metrics.compactions_running + metrics.compactions_pending + metrics.flushes_running > 0;
        calm = if busy { 0 } else { calm + 1 };
        if calm > 20 {
            return;
        }
        rt::time::sleep(Duration::from_millis(2)).await;
    }
    panic!("compaction comes to an end: {:?}", engine.metrics());
}

#[test]
fn levels_are_kept_apart_and_survive_a_restart() {
    rt::block_on(async {
        let scratch = Scratch::new("levels");
        let options = [
            ("class", "LeveledCompactionStrategy"),
            ("sstable_size_in_mb", "0.02"),
            ("fanout_size", "2"),
            ("min_threshold", "2"),
        ];
        let schema = table(0, &options);
        let engine = open(small(&scratch), &schema, &tablets(1)).await;
        let mut naive = Naive::default();
        for round in 0..12 {
            for k in 0..80 {
                let (k, value) = ((k * 7 + round * 31) % 300, format!("{round}-{}", "x".repeat(200)));
                insert(&engine, &schema, i64::from(round), k, &value).await;
                naive.changes.push((i64::from(round), Change::Insert { k, c: 0, value }));
            }
            engine.flush(None).await.unwrap();
        }
        settle(&engine).await;
        assert!(engine.metrics().moves > 0, "an sstable without overlap on the next level moves there unchanged");
        assert_eq!(all(&engine, &schema).await, naive.seen());
        engine.stop().await;
        let check = async || {
            let sstables = sstables(&scratch).await;
            let mut levels: std::collections::BTreeMap<u32, Vec<_>> = Default::default();
            for own in &sstables {
                levels.entry(own.stats().level).or_default().push((own.first_key().clone(), own.last_key().clone()));
            }
            assert!(levels.len() >= 2 && sstables.len() > 3, "{levels:?}");
            for (level, spans) in &mut levels {
                spans.sort();
                assert!(*level == 0 || spans.windows(2).all(|pair| pair[0].1 < pair[1].0), "level {level}: {spans:?}");
            }
            levels
        };
        let before = check().await;
        let engine = open(small(&scratch), &schema, &tablets(1)).await;
        settle(&engine).await;
        assert_eq!(check().await, before, "nothing is left to do after a restart");
        assert_eq!(all(&engine, &schema).await, naive.seen());
        // All into one level.
        engine.compact_major(schema.id).await.unwrap();
        engine.set_auto_compaction(schema.id, false).unwrap();
        assert_eq!(all(&engine, &schema).await, naive.seen());
        engine.stop().await;
        let levels: Vec<u32> = sstables(&scratch).await.iter().map(|own| own.stats().level).collect();
        assert!(levels.len() > 1 && levels.iter().all(|level| *level == levels[0] && *level > 0), "{levels:?}");
    });
}

/// Damages every byte of a file's content.
fn overwrite(path: &Path) {
    let len = std::fs::metadata(path).unwrap().len();
    std::fs::write(path, vec![0xAA; len as usize]).unwrap();
}

#[test]
fn fully_expired_sstables_are_dropped_without_a_read() {
    for class in ["SizeTieredCompactionStrategy", "LeveledCompactionStrategy", "TimeWindowCompactionStrategy"] {
        rt::block_on(async {
            let scratch = Scratch::new(&format!("expired-{class}"));
            let schema = table(0, &[("class", class)]);
            let engine = open(small(&scratch), &schema, &tablets(1)).await;
            engine.set_auto_compaction(schema.id, false).unwrap();
            for k in 0..10 {
                insert_expired(&engine, &schema, 10, k).await;
            }
            engine.flush(None).await.unwrap();
            for path in files(&scratch, "-Data.db") {
                overwrite(&path);
            }
            insert(&engine, &schema, 20, 3, "lives").await;
            engine.flush(None).await.unwrap();
            assert_eq!(files(&scratch, "-Data.db").len(), 2);
            engine.set_auto_compaction(schema.id, true).unwrap();
            settle(&engine).await;
            assert_eq!(files(&scratch, "-Data.db").len(), 1, "{class}");
            let wanted: Seen = [(3, (None, [(0, (true, Some("lives".to_string())))].into()))].into();
            assert_eq!(all(&engine, &schema).await, wanted);
            engine.abandon().await;
            let engine = open(small(&scratch), &schema, &tablets(1)).await;
            assert_eq!(all(&engine, &schema).await, wanted, "the log remembers what is done with");
            engine.stop().await;
        });
    }
}

#[test]
fn sstables_that_cover_older_data_are_dropped_only_if_asked_for() {
    for (blindly, left, seen) in [("false", 2, 0), ("true", 1, 1)] {
        rt::block_on(async {
            let scratch = Scratch::new(&format!("blindly-{blindly}"));
            let options = [
                ("class", "TimeWindowCompactionStrategy"),
                ("compaction_window_unit", "MINUTES"),
                ("timestamp_resolution", "MILLISECONDS"),
                ("unsafe_aggressive_sstable_expiration", blindly),
            ];
            let schema = table(0, &options);
            let engine = open(small(&scratch), &schema, &tablets(1)).await;
            engine.set_auto_compaction(schema.id, false).unwrap();
            insert(&engine, &schema, 1, 1, "old").await;
            engine.flush(None).await.unwrap();
            let deletion = Change::DeletePartition { k: 1 };
            engine.apply_durably(&deletion.mutation(&schema, 100_000), &key(1)).await.unwrap();
            engine.flush(None).await.unwrap();
            engine.set_auto_compaction(schema.id, true).unwrap();
            settle(&engine).await;
            assert_eq!((files(&scratch, "-Data.db").len(), all(&engine, &schema).await.len()), (left, seen));
            engine.stop().await;
        });
    }
}

#[test]
fn the_compaction_history_survives_a_restart() {
    rt::block_on(async {
        let scratch = Scratch::new("history");
        let schema = table(0, &[("class", "SizeTieredCompactionStrategy"), ("enabled", "false")]);
        let engine = open(small(&scratch), &schema, &tablets(1)).await;
        assert_eq!(engine.compaction_history(), []);
        for k in 0..2 {
            insert(&engine, &schema, 1, k, "a").await;
            engine.flush(None).await.unwrap();
        }
        engine.compact_major(schema.id).await.unwrap();
        let history = engine.compaction_history();
        assert_eq!(history.len(), 1);
        let one = &history[0];
        assert_eq!(
            (one.keyspace.as_str(), one.table.as_str(), one.kind()),
            ("ks", "t", Some(CompactionKind::Compaction))
        );
        assert_eq!((one.sstables_in, one.sstables_out), (2, 1));
        assert!(one.bytes_in > one.bytes_out && one.bytes_out > 0 && one.started_at_millis <= one.compacted_at_millis);
        engine.stop().await;
        let engine = open(small(&scratch), &schema, &tablets(1)).await;
        assert_eq!(engine.compaction_history(), history);
        engine.stop().await;
        std::fs::write(scratch.join("compaction-history-0"), "damaged").unwrap();
        let engine = open(small(&scratch), &schema, &tablets(1)).await;
        assert_eq!(engine.compaction_history(), []);
        engine.stop().await;
    });
}

#[test]
fn a_compaction_that_is_stopped_changes_nothing() {
    rt::block_on(async {
        let scratch = Scratch::new("stop");
        let schema = table(0, &[("class", "SizeTieredCompactionStrategy"), ("enabled", "false")]);
        let mut config = small(&scratch);
        // A second for what is written here.
        config.compaction_throughput = 1 << 20;
        let engine = open(config, &schema, &tablets(1)).await;
        for round in 0..2 {
            for k in 0..2000 {
                insert(&engine, &schema, round, k, &"x".repeat(500)).await;
            }
            engine.flush(None).await.unwrap();
        }
        let before = files(&scratch, "-Data.db");
        assert_eq!(engine.compactions_running(), []);
        let (worker, id) = (engine.clone(), schema.id);
        let major = rt::task::spawn(async move { worker.compact_major(id).await });
        let mut seen = None;
        for _ in 0..5000 {
            match engine.compactions_running().pop() {
                Some(one) if one.completed_bytes > 0 => {
                    seen = Some(one);
                    break;
                }
                _ => rt::time::sleep(Duration::from_millis(1)).await,
            }
        }
        let seen = seen.expect("it runs");
        assert_eq!((seen.keyspace.as_str(), seen.name.as_str(), seen.tablet), ("ks", "t", 0));
        assert!(seen.total_bytes > 2_000_000 && seen.completed_bytes < seen.total_bytes, "{seen:?}");
        assert_eq!(engine.stop_compactions(Some(CompactionKind::Cleanup), None), 0);
        assert_eq!(engine.stop_compactions(Some(CompactionKind::Compaction), Some(schema.id)), 1);
        assert!(matches!(major.await.unwrap(), Err(EngineError::Stopped)));
        assert_eq!(files(&scratch, "-Data.db"), before);
        assert_eq!((engine.compactions_running(), engine.compaction_history()), (vec![], vec![]));
        assert_eq!(all(&engine, &schema).await.len(), 2000);
        engine.stop().await;
    });
}
