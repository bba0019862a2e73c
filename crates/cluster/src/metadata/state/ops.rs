//! The operations that make keyspaces and tables from nothing.

use super::{Keyspace, Table, types_in_order};
use crate::metadata::definition::{Op, TabletsDefinition, TypeDefinition};

/// The operations that make a keyspace and its types.
pub(super) fn keyspace_ops(keyspace: &Keyspace) -> Vec<Op> {
    let mut ops = vec![Op::PutKeyspace(keyspace.definition.clone())];
    ops.extend(keyspace.wanted_replication.iter().map(|replication| Op::PutWantedReplication {
        keyspace: keyspace.definition.name.clone(),
        replication: Some(replication.clone()),
    }));
    for user_type in types_in_order(keyspace) {
        ops.push(Op::PutType(TypeDefinition {
            keyspace: user_type.keyspace.clone(),
            name: user_type.name.clone(),
            fields: user_type.fields.iter().map(|(name, ty)| (name.clone(), ty.to_string())).collect(),
        }));
    }
    ops.extend(keyspace.type_identities.iter().map(|(name, identity)| Op::IdentifyType {
        keyspace: keyspace.definition.name.clone(),
        name: name.clone(),
        identity: *identity,
    }));
    ops
}

/// The operations that make a table.
pub(super) fn table_ops(table: &Table) -> Vec<Op> {
    let id = table.schema.id;
    let replicas = (0..table.tablets.count()).map(|t| table.tablets.replicas(t).to_vec()).collect();
    let mut ops = vec![
        Op::PutTable(Box::new((*table.definition).clone())),
        Op::PutTablets(TabletsDefinition { table: id, replicas }),
    ];
    let moving = table.tablets.transitions().map(|(tablet, moving)| moving.written(id, tablet));
    ops.extend(moving.map(|definition| Op::PutTransition(Box::new(definition))));
    ops.extend((table.epoch > 0).then_some(Op::Truncate { table: id, epoch: table.epoch }));
    ops
}
