//! Cutting the bytes of a connection into frames.
//!
//! The reader fills [`Frames::space`]; [`Frames::take_next`] gives what is complete. Frames are slices of the read buffer, which
//! is used again as soon as nobody holds a slice of it. A body that is too long is refused and then passed over as it
//! arrives, so that the connection can go on. From [`Frames::use_segments`] on frames come in segments: those of a
//! self-contained one are slices as before, a frame that fills several is put together.

use super::segment::{self, Form, Taken};
use super::{Compression, HEADER_LEN, Opcode, Version, flag};
use bytes::{Buf, Bytes, BytesMut};
use cql::Error;

/// What a new connection's buffer holds.
const FIRST_BUFFER: usize = 4 << 10;
/// What the buffer grows to while reads fill it. A longer frame (or segment) has a buffer of its own, which goes with it.
pub const BUFFER: usize = 64 << 10;
/// The most bytes at the begin of a compressed body that tell its length.
const CLAIM: usize = 5;
/// The longest body of a request about the connection itself (STARTUP, OPTIONS, REGISTER,
/// AUTH_RESPONSE), and of any request before STARTUP, bytes.
pub const SESSION_BODY: usize = 64 << 10;
/// Less room than this is not worth a read.
const MIN_SPACE: usize = 2 << 10;

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

/// What some bytes begin with.
enum Start {
    /// Not a whole frame; it will have this many bytes, 0 as long as that is not known.
    Incomplete(usize),
    /// A frame.
    Frame(Head),
    /// Something to refuse that takes this many bytes, of which not all need to be there.
    Refused(Refused, usize),
}

/// The head of a frame that is there.
struct Head {
    version: Version,
    flags: u8,
    stream: i16,
    opcode: Opcode,
    /// Bytes of the frame.
    len: usize,
}

impl Head {
    #[inline]
    fn with(self, body: Bytes) -> Next {
        let Head { version, flags, stream, opcode, .. } = self;
        Next::Frame(RawFrame { version, flags, stream, opcode, body })
    }
}

/// How long the bodies of requests may be.
#[derive(Clone, Copy, Debug)]
struct BodyLimits {
    /// The longest body of a statement, bytes.
    statement: usize,
    /// STARTUP succeeded: statements may come.
    started: bool,
}

/// Why a body of this length is refused although a statement may be as long.
#[cold]
fn session_body_error(len: usize, opcode: u8, started: bool) -> Option<Error> {
    let opcode = Opcode::request_from_number(opcode)?;
    let what = match started {
        true if opcode.is_statement() => return None,
        true => "of a request about the connection",
        false => "before STARTUP",
    };
    Some(Error::Protocol(format!(
        "{} is too big: length {len} exceeds the maximum length of a body {what}: {SESSION_BODY} bytes",
        opcode.name()
    )))
}

/// Looks at what `bytes` begin with.
#[inline]
fn look(bytes: &[u8], limits: BodyLimits) -> Start {
    let Some(&first) = bytes.first() else { return Start::Incomplete(0) };
    let Some(version) = Version::from_number(first) else { return odd_version(first, bytes) };
    let Some(header) = bytes.first_chunk::<HEADER_LEN>() else { return Start::Incomplete(0) };
    let [_, flags, s0, s1, opcode, l0, l1, l2, l3] = *header;
    let stream = i16::from_be_bytes([s0, s1]);
    let len = i32::from_be_bytes([l0, l1, l2, l3]);
    let refused = |error, fatal, len| Start::Refused(Refused { version: first, stream, error, fatal }, len);
    let Ok(body) = usize::try_from(len) else {
        return refused(Error::Protocol(format!("Malformed frame: a body of length {len}")), true, 0);
    };
    let len = HEADER_LEN + body;
    if body > SESSION_BODY
        && let Some(error) = session_body_error(body, opcode, limits.started)
    {
        return refused(error, false, len);
    }
    if body > limits.statement {
        let most = limits.statement;
        let error = format!("Request is too big: length {body} exceeds maximum allowed length {most}");
        return refused(Error::Invalid(error), false, len);
    }
    let Some(opcode) = Opcode::request_from_number(opcode) else {
        return refused(Error::Protocol(format!("Unknown opcode {opcode}")), false, len);
    };
    if bytes.len() < len {
        return Start::Incomplete(len);
    }
    Start::Frame(Head { version, flags, stream, opcode, len })
}

