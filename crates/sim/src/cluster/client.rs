//! A client of one shard of one node. It writes, reads and counts, and records the answers in the
//! oracles. The oracles check each read.
//!
//! It dies with its node. The outcome of its last statement is then unknown.

use super::history::{Majority, PARTITIONS};
use super::limited;
use super::pages;
use super::shared::{PlantedBug, Shared};
use super::truncating;
use super::workload::{COUNTERS, Change, Read, any, int, read_level, write_level, write_text};
use crate::layers::LAYERS;
use crate::reads::{client, client_at, decode};
use cql::Error;
use cql::api::{ClientState, Consistency, QueryParams, ResultKind};
use futures_util::future::{FutureExt, TryFutureExt, join_all};
use replica::LimitedBy;
use rt::time::Duration;
use std::collections::BTreeMap;
use std::rc::Rc;

/// A row: its values by column name. Nulls are left out.
pub type Row = BTreeMap<String, Vec<u8>>;

/// The longest time that a request may take: its timeout, and some time for a busy world.
const LONGEST: Duration = Duration::from_millis(10_500);
/// The largest number of times that [`PlantedBug::CountsAgain`] repeats a counter update that was
/// not acknowledged.
const MOST_COUNTS: usize = 20;
/// The largest number of pages of one read. With more, the read never ends.
const MOST_PAGES: usize = 500;

/// Why a statement failed.
#[derive(Debug)]
pub enum Failed {
    /// The node refused it before a replica was asked.
    Refused(String),
    /// It may have been applied.
    Unknown(String),
    /// It took too long, which breaks a promise. It may have been applied.
    Late(String),
    /// It has more pages than a read can have, which breaks a promise.
    Endless(String),
    /// A rate limit refused it. If replicas did, some of them may have applied it.
    Limited {
        /// Whether the coordinator refused it, so that no replica has it.
        by_coordinator: bool,
        /// Whether it was refused as one of a hot partition of an overloaded shard.
        by_protection: bool,
    },
}

impl Failed {
    fn of(error: Error, text: &str) -> Failed {
        match error {
            Error::Unavailable { .. } => Failed::Refused(error.to_string()),
            Error::RateLimit(refusal) => Failed::Limited {
                by_coordinator: refusal.rejected_by_coordinator,
                by_protection: refusal.refused.by == LimitedBy::Protection,
            },
            error => Failed::Unknown(format!("{text}: {error}")),
        }
    }

    /// The error that the client got.
    pub fn why(self) -> String {
        match self {
            Failed::Refused(why) | Failed::Unknown(why) | Failed::Late(why) | Failed::Endless(why) => why,
            Failed::Limited { .. } => "refused by a rate limit".into(),
        }
    }

    /// Whether the outcome is unknown, so that a driver repeats the statement.
    fn is_unknown(&self) -> bool {
        matches!(self, Failed::Unknown(_) | Failed::Late(_) | Failed::Endless(_))
    }

    /// The failure of a repeated statement, after an attempt that may have been applied.
    fn of_repeat(self) -> Failed {
        match self {
            broken @ (Failed::Late(_) | Failed::Endless(_)) => broken,
            other => Failed::Unknown(other.why()),
        }
    }
}

impl From<String> for Failed {
    fn from(why: String) -> Failed {
        Failed::Unknown(why)
    }
}

/// Executes a statement on this shard. Returns the rows of all pages.
pub async fn execute(text: &str, consistency: Consistency, page_size: i32) -> Result<Vec<Row>, Failed> {
    execute_as(client(), text, consistency, page_size).await
}

/// Executes a statement of a client on this shard. Returns the rows of all pages.
pub async fn execute_as(
    client: Rc<ClientState>,
    text: &str,
    consistency: Consistency,
    page_size: i32,
) -> Result<Vec<Row>, Failed> {
    execute_all_pages(client, text, None, consistency, page_size).await
}

