//! `messina admin resync`: sends nodes the writes that they missed and that hint replay will not
//! deliver.

use crate::Failure;
use crate::api::{Api, Method, quoted};
use crate::output::plain_text;
use clap::{Arg, ArgAction, ArgMatches, Command};
use serde_json::{Map, Value, json};

/// The name of the command.
pub const NAME: &str = "resync";

/// The command.
pub fn command() -> Command {
    let flag = |name: &'static str| Arg::new(name).long(name).action(ArgAction::SetTrue);
    Command::new(NAME)
        .about(
            "Sends a node the writes that it missed and that hint replay will not deliver: reads the affected tables at consistency ALL",
        )
        .args([
            Arg::new("node").required_unless_present("all").help("The node's address or host id"),
            flag("all")
                .conflicts_with_all(["node", "forget"])
                .help("All nodes that missed writes, one after the other"),
            flag("forget").conflicts_with("force").help("Removes the record of missed writes without reading: the node was repaired in another way"),
            flag("force")
                .help("Resyncs even if the node missed writes for longer than gc_grace_seconds: deleted rows may return. If no missed writes are recorded, reads all tables of the node"),
        ])
}

/// Runs the command.
pub fn run(api: &Api, arguments: &ArgMatches, as_json: bool) -> Result<(), Failure> {
    let forced = if arguments.get_flag("force") { "?force=true" } else { "" };
    let ask = |method, node: &str| api.send(method, &format!("/cluster/missed/{}{forced}", quoted(node)));
    let nodes = api.get("/cluster/nodes")?;
    if arguments.get_flag("all") {
        return all(&nodes, |node| ask(Method::Post, node), as_json);
    }
    let node = arguments.get_one::<String>("node").map(String::as_str).unwrap_or_default();
    let is_forgotten = arguments.get_flag("forget");
    let answer = ask(if is_forgotten { Method::Delete } else { Method::Post }, node)?;
    crate::output::print_answer(&answer, as_json, |answer| of_one(&nodes, node, answer, is_forgotten));
    Ok(())
}

/// The text for one node.
fn of_one(nodes: &Value, node: &str, answer: &Value, is_forgotten: bool) -> String {
    let tables: String = list(answer).iter().map(|table| format!("{}\n", plain_text(table))).collect();
    let is_noted = missing(nodes).iter().any(|one| one["address"] == node || one["host_id"] == node);
    match (tables.is_empty(), is_noted) {
        (true, false) if is_forgotten => format!("no missed writes are recorded for {node}\n"),
        (true, false) => {
            format!("no missed writes are recorded for {node}: nothing was read (`--force` reads all its tables)\n")
        }
        (true, true) if !is_forgotten => format!("no table had to be read for {node}\n"),
        _ => tables,
    }
}

/// Resyncs every node with missed writes. If one fails, the others are resynced nevertheless.
fn all(nodes: &Value, resync: impl Fn(&str) -> Result<Value, Failure>, as_json: bool) -> Result<(), Failure> {
    let (chosen, mut answers, mut failed) = (missing(nodes), Map::new(), Vec::new());
    if chosen.is_empty() && !as_json {
        say!("no missed writes are recorded for any node");
    }
    for node in &chosen {
        // Uses the host id, because two nodes may have swapped their addresses.
        let (host, address) = (plain_text(&node["host_id"]), plain_text(&node["address"]));
        match resync(&host) {
            Ok(answer) => {
                if !as_json {
                    let tables: Vec<String> = list(&answer).iter().map(plain_text).collect();
                    say!(
                        "{address}: {}",
                        if tables.is_empty() { "no table had to be read".into() } else { tables.join(", ") }
                    );
                }
                answers.insert(address, answer);
            }
            Err(Failure { why, .. }) => {
                complain!("{address}: {why}");
                answers.insert(address.clone(), json!({ "error": why }));
                failed.push(address);
            }
        }
    }
    crate::output::print_answer(&Value::Object(answers), as_json, |_| String::new());
    if failed.is_empty() {
        return Ok(());
    }
    Err(Failure::new(format!("{} of {} nodes still miss writes: {}", failed.len(), chosen.len(), failed.join(", "))))
}

/// The nodes with missed writes.
fn missing(nodes: &Value) -> Vec<&Value> {
    list(nodes).iter().filter(|node| node["missed_writes"].is_object()).collect()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    fn nodes() -> Value {
        let missed = json!({ "tables": ["ks.t"], "any_table": false, "why": "...", "since": 1 });
        json!([
            { "address": "a", "host_id": "1", "missed_writes": missed },
            { "address": "b", "host_id": "2", "missed_writes": null },
            { "address": "c", "host_id": "3", "missed_writes": missed },
        ])
    }

    #[test]
    fn all_nodes_with_a_note_are_asked_for_one_after_the_other() {
        let asked = RefCell::new(Vec::new());
        let answer = |node: &str| {
            asked.borrow_mut().push(node.to_owned());
            if node == "1" { Err(Failure::new("it is down")) } else { Ok(json!(["ks.t"])) }
        };
        let failure = all(&nodes(), answer, false).expect_err("one has failed");
        assert_eq!(*asked.borrow(), ["1", "3"]);
        assert_eq!(failure.why, "1 of 2 nodes still miss writes: a");
        assert!(all(&json!([]), |_| Ok(Value::Null), false).is_ok());
    }

    #[test]
    fn the_output_says_if_no_missed_writes_are_recorded() {
        let none = json!([]);
        assert_eq!(
            of_one(&nodes(), "b", &none, false),
            "no missed writes are recorded for b: nothing was read (`--force` reads all its tables)\n"
        );
        assert_eq!(of_one(&nodes(), "2", &Value::Null, true), "no missed writes are recorded for 2\n");
        assert_eq!(of_one(&nodes(), "3", &none, false), "no table had to be read for 3\n");
        assert_eq!(of_one(&nodes(), "a", &Value::Null, true), "");
        assert_eq!(of_one(&nodes(), "a", &json!(["ks.t", "ks.u"]), false), "ks.t\nks.u\n");
    }

    #[test]
    fn a_node_or_all_are_named() {
        let parsed = |line: &str| command().try_get_matches_from(line.split(' ')).is_ok();
        for line in ["resync a", "resync a --force", "resync a --forget", "resync --all", "resync --all --force"] {
            assert!(parsed(line), "{line}");
        }
        for line in ["resync", "resync a --all", "resync --all --forget", "resync a --force --forget"] {
            assert!(!parsed(line), "{line}");
        }
    }
}
