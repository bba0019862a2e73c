//! `system.clients`: the connections of all shards, which the server's shards list.

use super::rows::{Rows, text, text_map};
use model::types::Value;
use rt::ShardId;
use std::collections::BTreeMap;
use std::net::SocketAddr;

/// A connection.
#[derive(Clone, Debug)]
pub struct ClientInfo {
    /// Where the client is.
    pub address: SocketAddr,
    /// How far the connection got, such as `READY`.
    pub stage: String,
    /// The options of its STARTUP that are kept, `DRIVER_NAME` and `DRIVER_VERSION` among them.
    pub options: BTreeMap<String, String>,
    /// The protocol's version.
    pub protocol_version: u8,
    /// The shard that serves it.
    pub shard: u16,
    /// The role; without authentication none.
    pub role: Option<String>,
    /// How it is encrypted, if it is.
    pub encryption: Option<Encryption>,
}

/// How a connection is encrypted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Encryption {
    /// The protocol, such as `TLSv1.3`.
    pub protocol: String,
    /// The cipher suite by its standard name.
    pub cipher: String,
}

/// A service that the server installs on each shard: lists the shard's connections.
pub struct ClientList(pub Box<dyn Fn() -> Vec<ClientInfo>>);

pub(super) async fn fill(rows: &mut Rows) {
    // One shard after another: the list of each is given up before the next one is made.
    for shard in 0..rt::shard::count() as u16 {
        let list = || async { rt::shard::try_service::<ClientList>().map(|list| (list.0)()).unwrap_or_default() };
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
