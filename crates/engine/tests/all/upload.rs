//! Loading foreign sstables into a table: all of them or none, split by tablet, visible to
//! readers at once.

use crate::support::uploads::*;
use crate::support::*;
use bytes::Bytes;
use model::fragment::Fragment;
use model::key::{Clustering, DecoratedKey};
use model::mutation::MutationBuilder;
use model::range::{PartitionRange, Slice};
use model::row::{Cell, Marker, RowBuilder};
use model::schema::{Column, TableSchema};
use model::time::Tombstone;
use model::{CqlType, HostId};
use sstable::{Generation, Writer, WriterOptions};
use std::path::{Path, PathBuf};
use std::rc::Rc;

#[test]
fn uploaded_sstables_are_read_at_once_and_split_by_tablet() {
    rt::block_on(async {
        let scratch = Scratch::new("upload-split");
        let (schema, table) = (still(0), table_dir(&scratch, &still(0)));
        let mut naive = Naive::default();
        let engine = open(config(&scratch, 16 << 20), &schema, &tablets(1)).await;
        for k in 0..40 {
            write(&engine, &schema, &mut naive, 10, Change::Insert { k, c: 1, value: format!("old {k}") }).await;
            write(&engine, &schema, &mut naive, 10, Change::Static { k, value: "s".into() }).await;
            write(&engine, &schema, &mut naive, 11, Change::DeleteRange { k, from: 5, to: 9 }).await;
        }
        snapshot(&engine, schema.id, "s").await;
        engine.truncate(schema.id, rt::time::wall_micros()).await.unwrap();
        engine.stop().await;

        // Now there are four tablets, and newer writes.
        let engine = open(config(&scratch, 16 << 20), &schema, &tablets(4)).await;
        assert!(seen(&engine, &schema).await.is_empty());
        for k in 0..4 {
            write(&engine, &schema, &mut naive, 20, Change::DeleteRow { k, c: 1 }).await;
            write(&engine, &schema, &mut naive, 20, Change::Insert { k, c: 2, value: "new".into() }).await;
        }
        upload(&table, "s").await;
        assert_eq!(refresh(&engine, &schema, &tablets(4)).await.unwrap(), 4, "one piece a tablet");
        assert_eq!(names(&table.join("upload")).await, Vec::<String>::new());
        assert_eq!(seen(&engine, &schema).await, naive.seen());
        assert_eq!(engine.table_stats(schema.id).unwrap().sstables, 4);
        assert_eq!(refresh(&engine, &schema, &tablets(4)).await.unwrap(), 0, "nothing is left to load");
        engine.compact_major(schema.id).await.unwrap();
        assert_eq!(seen(&engine, &schema).await, naive.seen());
        engine.abandon().await;

        let engine = open(config(&scratch, 16 << 20), &schema, &tablets(4)).await;
        assert_eq!(seen(&engine, &schema).await, naive.seen(), "after a crash");
        engine.stop().await;
    });
}

/// A reader keeps the set it began with; the next one reads the loaded sstables.
#[test]
fn an_open_reader_keeps_what_it_began_with() {
    rt::block_on(async {
        let scratch = Scratch::new("upload-open");
        let (schema, table) = (still(0), table_dir(&scratch, &still(0)));
        let mut naive = Naive::default();
        let engine = open(config(&scratch, 16 << 20), &schema, &tablets(1)).await;
        for c in [100, 200, 300] {
            write(&engine, &schema, &mut naive, 5, Change::Insert { k: 1, c, value: "loaded".into() }).await;
        }
        snapshot(&engine, schema.id, "s").await;
        engine.truncate(schema.id, rt::time::wall_micros()).await.unwrap();
        let mut naive = Naive::default();
        for c in 0..400 {
            if c % 100 != 0 {
                let value = "x".repeat(400);
                write(&engine, &schema, &mut naive, 6, Change::Insert { k: 1, c, value }).await;
            }
        }
        engine.flush(None).await.unwrap();
        let mut reader = engine
            .reader(schema.id, PartitionRange::FULL, Rc::new(Slice::full()), engine::ReadOptions::default())
            .unwrap();
        let mut page = Default::default();
        assert!(reader.fill(&mut page).await.unwrap(), "the partition is longer than what is read at once");
        let began = page.len();
        upload(&table, "s").await;
        refresh(&engine, &schema, &tablets(1)).await.unwrap();
        while reader.fill(&mut page).await.unwrap() {}
        let fragments: Vec<_> = page.into();
        assert!(fragments.len() > began);
        assert_eq!(seen_of(&fragments), naive.seen(), "an open reader sees what it began with");
        for c in [100, 200, 300] {
            naive.changes.push((5, Change::Insert { k: 1, c, value: "loaded".into() }));
        }
        assert_eq!(seen(&engine, &schema).await, naive.seen(), "a reader that is opened now sees all rows");
        engine.stop().await;
    });
}

