//! Sstables of a table that could not be opened, although they are part of it.

use sstable::{Corrupt, SstablePath};
use std::cell::RefCell;
use std::rc::Rc;

/// See the module. The contents are unknown: reads of the table fail, and nothing is purged. The
/// files are left alone until the table is truncated or an operator repairs them. A truncation
/// names these sstables: a repaired one would restore truncated rows otherwise.
#[derive(Default)]
pub(crate) struct Unreadable(RefCell<Vec<(SstablePath, Rc<Corrupt>)>>);

impl Unreadable {
    /// Adds an sstable. `why` is the error of reads.
    pub fn add(&self, place: SstablePath, why: Corrupt) {
        self.0.borrow_mut().push((place, Rc::new(why)));
    }

    pub fn count(&self) -> u64 {
        self.0.borrow().len() as u64
    }

    pub fn is_empty(&self) -> bool {
        self.0.borrow().is_empty()
    }

    /// The error of the first one: reads of the table fail with it.
    pub fn error(&self) -> Option<Rc<Corrupt>> {
        self.0.borrow().first().map(|(_, why)| why.clone())
    }

    /// All of them.
    pub fn places(&self) -> Vec<SstablePath> {
        self.0.borrow().iter().map(|(place, _)| place.clone()).collect()
    }

    /// All of them, with the errors of reads.
    pub fn all(&self) -> Vec<(SstablePath, Corrupt)> {
        self.0.borrow().iter().map(|(place, why)| (place.clone(), (**why).clone())).collect()
    }

    /// Drops the sstables of `gone`, which are no longer part of the table. Returns those that were
    /// here.
    pub fn remove(&self, gone: &[SstablePath]) -> Vec<SstablePath> {
        let is_gone = |(place, _): &mut (SstablePath, Rc<Corrupt>)| gone.contains(place);
        self.0.borrow_mut().extract_if(.., is_gone).map(|(place, _)| place).collect()
    }
}
