//! The bytes of a segment.
//!
//! Everything is little-endian.
//!
//! ```text
//! segment header (64 bytes)
//!   0  8  "MESSINAL"
//!   8  4  format (1)
//!  12  4  segment size
//!  16  8  segment id
//!  24  8  run: the id of the first segment of the process that wrote it
//!  32  8  created, microseconds since 1970
//!  40  8  digest of the node's host id
//!  48 12  zero
//!  60  4  CRC32 of the 60 bytes before
//! record, from byte 64 on, each at a multiple of 8
//!   0  4  CRC32 of segment id (8), offset (4), and the 28 bytes that follow
//!   4  4  CRC32 of the body
//!   8  4  body length
//!  12  1  version (1)
//!  13  1  kind
//!  14  2  zero
//!  16 12  the position (segment, offset) below which all was known to be on the device when this
//!         was written
//!  28  4  zero
//!  32     body, then zeros up to a multiple of 8
//! ```
//!
//! A record header has its own checksum. So a later record can be found behind a damaged one, and
//! with it the position that it names as synced. Nothing here may panic on foreign bytes.

use super::position::Position;
use crate::files::bytes::{is_sealed_header, seal_header, u32_at, u64_at};

/// Length of a segment's header.
pub(super) const SEGMENT_HEADER: u32 = 64;
/// Length of a record's header.
pub(super) const RECORD_HEADER: usize = 32;
/// Records begin at multiples of this.
const ALIGN: usize = 8;
const MAGIC: [u8; 8] = *b"MESSINAL";
const SEGMENT_FORMAT: u32 = 1;
const RECORD_VERSION: u8 = 1;

/// The kind of a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// One mutation.
    Mutation,
    /// Several mutations: a count, then each with its length before it.
    Group,
    /// The columns of a version of a table's schema.
    Mapping,
    /// The segment ends here: more records are in the next one.
    End,
}

impl Kind {
    fn code(self) -> u8 {
        match self {
            Kind::Mutation => 1,
            Kind::Group => 2,
            Kind::Mapping => 3,
            Kind::End => 4,
        }
    }

    fn of(code: u8) -> Option<Kind> {
        Some(match code {
            1 => Kind::Mutation,
            2 => Kind::Group,
            3 => Kind::Mapping,
            4 => Kind::End,
            _ => return None,
        })
    }
}

/// The header of a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct SegmentHeader {
    pub segment: u64,
    pub run: u64,
    pub size: u32,
    pub created_micros: i64,
    /// The digest of the node; 0 if it is not known.
    pub node: u64,
}

/// The defect of bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Bad {
    /// They are damaged, torn, or were never written.
    Damaged(&'static str),
    /// They are complete, and of a later release.
    Newer { what: &'static str, found: u32, known: u32 },
}

impl SegmentHeader {
    pub fn encode(&self) -> [u8; SEGMENT_HEADER as usize] {
        let mut out = [0u8; SEGMENT_HEADER as usize];
        out[0..8].copy_from_slice(&MAGIC);
        out[8..12].copy_from_slice(&SEGMENT_FORMAT.to_le_bytes());
        out[12..16].copy_from_slice(&self.size.to_le_bytes());
        out[16..24].copy_from_slice(&self.segment.to_le_bytes());
        out[24..32].copy_from_slice(&self.run.to_le_bytes());
        out[32..40].copy_from_slice(&self.created_micros.to_le_bytes());
        out[40..48].copy_from_slice(&self.node.to_le_bytes());
        seal_header(&mut out);
        out
    }

    pub fn decode(image: &[u8]) -> Result<SegmentHeader, Bad> {
        let header = image.get(..SEGMENT_HEADER as usize).ok_or(Bad::Damaged("shorter than a segment's header"))?;
        if header[0..8] != MAGIC {
            return Err(Bad::Damaged("not a commitlog segment"));
        }
        if !is_sealed_header(header) {
            return Err(Bad::Damaged("the checksum of the segment's header does not match"));
        }
        let format = u32_at(header, 8);
        if format > SEGMENT_FORMAT {
            return Err(Bad::Newer { what: "segment format", found: format, known: SEGMENT_FORMAT });
        }
        Ok(SegmentHeader {
            size: u32_at(header, 12),
            segment: u64_at(header, 16),
            run: u64_at(header, 24),
            created_micros: u64_at(header, 32) as i64,
            node: u64_at(header, 40),
        })
    }
}

/// Bytes that a record with a body of `len` bytes takes.
pub(super) fn record_len(len: usize) -> usize {
    (RECORD_HEADER + len).next_multiple_of(ALIGN)
}

/// Appends a record that begins at `at`; `body` appends the body.
#[inline]
pub(super) fn push_record(
    out: &mut Vec<u8>,
    at: Position,
    kind: Kind,
    synced: Position,
    body: impl FnOnce(&mut Vec<u8>),
) {
    let start = out.len();
    out.extend_from_slice(&[0; RECORD_HEADER]);
    body(out);
    let body_start = start + RECORD_HEADER;
    let len = out.len() - body_start;
    let body_crc = crc32fast::hash(&out[body_start..]);
    // The checksum covers segment id and offset although they are not stored: a copy of the
    // header contains them.
    let mut covered = [0u8; 12 + 28];
    covered[0..8].copy_from_slice(&at.segment.to_le_bytes());
    covered[8..12].copy_from_slice(&at.offset.to_le_bytes());
    covered[12..16].copy_from_slice(&body_crc.to_le_bytes());
    covered[16..20].copy_from_slice(&(len as u32).to_le_bytes());
    covered[20] = RECORD_VERSION;
    covered[21] = kind.code();
    covered[24..32].copy_from_slice(&synced.segment.to_le_bytes());
    covered[32..36].copy_from_slice(&synced.offset.to_le_bytes());
    let header_crc = crc32fast::hash(&covered);
    out[start..start + 4].copy_from_slice(&header_crc.to_le_bytes());
    out[start + 4..body_start].copy_from_slice(&covered[12..]);
    out.resize(start + record_len(len), 0);
}

/// An undamaged record header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct RecordHeader {
    pub kind: u8,
    pub version: u8,
    pub body_crc: u32,
    pub len: u32,
    pub synced: Position,
}

