//! Collects the statistics of an sstable while it is written.

use super::stats::Stats;
use model::key::{Clustering, ClusteringCut, PositionRef};
use model::row::{Cell, Marker, Row, State};
use model::schema::ClusteringOrder;
use model::time::{NO_DELETION_TIME, Seconds, Timestamp, Tombstone};
use std::cmp::Ordering;

/// The statistics so far.
#[derive(Debug)]
pub(crate) struct Collector {
    pub stats: Stats,
    order: ClusteringOrder,
    /// Cells of the current partition.
    cells: u64,
    least: Option<(Clustering, i8)>,
    greatest: Option<(Clustering, i8)>,
    /// First and last position of the current partition.
    first: Option<(Clustering, i8)>,
    last: Option<(Clustering, i8)>,
    /// A partition deletion covers every position.
    unbounded: bool,
}

impl Collector {
    pub fn new(order: ClusteringOrder) -> Self {
        Collector {
            stats: Stats::default(),
            order,
            cells: 0,
            least: None,
            greatest: None,
            first: None,
            last: None,
            unbounded: false,
        }
    }

    #[inline]
    fn timestamp(&mut self, timestamp: Timestamp) {
        self.stats.min_timestamp = self.stats.min_timestamp.min(timestamp);
        self.stats.max_timestamp = self.stats.max_timestamp.max(timestamp);
    }

    #[inline]
    fn deletion_time(&mut self, at: Seconds) {
        self.stats.min_deletion_time = self.stats.min_deletion_time.min(at);
        self.stats.max_deletion_time = self.stats.max_deletion_time.max(at);
        if at != NO_DELETION_TIME {
            self.stats.drop_times.add(at);
        }
    }

    #[inline]
    fn ttl(&mut self, ttl: i32) {
        self.stats.min_ttl = self.stats.min_ttl.min(ttl);
        self.stats.max_ttl = self.stats.max_ttl.max(ttl);
    }

    pub fn marker(&mut self, marker: &Marker) {
        self.timestamp(marker.timestamp);
        self.ttl(marker.ttl);
        self.deletion_time(if marker.ttl == 0 { NO_DELETION_TIME } else { marker.expiry });
    }

    pub fn tombstone(&mut self, tombstone: Tombstone) {
        if !tombstone.is_live() {
            self.timestamp(tombstone.timestamp);
            self.deletion_time(tombstone.deletion_time);
        }
    }

    #[inline]
    pub fn cell(&mut self, cell: &Cell<'_>) {
        self.cells += 1;
        self.timestamp(cell.timestamp);
        let (ttl, at) = match cell.state {
            State::Live => (0, NO_DELETION_TIME),
            State::Expiring { ttl, expiry } => (ttl, expiry),
            State::Dead { deletion_time } | State::ComplexDeletion { deletion_time } => (0, deletion_time),
        };
        self.ttl(ttl);
        self.deletion_time(at);
    }

    pub fn column_set(&mut self) {
        self.stats.columns_set += 1;
    }

    pub fn row(&mut self) {
        self.stats.rows += 1;
    }

    pub fn start_partition(&mut self, tombstone: Tombstone) {
        self.tombstone(tombstone);
        self.unbounded |= !tombstone.is_live();
    }

    /// A clustering row was written.
    #[inline]
    pub fn row_at(&mut self, key: &Clustering) {
        if self.first.is_none() {
            self.first = Some((key.clone(), 0));
        }
        self.last = Some((key.clone(), 0));
    }

    /// A marker was written.
    pub fn marker_at(&mut self, at: &ClusteringCut, from: Tombstone, to: Tombstone) {
        self.tombstone(from);
        self.tombstone(to);
        let weight = at.position().weight;
        if from.is_live() && self.first.is_none() {
            self.first = Some((at.prefix.clone(), weight));
        }
        if to.is_live() {
            self.last = Some((at.prefix.clone(), weight));
        }
    }

