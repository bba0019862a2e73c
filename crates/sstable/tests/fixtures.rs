//! Sstables that Cassandra and ScyllaDB wrote: they verify, dump as Cassandra's own tool dumps them, and come out the same
//! when written again.
//!
//! Those made with Cassandra's writer lie beside this file; others, and other versions, are looked for in `SSTABLE_FIXTURES` (by
//! default `../shared/fixtures/sstables` beside the checkout) and are left out, with a line that says so, where it is missing.

use model::HostId;
use model::fragment::Fragment;
use model::range::{PartitionRange, Slice};
use serde_json::Value;
use sstable::dump::dump_json;
use sstable::{Error, Generation, PageCache, Place, ReadOptions, Sstable, Writer, WriterOptions};
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use uuid::Uuid;

/// Later than every TTL in the fixtures.
const NOW: i32 = 1_800_000_000;

fn own() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures")
}

/// The folder of the other fixtures, if there is one.
fn others() -> Option<PathBuf> {
    let default = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/fixtures/sstables");
    let dir = std::env::var_os("SSTABLE_FIXTURES").map_or_else(default, PathBuf::from);
    if dir.is_dir() {
        return Some(dir);
    }
    eprintln!("NOT RUN: no fixtures in {}", dir.display());
    None
}

fn folders(dir: &Path) -> Vec<PathBuf> {
    let mut folders: Vec<_> = std::fs::read_dir(dir).expect("a folder").map(|e| e.expect("an entry").path()).collect();
    folders.retain(|path| path.is_dir());
    folders.sort();
    folders
}

fn name(folder: &Path) -> String {
    folder.file_name().expect("a name").to_string_lossy().into_owned()
}

/// The one sstable in a folder; `None` if it is of a version that cannot be read.
fn place(folder: &Path) -> Option<Place> {
    let names = std::fs::read_dir(folder).expect("a folder").map(|e| e.expect("an entry").file_name());
    names.filter_map(|name| Place::parse_name(folder, &name.to_string_lossy())).map(|(place, _)| place).next()
}

async fn open(place: &Place) -> Result<Rc<Sstable>, Error> {
    Sstable::open_at(place, &PageCache::new(10 << 20)).await
}

/// Takes out what a dump may lack.
fn without_positions(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.remove("position");
            map.remove("table kind");
            map.values_mut().for_each(without_positions);
        }
        Value::Array(values) => {
            // Some writers leave a boundary where nothing changes; readers here do not show it.
            values.retain(|v| v["start"].is_null() || v["start"]["deletion_info"] != v["end"]["deletion_info"]);
            values.iter_mut().for_each(without_positions);
        }
        _ => {}
    }
}

async fn dump(table: &Rc<Sstable>) -> Result<Value, Error> {
    let mut out = Vec::new();
    dump_json(table, NOW, &mut out).await?;
    let text = String::from_utf8(out).expect("UTF-8");
    let mut value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
    without_positions(&mut value);
    Ok(value)
}

fn expected(folder: &Path) -> Option<Value> {
    let text = std::fs::read_to_string(folder.join("expected.json")).ok()?;
    let mut value = serde_json::from_str(&text).expect("JSON");
    without_positions(&mut value);
    Some(value)
}

fn assert_same(found: &Value, wanted: &Value, name: &str) {
    if found == wanted {
        return;
    }
    let (Value::Array(found), Value::Array(wanted)) = (found, wanted) else { panic!("{name}: not lists") };
    for (i, (a, b)) in found.iter().zip(wanted).enumerate() {
        let (rows, more) = (a["rows"].as_array(), b["rows"].as_array());
        for (j, (a, b)) in rows.into_iter().flatten().zip(more.into_iter().flatten()).enumerate() {
            assert_eq!(a, b, "{name}: partition {i}, row {j}");
        }
        assert_eq!(a["partition"], b["partition"], "{name}: partition {i}");
        assert_eq!(a, b, "{name}: partition {i}");
    }
    assert_eq!(found.len(), wanted.len(), "{name}");
}

async fn check(folder: &Path) {
    let name = name(folder);
    let place = place(folder).unwrap_or_else(|| panic!("{name}: no sstable of a known version"));
    let table = open(&place).await.unwrap_or_else(|error| panic!("{name}: {error}"));
    if name != "me-bad_digest" {
        table.verify(|_| ()).await.unwrap_or_else(|error| panic!("{name}: {error}"));
    }
    let found = dump(&table).await.unwrap_or_else(|error| panic!("{name}: {error}"));
    if let Some(expected) = expected(folder) {
        assert_same(&found, &expected, &name);
    }
}

