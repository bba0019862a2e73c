//! `messina admin hot`: the hot partitions of all nodes.
//!
//! On a terminal, the view is updated each second until it is interrupted. Otherwise it is printed
//! once.

use crate::Failure;
use crate::api::Api;
use crate::columns;
use clap::{Arg, ArgAction, ArgMatches, Command};
use serde_json::Value;
use std::fmt::Write;
use std::io::IsTerminal;
use std::time::Duration;

/// The name of the command.
pub const NAME: &str = "hot";

/// How often the view is updated.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The partitions that are shown, unless another number is given.
const SHOWN: &str = "20";
/// The most characters of a key that are shown.
const LONGEST_KEY: usize = 40;

/// Moves the cursor to the upper left corner and clears the screen.
const CLEAR: &str = "\x1b[H\x1b[J";

/// A column: its heading and its content.
type Column = (&'static str, fn(&Value, &Value) -> String);

const COLUMNS: [Column; 10] = [
    ("Node", |node, _| word(&node["address"])),
    ("Shard", |_, hot| hot["shard"].to_string()),
    ("Table", |_, hot| printable(&format!("{}.{}", word(&hot["keyspace"]), word(&hot["table"])))),
    ("Key", |_, hot| key(hot)),
    ("Reads/s", |_, hot| rate(&hot["reads_per_second"])),
    ("Writes/s", |_, hot| rate(&hot["writes_per_second"])),
    ("KiB/s", |_, hot| format!("{:.0}", number(&hot["bytes_per_second"]) / 1024.0)),
    ("CPU", |_, hot| format!("{:.1}%", number(&hot["cpu_share"]) * 100.0)),
    ("Refused/s", |_, hot| rate(&hot["refused_per_second"])),
    ("Error/s", |_, hot| rate(&hot["error_per_second"])),
];

/// A partition with fewer operations per second is idle.
const IDLE_BELOW: f64 = 1.0;
/// The operations per second of a partition.
const RATES: [&str; 3] = ["reads_per_second", "writes_per_second", "refused_per_second"];

/// The command.
pub fn command() -> Command {
    Command::new(NAME)
        .about("Shows the hottest partitions of all nodes")
        .arg(
            Arg::new("once")
                .long("once")
                .action(ArgAction::SetTrue)
                .help("Prints once, as when the output is not a terminal"),
        )
        .arg(
            Arg::new("top")
                .long("top")
                .value_name("NUMBER")
                .default_value(SHOWN)
                .value_parser(clap::value_parser!(u16).range(1..))
                .help("How many partitions are shown"),
        )
}

/// Runs the command.
pub fn run(api: &Api, arguments: &ArgMatches, as_json: bool) -> Result<(), Failure> {
    let top = usize::from(arguments.get_one::<u16>("top").copied().unwrap_or(1));
    let fetch = || api.get("/cluster/hot_partitions");
    if as_json || arguments.get_flag("once") || !std::io::stdout().is_terminal() {
        crate::output::print_answer(&fetch()?, as_json, |answer| text(answer, top));
        return Ok(());
    }
    let terminal = console::Term::stdout();
    rt::block_on(async {
        loop {
            let shown = fitted(&text(&fetch()?, top), terminal.size());
            crate::output::print(format_args!("{CLEAR}{shown}"));
            rt::time::sleep(LOOK_EVERY).await;
        }
    })
}

/// The part of a text that fits a terminal of this height and width, below which the cursor stays.
fn fitted(text: &str, (height, width): (u16, u16)) -> String {
    let lines = text.lines().take(usize::from(height.saturating_sub(1)));
    lines.map(|line| line.chars().take(usize::from(width)).chain(['\n']).collect::<String>()).collect()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

fn word(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or(0.0)
}

fn rate(value: &Value) -> String {
    format!("{:.0}", number(value))
}

/// A text that cannot control a terminal.
fn printable(text: &str) -> String {
    text.chars().flat_map(|char| if char.is_control() { char.escape_default().collect() } else { vec![char] }).collect()
}

/// The key, shortened; its token if the key is not known.
fn key(hot: &Value) -> String {
    let Some(key) = hot["key"].as_str() else { return format!("token {}", hot["token"]) };
    let key = printable(key);
    match key.char_indices().nth(LONGEST_KEY) {
        Some((end, _)) => format!("{}...", &key[..end]),
        None => key,
    }
}

/// The hottest partitions of the answer of `/cluster/hot_partitions`, by their share of their
/// shard. Partitions without operations come last.
fn text(nodes: &Value, top: usize) -> String {
    let mut rows: Vec<(&Value, &Value)> = Vec::new();
    let mut out = String::new();
    for node in list(nodes) {
        rows.extend(list(&node["partitions"]).iter().map(|hot| (node, hot)));
        if let Some(why) = node["error"].as_str() {
            // Writing into a string cannot fail.
            let _ = writeln!(out, "{}: {}", word(&node["address"]), printable(why));
        }
    }
    // The only partition of a shard that is idle now has the whole share of it.
    let is_idle = |hot: &Value| RATES.iter().all(|name| number(&hot[name]) < IDLE_BELOW);
    rows.sort_by(|(_, a), (_, b)| {
        is_idle(a).cmp(&is_idle(b)).then(number(&b["cpu_share"]).total_cmp(&number(&a["cpu_share"])))
    });
    rows.truncate(top);
    if rows.is_empty() {
        out.push_str("no hot partitions\n");
        return out;
    }
    let mut lines = vec![COLUMNS.map(|(heading, _)| heading.to_owned())];
    lines.extend(rows.iter().map(|(node, hot)| COLUMNS.map(|(_, content)| content(node, hot))));
    columns::append(&mut out, &lines, "  ", |column| matches!(column, 1 | 4..));
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_hottest_partition_of_all_nodes_comes_first_and_silent_nodes_are_named() {
        let hot = |key: Value, share: f64| {
            json!({"keyspace": "ks", "table": "t", "key": key, "token": -5, "shard": 1, "reads_per_second": 1234.4,
                "writes_per_second": 0.0, "bytes_per_second": 2048.0, "cpu_share": share, "refused_per_second": 7.0,
                "error_per_second": 12.0})
        };
        let nodes = json!([
            {"address": "10.0.0.1", "error": null, "partitions": [hot(json!("'a'"), 0.125), hot(Value::Null, 0.01)]},
            {"address": "10.0.0.2", "error": null, "partitions": [hot(json!("'x\u{1b}[2J'"), 0.5)]},
            {"address": "10.0.0.3", "error": "the node is down", "partitions": []},
        ]);
        assert_eq!(
            text(&nodes, 20),
            "10.0.0.3: the node is down\n\
             Node      Shard  Table  Key           Reads/s  Writes/s  KiB/s    CPU  Refused/s  Error/s\n\
             10.0.0.2      1  ks.t   'x\\u{1b}[2J'     1234         0      2  50.0%          7       12\n\
             10.0.0.1      1  ks.t   'a'              1234         0      2  12.5%          7       12\n\
             10.0.0.1      1  ks.t   token -5         1234         0      2   1.0%          7       12\n"
        );
        assert_eq!(text(&nodes, 1).lines().count(), 3);
        assert_eq!(text(&json!([]), 1), "no hot partitions\n");
    }

    #[test]
    fn long_keys_are_shortened() {
        let hot = json!({"key": format!("'{}'", "ä".repeat(100))});
        assert_eq!(key(&hot), format!("'{}...", "ä".repeat(39)));
    }

    #[test]
    fn a_partition_without_operations_comes_last() {
        let hot = |key: &str, share: f64, rate: f64| json!({"keyspace": "ks", "table": "t", "key": key, "shard": 0, "reads_per_second": rate, "cpu_share": share});
        let nodes = json!([{"address": "a", "partitions": [hot("1", 1.0, 0.1), hot("2", 0.2, 500.0)]}]);
        let shown = text(&nodes, 20);
        let keys: Vec<_> = shown.lines().skip(1).filter_map(|line| line.split_whitespace().nth(3)).collect();
        assert_eq!(keys, ["2", "1"]);
    }

    #[test]
    fn the_live_view_fits_the_terminal() {
        assert_eq!(fitted("Node  Key\na     'ä1'\nb     2\n", (3, 8)), "Node  Ke\na     'ä\n");
        assert_eq!(fitted("a\n", (24, 80)), "a\n");
    }
}
