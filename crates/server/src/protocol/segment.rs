//! Segments: the envelopes of frames in version 5, after STARTUP was answered.
//!
//! A segment consists of a header with a CRC24, a payload of at most 131,071 bytes, and the CRC32
//! of the payload. A self-contained segment contains complete frames. A frame that does not fit
//! spans several segments that contain nothing else. With LZ4, the header has two lengths of the
//! payload: compressed, and decompressed (0 if it is not compressed). All numbers are
//! little-endian. After a damaged segment, the rest of the stream cannot be interpreted.

mod lz4_beginning;

use bytes::{Buf, Bytes, BytesMut};
use lz4_beginning::open_beginning;

/// The number of bits of a length in the header.
const LENGTH_BITS: u32 = 17;
/// The longest payload, compressed and decompressed.
pub const MAX_PAYLOAD: usize = (1 << LENGTH_BITS) - 1;
/// The length of the payload's CRC32, which follows it.
pub const TRAILER_LEN: usize = 4;
/// The length of the header's CRC24, which follows its fields.
const CRC24_LEN: usize = 3;
/// Shorter payloads are stored as literals.
const MIN_COMPRESSED: usize = 512;

/// The format of a connection's segments.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// Payloads are not compressed.
    Plain,
    /// Payloads are LZ4 blocks.
    Lz4,
}

impl Form {
    /// The length of the header's fields.
    const fn fields_len(self) -> usize {
        match self {
            Form::Plain => 3,
            Form::Lz4 => 5,
        }
    }

    /// The length of the header.
    pub const fn header_len(self) -> usize {
        self.fields_len() + CRC24_LEN
    }

    /// The longest payload that fits into a segment even if compression makes it longer.
    pub const fn max_payload(self) -> usize {
        match self {
            Form::Plain => MAX_PAYLOAD,
            // LZ4 makes incompressible data longer, by one byte in 255.
            Form::Lz4 => MAX_PAYLOAD - MAX_PAYLOAD / 255 - 16,
        }
    }
}

/// The fields of a header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// The length of the payload, compressed.
    pub payload: usize,
    /// The length of the payload, decompressed; 0 if it is not compressed.
    pub opened: usize,
    /// The payload consists of complete frames.
    pub self_contained: bool,
}

impl Header {
    /// Writes the header to `out`, which has [`Form::header_len`] bytes.
    pub fn write(self, form: Form, out: &mut [u8]) {
        debug_assert!(self.payload <= MAX_PAYLOAD && self.opened <= MAX_PAYLOAD, "lengths fit the bits of the header");
        debug_assert_eq!(out.len(), form.header_len(), "a header has its own bytes");
        let mut bits = self.payload as u64;
        let mut at = LENGTH_BITS;
        if form == Form::Lz4 {
            bits |= (self.opened as u64) << at;
            at += LENGTH_BITS;
        }
        bits |= u64::from(self.self_contained) << at;
        let (fields, checksum) = out.split_at_mut(form.fields_len());
        fields.copy_from_slice(&bits.to_le_bytes()[..form.fields_len()]);
        checksum.copy_from_slice(&crc24(fields).to_le_bytes()[..CRC24_LEN]);
    }

    /// The length of the payload after decompression.
    pub fn opened_len(self) -> usize {
        if self.opened == 0 { self.payload } else { self.opened }
    }

    /// The total length of the segment.
    pub const fn segment_len(self, form: Form) -> usize {
        form.header_len() + self.payload + TRAILER_LEN
    }

    /// Reads the header from `bytes`, which must have its length.
    fn read(form: Form, bytes: &[u8]) -> Result<Header, String> {
        let (fields, checksum) = bytes.split_at(form.fields_len());
        let mut stored = [0; 4];
        stored[..CRC24_LEN].copy_from_slice(checksum);
        let (stored, computed) = (u32::from_le_bytes(stored), crc24(fields));
        if stored != computed {
            return Err(format!("the CRC24 of its header is {stored:06x}, computed {computed:06x}"));
        }
        Ok(Header::of_fields(form, fields))
    }

    /// Decodes the fields without their checksum.
    fn of_fields(form: Form, fields: &[u8]) -> Header {
        let mut word = [0; 8];
        word[..fields.len()].copy_from_slice(fields);
        let bits = u64::from_le_bytes(word);
        let length = |at: u32| (bits >> at) as usize & MAX_PAYLOAD;
        let (opened, flag) = match form {
            Form::Plain => (0, LENGTH_BITS),
            Form::Lz4 => (length(LENGTH_BITS), 2 * LENGTH_BITS),
        };
        Header { payload: length(0), opened, self_contained: (bits >> flag) & 1 != 0 }
    }
}