/// The sstable set has a new version after a load although no sstable was removed: the row cache
/// depends on it.
#[test]
fn cached_rows_take_notice() {
    rt::block_on(async {
        let scratch = Scratch::new("upload-cached");
        let wide = still(0);
        let columns = (wide.partition_key.clone(), vec![wide.regulars[0].clone()]);
        let schema = Rc::new(TableSchema::new(
            wide.id,
            wide.version,
            "ks",
            "t",
            columns.0,
            Vec::new(),
            Vec::new(),
            columns.1,
            Vec::new(),
            wide.options.clone(),
        ));
        let engine = open(config(&scratch, 16 << 20), &schema, &tablets(1)).await;
        let put = async |k: i32, timestamp: i64, value: &str| {
            let mut row = RowBuilder::new(Some(Marker::new(timestamp)), Tombstone::LIVE);
            row.push(&Cell::live(VALUE, timestamp, value.as_bytes()));
            let mut builder = MutationBuilder::new(schema.id, schema.version, &k.to_be_bytes());
            builder.row(Clustering::EMPTY, row.finish());
            engine.apply_durably(&builder.finish(&schema), &key(k)).await.unwrap();
        };
        let get = async |k: i32| {
            let range = PartitionRange::singular(&key(k));
            let all = read_fragments(&engine, schema.id, range, Slice::full(), engine::ReadOptions::default()).await;
            let row = all.iter().find_map(|fragment| match fragment {
                Fragment::Row { row, .. } => Some(row),
                _ => None,
            });
            row.and_then(|row| Some(String::from_utf8(row.cells().next()?.value.to_vec()).unwrap()))
        };
        put(1, 20, "newer").await;
        snapshot(&engine, schema.id, "s").await;
        engine.truncate(schema.id, rt::time::wall_micros()).await.unwrap();
        put(1, 10, "older").await;
        put(2, 10, "other").await;
        engine.flush(None).await.unwrap();
        for _ in 0..2 {
            assert_eq!((get(1).await.as_deref(), get(2).await.as_deref()), (Some("older"), Some("other")));
        }
        assert_eq!(engine.metrics().rows.hits, 2, "the rows are cached");
        upload(&table_dir(&scratch, &schema), "s").await;
        refresh(&engine, &schema, &tablets(1)).await.unwrap();
        assert_eq!((get(1).await.as_deref(), get(2).await.as_deref()), (Some("newer"), Some("other")));
        assert_eq!(engine.metrics().rows.hits, 3, "keys that the loaded sstable cannot have stay cached");
        engine.stop().await;
    });
}

