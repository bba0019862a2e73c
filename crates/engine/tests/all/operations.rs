//! Single operations of the store: snapshot, truncate, drop, damage, purging by time, limits,
//! splitting by tablet.

use crate::support::table_files::*;
use crate::support::*;
use engine::{ApplyError, EngineError, ReadError, UNFINISHED_SNAPSHOT};
use model::fragment::Fragment;
use model::key::DecoratedKey;
use model::mutation::MutationBuilder;
use model::range::{PartitionRange, Slice};
use model::row::{Cell, Marker, RowBuilder};
use model::time::Tombstone;
use std::collections::VecDeque;
use std::rc::Rc;

#[test]
fn snapshots_link_files_and_outlive_the_table() {
    rt::block_on(async {
        let scratch = Scratch::new("snapshot");
        let schema = still(0);
        let mut config = config(&scratch, 16 << 20);
        let describe = |schema: &model::TableSchema| format!("CREATE TABLE {}.{}", schema.keyspace, schema.name);
        config.describe = Some(engine::DescribeSchema(Rc::new(describe)));
        let engine = open(config, &schema, &tablets(2)).await;
        for k in 0..20 {
            write(&engine, &schema, 1, insert(k, 0, "a")).await;
        }
        engine.snapshot(schema.id, "one").await.unwrap();
        let dir = table_dir(&scratch);
        let unfinished = dir.join("snapshots").join(format!("{UNFINISHED_SNAPSHOT}one"));
        let snapshot = dir.join("snapshots/one");
        assert_eq!(files(&unfinished, "-Data.db").len(), 2);
        engine.complete_snapshot(schema.id, "one").await.unwrap();
        assert!(unfinished.join("manifest.json").exists() && !snapshot.exists());
        engine.publish_snapshot(schema.id, "one").await.unwrap();
        assert!(!unfinished.exists());
        let data = files(&snapshot, "-Data.db");
        assert_eq!(data.len(), 2);
        let names: Vec<String> =
            data.iter().map(|path| path.file_name().unwrap().to_str().unwrap().to_string()).collect();
        let manifest = std::fs::read_to_string(snapshot.join("manifest.json")).unwrap();
        assert_eq!(manifest, format!("{{\"files\":[\"{}\",\"{}\"]}}\n", names[0], names[1]));
        assert_eq!(std::fs::read_to_string(snapshot.join("schema.cql")).unwrap(), "CREATE TABLE ks.t");
        assert_eq!(files(&snapshot, "TOC.txt").len(), 2);

        assert!(matches!(engine.snapshot(schema.id, "../x").await, Err(EngineError::SnapshotName(_))));

        engine.drop_table(schema.id, rt::time::wall_micros()).await.unwrap();
        assert_eq!(files(&dir, "-Data.db").len(), 0);
        assert_eq!(files(&snapshot, "-Data.db").len(), 2);
        engine.stop().await;
    });
}

#[test]
fn a_dropped_table_leaves_nothing_without_a_snapshot() {
    rt::block_on(async {
        let scratch = Scratch::new("drop");
        let schema = still(0);
        let engine = open(config(&scratch, 16 << 20), &schema, &tablets(2)).await;
        write(&engine, &schema, 1, insert(1, 0, "a")).await;
        engine.flush(None).await.unwrap();
        let dir = table_dir(&scratch);
        write(&engine, &schema, 2, insert(1, 0, "b")).await;
        engine.drop_table(schema.id, rt::time::wall_micros()).await.unwrap();
        assert!(dir.exists());
        engine.remove_directory(&schema).await.unwrap();
        assert!(!dir.exists());
        assert!(matches!(
            engine.drop_table(schema.id, rt::time::wall_micros()).await,
            Err(EngineError::NoSuchTable(_))
        ));
        let mutation = insert(1, 1, "c").mutation(&schema, 3);
        assert!(matches!(engine.apply(&mutation, &key(1)), Err(ApplyError::NoSuchTable(_))));
        assert!(engine.reader(schema.id, PartitionRange::FULL, Rc::new(Slice::full()), Default::default()).is_err());
        engine.stop().await;
    });
}

