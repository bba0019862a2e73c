//! Damage: a flipped bit or a missing end is detected anywhere, and never makes a reader yield
//! other data.
//!
//! `FLIPS=n` flips about n bits of each component of each table (default 150, or every byte of
//! shorter ones).

use crate::random;

use model::HostId;
use model::TableSchema;
use model::fragment::Fragment;
use model::key::{ClusteringCut, DecoratedKey};
use model::range::{PartitionRange, RowRange, Slice};
use rand::Rng;
use random::Size;
use sstable::{
    Algorithm, Component, Compression, Error, Generation, PageCache, ReadOptions, Sstable, SstablePath, Writer,
    WriterOptions,
};
use std::collections::VecDeque;
use std::path::PathBuf;
use std::rc::Rc;
use test_support::Scratch;
use uuid::Uuid;

struct Table {
    _dir: Scratch,
    place: SstablePath,
    schema: Rc<TableSchema>,
    partitions: Vec<Vec<Fragment>>,
    /// Reads of parts of the table, with what the intact files yield.
    parts: Vec<(Part, Vec<Fragment>)>,
}

type Part = (PartitionRange, Rc<Slice>);

async fn read_part(sstable: &Rc<Sstable>, schema: &Rc<TableSchema>, part: &Part) -> (Vec<Fragment>, Option<Error>) {
    let mut reader = sstable.reader(schema, part.0.clone(), part.1.clone(), ReadOptions::POINT);
    let mut out = VecDeque::new();
    loop {
        match reader.fill(&mut out).await {
            Ok(true) => {}
            Ok(false) => return (out.into(), None),
            Err(error) => return (out.into(), Some(error)),
        }
    }
}

/// All of it in descending order, and rows around a row of some partitions, in both orders.
fn parts(partitions: &[Vec<Fragment>]) -> Vec<Part> {
    let slice = |rows, reversed| Rc::new(Slice { rows, reversed, ..Slice::full() });
    let mut out = vec![(PartitionRange::FULL, slice(vec![RowRange::FULL], true))];
    for partition in partitions.iter().step_by(3) {
        let Fragment::PartitionStart { key, .. } = &partition[0] else { panic!("not a partition") };
        let rows: Vec<_> =
            partition.iter().filter_map(|f| if let Fragment::Row { key, .. } = f { Some(key) } else { None }).collect();
        let Some(row) = rows.get(rows.len() / 2) else { continue };
        for reversed in [false, true] {
            let range =
                RowRange { start: ClusteringCut { prefix: (*row).clone(), after: false }, end: ClusteringCut::END };
            out.push((PartitionRange::singular(key), slice(vec![RowRange::prefix((*row).clone())], reversed)));
            out.push((PartitionRange::singular(key), slice(vec![range], reversed)));
        }
    }
    out
}

async fn table(name: &str, seed: u64, compression: Option<Compression>) -> Table {
    let dir = Scratch::new(&format!("sstable-{name}"));
    let rng = &mut random::rng(seed);
    let schema = random::schema(rng, 4);
    let stream = random::stream(rng, &schema, Size { partitions: 8, rows: 12, value: 20 });
    let mut options = WriterOptions::new(HostId(Uuid::from_u128(7)));
    options.compression = compression;
    options.promoted_index_block = 100;
    let generation = Generation::fresh();
    let mut writer = Writer::create(&dir, generation, schema.clone(), options).await.expect("created");
    for fragment in &stream {
        writer.push(fragment.clone()).await.expect("written");
    }
    writer.finish(&[]).await.expect("finished").expect("not empty");
    let partitions = random::partitions(&stream);
    let place = SstablePath::new(&dir, generation);
    let sound = Sstable::open_at(&place, &PageCache::new(1 << 20)).await.expect("opens");
    let mut known = Vec::new();
    for part in parts(&partitions) {
        let (found, error) = read_part(&sound, &schema, &part).await;
        assert!(error.is_none(), "{error:?}");
        known.push((part, found));
    }
    Table { _dir: dir, place, schema, partitions, parts: known }
}

