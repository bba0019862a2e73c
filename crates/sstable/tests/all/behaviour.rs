//! The behaviour of readers: what they wait for, how much they read, and how they read a file of an
//! older schema.

use crate::random;

use bytes::Bytes;
use model::fragment::Fragment;
use model::key::{Clustering, DecoratedKey};
use model::range::{PartitionRange, RowRange, Slice};
use model::row::{self, Cell, Marker, Row};
use model::schema::DroppedColumn;
use model::time::Tombstone;
use model::types::{CqlType, UserType};
use model::{Column, ColumnId, ColumnKind, HostId, SchemaVersion, TableId, TableSchema};
use rand::Rng;
use random::Size;
use rt::fs::IoClass;
use sstable::{Error, Generation, PageCache, ReadOptions, Reader, Sstable, Writer, WriterOptions};
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::path::Path;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use test_support::Scratch;
use uuid::Uuid;

async fn write(dir: &Path, schema: &Rc<TableSchema>, stream: &[Fragment], block: usize) -> Generation {
    let mut options = WriterOptions::new(HostId(Uuid::from_u128(7)));
    options.promoted_index_block = block;
    let generation = Generation::fresh();
    let mut writer = Writer::create(dir, generation, schema.clone(), options).await.expect("created");
    for fragment in stream {
        writer.push(fragment.clone()).await.expect("written");
    }
    writer.finish(&[]).await.expect("finished").expect("not empty");
    generation
}

async fn all(reader: &mut Reader) -> Result<Vec<Fragment>, Error> {
    let mut out = VecDeque::new();
    while reader.fill(&mut out).await? {}
    Ok(out.into())
}

fn column(id: u16, name: &str, kind: ColumnKind, ty: CqlType) -> Column {
    Column { id: ColumnId(id), name: name.into(), kind, position: 0, ty, descending: false }
}

fn table(regulars: Vec<Column>, dropped: Vec<DroppedColumn>) -> Rc<TableSchema> {
    Rc::new(TableSchema::new(
        TableId(Uuid::from_u128(1)),
        SchemaVersion(Uuid::from_u128(2)),
        "ks",
        "tbl",
        vec![column(0, "pk", ColumnKind::PartitionKey, CqlType::Int)],
        vec![column(0, "ck", ColumnKind::Clustering, CqlType::Int)],
        vec![],
        regulars,
        dropped,
        Default::default(),
    ))
}

fn key(n: i32) -> DecoratedKey {
    DecoratedKey::new(Bytes::copy_from_slice(&n.to_be_bytes()))
}

fn clustering(n: i32) -> Clustering {
    Clustering::from_components([&n.to_be_bytes()[..]])
}

fn partition(n: i32, rows: impl IntoIterator<Item = (i32, Row)>) -> Vec<Fragment> {
    let mut out = vec![Fragment::PartitionStart { key: key(n), tombstone: Tombstone::LIVE }];
    out.extend(rows.into_iter().map(|(ck, row)| Fragment::Row { key: clustering(ck), row }));
    out.push(Fragment::PartitionEnd);
    out
}

fn only_row(fragments: &[Fragment]) -> &Row {
    match fragments {
        [_, Fragment::Row { row, .. }, _] => row,
        other => panic!("{other:?}"),
    }
}