/// A file of the same node contains intervals of its log, perhaps of another table's records:
/// replay must not skip anything because of them.
#[test]
fn replay_ignores_the_intervals_of_uploaded_files() {
    rt::block_on(async {
        let scratch = Scratch::new("upload-intervals");
        let (schema, table) = (still(0), table_dir(&scratch, &still(0)));
        let engine = open(config(&scratch, 16 << 20), &schema, &tablets(1)).await;
        let mut old = Naive::default();
        let mut naive = Naive::default();
        // Positions: old, new, old. The interval of the snapshot spans that of the new record.
        write(&engine, &schema, &mut old, 1, Change::Insert { k: 1, c: 1, value: "first".into() }).await;
        write(&engine, &schema, &mut naive, 2, Change::Insert { k: 2, c: 1, value: "kept".into() }).await;
        write(&engine, &schema, &mut old, 3, Change::Insert { k: 3, c: 1, value: "last".into() }).await;
        engine.sync_log().await.unwrap();
        let log = names_below(&scratch.join("commitlog")).await;
        // A copy of the current log. It is restored after the crash, as if nothing had been
        // flushed.
        let mut saved = Vec::new();
        for path in log {
            match rt::fs::read(&path).await {
                Ok(bytes) => saved.push((path, bytes)),
                // A segment that was only prepared has got its name meanwhile.
                Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::NotFound),
            }
        }
        snapshot(&engine, schema.id, "s").await;
        engine.abandon().await;
        // The table's own sstables are lost, those of the snapshot come back by refresh.
        for name in names(&table).await {
            rt::fs::remove_file(&table.join(name)).await.unwrap();
        }
        std::fs::remove_dir_all(scratch.join("commitlog")).unwrap();
        let engine = open(config(&scratch, 16 << 20), &schema, &tablets(1)).await;
        upload(&table, "s").await;
        refresh(&engine, &schema, &tablets(1)).await.unwrap();
        engine.stop().await;
        std::fs::remove_dir_all(scratch.join("commitlog")).unwrap();
        for (path, bytes) in saved {
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, bytes).unwrap();
        }
        let engine = open(config(&scratch, 16 << 20), &schema, &tablets(1)).await;
        assert_eq!(engine.metrics().replay_skipped, 0, "no record is taken for one that the loaded sstable covers");
        assert_eq!(engine.metrics().replayed, 3);
        engine.stop().await;
    });
}

async fn names_below(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut waiting = vec![dir.to_path_buf()];
    while let Some(dir) = waiting.pop() {
        for entry in rt::fs::read_dir(&dir).await.unwrap() {
            match entry.is_dir {
                true => waiting.push(dir.join(entry.name)),
                false => found.push(dir.join(entry.name)),
            }
        }
    }
    found
}

