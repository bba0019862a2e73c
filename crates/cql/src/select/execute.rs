//! The execution of a SELECT: one page for the client.

use super::rows::{Body, Emitter};
use super::{Select, Shape, virtual_rows};
use crate::api::{Answer, AnswerKind, Rows};
use crate::error::Error;
use crate::request::{Request, read_error};
use crate::restrictions::Partitions;
use crate::term::{Env, Term, Val};
use bytes::Bytes;
use cluster::coordinator::Partitions as Targets;
use cluster::{PageRequest, Query, RequestOptions};
use model::range::Slice;
use std::rc::Rc;

/// `select_internal_page_size`: rows a page where rows are aggregated or filtered and the client named no page size.
const INTERNAL_PAGE_ROWS: u64 = 10_000;
/// How many pages without a match one request reads before it answers with an empty page.
const MAX_EMPTY_PAGES: usize = 16;

/// A limit's value; none if there is none.
fn limit(term: &Option<Term>, what: &str, env: Env<'_>) -> Result<Option<u64>, Error> {
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
        let default = match &partitions {
            Partitions::Keys(_) => request.config.read_timeout,
            Partitions::Range(_) => request.config.range_timeout,
        };
        let options = request.options(self.attributes.timeout(env, default)?);
        if let Some(table) = &self.virtual_table {
            let ranges = self.restrictions.clustering.evaluate(&self.schema, env, false)?.into_ranges();
            let place = virtual_rows::Place { partitions, ranges };
            let emitter = emitter(None, None)?;
            let state = request.params.paging_state.as_ref();
            let page =
                virtual_rows::read(self, table.as_ref(), place, emitter, rows_limit, per_partition, page_size, state);
            return page.await.map(|rows| self.answer(rows));
        }
        let slice = match &self.slice {
            Some(slice) => slice.clone(),
            None => {
                let rows = self.restrictions.clustering.evaluate(&self.schema, env, false)?.into_ranges();
                let nothing = rows.is_empty();
                let slice = Slice { rows, static_row: self.static_row, reversed: self.reversed, resume: None };
                if nothing {
                    return self.nothing(emitter(rows_limit, per_partition)?);
                }
                Rc::new(slice)
            }
        };
        let (partitions, hint) = match partitions {
            Partitions::Keys(keys) if keys.is_empty() => return self.nothing(emitter(rows_limit, per_partition)?),
            Partitions::Keys(keys) => {
                let hint = match &keys[..] {
                    [key]
                        if request.client.tablets_routing.get()
                            && self.restrictions.partition.key_variables().is_some() =>
                    {
                        let table = request.metadata.table_by_id(self.schema.id);
                        table.and_then(|table| request.coordinator.tablet_hint(table, key.token))
                    }
                    _ => None,
                };
                (Targets::Keys(keys), hint)
            }
            Partitions::Range(range) => (Targets::Range(range), None),
        };
        let table = request.metadata.table_by_id(self.schema.id);
        let table = table.ok_or_else(|| Error::invalid(format!("unconfigured table {}", self.schema.name)))?;
        let mut query = Query {
            table: table.clone(),
            partitions,
            slice,
            output: self.output.clone(),
            limit: rows_limit,
            per_partition_limit: per_partition,
            now: rt::time::wall_seconds() as i32,
            bypass_cache: self.bypass_cache,
        };
        let mut answer = if !self.sort.is_empty() || matches!(self.shape, Shape::Aggregate(..)) {
            self.check_sorted(page_size)?;
            query.limit = None;
            let filtered = !self.restrictions.filters.is_empty();
            if filtered {
                query.per_partition_limit = None;
            }
            let emitter = emitter(rows_limit, per_partition.filter(|_| filtered))?;
            self.answer(self.whole(query, emitter, request, &options).await?)
        } else if !self.restrictions.filters.is_empty() {
            (query.limit, query.per_partition_limit) = (None, None);
            self.answer(self.filtered(query, emitter(rows_limit, per_partition)?, page_size, request, &options).await?)
        } else {
            self.page(query, page_size, env, request, &options).await?
        };
        answer.tablet = hint;
        Ok(answer)
    }

    fn answer(&self, rows: Rows) -> Answer {
        Answer::new(AnswerKind::Rows(rows))
    }

    fn rows(&self, count: u64, body: Vec<u8>, paging_state: Option<Bytes>) -> Rows {
        Rows { metadata: self.metadata.clone(), paging_state, count: count as u32, body: body.into() }
    }

    /// The answer of a query that matches nothing.
    fn nothing(&self, mut emitter: Emitter<'_>) -> Result<Answer, Error> {
        emitter.finish()?;
        Ok(self.answer(self.rows(emitter.rows, std::mem::take(&mut emitter.body), None)))
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
        env: Env<'_>,
        request: &Request<'_>,
        options: &RequestOptions,
    ) -> Result<Answer, Error> {
        let state = request.params.paging_state.clone();
        let size = page_size.filter(|_| state.is_some() || !self.needs_no_paging(&query));
        let page = request.coordinator.read(&query, &PageRequest { size, state }, options).await;
        let page = page.map_err(|error| read_error(error, &self.schema))?;
        if let Shape::Plain = self.shape {
            return Ok(self.answer(self.rows(page.rows, page.body, page.next)));
        }
        let mut emitter = Emitter::new(self, env, None, None)?;
        push_all(page.body, page.rows, self, &mut emitter).await?;
        Ok(self.answer(self.rows(emitter.rows, std::mem::take(&mut emitter.body), page.next)))
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
        query: Query,
        mut emitter: Emitter<'_>,
        request: &Request<'_>,
        options: &RequestOptions,
    ) -> Result<Rows, Error> {
        let mut state = None;
        loop {
            let wanted = PageRequest { size: Some(INTERNAL_PAGE_ROWS), state };
            let page = request.coordinator.read(&query, &wanted, options).await;
            let page = page.map_err(|error| read_error(error, &self.schema))?;
            push_all(page.body, page.rows, self, &mut emitter).await?;
            self.check_size(&emitter, request)?;
            state = page.next;
            if state.is_none() {
                emitter.finish()?;
                return Ok(self.rows(emitter.rows, std::mem::take(&mut emitter.body), None));
            }
            rt::task::yield_now().await;
        }
    }

    /// One page of the rows that pass the filters.
    async fn filtered(
        &self,
        query: Query,
        mut emitter: Emitter<'_>,
        page_size: Option<u64>,
        request: &Request<'_>,
        options: &RequestOptions,
    ) -> Result<Rows, Error> {
        let mut state = None;
        if let Some(bytes) = &request.params.paging_state {
            let filtered = FilteredState::decode(bytes).ok_or_else(bad_state)?;
            (emitter.remaining, emitter.partition) = (filtered.remaining, filtered.partition);
            state = Some(filtered.inner);
        }
        let mut pages = 0;
        loop {
            let wanted = PageRequest { size: Some(page_size.unwrap_or(INTERNAL_PAGE_ROWS)), state };
            let page = request.coordinator.read(&query, &wanted, options).await;
            let page = page.map_err(|error| read_error(error, &self.schema))?;
            push_all(page.body, page.rows, self, &mut emitter).await?;
            self.check_size(&emitter, request)?;
            state = page.next;
            pages += 1;
            let enough = page_size.is_some() && (emitter.rows > 0 || pages >= MAX_EMPTY_PAGES);
            if emitter.remaining == 0 {
                state = None;
            }
            if state.is_none() || enough {
                let next = state.map(|inner| {
                    let partition = std::mem::take(&mut emitter.partition);
                    FilteredState { remaining: emitter.remaining, partition, inner }.encode()
                });
                return Ok(self.rows(emitter.rows, std::mem::take(&mut emitter.body), next));
            }
            rt::task::yield_now().await;
        }
    }
}

