//! Creates the input of the target `sstable`: `cargo run -p messina-fuzz --example sstables`.
//!
//! It uses the fixtures of the sstable crate, which Cassandra wrote, and random tables that our
//! writer writes, with many blocks in the promoted index. Most have no checksums, see
//! `fuzz::sstable_files`.

#[path = "../../crates/sstable/tests/all/random/mod.rs"]
mod random;

use fuzz::sstable_files::{bundle, host};
use random::Size;
use sstable::{Algorithm, Compression, Generation, SstablePath, Writer, WriterOptions};
use std::path::Path;

/// Fixtures that are small, each with something of its own.
const FIXTURES: [&str; 8] =
    ["basic", "ck40", "clustering", "collections", "columns70", "counters", "ranges", "statics"];

fn main() -> std::io::Result<()> {
    let home = Path::new(env!("CARGO_MANIFEST_DIR"));
    let to = home.join("sstables");
    for name in FIXTURES {
        let dir = home.join(format!("../crates/sstable/tests/fixtures/cassandra-me-{name}"));
        let (place, _) = SstablePath::parse_name(&dir, "me-1-big-TOC.txt").expect("the name of a fixture");
        std::fs::write(to.join(name), bundle(&place, false)?)?;
    }
    for seed in 1..=6 {
        let dir = std::env::temp_dir().join(format!("messina-fuzz-corpus-{}", std::process::id()));
        std::fs::create_dir_all(&dir)?;
        let place = rt::block_on(write(&dir, seed));
        let name = format!("own-{seed}");
        std::fs::write(to.join(name), bundle(&place, seed == 6)?)?;
        std::fs::remove_dir_all(&dir)?;
    }
    Ok(())
}

async fn write(dir: &Path, seed: u64) -> SstablePath {
    let rng = &mut random::rng(seed);
    let schema = random::schema(rng, 4);
    let stream = random::stream(rng, &schema, Size { partitions: 4, rows: 12, value: 12 });
    let mut options = WriterOptions::new(host());
    options.compression =
        seed.is_multiple_of(2).then_some(Compression { algorithm: Algorithm::Lz4, chunk_length: 1024 });
    options.promoted_index_block = 80;
    let generation = Generation::fresh();
    let mut writer = Writer::create(dir, generation, schema, options).await.expect("created");
    for fragment in stream {
        writer.push(fragment).await.expect("written");
    }
    writer.finish(&[]).await.expect("finished").expect("not empty");
    SstablePath::new(dir, generation)
}