/// Executes a statement, or the prepared statement `prepared` of this text. Returns the rows of all
/// pages.
async fn execute_all_pages(
    client: Rc<ClientState>,
    text: &str,
    prepared: Option<&[u8; 16]>,
    consistency: Consistency,
    page_size: i32,
) -> Result<Vec<Row>, Failed> {
    let mut params = QueryParams { page_size: Some(page_size), consistency, ..QueryParams::default() };
    let mut all = Vec::new();
    for _ in 0..MOST_PAGES {
        let Some(processor) = LAYERS.processor.try_get() else {
            return Err(Failed::Refused("the node does not serve".into()));
        };
        let began = rt::time::now();
        let answer = match prepared {
            None => processor.query(&client, text, &params).await,
            Some(id) => processor.execute(&client, id, &params).await,
        };
        let took = rt::time::now() - began;
        let is_schema = text.starts_with("CREATE") || text.starts_with("DROP") || text.starts_with("ALTER");
        if took > LONGEST && !is_schema {
            return Err(Failed::Late(format!("too late: {text} took {took:?}")));
        }
        let ResultKind::Rows(rows) = answer.map_err(|error| Failed::of(error, text))?.kind else { return Ok(all) };
        all.extend(decode(&rows));
        match rows.paging_state {
            Some(next) => params.paging_state = Some(next),
            None => return Ok(all),
        }
    }
    Err(Failed::Endless(format!("endless: {text} has more than {MOST_PAGES} pages")))
}

/// Works until its node stops or dies.
pub async fn run(shared: Rc<Shared>, node: usize) {
    loop {
        rt::time::sleep(Duration::from_millis(1 + rt::random::below(shared.plan.pause_millis))).await;
        if shared.nodes[node].is_stopping() {
            return;
        }
        if !shared.is_working() || !shared.nodes[node].is_ready() {
            continue;
        }
        let began = shared.elapsed();
        let requests = &shared.nodes[node].requests;
        requests.set(requests.get() + 1);
        let done = match any(100) {
            _ if shared.plan.counting => count(&shared).await,
            _ if shared.plan.is_limiting() && any(4) != 0 => limited::work(&shared, node).await,
            _ if shared.plan.truncating && any(4) == 0 => truncating::work(&shared).await,
            _ if shared.plan.paging && any(2) == 0 => pages::work(&shared).await.map_err(Failed::from),
            0..=44 => write(&shared, node).await,
            45..=89 => read(&shared, node).await,
            90..=94 => count(&shared).await,
            _ => read_counter(&shared).await,
        };
        requests.set(requests.get() - 1);
        if let Err(failed) = done {
            shared.failed(node, began, failed);
        }
    }
}

async fn write(shared: &Shared, node: usize) -> Result<(), Failed> {
    let pk = any(PARTITIONS);
    let expiring = shared.plan.expiring;
    let mut changes = vec![Change::any(pk, expiring)];
    if any(8) == 0 {
        changes.push(Change::any((pk + 1 + any(PARTITIONS - 1)) % PARTITIONS, expiring));
    }
    let places: Vec<_> = changes.iter().flat_map(|change| change.places()).collect();
    let (level, by) = write_level(shared.plan.own_datacenter(node));
    let number = shared.history.borrow_mut().begin(&places, rt::time::wall_seconds());
    if shared.plan.planted_bug == PlantedBug::NoExpiry {
        changes.iter_mut().for_each(Change::make_lasting);
    }
    let text = write_text(&changes, number);
    let level = shared.plan.planted_bug.write_level(level);
    let mut done = execute(&text, level, 1).await;
    // Repeats an idempotent statement after a timeout, as drivers do. The outcome of the first
    // attempt stays unknown.
    if done.as_ref().is_err_and(Failed::is_unknown) && !expiring && any(3) == 0 {
        done = execute(&text, level, 1).await.map_err(Failed::of_repeat);
    }
    shared.tell(|| format!("{node}/{} {changes:?} at {level:?} -> {done:?}", rt::shard::this()));
    let mut history = shared.history.borrow_mut();
    match done {
        Ok(_) => {
            history.acknowledged(number, by);
            Ok(())
        }
        Err(refused @ Failed::Refused(_)) => {
            history.refused(number);
            Err(refused)
        }
        Err(failed) => {
            history.failed();
            Err(failed)
        }
    }
}