#[test]
fn unloadable_sstables_are_refused_and_stay_in_place() {
    rt::block_on(async {
        let scratch = Scratch::new("upload-refused");
        let (schema, table) = (still(0), table_dir(&scratch, &still(0)));
        let mut naive = Naive::default();
        let engine = open(config(&scratch, 16 << 20), &schema, &tablets(2)).await;
        for k in 0..200 {
            let change = Change::Insert { k, c: 1, value: format!("{k}").repeat(50) };
            write(&engine, &schema, &mut naive, 10, change).await;
        }
        snapshot(&engine, schema.id, "s").await;
        engine.truncate(schema.id, rt::time::wall_micros()).await.unwrap();
        upload(&table, "s").await;
        let dir = table.join("upload");
        let all = names(&dir).await;
        let refused = async |why: &str| {
            let before = names(&dir).await;
            let error = refresh(&engine, &schema, &tablets(2)).await.expect_err("refused").to_string();
            assert!(error.contains(why), "{error:?} does not say {why:?}");
            assert_eq!(names(&dir).await, before, "nothing was taken away");
            assert!(!names(&table).await.iter().any(|name| name.contains("-big-")), "no copy is left");
            assert!(seen(&engine, &schema).await.is_empty());
        };
        for component in ["Data.db", "Index.db", "Statistics.db", "Filter.db"] {
            let path = dir.join(all.iter().find(|name| name.ends_with(component)).unwrap());
            let good = std::fs::read(&path).unwrap();
            let mut bad = good.clone();
            bad[good.len() / 2] ^= 4;
            // The snapshot's files are the same ones: write another.
            std::fs::remove_file(&path).unwrap();
            std::fs::write(&path, bad).unwrap();
            refused(component).await;
            std::fs::write(&path, good).unwrap();
        }
        std::fs::write(dir.join("oa-1-big-Data.db"), b"x").unwrap();
        refused("oa-1-big-Data.db: not an sstable of a version that can be read").await;
        std::fs::remove_file(dir.join("oa-1-big-Data.db")).unwrap();
        std::fs::write(dir.join("me-1-big-Data.db"), b"x").unwrap();
        refused("me-1-big-TOC.txt: the file is missing").await;
        std::fs::remove_file(dir.join("me-1-big-Data.db")).unwrap();
        std::fs::write(dir.join("oa-1-big-Index.db"), b"x").unwrap();
        refused("oa-1-big-Index.db: not an sstable of a version that can be read").await;
        std::fs::remove_file(dir.join("oa-1-big-Index.db")).unwrap();
        let one = all[0].rsplit_once('-').unwrap().0;
        let data = format!("{one}-Data.db");
        let components: Vec<&String> = all.iter().filter(|name| name.starts_with(one)).collect();
        assert!(components.len() > 7 && components.len() < all.len() && all.contains(&data));
        for name in components {
            std::fs::rename(dir.join(name), scratch.join(name)).unwrap();
            refused(&format!("{name}: the file is missing")).await;
            std::fs::rename(scratch.join(name), dir.join(name)).unwrap();
        }
        let filter = dir.join(format!("{one}-Filter.db"));
        std::fs::rename(&filter, scratch.join("Filter.db")).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(&filter).status().unwrap().success());
        refused("Filter.db: not a regular file, but a FIFO: remove it from the upload directory").await;
        std::fs::remove_file(&filter).unwrap();
        std::fs::rename(scratch.join("Filter.db"), &filter).unwrap();
        let manifest = dir.join("manifest.json");
        std::fs::write(&manifest, format!("{{\"files\":[\"{data}\",\"me-7-big-Data.db\"]}}")).unwrap();
        refused("manifest.json: it names me-7-big-Data.db, which is missing").await;
        std::fs::write(&manifest, b"{\"files\":[\"me").unwrap();
        refused("not a manifest").await;
        std::fs::copy(table.join("snapshots/s/manifest.json"), &manifest).unwrap();
        let first_half = &tablets(4)[..1];
        let error = refresh(&engine, &schema, first_half).await.expect_err("refused").to_string();
        assert!(error.contains("belong to no tablet"), "{error}");
        refresh(&engine, &schema, &tablets(2)).await.unwrap();
        assert_eq!(seen(&engine, &schema).await, naive.seen());
        assert_eq!(names(&dir).await, ["manifest.json"]);
        assert_eq!(refresh(&engine, &schema, &tablets(2)).await.unwrap(), 0, "a manifest alone asks for nothing");
        engine.stop().await;
    });
}

/// Writes an sstable of another table into the `upload` directory.
async fn upload_other(table: &Path, schema: &Rc<TableSchema>, keys: &[&[u8]], clustering: Clustering) -> PathBuf {
    let (dir, generation) = (table.join("upload"), Generation::fresh());
    rt::fs::create_dir_all(&dir).await.unwrap();
    let options = WriterOptions::new(HostId(uuid::Uuid::from_u128(9)));
    let mut writer = Writer::create(&dir, generation, schema.clone(), options).await.unwrap();
    let mut keys: Vec<DecoratedKey> = keys.iter().map(|key| DecoratedKey::new(Bytes::copy_from_slice(key))).collect();
    keys.sort();
    for key in keys {
        writer.push(Fragment::PartitionStart { key, tombstone: Tombstone::LIVE }).await.unwrap();
        let row = RowBuilder::new(Some(Marker::new(1)), Tombstone::LIVE).finish();
        writer.push(Fragment::Row { key: clustering.clone(), row }).await.unwrap();
        writer.push(Fragment::PartitionEnd).await.unwrap();
    }
    writer.finish(&[]).await.unwrap();
    sstable::SstablePath::new(&dir, generation).path(sstable::Component::Data)
}