/// Rows between looks at the clock.
const ROWS_PER_LOOK: usize = 64;

async fn push_all(body: Vec<u8>, rows: u64, select: &Select, emitter: &mut Emitter<'_>) -> Result<(), Error> {
    if emitter.only_counts() {
        emitter.count(rows);
        return Ok(());
    }
    let mut body = Body::new(body, select.output.columns.len(), rows);
    let mut slots = Vec::new();
    for n in 1.. {
        if !body.next_row(&mut slots) {
            break;
        }
        emitter.push(&slots)?;
        if n % ROWS_PER_LOOK == 0 {
            rt::task::maybe_yield().await;
        }
    }
    Ok(())
}

/// The protocol error for a paging state that is not ours.
pub(super) fn bad_state() -> Error {
    Error::Protocol("Invalid value for the paging state".to_owned())
}

/// The paging state of a filtered query: how far the limits have come, around the coordinator's own state, which checks itself.
///
/// ```text
/// u8 'F', u64 rows still to come, u64 rows emitted of the last partition, u32 length, its key's values; the inner state
/// ```
struct FilteredState {
    remaining: u64,
    partition: (Vec<u8>, u64),
    inner: Bytes,
}

const FILTERED: u8 = b'F';

impl FilteredState {
    fn encode(&self) -> Bytes {
        let (key, rows) = &self.partition;
        let mut out = vec![FILTERED];
        out.extend_from_slice(&self.remaining.to_le_bytes());
        out.extend_from_slice(&rows.to_le_bytes());
        out.extend_from_slice(&(key.len() as u32).to_le_bytes());
        out.extend_from_slice(key);
        out.extend_from_slice(&self.inner);
        out.into()
    }

    fn decode(bytes: &Bytes) -> Option<FilteredState> {
        let (&tag, rest) = bytes.split_first()?;
        let (remaining, rest) = rest.split_first_chunk::<8>()?;
        let (rows, rest) = rest.split_first_chunk::<8>()?;
        let (len, rest) = rest.split_first_chunk::<4>()?;
        let (key, inner) = rest.split_at_checked(u32::from_le_bytes(*len) as usize)?;
        let remaining = u64::from_le_bytes(*remaining);
        (tag == FILTERED && remaining > 0).then(|| FilteredState {
            remaining,
            partition: (key.to_vec(), u64::from_le_bytes(*rows)),
            inner: bytes.slice_ref(inner),
        })
    }
}
