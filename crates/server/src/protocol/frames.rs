//! Cutting the bytes of a connection into frames.
//!
//! The reader fills [`Frames::space`]; [`Frames::take_next`] gives what is complete. Frames are slices of the read buffer, which
//! is used again as soon as nobody holds a slice of it. A body that is too long is refused and then passed over as it
//! arrives, so that the connection can go on.

use super::{HEADER_LEN, Opcode, Version, flag};
use bytes::{Buf, Bytes, BytesMut};
use cql::Error;

/// What a new connection's buffer holds.
const FIRST_BUFFER: usize = 4 << 10;
/// What the buffer grows to while reads fill it.
const BUFFER: usize = 64 << 10;
/// Less room than this is not worth a read.
const MIN_SPACE: usize = 2 << 10;
/// A body is read in steps of at most this, so that memory is taken for bytes that came and not for a length.
const MAX_STEP: usize = 1 << 20;

/// A complete frame of a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RawFrame {
    /// Its version.
    pub version: Version,
    /// See [`flag`].
    pub flags: u8,
    /// Which answer belongs to it.
    pub stream: i16,
    /// What it asks.
    pub opcode: Opcode,
    /// Its body, still compressed if the flag says so.
    pub body: Bytes,
}

impl RawFrame {
    /// Whether the request is to be traced.
    pub fn is_traced(&self) -> bool {
        self.flags & flag::TRACING != 0
    }
}

/// A frame that cannot be a request.
#[derive(Clone, PartialEq, Debug)]
pub struct Refused {
    /// The first byte of the answer, without the direction bit; may be a version that is not spoken here.
    pub version: u8,
    /// Which answer belongs to it.
    pub stream: i16,
    /// Why.
    pub error: Error,
    /// The stream cannot be followed further: answer and close.
    pub fatal: bool,
}

/// What the buffer holds next.
#[derive(Clone, PartialEq, Debug)]
pub enum Next {
    /// Not a whole frame yet.
    Incomplete,
    /// A frame.
    Frame(RawFrame),
    /// Something to refuse.
    Refused(Refused),
}

/// The read side of a connection.
#[derive(Debug)]
pub struct Frames {
    buffer: BytesMut,
    /// Bytes of a refused body that are still to come.
    skip: usize,
    max_body: usize,
    /// The whole length of the frame at the buffer's start, once its header is known.
    wanted: usize,
    /// The last read filled its space.
    filled: bool,
}

impl Frames {
    /// A reader that refuses bodies of more than `max_body` bytes.
    pub fn new(max_body: usize) -> Frames {
        Frames { buffer: BytesMut::with_capacity(FIRST_BUFFER), skip: 0, max_body, wanted: 0, filled: false }
    }

    /// The buffer, with room to append to. Tell [`Frames::arrived`] afterwards.
    pub fn space(&mut self) -> &mut BytesMut {
        let missing = self.wanted.saturating_sub(self.buffer.len());
        let room = self.buffer.capacity() - self.buffer.len();
        if missing > room {
            self.buffer.reserve(missing.min(MAX_STEP.max(self.buffer.len())));
        } else if room < MIN_SPACE {
            self.buffer.reserve(if self.filled { BUFFER } else { FIRST_BUFFER });
        }
        &mut self.buffer
    }

    /// `n` bytes were appended to the buffer.
    pub fn arrived(&mut self, n: usize) {
        self.filled = n > 0 && self.buffer.len() == self.buffer.capacity();
        let passed = n.min(self.skip).min(self.buffer.len());
        if passed > 0 {
            // While bytes are passed over, the buffer holds nothing else before them.
            self.buffer.advance(passed);
            self.skip -= passed;
        }
    }

