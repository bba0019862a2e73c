//! One compaction: merge the inputs, write the outputs, replace the inputs by the outputs.
//!
//! Order:
//!
//! 1. Seal the outputs.
//! 2. Replace the inputs by the outputs in the tablet's sstable set, in one step.
//! 3. Replace the list of the shard's sstables: it names the outputs, and the inputs no longer.
//! 4. Write the deletion log, which lists all inputs. From then on they count as deleted.
//! 5. Unlink the inputs.
//!
//! A crash before the deletion log leaves all inputs together with some outputs: the same data
//! twice. After a later crash, the next start completes the unlinking. Inputs must never be
//! unlinked one by one without the deletion log: a tombstone could disappear before the data that
//! it covers.

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
use model::merge::{LargeRow, Merger, Step};
use model::range::{PartitionRange, Slice};
use model::schema::TableSchema;
use model::time::{Seconds, Timestamp};
use rt::sync::Cancel;
use rt::task::Group;
use std::collections::VecDeque;
use std::rc::Rc;

/// Fragments are passed to the writer in buffers of about this many bytes.
const BUFFER_BYTES: usize = 64 << 10;
/// Steps of the merge between two looks at the clock.
const YIELD_EVERY: u32 = 16;

/// Inputs of a compaction, marked so that no other compaction takes them, until dropped.
pub(crate) struct Claimed(Vec<Rc<Attached>>);

impl Claimed {
    /// Claims sstables. None of them may be claimed already.
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

/// A compaction to run.
pub(crate) struct Plan {
    pub kind: CompactionKind,
    pub inputs: Claimed,
    /// The level of the outputs.
    pub level: u32,
    /// The size at which a new sstable is begun, in bytes.
    pub split: Option<u64>,
    /// The only input moves to the level unchanged, if possible.
    pub moves: bool,
    /// The inputs have expired entirely, and are not read.
    pub expired: bool,
}

impl Engine {
    /// Runs a plan. Returns `Cancelled` if `cancel` fires first, and `Stopped` if an administrator
    /// stops it; then nothing has changed. Must run as a task: if the future were dropped, a sealed
    /// output could remain on disk unnoticed, and a restart would load it.
    pub(crate) async fn compact(
        &self,
        table: &Rc<Table>,
        tablet: &Rc<Tablet>,
        plan: &Plan,
        cancel: &Cancel,
    ) -> Result<(), EngineError> {
        // The plan may be older than a removal of its inputs that has ended meanwhile.
        if self.stopping().is_cancelled() || cancel.is_cancelled() || table.excludes_compactions() {
            return Err(EngineError::Cancelled);
        }
        let Some(_inside) = tablet.compactions.enter() else { return Err(EngineError::Cancelled) };
        let Some(_working) = table.work.enter() else { return Err(EngineError::Cancelled) };
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
        // From here on a cancellation has no effect: the outputs are sealed.
        self.replace_sstables(table, tablet, inputs, outputs).await?;
        add(&self.counters().compactions, 1);
        self.record_compaction(running.what(), counts.0, counts.1);
        Ok(())
    }

    /// Moves the only input to the plan's level without rewriting its data. Returns false if that
    /// is not possible: then nothing has changed, and the input must be rewritten.
    async fn move_sstable(&self, table: &Rc<Table>, tablet: &Tablet, plan: &Plan) -> Result<bool, EngineError> {
        let [input] = &plan.inputs.0[..] else { return Ok(false) };
        if !input.sstable.is_protected() {
            return Ok(false);
        }
        let relabeled = input.sstable.relabeled(sstable::Generation::fresh(), plan.level).await;
        let unsealed = match relabeled {
            Ok(unsealed) => unsealed,
            Err(error) => {
                tracing::warn!(generation = %input.generation(), %error, "an sstable cannot be moved to another level as it is: rewriting it");
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
        let mut readers = self.compaction_readers(&schema, &range, &read);
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
            if steps.is_multiple_of(YIELD_EVERY) {
                rt::task::maybe_yield().await;
            }
            let step = match merger.step() {
                Step::Merge(large) => Step::Emit(merged(large, &schema).await),
                step => step,
            };
            let end = match step {
                Step::Merge(_) => unreachable!("it is merged above"),
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
                    // The fragments read before were merged and written.
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
                let throttle = &self.compactions().throttle;
                throttle.set(self.config().compaction_throughput);
                let _ = cancel.unless(throttle.wait(weight as u64)).await;
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

    /// The readers of these sstables for one compaction.
    fn compaction_readers(
        &self,
        schema: &Rc<TableSchema>,
        range: &PartitionRange,
        read: &[&Rc<Attached>],
    ) -> Vec<sstable::Reader> {
        let slice = Rc::new(Slice::full());
        let options = sstable::ReadOptions {
            window: self.config().compaction_window(read.len()),
            job: self.large_jobs().next_id(None),
            ..sstable::ReadOptions::BACKGROUND
        };
        read.iter().map(|own| own.sstable.reader(schema, range.clone(), slice.clone(), options)).collect()
    }

    /// Replaces `inputs` by `outputs`, atomically across a crash.
    async fn replace_sstables(
        &self,
        table: &Table,
        tablet: &Tablet,
        inputs: &[Rc<Attached>],
        outputs: Vec<Rc<Attached>>,
    ) -> Result<(), EngineError> {
        debug_assert!(inputs.iter().all(|input| input.compacting.get()), "inputs are claimed until they are replaced");
        debug_assert!(
            outputs.is_empty() || hulls(&outputs) == hulls(inputs),
            "outputs cover the records of the log that their inputs cover"
        );
        if outputs.is_empty() {
            // No output records that the commitlog records of the inputs are covered, so the table
            // must.
            self.remember_covered(table, tablet, &hulls(inputs)).await?;
        }
        for output in &outputs {
            // No other compaction may take the outputs before the inputs are deleted durably. It
            // could purge tombstones that cover data of the inputs, and a restart would bring that
            // data back.
            output.compacting.set(true);
        }
        // New readers use the outputs. Readers that have the inputs open keep them.
        tablet.replace(inputs, outputs.iter().cloned());
        let removed = self.delete_files(table, inputs).await;
        // After an error nothing is purged in this table until the inputs are removed.
        for output in &outputs {
            output.compacting.set(false);
        }
        removed
    }
}

/// Merges the versions of a large row.
async fn merged(mut large: Box<LargeRow>, schema: &TableSchema) -> Fragment {
    loop {
        if let Some(fragment) = large.run(schema) {
            return fragment;
        }
        rt::task::maybe_yield().await;
    }
}

/// Whether anything in the inputs has outlived its grace period. If not, no key has to be looked up
/// in other sstables.
fn may_purge(inputs: &[Rc<Attached>], gc_before: Seconds) -> bool {
    inputs.iter().any(|own| {
        let stats = own.sstable.stats();
        // An expired cell counts as deleted at the time when it was written.
        stats.min_deletion_time.saturating_sub(stats.max_ttl.max(0)) < gc_before
    })
}

/// The expected number of partitions of an output, for its filter.
fn expected_partitions(partitions: u64, read: &[&Rc<Attached>], split: Option<u64>) -> u64 {
    let bytes: u64 = read.iter().map(|own| own.sstable.data_bytes()).sum();
    let outputs = split.map_or(1, |split| (bytes / split.max(1)).max(1));
    partitions.div_ceil(outputs)
}

/// The intervals of the inputs, as one interval for each shard's commitlog. The memtables of a
/// tablet are flushed in order, so all records between two sealed intervals are in sstables, too.
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
