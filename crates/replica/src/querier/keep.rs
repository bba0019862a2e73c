//! The async shell of a shard's querier cache: its clock, its expiry timer and its trace events.
//!
//! One timer serves all queriers: it sleeps until the oldest one expires, and ends when the cache
//! is empty.

use super::cache::{CacheCounters, CacheKey, CacheLimits, Purpose, QuerierCache};
use super::{Plan, Querier};
use crate::replica::ReplicaConfig;
use crate::request::{Class, Context, ReadCommand};
use engine::{Reader, Resumed, Stale};
use model::TableId;
use model::key::ClusteringCut;
use model::range::PartitionRange;
use model::schema::TableSchema;
use rt::time::Duration;
use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};

/// The shortest sleep of the timer. Queriers that expire a little later are evicted together.
const SHORTEST_SLEEP: Duration = Duration::from_millis(1);

/// The querier cache of a shard with its timer.
pub(crate) struct Queriers {
    cache: RefCell<QuerierCache<Querier>>,
    ttl: Duration,
    timer_runs: Cell<bool>,
    me: Weak<Queriers>,
}

/// A querier that fits the page: it resumes at the cut (none: behind its partition), or advances to
/// it.
pub(crate) struct FoundQuerier {
    pub querier: Querier,
    pub cut: Option<ClusteringCut>,
    pub advance: bool,
}

impl Queriers {
    pub fn new(config: &ReplicaConfig) -> Rc<Queriers> {
        let memory = (config.memory as f64 * config.querier_cache_memory_fraction) as usize;
        let ttl = config.querier_cache_ttl;
        Rc::new_cyclic(|me| Queriers {
            cache: RefCell::new(QuerierCache::new(CacheLimits { ttl, memory })),
            ttl,
            timer_runs: Cell::new(false),
            me: me.clone(),
        })
    }

    pub fn counters(&self) -> CacheCounters {
        self.cache.borrow().counters()
    }

    /// Whether a querier of this table is kept.
    pub fn has_of(&self, table: TableId) -> bool {
        self.cache.borrow().has_of(table)
    }

    /// Takes the querier that the previous page left, if it fits.
    pub fn find(
        &self,
        command: &ReadCommand,
        purpose: Purpose,
        context: &Context,
        schema: Option<&TableSchema>,
    ) -> Option<FoundQuerier> {
        let (query, range) = (command.query?, command.ranges.first()?);
        let Some(querier) = self.cache.borrow_mut().take(query, purpose, &range.end) else {
            context.trace("Querier cache: miss");
            return None;
        };
        let Some(schema) = schema.filter(|schema| schema.version == querier.reader.schema_version()) else {
            self.dropped(false, Stale::Schema.why(), context);
            return None;
        };
        match querier.plan(command, context.class, &schema.order) {
            Plan::Resume(cut) => Some(FoundQuerier { querier, cut, advance: false }),
            Plan::Advance(cut) => Some(FoundQuerier { querier, cut, advance: true }),
            Plan::Drop(mismatch) => {
                self.dropped(mismatch == super::Mismatch::Class, mismatch.why(), context);
                None
            }
        }
    }

    /// Counts and traces the outcome of resuming a querier.
    pub fn resumed(&self, resumed: Resumed, advance: bool, context: &Context) -> Option<Reader> {
        match resumed {
            Resumed::Reader(reader) => {
                if advance {
                    self.cache.borrow_mut().count_advance();
                    context.trace("Querier cache: hit, advanced to the position");
                } else {
                    context.trace("Querier cache: hit");
                }
                Some(reader)
            }
            Resumed::Stale(stale) => {
                self.dropped(false, stale.why(), context);
                None
            }
            Resumed::Waits(_) => unreachable!("the caller reads until the outcome is known"),
        }
    }

    fn dropped(&self, other_class: bool, why: &str, context: &Context) {
        self.cache.borrow_mut().count_drop(other_class);
        if let Some(trace) = &context.trace {
            trace.event(format!("Querier cache: dropped, since {why}"));
        }
    }

    /// Keeps a querier for the next page. `wanted`: reads wait for its permit, so it is dropped
    /// instead.
    pub fn keep(
        &self,
        mut querier: Querier,
        wanted: bool,
        command: &ReadCommand,
        purpose: Purpose,
        context: &Context,
        range: &PartitionRange,
    ) {
        let Some(query) = command.query else { return };
        if wanted {
            self.cache.borrow_mut().count_refused();
            context.trace("Querier cache: not kept, since reads wait for permits");
            return;
        }
        let memory = querier.memory_bytes();
        querier.permit.set_memory(memory);
        let key = CacheKey { query, purpose, end: range.end.clone(), class: context.class, table: command.table };
        let gone = self.cache.borrow_mut().insert(key, memory, querier, rt::time::coarse_now());
        drop(gone);
        context.trace("Querier cache: kept for the next page");
        if !self.timer_runs.replace(true) {
            rt::task::spawn(expire(self.me.clone(), self.ttl)).detach();
        }
    }

    /// Drops the querier of a range that is now read from its beginning. This happens if the range
    /// was read ahead, and the client's page ended before it.
    pub fn discard_read_ahead(&self, command: &ReadCommand, purpose: Purpose) {
        let (Some(query), Some(range)) = (command.query, command.ranges.first()) else { return };
        let gone = self.cache.borrow_mut().discard(query, purpose, &range.end);
        drop(gone);
    }

    /// Evicts the longest unused querier of a class. False if there is none.
    pub fn evict_for_permit(&self, class: Class) -> bool {
        let gone = self.cache.borrow_mut().evict_for_permit(class);
        gone.is_some()
    }

    /// Evicts the queriers of a table, or all.
    pub fn forget(&self, table: Option<TableId>) {
        let gone = self.cache.borrow_mut().evict_table(table);
        drop(gone);
    }

    /// Evicts the queriers of a tablet.
    pub fn forget_tablet(&self, table: TableId, range: &PartitionRange) {
        let gone = self.cache.borrow_mut().evict_tablet(table, range);
        drop(gone);
    }
}

async fn expire(queriers: Weak<Queriers>, mut sleep: Duration) {
    loop {
        rt::time::sleep(sleep.max(SHORTEST_SLEEP)).await;
        let Some(queriers) = queriers.upgrade() else { return };
        let now = rt::time::now();
        let (gone, next) = queriers.cache.borrow_mut().evict_expired(now);
        drop(gone);
        match next {
            Some(at) => sleep = at.saturating_duration_since(now),
            None => {
                queriers.timer_runs.set(false);
                return;
            }
        }
    }
}
