//! The ways to read the pages of a SELECT: plain, entire, grouped, or filtered.

use super::pager::{FilteredState, Pager, bad_state};
use super::rows::{Body, Emitter};
use super::{Select, Shape};
use crate::api::StatementResult;
use crate::error::Error;
use crate::pace::Pace;
use crate::request::{Request, read_error};
use bytes::Bytes;
use coordinator::{
    Counting, PageBudget, PageInfo, PageRequest, PageStop, PagingState, Query, QueryPartitions, RequestOptions,
    ResultCharge,
};
use model::id::QueryId;
use model::token::Token;
use std::pin::pin;

/// `select_internal_page_size`: rows per internal page, for aggregates and for filters of a client
/// that does not page.
const INTERNAL_PAGE_ROWS: u64 = 10_000;

/// The fewest rows per internal page of a grouped query, however few groups the client requests.
const LEAST_GROUPED_ROWS: u64 = 100;

/// The page that the client requests.
pub(super) struct ClientPage<'a> {
    /// The most rows or groups of the page. `None` if the client does not page.
    pub size: Option<u64>,
    /// The state of the previous page, if there was one.
    pub state: Option<Box<PagingState>>,
    /// The token by which the client chose the node. Set if the client understands tablet hints and
    /// this is not its first page.
    pub steered: Option<Token>,
    pub pager: &'a Pager<'a>,
    pub request: &'a Request<'a>,
    pub options: &'a RequestOptions,
}

impl ClientPage<'_> {
    /// Takes the state of the previous page, and passes its limits to the emitter.
    fn take_state(&mut self, emitter: &mut Emitter<'_>) -> Result<Option<Box<PagingState>>, Error> {
        let state = self.state.take();
        if let Some(state) = &state {
            let before = FilteredState::decode(&state.processor_state).ok_or_else(bad_state)?;
            (emitter.remaining, emitter.partition) = (before.remaining, before.partition);
        }
        Ok(state)
    }

    /// The tablet hint that the client gets with this page, if any (`Coordinator::hint_of_page`).
    fn tablet(&self, query: &Query, next: Option<&PagingState>) -> Option<Bytes> {
        self.request.coordinator.hint_of_page(&query.table, self.steered?, next)
    }
}

/// The result of one internal read.
struct InternalRead {
    /// Whether the emitter took all rows. False if the page of groups is full.
    all_taken: bool,
    /// Where the read ended. `None` if no rows are left.
    next: Option<Box<PagingState>>,
    /// See [`QueryPage::asked`](coordinator::QueryPage::asked).
    asked: usize,
}

/// The rows that a statement has collected from its internal reads.
struct Collected<'a> {
    pace: Pace<'a>,
    info: PageInfo,
    /// The memory of the rows that the emitter holds.
    charge: ResultCharge,
}

impl<'a> Collected<'a> {
    fn new(page: &ClientPage<'a>, select: &'a Select) -> Collected<'a> {
        let (pace, charge) = (Pace::new(page.options, &select.schema), page.request.coordinator.results().charge());
        Collected { pace, info: PageInfo::default(), charge }
    }
}

impl Select {
    /// Whether the result cannot have a second page.
    fn needs_no_paging(&self, query: &Query) -> bool {
        query.limit == Some(1)
            || matches!(&query.partitions, QueryPartitions::Keys(keys) if keys.len() == 1)
                && (self.restrictions.clustering.is_one_row(&self.schema) || self.output.distinct)
    }

    /// Reads one page of rows that need no filter, aggregate or sorting.
    pub(super) async fn plain(&self, query: Query, mut page: ClientPage<'_>) -> Result<StatementResult, Error> {
        debug_assert!(
            self.sort.is_empty() && self.grouping.is_none() && self.restrictions.filters.is_empty(),
            "a plain page has the rows as they are read"
        );
        let size = page.size.filter(|_| page.state.is_some() || !self.needs_no_paging(&query));
        let wanted = PageRequest { size, state: page.state.take(), ..PageRequest::default() };
        // Pinned, so that this large future is not moved.
        let read = pin!(page.request.coordinator.read(&query, &wanted, page.options)).await;
        let read = read.map_err(|error| read_error(error, &self.schema))?;
        debug_assert!(
            query.limit.into_iter().chain(size).all(|most| read.rows <= most),
            "a page has no more rows than were requested"
        );
        let tablet = page.tablet(&query, read.next.as_deref());
        let next = read.next.map(|state| page.pager.seal(&state)).transpose()?;
        if let Shape::Plain = self.shape {
            let answer = self.answer(self.rows(read.rows, read.body, next), read.info, page.request);
            return Ok(StatementResult { tablet, ..answer });
        }
        let mut emitter = Emitter::new(self, page.pager.env(), None, None, page.request.config.unpaged_bytes);
        let pace = Pace::new(page.options, &self.schema);
        push_all(read.body, read.rows, self, &mut emitter, &pace).await?;
        let rows = self.rows(emitter.rows, std::mem::take(&mut emitter.body), next);
        Ok(StatementResult { tablet, ..self.answer(rows, read.info, page.request) })
    }

