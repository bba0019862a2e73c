//! The other nodes of the cluster, for drivers and operators.
//!
//! Only full members are listed, because a joining node does not coordinate requests yet. They are
//! shown with this node's schema version: a change is answered after all nodes that are up have
//! applied it.

use super::ring::{LOG2_TOKENS, tokens_of};
use super::rows::{Rows, text};
use super::{Knowledge, members};
use cluster::Node;
use cluster::observe::Member;
use cluster::topology::features;
use model::types::Value;
use std::rc::Rc;

/// The position of a node among all nodes that show tokens, and the number of these nodes.
pub(super) fn rank(known: &Knowledge, host: model::HostId) -> (u32, u32) {
    let shown: Vec<_> = known.metadata.topology.owners().map(|node| node.host).collect();
    match shown.iter().position(|other| *other == host) {
        Some(place) => (place as u32, shown.len() as u32),
        None => (0, 1),
    }
}

fn others(known: &Knowledge) -> impl Iterator<Item = &Rc<Node>> {
    let own = known.node.host_id;
    known.metadata.topology.owners().filter(move |node| node.host != own)
}

fn token_set(known: &Knowledge, node: &Node) -> Value {
    let (place, count) = rank(known, node.host);
    Value::Set(tokens_of(place, count).map(|token| text(token.to_string())).collect())
}

pub(super) fn peers(known: &Knowledge, rows: &mut Rows) {
    for node in others(known) {
        rows.add(&[
            ("peer", Value::Inet(node.broadcast_address)),
            ("data_center", text(&node.datacenter)),
            ("host_id", Value::Uuid(node.host.0)),
            ("preferred_ip", Value::Inet(node.broadcast_address)),
            ("rack", text(&node.rack)),
            ("release_version", text(&node.release_version)),
            ("rpc_address", Value::Inet(node.rpc_address)),
            ("schema_version", Value::Uuid(known.metadata.version)),
            ("supported_features", text(features::shown(&node.features))),
            ("tokens", token_set(known, node)),
        ]);
    }
}

pub(super) fn peers_v2(known: &Knowledge, rows: &mut Rows) {
    for node in others(known) {
        rows.add(&[
            ("peer", Value::Inet(node.broadcast_address)),
            ("peer_port", Value::Int(node.storage_port.into())),
            ("data_center", text(&node.datacenter)),
            ("host_id", Value::Uuid(node.host.0)),
            ("native_address", Value::Inet(node.rpc_address)),
            ("native_port", Value::Int(node.native_port.into())),
            ("preferred_ip", Value::Inet(node.broadcast_address)),
            ("preferred_port", Value::Int(node.storage_port.into())),
            ("rack", text(&node.rack)),
            ("release_version", text(&node.release_version)),
            ("schema_version", Value::Uuid(known.metadata.version)),
            ("tokens", token_set(known, node)),
        ]);
    }
}

pub(super) async fn cluster_status(known: &Knowledge, rows: &mut Rows) {
    for Member { seen, .. } in members(known).await {
        let (node, is_full) = (&seen.node, seen.rank.is_some());
        rows.add(&[
            ("peer", Value::Inet(node.broadcast_address)),
            ("dc", text(&node.datacenter)),
            ("host_id", Value::Uuid(node.host.0)),
            ("load", seen.load_bytes.map_or(Value::Null, |load| text(load.to_string()))),
            ("owns", Value::Float(seen.rank.map_or(0.0, |(_, count)| 1.0 / count as f32))),
            ("rack", text(&node.rack)),
            ("status", text(node.state.name().to_uppercase())),
            ("tokens", Value::Int(if is_full { 1 << LOG2_TOKENS } else { 0 })),
            ("up", Value::Boolean(seen.is_up)),
        ]);
    }
}
