//! Metadata as it is written down: definitions, and the changes made of them. Types are kept as CQL text, so that the encoding
//! outlives the code's own structures.

use super::paging_keys::PagingKey;
use crate::tablets::TabletReplica;
use crate::tablets::strategy::copies;
use crate::topology::Node;
use model::id::{ColumnId, HostId, SchemaVersion, TableId};
use model::options::{OptionMap, TableOptions};
use model::schema::ColumnKind;
use model::types::{CqlType, class_name};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// A keyspace.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct KeyspaceDefinition {
    /// Its name.
    pub name: String,
    /// `class` and replication factors.
    pub replication: OptionMap,
    /// Whether writes go through the log.
    pub durable_writes: bool,
    /// The `tablets` option.
    pub tablets: OptionMap,
}

impl KeyspaceDefinition {
    /// The replication factor on this one datacenter.
    pub fn replication_factor(&self) -> u32 {
        let factors = self.replication.iter().filter(|(key, _)| *key != "class");
        factors.filter_map(|(_, factor)| copies(factor)).max().unwrap_or(1)
    }

    /// The replication class without its package.
    pub fn replication_class(&self) -> &str {
        let class = self.replication.get("class").map_or("", String::as_str);
        class.rsplit('.').next().unwrap_or(class)
    }
}

/// A user-defined type.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct TypeDefinition {
    /// The keyspace.
    pub keyspace: String,
    /// Its name.
    pub name: String,
    /// Field names and CQL types, in order.
    pub fields: Vec<(String, String)>,
}

/// A column.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ColumnDefinition {
    /// The id of static and regular columns; 0 for key columns.
    pub id: ColumnId,
    /// Its name.
    pub name: String,
    /// Its part.
    pub kind: ColumnKind,
    /// Its CQL type.
    pub ty: String,
    /// Clustering columns: descending order.
    pub descending: bool,
}

/// A dropped column.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct DroppedDefinition {
    /// Its id.
    pub id: ColumnId,
    /// Its name.
    pub name: String,
    /// Its part.
    pub kind: ColumnKind,
    /// Its type at the time ([`lasting_type`]). Release 0.1.0 reads that, but wrote user types by their names.
    pub ty: String,
    /// Microseconds.
    pub drop_time: i64,
}

impl DroppedDefinition {
    /// The type in CQL, with tuples in the place of user types.
    pub fn shown_type(&self) -> String {
        let class = self.ty.strip_prefix('\'').and_then(|ty| ty.strip_suffix('\''));
        let ty = class.and_then(|class| class_name::parse(class).ok());
        ty.map_or_else(|| self.ty.clone(), |ty| ty.expand_user_types().to_string())
    }
}

/// The text of a type for definitions that may outlive the user types in it: it says what they consist of.
pub fn lasting_type(ty: &CqlType) -> String {
    if !ty.any(&mut |ty| matches!(ty, CqlType::Udt(_))) {
        return ty.to_string();
    }
    format!("'{}'", class_name::of(ty).replace(class_name::PACKAGE, ""))
}

/// A table.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct TableDefinition {
    /// Its id.
    pub id: TableId,
    /// This version, chosen by the sender.
    pub version: SchemaVersion,
    /// The keyspace.
    pub keyspace: String,
    /// Its name.
    pub name: String,
    /// Columns; key columns in key order.
    pub columns: Vec<ColumnDefinition>,
    /// Columns dropped earlier.
    pub dropped: Vec<DroppedDefinition>,
    /// Options.
    pub options: TableOptions,
}

/// Where a table's tablets are.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct TabletsDefinition {
    /// The table.
    pub table: TableId,
    /// The copies of each tablet; a power of two of them.
    pub replicas: Vec<Vec<TabletReplica>>,
}

/// How far a tablet's move is. Kind and stage by their names, which never change.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct TransitionDefinition {
    /// The table.
    pub table: TableId,
    /// The tablet.
    pub tablet: u32,
    /// See [`crate::tablets::transition::TransitionKind`].
    pub kind: String,
    /// See [`crate::tablets::transition::Stage`].
    pub stage: String,
    /// The copies that there will be.
    pub new_replicas: Vec<TabletReplica>,
    /// Under which data is copied in this stage.
    pub session: Option<Uuid>,
}

