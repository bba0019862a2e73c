//! Why a page ended and what was looked at for it, and what may be spent on a page that has no row yet.

use super::{PageLimits, RequestOptions};
use replica::Page;
use rt::time::Instant;

/// Why a client's page ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum PageStop {
    /// Nothing follows.
    #[default]
    Exhausted,
    /// The statement's LIMIT was reached.
    Limit,
    /// It has as many rows as the client wanted.
    Rows,
    /// It has as many bytes as a page may have (`query_page_size_in_bytes`).
    Bytes,
    /// As many tombstones were met as a page may read (`query_tombstone_page_limit`).
    Tombstones,
    /// No row was found in the time for it (`query_empty_page_time_budget_in_ms`).
    Time,
    /// No row was found within the bytes that may be read for it (`query_empty_page_memory_budget`).
    Memory,
}

impl PageStop {
    /// The reason as traces and payloads name it.
    pub fn name(self) -> &'static str {
        match self {
            PageStop::Exhausted => "exhausted",
            PageStop::Limit => "limit",
            PageStop::Rows => "rows",
            PageStop::Bytes => "bytes",
            PageStop::Tombstones => "tombstones",
            PageStop::Time => "time budget",
            PageStop::Memory => "memory budget",
        }
    }
}

/// What is known of a page beside its rows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PageInfo {
    /// Why it ended.
    pub stop: PageStop,
    /// Pages of replicas that it was made of.
    pub asked: u64,
    /// Rows looked at, static and dead ones included.
    pub rows: u64,
    /// Bytes of keys and rows looked at.
    pub bytes: u64,
    /// Tombstones met.
    pub tombstones: u64,
}

impl PageInfo {
    /// Adds what a replica's page cost.
    pub(super) fn add(&mut self, page: &Page) {
        self.asked += 1;
        self.rows += page.examined_rows;
        self.bytes += page.examined_bytes;
        self.tombstones += page.tombstones;
    }

    /// A later part of the same page: its reason holds, what both looked at adds up.
    pub fn then(self, later: PageInfo) -> PageInfo {
        PageInfo {
            stop: later.stop,
            asked: self.asked + later.asked,
            rows: self.rows + later.rows,
            bytes: self.bytes + later.bytes,
            tombstones: self.tombstones + later.tombstones,
        }
    }

    /// As JSON: the value of the custom payload `messina-page-info`.
    pub fn to_json(self) -> String {
        format!(
            "{{\"end\":\"{}\",\"rows_examined\":{},\"bytes_examined\":{},\"tombstones_examined\":{},\"replica_pages\":{}}}",
            self.stop.name(),
            self.rows,
            self.bytes,
            self.tombstones,
            self.asked
        )
    }
}

/// What may be spent before a page without a row goes to the client.
#[derive(Clone, Copy, Debug)]
pub struct PageBudget {
    until: Instant,
    bytes: u64,
}

impl PageBudget {
    /// The budget of a request that begins to look for its first row now. It leaves time for the answer.
    pub fn new(limits: &PageLimits, options: &RequestOptions) -> PageBudget {
        let time = limits.empty_page_time.min(options.context.deadline.remaining() / 2);
        PageBudget { until: rt::time::now() + time, bytes: limits.empty_page_bytes }
    }

    /// Why to stop after these many bytes read for the page, if it is to be stopped.
    pub fn spent(&self, bytes: u64) -> Option<PageStop> {
        if bytes >= self.bytes {
            return Some(PageStop::Memory);
        }
        (rt::time::now() >= self.until).then_some(PageStop::Time)
    }
}