/// A received segment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Segment {
    /// Its payload, decompressed.
    pub payload: Bytes,
    /// The payload consists of complete frames.
    pub self_contained: bool,
}

/// The result of [`take`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Taken {
    /// An incomplete segment with its total length, or 0 if that is unknown.
    Incomplete(usize),
    /// A segment, removed from the buffer.
    Segment(Segment),
    /// An invalid segment, with the reason.
    Damaged(String),
}

/// The total length of the segment at the start of `buffer`. `None` if it is unknown yet, 0 if the
/// header is damaged.
pub fn len(form: Form, buffer: &[u8]) -> Option<usize> {
    let header = Header::read(form, buffer.get(..form.header_len())?);
    Some(header.map_or(0, |header| header.segment_len(form)))
}

/// The header at the start of `buffer`. `None` if it is incomplete or damaged.
pub fn header(form: Form, buffer: &[u8]) -> Option<Header> {
    Header::read(form, buffer.get(..form.header_len())?).ok()
}

/// Whether the segment at the start of `buffer` seems to be self-contained: its header may be
/// damaged. True if the header is incomplete.
#[inline]
pub fn seems_self_contained(form: Form, buffer: &[u8]) -> bool {
    buffer.get(..form.fields_len()).is_none_or(|fields| Header::of_fields(form, fields).self_contained)
}

/// Copies the first bytes of the payload of the segment at the start of `buffer` to `out`, without
/// opening the rest. False if they have not arrived yet, or the payload is shorter or damaged.
pub fn beginning(form: Form, buffer: &[u8], header: Header, out: &mut [u8]) -> bool {
    let start = form.header_len();
    let Some(payload) = buffer.get(start..buffer.len().min(start + header.payload)) else { return false };
    match (header.opened, payload.get(..out.len())) {
        (0, Some(first)) => out.copy_from_slice(first),
        (0, None) => return false,
        _ => return open_beginning(payload, out).is_some(),
    }
    true
}

/// Removes the next segment from `buffer`.
pub fn take(form: Form, buffer: &mut BytesMut) -> Taken {
    let header_len = form.header_len();
    let Some(header) = buffer.get(..header_len) else { return Taken::Incomplete(0) };
    let header = match Header::read(form, header) {
        Ok(header) => header,
        Err(why) => return Taken::Damaged(why),
    };
    let (end, len) = (header_len + header.payload, header.segment_len(form));
    if buffer.len() < len {
        return Taken::Incomplete(len);
    }
    let mut segment = buffer.split_to(len);
    let mut stored = [0; TRAILER_LEN];
    stored.copy_from_slice(&segment[end..]);
    let (stored, computed) = (u32::from_le_bytes(stored), payload_crc(&[&segment[header_len..end]]));
    if stored != computed {
        return Taken::Damaged(format!("the CRC32 of its payload is {stored:08x}, computed {computed:08x}"));
    }
    segment.truncate(end);
    segment.advance(header_len);
    let payload = if header.opened == 0 {
        segment.freeze()
    } else {
        match open(&segment, header.opened) {
            Some(opened) => opened,
            None => return Taken::Damaged(format!("its payload is not {} bytes compressed by LZ4", header.opened)),
        }
    };
    Taken::Segment(Segment { payload, self_contained: header.self_contained })
}

fn open(block: &[u8], len: usize) -> Option<Bytes> {
    let mut opened = vec![0; len];
    let found = lz4_flex::block::decompress_into(block, &mut opened).ok()?;
    (found == len).then(|| Bytes::from(opened))
}

/// The payload as an LZ4 block. `None` if it would not fit into a segment.
///
/// Every payload is compressed, even if that makes it longer: some drivers lose track of
/// uncompressed segments on a connection with compression. Short payloads become literals only,
/// which costs a copy.
pub fn close(payload: &[u8]) -> Option<Vec<u8>> {
    let closed = if payload.len() < MIN_COMPRESSED { literals(payload) } else { lz4_flex::block::compress(payload) };
    debug_assert!(open(&closed, payload.len()).as_deref() == Some(payload), "a client can open what is closed");
    (closed.len() <= MAX_PAYLOAD).then_some(closed)
}

