//! The tables that a change affects.

use super::definition::Op;
use super::state::{Metadata, Table};
use model::id::TableId;
use std::rc::Rc;

/// The tables that a change affects, so that applying it need not examine all tables.
#[derive(Debug, Default)]
pub(super) struct Touched {
    /// The created or altered tables, as they are after the change.
    pub put: Vec<Rc<Table>>,
    /// The dropped tables, as they were before the change.
    pub dropped: Vec<Rc<Table>>,
}

impl Touched {
    /// The effect of `ops`, which led from `before` to `after`.
    pub fn by(before: &Metadata, after: &Metadata, ops: &[Op]) -> Touched {
        let mut touched = Touched::default();
        for op in ops {
            match op {
                Op::PutTable(definition) => touched.note(before, after, definition.id),
                Op::PutTablets(definition) => touched.note(before, after, definition.table),
                Op::PutTransition(definition) => touched.note(before, after, definition.table),
                Op::EndTransition { table, .. } => touched.note(before, after, *table),
                Op::DropTable { keyspace, name } => {
                    if let Some(table) = before.table(keyspace, name) {
                        touched.note(before, after, table.schema.id);
                    }
                }
                Op::DropKeyspace(name) => {
                    for table in before.keyspace(name).iter().flat_map(|keyspace| keyspace.tables.values()) {
                        touched.note(before, after, table.schema.id);
                    }
                }
                Op::PutKeyspace(_) | Op::PutType(_) | Op::IdentifyType { .. } | Op::DropType { .. } => {}
                Op::PutWantedReplication { .. } => {}
                Op::PutPagingKey(_) | Op::DropPagingKey(_) | Op::RetireIds { .. } => {}
                Op::PutTopologyRequest(_)
                | Op::PutNode(_)
                | Op::PutRun { .. }
                | Op::RemoveNode(_)
                | Op::EnableFeatures(_)
                | Op::Fence(_)
                | Op::SetBalancing(_) => {}
                // The schema and the tablets are unchanged.
                Op::Truncate { .. } => {}
            }
        }
        touched
    }

    /// The differences of schemas and tablets between two snapshots.
    pub fn between(before: &Metadata, after: &Metadata) -> Touched {
        let same = |table: &&Rc<Table>| {
            before
                .table_by_id(table.schema.id)
                .is_some_and(|known| known.definition == table.definition && known.tablets == table.tablets)
        };
        // If another table now has the id of a table, the earlier table counts as dropped: its
        // directory must be removed.
        let gone =
            |table: &&Rc<Table>| after.table_by_id(table.schema.id).is_none_or(|now| !now.has_directory_of(table));
        Touched {
            put: after.tables().filter(|table| !same(table)).cloned().collect(),
            dropped: before.tables().filter(gone).cloned().collect(),
        }
    }

    fn note(&mut self, before: &Metadata, after: &Metadata, id: TableId) {
        let (list, table) = match (before.table_by_id(id), after.table_by_id(id)) {
            (_, Some(table)) => (&mut self.put, table),
            (Some(table), None) => (&mut self.dropped, table),
            (None, None) => return,
        };
        if !list.iter().any(|known| known.schema.id == id) {
            list.push(table.clone());
        }
    }
}
