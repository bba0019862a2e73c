//! Starts compactions: whenever there is something to pick and a slot is free, several tablets at a
//! time.
//!
//! Dropping sstables that have expired entirely and moving sstables to another level come first,
//! because they cost nothing. Then comes the compaction that reduces the number of sstables most.

use super::history::History;
use super::options::{Options, Strategy};
use super::picker::{Candidate, Pick, backlog, pick};
use super::progress::{CompactionKind, Entries};
use super::purge::Purge;
use super::task::{Claimed, Plan};
use crate::config::{COMPACTIONS_AT_ONCE, RETRY_AFTER};
use crate::engine::Engine;
use crate::error::EngineError;
use crate::metrics::add;
use crate::table::{Attached, Table, Tablet};
use model::TableId;
use model::compact::Rules;
use model::schema::TableSchema;
use rt::Throttle;
use rt::sync::{Notify, Semaphore};
use rt::time::Duration;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

/// How often to look for work that appears with time alone: tombstones that outlive their grace
/// period.
const RECHECK_INTERVAL: Duration = Duration::from_secs(60);
/// How long the sstables of a stopped compaction are left alone.
const PAUSE_AFTER_STOP: Duration = Duration::from_secs(60);
/// Compactions larger than this leave one slot to smaller ones.
const LARGE: u64 = 256 << 20;
/// 100 ns ticks between 1582-10-15 and 1970-01-01: the generation of an sstable contains its time.
const EPOCH_TICKS: u64 = 0x01B2_1DD2_1381_4000;

/// The compactions of a shard.
#[derive(Default)]
pub(crate) struct Compactions {
    wanted: Notify,
    large: Cell<usize>,
    pending: Cell<u64>,
    /// The same number by table.
    pending_of: RefCell<Vec<(Rc<TableSchema>, u64)>>,
    pub(super) running: Entries,
    pub(super) history: History,
    pub(super) throttle: Throttle,
    /// The backlog in bytes, at the last look.
    pub(super) backlog: Cell<f64>,
    /// The share of time that maintenance got last, in 1/1000; 0 for none yet.
    pub(super) share: Cell<u32>,
    pub(super) share_wanted: Notify,
}

/// The result of the last look at a tablet. With thousands of tablets, most looks must cost almost
/// nothing.
#[derive(Default)]
pub(crate) struct PickMemo {
    idle: RefCell<Option<IdleState>>,
    /// When the tablet was last searched for expired sstables, in seconds since 1970.
    expired_check: Cell<Option<i64>>,
}

/// The state of a tablet that had nothing to compact. There is still nothing to compact while the
/// state is the same and `RECHECK_INTERVAL` has not passed.
struct IdleState {
    schema: Rc<TableSchema>,
    set: u64,
    taken: usize,
    at: i64,
    backlog: f64,
}

impl PickMemo {
    /// The backlog, if there is still nothing to compact.
    fn still_idle(&self, now: &IdleState) -> Option<f64> {
        let before = self.idle.borrow();
        let before = before.as_ref()?;
        let same = Rc::ptr_eq(&before.schema, &now.schema) && before.set == now.set && before.taken == now.taken;
        (same && (0..RECHECK_INTERVAL.as_secs() as i64).contains(&(now.at - before.at))).then_some(before.backlog)
    }
}

impl Compactions {
    /// Looks for work, because something changed.
    pub fn wake(&self) {
        self.wanted.notify_one();
    }

    /// Maintenance work begins: recomputes its share of time.
    pub fn wake_share(&self) {
        self.share_wanted.notify_one();
    }

    /// Wakes all background tasks when the engine stops, so that the history is saved and they end.
    pub fn wake_all(&self) {
        self.wake();
        self.history.wake();
    }

    /// The number of compactions that wait for a slot.
    pub fn pending(&self) -> u64 {
        self.pending.get()
    }

    /// The backlog in bytes.
    pub fn backlog(&self) -> f64 {
        self.backlog.get()
    }

    /// The share of time that maintenance got last, in 1/1000; 0 before the first maintenance work.
    pub fn share(&self) -> u32 {
        self.share.get()
    }
}

/// A compaction that could run.
struct Job {
    table: Rc<Table>,
    tablet: Rc<Tablet>,
    picked: PickedCompaction,
    bytes: u64,
}

/// The compaction to run in a tablet.
struct PickedCompaction {
    inputs: Vec<Rc<Attached>>,
    level: u32,
    split: Option<u64>,
    /// The only input moves to the level unchanged.
    moves: bool,
    /// The inputs are dropped without being read.
    expired: bool,
}

