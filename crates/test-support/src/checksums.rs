//! Checksums.db of an sstable, as an older release wrote it.

use std::path::Path;

/// The length of a page of Index.db, which has a checksum of four bytes.
const PAGE: u64 = 4096;
/// The position of the length of Index.db.
const INDEX_LENGTH: usize = 20;

/// Removes the checksums that bind a compressed Data.db to its sstable from a Checksums.db: release
/// 0.1.0 did not write them.
pub fn make_checksums_old(path: &Path) {
    let bytes = std::fs::read(path).expect("a Checksums.db can be read");
    let names = ["Data.db first chunk", "Data.db last chunk", "Data.db content"];
    // Each has a byte before the name, and a length and a CRC32 after it.
    let entries: usize = names.iter().map(|name| 1 + name.len() + 12).sum();
    let mut old = bytes[..bytes.len() - 4 - entries].to_vec();
    let length = old[INDEX_LENGTH..INDEX_LENGTH + 8].try_into().expect("there are eight bytes");
    let pages = u64::from_be_bytes(length).div_ceil(PAGE) as usize;
    // The last byte of the number of entries.
    old[INDEX_LENGTH + 8 + 4 * pages + 3] -= names.len() as u8;
    let sum = crc32fast::hash(&old);
    old.extend_from_slice(&sum.to_be_bytes());
    std::fs::write(path, old).expect("a Checksums.db can be written");
}
