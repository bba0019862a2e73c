//! The byte format of a frame between nodes. Pure.
//!
//! All numbers are little-endian. A frame is a header of 32 bytes and a body:
//!
//! ```text
//!  0  u8   version of the protocol that both sides agreed on
//!  1  u8   kind: 1 request, 2 response, 3 error, 4 cancel, 5 alive
//!  2  u8   verb of a request, else 0
//!  3  u8   flags: 1 = the body is compressed: u32 length without compression, then an lz4 block
//!  4  u32  length of the body
//!  8  u64  stream: chosen by the requesting side, repeated in the response
//! 16  u64  microseconds until the deadline, of a request; else 0
//! 24  u32  CRC32 of the body as transmitted
//! 28  u32  CRC32 of the 28 bytes before
//! ```
//!
//! Invariants: a length is used only after its checksum was verified. Little memory is allocated
//! for bytes that are announced but have not arrived. An invalid frame ends its connection, because
//! the start of the next frame is unknown.

use bytes::{BufMut, Bytes, BytesMut};
use rt::Pieces;
use thiserror::Error;

/// The newest supported version of the protocol.
pub const VERSION: u8 = 1;
/// The oldest supported version.
pub const OLDEST: u8 = 1;
/// The length of a header in bytes.
pub const HEADER: usize = 32;

/// Bodies shorter than this are never compressed.
const MIN_COMPRESSED: usize = 256;
/// The flag of a compressed body.
const COMPRESSED: u8 = 1;
/// Buffer space for one read of the socket, in bytes.
const READ: usize = 32 << 10;
/// With less free space than this, the buffer grows before the next read.
const MIN_READ: usize = 4 << 10;
/// Up to this many bytes, buffer space for an announced body is allocated at once: enough for a
/// large page.
const AT_ONCE: usize = 2 << 20;

/// The kind of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Kind {
    /// A request.
    Request = 1,
    /// The result of a request.
    Response = 2,
    /// The refusal of a request: `u8 code`, then text.
    Error = 3,
    /// The caller no longer waits for the response.
    Cancel = 4,
    /// Keep-alive of a node that works on requests. Stream 0.
    Alive = 5,
}

impl Kind {
    fn from_code(code: u8) -> Option<Kind> {
        [Kind::Request, Kind::Response, Kind::Error, Kind::Cancel, Kind::Alive]
            .into_iter()
            .find(|kind| *kind as u8 == code)
    }
}

/// A frame's header, without the fields that describe the body.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Head {
    /// Its kind.
    pub kind: Kind,
    /// The verb of a request.
    pub verb: u8,
    /// The stream: matches a response to its request.
    pub stream: u64,
    /// Microseconds until the request's deadline.
    pub time_left: u64,
}

/// A complete frame.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Frame {
    /// Its header.
    pub head: Head,
    /// Its body, decompressed.
    pub body: Bytes,
}

/// Why bytes are not a valid frame.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum BadFrame {
    /// Another version than the one agreed on.
    #[error("a frame of version {0}")]
    Version(u8),
    /// The header is damaged.
    #[error("the checksum of a frame's header is wrong")]
    Header,
    /// An unknown kind.
    #[error("a frame of unknown kind {0}")]
    Kind(u8),
    /// Unknown flags.
    #[error("a frame with unknown flags {0:#x}")]
    Flags(u8),
    /// The body is longer than the limit.
    #[error("a frame of {len} bytes, more than {limit}")]
    TooLong {
        /// Its length in bytes.
        len: usize,
        /// The limit in bytes.
        limit: usize,
    },
    /// The body is damaged.
    #[error("the checksum of a frame's body is wrong")]
    Body,
    /// The body cannot be decompressed.
    #[error("the body of a frame cannot be decompressed")]
    Compression,
}

/// Appends a frame's header to `tail`, and returns the body that must follow it.
pub(super) fn put(tail: &mut BytesMut, version: u8, head: Head, body: Pieces, compress: bool) -> Pieces {
    let (flags, body) = if compress { pack(body) } else { (0, body) };
    debug_assert!(u32::try_from(body.len()).is_ok(), "the length of a frame fits four bytes");
    let mut body_crc = crc32fast::Hasher::new();
    body.iter().for_each(|piece| body_crc.update(piece));
    let start = tail.len();
    tail.put_slice(&[version, head.kind as u8, head.verb, flags]);
    tail.put_u32_le(body.len() as u32);
    tail.put_u64_le(head.stream);
    tail.put_u64_le(head.time_left);
    tail.put_u32_le(body_crc.finalize());
    let crc = crc32fast::hash(&tail[start..]);
    tail.put_u32_le(crc);
    debug_assert_eq!(tail.len() - start, HEADER, "the body follows a whole header");
    body
}

/// Appends a frame's header and its body.
#[cfg(test)]
pub(super) fn put_whole(out: &mut BytesMut, head: Head, body: &[u8], compress: bool) {
    let body = put(out, VERSION, head, Bytes::copy_from_slice(body).into(), compress);
    body.iter().for_each(|piece| out.put_slice(piece));
}