async fn read(shared: &Shared, node: usize) -> Result<(), Failed> {
    let read = Read::any(PARTITIONS);
    let level = read_level(shared.plan.own_datacenter(node));
    let asked = shared.plan.planted_bug.read_level(level.0);
    if any(4) != 0 {
        let rows = execute(&read.text, asked, read.page);
        return check_read(shared, node, &read, level, rows).await;
    }
    // Concurrent equal reads of a prepared statement share their requests to replicas.
    let user = client_at(Some(([127, 0, 0, 1], 1).into()));
    let processor = LAYERS.processor.try_get().ok_or_else(|| Failed::Refused("the node does not serve".into()))?;
    let prepared = processor.prepare(&user, &read.text, None).await.map_err(|error| Failed::of(error, &read.text))?;
    drop(processor);
    let execute = || execute_all_pages(user.clone(), &read.text, Some(&prepared.id), asked, read.page);
    let sent = execute().map_err(Failed::why).shared();
    // Some begin while others are in flight.
    let spread = if any(2) == 0 { 3 } else { 200 };
    let reads = (0..2 + any(8)).map(|_| async {
        rt::time::sleep(Duration::from_millis(any(spread) as u64)).await;
        if shared.plan.planted_bug == PlantedBug::FollowsSentReads {
            check_read(shared, node, &read, level, sent.clone().map_err(Failed::Unknown)).await
        } else {
            check_read(shared, node, &read, level, execute()).await
        }
    });
    let done = join_all(reads).await.into_iter().collect();
    if let Some(coordinator) = LAYERS.coordinator.try_get() {
        shared.coalesced.set(shared.coalesced.get().max(coordinator.metrics().coalesced_reads));
    }
    done
}

/// Waits for the rows of a read, and checks them.
async fn check_read(
    shared: &Shared,
    node: usize,
    read: &Read,
    (level, by): (Consistency, &'static [Majority]),
    rows: impl Future<Output = Result<Vec<Row>, Failed>>,
) -> Result<(), Failed> {
    let floors = shared.history.borrow().floors(by, rt::time::wall_seconds()).of(read.pk);
    let rows = rows.await?;
    let checked = read.shown(PARTITIONS, &rows).and_then(|shown| {
        shared.tell(|| format!("{node}/{} {} at {level:?} -> {shown:?}", rt::shard::this(), read.text));
        shared.history.borrow_mut().check(&shown, &floors, by, rt::time::wall_seconds())
    });
    if let Err(why) = checked {
        shared.broken(format!("{why}\n    in {} at {level:?}, {} rows a page", read.text, read.page));
    }
    Ok(())
}

async fn count(shared: &Shared) -> Result<(), Failed> {
    let k = any(COUNTERS);
    shared.counters.borrow_mut().begin(k);
    let text = format!("UPDATE c.n SET n = n + 1 WHERE k = {k}");
    let level = shared.plan.planted_bug.write_level(Consistency::Quorum);
    let mut done = execute(&text, level, 1).await;
    if shared.plan.planted_bug == PlantedBug::CountsAgain {
        for _ in 0..MOST_COUNTS {
            if done.as_ref().is_err_and(Failed::is_unknown) {
                done = execute(&text, level, 1).await;
            }
        }
    }
    let mut counters = shared.counters.borrow_mut();
    match done {
        Ok(_) => {
            counters.acknowledged(k);
            Ok(())
        }
        Err(refused @ Failed::Refused(_)) => {
            counters.refused(k);
            Err(refused)
        }
        Err(failed) => Err(failed),
    }
}

async fn read_counter(shared: &Shared) -> Result<(), Failed> {
    let k = any(COUNTERS);
    let floor = shared.counters.borrow().floor(k);
    let text = format!("SELECT n FROM c.n WHERE k = {k}");
    let rows = execute(&text, Consistency::Quorum, 10).await?;
    let found = counter(&rows)?;
    if let Err(why) = shared.counters.borrow_mut().check(k, found, floor) {
        shared.broken(why);
    }
    Ok(())
}

/// The value of a counter; zero if it was never updated.
pub fn counter(rows: &[Row]) -> Result<i64, String> {
    let Some(bytes) = rows.first().and_then(|row| row.get("n")) else { return Ok(0) };
    bytes[..].try_into().map(i64::from_be_bytes).map_err(|_| format!("{bytes:?} is no counter"))
}

/// The value of an int column in the first row.
pub fn first_int(rows: &[Row], name: &str) -> Option<i32> {
    rows.first()?.get(name).and_then(|bytes| int(bytes).ok())
}
