//! A memtable as a stream of fragments, without waiting.
//!
//! Each partition is read from one snapshot. Between two partitions the memtable may change. A
//! reversed slice yields reversed rows and cuts.

use super::Memtable;
use super::Stored;
use super::chunks::Cursor;
use super::partition::{Body, Partition, Rows};
use super::range_tombstones::{Change, RangeTombstones};
use crate::memtable::{Slices, Wanted};
use model::fragment::Fragment;
use model::key::{ClusteringCut, DecoratedKey};
use model::range::{PartitionRange, RowRange};
use model::schema::{ClusteringOrder, TableSchema};
use model::time::Tombstone;
use std::cmp::Ordering;
use std::collections::VecDeque;
use std::rc::Rc;

/// See the module.
pub(crate) struct MemtableSource {
    /// None for a single partition, which was taken already.
    memtable: Option<Rc<Memtable>>,
    schema: Rc<TableSchema>,
    slices: Slices,
    range: PartitionRange,
    /// The last partition that was begun.
    last: Option<DecoratedKey>,
    inside: Option<Inside>,
    finished: bool,
}

impl MemtableSource {
    pub fn new(memtable: Rc<Memtable>, schema: Rc<TableSchema>, slices: Slices, range: PartitionRange) -> Self {
        MemtableSource { memtable: Some(memtable), schema, slices, range, last: None, inside: None, finished: false }
    }

    /// A stream of one partition as it is now; `None` if the memtable has nothing of it.
    pub fn of_key(
        memtable: &Rc<Memtable>,
        schema: &Rc<TableSchema>,
        slices: &Slices,
        key: &DecoratedKey,
    ) -> Option<Self> {
        let partition = memtable.get(key)?;
        Some(Self::of_partition(Some(memtable.clone()), partition, schema, slices, key))
    }

    /// A stream of one partition that is in no memtable.
    pub fn of_stored(stored: &Stored, schema: &Rc<TableSchema>, slices: &Slices, key: &DecoratedKey) -> Self {
        Self::of_partition(None, stored.snapshot(), schema, slices, key)
    }

    fn of_partition(
        memtable: Option<Rc<Memtable>>,
        partition: Partition,
        schema: &Rc<TableSchema>,
        slices: &Slices,
        key: &DecoratedKey,
    ) -> Self {
        let mut source = MemtableSource {
            memtable,
            schema: schema.clone(),
            slices: slices.clone(),
            range: PartitionRange::singular(key),
            last: None,
            inside: None,
            finished: false,
        };
        source.inside = Some(Inside::new(key.clone(), partition, &source.schema, &source.slices));
        source.last = Some(key.clone());
        source
    }

    /// Yields fragments of about `limit` bytes; `false` when there are no more after these.
    pub fn fill(&mut self, out: &mut VecDeque<Fragment>, limit: usize) -> bool {
        let mut weight = 0;
        loop {
            if let Some(inside) = &mut self.inside {
                if !inside.fill(&self.schema, &self.slices, out, &mut weight, limit) {
                    return true;
                }
                self.inside = None;
                if self.range_is_one_key() {
                    self.finished = true;
                }
            }
            if self.finished {
                return false;
            }
            if weight >= limit {
                return true;
            }
            self.next_partitions(out, &mut weight, limit);
        }
    }

    fn range_is_one_key(&self) -> bool {
        self.last.as_ref().is_some_and(|key| {
            self.range.start.key.as_ref() == Some(&key.key)
                && self.range.end.key.as_ref() == Some(&key.key)
                && self.range.start.token == self.range.end.token
        })
    }

