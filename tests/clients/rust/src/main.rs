//! A Rust application on the `scylla` driver, checked against a running node: every type, paging,
//! batches, structs, traces, keyspaces and compression. It also checks that the driver routes
//! requests to the shard that owns them: the node never forwards them to another shard.
//!
//!     rust-client HOST [--metrics HOST:PORT] [--check NAME]
//!
//! Prints `ok NAME` or `FAILED NAME: why` for each check and ends with status 1 if one failed. Without `--metrics` the
//! routing check is left out, and says so. `--check` runs only that check. It asks for what only the caller can do, and reads a
//! line, which is `no` if the caller cannot: `restart?` when the node may be restarted (`done`), and `refusals?` for the numbers
//! of reads and writes that the nodes have refused by rate limits.

mod changes;
mod refusals;
mod requests;
mod routing;
mod types;

use scylla::client::session::Session;
use scylla::client::session_builder::SessionBuilder;
use scylla::response::PagingState;
use scylla::statement::batch::{Batch, BatchType};
use scylla::statement::unprepared::Statement;
use scylla::value::{MaybeUnset, Unset};
use std::io::BufRead;
use std::ops::ControlFlow;
use std::process::ExitCode;

pub type Error = Box<dyn std::error::Error + Send + Sync>;
pub const KEYSPACE: &str = "rust_client";
const NO_HOPS: &str = "no_hop_after_first_request";

/// Fails the enclosing check with a message.
#[macro_export]
macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err(format!($($message)+).into());
        }
    };
}

/// Asks the user of this program a question. Returns an empty text if there is no answer.
fn ask(question: &str) -> Result<String, Error> {
    println!("{question}");
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer)?;
    Ok(answer.trim().to_owned())
}

async fn connect(host: &str) -> Result<Session, Error> {
    Ok(SessionBuilder::new().known_node(host).build().await?)
}

async fn prepare_keyspace(session: &Session) -> Result<(), Error> {
    session.query_unpaged(format!("DROP KEYSPACE IF EXISTS {KEYSPACE}"), ()).await?;
    let replication = "{'class': 'NetworkTopologyStrategy', 'replication_factor': 1}";
    session.query_unpaged(format!("CREATE KEYSPACE {KEYSPACE} WITH replication = {replication}"), ()).await?;
    session.use_keyspace(KEYSPACE, false).await?;
    session.await_schema_agreement().await?;
    Ok(())
}

async fn paging(session: &Session, host: &str) -> Result<(), Error> {
    session.query_unpaged("CREATE TABLE paged (pk int, ck int, v text, PRIMARY KEY (pk, ck))", ()).await?;
    let insert = session.prepare("INSERT INTO paged (pk, ck, v) VALUES (?, ?, ?)").await?;
    for ck in 0..1000 {
        session.execute_unpaged(&insert, (7, ck, format!("value {ck}"))).await?;
    }
    for page_size in [1, 7, 100, 999, 1000, 1001] {
        let mut select = session.prepare("SELECT ck, v FROM paged WHERE pk = ?").await?;
        select.set_page_size(page_size);
        // Every other page is asked for by another session, which only knows the state.
        let other = connect(host).await?;
        other.use_keyspace(KEYSPACE, false).await?;
        let mut other_select = other.prepare("SELECT ck, v FROM paged WHERE pk = ?").await?;
        other_select.set_page_size(page_size);
        let (mut state, mut expected, mut pages) = (PagingState::start(), 0, 0);
        loop {
            let (result, next) = match pages % 2 {
                0 => session.execute_single_page(&select, (7,), state).await?,
                _ => other.execute_single_page(&other_select, (7,), state).await?,
            };
            let result = result.into_rows_result()?;
            ensure!(result.rows_num() <= page_size as usize, "page of {} rows at size {page_size}", result.rows_num());
            for row in result.rows::<(i32, String)>()? {
                let (ck, v) = row?;
                ensure!(ck == expected && v == format!("value {ck}"), "got row {ck} {v:?}, expected {expected}");
                expected += 1;
            }
            pages += 1;
            match next.into_paging_control_flow() {
                ControlFlow::Break(()) => break,
                ControlFlow::Continue(following) => state = following,
            }
        }
        ensure!(expected == 1000, "{expected} rows at page size {page_size}");
    }
    let mut text = Statement::new("SELECT ck FROM paged WHERE pk = 7 ORDER BY ck DESC LIMIT 25");
    text.set_page_size(10);
    let (result, next) = session.query_single_page(text, (), PagingState::start()).await?;
    let first: Vec<_> = result.into_rows_result()?.rows::<(i32,)>()?.collect::<Result<_, _>>()?;
    ensure!(first.first() == Some(&(999,)) && first.len() == 10, "reversed page: {first:?}");
    ensure!(!next.finished(), "15 more rows were expected");
    Ok(())
}

async fn batches(session: &Session) -> Result<(), Error> {
    session.query_unpaged("CREATE TABLE batched (pk int, ck int, v int, PRIMARY KEY (pk, ck))", ()).await?;
    let insert = session.prepare("INSERT INTO batched (pk, ck, v) VALUES (?, ?, ?)").await?;
    let remove = session.prepare("DELETE FROM batched WHERE pk = ? AND ck = ?").await?;
    for (pk, kind) in [(1, BatchType::Logged), (2, BatchType::Unlogged)] {
        session.execute_unpaged(&insert, (pk, 9, 9)).await?;
        let mut batch = Batch::new(kind);
        batch.append_statement(insert.clone());
        batch.append_statement(insert.clone());
        batch.append_statement(Statement::new(format!("INSERT INTO batched (pk, ck, v) VALUES ({pk}, 3, 33)")));
        batch.append_statement(remove.clone());
        session.batch(&batch, ((pk, 1, 11), (pk, 2, 22), (), (pk, 9))).await?;
        let rows = session.query_unpaged("SELECT ck, v FROM batched WHERE pk = ?", (pk,)).await?.into_rows_result()?;
        let rows: Vec<(i32, i32)> = rows.rows()?.collect::<Result<_, _>>()?;
        ensure!(rows == [(1, 11), (2, 22), (3, 33)], "after the batch: {rows:?}");
    }
    Ok(())
}