/// A step of a change. Puts carry the whole new definition. Append-only: the journal has the place of each kind in this list.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Op {
    /// Creates or replaces a keyspace.
    PutKeyspace(KeyspaceDefinition),
    /// Drops a keyspace with everything in it.
    DropKeyspace(String),
    /// Creates or replaces a type.
    PutType(TypeDefinition),
    /// Drops a type.
    DropType {
        /// The keyspace.
        keyspace: String,
        /// The type.
        name: String,
    },
    /// Creates or replaces a table.
    PutTable(Box<TableDefinition>),
    /// Places a table's tablets.
    PutTablets(TabletsDefinition),
    /// Drops a table.
    DropTable {
        /// The keyspace.
        keyspace: String,
        /// The table.
        name: String,
    },
    /// Adds a key for paging states.
    PutPagingKey(PagingKey),
    /// Drops the key of a number.
    DropPagingKey(u32),
    /// Puts a node into the topology, or describes it anew.
    PutNode(Box<Node>),
    /// Takes a node out of the topology.
    RemoveNode(HostId),
    /// Enables features of the cluster, for good.
    EnableFeatures(Vec<String>),
    /// Begins a tablet's move, or brings it to another stage.
    PutTransition(Box<TransitionDefinition>),
    /// Ends a tablet's move.
    EndTransition {
        /// The table.
        table: TableId,
        /// The tablet.
        tablet: u32,
        /// Whether the new copies are the tablet's from now on; else the old ones stay.
        moved: bool,
    },
    /// Nobody works with metadata of a number below this any more: what is still on its way by such is refused.
    Fence(u64),
    /// The data of a table from before an epoch are void, and what was routed by metadata from before it is refused.
    Truncate {
        /// The table.
        table: TableId,
        /// The number of the metadata that this change leads to; in a snapshot, of those that the last such change led to.
        epoch: u64,
    },
    /// Gives a type that was just made an identity: a later type of its name has another one.
    IdentifyType {
        /// The keyspace.
        keyspace: String,
        /// The type.
        name: String,
        /// Chosen by the sender.
        identity: Uuid,
    },
}

impl Op {
    /// The table of which an epoch begins.
    pub(super) fn truncated(&self) -> Option<TableId> {
        match self {
            Op::Truncate { table, .. } => Some(*table),
            _ => None,
        }
    }
}

/// A change from one version of the metadata to the next; all of it or nothing.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Change {
    /// The version it was made for; it fits no other.
    pub previous: Uuid,
    /// The version it leads to, chosen by the sender. A time UUID: see [`Change::made_at`].
    pub new: Uuid,
    /// Its steps, in order.
    pub ops: Vec<Op>,
}

impl Change {
    /// Its bytes, as it is proposed and written down.
    pub fn encoded(&self) -> Vec<u8> {
        super::encode(self)
    }

    /// When the sender made it, in microseconds since 1970. All nodes name the snapshots of what it drops or truncates by this time.
    /// Nothing, if a release without time UUIDs made it.
    pub fn made_at(&self) -> Option<i64> {
        let (seconds, nanos) = self.new.get_timestamp()?.to_unix();
        i64::try_from(seconds).ok()?.checked_mul(1_000_000)?.checked_add(i64::from(nanos / 1_000))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::{decode, encode};

    /// Steps as releases have written them down: a line of a name and of bytes for each. What was written is read for ever.
    const GOLDEN: &str = include_str!("../../tests/golden/metadata-steps.txt");

    #[test]
    fn steps_that_were_written_down_are_read_and_written_the_same() {
        let table = TableId(Uuid::from_u128(0x0102_0304));
        let known = [
            ("end-transition", Op::EndTransition { table, tablet: 300, moved: true }),
            ("fence", Op::Fence(1_000)),
            ("truncate", Op::Truncate { table, epoch: 1_001 }),
            ("identify-type", Op::IdentifyType { keyspace: "k".into(), name: "u".into(), identity: table.0 }),
        ];
        let lines: Vec<String> = known
            .iter()
            .map(|(name, op)| {
                let hex: String = encode(op).iter().map(|byte| format!("{byte:02x}")).collect();
                format!("{name} {hex}")
            })
            .collect();
        assert_eq!(lines, GOLDEN.lines().collect::<Vec<_>>());
        for (_, op) in known {
            assert_eq!(decode::<Op>(&encode(&op)), Ok(op));
        }
    }
}
