//! The bytes that wait to be written to a connection. Large pieces of bodies are queued without a
//! copy.

use super::frame::{self, Head};
use bytes::{Buf, Bytes, BytesMut};
use rt::Pieces;
use std::collections::VecDeque;
use std::io::IoSlice;

/// Pieces of at least this many bytes are queued, not copied.
const LARGE: usize = 8 << 10;
/// A buffer larger than this many bytes is freed when it is empty.
const KEEP: usize = 64 << 10;
/// The maximum number of slices of one write.
pub(super) const MAX_SLICES: usize = 32;

/// The queued bytes: those in `queue` come before those in `tail`.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    queue: VecDeque<Bytes>,
    tail: BytesMut,
    /// Bytes in `queue` and `tail`.
    len: usize,
}

impl Outbox {
    /// The number of queued bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing is queued.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds a frame. Returns its length in bytes, as transmitted.
    pub fn push(&mut self, version: u8, head: Head, body: Pieces, compress: bool) -> usize {
        let body = frame::put(&mut self.tail, version, head, body, compress);
        for piece in body.iter() {
            if piece.len() < LARGE {
                self.tail.extend_from_slice(piece);
            } else {
                self.queue.push_back(self.tail.split().freeze());
                self.queue.push_back(piece.clone());
            }
        }
        let added = frame::HEADER + body.len();
        self.len += added;
        added
    }

    /// Fills `slices` with queued bytes. Returns the number of used slices.
    pub fn slices<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let parts = self.queue.iter().map(|bytes| &bytes[..]).chain([&self.tail[..]]);
        let mut used = 0;
        for (slot, part) in slices.iter_mut().zip(parts.filter(|part| !part.is_empty())) {
            *slot = IoSlice::new(part);
            used += 1;
        }
        used
    }

    /// Removes the first `n` bytes, which were written.
    pub fn written(&mut self, mut n: usize) {
        self.len -= n;
        while let Some(first) = self.queue.front_mut() {
            if n < first.len() {
                first.advance(n);
                return;
            }
            n -= first.len();
            self.queue.pop_front();
        }
        if n < self.tail.len() {
            self.tail.advance(n);
        } else if self.tail.capacity() > KEEP {
            self.tail = BytesMut::new();
        } else {
            self.tail.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::frame::{Frame, Frames, Kind, VERSION};
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_frame_arrives_whole_and_in_order(
            sizes in prop::collection::vec(0usize..30_000, 1..10),
            step in 1usize..50_000,
            compress in any::<bool>(),
        ) {
            let mut outbox = Outbox::default();
            let mut expected = Vec::new();
            for (stream, size) in sizes.iter().enumerate() {
                let head = Head { kind: Kind::Response, verb: 0, stream: stream as u64, time_left: 0 };
                let body = Bytes::from(vec![stream as u8; *size]);
                outbox.push(VERSION, head, body.clone().into(), compress);
                expected.push(Frame { head, body });
            }
            let mut frames = Frames::new(VERSION, 1 << 20);
            let mut got = Vec::new();
            let mut left = outbox.len();
            while !outbox.is_empty() {
                let mut written = 0;
                {
                    let mut slices = [IoSlice::new(&[]); MAX_SLICES];
                    let used = outbox.slices(&mut slices);
                    for slice in &slices[..used] {
                        let part = &slice[..slice.len().min(step - written)];
                        frames.space().extend_from_slice(part);
                        written += part.len();
                    }
                }
                outbox.written(written);
                left -= written;
                prop_assert_eq!(left, outbox.len());
                while let Some(frame) = frames.next_frame().expect("right") {
                    got.push(frame);
                }
            }
            prop_assert_eq!(got, expected);
        }
    }
}
