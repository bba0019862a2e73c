//! Why a page ended, the amount of data read, and the budget of a page that has no row yet.

use super::{PageLimits, RequestOptions};
use replica::Page;
use rt::time::Instant;

/// Why a client's page ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum PageStop {
    /// There are no more rows.
    #[default]
    Exhausted,
    /// The statement's LIMIT was reached.
    Limit,
    /// The page size in rows was reached.
    Rows,
    /// The page size in bytes was reached (`query_page_size_in_bytes`).
    Bytes,
    /// The limit of tombstones was reached (`query_tombstone_page_limit`).
    Tombstones,
    /// No row was found within the time budget (`query_empty_page_time_budget_in_ms`).
    Time,
    /// No row was found within the memory budget (`query_empty_page_memory_budget`).
    Memory,
}

impl PageStop {
    /// The reason's name in traces and payloads.
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

/// Facts about a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PageInfo {
    /// Why the page ended.
    pub stop: PageStop,
    /// Pages of replicas that the page was built from.
    pub asked: u64,
    /// Rows read, static and dead ones included.
    pub rows: u64,
    /// Bytes of the keys and rows read.
    pub bytes: u64,
    /// Tombstones read.
    pub tombstones: u64,
}

impl PageInfo {
    /// Adds the costs of a replica's page.
    pub(super) fn add(&mut self, page: &Page) {
        self.asked += 1;
        self.rows += page.examined_rows;
        self.bytes += page.examined_bytes;
        self.tombstones += page.tombstones;
    }

    /// Combines this part with a later part of the same page: the counts add up, the later reason
    /// holds.
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

/// The budget of a page that has no row yet. When it is used up, an empty page is sent to the
/// client.
#[derive(Clone, Copy, Debug)]
pub struct PageBudget {
    until: Instant,
    bytes: u64,
}

impl PageBudget {
    /// The budget of a request that starts to look for its first row now. It is at most half of the
    /// remaining time, so that time is left for the response.
    pub fn new(limits: &PageLimits, options: &RequestOptions) -> PageBudget {
        let time = limits.empty_page_time.min(options.context.deadline.remaining() / 2);
        PageBudget { until: rt::time::now() + time, bytes: limits.empty_page_bytes }
    }

    /// The reason to end the page after this many bytes read, if the budget is used up.
    pub fn spent(&self, bytes: u64) -> Option<PageStop> {
        if bytes >= self.bytes {
            return Some(PageStop::Memory);
        }
        (rt::time::now() >= self.until).then_some(PageStop::Time)
    }
}
