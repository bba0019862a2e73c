//! The checksum of all content, for readers that read it in sequence.
//!
//! It is computed over content, not over stored bytes, so that chunks from the cache count as well.

use super::Stream;
use crate::error::Error;

/// The checksum of the content from its start up to chunk `next`.
pub(super) struct ContentSum {
    next: u64,
    hasher: crc32fast::Hasher,
}

impl Stream {
    /// All content will be read in sequence: computes its checksum for [`Stream::check_sum`], if
    /// Checksums.db has it.
    pub fn sum_content(&mut self) {
        debug_assert_eq!(self.position(), 0, "the sum begins with the first byte");
        self.sum = self.table.content_sum.map(|_| ContentSum { next: 0, hasher: crc32fast::Hasher::new() });
    }

    /// Content of whole chunks from `n` on enters the window.
    #[inline]
    pub(super) fn add_to_sum(&mut self, n: u64, content: &[u8]) {
        if self.sum.is_some() {
            self.add_content(n, content);
        }
    }

    fn add_content(&mut self, n: u64, content: &[u8]) {
        let length = self.table.chunk_length();
        let Some(sum) = &mut self.sum else { return };
        let Some(known) = sum.next.checked_sub(n) else {
            // Chunks were skipped.
            self.sum = None;
            return;
        };
        // Chunks may be loaded again after a pause of the reader.
        let new = content.get(known as usize * length..).unwrap_or_default();
        sum.hasher.update(new);
        sum.next += new.len().div_ceil(length) as u64;
    }

    /// Compares the checksum of the content with Checksums.db, if all content was read in sequence.
    pub fn check_sum(&mut self) -> Result<(), Error> {
        let Some(sum) = self.sum.take().filter(|sum| sum.next == self.table.chunk_count()) else { return Ok(()) };
        if Some(sum.hasher.finalize()) == self.table.content_sum {
            return Ok(());
        }
        let why = "the checksum of the content differs from Checksums.db: \
                   chunks of the file are those of another sstable";
        Err(Error::corrupt(self.table.data.path(), 0, why))
    }
}
