//! What a consistency level asks for, by the options of a keyspace. What comes of it is counted by [`super::tally`].

use super::Consistency;
use super::nodes::Nodes;
use super::tally::Factors;
use cluster::metadata::builtin::is_built_in;
use cluster::metadata::{Metadata, Table};
use cluster::tablets::TabletReplica;

/// What a keyspace's options ask for. Each node stores the built-in tables by itself, so any level needs this node alone.
pub(super) fn factors(metadata: &Metadata, nodes: &Nodes, keyspace: &str, copies: &[TabletReplica]) -> Factors {
    match metadata.keyspace(keyspace).filter(|_| !is_built_in(keyspace)) {
        Some(keyspace) => nodes.factors(&keyspace.definition.replication, copies),
        None => Factors::default(),
    }
}

/// Whether one answer is all that a level asks for.
#[inline]
pub(super) fn needs_one(metadata: &Metadata, table: &Table, level: Consistency) -> bool {
    matches!(level, Consistency::One | Consistency::LocalOne | Consistency::Any) || needs_one_of(metadata, table, level)
}

fn needs_one_of(metadata: &Metadata, table: &Table, level: Consistency) -> bool {
    let keyspace = metadata.keyspace(&table.schema.keyspace).filter(|_| !is_built_in(&table.schema.keyspace));
    level.required(keyspace.map_or(1, |keyspace| keyspace.definition.replication_factor())) == 1
}
