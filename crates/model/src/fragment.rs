//! Fragments: the steps of an ordered stream of partitions, which every reader yields.
//!
//! A stream is, per partition in token order: `PartitionStart`, at most one `Static`, then rows and range tombstone changes by
//! position, then `PartitionEnd`. A `Change` says which deletion covers what follows, until the next one; at `PartitionEnd` none
//! is open. Two changes never stand at the same place. A reversed reader yields rows in the opposite order, with reversed cuts.

use crate::key::{Clustering, ClusteringCut, DecoratedKey, PositionRef};
use crate::row::Row;
use crate::time::Tombstone;

/// One step of a stream. Owns what it holds (reference-counted slices), so a suspended reader can keep it.
#[derive(Clone, PartialEq, Debug)]
pub enum Fragment {
    /// A partition begins.
    PartitionStart {
        /// Its key.
        key: DecoratedKey,
        /// Its deletion.
        tombstone: Tombstone,
    },
    /// The static row; never empty.
    Static(Row),
    /// A clustering row.
    Row {
        /// Its full clustering key.
        key: Clustering,
        /// Its content.
        row: Row,
    },
    /// The open range deletion changes.
    Change {
        /// From here on ...
        at: ClusteringCut,
        /// ... this deletion holds; live for none.
        tombstone: Tombstone,
    },
    /// The partition ends.
    PartitionEnd,
}

impl Fragment {
    /// The place among rows, of rows and changes.
    pub fn position(&self) -> Option<PositionRef<'_>> {
        match self {
            Fragment::Row { key, .. } => Some(PositionRef::row(key)),
            Fragment::Change { at, .. } => Some(at.position()),
            _ => None,
        }
    }

    /// About how many bytes it holds.
    pub fn weight(&self) -> usize {
        std::mem::size_of::<Fragment>()
            + match self {
                Fragment::PartitionStart { key, .. } => key.key.len(),
                Fragment::Static(row) => row.len(),
                Fragment::Row { key, row } => key.0.len() + row.len(),
                Fragment::Change { at, .. } => at.prefix.0.len(),
                Fragment::PartitionEnd => 0,
            }
    }
}
