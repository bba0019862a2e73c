//! Builds a client's page from the pages of replicas: decides what to read next and whether the
//! page is complete. Pure.

use super::PageLimits;
use super::page_info::{PageInfo, PageStop};
use super::paging::{LastReplicas, PagingState};
use super::read::{PageRequest, Query, QueryPage, append};
use super::resume::{Start, resumed};
use super::targets::Targets;
use bytes::Bytes;
use model::id::QueryId;
use model::range::{PartitionRange, Slice};
use replica::{Limits, Page, PageEnd, Position, ReadCommand};
use smallvec::smallvec;
use std::rc::Rc;

/// What to do after a part of a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Step {
    /// Read the next target.
    Next,
    /// Read the same target again, from where the part ended.
    Resumed,
    /// The page is complete.
    Done,
    /// The part ended on tombstones and no row was found yet. The page is complete unless
    /// [`PageAssembler::resume_after_tombstones`] is called.
    Empty,
}

/// Why a part cannot be added to a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum PartError {
    /// It ends outside of the query.
    Outside,
    /// With it, the result of an unpaged query has more bytes than allowed.
    TooLarge,
}

/// A client's page that is being built.
pub(super) struct PageAssembler<'a> {
    query: &'a Query,
    limits: &'a PageLimits,
    paged: bool,
    /// Rows that the query may still return, including the rows of this page.
    remaining: u64,
    /// The most rows of this page.
    wanted: u64,
    /// The query's id. None where there will be no second page.
    id: Option<QueryId>,
    targets: Targets<'a>,
    slice: Rc<Slice>,
    /// Rows that earlier pages returned of the partition in which the last one ended.
    resumed_rows: u64,
    first_page: bool,
    /// Tombstones that count towards the limit.
    tombstones: u64,
    /// The last part that has a position, without its rows.
    last: Option<Box<Page>>,
    out: QueryPage,
}

impl<'a> PageAssembler<'a> {
    /// Starts a page. `new_id` makes the id of a new query. None: the paging state is not of this
    /// query.
    #[inline]
    pub fn new(
        query: &'a Query,
        page: &PageRequest,
        limits: &'a PageLimits,
        new_id: impl FnOnce() -> QueryId,
    ) -> Option<Self> {
        let paged = page.size.is_some();
        let state = page.state.as_ref();
        let start = state.map(|state| Start::after(query, state.position.clone(), state.rows_in_last));
        let remaining = state.map_or(query.limit.unwrap_or(u64::MAX), |state| state.remaining);
        Some(PageAssembler {
            query,
            limits,
            paged,
            remaining,
            wanted: remaining.min(page.size.unwrap_or(u64::MAX)),
            id: match state {
                Some(state) => Some(state.query),
                None => paged.then(new_id),
            },
            targets: Targets::new(query, start.as_ref())?,
            slice: slice_after(query, start.as_ref()),
            resumed_rows: start.map_or(0, |start| start.rows_in_last),
            first_page: state.is_none(),
            tombstones: 0,
            last: None,
            out: QueryPage::default(),
        })
    }

    /// Whether there may be a page after this one.
    pub fn is_paged(&self) -> bool {
        self.id.is_some()
    }

