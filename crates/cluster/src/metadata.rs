//! The metadata: one numbered, immutable snapshot per shard, and the only way to change it.
//!
//! Changes are made on shard 0, one at a time. The cluster's Raft group ([`crate::raft`]) agrees on
//! them, and every node applies them on all of its shards, in the same order. The requester of a
//! change gets its answer once its node has applied the change.

mod added_again;
pub mod builtin;
mod change;
pub mod definition;
mod follow;
mod leaving;
pub mod paging_keys;
mod recovery;
mod restorable;
mod service;
mod shard_moves;
mod shards;
pub mod shared;
mod size;
pub mod state;
mod touched;

pub use change::{ChangeError, change};
pub use definition::{
    Change, ColumnDefinition, DroppedDefinition, KeyspaceDefinition, Op, TableDefinition, TabletsDefinition,
    TransitionDefinition, TypeDefinition, lasting_type, micros_of,
};
pub use paging_keys::{PagingKey, PagingKeyPolicy, PagingKeys};
pub use recovery::{MetadataLog, OpenError, Recovered, is_member, open_log, open_log_to_join, own_node};
pub use service::{MetadataService, NodeInfo, StartError};
pub use shards::ClusterShards;
pub use shared::SharedMap;
pub use size::{MAX_DEFINITION_BYTES, TooLarge};
pub use state::{Keyspace, Metadata, MetadataError, Table, types_in_order};

/// The version byte of logged changes and snapshots.
const FORMAT: u8 = 1;

/// Encodes a change or a snapshot.
fn encode<T: serde::Serialize>(value: &T) -> Vec<u8> {
    postcard::to_extend(value, vec![FORMAT]).expect("metadata can be encoded")
}

/// Decodes a change or a snapshot.
fn decode<T: serde::de::DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    match bytes.split_first() {
        Some((&FORMAT, body)) => postcard::from_bytes(body).map_err(|error| error.to_string()),
        Some((version, _)) => Err(format!("format {version} is newer than this release supports")),
        None => Err("it is empty".into()),
    }
}
