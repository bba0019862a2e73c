//! Puts outgoing frames into segments.
//!
//! Frames are appended to the open segment at the end of the tail, after the space for its header.
//! Sealing a segment writes its header and checksums. It is done before a write to the socket, when
//! the segment is full, and with large rows, which are queued without a copy. So the answers of one
//! wake share a segment. A frame that does not fit gets several segments of its own.
//!
//! Invariant: no segment is open while bytes are removed from the tail.

use super::{LARGE, Outbox};
use crate::protocol::HEADER_LEN;
use crate::protocol::segment::{self, Form, Header};
use bytes::{BufMut, Bytes, BytesMut};

/// An open segment of this many bytes is sealed, so that the next frame fits into the next segment.
const FULL: usize = 64 << 10;

/// The state of sealing.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sealing {
    form: Form,
    /// The offset of the open segment in the tail.
    open: Option<usize>,
}

impl Sealing {
    /// Whether segments are compressed.
    pub fn compresses(&self) -> bool {
        self.form == Form::Lz4
    }
}

impl Outbox {
    /// From the next frame on, frames are sent in segments.
    pub fn use_segments(&mut self, form: Form) {
        debug_assert!(self.sealing.is_none(), "segments begin once");
        self.sealing = Some(Sealing { form, open: None });
    }

    /// Reserves space for a segment's header, unless a segment is open.
    pub(super) fn open_segment(&mut self) {
        if let Some(Sealing { form, open }) = &mut self.sealing
            && open.is_none()
        {
            *open = Some(self.out.tail.len());
            self.out.tail.put_bytes(0, form.header_len());
        }
    }

    /// Ends the frame whose body starts at `start`, with `rows` as the rest of the body.
    pub(super) fn finish_in_segment(&mut self, start: usize, rows: Option<&Bytes>) {
        debug_assert!(self.sealing.is_some_and(|sealing| sealing.open.is_some()), "a frame is in a segment");
        let Some(Sealing { form, open: Some(open) }) = self.sealing else { return };
        let (frame, payload) = (start - HEADER_LEN, open + form.header_len());
        let body = self.out.tail.len() - start + rows.map_or(0, Bytes::len);
        self.out.tail[start - 4..start].copy_from_slice(&(body as u32).to_be_bytes());
        if start + body - payload <= form.max_payload() {
            return self.append_rows(form, open, rows);
        }
        // The frame does not fit into the segment with the previous frames.
        let head = self.out.tail.split_off(frame);
        if frame > payload {
            self.seal();
        } else {
            self.out.tail.truncate(open);
            self.sealing = Some(Sealing { form, open: None });
        }
        if HEADER_LEN + body > form.max_payload() {
            return self.put_long_frame(form, head, rows);
        }
        let open = self.out.tail.len();
        self.open_segment();
        self.out.tail.extend_from_slice(&head);
        self.append_rows(form, open, rows);
    }

    /// Ends a frame that fits into the segment that begins at `open`.
    fn append_rows(&mut self, form: Form, open: usize, rows: Option<&Bytes>) {
        match rows {
            Some(rows) if rows.len() >= LARGE && form == Form::Plain => return self.seal_with(form, open, rows),
            Some(rows) => self.out.tail.extend_from_slice(rows),
            None => {}
        }
        if self.out.tail.len() - open >= FULL {
            self.seal();
        }
    }

    /// Seals the open segment, if there is one.
    #[inline]
    pub(super) fn seal(&mut self) {
        if let Some(Sealing { form, open: Some(open) }) = self.sealing {
            self.seal_open(form, open);
        }
    }

    fn seal_open(&mut self, form: Form, open: usize) {
        let (at, before) = (open + form.header_len(), self.out.tail.len());
        let closed = if form == Form::Lz4 { segment::close(&self.out.tail[at..]) } else { None };
        let mut opened = 0;
        if let Some(closed) = closed {
            opened = before - at;
            self.out.tail.truncate(at);
            self.out.tail.extend_from_slice(&closed);
        }
        let header = Header { payload: self.out.tail.len() - at, opened, self_contained: true };
        header.write(form, &mut self.out.tail[open..at]);
        let crc = segment::payload_crc(&[&self.out.tail[at..]]);
        self.out.tail.put_u32_le(crc);
        self.sealing = Some(Sealing { form, open: None });
    }

    /// Seals the open segment with `rows` as the end of its payload.
    fn seal_with(&mut self, form: Form, open: usize, rows: &Bytes) {
        let at = open + form.header_len();
        let header = Header { payload: self.out.tail.len() - at + rows.len(), opened: 0, self_contained: true };
        header.write(form, &mut self.out.tail[open..at]);
        let crc = segment::payload_crc(&[&self.out.tail[at..], rows]);
        self.out.push(rows.clone());
        self.out.tail.put_u32_le(crc);
        self.sealing = Some(Sealing { form, open: None });
    }

    /// Puts a frame into its own segments.
    fn put_long_frame(&mut self, form: Form, head: BytesMut, rows: Option<&Bytes>) {
        match form {
            Form::Plain => {
                let mut parts = [head.freeze(), rows.cloned().unwrap_or_default()];
                while parts.iter().any(|part| !part.is_empty()) {
                    let [first, second] = &mut parts;
                    let first = first.split_to(first.len().min(form.max_payload()));
                    let second = second.split_to(second.len().min(form.max_payload() - first.len()));
                    let header = Header { payload: first.len() + second.len(), opened: 0, self_contained: false };
                    self.put_segment(form, header, [first, second]);
                }
            }
            Form::Lz4 => {
                let mut frame = head;
                frame.extend_from_slice(rows.map_or(&[][..], |rows| rows));
                for part in frame.chunks(form.max_payload()) {
                    let (payload, opened) = match segment::close(part) {
                        Some(closed) => (Bytes::from(closed), part.len()),
                        None => (Bytes::copy_from_slice(part), 0),
                    };
                    let header = Header { payload: payload.len(), opened, self_contained: false };
                    self.put_segment(form, header, [payload, Bytes::new()]);
                }
            }
        }
    }

