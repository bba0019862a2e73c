//! One compaction: merge the inputs, write the output, replace the ones by the other.
//!
//! Order: seal the output; in one step swap it for the inputs in the tablet's set; write the deletion log that names all inputs
//! (from then on they are gone, whatever happens); unlink. A crash before the deletion log leaves inputs and output side by side, which say
//! the same; a crash after it finishes the unlinking at the next start. Inputs must never be unlinked one by one without it: a
//! tombstone could go before what it covers.

use super::options::gc_before;
use super::purge::Purge;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::flush::Output;
use crate::memtable::Interval;
use crate::metrics::{Running, add};
use crate::sstable_set::Attached;
use crate::table::Table;
use crate::tablet::Tablet;
use model::compact::{Compactor, Rules};
use model::fragment::Fragment;
use model::merge::{Merger, Step};
use model::range::{PartitionRange, Slice};
use rt::fs::IoClass;
use rt::sync::Cancel;
use rt::time::{Duration, Instant};
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

impl Engine {
    /// Compacts the inputs into one sstable, or none. `Cancelled` if `cancel` fires first; then nothing has changed. Must run as
    /// a task: dropped half-way it could leave a sealed sstable that nobody knows of, and that a restart would find.
    pub(crate) async fn compact(
        &self,
        table: &Rc<Table>,
        tablet: &Rc<Tablet>,
        inputs: &Claimed,
        cancel: &Cancel,
    ) -> Result<(), EngineError> {
        if self.stopping().is_cancelled() {
            return Err(EngineError::Cancelled);
        }
        let Some(_working) = table.work.enter() else { return Err(EngineError::Cancelled) };
        let running = table.compacting.borrow().enter();
        let Some(_running) = running else { return Err(EngineError::Cancelled) };
        let _counted = Running::new(&self.counters().compactions_running);
        let output = rt::task::background(self.merge_sstables(table, tablet, &inputs.0, cancel)).await?;
        // From here on it is finished even if cancelled: the output is sealed.
        self.replace_sstables(table, tablet, &inputs.0, output).await?;
        add(&self.counters().compactions, 1);
        Ok(())
    }

    async fn merge_sstables(
        &self,
        table: &Rc<Table>,
        tablet: &Rc<Tablet>,
        inputs: &[Rc<Attached>],
        cancel: &Cancel,
    ) -> Result<Option<Rc<Attached>>, EngineError> {
        let schema = table.schema();
        let now = rt::time::wall_seconds();
        let rules = Rules { now: now.clamp(0, i64::from(i32::MAX)) as i32, gc_before: gc_before(&schema, now) };
        let purge = Purge::new(table, tablet, inputs);
        let expired = purge.fully_expired(rules.gc_before);
        let read: Vec<_> = inputs.iter().filter(|own| !expired.iter().any(|gone| Rc::ptr_eq(own, gone))).collect();
        let slice = Rc::new(Slice::full());
        let options =
            sstable::ReadOptions { class: IoClass::Background, fill_cache: false, use_cache: true, read_ahead: true };
        let mut readers: Vec<_> =
            read.iter().map(|own| own.sstable.reader(&schema, PartitionRange::FULL, slice.clone(), options)).collect();
        let mut merger = Merger::new(schema.clone(), schema.order.clone(), readers.len());
        let mut compactor = Compactor::new(rules);
        let partitions = read.iter().map(|own| own.partitions()).sum();
        let mut output: Option<Output> = None;
        let mut buffer = VecDeque::new();
        let (mut weight, mut steps) = (0usize, 0u32);
        let mut throttle = Throttle::new(self.config().compaction_throughput);
        let failure = loop {
            steps += 1;
            if steps.is_multiple_of(64) {
                rt::task::maybe_yield().await;
            }
            let end = match merger.step() {
                Step::Emit(fragment) => {
                    compactor.push(
                        fragment,
                        |key| purge.max_purgeable(key),
                        |fragment: Fragment| {
                            weight += fragment.weight();
                            buffer.push_back(fragment);
                        },
                    );
                    false
                }
                Step::Need(i) => {
                    match readers[i].fill(merger.buffer(i)).await {
                        Ok(true) => {}
                        Ok(false) => merger.finish(i),
                        Err(error) => {
                            read[i].note_error(&error);
                            break Some(error.into());
                        }
                    }
                    false
                }
                Step::End => true,
            };
            if weight >= BUFFER_BYTES || (end && !buffer.is_empty()) {
                if output.is_none() {
                    let options =
                        sstable::WriterOptions { expected_partitions: partitions, ..self.writer_options(&schema) };
                    output = Some(Output::create(&table.dir, schema.clone(), options).await?);
                }
                if let Some(output) = &mut output
                    && let Err(error) = output.write(&mut buffer).await
                {
                    break Some(error);
                }
                throttle.wrote(weight, cancel).await;
                weight = 0;
            }
            if end {
                break None;
            }
            if cancel.is_cancelled() {
                break Some(EngineError::Cancelled);
            }
        };
        if let Some(error) = failure {
            if let Some(output) = output {
                output.abandon().await;
            }
            return Err(error);
        }
        add(&self.counters().compacted_bytes_in, inputs.iter().map(|own| own.sstable.total_bytes()).sum());
        let Some(output) = output else { return Ok(None) };
        let attached = output.finish(&hulls(inputs), self, table).await?;
        add(&self.counters().compacted_bytes_out, attached.as_ref().map_or(0, |own| own.sstable.total_bytes()));
        Ok(attached)
    }

    /// Puts `output` in the place of `inputs`, atomically across a crash.
    async fn replace_sstables(
        &self,
        table: &Table,
        tablet: &Tablet,
        inputs: &[Rc<Attached>],
        output: Option<Rc<Attached>>,
    ) -> Result<(), EngineError> {
        if output.is_none() {
            // Nothing would tell replay any more that the log's records of the inputs are done with.
            self.remember_covered(table, tablet.id, &hulls(inputs)).await?;
        }
        if let Some(output) = &output {
            // No other compaction may take it before the inputs are gone for good: it could purge what covers data of theirs, and
            // a restart would bring that data back.
            output.compacting.set(true);
        }
        // Readers that begin now take the output; those that have the inputs open keep them.
        tablet.replace(inputs, output.clone());
        if let Err(error) = self.delete_files(table, inputs).await {
            // They may be back after a restart, so nothing that covers their data may be purged in this run.
            table.unreadable.borrow_mut().extend(inputs.iter().map(|own| own.sstable.dir().to_path_buf()));
            return Err(error);
        }
        if let Some(output) = &output {
            output.compacting.set(false);
        }
        Ok(())
    }
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

/// Holds a compaction to a number of bytes per second.
struct Throttle {
    limit: u64,
    started: Instant,
    written: u64,
}

impl Throttle {
    fn new(limit: u64) -> Self {
        Throttle { limit, started: rt::time::now(), written: 0 }
    }

    async fn wrote(&mut self, bytes: usize, cancel: &Cancel) {
        if self.limit == 0 {
            return;
        }
        self.written += bytes as u64;
        let due = Duration::from_secs_f64(self.written as f64 / self.limit as f64);
        let _ = cancel.unless(rt::time::sleep_until(self.started + due)).await;
    }
}
