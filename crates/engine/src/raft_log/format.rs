//! The bytes of the metadata log and of its snapshot. Little-endian.
//!
//! ```text
//! log header (32)       "MESSINAR", u32 format, u32 low half of the node's digest, u64 number,
//!                       u32 high half of the node's digest, u32 CRC32 of what precedes
//! record (32 + body)    u32 CRC32 of log number, offset, and the 28 bytes that follow
//!                       u32 CRC32 of the body, u32 body length, u8 version, u8 kind, u16 zero
//!                       u64 index, u32 the checksum that the record before begins with (0 for the
//!                       first record),
//!                       u32 how many bytes back all was durable when this was written
//!                       body, zeros up to a multiple of 8
//! snapshot (24 + body)  "MESSINAG", u32 format, u32 CRC32 of the body,
//!                       u32 short digest of the node, u32 CRC32 of what precedes, body
//! ```
//!
//! The digest ([`NodeDigest`]) is a digest of the node's host id: a node must never vote with the
//! log of another node.
//!
//! Records that are written together point back to the first of them: damage behind that position
//! may be a torn write, damage before it cannot. A record that does not continue the one before
//! it was left by a failed write and does not count. Nothing here may panic on foreign bytes.

use super::record::{
    ALIGN, Bad, FORMAT, RECORD_VERSION, body_at, check_version, file_header, has_header, header_at, header_crc,
};
use crate::files::NodeDigest;
use crate::files::bytes::{seal_header, u32_at, u64_at};
use bytes::Bytes;

/// Length of a log's header.
pub(super) const LOG_HEADER: u64 = 32;
/// The longest body of an entry or a snapshot: 1 GiB.
pub(super) const MAX_BODY: usize = 1 << 30;
const RECORD_HEADER: usize = 32;
const SNAPSHOT_HEADER: usize = 24;
const LOG_MAGIC: [u8; 8] = *b"MESSINAR";
const SNAPSHOT_MAGIC: [u8; 8] = *b"MESSINAG";
const NOT_OURS: &str = "not a file of the metadata log";

/// The kind of a record. The numbers are stored: only add new ones.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(super) enum Kind {
    /// The entry of an index.
    Entry = 1,
    /// The vote, in place of an earlier one.
    Vote = 2,
    /// Entries from an index on are removed.
    Truncated = 3,
    /// Entries up to an index are committed.
    Committed = 4,
    /// Entries up to an index were purged. The body is the id of the last of them. Only the first
    /// record of a log.
    Purged = 5,
    /// The end: all before it is durable. The next record overwrites it.
    End = 15,
}

impl Kind {
    fn of(byte: u8) -> Option<Kind> {
        [Kind::Entry, Kind::Vote, Kind::Truncated, Kind::Committed, Kind::Purged, Kind::End]
            .into_iter()
            .find(|kind| *kind as u8 == byte)
    }
}

/// A record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Record {
    pub kind: Kind,
    pub index: u64,
    pub body: Bytes,
}

/// The header of the log of a number.
pub(super) fn log_header(node: NodeDigest, number: u64) -> Vec<u8> {
    let mut out = vec![0; LOG_HEADER as usize];
    out[0..8].copy_from_slice(&LOG_MAGIC);
    out[8..12].copy_from_slice(&FORMAT.to_le_bytes());
    let digest = node.long().to_le_bytes();
    out[12..16].copy_from_slice(&digest[..4]);
    out[16..24].copy_from_slice(&number.to_le_bytes());
    out[24..28].copy_from_slice(&digest[4..]);
    seal_header(&mut out);
    out
}

/// Checks that `bytes` begin with the header of the node's log of a number.
pub(super) fn check_log_header(bytes: &[u8], node: NodeDigest, number: u64) -> Result<(), Bad> {
    let header = file_header(bytes, LOG_HEADER as usize, LOG_MAGIC, NOT_OURS)?;
    if !node.accepts(u64::from(u32_at(header, 12)) | u64::from(u32_at(header, 24)) << 32) {
        return Err(Bad::Foreign);
    }
    if u64_at(header, 16) == number { Ok(()) } else { Err(Bad::Damaged("it has the number of another log")) }
}

/// The bytes of a snapshot's file.
pub(super) fn encode_snapshot(node: NodeDigest, body: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(SNAPSHOT_HEADER + body.len());
    out.resize(SNAPSHOT_HEADER, 0);
    out[0..8].copy_from_slice(&SNAPSHOT_MAGIC);
    out[8..12].copy_from_slice(&FORMAT.to_le_bytes());
    out[12..16].copy_from_slice(&crc32fast::hash(body).to_le_bytes());
    out[16..20].copy_from_slice(&node.short().to_le_bytes());
    seal_header(&mut out);
    out.extend_from_slice(body);
    out
}