#[test]
fn columns_follow_the_newer_schema() {
    let scratch = Scratch::new("evolution");
    rt::block_on(async {
        let person = |fields: &[&str]| {
            CqlType::udt(UserType {
                keyspace: "ks".into(),
                name: "person".into(),
                fields: fields.iter().map(|name| (name.to_string(), CqlType::Text)).collect(),
                frozen: true,
            })
        };
        let regular = |id, name: &str, ty| column(id, name, ColumnKind::Regular, ty);
        let old = table(
            vec![
                regular(0, "kept", CqlType::Int),
                regular(1, "gone", CqlType::Text),
                regular(2, "again", CqlType::Int),
                regular(3, "list", CqlType::list(CqlType::Int)),
                regular(4, "grown", person(&["a"])),
            ],
            vec![],
        );
        let path = Uuid::from_u128(1 << 76 | 2 << 62);
        let udt = [&1u32.to_be_bytes()[..], b"x"].concat();
        let cells = |again: i64| {
            vec![
                Cell::live(ColumnId(0), 10, &[0, 0, 0, 1]),
                Cell::live(ColumnId(1), 10, b"old"),
                Cell::live(ColumnId(2), again, &[0, 0, 0, 2]),
                Cell::live(ColumnId(3), 10, &[0, 0, 0, 3]).at(path.as_bytes()),
                Cell::live(ColumnId(4), 10, &udt),
            ]
        };
        let full = |again| row::build(&old, Some(Marker::new(10)), Tombstone::LIVE, cells(again));
        let lonely = row::build(&old, None, Tombstone::LIVE, vec![Cell::live(ColumnId(1), 10, b"old")]);
        let mut stream = [partition(1, [(1, full(10)), (2, lonely)]), partition(2, [(1, full(30))])].concat();
        if key(1) > key(2) {
            stream.rotate_left(4);
        }
        let generation = write(&scratch, &old, &stream, 64 << 10).await;
        let sstable = Sstable::open(&scratch, generation, &PageCache::new(1 << 20)).await.expect("opens");

        let dropped = |id, name: &str, ty| DroppedColumn {
            id: ColumnId(id),
            name: name.into(),
            kind: ColumnKind::Regular,
            ty,
            drop_time: 20,
        };
        let new = table(
            vec![
                regular(0, "kept", CqlType::Int),
                regular(9, "again", CqlType::Int),
                regular(3, "list", CqlType::list(CqlType::Int)),
                regular(4, "grown", person(&["a", "b"])),
                regular(5, "added", CqlType::Text),
            ],
            vec![dropped(1, "gone", CqlType::Text), dropped(2, "again", CqlType::Int)],
        );
        let read = async |n| {
            let range = PartitionRange::singular(&key(n));
            let mut reader = sstable.reader(&new, range, Rc::new(Slice::full()), ReadOptions::POINT);
            all(&mut reader).await.expect("readable")
        };
        let kept = [
            Cell::live(ColumnId(0), 10, &[0, 0, 0, 1]),
            Cell::live(ColumnId(3), 10, &[0, 0, 0, 3]).at(path.as_bytes()),
            Cell::live(ColumnId(4), 10, &udt),
        ];
        // Row 2 of the first partition had only a column that was dropped.
        assert_eq!(only_row(&read(1).await).cells().collect::<Vec<_>>(), kept);
        // Written after the drop: a cell of the new column of this name.
        let again = Cell::live(ColumnId(9), 30, &[0, 0, 0, 2]);
        assert_eq!(only_row(&read(2).await).cells().collect::<Vec<_>>(), [&kept[..], &[again]].concat());

        let other = table(vec![regular(0, "kept", CqlType::Double)], vec![]);
        let mut reader = sstable.reader(&other, PartitionRange::FULL, Rc::new(Slice::full()), ReadOptions::SCAN);
        assert!(matches!(all(&mut reader).await, Err(Error::Unsupported(_))));
    });
}

/// A random table of some size, with its stream.
async fn big(dir: &Path, seed: u64) -> (Rc<TableSchema>, Vec<Fragment>, Generation) {
    let rng = &mut random::rng(seed);
    let schema = loop {
        let schema = random::schema(rng, 5);
        if !schema.clustering.is_empty() {
            break schema;
        }
    };
    let stream = random::stream(rng, &schema, Size { partitions: 6, rows: 400, value: 300 });
    let generation = write(dir, &schema, &stream, 3000).await;
    (schema, stream, generation)
}

#[test]
fn fills_from_the_cache_are_never_pending() {
    let scratch = Scratch::new("cached");
    rt::block_on(async {
        for seed in 0..4 {
            let (schema, stream, generation) = big(&scratch, seed).await;
            let sstable = Sstable::open(&scratch, generation, &PageCache::new(64 << 20)).await.expect("opens");
            let slice = Rc::new(Slice { reversed: seed % 2 == 1, ..Slice::full() });
            let reader = || sstable.reader(&schema, PartitionRange::FULL, slice.clone(), ReadOptions::POINT);
            let wanted = all(&mut reader()).await.expect("readable");
            assert_eq!(wanted.len(), stream.len());
            let (mut reader, mut out, mut more) = (reader(), VecDeque::new(), true);
            while more {
                let mut fill = pin!(reader.fill(&mut out));
                match fill.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                    Poll::Ready(result) => more = result.expect("readable"),
                    Poll::Pending => panic!("everything is cached"),
                }
            }
            assert!(out.iter().eq(&wanted));
        }
    });
}

