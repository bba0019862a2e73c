//! The read path: reads one page of a query from the shards that own its partitions, in order.
//!
//! The end of a replica's page is a pure function of the data and the command. A replica that reads
//! too many tombstones returns an early page, perhaps without a row. The coordinator then asks for
//! the rest itself, within a time and memory budget ([`PageBudget`]). So a client receives an empty
//! page before the last one in two cases only: the budget is used up, or the operator has set
//! `query_tombstone_page_limit`.

use super::assembler::{PageAssembler, Step};
use super::client::Message;
use super::level::needs_one;
use super::page_info::{PageBudget, PageInfo};
use super::paging::{LastReplicas, PagingState};
use super::quorum_read::QuorumPage;
use super::replica_failure::ReplicaFailure;
use super::result_memory::UNCOUNTED;
use super::resume::is_well_formed;
use super::window::Window;
use super::{Coordinator, CoordinatorError, RequestOptions, count};
use bytes::{Bytes, BytesMut};
use cluster::metadata::{Metadata, Table};
use cluster::tablets::TabletReplica;
use model::id::QueryId;
use model::key::DecoratedKey;
use model::range::{PartitionRange, Slice};
use model::time::Seconds;
use replica::{Context, Output, Page, ReadCommand, ReplicaAnswer, ReplicaError, ReplicaRequest};
use rt::sync::Unwanted;
use smallvec::SmallVec;
use std::pin::pin;
use std::rc::Rc;

/// The partitions of a query, in the order of their rows in the result.
#[derive(Clone, Debug)]
pub enum Partitions {
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
    pub partitions: Partitions,
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
    /// What of it counts against rate limits.
    pub counting: Counting,
}

/// What of a page counts against rate limits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Counting {
    /// It is a client's page. All partitions of a first page count before one is read. A later page
    /// counts the partition in which it resumes, and each that it goes on to read.
    #[default]
    Page,
    /// It is a part of an operation all of whose partitions were counted. Nothing counts.
    PartOfFirst,
    /// It is a part of a client's later page. Of it counts each partition that the earlier parts
    /// have not reached.
    PartOfLater,
}

