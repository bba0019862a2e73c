//! Clips the rows and range tombstones of a partition to the wanted ranges. Works in both
//! directions: a reversed reader passes the reversed order and reversed ranges.
//!
//! A deletion that is open where a range begins becomes a change at the start of the range. A
//! deletion that is open at its end is closed there. So no two changes have the same position, and
//! nothing is output between ranges.

use super::batch::Batch;
use model::key::{ClusteringCut, PositionRef};
use model::range::RowRange;
use model::schema::ClusteringOrder;
use model::time::Tombstone;
use std::cmp::Ordering;
use std::rc::Rc;

/// A position relative to the ranges.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Side {
    /// Before the current range.
    Before,
    /// In the current range.
    Inside,
    /// After the last range.
    Done,
}

/// The state of the clipping of one partition.
#[derive(Debug)]
pub(crate) struct Clip {
    ranges: Rc<Vec<RowRange>>,
    current: usize,
    entered: bool,
    /// The deletion that is open in the file at this position.
    open: Tombstone,
    /// The deletion that is open in the output at this position.
    shown: Tombstone,
    /// Whether changes that change nothing are output.
    pub every_change: bool,
}

/// Sorts ranges, joins adjacent ranges, and drops empty ones.
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
    /// `ranges` are normalised and in reading order.
    pub fn new(ranges: Rc<Vec<RowRange>>) -> Self {
        Clip { ranges, current: 0, entered: false, open: Tombstone::LIVE, shown: Tombstone::LIVE, every_change: false }
    }

    /// The range that positions are compared with now.
    pub fn range(&self) -> Option<&RowRange> {
        self.ranges.get(self.current)
    }

    /// The index of that range.
    pub fn current(&self) -> usize {
        self.current
    }

    /// Whether that range has begun.
    pub fn entered(&self) -> bool {
        self.entered
    }

    /// The reader continues at another position, where this deletion is open.
    pub fn jump(&mut self, open: Tombstone) {
        self.open = open;
    }

    fn show(&mut self, at: &ClusteringCut, tombstone: Tombstone, batch: &mut Batch) {
        if self.shown != tombstone {
            self.shown = tombstone;
            batch.push_change(at, tombstone);
        }
    }

    /// Finds where a position is. Positions must ascend in reading order. `position` is called
    /// again after something was appended to the batch.
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
            // In both directions, the cut of an open end has no prefix.
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

    /// The deletion changes at a cut that [`Clip::advance`] found to be on this side. True if the
    /// change must be output.
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