#[test]
fn dropped_fills_and_released_readers_lose_nothing() {
    let scratch = Scratch::new("dropped");
    rt::block_on(async {
        for seed in 10..16 {
            let (schema, _, generation) = big(&scratch, seed).await;
            let sstable = Sstable::open(&scratch, generation, &PageCache::new(100_000)).await.expect("opens");
            let slice = Rc::new(Slice { reversed: seed % 2 == 1, ..Slice::full() });
            let options = [ReadOptions::POINT, ReadOptions::SCAN][seed as usize % 2];
            let reader = || sstable.reader(&schema, PartitionRange::FULL, slice.clone(), options);
            let wanted = all(&mut reader()).await.expect("readable");
            let rng = &mut random::rng(seed);
            let (mut reader, mut out, mut more, mut dropped) = (reader(), VecDeque::new(), true, 0);
            while more {
                let patience = rng.gen_range(1..4);
                let mut polls = 0;
                let mut fill = Box::pin(reader.fill(&mut out));
                let done = poll_fn(|cx| match fill.as_mut().poll(cx) {
                    Poll::Ready(result) => Poll::Ready(Some(result)),
                    Poll::Pending if polls == patience => Poll::Ready(None),
                    Poll::Pending => {
                        polls += 1;
                        Poll::Pending
                    }
                })
                .await;
                drop(fill);
                match done {
                    Some(result) => more = result.expect("readable"),
                    None => dropped += 1,
                }
                if rng.gen_bool(0.1) {
                    reader.release();
                }
            }
            assert!(out.iter().eq(&wanted), "seed {seed}, {dropped} fills dropped");
        }
    });
}