/// An undamaged record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Record {
    pub kind: Kind,
    pub synced: Position,
    /// Where the body is in the image.
    pub body: std::ops::Range<usize>,
    /// Where the next record begins.
    pub next: usize,
}

/// The bytes of a segment, read as the segment with this id.
#[derive(Clone, Copy)]
pub(super) struct Image<'a> {
    pub bytes: &'a [u8],
    pub segment: u64,
}

impl Image<'_> {
    /// The undamaged record header at `at`, if there is one.
    pub fn header(&self, at: usize) -> Option<RecordHeader> {
        let header = self.bytes.get(at..at.checked_add(RECORD_HEADER)?)?;
        if header[12] == 0 || header[13] == 0 {
            return None;
        }
        let mut covered = [0u8; 12 + 28];
        covered[0..8].copy_from_slice(&self.segment.to_le_bytes());
        covered[8..12].copy_from_slice(&u32::try_from(at).ok()?.to_le_bytes());
        covered[12..].copy_from_slice(&header[4..]);
        if u32_at(header, 0) != crc32fast::hash(&covered) {
            return None;
        }
        Some(RecordHeader {
            body_crc: u32_at(header, 4),
            len: u32_at(header, 8),
            version: header[12],
            kind: header[13],
            synced: Position { segment: u64_at(header, 16), offset: u32_at(header, 24) },
        })
    }

    /// The record at `at`.
    pub fn record(&self, at: usize) -> Result<Record, Bad> {
        let header = self.header(at).ok_or(Bad::Damaged("no whole record header"))?;
        if header.version > RECORD_VERSION {
            return Err(Bad::Newer {
                what: "record version",
                found: header.version.into(),
                known: RECORD_VERSION.into(),
            });
        }
        let from = at + RECORD_HEADER;
        let to = from.checked_add(header.len as usize).ok_or(Bad::Damaged("the body is longer than the segment"))?;
        let body = self.bytes.get(from..to).ok_or(Bad::Damaged("the body is longer than the segment"))?;
        if crc32fast::hash(body) != header.body_crc {
            return Err(Bad::Damaged("the checksum of the body does not match"));
        }
        let kind = Kind::of(header.kind).ok_or(Bad::Newer {
            what: "record kind",
            found: header.kind.into(),
            known: Kind::End.code().into(),
        })?;
        Ok(Record {
            kind,
            synced: header.synced,
            body: from..to,
            next: from + record_len(header.len as usize) - RECORD_HEADER,
        })
    }

    /// The next offset at or behind `at` with an undamaged record header.
    pub fn next_header(&self, at: usize) -> Option<(usize, RecordHeader)> {
        let mut at = at.max(SEGMENT_HEADER as usize).next_multiple_of(ALIGN);
        while at + RECORD_HEADER <= self.bytes.len() {
            if let Some(header) = self.header(at) {
                return Some((at, header));
            }
            at += ALIGN;
        }
        None
    }

    /// The highest position that headers at or behind `at` name as synced, and the number of such
    /// headers.
    pub fn named_behind(&self, at: usize) -> (Option<Position>, u64) {
        let mut highest = None;
        let mut count = 0;
        let mut at = at;
        while let Some((found, header)) = self.next_header(at) {
            highest = highest.max(Some(header.synced));
            count += 1;
            at = match self.record(found) {
                Ok(record) => record.next,
                Err(_) => found + ALIGN,
            };
        }
        (highest, count)
    }
}

