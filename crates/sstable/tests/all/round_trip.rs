//! Laws of reading written data: forward, in descending order, by slices, one partition or many,
//! with and without a cache.

use crate::random;

use model::TableSchema;
use model::fragment::Fragment;
use model::key::{ClusteringCut, DecoratedKey, RingCut};
use model::range::{PartitionRange, Resume, RowRange, Slice};
use model::time::Tombstone;
use model::{HostId, token};
use rand::Rng;
use rand::rngs::StdRng;
use random::Size;
use sstable::{Algorithm, Compression, Generation, PageCache, ReadOptions, Reader, Sstable, Writer, WriterOptions};
use std::collections::VecDeque;
use std::path::Path;
use std::rc::Rc;
use test_support::Scratch;
use uuid::Uuid;

/// A directory that is removed at the end of the test.
async fn write(dir: &Path, schema: &Rc<TableSchema>, stream: &[Fragment], options: WriterOptions) -> Generation {
    let generation = Generation::fresh();
    let mut writer = Writer::create(dir, generation, schema.clone(), options).await.expect("created");
    for fragment in stream {
        writer.push(fragment.clone()).await.expect("written");
    }
    let sealed = writer.finish(&[]).await.expect("finished").expect("not empty");
    assert_eq!(sealed.partitions, random::partitions(stream).len() as u64);
    generation
}

async fn all(mut reader: Reader) -> Vec<Fragment> {
    let mut out = VecDeque::new();
    loop {
        let before = out.len();
        let more = reader.fill(&mut out).await.expect("readable");
        assert!(!more || out.len() > before, "a fill that is not the last yields something");
        if !more {
            return out.into();
        }
    }
}

fn assert_same(found: &[Fragment], wanted: &[Fragment], what: &str) {
    for (i, (a, b)) in found.iter().zip(wanted).enumerate() {
        assert_eq!(a, b, "{what}: fragment {i}");
    }
    assert_eq!(found.len(), wanted.len(), "{what}");
}

/// What a reader must yield of one partition.
fn expected(
    schema: &TableSchema,
    partition: &[Fragment],
    rows: &[RowRange],
    fixed: bool,
    reversed: bool,
) -> Vec<Fragment> {
    let order = &schema.order;
    let mut out = vec![partition[0].clone()];
    if let (true, Fragment::Static(_)) = (fixed, &partition[1]) {
        out.push(partition[1].clone());
    }
    let mut body = Vec::new();
    for range in rows {
        let (mut open, mut inside) = (Tombstone::LIVE, Vec::new());
        for fragment in partition {
            match fragment {
                Fragment::Row { key, .. } if schema.clustering.is_empty() || range.contains(order, key) => {
                    inside.push(fragment.clone());
                }
                Fragment::Change { at, tombstone } => {
                    if at.cmp(order, &range.start).is_le() {
                        open = *tombstone;
                    } else if at.cmp(order, &range.end).is_lt() {
                        inside.push(fragment.clone());
                    }
                }
                _ => {}
            }
        }
        if !open.is_live() {
            body.push(Fragment::Change { at: range.start.clone(), tombstone: open });
        }
        for fragment in &inside {
            if let Fragment::Change { tombstone, .. } = fragment {
                open = *tombstone;
            }
        }
        body.extend(inside);
        if !open.is_live() {
            body.push(Fragment::Change { at: range.end.clone(), tombstone: Tombstone::LIVE });
        }
    }
    if reversed && !schema.clustering.is_empty() {
        let mut before = Tombstone::LIVE;
        for fragment in &mut body {
            if let Fragment::Change { at, tombstone } = fragment {
                *at = at.clone().reversed();
                std::mem::swap(tombstone, &mut before);
            }
        }
        body.reverse();
    }
    out.extend(body);
    out.push(Fragment::PartitionEnd);
    out
}

fn row_ranges(rng: &mut StdRng, schema: &TableSchema, partition: &[Fragment]) -> Vec<RowRange> {
    if schema.clustering.is_empty() {
        return vec![RowRange::FULL];
    }
    let near: Vec<_> = partition
        .iter()
        .filter_map(|fragment| match fragment {
            Fragment::Row { key, .. } => Some(key.clone()),
            _ => None,
        })
        .collect();
    match rng.gen_range(0..6) {
        0 => vec![RowRange::FULL],
        1 if !near.is_empty() => vec![RowRange::prefix(near[rng.gen_range(0..near.len())].clone())],
        2 => vec![],
        _ => {
            let count = rng.gen_range(2..8);
            let mut cuts = random::cuts(rng, schema, &near, count);
            cuts.retain(|cut| *cut != ClusteringCut::END || rng.gen_bool(0.9));
            let pairs = cuts.chunks_exact(2);
            pairs.map(|pair| RowRange { start: pair[0].clone(), end: pair[1].clone() }).collect()
        }
    }
}

