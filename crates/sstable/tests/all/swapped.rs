//! A Data.db that is intact, but belongs to another sstable: opening or reading is an error that
//! names the file, and never yields what the file has.

use crate::corruption::{is_damage, read};
use bytes::Bytes;
use model::fragment::Fragment;
use model::key::{Clustering, DecoratedKey, RingCut};
use model::range::PartitionRange;
use model::row::{Cell, Marker, RowBuilder};
use model::schema::{Column, ColumnKind};
use model::time::Tombstone;
use model::{ColumnId, CqlType, HostId, SchemaVersion, TableId, TableSchema};
use sstable::{
    Algorithm, Component, Compression, Error, Generation, PageCache, ReadOptions, Sstable, SstablePath, Writer,
    WriterOptions,
};
use std::path::Path;
use std::rc::Rc;
use test_support::Scratch;
use uuid::Uuid;

/// `t (k int primary key, v blob)`.
fn schema() -> Rc<TableSchema> {
    let column =
        |name: &str, kind, ty| Column { id: ColumnId(0), name: name.into(), kind, position: 0, ty, descending: false };
    Rc::new(TableSchema::new(
        TableId(Uuid::from_u128(1)),
        SchemaVersion(Uuid::from_u128(2)),
        "ks",
        "t",
        vec![column("k", ColumnKind::PartitionKey, CqlType::Int)],
        Vec::new(),
        Vec::new(),
        vec![column("v", ColumnKind::Regular, CqlType::Blob)],
        Vec::new(),
        Default::default(),
    ))
}

fn keys(range: std::ops::Range<i32>) -> Vec<DecoratedKey> {
    let mut keys: Vec<_> = range.map(|k| DecoratedKey::new(Bytes::copy_from_slice(&k.to_be_bytes()))).collect();
    keys.sort();
    keys
}

/// One partition for each key, with a value of 100 bytes.
async fn write(
    dir: &Path,
    compression: Option<Algorithm>,
    keys: &[DecoratedKey],
    value: impl Fn(usize) -> u8,
) -> SstablePath {
    let mut options = WriterOptions::new(HostId(Uuid::from_u128(7)));
    options.compression = compression.map(|algorithm| Compression { algorithm, chunk_length: 1024 });
    let generation = Generation::fresh();
    let mut writer = Writer::create(dir, generation, schema(), options).await.expect("created");
    for (i, key) in keys.iter().enumerate() {
        let mut row = RowBuilder::new(Some(Marker::new(5)), Tombstone::LIVE);
        row.push(&Cell::live(ColumnId(0), 5, &[value(i); 100]));
        let clustering = Clustering::from_components(std::iter::empty::<&[u8]>());
        for fragment in [
            Fragment::PartitionStart { key: key.clone(), tombstone: Tombstone::LIVE },
            Fragment::Row { key: clustering, row: row.finish() },
            Fragment::PartitionEnd,
        ] {
            writer.push(fragment).await.expect("written");
        }
    }
    writer.finish(&[]).await.expect("finished").expect("not empty");
    SstablePath::new(dir, generation)
}

fn swap(a: &SstablePath, b: &SstablePath) {
    let [a, b] = [a, b].map(|place| place.path(Component::Data));
    let [data_a, data_b] = [&a, &b].map(|path| std::fs::read(path).expect("readable"));
    assert!(data_a.len() == data_b.len() && data_a != data_b, "the case needs other data of one length");
    std::fs::write(a, data_b).expect("written");
    std::fs::write(b, data_a).expect("written");
}

/// Makes Checksums.db as release 0.1.0 wrote it.
fn make_old(place: &SstablePath) {
    test_support::make_checksums_old(&place.path(Component::Checksums));
}

async fn open(place: &SstablePath) -> Result<Rc<Sstable>, Error> {
    Sstable::open_at(place, &PageCache::new(1 << 20)).await
}

#[track_caller]
fn names_data(error: &Error, place: &SstablePath) {
    let text = error.to_string();
    assert!(is_damage(error) && text.contains(&place.path(Component::Data).display().to_string()), "{text}");
}

const KINDS: [ReadOptions; 3] = [ReadOptions::POINT, ReadOptions::SCAN, ReadOptions::BACKGROUND];