/// A first byte that is not the start of a request in a version spoken here.
#[cold]
fn odd_version(first: u8, bytes: &[u8]) -> Start {
    let is_response = first & 0x80 != 0;
    let number = first & 0x7F;
    // Before version 3 the stream had one byte and the header eight.
    let (len, stream) = match (number, bytes) {
        (0..3, [_, _, s, ..]) => (8, i16::from(*s as i8)),
        (0..3, _) => (8, 0),
        (_, [_, _, s0, s1, ..]) => (HEADER_LEN, i16::from_be_bytes([*s0, *s1])),
        _ => (HEADER_LEN, 0),
    };
    if bytes.len() < len {
        return Start::Incomplete(0);
    }
    let error = if is_response {
        Error::Protocol("A client sends requests only, this frame is a response".to_owned())
    } else {
        let spoken = Version::ALL.map(|version| version.to_string()).join(", ");
        Error::Protocol(format!(
            "Invalid or unsupported protocol version ({number}); supported versions are ({spoken})"
        ))
    };
    let version = match number {
        1 | 2 => number,
        3 => 3,
        _ => 4,
    };
    Start::Refused(Refused { version, stream, error, fatal: true }, 0)
}

/// The read side of a connection.
#[derive(Debug)]
pub struct Frames {
    buffer: BytesMut,
    /// Bytes of a refused body that are still to come.
    skip: usize,
    limits: BodyLimits,
    /// The whole length of the frame (or of the segment) at the buffer's start, once its header is known.
    wanted: usize,
    /// The last read filled its space.
    filled: bool,
    /// What was taken out of segments, once they are used.
    opened: Option<Opened>,
}

impl Frames {
    /// A reader that refuses bodies of more than `max_body` bytes, and of more than
    /// [`SESSION_BODY`] bytes until [`Frames::started`].
    pub fn new(max_body: usize) -> Frames {
        let buffer = BytesMut::with_capacity(FIRST_BUFFER);
        let limits = BodyLimits { statement: max_body, started: false };
        Frames { buffer, skip: 0, limits, wanted: 0, filled: false, opened: None }
    }

    /// STARTUP succeeded: longer statements may come.
    pub fn started(&mut self) {
        self.limits.started = true;
    }

    /// From the next byte on, frames come in segments.
    pub fn use_segments(&mut self, form: Form) {
        self.opened = Some(Opened { form, payload: Bytes::new(), long: BytesMut::new(), long_len: 0, skip: 0 });
    }