#[test]
fn files_left_of_a_dropped_table_are_swept_and_snapshots_stay() {
    rt::block_on(async {
        for auto_snapshot in [false, true] {
            let scratch = Scratch::new("sweep");
            let schema = still(0);
            let engine = open(config(&scratch, 16 << 20), &schema, &tablets(2)).await;
            write(&engine, &schema, 1, insert(1, 0, "a")).await;
            snapshot(&engine, schema.id, "mine").await;
            write(&engine, &schema, 2, insert(2, 0, "b")).await;
            engine.flush(None).await.unwrap();
            engine.abandon().await;
            let dir = table_dir(&scratch);
            assert_eq!(files(&dir, "-Data.db").len(), 2);
            std::fs::write(dir.join("me-3-big-TOC.txt.tmp"), "Data.db").unwrap();

            let mut config = config(&scratch, 16 << 20);
            config.auto_snapshot = auto_snapshot;
            let engine = engine::Engine::open(config).await.unwrap();
            assert!(engine.sweep_dropped(&schema, rt::time::wall_micros()).await.unwrap());
            let left: Vec<_> = std::fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
            assert_eq!(left, ["snapshots"]);
            assert_eq!(files(&dir.join("snapshots/mine"), "-Data.db").len(), 1);
            let mut snapshots: Vec<_> =
                std::fs::read_dir(dir.join("snapshots")).unwrap().map(|entry| entry.unwrap().path()).collect();
            snapshots.retain(|path| !path.ends_with("mine"));
            assert_eq!(snapshots.len(), usize::from(auto_snapshot));
            for snapshot in snapshots {
                assert_eq!(files(&snapshot, "-Data.db").len(), 2);
                assert_eq!(files(&snapshot, "TOC.txt").len(), 2);
            }
            assert!(!engine.sweep_dropped(&schema, rt::time::wall_micros()).await.unwrap(), "once is enough");
            std::fs::remove_dir_all(dir.join("snapshots")).unwrap();
            assert!(engine.sweep_dropped(&schema, rt::time::wall_micros()).await.unwrap());
            assert!(!dir.exists());
            assert!(!engine.sweep_dropped(&schema, rt::time::wall_micros()).await.unwrap());
            engine.stop().await;
        }
    });
}

#[test]
fn truncate_takes_a_snapshot_and_stays_truncated() {
    rt::block_on(async {
        let scratch = Scratch::new("truncate");
        let schema = still(0);
        let with_snapshots = || {
            let mut config = config(&scratch, 16 << 20);
            config.auto_snapshot = true;
            config
        };
        let engine = open(with_snapshots(), &schema, &tablets(2)).await;
        write(&engine, &schema, 1, insert(1, 0, "a")).await;
        engine.flush(None).await.unwrap();
        write(&engine, &schema, 2, insert(2, 0, "b")).await;
        engine.truncate(schema.id, rt::time::wall_micros()).await.unwrap();
        assert_eq!(all(&engine, &schema).await, Seen::new());
        write(&engine, &schema, 1, insert(3, 0, "c")).await;
        let wanted: Seen = [(3, (None, [(0, (true, Some("c".to_string())))].into()))].into();
        assert_eq!(all(&engine, &schema).await, wanted);
        engine.abandon().await;
        let engine = open(with_snapshots(), &schema, &tablets(2)).await;
        assert_eq!(all(&engine, &schema).await, wanted);
        let snapshots: Vec<_> = std::fs::read_dir(table_dir(&scratch).join("snapshots")).unwrap().collect();
        assert_eq!(snapshots.len(), 1);
        let snapshot = snapshots[0].as_ref().unwrap().path();
        assert!(snapshot.to_str().unwrap().contains("truncated-"));
        assert!(!files(&snapshot, "-Data.db").is_empty());
        engine.stop().await;
    });
}

