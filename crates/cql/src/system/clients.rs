//! `system.clients`: the connections of all shards, which the server's shards list.

use super::rows::{Rows, text};
use model::types::Value;
use std::net::SocketAddr;

/// A connection.
#[derive(Clone, Debug)]
pub struct ClientInfo {
    /// Where the client is.
    pub address: SocketAddr,
    /// How far the connection got, such as `READY`.
    pub stage: String,
    /// `DRIVER_NAME` of its STARTUP.
    pub driver_name: Option<String>,
    /// `DRIVER_VERSION` of its STARTUP.
    pub driver_version: Option<String>,
    /// The protocol's version.
    pub protocol_version: u8,
    /// The shard that serves it.
    pub shard: u16,
    /// The role; without authentication none.
    pub role: Option<String>,
}

/// A service that the server installs on each shard: lists the shard's connections.
pub struct ClientList(pub Box<dyn Fn() -> Vec<ClientInfo>>);

pub(super) async fn fill(rows: &mut Rows) {
    let lists = rt::shard::call_all(|| async {
        rt::shard::try_service::<ClientList>().map(|list| (list.0)()).unwrap_or_default()
    });
    let optional = |value: Option<String>| value.map_or(Value::Null, text);
    for client in lists.await.into_iter().flatten() {
        rows.add(&[
            ("address", Value::Inet(client.address.ip())),
            ("port", Value::Int(client.address.port().into())),
            ("client_type", text("cql")),
            ("connection_stage", text(client.stage)),
            ("driver_name", optional(client.driver_name)),
            ("driver_version", optional(client.driver_version)),
            ("protocol_version", Value::Int(client.protocol_version.into())),
            ("shard_id", Value::Int(client.shard.into())),
            ("ssl_enabled", Value::Boolean(false)),
            ("username", text(client.role.unwrap_or_else(|| "anonymous".to_owned()))),
        ]);
    }
}
