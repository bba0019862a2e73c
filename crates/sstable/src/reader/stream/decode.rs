//! Decompresses stored chunks of a [`Stream`] into its window, and into the cache.

use super::{DECODE_AHEAD, Stored, Stream, Window, make_room};
use crate::cache::Kind;
use crate::error::Error;
use bytes::Bytes;

impl Stream {
    fn stored_chunk<'s>(&self, n: u64, stored: &'s Stored) -> &'s [u8] {
        let start = self.table.chunk_start(stored.first);
        let range = (self.table.chunk_start(n) - start) as usize..(self.table.chunk_start(n + 1) - start) as usize;
        &stored.bytes[range]
    }

    /// Decompresses chunks from `n` on, before `end`: at least one, about [`DECODE_AHEAD`] bytes.
    /// Reports an error in a later chunk when that chunk is needed: those before it are intact.
    pub(super) fn decode_together(&self, n: u64, end: u64, stored: &Stored) -> Result<Bytes, Error> {
        let length = self.table.chunk_length();
        let mut out = Vec::with_capacity(((end - n) as usize * length).min(DECODE_AHEAD.max(length)));
        self.decode_to(n, end, stored, &mut out)?;
        Ok(out.into())
    }

    /// Appends chunks as [`Stream::decode_together`]. Returns the next chunk.
    fn decode_to(&self, n: u64, end: u64, stored: &Stored, out: &mut Vec<u8>) -> Result<u64, Error> {
        let before = out.len();
        let mut chunk = n;
        while chunk < end && out.len() - before < DECODE_AHEAD {
            match self.table.decode_chunk(chunk, self.stored_chunk(chunk, stored), out) {
                Err(error) if chunk == n => return Err(error),
                Err(_) => break,
                Ok(()) => chunk += 1,
            }
        }
        Ok(chunk)
    }

    /// The content of one chunk, from content that begins with chunk `first`.
    pub(super) fn chunk_of(&self, content: &Bytes, first: u64, chunk: u64) -> Bytes {
        let start = (chunk - first) as usize * self.table.chunk_length();
        content.slice(start..start + self.table.chunk_content(chunk))
    }

    /// Appends chunk `n` of the stored ones, and some more.
    pub(super) fn decode(&mut self, n: u64, need: usize) -> Result<(), Error> {
        let Some(stored) = self.stored.take() else { unreachable!("the caller has looked") };
        let result = self.decode_from(n, &stored, need);
        self.stored = Some(stored);
        result
    }

    fn decode_from(&mut self, n: u64, stored: &Stored, need: usize) -> Result<(), Error> {
        let length = self.table.chunk_length() as u64;
        if stored.fills {
            let content = self.decode_together(n, stored.end, stored)?;
            for chunk in n..n + (content.len() as u64).div_ceil(length) {
                self.table.cached.insert(Kind::Data, chunk, &self.chunk_of(&content, n, chunk));
            }
            self.push(n, content, need);
            return Ok(());
        }
        let mut own = self.take_rest(n);
        make_room(&mut own, need);
        let before = own.len();
        let next = self.decode_to(n, stored.end, stored, &mut own);
        self.add_to_sum(n, &own[before..]);
        self.window = Window::Own(own);
        self.run += (next? - n) * length;
        Ok(())
    }
}
