//! The list of large partitions, rows and cells is known after opening, and removed with the
//! sstable.

use model::fragment::Fragment;
use model::key::{Clustering, DecoratedKey};
use model::row::{Cell, Marker, RowBuilder};
use model::schema::{Column, ColumnKind};
use model::time::Tombstone;
use model::types::CqlType;
use model::{ColumnId, HostId, SchemaVersion, TableId, TableSchema};
use sstable::{Component, Generation, Large, LargeKind, LargeLimits, PageCache, Sstable, Writer, WriterOptions};
use std::rc::Rc;
use test_support::Scratch;
use uuid::Uuid;

const VALUE: ColumnId = ColumnId(0);
const SET: ColumnId = ColumnId(1);
const FIXED: ColumnId = ColumnId(2);
const LIMITS: LargeLimits = LargeLimits {
    partition_bytes: 300,
    partition_rows: 5,
    row_bytes: 200,
    cell_bytes: 150,
    collection_elements: 3,
    records: 10,
};

/// `t (k text, c int, v text, x set<text>, s text static, primary key (k, c))`.
fn schema() -> Rc<TableSchema> {
    let column = |id, name: &str, kind, ty| Column { id, name: name.into(), kind, position: 0, ty, descending: false };
    Rc::new(TableSchema::new(
        TableId(Uuid::from_u128(1)),
        SchemaVersion(Uuid::from_u128(2)),
        "ks",
        "t",
        vec![column(ColumnId(0), "k", ColumnKind::PartitionKey, CqlType::Text)],
        vec![column(ColumnId(0), "c", ColumnKind::Clustering, CqlType::Int)],
        vec![column(FIXED, "s", ColumnKind::Static, CqlType::Text)],
        vec![
            column(VALUE, "v", ColumnKind::Regular, CqlType::Text),
            column(SET, "x", ColumnKind::Regular, CqlType::set(CqlType::Text)),
        ],
        Vec::new(),
        Default::default(),
    ))
}