pub async fn read(
    sstable: &Rc<Sstable>,
    schema: &Rc<TableSchema>,
    range: PartitionRange,
    options: ReadOptions,
) -> (Vec<Fragment>, Option<Error>) {
    let mut reader = sstable.reader(schema, range, Rc::new(Slice::full()), options);
    let mut out = VecDeque::new();
    loop {
        match reader.fill(&mut out).await {
            Ok(true) => {}
            Ok(false) => return (out.into(), None),
            Err(error) => return (out.into(), Some(error)),
        }
    }
}

pub fn is_damage(error: &Error) -> bool {
    match error {
        Error::Corrupt(_) | Error::Unsupported(_) => true,
        // A truncated TOC is damage, a missing one is not.
        Error::Io { .. } => false,
    }
}

impl Table {
    /// What is read must be a prefix of what was written. Opening or verifying must detect the
    /// damage.
    async fn check_damaged(&self, what: &str) {
        let opened = Sstable::open_at(&self.place, &PageCache::new(1 << 20)).await;
        let sstable = match opened {
            Err(error) => return assert!(is_damage(&error), "{what}: {error}"),
            Ok(sstable) => sstable,
        };
        let stream: Vec<_> = self.partitions.concat();
        for options in [ReadOptions::SCAN, ReadOptions::POINT] {
            let (found, error) = read(&sstable, &self.schema, PartitionRange::FULL, options).await;
            assert!(found.len() <= stream.len() && found == stream[..found.len()], "{what}: other fragments");
            match error {
                Some(error) => assert!(is_damage(&error), "{what}: {error}"),
                None => assert_eq!(found.len(), stream.len(), "{what}: fragments are missing"),
            }
        }
        for partition in &self.partitions {
            let Fragment::PartitionStart { key, .. } = &partition[0] else { panic!("not a partition") };
            let key: &DecoratedKey = key;
            let range = PartitionRange::singular(key);
            let (found, error) = read(&sstable, &self.schema, range, ReadOptions::POINT).await;
            match error {
                Some(error) => assert!(is_damage(&error), "{what}: {error}"),
                None => assert_eq!(&found, partition, "{what}: a single partition"),
            }
        }
        self.check_backward(&sstable, what).await;
        let verified = sstable.verify(|_| ()).await;
        assert!(verified.is_err_and(|error| is_damage(&error)), "{what} is not found");
    }

    /// Reads in descending order, and of parts of partitions, yield the same as with intact files,
    /// or detect the damage.
    async fn check_backward(&self, sstable: &Rc<Sstable>, what: &str) {
        for (part, wanted) in &self.parts {
            let (found, error) = read_part(sstable, &self.schema, part).await;
            match error {
                Some(error) => assert!(is_damage(&error), "{what}: {error}"),
                None => assert_eq!(&found, wanted, "{what}: {part:?}"),
            }
        }
    }

    fn components(&self) -> Vec<(PathBuf, Vec<u8>)> {
        let all = Component::ALL.into_iter().map(|component| self.place.path(component));
        let there = all.filter(|path| path.exists());
        there.map(|path| (path.clone(), std::fs::read(&path).expect("readable"))).collect()
    }
}

const LZ4: Option<Compression> = Some(Compression { algorithm: Algorithm::Lz4, chunk_length: 1024 });

fn flips() -> usize {
    std::env::var("FLIPS").ok().and_then(|flips| flips.parse().ok()).unwrap_or(150)
}

#[test]
fn a_flipped_bit_anywhere_is_found() {
    rt::block_on(async {
        for (seed, compression) in [(1, LZ4), (2, None), (4, LZ4)] {
            let table = table("flip", seed, compression).await;
            let rng = &mut random::rng(seed);
            for (path, bytes) in table.components() {
                // All bytes of short files, samples of long ones.
                let step = bytes.len().div_ceil(flips()).max(1);
                for at in (0..bytes.len()).step_by(step) {
                    let at = (at + rng.gen_range(0..step)).min(bytes.len() - 1);
                    let bit = rng.gen_range(0..8);
                    let mut damaged = bytes.clone();
                    damaged[at] ^= 1 << bit;
                    std::fs::write(&path, &damaged).expect("written");
                    table.check_damaged(&format!("bit {bit} of byte {at} of {}", path.display())).await;
                }
                std::fs::write(&path, &bytes).expect("written");
            }
        }
    });
}

