//! The ways in which a SELECT is read and paged: plainly, whole, by groups, or filtered.

use super::pace::Pace;
use super::pager::{FilteredState, Pager, bad_state};
use super::rows::{Body, Emitter};
use super::{Select, Shape};
use crate::api::Answer;
use crate::error::Error;
use crate::request::{Request, read_error};
use bytes::Bytes;
use coordinator::{
    PageBudget, PageInfo, PageRequest, PageStop, PagingState, Partitions as Targets, Query, RequestOptions,
};
use model::id::QueryId;
use model::token::Token;

/// `select_internal_page_size`: rows a page where rows are aggregated or filtered and the client named no page size.
const INTERNAL_PAGE_ROWS: u64 = 10_000;
use std::pin::pin;

/// Rows a page at least where rows are grouped, however few groups the client wants at once.
const LEAST_GROUPED_ROWS: u64 = 100;

/// A page as the client wants it.
pub(super) struct Page<'a> {
    /// Rows, or groups, at most; none if the client does not page.
    pub size: Option<u64>,
    /// Where the page before ended, if there was one.
    pub state: Option<Box<PagingState>>,
    /// The token by which the client chose whom to ask, if it can be told of others, and this is not its first page.
    pub steered: Option<Token>,
    pub pager: &'a Pager<'a>,
    pub request: &'a Request<'a>,
    pub options: &'a RequestOptions,
}

impl Page<'_> {
    /// Where the page before ended; its limits go on where they were.
    fn go_on(&mut self, emitter: &mut Emitter<'_>) -> Result<Option<Box<PagingState>>, Error> {
        let state = self.state.take();
        if let Some(state) = &state {
            let before = FilteredState::decode(&state.language).ok_or_else(bad_state)?;
            (emitter.remaining, emitter.partition) = (before.remaining, before.partition);
        }
        Ok(state)
    }

    /// What the client is told of the tablet once the page has ended there.
    fn tablet(&self, query: &Query, next: Option<&PagingState>) -> Option<Bytes> {
        self.request.coordinator.hint_of_page(&query.table, self.steered?, next)
    }
}

/// What one read came to.
struct Gathered {
    /// Whether all of it was taken: not if a page of groups is full.
    whole: bool,
    /// Where it ended, unless nothing is left.
    next: Option<Box<PagingState>>,
}

impl Select {
    /// Whether there can be no second page.
    fn needs_no_paging(&self, query: &Query) -> bool {
        query.limit == Some(1)
            || matches!(&query.partitions, Targets::Keys(keys) if keys.len() == 1)
                && (self.restrictions.clustering.is_one_row(&self.schema) || self.output.distinct)
    }

    /// One page of rows that need no filter, aggregate or order.
    pub(super) async fn plain(&self, query: Query, mut page: Page<'_>) -> Result<Answer, Error> {
        let size = page.size.filter(|_| page.state.is_some() || !self.needs_no_paging(&query));
        let wanted = PageRequest { size, state: page.state.take(), ..PageRequest::default() };
        // Pinned, so that a future of this size is not moved about.
        let read = pin!(page.request.coordinator.read(&query, &wanted, page.options)).await;
        let read = read.map_err(|error| read_error(error, &self.schema))?;
        let tablet = page.tablet(&query, read.next.as_deref());
        let next = read.next.map(|state| page.pager.seal(&state)).transpose()?;
        if let Shape::Plain = self.shape {
            let answer = self.answer(self.rows(read.rows, read.body, next), read.info, page.request);
            return Ok(Answer { tablet, ..answer });
        }
        let mut emitter = Emitter::new(self, page.pager.env(), None, None, page.request.config.unpaged_bytes);
        let pace = Pace::new(page.options, &self.schema);
        push_all(read.body, read.rows, self, &mut emitter, &pace).await?;
        let rows = self.rows(emitter.rows, std::mem::take(&mut emitter.body), next);
        Ok(Answer { tablet, ..self.answer(rows, read.info, page.request) })
    }

    /// What is gathered here before it is sent is bounded like an unpaged read.
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

    /// Reads on, by the newest metadata, and gathers what it gives.
    async fn gather(
        &self,
        query: &mut Query,
        wanted: &PageRequest,
        page: &Page<'_>,
        emitter: &mut Emitter<'_>,
        pace: &Pace<'_>,
        info: &mut PageInfo,
    ) -> Result<Gathered, Error> {
        let read = page.request.coordinator.read_anew(query, wanted, page.options).await;
        let read = read.map_err(|error| read_error(error, &self.schema))?;
        *info = std::mem::take(info).then(read.info);
        let whole = push_all(read.body, read.rows, self, emitter, pace).await?;
        self.check_size(emitter, page.request)?;
        Ok(Gathered { whole, next: read.next })
    }

