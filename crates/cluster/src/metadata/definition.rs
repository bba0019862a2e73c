//! The stored form of metadata: definitions, and changes that consist of them. Types are stored as
//! CQL text, so that the encoding does not depend on the code's own structures.

use super::paging_keys::PagingKey;
use crate::tablets::TabletReplica;
use crate::tablets::strategy::copies;
use crate::topology::Node;
use crate::topology::requests::TopologyRequest;
use model::id::{ColumnId, HostId, NodeRun, SchemaVersion, TableId};
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
    /// The options `class` and the replication factors.
    pub replication: OptionMap,
    /// Whether writes go through the commitlog.
    pub durable_writes: bool,
    /// The `tablets` option.
    pub tablets: OptionMap,
}

impl KeyspaceDefinition {
    /// The largest replication factor of all datacenters; 1 if there is none.
    pub fn replication_factor(&self) -> u32 {
        let factors = self.replication.iter().filter(|(key, _)| *key != "class");
        factors.filter_map(|(_, factor)| copies(factor)).max().unwrap_or(1)
    }

    /// The replication factor of all datacenters together, if the options give only one; 1 if they
    /// give none.
    pub fn only_replication_factor(&self) -> Option<u32> {
        let mut factors = self.replication.iter().filter(|(key, _)| *key != "class");
        match (factors.next(), factors.next()) {
            (None, _) => Some(1),
            (Some((_, factor)), None) => copies(factor),
            (Some(_), Some(_)) => None,
        }
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
    /// The id of a static or regular column; 0 for a key column.
    pub id: ColumnId,
    /// Its name.
    pub name: String,
    /// Its kind.
    pub kind: ColumnKind,
    /// Its CQL type.
    pub ty: String,
    /// Whether a clustering column is in descending order.
    pub descending: bool,
}

/// A dropped column.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct DroppedDefinition {
    /// Its id.
    pub id: ColumnId,
    /// Its name.
    pub name: String,
    /// Its kind.
    pub kind: ColumnKind,
    /// Its type when it was dropped ([`lasting_type`]). Release 0.1.0 reads that form, but wrote
    /// user types by name.
    pub ty: String,
    /// When it was dropped, in microseconds.
    pub drop_time: i64,
}

impl DroppedDefinition {
    /// The type in CQL, with tuples instead of user types.
    pub fn shown_type(&self) -> String {
        let class = self.ty.strip_prefix('\'').and_then(|ty| ty.strip_suffix('\''));
        let ty = class.and_then(|class| class_name::parse(class).ok());
        ty.map_or_else(|| self.ty.clone(), |ty| ty.expand_user_types().to_string())
    }
}

/// The text of a type for definitions that may outlive its user types: these are spelled out.
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
    /// The version of this schema, chosen by the sender.
    pub version: SchemaVersion,
    /// The keyspace.
    pub keyspace: String,
    /// Its name.
    pub name: String,
    /// Columns; key columns in the order of the key.
    pub columns: Vec<ColumnDefinition>,
    /// Dropped columns.
    pub dropped: Vec<DroppedDefinition>,
    /// Options.
    pub options: TableOptions,
}

/// The replicas of a table's tablets.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct TabletsDefinition {
    /// The table.
    pub table: TableId,
    /// The replicas of each tablet; the number of tablets is a power of two.
    pub replicas: Vec<Vec<TabletReplica>>,
}

/// A tablet's transition. Kind and stage are stored by name; names never change.
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
    /// The replicas after the transition.
    pub new_replicas: Vec<TabletReplica>,
    /// The session under which this stage streams data.
    pub session: Option<Uuid>,
}

