//! The payload of segments that have been opened, and the look at those that may become large.

use super::{BUFFER, BodyLimits, FIRST_BUFFER, Next, Refused, Start, broken, peek_header};
use crate::protocol::segment::{self, Form};
use crate::protocol::{HEADER_LEN, Version};
use bytes::{Buf, Bytes, BytesMut};

/// The decoded payload of segments that has not been returned yet.
#[derive(Debug)]
pub(super) struct Opened {
    form: Form,
    /// The rest of a self-contained segment.
    payload: Bytes,
    /// The length of all of it, if it is not a part of the buffer.
    payload_len: usize,
    /// The beginning of a frame that spans several segments, and its total length, once known.
    long: BytesMut,
    long_len: usize,
    /// The length of the next segment's payload after decompression, if that must be reserved.
    opens_to: usize,
    /// Whether the long frame, or the next segment's payload, has its memory.
    may_grow: bool,
    /// The bytes that are still to be skipped of such a frame that was refused.
    skip: usize,
}

impl Opened {
    /// The state before the first segment.
    pub(super) fn new(form: Form) -> Opened {
        Opened {
            form,
            payload: Bytes::new(),
            payload_len: 0,
            long: BytesMut::new(),
            long_len: 0,
            opens_to: 0,
            may_grow: false,
            skip: 0,
        }
    }

    /// The form of the segments.
    pub(super) fn form(&self) -> Form {
        self.form
    }

    /// Whether frames of a self-contained segment are left.
    pub(super) fn has_payload(&self) -> bool {
        !self.payload.is_empty()
    }

    /// The total length of the frame that spans several segments, or zero if there is none or it is
    /// unknown.
    pub(super) fn long_len(&self) -> usize {
        self.long_len
    }

    /// The bytes of that frame that are missing in addition to `buffered` bytes.
    pub(super) fn missing_beside(&self, buffered: usize) -> usize {
        self.long_len.saturating_sub(self.long.len() + buffered)
    }

    /// The bytes that have not been returned as frames.
    pub(super) fn buffered(&self) -> usize {
        self.payload.len() + self.long.len()
    }

    /// The length of the next segment's payload after decompression, if that must be reserved.
    /// Otherwise zero.
    pub(super) fn opens_to(&self) -> usize {
        self.opens_to
    }

    /// The long frame, or the next segment's payload, has its memory.
    pub(super) fn grant(&mut self) {
        self.may_grow = true;
    }

    /// The next frame of a self-contained segment.
    pub(super) fn next_of_payload(&mut self, limits: BodyLimits) -> Next {
        match peek_header(&self.payload, limits) {
            Start::Frame(head) => {
                // After the last frame, nothing references the read buffer, so it can be reused.
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

    /// The bytes that are held in addition to the read buffer.
    pub(super) fn held(&self) -> usize {
        let payload = if self.payload.is_empty() { 0 } else { self.payload_len };
        payload + self.long.capacity()
    }

    /// Whether the next segment, or the rest of a frame that spans several, waits for its memory.
    pub(super) fn waits(&self, large_from: usize) -> bool {
        !self.may_grow && (self.long_len > large_from || self.opens_to > 0)
    }

    /// The same, after a look at the next segment in `buffer`.
    pub(super) fn must_wait(&mut self, buffer: &[u8], limits: BodyLimits, pressed: bool) -> bool {
        if self.may_grow || self.skip > 0 {
            return false;
        }
        if self.long_len == 0 && (pressed || !segment::seems_self_contained(self.form, buffer)) {
            self.look_ahead(buffer, limits, pressed);
        } else {
            self.opens_to = 0;
        }
        self.waits(if pressed { FIRST_BUFFER } else { BUFFER })
    }

    /// Finds out what the next segment becomes, without opening it.
    #[cold]
    fn look_ahead(&mut self, buffer: &[u8], limits: BodyLimits, pressed: bool) {
        self.opens_to = 0;
        let Some(header) = segment::header(self.form, buffer) else { return };
        if header.self_contained {
            if pressed && header.opened > FIRST_BUFFER {
                self.opens_to = header.opened;
            }
            return;
        }
        let mut first = [0; HEADER_LEN];
        // The length is unknown, so less than a header has been assembled.
        let Some((known, rest)) = first.split_at_mut_checked(self.long.len()) else { return };
        known.copy_from_slice(&self.long);
        if segment::beginning(self.form, buffer, header, rest)
            && let Start::Incomplete(len) = peek_header(&first, limits)
        {
            self.long_len = len;
        }
    }

    /// Whether the next segment is complete, or its header is damaged. If it is the first one of a
    /// long frame, the segment after it.
    pub(super) fn has_segment_after_first(&self, buffer: &[u8]) -> bool {
        let is_complete = |buffer: &[u8]| segment::len(self.form, buffer).is_some_and(|len| len <= buffer.len());
        if self.opens_to > 0 || !self.long.is_empty() {
            return is_complete(buffer);
        }
        let Some(header) = segment::header(self.form, buffer) else { return is_complete(buffer) };
        match header.opened_len() >= self.long_len {
            true => is_complete(buffer),
            false => buffer.get(header.segment_len(self.form)..).is_some_and(is_complete),
        }
    }

    /// Accepts a self-contained segment.
    pub(super) fn whole(&mut self, payload: Bytes) -> Option<Next> {
        if !self.long.is_empty() || self.skip > 0 {
            return Some(broken("A self-contained segment in the middle of a frame that fills several"));
        }
        (self.may_grow, self.opens_to) = (false, 0);
        self.payload_len = if self.form == Form::Lz4 || payload.len() > BUFFER { payload.len() } else { 0 };
        self.payload = payload;
        None
    }

    /// Accepts a segment with a part of a frame.
    pub(super) fn part(&mut self, payload: &[u8], limits: BodyLimits) -> Option<Next> {
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
        let start = peek_header(&self.long, limits);
        if let Start::Incomplete(len) = start {
            self.long_len = len;
            return None;
        }
        self.may_grow = false;
        Some(match start {
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
            Start::Frame(_) | Start::Refused(..) | Start::Incomplete(_) => broken(TOO_MUCH),
        })
    }
}
