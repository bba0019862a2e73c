//! The rates of a shard's hottest partitions, by samples of its operations. Pure: the caller says
//! how much time has passed.
//!
//! A partition is heavy by its operations, its bytes or its CPU time: its weight is the mean of its
//! shares of the three. Sums fade exponentially, over a long time and over a short one. Rates of a
//! partition with enough samples come from the short time, so that a new hot partition is shown
//! within a second. Rates of others come from the long time, which has more samples.
//!
//! The sums do not fade as time passes: what a new operation adds grows instead, by the same factor
//! ([`Faded`]). So time costs nothing for each partition. Now and then, and before a report, all
//! sums are scaled back to the present ([`Tracker::rescale`]).
//!
//! The same samples are summed by tablet.

use super::LONGEST_KEY;
use super::sketch::{PartitionId, Sketch, Slot};
use crate::limiter::LimitKind;
use model::id::TableId;
use model::token::Token;
use rt::time::Duration;
use std::collections::BTreeMap;

/// The time constants of the sums, in seconds.
const LONG: f64 = 8.0;
const SHORT: f64 = 1.0;

/// The samples in the short sums from which they are used: the error is then about 7 %.
const ENOUGH_SAMPLES: f64 = 100.0;

/// The samples from which the CPU time of a partition is known well enough to refuse some of it.
const FEWEST_SAMPLES: f64 = 8.0;

/// The samples from which a partition is listed. A single slow sample may be caused by the system:
/// the shard's thread was not scheduled for some time.
const FEWEST_LISTED: u64 = 3;

/// The most that an operation adds, in operations, until all sums are scaled back.
const LARGEST_UNIT: f64 = 1e6;

/// The operations from which the sums of a tablet are kept. So tablets that have left the shard are
/// dropped.
const FEWEST_OPERATIONS: f64 = 0.01;

/// Partitions that are tracked.
const PARTITIONS: usize = 512;

/// The work of operations, each counted as the number of operations that its sample stands for.
#[derive(Clone, Copy, Default, Debug)]
struct Sums {
    samples: f64,
    reads: f64,
    writes: f64,
    bytes: f64,
    cpu_nanos: f64,
    refused: f64,
    /// The part of them that a limit of their table refused.
    limited: f64,
    would_refuse: f64,
}

impl Sums {
    fn all(&mut self) -> [&mut f64; 8] {
        let Sums { samples, reads, writes, bytes, cpu_nanos, refused, limited, would_refuse } = self;
        [samples, reads, writes, bytes, cpu_nanos, refused, limited, would_refuse]
    }

    fn add(&mut self, mut more: Sums, unit: f64) {
        self.all().into_iter().zip(more.all()).for_each(|(sum, more)| *sum += *more * unit);
    }

    fn scale(&mut self, factor: f64) {
        self.all().into_iter().for_each(|sum| *sum *= factor);
    }

    fn operations(&self) -> f64 {
        self.reads + self.writes
    }

    fn accepted(&self) -> f64 {
        (self.operations() - self.refused).max(0.0)
    }

    /// The operations that limits of tables leave.
    fn unlimited(&self) -> f64 {
        (self.operations() - self.limited).max(0.0)
    }
}

/// The amounts that an operation adds to sums over the long and the short time now. A second later
/// they are larger, as if all sums had faded until then.
#[derive(Clone, Copy, Debug)]
struct Units {
    long: f64,
    short: f64,
}

impl Units {
    /// The amounts just after sums were scaled back.
    const ONE: Units = Units { long: 1.0, short: 1.0 };

    fn grow(&mut self, seconds: f64) {
        self.long *= (seconds / LONG).exp();
        self.short *= (seconds / SHORT).exp();
    }
}

/// Sums over the long and the short time.
#[derive(Clone, Copy, Default, Debug)]
struct Faded {
    long: Sums,
    short: Sums,
}

impl Faded {
    fn add(&mut self, sums: Sums, units: Units) {
        self.long.add(sums, units.long);
        self.short.add(sums, units.short);
    }

    /// Scales sums back from `units` to [`Units::ONE`].
    fn rescale(&mut self, units: Units) {
        self.long.scale(1.0 / units.long);
        self.short.scale(1.0 / units.short);
    }
}

/// The samples of a partition.
#[derive(Default, Debug)]
struct PartitionSamples {
    sums: Faded,
    /// Samples since it has the slot.
    seen: u64,
    /// The serialised key. Copied at the second sample: most partitions never have one.
    key: Option<Box<[u8]>>,
}

impl PartitionSamples {
    /// Adds a sample.
    fn add(&mut self, sums: Sums, units: Units) {
        self.sums.add(sums, units);
        self.seen += 1;
    }
}

