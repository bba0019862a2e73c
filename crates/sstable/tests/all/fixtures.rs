//! Sstables that Cassandra and ScyllaDB wrote: they verify, are dumped as by Cassandra's own tool,
//! and are the same when they are written again.
//!
//! Files made with Cassandra's writer are in `tests/fixtures`. The test of other writers and
//! versions reads the folder `SSTABLE_FIXTURES`; the step `other-sstables` of tests/run runs it.

use model::HostId;
use model::fragment::Fragment;
use model::range::{PartitionRange, Slice};
use serde_json::Value;
use sstable::dump::dump_json;
use sstable::{Error, Generation, PageCache, ReadOptions, Sstable, SstablePath, Version, Writer, WriterOptions};
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use test_support::Scratch;
use uuid::Uuid;

/// Later than every TTL in the fixtures.
const NOW: i32 = 1_800_000_000;

fn own() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures")
}

/// The folder of the other fixtures.
fn others() -> PathBuf {
    std::env::var_os("SSTABLE_FIXTURES").expect("SSTABLE_FIXTURES names the folder").into()
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

/// The sstable in a folder; `None` if its version cannot be read.
fn place(folder: &Path) -> Option<SstablePath> {
    let names = std::fs::read_dir(folder).expect("a folder").map(|e| e.expect("an entry").file_name());
    names.filter_map(|name| SstablePath::parse_name(folder, &name.to_string_lossy())).map(|(place, _)| place).next()
}

async fn open(place: &SstablePath) -> Result<Rc<Sstable>, Error> {
    Sstable::open_at(place, &PageCache::new(10 << 20)).await
}

/// Removes positions, which Messina's dumps do not have.
fn without_positions(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.remove("position");
            map.values_mut().for_each(without_positions);
        }
        Value::Array(values) => values.iter_mut().for_each(without_positions),
        _ => {}
    }
}

async fn dump(table: &Rc<Sstable>) -> Result<Value, Error> {
    let mut out = Vec::new();
    dump_json(table, NOW, &mut out, |_| ()).await?;
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
fn sstables_of_cassandra_are_dumped_as_cassandra_dumps_them() {
    rt::block_on(async {
        let mut checked = 0;
        for folder in folders(&own()) {
            let name = name(&folder);
            if is_newer(&name) {
                assert_refused(&folder);
                continue;
            }
            assert!(expected(&folder).is_some(), "{name}");
            check(&folder).await;
            checked += 1;
        }
        assert!(checked >= 25, "{checked}");
    });
}

/// Versions of Cassandra 5.
fn is_newer(name: &str) -> bool {
    name.starts_with("cassandra-oa") || name.starts_with("cassandra-da")
}

fn assert_refused(folder: &Path) {
    assert!(place(folder).is_none(), "{}", folder.display());
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let file = entry.expect("an entry").file_name().to_string_lossy().into_owned();
        let refused = sstable::unreadable_format(&file);
        assert!(file == "expected.json" || refused.is_some_and(|text| text.contains("Cassandra 5")), "{file}");
    }
}

/// The Statistics.db of version `nb` as in version `na`: without the host id.
fn without_host_id(bytes: &[u8]) -> Vec<u8> {
    let be32 = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().expect("four bytes")) as usize;
    let sum = |bytes: &[u8]| crc32fast::hash(bytes).to_be_bytes();
    let count = be32(0);
    let list: Vec<(usize, usize)> = (0..count).map(|i| (be32(8 + 8 * i), be32(12 + 8 * i))).collect();
    let mut out = bytes[..8].to_vec();
    let mut tail = Vec::new();
    for (i, &(kind, start)) in list.iter().enumerate() {
        let end = list.get(i + 1).map_or(bytes.len(), |&(_, end)| end) - 4;
        let mut part = &bytes[start..end];
        if kind == 2 {
            part = match part {
                [head @ .., 0] if part[part.len() - 17] != 1 => head,
                part => &part[..part.len() - 17],
            };
        }
        out.extend_from_slice(&(kind as u32).to_be_bytes());
        out.extend_from_slice(&((12 + 8 * count + tail.len()) as u32).to_be_bytes());
        tail.extend_from_slice(part);
        tail.extend_from_slice(&sum(part));
    }
    let list = [&out[..4], &out[8..]].concat();
    out.extend_from_slice(&sum(&list));
    out.extend_from_slice(&tail);
    out
}

#[test]
fn na_is_nb_without_a_host_id() {
    let scratch = Scratch::new("sstable-na");
    rt::block_on(async {
        for name in ["cassandra-nb-basic", "cassandra-nb-collections", "cassandra-nb-clustering"] {
            scratch.clear();
            for entry in std::fs::read_dir(own().join(name)).expect("a folder") {
                let path = entry.expect("an entry").path();
                let file = path.file_name().expect("a name").to_string_lossy().into_owned();
                let mut bytes = std::fs::read(&path).expect("readable");
                if file.ends_with("Statistics.db") {
                    bytes = without_host_id(&bytes);
                }
                std::fs::write(scratch.join(file.replace("nb-", "na-")), bytes).expect("written");
            }
            let table = open(&place(&scratch).expect("an sstable")).await.expect("opens");
            assert_eq!((table.version(), table.stats().host_id), (Version::Na, None));
            check(&scratch).await;
        }
    });
}

#[test]
#[ignore = "the step other-sstables of tests/run gives it its files"]
fn other_writers_and_versions_are_read_too() {
    let dir = others();
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
                _ if is_newer(&name) => assert_refused(&folder),
                // Folders with only a schema.
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
    let scratch = Scratch::new("sstable-rewrite");
    rt::block_on(async {
        for folder in folders(&own()) {
            let name = name(&folder);
            let Some(place) = place(&folder) else { continue };
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
            // Unbounded, as after a partition deletion, is also right.
            for (new, old) in [(&new.min_clustering, &old.min_clustering), (&new.max_clustering, &old.max_clustering)] {
                assert!(new == old || new.is_empty(), "{name}: {new:?} {old:?}");
            }
            let bytes = |place: &SstablePath, component| std::fs::read(place.path(component)).expect("readable");
            let filter = sstable::Component::Filter;
            // From version `na` on, the bytes of a word have another order.
            assert!(
                place.version >= Version::Na || bytes(again.place(), filter) == bytes(&place, filter),
                "{name}: the filter"
            );
        }
    });
}
