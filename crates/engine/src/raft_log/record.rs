//! File headers with a checksum, and records at multiples of 8 bytes.
//!
//! ```text
//! file header     8 magic, u32 format (1), ..., u32 CRC32 of what precedes
//! record header   u32 CRC32 of log number, offset, and the header's bytes that follow
//!                 u32 CRC32 of the body, u32 body length, u8 version (1), ...
//! body            zeros up to a multiple of 8
//! ```
//!
//! A record's checksum covers its log's number and its own offset, so an old record is never taken
//! for a new one. Nothing here may panic on foreign bytes.

use super::error::RaftLogError;
use crate::files::bytes::{is_sealed_header, u32_at};
use bytes::Bytes;
use std::path::Path;

/// The format in the headers of files.
pub(crate) const FORMAT: u32 = 1;
/// The version in the headers of records.
pub(crate) const RECORD_VERSION: u8 = 1;
/// Records begin at multiples of this many bytes.
pub(crate) const ALIGN: usize = 8;

/// The defect of bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Bad {
    /// They are damaged, or torn.
    Damaged(&'static str),
    /// They are complete and do not fit here.
    Wrong(&'static str),
    /// They are of a later release.
    Newer(u32),
    /// They are of another node.
    Foreign,
}

impl Bad {
    /// Whether a torn write cannot be the reason.
    pub fn is_certain(self) -> bool {
        !matches!(self, Bad::Damaged(_))
    }

    /// The error for a file that has them at `offset`.
    pub fn at(self, file: &Path, offset: u64) -> RaftLogError {
        let file = file.to_path_buf();
        match self {
            Bad::Damaged(why) | Bad::Wrong(why) => RaftLogError::Corrupt { file, offset, why: why.into() },
            Bad::Foreign => RaftLogError::Foreign(file),
            Bad::Newer(found) => RaftLogError::Newer { file, found, known: FORMAT },
        }
    }
}

/// The header of a file, checked. `not_ours` is the error for a file with another magic.
pub(crate) fn file_header<'b>(
    bytes: &'b [u8],
    len: usize,
    magic: [u8; 8],
    not_ours: &'static str,
) -> Result<&'b [u8], Bad> {
    let header = bytes.get(..len).ok_or(Bad::Damaged("shorter than its header"))?;
    if header[0..8] != magic {
        return Err(Bad::Damaged(not_ours));
    }
    if !is_sealed_header(header) {
        return Err(Bad::Damaged("the checksum of the header does not match"));
    }
    match u32_at(header, 8) {
        FORMAT => Ok(header),
        newer => Err(Bad::Newer(newer)),
    }
}

/// The checksum of the header of a record at `offset` of log `number`.
pub(crate) fn header_crc(number: u64, offset: u64, header: &[u8]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(&number.to_le_bytes());
    crc.update(&offset.to_le_bytes());
    crc.update(&header[4..]);
    crc.finalize()
}

/// Whether the bytes of log `number`, given entirely, have an undamaged record header of `len`
/// bytes at `at`.
pub(crate) fn has_header(bytes: &[u8], number: u64, at: usize, len: usize) -> bool {
    bytes
        .get(at..at + len)
        .is_some_and(|header| header[12] != 0 && u32_at(header, 0) == header_crc(number, at as u64, header))
}

/// The undamaged header of `len` bytes of the record at `at` of log `number`.
pub(crate) fn header_at(bytes: &[u8], number: u64, at: usize, len: usize) -> Result<&[u8], Bad> {
    let header = bytes.get(at..at + len).ok_or(Bad::Damaged("a record's header is cut off"))?;
    match has_header(bytes, number, at, len) {
        true => Ok(header),
        false => Err(Bad::Damaged("the checksum of a record's header does not match")),
    }
}

/// Checks that this release knows the version of a record.
pub(crate) fn check_version(header: &[u8]) -> Result<(), Bad> {
    if header[12] > RECORD_VERSION { Err(Bad::Newer(header[12].into())) } else { Ok(()) }
}

/// The body of the record with this header, which begins at `from`, and where the next record
/// begins.
pub(crate) fn body_at(bytes: &Bytes, header: &[u8], from: usize) -> Result<(Bytes, usize), Bad> {
    let cut = Bad::Damaged("a record's body is cut off");
    let to = from.checked_add(u32_at(header, 8) as usize).ok_or(cut)?;
    let next = to.checked_next_multiple_of(ALIGN).ok_or(cut)?;
    if next > bytes.len() {
        return Err(cut);
    }
    if crc32fast::hash(&bytes[from..to]) != u32_at(header, 4) {
        return Err(Bad::Damaged("the checksum of a record's body does not match"));
    }
    Ok((bytes.slice(from..to), next))
}
