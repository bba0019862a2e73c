//! The rules of deletion and expiry for merged data: for readers ([`live_cells`]), and for
//! compaction and repair ([`Compactor`]).

use crate::fragment::Fragment;
use crate::id::ColumnId;
use crate::row::{Cell, Cells, Marker, Row, RowBuilder, State};
use crate::schema::TableSchema;
use crate::time::{Seconds, Timestamp, Tombstone};

/// The deletion that covers a position in a stream: the partition's deletion, or the deletion of an
/// open range if it is stronger.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cover {
    partition: Tombstone,
    range: Tombstone,
}

impl Cover {
    /// A partition begins.
    pub fn start(&mut self, partition: Tombstone) {
        *self = Cover { partition, range: Tombstone::LIVE };
    }

    /// The open range tombstone changes.
    pub fn change(&mut self, range: Tombstone) {
        self.range = range;
    }

    /// The deletion that covers a clustering row here.
    pub fn row(&self) -> Tombstone {
        self.partition.max(self.range)
    }

    /// The deletion that covers the static row. It is always the partition's deletion.
    pub fn static_row(&self) -> Tombstone {
        self.partition
    }

    /// The open range tombstone.
    pub fn range(&self) -> Tombstone {
        self.range
    }
}

/// The cells that a reader at `now` sees in a row that `cover` covers, without copying.
#[inline]
pub fn live_cells(row: &Row, cover: Tombstone, now: Seconds) -> LiveCells<'_> {
    let (_, deletion, cells) = row.parts();
    LiveCells { cells, cover: cover.max(deletion), complex: None, now }
}

/// The marker of a row, if a reader at `now` sees the row by it.
#[inline]
pub fn live_marker(row: &Row, cover: Tombstone, now: Seconds) -> Option<Marker> {
    let (marker, deletion, _) = row.parts();
    marker.filter(|marker| marker.is_live(now) && !cover.max(deletion).deletes(marker.timestamp))
}

/// Whether a reader at `now` sees a row.
pub fn is_live(row: &Row, cover: Tombstone, now: Seconds) -> bool {
    live_marker(row, cover, now).is_some() || live_cells(row, cover, now).next().is_some()
}

/// The iterator of [`live_cells`].
pub struct LiveCells<'a> {
    cells: Cells<'a>,
    cover: Tombstone,
    complex: Option<(ColumnId, Tombstone)>,
    now: Seconds,
}

impl<'a> Iterator for LiveCells<'a> {
    type Item = Cell<'a>;

    #[inline]
    fn next(&mut self) -> Option<Cell<'a>> {
        loop {
            let cell = self.cells.next()?;
            if let Some(tombstone) = cell.as_complex_deletion() {
                self.complex = Some((cell.column, tombstone));
                continue;
            }
            if !cell.is_live(self.now) || self.cover.deletes(cell.timestamp) {
                continue;
            }
            if self.complex.is_some_and(|(column, by)| column == cell.column && by.deletes(cell.timestamp)) {
                continue;
            }
            return Some(cell);
        }
    }
}

/// When tombstones may be purged.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// The time, in seconds.
    pub now: Seconds,
    /// Tombstones older than this second are beyond their grace period.
    pub gc_before: Seconds,
}

impl Rules {
    /// The rules of a table at this time of the wall clock, in seconds.
    pub fn of(schema: &TableSchema, now: i64) -> Rules {
        let as_seconds = |at: i64| at.clamp(Seconds::MIN as i64, Seconds::MAX as i64) as Seconds;
        let gc_before = match schema.options.tombstone_gc.get("mode").map(String::as_str) {
            Some("disabled") => Seconds::MIN,
            Some("immediate") => as_seconds(now),
            // Repair does not exist yet, so `repair` means `timeout`.
            _ => as_seconds(now - i64::from(schema.options.gc_grace_seconds)),
        };
        let rules = Rules { now: as_seconds(now.max(0)), gc_before };
        debug_assert!(rules.gc_before <= rules.now, "no tombstone of the future is past its grace period");
        rules
    }
}

/// Rewrites a merged stream without covered, expired and purgeable data.
///
/// A tombstone is purged only if it was made before `gc_before` *and* its timestamp is below the
/// partition's `max_purgeable`. This limit is the least timestamp of any data for the key outside
/// of this compaction.
#[derive(Clone, Debug)]
pub struct Compactor {
    rules: Rules,
    cover: Cover,
    max_purgeable: Timestamp,
    pending: Option<Fragment>,
    emitted_range: Tombstone,
}

impl Compactor {
    /// A compactor by these rules.
    pub fn new(rules: Rules) -> Self {
        Compactor {
            rules,
            cover: Cover::default(),
            max_purgeable: Timestamp::MIN,
            pending: None,
            emitted_range: Tombstone::LIVE,
        }
    }