    pub fn end_partition(&mut self, bytes: u64) {
        self.stats.partition_sizes.add(bytes);
        self.stats.partition_cells.add(std::mem::take(&mut self.cells));
        let order = &self.order;
        let replace = |kept: &mut Option<(Clustering, i8)>, new: Option<(Clustering, i8)>, when: Ordering| {
            let position = |(prefix, weight): &(Clustering, i8)| (prefix.0.clone(), *weight);
            if let Some(new) = new {
                let better = kept.as_ref().is_none_or(|old| {
                    let ((a, x), (b, y)) = (position(&new), position(old));
                    order.compare(PositionRef { prefix: &a, weight: x }, PositionRef { prefix: &b, weight: y }) == when
                });
                if better {
                    // A copy, so that a few bytes do not keep a whole buffer of rows.
                    *kept = Some((Clustering(bytes::Bytes::copy_from_slice(&new.0.0)), new.1));
                }
            }
        };
        replace(&mut self.least, self.first.take(), Ordering::Less);
        replace(&mut self.greatest, self.last.take(), Ordering::Greater);
    }

    pub fn finish(self) -> Stats {
        let mut stats = self.stats;
        if stats.min_ttl == i32::MAX {
            stats.min_ttl = 0;
        }
        if stats.min_timestamp > stats.max_timestamp {
            (stats.min_timestamp, stats.max_timestamp) = (Timestamp::MIN, Timestamp::MAX);
        }
        if stats.max_deletion_time == Seconds::MIN {
            stats.max_deletion_time = NO_DELETION_TIME;
        }
        if !self.unbounded {
            stats.min_clustering = self.least.map_or(Clustering::EMPTY, |(prefix, _)| prefix);
            stats.max_clustering = self.greatest.map_or(Clustering::EMPTY, |(prefix, _)| prefix);
        }
        stats
    }
}

/// The least timestamp, deletion time and TTL of some fragments, as the base of stored differences.
#[derive(Debug)]
pub(crate) struct Minima {
    timestamp: Timestamp,
    deletion_time: Seconds,
    ttl: i32,
}

impl Default for Minima {
    fn default() -> Self {
        Minima { timestamp: Timestamp::MAX, deletion_time: NO_DELETION_TIME, ttl: i32::MAX }
    }
}

impl Minima {
    pub fn tombstone(&mut self, tombstone: Tombstone) {
        if !tombstone.is_live() {
            self.timestamp = self.timestamp.min(tombstone.timestamp);
            self.deletion_time = self.deletion_time.min(tombstone.deletion_time);
        }
    }

    pub fn row(&mut self, row: &Row) {
        let (marker, deletion, cells) = row.parts();
        if let Some(marker) = marker {
            self.timestamp = self.timestamp.min(marker.timestamp);
            if marker.ttl != 0 {
                self.expiring(marker.ttl, marker.expiry);
            }
        }
        self.tombstone(deletion);
        for cell in cells {
            self.timestamp = self.timestamp.min(cell.timestamp);
            match cell.state {
                State::Live => {}
                State::Expiring { ttl, expiry } => self.expiring(ttl, expiry),
                State::Dead { deletion_time } | State::ComplexDeletion { deletion_time } => {
                    self.deletion_time = self.deletion_time.min(deletion_time);
                }
            }
        }
    }

    fn expiring(&mut self, ttl: i32, expiry: Seconds) {
        self.ttl = self.ttl.min(ttl);
        self.deletion_time = self.deletion_time.min(expiry);
    }

    /// Timestamp, deletion time and TTL. A value that did not occur is the base of the format
    /// itself.
    pub fn values(&self) -> (Timestamp, Seconds, i32) {
        let none = super::header::Header::NO_MINIMA;
        (
            if self.timestamp == Timestamp::MAX { none.0 } else { self.timestamp },
            if self.deletion_time == NO_DELETION_TIME { none.1 } else { self.deletion_time },
            if self.ttl == i32::MAX { none.2 } else { self.ttl },
        )
    }
}
