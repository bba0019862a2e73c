//! Reads several tablets in parallel if a sequential read would take long: scans that find few rows
//! in each tablet, or reads of many partitions by key.
//!
//! Responses are used in order. Responses behind the end of the page are discarded.

use super::page_counting::PageCounting;
use super::paging::LastReplicas;
use super::quorum_page::QuorumPage;
use super::quorum_read::TabletRead;
use super::read::{Query, QueryPartitions, append};
use super::targets::Targets;
use super::{Coordinator, CoordinatorError};
use futures_util::{Stream, StreamExt, stream};
use replica::{Page, PageEnd, ReadCommand};
use smallvec::smallvec;
use std::rc::Rc;

/// A tablet to read.
pub(super) struct Target {
    /// See [`Targets::place`].
    pub place: usize,
    pub tablet: u32,
    /// What to read there.
    pub command: Rc<ReadCommand>,
}

impl Target {
    fn read<'a>(
        &'a self,
        query: &'a Query,
        kept: Option<&'a LastReplicas>,
        counting: &'a PageCounting<'_>,
    ) -> TabletRead<'a> {
        let (table, options) = (&query.table, counting.options(self.place));
        TabletRead { table, tablet: self.tablet, command: &self.command, kept, options }
    }
}

/// The number of tablets that are read in parallel. It doubles as long as pages are not full.
pub(super) struct Window {
    width: usize,
    widest: usize,
}

/// The most tablets that are read in parallel: each may return a whole page.
pub(super) const WIDEST: usize = 32;
/// The partitions that are first read in parallel by key: mostly, they have few rows each.
const KEYS_AT_FIRST: usize = 8;

impl Window {
    pub fn new(query: &Query) -> Window {
        let width = match query.partitions {
            QueryPartitions::Keys(_) => KEYS_AT_FIRST,
            QueryPartitions::Range(_) => 1,
        };
        Window { width, widest: WIDEST }
    }

    /// A window that reads one target at a time, because each is counted against a rate limit when
    /// it is read.
    pub fn of_one() -> Window {
        Window { width: 1, widest: 1 }
    }
}

impl Coordinator {
    /// Reads the first tablet and, in parallel, as many of the next targets as the window allows.
    /// Makes one page of the responses. Targets without a response in the page are given back.
    /// `kept`: the replicas that read the previous page. `counting` has begun with the first
    /// target.
    pub(super) async fn read_window(
        &self,
        query: &Query,
        first: Target,
        targets: &mut Targets<'_>,
        window: &mut Window,
        kept: Option<&LastReplicas>,
        counting: &mut PageCounting<'_>,
    ) -> Result<QuorumPage, CoordinatorError> {
        let width = window.width;
        window.width = (width * 2).min(window.widest);
        let mut others = Vec::new();
        while others.len() + 1 < width {
            let place = targets.place();
            let Some((tablet, range)) = targets.next() else { break };
            let command = Rc::new(ReadCommand { ranges: smallvec![range], ..(*first.command).clone() });
            counting.add(place);
            others.push(Target { place, tablet, command });
        }
        let counting = &*counting;
        if others.is_empty() {
            let read = first.read(query, kept, counting);
            return self.read_quorum(read).await;
        }
        let batch: Vec<_> = std::iter::once(first).chain(others).collect();
        debug_assert!(batch.len() <= WIDEST, "a window has a limit");
        let asked = batch.iter().map(|target| Box::pin(self.read_quorum(target.read(query, kept, counting))));
        let mut answers = stream::iter(asked.collect::<Vec<_>>()).buffered(batch.len());
        let page = joined_page(&batch, targets, &mut answers).await?;
        if counting.is_deferred() {
            // A refusal of any partition refuses the statement, even if the page ends before it.
            while let Some(answer) = answers.next().await {
                if let Err(refused @ CoordinatorError::RateLimited { .. }) = answer {
                    return Err(refused);
                }
            }
        }
        Ok(page)
    }
}

/// Makes one page of the answers of a batch. Targets without an answer in the page are given back.
async fn joined_page(
    batch: &[Target],
    targets: &mut Targets<'_>,
    answers: &mut (impl Stream<Item = Result<QuorumPage, CoordinatorError>> + Unpin),
) -> Result<QuorumPage, CoordinatorError> {
    let limits = batch[0].command.limits;
    let mut whole: Option<(Box<Page>, Option<LastReplicas>)> = None;
    for Target { command, .. } in batch {
        let Some(answer) = answers.next().await else { break };
        let QuorumPage { page, has_more, by } = answer?;
        let rows = whole.as_ref().map_or(0, |(whole, _)| whole.rows);
        let bytes = whole.as_ref().map_or(0, |(whole, _)| whole.body.len() as u64);
        if rows > 0 && (rows + page.rows > limits.rows || bytes > limits.bytes) {
            targets.give_back(&command.ranges[0]);
            break;
        }
        let ends = has_more || page.end != PageEnd::Exhausted;
        let joined = match whole.take() {
            None => page,
            Some((before, _)) => joined(before, *page),
        };
        if joined.rows >= limits.rows {
            // Each part alone has fewer rows than requested, so none of them set this.
            let mut page = joined;
            page.end = PageEnd::Rows;
            return Ok(QuorumPage { page, has_more: false, by });
        }
        if ends {
            return Ok(QuorumPage { page: joined, has_more, by });
        }
        whole = Some((joined, by));
    }
    let (page, by) = whole.ok_or_else(|| CoordinatorError::Invalid("no tablet was asked".into()))?;
    Ok(QuorumPage { page, has_more: false, by })
}

/// Joins two consecutive pages.
fn joined(mut before: Box<Page>, page: Page) -> Box<Page> {
    debug_assert!(before.end == PageEnd::Exhausted, "nothing is left out between two pages");
    before.rows += page.rows;
    append(&mut before.body, page.body);
    if page.last.is_some() {
        (before.last, before.rows_in_last) = (page.last, page.rows_in_last);
    }
    before.end = page.end;
    before.tombstones += page.tombstones;
    before.examined_rows += page.examined_rows;
    before.examined_bytes += page.examined_bytes;
    before
}
