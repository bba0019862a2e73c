//! The blocks from which a memtable's rows are cut. They are freed entirely with the memtable.
//!
//! So these rows are not beside those of other memtables. With an allocation for each row, a
//! memtable that stays keeps the allocator's pages of flushed ones resident. Measured: 81 MiB of
//! rows of 10 KiB in 540 MiB.

use super::{own_clustering, own_row};
use bytes::{Bytes, BytesMut};
use model::key::Clustering;
use model::row::Row;

/// The first block of a memtable, in bytes.
const FIRST_BLOCK: usize = 2 << 10;
/// The largest block, in bytes.
const LARGEST_BLOCK: usize = rt::allocator::LEAST_SEPARATE;
/// A block after the first has at most this fraction of the memtable's bytes.
const GROWTH: usize = 4;
/// An allocation larger than this fraction of a block gets memory of its own.
const SHARE: usize = 8;

/// The blocks of a memtable, and a buffer to merge in.
#[derive(Debug, Default)]
pub(crate) struct Arena {
    block: BytesMut,
    /// Bytes of all blocks, and of allocations that have their own memory.
    total: usize,
    /// For one merge at a time.
    pub scratch: Vec<u8>,
}

/// A row of a memtable.
#[derive(Clone, Debug)]
pub(crate) struct OwnRow {
    pub key: Clustering,
    pub row: Row,
    /// It is cut from a block: its memory is not freed before the memtable's.
    pub is_cut: bool,
}

impl Arena {
    /// A block with room for `len` bytes. `None`: the allocation gets its own memory.
    pub fn block(&mut self, len: usize) -> Option<&mut BytesMut> {
        // The rest of the last block is abandoned, at most an eighth of it.
        if self.block.capacity() < len {
            let next = (self.total / GROWTH).max(FIRST_BLOCK);
            let next = (1 << next.ilog2()).min(LARGEST_BLOCK);
            if len > next / SHARE {
                self.total += len;
                return None;
            }
            self.total += next;
            self.block = BytesMut::with_capacity(next);
        }
        Some(&mut self.block)
    }

    /// Copies a row, so that it does not keep a whole mutation alive. A row without clustering key
    /// has its own memory: it is in the row cache, or its partition is rarely more than this row.
    pub fn own(&mut self, key: &Clustering, row: &Row) -> OwnRow {
        if !key.0.is_empty()
            && let Some(block) = self.block(key.0.len() + row.len())
        {
            return OwnRow { key: Clustering(cut(block, &key.0)), row: Row(cut(block, &row.0)), is_cut: true };
        }
        OwnRow { key: own_clustering(key), row: own_row(row), is_cut: false }
    }
}

/// A copy in a block that has room for it.
fn cut(block: &mut BytesMut, bytes: &[u8]) -> Bytes {
    debug_assert!(block.capacity() >= bytes.len(), "the block has room");
    block.extend_from_slice(bytes);
    block.split().freeze()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_rows_are_cut_from_blocks_once_the_memtable_is_large() {
        let mut arena = Arena::default();
        let key = Clustering::from_components([&b"key"[..]]);
        let row = Row(Bytes::from(vec![1; 10 << 10]));
        let alone = (0..1_000).filter(|_| !arena.own(&key, &row).is_cut).count();
        assert!((1..60).contains(&alone), "{alone}");
    }

    #[test]
    fn blocks_grow_with_the_memtable_and_hold_most_of_it() {
        let mut arena = Arena::default();
        let key = Clustering::from_components([&b"key"[..]]);
        let mut used = 0;
        for n in 1..20_000usize {
            let row = Row(Bytes::from(vec![n as u8; 100 + n % 400]));
            let own = arena.own(&key, &row);
            assert!(own.key == key && own.row == row);
            used += if own.is_cut { own.key.0.len() + own.row.len() } else { 0 };
            assert!(arena.total <= FIRST_BLOCK + used * 8 / 5, "{} bytes of blocks for {used}", arena.total);
        }
        assert!(used > 5 << 20, "{used}");
        let large = Row(Bytes::from(vec![1; LARGEST_BLOCK]));
        assert!(!arena.own(&key, &large).is_cut);
        assert!(!arena.own(&Clustering::EMPTY, &Row(Bytes::from_static(b"row"))).is_cut);
    }
}
