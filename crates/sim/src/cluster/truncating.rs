//! The clients' work on the table that is truncated repeatedly.

use super::client::{Failed, Row, execute, first_int};
use super::shared::{PlantedBug, Shared};
use super::truncations::KEYS;
use super::workload::{any, timestamp};
use cql::api::Consistency;

/// Writes, reads or truncates the table.
pub async fn work(shared: &Shared) -> Result<(), Failed> {
    match any(12) {
        0 => truncate(shared).await,
        1..=6 => write(shared).await,
        _ => read(shared, any(KEYS), Consistency::Quorum).await,
    }
}

async fn write(shared: &Shared) -> Result<(), Failed> {
    let key = any(KEYS);
    let number = shared.truncations.borrow_mut().write(key, shared.seconds());
    let text = format!("INSERT INTO c.e (k, v) VALUES ({key}, {number}) USING TIMESTAMP {}", timestamp(number));
    let done = execute(&text, Consistency::Quorum, 1).await;
    shared.tell(|| format!("{text} -> {done:?}"));
    let mut oracle = shared.truncations.borrow_mut();
    match done {
        Ok(_) => oracle.written(number, shared.seconds()),
        Err(refused @ Failed::Refused(_)) => {
            oracle.not_written(number);
            return Err(refused);
        }
        Err(failed) => return Err(failed),
    }
    Ok(())
}

async fn truncate(shared: &Shared) -> Result<(), Failed> {
    let number = shared.truncations.borrow_mut().begin(shared.seconds());
    shared.tell(|| format!("TRUNCATE {number} begins"));
    let done = match shared.plan.planted_bug {
        PlantedBug::NoTruncate => Ok(Vec::new()),
        _ => execute("TRUNCATE c.e", Consistency::Quorum, 1).await,
    };
    shared.tell(|| format!("TRUNCATE {number} -> {done:?}"));
    let mut oracle = shared.truncations.borrow_mut();
    match done {
        Ok(_) => oracle.acknowledged(number, shared.seconds()),
        Err(failed) => {
            match &failed {
                Failed::Refused(why) | Failed::Unknown(why) if why.contains("all nodes must be up") => {
                    oracle.refused(number);
                }
                _ => oracle.failed(number, shared.seconds()),
            }
            return Err(failed);
        }
    }
    Ok(())
}

/// Reads one key and checks the result.
pub async fn read(shared: &Shared, key: i32, level: Consistency) -> Result<(), Failed> {
    let reading = shared.truncations.borrow_mut().read(shared.seconds());
    let rows: Vec<Row> = execute(&format!("SELECT v FROM c.e WHERE k = {key}"), level, 10).await?;
    if let Err(why) = shared.truncations.borrow().check(reading, key, first_int(&rows, "v")) {
        shared.broken(why);
    }
    Ok(())
}