fn wide(rows: i32, value: usize) -> (Rc<TableSchema>, Vec<Fragment>) {
    let schema = table(vec![column(0, "v", ColumnKind::Regular, CqlType::Blob)], vec![]);
    let rng = &mut random::rng(3);
    let mut row = |_: i32| {
        let value: Vec<u8> = (0..value).map(|_| rng.r#gen()).collect();
        row::build(&schema, Some(Marker::new(1)), Tombstone::LIVE, vec![Cell::live(ColumnId(0), 1, &value)])
    };
    let rows: Vec<_> = (0..rows).map(|ck| (ck, row(ck))).collect();
    let stream = partition(1, rows);
    (schema, stream)
}

/// Foreground reads so far: how many, and how many bytes.
fn reads() -> (u64, u64) {
    let snapshot = rt::metrics::snapshot();
    let io = snapshot.of(rt::fs::IoClass::Foreground);
    (io.reads, io.read_bytes)
}

#[test]
fn a_point_read_reads_one_page_and_one_chunk_once() {
    let scratch = Scratch::new("point");
    rt::block_on(async {
        let schema = table(vec![column(0, "v", ColumnKind::Regular, CqlType::Blob)], vec![]);
        let mut keys: Vec<_> = (0..2000).map(|n| (key(n), n)).collect();
        keys.sort();
        let row = row::build(&schema, None, Tombstone::LIVE, vec![Cell::live(ColumnId(0), 1, &[7; 100])]);
        let stream: Vec<_> = keys.iter().flat_map(|(_, n)| partition(*n, [(1, row.clone())])).collect();
        let generation = write(&scratch, &schema, &stream, 64 << 10).await;
        let sstable = Sstable::open(&scratch, generation, &PageCache::new(1 << 20)).await.expect("opens");
        let read = |n: i32| {
            let rows = vec![RowRange::prefix(clustering(1))];
            let slice = Rc::new(Slice { rows, ..Slice::full() });
            let mut reader = sstable.reader(&schema, PartitionRange::singular(&key(n)), slice, ReadOptions::POINT);
            async move { all(&mut reader).await.expect("readable").len() }
        };
        let mut counts = Vec::new();
        for n in (0..2000).step_by(100) {
            let before = reads();
            // Two readers at once: the second waits for the read of the first.
            let (a, b) = (rt::task::spawn(read(n)), rt::task::spawn(read(n)));
            assert_eq!((a.await, b.await), (Ok(3), Ok(3)));
            counts.push(reads().0 - before.0);
        }
        // An index entry or a partition may cross into the next page or chunk.
        let total: u64 = counts.iter().sum();
        assert!(counts.iter().all(|&count| count <= 4) && total <= 50, "{counts:?}");
        let before = reads();
        assert_eq!(read(100).await, 3);
        assert_eq!(reads(), before, "cached by now");
        assert!(!sstable.may_contain(&key(1 << 30)) || read(1 << 30).await == 0);
    });
}

#[test]
fn a_wide_partition_is_read_in_large_pieces_and_by_its_blocks() {
    let scratch = Scratch::new("large");
    rt::block_on(async {
        let (schema, stream) = wide(2000, 3000);
        let generation = write(&scratch, &schema, &stream, 64 << 10).await;
        let sstable = Sstable::open(&scratch, generation, &PageCache::new(1 << 20)).await.expect("opens");
        let read = async |rows: Vec<RowRange>, reversed| {
            let slice = Rc::new(Slice { rows, reversed, ..Slice::full() });
            let range = PartitionRange::singular(&key(1));
            let before = reads();
            let mut reader = sstable.reader(&schema, range, slice, ReadOptions::POINT);
            let found = all(&mut reader).await.expect("readable").len();
            let after = reads();
            (found, after.0 - before.0, after.1 - before.1)
        };
        let (found, count, bytes) = read(vec![RowRange::FULL], false).await;
        assert_eq!(found, stream.len());
        assert!(count < 60 && bytes < 7_500_000, "{count} reads of {bytes} bytes");
        // One row in the middle takes a few index pages and part of one block.
        for reversed in [false, true] {
            for ck in [0, 700, 1300, 1999] {
                let (found, count, bytes) = read(vec![RowRange::prefix(clustering(ck))], reversed).await;
                assert_eq!(found, 3);
                assert!(count < 20 && bytes < 400_000, "{count} reads of {bytes} bytes for row {ck}");
            }
            // The first and the last row: nothing between them is read.
            let ends = vec![RowRange::prefix(clustering(3)), RowRange::prefix(clustering(1990))];
            let (found, count, bytes) = read(ends, reversed).await;
            assert_eq!(found, 4);
            assert!(count < 40 && bytes < 800_000, "{count} reads of {bytes} bytes");
        }
    });
}

#[test]
fn a_sequential_reader_reads_across_single_cached_chunks_in_large_pieces() {
    let scratch = Scratch::new("across-cached");
    rt::block_on(async {
        let (schema, wide) = wide(2000, 3000);
        let only_row = |fragment| match fragment {
            Fragment::Row { row, .. } => Some(row),
            _ => None,
        };
        let mut keys: Vec<_> = (0..2000).map(|n| (key(n), n)).collect();
        keys.sort();
        let rows = keys.iter().zip(wide.into_iter().filter_map(only_row));
        let stream: Vec<_> = rows.flat_map(|((_, n), row)| partition(*n, [(1, row)])).collect();
        let generation = write(&scratch, &schema, &stream, 64 << 10).await;
        let sstable = Sstable::open(&scratch, generation, &PageCache::new(64 << 20)).await.expect("opens");
        let read = |range, options| {
            let mut reader = sstable.reader(&schema, range, Rc::new(Slice::full()), options);
            async move { all(&mut reader).await.expect("readable") }
        };
        for (key, _) in keys.iter().step_by(10) {
            assert_eq!(read(PartitionRange::singular(key), ReadOptions::POINT).await.len(), 3);
        }
        let before = rt::metrics::snapshot().of(IoClass::Background).reads;
        assert_eq!(read(PartitionRange::FULL, ReadOptions::BACKGROUND).await, stream);
        let count = rt::metrics::snapshot().of(IoClass::Background).reads - before;
        assert!(count <= 30, "{count} reads of 6 MB with a cached chunk in every 30 KB");
    });
}

#[test]
fn a_reader_with_a_waiting_client_prefetches() {
    const WINDOW: usize = 512 << 10;
    let scratch = Scratch::new("ahead");
    rt::block_on(async {
        let (schema, stream) = wide(3000, 3000);
        let generation = write(&scratch, &schema, &stream, 64 << 10).await;
        let background = ReadOptions { class: IoClass::Background, ..ReadOptions::SCAN };
        // A budget of 64 MiB allows four windows; three of them count as reads ahead.
        for (budget, options, ahead) in
            [(64 << 20, ReadOptions::SCAN, 4), (1 << 20, ReadOptions::SCAN, 1), (64 << 20, background, 1)]
        {
            let cache = PageCache::new(budget);
            let sstable = Sstable::open(&scratch, generation, &cache).await.expect("opens");
            let reader = || sstable.reader(&schema, PartitionRange::FULL, Rc::new(Slice::full()), options);
            let read_on = async |reader: &mut Reader, rows: usize| {
                let (mut out, mut found) = (VecDeque::new(), 0);
                while found < rows {
                    assert!(reader.fill(&mut out).await.expect("readable"), "there is more");
                    found += out.drain(..).count();
                }
                reader.memory_bytes()
            };
            let (mut first, mut second) = (reader(), reader());
            let held = read_on(&mut first, 1500).await;
            assert!((ahead * WINDOW..(ahead + 2) * WINDOW).contains(&held), "{budget}, {ahead}: {held}");
            let held = read_on(&mut second, 1500).await;
            assert!((WINDOW..4 * WINDOW).contains(&held), "the room is for all: {held}");
            drop(first);
            let held = read_on(&mut second, 400).await;
            assert!((ahead * WINDOW..(ahead + 2) * WINDOW).contains(&held), "{budget}, {ahead}: {held}");
        }
    });
}

#[test]
fn readers_side_by_side_see_the_same() {
    let scratch = Scratch::new("together");
    rt::block_on(async {
        for (seed, budget) in [(30, 0), (31, 30_000), (32, 300_000), (33, 64 << 20)] {
            let (schema, stream, generation) = big(&scratch, seed).await;
            let partitions = Rc::new(random::partitions(&stream));
            let cache = PageCache::new(budget);
            let sstable = Sstable::open(&scratch, generation, &cache).await.expect("opens");
            let task = |number: u64| {
                let (sstable, schema, partitions) = (sstable.clone(), schema.clone(), partitions.clone());
                async move {
                    let rng = &mut random::rng(seed * 100 + number);
                    for _ in 0..15 {
                        let partition = &partitions[rng.gen_range(0..partitions.len())];
                        let Fragment::PartitionStart { key, .. } = &partition[0] else { panic!("not a partition") };
                        let options = [ReadOptions::POINT, ReadOptions::SCAN][rng.gen_range(0..2)];
                        let slice = Rc::new(Slice::full());
                        let mut reader = sstable.reader(&schema, PartitionRange::singular(key), slice, options);
                        let mut out = VecDeque::new();
                        let (patience, mut polls) = (rng.gen_range(1..20), 0);
                        loop {
                            let mut fill = Box::pin(reader.fill(&mut out));
                            let done = poll_fn(|cx| match fill.as_mut().poll(cx) {
                                Poll::Ready(result) => Poll::Ready(Some(result)),
                                Poll::Pending if polls == patience => Poll::Ready(None),
                                Poll::Pending => {
                                    polls += 1;
                                    Poll::Pending
                                }
                            })
                            .await;
                            match done {
                                Some(result) if result.as_ref().is_ok_and(|more| *more) => {}
                                Some(result) => {
                                    result.expect("readable");
                                    drop(fill);
                                    assert!(out.iter().eq(partition), "seed {seed}, task {number}");
                                    break;
                                }
                                // The reader is dropped in the middle. Others must not wait for it.
                                None => break,
                            }
                        }
                    }
                }
            };
            let tasks: Vec<_> = (0..8).map(|number| rt::task::spawn(task(number))).collect();
            for task in tasks {
                task.await.expect("it ends");
            }
            assert!(cache.stats().bytes <= budget);
            drop(sstable);
            assert_eq!(cache.stats().bytes, 0);
        }
    });
}

#[test]
fn rows_out_of_order_are_reported_as_corrupt() {
    let scratch = Scratch::new("order");
    rt::block_on(async {
        let schema = table(vec![column(0, "v", ColumnKind::Regular, CqlType::Int)], vec![]);
        let live = || row::build(&schema, Some(Marker::new(1)), Tombstone::LIVE, vec![]);
        // Adjacent keys, equal keys, and keys so far apart that they are in two batches.
        for keys in [vec![1, 3, 2, 4], vec![1, 2, 2], (0..20_000).chain([7]).collect()] {
            let rows: Vec<_> = keys.iter().map(|&ck| (ck, live())).collect();
            let mut partitions = [partition(1, [(5, live())]), partition(2, rows)];
            partitions.sort_by_key(|partition| match &partition[0] {
                Fragment::PartitionStart { key, .. } => key.clone(),
                other => panic!("a partition begins with {other:?}"),
            });
            let generation = write(&scratch, &schema, &partitions.concat(), 64 << 10).await;
            let sstable = Sstable::open(&scratch, generation, &PageCache::new(1 << 20)).await.expect("opens");
            let full = Rc::new(Slice::full());
            let mut reader = sstable.reader(&schema, PartitionRange::FULL, full, ReadOptions::BACKGROUND);
            assert!(matches!(all(&mut reader).await, Err(Error::Corrupt(_))), "{} rows", keys.len());
            assert!(matches!(sstable.verify(|_| ()).await, Err(Error::Corrupt(_))), "{} rows", keys.len());
        }
    });
}

/// A column is dropped, its user type created again with other fields, and the column added with
/// that type. Metadata of releases before 0.3 do not have the old type.
#[test]
fn a_dropped_column_of_another_type_leaves_the_others_readable() {
    let scratch = Scratch::new("dropped-type");
    rt::block_on(async {
        let user_type = |fields: &[(&str, CqlType)], frozen| {
            let fields = fields.iter().map(|(name, ty)| (name.to_string(), ty.clone())).collect();
            CqlType::udt(UserType { keyspace: "ks".into(), name: "ud".into(), fields, frozen })
        };
        let before = |frozen| user_type(&[("x", CqlType::Int), ("y", CqlType::Text)], frozen);
        let after = |frozen| user_type(&[("y", CqlType::Text), ("x", CqlType::Int)], frozen);
        let value = [&4u32.to_be_bytes()[..], &[0, 0, 0, 5], &4u32.to_be_bytes(), b"abcd"].concat();
        let plain = || Cell::live(ColumnId(1), 10, &value);
        let field = || Cell::live(ColumnId(1), 10, &[0, 0, 0, 5]).at(&[0, 0]);
        let path = Uuid::from_u128(1 << 76 | 2 << 62);
        let cases = [
            (before(true), after(true), plain()),
            (before(false), after(false), field()),
            (CqlType::list(before(true)), CqlType::list(after(true)), plain().at(path.as_bytes())),
            (CqlType::tuple([before(true)]), CqlType::tuple([after(true)]), plain()),
            // Added with another frozenness. No release allowed that, but it must not matter
            // either.
            (before(true), after(false), plain()),
        ];
        for (old, new, cell) in cases {
            let kept = column(0, "kept", ColumnKind::Regular, CqlType::Int);
            let written = table(vec![kept.clone(), column(1, "a", ColumnKind::Regular, old.clone())], vec![]);
            let cells = vec![Cell::live(ColumnId(0), 10, &[0, 0, 0, 1]), cell];
            let stream = partition(1, [(1, row::build(&written, Some(Marker::new(10)), Tombstone::LIVE, cells))]);
            let generation = write(&scratch, &written, &stream, 64 << 10).await;
            let sstable = Sstable::open(&scratch, generation, &PageCache::new(1 << 20)).await.expect("opens");
            // Only the name of the dropped type is known. It is that of the new type, or of none.
            for ty in [new.clone(), CqlType::Blob, old.clone()] {
                let dropped =
                    DroppedColumn { id: ColumnId(1), name: "a".into(), kind: ColumnKind::Regular, ty, drop_time: 20 };
                let schema = table(vec![kept.clone(), column(2, "a", ColumnKind::Regular, new.clone())], vec![dropped]);
                let range = PartitionRange::singular(&key(1));
                let mut reader = sstable.reader(&schema, range, Rc::new(Slice::full()), ReadOptions::POINT);
                let found = all(&mut reader).await.unwrap_or_else(|error| panic!("{old}: {error}"));
                let cells: Vec<_> = only_row(&found).cells().collect();
                assert_eq!(cells, [Cell::live(ColumnId(0), 10, &[0, 0, 0, 1])], "{old}");
            }
            // Without a drop, the file does not belong to the table.
            let schema = table(vec![kept, column(2, "a", ColumnKind::Regular, new)], vec![]);
            let mut reader = sstable.reader(&schema, PartitionRange::FULL, Rc::new(Slice::full()), ReadOptions::SCAN);
            assert!(matches!(all(&mut reader).await, Err(Error::Unsupported(_))), "{old}");
        }
    });
}
