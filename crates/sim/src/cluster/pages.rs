//! The checker `pages_are_exact`: queries that are paged over clients of all nodes, beside writes
//! and faults.
//!
//! A table has rows that are written once and stay, and rows that are written and deleted. Any
//! client with time begins a query, or reads the next page of one. A client of another node may
//! have read the pages before and left the paging state. If a page fails, another client requests
//! it again with the same state. At the end of a query, each row that stays was seen exactly once,
//! and all rows came in order.

use super::client::Failed;
use super::shared::Shared;
use super::workload::{any, int};
use crate::layers::LAYERS;
use crate::reads::{client, decode};
use bytes::Bytes;
use coordinator::PageLimits;
use cql::api::{Consistency, QueryParams, ResultKind};
use std::collections::BTreeSet;

/// The statement that makes the table.
pub const TABLE: &str =
    "CREATE TABLE IF NOT EXISTS c.p (pk int, ck int, v int, PRIMARY KEY (pk, ck)) WITH speculative_retry = '10ms'";
/// Its number of partitions.
const PARTITIONS: i32 = 3;
/// The rows of each partition. Those with even numbers stay.
const ROWS: i32 = 40;
/// The largest number of queries in progress.
const MOST_QUERIES: usize = 6;
/// The largest number of rows of a page.
const LARGEST_PAGE: i32 = 9;

/// Limits by which pages also end at tombstones, which differ between replicas.
pub fn limits() -> PageLimits {
    PageLimits { tombstones: 4, tombstones_are_set: true, ..PageLimits::default() }
}

/// The partition key and the clustering key of a row.
type RowKey = (i32, i32);

/// The rows that stay, and the queries in progress that no client is reading.
#[derive(Default)]
pub struct Pages {
    stay: BTreeSet<RowKey>,
    waiting: Vec<Reading>,
    /// Queries that were read to their end.
    pub done: u64,
    /// Pages of all queries.
    pub pages: u64,
}

/// A query in progress.
#[derive(Clone, Debug)]
struct Reading {
    /// The partition; `None`: all partitions.
    pk: Option<i32>,
    /// Whether it reads in descending order.
    backward: bool,
    size: i32,
    /// The rows that were written to stay when it began.
    stay: BTreeSet<RowKey>,
    seen: Vec<RowKey>,
    state: Option<Bytes>,
}

impl Reading {
    fn any(stay: &BTreeSet<RowKey>) -> Reading {
        let pk = (any(2) == 0).then(|| any(PARTITIONS));
        let inside = |place: &&RowKey| pk.is_none_or(|pk| pk == place.0);
        Reading {
            pk,
            backward: pk.is_some() && any(2) == 0,
            size: 1 + any(LARGEST_PAGE),
            stay: stay.iter().filter(inside).copied().collect(),
            seen: Vec::new(),
            state: None,
        }
    }

    fn text(&self) -> String {
        let order = if self.backward { " ORDER BY ck DESC" } else { "" };
        let filter = self.pk.map_or(String::new(), |pk| format!(" WHERE pk = {pk}{order}"));
        format!("SELECT pk, ck FROM c.p{filter}")
    }

    /// Adds the rows of a page. Each must come after the one before.
    fn see(&mut self, rows: &[RowKey]) -> Result<(), String> {
        for row in rows {
            if let Some(last) = self.seen.last() {
                let is_behind = match last.0 == row.0 {
                    true => (last.1 < row.1) != self.backward && last.1 != row.1,
                    // The rows of a partition come together.
                    false => self.pk.is_none() && self.seen.iter().all(|seen| seen.0 != row.0),
                };
                if !is_behind {
                    return Err(format!("row {row:?} comes after {last:?}"));
                }
            }
            self.seen.push(*row);
        }
        Ok(())
    }

    /// Whether all rows that stay were seen. Called at the end.
    fn check(&self) -> Result<(), String> {
        let seen: BTreeSet<RowKey> = self.seen.iter().copied().collect();
        match self.stay.difference(&seen).next() {
            Some(missing) => Err(format!("row {missing:?} is missing")),
            None => Ok(()),
        }
    }
}

/// Writes, or reads a page.
pub async fn work(shared: &Shared) -> Result<(), String> {
    match any(6) {
        0 => write_to_stay(shared).await,
        1 => come_or_go().await,
        _ => read(shared).await,
    }
}

async fn write_to_stay(shared: &Shared) -> Result<(), String> {
    let place = (any(PARTITIONS), any(ROWS / 2) * 2);
    let text = format!("INSERT INTO c.p (pk, ck, v) VALUES ({}, {}, 0)", place.0, place.1);
    execute(&text, Consistency::Quorum, None, 1).await?;
    shared.pages.borrow_mut().stay.insert(place);
    Ok(())
}

