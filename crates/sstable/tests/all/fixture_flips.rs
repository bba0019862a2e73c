//! Flipped bits in files that Cassandra wrote, which have fewer checksums than Messina's: a read is
//! right or an error.
//!
//! `FLIPS=n` flips n bits of each component of each table (default 6). Files made with Cassandra's
//! writer are beside this file; those in `SSTABLE_FIXTURES` are tested too if it is set.

use crate::random;

use rand::Rng;
use serde_json::Value;
use sstable::dump::dump_json;
use sstable::{Component, Error, PageCache, Sstable, SstablePath, Version};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Later than every TTL in the fixtures.
const NOW: i32 = 1_800_000_000;

fn folders() -> Vec<PathBuf> {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let roots = std::iter::once(own).chain(std::env::var_os("SSTABLE_FIXTURES").map(PathBuf::from));
    let entries = roots.flat_map(|root| std::fs::read_dir(root).expect("a folder"));
    let mut folders: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    folders.retain(|path| path.is_dir());
    folders.sort();
    folders
}

fn place(folder: &Path) -> Option<SstablePath> {
    let names = std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").file_name());
    names.filter_map(|name| SstablePath::parse_name(folder, &name.to_string_lossy())).map(|(place, _)| place).next()
}

/// The contents of a table: its columns and all rows, if reading succeeds; and whether verification
/// succeeds.
async fn read(place: &SstablePath) -> (Result<(String, Value), Error>, Result<(), Error>) {
    let table = match Sstable::open_at(place, &PageCache::new(1 << 20)).await {
        Ok(table) => table,
        Err(error) => return (Err(error), Ok(())),
    };
    let schema = table.header_schema("ks", "tbl");
    let columns = [&schema.partition_key, &schema.clustering, &schema.statics, &schema.regulars];
    let columns = format!("{columns:?}");
    let mut out = Vec::new();
    let dumped = dump_json(&table, NOW, &mut out, |_| ()).await;
    let dumped = dumped.map(|_| (columns, serde_json::from_slice(&out).expect("a dump is JSON")));
    (dumped, table.verify(|_| ()).await.map(drop))
}

/// Whether the format protects this component, by itself or together with what it describes.
fn is_protected(component: Component, version: Version) -> bool {
    match component {
        Component::Data | Component::Crc | Component::CompressionInfo => true,
        Component::Statistics => version >= Version::Na,
        _ => false,
    }
}

#[test]
fn a_flipped_bit_in_a_file_from_elsewhere_is_an_error_or_makes_no_difference() {
    let flips: usize = std::env::var("FLIPS").ok().and_then(|flips| flips.parse().ok()).unwrap_or(6);
    let scratch = test_support::Scratch::new("sstable-fixture-flips");
    let mut counts: BTreeMap<String, [u32; 3]> = BTreeMap::new();
    let mut wrong = Vec::new();
    rt::block_on(async {
        for (seed, folder) in folders().into_iter().enumerate() {
            let Some(original) = place(&folder) else { continue };
            scratch.clear();
            let mut files = Vec::new();
            for component in Component::ALL {
                let path = original.path(component);
                let Ok(bytes) = std::fs::read(&path) else { continue };
                let to = scratch.join(path.file_name().expect("a name"));
                std::fs::write(&to, &bytes).expect("written");
                files.push((component, to, bytes));
            }
            let Some(place) = place(&scratch) else { continue };
            let has = |wanted| files.iter().any(|(component, ..)| *component == wanted);
            if !has(Component::Crc) && !has(Component::CompressionInfo) {
                // The format does not protect the data of such a file.
                continue;
            }
            // Skips files that are damaged on purpose, and those that are refused.
            let (Ok(good), Ok(())) = read(&place).await else { continue };
            let rng = &mut random::rng(seed as u64);
            for (component, path, bytes) in files.iter().filter(|(_, _, bytes)| !bytes.is_empty()) {
                for _ in 0..flips {
                    let (at, bit) = (rng.gen_range(0..bytes.len()), rng.gen_range(0..8));
                    let mut damaged = bytes.clone();
                    damaged[at] ^= 1 << bit;
                    std::fs::write(path, &damaged).expect("written");
                    let (found, verified) = read(&place).await;
                    let what = format!("bit {bit} of byte {at} of {}/{component:?}", folder.display());
                    for error in [found.as_ref().err(), verified.as_ref().err()].into_iter().flatten() {
                        // A damaged TOC may list files that do not exist.
                        let is_damage = matches!(error, Error::Corrupt(_) | Error::Unsupported(_));
                        assert!(is_damage || *component == Component::Toc, "{what}: {error}");
                    }
                    // A reader that expects the columns of the table notices that they differ.
                    let differs = found.as_ref().is_ok_and(|(columns, all)| *columns == good.0 && *all != good.1);
                    // Without a checksum in the format, only verification detects it, by comparing
                    // the components.
                    if differs && (is_protected(*component, place.version) || verified.is_ok()) {
                        wrong.push(what);
                    }
                    let kind = usize::from(found.is_err()) + 2 * usize::from(found.is_ok() && verified.is_err());
                    counts.entry(format!("{component:?}")).or_default()[kind] += 1;
                }
                std::fs::write(path, bytes).expect("restored");
            }
        }
    });
    println!("no difference, error when read, error when verified: {counts:?}");
    assert!(wrong.is_empty(), "{} flips served something else:\n{}", wrong.len(), wrong.join("\n"));
    assert!(counts["Data"][1] > 100, "{counts:?}");
}
