//! A batch of fragments: decoded into one buffer, of which the fragments become slices when the
//! batch is output.
//!
//! So there is one allocation per batch instead of two per row. A fragment that is kept for long
//! keeps the buffer of its batch (about 32 KiB).

use crate::large_reads;
use bytes::Bytes;
use model::fragment::Fragment;
use model::key::{Clustering, ClusteringCut, DecoratedKey, PositionRef};
use model::row::Row;
use model::time::Tombstone;
use model::token::Token;
use std::collections::VecDeque;
use std::ops::Range;

/// After a batch of this many bytes, another one probably follows.
const LARGE: usize = 16 << 10;

/// A fragment whose bytes are in the batch's buffer.
#[derive(Debug, Clone)]
pub(crate) enum Item {
    Start { token: Token, key: Range<usize>, tombstone: Tombstone },
    Static(Range<usize>),
    Row { key: Range<usize>, row: Range<usize> },
    Change { prefix: Range<usize>, after: bool, tombstone: Tombstone },
    End,
}

/// A batch of fragments.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    pub arena: Vec<u8>,
    pub items: Vec<Item>,
}

impl Batch {
    /// The approximate number of bytes of the fragments.
    pub fn weight(&self) -> usize {
        self.arena.len() + self.items.len() * std::mem::size_of::<Fragment>()
    }

    /// Appends bytes. Returns their range.
    pub fn push_bytes(&mut self, bytes: &[u8]) -> Range<usize> {
        let start = self.arena.len();
        self.arena.extend_from_slice(bytes);
        start..self.arena.len()
    }

    /// Appends a change of the deletion at a cut.
    pub fn push_change(&mut self, at: &ClusteringCut, tombstone: Tombstone) {
        let prefix = self.push_bytes(&at.prefix.0);
        self.items.push(Item::Change { prefix, after: at.after, tombstone });
    }

    /// The position of a row or change.
    pub fn position(&self, prefix: &Range<usize>, weight: i8) -> PositionRef<'_> {
        PositionRef { prefix: &self.arena[prefix.clone()], weight }
    }

    /// Outputs all fragments.
    pub fn flush(&mut self, out: &mut VecDeque<Fragment>) {
        if self.items.is_empty() {
            self.arena.clear();
            return;
        }
        let used = self.arena.len();
        // After a full batch, another one follows. With its final capacity it need not be copied as
        // it grows. A large row says nothing about the next batch.
        let next =
            if (LARGE..large_reads::LARGE).contains(&used) { Vec::with_capacity(used + used / 4) } else { Vec::new() };
        let bytes = Bytes::from(std::mem::replace(&mut self.arena, next));
        let slice = |range: Range<usize>| if range.is_empty() { Bytes::new() } else { bytes.slice(range) };
        out.reserve(self.items.len());
        for item in self.items.drain(..) {
            out.push_back(match item {
                Item::Start { token, key, tombstone } => {
                    Fragment::PartitionStart { key: DecoratedKey { token, key: slice(key) }, tombstone }
                }
                Item::Static(row) => Fragment::Static(Row(slice(row))),
                Item::Row { key, row } => Fragment::Row { key: Clustering(slice(key)), row: Row(slice(row)) },
                Item::Change { prefix, after, tombstone } => {
                    Fragment::Change { at: ClusteringCut { prefix: Clustering(slice(prefix)), after }, tombstone }
                }
                Item::End => Fragment::PartitionEnd,
            });
        }
    }

    /// Drops everything.
    pub fn clear(&mut self) {
        self.arena.clear();
        self.items.clear();
    }
}
