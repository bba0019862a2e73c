//! Whether a snapshot can hold the metadata that a change leads to.

use super::definition::Op;
use super::state::{Metadata, MetadataError};
use std::collections::BTreeSet;

impl Metadata {
    /// Refuses operations after which this metadata cannot be built again by [`Metadata::as_ops`].
    /// No node could start with a snapshot of it. `ops`: those that led to this metadata. For the
    /// node that makes a change: a change that was agreed on is applied regardless.
    ///
    /// Only user types depend on the order of operations, so only keyspaces whose types change are
    /// built again.
    pub fn check_restorable(&self, ops: &[Op]) -> Result<(), MetadataError> {
        let changed = ops.iter().filter_map(|op| match op {
            Op::PutType(definition) => Some(definition.keyspace.as_str()),
            Op::DropType { keyspace, .. } => Some(keyspace.as_str()),
            _ => None,
        });
        let changed: BTreeSet<&str> = changed.collect();
        if changed.is_empty() {
            return Ok(());
        }
        let written = self.as_ops(|keyspace| !changed.contains(keyspace));
        let restored = Metadata::empty().with(&written);
        restored.map(drop).map_err(|error| MetadataError::Unrestorable(error.to_string()))
    }
}
