//! The control plane's state: one numbered, immutable snapshot per shard, and the one way to change it.
//!
//! Changes are made on shard 0, one at a time, journalled durably and then applied on every shard before the one who asked for
//! them is answered. The journal is what Raft will be put under.

pub mod builtin;
pub mod definition;
mod service;
pub mod state;

pub use definition::{
    Change, ColumnDefinition, DroppedDefinition, KeyspaceDefinition, Op, TableDefinition, TabletsDefinition,
    TypeDefinition,
};
pub use service::{ChangeError, MetadataService, NodeInfo, OpenError, Recovered, change, open_journal};
pub use state::{Keyspace, Metadata, MetadataError, Table, types_in_order};
