//! Full scans: one paged query, or many token ranges in random order.

use crate::Error;
use crate::options::Settings;
use crate::run::{ATTEMPTS, Workload};
use crate::tally::{Kind, Outcome, Report};
use crate::value::{Key, Random, hash};
use scylla::client::session::Session;
use scylla::response::PagingState;
use scylla::statement::Statement;
use scylla::statement::prepared::PreparedStatement;
use serde_json::json;
use std::ops::ControlFlow;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

pub struct Scan {
    select: PreparedStatement,
    ranges: Mutex<Vec<Range>>,
    range_count: usize,
    unread: AtomicU64,
    /// The sum of the hashes of all keys that were read.
    sum: AtomicU64,
    /// The keys of the table.
    keys: std::ops::Range<i64>,
    seed: u64,
    size: usize,
}

/// A part of the table that is being read.
pub struct Range {
    /// Tokens after the first and up to the second; None for the whole table.
    tokens: Option<(i64, i64)>,
    state: PagingState,
}

impl Scan {
    pub async fn prepare(session: &Session, settings: &Settings, parallel: bool) -> Result<Self, Error> {
        let options = &settings.options;
        let mut text = format!("SELECT pk, v FROM {}", settings.table);
        let mut ranges = vec![None];
        if parallel {
            text += " WHERE token(pk) > ? AND token(pk) <= ?";
            let count = options.ranges.unwrap_or(settings.concurrency * 100);
            ranges = split_ring(count).map(Some).collect();
            Random::new(options.seed, u64::MAX).shuffle(&mut ranges);
        }
        Ok(Scan {
            select: session.prepare(Statement::new(text).with_page_size(settings.page_size)).await?,
            range_count: ranges.len(),
            ranges: Mutex::new(
                ranges.into_iter().map(|tokens| Range { tokens, state: PagingState::start() }).collect(),
            ),
            unread: AtomicU64::new(0),
            sum: AtomicU64::new(0),
            keys: options.first_row as i64..(options.first_row + settings.rows) as i64,
            seed: options.seed,
            size: settings.value_size,
        })
    }

    /// Adds to a report whether each row was read once.
    pub fn judge(&self, report: &mut Report) {
        let read = report["rows"].as_u64().unwrap_or(0);
        let expected = (self.keys.end - self.keys.start) as u64;
        let sum = self.keys.clone().fold(0, |sum: u64, key| sum.wrapping_add(hash(key as u64)));
        let complete = read == expected && sum == self.sum.load(Relaxed);
        report.insert("missing".into(), json!(expected.saturating_sub(read)));
        report.insert("extra".into(), json!(read.saturating_sub(expected)));
        report.insert("ranges".into(), json!(self.range_count));
        report.insert("ranges_unread".into(), json!(self.unread.load(Relaxed)));
        report.insert("every_row_once".into(), json!(complete));
    }
}

impl Workload for Scan {
    type Item = Range;

    fn next(&self, _worker: u64, _random: &mut Random) -> Option<Range> {
        self.ranges.lock().expect("no worker panicked").pop()
    }

    async fn send(&self, session: &Session, range: &mut Range) -> Result<Outcome, Error> {
        let state = range.state.clone();
        let (page, next) = match range.tokens {
            Some(tokens) => session.execute_single_page(&self.select, tokens, state).await?,
            None => session.execute_single_page(&self.select, (), state).await?,
        };
        let page = page.into_rows_result()?;
        let (mut outcome, mut sum) = (Outcome::default(), 0u64);
        for row in page.rows::<(i64, Option<&[u8]>)>()? {
            let (partition, value) = row?;
            let value = value.unwrap_or_default();
            let key = Key { seed: self.seed, partition, row: 0, version: 0 };
            outcome.rows += 1;
            outcome.bytes += value.len() as u64;
            outcome.corrupt += u64::from(!self.keys.contains(&partition) || !key.matches(self.size, value));
            sum = sum.wrapping_add(hash(partition as u64));
        }
        // Only of a whole page: one that is read again must not count twice.
        self.sum.fetch_add(sum, Relaxed);
        if let ControlFlow::Continue(state) = next.into_paging_control_flow() {
            range.state = state;
            outcome.more = true;
        }
        Ok(outcome)
    }

    fn kind(&self, _range: &Range) -> Kind {
        Kind::Read
    }

    fn attempts(&self) -> u32 {
        ATTEMPTS
    }

    fn give_up(&self, _range: Range) -> u64 {
        self.unread.fetch_add(1, Relaxed);
        0
    }
}

/// The token ring in so many ranges of almost equal size.
fn split_ring(count: u64) -> impl Iterator<Item = (i64, i64)> {
    let bound = move |number: u64| {
        let offset = (i128::from(u64::MAX) * i128::from(number)) / i128::from(count);
        (i128::from(i64::MIN) + offset) as i64
    };
    (0..count).map(move |number| (bound(number), bound(number + 1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_cover_the_ring_without_overlap() {
        for count in [1, 2, 3, 100, 1536] {
            let ranges: Vec<_> = split_ring(count).collect();
            assert_eq!(ranges.len(), count as usize);
            assert_eq!(ranges.first().unwrap().0, i64::MIN);
            assert_eq!(ranges.last().unwrap().1, i64::MAX);
            for (one, next) in ranges.iter().zip(&ranges[1..]) {
                assert!(one.0 < one.1 && one.1 == next.0);
            }
            let width = |range: &(i64, i64)| i128::from(range.1) - i128::from(range.0);
            let widths: Vec<_> = ranges.iter().map(width).collect();
            assert!(widths.iter().max().unwrap() - widths.iter().min().unwrap() <= 1);
        }
    }
}