#[test]
fn sstables_with_other_key_types_are_refused_and_stay_in_place() {
    rt::block_on(async {
        let scratch = Scratch::new("upload-keys");
        let (schema, table) = (still(0), table_dir(&scratch, &still(0)));
        let engine = open(config(&scratch, 16 << 20), &schema, &tablets(2)).await;
        let (text, int) = (clustering(1), b"\0\0\0\x07");
        let cases: [(&[CqlType], CqlType, &[u8], &str); 4] = [
            (
                &[CqlType::Text],
                CqlType::Int,
                int,
                "partition key of the file has the types (text), but in ks.t it has (int)",
            ),
            (&[CqlType::Uuid], CqlType::Int, &[7; 16], "(uuid), but in ks.t it has (int)"),
            (&[CqlType::Int, CqlType::Int], CqlType::Int, b"\0\x04\0\0\0\x01\0\0\x04\0\0\0\x02\0", "(int, int)"),
            (
                &[CqlType::Int],
                CqlType::Date,
                int,
                "clustering key of the file has the types (date), but in ks.t it has (int)",
            ),
        ];
        for (keys, clustering_type, key, why) in cases {
            let mut other = (*schema).clone();
            let first = other.partition_key[0].clone();
            other.partition_key = keys.iter().map(|ty| Column { ty: ty.clone(), ..first.clone() }).collect();
            other.clustering[0].ty = clustering_type;
            let file = upload_other(&table, &Rc::new(other), &[key], text.clone()).await;
            let before = names(&table.join("upload")).await;
            let error = refresh(&engine, &schema, &tablets(2)).await.expect_err(why).to_string();
            assert!(error.contains(why) && error.contains(&file.display().to_string()), "{error:?} lacks {why:?}");
            assert_eq!(names(&table.join("upload")).await, before, "nothing was taken away");
            assert!(!names(&table).await.iter().any(|name| name.contains("-big-")), "no copy is left");
            std::fs::remove_dir_all(table.join("upload")).unwrap();
        }
        assert!(seen(&engine, &schema).await.is_empty());
        engine.stop().await;
    });
}

/// A copy of a tablet that has left the shard is never dropped silently: nothing is recorded, and
/// the uploads stay.
#[test]
fn a_piece_without_its_tablet_is_refused() {
    rt::block_on(async {
        let scratch = Scratch::new("upload-moved");
        let (schema, table) = (still(0), table_dir(&scratch, &still(0)));
        let mut naive = Naive::default();
        let engine = open(config(&scratch, 16 << 20), &schema, &tablets(2)).await;
        for k in 0..20 {
            write(&engine, &schema, &mut naive, 10, Change::Insert { k, c: 1, value: "v".into() }).await;
        }
        snapshot(&engine, schema.id, "s").await;
        engine.truncate(schema.id, rt::time::wall_micros()).await.unwrap();
        upload(&table, "s").await;
        let before = names(&table.join("upload")).await;
        let uploads = engine.uploaded(schema.id).await.unwrap();
        let pieces = engine.copy_uploaded(schema.id, uploads, tablets(2)).await.unwrap();
        engine.remove_tablet(schema.id, 1).await.unwrap();
        let error = engine.expect_loaded(schema.id, &pieces).expect_err("a tablet is gone").to_string();
        assert!(error.contains("tablet 1") && error.contains("not on shard 0"), "{error}");
        engine.discard_loaded(schema.id, &pieces).await.unwrap();
        assert_eq!(names(&table.join("upload")).await, before);
        assert!(!names(&table).await.iter().any(|name| name.contains("-big-")), "no copy is left");

        engine.add_tablet(schema.id, tablets(2).remove(1)).await.unwrap();
        refresh(&engine, &schema, &tablets(2)).await.unwrap();
        assert_eq!(seen(&engine, &schema).await, naive.seen());
        engine.stop().await;
    });
}