/// Every byte that is in memory while a table is open is protected.
#[test]
fn a_flipped_bit_in_any_byte_of_a_small_component_is_found_on_opening() {
    rt::block_on(async {
        for (seed, compression) in [(5, LZ4), (6, None)] {
            let table = table("small", seed, compression).await;
            let rng = &mut random::rng(seed);
            let mut flips = 0;
            for (path, bytes) in table.components() {
                let name = path.to_string_lossy();
                if name.ends_with("Data.db") || name.ends_with("Index.db") {
                    continue;
                }
                for at in 0..bytes.len() {
                    let mut damaged = bytes.clone();
                    damaged[at] ^= 1 << rng.gen_range(0..8);
                    std::fs::write(&path, &damaged).expect("written");
                    let opened = Sstable::open_at(&table.place, &PageCache::new(1 << 20)).await;
                    assert!(opened.is_err_and(|error| is_damage(&error)), "byte {at} of {name}");
                    flips += 1;
                }
                std::fs::write(&path, &bytes).expect("written");
            }
            assert!(flips > 1000, "{flips}");
        }
    });
}

#[test]
fn a_file_cut_short_is_found() {
    rt::block_on(async {
        for (seed, compression) in [(11, LZ4), (12, None)] {
            let table = table("cut", seed, compression).await;
            for (path, bytes) in table.components() {
                for len in [0, 1, bytes.len() / 3, bytes.len() / 2, bytes.len() - 1] {
                    std::fs::write(&path, &bytes[..len]).expect("written");
                    table.check_damaged(&format!("{len} of {} bytes of {}", bytes.len(), path.display())).await;
                }
                let longer = [&bytes[..], b"x"].concat();
                std::fs::write(&path, &longer).expect("written");
                table.check_damaged(&format!("a byte too many in {}", path.display())).await;
                std::fs::write(&path, &bytes).expect("written");
            }
        }
    });
}

/// Without Checksums.db, as in files of other databases, damage may be undetected where the format
/// has no checksums. But nothing may panic, hang or overflow.
#[test]
fn unprotected_damage_never_panics() {
    rt::block_on(async {
        for (seed, compression) in [(21, LZ4), (22, None)] {
            let table = table("panic", seed, compression).await;
            std::fs::remove_file(table.place.path(Component::Checksums)).expect("removed");
            let toc = table.place.path(Component::Toc);
            let listed = std::fs::read_to_string(&toc).expect("readable");
            // Without CRC.db and digest, the parser of Data.db reads the damaged bytes.
            let without: Vec<_> = listed.lines().filter(|n| !["Checksums.db", "CRC.db"].contains(n)).collect();
            std::fs::write(&toc, without.join("\n")).expect("written");
            let rng = &mut random::rng(seed);
            for (path, bytes) in table.components() {
                for _ in 0..150 {
                    let mut damaged = bytes.clone();
                    for _ in 0..rng.gen_range(1..4) {
                        let at = rng.gen_range(0..bytes.len());
                        damaged[at] = if rng.gen_bool(0.5) { rng.r#gen() } else { 0xff };
                    }
                    std::fs::write(&path, &damaged).expect("written");
                    let Ok(sstable) = Sstable::open_at(&table.place, &PageCache::new(1 << 20)).await else { continue };
                    let schema = sstable.header_schema("ks", "tbl");
                    for options in [ReadOptions::SCAN, ReadOptions::POINT] {
                        let _ = read(&sstable, &schema, PartitionRange::FULL, options).await;
                    }
                    for partition in &table.partitions {
                        let Fragment::PartitionStart { key, .. } = &partition[0] else { panic!("not a partition") };
                        let _ = read(&sstable, &schema, PartitionRange::singular(key), ReadOptions::POINT).await;
                    }
                    let slice = Rc::new(Slice { reversed: true, ..Slice::full() });
                    let mut reader = sstable.reader(&schema, PartitionRange::FULL, slice, ReadOptions::SCAN);
                    let mut out = VecDeque::new();
                    while reader.fill(&mut out).await.unwrap_or(false) {}
                    let _ = sstable.verify(|_| ()).await;
                    let _ = sstable::dump::dump_json(&sstable, 0, &mut Vec::new(), |_| ()).await;
                }
                std::fs::write(&path, &bytes).expect("written");
            }
        }
    });
}
