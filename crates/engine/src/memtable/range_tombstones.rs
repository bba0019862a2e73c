//! The range deletions of one partition as a normalised list of changes: from each cut on, one deletion holds until the next.
//!
//! Invariant: cuts strictly ascend, neighbours differ, the last change is to "live". So the list is at once the stream of
//! [`model::fragment::Fragment::Change`]s that a reader yields, however the deletions overlapped when they came in.

use model::key::ClusteringCut;
use model::mutation::RangeTombstone;
use model::schema::ClusteringOrder;
use model::time::Tombstone;
use std::cmp::Ordering;

/// From here on this deletion holds.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Change {
    pub at: ClusteringCut,
    pub tombstone: Tombstone,
}

/// What one change costs beside the bytes of its prefix.
const CHANGE_OVERHEAD: usize = std::mem::size_of::<Change>() + super::ALLOCATION;

#[derive(Clone, Debug, Default)]
pub(crate) struct RangeTombstones {
    changes: Vec<Change>,
}

impl RangeTombstones {
    pub fn changes(&self) -> &[Change] {
        &self.changes
    }

    /// The changes as a reversed reader meets them.
    pub fn reversed(&self) -> RangeTombstones {
        let before = |i: usize| i.checked_sub(1).map_or(Tombstone::LIVE, |j| self.changes[j].tombstone);
        let changes = (0..self.changes.len())
            .rev()
            .map(|i| Change { at: self.changes[i].at.clone().reversed(), tombstone: before(i) })
            .collect();
        RangeTombstones { changes }
    }

    /// What holds just after `cut`, and the index of the first change behind it.
    pub fn open_at(&self, order: &ClusteringOrder, cut: &ClusteringCut) -> (Tombstone, usize) {
        let next = self.changes.partition_point(|change| change.at.cmp(order, cut) != Ordering::Greater);
        (self.open_before(next), next)
    }

    fn open_before(&self, index: usize) -> Tombstone {
        index.checked_sub(1).map_or(Tombstone::LIVE, |i| self.changes[i].tombstone)
    }

    /// Adds a deletion; returns by how many bytes the list grew (negative: shrank).
    pub fn insert(&mut self, order: &ClusteringOrder, range: &RangeTombstone) -> isize {
        if range.tombstone.is_live() || range.start.cmp(order, &range.end) != Ordering::Less {
            return 0;
        }
        let low = self.changes.partition_point(|change| change.at.cmp(order, &range.start) == Ordering::Less);
        let mut high = self.changes.partition_point(|change| change.at.cmp(order, &range.end) == Ordering::Less);
        let mut after = self.open_before(high);
        let mut prev = self.open_before(low);
        let mut fresh = Vec::with_capacity(high - low + 2);
        let mut push = |at: ClusteringCut, tombstone: Tombstone| {
            if tombstone != prev {
                prev = tombstone;
                fresh.push(Change { at, tombstone });
            }
        };
        let starts_here = self.changes.get(low).is_some_and(|change| change.at.cmp(order, &range.start).is_eq());
        if !starts_here {
            push(owned(&range.start), self.open_before(low).max(range.tombstone));
        }
        for change in &self.changes[low..high] {
            push(change.at.clone(), change.tombstone.max(range.tombstone));
        }
        if let Some(change) = self.changes.get(high)
            && change.at.cmp(order, &range.end).is_eq()
        {
            after = change.tombstone;
            high += 1;
        }
        push(owned(&range.end), after);
        let before: usize = self.changes[low..high].iter().map(weight).sum();
        let now: usize = fresh.iter().map(weight).sum();
        self.changes.splice(low..high, fresh);
        now as isize - before as isize
    }

    /// The least timestamp of its deletions.
    pub fn min_timestamp(&self) -> Option<i64> {
        self.changes.iter().filter(|change| !change.tombstone.is_live()).map(|change| change.tombstone.timestamp).min()
    }
}

/// A cut with its own bytes, so that it does not keep a mutation's whole buffer alive.
fn owned(cut: &ClusteringCut) -> ClusteringCut {
    ClusteringCut { prefix: super::own_clustering(&cut.prefix), after: cut.after }
}

fn weight(change: &Change) -> usize {
    CHANGE_OVERHEAD + change.at.prefix.0.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::key::Clustering;
    use model::types::CqlType;
    use proptest::prelude::*;

    fn order() -> ClusteringOrder {
        ClusteringOrder::new([(CqlType::Int, false)])
    }

    fn cut(n: i32, after: bool) -> ClusteringCut {
        ClusteringCut { prefix: Clustering::from_components([&n.to_be_bytes()[..]]), after }
    }

    /// What the list says of a row.
    fn at(list: &RangeTombstones, n: i32) -> Tombstone {
        let row = cut(n, false).prefix;
        let order = order();
        let next = list.changes.partition_point(|change| change.at.cmp_row(&order, &row) == Ordering::Less);
        list.open_before(next)
    }

    proptest! {
        #[test]
        fn any_overlap_is_normalised(ranges in prop::collection::vec((0i32..20, any::<bool>(), 0i32..20, any::<bool>(), 1i64..6), 0..30)) {
            let order = order();
            let mut list = RangeTombstones::default();
            let mut bytes = 0isize;
            for &(a, a_after, b, b_after, timestamp) in &ranges {
                let range = RangeTombstone { start: cut(a, a_after), end: cut(b, b_after), tombstone: Tombstone::new(timestamp, 7) };
                bytes += list.insert(&order, &range);
            }
            prop_assert_eq!(bytes, list.changes.iter().map(weight).sum::<usize>() as isize);
            for n in -1..21 {
                let row = cut(n, false).prefix;
                let wanted = ranges.iter().filter(|(a, a_after, b, b_after, _)| {
                    cut(*a, *a_after).cmp_row(&order, &row) == Ordering::Less && cut(*b, *b_after).cmp_row(&order, &row) == Ordering::Greater
                }).fold(Tombstone::LIVE, |t, r| t.max(Tombstone::new(r.4, 7)));
                prop_assert_eq!(at(&list, n), wanted, "row {}", n);
            }
            for pair in list.changes.windows(2) {
                prop_assert_eq!(pair[0].at.cmp(&order, &pair[1].at), Ordering::Less);
                prop_assert_ne!(pair[0].tombstone, pair[1].tombstone);
            }
            prop_assert!(list.changes.last().is_none_or(|change| change.tombstone.is_live()));
            let twice = list.reversed().reversed();
            prop_assert_eq!(twice.changes, list.changes);
        }
    }
}
