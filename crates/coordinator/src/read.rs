//! The read path: reads one page of a query from the shards that own its partitions, in order.
//!
//! The end of a replica's page is a pure function of the data and the command. A replica that reads
//! too many tombstones returns an early page, perhaps without a row. The coordinator then asks for
//! the rest itself, within a time and memory budget ([`PageBudget`]). So a client receives an empty
//! page before the last one in two cases only: the budget is used up, or the operator has set
//! `query_tombstone_page_limit`.

use super::assembler::{PageAssembler, PartError, Step};
use super::error::Attempt;
use super::page_counting::{Counting, PageCounting};
use super::page_info::{PageBudget, PageInfo};
use super::paging::{LastReplicas, PagingState};
use super::quorum_page::QuorumPage;
use super::result_memory::UNCOUNTED;
use super::resume::is_well_formed;
use super::window::{Target, Window};
use super::{Coordinator, CoordinatorError, PageLimits, RequestOptions, count};
use bytes::{Bytes, BytesMut};
use cluster::metadata::Table;
use model::id::QueryId;
use model::key::DecoratedKey;
use model::range::{PartitionRange, Slice};
use model::time::Seconds;
use replica::{Output, ReplicaError};
use smallvec::SmallVec;
use std::pin::pin;
use std::rc::Rc;

/// The partitions of a query, in the order of their rows in the result.
#[derive(Clone, Debug)]
pub enum QueryPartitions {
    /// These partitions, in this order. Each occurs once.
    Keys(SmallVec<[DecoratedKey; 1]>),
    /// All partitions of a range, in token order.
    Range(PartitionRange),
}

/// A planned query.
#[derive(Clone)]
pub struct Query {
    /// The table.
    pub table: Rc<Table>,
    /// The partitions.
    pub partitions: QueryPartitions,
    /// The rows of each partition that are read.
    pub slice: Rc<Slice>,
    /// The values of each row that are returned.
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

/// The page that a client requests.
#[derive(Clone, Debug, Default)]
pub struct PageRequest {
    /// The page size in rows. None: unpaged.
    pub size: Option<u64>,
    /// The paging state of the previous page. It must be of the same query.
    pub state: Option<Box<PagingState>>,
    /// The budget for finding a first row. None: the limits of the settings.
    pub budget: Option<PageBudget>,
    /// Which parts of it count against rate limits.
    pub counting: Counting,
}

/// A page of a client's result.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct QueryPage {
    /// The number of rows.
    pub rows: u64,
    /// The rows, each value as i32 length and bytes.
    pub body: Bytes,
    /// The paging state of the next page. None: this is the last page.
    pub next: Option<Box<PagingState>>,
    /// Why the page ended, and the amount of data read.
    pub info: PageInfo,
    /// The partitions of the query before this place have been asked for, whether or not the page
    /// has their rows. For [`Counting::PartOfFirst`].
    pub asked: usize,
}

/// A part of a page: what to read of one tablet.
struct PartToRead<'a> {
    query: &'a Query,
    target: Target,
    /// The replicas that read the part before.
    kept: Option<&'a LastReplicas>,
}

