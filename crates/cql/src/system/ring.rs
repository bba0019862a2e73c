//! Ownership of data as tables: the local node, its tokens, the tablets.
//!
//! Clients that split work by the ring get evenly spaced tokens. Ownership is really defined by the
//! tablets.

use super::rows::{Rows, text};
use super::{CQL_VERSION, Knowledge, PARTITIONER};
use cluster::tablets::TabletReplica;
use cluster::topology::features;
use model::types::Value;

/// The number of tokens that a node shows, as a power of two.
pub(super) const LOG2_TOKENS: u32 = 6;

/// The tokens that the node at a position among `count` nodes shows: the ends of ranges of equal
/// size. The tokens of all nodes together are evenly spaced.
pub fn tokens_of(place: u32, count: u32) -> impl Iterator<Item = i64> {
    let width = 1u64 << (64 - LOG2_TOKENS);
    let back = width / u64::from(count) * u64::from(place);
    (1..=1u64 << LOG2_TOKENS).map(move |n| (n.wrapping_mul(width).wrapping_sub(1 + back) ^ (1 << 63)) as i64)
}

pub(super) fn local(known: &Knowledge, rows: &mut Rows) {
    let (place, count) = super::peers::rank(known, known.node.host_id);
    let node = &known.node;
    rows.add(&[
        ("key", text("local")),
        ("bootstrapped", text("COMPLETED")),
        ("broadcast_address", Value::Inet(node.broadcast_address)),
        ("broadcast_port", Value::Int(node.storage_port.into())),
        ("cluster_name", text(&node.cluster_name)),
        ("cql_version", text(CQL_VERSION)),
        ("data_center", text(&node.datacenter)),
        ("gossip_generation", Value::Int((node.started_micros / 1_000_000) as i32)),
        ("host_id", Value::Uuid(node.host_id.0)),
        ("listen_address", Value::Inet(node.listen_address)),
        ("listen_port", Value::Int(node.storage_port.into())),
        ("native_protocol_version", text("5")),
        ("partitioner", text(PARTITIONER)),
        ("rack", text(&node.rack)),
        ("release_version", text(&node.release_version)),
        ("rpc_address", Value::Inet(node.rpc_address)),
        ("rpc_port", Value::Int(node.native_port.into())),
        ("schema_version", Value::Uuid(known.metadata.version)),
        ("supported_features", text(features::shown(&features::supported()))),
        ("tokens", Value::Set(tokens_of(place, count).map(|token| text(token.to_string())).collect())),
    ]);
}

pub(super) fn tablets(known: &Knowledge, rows: &mut Rows) {
    for table in known.metadata.tables().filter(|table| !table.tablets.replicas(0).is_empty()) {
        let map = &table.tablets;
        for tablet in 0..map.count() {
            let replica = |replica: &TabletReplica| {
                Value::Tuple(vec![Value::Uuid(replica.host.0), Value::Int(replica.shard.into())])
            };
            let mut row = vec![
                ("table_id", Value::Uuid(table.schema.id.0)),
                ("last_token", Value::Bigint(map.last_token(tablet).0)),
                ("keyspace_name", text(&table.schema.keyspace)),
                ("replicas", Value::List(map.replicas(tablet).iter().map(replica).collect())),
                ("resize_seq_number", Value::Bigint(0)),
                ("resize_type", text("none")),
                ("table_name", text(&table.schema.name)),
                ("tablet_count", Value::Int(map.count() as i32)),
            ];
            if let Some(moving) = map.transition(tablet) {
                row.push(("new_replicas", Value::List(moving.new_replicas.iter().map(replica).collect())));
                row.push(("stage", text(moving.stage.name())));
                row.push(("transition", text(moving.kind.name())));
                row.extend(moving.session.map(|session| ("session", Value::Uuid(session))));
            }
            rows.add(&row);
        }
    }
}

pub(super) fn token_ring(known: &Knowledge, rows: &mut Rows) {
    let topology = &known.metadata.topology;
    for table in known.metadata.tables().filter(|table| !table.tablets.replicas(0).is_empty()) {
        let map = &table.tablets;
        for tablet in 0..map.count() {
            for node in map.replicas(tablet).iter().filter_map(|replica| topology.node(replica.host)) {
                rows.add(&[
                    ("keyspace_name", text(&table.schema.keyspace)),
                    ("table_name", text(&table.schema.name)),
                    ("start_token", text(map.first_token(tablet).to_string())),
                    ("endpoint", Value::Inet(node.broadcast_address)),
                    ("dc", text(&node.datacenter)),
                    ("end_token", text(map.last_token(tablet).to_string())),
                    ("rack", text(&node.rack)),
                ]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn tokens_are_evenly_spaced_and_end_with_the_greatest() {
        let tokens: Vec<i64> = super::tokens_of(0, 1).collect();
        assert_eq!(tokens.len(), 64);
        assert_eq!(*tokens.last().unwrap(), i64::MAX);
        assert!(tokens.windows(2).all(|pair| pair[1] - pair[0] == 1 << 58));
        let mut all: Vec<i64> = (0..4).flat_map(|place| super::tokens_of(place, 4)).collect();
        all.sort_unstable();
        assert!(all.len() == 256 && all.windows(2).all(|pair| pair[1] - pair[0] == 1 << 56));
    }
}
