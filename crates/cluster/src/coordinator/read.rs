//! The read path: pages of a query out of the shards that own its partitions, in order.

use super::paging::PagingState;
use super::{Coordinator, CoordinatorError, RequestOptions, count};
use crate::metadata::Table;
use bytes::Bytes;
use model::id::QueryId;
use model::key::{Clustering, ClusteringCut, DecoratedKey, RingCut};
use model::range::{PartitionRange, Resume, RowRange, Slice};
use model::schema::ClusteringOrder;
use model::time::Seconds;
use replica::{Limits, Output, PageEnd, Position, ReadCommand, Region, ReplicaError};
use smallvec::{SmallVec, smallvec};
use std::cmp::Ordering;
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
    /// What the client gave back from the page before; not yet believed.
    pub state: Option<Bytes>,
}

/// A page.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct QueryPage {
    /// How many rows.
    pub rows: u64,
    /// The rows, each value as i32 length and bytes.
    pub body: Vec<u8>,
    /// The state for the next page; none: there is none.
    pub next: Option<Bytes>,
}

/// Where the last page ended, as the next one needs it.
struct Start {
    state: PagingState,
    key: DecoratedKey,
    /// Whether there may be more in that partition.
    inside: bool,
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
        let required = self.check_level(&self.metadata(), &query.table, options.consistency)?;
        let start = match &page.state {
            Some(bytes) => Some(self.start(query, PagingState::decode(bytes)?)?),
            None => None,
        };
        // Pinned here, so that a future of this size is not moved about.
        let work = pin!(self.read_page(query, page, start, options));
        let result = options.context.deadline.limit(work).await.unwrap_or(Err(ReplicaError::Timeout));
        result.map_err(|error| {
            if error == ReplicaError::Timeout {
                count(&self.counters.read_timeouts);
            }
            CoordinatorError::of(error, options.consistency, required)
        })
    }

    fn start(&self, query: &Query, state: PagingState) -> Result<Start, CoordinatorError> {
        let schema = &query.table.schema;
        if state.table != schema.id || !is_well_formed(&state.position, schema.clustering.len()) {
            return Err(CoordinatorError::PagingState);
        }
        let inside = state.position.region != Region::End && !schema.clustering.is_empty();
        Ok(Start { key: DecoratedKey::new(state.position.key.clone()), state, inside })
    }

    async fn read_page(
        &self,
        query: &Query,
        page: &PageRequest,
        start: Option<Start>,
        options: &RequestOptions,
    ) -> Result<QueryPage, ReplicaError> {
        let remaining = start.as_ref().map_or(query.limit.unwrap_or(u64::MAX), |start| start.state.remaining);
        let wanted = remaining.min(page.size.unwrap_or(u64::MAX));
        let slice = match &start {
            Some(start) if start.inside => Rc::new(resumed(query, start)),
            _ => query.slice.clone(),
        };
        let mut out = QueryPage::default();
        let mut last: Option<(Position, u64)> = None;
        let mut tombstones = 0;
        let mut ended = false;
        let mut targets = Targets::new(query, start.as_ref());
        let first_page = start.is_none();
        let id = match &start {
            Some(start) => Some(start.state.query),
            None => page.size.map(|_| QueryId(rt::random::uuid_v4())),
        };
        while let Some((shard, range)) = targets.next(self) {
            let command = ReadCommand {
                table: query.table.schema.id,
                schema_version: query.table.schema.version,
                ranges: smallvec![range],
                slice: slice.clone(),
                output: query.output.clone(),
                limits: Limits {
                    rows: wanted - out.rows,
                    per_partition: query.per_partition_limit.unwrap_or(u64::MAX),
                    bytes: self.limits.bytes.saturating_sub(out.body.len() as u64),
                    tombstones: self.limits.tombstones.saturating_sub(tombstones).max(1),
                    paged: page.size.is_some(),
                    unpaged_bytes: self.limits.unpaged_bytes.saturating_sub(out.body.len() as u64),
                },
                now: query.now,
                resumed_rows: start.as_ref().map_or(0, |start| start.state.rows_in_last),
                bypass_cache: query.bypass_cache,
                query: id,
                first_page,
            };
            let part = self.call_read(shard, command, &options.context).await?;
            out.rows += part.rows;
            tombstones += part.tombstones;
            if out.body.is_empty() {
                out.body = part.body;
            } else {
                out.body.extend_from_slice(&part.body);
            }
            if let Some(position) = part.last {
                last = Some((position, part.rows_in_last));
            }
            if part.end != PageEnd::Exhausted {
                ended = true;
                break;
            }
        }
        if let (true, Some(_), Some((position, rows_in_last)), Some(id)) = (ended, page.size, last, id) {
            let left = if remaining == u64::MAX { remaining } else { remaining - out.rows };
            if left > 0 {
                let state =
                    PagingState { query: id, table: query.table.schema.id, remaining: left, position, rows_in_last };
                out.next = Some(state.encode());
            }
        }
        Ok(out)
    }
}

