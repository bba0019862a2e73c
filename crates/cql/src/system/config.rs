//! `system.config`: the settings of the node, by their names in the configuration file, and changes
//! of settings at run time.

use super::rows::{Rows, text};
use super::{Knowledge, SystemShards, write_failure};
use crate::error::Error;
use crate::modify::operation::Change;
use crate::modify::{Deletion, Modify};
use crate::request::Request;
use crate::term::{Env, Term};
use rt::ShardId;
use rt::sync::Semaphore;
use std::rc::Rc;
use thiserror::Error;

/// A setting.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Setting {
    /// Its name.
    pub name: &'static str,
    /// The source of the value: `default`, `yaml`, `cli` or `cql`.
    pub source: &'static str,
    /// Its type: `string`, `integer` or `bool`.
    pub kind: &'static str,
    /// Its value, as JSON.
    pub value: String,
}

/// The reason why a setting was not changed. The texts are ScyllaDB's.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum SettingRefused {
    /// No setting has this name.
    #[error("no such option{}", meant.map(|meant| format!("; did you mean {meant}?")).unwrap_or_default())]
    Unknown {
        /// The name that is probably meant.
        meant: Option<&'static str>,
    },
    /// The setting cannot be changed while the node runs.
    #[error("option is not live-updateable")]
    NotLive,
    /// The value does not have the type of the setting.
    #[error("cannot parse option value: {0}")]
    Wrong(String),
}

/// The settings of one shard.
pub trait Settings {
    /// Lists all settings.
    fn list(&self) -> Vec<Setting>;
    /// Changes a setting on this shard. All shards accept and refuse the same values.
    fn set(&self, name: &str, value: &str) -> Result<(), SettingRefused>;
}

/// A service of each shard, set by the server.
pub struct SettingsTable(pub Rc<dyn Settings>);

pub(super) fn fill(known: &Knowledge, rows: &mut Rows) {
    let mut add = |name: &str, source: &str, kind: &str, value: String| {
        rows.add(&[("name", text(name)), ("source", text(source)), ("type", text(kind)), ("value", text(value))]);
    };
    let quoted = |value: &str| format!("\"{value}\"");
    add("partitioner", "default", "string", quoted(super::PARTITIONER));
    match known.shards.settings.try_get() {
        Some(table) => {
            for setting in table.0.list() {
                add(setting.name, setting.source, setting.kind, setting.value);
            }
        }
        // A node without a configuration, as in the simulation, shows only its name and addresses.
        None => {
            let node = &known.node;
            add("cluster_name", "default", "string", quoted(&node.cluster_name));
            add("listen_address", "default", "string", quoted(&node.listen_address.to_string()));
            add("rpc_address", "default", "string", quoted(&node.rpc_address.to_string()));
            add("native_transport_port", "default", "integer", node.native_port.to_string());
        }
    }
}

/// Whether the table is `system.config`.
pub fn is_config(keyspace: &str, table: &str) -> bool {
    keyspace == "system" && table == "config"
}

/// Executes `UPDATE system.config SET value = ... WHERE name = ...`. Other writes to the table are
/// refused.
pub async fn update(shards: SystemShards, modify: &Modify, env: Env<'_>, request: &Request<'_>) -> Result<(), Error> {
    request.check_write_level()?;
    let refused = |why: &str| write_failure(&modify.schema, request.params.consistency, why);
    if modify.deletion != Deletion::None {
        return Err(refused("option value is required"));
    }
    let set = |name: &str| -> Option<&Term> {
        let column = modify.schema.column_named(name)?.id;
        modify.operations.iter().find(|operation| operation.column == column).and_then(|operation| {
            match &operation.change {
                Change::Set(term) => Some(term),
                _ => None,
            }
        })
    };
    let as_text =
        |bytes: bytes::Bytes| String::from_utf8(bytes.into()).map_err(|error| Error::invalid(error.to_string()));
    let value = set("value").map(|term| term.evaluate_set(env)).transpose()?.flatten();
    let value = as_text(value.ok_or_else(|| refused("option value is required"))?)?;
    if set("type").is_some() {
        return Err(refused("option type is immutable"));
    }
    if set("source").is_some() {
        return Err(refused("option source is not updateable"));
    }
    for key in modify.keys(env)? {
        let (name, value) = (as_text(key.key)?, value.clone());
        let set = set_everywhere(shards, name.clone(), value).await;
        set.map_err(|why| refused(&format!("{name}: {why}")))?;
    }
    Ok(())
}

/// Sets a setting on all shards. One change at a time reaches the shards.
async fn set_everywhere(shards: SystemShards, name: String, value: String) -> Result<(), SettingRefused> {
    rt::shard::call(ShardId(0), move || async move {
        let turn = shards.setting_turn.try_get().unwrap_or_else(|| {
            let turn = Rc::new(Semaphore::new(1));
            shards.setting_turn.set(turn.clone());
            turn
        });
        let _turn = turn.acquire().await;
        let set = rt::shard::call_all(move || {
            let (name, value) = (name.clone(), value.clone());
            async move {
                let table = shards.settings.try_get().ok_or(SettingRefused::Unknown { meant: None })?;
                table.0.set(&name, &value)
            }
        });
        set.await.into_iter().collect()
    })
    .await
}