    /// All rows at once, read page by page: for aggregates and for orders across partitions.
    pub(super) async fn whole(
        &self,
        mut query: Query,
        mut emitter: Emitter<'_>,
        page: &Page<'_>,
    ) -> Result<Answer, Error> {
        let Page { request, options, .. } = *page;
        let pace = Pace::new(options, &self.schema);
        emitter.bind(&pace).await?;
        request.let_go_of_metadata();
        if emitter.only_counts() || self.reduced.is_some() {
            query.output = self.reduced.clone().unwrap_or(query.output);
            let read = request.coordinator.reduce(&query, options).await;
            let read = read.map_err(|error| read_error(error, &self.schema))?;
            emitter.take_reduced(read.rows, &read.body)?;
            emitter.finish(&pace).await?;
            let rows = self.rows(emitter.rows, std::mem::take(&mut emitter.body), None);
            return Ok(self.answer(rows, read.info, request));
        }
        let mut state = None;
        let mut info = PageInfo::default();
        loop {
            let wanted = PageRequest { size: Some(INTERNAL_PAGE_ROWS), state, ..PageRequest::default() };
            state = self.gather(&mut query, &wanted, page, &mut emitter, &pace, &mut info).await?.next;
            if state.is_none() {
                emitter.finish(&pace).await?;
                let rows = self.rows(emitter.rows, std::mem::take(&mut emitter.body), None);
                return Ok(self.answer(rows, info, request));
            }
            rt::task::yield_now().await;
        }
    }

    /// One page of groups. Replicas are asked for about as many rows as there may be groups, in case each group is one row.
    pub(super) async fn grouped(
        &self,
        mut query: Query,
        mut emitter: Emitter<'_>,
        mut page: Page<'_>,
    ) -> Result<Answer, Error> {
        let Page { request, options, pager, .. } = page;
        let pace = Pace::new(options, &self.schema);
        emitter.bind(&pace).await?;
        let mut state = page.go_on(&mut emitter)?;
        let size = page.size.map_or(INTERNAL_PAGE_ROWS, |groups| {
            groups.saturating_add(1).clamp(LEAST_GROUPED_ROWS, INTERNAL_PAGE_ROWS)
        });
        emitter.most_groups = page.size.unwrap_or(u64::MAX);
        request.let_go_of_metadata();
        let mut id = state.as_ref().map(|state| state.query);
        let mut replicas = state.as_ref().and_then(|state| state.replicas.clone());
        let mut info = PageInfo::default();
        loop {
            let wanted = PageRequest { size: Some(size), state, ..PageRequest::default() };
            let gathered = self.gather(&mut query, &wanted, &page, &mut emitter, &pace, &mut info).await?;
            let taken = gathered.whole;
            state = gathered.next;
            if let Some(next) = &state {
                (id, replicas) = (Some(next.query), next.replicas.clone());
            }
            if emitter.remaining > 0 && taken && state.is_some() {
                rt::task::yield_now().await;
                continue;
            }
            let mut next = None;
            if emitter.remaining == 0 {
                info.stop = PageStop::Limit;
            } else if taken {
                emitter.finish(&pace).await?;
            } else if let Some(grouping) = &self.grouping {
                info.stop = PageStop::Rows;
                let (remaining, partition) = (emitter.remaining, std::mem::take(&mut emitter.partition));
                next = Some(PagingState {
                    query: id.unwrap_or_else(|| QueryId(rt::random::uuid_v4())),
                    remaining: u64::MAX,
                    position: grouping.position(&emitter.last),
                    // Its rows are not counted there; but a partition that had none would show its static row alone.
                    rows_in_last: 1,
                    replicas,
                    language: FilteredState { remaining, partition }.encode(),
                });
            }
            let tablet = page.tablet(&query, next.as_ref());
            let next = next.map(|state| pager.seal(&state)).transpose()?;
            let rows = self.rows(emitter.rows, std::mem::take(&mut emitter.body), next);
            return Ok(Answer { tablet, ..self.answer(rows, info, request) });
        }
    }

    /// One page of the rows that pass the filters. Pages of which nothing passes are not shown to the client unless the budget
    /// for finding a first row runs out, or the operator's limit of tombstones has cut them.
    pub(super) async fn filtered(
        &self,
        mut query: Query,
        mut emitter: Emitter<'_>,
        mut page: Page<'_>,
    ) -> Result<Answer, Error> {
        let Page { request, options, pager, .. } = page;
        let pace = Pace::new(options, &self.schema);
        emitter.bind(&pace).await?;
        let mut state = page.go_on(&mut emitter)?;
        let limits = request.coordinator.page_limits();
        let budget = PageBudget::new(&limits, options);
        request.let_go_of_metadata();
        let mut info = PageInfo::default();
        loop {
            let size = Some(page.size.unwrap_or(INTERNAL_PAGE_ROWS));
            let wanted = PageRequest { size, state, budget: Some(budget) };
            state = self.gather(&mut query, &wanted, &page, &mut emitter, &pace, &mut info).await?.next;
            if emitter.remaining == 0 {
                state = None;
                info.stop = PageStop::Limit;
            }
            let mut enough = emitter.rows > 0 || info.stop == PageStop::Tombstones && limits.tombstones_are_set;
            if state.is_some()
                && !enough
                && page.size.is_some()
                && let Some(stop) = budget.spent(info.bytes)
            {
                (info.stop, enough) = (stop, true);
            }
            if state.is_none() || enough && page.size.is_some() {
                let tablet = page.tablet(&query, state.as_deref());
                let next = state.map(|mut state| {
                    let partition = std::mem::take(&mut emitter.partition);
                    state.language = FilteredState { remaining: emitter.remaining, partition }.encode();
                    pager.seal(&state)
                });
                let rows = self.rows(emitter.rows, std::mem::take(&mut emitter.body), next.transpose()?);
                return Ok(Answer { tablet, ..self.answer(rows, info, request) });
            }
            rt::task::yield_now().await;
        }
    }
}

/// False if a row was not taken, because a page of groups is full.
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
