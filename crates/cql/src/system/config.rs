//! `system.config`: what the node was told, by the names of the configuration file.

use super::Knowledge;
use super::rows::{Rows, text};

pub(super) fn fill(known: &Knowledge, rows: &mut Rows) {
    let node = &known.node;
    let entries = [
        ("broadcast_address", "string", node.broadcast_address.to_string()),
        ("cluster_name", "string", node.cluster_name.clone()),
        ("listen_address", "string", node.listen_address.to_string()),
        ("native_shard_aware_transport_port", "integer", node.shard_aware_port.to_string()),
        ("native_transport_port", "integer", node.native_port.to_string()),
        ("partitioner", "string", super::PARTITIONER.to_owned()),
        ("rpc_address", "string", node.rpc_address.to_string()),
        ("storage_port", "integer", node.storage_port.to_string()),
    ];
    for (name, kind, value) in entries {
        rows.add(&[("name", text(name)), ("source", text("server")), ("type", text(kind)), ("value", text(value))]);
    }
}
