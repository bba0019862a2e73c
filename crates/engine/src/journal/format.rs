//! The bytes of journal files. Little-endian.
//!
//! ```text
//! log header (48)       "MESSINAJ", u32 format, u32 zero, u64 number, 16 base id, u32 zero, u32 CRC32 of what precedes
//! entry (56 + body)     u32 CRC32 of log number, offset, and the 52 bytes that follow
//!                       u32 CRC32 of the body, u32 body length, u8 version, u8 kind (0), 10 zero, 16 previous, 16 id
//!                       body, zeros up to a multiple of 8
//! end mark (56)         as an entry of kind 1 without body and id, behind the last entry: that one is durable, so damage to it
//!                       is no torn tail. The next entry is written over it.
//! snapshot (64 + body)  "MESSINAS", u32 format, u32 zero, u64 number, 16 id, u64 body length, u32 zero,
//!                       u32 CRC32 of the body, 4 zero, u32 CRC32 of what precedes
//! ```
//!
//! An entry's checksum covers its log's number and its own offset, so that nothing old is taken for new. Nothing here may
//! panic on foreign bytes.

use super::{Entry, JournalError};
use bytes::Bytes;
use std::path::Path;
use uuid::Uuid;

/// Length of a log's header.
pub(super) const LOG_HEADER: u64 = 48;
const ENTRY_HEADER: usize = 56;
const SNAPSHOT_HEADER: usize = 64;
const ALIGN: usize = 8;
const LOG_MAGIC: [u8; 8] = *b"MESSINAJ";
const SNAPSHOT_MAGIC: [u8; 8] = *b"MESSINAS";
const FORMAT: u32 = 1;
const ENTRY_VERSION: u8 = 1;
const KIND_AT: usize = 13;
const END_MARK: u8 = 1;

/// The longest body of an entry or a snapshot: 1 GiB.
pub const MAX_BODY: usize = 1 << 30;

/// What is wrong with bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Bad {
    /// They are damaged, or torn.
    Damaged(&'static str),
    /// They are whole and do not fit here.
    Wrong(&'static str),
    /// They are of a later release.
    Newer(u32),
}

impl Bad {
    /// Whether a torn write cannot be the reason.
    pub fn is_certain(self) -> bool {
        !matches!(self, Bad::Damaged(_))
    }

    pub fn at(self, file: &Path, offset: u64) -> JournalError {
        let file = file.to_path_buf();
        match self {
            Bad::Damaged(why) | Bad::Wrong(why) => JournalError::Corrupt { file, offset, why: why.into() },
            Bad::Newer(found) => JournalError::Newer { file, found, known: FORMAT },
        }
    }
}

/// The header of a log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct LogHeader {
    pub number: u64,
    pub base: Uuid,
}

impl LogHeader {
    pub fn encode(&self) -> [u8; LOG_HEADER as usize] {
        let mut out = [0u8; LOG_HEADER as usize];
        out[0..8].copy_from_slice(&LOG_MAGIC);
        out[8..12].copy_from_slice(&FORMAT.to_le_bytes());
        out[16..24].copy_from_slice(&self.number.to_le_bytes());
        out[24..40].copy_from_slice(self.base.as_bytes());
        seal(&mut out);
        out
    }

    pub fn decode(bytes: &[u8]) -> Result<LogHeader, Bad> {
        let header = opened(bytes, LOG_HEADER as usize, LOG_MAGIC)?;
        Ok(LogHeader { number: u64_at(header, 16), base: uuid_at(header, 24) })
    }
}

/// The header of a snapshot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct SnapshotFile {
    pub number: u64,
    pub id: Uuid,
}

impl SnapshotFile {
    pub fn encode(&self, body: &[u8]) -> Vec<u8> {
        let mut header = [0u8; SNAPSHOT_HEADER];
        header[0..8].copy_from_slice(&SNAPSHOT_MAGIC);
        header[8..12].copy_from_slice(&FORMAT.to_le_bytes());
        header[16..24].copy_from_slice(&self.number.to_le_bytes());
        header[24..40].copy_from_slice(self.id.as_bytes());
        header[40..48].copy_from_slice(&(body.len() as u64).to_le_bytes());
        header[52..56].copy_from_slice(&crc32fast::hash(body).to_le_bytes());
        seal(&mut header);
        [&header[..], body].concat()
    }

    /// The header, and where the body is.
    pub fn decode(bytes: &[u8]) -> Result<(SnapshotFile, std::ops::Range<usize>), Bad> {
        let header = opened(bytes, SNAPSHOT_HEADER, SNAPSHOT_MAGIC)?;
        let body = &bytes[SNAPSHOT_HEADER..];
        if body.len() as u64 != u64_at(header, 40) {
            return Err(Bad::Damaged("the body does not have its length"));
        }
        if crc32fast::hash(body) != u32_at(header, 52) {
            return Err(Bad::Damaged("the checksum of the body does not match"));
        }
        Ok((SnapshotFile { number: u64_at(header, 16), id: uuid_at(header, 24) }, SNAPSHOT_HEADER..bytes.len()))
    }
}

/// Puts the checksum at the end of a header.
fn seal(header: &mut [u8]) {
    let (covered, crc) = header.split_at_mut(header.len() - 4);
    crc.copy_from_slice(&crc32fast::hash(covered).to_le_bytes());
}

