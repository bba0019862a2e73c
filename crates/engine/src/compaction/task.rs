//! One compaction: merge the inputs, write the outputs, replace the ones by the others.
//!
//! Order: seal the outputs; in one step swap them for the inputs in the tablet's set; write the deletion log that names all inputs
//! (from then on they are gone, whatever happens); unlink. A crash before the deletion log leaves all inputs beside some outputs, which
//! say the same; a crash after it finishes the unlinking at the next start. Inputs must never be unlinked one by one without it: a
//! tombstone could go before what it covers.

use super::outputs::{self, Outputs};
use super::progress::{CompactionKind, Running};
use super::purge::Purge;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::memtable::Interval;
use crate::metrics::add;
use crate::table::{Attached, Table, Tablet};
use model::compact::{Compactor, Rules};
use model::fragment::Fragment;
use model::merge::{Merger, Step};
use model::range::{PartitionRange, Slice};
use model::time::{Seconds, Timestamp};
use rt::sync::Cancel;
use rt::task::Group;
use std::collections::VecDeque;
use std::rc::Rc;

/// Fragments are handed to the writer in buffers of about this many bytes.
const BUFFER_BYTES: usize = 64 << 10;

/// Inputs of a compaction, marked so that no other takes them, until dropped.
pub(crate) struct Claimed(Vec<Rc<Attached>>);

impl Claimed {
    /// Claims sstables; none of them may be claimed already.
    pub fn new(inputs: Vec<Rc<Attached>>) -> Self {
        for input in &inputs {
            assert!(!input.compacting.replace(true), "an sstable is compacted once at a time");
        }
        Claimed(inputs)
    }
}

impl Drop for Claimed {
    fn drop(&mut self) {
        for input in &self.0 {
            input.compacting.set(false);
        }
    }
}

/// What a compaction has to do.
pub(crate) struct Plan {
    pub kind: CompactionKind,
    pub inputs: Claimed,
    /// The level of what comes out.
    pub level: u32,
    /// The size at which a new sstable is begun, in bytes.
    pub split: Option<u64>,
    /// The one input goes to the level as it is, if that is possible.
    pub moves: bool,
    /// The inputs are not read: all they hold has expired.
    pub expired: bool,
}

impl Engine {
    /// Carries out a plan. `Cancelled` if `cancel` fires first, `Stopped` if an administrator stops it; then nothing has changed.
    /// Must run as a task: dropped half-way it could leave a sealed sstable that nobody knows of, and that a restart would find.
    pub(crate) async fn compact(
        &self,
        table: &Rc<Table>,
        tablet: &Rc<Tablet>,
        plan: &Plan,
        cancel: &Cancel,
    ) -> Result<(), EngineError> {
        if self.stopping().is_cancelled() || table.is_voiding() {
            return Err(EngineError::Cancelled);
        }
        let Some(_working) = table.work.enter() else { return Err(EngineError::Cancelled) };
        let inside = table.compacting.borrow().enter();
        let Some(_inside) = inside else { return Err(EngineError::Cancelled) };
        let running = Running::new(self, plan.kind, &table.schema(), tablet.id);
        if plan.moves && self.move_sstable(table, tablet, plan).await? {
            return Ok(());
        }
        self.compactions().wake_share();
        let outputs =
            rt::task::in_group(Group::Maintenance, self.merge_sstables(table, tablet, plan, &running, cancel)).await?;
        let bytes = |sstables: &[Rc<Attached>]| sstables.iter().map(|own| own.sstable.total_bytes()).sum::<u64>();
        let inputs = &plan.inputs.0;
        let counts = ((inputs.len(), bytes(inputs)), (outputs.len(), bytes(&outputs)));
        // From here on it is finished even if cancelled: the outputs are sealed.
        self.replace_sstables(table, tablet, inputs, outputs).await?;
        add(&self.counters().compactions, 1);
        self.remember_compaction(running.what(), counts.0, counts.1);
        Ok(())
    }

    /// Puts the one input on the plan's level without writing its data again. False if that is not possible: then nothing has changed, and
    /// it has to be written again.
    async fn move_sstable(&self, table: &Rc<Table>, tablet: &Tablet, plan: &Plan) -> Result<bool, EngineError> {
        let [input] = &plan.inputs.0[..] else { return Ok(false) };
        if !input.sstable.is_protected() {
            return Ok(false);
        }
        let relabeled = input.sstable.relabeled(sstable::Generation::fresh(), plan.level).await;
        let unsealed = match relabeled {
            Ok(unsealed) => unsealed,
            Err(error) => {
                tracing::warn!(generation = %input.generation(), %error, "an sstable cannot be moved to another level as it is");
                return Ok(false);
            }
        };
        let outputs = outputs::seal(self, table, vec![unsealed], &input.intervals).await?;
        self.replace_sstables(table, tablet, std::slice::from_ref(input), outputs).await?;
        add(&self.counters().moves, 1);
        Ok(true)
    }