async fn come_or_go() -> Result<(), String> {
    let (pk, ck) = (any(PARTITIONS), any(ROWS / 2) * 2 + 1);
    let level = if any(2) == 0 { Consistency::One } else { Consistency::Quorum };
    let text = match any(4) {
        0 => format!("DELETE FROM c.p WHERE pk = {pk} AND ck = {ck}"),
        1 => format!("DELETE FROM c.p WHERE pk = {pk} AND ck > {} AND ck < {}", ck - 1, ck + 1),
        _ => format!("INSERT INTO c.p (pk, ck, v) VALUES ({pk}, {ck}, 1)"),
    };
    execute(&text, level, None, 1).await.map(drop)
}

async fn read(shared: &Shared) -> Result<(), String> {
    let mut reading = {
        let mut pages = shared.pages.borrow_mut();
        let at = any(MOST_QUERIES as i32) as usize;
        if at < pages.waiting.len() { pages.waiting.swap_remove(at) } else { Reading::any(&pages.stay) }
    };
    let text = reading.text();
    let page = execute(&text, Consistency::Quorum, reading.state.clone(), reading.size).await;
    let (rows, next) = match page {
        Ok(page) => page,
        Err(why) => {
            if why.contains("paging state") {
                shared.broken(format!("pages_are_exact is broken: {why}"));
            }
            shared.pages.borrow_mut().waiting.push(reading);
            return Err(why);
        }
    };
    let last = next.is_none();
    reading.state = next;
    let seen = reading.see(&rows).and_then(|()| if last { reading.check() } else { Ok(()) });
    if let Err(why) = seen {
        shared.broken(format!(
            "pages_are_exact is broken: {why}\n    in {text}, {} rows a page: {reading:?}",
            reading.size
        ));
    }
    let mut pages = shared.pages.borrow_mut();
    pages.pages += 1;
    match last {
        true => pages.done += 1,
        false => pages.waiting.push(reading),
    }
    Ok(())
}

/// Reads the whole table at a level, so that read repair makes the replicas equal.
pub async fn read_all(level: Consistency) -> Result<(), String> {
    let mut state = None;
    loop {
        let (_, next) = execute("SELECT pk, ck FROM c.p", level, state, LARGEST_PAGE).await?;
        state = next;
        if state.is_none() {
            return Ok(());
        }
    }
}

/// Executes a statement on this shard. Returns the keys of the rows, and the paging state.
async fn execute(
    text: &str,
    consistency: Consistency,
    paging_state: Option<Bytes>,
    size: i32,
) -> Result<(Vec<RowKey>, Option<Bytes>), String> {
    let params = QueryParams { page_size: Some(size), consistency, paging_state, ..QueryParams::default() };
    let client = client();
    let Some(processor) = LAYERS.processor.try_get() else {
        return Err(Failed::Refused("the node does not serve".into()).why());
    };
    let answer = processor.query(&client, text, &params).await.map_err(|error| format!("{text}: {error}"))?;
    let ResultKind::Rows(rows) = answer.kind else { return Ok((Vec::new(), None)) };
    let place = |row: &super::client::Row| -> Result<RowKey, String> {
        let value = |name: &str| row.get(name).ok_or_else(|| format!("{text}: a row without {name}"));
        Ok((int(value("pk")?)?, int(value("ck")?)?))
    };
    let places = decode(&rows).iter().map(place).collect::<Result<_, _>>()?;
    Ok((places, rows.paging_state))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(pk: Option<i32>, backward: bool, stay: &[RowKey]) -> Reading {
        Reading { pk, backward, size: 1, stay: stay.iter().copied().collect(), seen: Vec::new(), state: None }
    }

    #[test]
    fn doubled_misplaced_and_lost_rows_are_found() {
        let see = |mut reading: Reading, pages: &[&[RowKey]]| {
            pages.iter().try_for_each(|rows| reading.see(rows)).and_then(|()| reading.check())
        };
        let one = |backward| reading(Some(1), backward, &[(1, 2), (1, 4)]);
        assert_eq!(see(one(false), &[&[(1, 2)], &[(1, 3), (1, 4)]]), Ok(()));
        assert_eq!(see(one(true), &[&[(1, 4), (1, 2)], &[]]), Ok(()));
        assert!(see(one(false), &[&[(1, 2)], &[(1, 2), (1, 4)]]).is_err(), "twice");
        assert!(see(one(true), &[&[(1, 2)], &[(1, 4)]]).is_err(), "out of order");
        assert!(see(one(false), &[&[(1, 2)], &[(1, 3)]]).is_err(), "lost");
        assert!(see(one(false), &[&[(1, 2), (1, 4)], &[(2, 6)]]).is_err(), "not asked for");
        let all = || reading(None, false, &[(1, 2), (2, 0)]);
        assert_eq!(see(all(), &[&[(2, 0), (2, 1)], &[(1, 2)]]), Ok(()));
        assert!(see(all(), &[&[(2, 0)], &[(1, 2), (2, 1)]]).is_err(), "a partition in two pieces");
    }
}
