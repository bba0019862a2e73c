//! Reconciliation: merges the data of replicas up to the position where all are complete, and
//! computes the data that each replica lacks. Pure.
//!
//! A replica's part is complete up to its last position. Beyond the least of these positions, the
//! data of some replica is unknown, so the merged data is cut off there. The page ends there at the
//! latest, and the next page begins there. The same rule ends a page if the digests agree.
//!
//! The data that a replica lacks is computed row by row after the merged deletions are applied:
//! deleted data is not sent.

use model::compact::{Compactor, Cover, Rules};
use model::fragment::Fragment;
use model::key::{Clustering, ClusteringCut, DecoratedKey, PositionRef};
use model::merge::merge_all;
use model::mutation::{Mutation, MutationBuilder, RangeTombstone};
use model::row::Row;
use model::schema::{ClusteringOrder, TableSchema};
use model::time::{Seconds, Tombstone};
use replica::page::{Flow, PageBuilder};
use replica::{FragmentPage, Page, PageEnd, Position, ReadCommand, Region, ReplicaError};
use std::cmp::Ordering;
use std::rc::Rc;

/// Compares two positions of a reader in this order.
pub(super) fn compare(order: &ClusteringOrder, a: &Position, b: &Position) -> Ordering {
    let keys = || DecoratedKey::new(a.key.clone()).cmp(&DecoratedKey::new(b.key.clone()));
    let same_partition = if a.key == b.key { Ordering::Equal } else { keys() };
    same_partition.then_with(|| a.region.cmp(&b.region)).then_with(|| match a.region {
        Region::Clustered => {
            let place = |position: &Position| position.weight;
            let (x, y) = (
                PositionRef { prefix: &a.prefix.0, weight: place(a) },
                PositionRef { prefix: &b.prefix.0, weight: place(b) },
            );
            order.compare(x, y)
        }
        _ => Ordering::Equal,
    })
}

/// The page that ends first, of the pages that do not reach the end of the requested ranges. None:
/// all reach it.
pub(super) fn first_end<'a>(order: &ClusteringOrder, pages: impl Iterator<Item = &'a Page>) -> Option<&'a Page> {
    let cut = pages.filter(|page| page.end != PageEnd::Exhausted);
    let ends = cut.filter_map(|page| page.last.as_ref().map(|last| (page, last)));
    ends.min_by(|(_, a), (_, b)| compare(order, a, b)).map(|(page, _)| page)
}

/// The merged data of replicas.
#[derive(Debug, Default)]
pub(super) struct Merged {
    /// The data, up to the cut.
    pub fragments: Vec<Fragment>,
    /// The position up to which the data is known. None: there is nothing behind it.
    pub cut: Option<Position>,
    /// The mutations that each replica lacks, in the order of the parts.
    pub repairs: Vec<Vec<Mutation>>,
}

/// One partition of a stream.
struct Partition {
    key: DecoratedKey,
    tombstone: Tombstone,
    fixed: Option<Row>,
    rows: Vec<(Clustering, Row)>,
    changes: Vec<(ClusteringCut, Tombstone)>,
    /// For each row or range change, in order: whether it is a row.
    sequence: Vec<bool>,
    /// Whether the partition was cut before its end.
    is_cut: bool,
}

/// The clustering order of the reader.
pub(super) fn order_of(schema: &TableSchema, reversed: bool) -> ClusteringOrder {
    if reversed { schema.order.reversed() } else { schema.order.clone() }
}

/// Merges parts. All are of the same ranges and in the same order. `most`: see [`Repair`].
pub(super) fn merge(
    schema: &Rc<TableSchema>,
    reversed: bool,
    now: Seconds,
    most: usize,
    parts: Vec<FragmentPage>,
) -> Merged {
    let order = order_of(schema, reversed);
    let cut = parts.iter().filter_map(|part| part.last.as_ref()).min_by(|a, b| compare(&order, a, b)).cloned();
    let own: Vec<Vec<Partition>> = parts
        .iter()
        .map(|part| partitions(part.fragments.iter().take_while(up_to(&order, cut.as_ref())), cut.as_ref()))
        .collect();
    let streams = parts.into_iter().map(|part| part.fragments).collect();
    let mut fragments = merge_all(schema, &order, streams);
    let len = fragments.iter().take_while(up_to(&order, cut.as_ref())).count();
    fragments.truncate(len);
    let merged = partitions(fragments.iter(), cut.as_ref());
    let lacking = |own: &Vec<Partition>| lacking(schema, reversed, now, most, &merged, own, cut.as_ref());
    let repairs = own.iter().map(|own| storable(schema, lacking(own))).collect();
    Merged { fragments, cut, repairs }
}