#[test]
fn a_file_that_cannot_be_opened_is_left_alone_and_stops_reading_and_purging() {
    rt::block_on(async {
        let scratch = Scratch::new("unreadable");
        let schema = still(0);
        let engine = open(config(&scratch, 16 << 20), &schema, &tablets(1)).await;
        write(&engine, &schema, 1, insert(1, 0, "a")).await;
        engine.flush(None).await.unwrap();
        let dir = table_dir(&scratch);
        let first = files(&dir, "-Statistics.db").remove(0);
        write(&engine, &schema, 2, insert(2, 0, "b")).await;
        write(&engine, &schema, 3, Change::DeletePartition { k: 1 }).await;
        engine.stop().await;
        damage(&first);

        let engine = open(config(&scratch, 16 << 20), &schema, &tablets(1)).await;
        assert_eq!(engine.metrics().sstables_unreadable, 1);
        let wanted: Seen = [(2, (None, [(0, (true, Some("b".to_string())))].into()))].into();
        // What it held is not known: without it, rows would be missing and deleted ones return.
        for range in [PartitionRange::FULL, PartitionRange::singular(&key(2))] {
            let mut reader = engine.reader(schema.id, range, Rc::new(Slice::full()), Default::default()).unwrap();
            let mut out = VecDeque::new();
            let read = reader.fill(&mut out).await;
            assert!(matches!(read, Err(ReadError::Sstable(sstable::Error::Corrupt(_)))) && out.is_empty());
        }
        engine.compact_major(schema.id).await.unwrap();
        assert!(first.exists());
        engine.stop().await;
        // The operator repairs the file: what was deleted must not return.
        damage(&first);
        let engine = open(config(&scratch, 16 << 20), &schema, &tablets(1)).await;
        assert_eq!(engine.metrics().sstables_unreadable, 0);
        assert_eq!(all(&engine, &schema).await, wanted);
        engine.stop().await;
    });
}

#[test]
fn a_corrupt_page_fails_reads_that_need_it_and_no_others() {
    rt::block_on(async {
        let scratch = Scratch::new("corrupt");
        let schema = still(0);
        let engine = open(config(&scratch, 16 << 20), &schema, &tablets(1)).await;
        write(&engine, &schema, 1, insert(1, 0, &"a".repeat(2000))).await;
        engine.flush(None).await.unwrap();
        let dir = table_dir(&scratch);
        let first = files(&dir, "-Data.db").remove(0);
        write(&engine, &schema, 1, insert(2, 0, "b")).await;
        engine.flush(None).await.unwrap();
        engine.stop().await;
        damage(&first);

        let engine = open(config(&scratch, 16 << 20), &schema, &tablets(1)).await;
        let read_key = async |k: i32| {
            let range = PartitionRange::singular(&key(k));
            let mut reader = engine.reader(schema.id, range, Rc::new(Slice::full()), Default::default()).unwrap();
            let mut out = VecDeque::new();
            while reader.fill(&mut out).await? {}
            Ok::<_, ReadError>(out)
        };
        for _ in 0..2 {
            assert!(matches!(read_key(1).await, Err(ReadError::Sstable(sstable::Error::Corrupt(_)))));
            assert!(read_key(2).await.is_ok());
        }
        assert_eq!(engine.metrics().sstables_unreadable, 1);
        engine.compact_major(schema.id).await.unwrap();
        assert!(first.exists(), "a corrupt sstable is kept");
        assert!(read_key(2).await.is_ok());
        engine.stop().await;
    });
}

async fn fragments_on_disk(engine: &engine::Engine, schema: &model::TableSchema) -> usize {
    let options = Default::default();
    let fragments = read_fragments(engine, schema.id, PartitionRange::FULL, Slice::full(), options).await;
    fragments.iter().filter(|fragment| !matches!(fragment, Fragment::PartitionEnd)).count()
}

#[test]
fn expired_tombstones_are_purged_if_no_older_data_is_elsewhere() {
    for (gc_grace, mode, purged) in [
        (0, "timeout", true),
        (1_900_000_000, "timeout", false),
        (0, "disabled", false),
        (1_900_000_000, "immediate", true),
    ] {
        rt::block_on(async {
            let scratch = Scratch::new(&format!("purge-{gc_grace}-{mode}"));
            let schema = schema(gc_grace, |options| {
                options.tombstone_gc.insert("mode".into(), mode.into());
                options.compaction.insert("enabled".into(), "false".into());
            });
            let engine = open(config(&scratch, 16 << 20), &schema, &tablets(1)).await;
            write(&engine, &schema, 1, insert(1, 0, "a")).await;
            engine.flush(None).await.unwrap();
            write(&engine, &schema, 2, Change::DeletePartition { k: 1 }).await;
            write(&engine, &schema, 2, Change::DeleteRow { k: 2, c: 1 }).await;
            engine.compact_major(schema.id).await.unwrap();
            assert_eq!(fragments_on_disk(&engine, &schema).await == 0, purged, "{gc_grace} {mode}");
            assert_eq!(all(&engine, &schema).await, Seen::new());
            engine.abandon().await;
            // The log still has the insertion; what covers it may be gone.
            let engine = open(config(&scratch, 16 << 20), &schema, &tablets(1)).await;
            assert_eq!(all(&engine, &schema).await, Seen::new());
            engine.stop().await;
        });
    }
}