/// An LZ4 block with a single run of literals.
fn literals(payload: &[u8]) -> Vec<u8> {
    const LONG_RUN: usize = 15;
    let mut block = Vec::with_capacity(payload.len() + payload.len() / 255 + 2);
    if payload.len() < LONG_RUN {
        block.push((payload.len() as u8) << 4);
    } else {
        block.push(0xF0);
        let rest = payload.len() - LONG_RUN;
        block.resize(1 + rest / 255, 255);
        block.push((rest % 255) as u8);
    }
    block.extend_from_slice(payload);
    block
}

/// The CRC32 of a payload in several pieces.
pub fn payload_crc(pieces: &[&[u8]]) -> u32 {
    let mut hasher = crc32fast::Hasher::new_with_initial(CRC32_START);
    for piece in pieces {
        hasher.update(piece);
    }
    hasher.finalize()
}

/// The CRC32 of the bytes that the protocol prepends to every payload.
const CRC32_START: u32 = {
    let before = [0xFA, 0x2D, 0x55, 0xCA];
    let mut crc = u32::MAX;
    let mut i = 0;
    while i < before.len() {
        crc ^= before[i];
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 == 0 { crc >> 1 } else { (crc >> 1) ^ 0xEDB8_8320 };
            bit += 1;
        }
        i += 1;
    }
    !crc
};

const CRC24_START: u32 = 0x0087_5060;
const CRC24_POLYNOMIAL: u32 = 0x0197_4F0B;
const CRC24_BITS: u32 = 0x00FF_FFFF;

