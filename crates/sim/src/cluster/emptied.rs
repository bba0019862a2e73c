//! The clients' work on the table that is truncated repeatedly.

use super::client::{Failed, Row, execute, first_int};
use super::shared::{Canary, Shared};
use super::truncations::KEYS;
use super::workload::{any, timestamp};
use cql::api::Consistency;

/// Writes, reads or truncates the table.
pub async fn work(shared: &Shared) -> Result<(), String> {
    match any(12) {
        0 => truncate(shared).await,
        1..=6 => write(shared).await,
        _ => read(shared, any(KEYS), Consistency::Quorum).await,
    }
}

async fn write(shared: &Shared) -> Result<(), String> {
    let key = any(KEYS);
    let number = shared.truncations.borrow_mut().write(key, shared.seconds());
    let text = format!("INSERT INTO c.e (k, v) VALUES ({key}, {number}) USING TIMESTAMP {}", timestamp(number));
    let done = execute(&text, Consistency::Quorum, 1).await;
    shared.tell(|| format!("{text} -> {done:?}"));
    let mut oracle = shared.truncations.borrow_mut();
    match done {
        Ok(_) => oracle.written(number, shared.seconds()),
        Err(Failed::Refused(why)) => {
            oracle.not_written(number);
            return Err(why);
        }
        Err(failed) => return Err(failed.why()),
    }
    Ok(())
}

async fn truncate(shared: &Shared) -> Result<(), String> {
    let number = shared.truncations.borrow_mut().begin(shared.seconds());
    shared.tell(|| format!("TRUNCATE {number} begins"));
    let done = match shared.plan.canary {
        Canary::NoTruncate => Ok(Vec::new()),
        _ => execute("TRUNCATE c.e", Consistency::Quorum, 1).await,
    };
    shared.tell(|| format!("TRUNCATE {number} -> {done:?}"));
    let mut oracle = shared.truncations.borrow_mut();
    match done {
        Ok(_) => oracle.acknowledged(number, shared.seconds()),
        Err(why) => {
            let why = why.why();
            match why.contains("all nodes must be up") {
                true => oracle.refused(number),
                false => oracle.failed(number, shared.seconds()),
            }
            return Err(why);
        }
    }
    Ok(())
}

/// Reads one key and checks the result.
pub async fn read(shared: &Shared, key: i32, level: Consistency) -> Result<(), String> {
    let reading = shared.truncations.borrow_mut().read(shared.seconds());
    let rows: Vec<Row> =
        execute(&format!("SELECT v FROM c.e WHERE k = {key}"), level, 10).await.map_err(Failed::why)?;
    if let Err(why) = shared.truncations.borrow().check(reading, key, first_int(&rows, "v")) {
        shared.broken(why);
    }
    Ok(())
}
