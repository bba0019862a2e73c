//! Files that have become durable in directories of tables, and are not in the inventory of the
//! data directory yet.

use super::Engine;
use crate::datadir::Made;
use crate::table::Table;
use rt::sync::{Cancel, Notify};
use std::cell::RefCell;
use std::rc::Rc;

/// A queue for one reader.
#[derive(Default)]
pub(crate) struct DirectoryChanges {
    waiting: RefCell<Vec<Made>>,
    added: Notify,
}

impl DirectoryChanges {
    /// Adds a change. An earlier state of the same file is dropped.
    fn add(&self, made: Made) {
        made.add_to(&mut self.waiting.borrow_mut());
        self.added.notify_one();
    }

    /// Waits for changes and takes all of them; `None` after `stop`.
    async fn next(&self, stop: &Cancel) -> Option<Vec<Made>> {
        while self.waiting.borrow().is_empty() {
            stop.clone().unless(self.added.notified()).await?;
        }
        Some(self.waiting.take())
    }
}

impl Engine {
    /// Records that something is durable in the directory of a table.
    pub(crate) fn made(&self, made: Made) {
        self.changes.add(made);
    }

    /// Waits until something has become durable in directories of tables that was not known to be
    /// there in this run. `None` when the engine stops. At most one task may wait.
    pub async fn next_made(&self) -> Option<Vec<Made>> {
        self.changes.next(&self.stop).await
    }

    /// What no [`Engine::next_made`] has taken. For the end of a stop.
    pub fn take_made(&self) -> Vec<Made> {
        self.changes.waiting.take()
    }

    /// The durable files that a start has found in the directories of this shard's tables, apart
    /// from sstables.
    pub fn found_in_directories(&self) -> Vec<Made> {
        let of_table = |table: &Rc<Table>| {
            let id = table.schema().id;
            let epoch = Some(table.epoch.get()).filter(|epoch| *epoch > 0).map(|epoch| Made::Epoch(id, epoch));
            let filters = table.filter_sequences().into_iter();
            let filters = filters.map(|(shard, sequence)| Made::ReplayFilters(id, shard, sequence));
            filters.chain(epoch).collect::<Vec<_>>()
        };
        self.registry.all().iter().flat_map(of_table).collect()
    }
}
