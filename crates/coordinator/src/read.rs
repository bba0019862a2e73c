//! The read path: pages of a query out of the shards that own its partitions, in order.
//!
//! Where a replica's page ends is a pure function of the data and the command. A replica that met too many tombstones to go on
//! answers with what it has, perhaps with no row at all; then the coordinator asks on by itself, within a budget, so that a
//! client sees an empty page with more to follow only when the budget ran out, or when the operator has set
//! `query_tombstone_page_limit` and so wants pages cut by it.

use super::assembler::{PageAssembler, Step};
use super::client::Message;
use super::gather::Gathered;
use super::level::needs_one;
use super::miss::Miss;
use super::page_info::{PageBudget, PageInfo};
use super::paging::{LastReplicas, PagingState};
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
use replica::{Answer, Context, Output, Page, ReadCommand, ReplicaError, Request};
use rt::sync::Unwanted;
use smallvec::SmallVec;
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
        if let Some(state) = &page.state
            && !is_well_formed(&state.position, query.table.schema.clustering.len())
        {
            return Err(CoordinatorError::PagingState);
        }
        let limits = self.limits.get();
        let new_id = || QueryId(rt::random::uuid_v4());
        let mut assembler = PageAssembler::new(query, page, &limits, new_id).ok_or(CoordinatorError::PagingState)?;
        let mut budget = page.budget;
        let mut window = None;
        // Which replicas have read the last part, and before the first one: the page before. Of no interest where no readers are kept.
        let keeps_readers = assembler.is_paged() && self.replica.keeps_readers();
        let before = page.state.as_ref().filter(|_| keeps_readers);
        let mut read_by: Option<Box<LastReplicas>> = before.and_then(|state| state.replicas.clone());
        while let Some((tablet, range)) = assembler.next_target() {
            let command = assembler.command(range);
            let part = match self.only_replica_of(query, tablet, options) {
                // The metadata are held until the answer is there. Pinned, so that a future of this size is not moved about.
                Some((only, _held)) => pin!(self.ask_only(only, &command, options)).await?,
                None => None,
            };
            let step = match part {
                Some(part) => assembler.add(part, false),
                None => {
                    let window = window.get_or_insert_with(|| Box::new(Window::new(query)));
                    let (kept, targets) = (read_by.as_deref(), assembler.targets());
                    let asked = self.gather_window(query, (tablet, command), targets, window, kept, options);
                    let Gathered { page, goes_on, by } = Box::pin(asked).await?;
                    read_by = by.filter(|_| keeps_readers).map(Box::new);
                    assembler.add(page, goes_on)
                }
            };
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
                    trace_going_on(assembler.info(), options);
                    assembler.go_on().ok_or_else(outside)?;
                }
            }
            rt::task::maybe_yield().await;
        }
        Ok(assembler.finish(read_by))
    }

    /// The replica that has a tablet, if there is only one, it is on this node, its answer is all that the level asks for, and the query
    /// was planned by the newest metadata. These are held until the answer is there: who waits for them to go out of use waits for it.
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

    /// A page of a tablet's only replica. None: it refused the request as routed by outdated metadata.
    async fn ask_only(
        &self,
        only: TabletReplica,
        command: &Rc<ReadCommand>,
        options: &RequestOptions,
    ) -> Result<Option<Box<Page>>, CoordinatorError> {
        let message = Message::new(Request::Read(command.clone()));
        let asked = pin!(self.client.send(only, &message, &options.context));
        let Context { deadline, cancel, .. } = &options.context;
        let error = match deadline.limit_unless(cancel, asked).await {
            Ok(Ok(Answer::Page(page))) => return Ok(Some(page)),
            Ok(Ok(_)) => ReplicaError::Storage("a read was answered otherwise".into()),
            Ok(Err(miss)) if miss.is_stale() => return Ok(None),
            Ok(Err(Miss::Refused(error))) => error,
            Ok(Err(miss)) => ReplicaError::Storage(miss.why()),
            Err(Unwanted::Late) => ReplicaError::Timeout,
            Err(Unwanted::Cancelled) => ReplicaError::Cancelled,
        };
        if error == ReplicaError::Timeout {
            count(&self.counters.read_timeouts);
        }
        Err(CoordinatorError::of(error, options.consistency, 1))
    }
}

#[cold]
fn outside() -> CoordinatorError {
    CoordinatorError::Invalid("a replica's page ended outside of the query".into())
}

#[cold]
fn trace_going_on(info: &PageInfo, options: &RequestOptions) {
    if let Some(trace) = &options.context.trace {
        trace.event(format!("No row yet after {} tombstones: going on", info.tombstones));
    }
}
