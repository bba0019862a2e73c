//! When compactions run: whenever there is something to pick and a place is free; and those that a user asks for.

use super::options::{SizeTiered, gc_before};
use super::picker::{Candidate, pick};
use super::task::Claimed;
use crate::config::{COMPACTIONS_AT_ONCE, RETRY_AFTER};
use crate::engine::Engine;
use crate::error::EngineError;
use crate::metrics::add;
use crate::sstable_set::Attached;
use crate::table::Table;
use crate::tablet::Tablet;
use model::TableId;
use model::schema::TableSchema;
use rt::sync::{Notify, Semaphore};
use rt::time::Duration;
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

/// How often to look for work that time alone brings: tombstones that outlive their grace period.
const LOOK_AGAIN: Duration = Duration::from_secs(60);
/// Compactions larger than this leave one place to smaller ones.
const LARGE: u64 = 256 << 20;
/// 100 ns ticks between 1582-10-15 and 1970-01-01, for the age of an sstable by its name.
const EPOCH_TICKS: u64 = 0x01B2_1DD2_1381_4000;

/// A shard's compactions.
#[derive(Default)]
pub(crate) struct Compactions {
    wanted: Notify,
    large: Cell<usize>,
    pending: Cell<u64>,
}

impl Compactions {
    /// Something changed: look for work.
    pub fn wake(&self) {
        self.wanted.notify_one();
    }

    /// Compactions that wait for a place.
    pub fn pending(&self) -> u64 {
        self.pending.get()
    }
}

/// A compaction that could run.
struct Job {
    table: Rc<Table>,
    tablet: Rc<Tablet>,
    inputs: Vec<Rc<Attached>>,
    bytes: u64,
}

impl Engine {
    /// Runs compactions for the engine's life.
    pub(crate) async fn compaction_loop(self: &Rc<Self>) {
        let places = Arc::new(Semaphore::new(COMPACTIONS_AT_ONCE));
        while !self.stopping().is_cancelled() {
            let Ok(place) = places.clone().acquire_owned().await else { return };
            if self.stopping().is_cancelled() {
                break;
            }
            match self.next_job() {
                Some(job) => self.run_in_background(job, place),
                None => {
                    drop(place);
                    let wanted = self.compactions().wanted.notified();
                    let _ = self.stopping().unless(rt::time::timeout(LOOK_AGAIN, wanted)).await;
                }
            }
        }
        // All places free: nothing runs any more.
        let _ = places.acquire_many(COMPACTIONS_AT_ONCE as u32).await;
    }

    fn run_in_background(self: &Rc<Self>, job: Job, place: rt::sync::OwnedSemaphorePermit) {
        let engine = self.clone();
        let claimed = Claimed::new(job.inputs);
        let cancel = job.table.compaction_cancel();
        let is_large = job.bytes > LARGE;
        if is_large {
            self.compactions().large.set(self.compactions().large.get() + 1);
        }
        rt::task::spawn(async move {
            let done = engine.compact(&job.table, &job.tablet, &claimed, &cancel).await;
            if let Err(error) = done
                && !matches!(error, EngineError::Cancelled)
            {
                add(&engine.counters().compaction_failures, 1);
                tracing::error!(table = %job.table.schema().name, tablet = job.tablet.id, %error, "a compaction failed");
                let _ = engine.stopping().unless(cancel.unless(rt::time::sleep(RETRY_AFTER))).await;
            }
            if is_large {
                engine.compactions().large.set(engine.compactions().large.get() - 1);
            }
            drop(claimed);
            drop(place);
            engine.compactions().wake();
        })
        .detach();
    }

    /// The compaction that reduces the number of sstables most; of equal ones the smallest.
    fn next_job(&self) -> Option<Job> {
        let large_allowed = self.compactions().large.get() + 1 < COMPACTIONS_AT_ONCE;
        let (mut best, mut found): (Option<Job>, u64) = (None, 0);
        let now = rt::time::wall_seconds();
        for table in self.all_tables() {
            let schema = table.schema();
            let options = SizeTiered::of(&schema.options.compaction);
            if !table.may_compact_by_itself() || !options.enabled {
                continue;
            }
            for tablet in table.tablets().iter() {
                let Some(inputs) = pick_inputs(tablet, &schema, &options, now) else { continue };
                found += 1;
                let bytes = inputs.iter().map(|own| own.sstable.total_bytes()).sum();
                if bytes > LARGE && !large_allowed {
                    continue;
                }
                let better = best.as_ref().is_none_or(|best| {
                    (inputs.len(), std::cmp::Reverse(bytes)) > (best.inputs.len(), std::cmp::Reverse(best.bytes))
                });
                if better {
                    best = Some(Job { table: table.clone(), tablet: tablet.clone(), inputs, bytes });
                }
            }
        }
        self.compactions().pending.set(found.saturating_sub(u64::from(best.is_some())));
        best
    }

    /// Merges all sstables of each of a table's tablets into one, memtables included.
    pub async fn compact_major(&self, table: TableId) -> Result<(), EngineError> {
        let table = self.table_or_error(table)?;
        self.detached(|engine| async move { engine.compact_whole(&table).await }).await
    }

    async fn compact_whole(&self, table: &Rc<Table>) -> Result<(), EngineError> {
        self.flush(Some(table.schema().id)).await?;
        let _paused = table.pause_compactions();
        table.stop_compactions().await;
        for tablet in table.tablets().iter() {
            let inputs: Vec<_> = tablet.sstables().iter().filter(|own| own.is_free()).cloned().collect();
            if inputs.is_empty() {
                continue;
            }
            let claimed = Claimed::new(inputs);
            self.compact(table, tablet, &claimed, &table.compaction_cancel()).await?;
        }
        Ok(())
    }

    /// Lets a table be compacted without being asked, or not. The table's own option `enabled` counts too.
    pub fn set_auto_compaction(&self, table: TableId, on: bool) -> Result<(), EngineError> {
        self.table_or_error(table)?.auto_compaction.set(on);
        self.compactions().wake();
        Ok(())
    }
}

fn pick_inputs(tablet: &Tablet, schema: &TableSchema, options: &SizeTiered, now: i64) -> Option<Vec<Rc<Attached>>> {
    let set = tablet.sstables();
    if set.len() == 0 {
        return None;
    }
    let free: Vec<_> = set.iter().filter(|own| own.is_free()).collect();
    let gc_before = gc_before(schema, now);
    let candidates: Vec<_> = free
        .iter()
        .map(|own| {
            let stats = own.sstable.stats();
            let cells = stats.partition_cells.sum().max(1.0);
            Candidate {
                size: own.sstable.data_bytes(),
                droppable: (stats.drop_times.before(gc_before) / cells).min(1.0),
                age: age(own, now),
            }
        })
        .collect();
    let picked = pick(&candidates, options)?;
    Some(picked.into_iter().map(|i| free[i].clone()).collect())
}

/// How long ago an sstable was written, by its name; those from elsewhere count as old.
fn age(own: &Attached, now: i64) -> Duration {
    let Some(uuid) = own.generation().uuid() else { return Duration::MAX };
    let (most, _) = uuid.as_u64_pair();
    let ticks = (most & 0x0fff) << 48 | (most >> 16 & 0xffff) << 32 | most >> 32;
    let written = (ticks.saturating_sub(EPOCH_TICKS) / 10_000_000) as i64;
    Duration::from_secs(now.saturating_sub(written).max(0) as u64)
}