    /// Yields entire small partitions while they fit. Stops inside the first that is not small.
    fn next_partitions(&mut self, out: &mut VecDeque<Fragment>, weight: &mut usize, limit: usize) {
        let mut stopped = false;
        let (schema, slices) = (&self.schema, &self.slices);
        let (mut last, mut inside) = (None, None);
        let Some(memtable) = &self.memtable else {
            self.finished = true;
            return;
        };
        memtable.for_each(&self.range, self.last.as_ref(), |token, entry| {
            let key = DecoratedKey { token, key: entry.key_bytes() };
            debug_assert!(
                last.as_ref().or(self.last.as_ref()).is_none_or(|last| *last < key),
                "partitions come in order"
            );
            debug_assert!(self.range.contains(&key), "only partitions of the range are read");
            last = Some(key.clone());
            let mut next = Inside::new(key, entry.snapshot(), schema, slices);
            let complete = next.fill(schema, slices, out, weight, limit);
            if !complete {
                inside = Some(next);
            }
            stopped = !complete || *weight >= limit;
            !stopped
        });
        self.last = last.or(self.last.take());
        self.inside = inside;
        self.finished = !stopped;
    }

    /// Continues behind the current partition.
    pub fn skip_partition(&mut self) {
        debug_assert!(self.inside.is_none() || self.last.is_some(), "the partition that is read is the last begun");
        if self.inside.take().is_some() && self.range_is_one_key() {
            self.finished = true;
        }
    }
}

/// The position of a reader within a partition.
struct Inside {
    key: DecoratedKey,
    partition: Partition,
    state: State,
    wanted: Wanted,
    /// In the reader's order; none when there are no range deletions.
    changes: Option<Rc<RangeTombstones>>,
    /// The deletion of the last change that was yielded.
    open: Tombstone,
}

enum State {
    Start,
    Static,
    /// Before the range of this index.
    Range(usize),
    /// Within the range of this index.
    Rows {
        range: usize,
        row: Option<At>,
        change: usize,
    },
    Ended,
}

enum At {
    /// The only row.
    One,
    Many(Cursor),
}

impl Inside {
    fn new(key: DecoratedKey, partition: Partition, schema: &TableSchema, slices: &Slices) -> Self {
        let wanted = slices.of(&key);
        let changes = match &partition {
            Partition::Body(body) if !body.ranges.changes().is_empty() => {
                Some(if slices.is_reversed() { Rc::new(body.ranges.reversed()) } else { body.ranges.clone() })
            }
            _ => None,
        };
        debug_assert!(slices.ranges(wanted).windows(2).all(|pair| {
            let order = slices.order(schema);
            pair[0].end.cmp(order, &pair[1].start) != Ordering::Greater
        }));
        Inside { key, partition, state: State::Start, wanted, changes, open: Tombstone::LIVE }
    }

    /// Yields what fits; whether the partition is complete.
    fn fill(
        &mut self,
        schema: &TableSchema,
        slices: &Slices,
        out: &mut VecDeque<Fragment>,
        weight: &mut usize,
        limit: usize,
    ) -> bool {
        loop {
            let Some(fragment) = self.next(schema, slices) else { return true };
            *weight += fragment.weight();
            out.push_back(fragment);
            if *weight >= limit && !matches!(self.state, State::Ended) {
                return false;
            }
        }
    }

