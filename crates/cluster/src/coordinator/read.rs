//! The read path: pages of a query out of the shards that own its partitions, in order.
//!
//! Where a replica's page ends is a pure function of the data and the command. A replica that met too many tombstones to go on
//! answers with what it has, perhaps with no row at all; then the coordinator asks on by itself, within a budget, so that a
//! client sees an empty page with more to follow only when the budget ran out, or when the operator has set
//! `query_tombstone_page_limit` and so wants pages cut by it.

use super::error::Failure;
use super::page_info::{PageBudget, PageInfo, PageStop};
use super::paging::{LastReplicas, PagingState};
use super::resume::{Start, is_well_formed, resumed};
use super::targets::Targets;
use super::window::Window;
use super::{Coordinator, CoordinatorError, RequestOptions, count};
use crate::metadata::Table;
use bytes::{Bytes, BytesMut};
use model::id::QueryId;
use model::key::DecoratedKey;
use model::range::{PartitionRange, Slice};
use model::time::Seconds;
use replica::{Limits, Output, PageEnd, Position, ReadCommand, ReplicaError};
use smallvec::{SmallVec, smallvec};
use std::pin::pin;
use std::rc::Rc;

/// The partitions of a query, in the order in which their rows come.
#[derive(Clone, Debug)]
pub enum Partitions {
    /// These, in this order; each once.
    Keys(SmallVec<[DecoratedKey; 1]>),
    /// Those of a range, in token order.
    Range(PartitionRange),
}

/// A query.
#[derive(Clone)]
pub struct Query {
    /// The table.
    pub table: Rc<Table>,
    /// The partitions.
    pub partitions: Partitions,
    /// What is wanted of each.
    pub slice: Rc<Slice>,
    /// What is emitted of each row.
    pub output: Rc<Output>,
    /// `LIMIT`.
    pub limit: Option<u64>,
    /// `PER PARTITION LIMIT`.
    pub per_partition_limit: Option<u64>,
    /// The time for TTLs, in seconds.
    pub now: Seconds,
    /// `BYPASS CACHE`.
    pub bypass_cache: bool,
}

/// Which page is wanted.
#[derive(Clone, Debug, Default)]
pub struct PageRequest {
    /// Rows; none: everything at once.
    pub size: Option<u64>,
    /// Where the page before ended. It must be of the same query.
    pub state: Option<Box<PagingState>>,
    /// What may be spent on finding a first row; none: what the settings say.
    pub budget: Option<PageBudget>,
}

/// A page.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct QueryPage {
    /// How many rows.
    pub rows: u64,
    /// The rows, each value as i32 length and bytes.
    pub body: Bytes,
    /// Where the next page begins; none: there is none.
    pub next: Option<Box<PagingState>>,
    /// Why it ended, and what was looked at for it.
    pub info: PageInfo,
}

/// Appends rows to others: what is alone stays where it is.
pub(super) fn append(rows: &mut Bytes, more: Bytes) {
    if rows.is_empty() {
        *rows = more;
    } else if !more.is_empty() {
        let mut all = BytesMut::from(std::mem::take(rows));
        all.extend_from_slice(&more);
        *rows = all.freeze();
    }
}

impl Coordinator {
    /// Reads one page of a query.
    pub async fn read(
        &self,
        query: &Query,
        page: &PageRequest,
        options: &RequestOptions,
    ) -> Result<QueryPage, CoordinatorError> {
        count(&self.counters.reads);
        let here = query.table.tablets.is_only_on(self.host);
        let required = match here {
            true => self.check_level(&self.metadata(), &query.table, options.consistency)?,
            // Each tablet's replicas are looked at when it is their turn.
            false => 0,
        };
        let start = match &page.state {
            Some(state) if !is_well_formed(&state.position, query.table.schema.clustering.len()) => {
                return Err(CoordinatorError::PagingState);
            }
            Some(state) => Some(Start::after(query, state.position.clone(), state.rows_in_last)),
            None => None,
        };
        let targets = Targets::new(query, start.as_ref()).ok_or(CoordinatorError::PagingState)?;
        // Pinned here, so that a future of this size is not moved about.
        let work = pin!(self.read_page(query, page, start, targets, options, here));
        let result = match here {
            true => options.context.deadline.limit(work).await.unwrap_or(Err(ReplicaError::Timeout.into())),
            // What is asked of replicas has the deadline itself, and knows what came until then.
            false => work.await,
        };
        result.map_err(|failure| match failure {
            Failure::Known(error) => *error,
            Failure::Replica(error) => {
                if error == ReplicaError::Timeout {
                    count(&self.counters.read_timeouts);
                }
                CoordinatorError::of(error, options.consistency, required)
            }
        })
    }

