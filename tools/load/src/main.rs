//! A load generator for CQL databases that checks every row it reads, and a ledger of acknowledged
//! writes. `messina-load --help` describes the commands.
//!
//! It knows the protocol only, through a public driver, so that it measures and judges any server
//! alike. Reading order: `value` (what is written), `schedule` and `tally` (when, and what is
//! counted), `run` (the workers), `point`, `large`, `scan` (the workloads), `verdict`, `ledger`,
//! `durability` (the ledger).

mod durability;
mod large;
mod ledger;
mod meter;
mod options;
mod point;
mod run;
mod scan;
mod schedule;
mod session;
mod tally;
mod value;
mod verdict;

use clap::Parser;
use options::{Cli, Command, Settings};
use scylla::client::session::Session;
use serde_json::{Value, json};
use session::{connect, create_table, server_version};
use std::process::ExitCode;
use std::sync::Arc;
use tally::Report;

pub type Error = Box<dyn std::error::Error + Send + Sync>;

/// Members of a report whose being above 0 means wrong data.
const WRONG: [&str; 5] = ["corrupt", "missing", "extra", "lost", "phantom"];

async fn point(session: Session, settings: &Settings, reads: f64) -> Result<Report, Error> {
    if reads < 1.0 {
        create_table(&session, settings, &settings.table, point::COLUMNS).await?;
    }
    let points = Arc::new(point::Points::prepare(&session, settings, reads).await?);
    run::run(session, settings, 0, points).await
}

async fn scan(session: Session, settings: &Settings, parallel: bool) -> Result<Report, Error> {
    let scan = Arc::new(scan::Scan::prepare(&session, settings, parallel).await?);
    let mut report = run::run(session, settings, 0, scan.clone()).await?;
    scan.judge(&mut report);
    Ok(report)
}

async fn execute(command: &Command, settings: &Settings) -> Result<Report, Error> {
    let session = connect(settings).await?;
    let mut report = Report::new();
    report.insert("tool".into(), json!(concat!("messina-load ", env!("CARGO_PKG_VERSION"))));
    report.insert("case".into(), json!(command.name()));
    report.insert("note".into(), json!(settings.options.note));
    report.insert("server_version".into(), json!(server_version(&session).await?));
    report.insert("params".into(), settings.describe());
    let mut measured = match command {
        Command::Write(_) => point(session, settings, 0.0).await?,
        Command::Read(_) => point(session, settings, 1.0).await?,
        Command::Mixed(options) => point(session, settings, options.read_ratio).await?,
        Command::BigpartWrite(_) => {
            create_table(&session, settings, &settings.table, large::COLUMNS).await?;
            let fill = Arc::new(large::Fill::prepare(&session, settings).await?);
            run::run(session, settings, 0, fill).await?
        }
        Command::BigpartRead(_) => {
            let read = Arc::new(large::Read::prepare(&session, settings).await?);
            run::run(session, settings, 0, read).await?
        }
        Command::ScanSerial(_) => scan(session, settings, false).await?,
        Command::ScanParallel(_) => scan(session, settings, true).await?,
        Command::LedgerWrite(options) => {
            let writes = Arc::new(durability::Writes::prepare(&session, settings, options).await?);
            let mut measured = run::run(session, settings, options.until_error_streak, writes.clone()).await?;
            writes.describe(&mut measured);
            measured
        }
        Command::LedgerCheck(options) => {
            let check = Arc::new(durability::Check::prepare(&session, settings, options).await?);
            let mut measured = run::run(session, settings, options.until_error_streak, check.clone()).await?;
            check.judge(options.samples, &mut measured);
            measured
        }
    };
    report.append(&mut measured);
    Ok(report)
}

/// The exit status that a report calls for.
fn status(report: &Report) -> u8 {
    let positive = |name: &&str| report.get(*name).and_then(Value::as_u64).unwrap_or(0) > 0;
    if WRONG.iter().any(positive) || report.get("every_row_once") == Some(&json!(false)) {
        3
    } else if positive(&"unreadable") {
        4
    } else {
        0
    }
}

fn main() -> ExitCode {
    let command = Cli::parse().command;
    let mut settings = command.settings();
    let cpus = std::thread::available_parallelism().map_or(1, |cpus| cpus.get());
    let threads = *settings.options.threads.get_or_insert(cpus);
    let mut builder = match threads {
        0 | 1 => tokio::runtime::Builder::new_current_thread(),
        _ => tokio::runtime::Builder::new_multi_thread(),
    };
    let runtime = builder.worker_threads(threads.max(1)).enable_all().build().expect("a runtime starts");
    match runtime.block_on(execute(&command, &settings)) {
        Ok(report) => {
            println!("{}", serde_json::to_string_pretty(&report).expect("a report is valid JSON"));
            ExitCode::from(status(&report))
        }
        Err(error) => {
            eprintln!("messina-load: {error}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(report: Value) -> u8 {
        status(report.as_object().expect("an object"))
    }

    #[test]
    fn the_exit_status_says_what_is_wrong() {
        assert_eq!(of(json!({"errors": 7, "corrupt": 0, "missing": 0, "every_row_once": true})), 0);
        for name in WRONG {
            assert_eq!(of(json!({name: 1, "unreadable": 1})), 3);
        }
        assert_eq!(of(json!({"every_row_once": false})), 3);
        assert_eq!(of(json!({"lost": 0, "unreadable": 1})), 4);
    }
}
