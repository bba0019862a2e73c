//! OPTIONS and STARTUP: the options that the server offers, the client's choice, and when these
//! requests are accepted.

use super::client::Connection;
use super::transport::Transport;
use crate::protocol::segment::Form;
use crate::protocol::{Compression, Dialect, Opcode, Version};
use cql::Error;
use cql::system::{CQL_VERSION, PARTITIONER};

/// The most options of a STARTUP. Drivers send about ten.
pub(super) const MAX_OPTIONS: usize = 64;
/// The most bytes of the names and values of options that a connection keeps for `system.clients`.
pub(super) const KEPT_OPTIONS: usize = 8 << 10;

/// How many leading bits of the token the sharding formula of drivers ignores that do not know
/// tablets.
pub(crate) const IGNORED_BITS: u32 = 12;

/// Checks the order of messages: OPTIONS at any time, STARTUP once and first.
#[inline]
pub(super) fn check_order(connection: &Connection, opcode: Opcode, version: Version) -> Result<(), Error> {
    match connection.version.get() {
        None if matches!(opcode, Opcode::Startup | Opcode::Options) => Ok(()),
        None => Err(Error::Protocol(format!("Unexpected message {}, expecting STARTUP or OPTIONS", opcode.name()))),
        Some(_) if opcode == Opcode::Startup => {
            Err(Error::Protocol("Unexpected message STARTUP, the connection was already started".to_owned()))
        }
        Some(known) if known != version => Err(Error::Protocol(format!(
            "Invalid message version. Got {version} but previous messages on this connection had version {known}"
        ))),
        Some(_) => Ok(()),
    }
}

/// The options of SUPPORTED for connections of this shard in this version.
pub(super) fn supported(transport: &Transport, version: Version) -> Vec<(&'static str, Vec<String>)> {
    let one = |text: &str| vec![text.to_owned()];
    let compressions: &[Compression] = match version {
        Version::V3 | Version::V4 => &[Compression::Lz4, Compression::Snappy],
        Version::V5 => &[Compression::Lz4],
    };
    let mut options = vec![
        ("CQL_VERSION", one(CQL_VERSION)),
        ("COMPRESSION", compressions.iter().map(Compression::to_string).collect()),
        ("PROTOCOL_VERSIONS", Version::ALL.iter().map(Version::to_string).collect()),
        ("CLIENT_OPTIONS", one("")),
        ("SCYLLA_HOST_ID", one(&transport.node.host_id.to_string())),
        ("SCYLLA_SHARD", one(&rt::shard::this().to_string())),
        ("SCYLLA_NR_SHARDS", one(&rt::shard::count().to_string())),
        ("SCYLLA_PARTITIONER", one(PARTITIONER)),
        ("SCYLLA_SHARDING_ALGORITHM", one("biased-token-round-robin")),
        ("SCYLLA_SHARDING_IGNORE_MSB", one(&IGNORED_BITS.to_string())),
        ("SCYLLA_LWT_ADD_METADATA_MARK", one("LWT_OPTIMIZATION_META_BIT_MASK=2147483648")),
        ("SCYLLA_RATE_LIMIT_ERROR", one("ERROR_CODE=61440")),
        ("SCYLLA_USE_METADATA_ID", one("")),
        ("TABLETS_ROUTING_V1", one("")),
    ];
    let node = &transport.node;
    let ports = [
        ("SCYLLA_SHARD_AWARE_PORT", node.shard_aware_port),
        ("SCYLLA_SHARD_AWARE_PORT_SSL", node.shard_aware_port_ssl),
    ];
    for (key, port) in ports {
        options.extend(port.map(|port| (key, one(&port.to_string()))));
    }
    options
}

/// Applies the options of STARTUP. Unknown keys are kept for `system.clients`. Returns the form of
/// the segments that both sides use from now on, in versions with segments.
pub(super) fn start(
    connection: &Connection,
    version: Version,
    options: Vec<(String, String)>,
) -> Result<Option<Form>, Error> {
    if options.len() > MAX_OPTIONS {
        return Err(Error::Protocol(format!("STARTUP has {} options; the maximum is {MAX_OPTIONS}", options.len())));
    }
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
    let form = match (version, compression) {
        (Version::V3 | Version::V4, _) => None,
        (Version::V5, None) => Some(Form::Plain),
        (Version::V5, Some(Compression::Lz4)) => Some(Form::Lz4),
        (Version::V5, Some(other)) => {
            return Err(Error::Protocol(format!(
                "Protocol version {version} compresses with lz4 only, not with {other}"
            )));
        }
    };
    connection.dialect.set(Dialect {
        // With segments, frames are not compressed themselves.
        compression: compression.filter(|_| form.is_none()),
        metadata_ids: get("SCYLLA_USE_METADATA_ID").is_some(),
    });
    connection.client.tablets_routing.set(get("TABLETS_ROUTING_V1").is_some());
    connection.rate_limit.set(get("SCYLLA_RATE_LIMIT_ERROR").is_some());
    connection.lwt_mark.set(get("SCYLLA_LWT_ADD_METADATA_MARK").is_some());
    connection.version.set(Some(version));
    connection.started();
    *connection.options.borrow_mut() = kept(options);
    Ok(form)
}

/// The options that a connection keeps: in the order sent, without those for which
/// [`KEPT_OPTIONS`] leaves no room.
fn kept(options: Vec<(String, String)>) -> Box<[(String, String)]> {
    let mut left = KEPT_OPTIONS;
    let fits = |(name, value): &(String, String)| match left.checked_sub(name.len() + value.len()) {
        Some(rest) => {
            left = rest;
            true
        }
        None => false,
    };
    options.into_iter().filter(fits).collect()
}