impl Counting {
    /// That of the parts after the first one, of a client's page that resumes or not.
    pub fn rest_of_page(resumes: bool) -> Counting {
        if resumes { Counting::PartOfLater } else { Counting::PartOfFirst }
    }
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
        let limited = match query.table.schema.rate_limits().limits_reads() {
            false => None,
            true => self.limit_read(query, page, options)?,
        };
        let (exempt, options) = match limited.as_deref() {
            None => (options, options),
            Some(limited) => (limited.rest.as_ref().unwrap_or(options), limited.first.as_ref().unwrap_or(options)),
        };
        let counts_reached = limited.as_ref().is_some_and(|limited| limited.counts_reached);
        let (mut reached, mut is_start) = (None, true);
        // Whether the next part is of the same operation as the last one.
        let mut continues = false;
        let limits = self.limits.get();
        let new_id = || QueryId(rt::random::uuid_v4());
        let mut assembler = PageAssembler::new(query, page, &limits, new_id).ok_or(CoordinatorError::PagingState)?;
        let mut budget = page.budget;
        let mut window = None;
        let mut charge = None;
        // The replicas that read the last part, at first those of the previous page. They are asked
        // first for the next part. Tracked only if replicas keep readers.
        let keeps_readers = assembler.is_paged() && self.replica.keeps_readers();
        let before = page.state.as_ref().filter(|_| keeps_readers);
        let mut read_by: Option<Box<LastReplicas>> = before.and_then(|state| state.replicas.clone());
        while let Some((tablet, range)) = assembler.next_target() {
            let command = assembler.command(range);
            let is_counted = continues || std::mem::take(&mut is_start);
            if counts_reached && !is_counted {
                reached = Some(self.limit_reached(query, &command.ranges[0], options)?);
            }
            let mut options = if continues { exempt } else { reached.as_deref().unwrap_or(options) };
            let part = match self.only_replica_of(query, tablet, options) {
                // Held until the response arrives. Pinned, so that this large future is not moved.
                Some((only, _held)) => {
                    let part = pin!(self.ask_only(only, &command, options)).await?;
                    // If the part is asked for again, it was counted.
                    options = exempt;
                    part
                }
                None => None,
            };
            continues = false;
            let step = match part {
                Some(part) => assembler.add(part, false),
                None => {
                    let new_window = || if counts_reached { Window::of_one() } else { Window::new(query) };
                    let window = window.get_or_insert_with(|| Box::new(new_window()));
                    let (kept, targets) = (read_by.as_deref(), assembler.targets());
                    let asked = self.read_window(query, (tablet, command), targets, window, kept, options);
                    let answer = Box::pin(asked).await.inspect_err(|error| self.count_rate_limited(error));
                    let QuorumPage { page, has_more, by } = answer?;
                    read_by = by.filter(|_| keeps_readers).map(Box::new);
                    assembler.add(page, has_more)
                }
            };
            if assembler.bytes() > UNCOUNTED {
                charge.get_or_insert_with(|| self.results.charge()).set(assembler.bytes())?;
            }
            match step.ok_or_else(outside)? {
                Step::Next => continue,
                Step::Done => break,
                Step::Resumed => {}
                Step::Empty => {
                    let budget = budget.get_or_insert_with(|| PageBudget::new(&limits, options));
                    if let Some(stop) = budget.spent(assembler.info().bytes) {
                        assembler.stop(stop);
                        break;
                    }
                    trace_resuming(assembler.info(), options);
                    assembler.resume_after_tombstones().ok_or_else(outside)?;
                }
            }
            continues = true;
            rt::task::maybe_yield().await;
        }
        Ok(assembler.finish(read_by))
    }

    /// The only replica of a tablet. `None` unless it is on this node, the level needs one
    /// response, and the query was planned with the newest metadata.
    ///
    /// The caller must hold the returned metadata until the response arrives. A wait for these
    /// metadata to become unused then also waits for this read.
    #[inline]
    fn only_replica_of(
        &self,
        query: &Query,
        tablet: u32,
        options: &RequestOptions,
    ) -> Option<(TabletReplica, Rc<Metadata>)> {
        let only = query.table.tablets.only_replica(tablet, self.host)?;
        let metadata = self.metadata();
        let is_newest = metadata.number == options.context.metadata_number;
        (is_newest && needs_one(&metadata, &query.table, options.consistency)).then_some((only, metadata))
    }

    /// Reads a page from a tablet's only replica. None: the replica refused the request as routed
    /// by outdated metadata.
    async fn ask_only(
        &self,
        only: TabletReplica,
        command: &Rc<ReadCommand>,
        options: &RequestOptions,
    ) -> Result<Option<Box<Page>>, CoordinatorError> {
        let message = Message::new(ReplicaRequest::Read(command.clone()));
        let asked = pin!(self.client.send(only, &message, &options.context));
        let Context { deadline, cancel, .. } = &options.context;
        let error = match deadline.limit_unless(cancel, asked).await {
            Ok(Ok(ReplicaAnswer::Page(page))) => return Ok(Some(page)),
            Ok(Ok(_)) => ReplicaError::Storage("a replica sent another kind of answer to a read".into()),
            Ok(Err(failure)) if failure.is_stale() => return Ok(None),
            Ok(Err(ReplicaFailure::Refused(error))) => error,
            Ok(Err(failure)) => ReplicaError::Storage(failure.why()),
            Err(Unwanted::Late) => ReplicaError::Timeout,
            Err(Unwanted::Cancelled) => ReplicaError::Cancelled,
        };
        if error == ReplicaError::Timeout {
            count(&self.counters.read_timeouts);
        }
        let error = CoordinatorError::of(error, options.consistency, 1);
        self.count_rate_limited(&error);
        Err(error)
    }
}

#[cold]
fn outside() -> CoordinatorError {
    CoordinatorError::Invalid("a replica's page ended outside of the query".into())
}

#[cold]
fn trace_resuming(info: &PageInfo, options: &RequestOptions) {
    if let Some(trace) = &options.context.trace {
        trace.event(format!("No row yet after {} tombstones: continuing to read", info.tombstones));
    }
}
