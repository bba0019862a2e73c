//! `messina admin status`, `info`, `ring`, `tablets`, `describering`, `describecluster`,
//! `getendpoints`, `gossipinfo`, `version`: commands about the cluster and the node in it.

use crate::api::{self, Api, query, quoted};
use crate::output::plain_text;
use crate::{Failure, moves, nodestatus};
use clap::{Arg, ArgAction, ArgMatches, Command};
use serde_json::{Value, json};
use std::fmt::Write;

/// The commands in this file.
pub fn commands() -> Vec<Command> {
    let keyspace = || Arg::new("keyspace").required(true).help("The keyspace");
    let table = || Arg::new("table").help("The table");
    vec![
        Command::new("status").about("Shows the nodes of the cluster: up or down, state, load, tablets, clocks"),
        Command::new("info").about("Shows statistics of the node: load, uptime, caches"),
        Command::new("ring")
            .about("Shows the tokens of the nodes, or the tablets of a table with the nodes of their first replicas")
            .args([Arg::new("keyspace").requires("table").help("The table's keyspace"), table()]),
        Command::new("tablets")
            .about("Shows the tablets of a table, with the nodes and shards of their replicas; or those that move")
            .args([
                keyspace().required(false).required_unless_present("watch").requires("table"),
                table(),
                Arg::new("watch")
                    .long("watch")
                    .action(ArgAction::SetTrue)
                    .conflicts_with("keyspace")
                    .help("Shows the tablets of all tables that are moving, until no tablet is moving"),
            ]),
        Command::new("describering")
            .about("Shows the owners of token ranges, of a table or of the ring that clients see")
            .args([keyspace(), table()]),
        Command::new("describecluster").about("Shows the cluster's name, snitch, partitioner and schema versions"),
        Command::new("getendpoints").about("Shows the nodes that have replicas of a key").args([
            keyspace(),
            table().required(true),
            Arg::new("key").required(true).help("The partition key"),
        ]),
        Command::new("gossipinfo").about("Shows the application states that nodes report"),
        Command::new("version").about("Shows the version that is reported to clients"),
    ]
}

/// Whether a command is in this file.
pub fn is_command(name: &str) -> bool {
    commands().iter().any(|command| command.get_name() == name)
}

/// Runs one of these commands.
pub fn run(api: &Api, name: &str, arguments: &ArgMatches, as_json: bool) -> Result<(), Failure> {
    let text = |name: &str| api::text(arguments, name);
    if name == "tablets" && arguments.get_flag("watch") {
        return moves::watch(api, as_json);
    }
    let (answer, shown): (Value, fn(&Value) -> String) = match name {
        "status" => (nodestatus::nodes(api)?, nodestatus::text),
        "info" => (info(api)?, fields),
        "tablets" => {
            let path = format!("/cluster/tablets/{}", quoted(text("keyspace")));
            (api.get(&format!("{path}{}", query(&[("cf", text("table"))])))?, tablets)
        }
        "ring" => {
            let query = query(&[("keyspace", text("keyspace")), ("cf", text("table"))]);
            (api.get(&format!("/storage_service/tokens_endpoint{query}"))?, entries)
        }
        "describering" => {
            let path = format!("/storage_service/describe_ring/{}", quoted(text("keyspace")));
            (api.get(&format!("{path}{}", query(&[("table", text("table"))])))?, ranges)
        }
        "describecluster" => (cluster(api)?, fields),
        "getendpoints" => {
            let path = format!("/storage_service/natural_endpoints/{}", quoted(text("keyspace")));
            (api.get(&format!("{path}{}", query(&[("cf", text("table")), ("key", text("key"))])))?, lines)
        }
        "gossipinfo" => (api.get("/failure_detector/endpoints")?, gossip),
        _ => (api.get("/storage_service/release_version")?, plain),
    };
    crate::output::print_answer(&answer, as_json, shown);
    if name == "status" && !as_json && api.get("/storage_service/tablets/balancing")? == Value::Bool(false) {
        say!("Tablet balancing is off: nodes that join get no tablets (`messina admin balancing on`)");
    }
    Ok(())
}

fn tablets(values: &Value) -> String {
    let mut out = String::new();
    for one in list(values) {
        let replica = |one: &Value| format!("{}/{}", plain_text(&one["address"]), one["shard"]);
        let replicas: Vec<String> = list(&one["replicas"]).iter().map(replica).collect();
        let (first, last) = (plain_text(&one["first_token"]), plain_text(&one["last_token"]));
        let _ = writeln!(out, "({first}, {last}]  {}", replicas.join(", "));
    }
    out
}

