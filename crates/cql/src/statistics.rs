//! Counters of a shard for the statements of its clients.
//!
//! Counting adds to a cell of this shard; nothing is formatted, hashed or shared. A statement is
//! counted when it is executed, whether it succeeds or not. Its rows are counted when they are
//! returned. [`Statistics::numbers`] copies the counters.

use crate::api::{BatchKind, QueryParams, ResultKind, StatementResult};
use crate::guardrails::{Guardrail, Violations};
use crate::modify::{Modify, Verb};
use crate::select::Select;
use coordinator::Consistency;
use std::cell::Cell;

/// The counters of a shard.
#[derive(Debug, Default)]
pub struct Statistics {
    queries: [Cell<u64>; Consistency::ALL.len()],
    writes: [Cell<u64>; Consistency::ALL.len()],
    modifications: [Cell<u64>; 3],
    reads: Cell<u64>,
    rows_read: Cell<u64>,
    unpaged: Cell<u64>,
    reversed: Cell<u64>,
    bypass_cache: Cell<u64>,
    allow_filtering: Cell<u64>,
    filtered: Cell<u64>,
    range_scans: Cell<u64>,
    range_scans_filling_cache: Cell<u64>,
    batches: Cell<u64>,
    batches_logged: Cell<u64>,
    batches_unlogged: Cell<u64>,
    statements_in_batches: Cell<u64>,
    prepared: Cell<u64>,
    /// Violations of guardrails, counted where they are checked.
    pub(crate) violations: Violations,
}

/// The values of all counters at one moment. They count since the start of the node.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct StatementMetrics {
    /// SELECT, INSERT, UPDATE, DELETE and BATCH requests by consistency level, in the order of
    /// [`Consistency::ALL`].
    pub queries: [u64; Consistency::ALL.len()],
    /// The statements of `queries` that write.
    pub writes: [u64; Consistency::ALL.len()],
    /// SELECT.
    pub reads: u64,
    /// INSERT, also within batches.
    pub inserts: u64,
    /// UPDATE, also within batches.
    pub updates: u64,
    /// DELETE, also within batches.
    pub deletes: u64,
    /// Rows returned to SELECT.
    pub rows_read: u64,
    /// SELECT without a page size.
    pub unpaged_select_queries: u64,
    /// SELECT against the table's clustering order.
    pub reverse_queries: u64,
    /// SELECT with BYPASS CACHE.
    pub select_bypass_caches: u64,
    /// SELECT with ALLOW FILTERING.
    pub select_allow_filtering: u64,
    /// SELECT with ALLOW FILTERING that filters rows.
    pub filtered_read_requests: u64,
    /// SELECT of a token range or of the whole table.
    pub select_partition_range_scan: u64,
    /// The statements of `select_partition_range_scan` without BYPASS CACHE.
    pub select_partition_range_scan_no_bypass_cache: u64,
    /// Batches.
    pub batches: u64,
    /// Batches that are logged.
    pub batches_pure_logged: u64,
    /// Batches that are unlogged.
    pub batches_pure_unlogged: u64,
    /// Statements of all batches.
    pub statements_in_batches: u64,
    /// PREPARE requests on connections of this shard.
    pub statements_prepared: u64,
    /// Violations of guardrails, in the order of [`Guardrail::ALL`].
    pub violations: [u64; Guardrail::ALL.len()],
}

#[inline]
fn add(counter: &Cell<u64>, n: u64) {
    counter.set(counter.get().wrapping_add(n));
}

impl Statistics {
    /// Counts a SELECT that begins.
    #[inline]
    pub(crate) fn select(&self, select: &Select, params: &QueryParams) {
        self.level(params.consistency);
        add(&self.reads, 1);
        if params.page_size.is_none_or(|size| size <= 0) {
            add(&self.unpaged, 1);
        }
        if select.reversed {
            add(&self.reversed, 1);
        }
        if select.bypass_cache {
            add(&self.bypass_cache, 1);
        }
        if select.allow_filtering {
            add(&self.allow_filtering, 1);
            if !select.restrictions.filters.is_empty() {
                add(&self.filtered, 1);
            }
        }
        if !select.restrictions.partition.is_keys() {
            add(&self.range_scans, 1);
            if !select.bypass_cache {
                add(&self.range_scans_filling_cache, 1);
            }
        }
    }

    /// Counts the rows of an answered SELECT.
    #[inline]
    pub(crate) fn selected(&self, answer: &StatementResult) {
        if let ResultKind::Rows(rows) = &answer.kind {
            add(&self.rows_read, u64::from(rows.count));
        }
    }

    /// Counts an INSERT, UPDATE or DELETE outside of a batch.
    #[inline]
    pub(crate) fn modification(&self, modify: &Modify, params: &QueryParams) {
        self.level(params.consistency);
        add(&self.writes[params.consistency as usize], 1);
        self.modify(modify.verb);
    }

    /// Counts a batch and its statements.
    pub(crate) fn batch(&self, kind: BatchKind, params: &QueryParams, verbs: impl ExactSizeIterator<Item = Verb>) {
        self.level(params.consistency);
        add(&self.writes[params.consistency as usize], 1);
        add(&self.batches, 1);
        match kind {
            BatchKind::Logged => add(&self.batches_logged, 1),
            BatchKind::Unlogged => add(&self.batches_unlogged, 1),
            BatchKind::Counter => {}
        }
        add(&self.statements_in_batches, verbs.len() as u64);
        verbs.for_each(|verb| self.modify(verb));
    }

    /// Counts a PREPARE request.
    pub(crate) fn prepare(&self) {
        add(&self.prepared, 1);
    }

    #[inline]
    fn level(&self, level: Consistency) {
        add(&self.queries[level as usize], 1);
    }

    #[inline]
    fn modify(&self, verb: Verb) {
        add(&self.modifications[verb as usize], 1);
    }

    /// The current values.
    pub fn metrics(&self) -> StatementMetrics {
        let modified = |verb: Verb| self.modifications[verb as usize].get();
        StatementMetrics {
            queries: std::array::from_fn(|level| self.queries[level].get()),
            writes: std::array::from_fn(|level| self.writes[level].get()),
            reads: self.reads.get(),
            inserts: modified(Verb::Insert),
            updates: modified(Verb::Update),
            deletes: modified(Verb::Delete),
            rows_read: self.rows_read.get(),
            unpaged_select_queries: self.unpaged.get(),
            reverse_queries: self.reversed.get(),
            select_bypass_caches: self.bypass_cache.get(),
            select_allow_filtering: self.allow_filtering.get(),
            filtered_read_requests: self.filtered.get(),
            select_partition_range_scan: self.range_scans.get(),
            select_partition_range_scan_no_bypass_cache: self.range_scans_filling_cache.get(),
            batches: self.batches.get(),
            batches_pure_logged: self.batches_logged.get(),
            batches_pure_unlogged: self.batches_unlogged.get(),
            statements_in_batches: self.statements_in_batches.get(),
            statements_prepared: self.prepared.get(),
            violations: self.violations.numbers(),
        }
    }
}