/// The mutations in the body of a record, as ranges of the image; `None` if the body is malformed.
pub(super) fn mutations(image: &[u8], record: &Record) -> Option<Vec<std::ops::Range<usize>>> {
    match record.kind {
        Kind::Mutation => Some(vec![record.body.clone()]),
        Kind::Mapping | Kind::End => Some(Vec::new()),
        Kind::Group => {
            let mut rest = image.get(record.body.clone())?;
            let mut at = record.body.start;
            let (count, tail) = rest.split_first_chunk::<4>()?;
            rest = tail;
            at += 4;
            let mut out = Vec::new();
            for _ in 0..u32::from_le_bytes(*count) {
                let (len, tail) = rest.split_first_chunk::<4>()?;
                let len = u32::from_le_bytes(*len) as usize;
                rest = tail.get(len..)?;
                at += 4;
                out.push(at..at + len);
                at += len;
            }
            rest.is_empty().then_some(out)
        }
    }
}

/// Reads arbitrary bytes as a segment, as replay does. For fuzzing: it must not panic or loop.
pub fn fuzz_segment(bytes: &[u8]) {
    let segment = match SegmentHeader::decode(bytes) {
        Ok(header) => header.segment,
        Err(_) => 1,
    };
    let image = Image { bytes, segment };
    let mut at = SEGMENT_HEADER as usize;
    while let Ok(record) = image.record(at) {
        assert!(record.next > at, "records have a length");
        at = record.next;
        if record.kind == Kind::Mapping {
            drop(super::mapping::ColumnMapping::decode(&bytes[record.body.clone()]));
        }
        for body in mutations(bytes, &record).unwrap_or_default() {
            drop(model::mutation::Mutation::parse(bytes::Bytes::copy_from_slice(&bytes[body])));
        }
    }
    image.named_behind(at);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SEGMENT: u64 = 77;

    fn image_of(bodies: &[Vec<u8>]) -> Vec<u8> {
        let header = SegmentHeader { segment: SEGMENT, run: 70, size: 4096, created_micros: 5, node: 6 };
        let mut out = header.encode().to_vec();
        assert_eq!(SegmentHeader::decode(&out), Ok(header));
        for body in bodies {
            let at = Position { segment: SEGMENT, offset: out.len() as u32 };
            let synced = Position { segment: SEGMENT, offset: (out.len() / 2) as u32 };
            push_record(&mut out, at, Kind::Mutation, synced, |out| out.extend_from_slice(body));
        }
        out
    }

    fn read_all(bytes: &[u8], segment: u64) -> Vec<Vec<u8>> {
        let image = Image { bytes, segment };
        let mut at = SEGMENT_HEADER as usize;
        let mut out = Vec::new();
        while let Ok(record) = image.record(at) {
            out.push(bytes[record.body.clone()].to_vec());
            at = record.next;
        }
        out
    }

    proptest! {
        #[test]
        fn records_round_trip_only_in_their_segment_and_position(
            bodies in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 0..20),
        ) {
            let bytes = image_of(&bodies);
            prop_assert_eq!(read_all(&bytes, SEGMENT), bodies.clone());
            prop_assert!(read_all(&bytes, SEGMENT + 1).is_empty());
            if !bodies.is_empty() {
                let mut moved = bytes[..SEGMENT_HEADER as usize].to_vec();
                moved.extend_from_slice(&[0; 8]);
                moved.extend_from_slice(&bytes[SEGMENT_HEADER as usize..]);
                let shifted = Image { bytes: &moved, segment: SEGMENT };
                prop_assert!(shifted.header(SEGMENT_HEADER as usize + 8).is_none());
            }
        }

        #[test]
        fn a_flipped_bit_ends_the_prefix_and_later_headers_are_found(
            bodies in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..60), 2..10),
            at in any::<prop::sample::Index>(),
            bit in 0u8..8,
        ) {
            let good = image_of(&bodies);
            let mut bytes = good.clone();
            let from = SEGMENT_HEADER as usize;
            let at = from + at.index(bytes.len() - from);
            bytes[at] ^= 1 << bit;
            let read = read_all(&bytes, SEGMENT);
            prop_assert_eq!(&read[..], &bodies[..read.len()]);
            let mut start = from;
            for body in &bodies {
                let next = start + record_len(body.len());
                let padding = start + RECORD_HEADER + body.len();
                if (start..next).contains(&at) && at < padding {
                    let image = Image { bytes: &bytes, segment: SEGMENT };
                    let expected = image_of(&bodies);
                    let behind = Image { bytes: &expected, segment: SEGMENT }.named_behind(next);
                    prop_assert_eq!(image.named_behind(start + RECORD_HEADER).0, behind.0);
                }
                start = next;
            }
        }

        #[test]
        fn foreign_bytes_do_no_harm(bytes in prop::collection::vec(any::<u8>(), 0..4000)) {
            fuzz_segment(&bytes);
        }

        #[test]
        fn damaged_segments_do_no_harm(
            bodies in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..60), 1..10),
            flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        ) {
            let mut bytes = image_of(&bodies);
            for (at, value) in flips {
                let at = at.index(bytes.len());
                bytes[at] = value;
            }
            fuzz_segment(&bytes);
        }
    }
}