fn row(clustering: i32, cells: &[Cell<'_>]) -> Fragment {
    let mut row = RowBuilder::new(Some(Marker::new(1)), Tombstone::LIVE);
    cells.iter().for_each(|cell| row.push(cell));
    Fragment::Row { key: Clustering::from_components([&clustering.to_be_bytes()[..]]), row: row.finish() }
}

/// Partitions in the order of their tokens.
fn contents() -> Vec<Fragment> {
    let value = |bytes| Cell::live(VALUE, 1, bytes);
    let set: Vec<_> = ["a", "b", "c", "d"].iter().map(|path| Cell::live(SET, 1, b"").at(path.as_bytes())).collect();
    let mut fixed = RowBuilder::new(None, Tombstone::LIVE);
    fixed.push(&Cell::live(FIXED, 1, &[b'x'; 160]));
    let mut partitions = vec![
        ("long", vec![Fragment::Static(fixed.finish()), row(1, &[]), row(2, &[value(&[b'x'; 250])]), row(3, &set)]),
        ("many", (0..6).map(|c| row(c, &[])).collect()),
        ("little", vec![row(1, &[value(b"x")]), row(2, &set[..3])]),
    ];
    let key = |name: &str| DecoratedKey::new(name.as_bytes().to_vec().into());
    partitions.sort_by_key(|(name, _)| key(name));
    let mut fragments = Vec::new();
    for (name, rows) in partitions {
        fragments.push(Fragment::PartitionStart { key: key(name), tombstone: Tombstone::LIVE });
        fragments.extend(rows);
        fragments.push(Fragment::PartitionEnd);
    }
    fragments
}

#[test]
fn large_data_is_known_when_an_sstable_is_opened() {
    let dir = Scratch::new("sstable-large");
    rt::block_on(async {
        for (limits, expected) in [(LargeLimits::default(), 0), (LIMITS, 6)] {
            let options = WriterOptions { large: limits, ..WriterOptions::new(HostId(Uuid::from_u128(7))) };
            let generation = Generation::fresh();
            let counts = options.large_counts.clone();
            let mut writer = Writer::create(&dir, generation, schema(), options).await.expect("created");
            for fragment in contents() {
                writer.push(fragment).await.expect("written");
            }
            writer.finish(&[]).await.expect("finished").expect("not empty");
            let sstable = Sstable::open(&dir, generation, &PageCache::new(1 << 20)).await.expect("opened");
            let path = sstable.place().path(Component::LargeData);
            assert_eq!(path.exists(), expected > 0, "the component is there if something is large");
            assert_eq!(sstable.components().iter().any(|name| name == "LargeData.db"), expected > 0);
            let list = sstable.large().map(|large| large.list.clone()).unwrap_or_default();
            assert_eq!(list.len(), expected, "{list:#?}");
            if expected == 0 {
                continue;
            }
            assert!(sstable.large().is_some_and(|large| large.written_at > 1_600_000_000_000));
            let counted =
                [&counts.partitions, &counts.rows, &counts.cells, &counts.collections].map(|count| count.get());
            assert_eq!(counted, [1, 1, 2, 1], "partitions by bytes, rows, cells, collections by elements");
            let cell = |clustering: &str, column: &str, elements| LargeKind::Cell {
                clustering_key: clustering.into(),
                column: column.into(),
                elements,
            };
            let things = [
                ("long", None, LargeKind::Partition { rows: 3, range_tombstones: 0 }),
                ("many", None, LargeKind::Partition { rows: 6, range_tombstones: 0 }),
                ("long", None, LargeKind::Row { clustering_key: "2".into() }),
                ("long", Some(250), cell("2", "v", 0)),
                ("long", Some(160), cell("", "s", 0)),
                ("long", Some(4), cell("3", "x", 4)),
            ];
            for (Large { size, partition_key, key, what, .. }, (text, bytes, kind)) in list.iter().zip(&things) {
                assert_eq!((partition_key.as_str(), &key[..], what), (*text, text.as_bytes(), kind));
                assert!(bytes.is_none_or(|bytes| bytes == *size) && *size > 0, "{what:?} of {size} bytes");
            }
            // Opening detects damage.
            let bytes = std::fs::read(&path).expect("readable");
            for at in 0..bytes.len() {
                let mut damaged = bytes.clone();
                damaged[at] ^= 1;
                std::fs::write(&path, &damaged).expect("written");
                assert!(Sstable::open(&dir, generation, &PageCache::new(1 << 20)).await.is_err(), "byte {at}");
            }
            std::fs::write(&path, &bytes).expect("written");
            sstable::directory::remove(sstable.place()).await.expect("removed");
            assert!(!path.exists(), "it goes with the sstable");
        }
    });
}

#[test]
fn only_so_many_are_kept_by_each_measure() {
    let dir = Scratch::new("sstable-large-few");
    rt::block_on(async {
        let large = LargeLimits { partition_bytes: 1, partition_rows: 1, records: 1, ..LIMITS };
        let options = WriterOptions { large, ..WriterOptions::new(HostId(Uuid::from_u128(7))) };
        let (generation, counts) = (Generation::fresh(), options.large_counts.clone());
        let mut writer = Writer::create(&dir, generation, schema(), options).await.expect("created");
        for fragment in contents() {
            writer.push(fragment).await.expect("written");
        }
        writer.finish(&[]).await.expect("finished").expect("not empty");
        let sstable = Sstable::open(&dir, generation, &PageCache::new(1 << 20)).await.expect("opened");
        let list = &sstable.large().expect("something is large").list;
        let partitions: Vec<&str> = list
            .iter()
            .filter(|large| matches!(large.what, LargeKind::Partition { .. }))
            .map(|large| large.partition_key.as_str())
            .collect();
        assert_eq!(partitions, ["long", "many"], "the one of most bytes, and the one of most rows");
        assert_eq!(counts.partitions.get(), 3, "all of them are counted");
    });
}
