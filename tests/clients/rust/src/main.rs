//! A Rust application on the `scylla` driver, checked against a running node: every type, paging, batches, structs, traces,
//! keyspaces, compression, and that requests routed by the driver's shard and tablet awareness never hop between the shards of the node.
//!
//!     rust-client HOST [--metrics HOST:PORT]
//!
//! Prints `ok NAME` or `FAILED NAME: why` for each check and ends with status 1 if one failed. Without `--metrics` the
//! routing check is left out, and says so. It prints `restart?` when the node may be restarted, and reads a line: `done`, or
//! anything else if the node will not be.

mod changes;
mod requests;
mod routing;
mod types;

use scylla::client::session::Session;
use scylla::client::session_builder::SessionBuilder;
use scylla::response::PagingState;
use scylla::statement::batch::{Batch, BatchType};
use scylla::statement::unprepared::Statement;
use scylla::value::{MaybeUnset, Unset};
use std::ops::ControlFlow;
use std::process::ExitCode;

pub type Error = Box<dyn std::error::Error + Send + Sync>;
pub const KEYSPACE: &str = "rust_client";

/// Fails the enclosing check with a message.
#[macro_export]
macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err(format!($($message)+).into());
        }
    };
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

async fn run(host: &str, metrics: Option<&str>) -> Result<usize, Error> {
    let session = connect(host).await?;
    prepare_keyspace(&session).await?;
    let mut failed = 0;
    let mut report = |name: &str, result: Result<(), Error>| match result {
        Ok(()) => println!("ok {name}"),
        Err(error) => {
            println!("FAILED {name}: {error}");
            failed += 1;
        }
    };
    report("types", types::round_trip(&session).await);
    report("paging", paging(&session, host).await);
    report("batches", batches(&session).await);
    report("unset_and_null", unset_and_null(&session).await);
    report("errors", errors(&session).await);
    report("structs", requests::structs(&session).await);
    report("extras", requests::extras(&session, host).await);
    report("keyspaces", requests::keyspaces(&session, host).await);
    report("metadata", requests::metadata(&session).await);
    report("schema_change", changes::schema_change(&session).await);
    match metrics {
        Some(address) => report("no_hop_after_first_request", routing::no_hops(host, address).await),
        None => println!("not run: no_hop_after_first_request (no --metrics)"),
    }
    match changes::restart(&session).await.transpose() {
        Some(result) => report("restart", result),
        None => println!("not run: restart (the node is not ours)"),
    }
    Ok(failed)
}

#[tokio::main]
async fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (host, metrics) = match arguments.as_slice() {
        [host] => (host, None),
        [host, flag, address] if flag == "--metrics" => (host, Some(address.as_str())),
        _ => {
            eprintln!("usage: rust-client HOST [--metrics HOST:PORT]");
            return ExitCode::from(2);
        }
    };
    match run(host, metrics).await {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            println!("FAILED connect: {error}");
            ExitCode::FAILURE
        }
    }
}