async fn unset_and_null(session: &Session) -> Result<(), Error> {
    session.query_unpaged("CREATE TABLE holes (pk int PRIMARY KEY, a int, b text)", ()).await?;
    let insert = session.prepare("INSERT INTO holes (pk, a, b) VALUES (?, ?, ?)").await?;
    session.execute_unpaged(&insert, (1, 5, "five")).await?;
    session.execute_unpaged(&insert, (1, MaybeUnset::<i32>::Unset, "six")).await?;
    let read = session.prepare("SELECT a, b FROM holes WHERE pk = ?").await?;
    let row = session.execute_unpaged(&read, (1,)).await?.into_rows_result()?;
    ensure!(row.single_row::<(Option<i32>, Option<String>)>()? == (Some(5), Some("six".into())), "unset changed a");
    session.execute_unpaged(&insert, (1, None::<i32>, Unset)).await?;
    let row = session.execute_unpaged(&read, (1,)).await?.into_rows_result()?;
    ensure!(row.single_row::<(Option<i32>, Option<String>)>()? == (None, Some("six".into())), "null did not delete a");
    Ok(())
}

async fn errors(session: &Session) -> Result<(), Error> {
    use scylla::errors::DbError;
    let cases: [(&str, fn(&DbError) -> bool); 4] = [
        ("SELEC * FROM paged", |e| matches!(e, DbError::SyntaxError)),
        ("SELECT nothing FROM paged", |e| matches!(e, DbError::Invalid)),
        ("SELECT * FROM no_such_table", |e| matches!(e, DbError::Invalid)),
        ("CREATE TABLE paged (pk int PRIMARY KEY)", |e| matches!(e, DbError::AlreadyExists { .. })),
    ];
    for (text, expected) in cases {
        match session.query_unpaged(text, ()).await {
            Ok(_) => return Err(format!("{text}: no error").into()),
            Err(scylla::errors::ExecutionError::LastAttemptError(scylla::errors::RequestAttemptError::DbError(
                error,
                _,
            ))) => ensure!(expected(&error), "{text}: {error:?}"),
            Err(error) => return Err(format!("{text}: {error:?}").into()),
        }
    }
    Ok(())
}

/// The checks to run, and how many of them failed.
struct Report {
    only: Option<String>,
    failed: usize,
}

impl Report {
    fn wants(&self, name: &str) -> bool {
        self.only.as_deref().is_none_or(|only| only == name)
    }

    async fn check(&mut self, name: &str, run: impl Future<Output = Result<(), Error>>) {
        if !self.wants(name) {
            return;
        }
        match run.await {
            Ok(()) => println!("ok {name}"),
            Err(error) => {
                println!("FAILED {name}: {error}");
                self.failed += 1;
            }
        }
    }
}

async fn run(host: &str, metrics: Option<&str>, only: Option<String>) -> Result<usize, Error> {
    let session = connect(host).await?;
    prepare_keyspace(&session).await?;
    let mut report = Report { only, failed: 0 };
    report.check("types", types::round_trip(&session)).await;
    report.check("paging", paging(&session, host)).await;
    report.check("batches", batches(&session)).await;
    report.check("unset_and_null", unset_and_null(&session)).await;
    report.check("errors", errors(&session)).await;
    report.check("structs", requests::structs(&session)).await;
    report.check("extras", requests::extras(&session, host)).await;
    report.check("keyspaces", requests::keyspaces(&session, host)).await;
    report.check("metadata", requests::metadata(&session)).await;
    report.check("schema_change", changes::schema_change(&session)).await;
    report.check("rate_limits", refusals::rate_limits(&session)).await;
    match metrics {
        Some(address) => report.check(NO_HOPS, routing::no_hops(host, address)).await,
        None if report.wants(NO_HOPS) => println!("not run: {NO_HOPS} (no --metrics)"),
        None => (),
    }
    if report.wants("restart") {
        match changes::restart(&session).await.transpose() {
            Some(result) => report.check("restart", async { result }).await,
            None => println!("not run: restart (the node is not ours)"),
        }
    }
    Ok(report.failed)
}

/// The host, the address of the metrics and the name of the only check.
fn arguments() -> Option<(String, Option<String>, Option<String>)> {
    let mut given = std::env::args().skip(1);
    let host = given.next()?;
    let (mut metrics, mut only) = (None, None);
    while let Some(flag) = given.next() {
        match flag.as_str() {
            "--metrics" => metrics = Some(given.next()?),
            "--check" => only = Some(given.next()?),
            _ => return None,
        }
    }
    Some((host, metrics, only))
}

#[tokio::main]
async fn main() -> ExitCode {
    let Some((host, metrics, only)) = arguments() else {
        eprintln!("usage: rust-client HOST [--metrics HOST:PORT] [--check NAME]");
        return ExitCode::from(2);
    };
    match run(&host, metrics.as_deref(), only).await {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            println!("FAILED connect: {error}");
            ExitCode::FAILURE
        }
    }
}
