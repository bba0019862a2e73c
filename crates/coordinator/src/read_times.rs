//! How long reads of each table take: what `speculative_retry` decides by.

use super::speculation::{Histogram, Speculation};
use cluster::metadata::Table;
use model::id::{SchemaVersion, TableId};
use rt::hash::HashMap;
use rt::time::{Duration, Instant};
use std::cell::RefCell;

struct TableTimes {
    version: SchemaVersion,
    speculation: Speculation,
    times: Histogram,
}

/// Tables whose reads' times are kept at most; beyond, those of all are forgotten.
const MAX_TIMED_TABLES: usize = 4096;

/// The times of reads, by table.
#[derive(Default)]
pub(super) struct ReadTimes(RefCell<HashMap<TableId, TableTimes>>);

impl ReadTimes {
    /// How long a read of a table waits for those it has asked before it asks another; none: for ever.
    pub fn patience(&self, table: &Table) -> Option<Duration> {
        let mut tables = self.0.borrow_mut();
        let known = Self::times_of(&mut tables, table);
        known.speculation.patience(&known.times)
    }

    /// Notes how long a read of a table took.
    pub fn note(&self, table: &Table, began: Instant) {
        let mut tables = self.0.borrow_mut();
        Self::times_of(&mut tables, table).times.add(began.elapsed());
    }

    fn times_of<'a>(tables: &'a mut HashMap<TableId, TableTimes>, table: &Table) -> &'a mut TableTimes {
        if tables.len() >= MAX_TIMED_TABLES && !tables.contains_key(&table.schema.id) {
            tables.clear();
        }
        let (version, option) = (table.schema.version, &table.schema.options.speculative_retry);
        let fresh = || TableTimes { version, speculation: Speculation::parse(option), times: Histogram::default() };
        let known = tables.entry(table.schema.id).or_insert_with(fresh);
        if known.version != version {
            (known.version, known.speculation) = (version, Speculation::parse(option));
        }
        known
    }
}