#[test]
fn a_tombstone_stays_while_a_memtable_has_older_data() {
    rt::block_on(async {
        let scratch = Scratch::new("purge-memtable");
        let schema = still(0);
        let engine = open(config(&scratch, 16 << 20), &schema, &tablets(1)).await;
        write(&engine, &schema, 5, Change::DeletePartition { k: 1 }).await;
        engine.flush(None).await.unwrap();
        let before = engine.metrics().compactions;
        engine.set_auto_compaction(schema.id, true).unwrap();
        // Older than the deletion, and only in memory when the tombstone is compacted alone.
        let reader_of_old = insert(1, 0, "old").mutation(&schema, 1);
        engine.compact_major(schema.id).await.unwrap();
        assert_eq!(engine.metrics().compactions, before + 1);
        write(&engine, &schema, 6, Change::DeletePartition { k: 1 }).await;
        engine.flush(None).await.unwrap();
        engine.apply_durably(&reader_of_old, &key(1)).await.unwrap();
        engine.compact_major(schema.id).await.unwrap();
        assert_eq!(all(&engine, &schema).await, Seen::new());
        engine.stop().await;
    });
}

#[test]
fn expired_cells_are_purged() {
    rt::block_on(async {
        let scratch = Scratch::new("ttl");
        let schema = still(0);
        let engine = open(config(&scratch, 16 << 20), &schema, &tablets(1)).await;
        for k in 0..10 {
            let mut builder = MutationBuilder::new(schema.id, schema.version, &i32::to_be_bytes(k));
            let mut row = RowBuilder::new(Some(Marker::expiring(1, 10, 1_010)), Tombstone::LIVE);
            row.push(&Cell::live(VALUE, 1, b"x").with_ttl(10, 1_010));
            builder.row(clustering(0), row.finish());
            engine.apply_durably(&builder.finish(&schema), &key(k)).await.unwrap();
        }
        engine.flush(None).await.unwrap();
        assert!(fragments_on_disk(&engine, &schema).await > 0);
        engine.compact_major(schema.id).await.unwrap();
        assert_eq!(fragments_on_disk(&engine, &schema).await, 0);
        assert_eq!(engine.metrics().sstables, 0);
        engine.abandon().await;
        let engine = open(config(&scratch, 16 << 20), &schema, &tablets(1)).await;
        assert_eq!(fragments_on_disk(&engine, &schema).await, 0, "the log remembers that they are done with");
        engine.stop().await;
    });
}

#[test]
fn a_mutation_that_no_log_record_can_hold_is_refused() {
    rt::block_on(async {
        let scratch = Scratch::new("large");
        let schema = still(0);
        let engine = open(config(&scratch, 64 << 20), &schema, &tablets(1)).await;
        let large = insert(1, 0, &"x".repeat(600 << 10)).mutation(&schema, 1);
        assert!(matches!(engine.apply_durably(&large, &key(1)).await, Err(ApplyError::TooLarge { .. })));
        write(&engine, &schema, 1, insert(1, 0, &"x".repeat(500 << 10))).await;
        assert_eq!(all(&engine, &schema).await.len(), 1);
        engine.stop().await;
    });
}

