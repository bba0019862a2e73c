//! The execution of a SELECT: one page for the client.

use super::pager::{FilteredState, Pager, VirtualState};
use super::rows::{Body, Emitter};
use super::{Select, Shape, virtual_rows};
use crate::api::{Answer, AnswerKind, Rows};
use crate::error::Error;
use crate::request::{Request, read_error};
use crate::restrictions::Partitions;
use crate::term::{Env, Term, Val};
use bytes::Bytes;
use cluster::coordinator::{PageBudget, PageInfo, PageStop, PagingState, Partitions as Targets};
use cluster::{PageRequest, Query, RequestOptions};
use model::id::QueryId;
use model::key::DecoratedKey;
use model::range::Slice;
use model::token::Token;
use std::rc::Rc;

/// `select_internal_page_size`: rows a page where rows are aggregated or filtered and the client named no page size.
const INTERNAL_PAGE_ROWS: u64 = 10_000;

/// Rows a page at least where rows are grouped, however few groups the client wants at once.
const LEAST_GROUPED_ROWS: u64 = 100;

/// A limit's value; none if there is none.
fn limit(term: &Option<Box<Term>>, what: &str, env: Env<'_>) -> Result<Option<u64>, Error> {
    let Some(term) = term else { return Ok(None) };
    let value = match term.evaluate(env)? {
        Val::Unset => return Ok(None),
        Val::Null => return Err(Error::invalid(format!("Invalid null value of {}", what.to_lowercase()))),
        value => value.as_slice().and_then(|bytes| bytes.try_into().ok()).map(i32::from_be_bytes),
    };
    let value = value.ok_or_else(|| Error::invalid(format!("Invalid {} value", what.to_lowercase())))?;
    if value <= 0 {
        return Err(Error::invalid(format!("{what} must be strictly positive")));
    }
    Ok(Some(value as u64))
}

impl Select {
    /// Executes the statement.
    pub async fn execute(&self, env: Env<'_>, request: &Request<'_>) -> Result<Answer, Error> {
        request.check_read_level()?;
        let rows_limit = limit(&self.limit, "LIMIT", env)?;
        let per_partition = limit(&self.per_partition_limit, "PER PARTITION LIMIT", env)?;
        let partitions = self.restrictions.partition.evaluate(&self.schema, env, false)?;
        let page_size = request.params.page_size.and_then(|size| u64::try_from(size).ok()).filter(|size| *size > 0);
        let emitter = |limit, per_partition| Emitter::new(self, env, limit, per_partition);
        let pager = Pager::new(self, env, request, [rows_limit.is_some(), per_partition.is_some()]);
        let state = pager.open().await?;
        let default = match &partitions {
            Partitions::Keys(_) => request.config.read_timeout,
            Partitions::Range(_) => request.config.range_timeout,
        };
        let options = request.options(self.attributes.timeout(env, default)?);
        if let Some(table) = &self.virtual_table {
            let ranges = self.restrictions.clustering.evaluate(&self.schema, env, false)?.into_ranges();
            let place = virtual_rows::Place { partitions, ranges };
            let emitter = emitter(None, per_partition.filter(|_| self.grouping.is_some()))?;
            let skip = match state {
                Some(state) => VirtualState::decode(&state.language).ok_or_else(bad_state)?.0,
                None => 0,
            };
            let page =
                virtual_rows::read(self, table.as_ref(), place, emitter, rows_limit, per_partition, page_size, skip);
            let (mut rows, next) = page.await?;
            let mut info = PageInfo { rows: rows.count.into(), ..PageInfo::default() };
            if let Some(next) = next {
                rows.paging_state = Some(pager.seal(&PagingState::of_language(next.encode()))?);
                info.stop = PageStop::Rows;
            }
            return Ok(self.answer(rows, info, request));
        }
        let slice = match &self.slice {
            Some(slice) => slice.clone(),
            None => {
                let rows = self.restrictions.clustering.evaluate(&self.schema, env, false)?.into_ranges();
                let nothing = rows.is_empty();
                let slice = Slice { rows, static_row: self.static_row, reversed: self.reversed, resume: None };
                if nothing {
                    return self.nothing(emitter(rows_limit, per_partition)?, request);
                }
                Rc::new(slice)
            }
        };
        let (partitions, hint) = match partitions {
            Partitions::Keys(keys) if keys.is_empty() => {
                return self.nothing(emitter(rows_limit, per_partition)?, request);
            }
            Partitions::Keys(keys) => {
                let token = self.routed_by(&keys, request);
                let hint = token.and_then(|token| {
                    let metadata = request.metadata();
                    let table = metadata.table_by_id(self.schema.id);
                    table.and_then(|table| request.coordinator.tablet_hint(table, token))
                });
                (Targets::Keys(keys), hint)
            }
            Partitions::Range(range) => (Targets::Range(range), None),
        };
        let table = request.metadata().table_by_id(self.schema.id).cloned();
        let table = table.ok_or_else(|| Error::invalid(format!("unconfigured table {}", self.schema.name)))?;
        let mut query = Query {
            table,
            partitions,
            slice,
            output: self.output.clone(),
            limit: rows_limit,
            per_partition_limit: per_partition,
            now: request.params.now_in_seconds.unwrap_or_else(|| rt::time::wall_seconds() as i32),
            bypass_cache: self.bypass_cache,
        };
        // What is rarer than a plain page is boxed, so that the future of a plain page stays small: it is moved on its way.
        let mut answer = if self.grouping.is_some() && self.sort.is_empty() {
            (query.limit, query.per_partition_limit) = (None, None);
            let emitter = emitter(rows_limit, per_partition)?;
            Box::pin(self.grouped(query, emitter, page_size, state, &pager, request, &options)).await?
        } else if !self.sort.is_empty() || matches!(self.shape, Shape::Aggregate(..)) {
            self.check_sorted(page_size)?;
            query.limit = None;
            let limited_here = !self.restrictions.filters.is_empty() || self.grouping.is_some();
            if limited_here {
                query.per_partition_limit = None;
            }
            let emitter = emitter(rows_limit, per_partition.filter(|_| limited_here))?;
            Box::pin(self.whole(query, emitter, request, &options)).await?
        } else if !self.restrictions.filters.is_empty() {
            (query.limit, query.per_partition_limit) = (None, None);
            let emitter = emitter(rows_limit, per_partition)?;
            Box::pin(self.filtered(query, emitter, page_size, state, &pager, request, &options)).await?
        } else {
            self.page(query, page_size, state, &pager, request, &options).await?
        };
        answer.tablet = answer.tablet.or(hint);
        Ok(answer)
    }

