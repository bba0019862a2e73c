//! This shard's list of a table's sstables on disk: see `table_dir/sstable_list.rs`.

use super::Table;
use crate::table_dir::{ListedName, ListedNames};
use rt::sync::Semaphore;
use sstable::SstablePath;
use std::cell::RefCell;

/// See the module.
pub(crate) struct Listed {
    /// The list as a start found it.
    at_start: ListedNames,
    /// The list on disk. `None` after a failed write, which may have replaced it.
    on_disk: RefCell<Option<ListedNames>>,
    /// Serialises writes of the list.
    pub turn: Semaphore,
}

impl Listed {
    /// Makes the state from the list on disk.
    pub fn new(at_start: ListedNames) -> Listed {
        Listed { on_disk: RefCell::new(Some(at_start.clone())), at_start, turn: Semaphore::new(1) }
    }

    /// Whether these sstables are listed on disk, and no others.
    pub fn is(&self, names: &ListedNames) -> bool {
        self.on_disk.borrow().as_ref() == Some(names)
    }

    /// Whether only these sstables are listed on disk.
    pub fn is_within(&self, names: &ListedNames) -> bool {
        self.on_disk.borrow().as_ref().is_some_and(|listed| listed.is_subset(names))
    }

    /// Sets what is on disk; `None` while that is unknown.
    pub fn set(&self, names: Option<ListedNames>) {
        self.on_disk.replace(names);
    }
}

impl Table {
    /// The sstables to list: those of the served tablets, and those that were listed at start and
    /// cannot be opened. Sstables that are being removed are no longer listed.
    pub fn names_to_list(&self) -> ListedNames {
        let leftovers = self.leftovers.places();
        let is_left = |place: &SstablePath| leftovers.contains(place);
        let mut names = ListedNames::new();
        for tablet in self.tablets().iter() {
            let set = tablet.sstables();
            let places = set.iter().map(|own| own.sstable.place());
            names.extend(places.filter(|place| !is_left(place)).map(ListedName::of));
        }
        let given_up = self.given_up.borrow();
        let unreadable = self.unreadable.places();
        let lost = unreadable.iter().chain(given_up.iter()).filter(|place| !is_left(place)).map(ListedName::of);
        names.extend(lost.filter(|name| self.listed.at_start.contains(name)));
        names
    }
}
