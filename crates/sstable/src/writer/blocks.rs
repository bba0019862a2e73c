//! Builds the promoted index of a partition while it is written: blocks of rows with their first
//! and last position.

use crate::data::{marker, prefix};
use crate::input::write_deletion;
use crate::promoted::WIDTH_BASE;
use model::key::Clustering;
use model::time::Tombstone;
use model::types::vint::{write_signed, write_unsigned};

/// Each time that the block entries reach this size, the blocks of the partition become twice as
/// large.
const MAX_BYTES: usize = 8 << 20;

/// The blocks of the current partition.
#[derive(Debug)]
pub(crate) struct Blocks {
    wanted: u64,
    size: u64,
    grown_at: usize,
    out: Vec<u8>,
    offsets: Vec<u32>,
    /// The start of the open block, counted from the partition's start.
    open: Option<u64>,
    /// The kind and prefix of the last unfiltered.
    last: (u8, Clustering),
}

impl Blocks {
    /// Blocks have at least `size` bytes of content.
    pub fn new(size: usize) -> Self {
        let wanted = size.max(1) as u64;
        let last = (marker::CLUSTERING, Clustering::EMPTY);
        Blocks { wanted, size: wanted, grown_at: MAX_BYTES, out: Vec::new(), offsets: Vec::new(), open: None, last }
    }

    /// A partition begins.
    pub fn start(&mut self) {
        self.out.clear();
        self.offsets.clear();
        self.open = None;
        (self.size, self.grown_at) = (self.wanted, MAX_BYTES);
    }

    /// An unfiltered was written, from `start` to `end` (counted from the partition's start).
    /// `covered` is the range tombstone that is open after it.
    #[inline]
    pub fn unfiltered(
        &mut self,
        kind: u8,
        key: &Clustering,
        (start, end): (u64, u64),
        covered: Tombstone,
        widths: &[Option<usize>],
    ) {
        debug_assert!(start < end, "an unfiltered has bytes");
        debug_assert!(self.open.is_none_or(|block| block < start), "unfiltereds follow each other");
        debug_assert!(u32::try_from(self.out.len()).is_ok(), "the offsets of blocks fit the four bytes of the format");
        let block = match self.open {
            Some(block) => block,
            None => {
                self.offsets.push(self.out.len() as u32);
                write_position(kind, key, widths, &mut self.out);
                self.open = Some(start);
                start
            }
        };
        self.last = (kind, key.clone());
        if end - block >= self.size {
            self.close(end, covered, widths);
        }
    }

    fn close(&mut self, end: u64, covered: Tombstone, widths: &[Option<usize>]) {
        let Some(block) = self.open.take() else { return };
        write_position(self.last.0, &self.last.1, widths, &mut self.out);
        write_unsigned(block, &mut self.out);
        write_signed((end - block) as i64 - WIDTH_BASE, &mut self.out);
        if covered.is_live() {
            self.out.push(0);
        } else {
            self.out.push(1);
            write_deletion(covered, &mut self.out);
        }
        if self.out.len() > self.grown_at {
            self.size *= 2;
            self.grown_at += MAX_BYTES;
        }
    }

    /// The partition ends at `end`, including its last byte. Returns the promoted index; empty if
    /// there is only one block.
    pub fn finish(&mut self, end: u64, header: u64, deletion: Tombstone, widths: &[Option<usize>]) -> Vec<u8> {
        self.close(end, Tombstone::LIVE, widths);
        self.last = (marker::CLUSTERING, Clustering::EMPTY);
        if self.offsets.len() < 2 {
            return Vec::new();
        }
        debug_assert!(header < end, "the blocks of a partition follow its header");
        debug_assert!(self.offsets.is_sorted_by(|a, b| a < b), "the offsets of blocks ascend");
        let mut out = Vec::with_capacity(32 + self.out.len() + 4 * self.offsets.len());
        write_unsigned(header, &mut out);
        write_deletion(deletion, &mut out);
        write_unsigned(self.offsets.len() as u64, &mut out);
        out.extend_from_slice(&self.out);
        out.extend(self.offsets.iter().flat_map(|offset| offset.to_be_bytes()));
        out
    }

    pub fn memory_bytes(&self) -> usize {
        self.out.capacity() + self.offsets.capacity() * 4
    }
}

/// The prefix was written to Data.db before, so its lengths are right.
fn write_position(kind: u8, key: &Clustering, widths: &[Option<usize>], out: &mut Vec<u8>) {
    out.push(kind);
    let row = kind == marker::CLUSTERING;
    if !row {
        out.extend_from_slice(&(key.len() as u16).to_be_bytes());
    }
    let written = prefix::write(&key.0, widths, row, out);
    debug_assert!(written.is_ok(), "this prefix was written to Data.db before");
}
