//! What every node has from birth, outside the journal: the node-local tables of `system_traces`.

use super::definition::Op;

/// The keyspaces that are built in.
pub fn is_built_in(keyspace: &str) -> bool {
    keyspace == "system_traces"
}

/// The steps that create them.
pub fn ops() -> Vec<Op> {
    Vec::new()
}