/// Appends rows to rows. Nothing is copied if either side is empty.
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
        if let Some(state) = &page.state
            && !is_well_formed(&state.position, query.table.schema.clustering.len())
        {
            return Err(CoordinatorError::PagingState);
        }
        if self.replica.protects_itself() {
            self.protect_read(query, page, options)?;
        }
        let limits = query.table.schema.rate_limits();
        let limited = match limits.limits_reads() {
            false => None,
            true => self.limit_read(query, page, options)?,
        };
        let options = limited.as_deref().unwrap_or(options);
        let page_limits = self.limits.get();
        let new_id = || QueryId(rt::random::uuid_v4());
        let mut assembler =
            PageAssembler::new(query, page, &page_limits, new_id).ok_or(CoordinatorError::PagingState)?;
        let mut counting = self.counting_of(query, page, assembler.targets().place(), options);
        let mut budget = page.budget;
        let mut window = None;
        let mut charge = None;
        // The replicas that read the last part, at first those of the previous page. They are asked
        // first for the next part. Tracked only if replicas keep readers.
        let keeps_readers = assembler.is_paged() && self.replica.keeps_readers();
        let before = page.state.as_ref().filter(|_| keeps_readers);
        let mut read_by: Option<Box<LastReplicas>> = before.and_then(|state| state.replicas.clone());
        loop {
            let place = assembler.targets().place();
            let Some((tablet, range)) = assembler.next_target() else { break };
            let target = Target { place, tablet, command: assembler.command(range) };
            let part = PartToRead { query, target, kept: read_by.as_deref() };
            let QuorumPage { page, has_more, by } = {
                // Pinned, so that this large future is not moved.
                let read = pin!(self.read_part(part, &mut assembler, &mut window, &mut counting));
                read.await?
            };
            if let Some(by) = by.filter(|_| keeps_readers) {
                read_by = Some(Box::new(by));
            }
            let step = assembler.add(page, has_more).map_err(|error| match error {
                PartError::Outside => outside(),
                PartError::TooLarge => too_large(&page_limits, options),
            })?;
            if assembler.bytes() > UNCOUNTED {
                charge.get_or_insert_with(|| self.results.charge()).set(assembler.bytes())?;
            }
            match step {
                Step::Next => continue,
                Step::Done => break,
                Step::Resumed => {}
                Step::Empty => {
                    let budget = budget.get_or_insert_with(|| PageBudget::new(&page_limits, options));
                    if let Some(stop) = budget.spent(assembler.info().bytes) {
                        assembler.stop(stop);
                        break;
                    }
                    trace_resuming(assembler.info(), options);
                    assembler.resume_after_tombstones().ok_or_else(outside)?;
                }
            }
            rt::task::maybe_yield().await;
        }
        let mut page = assembler.finish(read_by);
        page.asked = counting.asked();
        Ok(page)
    }

    /// Reads one part of a page: from the only replica of its tablet if that is on this node,
    /// otherwise from as many replicas as the level needs, and perhaps with the targets that
    /// follow.
    #[inline]
    async fn read_part(
        &self,
        part: PartToRead<'_>,
        assembler: &mut PageAssembler<'_>,
        window: &mut Option<Box<Window>>,
        counting: &mut PageCounting<'_>,
    ) -> Result<QuorumPage, CoordinatorError> {
        let PartToRead { query, target, kept } = part;
        counting.begin(target.place, |first| self.limit_reached(query, &target.command.ranges[0], first))?;
        let options = counting.options(target.place);
        let by_only = match self.only_replica_read(query, target.tablet, options) {
            Some((only, _held)) => {
                // Pinned, so that this large future is not moved.
                let response = pin!(self.ask_only(only, &target.command, options));
                Some(response.await)
            }
            None => None,
        };
        match by_only {
            None => {}
            Some(Ok(page)) => return Ok(QuorumPage { page, has_more: false, by: None }),
            Some(Err(Attempt::Failed(error))) => return Err(error),
            Some(Err(Attempt::Outdated { .. })) => counting.repeat(target.place),
        }
        let new_window = || if counting.counts_reached() { Window::of_one() } else { Window::new(query) };
        let window = window.get_or_insert_with(|| Box::new(new_window()));
        let read = self.read_window(query, target, assembler.targets(), window, kept, counting);
        Box::pin(read).await.inspect_err(|error| self.count_rate_limited(error))
    }
}

#[cold]
fn outside() -> CoordinatorError {
    CoordinatorError::Invalid("a replica's page ended outside of the query".into())
}

#[cold]
fn too_large(limits: &PageLimits, options: &RequestOptions) -> CoordinatorError {
    let error = ReplicaError::too_large("unpaged query", limits.unpaged_bytes);
    CoordinatorError::of(error, options.consistency, 1)
}

#[cold]
fn trace_resuming(info: &PageInfo, options: &RequestOptions) {
    if let Some(trace) = &options.context.trace {
        trace.event(format!("No row yet after {} tombstones: continuing to read", info.tombstones));
    }
}
