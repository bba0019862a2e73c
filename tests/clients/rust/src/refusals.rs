//! Refusals by per-partition rate limits: each reaches the application as one typed error, and the driver does not send the request again.

use crate::{Error, KEYSPACE, ask, ensure};
use scylla::client::session::Session;
use scylla::errors::{DbError, ExecutionError, OperationType, RequestAttemptError};
use scylla::response::query_result::QueryResult;
use scylla::statement::batch::{Batch, BatchType};
use scylla::statement::unprepared::Statement;
use std::collections::BTreeSet;

const KINDS: [&str; 2] = ["read", "write"];
const MOST_UNTIL_REFUSED: i32 = 1000;
/// Partitions that together have owners on all shards and nodes.
const PARTITIONS: i32 = 100;

/// What the nodes have refused: reads and writes.
type Counts = [u64; 2];

/// `None` where the caller does not know the counts.
fn refusals() -> Result<Option<Counts>, Error> {
    let answer = ask("refusals?")?;
    if answer.is_empty() || answer == "no" {
        return Ok(None);
    }
    let counts: Vec<u64> = answer.split(' ').map(str::parse).collect::<Result<_, _>>()?;
    Ok(Some(counts.try_into().map_err(|counts| format!("not two counts: {counts:?}"))?))
}

fn sent_once(seen: Counts, what: &str) -> Result<(), Error> {
    let now = refusals()?.ok_or("the counts are no longer known")?;
    ensure!(now == seen, "{what}: the nodes refused {now:?}, the application saw {seen:?}");
    Ok(())
}

fn text(kind: usize, table: &str, pk: &str) -> String {
    match kind {
        0 => format!("SELECT v FROM {table} WHERE pk = {pk}"),
        _ => format!("INSERT INTO {table} (pk, v) VALUES ({pk}, 1)"),
    }
}

/// Checks that a request was refused by the limit of the table. Returns whether a coordinator refused it.
fn refused(result: Result<QueryResult, ExecutionError>, kind: usize, table: &str, limit: i32) -> Result<bool, Error> {
    let (error, message) = match result {
        Err(ExecutionError::LastAttemptError(RequestAttemptError::DbError(error, message))) => (error, message),
        other => return Err(format!("{} of {table}: {other:?}", KINDS[kind]).into()),
    };
    let DbError::RateLimitReached { op_type, rejected_by_coordinator } = error else {
        return Err(format!("{} of {table}: {error:?}", KINDS[kind]).into());
    };
    let expected = [OperationType::Read, OperationType::Write][kind].clone();
    ensure!(op_type == expected, "{} of {table}: {op_type:?}", KINDS[kind]);
    let by = if rejected_by_coordinator { "coordinator" } else { "replicas" };
    let begin =
        format!("Per-partition rate limit reached for {} in table {KEYSPACE}.{table}, rejected by {by} (", KINDS[kind]);
    ensure!(message.starts_with(&begin) && message.contains(&format!("limit {limit};")), "{by}: {message}");
    Ok(rejected_by_coordinator)
}

/// Every kind of request to a table that refuses everything.
async fn all_refused(session: &Session, seen: &mut Counts) -> Result<(), Error> {
    for kind in 0..2 {
        for idempotent in [false, true] {
            let what = format!("{}, idempotent: {idempotent}", KINDS[kind]);
            let mut statement = Statement::new(text(kind, "refusing", "1"));
            statement.set_is_idempotent(idempotent);
            refused(session.query_unpaged(statement, ()).await, kind, "refusing", 0)?;
            seen[kind] += 1;
            sent_once(*seen, &what)?;
            let mut statement = session.prepare(text(kind, "refusing", "?")).await?;
            statement.set_is_idempotent(idempotent);
            refused(session.execute_unpaged(&statement, (1,)).await, kind, "refusing", 0)?;
            seen[kind] += 1;
            sent_once(*seen, &format!("{what}, prepared"))?;
        }
    }
    let mut batch = Batch::new(BatchType::Unlogged);
    batch.append_statement(Statement::new(text(1, "refusing", "2")));
    batch.set_is_idempotent(true);
    refused(session.batch(&batch, ((),)).await, 1, "refusing", 0)?;
    seen[1] += 1;
    sent_once(*seen, "batch")?;
    // Statements that are not prepared go to any shard. So some of them are refused by the owner of their partition, others by
    // a coordinator that must leave it to the replicas.
    let mut by = BTreeSet::new();
    for pk in 0..PARTITIONS {
        let result = session.query_unpaged(text(0, "refusing", &pk.to_string()), ()).await;
        by.insert(refused(result, 0, "refusing", 0)?);
        seen[0] += 1;
    }
    ensure!(by.len() == 2, "{PARTITIONS} refusals by a coordinator: {by:?}");
    sent_once(*seen, "any shard")
}

/// One partition reaches its limit. Another one, on the same connections, does not.
async fn until_refused(session: &Session, kind: usize, seen: &mut Counts) -> Result<(), Error> {
    let statement = session.prepare(text(kind, "limited", "?")).await?;
    let mut result = session.execute_unpaged(&statement, (1,)).await;
    for _ in 0..MOST_UNTIL_REFUSED {
        if result.is_err() {
            break;
        }
        result = session.execute_unpaged(&statement, (1,)).await;
    }
    refused(result, kind, "limited", 1)?;
    seen[kind] += 1;
    session.execute_unpaged(&statement, (2,)).await?;
    sent_once(*seen, &format!("{} until refused", KINDS[kind]))
}

pub async fn rate_limits(session: &Session) -> Result<(), Error> {
    for (table, limit) in [("refusing", 0), ("limited", 1)] {
        let option = format!("{{'max_reads_per_second': {limit}, 'max_writes_per_second': {limit}}}");
        let columns = "(pk int PRIMARY KEY, v int)";
        session
            .query_unpaged(format!("CREATE TABLE {table} {columns} WITH per_partition_rate_limit = {option}"), ())
            .await?;
    }
    let Some(mut seen) = refusals()? else {
        println!("not run: rate_limits (the node is not ours)");
        return Ok(());
    };
    all_refused(session, &mut seen).await?;
    for kind in 0..2 {
        until_refused(session, kind, &mut seen).await?;
    }
    Ok(())
}
