//! The ids under which a node counts in tablets that moved to it from other nodes.
//!
//! A node adds to the sum that is stored under its counter id, so it must have all data that was
//! ever stored under that id. That does not hold for a tablet that has left the node and returns.
//! It may be copied from a replica that lacks sums of the node, although a quorum has them. So the
//! node counts under another id each time that a tablet moves to it. The replica combines it with
//! the node's own id.
//!
//! The id is in a file of the table's directory, which is written before the tablet is added. A
//! damaged one is replaced: a new id is always safe.

use crate::engine::Engine;
use crate::error::EngineError;
use crate::files::sealed;
use crate::table::Table;
use model::TableId;
use model::key::DecoratedKey;
use model::range::PartitionRange;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use uuid::Uuid;

const KIND: &str = "count-id";
const FORMAT: u32 = 1;

/// The file of a tablet. Its name has the last token of the tablet, because numbers of tablets
/// change.
fn path(dir: &Path, range: &PartitionRange) -> PathBuf {
    dir.join(format!("count-id-{:016x}.json", range.end.token.0 as u64))
}

impl Engine {
    /// The id that is combined with the node's for counters of a partition. `None` if the tablet
    /// has been on the node since the table was created.
    pub fn tablet_counter_id(&self, id: TableId, key: &DecoratedKey) -> Option<Uuid> {
        self.table(id)?.tablet_of(key)?.tablet_counter_id.get()
    }

    /// Ensures that the node counts under ids of their own in these tablets of a table, which it is
    /// still receiving. Unknown tables, and tables without counters, are ignored.
    pub async fn count_apart(&self, id: TableId, pending: &BTreeSet<u32>) -> Result<(), EngineError> {
        let Some(table) = self.table(id).filter(|table| table.schema().is_counter()) else { return Ok(()) };
        for tablet in table.tablets().iter().filter(|tablet| pending.contains(&tablet.id)) {
            if tablet.tablet_counter_id.get().is_none() {
                tablet.tablet_counter_id.set(self.new_tablet_counter_id(&table, &tablet.range).await?);
            }
        }
        Ok(())
    }

    /// Chooses a new id for a tablet, durably. Tables without counters need none.
    pub(super) async fn new_tablet_counter_id(
        &self,
        table: &Table,
        range: &PartitionRange,
    ) -> Result<Option<Uuid>, EngineError> {
        if !table.schema().is_counter() {
            return Ok(None);
        }
        self.make_directory(table).await?;
        let (id, path) = (rt::random::uuid_v4(), path(&table.dir, range));
        sealed::write(&path, KIND, FORMAT, &id).await.map_err(EngineError::io(path))?;
        Ok(Some(id))
    }

    /// Removes the id of a tablet that has left. An id that stays has no effect.
    pub(super) async fn remove_tablet_counter_id(
        &self,
        table: &Table,
        range: &PartitionRange,
    ) -> Result<(), EngineError> {
        if !table.schema().is_counter() {
            return Ok(());
        }
        let path = path(&table.dir, range);
        match rt::fs::remove_file(&path).await {
            Err(error) if rt::fs::is_absence(&error) => Ok(()),
            removed => removed.map_err(EngineError::io(path)),
        }
    }

    /// Reads the ids of a table's tablets at start.
    pub(super) async fn read_tablet_counter_ids(&self, table: &Table) -> Result<(), EngineError> {
        if !table.schema().is_counter() {
            return Ok(());
        }
        for tablet in table.tablets().iter() {
            let path = path(&table.dir, &tablet.range);
            match sealed::read::<Uuid>(&path, KIND, FORMAT).await.map_err(EngineError::io(&path))? {
                Ok(id) => tablet.tablet_counter_id.set(Some(id)),
                Err(damaged) if damaged.is_there => {
                    tracing::warn!(file = %path.display(), why = damaged.why, "a tablet gets a new counter id, because the file with its id is damaged");
                    tablet.tablet_counter_id.set(self.new_tablet_counter_id(table, &tablet.range).await?);
                }
                Err(_) => {}
            }
        }
        Ok(())
    }
}
