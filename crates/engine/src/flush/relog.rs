//! Relogging: writing the contents of small memtables to the running log again instead of
//! flushing them.
//!
//! The size of the log is limited by flushing the memtables that need its oldest segment. A start
//! makes replayed mutations durable. With many tablets that hold a few rows each, both would
//! write thousands of tiny sstables. Instead the contents of such a memtable are appended to the
//! log. Once they are on the device, the old records are no longer needed. After a crash in
//! between, both are replayed, which gives the same result.
//!
//! Relogging for a segment writes at most an eighth of what that segment frees, and has reserved
//! room in a full log ([`crate::commitlog::Commitlog::append_relogged`]). A start relogs at most
//! a quarter of the log. Memtables that are larger, or do not fit, are flushed.
//!
//! Invariant: old records are released only after the new ones are on the device.

use crate::commitlog::{Entry, LogError, Position, SlotId};
use crate::engine::Engine;
use crate::memtable::{MemtableSource, Slices};
use crate::metrics::add;
use crate::table::{Table, Tablet};
use model::fragment::Fragment;
use model::key::ClusteringCut;
use model::mutation::{Mutation, MutationBuilder, RangeTombstone};
use model::range::{PartitionRange, Slice};
use model::schema::TableSchema;
use model::time::Tombstone;
use rt::hash::HashMap;
use rt::time::Duration;
use std::collections::VecDeque;
use std::rc::Rc;

/// This many small sstables are acceptable: nothing is relogged for fewer memtables.
const FEW: usize = 16;
/// A memtable with more bytes of mutations than this is flushed.
const SMALL: u64 = 16 << 10;
/// How long relogging waits for a busy log.
const ROOM_COMES: Duration = Duration::from_secs(5);
/// Relogging for a segment may write this part of it: an eighth.
const SHARE: u64 = 8;
/// A start may relog this part of the log's size: a quarter, so that the log is not under
/// pressure when clients connect.
const START_SHARE: u64 = 4;

impl Engine {
    /// Relogs the small memtables of these slots, if there are many. Returns the slots to be
    /// flushed.
    pub(crate) async fn relog_small(&self, slots: Vec<SlotId>) -> Vec<SlotId> {
        let most = u64::from(self.config().log.segment_size) / SHARE;
        let Ok(relogged) = self.relog(&slots, most).await else { return slots };
        for (slot, position) in &relogged {
            // All that the slot has in earlier segments was in the memtable then, or is durable.
            self.log().clean(*slot, Position { segment: position.segment, offset: 0 });
        }
        slots.into_iter().filter(|slot| !relogged.iter().any(|(other, _)| other == slot)).collect()
    }

    /// Relogs the memtables with replayed mutations that are small and not relogged yet, if there
    /// are many. The others have to be flushed before the old logs are retired.
    pub(crate) async fn relog_replayed(&self) {
        let mut memtables = HashMap::default();
        for table in self.all_tables() {
            let tablets = table.tablets();
            let active = tablets.iter().map(|tablet| (tablet.slot, tablet.active()));
            memtables.extend(active.filter(|(_, memtable)| memtable.needs_old_logs()));
        }
        let slots: Vec<SlotId> = memtables.keys().copied().collect();
        match self.relog(&slots, self.config().log.total_size_limit / START_SHARE).await {
            // A memtable that was sealed since then was relogged before, or is flushed.
            Ok(relogged) => {
                let relogged = relogged.iter().filter_map(|(slot, _)| Some((slot, memtables.get(slot)?)));
                relogged.for_each(|(slot, memtable)| {
                    if self
                        .registry()
                        .tablet_of_slot(*slot)
                        .is_some_and(|(_, tablet)| Rc::ptr_eq(&tablet.active(), memtable))
                    {
                        memtable.set_needs_old_logs(false);
                    }
                });
            }
            Err(error) => tracing::warn!(%error, "replayed writes cannot be logged again; flushing them"),
        }
    }

