//! Fields of binary headers, little-endian, and the checksum at their end.
//!
//! The functions that read fields panic where a field lies outside of the bytes: callers take a
//! header of a known length first.

/// The field of 4 bytes at `at`.
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// The field of 8 bytes at `at`.
pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

/// Writes the CRC32 of a header into its last 4 bytes.
pub(crate) fn seal_header(header: &mut [u8]) {
    let (covered, crc) = header.split_at_mut(header.len() - 4);
    crc.copy_from_slice(&crc32fast::hash(covered).to_le_bytes());
}

/// Whether the last 4 bytes of a header are the CRC32 of the others.
pub(crate) fn is_sealed_header(header: &[u8]) -> bool {
    let covered = header.len() - 4;
    crc32fast::hash(&header[..covered]) == u32_at(header, covered)
}