    /// Appends bytes that were read elsewhere.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
        self.arrived(bytes.len());
    }

    /// The whole length of the frame that is being read, if it is known and not complete; else zero.
    pub fn incomplete_len(&self) -> usize {
        self.wanted
    }

    /// How many bytes are buffered.
    pub fn buffered(&self) -> usize {
        self.buffer.len()
    }

    /// Takes the next frame off the buffer.
    #[inline]
    pub fn take_next(&mut self) -> Next {
        let buffer = &self.buffer[..];
        let Some(&first) = buffer.first() else { return Next::Incomplete };
        let Some(version) = Version::from_number(first) else { return self.odd_version(first) };
        let Some(header) = buffer.first_chunk::<HEADER_LEN>() else { return Next::Incomplete };
        let [_, flags, s0, s1, opcode, l0, l1, l2, l3] = *header;
        let stream = i16::from_be_bytes([s0, s1]);
        let len = i32::from_be_bytes([l0, l1, l2, l3]);
        let refused = |error, fatal| Next::Refused(Refused { version: first, stream, error, fatal });
        let Ok(len) = usize::try_from(len) else {
            return refused(Error::Protocol(format!("Malformed frame: a body of length {len}")), true);
        };
        if len > self.max_body {
            let error = Error::Invalid(format!(
                "Request is too big: length {len} exceeds maximum allowed length {}",
                self.max_body
            ));
            self.pass_over(HEADER_LEN + len);
            return refused(error, false);
        }
        let Some(opcode) = Opcode::request_from_number(opcode) else {
            self.pass_over(HEADER_LEN + len);
            return refused(Error::Protocol(format!("Unknown opcode {opcode}")), false);
        };
        if buffer.len() < HEADER_LEN + len {
            self.wanted = HEADER_LEN + len;
            return Next::Incomplete;
        }
        self.wanted = 0;
        let mut frame = self.buffer.split_to(HEADER_LEN + len);
        frame.advance(HEADER_LEN);
        Next::Frame(RawFrame { version, flags, stream, opcode, body: frame.freeze() })
    }

    fn pass_over(&mut self, len: usize) {
        let here = len.min(self.buffer.len());
        self.buffer.advance(here);
        self.skip = len - here;
        self.wanted = 0;
    }

    /// A first byte that is not the start of a request in a version spoken here.
    fn odd_version(&mut self, first: u8) -> Next {
        let is_response = first & 0x80 != 0;
        let number = first & 0x7F;
        // Before version 3 the stream had one byte and the header eight.
        let (len, stream) = match (number, &self.buffer[..]) {
            (0..3, [_, _, s, ..]) => (8, i16::from(*s as i8)),
            (0..3, _) => (8, 0),
            (_, [_, _, s0, s1, ..]) => (HEADER_LEN, i16::from_be_bytes([*s0, *s1])),
            _ => (HEADER_LEN, 0),
        };
        if self.buffer.len() < len {
            return Next::Incomplete;
        }
        let error = if is_response {
            Error::Protocol("A client sends requests only, this frame is a response".to_owned())
        } else {
            Error::Protocol(format!(
                "Invalid or unsupported protocol version ({number}); supported versions are ({}, {})",
                Version::V3,
                Version::V4
            ))
        };
        let version = match number {
            1 | 2 => number,
            3 => 3,
            _ => 4,
        };
        Next::Refused(Refused { version, stream, error, fatal: true })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn frame(version: u8, opcode: u8, stream: i16, body: &[u8]) -> Vec<u8> {
        let mut out = vec![version, 0];
        out.extend(stream.to_be_bytes());
        out.push(opcode);
        out.extend((body.len() as i32).to_be_bytes());
        out.extend(body);
        out
    }

    fn refused(next: Next) -> Refused {
        match next {
            Next::Refused(refused) => refused,
            other => panic!("{other:?}"),
        }
    }

    proptest! {
        #[test]
        fn frames_are_found_however_they_arrive(
            bodies in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 1..20),
            cuts in prop::collection::vec(1usize..200, 1..50),
        ) {
            let bytes: Vec<u8> =
                bodies.iter().enumerate().flat_map(|(i, body)| frame(4, 5, i as i16, body)).collect();
            let mut frames = Frames::new(1000);
            let mut found = Vec::new();
            let (mut at, mut cuts) = (0, cuts.iter().cycle());
            while at < bytes.len() {
                let end = bytes.len().min(at + cuts.next().copied().unwrap_or(1));
                frames.push(&bytes[at..end]);
                at = end;
                loop {
                    match frames.take_next() {
                        Next::Incomplete => break,
                        Next::Frame(frame) => found.push(frame.body.to_vec()),
                        Next::Refused(refused) => panic!("{refused:?}"),
                    }
                }
            }
            prop_assert_eq!(found, bodies);
        }

        #[test]
        fn too_long_bodies_are_passed_over(cut in 1usize..4000) {
            let mut bytes = frame(4, 5, 1, &[0; 2000]);
            bytes.extend(frame(4, 5, 2, &[1; 10]));
            let mut frames = Frames::new(100);
            let mut seen = Vec::new();
            for part in bytes.chunks(cut) {
                frames.push(part);
                loop {
                    match frames.take_next() {
                        Next::Incomplete => break,
                        Next::Frame(frame) => seen.push((frame.stream, true)),
                        Next::Refused(refused) => {
                            prop_assert!(!refused.fatal);
                            seen.push((refused.stream, false));
                        }
                    }
                }
                prop_assert!(frames.buffered() <= 200 + cut);
            }
            prop_assert_eq!(seen, vec![(1, false), (2, true)]);
        }
    }

    #[test]
    fn unknown_versions_are_answered_in_one_the_client_can_read() {
        for (version, answer) in [(66u8, 4u8), (65, 4), (5, 4), (6, 4), (2, 2), (1, 1), (0, 4), (71, 4)] {
            let mut frames = Frames::new(100);
            frames.push(&frame(version, 1, 5, b"xxxx"));
            let refused = refused(frames.take_next());
            assert!(refused.fatal);
            assert_eq!(refused.version, answer, "version {version}");
            let message = refused.error.to_string();
            assert!(message.contains(&format!("unsupported protocol version ({version});")), "{message}");
            if version > 2 {
                assert_eq!(refused.stream, 5);
            }
        }
    }

    #[test]
    fn wrong_opcodes_keep_the_stream_and_wrong_lengths_end_it() {
        let mut frames = Frames::new(100);
        frames.push(&frame(4, 0x44, 3, b"abc"));
        frames.push(&frame(3, 5, 4, b""));
        let first = refused(frames.take_next());
        assert_eq!((first.stream, first.fatal), (3, false));
        assert!(matches!(frames.take_next(), Next::Frame(RawFrame { stream: 4, version: Version::V3, .. })));
        frames.push(&[4, 0, 0, 9, 5, 0xFF, 0xFF, 0xFF, 0xFE]);
        let last = refused(frames.take_next());
        assert_eq!((last.stream, last.fatal), (9, true));
    }
}