    /// Relogs the small memtables of the slots, the smallest first, up to `most` bytes of
    /// mutations. On success the returned slots are on the device, up to these positions.
    async fn relog(&self, slots: &[SlotId], most: u64) -> Result<Vec<(SlotId, Position)>, LogError> {
        let mut small: Vec<(u64, SlotId)> = slots.iter().filter_map(|&slot| Some((self.small(slot)?, slot))).collect();
        if small.len() <= FEW {
            return Ok(Vec::new());
        }
        small.sort();
        let mut left = most;
        let mut relogged = Vec::new();
        for (written, slot) in small {
            if written > left {
                break;
            }
            left -= written;
            let mut appended = self.relog_slot(slot);
            // There may be room soon: after a write to the device, or with the next segment.
            while matches!(appended, Err(LogError::Busy)) && self.log().room_within(ROOM_COMES).await {
                appended = self.relog_slot(slot);
            }
            match appended {
                Ok(Some(position)) => relogged.push((slot, position)),
                Ok(None) => {}
                // The log has no room for more.
                Err(_) => break,
            }
            rt::task::maybe_yield().await;
        }
        self.log().sync_now().await?;
        add(&self.counters().relogged, relogged.len() as u64);
        Ok(relogged)
    }

    /// The bytes of mutations in a slot's memtable, if it can be relogged.
    fn small(&self, slot: SlotId) -> Option<u64> {
        let (_, tablet) = self.registry().tablet_of_slot(slot)?;
        let active = tablet.active();
        (active.written() <= SMALL && !active.is_empty() && !tablet.is_flushing()).then(|| active.written())
    }

    /// Relogs a slot's memtable in one synchronous step. `None` if there is nothing to log.
    fn relog_slot(&self, slot: SlotId) -> Result<Option<Position>, LogError> {
        let Some((table, tablet)) = self.registry().tablet_of_slot(slot) else { return Ok(None) };
        if tablet.is_flushing() {
            return Ok(None);
        }
        let mutations = contents(&table, &tablet);
        if mutations.is_empty() {
            return Ok(None);
        }
        let schema = table.schema();
        let entries: Vec<Entry<'_>> =
            mutations.iter().map(|mutation| Entry { schema: &schema, slot, mutation: mutation.as_bytes() }).collect();
        let appended = self.log().append_relogged(&entries)?;
        tablet.active().logged_at(appended.position);
        Ok(Some(appended.position))
    }
}

/// The contents of a tablet's active memtable, as one mutation per partition.
fn contents(table: &Table, tablet: &Tablet) -> Vec<Mutation> {
    let schema = table.schema();
    let slices = Slices::new(&schema, Rc::new(Slice::full()));
    let mut source = MemtableSource::new(tablet.active(), schema.clone(), slices, PartitionRange::FULL);
    let mut fragments = VecDeque::new();
    while source.fill(&mut fragments, usize::MAX) {}
    mutations_of(&schema, fragments)
}

fn mutations_of(schema: &TableSchema, fragments: VecDeque<Fragment>) -> Vec<Mutation> {
    let mut mutations = Vec::new();
    let mut partition: Option<MutationBuilder> = None;
    let mut open: Option<(ClusteringCut, Tombstone)> = None;
    for fragment in fragments {
        if let Fragment::PartitionStart { key, tombstone } = &fragment {
            let mut builder = MutationBuilder::new(schema.id, schema.version, &key.key);
            if !tombstone.is_live() {
                builder.delete_partition(*tombstone);
            }
            partition = Some(builder);
            continue;
        }
        let Some(builder) = &mut partition else { unreachable!("a partition begins with its start") };
        match fragment {
            Fragment::Static(row) => builder.static_row(row),
            Fragment::Row { key, row } => builder.row(key, row),
            Fragment::Change { at, tombstone } => {
                if let Some((start, before)) = open.take() {
                    builder.delete_range(RangeTombstone { start, end: at.clone(), tombstone: before });
                }
                open = (!tombstone.is_live()).then_some((at, tombstone));
            }
            Fragment::PartitionEnd => {
                assert!(open.is_none(), "no range deletion is open at the end of a partition");
                mutations.extend(partition.take().map(|builder| builder.finish(schema)));
            }
            Fragment::PartitionStart { .. } => unreachable!("handled above"),
        }
    }
    mutations
}