impl Engine {
    /// Starts compactions until the engine stops.
    pub(crate) async fn compaction_loop(self: &Rc<Self>) {
        let slots = Arc::new(Semaphore::new(COMPACTIONS_AT_ONCE));
        while !self.stopping().is_cancelled() {
            let Ok(slot) = slots.clone().acquire_owned().await else { return };
            if self.stopping().is_cancelled() {
                break;
            }
            match self.next_job() {
                Some(job) => self.run_in_background(job, slot),
                None => {
                    drop(slot);
                    let wanted = self.compactions().wanted.notified();
                    let _ = self.stopping().unless(rt::time::timeout(RECHECK_INTERVAL, wanted)).await;
                }
            }
        }
        // All slots are free: no compaction runs any more.
        let _ = slots.acquire_many(COMPACTIONS_AT_ONCE as u32).await;
    }

    fn run_in_background(self: &Rc<Self>, job: Job, slot: rt::sync::OwnedSemaphorePermit) {
        let engine = self.clone();
        let Job { table, tablet, picked, bytes } = job;
        let plan = Plan {
            kind: CompactionKind::Compaction,
            inputs: Claimed::new(picked.inputs),
            level: picked.level,
            split: picked.split,
            moves: picked.moves,
            expired: picked.expired,
        };
        let cancel = tablet.compactions.cancel();
        let is_large = bytes > LARGE;
        if is_large {
            self.compactions().large.set(self.compactions().large.get() + 1);
            debug_assert!(self.compactions().large.get() < COMPACTIONS_AT_ONCE, "a slot is left to small compactions");
        }
        rt::task::spawn(async move {
            let done = engine.compact(&table, &tablet, &plan, &cancel).await;
            if is_large {
                engine.compactions().large.set(engine.compactions().large.get() - 1);
            }
            let pause = match done {
                Ok(()) | Err(EngineError::Cancelled) => Duration::ZERO,
                Err(EngineError::Stopped) => {
                    drop(slot);
                    PAUSE_AFTER_STOP
                }
                Err(error) => {
                    if error.is_out_of_files() {
                        engine.cache().files().give_back();
                    }
                    add(&engine.counters().compaction_failures, 1);
                    let schema = table.schema();
                    tracing::error!(
                        keyspace = schema.keyspace, table = schema.name, tablet = tablet.id, %error,
                        "a compaction failed; retrying"
                    );
                    RETRY_AFTER
                }
            };
            if !pause.is_zero() {
                let _ = engine.stopping().unless(cancel.unless(rt::time::sleep(pause))).await;
            }
            drop(plan);
            engine.compactions().wake();
        })
        .detach();
    }

    /// The best job that may run now. Also counts the jobs that wait, and the backlog.
    fn next_job(&self) -> Option<Job> {
        let large_allowed = self.compactions().large.get() + 1 < COMPACTIONS_AT_ONCE;
        let (mut best, mut found, mut total): (Option<Job>, u64, f64) = (None, 0, 0.0);
        let now = rt::time::wall_seconds();
        let mut pending_of: Vec<(Rc<TableSchema>, u64)> = Vec::new();
        for table in self.all_tables() {
            let schema = table.schema();
            let options = Options::of(&schema.options.compaction);
            if !table.may_compact_by_itself() || !options.enabled {
                continue;
            }
            let found_before = found;
            for tablet in table.tablets().iter() {
                let set = tablet.sstables();
                if set.len() == 0 || tablet.compactions.exclusion().is_active() {
                    continue;
                }
                let taken = set.iter().filter(|own| !own.is_free()).count();
                let mut look = IdleState { schema: schema.clone(), set: set.version(), taken, at: now, backlog: 0.0 };
                if let Some(backlog) = tablet.pick_memo.still_idle(&look) {
                    total += backlog;
                    continue;
                }
                let (sstables, candidates) = candidates(tablet, &schema, now);
                look.backlog = backlog(&candidates, &options);
                total += look.backlog;
                let Some(one) = self.find(&table, tablet, &options, now, &sstables, &candidates) else {
                    tablet.pick_memo.idle.replace(Some(look));
                    continue;
                };
                tablet.pick_memo.idle.replace(None);
                found += 1;
                let bytes = match one.expired || one.moves {
                    true => 0,
                    false => one.inputs.iter().map(|own| own.sstable.total_bytes()).sum(),
                };
                if bytes > LARGE && !large_allowed {
                    continue;
                }
                let rank = |picked: &PickedCompaction, bytes| {
                    (picked.expired || picked.moves, picked.inputs.len(), std::cmp::Reverse(bytes))
                };
                if best.as_ref().is_none_or(|best| rank(&one, bytes) > rank(&best.picked, best.bytes)) {
                    best = Some(Job { table: table.clone(), tablet: tablet.clone(), picked: one, bytes });
                }
            }
            if found > found_before {
                pending_of.push((schema, found - found_before));
            }
        }
        if let Some(best) = &best {
            let begun = best.table.schema().id;
            for (_, count) in pending_of.iter_mut().filter(|(schema, _)| schema.id == begun) {
                *count -= 1;
            }
        }
        pending_of.retain(|(_, count)| *count > 0);
        self.compactions().pending_of.replace(pending_of);
        self.compactions().backlog.set(total);
        self.compactions().pending.set(found.saturating_sub(u64::from(best.is_some())));
        best
    }

