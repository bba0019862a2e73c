//! `messina admin compactions`, `compactionhistory`, `stop`, `cleanup`.
//!
//! On a terminal, `compactions` shows a progress bar for each running compaction until none is
//! left. Otherwise it prints the running compactions once.

use crate::Failure;
use crate::api::{Api, Method, query, quoted};
use crate::output::print_answer;
use clap::{Arg, ArgAction, ArgMatches, Command};
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::time::Duration;

/// How often progress bars are updated.
const LOOK_EVERY: Duration = Duration::from_millis(300);
/// How many updates without compactions end the display. One compaction may start shortly after
/// another.
const CALM_LOOKS: u32 = 3;

/// The commands in this file.
pub fn commands() -> Vec<Command> {
    let tables = || Arg::new("tables").num_args(0..).help("Tables of the keyspace; without them, all");
    vec![
        Command::new("compactions").about("Shows running compactions with their progress").arg(
            Arg::new("once")
                .long("once")
                .action(ArgAction::SetTrue)
                .help("Prints once, as when the output is not a terminal"),
        ),
        Command::new("compactionhistory").about("Shows the latest finished compactions"),
        Command::new("stop")
            .about("Stops running compactions; automatic ones start again later")
            .arg(Arg::new("type").required(true).ignore_case(true).value_parser(["COMPACTION", "CLEANUP"]))
            .arg(Arg::new("keyspace").help("The keyspace; without it, all"))
            .arg(tables()),
        Command::new("cleanup")
            .about("Drops data that the node's tablets no longer own")
            .arg(Arg::new("keyspace").help("The keyspace; without it, all"))
            .arg(tables()),
    ]
}

/// Whether a command is in this file.
pub fn is_command(name: &str) -> bool {
    commands().iter().any(|command| command.get_name() == name)
}

/// Runs one of these commands.
pub fn run(api: &Api, name: &str, arguments: &ArgMatches, as_json: bool) -> Result<(), Failure> {
    let text = |name: &str| arguments.get_one::<String>(name).map(String::as_str).unwrap_or_default();
    let tables = || {
        let names = arguments.get_many::<String>("tables").into_iter().flatten();
        names.map(String::as_str).collect::<Vec<_>>().join(",")
    };
    match name {
        "compactions" => {
            let watches = std::io::stdout().is_terminal() && !as_json && !arguments.get_flag("once");
            if watches { rt::block_on(watch(api)) } else { show(api, as_json) }
        }
        "compactionhistory" => {
            let done = api.get("/compaction_manager/compaction_history")?;
            print_answer(&done, as_json, |done| list(done).iter().map(|one| done_line(one) + "\n").collect());
            Ok(())
        }
        "stop" => {
            let kind = text("type").to_uppercase();
            let path = match text("keyspace") {
                "" => format!("/compaction_manager/stop_compaction{}", query(&[("type", &kind)])),
                keyspace => format!(
                    "/compaction_manager/stop_keyspace_compaction/{}{}",
                    quoted(keyspace),
                    query(&[("type", &kind), ("tables", &tables())])
                ),
            };
            print_answer(&api.send(Method::Post, &path)?, as_json, |_| String::new());
            Ok(())
        }
        _ => {
            let path = match text("keyspace") {
                "" => "/storage_service/cleanup_all".to_owned(),
                keyspace => {
                    format!("/storage_service/keyspace_cleanup/{}{}", quoted(keyspace), query(&[("cf", &tables())]))
                }
            };
            print_answer(&api.send(Method::Post, &path)?, as_json, |_| String::new());
            Ok(())
        }
    }
}

fn fetch(api: &Api) -> Result<(u64, Value), Failure> {
    let pending = api.get("/compaction_manager/metrics/pending_tasks")?.as_u64().unwrap_or(0);
    Ok((pending, api.get("/compaction_manager/compactions")?))
}

