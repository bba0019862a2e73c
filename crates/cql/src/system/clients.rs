//! `system.clients`: the client connections of all shards.

use super::Knowledge;
use super::rows::{Rows, text, text_map};
use model::types::Value;
use rt::ShardId;
use std::collections::BTreeMap;
use std::net::SocketAddr;

/// A client connection.
#[derive(Clone, Debug)]
pub struct ClientInfo {
    /// The address of the client.
    pub address: SocketAddr,
    /// The state of the connection, such as `READY`.
    pub stage: String,
    /// The options of its STARTUP that are kept, `DRIVER_NAME` and `DRIVER_VERSION` among them.
    pub options: BTreeMap<String, String>,
    /// The protocol version.
    pub protocol_version: u8,
    /// The shard that serves it.
    pub shard: u16,
    /// The authenticated role. `None` without authentication.
    pub role: Option<String>,
    /// Its TLS parameters, if it is encrypted.
    pub encryption: Option<Encryption>,
}

/// The TLS parameters of a connection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Encryption {
    /// The protocol, such as `TLSv1.3`.
    pub protocol: String,
    /// The standard name of the cipher suite.
    pub cipher: String,
}

/// A service of each shard, set by the server: lists the shard's connections.
pub struct ClientList(pub Box<dyn Fn() -> Vec<ClientInfo>>);

pub(super) async fn fill(known: &Knowledge, rows: &mut Rows) {
    let clients = known.shards.clients;
    // One shard after another: the list of a shard is dropped before the next list is made.
    for shard in 0..rt::shard::count() as u16 {
        let list = move || async move { clients.try_get().map(|list| (list.0)()).unwrap_or_default() };
        add(rows, rt::shard::call(ShardId(shard), list).await);
    }
}

fn add(rows: &mut Rows, clients: Vec<ClientInfo>) {
    for client in clients {
        let option = |name: &str| client.options.get(name).map_or(Value::Null, text);
        let encryption = client.encryption.as_ref();
        rows.add(&[
            ("address", Value::Inet(client.address.ip())),
            ("port", Value::Int(client.address.port().into())),
            ("client_type", text("cql")),
            ("client_options", text_map(&client.options)),
            ("connection_stage", text(client.stage)),
            ("driver_name", option("DRIVER_NAME")),
            ("driver_version", option("DRIVER_VERSION")),
            ("protocol_version", Value::Int(client.protocol_version.into())),
            ("shard_id", Value::Int(client.shard.into())),
            ("ssl_cipher_suite", encryption.map_or(Value::Null, |encryption| text(&encryption.cipher))),
            ("ssl_enabled", Value::Boolean(encryption.is_some())),
            ("ssl_protocol", encryption.map_or(Value::Null, |encryption| text(&encryption.protocol))),
            ("username", text(client.role.unwrap_or_else(|| "anonymous".to_owned()))),
        ]);
    }
}
