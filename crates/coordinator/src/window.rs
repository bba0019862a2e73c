//! Asking several tablets at the same time where one after the other would take long: a scan that finds little in each, or many
//! partitions by their keys. Answers are used in order; what comes behind the end of the page is thrown away.

use super::gather::Gathered;
use super::paging::LastReplicas;
use super::read::{Partitions, Query, append};
use super::targets::Targets;
use super::{Coordinator, CoordinatorError, RequestOptions};
use futures_util::{StreamExt, stream};
use replica::{Page, PageEnd, ReadCommand};
use smallvec::smallvec;
use std::rc::Rc;

/// How many tablets are asked at the same time. It doubles as long as pages are not full.
pub(super) struct Window {
    width: usize,
}

/// Tablets of a scan that are asked at the same time at most: each may answer with a whole page.
pub(super) const WIDEST: usize = 32;
/// Partitions that are asked for at the same time to begin with: they have few rows each, mostly.
const KEYS_AT_FIRST: usize = 8;

impl Window {
    pub fn new(query: &Query) -> Window {
        Window {
            width: match query.partitions {
                Partitions::Keys(_) => KEYS_AT_FIRST,
                Partitions::Range(_) => 1,
            },
        }
    }
}

impl Coordinator {
    /// Asks the first tablet, and as many of the targets after it as the window is wide for the same, and makes one page of their answers.
    /// Targets whose answers are not in it are given back. `kept` have read the page before.
    pub(super) async fn gather_window(
        &self,
        query: &Query,
        (tablet, command): (u32, Rc<ReadCommand>),
        targets: &mut Targets<'_>,
        window: &mut Window,
        kept: Option<&LastReplicas>,
        options: &RequestOptions,
    ) -> Result<Gathered, CoordinatorError> {
        let width = window.width;
        window.width = (width * 2).min(WIDEST);
        let mut others = Vec::new();
        while others.len() + 1 < width {
            let Some((tablet, range)) = targets.next() else { break };
            others.push((tablet, Rc::new(ReadCommand { ranges: smallvec![range], ..(*command).clone() })));
        }
        if others.is_empty() {
            return self.gather(&query.table, tablet, &command, kept, options).await;
        }
        let limits = command.limits;
        let batch: Vec<_> = std::iter::once((tablet, command)).chain(others).collect();
        let asked =
            batch.iter().map(|(tablet, command)| Box::pin(self.gather(&query.table, *tablet, command, kept, options)));
        let mut answers = stream::iter(asked.collect::<Vec<_>>()).buffered(batch.len());
        let mut whole: Option<(Box<Page>, Option<LastReplicas>)> = None;
        for (_, command) in &batch {
            let Some(answer) = answers.next().await else { break };
            let Gathered { page, goes_on, by } = answer?;
            let rows = whole.as_ref().map_or(0, |(whole, _)| whole.rows);
            let bytes = whole.as_ref().map_or(0, |(whole, _)| whole.body.len() as u64);
            if rows > 0 && (rows + page.rows > limits.rows || bytes > limits.bytes) {
                targets.give_back(&command.ranges[0]);
                break;
            }
            let ends = goes_on || page.end != PageEnd::Exhausted;
            let joined = match whole.take() {
                None => page,
                Some((before, _)) => joined(before, *page),
            };
            if joined.rows >= limits.rows {
                // Each of them alone has fewer rows than were wanted.
                let mut page = joined;
                page.end = PageEnd::Rows;
                return Ok(Gathered { page, goes_on: false, by });
            }
            if ends {
                return Ok(Gathered { page: joined, goes_on, by });
            }
            whole = Some((joined, by));
        }
        let (page, by) = whole.ok_or_else(|| CoordinatorError::Invalid("no tablet was asked".into()))?;
        Ok(Gathered { page, goes_on: false, by })
    }
}

/// Two pages that follow each other as one.
fn joined(mut before: Box<Page>, page: Page) -> Box<Page> {
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
