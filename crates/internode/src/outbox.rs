//! The frames that wait to be written to a connection.

use super::frame::{self, Head};
use rt::net::AsyncWrite;
use rt::{Pieces, WriteQueue};
use std::io;
use std::task::Context;

/// The frames that wait. Large pieces of bodies are queued without a copy.
#[derive(Debug, Default)]
pub(super) struct Outbox(WriteQueue);

impl Outbox {
    /// The number of queued bytes.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Adds a frame. Returns its length in bytes, as transmitted.
    pub fn push(&mut self, version: u8, head: Head, body: Pieces, compress: bool) -> usize {
        let body = frame::put(&mut self.0.tail, version, head, body, compress);
        for piece in body.iter() {
            if piece.len() < WriteQueue::LARGE {
                self.0.tail.extend_from_slice(piece);
            } else {
                self.0.push(piece.clone());
            }
        }
        frame::HEADER + body.len()
    }

    /// Writes queued bytes, as [`WriteQueue::flush`] describes. True if nothing is left.
    pub fn flush<T: AsyncWrite + Unpin>(
        &mut self,
        stream: &mut T,
        unflushed: &mut bool,
        cx: &mut Context<'_>,
        written: impl FnMut(usize),
    ) -> io::Result<bool> {
        self.0.flush(stream, unflushed, cx, written)
    }
}

#[cfg(test)]
mod tests {
    use super::super::frame::{Frame, Frames, Kind, VERSION};
    use super::*;
    use bytes::Bytes;
    use proptest::prelude::*;
    use std::io::IoSlice;

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
            while outbox.len() > 0 {
                let mut written = 0;
                {
                    let mut slices = [IoSlice::new(&[]); WriteQueue::MAX_SLICES];
                    let used = outbox.0.slices(&mut slices);
                    for slice in &slices[..used] {
                        let part = &slice[..slice.len().min(step - written)];
                        frames.space().extend_from_slice(part);
                        written += part.len();
                    }
                }
                outbox.0.written(written);
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
