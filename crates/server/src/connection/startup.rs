//! OPTIONS and STARTUP: what the server offers, and what a client chose of it.

use super::client::Connection;
use super::transport::Transport;
use crate::protocol::{Compression, Version};
use cql::Error;
use cql::system::{CQL_VERSION, PARTITIONER};

/// How many leading token bits the sharding formula of unaware drivers ignores.
const IGNORED_BITS: u32 = 12;

/// The options of SUPPORTED, as this shard's connections get them.
pub(super) fn supported(transport: &Transport) -> Vec<(&'static str, Vec<String>)> {
    let one = |text: &str| vec![text.to_owned()];
    let mut options = vec![
        ("CQL_VERSION", one(CQL_VERSION)),
        ("COMPRESSION", vec![Compression::Lz4.to_string(), Compression::Snappy.to_string()]),
        ("PROTOCOL_VERSIONS", vec![Version::V3.to_string(), Version::V4.to_string()]),
        ("CLIENT_OPTIONS", one("")),
        ("SCYLLA_HOST_ID", one(&transport.node.host_id.to_string())),
        ("SCYLLA_SHARD", one(&rt::shard::this().to_string())),
        ("SCYLLA_NR_SHARDS", one(&rt::shard::count().to_string())),
        ("SCYLLA_PARTITIONER", one(PARTITIONER)),
        ("SCYLLA_SHARDING_ALGORITHM", one("biased-token-round-robin")),
        ("SCYLLA_SHARDING_IGNORE_MSB", one(&IGNORED_BITS.to_string())),
        ("SCYLLA_RATE_LIMIT_ERROR", one("ERROR_CODE=61440")),
        ("TABLETS_ROUTING_V1", one("")),
    ];
    if let Some(port) = transport.node.shard_aware_port {
        options.push(("SCYLLA_SHARD_AWARE_PORT", one(&port.to_string())));
    }
    options
}

/// Takes over what the client chose. Keys that mean nothing here are kept for `system.clients`.
pub(super) fn start(connection: &Connection, version: Version, options: Vec<(String, String)>) -> Result<(), Error> {
    let get = |name: &str| options.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str());
    if get("CQL_VERSION").is_none() {
        return Err(Error::Protocol("Missing value CQL_VERSION in STARTUP message".to_owned()));
    }
    let compression = match get("COMPRESSION") {
        None | Some("") => None,
        Some(name) => Some(
            Compression::from_name(name)
                .ok_or_else(|| Error::Protocol(format!("Unknown compression algorithm: {name}")))?,
        ),
    };
    connection.compression.set(compression);
    connection.client.tablets_routing.set(get("TABLETS_ROUTING_V1").is_some());
    connection.rate_limit.set(get("SCYLLA_RATE_LIMIT_ERROR").is_some());
    connection.version.set(Some(version));
    connection.ready.set(true);
    *connection.options.borrow_mut() = options;
    Ok(())
}
