//! A querier: the reader of a query between two pages, with its permit, its position and the
//! command it was opened for.
//!
//! Invariant: a querier serves a page only if a new reader would return the same fragments. It
//! stores all inputs of the stream: table and schema version, the slice without its resumed part,
//! the use of disk and cache, and the position. [`Querier::plan`] compares each of them with the
//! next page's command. The reader itself ensures the rest (see `engine::reader::suspend`).
//! Deadline, cancellation, trace and the time for TTLs come from the page, never from the querier.
//!
//! The position is the end of the data that this shard has read. If a page starts later, because
//! another replica had read further, the reader advances if that is cheap. A page that starts
//! earlier is never served by the querier.

pub mod cache;
pub(crate) mod keep;

use crate::page::{Position, Region};
use crate::permit::Permit;
use crate::request::{Class, ReadCommand};
use bytes::Bytes;
use engine::Suspended;
use model::id::TableId;
use model::key::{Clustering, ClusteringCut, DecoratedKey, RingCut};
use model::range::{PartitionRange, RowRange, Slice};
use model::schema::ClusteringOrder;
use std::cmp::Ordering;
use std::rc::Rc;

/// The reader of a query between two pages; see the module.
pub struct Querier {
    /// The suspended reader.
    pub reader: Suspended,
    /// The permit of the read, which it keeps.
    pub permit: Permit,
    asked: Asked,
    stop: Stop,
}

/// The parts of the command on which the stream depends.
struct Asked {
    table: TableId,
    class: Class,
    slice: Rc<Slice>,
    bypass_cache: bool,
    singular: bool,
}

/// Where a page ended.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Stop {
    key: Bytes,
    /// Where in the partition, in the reader's order. None if the partition is complete.
    at: Option<ClusteringCut>,
}

impl Stop {
    /// The stop after which the next page starts. None: no page ends at this position.
    ///
    /// Its keys are copies: those of the page may be cut from a block of a memtable, which they
    /// would keep in memory after its flush.
    fn of(position: &Position, has_clustering: bool) -> Option<Stop> {
        let at = match position.region {
            Region::Clustered if has_clustering => {
                let prefix = Clustering(Bytes::copy_from_slice(&position.prefix.0));
                Some(ClusteringCut { prefix, after: position.weight >= 0 })
            }
            Region::Clustered | Region::End => None,
            Region::Start | Region::Static => return None,
        };
        Some(Stop { key: Bytes::copy_from_slice(&position.key), at })
    }
}

/// Whether a page continues an earlier page that may have left a querier on this shard.
pub fn continues(command: &ReadCommand) -> bool {
    let Some(range) = command.ranges.first() else { return false };
    command.query.is_some()
        && !command.first_page
        && match &command.slice.resume {
            Some(resume) if range.contains(&resume.key) => true,
            // A scan that resumes behind a partition begins beside its key.
            _ => range.start.key.is_some() && range.singular_key().is_none(),
        }
}

/// How a page uses a querier.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Plan {
    /// Resume in the partition, at this cut (in the reader's order). None: behind the partition.
    Resume(Option<ClusteringCut>),
    /// The same, but behind the position at which the reader stopped.
    Advance(Option<ClusteringCut>),
    /// Drop the querier: it does not fit.
    Drop(Mismatch),
}

/// Why a querier does not fit a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mismatch {
    /// Another class of work.
    Class,
    /// Another table, slice, or use of the cache.
    Slice,
    /// Another position.
    Position,
}

impl Mismatch {
    /// The reason as traces show it.
    pub fn why(self) -> &'static str {
        match self {
            Mismatch::Class => "it is of another class of work",
            Mismatch::Slice => "it reads something else",
            Mismatch::Position => "it is at another position",
        }
    }
}

impl Querier {
    /// Makes a querier of a read whose page ended at `last` within `range`, while more data
    /// follows. None if no page can resume it.
    pub fn new(
        reader: engine::Reader,
        mut head: Option<engine::PartitionHead>,
        permit: Permit,
        command: &ReadCommand,
        class: Class,
        range: &PartitionRange,
        last: Option<&Position>,
    ) -> Option<Querier> {
        let stop = Stop::of(last?, !reader.schema().clustering.is_empty())?;
        debug_assert!(stop.at.is_none() || head.is_some(), "a reader that stops in a partition has its head");
        debug_assert!(
            head.as_ref().is_none_or(|head| head.key.key == stop.key),
            "a page ends in the partition that its reader is in"
        );
        let singular = range.singular_key().is_some();
        if singular && stop.at.is_none() {
            return None;
        }
        if let Some(head) = &mut head {
            head.key.key = stop.key.clone();
        }
        let (slice, bypass_cache) = (command.slice.clone(), command.bypass_cache);
        let asked = Asked { table: command.table, class, slice, bypass_cache, singular };
        Some(Querier { reader: reader.suspend(head), permit, asked, stop })
    }

    /// The approximate memory of the querier, in bytes.
    pub fn memory_bytes(&self) -> usize {
        std::mem::size_of::<Querier>() + self.reader.memory_bytes()
    }