    fn purgeable(&self, tombstone: Tombstone) -> bool {
        tombstone.timestamp < self.max_purgeable && tombstone.deletion_time < self.rules.gc_before
    }

    /// Takes the next fragment. Passes the rest of it to `out`, after the start of its partition.
    /// Calls `max_purgeable` at the start of each partition.
    pub fn push(
        &mut self,
        fragment: Fragment,
        max_purgeable: impl FnOnce(&crate::key::DecoratedKey) -> Timestamp,
        mut out: impl FnMut(Fragment),
    ) {
        match fragment {
            Fragment::PartitionStart { key, tombstone } => {
                self.max_purgeable = max_purgeable(&key);
                self.cover.start(tombstone);
                self.emitted_range = Tombstone::LIVE;
                if tombstone.is_live() || self.purgeable(tombstone) {
                    self.pending = Some(Fragment::PartitionStart { key, tombstone: Tombstone::LIVE });
                } else {
                    self.pending = None;
                    out(Fragment::PartitionStart { key, tombstone });
                }
            }
            Fragment::Static(row) => {
                if let Some(row) = self.compact_row(&row, self.cover.static_row()) {
                    self.flush_start(&mut out);
                    out(Fragment::Static(row));
                }
            }
            Fragment::Row { key, row } => {
                if let Some(row) = self.compact_row(&row, self.cover.row()) {
                    self.flush_start(&mut out);
                    out(Fragment::Row { key, row });
                }
            }
            Fragment::Change { at, tombstone } => {
                self.cover.change(tombstone);
                let covered = self.cover.static_row().deletes(tombstone.timestamp);
                let kept = if covered || self.purgeable(tombstone) { Tombstone::LIVE } else { tombstone };
                if kept != self.emitted_range {
                    self.emitted_range = kept;
                    self.flush_start(&mut out);
                    out(Fragment::Change { at, tombstone: kept });
                }
            }
            Fragment::PartitionEnd => {
                if self.pending.take().is_none() {
                    out(Fragment::PartitionEnd);
                }
            }
        }
    }

    fn flush_start(&mut self, out: &mut impl FnMut(Fragment)) {
        if let Some(start) = self.pending.take() {
            out(start);
        }
    }

    /// The live part of a row under `cover`. `None` if nothing is.
    pub fn compact_row(&self, row: &Row, cover: Tombstone) -> Option<Row> {
        let (marker, deletion, cells) = row.parts();
        let all = cover.max(deletion);
        let now = self.rules.now;
        if all.is_live()
            && marker.is_none_or(|marker| marker.is_live(now))
            && cells.clone().all(|cell| cell.is_live(now))
            && (marker.is_some() || cells.clone().next().is_some())
        {
            // Most rows are unchanged.
            return Some(row.clone());
        }
        let kept_deletion =
            if cover.deletes(deletion.timestamp) || self.purgeable(deletion) { Tombstone::LIVE } else { deletion };
        // The marker dies with its cells. A reader that began before they expired may still be
        // reading; it sees all of them or nothing.
        let kept_marker = marker.map(|marker| marker.settled(now)).filter(|marker| {
            let is_purgeable =
                marker.dead_since().is_some_and(|since| self.purgeable(Tombstone::new(marker.timestamp, since)));
            !all.deletes(marker.timestamp) && !is_purgeable
        });
        let mut builder = RowBuilder::new(kept_marker, kept_deletion);
        let mut empty = kept_marker.is_none() && kept_deletion.is_live();
        let mut complex: Option<(ColumnId, Tombstone)> = None;
        for mut cell in cells {
            if all.deletes(cell.timestamp) {
                continue;
            }
            if let Some(tombstone) = cell.as_complex_deletion() {
                complex = Some((cell.column, tombstone));
                if self.purgeable(tombstone) {
                    continue;
                }
            } else {
                if complex.is_some_and(|(column, by)| column == cell.column && by.deletes(cell.timestamp)) {
                    continue;
                }
                if let State::Expiring { ttl, expiry } = cell.state
                    && expiry <= self.rules.now
                {
                    cell.state = State::Dead { deletion_time: expiry.saturating_sub(ttl) };
                    cell.value = &[];
                }
                if let State::Dead { deletion_time } = cell.state
                    && self.purgeable(Tombstone::new(cell.timestamp, deletion_time))
                {
                    continue;
                }
            }
            empty = false;
            builder.push(&cell);
        }
        let kept = (!empty).then(|| builder.finish());
        debug_assert!(kept.as_ref().is_none_or(|row| !row.is_empty()), "a row that is kept has contents");
        kept
    }
}
