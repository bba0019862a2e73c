//! The bytes that wait to be written to a connection. Small pieces are appended to one buffer.
//! Large pieces are queued without a copy.

use crate::net::AsyncWrite;
use bytes::{Buf, Bytes, BytesMut};
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

/// A larger buffer is freed when it is empty. In bytes.
const KEEP: usize = 64 << 10;

/// The bytes that wait: the queued bytes, then the bytes in `tail`.
#[derive(Debug, Default)]
pub struct WriteQueue {
    queue: VecDeque<Bytes>,
    /// The end, to which the owner appends.
    pub tail: BytesMut,
    /// Bytes in `queue`.
    queued: usize,
    /// The written bytes of the first queue entry. They stay in memory with the rest of the entry.
    passed: usize,
}

impl WriteQueue {
    /// Pieces of at least this many bytes are worth queueing.
    pub const LARGE: usize = 8 << 10;
    /// The most slices of one write.
    pub const MAX_SLICES: usize = 32;

    /// The bytes that wait.
    #[inline]
    pub fn len(&self) -> usize {
        self.queued + self.tail.len()
    }

    /// Whether nothing waits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes in memory for what waits.
    #[inline]
    pub fn held(&self) -> usize {
        self.len() + self.passed
    }

    /// Appends a piece without a copy. Bytes that are appended to the tail afterwards follow it.
    pub fn push(&mut self, piece: Bytes) {
        self.queued += self.tail.len() + piece.len();
        self.queue.push_back(self.tail.split().freeze());
        self.queue.push_back(piece);
    }

    /// Fills `slices` with the bytes that wait. Returns how many were used. With `MAX_SLICES` of
    /// them, writing always makes progress.
    #[inline]
    pub fn slices<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let parts = self.queue.iter().map(|bytes| &bytes[..]).chain([&self.tail[..]]);
        let mut used = 0;
        for (slot, part) in slices.iter_mut().zip(parts.filter(|part| !part.is_empty())) {
            *slot = IoSlice::new(part);
            used += 1;
        }
        used
    }

    /// Writes what waits, then flushes the stream, which may have a buffer of its own (TLS). True
    /// if nothing is left. `unflushed`: whether written bytes may be in that buffer. `written` is
    /// called after each write with the number of its bytes.
    #[inline]
    pub fn flush<T: AsyncWrite + Unpin>(
        &mut self,
        stream: &mut T,
        unflushed: &mut bool,
        cx: &mut Context<'_>,
        mut written: impl FnMut(usize),
    ) -> io::Result<bool> {
        while !self.is_empty() {
            let mut slices = [IoSlice::new(&[]); Self::MAX_SLICES];
            let used = self.slices(&mut slices);
            let poll = match &slices[..used] {
                [one] => Pin::new(&mut *stream).poll_write(cx, one),
                many => Pin::new(&mut *stream).poll_write_vectored(cx, many),
            };
            match poll? {
                Poll::Pending => return Ok(false),
                Poll::Ready(0) => return Err(io::ErrorKind::WriteZero.into()),
                Poll::Ready(n) => {
                    *unflushed = true;
                    self.written(n);
                    written(n);
                }
            }
        }
        if *unflushed {
            *unflushed = Pin::new(&mut *stream).poll_flush(cx)?.is_pending();
        }
        Ok(!*unflushed)
    }

    /// Removes the first `n` bytes, which were written.
    #[inline]
    pub fn written(&mut self, mut n: usize) {
        debug_assert!(n <= self.len(), "no more is written than waits");
        while let Some(first) = self.queue.front_mut() {
            if n < first.len() {
                first.advance(n);
                self.passed += n;
                self.queued -= n;
                return;
            }
            n -= first.len();
            self.queued -= first.len();
            self.passed = 0;
            self.queue.pop_front();
        }
        debug_assert_eq!(self.queued, 0, "each byte of an empty queue was written");
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
    use super::*;

    #[test]
    fn pieces_are_written_in_order_however_writes_are_cut() {
        for step in [1, 3, 7, 100] {
            let mut queue = WriteQueue::default();
            queue.tail.extend_from_slice(b"head");
            queue.push(Bytes::from_static(b"a large piece"));
            queue.push(Bytes::from_static(b"another"));
            queue.tail.extend_from_slice(b"end");
            let mut out = Vec::new();
            while !queue.is_empty() {
                let (before, left) = (out.len(), queue.len());
                let mut slices = [IoSlice::new(&[]); WriteQueue::MAX_SLICES];
                let used = queue.slices(&mut slices);
                for slice in &slices[..used] {
                    out.extend_from_slice(&slice[..slice.len().min(step - (out.len() - before))]);
                }
                let n = out.len() - before;
                queue.written(n);
                assert_eq!(queue.len(), left - n);
                assert!(queue.held() >= queue.len());
            }
            assert_eq!((out, queue.held()), (b"heada large pieceanotherend".to_vec(), 0));
        }
    }
}