/// The body of a snapshot's file of the node.
pub(super) fn decode_snapshot(bytes: &Bytes, node: NodeDigest) -> Result<Bytes, Bad> {
    let header = file_header(bytes, SNAPSHOT_HEADER, SNAPSHOT_MAGIC, NOT_OURS)?;
    if !node.accepts_short(u32_at(header, 16)) {
        return Err(Bad::Foreign);
    }
    let body = bytes.slice(SNAPSHOT_HEADER..);
    if crc32fast::hash(&body) != u32_at(header, 12) {
        return Err(Bad::Damaged("the checksum of the body does not match"));
    }
    Ok(body)
}

/// The position of the next record: behind the last one of a log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Tail {
    /// The log.
    pub number: u64,
    /// The offset of the next record.
    pub at: u64,
    /// The checksum at the start of the last record; 0 if there is no record.
    pub chain: u32,
}

impl Tail {
    /// The beginning of a log.
    pub fn first(number: u64) -> Tail {
        Tail { number, at: LOG_HEADER, chain: 0 }
    }

    /// Appends the bytes of a record to `out` and moves behind it. Records from offset `together`
    /// on are written together.
    pub fn encode(&mut self, out: &mut Vec<u8>, together: u64, record: &Record) {
        let from = out.len();
        out.resize(from + RECORD_HEADER, 0);
        let header = &mut out[from..];
        header[4..8].copy_from_slice(&crc32fast::hash(&record.body).to_le_bytes());
        header[8..12].copy_from_slice(&(record.body.len() as u32).to_le_bytes());
        header[12] = RECORD_VERSION;
        header[13] = record.kind as u8;
        header[16..24].copy_from_slice(&record.index.to_le_bytes());
        header[24..28].copy_from_slice(&self.chain.to_le_bytes());
        header[28..32].copy_from_slice(&((self.at - together) as u32).to_le_bytes());
        let crc = header_crc(self.number, self.at, header);
        header[0..4].copy_from_slice(&crc.to_le_bytes());
        out.extend_from_slice(&record.body);
        out.resize(out.len().next_multiple_of(ALIGN), 0);
        self.at += (out.len() - from) as u64;
        self.chain = crc;
    }

    /// The mark that all before this position is durable.
    pub fn end_mark(mut self) -> Vec<u8> {
        let (mut out, together) = (Vec::new(), self.at);
        self.encode(&mut out, together, &Record { kind: Kind::End, index: 0, body: Bytes::new() });
        out
    }
}

/// The contents of a log.
pub(super) struct Scan {
    /// The records, and where each begins in the file.
    pub records: Vec<(Record, u64)>,
    /// The end of the good part.
    pub tail: Tail,
    /// Why it ends there, unless it is the end of the file or an end mark.
    pub bad: Option<Bad>,
    /// Whether the bad bytes were durable once.
    pub was_durable: bool,
    /// Whether it ends with an end mark.
    pub marked: bool,
}

/// Reads the records of log `number` from the bytes of the entire file.
pub(super) fn scan(bytes: &Bytes, number: u64) -> Scan {
    let mut records = Vec::new();
    let (mut tail, mut marked) = (Tail::first(number), false);
    let bad = loop {
        let at = tail.at as usize;
        if at >= bytes.len() {
            break None;
        }
        match record_at(bytes, tail) {
            Ok((Record { kind: Kind::End, .. }, _)) => {
                marked = true;
                break None;
            }
            Ok((record, next)) => {
                records.push((record, at as u64));
                tail = next;
            }
            Err(bad) => break Some(bad),
        }
    };
    let mut was_durable = bad.is_some_and(Bad::is_certain);
    let at = tail.at as usize;
    let mut behind = at + ALIGN;
    while bad.is_some() && behind + RECORD_HEADER <= bytes.len() && !was_durable {
        was_durable = has_header(bytes, number, behind, RECORD_HEADER)
            && behind.saturating_sub(u32_at(&bytes[behind..], 28) as usize) > at;
        behind += ALIGN;
    }
    Scan { records, tail, bad, was_durable, marked }
}

fn record_at(bytes: &Bytes, tail: Tail) -> Result<(Record, Tail), Bad> {
    let (number, at) = (tail.number, tail.at as usize);
    let header = header_at(bytes, number, at, RECORD_HEADER)?;
    if u32_at(header, 24) != tail.chain {
        return Err(Bad::Damaged("a record does not continue the one before it"));
    }
    check_version(header)?;
    let kind = Kind::of(header[13]).ok_or(Bad::Wrong("a record of an unknown kind"))?;
    let (body, next) = body_at(bytes, header, at + RECORD_HEADER)?;
    let record = Record { kind, index: u64_at(header, 16), body };
    Ok((record, Tail { number, at: next as u64, chain: u32_at(header, 0) }))
}
