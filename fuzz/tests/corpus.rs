//! Runs every file of the corpus through its target: unchanged, and with several hundred seeded
//! damages.
//!
//! `FUZZ_SECONDS=n` continues for n seconds with each target (`make fuzz`). `FUZZ_TARGET=name` runs
//! only that target.

use fuzz::{TARGETS, damage};
use rand::SeedableRng;
use rand::rngs::SmallRng;
use std::path::Path;

const WAYS: u64 = 300;

fn corpus(target: &str) -> Vec<Vec<u8>> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target);
    let mut files: Vec<_> =
        std::fs::read_dir(dir).expect("each target has a corpus").map(|e| e.unwrap().path()).collect();
    files.sort();
    files.iter().map(|path| std::fs::read(path).expect("readable")).collect()
}

#[test]
fn no_target_panics() {
    let seconds: u64 = std::env::var("FUZZ_SECONDS").ok().and_then(|s| s.parse().ok()).unwrap_or(0);
    let only = std::env::var("FUZZ_TARGET").ok();
    assert!(only.as_ref().is_none_or(|only| TARGETS.iter().any(|target| target.name == only)), "no such target");
    for target in TARGETS.iter().filter(|target| only.as_ref().is_none_or(|only| target.name == only)) {
        let files = corpus(target.name);
        assert!(!files.is_empty(), "{} has no corpus", target.name);
        let began = std::time::Instant::now();
        let mut seed = 0;
        while seed < WAYS || began.elapsed().as_secs() < seconds {
            for file in &files {
                let mut bytes = file.clone();
                if seed > 0 {
                    damage(&mut bytes, &mut SmallRng::seed_from_u64(seed));
                }
                (target.run)(&bytes);
            }
            seed += 1;
        }
    }
}