    /// The targets that were not read yet.
    pub fn targets(&mut self) -> &mut Targets<'a> {
        &mut self.targets
    }

    /// The bytes of rows so far.
    #[inline]
    pub fn bytes(&self) -> usize {
        self.out.body.len()
    }

    /// The counts of the page so far.
    pub fn info(&self) -> &PageInfo {
        &self.out.info
    }

    /// The next tablet to read, and its partitions. None: there is no other.
    #[inline]
    pub fn next_target(&mut self) -> Option<(u32, PartitionRange)> {
        self.targets.next()
    }

    /// The command for a target.
    #[inline]
    pub fn command(&self, range: PartitionRange) -> Rc<ReadCommand> {
        let (query, limits, bytes) = (self.query, self.limits, self.out.body.len() as u64);
        Rc::new(ReadCommand {
            table: query.table.schema.id,
            schema_version: query.table.schema.version,
            ranges: smallvec![range],
            slice: self.slice.clone(),
            output: query.output.clone(),
            limits: Limits {
                rows: self.wanted - self.out.rows,
                per_partition: query.per_partition_limit.unwrap_or(u64::MAX),
                bytes: limits.bytes.saturating_sub(bytes),
                tombstones: limits.tombstones.saturating_sub(self.tombstones).max(1),
                paged: self.paged,
                // The whole limit, because a replica names it in its error. `add` holds the sum of
                // all parts against it.
                unpaged_bytes: limits.unpaged_bytes,
            },
            now: query.now,
            resumed_rows: self.resumed_rows,
            bypass_cache: query.bypass_cache,
            query: self.id,
            first_page: self.first_page,
            ends_with_rows: self.wanted == self.remaining,
        })
    }

    /// Adds a part: the page that a command returned. `has_more`: the part reached no limit, but
    /// more data follows, because reconciled parts are complete only up to the shortest one.
    #[inline]
    pub fn add(&mut self, mut part: Box<Page>, has_more: bool) -> Result<Step, PartError> {
        self.out.rows += part.rows;
        self.tombstones += part.tombstones;
        self.out.info.add(&part);
        append(&mut self.out.body, std::mem::take(&mut part.body));
        if !self.paged && self.out.body.len() as u64 > self.limits.unpaged_bytes {
            return Err(PartError::TooLarge);
        }
        let end = part.end;
        if part.last.is_some() {
            self.last = Some(part);
        }
        if has_more && !(self.paged && self.out.rows > 0) {
            self.resume().ok_or(PartError::Outside)?;
            return Ok(Step::Resumed);
        }
        self.out.info.stop = match end {
            _ if has_more => PageStop::Bytes,
            PageEnd::Exhausted => return Ok(Step::Next),
            PageEnd::Rows if self.wanted == self.remaining => PageStop::Limit,
            PageEnd::Rows => PageStop::Rows,
            PageEnd::Bytes => PageStop::Bytes,
            PageEnd::Tombstones => PageStop::Tombstones,
        };
        let is_empty = self.out.info.stop == PageStop::Tombstones && self.out.rows == 0 && self.last.is_some();
        Ok(if is_empty && !self.limits.tombstones_are_set { Step::Empty } else { Step::Done })
    }

    /// Ends the page for another reason than the end of its last part.
    pub fn stop(&mut self, stop: PageStop) {
        self.out.info.stop = stop;
    }

    /// Resumes behind the tombstones on which the last part ended. None: that position is outside
    /// of the query.
    pub fn resume_after_tombstones(&mut self) -> Option<()> {
        self.out.info.stop = PageStop::Exhausted;
        self.tombstones = 0;
        self.resume()
    }

    /// Where the last part ended, and the rows returned of its last partition.
    fn end(&mut self) -> Option<(Position, u64)> {
        let last = self.last.take()?;
        Some((last.last?, last.rows_in_last))
    }

    /// Continues the same targets from where the last part ended.
    fn resume(&mut self) -> Option<()> {
        debug_assert!(self.out.rows == 0 || !self.paged, "a page with rows ends instead");
        let (position, rows_in_last) = self.end()?;
        let start = Start::after(self.query, position, rows_in_last);
        self.targets = Targets::new(self.query, Some(&start))?;
        self.slice = slice_after(self.query, Some(&start));
        self.resumed_rows = rows_in_last;
        self.first_page = false;
        Some(())
    }

    /// Completes the page. `read_by`: the replicas that read its last part.
    #[inline]
    pub fn finish(mut self, read_by: Option<Box<LastReplicas>>) -> QueryPage {
        debug_assert!(self.wanted <= self.remaining, "a page is not longer than the statement's LIMIT");
        debug_assert!(self.out.rows <= self.wanted, "a page has no more rows than are wanted");
        let left = if self.remaining == u64::MAX { self.remaining } else { self.remaining - self.out.rows };
        if self.out.info.stop != PageStop::Exhausted
            && left > 0
            && let (true, Some(query)) = (self.paged, self.id)
            && let Some((position, rows_in_last)) = self.end()
        {
            let (replicas, processor_state) = (read_by, Bytes::new());
            let state = PagingState { query, remaining: left, position, rows_in_last, replicas, processor_state };
            self.out.next = Some(Box::new(state));
        }
        self.out
    }
}

/// The slice to read after a start.
fn slice_after(query: &Query, start: Option<&Start>) -> Rc<Slice> {
    match start {
        Some(start) if start.inside => Rc::new(resumed(query, start)),
        _ => query.slice.clone(),
    }
}

#[cfg(test)]
mod tests;