#[test]
fn what_cassandra_writes_dumps_as_cassandra_dumps_it() {
    rt::block_on(async {
        let folders = folders(&own());
        assert_eq!(folders.len(), 14);
        for folder in folders {
            check(&folder).await;
        }
    });
}

#[test]
fn other_writers_and_versions_are_read_too() {
    let Some(dir) = others() else { return };
    rt::block_on(async {
        let mut checked = 0;
        for folder in folders(&dir) {
            let name = name(&folder);
            let place = place(&folder);
            match name.as_str() {
                "me-bad_chunk_checksum" => {
                    let table = open(&place.expect("an sstable")).await.expect("opens");
                    assert!(matches!(table.verify(|_| ()).await, Err(Error::Corrupt(_))));
                    assert!(matches!(dump(&table).await, Err(Error::Corrupt(_))));
                }
                "me-bad_digest" => {
                    let table = open(&place.expect("an sstable")).await.expect("opens");
                    assert!(matches!(table.verify(|_| ()).await, Err(Error::Corrupt(_))));
                    check(&folder).await;
                }
                "mc-random_partitioner" => {
                    assert!(matches!(open(&place.expect("an sstable")).await, Err(Error::Unsupported(_))));
                }
                // Newer versions, and the schemas of those made here.
                _ if place.is_none() => continue,
                _ => check(&folder).await,
            }
            checked += 1;
        }
        assert!(checked > 60, "{checked}");
    });
}

/// All fragments of a table.
async fn read(table: &Rc<Sstable>) -> Vec<Fragment> {
    let schema = table.header_schema("ks", "tbl");
    let mut reader = table.reader(&schema, PartitionRange::FULL, Rc::new(Slice::full()), ReadOptions::SCAN);
    let mut out = VecDeque::new();
    while reader.fill(&mut out).await.expect("readable") {}
    out.into()
}

#[test]
fn writing_again_what_cassandra_wrote_counts_the_same() {
    let scratch = std::env::temp_dir().join(format!("messina-sstable-rewrite-{}", std::process::id()));
    std::fs::create_dir_all(&scratch).expect("a scratch directory");
    rt::block_on(async {
        for folder in folders(&own()) {
            let name = name(&folder);
            let place = place(&folder).expect("an sstable");
            let table = open(&place).await.expect("opens");
            let fragments = read(&table).await;
            let options = WriterOptions::new(HostId(Uuid::from_u128(1)));
            let generation = Generation::fresh();
            let schema = table.header_schema("ks", "tbl");
            let mut writer = Writer::create(&scratch, generation, schema, options).await.expect("created");
            for fragment in &fragments {
                writer.push(fragment.clone()).await.expect("written");
            }
            writer.finish(&[]).await.expect("finished").expect("not empty");
            let again = Sstable::open(&scratch, generation, &PageCache::new(1 << 20)).await.expect("opens");
            again.verify(|_| ()).await.unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!(read(&again).await, fragments, "{name}");
            let (new, old) = (again.stats(), table.stats());
            assert_eq!(again.cardinality(), table.cardinality(), "{name}");
            assert_eq!((new.rows, new.columns_set), (old.rows, old.columns_set), "{name}");
            assert_eq!((new.min_timestamp, new.max_timestamp), (old.min_timestamp, old.max_timestamp), "{name}");
            let times = (new.min_deletion_time, new.max_deletion_time);
            assert_eq!(times, (old.min_deletion_time, old.max_deletion_time), "{name}");
            assert_eq!((new.min_ttl, new.max_ttl), (old.min_ttl, old.max_ttl), "{name}");
            assert_eq!(new.drop_times, old.drop_times, "{name}");
            assert_eq!(new.partition_cells, old.partition_cells, "{name}");
            // Unbounded, as after a partition deletion, is right too.
            for (new, old) in [(&new.min_clustering, &old.min_clustering), (&new.max_clustering, &old.max_clustering)] {
                assert!(new == old || new.is_empty(), "{name}: {new:?} {old:?}");
            }
            let bytes = |place: &Place, component| std::fs::read(place.path(component)).expect("readable");
            let filter = sstable::Component::Filter;
            assert!(bytes(again.place(), filter) == bytes(&place, filter), "{name}: the filter");
        }
    });
    let _ = std::fs::remove_dir_all(&scratch);
}