fn options(rng: &mut StdRng) -> WriterOptions {
    let mut options = WriterOptions::new(HostId(Uuid::from_u128(7)));
    options.compression = match rng.gen_range(0..6) {
        0 => None,
        1 => Some(Compression { algorithm: Algorithm::Snappy, chunk_length: 1024 }),
        2 => Some(Compression { algorithm: Algorithm::Deflate, chunk_length: 4096 }),
        3 => Some(Compression { algorithm: Algorithm::Zstd, chunk_length: 16384 }),
        _ => Some(Compression { algorithm: Algorithm::Lz4, chunk_length: 256 << rng.gen_range(0..5) }),
    };
    options.promoted_index_block = [64, 300, 2000, 64 << 10][rng.gen_range(0..4)];
    options.min_index_interval = [1, 3, 128][rng.gen_range(0..3)];
    options
}

fn read_options(rng: &mut StdRng) -> ReadOptions {
    let base = [ReadOptions::POINT, ReadOptions::SCAN, ReadOptions::BACKGROUND][rng.gen_range(0..3)];
    ReadOptions { use_cache: rng.gen_bool(0.8), window: 1 << rng.gen_range(10..20), ..base }
}

fn key_of(partition: &[Fragment]) -> DecoratedKey {
    match &partition[0] {
        Fragment::PartitionStart { key, .. } => key.clone(),
        other => panic!("a partition begins with {other:?}"),
    }
}