#[test]
fn sstables_are_split_when_tablets_are_others() {
    rt::block_on(async {
        let scratch = Scratch::new("split");
        let schema = still(0);
        let engine = open(config(&scratch, 16 << 20), &schema, &tablets(1)).await;
        let mut naive = Naive::default();
        for k in 0..50 {
            write(&engine, &schema, 1, insert(k, k, "a")).await;
            naive.changes.push((1, insert(k, k, "a")));
            if k % 20 == 19 {
                engine.flush(None).await.unwrap();
            }
        }
        engine.stop().await;
        let engine = open(config(&scratch, 16 << 20), &schema, &tablets(5)).await;
        assert_eq!(all(&engine, &schema).await, naive.seen());
        assert!(engine.table_stats(schema.id).unwrap().sstables >= 5);
        engine.stop().await;
        // Without the split first it is refused, not half served.
        let wide = tablets(2);
        let old = engine::commitlog::find_old(&scratch.join("commitlog")).await.unwrap();
        assert!(!old.is_empty());
        let engine = open(config(&scratch, 16 << 20), &schema, &wide).await;
        assert_eq!(all(&engine, &schema).await, naive.seen());
        engine.stop().await;
    });
}

#[test]
fn reading_is_isolated_from_writing_within_a_partition() {
    rt::block_on(async {
        let scratch = Scratch::new("isolated");
        let schema = still(0);
        let engine = open(config(&scratch, 64 << 20), &schema, &tablets(1)).await;
        for c in 0..3000 {
            write(&engine, &schema, 1, insert(1, c, "a")).await;
        }
        let range = PartitionRange::singular(&key(1));
        let mut reader = engine.reader(schema.id, range, Rc::new(Slice::full()), Default::default()).unwrap();
        let mut out = VecDeque::new();
        assert!(reader.fill(&mut out).await.unwrap(), "there is more than one buffer");
        for c in 0..3000 {
            write(&engine, &schema, 2, insert(1, c, "b")).await;
        }
        engine.flush(None).await.unwrap();
        while reader.fill(&mut out).await.unwrap() {}
        let fragments: Vec<_> = out.into();
        let seen = seen_of(&fragments);
        assert_eq!(seen[&1].1.len(), 3000);
        assert!(seen[&1].1.values().all(|row| row.1.as_deref() == Some("a")));
        assert!(all(&engine, &schema).await[&1].1.values().all(|row| row.1.as_deref() == Some("b")));
        engine.stop().await;
    });
}

#[test]
fn keys_outside_of_this_shards_tablets_are_refused() {
    rt::block_on(async {
        let scratch = Scratch::new("outside");
        let schema = still(0);
        let own = tablets(4).split_off(2);
        let engine = open(config(&scratch, 16 << 20), &schema, &own).await;
        let is_own = |key: &DecoratedKey| own.iter().any(|tablet| tablet.range.contains(key));
        let mut refused = 0;
        for k in 0..40 {
            let applied = engine.apply_durably(&insert(k, 0, "a").mutation(&schema, 1), &key(k)).await;
            match applied {
                Ok(()) => assert!(is_own(&key(k))),
                Err(ApplyError::NoSuchTablet { .. }) => {
                    refused += 1;
                    assert!(!is_own(&key(k)));
                }
                Err(other) => panic!("{other}"),
            }
        }
        assert!(refused > 0 && refused < 40);
        assert_eq!(all(&engine, &schema).await.len(), 40 - refused);
        engine.stop().await;
    });
}

/// The next version of the table: `v` was dropped at 10, and another `v` takes its place.
fn with_dropped_column(old: &model::TableSchema) -> Rc<model::TableSchema> {
    let mut regulars = old.regulars.clone();
    let at = regulars.iter().position(|column| column.id == VALUE).unwrap();
    let gone = regulars.remove(at);
    let id = old.next_column_id();
    regulars.push(model::Column { id, ty: model::CqlType::Int, ..gone.clone() });
    let dropped = vec![model::schema::DroppedColumn {
        id: gone.id,
        name: gone.name,
        kind: gone.kind,
        ty: gone.ty,
        drop_time: 10,
    }];
    Rc::new(model::TableSchema::new(
        old.id,
        model::SchemaVersion(uuid::Uuid::from_u128(0x9999)),
        old.keyspace.clone(),
        old.name.clone(),
        old.partition_key.clone(),
        old.clustering.clone(),
        old.statics.clone(),
        regulars,
        dropped,
        old.options.clone(),
    ))
}