    /// The token by which the client chose whom to ask, if it is one that knows of tablets.
    fn routed_by(&self, keys: &[DecoratedKey], request: &Request<'_>) -> Option<Token> {
        let [key] = keys else { return None };
        let knows = request.client.tablets_routing.get() && self.restrictions.partition.key_variables().is_some();
        knows.then_some(key.token)
    }

    fn answer(&self, rows: Rows, info: PageInfo, request: &Request<'_>) -> Answer {
        let mut answer = Answer::new(AnswerKind::Rows(rows));
        if request.params.page_info {
            answer.page_info = Some(info.to_json().into());
        }
        if let Some(trace) = &request.trace {
            trace.event(format!(
                "The page ended: {}; examined {} rows, {} bytes, {} tombstones in {} replica pages",
                info.stop.name(),
                info.rows,
                info.bytes,
                info.tombstones,
                info.asked
            ));
        }
        answer
    }

    fn rows(&self, count: u64, body: impl Into<Bytes>, paging_state: Option<Bytes>) -> Rows {
        Rows { metadata: self.metadata.clone(), paging_state, count: count as u32, body: body.into() }
    }

    /// The answer of a query that matches nothing.
    fn nothing(&self, mut emitter: Emitter<'_>, request: &Request<'_>) -> Result<Answer, Error> {
        emitter.finish()?;
        let rows = self.rows(emitter.rows, std::mem::take(&mut emitter.body), None);
        Ok(self.answer(rows, PageInfo::default(), request))
    }

    fn check_sorted(&self, page_size: Option<u64>) -> Result<(), Error> {
        if !self.sort.is_empty() && page_size.is_some() {
            return Err(Error::invalid(
                "Cannot page queries with both ORDER BY and a IN restriction on the partition key; you must either remove \
                 the ORDER BY or the IN and sort client side, or disable paging for this query",
            ));
        }
        Ok(())
    }

    /// Whether there can be no second page.
    fn needs_no_paging(&self, query: &Query) -> bool {
        query.limit == Some(1)
            || matches!(&query.partitions, Targets::Keys(keys) if keys.len() == 1)
                && (self.restrictions.clustering.is_one_row(&self.schema) || self.output.distinct)
    }