/// Compresses a body and returns the flag for it. Returns the body unchanged if compression would
/// not make it shorter.
fn pack(body: Pieces) -> (u8, Pieces) {
    if body.len() < MIN_COMPRESSED {
        return (0, body);
    }
    let body = body.join();
    let mut packed = vec![0; 4 + lz4_flex::block::get_maximum_output_size(body.len())];
    packed[..4].copy_from_slice(&(body.len() as u32).to_le_bytes());
    match lz4_flex::block::compress_into(&body, &mut packed[4..]) {
        Ok(len) if len + 4 < body.len() => {
            packed.truncate(len + 4);
            (COMPRESSED, Bytes::from(packed).into())
        }
        _ => (0, body.into()),
    }
}

fn unpack(packed: &[u8], limit: usize) -> Result<Bytes, BadFrame> {
    let (len, block) = packed.split_first_chunk::<4>().ok_or(BadFrame::Compression)?;
    let len = u32::from_le_bytes(*len) as usize;
    if len > limit {
        return Err(BadFrame::TooLong { len, limit });
    }
    // lz4 compresses at most 255 bytes into one, so a greater length is invalid. Nothing is
    // allocated for it.
    if len > block.len().saturating_mul(255) {
        return Err(BadFrame::Compression);
    }
    let mut body = vec![0; len];
    match lz4_flex::block::decompress_into(block, &mut body) {
        Ok(n) if n == len => Ok(body.into()),
        _ => Err(BadFrame::Compression),
    }
}

/// A header with a valid checksum.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Header {
    head: Head,
    compressed: bool,
    len: usize,
    body_crc: u32,
}

impl Header {
    fn parse(bytes: &[u8; HEADER], version: u8, limit: usize) -> Result<Header, BadFrame> {
        let u32_at = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let u64_at = |at: usize| u64::from(u32_at(at)) | u64::from(u32_at(at + 4)) << 32;
        if crc32fast::hash(&bytes[..HEADER - 4]) != u32_at(HEADER - 4) {
            return Err(BadFrame::Header);
        }
        if bytes[0] != version {
            return Err(BadFrame::Version(bytes[0]));
        }
        let kind = Kind::from_code(bytes[1]).ok_or(BadFrame::Kind(bytes[1]))?;
        if bytes[3] & !COMPRESSED != 0 {
            return Err(BadFrame::Flags(bytes[3]));
        }
        let len = u32_at(4) as usize;
        if len > limit {
            return Err(BadFrame::TooLong { len, limit });
        }
        Ok(Header {
            head: Head { kind, verb: bytes[2], stream: u64_at(8), time_left: u64_at(16) },
            compressed: bytes[3] & COMPRESSED != 0,
            len,
            body_crc: u32_at(24),
        })
    }
}

/// Parses received bytes into frames.
#[derive(Debug)]
pub struct Frames {
    buffer: BytesMut,
    version: u8,
    limit: usize,
    header: Option<Header>,
}

impl Frames {
    /// Expects frames of `version` whose bodies have at most `limit` bytes.
    pub fn new(version: u8, limit: usize) -> Frames {
        Frames { buffer: BytesMut::new(), version, limit, header: None }
    }

    /// Bytes of frames that have not been taken.
    pub fn buffered(&self) -> usize {
        self.buffer.len()
    }

    /// The buffer for the next bytes, with free space.
    pub fn space(&mut self) -> &mut BytesMut {
        let missing = self.header.map_or(0, |header| header.len.saturating_sub(self.buffer.len()));
        let free = self.buffer.capacity() - self.buffer.len();
        if free < MIN_READ.max(missing) {
            // Beyond `AT_ONCE` the buffer only doubles, so a longer body is copied a few times at
            // most.
            self.buffer.reserve(missing.min(self.buffer.len().max(AT_ONCE)).max(READ));
        }
        &mut self.buffer
    }

    /// The next frame; `None` if it is incomplete.
    pub fn next_frame(&mut self) -> Result<Option<Frame>, BadFrame> {
        let header = match self.header {
            Some(header) => header,
            None => {
                let Some(bytes) = self.buffer.first_chunk::<HEADER>() else { return Ok(None) };
                let header = Header::parse(bytes, self.version, self.limit)?;
                let _ = self.buffer.split_to(HEADER);
                self.header = Some(header);
                header
            }
        };
        if self.buffer.len() < header.len {
            return Ok(None);
        }
        self.header = None;
        let body = self.buffer.split_to(header.len).freeze();
        if crc32fast::hash(&body) != header.body_crc {
            return Err(BadFrame::Body);
        }
        let body = if header.compressed { unpack(&body, self.limit)? } else { body };
        Ok(Some(Frame { head: header.head, body }))
    }
}

