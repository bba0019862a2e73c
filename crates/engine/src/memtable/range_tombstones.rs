//! The range deletions of one partition as a normalised list of changes: from each cut on, one
//! deletion applies until the next.
//!
//! Invariant: cuts strictly ascend, neighbours differ, the last change is to "live". So the list
//! is also the stream of [`model::fragment::Fragment::Change`]s that a reader yields, however the
//! deletions overlapped.

use model::key::ClusteringCut;
use model::mutation::RangeTombstone;
use model::schema::ClusteringOrder;
use model::time::Tombstone;
use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// From here on this deletion applies.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Change {
    pub at: ClusteringCut,
    pub tombstone: Tombstone,
}

/// The memory of one change besides the bytes of its prefix.
const CHANGE_OVERHEAD: usize = std::mem::size_of::<Change>() + super::ALLOCATION;

#[derive(Clone, Debug, Default)]
pub(crate) struct RangeTombstones {
    changes: Vec<Change>,
}

impl RangeTombstones {
    pub fn changes(&self) -> &[Change] {
        &self.changes
    }

    /// The changes in the order of a reversed reader.
    pub fn reversed(&self) -> RangeTombstones {
        let before = |i: usize| i.checked_sub(1).map_or(Tombstone::LIVE, |j| self.changes[j].tombstone);
        let changes = (0..self.changes.len())
            .rev()
            .map(|i| Change { at: self.changes[i].at.clone().reversed(), tombstone: before(i) })
            .collect();
        RangeTombstones { changes }
    }

    /// The deletion just after `cut`, and the index of the first change behind it.
    pub fn open_at(&self, order: &ClusteringOrder, cut: &ClusteringCut) -> (Tombstone, usize) {
        let next = self.changes.partition_point(|change| change.at.cmp(order, cut) != Ordering::Greater);
        (self.open_before(next), next)
    }

    fn open_before(&self, index: usize) -> Tombstone {
        index.checked_sub(1).map_or(Tombstone::LIVE, |i| self.changes[i].tombstone)
    }

    /// Adds the deletions of a mutation in one pass. Returns by how many bytes the list grew
    /// (negative: shrank).
    pub fn add(&mut self, order: &ClusteringOrder, ranges: &[RangeTombstone]) -> isize {
        let added = flatten(order, ranges);
        let Some((first, _)) = added.first() else { return 0 };
        let kept = self.changes.partition_point(|change| change.at.cmp(order, first) == Ordering::Less);
        // The deletions of the list and of the addition, at the present position.
        let (mut old, mut new) = (self.open_before(kept), Tombstone::LIVE);
        let mut rest = self.changes.split_off(kept).into_iter();
        let mut grew = 0;
        for (at, tombstone) in added {
            let before = rest.as_slice().partition_point(|change| change.at.cmp(order, at) == Ordering::Less);
            old = rest.as_slice()[..before].last().map_or(old, |change| change.tombstone);
            if new.is_live() {
                self.changes.extend(rest.by_ref().take(before));
            } else {
                for change in rest.by_ref().take(before) {
                    grew -= weight(&change) as isize;
                    grew += self.push(change.at, change.tombstone.max(new));
                }
            }
            new = tombstone;
            if rest.as_slice().first().is_some_and(|change| change.at.cmp(order, at).is_eq())
                && let Some(change) = rest.next()
            {
                old = change.tombstone;
                grew -= weight(&change) as isize;
                grew += self.push(change.at, old.max(new));
            } else {
                grew += self.push(owned(at), old.max(new));
            }
        }
        self.changes.extend(rest);
        debug_assert!(self.is_valid(order), "range deletions do not overlap, and the last one ends");
        grew
    }

    /// Whether the cuts ascend, neighbours differ, and no deletion is open at the end. Long lists
    /// are not walked: that would cost each of their mutations as much as all before it.
    fn is_valid(&self, order: &ClusteringOrder) -> bool {
        let follows = |pair: &[Change]| {
            pair[0].at.cmp(order, &pair[1].at) == Ordering::Less && pair[0].tombstone != pair[1].tombstone
        };
        self.changes.last().is_none_or(|last| last.tombstone.is_live())
            && self.changes.first().is_none_or(|first| !first.tombstone.is_live())
            && (self.changes.len() > 256 || self.changes.windows(2).all(follows))
    }
    /// Appends a change unless its deletion applies already. Returns its bytes.
    fn push(&mut self, at: ClusteringCut, tombstone: Tombstone) -> isize {
        if self.open_before(self.changes.len()) == tombstone {
            return 0;
        }
        let change = Change { at, tombstone };
        let bytes = weight(&change);
        self.changes.push(change);
        bytes as isize
    }

