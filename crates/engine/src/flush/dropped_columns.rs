//! Memtables when columns are dropped.
//!
//! Cells that are newer than the drop of their column are back when a column of its name is added.
//! Sstables return them, because they identify columns by name. Memtables use column ids, which
//! are never used again. So the memtables of that moment are sealed and flushed with the schema
//! that still has the columns. Reads of sstables discard the cells up to the drop.

use crate::engine::Engine;
use crate::error::EngineError;
use crate::table::Table;
use model::TableId;
use model::schema::TableSchema;
use std::rc::Rc;

impl Engine {
    /// Seals the memtables of a table whose next schema drops columns, and begins to flush them
    /// with the schema before. Without waiting: all writes so far are in the sealed memtables.
    pub(crate) fn flush_before_drop(&self, table: &Rc<Table>, before: &Rc<TableSchema>) {
        for tablet in table.tablets().iter() {
            tablet.seal();
            tablet.sealed().iter().for_each(|memtable| memtable.flush_with(before));
        }
        let id = table.schema().id;
        self.run(|engine| async move {
            // A flush that failed is reported, and repeated by the next one of its tablet.
            let _ = engine.finish_flushes(id).await;
        });
    }

    /// Flushes the tablets that have sealed memtables.
    pub async fn finish_flushes(&self, id: TableId) -> Result<(), EngineError> {
        let Some(table) = self.table(id) else { return Ok(()) };
        for tablet in table.tablets().iter().filter(|tablet| tablet.is_flushing()) {
            self.flush_tablet(&table, tablet).await?;
        }
        Ok(())
    }
}
