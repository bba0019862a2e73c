//! Sstables of real tools are damaged by a script, written to disk, opened, and read in every way.
//!
//! The fuzzer's bytes are the script: an sstable, then steps that each damage one component. Small
//! and large components are hit equally often, and no step makes the file entirely unreadable. Most
//! sstables have no checksums, which would stop damage before it reaches a parser (`me` allows
//! that, and other tools omit them). Damage must lead to errors, never to panics or endless reads.
//!
//! ```text
//! u8 sstable; steps of: u8 component, u8 kind, u16 place, u8 value, u8 length
//! ```

use model::HostId;
use model::fragment::Fragment;
use model::range::{PartitionRange, RowRange, Slice};
use sstable::contents::IndexWalk;
use sstable::{Component, PageCache, ReadOptions, Sstable, SstablePath};
use std::collections::VecDeque;
use std::rc::Rc;
use test_support::Scratch;

/// The maximum number of fragments of a reader of such short files.
const MOST_FRAGMENTS: usize = 1 << 20;
/// The clock of `dump`.
const NOW: i32 = 1_700_000_000;

/// The sstables to damage: bundles that `examples/sstables.rs` creates.
const SSTABLES: [&[u8]; 14] = [
    include_bytes!("../sstables/basic"),
    include_bytes!("../sstables/ck40"),
    include_bytes!("../sstables/clustering"),
    include_bytes!("../sstables/collections"),
    include_bytes!("../sstables/columns70"),
    include_bytes!("../sstables/counters"),
    include_bytes!("../sstables/ranges"),
    include_bytes!("../sstables/statics"),
    include_bytes!("../sstables/own-1"),
    include_bytes!("../sstables/own-2"),
    include_bytes!("../sstables/own-3"),
    include_bytes!("../sstables/own-4"),
    include_bytes!("../sstables/own-5"),
    include_bytes!("../sstables/own-6"),
];
/// Bytes of a step.
const STEP: usize = 6;
/// The maximum number of steps.
const MOST_STEPS: usize = 8;

/// The components of an sstable as one run of bytes. Each component is preceded by its position in
/// `Component::ALL` and its length. Without checksums unless `checksums` is set.
pub fn bundle(place: &SstablePath, checksums: bool) -> std::io::Result<Vec<u8>> {
    let mut out = Vec::new();
    for (at, component) in Component::ALL.into_iter().enumerate() {
        let is_checksum = matches!(component, Component::Crc | Component::Digest | Component::Checksums);
        let path = place.path(component);
        if !path.exists() || (is_checksum && !checksums) {
            continue;
        }
        let mut bytes = std::fs::read(path)?;
        if component == Component::Toc && !checksums {
            let mut text = String::from_utf8_lossy(&bytes).into_owned();
            for left_out in [Component::Crc, Component::Digest, Component::Checksums] {
                text = text.replace(&format!("{}\n", left_out.name()), "");
            }
            bytes = text.into_bytes();
        }
        out.push(at as u8);
        out.extend_from_slice(&(bytes.len() as u32).to_be_bytes());
        out.extend_from_slice(&bytes);
    }
    Ok(out)
}

/// Splits a bundle into its components.
fn components(mut bytes: &[u8]) -> Vec<(Component, Vec<u8>)> {
    let mut out = Vec::new();
    while let Some((head, rest)) = bytes.split_first_chunk::<5>() {
        let len = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
        let (body, rest) = rest.split_at(len);
        out.push((Component::ALL[head[0] as usize], body.to_vec()));
        bytes = rest;
    }
    out
}

/// One step of the script.
fn damage(bytes: &mut Vec<u8>, step: &[u8; STEP]) {
    let &[_, kind, high, low, value, length] = step;
    let at = usize::from(u16::from_be_bytes([high, low])) % bytes.len().max(1);
    let end = (at + 1 + usize::from(length % 16)).min(bytes.len());
    match kind % 8 {
        0 | 1 => bytes.iter_mut().skip(at).take(1).for_each(|byte| *byte ^= 1 << (value % 8)),
        2 => bytes.iter_mut().skip(at).take(1).for_each(|byte| *byte = value),
        // A vint or a length of the largest kind.
        3 => bytes.iter_mut().take(end).skip(at).for_each(|byte| *byte = 0xff),
        4 => bytes.truncate(at),
        5 => bytes.insert(at.min(bytes.len()), value),
        6 => drop(bytes.drain(at.min(end)..end)),
        _ => {
            let piece = bytes[at.min(end)..end].to_vec();
            let to = usize::from(value) * bytes.len() / 256;
            bytes.splice(to..to, piece);
        }
    }
}

