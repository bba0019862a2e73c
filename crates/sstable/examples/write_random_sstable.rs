//! Writes a random sstable for other tools to check: `write_random_sstable DIR SEED [PARTITIONS
//! ROWS VALUE]`. Prints the path of its Data.db, and writes `dump.json` next to it: what Messina
//! reads from it.

#[path = "../tests/all/random/mod.rs"]
mod random;

use model::HostId;
use rand::Rng;
use sstable::{
    Algorithm, Component, Compression, Generation, LogInterval, PageCache, Sstable, SstablePath, Writer, WriterOptions,
};
use std::path::PathBuf;
use uuid::Uuid;

fn main() {
    let mut args = std::env::args().skip(1);
    let dir = PathBuf::from(args.next().expect("a directory"));
    let mut number = |default: usize| args.next().map_or(default, |arg| arg.parse().expect("a number"));
    let seed = number(1) as u64;
    let rng = &mut random::rng(seed);
    let size = random::Size { partitions: number(30), rows: number(40), value: number(100) };
    rt::block_on(async {
        let columns = if seed.is_multiple_of(5) { 90 } else { 7 };
        let schema = random::schema(rng, columns);
        let stream = random::stream(rng, &schema, size);
        let mut options = WriterOptions::new(HostId(Uuid::from_u128(7)));
        options.promoted_index_block = [200, 1000, 64 << 10][rng.gen_range(0..3)];
        options.compression = match rng.gen_range(0..5) {
            0 => None,
            1 => Some(Compression { algorithm: Algorithm::Snappy, chunk_length: 4096 }),
            2 => Some(Compression { algorithm: Algorithm::Deflate, chunk_length: 4096 }),
            3 => Some(Compression { algorithm: Algorithm::Zstd, chunk_length: 16384 }),
            _ => Some(Compression { algorithm: Algorithm::Lz4, chunk_length: 4096 }),
        };
        let generation = Generation::from_number(seed + 1);
        let mut writer = Writer::create(&dir, generation, schema, options).await.expect("created");
        for fragment in stream {
            writer.push(fragment).await.expect("written");
        }
        let interval = LogInterval { start: (5, 10), end: (6, 100) };
        writer.finish(&[interval]).await.expect("finished").expect("not empty");
        let place = SstablePath::new(&dir, generation);
        let table = Sstable::open_at(&place, &PageCache::new(1 << 20)).await.expect("opens");
        let mut file = std::fs::File::create(dir.join("dump.json")).expect("created");
        sstable::dump::dump_json(&table, 1_800_000_000, &mut file, |_| ()).await.expect("dumped");
        println!("{}", place.path(Component::Data).display());
    });
}
