//! `system.topology`, the nodes of the cluster with their states, and `system.topology_requests`,
//! the requests that change it: open ones and the last ended ones. ScyllaDB's names and columns.

use super::Knowledge;
use super::rows::{Rows, text};
use cluster::topology::requests::{RequestKind, TopologyRequest};
use model::types::Value;

pub(super) fn topology(known: &Knowledge, rows: &mut Rows) {
    let (topology, requests) = (&known.metadata.topology, &known.metadata.requests);
    let enabled = topology.enabled_features().iter().map(text).collect();
    let is_moving = known.metadata.transitions().next().is_some();
    let cluster = [
        ("enabled_features", Value::Set(enabled)),
        ("fence_version", Value::Bigint(topology.fence() as i64)),
        ("key", text("topology")),
        ("tablet_balancing_enabled", Value::Boolean(topology.is_balancing())),
        ("transition_state", if is_moving { text("tablet_migration") } else { Value::Null }),
        ("version", Value::Bigint(known.metadata.number as i64)),
    ];
    for node in topology.nodes() {
        let mut row = cluster.to_vec();
        row.extend([
            ("datacenter", text(&node.datacenter)),
            ("host_id", Value::Uuid(node.host.0)),
            ("node_state", text(node.state.name())),
            ("rack", text(&node.rack)),
            ("release_version", text(&node.release_version)),
            ("shard_count", Value::Int(node.shards.into())),
            ("supported_features", Value::Set(node.features.iter().map(text).collect())),
        ]);
        let is_open = |request: &&TopologyRequest| request.host == Some(node.host) && request.ended.is_none();
        if let Some(request) = requests.iter().find(is_open) {
            row.extend([("request_id", Value::Uuid(request.id)), ("topology_request", text(&request.kind))]);
        }
        rows.add(&row);
    }
}

pub(super) fn topology_requests(known: &Knowledge, rows: &mut Rows) {
    for request in known.metadata.requests.iter() {
        let mut row = vec![
            ("done", Value::Boolean(request.ended.is_some())),
            ("id", Value::Uuid(request.id)),
            ("request_type", text(&request.kind)),
        ];
        let initiating = request.host.filter(|_| request.kind().is_some_and(RequestKind::is_of_the_node));
        row.extend(initiating.map(|host| ("initiating_host", Value::Uuid(host.0))));
        row.extend(request.host.map(|host| ("host_id", Value::Uuid(host.0))));
        row.extend(request.keyspace.as_ref().map(|keyspace| ("new_keyspace_rf_change_ks_name", text(keyspace))));
        row.extend(request.began_at().map(|micros| ("start_time", Value::Timestamp(micros / 1_000))));
        if let Some(end) = &request.ended {
            row.extend(end.at().map(|micros| ("end_time", Value::Timestamp(micros / 1_000))));
            row.extend(end.error.as_ref().map(|error| ("error", text(error))));
        }
        rows.add(&row);
    }
}