    async fn read_page<'a>(
        &self,
        query: &'a Query,
        page: &PageRequest,
        mut start: Option<Start>,
        mut targets: Targets<'a>,
        options: &RequestOptions,
        here: bool,
    ) -> Result<QueryPage, Failure> {
        let settings = self.limits.get();
        let remaining = page.state.as_ref().map_or(query.limit.unwrap_or(u64::MAX), |state| state.remaining);
        let wanted = remaining.min(page.size.unwrap_or(u64::MAX));
        let paged = page.size.is_some();
        let mut slice = match &start {
            Some(start) if start.inside => Rc::new(resumed(query, start)),
            _ => query.slice.clone(),
        };
        let mut out = QueryPage { rows: 0, body: Bytes::new(), next: None, info: PageInfo::default() };
        let mut last: Option<(Position, u64)> = None;
        // Those that the limit does not know of yet.
        let mut tombstones = 0;
        let mut budget = page.budget;
        let mut first_page = page.state.is_none();
        let id = match &page.state {
            Some(state) => Some(state.query),
            None => paged.then(|| QueryId(rt::random::uuid_v4())),
        };
        let mut window = None;
        // Who has read the last part, and before the first one: who has read the page before. Of no interest where no readers are kept.
        let keeps_readers = !here && id.is_some() && self.replica.keeps_readers();
        let before = page.state.as_ref().filter(|_| keeps_readers);
        let mut read_by: Option<Box<LastReplicas>> = before.and_then(|state| state.replicas.clone());
        while let Some((tablet, range)) = targets.next() {
            let command = ReadCommand {
                table: query.table.schema.id,
                schema_version: query.table.schema.version,
                ranges: smallvec![range],
                slice: slice.clone(),
                output: query.output.clone(),
                limits: Limits {
                    rows: wanted - out.rows,
                    per_partition: query.per_partition_limit.unwrap_or(u64::MAX),
                    bytes: settings.bytes.saturating_sub(out.body.len() as u64),
                    tombstones: settings.tombstones.saturating_sub(tombstones).max(1),
                    paged,
                    unpaged_bytes: settings.unpaged_bytes.saturating_sub(out.body.len() as u64),
                },
                now: query.now,
                resumed_rows: start.as_ref().map_or(0, |start| start.rows_in_last),
                bypass_cache: query.bypass_cache,
                query: id,
                first_page,
                ends_with_rows: wanted == remaining,
            };
            let mut goes_on = false;
            let part = if here {
                let shard = self.owner_of_tablet(&query.table, tablet);
                self.call_read(shard, command, &options.context).await?
            } else {
                let window = window.get_or_insert_with(|| Box::new(Window::new(query)));
                let first = (tablet, command.ranges[0].clone());
                let kept = read_by.as_deref();
                let asked = self.gather_window(query, first, &mut targets, window, command, kept, options);
                let gathered = Box::pin(asked).await?;
                goes_on = gathered.goes_on;
                read_by = keeps_readers.then(|| Box::new(gathered.by));
                gathered.page
            };
            out.rows += part.rows;
            tombstones += part.tombstones;
            out.info.add(&part);
            append(&mut out.body, part.body);
            if let Some(position) = part.last {
                last = Some((position, part.rows_in_last));
            }
            if goes_on {
                // Replicas that were brought together told of fewer rows than each of them.
                if paged && out.rows > 0 {
                    out.info.stop = PageStop::Bytes;
                    break;
                }
                let (position, rows_in_last) = last.take().ok_or_else(outside)?;
                let next = Start::after(query, position, rows_in_last);
                targets = Targets::new(query, Some(&next)).ok_or_else(outside)?;
                slice = if next.inside { Rc::new(resumed(query, &next)) } else { query.slice.clone() };
                start = Some(next);
                first_page = false;
                rt::task::maybe_yield().await;
                continue;
            }
            match part.end {
                PageEnd::Exhausted => continue,
                PageEnd::Rows if wanted == remaining => out.info.stop = PageStop::Limit,
                PageEnd::Rows => out.info.stop = PageStop::Rows,
                PageEnd::Bytes => out.info.stop = PageStop::Bytes,
                PageEnd::Tombstones => {
                    out.info.stop = PageStop::Tombstones;
                    if out.rows == 0
                        && !settings.tombstones_are_set
                        && let Some((position, rows_in_last)) = last.take()
                    {
                        let budget = budget.get_or_insert_with(|| PageBudget::new(&settings, options));
                        match budget.spent(out.info.bytes) {
                            Some(stop) => {
                                out.info.stop = stop;
                                last = Some((position, rows_in_last));
                            }
                            None => {
                                out.info.stop = PageStop::Exhausted;
                                trace_going_on(&out.info, options);
                                let next = Start::after(query, position, rows_in_last);
                                targets = Targets::new(query, Some(&next)).ok_or_else(outside)?;
                                slice = if next.inside { Rc::new(resumed(query, &next)) } else { query.slice.clone() };
                                start = Some(next);
                                (first_page, tombstones) = (false, 0);
                                rt::task::maybe_yield().await;
                                continue;
                            }
                        }
                    }
                }
            }
            break;
        }
        if let (true, true, Some((position, rows_in_last)), Some(query)) =
            (out.info.stop != PageStop::Exhausted, paged, last, id)
        {
            let left = if remaining == u64::MAX { remaining } else { remaining - out.rows };
            if left > 0 {
                let language = bytes::Bytes::new();
                let replicas = read_by;
                let state = PagingState { query, remaining: left, position, rows_in_last, replicas, language };
                out.next = Some(Box::new(state));
            }
        }
        Ok(out)
    }
}

#[cold]
fn outside() -> ReplicaError {
    ReplicaError::Rejected("a replica's page ended outside of the query".into())
}

#[cold]
fn trace_going_on(info: &PageInfo, options: &RequestOptions) {
    if let Some(trace) = &options.context.trace {
        trace.event(format!("No row yet after {} tombstones: going on", info.tombstones));
    }
}
