//! The hot partitions of a shard: which they are, and whether they are refused while the shard is
//! overloaded.
//!
//! About one of [`GAP`] operations is sampled, at random distances: only a sampled operation costs
//! more than a counter and a branch. Samples go to the [`tracker`]. At most every [`PERIOD`], a
//! sample also updates the [`protection`] by how long requests have waited for the shard, in
//! sockets and as ready tasks. On a shard without operations, nothing updates the protection. So an
//! operation that may be refused updates it first, and no decision uses old waits.
//!
//! Reading order: [`sketch`], [`tracker`], [`protection`], [`recording`].

pub mod protection;
pub mod recording;
pub mod sketch;
pub mod tracker;

pub use protection::Share;
pub use recording::{MOST_PARTITIONS, MOST_RECORDINGS, Recorded, TopPartitions};
pub use sketch::PartitionId;
pub use tracker::{HotPartition, TabletLoad};

use crate::limiter::LimitKind;
use model::id::TableId;
use model::options::LIMITS;
use model::schema::TableSchema;
use protection::{LEAST_SHARE, Protection};
use recording::Recording;
use rt::metrics::GroupMetrics;
use rt::task::Group;
use rt::time::{Duration, Instant};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use tracker::{Operation, Tracker};

/// One operation in this number is sampled, on average.
const GAP: u32 = 48;

/// The longest key that is kept, in bytes. So memory is bounded.
const LONGEST_KEY: usize = 1024;

/// The least time between two updates.
const PERIOD: Duration = Duration::from_millis(100);

/// The least time between two log lines of a shard.
const LOG_EVERY: Duration = Duration::from_secs(10);

/// Whether hot partitions are refused on an overloaded shard (`hot_partition_protection`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ProtectionMode {
    /// Nothing is decided.
    Off,
    /// What would be refused is counted.
    #[default]
    Observe,
    /// They are refused.
    On,
}

/// How the hot partitions of a shard are treated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HotSettings {
    /// Whether hot partitions are refused while the shard is overloaded.
    pub mode: ProtectionMode,
    /// How long requests may wait for the shard, on average, until it counts as overloaded.
    pub wait_threshold: Duration,
    /// How many hot partitions are shown in metrics.
    pub in_metrics: usize,
}

/// Counters of the hot partition protection of a shard.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProtectionMetrics {
    /// Operations refused, by [`LimitKind`].
    pub refused: [u64; 2],
    /// Operations that would have been refused.
    pub would_refuse: [u64; 2],
    /// Partitions of which operations are refused, or would be refused, now.
    pub partitions: u64,
}

/// The hot partitions of a shard.
pub(crate) struct HotPartitions {
    /// Operations until the next sample.
    countdown: Cell<u32>,
    /// The state of the generator of distances.
    random: Cell<u32>,
    /// Whether every operation is a sample: something is recorded.
    samples_all: Cell<bool>,
    /// Whether operations may be refused, or counted as such, now.
    decides: Cell<bool>,
    /// Whether operations may be refused now.
    refuses: Cell<bool>,
    /// Whether requests waited longer than the threshold, on average, in the last period.
    is_overloaded: Cell<bool>,
    settings: Cell<HotSettings>,
    /// Whether all coordinators understand a refusal. Otherwise the mode `on` means `observe`.
    is_understood: Cell<bool>,
    /// Recordings of the node that this shard has admitted.
    pub admitted: Rc<Cell<u32>>,
    counts: [[Cell<u64>; 2]; 2],
    /// The schema of a table, for its name in log lines.
    schema: Box<dyn Fn(TableId) -> Option<Rc<TableSchema>>>,
    state: RefCell<State>,
}

struct State {
    tracker: Tracker,
    protection: Protection,
    /// The time of the tracker.
    advanced: Instant,
    /// When the protection was last updated, with the waits of tasks until then.
    updated: Instant,
    waits: Option<Waits>,
    logged: Option<Instant>,
    recordings: Vec<Recording>,
    next_recording: u64,
}

impl HotPartitions {
    /// No hot partitions. `schema`: gives the schema of a table on this shard.
    pub fn new(schema: impl Fn(TableId) -> Option<Rc<TableSchema>> + 'static) -> HotPartitions {
        let now = rt::time::coarse_now();
        HotPartitions {
            countdown: Cell::new(1),
            random: Cell::new(0x9e37_79b9),
            samples_all: Cell::new(false),
            decides: Cell::new(false),
            refuses: Cell::new(false),
            is_overloaded: Cell::new(false),
            settings: Cell::new(HotSettings {
                mode: ProtectionMode::Off,
                wait_threshold: Duration::MAX,
                in_metrics: 0,
            }),
            is_understood: Cell::new(true),
            admitted: Rc::default(),
            counts: Default::default(),
            schema: Box::new(schema),
            state: RefCell::new(State {
                tracker: Tracker::default(),
                protection: Protection::default(),
                advanced: now,
                updated: now,
                waits: None,
                logged: None,
                recordings: Vec::new(),
                next_recording: 0,
            }),
        }
    }