    /// Compares a page's command with the querier. The caller has compared the ends of the ranges.
    pub fn plan(&self, command: &ReadCommand, class: Class, order: &ClusteringOrder) -> Plan {
        let asked = &self.asked;
        if asked.class != class {
            return Plan::Drop(Mismatch::Class);
        }
        let Some(range) = command.ranges.first() else { return Plan::Drop(Mismatch::Slice) };
        let same = asked.table == command.table
            && asked.bypass_cache == command.bypass_cache
            && asked.singular == range.singular_key().is_some()
            && same_slice(&asked.slice, &command.slice);
        if !same {
            return Plan::Drop(Mismatch::Slice);
        }
        self.stop.plan(range, &command.slice, order)
    }
}

/// Whether two slices are equal for partitions that are not resumed.
fn same_slice(a: &Slice, b: &Slice) -> bool {
    a.static_row == b.static_row && a.reversed == b.reversed && a.rows == b.rows
}

impl Stop {
    fn plan(&self, range: &PartitionRange, slice: &Slice, order: &ClusteringOrder) -> Plan {
        let resume = slice.resume.as_ref().filter(|resume| range.contains(&resume.key));
        let Some(resume) = resume else {
            // The page begins behind a partition: it must be this one.
            let behind = matches!(&range.start, RingCut { key: Some(key), after: true, .. } if *key == self.key);
            return match (behind, &self.at) {
                (true, None) => Plan::Resume(None),
                (true, Some(_)) => Plan::Advance(None),
                (false, _) => Plan::Drop(Mismatch::Position),
            };
        };
        let Some(at) = self.at.as_ref().filter(|_| is_at(range, &resume.key) && resume.key.key == self.key) else {
            return Plan::Drop(Mismatch::Position);
        };
        if resume.static_row != slice.static_row {
            return Plan::Drop(Mismatch::Slice);
        }
        if is_remaining(&resume.rows, &slice.rows, at, slice.reversed, order) {
            return Plan::Resume(Some(at.clone()));
        }
        let Some(further) = first_cut(&resume.rows, slice.reversed) else { return Plan::Drop(Mismatch::Position) };
        let own_order;
        let reader_order = if slice.reversed {
            own_order = order.reversed();
            &own_order
        } else {
            order
        };
        let is_further = further.cmp(reader_order, at) == Ordering::Greater;
        if is_further && is_remaining(&resume.rows, &slice.rows, &further, slice.reversed, order) {
            return Plan::Advance(Some(further));
        }
        Plan::Drop(Mismatch::Position)
    }
}

/// Whether a range begins with this partition.
fn is_at(range: &PartitionRange, key: &DecoratedKey) -> bool {
    matches!(&range.start, RingCut { key: Some(own), after: false, .. } if *own == key.key)
}

/// Where reading rows begins, in the reader's order.
pub fn first_cut(rows: &[RowRange], reversed: bool) -> Option<ClusteringCut> {
    if reversed { Some(rows.last()?.end.clone().reversed()) } else { Some(rows.first()?.start.clone()) }
}