    fn next(&mut self, schema: &TableSchema, slices: &Slices) -> Option<Fragment> {
        let order = slices.order(schema);
        let ranges = slices.ranges(self.wanted);
        loop {
            match &mut self.state {
                State::Start => {
                    self.state = State::Static;
                    let tombstone = match &self.partition {
                        Partition::Row(..) => Tombstone::LIVE,
                        Partition::Body(body) => body.tombstone,
                    };
                    return Some(Fragment::PartitionStart { key: self.key.clone(), tombstone });
                }
                State::Static => {
                    self.state = State::Range(0);
                    if self.wanted.static_row
                        && let Partition::Body(body) = &self.partition
                        && let Some(row) = &body.static_row
                        && !row.is_empty()
                    {
                        return Some(Fragment::Static(row.clone()));
                    }
                }
                State::Range(index) => {
                    let index = *index;
                    let Some(range) = ranges.get(index) else {
                        debug_assert!(self.open.is_live(), "no range deletion is open at the end of a partition");
                        self.state = State::Ended;
                        return Some(Fragment::PartitionEnd);
                    };
                    let (open, change) = self
                        .changes
                        .as_ref()
                        .map_or((Tombstone::LIVE, 0), |changes| changes.open_at(order, &range.start));
                    let row = self.seek(schema, order, range, slices.is_reversed());
                    let at = range.start.clone();
                    self.state = State::Rows { range: index, row, change };
                    if let Some(fragment) = self.change(at, open) {
                        return Some(fragment);
                    }
                }
                State::Rows { range: index, row, change } => {
                    let range = &ranges[*index];
                    let is_last_cut = range.end.prefix.is_empty() && range.end.after;
                    let within = row
                        .as_ref()
                        .map(|at| row_of(&self.partition, at))
                        .filter(|(key, _)| is_last_cut || range.end.cmp_row(order, key) == Ordering::Greater);
                    let changes = self.changes.as_ref().map_or(&[][..], |changes| changes.changes());
                    let next_change =
                        changes.get(*change).filter(|change| change.at.cmp(order, &range.end) == Ordering::Less);
                    let change_first = match (within, next_change) {
                        (None, None) => {
                            let end = range.end.clone();
                            let index = *index + 1;
                            self.state = State::Range(index);
                            let goes_on =
                                ranges.get(index).is_some_and(|next| next.start.cmp(order, &end) == Ordering::Equal);
                            if !goes_on && let Some(fragment) = self.change(end, Tombstone::LIVE) {
                                return Some(fragment);
                            }
                            continue;
                        }
                        (Some(_), None) => false,
                        (None, Some(_)) => true,
                        (Some((key, _)), Some(next)) => next.at.cmp_row(order, key) == Ordering::Less,
                    };
                    if change_first {
                        let Change { at, tombstone } = changes[*change].clone();
                        *change += 1;
                        if let Some(fragment) = self.change(at, tombstone) {
                            return Some(fragment);
                        }
                        continue;
                    }
                    let Some(at) = row.take() else { unreachable!("a row is within") };
                    let (key, content) = row_of(&self.partition, &at);
                    let fragment = Fragment::Row { key: key.clone(), row: content.clone() };
                    if let At::Many(cursor) = at
                        && let Partition::Body(body) = &self.partition
                        && let Rows::Many(chunks) = &body.rows
                    {
                        *row = cursor.step(chunks, &schema.order, !slices.is_reversed()).map(At::Many);
                    }
                    return Some(fragment);
                }
                State::Ended => return None,
            }
        }
    }

    fn change(&mut self, at: ClusteringCut, tombstone: Tombstone) -> Option<Fragment> {
        (tombstone != self.open).then(|| {
            self.open = tombstone;
            Fragment::Change { at, tombstone }
        })
    }

    /// The first row behind the range's start, in the reader's order.
    fn seek(&self, schema: &TableSchema, order: &ClusteringOrder, range: &RowRange, reversed: bool) -> Option<At> {
        let from_edge = range.start.prefix.is_empty() && !range.start.after;
        let is_behind = |key| from_edge || range.start.cmp_row(order, key) == Ordering::Less;
        match &self.partition {
            Partition::Row(key, _) => is_behind(key).then_some(At::One),
            Partition::Body(body) => match &body.rows {
                Rows::None => None,
                Rows::One(one) => is_behind(&one.key).then_some(At::One),
                Rows::Many(chunks) if from_edge => chunks.edge(!reversed).map(At::Many),
                Rows::Many(chunks) => {
                    // The cut in the table's own order.
                    let mut cut = range.start.position();
                    if reversed {
                        cut.weight = -cut.weight;
                    }
                    chunks.seek(&schema.order, cut, !reversed).map(At::Many)
                }
            },
        }
    }
}

fn row_of<'a>(partition: &'a Partition, at: &'a At) -> (&'a model::key::Clustering, &'a model::row::Row) {
    match (at, partition) {
        (At::Many(cursor), _) => {
            let (key, row) = cursor.row();
            (key, row)
        }
        (At::One, Partition::Row(key, row)) => (key, row),
        (At::One, Partition::Body(body)) => match &**body {
            Body { rows: Rows::One(one), .. } => (&one.key, &one.row),
            _ => unreachable!("the partition has one row"),
        },
    }
}