    /// Whether the next operation is a sample. To be called once for each operation.
    #[inline]
    pub fn is_sampled(&self) -> bool {
        if !LIMITS {
            return false;
        }
        let left = self.countdown.get().wrapping_sub(1);
        self.countdown.set(left);
        left == 0 && self.draw_gap()
    }

    /// Draws the distance to the next sample: random, so that no pattern of operations is missed.
    #[cold]
    fn draw_gap(&self) -> bool {
        let mut random = self.random.get();
        random ^= random << 13;
        random ^= random >> 17;
        random ^= random << 5;
        self.random.set(random);
        // Evenly distributed from 1 to 2 GAP - 1, so that the mean is GAP.
        let gap = 1 + ((u64::from(random) * u64::from(2 * GAP - 1)) >> 32) as u32;
        self.countdown.set(if self.samples_all.get() { 1 } else { gap });
        true
    }

    /// Whether operations may be refused, or counted as such, now.
    #[inline]
    pub fn decides(&self) -> bool {
        LIMITS && self.decides.get()
    }

    /// Whether operations may be refused now.
    #[inline]
    pub fn refuses(&self) -> bool {
        LIMITS && self.refuses.get()
    }

    /// Whether the shard is overloaded: requests waited for it for longer than the threshold, on
    /// average.
    pub fn is_overloaded(&self) -> bool {
        self.update_if_due();
        self.is_overloaded.get()
    }

    /// Adds a sampled operation.
    pub fn performed(&self, id: PartitionId, key: &[u8], operation: Operation) {
        let mut state = self.state.borrow_mut();
        state.recordings.iter_mut().for_each(|recording| recording.add(id, key, operation.kind));
        state.tracker.performed(id, key, operation, self.scale());
    }

    /// Adds an operation that a limit of its table (`by_table`) or the protection has refused.
    pub fn refused(&self, id: PartitionId, kind: LimitKind, by_table: bool) {
        if self.is_sampled() {
            self.state.borrow_mut().tracker.refused(id, kind, by_table, self.scale());
            self.update_if_due();
        }
    }

    /// Adds an operation that is performed, but that a table's limit in mode `observe`, or the
    /// protection, would refuse.
    pub fn would_refuse(&self, id: PartitionId) {
        if self.is_sampled() {
            self.state.borrow_mut().tracker.would_refuse(id, self.scale());
        }
    }

    /// Whether the coordinator on this shard accepts an operation.
    pub fn admits(&self, id: PartitionId, kind: LimitKind) -> bool {
        self.update_if_due();
        let admitted = self.state.borrow_mut().protection.admits(id);
        if !admitted {
            self.count(id, kind, true);
        }
        admitted
    }

    /// Whether the replica performs an operation. Counts it if not, or if it would not.
    pub fn performs(&self, id: PartitionId, kind: LimitKind) -> bool {
        self.update_if_due();
        let refuses = self.refuses.get();
        let performed = self.state.borrow_mut().protection.performs(id);
        if !performed {
            self.count(id, kind, refuses);
        }
        performed || !refuses
    }

    fn count(&self, id: PartitionId, kind: LimitKind, refused: bool) {
        let count = &self.counts[usize::from(!refused)][kind as usize];
        count.set(count.get() + 1);
        if refused {
            self.refused(id, kind, false);
        } else {
            self.would_refuse(id);
        }
    }

    /// How many operations a sample stands for.
    fn scale(&self) -> f64 {
        if self.samples_all.get() { 1.0 } else { f64::from(GAP) }
    }

    /// Updates what depends on time, if that is due.
    pub fn update_if_due(&self) {
        let now = rt::time::coarse_now();
        let state = &mut *self.state.borrow_mut();
        if now.saturating_duration_since(state.updated) < PERIOD {
            return;
        }
        state.advance(now);
        state.updated = now;
        let HotSettings { mode, wait_threshold, .. } = self.settings.get();
        let overloaded = state.wait() > wait_threshold;
        self.is_overloaded.set(overloaded);
        if mode == ProtectionMode::Off {
            return;
        }
        if overloaded || self.decides.get() {
            let (total, demands) = state.tracker.demands(LEAST_SHARE);
            state.protection.update(overloaded, total, demands);
            self.apply(state, now);
        } else {
            state.protection.reset();
        }
    }

