//! What waits to be written to a connection: frames one after the other, large pieces as they are, without a copy.

use super::frame::{self, Head};
use bytes::{Buf, Bytes, BytesMut};
use rt::Pieces;
use std::collections::VecDeque;
use std::io::IoSlice;

/// Pieces of at least this many bytes are queued and not copied.
const LARGE: usize = 8 << 10;
/// A buffer that grew beyond this is given back when it is empty.
const KEEP: usize = 64 << 10;
/// How many slices one write takes at most.
pub(super) const MAX_SLICES: usize = 32;

/// The bytes to be written.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    queue: VecDeque<Bytes>,
    tail: BytesMut,
    /// Bytes in both.
    len: usize,
}

impl Outbox {
    /// How many bytes wait.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether none do.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds a frame; gives how many bytes it has on the wire.
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

    /// Puts what waits into `slices`; gives how many it used.
    pub fn slices<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let parts = self.queue.iter().map(|bytes| &bytes[..]).chain([&self.tail[..]]);
        let mut used = 0;
        for (slot, part) in slices.iter_mut().zip(parts.filter(|part| !part.is_empty())) {
            *slot = IoSlice::new(part);
            used += 1;
        }
        used
    }

    /// The first `n` bytes were written.
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
