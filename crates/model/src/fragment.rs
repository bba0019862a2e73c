//! Fragments: the elements of an ordered stream of partitions, which every reader yields.
//!
//! For each partition, in token order, a stream has a `PartitionStart`, at most one `Static`, rows
//! and range tombstone changes by position, and a `PartitionEnd`. A `Change` sets the range
//! tombstone that covers what follows, until the next one. At `PartitionEnd` none is open. Two
//! changes never have the same position. A reversed reader yields rows in descending order, with
//! reversed cuts.

use crate::key::{Clustering, ClusteringCut, DecoratedKey, PositionRef};
use crate::row::Row;
use crate::time::Tombstone;

/// An element of a stream. It owns its contents (reference-counted slices), so a suspended reader
/// can keep it.
#[derive(Clone, PartialEq, Debug)]
pub enum Fragment {
    /// A partition begins.
    PartitionStart {
        /// Its key.
        key: DecoratedKey,
        /// Its tombstone.
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
    /// The open range tombstone changes.
    Change {
        /// The position from which ...
        at: ClusteringCut,
        /// ... this tombstone covers rows; live for none.
        tombstone: Tombstone,
    },
    /// The partition ends.
    PartitionEnd,
}

impl Fragment {
    /// The position of a row or change.
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

/// Checks that fragments come in the order of a stream: starts, static rows, rows, changes and
/// ends. It does not compare keys.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum StreamOrder {
    /// Before a partition.
    #[default]
    Between,
    /// After the start of a partition.
    Head,
    /// After its static row, or in its rows.
    Rows,
}

impl StreamOrder {
    /// Takes the next fragment. False if it must not come here.
    pub fn take(&mut self, fragment: &Fragment) -> bool {
        *self = match (fragment, *self) {
            (Fragment::PartitionStart { .. }, StreamOrder::Between) => StreamOrder::Head,
            (Fragment::Static(_), StreamOrder::Head) => StreamOrder::Rows,
            (Fragment::Row { .. } | Fragment::Change { .. }, StreamOrder::Head | StreamOrder::Rows) => {
                StreamOrder::Rows
            }
            (Fragment::PartitionEnd, StreamOrder::Head | StreamOrder::Rows) => StreamOrder::Between,
            _ => return false,
        };
        true
    }
}
