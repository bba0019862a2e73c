//! The execution of a SELECT: evaluates its values, and chooses how its pages are read
//! ([`super::pages`]).

use super::pager::{Pager, VirtualState, bad_state};
use super::pages::ClientPage;
use super::rows::Emitter;
use super::{Select, Shape, virtual_rows};
use crate::api::{ResultKind, Rows, StatementResult};
use crate::error::Error;
use crate::pace::Pace;
use crate::request::Request;
use crate::restrictions::Partitions;
use crate::term::{Env, Term, Val};
use bytes::Bytes;
use coordinator::{PageInfo, PageStop, PagingState, Query, QueryPartitions, RequestOptions};
use model::key::DecoratedKey;
use model::range::Slice;
use model::time::stored_seconds;
use model::token::Token;
use replica::RateLimitMode;
use replica::reduce::values;
use rt::time::Duration;
use smallvec::SmallVec;
use std::collections::BTreeSet;
use std::pin::pin;
use std::rc::Rc;

/// The value of LIMIT or PER PARTITION LIMIT. `None` if the statement has none.
fn row_limit(term: &Option<Box<Term>>, what: &str, env: Env<'_>) -> Result<Option<u64>, Error> {
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
    /// Checks the consistency level and evaluates the partitions. This and
    /// [`Select::apply_rate_limit`] are separate from the execution, so that a refused statement
    /// does not make the future of the execution.
    ///
    /// # Errors
    ///
    /// An invalid level or value.
    #[inline]
    pub fn partitions(&self, env: Env<'_>, request: &Request<'_>) -> Result<Partitions, Error> {
        request.check_read_level()?;
        self.restrictions.partition.evaluate(&self.schema, env, false)
    }

    /// Applies rate limits to the partitions, if the table has some.
    ///
    /// # Errors
    ///
    /// [`Error::RateLimit`]
    #[inline]
    pub fn apply_rate_limit(&self, partitions: &Partitions, request: &Request<'_>) -> Result<RateLimitMode, Error> {
        match self.schema.rate_limits().limits_reads() {
            false => Ok(RateLimitMode::Off),
            true => request.limit_read(&self.schema, partitions),
        }
    }

    /// Executes the statement. `rate_limit` is the decision of [`Select::apply_rate_limit`].
    pub async fn execute(
        &self,
        partitions: Partitions,
        rate_limit: RateLimitMode,
        env: Env<'_>,
        request: &Request<'_>,
    ) -> Result<StatementResult, Error> {
        let rows_limit = row_limit(&self.limit, "LIMIT", env)?;
        let per_partition = row_limit(&self.per_partition_limit, "PER PARTITION LIMIT", env)?;
        let page_size = request.params.page_size.and_then(|size| u64::try_from(size).ok()).filter(|size| *size > 0);
        let max_bytes = request.config.unpaged_bytes;
        let emitter = |limit, per_partition| Emitter::new(self, env, limit, per_partition, max_bytes);
        let pager = Pager::new(self, env, request, [rows_limit.is_some(), per_partition.is_some()]);
        let timeout = self.timeout(&partitions, env, request)?;
        let options = request.limited_options(timeout, rate_limit)?;
        let state = pager.open().await?;
        if let Some(table) = &self.virtual_table {
            let ranges = self.restrictions.clustering.evaluate(&self.schema, env, false)?.into_ranges();
            let place = virtual_rows::RowSelection { partitions, ranges };
            let emitter = emitter(None, per_partition.filter(|_| self.grouping.is_some()));
            let pace = Pace::new(&options, &self.schema);
            let skip = match state {
                Some(state) => VirtualState::decode(&state.processor_state).ok_or_else(bad_state)?.0,
                None => 0,
            };
            let _turn = request.turn_if(table.may_be_large(), &options.context.deadline).await?;
            let limits = [rows_limit, per_partition, page_size];
            let page = virtual_rows::read(self, table.as_ref(), place, emitter, &pace, limits, skip);
            let (mut rows, next) = Box::pin(page).await?;
            let mut info = PageInfo { rows: rows.count.into(), ..PageInfo::default() };
            if let Some(next) = next {
                rows.paging_state = Some(pager.seal(&PagingState::of_processor(next.encode()))?);
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
                debug_assert!(slice.is_in_order(&self.schema.order), "rows are read in order, each once");
                if nothing {
                    return Box::pin(self.nothing(emitter(rows_limit, per_partition), request, &options)).await;
                }
                Rc::new(slice)
            }
        };
        let (partitions, token) = match partitions {
            Partitions::Keys(keys) if keys.is_empty() => {
                return Box::pin(self.nothing(emitter(rows_limit, per_partition), request, &options)).await;
            }
            Partitions::Keys(keys) => {
                let token = self.routed_by(&keys, request);
                (QueryPartitions::Keys(each_once(keys)), token)
            }
            Partitions::Range(range) => (QueryPartitions::Range(range), None),
        };
        let table = request.metadata().table_by_id(self.schema.id).cloned();
        let table = table.ok_or_else(|| Error::invalid(format!("unconfigured table {}", self.schema.name)))?;
        let hint = token.and_then(|token| request.coordinator.tablet_hint(&table, token));
        let mut query = Query {
            table,
            partitions,
            slice,
            output: self.output.clone(),
            limit: rows_limit,
            per_partition_limit: per_partition,
            now: request.params.now_in_seconds.unwrap_or_else(|| stored_seconds(rt::time::wall_seconds())),
            bypass_cache: self.bypass_cache,
        };
        let steered = token.filter(|_| state.is_some());
        let page = ClientPage { size: page_size, state, steered, pager: &pager, request, options: &options };
        // Anything but a plain page is boxed. That keeps the future of a plain page small, which
        // matters because it is moved.
        let mut answer = if self.grouping.is_some() && self.sort.is_empty() {
            (query.limit, query.per_partition_limit) = (None, None);
            let emitter = emitter(rows_limit, per_partition);
            Box::pin(self.grouped(query, emitter, page)).await?
        } else if !self.sort.is_empty() || matches!(self.shape, Shape::Aggregate(..)) {
            self.check_sorted(page_size)?;
            query.limit = None;
            let limited_here = !self.restrictions.filters.is_empty() || self.grouping.is_some();
            if limited_here {
                query.per_partition_limit = None;
            }
            let emitter = emitter(rows_limit, per_partition.filter(|_| limited_here));
            Box::pin(self.read_all_pages(query, emitter, &page)).await?
        } else if !self.restrictions.filters.is_empty() {
            (query.limit, query.per_partition_limit) = (None, None);
            let emitter = emitter(rows_limit, per_partition);
            Box::pin(self.filtered(query, emitter, page)).await?
        } else {
            // Pinned, so that this large future is not moved.
            pin!(self.plain(query, page)).await?
        };
        answer.tablet = answer.tablet.or(hint);
        Ok(answer)
    }

    /// The time limit of a page.
    #[inline]
    fn timeout(&self, partitions: &Partitions, env: Env<'_>, request: &Request<'_>) -> Result<Duration, Error> {
        let default = match partitions {
            Partitions::Keys(_) => request.config.read_timeout,
            Partitions::Range(_) => request.config.range_timeout,
        };
        self.attributes.timeout(env, default)
    }

    /// The token by which the client chose the node, if the client routes by tablets.
    fn routed_by(&self, keys: &[DecoratedKey], request: &Request<'_>) -> Option<Token> {
        let [key] = keys else { return None };
        let knows = request.client.tablets_routing.get() && self.restrictions.partition.key_variables().is_some();
        knows.then_some(key.token)
    }

    pub(super) fn answer(&self, rows: Rows, info: PageInfo, request: &Request<'_>) -> StatementResult {
        let mut answer = StatementResult::new(ResultKind::Rows(rows));
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

    pub(super) fn rows(&self, count: u64, body: impl Into<Bytes>, paging_state: Option<Bytes>) -> Rows {
        let body: Bytes = body.into();
        let wanted = count * self.metadata.columns.len() as u64;
        debug_assert_eq!(values(&body).count() as u64, wanted, "a row has a value for each column of the result");
        Rows { metadata: self.metadata.clone(), paging_state, count: count as u32, body }
    }

    /// The answer of a query that selects no partition or no range of rows.
    async fn nothing(
        &self,
        mut emitter: Emitter<'_>,
        request: &Request<'_>,
        options: &RequestOptions,
    ) -> Result<StatementResult, Error> {
        let pace = Pace::new(options, &self.schema);
        emitter.bind(&pace).await?;
        emitter.finish(&pace).await?;
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
}

/// The keys, each of which must occur once.
fn each_once(keys: SmallVec<[DecoratedKey; 1]>) -> SmallVec<[DecoratedKey; 1]> {
    let mut seen = BTreeSet::new();
    debug_assert!(keys.iter().all(|key| seen.insert(&key.key)), "each partition is read once");
    keys
}