/// A sampled operation.
#[derive(Clone, Copy, Debug)]
pub struct Operation {
    /// Its kind.
    pub kind: LimitKind,
    /// The last token of its tablet. None: the tablet has left the shard.
    pub last_token: Option<Token>,
    /// Bytes of its result or mutation.
    pub bytes: u64,
    /// CPU time of the replica for it.
    pub cpu_nanos: u64,
}

/// A hot partition of a shard, and its rates per second.
#[derive(Clone, PartialEq, Debug)]
pub struct HotPartition {
    /// The partition.
    pub id: PartitionId,
    /// The serialised partition key. None if it is longer than 1 KiB, or not yet known.
    pub key: Option<Box<[u8]>>,
    /// Reads, also those that were refused.
    pub reads: f64,
    /// Writes, also those that were refused.
    pub writes: f64,
    /// Bytes of results and mutations.
    pub bytes: f64,
    /// Its share of the CPU time that the shard's replica uses for operations, from 0 to 1.
    pub cpu_share: f64,
    /// Operations that were accepted.
    pub accepted: f64,
    /// Operations that were refused.
    pub refused: f64,
    /// Operations that would have been refused.
    pub would_refuse: f64,
    /// The most by which the true number of operations differs, at 95 % confidence.
    pub error: f64,
}

/// A tablet.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct TabletId {
    /// The table.
    pub table: TableId,
    /// The last token of the tablet.
    pub last_token: Token,
}

/// The operations of a tablet on a shard, per second.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct TabletLoad {
    /// The tablet.
    pub id: TabletId,
    /// Reads that were performed.
    pub reads: f64,
    /// Writes that were performed.
    pub writes: f64,
    /// Bytes of results and mutations.
    pub bytes: f64,
    /// Its share of the CPU time that the shard's replica uses for operations, from 0 to 1.
    pub cpu_share: f64,
}

/// How much of a shard's time a partition takes, in seconds per second.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Demand {
    /// The partition.
    pub id: PartitionId,
    /// The CPU time that it would take if only limits of tables refused operations.
    pub wanted: f64,
    /// The CPU time that it takes.
    pub got: f64,
}

/// Tracks the hottest partitions of a shard.
#[derive(Debug)]
pub struct Tracker {
    sketch: Sketch<PartitionSamples>,
    /// Sums over all partitions.
    total: Faded,
    /// Sums over the long time, by tablet.
    tablets: BTreeMap<TabletId, Sums>,
    units: Units,
    /// The faded seconds that the sums stand for.
    long: f64,
    short: f64,
}

impl Default for Tracker {
    fn default() -> Tracker {
        Tracker {
            sketch: Sketch::new(PARTITIONS),
            total: Faded::default(),
            tablets: BTreeMap::new(),
            units: Units::ONE,
            long: 0.0,
            short: 0.0,
        }
    }
}

impl Tracker {
    /// Lets time pass.
    pub fn advance(&mut self, passed: Duration) {
        let seconds = passed.as_secs_f64();
        self.long = (self.long + seconds) * (-seconds / LONG).exp();
        self.short = (self.short + seconds) * (-seconds / SHORT).exp();
        self.units.grow(seconds);
        if self.units.long.max(self.units.short) > LARGEST_UNIT {
            self.rescale();
        }
    }

    /// Scales all sums back, and drops those that have become negligible.
    fn rescale(&mut self) {
        let units = std::mem::replace(&mut self.units, Units::ONE);
        self.total.rescale(units);
        self.sketch.scale(1.0 / units.long, |known| known.sums.rescale(units));
        self.tablets.retain(|_, sums| {
            sums.scale(1.0 / units.long);
            sums.operations() >= FEWEST_OPERATIONS
        });
    }

    /// Adds an operation that was performed and stands for `scale` operations. `key` is empty if it
    /// is not known.
    pub fn performed(&mut self, id: PartitionId, key: &[u8], operation: Operation, scale: f64) {
        let Operation { kind, last_token, bytes, cpu_nanos } = operation;
        let sums = Sums { bytes: bytes as f64 * scale, cpu_nanos: cpu_nanos as f64 * scale, ..counted(kind, scale) };
        self.total.add(sums, self.units);
        if let Some(last_token) = last_token {
            self.tablets.entry(TabletId { table: id.table, last_token }).or_default().add(sums, self.units.long);
        }
        let total = &self.total.long;
        // Relative to the mean of all operations. The totals have the same unit.
        let relative = |of: f64, all: f64| if all > 0.0 { of / all * total.operations() } else { scale };
        let (bytes, cpu) = (relative(sums.bytes, total.bytes), relative(sums.cpu_nanos, total.cpu_nanos));
        let known = &mut self.sketch.add(id, (scale + bytes + cpu) / 3.0 * self.units.long).value;
        if known.key.is_none() && known.seen > 0 && !key.is_empty() && key.len() <= LONGEST_KEY {
            known.key = Some(key.into());
        }
        known.add(sums, self.units);
    }

