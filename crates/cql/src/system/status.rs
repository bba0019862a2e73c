//! Properties of the process: versions, uptime, protocols.

use super::Knowledge;
use super::rows::{Rows, text, texts};
use model::types::Value;

/// The version of this build.
const VERSION: &str = env!("CARGO_PKG_VERSION");

pub(super) fn versions(known: &Knowledge, rows: &mut Rows) {
    rows.add(&[
        ("key", text("local")),
        ("build_id", text(format!("messina-{VERSION}"))),
        ("build_mode", text(if cfg!(debug_assertions) { "debug" } else { "release" })),
        ("compatible_version", text(&known.node.release_version)),
        ("version", text(VERSION)),
    ]);
}

pub(super) fn runtime_info(known: &Knowledge, rows: &mut Rows) {
    let uptime = known.node.uptime_micros() / 1_000_000;
    let items = [
        ("generic", "messina_version", VERSION.to_owned()),
        ("generic", "native_transport_port", known.node.native_port.to_string()),
        ("generic", "shards", known.node.shards.to_string()),
        ("generic", "uptime", format!("{uptime} seconds")),
        ("schema", "version", known.metadata.version.to_string()),
        ("schema", "number", known.metadata.number.to_string()),
    ];
    for (group, item, value) in items {
        rows.add(&[("group", text(group)), ("item", text(item)), ("value", text(value))]);
    }
}

pub(super) fn protocol_servers(known: &Knowledge, rows: &mut Rows) {
    let node = &known.node;
    let addresses = [node.native_port, node.shard_aware_port].map(|port| format!("{}:{port}", node.rpc_address));
    rows.add(&[
        ("name", text("native")),
        ("is_running", Value::Boolean(true)),
        ("listen_addresses", texts(addresses)),
        ("protocol", text("cql")),
        ("protocol_version", text(super::CQL_VERSION)),
    ]);
}

pub(super) fn scylla_local(known: &Knowledge, rows: &mut Rows) {
    for (key, value) in [("host_id", known.node.host_id.to_string()), ("messina_version", VERSION.to_owned())] {
        rows.add(&[("key", text(key)), ("value", text(value))]);
    }
}

pub(super) fn one_row(_: &Knowledge, rows: &mut Rows) {
    rows.add(&[("system$dummy", text(""))]);
}