/// Leaves out mutations that no sstable of the table can hold: a faulty replica sent their data.
fn storable(schema: &TableSchema, mut repairs: Vec<Mutation>) -> Vec<Mutation> {
    repairs.retain(|mutation| match mutation.check(schema) {
        Ok(()) => true,
        Err(why) => {
            tracing::error!(keyspace = schema.keyspace, table = schema.name, %why,
                "a replica sent data that cannot be stored: it is not repaired on other replicas");
            false
        }
    });
    repairs
}

/// A predicate for consecutive fragments: whether they are not beyond the cut.
fn up_to(order: &ClusteringOrder, cut: Option<&Position>) -> impl FnMut(&&Fragment) -> bool {
    let target = cut.map(|cut| DecoratedKey::new(cut.key.clone()));
    let mut inside = false;
    move |fragment: &&Fragment| {
        let (Some(cut), Some(target)) = (cut, &target) else { return true };
        match fragment {
            Fragment::PartitionStart { key, .. } => {
                inside = key == target;
                key <= target
            }
            _ if !inside || cut.region == Region::End => true,
            Fragment::Static(_) => cut.region != Region::Start,
            Fragment::Row { .. } | Fragment::Change { .. } => {
                let place = PositionRef { prefix: &cut.prefix.0, weight: cut.weight };
                cut.region == Region::Clustered
                    && fragment.position().is_some_and(|position| order.compare(position, place).is_le())
            }
            Fragment::PartitionEnd => false,
        }
    }
}

fn partitions<'a>(fragments: impl Iterator<Item = &'a Fragment>, cut: Option<&Position>) -> Vec<Partition> {
    let mut out: Vec<Partition> = Vec::new();
    for fragment in fragments {
        if let Fragment::PartitionStart { key, tombstone } = fragment {
            out.push(Partition {
                key: key.clone(),
                tombstone: *tombstone,
                fixed: None,
                rows: Vec::new(),
                changes: Vec::new(),
                sequence: Vec::new(),
                is_cut: cut.is_some_and(|cut| cut.key == key.key && cut.region != Region::End),
            });
        }
        let Some(partition) = out.last_mut() else { continue };
        match fragment {
            Fragment::Static(row) => partition.fixed = Some(row.clone()),
            Fragment::Row { key, row } => {
                partition.rows.push((key.clone(), row.clone()));
                partition.sequence.push(true);
            }
            Fragment::Change { at, tombstone } => {
                partition.changes.push((at.clone(), *tombstone));
                partition.sequence.push(false);
            }
            Fragment::PartitionStart { .. } | Fragment::PartitionEnd => {}
        }
    }
    out
}

/// The bytes of a mutation for a row, and for a range deletion, apart from their keys and cells.
const ROW_HEAD: usize = 8;
const RANGE_HEAD: usize = 22;

/// The repair of one partition. It has several mutations if one would be too large for the log of a
/// replica.
struct Repair<'a> {
    schema: &'a TableSchema,
    key: &'a [u8],
    /// The most bytes of rows and range deletions in a mutation, unless one of them is larger.
    most: usize,
    mutation: MutationBuilder,
    bytes: usize,
    finished: Vec<Mutation>,
}

impl<'a> Repair<'a> {
    fn new(schema: &'a TableSchema, key: &'a [u8], most: usize) -> Repair<'a> {
        let mutation = MutationBuilder::new(schema.id, schema.version, key);
        Repair { schema, key, most, mutation, bytes: 0, finished: Vec::new() }
    }

    /// The mutation that gets a change of `bytes` bytes.
    fn mutation_for(&mut self, bytes: usize) -> &mut MutationBuilder {
        if self.bytes > 0 && self.bytes + bytes > self.most {
            self.finish_mutation();
        }
        self.bytes += bytes;
        &mut self.mutation
    }

    fn finish_mutation(&mut self) {
        let next = MutationBuilder::new(self.schema.id, self.schema.version, self.key);
        let mutation = std::mem::replace(&mut self.mutation, next);
        if !mutation.is_empty() {
            self.finished.push(mutation.finish(self.schema));
        }
        self.bytes = 0;
    }

    fn finish(mut self) -> Vec<Mutation> {
        self.finish_mutation();
        self.finished
    }
}

