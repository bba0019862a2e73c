//! The responses that a consistency level needs, given the replication options of a keyspace.
//! [`super::response_tracker`] counts the responses.

use super::nodes::Nodes;
use super::response_tracker::{Candidate, Factors};
use super::{Consistency, Coordinator, CoordinatorError, count};
use cluster::metadata::builtin::is_built_in;
use cluster::metadata::{Metadata, Table};
use cluster::tablets::TabletReplica;

/// The replication factors of a keyspace for a tablet with these replicas. Built-in tables are
/// node-local: any level needs only this node.
pub(super) fn factors(metadata: &Metadata, nodes: &Nodes, keyspace: &str, copies: &[Candidate]) -> Factors {
    match metadata.keyspace(keyspace).filter(|_| !is_built_in(keyspace)) {
        Some(keyspace) => nodes.factors(&keyspace.definition.replication, copies),
        None => Factors::default(),
    }
}

/// Whether the level needs only one response.
#[inline]
pub(super) fn needs_one(metadata: &Metadata, table: &Table, level: Consistency) -> bool {
    matches!(level, Consistency::One | Consistency::LocalOne | Consistency::Any) || needs_one_of(metadata, table, level)
}

fn needs_one_of(metadata: &Metadata, table: &Table, level: Consistency) -> bool {
    let keyspace = metadata.keyspace(&table.schema.keyspace).filter(|_| !is_built_in(&table.schema.keyspace));
    // With factors of several datacenters, `ResponseTracker` decides.
    let factor = keyspace.map_or(Some(1), |keyspace| keyspace.definition.only_replication_factor());
    factor.is_some_and(|factor| level.required(factor) == 1)
}

impl Coordinator {
    /// The replica to use for a tablet without replicas: this node's shard 0, which has the data of
    /// a built-in table.
    ///
    /// # Errors
    ///
    /// [`CoordinatorError::Unavailable`] for any other table: its replication factor is 0, so no
    /// level can be reached.
    #[cold]
    pub(super) fn node_local_replica(
        &self,
        table: &Table,
        consistency: Consistency,
    ) -> Result<TabletReplica, CoordinatorError> {
        if is_built_in(&table.schema.keyspace) {
            return Ok(TabletReplica { host: self.host, shard: 0 });
        }
        count(&self.counters.unavailable);
        let required = consistency.required(0).max(1);
        Err(CoordinatorError::Unavailable { consistency, required, alive: 0 })
    }
}