/// The target.
pub fn run(script: &[u8]) {
    let Some((&chosen, steps)) = script.split_first() else { return };
    let mut files = components(SSTABLES[usize::from(chosen) % SSTABLES.len()]);
    let (steps, _) = steps.as_chunks::<STEP>();
    for step in steps.iter().take(MOST_STEPS) {
        let file = usize::from(step[0]) % files.len();
        damage(&mut files[file].1, step);
    }
    let scratch = Scratch::in_memory("fuzz");
    let Some((place, _)) = SstablePath::parse_name(&scratch, "me-1-big-TOC.txt") else { return };
    for (component, body) in &files {
        std::fs::write(place.path(*component), body).expect("a scratch file can be written");
    }
    rt::block_on(async { read_all(&place).await });
}

async fn read_all(place: &SstablePath) {
    let cache = PageCache::new(1 << 20);
    let Ok(sstable) = Sstable::open_at(place, &cache).await else { return };
    let schema = sstable.header_schema("ks", "t");
    let mut keys = Vec::new();
    let slices = [Slice::full(), Slice { reversed: true, ..Slice::full() }];
    for slice in slices {
        for options in [ReadOptions::SCAN, ReadOptions::POINT] {
            for fragment in read(&sstable, &schema, PartitionRange::FULL, slice.clone(), options).await {
                if let Fragment::PartitionStart { key, .. } = fragment {
                    keys.push(key);
                }
            }
        }
    }
    keys.push(sstable.first_key().clone());
    keys.push(sstable.last_key().clone());
    keys.sort();
    keys.dedup();
    for key in keys.iter().step_by((keys.len() / 8).max(1)) {
        let range = PartitionRange::singular(key);
        let rows = read(&sstable, &schema, range.clone(), Slice::full(), ReadOptions::POINT).await;
        let middle = rows.iter().filter_map(|fragment| match fragment {
            Fragment::Row { key, .. } => Some(key.clone()),
            _ => None,
        });
        let rows: Vec<_> = middle.collect();
        for row in rows.iter().step_by((rows.len() / 4).max(1)) {
            for reversed in [false, true] {
                let slice = Slice { rows: vec![RowRange::prefix(row.clone())], reversed, ..Slice::full() };
                read(&sstable, &schema, range.clone(), slice, ReadOptions::POINT).await;
            }
        }
    }
    let _ = sstable.verify(|_| ()).await;
    let _ = sstable::dump::dump_json(&sstable, NOW, &mut Vec::new(), |_| ()).await;
    let Ok(mut walk) = IndexWalk::new(&sstable) else { return };
    while let Ok(Some(entry)) = walk.next().await {
        for block in 0..entry.promoted.map_or(0, |promoted| promoted.blocks.min(64)) {
            let _ = walk.block(&entry, block).await;
        }
    }
}

/// Reads all fragments, up to the first error.
async fn read(
    sstable: &Rc<Sstable>,
    schema: &Rc<model::TableSchema>,
    range: PartitionRange,
    slice: Slice,
    options: ReadOptions,
) -> Vec<Fragment> {
    let mut reader = sstable.reader(schema, range, Rc::new(slice), options);
    let mut out = VecDeque::new();
    let mut all = Vec::new();
    loop {
        let more = reader.fill(&mut out).await;
        all.extend(out.drain(..));
        assert!(all.len() < MOST_FRAGMENTS, "a reader does not end");
        if !matches!(more, Ok(true)) {
            return all;
        }
    }
}

/// The host that wrote the sstables of the corpus.
pub fn host() -> HostId {
    HostId::from_bytes([7; 16])
}