    /// One page of rows that need no filter, aggregate or order.
    async fn page(
        &self,
        query: Query,
        page_size: Option<u64>,
        state: Option<Box<PagingState>>,
        pager: &Pager<'_>,
        request: &Request<'_>,
        options: &RequestOptions,
    ) -> Result<Answer, Error> {
        let size = page_size.filter(|_| state.is_some() || !self.needs_no_paging(&query));
        let wanted = PageRequest { size, state, ..PageRequest::default() };
        let page = request.coordinator.read(&query, &wanted, options).await;
        let page = page.map_err(|error| read_error(error, &self.schema))?;
        let token = match &query.partitions {
            Targets::Keys(keys) if wanted.state.is_some() => self.routed_by(keys, request),
            _ => None,
        };
        let tablet =
            token.and_then(|token| request.coordinator.hint_of_page(&query.table, token, page.next.as_deref()));
        let next = page.next.map(|state| pager.seal(&state)).transpose()?;
        if let Shape::Plain = self.shape {
            let answer = self.answer(self.rows(page.rows, page.body, next), page.info, request);
            return Ok(Answer { tablet, ..answer });
        }
        let mut emitter = Emitter::new(self, pager.env(), None, None)?;
        push_all(page.body, page.rows, self, &mut emitter).await?;
        let rows = self.rows(emitter.rows, std::mem::take(&mut emitter.body), next);
        Ok(Answer { tablet, ..self.answer(rows, page.info, request) })
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

    /// All rows at once, read page by page: for aggregates and for orders across partitions.
    async fn whole(
        &self,
        mut query: Query,
        mut emitter: Emitter<'_>,
        request: &Request<'_>,
        options: &RequestOptions,
    ) -> Result<Answer, Error> {
        request.let_go_of_metadata();
        let reduced = self.reduced.clone().filter(|_| request.coordinator.can_reduce(&query.table));
        if emitter.only_counts() || reduced.is_some() {
            query.output = reduced.unwrap_or(query.output);
            let page = request.coordinator.reduce(&query, options).await;
            let page = page.map_err(|error| read_error(error, &self.schema))?;
            emitter.take_reduced(page.rows, &page.body)?;
            emitter.finish()?;
            let rows = self.rows(emitter.rows, std::mem::take(&mut emitter.body), None);
            return Ok(self.answer(rows, page.info, request));
        }
        let mut state = None;
        let mut info = PageInfo::default();
        loop {
            let wanted = PageRequest { size: Some(INTERNAL_PAGE_ROWS), state, ..PageRequest::default() };
            let page = request.coordinator.read_anew(&mut query, &wanted, options).await;
            let page = page.map_err(|error| read_error(error, &self.schema))?;
            info = info.then(page.info);
            push_all(page.body, page.rows, self, &mut emitter).await?;
            self.check_size(&emitter, request)?;
            state = page.next;
            if state.is_none() {
                emitter.finish()?;
                let rows = self.rows(emitter.rows, std::mem::take(&mut emitter.body), None);
                return Ok(self.answer(rows, info, request));
            }
            rt::task::yield_now().await;
        }
    }

    /// One page of groups. Replicas are asked for about as many rows as there may be groups, in case each group is one row.
    #[allow(clippy::too_many_arguments)]
    async fn grouped(
        &self,
        mut query: Query,
        mut emitter: Emitter<'_>,
        page_size: Option<u64>,
        mut state: Option<Box<PagingState>>,
        pager: &Pager<'_>,
        request: &Request<'_>,
        options: &RequestOptions,
    ) -> Result<Answer, Error> {
        if let Some(state) = &state {
            let before = FilteredState::decode(&state.language).ok_or_else(bad_state)?;
            (emitter.remaining, emitter.partition) = (before.remaining, before.partition);
        }
        let size = page_size.map_or(INTERNAL_PAGE_ROWS, |groups| {
            groups.saturating_add(1).clamp(LEAST_GROUPED_ROWS, INTERNAL_PAGE_ROWS)
        });
        emitter.most_groups = page_size.unwrap_or(u64::MAX);
        request.let_go_of_metadata();
        let mut id = state.as_ref().map(|state| state.query);
        let mut replicas = state.as_ref().and_then(|state| state.replicas.clone());
        let mut info = PageInfo::default();
        loop {
            let wanted = PageRequest { size: Some(size), state, ..PageRequest::default() };
            let page = request.coordinator.read_anew(&mut query, &wanted, options).await;
            let page = page.map_err(|error| read_error(error, &self.schema))?;
            info = info.then(page.info);
            if let Some(next) = &page.next {
                (id, replicas) = (Some(next.query), next.replicas.clone());
            }
            let taken = push_all(page.body, page.rows, self, &mut emitter).await?;
            self.check_size(&emitter, request)?;
            state = page.next;
            if emitter.remaining > 0 && taken && state.is_some() {
                rt::task::yield_now().await;
                continue;
            }
            let mut next = None;
            if emitter.remaining == 0 {
                info.stop = PageStop::Limit;
            } else if taken {
                emitter.finish()?;
            } else if let Some(grouping) = &self.grouping {
                info.stop = PageStop::Rows;
                let (remaining, partition) = (emitter.remaining, std::mem::take(&mut emitter.partition));
                next = Some(pager.seal(&PagingState {
                    query: id.unwrap_or_else(|| QueryId(rt::random::uuid_v4())),
                    remaining: u64::MAX,
                    position: grouping.position(&emitter.last),
                    // Its rows are not counted there; but a partition that had none would show its static row alone.
                    rows_in_last: 1,
                    replicas,
                    language: FilteredState { remaining, partition }.encode(),
                })?);
            }
            let rows = self.rows(emitter.rows, std::mem::take(&mut emitter.body), next);
            return Ok(self.answer(rows, info, request));
        }
    }

    /// One page of the rows that pass the filters. Pages of which nothing passes are not shown to the client unless the budget
    /// for finding a first row runs out, or the operator's limit of tombstones has cut them.
    #[allow(clippy::too_many_arguments)]
    async fn filtered(
        &self,
        mut query: Query,
        mut emitter: Emitter<'_>,
        page_size: Option<u64>,
        mut state: Option<Box<PagingState>>,
        pager: &Pager<'_>,
        request: &Request<'_>,
        options: &RequestOptions,
    ) -> Result<Answer, Error> {
        if let Some(state) = &state {
            let filtered = FilteredState::decode(&state.language).ok_or_else(bad_state)?;
            (emitter.remaining, emitter.partition) = (filtered.remaining, filtered.partition);
        }
        let limits = request.coordinator.page_limits();
        let budget = PageBudget::new(&limits, options);
        request.let_go_of_metadata();
        let mut info = PageInfo::default();
        loop {
            let size = Some(page_size.unwrap_or(INTERNAL_PAGE_ROWS));
            let wanted = PageRequest { size, state, budget: Some(budget) };
            let page = request.coordinator.read_anew(&mut query, &wanted, options).await;
            let page = page.map_err(|error| read_error(error, &self.schema))?;
            info = info.then(page.info);
            push_all(page.body, page.rows, self, &mut emitter).await?;
            self.check_size(&emitter, request)?;
            state = page.next;
            if emitter.remaining == 0 {
                state = None;
                info.stop = PageStop::Limit;
            }
            let mut enough = emitter.rows > 0 || info.stop == PageStop::Tombstones && limits.tombstones_are_set;
            if state.is_some()
                && !enough
                && page_size.is_some()
                && let Some(stop) = budget.spent(info.bytes)
            {
                (info.stop, enough) = (stop, true);
            }
            if state.is_none() || enough && page_size.is_some() {
                let next = state.map(|mut state| {
                    let partition = std::mem::take(&mut emitter.partition);
                    state.language = FilteredState { remaining: emitter.remaining, partition }.encode();
                    pager.seal(&state)
                });
                let rows = self.rows(emitter.rows, std::mem::take(&mut emitter.body), next.transpose()?);
                return Ok(self.answer(rows, info, request));
            }
            rt::task::yield_now().await;
        }
    }
}

/// Rows between looks at the clock.
const ROWS_PER_LOOK: usize = 64;

/// False if a row was not taken, because a page of groups is full.
async fn push_all(body: Bytes, rows: u64, select: &Select, emitter: &mut Emitter<'_>) -> Result<bool, Error> {
    let mut body = Body::new(body, select.output.columns.len(), rows);
    let mut slots = Vec::new();
    for n in 1.. {
        if !body.next_row(&mut slots) {
            break;
        }
        if !emitter.push(&slots)? {
            return Ok(false);
        }
        if n % ROWS_PER_LOOK == 0 {
            rt::task::maybe_yield().await;
        }
    }
    Ok(true)
}

/// The protocol error for a paging state that is ours and makes no sense here.
fn bad_state() -> Error {
    Error::Protocol("Invalid value for the paging state".to_owned())
}