    fn find(
        &self,
        table: &Table,
        tablet: &Tablet,
        options: &Options,
        now: i64,
        sstables: &[Rc<Attached>],
        candidates: &[Candidate],
    ) -> Option<PickedCompaction> {
        let inputs = self.expired(table, tablet, options, now, sstables);
        if !inputs.is_empty() {
            return Some(PickedCompaction { inputs, level: 0, split: None, moves: false, expired: true });
        }
        let Pick { inputs, level, split, moves } = pick(candidates, options)?;
        let inputs = inputs.into_iter().map(|i| sstables[i].clone()).collect();
        Some(PickedCompaction { inputs, level, split, moves, expired: false })
    }

    /// The sstables of a tablet that can be dropped without being read.
    fn expired(
        &self,
        table: &Table,
        tablet: &Tablet,
        options: &Options,
        now: i64,
        sstables: &[Rc<Attached>],
    ) -> Vec<Rc<Attached>> {
        let before = Rules::of(&table.schema(), now).gc_before;
        let is_expired = |own: &Attached| own.is_free() && own.sstable.stats().max_deletion_time < before;
        if !sstables.iter().any(|own| is_expired(own)) {
            return Vec::new();
        }
        if let Strategy::TimeWindow(windows) = &options.strategy {
            let last = &tablet.pick_memo.expired_check;
            let wait = windows.expired_check.as_secs().try_into().unwrap_or(i64::MAX);
            if last.get().is_some_and(|last| (0..wait).contains(&now.saturating_sub(last))) {
                return Vec::new();
            }
            last.set(Some(now));
            if windows.drop_unchecked {
                return sstables.iter().filter(|own| is_expired(own)).cloned().collect();
            }
        }
        let free: Vec<_> = sstables.iter().filter(|own| own.is_free()).cloned().collect();
        Purge::new(table, tablet, &free).fully_expired(before)
    }

    /// The number of compactions that wait for a slot: keyspace, table, number.
    pub fn compactions_pending(&self) -> Vec<(String, String, u64)> {
        let pending = self.compactions().pending_of.borrow();
        pending.iter().map(|(schema, count)| (schema.keyspace.clone(), schema.name.clone(), *count)).collect()
    }

    /// Whether automatic compaction is on for a table.
    pub fn auto_compaction(&self, table: TableId) -> Result<bool, EngineError> {
        Ok(self.table_or_error(table)?.auto_compaction.get())
    }

    /// Turns automatic compaction of a table on or off. The table's option `enabled` must be on,
    /// too.
    pub fn set_auto_compaction(&self, table: TableId, on: bool) -> Result<(), EngineError> {
        self.table_or_error(table)?.auto_compaction.set(on);
        self.compactions().wake();
        Ok(())
    }
}

/// The sstables of a tablet that compaction may take now or later, and the picker's view of each.
pub(super) fn candidates(tablet: &Tablet, schema: &TableSchema, now: i64) -> (Vec<Rc<Attached>>, Vec<Candidate>) {
    let gc_before = Rules::of(schema, now).gc_before;
    let set = tablet.sstables();
    let sstables: Vec<_> = set.iter().filter(|own| own.is_free() || own.compacting.get()).cloned().collect();
    let candidates = sstables
        .iter()
        .map(|own| {
            let stats = own.sstable.stats();
            let cells = stats.partition_cells.sum().max(1.0);
            Candidate {
                size: own.sstable.data_bytes(),
                droppable: (stats.drop_times.before(gc_before) / cells).min(1.0),
                age: age(own, now),
                level: stats.level,
                newest: stats.max_timestamp,
                span: (own.sstable.first_key().token.0, own.sstable.last_key().token.0),
                busy: own.compacting.get(),
            }
        })
        .collect();
    (sstables, candidates)
}

/// The age of an sstable, from its generation. An sstable without a time in its generation counts
/// as old.
fn age(own: &Attached, now: i64) -> Duration {
    let Some(uuid) = own.generation().uuid() else { return Duration::MAX };
    let (most, _) = uuid.as_u64_pair();
    let ticks = (most & 0x0fff) << 48 | (most >> 16 & 0xffff) << 32 | most >> 32;
    let written = (ticks.saturating_sub(EPOCH_TICKS) / 10_000_000) as i64;
    Duration::from_secs(now.saturating_sub(written).max(0) as u64)
}