/// The register after each byte, starting from an empty register.
const CRC24_TABLE: [u32; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = (byte as u32) << 16;
        let mut bit = 0;
        while bit < 8 {
            crc <<= 1;
            if crc > CRC24_BITS {
                crc ^= CRC24_POLYNOMIAL;
            }
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};

/// The CRC24 of a header's fields.
fn crc24(bytes: &[u8]) -> u32 {
    bytes.iter().fold(CRC24_START, |crc, byte| {
        let top = (crc >> 16) as u8 ^ byte;
        ((crc << 8) & CRC24_BITS) ^ CRC24_TABLE[usize::from(top)]
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn write(form: Form, payload: &[u8], self_contained: bool, closed: bool) -> Vec<u8> {
        let (bytes, opened) = match closed {
            true => (close(payload).expect("it fits"), payload.len()),
            false => (payload.to_vec(), 0),
        };
        let mut out = vec![0; form.header_len()];
        Header { payload: bytes.len(), opened, self_contained }.write(form, &mut out);
        out.extend_from_slice(&bytes);
        out.extend_from_slice(&payload_crc(&[&bytes]).to_le_bytes());
        out
    }

    fn read(form: Form, bytes: &[u8]) -> Taken {
        take(form, &mut BytesMut::from(bytes))
    }

    #[test]
    fn the_start_of_the_crc32_is_that_of_four_bytes() {
        assert_eq!(CRC32_START, crc32fast::hash(&[0xFA, 0x2D, 0x55, 0xCA]));
        let pieces: [&[u8]; 2] = [b"pay", b"load"];
        assert_eq!(payload_crc(&pieces), crc32fast::hash(b"\xFA\x2D\x55\xCApayload"));
    }

    /// The bytes of an OPTIONS frame in a segment, made by the codec of the Python driver (in its
    /// file cassandra/segment.py).
    #[test]
    fn golden_bytes() {
        let frame = [5, 0, 0, 1, 5, 0, 0, 0, 0];
        let plain = [9, 0, 2, 164, 200, 193, 5, 0, 0, 1, 5, 0, 0, 0, 0, 181, 85, 116, 134];
        assert_eq!(write(Form::Plain, &frame, true, false), plain);
        let expected = Segment { payload: Bytes::copy_from_slice(&frame), self_contained: true };
        assert_eq!(read(Form::Plain, &plain), Taken::Segment(expected.clone()));
        // Too short to compress: the header's second length is 0.
        let raw = [9, 0, 0, 0, 4, 194, 184, 149, 5, 0, 0, 1, 5, 0, 0, 0, 0, 181, 85, 116, 134];
        assert_eq!(write(Form::Lz4, &frame, true, false), raw);
        assert_eq!(read(Form::Lz4, &raw), Taken::Segment(expected));
        let zeros = Segment { payload: Bytes::from(vec![0; 100]), self_contained: false };
        let closed = [11, 0, 200, 0, 0, 190, 245, 222, 31, 0, 1, 0, 75, 80, 0, 0, 0, 0, 0, 76, 229, 88, 76];
        assert_eq!(read(Form::Lz4, &closed), Taken::Segment(zeros));
    }

    proptest! {
        /// Without opening the rest, and however little of the segment has arrived.
        #[test]
        fn the_beginning_of_a_payload_is_read(
            payload in prop::collection::vec(0u8..3, 0..3000),
            (form, closed) in prop_oneof![Just((Form::Plain, false)), Just((Form::Lz4, false)), Just((Form::Lz4, true))],
            cut in any::<prop::sample::Index>(),
            len in 0usize..300,
        ) {
            let bytes = write(form, &payload, false, closed && !payload.is_empty());
            let known = header(form, &bytes).expect("undamaged");
            prop_assert!(!seems_self_contained(form, &bytes));
            prop_assert_eq!((known.opened_len(), known.segment_len(form)), (payload.len(), bytes.len()));
            let mut first = vec![9; len];
            prop_assert_eq!(beginning(form, &bytes, known, &mut first), len <= payload.len());
            if len <= payload.len() {
                prop_assert_eq!(&first, &payload[..len]);
            }
            if beginning(form, &bytes[..cut.index(bytes.len())], known, &mut first) {
                prop_assert_eq!(&first, &payload[..len]);
            }
        }

        #[test]
        fn the_beginning_of_garbage_is_refused_or_read(block in prop::collection::vec(any::<u8>(), 0..40)) {
            let mut first = [0; 100];
            let known = open_beginning(&block, &mut first);
            if let Some(opened) = open(&block, first.len()) {
                prop_assert_eq!((known, &opened[..]), (Some(()), &first[..]));
            }
        }

        #[test]
        fn written_segments_are_read(
            payload in prop::collection::vec(0u8..7, 0..3000),
            self_contained in any::<bool>(),
            (form, closed) in prop_oneof![Just((Form::Plain, false)), Just((Form::Lz4, false)), Just((Form::Lz4, true))],
            more in prop::collection::vec(any::<u8>(), 0..5),
        ) {
            let closed = closed && !payload.is_empty();
            let bytes = write(form, &payload, self_contained, closed);
            for cut in [0, 3, form.header_len(), bytes.len() - 1] {
                let wanted = if cut < form.header_len() { 0 } else { bytes.len() };
                prop_assert_eq!(read(form, &bytes[..cut]), Taken::Incomplete(wanted));
            }
            let mut buffer = BytesMut::from(&bytes[..]);
            buffer.extend_from_slice(&more);
            let segment = Segment { payload: Bytes::from(payload), self_contained };
            prop_assert_eq!(take(form, &mut buffer), Taken::Segment(segment));
            prop_assert_eq!(&buffer[..], &more[..]);
        }

        #[test]
        fn every_flipped_bit_is_found(
            payload in prop::collection::vec(any::<u8>(), 1..300),
            bit in any::<prop::sample::Index>(),
            form in prop_oneof![Just(Form::Plain), Just(Form::Lz4)],
        ) {
            let mut bytes = write(form, &payload, true, form == Form::Lz4);
            let bit = bit.index(bytes.len() * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
            let taken = read(form, &bytes);
            prop_assert!(matches!(taken, Taken::Damaged(_)), "bit {}: {:?}", bit, taken);
        }

        #[test]
        fn any_block_with_a_right_checksum_opens_or_is_refused(
            block in prop::collection::vec(any::<u8>(), 0..200),
            opened in 1usize..=MAX_PAYLOAD,
        ) {
            let mut bytes = vec![0; 8];
            Header { payload: block.len(), opened, self_contained: true }.write(Form::Lz4, &mut bytes);
            bytes.extend_from_slice(&block);
            bytes.extend_from_slice(&payload_crc(&[&block]).to_le_bytes());
            match read(Form::Lz4, &bytes) {
                Taken::Segment(segment) => prop_assert_eq!(segment.payload.len(), opened),
                Taken::Damaged(why) => prop_assert!(why.contains("LZ4")),
                Taken::Incomplete(len) => panic!("{len} bytes wanted"),
            }
        }
    }

    #[test]
    fn the_longest_payloads_fit() {
        let noise: Vec<u8> = (0..MAX_PAYLOAD as u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        for form in [Form::Plain, Form::Lz4] {
            let payload = &noise[..form.max_payload()];
            let bytes = write(form, payload, false, form == Form::Lz4);
            let segment = Segment { payload: Bytes::copy_from_slice(payload), self_contained: false };
            assert_eq!(read(form, &bytes), Taken::Segment(segment));
        }
        for len in [0, 1, 14, 15, 16, 269, 270, 271, 511] {
            let closed = literals(&noise[..len]);
            assert_eq!(open(&closed, len).as_deref(), Some(&noise[..len]), "{len}");
        }
    }
}