/// The data of `merged` that a replica with `own` lacks.
fn lacking(
    schema: &TableSchema,
    reversed: bool,
    now: Seconds,
    most: usize,
    merged: &[Partition],
    own: &[Partition],
    cut: Option<&Position>,
) -> Vec<Mutation> {
    let compactor = Compactor::new(Rules { now, gc_before: Seconds::MIN });
    let mut own = own.iter().peekable();
    let mut out = Vec::new();
    for partition in merged {
        while own.next_if(|own| own.key < partition.key).is_some() {}
        let own = own.next_if(|own| own.key == partition.key);
        let mut repair = Repair::new(schema, &partition.key.key, most);
        if own.map_or(Tombstone::LIVE, |own| own.tombstone) != partition.tombstone {
            repair.mutation.delete_partition(partition.tombstone);
        }
        let left = |row: &Row, cover: Tombstone| compactor.compact_row(row, cover);
        let mut cover = Cover::default();
        cover.start(partition.tombstone);
        if let Some(row) = partition.fixed.as_ref().and_then(|row| left(row, cover.static_row())) {
            let has = own.and_then(|own| own.fixed.as_ref()).and_then(|row| left(row, cover.static_row()));
            if has.as_ref() != Some(&row) {
                repair.mutation_for(row.0.len()).static_row(row);
            }
        }
        let mut known = own.map_or(&[][..], |own| &own.rows[..]);
        let order = order_of(schema, reversed);
        let (mut rows, mut changes) = (partition.rows.iter(), partition.changes.iter());
        for is_row in &partition.sequence {
            if !is_row {
                if let Some((_, tombstone)) = changes.next() {
                    cover.change(*tombstone);
                }
                continue;
            }
            let Some((key, row)) = rows.next() else { break };
            while known.first().is_some_and(|(other, _)| order.compare_rows(other, key).is_lt()) {
                known = &known[1..];
            }
            let Some(row) = left(row, cover.row()) else { continue };
            let same = known.first().filter(|(other, _)| order.compare_rows(other, key).is_eq());
            if same.and_then(|(_, own)| left(own, cover.row())).as_ref() != Some(&row) {
                repair.mutation_for(key.0.len() + row.0.len() + ROW_HEAD).row(key.clone(), row);
            }
        }
        if own.map_or(&[][..], |own| &own.changes[..]) != partition.changes {
            for range in ranges(partition, reversed, cut) {
                let bytes = range.start.prefix.0.len() + range.end.prefix.0.len() + RANGE_HEAD;
                repair.mutation_for(bytes).delete_range(range);
            }
        }
        out.extend(repair.finish());
    }
    out
}

/// A partition's range deletions in the table's own order. A deletion that is open at the cut ends
/// there.
fn ranges(partition: &Partition, reversed: bool, cut: Option<&Position>) -> Vec<RangeTombstone> {
    let mut out = Vec::new();
    let mut add = |from: &ClusteringCut, to: ClusteringCut, tombstone: Tombstone| {
        let (from, to) = (from.clone(), to);
        let (start, end) = if reversed { (to.reversed(), from.reversed()) } else { (from, to) };
        if !tombstone.is_live() && start != end {
            out.push(RangeTombstone { start, end, tombstone });
        }
    };
    for pair in partition.changes.windows(2) {
        add(&pair[0].0, pair[1].0.clone(), pair[0].1);
    }
    if let (true, Some((at, tombstone)), Some(cut)) = (partition.is_cut, partition.changes.last(), cut)
        && cut.region == Region::Clustered
    {
        add(at, ClusteringCut { prefix: cut.prefix.clone(), after: cut.weight >= 0 }, *tombstone);
    }
    out
}

/// Builds the page that a command requests from merged data. The flag says that no limit was
/// reached, but more data follows: the caller must ask for it.
pub(super) fn page_of(
    schema: &TableSchema,
    command: &ReadCommand,
    merged: &Merged,
) -> Result<(Page, bool), ReplicaError> {
    let mut builder = PageBuilder::of(schema, command);
    let mut skipping = false;
    for fragment in &merged.fragments {
        if skipping && !matches!(fragment, Fragment::PartitionStart { .. }) {
            continue;
        }
        skipping = false;
        match builder.push(fragment.clone())? {
            Flow::Continue => {}
            Flow::SkipPartition => skipping = true,
            Flow::Stop => break,
        }
    }
    let mut page = builder.finish();
    let (true, Some(cut)) = (page.end == PageEnd::Exhausted, &merged.cut) else { return Ok((page, false)) };
    // No limit was reached: the page ends where the shortest part does, unless it has completed
    // that partition already.
    let last = page.last.as_ref().filter(|last| last.key == cut.key);
    if last.is_none_or(|last| last.region != Region::End) {
        let resumed = command.slice.resume.as_ref().filter(|resume| resume.key.key == cut.key);
        let before = resumed.map_or(0, |_| command.resumed_rows);
        page.rows_in_last = if last.is_some() { page.rows_in_last } else { before };
        page.last = Some(cut.clone());
    }
    Ok((page, true))
}

#[cfg(test)]
mod tests;