/// For fuzzing: parses arbitrary bytes as frames.
pub fn fuzz_frames(bytes: &[u8]) {
    let mut frames = Frames::new(VERSION, 1 << 20);
    for piece in bytes.chunks(37) {
        frames.space().extend_from_slice(piece);
        while let Ok(Some(frame)) = frames.next_frame() {
            assert!(frame.body.len() <= 1 << 20, "a body beyond the limit");
        }
    }
    // Code behind the checksums, which random bytes rarely reach.
    if let Ok(body) = unpack(bytes, 1 << 20) {
        assert!(body.len() <= 1 << 20, "a body beyond the limit");
    }
    if let Some(front) = bytes.first_chunk::<HEADER>() {
        let mut front = *front;
        let crc = crc32fast::hash(&front[..HEADER - 4]);
        front[HEADER - 4..].copy_from_slice(&crc.to_le_bytes());
        let header = Header::parse(&front, VERSION, 1 << 20);
        assert!(header.is_err() || header.is_ok_and(|header| header.len <= 1 << 20));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn head() -> impl Strategy<Value = Head> {
        let kinds = prop_oneof![
            Just(Kind::Request),
            Just(Kind::Response),
            Just(Kind::Error),
            Just(Kind::Cancel),
            Just(Kind::Alive)
        ];
        (kinds, any::<u8>(), any::<u64>(), any::<u64>()).prop_map(|(kind, verb, stream, time_left)| Head {
            kind,
            verb,
            stream,
            time_left,
        })
    }

    fn encoded(head: Head, body: &Bytes, compress: bool) -> Vec<u8> {
        let mut tail = BytesMut::new();
        put_whole(&mut tail, head, body, compress);
        tail.to_vec()
    }

    fn decode(bytes: &[u8], step: usize) -> Result<Vec<Frame>, BadFrame> {
        let mut frames = Frames::new(VERSION, 1 << 20);
        let mut out = Vec::new();
        for piece in bytes.chunks(step) {
            frames.space().extend_from_slice(piece);
            while let Some(frame) = frames.next_frame()? {
                out.push(frame);
            }
        }
        Ok(out)
    }

    proptest! {
        #[test]
        fn frames_round_trip_in_pieces_of_any_size(
            sent in prop::collection::vec((head(), 0usize..5000, any::<u8>(), any::<bool>()), 1..6),
            step in 1usize..7000,
        ) {
            let mut bytes = Vec::new();
            let mut expected = Vec::new();
            for (head, len, fill, compress) in sent {
                let body = Bytes::from((0..len).map(|i| fill ^ (i % 7) as u8).collect::<Vec<_>>());
                let one = encoded(head, &body, compress);
                prop_assert!(one.len() <= HEADER + body.len());
                bytes.extend_from_slice(&one);
                expected.push(Frame { head, body });
            }
            prop_assert_eq!(decode(&bytes, step).expect("right"), expected);
        }

        #[test]
        fn any_bytes_end_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            fuzz_frames(&bytes);
        }
    }

    #[test]
    fn whatever_is_flipped_or_missing_no_other_frame_comes_of_it() {
        let head = Head { kind: Kind::Request, verb: 3, stream: 77, time_left: 5_000_000 };
        for (body, compress) in [(vec![7u8; 300], true), (vec![1, 2, 3], false), (Vec::new(), false)] {
            let good = encoded(head, &Bytes::from(body), compress);
            for bit in 0..good.len() * 8 {
                let mut bad = good.clone();
                bad[bit / 8] ^= 1 << (bit % 8);
                assert!(decode(&bad, bad.len()).is_err(), "a flip of bit {bit} is not detected");
            }
            for len in 0..good.len() {
                assert_eq!(decode(&good[..len], 13), Ok(Vec::new()), "{len} bytes of {}", good.len());
            }
        }
    }

    #[test]
    fn incompressible_frames_stay_plain_and_announced_lengths_take_little_memory() {
        let head = Head { kind: Kind::Response, verb: 0, stream: 1, time_left: 0 };
        let noise: Vec<u8> = (0..1000u32).flat_map(|i| crc32fast::hash(&i.to_le_bytes()).to_le_bytes()).collect();
        assert_eq!(encoded(head, &noise.clone().into(), true).len(), HEADER + noise.len());
        assert!(encoded(head, &vec![0; 100_000].into(), true).len() < 1000);
        let mut frames = Frames::new(VERSION, 1 << 30);
        let long = encoded(head, &vec![0; 100 << 20].into(), false);
        frames.space().extend_from_slice(&long[..HEADER]);
        assert_eq!(frames.next_frame(), Ok(None));
        assert!(frames.space().capacity() <= AT_ONCE + READ);
        let mut short = Frames::new(VERSION, 1000);
        short.space().extend_from_slice(&long[..HEADER]);
        assert_eq!(short.next_frame(), Err(BadFrame::TooLong { len: 100 << 20, limit: 1000 }));
        // The announced length after decompression has the same limit.
        let packed = encoded(head, &vec![0; 100_000].into(), true);
        let mut short = Frames::new(VERSION, 10_000);
        short.space().extend_from_slice(&packed);
        assert_eq!(short.next_frame(), Err(BadFrame::TooLong { len: 100_000, limit: 10_000 }));
    }
}