fn ring_cut(rng: &mut StdRng, partitions: &[Vec<Fragment>]) -> RingCut {
    let key = key_of(&partitions[rng.gen_range(0..partitions.len())]);
    match rng.gen_range(0..6) {
        0 => RingCut::MIN,
        1 => RingCut::MAX,
        2 => RingCut::before_key(&key),
        3 => RingCut::after_key(&key),
        4 => RingCut::after_token(key.token),
        _ => RingCut::before_token(token::Token(rng.r#gen())),
    }
}

fn one_table(dir: &Path, seed: u64, size: Size, columns: usize) {
    rt::block_on(async {
        let rng = &mut random::rng(seed);
        let schema = random::schema(rng, columns);
        let stream = random::stream(rng, &schema, size);
        let partitions = random::partitions(&stream);
        let generation = write(dir, &schema, &stream, options(rng)).await;
        let cache = PageCache::new([0, 20_000, 10 << 20][rng.gen_range(0..3)]);
        let table = Sstable::open(dir, generation, &cache).await.expect("opens");
        table.verify(|_| ()).await.expect("sound");
        assert_eq!(table.stats().partitions(), partitions.len() as u64);
        assert!(partitions.iter().all(|p| table.may_contain(&key_of(p))));

        let full = Rc::new(Slice::full());
        let found = all(table.reader(&schema, PartitionRange::FULL, full, ReadOptions::SCAN)).await;
        assert_same(&found, &stream, &format!("seed {seed}: everything"));

        for round in 0..20 {
            let what = format!("seed {seed}, round {round}");
            let reversed = rng.gen_bool(0.4);
            let static_row = rng.gen_bool(0.7);
            let some = rng.gen_range(0..partitions.len());
            let rows = row_ranges(rng, &schema, &partitions[some]);
            let resume = rng.gen_bool(0.2).then(|| Resume {
                key: key_of(&partitions[some]),
                rows: row_ranges(rng, &schema, &partitions[some]),
                static_row: rng.gen_bool(0.5),
            });
            let range = if rng.gen_bool(0.5) {
                PartitionRange::singular(&key_of(&partitions[some]))
            } else {
                PartitionRange { start: ring_cut(rng, &partitions), end: ring_cut(rng, &partitions) }
            };
            let slice = Rc::new(Slice { rows, static_row, reversed, resume });
            let mut wanted = Vec::new();
            for partition in partitions.iter().filter(|p| range.contains(&key_of(p))) {
                let (rows, fixed) = slice.of(&key_of(partition));
                wanted.extend(expected(&schema, partition, rows, fixed, reversed));
            }
            let found = all(table.reader(&schema, range.clone(), slice.clone(), read_options(rng))).await;
            assert_same(&found, &wanted, &format!("{what}: {range:?} {slice:?}"));
        }
        let other = DecoratedKey::new(bytes::Bytes::from_static(b"no such key, surely"));
        let reader =
            table.reader(&schema, PartitionRange::singular(&other), Rc::new(Slice::full()), ReadOptions::POINT);
        assert_eq!(all(reader).await, []);
    });
}

/// `count` seeds from `first` on; `SSTABLE_SEEDS=50` multiplies their number by 50.
fn seeds(first: u64, count: u64) -> std::ops::Range<u64> {
    let times = std::env::var("SSTABLE_SEEDS").ok().and_then(|text| text.parse::<u64>().ok()).unwrap_or(1);
    first * 1_000_000..first * 1_000_000 + count * times
}

#[test]
fn small_tables_round_trip() {
    let scratch = Scratch::new("small");
    for seed in seeds(0, 60) {
        one_table(&scratch, seed, Size { partitions: 5, rows: 12, value: 20 }, 6);
    }
}

#[test]
fn tables_with_wide_partitions_round_trip() {
    let scratch = Scratch::new("wide");
    for seed in seeds(1, 12) {
        one_table(&scratch, seed, Size { partitions: 3, rows: 400, value: 200 }, 5);
    }
}

#[test]
fn tables_with_many_partitions_round_trip() {
    let scratch = Scratch::new("many");
    for seed in seeds(2, 5) {
        one_table(&scratch, seed, Size { partitions: 600, rows: 3, value: 10 }, 4);
    }
}

#[test]
fn tables_with_many_columns_round_trip() {
    let scratch = Scratch::new("columns");
    for seed in seeds(3, 15) {
        one_table(&scratch, seed, Size { partitions: 4, rows: 6, value: 10 }, 150);
    }
}

#[test]
fn skipping_partitions_goes_on_with_the_next() {
    let scratch = Scratch::new("skip");
    rt::block_on(async {
        for seed in seeds(4, 20) {
            let rng = &mut random::rng(seed);
            let schema = random::schema(rng, 4);
            let size = Size { partitions: 12, rows: 300, value: 100 };
            let stream = random::stream(rng, &schema, size);
            let generation = write(&scratch, &schema, &stream, options(rng)).await;
            let table = Sstable::open(&scratch, generation, &PageCache::new(1 << 20)).await.expect("opens");
            let slice = Rc::new(Slice { reversed: rng.gen_bool(0.5), ..Slice::full() });
            let mut reader = table.reader(&schema, PartitionRange::FULL, slice, read_options(rng));
            let (mut out, mut keys, mut more) = (VecDeque::new(), Vec::new(), true);
            while more || !out.is_empty() {
                if out.is_empty() {
                    more = reader.fill(&mut out).await.expect("readable");
                    continue;
                }
                match out.pop_front() {
                    Some(Fragment::PartitionStart { key, .. }) => {
                        keys.push(key);
                        // As a merger does: first what the buffer has of the partition.
                        match out.iter().position(|f| *f == Fragment::PartitionEnd) {
                            Some(end) => drop(out.drain(..=end)),
                            None => {
                                out.clear();
                                reader.skip_partition();
                            }
                        }
                    }
                    other => panic!("seed {seed}: {other:?} after a skip"),
                }
            }
            let wanted: Vec<_> = random::partitions(&stream).iter().map(|p| key_of(p)).collect();
            assert_eq!(keys, wanted, "seed {seed}");
        }
    });
}

#[test]
fn an_sstable_without_partitions_is_not_made() {
    let scratch = Scratch::new("empty");
    rt::block_on(async {
        let schema = random::schema(&mut random::rng(1), 3);
        let options = WriterOptions::new(HostId(Uuid::from_u128(7)));
        let writer = Writer::create(&scratch, Generation::fresh(), schema, options).await.expect("created");
        assert!(writer.finish(&[]).await.expect("finished").is_none());
        assert_eq!(std::fs::read_dir(&scratch).expect("readable").count(), 0);
    });
}

#[test]
fn unsealed_and_removed_sstables_are_not_listed() {
    let scratch = Scratch::new("seal");
    rt::block_on(async {
        let rng = &mut random::rng(5);
        let schema = random::schema(rng, 3);
        let stream = random::stream(rng, &schema, Size { partitions: 3, rows: 3, value: 10 });
        let mut unsealed = Vec::new();
        for _ in 0..2 {
            let options = WriterOptions::new(HostId(Uuid::from_u128(7)));
            let mut writer =
                Writer::create(&scratch, Generation::fresh(), schema.clone(), options).await.expect("created");
            for fragment in &stream {
                writer.push(fragment.clone()).await.expect("written");
            }
            unsealed.push(writer.finish_unsealed(&[]).await.expect("finished").expect("not empty"));
        }
        let listing = sstable::directory::list(&scratch).await.expect("listed");
        assert!(listing.sealed.is_empty() && !listing.leftovers.is_empty());
        sstable::seal_all(unsealed).await.expect("sealed");
        let listing = sstable::directory::list(&scratch).await.expect("listed");
        assert_eq!((listing.sealed.len(), listing.leftovers.len()), (2, 0));
        for place in &listing.sealed {
            sstable::directory::remove(place).await.expect("removed");
        }
        assert_eq!(std::fs::read_dir(&scratch).expect("readable").count(), 0);
    });
}