    /// Limits the rows collected here like the result of an unpaged read.
    fn check_size(&self, emitter: &Emitter<'_>, request: &Request<'_>) -> Result<(), Error> {
        let limit = request.config.unpaged_bytes;
        if emitter.bytes() <= limit {
            return Ok(());
        }
        Err(Error::ReadFailure {
            target: format!("{}.{}", self.schema.keyspace, self.schema.name),
            consistency: request.params.consistency,
            received: 0,
            required: 1,
            failures: 1,
            nodes: Vec::new(),
            data_present: true,
            why: format!(
                "Memory usage of unpaged query exceeds hard limit of {limit} (configured via \
                 max_memory_for_unlimited_query_hard_limit)"
            ),
        })
    }

    /// Continues the read with the newest metadata, and passes the rows to the emitter.
    async fn read_internal_page(
        &self,
        query: &mut Query,
        wanted: &PageRequest,
        page: &ClientPage<'_>,
        emitter: &mut Emitter<'_>,
        collected: &mut Collected<'_>,
    ) -> Result<InternalRead, Error> {
        let read = page.request.coordinator.read_with_newest(query, wanted, page.options).await;
        let read = read.map_err(|error| read_error(error, &self.schema))?;
        collected.info = std::mem::take(&mut collected.info).then(read.info);
        let all_taken = push_all(read.body, read.rows, self, emitter, &collected.pace).await?;
        self.check_size(emitter, page.request)?;
        collected.charge.set(emitter.bytes()).map_err(|error| read_error(error, &self.schema))?;
        Ok(InternalRead { all_taken, next: read.next, asked: read.asked })
    }

    /// Reads all rows, page by page, for aggregates and for orders across partitions.
    pub(super) async fn read_all_pages(
        &self,
        mut query: Query,
        mut emitter: Emitter<'_>,
        page: &ClientPage<'_>,
    ) -> Result<StatementResult, Error> {
        debug_assert!(query.limit.is_none(), "LIMIT is of the result, not of the rows that it is made of");
        let ClientPage { request, options, .. } = *page;
        let mut collected = Collected::new(page, self);
        emitter.bind(&collected.pace).await?;
        request.release_metadata();
        if emitter.only_counts() || self.reduced.is_some() {
            debug_assert!(
                query.per_partition_limit.is_none() && self.restrictions.filters.is_empty() && self.grouping.is_none(),
                "owners reduce all rows of a query"
            );
            query.output = self.reduced.clone().unwrap_or(query.output);
            let read = request.coordinator.reduce(&query, options).await;
            let read = read.map_err(|error| read_error(error, &self.schema))?;
            emitter.take_reduced(read.rows, &read.body)?;
            emitter.finish(&collected.pace).await?;
            let rows = self.rows(emitter.rows, std::mem::take(&mut emitter.body), None);
            return Ok(self.answer(rows, read.info, request));
        }
        let (mut state, mut counting) = (None, Counting::Page);
        loop {
            let size = Some(INTERNAL_PAGE_ROWS);
            let wanted = PageRequest { size, state, counting, ..PageRequest::default() };
            let read = self.read_internal_page(&mut query, &wanted, page, &mut emitter, &mut collected).await?;
            (state, counting) = (read.next, Counting::PartOfFirst { asked: read.asked });
            if state.is_none() {
                emitter.finish(&collected.pace).await?;
                let rows = self.rows(emitter.rows, std::mem::take(&mut emitter.body), None);
                return Ok(self.answer(rows, collected.info, request));
            }
            rt::task::yield_now().await;
        }
    }