fn show(api: &Api, as_json: bool) -> Result<(), Failure> {
    let (pending, running) = fetch(api)?;
    print_answer(&json!({ "pending": pending, "running": running }), as_json, |_| {
        let lines = list(&running).iter().map(|one| running_line(one) + "\n");
        [format!("pending: {pending}\n")].into_iter().chain(lines).collect()
    });
    Ok(())
}

/// Shows progress bars until no compaction runs or waits.
async fn watch(api: &Api) -> Result<(), Failure> {
    let screen = MultiProgress::new();
    let style = ProgressStyle::with_template("{msg:40!} {bar:30} {percent:>3}% {bytes:>10} of {total_bytes:10} {eta}");
    let style = style.map_err(|error| Failure::new(format!("cannot draw a progress bar: {error}")))?;
    let mut bars: BTreeMap<String, ProgressBar> = BTreeMap::new();
    let (mut calm, mut seen) = (0, 0);
    while calm < CALM_LOOKS {
        let (pending, running) = fetch(api)?;
        let running = list(&running);
        calm = if running.is_empty() && pending == 0 { calm + 1 } else { 0 };
        bars.retain(|id, bar| {
            let runs = running.iter().any(|one| one["id"] == **id);
            if !runs {
                bar.finish_and_clear();
            }
            runs
        });
        for one in running {
            let id = one["id"].as_str().unwrap_or_default().to_owned();
            let bar = bars.entry(id).or_insert_with(|| {
                seen += 1;
                let bar = screen.add(ProgressBar::new(0).with_style(style.clone()));
                bar.set_message(what(one));
                bar
            });
            bar.set_length(one["total"].as_u64().unwrap_or(0));
            bar.set_position(one["completed"].as_u64().unwrap_or(0));
        }
        rt::time::sleep(LOOK_EVERY).await;
    }
    say!("{}", if seen == 0 { "no compaction runs or waits" } else { "done" });
    Ok(())
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

fn word(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// The kind, table, shard and tablet of a compaction.
fn what(one: &Value) -> String {
    format!(
        "{} {}.{} shard {} tablet {}",
        word(&one["task_type"]),
        word(&one["ks"]),
        word(&one["cf"]),
        one["shard"],
        one["tablet"]
    )
}

fn running_line(one: &Value) -> String {
    let (completed, total) = (one["completed"].as_u64().unwrap_or(0), one["total"].as_u64().unwrap_or(0));
    let percent = completed.saturating_mul(100).checked_div(total).unwrap_or(0);
    format!("{}: {completed} of {total} bytes ({percent}%), id {}", what(one), word(&one["id"]))
}

fn done_line(one: &Value) -> String {
    let (started, ended) = (one["started_at"].as_i64().unwrap_or(0), one["compacted_at"].as_i64().unwrap_or(0));
    format!(
        "{} {} {}.{} shard {}: {} sstables, {} bytes -> {} sstables, {} bytes in {} ms (ended {ended} ms since 1970)",
        word(&one["id"]),
        word(&one["compaction_type"]),
        word(&one["ks"]),
        word(&one["cf"]),
        one["shard_id"],
        one["sstables_in"],
        one["bytes_in"],
        one["sstables_out"],
        one["bytes_out"],
        ended.saturating_sub(started),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_say_how_far_a_compaction_is() {
        let one = json!({"id": "i", "ks": "k", "cf": "t", "task_type": "COMPACTION", "completed": 50, "total": 200,
            "shard": 1, "tablet": 3});
        assert_eq!(running_line(&one), "COMPACTION k.t shard 1 tablet 3: 50 of 200 bytes (25%), id i");
        assert!(running_line(&json!({})).contains("0 of 0 bytes (0%)"));
        let done = json!({"id": "i", "ks": "k", "cf": "t", "compaction_type": "CLEANUP", "shard_id": 0, "sstables_in": 4,
            "sstables_out": 1, "bytes_in": 10, "bytes_out": 7, "started_at": 100, "compacted_at": 350});
        let line = done_line(&done);
        assert!(
            line.starts_with("i CLEANUP k.t shard 0: 4 sstables, 10 bytes -> 1 sstables, 7 bytes in 250 ms"),
            "{line}"
        );
    }
}