fn info(api: &Api) -> Result<Value, Failure> {
    let cache = |metric: &str| api.get(&format!("/cache_service/metrics/row/{metric}"));
    Ok(json!({
        "ID": api.get("/storage_service/hostid/local")?,
        "Cluster": api.get("/storage_service/cluster_name")?,
        "Mode": api.get("/storage_service/operation_mode")?,
        "Version": api.get("/storage_service/scylla_release_version")?,
        "Native Transport active": api.get("/storage_service/native_transport")?,
        "Load (bytes)": api.get("/storage_service/load")?,
        "Generation No": api.get("/storage_service/generation_number")?,
        "Uptime (seconds)": api.get("/system/uptime_ms")?.as_i64().unwrap_or_default() / 1000,
        "Data Center": api.get("/snitch/datacenter")?,
        "Rack": api.get("/snitch/rack")?,
        "Row cache entries": cache("entries")?,
        "Row cache size (bytes)": cache("size")?,
        "Row cache capacity (bytes)": cache("capacity")?,
        "Row cache hit rate": cache("hit_rate")?,
        "Tokens": api.get("/storage_service/tokens")?.as_array().map_or(0, Vec::len),
    }))
}

fn cluster(api: &Api) -> Result<Value, Failure> {
    let versions = api.get("/storage_proxy/schema_versions")?;
    let versions: Vec<String> =
        list(&versions).iter().map(|one| format!("{} on {}", plain_text(&one["key"]), joined(&one["value"]))).collect();
    Ok(json!({
        "Name": api.get("/storage_service/cluster_name")?,
        "Snitch": api.get("/snitch/name")?,
        "Partitioner": api.get("/storage_service/partitioner_name")?,
        "Schema versions": versions.join("; "),
    }))
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

fn joined(values: &Value) -> String {
    list(values).iter().map(plain_text).collect::<Vec<_>>().join(", ")
}

fn plain(value: &Value) -> String {
    plain_text(value) + "\n"
}

fn lines(values: &Value) -> String {
    list(values).iter().map(plain).collect()
}

fn fields(value: &Value) -> String {
    let mut out = String::new();
    for (name, value) in value.as_object().into_iter().flatten() {
        let _ = writeln!(out, "{name:<26}: {}", plain_text(value));
    }
    out
}

fn entries(values: &Value) -> String {
    let mut out = String::new();
    for one in list(values) {
        let _ = writeln!(out, "{:>20}  {}", plain_text(&one["key"]), plain_text(&one["value"]));
    }
    out
}

fn ranges(values: &Value) -> String {
    let mut out = String::new();
    for one in list(values) {
        let (start, end) = (plain_text(&one["start_token"]), plain_text(&one["end_token"]));
        let _ = writeln!(out, "({start}, {end}]  {}", joined(&one["endpoints"]));
    }
    out
}

/// Application states, which the interface identifies by number.
const STATES: [(u64, &str); 10] = [
    (0, "STATUS"),
    (1, "LOAD"),
    (2, "SCHEMA"),
    (3, "DC"),
    (4, "RACK"),
    (5, "RELEASE_VERSION"),
    (8, "RPC_ADDRESS"),
    (12, "HOST_ID"),
    (19, "SHARD_COUNT"),
    (21, "SUPPORTED_FEATURES"),
];

fn gossip(values: &Value) -> String {
    let mut out = String::new();
    for node in list(values) {
        let _ = writeln!(out, "/{}\n  generation:{}", plain_text(&node["addrs"]), node["generation"]);
        for one in list(&node["application_state"]) {
            let name = STATES.iter().find(|(number, _)| Some(*number) == one["application_state"].as_u64());
            let name = name.map_or_else(|| one["application_state"].to_string(), |(_, name)| (*name).to_owned());
            let _ = writeln!(out, "  {name}:{}", plain_text(&one["value"]));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_shown_in_lines() {
        assert_eq!(entries(&json!([{"key": "-5", "value": "127.0.0.1"}])), "                  -5  127.0.0.1\n");
        let ring = json!([{"start_token": "1", "end_token": "2", "endpoints": ["a", "b"]}]);
        assert_eq!(ranges(&ring), "(1, 2]  a, b\n");
        assert_eq!(lines(&json!(["a", "b"])), "a\nb\n");
        let replicas = json!([{"address": "a", "shard": 1}, {"address": "b", "shard": 0}]);
        let shown = tablets(&json!([{"first_token": "1", "last_token": "2", "replicas": replicas}]));
        assert_eq!(shown, "(1, 2]  a/1, b/0\n");
        let node = json!([{"addrs": "a", "generation": 7, "application_state": [
            {"application_state": 3, "value": "dc"}, {"application_state": 99, "value": "?"}]}]);
        assert_eq!(gossip(&node), "/a\n  generation:7\n  DC:dc\n  99:?\n");
    }
}