    /// Adds an operation that was refused and stands for `scale` operations. `by_table`: by a limit
    /// of its table.
    pub fn refused(&mut self, id: PartitionId, kind: LimitKind, by_table: bool, scale: f64) {
        let limited = if by_table { scale } else { 0.0 };
        let sums = Sums { refused: scale, limited, ..counted(kind, scale) };
        self.total.add(sums, self.units);
        self.sketch.add(id, scale / 3.0 * self.units.long).value.add(sums, self.units);
    }

    /// Adds that a performed operation would have been refused. It stands for `scale` operations.
    pub fn would_refuse(&mut self, id: PartitionId, scale: f64) {
        if let Some(slot) = self.sketch.get_mut(id) {
            slot.value.sums.add(Sums { would_refuse: scale, ..Sums::default() }, self.units);
        }
    }

    /// The hottest partitions as of the last [`Tracker::advance`], the hottest first.
    pub fn hottest(&mut self, most: usize) -> Vec<HotPartition> {
        self.rescale();
        let is_listed = |slot: &&Slot<PartitionSamples>| slot.value.seen >= FEWEST_LISTED;
        let mut slots: Vec<&Slot<PartitionSamples>> = self.sketch.iter().filter(is_listed).collect();
        slots.sort_by(|a, b| b.certain().total_cmp(&a.certain()));
        slots.truncate(most);
        slots.into_iter().filter_map(|slot| self.shown(slot)).collect()
    }

    /// The operations of this shard's tablets as of the last [`Tracker::advance`], in the order of
    /// tables and tokens.
    pub fn tablets(&mut self) -> Vec<TabletLoad> {
        self.rescale();
        let (seconds, all) = (self.long, self.total.long.cpu_nanos);
        if seconds <= 0.0 {
            return Vec::new();
        }
        let load = |(id, sums): (&TabletId, &Sums)| TabletLoad {
            id: *id,
            reads: sums.reads / seconds,
            writes: sums.writes / seconds,
            bytes: sums.bytes / seconds,
            cpu_share: if all > 0.0 { sums.cpu_nanos / all } else { 0.0 },
        };
        self.tablets.iter().map(load).collect()
    }

    fn shown(&self, slot: &Slot<PartitionSamples>) -> Option<HotPartition> {
        let is_enough = slot.value.sums.short.samples >= ENOUGH_SAMPLES;
        let (sums, total, seconds) = match is_enough {
            true => (&slot.value.sums.short, &self.total.short, self.short),
            false => (&slot.value.sums.long, &self.total.long, self.long),
        };
        if seconds <= 0.0 {
            return None;
        }
        // The operations that a sample stands for, times the deviation of a faded number of
        // samples.
        let sampled = sums.operations() / sums.samples.max(1.0) * (2.0 * sums.samples).sqrt();
        // An operation adds at least a third to the weight.
        let missed = 3.0 * slot.missed / self.long;
        Some(HotPartition {
            id: slot.id,
            key: slot.value.key.clone(),
            reads: sums.reads / seconds,
            writes: sums.writes / seconds,
            bytes: sums.bytes / seconds,
            cpu_share: if total.cpu_nanos > 0.0 { sums.cpu_nanos / total.cpu_nanos } else { 0.0 },
            accepted: sums.accepted() / seconds,
            refused: sums.refused / seconds,
            would_refuse: sums.would_refuse / seconds,
            error: sampled / seconds + missed,
        })
    }

    /// The CPU time of all operations, in seconds per second, and the partitions with enough
    /// samples that want at least `least` of this time.
    pub fn demands(&mut self, least: f64) -> (f64, Vec<Demand>) {
        self.rescale();
        if self.short <= 0.0 {
            return (0.0, Vec::new());
        }
        let seconds = |nanos: f64| nanos / 1e9 / self.short;
        let demand = |slot: &Slot<PartitionSamples>| {
            let Faded { long, short } = slot.value.sums;
            let each = if long.accepted() > 0.0 { long.cpu_nanos / long.accepted() } else { 0.0 };
            let got = seconds(short.cpu_nanos);
            Demand { id: slot.id, wanted: seconds(each * short.unlimited()).max(got), got }
        };
        let total = seconds(self.total.short.cpu_nanos);
        let is_certain = |slot: &&Slot<PartitionSamples>| slot.value.sums.long.samples >= FEWEST_SAMPLES;
        let demands = self.sketch.iter().filter(is_certain).map(demand);
        (total, demands.filter(|demand| demand.wanted >= least * total).collect())
    }
}

/// The sums of one operation.
fn counted(kind: LimitKind, scale: f64) -> Sums {
    let (reads, writes) = if kind.is_write() { (0.0, scale) } else { (scale, 0.0) };
    Sums { samples: 1.0, reads, writes, ..Sums::default() }
}

#[cfg(test)]
mod tests;
