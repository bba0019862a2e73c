//! Splits the input of a connection into frames.
//!
//! The reader appends to [`Frames::space`]. [`Frames::take_next`] returns complete frames. Frames
//! are slices of the read buffer, which is reused once no slice of it is left. A body that is too
//! long is refused and then skipped as it arrives, so that the connection can continue.
//!
//! After [`Frames::use_segments`], frames arrive in segments. Frames of a self-contained segment
//! are slices as before. A frame that spans several segments is assembled.
//!
//! While the connections of a shard hold much input together ([`Frames::set_pressed`]), a reader
//! does not let its buffer grow. Longer frames and segments then wait for a reservation.

mod opened;

use super::segment::{self, Form, Taken};
use super::{Compression, HEADER_LEN, Opcode, Version, flag};
use bytes::{Buf, Bytes, BytesMut};
use cql::Error;
use opened::Opened;

/// The initial size of a connection's buffer.
pub const FIRST_BUFFER: usize = 4 << 10;
/// The size to which the buffer grows if reads fill it. A longer frame (or segment) has its own
/// buffer, which is freed with it.
pub const BUFFER: usize = 64 << 10;
/// How many bytes at the beginning of a compressed body may encode its length.
const CLAIM: usize = 5;
/// The longest body of a request about the connection itself (STARTUP, OPTIONS, REGISTER,
/// AUTH_RESPONSE), and of any request before STARTUP, bytes.
pub const SESSION_BODY: usize = 64 << 10;
/// The least space for a read, in bytes.
const MIN_SPACE: usize = 2 << 10;

/// A complete request frame.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RawFrame {
    /// Its version.
    pub version: Version,
    /// See [`flag`].
    pub flags: u8,
    /// The stream, which the answer repeats.
    pub stream: i16,
    /// The kind of request.
    pub opcode: Opcode,
    /// Its body, still compressed if the flag is set.
    pub body: Bytes,
}

impl RawFrame {
    /// Whether the request must be traced.
    pub fn is_traced(&self) -> bool {
        self.flags & flag::TRACING != 0
    }
}

/// A frame that is not a valid request.
#[derive(Clone, PartialEq, Debug)]
pub struct Refused {
    /// The version for the answer, without the direction bit. May be a version that is not
    /// supported.
    pub version: u8,
    /// The stream, which the answer repeats.
    pub stream: i16,
    /// The error.
    pub error: Error,
    /// The rest of the input cannot be interpreted: answer and close.
    pub fatal: bool,
}

/// The next item in the buffer.
#[derive(Clone, PartialEq, Debug)]
pub enum Next {
    /// No complete frame.
    Incomplete,
    /// A frame.
    Frame(RawFrame),
    /// An invalid frame.
    Refused(Refused),
}

/// The result of inspecting the beginning of some bytes.
enum Start {
    /// An incomplete frame with its total length, or 0 if that is unknown.
    Incomplete(usize),
    /// A frame.
    Frame(Head),
    /// An invalid frame with its total length, which may exceed the available bytes.
    Refused(Refused, usize),
}

