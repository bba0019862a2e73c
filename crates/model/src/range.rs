//! Ranges of partitions and of rows, as pairs of cuts.

use crate::key::{Clustering, ClusteringCut, DecoratedKey, RingCut};
use crate::schema::ClusteringOrder;
use crate::token::Token;
use std::cmp::Ordering;

/// The partitions between two cuts.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct PartitionRange {
    /// Where it begins.
    pub start: RingCut,
    /// Where it ends.
    pub end: RingCut,
}

impl PartitionRange {
    /// Every partition.
    pub const FULL: PartitionRange = PartitionRange { start: RingCut::MIN, end: RingCut::MAX };

    /// One partition.
    pub fn singular(key: &DecoratedKey) -> Self {
        PartitionRange { start: RingCut::before_key(key), end: RingCut::after_key(key) }
    }

    /// The tokens in `(first, last]`: the range of a tablet.
    pub fn tokens(first_exclusive: Token, last_inclusive: Token) -> Self {
        let start =
            if first_exclusive == Token(i64::MIN) { RingCut::MIN } else { RingCut::after_token(first_exclusive) };
        debug_assert!(first_exclusive <= last_inclusive, "a range of tokens does not wrap around");
        PartitionRange { start, end: RingCut::after_token(last_inclusive) }
    }

    /// The one key, if the range is exactly one partition.
    pub fn singular_key(&self) -> Option<DecoratedKey> {
        let token = self.singular_token()?;
        self.start.key.clone().map(|key| DecoratedKey { token, key })
    }

    /// The token of the one key, if the range is exactly one partition.
    pub fn singular_token(&self) -> Option<Token> {
        match (&self.start, &self.end) {
            (RingCut { token, key: Some(a), after: false }, RingCut { key: Some(b), after: true, .. }) if a == b => {
                Some(*token)
            }
            _ => None,
        }
    }

    /// Whether the key is in the range.
    pub fn contains(&self, key: &DecoratedKey) -> bool {
        self.start.cmp_key(key.token, &key.key) == Ordering::Less
            && self.end.cmp_key(key.token, &key.key) == Ordering::Greater
    }

    /// Whether no key can be in the range.
    pub fn is_empty(&self) -> bool {
        self.start >= self.end
    }

    /// The partitions in both ranges; `None` if there are none.
    pub fn intersection(&self, other: &PartitionRange) -> Option<PartitionRange> {
        let start = self.start.clone().max(other.start.clone());
        let end = self.end.clone().min(other.end.clone());
        let range = PartitionRange { start, end };
        (!range.is_empty()).then_some(range)
    }
}

/// The rows between two cuts, in reading order. A reversed reader has reversed cuts.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct RowRange {
    /// Where it begins.
    pub start: ClusteringCut,
    /// Where it ends.
    pub end: ClusteringCut,
}

impl RowRange {
    /// Every row.
    pub const FULL: RowRange = RowRange { start: ClusteringCut::START, end: ClusteringCut::END };

    /// Everything that begins with a prefix; a single row for a full key.
    pub fn prefix(prefix: Clustering) -> Self {
        RowRange { start: ClusteringCut::before(prefix.clone()), end: ClusteringCut::after(prefix) }
    }

    /// Whether the range contains all rows.
    pub fn is_full(&self) -> bool {
        self == &RowRange::FULL
    }

    /// Whether the row is in the range.
    pub fn contains(&self, order: &ClusteringOrder, row: &Clustering) -> bool {
        self.start.cmp_row(order, row) == Ordering::Less && self.end.cmp_row(order, row) == Ordering::Greater
    }

    /// Whether no row can be in the range.
    pub fn is_empty(&self, order: &ClusteringOrder) -> bool {
        self.start.cmp(order, &self.end) != Ordering::Less
    }

    /// The same rows in the order of a reversed reader.
    pub fn reversed(self) -> Self {
        RowRange { start: self.end.reversed(), end: self.start.reversed() }
    }
}

/// The rows that a reader yields of each partition.
#[derive(Clone, PartialEq, Debug)]
pub struct Slice {
    /// The wanted rows, in the table's own order (never reversed), without overlaps. Empty: no
    /// rows.
    pub rows: Vec<RowRange>,
    /// Whether the static row is wanted.
    pub static_row: bool,
    /// Whether rows come in descending order.
    pub reversed: bool,
    /// One partition with other wanted rows: the one in which the previous page ended.
    pub resume: Option<Resume>,
}

/// The requested part of the partition in which the previous page ended.
#[derive(Clone, PartialEq, Debug)]
pub struct Resume {
    /// The partition.
    pub key: DecoratedKey,
    /// The wanted rows, instead of [`Slice::rows`].
    pub rows: Vec<RowRange>,
    /// Whether its static row is wanted.
    pub static_row: bool,
}

impl Slice {
    /// Everything, in the table's order.
    pub fn full() -> Self {
        Slice { rows: vec![RowRange::FULL], static_row: true, reversed: false, resume: None }
    }

    /// Whether the wanted rows are in the table's order, and none is wanted twice.
    pub fn is_in_order(&self, order: &ClusteringOrder) -> bool {
        let are_apart = |pair: &[RowRange]| pair[0].end.cmp(order, &pair[1].start) != Ordering::Greater;
        let resumed = self.resume.as_ref().map_or(&[][..], |resume| &resume.rows);
        self.rows.windows(2).chain(resumed.windows(2)).all(are_apart)
    }
    /// The rows wanted of this partition, and whether its static row is.
    pub fn of(&self, key: &DecoratedKey) -> (&[RowRange], bool) {
        match &self.resume {
            Some(resume) if resume.key == *key => (&resume.rows, resume.static_row),
            _ => (&self.rows, self.static_row),
        }
    }
}