#[test]
fn a_dropped_columns_cells_stay_dead_wherever_they_are() {
    rt::block_on(async {
        let scratch = Scratch::new("dropped-column");
        let schema = still(0);
        let engine = open(config(&scratch, 16 << 20), &schema, &tablets(1)).await;
        write(&engine, &schema, 1, insert(1, 0, "on disk")).await;
        engine.flush(None).await.unwrap();
        write(&engine, &schema, 2, insert(2, 0, "in memory")).await;
        let next = with_dropped_column(&schema);
        let new = next.column_named("v").unwrap().id;
        engine.update_schema(next.clone());
        // A writer that has not heard of the change yet.
        write(&engine, &schema, 3, insert(3, 0, "late")).await;
        let mut builder = MutationBuilder::new(next.id, next.version, &4i32.to_be_bytes());
        let mut row = RowBuilder::new(Some(Marker::new(20)), Tombstone::LIVE);
        row.push(&Cell::live(new, 20, &7i32.to_be_bytes()));
        builder.row(clustering(0), row.finish());
        engine.apply_durably(&builder.finish(&next), &key(4)).await.unwrap();

        let visible = async |engine: &engine::Engine| {
            let options = Default::default();
            let fragments = read_fragments(engine, next.id, PartitionRange::FULL, Slice::full(), options).await;
            let rows = fragments.into_iter().filter_map(|fragment| match fragment {
                Fragment::Row { row, .. } => Some(row),
                _ => None,
            });
            let known = |row: model::row::Row| {
                row.cells().filter(|cell| next.column(cell.column).is_some()).map(|cell| cell.value.to_vec()).collect()
            };
            let mut rows: Vec<Vec<Vec<u8>>> = rows.map(known).collect();
            rows.sort();
            rows
        };
        let wanted: Vec<Vec<Vec<u8>>> = vec![vec![], vec![], vec![], vec![7i32.to_be_bytes().to_vec()]];
        assert_eq!(visible(&engine).await, wanted);
        engine.flush(None).await.unwrap();
        assert_eq!(visible(&engine).await, wanted);
        engine.compact_major(next.id).await.unwrap();
        assert_eq!(visible(&engine).await, wanted);
        engine.abandon().await;
        let engine = open(config(&scratch, 16 << 20), &next, &tablets(1)).await;
        assert_eq!(visible(&engine).await, wanted);
        engine.stop().await;
    });
}

#[test]
fn a_full_log_flushes_what_holds_it_and_writes_go_on() {
    rt::block_on(async {
        let scratch = Scratch::new("full-log");
        let schema = still(0);
        let engine = open(config(&scratch, 1 << 30), &schema, &tablets(2)).await;
        // The same few rows again and again: memtables stay small, the log does not.
        for i in 0..20_000 {
            write(&engine, &schema, i, insert((i % 10) as i32, 0, &"x".repeat(1000))).await;
        }
        let metrics = engine.metrics();
        assert!(metrics.flushes > 0);
        assert!(metrics.memtable_bytes < 1 << 20);
        assert!(metrics.log.disk_total_bytes <= 9 << 20, "{:?}", metrics.log);
        assert_eq!(all(&engine, &schema).await.len(), 10);
        engine.stop().await;
    });
}

#[test]
fn memory_stays_within_its_budget_while_writes_come_in() {
    rt::block_on(async {
        let scratch = Scratch::new("budget");
        let schema = still(0);
        let engine = open(config(&scratch, 2 << 20), &schema, &tablets(2)).await;
        let writers: Vec<_> = (0..8)
            .map(|writer| {
                let (engine, schema) = (engine.clone(), schema.clone());
                rt::task::spawn(async move {
                    let mut most = 0;
                    for i in 0..400 {
                        let k = writer * 1000 + i;
                        write(&engine, &schema, 1, insert(k, 0, &"x".repeat(2000))).await;
                        most = engine.metrics().memtable_bytes.max(most);
                    }
                    most
                })
            })
            .collect();
        for writer in writers {
            let most = writer.await.unwrap();
            assert!(most <= (1 << 20) + 8 * 3000, "memtables held {most} bytes");
        }
        assert_eq!(all(&engine, &schema).await.len(), 3200);
        engine.stop().await;
    });
}