/// The header of a complete frame.
struct Head {
    version: Version,
    flags: u8,
    stream: i16,
    opcode: Opcode,
    /// The length of the frame in bytes.
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

/// Why a body of this length is refused although a statement may have this length.
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

/// Inspects the beginning of `bytes`.
#[inline]
fn peek_header(bytes: &[u8], limits: BodyLimits) -> Start {
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

/// Handles a first byte that is not a request in a supported version.
#[cold]
fn odd_version(first: u8, bytes: &[u8]) -> Start {
    let is_response = first & 0x80 != 0;
    let number = first & 0x7F;
    // Before version 3, the stream had one byte and the header eight.
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
    /// The size of the allocation of `buffer`, which frames may share.
    allocated: usize,
    /// The connections of the shard hold much input together.
    pressed: bool,
    /// Bytes of a refused body that have not arrived yet.
    skip: usize,
    limits: BodyLimits,
    /// The total length of the frame (or segment) at the start of the buffer, once its header is
    /// known.
    wanted: usize,
    /// Whether the last read filled its space.
    filled: bool,
    /// The state of segments, once they are used.
    opened: Option<Opened>,
}

impl Frames {
    /// A reader that refuses bodies of more than `max_body` bytes, and of more than
    /// [`SESSION_BODY`] bytes until [`Frames::started`].
    pub fn new(max_body: usize) -> Frames {
        let buffer = BytesMut::with_capacity(FIRST_BUFFER);
        let limits = BodyLimits { statement: max_body, started: false };
        let allocated = buffer.capacity();
        Frames { buffer, allocated, pressed: false, skip: 0, limits, wanted: 0, filled: false, opened: None }
    }

    /// STARTUP succeeded: longer statements may come.
    pub fn started(&mut self) {
        self.limits.started = true;
    }

    /// From the next byte on, frames arrive in segments.
    pub fn use_segments(&mut self, form: Form) {
        debug_assert!(self.opened.is_none(), "segments begin once");
        self.opened = Some(Opened::new(form));
    }

    /// Sets whether the connections of the shard hold much input together.
    pub fn set_pressed(&mut self, pressed: bool) {
        self.pressed = pressed;
    }

    /// See [`Frames::set_pressed`].
    pub fn is_pressed(&self) -> bool {
        self.pressed
    }

    /// A longer frame (or segment) needs memory of its own.
    pub fn large_from(&self) -> usize {
        if self.pressed { FIRST_BUFFER } else { BUFFER }
    }

    /// The bytes that are held beyond a new buffer.
    pub fn held(&self) -> usize {
        self.allocated.saturating_sub(FIRST_BUFFER) + self.opened.as_ref().map_or(0, Opened::held)
    }

    /// Whether frames arrive in segments.
    pub fn uses_segments(&self) -> bool {
        self.opened.is_some()
    }

    /// Gives memory back that the buffered bytes do not need.
    pub fn shrink(&mut self) {
        let needed = self.buffer.len().max(FIRST_BUFFER);
        // Many bytes are copied only if the copy frees at least as many bytes.
        let frees_much = needed == FIRST_BUFFER || self.allocated >= 2 * needed;
        if self.allocated > needed && frees_much {
            self.replace(needed);
        }
    }

    /// Continues with a new buffer of at least `capacity` bytes, into which the buffered bytes fit.
    fn replace(&mut self, capacity: usize) {
        let mut own = BytesMut::with_capacity(capacity.max(self.buffer.len()));
        own.extend_from_slice(&self.buffer);
        self.allocated = own.capacity();
        self.buffer = own;
    }

    /// Makes room for `additional` bytes. Out of line, because `space` rarely needs it.
    #[inline(never)]
    fn make_room(&mut self, additional: usize) {
        if !self.buffer.try_reclaim(additional) {
            self.replace((self.buffer.len() + additional).max(FIRST_BUFFER));
        }
    }

    /// The buffer, with space to append: for all of a long frame if there is memory for it
    /// (`whole`), else for its beginning. Call [`Frames::arrived`] afterwards.
    pub fn space(&mut self, whole: bool) -> &mut BytesMut {
        let most = self.large_from();
        let wanted = if whole { self.wanted } else { self.wanted.min(most) };
        let missing = wanted.saturating_sub(self.buffer.len());
        let room = self.buffer.capacity() - self.buffer.len();
        if missing > room && wanted > most {
            // Not a byte more: the next frame is read when there is memory for it.
            self.replace(wanted);
        } else if missing > room {
            self.make_room(missing);
        } else if room < MIN_SPACE && !(self.pressed && missing > 0) {
            self.make_room(if self.filled { most } else { FIRST_BUFFER });
        }
        &mut self.buffer
    }

    /// Records that `n` bytes were appended to the buffer.
    pub fn arrived(&mut self, n: usize) {
        self.filled = n > 0 && self.buffer.len() == self.buffer.capacity();
        let passed = n.min(self.skip).min(self.buffer.len());
        if passed > 0 {
            // While bytes are skipped, nothing else precedes them in the buffer.
            self.buffer.advance(passed);
            self.skip -= passed;
        }
    }

    /// Appends bytes that the caller has read.
    pub fn push(&mut self, bytes: &[u8]) {
        self.make_room(bytes.len());
        self.buffer.extend_from_slice(bytes);
        self.arrived(bytes.len());
    }

    /// The total length of the incomplete frame, or zero if there is none or it is unknown.
    pub fn incomplete_len(&self) -> usize {
        self.opened.as_ref().map_or(0, Opened::long_len).max(self.wanted)
    }

    /// The known number of missing bytes of the first frame.
    pub fn missing(&self) -> usize {
        match &self.opened {
            Some(opened) => {
                let buffered = self.buffer.len();
                opened.missing_beside(buffered).max(self.wanted.saturating_sub(buffered))
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

    /// The number of buffered bytes.
    pub fn buffered(&self) -> usize {
        self.buffer.len() + self.opened.as_ref().map_or(0, Opened::buffered)
    }

    /// The bytes of the next segment and of its payload after decompression, if that must be
    /// reserved. Otherwise zero.
    pub fn opening_len(&self) -> usize {
        match self.opened.as_ref().map_or(0, Opened::opens_to) {
            0 => 0,
            opens_to => self.wanted + opens_to,
        }
    }

    /// Whether frames of an open segment are left.
    pub fn has_opened(&self) -> bool {
        self.opened.as_ref().is_some_and(Opened::has_payload)
    }

    /// Whether segments may not be decompressed before there is memory for what they become. Few
    /// bytes may become a long frame.
    pub fn must_not_open(&self) -> bool {
        self.opened.as_ref().is_some_and(|opened| opened.waits(self.large_from()))
    }

    /// Whether [`Frames::must_not_open`] and so much has arrived that the memory must be reserved:
    /// more than the first segment of a frame that spans several of them.
    pub fn waits_for_memory(&self) -> bool {
        let Some(opened) = &self.opened else { return false };
        self.must_not_open() && opened.has_segment_after_first(&self.buffer)
    }

    /// The memory of the long frame (or open segment) is reserved: segments may be decompressed.
    pub fn grant(&mut self) {
        if let Some(opened) = &mut self.opened {
            opened.grant();
        }
    }

    /// The number of buffered bytes that are as they were received.
    pub fn unopened(&self) -> usize {
        self.buffer.len()
    }

    /// Removes the next frame from the buffer.
    #[inline]
    pub fn take_next(&mut self) -> Next {
        if self.opened.is_some() {
            return self.take_opened();
        }
        match peek_header(&self.buffer, self.limits) {
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

    /// After a long frame was removed, continues with a new small buffer. The large one is freed
    /// with the frame.
    #[inline]
    fn leave_long(&mut self, len: usize) {
        if len > BUFFER {
            self.replace(0);
        }
    }

    /// The decompressed length of the body at the start of the buffer. 0 if it is not compressed,
    /// too long, or unknown yet.
    pub fn opened_len(&self, compression: Compression) -> usize {
        let Some(header) = self.buffer.first_chunk::<HEADER_LEN>() else { return 0 };
        if header[1] & flag::COMPRESSION == 0 || self.opened.is_some() {
            return 0;
        }
        let body = &self.buffer[HEADER_LEN..];
        let claimed = compression.claimed_len(&body[..body.len().min(CLAIM)]).unwrap_or(0);
        if claimed > self.limits.statement { 0 } else { claimed }
    }

    /// Removes the next frame from segments.
    fn take_opened(&mut self) -> Next {
        loop {
            let Some(opened) = &mut self.opened else { return Next::Incomplete };
            if opened.has_payload() {
                return opened.next_of_payload(self.limits);
            }
            if opened.must_wait(&self.buffer, self.limits, self.pressed) {
                self.wanted = segment::len(opened.form(), &self.buffer).unwrap_or(0);
                return Next::Incomplete;
            }
            let segment = match segment::take(opened.form(), &mut self.buffer) {
                Taken::Incomplete(len) => {
                    self.wanted = len;
                    return Next::Incomplete;
                }
                Taken::Damaged(why) => return broken(&format!("Damaged segment: {why}")),
                Taken::Segment(segment) => segment,
            };
            let len = std::mem::take(&mut self.wanted);
            let next = match segment.self_contained {
                true => opened.whole(segment.payload),
                false => opened.part(&segment.payload, self.limits),
            };
            self.leave_long(len);
            if let Some(next) = next {
                return next;
            }
        }
    }
}

/// The error for segments that cannot be interpreted any further.
#[cold]
fn broken(why: &str) -> Next {
    Next::Refused(Refused {
        version: Version::V5 as u8,
        stream: 0,
        error: Error::Protocol(why.to_owned()),
        fatal: true,
    })
}

#[cfg(test)]
mod tests;
