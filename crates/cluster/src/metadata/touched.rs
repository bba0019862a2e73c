//! What a change does to tables, for those who follow it.

use super::definition::Op;
use super::state::{Metadata, Table};
use model::id::TableId;
use std::rc::Rc;

/// What a change does to tables, so that whoever follows it need not look at all of them.
#[derive(Debug, Default)]
pub(super) struct Touched {
    /// Those that it made or altered, as they are after it.
    pub put: Vec<Rc<Table>>,
    /// Those that it dropped, as they were before it.
    pub dropped: Vec<Rc<Table>>,
}

impl Touched {
    /// What these steps, which led from one metadata to the other, did.
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
                Op::PutPagingKey(_) | Op::DropPagingKey(_) => {}
                Op::PutNode(_) | Op::RemoveNode(_) | Op::EnableFeatures(_) | Op::Fence(_) => {}
                // Its schema and its tablets are as before.
                Op::Truncate { .. } => {}
            }
        }
        touched
    }

    /// What differs of schemas and tablets from one metadata to another, however that came about.
    pub fn between(before: &Metadata, after: &Metadata) -> Touched {
        let same = |table: &&Rc<Table>| {
            before
                .table_by_id(table.schema.id)
                .is_some_and(|known| known.definition == table.definition && known.tablets == table.tablets)
        };
        // Of a table with the same id and another name nothing is left but the directory, which goes.
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