    /// Reads one page of groups. Requests about as many rows as there may be groups, in case each
    /// group has one row.
    pub(super) async fn grouped(
        &self,
        mut query: Query,
        mut emitter: Emitter<'_>,
        mut page: ClientPage<'_>,
    ) -> Result<StatementResult, Error> {
        let ClientPage { request, pager, .. } = page;
        let mut collected = Collected::new(&page, self);
        emitter.bind(&collected.pace).await?;
        let mut state = page.take_state(&mut emitter)?;
        let size = page.size.map_or(INTERNAL_PAGE_ROWS, |groups| {
            groups.saturating_add(1).clamp(LEAST_GROUPED_ROWS, INTERNAL_PAGE_ROWS)
        });
        emitter.most_groups = page.size.unwrap_or(u64::MAX);
        request.release_metadata();
        let mut id = state.as_ref().map(|state| state.query);
        let mut replicas = state.as_ref().and_then(|state| state.replicas.clone());
        let (mut counting, resumes) = (Counting::Page, state.is_some());
        loop {
            let wanted = PageRequest { size: Some(size), state, counting, ..PageRequest::default() };
            let read = self.read_internal_page(&mut query, &wanted, &page, &mut emitter, &mut collected).await?;
            counting = Counting::next_part(resumes, read.asked);
            let taken = read.all_taken;
            state = read.next;
            if let Some(next) = &state {
                (id, replicas) = (Some(next.query), next.replicas.clone());
            }
            if emitter.remaining > 0 && taken && state.is_some() {
                rt::task::yield_now().await;
                continue;
            }
            let mut next = None;
            if emitter.remaining == 0 {
                collected.info.stop = PageStop::Limit;
            } else if taken {
                emitter.finish(&collected.pace).await?;
            } else if let Some(grouping) = &self.grouping {
                collected.info.stop = PageStop::Rows;
                let (remaining, partition) = (emitter.remaining, std::mem::take(&mut emitter.partition));
                next = Some(PagingState {
                    query: id.unwrap_or_else(|| QueryId(rt::random::uuid_v4())),
                    remaining: u64::MAX,
                    position: grouping.position(&emitter.last),
                    // The exact count is not needed. But 0 would mean that no row of the partition
                    // was returned yet, so its static row could be returned on its own.
                    rows_in_last: 1,
                    replicas,
                    processor_state: FilteredState { remaining, partition }.encode(),
                });
            }
            let tablet = page.tablet(&query, next.as_ref());
            let next = next.map(|state| pager.seal(&state)).transpose()?;
            let rows = self.rows(emitter.rows, std::mem::take(&mut emitter.body), next);
            return Ok(StatementResult { tablet, ..self.answer(rows, collected.info, request) });
        }
    }

    /// Reads one page of rows that pass the filters. Internal pages without such rows are not
    /// returned to the client. There are two exceptions: the budget for finding a first row is
    /// spent, or the operator's tombstone limit cut the page.
    pub(super) async fn filtered(
        &self,
        mut query: Query,
        mut emitter: Emitter<'_>,
        mut page: ClientPage<'_>,
    ) -> Result<StatementResult, Error> {
        let ClientPage { request, options, pager, .. } = page;
        let mut collected = Collected::new(&page, self);
        emitter.bind(&collected.pace).await?;
        let mut state = page.take_state(&mut emitter)?;
        let limits = request.coordinator.page_limits();
        let budget = PageBudget::new(&limits, options);
        request.release_metadata();
        let (mut counting, resumes) = (Counting::Page, state.is_some());
        loop {
            let size = Some(page.size.unwrap_or(INTERNAL_PAGE_ROWS));
            let wanted = PageRequest { size, state, budget: Some(budget), counting };
            let read = self.read_internal_page(&mut query, &wanted, &page, &mut emitter, &mut collected).await?;
            (state, counting) = (read.next, Counting::next_part(resumes, read.asked));
            if emitter.remaining == 0 {
                state = None;
                collected.info.stop = PageStop::Limit;
            }
            let mut enough =
                emitter.rows > 0 || collected.info.stop == PageStop::Tombstones && limits.tombstones_are_set;
            if state.is_some()
                && !enough
                && page.size.is_some()
                && let Some(stop) = budget.spent(collected.info.bytes)
            {
                (collected.info.stop, enough) = (stop, true);
            }
            if state.is_none() || enough && page.size.is_some() {
                let tablet = page.tablet(&query, state.as_deref());
                let next = state.map(|mut state| {
                    let partition = std::mem::take(&mut emitter.partition);
                    state.processor_state = FilteredState { remaining: emitter.remaining, partition }.encode();
                    pager.seal(&state)
                });
                let rows = self.rows(emitter.rows, std::mem::take(&mut emitter.body), next.transpose()?);
                return Ok(StatementResult { tablet, ..self.answer(rows, collected.info, request) });
            }
            rt::task::yield_now().await;
        }
    }
}

/// Passes all rows to the emitter. False if a row was not taken because the page of groups is full.
async fn push_all(
    body: Bytes,
    rows: u64,
    select: &Select,
    emitter: &mut Emitter<'_>,
    pace: &Pace<'_>,
) -> Result<bool, Error> {
    let mut body = Body::new(body, select.output.columns.len(), rows);
    let mut slots = Vec::new();
    loop {
        let left = body.left();
        if !body.next_row(&mut slots) {
            return Ok(true);
        }
        if !emitter.take(&slots, left - body.left(), pace).await? {
            return Ok(false);
        }
    }
}
