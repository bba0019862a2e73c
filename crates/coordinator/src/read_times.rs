//! The read times of each table, which set the speculative-retry delay of the percentile options.

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

/// The most tables whose read times are kept. Beyond it, the times of all tables are dropped.
const MAX_TIMED_TABLES: usize = 4096;

/// The read times, by table.
#[derive(Default)]
pub(super) struct ReadTimes(RefCell<HashMap<TableId, TableTimes>>);

impl ReadTimes {
    /// The speculative-retry delay of a table. None: for ever.
    pub fn retry_delay(&self, table: &Table) -> Option<Duration> {
        let mut tables = self.0.borrow_mut();
        let known = Self::times_of(&mut tables, table);
        known.speculation.retry_delay(&known.times)
    }

    /// Records the duration of a read that began at `began`.
    pub fn record(&self, table: &Table, began: Instant) {
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