/// An operation of a change. Puts carry the complete new definition. Append-only: the stored form
/// is the index in this list.
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
    /// Sets a table's tablets and their replicas.
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
    /// Drops the key with a number.
    DropPagingKey(u32),
    /// Adds a node to the topology, or replaces its description.
    PutNode(Box<Node>),
    /// Removes a node from the topology.
    RemoveNode(HostId),
    /// Enables features of the cluster, permanently.
    EnableFeatures(Vec<String>),
    /// Begins a tablet's transition, or sets its next stage.
    PutTransition(Box<TransitionDefinition>),
    /// Ends a tablet's transition.
    EndTransition {
        /// The table.
        table: TableId,
        /// The tablet.
        tablet: u32,
        /// Whether the new replicas become the tablet's; otherwise the old ones stay.
        moved: bool,
    },
    /// Raises the fence: requests that are based on metadata of a lower number are refused.
    Fence(u64),
    /// Begins an epoch of a table: earlier data is discarded, and the fence refuses requests that
    /// are based on earlier metadata.
    Truncate {
        /// The table.
        table: TableId,
        /// The number of the metadata that this change leads to. In a snapshot, it is the epoch of
        /// the last TRUNCATE.
        epoch: u64,
    },
    /// Gives a new type its identity; a later type of the same name has another one.
    IdentifyType {
        /// The keyspace.
        keyspace: String,
        /// The type.
        name: String,
        /// Chosen by the sender.
        identity: Uuid,
    },
    /// Retires the ids of the statements that clients prepared for a table which is dropped: those
    /// for later tables of this name include the salt.
    RetireIds {
        /// The keyspace.
        keyspace: String,
        /// The table.
        table: String,
        /// The id of the dropped table.
        salt: Uuid,
    },
    /// Records the present run of a node, in the place of its run before.
    PutRun {
        /// The node.
        host: HostId,
        /// The run.
        run: NodeRun,
    },
    /// Lets tablets move by themselves to nodes that have fewer, or not.
    SetBalancing(bool),
    /// The replication options that a keyspace gets once its tablets have the replicas for them.
    /// `None`: no more.
    PutWantedReplication {
        /// The keyspace.
        keyspace: String,
        /// The options.
        replication: Option<OptionMap>,
    },
    /// A request that changes the cluster. Only in snapshots: otherwise requests follow from the
    /// other operations.
    PutTopologyRequest(Box<TopologyRequest>),
}

impl Op {
    /// The table that begins an epoch.
    pub(super) fn truncated(&self) -> Option<TableId> {
        match self {
            Op::Truncate { table, .. } => Some(*table),
            _ => None,
        }
    }
}

/// A change from one version of the metadata to the next. It is applied entirely or not at all.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Change {
    /// The version that the change is for.
    pub previous: Uuid,
    /// The version that it leads to, chosen by the sender. A time UUID: see [`Change::made_at`].
    pub new: Uuid,
    /// Its operations, in order.
    pub ops: Vec<Op>,
}

impl Change {
    /// The encoded change, as it is proposed and logged.
    pub fn encoded(&self) -> Vec<u8> {
        super::encode(self)
    }

    /// When the sender made the change, in microseconds since 1970. All nodes use this time in the
    /// names of snapshots of dropped or truncated data. `None` if the release that made it did not
    /// use time UUIDs.
    pub fn made_at(&self) -> Option<i64> {
        micros_of(self.new)
    }
}

/// The time of a time UUID in microseconds since 1970. `None` for other UUIDs.
pub fn micros_of(id: Uuid) -> Option<i64> {
    let (seconds, nanos) = id.get_timestamp()?.to_unix();
    i64::try_from(seconds).ok()?.checked_mul(1_000_000)?.checked_add(i64::from(nanos / 1_000))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::{decode, encode};
    use crate::topology::requests::RequestEnd;

    /// Operations as releases have stored them: a line with a name and bytes for each. Every later
    /// release must read them.
    const GOLDEN: &str = include_str!("../../tests/golden/metadata-steps.txt");

    #[test]
    fn steps_that_were_written_down_are_read_and_written_the_same() {
        let table = TableId(Uuid::from_u128(0x0102_0304));
        let known = [
            ("end-transition", Op::EndTransition { table, tablet: 300, moved: true }),
            ("fence", Op::Fence(1_000)),
            ("truncate", Op::Truncate { table, epoch: 1_001 }),
            ("identify-type", Op::IdentifyType { keyspace: "k".into(), name: "u".into(), identity: table.0 }),
            ("retire-ids", Op::RetireIds { keyspace: "k".into(), table: "t".into(), salt: table.0 }),
            ("put-run", Op::PutRun { host: HostId(table.0), run: NodeRun { number: 300, id: table.0 } }),
            ("set-balancing", Op::SetBalancing(true)),
            ("put-wanted-replication", {
                let replication = Some(OptionMap::from([("dc1".to_owned(), "3".to_owned())]));
                Op::PutWantedReplication { keyspace: "k".into(), replication }
            }),
            ("put-topology-request", {
                let ended = Some(RequestEnd { version: table.0, error: Some("e".to_owned()) });
                let (kind, host) = ("leave".to_owned(), Some(HostId(table.0)));
                Op::PutTopologyRequest(Box::new(TopologyRequest { id: table.0, kind, host, keyspace: None, ended }))
            }),
        ];
        let lines: Vec<String> = known.iter().map(|(name, op)| format!("{name} {}", model::hex(&encode(op)))).collect();
        assert_eq!(lines, GOLDEN.lines().collect::<Vec<_>>());
        for (_, op) in known {
            assert_eq!(decode::<Op>(&encode(&op)), Ok(op));
        }
    }
}
