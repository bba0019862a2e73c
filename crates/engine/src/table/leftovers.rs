//! Sstables that are in no set of their table any more, and whose files may still be in its
//! directory.

use sstable::SstablePath;
use std::cell::{Cell, RefCell};

/// See the module. A restart would load these sstables. So a truncation names them in the replay
/// filters, and after a removal has failed, compactions purge nothing that their data may need.
#[derive(Default)]
pub(crate) struct Leftovers {
    places: RefCell<Vec<SstablePath>>,
    removal_failed: Cell<bool>,
}

impl Leftovers {
    /// Adds sstables, before their files are removed.
    pub fn add(&self, places: &[SstablePath]) {
        let mut all = self.places.borrow_mut();
        for place in places {
            if !all.contains(place) {
                all.push(place.clone());
            }
        }
    }

    /// All of them.
    pub fn places(&self) -> Vec<SstablePath> {
        self.places.borrow().clone()
    }

    /// Drops sstables whose files are removed durably.
    pub fn are_removed(&self, gone: &[SstablePath]) {
        let mut all = self.places.borrow_mut();
        all.retain(|place| !gone.contains(place));
        if all.is_empty() {
            self.removal_failed.set(false);
        }
    }

    /// Adds an incomplete sstable that could not be removed. It may be sealed on disk, so a restart
    /// would load it.
    pub fn not_removed(&self, place: SstablePath, error: &sstable::Error) {
        tracing::error!(generation = %place.generation, %error,
            "an incomplete sstable could not be removed; nothing is purged in this table until it can");
        self.add(&[place]);
        self.removal_failed();
    }

    /// A removal has failed. It is repeated with later ones.
    pub fn removal_failed(&self) {
        self.removal_failed.set(true);
    }

    /// Whether a restart may load one of them, because its removal has failed.
    pub fn may_return(&self) -> bool {
        self.removal_failed.get()
    }
}