    /// Appends a segment with a payload of two pieces.
    fn put_segment(&mut self, form: Form, header: Header, payload: [Bytes; 2]) {
        let len = payload.iter().map(Bytes::len).sum::<usize>();
        debug_assert_eq!(header.payload, len, "a header has the length of its payload");
        let at = self.out.tail.len();
        self.out.tail.put_bytes(0, form.header_len());
        header.write(form, &mut self.out.tail[at..]);
        let crc = segment::payload_crc(&[&payload[0], &payload[1]]);
        for piece in payload {
            if piece.len() >= LARGE {
                self.out.push(piece);
            } else {
                self.out.tail.extend_from_slice(&piece);
            }
        }
        self.out.tail.put_u32_le(crc);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::outbox::Reply;
    use crate::protocol::outbox::tests::drain;
    use crate::protocol::{Version, segment::Taken};
    use cql::api::{ResultKind, ResultMetadata, Rows, StatementResult};
    use proptest::prelude::*;
    use std::rc::Rc;

    fn rows(stream: i16, len: usize) -> StatementResult {
        let noise = (0..len).map(|n| (n.wrapping_mul(2_654_435_761) >> 9) as u8 ^ stream as u8).collect::<Vec<u8>>();
        let metadata = Rc::new(ResultMetadata::default());
        StatementResult::new(ResultKind::Rows(Rows {
            metadata,
            paging_state: None,
            count: 1,
            body: Bytes::from(noise),
        }))
    }

    /// The frames in a stream of segments, and how many segments it had.
    fn frames_of(form: Form, bytes: &[u8]) -> (Vec<(i16, Vec<u8>)>, usize) {
        let (mut buffer, mut stream, mut frames, mut count) = (BytesMut::from(bytes), Vec::new(), Vec::new(), 0);
        loop {
            match segment::take(form, &mut buffer) {
                Taken::Segment(segment) => {
                    count += 1;
                    stream.extend_from_slice(&segment.payload);
                    let mut rest = &stream[..];
                    while let [0x85, _, s0, s1, _, l0, l1, l2, l3, body @ ..] = rest {
                        let len = u32::from_be_bytes([*l0, *l1, *l2, *l3]) as usize;
                        if body.len() < len {
                            break;
                        }
                        frames.push((i16::from_be_bytes([*s0, *s1]), body[..len].to_vec()));
                        rest = &body[len..];
                    }
                    assert!(!segment.self_contained || rest.is_empty(), "a self-contained segment holds whole frames");
                    stream = rest.to_vec();
                }
                Taken::Incomplete(_) => {
                    assert!(buffer.is_empty() && stream.is_empty());
                    return (frames, count);
                }
                Taken::Damaged(why) => panic!("{why}"),
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases / 5))]
        #[test]
        fn every_frame_arrives_whole(
            // Frames, and whether the socket takes all bytes after each.
            sizes in prop::collection::vec((prop_oneof![0usize..300, 7000usize..9000, 100_000usize..400_000], any::<bool>()), 1..8),
            step in 50usize..200_000,
        ) {
            for form in [Form::Plain, Form::Lz4] {
                let mut outbox = Outbox::default();
                outbox.use_segments(form);
                let (mut bytes, mut expected) = (Vec::new(), Vec::new());
                for (stream, (size, written)) in sizes.iter().enumerate() {
                    let answer = rows(stream as i16, *size);
                    outbox.answer(&Reply::plain(Version::V5, stream as i16), &answer);
                    let ResultKind::Rows(rows) = &answer.kind else { panic!("rows") };
                    expected.push((stream as i16, [&[0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1][..], &rows.body].concat()));
                    if *written {
                        bytes.extend(drain(&mut outbox, step));
                    }
                }
                bytes.extend(drain(&mut outbox, step));
                prop_assert_eq!(frames_of(form, &bytes).0, expected);
            }
        }
    }

    #[test]
    fn small_answers_share_a_segment() {
        for form in [Form::Plain, Form::Lz4] {
            let mut outbox = Outbox::default();
            outbox.ready(&Reply::plain(Version::V5, 0));
            outbox.use_segments(form);
            for stream in 0..100 {
                outbox.answer(&Reply::plain(Version::V5, stream), &rows(stream, 10));
            }
            let bytes = drain(&mut outbox, usize::MAX);
            let (ready, segments) = bytes.split_at(HEADER_LEN);
            assert_eq!(ready, [0x85, 0, 0, 0, 2, 0, 0, 0, 0], "READY comes before segments begin");
            let (frames, count) = frames_of(form, segments);
            assert_eq!((frames.len(), count), (100, 1));
        }
    }

    #[test]
    fn a_full_segment_is_followed_by_another() {
        let mut outbox = Outbox::default();
        outbox.use_segments(Form::Plain);
        for stream in 0..40 {
            outbox.answer(&Reply::plain(Version::V5, stream), &rows(stream, 5000));
        }
        let bytes = drain(&mut outbox, usize::MAX);
        let (frames, count) = frames_of(Form::Plain, &bytes);
        assert_eq!((frames.len(), count), (40, 3));
    }
}
