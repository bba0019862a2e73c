//! Cutting a partition's rows and range deletions to the wanted ranges. Works in either direction: a reversed reader gives
//! it the reversed order and reversed ranges.
//!
//! A deletion that is open where a range begins becomes a change at the range's start; one that is open at its end is closed
//! there. So no two changes stand at the same place, and what lies between ranges says nothing.

use super::batch::Batch;
use model::key::{ClusteringCut, PositionRef};
use model::range::RowRange;
use model::schema::ClusteringOrder;
use model::time::Tombstone;
use std::cmp::Ordering;
use std::rc::Rc;

/// Where a position lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Side {
    /// Before the current range.
    Before,
    /// In it.
    Inside,
    /// Behind the last range.
    Done,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Clip {
    ranges: Rc<Vec<RowRange>>,
    current: usize,
    entered: bool,
    /// What is deleted here.
    open: Tombstone,
    /// What those who read the output take to be deleted here.
    shown: Tombstone,
    /// Whether changes show that change nothing.
    pub every_change: bool,
}

/// Sorts ranges, joins those that touch, and drops empty ones.
pub(crate) fn normalise(order: &ClusteringOrder, ranges: &[RowRange]) -> Vec<RowRange> {
    let mut ranges: Vec<RowRange> = ranges.iter().filter(|range| !range.is_empty(order)).cloned().collect();
    if ranges.len() > 1 {
        ranges.sort_by(|a, b| a.start.cmp(order, &b.start));
        ranges.dedup_by(|later, kept| {
            let touch = later.start.cmp(order, &kept.end) != Ordering::Greater;
            if touch && later.end.cmp(order, &kept.end) == Ordering::Greater {
                kept.end = later.end.clone();
            }
            touch
        });
    }
    ranges
}

impl Clip {
    /// Normalised ranges in the order of reading.
    pub fn new(ranges: Rc<Vec<RowRange>>) -> Self {
        Clip { ranges, current: 0, entered: false, open: Tombstone::LIVE, shown: Tombstone::LIVE, every_change: false }
    }

    /// The range that positions are compared with now.
    pub fn range(&self) -> Option<&RowRange> {
        self.ranges.get(self.current)
    }

    /// The number of that range.
    pub fn current(&self) -> usize {
        self.current
    }

    /// Whether that range has begun.
    pub fn entered(&self) -> bool {
        self.entered
    }

    /// Reading goes on elsewhere, where this is deleted.
    pub fn jump(&mut self, open: Tombstone) {
        self.open = open;
    }

    fn show(&mut self, at: &ClusteringCut, tombstone: Tombstone, batch: &mut Batch) {
        if self.shown != tombstone {
            self.shown = tombstone;
            batch.push_change(at, tombstone);
        }
    }

    /// Says where a position lies; positions must ascend in the order of reading. `position` is asked of the batch anew after
    /// something was appended to it.
    #[inline]
    pub fn advance(
        &mut self,
        order: &ClusteringOrder,
        batch: &mut Batch,
        position: impl Fn(&Batch) -> PositionRef<'_>,
    ) -> Side {
        loop {
            let Some(range) = self.ranges.get(self.current) else { return Side::Done };
            if !self.entered {
                if order.compare(position(batch), range.start.position()) != Ordering::Greater {
                    return Side::Before;
                }
                self.entered = true;
                let ranges = self.ranges.clone();
                self.show(&ranges[self.current].start, self.open, batch);
                continue;
            }
            // Whatever the direction, the cut of an open end has no prefix.
            if range.end.prefix.is_empty() || order.compare(position(batch), range.end.position()) == Ordering::Less {
                return Side::Inside;
            }
            self.leave(batch);
        }
    }

    fn leave(&mut self, batch: &mut Batch) {
        let ranges = self.ranges.clone();
        self.show(&ranges[self.current].end, Tombstone::LIVE, batch);
        self.current += 1;
        self.entered = false;
    }

    /// The deletion changes at a cut that [`Clip::advance`] found to be on this side. True if the change is to be shown.
    pub fn change(&mut self, side: Side, to: Tombstone) -> bool {
        self.open = to;
        let shown = side == Side::Inside && (self.shown != to || self.every_change);
        if shown {
            self.shown = to;
        }
        shown
    }

    /// The partition ends.
    pub fn finish(&mut self, batch: &mut Batch) {
        if self.entered && self.current < self.ranges.len() {
            self.leave(batch);
        }
    }
}