/// Whether `left` is the rest of `rows` behind a cut of the reader. Both are in the table's order.
fn is_remaining(
    left: &[RowRange],
    rows: &[RowRange],
    cut: &ClusteringCut,
    reversed: bool,
    order: &ClusteringOrder,
) -> bool {
    let mut left = left.iter();
    if reversed {
        let end = cut.clone().reversed();
        let mut rest = rows.iter().filter(|range| range.start.cmp(order, &end) == Ordering::Less);
        let same = |range: &RowRange, left: &RowRange| {
            let end = if range.end.cmp(order, &end) == Ordering::Greater { &end } else { &range.end };
            left.start == range.start && left.end == *end
        };
        rest.all(|range| left.next().is_some_and(|left| same(range, left))) && left.next().is_none()
    } else {
        let mut rest = rows.iter().filter(|range| range.end.cmp(order, cut) == Ordering::Greater);
        let same = |range: &RowRange, left: &RowRange| {
            let start = if range.start.cmp(order, cut) == Ordering::Less { cut } else { &range.start };
            left.start == *start && left.end == range.end
        };
        rest.all(|range| left.next().is_some_and(|left| same(range, left))) && left.next().is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::range::Resume;
    use model::types::CqlType;

    fn order() -> ClusteringOrder {
        ClusteringOrder::new([(CqlType::Int, false)])
    }

    fn place(n: i32) -> Clustering {
        Clustering::from_components([&n.to_be_bytes()[..]])
    }

    fn rows(from: i32, to: i32) -> RowRange {
        RowRange { start: ClusteringCut::before(place(from)), end: ClusteringCut::after(place(to)) }
    }

    fn key(n: u8) -> DecoratedKey {
        DecoratedKey::new(vec![n].into())
    }

    /// Stopped behind a row of partition 1, in the reader's order.
    fn stopped(row: i32) -> Stop {
        Stop { key: key(1).key, at: Some(ClusteringCut::after(place(row))) }
    }

    #[test]
    fn a_stop_does_not_keep_the_memory_of_the_page() {
        let block = Bytes::from(vec![7; 100]);
        let prefix = Clustering(block.slice(10..20));
        let position = Position { key: block.slice(..10), region: Region::Clustered, prefix, weight: 1 };
        let stop = Stop::of(&position, true).expect("a page may end at a row");
        assert!(stop.key == position.key && stop.at == Some(ClusteringCut::after(position.prefix.clone())));
        drop(position);
        assert!(block.is_unique());
    }

    /// A slice of the rows 10 to 20 and 30 to 40, of which `left` remains in a partition.
    fn slice(reversed: bool, left: &[RowRange], of: u8) -> Slice {
        let resume = Resume { key: key(of), rows: left.to_vec(), static_row: true };
        Slice { rows: vec![rows(10, 20), rows(30, 40)], static_row: true, reversed, resume: Some(resume) }
    }

    fn behind(from: i32, to: i32) -> RowRange {
        RowRange { start: ClusteringCut::after(place(from)), ..rows(from, to) }
    }

    fn ahead_of(from: i32, to: i32) -> RowRange {
        RowRange { end: ClusteringCut::before(place(to)), ..rows(from, to) }
    }

    #[test]
    fn the_remaining_rows_must_match() {
        let range = PartitionRange::singular(&key(1));
        let plan = |stop: &Stop, slice: &Slice| stop.plan(&range, slice, &order());
        let at = |row| Some(ClusteringCut::after(place(row)));
        let all = [behind(15, 20), rows(30, 40)];
        assert_eq!(plan(&stopped(15), &slice(false, &all, 1)), Plan::Resume(at(15)));
        // A range is over, or all of them.
        assert_eq!(plan(&stopped(20), &slice(false, &[rows(30, 40)], 1)), Plan::Resume(at(20)));
        assert_eq!(plan(&stopped(40), &slice(false, &[], 1)), Plan::Resume(at(40)));
        // Backwards.
        assert_eq!(plan(&stopped(35), &slice(true, &[rows(10, 20), ahead_of(30, 35)], 1)), Plan::Resume(at(35)));
        assert_eq!(plan(&stopped(30), &slice(true, &[rows(10, 20)], 1)), Plan::Resume(at(30)));
        // The reader may advance, but never go back.
        assert_eq!(plan(&stopped(12), &slice(false, &all, 1)), Plan::Advance(at(15)));
        let next = Some(ClusteringCut::before(place(30)));
        assert_eq!(plan(&stopped(12), &slice(false, &[rows(30, 40)], 1)), Plan::Advance(next));
        assert_eq!(plan(&stopped(38), &slice(true, &[rows(10, 20), ahead_of(30, 35)], 1)), Plan::Advance(at(35)));
        for row in [16, 35] {
            assert_eq!(plan(&stopped(row), &slice(false, &all, 1)), Plan::Drop(Mismatch::Position), "{row}");
        }
        // No page leaves these: a range is missing, or there is one too many.
        assert_eq!(plan(&stopped(15), &slice(false, &all[..1], 1)), Plan::Drop(Mismatch::Position));
        let more = [behind(15, 20), rows(30, 40), rows(50, 60)];
        assert_eq!(plan(&stopped(15), &slice(false, &more, 1)), Plan::Drop(Mismatch::Position));
    }

    #[test]
    fn a_scan_resumes_in_its_partition_or_behind_it() {
        let full = |start: RingCut| PartitionRange { start, end: RingCut::MAX };
        let plan = |stop: &Stop, range: &PartitionRange, slice: &Slice| stop.plan(range, slice, &order());
        let all = [behind(15, 20), rows(30, 40)];
        let inside = slice(false, &all, 1);
        let whole = Slice { resume: None, ..inside.clone() };
        let over = Stop { at: None, ..stopped(15) };
        let (one, two) = (key(1), key(2));
        let at = Some(ClusteringCut::after(place(15)));
        assert_eq!(plan(&stopped(15), &full(RingCut::before_key(&one)), &inside), Plan::Resume(at));
        assert_eq!(plan(&over, &full(RingCut::after_key(&one)), &whole), Plan::Resume(None));
        assert_eq!(plan(&stopped(15), &full(RingCut::after_key(&one)), &whole), Plan::Advance(None));
        let other = Plan::Drop(Mismatch::Position);
        assert_eq!(plan(&over, &full(RingCut::after_key(&two)), &whole), other);
        assert_eq!(plan(&over, &full(RingCut::before_key(&one)), &whole), other, "a partition would come twice");
        assert_eq!(plan(&over, &full(RingCut::before_key(&one)), &inside), other);
        assert_eq!(plan(&stopped(15), &full(RingCut::MIN), &inside), other, "partitions before it are wanted too");
        assert_eq!(plan(&stopped(15), &full(RingCut::before_key(&two)), &slice(false, &all, 2)), other);
    }
}
