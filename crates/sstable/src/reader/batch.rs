//! Fragments on their way out: decoded into one buffer, of which they become slices when the batch is handed on.
//!
//! One allocation per batch instead of two per row. Whoever keeps a fragment for long keeps its batch (some 32 KiB).

use crate::large_reads;
use bytes::Bytes;
use model::fragment::Fragment;
use model::key::{Clustering, ClusteringCut, DecoratedKey, PositionRef};
use model::row::Row;
use model::time::Tombstone;
use model::token::Token;
use std::collections::VecDeque;
use std::ops::Range;

/// A batch of this many bytes was probably not the last.
const LARGE: usize = 16 << 10;

/// A fragment whose bytes lie in the batch's buffer.
#[derive(Debug, Clone)]
pub(crate) enum Item {
    Start { token: Token, key: Range<usize>, tombstone: Tombstone },
    Static(Range<usize>),
    Row { key: Range<usize>, row: Range<usize> },
    Change { prefix: Range<usize>, after: bool, tombstone: Tombstone },
    End,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    pub arena: Vec<u8>,
    pub items: Vec<Item>,
}

impl Batch {
    /// About how many bytes the fragments hold.
    pub fn weight(&self) -> usize {
        self.arena.len() + self.items.len() * std::mem::size_of::<Fragment>()
    }

    /// Appends bytes; says where they are.
    pub fn push_bytes(&mut self, bytes: &[u8]) -> Range<usize> {
        let start = self.arena.len();
        self.arena.extend_from_slice(bytes);
        start..self.arena.len()
    }

    /// Appends a change at a cut.
    pub fn push_change(&mut self, at: &ClusteringCut, tombstone: Tombstone) {
        let prefix = self.push_bytes(&at.prefix.0);
        self.items.push(Item::Change { prefix, after: at.after, tombstone });
    }

    /// The position of a row or change.
    pub fn position(&self, prefix: &Range<usize>, weight: i8) -> PositionRef<'_> {
        PositionRef { prefix: &self.arena[prefix.clone()], weight }
    }

    /// Hands everything on.
    pub fn flush(&mut self, out: &mut VecDeque<Fragment>) {
        if self.items.is_empty() {
            self.arena.clear();
            return;
        }
        let used = self.arena.len();
        // After a full batch comes another: with room from the start it need not be copied as it grows. What one large row took is no
        // measure for what comes.
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

    /// Throws everything away.
    pub fn clear(&mut self) {
        self.arena.clear();
        self.items.clear();
    }
}