    /// The buffer, with room to append to: for all of a long frame if there is memory for it (`whole`), else for its beginning. Tell
    /// [`Frames::arrived`] afterwards.
    pub fn space(&mut self, whole: bool) -> &mut BytesMut {
        let wanted = if whole { self.wanted } else { self.wanted.min(BUFFER) };
        let missing = wanted.saturating_sub(self.buffer.len());
        let room = self.buffer.capacity() - self.buffer.len();
        if missing > room && wanted > BUFFER {
            // Not a byte more: what follows is read when there is memory for it.
            let mut own = BytesMut::with_capacity(wanted);
            own.extend_from_slice(&self.buffer);
            self.buffer = own;
        } else if missing > room {
            self.buffer.reserve(missing);
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
        self.opened.as_ref().map_or(0, |opened| opened.long_len).max(self.wanted)
    }

    /// Bytes of the first frame that are still to come, as far as is known.
    pub fn missing(&self) -> usize {
        match &self.opened {
            Some(opened) => {
                let long = opened.long_len.saturating_sub(opened.long.len() + self.buffer.len());
                long.max(self.wanted.saturating_sub(self.buffer.len()))
            }
            None => match self.buffer.first_chunk::<HEADER_LEN>() {
                Some(&[.., l0, l1, l2, l3]) => {
                    let body = u32::from_be_bytes([l0, l1, l2, l3]) as usize;
                    (HEADER_LEN + body).saturating_sub(self.buffer.len())
                }
                None => HEADER_LEN - self.buffer.len(),
            },
        }
    }

    /// How many bytes are buffered.
    pub fn buffered(&self) -> usize {
        let opened = self.opened.as_ref().map_or(0, |opened| opened.payload.len() + opened.long.len());
        self.buffer.len() + opened
    }

    /// Takes the next frame off the buffer.
    #[inline]
    pub fn take_next(&mut self) -> Next {
        if self.opened.is_some() {
            return self.take_opened();
        }
        match look(&self.buffer, self.limits) {
            Start::Incomplete(wanted) => {
                self.wanted = wanted;
                Next::Incomplete
            }
            Start::Frame(head) => {
                self.wanted = 0;
                let mut frame = self.buffer.split_to(head.len);
                self.leave_long(head.len);
                frame.advance(HEADER_LEN);
                head.with(frame.freeze())
            }
            Start::Refused(refused, len) => {
                let here = len.min(self.buffer.len());
                self.buffer.advance(here);
                self.skip = len - here;
                self.wanted = 0;
                Next::Refused(refused)
            }
        }
    }

    /// The buffer of something long that was taken out of it goes with that, and is not kept for what may be short.
    #[inline]
    fn leave_long(&mut self, len: usize) {
        if len > BUFFER {
            self.buffer = BytesMut::from(&self.buffer[..]);
        }
    }

    /// What the compressed body of the frame at the buffer's start opens to; 0 if it is not compressed, too long, or not known yet.
    pub fn opened_len(&self, compression: Compression) -> usize {
        let Some(header) = self.buffer.first_chunk::<HEADER_LEN>() else { return 0 };
        if header[1] & flag::COMPRESSION == 0 || self.opened.is_some() {
            return 0;
        }
        let body = &self.buffer[HEADER_LEN..];
        let claimed = compression.claimed_len(&body[..body.len().min(CLAIM)]).unwrap_or(0);
        if claimed > self.limits.statement { 0 } else { claimed }
    }

    /// Takes the next frame out of segments.
    fn take_opened(&mut self) -> Next {
        let Some(opened) = &mut self.opened else { return Next::Incomplete };
        loop {
            if !opened.payload.is_empty() {
                return opened.next_of_payload(self.limits);
            }
            let segment = match segment::take(opened.form, &mut self.buffer) {
                Taken::Incomplete(len) => {
                    self.wanted = len;
                    return Next::Incomplete;
                }
                Taken::Damaged(why) => return broken(&format!("Damaged segment: {why}")),
                Taken::Segment(segment) => segment,
            };
            let len = std::mem::take(&mut self.wanted);
            if len > BUFFER {
                self.buffer = BytesMut::from(&self.buffer[..]);
            }
            let next = match segment.self_contained {
                true => opened.whole(segment.payload),
                false => opened.part(&segment.payload, self.limits),
            };
            if let Some(next) = next {
                return next;
            }
        }
    }
}

/// A stream of segments that cannot be followed any further.
#[cold]
fn broken(why: &str) -> Next {
    Next::Refused(Refused {
        version: Version::V5 as u8,
        stream: 0,
        error: Error::Protocol(why.to_owned()),
        fatal: true,
    })
}

/// What was taken out of segments and is not given out yet.
#[derive(Debug)]
struct Opened {
    form: Form,
    /// The rest of a self-contained segment.
    payload: Bytes,
    /// The begin of a frame that fills several segments, and its whole length, once that is known.
    long: BytesMut,
    long_len: usize,
    /// Bytes of such a frame that was refused, still to come.
    skip: usize,
}

impl Opened {
    /// The next frame of a self-contained segment.
    fn next_of_payload(&mut self, limits: BodyLimits) -> Next {
        match look(&self.payload, limits) {
            Start::Frame(head) => {
                // Of the last frame nothing is left that would hold the read buffer, which then is used again.
                let mut frame = match head.len == self.payload.len() {
                    true => std::mem::take(&mut self.payload),
                    false => self.payload.split_to(head.len),
                };
                frame.advance(HEADER_LEN);
                head.with(frame)
            }
            Start::Refused(refused, len) if len <= self.payload.len() => {
                self.payload.advance(len);
                Next::Refused(Refused { version: Version::V5 as u8, ..refused })
            }
            Start::Incomplete(_) | Start::Refused(..) => broken("A self-contained segment ends within a frame"),
        }
    }

    /// A self-contained segment came.
    fn whole(&mut self, payload: Bytes) -> Option<Next> {
        if !self.long.is_empty() || self.skip > 0 {
            return Some(broken("A self-contained segment in the middle of a frame that fills several"));
        }
        self.payload = payload;
        None
    }

    /// A segment came that holds a part of a frame.
    fn part(&mut self, payload: &[u8], limits: BodyLimits) -> Option<Next> {
        const TOO_MUCH: &str = "A frame that fills several segments ends before its last one";
        if self.skip > 0 {
            let Some(rest) = self.skip.checked_sub(payload.len()) else { return Some(broken(TOO_MUCH)) };
            self.skip = rest;
            return None;
        }
        if self.long.capacity() < self.long_len {
            let mut whole = BytesMut::with_capacity(self.long_len);
            whole.extend_from_slice(&self.long);
            self.long = whole;
        }
        self.long.extend_from_slice(payload);
        self.long_len = 0;
        Some(match look(&self.long, limits) {
            Start::Incomplete(len) => {
                self.long_len = len;
                return None;
            }
            Start::Frame(head) if head.len == self.long.len() => {
                let mut frame = std::mem::take(&mut self.long);
                frame.advance(HEADER_LEN);
                head.with(frame.freeze())
            }
            Start::Refused(refused, len) if refused.fatal || len >= self.long.len() => {
                self.skip = len.saturating_sub(self.long.len());
                self.long = BytesMut::new();
                Next::Refused(Refused { version: Version::V5 as u8, ..refused })
            }
            Start::Frame(_) | Start::Refused(..) => broken(TOO_MUCH),
        })
    }
}

#[cfg(test)]
mod tests;