    /// The least timestamp of its deletions.
    pub fn min_timestamp(&self) -> Option<i64> {
        self.changes.iter().filter(|change| !change.tombstone.is_live()).map(|change| change.tombstone.timestamp).min()
    }
}

/// These deletions alone as changes: cuts ascend, neighbours differ, the last change is to "live".
fn flatten<'a>(order: &ClusteringOrder, ranges: &'a [RangeTombstone]) -> Vec<(&'a ClusteringCut, Tombstone)> {
    let deletes =
        |range: &&RangeTombstone| !range.tombstone.is_live() && range.start.cmp(order, &range.end) == Ordering::Less;
    if let [range] = ranges {
        if !deletes(&range) {
            return Vec::new();
        }
        return vec![(&range.start, range.tombstone), (&range.end, Tombstone::LIVE)];
    }
    let mut starts: Vec<&RangeTombstone> = ranges.iter().filter(deletes).collect();
    starts.sort_by(|a, b| a.start.cmp(order, &b.start));
    let mut cuts: Vec<&ClusteringCut> = starts.iter().flat_map(|range| [&range.start, &range.end]).collect();
    cuts.sort_by(|a, b| a.cmp(order, b));
    cuts.dedup_by(|a, b| a.cmp(order, b).is_eq());
    let mut starting = starts.iter().enumerate().peekable();
    // The ranges that have begun, the newest deletion on top. Ranges that have ended stay until
    // they are on top.
    let mut begun = BinaryHeap::new();
    let mut changes: Vec<(&ClusteringCut, Tombstone)> = Vec::with_capacity(cuts.len());
    let mut holds = Tombstone::LIVE;
    for at in cuts {
        while let Some((i, range)) = starting.next_if(|(_, range)| range.start.cmp(order, at).is_eq()) {
            begun.push((range.tombstone.timestamp, range.tombstone.deletion_time, i));
        }
        while begun.peek().is_some_and(|&(_, _, i)| starts[i].end.cmp(order, at) != Ordering::Greater) {
            begun.pop();
        }
        let newest = begun.peek().map_or(Tombstone::LIVE, |&(_, _, i)| starts[i].tombstone);
        if newest != holds {
            holds = newest;
            changes.push((at, newest));
        }
    }
    changes
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

    /// The deletion of a row, according to the list.
    fn at(list: &RangeTombstones, n: i32) -> Tombstone {
        let row = cut(n, false).prefix;
        let order = order();
        let next = list.changes.partition_point(|change| change.at.cmp_row(&order, &row) == Ordering::Less);
        list.open_before(next)
    }

    proptest! {
        #[test]
        fn any_overlap_is_normalised(
            mutations in prop::collection::vec(
                prop::collection::vec((0i32..20, any::<bool>(), 0i32..20, any::<bool>(), 1i64..6), 1..6),
                0..12,
            ),
        ) {
            let order = order();
            let mut list = RangeTombstones::default();
            let mut bytes = 0isize;
            for mutation in &mutations {
                let ranges: Vec<RangeTombstone> = mutation
                    .iter()
                    .map(|&(a, a_after, b, b_after, timestamp)| {
                        let (start, end) = (cut(a, a_after), cut(b, b_after));
                        RangeTombstone { start, end, tombstone: Tombstone::new(timestamp, 7) }
                    })
                    .collect();
                bytes += list.add(&order, &ranges);
            }
            let ranges: Vec<_> = mutations.concat();
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

    /// Each range encloses the next, as in a batch. Added one by one, each would visit all before
    /// it.
    #[test]
    fn many_nested_deletions_are_added_in_time() {
        const DELETIONS: i32 = 20_000;
        let order = order();
        let ranges: Vec<RangeTombstone> = (0..DELETIONS)
            .map(|i| {
                let tombstone = Tombstone::new(1 + i64::from(i), 7);
                RangeTombstone { start: cut(i, false), end: cut(2 * DELETIONS - i, false), tombstone }
            })
            .collect();
        let outwards: Vec<RangeTombstone> = ranges.iter().rev().cloned().collect();
        let begun = rt::time::now();
        let mut list = RangeTombstones::default();
        list.add(&order, &ranges);
        let bytes = list.changes.iter().map(weight).sum::<usize>();
        assert_eq!(list.add(&order, &outwards), 0);
        // Added one after the other they take minutes.
        assert!(begun.elapsed() < std::time::Duration::from_secs(10), "{:?}", begun.elapsed());
        assert_eq!(list.changes.len(), 2 * DELETIONS as usize);
        assert_eq!(list.changes.iter().map(weight).sum::<usize>(), bytes);
        assert_eq!(at(&list, DELETIONS), Tombstone::new(i64::from(DELETIONS), 7));
    }
}