/// A position must be one that a page of this table can end at.
fn is_well_formed(position: &Position, clustering_columns: usize) -> bool {
    let components = position.prefix.len();
    let encoded: usize = position.prefix.components().map(|component| component.len() + 2).sum();
    let whole = position.weight != 0 || position.region != Region::Clustered || components == clustering_columns;
    encoded == position.prefix.0.len() && components <= clustering_columns && whole
}

/// What is left of a query's slice in the partition where the last page ended.
fn resumed(query: &Query, start: &Start) -> Slice {
    let position = &start.state.position;
    let order = &query.table.schema.order;
    let slice = &query.slice;
    let rows = match position.region {
        Region::Start | Region::Static => slice.rows.clone(),
        Region::End => Vec::new(),
        Region::Clustered => {
            let reader_cut =
                ClusteringCut { prefix: Clustering(position.prefix.0.clone()), after: position.weight >= 0 };
            if slice.reversed {
                before(&slice.rows, &reader_cut.reversed(), order)
            } else {
                after(&slice.rows, &reader_cut, order)
            }
        }
    };
    let resume = Resume { key: start.key.clone(), rows, static_row: slice.static_row };
    Slice { resume: Some(resume), ..(**slice).clone() }
}

fn after(rows: &[RowRange], cut: &ClusteringCut, order: &ClusteringOrder) -> Vec<RowRange> {
    rows.iter()
        .filter(|range| range.end.cmp(order, cut) == Ordering::Greater)
        .map(|range| {
            let start = if range.start.cmp(order, cut) == Ordering::Less { cut } else { &range.start };
            RowRange { start: start.clone(), end: range.end.clone() }
        })
        .collect()
}

fn before(rows: &[RowRange], cut: &ClusteringCut, order: &ClusteringOrder) -> Vec<RowRange> {
    rows.iter()
        .filter(|range| range.start.cmp(order, cut) == Ordering::Less)
        .map(|range| {
            let end = if range.end.cmp(order, cut) == Ordering::Greater { cut } else { &range.end };
            RowRange { start: range.start.clone(), end: end.clone() }
        })
        .collect()
}

/// The shards to ask, in order, each with the partitions it is asked for.
enum Targets<'a> {
    Keys { query: &'a Query, keys: &'a [DecoratedKey] },
    Range { query: &'a Query, left: Option<PartitionRange> },
}

impl<'a> Targets<'a> {
    fn new(query: &'a Query, start: Option<&Start>) -> Self {
        match &query.partitions {
            Partitions::Keys(keys) => {
                let mut keys = &keys[..];
                if let Some(start) = start
                    && let Some(at) = keys.iter().position(|key| *key == start.key)
                {
                    keys = &keys[at + usize::from(!start.inside)..];
                }
                Targets::Keys { query, keys }
            }
            Partitions::Range(range) => {
                let mut left = range.clone();
                if let Some(start) = start {
                    let cut =
                        if start.inside { RingCut::before_key(&start.key) } else { RingCut::after_key(&start.key) };
                    left.start = left.start.max(cut);
                }
                Targets::Range { query, left: (!left.is_empty()).then_some(left) }
            }
        }
    }

    fn next(&mut self, coordinator: &Coordinator) -> Option<(rt::ShardId, PartitionRange)> {
        match self {
            Targets::Keys { query, keys } => {
                let (key, rest) = keys.split_first()?;
                *keys = rest;
                Some((coordinator.owner(&query.table, key.token), PartitionRange::singular(key)))
            }
            Targets::Range { query, left } => {
                let range = left.take()?;
                let tablets = &query.table.tablets;
                // A cut after all keys of a tablet's last token belongs to the next tablet.
                let tablet = tablets.tablet_of(range.start.token);
                let at_end =
                    range.start.key.is_none() && range.start.after && range.start.token == tablets.last_token(tablet);
                let tablet = if at_end { tablet + 1 } else { tablet };
                if tablet >= tablets.count() {
                    return None;
                }
                let own = range.intersection(&tablets.range(tablet));
                let end = tablets.range(tablet).end;
                let rest = PartitionRange { start: range.start.max(end), end: range.end };
                *left = (!rest.is_empty() && tablet + 1 < tablets.count()).then_some(rest);
                match own {
                    Some(own) => Some((coordinator.owner(&query.table, tablets.last_token(tablet)), own)),
                    None => self.next(coordinator),
                }
            }
        }
    }
}
