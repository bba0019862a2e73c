//! The tables of a shard, and which of them has the tablet that writes to a slot of the commitlog.

use crate::commitlog::SlotId;
use crate::table::{Table, Tablet};
use model::TableId;
use rt::hash::HashMap;
use std::cell::RefCell;
use std::rc::Rc;

/// See the module.
#[derive(Default)]
pub(crate) struct TableRegistry {
    tables: RefCell<HashMap<TableId, Rc<Table>>>,
    /// By slot: the table of the tablet that writes to it.
    slots: RefCell<Vec<Option<TableId>>>,
}

impl TableRegistry {
    /// The table with this id.
    #[inline]
    pub fn get(&self, id: TableId) -> Option<Rc<Table>> {
        self.tables.borrow().get(&id).cloned()
    }

    /// Whether there is a table with this id.
    pub fn contains(&self, id: TableId) -> bool {
        self.tables.borrow().contains_key(&id)
    }

    /// The ids of all tables.
    pub fn ids(&self) -> Vec<TableId> {
        self.tables.borrow().keys().copied().collect()
    }

    /// All tables.
    pub fn all(&self) -> Vec<Rc<Table>> {
        self.tables.borrow().values().cloned().collect()
    }

    /// Adds a table, once.
    pub fn insert(&self, id: TableId, table: Rc<Table>) {
        let before = self.tables.borrow_mut().insert(id, table);
        assert!(before.is_none(), "a table is added once");
    }

    /// Removes a table. Its tablets write to no slot any more.
    pub fn remove(&self, id: TableId) -> Option<Rc<Table>> {
        let table = self.tables.borrow_mut().remove(&id)?;
        let mut slots = self.slots.borrow_mut();
        for slot in slots.iter_mut().filter(|slot| **slot == Some(id)) {
            *slot = None;
        }
        Some(table)
    }

    /// A slot of the log that no other tablet has had in this run.
    pub fn take_slot(&self, table: TableId) -> SlotId {
        let mut slots = self.slots.borrow_mut();
        slots.push(Some(table));
        SlotId(slots.len() as u32 - 1)
    }

    /// Records that no tablet writes to a slot any more.
    pub fn release_slot(&self, slot: SlotId) {
        if let Some(left) = self.slots.borrow_mut().get_mut(slot.0 as usize) {
            *left = None;
        }
    }

    /// The tablet that writes to a slot.
    pub fn tablet_of_slot(&self, slot: SlotId) -> Option<(Rc<Table>, Rc<Tablet>)> {
        let table = (*self.slots.borrow().get(slot.0 as usize)?)?;
        let table = self.get(table)?;
        let tablet = table.tablets().iter().find(|own| own.slot == slot)?.clone();
        Some((table, tablet))
    }
}
