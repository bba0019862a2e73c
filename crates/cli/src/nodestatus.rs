//! The output of `messina admin status`: the nodes by datacenter, like `nodetool status`.

use crate::api::Api;
use crate::output::plain_text;
use crate::{Failure, columns};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::net::IpAddr;

/// A column: its heading and its content.
type Column = (&'static str, fn(&Value) -> String);

const COLUMNS: [Column; 8] = [
    ("--", short),
    ("Address", |node| plain_text(&node["address"])),
    ("Load", |node| node["load"].as_u64().map_or("?".to_owned(), size)),
    ("Tablets", |node| node["tablets"].to_string()),
    ("Host ID", |node| plain_text(&node["host_id"])),
    ("Rack", |node| plain_text(&node["rack"])),
    ("Shards", |node| node["shards"].to_string()),
    ("Notes", |node| notes(node).join("; ")),
];

/// The difference of clocks that is reported, in microseconds.
const SKEW: i64 = 500_000;

/// The members, and the excluded nodes whose replicas are still to be built on others.
pub fn nodes(api: &Api) -> Result<Value, Failure> {
    let mut nodes = api.get("/cluster/nodes")?;
    let mut excluded = api.get("/cluster/excluded")?;
    if let (Some(nodes), Some(excluded)) = (nodes.as_array_mut(), excluded.as_array_mut()) {
        nodes.append(excluded);
    }
    Ok(nodes)
}

/// Two letters: up, down or excluded, and normal, joining or leaving.
fn short(node: &Value) -> String {
    let state = match node["state"].as_str() {
        Some("normal") => 'N',
        Some("bootstrapping") => 'J',
        Some("decommissioning") => 'L',
        Some("removed") => return "XL".to_owned(),
        _ => '?',
    };
    format!("{}{state}", if node["up"] == true { 'U' } else { 'D' })
}

/// Bytes in the largest unit that fits.
pub fn size(bytes: u64) -> String {
    let units = ["bytes", "KiB", "MiB", "GiB", "TiB"];
    let (mut value, mut unit) = (bytes as f64, 0);
    while value >= 1024.0 && unit + 1 < units.len() {
        (value, unit) = (value / 1024.0, unit + 1);
    }
    if unit == 0 { format!("{bytes} bytes") } else { format!("{value:.2} {}", units[unit]) }
}

/// Remarks about what an operator should check.
fn notes(node: &Value) -> Vec<String> {
    let mut notes = Vec::new();
    if node["up"] == true && node["native_transport"] == false {
        notes.push("serves no clients".to_owned());
    }
    if node["up"] == true && node["refuses_writes"] == true {
        notes.push("refuses writes: its commitlog has no disk space".to_owned());
    }
    if node["up"] == true && node["unreadable_sstables"] == true {
        notes.push("has sstables that cannot be read: its log names them".to_owned());
    }
    let ahead = node["clock_ahead_us"].as_i64().unwrap_or(0);
    if ahead.abs() >= SKEW {
        let which = if ahead > 0 { "ahead of" } else { "behind" };
        notes.push(format!("its clock is {:.1} s {which} this node's", ahead.unsigned_abs() as f64 / 1e6));
    }
    let missed = &node["missed_writes"];
    if missed.is_object() {
        let tables = match missed["tables"].as_array().map_or(0, Vec::len) {
            _ if missed["any_table"] == true => "of an unknown number of tables".to_owned(),
            1 => "of 1 table".to_owned(),
            count => format!("of {count} tables"),
        };
        let (why, host) = (plain_text(&missed["why"]), plain_text(&node["host_id"]));
        notes.push(format!(
            "misses writes {tables} that hint replay will not deliver, for {why}: run `messina admin resync {host}`"
        ));
    }
    if node["state"] == "removed" {
        notes.push("other nodes build its replicas".to_owned());
        notes.extend(node["waits_for"].as_str().map(str::to_owned));
    }
    if let Some(why) = node["stuck_change"].as_str() {
        notes.push(format!("cannot apply a change of the metadata, and retries: {why}"));
    }
    notes
}

/// The text for nodes ([`nodes`]).
pub fn text(nodes: &Value) -> String {
    let mut datacenters: BTreeMap<String, Vec<&Value>> = BTreeMap::new();
    for node in nodes.as_array().into_iter().flatten() {
        datacenters.entry(plain_text(&node["datacenter"])).or_default().push(node);
    }
    let mut out = String::new();
    for (name, mut nodes) in datacenters {
        nodes.sort_by_key(|node| plain_text(&node["address"]).parse::<IpAddr>().ok());
        let title = format!("Datacenter: {name}");
        let _ = writeln!(out, "{title}\n{}", "=".repeat(title.chars().count()));
        out.push_str("Status=Up/Down/eXcluded\n|/ State=Normal/Leaving/Joining\n");
        let mut lines = vec![COLUMNS.map(|(heading, _)| heading.to_owned())];
        lines.extend(nodes.iter().map(|node| COLUMNS.map(|(_, cell)| cell(node))));
        columns::append(&mut out, &lines, " ", |_| false);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn nodes_are_shown_by_datacenter() {
        let node = |address: &str, more: Value| {
            let mut node = json!({"address": address, "host_id": "id", "datacenter": "dc1", "rack": "r1", "up": true, "state": "normal",
                "native_transport": true, "load": 1536, "tablets": 16, "shards": 2, "clock_ahead_us": null});
            let fields = node.as_object_mut().expect("an object");
            fields.extend(more.as_object().expect("an object").clone());
            node
        };
        let nodes = json!([
            node(
                "127.0.0.2",
                json!({"up": false, "native_transport": false, "load": null, "stuck_change": "shard 1: /d: no room"})
            ),
            node(
                "127.0.0.1",
                json!({"missed_writes": {"tables": ["ks.a", "ks.b"], "any_table": false, "why": "hints were damaged"}})
            ),
            json!({"address": "127.0.0.4", "host_id": "id", "datacenter": "dc1", "rack": "r1", "shards": 2, "tablets": 3,
                "state": "removed", "waits_for": "add a node"}),
            node(
                "10.0.0.3",
                json!({"datacenter": "dc2", "state": "bootstrapping", "native_transport": false, "refuses_writes": true,
                    "unreadable_sstables": true, "clock_ahead_us": -3_600_000_000i64})
            ),
        ]);
        let expected = "Datacenter: dc1\n\
                        ===============\n\
                        Status=Up/Down/eXcluded\n\
                        |/ State=Normal/Leaving/Joining\n\
                        -- Address   Load     Tablets Host ID Rack Shards Notes\n\
                        UN 127.0.0.1 1.50 KiB 16      id      r1   2      misses writes of 2 tables that hint replay will not deliver, for hints were damaged: run `messina admin resync id`\n\
                        DN 127.0.0.2 ?        16      id      r1   2      cannot apply a change of the metadata, and retries: shard 1: /d: no room\n\
                        XL 127.0.0.4 ?        3       id      r1   2      other nodes build its replicas; add a node\n\
                        Datacenter: dc2\n\
                        ===============\n\
                        Status=Up/Down/eXcluded\n\
                        |/ State=Normal/Leaving/Joining\n\
                        -- Address  Load     Tablets Host ID Rack Shards Notes\n\
                        UJ 10.0.0.3 1.50 KiB 16      id      r1   2      serves no clients; refuses writes: its commitlog has no disk space; has sstables \
                        that cannot be read: its log names them; its clock is 3600.0 s behind this node's\n";
        assert_eq!(text(&nodes), expected);
        assert_eq!((size(5), size(3 << 30)), ("5 bytes".to_owned(), "3.00 GiB".to_owned()));
    }
}