/// A file's header, checked.
fn opened(bytes: &[u8], len: usize, magic: [u8; 8]) -> Result<&[u8], Bad> {
    let header = bytes.get(..len).ok_or(Bad::Damaged("shorter than its header"))?;
    if header[0..8] != magic {
        return Err(Bad::Damaged("not a file of the journal"));
    }
    if crc32fast::hash(&header[..len - 4]) != u32_at(header, len - 4) {
        return Err(Bad::Damaged("the checksum of the header does not match"));
    }
    match u32_at(header, 8) {
        FORMAT => Ok(header),
        newer => Err(Bad::Newer(newer)),
    }
}

/// The bytes of an entry at `at` of log `number`.
pub(super) fn encode_entry(number: u64, at: u64, previous: Uuid, id: Uuid, body: &[u8]) -> Vec<u8> {
    let mut out = vec![0u8; ENTRY_HEADER];
    out[4..8].copy_from_slice(&crc32fast::hash(body).to_le_bytes());
    out[8..12].copy_from_slice(&(body.len() as u32).to_le_bytes());
    out[12] = ENTRY_VERSION;
    out[24..40].copy_from_slice(previous.as_bytes());
    out[40..56].copy_from_slice(id.as_bytes());
    let crc = header_crc(number, at, &out);
    out[0..4].copy_from_slice(&crc.to_le_bytes());
    out.extend_from_slice(body);
    out.resize(out.len().next_multiple_of(ALIGN), 0);
    out
}

/// The mark at `at` of log `number` that says that entry `last`, which ends there, is durable.
pub(super) fn encode_end_mark(number: u64, at: u64, last: Uuid) -> Vec<u8> {
    let mut out = encode_entry(number, at, last, Uuid::nil(), &[]);
    out[KIND_AT] = END_MARK;
    let crc = header_crc(number, at, &out);
    out[0..4].copy_from_slice(&crc.to_le_bytes());
    out
}

fn header_crc(number: u64, at: u64, header: &[u8]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(&number.to_le_bytes());
    crc.update(&at.to_le_bytes());
    crc.update(&header[4..ENTRY_HEADER]);
    crc.finalize()
}

/// What a log holds.
pub(super) struct Scan {
    /// The entries, and where each ends in the file.
    pub entries: Vec<(Entry, u64)>,
    /// Where the good part ends, from the start of the bytes given.
    pub end: usize,
    /// Why it ends there; `None` at the end of the file.
    pub bad: Option<Bad>,
    /// Whether a whole entry's header, or an end mark, lies behind what is bad.
    pub whole_behind: bool,
    /// Whether it ends with an end mark.
    pub marked: bool,
}

/// Reads the entries in `bytes`, which begin at `start` of log `number` and follow `previous`.
pub(super) fn scan(bytes: &Bytes, number: u64, start: u64, mut previous: Uuid) -> Scan {
    let mut entries = Vec::new();
    let (mut at, mut marked) = (0, false);
    let bad = loop {
        if at >= bytes.len() {
            break None;
        }
        if has_header(bytes, number, start, at) && bytes[at + KIND_AT] == END_MARK {
            marked = true;
            break None;
        }
        match entry_at(bytes, number, start, at, previous) {
            Ok((entry, next)) => {
                previous = entry.id;
                // The last entry's padding may be missing from a file that was cut.
                at = next;
                entries.push((entry, start + at as u64));
            }
            Err(bad) => break Some(bad),
        }
    };
    let mut behind = at + ALIGN;
    let mut whole_behind = false;
    while bad.is_some() && behind + ENTRY_HEADER <= bytes.len() && !whole_behind {
        whole_behind = has_header(bytes, number, start, behind);
        behind += ALIGN;
    }
    Scan { entries, end: at, bad, whole_behind, marked }
}

fn has_header(bytes: &[u8], number: u64, start: u64, at: usize) -> bool {
    bytes
        .get(at..at + ENTRY_HEADER)
        .is_some_and(|header| header[12] != 0 && u32_at(header, 0) == header_crc(number, start + at as u64, header))
}

fn entry_at(bytes: &Bytes, number: u64, start: u64, at: usize, previous: Uuid) -> Result<(Entry, usize), Bad> {
    let header = bytes.get(at..at + ENTRY_HEADER).ok_or(Bad::Damaged("an entry's header is cut off"))?;
    if !has_header(bytes, number, start, at) {
        return Err(Bad::Damaged("the checksum of an entry's header does not match"));
    }
    if header[12] > ENTRY_VERSION {
        return Err(Bad::Newer(header[12].into()));
    }
    let from = at + ENTRY_HEADER;
    let to = from.checked_add(u32_at(header, 8) as usize).ok_or(Bad::Damaged("an entry's body is cut off"))?;
    let next = to.checked_next_multiple_of(ALIGN).ok_or(Bad::Damaged("an entry's body is cut off"))?;
    if next > bytes.len() {
        return Err(Bad::Damaged("an entry's body is cut off"));
    }
    if crc32fast::hash(&bytes[from..to]) != u32_at(header, 4) {
        return Err(Bad::Damaged("the checksum of an entry's body does not match"));
    }
    let entry = Entry { previous: uuid_at(header, 24), id: uuid_at(header, 40), body: bytes.slice(from..to) };
    if entry.previous != previous {
        return Err(Bad::Wrong("an entry does not follow the one before it"));
    }
    Ok((entry, next))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

fn uuid_at(bytes: &[u8], at: usize) -> Uuid {
    let mut id = [0; 16];
    id.copy_from_slice(&bytes[at..at + 16]);
    Uuid::from_bytes(id)
}