/// Reads all that the readers yield. The first error names Data.db.
async fn reads_fail(place: &SstablePath, ranges: &[PartitionRange]) {
    for range in ranges {
        for options in KINDS {
            let sstable = open(place).await.expect("opens");
            let (_, error) = read(&sstable, &schema(), range.clone(), options).await;
            names_data(&error.unwrap_or_else(|| panic!("{range:?} {options:?}: no error")), place);
        }
    }
}

#[test]
fn the_compressed_data_of_another_sstable_is_found_on_opening() {
    rt::block_on(async {
        // One chunk and several, with the same keys and with others.
        for (count, other) in [(1, 0..1), (1, 1..2), (60, 0..60), (60, 100..160)] {
            let dir = Scratch::new("sstable-swapped");
            let a = write(&dir, Some(Algorithm::Noop), &keys(0..count), |_| 1).await;
            let b = write(&dir, Some(Algorithm::Noop), &keys(other), |_| 2).await;
            swap(&a, &b);
            for place in [&a, &b] {
                names_data(&open(place).await.expect_err("it is damaged"), place);
            }
            swap(&a, &b);
            assert!(open(&a).await.expect("opens").verify(|_| ()).await.expect("sound").all_protected);
        }
    });
}

#[test]
fn the_plain_data_of_another_sstable_is_found_by_each_read() {
    rt::block_on(async {
        let dir = Scratch::new("sstable-swapped-plain");
        let a = write(&dir, None, &keys(0..20), |_| 1).await;
        let b = write(&dir, None, &keys(0..20), |_| 2).await;
        swap(&a, &b);
        reads_fail(&a, &[PartitionRange::FULL, PartitionRange::singular(&keys(0..20)[7])]).await;
    });
}

/// The first and the last chunk are the same, and the keys: only the sum of all content differs.
#[test]
fn chunks_of_another_sstable_are_found_when_all_is_read() {
    rt::block_on(async {
        let dir = Scratch::new("sstable-swapped-middle");
        let a = write(&dir, Some(Algorithm::Noop), &keys(0..60), |_| 1).await;
        let b = write(&dir, Some(Algorithm::Noop), &keys(0..60), |i| if i == 30 { 2 } else { 1 }).await;
        let sound = open(&a).await.expect("opens");
        let (content, error) = read(&sound, &schema(), PartitionRange::FULL, ReadOptions::BACKGROUND).await;
        assert!(error.is_none() && content.len() == 180, "{error:?}");
        swap(&a, &b);
        for is_cached in [false, true] {
            let sstable = open(&a).await.expect("opens");
            if is_cached {
                let (_, error) = read(&sstable, &schema(), PartitionRange::FULL, ReadOptions::POINT).await;
                assert!(error.is_none(), "only all of it differs: {error:?}");
            }
            let (_, error) = read(&sstable, &schema(), PartitionRange::FULL, ReadOptions::BACKGROUND).await;
            names_data(&error.expect("the sum differs"), &a);
        }
        names_data(&open(&a).await.expect("opens").verify(|_| ()).await.expect_err("it is damaged"), &a);
    });
}

/// Sstables of release 0.1.0 have no checksums that bind Data.db. They are read as before, and the
/// keys of another sstable are an error.
#[test]
fn keys_of_another_sstable_are_found_without_new_checksums() {
    rt::block_on(async {
        for (own, other) in [(0..60, 100..160), (0..1, 1..2)] {
            let dir = Scratch::new("sstable-swapped-old");
            let all = keys(own.clone());
            let a = write(&dir, Some(Algorithm::Noop), &all, |_| 1).await;
            let b = write(&dir, Some(Algorithm::Noop), &keys(other), |_| 1).await;
            make_old(&a);
            make_old(&b);
            let sstable = open(&a).await.expect("opens");
            for options in KINDS {
                let (found, error) = read(&sstable, &schema(), PartitionRange::FULL, options).await;
                assert!(error.is_none() && found.len() == 3 * own.len(), "{error:?}");
            }
            assert!(sstable.verify(|_| ()).await.is_ok());
            swap(&a, &b);
            let mut ranges = vec![PartitionRange::FULL, PartitionRange::singular(&all[all.len() / 2])];
            if own.len() > 1 {
                ranges.push(PartitionRange { start: RingCut::MIN, end: RingCut::after_key(&all[20]) });
                ranges.push(PartitionRange { start: RingCut::before_key(&all[20]), end: RingCut::MAX });
                ranges.push(PartitionRange { start: RingCut::before_key(&all[20]), end: RingCut::after_key(&all[40]) });
            }
            reads_fail(&a, &ranges).await;
        }
    });
}
