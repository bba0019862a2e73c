//! Changes of the metadata of every kind, as steps of a round.

use cluster::NodeInfo;
use cluster::metadata::{
    ColumnDefinition, KeyspaceDefinition, Metadata, Op, PagingKey, TableDefinition, TabletsDefinition,
    TransitionDefinition, TypeDefinition,
};
use cluster::tablets::TabletReplica;
use cluster::tablets::transition::{Stage, TransitionKind};
use model::id::{ColumnId, HostId, SchemaVersion, TableId};
use model::options::{OptionMap, TableOptions};
use model::schema::ColumnKind;
use uuid::Uuid;

/// The id of a table.
pub fn id(n: u128) -> TableId {
    TableId(Uuid::from_u128(n))
}

/// The replication of the keyspaces.
pub fn replication() -> OptionMap {
    let options = [("class", "NetworkTopologyStrategy"), ("replication_factor", "1")];
    options.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect()
}

/// Creates or alters the keyspace of a round.
pub fn keyspace(durable_writes: bool) -> Op {
    let tablets = OptionMap::new();
    Op::PutKeyspace(KeyspaceDefinition { name: "q".into(), replication: replication(), durable_writes, tablets })
}

fn user_type(fields: &[&str]) -> Op {
    let fields = fields.iter().map(|name| (name.to_string(), "int".to_string())).collect();
    Op::PutType(TypeDefinition { keyspace: "q".into(), name: "u".into(), fields })
}

/// Creates or alters table number `which` of a round.
pub fn table(round: u128, name: &str, which: u128, values: &[&str]) -> Op {
    let column = |id: u16, name: &str, kind, ty: &str| ColumnDefinition {
        id: ColumnId(id),
        name: name.into(),
        kind,
        ty: ty.into(),
        descending: false,
    };
    let mut columns = vec![column(0, "k", ColumnKind::PartitionKey, "int")];
    columns.extend(values.iter().enumerate().map(|(n, name)| column(n as u16, name, ColumnKind::Regular, "int")));
    Op::PutTable(Box::new(TableDefinition {
        id: id(round * 10 + which),
        version: SchemaVersion(Uuid::from_u128(1000 * round + values.len() as u128)),
        keyspace: "q".into(),
        name: name.into(),
        columns,
        dropped: Vec::new(),
        options: TableOptions::default(),
    }))
}

/// The transition of tablet 0 to another shard of the node.
pub fn moving(round: u128, host: HostId, stage: Stage, to: u16) -> Op {
    Op::PutTransition(Box::new(TransitionDefinition {
        table: id(round * 10 + 1),
        tablet: 0,
        kind: TransitionKind::Migration.name().into(),
        stage: stage.name().into(),
        new_replicas: vec![TabletReplica { host, shard: to }],
        session: None,
    }))
}

/// The steps of a round, in order: every kind of change, with data in the tables where that
/// matters.
pub const STEPS: [&str; 22] = [
    "create keyspace",
    "alter keyspace",
    "create type",
    "identify type",
    "alter type",
    "create table",
    "create another",
    "alter table",
    "rows",
    "paging key",
    "node",
    "node goes",
    "fence",
    "move begins",
    "move ends",
    "move back begins",
    "move back ends",
    "truncate",
    "drop table",
    "retire ids",
    "drop type",
    "drop keyspace",
];

/// The operations of a step.
pub fn ops(step: &str, round: u128, metadata: &Metadata, info: &NodeInfo) -> Vec<Op> {
    let host = info.host_id;
    let spread = |which: u128| {
        let replicas = (0..4u16).map(|tablet| vec![TabletReplica { host, shard: tablet % 2 }]).collect();
        Op::PutTablets(TabletsDefinition { table: id(round * 10 + which), replicas })
    };
    let end = || Op::EndTransition { table: id(round * 10 + 1), tablet: 0, moved: true };
    match step {
        "create keyspace" => vec![keyspace(true)],
        "alter keyspace" => vec![keyspace(false)],
        "create type" => vec![user_type(&["a"])],
        "identify type" => {
            let identity = Uuid::from_u128(round);
            vec![Op::IdentifyType { keyspace: "q".into(), name: "u".into(), identity }]
        }
        "alter type" => vec![user_type(&["a", "b"])],
        "create table" => vec![table(round, "t", 1, &["v"]), spread(1)],
        "create another" => vec![table(round, "o", 2, &["v"]), spread(2)],
        "alter table" => vec![table(round, "t", 1, &["v", "w"])],
        "paging key" => {
            let key = PagingKey { id: 1000 + round as u32, secret: [7; 32], created: 1 };
            vec![Op::PutPagingKey(key), Op::DropPagingKey(1000 + round as u32)]
        }
        "node" => {
            let mut other = (**metadata.topology.node(host).expect("this node")).clone();
            other.host = HostId(Uuid::from_u128(77));
            vec![Op::PutNode(Box::new(other))]
        }
        "node goes" => vec![Op::RemoveNode(HostId(Uuid::from_u128(77)))],
        "fence" => vec![Op::Fence(metadata.number)],
        "move begins" => vec![moving(round, host, Stage::Streaming, 1)],
        "move back begins" => vec![moving(round, host, Stage::Streaming, 0)],
        "move ends" | "move back ends" => vec![end()],
        "truncate" => vec![Op::Truncate { table: id(round * 10 + 1), epoch: metadata.number + 1 }],
        "drop table" => vec![Op::DropTable { keyspace: "q".into(), name: "t".into() }],
        "retire ids" => {
            vec![Op::RetireIds { keyspace: "q".into(), table: "t".into(), salt: Uuid::from_u128(round) }]
        }
        "drop type" => vec![Op::DropType { keyspace: "q".into(), name: "u".into() }],
        "drop keyspace" => vec![Op::DropKeyspace("q".into())],
        other => unreachable!("no step {other}"),
    }
}