    async fn merge_sstables(
        &self,
        table: &Rc<Table>,
        tablet: &Rc<Tablet>,
        plan: &Plan,
        running: &Running<'_>,
        cancel: &Cancel,
    ) -> Result<Vec<Rc<Attached>>, EngineError> {
        let inputs = &plan.inputs.0;
        let schema = table.schema();
        let now = rt::time::wall_seconds();
        let rules = Rules::of(&schema, now);
        let purge = Purge::new(table, tablet, inputs);
        let purges = may_purge(inputs, rules.gc_before);
        let expired = if plan.expired { inputs.clone() } else { purge.fully_expired(rules.gc_before) };
        let read: Vec<_> = inputs.iter().filter(|own| !expired.iter().any(|gone| Rc::ptr_eq(own, gone))).collect();
        running.expect(read.iter().map(|own| own.sstable.content_bytes()).sum());
        let range = match plan.kind {
            CompactionKind::Compaction => PartitionRange::FULL,
            CompactionKind::Cleanup => tablet.range.clone(),
        };
        let slice = Rc::new(Slice::full());
        let options = sstable::ReadOptions {
            window: self.config().compaction_window(read.len()),
            job: self.large_jobs().next_id(None),
            ..sstable::ReadOptions::BACKGROUND
        };
        let mut readers: Vec<_> =
            read.iter().map(|own| own.sstable.reader(&schema, range.clone(), slice.clone(), options)).collect();
        let mut merger = Merger::new(schema.clone(), schema.order.clone(), readers.len());
        let mut compactor = Compactor::new(rules);
        let partitions = read.iter().map(|own| own.partitions()).sum();
        let options = sstable::WriterOptions {
            expected_partitions: expected_partitions(partitions, &read, plan.split),
            level: plan.level,
            ..self.writer_options(&schema)
        };
        let mut outputs = Outputs::new(self, table, schema.clone(), options, plan.split, hulls(inputs));
        let mut buffer = VecDeque::new();
        let (mut weight, mut steps) = (0usize, 0u32);
        let failure = loop {
            steps += 1;
            if steps.is_multiple_of(64) {
                rt::task::maybe_yield().await;
            }
            let end = match merger.step() {
                Step::Emit(fragment) => {
                    compactor.push(
                        fragment,
                        |key| if purges { purge.max_purgeable(key) } else { Timestamp::MIN },
                        |fragment: Fragment| {
                            weight += fragment.weight();
                            buffer.push_back(fragment);
                        },
                    );
                    false
                }
                Step::Need(i) => {
                    let before = readers[i].position();
                    // What it gave before was merged and written.
                    readers[i].large_is_done();
                    match readers[i].fill(merger.buffer(i)).await {
                        Ok(true) => {}
                        Ok(false) => merger.finish(i),
                        Err(error) => {
                            read[i].note_error(&error);
                            break Some(error.into());
                        }
                    }
                    running.has_read(readers[i].position().saturating_sub(before));
                    false
                }
                Step::End => true,
            };
            if weight >= BUFFER_BYTES || (end && !buffer.is_empty()) {
                if let Err(error) = outputs.write(&mut buffer).await {
                    break Some(error);
                }
                self.compactions().throttle.wrote(weight, self.config().compaction_throughput, cancel).await;
                weight = 0;
            }
            if end {
                break None;
            }
            if cancel.is_cancelled() {
                break Some(EngineError::Cancelled);
            }
            if running.is_stopped() {
                break Some(EngineError::Stopped);
            }
        };
        if let Some(error) = failure {
            outputs.abandon().await;
            return Err(error);
        }
        let attached = outputs.finish().await?;
        add(&self.counters().compacted_bytes_in, inputs.iter().map(|own| own.sstable.total_bytes()).sum());
        add(&self.counters().compacted_bytes_out, attached.iter().map(|own| own.sstable.total_bytes()).sum());
        Ok(attached)
    }

    /// Puts `outputs` in the place of `inputs`, atomically across a crash.
    async fn replace_sstables(
        &self,
        table: &Table,
        tablet: &Tablet,
        inputs: &[Rc<Attached>],
        outputs: Vec<Rc<Attached>>,
    ) -> Result<(), EngineError> {
        if outputs.is_empty() {
            // Nothing would tell replay any more that the log's records of the inputs are done with.
            self.remember_covered(table, tablet.id, &hulls(inputs)).await?;
        }
        for output in &outputs {
            // No other compaction may take it before the inputs are gone for good: it could purge what covers data of theirs, and
            // a restart would bring that data back.
            output.compacting.set(true);
        }
        // Readers that begin now take the outputs; those that have the inputs open keep them.
        tablet.replace(inputs, outputs.iter().cloned());
        if let Err(error) = self.delete_files(table, inputs).await {
            // They may be back after a restart, so nothing that covers their data may be purged in this run.
            table.unreadable.borrow_mut().extend(inputs.iter().map(|own| own.sstable.dir().to_path_buf()));
            return Err(error);
        }
        for output in &outputs {
            output.compacting.set(false);
        }
        Ok(())
    }
}

/// Whether anything in the inputs has outlived its grace period. Where nothing has, nobody need be asked for each key what else holds it.
fn may_purge(inputs: &[Rc<Attached>], gc_before: Seconds) -> bool {
    inputs.iter().any(|own| {
        let stats = own.sstable.stats();
        // What has expired counts as deleted when it was written.
        stats.min_deletion_time.saturating_sub(stats.max_ttl.max(0)) < gc_before
    })
}

/// How many partitions an output will have, for its filter: all, or as many as fit.
fn expected_partitions(partitions: u64, read: &[&Rc<Attached>], split: Option<u64>) -> u64 {
    let bytes: u64 = read.iter().map(|own| own.sstable.data_bytes()).sum();
    let outputs = split.map_or(1, |split| (bytes / split.max(1)).max(1));
    partitions.div_ceil(outputs)
}

/// What the inputs cover of each shard's log, as one interval per shard: a tablet's memtables are flushed in order, so what lies
/// between two sealed ones is sealed too.
fn hulls(inputs: &[Rc<Attached>]) -> Vec<Interval> {
    let mut hulls: Vec<Interval> = Vec::new();
    for interval in inputs.iter().flat_map(|own| &own.intervals) {
        match hulls.iter_mut().find(|hull| hull.shard() == interval.shard()) {
            Some(hull) => *hull = hull.hull(interval),
            None => hulls.push(*interval),
        }
    }
    hulls
}