    /// Applies updated shares.
    fn apply(&self, state: &mut State, now: Instant) {
        let (decided, decides) = (self.decides.get(), !state.protection.shares().is_empty());
        self.decides.set(decides);
        let mode = self.settings.get().mode;
        self.refuses.set(decides && self.is_on());
        let is_due = state.logged.is_none_or(|at| now.saturating_duration_since(at) >= LOG_EVERY);
        if decides && !decided && is_due {
            state.logged = Some(now);
            let hottest = state.protection.shares().iter().min_by(|a, b| a.accept.total_cmp(&b.accept));
            if let Some(Share { id, accept, .. }) = hottest {
                let schema = (self.schema)(id.table);
                let table = schema.as_ref().map_or("a dropped table", |schema| schema.full_name());
                tracing::warn!(
                    ?mode,
                    table,
                    token = id.token.0,
                    accepted_part = accept,
                    partitions = state.protection.shares().len(),
                    "the shard is overloaded, and hot partitions exceed their share of it (see system.hot_partitions and \
                     hot_partition_protection)"
                );
            }
        }
    }

    /// Accepts this part of the operations of a partition, until the next update.
    #[cfg(feature = "sim")]
    pub fn share_out(&self, id: PartitionId, accept: f64) {
        let state = &mut *self.state.borrow_mut();
        state.protection.give(id, accept);
        state.updated = rt::time::coarse_now();
        self.decides.set(true);
        self.refuses.set(self.is_on());
    }

    fn is_on(&self) -> bool {
        self.settings.get().mode == ProtectionMode::On && self.is_understood.get()
    }

    /// Sets whether all coordinators understand a refusal.
    pub fn set_understood(&self, is_understood: bool) {
        self.is_understood.set(is_understood);
        self.refuses.set(self.refuses.get() && is_understood);
    }

    pub fn settings(&self) -> HotSettings {
        self.settings.get()
    }

    pub fn set(&self, settings: HotSettings) {
        if self.settings.replace(settings).mode != settings.mode {
            let state = &mut *self.state.borrow_mut();
            state.protection.reset();
            state.waits = None;
            self.decides.set(false);
            self.refuses.set(false);
        }
    }

    /// The hottest partitions, the hottest first.
    pub fn hottest(&self, most: usize) -> Vec<HotPartition> {
        let state = &mut *self.state.borrow_mut();
        state.advance(rt::time::coarse_now());
        state.tracker.hottest(most)
    }

    /// The operations of the shard's tablets.
    pub fn tablets(&self) -> Vec<TabletLoad> {
        let state = &mut *self.state.borrow_mut();
        state.advance(rt::time::coarse_now());
        state.tracker.tablets()
    }

    /// Begins a recording. Returns its number.
    pub fn record(&self, tables: Vec<TableId>, capacity: usize) -> u64 {
        let state = &mut *self.state.borrow_mut();
        state.next_recording += 1;
        state.recordings.push(Recording::new(state.next_recording, tables, capacity));
        self.samples_all.set(true);
        self.countdown.set(1);
        state.next_recording
    }

    /// Ends a recording.
    pub fn finish(&self, id: u64) -> Option<TopPartitions> {
        let recordings = &mut self.state.borrow_mut().recordings;
        let at = recordings.iter().position(|recording| recording.id == id)?;
        let finished = recordings.swap_remove(at).finish();
        self.samples_all.set(!recordings.is_empty());
        Some(finished)
    }

    pub fn metrics(&self) -> ProtectionMetrics {
        let counts = |at: usize| [self.counts[at][0].get(), self.counts[at][1].get()];
        let partitions = self.state.borrow().protection.shares().len() as u64;
        ProtectionMetrics { refused: counts(0), would_refuse: counts(1), partitions }
    }
}

impl State {
    fn advance(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.advanced);
        if !passed.is_zero() {
            self.tracker.advance(passed);
            self.advanced = now;
        }
    }

    /// How long requests waited for the shard since the last call, on average.
    fn wait(&mut self) -> Duration {
        let now = Waits::now();
        self.waits.replace(now).map_or(Duration::ZERO, |before| now.since(&before))
    }
}

/// Sums of the times for which requests wait: in sockets, and as ready tasks.
#[derive(Clone, Copy)]
struct Waits {
    tasks: u64,
    task_wait: Duration,
    input: u64,
    input_waited: f64,
}

impl Waits {
    fn now() -> Waits {
        let metrics = rt::metrics::snapshot();
        let GroupMetrics { tasks, task_wait, .. } = *metrics.group(Group::Statement);
        Waits { tasks, task_wait, input: metrics.input_received, input_waited: metrics.input_waited }
    }

    /// How long requests waited between two moments, on average.
    fn since(&self, before: &Waits) -> Duration {
        let tasks = u32::try_from(self.tasks - before.tasks).unwrap_or(u32::MAX);
        let as_tasks = self.task_wait.saturating_sub(before.task_wait).checked_div(tasks).unwrap_or_default();
        let waited = (self.input_waited - before.input_waited).max(0.0);
        // At least a byte: what is left while nothing is received waits very long.
        as_tasks + Duration::from_secs_f64((waited / (self.input - before.input).max(1) as f64).min(60.0))
    }
}

#[cfg(test)]
mod tests;
